//! Log of a partition in memory: its newest batches within the retention limits, without forgotten records.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::producers::{Aborted, Producers};
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use crate::holes::{Forgotten, Gathered};
use crate::journal::Owner;
use crate::log::{Commits, LogExtent, PartitionLog, Read};

/// Memory cost of a kept batch in addition to its bytes: its entry here and its allocation.
const ENTRY_BYTES: usize = 96;
/// Number of batches of a [`Peak`].
const PEAK_BATCHES: u32 = 1024;
/// Minimum number of entries without a batch before they are removed; they also have to outnumber the batches.
const GONE_MIN: usize = 64;

/// Highest time of the records in consecutive batches, some of which may have been removed since.
#[derive(Clone, Copy, Debug)]
struct Peak {
    /// Offset after the last of the batches.
    until: Offset,
    batches: u32,
    max_ms: i64,
}

#[derive(Debug)]
struct Entry {
    /// Offset after the last record of the batch.
    next: Offset,
    appended_ms: u64,
    /// Batch; `None` if all of its records were forgotten.
    batch: Option<RecordBatch>,
    /// Forgotten records, if some of the batch remain.
    forgotten: Option<Box<Forgotten>>,
}

/// Log in memory: everything is committed immediately, and a restart deletes it. `Mutex<MemoryLog>` implements
/// [`PartitionLog`].
///
/// Invariant: entries are in the order of their offsets, the last batch ended at `end` when it was appended, and the
/// first entry has a batch. Offsets between two batches were forgotten.
#[derive(Debug, Default)]
pub struct MemoryLog {
    entries: VecDeque<Entry>,
    /// Highest times, to search for a time without visiting each entry.
    peaks: VecDeque<Peak>,
    /// Number of entries without a batch.
    gone: usize,
    /// Offset before which records were deleted, even if their batch is still stored.
    deleted: Offset,
    end: Offset,
    bytes: usize,
    /// Producer state that results from all batches.
    producers: Producers,
}

impl PartitionLog for Mutex<MemoryLog> {
    fn end(&self) -> Offset {
        self.lock().end
    }

    fn producers(&self) -> Producers {
        self.lock().producers.clone()
    }

    fn stable_end(&self) -> Offset {
        let state = self.lock();
        state.producers.first_open().unwrap_or(state.end)
    }

    fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted> {
        self.lock().producers.aborted(from, to)
    }

    fn forget_aborted(&self) -> Offset {
        self.lock().forget_aborted()
    }

    fn refused(&self) -> Option<Error> {
        None
    }

    fn extent(&self) -> LogExtent {
        let state = self.lock();
        LogExtent { start: state.start(), end: state.end, bytes: state.bytes as u64 }
    }

    fn append(&self, batch: RecordBatch, now_ms: u64, _: Arc<dyn Owner>) -> Result<Commits> {
        self.lock().append(batch, now_ms);
        Ok(Commits::Now)
    }

    fn truncate(&self, end: Offset) -> Result<()> {
        let committed = self.end();
        if end >= committed {
            return Ok(());
        }
        Err(Error::invalid(format!("records before {committed} are committed, so they cannot be cut at {end}")))
    }

    fn commit(&self, _: Offset) -> Vec<RecordBatch> {
        Vec::new()
    }

    fn find(&self, offset: Offset) -> Option<RecordBatch> {
        self.lock().find(offset).cloned()
    }

    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read> {
        self.lock().read(from, bytes_max).map(Read::Batches)
    }

    fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset> {
        Ok(self.lock().offset_for_time(timestamp_ms))
    }

