//! Queues over HTTP: settings, sending and receiving of messages, leases, and refusals.

use std::time::Duration;

use bytes::Bytes;
use engine::limits::BATCH_BYTES_MAX;
use engine::{Acks, DraftBatch};
use serde_json::{Value, json};

use crate::http_client::*;

const QUEUE: &str = "/v1/queues/jobs";

async fn with_queue(settings: Value) -> Server {
    let server = start().await;
    let created = server.send("PUT", QUEUE, &[JSON], settings.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.text());
    server
}

async fn post(server: &Server, path: &str, body: Value) -> Answer {
    server.send("POST", &format!("{QUEUE}{path}"), &[JSON], body.to_string()).await
}

#[tokio::test]
async fn a_batch_that_nobody_can_read_hides_no_other_message() {
    let server = with_queue(json!({})).await;
    server.publish("jobs", &["before"]).await;
    server.publish_batch("jobs", unreadable_batch()).await;
    server.publish("jobs", &["after"]).await;
    let peeked = server.get(&format!("{QUEUE}/messages")).await;
    assert_eq!(peeked.status, 200, "{}", peeked.text());
    let peeked = peeked.json();
    let bodies: Vec<&Value> = peeked["messages"].as_array().expect("messages").iter().map(|one| &one["body"]).collect();
    assert_eq!(bodies, ["before", "after"]);
    let past_all = server.get(&format!("{QUEUE}/messages?after=0:{}", u64::MAX)).await;
    assert!(past_all.status < 500, "{}", past_all.text());
}

