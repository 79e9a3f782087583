//! Tests of one exchange over every transport.

use bytes::Bytes;
use client::{Client, Event, Message, Record, Start, TopicSettings};
use thalweg::Embedded;

use crate::support::reading::take;
use crate::support::server::{Server, within};

/// Returns records of all shapes: keys, headers, nulls, empty values, and a value larger than one read.
fn records() -> Vec<Record> {
    let mut records: Vec<Record> = (0..50)
        .map(|i| Record::new(format!("value-{i}")).with_key(format!("key-{}", i % 7)).with_header("i", i.to_string()))
        .collect();
    records.push(Record { key: Some(Bytes::from_static(b"gone")), value: None, ..Record::default() });
    records.push(Record { headers: vec![(Bytes::from_static(b"empty"), None)], ..Record::new("") });
    records.push(Record::new(vec![0xa5; 1 << 20]).with_key("large"));
    records
}

fn sorted(messages: Vec<Message>) -> Vec<(u32, Record)> {
    let mut found: Vec<(u32, Record)> = messages.into_iter().map(|m| (m.partition, m.record)).collect();
    found.sort_by_key(|(partition, record)| (*partition, record.offset));
    found
}

async fn exchange(client: &Client) {
    let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
    within("create", client.create_topic("orders", settings)).await.expect("created");
    let mut live = within("subscribe", client.subscribe("orders").open()).await.expect("open");
    let publisher = within("publisher", client.publisher("orders").open()).await.expect("open");
    let records = records();
    let (single, rest) = records.split_at(10);
    for record in single {
        within("publish", publisher.publish(record)).await.expect("published").expect("acknowledged");
    }
    for record in rest {
        within("send", publisher.send(record)).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("acknowledged");
    let got_live = sorted(take(&mut live, records.len()).await);
    let mut history =
        within("subscribe", client.subscribe("orders").start(Start::Earliest).open()).await.expect("open");
    let got_history = sorted(take(&mut history, records.len()).await);
    assert_eq!(got_live, got_history, "live and history tell the same");
    for partition in 0..3 {
        let offsets = got_live.iter().filter(|(p, _)| *p == partition).map(|(_, record)| record.offset);
        assert!(offsets.enumerate().all(|(i, offset)| i as u64 == offset), "offsets have no holes");
    }
    for record in &records {
        let is_same = |got: &&(u32, Record)| {
            (&got.1.key, &got.1.value, &got.1.headers) == (&record.key, &record.value, &record.headers)
        };
        assert_eq!(got_live.iter().filter(is_same).count(), 1, "{record:?} comes once, as it was sent");
    }
    assert!(got_live.iter().all(|(_, record)| record.timestamp_ms > 1_600_000_000_000), "the client told the time");
    within("ping", client.ping()).await.expect("pong");
    let info = within("describe", client.describe_topic("orders")).await.expect("a topic");
    assert_eq!(info.partitions.iter().map(|p| p.end).sum::<u64>(), records.len() as u64);
    let (start, _, batches) =
        within("fetch", client.fetch("orders", 0, 0, std::time::Duration::ZERO)).await.expect("batches");
    assert_eq!((start, batches[0].base_offset()), (0, 0));
    assert_eq!(within("publish", client.publish("orders", Record::new("x"))).await.expect("published").receivers, 2);
    assert!(matches!(within("an event", live.next_event()).await, Ok(Event::Batch(_))));
}

/// QUIC delivers the published records, live and from the log.
#[tokio::test]
async fn quic() {
    let server = Server::start();
    exchange(&server.client("quic").await).await;
}

/// Plain TCP delivers the published records, live and from the log.
#[tokio::test]
async fn tcp() {
    let server = Server::start();
    exchange(&server.client("tcp").await).await;
}

/// TLS over TCP delivers the published records, live and from the log.
#[tokio::test]
async fn tls() {
    let server = Server::start();
    exchange(&server.client("tls").await).await;
}

/// An embedded broker serves the same client through an in-memory pipe.
#[tokio::test]
async fn embedded() {
    let broker = Embedded::start().expect("started");
    exchange(&broker.client()).await;
}

/// The other profiles, and several worker threads and QUIC endpoints on one port, deliver the same records.
#[tokio::test]
async fn every_profile() {
    for set in [&["profile=latency"][..], &["profile=throughput"], &["threads=3", "quic_endpoints=3"]] {
        let server = Server::with(set);
        for scheme in ["quic", "tcp"] {
            let client = server.client(scheme).await;
            exchange(&client).await;
            within("delete", client.delete_topic("orders")).await.expect("deleted");
        }
    }
}
