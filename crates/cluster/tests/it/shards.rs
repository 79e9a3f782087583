//! Shards of several nodes in one process: real stores on the disk, and a network in memory that can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::link::Part;
use cluster::node::{self, catch_up};
use cluster::roster::{FORMAT, Member, Roster, RosterChange};
use cluster::shard::{Observer, Opening, Shard, ShardPart, Stance};
use cluster::transport::Links;
use consensus::{Change, Index, Members, NodeId, Point, Random, Settings, Step, Term, Time};
use engine::shard::ShardId;
use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Storage, TopicName, TopicSettings};
use parking_lot::{Condvar, Mutex};
use storage::journal::JournalSettings;
use storage::{Owner, PartitionLog, RealDisk, Store, StoreSettings, StoredTopic};

/// Time that only a failure needs.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);

fn wall_clock() -> u64 {
    1_700_000_000_000
}

fn settings() -> Settings {
    Settings {
        heartbeat_ticks: 1,
        election_ticks: 20,
        lease: Duration::from_millis(50).as_nanos() as Time,
        ..Settings::default()
    }
}

fn store_settings() -> StoreSettings {
    StoreSettings {
        journal: JournalSettings {
            file_bytes: 1 << 20,
            first_file_bytes: 256 << 10,
            through_bytes_min: usize::MAX,
            ..JournalSettings::default()
        },
        segment_bytes: 256 << 10,
        tail_bytes_max: 256 << 10,
        unflushed_bytes_max: 128 << 10,
        checkpoint_bytes: 512 << 10,
        tail_time: Duration::from_millis(50),
        ..StoreSettings::default()
    }
}

/// A node that runs, and the way to it.
type Running = (Sender<Part>, Weak<TestNode>);

/// The network: which nodes run, and what cannot pass between them.
#[derive(Default)]
struct Network {
    nodes: Mutex<BTreeMap<NodeId, Running>>,
    /// Pairs of nodes, of which nothing of the first reaches the second.
    cuts: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Source of losses and repetitions, if there are any.
    faults: Mutex<Option<Random>>,
    /// Work of the leader after the list of what it has, whenever a node fetches the state.
    meanwhile: Mutex<Option<Meanwhile>>,
}

type Meanwhile = Arc<dyn Fn(&TestNode) + Send + Sync>;

struct Wire {
    network: Arc<Network>,
    from: NodeId,
}

impl Links for Wire {
    fn send(&self, to: NodeId, part: Part) {
        if self.network.cuts.lock().contains(&(self.from, to)) {
            return;
        }
        let dice = self.network.faults.lock().as_mut().map_or(u64::MAX, |random| random.below(100));
        let copies = match dice {
            0..3 => 0,
            3..6 => 2,
            _ => 1,
        };
        let sender = self.network.nodes.lock().get(&to).map(|(sender, _)| sender.clone());
        if let Some(sender) = sender {
            // A node that has stopped gets nothing.
            (0..copies).for_each(|_| sender.send(part.clone()).unwrap_or_default());
        }
    }
}

impl Network {
    fn cut(&self, node: NodeId, others: &[NodeId]) {
        let both = others.iter().flat_map(|other| [(node, *other), (*other, node)]);
        self.cuts.lock().extend(both);
    }

    fn heal(&self) {
        self.cuts.lock().clear();
    }
}

struct TestNode {
    id: NodeId,
    network: Arc<Network>,
    store: Arc<Store>,
    shard: Arc<Shard>,
    is_stopped: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    me: Weak<Self>,
}

impl TestNode {
    fn start(network: &Arc<Network>, dir: &Path, id: NodeId) -> Arc<Self> {
        Self::try_start(network, dir, id, FORMAT).expect("a directory")
    }

