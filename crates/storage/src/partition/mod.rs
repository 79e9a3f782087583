//! One partition on disk: its newest batches in memory, all others in segments, and what is safe of them.
//!
//! ```text
//! start ..................... flushed ........ committed ........ end
//!        in segments                   in memory (the tail)
//! ```
//!
//! A batch goes into the tail and into the journal. When the journal has synced it, it is committed: readers see it.
//! Later it is written to a segment, many at once, and may leave the tail.

mod compact;
pub(crate) mod index;
pub mod scan;
pub(crate) mod segments;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::producers::{Aborted, AbortedIndex, Producers};
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use crate::durable::{ColdRead, DiskExtent, DurableLog, Read};
use crate::journal::{Entry, EntryKind, Journal, Owner};
use crate::store::Shared;
pub use compact::{Compacted, CompactionSettings, CompactionStats};
use compact::{Outcome, Pace, Turn};
pub use segments::SegmentInfo;
use segments::{Segments, SharedSegments, Unsynced};

/// How the error of a partition begins that cannot be served.
pub(crate) const NOT_SERVED: &str = "this partition is not served: ";
/// What is written to segments before somebody else may read or write there.
pub(crate) const FLUSH_BYTES: usize = 4 << 20;
/// What a batch in a tail costs beside its bytes.
const ENTRY_BYTES: usize = 96;
/// What leaves a tail before somebody else may append or read there.
const LET_GO_BATCHES: usize = 256;
/// What is read from the system's cache on the thread that asks: a fraction of a millisecond.
const CACHED_BYTES_MAX: usize = 1 << 20;

/// What tails may hold, all together.
#[derive(Debug, Default)]
pub(crate) struct TailBytes {
    /// In tails, and of those the ones that are committed and in no segment yet.
    pub(crate) held: AtomicU64,
    pub(crate) unflushed: AtomicU64,
}

pub struct DiskPartition {
    stream: u64,
    shared: Arc<Shared>,
    state: Mutex<State>,
    segments: SharedSegments,
    limits: SegmentLimits,
    /// Held from a look at what is not synced until that is noted: the system says once to each file that bytes could
    /// not be written, and of two who sync only one would hear it. Taken before all other locks.
    syncing: Mutex<()>,
}

/// When a segment ends, from the next write on.
#[derive(Debug, Default)]
struct SegmentLimits {
    bytes: AtomicU64,
    ms: AtomicU64,
}

/// Invariant: `start <= flushed <= committed <= end`, and the tail ends at `end` and has all from `flushed` on.
#[derive(Default)]
struct State {
    start: Offset,
    flushed: Offset,
    committed: Offset,
    end: Offset,
    tail: VecDeque<TailBatch>,
    /// Where the tail ended when [`DiskPartition::age_tail`] was called last.
    aged: Offset,
    /// What follows from all committed batches about who wrote them.
    producers: Producers,
    producers_end: Offset,
    /// The largest timestamp that was ever in the tail.
    timestamp_ms_max: Option<i64>,
    /// Of the segments, as they were last seen, and of the committed batches that are in none.
    segment_bytes: u64,
    unflushed_bytes: u64,
    /// How far it is compacted, if its topic is.
    compacted: Compacted,
    /// Why it is not served.
    refused: Option<Error>,
    /// Why it could not be written to a segment the last time: nothing more is admitted until that works, so that it
    /// does not fill the memory that all share.
    trouble: Option<Error>,
    /// Changes that a checkpoint has to keep, and those that the last one kept.
    changes: u64,
    changes_kept: u64,
    is_deleted: bool,
}

struct TailBatch {
    batch: RecordBatch,
    /// Of it and of all that came before it.
    timestamp_ms_max: i64,
}

/// What a checkpoint keeps of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionInfo {
    pub start: Offset,
    pub segments: Vec<SegmentInfo>,
    /// [`Producers`] in bytes, and the offset up to which they know the log. Empty where there are none.
    pub producers: Bytes,
    pub producers_end: Offset,
    pub compacted: Compacted,
    /// Files of entries that were put aside, by their positions: without them the partition cannot be served.
    pub salvages: Vec<u64>,
}

