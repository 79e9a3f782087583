//! Reading a partition from an offset or a time on, and waiting for the next append.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use engine::producers::Aborted;
use engine::{Offset, RecordBatch, Result};
use storage::Read;
use tokio::sync::futures::Notified;

use super::{Extent, PartitionCell};
use crate::log::batches_of;

/// Waiter for the next append; it is counted as long as this value lives.
pub(crate) struct NextAppend<'a> {
    awaiting: &'a AtomicUsize,
    notified: Pin<Box<Notified<'a>>>,
}

impl Future for NextAppend<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.notified.as_mut().poll(context)
    }
}

impl Drop for NextAppend<'_> {
    fn drop(&mut self) {
        self.awaiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PartitionCell {
    /// Returns the batches from an offset on, and the bounds of the log.
    pub(crate) async fn read(&self, from: Offset, bytes_max: usize) -> Result<(Extent, Vec<RecordBatch>)> {
        let (extent, read) = self.begin_read(from, bytes_max)?;
        Ok((extent, batches_of(read).await?))
    }

    /// Returns the batches from an offset on if they are in memory, or the read of a file that fetches them, and the
    /// bounds of the log.
    pub(crate) fn begin_read(&self, from: Offset, bytes_max: usize) -> Result<(Extent, Read)> {
        let state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        Ok((state.extent(), state.log.read(from, bytes_max)?))
    }

    /// Returns the batches from an offset up to the stable end of the log, and the aborted transactions among them.
    pub(crate) async fn read_committed(
        &self,
        from: Offset,
        bytes_max: usize,
    ) -> Result<(Extent, Vec<RecordBatch>, Vec<Aborted>)> {
        let (extent, read, mut aborted) = {
            let state = self.state.lock();
            if state.is_deleted {
                return Err(self.gone());
            }
            let extent = state.extent();
            state.log.check_served()?;
            let read = if from >= extent.stable_end && from <= extent.end {
                Read::Batches(Vec::new())
            } else {
                state.log.read(from, bytes_max)?
            };
            (extent, read, state.log.aborted(from, extent.stable_end))
        };
        let mut batches = batches_of(read).await?;
        batches.retain(|batch| batch.base_offset() < extent.stable_end);
        // A marker may be removed once its records are: a transaction without records must not be reported.
        Aborted::retain_among(&mut aborted, &batches);
        Ok((extent, batches, aborted))
    }

    /// Returns the offset of the first batch that has a record at or after this time. May block on a file.
    pub(crate) fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset> {
        let (found, log) = {
            let state = self.state.lock();
            (state.log.offset_for_time_now(timestamp_ms), state.log.shared())
        };
        match (found, log) {
            (Some(found), _) => Ok(found),
            (None, Some(log)) => log.offset_for_time(timestamp_ms),
            (None, None) => Err(self.gone()),
        }
    }

    /// Returns a future that completes with the next append or deletion after this call.
    pub(crate) fn appended(&self) -> NextAppend<'_> {
        self.awaiting.fetch_add(1, Ordering::Relaxed);
        let mut next = NextAppend { awaiting: &self.awaiting, notified: Box::pin(self.appended.notified()) };
        next.notified.as_mut().enable();
        next
    }

    /// Wakes the waiting fetches. Must be called with the lock held: a fetch that read before this append was counted
    /// before it read; any other fetch finds the new batch.
    pub(super) fn wake_fetches(&self) {
        if self.awaiting.load(Ordering::Relaxed) > 0 {
            self.appended.notify_waiters();
        }
    }
}
