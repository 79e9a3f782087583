//! Queues over a partition, whose views live behind its lock.

use std::sync::Arc;

use engine::queue::{Dedup, QueueId};
use engine::{Error, Offset, Result};

use super::{Extent, PartitionCell, State};
use crate::log::Log;
use crate::view::{LogEnds, QueueView};

/// Returns the name under which a partition holds the records of a forgotten queue. No snapshot has such a name.
fn hold_of(id: QueueId) -> Arc<str> {
    format!("\0queue {id:x}").into()
}

impl PartitionCell {
    /// Adds a queue, which starts with the current ends of the log.
    pub(crate) fn attach_view(&self, mut view: QueueView) {
        let mut state = self.state.lock();
        let Extent { end, stable_end, .. } = state.extent();
        let markers_end = state.order.producers().markers_end();
        view.begin(LogEnds { end, stable_end, markers_end });
        state.release(&hold_of(view.cell.id));
        // An earlier view of this queue may remain if its start was aborted.
        state.queues.insert(view);
    }

    /// Detaches a queue whose state is forgotten. The records that it needs are kept until it is attached again.
    pub(crate) fn forget_view(&self, id: QueueId) {
        let mut state = self.state.lock();
        if let Some(mut view) = state.queues.remove(id) {
            let queue = &mut view.queue;
            let floor = if queue.settings().keeps_acked { 0 } else { queue.floor() };
            state.hold(&hold_of(id), floor);
        }
    }

    pub(crate) fn detach_view(&self, id: QueueId) -> Option<QueueView> {
        self.state.lock().queues.remove(id)
    }

    /// Calls `work` with a queue's view and the log.
    pub(crate) fn with_view<T>(&self, id: QueueId, work: impl FnOnce(&mut QueueView, &Log) -> T) -> Result<T> {
        self.work_on(&mut self.state.lock(), id, work)
    }

    /// Calls `work` as [`Self::with_view`] does, then removes the messages in `done` as [`Self::drop_consumed`] does,
    /// under the same lock. For messages that may be acknowledged by `work` and need no record of that. Returns the
    /// result of `work` and the bytes of memory that became free.
    pub(crate) fn with_view_of_consumed<T>(
        &self,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &Log) -> T,
        done: impl IntoIterator<Item = Offset>,
    ) -> Result<(T, usize)> {
        let mut state = self.state.lock();
        let outcome = self.work_on(&mut state, id, work)?;
        Ok((outcome, state.drop_consumed(done).1))
    }

    fn work_on<T>(&self, state: &mut State, id: QueueId, work: impl FnOnce(&mut QueueView, &Log) -> T) -> Result<T> {
        if let Some(view) = state.queues.get_mut(id) {
            return Ok(work(view, &state.log));
        }
        if state.is_held(&hold_of(id)) {
            return Err(Error::busy(format!("the queues over topic {} are being restored: try again", self.topic)));
        }
        Err(Error::not_found(format!("the queue no longer reads topic {}", self.topic)))
    }

    pub(crate) fn restore_dedup(&self, dedup: Dedup) {
        self.state.lock().dedup = dedup;
    }

    /// Forgets the deduplication ids of messages before this offset: they may be sent again.
    pub(crate) fn forget_sent(&self, before: Offset) {
        self.state.lock().dedup.forget_before(before);
    }
}
