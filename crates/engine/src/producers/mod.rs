//! Producers of a partition, and the state by which each of their batches is appended once and in order.
//!
//! A producer numbers its records of a partition from 0; 0 follows `i32::MAX`. Its next batch has to begin with the
//! number after the last appended one. A batch that was appended before is a duplicate and gets its original offset;
//! anything else is refused. So a producer may send all its unanswered batches again.
//!
//! A producer's transaction is *open* in a partition from its first batch to the marker that ends it. The log is
//! *stable* before the first batch of the oldest open transaction: whether a record there is committed or aborted no
//! longer changes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::str::FromStr;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Offset;
use crate::limits::{PRODUCER_BATCHES_MAX, PRODUCERS_MAX};
use crate::record::{Decision, Producer, RecordBatch};

mod aborted;

pub use aborted::{Aborted, AbortedIndex};

/// Sequences are 31 bits wide.
const SEQUENCE_MASK: u32 = i32::MAX as u32;
/// Maximum number of records of a producer that are remembered: half of all sequences, so that sequences before and
/// after the next one stay distinguishable.
const REMEMBERED_MAX: u32 = 1 << 30;
const SNAPSHOT_VERSION: u8 = 3;
/// Version of snapshots without transactions, which can still be read.
const SNAPSHOT_VERSION_PLAIN: u8 = 1;
/// Version of snapshots without the offset after the last marker, which can still be read.
const SNAPSHOT_VERSION_UNMARKED: u8 = 2;
/// Encoding of a missing offset.
const NONE: Offset = Offset::MAX;
/// Encoding of an unknown time.
const NO_TIME: i64 = -1;

/// Records that a reader sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All records.
    #[default]
    Uncommitted,
    /// Records before the first transaction that is still open, without those of aborted transactions.
    Committed,
}

impl Isolation {
    pub const ALL: [Self; 2] = [Self::Uncommitted, Self::Committed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Uncommitted => "uncommitted",
            Self::Committed => "committed",
        }
    }
}

impl FromStr for Isolation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|isolation| isolation.name() == text);
        known.ok_or_else(|| Error::invalid(format!("isolation is committed or uncommitted, not '{text}'")))
    }
}

/// Relation of a batch to the earlier batches of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Batch is the next one of its producer.
    Next,
    /// Batch is already in the log, at this offset.
    Duplicate { base_offset: Offset },
}

/// Producers of one partition. The state follows from the log, batch by batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    states: HashMap<i64, State, foldhash::fast::RandomState>,
    /// First offsets of open transactions, with the ids of their producers.
    open: BTreeSet<(Offset, i64)>,
    /// Aborted transactions that may still have records in the log, in the order of their markers.
    aborted: VecDeque<Aborted>,
    /// Offset after the last marker of a transaction; 0 if there was none.
    markers_end: Offset,
}

/// Invariant: each run continues the sequence of the run before it, and is later in the log. Together they have at most
/// [`REMEMBERED_MAX`] records. A marker that began an epoch clears the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    epoch: i16,
    runs: VecDeque<Run>,
    /// Offset after the last batch that the producer wrote, or that was written about it.
    next_offset: Offset,
    /// Timestamp of its last batch.
    timestamp_ms: i64,
    /// First offset of its open transaction.
    open: Option<Offset>,
}

/// State of a producer in a partition, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStatus {
    pub id: i64,
    pub epoch: i16,
    /// Sequence of its last record; `None` if it has written no record in this epoch.
    pub last_sequence: Option<i32>,
    /// Timestamp of its last batch, ms since 1970.
    pub timestamp_ms: Option<i64>,
    /// First offset of its open transaction.
    pub open: Option<Offset>,
}

/// Batches that are consecutive in sequence and in the log: while no other client writes to the partition, all batches
/// of a producer are one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Sequence of its first record.
    sequence: u32,
    count: u32,
    base_offset: Offset,
}

impl Run {
    fn next_sequence(&self) -> u32 {
        self.sequence.wrapping_add(self.count) & SEQUENCE_MASK
    }

    fn next_offset(&self) -> Offset {
        self.base_offset + Offset::from(self.count)
    }

    /// Returns the offset of the first of `count` records if all of them are in this run.
    fn offset_of(&self, sequence: u32, count: u32) -> Option<Offset> {
        let before = sequence.wrapping_sub(self.sequence) & SEQUENCE_MASK;
        let is_inside = before < self.count && count <= self.count - before;
        is_inside.then(|| self.base_offset + Offset::from(before))
    }
}

impl State {
    fn new(epoch: i16) -> Self {
        Self { epoch, runs: VecDeque::new(), next_offset: 0, timestamp_ms: NO_TIME, open: None }
    }

