//! OpenTelemetry collector that keeps the spans of the brokers that export to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::server::{until, within};

/// Context of a producer that traces its records, and its parts.
pub const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
pub const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub const PRODUCER: &str = "b7ad6b7169203331";

/// Running collector.
pub struct Collector {
    /// Pairs for `--set` with which a broker exports spans to it.
    pub set: Vec<String>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    spans: Mutex<Vec<Span>>,
    /// Number of requests by their path.
    requests: Mutex<BTreeMap<String, u64>>,
    /// Status of the answers to spans; 0 for success.
    status: AtomicU64,
}

/// Span as it was exported.
#[derive(Clone, Debug)]
pub struct Span(pub Value);

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(State::default());
        let served = state.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, served.clone()));
            }
        });
        let set =
            [format!("otlp_endpoint=http://{address}"), "otlp_interval_ms=20".to_owned(), "tracing=true".to_owned()];
        Self { set: set.into(), state }
    }

    /// Returns the settings of a broker that exports to this collector, with these in addition.
    pub fn settings<'s>(&'s self, more: &[&'s str]) -> Vec<&'s str> {
        self.set.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    /// Answers spans with this status from now on; 0 for success.
    pub fn answer(&self, status: u64) {
        self.state.status.store(status, Ordering::SeqCst);
    }

    pub fn spans(&self) -> Vec<Span> {
        self.state.spans.lock().clone()
    }

    /// Returns the number of requests with this path.
    pub fn requests(&self, path: &str) -> u64 {
        self.state.requests.lock().get(path).copied().unwrap_or(0)
    }

    /// Waits for the spans of a trace, and returns them by their operations.
    pub async fn trace(&self, trace: &str, operations: &[&str]) -> BTreeMap<String, Span> {
        let of = || {
            let spans = self.spans().into_iter().filter(|span| span.0["traceId"] == trace);
            spans.map(|span| (span.operation(), span)).collect::<BTreeMap<_, _>>()
        };
        until(&format!("{operations:?} of trace {trace}"), async || {
            let spans = of();
            operations.iter().all(|operation| spans.contains_key(*operation))
        })
        .await;
        of()
    }
}

impl Span {
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let attributes = self.0["attributes"].as_array().expect("attributes");
        let value = &attributes.iter().find(|attribute| attribute["key"] == key)?["value"];
        value["stringValue"].as_str().or_else(|| value["intValue"].as_str())
    }

    pub fn operation(&self) -> String {
        self.attribute("messaging.operation.name").expect("an operation").to_owned()
    }

    pub fn id(&self) -> &str {
        self.0["spanId"].as_str().expect("an id")
    }

    pub fn parent(&self) -> Option<&str> {
        self.0["parentSpanId"].as_str()
    }

    pub fn kind(&self) -> u64 {
        self.0["kind"].as_u64().expect("a kind")
    }

    /// Returns the beginning and the end, in ns since 1970.
    pub fn times(&self) -> (u64, u64) {
        let time = |name: &str| self.0[name].as_str().and_then(|time| time.parse().ok()).expect("a time");
        (time("startTimeUnixNano"), time("endTimeUnixNano"))
    }
}

/// Reads one request, keeps its spans, and answers it. A broker that is killed leaves no whole request.
async fn serve(mut socket: TcpStream, state: Arc<State>) {
    let mut request = Vec::new();
    let (head, body) = loop {
        match within("a request", socket.read_buf(&mut request)).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        if body.len() == length.parse::<usize>().expect("a number") {
            break (head.to_owned(), body.to_owned());
        }
    };
    let path = head.split(' ').nth(1).expect("a path").to_owned();
    let status = if path == "/v1/traces" { state.status.load(Ordering::SeqCst) } else { 0 };
    if path == "/v1/traces" && status == 0 {
        let body: Value = serde_json::from_str(&body).expect("JSON");
        for resource in body["resourceSpans"].as_array().expect("resources") {
            assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "thalweg");
            for scope in resource["scopeSpans"].as_array().expect("scopes") {
                let spans = scope["spans"].as_array().expect("spans");
                state.spans.lock().extend(spans.iter().cloned().map(Span));
            }
        }
    }
    *state.requests.lock().entry(path).or_default() += 1;
    let status = if status == 0 { 200 } else { status };
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
    socket.write_all(answer.as_bytes()).await.unwrap_or_default();
}
