//! Reading of a segment's file, without the lock of its partition.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use engine::limits::BATCH_BYTES_MAX;
use engine::record::BATCH_HEADER_BYTES;
use engine::{Offset, RecordBatch, Result};

use super::super::index::{self, Index};
use super::super::scan::Epochs;
use super::{READ_BYTES, leave_index};
use crate::disk::{Disk, DiskFile, damaged, failed, read_whole};
use crate::info::SegmentInfo;

/// Maximum number of bytes without an index: they are read sequentially instead.
const UNINDEXED_BYTES_MAX: u64 = 256 << 10;

/// Snapshot of a segment for a reader that does not hold the lock.
pub(crate) struct View {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
    pub(super) index_path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) info: SegmentInfo,
    pub(super) index: Option<Arc<Index>>,
    pub(super) is_sealed: bool,
    pub(super) epochs: Epochs,
}

/// Part of a segment that holds the batches for a reader.
pub(crate) struct Part {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    /// Position at which the part begins, and the offset of the batch there.
    pub(super) at: u64,
    pub(super) offset: Offset,
    /// End of the segment when the part was created, and the offset there.
    pub(super) to: u64,
    pub(super) end: Offset,
    pub(super) epochs: Epochs,
}

impl View {
    pub(super) fn bytes_indexed(&self) -> u64 {
        self.index.as_ref().map_or(0, |index| index.bytes())
    }

    /// Returns the part of the segment in which to look for an offset. May read the whole segment, if its index is
    /// lost.
    pub(crate) fn part(&mut self, offset: Offset) -> Result<Part> {
        self.complete_index()?;
        let row = self.index.as_ref().and_then(|index| index.before(offset));
        Ok(self.part_at(row.map_or((0, self.info.base), |row| (row.at, row.offset))))
    }

    /// Returns the part for an offset if up to `bytes_max` bytes of it can be read without waiting.
    pub(crate) fn cached_part(&self, offset: Offset, bytes_max: usize) -> Option<Part> {
        let index = self.index.as_ref().filter(|index| index.bytes() + UNINDEXED_BYTES_MAX >= self.info.bytes)?;
        let part = self.part_at(index.before(offset).map_or((0, self.info.base), |row| (row.at, row.offset)));
        let len = (wanted(bytes_max) as u64).min(part.to - part.at) as usize;
        part.file.is_cached(len, part.at).then_some(part)
    }

