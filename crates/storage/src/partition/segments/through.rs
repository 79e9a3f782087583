//! Batches that go straight to a segment, before they are committed.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use engine::{Offset, RecordBatch, Result};

use super::{Segment, Segments};
use crate::disk::{DiskFile, PAGE_BYTES, Pages, damaged, failed};
use crate::info::SegmentInfo;
use crate::journal::block::SegmentPart;
use crate::journal::through::PARTS_MAX;

/// State of write-through in the segments of one partition.
pub(super) struct Through {
    /// Offset, and byte of the segment that ends there, up to which the last checkpoint or an entry of the journal
    /// describes the segments.
    described: (Offset, u64),
    /// Batches that are not committed yet, oldest first.
    pending: VecDeque<Pending>,
    /// Handle of each journal thread for a segment. The system reports a failed write to each handle once, so threads
    /// that acknowledge batches share none. Invariant: all bytes that a handle has to make durable were written after
    /// it was opened, or had no failed sync before.
    handles: Vec<Handle>,
    /// `true` if there was a write since the last checkpoint.
    is_busy: bool,
}

/// Batch that was not committed when it was written.
struct Pending {
    /// First offset of the batch; `to` is the offset after its last record.
    from: Offset,
    to: Offset,
    /// Last segment without this batch and what follows it.
    last: SegmentInfo,
}

struct Handle {
    base: Offset,
    thread: usize,
    file: Arc<dyn DiskFile>,
}

/// Result of a write: the parts that no entry describes yet, and the files to sync.
pub(crate) struct WrittenThrough {
    pub(crate) parts: Vec<SegmentPart>,
    pub(crate) files: Vec<(PathBuf, Arc<dyn DiskFile>)>,
    /// Directories whose names have to be durable before the parts may be recorded, and the argument for
    /// [`Segments::set_names_synced`] after that.
    pub(crate) dirs: (Vec<PathBuf>, u64),
    /// Segments after the write, without those that are durable as a whole.
    infos: Vec<SegmentInfo>,
}

impl Through {
    pub(super) fn after(last: Option<&SegmentInfo>) -> Self {
        let described = last.map_or((0, 0), |last| (last.end, last.bytes));
        Self { described, pending: VecDeque::new(), handles: Vec::new(), is_busy: false }
    }
}

impl Segments {
    /// Appends batches for this thread of the journal; those from the offset `committed` on are not committed yet.
    /// `may_open`: no other sync of the partition is in progress, so that a handle may be opened. `None` if these
    /// segments do not permit the write now, or if the batches have to go into the journal as well. After an error some
    /// batches may have been appended: [`Segments::end`] shows which.
    pub(crate) fn write_through(
        &mut self,
        batches: &[RecordBatch],
        committed: Offset,
        now_ms: u64,
        (thread, may_open): (usize, bool),
        pages: &mut Pages,
    ) -> Result<Option<WrittenThrough>> {
        self.pending_from(committed);
        self.through.is_busy = true;
        let (described, _) = self.through.described;
        let undescribed = self.list.iter().filter(|segment| segment.info.end > described);
        // A part of a segment that compaction made, or that a sync may have lost, needs a checkpoint first.
        let is_simple = |segment: &Segment| segment.info.generation == 0 && !segment.is_suspect;
        if !undescribed.clone().all(is_simple)
            || undescribed.count() >= PARTS_MAX
            || self.list.back().is_some_and(|last| !is_simple(last))
            || !(may_open || self.has_handles(thread))
        {
            return Ok(None);
        }
        self.append_by(batches, now_ms, &mut |segments, batches| {
            segments.write_pages(batches, pages)?;
            let (done, rest) = batches.split_at(batches.partition_point(|batch| batch.base_offset() < committed));
            let last = segments.list.back_mut().expect("invariant: batches were written to it");
            last.note(done, now_ms);
            for batch in rest {
                let from = batch.base_offset();
                let to = batch.next_offset();
                segments.through.pending.push_back(Pending { from, to, last: last.info });
                last.note(std::slice::from_ref(batch), now_ms);
            }
            Ok(())
        })?;
        let Some(parts) = self.undescribed_parts() else {
            return Ok(None);
        };
        let is_of_part =
            |segment: &Segment| segment.is_dirty() && parts.iter().any(|part| part.base == segment.info.base);
        let dirty: Vec<usize> = (0..self.list.len()).filter(|at| is_of_part(&self.list[*at])).collect();
        let infos = dirty.iter().map(|at| self.list[*at].info).collect();
        let files = dirty
            .into_iter()
            .map(|at| Ok((self.log_path(&self.list[at].info), self.handle(at, thread)?)))
            .collect::<Result<_>>()?;
        Ok(Some(WrittenThrough { parts, files, dirs: self.unsynced_dirs(), infos }))
    }

