//! Overflow policies: the handling of a subscriber that does not read.
//!
//! The subscriber has credit for one batch only, so that the rest is queued at the broker.

use std::time::{Duration, Instant};

use client::{Acks, Client, ClientSettings, ErrorKind, Overflow, Record, Start, TopicSettings};
use wire::{Push, Request, Response};

use crate::support::raw::{Raw, publish, subscribe};
use crate::support::reading::{self, spans};
use crate::support::server::{PATIENCE, Server, metric, until, within};

/// Maximum number of queued batches of the subscriber.
const QUEUE: u32 = 4;
const PLENTY: u64 = 1 << 30;

/// Returns a subscriber whose credit is used up by the first record, and a publisher. Record 0 is delivered.
async fn stuck(server: &Server, overflow: Overflow) -> (Raw, Raw) {
    let mut subscriber = Raw::open(server.address).await;
    subscriber.subscribe(subscribe("t", overflow, QUEUE, 1)).await;
    let mut publisher = Raw::open(server.address).await;
    assert_eq!(publisher.publish("t", &[b"0"]).await, 0);
    assert_eq!(spans(&[subscriber.push().await]), [(0, 1, false)]);
    (subscriber, publisher)
}

/// Returns the pushes after a large grant, up to this offset.
async fn rest(subscriber: &mut Raw, end: u64) -> Vec<(u64, u64, bool)> {
    subscriber.grant(1, PLENTY).await;
    let pushes = subscriber.pushes_to(end).await;
    assert_eq!(subscriber.pushes().await, [], "and nothing else");
    spans(&pushes)
}

async fn dropped(server: &Server) -> u64 {
    metric(&server.client("tcp").await, "thalweg_dropped_records_total").await
}

async fn fill(publisher: &mut Raw, offsets: std::ops::Range<u64>) {
    for offset in offsets {
        assert_eq!(publisher.publish("t", &[b"x"]).await, offset);
    }
}

/// `block`: the publisher waits up to its timeout and then receives a retriable error; nothing is lost.
#[tokio::test]
async fn block_makes_the_publisher_wait_and_come_back() {
    let server = Server::with(&["publish_queue_wait_timeout_ms=200"]);
    let (mut subscriber, mut publisher) = stuck(&server, Overflow::Block).await;
    fill(&mut publisher, 1..5).await;
    let begin = Instant::now();
    match publisher.call(&publish("t", Acks::Accepted, &[b"x"])).await {
        Response::Error(error) => {
            assert_eq!(error.kind, ErrorKind::Busy, "{error}");
            assert!(error.retry_after_ms > 0, "it says when to come back");
        }
        other => panic!("not refused: {other:?}"),
    }
    assert!(begin.elapsed() >= Duration::from_millis(200), "it waited");
    assert_eq!(rest(&mut subscriber, 5).await, [(1, 5, false)]);
    fill(&mut publisher, 5..6).await;
    assert_eq!(spans(&[subscriber.push().await]), [(5, 6, false)]);
    assert_eq!(dropped(&server).await, 0);
}

/// `block`: a waiting publisher continues as soon as there is room, or when the subscriber has disconnected.
#[tokio::test]
async fn block_ends_with_the_first_room() {
    let server = Server::with(&["publish_queue_wait_timeout_ms=600000"]);
    let watcher = server.client("tcp").await;
    for is_gone in [false, true] {
        let (mut subscriber, mut publisher) = stuck(&server, Overflow::Block).await;
        fill(&mut publisher, 1..5).await;
        let waits = metric(&watcher, "thalweg_publish_waits_total").await;
        let waiting = publisher.send(&publish("t", Acks::Accepted, &[b"x"])).await;
        until("the publisher waits", async || metric(&watcher, "thalweg_publish_waits_total").await > waits).await;
        if is_gone {
            drop(subscriber);
        } else {
            assert_eq!(rest(&mut subscriber, 6).await, [(1, 6, false)]);
        }
        assert!(matches!(publisher.answer(waiting).await, Response::Published(p) if p.base_offset == 5));
        within("delete", watcher.delete_topic("t")).await.expect("deleted");
    }
}

