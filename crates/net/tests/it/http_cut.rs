//! HTTP connections that end at once: because the shutdown cuts them off, or because a gate is closed; and connections
//! that another process forwards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use net::http::{HttpSettings, Plaintext, Reason};
use net::tls::{Tls, TlsSettings};
use net::{ConnectionLimits, Forwarded};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::TlsConnector;

use crate::certificates::{Authority, Folder};
use crate::gates::Closable;
use crate::http_server::*;

const ANN: &str = "192.0.2.1:5001";
const NEAR: &str = "127.0.0.1:5002";
const UPGRADE: &str = "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

/// Reads an answer to its end, and keeps nothing of it.
async fn read_all(answer: Response<Incoming>) {
    let mut body = answer.into_body();
    while let Some(Ok(_)) = body.frame().await {}
}

/// Reads a stream to its end. Returns its last bytes.
async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut last = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    while let Ok(n @ 1..) = within(stream.read(&mut bytes)).await {
        last = bytes[n.saturating_sub(16)..n].to_vec();
    }
    last
}

/// Begins a request of each kind that does not end by itself. Returns their tasks, which end with the connections.
async fn endless_requests(server: &Running) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks = Vec::new();
    for path in ["/wait", "/endless"] {
        let mut one = server.http1().await;
        tasks.push(tokio::spawn(async move {
            if let Ok(answer) = one.send_request(request(path, &[])).await {
                read_all(answer).await;
            }
        }));
        let mut two = server.http2().await;
        tasks.push(tokio::spawn(async move {
            if let Ok(answer) = two.send_request(request(&format!("http://server.example{path}"), &[])).await {
                read_all(answer).await;
            }
        }));
    }
    let mut upgraded = server.socket().await;
    upgraded.write_all(UPGRADE.as_bytes()).await.expect("sent");
    read_until(&mut upgraded, "\r\n\r\n").await;
    tasks.push(tokio::spawn(async move { drop(rest(&mut upgraded).await) }));
    let mut idle = server.socket().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    read_until(&mut idle, "ok").await;
    tasks.push(tokio::spawn(async move { drop(rest(&mut idle).await) }));
    let mut silent = server.socket().await;
    tasks.push(tokio::spawn(async move { drop(rest(&mut silent).await) }));
    until(|| server.limit.open() == tasks.len()).await;
    tasks
}

#[tokio::test]
async fn a_shutdown_without_time_cuts_every_connection() {
    for answers_while_draining in [true, false] {
        let server = Running::start(HttpSettings { answers_while_draining, ..settings() });
        let tasks = endless_requests(&server).await;
        let began = Instant::now();
        within(server.shutdown.run(Duration::ZERO)).await;
        within(server.task).await.expect("no panic");
        for task in tasks {
            within(task).await.expect("no panic");
        }
        assert_eq!(server.limit.open(), 0);
        assert!(began.elapsed() < PATIENCE / 2, "no timeout has ended them");
    }
}

