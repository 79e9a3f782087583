//! Reads of batches that have left the tail.

use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, RecordBatch, Result};

use super::{DiskPartition, deleted};
use crate::log::{ColdRead, PartitionLog, Read};

/// Bytes that a read that has to wait for the disk announces: later reads find them in the system's cache.
const READ_AHEAD_BYTES: u64 = 8 << 20;
/// Maximum bytes that are read from the system's cache on the calling thread: this takes a fraction of a millisecond.
const CACHED_BYTES_MAX: usize = 1 << 20;

/// Read of batches that are in segments.
pub struct SegmentRead {
    pub(super) partition: Arc<DiskPartition>,
    pub(super) from: Offset,
    pub(super) bytes_max: usize,
}

impl DiskPartition {
    pub(super) fn find_time(&self, timestamp_ms: i64) -> Result<Offset> {
        let (start, front, otherwise) = {
            let state = self.state.lock();
            self.check_served(&state)?;
            let front = state.tail.front().map_or(state.committed, |held| held.batch.base_offset());
            (state.start, front, state.tail_offset_for_time(timestamp_ms).unwrap_or(state.committed))
        };
        // All batches before the tail were in segments when the tail was read.
        let mut at = start;
        while at < front {
            let view = self.segments.lock().view(at, Some(timestamp_ms))?;
            let Some(mut view) = view else { break };
            let found = view.offset_for_time(timestamp_ms, at);
            self.segments.lock().keep_index(&view);
            if let Some(found) = found? {
                return Ok(found.min(otherwise).max(start));
            }
            at = view.end();
        }
        Ok(otherwise.max(start))
    }

    /// Removes batches from the result of a read that are in a segment and not committed yet.
    fn committed_only(&self, read: Result<Vec<RecordBatch>>) -> Result<Vec<RecordBatch>> {
        let mut batches = read.map_err(|error| self.explain(error))?;
        let committed = self.state.lock().committed;
        batches.truncate(batches.partition_point(|batch| batch.base_offset() < committed));
        Ok(batches)
    }

    /// Replaces the error of a failed read if the partition was deleted in the meantime, together with its files.
    pub(super) fn explain(&self, error: Error) -> Error {
        if self.state.lock().is_deleted {
            return deleted();
        }
        if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Internal) {
            tracing::error!(%error, "cannot read a segment");
        }
        self.note_damage(&error);
        error
    }

    /// Records that a segment is damaged, if that is the error of a read.
    pub(super) fn note_damage(&self, error: &Error) {
        if error.kind == ErrorKind::Corrupt {
            self.state.lock().damage.get_or_insert_with(|| error.clone());
        }
    }

    /// Returns the damage that a read of a segment has found.
    pub(crate) fn damage(&self) -> Option<Error> {
        self.state.lock().damage.clone()
    }

    /// Reads the batches from an offset on that are in a file, up to `bytes_max` bytes but at least one, whether they
    /// are in memory as well or not. Returns the offset after them and their bytes; `None` at the end. Records damage.
    pub(crate) fn verify(&self, from: Offset, bytes_max: usize) -> Result<Option<(Offset, u64)>> {
        let from = {
            let state = self.state.lock();
            if self.check_served(&state).is_err() {
                return Ok(None);
            }
            from.max(state.start)
        };
        let read = || -> Result<Option<(Offset, u64)>> {
            let Some(mut view) = self.segments.lock().view(from, None)? else { return Ok(None) };
            let from = from.max(view.base());
            let batches = view.part(from)?.read(from, bytes_max)?;
            let bytes = batches.iter().map(|batch| batch.len() as u64).sum();
            Ok(batches.last().map(|last| (last.next_offset(), bytes)))
        };
        match read() {
            // Retention or compaction may have removed the file in the meantime.
            Err(error) if error.kind == ErrorKind::Corrupt => Err(self.explain(error)),
            read => read,
        }
    }
}

impl ColdRead for SegmentRead {
    fn run_if_cached(&self) -> Option<Result<Vec<RecordBatch>>> {
        if self.bytes_max > CACHED_BYTES_MAX {
            return None;
        }
        let view = self.partition.segments.lock().view(self.from, None).ok()??;
        let part = view.cached_part(self.from, self.bytes_max).filter(|_| view.base() <= self.from)?;
        Some(self.partition.committed_only(part.read(self.from, self.bytes_max)))
    }

    fn run(self: Box<Self>) -> Result<Vec<RecordBatch>> {
        self.partition.committed_only(self.find())
    }
}

impl SegmentRead {
    fn find(&self) -> Result<Vec<RecordBatch>> {
        let view = self.partition.segments.lock().view(self.from, None)?;
        match view {
            Some(mut view) if view.base() <= self.from => {
                let part = view.part(self.from);
                self.partition.segments.lock().keep_index(&view);
                let part = part?;
                part.will_read(READ_AHEAD_BYTES);
                part.read(self.from, self.bytes_max)
            }
            // The partition has changed in the meantime.
            _ => match self.partition.clone().read(self.from, self.bytes_max)? {
                Read::Batches(batches) => Ok(batches),
                Read::Cold(_) => {
                    let from = self.from;
                    let end = self.partition.state.lock().flushed;
                    Err(Error::new(ErrorKind::Corrupt, format!("records {from} to {end} are in no file")))
                }
            },
        }
    }
}
