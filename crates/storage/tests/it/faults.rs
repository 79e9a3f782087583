//! Failing operations of the disk: no acknowledged record is lost, all waiting owners are notified, and unaffected work
//! continues.

use std::io::ErrorKind as Io;
use std::path::Path;
use std::sync::Arc;

use engine::{Error, ErrorKind};
use storage::StoreSettings;

use crate::power::repeatable;
use crate::workload::{EventLog, Model, Work, Writer, open, small, through_journal, wait_until};
use sim::{Doing, Fault, Random, SimDisk};

pub const DIR: &str = "/data";

/// Directory with a workload that knows the acknowledged records.
pub struct Site {
    pub disk: SimDisk,
    pub settings: StoreSettings,
    pub model: Model,
    pub incarnation: u64,
    pub events: EventLog,
    pub work: Arc<Work>,
}

impl Site {
    pub fn new(settings: StoreSettings) -> Self {
        let disk = SimDisk::new();
        let model = Model::default();
        let events = EventLog::default();
        let opened = open(&disk, Path::new(DIR), settings).expect("a new directory");
        let work = Work::new(opened, &model, 1, events.reporter());
        Self { disk, settings, model, incarnation: 1, events, work }
    }

    /// Ends the process as it is; `next` returns the disk that the next process finds.
    pub fn end(mut self, next: impl FnOnce(&SimDisk) -> SimDisk) -> (SimDisk, Model) {
        self.disk.power_off_after(0);
        let disk = next(&self.disk);
        self.work.end().unwrap_or_default();
        self.events.apply_to(&mut self.model);
        (disk, self.model)
    }

    /// Ends the process and checks that all data is present afterwards.
    pub fn check(self, next: impl FnOnce(&SimDisk) -> SimDisk) {
        let settings = self.settings;
        let incarnation = self.incarnation;
        let (disk, mut model) = self.end(next);
        let (store, topics) = open(&disk, Path::new(DIR), settings).expect("it opens");
        model.check(&topics, incarnation).expect("it is all there");
        store.stop().expect("it stops");
    }
}

/// Returns the disk after a power cut, or only the end of the process.
pub fn end_of_process(disk: &SimDisk, seed: u64) -> SimDisk {
    if seed.is_multiple_of(2) { disk.cut(seed) } else { disk.kill() }
}

pub fn fault(doing: Doing, path: &'static str, after: u64, times: u64, error: Io) -> Fault {
    Fault { doing, path, after, times, error }
}

/// Appends one batch if there is room.
pub fn try_append(site: &Site, writer: &Arc<Writer>) -> Result<u64, Error> {
    site.work.store.admit()?;
    writer.append_now()
}

/// Appends until it is refused, because too much data is pending.
fn append_until_busy(site: &Site, writer: &Arc<Writer>) -> Error {
    let mut refused = None;
    wait_until("an append is refused", || {
        refused = try_append(site, writer).err();
        refused.is_some()
    });
    let refused = refused.expect("an error");
    assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
    refused
}

/// Appends until it is refused because the disk is full. Before that too much data may be pending for the journal at
/// times.
pub fn append_until_full(site: &Site, writer: &Arc<Writer>) -> Error {
    let mut refused = None;
    wait_until("the disk is full", || {
        refused = try_append(site, writer).err().filter(|error| error.kind != ErrorKind::Busy);
        refused.is_some()
    });
    let refused = refused.expect("an error");
    assert_eq!(refused.kind, ErrorKind::DiskFull, "{refused}");
    refused
}

/// Appends until one more batch is acknowledged.
pub fn append_until_committed(site: &Site, writer: &Arc<Writer>) {
    let mut end = None;
    wait_until("an append is taken", || {
        end = try_append(site, writer).ok();
        end.is_some()
    });
    assert!(writer.wait(end.expect("an offset")), "it is acknowledged");
}

/// Makes one operation on a file of this kind fail whose data may be acknowledged only after it.
fn journal_breaks(doing: Doing, path: &'static str, seed: u64, syncs_in_flight: usize) {
    let mut random = Random::new(seed);
    let site = Site::new(small(syncs_in_flight));
    site.work.create(3).expect("a topic");
    while site.work.store.broken().is_none() {
        // The fault may hit a file that is only being created: that one is created again.
        site.disk.add_fault(fault(doing, path, random.below(40), 1, Io::Other));
        site.work.run(seed, 3, 100);
    }
    let broken = site.work.store.broken().expect("it reports why it accepts no more records");
    assert!(broken.message.contains(path), "{broken}");
    assert!(broken.message.contains("Restart the broker"), "{broken}");
    let writers = site.work.writers();
    let refused = writers[0].append_now().expect_err("nothing is taken any more");
    assert_eq!(refused.message, broken.message);
    site.check(|disk| end_of_process(disk, random.number()));
}

