//! Doors that end without a drain: nothing of theirs keeps the broker, whose data another broker opens afterwards.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientSettings, Start};
use doors::pubsub::proto::{StreamingPullRequest, StreamingPullResponse};
use futures_util::{StreamExt, stream};
use hyper::http::uri::PathAndQuery;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use thalweg::config::Config;
use thalweg::{Door, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tonic::Request;
use tonic_prost::ProstCodec;

use crate::door::kafka::raw::Raw;
use crate::support::server::{connect, until, within};

/// Time in which everything of the broker has to end.
const SOON: Duration = Duration::from_secs(1);

async fn http(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str, headers: &str, body: &str) {
    let length = body.len();
    let text = format!("{request} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(text.as_bytes()).await.expect("sent");
}

/// Sends a request and returns the answer, whose connection is closed after it.
async fn once(address: SocketAddr, request: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    http(&mut stream, request, &format!("connection: close\r\n{headers}"), body).await;
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.expect("an answer");
    // The second broker has what the first one had.
    assert!(answer.starts_with("HTTP/1.1 2") || answer.contains("already exists"), "{request}: {answer}");
    answer
}

/// Reads a connection to its end, which may be a reset.
fn to_its_end(mut stream: impl AsyncRead + Send + Unpin + 'static) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut bytes = [0; 4096];
        while let Ok(1..) = stream.read(&mut bytes).await {}
    })
}

async fn read_head(stream: &mut TcpStream, first: &str) {
    let mut head = vec![0; first.len()];
    within("a head", stream.read_exact(&mut head)).await.expect("a head");
    assert_eq!(String::from_utf8_lossy(&head), first);
}

/// Clients that wait for something at every door, in tasks that end with their connections.
struct Waiting {
    tasks: Vec<JoinHandle<()>>,
    clients: Vec<Client>,
}

impl Waiting {
    async fn at_all_doors(server: &Server, folder: &Path) -> Self {
        let mut waiting = Self { tasks: Vec::new(), clients: Vec::new() };
        let at = |door| server.address(door).expect("open");
        once(at(Door::Http), "PUT /v1/topics/news", "", "{}").await;
        once(at(Door::Http), "PUT /v1/queues/jobs", "", "{}").await;
        waiting.at_native(at(Door::Native), folder).await;
        waiting.at_http(at(Door::Http)).await;
        waiting.at_kafka(at(Door::Kafka)).await;
        waiting.at_sqs(at(Door::Sqs)).await;
        waiting.at_pubsub(at(Door::Pubsub)).await;
        waiting.at_redis(at(Door::Redis)).await;
        waiting
    }

    async fn at_native(&mut self, address: SocketAddr, folder: &Path) {
        for url in [format!("tcp://{address}"), format!("quic://{address}")] {
            let client = connect(&url, ClientSettings::default()).await;
            for topic in ["news", "*"] {
                let subscribed = client.subscribe(topic).start(Start::Live).open();
                let mut news = within("a subscription", subscribed).await.expect("subscribed");
                self.tasks.push(tokio::spawn(async move {
                    // The client connects again after the end, which has to be a moment later.
                    drop(tokio::time::timeout(SOON, news.next()).await);
                }));
            }
            self.clients.push(client);
        }
        let unix = UnixStream::connect(folder.join("native.sock")).await.expect("connected");
        self.tasks.push(to_its_end(unix));
    }

