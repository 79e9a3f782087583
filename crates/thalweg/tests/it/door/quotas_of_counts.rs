//! Quotas of counts: what a user or a tenant has at one time, at each door, and new connections of an address.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Client, ClientSettings, ErrorKind, Login, Record, TopicSettings};
use doors::pubsub::proto::{StreamingPullRequest, StreamingPullResponse, Subscription};
use engine::codec::Codec;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, MetadataRequest};
use serde_json::json;
use tonic::Code;

use super::access::exchange;
use super::kafka::raw::{Raw, batch, produce, produced, topic};
use super::kafka::security::{log_in, plain, shake};
use super::pubsub::calls::Grpc;
use super::redis::commands::Redis;
use super::sqs::client::Sqs;
use crate::support::command;
use crate::support::server::{PATIENCE, Server, until, within};

const USERS: &str = "users=bob:secret,ann:secret";

/// Starts a broker that requires logins, so that its clients have names.
fn server() -> Server {
    let doors = ["http=127.0.0.1:0", "redis=127.0.0.1:0", "pubsub=127.0.0.1:0", "pubsub_project=shop"];
    Server::with(&[&["auth=required", USERS][..], &doors].concat())
}

fn set(server: &Server, args: &[&str]) {
    command::on(server, [&["quota", "set"], args].concat()).ok();
}

fn delete(server: &Server, args: &[&str]) {
    command::on(server, [&["quota", "delete"], args].concat()).ok();
}

fn http(server: &Server, user: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let login = format!("Basic {}", BASE64.encode(format!("{user}:secret")));
    exchange(server.door("http"), method, path, Some(&login), body)
}

