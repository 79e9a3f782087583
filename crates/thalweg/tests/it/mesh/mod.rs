//! A mesh of brokers and clusters: the command line, restarts, and the doors at which a live topic is read.

use std::time::Duration;

use client::{Client, NewQueue, Receive, Record, Start};
use serde_json::Value;

use crate::door::redis::commands::Redis;
use crate::support::cluster::{Cluster, http};
use crate::support::command::{feed, on};
use crate::support::ports::free_ports;
use crate::support::reading::{publish, subscribe, take, text, values};
use crate::support::server::{Server, metric, program, until, within};

/// Returns the state of a site.
fn status(site: &Server) -> Value {
    on(site, ["mesh", "status", "--json"]).json()
}

async fn until_linked(site: &Server, other: &str) {
    let is_linked = async || {
        let status = status(site);
        let sites = status["sites"].as_array().expect("a list");
        sites.iter().any(|of| of["site"] == other && of["link"] == "direct")
    };
    until(&format!("a link to {other}"), is_linked).await;
}

/// Starts a broker with a data directory that other sites reach.
fn site() -> Server {
    let port = free_ports(2);
    Server::with(&["data=data", &format!("mesh=127.0.0.1:{port}"), &format!("http=127.0.0.1:{}", port + 1)])
}

/// Waits until a site sends a topic to others.
async fn until_sent(client: &Client, topic: &str, to: &[&str]) {
    let is_sent = async || {
        // The publishing site asks for the readers at the first record, and is told of the later ones.
        let topics = client.mesh_topics().await.expect("in a mesh");
        topics
            .iter()
            .any(|of| of.topic.as_str() == topic && of.sites.iter().map(|site| site.as_str()).eq(to.iter().copied()))
    };
    until(&format!("{topic} to {to:?}"), is_sent).await;
}

#[tokio::test]
async fn sites_are_made_and_watched_by_the_command_line_and_linked_again_after_a_crash() {
    let (mut berlin, oslo) = (site(), site());
    assert!(on(&berlin, ["mesh", "status"]).failed(4).contains("thalweg mesh init"));
    let text = on(&berlin, ["mesh", "init", "berlin"]).ok();
    assert!(text.contains("thalweg mesh invite"), "{text}");
    let invitation = on(&berlin, ["mesh", "invite"]).ok();
    let joined = feed(&oslo, ["mesh", "join", "--site", "oslo"], &invitation).ok();
    assert!(joined.contains("oslo"), "{joined}");
    until_linked(&berlin, "oslo").await;
    until_linked(&oslo, "berlin").await;
    let table = on(&berlin, ["mesh", "status"]).ok();
    assert!(table.contains("oslo") && table.contains("direct"), "{table}");

    for site in [&berlin, &oslo] {
        on(site, ["topic", "create", "prices", "--mesh", "live"]).ok();
    }
    let reader = oslo.client("tcp").await;
    let mut prices = subscribe(&reader, "prices", Start::Live).await;
    let publisher = berlin.client("tcp").await;
    publish(&publisher, "prices", ["0"]).await;
    until_sent(&publisher, "prices", &["oslo"]).await;
    publish(&publisher, "prices", ["1"]).await;
    until("the record", async || values(&mut prices, 1).await == ["1"]).await;

    // It has its key and the list of sites in its data directory.
    let key = status(&berlin)["key"].clone();
    berlin.crash();
    until("the link has ended", async || status(&oslo)["sites"][0]["link"] == "down").await;
    let down = on(&oslo, ["mesh", "status"]).ok();
    assert!(down.contains("isolated"), "{down}");
    berlin.start_again();
    until_linked(&oslo, "berlin").await;
    assert_eq!(status(&berlin)["key"], key);
    let publisher = berlin.client("tcp").await;
    publish(&publisher, "prices", ["first after the crash"]).await;
    until_sent(&publisher, "prices", &["oslo"]).await;
    publish(&publisher, "prices", ["after the crash"]).await;
    until("the record", async || values(&mut prices, 1).await == ["after the crash"]).await;
    assert!(metric(&publisher, "thalweg_mesh_lookups_total").await >= 1);

    // The sites are the same over HTTP.
    let (code, body) = http(oslo.door("http"), "GET", "/v1/mesh", "").await.expect("an answer");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &body["sites"][0]["site"]), (200, &"berlin".into()));

    assert!(on(&oslo, ["mesh", "remove", "nobody", "--yes"]).failed(4).contains("berlin, oslo"));
    on(&berlin, ["mesh", "remove", "oslo", "--yes"]).ok();
    until("oslo is isolated", async || !status(&oslo)["isolated_ms"].is_null()).await;
    on(&oslo, ["mesh", "leave", "--yes"]).ok();
    assert!(on(&oslo, ["mesh", "status"]).failed(4).contains("no mesh"));
}

