//! Slow, stuck and silent clients, and the shutdown of an HTTP server.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use net::http::{HttpServer, HttpSettings, Reason};
use net::{ConnectionLimits, Connections, Shutdown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http_server::*;

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
/// Beginning of an HTTP/2 connection, with settings that change nothing.
const HTTP2: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn heads_that_do_not_come_in_time_end_the_connection() {
    let server = Running::start(HttpSettings { header_timeout: SOON, ..settings() });
    // Nothing, the beginning of HTTP/2, and all of HTTP/2 without a request.
    for sent in ["", "PRI * HT", HTTP2] {
        let answer = server.exchange(sent).await;
        assert!(!answer.contains("HTTP/1.1"), "{sent:?}: {answer}");
    }
    assert_eq!(server.stats.refused(Reason::HeaderTimeout), 0);
    // A head that has begun is answered.
    let answer = server.exchange(&REQUEST[..20]).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.ends_with("in time\n"), "{answer}");
    // A head that arrives byte by byte gets no more time than another.
    let mut socket = server.socket().await;
    let endless = format!("GET / HTTP/1.1\r\nx: {}", "v".repeat(100_000));
    let (mut read, mut write) = socket.split();
    tokio::select! {
        answer = rest(&mut read) => assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}"),
        () = trickle(&mut write, endless.as_bytes(), Duration::from_millis(3)) => panic!("the server did not close"),
    }
    assert_eq!(server.stats.refused(Reason::HeaderTimeout), 2);
    until(|| server.limit.open() == 0).await;
}

#[tokio::test]
async fn the_next_head_has_its_own_time() {
    let server = Running::start(HttpSettings { header_timeout: Duration::from_millis(1500), ..settings() });
    let mut socket = server.socket().await;
    socket.write_all(REQUEST.as_bytes()).await.expect("sent");
    read_until(&mut socket, "ok").await;
    // Idle for longer than a head may take, and then a head that stops.
    tokio::time::sleep(Duration::from_secs(2)).await;
    socket.write_all(&REQUEST.as_bytes()[..20]).await.expect("the connection is open");
    assert!(rest(&mut socket).await.starts_with("HTTP/1.1 408 "));
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server =
        Running::start(HttpSettings { idle_timeout: SOON, drain_timeout: Duration::from_secs(1), ..settings() });
    let answer = server.exchange(REQUEST).await;
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    let (mut client, connection) = http2_over(server.socket().await).await;
    whole(within(client.send_request(request("http://a/", &[]))).await.expect("an answer")).await;
    within(connection).await.expect("no panic").expect("closed in order");
    // A client that does not cooperate in that is cut.
    let mut deaf = server.socket().await;
    // Settings, and a request of stream 1: GET / with the authority "a".
    let request = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";
    deaf.write_all(&[HTTP2.as_bytes(), request].concat()).await.expect("sent");
    assert!(!rest(&mut deaf).await.is_empty());
    assert_eq!((server.stats.overdue(), server.stats.requests()[1]), (1, 3));
    // A slow service is no reason.
    let mut client = server.http1().await;
    let waiting = tokio::time::timeout(5 * SOON, client.send_request(self::request("/wait", &[])));
    assert!(waiting.await.is_err());
}

#[tokio::test]
async fn a_body_that_does_not_come_on_is_cut() {
    let server = Running::start(HttpSettings { body_timeout: SOON, ..settings() });
    let head = "POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n";
    let stopped = server.exchange(format!("{head}abc")).await;
    assert!(stopped.starts_with("HTTP/1.1 408 ") && stopped.contains("stopped arriving"), "{stopped}");
    let mut socket = server.socket().await;
    socket.write_all(head.as_bytes()).await.expect("sent");
    let (mut read, mut write) = socket.split();
    tokio::select! {
        answer = rest(&mut read) => assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}"),
        () = trickle(&mut write, &[b'x'; 100_000], Duration::from_millis(3)) => panic!("the server did not close"),
    }
    assert_eq!(server.stats.refused(Reason::BodyTimeout), 2);

    // Over HTTP/2 only the request is affected, and not its connection.
    let (frames, body) = stuck_body();
    let handshake = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(server.socket().await),
    );
    let (mut client, connection) = within(handshake).await.expect("a handshake");
    tokio::spawn(connection);
    frames.send(Bytes::from_static(b"abc")).expect("taken");
    let stuck = Request::post("http://a/length").body(body).expect("a request");
    assert_eq!(within(client.send_request(stuck)).await.expect("an answer").status(), 408);
    let (done, body) = stuck_body();
    drop(done);
    let next = Request::get("http://a/").body(body).expect("a request");
    assert_eq!(whole(within(client.send_request(next)).await.expect("an answer")).await.text, "ok");
}

