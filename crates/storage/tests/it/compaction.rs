//! Compacted topics: the newest record of each key is always present, older ones are removed, and offsets stay.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::codec::Codec;
use engine::queue::QUEUES_TOPIC;
use engine::{BatchBuilder, Error, Offset, Record, TopicSettings};
use parking_lot::Mutex;
use storage::journal::JournalSettings;
use storage::{CompactionSettings, Owner, PartitionLog, Store, StoreSettings, StoredTopic};

use crate::power::repeatable;
use crate::workload::{NoOwner, clock, commit, on_disk, open, read_at, small, topic_name, wait_until};
use sim::{Random, SimDisk};

const DIR: &str = "/data";

/// Compacts whenever compaction is allowed; tombstones stay for one turn.
fn settings() -> StoreSettings {
    let compaction = CompactionSettings {
        dirty_bytes_min: 4 << 10,
        keys_max: 50_000,
        bytes_per_s: 1 << 40,
        tombstone_retention_ms: 0,
        lag_ms: (0, 0),
    };
    StoreSettings { segment_bytes: 16 << 10, compaction, ..small(2) }
}

/// Offset up to which all is committed.
#[derive(Default)]
struct Committed(AtomicU64);

struct Owning(Arc<dyn PartitionLog>, Arc<Committed>);

impl Owner for Owning {
    fn committed(&self, mark: Offset) {
        self.0.commit(mark);
        self.1.0.fetch_max(mark, Ordering::AcqRel);
    }

    fn failed(&self, _: &Error) {}
}

/// Compacted topic with one partition, and the history of all appended records.
struct Site {
    disk: SimDisk,
    settings: StoreSettings,
    store: Arc<Store>,
    log: Arc<dyn PartitionLog>,
    committed: Arc<Committed>,
    history: BTreeMap<Offset, Record>,
}

impl Site {
    fn new(settings: StoreSettings) -> Self {
        Self::open(SimDisk::new(), settings, BTreeMap::new(), "t")
    }

    fn open(disk: SimDisk, settings: StoreSettings, mut history: BTreeMap<Offset, Record>, topic: &str) -> Self {
        let (store, topics) = open(&disk, Path::new(DIR), settings).expect("it opens");
        let create = || {
            let compacted = TopicSettings { compact: true, ..on_disk(1) };
            store.create_topic(topic_name(topic), compacted, Arc::new(NoOwner)).expect("a topic")
        };
        let log = topics.into_iter().next().unwrap_or_else(create).partitions[0].clone();
        history.split_off(&log.end());
        let committed = Arc::new(Committed(AtomicU64::new(log.end())));
        Self { disk, settings, store, log, committed, history }
    }

    /// Reopens the site on the disk that the next process finds.
    fn reopened(self, next: impl FnOnce(&SimDisk) -> SimDisk) -> Self {
        self.disk.power_off_after(0);
        let disk = next(&self.disk);
        // `stop` may fail, because the power is off.
        self.store.stop().unwrap_or_default();
        let acknowledged = self.committed.0.load(Ordering::Acquire);
        let site = Self::open(disk, self.settings, self.history, "t");
        assert!(site.log.end() >= acknowledged, "{} of {acknowledged} records are there", site.log.end());
        site.check();
        site
    }

    /// Appends a batch of records with few keys; some have no value, and some no key.
    fn append(&mut self, random: &mut Random, keys: u64) -> Result<(), Error> {
        let mut builder = BatchBuilder::new();
        let mut records = Vec::new();
        for _ in 0..1 + random.below(5) {
            let value = random.number().to_string().repeat(1 + random.below(8) as usize);
            let record = Record {
                timestamp_ms: 1 + random.below(1000) as i64,
                key: (!random.one_in(20)).then(|| format!("key {}", random.below(keys)).into()),
                value: (!random.one_in(6)).then(|| value.into()),
                ..Record::default()
            };
            builder.push_record(&record, 0).expect("it fits");
            records.push(record);
        }
        let codec = Codec::ALL[random.below(Codec::ALL.len() as u64) as usize];
        let batch = builder.finish_with(codec, None).expect("records").stamp(self.log.end());
        self.store.admit()?;
        for (offset, record) in (batch.base_offset()..).zip(records) {
            self.history.insert(offset, Record { offset, ..record });
        }
        self.log.append(batch, clock(), Arc::new(Owning(self.log.clone(), self.committed.clone()))).map(drop)
    }

