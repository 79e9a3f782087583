//! Files of one partition: `<base offset>.log` contains consecutive batches in their order of arrival, in Kafka's
//! layout. A file that compaction wrote also has its generation in its name: `<base offset>-<generation>.log`.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use super::index::Index;
use super::scan::Epochs;
use crate::disk::{Disk, DiskFile, Pages, damaged, failed};
use crate::info::{PartitionInfo, SegmentInfo};
use crate::journal::salvage;

mod copy;
mod dirty;
pub(crate) mod names;
mod through;
mod view;

pub(crate) use copy::CopiedSegment;
use names::parse_name;
pub(crate) use names::{index_name, log_name};
use through::Through;
pub(crate) use through::{Described, WrittenThrough};
pub(crate) use view::{Part, View};

/// File of batches, complete or still growing.
pub(crate) struct Segment {
    info: SegmentInfo,
    /// Index, read or created on first use, unless this process wrote the segment.
    index: Option<Arc<Index>>,
    /// Open file. Invariant: not all segments have one at the same time; see [`OPEN_MAX`].
    file: Option<Arc<dyn DiskFile>>,
    /// Durable bytes of the segment, and the offset at their end.
    synced: (u64, Offset),
    /// `true` after a failed sync: unsynced bytes may be lost, though they still read correctly.
    is_suspect: bool,
    /// Largest timestamp of the first batch, once it was read.
    first_ms: Option<i64>,
    /// Bytes after the last whole page, after a write that had to know them.
    last_page: Option<Vec<u8>>,
}

/// Number of bytes that a search by time or a check reads together.
pub(crate) const READ_BYTES: usize = 1 << 20;
/// Bytes of one write. Many systems do not schedule other threads on the processor before it is finished.
const WRITE_BYTES: usize = 256 << 10;
/// Maximum bytes of a write past the system's cache: a larger batch goes through it.
const UNCACHED_BYTES_MAX: usize = 1 << 20;
/// Maximum number of open files of one partition.
const OPEN_MAX: usize = 4;

/// Segments of a partition. Invariant: they are in order and without a gap, and `list.back()` is the growing one.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    /// Maximum age difference between the first batch of a segment and any other; 0 means no limit.
    segment_ms: u64,
    list: VecDeque<Segment>,
    /// Generation of segments that are begun from now on: files of these names may exist in earlier ones.
    generation: u32,
    /// `true` if its directory exists, with a durable name.
    has_dir: bool,
    /// Number of changes of the directory that a checkpoint relies on.
    names: u64,
    names_synced: u64,
    /// Files that are needed as long as the last checkpoint names them, and files that are no longer needed.
    replaced: Vec<PathBuf>,
    garbage: Vec<PathBuf>,
    /// Journal entries that were put aside while the partition could not be served.
    salvages: Vec<PathBuf>,
    through: Through,
    epochs: Epochs,
}

/// Part of a segment that a checkpoint has to make durable.
pub(crate) struct Unsynced {
    info: SegmentInfo,
    pub(crate) part: Part,
    is_suspect: bool,
}

/// Memory for writes past the system's cache.
pub(crate) struct Uncached {
    pages: Pages,
    bytes_min: usize,
}

impl Uncached {
    pub(crate) fn new(bytes_min: usize) -> Self {
        Self { pages: Pages::default(), bytes_min }
    }

    /// Returns `true` if this many bytes are worth such a write, and do not need too much memory.
    fn takes(&self, bytes: usize) -> bool {
        (self.bytes_min..=UNCACHED_BYTES_MAX).contains(&bytes)
    }
}

