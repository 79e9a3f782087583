//! One partition on disk: its newest batches in memory, all others in segments, and what is safe of them.
//!
//! ```text
//! start ..................... flushed ........ committed ........ end
//!        in segments                   in memory (the tail)
//! ```
//!
//! A batch goes into the tail and into the journal. When the journal has synced it, it is committed: readers see it.
//! Later it is written to a segment, many at once, and may leave the tail.

mod index;
pub(crate) mod segments;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use engine::producers::Producers;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use crate::disk::failed;
use crate::journal::{Entry, EntryKind, Owner};
use crate::store::Shared;
pub use segments::SegmentInfo;
use segments::{Part, Segments, SharedSegments, refuse};

/// What a batch in a tail costs beside its bytes.
const ENTRY_BYTES: usize = 96;

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
}

/// Invariant: `start <= flushed <= committed <= end`, and the tail ends at `end` and has all from `flushed` on.
#[derive(Default)]
struct State {
    start: Offset,
    flushed: Offset,
    committed: Offset,
    end: Offset,
    tail: VecDeque<RecordBatch>,
    /// What follows from all committed batches about who wrote them.
    producers: Producers,
    producers_end: Offset,
    /// Of the segments, as they were last seen.
    segment_bytes: u64,
    /// Why it is not served.
    refused: Option<Error>,
    is_dirty: bool,
    is_deleted: bool,
}

/// What a checkpoint keeps of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionInfo {
    pub start: Offset,
    pub segments: Vec<SegmentInfo>,
    /// [`Producers`] in bytes, and the offset up to which they know the log. Empty where there are none.
    pub producers: Bytes,
    pub producers_end: Offset,
}

impl PartitionInfo {
    /// The offset after the last record in a segment.
    pub fn end(&self) -> Offset {
        self.segments.last().map_or(self.start, |segment| segment.end.max(self.start))
    }
}

/// What a read found.
pub enum Read {
    Batches(Vec<RecordBatch>),
    /// It is in a file: [`ColdRead::run`] fetches it, and may block.
    Cold(ColdRead),
}

pub struct ColdRead {
    partition: Arc<DiskPartition>,
    from: Offset,
    bytes_max: usize,
}

