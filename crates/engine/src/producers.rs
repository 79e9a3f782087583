//! What a partition knows of its producers, so that it takes each of their batches once and in order.
//!
//! A producer numbers its records of a partition from 0; after `i32::MAX` comes 0 again. Its next batch has to
//! begin with the number after the last one that was taken. One that was taken before is a duplicate and gets
//! the offset that it got then; anything else is refused. So a producer may send whatever is unanswered again.

use std::collections::{HashMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Offset;
use crate::limits::{PRODUCER_BATCHES_MAX, PRODUCERS_MAX};
use crate::record::{Producer, RecordBatch};

/// Sequences are 31 bits wide.
const SEQUENCE_MASK: u32 = i32::MAX as u32;
/// Records of a producer that are remembered at most, half of all sequences: so what is behind and what is ahead
/// stay apart.
const REMEMBERED_MAX: u32 = 1 << 30;
const SNAPSHOT_VERSION: u8 = 1;

/// What a batch is to its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next one of its producer.
    Next,
    /// It is in the log since then, with this offset.
    Duplicate { base_offset: Offset },
}

/// The producers of one partition. All of it follows from the log, batch by batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    states: HashMap<i64, State, foldhash::fast::RandomState>,
}

/// Invariant: there is at least one run, each goes on in sequence where the one before it ends, and later in
/// the log. All together have at most [`REMEMBERED_MAX`] records.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    epoch: i16,
    runs: VecDeque<Run>,
}

/// Batches that follow each other in sequence and in the log: while nobody else writes to the partition, all
/// that a producer wrote is one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Of its first record.
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

    /// The offset of records that are all in this run.
    fn offset_of(&self, sequence: u32, count: u32) -> Option<Offset> {
        let before = sequence.wrapping_sub(self.sequence) & SEQUENCE_MASK;
        let is_inside = before < self.count && count <= self.count - before;
        is_inside.then(|| self.base_offset + Offset::from(before))
    }
}

impl State {
    fn last(&self) -> &Run {
        self.runs.back().expect("invariant: a producer has a run")
    }

    /// Adds a batch in its order.
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
        let remembered = self.last().next_sequence().wrapping_sub(first) & SEQUENCE_MASK;
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
    /// How many there are.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// What a batch of so many records is. Nothing changes: [`Producers::note`] tells that it was appended.
    pub fn check(&self, producer: Producer, count: u32) -> Result<Step> {
        let Producer { id, epoch, sequence } = producer;
        if epoch < 0 || sequence < 0 {
            let message = format!("producer {id} has epoch {epoch} and sequence {sequence}; neither is below 0");
            return Err(Error::invalid(message));
        }
        let state = self.states.get(&id);
        if let Some(state) = state.filter(|state| epoch < state.epoch) {
            let message = format!("producer {id} goes on with epoch {}: epoch {epoch} is over", state.epoch);
            return Err(Error::new(ErrorKind::Fenced, message));
        }
        let Some(state) = state.filter(|state| epoch == state.epoch) else {
            if sequence == 0 {
                return Ok(Step::Next);
            }
            let message = format!(
                "producer {id}, epoch {epoch}, is not known here, or no longer: expected sequence 0, found {sequence}"
            );
            return Err(Error::new(ErrorKind::OutOfSequence, message));
        };
        let expected = state.last().next_sequence();
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

    /// A batch of so many records, whose turn it was, is in the log.
    pub fn note(&mut self, producer: Producer, count: u32, base_offset: Offset) {
        let Producer { id, epoch, sequence } = producer;
        let run = Run { sequence: sequence as u32, count, base_offset };
        if let Some(state) = self.states.get_mut(&id) {
            if state.epoch != epoch || state.last().next_sequence() != run.sequence {
                // Another epoch, or a log of which something is missing: what was before says nothing.
                state.epoch = epoch;
                state.runs.clear();
            }
            return state.push(run);
        }
        if self.states.len() >= PRODUCERS_MAX {
            let silent = self.states.iter().min_by_key(|(_, state)| state.last().next_offset()).map(|(id, _)| *id);
            silent.map(|id| self.states.remove(&id));
        }
        self.states.insert(id, State { epoch, runs: VecDeque::from([run]) });
    }

    /// A batch that is in the log already, after a restart: what was taken once is not questioned.
    pub fn replay(&mut self, batch: &RecordBatch) {
        let is_numbered = |producer: &Producer| producer.epoch >= 0 && producer.sequence >= 0;
        if let Some(producer) = batch.producer().filter(is_numbered) {
            let count = (batch.next_offset() - batch.base_offset()) as u32;
            self.note(producer, count, batch.base_offset());
        }
    }

    /// All of it as bytes, all integers big-endian:
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 1 | version, 1 |
    /// | 4 | number of producers; of each, in the order of their ids: |
    /// | 8 | . id |
    /// | 2 | . epoch |
    /// | 1 | . number of runs; of each, the oldest first: |
    /// | 4 | . . sequence of its first record |
    /// | 4 | . . number of records |
    /// | 8 | . . offset of its first record |
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(SNAPSHOT_VERSION);
        out.put_u32(self.states.len() as u32);
        let mut ids: Vec<i64> = self.states.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let state = &self.states[&id];
            out.put_i64(id);
            out.put_i16(state.epoch);
            out.put_u8(state.runs.len() as u8);
            for run in &state.runs {
                out.put_u32(run.sequence);
                out.put_u32(run.count);
                out.put_u64(run.base_offset);
            }
        }
    }

    /// What [`Producers::encode`] wrote, and nothing else.
    pub fn decode(mut bytes: Bytes) -> Result<Self> {
        let version = bytes.try_get_u8().map_err(cut_short)?;
        if version != SNAPSHOT_VERSION {
            let message = format!("a snapshot of producers has version {SNAPSHOT_VERSION}, this one has {version}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let count = bytes.try_get_u32().map_err(cut_short)? as usize;
        if count > PRODUCERS_MAX {
            let message = format!("a partition remembers at most {PRODUCERS_MAX} producers, this one says {count}");
            return Err(Error::too_large(message));
        }
        let (mut producers, mut last_id) = (Self::default(), -1);
        for _ in 0..count {
            let id = bytes.try_get_i64().map_err(cut_short)?;
            let state = State::decode(&mut bytes)?;
            if id <= last_id {
                return Err(Error::malformed(format!("producer {id} comes after {last_id}")));
            }
            last_id = id;
            producers.states.insert(id, state);
        }
        match bytes.remaining() {
            0 => Ok(producers),
            left => Err(Error::malformed(format!("{left} bytes are left after the last producer"))),
        }
    }
}

impl State {
    fn decode(bytes: &mut Bytes) -> Result<Self> {
        let epoch = bytes.try_get_i16().map_err(cut_short)?;
        let count = usize::from(bytes.try_get_u8().map_err(cut_short)?);
        let mut state = Self { epoch, runs: VecDeque::new() };
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
                return Err(Error::malformed(format!("no producer has written this: {run:?}")));
            }
            remembered += run.count;
            state.runs.push_back(run);
        }
        if epoch < 0 || count == 0 || count > PRODUCER_BATCHES_MAX {
            return Err(Error::malformed(format!("no producer has epoch {epoch} and {count} runs")));
        }
        Ok(state)
    }
}

fn cut_short(error: bytes::TryGetError) -> Error {
    Error::malformed(format!("a snapshot of producers is cut short: {error}"))
}

#[cfg(test)]
#[path = "producers_tests.rs"]
mod tests;
