//! The files of one partition: `<base offset>.log`, batches one after the other as they came, in Kafka's layout.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use engine::limits::BATCH_BYTES_MAX;
use engine::record::BATCH_HEADER_BYTES;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use super::index::Index;
use crate::disk::{Disk, DiskFile, damaged, failed, read_whole};

/// What a checkpoint knows of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The offset of its first record.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    pub bytes: u64,
    pub timestamp_ms_max: i64,
    /// When its last batch was appended, by the broker's clock.
    pub appended_ms: u64,
}

/// A file of batches, complete or still growing.
struct Segment {
    info: SegmentInfo,
    /// Made when it is first asked for, unless the segment was written by this process.
    index: Option<Arc<Index>>,
    /// Invariant: not for all segments at once; see [`OPEN_MAX`].
    file: Option<Arc<dyn DiskFile>>,
    /// Written to since it was last synced.
    is_dirty: bool,
}

/// What a search by time reads at once.
const TIME_READ_BYTES: usize = 1 << 20;
/// Files of one partition that stay open.
const OPEN_MAX: usize = 4;

/// Invariant: segments are in order and without a gap, and `list.back()` is the one that grows.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    list: VecDeque<Segment>,
    has_dir: bool,
    /// Files that are no longer needed and could not be removed yet.
    garbage: Vec<PathBuf>,
}

/// A part of a segment that holds what a reader wants.
pub(crate) struct Part {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// The batch there begins at this offset.
    offset: Offset,
    at: u64,
    /// Where the segment ended when it was asked for.
    to: u64,
}

