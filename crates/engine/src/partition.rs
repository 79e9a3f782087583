//! Offsets of a partition: batches get them in order and without gaps. Only this code extends a partition.
//!
//! A batch of a transaction is accepted only if the coordinator has *begun* that transaction here. The transaction ends
//! with a marker.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Offset;
use crate::limits::{PARTITION_ABORTED_MAX, PARTITION_TRANSACTIONS_MAX};
use crate::producers::{Aborted, Producers, Step};
use crate::record::{DraftBatch, ONLY_EPOCH, Producer, RecordBatch};

/// Append order of one partition.
#[derive(Debug, Default)]
pub struct Partition {
    /// Offset of the next record. Invariant: every smaller offset was assigned exactly once.
    end: Offset,
    /// Leader epoch of the batches that are placed here.
    epoch: i32,
    producers: Producers,
    /// Epochs of the producers that the coordinator allows to write transactions here, by producer id. The coordinator
    /// begins open transactions again after a restart.
    begun: HashMap<i64, i16, foldhash::fast::RandomState>,
}

/// Place of a batch after an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Batch was appended after all others.
    New(RecordBatch),
    /// Batch was sent before and is in the log at this offset.
    Duplicate { base_offset: Offset },
}

impl Partition {
    /// Returns a partition that resumes after a restart. The snapshot of its producers covers the log up to `end`;
    /// [`Partition::replay`] adds the batches after it.
    pub fn resume(end: Offset, producers: Producers) -> Self {
        Self { end, epoch: ONLY_EPOCH, producers, begun: HashMap::default() }
    }

    /// Returns the partition with this leader epoch in all batches that it places.
    pub fn led_in(self, epoch: i32) -> Self {
        Self { epoch, ..self }
    }

    pub fn end(&self) -> Offset {
        self.end
    }

    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// Returns the place that the batch would get: after all others, unless it is a duplicate. Fails if batches of its
    /// producer are missing before it, or if it does not belong to the transaction that is open here. The bytes are not
    /// copied: the base offset lies outside the checksum.
    pub fn place(&self, draft: DraftBatch) -> Result<Placed> {
        let is_transactional = draft.is_transactional();
        match draft.producer() {
            // The coordinator's decision is final, even if a client has written with a larger epoch.
            Some(_) if draft.is_control() => {}
            // Sites number their records for each other, and not in each partition.
            Some(producer) if producer.is_mesh() && !is_transactional => {}
            Some(producer) => {
                let step = self.producers.check(producer, draft.count());
                if let Ok(Step::Duplicate { base_offset }) = step {
                    return Ok(Placed::Duplicate { base_offset });
                }
                // A batch without a transaction begun here fails for that reason, whatever its sequence.
                if is_transactional {
                    self.check_begun(producer, is_transactional)?;
                }
                step?;
                self.check_begun(producer, is_transactional)?;
            }
            None if is_transactional => return Err(Error::invalid("a batch of a transaction names its producer")),
            None => {}
        }
        Ok(Placed::New(draft.stamp_in(self.end, self.epoch)))
    }

    /// Checks a batch against the transactions that were begun here. A transaction that was not begun here, or has
    /// ended, accepts no batches; while one is open, its producer writes nothing else.
    fn check_begun(&self, producer: Producer, is_transactional: bool) -> Result<()> {
        let Producer { id, epoch, .. } = producer;
        match (is_transactional, self.begun.get(&id)) {
            (true, Some(begun)) if *begun == epoch => Ok(()),
            // After a restart a transaction may be open that was not begun again yet.
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

    /// Allows a producer's transaction to write here, as the coordinator has decided. Fails if the epoch is fenced, or
    /// if the limit of open or aborted transactions is reached.
    pub fn begin(&mut self, id: i64, epoch: i16) -> Result<()> {
        self.producers.check_epoch(id, epoch)?;
        if !self.begun.contains_key(&id) {
            let begun = self.begun.len();
            let aborted = self.producers.aborted_len();
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

    /// Stops accepting batches of a producer's transaction. Returns the timestamp of its last batch if the transaction
    /// has batches here and therefore needs a marker. The marker gets this timestamp, so that a search by time finds no
    /// marker before the records that it ends.
    pub fn close(&mut self, id: i64) -> Option<i64> {
        self.begun.remove(&id);
        self.producers.open_timestamp_ms(id)
    }

    /// Returns the offset before which every transaction is committed or aborted for good.
    pub fn stable_end(&self) -> Offset {
        self.producers.first_open().unwrap_or(self.end)
    }

    /// Returns the aborted transactions that may have records at or after `from` and before `to`.
    pub fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted> {
        self.producers.aborted(from, to)
    }

    /// Forgets transactions that were aborted before this offset: the log has no records of them any more.
    pub fn forget_aborted(&mut self, before: Offset) {
        self.producers.forget_aborted(before);
    }

    /// Places the batch and records it as appended.
    pub fn append(&mut self, draft: DraftBatch) -> Result<Placed> {
        let placed = self.place(draft)?;
        if let Placed::New(batch) = &placed {
            self.replay(batch);
        }
        Ok(placed)
    }

    /// Records a batch that was appended to the log after all others.
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

        let mut led = Partition::default().led_in(7);
        let Ok(Placed::New(batch)) = led.append(draft(2, None)) else {
            panic!("not appended");
        };
        let parsed = RecordBatch::parse(batch.bytes().clone()).expect("the checksum does not cover the epoch");
        assert_eq!((parsed.leader_epoch(), parsed.base_offset()), (7, 0));

        let mut resumed = Partition::resume(1, Producers::default());
        resumed.replay(&draft(3, first(0)).stamp(1));
        assert_eq!((resumed.end(), resumed.producers()), (4, partition.producers()));
    }
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod transactions;