impl Segments {
    /// Opens the segments of a checkpoint. Changes nothing: [`Segments::settle`] does that once it is known that the
    /// journal contains everything that the segments lack.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        segment_bytes: u64,
        known: &PartitionInfo,
        epochs: Epochs,
    ) -> Result<Self> {
        let mut segments = Self::closed(disk, dir, segment_bytes, &known.segments, epochs);
        let names = segments.names()?;
        for position in &known.salvages {
            let path = salvage::path(&segments.dir, *position);
            if !names.iter().any(|name| path.ends_with(name)) {
                return Err(damaged(&path, 0, "the file is missing"));
            }
            segments.salvages.push(path);
        }
        for info in &known.segments {
            let path = segments.log_path(info);
            if !names.iter().any(|name| *name == log_name(info.base, info.generation)) {
                return Err(damaged(&path, 0, "the file is missing"));
            }
            let len = segments.disk.open(&path).and_then(|file| file.size()).map_err(failed("open", &path))?;
            if len < info.bytes {
                return Err(damaged(&path, len, format!("it has {len} of {} bytes", info.bytes)));
            }
        }
        Ok(segments)
    }

    /// Creates the segments of a partition that is not served: no file is accessed.
    pub(crate) fn closed(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        segment_bytes: u64,
        known: &[SegmentInfo],
        epochs: Epochs,
    ) -> Self {
        let list = known.iter().map(Segment::sealed).collect();
        let has_dir = !known.is_empty();
        let replaced = Vec::new();
        let garbage = Vec::new();
        let salvages = Vec::new();
        let segment_ms = 0;
        let names = 0;
        let names_synced = 0;
        let through = Through::after(known.last());
        Self {
            disk,
            dir,
            segment_bytes,
            segment_ms,
            list,
            generation: 0,
            has_dir,
            names,
            names_synced,
            replaced,
            garbage,
            salvages,
            through,
            epochs,
        }
    }

    fn names(&self) -> Result<Vec<String>> {
        match self.disk.list(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.list.is_empty() => Ok(Vec::new()),
            names => names.map_err(failed("list", &self.dir)),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub(crate) fn salvages(&self) -> &[PathBuf] {
        &self.salvages
    }

    /// Removes writes after the checkpoint: those batches are in the journal, and are appended again.
    pub(crate) fn settle(&mut self) -> Result<()> {
        for name in self.names()? {
            let Some((base, generation, kind)) = parse_name(&name) else { continue };
            let is_searched = |segment: &Segment| segment.info.base == base && segment.info.generation == generation;
            let is_known = self.list.iter().any(is_searched);
            // The growing segment has no index; an existing one belongs to a segment that continued differently.
            let is_growing = self.list.back().is_some_and(is_searched);
            let path = self.dir.join(&name);
            let is_over = match kind {
                "log" => !is_known,
                "index" => !is_known || is_growing,
                // The checkpoint that would have named it was never written, or a later checkpoint does not need it.
                "salvage" => !self.salvages.contains(&path),
                _ => false,
            };
            if is_over {
                self.disk.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        for segment in &self.list {
            let path = self.log_path(&segment.info);
            let bytes = segment.info.bytes;
            let file = self.disk.open(&path).map_err(failed("open", &path))?;
            if file.size().map_err(failed("read", &path))? > bytes {
                file.set_len(bytes).map_err(failed("cut", &path))?;
            }
        }
        Ok(())
    }

    /// Marks the salvage files for removal with the next sweep: their entries are in the partition again.
    pub(crate) fn end_salvage(&mut self) {
        self.garbage.append(&mut self.salvages);
    }

    fn log_path(&self, info: &SegmentInfo) -> PathBuf {
        self.dir.join(log_name(info.base, info.generation))
    }

    fn index_path(&self, info: &SegmentInfo) -> PathBuf {
        self.dir.join(index_name(info.base, info.generation))
    }

    pub(crate) fn infos(&self) -> Vec<SegmentInfo> {
        self.list.iter().map(|segment| segment.info).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.info.bytes).sum()
    }

    /// Returns the offset after the last record in a segment, if a segment exists.
    pub(crate) fn end(&self) -> Option<Offset> {
        self.list.back().map(|segment| segment.info.end)
    }

    /// Appends batches, and starts new segments when one is full. Nothing is synced. After an error some batches may
    /// have been appended: [`Segments::end`] shows which.
    pub(crate) fn append(
        &mut self,
        batches: &[RecordBatch],
        now_ms: u64,
        mut uncached: Option<&mut Uncached>,
    ) -> Result<()> {
        self.append_by(batches, now_ms, &mut |segments, batches| {
            segments.write(batches, now_ms, uncached.as_deref_mut())
        })
    }

    fn append_by(
        &mut self,
        batches: &[RecordBatch],
        now_ms: u64,
        write: &mut dyn FnMut(&mut Self, &[RecordBatch]) -> Result<()>,
    ) -> Result<()> {
        let mut rest = batches;
        while let Some(first) = rest.first() {
            let first_ms = if self.segment_ms > 0 { self.first_ms(self.list.len().saturating_sub(1))? } else { None };
            let segment_ms = self.segment_ms.min(i64::MAX as u64) as i64;
            let is_late = |batch: &RecordBatch, first_ms: i64| {
                segment_ms > 0 && batch.max_timestamp_ms().saturating_sub(first_ms) > segment_ms
            };
            let (room, first_ms) = match self.list.back() {
                Some(last) if last.info.bytes == 0 => (self.segment_bytes, None),
                Some(last)
                    if last.info.bytes + first.len() as u64 <= self.segment_bytes
                        && first_ms.is_none_or(|first_ms| !is_late(first, first_ms)) =>
                {
                    (self.segment_bytes - last.info.bytes, first_ms)
                }
                _ => {
                    self.roll(first.base_offset(), now_ms)?;
                    (self.segment_bytes, None)
                }
            };
            let first_ms = first_ms.unwrap_or_else(|| first.max_timestamp_ms());
            let mut bytes = 0;
            let fits = |batch: &&RecordBatch| {
                bytes += batch.len() as u64;
                bytes == batch.len() as u64 || (bytes <= room && !is_late(batch, first_ms))
            };
            let count = rest.iter().take_while(fits).count();
            write(self, &rest[..count])?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Sets the limits at which a segment ends from now on.
    pub(crate) fn set_limits(&mut self, segment_bytes: u64, segment_ms: u64) {
        self.segment_bytes = segment_bytes;
        self.segment_ms = segment_ms;
    }

    /// Returns the largest timestamp of the first batch of a segment; `None` if the segment is empty. May read a file.
    fn first_ms(&mut self, at: usize) -> Result<Option<i64>> {
        let Some(segment) = self.list.get(at).filter(|segment| segment.info.bytes > 0) else {
            return Ok(None);
        };
        if segment.first_ms.is_some() {
            return Ok(segment.first_ms);
        }
        let mut first_ms = None;
        self.view_at(at)?.each(&mut |batches| {
            first_ms = batches.first().map(RecordBatch::max_timestamp_ms);
            Ok(false)
        })?;
        self.list[at].first_ms = first_ms;
        Ok(first_ms)
    }

    fn roll(&mut self, base: Offset, now_ms: u64) -> Result<()> {
        if !self.has_dir {
            // The directories of the topic and of all topics may be new as well.
            for dir in self.dirs().iter().skip(1) {
                self.disk.create_dir(dir).map_err(failed("make", dir))?;
            }
        }
        let generation = self.generation;
        let info =
            SegmentInfo { base, end: base, bytes: 0, timestamp_ms_max: i64::MIN, appended_ms: now_ms, generation };
        let path = self.log_path(&info);
        let file: Arc<dyn DiskFile> = match self.disk.create(&path) {
            // An earlier attempt left this file; it failed before it wrote anything that is needed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = self.disk.open(&path).map_err(failed("open", &path))?;
                file.set_len(0).map_err(failed("cut", &path))?;
                file.into()
            }
            created => created.map_err(failed("make", &path))?.into(),
        };
        self.names += 1;
        self.garbage.retain(|garbage| *garbage != path);
        self.leave_index();
        let index = Some(Arc::new(Index::new(base)));
        let file = Some(file);
        let synced = (0, base);
        self.list.push_back(Segment { info, index, file, synced, is_suspect: false, first_ms: None, last_page: None });
        self.close_some();
        Ok(())
    }

    /// Returns the data directory and its descendants down to this partition's directory.
    fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self.dir.ancestors().take(4).map(Path::to_owned).collect();
        dirs.reverse();
        dirs
    }

    /// Writes an index for the growing segment.
    fn leave_index(&self) {
        if let Some(Segment { info, index: Some(index), .. }) = self.list.back()
            && index.bytes() == info.bytes
        {
            leave_index(&*self.disk, &self.index_path(info), index);
        }
    }

    /// Closes all files of a partition that is deleted.
    pub(crate) fn close(&mut self) {
        self.end_through();
        for segment in &mut self.list {
            segment.file = None;
            segment.index = None;
        }
    }

    fn close_some(&mut self) {
        let mut open = 0;
        for segment in self.list.iter_mut().rev() {
            open += usize::from(segment.file.is_some() || segment.index.is_some());
            if open > OPEN_MAX && !segment.is_dirty() {
                segment.file = None;
                segment.index = None;
            }
        }
    }

    fn write(&mut self, batches: &[RecordBatch], now_ms: u64, mut uncached: Option<&mut Uncached>) -> Result<()> {
        let at = self.list.len() - 1;
        let file = self.file(at)?;
        let path = self.log_path(&self.list[at].info);
        let mut rest = batches;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |batch: &&RecordBatch| {
                bytes += batch.len();
                bytes <= WRITE_BYTES || bytes == batch.len()
            };
            let some = &rest[..rest.iter().take_while(fits).count()];
            rest = &rest[some.len()..];
            let bytes: usize = some.iter().map(RecordBatch::len).sum();
            if let Some(uncached) = uncached.as_deref_mut().filter(|uncached| uncached.takes(bytes))
                && !self.list[at].is_suspect
            {
                self.write_pages(some, &mut uncached.pages)?;
                self.list[at].note(some, now_ms);
                continue;
            }
            self.list[at].last_page = None;
            let mut slices: Vec<IoSlice<'_>> = some.iter().map(|batch| IoSlice::new(batch.bytes())).collect();
            file.write_at(&mut slices, self.list[at].info.bytes).map_err(failed("write", &path))?;
            self.list[at].note(some, now_ms);
        }
        Ok(())
    }

    fn file(&mut self, at: usize) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.list[at].file {
            return Ok(file.clone());
        }
        let path = self.log_path(&self.list[at].info);
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
                (0..last).find(|i| *i != keep && self.list[*i].file.is_some() && !self.list[*i].is_dirty())
        {
            self.list[other].file = None;
            self.list[other].index = None;
        }
    }

    pub(crate) fn unsynced_bytes(&self) -> u64 {
        // Unsynced segments are the newest ones.
        let newest = self.list.iter().rev().take_while(|segment| segment.is_dirty());
        newest.map(|segment| segment.info.bytes - segment.synced.0).sum()
    }

    /// Returns the parts that have to be synced before a checkpoint may contain [`Segments::infos`].
    pub(crate) fn unsynced(&mut self) -> Result<Vec<Unsynced>> {
        let dirty: Vec<usize> = (0..self.list.len()).filter(|at| self.list[*at].is_dirty()).collect();
        let unsynced = |at: usize| {
            let path = self.log_path(&self.list[at].info);
            let file = self.file(at)?;
            let Segment { info, synced, is_suspect, .. } = self.list[at];
            let (to, end, epochs) = (info.bytes, info.end, self.epochs);
            let part = Part { path, file, at: synced.0, offset: synced.1, to, end, epochs };
            Ok(Unsynced { info, part, is_suspect })
        };
        dirty.into_iter().map(unsynced).collect()
    }

    /// Records whether this part of a segment is durable, or has to be checked again.
    pub(crate) fn set_synced(&mut self, unsynced: &Unsynced, is_synced: bool) {
        if let Some(segment) = self.list.iter_mut().find(|segment| segment.info.is_same(&unsynced.info)) {
            segment.is_suspect = !is_synced;
            if is_synced {
                segment.synced = (unsynced.part.to, unsynced.part.end);
            }
        }
        if !is_synced {
            // Their next sync would report this failure again, after it was made good.
            self.end_through();
        }
    }

    /// Returns directories that have to be synced as well, and the argument for [`Segments::set_names_synced`] after
    /// that.
    pub(crate) fn unsynced_dirs(&self) -> (Vec<PathBuf>, u64) {
        let mut dirs = if self.names == self.names_synced { Vec::new() } else { self.dirs() };
        if self.has_dir {
            dirs = dirs.split_off(dirs.len().saturating_sub(1));
        }
        (dirs, self.names)
    }

    pub(crate) fn set_names_synced(&mut self, names: u64) {
        self.has_dir |= names > 0;
        self.names_synced = names;
    }

    /// Returns the segment that holds an offset, or the first one after it. With a time, it is the first of these that
    /// has a record of this time or later.
    pub(crate) fn view(&mut self, offset: Offset, timestamp_ms: Option<i64>) -> Result<Option<View>> {
        let is_searched = |segment: &Segment| {
            let is_in_time = timestamp_ms.is_none_or(|timestamp_ms| segment.info.timestamp_ms_max >= timestamp_ms);
            segment.info.end > offset && is_in_time
        };
        let after = self.list.partition_point(|segment| segment.info.end <= offset);
        let Some(at) = self.list.iter().skip(after).position(is_searched).map(|at| at + after) else {
            return Ok(None);
        };
        self.view_at(at).map(Some)
    }

    fn view_at(&mut self, at: usize) -> Result<View> {
        let file = self.file(at)?;
        let Segment { info, index, .. } = &self.list[at];
        let path = self.log_path(info);
        let index_path = self.index_path(info);
        let disk = self.disk.clone();
        let is_sealed = at + 1 < self.list.len();
        Ok(View { disk, path, index_path, file, info: *info, index: index.clone(), is_sealed, epochs: self.epochs })
    }

    /// Keeps an index that a reader created.
    pub(crate) fn keep_index(&mut self, view: &View) {
        let found = self.list.iter_mut().find(|segment| segment.info.is_same(&view.info));
        if let Some(segment) = found
            && segment.file.is_some()
            && view.bytes_indexed() > segment.index.as_ref().map_or(0, |index| index.bytes())
        {
            segment.index = view.index.clone();
        }
    }

    /// Selects the oldest segments for removal, as long as `is_over` returns `true` for the oldest one and the bytes of
    /// all. Returns the offset at which the log then begins, if any can be removed.
    pub(crate) fn plan_removal(&self, is_over: impl Fn(&SegmentInfo, u64) -> bool) -> Option<Offset> {
        let mut bytes = self.bytes();
        let mut start = None;
        for segment in &self.list {
            if !is_over(&segment.info, bytes) {
                break;
            }
            bytes -= segment.info.bytes;
            start = Some(segment.info.end);
        }
        start
    }

    /// Drops segments that end at or before this offset. [`Segments::sweep`] removes their files.
    pub(crate) fn forget_before(&mut self, start: Offset) {
        // A segment without records stays: a new one would get its name.
        while let Some(segment) = self.list.pop_front_if(|segment| segment.info.end <= start && segment.info.bytes > 0)
        {
            self.garbage.push(self.log_path(&segment.info));
            self.garbage.push(self.index_path(&segment.info));
        }
    }

    /// Returns a view of a segment, if it still exists.
    pub(crate) fn view_of(&mut self, info: &SegmentInfo) -> Result<View> {
        match self.list.iter().position(|segment| segment.info == *info) {
            Some(at) => self.view_at(at),
            None => Err(Error::new(ErrorKind::Busy, "a segment was removed while it was compacted; try again")),
        }
    }

    /// Replaces segments by new ones, if the old ones still exist. The old files are removed when no checkpoint names
    /// them. If the old ones no longer exist, the new files are removed immediately, since nothing refers to them.
    /// Returns `true` if the segments were replaced.
    pub(crate) fn exchange(&mut self, sources: &[SegmentInfo], made: Vec<Segment>) -> bool {
        let at = self.list.iter().position(|segment| sources.first() == Some(&segment.info));
        let following = self.list.iter().skip(at.unwrap_or(self.list.len())).map(|segment| segment.info);
        // The growing segment is none of the sources.
        let are_present = following.clone().count() > sources.len()
            && following.zip(sources).all(|(segment, source)| segment == *source);
        let Some(at) = at.filter(|_| are_present) else {
            for segment in &made {
                remove_quietly(&*self.disk, &self.log_path(&segment.info));
                remove_quietly(&*self.disk, &self.index_path(&segment.info));
            }
            return false;
        };
        let rest = self.list.split_off(at + sources.len());
        for segment in self.list.split_off(at) {
            self.replaced.push(self.log_path(&segment.info));
            self.replaced.push(self.index_path(&segment.info));
        }
        self.list.extend(made);
        self.list.extend(rest);
        true
    }

    /// Drops all segments; the next ones are in other files. The old files are removed when no checkpoint names them.
    pub(crate) fn start_over(&mut self) {
        self.end_through();
        // A compaction that still runs writes files of the next generation, and removes them.
        self.generation = self.list.iter().map(|segment| segment.info.generation + 2).fold(self.generation, u32::max);
        for segment in std::mem::take(&mut self.list) {
            self.replaced.push(self.log_path(&segment.info));
            self.replaced.push(self.index_path(&segment.info));
        }
        self.through = Through::after(None);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Marks the replaced files as garbage: no checkpoint that is written from now on names them.
    pub(crate) fn retire_replaced(&mut self) {
        self.garbage.append(&mut self.replaced);
    }

    /// Returns `true` if files can be removed once a checkpoint contains this start offset.
    pub(crate) fn has_garbage(&self, start: Offset) -> bool {
        let is_over = |segment: &Segment| segment.info.end <= start && segment.info.bytes > 0;
        !self.garbage.is_empty() || !self.replaced.is_empty() || self.list.front().is_some_and(is_over)
    }

    /// Removes the files of dropped segments. Failed removals are retried the next time.
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

/// Removes an unneeded file. If that fails, the next start removes it.
pub(crate) fn remove_quietly(disk: &dyn Disk, path: &Path) {
    if let Err(error) = disk.remove(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), %error, "cannot remove a file that a compaction left");
    }
}

