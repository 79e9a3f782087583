//! Recovery of clients from failures of their broker and of their connections.

use std::process::Stdio;
use std::time::Duration;

use client::{Acks, Client, ClientSettings, ErrorKind, Event, Record, RetryClass, Start, Subscription, TopicSettings};
use rustix::process::Signal;
use wire::Request;

use crate::support::bystander::kind_of;
use crate::support::proxy::Proxy;
use crate::support::raw::{Raw, encode, publish as publish_request};
use crate::support::reading::{Contiguous, next_event, publish, subscribe, take, text, values};
use crate::support::server::{Server, connect, metric, program, until, within};

async fn expect_restart(subscription: &mut Subscription) {
    match next_event(subscription).await {
        Event::Restarted => {}
        other => panic!("not told of the restart but {other:?}"),
    }
}

/// Kills a broker and starts it again on its port: subscriptions receive an event and continue with the first record of
/// the new one.
async fn survive_a_crash(scheme: &str) {
    let mut server = Server::start();
    let client = server.client(scheme).await;
    let mut named = subscribe(&client, "a.b", Start::Live).await;
    let mut pattern = subscribe(&client, "a.*", Start::Live).await;
    publish(&client, "a.b", 0..5).await;
    assert_eq!(values(&mut named, 5).await, ["0", "1", "2", "3", "4"]);
    assert_eq!(values(&mut pattern, 5).await.len(), 5);
    server.crash_and_restart();
    let named_told = expect_restart(&mut named);
    let pattern_told = expect_restart(&mut pattern);
    let publisher = connect(&server.url("tcp"), ClientSettings::default()).await;
    // The named subscription also receives records that precede its return; a pattern starts live.
    publish(&publisher, "a.b", ["first"]).await;
    named_told.await;
    pattern_told.await;
    publish(&publisher, "a.b", ["second"]).await;
    let first = take(&mut named, 2).await;
    assert_eq!((first[0].record.offset, text(first[0].record.value())), (0, "first".to_owned()));
    let last = take(&mut pattern, 1).await;
    let last = if text(last[0].record.value()) == "first" { take(&mut pattern, 1).await } else { last };
    assert_eq!(text(last[0].record.value()), "second");
    // Its other connection may notice only now.
    until("the old client is connected again", async || client.ping().await.is_ok()).await;
    publish(&client, "a.b", ["third"]).await;
    assert_eq!(values(&mut named, 1).await, ["third"]);
}

/// Over TCP a crash is noticed immediately.
#[tokio::test]
async fn a_crash_is_survived_over_tcp() {
    survive_a_crash("tcp").await;
}

/// Over QUIC a crash is noticed by the silence of the peer.
#[tokio::test]
async fn a_crash_is_survived_over_quic() {
    survive_a_crash("quic").await;
}

/// Batches in flight when the broker crashes have an unknown outcome: the publisher receives that error, and the next
/// publish works.
#[tokio::test]
async fn batches_on_the_way_get_an_unknown_outcome() {
    let mut server = Server::start();
    let client = server.client("tcp").await;
    let publisher = within("publisher", client.publisher("t").open()).await.expect("open");
    within("publish", publisher.publish(&Record::new("0"))).await.expect("published");
    // A stopped broker process accepts bytes and sends no responses.
    server.freeze();
    let single = tokio::spawn({
        let client = client.clone();
        async move { client.publish("t", Record::new("1")).await }
    });
    for i in 0..10 {
        within("send", publisher.send(&Record::new(i.to_string()))).await.expect("sent");
        tokio::task::yield_now().await;
    }
    server.crash_and_restart();
    let flushed = within("flush", publisher.flush()).await.expect_err("nothing was acknowledged");
    let single = within("publish", single).await.expect("no panic").expect_err("not acknowledged");
    for error in [flushed, single] {
        assert_eq!((error.kind, error.retry_class()), (ErrorKind::Disconnected, RetryClass::OutcomeUnknown), "{error}");
    }
    // Both ways of publishing recover independently.
    within("send", publisher.send(&Record::new("after"))).await.expect("sent");
    tokio::task::yield_now().await;
    within("flush", publisher.flush()).await.expect("acknowledged");
    within("publish", client.publish("t", Record::new("after"))).await.expect("published");
    within("publish", publisher.publish(&Record::new("after"))).await.expect("published");
    let mut all = subscribe(&client, "t", Start::Earliest).await;
    assert_eq!(values(&mut all, 3).await, ["after", "after", "after"]);
}

