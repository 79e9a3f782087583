//! Gives offsets to batches, in order and without holes: the one place where a partition grows.

use crate::ids::Offset;
use crate::record::{DraftBatch, RecordBatch};

/// The order of one partition.
#[derive(Debug, Default)]
pub struct Partition {
    /// The offset that the next record gets. Invariant: every smaller offset was given exactly once.
    end: Offset,
}

impl Partition {
    /// Goes on where a log ends.
    pub fn from_end(end: Offset) -> Self {
        Self { end }
    }

    pub fn end(&self) -> Offset {
        self.end
    }

    /// Puts the batch behind all others. Its bytes are not copied: the base offset lies outside its checksum.
    pub fn append(&mut self, draft: DraftBatch) -> RecordBatch {
        let batch = draft.stamp(self.end);
        self.end = batch.next_offset();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::BatchBuilder;

    #[test]
    fn offsets_have_no_holes() {
        let mut partition = Partition::default();
        for count in [1u64, 3, 2] {
            let mut builder = BatchBuilder::new();
            for _ in 0..count {
                builder.push(5, None, Some(b"v"), &[]).expect("small record");
            }
            let before = partition.end();
            let batch = partition.append(builder.finish().expect("records"));
            assert_eq!(batch.base_offset(), before);
            assert_eq!(partition.end(), before + count);
        }
    }
}