#[test]
fn after_a_failed_sync_of_the_journal_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    repeatable(30, |seed| {
        journal_breaks(Doing::Sync, ".journal", seed, 1 + (seed % 3) as usize);
    });
}

#[test]
fn after_a_failed_write_of_the_journal_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    repeatable(30, |seed| {
        journal_breaks(Doing::Write, ".journal", seed, 1 + (seed % 3) as usize);
    });
}

#[test]
fn after_a_failed_sync_of_batches_that_only_a_segment_has_nothing_acknowledged_is_lost() {
    repeatable(30, |seed| {
        journal_breaks(Doing::Sync, ".log", seed, 1 + (seed % 3) as usize);
    });
}

#[test]
fn appends_wait_for_a_full_disk_and_continue_when_space_is_free() {
    repeatable(10, |seed| {
        let mut random = Random::new(seed);
        let site = Site::new(small(2));
        let writer = site.work.create(2).expect("a topic")[0].clone();
        for _ in 0..2 {
            site.disk.set_bytes_max(Some(site.disk.bytes() + random.below(300_000)));
            let full = append_until_full(&site, &writer);
            let expected = ["no room", "the disk is full, so no records are accepted"];
            assert!(expected.iter().any(|words| full.message.contains(words)), "{full}");
            assert_eq!(site.work.store.broken(), None);
            let end = writer.committed_end();
            let read = crate::workload::read_all(&writer.log, writer.log.extent().start, end, 10_000);
            read.expect("what was committed is read");
            site.disk.set_bytes_max(None);
            append_until_committed(&site, &writer);
        }
        site.work.store.checkpoint().expect("there is room");
        site.check(|disk| end_of_process(disk, random.number()));
    });
}

#[test]
fn a_disk_that_stays_full_does_not_keep_the_store_from_stopping() {
    repeatable(6, |seed| {
        let mut site = Site::new(small(2));
        let writer = site.work.create(1).expect("a topic")[0].clone();
        site.disk.set_bytes_max(Some(site.disk.bytes() + 20_000 * (seed % 10)));
        append_until_full(&site, &writer);
        // Not everything could be kept, unless the release of a journal file freed space for it.
        site.work.clone().end().unwrap_or_default();
        site.events.apply_to(&mut site.model);
        site.disk.set_bytes_max(None);
        site.check(SimDisk::kill);
    });
}

/// Makes operations on segments or checkpoints fail for a while; the journal has all data in the meantime.
fn segments_fail(doing: Doing, path: &'static str, seed: u64) {
    let mut random = Random::new(seed);
    // The journal has no data whose segment could not be synced, so it ends then.
    let is_sync = (doing, path) == (Doing::Sync, ".log");
    let site = Site::new(if is_sync { through_journal(small(2)) } else { small(2) });
    let writer = site.work.create(2).expect("a topic")[0].clone();
    for _ in 0..random.below(40) {
        append_until_committed(&site, &writer);
    }
    let before = site.disk.faulted();
    site.disk.add_fault(fault(doing, path, random.below(3), u64::MAX, Io::Other));
    wait_until("it fails", || {
        // Refused while too much data is pending.
        drop(try_append(&site, &writer));
        site.disk.faulted() > before + random.below(4)
    });
    if random.one_in(3) {
        return site.check(|disk| end_of_process(disk, seed));
    }
    if random.one_in(2) {
        append_until_busy(&site, &writer);
    }
    assert_eq!(site.work.store.broken(), None);
    site.disk.clear_faults();
    append_until_committed(&site, &writer);
    wait_until("a checkpoint is taken", || site.work.store.checkpoint().is_ok());
    for _ in 0..random.below(20) {
        append_until_committed(&site, &writer);
    }
    site.check(|disk| end_of_process(disk, seed));
}

#[test]
fn segments_that_cannot_be_written_for_a_while_lose_nothing() {
    repeatable(14, |seed| segments_fail(Doing::Write, ".log", seed));
}

#[test]
fn segments_that_cannot_be_made_for_a_while_lose_nothing() {
    repeatable(14, |seed| segments_fail(Doing::Create, ".log", seed));
}

#[test]
fn segments_that_cannot_be_synced_for_a_while_lose_nothing() {
    repeatable(14, |seed| segments_fail(Doing::Sync, ".log", seed));
}

#[test]
fn directories_that_cannot_be_synced_for_a_while_lose_nothing() {
    repeatable(14, |seed| segments_fail(Doing::SyncDir, "topics", seed));
}

