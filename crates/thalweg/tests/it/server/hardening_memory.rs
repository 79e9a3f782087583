//! Clients that request much and do not read it, at every door: the memory for their responses is limited in total, and
//! other clients are served in the meantime. Also small inputs that expand to much data.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use client::TopicSettings;
use engine::codec::Codec;
use engine::{DraftBatch, Record};
use kafka_protocol::messages::MetadataRequest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use wire::Request;

use crate::door::kafka::raw::{Raw, batch, produce, produced};
use crate::door::sqs::client::Sqs;
use crate::support::raw::{encode, hello};
use crate::support::server::{Server, metric, until, within};

/// Growth of a process in addition to the responses that it holds: threads, buffers of connections, and memory that the
/// allocator keeps.
const SLACK_BYTES: u64 = 96 << 20;
const MIB: u64 = 1 << 20;
/// Kafka's code for a batch that is too large: its producers split it.
const MESSAGE_TOO_LARGE: i16 = 10;

/// Peak memory of the broker during the lifetime of this value.
struct Peak {
    before: u64,
    is_over: Arc<AtomicBool>,
    looks: Option<JoinHandle<u64>>,
}

impl Peak {
    fn of(server: &Server) -> Self {
        let before = server.resident_bytes();
        let pid = server.pid();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let looks = std::thread::spawn(move || {
            let mut peak = 0;
            while !ends.load(Ordering::Relaxed) {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
                let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
                peak = peak.max(kib.unwrap_or(0) << 10);
                std::thread::sleep(Duration::from_millis(2));
            }
            peak
        });
        Self { before, is_over, looks: Some(looks) }
    }

    /// Ends the measurement and checks that the growth is within the budget for responses.
    fn ends_within(mut self, budget: u64) {
        self.is_over.store(true, Ordering::Relaxed);
        let peak = self.looks.take().expect("it looks").join().expect("it looked");
        let grown = peak.saturating_sub(self.before);
        assert!(grown <= budget + SLACK_BYTES, "{} MiB came on top of {} MiB", grown / MIB, self.before / MIB);
    }
}

fn server(set: &[&str]) -> Server {
    let doors = ["http=127.0.0.1:0", "redis=127.0.0.1:0", "pubsub=127.0.0.1:0"];
    Server::with(&[&doors, set].concat())
}

/// Sends a request, and reads nothing.
async fn ask(address: SocketAddr, request: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = within("a connection", socket.connect(address)).await.expect("connected");
    within("a request", stream.write_all(request)).await.expect("sent");
    stream
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// Returns the status of a response that has begun to arrive.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut head = [0; 12];
    within("an answer", stream.read_exact(&mut head)).await.expect("a head");
    std::str::from_utf8(&head[9..]).expect("a status").parse().expect("a number")
}

/// Performs a whole exchange over HTTP.
async fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = within("a connection", TcpStream::connect(address)).await.expect("connected");
    within("a request", stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())).await.expect("sent");
    let mut answer = Vec::new();
    within("an answer", stream.read_to_end(&mut answer)).await.expect("read");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

/// Publishes a record of `bytes` bytes, each of which takes six in JSON, in a batch of a few hundred bytes.
async fn put_bomb(server: &Server, topic: &str, bytes: usize) {
    let mut raw = Raw::connect(server).await;
    raw.create(topic).await;
    let batch = batch(Codec::Zstd, &[Record::new(vec![1; bytes])]);
    assert!(batch.len() < 4096);
    assert_eq!(produced(&raw.call(9, produce(topic, 0, -1, batch)).await).0, 0);
}

/// The limit is that of the largest batch; see `Sender.completeBatch` of Kafka's clients for their handling of the
/// code.
#[tokio::test]
async fn a_small_batch_that_stands_for_much_is_refused_as_too_large() {
    let server = server(&[]);
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    for codec in Codec::ALL {
        let fits = batch(codec, &[Record::new(vec![1; 9 << 20])]);
        assert_eq!(produced(&raw.call(9, produce("t", 0, -1, fits)).await).0, 0, "{}", codec.name());
        if codec == Codec::None {
            continue;
        }
        let mut bomb = DraftBatch::of_one(1, None, Some(&vec![1; 10 << 20]), &[]).expect("it gets small");
        bomb.recompress(codec).expect("compressed");
        let (code, _, message) = produced(&raw.call(9, produce("t", 0, -1, bomb.into_bytes())).await);
        assert_eq!(code, MESSAGE_TOO_LARGE, "{}", codec.name());
        assert!(message.as_ref().is_some_and(|text| text.contains("record_expansion_max")), "{message:?}");
    }
}

