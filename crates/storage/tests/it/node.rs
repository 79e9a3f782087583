//! Data directory of a node of a cluster: only what its log committed is in it, whatever happens.

mod damage;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::catalog::Change;
use engine::shard::ShardId;
use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, TopicSettings};
use parking_lot::Mutex;
use storage::inspect::Inspection;
use storage::{
    CompactionSettings, Entry, EntryKind, Journal, Manifest, Owner, PartitionLog, Source, Store, StoreSettings,
    StoredTopic, Wanted,
};

use crate::power::repeatable;
use crate::toy::{Opening, Sent, Toy};
use crate::workload::{NoOwner, batch_at, clock, on_disk, open, read_all, small, topic_name, wait_until};
use sim::{Doing, Fault, Random, SimDisk};

const DIR: &str = "/data";

/// Owner of the batches of one partition.
struct OfLog(Arc<dyn PartitionLog>);

impl Owner for OfLog {
    fn committed(&self, mark: u64) {
        self.0.commit(mark);
    }

    fn failed(&self, _: &Error) {}
}

fn append(log: &Arc<dyn PartitionLog>, topic: &str, incarnation: u64) -> Result<Offset, Error> {
    let batch = batch_at(topic, 0, log.end(), incarnation);
    let end = batch.next_offset();
    log.append(batch, clock(), Arc::new(OfLog(log.clone())))?;
    Ok(end)
}

struct Node {
    store: Arc<Store>,
    toy: Arc<Toy>,
}

fn open_node(disk: &SimDisk, appends_again: bool) -> Result<(Node, Opening), Error> {
    let off = disk.clone();
    let mut opening = Opening::new(appends_again, move || off.is_off());
    let disk = Arc::new(disk.clone());
    let (store, _) = Store::open_front(disk, Path::new(DIR), small(2), clock, &mut opening, &mut |_| {})?;
    let toy = opening.toy.clone().expect("it is started");
    Ok((Node { store, toy }, opening))
}

type Contents = (Manifest, Vec<(String, Vec<RecordBatch>)>);

/// Returns the contents of a store: its manifest, and its records.
fn contents(store: &Store) -> Result<Contents, Error> {
    let manifest = store.manifest();
    let mut records = Vec::new();
    for topic in store.topics().iter().filter(|topic| manifest.catalog.topics.contains_key(&topic.id)) {
        for log in &topic.partitions {
            let extent = log.extent();
            let batches = read_all(log, extent.start, extent.end, 16 << 10)?;
            records.push((topic.name.as_str().to_owned(), batches));
        }
    }
    Ok((manifest, records))
}

/// Returns the contents of a store that only ever had these entries.
fn contents_of(committed: &[Sent]) -> Contents {
    let (twin, _) = open(&SimDisk::new(), Path::new(DIR), small(1)).expect("a new directory");
    for (kind, stream, body) in committed {
        twin.apply(*kind, *stream, body.clone()).expect("applied");
    }
    let contents = contents(&twin).expect("readable");
    twin.stop().expect("it stops");
    contents
}

/// Runs some operations of a leader. `committed` is what the cluster has committed so far.
fn lead(node: &Node, committed: &mut Vec<Sent>, random: &mut Random, incarnation: &mut u64) -> Result<(), Error> {
    let Node { store, toy } = node;
    let no_owner = || Arc::new(NoOwner);
    for _ in 0..30 + random.below(60) {
        let topics = store.topics();
        let topic = (!topics.is_empty()).then(|| topics[random.below(topics.len() as u64) as usize].clone());
        match (random.below(20), topic) {
            (0, _) | (_, None) if topics.len() < 4 => {
                let name = topic_name(&format!("t{}", random.below(1 << 40)));
                store.create_topic(name, on_disk(1 + random.below(2) as u32), no_owner())?;
            }
            (1, Some(topic)) => store.delete_topic(topic.id, no_owner())?,
            (2, Some(topic)) => store.grow_topic(topic.id, 3, no_owner())?,
            (3, Some(topic)) => {
                let settings = TopicSettings { retention_ms: random.below(1000), ..topic.settings };
                store.alter_topic(topic.id, settings, no_owner())?;
            }
            (4, Some(topic)) => {
                let log = topic.partitions[0].clone();
                let extent = log.extent();
                let start = extent.start + random.below(extent.end - extent.start + 1);
                log.set_start(start, no_owner()).map(drop)?;
            }
            (5, _) => store.checkpoint()?,
            (6, _) => {
                toy.give_up();
                store.depose()?;
                assert_eq!(contents(store)?, contents_of(committed), "it has what is committed");
                *incarnation += 1;
            }
            (7..12, _) => toy.commit(store, 1 + random.below(8) as usize, committed)?,
            (_, Some(topic)) => {
                let log = &topic.partitions[random.below(topic.partitions.len() as u64) as usize];
                // Another request may have deleted it.
                if !is_deleted(store, &topic) {
                    append(log, topic.name.as_str(), *incarnation)?;
                }
            }
            (_, None) => {}
        }
    }
    Ok(())
}