/// Requests of a client that a quota refuses: the status is 429, with a time to wait.
fn refused(answer: &(u16, String)) -> bool {
    let (status, text) = answer;
    if *status == 429 {
        assert!(text.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{text}");
        assert!(text.contains("thalweg quota") && text.contains("\"retry_after_ms\":1000"), "{text}");
    }
    *status == 429
}

async fn native(server: &Server, user: &str) -> Result<Client, client::Error> {
    let login = Some(Login::new(user, "secret").expect("a login"));
    let address = client::Address::parse(&server.url("tcp")).expect("an address");
    within("a connection", Client::connect_with(address, ClientSettings { login, ..ClientSettings::default() })).await
}

/// Returns the value of a metric with its labels.
async fn metric(client: &Client, name: &str) -> u64 {
    crate::support::server::metric(client, name).await
}

/// Returns the code of a topic's creation, and the time for which the client is asked to wait.
async fn create_at_kafka(raw: &mut Raw, version: i16, name: &str) -> (i16, i32) {
    let topics = vec![CreatableTopic::default().with_name(topic(name)).with_num_partitions(1)];
    let topics = topics.into_iter().map(|topic| topic.with_replication_factor(1)).collect();
    let request = CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(10_000);
    let response = raw.call(version, request).await;
    (response.topics[0].error_code, response.throttle_time_ms)
}

#[tokio::test]
async fn a_tenant_has_as_many_topics_as_its_quota_allows() {
    let server = server();
    set(&server, &["--tenant", "acme", "topics=2"]);
    let put = |name: &str| http(&server, "bob", "PUT", &format!("/v1/topics/{name}"), "{}");
    assert_eq!([put("acme.a").0, put("acme.b").0], [201, 201]);
    assert!(refused(&put("acme.c")));
    // It exists, and whoever else's names begin otherwise.
    assert_eq!([put("acme.a").0, put("acmes.c").0, put("other").0], [200, 201, 201]);
    let admin = server.client("tcp").await;
    let error = admin.create_topic("acme.c", TopicSettings::default()).await.expect_err("also for an administrator");
    assert!(error.kind == ErrorKind::Busy && error.retry_after_ms >= 1000, "{error:?}");
    let error = admin.publish("acme.c", Record::new("v")).await.expect_err("it would be created");
    assert!(error.message.contains("tenant acme has 2 topics"), "{error}");
    let mut raw = log_in(&server, "ann", "secret").await.expect("it is right");
    // KIP-599: THROTTLING_QUOTA_EXCEEDED, and POLICY_VIOLATION for clients that do not know it.
    let refused_at_kafka = [create_at_kafka(&mut raw, 6, "acme.c").await, create_at_kafka(&mut raw, 5, "acme.c").await];
    assert_eq!(refused_at_kafka, [(89, 1000), (44, 1000)]);
    assert_eq!(metric(&admin, "thalweg_quota_creations_refused_total{quota=\"topics\"}").await, 5);
    assert_eq!(http(&server, "bob", "DELETE", "/v1/topics/acme.a", "").0, 204);
    assert_eq!(create_at_kafka(&mut raw, 6, "acme.c").await, (0, 0));
    assert!(refused(&put("acme.d")));
    delete(&server, &["--tenant", "acme"]);
    assert_eq!(put("acme.d").0, 201);
}

#[tokio::test]
async fn a_tenant_has_as_many_queues_and_caches_as_its_quota_allows() {
    let server = server();
    set(&server, &["--tenant", "acme", "queues=1", "caches=1"]);
    for kind in ["queues", "caches"] {
        let call = |method, name: &str| http(&server, "bob", method, &format!("/v1/{kind}/{name}"), "{}");
        assert_eq!(call("PUT", "acme.a").0, 201, "{kind}");
        assert!(refused(&call("PUT", "acme.b")), "{kind}");
        assert_eq!([call("PUT", "acme.a").0, call("PUT", "b").0], [200, 201], "{kind}");
        assert_eq!(call("DELETE", "acme.a").0, 204, "{kind}");
        assert_eq!(call("PUT", "acme.b").0, 201, "{kind}");
    }
    let admin = server.client("tcp").await;
    // A Google project is a tenant.
    set(&server, &["--tenant", "project:depot", "topics=1"]);
    let create = |name: &str| {
        let login = format!("Basic {}", BASE64.encode("bob:secret"));
        exchange(server.pubsub(), "PUT", &format!("/v1/projects/depot/topics/{name}"), Some(&login), "{}")
    };
    assert_eq!(create("first").0, 200);
    let (status, text) = create("second");
    assert_eq!(status, 429);
    assert!(text.contains("RESOURCE_EXHAUSTED") && text.contains("retryDelay"), "{text}");
    assert_eq!(metric(&admin, "thalweg_quota_creations_refused_total{quota=\"queues\"}").await, 1);
}

#[tokio::test]
async fn an_account_of_sqs_has_as_many_queues_as_its_quota_allows() {
    let server = Server::with(&["http=127.0.0.1:0"]);
    set(&server, &["--tenant", "111122223333", "queues=1"]);
    let sqs = Sqs::of(&server);
    // The key of a client with twelve digits is its account.
    let key = "AWS4-HMAC-SHA256 Credential=111122223333/20260101/us-east-1/sqs/aws4_request, \
               SignedHeaders=host, Signature=00";
    let create =
        async |name: &str| sqs.call_with("CreateQueue", json!({ "QueueName": name }), &[("authorization", key)]).await;
    let url = create("first").await.ok()["QueueUrl"].as_str().expect("a URL").to_owned();
    let answer = create("second").await;
    assert!(answer.header("retry-after").parse::<u64>().expect("seconds") >= 1);
    assert_eq!((answer.error().0, answer.code().as_str()), (403, "RequestThrottled"));
    let answer = sqs.call_with("DeleteQueue", json!({ "QueueUrl": url }), &[("authorization", key)]).await;
    answer.ok();
    create("second").await.ok();
}

#[tokio::test]
async fn publishes_are_refused_while_a_tenant_stores_too_many_bytes() {
    let server = server();
    let admin = server.client("tcp").await;
    for name in ["acme.t", "other.t"] {
        admin.create_topic(name, TopicSettings::default()).await.expect("created");
        admin.publish(name, Record::new(vec![b'x'; 100 << 10])).await.expect("published");
    }
    set(&server, &["--tenant", "acme", "stored_bytes=64KiB"]);
    let body = "{\"records\":[{\"value\":\"v\"}]}";
    let post = |name: &str| http(&server, "bob", "POST", &format!("/v1/topics/{name}/records"), body);
    until("a publish is refused", async || refused(&post("acme.t"))).await;
    assert_eq!(post("other.t").0, 200, "another tenant");
    let error = admin.publish("acme.t", Record::new("v")).await.expect_err("the quota");
    assert!(error.kind == ErrorKind::Busy && error.message.contains("stored_bytes is 65536"), "{error}");
    // A new topic is full with the next measurement.
    assert_eq!(http(&server, "bob", "PUT", "/v1/queues/acme.q", "{}").0, 201);
    until("a message is refused", async || {
        refused(&http(&server, "bob", "POST", "/v1/queues/acme.q/messages", "{\"messages\":[{\"body\":\"v\"}]}"))
    })
    .await;
    let mut raw = log_in(&server, "ann", "secret").await.expect("it is right");
    let one = || produce("acme.t", 0, -1, batch(Codec::None, &[Record::new("v")]));
    let response = raw.call(7, one()).await;
    // KAFKA_STORAGE_ERROR, which producers of all clients repeat: see `of_produce`.
    assert_eq!((produced(&response).0, response.throttle_time_ms), (56, 1000));
    assert_eq!(http(&server, "bob", "GET", "/v1/topics/acme.t/records?offset=0", "").0, 200, "reads are not refused");
    let stored = metric(&admin, "thalweg_tenant_stored_bytes{tenant=\"acme\"}").await;
    assert!(stored > 100 << 10, "{stored}");
    assert_eq!(http(&server, "bob", "DELETE", "/v1/topics/acme.t/records?before=end", "").0, 200);
    until("there is room again", async || produced(&raw.call(7, one()).await).0 == 0).await;
    assert!(!refused(&post("acme.t")));
    assert!(metric(&admin, "thalweg_quota_publishes_refused_total").await >= 4);
}

#[tokio::test]
async fn a_user_has_as_many_connections_as_its_quota_allows() {
    let server = server();
    let admin = server.client("tcp").await;
    let first = native(&server, "bob").await.expect("connected");
    set(&server, &["--each-user", "open_connections=1"]);
    // The connection that existed before counts.
    let error = native(&server, "bob").await.err().expect("the quota");
    assert!(error.kind == ErrorKind::Busy && error.message.contains("User:bob has 1 open connections"), "{error}");
    let mut redis = Redis::open(&server);
    let answer = redis.call("AUTH bob secret");
    assert!(answer.starts_with("-ERR User:bob has 1 open connections"), "{answer}");
    // Kafka closes such a connection without an answer, and its clients connect again later.
    let mut raw = Raw::connect(&server).await;
    assert_eq!(shake(&mut raw, "PLAIN").await, 0);
    assert!(raw.try_call(2, &plain("bob", "secret")).await.is_none());
    assert!(refused(&http(&server, "bob", "GET", "/v1/topics", "")));
    let login = format!("Basic {}", BASE64.encode("bob:secret"));
    let (status, text) = exchange(server.pubsub(), "GET", "/v1/projects/shop/topics", Some(&login), "");
    assert!(status == 429 && text.contains("RESOURCE_EXHAUSTED") && text.contains("retryDelay"), "{text}");
    assert_eq!(http(&server, "ann", "GET", "/v1/topics", "").0, 200, "another user");
    for door in ["native", "redis", "kafka", "http", "pubsub"] {
        let name = format!("thalweg_quota_open_connections_refused_total{{door=\"{door}\"}}");
        assert_eq!(metric(&admin, &name).await, 1, "{door}");
    }
    first.close().await;
    until("a connection is counted no longer", async || redis.call("AUTH bob secret") == "+OK").await;
    assert!(refused(&http(&server, "bob", "GET", "/v1/topics", "")));
    // A connection counts for the user of its last login.
    assert_eq!(redis.call("AUTH ann secret"), "+OK");
    assert_eq!(http(&server, "bob", "GET", "/v1/topics", "").0, 200);
    assert!(refused(&http(&server, "ann", "GET", "/v1/topics", "")));
    drop(redis);
    until("a connection is counted no longer", async || !refused(&http(&server, "ann", "GET", "/v1/topics", ""))).await;
    let mut raw = log_in(&server, "bob", "secret").await.expect("there is room");
    assert_eq!(raw.call(4, MetadataRequest::default()).await.brokers.len(), 1);
}

#[tokio::test]
async fn a_connection_without_a_login_is_told_before_it_is_closed() {
    let server = Server::with(&["redis=127.0.0.1:0", "authorization=true"]);
    set(&server, &["--user", "ANONYMOUS", "open_connections=1"]);
    let mut first = Redis::open(&server);
    assert_eq!(first.call("PING"), "+PONG");
    let answer = Redis::open(&server).call("PING");
    assert!(answer.starts_with("-ERR User:ANONYMOUS has 1 open connections"), "{answer}");
    // A native connection counts with its first request, as it may log in.
    let address = client::Address::parse(&server.url("tcp")).expect("an address");
    let anonymous = within("a connection", Client::connect_with(address, ClientSettings::default())).await;
    let error = anonymous.expect("it may log in").list_topics().await.expect_err("the quota");
    assert!(error.kind == ErrorKind::Busy && error.message.contains("User:ANONYMOUS has 1"), "{error}");
    let admin = server.client("tcp").await;
    admin.list_topics().await.expect("the administrator has no quotas");
    delete(&server, &["--user", "ANONYMOUS"]);
    assert_eq!(Redis::open(&server).call("PING"), "+PONG");
    assert_eq!(first.call("PING"), "+PONG");
}

#[tokio::test]
async fn a_user_has_as_many_subscriptions_as_its_quota_allows() {
    let server = server();
    let admin = server.client("tcp").await;
    admin.create_topic("t", TopicSettings::default()).await.expect("created");
    set(&server, &["--user", "bob", "subscriptions=1"]);
    let bob = native(&server, "bob").await.expect("connected");
    let ann = native(&server, "ann").await.expect("connected");
    let of_bob = within("a subscription", bob.subscribe("t").open()).await.expect("subscribed");
    let error = within("a subscription", bob.subscribe("t").open()).await.err().expect("the quota");
    assert!(error.kind == ErrorKind::Busy && error.message.contains("User:bob has 1 subscriptions"), "{error}");
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("AUTH bob secret"), "+OK");
    for command in ["SUBSCRIBE c", "PSUBSCRIBE c*", "SSUBSCRIBE c"] {
        let answer = redis.call(command);
        assert!(answer.starts_with("-ERR User:bob has 1 subscriptions"), "{command} {answer}");
    }
    assert!(refused(&http(&server, "bob", "GET", "/v1/topics/t/events", "")));
    let of_ann = within("a subscription", ann.subscribe("t").open()).await.expect("another user");
    assert_eq!(metric(&admin, "thalweg_quota_subscriptions_refused_total{door=\"redis\"}").await, 3);
    drop(of_bob);
    until("there is room again", async || redis.call("SSUBSCRIBE c").contains("ssubscribe")).await;
    let open = || {
        let mut events = TcpStream::connect(server.door("http")).expect("connected");
        events.set_read_timeout(Some(PATIENCE)).expect("set");
        let login = BASE64.encode("bob:secret");
        let head =
            format!("GET /v1/topics/t/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n\r\n");
        events.write_all(head.as_bytes()).expect("sent");
        let mut events = BufReader::new(events).lines();
        (events.next().expect("a line").expect("a line"), events)
    };
    assert_eq!(open().0, "HTTP/1.1 429 Too Many Requests");
    assert!(redis.call("SUNSUBSCRIBE c").contains("sunsubscribe"));
    let (status, events) = open();
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(redis.call("SUBSCRIBE c").starts_with("-ERR"), "events count");
    drop(events);
    until("there is room again", async || !redis.call("SUBSCRIBE c").starts_with("-ERR")).await;
    drop(of_ann);
}

