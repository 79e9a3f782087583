//! Connections that another node forwards to a door: they are served like its own, under the address of the client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use broker::{AuditSettings, Broker};
use doors::{Door, Opened, Opening, http, kafka, native, pubsub, redis, sqs};
use net::quic::Windows;
use net::tls::trust::{self, Trust};
use net::tls::{Identity, IdentitySource, Tls};
use net::{ConnectionLimits, Connections, Forwarded, Gate, Shutdown, Sockets, Workers};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_rustls::TlsConnector;
use wire::negotiate::Features;

/// Timeout that only a test that hangs reaches.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients of another machine and of the other node itself.
const FAR: &str = "192.0.2.1:5001";
const NEAR: &str = "127.0.0.1:5002";

/// Function that returns the settings of a door.
type Settings = fn(Admission, Arc<Tls>) -> Box<dyn Door>;

/// Door as these tests need to know it.
struct Kind {
    open: Settings,
    /// Application protocol that its clients offer in TLS.
    alpn: &'static [&'static [u8]],
    /// Request of a client, and a part of its answer.
    request: Vec<u8>,
    answer: &'static [u8],
    /// `true` if a client that is refused receives the reason.
    explains: bool,
}

#[derive(Clone, Copy, Default)]
struct Admission {
    allow_plain: bool,
    is_login_required: bool,
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn kinds() -> Vec<Kind> {
    // A request for the versions that the broker knows (key 18, version 0).
    let versions: Vec<u8> = [&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 255, 255][..]].concat();
    vec![
        Kind { open: native, alpn: &[wire::negotiate::ALPN], request: hello(), answer: b"", explains: false },
        Kind { open: http, alpn: &[b"http/1.1"], request: GET.into(), answer: b"HTTP/1.1 200 ", explains: true },
        Kind { open: kafka, alpn: &[], request: versions, answer: &[0, 0, 0, 7, 0, 0], explains: false },
        Kind { open: sqs, alpn: &[b"http/1.1"], request: queues(), answer: b"HTTP/1.1 200 ", explains: true },
        Kind { open: pubsub, alpn: &[b"http/1.1"], request: GET.into(), answer: b"HTTP/1.1 200 ", explains: true },
        Kind { open: redis, alpn: &[], request: b"PING\r\n".into(), answer: b"+PONG\r\n", explains: false },
    ]
}

fn hello() -> Vec<u8> {
    let hello = wire::Request::Hello {
        version: wire::negotiate::VERSION,
        required: Features(0),
        offered: Features(0),
        client: "test".to_owned(),
    };
    let mut bytes = bytes::BytesMut::new();
    hello.encode(1, &mut bytes);
    bytes.to_vec()
}

fn queues() -> Vec<u8> {
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-amz-json-1.0\r\n\
                x-amz-target: AmazonSQS.ListQueues\r\ncontent-length: 2\r\n\r\n{}";
    head.into()
}

fn native(admission: Admission, _tls: Arc<Tls>) -> Box<dyn Door> {
    let windows = Windows {
        connection_receive: 1 << 20,
        stream_receive: 1 << 20,
        send: 1 << 20,
        bidirectional_streams: 4,
        unidirectional_streams: 0,
    };
    let Admission { allow_plain, is_login_required } = admission;
    Box::new(native::Settings { hello_timeout: PATIENCE, allow_plain, is_login_required, windows })
}

fn http(admission: Admission, tls: Arc<Tls>) -> Box<dyn Door> {
    let Admission { allow_plain, is_login_required } = admission;
    Box::new(http::Settings { allow_plain, is_login_required, tls: Some(tls), ..http::Settings::default() })
}

fn kafka(admission: Admission, _tls: Arc<Tls>) -> Box<dyn Door> {
    let Admission { allow_plain, is_login_required } = admission;
    Box::new(kafka::Settings { advertised: None, hello_timeout: PATIENCE, allow_plain, is_login_required })
}