    /// Starts a node whose program reads the log's rows up to a version.
    fn try_start(network: &Arc<Network>, dir: &Path, id: NodeId, format: u32) -> Result<Arc<Self>, Error> {
        let is_new = std::fs::read_dir(dir).is_ok_and(|mut files| files.next().is_none());
        let part = ShardPart { shard: ShardId::FIRST, node: id, is_founder: id == 1 && is_new };
        let mut opening = Opening::new(part, settings(), id ^ node::clock(), node::clock).reads(format);
        let opened =
            Store::open_front(Arc::new(RealDisk), dir, store_settings(), wall_clock, &mut opening, &mut |_| {});
        let (store, _) = opened?;
        let shard = opening.shard().expect("it was started");
        drop(opening);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let node = Arc::new_cyclic(|me| Self {
            id,
            network: network.clone(),
            store,
            shard,
            is_stopped: is_stopped.clone(),
            threads: Mutex::default(),
            me: me.clone(),
        });
        node.shard.connect(&node.store, Arc::new(Wire { network: network.clone(), from: id }), node.me.clone());
        let (sender, parts) = channel::<Part>();
        network.nodes.lock().insert(id, (sender, Arc::downgrade(&node)));
        let shard = Arc::downgrade(&node.shard);
        let receiving = std::thread::spawn(move || {
            while let (Ok(part), Some(shard)) = (parts.recv(), shard.upgrade()) {
                shard.receive(part);
            }
        });
        let shard = Arc::downgrade(&node.shard);
        let ticking = std::thread::spawn(move || {
            while let (false, Some(shard)) = (is_stopped.load(Ordering::Acquire), shard.upgrade()) {
                shard.tick();
                drop(shard);
                std::thread::sleep(TICK);
            }
        });
        node.threads.lock().extend([receiving, ticking]);
        Ok(node)
    }

    /// Ends the node like a process that is killed: nothing more is written.
    fn stop(self: Arc<Self>) {
        self.network.nodes.lock().remove(&self.id);
        self.is_stopped.store(true, Ordering::Release);
        for thread in self.threads.lock().drain(..) {
            thread.join().expect("no panic");
        }
        self.shard.stop();
        let store = self.store.clone();
        let until = Instant::now() + PATIENCE;
        drop(self);
        while Arc::strong_count(&store) > 1 {
            assert!(Instant::now() < until, "something holds the store");
            std::thread::sleep(TICK);
        }
    }
}

impl Observer for TestNode {
    fn stance_changed(&self, _stance: Stance) {}

    fn members_changed(&self, _members: Members) {}

    fn state_offered(&self, leader: NodeId, point: Point) {
        let Some(node) = self.me.upgrade() else { return };
        std::thread::spawn(move || {
            let state = node.fetch(leader, point.position.index);
            if state.is_none() {
                std::thread::sleep(TICK);
            }
            node.shard.installed(state);
        });
    }
}

impl TestNode {
    fn fetch(&self, leader: NodeId, index: Index) -> Option<(Index, Roster)> {
        let leader = self.network.nodes.lock().get(&leader)?.1.upgrade()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut ours, mut near) = tokio::io::duplex(1 << 16);
            let (mut far, mut theirs) = tokio::io::duplex(1 << 16);
            let serving = async {
                node::bulk::read(&mut theirs).await?;
                let (point, roster) = leader.shard.point().expect("a point");
                let served =
                    catch_up::serve(&mut theirs, &leader.store, (roster, point.position.index), u64::MAX).await;
                drop(theirs);
                served
            };
            let relaying = async {
                let request = node::bulk::read(&mut near).await?;
                node::bulk::write(&mut far, &request).await?;
                let state = node::bulk::read(&mut far).await?;
                let meanwhile = self.network.meanwhile.lock().clone();
                meanwhile.iter().for_each(|work| work(&leader));
                node::bulk::write(&mut near, &state).await?;
                drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
                Ok::<_, Error>(())
            };
            let fetching = async {
                let fetched = catch_up::fetch(&mut ours, &self.shard, index).await;
                drop(ours);
                fetched
            };
            let (served, relayed, fetched) = tokio::join!(serving, relaying, fetching);
            served.expect("served");
            relayed.expect("relayed");
            fetched.inspect_err(|error| eprintln!("node {}: {error}", self.id)).ok()
        })
    }
}

/// Owner of the batches of one partition, as a broker has it.
struct Cell {
    log: Arc<dyn PartitionLog>,
    outcome: Mutex<(Offset, Option<Error>)>,
    changed: Condvar,
}

impl Owner for Cell {
    fn committed(&self, mark: u64) {
        self.log.commit(mark);
        self.outcome.lock().0 = mark;
        self.changed.notify_all();
    }

    fn failed(&self, error: &Error) {
        self.outcome.lock().1 = Some(error.clone());
        self.changed.notify_all();
    }
}

impl Cell {
    fn new(log: Arc<dyn PartitionLog>) -> Arc<Self> {
        Arc::new(Self { log, outcome: Mutex::default(), changed: Condvar::new() })
    }