    fn next_sequence(&self) -> u32 {
        self.runs.back().map_or(0, Run::next_sequence)
    }

    /// Adds the next batch.
    fn push(&mut self, batch: Run) {
        match self.runs.back_mut().filter(|last| last.next_offset() == batch.base_offset) {
            Some(last) => last.count += batch.count,
            None => {
                if self.runs.len() == PRODUCER_BATCHES_MAX {
                    self.runs.pop_front();
                }
                self.runs.push_back(batch);
            }
        }
        let first = self.runs[0].sequence;
        let remembered = self.next_sequence().wrapping_sub(first) & SEQUENCE_MASK;
        let mut surplus = remembered.saturating_sub(REMEMBERED_MAX);
        while surplus > 0 {
            let oldest = &mut self.runs[0];
            let less = surplus.min(oldest.count);
            oldest.sequence = oldest.sequence.wrapping_add(less) & SEQUENCE_MASK;
            oldest.base_offset += Offset::from(less);
            oldest.count -= less;
            surplus -= less;
            if oldest.count == 0 {
                self.runs.pop_front();
            }
        }
    }
}

impl Producers {
    /// Returns the number of producers.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Classifies a batch of `count` records. Fails if it is out of sequence or fenced. Changes nothing:
    /// [`Producers::note`] records the append.
    pub fn check(&self, producer: Producer, count: u32) -> Result<Step> {
        let Producer { id, epoch, sequence } = producer;
        if epoch < 0 || sequence < 0 {
            let message = format!("producer {id} has epoch {epoch} and sequence {sequence}; neither is below 0");
            return Err(Error::invalid(message));
        }
        let state = self.states.get(&id);
        if let Some(state) = state.filter(|state| epoch < state.epoch) {
            return Err(fenced(id, epoch, state.epoch));
        }
        let Some(state) = state.filter(|state| epoch == state.epoch) else {
            if sequence == 0 {
                return Ok(Step::Next);
            }
            let message = format!(
                "producer {id}, epoch {epoch}, is unknown or has expired: expected sequence 0, found {sequence}"
            );
            return Err(Error::new(ErrorKind::OutOfSequence, message));
        };
        let expected = state.next_sequence();
        if sequence as u32 == expected {
            return Ok(Step::Next);
        }
        match state.runs.iter().rev().find_map(|run| run.offset_of(sequence as u32, count)) {
            Some(base_offset) => Ok(Step::Duplicate { base_offset }),
            None => Err(Error::new(
                ErrorKind::OutOfSequence,
                format!("producer {id}, epoch {epoch}: expected sequence {expected}, found {sequence}"),
            )),
        }
    }

    /// Returns an error if the epoch is fenced here.
    pub fn check_epoch(&self, id: i64, epoch: i16) -> Result<()> {
        match self.states.get(&id).filter(|state| epoch < state.epoch) {
            Some(state) => Err(fenced(id, epoch, state.epoch)),
            None => Ok(()),
        }
    }

    /// Records that the next batch of a producer, with `count` records, is in the log.
    pub fn note(&mut self, producer: Producer, count: u32, base_offset: Offset) {
        let Producer { id, epoch, sequence } = producer;
        let run = Run { sequence: sequence as u32, count, base_offset };
        let state = self.state(id, epoch);
        if state.epoch != epoch || state.next_sequence() != run.sequence {
            // The epoch is new, or batches are missing in the log: the earlier runs say nothing about later batches.
            state.epoch = epoch;
            state.runs.clear();
        }
        state.next_offset = run.next_offset();
        state.push(run);
    }

    /// Returns the state of a producer, which may be new. At the limit the producer that has been silent the longest is
    /// forgotten, unless its transaction is open.
    fn state(&mut self, id: i64, epoch: i16) -> &mut State {
        if self.states.len() >= PRODUCERS_MAX && !self.states.contains_key(&id) {
            let idle = self.states.iter().filter(|(_, state)| state.open.is_none());
            let silent = idle.min_by_key(|(_, state)| state.next_offset).map(|(id, _)| *id);
            silent.map(|id| self.states.remove(&id));
        }
        self.states.entry(id).or_insert_with(|| State::new(epoch))
    }

    /// Applies a batch that is already in the log, after a restart or an append: it is not checked again.
    pub fn replay(&mut self, batch: &RecordBatch) {
        let Some(producer) = batch.producer().filter(|producer| producer.epoch >= 0) else {
            return;
        };
        if batch.is_control() {
            self.markers_end = batch.next_offset();
            // An unreadable marker changes nothing else.
            if let Ok(Some(marker)) = batch.marker() {
                self.end_transaction(producer, marker.decision, batch);
            }
        } else if producer.sequence >= 0 {
            let count = (batch.next_offset() - batch.base_offset()) as u32;
            self.note(producer, count, batch.base_offset());
            let state = self.state(producer.id, producer.epoch);
            state.timestamp_ms = batch.max_timestamp_ms();
            if batch.is_transactional() && state.open.is_none() {
                state.open = Some(batch.base_offset());
                self.open.insert((batch.base_offset(), producer.id));
            }
        }
    }