#[tokio::test]
async fn unread_fetches_over_http_stay_within_the_response_memory() {
    let server = server(&["response_memory_max=64MiB"]);
    put_bomb(&server, "bomb", 2_600_000).await;
    let http = server.door("http");
    let peak = Peak::of(&server);
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(ask(http, &get("/v1/topics/bomb/records?offset=0")).await);
    }
    // Another client in the meantime.
    let (status_of_other, _) = call(http, "PUT", "/v1/topics/other", &json!({})).await;
    assert_eq!(status_of_other, 201);
    let mut answered = Vec::new();
    for stream in &mut unread {
        answered.push(status(stream).await);
    }
    peak.ends_within(64 * MIB);
    assert!(answered.contains(&200) && answered.contains(&503), "{answered:?}");
    assert!(answered.iter().all(|status| matches!(status, 200 | 503)), "{answered:?}");
    drop(unread);
    let client = server.client("tcp").await;
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
    let (status, body) = call(http, "GET", "/v1/topics/bomb/records?offset=0", &Value::Null).await;
    assert!(status == 200 && body.len() > 15_000_000, "{status} {}", body.len());
}

#[tokio::test]
async fn unread_events_stay_within_the_response_memory() {
    let server = server(&["response_memory_max=64MiB"]);
    put_bomb(&server, "bomb", 2_600_000).await;
    let http = server.door("http");
    let client = server.client("tcp").await;
    let peak = Peak::of(&server);
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(ask(http, &get("/v1/topics/bomb/events?start=earliest")).await);
    }
    until("streams that wait", async || metric(&client, "thalweg_response_waits_total").await >= 30).await;
    assert_eq!(call(http, "PUT", "/v1/topics/other", &json!({})).await.0, 201);
    peak.ends_within(64 * MIB);
    drop(unread);
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
    let mut stream = ask(http, &get("/v1/topics/bomb/events?start=earliest")).await;
    let mut read = 0;
    while read < 15_000_000 {
        let mut buf = vec![0; 1 << 20];
        read += within("events", stream.read(&mut buf)).await.expect("read");
    }
}

/// A record that exceeds 16 MiB as JSON is named in the error, with the offset at which to continue.
#[tokio::test]
async fn a_record_that_is_too_large_for_json_is_passed_over_by_name() {
    let server = server(&[]);
    put_bomb(&server, "bomb", 9 << 20).await;
    let http = server.door("http");
    assert_eq!(call(http, "POST", "/v1/topics/bomb/records", &json!({"records": [{"value": "next"}]})).await.0, 200);
    let (status, body) = call(http, "GET", "/v1/topics/bomb/records?offset=0", &Value::Null).await;
    assert_eq!(status, 413, "{body}");
    assert!(body.contains("next_offset is 1"), "{body}");
    let (status, body) = call(http, "GET", "/v1/topics/bomb/records?offset=1", &Value::Null).await;
    assert!(status == 200 && body.contains("\"next\""), "{status} {body}");
    let mut events = ask(http, &get("/v1/topics/bomb/events?start=earliest")).await;
    let mut text = String::new();
    while !text.contains("\"next\"") {
        let mut buf = [0; 4096];
        let read = within("events", events.read(&mut buf)).await.expect("read");
        text.push_str(&String::from_utf8_lossy(&buf[..read]));
    }
    assert!(text.contains("event: gap") && text.contains("too_large"), "{text}");
}