    fn append(self: &Arc<Self>, value: &str) -> Result<Offset, Error> {
        let batch = batch(self.log.end(), value);
        let end = batch.next_offset();
        self.log.append(batch, wall_clock(), self.clone()).map(|_| end)
    }

    fn wait(&self, end: Offset) -> Result<(), Error> {
        let mut outcome = self.outcome.lock();
        while outcome.0 < end {
            if let Some(error) = &outcome.1 {
                return Err(error.clone());
            }
            assert!(!self.changed.wait_for(&mut outcome, PATIENCE).timed_out(), "no outcome");
        }
        Ok(())
    }
}

fn batch(base: Offset, value: &str) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    builder.push(1_700_000_000_000, None, Some(value.as_bytes()), &[]).expect("a record");
    builder.finish().expect("a batch").stamp(base)
}

/// Owner of one change.
#[derive(Default)]
struct Done {
    outcome: Mutex<Option<Result<(), Error>>>,
    changed: Condvar,
}

impl Owner for Done {
    fn committed(&self, _mark: u64) {
        *self.outcome.lock() = Some(Ok(()));
        self.changed.notify_all();
    }

    fn failed(&self, error: &Error) {
        *self.outcome.lock() = Some(Err(error.clone()));
        self.changed.notify_all();
    }
}

impl Done {
    fn wait(&self) -> Result<(), Error> {
        let mut outcome = self.outcome.lock();
        while outcome.is_none() {
            assert!(!self.changed.wait_for(&mut outcome, PATIENCE).timed_out(), "no outcome");
        }
        outcome.clone().expect("an outcome")
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(TICK);
    }
}

/// Waits until one of these nodes leads and takes records.
fn leader(nodes: &[Arc<TestNode>]) -> (Arc<TestNode>, Term) {
    eventually("no leader", || {
        nodes.iter().find_map(|node| {
            let term = node.shard.stance().term;
            node.shard.open(term).then(|| (node.clone(), term))
        })
    })
}

fn create(node: &TestNode, name: &str) -> StoredTopic {
    let settings = TopicSettings { partitions: 2, storage: Storage::Disk, ..TopicSettings::default() };
    let done = Arc::new(Done::default());
    let topic = node.store.create_topic(TopicName::parse(name).expect("a name"), settings, done.clone());
    let topic = topic.expect("it is free");
    done.wait().expect("committed");
    topic
}

fn topic(node: &TestNode, name: &str) -> Option<StoredTopic> {
    node.store.topics().into_iter().find(|topic| topic.name.as_str() == name)
}

/// Returns the values of a partition's records.
fn values(node: &TestNode, name: &str, partition: usize) -> Vec<String> {
    let Some(topic) = topic(node, name) else { return Vec::new() };
    let log = &topic.partitions[partition];
    let mut at = log.extent().start;
    let mut values = Vec::new();
    while at < log.extent().end {
        let batches = match log.clone().read(at, 1 << 20).expect("readable") {
            storage::Read::Batches(batches) => batches,
            storage::Read::Cold(cold) => cold.run().expect("readable"),
        };
        for batch in batches {
            let records = batch.records().expect("records");
            for record in records.iter() {
                let value = record.expect("a record").value.unwrap_or_default();
                values.push(String::from_utf8_lossy(value).into_owned());
            }
            at = batch.next_offset();
        }
    }
    values
}

/// Changes the members, on whichever node leads.
fn change(nodes: &[Arc<TestNode>], step: Step) {
    let is_done = |members: &Members| match step {
        Step::AddVoter(node) => members.voters.contains(&node) && members.outgoing.is_empty(),
        Step::AddLearner(node) => members.contains(node),
        Step::Remove(node) => !members.contains(node),
    };
    eventually("the members do not change", || {
        let leads = nodes.iter().find(|node| node.shard.status().is_leader)?;
        if is_done(&leads.shard.status().members) {
            return Some(());
        }
        // Refused while another change, or an election, is in progress.
        leads.shard.change(Change { steps: vec![step] }).map_or_else(drop, drop);
        None
    });
}

/// Directories of nodes, which live as long as the test.
struct Site {
    network: Arc<Network>,
    dirs: BTreeMap<NodeId, tempfile::TempDir>,
}

impl Site {
    fn new() -> Self {
        Self { network: Arc::default(), dirs: BTreeMap::new() }
    }

