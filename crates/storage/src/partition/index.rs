//! Index of a segment: a row for every few batches with their places, by offset and by time.
//!
//! Format of the index file of a sealed segment, `<base offset>.index`. All integers are little-endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `thalwegI` |
//! | 8 | 4 | CRC-32C of all that follows |
//! | 12 | 4 | version, 1 |
//! | 16 | 8 | bytes of the segment |
//! | 24 | 24 each | the rows: offset of a batch (8), its place in the segment (8), largest timestamp so far (8) |
//!
//! It can be recreated from the segment, so it is never synced: an incomplete index is ignored.

use engine::RecordBatch;

use crate::journal::block::{checksum, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"thalwegI";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 24;
const ROW_BYTES: usize = 24;
/// Bytes of batches between two rows.
pub(crate) const EVERY_BYTES: u64 = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRow {
    pub offset: u64,
    pub at: u64,
    /// Largest timestamp of all records up to the end of this batch.
    pub timestamp_ms_max: i64,
}

/// Index of a segment from its beginning up to `bytes`. Batches after that are found by reading on.
///
/// Invariant: the first batch of a segment has a row, and all fields grow from row to row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    rows: Vec<IndexRow>,
    timestamp_ms_max: Option<i64>,
    /// Number of bytes of the segment that are indexed, and the offset at their end.
    bytes: u64,
    end: u64,
}

impl Index {
    pub(crate) fn new(base: u64) -> Self {
        Self { end: base, ..Self::default() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the offset after all indexed batches.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Indexes the next batch of the segment.
    pub(crate) fn push(&mut self, batch: &RecordBatch) {
        self.push_row(batch.base_offset(), self.bytes, batch.max_timestamp_ms());
        self.bytes += batch.len() as u64;
        self.end = batch.next_offset();
    }

    fn push_row(&mut self, offset: u64, at: u64, timestamp_ms: i64) {
        let timestamp_ms_max = self.timestamp_ms_max.map_or(timestamp_ms, |max| max.max(timestamp_ms));
        if self.rows.last().is_none_or(|last| at - last.at >= EVERY_BYTES) {
            self.rows.push(IndexRow { offset, at, timestamp_ms_max });
        }
        self.timestamp_ms_max = Some(timestamp_ms_max);
    }

    /// Returns the last row at or before this offset.
    pub(crate) fn before(&self, offset: u64) -> Option<IndexRow> {
        self.rows[..self.rows.partition_point(|row| row.offset <= offset)].last().copied()
    }

    /// Returns a row before which no record is of this time or later.
    pub(crate) fn before_time(&self, timestamp_ms: i64) -> Option<IndexRow> {
        let after = self.rows.partition_point(|row| row.timestamp_ms_max < timestamp_ms);
        self.rows.get(after.saturating_sub(1)).copied()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.rows.len() * ROW_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        for row in &self.rows {
            bytes.extend_from_slice(&row.offset.to_le_bytes());
            bytes.extend_from_slice(&row.at.to_le_bytes());
            bytes.extend_from_slice(&row.timestamp_ms_max.to_le_bytes());
        }
        let crc = checksum(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes an index. `None` unless it is the complete index of a segment of `segment_bytes` bytes that ends at this
    /// offset.
    pub(crate) fn decode(bytes: &[u8], segment_bytes: u64, end: u64) -> Option<Self> {
        let rows = Self::rows_of(bytes).filter(|_| u64_at(bytes, 16) == segment_bytes)?;
        // No batch is pushed any more, so timestamps after the last row do not matter.
        Some(Self { rows, timestamp_ms_max: None, bytes: segment_bytes, end })
    }

    /// Decodes the rows of a complete index of any segment.
    pub(crate) fn rows_of(bytes: &[u8]) -> Option<Vec<IndexRow>> {
        let is_one = bytes.len() >= HEAD_BYTES
            && bytes[..8] == *MAGIC
            && u32_at(bytes, 8) == checksum(&bytes[12..])
            && u32_at(bytes, 12) == VERSION;
        let rows = is_one.then(|| bytes[HEAD_BYTES..].chunks_exact(ROW_BYTES))?;
        let row = |row: &[u8]| IndexRow {
            offset: u64_at(row, 0),
            at: u64_at(row, 8),
            timestamp_ms_max: u64_at(row, 16) as i64,
        };
        Some(rows.map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let mut index = Index::default();
        for i in 0..1000u64 {
            // Every tenth batch has an old timestamp.
            let timestamp_ms = if i % 10 == 9 { 0 } else { i as i64 };
            index.push_row(1000 + 2 * i, i * 1000, timestamp_ms);
        }
        index.bytes = 1_000_000;
        index.end = 3000;
        index
    }

    #[test]
    fn a_row_is_found_at_or_before_the_requested_offset() {
        let index = index();
        assert!(index.rows.len() > 50 && index.rows.len() < 70, "{}", index.rows.len());
        assert_eq!(index.before(999), None);
        assert_eq!(index.before(1000).map(|row| row.at), Some(0));
        for offset in 1000..3000 {
            let row = index.before(offset).expect("a row");
            assert!(row.offset <= offset && offset - row.offset < 2 * 18, "{offset}: {row:?}");
        }
        assert_eq!(index.before(u64::MAX).map(|row| row.offset), index.rows.last().map(|row| row.offset));
    }

    #[test]
    fn no_record_of_a_time_lies_before_the_row_for_it() {
        let index = index();
        for timestamp_ms in 0..1100i64 {
            let row = index.before_time(timestamp_ms).expect("a row");
            let first = (0..1000u64).find(|i| i % 10 != 9 && *i as i64 >= timestamp_ms);
            assert!(first.is_none_or(|first| row.at <= first * 1000), "{timestamp_ms}: {row:?}");
        }
    }

    #[test]
    fn it_is_read_as_it_was_written_or_not_at_all() {
        let index = index();
        let mut bytes = index.encode();
        let read = Index::decode(&bytes, 1_000_000, 3000).expect("an index");
        assert_eq!((read.rows, read.bytes, read.end), (index.rows, 1_000_000, 3000));
        assert_eq!(Index::decode(&bytes, 999_999, 3000), None);
        for at in 0..bytes.len() {
            bytes[at] ^= 4;
            assert_eq!(Index::decode(&bytes, 1_000_000, 3000), None, "byte {at}");
            bytes[at] ^= 4;
        }
        assert_eq!(Index::decode(&bytes[..bytes.len() - 1], 1_000_000, 3000), None);
    }
}
