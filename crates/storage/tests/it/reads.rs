//! Readers during concurrent changes: they get the correct records without a hole, and lookups by time match.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Storage};
use storage::{PartitionLog, RealDisk, Store, StoreSettings};

use crate::power::repeatable;
use crate::workload::{
    EventLog, Model, NoOwner, Opened, Work, Writer, clock, commit, on_disk, open, read_all, read_at, small,
    through_journal, topic_name, wait_until,
};
use sim::{Random, SimDisk};

/// Reads for a while from an arbitrary offset, as a returning subscriber does.
fn follow(writer: &Arc<Writer>, random: &mut Random) -> Result<(), Error> {
    let extent = writer.log.extent();
    let mut at = extent.start + random.below(extent.end - extent.start + 1);
    for _ in 0..random.below(12) {
        let batches = match read_at(&writer.log, at, random.below(20_000) as usize) {
            // Retention came first.
            Err(error) if error.kind == ErrorKind::OutOfRange && writer.log.extent().start > at => return Ok(()),
            read => read?,
        };
        let Some(first) = batches.first() else {
            assert!(at >= extent.end, "nothing at {at} where {} was the end before", extent.end);
            return Ok(());
        };
        assert!(first.base_offset() <= at && first.next_offset() > at, "{at} was asked for");
        for batch in &batches {
            assert!(writer.has_written(batch), "offset {} is not what was appended", batch.base_offset());
        }
        assert!(batches.windows(2).all(|pair| pair[0].next_offset() == pair[1].base_offset()), "a hole after {at}");
        at = batches.last().map_or(at, RecordBatch::next_offset);
        assert!(at <= writer.log.extent().end, "what is read was committed");
    }
    Ok(())
}

/// Searches for a time, and compares with the written batches, as far as the bounds may have moved in the meantime.
fn look_up(writer: &Arc<Writer>, random: &mut Random) -> Result<(), Error> {
    let before = writer.log.extent();
    let timestamp_ms = (random.below(before.end + 5) * 10) as i64;
    let found = writer.log.offset_for_time(timestamp_ms)?;
    let after = writer.log.extent();
    let first = |start: Offset| writer.first_at(timestamp_ms, start).unwrap_or(u64::MAX);
    let earliest = first(before.start).min(before.end);
    let latest = Some(first(after.start)).filter(|first| *first < before.end).unwrap_or(after.end);
    assert!(earliest <= found && found <= latest, "time {timestamp_ms} at {found}, not in {earliest} to {latest}");
    Ok(())
}

fn read_until(work: &Arc<Work>, seed: u64, is_over: &AtomicBool) -> u64 {
    let mut random = Random::new(seed);
    let mut reads = 0;
    while !is_over.load(Ordering::Relaxed) {
        let writers = work.writers();
        let Some(writer) = writers.get(random.below(writers.len() as u64) as usize) else { continue };
        let read = if random.one_in(4) { look_up(writer, &mut random) } else { follow(writer, &mut random) };
        match read {
            Ok(()) => reads += 1,
            Err(error) if error.kind == ErrorKind::NotFound && writer.is_deleted() => {}
            Err(error) => panic!("{error}"),
        }
    }
    reads
}

/// Runs programs and readers concurrently. Returns the acknowledged contents.
fn read_while_everything_changes(opened: Opened, storage: Storage, seed: u64) -> Model {
    let mut model = Model::default();
    let events = EventLog::default();
    let work = Work::kept_in(storage, opened, &model, 1, events.reporter());
    work.create(2).expect("a topic");
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|reader| {
            let work = work.clone();
            let is_over = is_over.clone();
            std::thread::spawn(move || read_until(&work, seed * 8 + reader, &is_over))
        })
        .collect();
    work.run(seed, 2, 250);
    is_over.store(true, Ordering::Relaxed);
    let reads: u64 = readers.into_iter().map(|reader| reader.join().expect("every read was right")).sum();
    assert!(reads > 0, "nothing was read");
    work.end().expect("it stops");
    events.apply_to(&mut model);
    model
}