    fn start(&mut self, node: NodeId) -> Arc<TestNode> {
        let dir = self.dirs.entry(node).or_insert_with(|| tempfile::tempdir().expect("a directory"));
        TestNode::start(&self.network, dir.path(), node)
    }

    /// Starts three nodes that all vote.
    fn start_three(&mut self) -> Vec<Arc<TestNode>> {
        let first = self.start(1);
        leader(std::slice::from_ref(&first));
        let nodes = vec![first, self.start(2), self.start(3)];
        for node in 2..=3 {
            change(&nodes, Step::AddLearner(node));
            change(&nodes, Step::AddVoter(node));
        }
        nodes
    }
}

fn fill(node: &TestNode, name: &str, values: std::ops::Range<u32>) {
    let topic = topic(node, name).expect("a topic");
    let cells: Vec<_> = topic.partitions.iter().cloned().map(Cell::new).collect();
    let mut ends = [0; 2];
    for i in values {
        let cell = &cells[i as usize % 2];
        // As a broker does, wait when there is no room.
        ends[i as usize % 2] = eventually("no room", || match cell.append(&i.to_string()) {
            Err(error) if error.kind == ErrorKind::Busy => None,
            end => Some(end.expect("it leads")),
        });
        if i % 50 == 0 {
            cell.wait(ends[i as usize % 2]).expect("committed");
        }
    }
    cells.iter().zip(ends).for_each(|(cell, end)| cell.wait(end).expect("committed"));
}

fn expect_equal(nodes: &[Arc<TestNode>], name: &str, count: usize) {
    for node in nodes {
        eventually(&format!("node {} does not have everything", node.id), || {
            let found: usize = (0..2).map(|partition| values(node, name, partition).len()).sum();
            (found == count).then_some(())
        });
    }
    for partition in 0..2 {
        let expected: Vec<String> = (0..count as u32).filter(|i| i % 2 == partition).map(|i| i.to_string()).collect();
        for node in nodes {
            assert_eq!(values(node, name, partition as usize), expected, "node {}", node.id);
        }
    }
}

#[test]
fn a_node_alone_commits_and_remembers() {
    let mut site = Site::new();
    let node = site.start(1);
    leader(std::slice::from_ref(&node));
    create(&node, "orders");
    fill(&node, "orders", 0..300);
    node.stop();
    let node = site.start(1);
    leader(std::slice::from_ref(&node));
    fill(&node, "orders", 300..600);
    expect_equal(&[node], "orders", 600);
}

#[test]
fn three_nodes_have_the_same_and_survive_the_leader() {
    let mut site = Site::new();
    let mut nodes = site.start_three();
    let (first, _) = leader(&nodes);
    create(&first, "orders");
    fill(&first, "orders", 0..400);
    expect_equal(&nodes, "orders", 400);
    // The leader ends.
    let lost = nodes.remove(nodes.iter().position(|node| node.id == first.id).expect("one of them"));
    let gone = lost.id;
    drop(first);
    lost.stop();
    let (second, _) = leader(&nodes);
    fill(&second, "orders", 400..800);
    expect_equal(&nodes, "orders", 800);
    // It comes back and gets what it missed.
    nodes.push(site.start(gone));
    expect_equal(&nodes, "orders", 800);
    let (leads, _) = leader(&nodes);
    fill(&leads, "orders", 800..1000);
    expect_equal(&nodes, "orders", 1000);
}

#[test]
fn records_of_a_leader_without_followers_vanish_with_its_leadership() {
    let mut site = Site::new();
    let nodes = site.start_three();
    let (old, _) = leader(&nodes);
    create(&old, "orders");
    fill(&old, "orders", 0..100);
    expect_equal(&nodes, "orders", 100);
    let others: Vec<_> = nodes.iter().filter(|node| node.id != old.id).cloned().collect();
    let ids: Vec<_> = others.iter().map(|node| node.id).collect();
    site.network.cut(old.id, &ids);
    // Neither these records nor this topic reach anybody.
    let cell = Cell::new(topic(&old, "orders").expect("a topic").partitions[0].clone());
    let lost: Vec<_> = (0..10).map(|i| cell.append(&format!("lost {i}")).expect("it still leads")).collect();
    let settings = TopicSettings { partitions: 1, storage: Storage::Disk, ..TopicSettings::default() };
    let done = Arc::new(Done::default());
    old.store.create_topic(TopicName::parse("never").expect("a name"), settings, done.clone()).expect("it leads");
    let (new, _) = leader(&others);
    fill(&new, "orders", 100..200);
    site.network.heal();
    assert_eq!(cell.wait(lost[0]).expect_err("lost").kind, ErrorKind::Disconnected);
    assert_eq!(done.wait().expect_err("lost").kind, ErrorKind::Disconnected);
    expect_equal(&nodes, "orders", 200);
    assert!(topic(&old, "never").is_none());
}