impl PartitionInfo {
    /// The offset after the last record in a segment.
    pub fn end(&self) -> Offset {
        self.segments.last().map_or(self.start, |segment| segment.end.max(self.start))
    }
}

/// What a checkpoint takes of a partition.
pub(crate) struct Taken {
    pub(crate) info: PartitionInfo,
    /// Directories to sync before the checkpoint may be written.
    pub(crate) dirs: Vec<PathBuf>,
    names: u64,
    changes: u64,
}

/// A read of batches that are in segments.
pub struct SegmentRead {
    partition: Arc<DiskPartition>,
    from: Offset,
    bytes_max: usize,
}

impl DiskPartition {
    pub(crate) fn open(
        shared: Arc<Shared>,
        dir: PathBuf,
        stream: u64,
        segment_bytes: u64,
        info: &PartitionInfo,
    ) -> Self {
        let end = info.end();
        let disk = shared.disk.clone();
        let (segments, mut refused) = match Segments::open(disk.clone(), dir.clone(), segment_bytes, info) {
            Ok(segments) => (segments, None),
            // It keeps its place and its files; nothing is read from them or written to them.
            Err(error) => (Segments::closed(disk, dir, segment_bytes, &info.segments), Some(refuse(&error))),
        };
        let producers = match info.producers.is_empty() {
            true => Ok(Producers::default()),
            false => Producers::decode(info.producers.clone()),
        };
        let producers = producers.unwrap_or_else(|error| {
            refused.get_or_insert(refuse(&error));
            Producers::default()
        });
        let state = State {
            start: info.start,
            flushed: end,
            committed: end,
            end,
            producers,
            producers_end: info.producers_end,
            compacted: info.compacted,
            segment_bytes: segments.bytes(),
            refused,
            ..State::default()
        };
        let (state, segments, syncing) = (Mutex::new(state), Mutex::new(segments), Mutex::default());
        let limits = SegmentLimits { bytes: segment_bytes.into(), ..SegmentLimits::default() };
        Self { stream, shared, state, segments, limits, syncing }
    }

    /// Says how many bytes a segment has, and how much newer than its first batch another may be; 0 is no limit.
    pub(crate) fn set_segment_limits(&self, bytes: u64, ms: u64) {
        self.limits.bytes.store(bytes, Ordering::Relaxed);
        self.limits.ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    /// Whether a checkpoint would let go of files.
    pub(crate) fn has_garbage(&self) -> bool {
        let segments = self.segments.lock();
        let state = self.state.lock();
        !state.is_deleted && state.refused.is_none() && segments.has_garbage(state.start.min(state.flushed))
    }

    /// Why it takes nothing more for now.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.state.lock().trouble.clone()
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.segments.lock().dir().to_owned()
    }

    /// It cannot be served. It keeps its place and its files.
    pub(crate) fn refuse(&self, error: &Error) {
        self.state.lock().refused.get_or_insert_with(|| refuse(error));
    }

    /// What was put aside when it could not be served.
    pub(crate) fn salvages(&self) -> Vec<PathBuf> {
        self.segments.lock().salvages().to_vec()
    }

    /// What was put aside is in the partition again.
    pub(crate) fn end_salvage(&self) {
        self.segments.lock().end_salvage();
        self.state.lock().changes += 1;
    }

    /// The journal has all that is not in the segments: what they have beside it goes.
    pub(crate) fn settle(&self) -> Result<()> {
        self.segments.lock().settle()
    }

    fn hold(&self, state: &mut State, batch: RecordBatch) {
        self.shared.tails.held.fetch_add(cost(&batch), Ordering::Relaxed);
        state.end = batch.next_offset();
        let timestamp_ms_max = state.timestamp_ms_max.unwrap_or(i64::MIN).max(batch.max_timestamp_ms());
        state.timestamp_ms_max = Some(timestamp_ms_max);
        state.tail.push_back(TailBatch { batch, timestamp_ms_max });
    }

