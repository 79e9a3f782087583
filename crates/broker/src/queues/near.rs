//! Per-thread tables of queues, which hold everything that a call needs in one entry.

use std::collections::HashMap;
use std::sync::Arc;

use engine::queue::{QueueDefinition, QueueName};
use parking_lot::RwLock;

use crate::metrics::thread_number;
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
pub(super) struct Slot(pub(super) RwLock<HashMap<QueueName, Arc<Bound>, foldhash::fast::RandomState>>);

impl Near {
    pub(super) fn slot(&self) -> &Slot {
        &self.0[thread_number() % SLOTS]
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Bound>> {
        self.slot().0.read().get(name).filter(|bound| bound.topic.is_current()).cloned()
    }

    /// Removes a queue that was deleted or changed from all slots.
    pub(super) fn forget(&self, name: &str) {
        self.0.iter().for_each(|slot| drop(slot.0.write().remove(name)));
    }
}
