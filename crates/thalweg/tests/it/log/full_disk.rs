//! A small disk that a broker fills: the errors of each door, and the recovery without intervention.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::{Acks, ErrorKind, Start};
use engine::Record;
use engine::codec::Codec;
use serde_json::json;
use tempfile::TempDir;
use wire::Response;

use crate::door::kafka::raw as kafka;
use crate::door::redis::commands::Redis;
use crate::door::sqs::client::Sqs;
use crate::door::web::ask;
use crate::support::raw::{Raw, publish};
use crate::support::reading::{subscribe, values};
use crate::support::server::{Server, metric, until};

const DISK_BYTES: u64 = 160 << 20;
const FILLER_BYTES: usize = 512 << 10;
/// Unit of timeouts, long enough for a busy machine.
const SECONDS: Duration = Duration::from_secs(10);

/// File system with the lifetime of this value: a tmpfs in a mount namespace that does not require root.
pub struct SmallDisk {
    holder: Child,
    mount: TempDir,
}

impl SmallDisk {
    /// Returns `None`, with a message, if the system does not allow users to create namespaces.
    pub fn new() -> Option<Self> {
        let mount = tempfile::tempdir().expect("a folder");
        let script = format!("mount -t tmpfs -o size={DISK_BYTES} tmpfs \"$0\" && echo ready && exec cat");
        let spawned = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .arg(mount.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut line = String::new();
        let holder = spawned.ok().and_then(|mut holder| {
            let stdout = holder.stdout.take().expect("a pipe");
            BufReader::new(stdout).read_line(&mut line).expect("it is read");
            if line == "ready\n" { Some(holder) } else { holder.wait().map(|_| None).expect("it ended") }
        });
        if holder.is_none() {
            eprintln!("skipped: `unshare --user --map-root-user --mount` can make no tmpfs here");
        }
        holder.map(|holder| Self { holder, mount })
    }

    /// Returns the path as seen by other processes.
    pub fn path(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.mount.path().strip_prefix("/").expect("an absolute path"))
    }

    pub fn free_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(self.path()).expect("it is there");
        found.f_bavail * found.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.holder.kill().unwrap_or_default();
        self.holder.wait().map(drop).unwrap_or_default();
    }
}

fn http(server: &Server, method: &str, path: &str, body: &str) -> (u16, String) {
    request(server.door("http"), method, path, "application/octet-stream", body)
}

fn request(door: SocketAddr, method: &str, path: &str, kind: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {door}\r\nConnection: close\r\nContent-Type: {kind}\r\n");
    ask(door, &format!("{head}Content-Length: {length}\r\n\r\n{body}"))
}

/// Acknowledged changes of each door.
#[derive(Default)]
struct Acknowledged {
    http: Vec<String>,
    redis: String,
    sqs: usize,
    kafka: usize,
}

