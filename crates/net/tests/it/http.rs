//! HTTP server: the requests that it admits, and its answers to the others.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper::{Method, Request};
use net::ConnectionLimits;
use net::http::{HttpSettings, IpNetwork, Plaintext, Reason, SecurityHeaders};
use net::tls::{ClientAuth, Tls, TlsSettings};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates::{Authority, Folder};
use crate::http_server::*;

/// Returns `true` if this is one answer with this status, a body and the end of the connection.
fn is_refusal(text: &str, status: u16) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    head.starts_with(&format!("HTTP/1.1 {status} "))
        && head.contains("connection: close")
        && !body.is_empty()
        && length.is_some_and(|length| length == body.len().to_string())
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let server = Running::start(settings());
    let mut client = server.http1().await;
    for _ in 0..3 {
        let answer = whole(within(client.send_request(request("/who", &[]))).await.expect("an answer")).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, "1 127.0.0.1 false "));
    }
    let once = server.exchange("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(once.starts_with("HTTP/1.1 200 OK\r\n") && once.ends_with("\r\n\r\nok"), "{once}");
    let old = server.exchange("GET / HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 OK\r\n"), "{old}");
    let pair = "GET /who HTTP/1.1\r\nhost: a\r\n\r\nGET /who HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    assert_eq!(server.exchange(pair).await.matches("4 127.0.0.1").count(), 2);
    assert_eq!((server.stats.requests(), server.stats.connections()), ([0, 7, 0, 0, 0], 4));
    let (read, written) = server.stats.bytes();
    assert!(read > 200 && written > 300, "{read} {written}");
}

#[tokio::test]
async fn http2_serves_requests_side_by_side() {
    let server = Running::start(HttpSettings { http2_streams_max: 4, ..settings() });
    let mut client = server.http2().await;
    // The first answer tells a client the maximum number of requests.
    within(client.send_request(request("http://server.example/", &[]))).await.expect("an answer");
    let waiting = client.send_request(request("http://server.example/wait", &[]));
    let answers = join_all((0..20).map(|_| {
        let answer = client.send_request(request("http://server.example/who", &[]));
        async { whole(within(answer).await.expect("an answer")).await.text }
    }));
    assert!(answers.await.iter().all(|text| text == "1 127.0.0.1 false "));
    drop(waiting);
    let absent = client.send_request(request("http://server.example/fail", &[]));
    assert_eq!(within(absent).await.expect("an answer").status(), 500);
    assert_eq!(server.stats.requests(), [0, 21, 0, 0, 1]);
    assert_eq!(server.stats.refused(Reason::Service), 1);
}

#[tokio::test]
async fn a_host_that_is_not_served_is_not_answered() {
    let server = Running::start(HttpSettings { hosts: vec!["server.example".into()], ..settings() });
    let request_with =
        async |host: &str| server.exchange(format!("GET / HTTP/1.1\r\n{host}connection: close\r\n\r\n")).await;
    assert!(request_with("host: server.example:80\r\n").await.starts_with("HTTP/1.1 200"));
    assert!(is_refusal(&request_with("host: evil.example\r\n").await, 421));
    assert!(is_refusal(&request_with("").await, 400));
    assert!(is_refusal(&request_with("host: server.example\r\nhost: server.example\r\n").await, 400));
    let mut client = server.http2().await;
    for (uri, status) in [("http://server.example/", 200), ("http://evil.example/", 421)] {
        let answer = within(client.send_request(request(uri, &[]))).await.expect("an answer");
        assert_eq!(answer.status(), status);
    }
    assert_eq!((server.stats.refused(Reason::Host), server.stats.refused(Reason::Malformed)), (2, 2));
}

