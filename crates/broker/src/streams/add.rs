//! Adding, deleting and trimming entries.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use engine::streams::{DELETED_MAX, EntryId, ID_HEADER, StreamRecord};
use engine::{DraftBatch, Error, ErrorKind, Offset, Result};
use tokio::time::Instant;

use super::read::Seen;
use super::{LockedStream, Stream};
use crate::commit::Commit;
use crate::publish::{Attempt, CommittingPublish};
use crate::wakes::Wakes;

/// Entries per node, as in Redis: approximate trimming removes whole nodes.
const NODE_ENTRIES: u64 = 100;

/// Id for a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewEntryId {
    /// An id of the current time.
    Now,
    /// An id of this time, above all others of that time.
    Of(u64),
    Is(EntryId),
}

/// Limit up to which a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimTo {
    /// Keep this number of the newest entries.
    Len(u64),
    /// Keep the entries from this id on.
    From(EntryId),
}

impl NewEntryId {
    /// Returns the id for an entry that follows an entry with id `last`.
    fn behind(self, last: EntryId, now_ms: u64) -> Result<EntryId> {
        let id = match self {
            Self::Now => last.at(now_ms),
            Self::Of(ms) if ms == last.ms => last.seq.checked_add(1).map(|seq| EntryId::new(ms, seq)),
            // 0-0 is not a valid id.
            Self::Of(ms) => Some(EntryId::new(ms, u64::from(ms == 0))).filter(|id| *id > last),
            Self::Is(id) => Some(id).filter(|id| *id > last),
        };
        let why = || {
            Error::new(ErrorKind::OutOfRange, format!("the id of an entry must be greater than the last id, {last}"))
        };
        id.ok_or_else(why)
    }
}

impl Stream {
    /// Adds an entry, as [`LockedStream::add`] does. The entry is as durable as its topic when this completes.
    pub async fn add(
        &self,
        id: NewEntryId,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> Result<EntryId> {
        let (id, saved) = self.lock().await?.add(id, key, value, headers, true).await?;
        saved.wait().await?;
        Ok(id)
    }
}

impl LockedStream {
    /// Adds an entry with a key, a value and headers, in their order. Fails with [`ErrorKind::OutOfRange`] if its id is
    /// not above all others. If other clients publish at the same time, or a subscriber or the disk has no room, it
    /// waits if `may_wait`, and fails as busy if not.
    pub async fn add(
        &mut self,
        id: NewEntryId,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
        may_wait: bool,
    ) -> Result<(EntryId, Commit)> {
        let streams = self.stream.streams.clone();
        let partition = self.stream.partition.clone();
        let deadline = Instant::now() + streams.core.settings().publish_wait;
        loop {
            let appended = partition.appended();
            self.catch_up().await?;
            match self.try_add(id, key, value, headers, may_wait).await {
                // Another door publishes there, or did and its records are not on disk yet: they must be known first.
                Err(error) if error.kind == ErrorKind::OutOfSequence => {
                    let waited = if may_wait {
                        tokio::time::timeout_at(deadline, appended).await.map_err(|elapsed| elapsed.to_string())
                    } else {
                        Err("a transaction of Redis does not wait".to_owned())
                    };
                    waited.map_err(|why| {
                        let name = &self.stream.topic.name;
                        Error::busy(format!("other clients publish to topic {name}, or have transactions open ({why})"))
                    })?;
                }
                Err(error) => return Err(error),
                Ok((id, commit)) => {
                    let topic = self.topic_id();
                    let saved = commit.map_or_else(Commit::done, |commit| {
                        Commit::later(async move {
                            let outcome = commit.finish(&streams.core).await.map(drop);
                            streams.commit_entries(topic, outcome).await
                        })
                    });
                    return Ok((id, saved));
                }
            }
        }
    }

