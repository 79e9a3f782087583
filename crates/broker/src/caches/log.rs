//! The log of all durable caches: one topic with one partition. What changes goes into it under the locks of the shards
//! that it changed, so it has the changes of each key in their order; who is told of them, or reads them, waits until
//! they last.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use engine::cache::Shard;
use engine::cache::effects::Effects;
use engine::cache::record::{CacheDefinition, CacheNumber, CacheRecord, StepPart};
use engine::{BatchBuilder, Error, ErrorKind, Offset, Result};
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::partition::{Commit, PartitionCell};
use crate::publish::{Wakes, committed};
use crate::timers::now_ms;
use crate::topics::Topic;

/// Effects of one batch. A step that has more comes in parts.
const PART_BYTES: usize = 4 << 20;
/// What a record takes beside its effects.
pub(super) const RECORD_BYTES: u64 = 96;
/// Changes of a shard that are kept in mind before somebody looks which of them last by now.
const UNSETTLED_LOOK: usize = 64;
/// The offset of a change that was not written, and never will be.
const LOST: Offset = Offset::MAX;

pub(super) struct CacheLog {
    broker: Weak<Broker>,
    pub(super) topic: Arc<Topic>,
    cell: Arc<PartitionCell>,
    /// All before it lasts, as far as anybody has looked.
    settled: AtomicU64,
    /// The offset after the last record.
    end: AtomicU64,
    /// What its records take.
    pub(super) bytes: AtomicU64,
    /// What was left of it when it was last cut.
    pub(super) kept: AtomicU64,
    /// Held while a step comes in parts, so that no dump begins in the middle of it.
    parts: Mutex<u64>,
    /// Why nothing is taken any more.
    broken: OnceLock<Error>,
    pub(super) is_dumping: AtomicBool,
    pub(super) dumps: AtomicU64,
}

/// What else has to be on the disk before a change is: what was done to streams, whose logs are their own.
pub(super) type Later = futures_util::future::BoxFuture<'static, Result<()>>;

/// When a change of a cache lasts, or what was read of it: at once where the cache is in memory.
#[derive(Default)]
pub struct CacheCommit {
    waiting: Option<Waiting>,
    later: Vec<Later>,
}

struct Waiting {
    commit: Result<Commit>,
    until: Offset,
    log: Arc<CacheLog>,
}

impl CacheLog {
    /// `step`: no step has this number, nor one after it.
    pub(super) fn new(broker: Weak<Broker>, topic: Arc<Topic>, step: u64) -> Result<Self> {
        let cell = topic.partition(0)?;
        let end = cell.extent().end;
        Ok(Self {
            broker,
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
        })
    }

    /// Fails where nothing can be written any more.
    pub(super) fn check(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |broken| Err(broken.clone()))
    }

    /// Refuses where a change could not be written now: before it is made, since none that is not in the log may be
    /// seen. What is admitted is taken, whatever comes in between.
    pub(super) fn admit(&self) -> Result<()> {
        self.check()?;
        self.cell.check_room()?;
        match self.cell.admit() {
            // How much waits is no reason: whoever changed something waits for that before the next change.
            Err(full) if full.kind == ErrorKind::DiskFull => Err(full),
            _ => Ok(()),
        }
    }

    /// Gives what changed in some caches its place, as one step. The offset of its last record.
    pub(super) fn append(&self, effects: &[(CacheNumber, &[u8])]) -> Offset {
        let bytes: usize = effects.iter().map(|(_, effects)| effects.len()).sum();
        let appended = match bytes {
            0..=PART_BYTES => self.append_whole(effects),
            _ => self.append_parts(effects),
        };
        self.appended(appended)
    }

    /// There is such a cache, or none any more.
    pub(super) fn append_cache(&self, cache: CacheNumber, definition: Option<&CacheDefinition>) -> Offset {
        let key = CacheRecord::Cache { cache, definition: None }.key();
        let value = definition.map(CacheRecord::value);
        let mut batch = BatchBuilder::new();
        let pushed = batch.push(now_ms() as i64, Some(&key), value.as_deref(), &[]);
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
        let (now_ms, mut batch) = (now_ms() as i64, BatchBuilder::new());
        for (cache, effects) in effects {
            let key = CacheRecord::Step { cache: *cache, part: None, effects: &[] }.key();
            batch.push(now_ms, Some(&key), Some(effects), &[])?;
        }
        self.place(batch)
    }

    fn append_parts(&self, effects: &[(CacheNumber, &[u8])]) -> Result<Offset> {
        let now_ms = now_ms() as i64;
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
        let batch = batch.finish().ok_or_else(|| Error::invalid("there is nothing to write"))?;
        let gone = || Error::new(ErrorKind::ShuttingDown, "the broker has stopped");
        let broker = self.broker.upgrade().ok_or_else(gone)?;
        let (bytes, count) = (batch.len() as u64, u64::from(batch.count()));
        let end = broker.place_admitted(&self.topic, 0, batch, &mut Wakes::default())?.base_offset + count;
        self.end.fetch_max(end, Ordering::Relaxed);
        self.bytes.fetch_add(bytes + RECORD_BYTES, Ordering::Relaxed);
        Ok(end - 1)
    }

    /// When a record lasts.
    pub(super) fn commit_of(self: &Arc<Self>, offset: Offset) -> CacheCommit {
        if offset < self.settled.load(Ordering::Acquire) {
            return CacheCommit::default();
        }
        let until = offset.saturating_add(1);
        let commit = match offset {
            LOST => self.check().map(|()| Commit::Reached),
            _ => self.cell.settled_until(until),
        };
        if matches!(commit, Ok(Commit::Reached | Commit::InMemory)) {
            self.settled.fetch_max(until, Ordering::Release);
            return CacheCommit::default();
        }
        CacheCommit { waiting: Some(Waiting { commit, until, log: self.clone() }), later: Vec::new() }
    }

    /// When all lasts that was written so far.
    pub(super) fn settled(self: &Arc<Self>) -> CacheCommit {
        match self.broken.get() {
            Some(_) => self.commit_of(LOST),
            None => self
                .end
                .load(Ordering::Acquire)
                .checked_sub(1)
                .map_or_else(CacheCommit::default, |last| self.commit_of(last)),
        }
    }

    /// Where a dump begins that starts now: what is before it happened to what will be dumped. And what it takes.
    pub(super) fn begin_dump(&self) -> (Offset, u64) {
        let _no_parts = self.parts.lock();
        // In this order: what comes in between is counted as if it stayed.
        let bytes = self.bytes.load(Ordering::Acquire);
        (self.end.load(Ordering::Acquire), bytes)
    }

    /// Lets go of what is before an offset, all of which was dumped and lasts.
    pub(super) async fn cut(&self, before: Offset, bytes: u64) -> Result<()> {
        let (_, _, lasts) = self.cell.delete_records(before)?;
        lasts.wait().await?;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.dumps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether all before it lasts, after a look at the log.
    fn look(&self) -> Offset {
        self.settled.fetch_max(self.cell.extent().end, Ordering::AcqRel);
        self.settled.load(Ordering::Acquire)
    }
}

