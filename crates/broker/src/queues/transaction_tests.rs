//! Tests of queues over topics with transactions: Kafka's readers with `read_committed` receive no record of an open or
//! aborted transaction (KIP-98), and queues do the same.

use engine::queue::QueueDefinition;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::queue::{QueueName, QueueSettings};
use engine::transactions::{ProducerEpoch, TransactionalId};
use engine::{
    Acks, BatchBuilder, Codec, Decision, DraftBatch, Isolation, Producer, TopicName, TopicPartition, TopicSettings,
};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::view::Receipt;
use crate::view::Received;
use crate::{Settings, Wakes};

const TIMEOUT_MS: u32 = 600_000;

fn in_memory() -> Arc<Broker> {
    Broker::start(Settings::default(), &[Handle::current()]).expect("starts")
}

fn on_disk(dir: &Path) -> Arc<Broker> {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = 1 << 20;
    let opened =
        Store::open(Arc::new(RealDisk), dir, settings, crate::Clock::SYSTEM.read(), &mut |_| {}).expect("opens");
    Broker::start_with(Settings::default(), &[Handle::current()], Some(opened)).expect("starts")
}

/// Copies the directory in the state that a process leaves if it is killed now.
fn killed(dir: &Path) -> TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("a folder") {
            let entry = entry.expect("an entry");
            let to = to.join(entry.file_name());
            if entry.file_type().expect("its type").is_dir() {
                copy(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).expect("copied");
            }
        }
    }
    let left = TempDir::new().expect("a folder");
    copy(dir, left.path());
    left
}

async fn create(broker: &Broker, partitions: u32, compact: bool, settings: QueueSettings) {
    let of_topic = TopicSettings { partitions, compact, ..TopicSettings::of_broker() };
    broker.create_topic("t", of_topic).await.expect("created");
    add_queue(broker, "q", settings).await;
}

async fn add_queue(broker: &Broker, name: &str, settings: QueueSettings) {
    let name = QueueName::parse(name).expect("a name");
    let topic = Some(TopicName::parse("t").expect("a name"));
    broker.queues.create(NewQueue { topic, settings, ..NewQueue::new(name) }).await.expect("created");
}

/// Returns a batch of these values, each of which is also its key.
fn batch(values: &[&str], producer: Option<Producer>) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder
            .push(crate::Clock::SYSTEM.now_ms() as i64, Some(value.as_bytes()), Some(value.as_bytes()), &[])
            .expect("small");
    }
    let mut batch = builder.finish_with(Codec::None, producer).expect("records");
    if producer.is_some() {
        batch.set_transactional();
    }
    batch
}

async fn publish(broker: &Broker, partition: u32, values: &[&str]) {
    let batch = batch(values, None);
    broker.publish("t", Some(partition), Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
}

/// A client that writes transactions into partition 0.
struct Writer {
    id: TransactionalId,
    producer: ProducerEpoch,
    sequence: i32,
}

impl Writer {
    async fn new(broker: &Arc<Broker>, id: &str) -> Self {
        let id = TransactionalId::parse(id).expect("an id");
        let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
        Self { id, producer, sequence: 0 }
    }

    async fn send(&mut self, broker: &Arc<Broker>, values: &[&str]) {
        let at = TopicPartition { topic: TopicName::parse("t").expect("a name"), partition: 0 };
        broker.transactions.add_partitions(&self.id, self.producer, &[at]).await.expect("added");
        let producer = Producer { id: self.producer.id, epoch: self.producer.epoch, sequence: self.sequence };
        let batch = batch(values, Some(producer));
        broker.publish("t", Some(0), Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
        self.sequence += values.len() as i32;
    }

    async fn end(&self, broker: &Arc<Broker>, decision: Decision) {
        broker.transactions.end(&self.id, self.producer, decision).await.expect("ended");
    }
}

fn bodies(messages: &[Received]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.message.body()).into_owned()).collect()
}

/// Receives all available messages, and acknowledges them.
async fn drain(broker: &Arc<Broker>, queue: &str) -> Vec<String> {
    let received = broker.queues.receive(queue, &Receive { max: 100, ..Receive::default() }).await.expect("received");
    let receipts: Vec<Receipt> = received.iter().map(|message| message.receipt).collect();
    for answer in broker.queues.ack(queue, &receipts).await.expect("answered") {
        answer.expect("acknowledged");
    }
    bodies(&received)
}