impl Segments {
    /// With what a checkpoint says of the segments. Files that it does not know were written after it: their batches
    /// are in the journal, and come again.
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: PathBuf, segment_bytes: u64, known: &[SegmentInfo]) -> Result<Self> {
        let mut segments =
            Self { disk, dir, segment_bytes, list: VecDeque::new(), has_dir: false, garbage: Vec::new() };
        let names = match segments.disk.list(&segments.dir) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound && known.is_empty() => return Ok(segments),
            Err(error) => return Err(failed("list", &segments.dir)(error)),
        };
        segments.has_dir = true;
        for name in &names {
            let base = name.split_once('.').and_then(|(base, _)| base.parse::<Offset>().ok());
            if base.is_some_and(|base| known.iter().all(|info| info.base != base)) {
                let path = segments.dir.join(name);
                segments.disk.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        for info in known {
            segments.list.push_back(Segment { info: *info, index: None, file: None, is_dirty: false });
            let path = segments.log_path(info.base);
            if !names.iter().any(|name| *name == log_name(info.base)) {
                return Err(damaged(&path, 0, "the file is missing"));
            }
        }
        segments.cut()?;
        Ok(segments)
    }

    /// Of a partition that is not served: no file is touched.
    pub(crate) fn closed(disk: Arc<dyn Disk>, dir: PathBuf, segment_bytes: u64, known: &[SegmentInfo]) -> Self {
        let segment = |info: &SegmentInfo| Segment { info: *info, index: None, file: None, is_dirty: false };
        let list = known.iter().map(segment).collect();
        Self { disk, dir, segment_bytes, list, has_dir: true, garbage: Vec::new() }
    }

    /// Takes from the growing segment what a checkpoint does not know. Each other has exactly its bytes.
    fn cut(&mut self) -> Result<()> {
        let last = self.list.len();
        for i in 0..last {
            let (path, info) = (self.log_path(self.list[i].info.base), self.list[i].info);
            let file = self.disk.open(&path).map_err(failed("open", &path))?;
            let len = file.size().map_err(failed("read", &path))?;
            if len < info.bytes {
                return Err(damaged(&path, len, format!("it has {len} of {} bytes", info.bytes)));
            }
            if len > info.bytes {
                file.set_len(info.bytes).map_err(failed("cut", &path))?;
            }
        }
        Ok(())
    }

    fn log_path(&self, base: Offset) -> PathBuf {
        self.dir.join(log_name(base))
    }

    fn index_path(&self, base: Offset) -> PathBuf {
        self.dir.join(format!("{base:020}.index"))
    }

    pub(crate) fn infos(&self) -> Vec<SegmentInfo> {
        self.list.iter().map(|segment| segment.info).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.info.bytes).sum()
    }

    /// Appends batches, with new segments where one is full. Nothing is synced.
    pub(crate) fn append(&mut self, batches: &[RecordBatch], now_ms: u64) -> Result<()> {
        let mut rest = batches;
        while let Some(first) = rest.first() {
            let room = match self.list.back() {
                Some(last) if last.info.bytes + first.len() as u64 <= self.segment_bytes => {
                    self.segment_bytes - last.info.bytes
                }
                _ => {
                    self.roll(first.base_offset(), now_ms)?;
                    self.segment_bytes
                }
            };
            let mut bytes = 0;
            let fits = |batch: &&RecordBatch| {
                bytes += batch.len() as u64;
                bytes <= room || bytes == batch.len() as u64
            };
            let count = rest.iter().take_while(fits).count();
            self.write(&rest[..count], now_ms)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn roll(&mut self, base: Offset, now_ms: u64) -> Result<()> {
        if !self.has_dir {
            self.disk.create_dir(&self.dir).map_err(failed("make", &self.dir))?;
            let above = self.dir.parent().unwrap_or(&self.dir);
            self.disk.sync_dir(above).map_err(failed("sync", above))?;
            self.has_dir = true;
        }
        let path = self.log_path(base);
        let file: Arc<dyn DiskFile> = match self.disk.create(&path) {
            // What an earlier try left, which failed before it wrote anything that counts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = self.disk.open(&path).map_err(failed("open", &path))?;
                file.set_len(0).map_err(failed("cut", &path))?;
                file.into()
            }
            created => created.map_err(failed("make", &path))?.into(),
        };
        self.disk.sync_dir(&self.dir).map_err(failed("sync", &self.dir))?;
        self.seal();
        let info = SegmentInfo { base, end: base, bytes: 0, timestamp_ms_max: i64::MIN, appended_ms: now_ms };
        let index = Some(Arc::new(Index::default()));
        self.list.push_back(Segment { info, index, file: Some(file), is_dirty: true });
        self.close_some();
        Ok(())
    }

    /// Leaves an index beside the segment that has grown so far.
    fn seal(&mut self) {
        let Some(Segment { info, index: Some(index), .. }) = self.list.back() else {
            return;
        };
        let path = self.index_path(info.base);
        if let Err(error) = crate::disk::replace(&*self.disk, &path, &index.encode(info.bytes)) {
            // It is made again from the segment when it is needed.
            tracing::warn!(path = %path.display(), %error, "cannot write an index");
        }
    }

    fn close_some(&mut self) {
        let mut open = 0;
        for segment in self.list.iter_mut().rev() {
            open += usize::from(segment.file.is_some());
            if open > OPEN_MAX && !segment.is_dirty {
                (segment.file, segment.index) = (None, None);
            }
        }
    }

    fn write(&mut self, batches: &[RecordBatch], now_ms: u64) -> Result<()> {
        let at = self.list.len() - 1;
        let file = self.file(at)?;
        let index = self.index(at)?;
        let path = self.log_path(self.list[at].info.base);
        let segment = &mut self.list[at];
        let mut slices: Vec<IoSlice<'_>> = batches.iter().map(|batch| IoSlice::new(batch.bytes())).collect();
        segment.is_dirty = true;
        file.write_at(&mut slices, segment.info.bytes).map_err(failed("write", &path))?;
        drop(index);
        let index = Arc::make_mut(segment.index.get_or_insert_default());
        for batch in batches {
            index.push(batch.base_offset(), segment.info.bytes, batch.max_timestamp_ms());
            segment.info.bytes += batch.len() as u64;
            segment.info.end = batch.next_offset();
            segment.info.timestamp_ms_max = segment.info.timestamp_ms_max.max(batch.max_timestamp_ms());
        }
        segment.info.appended_ms = segment.info.appended_ms.max(now_ms);
        Ok(())
    }

    fn file(&mut self, at: usize) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.list[at].file {
            return Ok(file.clone());
        }
        let path = self.log_path(self.list[at].info.base);
        let file: Arc<dyn DiskFile> = self.disk.open(&path).map_err(failed("open", &path))?.into();
        self.list[at].file = Some(file.clone());
        self.close_others(at);
        Ok(file)
    }

    fn close_others(&mut self, keep: usize) {
        let last = self.list.len() - 1;
        let open = |segment: &&Segment| segment.file.is_some();
        if self.list.iter().filter(open).count() > OPEN_MAX
            && let Some(other) =
                (0..last).find(|i| *i != keep && self.list[*i].file.is_some() && !self.list[*i].is_dirty)
        {
            (self.list[other].file, self.list[other].index) = (None, None);
        }
    }

    fn index(&mut self, at: usize) -> Result<Arc<Index>> {
        if let Some(index) = &self.list[at].index {
            return Ok(index.clone());
        }
        let info = self.list[at].info;
        let path = self.index_path(info.base);
        let read = read_whole(&*self.disk, &path).map_err(failed("read", &path))?;
        let index = match read.and_then(|bytes| Index::decode(&bytes, info.bytes)) {
            Some(index) => index,
            None => {
                let log = self.log_path(info.base);
                make_index(&log, &*self.file(at)?, &info)?
            }
        };
        let index = Arc::new(index);
        self.list[at].index = Some(index.clone());
        Ok(index)
    }

    /// Syncs all that was written since the last time.
    pub(crate) fn dirty(&mut self) -> Vec<(PathBuf, Arc<dyn DiskFile>)> {
        let dir = self.dir.clone();
        let dirty = self.list.iter_mut().filter(|segment| segment.is_dirty).filter_map(|segment| {
            segment.is_dirty = false;
            Some((dir.join(log_name(segment.info.base)), segment.file.clone()?))
        });
        dirty.collect()
    }

    /// A sync failed: all of it has to be synced again.
    pub(crate) fn set_dirty(&mut self) {
        self.list.iter_mut().filter(|segment| segment.file.is_some()).for_each(|segment| segment.is_dirty = true);
    }

    /// Where an offset is; `None` where no segment has it.
    pub(crate) fn find(&mut self, offset: Offset) -> Result<Option<Part>> {
        let after = self.list.partition_point(|segment| segment.info.end <= offset);
        if self.list.get(after).is_none_or(|segment| segment.info.base > offset) {
            return Ok(None);
        }
        let row = self.index(after)?.before(offset);
        self.part(after, row.map_or((self.list[after].info.base, 0), |row| (row.offset, row.at))).map(Some)
    }

    /// Where to look for the first record of this time or later.
    pub(crate) fn find_time(&mut self, timestamp_ms: i64) -> Result<Option<Part>> {
        let Some(at) = self.list.iter().position(|segment| segment.info.timestamp_ms_max >= timestamp_ms) else {
            return Ok(None);
        };
        let row = self.index(at)?.before_time(timestamp_ms);
        self.part(at, row.map_or((self.list[at].info.base, 0), |row| (row.offset, row.at))).map(Some)
    }

    fn part(&mut self, segment: usize, (offset, at): (Offset, u64)) -> Result<Part> {
        let info = self.list[segment].info;
        Ok(Part { path: self.log_path(info.base), file: self.file(segment)?, offset, at, to: info.bytes })
    }

    /// Removes the oldest segments, as long as `is_over` says so of the oldest one and of all bytes. The one that
    /// grows stays. Returns the offset at which the next one begins, if any was removed.
    pub(crate) fn plan_removal(&self, is_over: impl Fn(&SegmentInfo, u64) -> bool) -> Option<Offset> {
        let (mut bytes, mut start) = (self.bytes(), None);
        for (segment, next) in self.list.iter().zip(self.list.iter().skip(1)) {
            if !is_over(&segment.info, bytes) {
                break;
            }
            bytes -= segment.info.bytes;
            start = Some(next.info.base);
        }
        start
    }

    /// Forgets segments that end at or before this offset. Their files go with [`Segments::sweep`].
    pub(crate) fn forget_before(&mut self, start: Offset) {
        while self.list.len() > 1
            && let Some(segment) = self.list.pop_front_if(|segment| segment.info.end <= start)
        {
            self.garbage.push(self.log_path(segment.info.base));
            self.garbage.push(self.index_path(segment.info.base));
        }
    }

    /// Removes the files of what was forgotten. What cannot be removed is tried again the next time.
    pub(crate) fn sweep(&mut self) {
        let disk = &self.disk;
        self.garbage.retain(|path| match disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "cannot remove a file that is no longer needed");
                true
            }
            _ => false,
        });
    }
}