#[tokio::test]
async fn a_closed_gate_ends_connections_without_an_answer() {
    let gate = Arc::new(Closable::default());
    let server = Running::start(HttpSettings { gate: Some(gate.clone()), ..settings() });
    let mut kept = server.socket().await;
    kept.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    read_until(&mut kept, "ok").await;
    let mut upgraded = server.socket().await;
    upgraded.write_all(UPGRADE.as_bytes()).await.expect("sent");
    read_until(&mut upgraded, "\r\n\r\n").await;
    upgraded.write_all(b"before").await.expect("sent");
    read_until(&mut upgraded, "before").await;
    let mut endless = server.socket().await;
    endless.write_all(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    within(endless.read_exact(&mut [0; 64])).await.expect("the first bytes");
    let (mut http2, connection) = http2_over(server.socket().await).await;
    whole(within(http2.send_request(request("http://server.example/", &[]))).await.expect("an answer")).await;
    let requests: u64 = server.stats.requests().iter().sum();

    gate.close();
    kept.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    assert_eq!(rest(&mut kept).await, "");
    upgraded.write_all(b"after").await.expect("sent");
    assert_eq!(rest(&mut upgraded).await, "");
    // The stream ends, and not with its last chunk.
    assert!(!read_to_end(&mut endless).await.ends_with(b"0\r\n\r\n"));
    assert!(within(http2.send_request(request("http://server.example/", &[]))).await.is_err());
    drop(http2);
    assert!(within(connection).await.expect("no panic").is_err());
    let mut new = server.socket().await;
    new.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap_or_default();
    assert_eq!(rest(&mut new).await, "");
    assert_eq!(server.stats.requests().iter().sum::<u64>(), requests, "nothing more was answered");
    until(|| server.limit.open() == 0).await;
}

struct Forwarding {
    server: Running,
    authority: Authority,
}

impl Forwarding {
    fn start(plaintext: Plaintext, limits: ConnectionLimits) -> Self {
        let authority = Authority::new();
        let folder = Folder::new();
        let identities = vec![folder.identity("own", &authority.server("server.example"))];
        let tls = Tls::new(TlsSettings { identities, refuse_unknown_names: false, client_auth: None }).expect("TLS");
        let server = Running::with(HttpSettings { plaintext, ..settings() }, Some(&tls), limits);
        Self { server, authority }
    }

    fn forward(&self, peer: &str, owner: bool) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let peer: SocketAddr = peer.parse().expect("an address");
        (self.server.forward)(Forwarded { stream: Box::new(theirs), peer, local: None, owner });
        ours
    }
}

#[tokio::test]
async fn forwarded_clients_are_served_under_their_own_address() {
    let forwarding = Forwarding::start(Plaintext::FromAnywhere, ConnectionLimits::up_to(100));
    let get = async |mut client: hyper::client::conn::http1::SendRequest<_>| {
        whole(within(client.send_request(request("/who", &[]))).await.expect("an answer")).await.text
    };
    let plain = http1_over(forwarding.forward(ANN, false)).await;
    assert_eq!(get(plain).await, "1 192.0.2.1 false ");
    let (mut http2, _connection) = http2_over(forwarding.forward(ANN, false)).await;
    let answer = within(http2.send_request(request("http://server.example/who", &[]))).await.expect("an answer");
    assert_eq!(whole(answer).await.text, "2 192.0.2.1 false ");
    let connector = TlsConnector::from(forwarding.authority.client(&[b"http/1.1"], None));
    let name = ServerName::try_from("server.example").expect("a name");
    let stream = within(connector.connect(name, forwarding.forward(ANN, false))).await.expect("a handshake");
    assert_eq!(get(http1_over(stream).await).await, "3 192.0.2.1 true ");
    let owner = http1_over(forwarding.forward(NEAR, true)).await;
    assert_eq!(get(owner).await, "4 127.0.0.1 false ");

    assert!(within(forwarding.server.shutdown.run(PATIENCE)).await.is_clean());
    assert_eq!(rest(&mut forwarding.forward(ANN, false)).await, "", "it comes too late");
}

#[tokio::test]
async fn forwarded_clients_are_refused_as_at_the_listener() {
    let limits = ConnectionLimits { per_peer_max: 1, per_remote_peer_max: 1, ..ConnectionLimits::up_to(100) };
    let forwarding = Forwarding::start(Plaintext::FromLoopback, limits);
    let exchange = async |mut client: DuplexStream| {
        client.write_all(b"GET /who HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
        let mut first = [0; 64];
        let n = within(client.read(&mut first)).await.expect("an answer");
        (String::from_utf8_lossy(&first[..n]).into_owned(), client)
    };
    let (refused, _plain) = exchange(forwarding.forward(ANN, false)).await;
    assert!(refused.starts_with("HTTP/1.1 4") && !refused.contains(" 429 "), "{refused}");
    assert_eq!(forwarding.server.stats.refused(Reason::Plaintext), 1);
    let (served, _first) = exchange(forwarding.forward(NEAR, false)).await;
    assert!(served.starts_with("HTTP/1.1 200 "), "{served}");
    let (refused, _second) = exchange(forwarding.forward(NEAR, false)).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!(forwarding.server.stats.refused(Reason::Connections), 1);
    // A process of the owner is not limited by its address.
    let (served, _owner) = exchange(forwarding.forward(NEAR, true)).await;
    assert!(served.starts_with("HTTP/1.1 200 "), "{served}");
}