    fn set_start(self: Arc<Self>, start: Offset, _: Arc<dyn Owner>) -> Result<Commits> {
        let mut state = self.lock();
        if start > state.end {
            let message = format!("records up to {} may be deleted, not up to {start}", state.end);
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        state.set_start(start);
        Ok(Commits::Now)
    }

    fn retain(&self, retention_bytes: u64, retention_ms: u64, needed_from: Offset, now_ms: u64) -> Option<Offset> {
        self.lock().retain(retention_bytes, retention_ms, needed_from, now_ms)
    }

    fn forget(&self, offset: Offset) {
        self.lock().forget(offset);
    }

    fn forget_before(&self, offset: Offset) {
        self.lock().set_start(offset);
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn memory_bytes(&self) -> usize {
        self.lock().bytes
    }

    fn memory_cost(&self, batch_bytes: usize) -> usize {
        MemoryLog::cost(batch_bytes)
    }

    fn takes_transactions(&self) -> bool {
        true
    }
}

impl MemoryLog {
    /// Returns the memory cost of a batch of this many bytes.
    pub fn cost(batch_bytes: usize) -> usize {
        batch_bytes + ENTRY_BYTES
    }

    /// Returns the offset after the newest record.
    pub fn end(&self) -> Offset {
        self.end
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the producer state that results from all batches.
    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// Forgets aborted transactions without a stored record. Returns the offset before which all of them are forgotten.
    pub fn forget_aborted(&mut self) -> Offset {
        let start = self.start();
        self.producers.forget_aborted(start);
        start
    }

    /// Returns the offset of the oldest stored record; the end if the log is empty.
    pub fn start(&self) -> Offset {
        let first = self.entries.front().and_then(|entry| entry.batch.as_ref());
        first.map_or(self.end, |batch| batch.base_offset().max(self.deleted))
    }

    fn batches(&self) -> usize {
        self.entries.len() - self.gone
    }

    pub fn append(&mut self, batch: RecordBatch, now_ms: u64) {
        debug_assert_eq!(batch.base_offset(), self.end, "invariant: appends are contiguous");
        self.end = batch.next_offset();
        self.producers.replay(&batch);
        self.bytes += Self::cost(batch.len());
        self.note_peak(batch.max_timestamp_ms());
        self.entries.push_back(Entry { next: self.end, appended_ms: now_ms, batch: Some(batch), forgotten: None });
    }

    /// Returns the start that the retention limits allow, if it is later than the current one. The newest batch stays,
    /// so that a topic with little traffic still shows its last record, unless its time limit has passed. A batch stays
    /// if one of its records is needed.
    pub fn retain(&self, retention_bytes: u64, retention_ms: u64, needed_from: Offset, now_ms: u64) -> Option<Offset> {
        let mut bytes = self.bytes as u64;
        let mut batches = self.batches();
        let mut start = None;
        for entry in &self.entries {
            let is_over_bytes = retention_bytes > 0 && bytes > retention_bytes && batches > 1;
            let is_over_time = retention_ms > 0 && entry.appended_ms.saturating_add(retention_ms) <= now_ms;
            if entry.next > needed_from || !is_over_bytes && !is_over_time {
                break;
            }
            if let Some(batch) = &entry.batch {
                bytes -= Self::cost(batch.len()) as u64;
                batches -= 1;
            }
            start = Some(entry.next);
        }
        start
    }

    /// Removes the records before an offset and returns the number of freed bytes.
    pub fn set_start(&mut self, start: Offset) -> usize {
        let before = self.bytes;
        self.deleted = self.deleted.max(start.min(self.end));
        while self.entries.front().is_some_and(|entry| entry.next <= self.deleted) {
            self.pop_oldest();
        }
        before - self.bytes
    }

    /// Marks a record as no longer needed and returns the number of freed bytes. A batch is removed with its last
    /// record, and is rewritten without forgotten records when they are half of it.
    pub fn forget(&mut self, offset: Offset) -> usize {
        let before = self.bytes;
        let at = self.place(offset);
        let Some(entry) = self.entries.get_mut(at) else {
            return 0;
        };
        let Some(batch) = entry.batch.as_ref().filter(|batch| batch.base_offset() <= offset) else {
            return 0;
        };
        let left = match Forgotten::note(&mut entry.forgotten, batch, offset, self.deleted) {
            None => return 0,
            Some(left) => left,
        };
        self.bytes -= Self::cost(batch.len());
        match left {
            Some(left) => {
                self.bytes += Self::cost(left.len());
                entry.batch = Some(left);
            }
            None => {
                entry.batch = None;
                entry.forgotten = None;
                self.gone += 1;
                self.drop_gone();
            }
        }
        before - self.bytes
    }

    fn pop_oldest(&mut self) {
        if let Some(batch) = self.entries.pop_front().and_then(|entry| entry.batch) {
            self.bytes -= Self::cost(batch.len());
        }
        self.drop_gone();
    }

    /// Removes entries without a batch at the front of the log, and all of them when they outnumber the batches.
    fn drop_gone(&mut self) {
        while self.entries.pop_front_if(|entry| entry.batch.is_none()).is_some() {
            self.gone -= 1;
        }
        if self.gone > GONE_MIN.max(self.batches()) {
            self.entries.retain(|entry| entry.batch.is_some());
            self.gone = 0;
        }
        // A burst leaves a large ring behind; its memory is released once it is mostly empty.
        if self.entries.capacity() > 1024 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Returns the batch that holds an offset, if it is stored.
    pub fn find(&self, offset: Offset) -> Option<&RecordBatch> {
        let entry = self.entries.get(self.place(offset))?;
        entry.batch.as_ref().filter(|batch| batch.base_offset() <= offset && offset >= self.deleted)
    }

    /// Returns the index of the first entry that ends after an offset.
    fn place(&self, offset: Offset) -> usize {
        // Fast path for batches of one record each without gaps.
        let first = self.entries.front().map_or(0, |entry| entry.next);
        let at = (offset + 1).saturating_sub(first) as usize;
        if self.entries.get(at).is_some_and(|entry| entry.next == offset + 1) {
            at
        } else {
            self.entries.partition_point(|entry| entry.next <= offset)
        }
    }

    /// Reads batches from the one that holds `from`, up to `bytes_max`, but at least one if one exists. A batch without
    /// records covers forgotten offsets. Empty at the end of the log.
    pub fn read(&self, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        if from < self.start() || from > self.end {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("offset {from} is not in the log, which has {} to {}", self.start(), self.end),
            ));
        }
        let first = self.place(from);
        let mut gathered = Gathered::new(from, bytes_max);
        for batch in self.entries.iter().skip(first).filter_map(|entry| entry.batch.as_ref()) {
            if !gathered.push(batch.clone()) {
                return Ok(gathered.batches());
            }
        }
        Ok(gathered.reach(self.end))
    }

    /// Returns the offset of the first batch with a record at or after this time; the end if no such batch exists.
    pub fn offset_for_time(&self, timestamp_ms: i64) -> Offset {
        let mut from = self.start();
        let start = from;
        for peak in self.peaks.iter().filter(|peak| peak.until > start) {
            if peak.max_ms >= timestamp_ms {
                let first = self.entries.iter().skip(self.place(from)).take_while(|entry| entry.next <= peak.until);
                let mut batches = first.filter_map(|entry| entry.batch.as_ref());
                if let Some(batch) = batches.find(|batch| batch.max_timestamp_ms() >= timestamp_ms) {
                    return batch.base_offset().max(self.deleted);
                }
            }
            from = peak.until;
        }
        self.end
    }

    /// Notes the highest time of the batch that ends at `end`.
    fn note_peak(&mut self, max_ms: i64) {
        match self.peaks.back_mut().filter(|peak| peak.batches < PEAK_BATCHES) {
            Some(peak) => {
                *peak = Peak { until: self.end, batches: peak.batches + 1, max_ms: peak.max_ms.max(max_ms) };
            }
            None => {
                let start = self.start();
                while self.peaks.pop_front_if(|peak| peak.until <= start).is_some() {}
                self.peaks.push_back(Peak { until: self.end, batches: 1, max_ms });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::{BatchBuilder, Partition, Placed};

    use super::*;

    fn log_of(batches: &[(u32, i64, u64)]) -> MemoryLog {
        let mut partition = Partition::default();
        let mut log = MemoryLog::default();
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

    fn trim(log: &mut MemoryLog, retention_bytes: u64, retention_ms: u64, needed_from: Offset, now_ms: u64) -> usize {
        let start = log.retain(retention_bytes, retention_ms, needed_from, now_ms);
        start.map_or(0, |start| log.set_start(start))
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
        let one = log.bytes / 10;
        let freed = trim(&mut log, 3 * one as u64, 0, Offset::MAX, 0);
        assert_eq!((log.start(), log.end, freed), (7, 10, 7 * one));
        trim(&mut log, 1, 0, Offset::MAX, 0);
        assert_eq!((log.start(), log.end), (9, 10));
        assert_eq!(log.read(0, 1).map_err(|e| e.kind), Err(ErrorKind::OutOfRange));
    }

    #[test]
    fn retention_by_time_empties_the_log_and_keeps_its_end() {
        let mut log = log_of(&[(1, 0, 100), (1, 0, 200), (1, 0, 300)]);
        trim(&mut log, 0, 150, Offset::MAX, 260);
        assert_eq!(log.start(), 1);
        trim(&mut log, 0, 150, Offset::MAX, 1000);
        assert_eq!((log.start(), log.end, log.bytes), (3, 3, 0));
    }

    #[test]
    fn retention_removes_nothing_that_is_still_needed() {
        let mut log = log_of(&[(2, 0, 100), (2, 0, 200), (2, 0, 300)]);
        trim(&mut log, 1, 150, 3, 1000);
        assert_eq!(log.start(), 2, "a batch stays when one of its records is needed");
        trim(&mut log, 1, 150, 6, 1000);
        assert_eq!((log.start(), log.end), (6, 6));
    }

    #[test]
    fn time_finds_the_first_batch_that_reaches_it() {
        let log = log_of(&[(1, 10, 0), (1, 30, 0), (1, 20, 0)]);
        assert_eq!([0, 10, 11, 30, 31].map(|t| log.offset_for_time(t)), [0, 0, 1, 1, 3]);
    }

    #[test]
    fn forgotten_records_are_freed_and_readers_continue_after_them() {
        let mut log = log_of(&[(1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0)]);
        let all = log.bytes;
        let one = log.bytes / 4;
        let offsets = |log: &MemoryLog, from| -> Vec<(u64, u64, u32)> {
            let batches = log.read(from, usize::MAX).expect("in range");
            batches.iter().map(|batch| (batch.base_offset(), batch.next_offset(), batch.count())).collect()
        };
        assert_eq!((log.forget(1), log.forget(1), log.bytes), (one, 0, all - one));
        assert_eq!(offsets(&log, 0), [(0, 1, 1), (1, 2, 0), (2, 3, 1), (3, 4, 1)]);
        assert_eq!(offsets(&log, 1), [(1, 2, 0), (2, 3, 1), (3, 4, 1)]);
        assert_eq!(log.forget(3), one);
        assert_eq!((offsets(&log, 2), offsets(&log, 3)), (vec![(2, 3, 1), (3, 4, 0)], vec![(3, 4, 0)]));
        assert_eq!((log.forget(0), log.start(), log.end, log.batches()), (one, 2, 4, 1));
        assert_eq!(log.read(1, 1).map_err(|e| e.kind), Err(ErrorKind::OutOfRange));
        assert_eq!((log.forget(2), log.start(), log.end, log.bytes), (one, 4, 4, 0));
        assert_eq!((log.forget(2), log.forget(9)), (0, 0));
    }

    #[test]
    fn a_batch_is_written_anew_when_half_of_it_is_forgotten_and_goes_with_its_last_record() {
        let mut log = log_of(&[(1, 0, 0), (8, 0, 0), (1, 0, 0)]);
        let before = log.bytes;
        assert_eq!([8, 1, 4].map(|offset| log.forget(offset)), [0, 0, 0]);
        let freed = log.forget(3);
        assert!(freed > 400 && freed < 500 && log.bytes == before - freed, "{freed}");
        let batch = &log.read(1, 1).expect("in range")[0];
        let records = batch.records().expect("records");
        let left: Vec<u64> = records.iter().map(|record| record.expect("a record").offset).collect();
        assert_eq!((left, batch.base_offset(), batch.next_offset()), (vec![2, 5, 6, 7], 1, 9));
        assert_eq!([4, 2].map(|offset| log.forget(offset)), [0, 0], "one of them was forgotten before");
        assert!([5, 6, 7].map(|offset| log.forget(offset)).iter().all(|freed| *freed > 0));
        assert_eq!((log.batches(), log.start(), log.end), (2, 0, 10));
    }

    #[test]
    fn placeholders_of_forgotten_offsets_count_as_bytes_of_a_read() {
        let mut log = log_of(&[(1, 0, 0); 20]);
        for offset in (0..20).step_by(2) {
            log.forget(offset);
        }
        let all = log.read(log.start(), usize::MAX).expect("in range");
        let whole: usize = all.iter().map(RecordBatch::len).sum();
        for bytes_max in 0..whole {
            let mut from = log.start();
            while from < log.end {
                let read = log.read(from, bytes_max).expect("in range");
                let bytes: usize = read.iter().map(RecordBatch::len).sum();
                assert!(read.len() == 1 || bytes <= bytes_max, "{bytes} of {bytes_max}");
                assert!(read[0].base_offset() <= from);
                from = read.last().map_or(u64::MAX, RecordBatch::next_offset);
            }
            assert_eq!(from, log.end);
        }
    }

    #[test]
    fn batches_of_one_record_are_found_wherever_others_are_missing() {
        let mut log = log_of(&[(1, 0, 0); 400]);
        let found = |log: &MemoryLog, offset| log.find(offset).map(RecordBatch::base_offset);
        for offset in (100..400).step_by(2).chain(0..10) {
            log.forget(offset);
        }
        let is_kept = |offset: Offset| (10..100).contains(&offset) || (100..400).contains(&offset) && offset % 2 == 1;
        for offset in 0..402 {
            assert_eq!(found(&log, offset), is_kept(offset).then_some(offset));
        }
    }

    #[test]
    fn a_time_is_found_like_by_visiting_all_batches() {
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 33
        };
        let count = 3 * u64::from(PEAK_BATCHES) + 500;
        let times: Vec<i64> = (0..count).map(|at| if at % 700 == 3 { 9_000 } else { (next() % 5000) as i64 }).collect();
        let mut log = log_of(&times.iter().map(|time| (1, *time, 0)).collect::<Vec<_>>());
        assert_eq!(log.peaks.len(), 4);
        for step in 0..60 {
            for time in (0..20).map(|_| (next() % 10_000) as i64) {
                let batches = log.entries.iter().filter_map(|entry| entry.batch.as_ref());
                let found =
                    batches.filter(|batch| batch.max_timestamp_ms() >= time).map(RecordBatch::base_offset).next();
                assert_eq!(log.offset_for_time(time), found.unwrap_or(log.end), "{time} in step {step}");
            }
            (0..20).for_each(|_| _ = log.forget(next() % count));
            log.set_start(log.start() + 50);
        }
    }

    #[test]
    fn a_batch_that_begins_before_the_start_goes_with_its_last_record_behind_it() {
        let mut log = log_of(&[(8, 0, 0), (1, 0, 0)]);
        log.set_start(5);
        for offset in 5..8 {
            log.forget(offset);
        }
        assert_eq!((log.start(), log.batches()), (8, 1));
    }

    #[test]
    fn bytes_equal_those_of_the_remaining_batches() {
        let mut random = 1u64;
        let mut log = log_of(&(0..400).map(|i| (1 + i % 5, 0, 0)).collect::<Vec<_>>());
        let mut freed = 0;
        let all = log.bytes;
        for step in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            freed += match step % 500 {
                499 => log.set_start(log.start() + 10),
                _ => log.forget((random >> 33) % log.end),
            };
            let kept: usize = log.entries.iter().flat_map(|entry| &entry.batch).map(|b| MemoryLog::cost(b.len())).sum();
            assert_eq!((kept, freed), (log.bytes, all - kept));
            assert!(log.gone <= GONE_MIN.max(log.batches()) && log.entries.len() - log.gone == log.batches());
        }
        let linear = |offset: &Offset| {
            let mut kept = log.entries.iter().filter_map(|entry| entry.batch.as_ref());
            kept.find(|batch| (batch.base_offset()..batch.next_offset()).contains(offset) && *offset >= log.deleted)
        };
        assert!((0..log.end + 2).all(|offset| log.find(offset) == linear(&offset)));
        let batches = log.read(log.start(), usize::MAX).expect("in range");
        assert!(batches.windows(2).all(|pair| pair[0].next_offset() == pair[1].base_offset()), "a hole");
        assert_eq!(batches.last().map(RecordBatch::next_offset), Some(log.end));
    }
}