#[tokio::test]
async fn a_method_that_is_not_served_is_named() {
    let server = Running::start(HttpSettings { methods: vec![Method::GET, Method::HEAD], ..settings() });
    let mut client = server.http1().await;
    let mut post = request("/", &[]);
    *post.method_mut() = Method::POST;
    let answer = whole(within(client.send_request(post)).await.expect("an answer")).await;
    assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"));
    assert!(answer.text.contains("POST"), "{}", answer.text);
    // The connection stays open.
    assert_eq!(within(client.send_request(request("/", &[]))).await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn an_answer_to_a_head_request_has_a_length_and_no_body() {
    let server = Running::start(HttpSettings { uri_bytes_max: 10, ..settings() });
    for version in [1, 2] {
        for (path, status, length) in [("/", 200, "2"), ("/length", 200, "1"), ("/longer-than-ten", 414, "43")] {
            let mut head = request(&format!("http://a{path}"), &[("host", "a")]);
            *head.method_mut() = Method::HEAD;
            let answer = match version {
                1 => within(server.http1().await.send_request(head)).await,
                _ => within(server.http2().await.send_request(head)).await,
            };
            let answer = whole(answer.expect("an answer")).await;
            let seen = (answer.status, answer.header("content-length"), answer.text.as_str());
            assert_eq!(seen, (status, length, ""), "HTTP/{version} {path}");
        }
    }
    let raw = server.exchange("HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(raw.ends_with("\r\n\r\n"), "{raw}");
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused_with_a_reason() {
    let limits = HttpSettings { uri_bytes_max: 100, headers_count_max: 5, header_bytes_max: 500, ..settings() };
    let server = Running::start(limits);
    let get = |uri: &str, more: &str| format!("GET {uri} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{more}\r\n");
    let many = |n: usize| (0..n).map(|i| format!("x-{i}: 1\r\n")).collect::<String>();
    let one = |n: usize| format!("x: {}\r\n", "v".repeat(n));
    let path = |n: usize| format!("/{}", "p".repeat(n - 1));
    for (head, status) in [
        (get(&path(100), &many(3)), 200),
        (get("/", &one(440)), 200),
        (get(&path(101), ""), 414),
        (get(&path(90_000), ""), 431),
        (get("/", &many(4)), 431),
        (get("/", &many(300)), 431),
        (get("/", &one(500)), 431),
        (get("/", &one(5_000)), 431),
    ] {
        let answer = server.exchange(&head).await;
        let is_expected = if status == 200 { answer.starts_with("HTTP/1.1 200") } else { is_refusal(&answer, status) };
        assert!(is_expected, "{status}: {} bytes: {answer}", head.len());
    }
    // Without an end, and still refused.
    let mut socket = server.socket().await;
    let head = format!("GET / HTTP/1.1\r\nx: {}", "v".repeat(5_000));
    socket.write_all(head.as_bytes()).await.expect("sent");
    assert!(is_refusal(&rest(&mut socket).await, 431));

    let mut client = server.http2().await;
    let value = "v".repeat(500);
    let large: [(&str, &str); 1] = [("x", &value)];
    for (uri, headers, status) in [
        ("http://a/", &[][..], 200),
        (&format!("http://a{}", path(101)), &[], 414),
        ("http://a/", &large, 431),
        ("http://a/", &[("a", ""), ("b", ""), ("c", ""), ("d", ""), ("e", ""), ("f", "")], 431),
    ] {
        let answer = whole(within(client.send_request(request(uri, headers))).await.expect("an answer")).await;
        assert_eq!(answer.status, status, "{uri}");
        assert!(!answer.text.is_empty());
    }
    assert_eq!((server.stats.refused(Reason::UriSize), server.stats.refused(Reason::HeaderSize)), (2, 8));
}

#[tokio::test]
async fn a_request_that_is_not_http_is_refused() {
    let server = Running::start(settings());
    for garbage in ["\0\0\0\0\r\n\r\n", "SSH-2.0-x\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n"]
    {
        let answer = server.exchange(garbage).await;
        assert!(is_refusal(&answer, 400), "{garbage:?}: {answer}");
    }
    assert_eq!(server.stats.refused(Reason::Malformed), 4);
    // After an answer as well.
    let mut socket = server.socket().await;
    socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    read_until(&mut socket, "ok").await;
    socket.write_all(b"what?\r\n\r\n").await.expect("sent");
    assert!(is_refusal(&rest(&mut socket).await, 400));
    // A valid request before it is answered first.
    let both = server.exchange("GET / HTTP/1.1\r\nhost: a\r\n\r\nwhat?\r\n\r\n").await;
    assert!(both.starts_with("HTTP/1.1 200 OK") && both.contains("okHTTP/1.1 400 "), "{both}");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_and_while_it_is_read() {
    let server = Running::start(HttpSettings { body_bytes_max: 10_000, ..settings() });
    let post = |more: &str| format!("POST /length HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{more}\r\n");
    let kept = server.exchange("POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 10001\r\n\r\n").await;
    assert!(is_refusal(&kept, 413), "closed, although the client requested keep-alive");
    let fits = server.exchange(post("content-length: 10000\r\n") + &"x".repeat(10_000)).await;
    assert!(fits.ends_with("\r\n\r\n10000"), "{fits}");
    // No byte of it was sent yet.
    assert!(is_refusal(&server.exchange(post("content-length: 10001\r\n")).await, 413));
    let refused = server.exchange(post("content-length: 10001\r\nexpect: 100-continue\r\n")).await;
    assert!(is_refusal(&refused, 413), "{refused}");
    // All of it is sent, and the answer still arrives.
    assert!(is_refusal(&server.exchange(post("content-length: 8000000\r\n") + &"x".repeat(8_000_000)).await, 413));
    let chunked = post("transfer-encoding: chunked\r\n") + "ffff\r\n" + &"x".repeat(0xffff) + "\r\n";
    assert!(is_refusal(&server.exchange(chunked).await, 413), "the limit overrides the answer of the service");
    let mut client = server.http2().await;
    for (bytes, status) in [(10_000, 200), (10_001, 413)] {
        let body = Full::new(Bytes::from(vec![b'x'; bytes]));
        let request = Request::post("http://a/length").body(body).expect("a request");
        assert_eq!(within(client.send_request(request)).await.expect("an answer").status(), status);
    }
    assert_eq!(server.stats.refused(Reason::BodySize), 6);
}

#[tokio::test]
async fn only_a_trusted_proxy_may_name_the_client() {
    let trusting = |network: &str| {
        let trusted_proxies = vec![network.parse::<IpNetwork>().expect("a network")];
        Running::start(HttpSettings { trusted_proxies, ..settings() })
    };
    let headers = [("x-forwarded-for", "203.0.113.9, 192.0.2.1"), ("x-forwarded-proto", "https")];
    let strangers = trusting("10.0.0.0/8");
    assert_eq!(strangers.get("/who", &headers).await.text, "1 127.0.0.1 false ");
    let friends = trusting("127.0.0.0/8");
    assert_eq!(friends.get("/who", &headers).await.text, "1 192.0.2.1 true ");
    let forwarded = [("forwarded", "for=\"[2001:db8::1]:80\";proto=https")];
    assert_eq!(friends.get("/who", &forwarded).await.text, "2 2001:db8::1 true ");
    assert_eq!(friends.get("/who", &[]).await.text, "3 127.0.0.1 false ");
}

#[tokio::test]
async fn too_many_requests_of_one_client_are_put_off() {
    let server = Running::start(HttpSettings {
        requests_per_second: NonZeroU32::new(1),
        trusted_proxies: vec!["127.0.0.1".parse().expect("a network")],
        ..settings()
    });
    let mut client = server.http1().await;
    let mut send_as = async |client_address: &str| {
        let request = request("/", &[("x-forwarded-for", client_address)]);
        whole(within(client.send_request(request)).await.expect("an answer")).await
    };
    // However slow this machine is, a hundred requests do not take a hundred seconds.
    let mut refused = 0;
    for _ in 0..100 {
        let answer = send_as("192.0.2.1").await;
        if answer.status == 429 {
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        }
    }
    assert!((1..100).contains(&refused), "{refused}");
    assert_eq!(send_as("192.0.2.2").await.status, 200);
    assert_eq!(server.stats.refused(Reason::Rate), refused);
}

#[tokio::test]
async fn connections_over_the_limit_are_refused() {
    let server = Running::with(settings(), None, ConnectionLimits::up_to(1));
    let mut first = server.http1().await;
    assert_eq!(within(first.send_request(request("/", &[]))).await.expect("an answer").status(), 200);
    let refused = server.exchange("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(is_refusal(&refused, 503) && refused.contains("retry-after: 1\r\n"), "{refused}");
    assert_eq!(server.stats.refused(Reason::Connections), 1);
    drop(first);
    until(|| server.limit.open() == 0).await;
    assert_eq!(server.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn a_trusted_proxy_has_more_connections_than_the_share_of_one_client() {
    let limits = ConnectionLimits { per_peer_max: 1, ..ConnectionLimits::up_to(100) };
    let server = Running::with(settings(), None, limits);
    let _first = server.http1().await;
    assert!(is_refusal(&server.exchange("").await, 503));
    let trusted_proxies = vec!["127.0.0.1".parse().expect("a network")];
    let server = Running::with(HttpSettings { trusted_proxies, ..settings() }, None, limits);
    let _first = server.http1().await;
    assert_eq!(server.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn an_upgraded_connection_is_the_services_and_still_counts() {
    let server = Running::start(settings());
    let mut socket = server.socket().await;
    let upgrade = "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    socket.write_all(upgrade.as_bytes()).await.expect("sent");
    assert!(read_until(&mut socket, "\r\n\r\n").await.starts_with("HTTP/1.1 101 "));
    // Bytes that look like a refusal of the server are ordinary bytes now.
    for word in [&b"HTTP/1.1 431 x"[..], b"more"] {
        socket.write_all(word).await.expect("sent");
        let mut echoed = vec![0; word.len()];
        within(socket.read_exact(&mut echoed)).await.expect("an echo");
        assert_eq!(echoed, word);
    }
    assert_eq!(server.limit.open(), 1);
    drop(socket);
    until(|| server.limit.open() == 0).await;
}

/// "An HSTS Host MUST NOT include the STS header field in HTTP responses conveyed over non-secure transport" (RFC 6797,
/// section 7.2).
#[tokio::test]
async fn only_answers_over_tls_bind_browsers_to_tls() {
    let (ca, folder) = (Authority::new(), Folder::new());
    let identities = vec![folder.identity("own", &ca.server("server.example"))];
    let tls = Tls::new(TlsSettings { identities, refuse_unknown_names: false, client_auth: None }).expect("TLS");
    let security_headers = SecurityHeaders::ForData { https_only_s: Some(60) };
    let settings = HttpSettings { security_headers, methods: vec![Method::GET], ..settings() };
    let server = Running::with(settings, Some(&tls), ConnectionLimits::up_to(100));
    let plain = server.get("/", &[]).await;
    assert!(!plain.headers.contains_key("strict-transport-security"));
    for (method, host, wanted) in [
        ("GET", "mq.example.com:7401", true),
        ("POST", "mq.example.com", true),
        ("GET", "localhost:7401", false),
        ("POST", "a.localhost", false),
        ("GET", "127.0.0.1", false),
    ] {
        let mut stream = tls_to(&server, ca.client(&[b"http/1.1"], None)).await.expect("a handshake");
        let request = format!("{method} / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        within(stream.write_all(request.as_bytes())).await.expect("sent");
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer.contains("strict-transport-security: max-age=60\r\n"), wanted, "{host}: {answer}");
    }
}

#[tokio::test]
async fn every_answer_has_the_headers_that_bind_browsers() {
    let security_headers = SecurityHeaders::ForData { https_only_s: Some(60) };
    let server = Running::start(HttpSettings { security_headers, methods: vec![Method::GET], ..settings() });
    let served = server.get("/", &[]).await;
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ] {
        assert_eq!(served.header(name), value);
        for refused in ["POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "what?\r\n\r\n"] {
            assert!(server.exchange(refused).await.contains(&format!("{name}: {value}\r\n")), "{name}");
        }
    }
}

#[tokio::test]
async fn requests_are_logged_where_that_is_asked_for() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let subscriber = tracing_subscriber::fmt().json().with_writer(Mutex::new(Lines(log.clone()))).finish();
    // Set for this thread, which runs all of this test.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Running::start(HttpSettings {
        access_log: true,
        trusted_proxies: vec!["127.0.0.1".parse().expect("a network")],
        methods: vec![Method::GET],
        ..settings()
    });
    let headers = [("x-forwarded-for", "192.0.2.1")];
    server.get("/large?secret=1", &headers).await;
    server.exchange("PUT /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    drop(within(server.http1().await.send_request(request("/endless", &[]))).await.expect("an answer"));
    let entries = || {
        let lines = String::from_utf8(log.lock().expect("a log").clone()).expect("text");
        let entries = lines.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        entries.filter(|entry: &serde_json::Value| entry["target"] == "net::access").collect::<Vec<_>>()
    };
    until(|| entries().len() == 3).await;
    let entries = entries();
    let field = |i: usize, name: &str| entries[i]["fields"][name].clone();
    for (i, expected) in [
        (0, serde_json::json!(["192.0.2.1", "GET", "/large", 200, 4 << 20, true])),
        (1, serde_json::json!(["127.0.0.1", "PUT", "/x", 405, 35, true])),
    ] {
        let logged = ["client", "method", "path", "status", "bytes", "is_whole"].map(|name| field(i, name));
        assert_eq!(serde_json::Value::from(logged.to_vec()), expected);
    }
    assert_eq!(field(2, "is_whole"), false);
    assert!(field(0, "peer").as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")));
    assert!(field(0, "duration_us").is_u64());
}

struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn tls_to(server: &Running, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("server.example").expect("a name");
    within(TlsConnector::from(config).connect(name, server.socket().await)).await
}

#[tokio::test]
async fn tls_and_plaintext_come_on_one_port() {
    let ca = Authority::new();
    let folder = Folder::new();
    let alice = ca.issue("alice", &[], 2100);
    let roots = folder.write("roots.pem", &ca.pem);
    let auth = ClientAuth { roots, is_required: false, names: Vec::new(), fingerprints: Vec::new(), revoked: None };
    let identities = vec![folder.identity("own", &ca.server("server.example"))];
    let tls = Tls::new(TlsSettings { identities, refuse_unknown_names: false, client_auth: Some(auth) }).expect("TLS");
    let server = Running::with(settings(), Some(&tls), ConnectionLimits::up_to(100));

    let stream = tls_to(&server, ca.client(&[b"http/1.1"], Some(&alice))).await.expect("a handshake");
    let mut client = http1_over(stream).await;
    let answer = whole(within(client.send_request(request("/who", &[]))).await.expect("an answer")).await;
    assert_eq!(answer.text, "1 127.0.0.1 true alice");
    let stream = tls_to(&server, ca.client(&[b"h2", b"http/1.1"], None)).await.expect("a handshake");
    let (mut client, _) = http2_over(stream).await;
    let answer = client.send_request(request("https://server.example/who", &[]));
    assert_eq!(whole(within(answer).await.expect("an answer")).await.text, "2 127.0.0.1 true ");
    // Without an agreed protocol, it is HTTP/1.
    let mut client = http1_over(tls_to(&server, ca.client(&[], None)).await.expect("a handshake")).await;
    assert_eq!(within(client.send_request(request("/who", &[]))).await.expect("an answer").status(), 200);
    assert_eq!(server.get("/who", &[]).await.text, "4 127.0.0.1 false ");
    assert_eq!(server.stats.failed_handshakes(), 0);
    assert!(tls_to(&server, Authority::new().client(&[], None)).await.is_err());
    until(|| server.stats.failed_handshakes() == 1).await;

    let strict = HttpSettings { plaintext: Plaintext::Refused, ..settings() };
    let server = Running::with(strict.clone(), Some(&tls), ConnectionLimits::up_to(100));
    assert!(tls_to(&server, ca.client(&[], None)).await.is_ok());
    let refused = server.exchange("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(is_refusal(&refused, 403) && refused.contains("https"), "{refused}");
    let no_tls = Running::with(strict, None, ConnectionLimits::up_to(100));
    assert!(is_refusal(&no_tls.exchange("").await, 403));
    assert_eq!(no_tls.stats.refused(Reason::Plaintext), 1);
}
