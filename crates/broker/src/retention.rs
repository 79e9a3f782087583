//! Retention of the records of a partition: the limits of the topic, and the records that queues still need.

use std::sync::Arc;

use engine::{Offset, TopicSettings};

use crate::view::QueueView;

/// Settings of a topic that control retention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    pub bytes: u64,
    pub ms: u64,
    /// `true` if records are removed only once all queues have acknowledged them, not for lack of memory.
    pub drop_consumed: bool,
    /// `true` if records that a queue has not acknowledged are kept, whatever the limits.
    pub keeps_unacked: bool,
}

impl Retention {
    pub fn of(settings: &TopicSettings) -> Self {
        Self {
            bytes: settings.retention_bytes,
            ms: settings.retention_ms,
            drop_consumed: settings.drop_consumed,
            keeps_unacked: settings.keeps_unacked,
        }
    }
}

/// Returns the first offset that retention must keep; `Offset::MAX` if it may remove all records.
pub(crate) fn needed_from(retention: Retention, queues: &mut [QueueView], holds: &[(Arc<str>, Offset)]) -> Offset {
    if !retention.keeps_unacked {
        return Offset::MAX;
    }
    let of_queues = queues.iter_mut().map(|view| view.queue.floor());
    of_queues.chain(holds.iter().map(|(_, floor)| *floor)).min().unwrap_or(Offset::MAX)
}
