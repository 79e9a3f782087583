//! Write-through: a block with much data of one partition sends it straight to the partition's segment, and records
//! only where it is. The data is then written once.
//!
//! The block is committed when the segment and the journal are synced. If recovery does not find the data that the last
//! blocks refer to, these blocks were cut short like any other write.

use std::collections::HashMap;

use engine::Result;

use super::Entry;
use super::block::{EntryKind, SegmentPart};
use crate::disk::Pages;

/// Maximum number of partitions of one block whose data goes to segments: each costs a sync.
pub(super) const PLACES_MAX: usize = 4;
/// Maximum number of parts of segments that one partition adds to a block.
pub(crate) const PARTS_MAX: usize = 8;

/// Segments of all partitions, as the journal sees them.
pub(crate) trait Through: Send + Sync {
    /// Writes all batches of a partition up to an offset that are in no segment yet, without syncing them. `None` if
    /// that is not possible now: the batches then go into the journal.
    fn write(&self, stream: u64, to: u64, thread: usize, pages: &mut Pages) -> Option<Box<dyn Placed>>;
}

/// Batches that were written to segments.
pub(crate) trait Placed: Send {
    /// Returns the parts of segments that no entry describes yet, at most [`PARTS_MAX`].
    fn parts(&self) -> &[SegmentPart];

    /// Makes the batches durable.
    fn sync(&self) -> Result<()>;
}

/// Returns the partitions of a block that have at least `bytes_min` bytes in it, with the index of their last batch.
pub(super) fn large_streams(entries: &[Entry], bytes_min: usize) -> Vec<(u64, usize)> {
    let total: usize = entries.iter().map(|entry| entry.body.len()).sum();
    if total < bytes_min {
        return Vec::new();
    }
    let mut streams: HashMap<u64, (usize, usize)> = HashMap::new();
    for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.kind == EntryKind::Batch) {
        let (bytes, last) = streams.entry(entry.stream).or_default();
        *bytes += entry.body.len();
        *last = at;
    }
    let mut large: Vec<_> = streams.into_iter().filter(|(_, (bytes, _))| *bytes >= bytes_min).collect();
    large.sort_unstable_by_key(|(_, (bytes, last))| (std::cmp::Reverse(*bytes), *last));
    large.truncate(PLACES_MAX);
    large.into_iter().map(|(stream, (_, last))| (stream, last)).collect()
}
