//! Tests that inspection finds the problems that a broker would meet, and that repair loses only what its plan lists.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::{ErrorKind, Offset, RecordBatch};
use storage::inspect::repair::Plan;
use storage::inspect::{Inspection, Report};
use storage::journal::block::FileHead;
use storage::{Disk, StoredTopic};

use crate::damage::{DIR, Harm, Kind, Site};
use crate::power::{fill_files, heads, journals, repeatable, without_checkpoints};
use crate::workload::{EventLog, Model, Work, clock, open, read_all, small};
use sim::{Random, SimDisk};

fn inspect(disk: &SimDisk) -> Inspection {
    Inspection::open(Arc::new(disk.clone()), Path::new(DIR)).expect("no store has it")
}

fn verify(inspection: &Inspection) -> Report {
    let mut last = 0;
    let report = inspection.report(true, &mut |now| {
        assert!(now.bytes >= last && now.bytes <= now.bytes_max, "progress goes back: {now:?} after {last}");
        last = now.bytes;
    });
    report.expect("it can be read")
}

type Records = BTreeMap<Offset, Vec<u8>>;

fn records(batches: &[RecordBatch]) -> Records {
    let mut all = Records::new();
    for batch in batches {
        let records = batch.records().expect("it decodes");
        all.extend(
            records
                .iter()
                .map(|record| record.expect("it decodes"))
                .map(|record| (record.offset, record.value.unwrap_or_default().to_vec())),
        );
    }
    all
}

/// Returns `true` if a broker that opens a copy meets a problem.
fn is_wrong(disk: &SimDisk) -> bool {
    let Ok((store, topics)) = open(&disk.kill(), Path::new(DIR), small(1)) else { return true };
    let logs = topics.iter().flat_map(|topic| &topic.partitions);
    let is_wrong = logs.into_iter().any(|log| {
        let extent = log.extent();
        log.refused().is_some() || read_all(log, extent.start, extent.end, 10_000).is_err()
    });
    store.stop().expect("it stops");
    is_wrong
}

/// Checks that the contents after a repair equal the contents before it, without the losses of the plan.
fn check(topics: &[StoredTopic], model: &Model, plan: &Plan, place: &str) {
    for topic in topics {
        for (i, log) in topic.partitions.iter().enumerate() {
            let place = format!("{place}: {}/{i}", topic.name.as_str());
            assert_eq!(log.refused(), None, "{place}");
            assert_eq!(
                log.retain(0, 1, u64::MAX, clock()),
                None,
                "{place}: retention begins with the repair, not before"
            );
            let (start, known, known_end) = model.known(topic.name.as_str(), i);
            if plan.journal.is_some() && !model.has(topic.name.as_str()) {
                // The deletion of the topic is lost as well.
                continue;
            }
            let extent = log.extent();
            let mend = plan.mends.iter().find(|mend| (&*mend.topic, mend.partition) == (topic.name.as_str(), i as u32));
            let end = mend.map_or(known_end, |mend| mend.end);
            // The contents of the last blocks of a dropped journal are unknown.
            assert!(
                extent.end == end || (plan.journal.is_some() && extent.end < known_end),
                "{place}: {extent:?} {mend:?}"
            );
            assert!(extent.start == start || plan.journal.is_some() || mend.is_some(), "{place}");
            let lost = mend.map(|mend| mend.lost.clone()).unwrap_or_default();
            let is_lost = |offset: &Offset| lost.iter().any(|(from, to)| from <= offset && offset < to);
            let is_here =
                |offset: &Offset| *offset >= extent.start.max(start) && *offset < extent.end && !is_lost(offset);
            let found = records(&read_all(log, extent.start, extent.end, 10_000).expect("it is all read"));
            let found: Records = found.into_iter().filter(|(offset, _)| *offset >= extent.start.max(start)).collect();
            let expected: Records = records(&known).into_iter().filter(|(offset, _)| is_here(offset)).collect();
            assert!(found == expected, "{place}: {} records, not {}", found.len(), expected.len());
        }
    }
}

