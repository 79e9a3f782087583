//! Queues as calls find them: with all that a call needs, in one look.

use std::collections::HashMap;
use std::sync::Arc;

use engine::queue::{QueueDefinition, QueueName};
use parking_lot::RwLock;

use super::{QueueCell, check_users};
use crate::broker::Broker;
use crate::metrics::thread_number;
use crate::topics::Topic;

/// Threads share a shard only when there are more of them.
const SHARDS: usize = 8;

/// A queue that somebody has found.
pub(super) struct Bound {
    pub cell: Arc<QueueCell>,
    pub definition: Arc<QueueDefinition>,
    pub topic: Arc<Topic>,
}

/// Queues that were called lately. A thread has a shard, whose locks and whose counts of references it need not share:
/// threads that use the same queue meet at its partition and not before.
///
/// Invariant: a queue that is in a shard is there, with its newest definition. Its topic says itself if there is a
/// newer one.
#[derive(Default)]
pub(super) struct Near([Shard; SHARDS]);

#[derive(Default)]
#[repr(align(128))]
struct Shard(RwLock<HashMap<QueueName, Arc<Bound>, foldhash::fast::RandomState>>);

impl Near {
    fn shard(&self) -> &Shard {
        &self.0[thread_number() % SHARDS]
    }

    fn get(&self, name: &str) -> Option<Arc<Bound>> {
        self.shard().0.read().get(name).filter(|bound| bound.topic.is_current()).cloned()
    }

    /// The queue is not there any more, or is another.
    pub(super) fn forget(&self, name: &str) {
        self.0.iter().for_each(|shard| drop(shard.0.write().remove(name)));
    }
}

impl Broker {
    /// The queue of a name, with its topic. What is the broker's own is no queue of a user, and in no shard.
    pub(super) async fn bound_queue(&self, name: &str) -> engine::Result<Arc<Bound>> {
        match self.queues_there().near.get(name) {
            Some(bound) => Ok(bound),
            None => Box::pin(self.bind_queue(name)).await,
        }
    }

    async fn bind_queue(&self, name: &str) -> engine::Result<Arc<Bound>> {
        check_users(name)?;
        let queues = self.queues_there();
        let (cell, topic) = self.any_queue_cell(name).await.inspect_err(|_| queues.near.forget(name))?;
        // Whoever deletes or alters it does that first, and lets the shards forget it then.
        let by_name = queues.by_name.read();
        let mut near = queues.near.shard().0.write();
        let bound = Arc::new(Bound { definition: cell.definition(), cell, topic });
        if let Some((name, there)) = by_name.get_key_value(name)
            && Arc::ptr_eq(there, &bound.cell)
        {
            near.insert(name.clone(), bound.clone());
        }
        Ok(bound)
    }
}
