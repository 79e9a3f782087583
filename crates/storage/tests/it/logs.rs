//! Common behavior of all logs: in memory, in segments with a journal, and in a database. Each test runs on all of
//! them, and compares with a list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Storage};
use parking_lot::{Condvar, Mutex};
use storage::{MemoryLog, Owner, PartitionLog, RealDisk, Store};

use crate::power::repeatable;
use crate::workload::{PATIENCE, clock, kept_in, open, read_all, read_at, small, topic_name, wait_until};
use sim::Random;

const PLACES: [Storage; 3] = [Storage::Memory, Storage::Disk, Storage::Sqlite];

/// Log with everything that is needed to reopen it.
struct Site {
    temp: tempfile::TempDir,
    storage: Storage,
    /// Data directory of a log that survives a restart.
    store: Option<Arc<Store>>,
    log: Arc<dyn PartitionLog>,
}

/// Owner that waits for the commits of one partition.
struct Commits {
    log: Arc<dyn PartitionLog>,
    committed: Mutex<Offset>,
    changed: Condvar,
}

impl Commits {
    fn of(log: &Arc<dyn PartitionLog>) -> Arc<Self> {
        Arc::new(Self { log: log.clone(), committed: Mutex::new(0), changed: Condvar::new() })
    }

    fn wait(&self, end: Offset) {
        let mut committed = self.committed.lock();
        while *committed < end {
            assert!(!self.changed.wait_for(&mut committed, PATIENCE).timed_out(), "it is not committed");
        }
    }
}

impl Owner for Commits {
    fn committed(&self, mark: u64) {
        self.log.commit(mark);
        *self.committed.lock() = mark;
        self.changed.notify_all();
    }

    fn failed(&self, error: &Error) {
        panic!("{error}");
    }
}

impl Site {
    fn new(storage: Storage) -> Self {
        let temp = tempfile::tempdir().expect("a directory");
        if storage == Storage::Memory {
            return Self { temp, storage, store: None, log: Arc::new(Mutex::new(MemoryLog::default())) };
        }
        let (store, _) = open(&RealDisk, temp.path(), small(2)).expect("a new directory");
        let owner = Arc::new(crate::workload::NoOwner);
        let topic = store.create_topic(topic_name("t"), kept_in(storage, 1), owner).expect("a topic");
        Self { temp, storage, store: Some(store), log: topic.partitions[0].clone() }
    }

    /// Stops and restarts the broker. A log in memory stays, because it cannot be reopened.
    fn reopen(&mut self) {
        if let Some(store) = self.store.take() {
            store.stop().expect("it stops");
            // The directory is released only when the last reference to it is dropped.
            drop(store);
            let temp = self.temp.path().to_owned();
            let before = self.log.extent();
            self.log = Arc::new(Mutex::new(MemoryLog::default()));
            let begin = Instant::now();
            let (store, topics) = loop {
                match open(&RealDisk, &temp, small(2)) {
                    // A process that a test forks shares all open files with it, including locked ones, until it
                    // executes its program.
                    Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => {
                        std::thread::yield_now();
                    }
                    opened => break opened.expect("it opens"),
                }
            };
            self.log = topics[0].partitions[0].clone();
            assert_eq!(self.log.extent().end, before.end);
            self.store = Some(store);
        }
    }

    fn append(&mut self, batch: RecordBatch) {
        let owner = Commits::of(&self.log);
        let end = batch.next_offset();
        match self.log.append(batch, clock(), owner.clone()).expect("it is taken") {
            storage::Commits::Now => assert_eq!(self.storage, Storage::Memory),
            storage::Commits::Later => owner.wait(end),
        }
    }

    fn extent(&self) -> (Offset, Offset) {
        (self.log.extent().start, self.log.extent().end)
    }

