//! Full disk: acknowledged records stay, deletions free space, and a restart needs no help from outside.

use std::io::ErrorKind as Io;
use std::path::Path;

use engine::ErrorKind;
use storage::StoreSettings;

use crate::faults::{DIR, Site, append_until_committed, append_until_full, fault, try_append};
use crate::power::repeatable;
use crate::workload::{open, small, wait_until};
use sim::{Doing, SimDisk};

/// Returns the bytes of the files of a topic.
fn topic_bytes(disk: &SimDisk, id: u32) -> u64 {
    let dir = Path::new(DIR).join("topics").join(id.to_string());
    disk.files().iter().filter(|(path, _)| path.starts_with(&dir)).map(|(_, bytes)| bytes).sum()
}

#[test]
fn a_topic_that_is_deleted_on_a_full_disk_frees_its_bytes_without_a_checkpoint() {
    repeatable(6, |seed| {
        let site = Site::new(small(2));
        let filler = site.work.create(1).expect("a topic")[0].clone();
        let other = site.work.create(1).expect("a topic")[0].clone();
        append_until_committed(&site, &other);
        // Without the topic there is space for another file of the journal in addition to the reserve.
        site.disk.set_bytes_max(Some(site.disk.bytes() + 600_000 + 20_000 * seed));
        append_until_full(&site, &filler);
        // Fails even with the space of the whole topic.
        site.disk.add_fault(fault(Doing::Create, "checkpoint", 0, u64::MAX, Io::StorageFull));
        let id = site.work.delete_named("t0").expect("it is deleted");
        wait_until("its files are removed", || topic_bytes(&site.disk, id) == 0);
        site.disk.clear_faults();
        append_until_committed(&site, &other);
        site.check(|disk| if seed.is_multiple_of(2) { disk.cut(seed) } else { disk.kill() });
    });
}

#[test]
fn a_write_that_is_under_way_when_its_topic_is_deleted_leaves_no_files() {
    let site = Site::new(small(2));
    let writer = site.work.create(1).expect("a topic")[0].clone();
    let dir = Path::new(DIR).join("topics/0");
    site.disk.set_late(&dir);
    wait_until("it is written to a segment", || {
        try_append(&site, &writer).unwrap_or_default();
        site.disk.is_late()
    });
    let id = site.work.delete_named("t0").expect("it is deleted");
    // The thread that writes to segments has finished the first topic when it writes the second.
    let other = site.work.create(1).expect("a topic")[0].clone();
    wait_until("another topic is written to a segment", || {
        try_append(&site, &other).unwrap_or_default();
        topic_bytes(&site.disk, id + 1) > 0
    });
    wait_until("its files are removed", || topic_bytes(&site.disk, id) == 0);
    site.check(SimDisk::kill);
}

#[test]
fn records_that_are_deleted_on_a_full_disk_free_their_bytes_and_records_are_taken_again() {
    repeatable(8, |seed| {
        let site = Site::new(small(2));
        let filler = site.work.create(1).expect("a topic")[0].clone();
        let other = site.work.create(1).expect("a topic")[0].clone();
        append_until_committed(&site, &other);
        while topic_bytes(&site.disk, 0) < (1 << 20) {
            append_until_committed(&site, &filler);
        }
        site.disk.set_bytes_max(Some(site.disk.bytes() + 100_000 + 20_000 * seed));
        // The batches that wait for a segment belong to the topic whose records are deleted, or to another.
        wait_until("not even what is given up makes room", || {
            append_until_full(&site, if seed.is_multiple_of(2) { &filler } else { &other });
            site.disk.set_bytes_max(Some(site.disk.bytes()));
            site.work.store.checkpoint().is_err_and(|error| error.kind == ErrorKind::DiskFull)
        });
        let end = filler.committed_end();
        site.work.delete_before(&filler, end).expect("they are deleted");
        // A few records may have been committed since.
        wait_until("their files are removed", || topic_bytes(&site.disk, 0) < (1 << 19));
        wait_until("records are taken", || site.work.store.full().is_none());
        append_until_committed(&site, &filler);
        append_until_committed(&site, &other);
        site.check(|disk| if (seed / 2).is_multiple_of(2) { disk.cut(seed) } else { disk.kill() });
    });
}

#[test]
fn a_restart_on_a_full_disk_skips_topics_that_the_journal_deletes_later() {
    repeatable(6, |seed| {
        let site = Site::new(small(1));
        let filler = site.work.create(1).expect("a topic")[0].clone();
        append_until_committed(&site, &filler);
        // None of it reaches a segment: the journal contains all of it.
        site.disk.add_fault(fault(Doing::Write, ".log", 0, u64::MAX, Io::StorageFull));
        append_until_full(&site, &filler);
        site.work.delete_named("t0").expect("it is deleted");
        let settings = site.settings;
        let (disk, _) = site.end(|disk| if seed.is_multiple_of(2) { disk.cut(seed) } else { disk.kill() });
        disk.add_fault(fault(Doing::Write, ".log", 0, u64::MAX, Io::StorageFull));
        let (store, topics) = open(&disk, Path::new(DIR), settings).expect("it opens on a disk that is full");
        assert!(topics.is_empty());
        assert_eq!(topic_bytes(&disk, 0), 0);
        store.stop().expect("it stops");
    });
}