/// A publisher that sends records in the background reconnects automatically.
#[tokio::test]
async fn a_publisher_reconnects_in_the_background() {
    let server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let watcher = server.client("tcp").await;
    let publisher = within("publisher", client.publisher("t").open()).await.expect("open");
    for round in 0..3 {
        within("send", publisher.send(&Record::new(format!("before-{round}")))).await.expect("sent");
        within("flush", publisher.flush()).await.expect("acknowledged");
        let connections = metric(&watcher, "thalweg_native_connections").await;
        proxy.cut();
        until("the cut is noticed", async || metric(&watcher, "thalweg_native_connections").await < connections).await;
        until("the publisher works again", async || {
            within("send", publisher.send(&Record::new("again"))).await.map(drop).unwrap_or_default();
            // The background task takes the record before the flush does.
            tokio::task::yield_now().await;
            within("flush", publisher.flush()).await.is_ok()
        })
        .await;
    }
}

/// With a connection that breaks repeatedly, even within frames, the subscription resumes by offset, without losses or
/// duplicates.
#[tokio::test]
async fn a_broken_wire_loses_nothing_and_repeats_nothing() {
    let server = Server::start();
    // Enough for the hello; then cut at various positions.
    let limits: Vec<usize> = (0..30).map(|i| 200 + i * 397).collect();
    let proxy = Proxy::start(server.address, limits.clone()).await;
    let publisher = server.client("tcp").await;
    let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
    within("create", publisher.create_topic("t", settings)).await.expect("created");
    let reader = Client::lazy(client::Address::parse(&proxy.url()).expect("an address"), ClientSettings::default());
    let mut subscription = subscribe(&reader, "t", Start::Earliest).await;
    let count = 1_000;
    let sending = tokio::spawn(async move {
        let publisher = within("publisher", publisher.publisher("t").open()).await.expect("open");
        for i in 0..count {
            let records: Vec<Record> =
                (0..3).map(|j| Record::new(format!("{i}.{j}: {:40}", "")).with_key(format!("{i}"))).collect();
            within("publish", publisher.publish_batch(&records)).await.expect("published");
        }
    });
    let mut follow = Contiguous::starting_at(0, 0);
    for i in 0..3 * count {
        if i % 500 == 499 {
            proxy.cut();
        }
        follow.see(&take(&mut subscription, 1).await[0]);
    }
    within("the publisher", sending).await.expect("no panic");
    assert!(proxy.connections() > limits.len(), "it was cut {} times", proxy.connections());
}

