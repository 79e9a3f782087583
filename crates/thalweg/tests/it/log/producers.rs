//! Batches with sequence numbers: each is in the log once and in order, despite failures of connections and peers.

use bytes::BytesMut;
use client::{Acks, Codec, ErrorKind, RetryClass, Start, TopicSettings};
use engine::{BatchBuilder, Producer};
use wire::{Request, Response};

use crate::support::raw::Raw;
use crate::support::reading::{subscribe, values};
use crate::support::server::{Server, metric, within};

/// Returns a publish of values with a producer's sequence numbers.
pub fn numbered(topic: &str, partition: Option<u32>, producer: Producer, values: &[&str]) -> Request {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a small record");
    }
    let batch = builder.finish_with(Codec::None, Some(producer)).expect("records");
    Request::Publish {
        topic: topic.to_owned(),
        partition,
        acks: Acks::Accepted,
        batch: BytesMut::from(&batch.into_bytes()[..]),
    }
}

impl Raw {
    async fn init_producer(&mut self) -> Producer {
        match self.call(&Request::InitProducer).await {
            Response::Producer { id, epoch } => Producer { id, epoch, sequence: 0 },
            other => panic!("no producer but {other:?}"),
        }
    }

    /// Sends a batch of one producer and returns its base offset, or the reason for its refusal.
    async fn send_numbered(&mut self, producer: Producer, values: &[&str]) -> Result<u64, ErrorKind> {
        match self.call(&numbered("t", Some(0), producer, values)).await {
            Response::Published(published) => Ok(published.base_offset),
            Response::Error(error) => {
                assert_eq!(error.retry_class(), RetryClass::Fatal);
                Err(error.kind)
            }
            other => panic!("a publish was answered with {other:?}"),
        }
    }
}

/// Ids are unique across connections and across restarts of the broker.
#[tokio::test]
async fn every_producer_has_an_id_of_its_own() {
    let mut server = Server::start();
    let mut seen = Vec::new();
    for round in 0..3 {
        let mut raws = [Raw::open(server.address).await, Raw::open(server.address).await];
        for raw in &mut raws {
            for _ in 0..5 {
                let producer = raw.init_producer().await;
                assert!(producer.id >= 0 && producer.epoch == 0, "{producer:?}");
                assert!(!seen.contains(&producer.id), "{} again in round {round}", producer.id);
                seen.push(producer.id);
            }
        }
        server.crash_and_restart();
    }
}

/// A duplicate batch gets the original response, on any connection, and is delivered only once.
#[tokio::test]
async fn a_duplicate_batch_is_stored_once() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut live = subscribe(&client, "t", Start::Live).await;
    let mut one = Raw::open(server.address).await;
    let mut other = Raw::open(server.address).await;
    let first = one.init_producer().await;
    let second = Producer { sequence: 2, ..first };
    assert_eq!(one.publish("t", &[b"before"]).await, 0);
    assert_eq!(one.send_numbered(first, &["a", "b"]).await, Ok(1));
    assert_eq!(one.send_numbered(second, &["c"]).await, Ok(3));
    for raw in [&mut one, &mut other] {
        assert_eq!(raw.send_numbered(first, &["a", "b"]).await, Ok(1));
        assert_eq!(raw.send_numbered(second, &["c"]).await, Ok(3));
    }
    assert_eq!(other.send_numbered(Producer { sequence: 3, ..first }, &["d"]).await, Ok(4));
    let mut all = subscribe(&client, "t", Start::Earliest).await;
    for subscription in [&mut live, &mut all] {
        assert_eq!(values(subscription, 5).await, ["before", "a", "b", "c", "d"]);
    }
    assert_eq!(metric(&client, "thalweg_publish_duplicates_total").await, 4);
    assert_eq!(metric(&client, "thalweg_published_batches_total").await, 4);
    assert_eq!(metric(&client, "thalweg_publish_errors_total").await, 0);
}

