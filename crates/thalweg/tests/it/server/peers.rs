//! Limits per address at every door: creations per minute, and subscriptions that make publishers wait.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use client::{ErrorKind, Overflow, TopicSettings};
use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::door::kafka::raw::{Raw, topic};
use crate::door::redis::commands::Redis;
use crate::support::server::{Server, metric, within};

/// Starts a server with all doors and these settings.
fn server(set: &[&str]) -> Server {
    let doors = ["http=127.0.0.1:0", "pubsub=127.0.0.1:0", "redis=127.0.0.1:0"];
    Server::with(&[&doors, set].concat())
}

/// Returns the whole response to an HTTP request.
fn http(address: SocketAddr, head: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("connected");
    let length = body.len();
    let request = format!("{head}\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    answer
}

fn create_queue(server: &Server, name: &str) -> String {
    let head = "POST / HTTP/1.1\r\nx-amz-target: AmazonSQS.CreateQueue\r\ncontent-type: application/x-amz-json-1.0";
    http(server.sqs, head, &format!(r#"{{"QueueName":"{name}"}}"#))
}

#[tokio::test]
async fn every_door_throttles_an_address_that_creates_too_many_topics() {
    let server = server(&["peer_topics_per_minute=1"]);
    let client = server.client("tcp").await;
    within("create", client.create_topic("first", TopicSettings::default())).await.expect("created");
    within("create", client.create_topic("first", TopicSettings::default())).await.expect("it exists");
    let refused = within("create", client.create_topic("second", TopicSettings::default())).await.expect_err("second");
    assert_eq!(refused.kind, ErrorKind::Busy);
    assert!(refused.retry_after_ms >= 1000 && refused.message.contains("peer_topics_per_minute"), "{refused:?}");

    let mut kafka = Raw::connect(&server).await;
    let wanted = CreatableTopic::default().with_name(topic("second")).with_num_partitions(1).with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]);
    // THROTTLING_QUOTA_EXCEEDED from version 6 on (KIP-599), POLICY_VIOLATION for older clients.
    assert_eq!(kafka.call(7, request.clone()).await.topics[0].error_code, 89);
    assert_eq!(kafka.call(5, request).await.topics[0].error_code, 44);

    let published =
        http(server.door("http"), "POST /v1/topics/second/records HTTP/1.1\r\ncontent-type: text/plain", "x");
    assert!(published.starts_with("HTTP/1.1 429") && published.contains("retry-after: "), "{published}");

    let mut redis = Redis::open(&server);
    let added = redis.call("XADD second * field value");
    assert!(added.starts_with("-ERR 127.0.0.1 has created 1 topics within a minute"), "{added}");

    let queue = create_queue(&server, "second");
    assert!(queue.contains("RequestThrottled"), "{queue}");

    let head = "PUT /v1/projects/thalweg/topics/second HTTP/1.1\r\ncontent-type: application/json";
    let created = http(server.pubsub(), head, "{}");
    assert!(created.starts_with("HTTP/1.1 429") && created.contains("RESOURCE_EXHAUSTED"), "{created}");

    assert_eq!(metric(&client, "thalweg_peer_creations_refused_total{kind=\"topics\"}").await, 7);
    // Another address has a separate limit.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("bound");
    let mut other = within("a connection", socket.connect(server.door("redis"))).await.expect("connected");
    other.write_all(b"XADD second 5-1 field value\r\n").await.expect("sent");
    let mut answer = [0; 9];
    within("an answer", other.read_exact(&mut answer)).await.expect("answered");
    assert_eq!(&answer, b"$3\r\n5-1\r\n");
}

#[tokio::test]
async fn groups_queues_caches_and_channels_are_counted_apart() {
    let server = server(&[
        "peer_groups_per_minute=1",
        "peer_queues_per_minute=1",
        "peer_caches_per_minute=1",
        "peer_channels_per_minute=1",
    ]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("SET key value"), "+OK");
    assert_eq!(redis.call("SELECT 1"), "+OK");
    let refused = redis.call("SET key value");
    assert!(refused.starts_with("-ERR ") && refused.contains("peer_caches_per_minute"), "{refused}");
    assert_eq!(redis.call("SELECT 0"), "+OK");
    assert_eq!(redis.call("XGROUP CREATE stream one $ MKSTREAM"), "+OK");
    let refused = redis.call("XGROUP CREATE stream two $");
    assert!(refused.starts_with("-ERR ") && refused.contains("peer_groups_per_minute"), "{refused}");
    let mut listener = Redis::open(&server);
    assert_eq!(listener.call("PSUBSCRIBE c*"), "(psubscribe c* :1)");
    assert_eq!(redis.call("PUBLISH c1 hello"), ":1");
    let refused = redis.call("PUBLISH c2 hello");
    assert!(refused.starts_with("-ERR ") && refused.contains("peer_channels_per_minute"), "{refused}");
    assert!(create_queue(&server, "one").starts_with("HTTP/1.1 200"));
    assert!(create_queue(&server, "one").starts_with("HTTP/1.1 200"), "it exists");
    let refused = create_queue(&server, "two");
    assert!(refused.contains("RequestThrottled") && refused.contains("peer_queues_per_minute"), "{refused}");
}

#[tokio::test]
async fn only_clients_that_are_permitted_make_publishers_wait() {
    let server = server(&["overflow_block_allow=192.0.2.0/24"]);
    let client = server.client("tcp").await;
    within("create", client.create_topic("jobs", TopicSettings::default())).await.expect("created");
    let refused = within("a subscription", client.subscribe("jobs").overflow(Overflow::Block).open()).await.err();
    assert_eq!(refused.map(|error| error.kind), Some(ErrorKind::Denied));
    let events = http(server.door("http"), "GET /v1/topics/jobs/events?overflow=block HTTP/1.1", "");
    assert!(events.starts_with("HTTP/1.1 403") && events.contains("overflow_block_allow"), "{events}");
    within("a subscription", client.subscribe("jobs").open()).await.expect("another policy");
    assert_eq!(metric(&client, "thalweg_peer_blocking_refused_total").await, 2);
}