    fn settle(&self) {
        wait_until("all is committed", || self.committed.0.load(Ordering::Acquire) == self.log.end());
    }

    /// Reads as a subscriber does: a batch in memory may begin before a compacted one ends.
    fn read(&self) -> Vec<Record> {
        let extent = self.log.extent();
        let mut at = extent.start;
        let mut found = Vec::new();
        while at < extent.end {
            let batches = read_at(&self.log, at, 9000).expect("it is read");
            assert!(batches[0].base_offset() <= at && batches[0].next_offset() > at, "offset {at} was asked for");
            for batch in batches {
                assert!(batch.base_offset() <= at, "a hole at offset {at}");
                let records = batch.records_from(at).expect("it decodes");
                found.extend(records.iter().map(|view| records.own(&view.expect("it decodes"))));
                at = batch.next_offset();
            }
        }
        found
    }

    /// Checks that the present records were appended so, in order, and include the newest record of each key, unless it
    /// has no value.
    fn check(&self) -> Vec<Record> {
        let present = self.read();
        assert!(present.windows(2).all(|pair| pair[0].offset < pair[1].offset), "offsets grow");
        for record in &present {
            assert_eq!(Some(record), self.history.get(&record.offset));
        }
        let mut newest = HashMap::new();
        let end = self.log.extent().end;
        for record in self.history.range(..end).map(|(_, record)| record) {
            newest.insert(record.key.clone().unwrap_or(record.offset.to_string().into()), record);
        }
        for record in newest.into_values() {
            let exists = present.binary_search_by_key(&record.offset, |present| present.offset).is_ok();
            assert!(exists || (record.value.is_none() && record.key.is_some()), "{record:?} is gone");
        }
        present
    }
}

#[test]
fn the_newest_record_of_each_key_stays_and_older_ones_go() {
    // A growing segment is compacted too, regardless of its size.
    let compaction = CompactionSettings { dirty_bytes_min: 1, ..settings().compaction };
    repeatable(10, |seed| {
        let mut site = Site::new(StoreSettings { compaction, ..settings() });
        let mut random = Random::new(seed);
        // The store also compacts by itself: just after that, the new records are not worth it yet.
        let before = loop {
            for _ in 0..600 {
                while site.append(&mut random, 30).is_err() {}
            }
            site.settle();
            site.store.checkpoint().expect("it is safe");
            let before = site.log.extent();
            if site.store.compact().expect("it is compacted").turns > 0 {
                break before;
            }
        };
        // Nothing was appended since: nothing is rewritten.
        assert_eq!(site.store.compact().expect("it is looked at").turns, 0);
        let removed = site.store.stats().compaction.records_removed;
        assert!(removed > 1000, "{removed}");
        let after = site.log.extent();
        assert_eq!((after.start, after.end), (before.start, before.end));
        assert!(after.bytes < before.bytes / 3, "{} of {} bytes are left", after.bytes, before.bytes);
        // Records that were in memory too are in files only now.
        let site = site.reopened(SimDisk::kill);
        let present = site.check();
        assert_eq!(present.len() as u64 + removed, site.history.len() as u64);
        let keys: Vec<_> = present.iter().filter_map(|record| record.key.as_ref()).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "a key is there twice");
    });
}

#[test]
fn tombstones_are_removed_after_their_retention() {
    let mut site = Site::new(settings());
    let mut random = Random::new(1);
    for round in 0..8 {
        for _ in 0..100 {
            while site.append(&mut random, 5).is_err() {}
        }
        site.settle();
        site.store.checkpoint().expect("it is safe");
        site.store.compact().expect("it is compacted");
        site = site.reopened(SimDisk::kill);
        if round == 0 {
            // Too young to be removed.
            let newest: HashMap<_, _> = site.history.values().map(|record| (record.key.clone(), record)).collect();
            let tombstones = newest.values().filter(|record| record.value.is_none() && record.key.is_some());
            let present = site.read();
            tombstones.for_each(|tombstone| assert!(present.contains(tombstone)));
        }
    }
    let end = site.log.end();
    let present = site.read();
    let old = present.iter().filter(|record| record.offset < end / 2 && record.key.is_some());
    assert!(old.clone().all(|record| record.value.is_some()), "{:?}", old.collect::<Vec<_>>());
}