type Frames = tokio::sync::mpsc::UnboundedSender<Bytes>;

/// Returns a body with its sender, which continues until the sender is dropped.
fn stuck_body() -> (Frames, http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>) {
    let (send, receive) = tokio::sync::mpsc::unbounded_channel();
    let frames = futures_util::stream::unfold(receive, |mut receive| async move {
        let bytes = receive.recv().await?;
        Some((Ok(hyper::body::Frame::data(bytes)), receive))
    });
    (send, BodyExt::boxed(http_body_util::StreamBody::new(frames)))
}

#[tokio::test]
async fn a_body_that_comes_slowly_but_steadily_is_read() {
    let server = Running::start(HttpSettings { body_timeout: Duration::from_secs(2), ..settings() });
    let mut socket = server.socket().await;
    let head = "POST /length HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 12288\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("sent");
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        socket.write_all(&[b'x'; 2048]).await.expect("sent");
    }
    assert!(rest(&mut socket).await.ends_with("\r\n\r\n12288"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let server = Running::start(HttpSettings { write_timeout: SOON, ..settings() });
    for (n, path) in [(1, "/endless "), (2, "/large ")] {
        let mut deaf = server.socket().await;
        deaf.write_all(REQUEST.replace("/ ", path).as_bytes()).await.expect("sent");
        until(|| server.stats.stalled() == n && server.limit.open() == 0).await;
    }
    let (mut client, _connection) = http2_over(server.socket().await).await;
    let answer = within(client.send_request(request("http://a/endless", &[]))).await.expect("an answer");
    until(|| server.stats.stalled() == 3 && server.limit.open() == 0).await;
    drop(answer);
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_its_answer() {
    let server = Running::start(HttpSettings { write_timeout: Duration::from_secs(1), ..settings() });
    let mut slow = server.socket().await;
    slow.write_all(REQUEST.replace("/ ", "/huge-parts ").as_bytes()).await.expect("sent");
    let mut read = 0;
    let mut bytes = vec![0; 128 << 10];
    // Each of its parts takes longer than the time in which something has to be read.
    while read < HUGE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let n = within(slow.read(&mut bytes)).await.expect("more");
        assert!(n > 0, "cut after {read} bytes");
        read += n;
    }
    assert_eq!(server.stats.stalled(), 0);
}

#[tokio::test]
async fn a_connection_with_unsent_bytes_is_not_idle() {
    let server = Running::start(HttpSettings { idle_timeout: SOON, drain_timeout: SOON, ..settings() });
    let mut late = server.socket().await;
    late.write_all(REQUEST.replace("/ ", "/huge ").as_bytes()).await.expect("sent");
    tokio::time::sleep(5 * SOON).await;
    assert!(rest(&mut late).await.len() > HUGE);
    assert_eq!((server.stats.overdue(), server.stats.stalled()), (0, 0));
}

#[tokio::test]
async fn an_old_connection_takes_no_more_requests() {
    let server = Running::start(HttpSettings { age_max: Some(SOON), ..settings() });
    let mut client = server.http1().await;
    let (mut client2, connection2) = http2_over(server.socket().await).await;
    within(client2.send_request(request("http://a/", &[]))).await.expect("an answer");
    within(connection2).await.expect("no panic").expect("closed after GOAWAY");
    within(async {
        while client.ready().await.is_ok() {
            match client.send_request(request("/", &[])).await {
                Ok(answer) => drop(answer.into_body().collect().await),
                Err(error) => assert!(error.is_closed() || error.is_canceled(), "{error}"),
            }
        }
    })
    .await;
    assert_eq!(server.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn a_drain_lets_requests_finish_and_closes_idle_connections() {
    let server = Running::start(settings());
    let mut idle = server.http1().await;
    within(idle.send_request(request("/", &[]))).await.expect("an answer");
    let silent = server.socket().await;
    let mut uploading = server.socket().await;
    let head = "POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n";
    uploading.write_all(head.as_bytes()).await.expect("sent");
    let mut interim = [0; 25];
    within(uploading.read_exact(&mut interim)).await.expect("the request was begun");
    let (frames, body) = stuck_body();
    let stream = server.socket().await;
    let handshake = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    );
    let (mut client2, connection2) = within(handshake).await.expect("a handshake");
    let connection2 = tokio::spawn(connection2);
    let uploading2 = client2.send_request(Request::post("http://a/length").body(body).expect("a request"));
    until(|| server.limit.open() == 4 && server.stats.bytes().0 > 200).await;

    let Running { shutdown, task, address, limit, .. } = server;
    let ended = tokio::spawn(async move { shutdown.run(PATIENCE).await });
    until(|| limit.open() == 2).await;
    assert!(within(idle.ready()).await.is_err(), "closed");
    drop(silent);
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "no new connection is accepted");
    uploading.write_all(b"abc").await.expect("sent");
    assert!(rest(&mut uploading).await.ends_with("\r\n\r\n3"));
    frames.send(Bytes::from_static(b"abcd")).expect("taken");
    drop(frames);
    assert_eq!(whole(within(uploading2).await.expect("an answer")).await.text, "4");
    within(connection2).await.expect("no panic").expect("closed after GOAWAY");
    assert!(within(ended).await.expect("no panic").is_clean());
    within(task).await.expect("no panic");
    assert_eq!(limit.open(), 0);
}

#[tokio::test]
async fn a_drain_ends_by_its_deadline_regardless_of_clients() {
    let server = Running::start(HttpSettings { drain_timeout: SOON, ..settings() });
    let mut stuck = server.http1().await;
    let mut stuck2 = server.http2().await;
    let waiting = tokio::spawn(stuck.send_request(request("/wait", &[])));
    let waiting2 = tokio::spawn(stuck2.send_request(request("http://a/wait", &[])));
    let mut deaf = server.socket().await;
    deaf.write_all(REQUEST.replace("/ ", "/endless ").as_bytes()).await.expect("sent");
    until(|| server.stats.connections() == 3 && server.stats.requests()[1] == 1).await;
    let began = Instant::now();
    assert!(server.shutdown.run(PATIENCE).await.is_clean());
    within(server.task).await.expect("no panic");
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!((server.stats.overdue(), server.limit.open()), (3, 0));
    assert!(within(waiting).await.expect("no panic").is_err());
    assert!(within(waiting2).await.expect("no panic").is_err());
}

#[tokio::test]
async fn a_drain_does_not_wait_for_upgraded_connections() {
    let server = Running::start(HttpSettings { drain_timeout: SOON, ..settings() });
    let mut socket = server.socket().await;
    let upgrade = "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    socket.write_all(upgrade.as_bytes()).await.expect("sent");
    let mut head = [0; 12];
    within(socket.read_exact(&mut head)).await.expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 101");
    assert!(within(server.shutdown.run(PATIENCE)).await.is_clean());
    within(server.task).await.expect("no panic");
}

#[tokio::test]
async fn probes_are_answered_during_a_drain_where_that_is_asked_for() {
    let server = Running::start(HttpSettings { answers_while_draining: true, ..settings() });
    let mut stuck = server.socket().await;
    stuck.write_all(b"POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n").await.expect("sent");
    until(|| server.stats.bytes().0 > 0).await;
    let Running { shutdown, address, task, .. } = server;
    let ended = tokio::spawn(async move { shutdown.run(PATIENCE).await });
    tokio::time::sleep(SOON).await;
    let mut probe = tokio::net::TcpStream::connect(address).await.expect("the listener is open");
    probe.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.expect("sent");
    assert!(rest(&mut probe).await.ends_with("ok"));
    stuck.write_all(b"x").await.expect("sent");
    assert!(rest(&mut stuck).await.ends_with("\r\n\r\n1"));
    assert!(within(ended).await.expect("no panic").is_clean());
    within(task).await.expect("no panic");
}

#[tokio::test]
async fn a_pipe_in_memory_is_served_as_a_socket_is() {
    let limit = Connections::new(ConnectionLimits::up_to(1));
    let shutdown = Shutdown::default();
    let service = hyper::service::service_fn(async |_: Request<net::http::RequestBody>| {
        Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::new(Bytes::from_static(b"piped"))))
    });
    let server = HttpServer::new(settings(), None, limit, service).expect("a server");
    let (near, far) = tokio::io::duplex(1024);
    let drain = shutdown.drain();
    let serving = tokio::spawn(async move {
        server.serve_stream(far, ([127, 0, 0, 1], 1).into(), drain).await;
    });
    let mut client = http1_over(near).await;
    let answer = within(client.send_request(request("/", &[]))).await.expect("an answer");
    assert_eq!(whole(answer).await.text, "piped");
    assert!(within(shutdown.run(PATIENCE)).await.is_clean());
    within(serving).await.expect("no panic");
}
