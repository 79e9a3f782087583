//! Write-through: batches go straight to segments, and the journal records where they are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Offset, RecordBatch, Result};

use super::segments::WrittenThrough;
use super::{DiskPartition, SegmentLimits};
use crate::disk::{Pages, failed};
use crate::journal::block::SegmentPart;
use crate::journal::through::Placed;

/// Maximum time that a thread of the journal waits for the segments of a partition. The alternative, the journal, costs
/// a second write of the batches.
const PATIENCE: Duration = Duration::from_millis(10);

/// Batches of a partition that were written to its segments.
struct Written {
    partition: Arc<DiskPartition>,
    segments: WrittenThrough,
}

impl Placed for Written {
    fn parts(&self) -> &[SegmentPart] {
        &self.segments.parts
    }

    fn sync(&self) -> Result<()> {
        for (path, file) in &self.segments.files {
            file.sync().map_err(failed("sync", path))?;
        }
        self.partition.segments.lock().set_through_synced(&self.segments);
        Ok(())
    }
}

impl DiskPartition {
    /// Writes all batches up to this offset that are in no segment yet, committed or not, without syncing them. `None`
    /// if that is not possible now: another thread uses the segments, or they need a checkpoint first.
    pub(crate) fn write_through(
        self: &Arc<Self>,
        to: Offset,
        thread: usize,
        pages: &mut Pages,
    ) -> Option<Box<dyn Placed>> {
        let syncing = self.syncing.try_lock();
        // A flush or a reader holds the lock for a short time.
        let mut segments = self.segments.try_lock_for(PATIENCE)?;
        let (batches, flushed, committed, appended_ms) = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted {
                return None;
            }
            let unflushed = state.tail.iter().skip(state.first_unflushed()).map(|held| &held.batch);
            let batches: Vec<_> = unflushed.take_while(|batch| batch.base_offset() < to).cloned().collect();
            (batches, state.flushed, state.committed, state.appended_ms)
        };
        if batches.last().map(RecordBatch::next_offset) != Some(to) {
            return None;
        }
        let SegmentLimits { bytes, ms } = &self.limits;
        segments.set_limits(bytes.load(Ordering::Relaxed), ms.load(Ordering::Relaxed));
        let written = segments.write_through(&batches, committed, appended_ms, (thread, syncing.is_some()), pages);
        {
            let mut state = self.state.lock();
            if state.is_deleted {
                return None;
            }
            self.note_flushed(&mut state, &segments, &batches);
            state.placing.push_back((flushed, to));
        }
        let written = written.and_then(|written| {
            let Some(written) = written else { return Ok(None) };
            let (dirs, names) = &written.dirs;
            for dir in dirs {
                self.shared.disk.sync_dir(dir).map_err(failed("sync", dir))?;
            }
            segments.set_names_synced(*names);
            if let Some(last) = written.parts.last() {
                segments.set_described(last.to_offset, last.to);
            }
            Ok(Some(Box::new(Written { partition: self.clone(), segments: written }) as Box<dyn Placed>))
        });
        written.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot write to a segment; the journal takes the batches");
            None
        })
    }
}
