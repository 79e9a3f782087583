//! Data that a checkpoint keeps about partitions and segments, and settings and statistics of compaction and of SQLite.

use std::time::Duration;

use bytes::Bytes;
use engine::limits::{SQLITE_QUEUE_BYTES_MAX, SQLITE_READERS_MAX, SQLITE_RECENT_BYTES_MAX};
use engine::{Error, ErrorKind, Offset};

use crate::journal::block::SegmentPart;

/// Prefix of the error of a partition that cannot be served.
pub(crate) const NOT_SERVED: &str = "this partition is not served: ";

/// State of a partition in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionInfo {
    pub start: Offset,
    pub segments: Vec<SegmentInfo>,
    /// Encoded [`Producers`], empty if there are none; `producers_end` is the offset up to which they know the log.
    pub producers: Bytes,
    pub producers_end: Offset,
    pub compacted: Compacted,
    /// Salvage files, by their positions: without their entries the partition cannot be served.
    pub salvages: Vec<u64>,
}

impl PartitionInfo {
    /// Returns the offset after the last record in a segment.
    pub fn end(&self) -> Offset {
        self.segments.last().map_or(self.start, |segment| segment.end.max(self.start))
    }

    /// Extends the segments by a part that an entry of the journal describes. The largest timestamp is not updated.
    pub(crate) fn extend(&mut self, part: &SegmentPart) {
        if part.to_offset <= self.end() {
            return;
        }
        let SegmentPart { base, generation, to: bytes, to_offset: end, appended_ms, .. } = *part;
        match self.segments.last_mut().filter(|last| last.base == base) {
            Some(last) => {
                last.end = end;
                last.bytes = bytes;
                last.appended_ms = last.appended_ms.max(appended_ms);
            }
            None => {
                self.segments.push(SegmentInfo {
                    base,
                    end,
                    bytes,
                    timestamp_ms_max: i64::MIN,
                    appended_ms,
                    generation,
                });
            }
        }
    }
}

/// Returns the stream of a partition in the journal.
pub(crate) fn stream(topic: u32, partition: engine::PartitionId) -> u64 {
    u64::from(topic) << 32 | u64::from(partition)
}

/// Converts an error into the error of a partition that cannot be served.
pub(crate) fn not_served(error: &Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{NOT_SERVED}{}", error.message))
}

/// State of a segment in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Offset of the first record.
    pub base: Offset,
    /// Offset after the last record.
    pub end: Offset,
    pub bytes: u64,
    pub timestamp_ms_max: i64,
    /// Append time of the last batch, by the broker's clock.
    pub appended_ms: u64,
    /// Number of times that compaction has rewritten the segment.
    pub generation: u32,
}

impl SegmentInfo {
    /// Returns `true` for the same file, which may have grown.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.base, self.generation) == (other.base, other.generation)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct CompactionSettings {
    /// Minimum number of bytes appended since the last turn; they also have to be half of the partition.
    pub dirty_bytes_min: u64,
    /// Maximum number of keys of one turn, each about 32 bytes of memory. The next turn continues after them.
    pub keys_max: usize,
    /// Maximum rate of reading and writing, in bytes per second.
    pub bytes_per_s: u64,
    /// Minimum time that a record without a value stays.
    pub tombstone_retention_ms: u64,
    /// Minimum age of a record for compaction, and the age at which it has to be compacted regardless of other
    /// conditions; 0 means no limit.
    pub lag_ms: (u64, u64),
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self {
            dirty_bytes_min: 1 << 20,
            keys_max: 450_000,
            bytes_per_s: 64 << 20,
            tombstone_retention_ms: 24 * 3_600_000,
            lag_ms: (0, 0),
        }
    }
}

/// Extent of a partition's compaction. A checkpoint stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Offset before which no key has two records.
    pub to: Offset,
    /// Offset before which all tombstones have been in the log since `horizon_ms`.
    pub horizon: Offset,
    pub horizon_ms: u64,
}

/// Results of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStats {
    pub turns: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub records_removed: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct SqliteSettings {
    /// Maximum bytes in the queue. Above it, an append is refused.
    pub queue_bytes_max: usize,
    /// Maximum bytes of the newest batches in memory, all partitions together.
    pub recent_bytes_max: u64,
    /// Maximum number of connections that read.
    pub readers_max: usize,
    /// Time after which a lock of another process, or a full disk, causes appends to be refused until it ends.
    pub lock_patience: Duration,
    /// Maximum number of pages of the file; 0 means no limit.
    pub pages_max: u32,
}

impl Default for SqliteSettings {
    fn default() -> Self {
        Self {
            queue_bytes_max: SQLITE_QUEUE_BYTES_MAX,
            recent_bytes_max: SQLITE_RECENT_BYTES_MAX,
            readers_max: SQLITE_READERS_MAX,
            lock_patience: Duration::from_secs(2),
            pages_max: 0,
        }
    }
}
