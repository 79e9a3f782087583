//! Transactions on disk: open, stable and void records after any kind of end of the process, and their compaction.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::producers::AbortedIndex;
use engine::{BatchBuilder, Codec, Decision, Error, Marker, Offset, Producer, RecordBatch, TopicSettings};
use storage::{CompactionSettings, Owner, PartitionLog, Store, StoreSettings};

use crate::power::repeatable;
use crate::workload::{NoOwner, clock, on_disk, open, read_at, small, topic_name, wait_until};
use sim::{Random, SimDisk};

const DIR: &str = "/data";
const PRODUCERS: u64 = 4;
const KEYS: u64 = 15;

/// Compacts whenever compaction is allowed; tombstones and markers stay for one turn.
fn settings() -> StoreSettings {
    let compaction = CompactionSettings {
        dirty_bytes_min: 4 << 10,
        keys_max: 50_000,
        bytes_per_s: 1 << 40,
        tombstone_retention_ms: 0,
        lag_ms: (0, 0),
    };
    StoreSettings { segment_bytes: 8 << 10, compaction, ..small(2) }
}

struct Owning(Arc<dyn PartitionLog>, Arc<AtomicU64>);

impl Owner for Owning {
    fn committed(&self, mark: Offset) {
        self.0.commit(mark);
        self.1.fetch_max(mark, Ordering::AcqRel);
    }

    fn failed(&self, _: &Error) {}
}

/// Batch that was appended, with its transaction: the producer, and the number of its earlier transactions.
struct Sent {
    batch: RecordBatch,
    transaction: Option<(i64, usize)>,
    ends: Option<(i64, usize, Decision)>,
}

struct Site {
    disk: SimDisk,
    store: Arc<Store>,
    log: Arc<dyn PartitionLog>,
    committed: Arc<AtomicU64>,
    /// All appended batches, by their base offsets.
    sent: BTreeMap<Offset, Sent>,
}

impl Site {
    fn open(disk: SimDisk, mut sent: BTreeMap<Offset, Sent>) -> Self {
        let (store, topics) = open(&disk, Path::new(DIR), settings()).expect("it opens");
        let create = || {
            let compacted = TopicSettings { compact: true, ..on_disk(1) };
            store.create_topic(topic_name("t"), compacted, Arc::new(NoOwner)).expect("a topic")
        };
        let log = topics.into_iter().next().unwrap_or_else(create).partitions[0].clone();
        sent.split_off(&log.end());
        let committed = Arc::new(AtomicU64::new(log.end()));
        Self { disk, store, log, committed, sent }
    }

    fn reopened(self, next: impl FnOnce(&SimDisk) -> SimDisk) -> Self {
        self.disk.power_off_after(0);
        let disk = next(&self.disk);
        // `stop` may fail, because the power is off.
        self.store.stop().unwrap_or_default();
        let acknowledged = self.committed.load(Ordering::Acquire);
        let site = Self::open(disk, self.sent);
        assert!(site.log.end() >= acknowledged, "{} of {acknowledged} records are there", site.log.end());
        site.check();
        site
    }

    /// Returns the decision of each transaction whose end is in the log.
    fn decisions(&self) -> HashMap<(i64, usize), Decision> {
        let ends = self.sent.values().filter_map(|sent| sent.ends);
        ends.map(|(id, number, decision)| ((id, number), decision)).collect()
    }

    /// Returns the number of ended transactions of a producer, and whether one is open.
    fn of_producer(&self, id: i64) -> (usize, bool) {
        let over = self.sent.values().filter(|sent| sent.ends.is_some_and(|(of, ..)| of == id)).count();
        let is_open = self.sent.values().any(|sent| sent.transaction == Some((id, over)));
        (over, is_open)
    }

    /// Appends records outside of transactions, records of a producer's transaction, or the end of one.
    fn append(&mut self, random: &mut Random) -> Result<(), Error> {
        self.store.admit()?;
        let id = random.below(PRODUCERS) as i64;
        let (over, is_open) = self.of_producer(id);
        let at = self.log.end();
        let sent = if random.one_in(3) {
            Sent { batch: batch(random, None).stamp(at), transaction: None, ends: None }
        } else if is_open && random.one_in(3) {
            let decision = if random.one_in(2) { Decision::Abort } else { Decision::Commit };
            let marker = Marker { decision, coordinator_epoch: 0 }.draft(id, 0, 1).expect("a small record");
            Sent { batch: marker.stamp(at), transaction: None, ends: Some((id, over, decision)) }
        } else {
            let mut draft = batch(random, Some(Producer { id, epoch: 0, sequence: at as i32 }));
            draft.set_transactional();
            Sent { batch: draft.stamp(at), transaction: Some((id, over)), ends: None }
        };
        let appended = sent.batch.clone();
        self.sent.insert(at, sent);
        self.log.append(appended, clock(), Arc::new(Owning(self.log.clone(), self.committed.clone()))).map(drop)
    }

    /// Ends all open transactions.
    fn end_all(&mut self) {
        for id in 0..PRODUCERS as i64 {
            let (over, is_open) = self.of_producer(id);
            if is_open {
                let decision = Decision::Abort;
                let marker = Marker { decision, coordinator_epoch: 0 }.draft(id, 0, 1).expect("a small record");
                let batch = marker.stamp(self.log.end());
                let sent = Sent { batch: batch.clone(), transaction: None, ends: Some((id, over, decision)) };
                self.sent.insert(batch.base_offset(), sent);
                self.log
                    .append(batch, clock(), Arc::new(Owning(self.log.clone(), self.committed.clone())))
                    .expect("appended");
            }
        }
    }