fn repair_after(harm: Harm, site: &Site, path: &Path, kind: Kind) {
    let disk = site.disk.kill();
    let place = format!("{} {harm:?}", path.display());
    harm.apply(&disk, path, kind);
    let is_wrong = is_wrong(&disk);
    let inspection = inspect(&disk);
    let report = match inspection.report(true, &mut |_| {}) {
        Err(error) if error.kind == ErrorKind::Unsupported && matches!(harm, Harm::Version) => return,
        report => report.expect("it can be read"),
    };
    assert!(!is_wrong || !report.damages.is_empty(), "{place}: nothing is found");
    for damage in &report.damages {
        // A journal that lost the deletion of a topic still refers to its segments.
        let is_deleted = damage.concerns.as_ref().is_some_and(|(topic, _)| !site.model.has(topic));
        let is_known = damage.message.contains(&path.display().to_string());
        assert!(is_known || kind == Kind::Journal && is_deleted, "{place}: {damage:?}");
    }
    let before: Vec<_> = disk.files().into_iter().map(|(path, _)| (disk.contents(&path), path)).collect();
    let plan = inspection.plan().expect("a plan");
    let is_same = before.iter().all(|(contents, path)| disk.contents(path) == *contents);
    assert!(is_same && disk.files().len() == before.len(), "{place}: a plan changes nothing");
    assert_eq!(report.damages.is_empty(), plan.is_empty(), "{place}: {:?} {plan:?}", report.damages);
    drop(inspection);
    if plan.journal.is_some() {
        let refused =
            inspect(&disk).repair(false, small(1), clock).map(drop).expect_err("the journal is not given up unasked");
        assert_eq!(refused.kind, ErrorKind::Corrupt);
    }
    let repaired =
        inspect(&disk).repair(true, small(1), clock).unwrap_or_else(|error| panic!("{place}: {error} {plan:?}"));
    assert_eq!(verify(&repaired).damages, [], "{place}");
    assert!(repaired.plan().expect("a plan").is_empty(), "{place}");
    drop(repaired);
    if !plan.mends.is_empty() && matches!(kind, Kind::Segment | Kind::Salvage) && !matches!(harm, Harm::Remove) {
        let aside = format!("{}.damaged", path.display());
        assert!(disk.files().iter().any(|(path, _)| path.display().to_string() == aside), "{place}: it is kept");
    }
    // The repaired directory works as any other, also after a power cut.
    let disk = disk.cut(1);
    let (store, topics) = open(&disk, Path::new(DIR), small(1)).unwrap_or_else(|error| panic!("{place}: {error}"));
    check(&topics, &site.model, &plan, &place);
    let mut model = Model::of(&topics, site.model.topics_ever);
    let events = EventLog::default();
    let work = Work::new((store, topics), &model, 9, events.reporter());
    for writer in work.writers() {
        let end = writer.append().expect("it is served");
        assert!(writer.wait(end), "it is acknowledged");
    }
    work.end().expect("it stops");
    events.apply_to(&mut model);
    let (store, topics) = open(&disk, Path::new(DIR), small(1)).expect("it opens");
    for log in topics.iter().flat_map(|topic| &topic.partitions) {
        let extent = log.extent();
        read_all(log, extent.start, extent.end, 10_000).expect("it is all read");
    }
    store.stop().expect("it stops");
}

fn repairs(kind: Kind, sites: u64) {
    repeatable(sites, |seed| {
        let mut random = Random::new(seed);
        let site = Site::worked(seed, kind != Kind::Index);
        assert_eq!(verify(&inspect(&site.disk)).damages, [], "nothing is wrong yet");
        let site = if kind == Kind::Salvage { site.with_salvage().unwrap_or(site) } else { site };
        let paths = site.paths(kind);
        for _ in 0..if paths.is_empty() { 0 } else { 6 } {
            let path = &paths[random.below(paths.len() as u64) as usize];
            let harm = Harm::any(kind, &site.disk.contents(path), &mut random);
            repair_after(harm, &site, path, kind);
        }
    });
}

#[test]
fn only_the_damaged_records_of_segments_are_lost() {
    repairs(Kind::Segment, 6);
}

#[test]
fn of_a_harmed_journal_all_is_kept_that_can_be_read() {
    repairs(Kind::Journal, 8);
}

#[test]
fn of_harmed_entries_that_were_put_aside_the_others_are_kept() {
    repairs(Kind::Salvage, 6);
}

#[test]
fn harmed_indexes_lose_nothing() {
    repairs(Kind::Index, 2);
}

#[test]
fn a_directory_in_use_is_not_inspected() {
    let disk = SimDisk::new();
    let missing = Inspection::open(Arc::new(disk.clone()), Path::new(DIR)).map(drop).expect_err("nothing is there");
    assert_eq!(missing.kind, ErrorKind::NotFound);
    let (store, _) = open(&disk, Path::new(DIR), small(1)).expect("a new directory");
    let refused = Inspection::open(Arc::new(disk.clone()), Path::new(DIR)).map(drop).expect_err("a broker has it");
    assert_eq!(refused.kind, ErrorKind::Denied);
    store.stop().expect("it stops");
    drop(store);
    assert_eq!(verify(&inspect(&disk)).damages, []);
    disk.remove(Path::new("/data/checkpoint")).expect("it was there");
    let refused = Inspection::open(Arc::new(disk.clone()), Path::new(DIR)).map(drop).expect_err("it is lost");
    assert!(matches!(refused.kind, ErrorKind::NotFound | ErrorKind::Corrupt), "{refused}");
}

#[test]
fn a_new_journal_begins_after_the_abandoned_one() {
    let disk = SimDisk::new();
    let settings = without_checkpoints();
    let opened = open(&disk, Path::new(DIR), settings).expect("a new directory");
    let work = Work::new(opened, &Model::default(), 1, EventLog::default().reporter());
    let writer = work.create(1).expect("a topic")[0].clone();
    fill_files(&disk, &writer, 3);
    let killed = disk.kill();
    let given_up = heads(&disk);
    work.end().expect("it stops");
    // The positions of the larger files are unknown now.
    for (path, _) in journals(&killed) {
        if FileHead::decode(&killed.contents(&path)).is_ok_and(|head| head.number > 1) {
            killed.edit(&path, |bytes| bytes[40] ^= 1);
        }
    }
    let repaired = inspect(&killed).repair(true, settings, clock).expect("it is repaired");
    assert_eq!(verify(&repaired).damages, []);
    let end = given_up.last().expect("a file").end();
    let positions: Vec<u64> = heads(&killed).iter().map(|head| head.position).collect();
    assert!(positions.iter().all(|position| *position >= end), "{positions:?} are given twice, {end} was the end");
}