/// `drop_new`: records that arrive while the queue is full are reported as one gap and counted.
#[tokio::test]
async fn drop_new_keeps_the_oldest_and_tells_the_gap() {
    let server = Server::start();
    let (mut subscriber, mut publisher) = stuck(&server, Overflow::DropNew).await;
    fill(&mut publisher, 1..11).await;
    assert_eq!(dropped(&server).await, 6);
    assert_eq!(rest(&mut subscriber, 11).await, [(1, 5, false), (5, 11, true)]);
    fill(&mut publisher, 11..12).await;
    assert_eq!(spans(&[subscriber.push().await]), [(11, 12, false)]);
    assert_eq!(dropped(&server).await, 6);
}

/// `drop_old`: the oldest records in the queue are dropped; a gap takes their place and is counted.
#[tokio::test]
async fn drop_old_keeps_the_newest_and_tells_the_gap() {
    let server = Server::start();
    let (mut subscriber, mut publisher) = stuck(&server, Overflow::DropOld).await;
    fill(&mut publisher, 1..11).await;
    assert_eq!(dropped(&server).await, 6);
    assert_eq!(rest(&mut subscriber, 11).await, [(1, 7, true), (7, 11, false)]);
}

/// `disconnect_slow`: the subscription ends with a reason, its connection stays open, and the publisher never waits.
#[tokio::test]
async fn disconnect_slow_ends_the_subscription_only() {
    let server = Server::start();
    let (mut subscriber, mut publisher) = stuck(&server, Overflow::DisconnectSlow).await;
    fill(&mut publisher, 1..11).await;
    match subscriber.push().await {
        Push::Ended { subscription: 1, error } => assert_eq!(error.kind, ErrorKind::SlowSubscriber),
        other => panic!("not ended but {other:?}"),
    }
    assert_eq!(metric(&server.client("tcp").await, "thalweg_slow_subscribers_total").await, 1);
    let mut again = subscribe("t", Overflow::DisconnectSlow, QUEUE, PLENTY);
    again.start = Start::Offset(1);
    subscriber.subscribe(again).await;
    assert_eq!(rest(&mut subscriber, 11).await, [(1, 11, false)], "the same id is free again");
}

/// `replay`: the batches of an overflowing queue are read again from the log; within retention nothing is lost.
#[tokio::test]
async fn replay_reads_on_from_the_log() {
    let server = Server::start();
    let (mut subscriber, mut publisher) = stuck(&server, Overflow::Replay).await;
    fill(&mut publisher, 1..201).await;
    assert_eq!(rest(&mut subscriber, 201).await, [(1, 201, false)]);
    fill(&mut publisher, 201..202).await;
    assert_eq!(spans(&[subscriber.push().await]), [(201, 202, false)], "it is live again");
    assert_eq!(dropped(&server).await, 0);
}

/// `replay`: records that retention removed in the meantime are reported as a gap and counted.
#[tokio::test]
async fn replay_reports_records_removed_by_retention() {
    let server = Server::with(&["retention_bytes=4096"]);
    let (mut subscriber, mut publisher) = stuck(&server, Overflow::Replay).await;
    fill(&mut publisher, 1..201).await;
    let watcher = server.client("tcp").await;
    let oldest = within("describe", watcher.describe_topic("t")).await.expect("a topic").partitions[0].start;
    assert!(oldest > 100, "retention removed some: {oldest}");
    assert_eq!(rest(&mut subscriber, 201).await, [(1, oldest, true), (oldest, 201, false)]);
    assert_eq!(dropped(&server).await, oldest - 1);
}