fn sqs(Admission { allow_plain, .. }: Admission, tls: Arc<Tls>) -> Box<dyn Door> {
    Box::new(sqs::Settings { allow_plain, tls: Some(tls), ..sqs::Settings::default() })
}

fn pubsub(admission: Admission, tls: Arc<Tls>) -> Box<dyn Door> {
    let Admission { allow_plain, is_login_required } = admission;
    Box::new(pubsub::Settings { allow_plain, is_login_required, tls: Some(tls), ..pubsub::Settings::default() })
}

fn redis(admission: Admission, _tls: Arc<Tls>) -> Box<dyn Door> {
    let Admission { allow_plain, is_login_required } = admission;
    Box::new(redis::Settings {
        hello_timeout: PATIENCE,
        allow_plain,
        is_login_required,
        is_durable: false,
        keyspace_events: String::new(),
        transaction_time_max: redis::TRANSACTION_TIME_MAX,
    })
}

/// Open door with everything that it needs.
struct Site {
    broker: Arc<Broker>,
    opened: Opened,
    shutdown: Shutdown,
    _workers: Arc<Workers>,
    _sockets: Sockets,
}

impl Site {
    async fn open(kind: &Kind, admission: Admission, gate: Option<Arc<dyn Gate>>) -> Self {
        let workers = Arc::new(Workers::start(1).expect("a thread"));
        let audit = AuditSettings { is_on: true, ..AuditSettings::default() };
        let settings = broker::Settings { audit, ..broker::Settings::default() };
        let broker = Broker::start(settings, &workers.handles()).expect("started");
        let identity = Identity::self_signed(vec!["localhost".to_owned()]).expect("an identity");
        let tls = Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS");
        let sockets = Sockets::bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
        let shutdown = Shutdown::default();
        let limits = ConnectionLimits { per_peer_max: 2, per_remote_peer_max: 2, ..ConnectionLimits::up_to(100) };
        let opening = Opening {
            broker: broker.clone(),
            workers: &workers,
            sockets: &sockets,
            connections: Connections::new(limits),
            shutdown: &shutdown,
            tls: &tls,
            gate,
        };
        let opened = (kind.open)(admission, tls.clone()).open(opening).await.expect("open");
        Self { broker, opened, shutdown, _workers: workers, _sockets: sockets }
    }

    fn forward(&self, peer: &str, owner: bool) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let peer = peer.parse().expect("an address");
        (self.opened.forward)(Forwarded { stream: Box::new(theirs), peer, local: None, owner });
        ours
    }
}

/// Sends a request, and returns the first bytes of its answer; none if the connection ends.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> Vec<u8> {
    // The door may have closed it already.
    stream.write_all(request).await.unwrap_or_default();
    stream.flush().await.unwrap_or_default();
    let mut bytes = vec![0; 4096];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await.expect("an answer or the end");
    bytes.truncate(read.unwrap_or_default());
    bytes
}