/// A client that is killed within a batch leaves no part of it behind and affects no other client.
#[tokio::test]
async fn a_client_that_dies_in_a_batch_hurts_nobody() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut subscription = subscribe(&client, "t", Start::Live).await;
    for part in [1, 11, 12, 13, 40, 100, 5_000] {
        let mut dying = Raw::open(server.address).await;
        dying.publish("t", &[b"whole"]).await;
        let frame = encode(&publish_request("t", Acks::Accepted, &[&[b'x'; 10_000]]), 9);
        dying.write(&frame[..part]).await;
        drop(dying);
        publish(&client, "t", ["next"]).await;
        assert_eq!(values(&mut subscription, 2).await, ["whole", "next"]);
    }
    let mut process = program()
        .args(["--server", &server.url("quic"), "publish", "flood", "x", "--count", "1000000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    until("it publishes", async || metric(&client, "thalweg_published_records_total").await > 1_000).await;
    process.kill().expect("killed");
    process.wait().expect("gone");
    publish(&client, "t", ["end"]).await;
    assert_eq!(values(&mut subscription, 1).await, ["end"]);
    let mut raw = Raw::open(server.address).await;
    assert!(matches!(raw.call(&Request::Ping).await, wire::Response::Pong));
}

/// Calls to a broker that accepts everything and does not respond time out; once it responds again, the same connection
/// continues.
#[tokio::test]
async fn a_silent_broker_times_out() {
    let server = Server::start();
    let settings = ClientSettings {
        request_timeout: Duration::from_millis(200),
        publishes_in_flight_max: 2,
        ..ClientSettings::default()
    };
    let client = server.client_with("tcp", settings).await;
    let publisher = within("publisher", client.publisher("t").open()).await.expect("open");
    let unacknowledged = client.publisher("other").acks(Acks::None).open();
    let unacknowledged = within("publisher", unacknowledged).await.expect("open");
    server.freeze();
    for error in [
        within("ping", client.ping()).await.map(drop),
        within("publish", client.publish("t", Record::new("0"))).await.map(drop),
        within("publish", publisher.publish(&Record::new("1"))).await.map(drop),
    ] {
        assert_eq!(error.map_err(|error| error.kind), Err(ErrorKind::Timeout));
    }
    within("send", publisher.send(&Record::new("2"))).await.expect("gathered");
    assert_eq!(kind_of("flush", publisher.flush()).await, Err(ErrorKind::Timeout));
    let large = Record::new(vec![b'x'; 1 << 20]);
    let refused = async { while unacknowledged.publish(&large).await.is_ok() {} };
    within("no room any more", refused).await;
    server.signal(Signal::CONT);
    within("flush", publisher.flush()).await.expect("acknowledged after all");
    until("the same connection answers", async || client.ping().await.is_ok()).await;
    until("all is taken", async || unacknowledged.publish(&Record::new("end")).await.is_ok()).await;
    let mut all = subscribe(&client, "t", Start::Earliest).await;
    assert_eq!(values(&mut all, 3).await, ["0", "1", "2"], "an unknown outcome may be a success");
}

/// After an orderly stop and start of the broker, subscriptions continue with the new one, over every transport.
#[tokio::test]
async fn a_restart_in_order_is_survived() {
    let mut server = Server::start();
    let mut subscriptions = Vec::new();
    for scheme in ["tcp", "quic", "tls"] {
        let client = server.client(scheme).await;
        subscriptions.push((scheme, subscribe(&client, "t", Start::Live).await, client));
    }
    publish(&subscriptions[0].2, "t", ["before"]).await;
    for (_, subscription, _) in &mut subscriptions {
        assert_eq!(values(subscription, 1).await, ["before"]);
    }
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code(), Some(0));
    server.start_again();
    let publisher = server.client("tcp").await;
    publish(&publisher, "t", ["after"]).await;
    for (scheme, subscription, client) in &mut subscriptions {
        expect_restart(subscription).await;
        assert_eq!(values(subscription, 1).await, ["after"], "{scheme}");
        within("ping", client.ping()).await.expect("connected again");
    }
}

/// A topic that is deleted and created again while its subscriber is disconnected is a new log: the subscriber receives
/// an event and all of its records.
#[tokio::test]
async fn a_topic_made_anew_is_read_anew() {
    let server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let near = server.client("tcp").await;
    let far = connect(&proxy.url(), ClientSettings::default()).await;
    let mut subscription = subscribe(&far, "t", Start::Live).await;
    publish(&near, "t", 0..10).await;
    assert_eq!(values(&mut subscription, 10).await.len(), 10);
    proxy.go_down();
    until("it is away", async || metric(&near, "thalweg_subscribers").await == 0).await;
    within("delete", near.delete_topic("t")).await.expect("deleted");
    publish(&near, "t", ["a", "b"]).await;
    proxy.go_up();
    expect_restart(&mut subscription).await;
    assert_eq!(values(&mut subscription, 2).await, ["a", "b"]);
}

/// Records that arrive while a subscriber is disconnected are delivered on its return, and a gap reports those that
/// retention deleted.
#[tokio::test]
async fn records_published_during_a_disconnect_are_delivered_later() {
    let server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let near = server.client("tcp").await;
    let far = connect(&proxy.url(), ClientSettings::default()).await;
    let settings = TopicSettings { retention_bytes: 4_096, ..TopicSettings::default() };
    within("create", near.create_topic("short", settings)).await.expect("created");
    let mut whole = subscribe(&far, "t", Start::Live).await;
    let mut short = subscribe(&far, "short", Start::Live).await;
    for topic in ["t", "short"] {
        publish(&near, topic, ["before"]).await;
    }
    assert_eq!(values(&mut whole, 1).await, ["before"]);
    assert_eq!(values(&mut short, 1).await, ["before"]);
    proxy.go_down();
    until("both are away", async || metric(&near, "thalweg_subscribers").await == 0).await;
    for topic in ["t", "short"] {
        publish(&near, topic, 0..200).await;
    }
    proxy.go_up();
    assert_eq!(values(&mut whole, 200).await, (0..200).map(|i| i.to_string()).collect::<Vec<_>>());
    let oldest = within("describe", near.describe_topic("short")).await.expect("a topic").partitions[0].start;
    match next_event(&mut short).await {
        Event::Gap { from, to, .. } => assert_eq!((from, to), (1, oldest)),
        other => panic!("no gap but {other:?}"),
    }
    assert_eq!(values(&mut short, 1).await, [(oldest - 1).to_string()]);
}