/// A subscriber receives its credit plus at most the rest of one batch, until it grants more.
#[tokio::test]
async fn credit_bounds_the_deliveries() {
    let server = Server::start();
    let mut publisher = Raw::open(server.address).await;
    let one = crate::support::raw::batch(&[&[b'x'; 1000]]).len() as u64;
    let mut subscriber = Raw::open(server.address).await;
    subscriber.subscribe(subscribe("credit", Overflow::Replay, 0, 2 * one + 1)).await;
    for i in 0..20 {
        assert_eq!(publisher.publish("credit", &[&[b'x'; 1000]]).await, i);
    }
    assert_eq!(spans(&subscriber.pushes().await), [(0, 3, false)], "two batches and one more that overdraws");
    // The overdraft, all but one byte of a batch, is repaid first.
    subscriber.grant(1, one - 1).await;
    assert_eq!(subscriber.pushes().await, []);
    subscriber.grant(1, one + 1).await;
    assert_eq!(spans(&[subscriber.push().await, subscriber.push().await]), [(3, 5, false)]);
    assert_eq!(subscriber.pushes().await, []);
    // A grant for a nonexistent subscription has no effect.
    subscriber.grant(77, 1).await;
    assert!(matches!(subscriber.call(&Request::Ping).await, Response::Pong));
}

/// The Rust client limits the data in flight to a subscription that it does not read, over each transport.
#[tokio::test]
async fn an_unread_subscription_holds_no_more_than_its_window() {
    let server = Server::start();
    let publisher = server.client("tcp").await;
    for scheme in ["tcp", "quic", "tls"] {
        let window = 128 << 10;
        let settings = ClientSettings {
            event_stream_recv_window: window,
            event_conn_recv_window: window,
            ..ClientSettings::default()
        };
        let reader = server.client_with(scheme, settings).await;
        let mut subscription = reading::subscribe(&reader, scheme, Start::Live).await;
        let before = metric(&publisher, "thalweg_delivered_bytes_total").await;
        let payload = vec![b'x'; 16 << 10];
        for _ in 0..64 {
            within("publish", publisher.publish(scheme, Record::new(payload.clone()))).await.expect("published");
        }
        let sent = async || metric(&publisher, "thalweg_delivered_bytes_total").await - before;
        until("the window is used", async || sent().await >= window).await;
        let bound = window + (17 << 10);
        assert!(sent().await <= bound, "{scheme}: {} bytes of {bound}", sent().await);
        assert_eq!(reading::take(&mut subscription, 64).await.len(), 64, "and reading on gets all");
    }
}

/// A member of a queue group that is stuck does not block the others.
#[tokio::test]
async fn a_stuck_member_of_a_group_is_passed_over() {
    let server = Server::with(&["publish_queue_wait_timeout_ms=600000"]);
    let mut stuck = Raw::open(server.address).await;
    let mut request = subscribe("jobs", Overflow::Block, 1, 1);
    request.group = "g".to_owned();
    stuck.subscribe(request).await;
    let client: Client = server.client("tcp").await;
    let open = client.subscribe("jobs").group("g").overflow(Overflow::Block).open();
    let mut busy = within("subscribe", open).await.expect("a subscription");
    for i in 0..100 {
        let publish = client.publish("jobs", Record::new(i.to_string()));
        tokio::time::timeout(PATIENCE, publish).await.expect("the publisher does not wait").expect("published");
    }
    // The stuck member received one batch and has one in its queue.
    assert_eq!(reading::take(&mut busy, 98).await.len(), 98);
}

/// A queue is limited by its bytes as well as by its batches.
#[tokio::test]
async fn a_queue_is_bounded_by_bytes_too() {
    let server = Server::with(&["subscriber_queue_max_bytes=10000"]);
    let client = server.client("tcp").await;
    within("create", client.create_topic("t", TopicSettings::default())).await.expect("created");
    let mut subscriber = Raw::open(server.address).await;
    subscriber.subscribe(subscribe("t", Overflow::DropNew, 1000, 1)).await;
    let mut publisher = Raw::open(server.address).await;
    for i in 0..20 {
        assert_eq!(publisher.publish("t", &[&[b'x'; 1000]]).await, i);
    }
    let spans = rest(&mut subscriber, 20).await;
    assert_eq!(spans, [(0, 10, false), (10, 20, true)], "one was sent, nine fit");
}
