//! Tests of queues that have to examine each record: with a filter or a delay, over batches of many records.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::queue::{Filter, QueueName, QueueSettings};
use engine::{Acks, BatchBuilder, TopicName, TopicSettings};
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::{Settings, Wakes};

/// More records than are examined on arrival, and than one slice has.
const RECORDS: usize = 10_000;

async fn with_queue(settings: QueueSettings) -> Arc<Broker> {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
    broker.create_topic("news", TopicSettings::default()).await.expect("created");
    let topic = Some(TopicName::parse("news").expect("a name"));
    let name = QueueName::parse("some").expect("a name");
    broker.queues.create(NewQueue { topic, settings, ..NewQueue::new(name) }).await.expect("created");
    broker
}

/// Publishes a batch, in which the attribute `kind` of the records is even and odd in turn.
async fn publish(broker: &Broker, records: usize) {
    let mut batch = BatchBuilder::new();
    for number in 0..records {
        let kind: &[u8] = if number % 2 == 0 { b"even" } else { b"odd" };
        let body = number.to_string();
        batch.push(broker.now_ms() as i64, None, Some(body.as_bytes()), &[(b"kind", Some(kind))]).expect("room");
    }
    let batch = batch.finish().expect("a batch");
    broker.publish("news", None, Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
}

async fn receive(broker: &Arc<Broker>) -> Vec<u64> {
    let receive = Receive { max: 1000, lease_ms: Some(60_000), ..Receive::default() };
    let received = broker.queues.receive("some", &receive).await.expect("received");
    let number = |message: &crate::Received| std::str::from_utf8(message.message.body()).ok()?.parse().ok();
    received.iter().map(|message| number(message).expect("a number")).collect()
}

fn is_unseen(broker: &Broker) -> bool {
    broker.queues.by_name.read()["some"].has_unseen.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_long_batch_is_examined_after_its_arrival_and_nothing_is_missed() {
    let filter = Some("attributes.kind = \"odd\"".parse::<Filter>().expect("a filter"));
    let broker = with_queue(QueueSettings { filter, ..QueueSettings::default() }).await;
    publish(&broker, 10).await;
    assert!(!is_unseen(&broker), "a short batch is examined immediately");
    assert_eq!(receive(&broker).await, [1, 3, 5, 7, 9]);
    publish(&broker, RECORDS).await;
    publish(&broker, 10).await;
    assert!(is_unseen(&broker));
    let peeked = broker.queues.peek("some", None, 100).await.expect("peeked");
    assert_eq!(peeked.len(), 100);
    assert!(peeked.iter().all(|peeked| peeked.message.header("kind") == Some("odd")));
    let all: Vec<u64> = (0..RECORDS as u64).chain(0..10).filter(|number| number % 2 == 1).collect();
    let mut received = Vec::new();
    while received.len() < all.len() {
        received.extend(receive(&broker).await);
    }
    assert_eq!(received, all);
    assert_eq!(receive(&broker).await, [0; 0]);
}

#[tokio::test]
async fn the_messages_of_a_long_batch_are_delayed() {
    let broker = with_queue(QueueSettings { delay_ms: 60_000, ..QueueSettings::default() }).await;
    publish(&broker, RECORDS).await;
    assert!(is_unseen(&broker));
    assert_eq!(receive(&broker).await, [0; 0]);
    let counts = broker.queues.counts("some").await.expect("counted");
    assert_eq!((counts.visible, counts.in_flight, counts.delayed), (0, 0, RECORDS as u64));
}

/// Each message of a large batch is found and moved once, whatever the order in which they are returned.
#[tokio::test]
async fn messages_of_a_long_batch_move_to_the_dead_letters() {
    let dead_letter = Some(TopicName::parse("dead").expect("a name"));
    let settings = QueueSettings { attempts_max: 1, dead_letter, ..QueueSettings::default() };
    let broker = with_queue(settings).await;
    let name = QueueName::parse("dead").expect("a name");
    broker.queues.create(NewQueue::new(name)).await.expect("created");
    publish(&broker, 1000).await;
    let receive = Receive { max: 1000, lease_ms: Some(60_000), ..Receive::default() };
    let mut held = broker.queues.receive("some", &receive).await.expect("received");
    held.reverse();
    let receipts: Vec<_> = held.iter().map(|message| (message.receipt, Some(0))).collect();
    for answer in broker.queues.nack("some", &receipts).await.expect("answered") {
        answer.expect("returned");
    }
    let mut numbers = Vec::new();
    while numbers.len() < 1000 {
        let moved = broker.queues.receive("dead", &receive).await.expect("received");
        assert!(!moved.is_empty() || numbers.len() < 1000);
        numbers.extend(moved.iter().map(|message| message.message.body().to_vec()));
        tokio::task::yield_now().await;
    }
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000);
}
