//! Brokers of several leaderships over one open store, as a node of a cluster has them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use broker::{
    Broker, Door, FetchFrom, FetchLimits, Isolation, Leadership, LockedCache, LoginSource, NewEntryId, NewQueue,
    NodeInfo, Nodes, OffsetCommit, OutMessage, Receive, Received, Removing, Settings, Wakes,
};
use engine::cache::record::SWAP_FORMAT;
use engine::cache::{CacheSettings, Condition, Eviction, Ttl};
use engine::cluster::{ClusterStatus, JoinToken, NodeStatus};
use engine::groups::{Committer, GroupName};
use engine::queue::QueueName;
use engine::record::Producer;
use engine::security::{Credential, Mechanism, UserName};
use engine::streams::EntryId;
use engine::transactions::{ProducerEpoch, TransactionalId};
use engine::{
    Acks, BatchBuilder, Codec, Decision, DraftBatch, Error, ErrorKind, Offset, Result, Storage, TopicName,
    TopicPartition, TopicSettings,
};
use storage::{RealDisk, Store, StoreSettings, StoredTopic};
use tokio::runtime::Handle;

use crate::support::within;

/// Number of the founder's data directory in these tests; the store has another.
const FOUNDER: u64 = 0x1234_5678;
const TIMEOUT_MS: u32 = 60_000;
const LEASE_MS: u64 = 300;

/// Three nodes, of which the one in `leader` leads. All of them read this format of the log.
#[derive(Default)]
struct Three {
    leader: AtomicU64,
    format: AtomicU32,
}

impl Nodes for Three {
    fn nodes(&self) -> Vec<NodeInfo> {
        let node = |id: u64| NodeInfo {
            id,
            doors: vec![(Door::Native, format!("n{id}.example"), 7400)],
            is_alive: true,
            is_voter: true,
            ..NodeInfo::default()
        };
        (1..=3).map(node).collect()
    }

    fn leader(&self) -> Option<u64> {
        Some(self.leader.load(Ordering::Relaxed)).filter(|leader| *leader > 0)
    }

    fn transfer(&self, to: u64) -> Result<()> {
        self.leader.store(to, Ordering::Relaxed);
        Ok(())
    }

    fn status(&self) -> Result<ClusterStatus> {
        let node = |of: NodeInfo| NodeStatus {
            node: of.id,
            is_leader: Some(of.id) == self.leader(),
            is_voter: of.is_voter,
            is_alive: of.is_alive,
            silent_ms: Some(0),
            ..NodeStatus::default()
        };
        let nodes = self.nodes().into_iter().map(node).collect();
        let format = self.format.load(Ordering::Relaxed);
        Ok(ClusterStatus { leader: self.leader(), nodes, format, ..ClusterStatus::default() })
    }

    fn remove(&self, node: u64) -> Removing<'_> {
        Box::pin(async move { self.status()?.check_removal(node) })
    }

    fn issue_token(&self, minutes: u32) -> Result<JoinToken> {
        Ok(JoinToken::new(format!("token for {minutes} minutes")))
    }
}

fn open(dir: &Path) -> (Arc<Store>, Vec<StoredTopic>) {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = 1 << 20;
    Store::open(Arc::new(RealDisk), dir, settings, broker::Clock::SYSTEM.read(), &mut |_| {}).expect("opened")
}

/// Starts and restores the broker of a term over an open store.
async fn lead(store: &Arc<Store>, term: u64, nodes: &Arc<Three>) -> Arc<Broker> {
    let leadership = Leadership { term, node: 1, ids: FOUNDER, nodes: nodes.clone() };
    let stored = (store.clone(), store.topics());
    let broker = Broker::start_leading(Settings::default(), &[Handle::current()], stored, leadership).expect("started");
    broker.security.open().await.expect("restored");
    broker.caches.restore().await.expect("restored");
    broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
    broker
}

/// Waits until no task holds a broker that was dropped.
async fn wait_until_gone(broker: Arc<Broker>) {
    let core = Arc::downgrade(&**broker);
    let weak = Arc::downgrade(&broker);
    drop(broker);
    assert_eq!(weak.strong_count(), 0, "no view holds its broker");
    let gone = async |core: Weak<broker::Core>| {
        while core.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the end of the core", gone(core)).await;
}

fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: TopicName::parse(topic).expect("a name"), partition }
}

fn draft(producer: Option<Producer>, values: &[&str]) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a small record");
    }
    builder.finish_with(Codec::None, producer).expect("records")
}