    fn end_transaction(&mut self, producer: Producer, decision: Decision, marker: &RecordBatch) {
        let Producer { id, epoch, .. } = producer;
        let state = self.state(id, epoch);
        if epoch > state.epoch {
            state.epoch = epoch;
            state.runs.clear();
        }
        state.next_offset = marker.next_offset();
        state.timestamp_ms = marker.max_timestamp_ms();
        if let Some(first) = state.open.take() {
            self.open.remove(&(first, id));
            if decision == Decision::Abort {
                self.aborted.push_back(Aborted { producer: id, first, last: marker.base_offset() });
            }
        }
    }

    /// Returns the offset where the log stops being stable; `None` if no transaction is open.
    pub fn first_open(&self) -> Option<Offset> {
        self.open.first().map(|(first, _)| *first)
    }

    /// Returns the offset after the last marker: records from there on are aborted only by a later marker.
    pub fn markers_end(&self) -> Offset {
        self.markers_end
    }

    /// Returns the first offset of a producer's open transaction.
    pub fn open(&self, id: i64) -> Option<Offset> {
        self.states.get(&id)?.open
    }

    /// Returns the timestamp of the last batch of a producer's open transaction.
    pub fn open_timestamp_ms(&self, id: i64) -> Option<i64> {
        self.states.get(&id).filter(|state| state.open.is_some()).map(|state| state.timestamp_ms)
    }

    /// Returns the aborted transactions that may have records at or after `from` and before `to`.
    pub fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted> {
        let after = self.aborted.partition_point(|aborted| aborted.last < from);
        self.aborted.iter().skip(after).filter(|aborted| aborted.first < to).copied().collect()
    }

    pub fn aborted_len(&self) -> usize {
        self.aborted.len()
    }

    /// Forgets transactions that were aborted before this offset: the log has no records of them any more.
    pub fn forget_aborted(&mut self, before: Offset) {
        while self.aborted.pop_front_if(|aborted| aborted.last < before).is_some() {}
        if self.aborted.capacity() > 1024 && self.aborted.len() < self.aborted.capacity() / 4 {
            self.aborted.shrink_to(self.aborted.len() * 2);
        }
    }

    /// Returns the state of all producers, in the order of their ids.
    pub fn status(&self) -> Vec<ProducerStatus> {
        let status = |(id, state): (&i64, &State)| ProducerStatus {
            id: *id,
            epoch: state.epoch,
            last_sequence: state.runs.back().map(|run| (run.next_sequence().wrapping_sub(1) & SEQUENCE_MASK) as i32),
            timestamp_ms: Some(state.timestamp_ms).filter(|timestamp_ms| *timestamp_ms != NO_TIME),
            open: state.open,
        };
        let mut all: Vec<ProducerStatus> = self.states.iter().map(status).collect();
        all.sort_unstable_by_key(|status| status.id);
        all
    }