pub(crate) fn leave_index(disk: &dyn Disk, path: &Path, index: &Index) {
    let left = match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => disk.create(path).and_then(|file| file.write_at(&mut [IoSlice::new(&index.encode())], 0)),
    };
    if let Err(error) = left {
        // It is created again from the segment when it is needed.
        tracing::debug!(path = %path.display(), %error, "cannot write an index");
    }
}

impl Segment {
    /// Creates a segment that is durable as a whole.
    pub(crate) fn sealed(info: &SegmentInfo) -> Self {
        let synced = (info.bytes, info.end);
        Self { info: *info, index: None, file: None, synced, is_suspect: false, first_ms: None, last_page: None }
    }

    /// Records that batches were written at the end of the segment.
    fn note(&mut self, batches: &[RecordBatch], now_ms: u64) {
        let Self { info, index, .. } = self;
        let mut index = index.as_mut().filter(|index| index.bytes() == info.bytes).map(Arc::make_mut);
        for batch in batches {
            if let Some(index) = &mut index {
                index.push(batch);
            }
            info.bytes += batch.len() as u64;
            info.end = batch.next_offset();
            info.timestamp_ms_max = info.timestamp_ms_max.max(batch.max_timestamp_ms());
        }
        info.appended_ms = info.appended_ms.max(now_ms);
    }

    fn is_dirty(&self) -> bool {
        self.is_suspect || self.synced.0 < self.info.bytes
    }
}

impl Unsynced {
    /// Makes the part durable. After a failed sync the system treats bytes that it could not write as written: the
    /// whole part is then read back, checked and written again.
    pub(crate) fn sync(&self) -> Result<()> {
        let Part { path, file, .. } = &self.part;
        if self.is_suspect {
            self.part.each(&mut |at, batches| {
                let mut slices: Vec<IoSlice<'_>> = batches.iter().map(|batch| IoSlice::new(batch.bytes())).collect();
                file.write_at(&mut slices, at).map_err(failed("write", path))?;
                Ok(true)
            })?;
        }
        file.sync().map_err(failed("sync", path))
    }
}

/// Segments with a separate lock: reads and writes of files do not block appends.
pub(crate) type SharedSegments = Mutex<Segments>;
