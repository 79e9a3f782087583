//! A broker with an HTTP door, and a minimal client.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Wakes};
use bytes::Bytes;
use doors::http::Settings;
use doors::{Door, Opening};
use engine::{BatchBuilder, Codec, DraftBatch};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use net::tls::{Identity, IdentitySource, Tls};
use net::{ConnectionLimits, Connections, Shutdown, Sockets, Workers};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Timeout that is longer than any test takes: only a test that hangs reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("this does not hang")
}

pub struct Server {
    pub address: SocketAddr,
    pub broker: Arc<Broker>,
    pub connections: Arc<Connections>,
    pub shutdown: Shutdown,
}

pub fn settings() -> Settings {
    Settings {
        header_timeout: PATIENCE,
        body_bytes_max: 64 << 10,
        allow_plain: false,
        hosts: vec!["broker".into()],
        ..Settings::default()
    }
}

pub async fn start() -> Server {
    start_with(broker::Settings::default(), settings(), 100).await
}

pub async fn start_with(of_broker: broker::Settings, of_door: Settings, connections_max: usize) -> Server {
    let broker = Broker::start(of_broker, &[Handle::current()]).expect("one thread");
    serve(broker, of_door, connections_max).await
}

/// Opens a door of a broker.
pub async fn serve(broker: Arc<Broker>, of_door: Settings, connections_max: usize) -> Server {
    let limits = ConnectionLimits::up_to(connections_max);
    let shutdown = Shutdown::default();
    let connections = Connections::new(limits);
    let workers = Arc::new(Workers::start(1).expect("a thread"));
    let identity = Identity::self_signed(vec!["localhost".to_owned()]).expect("an identity");
    let tls = Arc::new(Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS"));
    let sockets = Sockets::bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    let opening = Opening {
        broker: broker.clone(),
        workers: &workers,
        sockets: &sockets,
        connections: connections.clone(),
        shutdown: &shutdown,
        tls: &tls,
        gate: None,
    };
    let opened = Box::new(of_door).open(opening).await;
    Server { address: opened.expect("open").address, broker, connections, shutdown }
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "broker");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).expect("a valid request")
}

pub async fn whole(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

impl Server {
    pub async fn socket(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the door is open")
    }

    pub async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let (sender, connection) = handshake(TokioIo::new(self.socket().await)).await.expect("a connection");
        // The result of a connection is reported by the requests on it.
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        sender
    }

    /// Sends one request on a new connection. Returns after the headers of the response.
    pub async fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let request = request(method, path, headers, body);
        within(async { self.connect().await.send_request(request).await.expect("an answer") }).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let response = self.begin(method, path, headers, body).await;
        within(whole(response)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    /// Publishes values directly at the broker, as one batch to the first partition.
    pub async fn publish(&self, topic: &str, values: &[&str]) {
        self.publish_batch(topic, batch(values)).await;
    }

    pub async fn publish_batch(&self, topic: &str, batch: DraftBatch) {
        let mut wakes = Wakes::default();
        self.broker.publish(topic, Some(0), engine::Acks::Default, batch, &mut wakes).await.expect("published");
    }
}

/// Returns a batch with the timestamps 1000, 1001 and so on.
pub fn batch(values: &[&str]) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for (timestamp_ms, value) in (1000..).zip(values) {
        builder.push(timestamp_ms, None, Some(value.as_bytes()), &[]).expect("small record");
    }
    builder.finish().expect("records")
}

/// Returns a compressed batch of many similar records.
pub fn compressed_batch(codec: Codec, values: &[String]) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(1000, None, Some(value.as_bytes()), &[]).expect("small record");
    }
    let batch = builder.finish_with(codec, None).expect("records");
    assert_eq!(batch.codec(), Ok(codec));
    batch
}

/// Returns a batch with an unknown codec.
pub fn unreadable_batch() -> DraftBatch {
    let mut bytes = bytes::BytesMut::from(&batch(&["a", "b"]).into_bytes()[..]);
    bytes[22] |= 5;
    let crc = crc32c(&bytes[21..]).to_be_bytes();
    bytes[17..21].copy_from_slice(&crc);
    DraftBatch::parse(bytes).expect("a valid checksum")
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

pub const JSON: (&str, &str) = ("content-type", "application/json");
pub const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");

/// Returns the values of the records in a response.
pub fn values(answer: &Answer) -> Vec<String> {
    let json = answer.json();
    let records = json["records"].as_array().expect("records");
    records.iter().map(|record| record["value"].as_str().expect("a value").to_owned()).collect()
}
