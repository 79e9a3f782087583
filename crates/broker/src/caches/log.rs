//! Log of all durable caches: one topic with one partition. Changes are appended under the locks of the stripes that
//! they changed, so the log has the changes of each key in their order. A caller that makes or reads a change waits
//! until the change is durable.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::cache::Stripe;
use engine::cache::effects::Effects;
use engine::cache::record::{CacheDefinition, CacheNumber, CacheRecord, SWAP_FORMAT, StepPart};
use engine::{BatchBuilder, Error, ErrorKind, Offset, Result};
use parking_lot::Mutex;

use super::notes::Note;
use crate::commit::Commit;
use crate::core::Core;
use crate::partition::{AppendOptions, PartitionCell};
use crate::topic::Topic;
use crate::wakes::Wakes;

/// Maximum number of bytes of effects in one batch. A larger step is written in parts.
const PART_BYTES: usize = 4 << 20;
/// Bytes that a record takes in addition to its effects.
pub(super) const RECORD_BYTES: u64 = 96;
/// Number of changes that a stripe tracks before it checks which of them are durable by now.
const UNSETTLED_LOOK: usize = 64;
/// Offset of a change that was not written, and never will be.
const LOST: Offset = Offset::MAX;

pub(super) struct CacheLog {
    core: Arc<Core>,
    pub(super) topic: Arc<Topic>,
    cell: Arc<PartitionCell>,
    /// Offset before which all records are durable, as of the last check.
    settled: AtomicU64,
    /// Offset after the last record.
    end: AtomicU64,
    /// Bytes that the records of the log take.
    pub(super) bytes: AtomicU64,
    /// Bytes that were left of the log after the last dump.
    pub(super) kept: AtomicU64,
    /// Held while a step is written in parts, so that no dump begins in the middle of it.
    parts: Mutex<u64>,
    /// Error after which no more changes are accepted.
    broken: OnceLock<Error>,
    pub(super) is_dumping: AtomicBool,
    pub(super) dumps: AtomicU64,
    /// Number of exchanges of the contents of two caches. It is changed while all their stripes are locked.
    pub(super) swaps: AtomicU64,
}

impl CacheLog {
    /// Creates the log. The numbers of all earlier steps are at most `step`.
    pub(super) fn new(core: Arc<Core>, topic: Arc<Topic>, step: u64) -> Result<Self> {
        let cell = topic.partition(0)?;
        let end = cell.extent().end;
        Ok(Self {
            core,
            topic,
            cell,
            settled: AtomicU64::new(end),
            end: AtomicU64::new(end),
            bytes: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            parts: Mutex::new(step),
            broken: OnceLock::new(),
            is_dumping: AtomicBool::new(false),
            dumps: AtomicU64::new(0),
            swaps: AtomicU64::new(0),
        })
    }

    /// Gives up the log: nothing is written to it any more. A change that was admitted before may still be written
    /// until the locks of all stripes have been taken once.
    pub(super) fn close(&self) {
        let message = "the durable caches are being restored: try again";
        self.broken.get_or_init(|| Error::busy(message));
    }

