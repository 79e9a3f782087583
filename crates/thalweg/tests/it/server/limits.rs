//! Peers that use too much: each reaches a limit, the broker's memory stays small, and others are served.

use bytes::BytesMut;
use client::{Acks, Client, ClientSettings, ErrorKind, Event, Overflow, Record, Start, TopicSettings};
use rustix::process::{Resource, getrlimit, setrlimit};
use thalweg::Embedded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::{Request, Response};

use crate::support::bystander::{Bystander, kind_of};
use crate::support::raw::{Raw, encode, hello, publish, subscribe};
use crate::support::reading::{self, spans, values};
use crate::support::server::{Launch, Server, metric, until, within};

/// Limit of the queued output of one connection, plus the largest response, plus a margin.
const OUTBOX_BYTES_BOUND: u64 = 12 << 20;
const HIGH_WATER: &str = "thalweg_outbox_bytes_high_water";

/// Sends `count` copies of a request, reads nothing until the broker has queued its maximum, and then counts the
/// responses.
async fn ask_and_do_not_read(server: &Server, bystander: &mut Bystander, request: Request, count: u32) {
    let mut raw = Raw::open(server.address).await;
    let mut bytes = BytesMut::new();
    for i in 0..count {
        bytes.unsplit(encode(&request, 100 + i));
    }
    raw.write(&bytes).await;
    until("the outbox is full", async || metric(bystander.watcher(), HIGH_WATER).await >= 1 << 20).await;
    bystander.is_unharmed().await;
    let mut answered = vec![false; count as usize];
    for _ in 0..count {
        match raw.incoming().await {
            crate::support::raw::Incoming::Answer(_, Response::Error(error)) => {
                assert_eq!(error.kind, ErrorKind::Busy, "{error}")
            }
            crate::support::raw::Incoming::Answer(id, _) => answered[id as usize - 100] = true,
            other => panic!("no answer but {other:?}"),
        }
    }
    assert!(answered.iter().filter(|is| **is).count() >= count.min(64) as usize);
    let high_water = metric(bystander.watcher(), HIGH_WATER).await;
    assert!(high_water < OUTBOX_BYTES_BOUND, "{high_water} bytes waited for one connection");
}

/// A peer that pipelines requests with large responses and does not read them receives no further responses.
#[tokio::test]
async fn a_peer_that_asks_and_does_not_read_is_bounded() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let settings = TopicSettings { partitions: 1024, ..TopicSettings::default() };
    within("create", bystander.watcher().create_topic("wide", settings)).await.expect("created");
    let describe = Request::TopicDescribe { topic: "wide".into() };
    ask_and_do_not_read(&server, &mut bystander, describe, 1_500).await;
    ask_and_do_not_read(&server, &mut bystander, Request::Stats, 3_000).await;
}

/// A peer that pipelines fetches, whose responses come later, is limited as well.
#[tokio::test]
async fn a_peer_that_fetches_and_does_not_read_is_bounded() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let record = Record::new(vec![7; 1 << 20]);
    within("publish", bystander.watcher().publish("large", record)).await.expect("published");
    let fetch = Request::Fetch { topic: "large".into(), partition: 0, offset: 0, bytes_max: 1, wait_ms: 0 };
    ask_and_do_not_read(&server, &mut bystander, fetch, 64).await;
}

/// A subscriber that does not read despite its credit is limited as well, and receives everything once it reads.
#[tokio::test]
async fn a_subscriber_that_does_not_read_is_bounded() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    raw.subscribe(subscribe("t", Overflow::Replay, 0, u64::MAX)).await;
    let mut publisher = Raw::open(server.address).await;
    let count = 48 << 3;
    for i in 0..count {
        assert_eq!(publisher.publish("t", &[&[b'x'; 128 << 10]]).await, i);
    }
    bystander.is_unharmed().await;
    let high_water = metric(bystander.watcher(), HIGH_WATER).await;
    assert!(high_water < OUTBOX_BYTES_BOUND, "{high_water} bytes waited for one connection");
    assert_eq!(spans(&raw.pushes_to(count).await), [(0, count, false)]);
}

