//! Guarantees of a publisher: order, and flushes.

use client::{Acks, BatchBuilder, ClientSettings, ErrorKind, Record, Start, TopicSettings};

use crate::support::reading::{publish, subscribe, take, text};
use crate::support::server::{Server, metric, until, within};

/// Returns settings with small batches and few of them in flight, so that reordering would show.
fn hasty() -> ClientSettings {
    ClientSettings { publish_chunk_bytes: 200, publishes_in_flight_max: 3, ..ClientSettings::default() }
}

/// Records of one publisher to one partition keep their order, whichever of its tasks sends them, and whether they are
/// sent alone or together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_keep_their_order() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let client = server.client_with(scheme, hasty()).await;
        let publisher = within("publisher", client.publisher(scheme).buffer_bytes(4_000).open()).await.expect("open");
        let count = 20_000;
        let records: Vec<Record> = (0..count).map(|i| Record::new(i.to_string())).collect();
        for (run, records) in records.chunks(100).enumerate() {
            if run % 2 == 0 {
                within("send", publisher.send_all(records)).await.expect("sent");
                continue;
            }
            for record in records {
                within("send", publisher.send(record)).await.expect("sent");
            }
        }
        within("flush", publisher.flush()).await.expect("acknowledged");
        let mut subscription = subscribe(&client, scheme, Start::Earliest).await;
        for (i, message) in take(&mut subscription, count).await.iter().enumerate() {
            assert_eq!(text(message.record.value()), i.to_string(), "{scheme}: offset {i}");
        }
    }
}

/// After a flush all records are in the log, with any acknowledgement level.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_waits_for_everything() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let client = server.client_with(scheme, hasty()).await;
        let publisher = within("publisher", client.publisher(scheme).open()).await.expect("open");
        let mut sent = 0;
        for round in 0..200 {
            for _ in 0..=round % 40 {
                within("send", publisher.send(&Record::new("0123456789"))).await.expect("sent");
                sent += 1;
            }
            within("flush", publisher.flush()).await.expect("acknowledged");
            let info = within("describe", client.describe_topic(scheme)).await.expect("a topic");
            assert_eq!(info.partitions[0].end, sent, "{scheme}, round {round}");
        }
    }
}

/// Each acknowledgement level publishes the records; without acknowledgements they arrive as well.
#[tokio::test]
async fn every_level_of_acknowledgement_publishes() {
    let server = Server::start();
    for scheme in ["tcp", "quic", "tls"] {
        let client = server.client(scheme).await;
        let mut subscription = subscribe(&client, scheme, Start::Live).await;
        for (i, acks) in [Acks::Default, Acks::Accepted, Acks::Committed, Acks::None].into_iter().enumerate() {
            let publisher = within("publisher", client.publisher(scheme).acks(acks).open()).await.expect("open");
            let published = within("publish", publisher.publish(&Record::new("one"))).await.expect("published");
            assert_eq!(published.is_none(), acks == Acks::None);
            within("send", publisher.send(&Record::new("two"))).await.expect("sent");
            within("flush", publisher.flush()).await.expect("flushed");
            let got = take(&mut subscription, 2).await;
            assert_eq!((got[0].record.offset, got[1].record.offset), (2 * i as u64, 2 * i as u64 + 1));
        }
    }
}

/// A flush returns the error of a refused batch, with its number, and the publisher continues.
#[tokio::test]
async fn a_flush_returns_the_error_of_a_refused_batch() {
    let server = Server::with(&["auto_create_topics=false"]);
    let client = server.client("tcp").await;
    let publisher = within("publisher", client.publisher("later").open()).await.expect("open");
    let batch = || {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(b"x"), &[]).expect("a small record");
        builder.finish().expect("a record")
    };
    for _ in 0..3 {
        within("send", publisher.send_batch(None, batch())).await.expect("sent");
    }
    let error = within("flush", publisher.flush()).await.expect_err("no such topic");
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.message.contains("3 batches"), "{error}");
    within("create", client.create_topic("later", TopicSettings::default())).await.expect("created");
    within("send", publisher.send(&Record::new("x"))).await.expect("sent");
    within("flush", publisher.flush()).await.expect("acknowledged");
}

/// The largest record is published, and a record with one byte more is refused before it is sent.
#[tokio::test]
async fn records_are_bounded_by_the_batch() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let largest = engine::limits::BATCH_BYTES_MAX - engine::record::BATCH_HEADER_BYTES - 20;
    within("publish", client.publish("large", Record::new(vec![1; largest]))).await.expect("published");
    let refused = within("publish", client.publish("large", Record::new(vec![1; largest + 20]))).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
    for scheme in ["tcp", "quic", "tls"] {
        let client = server.client(scheme).await;
        let mut subscription = subscribe(&client, "large", Start::Earliest).await;
        assert_eq!(take(&mut subscription, 1).await[0].record.value().len(), largest, "{scheme}");
    }
}

/// The broker counts published and delivered records.
#[tokio::test]
async fn the_metrics_count_records() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut subscriptions = [subscribe(&client, "t", Start::Live).await, subscribe(&client, "t", Start::Live).await];
    publish(&client, "t", 0..10).await;
    for subscription in &mut subscriptions {
        take(subscription, 10).await;
    }
    for (name, expected) in [
        ("thalweg_published_records_total", 10),
        ("thalweg_published_batches_total", 10),
        ("thalweg_delivered_records_total", 20),
        ("thalweg_dropped_records_total", 0),
        ("thalweg_publish_errors_total", 0),
        ("thalweg_subscribers", 2),
        ("thalweg_topics", 1),
    ] {
        assert_eq!(metric(&client, name).await, expected, "{name}");
    }
    drop(subscriptions);
    until("there are no subscribers", async || metric(&client, "thalweg_subscribers").await == 0).await;
}

/// A key has a fixed partition from its first record on, even if that record creates the topic.
#[tokio::test]
async fn keys_of_a_new_topic_have_their_partition_at_once() {
    let server = Server::with(&["default_partitions=5"]);
    let client = server.client("tcp").await;
    let publisher = within("publisher", client.publisher("new").open()).await.expect("open");
    for i in 0..20 {
        let record = Record::new("x").with_key(format!("key-{i}"));
        let published = within("publish", publisher.publish(&record)).await.expect("published").expect("acknowledged");
        assert_eq!(published.partition, engine::partitioner::for_key(format!("key-{i}").as_bytes(), 5));
    }
    // The subscription that the publisher used to create the topic is removed automatically.
    until("there are no subscribers", async || {
        let info = client.describe_topic("new").await.expect("a topic");
        info.partitions.iter().all(|p| p.subscribers == 0)
    })
    .await;
}

/// A nonexistent partition is refused, by every way of sending records.
#[tokio::test]
async fn a_nonexistent_partition_is_refused() {
    let server = Server::start();
    let client = server.client("tcp").await;
    for partition in [1, 7, u32::MAX - 1] {
        let open = client.publisher("one").partition(Some(partition)).open();
        assert_eq!(within("publisher", open).await.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
    }
}