fn log_name(base: Offset) -> String {
    format!("{base:020}.log")
}

impl Part {
    /// The batches from the one that holds `from`, up to `bytes_max`, at least one. Stops where the segment ended.
    pub(crate) fn read(&self, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        let (mut at, mut expected, mut found, mut bytes) = (self.at, self.offset, Vec::new(), 0);
        let mut ahead = Ahead { part: self, bytes: Bytes::new(), from: 0, want: bytes_max.clamp(64 << 10, 4 << 20) };
        while at < self.to {
            let head = ahead.get(at, BATCH_HEADER_BYTES)?;
            let (base, len) = self.check_head(&head, at, expected)?;
            let batch =
                RecordBatch::parse(ahead.get(at, len)?).map_err(|error| damaged(&self.path, at, error.message))?;
            (at, expected) = (at + len as u64, batch.next_offset());
            debug_assert_eq!(base, batch.base_offset());
            if batch.next_offset() <= from {
                continue;
            }
            bytes += batch.len();
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            found.push(batch);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(found)
    }

    /// The offset of the first batch with a record of this time or later.
    pub(crate) fn offset_for_time(&self, timestamp_ms: i64) -> Result<Option<Offset>> {
        let mut from = self.offset;
        loop {
            let batches = self.read(from, TIME_READ_BYTES)?;
            let Some(last) = batches.last() else { return Ok(None) };
            if let Some(found) = batches.iter().find(|batch| batch.max_timestamp_ms() >= timestamp_ms) {
                return Ok(Some(found.base_offset()));
            }
            from = last.next_offset();
        }
    }

    /// The base offset lies outside of the batch's checksum: it has to follow from the batch before.
    fn check_head(&self, head: &[u8], at: u64, expected: Offset) -> Result<(Offset, usize)> {
        if head.len() < BATCH_HEADER_BYTES {
            return Err(damaged(&self.path, at, "a batch is cut short"));
        }
        let base = u64::from_be_bytes(head[..8].try_into().expect("invariant: eight bytes"));
        let len = u32::from_be_bytes(head[8..12].try_into().expect("invariant: four bytes")) as usize + 12;
        if base < expected || len > BATCH_BYTES_MAX || at + len as u64 > self.to {
            let what = format!("a batch of {len} bytes from offset {base} where offset {expected} has to be");
            return Err(damaged(&self.path, at, what));
        }
        Ok((base, len))
    }
}

/// Bytes of a part, read ahead of what is asked for.
struct Ahead<'p> {
    part: &'p Part,
    bytes: Bytes,
    from: u64,
    want: usize,
}

