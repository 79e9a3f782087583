//! Which records of a partition stay: what a topic's settings say, and what queues over it still need.

use engine::{Error, Offset, Result, TopicSettings};
use storage::MemoryLog;

use crate::admission::LogBudget;
use crate::partition::AppendContext;
use crate::queues::QueueView;

/// The settings of a topic that say which records stay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    pub bytes: u64,
    pub ms: u64,
    /// Records are removed once queues have acknowledged them, and for no lack of memory.
    pub drop_consumed: bool,
    /// Records that a queue has not acknowledged stay, whatever the limits say.
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

/// The first record that retention must leave; the end of all offsets if it may remove any.
pub(crate) fn needed_from(retention: Retention, queues: &mut [QueueView], holds: &[(Box<str>, Offset)]) -> Offset {
    if !retention.keeps_unacked {
        return Offset::MAX;
    }
    let of_queues = queues.iter_mut().map(|view| view.queue.floor());
    of_queues.chain(holds.iter().map(|(_, floor)| *floor)).min().unwrap_or(Offset::MAX)
}

/// Takes so many bytes of the budget for this log.
pub(crate) fn make_room(
    log: &mut MemoryLog,
    cost: usize,
    needed_from: Offset,
    context: &AppendContext<'_>,
) -> Result<()> {
    let permit = match context.budget.acquire(cost) {
        Some(permit) => permit,
        None if context.retention.drop_consumed => return Err(out_of_memory(context.budget)),
        None => {
            // All logs are full: this one gives up its own history before it is refused.
            let keep = log.bytes().saturating_sub(cost).max(1);
            context.budget.release(log.trim(keep as u64, 0, needed_from, context.now_ms));
            context.budget.acquire(cost).ok_or_else(|| out_of_memory(context.budget))?
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
