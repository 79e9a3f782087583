//! Records in the middle of a log that are no longer needed, and the holes that readers get in their place.

use engine::{Offset, RecordBatch};

/// Forgotten records of one batch.
#[derive(Debug)]
pub(crate) struct Forgotten {
    /// Bit set with one bit for each offset of the batch.
    bits: Box<[u64]>,
    /// Number of set bits that were added since the batch was last written.
    count: u32,
}

impl Forgotten {
    /// Marks one record of a batch as forgotten. `None`: the batch stays as it is. `Some(Some(_))`: the batch with the
    /// remaining records replaces it. `Some(None)`: its last record was forgotten, so it is removed. A batch is
    /// rewritten when half of its records are forgotten, so that each byte is copied about once. Records before the
    /// start of the log are deleted in any case and count as forgotten.
    pub(crate) fn note(
        of: &mut Option<Box<Self>>,
        batch: &RecordBatch,
        offset: Offset,
        start: Offset,
    ) -> Option<Option<RecordBatch>> {
        let base = batch.base_offset();
        let span = batch.next_offset() - batch.base_offset();
        if span == 1 {
            return Some(None);
        }
        let forgotten =
            of.get_or_insert_with(|| Box::new(Self { bits: vec![0; span.div_ceil(64) as usize].into(), count: 0 }));
        if !forgotten.set(offset - base) {
            return None;
        }
        let deleted = start.saturating_sub(base);
        if u64::from(forgotten.count) + deleted < u64::from(batch.count().div_ceil(2)) {
            return None;
        }
        forgotten.count = 0;
        match batch.thinned(|record| record.offset >= start && !forgotten.has(record.offset - base)) {
            Ok(left) if left.count() == 0 => Some(None),
            Ok(left) if left.count() < batch.count() => Some(Some(left)),
            // A batch that does not decode stays until retention deletes it.
            _ => None,
        }
    }

    fn has(&self, at: u64) -> bool {
        self.bits[(at / 64) as usize] & (1 << (at % 64)) != 0
    }

    fn set(&mut self, at: u64) -> bool {
        let is_new = !self.has(at);
        self.bits[(at / 64) as usize] |= 1 << (at % 64);
        self.count += u32::from(is_new);
        is_new
    }
}

/// Consecutive batches for a reader: a batch without records covers offsets that were forgotten.
pub(crate) struct Gathered {
    batches: Vec<RecordBatch>,
    /// Highest offset that the next batch may begin at.
    at: Offset,
    bytes: usize,
    bytes_max: usize,
}

impl Gathered {
    pub(crate) fn new(from: Offset, bytes_max: usize) -> Self {
        Self { batches: Vec::new(), at: from, bytes: 0, bytes_max }
    }

    /// Adds a batch, and batches without records for the offsets before it; returns `false` if `bytes_max` has no room
    /// for all of it. The first batch always fits, even if it has no records.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> bool {
        self.fill(batch.base_offset()) && self.add(batch)
    }

    fn fill(&mut self, to: Offset) -> bool {
        while self.at < to {
            if !self.add(RecordBatch::hole(self.at, to)) {
                return false;
            }
        }
        true
    }

    fn add(&mut self, batch: RecordBatch) -> bool {
        if !self.batches.is_empty() && self.bytes + batch.len() > self.bytes_max {
            return false;
        }
        self.bytes += batch.len();
        self.at = batch.next_offset();
        self.batches.push(batch);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(crate) fn batches(self) -> Vec<RecordBatch> {
        self.batches
    }

    /// Returns the batches, with batches without records up to `end`.
    pub(crate) fn reach(mut self, end: Offset) -> Vec<RecordBatch> {
        self.fill(end);
        self.batches
    }
}