async fn flood(raw: &mut Raw, topic: &str, count: usize) {
    let bytes = encode(&publish(topic, Acks::None, &[&[b'x'; 64 << 10]]), 1);
    for _ in 0..count {
        raw.write(&bytes).await;
    }
    assert!(matches!(raw.call(&Request::Ping).await, Response::Pong));
}

/// Publishers without acknowledgements cannot fill the memory: their own history is deleted first, and once there is no
/// more of it the batches are refused and counted.
#[tokio::test]
async fn a_flood_without_acknowledgement_is_bounded_and_counted() {
    let server = Server::with(&["memory_max=4MiB"]);
    let mut bystander = Bystander::of(&server).await;
    let unlimited = TopicSettings { retention_bytes: 0, ..TopicSettings::default() };
    within("create", bystander.watcher().create_topic("hog", unlimited)).await.expect("created");
    let mut raw = Raw::open(server.address).await;
    flood(&mut raw, "hog", 1_000).await;
    let lost = async |bystander: &Bystander| metric(bystander.watcher(), "thalweg_publish_lost_total").await;
    assert_eq!(lost(&bystander).await, 0, "it gave up its own history");
    let log_bytes = metric(bystander.watcher(), "thalweg_log_bytes").await;
    assert!(log_bytes <= 4 << 20 && log_bytes > 3 << 20, "{log_bytes}");
    flood(&mut raw, "late", 1_000).await;
    assert_eq!(lost(&bystander).await, 1_000, "nothing was left for a second topic");
    let bytes = server.resident_bytes();
    assert!(bytes < 128 << 20, "{bytes} bytes are resident after a flood of 128 MiB");
    match raw.call(&publish("late", Acks::Accepted, &[&[b'x'; 64 << 10]])).await {
        Response::Error(error) => assert_eq!(error.kind, ErrorKind::Busy, "{error}"),
        other => panic!("not refused: {other:?}"),
    }
    bystander.is_unharmed().await;
    within("delete", bystander.watcher().delete_topic("hog")).await.expect("deleted");
    flood(&mut raw, "late", 1_000).await;
    assert_eq!(lost(&bystander).await, 1_000, "there is room again");
}

/// Returns the limit of file descriptors of this process, raised to the allowed maximum. Brokers inherit it.
pub fn files_max() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("raised");
    limit.current.unwrap_or(u64::MAX)
}

/// Thousands of connections with no hello, or only half of one, are closed after the timeout; one with a complete hello
/// stays.
#[tokio::test]
async fn connections_that_never_say_hello_are_closed() {
    let count = files_max().saturating_sub(500).min(10_000) as usize;
    let server = Server::with(&["hello_timeout_ms=300"]);
    let mut bystander = Bystander::of(&server).await;
    let mut idle = Raw::open(server.address).await;
    let half = &encode(&hello(), 1)[..20];
    let mut held = Vec::new();
    for i in 0..count {
        let mut socket = within("a connection", TcpStream::connect(server.address)).await.expect("connected");
        if i % 4 == 0 {
            within("writing", socket.write_all(half)).await.expect("written");
        }
        held.push(socket);
    }
    for mut socket in held {
        let mut words = Vec::new();
        within("the end", socket.read_to_end(&mut words)).await.map(drop).unwrap_or_default();
    }
    until("all are forgotten", async || metric(bystander.watcher(), "thalweg_native_connections").await < 20).await;
    assert!(matches!(idle.call(&Request::Ping).await, Response::Pong));
    bystander.is_unharmed().await;
}

