//! Topics: created, listed, described, fetched from, deleted.

use std::time::Duration;

use client::{ClientSettings, ErrorKind, Event, Record, Start, Storage, TopicSettings};
use wire::{Request, Response};

use crate::support::proxy::Proxy;
use crate::support::raw::Raw;
use crate::support::reading::{next_event, publish, subscribe, take, values};
use crate::support::server::{PATIENCE, Server, connect, within};

/// Creating is idempotent for the same settings and refused for others; a description shows the effective settings.
#[tokio::test]
async fn create_and_describe() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let storage = Storage::Memory;
    let settings = TopicSettings { partitions: 4, retention_bytes: 1 << 20, storage, ..TopicSettings::default() };
    for _ in 0..2 {
        let info = within("create", client.create_topic("orders", settings)).await.expect("created");
        assert_eq!((info.topic.as_str(), info.settings, info.partitions.len()), ("orders", settings, 4));
    }
    let other = TopicSettings { partitions: 5, ..settings };
    let refused = within("create", client.create_topic("orders", other)).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::AlreadyExists));
    let long = "x".repeat(250);
    for (name, partitions) in
        [("", 1), ("a b", 1), ("a..b", 1), ("a*", 1), (long.as_str(), 1), ("many", 1025), ("none", 0)]
    {
        let settings = TopicSettings { partitions, ..settings };
        let refused = within("create", client.create_topic(name, settings)).await;
        assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::Invalid), "{name}");
    }
    let subscription = subscribe(&client, "orders", Start::Live).await;
    publish(&client, "orders", 0..8).await;
    let info = within("describe", client.describe_topic("orders")).await.expect("a topic");
    assert!(info.partitions.iter().all(|p| (p.start, p.end, p.subscribers) == (0, 2, 1) && p.bytes > 0), "{info:?}");
    drop(subscription);
    let missing = within("describe", client.describe_topic("missing")).await;
    assert_eq!(missing.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
}

/// Lists are paginated in the order of the names, without gaps or duplicates, and without inboxes.
#[tokio::test]
async fn lists_come_in_pages() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut names: Vec<String> = (0..25).map(|i| format!("topic-{i}")).collect();
    for name in &names {
        within("create", client.create_topic(name, TopicSettings::default())).await.expect("created");
    }
    let _inbox = subscribe(&client, "_inbox.mine", Start::Live).await;
    names.sort();
    let mut raw = Raw::open(server.address).await;
    for count_max in [1, 7, 24, 25, 1000] {
        let mut found: Vec<String> = Vec::new();
        loop {
            let after = found.last().cloned().unwrap_or_default();
            let Response::Topics { topics, is_last } = raw.call(&Request::TopicList { after, count_max }).await else {
                panic!("no list");
            };
            assert!(topics.len() <= count_max as usize);
            found.extend(topics.into_iter().map(|info| info.topic));
            if is_last {
                break;
            }
        }
        assert_eq!(found, names, "pages of {count_max}");
    }
    let listed = within("list", client.list_topics()).await.expect("topics");
    assert_eq!(listed.into_iter().map(|info| info.topic).collect::<Vec<_>>(), names);
}

/// A deleted topic ends its subscriptions and fetches; a subscription of a pattern continues, even with a later topic
/// of the same name.
#[tokio::test]
async fn deleting_a_topic_ends_its_subscriptions_and_fetches() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        let topic = format!("{scheme}.a");
        let sibling = format!("{scheme}.b");
        publish(&client, &topic, ["0"]).await;
        publish(&client, &sibling, ["0"]).await;
        let mut named = subscribe(&client, &topic, Start::Live).await;
        let mut pattern = subscribe(&client, &format!("{scheme}.*"), Start::Live).await;
        let mut raw = Raw::open(server.address).await;
        let fetch = Request::Fetch { topic: topic.clone(), partition: 0, offset: 1, bytes_max: 1, wait_ms: 60_000 };
        let fetch = raw.send(&fetch).await;
        raw.call(&Request::Ping).await;
        publish(&client, &topic, ["1"]).await;
        assert!(matches!(raw.answer(fetch).await, Response::Fetched { .. }));
        within("delete", client.delete_topic(&topic)).await.expect("deleted");
        assert_eq!(values(&mut named, 1).await, ["1"], "what was queued still comes");
        let ended = within("the end", named.next()).await;
        assert_eq!(ended.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
        let again = within("delete", client.delete_topic(&topic)).await;
        assert_eq!(again.map_err(|e| e.kind), Err(ErrorKind::NotFound));
        publish(&client, &sibling, ["2"]).await;
        publish(&client, &topic, ["3"]).await;
        let got = take(&mut pattern, 3).await;
        let got: Vec<_> = got.iter().map(|m| (m.topic.to_string(), m.record.offset)).collect();
        assert_eq!(got, [(topic.clone(), 1), (sibling, 1), (topic, 0)], "the new topic begins at offset 0");
    }
}

/// With `auto_create_topics = false` a topic has to be created before it is published or subscribed to.
#[tokio::test]
async fn topics_are_not_created_on_the_way_where_that_is_off() {
    let server = Server::with(&["auto_create_topics=false"]);
    let client = server.client("tcp").await;
    let refused = within("publish", client.publish("orders", Record::new("x"))).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
    let refused = within("subscribe", client.subscribe("orders").open()).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
    let bad = within("publish", client.publish("no name", Record::new("x"))).await;
    assert_eq!(bad.map(drop).map_err(|e| e.kind), Err(ErrorKind::Invalid));
    assert_eq!(within("list", client.list_topics()).await.expect("topics").len(), 0);
    let mut pattern = subscribe(&client, "orders.*", Start::Live).await;
    within("create", client.create_topic("orders.eu", TopicSettings::default())).await.expect("created");
    publish(&client, "orders.eu", ["x"]).await;
    assert_eq!(values(&mut pattern, 1).await, ["x"]);
    let _inboxes_need_no_creation = subscribe(&client, "_inbox.mine", Start::Live).await;
}

