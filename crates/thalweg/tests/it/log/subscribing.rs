//! Starts of subscriptions, patterns, and queue groups.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use client::{Client, ErrorKind, Event, Missing, Record, Start, Subscription, TopicSettings};
use engine::partitioner;

use crate::support::reading::{Contiguous, batch_values, next_event, publish, subscribe, take, text, values};
use crate::support::server::{Server, within};

/// A subscription starts live, with the oldest record, at an offset (even within a batch) or at a time.
#[tokio::test]
async fn starts() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        let topic = &format!("starts-{scheme}");
        let publisher = within("publisher", client.publisher(topic).open()).await.expect("open");
        let at = |i: i64| Record { timestamp_ms: 1_000 + i, ..Record::new(i.to_string()) };
        let batch: Vec<Record> = (0..5).map(at).collect();
        within("publish", publisher.publish_batch(&batch)).await.expect("published");
        for i in 5..10 {
            within("publish", publisher.publish(&at(i))).await.expect("published");
        }
        let first = async |start: Start| {
            let mut subscription = subscribe(&client, topic, start).await;
            let source = subscription.sources()[0].clone();
            assert_eq!(source.end, 10);
            (source.start, values(&mut subscription, 1).await.remove(0))
        };
        assert_eq!(first(Start::Earliest).await, (0, "0".to_owned()));
        assert_eq!(first(Start::Offset(3)).await, (3, "3".to_owned()), "the batch begins before it");
        assert_eq!(first(Start::Offset(7)).await, (7, "7".to_owned()));
        assert_eq!(first(Start::Time(1_007)).await, (7, "7".to_owned()));
        assert_eq!(first(Start::Time(0)).await, (0, "0".to_owned()));
        assert_eq!(first(Start::Offsets(vec![(0, 9)])).await, (9, "9".to_owned()));
        let mut live = subscribe(&client, topic, Start::Live).await;
        let mut future = subscribe(&client, topic, Start::Time(i64::MAX)).await;
        let mut beyond = subscribe(&client, topic, Start::Offset(1_000)).await;
        publish(&client, topic, ["new"]).await;
        for subscription in [&mut live, &mut future, &mut beyond] {
            assert_eq!(values(subscription, 1).await, ["new"], "nothing older comes");
        }
    }
}

/// A key is assigned to the partition of Kafka's murmur2, and its records keep their order.
#[tokio::test]
async fn keys_choose_partitions_and_keep_their_order() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 7, ..TopicSettings::default() };
    within("create", client.create_topic("keyed", settings)).await.expect("created");
    let mut subscription = subscribe(&client, "keyed", Start::Live).await;
    let publisher = within("publisher", client.publisher("keyed").open()).await.expect("open");
    let keys = 40;
    let rounds = 25;
    for i in 0..keys * rounds {
        let record = Record::new(i.to_string()).with_key(format!("key-{}", i % keys));
        within("send", publisher.send(&record)).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("acknowledged");
    let mut by_key: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for message in take(&mut subscription, keys * rounds).await {
        let key = message.record.key.clone().expect("a key");
        assert_eq!(message.partition, partitioner::for_key(&key, 7), "{key:?}");
        by_key.entry(text(&key)).or_default().push(text(message.record.value()).parse().expect("a number"));
    }
    assert_eq!(by_key.len(), keys);
    for (key, sequence) in by_key {
        assert_eq!(sequence.len(), rounds, "{key}");
        assert!(sequence.is_sorted(), "{key}: {sequence:?}");
    }
}