    /// Encodes all producers, all integers big-endian:
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 1 | version, 3 |
    /// | 4 | number of producers; of each, in the order of their ids: |
    /// | 8 | . id |
    /// | 2 | . epoch |
    /// | 8 | . the offset after its last batch (not in version 1) |
    /// | 8 | . the timestamp of its last batch, ms, -1 if it is unknown (not in version 1) |
    /// | 8 | . the first offset of its open transaction, all ones for none (not in version 1) |
    /// | 1 | . number of runs; of each, the oldest first: |
    /// | 4 | . . sequence of its first record |
    /// | 4 | . . number of records |
    /// | 8 | . . offset of its first record |
    /// | 4 | number of aborted transactions; of each, in the order of their markers (not in version 1): |
    /// | 8 | . id of its producer |
    /// | 8 | . the offset of its first record |
    /// | 8 | . the offset of its marker |
    /// | 8 | the offset after the last marker, 0 for none (from version 3 on) |
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(SNAPSHOT_VERSION);
        out.put_u32(self.states.len() as u32);
        let mut ids: Vec<i64> = self.states.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let state = &self.states[&id];
            out.put_i64(id);
            out.put_i16(state.epoch);
            out.put_u64(state.next_offset);
            out.put_i64(state.timestamp_ms);
            out.put_u64(state.open.unwrap_or(NONE));
            out.put_u8(state.runs.len() as u8);
            for run in &state.runs {
                out.put_u32(run.sequence);
                out.put_u32(run.count);
                out.put_u64(run.base_offset);
            }
        }
        out.put_u32(self.aborted.len() as u32);
        self.aborted.iter().for_each(|aborted| aborted.encode(out));
        out.put_u64(self.markers_end);
    }

    /// Decodes the output of [`Producers::encode`] of this or an earlier version. Trailing bytes are refused.
    pub fn decode(mut bytes: Bytes) -> Result<Self> {
        let version = bytes.try_get_u8().map_err(cut_short)?;
        if ![SNAPSHOT_VERSION_PLAIN, SNAPSHOT_VERSION_UNMARKED, SNAPSHOT_VERSION].contains(&version) {
            let message = format!("a snapshot of producers has version {SNAPSHOT_VERSION}, this one has {version}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let count = bytes.try_get_u32().map_err(cut_short)? as usize;
        if count > PRODUCERS_MAX {
            let message = format!("a snapshot has at most {PRODUCERS_MAX} producers, not {count}");
            return Err(Error::too_large(message));
        }
        let mut producers = Self::default();
        let mut last_id = -1;
        for _ in 0..count {
            let id = bytes.try_get_i64().map_err(cut_short)?;
            let state = State::decode(&mut bytes, version)?;
            if id <= last_id {
                return Err(Error::malformed(format!("producer {id} follows producer {last_id}: ids must increase")));
            }
            last_id = id;
            producers.open.extend(state.open.map(|first| (first, id)));
            producers.states.insert(id, state);
        }
        if version != SNAPSHOT_VERSION_PLAIN {
            producers.aborted = aborted::decode_all(&mut bytes)?;
        }
        producers.markers_end = match version {
            SNAPSHOT_VERSION_PLAIN => 0,
            // A producer is forgotten only in favor of one that wrote later: no marker is after the last batch of all.
            SNAPSHOT_VERSION_UNMARKED => producers.states.values().map(|state| state.next_offset).max().unwrap_or(0),
            _ => bytes.try_get_u64().map_err(cut_short)?,
        };
        match bytes.remaining() {
            0 => Ok(producers),
            left => Err(Error::malformed(format!("{left} bytes are left after the last field"))),
        }
    }
}

impl State {
    fn decode(bytes: &mut Bytes, version: u8) -> Result<Self> {
        let epoch = bytes.try_get_i16().map_err(cut_short)?;
        let mut state = Self::new(epoch);
        let is_plain = version == SNAPSHOT_VERSION_PLAIN;
        if !is_plain {
            state.next_offset = bytes.try_get_u64().map_err(cut_short)?;
            state.timestamp_ms = bytes.try_get_i64().map_err(cut_short)?;
            state.open = Some(bytes.try_get_u64().map_err(cut_short)?).filter(|first| *first != NONE);
        }
        let count = usize::from(bytes.try_get_u8().map_err(cut_short)?);
        let mut remembered = 0;
        for _ in 0..count {
            let run = Run {
                sequence: bytes.try_get_u32().map_err(cut_short)?,
                count: bytes.try_get_u32().map_err(cut_short)?,
                base_offset: bytes.try_get_u64().map_err(cut_short)?,
            };
            let is_after = |last: &Run| last.next_sequence() == run.sequence && last.next_offset() < run.base_offset;
            let is_valid = run.sequence <= SEQUENCE_MASK
                && (1..=REMEMBERED_MAX - remembered).contains(&run.count)
                && run.base_offset <= i64::MAX as u64
                && state.runs.back().is_none_or(is_after);
            if !is_valid {
                return Err(Error::malformed(format!("this run of a producer is not valid: {run:?}")));
            }
            remembered += run.count;
            state.runs.push_back(run);
        }
        let runs_end = state.runs.back().map_or(0, Run::next_offset);
        if is_plain {
            state.next_offset = runs_end;
        }
        let are_offsets_valid = (runs_end..=i64::MAX as u64 + (1 << 32)).contains(&state.next_offset)
            && state.open.is_none_or(|first| first < state.next_offset);
        if epoch < 0 || (count == 0 && is_plain) || count > PRODUCER_BATCHES_MAX || !are_offsets_valid {
            return Err(Error::malformed(format!(
                "this state of a producer is not valid: epoch {epoch}, {count} runs: {state:?}"
            )));
        }
        Ok(state)
    }
}

fn fenced(id: i64, epoch: i16, current: i16) -> Error {
    let message = format!("producer {id} now has epoch {current}: epoch {epoch} is fenced");
    Error::new(ErrorKind::Fenced, message)
}

fn cut_short(error: bytes::TryGetError) -> Error {
    Error::malformed(format!("a snapshot of producers is cut short: {error}"))
}

#[cfg(test)]
mod tests;
