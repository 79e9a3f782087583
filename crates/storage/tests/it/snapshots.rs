//! Snapshots: everything at one position of the log, and readable while the store goes on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{BatchBuilder, Error, Offset, RecordBatch, TopicSettings};
use parking_lot::{Condvar, Mutex};
use storage::{CompactionSettings, EntryKind, Owner, PartitionLog, RealDisk, Snapshot, Store, StoreSettings};

use crate::workload::{NoOwner, PATIENCE, batch_at, clock, on_disk, open, read_all, small, topic_name};

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

fn create(store: &Store, name: &str, settings: TopicSettings) -> Arc<dyn PartitionLog> {
    let topic = store.create_topic(topic_name(name), settings, Arc::new(NoOwner)).expect("a topic");
    topic.partitions[0].clone()
}

fn append(log: &Arc<dyn PartitionLog>, batch: RecordBatch) {
    let owner = Commits::of(log);
    let end = batch.next_offset();
    log.append(batch, clock(), owner.clone()).expect("taken");
    owner.wait(end);
}

fn keyed(log: &Arc<dyn PartitionLog>, key: &str, value: Option<&[u8]>) {
    let mut builder = BatchBuilder::new();
    builder.push(clock() as i64, Some(key.as_bytes()), value, &[]).expect("a record");
    append(log, builder.finish().expect("a record").stamp(log.end()));
}

/// Returns all batches of a partition in a snapshot.
fn read(snapshot: &Snapshot, stream: u64, from: Offset) -> Vec<RecordBatch> {
    let mut batches: Vec<RecordBatch> = Vec::new();
    loop {
        let at = batches.last().map_or(from, RecordBatch::next_offset);
        let some = snapshot.read(stream, at, 1000).expect("readable");
        if some.is_empty() {
            return batches;
        }
        batches.extend(some);
    }
}

/// Installs a snapshot in a new directory, as a restore does.
fn install(snapshot: &Snapshot, dir: &Path) {
    let (store, _) = open(&RealDisk, dir, small(2)).expect("a new directory");
    let wanted = store.begin_install(snapshot.manifest()).expect("begun");
    for part in wanted {
        for batch in read(snapshot, part.stream, part.from) {
            store.apply(EntryKind::Batch, part.stream, batch.bytes().clone()).expect("applied");
        }
    }
    store.end_install(snapshot.manifest()).expect("whole");
    store.stop().expect("stopped");
}

/// Batches go to two topics in turn, so at each position of the log the first has as many as the second or one more.
#[test]
fn a_snapshot_is_one_position_of_the_log() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, _) = open(&RealDisk, temp.path(), small(2)).expect("a new directory");
    let logs = ["a", "b"].map(|name| create(&store, name, on_disk(1)));
    let has_ended = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (logs, has_ended) = (logs.clone(), has_ended.clone());
        move || {
            let owners = logs.clone().map(|log| Commits::of(&log));
            let mut ends = [vec![0], vec![0]];
            while !has_ended.load(Ordering::Acquire) {
                // Several blocks are in flight: only their order counts.
                for _ in 0..20 {
                    for ((log, owner), ends) in logs.iter().zip(&owners).zip(&mut ends) {
                        let batch = batch_at("ab", 0, log.end(), 0);
                        ends.push(batch.next_offset());
                        log.append(batch, clock(), owner.clone()).expect("taken");
                    }
                }
                owners[0].wait(ends[0][ends[0].len() - 20]);
            }
            ends
        }
    });
    let mut snapshots: Vec<Vec<(u64, Offset)>> = Vec::new();
    while snapshots.len() < 20 || snapshots.last().is_some_and(|last| last.len() < 2) {
        let snapshot = store.snapshot(false).expect("a snapshot");
        let extents: Vec<_> = snapshot.manifest().extents().map(|(stream, extent)| (stream, extent.end)).collect();
        for (stream, end) in &extents {
            let last = snapshot.read(*stream, end.saturating_sub(1), 1000).expect("readable");
            assert_eq!(last.last().map_or(0, RecordBatch::next_offset), *end);
        }
        snapshots.push(extents);
    }
    has_ended.store(true, Ordering::Release);
    let ends = writer.join().expect("no panic");
    for snapshot in snapshots {
        let [of_a, of_b] = [0, 1].map(|i| {
            // The first snapshots may precede the topics.
            let end = snapshot.get(i).map_or(0, |(_, end)| *end);
            ends[i].binary_search(&end).expect("the end of a batch")
        });
        assert!(of_a == of_b || of_a == of_b + 1, "{of_a} batches and {of_b}");
    }
}

