//! Reading entries by their ids, and bringing the index up to the end of the log.

use std::ops::ControlFlow;

use engine::producers::AbortedIndex;
use engine::streams::{Entry, EntryId, Extent, Index, Mark};
use engine::{Error, ErrorKind, Offset, RecordBatch, RecordView, Records, Result, Storage};

use super::LockedStream;

/// Minimum and maximum bytes of the log that are read at a time: a search starts small, as most requests need few
/// entries.
const READ_BYTES_MIN: usize = 16 << 10;
const READ_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of the keys, values and headers of the entries in one response, unless the first entry alone is
/// larger.
const ENTRIES_BYTES_MAX: usize = 64 << 20;
/// Maximum attempts to read a log whose start moves concurrently.
const TRIES: usize = 8;

/// An entry during a scan.
pub(super) struct Seen<'a> {
    pub id: EntryId,
    /// Id of the previous entry.
    pub prev: EntryId,
    pub offset: Offset,
    pub is_deleted: bool,
    records: &'a Records,
    view: &'a RecordView<'a>,
}

impl Seen<'_> {
    pub(super) fn own(&self) -> Entry {
        Entry { id: self.id, record: self.records.own(self.view) }
    }
}

/// Entries for one response.
#[derive(Default)]
struct Collected {
    entries: Vec<Entry>,
    bytes: usize,
}

/// Returns the bytes of the key, the value and the headers of an entry.
pub(super) fn bytes_of(entry: &Entry) -> usize {
    let part = |part: &Option<bytes::Bytes>| part.as_ref().map_or(0, bytes::Bytes::len);
    let record = &entry.record;
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + part(value)).sum();
    part(&record.key) + part(&record.value) + headers
}

impl Collected {
    fn push(&mut self, entry: Entry) -> Result<()> {
        self.bytes += bytes_of(&entry);
        if self.bytes > ENTRIES_BYTES_MAX && !self.entries.is_empty() {
            return Err(Error::too_large(format!(
                "the entries have more than {ENTRIES_BYTES_MAX} bytes together: request fewer at a time"
            )));
        }
        self.entries.push(entry);
        Ok(())
    }
}

impl LockedStream {
    /// Adds the entries to the index that were published since the stream was last locked.
    pub async fn catch_up(&mut self) -> Result<()> {
        if self.state.index.is_none() {
            self.begin();
        }
        for _ in 0..TRIES {
            let extent = self.stream.partition.extent();
            if extent.start > self.index().start() {
                match self.follow_start(extent.start).await {
                    Err(error) if error.kind == ErrorKind::OutOfRange => continue,
                    done => done?,
                }
            }
            match self.count_new(extent.stable_end).await {
                Err(error) if error.kind == ErrorKind::OutOfRange => {}
                done => return done,
            }
        }
        Err(Error::busy(format!("the start of topic {} moved during the read: try again", self.stream.topic.name)))
    }

    pub(super) fn begin(&mut self) {
        let start = self.stream.partition.extent().start;
        let state = &mut *self.state;
        let saved = state.saved;
        let before = if saved.start <= start { saved.before_start } else { EntryId::ZERO };
        let prev = if saved.at <= start { before.max(saved.last) } else { before };
        // Before the stream was first used, one entry is assumed for each removed offset.
        state.added = saved.added + start.saturating_sub(saved.at);
        let index = Index::new(start, prev);
        state.index = Some(index);
        state.nodes_from = 0;
        self.forget_deleted(start);
    }

    /// Forgets deleted entries before the start, also for later restarts.
    fn forget_deleted(&mut self, start: Offset) {
        let forgotten = self.state.split_deleted(self.stream.topic.id, start);
        // A start in SQLite becomes durable separately: deleted entries before it would exist again after a crash.
        if self.stream.topic.settings.storage == Storage::Sqlite {
            return;
        }
        // If this fails for lack of room, they are forgotten after the next restart.
        if let Err(error) = self.append(forgotten) {
            tracing::debug!(
                topic = %self.stream.topic.name,
                %error,
                "cannot delete the records of deleted entries yet"
            );
        }
    }