#[test]
fn checkpoints_that_cannot_be_written_for_a_while_lose_nothing() {
    repeatable(14, |seed| {
        let (doing, path) = match seed % 4 {
            0 => (Doing::Write, "checkpoint"),
            1 => (Doing::Sync, "checkpoint"),
            2 => (Doing::Rename, "checkpoint"),
            _ => (Doing::Create, "checkpoint"),
        };
        segments_fail(doing, path, seed);
    });
}

#[test]
fn one_failed_sync_of_a_segment_is_made_good_by_the_next_checkpoint() {
    repeatable(14, |seed| {
        let site = Site::new(small(1));
        let writer = site.work.create(1).expect("a topic")[0].clone();
        for _ in 0..30 {
            append_until_committed(&site, &writer);
        }
        site.disk.add_fault(fault(Doing::Sync, ".log", 0, 1, Io::Other));
        let failed = site.work.store.checkpoint().expect_err("a segment cannot be synced");
        assert!(failed.message.contains("cannot sync /data/topics/0/0/0000"), "{failed}");
        site.work.store.checkpoint().expect("this time it can");
        site.check(|disk| disk.cut(seed));
    });
}

#[test]
fn a_temporarily_unreadable_segment_is_reported_and_read_later() {
    let site = Site::new(small(1));
    let writer = site.work.create(1).expect("a topic")[0].clone();
    for _ in 0..400 {
        append_until_committed(&site, &writer);
    }
    wait_until("the first batches are in files only", || {
        matches!(writer.log.clone().read(0, 1), Ok(storage::Read::Cold(_)))
    });
    site.disk.add_fault(fault(Doing::Read, "00000000000000000000.log", 0, 1, Io::Other));
    let failed = crate::workload::read_at(&writer.log, 0, 1000).expect_err("it cannot be read");
    assert!(failed.message.contains("cannot read /data/topics/0/0/00000000000000000000.log"), "{failed}");
    assert_ne!(failed.kind, ErrorKind::Corrupt);
    crate::workload::read_at(&writer.log, 0, 1000).expect("now it can");
    // An index that cannot be read is created again.
    site.disk.add_fault(fault(Doing::Read, ".index", 0, u64::MAX, Io::Other));
    crate::workload::read_all(&writer.log, 0, writer.committed_end(), 5000).expect("it is all read");
    site.check(SimDisk::kill);
}

#[test]
fn a_journal_that_cannot_be_read_is_refused_and_left_as_it_is() {
    repeatable(10, |seed| {
        // Every read up to the tenth is one of the first pass, which changes nothing.
        let site = Site::new(through_journal(small(1)));
        site.work.create(2).expect("a topic");
        site.work.run(seed, 2, 150);
        let settings = site.settings;
        let incarnation = site.incarnation;
        let (disk, mut model) = site.end(SimDisk::kill);
        disk.add_fault(fault(Doing::Read, ".journal", 2 + seed % 9, 1, Io::Other));
        let before: Vec<_> = disk.files().into_iter().map(|(path, _)| (disk.contents(&path), path)).collect();
        match open(&disk, Path::new(DIR), settings) {
            Ok((store, _)) => store.stop().expect("it stops"),
            Err(failed) => {
                assert!(failed.message.contains("/data/journal/0000"), "{failed}");
                for (contents, path) in before.iter().filter(|(_, path)| !path.ends_with("thalweg.lock")) {
                    assert!(disk.contents(path) == *contents, "{} was changed", path.display());
                }
            }
        }
        let (store, topics) = open(&disk, Path::new(DIR), settings).expect("it opens");
        model.check(&topics, incarnation).expect("it is all there");
        store.stop().expect("it stops");
    });
}

#[test]
fn a_directory_in_use_is_refused() {
    let site = Site::new(small(1));
    let refused = open(&site.disk, Path::new(DIR), small(1)).map(drop).expect_err("another store has it");
    assert_eq!(refused.kind, ErrorKind::Denied);
    assert!(refused.message.contains("/data is in use by another process"), "{refused}");
    site.work.clone().end().expect("it stops");
    let disk = site.disk.clone();
    drop(site);
    open(&disk, Path::new(DIR), small(1)).map(drop).expect("no other store has it");
}

#[test]
fn a_directory_that_may_not_be_written_is_refused() {
    for error in [Io::PermissionDenied, Io::ReadOnlyFilesystem] {
        let disk = SimDisk::new();
        disk.add_fault(fault(Doing::Lock, "/data", 0, 1, error));
        let refused = open(&disk, Path::new(DIR), small(1)).map(drop).expect_err("it cannot be written");
        assert_eq!(refused.kind, ErrorKind::Denied);
        assert!(refused.message.contains("/data/thalweg.lock"), "{refused}");
    }
}
