//! Partition on disk: its newest batches are in memory, all others in segments; it tracks which of them are durable.
//!
//! ```text
//! start ..................... flushed ........ committed ........ end
//!        in segments                   in memory (the tail)
//! ```
//!
//! A batch goes into the tail and into the journal. When the journal has synced it, it is committed and visible to
//! readers. Later it is written to a segment, many batches together, and may leave the tail.

mod compact;
mod copied;
pub(crate) mod index;
pub mod scan;
mod node;
pub(crate) mod segments;
mod read;
mod tail;
mod through;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::producers::{Aborted, AbortedIndex, Producers};
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use crate::info::{Compacted, CompactionSettings, CompactionStats, PartitionInfo, not_served};
use crate::journal::{Applies, Entry, EntryKind, Owner};
use crate::log::{Commits, LogExtent, PartitionLog, Read};
use crate::shared::Shared;
use compact::{Outcome, Pace, Turn};
use read::SegmentRead;
use segments::{Described, Segments, SharedSegments, Unsynced};
use tail::partition_from_end;

/// Maximum bytes that are written to segments before other threads may read or write there.
pub(crate) const FLUSH_BYTES: usize = 4 << 20;
/// Memory cost of a batch in a tail in addition to its bytes.
const ENTRY_BYTES: usize = 96;
/// Maximum number of batches that leave a tail before other threads may append or read there.
const LET_GO_BATCHES: usize = 256;

pub struct DiskPartition {
    stream: u64,
    shared: Arc<Shared>,
    state: Mutex<State>,
    segments: SharedSegments,
    limits: SegmentLimits,
    /// Held from the query for unsynced parts until their sync is recorded: the system reports a failed write to each
    /// file once, so of two concurrent syncs only one would receive it. Taken before all other locks.
    syncing: Mutex<()>,
}

/// Limits at which a segment ends, from the next write on.
#[derive(Debug, Default)]
struct SegmentLimits {
    bytes: AtomicU64,
    ms: AtomicU64,
}

/// State of the partition. Invariant: `start <= committed <= end`, `flushed <= end`, and the tail ends at `end` and has
/// all batches from `flushed` on, and all that are not committed.
#[derive(Default)]
struct State {
    start: Offset,
    /// Latest start that was appended to the log, committed or not.
    start_due: Offset,
    /// Offset up to which all is in segments. It can be after `committed`: large batches are written to their segment
    /// first.
    flushed: Offset,
    /// Writes to segments that are not wholly committed: the first offset of each, and the offset after its last.
    placing: VecDeque<(Offset, Offset)>,
    committed: Offset,
    end: Offset,
    /// Time of the last append, in ms since 1970.
    appended_ms: u64,
    tail: VecDeque<TailBatch>,
    /// End of the tail at the last call of [`DiskPartition::age_tail`].
    aged: Offset,
    /// Producer state that results from all committed batches.
    producers: Producers,
    producers_end: Offset,
    /// Largest timestamp that was ever in the tail.
    timestamp_ms_max: Option<i64>,
    /// Bytes of the segments, as last read, and of the committed batches that are in none.
    segment_bytes: u64,
    unflushed_bytes: u64,
    /// Extent of the compaction, if the topic is compacted.
    compacted: Compacted,
    /// Reason why the partition is not served.
    refused: Option<Error>,
    /// Error of the last write to a segment, if it failed: nothing more is admitted until a write succeeds, so that
    /// this partition does not fill the memory that all share.
    trouble: Option<Error>,
    /// Number of changes that a checkpoint has to store; `changes_kept` is the number that the last one stored.
    changes: u64,
    changes_kept: u64,
    /// `true` while records of another node replace the former ones, which the last checkpoint still has.
    is_replaced: bool,
    /// Damage that a read of a segment has found, until the records are replaced by those of another node.
    damage: Option<Error>,
    is_deleted: bool,
}

struct TailBatch {
    batch: RecordBatch,
    /// Largest timestamp of this batch and all batches before it.
    timestamp_ms_max: i64,
}

