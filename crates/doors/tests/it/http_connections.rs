//! Connections: slow ones, too many of them, and their end.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http_client::*;

/// Reads until the connection is closed.
async fn rest(socket: &mut TcpStream) -> String {
    let mut text = String::new();
    // A connection may also end with a reset, after the data that was read before it.
    within(socket.read_to_string(&mut text)).await.unwrap_or_default();
    text
}

#[tokio::test]
async fn a_client_that_does_not_send_its_headers_is_cut() {
    let of_door = doors::http::Settings { header_timeout: Duration::from_millis(100), ..settings() };
    let server = start_with(broker::Settings::default(), of_door, 100).await;
    // Nothing, the beginning of HTTP/2 or of HTTP/1, all of HTTP/2 without a request, and no second request.
    let health = "GET /healthz HTTP/1.1\r\nhost: broker\r\n";
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for sent in ["", "PRI * HT", health, preface, &format!("{health}\r\n")] {
        let mut socket = server.socket().await;
        socket.write_all(sent.as_bytes()).await.expect("sent");
        let answer = rest(&mut socket).await;
        assert_eq!(answer.contains("200 OK"), sent.ends_with("\r\n\r\n"), "{sent}");
    }
    assert_eq!(server.connections.open(), 0);
    // A request that was sent in time may take longer than that.
    let mut socket = server.socket().await;
    socket.write_all(format!("{health}connection: close\r\n\r\n").as_bytes()).await.expect("sent");
    assert!(rest(&mut socket).await.ends_with("\r\n\r\nok\n"));
    server.publish("t", &["v"]).await;
    assert_eq!(server.get("/v1/topics/t/records?offset=1&wait_ms=300").await.status, 200);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_told_so() {
    let server = start_with(broker::Settings::default(), settings(), 1).await;
    let mut first = server.connect().await;
    let health = || request("GET", "/healthz", &[], "");
    assert_eq!(within(first.send_request(health())).await.expect("an answer").status(), 200);
    let refused = server.get("/healthz").await;
    assert_eq!((refused.status, &refused.json()["error"]["kind"]), (503, &json!("busy")));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!((server.connections.open(), server.connections.refused()), (1, 1));
    let metrics =
        within(whole(within(first.send_request(request("GET", "/metrics", &[], ""))).await.expect("an answer")));
    assert!(metrics.await.text().contains("thalweg_http_answered_refusals_total 1\n"));
    drop(first);
    // The permit is released as soon as the door has noticed that the client disconnected.
    within(async {
        while server.connections.open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_drain_ends_idle_connections_and_lets_requests_finish() {
    let server = start().await;
    server.publish("t", &["old"]).await;
    let mut idle = server.socket().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: broker\r\n\r\n").await.expect("sent");
    let mut head = [0; 15];
    within(idle.read_exact(&mut head)).await.expect("an answer");

    let mut uploading = server.socket().await;
    let head =
        "POST /v1/topics/t/records HTTP/1.1\r\nhost: broker\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n";
    uploading.write_all(head.as_bytes()).await.expect("sent");
    let mut goes_on = [0; 25];
    within(uploading.read_exact(&mut goes_on)).await.expect("an answer");
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    let Server { shutdown, address, broker, .. } = server;
    let ended = tokio::spawn(async move { shutdown.run(Duration::from_secs(30)).await });
    assert!(rest(&mut idle).await.ends_with("ok\n"));
    // While a request is in progress, the door still answers probes, and nothing else.
    let ask = async |path: &str| {
        let mut socket = TcpStream::connect(address).await.expect("the door is open");
        let request = format!("GET {path} HTTP/1.1\r\nhost: broker\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("sent");
        rest(&mut socket).await
    };
    let ready = ask("/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("shutting_down"), "{ready}");
    assert!(ask("/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(ask("/v1/topics").await.starts_with("HTTP/1.1 503"));

    uploading.write_all(b"new").await.expect("sent");
    assert!(rest(&mut uploading).await.starts_with("HTTP/1.1 200"));
    assert!(within(ended).await.expect("no panic").is_clean());
    assert_eq!(broker.describe_topic("t").expect("a topic").partitions[0].end, 2);
    assert!(TcpStream::connect(address).await.is_err(), "the door is closed");
}

#[tokio::test]
async fn a_drain_ends_long_polls() {
    let server = start().await;
    server.publish("t", &["old"]).await;
    let mut polling = server.socket().await;
    // Both requests are sent together: when the first one is answered, the second one waits for records.
    let requests = "GET /healthz HTTP/1.1\r\nhost: broker\r\n\r\n\
                    GET /v1/topics/t/records?offset=1&wait_ms=60000 HTTP/1.1\r\nhost: broker\r\n\r\n";
    polling.write_all(requests.as_bytes()).await.expect("sent");
    let mut first = Vec::new();
    while !first.ends_with(b"ok\n") {
        within(polling.read_buf(&mut first)).await.expect("an answer");
    }
    within(async {
        while !server.broker.stats().expect("metrics").contains("requests_total{status=\"2xx\"} 1\n") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(within(server.shutdown.run(Duration::from_secs(30))).await.is_clean());
    assert!(rest(&mut polling).await.ends_with(r#"{"records":[],"next_offset":1}"#));
}
