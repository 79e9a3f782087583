//! Retention of topics that other systems' clients create, and its description at each door.

use serde_json::{Value, json};

use crate::door::pubsub::push::done;
use crate::support::command::on;
use crate::support::server::{Server, within};

const TOPIC: &str = "projects/thalweg/topics/orders";
const BILLING: &str = "projects/thalweg/subscriptions/billing";
const DAY_MS: u64 = 86_400_000;

async fn publish(server: &Server, data: &str) {
    let messages = json!({ "messages": [{ "data": data }] });
    done(server.pubsub(), "POST", &format!("/v1/{TOPIC}:publish"), messages).await;
}

/// Pulls one message and acknowledges it.
async fn consume(server: &Server) {
    let pulled = done(server.pubsub(), "POST", &format!("/v1/{BILLING}:pull"), json!({ "maxMessages": 1 })).await;
    let ack_id = &pulled["receivedMessages"][0]["ackId"];
    done(server.pubsub(), "POST", &format!("/v1/{BILLING}:acknowledge"), json!({ "ackIds": [ack_id] })).await;
}

/// Google's rule: `message_retention_duration` is the minimum time that a topic keeps its messages, 10 minutes to 31
/// days. Without it this broker keeps them for 7 days, so that Kafka's and native clients can read them as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_of_pubsub_keeps_its_records() {
    let server = Server::with(&["pubsub=127.0.0.1:0", "http=127.0.0.1:0"]);
    let rest = server.pubsub();
    let made = done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({})).await;
    assert_eq!(made, json!({ "name": TOPIC }), "a default is not shown as if it had been set");
    done(rest, "PUT", &format!("/v1/{BILLING}"), json!({ "topic": TOPIC })).await;
    publish(&server, "eA==").await;
    consume(&server).await;
    publish(&server, "eQ==").await;
    let log = on(&server, ["--json", "topic", "describe", "orders"]).json();
    assert_eq!((&log["partitions"][0]["start"], &log["partitions"][0]["end"]), (&json!(0), &json!(2)), "{log}");
    assert_eq!((&log["retention_ms"], &log["owner"]), (&json!(7 * DAY_MS), &Value::Null));
    assert_eq!((&log["drop_acknowledged"], &log["keep_unacknowledged"]), (&json!(false), &json!(true)));
    let text = on(&server, ["topic", "describe", "orders"]).ok();
    assert!(text.contains("when retention is over and every queue has acknowledged them"), "{text}");

    let http = done(server.door("http"), "GET", "/v1/topics/orders", Value::Null).await;
    assert_eq!((&http["settings"]["retention_ms"], &http["owner"]), (&json!(7 * DAY_MS), &Value::Null), "{http}");
    assert_eq!(http["settings"]["keep_unacknowledged"], json!(true), "{http}");
    let client = server.client("tcp").await;
    let native = within("describe", client.describe_topic("orders")).await.expect("there");
    assert!(native.settings.keeps_unacked && !native.settings.drop_consumed && native.owner.is_empty(), "{native:?}");

    let given = json!({ "name": TOPIC, "messageRetentionDuration": "600s" });
    let change = json!({ "topic": given, "updateMask": "messageRetentionDuration" });
    done(rest, "PATCH", &format!("/v1/{TOPIC}"), change).await;
    let log = on(&server, ["--json", "topic", "describe", "orders"]).json();
    assert_eq!((&log["retention_ms"], &log["keep_unacknowledged"]), (&json!(600_000), &json!(true)));
    assert_eq!(log["retention_bytes"], json!(0), "a duration that is asked for is a minimum");
    let change = json!({ "topic": { "name": TOPIC }, "updateMask": "messageRetentionDuration" });
    done(rest, "PATCH", &format!("/v1/{TOPIC}"), change).await;
    let log = on(&server, ["--json", "topic", "describe", "orders"]).json();
    assert_eq!(log["retention_ms"], json!(7 * DAY_MS), "the default again");
}

/// The topic of a queue keeps records only for the queue, and names its owner.
#[tokio::test(flavor = "multi_thread")]
async fn the_topic_of_a_queue_names_its_owner() {
    let server = Server::with(&["http=127.0.0.1:0"]);
    on(&server, ["queue", "create", "jobs", "--retention", "2d"]).ok();
    let log = on(&server, ["--json", "topic", "describe", "jobs"]).json();
    assert_eq!((&log["owner"], &log["drop_acknowledged"]), (&json!("jobs"), &json!(true)), "{log}");
    assert_eq!(log["retention_ms"], json!(2 * DAY_MS), "{log}");
    let text = on(&server, ["topic", "describe", "jobs"]).ok();
    assert!(text.contains("when every queue has acknowledged them, or when retention is over"), "{text}");
    assert!(text.contains("the queue jobs, which owns this topic"), "{text}");
    let http = done(server.door("http"), "GET", "/v1/topics/jobs", Value::Null).await;
    assert_eq!((&http["owner"], &http["settings"]["drop_acknowledged"]), (&json!("jobs"), &json!(true)), "{http}");
    let client = server.client("tcp").await;
    let native = within("describe", client.describe_topic("jobs")).await.expect("there");
    assert_eq!((native.owner.as_str(), native.settings.drop_consumed), ("jobs", true));
    // A queue over an existing topic does not change the topic.
    on(&server, ["topic", "create", "log"]).ok();
    on(&server, ["queue", "create", "view", "--topic", "log"]).ok();
    let log = on(&server, ["--json", "topic", "describe", "log"]).json();
    assert_eq!((&log["owner"], &log["drop_acknowledged"]), (&Value::Null, &json!(false)), "{log}");
}