/// Data that a partition contributes to a checkpoint.
pub(crate) struct Taken {
    pub(crate) info: PartitionInfo,
    /// Directories to sync before the checkpoint may be written.
    pub(crate) dirs: Vec<PathBuf>,
    names: u64,
    changes: u64,
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
        let (segments, mut refused) =
            match Segments::open(disk.clone(), dir.clone(), segment_bytes, info, shared.epochs) {
                Ok(segments) => (segments, None),
                // The partition keeps its place in the topic and its files, which are neither read nor written.
                Err(error) => (
                    Segments::closed(disk, dir, segment_bytes, &info.segments, shared.epochs),
                    Some(not_served(&error)),
                ),
            };
        let producers = if info.producers.is_empty() {
            Ok(Producers::default())
        } else {
            Producers::decode(info.producers.clone())
        };
        let producers = producers.unwrap_or_else(|error| {
            refused.get_or_insert(not_served(&error));
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
        let state = Mutex::new(state);
        let segments = Mutex::new(segments);
        let syncing = Mutex::default();
        let limits = SegmentLimits { bytes: segment_bytes.into(), ..SegmentLimits::default() };
        Self { stream, shared, state, segments, limits, syncing }
    }

    /// Sets the size of a segment in bytes, and the maximum age difference between its first batch and any other in ms;
    /// 0 means no limit.
    pub(crate) fn set_segment_limits(&self, bytes: u64, ms: u64) {
        self.limits.bytes.store(bytes, Ordering::Relaxed);
        self.limits.ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    /// Returns `true` if a checkpoint would release files.
    pub(crate) fn has_garbage(&self) -> bool {
        let segments = self.segments.lock();
        let state = self.state.lock();
        !state.is_deleted && state.refused.is_none() && segments.has_garbage(state.start.min(state.flushed))
    }

    /// Returns the reason why the partition takes nothing more for now.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.state.lock().trouble.clone()
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.segments.lock().dir().to_owned()
    }

    /// Marks the partition as not served. It keeps its place in the topic and its files.
    pub(crate) fn refuse(&self, error: &Error) {
        self.state.lock().refused.get_or_insert_with(|| not_served(error));
    }

    /// Returns the salvage files that were written while the partition could not be served.
    pub(crate) fn salvages(&self) -> Vec<PathBuf> {
        self.segments.lock().salvages().to_vec()
    }

    /// Releases the salvage files: their entries are in the partition again.
    pub(crate) fn end_salvage(&self) {
        self.segments.lock().end_salvage();
        self.state.lock().changes += 1;
    }

    /// Adopts the segments that the journal describes.
    pub(crate) fn adopt(&self, described: &[Described]) {
        let mut segments = self.segments.lock();
        segments.adopt(described);
        let mut state = self.state.lock();
        let end = segments.end().unwrap_or(state.end).max(state.end);
        state.flushed = end;
        state.committed = end;
        state.end = end;
        state.segment_bytes = segments.bytes();
        state.changes += 1;
    }

    /// Removes data of the segments that the journal contains as well: it has everything after the checkpoint.
    pub(crate) fn settle(&self) -> Result<()> {
        self.segments.lock().settle()
    }

    fn hold(&self, state: &mut State, batch: RecordBatch) {
        self.shared.held(cost(&batch));
        state.end = batch.next_offset();
        let timestamp_ms_max = state.timestamp_ms_max.unwrap_or(i64::MIN).max(batch.max_timestamp_ms());
        state.timestamp_ms_max = Some(timestamp_ms_max);
        state.tail.push_back(TailBatch { batch, timestamp_ms_max });
    }

    /// Appends a batch that recovery found. A batch that is already in a segment is not appended there again.
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

    /// Applies a committed start of the log.
    pub(crate) fn apply_start(&self, start: Offset) {
        let mut state = self.state.lock();
        let start = start.min(state.end);
        if start > state.start {
            state.start = start;
            state.changes += 1;
        }
    }

    /// Applies a start that is appended and not committed yet, for a checkpoint that makes it durable. Returns `false`
    /// if there is none.
    pub(crate) fn apply_start_due(&self) -> bool {
        let (start, due) = {
            let state = self.state.lock();
            (state.start, state.start_due)
        };
        self.apply_start(due);
        due > start
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

    /// Fails if clients cannot be served: also while the records are replaced by those of another node.
    fn check_served(&self, state: &State) -> Result<()> {
        self.check(state)?;
        if state.is_replaced {
            let message =
                "the records of this partition were damaged, and are fetched from another node; try again later";
            return Err(Error::busy(message));
        }
        Ok(())
    }

    /// Writes committed batches that are in no segment yet. Returns their bytes.
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
            // A large write may have taken along what an earlier flush could not write.
            self.state.lock().trouble = None;
            return Ok(0);
        }
        let SegmentLimits { bytes, ms } = &self.limits;
        segments.set_limits(bytes.load(Ordering::Relaxed), ms.load(Ordering::Relaxed));
        // If another flush uses the memory, the cache takes the batches.
        let mut uncached = self.shared.uncached.try_lock();
        let appended = segments.append(&batches, now_ms, uncached.as_deref_mut());
        drop(uncached);
        let mut state = self.state.lock();
        if state.is_deleted {
            // Its bytes are not counted any more.
            return Ok(0);
        }
        let bytes = self.note_flushed(&mut state, &segments, &batches);
        state.trouble = appended.as_ref().err().cloned();
        appended.inspect_err(|error| self.shared.room.note(error)).map(|()| bytes)
    }