#[tokio::test]
async fn unread_messages_of_sqs_stay_within_the_response_memory() {
    let server = server(&["response_memory_max=32MiB"]);
    let sqs = Sqs::of(&server);
    let url = sqs.create("big", json!({"VisibilityTimeout": "0", "MaximumMessageSize": "1048576"})).await;
    // More than the system buffers for a socket.
    for _ in 0..10 {
        sqs.send_body(&url, &"x".repeat(1_000_000)).await;
    }
    let body = json!({"QueueUrl": url, "VisibilityTimeout": 0, "MaxNumberOfMessages": 10}).to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let peak = Peak::of(&server);
    let mut unread = Vec::new();
    for _ in 0..60 {
        unread.push(ask(server.sqs, request.as_bytes()).await);
    }
    let mut answered = Vec::new();
    for stream in &mut unread {
        answered.push(status(stream).await);
    }
    peak.ends_within(32 * MIB);
    // RequestThrottled, after which SDKs retry.
    assert!(answered.contains(&200) && answered.contains(&403), "{answered:?}");
    drop(unread);
    let client = server.client("tcp").await;
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
    let received = sqs.call("ReceiveMessage", json!({"QueueUrl": url})).await.ok();
    assert_eq!(received["Messages"][0]["Body"].as_str().map(str::len), Some(1_000_000));
}

#[tokio::test]
async fn unread_responses_of_redis_stay_within_the_response_memory() {
    let server = server(&["response_memory_max=64MiB"]);
    let redis = server.door("redis");
    let mut own = ask(redis, b"").await;
    let value = "x".repeat(4_300_000);
    for key in 0..8 {
        own.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n$4300000\r\n{value}\r\n").as_bytes())
            .await
            .expect("sent");
        let mut ok = [0; 5];
        within("an answer", own.read_exact(&mut ok)).await.expect("read");
    }
    let peak = Peak::of(&server);
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(ask(redis, b"MGET 0 1 2 3 4 5 6 7\r\n").await);
    }
    let mut answered = Vec::new();
    for stream in &mut unread {
        let mut first = [0; 9];
        within("an answer", stream.read_exact(&mut first)).await.expect("read");
        answered.push(String::from_utf8_lossy(&first).into_owned());
    }
    peak.ends_within(64 * MIB);
    assert!(answered.iter().any(|first| first.starts_with("*8")), "{answered:?}");
    assert!(answered.iter().any(|first| first == "-TRYAGAIN"), "{answered:?}");
    // A client with a small request is answered, and changes are not lost.
    own.write_all(b"SET small x\r\nGET small\r\nSETEX 9 100 x\r\n").await.expect("sent");
    let mut small = [0; 5 + 7 + 5];
    within("an answer", own.read_exact(&mut small)).await.expect("read");
    assert_eq!(&small, b"+OK\r\n$1\r\nx\r\n+OK\r\n");
    own.write_all(b"GETDEL 0\r\n").await.expect("sent");
    let mut refused = [0; 9];
    within("an answer", own.read_exact(&mut refused)).await.expect("read");
    drop(unread);
    let client = server.client("tcp").await;
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
    let mut again = ask(redis, b"STRLEN 0\r\n").await;
    let mut length = [0; 10];
    within("an answer", again.read_exact(&mut length)).await.expect("read");
    assert_eq!((&refused[..], &length[..]), (&b"-TRYAGAIN"[..], &b":4300000\r\n"[..]));
}