/// The bounds of a partition at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskExtent {
    pub start: Offset,
    /// The offset after the last committed record.
    pub end: Offset,
    pub bytes: u64,
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
        let (segments, mut refused) = match Segments::open(disk.clone(), dir.clone(), segment_bytes, &info.segments) {
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
            segment_bytes: segments.bytes(),
            refused,
            ..State::default()
        };
        Self { stream, shared, state: Mutex::new(state), segments: Mutex::new(segments) }
    }

    /// The offset that the next record gets.
    pub fn end(&self) -> Offset {
        self.state.lock().end
    }

    /// What is known of those who wrote the committed batches.
    pub fn producers(&self) -> Producers {
        self.state.lock().producers.clone()
    }

    /// Why it is not served, if it is not.
    pub fn refused(&self) -> Option<Error> {
        self.state.lock().refused.clone()
    }

    pub fn extent(&self) -> DiskExtent {
        let state = self.state.lock();
        let tail: usize = state.tail.iter().skip_while(|b| b.base_offset() < state.flushed).map(RecordBatch::len).sum();
        DiskExtent { start: state.start, end: state.committed, bytes: state.segment_bytes + tail as u64 }
    }

    /// Puts a batch behind all others. Its owner hears when it is committed; the mark is the offset after it.
    pub fn append(&self, batch: RecordBatch, owner: Arc<dyn Owner>) -> Result<()> {
        let mut state = self.state.lock();
        self.check(&state)?;
        debug_assert_eq!(batch.base_offset(), state.end, "invariant: appends are contiguous");
        let mark = batch.next_offset();
        let (kind, stream, body) = (EntryKind::Batch, self.stream, batch.bytes().clone());
        self.shared.append(Entry { kind, stream, body, owner, mark })?;
        self.hold(&mut state, batch);
        Ok(())
    }

    fn hold(&self, state: &mut State, batch: RecordBatch) {
        self.shared.tails.held.fetch_add(cost(&batch), Ordering::Relaxed);
        state.end = batch.next_offset();
        state.tail.push_back(batch);
        state.is_dirty = true;
    }

    /// A batch that recovery found in the journal.
    pub(crate) fn replay(&self, body: Result<Bytes>) {
        let mut state = self.state.lock();
        if state.is_deleted || state.refused.is_some() {
            return;
        }
        let batch = body.and_then(RecordBatch::parse);
        match batch {
            // It is in a segment already.
            Ok(batch) if batch.next_offset() <= state.end => state.note(&batch),
            Ok(batch) if batch.base_offset() == state.end => {
                self.shared.tails.unflushed.fetch_add(cost(&batch), Ordering::Relaxed);
                state.note(&batch);
                self.hold(&mut state, batch);
                state.committed = state.end;
            }
            Ok(batch) => {
                let (end, base) = (state.end, batch.base_offset());
                let gap = Error::new(ErrorKind::Corrupt, format!("records {end} to {base} are missing in the journal"));
                state.refused = Some(refuse(&gap));
            }
            Err(error) => state.refused = Some(refuse(&error)),
        }
    }

    /// All before this offset lasts. Returns what has become visible by that.
    pub fn commit(&self, mark: Offset) -> Vec<RecordBatch> {
        let mut state = self.state.lock();
        if mark <= state.committed || state.is_deleted {
            return Vec::new();
        }
        let before = std::mem::replace(&mut state.committed, mark);
        let first = state.tail.partition_point(|batch| batch.base_offset() < before);
        let batches: Vec<_> =
            state.tail.iter().skip(first).take_while(|batch| batch.base_offset() < mark).cloned().collect();
        batches.iter().for_each(|batch| state.note(batch));
        drop(state);
        self.shared.committed(batches.iter().map(cost).sum());
        batches
    }

    /// Committed batches from the one that holds `from`, up to `bytes_max`, at least one where there is one. Empty
    /// at the end.
    pub fn read(self: &Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read> {
        let state = self.state.lock();
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        if from < state.start || from > state.committed {
            let (start, end) = (state.start, state.committed);
            let message = format!("offset {from} is not in the log, which has {start} to {end}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if from == state.committed {
            return Ok(Read::Batches(Vec::new()));
        }
        if state.tail.front().is_none_or(|batch| batch.base_offset() > from) {
            return Ok(Read::Cold(ColdRead { partition: self.clone(), from, bytes_max }));
        }
        let first = state.tail.partition_point(|batch| batch.next_offset() <= from);
        let mut bytes = 0;
        let fits = |batch: &&RecordBatch| {
            bytes += batch.len();
            batch.base_offset() < state.committed && (bytes <= bytes_max || bytes == batch.len())
        };
        Ok(Read::Batches(state.tail.iter().skip(first).take_while(fits).cloned().collect()))
    }

    /// The offset of the first committed batch with a record of this time or later; the end where there is none.
    /// May block on a file.
    pub fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset> {
        let part = self.segments.lock().find_time(timestamp_ms)?;
        let in_files = part.map(|part| part.offset_for_time(timestamp_ms)).transpose()?.flatten();
        let state = self.state.lock();
        let in_tail = || state.tail.iter().find(|batch| batch.max_timestamp_ms() >= timestamp_ms);
        let found = in_files.or_else(|| in_tail().map(RecordBatch::base_offset));
        Ok(found.unwrap_or(state.committed).clamp(state.start, state.committed))
    }

    /// Records before this offset are gone, as soon as the journal has it.
    pub fn set_start(&self, start: Offset, owner: Arc<dyn Owner>) -> Result<()> {
        let mut state = self.state.lock();
        self.check(&state)?;
        if start > state.committed {
            let message = format!("records up to {} may be deleted, not up to {start}", state.committed);
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if start > state.start {
            let body = Bytes::copy_from_slice(&start.to_le_bytes());
            // Its owner may be the same as that of batches: the mark says nothing new.
            let mark = state.committed;
            self.shared.append(Entry { kind: EntryKind::Start, stream: self.stream, body, owner, mark })?;
            state.start = start;
            state.is_dirty = true;
        }
        Ok(())
    }

    pub(crate) fn replay_start(&self, start: Offset) {
        let mut state = self.state.lock();
        state.start = state.start.max(start);
        state.is_dirty = true;
    }

    fn check(&self, state: &State) -> Result<()> {
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        if state.is_deleted {
            return Err(Error::not_found("the partition was deleted"));
        }
        Ok(())
    }

    /// Where retention lets the partition begin. 0 is no limit. Whole segments go, and the growing one stays.
    pub fn retain(&self, retention_bytes: u64, retention_ms: u64, now_ms: u64) -> Option<Offset> {
        let segments = self.segments.lock();
        segments.plan_removal(|oldest, bytes| {
            let is_over_bytes = retention_bytes > 0 && bytes - oldest.bytes >= retention_bytes;
            is_over_bytes || (retention_ms > 0 && oldest.appended_ms.saturating_add(retention_ms) <= now_ms)
        })
    }

    /// Writes what is committed and in no segment yet. Returns its bytes.
    pub(crate) fn flush(&self, bytes_max: usize, now_ms: u64) -> Result<u64> {
        let mut segments = self.segments.lock();
        let (batches, bytes) = {
            let state = self.state.lock();
            if state.refused.is_some() || state.is_deleted {
                return Ok(0);
            }
            let mut bytes = 0;
            let unflushed = state.tail.iter().skip_while(|batch| batch.base_offset() < state.flushed);
            let committed = unflushed.take_while(|batch| batch.base_offset() < state.committed);
            let some = committed.take_while(|batch| {
                let fits = bytes < bytes_max as u64;
                bytes += if fits { cost(batch) } else { 0 };
                fits
            });
            (some.cloned().collect::<Vec<_>>(), bytes)
        };
        let Some(last) = batches.last() else {
            return Ok(0);
        };
        segments.append(&batches, now_ms)?;
        let mut state = self.state.lock();
        if state.is_deleted {
            // What it had is not counted any more.
            return Ok(0);
        }
        state.flushed = last.next_offset();
        state.segment_bytes = segments.bytes();
        self.shared.tails.unflushed.fetch_sub(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Lets go of what is in segments, oldest first, until so many bytes are free. Returns how many are.
    pub(crate) fn trim_tail(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let mut freed = 0;
        while freed < bytes
            && state.tail.front().is_some_and(|batch| batch.next_offset() <= state.flushed)
            && let Some(batch) = state.tail.pop_front()
        {
            freed += cost(&batch);
        }
        if state.tail.capacity() > 1024 && state.tail.len() < state.tail.capacity() / 4 {
            let len = state.tail.len();
            state.tail.shrink_to(len * 2);
        }
        self.shared.tails.held.fetch_sub(freed, Ordering::Relaxed);
        freed
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.state.lock().is_dirty
    }

    /// Syncs the segments, and says what a checkpoint may rely on from now on. All that was committed when this is
    /// called is in it.
    pub(crate) fn checkpoint(&self, now_ms: u64) -> Result<PartitionInfo> {
        self.state.lock().is_dirty = false;
        let info = self.sync(now_ms);
        if info.is_err() {
            self.segments.lock().set_dirty();
            self.state.lock().is_dirty = true;
        }
        info
    }

    fn sync(&self, now_ms: u64) -> Result<PartitionInfo> {
        while self.flush(usize::MAX, now_ms)? > 0 {}
        let (dirty, info) = {
            let mut segments = self.segments.lock();
            let state = self.state.lock();
            let (start, producers_end) = (state.start, state.producers_end);
            let mut producers = BytesMut::new();
            if !state.producers.is_empty() {
                state.producers.encode(&mut producers);
            }
            drop(state);
            segments.forget_before(start);
            let (segments, producers) = (&mut *segments, producers.freeze());
            (segments.dirty(), PartitionInfo { start, segments: segments.infos(), producers, producers_end })
        };
        for (path, file) in dirty {
            file.sync().map_err(failed("sync", &path))?;
        }
        Ok(info)
    }

    /// After a checkpoint: removes files that it no longer names.
    pub(crate) fn sweep(&self) {
        let mut segments = self.segments.lock();
        segments.sweep();
        self.state.lock().segment_bytes = segments.bytes();
    }

    /// Nothing is taken or read any more. Its files go with the next checkpoint.
    pub(crate) fn delete(&self) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        let (unflushed_offsets, mut held, mut unflushed) = (state.flushed..state.committed, 0, 0);
        for batch in state.tail.drain(..) {
            held += cost(&batch);
            unflushed += if unflushed_offsets.contains(&batch.base_offset()) { cost(&batch) } else { 0 };
        }
        self.shared.tails.held.fetch_sub(held, Ordering::Relaxed);
        self.shared.tails.unflushed.fetch_sub(unflushed, Ordering::Relaxed);
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
}

impl ColdRead {
    pub fn run(self) -> Result<Vec<RecordBatch>> {
        let part: Option<Part> = self.partition.segments.lock().find(self.from)?;
        match part {
            Some(part) => part.read(self.from, self.bytes_max).inspect_err(|error| {
                tracing::error!(%error, "a segment cannot be read");
            }),
            // It has moved on meanwhile.
            None => match self.partition.read(self.from, self.bytes_max)? {
                Read::Batches(batches) => Ok(batches),
                Read::Cold(cold) => {
                    let (from, end) = (cold.from, cold.partition.state.lock().flushed);
                    Err(Error::new(ErrorKind::Corrupt, format!("no file has records {from} to {end}")))
                }
            },
        }
    }
}

fn cost(batch: &RecordBatch) -> u64 {
    (batch.len() + ENTRY_BYTES) as u64
}