    /// A batch that recovery found. One that is in a segment already makes no difference there.
    pub(crate) fn replay(&self, batch: RecordBatch) {
        let mut state = self.state.lock();
        if state.is_deleted {
            return;
        }
        state.note(&batch);
        if batch.base_offset() == state.end {
            self.shared.tails.unflushed.fetch_add(cost(&batch), Ordering::Relaxed);
            state.unflushed_bytes += batch.len() as u64;
            self.hold(&mut state, batch);
            state.committed = state.end;
            state.changes += 1;
        }
    }

    fn find_time(&self, timestamp_ms: i64) -> Result<Offset> {
        let (start, front, otherwise) = {
            let state = self.state.lock();
            self.check(&state)?;
            let front = state.tail.front().map_or(state.committed, |held| held.batch.base_offset());
            (state.start, front, state.tail_offset_for_time(timestamp_ms).unwrap_or(state.committed))
        };
        // All before the tail was in segments when the tail was looked at.
        let mut at = start;
        while at < front {
            let view = self.segments.lock().view(at, Some(timestamp_ms))?;
            let Some(mut view) = view else { break };
            let found = view.offset_for_time(timestamp_ms, at);
            self.segments.lock().keep_index(&view);
            if let Some(found) = found? {
                return Ok(found.min(otherwise).max(start));
            }
            at = view.end();
        }
        Ok(otherwise.max(start))
    }

