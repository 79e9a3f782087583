//! TLS, host names, and refusals of the runtime, which have the form of any other error.

use std::sync::Arc;

use doors::http::Settings;
use futures_util::{SinkExt, StreamExt};
use net::tls::{Identity, IdentitySource, Tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;

use crate::http_client::*;

async fn tls_to(server: &Server, trusted: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    within(TlsConnector::from(trusted.clone()).connect(name, server.socket().await)).await.expect("a handshake")
}

#[tokio::test]
async fn tls_comes_on_the_same_port_as_plaintext() {
    let identity = Identity::self_signed(vec!["localhost".into()]).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(identity.chain[0].clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let trusted = Arc::new(builder.expect("versions").with_root_certificates(roots).with_no_client_auth());
    let tls = Some(Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS"));
    let server = start_with(broker::Settings::default(), Settings { tls, ..settings() }, 100).await;

    let mut stream = tls_to(&server, &trusted).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: broker\r\nconnection: close\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("https://broker/v1/topics/"), "{answer}");
    assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{answer}");
    assert!(server.get("/").await.text().contains("http://broker/v1/topics/"));

    server.broker.partitions_of("t").expect("created");
    let stream = tls_to(&server, &trusted).await;
    let socket = Box::pin(tokio_tungstenite::client_async("wss://localhost/v1/topics/t/ws", stream));
    let mut socket = within(socket).await.expect("a WebSocket").0;
    within(socket.send(Message::Text(json!({"publish": {"value": "v"}}).to_string().into()))).await.expect("sent");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        if let Message::Text(text) = within(socket.next()).await.expect("a frame").expect("a frame") {
            seen.push(serde_json::from_str::<Value>(&text).expect("JSON"));
        }
    }
    assert!(seen.iter().any(|frame| frame["value"] == "v"), "{seen:?}");
    assert!(server.broker.stats().expect("metrics").contains("thalweg_http_failed_handshakes_total 0\n"));
}

#[tokio::test]
async fn requests_refused_before_routing_get_the_usual_error_format() {
    let of_door = Settings { hosts: vec!["broker".into()], ..settings() };
    let server = start_with(broker::Settings::default(), of_door, 100).await;
    assert_eq!(server.get("/healthz").await.status, 200);
    let long = format!("host: broker\r\nx: {}\r\n", "v".repeat(70_000));
    let endless = format!("host: broker\r\nx: {}\r\n", "v".repeat(200_000));
    for (headers, status, kind) in [
        ("host: evil\r\n", 421, "denied"),
        ("", 400, "malformed"),
        (": x\r\n", 400, "malformed"),
        (&long, 431, "too_large"),
        (&endless, 431, "too_large"),
    ] {
        let mut socket = server.socket().await;
        let request = format!("GET /healthz HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        within(socket.read_to_string(&mut answer)).await.expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains("content-type: application/json"), "{head}");
        let error: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!((&error["error"]["kind"], &error["error"]["retry"]), (&json!(kind), &json!("no")));
    }
    let metrics = server.get("/metrics").await;
    for line in [
        "thalweg_http_refused_total{reason=\"host\"} 1\n",
        "thalweg_http_refused_total{reason=\"malformed\"} 2\n",
        "thalweg_http_refused_total{reason=\"header_size\"} 2\n",
        "thalweg_http_cut_total{reason=\"stalled\"} 0\n",
    ] {
        assert!(metrics.text().contains(line), "{line}{}", metrics.text());
    }
}
