//! Doors of nodes that do not lead: they hand clients over to the leader.

use client::{Record, Start};
use engine::Codec;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::door::kafka::raw::{self, Raw};
use crate::door::sqs::client::Sqs;
use crate::support::cluster::Cluster;
use crate::support::server::within;

/// Sends a line to a Redis door, and returns the first line of the answer.
async fn redis(cluster: &Cluster, node: u64, line: &str) -> String {
    let mut stream = TcpStream::connect(cluster.door(node, "redis")).await.expect("connected");
    stream.write_all(format!("{line}\r\n").as_bytes()).await.expect("sent");
    let mut answer = vec![0; 256];
    let read = within("an answer", stream.read(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// Returns the values of a topic, as a node shows them over HTTP.
async fn values(cluster: &Cluster, node: u64, topic: &str) -> Vec<String> {
    let path = format!("/v1/topics/{topic}/records?offset=earliest&wait_ms=0");
    let (status, answer) = cluster.http(node, "GET", &path, &Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    let records = answer["records"].as_array().expect("records").iter();
    records.map(|record| record["value"].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn each_door_of_a_follower_serves_the_topics_of_the_leader() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let [one, other] = cluster.followers().await[..] else { panic!("two followers") };

    let native = cluster.client(one).await;
    native.create_topic("orders", client::TopicSettings::default()).await.expect("created");
    within("a publish", native.publish("orders", Record::new("native"))).await.expect("published");
    let body = json!({ "records": [{ "value": "http" }] });
    let (status, answer) = cluster.http(other, "POST", "/v1/topics/orders/records", &body).await;
    assert_eq!(status, 200, "{answer}");
    let mut kafka = Raw::connect_to(cluster.door(one, "kafka")).await;
    let batch = raw::batch(Codec::None, &[Record::new("kafka")]);
    let produced = kafka.call(9, raw::produce("orders", 0, -1, batch)).await;
    assert_eq!(raw::produced(&produced).0, 0, "{produced:?}");
    for node in [leader, one, other] {
        assert_eq!(values(&cluster, node, "orders").await, ["native", "http", "kafka"], "node {node}");
    }
    let mut reader = native.subscribe("orders").start(Start::Earliest).open().await.expect("subscribed");
    for expected in ["native", "http", "kafka"] {
        let message = within("a record", reader.next()).await.expect("a record");
        assert_eq!(message.record.value(), expected.as_bytes());
    }

    assert_eq!(redis(&cluster, one, "SET greeting hello").await, "+OK\r\n");
    for node in [leader, other] {
        assert_eq!(redis(&cluster, node, "GET greeting").await, "$5\r\nhello\r\n", "node {node}");
    }

    let url = Sqs::at(cluster.door(one, "sqs")).create("jobs", json!({})).await;
    Sqs::at(cluster.door(other, "sqs")).send_body(&url, "work").await;
    let received = Sqs::at(cluster.door(leader, "sqs")).receive(&url, 10, 0).await;
    assert_eq!(received.len(), 1, "{received:?}");
    assert_eq!(received[0]["Body"], "work");
}

#[tokio::test]
async fn each_node_answers_for_itself() {
    let cluster = Cluster::start(2).await;
    let leader = cluster.leader().await;
    let follower = cluster.followers().await[0];
    let metric = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).to_owned()
    };
    for (node, does) in [(leader, format!("node {leader} leads")), (follower, format!("follows node {leader} in"))] {
        let (status, text) = cluster.own(node, "/readyz").await;
        assert!(status == 200 && text.contains(&does), "{status} {text}");
        assert_eq!(cluster.own(node, "/healthz").await, (200, "ok\n".to_owned()));
        let (status, text) = cluster.own(node, "/metrics").await;
        assert_eq!(status, 200);
        assert_eq!(metric(&text, "thalweg_cluster_node"), node.to_string());
        assert_eq!(metric(&text, "thalweg_cluster_leader"), leader.to_string());
        let other = if node == leader { follower } else { leader };
        assert_eq!(metric(&text, &format!("thalweg_cluster_peer_connected{{node=\"{other}\"}}")), "1");
        assert_eq!(metric(&text, "thalweg_cluster_status_connections"), "1");
        assert!(text.contains("process_start_time_seconds") && text.ends_with("# EOF\n"), "{text}");
        assert_eq!(cluster.own(node, "/v1/topics").await.0, 404, "only this");
    }
    // The HTTP door of the follower is the leader's.
    let before = metric(&cluster.own(follower, "/metrics").await.1, "thalweg_cluster_gateway_handed_over_total");
    let (_, text) =
        crate::support::cluster::http(cluster.door(follower, "http"), "GET", "/metrics", "").await.expect("an answer");
    assert_eq!(metric(&text, "thalweg_cluster_node"), leader.to_string());
    assert_eq!(metric(&text, &format!("thalweg_cluster_node_alive{{node=\"{follower}\"}}")), "1");
    let after = metric(&cluster.own(follower, "/metrics").await.1, "thalweg_cluster_gateway_handed_over_total");
    assert_eq!(after.parse(), before.parse::<u64>().map(|before| before + 1));
}
