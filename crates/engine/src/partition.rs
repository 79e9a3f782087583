//! Gives offsets to batches, in order and without holes: the one place where a partition grows.

use crate::error::Result;
use crate::ids::Offset;
use crate::producers::{Producers, Step};
use crate::record::{DraftBatch, RecordBatch};

/// The order of one partition.
#[derive(Debug, Default)]
pub struct Partition {
    /// The offset that the next record gets. Invariant: every smaller offset was given exactly once.
    end: Offset,
    producers: Producers,
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
        Self { end, producers }
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
        if let Some(producer) = draft.producer()
            && let Step::Duplicate { base_offset } = self.producers.check(producer, draft.count())?
        {
            return Ok(Placed::Duplicate { base_offset });
        }
        Ok(Placed::New(draft.stamp(self.end)))
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