#[test]
fn readers_get_the_right_records_during_concurrent_changes() {
    repeatable(12, |seed| {
        let disk = SimDisk::new();
        let dir = Path::new("/data");
        let opened = open(&disk, dir, small(2)).expect("a new directory");
        let mut model = read_while_everything_changes(opened, Storage::Disk, seed);
        let (store, topics) = open(&disk.kill(), dir, small(2)).expect("it opens");
        model.check(&topics, 1).expect("it is all there");
        store.stop().expect("it stops");
    });
}

#[test]
fn readers_of_a_database_get_the_right_records_during_concurrent_changes() {
    repeatable(4, |seed| {
        let temp = tempfile::tempdir().expect("a directory");
        let opened = open(&RealDisk, temp.path(), small(2)).expect("a new directory");
        let mut model = read_while_everything_changes(opened, Storage::Sqlite, seed);
        let (store, topics) = open(&RealDisk, temp.path(), small(2)).expect("it opens");
        model.check(&topics, 1).expect("it is all there");
        store.stop().expect("it stops");
    });
}

const BEGIN_MS: u64 = 1_700_000_000_000;
const HOUR_MS: u64 = 3_600_000;
static WRONG_CLOCK_MS: AtomicU64 = AtomicU64::new(BEGIN_MS);

/// Returns the time of a clock that is set back and forth.
fn wrong_clock() -> u64 {
    WRONG_CLOCK_MS.load(Ordering::Relaxed)
}

fn open_by_wrong_clock(disk: &SimDisk) -> Opened {
    Store::open(Arc::new(disk.clone()), Path::new("/data"), small(1), wrong_clock, &mut |_| {}).expect("it opens")
}

/// Returns a batch of a few records with times near `timestamp_ms`, of about 2 KB.
fn batch_near(base: Offset, timestamp_ms: i64, random: &mut Random) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..1 + random.below(3) {
        let time = timestamp_ms + random.below(200) as i64 - 100;
        builder.push(time, None, Some(&[7; 1000]), &[]).expect("a record");
    }
    builder.finish().expect("records").stamp(base)
}

/// Appends and commits a batch without an owner in the test.
fn append(store: &Store, log: &Arc<dyn PartitionLog>, batch: RecordBatch) {
    wait_until("there is room", || store.admit().is_ok());
    let end = batch.next_offset();
    log.append(batch, clock(), Arc::new(Commits(log.clone()))).expect("it is taken");
    wait_until("it is committed", || log.extent().end >= end);
}

struct Commits(Arc<dyn PartitionLog>);

impl storage::Owner for Commits {
    fn committed(&self, mark: u64) {
        self.0.commit(mark);
    }

    fn failed(&self, error: &Error) {
        panic!("{error}");
    }
}

/// Times of records and the clock of the broker go back and forth by hours.
#[test]
fn times_that_go_backwards_are_found_where_they_are() {
    repeatable(6, |seed| {
        let mut disk = SimDisk::new();
        let mut random = Random::new(seed);
        let (mut store, topics) = open_by_wrong_clock(&disk);
        assert!(topics.is_empty());
        let created = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
        let mut log = created.partitions[0].clone();
        let mut written = Vec::new();
        let mut time = 5_000_000i64;
        for step in 0..240 {
            time += random.below(2_000) as i64 - if random.one_in(20) { 30_000 } else { 500 };
            let batch = batch_near(log.end(), time, &mut random);
            written.push(batch.clone());
            append(&store, &log, batch);
            match random.below(40) {
                0 => store.checkpoint().expect("a checkpoint"),
                1 => {
                    let start = log.extent().start;
                    let end = log.extent().end;
                    let later = start + random.below((end - start) / 4 + 1);
                    commit(|owner| log.clone().set_start(later, owner));
                }
                2 => {
                    store.stop().expect("it stops");
                    disk = disk.kill();
                    let (next, topics) = open_by_wrong_clock(&disk);
                    store = next;
                    log = topics[0].partitions[0].clone();
                }
                _ => {}
            }
            for _ in 0..if step % 8 == 0 { 12 } else { 0 } {
                let asked = time - 40_000 + random.below(45_000) as i64;
                let extent = log.extent();
                let is_it =
                    |batch: &&RecordBatch| batch.next_offset() > extent.start && batch.max_timestamp_ms() >= asked;
                let expected =
                    written.iter().find(is_it).map_or(extent.end, |batch| batch.base_offset().max(extent.start));
                assert_eq!(log.offset_for_time(asked).expect("it is found"), expected, "seed {seed}, step {step}");
            }
        }
        let start = log.extent().start;
        let end = log.extent().end;
        let found = read_all(&log, start, end, 10_000).expect("it is all read");
        let first = written.partition_point(|batch| batch.next_offset() <= start);
        assert!(written[first..] == found, "seed {seed}: what is read is what was written");
        store.stop().expect("it stops");
    });
}