/// Each message of a queue leaves a tombstone.
#[test]
fn tombstones_of_queues_do_not_pile_up() {
    let compaction = CompactionSettings { tombstone_retention_ms: u64::MAX, ..settings().compaction };
    let left = ["t", QUEUES_TOPIC].map(|topic| {
        let settings = StoreSettings { compaction, ..settings() };
        let mut site = Site::open(SimDisk::new(), settings, BTreeMap::new(), topic);
        let mut random = Random::new(1);
        for _ in 0..8 {
            for _ in 0..100 {
                while site.append(&mut random, 1000).is_err() {}
            }
            site.settle();
            site.store.checkpoint().expect("it is safe");
            site.store.compact().expect("it is compacted");
            site = site.reopened(SimDisk::kill);
        }
        let end = site.log.end();
        let is_old = |record: &&Record| record.offset < end / 4 && record.key.is_some() && record.value.is_none();
        site.read().iter().filter(is_old).count()
    });
    assert!(left[0] > 0 && left[1] == 0, "{left:?}");
}

/// The retention of tombstones changes while the store is in use.
#[test]
fn tombstones_are_kept_for_the_retention_set_last() {
    let compaction = CompactionSettings { tombstone_retention_ms: u64::MAX, ..settings().compaction };
    let left = [None, Some(0)].map(|changed_ms| {
        let settings = StoreSettings { compaction, ..settings() };
        let mut site = Site::new(settings);
        let mut random = Random::new(1);
        for _ in 0..8 {
            if let Some(ms) = changed_ms {
                site.store.set_compaction(compaction.bytes_per_s, ms);
            }
            for _ in 0..100 {
                while site.append(&mut random, 1000).is_err() {}
            }
            site.settle();
            site.store.checkpoint().expect("it is safe");
            site.store.compact().expect("it is compacted");
            assert_eq!(site.store.settings().compaction.tombstone_retention_ms, u64::MAX, "as it was opened");
            site = site.reopened(SimDisk::kill);
        }
        let end = site.log.end();
        let is_old = |record: &&Record| record.offset < end / 4 && record.key.is_some() && record.value.is_none();
        site.read().iter().filter(is_old).count()
    });
    assert!(left[0] > 0 && left[1] == 0, "{left:?}");
}

#[test]
fn more_keys_than_one_turn_knows_take_more_turns() {
    let compaction = CompactionSettings { keys_max: 40, ..settings().compaction };
    let mut site = Site::new(StoreSettings { compaction, ..settings() });
    let mut random = Random::new(3);
    for _ in 0..500 {
        while site.append(&mut random, 100).is_err() {}
    }
    site.settle();
    for _ in 0..100 {
        site.store.checkpoint().expect("it is safe");
        site.store.compact().expect("it is compacted");
        site.check();
    }
    let removed = site.store.stats().compaction.records_removed;
    assert!(removed > 100, "{removed}");
}

#[test]
fn nothing_is_lost_when_the_power_goes_while_it_is_compacted() {
    repeatable(60, |seed| {
        let mut random = Random::new(seed);
        let mut site = Site::new(settings());
        for _ in 0..3 {
            site.disk.power_off_after(100 + random.below(1500));
            for _ in 0..400 {
                let step = match random.below(40) {
                    0 => site.store.checkpoint(),
                    1..4 => site.store.compact().map(drop),
                    _ => site.append(&mut random, 20),
                };
                if step.is_err() && site.disk.is_off() {
                    break;
                }
            }
            let cut = random.number();
            let is_killed = random.one_in(4);
            site = site.reopened(|disk| if is_killed { disk.kill() } else { disk.cut(cut) });
        }
        while site.append(&mut random, 20).is_err() {}
        site.settle();
        site.check();
    });
}