/// Returns the bytes of an HTTP/2 connection whose client keeps the flow-control window at zero.
fn closed_windows(requests: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    requests.for_each(|request| bytes.extend(request));
    bytes
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes headers, none of them indexed (RFC 7541, 6.2.2).
fn headers(all: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    all.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

#[tokio::test]
async fn streams_of_one_grpc_connection_stay_within_the_response_memory() {
    const STREAMS: u32 = 24;
    let server = server(&["response_memory_max=32MiB"]);
    let pubsub = server.pubsub();
    let project = "/v1/projects/project";
    assert_eq!(call(pubsub, "PUT", &format!("{project}/topics/topic"), &json!({})).await.0, 200);
    for i in 0..STREAMS {
        let subscription = json!({"topic": "projects/project/topics/topic"});
        assert_eq!(call(pubsub, "PUT", &format!("{project}/subscriptions/sub{i:02}"), &subscription).await.0, 200);
    }
    let messages = json!({"messages": [{"data": "A".repeat(2 << 20)}]});
    for _ in 0..8 {
        assert_eq!(call(pubsub, "POST", &format!("{project}/topics/topic:publish"), &messages).await.0, 200);
    }
    let client = server.client("tcp").await;
    let peak = Peak::of(&server);
    let requests = (0..STREAMS).map(|i| {
        let all = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/google.pubsub.v1.Subscriber/StreamingPull"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let name = format!("projects/project/subscriptions/sub{i:02}");
        // The subscription, and 600 s for each message.
        let message = [&[0x0a, name.len() as u8], name.as_bytes(), &[0x28, 0xd8, 0x04]].concat();
        let data = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        [frame(1, 4, 2 * i + 1, &headers(&all)), frame(0, 0, 2 * i + 1, &data)].concat()
    });
    let unread = ask(pubsub, &closed_windows(requests)).await;
    until("streams that wait", async || metric(&client, "thalweg_response_waits_total").await >= 10).await;
    let other = call(pubsub, "GET", &format!("{project}/topics/topic"), &Value::Null).await;
    assert_eq!(other.0, 200, "{other:?}");
    peak.ends_within(32 * MIB);
    drop(unread);
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
}

#[tokio::test]
async fn metrics_pages_over_closed_windows_stay_within_the_response_memory() {
    let server = server(&["response_memory_max=16MiB"]);
    let http = server.door("http");
    let client = server.client("tcp").await;
    let peak = Peak::of(&server);
    let all = [(":method", "GET"), (":scheme", "http"), (":path", "/metrics"), (":authority", "localhost")];
    let mut unread = Vec::new();
    for _ in 0..20 {
        let requests = (0..128).map(|i| frame(1, 5, 2 * i + 1, &headers(&all)));
        unread.push(ask(http, &closed_windows(requests)).await);
    }
    let answered = async |class| metric(&client, &format!("thalweg_http_requests_total{{status=\"{class}\"}}")).await;
    until("answers to most", async || answered("2xx").await + answered("5xx").await >= 2000).await;
    assert_eq!(call(http, "GET", "/readyz", &Value::Null).await.0, 200);
    peak.ends_within(16 * MIB);
    drop(unread);
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
    assert_eq!(call(http, "GET", "/metrics", &Value::Null).await.0, 200);
}

#[tokio::test]
async fn policies_have_a_maximum_together() {
    let server = server(&[]);
    let pubsub = server.pubsub();
    let policy = json!({"policy": {"bindings": [{"role": "roles/x", "members": ["a".repeat(900_000)]}]}});
    let mut refused = None;
    for i in 0..60 {
        let topic = format!("/v1/projects/project/topics/t{i:02}");
        assert_eq!(call(pubsub, "PUT", &topic, &json!({})).await.0, 200);
        let (status, body) = call(pubsub, "POST", &format!("{topic}:setIamPolicy"), &policy).await;
        if status != 200 {
            refused = Some((i, status, body));
            break;
        }
    }
    let (kept, status, body) = refused.expect("60 of them have 54 MB");
    assert!((40..60).contains(&kept) && status == 429 && body.contains("RESOURCE_EXHAUSTED"), "{kept} {status} {body}");
    // After the deletion of one of them there is room for another.
    assert_eq!(call(pubsub, "DELETE", "/v1/projects/project/topics/t00", &Value::Null).await.0, 200);
    let topic = format!("/v1/projects/project/topics/t{kept:02}:setIamPolicy");
    assert_eq!(call(pubsub, "POST", &topic, &policy).await.0, 200);
}

#[tokio::test]
async fn unread_fetches_over_the_native_door_stay_within_the_response_memory() {
    let server = server(&["response_memory_max=32MiB"]);
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let large = batch(Codec::None, &[Record::new(vec![7; 9 << 20])]);
    assert_eq!(produced(&raw.call(9, produce("t", 0, -1, large)).await).0, 0);
    let client = server.client("tcp").await;
    let peak = Peak::of(&server);
    let fetch = Request::Fetch { topic: "t".into(), partition: 0, offset: 0, bytes_max: 1, wait_ms: 0 };
    let requests = [encode(&hello(), 1), encode(&fetch, 2)].concat();
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(ask(server.address, &requests).await);
    }
    until("answers that wait", async || metric(&client, "thalweg_response_waits_total").await >= 30).await;
    assert_eq!(call(server.door("http"), "PUT", "/v1/topics/other", &json!({})).await.0, 201);
    peak.ends_within(32 * MIB);
    drop(unread);
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
}

/// Batches from a file are charged to the broker's memory from the moment at which they are read.
#[tokio::test]
async fn native_fetches_that_wait_for_memory_hold_nothing_that_they_read_from_a_file() {
    let data = tempfile::tempdir().expect("a directory");
    let data = format!("data={}", data.path().display());
    let mut server = server(&["response_memory_max=32MiB", &data]);
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let large = batch(Codec::None, &[Record::new(vec![7; 9 << 20])]);
    assert_eq!(produced(&raw.call(9, produce("t", 0, -1, large)).await).0, 0);
    // After a restart no batch is in memory.
    server.crash_and_restart();
    let client = server.client("tcp").await;
    let peak = Peak::of(&server);
    let fetch = Request::Fetch { topic: "t".into(), partition: 0, offset: 0, bytes_max: 1, wait_ms: 0 };
    let requests = [encode(&hello(), 1), encode(&fetch, 2)].concat();
    let mut unread = Vec::new();
    for _ in 0..60 {
        unread.push(ask(server.address, &requests).await);
    }
    until("fetches that wait", async || metric(&client, "thalweg_response_waits_total").await >= 50).await;
    peak.ends_within(32 * MIB);
    drop(unread);
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
}

/// Behavior of Redis for clients with too much unread output (`client-output-buffer-limit pubsub`).
#[tokio::test]
async fn redis_listeners_that_do_not_read_are_disconnected_when_the_response_memory_is_full() {
    const LISTENERS: usize = 20;
    let server = server(&["response_memory_max=8MiB"]);
    let redis = server.door("redis");
    let client = server.client("tcp").await;
    let mut unread = Vec::new();
    for _ in 0..LISTENERS {
        let mut listener = ask(redis, b"SUBSCRIBE channel\r\n").await;
        let mut first = [0; 4];
        within("an answer", listener.read_exact(&mut first)).await.expect("read");
        unread.push(listener);
    }
    let mut publisher = ask(redis, b"").await;
    let request = format!("PUBLISH channel {}\r\n", "x".repeat(60_000));
    // More than the system buffers for a socket, and less than a queue's limit.
    for _ in 0..160 {
        publisher.write_all(request.as_bytes()).await.expect("sent");
        while within("an answer", publisher.read_u8()).await.expect("read") != b'\n' {}
    }
    let held = metric(&client, "thalweg_response_bytes").await;
    assert!(held <= 8 * MIB + (1 << 20), "{held}");
    until("a listener that is disconnected", async || {
        metric(&client, "thalweg_redis_slow_subscribers_total").await > 0
    })
    .await;
    drop(unread);
    until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
}

/// Lists that clients do not read count, at the doors whose responses have no permit before they are encoded.
#[tokio::test]
async fn lists_that_are_not_read_are_charged() {
    let server = server(&["response_memory_max=8MiB", "kafka=127.0.0.1:0"]);
    let client = server.client("tcp").await;
    for number in 0..1500 {
        let name = format!("{number:0>200}");
        client.create_topic(&name, TopicSettings::default()).await.expect("created");
    }
    let kafka = Raw::connect(&server).await.frame_of(12, &MetadataRequest::default().with_topics(None));
    let list = encode(&Request::TopicList { after: String::new(), count_max: 1500 }, 1);
    let native = [encode(&hello(), 0), list.repeat(30)[..].into()].concat();
    for (door, requests) in [(server.door("kafka"), kafka.repeat(30)), (server.address, native)] {
        let peak = Peak::of(&server);
        let mut unread = Vec::new();
        for _ in 0..60 {
            unread.push(ask(door, &requests).await);
        }
        until("responses that find no memory", async || {
            metric(&client, "thalweg_response_waits_total").await
                + metric(&client, "thalweg_response_refused_total").await
                > 0
        })
        .await;
        let held = metric(&client, "thalweg_response_bytes").await;
        assert!(held <= 9 * MIB, "{held}");
        peak.ends_within(8 * MIB);
        drop(unread);
        until("their memory", async || metric(&client, "thalweg_response_bytes").await == 0).await;
    }
}
