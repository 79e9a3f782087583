//! Records that leave a partition: by retention, on request, and once all queues have acknowledged them.

use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, Result};

use super::{PartitionCell, State};
use crate::clock;
use crate::commit::Commit;
use crate::log::Log;
use crate::retention::{Retention, needed_from};

impl PartitionCell {
    /// Removes the records that retention no longer covers. Returns the bytes of memory that became free.
    pub(crate) fn trim(self: &Arc<Self>, retention: Retention, now_ms: u64) -> usize {
        let (disk, needed_from) = {
            let state = &mut *self.state.lock();
            let needed_from = needed_from(retention, &mut state.queues, &state.holds);
            match &mut state.log {
                Log::Memory(log) => {
                    let freed = log.trim(retention.bytes, retention.ms, needed_from, now_ms);
                    state.order.forget_aborted(log.start());
                    return freed;
                }
                Log::Disk(log) => {
                    state.order.forget_aborted(log.forget_aborted());
                    (log.clone(), needed_from)
                }
            }
        };
        let start = disk.retain(retention.bytes, retention.ms, now_ms).map(|start| start.min(needed_from));
        if let Some(start) = start.filter(|start| *start > disk.extent().start)
            && let Err(error) = disk.set_start(start, self.clone())
        {
            tracing::debug!(topic = %self.topic, partition = self.id, %error, "retention is delayed");
        }
        0
    }

    /// Removes the records before an offset, or all records for `Offset::MAX`. Returns the new start of the log, the
    /// bytes of memory that became free, and when the change is durable.
    pub(crate) fn delete_records(&self, before: Offset) -> Result<(Offset, usize, Commit)> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        let extent = state.log.extent();
        let before = if before == Offset::MAX { extent.end } else { before };
        if before > extent.end {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("offset {before} is not in the log, which has {} to {}", extent.start, extent.end),
            ));
        }
        let start = before.max(extent.start);
        match &mut state.log {
            Log::Memory(log) => Ok((start, log.set_start(start), Commit::done())),
            Log::Disk(log) => {
                let (said, lasts) = Commit::of_entry();
                log.set_start(start, said)?;
                Ok((start, 0, lasts))
            }
        }
    }

    /// Keeps the records from `floor` on for a snapshot of this name, even if all queues have acknowledged them.
    pub(crate) fn hold(&self, name: &str, floor: Offset) {
        self.state.lock().hold(name, floor);
    }

    pub(crate) fn let_go(&self, name: &str) {
        self.state.lock().release(name);
    }

    /// Removes records that all queues have acknowledged, including those in `done`, whose acknowledgement must be
    /// durable. Returns the bytes of memory that became free.
    pub(crate) fn drop_consumed(&self, done: impl IntoIterator<Item = Offset>) -> usize {
        self.state.lock().drop_consumed(done).1
    }

    /// Removes all records before the first one that any queue still needs. Each new start of a log on disk is an entry
    /// of the journal, so only the sweep writes it. Returns the bytes of memory that became free.
    pub(crate) fn sweep_consumed(self: &Arc<Self>) -> usize {
        let mut state = self.state.lock();
        let (start, freed) = state.drop_consumed([]);
        if let Log::Disk(log) = &state.log
            && start > log.extent().start
            && let Err(error) = log.set_start(start, self.clone())
        {
            tracing::debug!(
                topic = %self.topic,
                partition = self.id,
                %error,
                "the deletion of acknowledged records is delayed"
            );
        }
        freed
    }
}

impl State {
    pub(super) fn hold(&mut self, name: &str, floor: Offset) {
        self.release(name);
        self.holds.push((name.into(), floor));
    }

    pub(super) fn release(&mut self, name: &str) {
        self.holds.retain(|(held, _)| &**held != name);
    }

    pub(super) fn is_held(&self, name: &str) -> bool {
        self.holds.iter().any(|(held, _)| &**held == name)
    }

    /// Removes what all queues have acknowledged: the records before the first one that any queue needs, and those in
    /// `done`. On disk, only the records in `done` are forgotten here. Returns the start of the needed records, and the
    /// bytes of memory that became free.
    pub(super) fn drop_consumed(&mut self, done: impl IntoIterator<Item = Offset>) -> (Offset, usize) {
        if self.queues.iter().any(|view| view.queue.settings().keeps_acked) {
            return (0, 0);
        }
        let (end, known) = match &self.log {
            Log::Memory(log) => (log.end(), None),
            // After a restart, the recent deduplication ids are restored from the log.
            Log::Disk(log) => (log.extent().end, self.dedup.oldest(clock::now_ms())),
        };
        let held = self.holds.iter().map(|(_, floor)| *floor).chain(known).min().unwrap_or(end);
        let floor = self.queues.iter_mut().map(|view| view.queue.floor()).min().unwrap_or(end).min(held);
        let is_done = |offset: &Offset| self.queues.iter().all(|view| view.queue.is_done(*offset));
        let behind = done.into_iter().filter(|offset| (floor..held).contains(offset)).filter(is_done);
        let freed = match &mut self.log {
            Log::Memory(log) => log.set_start(floor) + behind.map(|offset| log.forget(offset)).sum::<usize>(),
            Log::Disk(log) => {
                behind.for_each(|offset| log.forget(offset));
                0
            }
        };
        (floor.min(end), freed)
    }
}