/// Writes 800 records to a new topic: more than the leader keeps in memory for others.
fn fill_memory(leads: &TestNode) {
    let long = "x".repeat(64 << 10);
    let cell = Cell::new(create(leads, "big").partitions[0].clone());
    let mut end = 0;
    for i in 0..800 {
        end = eventually("no room", || cell.append(&long).ok());
        if i % 100 == 0 {
            cell.wait(end).expect("committed");
        }
    }
    cell.wait(end).expect("committed");
}

/// Publishers may queue 64 MiB, and the journals here have 16 MiB.
#[test]
fn a_journal_smaller_than_the_queue_of_its_shard_goes_on() {
    let mut site = Site::new();
    let nodes = site.start_three();
    let (leads, _) = leader(&nodes);
    let long = "x".repeat(64 << 10);
    let cell = Cell::new(create(&leads, "big").partitions[0].clone());
    let mut end = 0;
    for _ in 0..2000 {
        end = eventually("no room", || cell.append(&long).ok());
    }
    cell.wait(end).expect("committed");
}

#[test]
fn a_node_that_was_away_for_long_fetches_the_state() {
    let mut site = Site::new();
    let mut nodes = site.start_three();
    let (leads, _) = leader(&nodes);
    create(&leads, "orders");
    create(&leads, "gone");
    fill(&leads, "orders", 0..100);
    fill(&leads, "gone", 0..100);
    expect_equal(&nodes, "orders", 100);
    let at = nodes.iter().position(|node| node.id != leads.id).expect("a follower");
    let away = nodes.remove(at);
    let id = away.id;
    away.stop();
    fill_memory(&leads);
    let done = Arc::new(Done::default());
    leads.store.delete_topic(topic(&leads, "gone").expect("a topic").id, done.clone()).expect("it leads");
    done.wait().expect("committed");
    for node in 1..=3 {
        let member = Member { address: format!("n{node}:7402"), ..Member::default() };
        let done = Arc::new(Done::default());
        leads.shard.change_roster(&RosterChange::Describe { node, member }, done.clone()).expect("it leads");
        done.wait().expect("committed");
    }
    fill(&leads, "orders", 100..300);
    nodes.push(site.start(id));
    expect_equal(&nodes, "orders", 300);
    let back = nodes.last().expect("it is back");
    eventually("the rest does not come", || (values(back, "big", 0).len() == 800).then_some(()));
    assert!(topic(back, "gone").is_none());
    fill(&leads, "orders", 300..400);
    expect_equal(&nodes, "orders", 400);
    // It has the state on its own disk.
    let back = nodes.pop().expect("it is back");
    back.stop();
    nodes.push(site.start(id));
    expect_equal(&nodes, "orders", 400);
    let back = nodes.last().expect("it is back");
    assert_eq!(back.shard.roster().nodes.len(), 3, "the nodes belong to the state");
    assert_eq!(back.shard.roster(), leads.shard.roster());
}

/// Under load something is appended and deleted during every catch-up.
#[test]
fn a_node_fetches_the_state_of_a_leader_that_goes_on() {
    let mut site = Site::new();
    let nodes = site.start_three();
    let (leads, _) = leader(&nodes);
    create(&leads, "orders");
    create(&leads, "queue");
    fill(&leads, "orders", 0..100);
    fill(&leads, "queue", 0..100);
    fill_memory(&leads);
    let next = AtomicU64::new(100);
    let work: Meanwhile = Arc::new(move |leads| {
        let from = next.fetch_add(10, Ordering::Relaxed) as u32;
        let queue = topic(leads, "queue").expect("a topic").partitions[0].clone();
        let end = queue.extent().end;
        fill(leads, "orders", from..from + 10);
        fill(leads, "queue", from..from + 10);
        // Everything that was there at the list is deleted.
        let done = Arc::new(Done::default());
        queue.set_start(end, done.clone()).expect("it leads");
        done.wait().expect("committed");
    });
    *site.network.meanwhile.lock() = Some(work);
    let mut all = nodes;
    all.push(site.start(4));
    change(&all, Step::AddLearner(4));
    let joined = all.last().expect("it joins");
    eventually("it has no state", || (joined.shard.status().applied > 0).then_some(()));
    // It lacks the records that came after the list only until it has the log.
    *site.network.meanwhile.lock() = None;
    fill(&leads, "orders", 1000..1001);
    let expected = values(&leads, "orders", 0);
    eventually("it lacks records", || (values(joined, "orders", 0) == expected).then_some(()));
    let expected = values(&leads, "queue", 0);
    eventually("it lacks records", || (values(joined, "queue", 0) == expected).then_some(()));
}