    /// Why a file could not be read: perhaps because the partition was deleted meanwhile, and its files with it.
    fn explain(&self, error: Error) -> Error {
        if self.state.lock().is_deleted {
            return deleted();
        }
        if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Internal) {
            tracing::error!(%error, "a segment cannot be read");
        }
        error
    }

    pub(crate) fn replay_start(&self, start: Offset) {
        let mut state = self.state.lock();
        state.start = state.start.max(start.min(state.end));
        state.changes += 1;
    }

    fn check(&self, state: &State) -> Result<()> {
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        if state.is_deleted {
            return Err(deleted());
        }
        Ok(())
    }

    /// Writes what is committed and in no segment yet. Returns its bytes.
    pub(crate) fn flush(&self, bytes_max: usize, now_ms: u64) -> Result<u64> {
        let mut segments = self.segments.lock();
        let batches = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted {
                return Ok(0);
            }
            let mut bytes = 0;
            let fits = |batch: &&RecordBatch| {
                let fits = bytes < bytes_max && batch.base_offset() < state.committed;
                bytes += batch.len();
                fits
            };
            let unflushed = state.tail.iter().skip(state.first_unflushed()).map(|held| &held.batch);
            unflushed.take_while(fits).cloned().collect::<Vec<_>>()
        };
        if batches.is_empty() {
            return Ok(0);
        }
        let SegmentLimits { bytes, ms } = &self.limits;
        segments.set_limits(bytes.load(Ordering::Relaxed), ms.load(Ordering::Relaxed));
        let appended = segments.append(&batches, now_ms);
        let mut state = self.state.lock();
        if state.is_deleted {
            // What it had is not counted any more.
            return Ok(0);
        }
        // Where it failed, a part of them may be in a segment nevertheless.
        let end = segments.end().map_or(state.flushed, |end| end.max(state.flushed));
        let flushed = || batches.iter().take_while(|batch| batch.next_offset() <= end);
        let bytes = flushed().map(|batch| batch.len() as u64).sum();
        self.shared.tails.unflushed.fetch_sub(flushed().map(cost).sum(), Ordering::Relaxed);
        (state.flushed, state.segment_bytes) = (end, segments.bytes());
        state.unflushed_bytes -= bytes;
        state.trouble = appended.as_ref().err().cloned();
        appended.inspect_err(|error| self.shared.room.note(error)).map(|()| bytes)
    }

    /// Lets go of what is in segments, oldest first, until so many bytes are free. Returns how many are.
    pub(crate) fn trim_tail(&self, bytes: u64) -> u64 {
        self.let_go(bytes, Offset::MAX)
    }

    /// Lets go of what is in segments and was in the tail already when this was called last. Returns how many bytes.
    pub(crate) fn age_tail(&self) -> u64 {
        let before = {
            let mut state = self.state.lock();
            let end = state.end;
            std::mem::replace(&mut state.aged, end)
        };
        self.let_go(u64::MAX, before)
    }

    fn let_go(&self, bytes: u64, before: Offset) -> u64 {
        let mut freed = 0;
        let mut goes = Vec::new();
        loop {
            {
                let mut state = self.state.lock();
                let before = before.min(state.flushed);
                while freed < bytes
                    && goes.len() < LET_GO_BATCHES
                    && state.tail.front().is_some_and(|held| held.batch.next_offset() <= before)
                    && let Some(held) = state.tail.pop_front()
                {
                    freed += cost(&held.batch);
                    goes.push(held);
                }
                if state.tail.capacity() > 1024 && state.tail.len() < state.tail.capacity() / 4 {
                    let len = state.tail.len();
                    state.tail.shrink_to(len * 2);
                }
                self.shared.tails.held.fetch_sub(goes.iter().map(|held| cost(&held.batch)).sum(), Ordering::Relaxed);
            }
            let is_last = goes.len() < LET_GO_BATCHES;
            // Without the lock: giving memory back takes longer than all of the above.
            goes.clear();
            if is_last {
                return freed;
            }
        }
    }

    /// Syncs the segments, and says what a checkpoint may rely on then; `None` where nothing has changed. All that was
    /// committed when this is called is in it, unless it is `partial`, and the disk has no room for that: then the
    /// journal is still needed for the rest.
    pub(crate) fn checkpoint(&self, now_ms: u64, is_partial: bool) -> Result<Option<Taken>> {
        let changes = {
            let state = self.state.lock();
            if state.changes == state.changes_kept || state.refused.is_some() || state.is_deleted {
                return Ok(None);
            }
            state.changes
        };
        let committed = self.state.lock().committed;
        while self.state.lock().flushed < committed {
            match self.flush(FLUSH_BYTES, now_ms) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if is_partial && error.kind == ErrorKind::DiskFull => break,
                Err(error) => return Err(error),
            }
        }
        let _syncing = self.syncing.lock();
        let (unsynced, taken) = {
            let mut segments = self.segments.lock();
            let mut info = PartitionInfo::default();
            {
                let state = self.state.lock();
                // What came after the flush is not in it, and so it does not begin there.
                info.start = state.start.min(state.flushed);
                info.producers_end = state.producers_end;
                info.compacted = state.compacted;
                if !state.producers.is_empty() {
                    let mut bytes = BytesMut::new();
                    state.producers.encode(&mut bytes);
                    info.producers = bytes.freeze();
                }
            }
            segments.forget_before(info.start);
            info.segments = segments.infos();
            segments.retire_replaced();
            let (dirs, names) = segments.unsynced_dirs();
            (segments.unsynced()?, Taken { info, dirs, names, changes })
        };
        self.sync(unsynced)?;
        Ok(Some(taken))
    }

    fn sync(&self, unsynced: Vec<Unsynced>) -> Result<()> {
        for unsynced in unsynced {
            let synced = unsynced.sync();
            self.segments.lock().set_synced(&unsynced, synced.is_ok());
            synced?;
        }
        Ok(())
    }

    /// Syncs segments when so many bytes of them are not: little by little, since whoever syncs the journal meanwhile
    /// has to wait for all that the disk was given before.
    pub(crate) fn sync_ahead(&self, bytes: u64) -> Result<()> {
        // Somebody is at it already.
        let Some(_syncing) = self.syncing.try_lock() else {
            return Ok(());
        };
        let unsynced = {
            let mut segments = self.segments.lock();
            if segments.unsynced_bytes() < bytes { Vec::new() } else { segments.unsynced()? }
        };
        self.sync(unsynced)
    }

    /// After a checkpoint that keeps what was taken of this partition.
    pub(crate) fn set_kept(&self, taken: &Taken) {
        self.segments.lock().set_names_synced(taken.names);
        self.state.lock().changes_kept = taken.changes;
    }

    /// Gets ready to be compacted where it is worth it. Returns whether a checkpoint has to come before that.
    pub(crate) fn prepare_compaction(&self, settings: &CompactionSettings, now_ms: u64) -> Result<bool> {
        if settings.lag_ms.1 > 0 {
            // Only what is in a segment is compacted, and few bytes wait for the next checkpoint to get there.
            self.flush(FLUSH_BYTES, now_ms)?;
        }
        let mut segments = self.segments.lock();
        let to = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted {
                return Ok(false);
            }
            state.compacted.to
        };
        segments.close_to_compact(to, settings, now_ms)
    }

    /// Removes records that have a newer one of the same key, where it is worth it. The files stay as they are until
    /// the next checkpoint.
    pub(crate) fn compact(
        &self,
        settings: &CompactionSettings,
        now_ms: u64,
        wait: &dyn Fn(Duration) -> bool,
    ) -> Result<Option<CompactionStats>> {
        let (before, stable_end, aborted) = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted {
                return Ok(None);
            }
            let stable_end = state.producers.first_open().unwrap_or(state.committed);
            (state.compacted, stable_end, AbortedIndex::new(state.producers.aborted(0, stable_end)))
        };
        let turn = {
            let mut segments = self.segments.lock();
            let sources = segments.compactable(before.to, stable_end, settings, now_ms)?;
            if sources.is_empty() {
                return Ok(None);
            }
            Turn {
                disk: self.shared.disk.clone(),
                dir: segments.dir().to_owned(),
                segment_bytes: segments.segment_bytes(),
                sources,
                aborted,
                view: &|info| self.segments.lock().view_of(info),
                pace: Pace::new(settings.bytes_per_s, wait),
            }
        };
        let Outcome { sources, segments: made, compacted, stats } = match turn.run(before, settings, now_ms) {
            // Retention or a deletion was faster.
            Err(error) if error.kind == ErrorKind::Busy || self.state.lock().is_deleted => return Ok(None),
            outcome => outcome?,
        };
        let mut segments = self.segments.lock();
        if !segments.exchange(&sources, made) {
            return Ok(None);
        }
        let mut state = self.state.lock();
        (state.compacted, state.segment_bytes) = (compacted, segments.bytes());
        state.changes += 1;
        Ok(Some(stats))
    }

    /// After a checkpoint: removes files that it no longer names.
    pub(crate) fn sweep(&self) {
        let mut segments = self.segments.lock();
        segments.sweep();
        self.state.lock().segment_bytes = segments.bytes();
    }

    /// Lets go of its files: those that are open keep their bytes. Whoever reads one has it for that time.
    pub(crate) fn close(&self) {
        self.segments.lock().close();
    }

    /// Nothing is taken or read any more. Its files go when that is durable.
    pub(crate) fn delete(&self) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        let unflushed = state.flushed..state.committed;
        let (mut held_bytes, mut unflushed_bytes) = (0, 0);
        for held in state.tail.drain(..) {
            held_bytes += cost(&held.batch);
            unflushed_bytes += if unflushed.contains(&held.batch.base_offset()) { cost(&held.batch) } else { 0 };
        }
        state.unflushed_bytes = 0;
        self.shared.tails.held.fetch_sub(held_bytes, Ordering::Relaxed);
        self.shared.tails.unflushed.fetch_sub(unflushed_bytes, Ordering::Relaxed);
    }
}