#[test]
fn readers_go_on_while_it_is_compacted_and_retention_moves_the_start() {
    repeatable(10, |seed| {
        let mut site = Site::new(settings());
        let mut random = Random::new(seed);
        for _ in 0..400 {
            while site.append(&mut random, 25).is_err() {}
        }
        site.settle();
        site.store.checkpoint().expect("it is safe");
        std::thread::scope(|scope| {
            let compactor = scope.spawn(|| {
                for _ in 0..5 {
                    site.store.compact().map(drop).or_else(|error| match error.kind {
                        engine::ErrorKind::Busy => Ok(()),
                        _ => Err(error),
                    })?;
                    site.store.checkpoint()?;
                }
                Ok::<(), Error>(())
            });
            let mut random = Random::new(seed);
            while !compactor.is_finished() {
                site.check();
                if random.one_in(3) {
                    let extent = site.log.extent();
                    let start = extent.start + random.below((extent.end - extent.start) / 4 + 1);
                    commit(|owner| site.log.clone().set_start(start, owner));
                    // A reader that starts here does not miss the deleted records.
                    break;
                }
            }
            compactor.join().expect("no panic").expect("it is compacted");
        });
        let extent = site.log.extent();
        site.history = site.history.split_off(&extent.start);
        let present: Vec<Record> = site.read().into_iter().filter(|record| record.offset >= extent.start).collect();
        for record in &present {
            assert_eq!(Some(record), site.history.get(&record.offset));
        }
    });
}

/// Retention removes segments while they are compacted, and the turn after that uses the same file names again.
#[test]
fn a_turn_that_comes_too_late_leaves_nothing_behind() {
    repeatable(4, |seed| {
        let compaction = CompactionSettings { bytes_per_s: 200_000, ..settings().compaction };
        let mut site = Site::new(StoreSettings { compaction, ..settings() });
        let mut random = Random::new(seed);
        for _ in 0..150 {
            // Hardly any key occurs twice: the output is as large as its sources.
            while site.append(&mut random, 1_000_000).is_err() {}
        }
        site.settle();
        let store = site.store.clone();
        let turn = std::thread::spawn(move || store.compact());
        let is_made =
            |(path, bytes): &(std::path::PathBuf, u64)| path.to_string_lossy().contains("-1.log") && *bytes > 0;
        wait_until("a turn is at it", || site.disk.files().iter().any(is_made) || turn.is_finished());
        let second =
            read_at(&site.log, 0, 20_000).expect("it is read").last().map_or(1, engine::RecordBatch::next_offset);
        commit(|owner| site.log.clone().set_start(second, owner));
        site.store.checkpoint().expect("it is safe");
        turn.join().expect("no panic").expect("it came too late");
        site.store.compact().expect("it is compacted");
        site.store.checkpoint().expect("it is safe");
        let start = site.log.extent().start;
        site.history = site.history.split_off(&start);
        let site = site.reopened(SimDisk::kill);
        assert_eq!(site.log.refused(), None);
        assert!(site.check().iter().any(|record| record.offset >= start));
    });
}

/// Topic whose settings change, with one partition, in a store that compacts nothing by itself.
struct Altered {
    disk: SimDisk,
    store: Arc<Store>,
    topic: StoredTopic,
    committed: Arc<Committed>,
}

impl Altered {
    fn new() -> Self {
        let disk = SimDisk::new();
        let compaction = CompactionSettings { dirty_bytes_min: 1 << 30, ..settings().compaction };
        let (store, _) = open(&disk, Path::new(DIR), StoreSettings { compaction, ..settings() }).expect("it opens");
        let compacted = TopicSettings { compact: true, ..on_disk(1) };
        let topic = store.create_topic(topic_name("t"), compacted, Arc::new(NoOwner)).expect("a topic");
        Self { disk, store, topic, committed: Arc::default() }
    }

    fn alter(&self, change: impl FnOnce(&mut TopicSettings)) {
        let mut settings = self.topic.settings;
        change(&mut settings);
        commit(|owner| self.store.alter_topic(self.topic.id, settings, owner));
    }

