//! A log in front of the journal, as replication is: it decides what is committed, and a second directory that applies
//! what the first one committed has the same records.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, RecordBatch, TopicSettings};
use parking_lot::{Condvar, Mutex};
use storage::{
    Commits, Entry, EntryKind, Found, Front, Journal, Owner, PartitionLog, RealDisk, ShardLog, Store, StoredTopic,
};

use crate::workload::{NoOwner, PATIENCE, batch_at, clock, commit, on_disk, open, read_all, small, topic_name};

/// Entry as a follower receives it.
type Sent = (EntryKind, u64, Vec<u8>);

/// Log that commits nothing before an explicit call, although the journal has synced the records.
struct Majority {
    journal: Arc<Journal>,
    synced: Arc<Synced>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    sent: Vec<Sent>,
    /// Owners of the entries that are not committed, and their marks.
    owners: VecDeque<(Arc<dyn Owner>, u64)>,
}

/// Owner of all entries in the journal: their marks there are their numbers, from 1.
#[derive(Default)]
struct Synced {
    /// Number of the last entry that is synced.
    last: Mutex<u64>,
    grown: Condvar,
}

impl Owner for Synced {
    fn committed(&self, mark: u64) {
        *self.last.lock() = mark;
        self.grown.notify_all();
    }

    fn failed(&self, error: &Error) {
        panic!("{error}");
    }
}

impl ShardLog for Majority {
    fn append(&self, entry: Entry) -> Result<(), Error> {
        let mut log = self.log.lock();
        log.sent.push((entry.kind, entry.stream, entry.body.to_vec()));
        log.owners.push_back((entry.owner.clone(), entry.mark));
        let mark = log.sent.len() as u64;
        self.journal.append(Entry { owner: self.synced.clone(), mark, ..entry })
    }

    fn admit(&self) -> Result<(), Error> {
        self.journal.admit()
    }

    fn broken(&self) -> Option<Error> {
        self.journal.broken()
    }

    fn still(&self, look: &mut dyn FnMut()) {
        let _log = self.log.lock();
        look();
    }
}

impl Majority {
    /// Waits until all entries are synced on this disk.
    fn wait_synced(&self) {
        let sent = self.log.lock().sent.len() as u64;
        let mut last = self.synced.last.lock();
        while *last < sent {
            assert!(!self.synced.grown.wait_for(&mut last, PATIENCE).timed_out(), "they are not synced");
        }
    }

    /// Commits the next entries.
    fn commit(&self, count: usize) {
        self.wait_synced();
        let owners: Vec<_> = self.log.lock().owners.drain(..count).collect();
        owners.into_iter().for_each(|(owner, mark)| owner.committed(mark));
    }

    /// Gives up the entries that are not committed, as a leader does that is replaced.
    fn cut(&self) {
        self.wait_synced();
        self.log.lock().owners.clear();
    }
}

/// Owner of the batches of one partition.
struct OfLog(Arc<dyn PartitionLog>);

impl Owner for OfLog {
    fn committed(&self, mark: u64) {
        self.0.commit(mark);
    }

    fn failed(&self, error: &Error) {
        panic!("{error}");
    }
}

/// Opening of an empty directory behind a [`Majority`].
#[derive(Default)]
struct Opening(Option<Arc<Majority>>);

impl Front for Opening {
    fn adopt(&mut self, state: &[u8]) -> Result<(), Error> {
        assert!(state.is_empty(), "it keeps nothing");
        Ok(())
    }

    fn note(&mut self, _: &Found<'_>) -> Result<(), Error> {
        panic!("the directory is new");
    }

    fn rewind(&mut self) {}

    fn passes(&mut self, _: &Found<'_>) -> Result<bool, Error> {
        panic!("the directory is new");
    }

    fn start(&mut self, journal: Arc<Journal>) -> Result<Arc<dyn ShardLog>, Error> {
        let front = Arc::new(Majority { journal, synced: Arc::default(), log: Mutex::default() });
        self.0 = Some(front.clone());
        Ok(front)
    }
}

