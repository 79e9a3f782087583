//! Large writes go straight to segments: they are on the disk once, and the journal says where.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::ErrorKind;
use storage::inspect::Inspection;
use storage::journal::JournalSettings;
use storage::{StoreSettings, StoredTopic};

use crate::workload::{EventLog, Model, Opened, Work, Writer, open, read_all, small};
use sim::SimDisk;

const DIR: &str = "/data";

/// Returns settings under which nothing is written to segments in the background, and no checkpoint is taken.
fn settings(through_bytes_min: usize) -> StoreSettings {
    let small = small(2);
    let journal = JournalSettings { through_bytes_min, file_bytes: 1 << 20, ..small.journal };
    StoreSettings {
        journal,
        segment_bytes: 64 << 10,
        checkpoint_bytes: u64::MAX,
        unflushed_bytes_max: 8 << 20,
        ..small
    }
}

fn work(opened: Opened) -> Arc<Work> {
    Work::new(opened, &Model::default(), 1, EventLog::default().reporter())
}

/// Appends batches of at least `bytes` bytes together. They are acknowledged when this returns.
fn append(writer: &Arc<Writer>, bytes: u64) -> u64 {
    let before = writer.log.extent().bytes;
    let mut end = writer.log.end();
    let mut appended = 0;
    while appended < bytes {
        end = writer.append().expect("it is taken");
        appended += 300;
    }
    assert!(writer.wait(end), "it is acknowledged");
    writer.log.extent().bytes - before
}

fn segments(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|name| name == "log")).collect()
}

#[test]
fn large_writes_are_on_the_disk_once_and_small_ones_wait_in_the_journal() {
    let disk = SimDisk::new();
    let work = work(open(&disk, Path::new(DIR), settings(1)).expect("a new directory"));
    let writer = work.create(1).expect("a topic")[0].clone();
    let bytes: u64 = (0..40).map(|_| append(&writer, 3000)).sum();
    let stats = work.store.stats();
    assert_eq!((stats.journal.through_bytes, stats.unflushed_bytes), (bytes, 0), "all of it is in segments");
    assert_eq!(stats.flushed_bytes, 0, "nothing was written a second time");
    let in_segments: u64 = segments(&disk).iter().map(|(_, len)| len).sum();
    assert!(in_segments < bytes + 4096 * 40, "{in_segments} bytes in segments for {bytes}");
    work.end().expect("it stops");

    let disk = SimDisk::new();
    let work = self::work(open(&disk, Path::new(DIR), settings(64 << 10)).expect("a new directory"));
    let writer = work.create(1).expect("a topic")[0].clone();
    let bytes: u64 = (0..40).map(|_| append(&writer, 300)).sum();
    let stats = work.store.stats();
    assert_eq!((stats.journal.through_bytes, segments(&disk)), (0, Vec::new()), "a sync each would cost more");
    assert!(stats.journal.bytes > bytes && stats.unflushed_bytes > bytes, "{stats:?}");
    work.end().expect("it stops");
}

fn served(topics: &[StoredTopic], name: &str) -> Result<usize, engine::Error> {
    let topic = topics.iter().find(|topic| topic.name.as_str() == name).expect("a topic");
    let log = &topic.partitions[0];
    match log.refused() {
        Some(refused) => Err(refused),
        None => {
            let extent = log.extent();
            read_all(log, extent.start, extent.end, 10_000).map(|batches| batches.len())
        }
    }
}

#[test]
fn damage_to_batches_that_only_a_segment_has_names_it_and_harms_no_other_partition() {
    let disk = SimDisk::new();
    let work = work(open(&disk, Path::new(DIR), settings(1)).expect("a new directory"));
    let writers = [work.create(1), work.create(1)].map(|writers| writers.expect("a topic")[0].clone());
    writers.iter().for_each(|writer| assert!(append(writer, 60_000) > 0));
    let counts = writers.each_ref().map(|writer| {
        let end = writer.committed_end();
        read_all(&writer.log, 0, end, 10_000).expect("it is all read").len()
    });
    // Later blocks record that all of it was synced.
    append(&writers[1], 300);
    let killed = disk.kill();
    disk.power_off_after(0);
    work.end().unwrap_or_default();

    let path = PathBuf::from("/data/topics/0/0/00000000000000000000.log");
    for at in [0, 70, 5000] {
        let disk = killed.kill();
        disk.edit(&path, |bytes| bytes[at] ^= 0x10);
        let inspection = Inspection::open(Arc::new(disk.clone()), Path::new(DIR)).expect("a data directory");
        let damages = inspection.report(true, &mut |_| {}).expect("it can be read").damages;
        assert!(damages.len() == 1 && damages[0].message.contains("0000.log is damaged"), "{damages:?}");
        drop(inspection);
        let (store, topics) = open(&disk, Path::new(DIR), small(1)).expect("it opens");
        let refused = served(&topics, "t0").expect_err("it is damaged");
        assert_eq!(refused.kind, ErrorKind::Corrupt);
        assert!(refused.message.contains("0000.log is damaged at byte"), "{refused}");
        assert!(served(&topics, "t1").expect("it is served") > counts[1]);
        store.stop().expect("it stops");
        drop((store, topics));
        // With a copy of the file, all of it is back.
        let whole = killed.contents(&path);
        disk.edit(&path, |bytes| *bytes = whole);
        let (store, topics) = open(&disk, Path::new(DIR), small(1)).expect("it opens");
        assert_eq!(served(&topics, "t0"), Ok(counts[0]));
        store.stop().expect("it stops");
    }
}