#[tokio::test]
async fn a_live_topic_is_read_through_every_door_at_another_site() {
    let mesh = format!("mesh=127.0.0.1:{}", free_ports(1));
    let (near, far) = (Server::with(&[&mesh]), Server::with(&["redis=127.0.0.1:0"]));
    let (here, there) = (near.client("tcp").await, far.client("tcp").await);
    on(&near, ["mesh", "init", "near"]).ok();
    let invitation = on(&near, ["mesh", "invite"]).ok();
    feed(&far, ["mesh", "join", "--site", "far"], &invitation).ok();
    for site in [&near, &far] {
        on(site, ["topic", "create", "prices", "--mesh", "live"]).ok();
    }
    let mut redis = Redis::open(&far);
    assert_eq!(redis.call("SUBSCRIBE prices"), "(subscribe prices :1)");
    let mut native = subscribe(&there, "prices", Start::Live).await;
    let new = NewQueue {
        queue: "work".to_owned(),
        topic: "prices".to_owned(),
        is_live: true,
        storage: client::Storage::Auto,
        settings: Vec::new(),
        notes: Vec::new(),
    };
    within("a queue", there.create_queue(new)).await.expect("created");
    publish(&here, "prices", ["early"]).await;
    until_sent(&here, "prices", &["far"]).await;
    publish(&here, "prices", ["3.20"]).await;

    // The early one may have been published before the other site was known to read the topic.
    until("the native subscriber", async || values(&mut native, 1).await == ["3.20"]).await;
    until("the Redis subscriber", async || redis.answer() == "(message prices 3.20)").await;
    let receive = Receive { wait: Duration::from_secs(5), ..Receive::default() };
    let got_it = async || {
        let received = there.queue("work").receive(&receive).await.expect("received");
        received.messages.iter().any(|message| text(&message.message.body) == "3.20")
    };
    until("the queue", got_it).await;
    // It is in the log of the topic there, from which a Kafka consumer fetches it.
    let (_, end, batches) = there.fetch("prices", 0, 0, Duration::ZERO).await.expect("fetched");
    let last = batches.last().expect("a batch");
    assert_eq!((last.next_offset(), last.count()), (end, 1));
}

/// A consumer that only polls is a reader, too.
#[tokio::test]
async fn a_consumer_that_polls_is_a_reader() {
    let mesh = format!("mesh=127.0.0.1:{}", free_ports(1));
    let (near, far) = (Server::with(&[&mesh]), Server::start());
    let (here, there) = (near.client("tcp").await, far.client("tcp").await);
    on(&near, ["mesh", "init", "near"]).ok();
    feed(&far, ["mesh", "join", "--site", "far"], &on(&near, ["mesh", "invite"]).ok()).ok();
    for site in [&near, &far] {
        on(site, ["topic", "create", "prices", "--mesh", "live"]).ok();
    }
    let polling = tokio::spawn(async move {
        loop {
            let (_, _, batches) = there.fetch("prices", 0, 0, Duration::from_secs(1)).await.expect("fetched");
            if let Some(batch) = batches.first() {
                return batch.count();
            }
        }
    });
    publish(&here, "prices", ["early"]).await;
    until_sent(&here, "prices", &["far"]).await;
    publish(&here, "prices", ["3.20"]).await;
    assert!(within("a record", polling).await.expect("it polls") >= 1);
}

#[tokio::test]
async fn a_request_is_answered_at_another_site() {
    let (berlin, oslo) = (site(), site());
    on(&berlin, ["mesh", "init", "berlin"]).ok();
    feed(&oslo, ["mesh", "join", "--site", "oslo"], &on(&berlin, ["mesh", "invite"]).ok()).ok();
    for site in [&berlin, &oslo] {
        on(site, ["topic", "create", "prices", "--mesh", "live"]).ok();
    }
    let (here, there) = (berlin.client("tcp").await, oslo.client("tcp").await);
    let mut requests = subscribe(&there, "prices", Start::Live).await;
    let responder = tokio::spawn(async move {
        while let Ok(message) = requests.next().await {
            let asked = text(message.record.value());
            there.reply(&message.record, Record::new(format!("{asked}: 3.20"))).await.expect("replied");
        }
    });
    until_sent(&here, "prices", &["oslo"]).await;
    for number in 0..20 {
        let asked = format!("coffee {number}");
        let answer = here.request("prices", Record::new(asked.clone()), Duration::from_secs(30)).await;
        assert_eq!(text(answer.expect("answered").value()), format!("{asked}: 3.20"));
    }
    responder.abort();
}