    async fn try_add(
        &mut self,
        id: NewEntryId,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
        may_wait: bool,
    ) -> Result<(EntryId, Option<CommittingPublish>)> {
        let id = id.behind(self.last(), self.stream.streams.core.now_ms())?;
        let text = id.to_string();
        let mut all = Vec::with_capacity(headers.len() + 1);
        all.push((ID_HEADER.as_bytes(), Some(text.as_bytes())));
        all.extend_from_slice(headers);
        let time = i64::try_from(id.ms).unwrap_or(i64::MAX);
        let batch = DraftBatch::of_one(time, key, value, &all)?;
        let at = self.index().next();
        let mut wakes = Wakes::default();
        let Stream { streams, topic, partition, .. } = &self.stream;
        let attempt = streams.core.try_publish_at(topic, partition, at, batch, &mut wakes)?;
        let commit = match attempt {
            Attempt::Done(_) => None,
            Attempt::Commits(commit) => Some(commit),
            Attempt::Waits(_) if !may_wait => {
                return Err(Error::busy(format!("topic {} has no room for new records", topic.name)));
            }
            Attempt::Waits(waits) => {
                waits.finish(&self.stream.streams.core, &mut wakes).await?;
                None
            }
        };
        if self.index().is_empty() {
            self.state.nodes_from = self.index().first().before;
        }
        self.index_mut().push(at, id);
        self.state.added += 1;
        Ok((id, commit))
    }

    /// Deletes the entries that exist. Returns their number.
    pub async fn delete(&mut self, ids: &[EntryId]) -> Result<(u64, Commit)> {
        let mut offsets = Vec::new();
        let mut max_deleted = self.state.saved.max_deleted;
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let each = |id: EntryId, seen: Option<&Seen<'_>>| {
            if let Some(seen) = seen {
                offsets.push(seen.offset);
                max_deleted = max_deleted.max(id);
            }
        };
        self.find(&ids, each).await?;
        if offsets.is_empty() {
            return Ok((0, self.append(Vec::new())?));
        }
        if self.state.deleted.len() + offsets.len() > DELETED_MAX {
            return Err(Error::busy(format!(
                "{DELETED_MAX} entries were deleted while older entries exist, which is the limit: trim the stream \
                 first"
            )));
        }
        self.stream.cell.deletions.fetch_add(1, Ordering::Relaxed);
        self.state.saved.max_deleted = max_deleted;
        self.state.deleted.extend(&offsets);
        let topic = self.stream.topic.id;
        let records = offsets.iter().map(|offset| StreamRecord::Deleted { topic, offset: *offset, is_deleted: true });
        let saved = self.save(records.collect::<Vec<_>>())?;
        self.drop_deleted().await?;
        Ok((offsets.len() as u64, saved))
    }