    async fn count_new(&mut self, end: Offset) -> Result<()> {
        let mut bytes = READ_BYTES_MIN;
        while self.index().next() < end {
            let from = self.index().next();
            let (extent, batches, aborted) = self.stream.partition.read_committed(from, bytes).await?;
            let aborted = AbortedIndex::new(aborted);
            let next = next_of(&batches, extent.stable_end);
            let saved = self.state.saved;
            let state = &mut *self.state;
            let index = state.index.as_mut().expect("invariant: it was begun");
            let mut added = 0;
            let each = |_: &Records, view: &RecordView<'_>| {
                if (index.next()..=view.offset).contains(&saved.at) {
                    index.set_last(saved.last);
                }
                added += u64::from(view.offset >= saved.at);
                index.push(view.offset, index.last().of_record(view));
                ControlFlow::Continue(())
            };
            let _ = walk(&batches, &aborted, from, each);
            if (index.next()..=next).contains(&saved.at) {
                index.set_last(saved.last);
            }
            index.reach(next);
            state.added += added;
            if next <= from {
                break;
            }
            bytes = READ_BYTES_MAX;
        }
        Ok(())
    }

    /// Moves the start of the index after the oldest records were removed from the log.
    async fn follow_start(&mut self, start: Offset) -> Result<()> {
        let index = self.index();
        let behind = index.mark_from(start);
        let until = behind.map_or(index.next(), |mark| mark.offset);
        let before = behind.map_or(index.first().before + index.len(), |mark| mark.before);
        let first = index.first();
        let prev = if start >= index.next() { index.last() } else { self.mark_at(start).prev };
        let mut left = 0;
        let mut read_to = start;
        let mut each = |offset| {
            left += u64::from(offset < until);
            ControlFlow::Continue(())
        };
        let mut bytes = READ_BYTES_MIN;
        while read_to < until {
            let (extent, batches, aborted) = self.stream.partition.read_committed(read_to, bytes).await?;
            let next = next_of(&batches, extent.stable_end);
            let _ = walk(&batches, &AbortedIndex::new(aborted), read_to, |_, view| each(view.offset));
            if next <= read_to {
                break;
            }
            read_to = next;
            bytes = READ_BYTES_MAX;
        }
        // Entries that are not readable yet were added here, one for each offset.
        left += until.saturating_sub(read_to);
        let gone = before.saturating_sub(left).saturating_sub(first.before);
        self.index_mut().begin_at(start, gone, prev);
        self.forget_deleted(start);
        Ok(())
    }

    fn mark_at(&self, offset: Offset) -> Mark {
        let index = self.index();
        match index.mark_from(offset) {
            Some(mark) if mark.offset == offset => mark,
            Some(mark) => index.mark_behind(mark).unwrap_or(index.first()),
            None => index.mark_after(u64::MAX - index.first().before),
        }
    }

    /// Calls `each` with the entries from a mark on, in order and including deleted ones, until it breaks.
    pub(super) async fn scan(
        &self,
        mark: Mark,
        mut each: impl FnMut(&Seen<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let end = self.index().next();
        let saved = self.state.saved;
        let deleted = &self.state.deleted;
        let mut from = mark.offset;
        let mut at = mark.offset;
        let mut prev = mark.prev;
        let mut bytes = READ_BYTES_MIN;
        let mut failed = None;
        while from < end {
            let extent = self.stream.partition.extent();
            // Entries that were removed in the meantime are skipped.
            from = from.max(extent.start);
            if from >= extent.stable_end.min(end) {
                break;
            }
            let read = self.stream.partition.read_committed(from, bytes).await;
            let (extent, batches, aborted) = match read {
                Err(error) if error.kind == ErrorKind::OutOfRange => continue,
                read => read?,
            };
            let flow = walk(&batches, &AbortedIndex::new(aborted), from, |records, view| {
                if view.offset >= end {
                    return ControlFlow::Break(());
                }
                if (at..=view.offset).contains(&saved.at) {
                    prev = saved.last;
                }
                let id = prev.of_record(view);
                let is_deleted = deleted.contains(&view.offset);
                let seen = Seen { id, prev, offset: view.offset, is_deleted, records, view };
                prev = id;
                at = view.offset + 1;
                each(&seen).unwrap_or_else(|error| {
                    failed = Some(error);
                    ControlFlow::Break(())
                })
            });
            if let Some(error) = failed {
                return Err(error);
            }
            let next = next_of(&batches, extent.stable_end);
            if flow.is_break() || next <= from {
                break;
            }
            from = next;
            bytes = (bytes * 4).min(READ_BYTES_MAX);
        }
        Ok(())
    }

    /// Returns the entries from one id to another, in order.
    pub async fn range(&self, from: EntryId, to: EntryId, count_max: usize) -> Result<Vec<Entry>> {
        let mut found = Collected::default();
        if from > to || count_max == 0 || from > self.last() {
            return Ok(found.entries);
        }
        let each = |seen: &Seen<'_>| {
            if seen.id > to {
                return Ok(ControlFlow::Break(()));
            }
            if seen.id >= from && !seen.is_deleted {
                found.push(seen.own())?;
            }
            let is_enough = found.entries.len() >= count_max;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        self.scan(self.index().mark_before(from), each).await?;
        Ok(found.entries)
    }

    /// Returns the entries from one id to another, in reverse order.
    pub async fn range_back(&self, from: EntryId, to: EntryId, count_max: usize) -> Result<Vec<Entry>> {
        let mut found = Collected::default();
        if from > to || count_max == 0 {
            return Ok(found.entries);
        }
        let first = self.index().mark_before(from);
        let mut mark = match to.next() {
            Some(behind) => self.index().mark_before(behind),
            None => self.index().mark_before(EntryId::MAX),
        };
        let mut until = Offset::MAX;
        loop {
            let mut some = Vec::new();
            let each = |seen: &Seen<'_>| {
                if seen.offset >= until || seen.id > to {
                    return Ok(ControlFlow::Break(()));
                }
                if seen.id >= from && !seen.is_deleted {
                    some.push(seen.own());
                }
                Ok(ControlFlow::Continue(()))
            };
            self.scan(mark, each).await?;
            for entry in some.into_iter().rev().take(count_max - found.entries.len()) {
                found.push(entry)?;
            }
            until = mark.offset;
            match self.index().mark_behind(mark) {
                Some(behind) if found.entries.len() < count_max && mark.offset > first.offset => mark = behind,
                _ => return Ok(found.entries),
            }
        }
    }

    /// Calls `each` with each of these ids, which are in order, and its entry, if it exists. Neighbouring entries are
    /// read together.
    pub(super) async fn find(&self, ids: &[EntryId], mut each: impl FnMut(EntryId, Option<&Seen<'_>>)) -> Result<()> {
        let mut left = ids;
        while let Some(first) = left.first() {
            let mut is_end = true;
            let visit = |seen: &Seen<'_>| {
                while let Some((id, rest)) = left.split_first().filter(|(id, _)| **id <= seen.id) {
                    each(*id, Some(seen).filter(|seen| seen.id == *id && !seen.is_deleted));
                    left = rest;
                }
                // Entries between two marks are read together. Those up to a mark far ahead are not read at all.
                let is_near = |next: &EntryId| self.index().mark_before(*next).offset <= seen.offset;
                is_end = left.first().is_some_and(is_near);
                Ok(if is_end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            };
            self.scan(self.index().mark_before(*first), visit).await?;
            if is_end {
                left.iter().for_each(|id| each(*id, None));
                break;
            }
        }
        Ok(())
    }

    /// Returns the entries with these ids, which are in order; `None` for those that do not exist.
    pub async fn entries(&self, ids: &[EntryId]) -> Result<Vec<Option<Entry>>> {
        let mut found = Vec::with_capacity(ids.len());
        self.find(ids, |_, seen| found.push(seen.map(Seen::own))).await?;
        Ok(found)
    }

    pub async fn extent(&self) -> Result<Extent> {
        let first = self.range(EntryId::ZERO, EntryId::MAX, 1).await?.pop();
        Ok(Extent {
            len: self.len(),
            added: self.state.added,
            first: first.map_or(EntryId::ZERO, |entry| entry.id),
            last: self.last(),
            max_deleted: self.state.saved.max_deleted,
        })
    }
}

/// Returns the offset after these batches.
fn next_of(batches: &[RecordBatch], end: Offset) -> Offset {
    batches.last().map_or(end, RecordBatch::next_offset)
}

/// Calls `each` with the records of batches that are entries, from an offset on. Unreadable records are not entries.
fn walk(
    batches: &[RecordBatch],
    aborted: &AbortedIndex,
    from: Offset,
    mut each: impl FnMut(&Records, &RecordView<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    for batch in batches.iter().filter(|batch| !batch.is_control() && !aborted.has(batch)) {
        let Ok(records) = batch.records_from(from) else {
            continue;
        };
        for view in records.iter().map_while(Result::ok) {
            each(&records, &view)?;
        }
    }
    ControlFlow::Continue(())
}