impl fmt::Debug for CacheCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheCommit").field(&self.waiting.as_ref().map(|waiting| waiting.until)).finish()
    }
}

impl CacheCommit {
    /// Whether [`CacheCommit::lasts`] has nothing to wait for.
    pub fn is_reached(&self) -> bool {
        self.waiting.is_none() && self.later.is_empty()
    }

    /// Whether so much waits for the disk that whoever changes more has to wait for this first.
    pub fn is_late(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.log.cell.admit().is_err())
    }

    /// When both last. There is one log of all caches, so that is when the later one does.
    pub fn and(self, other: Self) -> Self {
        let until = |commit: &Self| commit.waiting.as_ref().map(|waiting| waiting.until);
        let (first, mut last) = if until(&self) >= until(&other) { (other, self) } else { (self, other) };
        last.later.extend(first.later);
        last
    }

    /// The same, with what was done to streams.
    pub(super) fn with(mut self, later: Vec<Later>) -> Self {
        self.later.extend(later);
        self
    }

    /// Returns when it lasts.
    pub async fn lasts(self) -> Result<()> {
        if let Some(Waiting { commit, until, log }) = self.waiting {
            committed(commit?).await?;
            log.settled.fetch_max(until, Ordering::Release);
        }
        for later in self.later {
            later.await?;
        }
        Ok(())
    }
}

/// A shard, and which of its changes do not last yet.
pub(super) struct Kept {
    shard: Shard,
    /// Records that did not last when somebody last looked, in their order, and the marks of their keys.
    unsettled: VecDeque<(Offset, u32)>,
    /// The last record about all keys.
    unsettled_all: Option<Offset>,
}

impl Kept {
    pub(super) fn new(shard: Shard) -> Self {
        Self { shard, unsettled: VecDeque::new(), unsettled_all: None }
    }

    /// Writes down what changed since the last time.
    pub(super) fn write(&mut self, log: &CacheLog, cache: CacheNumber) {
        if let Some(Effects { bytes, marks }) = self.shard.take_effects() {
            let offset = log.append(&[(cache, &bytes)]);
            self.note(log, offset, &marks);
        }
    }

    /// Changes of these keys are in this record.
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

    /// The last record about a key that may not last yet; about any key where none is named.
    pub(super) fn unsettled(&mut self, log: &CacheLog, mark: Option<u32>) -> Option<Offset> {
        if self.unsettled.is_empty() && self.unsettled_all.is_none() {
            return None;
        }
        self.forget_settled(log.settled.load(Ordering::Acquire));
        let is_it = |of: &u32| mark.is_none_or(|mark| mark == *of);
        let of_key = self.unsettled.iter().rev().find(|(_, of)| is_it(of)).map(|(offset, _)| *offset);
        of_key.max(self.unsettled_all)
    }

    fn forget_settled(&mut self, settled: Offset) {
        while self.unsettled.pop_front_if(|(offset, _)| *offset < settled).is_some() {}
        self.unsettled_all = self.unsettled_all.filter(|offset| *offset >= settled);
    }
}

impl Deref for Kept {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }
}