    fn read(&self, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>, Error> {
        read_at(&self.log, from, bytes_max)
    }

    fn offset_for_time(&self, timestamp_ms: i64) -> Offset {
        self.log.offset_for_time(timestamp_ms).expect("it is found")
    }

    /// Deletes the records before an offset, and waits until they are gone.
    fn set_start(&mut self, start: Offset) {
        let owner = Arc::new(OperationOwner(Commits::of(&self.log)));
        if self.log.clone().set_start(start, owner.clone()).expect("it is taken") == storage::Commits::Later {
            owner.0.wait(1);
        }
        assert!(self.log.extent().start >= start);
    }

    /// Forgets a record and waits until the work for that is finished.
    fn forget(&mut self, offset: Offset) {
        self.log.forget(offset);
        self.settle();
    }

    /// Waits until the pending work of a writer is finished.
    fn settle(&self) {
        let Some(store) = self.store.as_ref().filter(|_| self.storage == Storage::Sqlite) else { return };
        // The thread that forgets works sequentially; the second of these operations comes after all of it.
        for _ in 0..2 {
            let owner = Arc::new(OperationOwner(Commits::of(&self.log)));
            let committed = self.log.clone().set_start(self.log.extent().start, owner.clone()).expect("it is taken");
            assert_eq!(committed, storage::Commits::Later);
            owner.0.wait(1);
        }
        assert_eq!(store.stats().sqlite.map(|stats| stats.is_held_up), Some(false));
    }
}

/// Owner of one operation that is not an append.
struct OperationOwner(Arc<Commits>);

impl Owner for OperationOwner {
    fn committed(&self, _: u64) {
        *self.0.committed.lock() = 1;
        self.0.changed.notify_all();
    }

    fn failed(&self, error: &Error) {
        panic!("{error}");
    }
}

fn batch_of(base: Offset, values: &[Vec<u8>], timestamp_ms: i64) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    for (i, value) in values.iter().enumerate() {
        builder.push(timestamp_ms + i as i64, Some(b"k"), Some(value), &[]).expect("a record");
    }
    builder.finish().expect("records").stamp(base)
}

fn values(random: &mut Random, count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|_| vec![random.below(256) as u8; random.below(400) as usize]).collect()
}

/// Returns all records from an offset on.
fn records(site: &Site, from: Offset, bytes_max: usize) -> BTreeMap<Offset, Vec<u8>> {
    let (_, end) = site.extent();
    let mut found = BTreeMap::new();
    let mut at = from;
    while at < end {
        let batches = site.read(at, bytes_max).expect("it is read");
        assert!(batches[0].base_offset() <= at && batches[0].next_offset() > at, "offset {at} was asked for");
        for batch in &batches {
            assert!(batch.base_offset() <= at, "a hole at {at}");
            at = batch.next_offset();
            for record in &batch.records().expect("records") {
                let record = record.expect("a record");
                found.insert(record.offset, record.value.unwrap_or_default().to_vec());
            }
        }
    }
    assert_eq!(at.max(end), end, "nothing is behind the end");
    found.retain(|offset, _| *offset >= from);
    found
}

#[test]
fn a_log_contains_the_appended_records_without_the_removed_ones() {
    for storage in PLACES {
        repeatable(4, |seed| {
            let mut site = Site::new(storage);
            let mut random = Random::new(seed);
            let (mut model, mut forgotten): (BTreeMap<Offset, Vec<u8>>, BTreeSet<Offset>) = Default::default();
            let mut begin = 0;
            let mut end = 0;
            let mut time = 1000;
            for _ in 0..160 {
                match random.below(20) {
                    0..9 => {
                        let count = [1, 1, 1, 2, 5, 12][random.below(6) as usize];
                        let values = values(&mut random, count);
                        let batch = batch_of(end, &values, time);
                        model.extend((end..).zip(values));
                        time += 20;
                        end = batch.next_offset();
                        site.append(batch);
                    }
                    9 if random.one_in(4) && end > begin => {
                        begin += random.below((end - begin) / 2 + 1);
                        model.retain(|offset, _| *offset >= begin);
                        site.set_start(begin);
                    }
                    10 => site.reopen(),
                    11..15 => {
                        let from = site.extent().0 + random.below(end - site.extent().0 + 1);
                        let found = records(&site, from, random.below(3000) as usize);
                        let may_be: BTreeMap<_, _> = model.range(from..).collect();
                        assert!(found.iter().all(|(offset, value)| may_be.get(offset) == Some(&value)));
                        let has_to_be = may_be.keys().filter(|offset| !forgotten.contains(offset));
                        assert!(has_to_be.into_iter().all(|offset| found.contains_key(offset)), "{storage:?}: lost");
                    }
                    _ => {
                        let Some((offset, _)) = model.iter().nth(random.below(model.len().max(1) as u64) as usize)
                        else {
                            continue;
                        };
                        forgotten.insert(*offset);
                        site.forget(*offset);
                    }
                }
                let (start, found_end) = site.extent();
                assert!(
                    start >= begin && found_end == end,
                    "{storage:?}: {start} to {found_end}, not {begin} to {end}"
                );
                let outside = [start.checked_sub(1), Some(end + 1)].into_iter().flatten();
                for offset in outside {
                    assert_eq!(site.read(offset, 1).map_err(|e| e.kind), Err(ErrorKind::OutOfRange), "{storage:?}");
                }
            }
        });
    }
}