    async fn at_http(&mut self, address: SocketAddr) {
        for (request, headers, body, first) in [
            ("GET /v1/topics/news/events", "", "", "HTTP/1.1 200 OK"),
            (
                "GET /v1/topics/news/ws",
                "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                 sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
                "",
                "HTTP/1.1 101 Switching Protocols",
            ),
            ("GET /v1/topics/news/records?offset=0&wait_ms=20000", "", "", ""),
            ("POST /v1/queues/jobs/receive", "content-type: application/json\r\n", r#"{"wait_ms":20000}"#, ""),
        ] {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            http(&mut stream, request, headers, body).await;
            read_head(&mut stream, first).await;
            self.tasks.push(to_its_end(stream));
        }
    }

    async fn at_kafka(&mut self, address: SocketAddr) {
        let mut kafka = Raw::connect_to(address).await;
        let partition =
            FetchPartition::default().with_partition(0).with_fetch_offset(0).with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default()
            .with_topic(TopicName(StrBytes::from_static_str("news")))
            .with_partitions(vec![partition]);
        let fetch = FetchRequest::default()
            .with_max_wait_ms(20_000)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_topics(vec![topic]);
        self.tasks.push(tokio::spawn(async move {
            // It may be answered when the shutdown begins.
            drop(kafka.try_call(11, &fetch).await);
        }));
    }

    async fn at_sqs(&mut self, address: SocketAddr) {
        let headers =
            |action: &str| format!("content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{action}\r\n");
        once(address, "POST /", &headers("CreateQueue"), r#"{"QueueName":"sqs"}"#).await;
        let body = format!(r#"{{"QueueUrl":"http://{address}/000000000000/sqs","WaitTimeSeconds":20}}"#);
        let mut stream = TcpStream::connect(address).await.expect("connected");
        http(&mut stream, "POST /", &headers("ReceiveMessage"), &body).await;
        self.tasks.push(to_its_end(stream));
    }

    async fn at_pubsub(&mut self, address: SocketAddr) {
        let json = "content-type: application/json\r\n";
        once(address, "PUT /v1/projects/thalweg/topics/events", json, "{}").await;
        let topic = r#"{"topic":"projects/thalweg/topics/events"}"#;
        once(address, "PUT /v1/projects/thalweg/subscriptions/events", json, topic).await;
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let mut grpc = tonic::client::Grpc::new(within("a connection", endpoint.connect()).await.expect("connected"));
        within("the connection", grpc.ready()).await.expect("ready");
        let first = StreamingPullRequest {
            subscription: "projects/thalweg/subscriptions/events".into(),
            stream_ack_deadline_seconds: 60,
            ..Default::default()
        };
        let path = PathAndQuery::from_static("/google.pubsub.v1.Subscriber/StreamingPull");
        let codec = ProstCodec::<StreamingPullRequest, StreamingPullResponse>::default();
        let requests = stream::iter([first]).chain(stream::pending());
        let opened = grpc.streaming(Request::new(requests), path, codec);
        let mut answers = within("a stream", opened).await.expect("open").into_inner();
        within("the first answer", answers.message()).await.expect("an answer");
        self.tasks.push(tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} }));
    }

    async fn at_redis(&mut self, address: SocketAddr) {
        for (commands, answer) in [
            ("BLPOP list 0\r\n", ""),
            ("SUBSCRIBE news\r\n", "*3\r\n$9\r\nsubscribe\r\n"),
            ("PSUBSCRIBE n*\r\n", "*3\r\n$10\r\npsubscribe\r\n"),
            ("XREAD BLOCK 0 STREAMS log $\r\n", ""),
            ("SET key value\r\nMULTI\r\n", "+OK\r\n+OK\r\n"),
        ] {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            stream.write_all(commands.as_bytes()).await.expect("sent");
            read_head(&mut stream, answer).await;
            self.tasks.push(to_its_end(stream));
        }
    }
}

/// Returns `true` once every request of the clients above has begun.
async fn has_begun(server: &Server) -> bool {
    let text = server.broker.stats().expect("metrics");
    let value = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    value("thalweg_http_connections") == 4
        && value("thalweg_kafka_requests_total") == 1
        && value("thalweg_sqs_connections") == 1
        && value("thalweg_redis_requests_total") == 6
        && value("thalweg_pubsub_streams") == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_keeps_a_broker_whose_doors_are_cut() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A collector that never answers: an export is always in progress.
    let collector = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let config = Config::builder()
        .free_ports()
        .data(folder.path().join("data"))
        .set("shutdown_timeout_ms", 1)
        .set("native_unix", folder.path().join("native.sock").display())
        .set("http_unix", folder.path().join("http.sock").display())
        .set("otlp_endpoint", format!("http://{}", collector.local_addr().expect("an address")))
        .set("otlp_interval_ms", 1)
        .set("audit", "on")
        .set("redis_durable", true)
        .set("insecure", true)
        .build()
        .expect("valid");
    // Each round opens the data that the last one has left.
    for _ in 0..2 {
        let server = Server::start(&config).await.expect("started");
        let waiting = Waiting::at_all_doors(&server, folder.path()).await;
        until("all requests have begun", async || has_begun(&server).await).await;
        let broker = Arc::downgrade(&server.broker);
        let core = Arc::downgrade(&**server.broker);
        let is_clean = within("the shutdown", server.shut_down()).await;
        assert!(!is_clean, "the clients were cut");
        let all_gone = async {
            while broker.strong_count() + core.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let is_gone = tokio::time::timeout(SOON, all_gone).await.is_ok();
        assert!(is_gone, "{} hold the broker, {} its core", broker.strong_count(), core.strong_count());
        for task in waiting.tasks {
            within("the end of a connection", task).await.expect("no panic");
        }
        drop(waiting.clients);
    }
}