impl DurableLog for DiskPartition {
    fn end(&self) -> Offset {
        self.state.lock().end
    }

    fn producers(&self) -> Producers {
        self.state.lock().producers.clone()
    }

    fn stable_end(&self) -> Offset {
        let state = self.state.lock();
        state.producers.first_open().unwrap_or(state.committed)
    }

    fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted> {
        self.state.lock().producers.aborted(from, to)
    }

    fn forget_aborted(&self) -> Offset {
        let mut state = self.state.lock();
        let in_tail = state.tail.front().map_or(state.end, |held| held.batch.base_offset());
        let before = state.start.max(state.compacted.to.min(in_tail));
        state.producers.forget_aborted(before);
        before
    }

    fn refused(&self) -> Option<Error> {
        self.state.lock().refused.clone()
    }

    fn extent(&self) -> DiskExtent {
        let state = self.state.lock();
        let bytes = state.segment_bytes + state.unflushed_bytes;
        DiskExtent { start: state.start, end: state.committed, bytes }
    }

    fn append(&self, batch: RecordBatch, owner: Arc<dyn Owner>) -> Result<()> {
        let mut state = self.state.lock();
        self.check(&state)?;
        debug_assert_eq!(batch.base_offset(), state.end, "invariant: appends are contiguous");
        let mark = batch.next_offset();
        let (kind, stream, body) = (EntryKind::Batch, self.stream, batch.bytes().clone());
        self.shared.append(Entry { kind, stream, body, owner, mark })?;
        self.hold(&mut state, batch);
        Ok(())
    }