/// The hello timeout does not apply after the hello: an idle subscription keeps its connection, over every transport.
#[tokio::test]
async fn a_quiet_subscription_outlives_the_hello_timeout() {
    let server = Server::with(&["hello_timeout_ms=250"]);
    let publisher = server.client("tcp").await;
    let mut subscriptions = Vec::new();
    for scheme in ["tcp", "quic", "tls"] {
        // A pattern cannot be resumed without a loss, so a reconnect would be noticed.
        let client = server.client(scheme).await;
        subscriptions.push((scheme, reading::subscribe(&client, "quiet.*", Start::Live).await));
    }
    let begin = metric(&publisher, "thalweg_accepted_connections_total").await;
    let nothing = within("an empty fetch", async {
        reading::publish(&publisher, "clock", [0]).await;
        publisher.fetch("clock", 0, 1, std::time::Duration::from_millis(800)).await
    });
    assert_eq!(nothing.await.expect("an answer").2.len(), 0, "three times the timeout went by");
    reading::publish(&publisher, "quiet.t", ["x"]).await;
    for (scheme, subscription) in &mut subscriptions {
        match reading::next_event(subscription).await {
            Event::Batch(batch) => assert_eq!(reading::batch_values(&batch), ["x"], "{scheme}"),
            other => panic!("{scheme}: no records but {other:?}"),
        }
    }
    assert_eq!(metric(&publisher, "thalweg_accepted_connections_total").await, begin);
}

/// At `connections_max` further connections are refused and counted, existing ones are served, and a freed place is
/// used again.
#[tokio::test]
async fn connections_beyond_the_limit_are_refused() {
    let server = Server::with(&["connections_max=20"]);
    let mut first = Raw::open(server.address).await;
    let watcher = server.client("tcp").await;
    let mut held = Vec::new();
    for _ in 0..18 {
        held.push(Raw::open(server.address).await);
    }
    for _ in 0..10 {
        let mut refused = Raw::connect(server.address).await;
        assert_eq!(refused.last_words().await, None, "closed at once");
    }
    for scheme in ["quic", "tls", "tcp"] {
        let settings = ClientSettings { connect_timeout: std::time::Duration::from_secs(10), ..Default::default() };
        let address = client::Address::parse(&server.url(scheme)).expect("an address");
        let refused = kind_of("a refusal", Client::connect_with(address, settings)).await;
        assert_eq!(refused, Err(ErrorKind::Disconnected), "{scheme}");
    }
    assert_eq!(metric(&watcher, "thalweg_native_connections_refused_total").await, 13);
    assert_eq!(metric(&watcher, "thalweg_native_connections").await, 20);
    assert_eq!(first.publish("t", &[b"x"]).await, 0);
    drop(held);
    until("places are free", async || metric(&watcher, "thalweg_native_connections").await == 2).await;
    let quic = server.client("quic").await;
    within("ping", quic.ping()).await.expect("served");
}

/// An address may only use its share of the connections, and refusals name the limit.
#[tokio::test]
async fn a_peer_has_its_share_of_the_connections() {
    let server = Server::with(&["connections_max=100", "connections_per_peer_max=4"]);
    let watcher = server.client("tcp").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(Raw::open(server.address).await);
    }
    assert_eq!(Raw::connect(server.address).await.last_words().await, None);
    let refused = "thalweg_native_connections_refused_by_limit_total{limit=\"per_peer_max\"}";
    assert_eq!(metric(&watcher, refused).await, 1);
    held.pop();
    until("a place is free", async || metric(&watcher, "thalweg_native_connections").await == 3).await;
    Raw::open(server.address).await;
}

/// With many connections open a QUIC client has to prove its address, which costs it a round trip and nothing else.
#[tokio::test]
async fn quic_clients_prove_their_address_where_connections_are_scarce() {
    let server = Server::with(&["connections_max=8"]);
    let _held = [Raw::open(server.address).await, Raw::open(server.address).await];
    let client = server.client("quic").await;
    within("publish", client.publish("t", Record::new("proven"))).await.expect("published");
}