/// Appends a change of the nodes, and waits until it is committed.
fn change_roster(leads: &TestNode, change: &RosterChange) {
    let done = Arc::new(Done::default());
    leads.shard.change_roster(change, done.clone()).expect("it leads");
    done.wait().expect("committed");
}

#[test]
fn a_node_that_is_too_old_for_the_log_takes_no_part() {
    let mut site = Site::new();
    let first = site.start(1);
    let nodes = [first];
    let (leads, _) = leader(&nodes);
    let dir = tempfile::tempdir().expect("a directory");
    let old = TestNode::try_start(&site.network, dir.path(), 2, FORMAT - 1).expect("a new directory");
    change(&nodes, Step::AddLearner(2));
    create(&leads, "orders");
    fill(&leads, "orders", 0..10);
    expect_equal(&[leads.clone(), old.clone()], "orders", 10);

    // A leader raises the format only when all nodes read it. If that goes wrong, the node does not acknowledge it.
    change_roster(&leads, &RosterChange::Raise { format: FORMAT });
    let why = eventually("it takes part", || old.shard.failed());
    assert_eq!(why.kind, ErrorKind::Unsupported);
    assert!(why.message.contains("install the version that its other nodes have"), "{why}");
    old.stop();
    let again = TestNode::try_start(&site.network, dir.path(), 2, FORMAT).expect("the new version");
    eventually("it does not follow", || (again.shard.roster().format() == FORMAT).then_some(()));
    again.store.checkpoint().expect("a checkpoint");
    again.stop();
    let refused = TestNode::try_start(&site.network, dir.path(), 2, FORMAT - 1).map(drop).expect_err("it is too old");
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    let expected = format!("reads format {} of the cluster's log, which has format {FORMAT}", FORMAT - 1);
    assert!(refused.message.contains(&expected), "{refused}");
}