    /// Removes deleted entries at the start of the stream from the log.
    async fn drop_deleted(&mut self) -> Result<()> {
        let mut first = None;
        let mut is_any_gone = false;
        let mut prev = self.index().first().prev;
        let each = |seen: &Seen<'_>| {
            if !seen.is_deleted {
                first = Some((seen.offset, seen.prev));
                return Ok(ControlFlow::Break(()));
            }
            is_any_gone = true;
            prev = seen.id;
            Ok(ControlFlow::Continue(()))
        };
        self.scan(self.index().first(), each).await?;
        if !is_any_gone {
            return Ok(());
        }
        let gone_before = |deleted: &std::collections::BTreeSet<Offset>, offset| deleted.range(..offset).count() as u64;
        let (start, prev) = match first {
            Some(first) => first,
            None => self.end_behind(prev),
        };
        let gone = gone_before(&self.state.deleted, start);
        self.start_at(start, gone, prev).await
    }

    /// Returns the end of the readable log, for a start after an entry with the id `read`: entries just added may not
    /// be on disk yet. An entry after the whole stream gets an id above all earlier ids, and above the id set as the
    /// last.
    fn end_behind(&self, read: EntryId) -> (Offset, EntryId) {
        let next = self.index().next();
        let end = self.stream.partition.extent().stable_end.min(next);
        (end, if end == next { self.last() } else { read })
    }

    async fn start_at(&mut self, start: Offset, gone: u64, prev: EntryId) -> Result<()> {
        let name = self.stream.topic.name.clone();
        let id = self.stream.topic.id;
        let (before, freed, deleted) = self.stream.partition.delete_records(start)?;
        debug_assert_eq!(before, start, "{name}");
        self.stream.streams.core.log_budget().release(freed);
        self.index_mut().begin_at(start, gone, prev);
        let forgotten = self.state.split_deleted(id, start);
        deleted.wait().await?;
        // The deletion of removed entries need not be recorded any more.
        drop(self.append(forgotten)?);
        Ok(())
    }

    /// Removes the oldest entries beyond the limit `to`: at most `limit`, and, if `is_rough`, only whole nodes of
    /// `NODE_ENTRIES`. Returns their number.
    pub async fn trim(&mut self, to: TrimTo, is_rough: bool, limit: u64) -> Result<u64> {
        let excess = match to {
            TrimTo::Len(len) => self.len().saturating_sub(len),
            TrimTo::From(id) => self.count_before(id).await?,
        };
        let excess = excess.min(limit);
        let excess = if is_rough { self.whole_nodes(excess) } else { excess };
        if excess == 0 {
            return Ok(0);
        }
        // Find the new first entry, and the number of entries before it, including deleted ones.
        let (mark, mut gone) = self.mark_after_shown(excess);
        let mut before = mark.before - self.index().first().before;
        let mut first = None;
        // Other clients may have added entries that are not on disk yet: those are after all removed entries.
        let mut last = mark.prev;
        let each = |seen: &Seen<'_>| {
            if gone == excess && !seen.is_deleted {
                first = Some((seen.offset, seen.prev, before));
                return Ok(ControlFlow::Break(()));
            }
            gone += u64::from(!seen.is_deleted);
            before += 1;
            last = seen.id;
            Ok(ControlFlow::Continue(()))
        };
        self.scan(mark, each).await?;
        let is_all = first.is_none();
        let (start, prev, before) = first.unwrap_or_else(|| {
            let (start, prev) = self.end_behind(last);
            (start, prev, before)
        });
        // The last id cannot be derived from the remaining log then.
        let saved = if is_all { Some(self.save([])?) } else { None };
        self.start_at(start, before, prev).await?;
        if let Some(saved) = saved {
            saved.wait().await?;
        }
        Ok(gone)
    }

    /// Returns how many of the first `entries` entries are in nodes without any others.
    fn whole_nodes(&self, entries: u64) -> u64 {
        if entries == self.len() {
            return entries;
        }
        let into_first = (self.index().first().before - self.state.nodes_from) % NODE_ENTRIES;
        entries.saturating_sub((into_first + entries) % NODE_ENTRIES)
    }

    /// Returns the last mark with at most `entries` visible entries before it, and the number of these.
    fn mark_after_shown(&self, entries: u64) -> (engine::streams::Mark, u64) {
        let first = self.index().first();
        let mut mark = self.index().mark_after(entries);
        // Deleted entries before the mark reduce the number: it never exceeds `entries`.
        let deleted = self.state.deleted.range(..mark.offset).count() as u64;
        if mark.before < first.before {
            mark = first;
        }
        (mark, mark.before - first.before - deleted)
    }

    async fn count_before(&self, id: EntryId) -> Result<u64> {
        let mark = self.index().mark_before(id);
        let deleted = self.state.deleted.range(..mark.offset).count() as u64;
        let mut count = mark.before - self.index().first().before - deleted;
        let each = |seen: &Seen<'_>| {
            if seen.id >= id {
                return Ok(ControlFlow::Break(()));
            }
            count += u64::from(!seen.is_deleted);
            Ok(ControlFlow::Continue(()))
        };
        self.scan(mark, each).await?;
        Ok(count)
    }

    /// Returns the id of the newest entry in the log. It may have been deleted.
    pub fn newest(&self) -> EntryId {
        self.index().newest()
    }

    /// Sets the id above which all later entries will be; fails with [`ErrorKind::OutOfRange`] if an entry has a larger
    /// one. If given, also sets the number of entries ever added, and the largest id of the deleted entries.
    pub fn set_last(&mut self, last: EntryId, added: Option<u64>, max_deleted: Option<EntryId>) -> Result<Commit> {
        let newest = self.newest();
        if last < newest {
            // Entries that were deleted at the end still have their ids in the log.
            let message = format!("the id is below {newest}, the id of an existing entry");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        self.index_mut().set_last(last);
        let state = &mut *self.state;
        state.added = added.unwrap_or(state.added);
        state.saved.max_deleted = max_deleted.unwrap_or(state.saved.max_deleted);
        self.save([])
    }
}