    /// Records which of these batches are in segments now: after an error it may be a part of them. Returns the bytes
    /// of those that are committed.
    fn note_flushed(&self, state: &mut State, segments: &Segments, batches: &[RecordBatch]) -> u64 {
        let end = segments.end().map_or(state.flushed, |end| end.max(state.flushed));
        let is_counted = |batch: &&RecordBatch| batch.next_offset() <= end && batch.base_offset() < state.committed;
        let counted = || batches.iter().take_while(is_counted);
        let bytes = counted().map(|batch| batch.len() as u64).sum();
        self.shared.tails.unflushed.fetch_sub(counted().map(cost).sum(), Ordering::Relaxed);
        state.flushed = end;
        state.segment_bytes = segments.bytes();
        state.unflushed_bytes -= bytes;
        bytes
    }

    /// Removes batches that are in segments from the tail, oldest first, until `bytes` bytes are free. Returns the
    /// freed bytes.
    pub(crate) fn trim_tail(&self, bytes: u64) -> u64 {
        self.let_go(bytes, Offset::MAX)
    }

    /// Removes batches that are in segments and were in the tail at the previous call. Returns the freed bytes.
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
                let before = before.min(state.first_needed());
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
            // Without the lock: freeing the memory takes longer than all of the above.
            goes.clear();
            if is_last {
                return freed;
            }
        }
    }

    /// Syncs the segments, and returns the state that a checkpoint may contain; `None` if nothing has changed. It
    /// includes all records that are committed at the call, unless `is_partial` is set and the disk has no space for
    /// them: then the journal is still needed for the rest.
    pub(crate) fn checkpoint(&self, now_ms: u64, is_partial: bool) -> Result<Option<Taken>> {
        let changes = {
            let mut segments = self.segments.lock();
            let state = self.state.lock();
            let is_unchanged = state.changes == state.changes_kept || state.is_replaced;
            if is_unchanged || state.refused.is_some() || state.is_deleted {
                segments.rest_through();
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
                // Later records are not in the checkpoint, so its start cannot be after them.
                let pending = segments.pending_from(state.committed).unwrap_or(Offset::MAX);
                info.start = state.start.min(state.flushed).min(pending);
                info.producers_end = state.producers_end;
                info.compacted = state.compacted;
                if !state.producers.is_empty() {
                    let mut bytes = BytesMut::new();
                    state.producers.encode(&mut bytes);
                    info.producers = bytes.freeze();
                }
            }
            segments.forget_before(info.start);
            info.segments = segments.committed_infos();
            segments.rest_through();
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

    /// Syncs segments when `bytes` bytes of them are unsynced. It works in small steps, since a concurrent sync of the
    /// journal has to wait for all bytes that the disk received before.
    pub(crate) fn sync_ahead(&self, bytes: u64) -> Result<()> {
        // Another thread is syncing already.
        let Some(_syncing) = self.syncing.try_lock() else {
            return Ok(());
        };
        let unsynced = {
            let mut segments = self.segments.lock();
            if segments.unsynced_bytes() < bytes { Vec::new() } else { segments.unsynced()? }
        };
        self.sync(unsynced)
    }

    /// Records that a checkpoint contains this state of the partition.
    pub(crate) fn set_kept(&self, taken: &Taken) {
        let mut segments = self.segments.lock();
        segments.set_names_synced(taken.names);
        if let Some(last) = taken.info.segments.last() {
            segments.set_described(last.end, last.bytes);
        }
        drop(segments);
        self.state.lock().changes_kept = taken.changes;
    }

    /// Prepares a compaction if it is worthwhile. Returns `true` if a checkpoint has to precede it.
    pub(crate) fn prepare_compaction(&self, settings: &CompactionSettings, now_ms: u64) -> Result<bool> {
        if settings.lag_ms.1 > 0 {
            // Only records in a segment are compacted, and a few bytes would reach one only at the next checkpoint.
            self.flush(FLUSH_BYTES, now_ms)?;
        }
        let mut segments = self.segments.lock();
        let to = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted || state.is_replaced {
                return Ok(false);
            }
            if segments.pending_from(state.committed).is_some() {
                return Ok(false);
            }
            state.compacted.to
        };
        segments.close_to_compact(to, settings, now_ms)
    }

    /// Removes records that have a newer one of the same key, if it is worthwhile. The old files stay until the next
    /// checkpoint.
    pub(crate) fn compact(
        &self,
        settings: &CompactionSettings,
        now_ms: u64,
        wait: &dyn Fn(Duration) -> bool,
    ) -> Result<Option<CompactionStats>> {
        let (before, stable_end, aborted) = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted || state.is_replaced {
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
            // Retention or a deletion came first.
            Err(error) if error.kind == ErrorKind::Busy || self.state.lock().is_deleted => return Ok(None),
            outcome => outcome.inspect_err(|error| self.note_damage(error))?,
        };
        let mut segments = self.segments.lock();
        // The sources are not there any more if the partition was replaced in the meantime.
        if !segments.exchange(&sources, made) {
            return Ok(None);
        }
        let mut state = self.state.lock();
        state.compacted = compacted;
        state.segment_bytes = segments.bytes();
        state.changes += 1;
        Ok(Some(stats))
    }

    /// Removes files that the last checkpoint no longer names, unless `keeps_files`.
    pub(crate) fn sweep(&self, keeps_files: bool) {
        let mut segments = self.segments.lock();
        if !keeps_files {
            segments.sweep();
        }
        self.state.lock().segment_bytes = segments.bytes();
    }

    /// Closes its files. A concurrent reader keeps its file open for the duration of the read.
    pub(crate) fn close(&self) {
        self.segments.lock().close();
    }

    /// Deletes the partition: nothing is appended or read any more. Its files are removed when the deletion is durable.
    pub(crate) fn delete(&self) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        self.drop_tail(&mut state);
    }
}