    /// Returns the offset of the first batch with a record of this time or later, among those that end after an offset.
    pub(crate) fn offset_for_time(&mut self, timestamp_ms: i64, after: Offset) -> Result<Option<Offset>> {
        self.complete_index()?;
        let row = self.index.as_ref().and_then(|index| index.before_time(timestamp_ms));
        let part = self.part_at(row.map_or((0, self.info.base), |row| (row.at, row.offset)));
        let is_searched =
            |batch: &&RecordBatch| batch.max_timestamp_ms() >= timestamp_ms && batch.next_offset() > after;
        let mut found = None;
        part.each(&mut |_, batches| {
            found = batches.iter().find(is_searched).map(RecordBatch::base_offset);
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Passes all batches to `each`, several together, until it returns `false`.
    pub(crate) fn each(&self, each: &mut dyn FnMut(&[RecordBatch]) -> Result<bool>) -> Result<()> {
        self.part_at((0, self.info.base)).each(&mut |_, batches| each(batches))
    }

    /// Returns the offset of the first record.
    pub(crate) fn base(&self) -> Offset {
        self.info.base
    }

    /// Returns the offset after the last record.
    pub(crate) fn end(&self) -> Offset {
        self.info.end
    }

    fn part_at(&self, (at, offset): (u64, Offset)) -> Part {
        let path = self.path.clone();
        let file = self.file.clone();
        Part { path, file, at, offset, to: self.info.bytes, end: self.info.end, epochs: self.epochs }
    }

    fn complete_index(&mut self) -> Result<()> {
        if self.index.is_none() && self.is_sealed {
            let read = read_whole(&*self.disk, &self.index_path).inspect_err(|error| {
                tracing::warn!(path = %self.index_path.display(), %error, "cannot read an index; rebuilding it");
            });
            let bytes = read.unwrap_or_default().unwrap_or_default();
            self.index = Index::decode(&bytes, self.info.bytes, self.info.end).map(Arc::new);
        }
        if self.bytes_indexed() + UNINDEXED_BYTES_MAX >= self.info.bytes && self.index.is_some() {
            return Ok(());
        }
        let mut index = self.index.take().map_or_else(|| Index::new(self.info.base), |index| (*index).clone());
        while index.bytes() < self.info.bytes {
            let part = self.part_at((index.bytes(), index.end()));
            part.read(index.end(), READ_BYTES)?.iter().for_each(|batch| index.push(batch));
        }
        if self.is_sealed {
            leave_index(&*self.disk, &self.index_path, &index);
        }
        self.index = Some(Arc::new(index));
        Ok(())
    }
}

impl Part {
    /// Passes all batches to `each`, several together with the position of the first one, until it returns `false`.
    pub(super) fn each(&self, each: &mut dyn FnMut(u64, &[RecordBatch]) -> Result<bool>) -> Result<()> {
        let mut rest = Self { path: self.path.clone(), file: self.file.clone(), ..*self };
        while rest.at < rest.to {
            let batches = rest.read(rest.offset, READ_BYTES)?;
            if !each(rest.at, &batches)? {
                break;
            }
            rest.at += batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
            rest.offset = batches.last().map_or(self.end, RecordBatch::next_offset);
        }
        Ok(())
    }

    /// Starts to read the first bytes of the part into the system's cache.
    pub(crate) fn will_read(&self, bytes: u64) {
        self.file.will_read(bytes.min(self.to - self.at), self.at);
    }

    /// Reads batches from the one that holds `from`, up to `bytes_max`, but at least one. Stops at the end of the part.
    pub(crate) fn read(&self, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        let mut at = self.at;
        let mut expected = self.offset;
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut ahead = Ahead { part: self, bytes: Bytes::new(), from: 0, want: wanted(bytes_max) };
        while at < self.to {
            // One read of the file suffices once there is a batch.
            if !found.is_empty() && !ahead.has(at, BATCH_HEADER_BYTES) {
                break;
            }
            let len = self.check_head(&ahead.get(at, BATCH_HEADER_BYTES)?, at, expected)?;
            if !found.is_empty() && (bytes + len > bytes_max || !ahead.has(at, len)) {
                break;
            }
            let batch =
                RecordBatch::parse(ahead.get(at, len)?).map_err(|error| damaged(&self.path, at, error.message))?;
            at += len as u64;
            expected = batch.next_offset();
            if at == self.to && expected != self.end {
                let what = format!("the last batch ends at offset {expected}, not at {}", self.end);
                return Err(damaged(&self.path, at, what));
            }
            if batch.next_offset() <= from {
                continue;
            }
            bytes += batch.len();
            found.push(batch);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(found)
    }

    /// Checks the two fields outside of the batch's checksum: the base offset has to follow the batch before, and the
    /// leader epoch has to be one of this directory. Returns the bytes of the batch.
    fn check_head(&self, head: &[u8], at: u64, expected: Offset) -> Result<usize> {
        if head.len() < BATCH_HEADER_BYTES {
            return Err(damaged(&self.path, at, "a batch is cut short"));
        }
        let base = u64::from_be_bytes(head[..8].try_into().expect("invariant: eight bytes"));
        let len = u32::from_be_bytes(head[8..12].try_into().expect("invariant: four bytes")) as usize + 12;
        if base != expected || len > BATCH_BYTES_MAX || at + len as u64 > self.to || !self.epochs.allow(head) {
            let what = format!("a batch of {len} bytes from offset {base} instead of offset {expected}");
            return Err(damaged(&self.path, at, what));
        }
        Ok(len)
    }
}

/// Returns the number of bytes to read from a file for `bytes_max` bytes of batches: the index leads to a position
/// slightly before them.
fn wanted(bytes_max: usize) -> usize {
    bytes_max.saturating_add(index::EVERY_BYTES as usize).clamp(64 << 10, 4 << 20)
}

/// Bytes of a part that were read ahead.
struct Ahead<'p> {
    part: &'p Part,
    bytes: Bytes,
    from: u64,
    want: usize,
}

impl Ahead<'_> {
    /// Returns `true` if these bytes are available without another read.
    fn has(&self, at: u64, len: usize) -> bool {
        at >= self.from && at + len as u64 <= self.from + self.bytes.len() as u64
    }

    /// Returns these bytes, or fewer at the end of the file.
    fn get(&mut self, at: u64, len: usize) -> Result<Bytes> {
        if !self.has(at, len) {
            let want = (self.want.max(len) as u64).min(self.part.to - at) as usize;
            let bytes = self.part.file.read(want, at).map_err(failed("read", &self.part.path))?;
            self.bytes = bytes.into();
            self.from = at;
        }
        let from = (at - self.from) as usize;
        Ok(self.bytes.slice(from..(from + len).min(self.bytes.len())))
    }
}