/// Receives messages and returns them.
async fn receive(server: &Server, query: &str) -> Vec<Value> {
    let answer = server.send("POST", &format!("{QUEUE}/receive{query}"), &[], "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["messages"].as_array().expect("messages").clone()
}

async fn counts(server: &Server) -> (u64, u64, u64) {
    let counts = server.get(QUEUE).await.json()["counts"].clone();
    let count = |name: &str| counts[name].as_u64().expect("a count");
    (count("visible"), count("in_flight"), count("delayed"))
}

fn refused(answer: &Answer) -> Value {
    let error = &answer.json()["error"];
    json!([answer.status, error["kind"], error["message"]])
}

#[tokio::test]
async fn one_call_receives_each_message_once_though_its_lease_has_ended() {
    let server = with_queue(json!({ "lease_ms": 0 })).await;
    server.publish("jobs", &["a", "b"]).await;
    for attempts in [1, 2] {
        let got: Vec<Value> =
            receive(&server, "?max=10").await.iter().map(|one| json!([one["body"], one["attempts"]])).collect();
        assert_eq!(got, [json!(["a", attempts]), json!(["b", attempts])]);
    }
    let peeked = server.get(&format!("{QUEUE}/messages")).await.json();
    assert_eq!(peeked["messages"][0]["phase"], "waiting", "{peeked}");
}

#[tokio::test]
async fn a_message_is_sent_received_returned_and_acknowledged() {
    let server = with_queue(json!({ "lease_ms": 60_000 })).await;
    let sent = post(
        &server,
        "/messages",
        json!({ "messages": [
        { "body": "one", "group": "g", "headers": { "a": "b" } },
        { "body": "AP8=", "encoding": "base64" },
    ] }),
    );
    let sent = sent.await.json();
    assert_eq!((&sent["messages"][0]["offset"], &sent["messages"][1]["is_duplicate"]), (&json!(0), &json!(false)));
    let messages = receive(&server, "?max=10").await;
    assert_eq!(messages.len(), 2);
    let first = &messages[0];
    assert_eq!(first["id"], sent["messages"][0]["id"]);
    let shown = json!([first["body"], first["group"], first["headers"], first["attempts"], first["encoding"]]);
    assert_eq!(shown, json!(["one", "g", { "a": "b" }, 1, "utf8"]));
    assert_eq!(json!([messages[1]["body"], messages[1]["encoding"]]), json!(["AP8=", "base64"]));
    assert_eq!(counts(&server).await, (0, 2, 0));

    let receipt = |at: usize| messages[at]["receipt"].as_str().expect("a receipt").to_owned();
    let kept = post(&server, "/extensions", json!({ "receipts": [receipt(0)], "lease_ms": 120_000 })).await;
    assert_eq!(kept.json(), json!({ "done": 1, "refused": [] }));
    let back = post(&server, "/nacks", json!({ "receipts": [receipt(1)], "delay_ms": 3_600_000 })).await;
    assert_eq!(back.json()["done"], 1);
    assert_eq!(counts(&server).await, (0, 1, 1));
    let acked = post(&server, "/acks", json!({ "receipts": [receipt(0), "made up"] })).await;
    let refused = json!([{ "receipt": "made up", "reason": "invalid" }]);
    assert_eq!(acked.json(), json!({ "done": 1, "refused": refused }));
    assert_eq!(counts(&server).await, (0, 0, 1));

    let peeked = server.get(&format!("{QUEUE}/messages")).await.json();
    let one = &peeked["messages"][0];
    assert_eq!(json!([one["body"], one["phase"], one["attempts"]]), json!(["AP8=", "delayed", 1]));
    let next = peeked["next"].as_str().expect("a place");
    let end = server.get(&format!("{QUEUE}/messages?after={next}")).await.json();
    assert_eq!(end, json!({ "messages": [], "next": null }));
    assert_eq!(server.send("DELETE", &format!("{QUEUE}/messages"), &[], "").await.json(), json!({ "purged": 1 }));
    assert_eq!(counts(&server).await, (0, 0, 0));
}

#[tokio::test]
async fn bodies_that_are_no_json_are_messages_as_they_are() {
    let server = with_queue(json!({})).await;
    let path = format!("{QUEUE}/messages");
    let raw = server.send("POST", &format!("{path}?group=g&dedup=d"), &[], Bytes::from_static(b"\xff\x00")).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    server.send("POST", &path, &[("content-type", "application/x-ndjson")], "{\"n\":1}\r\n\n{\"n\":2}").await;
    let bodies: Vec<Value> = receive(&server, "?max=10").await.iter().map(|message| message["body"].clone()).collect();
    assert_eq!(json!(bodies), json!(["/wA=", "{\"n\":1}", "{\"n\":2}"]));
}

/// A client that compresses its records may publish such a message.
#[tokio::test]
async fn a_message_may_be_larger_than_a_batch_where_a_key_allows_it() {
    let of_broker = broker::Settings { record_expansion_max: 2, ..broker::Settings::default() };
    let server = start_with(of_broker, settings(), 100).await;
    assert_eq!(server.send("PUT", QUEUE, &[JSON], "{}").await.status, 201);
    let body = "x".repeat(BATCH_BYTES_MAX + 1);
    let batch = DraftBatch::of_one(1000, None, Some(body.as_bytes()), &[]).expect("it gets small");
    server.publish_batch("jobs", batch).await;
    let messages = receive(&server, "").await;
    assert_eq!(messages[0]["body"].as_str().map(str::len), Some(body.len()));
}

#[tokio::test]
async fn a_waiting_receiver_gets_a_message_as_soon_as_one_is_sent() {
    let server = with_queue(json!({})).await;
    let waiting = receive(&server, "?wait_ms=25000");
    let sending = async {
        // Until a receiver waits there is nothing to wake.
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.send("POST", &format!("{QUEUE}/messages"), &[TEXT], "late").await
    };
    let (messages, _) = tokio::join!(waiting, sending);
    assert_eq!(messages[0]["body"], "late");
}

#[tokio::test]
async fn a_queue_is_over_a_topic_or_has_its_own() {
    let server = start().await;
    let publish = async |value: &'static str| server.send("POST", "/v1/topics/orders/records", &[TEXT], value).await;
    publish("before").await;
    let live = json!({ "topic": "orders", "start": "live", "order": "groups" });
    let created = server.send("PUT", QUEUE, &[JSON], live.to_string()).await.json();
    assert_eq!(
        json!([created["topic"], created["owns_topic"], created["settings"]["order"]]),
        json!(["orders", false, "groups"])
    );
    publish("after").await;
    assert_eq!(receive(&server, "?max=10").await[0]["body"], "after");
    assert_eq!(server.send("PUT", QUEUE, &[JSON], live.to_string()).await.status, 200);
    let other = server.send("PUT", QUEUE, &[JSON], json!({ "lease_ms": 1 }).to_string()).await;
    let differences = "lease_ms is 30000, not 1; order is groups, not any";
    let message = format!("queue jobs already exists with other settings: {differences}");
    assert_eq!(refused(&other), json!([409, "already_exists", message]));
    let empty = server.send("POST", &format!("{QUEUE}/messages"), &[TEXT], "").await;
    assert_eq!(empty.status, 400);
    assert!(empty.text().contains(r#"{\"messages\":[{\"body\":\"\"}]}"#), "{}", empty.text());

    let altered =
        server.send("PATCH", QUEUE, &[JSON], json!({ "dead_letter": "orders", "attempts_max": 3 }).to_string());
    assert_eq!(altered.await.json()["settings"]["dead_letter"], "orders");
    let back = server.send("PATCH", QUEUE, &[JSON], json!({ "dead_letter": null }).to_string()).await;
    assert_eq!(back.json()["settings"]["dead_letter"], Value::Null);
    assert_eq!(post(&server, "/seek", json!({ "to": "earliest" })).await.status, 204);
    assert_eq!(counts(&server).await, (2, 0, 0));
    let listed = server.get("/v1/queues?prefix=j&max=1").await.json();
    assert_eq!(json!([listed["queues"][0]["queue"], listed["is_last"]]), json!(["jobs", true]));
    assert_eq!(server.send("DELETE", QUEUE, &[], "").await.status, 204);
    assert_eq!(server.get(QUEUE).await.status, 404);
    assert_eq!(server.get("/v1/topics/orders").await.status, 200, "the topic was there before");
}

#[tokio::test]
async fn dead_letters_come_back() {
    let server = with_queue(json!({ "attempts_max": 1, "dead_letter": "dead" })).await;
    server.send("PUT", "/v1/queues/dead", &[], "").await;
    server.send("POST", &format!("{QUEUE}/messages"), &[TEXT], "poison").await;
    let first = receive(&server, "").await;
    post(&server, "/nacks", json!({ "receipts": [first[0]["receipt"]] })).await;
    assert!(receive(&server, "").await.is_empty(), "it has no attempt left");
    let dead = server.send("POST", "/v1/queues/dead/receive?wait_ms=25000", &[], "").await.json();
    assert_eq!(json!([dead["messages"][0]["body"], dead["messages"][0]["source"]]), json!(["poison", "jobs"]));
    let receipt = &dead["messages"][0]["receipt"];
    let nack = json!({ "receipts": [receipt], "delay_ms": 0 }).to_string();
    server.send("POST", "/v1/queues/dead/nacks", &[JSON], nack).await;
    let begun = server.send("POST", "/v1/queues/dead/redrives", &[], "").await;
    assert_eq!((begun.status, begun.json()["to_move"].clone()), (202, json!(1)));
    assert_eq!(receive(&server, "?wait_ms=25000").await[0]["id"], first[0]["id"], "it is the same message");
    let redrives = server.get("/v1/queues/dead/redrives").await.json();
    let id = redrives["redrives"][0]["redrive"].clone();
    let cancelled = server.send("DELETE", &format!("/v1/queues/jobs/redrives/{id}"), &[], "").await;
    assert_eq!(cancelled.status, 404, "it is no move of this queue");
}

#[tokio::test]
async fn wrong_requests_are_refused_with_a_reason_and_change_nothing() {
    let server = with_queue(json!({})).await;
    server.broker.describe_topic("jobs").expect("its topic");
    let many = vec!["x"; 1001];
    for (method, path, body, expected) in [
        ("PUT", "", json!({ "lease": 1 }), (400, "a queue has no setting 'lease'; it has lease_ms, ")),
        ("PUT", "", json!({ "lease_ms": "1" }), (400, "lease_ms: \"1\" is not valid here")),
        ("PUT", "", json!({ "lease_ms": -1 }), (400, "lease_ms: '-1' is not valid here")),
        ("PUT", "", json!({ "topic": "absent" }), (409, "queue jobs already exists with other settings")),
        ("PATCH", "", json!({}), (400, "name at least one setting to change")),
        ("PATCH", "", json!({ "order": "fair" }), (400, "the order of a queue cannot be changed")),
        ("POST", "/messages", json!({ "messages": [] }), (400, "a request sends 1 to 1000 messages, not 0")),
        ("POST", "/messages", json!({ "messages": [{}] }), (400, "the JSON: missing field `body`")),
        (
            "POST",
            "/messages",
            json!({ "messages": [{ "body": "*", "encoding": "base64" }] }),
            (400, "message 0: the body is"),
        ),
        (
            "POST",
            "/messages",
            json!({ "messages": [{ "body": "", "headers": { "thalweg.due": "1" } }] }),
            (400, "message 0: header thalweg.due: "),
        ),
        (
            "POST",
            "/messages",
            json!({ "messages": [{ "body": "", "delay_ms": u64::MAX }] }),
            (400, "a delay is at most 604800000 ms"),
        ),
        ("POST", "/receive?max=0", json!(null), (400, "max: at least 1")),
        ("POST", "/receive?lease_ms=99999999999", json!(null), (400, "lease_ms is at most 43200000")),
        ("POST", "/acks", json!({ "receipts": [] }), (400, "receipts: 1 to 1000 at a time, not 0")),
        ("POST", "/acks", json!({ "receipts": many }), (400, "receipts: 1 to 1000 at a time, not 1001")),
        ("POST", "/extensions", json!({ "receipts": ["x"] }), (400, "the JSON: missing field `lease_ms`")),
        ("GET", "/messages?after=x", json!(null), (400, "after: 'x' is not <partition>:<offset>")),
        ("POST", "/seek", json!({ "to": "1" }), (400, "set to (earliest or end) or timestamp_ms")),
        ("POST", "/redrives", json!({ "to": "absent" }), (404, "there is no queue absent")),
        ("DELETE", "/redrives/x", json!(null), (400, "redrive: 'x' is not valid here")),
    ] {
        let answer = server.send(method, &format!("{QUEUE}{path}"), &[JSON], body.to_string()).await;
        let told = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!((answer.status, told.starts_with(expected.1)), (expected.0, true), "{method} {path} {body}: {told}");
    }
    assert_eq!(counts(&server).await, (0, 0, 0));
    let absent = server.send("POST", "/v1/queues/absent/messages", &[TEXT], "x").await;
    assert_eq!(absent.status, 404, "a queue does not appear by itself");
    let hidden = server.send("PUT", "/v1/queues/_queues", &[], "").await;
    assert_eq!(hidden.status, 400, "{}", hidden.text());
}

#[tokio::test]
async fn a_receipt_counts_for_its_own_queue_only() {
    let server = with_queue(json!({})).await;
    server.send("PUT", "/v1/queues/other", &[], "").await;
    for queue in ["jobs", "other"] {
        server.send("POST", &format!("/v1/queues/{queue}/messages"), &[TEXT], "x").await;
    }
    let receipt = receive(&server, "").await[0]["receipt"].clone();
    server.send("POST", "/v1/queues/other/receive", &[], "").await;
    let foreign = server.send("POST", "/v1/queues/other/acks", &[JSON], json!({ "receipts": [receipt] }).to_string());
    assert_eq!(foreign.await.json()["refused"][0]["reason"], "invalid");
    server.send("DELETE", QUEUE, &[], "").await;
    server.send("PUT", QUEUE, &[], "").await;
    let stale = post(&server, "/acks", json!({ "receipts": [receipt] })).await;
    assert_eq!(stale.json()["refused"][0]["reason"], "invalid", "the queue is another");
}

#[tokio::test]
async fn a_full_queue_says_so() {
    let server = with_queue(json!({ "messages_max": 1 })).await;
    let path = format!("{QUEUE}/messages");
    assert_eq!(server.send("POST", &path, &[TEXT], "one").await.status, 200);
    let full = server.send("POST", &path, &[TEXT], "two").await;
    assert_eq!((full.status, &full.json()["error"]["kind"]), (503, &json!("busy")));
    // The topic is full for other doors, too.
    let mut wakes = broker::Wakes::default();
    let batch = batch(&["three"]);
    let published = server.broker.publish("jobs", Some(0), Acks::Default, batch, &mut wakes).await;
    assert_eq!(published.map(|_| ()).map_err(|error| error.kind), Err(engine::ErrorKind::Busy));
}