#[test]
fn forgotten_records_are_deleted_also_after_a_restart() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let mut site = Site::new(storage);
        let mut random = Random::new(7);
        for at in 0..10 {
            site.append(batch_of(at, &values(&mut random, 1), 0));
        }
        site.append(batch_of(10, &values(&mut random, 8), 0));
        site.append(batch_of(18, &values(&mut random, 1), 0));
        for offset in [3, 4, 9, 10, 11, 12, 13, 18, 3] {
            site.forget(offset);
        }
        let left = |site: &Site| records(site, site.extent().0, 500).into_keys().collect::<Vec<_>>();
        assert_eq!(left(&site), [0, 1, 2, 5, 6, 7, 8, 14, 15, 16, 17], "{storage:?}");
        site.reopen();
        assert_eq!(left(&site), [0, 1, 2, 5, 6, 7, 8, 14, 15, 16, 17], "{storage:?}");
        for offset in [0, 1, 2, 5] {
            site.forget(offset);
        }
        assert_eq!((site.extent(), left(&site)), ((6, 19), vec![6, 7, 8, 14, 15, 16, 17]), "{storage:?}");
        (6..18).for_each(|offset| site.forget(offset));
        assert_eq!((site.extent(), left(&site)), ((19, 19), vec![]), "{storage:?}");
        site.reopen();
        assert_eq!((site.extent(), left(&site)), ((19, 19), vec![]), "{storage:?}");
        site.append(batch_of(19, &values(&mut random, 1), 0));
        assert_eq!((site.extent(), left(&site)), ((19, 20), vec![19]), "{storage:?}");
    }
}

#[test]
fn a_time_is_found_in_every_log_also_where_times_go_backwards() {
    for storage in PLACES {
        repeatable(2, |seed| {
            let mut site = Site::new(storage);
            let mut random = Random::new(seed);
            let mut batches: Vec<RecordBatch> = Vec::new();
            let mut time: i64 = 10_000;
            for step in 0..80 {
                time += random.below(300) as i64 - 100;
                let base = batches.last().map_or(0, RecordBatch::next_offset);
                let count = 1 + random.below(3);
                let batch = batch_of(base, &values(&mut random, count), time);
                batches.push(batch.clone());
                site.append(batch);
                if step % 20 == 19 {
                    let (start, end) = site.extent();
                    site.set_start(start + (end - start) / 4);
                    site.settle();
                }
                if step == 40 {
                    site.reopen();
                }
                let (start, end) = site.extent();
                for _ in 0..4 {
                    let asked = time - 2000 + random.below(2500) as i64;
                    let kept = batches.iter().filter(|batch| batch.next_offset() > start);
                    let first = kept.into_iter().find(|batch| batch.max_timestamp_ms() >= asked);
                    let expected = first.map_or(end, |batch| batch.base_offset().max(start));
                    assert_eq!(site.offset_for_time(asked), expected, "{storage:?}, seed {seed}, step {step}");
                }
            }
        });
    }
}

#[test]
fn retention_keeps_the_newest_in_a_database_as_it_does_in_memory() {
    let mut memory = Site::new(Storage::Memory);
    let mut database = Site::new(Storage::Sqlite);
    for at in 0..40 {
        for site in [&mut memory, &mut database] {
            site.append(batch_of(at, &[vec![1; 1000]], 0));
        }
    }
    let log = &database.log;
    let bytes = log.extent().bytes;
    assert_eq!(bytes, read_all(log, 0, 40, 5000).expect("all").iter().map(|batch| batch.len() as u64).sum::<u64>());
    let one = bytes / 40;
    assert_eq!(log.retain(0, 0, u64::MAX, clock()), None);
    assert_eq!(log.retain(bytes, 1000, u64::MAX, clock()), None, "there is no more than that");
    assert_eq!(log.retain(one * 10, 0, u64::MAX, clock()), Some(30));
    assert_eq!(log.retain(1, 0, u64::MAX, clock()), Some(39), "the newest stays");
    assert_eq!(log.retain(0, 1000, u64::MAX, clock() + 1000), Some(40), "its time has passed");
    let log = log.clone();
    database.set_start(30);
    wait_until("what is before the start is forgotten", || log.extent().bytes == one * 10);
    assert_eq!(log.retain(one * 10, 0, u64::MAX, clock()), None);
    let cost = memory.log.memory_cost(one as usize) as u64;
    let start = memory.log.retain(10 * cost, 0, u64::MAX, clock()).expect("there is more");
    memory.set_start(start);
    assert_eq!(memory.extent(), (log.extent().start, log.extent().end));
}