/// Records without a key are spread over all partitions, and a single partition can be read.
#[tokio::test]
async fn one_partition_can_be_read_and_written_alone() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
    within("create", client.create_topic("spread", settings)).await.expect("created");
    let open = client.subscribe("spread").partition(Some(2)).open();
    let mut only = within("subscribe", open).await.expect("a subscription");
    assert_eq!(only.sources().len(), 1);
    for partition in [0, 2, 1, 2] {
        let publisher = client.publisher("spread").partition(Some(partition)).open();
        let publisher = within("publisher", publisher).await.expect("open");
        let record = Record::new(partition.to_string()).with_key("same key");
        let published = within("publish", publisher.publish(&record)).await.expect("published").expect("acknowledged");
        assert_eq!(published.partition, partition, "a partition that is named wins over the key");
    }
    assert_eq!(values(&mut only, 2).await, ["2", "2"]);
    let open = client.subscribe("spread").partition(Some(3)).open();
    assert_eq!(within("subscribe", open).await.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
    for i in 0..9 {
        within("publish", client.publish("spread", Record::new(i.to_string()))).await.expect("published");
    }
    let info = within("describe", client.describe_topic("spread")).await.expect("a topic");
    assert!(info.partitions.iter().all(|p| p.end >= 3), "batches without a partition take turns: {info:?}");
}

/// A pattern receives the records of matching topics, including later ones, with the name of their topic.
#[tokio::test]
async fn patterns_match_topics_of_today_and_tomorrow() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        let name = |rest: &str| format!("{scheme}.{rest}");
        publish(&client, &name("orders.eu"), ["before"]).await;
        let mut one = subscribe(&client, &name("orders.*"), Start::Live).await;
        let mut all = subscribe(&client, &name(">"), Start::Live).await;
        assert_eq!(one.sources().len(), 1);
        for topic in ["orders.eu", "orders.us", "orders.us.west", "orders", "bills"] {
            publish(&client, &name(topic), [topic]).await;
        }
        publish(&client, "elsewhere", ["not for them"]).await;
        publish(&client, &name("orders.eu"), ["end"]).await;
        let got = async |subscription: &mut Subscription, count: usize| {
            let messages = take(subscription, count).await;
            messages.iter().map(|m| (m.topic.to_string(), text(m.record.value()))).collect::<Vec<_>>()
        };
        let expected = |topics: &[&str]| -> Vec<(String, String)> {
            let mut expected: Vec<_> = topics.iter().map(|topic| (name(topic), (*topic).to_owned())).collect();
            expected.push((name("orders.eu"), "end".to_owned()));
            expected
        };
        let mut got_one = got(&mut one, 3).await;
        let mut got_all = got(&mut all, 6).await;
        let mut wanted_one = expected(&["orders.eu", "orders.us"]);
        let mut wanted_all = expected(&["orders.eu", "orders.us", "orders.us.west", "orders", "bills"]);
        for list in [&mut got_one, &mut got_all, &mut wanted_one, &mut wanted_all] {
            list.sort();
        }
        assert_eq!(got_one, wanted_one);
        assert_eq!(got_all, wanted_all);
        let mut history = subscribe(&client, &name(">"), Start::Earliest).await;
        let mut got_history = got(&mut history, 7).await;
        got_history.sort();
        let mut wanted = wanted_all.clone();
        wanted.push((name("orders.eu"), "before".to_owned()));
        wanted.sort();
        assert_eq!(got_history, wanted, "all that is there, of each topic");
        publish(&client, &name("bills"), ["later"]).await;
        assert_eq!(got(&mut history, 1).await, [(name("bills"), "later".to_owned())], "and what follows");
        let refused = client.subscribe(&name(">")).start(Start::Offset(1)).open();
        assert_eq!(within("subscribe", refused).await.map(drop).map_err(|e| e.kind), Err(ErrorKind::Invalid));
    }
}