impl PartitionLog for DiskPartition {
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

    fn extent(&self) -> LogExtent {
        let state = self.state.lock();
        let bytes = state.segment_bytes + state.unflushed_bytes;
        LogExtent { start: state.start, end: state.committed, bytes }
    }

    fn append(&self, batch: RecordBatch, now_ms: u64, owner: Arc<dyn Owner>) -> Result<Commits> {
        let mut state = self.state.lock();
        self.check_served(&state)?;
        debug_assert_eq!(batch.base_offset(), state.end, "invariant: appends are contiguous");
        let mark = batch.next_offset();
        let kind = EntryKind::Batch;
        let stream = self.stream;
        let body = batch.bytes().clone();
        self.shared.append(Entry { kind, shard: ShardId::FIRST, stream, body, owner, mark })?;
        self.hold(&mut state, batch);
        state.appended_ms = now_ms;
        Ok(Commits::Later)
    }

    fn truncate(&self, end: Offset) -> Result<()> {
        let mut segments = self.segments.lock();
        let mut state = self.state.lock();
        self.check(&state)?;
        if end < state.committed {
            let message = format!("records before {} are committed, so they cannot be cut at {end}", state.committed);
            return Err(Error::invalid(message));
        }
        while let Some(held) = state.tail.pop_back_if(|held| held.batch.base_offset() >= end) {
            self.shared.tails.held.fetch_sub(cost(&held.batch), Ordering::Relaxed);
            state.end = held.batch.base_offset();
        }
        if state.end > end {
            return Err(Error::invalid(format!("offset {end} is inside a batch, which can only be cut as a whole")));
        }
        if segments.cut_pending(end)? {
            state.flushed = state.flushed.min(end);
            state.segment_bytes = segments.bytes();
            state.placing.iter_mut().for_each(|(_, to)| *to = end.min(*to));
        }
        Ok(())
    }

