//! Retention of the records of a partition: the limits of the topic, and the records that queues still need.

use engine::{Error, Offset, Result, TopicSettings};
use storage::MemoryLog;

use crate::admission::LogBudget;
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
pub(crate) fn needed_from(retention: Retention, queues: &mut [QueueView], holds: &[(Box<str>, Offset)]) -> Offset {
    if !retention.keeps_unacked {
        return Offset::MAX;
    }
    let of_queues = queues.iter_mut().map(|view| view.queue.floor());
    of_queues.chain(holds.iter().map(|(_, floor)| *floor)).min().unwrap_or(Offset::MAX)
}

/// Acquires `cost` bytes of the budget for this log, and trims the log if the budget is used up.
pub(crate) fn make_room(
    log: &mut MemoryLog,
    cost: usize,
    needed_from: Offset,
    retention: Retention,
    budget: &LogBudget,
    now_ms: u64,
) -> Result<()> {
    let permit = match budget.acquire(cost) {
        Some(permit) => permit,
        None if retention.drop_consumed => return Err(out_of_memory(budget)),
        None => {
            // All logs are full: this log drops its own history before the append is refused.
            let keep = log.bytes().saturating_sub(cost).max(1);
            budget.release(log.trim(keep as u64, 0, needed_from, now_ms));
            budget.acquire(cost).ok_or_else(|| out_of_memory(budget))?
        }
    };
    permit.spend();
    Ok(())
}

fn out_of_memory(budget: &LogBudget) -> Error {
    Error::busy(format!(
        "the logs in memory hold {} of {} bytes; raise memory_max or lower retention_bytes",
        budget.used(),
        budget.max()
    ))
}
