//! Partition at one moment, for a copy of it.

use engine::Result;

use super::segments::CopiedSegment;
use super::{DiskPartition, FLUSH_BYTES};
use crate::store::manifest::PartitionExtent;

impl DiskPartition {
    /// Writes all records of an extent to segments, and returns the segments. They may have later records, too. Returns
    /// `None` if the extent is outdated: the partition was deleted, replaced or compacted since. The caller prevents
    /// checkpoints, which drop segments.
    pub(crate) fn copied(&self, extent: &PartitionExtent, now_ms: u64) -> Result<Option<Vec<CopiedSegment>>> {
        while self.state.lock().flushed < extent.end {
            if self.flush(FLUSH_BYTES, now_ms)? == 0 {
                break;
            }
        }
        let mut segments = self.segments.lock();
        let state = self.state.lock();
        if state.is_deleted || state.is_replaced {
            return Ok(None);
        }
        self.check(&state)?;
        // Compaction may have removed records for the sake of records after the extent.
        if state.compacted != extent.compacted {
            return Ok(None);
        }
        // Writes to segments that are committed by now are no longer pending.
        segments.pending_from(state.committed);
        let copies = segments.copies();
        let end = copies.last().map_or(state.start, |last| last.info.end);
        Ok(if end < extent.end { None } else { Some(copies) })
    }
}