fn is_deleted(store: &Store, topic: &StoredTopic) -> bool {
    store.partitions(topic.id).is_err()
}

/// Runs the directory of a node through several lives, each of which a power cut ends.
fn live(seed: u64) {
    let mut random = Random::new(seed);
    let mut disk = SimDisk::new();
    let mut committed: Vec<Sent> = Vec::new();
    let mut incarnation = seed * 100;
    let lives = 3 + random.below(4);
    for life in 0..lives {
        // Sometimes the power goes off while the directory is being opened.
        let goes_off_early = random.one_in(4);
        if goes_off_early {
            disk.power_off_after(random.below(200));
        }
        match open_node(&disk, random.one_in(2)) {
            Err(error) => assert!(disk.is_off(), "seed {seed}, life {life}: {error}"),
            Ok((node, opening)) => {
                let lived = check(&node, &opening, &committed, seed).and_then(|()| {
                    // The cluster may have committed more than this node knew, and replaced the rest.
                    let known = opening.committed as usize;
                    node.toy.commit(&node.store, committed.len() - known, &mut Vec::new())?;
                    if random.one_in(2) {
                        node.toy.give_up();
                    } else {
                        node.toy.commit(&node.store, usize::MAX, &mut committed)?;
                    }
                    if !goes_off_early {
                        disk.power_off_after(random.below(1200));
                    }
                    incarnation += 1;
                    lead(&node, &mut committed, &mut random, &mut incarnation)
                });
                assert!(lived.is_ok() || disk.is_off(), "seed {seed}, life {life}: {lived:?}");
                let stopped = node.store.stop();
                assert!(stopped.is_ok() || disk.is_off(), "seed {seed}, life {life}: {stopped:?}");
            }
        }
        disk = if random.one_in(4) { disk.kill() } else { disk.cut(random.number()) };
    }
    let (node, opening) = open_node(&disk, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    check(&node, &opening, &committed, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

/// Checks what a node has after its directory was opened.
fn check(node: &Node, opening: &Opening, committed: &[Sent], seed: u64) -> Result<(), Error> {
    let known = opening.committed as usize;
    assert!(known <= committed.len(), "seed {seed}: it made up that {known} of {} are committed", committed.len());
    let later = opening.open();
    assert!(known + later.len() >= committed.len(), "seed {seed}: a committed entry is lost");
    assert!(later.iter().zip(&committed[known..]).all(|(found, sent)| found == sent), "seed {seed}: another entry");
    assert_eq!(contents(&node.store)?, contents_of(&committed[..known]), "seed {seed}");
    Ok(())
}

/// Cuts the power at every operation of an opening and of the first ones after it, and at every third later.
#[test]
fn only_committed_entries_survive_a_power_cut_at_any_operation() {
    let base = SimDisk::new();
    let (node, _) = open_node(&base, true).expect("a new directory");
    let topic = node.topic("t", on_disk(1));
    node.append(&topic, 12);
    let mut before = Vec::new();
    node.toy.commit(&node.store, 8, &mut before).expect("committed");
    node.append(&topic, 4);
    node.toy.wait_synced().expect("synced");
    let base = base.kill();
    let mut cuts = 0;
    for after in (0..400).chain((400..).step_by(3)) {
        let disk = base.kill();
        disk.power_off_after(after);
        let mut committed = before.clone();
        if let Ok((node, opening)) = open_node(&disk, after % 2 == 0) {
            let known = opening.committed as usize;
            let lived = check(&node, &opening, &committed, after).and_then(|()| {
                let mut now = Vec::new();
                let outcome = node.toy.commit(&node.store, before.len() - known + 2, &mut now);
                committed.extend(now.into_iter().skip(before.len() - known));
                outcome?;
                node.toy.give_up();
                lead(&node, &mut committed, &mut Random::new(7), &mut 900)
            });
            assert!(lived.is_ok() || disk.is_off(), "cut at {after}: {lived:?}");
            let stopped = node.store.stop();
            assert!(stopped.is_ok() || disk.is_off(), "cut at {after}: {stopped:?}");
        }
        let is_over = !disk.is_off();
        let (node, opening) =
            open_node(&disk.cut(after), true).unwrap_or_else(|error| panic!("cut at {after}: {error}"));
        check(&node, &opening, &committed, after).unwrap_or_else(|error| panic!("cut at {after}: {error}"));
        if is_over {
            break;
        }
        cuts += 1;
    }
    // How many operations there are depends on how many entries share a block.
    assert!(cuts > 100, "{cuts}");
}

#[test]
fn only_committed_entries_survive_power_cuts() {
    repeatable(60, live);
}

fn two_nodes() -> [(SimDisk, Node); 2] {
    std::array::from_fn(|_| {
        let disk = SimDisk::new();
        let (node, _) = open_node(&disk, true).expect("a new directory");
        (disk, node)
    })
}

impl Node {
    fn topic(&self, name: &str, settings: TopicSettings) -> StoredTopic {
        self.store.create_topic(topic_name(name), settings, Arc::new(NoOwner)).expect("a topic")
    }

    fn append(&self, topic: &StoredTopic, batches: usize) {
        for _ in 0..batches {
            append(&topic.partitions[0], topic.name.as_str(), 1).expect("room");
        }
    }

    fn commit(&self) -> Vec<Sent> {
        let mut committed = Vec::new();
        self.toy.commit(&self.store, usize::MAX, &mut committed).expect("committed");
        committed
    }

    fn end_of(&self, topic: &StoredTopic) -> Offset {
        self.store.partitions(topic.id).expect("a topic")[0].extent().end
    }

    /// Fetches what is missing from another node, and returns the number of bytes.
    fn fetch(&self, from: &Self, wanted: &[Wanted]) -> u64 {
        let mut bytes = 0;
        for Wanted { stream, from: mut at, to } in wanted.iter().copied() {
            while at < to {
                let batches = from.store.read_rows(stream, at..to, 4 << 10).expect("readable");
                assert!(!batches.is_empty(), "it ends at {at}, before {to}");
                for batch in &batches {
                    at = batch.next_offset();
                    bytes += batch.len() as u64;
                    self.store.apply(EntryKind::Batch, stream, batch.bytes().clone()).expect("applied");
                }
            }
        }
        bytes
    }

    /// Brings this node up to date with another one. Returns the number of bytes that were fetched.
    fn install(&self, from: &Self) -> u64 {
        let manifest = from.store.manifest();
        let manifest = Manifest::decode(&manifest.encode()).expect("it is read as it was written");
        let wanted = self.store.begin_install(&manifest).expect("it can continue");
        let bytes = self.fetch(from, &wanted);
        self.store.end_install(&manifest).expect("it has everything");
        let (mine, theirs) = (contents(&self.store).expect("readable"), contents(&from.store).expect("readable"));
        assert_eq!(mine, theirs);
        bytes
    }
}

/// Owner that counts how often it is notified of a failure.
#[derive(Default)]
struct Failures(AtomicU64);

impl Owner for Failures {
    fn committed(&self, _: u64) {
        panic!("it is not committed");
    }

    fn failed(&self, error: &Error) {
        assert_eq!(error.kind, ErrorKind::NotLeader);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_node_that_no_longer_leads_has_only_what_is_committed() {
    for is_told_by_log in [true, false] {
        let disk = SimDisk::new();
        let (node, _) = open_node(&disk, true).expect("a new directory");
        let Node { store, toy } = &node;
        let topic = node.topic("t", on_disk(1));
        let gone = node.topic("gone", on_disk(1));
        node.append(&topic, 20);
        let mut committed = node.commit();
        let log = topic.partitions[0].clone();
        let end = log.end();
        let failures = Arc::new(Failures::default());
        let lost = store.create_topic(topic_name("lost"), on_disk(2), failures.clone()).expect("a topic");
        append(&lost.partitions[1], "lost", 1).expect("room");
        store.delete_topic(gone.id, failures.clone()).expect("taken");
        store.grow_topic(topic.id, 5, failures.clone()).expect("taken");
        store
            .alter_topic(topic.id, TopicSettings { retention_ms: 7, ..topic.settings }, failures.clone())
            .expect("taken");
        log.clone().set_start(end, Arc::new(NoOwner)).expect("taken");
        node.append(&topic, 5);
        if is_told_by_log {
            toy.give_up();
        }
        store.depose().expect("deposed");
        assert_eq!(failures.0.load(Ordering::Relaxed), 4, "each owner is told once");
        assert_eq!(contents(store), Ok(contents_of(&committed)));
        assert_eq!((log.end(), log.extent().end), (end, end));
        assert_eq!(append(&lost.partitions[1], "lost", 1).map_err(|error| error.kind), Err(ErrorKind::NotFound));
        toy.give_up();
        // The next leader gives the same id to another topic.
        let change = Change::Create { id: lost.id, name: topic_name("other"), settings: on_disk(1) };
        toy.follow((EntryKind::Catalog, 0, change.encode().into())).expect("taken");
        let stream = u64::from(lost.id) << 32;
        let batch = batch_at("other", 0, 0, 2);
        toy.follow((EntryKind::Batch, stream, batch.bytes().clone())).expect("taken");
        committed.extend(node.commit());
        store.checkpoint().expect("a checkpoint");
        assert_eq!(toy.kept_index(), committed.len() as u64);
        assert_eq!(contents(store), Ok(contents_of(&committed)));
        store.stop().expect("it stops");
        drop(node);
        let (node, _) = open_node(&disk.kill(), true).expect("it is opened again");
        assert_eq!(contents(&node.store), Ok(contents_of(&committed)), "nothing of the lost topic was in its way");
        assert_eq!(node.store.partitions(lost.id).expect("a topic").len(), 1);
    }
}

#[test]
fn a_directory_of_a_node_is_not_opened_or_repaired_as_that_of_a_broker() {
    let disk = SimDisk::new();
    let (node, _) = open_node(&disk, true).expect("a new directory");
    let topic = node.topic("t", on_disk(1));
    node.append(&topic, 3);
    node.store.stop().expect("it stops");
    drop(node);
    let refused = open(&disk.kill(), Path::new(DIR), small(1)).map(drop).expect_err("it is a node's");
    assert_eq!(refused.kind, ErrorKind::Denied);
    assert!(refused.message.contains("its folder cluster"), "{refused}");
    let inspection = Inspection::open(Arc::new(disk.kill()), Path::new(DIR)).expect("inspected");
    let report = inspection.report(true, &mut |_| {}).expect("a report");
    assert_eq!((report.node_bytes, report.damages.len()), (Some(8), 0), "{:?}", report.damages);
    let refused = inspection.repair(true, small(1), clock).map(drop).expect_err("it is a node's");
    assert!(refused.message.contains("new number"), "{refused}");
}

#[test]
fn rows_of_a_node_are_refused_without_its_log() {
    let disk = SimDisk::new();
    let mut opening = Opening::new(true, || false);
    opening.keeps = false;
    let (store, _) =
        Store::open_front(Arc::new(disk.clone()), Path::new(DIR), small(1), clock, &mut opening, &mut |_| {})
            .expect("a new directory");
    store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    opening.toy.expect("it is started").wait_synced().expect("synced");
    let refused = open(&disk.kill(), Path::new(DIR), small(1)).map(drop).expect_err("it has rows of a node");
    assert_eq!(refused.kind, ErrorKind::Denied, "{refused}");
}

#[test]
fn the_directory_of_a_broker_becomes_that_of_a_node() {
    let disk = SimDisk::new();
    let (store, _) = open(&disk, Path::new(DIR), small(1)).expect("a new directory");
    let topic = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    let log = topic.partitions[0].clone();
    let mut end = 0;
    for _ in 0..20 {
        end = append(&log, "t", 1).expect("room");
    }
    wait_until("they are committed", || log.extent().end == end);
    let before = contents(&store);
    // The process ended without a checkpoint: large batches are in segments, and the journal says where.
    let disk = disk.kill();
    let mut opening = Opening::new(true, || false);
    opening.passes_all = true;
    let opened = Store::open_front(Arc::new(disk.clone()), Path::new(DIR), small(1), clock, &mut opening, &mut |_| {});
    let (store, _) = opened.expect("it becomes a node's");
    assert_eq!(contents(&store), before);
    store.stop().expect("it stops");
    drop(store);
    let (node, opening) = open_node(&disk.kill(), true).expect("it is opened again");
    assert_eq!((opening.kept, contents(&node.store)), (0, before));
}

#[test]
fn a_node_with_a_damaged_entry_must_be_replaced() {
    let disk = SimDisk::new();
    let (node, _) = open_node(&disk, true).expect("a new directory");
    let topic = node.topic("t", on_disk(1));
    node.append(&topic, 3);
    node.commit();
    node.append(&topic, 3);
    node.toy.wait_synced().expect("synced");
    let log = topic.partitions[0].clone();
    let committed = read_all(&log, 0, log.extent().end, 4096).expect("readable");
    let disk = disk.kill();
    let journal = Path::new(DIR).join("journal/000000.journal");
    let bytes = disk.contents(&journal);
    let of_batch = |batch: &[u8]| bytes.windows(batch.len()).position(|found| found == batch).expect("it is there");
    let whole = open_node(&disk.kill(), true).map(drop);
    assert_eq!(whole, Ok(()));
    let at = of_batch(committed[1].bytes()) + 70;
    disk.edit(&journal, |bytes| bytes[at] ^= 1);
    let refused = open_node(&disk, true).map(drop).expect_err("it is damaged");
    assert_eq!(refused.kind, ErrorKind::Corrupt);
    assert!(refused.message.contains("must not come back under its number"), "{refused}");
}

#[test]
fn files_of_a_deleted_topic_stay_until_a_checkpoint() {
    let disk = SimDisk::new();
    let (node, _) = open_node(&disk, true).expect("a new directory");
    let topic = node.topic("t", on_disk(1));
    node.append(&topic, 40);
    node.commit();
    node.store.checkpoint().expect("a checkpoint");
    let has_files = |disk: &SimDisk| disk.files().iter().any(|(path, _)| path.starts_with("/data/topics/0"));
    assert!(has_files(&disk));
    node.store.delete_topic(topic.id, Arc::new(NoOwner)).expect("taken");
    node.toy.wait_synced().expect("synced");
    // A restart would not know that it is committed: the journal does not say so yet.
    let before = disk.kill();
    node.commit();
    assert_eq!(node.store.topics().len(), 0);
    let (again, opening) = open_node(&before, true).expect("its files are there");
    assert_eq!((again.store.topics().len(), opening.open().len()), (1, 1));
    wait_until("the files of a deleted topic are removed", || !has_files(&disk));
}

#[test]
fn committed_batches_of_another_leader_wait_for_segments() {
    let settings = StoreSettings { unflushed_bytes_max: 8 << 10, ..small(1) };
    let (follower, _) = open(&SimDisk::new(), Path::new(DIR), settings).expect("a new directory");
    let change = Change::Create { id: 0, name: topic_name("t"), settings: on_disk(1) };
    follower.apply(EntryKind::Catalog, 0, change.encode().into()).expect("applied");
    let mut end = 0;
    for _ in 0..500 {
        let batch = batch_at("t", 0, end, 1);
        end = batch.next_offset();
        follower.apply(EntryKind::Batch, 0, batch.bytes().clone()).expect("applied");
        let unflushed = follower.stats().unflushed_bytes;
        assert!(unflushed <= 2 * settings.unflushed_bytes_max + batch.len() as u64 + 96, "{unflushed}");
    }
    let gap = batch_at("t", 0, end + 1, 1);
    let refused = follower.apply(EntryKind::Batch, 0, gap.bytes().clone()).expect_err("a gap");
    assert_eq!(refused.kind, ErrorKind::Corrupt);
    assert_eq!(follower.topics()[0].partitions[0].extent().end, end);
    follower.stop().expect("it stops");
}

#[test]
fn a_node_that_is_behind_is_brought_up_to_date() {
    let [(_, leader), (disk, follower)] = two_nodes();
    let topic = leader.topic("t", on_disk(2));
    let gone = leader.topic("gone", on_disk(1));
    leader.append(&topic, 50);
    leader.append(&gone, 50);
    leader.commit();
    let all = follower.install(&leader);
    assert!(all > 10_000, "{all}");
    // Next to nothing is missing the second time, and a topic is deleted, another created, one grown and altered.
    leader.append(&topic, 5);
    leader.store.delete_topic(gone.id, Arc::new(NoOwner)).expect("taken");
    leader.store.grow_topic(topic.id, 4, Arc::new(NoOwner)).expect("taken");
    let settings = TopicSettings { partitions: 4, retention_ms: 7, ..topic.settings };
    leader.store.alter_topic(topic.id, settings, Arc::new(NoOwner)).expect("taken");
    let new = leader.topic("new", on_disk(1));
    leader.append(&new, 3);
    leader.commit();
    assert!(follower.install(&leader) < all / 2);
    // The first records were deleted there.
    let start = read_all(&topic.partitions[0], 0, 30, 1).expect("readable")[3].next_offset() + 1;
    topic.partitions[0].clone().set_start(start, Arc::new(NoOwner)).expect("taken");
    leader.commit();
    assert_eq!(follower.install(&leader), 0);
    follower.store.stop().expect("it stops");
    let before = contents(&follower.store);
    drop(follower);
    let (follower, _) = open_node(&disk, true).expect("it is opened again");
    assert_eq!(contents(&follower.store), before);
}

#[test]
fn a_partition_is_replaced_if_what_it_lacks_is_deleted() {
    let [(_, leader), (disk, follower)] = two_nodes();
    let topic = leader.topic("t", on_disk(1));
    leader.append(&topic, 10);
    leader.commit();
    follower.install(&leader);
    let known = follower.end_of(&topic);
    leader.append(&topic, 200);
    leader.commit();
    let log = topic.partitions[0].clone();
    let batches = read_all(&log, known, log.extent().end, 4096).expect("readable");
    let first = batches.iter().skip(100).find(|batch| batch.next_offset() - batch.base_offset() > 2).expect("a batch");
    // The log begins inside a batch.
    let start = first.base_offset() + 1;
    log.set_start(start, Arc::new(NoOwner)).expect("taken");
    leader.commit();
    leader.store.checkpoint().expect("a checkpoint");
    let manifest = leader.store.manifest();
    let wanted = follower.store.begin_install(&manifest).expect("it can be replaced");
    assert_eq!(wanted, [Wanted { stream: 0, from: start, to: leader.end_of(&topic) }]);
    let half = batches.iter().map(RecordBatch::next_offset).find(|end| *end >= start + 100).expect("a batch");
    follower.fetch(&leader, &[Wanted { to: half, ..wanted[0] }]);
    follower.store.checkpoint().expect("a checkpoint");
    assert!(follower.store.end_install(&manifest).is_err_and(|error| error.kind == ErrorKind::Invalid));
    // After a crash the old records are back, to be fetched from their end.
    let (crashed, _) = open_node(&disk.cut(1), true).expect("the old files are there");
    assert_eq!(crashed.end_of(&topic), known);
    crashed.install(&leader);
    // Without one it continues, or begins again with a newer manifest.
    let rest = follower.store.begin_install(&leader.store.manifest()).expect("it continues");
    assert!(rest[0].from > start, "{rest:?}");
    follower.install(&leader);
    follower.store.checkpoint().expect("a checkpoint");
    let names =
        |(path, _): &(std::path::PathBuf, u64)| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let files: Vec<_> = disk.files().iter().filter_map(names).filter(|name| name.ends_with(".log")).collect();
    assert!(files.iter().all(|name| name.contains("-2.")), "the old files are removed: {files:?}");
    follower.store.stop().expect("it stops");
    let before = contents(&follower.store);
    drop(follower);
    let (follower, _) = open_node(&disk, true).expect("it is opened again");
    assert_eq!(contents(&follower.store), before);
}

/// A queue deletes its records as fast as it gets new ones.
#[test]
fn a_partition_begins_after_what_is_deleted_while_it_is_fetched() {
    let [(_, leader), (disk, follower)] = two_nodes();
    let topic = leader.topic("t", on_disk(1));
    leader.append(&topic, 100);
    leader.commit();
    let log = topic.partitions[0].clone();
    let batches = read_all(&log, 0, log.extent().end, 4096).expect("readable");
    let (known, half) = (batches[10].next_offset(), batches[50].next_offset());
    let manifest = leader.store.manifest();
    let wanted = follower.store.begin_install(&manifest).expect("it can continue");
    assert_eq!(wanted, [Wanted { stream: 0, from: 0, to: leader.end_of(&topic) }]);
    follower.fetch(&leader, &[Wanted { to: known, ..wanted[0] }]);
    // More is appended, and not sent: the log has it.
    log.clone().set_start(half, Arc::new(NoOwner)).expect("taken");
    leader.append(&topic, 100);
    leader.commit();
    let refused = leader.store.read_rows(0, known..wanted[0].to, 4096).expect_err("it is deleted");
    assert_eq!(refused.kind, ErrorKind::OutOfRange);
    assert_eq!(leader.store.first_of_rows(0), Some(half));
    for impossible in [known - 1, wanted[0].to + 1] {
        assert!(follower.store.begin_after(&manifest, 0, impossible).is_err(), "{impossible}");
    }
    follower.store.begin_after(&manifest, 0, half).expect("it begins there");
    follower.fetch(&leader, &[Wanted { from: half, ..wanted[0] }]);
    assert_eq!(follower.end_of(&topic), wanted[0].to);
    // The old records return after a crash.
    let (crashed, _) = open_node(&disk.cut(1), true).expect("the old files are there");
    assert!(crashed.end_of(&topic) <= known);
    follower.store.end_install(&manifest).expect("it has the rest");
    // Everything may be deleted.
    leader.append(&topic, 10);
    leader.commit();
    let manifest = leader.store.manifest();
    let wanted = follower.store.begin_install(&manifest).expect("it can continue");
    let end = leader.end_of(&topic);
    log.set_start(end, Arc::new(NoOwner)).expect("taken");
    leader.append(&topic, 1);
    leader.commit();
    follower.store.begin_after(&manifest, 0, wanted[0].to).expect("it begins at the end");
    follower.store.end_install(&manifest).expect("nothing is left");
    follower.install(&leader);
    follower.store.stop().expect("it stops");
    let before = contents(&follower.store);
    drop(follower);
    let (follower, _) = open_node(&disk, true).expect("it is opened again");
    assert_eq!(contents(&follower.store), before);
}

/// Returns settings under which everything is compacted at the next turn, and no record without a value stays.
fn compacting() -> StoreSettings {
    let compaction = CompactionSettings {
        dirty_bytes_min: 1,
        bytes_per_s: 1 << 40,
        tombstone_retention_ms: 0,
        ..CompactionSettings::default()
    };
    StoreSettings { segment_bytes: 4 << 10, compaction, ..small(2) }
}

/// Appends one record, with a value or without.
fn put(log: &Arc<dyn PartitionLog>, key: &str, value: Option<&[u8]>) {
    let mut builder = BatchBuilder::new();
    builder.push(0, Some(key.as_bytes()), value, &[]).expect("a record");
    let batch = builder.finish().expect("a record").stamp(log.end());
    log.append(batch, clock(), Arc::new(OfLog(log.clone()))).expect("room");
}

#[test]
fn a_key_that_was_deleted_and_compacted_away_does_not_return() {
    let disk = SimDisk::new();
    let mut opening = Opening::new(true, || false);
    let (store, _) =
        Store::open_front(Arc::new(disk.clone()), Path::new(DIR), compacting(), clock, &mut opening, &mut |_| {})
            .expect("a new directory");
    let leader = Node { store, toy: opening.toy.expect("it is started") };
    let (follower, _) = open_node(&SimDisk::new(), true).expect("a new directory");
    let topic = leader.topic("t", TopicSettings { compact: true, ..on_disk(1) });
    let log = topic.partitions[0].clone();
    put(&log, "gone", Some(&[1; 300]));
    leader.commit();
    follower.install(&leader);
    put(&log, "gone", None);
    let keys = |node: &Node| {
        let log = &node.store.partitions(topic.id).expect("a topic")[0];
        let batches = read_all(log, log.extent().start, log.extent().end, 4096).expect("readable");
        let mut keys = Vec::new();
        for batch in &batches {
            let records = batch.records().expect("valid");
            keys.extend(records.iter().map(|view| records.own(&view.expect("valid")).key));
        }
        keys
    };
    let gone = Some(Bytes::from_static(b"gone"));
    // The record without a value stays until the turn after the one that removed the other.
    let mut turns = 0;
    while keys(&leader).contains(&gone) {
        (0..200).for_each(|i| put(&log, &format!("key {}", i % 7), Some(&[1; 300])));
        leader.commit();
        leader.store.checkpoint().expect("a checkpoint");
        leader.store.compact().expect("compacted");
        turns += 1;
        assert!(turns < 20, "it is still there");
    }
    assert!(keys(&follower).contains(&gone));
    follower.install(&leader);
    assert!(!keys(&follower).contains(&gone), "only the leader's records are there");
}

#[test]
fn a_node_that_has_more_than_the_leader_changes_nothing() {
    let [(_, leader), (_, follower)] = two_nodes();
    let topic = leader.topic("t", on_disk(1));
    leader.append(&topic, 10);
    leader.commit();
    follower.install(&leader);
    let older = leader.store.manifest();
    leader.append(&topic, 1);
    leader.commit();
    follower.install(&leader);
    let before = contents(&follower.store);
    let refused = follower.store.begin_install(&older).expect_err("it has more records");
    assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused}");
    let refused = follower.store.begin_install(&Manifest::default()).expect_err("it has a topic");
    assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused}");
    let mut other = leader.store.manifest();
    other.catalog.topics.get_mut(&topic.id).expect("a topic").name = topic_name("other");
    let refused = follower.store.begin_install(&other).expect_err("it has another name");
    assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused}");
    assert_eq!(contents(&follower.store), before);
}

#[test]
fn an_owner_of_room_is_replaced() {
    let (store, _) = open(&SimDisk::new(), Path::new(DIR), small(1)).expect("a new directory");
    let told: [Arc<AtomicU64>; 2] = std::array::from_fn(|_| Arc::default());
    let topic = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    for counter in &told {
        let count = counter.clone();
        store.on_room(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while store.admit().is_ok() {
        append(&topic.partitions[0], "t", 1).expect("room");
    }
    wait_until("the owner is told", || told[1].load(Ordering::Relaxed) > 0);
    assert_eq!(told[0].load(Ordering::Relaxed), 0, "it was replaced");
    store.stop().expect("it stops");
}

/// Source of entries that publishers queue.
struct Queued {
    journal: Weak<Journal>,
    waiting: Mutex<u64>,
    appended: AtomicU64,
    durable: Arc<Durable>,
    is_filling: AtomicBool,
}

/// Owner that knows how many entries are durable.
#[derive(Default)]
struct Durable(AtomicU64);

impl Owner for Durable {
    fn committed(&self, mark: u64) {
        self.0.fetch_max(mark, Ordering::AcqRel);
    }

    fn failed(&self, _: &Error) {}
}

impl Source for Queued {
    fn fill(&self) {
        assert!(!self.is_filling.swap(true, Ordering::AcqRel), "it runs once at a time");
        let journal = self.journal.upgrade().expect("its journal calls it");
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for _ in 0..waiting {
            let mark = self.appended.fetch_add(1, Ordering::Relaxed) + 1;
            let (shard, body, owner) = (ShardId::FIRST, Bytes::from_static(b"row"), self.durable.clone());
            journal.append(Entry { kind: EntryKind::View, shard, stream: 0, body, owner, mark }).expect("room");
        }
        self.is_filling.store(false, Ordering::Release);
    }
}

impl Queued {
    /// Adds an entry, and waits until that many are durable.
    fn publish(&self) {
        *self.waiting.lock() += 1;
        let journal = self.journal.upgrade().expect("it runs");
        journal.call().expect("it runs");
        let begin = Instant::now();
        while *self.waiting.lock() > 0 || self.durable.0.load(Ordering::Acquire) < self.appended.load(Ordering::Relaxed)
        {
            assert!(begin.elapsed() < Duration::from_secs(60), "a call was lost");
            std::thread::yield_now();
        }
    }
}

#[test]
fn every_call_of_the_source_is_followed_by_its_entries() {
    for publishers in [1, 4] {
        let (node, _) = open_node(&SimDisk::new(), true).expect("a new directory");
        let journal = node.toy.journal();
        let source = Arc::new(Queued {
            journal: Arc::downgrade(journal),
            waiting: Mutex::new(0),
            appended: AtomicU64::new(0),
            durable: Arc::default(),
            is_filling: AtomicBool::new(false),
        });
        journal.set_source(source.clone());
        std::thread::scope(|scope| {
            for publisher in 0..publishers {
                let source = &source;
                scope.spawn(move || {
                    for i in 0..300 {
                        source.publish();
                        if (i + publisher) % 50 == 0 {
                            // The journal is idle, and seals its last block.
                            std::thread::sleep(Duration::from_millis(25));
                        }
                    }
                });
            }
        });
        assert_eq!(source.durable.0.load(Ordering::Acquire), 300 * publishers as u64);
        node.store.stop().expect("it stops");
        assert_eq!(journal.call().map_err(|error| error.kind), Err(ErrorKind::ShuttingDown));
    }
}

#[test]
fn a_call_of_a_broken_journal_fails() {
    let disk = SimDisk::new();
    let (node, _) = open_node(&disk, true).expect("a new directory");
    // The block finds a file. While it is written, the next spare file is made and synced too: all syncs fail.
    wait_until("the files are ready", || node.store.stats().journal.files_spare == 2);
    let times = u64::MAX;
    disk.add_fault(Fault { doing: Doing::Sync, path: "journal", after: 0, times, error: std::io::ErrorKind::Other });
    // Refused, if the sync of its first entry fails before the second one is queued.
    drop(node.store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)));
    wait_until("the journal is broken", || node.store.broken().is_some());
    assert_eq!(node.toy.journal().call().map_err(|error| error.kind), Err(ErrorKind::Internal));
}