#[test]
fn nobody_serves_two_leaders_at_a_time() {
    let mut site = Site::new();
    let nodes = site.start_three();
    let serving = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(3);
    let mut next_cut = Instant::now();
    while Instant::now() < until {
        if Instant::now() > next_cut {
            site.network.heal();
            let led = nodes.iter().find(|node| node.shard.may_serve(node.shard.stance().term));
            if let Some(led) = led {
                let others: Vec<_> = nodes.iter().map(|node| node.id).filter(|id| *id != led.id).collect();
                site.network.cut(led.id, &others);
            }
            next_cut = Instant::now() + Duration::from_millis(700);
        }
        let count = nodes.iter().filter(|node| node.shard.may_serve(node.shard.stance().term)).count() as u64;
        // Two looks at different times may see the end of one and the beginning of the next: look again.
        if count > 1 {
            let again = nodes.iter().filter(|node| node.shard.may_serve(node.shard.stance().term)).count();
            assert!(again < 2, "two nodes serve");
        }
        serving.fetch_max(count, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(serving.load(Ordering::Relaxed), 1, "somebody serves");
}

/// Records that were appended to one partition, in the order of their offsets as far as that is known.
#[derive(Default)]
struct Ledger {
    acknowledged: Vec<String>,
    next: u64,
}

/// Faults of all kinds, chosen by a seed: nothing acknowledged is lost, and all nodes have the same at the end.
fn live(seed: u64, steps: u32) {
    let mut random = Random::new(seed);
    let mut site = Site::new();
    let mut nodes: BTreeMap<NodeId, Arc<TestNode>> =
        site.start_three().into_iter().map(|node| (node.id, node)).collect();
    let all = |nodes: &BTreeMap<NodeId, Arc<TestNode>>| nodes.values().cloned().collect::<Vec<_>>();
    create(&leader(&all(&nodes)).0, "orders");
    *site.network.faults.lock() = Some(Random::new(seed ^ 1));
    let mut ledger = Ledger::default();
    for _ in 0..steps {
        match random.below(10) {
            // A node ends, and perhaps another one as well; both come back later.
            0 => {
                let id = 1 + random.below(3);
                if let Some(node) = nodes.remove(&id) {
                    node.stop();
                }
            }
            1 | 2 => {
                if let Some(id) = (1..=3).find(|id| !nodes.contains_key(id)) {
                    nodes.insert(id, site.start(id));
                }
            }
            3 => {
                let (from, to) = (1 + random.below(3), 1 + random.below(3));
                site.network.cuts.lock().insert((from, to));
            }
            4 => site.network.heal(),
            5 => {
                let to = 1 + random.below(3);
                for node in nodes.values() {
                    // Refused by all that do not lead.
                    node.shard.transfer(to).map_or_else(drop, drop);
                }
            }
            _ => {
                // A leader that is cut off does not know it yet: some of these records are never committed.
                let leads = nodes.values().find(|node| node.shard.open(node.shard.stance().term)).cloned();
                if let Some(leads) = leads {
                    write(&leads, &mut ledger, random.below(30) + 1);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(random.below(40)));
    }
    *site.network.faults.lock() = None;
    site.network.heal();
    for id in 1..=3 {
        nodes.entry(id).or_insert_with(|| site.start(id));
    }
    let nodes = all(&nodes);
    let (leads, _) = leader(&nodes);
    // What was not committed before is decided now.
    write(&leads, &mut ledger, 1);
    let last = ledger.acknowledged.last().cloned().expect("one at least");
    for node in &nodes {
        let until = Instant::now() + PATIENCE / 2;
        eventually("a node does not catch up", || {
            assert!(Instant::now() < until, "node {} does not catch up, seed {seed}:\n{}", node.id, shown(&nodes));
            values(node, "orders", 0).contains(&last).then_some(())
        });
    }
    let found = values(&nodes[0], "orders", 0);
    for node in &nodes[1..] {
        assert_eq!(values(node, "orders", 0), found, "nodes differ, seed {seed}");
    }
    let mut at = 0;
    for value in &ledger.acknowledged {
        let position = found[at..].iter().position(|of| of == value);
        let position = position.unwrap_or_else(|| panic!("'{value}' is lost or out of order, seed {seed}"));
        at += position + 1;
    }
    let unique: BTreeSet<_> = found.iter().collect();
    assert_eq!(unique.len(), found.len(), "a record is there twice, seed {seed}");
}

fn shown(nodes: &[Arc<TestNode>]) -> String {
    let row = |node: &Arc<TestNode>| {
        let (status, peers) = (node.shard.status(), node.shard.peers());
        let count = values(node, "orders", 0).len();
        format!(
            "{}: {count} records, {status:?} {:?} {peers:?} {:?}\n",
            node.id,
            node.shard.stance(),
            node.shard.failed()
        )
    };
    nodes.iter().map(row).collect()
}

/// Appends records and waits for their outcome.
fn write(node: &TestNode, ledger: &mut Ledger, count: u64) {
    let Some(topic) = topic(node, "orders") else { return };
    let cell = Cell::new(topic.partitions[0].clone());
    let mut appended = Vec::new();
    for _ in 0..count {
        ledger.next += 1;
        let value = ledger.next.to_string();
        match cell.append(&value) {
            Ok(end) => appended.push((value, end)),
            Err(_) => break,
        }
    }
    for (value, end) in appended {
        if cell.wait(end).is_err() {
            return;
        }
        ledger.acknowledged.push(value);
    }
}

#[test]
fn nothing_acknowledged_is_lost_whatever_happens() {
    (1..=3).for_each(|seed| live(seed, 60));
}

/// Lives of many seeds: `SEEDS=100 cargo test -p thalweg-cluster -- --ignored`.
#[test]
#[ignore = "takes minutes; CI runs three seeds"]
fn nothing_acknowledged_is_lost_in_many_lives() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let from = number("FROM", 1000);
    for seed in from..from + number("SEEDS", 50) {
        eprintln!("seed {seed}");
        live(seed, 150);
    }
}