async fn publish(broker: &Broker, batch: DraftBatch) -> Result<broker::Published> {
    within("a publish", broker.publish("t", Some(0), Acks::Committed, batch, &mut Wakes::default())).await
}

/// Returns the committed values of a partition, and the leader epochs of their batches.
async fn read(broker: &Broker, partition: u32) -> (Vec<String>, Vec<i32>) {
    let limits =
        FetchLimits { bytes_min: 0, bytes_max: 1 << 20, wait: Duration::ZERO, isolation: Isolation::Committed };
    let from = FetchFrom { topic: "t", partition, offset: 0, bytes_max: 1 << 20 };
    let fetched = broker.fetch_many(&[from], limits).await.pop().expect("one").expect("readable");
    let aborted: HashSet<i64> = fetched.aborted.iter().map(|aborted| aborted.producer_id).collect();
    let mut values = Vec::new();
    let mut epochs = Vec::new();
    for batch in &fetched.batches {
        let is_void = batch.producer().is_some_and(|producer| aborted.contains(&producer.id));
        if batch.is_control() || is_void {
            continue;
        }
        for view in &batch.records().expect("readable") {
            values.push(String::from_utf8_lossy(view.expect("readable").value.unwrap_or_default()).into_owned());
            epochs.push(batch.leader_epoch());
        }
    }
    (values, epochs)
}

async fn send_in(broker: &Broker, producer: ProducerEpoch, value: &str) -> Result<broker::Published> {
    let producer = Producer { id: producer.id, epoch: producer.epoch, sequence: 0 };
    let mut batch = draft(Some(producer), &[value]);
    batch.set_transactional();
    within("a publish", broker.publish("t", Some(1), Acks::Committed, batch, &mut Wakes::default())).await
}

async fn receive(broker: &Arc<Broker>, wait: Duration) -> Vec<Received> {
    let wanted = Receive { max: 10, lease_ms: Some(LEASE_MS), wait, ..Receive::default() };
    within("a receive", broker.queues.receive("jobs", &wanted)).await.expect("received")
}

async fn committed(broker: &Broker, group: &GroupName) -> Option<Offset> {
    let offsets = broker.groups.committed_offsets(group, None).await.expect("readable");
    offsets.first().map(|(_, committed)| committed.offset)
}

/// State that the first leadership leaves.
struct Left {
    producer: (i64, i16),
    done: TransactionalId,
    open: TransactionalId,
    of_open: ProducerEpoch,
    group: GroupName,
    entry: EntryId,
    user: UserName,
    cluster_id: [u8; 16],
    topic: engine::TopicId,
}

/// Changes every view.
async fn fill(broker: &Arc<Broker>) -> Left {
    let settings = TopicSettings { partitions: 2, ..TopicSettings::of_broker() };
    let topic = broker.create_topic("t", settings).await.expect("created").id;
    let producer = broker.init_producer().await.expect("an identity");
    let numbered = Producer { id: producer.0, epoch: producer.1, sequence: 0 };
    publish(broker, draft(Some(numbered), &["a", "b"])).await.expect("published");

    let [done, open] = ["done", "open"].map(|id| TransactionalId::parse(id).expect("an id"));
    let of_done = broker.transactions.init(&done, None, TIMEOUT_MS).await.expect("begun");
    broker.transactions.add_partitions(&done, of_done, &[at("t", 1)]).await.expect("added");
    send_in(broker, of_done, "of a committed transaction").await.expect("published");
    broker.transactions.end(&done, of_done, Decision::Commit).await.expect("committed");
    let of_open = broker.transactions.init(&open, None, TIMEOUT_MS).await.expect("begun");
    broker.transactions.add_partitions(&open, of_open, &[at("t", 1)]).await.expect("added");
    send_in(broker, of_open, "of an open transaction").await.expect("published");

    let group = GroupName::parse("readers").expect("a name");
    let offset = OffsetCommit { partition: at("t", 0), offset: 1, leader_epoch: -1, metadata: String::new() };
    broker.groups.commit_offsets(&group, &Committer::Outsider, vec![offset]).await.expect("committed");

    broker.queues.create(NewQueue::new(QueueName::parse("jobs").expect("a name"))).await.expect("created");
    let message = OutMessage { body: b"work", ..OutMessage::default() };
    broker.queues.send("jobs", &[message]).await.expect("sent").remove(0).expect("accepted");
    assert_eq!(receive(broker, Duration::ZERO).await.len(), 1);

    let durable = CacheSettings { bytes_max: None, eviction: Eviction::None, ttl_ms: None, is_durable: true };
    let cache = broker.caches.create("kept", durable).expect("created");
    cache.put(b"key", b"value", Ttl::Default, Condition::Always).expect("room");
    cache.settled().wait().await.expect("durable");

    broker.create_topic("stream", TopicSettings::of_broker()).await.expect("created");
    let stream = broker.streams.get("stream").expect("known").expect("there");
    let entry = stream.add(NewEntryId::Is(EntryId::new(7, 0)), None, Some(b"entry"), &[]).await.expect("added");

    let user = UserName::parse("ann").expect("a name");
    let credential = Credential::of_password(Mechanism::Sha256, "pencil", vec![5; 16], 4096).expect("a credential");
    broker.security.put_credentials(vec![(user.clone(), credential)]).await.expect("kept");
    let cluster_id = broker.cluster_id();
    Left { producer, done, open, of_open, group, entry, user, cluster_id, topic }
}