/// No record is deleted before its time by the clock, even if the clock is set; when the clock has passed all of them,
/// all are deleted.
#[test]
fn a_clock_that_is_set_back_neither_loses_nor_keeps_for_ever() {
    let disk = SimDisk::new();
    let mut random = Random::new(1);
    let (store, _) = open_by_wrong_clock(&disk);
    let created = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    let log = created.partitions[0].clone();
    let mut latest = Vec::new();
    // An hour ahead for a while, then correct again: segments of the wrong hour, and later ones.
    for clock_ms in [BEGIN_MS, BEGIN_MS + HOUR_MS, BEGIN_MS + 60_000] {
        WRONG_CLOCK_MS.store(clock_ms, Ordering::Relaxed);
        // A flush that began before has the old time, also for records that it meets later. It is over then.
        store.checkpoint().expect("flushes that began before have ended");
        for _ in 0..60 {
            let batch = batch_near(log.end(), 0, &mut random);
            append(&store, &log, batch);
        }
        wait_until("all of it is committed", || log.extent().end == log.end());
        store.checkpoint().expect("all of it is in segments");
        latest.push(log.extent().end);
    }
    let retention_ms = 600_000;
    let start_at = |now_ms| log.retain(0, retention_ms, u64::MAX, now_ms).unwrap_or(log.extent().start);
    assert_eq!(start_at(BEGIN_MS), 0, "the clock is behind all of it");
    assert_eq!(start_at(BEGIN_MS + retention_ms - 1), 0, "nothing is old enough");
    let first = start_at(BEGIN_MS + retention_ms);
    assert!(first > 0 && first <= latest[0], "what came first goes first: {first}");
    let kept = start_at(BEGIN_MS + HOUR_MS + retention_ms - 1);
    assert!(kept <= latest[1], "records that arrived in the wrong hour are not known to be old: {kept}");
    assert_eq!(start_at(BEGIN_MS + HOUR_MS + retention_ms), latest[2], "it ends with that hour");
    store.stop().expect("it stops");
}

#[test]
fn records_that_left_memory_are_read_from_their_segment() {
    let hour = Duration::from_secs(3600);
    let small = through_journal(small(1));
    let settings = StoreSettings { tail_time: hour, tail_bytes_max: 1 << 20, unflushed_bytes_max: 1 << 20, ..small };
    let opened = open(&SimDisk::new(), Path::new("/data"), settings).expect("a new directory");
    let work = Work::new(opened, &Model::default(), 1, EventLog::default().reporter());
    let writer = work.create(1).expect("a topic")[0].clone();
    let store = &work.store;
    let tail_bytes = || work.store.stats().tail_bytes;
    let append = || {
        let end = (0..10).fold(0, |_, _| writer.append().expect("it is taken"));
        assert!(writer.wait(end), "it is acknowledged");
    };
    append();
    store.checkpoint().expect("a checkpoint");
    let first = tail_bytes();
    assert_eq!((store.age_tails(), tail_bytes()), (0, first), "it was not there the last time");
    append();
    let both = tail_bytes();
    assert_eq!((store.age_tails(), tail_bytes()), (first, both - first), "the first ones have to go");
    assert_eq!((store.age_tails(), tail_bytes()), (0, store.stats().unflushed_bytes), "these are in no segment");
    let end = writer.log.extent().end;
    let found = read_all(&writer.log, 0, end, 10_000).expect("it is all read");
    assert!(found.iter().all(|batch| writer.has_written(batch)), "it is what was appended");
    store.checkpoint().expect("a checkpoint");
    assert_eq!((store.age_tails(), tail_bytes()), (both - first, 0), "nothing came meanwhile");
    work.end().expect("it stops");
}
