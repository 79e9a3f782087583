//! Gives offsets to batches, in order and without holes: the one place where a partition grows.
//!
//! A batch of a transaction is taken only if the coordinator has *begun* that transaction here, and ends with a marker.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Offset;
use crate::limits::{PARTITION_ABORTED_MAX, PARTITION_TRANSACTIONS_MAX};
use crate::producers::{Aborted, Producers, Step};
use crate::record::{DraftBatch, Producer, RecordBatch};

/// The order of one partition.
#[derive(Debug, Default)]
pub struct Partition {
    /// The offset that the next record gets. Invariant: every smaller offset was given exactly once.
    end: Offset,
    producers: Producers,
    /// Producers that the coordinator lets write transactions here, and with which epoch. It says so again after a
    /// restart.
    begun: HashMap<i64, i16, foldhash::fast::RandomState>,
}

/// Where a batch is after an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Behind all others.
    New(RecordBatch),
    /// Where it has been since its producer sent it before.
    Duplicate { base_offset: Offset },
}

impl Partition {
    /// A partition that goes on after a restart: what a snapshot of its producers covers ends at `end`, and what
    /// the log has beyond is told by [`Partition::replay`].
    pub fn resume(end: Offset, producers: Producers) -> Self {
        Self { end, producers, begun: HashMap::default() }
    }

    pub fn end(&self) -> Offset {
        self.end
    }

    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// Where the batch would be: behind all others, unless its producer sent it before or left something out. Its
    /// bytes are not copied: the base offset lies outside its checksum.
    pub fn place(&self, draft: DraftBatch) -> Result<Placed> {
        let is_transactional = draft.is_transactional();
        match draft.producer() {
            // The coordinator's word is final, whatever epoch somebody has written with.
            Some(_) if draft.is_control() => {}
            Some(producer) => {
                let step = self.producers.check(producer, draft.count());
                if let Ok(Step::Duplicate { base_offset }) = step {
                    return Ok(Placed::Duplicate { base_offset });
                }
                // What is of no transaction here is refused for that, whatever its number.
                if is_transactional {
                    self.check_begun(producer, is_transactional)?;
                }
                step?;
                self.check_begun(producer, is_transactional)?;
            }
            None if is_transactional => return Err(Error::invalid("a batch of a transaction names its producer")),
            None => {}
        }
        Ok(Placed::New(draft.stamp(self.end)))
    }

    /// A transaction that was not begun here, or is over, takes nothing; and as long as one is, its producer writes
    /// nothing else.
    fn check_begun(&self, producer: Producer, is_transactional: bool) -> Result<()> {
        let Producer { id, epoch, .. } = producer;
        match (is_transactional, self.begun.get(&id)) {
            (true, Some(begun)) if *begun == epoch => Ok(()),
            // After a restart one may be open that is not begun again yet.
            (false, None) if self.producers.open(id).is_none() => Ok(()),
            (true, _) => {
                let message = format!("producer {id}, epoch {epoch}, has no open transaction in this partition");
                Err(Error::new(ErrorKind::Fenced, message))
            }
            (false, _) => Err(Error::invalid(format!(
                "producer {id} has an open transaction in this partition, and this batch is not part of it"
            ))),
        }
    }

    /// The coordinator has decided that a producer's transaction may write here.
    pub fn begin(&mut self, id: i64, epoch: i16) -> Result<()> {
        self.producers.check_epoch(id, epoch)?;
        if !self.begun.contains_key(&id) {
            let (begun, aborted) = (self.begun.len(), self.producers.aborted_len());
            if begun >= PARTITION_TRANSACTIONS_MAX {
                return Err(Error::busy(format!(
                    "{begun} transactions are open in this partition, which is the limit: try again later"
                )));
            }
            if begun + aborted >= PARTITION_ABORTED_MAX {
                return Err(Error::busy(format!(
                    "this partition has records of {aborted} aborted transactions, which is the limit: it accepts new \
                     transactions after retention or compaction has removed some"
                )));
            }
        }
        self.begun.insert(id, epoch);
        Ok(())
    }

    /// Nothing more is taken of a producer's transaction. Where something was, it needs a marker: with the timestamp of
    /// its last batch, so that no search by time meets a marker before the records that it is about.
    pub fn close(&mut self, id: i64) -> Option<i64> {
        self.begun.remove(&id);
        self.producers.open_timestamp_ms(id)
    }

    /// What is before this offset was committed or aborted for good.
    pub fn stable_end(&self) -> Offset {
        self.producers.first_open().unwrap_or(self.end)
    }

    /// Aborted transactions that may have records from an offset up to another.
    pub fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted> {
        self.producers.aborted(from, to)
    }

    /// The log has no records any more of transactions that were aborted before this offset.
    pub fn forget_aborted(&mut self, before: Offset) {
        self.producers.forget_aborted(before);
    }

    /// The same, and the batch is in the log.
    pub fn append(&mut self, draft: DraftBatch) -> Result<Placed> {
        let placed = self.place(draft)?;
        if let Placed::New(batch) = &placed {
            self.replay(batch);
        }
        Ok(placed)
    }

    /// A batch is in the log, behind all others.
    pub fn replay(&mut self, batch: &RecordBatch) {
        self.producers.replay(batch);
        self.end = batch.next_offset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::record::{BatchBuilder, Producer};

    fn draft(records: u64, producer: Option<Producer>) -> DraftBatch {
        let mut builder = BatchBuilder::new();
        for _ in 0..records {
            builder.push(5, None, Some(b"v"), &[]).expect("small record");
        }
        builder.finish_with(Codec::None, producer).expect("records")
    }

    #[test]
    fn offsets_have_no_holes() {
        let mut partition = Partition::default();
        for count in [1u64, 3, 2] {
            let before = partition.end();
            let Ok(Placed::New(batch)) = partition.append(draft(count, None)) else {
                panic!("not appended");
            };
            assert_eq!(batch.base_offset(), before);
            assert_eq!(partition.end(), before + count);
        }
    }

    #[test]
    fn a_batch_that_is_sent_again_is_in_the_log_once() {
        let mut partition = Partition::default();
        let first = |sequence| Some(Producer { id: 7, epoch: 0, sequence });
        assert!(matches!(partition.append(draft(1, None)), Ok(Placed::New(_))));
        assert!(matches!(partition.append(draft(3, first(0))), Ok(Placed::New(_))));
        assert_eq!(partition.append(draft(3, first(0))), Ok(Placed::Duplicate { base_offset: 1 }));
        assert!(partition.append(draft(1, first(4))).is_err(), "one is missing");
        assert_eq!(partition.end(), 4);

        let mut resumed = Partition::resume(1, Producers::default());
        resumed.replay(&draft(3, first(0)).stamp(1));
        assert_eq!((resumed.end(), resumed.producers()), (4, partition.producers()));
    }
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod transactions;