#[tokio::test]
async fn a_mirrored_topic_is_copied_and_a_failover_makes_its_copy_writable() {
    let (berlin, oslo) = (site(), site());
    on(&berlin, ["mesh", "init", "berlin"]).ok();
    feed(&oslo, ["mesh", "join", "--site", "oslo"], &on(&berlin, ["mesh", "invite"]).ok()).ok();
    on(&berlin, ["topic", "create", "orders", "--mesh", "source"]).ok();
    on(&oslo, ["topic", "create", "orders", "--mesh", "mirror"]).ok();
    let (here, there) = (berlin.client("tcp").await, oslo.client("tcp").await);
    publish(&here, "orders", ["0", "1", "2"]).await;

    let state = || {
        let listed = on(&oslo, ["mesh", "topics", "--json"]).json();
        let topics = listed.as_array().expect("topics");
        topics.iter().find(|of| of["topic"] == "berlin.orders").cloned().unwrap_or_default()
    };
    let is_copied = async || state()["received_records"] == 3 && state()["copy"]["behind"] == 0;
    until("the copy has all records", is_copied).await;
    let copied = serde_json::json!({ "origin": "berlin", "behind": 0, "lost_records": 0, "error": null });
    assert_eq!((&state()["mode"], &state()["copy"]), (&"copy".into(), &copied));
    let (code, body) = http(oslo.door("http"), "GET", "/v1/mesh/topics", "").await.expect("an answer");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &body["topics"][0]), (200, &state()));
    assert_eq!((&body["topics"][1]["topic"], &body["topics"][1]["mode"]), (&"orders".into(), &"mirror".into()));
    let table = on(&oslo, ["mesh", "topics"]).ok();
    assert!(table.contains("BEHIND") && table.contains("berlin.orders"), "{table}");
    let mut copy = subscribe(&there, "berlin.orders", Start::Earliest).await;
    let records = take(&mut copy, 3).await.into_iter().map(|message| message.record);
    let records: Vec<_> = records.map(|record| (record.offset, text(record.value()))).collect();
    assert_eq!(records, [(0, "0".to_owned()), (1, "1".to_owned()), (2, "2".to_owned())]);
    // A source copies none.
    let listed = on(&berlin, ["topic", "list", "--json"]).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");

    let refused = on(&oslo, ["publish", "berlin.orders", "x"]).failed(2);
    assert!(refused.contains("thalweg topic alter berlin.orders --mesh off"), "{refused}");
    let described = on(&oslo, ["topic", "describe", "berlin.orders"]).ok();
    assert!(described.contains("copy of a topic of another site"), "{described}");
    on(&oslo, ["topic", "alter", "berlin.orders", "--mesh", "off"]).ok();
    publish(&there, "berlin.orders", ["after the failover"]).await;
    assert_eq!(values(&mut copy, 1).await, ["after the failover"]);
}

#[tokio::test]
async fn a_cluster_is_one_site_and_another_node_has_its_links_after_a_failover() {
    let hub = site();
    on(&hub, ["mesh", "init", "hub"]).ok();
    let invitation = on(&hub, ["mesh", "invite"]).ok();
    let mut cluster = Cluster::start(3).await;
    cluster.until_voters(3).await;
    let leader = cluster.leader().await;
    cluster.on(leader, &["mesh", "join", invitation.trim(), "--site", "plant"]).ok();
    let create = ["topic", "create", "prices", "--mesh", "live"];
    on(&hub, create).ok();
    cluster.on(leader, &create).ok();
    until_linked(&hub, "plant").await;
    let key = status(&hub)["sites"][0]["key"].clone();
    let publisher = hub.client("tcp").await;

    cluster.kill(leader);
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    let client = cluster.client(next).await;
    let mut prices = subscribe(&client, "prices", Start::Live).await;
    until_linked(&hub, "plant").await;
    assert_eq!(status(&hub)["sites"][0]["key"], key, "the same site");
    publish(&publisher, "prices", ["early"]).await;
    until_sent(&publisher, "prices", &["plant"]).await;
    publish(&publisher, "prices", ["3.20"]).await;
    let mut received = text(take(&mut prices, 1).await[0].record.value());
    while received != "3.20" {
        assert_eq!(received, "early");
        received = text(take(&mut prices, 1).await[0].record.value());
    }
}

#[test]
fn the_demo_delivers_everything_once() {
    let output = program().args(["--json", "mesh", "demo", "--seconds", "2"]).output().expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["sites"], &report["published"]), (&3.into(), &600.into()), "{report}");
    assert_eq!([&report["lost"], &report["duplicated"], &report["reordered"]], [0, 0, 0], "{report}");
    assert!(report["p99_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    // A site looks the topic up when it becomes live, and again when the answer is older than its time to live.
    assert!(report["lookups"].as_u64().is_some_and(|count| count <= 9), "{report}");
}