/// Gaps are reported, and a batch after a gap is not accepted.
#[tokio::test]
async fn a_gap_and_an_older_epoch_are_refused() {
    let server = Server::start();
    let mut raw = Raw::open(server.address).await;
    let first = raw.init_producer().await;
    let at = |epoch, sequence| Producer { epoch, sequence, ..first };
    assert_eq!(raw.send_numbered(at(0, 1), &["x"]).await, Err(ErrorKind::OutOfSequence), "it begins with 0");
    assert_eq!(raw.send_numbered(at(0, 0), &["a"]).await, Ok(0));
    assert_eq!(raw.send_numbered(at(0, 2), &["x"]).await, Err(ErrorKind::OutOfSequence));
    assert_eq!(raw.send_numbered(at(0, 0), &["x", "y"]).await, Err(ErrorKind::OutOfSequence), "half of it is known");
    assert_eq!(raw.send_numbered(at(0, 1), &["b"]).await, Ok(1));
    // Another producer takes over with a newer epoch.
    assert_eq!(raw.send_numbered(at(1, 2), &["x"]).await, Err(ErrorKind::OutOfSequence));
    assert_eq!(raw.send_numbered(at(1, 0), &["c"]).await, Ok(2));
    assert_eq!(raw.send_numbered(at(0, 2), &["x"]).await, Err(ErrorKind::Fenced));
    assert_eq!(raw.send_numbered(at(0, 0), &["a"]).await, Err(ErrorKind::Fenced), "also what was there");
    for nonsense in [at(-1, 0), at(1, -1), at(i16::MIN, i32::MIN)] {
        assert_eq!(raw.send_numbered(nonsense, &["x"]).await, Err(ErrorKind::Invalid));
    }
    assert_eq!(raw.send_numbered(at(1, 1), &["d"]).await, Ok(3));
    let client = server.client("tcp").await;
    let mut all = subscribe(&client, "t", Start::Earliest).await;
    assert_eq!(values(&mut all, 4).await, ["a", "b", "c", "d"]);
    assert_eq!(metric(&client, "thalweg_publish_errors_total").await, 9);
}

/// Batches after a refused one are refused as well, so that the peer can send all of them again in order.
#[tokio::test]
async fn batches_pipelined_after_a_gap_are_refused_until_their_turn() {
    let server = Server::start();
    let mut raw = Raw::open(server.address).await;
    let first = raw.init_producer().await;
    let at = |sequence| Producer { sequence, ..first };
    let mut correlations = Vec::new();
    for sequence in [0, 2, 3, 1, 2, 3] {
        correlations.push(raw.send(&numbered("t", Some(0), at(sequence), &[&sequence.to_string()])).await);
    }
    let mut taken = Vec::new();
    for correlation in correlations {
        taken.push(matches!(raw.answer(correlation).await, Response::Published(_)));
    }
    assert_eq!(taken, [true, false, false, true, true, true]);
    let client = server.client("tcp").await;
    assert_eq!(values(&mut subscribe(&client, "t", Start::Earliest).await, 4).await, ["0", "1", "2", "3"]);
}

/// A broker that chose the partition might choose another one for a retry.
#[tokio::test]
async fn a_numbered_batch_names_its_partition() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut raw = Raw::open(server.address).await;
    let producer = raw.init_producer().await;
    let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
    within("create", client.create_topic("two", settings)).await.expect("created");
    match raw.call(&numbered("two", None, producer, &["x"])).await {
        Response::Error(error) => assert_eq!(error.kind, ErrorKind::Invalid),
        other => panic!("taken: {other:?}"),
    }
    assert!(matches!(raw.call(&numbered("two", Some(1), producer, &["x"])).await, Response::Published(_)));
    // With only one partition there is no choice.
    assert!(matches!(raw.call(&numbered("one", None, producer, &["x"])).await, Response::Published(_)));
}