#[test]
fn files_deleted_before_the_next_checkpoint_are_not_missed() {
    repeatable(10, |seed| {
        let site = Site::new(small(2));
        let kept = site.work.create(1).expect("a topic")[0].clone();
        let gone = site.work.create(2).expect("a topic")[0].clone();
        for _ in 0..30 {
            append_until_committed(&site, &kept);
            append_until_committed(&site, &gone);
        }
        site.work.store.checkpoint().expect("it names the segments of both");
        let id = site.work.delete_named("t1").expect("it is deleted");
        wait_until("its files are removed", || topic_bytes(&site.disk, id) == 0);
        append_until_committed(&site, &kept);
        site.check(|disk| if seed.is_multiple_of(2) { disk.cut(seed) } else { disk.kill() });
    });
}

#[test]
fn no_journal_file_is_made_ahead_where_less_than_the_reserve_would_stay_free() {
    let disk = SimDisk::new();
    let mut settings = small(1);
    settings.journal.file_bytes = settings.journal.first_file_bytes;
    // Room for the first file of the journal, and for another that would leave slightly less than required.
    disk.set_bytes_max(Some(2 * settings.journal.file_bytes + (16 << 10)));
    let (store, _) = open(&disk, Path::new(DIR), settings).expect("a new directory");
    wait_until("it was tried", || store.stats().journal.is_full);
    let journal = || disk.files().iter().filter(|(path, _)| path.extension() == Some("journal".as_ref())).count();
    assert_eq!(journal(), 1);
    disk.set_bytes_max(Some(disk.bytes() + settings.reserve_bytes + 2 * settings.journal.file_bytes));
    wait_until("there is room for two", || store.stats().journal.files_spare == 2);
    assert_eq!(journal(), 3);
    store.stop().expect("it stops");
}

#[test]
fn files_of_the_journal_take_at_most_an_eighth_of_a_small_disk() {
    let settings = StoreSettings::default();
    let disk = SimDisk::new();
    disk.set_bytes_max(Some(16 << 20));
    let (store, _) = open(&disk, Path::new(DIR), settings).expect("a new directory");
    wait_until("the journal has files ahead", || store.stats().journal.files_spare == 2);
    let sizes: Vec<u64> = disk
        .files()
        .iter()
        .filter(|(path, _)| path.extension() == Some("journal".as_ref()))
        .map(|(_, bytes)| *bytes)
        .collect();
    assert_eq!(sizes, [2 << 20; 3]);
    store.stop().expect("it stops");
}

#[test]
fn a_broker_starts_on_a_disk_that_it_has_filled_and_nothing_acknowledged_is_lost() {
    repeatable(10, |seed| {
        let mut site = Site::new(small(2));
        // Other programs have files on the disk as well: an eighth of the disk limits the reserve.
        site.disk.add_file(Path::new("/other"), &[0; 2 << 20]);
        let writer = site.work.create(2).expect("a topic")[0].clone();
        append_until_committed(&site, &writer);
        site.disk.set_bytes_max(Some(site.disk.bytes() + 40_000 * (seed % 10)));
        // One after the other: the reserve has no space for very many records that are in no segment yet.
        wait_until("the reason is reported", || {
            try_append(&site, &writer).ok().map(|end| writer.wait(end));
            site.work.store.full().is_some()
        });
        site.events.apply_to(&mut site.model);
        let settings = site.settings;
        let incarnation = site.incarnation;
        let (disk, mut model) = site.end(|disk| if seed.is_multiple_of(2) { disk.cut(seed) } else { disk.kill() });
        disk.set_bytes_max(Some(disk.bytes()));
        let (store, topics) = open(&disk, Path::new(DIR), settings).unwrap_or_else(|error| {
            panic!("seed {seed}: it opens on a full disk, but {error}: {:?}", disk.files());
        });
        model.check(&topics, incarnation).expect("it is all there");
        store.stop().unwrap_or_default();
    });
}

#[test]
fn records_are_refused_as_long_as_the_disk_is_full_and_taken_again_by_themselves() {
    repeatable(4, |seed| {
        let site = Site::new(small(2));
        let writer = site.work.create(1).expect("a topic")[0].clone();
        for times in 1..=2 {
            site.disk.set_bytes_max(Some(site.disk.bytes() + 30_000 * seed));
            // The released space may have ended the full state after a refusal.
            wait_until("the full disk is reported", || {
                append_until_full(&site, &writer);
                let stats = site.work.store.stats();
                stats.is_disk_full && stats.disk_full >= times
            });
            let end = writer.committed_end();
            crate::workload::read_all(&writer.log, 0, end, 10_000).expect("what was committed is read");
            site.disk.set_bytes_max(None);
            wait_until("records are taken", || site.work.store.full().is_none());
            append_until_committed(&site, &writer);
        }
        site.check(SimDisk::kill);
    });
}