    /// Returns the parts of segments that no checkpoint and no entry describes; `None` if they are too many.
    fn undescribed_parts(&self) -> Option<Vec<SegmentPart>> {
        let (described, bytes) = self.through.described;
        let part = |segment: &Segment| {
            let SegmentInfo { base, end, bytes: to, generation, appended_ms, .. } = segment.info;
            let (from, from_offset) = if base < described { (bytes, described) } else { (0, base) };
            SegmentPart { base, generation, from, from_offset, to, to_offset: end, appended_ms }
        };
        let parts: Vec<SegmentPart> =
            self.list.iter().filter(|segment| segment.info.end > described).map(part).collect();
        (parts.len() <= PARTS_MAX).then_some(parts)
    }

    /// Returns `true` if a thread has handles for all bytes that no sync has made durable.
    fn has_handles(&self, thread: usize) -> bool {
        let has_handle = |segment: &Segment| {
            self.through.handles.iter().any(|handle| (handle.base, handle.thread) == (segment.info.base, thread))
        };
        self.list.iter().filter(|segment| segment.is_dirty()).chain(self.list.back()).all(has_handle)
    }

    fn handle(&mut self, at: usize, thread: usize) -> Result<Arc<dyn DiskFile>> {
        let base = self.list[at].info.base;
        let found = self.through.handles.iter().find(|handle| handle.base == base && handle.thread == thread);
        if let Some(handle) = found {
            return Ok(handle.file.clone());
        }
        let path = self.log_path(&self.list[at].info);
        let file: Arc<dyn DiskFile> = self.disk.open(&path).map_err(failed("open", &path))?.into();
        let last = self.list.back().map(|last| last.info.base);
        self.through.handles.retain(|handle| last == Some(handle.base));
        self.through.handles.push(Handle { base, thread, file: file.clone() });
        Ok(file)
    }

    /// Writes batches at the end of the growing segment in whole pages: the page in which the segment ends is written
    /// again, with the same bytes and the first of the new ones.
    pub(super) fn write_pages(&mut self, batches: &[RecordBatch], pages: &mut Pages) -> Result<()> {
        let at = self.list.len() - 1;
        let file = self.file(at)?;
        let path = self.log_path(&self.list[at].info);
        let segment = &mut self.list[at];
        let before = (segment.info.bytes % PAGE_BYTES as u64) as usize;
        let begin = segment.info.bytes - before as u64;
        pages.reset(before + batches.iter().map(RecordBatch::len).sum::<usize>());
        match segment.last_page.take().filter(|page| page.len() == before) {
            Some(page) => pages.push(&page),
            None if before > 0 => {
                let page = file.read(before, begin).map_err(failed("read", &path))?;
                if page.len() < before {
                    return Err(damaged(&path, begin + page.len() as u64, "the file ends too early"));
                }
                pages.push(&page);
            }
            None => {}
        }
        batches.iter().for_each(|batch| pages.push(batch.bytes()));
        pages.fill();
        file.write_pages(pages, begin).map_err(failed("write", &path))?;
        let bytes = pages.bytes();
        segment.last_page = Some(bytes[bytes.len() / PAGE_BYTES * PAGE_BYTES..].to_vec());
        Ok(())
    }