/// Publishes records to an otherwise unused topic until the HTTP door refuses one.
async fn fill(server: &Server) -> String {
    let value = "x".repeat(FILLER_BYTES);
    let begin = Instant::now();
    loop {
        match http(server, "POST", "/v1/topics/filler/records", &value) {
            (200, _) => assert!(begin.elapsed() < 12 * SECONDS, "the disk is never full"),
            (503, body) if body.contains("\"disk_full\"") => return body,
            // The queue of the journal is full.
            (503, body) if body.contains("\"busy\"") => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    }
}

/// Fills the disk until `attempt` is refused as well. Data that is discarded because of a full disk may free room in
/// between.
async fn refused<T>(server: &Server, what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let mut refused = None;
    until(what, async || {
        fill(server).await;
        refused = attempt().await;
        refused.is_some()
    })
    .await;
    refused.expect("it is refused")
}

/// Publishes to the topic `kept` over HTTP. Returns the response if it is refused.
fn publish_kept(server: &Server, acknowledged: &mut Acknowledged) -> Option<(u16, String)> {
    let value = format!("value {}", acknowledged.http.len());
    match http(server, "POST", "/v1/topics/kept/records", &value) {
        (200, _) => {
            acknowledged.http.push(value);
            None
        }
        other => Some(other),
    }
}

fn set_counter(server: &Server, acknowledged: &mut Acknowledged) -> Option<String> {
    let value = format!("{}1", acknowledged.redis);
    match &*Redis::open(server).call(&format!("SET counter {value}")) {
        "+OK" => {
            acknowledged.redis = value;
            None
        }
        other => Some(other.to_owned()),
    }
}

async fn send_to_queue(server: &Server, url: &str, acknowledged: &mut Acknowledged) -> Option<(u16, String)> {
    let body = json!({"QueueUrl": url, "MessageBody": format!("message {}", acknowledged.sqs)});
    let answer = Sqs::of(server).call("SendMessage", body).await;
    if answer.status == 200 {
        acknowledged.sqs += 1;
        return None;
    }
    Some((answer.status, answer.code()))
}

async fn produce(server: &Server, acknowledged: &mut Acknowledged) -> Option<i16> {
    let batch = kafka::batch(Codec::None, &[Record::new("produced")]);
    let mut raw = kafka::Raw::connect(server).await;
    let answer = raw.call(9, kafka::produce("orders", 0, -1, batch)).await;
    match kafka::produced(&answer).0 {
        0 => {
            acknowledged.kafka += 1;
            None
        }
        code => Some(code),
    }
}

/// AWS SDKs retry 5xx; `KafkaStorageException` is retriable for Kafka's clients and 56 is its code; Google's libraries
/// retry UNAVAILABLE, which is 503 in REST; go-redis retries a command after TRYAGAIN.
async fn every_door_says_so(server: &Server, url: &str, acknowledged: &mut Acknowledged) {
    let (status, body) = refused(server, "HTTP refuses", async || publish_kept(server, acknowledged)).await;
    assert!(status == 503 && body.contains("disk_full"), "{status} {body}");
    let code = refused(server, "Kafka refuses", async || produce(server, acknowledged).await).await;
    assert_eq!(code, 56);
    let (status, code) = refused(server, "SQS refuses", async || send_to_queue(server, url, acknowledged).await).await;
    assert_eq!((status, &*code), (503, "ServiceUnavailable"));
    let response = refused(server, "Redis refuses", async || set_counter(server, acknowledged)).await;
    assert!(response.starts_with("-TRYAGAIN "), "{response}");
    // A refused change is not visible, and reads continue.
    assert_eq!(Redis::open(server).call("GET counter"), acknowledged.redis);
    let (status, body) = refused(server, "Pub/Sub refuses", async || {
        let door = server.pubsub();
        let body = json!({"messages": [{"data": "eA=="}]}).to_string();
        let path = "/v1/projects/thalweg/topics/events:publish";
        Some(request(door, "POST", path, "application/json", &body)).filter(|(status, _)| *status != 200)
    })
    .await;
    assert!(status == 503 && body.contains("UNAVAILABLE"), "{status} {body}");
    let error = refused(server, "the native door refuses", async || {
        let mut raw = Raw::open(server.address).await;
        match raw.call(&publish("native", Acks::Committed, &[b"x"])).await {
            Response::Error(error) => Some(error),
            _ => None,
        }
    })
    .await;
    assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
    let (status, body) = refused(server, "it is not ready", async || {
        Some(http(server, "GET", "/readyz", "")).filter(|(status, _)| *status != 200)
    })
    .await;
    assert!(status == 503 && body.contains("disk_full"), "{status} {body}");
    assert_eq!(http(server, "GET", "/healthz", "").0, 200);
}

async fn check_all_stored(server: &Server, url: &str, acknowledged: &Acknowledged) {
    let client = server.client("tcp").await;
    let mut kept = subscribe(&client, "kept", Start::Earliest).await;
    assert_eq!(values(&mut kept, acknowledged.http.len()).await, acknowledged.http);
    let mut orders = subscribe(&client, "orders", Start::Earliest).await;
    values(&mut orders, acknowledged.kafka).await;
    assert_eq!(Redis::open(server).call("GET counter"), acknowledged.redis);
    let count = Sqs::of(server).attribute(url, "ApproximateNumberOfMessages").await;
    let count: usize = count.as_str().expect("text").parse().expect("a number");
    assert!(count >= acknowledged.sqs, "{count} of {} messages", acknowledged.sqs);
}

async fn writes_are_taken(server: &Server, url: &str, acknowledged: &mut Acknowledged) {
    until("HTTP takes records", async || publish_kept(server, acknowledged).is_none()).await;
    until("Redis takes changes", async || set_counter(server, acknowledged).is_none()).await;
    until("SQS takes messages", async || send_to_queue(server, url, acknowledged).await.is_none()).await;
    until("Kafka takes batches", async || produce(server, acknowledged).await.is_none()).await;
    until("it is ready", async || http(server, "GET", "/readyz", "").0 == 200).await;
}

fn serve(data: &Path) -> Server {
    let data = format!("data={}", data.display());
    let doors = ["http=127.0.0.1:0", "pubsub=127.0.0.1:0", "redis=127.0.0.1:0"];
    Server::with(&[&doors[..], &["redis_durable=true", &data]].concat())
}

#[tokio::test]
async fn a_full_disk_is_reported_at_every_door_and_deleting_a_topic_fixes_it_without_a_restart() {
    let Some(disk) = SmallDisk::new() else {
        return;
    };
    let mut server = serve(&disk.path().join("data"));
    let mut acknowledged = Acknowledged::default();
    kafka::Raw::connect(&server).await.create("orders").await;
    let url = Sqs::of(&server).create("jobs", json!({})).await;
    let topic = request(server.pubsub(), "PUT", "/v1/projects/thalweg/topics/events", "application/json", "{}");
    assert_eq!(topic.0, 200, "{topic:?}");
    writes_are_taken(&server, &url, &mut acknowledged).await;

    fill(&server).await;
    every_door_says_so(&server, &url, &mut acknowledged).await;
    let client = server.client("tcp").await;
    assert_eq!(metric(&client, "thalweg_disk_is_full").await, 1);
    check_all_stored(&server, &url, &acknowledged).await;

    // A restart on the full disk.
    server.crash_and_restart();
    check_all_stored(&server, &url, &acknowledged).await;
    fill(&server).await;
    every_door_says_so(&server, &url, &mut acknowledged).await;

    fill(&server).await;
    let before = disk.free_bytes();
    assert_eq!(http(&server, "DELETE", "/v1/topics/filler", "").0, 204);
    until("its bytes are free", async || disk.free_bytes() > before + DISK_BYTES / 8).await;
    writes_are_taken(&server, &url, &mut acknowledged).await;
    let client = server.client("tcp").await;
    assert_eq!(metric(&client, "thalweg_disk_is_full").await, 0);

    server.crash_and_restart();
    check_all_stored(&server, &url, &acknowledged).await;
}