/// The members of a queue group share a topic: each record is delivered to exactly one of them; each group and each
/// plain subscriber receives all records.
#[tokio::test]
async fn queue_groups_share_without_loss_or_duplicate() {
    let server = Server::start();
    let tcp = server.client("tcp").await;
    let quic = server.client("quic").await;
    let join = async |client: &Client, group: &str| {
        within("subscribe", client.subscribe("jobs").group(group).missing(Missing::Create).open())
            .await
            .expect("a subscription")
    };
    let mut workers = vec![join(&tcp, "a").await, join(&quic, "a").await, join(&tcp, "a").await];
    let mut other = join(&tcp, "b").await;
    let mut plain = subscribe(&quic, "jobs", Start::Live).await;
    let count = 300;
    for i in 0..count {
        let published = within("publish", tcp.publish("jobs", Record::new(i.to_string()))).await.expect("published");
        assert_eq!(published.receivers, 3, "two groups and a plain subscriber");
    }
    let wanted: HashSet<String> = (0..count).map(|i| i.to_string()).collect();
    for subscription in [&mut other, &mut plain] {
        assert_eq!(values(subscription, count).await.into_iter().collect::<HashSet<_>>(), wanted);
    }
    // All members have received everything before the final records, and each receives one of those.
    let mut shared = Vec::new();
    for _ in 0..workers.len() {
        publish(&tcp, "jobs", ["end"]).await;
    }
    for worker in &mut workers {
        let before = shared.len();
        loop {
            let value = values(worker, 1).await.remove(0);
            if value == "end" {
                break;
            }
            shared.push(value);
        }
        assert!(shared.len() > before, "every member has a share");
    }
    assert_eq!(shared.len(), count);
    assert_eq!(shared.into_iter().collect::<HashSet<_>>(), wanted);
}

/// A subscriber that joins under load receives each record exactly once from its start, from history or live.
#[tokio::test]
async fn joining_under_load_loses_nothing_and_sees_nothing_twice() {
    let server = Server::with(&["retention_bytes=0"]);
    let clients = [server.client("tcp").await, server.client("quic").await];
    let is_over = Arc::new(AtomicBool::new(false));
    let publisher = within("publisher", clients[0].publisher("load").open()).await.expect("open");
    within("publish", publisher.publish(&Record::new("0"))).await.expect("published");
    let load = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            let mut count = 1u64;
            while !is_over.load(Ordering::Relaxed) {
                within("send", publisher.send(&Record::new(count.to_string()))).await.expect("sent");
                count += 1;
                tokio::task::yield_now().await;
            }
            within("flush", publisher.flush()).await.expect("acknowledged");
            count
        }
    });
    let mut subscriptions = Vec::new();
    for i in 0..24 {
        let start = if i % 2 == 0 { Start::Earliest } else { Start::Live };
        subscriptions.push((i, subscribe(&clients[i / 2 % 2], "load", start).await));
    }
    is_over.store(true, Ordering::Relaxed);
    let count = within("the publisher", load).await.expect("no panic");
    for (i, mut subscription) in subscriptions {
        let begin = subscription.sources()[0].start;
        assert!(begin == 0 || i % 2 == 1, "earliest is the first");
        let mut follow = Contiguous::starting_at(0, begin);
        for expected in begin..count {
            let message = within("a record", subscription.next()).await.expect("a record");
            follow.see(&message);
            assert_eq!(text(message.record.value()), expected.to_string());
        }
    }
}

/// Retention by bytes removes the oldest batches; a subscriber that requests them receives a gap.
#[tokio::test]
async fn retention_by_bytes_tells_a_gap() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = TopicSettings { retention_bytes: 4_096, ..TopicSettings::default() };
    within("create", client.create_topic("short", settings)).await.expect("created");
    publish(&client, "short", (0..100).map(|i| format!("{i:0>400}"))).await;
    let info = within("describe", client.describe_topic("short")).await.expect("a topic").partitions[0];
    assert!(info.start > 80 && info.end == 100 && info.bytes <= 4_096, "{info:?}");
    for start in [Start::Offset(0), Start::Offset(50)] {
        let asked = if start == Start::Offset(0) { 0 } else { 50 };
        let mut subscription = subscribe(&client, "short", start).await;
        match next_event(&mut subscription).await {
            Event::Gap { partition: 0, from, to, .. } => assert_eq!((from, to), (asked, info.start)),
            other => panic!("no gap but {other:?}"),
        }
        match next_event(&mut subscription).await {
            Event::Batch(batch) => assert_eq!(batch_values(&batch), [format!("{:0>400}", info.start)]),
            other => panic!("no records but {other:?}"),
        }
        assert_eq!(values(&mut subscription, (99 - info.start) as usize).await.len() as u64, 99 - info.start);
    }
    let mut earliest = subscribe(&client, "short", Start::Earliest).await;
    assert!(matches!(next_event(&mut earliest).await, Event::Batch(_)), "the oldest that is there needs no gap");
}