    fn settle(&self) {
        wait_until("all is committed", || self.committed.load(Ordering::Acquire) == self.log.end());
    }

    /// Reads all batches as a reader receives them.
    fn read(&self) -> Vec<RecordBatch> {
        let mut at = self.log.extent().start;
        let mut found = Vec::new();
        while at < self.log.extent().end {
            for batch in read_at(&self.log, at, 9000).expect("it is read") {
                assert!(batch.base_offset() <= at, "a hole at offset {at}");
                at = batch.next_offset();
                found.push(batch);
            }
        }
        found
    }

    /// Checks the log once all is committed: open and void records match the log's state, and the newest valid record
    /// of each key is present.
    fn check(&self) -> usize {
        let decisions = self.decisions();
        let producers = self.log.producers();
        let is_open = |sent: &&Sent| sent.transaction.is_some_and(|of| !decisions.contains_key(&of));
        let first_open = self.sent.values().find(is_open).map(|sent| sent.batch.base_offset());
        assert_eq!(producers.first_open(), first_open);
        let stable_end = first_open.unwrap_or(self.log.end());

        let void = AbortedIndex::new(producers.aborted(0, self.log.end()));
        let mut present = BTreeMap::new();
        let mut voids = 0;
        for batch in self.read() {
            let records = batch.records().expect("it decodes");
            for view in &records {
                let record = records.own(&view.expect("it decodes"));
                // A batch keeps its base offset unless it has lost all its records.
                let (_, sent) = self.sent.range(..=record.offset).next_back().expect("it was appended");
                let is_void = sent.transaction.and_then(|of| decisions.get(&of)) == Some(&Decision::Abort);
                assert_eq!(void.has(&batch), is_void, "offset {}", record.offset);
                voids += usize::from(is_void);
                present.insert(record.offset, (record, is_void));
            }
        }
        let mut newest = HashMap::new();
        for sent in self.sent.values().filter(|sent| !sent.batch.is_control()) {
            let decision = sent.transaction.map(|of| decisions.get(&of));
            let records = sent.batch.records().expect("it decodes");
            for view in &records {
                let record = records.own(&view.expect("it decodes"));
                if record.offset >= stable_end {
                    assert_eq!(
                        present.get(&record.offset).map(|(record, _)| record),
                        Some(&record),
                        "it is not stable"
                    );
                } else if decision.is_none_or(|decision| decision == Some(&Decision::Commit)) {
                    newest.insert(record.key.clone(), record);
                }
            }
        }
        for record in newest.into_values().filter(|record| record.value.is_some()) {
            assert_eq!(present.get(&record.offset), Some(&(record.clone(), false)), "it counts, and is gone");
        }
        voids
    }
}

fn batch(random: &mut Random, producer: Option<Producer>) -> engine::DraftBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..1 + random.below(4) {
        let key = format!("key {}", random.below(KEYS));
        let value = random.number().to_string().repeat(4);
        let value = (!random.one_in(6)).then_some(value.as_bytes());
        builder.push(1, Some(key.as_bytes()), value, &[]).expect("it fits");
    }
    let codec = Codec::ALL[random.below(Codec::ALL.len() as u64) as usize];
    builder.finish_with(codec, producer).expect("records")
}

#[test]
fn open_and_aborted_transactions_survive_power_cuts_and_compaction() {
    repeatable(40, |seed| {
        let mut random = Random::new(seed);
        let mut site = Site::open(SimDisk::new(), BTreeMap::new());
        for _ in 0..3 {
            site.disk.power_off_after(100 + random.below(1500));
            for _ in 0..300 {
                let step = match random.below(40) {
                    0 => site.store.checkpoint(),
                    1..4 => site.store.compact().map(drop),
                    4 => {
                        site.log.forget_aborted();
                        Ok(())
                    }
                    _ => site.append(&mut random),
                };
                if step.is_err() && site.disk.is_off() {
                    break;
                }
            }
            let cut = random.number();
            let is_killed = random.one_in(4);
            site = site.reopened(|disk| if is_killed { disk.kill() } else { disk.cut(cut) });
        }
        while site.append(&mut random).is_err() {}
        site.settle();
        site.check();
    });
}

#[test]
fn aborted_records_go_with_their_markers_and_are_forgotten() {
    repeatable(5, |seed| {
        let mut random = Random::new(seed);
        let mut site = Site::open(SimDisk::new(), BTreeMap::new());
        let mut voids = 0;
        for _ in 0..4 {
            for _ in 0..200 {
                while site.append(&mut random).is_err() {}
            }
            site.settle();
            voids += site.check();
            site.end_all();
            site.settle();
            site.store.checkpoint().expect("it is safe");
            site.store.compact().expect("it is compacted");
            site = site.reopened(SimDisk::kill);
        }
        assert!(voids > 100, "{voids} records were void");
        let end = site.log.end();
        let forgotten = site.log.forget_aborted();
        assert!(forgotten > end / 2, "{forgotten} of {end}");
        let known = site.log.producers().aborted(0, end);
        assert!(known.iter().all(|aborted| aborted.last >= forgotten), "{known:?}, {forgotten}");
        let old = site.read().into_iter().filter(|batch| batch.next_offset() < end / 2);
        assert_eq!(old.filter(|batch| batch.is_control() && batch.count() > 0).count(), 0, "old markers");
        site.check();
        // The state in a checkpoint is equal.
        site.store.checkpoint().expect("it is safe");
        site.reopened(SimDisk::kill).check();
    });
}