/// Checks that the broker has all that the first leadership left.
async fn check(broker: &Arc<Broker>, left: &Left, term: i32) {
    assert_eq!((broker.cluster_id(), broker.find_topic("t")), (left.cluster_id, Some((left.topic, 2))));
    // The numbers of producers continue: a batch that is sent again is a duplicate, and the next one is not.
    let (id, epoch) = left.producer;
    let again = publish(broker, draft(Some(Producer { id, epoch, sequence: 0 }), &["a", "b"])).await.expect("known");
    assert_eq!((again.is_duplicate, again.base_offset), (true, 0));
    let next = publish(broker, draft(Some(Producer { id, epoch, sequence: 2 }), &["c"])).await.expect("published");
    assert_eq!((next.is_duplicate, next.base_offset), (false, 2));
    assert_ne!(broker.init_producer().await.expect("an identity").0, id);
    let (values, epochs) = read(broker, 0).await;
    assert_eq!((values.join(" "), epochs), ("a b c".to_owned(), vec![3, 3, term]));

    // The open transaction goes on as after a restart: its program may end it.
    broker.transactions.end(&left.open, left.of_open, Decision::Abort).await.expect("aborted");
    assert_eq!(read(broker, 1).await.0, ["of a committed transaction"]);
    broker.transactions.init(&left.done, None, TIMEOUT_MS).await.expect("taken over");

    assert_eq!(committed(broker, &left.group).await, Some(1));

    // The lease of the old leadership ends in its time, then the message is delivered again.
    let messages = receive(broker, Duration::from_secs(20)).await;
    assert_eq!(messages.iter().map(|message| message.attempts).collect::<Vec<_>>(), [2]);
    let receipts: Vec<_> = messages.iter().map(|message| message.receipt).collect();
    for answer in broker.queues.ack("jobs", &receipts).await.expect("answered") {
        answer.expect("acknowledged");
    }

    let cache = broker.caches.find("kept").expect("there");
    assert_eq!(cache.get(b"key", |found| found.is_some()), Ok(true));

    let stream = broker.streams.get("stream").expect("known").expect("there");
    let locked = stream.lock().await.expect("locked");
    assert_eq!((locked.len(), locked.last()), (1, left.entry));
    drop(locked);

    let source = LoginSource { door: Door::Kafka, address: None };
    let identity = broker.security.log_in(left.user.clone(), "pencil".into(), source).await;
    assert_eq!(identity.expect("known").user(), &left.user);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_the_next_leadership_has_all_committed_state() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = open(dir.path());
    let nodes = Arc::new(Three::default());
    let broker = lead(&store, 3, &nodes).await;
    let left = fill(&broker).await;
    broker.stop().expect("stopped");
    wait_until_gone(broker).await;
    assert_eq!(store.broken(), None, "the store stays open");

    let broker = lead(&store, 5, &nodes).await;
    check(&broker, &left, 5).await;
    // A broker that is dropped without a stop leaves the store open, too.
    wait_until_gone(broker).await;
    let broker = lead(&store, 6, &nodes).await;
    assert_eq!(read(&broker, 0).await.0.join(" "), "a b c");
    wait_until_gone(broker).await;
    store.stop().expect("stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_leadership_has_ended_changes_nothing_more() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = open(dir.path());
    let nodes = Arc::new(Three::default());
    let broker = lead(&store, 3, &nodes).await;
    let left = fill(&broker).await;
    let memory = TopicSettings { storage: Storage::Memory, ..TopicSettings::of_broker() };
    broker.create_topic("memory", memory).await.expect("created");
    broker.stop().expect("stopped");

    let refused = publish(&broker, draft(None, &["late"])).await.expect_err("refused");
    let unknown = "node 1 no longer leads (term 3 ended), and the next leader is not known (not_leader)";
    assert_eq!(refused.to_string(), unknown);
    nodes.transfer(2).expect("begun");
    let is_refused = |error: Error| assert_eq!(error.kind, ErrorKind::NotLeader, "{error}");
    let refused = broker.create_topic("late", TopicSettings::of_broker()).await.expect_err("refused");
    let known = "node 1 no longer leads (term 3 ended): node 2 does; send the request to n2.example:7400 (not_leader)";
    assert_eq!(refused.to_string(), known);
    is_refused(broker.delete_topic("t").await.expect_err("refused"));
    is_refused(broker.grow_topic("t", 3).await.expect_err("refused"));
    is_refused(broker.delete_records("t", 0, 1).await.expect_err("refused"));
    let mut wakes = Wakes::default();
    let in_memory = broker.publish("memory", Some(0), Acks::Default, draft(None, &["late"]), &mut wakes).await;
    is_refused(in_memory.expect_err("refused"));
    let credential = Credential::of_password(Mechanism::Sha256, "late", vec![5; 16], 4096).expect("a credential");
    let user = UserName::parse("late").expect("a name");
    is_refused(broker.security.put_credentials(vec![(user, credential)]).await.expect_err("refused"));
    let offset = OffsetCommit { partition: at("t", 0), offset: 2, leader_epoch: -1, metadata: String::new() };
    let refused = broker.groups.commit_offsets(&left.group, &Committer::Outsider, vec![offset]).await;
    is_refused(refused.expect_err("refused").error);
    is_refused(broker.transactions.end(&left.open, left.of_open, Decision::Commit).await.expect_err("refused").error);
    broker.stop().expect("it has stopped before");

    // The next leadership of the same node begins while a late request still holds the old broker.
    let next = lead(&store, 4, &nodes).await;
    is_refused(publish(&broker, draft(None, &["late"])).await.expect_err("refused"));
    check(&next, &left, 4).await;
}

/// The clock of the second leader is 5 s behind that of the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_checks_what_operators_ask_of_its_cluster() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = open(dir.path());
    let nodes = Arc::new(Three::default());
    nodes.leader.store(1, Ordering::Relaxed);
    let broker = lead(&store, 3, &nodes).await;
    let status = broker.cluster().expect("a cluster");
    assert_eq!((status.leader, status.nodes.len()), (Some(1), 3));
    let kind = |refused: Result<()>| refused.expect_err("refused").kind;
    assert_eq!(kind(broker.transfer_leadership(9).await), ErrorKind::NotFound);
    assert_eq!(kind(broker.remove_node(9).await), ErrorKind::NotFound);
    assert_eq!(kind(broker.issue_join_token(0).map(drop)), ErrorKind::Invalid);
    assert_eq!(broker.issue_join_token(5).expect("a token").reveal(), "token for 5 minutes");
    broker.remove_node(3).await.expect("a majority stays");
    broker.transfer_leadership(1).await.expect("it leads already");
    broker.transfer_leadership(2).await.expect("passed");
    assert_eq!(nodes.leader(), Some(2));
    broker.stop().expect("stopped");
    assert_eq!(kind(broker.cluster().map(drop)), ErrorKind::NotLeader);

    let alone = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
    let error = alone.cluster().expect_err("it is alone");
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("thalweg cluster init"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn arrival_times_do_not_step_back_after_a_change_of_the_leader() {
    fn behind() -> u64 {
        broker::Clock::SYSTEM.now_ms() - 5000
    }
    fn far_behind() -> u64 {
        broker::Clock::SYSTEM.now_ms() - 500_000
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = open(dir.path());
    let nodes = Arc::new(Three::default());
    let broker = lead(&store, 3, &nodes).await;
    let settings = TopicSettings { arrival_times: true, ..TopicSettings::of_broker() };
    broker.create_topic("t", settings).await.expect("created");
    let first = publish(&broker, draft(None, &["a"])).await.expect("published").arrival_ms.expect("a time");
    wait_until_gone(broker).await;

    let start = async |term, clock: fn() -> u64| {
        let settings = Settings { clock: broker::Clock::reading(clock), ..Settings::default() };
        let leadership = Leadership { term, node: 1, ids: FOUNDER, nodes: nodes.clone() };
        let stored = (store.clone(), store.topics());
        let broker = Broker::start_leading(settings, &[Handle::current()], stored, leadership).expect("started");
        broker.restore_arrivals().await;
        broker
    };
    let broker = start(4, behind).await;
    let second = publish(&broker, draft(None, &["b"])).await.expect("published").arrival_ms;
    assert_eq!(second, Some(first));
    let limits =
        FetchLimits { bytes_min: 0, bytes_max: 1 << 20, wait: Duration::ZERO, isolation: Isolation::Committed };
    let from = FetchFrom { topic: "t", partition: 0, offset: 1, bytes_max: 1 << 20 };
    let fetched = broker.fetch_many(&[from], limits).await.pop().expect("one").expect("readable");
    assert_eq!(fetched.batches[0].arrival_ms(), Some(first), "the answer is what readers see");
    wait_until_gone(broker).await;
    // A clock that is minutes apart is wrong, and times follow the leader's.
    let broker = start(5, far_behind).await;
    let third = publish(&broker, draft(None, &["c"])).await.expect("published").arrival_ms.expect("a time");
    assert!(third < first - 100_000, "{third} {first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_no_topics_in_sqlite() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = open(dir.path());
    let nodes = Arc::new(Three::default());
    let sqlite = TopicSettings { storage: Storage::Sqlite, ..TopicSettings::of_broker() };
    let broker = lead(&store, 1, &nodes).await;
    let refused = broker.create_topic("table", sqlite).await.expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert!(refused.message.contains("storage disk"), "{refused}");
    wait_until_gone(broker).await;

    let alone = Broker::start_with(Settings::default(), &[Handle::current()], Some((store, Vec::new())));
    alone.expect("started").create_topic("table", sqlite).await.expect("created");
    // A sweep may hold the broker that was just dropped.
    let begin = std::time::Instant::now();
    let stored = loop {
        let opened = Store::open(
            Arc::new(RealDisk),
            dir.path(),
            StoreSettings::default(),
            broker::Clock::SYSTEM.read(),
            &mut |_| {},
        );
        match opened {
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < Duration::from_secs(30) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            opened => break opened.expect("opened"),
        }
    };
    let leadership = Leadership { term: 1, node: 1, ids: FOUNDER, nodes };
    let refused = Broker::start_leading(Settings::default(), &[Handle::current()], stored, leadership);
    let refused = refused.err().expect("refused");
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert!(refused.message.contains("(table)") && refused.message.contains("storage disk"), "{refused}");
}

/// A node of an earlier version could not read the exchange in the log when it leads.
#[tokio::test(flavor = "multi_thread")]
async fn durable_caches_exchange_their_contents_once_all_nodes_can_read_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = open(dir.path());
    let nodes = Arc::new(Three::default());
    nodes.format.store(SWAP_FORMAT - 1, Ordering::Relaxed);
    let broker = lead(&store, 1, &nodes).await;
    let swap = async |broker: &Broker, is_durable| {
        let settings = CacheSettings { is_durable, ..CacheSettings::default() };
        let caches = ["a", "b"].map(|name| {
            let name = format!("{name}-{is_durable}");
            broker.caches.create(&name, settings).expect("created")
        });
        caches[0].put(b"k", b"v", Ttl::Never, Condition::Always).expect("room");
        let mut locked: Vec<LockedCache<'_>> = caches.iter().map(|cache| cache.lock_all()).collect();
        let [one, other] = &mut locked[..] else { panic!("two") };
        one.swap(other)?;
        for finished in LockedCache::finish_all(locked) {
            finished.commit.wait().await.expect("durable");
        }
        Ok(())
    };
    let refused: Error = swap(&broker, true).await.expect_err("a node cannot read it");
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert!(refused.message.contains("format 2") && refused.message.contains("upgrade all nodes"), "{refused}");
    swap(&broker, false).await.expect("it is in no log");
    nodes.format.store(SWAP_FORMAT, Ordering::Relaxed);
    swap(&broker, true).await.expect("all nodes can read it");
    wait_until_gone(broker).await;
    let broker = lead(&store, 2, &nodes).await;
    let has = |name: &str| broker.caches.find(name).expect("it exists").peek(b"k", |found| found.is_some());
    assert_eq!((has("a-true"), has("b-true")), (Ok(false), Ok(true)));
    wait_until_gone(broker).await;
}