fn open_behind(dir: &std::path::Path) -> (Arc<Store>, Arc<Majority>, Vec<StoredTopic>) {
    let mut front = Opening::default();
    let opened = Store::open_front(Arc::new(RealDisk), dir, small(2), clock, &mut front, &mut |_| {});
    let (store, topics) = opened.expect("a directory");
    (store, front.0.expect("it is started"), topics)
}

fn append(log: &Arc<dyn PartitionLog>, incarnation: u64) -> Offset {
    let batch = batch_at("t", 0, log.end(), incarnation);
    let end = batch.next_offset();
    log.append(batch, clock(), Arc::new(OfLog(log.clone()))).expect("room");
    end
}

fn all_of(log: &Arc<dyn PartitionLog>) -> Vec<RecordBatch> {
    let extent = log.extent();
    read_all(log, extent.start, extent.end, 4096).expect("readable")
}

#[test]
fn synced_records_are_not_committed_before_the_preceding_log_commits_them() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, majority, _) = open_behind(temp.path());
    let topic = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    let log = topic.partitions[0].clone();
    let first = append(&log, 1);
    append(&log, 1);
    // The creation of the topic and both batches are on this disk.
    majority.wait_synced();
    assert_eq!((log.extent().end, all_of(&log).len()), (0, 0));
    majority.commit(2);
    assert_eq!((log.extent().end, all_of(&log).len()), (first, 1));
    store.stop().expect("it stops");
}

#[test]
fn uncommitted_records_can_be_cut_and_committed_ones_cannot() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, majority, _) = open_behind(temp.path());
    let topic = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    let log = topic.partitions[0].clone();
    let committed = append(&log, 1);
    majority.commit(2);
    let cut = append(&log, 1);
    append(&log, 1);
    majority.cut();
    let inside = log.truncate(committed - 1).expect_err("it is committed");
    assert_eq!(inside.kind, ErrorKind::Invalid, "{inside}");
    log.truncate(cut).expect("a part of it");
    assert_eq!(log.end(), cut);
    log.truncate(committed).expect("the rest");
    assert_eq!((log.end(), log.extent().end), (committed, committed));
    // Another leader's records come in their place.
    let end = append(&log, 2);
    majority.commit(1);
    assert_eq!(log.extent().end, end);
    assert_eq!(all_of(&log), [batch_at("t", 0, 0, 1), batch_at("t", 0, committed, 2)]);
    store.stop().expect("it stops");
}

#[test]
fn a_change_is_applied_when_it_is_committed_and_not_before() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, majority, _) = open_behind(temp.path());
    let no_owner = || Arc::new(NoOwner);
    let gone = store.create_topic(topic_name("gone"), on_disk(1), no_owner()).expect("a topic");
    let topic = store.create_topic(topic_name("t"), on_disk(1), no_owner()).expect("a topic");
    let log = topic.partitions[0].clone();
    let start = append(&log, 1);
    append(&log, 1);
    majority.commit(4);
    let altered = TopicSettings { retention_ms: 7, ..topic.settings };
    store.grow_topic(topic.id, 3, no_owner()).expect("taken");
    store.alter_topic(topic.id, altered, no_owner()).expect("taken");
    assert_eq!(log.clone().set_start(start, no_owner()).expect("taken"), Commits::Later);
    store.delete_topic(gone.id, no_owner()).expect("taken");
    majority.wait_synced();
    let seen = || {
        let partitions = store.partitions(topic.id).expect("a topic").len();
        let settings = store.topics().into_iter().find(|found| found.id == topic.id).expect("a topic").settings;
        (partitions, settings.retention_ms, log.extent().start, gone.partitions[0].end(), store.topics().len())
    };
    let retention_ms = topic.settings.retention_ms;
    assert_eq!(seen(), (1, retention_ms, 0, 0, 2), "nothing is committed");
    assert_eq!(gone.partitions[0].refused(), None);
    // A checkpoint in between keeps the state before the changes, and the journal from there on.
    store.checkpoint().expect("a checkpoint");
    majority.commit(1);
    assert_eq!(seen(), (3, retention_ms, 0, 0, 2), "it has grown");
    majority.commit(1);
    assert_eq!(seen(), (3, 7, 0, 0, 2), "its settings are altered");
    majority.commit(1);
    assert_eq!(seen(), (3, 7, start, 0, 2), "its first records are deleted");
    assert_eq!(log.clone().read(0, 1).map(drop).map_err(|error| error.kind), Err(ErrorKind::OutOfRange));
    majority.commit(1);
    assert_eq!(seen(), (3, 7, start, 0, 1), "the other topic is deleted");
    let refused = gone.partitions[0].append(batch_at("gone", 0, 0, 1), clock(), no_owner());
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::NotFound));
    store.stop().expect("it stops");
}