#[tokio::test]
async fn streaming_pulls_are_subscriptions() {
    let server = super::pubsub::calls::server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription::default()).await;
    command::on(&server, ["quota", "set", "--user", "ANONYMOUS", "subscriptions=1"]).ok();
    let first = grpc.try_stream(StreamingPullRequest::default()).await.expect("opened");
    let next = |streaming: Result<tonic::Streaming<StreamingPullResponse>, tonic::Status>| async {
        match streaming {
            Ok(mut stream) => within("an answer", stream.message()).await.map(drop),
            Err(status) => Err(status),
        }
    };
    let (_sender, second) = match grpc.try_stream(StreamingPullRequest::default()).await {
        Ok((sender, stream)) => (Some(sender), Ok(stream)),
        Err(status) => (None, Err(status)),
    };
    let status = next(second).await.expect_err("the quota");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("User:ANONYMOUS has 1 subscriptions"), "{status:?}");
    drop(first);
    until("there is room again", async || match grpc.try_stream(StreamingPullRequest::default()).await {
        Ok((_sender, stream)) => next(Ok(stream)).await.is_ok(),
        Err(_) => false,
    })
    .await;
}

#[tokio::test]
async fn new_connections_of_an_address_are_limited_at_the_doors_of_http() {
    let server = server();
    let admin = server.client("tcp").await;
    set(&server, &["--each-address", "connections=2"]);
    for (name, door) in [("http", server.door("http")), ("sqs", server.door("sqs")), ("pubsub", server.pubsub())] {
        let get = || exchange(door, "GET", "/", None, "");
        let answers: Vec<(u16, String)> = (0..20).map(|_| get()).collect();
        let limited = answers.iter().filter(|(status, _)| *status == 429).count();
        // The doors share the rate of the address.
        assert!((1..=20).contains(&limited), "{name}: {limited}");
        let (_, text) = answers.iter().find(|(status, _)| *status == 429).expect("one is refused");
        assert!(text.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{text}");
        assert!(text.contains("127.0.0.1 opens more connections than its quota"), "{text}");
        let refused = format!("thalweg_quota_connections_refused_total{{door=\"{name}\"}}");
        assert_eq!(metric(&admin, &refused).await, limited as u64, "{name}");
        until("a connection is served", async || get().0 != 429).await;
    }
    let lines = server.log().matches("its address opens more than its quota allows").count();
    assert!((1..60).contains(&lines), "one line per second is logged: {lines}");
    // A client of Redis is told before its connection is closed.
    let mut told = String::new();
    for _ in 0..20 {
        let mut redis = Redis::open(&server);
        if let Some(answer) = redis.try_ask("PING").and_then(|()| redis.try_answer())
            && answer.starts_with("-ERR")
        {
            told = answer;
        }
    }
    assert!(told.starts_with("-ERR 127.0.0.1 opens more connections than its quota"), "{told}");
}