async fn visible(broker: &Broker, queue: &str) -> u64 {
    broker.queues.counts(queue).await.expect("counted").visible
}

async fn peeked(broker: &Broker, queue: &str) -> Vec<String> {
    let peeked = broker.queues.peek(queue, None, 100).await.expect("shown");
    peeked.iter().map(|peeked| String::from_utf8_lossy(peeked.message.body()).into_owned()).collect()
}

async fn floor(broker: &Broker, queue: &str) -> u64 {
    let positions = broker.queues.positions(&QueueName::parse(queue).expect("a name")).await.expect("known");
    positions[0].start
}

async fn check_delivered(broker: &Arc<Broker>) {
    create(broker, 2, false, QueueSettings::default()).await;
    let mut aborting = Writer::new(broker, "a").await;
    let mut committing = Writer::new(broker, "b").await;
    publish(broker, 0, &["0"]).await;
    aborting.send(broker, &["void 1", "void 2"]).await;
    committing.send(broker, &["1", "2"]).await;
    publish(broker, 0, &["3"]).await;
    publish(broker, 1, &["other partition"]).await;
    assert_eq!(visible(broker, "q").await, 2);
    assert_eq!(peeked(broker, "q").await, ["0", "other partition"]);
    let mut found = drain(broker, "q").await;
    found.sort_unstable();
    assert_eq!(found, ["0", "other partition"], "what is open holds up its own partition only");
    assert_eq!(floor(broker, "q").await, 1);
    committing.end(broker, Decision::Commit).await;
    assert_eq!((visible(broker, "q").await, drain(broker, "q").await), (0, Vec::new()), "another is still open");
    aborting.end(broker, Decision::Abort).await;
    assert_eq!(visible(broker, "q").await, 3);
    assert_eq!(peeked(broker, "q").await, ["1", "2", "3"]);
    assert_eq!(drain(broker, "q").await, ["1", "2", "3"]);
    assert_eq!((visible(broker, "q").await, floor(broker, "q").await), (0, 8), "markers are done with");
    // No other record arrives: aborted records do not stop the queue.
    aborting.send(broker, &["void 3"]).await;
    aborting.end(broker, Decision::Abort).await;
    assert_eq!((visible(broker, "q").await, floor(broker, "q").await), (0, 10));
    publish(broker, 0, &["4"]).await;
    assert_eq!(drain(broker, "q").await, ["4"]);
    // Back over all records.
    broker.queues.seek("q", SeekTo::Earliest).await.expect("gone back");
    assert_eq!(visible(broker, "q").await, 6);
    let mut found = drain(broker, "q").await;
    found.sort_unstable();
    assert_eq!(found, ["0", "1", "2", "3", "4", "other partition"]);
}

#[tokio::test]
async fn a_queue_delivers_only_committed_messages_in_memory() {
    check_delivered(&in_memory()).await;
}

#[tokio::test]
async fn a_queue_delivers_only_committed_messages_on_disk() {
    let dir = TempDir::new().expect("a folder");
    check_delivered(&on_disk(dir.path())).await;
}

#[tokio::test]
async fn a_receiver_that_waits_gets_a_transaction_once_it_is_committed() {
    let broker = in_memory();
    create(&broker, 1, false, QueueSettings::default()).await;
    let mut writer = Writer::new(&broker, "a").await;
    let waiting = tokio::spawn({
        let broker = broker.clone();
        let wanted = Receive { max: 10, wait: Duration::from_secs(50), ..Receive::default() };
        async move { broker.queues.receive("q", &wanted).await.expect("received") }
    });
    writer.send(&broker, &["void"]).await;
    writer.end(&broker, Decision::Abort).await;
    writer.send(&broker, &["a"]).await;
    writer.end(&broker, Decision::Commit).await;
    assert_eq!(bodies(&waiting.await.expect("it ends")), ["a"]);
}