/// Many changes are in one block of the journal, whose owners may be notified in any order.
#[test]
fn changes_of_one_topic_are_applied_in_their_order() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, _) = open(&RealDisk, temp.path(), small(2)).expect("a directory");
    let topic = store.create_topic(topic_name("t"), on_disk(1), Arc::new(NoOwner)).expect("a topic");
    let settings = |retention_ms| TopicSettings { retention_ms, ..topic.settings };
    for round in 1..100 {
        for step in 0..6 {
            store.alter_topic(topic.id, settings(round * 10 + step), Arc::new(NoOwner)).expect("taken");
        }
        commit(|owner| store.confirm_topic(topic.id, 1, owner));
        assert_eq!(store.topics()[0].settings.retention_ms, round * 10 + 5);
    }
    store.stop().expect("it stops");
}

/// A checkpoint has the topic that is deleted, or the one that replaces it, and not both.
#[test]
fn a_checkpoint_has_no_topic_whose_creation_is_not_committed() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, majority, _) = open_behind(temp.path());
    let no_owner = || Arc::new(NoOwner);
    let before = store.create_topic(topic_name("t"), on_disk(1), no_owner()).expect("a topic");
    majority.commit(1);
    store.delete_topic(before.id, no_owner()).expect("taken");
    let after = store.create_topic(topic_name("t"), on_disk(2), no_owner()).expect("a topic");
    majority.wait_synced();
    let ids = || {
        store.checkpoint().expect("a checkpoint");
        let bytes = std::fs::read(temp.path().join("checkpoint")).expect("a checkpoint");
        let kept = storage::checkpoint::Checkpoint::decode(&bytes).expect("valid");
        kept.catalog.topics.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(ids(), [before.id]);
    majority.commit(1);
    assert_eq!(ids(), [0u32; 0]);
    majority.commit(1);
    assert_eq!(ids(), [after.id]);
    store.stop().expect("it stops");
}

#[test]
fn a_directory_that_applies_the_log_of_another_has_its_topics_and_records() {
    let leading = tempfile::tempdir().expect("a directory");
    let following = tempfile::tempdir().expect("a directory");
    let (leader, majority, _) = open_behind(leading.path());
    let (follower, _) = open(&RealDisk, following.path(), small(2)).expect("a directory");
    let no_owner = || Arc::new(NoOwner);
    let gone = leader.create_topic(topic_name("gone"), on_disk(2), no_owner()).expect("a topic");
    let topic = leader.create_topic(topic_name("t"), on_disk(1), no_owner()).expect("a topic");
    let log = topic.partitions[0].clone();
    let mut start = 0;
    for i in 0..20 {
        append(&log, 1);
        start = if i == 7 { log.end() } else { start };
    }
    leader.grow_topic(topic.id, 3, no_owner()).expect("grown");
    leader.delete_topic(gone.id, no_owner()).expect("deleted");
    majority.commit(24);
    log.clone().set_start(start, no_owner()).expect("a start");
    majority.commit(1);
    for _twice in 0..2 {
        // Applying an entry again has no effect.
        for (kind, stream, body) in &majority.log.lock().sent {
            follower.apply(*kind, *stream, body.clone().into()).expect("applied");
        }
    }
    let [found] = &follower.topics()[..] else { panic!("one topic is left") };
    assert_eq!((found.name.as_str(), found.partitions.len()), ("t", 3));
    let copy = &found.partitions[0];
    assert_eq!((copy.extent().start, copy.extent().end), (log.extent().start, log.extent().end));
    assert_eq!(copy.extent().start, start);
    assert_eq!(all_of(copy), all_of(&log));
    leader.stop().expect("it stops");
    follower.stop().expect("it stops");
}