/// Without free file descriptors, connections are closed instead of left hanging, the failure is counted, and new
/// connections work once descriptors are free.
#[tokio::test]
async fn running_out_of_descriptors_passes() {
    let launch = Launch { shell: Some("ulimit -n 64"), ..Launch::default() };
    let server = Server::launch(launch);
    let watcher = server.client("tcp").await;
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(within("a connection", TcpStream::connect(server.address)).await.expect("connected"));
    }
    until("accepting fails", async || metric(&watcher, "thalweg_accept_errors_total").await > 0).await;
    until("one is closed", async || metric(&watcher, "thalweg_accept_shed_total").await > 0).await;
    reading::publish(&watcher, "t", ["served"]).await;
    drop(held);
    // The connections that are still in the backlog have to be closed first.
    until("all were seen", async || {
        let [accepted, shed] = ["thalweg_accepted_connections_total", "thalweg_accept_shed_total"];
        metric(&watcher, accepted).await + metric(&watcher, shed).await > 80
    })
    .await;
    until("only the watcher is left", async || metric(&watcher, "thalweg_native_connections").await == 1).await;
    let late = server.client("tcp").await;
    let mut subscription = reading::subscribe(&late, "t", Start::Earliest).await;
    assert_eq!(values(&mut subscription, 1).await, ["served"]);
}

/// Responses are not lost if the peer has sent all of its requests and closes its half.
#[tokio::test]
async fn a_half_closed_connection_gets_its_answers() {
    let server = Server::start();
    let settings = TopicSettings { partitions: 1024, ..TopicSettings::default() };
    within("create", server.client("tcp").await.create_topic("wide", settings)).await.expect("created");
    let mut raw = Raw::connect(server.address).await;
    let mut bytes = encode(&hello(), 1);
    let count = 300;
    for i in 0..count {
        bytes.unsplit(encode(&Request::TopicDescribe { topic: "wide".into() }, 2 + i));
    }
    raw.write(&bytes).await;
    raw.socket.shutdown().await.expect("half closed");
    assert!(matches!(raw.answer(1).await, Response::Hello(_)));
    for i in 0..count {
        assert!(matches!(raw.answer(2 + i).await, Response::TopicDescribed(_)), "answer {i}");
    }
    assert_eq!(raw.last_words().await, None);
}

/// Responses that go through a separate writer, as over TLS, are not lost either. Those that other threads build
/// come in the order of their requests.
#[tokio::test]
async fn a_half_closed_pipe_gets_its_answers() {
    let broker = Embedded::start().expect("started");
    // So small that one write does not fit the responses.
    let (mut ours, theirs) = tokio::io::duplex(1 << 10);
    broker.native().server.serve_pipe(theirs);
    let mut bytes = encode(&hello(), 1);
    let count = 100;
    let requests = [Request::Stats, Request::TopicList { after: String::new(), count_max: 10 }, Request::Ping];
    for (i, request) in (0..count).zip(requests.iter().cycle()) {
        bytes.unsplit(encode(request, 2 + i));
    }
    let mut answers = Vec::new();
    let reading = async {
        ours.write_all(&bytes).await.expect("written");
        ours.shutdown().await.expect("half closed");
        ours.read_to_end(&mut answers).await.expect("the end")
    };
    within("the answers", reading).await;
    let mut frames = Vec::new();
    wire::Assembler::new(wire::frame::BODY_BYTES_MAX).feed(&answers, &mut frames).expect("whole frames");
    let correlations: Vec<u32> = frames.iter().map(|frame| frame.correlation).collect();
    assert_eq!(correlations, (1..count + 2).collect::<Vec<_>>());
}

/// A header that announces a large body costs no memory until the body arrives.
#[tokio::test]
async fn announced_bodies_cost_nothing() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let before = server.resident_bytes();
    let mut header = BytesMut::new();
    wire::Header { length: wire::frame::BODY_BYTES_MAX as u32, kind: 0x02, correlation: 1 }.put(&mut header);
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut raw = Raw::open(server.address).await;
        raw.write(&header).await;
        held.push(raw);
    }
    bystander.is_unharmed().await;
    let cost = server.resident_bytes().saturating_sub(before);
    assert!(cost < 32 << 20, "{cost} bytes for 200 headers");
}