impl Ahead<'_> {
    /// These bytes, or those of them that there are.
    fn get(&mut self, at: u64, len: usize) -> Result<Bytes> {
        if at < self.from || at + len as u64 > self.from + self.bytes.len() as u64 {
            let want = (self.want.max(len) as u64).min(self.part.to - at) as usize;
            let mut bytes = BytesMut::zeroed(want);
            let read = self.part.file.read_at(&mut bytes, at).map_err(failed("read", &self.part.path))?;
            bytes.truncate(read);
            (self.bytes, self.from) = (bytes.freeze(), at);
        }
        let from = (at - self.from) as usize;
        Ok(self.bytes.slice(from..(from + len).min(self.bytes.len())))
    }
}

/// The index of a segment that has none: from the heads of its batches.
fn make_index(path: &Path, file: &dyn DiskFile, info: &SegmentInfo) -> Result<Index> {
    let (mut index, mut at, mut head) = (Index::default(), 0, [0; BATCH_HEADER_BYTES]);
    while at < info.bytes {
        let read = file.read_at(&mut head, at).map_err(failed("read", path))?;
        let base = u64::from_be_bytes(head[..8].try_into().expect("invariant: eight bytes"));
        let len = u64::from(u32::from_be_bytes(head[8..12].try_into().expect("invariant: four bytes"))) + 12;
        if read < head.len() || at + len > info.bytes {
            return Err(damaged(path, at, "a batch is cut short"));
        }
        let timestamp_ms = i64::from_be_bytes(head[35..43].try_into().expect("invariant: eight bytes"));
        index.push(base, at, timestamp_ms);
        at += len;
    }
    Ok(index)
}

/// Segments behind a lock of their own: who reads or writes files does not hold up who appends.
pub(crate) type SharedSegments = Mutex<Segments>;

/// The partition cannot be served.
pub(crate) fn refuse(error: &Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("this partition is not served: {}", error.message))
}