    fn commit(&self, mark: Offset) -> Vec<RecordBatch> {
        let mut state = self.state.lock();
        if mark <= state.committed || state.is_deleted {
            return Vec::new();
        }
        let before = std::mem::replace(&mut state.committed, mark);
        while state.placing.pop_front_if(|(_, to)| *to <= mark).is_some() {}
        let first = partition_from_end(&state.tail, |held| held.batch.base_offset() < before);
        let visible = state.tail.iter().skip(first).take_while(|held| held.batch.base_offset() < mark);
        let batches: Vec<RecordBatch> = visible.map(|held| held.batch.clone()).collect();
        batches.iter().for_each(|batch| state.note(batch));
        let unflushed = || batches.iter().filter(|batch| batch.base_offset() >= state.flushed);
        let bytes: u64 = unflushed().map(|batch| batch.len() as u64).sum();
        // Counted before another thread can flush them.
        self.shared.committed(unflushed().map(cost).sum());
        state.unflushed_bytes += bytes;
        state.changes += 1;
        batches
    }

    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read> {
        let state = self.state.lock();
        self.check_served(&state)?;
        if from < state.start || from > state.committed {
            let start = state.start;
            let end = state.committed;
            let message = format!("offset {from} is not in the log, which has {start} to {end}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if from == state.committed {
            return Ok(Read::Batches(Vec::new()));
        }
        if state.tail.front().is_none_or(|held| held.batch.base_offset() > from) {
            return Ok(Read::Cold(Box::new(SegmentRead { partition: self.clone(), from, bytes_max })));
        }
        let first = partition_from_end(&state.tail, |held| held.batch.next_offset() <= from);
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

    fn set_start(self: Arc<Self>, start: Offset, owner: Arc<dyn Owner>) -> Result<Commits> {
        let mut state = self.state.lock();
        self.check_served(&state)?;
        if start > state.committed {
            let message = format!("records up to {} may be deleted, not up to {start}", state.committed);
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if start < state.start {
            return Ok(Commits::Now);
        }
        // A repeated request is another entry: the owner of an earlier one may have been told already, or not yet.
        let body = Bytes::copy_from_slice(&start.to_le_bytes());
        // Its owner may be the same as that of batches, which all precede it.
        let mark = state.end;
        let partition = self.clone();
        let owner = Applies::first(move || partition.apply_start(start), owner);
        let kind = EntryKind::Start;
        self.shared.append(Entry { kind, shard: ShardId::FIRST, stream: self.stream, body, owner, mark })?;
        state.start_due = state.start_due.max(start);
        Ok(Commits::Later)
    }

    fn retain(&self, retention_bytes: u64, retention_ms: u64, needed_from: Offset, now_ms: u64) -> Option<Offset> {
        // A concurrent writer is not blocked: the next check is soon.
        let segments = self.segments.try_lock()?;
        let (start, flushed, end) = {
            let state = self.state.lock();
            (state.start.max(state.start_due), state.flushed.min(state.committed), state.end)
        };
        let planned = segments.plan_removal(|oldest, bytes| {
            let is_growing = oldest.end >= flushed;
            let is_over_bytes = retention_bytes > 0 && bytes - oldest.bytes >= retention_bytes;
            let is_over_time = retention_ms > 0 && oldest.appended_ms.saturating_add(retention_ms) <= now_ms;
            (is_over_bytes && !is_growing) || (is_over_time && (!is_growing || flushed == end))
        });
        planned.map(|planned| planned.min(needed_from)).filter(|planned| *planned > start)
    }

    /// Ignores the request: segments contain needed and forgotten records together, and only compaction and retention
    /// remove them.
    fn forget(&self, _: Offset) {}

    fn check_room(&self) -> Result<()> {
        self.shared.room.check()?;
        match &self.state.lock().trouble {
            Some(trouble) => {
                let kind = if trouble.kind == ErrorKind::DiskFull { trouble.kind } else { ErrorKind::Busy };
                Err(Error::new(kind, format!("the partition accepts no records at the moment: {}", trouble.message)))
            }
            None => Ok(()),
        }
    }

    fn admit(&self) -> Result<()> {
        self.shared.room.check()?;
        self.shared.admit()
    }

    fn broken(&self) -> Option<Error> {
        self.shared.broken()
    }

    fn takes_transactions(&self) -> bool {
        true
    }
}

impl State {
    /// Records a committed batch in the producer state, unless it is already included.
    fn note(&mut self, batch: &RecordBatch) {
        if batch.base_offset() >= self.producers_end {
            self.producers.replay(batch);
            self.producers_end = batch.next_offset();
        }
    }

    /// Returns the offset before which no batch of the tail is needed: all are committed, and in segments.
    fn first_needed(&self) -> Offset {
        self.placing.front().map_or(self.flushed, |(from, _)| *from).min(self.flushed).min(self.committed)
    }

    /// Returns the index in the tail of the first batch that is in no segment.
    fn first_unflushed(&self) -> usize {
        self.tail.partition_point(|held| held.batch.base_offset() < self.flushed)
    }

    fn tail_offset_for_time(&self, timestamp_ms: i64) -> Option<Offset> {
        let is_it =
            |held: &&TailBatch| held.batch.max_timestamp_ms() >= timestamp_ms && held.batch.next_offset() > self.start;
        // No batch before this one is late enough. This one is, unless the batch with the maximum has left the tail.
        let first = self.tail.partition_point(|held| held.timestamp_ms_max < timestamp_ms);
        let found = self.tail.iter().skip(first).find(is_it).map(|held| held.batch.base_offset());
        found.filter(|found| *found < self.committed)
    }
}

fn deleted() -> Error {
    Error::not_found("the partition was deleted")
}

fn cost(batch: &RecordBatch) -> u64 {
    (batch.len() + ENTRY_BYTES) as u64
}