    /// Fails if nothing can be written any more.
    pub(super) fn check(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |broken| Err(broken.clone()))
    }

    /// Refuses a change that could not be logged now. It is called before the change, since no change that is not in
    /// the log may be visible. An admitted change is accepted, whatever happens in between.
    pub(super) fn admit(&self) -> Result<()> {
        self.check()?;
        self.cell.check_room()?;
        match self.cell.admit() {
            // Pending writes are no reason to refuse: a caller waits for them before its next change.
            Err(full) if full.kind == ErrorKind::DiskFull => Err(full),
            _ => Ok(()),
        }
    }

    /// Appends the changes of some caches as one step. Returns the offset of its last record, or [`LOST`] if it could
    /// not be written.
    pub(super) fn append(&self, effects: &[(CacheNumber, &[u8])]) -> Offset {
        let bytes: usize = effects.iter().map(|(_, effects)| effects.len()).sum();
        let appended = match bytes {
            0..=PART_BYTES => self.append_whole(effects),
            _ => self.append_parts(effects),
        };
        self.appended(appended)
    }

    /// Refuses an exchange of the contents of two caches, if a node of the cluster could not read it in the log.
    pub(super) fn check_swap(&self) -> Result<()> {
        let Some(leadership) = self.core.leadership() else {
            return Ok(());
        };
        let format = leadership.nodes.status()?.format;
        if format >= SWAP_FORMAT {
            return Ok(());
        }
        let message = format!(
            "the log of the cluster has format {format}, and exchanging the entries of durable caches needs \
             {SWAP_FORMAT}: upgrade all nodes first"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Records that a cache exists with this definition, or that it was deleted.
    pub(super) fn append_cache(&self, cache: CacheNumber, definition: Option<&CacheDefinition>) -> Offset {
        let key = CacheRecord::Cache { cache, definition: None }.key();
        let value = definition.map(CacheRecord::value);
        let mut batch = BatchBuilder::new();
        let pushed = batch.push(self.core.now_ms() as i64, Some(&key), value.as_deref(), &[]);
        self.appended(pushed.and_then(|()| self.place(batch)))
    }

    fn appended(&self, appended: Result<Offset>) -> Offset {
        appended.unwrap_or_else(|error| {
            if self.broken.set(error.clone()).is_ok() {
                tracing::error!(%error, "durable caches accept no more changes");
            }
            LOST
        })
    }

    fn append_whole(&self, effects: &[(CacheNumber, &[u8])]) -> Result<Offset> {
        let now_ms = self.core.now_ms() as i64;
        let mut batch = BatchBuilder::new();
        for (cache, effects) in effects {
            let key = CacheRecord::Step { cache: *cache, part: None, effects: &[] }.key();
            batch.push(now_ms, Some(&key), Some(effects), &[])?;
        }
        self.place(batch)
    }

    fn append_parts(&self, effects: &[(CacheNumber, &[u8])]) -> Result<Offset> {
        let now_ms = self.core.now_ms() as i64;
        let chunks =
            effects.iter().flat_map(|(cache, effects)| effects.chunks(PART_BYTES).map(move |chunk| (*cache, chunk)));
        let mut parts = chunks.peekable();
        let mut step = self.parts.lock();
        *step += 1;
        let mut last = Err(Error::invalid("there is nothing to write"));
        while let Some((cache, chunk)) = parts.next() {
            let part = Some(StepPart { step: *step, is_last: parts.peek().is_none() });
            let mut batch = BatchBuilder::new();
            batch.push(now_ms, Some(&CacheRecord::Step { cache, part, effects: &[] }.key()), Some(chunk), &[])?;
            last = Ok(self.place(batch)?);
        }
        last
    }

    fn place(&self, mut batch: BatchBuilder) -> Result<Offset> {
        self.check()?;
        let batch = batch.finish().ok_or_else(|| Error::invalid("there is nothing to write"))?;
        let bytes = batch.len() as u64;
        let options = AppendOptions::own_admitted(&self.topic.settings, self.core.now_ms());
        let last = self.core.append_own(&self.cell, &options, batch, &mut Wakes::default())?.position;
        self.end.fetch_max(last + 1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes + RECORD_BYTES, Ordering::Relaxed);
        Ok(last)
    }

    /// Returns the commit of a record.
    pub(super) fn commit_of(&self, offset: Offset) -> Commit {
        if offset < self.settled.load(Ordering::Acquire) {
            return Commit::done();
        }
        let until = offset.saturating_add(1);
        let commit = match offset {
            LOST => self.check().map(|()| Commit::done()),
            _ => self.cell.settled_until(until),
        };
        let commit = commit.unwrap_or_else(Commit::failed);
        if commit.is_done() {
            self.settled.fetch_max(until, Ordering::Release);
        }
        commit
    }

    /// Returns the commit of all records written so far.
    pub(super) fn settled(&self) -> Commit {
        match self.broken.get() {
            Some(_) => self.commit_of(LOST),
            None => {
                self.end.load(Ordering::Acquire).checked_sub(1).map_or_else(Commit::done, |last| self.commit_of(last))
            }
        }
    }

    /// Returns `true` if so much waits for the disk that a client that changes more has to wait for it first.
    pub(super) fn is_late(&self) -> bool {
        self.cell.admit().is_err()
    }

    /// Returns the offset at which a dump that begins now starts, and the bytes of the log before it. The dump covers
    /// all records before that offset.
    pub(super) fn begin_dump(&self) -> (Offset, u64) {
        let _no_parts = self.parts.lock();
        // In this order, records that are appended in between are counted as if they remained.
        let bytes = self.bytes.load(Ordering::Acquire);
        (self.end.load(Ordering::Acquire), bytes)
    }

    /// Deletes the records before an offset, which the dump has covered and made obsolete. The dump has to be durable.
    pub(super) async fn cut(&self, before: Offset, bytes: u64) -> Result<()> {
        let (_, _, deleted) = self.cell.delete_records(before)?;
        deleted.wait().await?;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.dumps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Checks the log, and returns the offset before which all records are durable.
    fn look(&self) -> Offset {
        self.settled.fetch_max(self.cell.extent().end, Ordering::AcqRel);
        self.settled.load(Ordering::Acquire)
    }
}

/// A stripe, with its changes that are not durable yet.
pub(super) struct Kept {
    stripe: Stripe,
    /// Number of the entries as a whole. It moves with them when caches exchange their contents, and is the number of
    /// the cache that had them first.
    pub(super) contents: u64,
    /// Records that were not durable at the last check, in their order, and the marks of their keys.
    unsettled: VecDeque<(Offset, u32)>,
    /// Offset of the last record that concerns all keys.
    unsettled_all: Option<Offset>,
    /// Notes that no step or call has passed on yet.
    pub(super) notes: Vec<Note>,
}

impl Kept {
    pub(super) fn new(stripe: Stripe, contents: u64) -> Self {
        Self { stripe, contents, unsettled: VecDeque::new(), unsettled_all: None, notes: Vec::new() }
    }

    /// Exchanges the contents with those of the stripe of another cache with the same number.
    pub(super) fn swap(&mut self, other: &mut Self, version: u64, now_ms: u64) {
        self.stripe.swap(&mut other.stripe, version, now_ms);
        std::mem::swap(&mut self.contents, &mut other.contents);
    }

    /// Logs the changes since the last call.
    pub(super) fn write(&mut self, log: &CacheLog, cache: CacheNumber) {
        if let Some(Effects { bytes, marks }) = self.stripe.take_effects() {
            let offset = log.append(&[(cache, &bytes)]);
            self.note(log, offset, &marks);
        }
    }

    /// Notes that a record contains changes of these keys.
    pub(super) fn note(&mut self, log: &CacheLog, offset: Offset, marks: &[u32]) {
        if offset == LOST {
            return self.note_all(offset);
        }
        self.unsettled.extend(marks.iter().map(|mark| (offset, *mark)));
        if self.unsettled.len() > UNSETTLED_LOOK {
            self.forget_settled(log.look());
        }
    }

    pub(super) fn note_all(&mut self, offset: Offset) {
        self.unsettled_all = self.unsettled_all.max(Some(offset));
    }

    /// Returns the offset of the last record about a key that may not be durable yet; about any key if `mark` is
    /// `None`.
    pub(super) fn unsettled(&mut self, log: &CacheLog, mark: Option<u32>) -> Option<Offset> {
        if self.unsettled.is_empty() && self.unsettled_all.is_none() {
            return None;
        }
        self.forget_settled(log.settled.load(Ordering::Acquire));
        let is_marked = |of: &u32| mark.is_none_or(|mark| mark == *of);
        let of_key = self.unsettled.iter().rev().find(|(_, of)| is_marked(of)).map(|(offset, _)| *offset);
        of_key.max(self.unsettled_all)
    }

    fn forget_settled(&mut self, settled: Offset) {
        while self.unsettled.pop_front_if(|(offset, _)| *offset < settled).is_some() {}
        self.unsettled_all = self.unsettled_all.filter(|offset| *offset >= settled);
    }
}

impl Deref for Kept {
    type Target = Stripe;

    fn deref(&self) -> &Stripe {
        &self.stripe
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Stripe {
        &mut self.stripe
    }
}
