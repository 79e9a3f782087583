//! Per-thread tables of queues, which hold everything that a call needs in one entry.

use std::collections::HashMap;
use std::sync::Arc;

use engine::queue::{QueueDefinition, QueueName};
use parking_lot::RwLock;

use super::check_users;
use crate::metrics::thread_number;
use crate::queues::Queues;
use crate::topic::Topic;
use crate::view::QueueCell;

/// Number of slots. Threads share a slot only if there are more threads than slots.
const SLOTS: usize = 8;

/// A queue that was looked up, with its definition and its topic.
pub(super) struct Bound {
    pub cell: Arc<QueueCell>,
    pub definition: Arc<QueueDefinition>,
    pub topic: Arc<Topic>,
}

/// Queues that were used recently. Each thread has a slot, so that it shares neither locks nor reference counts:
/// threads that use the same queue first meet at its partition.
///
/// Invariant: a queue in a slot exists, with its newest definition. A replaced topic reports that itself.
#[derive(Default)]
pub(super) struct Near([Slot; SLOTS]);

#[derive(Default)]
#[repr(align(128))]
struct Slot(RwLock<HashMap<QueueName, Arc<Bound>, foldhash::fast::RandomState>>);

impl Near {
    fn slot(&self) -> &Slot {
        &self.0[thread_number() % SLOTS]
    }

    fn get(&self, name: &str) -> Option<Arc<Bound>> {
        self.slot().0.read().get(name).filter(|bound| bound.topic.is_current()).cloned()
    }

    /// Removes a queue that was deleted or changed from all slots.
    pub(super) fn forget(&self, name: &str) {
        self.0.iter().for_each(|slot| drop(slot.0.write().remove(name)));
    }
}

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
