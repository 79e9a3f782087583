//! Common behavior of all logs: in memory, in segments with a journal, and in a database. Each test runs on all of
//! them, and compares with a list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Storage};
use parking_lot::{Condvar, Mutex};
use storage::{DurableLog, MemoryLog, Owner, RealDisk, Store};

use crate::power::repeatable;
use crate::sim::Random;
use crate::workload::{PATIENCE, clock, kept_in, open, read_all, read_at, small, topic_name, wait_until};

const PLACES: [Storage; 3] = [Storage::Memory, Storage::Disk, Storage::Sqlite];

/// Log with everything that is needed to reopen it.
struct Site {
    temp: tempfile::TempDir,
    storage: Storage,
    log: Log,
}

enum Log {
    Memory(MemoryLog),
    Durable(Arc<Store>, Arc<dyn DurableLog>),
}

/// Owner that waits for the commits of one partition.
struct Commits {
    log: Arc<dyn DurableLog>,
    committed: Mutex<Offset>,
    changed: Condvar,
}

impl Commits {
    fn of(log: &Arc<dyn DurableLog>) -> Arc<Self> {
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
        let log = match storage {
            Storage::Memory => Log::Memory(MemoryLog::default()),
            _ => {
                let (store, _) = open(&RealDisk, temp.path(), small(2)).expect("a new directory");
                let owner = Arc::new(crate::workload::Nobody);
                let topic = store.create_topic(topic_name("t"), kept_in(storage, 1), owner).expect("a topic");
                Log::Durable(store, topic.partitions[0].clone())
            }
        };
        Self { temp, storage, log }
    }

    /// Stops and restarts the broker. A log in memory stays, because it cannot be reopened.
    fn reopen(&mut self) {
        if let Log::Durable(store, log) = &mut self.log {
            store.stop().expect("it stops");
            // The directory is released only when the last reference to it is dropped.
            let temp = self.temp.path().to_owned();
            let before = log.extent();
            self.log = Log::Memory(MemoryLog::default());
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
            let log = topics[0].partitions[0].clone();
            assert_eq!(log.extent().end, before.end);
            self.log = Log::Durable(store, log);
        }
    }

    fn append(&mut self, batch: RecordBatch) {
        match &mut self.log {
            Log::Memory(log) => log.append(batch, clock()),
            Log::Durable(_, log) => {
                let owner = Commits::of(log);
                let end = batch.next_offset();
                log.append(batch, owner.clone()).expect("it is taken");
                owner.wait(end);
            }
        }
    }

    fn extent(&self) -> (Offset, Offset) {
        match &self.log {
            Log::Memory(log) => (log.start(), log.end()),
            Log::Durable(_, log) => (log.extent().start, log.extent().end),
        }
    }

    fn read(&self, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>, Error> {
        match &self.log {
            Log::Memory(log) => log.read(from, bytes_max),
            Log::Durable(_, log) => read_at(log, from, bytes_max),
        }
    }

    fn offset_for_time(&self, timestamp_ms: i64) -> Offset {
        match &self.log {
            Log::Memory(log) => log.offset_for_time(timestamp_ms),
            Log::Durable(_, log) => log.offset_for_time(timestamp_ms).expect("it is found"),
        }
    }

    fn set_start(&mut self, start: Offset) {
        match &mut self.log {
            Log::Memory(log) => drop(log.set_start(start)),
            Log::Durable(_, log) => log.set_start(start, Arc::new(crate::workload::Nobody)).expect("it is taken"),
        }
    }

    /// Forgets a record and waits until the work for that is finished.
    fn forget(&mut self, offset: Offset) {
        match &mut self.log {
            Log::Memory(log) => drop(log.forget(offset)),
            Log::Durable(_, log) => log.forget(offset),
        }
        self.settle();
    }

    /// Waits until the pending work of a writer is finished.
    fn settle(&self) {
        if let Log::Durable(store, log) = &self.log
            && self.storage == Storage::Sqlite
        {
            // The thread that forgets works sequentially; the second of these operations comes after all of it.
            for _ in 0..2 {
                let owner = Arc::new(Commits { log: log.clone(), committed: Mutex::new(0), changed: Condvar::new() });
                log.set_start(log.extent().start, Arc::new(Said(owner.clone()))).expect("it is taken");
                owner.wait(1);
            }
            assert_eq!(store.stats().sqlite.map(|stats| stats.is_held_up), Some(false));
        }
    }
}

/// Owner of one operation that is not an append.
struct Said(Arc<Commits>);

impl Owner for Said {
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
fn a_log_has_what_was_appended_to_it_without_what_was_removed() {
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
                    9 if random.is_one_in(4) && end > begin => {
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
                let (start, there) = site.extent();
                assert!(start >= begin && there == end, "{storage:?}: {start} to {there}, not {begin} to {end}");
                let outside = [start.checked_sub(1), Some(end + 1)].into_iter().flatten();
                for offset in outside {
                    assert_eq!(site.read(offset, 1).map_err(|e| e.kind), Err(ErrorKind::OutOfRange), "{storage:?}");
                }
            }
        });
    }
}

#[test]
fn what_is_forgotten_is_gone_and_stays_gone_where_it_can_be() {
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
            let (mut batches, mut time): (Vec<RecordBatch>, i64) = (Vec::new(), 10_000);
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
                    let there = batches.iter().filter(|batch| batch.next_offset() > start);
                    let first = there.into_iter().find(|batch| batch.max_timestamp_ms() >= asked);
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
    let Log::Durable(_, log) = &database.log else { panic!("it is durable") };
    let bytes = log.extent().bytes;
    assert_eq!(bytes, read_all(log, 0, 40, 5000).expect("all").iter().map(|batch| batch.len() as u64).sum());
    let one = bytes / 40;
    assert_eq!(log.retain(0, 0, clock()), None);
    assert_eq!(log.retain(bytes, 1000, clock()), None, "there is no more than that");
    assert_eq!(log.retain(one * 10, 0, clock()), Some(30));
    assert_eq!(log.retain(1, 0, clock()), Some(39), "the newest stays");
    assert_eq!(log.retain(0, 1000, clock() + 1000), Some(40), "its time has passed");
    let log = log.clone();
    database.set_start(30);
    wait_until("what is before the start is forgotten", || log.extent().bytes == one * 10);
    assert_eq!(log.retain(one * 10, 0, clock()), None);
    let Log::Memory(memory) = &mut memory.log else { panic!("it is in memory") };
    memory.trim(10 * MemoryLog::cost(one as usize) as u64, 0, u64::MAX, clock());
    assert_eq!((memory.start(), memory.end()), (log.extent().start, log.extent().end));
}