#[tokio::test]
async fn the_isolation_of_a_queue_can_be_changed_both_ways() {
    let broker = in_memory();
    create(&broker, 1, false, QueueSettings::default()).await;
    add_queue(&broker, "all", QueueSettings { isolation: Isolation::Uncommitted, ..QueueSettings::default() }).await;
    let mut writer = Writer::new(&broker, "a").await;
    writer.send(&broker, &["void"]).await;
    writer.end(&broker, Decision::Abort).await;
    writer.send(&broker, &["open"]).await;
    assert_eq!((visible(&broker, "all").await, visible(&broker, "q").await), (2, 0));
    assert_eq!(peeked(&broker, "all").await, ["void", "open"]);
    // The cursor has passed the aborted records in the meantime, and does not return to them.
    for (isolation, expected) in [(Isolation::Committed, 0), (Isolation::Uncommitted, 1)] {
        let alter = |definition: &mut QueueDefinition| {
            definition.settings.isolation = isolation;
            Ok(())
        };
        broker.queues.alter("all", alter).await.expect("altered");
        assert_eq!(visible(&broker, "all").await, expected, "{isolation:?}");
    }
    assert_eq!(drain(&broker, "all").await, ["open"]);
    assert_eq!((visible(&broker, "all").await, drain(&broker, "q").await), (0, Vec::new()));
}

#[tokio::test]
async fn a_restart_finds_committed_and_open_transactions() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker, 1, false, QueueSettings::default()).await;
    let mut writer = Writer::new(&broker, "a").await;
    let mut open = Writer::new(&broker, "b").await;
    writer.send(&broker, &["void 1"]).await;
    writer.end(&broker, Decision::Abort).await;
    writer.send(&broker, &["1"]).await;
    writer.end(&broker, Decision::Commit).await;
    open.send(&broker, &["open"]).await;
    writer.send(&broker, &["2"]).await;
    writer.end(&broker, Decision::Commit).await;
    for is_checkpointed in [false, true] {
        if is_checkpointed {
            broker.store().expect("a disk").checkpoint().expect("written");
        }
        let left = killed(dir.path());
        let again = on_disk(left.path());
        assert_eq!(visible(&again, "q").await, 1, "checkpoint: {is_checkpointed}");
        assert_eq!(drain(&again, "q").await, ["1"]);
        open.end(&again, Decision::Abort).await;
        assert_eq!(visible(&again, "q").await, 1);
        let after = killed(left.path());
        let again = on_disk(after.path());
        assert_eq!((visible(&again, "q").await, drain(&again, "q").await), (1, vec!["2".to_owned()]));
        assert_eq!((visible(&again, "q").await, floor(&again, "q").await), (0, 8));
    }
}

#[tokio::test]
async fn compacted_records_are_not_messages() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker, 1, true, QueueSettings::default()).await;
    let mut writer = Writer::new(&broker, "a").await;
    writer.send(&broker, &["k1", "k2", "void"]).await;
    writer.end(&broker, Decision::Abort).await;
    writer.send(&broker, &["k1", "k2"]).await;
    writer.end(&broker, Decision::Commit).await;
    publish(&broker, 0, &["k2", "k3"]).await;
    assert_eq!(visible(&broker, "q").await, 4);
    broker.store().expect("a disk").checkpoint().expect("written");
    let left = killed(dir.path());
    drop(broker);
    let broker = on_disk(left.path());
    let store = broker.store().expect("a disk");
    store.checkpoint().expect("written");
    store.compact().expect("compacted");
    store.checkpoint().expect("written");
    let after = killed(left.path());
    let again = on_disk(after.path());
    let found = drain(&again, "q").await;
    assert!(!found.contains(&"void".to_owned()), "{found:?}");
    assert!(["k1", "k2", "k3"].iter().all(|key| found.contains(&(*key).to_owned())), "{found:?}");
    assert_eq!((visible(&again, "q").await, drain(&again, "q").await), (0, Vec::new()));
}

#[tokio::test]
async fn aborted_records_take_no_room_in_a_queue_for_good() {
    let broker = in_memory();
    create(&broker, 1, false, QueueSettings { messages_max: 3, ..QueueSettings::default() }).await;
    let mut writer = Writer::new(&broker, "a").await;
    writer.send(&broker, &["void 1", "void 2", "void 3"]).await;
    let full = broker.publish("t", Some(0), Acks::Committed, batch(&["x"], None), &mut Wakes::default()).await;
    assert_eq!(full.expect_err("each may become a message").kind, engine::ErrorKind::Busy);
    writer.end(&broker, Decision::Abort).await;
    broker.queues.look_through_all().await;
    publish(&broker, 0, &["x"]).await;
    assert_eq!(drain(&broker, "q").await, ["x"]);
}
