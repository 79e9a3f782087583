//! A partition's log in memory: its newest batches, as many as retention lets stay.

use std::collections::VecDeque;

use engine::{Error, ErrorKind, Offset, RecordBatch, Result};

/// What a kept batch costs beside its bytes: its entry here and its allocation.
const ENTRY_BYTES: usize = 96;

#[derive(Debug)]
struct Entry {
    batch: RecordBatch,
    appended_ms: u64,
}

/// Invariant: the batches are contiguous, the last one ends at `end`.
#[derive(Debug, Default)]
pub struct MemoryLog {
    entries: VecDeque<Entry>,
    /// Records before it were deleted, also those of a batch that is still here.
    deleted: Offset,
    end: Offset,
    bytes: usize,
}

impl MemoryLog {
    /// The offset of the oldest record that is still here; the end where there is none.
    pub fn start(&self) -> Offset {
        self.entries.front().map_or(self.end, |entry| entry.batch.base_offset().max(self.deleted))
    }

    /// The offset after the newest record.
    pub fn end(&self) -> Offset {
        self.end
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn batches(&self) -> usize {
        self.entries.len()
    }

    /// What a batch of this many bytes costs once it is in the log.
    pub fn cost(batch_bytes: usize) -> usize {
        batch_bytes + ENTRY_BYTES
    }

    pub fn append(&mut self, batch: RecordBatch, now_ms: u64) {
        debug_assert_eq!(batch.base_offset(), self.end, "invariant: appends are contiguous");
        self.end = batch.next_offset();
        self.bytes += Self::cost(batch.len());
        self.entries.push_back(Entry { batch, appended_ms: now_ms });
    }

    /// Removes what retention no longer covers and returns the bytes that became free. 0 is no limit.
    /// The newest batch stays, so that a topic with little traffic still shows its last word, unless
    /// its time has passed.
    pub fn trim(&mut self, retention_bytes: u64, retention_ms: u64, now_ms: u64) -> usize {
        let before = self.bytes;
        while retention_bytes > 0 && self.bytes as u64 > retention_bytes && self.entries.len() > 1 {
            self.pop_oldest();
        }
        while retention_ms > 0
            && self.entries.front().is_some_and(|entry| entry.appended_ms.saturating_add(retention_ms) <= now_ms)
        {
            self.pop_oldest();
        }
        before - self.bytes
    }

    /// Removes the records before an offset and returns the bytes that became free.
    pub fn set_start(&mut self, start: Offset) -> usize {
        let before = self.bytes;
        self.deleted = self.deleted.max(start.min(self.end));
        while self.entries.front().is_some_and(|entry| entry.batch.next_offset() <= self.deleted) {
            self.pop_oldest();
        }
        before - self.bytes
    }

    fn pop_oldest(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= Self::cost(entry.batch.len());
        }
        // A burst leaves a large ring behind; give it back once it is mostly empty.
        if self.entries.capacity() > 1024 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// The batches from the one that holds `from`, up to `bytes_max`, at least one where there is one.
    /// Empty at the end of the log.
    pub fn read(&self, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        if from < self.start() || from > self.end {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("offset {from} is not in the log, which has {} to {}", self.start(), self.end),
            ));
        }
        let first = self.entries.partition_point(|entry| entry.batch.next_offset() <= from);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.batch.len();
            bytes <= bytes_max || bytes == entry.batch.len()
        };
        Ok(self.entries.iter().skip(first).take_while(fits).map(|entry| entry.batch.clone()).collect())
    }

    /// The offset of the first batch with a record at or after this time; the end where there is none.
    pub fn offset_for_time(&self, timestamp_ms: i64) -> Offset {
        self.entries
            .iter()
            .find(|entry| entry.batch.max_timestamp_ms() >= timestamp_ms)
            .map_or(self.end, |entry| entry.batch.base_offset().max(self.deleted))
    }
}

#[cfg(test)]
mod tests {
    use engine::{BatchBuilder, Partition, Placed};

    use super::*;

    fn log_of(batches: &[(u32, i64, u64)]) -> MemoryLog {
        let (mut partition, mut log) = (Partition::default(), MemoryLog::default());
        for (records, timestamp_ms, now_ms) in batches {
            let mut builder = BatchBuilder::new();
            for _ in 0..*records {
                builder.push(*timestamp_ms, None, Some(&[7; 100]), &[]).expect("small record");
            }
            match partition.append(builder.finish().expect("records")) {
                Ok(Placed::New(batch)) => log.append(batch, *now_ms),
                other => panic!("not appended: {other:?}"),
            }
        }
        log
    }

    #[test]
    fn reads_from_the_batch_that_holds_the_offset() {
        let log = log_of(&[(2, 0, 0), (3, 0, 0), (1, 0, 0)]);
        let bases = |from, max| -> Vec<u64> {
            log.read(from, max).expect("in range").iter().map(RecordBatch::base_offset).collect()
        };
        assert_eq!(bases(0, usize::MAX), [0, 2, 5]);
        assert_eq!(bases(1, usize::MAX), [0, 2, 5]);
        assert_eq!(bases(3, usize::MAX), [2, 5]);
        assert_eq!(bases(0, 1), [0], "at least one batch, however large");
        assert_eq!(bases(6, usize::MAX), [0u64; 0]);
        assert_eq!(log.read(7, 1).map_err(|e| e.kind), Err(ErrorKind::OutOfRange));
    }

    #[test]
    fn retention_by_bytes_keeps_the_newest() {
        let mut log = log_of(&[(1, 0, 0); 10]);
        let one = log.bytes() / 10;
        let freed = log.trim(3 * one as u64, 0, 0);
        assert_eq!((log.start(), log.end(), freed), (7, 10, 7 * one));
        log.trim(1, 0, 0);
        assert_eq!((log.start(), log.end()), (9, 10));
        assert_eq!(log.read(0, 1).map_err(|e| e.kind), Err(ErrorKind::OutOfRange));
    }

    #[test]
    fn retention_by_time_empties_the_log_and_keeps_its_end() {
        let mut log = log_of(&[(1, 0, 100), (1, 0, 200), (1, 0, 300)]);
        log.trim(0, 150, 260);
        assert_eq!(log.start(), 1);
        log.trim(0, 150, 1000);
        assert_eq!((log.start(), log.end(), log.bytes()), (3, 3, 0));
    }

    #[test]
    fn time_finds_the_first_batch_that_reaches_it() {
        let log = log_of(&[(1, 10, 0), (1, 30, 0), (1, 20, 0)]);
        assert_eq!([0, 10, 11, 30, 31].map(|t| log.offset_for_time(t)), [0, 0, 1, 1, 3]);
    }
}
