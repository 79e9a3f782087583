//! Power cuts at arbitrary moments, repeatedly: acknowledged records are present, and no record that was never
//! appended.

use std::panic::RefUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use storage::StoreSettings;
use storage::journal::block::FileHead;

use crate::workload::{EventLog, Model, Work, Writer, commit, on_disk, open, small, topic_name, wait_until};
use sim::{Random, SimDisk};

/// Returns the first seed. `STORAGE_SEED` and `STORAGE_CYCLES` select other seeds, or more of them.
pub fn first_seed() -> u64 {
    number("STORAGE_SEED").unwrap_or(1)
}

pub fn times(cycles: u64) -> u64 {
    number("STORAGE_CYCLES").unwrap_or(cycles)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs one directory through several lives, each of which a power cut ends.
fn live(seed: u64, syncs_in_flight: usize) {
    let mut random = Random::new(seed);
    let mut disk = SimDisk::new();
    let mut model = Model::default();
    let dir = Path::new("/srv/data");
    let lives = 3 + random.below(3);
    let mut incarnation = seed * 100;
    for life in 1..=lives {
        let is_last = life == lives;
        // Sometimes the power goes off while the directory is being opened.
        if !is_last && random.one_in(4) {
            disk.power_off_after(random.below(150));
        }
        let events = EventLog::default();
        match open(&disk, dir, small(syncs_in_flight)) {
            Err(error) => assert!(disk.is_off(), "seed {seed}, life {life}: {error}"),
            Ok((store, topics)) => match model.check(&topics, incarnation) {
                Err(error) => {
                    assert!(disk.is_off(), "seed {seed}, life {life}: {error}");
                    store.stop().unwrap_or_default();
                }
                Ok(()) => {
                    incarnation += 1;
                    let is_clean = is_last || random.one_in(6);
                    if !is_clean {
                        disk.power_off_after(random.below(900));
                    }
                    let work = Work::new((store, topics), &model, incarnation, events.reporter());
                    work.run(seed * 1000 + life, 1 + random.below(3), if is_clean { 60 } else { 2000 });
                    let ended = work.end();
                    assert!(ended.is_ok() || disk.is_off(), "seed {seed}, life {life}: {ended:?}");
                }
            },
        }
        events.apply_to(&mut model);
        // A power cut, or only the end of the process.
        disk = if random.one_in(4) { disk.kill() } else { disk.cut(random.number()) };
    }
    let (_store, topics) =
        open(&disk, dir, small(syncs_in_flight)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    model.check(&topics, incarnation).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

/// Runs a test with each seed, and prints how to repeat a failed one.
pub fn repeatable(cycles: u64, each: impl Fn(u64) + RefUnwindSafe) {
    for seed in (first_seed()..).take(times(cycles) as usize) {
        if let Err(panic) = std::panic::catch_unwind(|| each(seed)) {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or_default();
            eprintln!(
                "to repeat it: STORAGE_SEED={seed} STORAGE_CYCLES=1 cargo test -p thalweg-storage --test it -- {test}"
            );
            std::panic::resume_unwind(panic);
        }
    }
}

fn lives(syncs_in_flight: usize, cycles: u64) {
    repeatable(cycles, |seed| live(seed, syncs_in_flight));
}

#[test]
fn acknowledged_records_survive_power_cuts_with_one_sync_at_a_time() {
    lives(1, 70);
}

#[test]
fn acknowledged_records_survive_power_cuts_with_two_syncs_in_flight() {
    lives(2, 70);
}

#[test]
fn acknowledged_records_survive_power_cuts_with_three_syncs_in_flight() {
    lives(3, 70);
}

/// A broker that is killed while it creates files leaves names that are not durable yet; the next one uses these files.
#[test]
fn files_that_a_killed_broker_made_outlive_a_power_cut_once_they_are_used() {
    let dir = Path::new("/srv/data");
    for operations in 0..60 {
        let disk = SimDisk::new();
        disk.power_off_after(operations);
        drop(open(&disk, dir, small(1)));
        let disk = disk.kill();
        let mut model = Model::default();
        let events = EventLog::default();
        let work = Work::new(open(&disk, dir, small(1)).expect("it opens"), &model, 1, events.reporter());
        let writers = work.create(1).expect("a topic");
        for _ in 0..20 {
            let end = writers[0].append().expect("it is taken");
            assert!(writers[0].wait(end), "it is acknowledged");
        }
        let after = disk.cut(operations);
        disk.power_off_after(0);
        work.end().unwrap_or_default();
        events.apply_to(&mut model);
        let opened = open(&after, dir, small(1));
        let (store, topics) = opened.unwrap_or_else(|error| panic!("killed after {operations}: {error}"));
        model.check(&topics, 1).unwrap_or_else(|error| panic!("killed after {operations}: {error}"));
        store.stop().expect("it stops");
    }
}

#[test]
fn a_directory_that_a_killed_broker_began_to_make_outlives_a_power_cut_once_it_is_used() {
    let dir = Path::new("/srv/deep/data");
    for operations in 0..12 {
        let disk = SimDisk::new();
        disk.power_off_after(operations);
        drop(open(&disk, dir, small(1)));
        let disk = disk.kill();
        let (store, _) = open(&disk, dir, small(1)).expect("it opens");
        commit(|owner| store.create_topic(topic_name("t"), on_disk(1), owner));
        let after = disk.cut(operations);
        store.stop().expect("it stops");
        let (store, topics) = open(&after, dir, small(1)).expect("it opens");
        assert_eq!(topics.len(), 1, "killed after {operations} operations");
        store.stop().expect("it stops");
    }
}

/// Returns the journal's files and their lengths.
pub fn journals(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|name| name == "journal")).collect()
}

/// Returns the heads of all files that are or were in use, in the order of their numbers.
pub fn heads(disk: &SimDisk) -> Vec<FileHead> {
    let journals = journals(disk).into_iter();
    let mut heads: Vec<_> = journals.filter_map(|(path, _)| FileHead::decode(&disk.contents(&path)).ok()).collect();
    heads.sort_by_key(|head| head.number);
    heads
}

/// Returns settings under which the journal keeps all of its files until the end.
pub fn without_checkpoints() -> StoreSettings {
    StoreSettings { checkpoint_bytes: u64::MAX, ..small(1) }
}

/// Appends until `files` files of the journal contain entries.
pub fn fill_files(disk: &SimDisk, writer: &Arc<Writer>, files: usize) {
    while heads(disk).len() < files {
        let end = writer.append().expect("it is taken");
        assert!(writer.wait(end), "it is acknowledged");
    }
}

#[test]
fn a_journal_begins_with_a_small_file_goes_on_in_larger_ones_and_is_read_back_through_all_of_them() {
    let dir = Path::new("/srv/data");
    let settings = without_checkpoints();
    let disk = SimDisk::new();
    let mut model = Model::default();
    let events = EventLog::default();
    let work = Work::new(open(&disk, dir, settings).expect("a new directory"), &model, 1, events.reporter());
    let writer = work.create(1).expect("a topic")[0].clone();
    wait_until("two files are made ahead", || work.store.stats().journal.files_spare == 2);
    fill_files(&disk, &writer, 3);
    let before = heads(&disk);
    // The first of the two was only allocated, so that it was ready immediately: it comes last.
    let second = FileHead::decode(&disk.contents(&dir.join("journal/000002.journal")));
    assert_eq!(second, Ok(before[1]));
    let first = settings.journal.first_file_bytes;
    let later = settings.journal.file_bytes;
    assert_eq!(before.iter().map(|head| head.bytes).collect::<Vec<_>>(), [first, later, later]);
    assert_eq!(before.iter().map(|head| head.position).collect::<Vec<_>>(), [0, first, first + later]);
    let small = PathBuf::from("/srv/data/journal/000000.journal");
    for (path, len) in journals(&disk) {
        // A file that is being created has not reached its length yet.
        let is_right = if path == small { len == first } else { len <= later };
        assert!(is_right, "{} has grown to {len} bytes", path.display());
    }
    let after = disk.cut(1);
    disk.power_off_after(0);
    work.end().unwrap_or_default();
    events.apply_to(&mut model);
    let (store, topics) = open(&after, dir, settings).expect("it opens");
    model.check(&topics, 1).expect("it is all there");
    // No position is reused: the next file begins after the end of the last one.
    let next = *heads(&after).last().expect("a file");
    let last = before.last().expect("a file");
    assert_eq!((next.number > last.number, next.position), (true, last.end()));
    // Once none of its entries is needed, the small file is deleted.
    store.checkpoint().expect("a checkpoint");
    assert!(journals(&after).iter().all(|(path, _)| *path != small), "{:?}", journals(&after));
    store.stop().expect("it stops");
}

#[test]
fn a_journal_that_ended_in_its_small_file_goes_on_behind_it() {
    let dir = Path::new("/srv/data");
    let settings = without_checkpoints();
    let disk = SimDisk::new();
    let (store, _) = open(&disk, dir, settings).expect("a new directory");
    wait_until("two files are made ahead", || store.stats().journal.files_spare == 2);
    let killed = disk.kill();
    store.stop().expect("it stops");
    let (store, _) = open(&killed, dir, settings).expect("it opens");
    let positions: Vec<u64> = heads(&killed).iter().map(|head| head.position).collect();
    assert_eq!(positions.last(), Some(&settings.journal.first_file_bytes));
    store.stop().expect("it stops");
}
