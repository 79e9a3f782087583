//! Telemetry that the broker exports to other systems.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::server::{Server, metric, until, within};

/// Collects one request: reads it completely, responds with `status`, and returns its first line and its body.
async fn collect(listener: &TcpListener, status: &str) -> (String, Value) {
    let (mut socket, _) = within("an export", listener.accept()).await.expect("accepted");
    let mut request = Vec::new();
    let (head, body) = loop {
        let read = within("the request", socket.read_buf(&mut request)).await.expect("read");
        assert!(read > 0, "the exporter hung up");
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        if body.len() == length.parse::<usize>().expect("a number") {
            break (head.to_owned(), body.to_owned());
        }
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
    socket.write_all(answer.as_bytes()).await.expect("answered");
    (head.lines().next().unwrap_or_default().to_owned(), serde_json::from_str(&body).expect("JSON"))
}

/// Dashboards are generated from the page.
#[tokio::test]
async fn the_reference_lists_every_metric_of_a_broker_with_all_doors() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md"));
    let page = page.expect("the page");
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let tracing = ["tracing=true", "otlp_endpoint=http://127.0.0.1:9"];
    let doors = ["redis=127.0.0.1:0", "pubsub=127.0.0.1:0"];
    let server = Server::with(&[&[data.as_str()][..], &tracing, &doors].concat());
    let text = within("the metrics", server.client("tcp").await.stats()).await.expect("metrics");
    let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(types.len() > 250, "{}", types.len());
    for of in types {
        let (name, kind) = of.split_once(' ').expect("a name and a type");
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let is_listed = [format!("`{name}`"), format!("`{name}{{")].iter().any(|cell| page.contains(cell));
        assert!(is_listed, "docs/reference/metrics.md does not list {name}");
    }
}

#[tokio::test]
async fn metrics_go_to_a_collector_and_a_collector_that_fails_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let endpoint = format!("otlp_endpoint=http://{}", listener.local_addr().expect("bound"));
    let server = Server::with(&[&endpoint, "otlp_interval_ms=20"]);
    let (line, body) = collect(&listener, "503 Service Unavailable").await;
    assert_eq!(line, "POST /v1/metrics HTTP/1.1");
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("metrics").clone();
    let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).expect("there");
    assert_eq!(named("thalweg_published_records")["sum"]["isMonotonic"], true);
    assert!(named("process_resident_memory_bytes")["gauge"]["dataPoints"][0]["asDouble"].as_f64() > Some(0.0));
    assert!(named("thalweg_publish_seconds")["histogram"]["dataPoints"][0]["explicitBounds"].is_array());
    collect(&listener, "200 OK").await;
    let client = server.client("tcp").await;
    until("an export and one that failed", async || {
        metric(&client, "thalweg_otlp_exports_total").await > 0
            && metric(&client, "thalweg_otlp_export_errors_total").await > 0
    })
    .await;
}