/// Retention, compaction and the deletion of a topic after a snapshot change nothing in it.
#[test]
fn a_snapshot_keeps_what_is_deleted_and_compacted_later() {
    let temp = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    let compaction =
        CompactionSettings { dirty_bytes_min: 1, tombstone_retention_ms: 0, ..CompactionSettings::default() };
    let settings = StoreSettings { segment_bytes: 16 << 10, compaction, ..small(2) };
    let (store, _) = open(&RealDisk, temp.path(), settings).expect("a new directory");
    let compacted = TopicSettings { compact: true, ..on_disk(1) };
    let [cut, table, deleted] =
        [("cut", on_disk(1)), ("table", compacted), ("deleted", on_disk(1))].map(|(name, of)| create(&store, name, of));
    for i in 0..200 {
        append(&cut, batch_at("cut", 0, cut.end(), 0));
        append(&deleted, batch_at("deleted", 0, deleted.end(), 0));
        keyed(&table, &format!("key {}", i % 5), Some(&[i as u8; 300]));
    }
    let all = |log: &Arc<dyn PartitionLog>| {
        let extent = log.extent();
        read_all(log, extent.start, extent.end, 16 << 10).expect("readable")
    };
    let before = [&cut, &table, &deleted].map(all);
    let snapshot = store.snapshot(false).expect("a snapshot");

    let owner = Commits::of(&cut);
    cut.clone().set_start(cut.end(), owner.clone()).expect("taken");
    for i in 0..200 {
        keyed(&table, &format!("key {}", i % 5), if i < 100 { Some(&[0; 300]) } else { None });
    }
    store
        .delete_topic(snapshot.manifest().catalog.topics.keys().copied().max().expect("an id"), Arc::new(NoOwner))
        .expect("taken");
    store.checkpoint().expect("a checkpoint");
    let compaction = store.compact().expect("compacted");
    assert!(compaction.records_removed > 0, "{compaction:?}");
    store.checkpoint().expect("a checkpoint");

    let streams: Vec<u64> = snapshot.manifest().extents().map(|(stream, _)| stream).collect();
    for (stream, before) in streams.iter().zip(&before) {
        assert_eq!(read(&snapshot, *stream, 0), *before);
    }
    install(&snapshot, other.path());
    let (restored, topics) = open(&RealDisk, other.path(), small(2)).expect("a whole directory");
    for (topic, before) in topics.iter().zip(&before) {
        assert_eq!(all(&topic.partitions[0]), *before, "{}", topic.name);
    }
    restored.stop().expect("stopped");

    // Without the snapshot, the files go.
    let bytes = || disk_bytes(temp.path());
    let held = bytes();
    drop(snapshot);
    append(&table, batch_at("table", 0, table.end(), 0));
    store.checkpoint().expect("a checkpoint");
    store.checkpoint().expect("a checkpoint");
    assert!(bytes() < held, "{} of {held} bytes are left", bytes());
}

fn disk_bytes(dir: &Path) -> u64 {
    let mut bytes = 0;
    let mut dirs = vec![dir.join("topics")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            let entry = entry.expect("readable");
            match entry.metadata().expect("readable") {
                metadata if metadata.is_dir() => dirs.push(entry.path()),
                metadata => bytes += metadata.len(),
            }
        }
    }
    bytes
}