    /// Records that a write is durable.
    pub(crate) fn set_through_synced(&mut self, written: &WrittenThrough) {
        for info in &written.infos {
            if let Some(segment) = self.list.iter_mut().find(|segment| segment.info.is_same(info))
                && segment.synced.0 < info.bytes
                && info.bytes <= segment.info.bytes
            {
                segment.synced = (info.bytes, info.end);
            }
        }
    }

    /// Closes the handles of the journal's threads, unless they were used since the last call.
    pub(crate) fn rest_through(&mut self) {
        if !std::mem::take(&mut self.through.is_busy) {
            self.end_through();
        }
    }

    pub(super) fn end_through(&mut self) {
        self.through.handles.clear();
        self.list.iter_mut().for_each(|segment| segment.last_page = None);
    }

    /// Records that a checkpoint, or an entry of the journal, describes all bytes up to this one of the segment that
    /// ends at this offset.
    pub(crate) fn set_described(&mut self, end: Offset, bytes: u64) {
        if end > self.through.described.0 {
            self.through.described = (end, bytes);
        }
    }

    /// Returns the offset of the first batch in the segments that is not committed, where `committed` is the offset up
    /// to which all is committed.
    pub(crate) fn pending_from(&mut self, committed: Offset) -> Option<Offset> {
        while self.through.pending.pop_front_if(|pending| pending.to <= committed).is_some() {}
        self.through.pending.front().map(|pending| pending.from)
    }

    /// Returns the segments without writes that are not committed: without all after [`Segments::pending_from`].
    pub(crate) fn committed_infos(&self) -> Vec<SegmentInfo> {
        let mut infos = self.infos();
        if let Some(Pending { last, .. }) = self.through.pending.front() {
            infos.retain(|info| info.base <= last.base);
            if let Some(info) = infos.last_mut().filter(|info| info.base == last.base) {
                *info = *last;
            }
        }
        infos
    }

    /// Cuts the batches from this offset on, which are not committed and will not be. Returns `true` if there were any.
    pub(crate) fn cut_pending(&mut self, end: Offset) -> Result<bool> {
        let Some(at) = self.through.pending.iter().position(|pending| pending.from >= end) else {
            return Ok(false);
        };
        let last = self.through.pending[at].last;
        let kept = self.list.partition_point(|segment| segment.info.base <= last.base);
        if kept > 0 && self.list[kept - 1].info.base == last.base {
            let file = self.file(kept - 1)?;
            file.set_len(last.bytes).map_err(failed("cut", &self.log_path(&last)))?;
            let segment = &mut self.list[kept - 1];
            segment.info = last;
            segment.synced = segment.synced.min((last.bytes, last.end));
            segment.index = None;
            segment.last_page = None;
            self.through.described = self.through.described.min((last.end, last.bytes));
        }
        for segment in self.list.split_off(kept) {
            self.garbage.push(self.log_path(&segment.info));
            self.garbage.push(self.index_path(&segment.info));
        }
        self.through.pending.truncate(at);
        self.end_through();
        Ok(true)
    }

    /// Adopts the segments that the journal describes, before anything else is done with the partition. The bytes after
    /// `synced`, which are given with the offset there, may be in the system's memory only.
    pub(crate) fn adopt(&mut self, described: &[Described]) {
        for Described { info, synced } in described {
            let before = self.list.pop_back_if(|last| last.info.base == info.base);
            let mut segment = Segment::sealed(info);
            segment.synced = *synced;
            if let Some(before) = before {
                segment.synced = before.synced.max(*synced);
                segment.info.timestamp_ms_max = before.info.timestamp_ms_max.max(info.timestamp_ms_max);
                segment.info.appended_ms = before.info.appended_ms.max(info.appended_ms);
            }
            segment.is_suspect = segment.synced.0 < info.bytes;
            self.list.push_back(segment);
        }
        self.through = Through::after(self.infos().last());
        self.has_dir |= !described.is_empty();
    }
}

/// Segment as entries of the journal describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) info: SegmentInfo,
    /// Bytes that are known to be durable, and the offset at their end.
    pub(crate) synced: (u64, Offset),
}
