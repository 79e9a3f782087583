//! Looking up a queue with everything that a call needs.

use std::sync::Arc;

use super::check_users;
use super::near::Bound;
use crate::queues::Queues;

impl Queues {
    /// Returns the queue of a name, with its topic. Internal queues of the broker are not found, and are in no slot.
    pub(super) async fn bound(&self, name: &str) -> engine::Result<Arc<Bound>> {
        match self.near.get(name) {
            Some(bound) => Ok(bound),
            None => Box::pin(self.bind(name)).await,
        }
    }

    async fn bind(&self, name: &str) -> engine::Result<Arc<Bound>> {
        check_users(name)?;
        let (cell, topic) = self.any_cell(name).await.inspect_err(|_| self.near.forget(name))?;
        // A caller that deletes or alters the queue does that first, and removes the queue from the slots afterwards.
        let by_name = self.by_name.read();
        let mut near = self.near.slot().0.write();
        let bound = Arc::new(Bound { definition: cell.definition(), cell, topic });
        if let Some((name, current)) = by_name.get_key_value(name)
            && Arc::ptr_eq(current, &bound.cell)
        {
            near.insert(name.clone(), bound.clone());
        }
        Ok(bound)
    }
}
