//! Nodes that are killed, and clients that go on.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, Record, RetryClass};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::door::kafka::raw::Raw;
use crate::support::cluster::{Cluster, http};
use crate::support::server::{PATIENCE, until, within};

/// First value of a client that publishes next to the test.
const BESIDE_FROM: u64 = 1_000_000;

/// Publishes a value at one node after the other, until one acknowledges it.
async fn publish(cluster: &Cluster, value: u64) {
    let body = json!({ "records": [{ "value": value.to_string() }] }).to_string();
    let begin = Instant::now();
    for node in cluster.running().iter().cycle() {
        let answer = http(cluster.door(*node, "http"), "POST", "/v1/topics/orders/records", &body).await;
        if let Some((200, _)) = answer {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "value {value}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the values that a node shows.
async fn values(cluster: &Cluster, node: u64) -> BTreeSet<u64> {
    let path = "/v1/topics/orders/records?offset=earliest&max_records=10000";
    let (status, answer) = cluster.http(node, "GET", path, &Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    let records = answer["records"].as_array().expect("records").iter();
    records.map(|record| record["value"].as_str().and_then(|text| text.parse().ok()).expect("a number")).collect()
}

async fn create_topic(cluster: &Cluster) {
    let node = cluster.leader().await;
    let (status, answer) = cluster.http(node, "PUT", "/v1/topics/orders", &json!({})).await;
    assert_eq!(status, 201, "{answer}");
}

/// Publishes values, and lists those that were acknowledged.
async fn publish_beside(client: Client, acknowledged: Arc<Mutex<Vec<u64>>>) {
    for value in BESIDE_FROM.. {
        let record = Record::new(value.to_string());
        match within("a publish", client.publish("orders", record)).await {
            Ok(_) => acknowledged.lock().expect("no panic").push(value),
            // Its outcome is unknown.
            Err(error) => assert!(error.retry_class() != RetryClass::Fatal, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_leaders_are_killed_and_return() {
    let mut cluster = Cluster::start(3).await;
    create_topic(&cluster).await;
    // In the meantime, a client with the addresses of all nodes publishes as well.
    let client = cluster.client_of_all().await;
    let beside = Arc::new(Mutex::new(Vec::new()));
    let publishing = tokio::spawn(publish_beside(client, beside.clone()));
    let count = || beside.lock().expect("no panic").len();
    let mut next = 0;
    for _ in 0..2 {
        let leader = cluster.leader().await;
        let before = count();
        until("the other client", async || count() > before).await;
        for _ in 0..20 {
            publish(&cluster, next).await;
            next += 1;
        }
        cluster.kill(leader);
        for _ in 0..20 {
            publish(&cluster, next).await;
            next += 1;
        }
        assert_ne!(cluster.leader().await, leader);
        cluster.restart(leader);
        let mut seen = (0, String::new());
        let begin = Instant::now();
        while seen.0 != 200 {
            seen = cluster.own(leader, "/readyz").await;
            assert!(begin.elapsed() < PATIENCE, "node {leader} does not return: {seen:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let before = count();
    until("the other client at the last leader", async || count() > before).await;
    assert!(!publishing.is_finished(), "it goes on");
    publishing.abort();
    let acknowledged: BTreeSet<u64> = (0..next).chain(beside.lock().expect("no panic").iter().copied()).collect();
    for node in cluster.running() {
        let shown = values(&cluster, node).await;
        let lost: Vec<_> = acknowledged.difference(&shown).collect();
        assert!(lost.is_empty(), "node {node} lost {lost:?}");
    }
    let status = cluster.on(cluster.running()[0], &["cluster", "status", "--json"]).json();
    let nodes = status["nodes"].as_array().expect("nodes");
    assert!(nodes.iter().all(|of| of["is_alive"] == true && of["is_voter"] == true), "{status}");
}

/// Sends a Kafka request to any running node, until one answers that this is the place for it.
async fn ask<R: Request + Clone>(
    cluster: &Cluster,
    version: i16,
    request: R,
    code: impl Fn(&R::Response) -> i16,
) -> R::Response {
    const MOVED: [i16; 3] = [14, 15, 16];
    let begin = Instant::now();
    for node in cluster.running().iter().cycle() {
        if let Some(mut raw) = Raw::try_connect(cluster.door(*node, "kafka")).await
            && let Some(answer) = raw.try_call(version, &request).await
            && !MOVED.contains(&code(&answer))
        {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "no node answers");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("a cycle has no end")
}

/// A coordinator that takes over loads the members of classic groups with their assignments, as Kafka's does: nobody
/// joins again, and commits go on.
#[tokio::test]
async fn members_of_consumer_groups_survive_their_coordinator() {
    let mut cluster = Cluster::start(3).await;
    create_topic(&cluster).await;
    let group = || GroupId::from(StrBytes::from_static_str("g"));
    let protocol = JoinGroupRequestProtocol::default().with_name(StrBytes::from_static_str("range"));
    let join = JoinGroupRequest::default()
        .with_group_id(group())
        .with_session_timeout_ms(30_000)
        .with_rebalance_timeout_ms(30_000)
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![protocol]);
    let joined = ask(&cluster, 2, join, |answer| answer.error_code).await;
    assert_eq!(joined.error_code, 0);
    let (member, generation) = (joined.member_id, joined.generation_id);
    let share = Bytes::from_static(b"its share");
    let sync = SyncGroupRequest::default()
        .with_group_id(group())
        .with_member_id(member.clone())
        .with_generation_id(generation);
    let assignment =
        SyncGroupRequestAssignment::default().with_member_id(member.clone()).with_assignment(share.clone());
    let leads = sync.clone().with_assignments(vec![assignment]);
    assert_eq!(ask(&cluster, 2, leads, |answer| answer.error_code).await.error_code, 0);

    let leader = cluster.leader().await;
    cluster.kill(leader);
    let beat = HeartbeatRequest::default()
        .with_group_id(group())
        .with_member_id(member.clone())
        .with_generation_id(generation);
    assert_eq!(ask(&cluster, 2, beat, |answer| answer.error_code).await.error_code, 0);
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(1);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName::from(StrBytes::from_static_str("orders")))
        .with_partitions(vec![partition]);
    let commit = OffsetCommitRequest::default()
        .with_group_id(group())
        .with_member_id(member)
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![topic]);
    let committed = ask(&cluster, 2, commit, |answer| answer.topics[0].partitions[0].error_code).await;
    assert_eq!(committed.topics[0].partitions[0].error_code, 0);
    assert_eq!(ask(&cluster, 2, sync, |answer| answer.error_code).await.assignment, share);
}

#[tokio::test]
async fn a_node_that_is_stopped_finishes_what_it_hands_over() {
    let mut cluster = Cluster::start(3).await;
    create_topic(&cluster).await;
    let follower = cluster.followers().await[0];
    let door = cluster.door(follower, "http");
    let path = "/v1/topics/orders/records?offset=0&wait_ms=1500";
    let waiting = tokio::spawn(async move { http(door, "GET", path, "").await });
    // Also one that is idle must not keep the node.
    let idle = TcpStream::connect(cluster.door(follower, "redis")).await.expect("connected");
    until("the request", async || {
        let (_, text) = cluster.own(follower, "/metrics").await;
        text.lines().any(|line| line == "thalweg_cluster_gateway_connections 2")
    })
    .await;
    cluster.stop(follower).await;
    let answer = waiting.await.expect("no panic");
    assert!(matches!(answer, Some((200, _))), "{answer:?}");
    drop(idle);
}

/// Reads what a Redis door sends before it closes the connection.
async fn redis(cluster: &Cluster, node: u64) -> String {
    let mut stream = TcpStream::connect(cluster.door(node, "redis")).await.expect("connected");
    stream.write_all(b"PING\r\n").await.expect("sent");
    let mut answer = vec![0; 256];
    let read = within("an answer", stream.read(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn without_a_majority_clients_get_a_clear_error_until_it_is_back() {
    let mut cluster = Cluster::start(3).await;
    create_topic(&cluster).await;
    publish(&cluster, 1).await;
    let leader = cluster.leader().await;
    let followers = cluster.followers().await;
    // The leader is left, and later a follower: neither may answer alone.
    cluster.kill(followers[0]);
    cluster.kill(followers[1]);
    until("the end of the leadership", async || cluster.own(leader, "/readyz").await.0 == 503).await;
    let (_, why) = cluster.own(leader, "/readyz").await;
    assert!(why.starts_with("not ready\nnode "), "{why}");
    assert_eq!(cluster.own(leader, "/healthz").await.0, 200, "a restart would not help");

    until("the answer without a leader", async || {
        let answer = http(cluster.door(leader, "http"), "GET", "/v1/topics", "").await;
        matches!(answer, Some((503, text)) if text.contains("no leader"))
    })
    .await;
    let answer = redis(&cluster, leader).await;
    assert!(answer.starts_with("-LOADING "), "{answer}");

    let error = cluster.on(leader, &["cluster", "status"]).failed(3);
    assert!(error.contains("the cluster has no leader: more than half of its nodes have to run"), "{error}");

    cluster.restart(followers[0]);
    publish(&cluster, 2).await;
    assert_eq!(values(&cluster, leader).await, [1, 2].into());
    assert_eq!(redis(&cluster, followers[0]).await, "+PONG\r\n");
}