    fn commit(&self, mark: Offset) -> Vec<RecordBatch> {
        let mut state = self.state.lock();
        if mark <= state.committed || state.is_deleted {
            return Vec::new();
        }
        let before = std::mem::replace(&mut state.committed, mark);
        let first = state.tail.partition_point(|held| held.batch.base_offset() < before);
        let visible = state.tail.iter().skip(first).take_while(|held| held.batch.base_offset() < mark);
        let batches: Vec<RecordBatch> = visible.map(|held| held.batch.clone()).collect();
        batches.iter().for_each(|batch| state.note(batch));
        state.unflushed_bytes += batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
        state.changes += 1;
        // Before somebody can flush them.
        self.shared.committed(batches.iter().map(cost).sum());
        batches
    }

    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read> {
        let state = self.state.lock();
        self.check(&state)?;
        if from < state.start || from > state.committed {
            let (start, end) = (state.start, state.committed);
            let message = format!("offset {from} is not in the log, which has {start} to {end}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if from == state.committed {
            return Ok(Read::Batches(Vec::new()));
        }
        if state.tail.front().is_none_or(|held| held.batch.base_offset() > from) {
            return Ok(Read::Cold(ColdRead::Segments(SegmentRead { partition: self.clone(), from, bytes_max })));
        }
        let first = state.tail.partition_point(|held| held.batch.next_offset() <= from);
        let mut bytes = 0;
        let fits = |batch: &&RecordBatch| {
            bytes += batch.len();
            batch.base_offset() < state.committed && (bytes <= bytes_max || bytes == batch.len())
        };
        let batches = state.tail.iter().skip(first).map(|held| &held.batch);
        Ok(Read::Batches(batches.take_while(fits).cloned().collect()))
    }

    fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset> {
        self.find_time(timestamp_ms).map_err(|error| self.explain(error))
    }

    fn set_start(&self, start: Offset, owner: Arc<dyn Owner>) -> Result<()> {
        let mut state = self.state.lock();
        self.check(&state)?;
        if start > state.committed {
            let message = format!("records up to {} may be deleted, not up to {start}", state.committed);
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        // One that is there may not last yet, and whoever asks again waits for that, too.
        if start >= state.start {
            let body = Bytes::copy_from_slice(&start.to_le_bytes());
            // Its owner may be the same as that of batches, which all come before it.
            let mark = state.end;
            self.shared.append(Entry { kind: EntryKind::Start, stream: self.stream, body, owner, mark })?;
            state.start = start;
            state.changes += 1;
        }
        Ok(())
    }

    fn retain(&self, retention_bytes: u64, retention_ms: u64, now_ms: u64) -> Option<Offset> {
        // Whoever writes there now is not held up: the next look is soon.
        let segments = self.segments.try_lock()?;
        let (start, flushed, end) = {
            let state = self.state.lock();
            (state.start, state.flushed, state.end)
        };
        let planned = segments.plan_removal(|oldest, bytes| {
            let is_growing = oldest.end == flushed;
            let is_over_bytes = retention_bytes > 0 && bytes - oldest.bytes >= retention_bytes;
            let is_over_time = retention_ms > 0 && oldest.appended_ms.saturating_add(retention_ms) <= now_ms;
            (is_over_bytes && !is_growing) || (is_over_time && (!is_growing || flushed == end))
        });
        planned.filter(|planned| *planned > start)
    }

    /// What is needed is in segments with what is not: compaction and retention decide what goes.
    fn forget(&self, _: Offset) {}

    fn check_room(&self) -> Result<()> {
        self.shared.room.check()?;
        match &self.state.lock().trouble {
            Some(trouble) => {
                let kind = if trouble.kind == ErrorKind::DiskFull { trouble.kind } else { ErrorKind::Busy };
                Err(Error::new(kind, format!("the partition takes nothing more for now: {}", trouble.message)))
            }
            None => Ok(()),
        }
    }

    fn admit(&self) -> Result<()> {
        self.shared.room.check()?;
        self.shared.journal.get().map_or(Ok(()), Journal::admit)
    }

    fn broken(&self) -> Option<Error> {
        self.shared.journal.get().and_then(Journal::broken)
    }

    fn takes_transactions(&self) -> bool {
        true
    }
}

impl State {
    /// Another batch is committed, unless it was before.
    fn note(&mut self, batch: &RecordBatch) {
        if batch.base_offset() >= self.producers_end {
            self.producers.replay(batch);
            self.producers_end = batch.next_offset();
        }
    }

    /// The place in the tail of the first batch that is in no segment.
    fn first_unflushed(&self) -> usize {
        self.tail.partition_point(|held| held.batch.base_offset() < self.flushed)
    }

    fn tail_offset_for_time(&self, timestamp_ms: i64) -> Option<Offset> {
        let is_it =
            |held: &&TailBatch| held.batch.max_timestamp_ms() >= timestamp_ms && held.batch.next_offset() > self.start;
        // None before this one is late enough. The one itself is, unless what made it so has left the tail.
        let first = self.tail.partition_point(|held| held.timestamp_ms_max < timestamp_ms);
        let found = self.tail.iter().skip(first).find(is_it).map(|held| held.batch.base_offset());
        found.filter(|found| *found < self.committed)
    }
}

impl SegmentRead {
    /// The same at once, if none of it has to be waited for and it is not much work.
    pub fn run_if_cached(&self) -> Option<Result<Vec<RecordBatch>>> {
        if self.bytes_max > CACHED_BYTES_MAX {
            return None;
        }
        let view = self.partition.segments.lock().view(self.from, None).ok()??;
        let part = view.cached_part(self.from, self.bytes_max).filter(|_| view.base() <= self.from)?;
        Some(part.read(self.from, self.bytes_max).map_err(|error| self.partition.explain(error)))
    }

    pub fn run(self) -> Result<Vec<RecordBatch>> {
        self.find().map_err(|error| self.partition.explain(error))
    }

    fn find(&self) -> Result<Vec<RecordBatch>> {
        let view = self.partition.segments.lock().view(self.from, None)?;
        match view {
            Some(mut view) if view.base() <= self.from => {
                let part = view.part(self.from);
                self.partition.segments.lock().keep_index(&view);
                part?.read(self.from, self.bytes_max)
            }
            // It has moved on meanwhile.
            _ => match self.partition.clone().read(self.from, self.bytes_max)? {
                Read::Batches(batches) => Ok(batches),
                Read::Cold(_) => {
                    let (from, end) = (self.from, self.partition.state.lock().flushed);
                    Err(Error::new(ErrorKind::Corrupt, format!("no file has records {from} to {end}")))
                }
            },
        }
    }
}

fn deleted() -> Error {
    Error::not_found("the partition was deleted")
}

fn cost(batch: &RecordBatch) -> u64 {
    (batch.len() + ENTRY_BYTES) as u64
}

/// The partition cannot be served.
fn refuse(error: &Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{NOT_SERVED}{}", error.message))
}