    /// Appends a record of this time and writes it into a segment.
    fn put(&self, timestamp_ms: u64, value_bytes: usize) {
        self.append(timestamp_ms, value_bytes);
        self.store.checkpoint().expect("it is safe");
    }

    /// Appends a record of this time, which may be in no segment yet.
    fn append(&self, timestamp_ms: u64, value_bytes: usize) {
        let log = &self.topic.partitions[0];
        let mut builder = BatchBuilder::new();
        builder.push(timestamp_ms as i64, Some(b"key"), Some(&vec![7; value_bytes]), &[]).expect("it fits");
        let batch = builder.finish().expect("a record").stamp(log.end());
        log.append(batch, clock(), Arc::new(Owning(log.clone(), self.committed.clone()))).expect("appended");
        wait_until("it is committed", || self.committed.0.load(Ordering::Acquire) == log.end());
    }

    fn segments(&self) -> usize {
        let is_log = |path: &Path| path.extension().is_some_and(|kind| kind == "log");
        self.disk.files().iter().filter(|(path, bytes)| is_log(path) && *bytes > 0).count()
    }
}

/// Corresponds to Kafka's `max.compaction.lag.ms` and `min.compaction.lag.ms`.
#[test]
fn compaction_comes_no_later_and_no_earlier_than_a_topic_says() {
    let site = Altered::new();
    let now = clock();
    let hour = 3_600_000;
    site.put(now - 2 * hour, 10);
    site.put(now - 2 * hour, 10);
    assert_eq!(site.store.compact().expect("looked at").turns, 0, "too little came");
    site.alter(|settings| settings.compaction_lag_ms = (0, 3 * hour));
    assert_eq!(site.store.compact().expect("looked at").turns, 0, "it is not old enough");
    site.alter(|settings| settings.compaction_lag_ms = (3 * hour, 0));
    assert_eq!(site.store.compact().expect("looked at").turns, 0, "no partition has to be compacted");
    site.alter(|settings| settings.compaction_lag_ms = (0, hour));
    site.store.compact().expect("compacted");
    // A background thread may have compacted first.
    let done = site.store.stats().compaction;
    assert_eq!((done.turns, done.records_removed), (1, 1));
    assert_eq!(site.store.compact().expect("looked at").turns, 0, "all is compacted");
    // Records that are too young are left alone, although an earlier one is overdue.
    site.alter(|settings| settings.compaction_lag_ms = (hour, hour));
    site.put(now - 2 * hour, 10);
    site.put(now, 10);
    assert_eq!(site.store.compact().expect("looked at").turns, 0);
}

/// No checkpoint is needed first, which a broker with little load takes once per minute.
#[test]
fn compaction_by_age_writes_records_that_are_in_no_segment_yet() {
    let site = Altered::new();
    let now = clock();
    let hour = 3_600_000;
    site.append(now - 2 * hour, 10);
    site.append(now - 2 * hour, 10);
    site.alter(|settings| settings.compaction_lag_ms = (0, hour));
    site.store.compact().expect("compacted");
    // A background thread may have compacted first.
    let done = site.store.stats().compaction;
    assert_eq!((done.turns, done.records_removed), (1, 1));
}

/// Corresponds to Kafka's `segment.ms` and `segment.bytes`: a batch that is too much newer than the first one of a
/// segment, or too large for it, begins the next.
#[test]
fn segments_end_as_a_topic_says() {
    let site = Altered::new();
    site.put(0, 10);
    site.put(1000, 10);
    assert_eq!(site.segments(), 1);
    site.alter(|settings| settings.segment_ms = 100);
    for timestamp_ms in [1001, 1101, 1050, 1102] {
        site.put(timestamp_ms, 10);
    }
    assert_eq!(site.segments(), 3, "one that begins at 1001, and one at 1102");
    site.alter(|settings| settings.segment_bytes = 1 << 20);
    for _ in 0..4 {
        site.put(1102, 10 << 10);
    }
    assert_eq!(site.segments(), 3, "more than the 16 KiB of other topics");
    site.alter(|settings| settings.segment_bytes = 0);
    site.put(1102, 10 << 10);
    assert_eq!(site.segments(), 4);
}