fn has(answer: &[u8], part: &[u8]) -> bool {
    !answer.is_empty() && (part.is_empty() || answer.windows(part.len()).any(|bytes| bytes == part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_serves_clients_with_and_without_tls() {
    for kind in kinds() {
        let site = Site::open(&kind, Admission { allow_plain: true, ..Admission::default() }, None).await;
        let mut plain = site.forward(FAR, false);
        let answer = ask(&mut plain, &kind.request).await;
        assert!(has(&answer, kind.answer), "{}", String::from_utf8_lossy(&answer));
        let config = trust::client_config(Trust::Anyone, kind.alpn, None).expect("a configuration");
        let name = ServerName::try_from("localhost").expect("a name");
        let connected = TlsConnector::from(Arc::new(config)).connect(name, site.forward(FAR, false)).await;
        let mut secure = connected.expect("a handshake");
        let answer = ask(&mut secure, &kind.request).await;
        assert!(has(&answer, kind.answer), "{}", String::from_utf8_lossy(&answer));
        // The address has as many connections as it may.
        let refused = ask(&mut site.forward(FAR, false), &kind.request).await;
        assert!(!has(&refused, kind.answer) || refused.is_empty(), "{}", String::from_utf8_lossy(&refused));
        assert_eq!(!refused.is_empty(), kind.explains, "{}", String::from_utf8_lossy(&refused));
        let answer = ask(&mut site.forward("192.0.2.2:1", false), &kind.request).await;
        assert!(has(&answer, kind.answer), "{}", String::from_utf8_lossy(&answer));
        site.shutdown.run(Duration::ZERO).await;
        assert_eq!(ask(&mut site.forward("192.0.2.3:1", false), &kind.request).await, b"", "it comes too late");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_refuses_plaintext_of_other_machines_as_at_its_port() {
    for kind in kinds() {
        let site = Site::open(&kind, Admission::default(), None).await;
        let refused = ask(&mut site.forward(FAR, false), &kind.request).await;
        assert!(
            refused.is_empty() || kind.explains && !has(&refused, b" 200 "),
            "{}",
            String::from_utf8_lossy(&refused)
        );
        for owner in [false, true] {
            let answer = ask(&mut site.forward(NEAR, owner), &kind.request).await;
            assert!(has(&answer, kind.answer), "{}", String::from_utf8_lossy(&answer));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_has_the_address_of_the_client() {
    let wrong = "Basic YW5uOndyb25n";
    let get = format!("GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nauthorization: {wrong}\r\n\r\n");
    let list = format!("GET /v1/projects/thalweg/topics HTTP/1.1\r\nhost: localhost\r\nauthorization: {wrong}\r\n\r\n");
    let logins: [(Settings, String); 3] = [(http, get), (pubsub, list), (redis, "AUTH ann wrong\r\n".to_owned())];
    for (open, request) in logins {
        let kind = Kind { open, alpn: &[], request: request.into(), answer: b"", explains: true };
        let admission = Admission { allow_plain: true, is_login_required: true };
        let site = Site::open(&kind, admission, None).await;
        assert!(!ask(&mut site.forward(FAR, false), &kind.request).await.is_empty());
        let recorded = async {
            loop {
                let fetched = site.broker.fetch("_audit", 0, 0, 1 << 20, PATIENCE).await;
                match fetched {
                    Ok(fetched) if !fetched.batches.is_empty() => break fetched.batches,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let batches = tokio::time::timeout(PATIENCE, recorded).await.expect("a record of the refused login");
        let mut text = String::new();
        let mut records = batches[0].records_from(0).expect("records");
        while let Some(record) = records.advance() {
            text.push_str(&String::from_utf8_lossy(record.expect("a record").value.unwrap_or_default()));
        }
        assert!(text.contains("192.0.2.1") && !text.contains("127.0.0.1"), "{text}");
    }
}

#[derive(Default)]
struct Closable(AtomicBool);

impl Gate for Closable {
    fn is_open(&self) -> bool {
        !self.0.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_answers_nothing_once_its_gate_is_closed() {
    for kind in kinds() {
        let gate = Arc::new(Closable::default());
        let site = Site::open(&kind, Admission::default(), Some(gate.clone())).await;
        let mut kept = site.forward(NEAR, false);
        let answer = ask(&mut kept, &kind.request).await;
        assert!(has(&answer, kind.answer), "{}", String::from_utf8_lossy(&answer));
        gate.0.store(true, Ordering::SeqCst);
        for stream in [kept, site.forward(NEAR, false)] {
            let mut stream = stream;
            let mut rest = ask(&mut stream, &kind.request).await;
            // The last bytes of the first answer may have been on the way.
            if !rest.is_empty() {
                assert!(!has(&rest, kind.answer), "{}", String::from_utf8_lossy(&rest));
                rest = ask(&mut stream, b"").await;
            }
            assert_eq!(rest, b"");
        }
    }
}
