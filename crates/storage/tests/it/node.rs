//! Data directory of a node of a cluster: only what its log committed is in it, whatever happens.

use std::path::Path;
use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, RecordBatch, TopicSettings};
use storage::{EntryKind, Manifest, Owner, PartitionLog, Store, StoredTopic};

use crate::power::repeatable;
use crate::sim::{Random, SimDisk};
use crate::toy::{Opening, Sent, Toy};
use crate::workload::{NoOwner, batch_at, clock, on_disk, open, read_all, small, topic_name};

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
        if random.is_one_in(4) {
            disk.power_off_after(random.below(200));
        }
        match open_node(&disk, random.is_one_in(2)) {
            Err(error) => assert!(disk.is_off(), "seed {seed}, life {life}: {error}"),
            Ok((node, opening)) => {
                let lived = check(&node, &opening, &committed, seed).and_then(|()| {
                    // The cluster may have committed more than this node knew, and replaced the rest.
                    let known = opening.committed as usize;
                    node.toy.commit(&node.store, committed.len() - known, &mut Vec::new())?;
                    if random.is_one_in(2) {
                        node.toy.give_up();
                    } else {
                        node.toy.commit(&node.store, usize::MAX, &mut committed)?;
                    }
                    disk.power_off_after(random.below(1200));
                    incarnation += 1;
                    lead(&node, &mut committed, &mut random, &mut incarnation)
                });
                assert!(lived.is_ok() || disk.is_off(), "seed {seed}, life {life}: {lived:?}");
                let stopped = node.store.stop();
                assert!(stopped.is_ok() || disk.is_off(), "seed {seed}, life {life}: {stopped:?}");
            }
        }
        disk = if random.is_one_in(4) { disk.kill() } else { disk.cut(random.next()) };
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

#[test]
fn only_committed_entries_survive_power_cuts() {
    repeatable(60, live);
}