/// A fetch at the end of the log waits and is woken by a publish; without one it ends after its timeout.
#[tokio::test]
async fn a_fetch_waits_for_the_next_publish() {
    let server = Server::start();
    let client = server.client("tcp").await;
    publish(&client, "log", 0..3).await;
    let mut raw = Raw::open(server.address).await;
    let fetch =
        |offset, wait_ms| Request::Fetch { topic: "log".into(), partition: 0, offset, bytes_max: 1 << 20, wait_ms };
    let waiting = raw.send(&fetch(3, 60_000)).await;
    // Later requests are answered in the meantime.
    assert!(matches!(raw.call(&Request::Ping).await, Response::Pong));
    publish(&client, "log", [3]).await;
    let Response::Fetched { start, end, batches } = raw.answer(waiting).await else {
        panic!("no batches");
    };
    assert_eq!((start, end, batches.len(), batches[0].base_offset()), (0, 4, 1, 3));
    let none = within("fetch", client.fetch("log", 0, 4, Duration::from_millis(100))).await.expect("an empty answer");
    assert_eq!((none.0, none.1, none.2.len()), (0, 4, 0));
    let beyond = raw.call(&fetch(5, 60_000)).await;
    assert!(matches!(beyond, Response::Error(e) if e.kind == ErrorKind::OutOfRange));
    let missing = within("fetch", client.fetch("log", 1, 0, PATIENCE)).await;
    assert_eq!(missing.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
}

/// Retention by time alone empties a log, and a later subscriber receives a gap.
#[tokio::test]
async fn retention_by_time_empties_a_log() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = TopicSettings { retention_ms: 100, ..TopicSettings::default() };
    within("create", client.create_topic("brief", settings)).await.expect("created");
    publish(&client, "brief", 0..5).await;
    crate::support::server::until("the log is empty", async || {
        let info = within("describe", client.describe_topic("brief")).await.expect("a topic").partitions[0];
        assert_eq!(info.end, 5);
        (info.start, info.bytes) == (5, 0)
    })
    .await;
    let mut subscription = subscribe(&client, "brief", Start::Offset(2)).await;
    match next_event(&mut subscription).await {
        Event::Gap { from, to, .. } => assert_eq!((from, to), (2, 5)),
        other => panic!("no gap but {other:?}"),
    }
    publish(&client, "brief", [5]).await;
    assert_eq!(values(&mut subscription, 1).await, ["5"]);
}

/// An open publisher notices new partitions, by acknowledgements or by a request, and uses them; keys are assigned as
/// by any other client. Subscriptions over every transport receive the records.
#[tokio::test]
async fn publishers_and_subscriptions_that_are_open_follow_a_topic_that_grows() {
    let server = Server::start();
    let client = server.client("tcp").await;
    within("create", client.create_topic("t", TopicSettings::default())).await.expect("created");
    let mut readers =
        [subscribe(&client, "t", Start::Live).await, subscribe(&server.client("quic").await, "t", Start::Live).await];
    let publisher = within("publisher", client.publisher("t").open()).await.expect("open");
    within("publish", publisher.publish(&Record::new("before"))).await.expect("published");
    let info = within("grow", client.grow_topic("t", 8)).await.expect("grown");
    assert_eq!((info.settings.partitions, info.partitions.len()), (8, 8));
    // This publish reports the new partitions.
    within("publish", publisher.publish(&Record::new("tells"))).await.expect("published");
    let keys: Vec<String> = (0..64).map(|i| format!("key-{i}")).collect();
    for key in &keys {
        within("send", publisher.send(&Record::new(key.clone()).with_key(key.clone()))).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("flushed");
    for reader in &mut readers {
        let messages = take(reader, 66).await;
        let keyed: Vec<_> = messages.iter().filter(|message| message.record.key.is_some()).collect();
        assert_eq!(keyed.len(), 64);
        for message in keyed {
            let expected = engine::partitioner::for_key(message.record.key.as_deref().unwrap_or_default(), 8);
            assert_eq!(message.partition, expected, "{message:?}");
        }
    }
}

/// A subscription whose connection was broken while its topic grew receives all records of the new partitions.
#[tokio::test]
async fn a_subscription_that_was_away_while_its_topic_grew_misses_nothing() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
    within("create", client.create_topic("t", settings)).await.expect("created");
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let away = connect(&proxy.url(), ClientSettings::default()).await;
    let mut reader = subscribe(&away, "t", Start::Live).await;
    let publish_to = async |partition: u32, value: &str| {
        let publisher = client.publisher("t").partition(Some(partition)).open();
        let publisher = within("publisher", publisher).await.expect("open");
        within("publish", publisher.publish(&Record::new(value.to_owned()))).await.expect("published");
    };
    publish_to(0, "0").await;
    assert_eq!(values(&mut reader, 1).await, ["0"]);
    proxy.go_down();
    within("grow", client.grow_topic("t", 4)).await.expect("grown");
    for partition in [1, 2, 3, 3] {
        publish_to(partition, &partition.to_string()).await;
    }
    proxy.go_up();
    let mut came = values(&mut reader, 4).await;
    came.sort();
    assert_eq!(came, ["1", "2", "3", "3"]);
    publish_to(2, "live").await;
    assert_eq!(values(&mut reader, 1).await, ["live"]);
}