/// Owner of batches that acts when it is notified.
struct Early {
    log: OnceLock<Arc<dyn PartitionLog>>,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Owner for Early {
    fn committed(&self, mark: Offset) {
        self.log.get().expect("a log").commit(mark);
        if let Some(act) = self.act.lock().take() {
            act();
        }
    }

    fn failed(&self, _: &Error) {}
}

/// Owner that notes that it was notified, and holds the caller until it is released.
#[derive(Default)]
struct Holding {
    is_here: AtomicBool,
    is_released: AtomicBool,
}

impl Owner for Holding {
    fn committed(&self, _: Offset) {
        self.is_here.store(true, Ordering::Release);
        wait_until("it is released", || self.is_released.load(Ordering::Acquire));
    }

    fn failed(&self, _: &Error) {}
}

/// A block creates a topic and refers to segments with its first records. The records are reported first.
#[test]
fn segments_in_the_journal_stay_until_the_creation_of_their_topic_is_reported() {
    // The journal notifies owners in the order of their addresses, which a test cannot choose: those that remain in use
    // keep the addresses of the first attempts from the later ones.
    let mut used = Vec::new();
    let end = (0..50).find_map(|_| end_after_compaction_in_between(&mut used));
    assert_eq!(end.expect("the records are reported before the creation at least once"), Some(100));
}

/// Returns the end of the partition that a broker finds which is killed after a compaction between the two reports;
/// `None` if the creation was reported first.
fn end_after_compaction_in_between(used: &mut Vec<Arc<Early>>) -> Option<Option<Offset>> {
    used.extend((0..1000).map(|_| Arc::new(Early { log: OnceLock::new(), act: Mutex::new(None) })));
    let owner = used.iter().filter(|owner| owner.log.get().is_none()).min_by_key(|owner| Arc::as_ptr(owner));
    let owner = owner.expect("an owner").clone();
    let disk = SimDisk::new();
    let base = settings();
    let settings = StoreSettings { journal: JournalSettings { syncs_in_flight: 1, ..base.journal }, ..base };
    let (store, _) = open(&disk, Path::new(DIR), settings).expect("it opens");
    // The only thread of the journal waits, so that the next entries are one block.
    let other = Arc::new(Holding::default());
    store.create_topic(topic_name("other"), on_disk(1), other.clone()).expect("a topic");
    wait_until("it is created", || other.is_here.load(Ordering::Acquire));
    let created = Arc::new(Holding::default());
    created.is_released.store(true, Ordering::Release);
    let compacted = TopicSettings { compact: true, ..on_disk(1) };
    let log = store.create_topic(topic_name("t"), compacted, created.clone()).expect("a topic").partitions[0].clone();
    assert!(owner.log.set(log.clone()).is_ok(), "it is new");
    let after = Arc::new(Mutex::new(None));
    *owner.act.lock() = Some(Box::new({
        let (store, disk, after) = (store.clone(), disk.clone(), after.clone());
        move || {
            let is_first = !created.is_here.load(Ordering::Acquire);
            store.compact().expect("it is compacted");
            *after.lock() = Some((is_first, disk.kill(), store.stats().compaction.turns));
            disk.power_off_after(0);
        }
    }));
    let mut random = Random::new(1);
    for _ in 0..100 {
        let mut builder = BatchBuilder::new();
        let value: String = (0..20).map(|_| random.number().to_string()).collect();
        let key = format!("key {}", random.below(20));
        builder.push(1, Some(key.as_bytes()), Some(value.as_bytes()), &[]).expect("it fits");
        let batch = builder.finish().expect("records").stamp(log.end());
        log.append(batch, clock(), owner.clone()).expect("it is taken");
    }
    other.is_released.store(true, Ordering::Release);
    wait_until("it is killed", || after.lock().is_some());
    let (is_first, disk, turns) = after.lock().take().expect("a disk");
    store.stop().unwrap_or_default();
    if !is_first {
        return None;
    }
    assert!(turns > 0, "it was compacted");
    let (_store, topics) = open(&disk, Path::new(DIR), settings).expect("it opens");
    let topic = topics.iter().find(|topic| topic.name.as_str() == "t");
    Some(topic.map(|topic| topic.partitions[0].end()))
}
