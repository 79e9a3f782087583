//! Export of the metrics and spans to an OpenTelemetry collector: OTLP over HTTP, in its JSON encoding.
//!
//! The exported values are read from the text of `/metrics`, so that the two never differ.

pub mod traces;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::Broker;
use broker::metrics::{Collect, Counter, Exposition};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, Uri};
use net::Drain;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::exchange::exchange;

/// Path for metrics below the address of a collector.
const METRICS_PATH: &str = "/v1/metrics";
/// Path for spans.
const TRACES_PATH: &str = "/v1/traces";
/// Time limit for one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the last export, which a stop waits for.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Aggregation temporality: the exported values are totals since the start.
const CUMULATIVE: u32 = 2;

/// Collector and export interval.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// URL of the collector, with the path of metrics or of spans.
    pub endpoint: Uri,
    /// Interval between exports.
    pub every: Duration,
}

impl OtlpSettings {
    /// Parses an endpoint such as `http://host:port`, with or without the path.
    pub fn parse(endpoint: &str, every: Duration) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::other(format!("otlp_endpoint {endpoint}: {why}"));
        let uri: Uri = endpoint.parse().map_err(|error| invalid(&format!("{error}")))?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid("write http://host:port; for a collector behind TLS, run one on this machine"));
        }
        let Some(authority) = uri.authority() else {
            return Err(invalid("it names no host"));
        };
        let path = if uri.path() == "/" { METRICS_PATH } else { uri.path() };
        let endpoint = Uri::builder().scheme("http").authority(authority.clone()).path_and_query(path);
        Ok(Self { endpoint: endpoint.build().map_err(io::Error::other)?, every })
    }

    /// Parses the endpoint of metrics, and returns that of spans: the same collector, with another path.
    pub fn parse_for_traces(endpoint: &str, every: Duration) -> io::Result<Self> {
        let metrics = Self::parse(endpoint, every)?.endpoint;
        let authority = metrics.authority().map_or("", |authority| authority.as_str());
        let Some(before) = metrics.path().strip_suffix(METRICS_PATH) else {
            let message = format!(
                "otlp_endpoint {endpoint}: with tracing = true its path has to end in {METRICS_PATH}, which is \
                 replaced by {TRACES_PATH} for spans, or be left out"
            );
            return Err(io::Error::other(message));
        };
        let path = format!("{before}{TRACES_PATH}");
        let endpoint = Uri::builder().scheme("http").authority(authority).path_and_query(path);
        Ok(Self { endpoint: endpoint.build().map_err(io::Error::other)?, every })
    }
}

/// Exports until the drain begins, and again at that time, unless the drain is cut short. If a collector does not
/// answer, only its metrics are lost.
pub async fn run(settings: OtlpSettings, broker: Arc<Broker>, mut drain: Drain) {
    let sent = Arc::new(Counter::default());
    let failed = Arc::new(Counter::default());
    let shown = (sent.clone(), failed.clone());
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
        out.counter("thalweg_otlp_exports", "Exports of metrics to the collector", shown.0.get())?;
        out.counter("thalweg_otlp_export_errors", "Exports of metrics that the collector did not accept", shown.1.get())
    })));
    let began = unix_nanos();
    let mut was_failing = false;
    loop {
        let is_over = drain.or_begun(tokio::time::sleep(settings.every)).await.is_none();
        let timeout = if is_over { LAST_EXPORT_TIMEOUT } else { EXPORT_TIMEOUT };
        let export = tokio::time::timeout(timeout, export(&settings.endpoint, &broker, began));
        let exported = tokio::select! {
            exported = export => exported,
            () = drain.aborted() => return,
        };
        let error = match exported {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(elapsed) => Some(elapsed.into()),
        };
        match &error {
            None => sent.add(1),
            Some(error) => {
                failed.add(1);
                if !was_failing {
                    tracing::warn!(endpoint = %settings.endpoint, %error, "metrics cannot be exported; retrying");
                }
            }
        }
        if was_failing && error.is_none() {
            tracing::info!(endpoint = %settings.endpoint, "metrics are exported again");
        }
        was_failing = error.is_some();
        if is_over {
            return;
        }
    }
}

async fn export(endpoint: &Uri, broker: &Broker, began: u64) -> io::Result<()> {
    let text = broker.stats().map_err(io::Error::other)?;
    let answer = post(endpoint, to_otlp(&text, began, unix_nanos()).to_string()).await?;
    if answer.status().is_success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{}: {}", answer.status(), String::from_utf8_lossy(answer.body()))))
}

/// Sends a request with a body of JSON to a collector, and returns the response.
async fn post(endpoint: &Uri, body: String) -> io::Result<Response<Bytes>> {
    let authority = endpoint.authority().ok_or_else(|| io::Error::other("no host"))?;
    let socket =
        TcpStream::connect((authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(80))).await?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(endpoint.path())
        .header(HOST, authority.as_str())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(io::Error::other)?;
    exchange(socket, request, ANSWER_BYTES_MAX).await
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Metric family of the text format.
#[derive(Default)]
struct Family<'t> {
    kind: &'t str,
    help: &'t str,
    samples: Vec<Sample<'t>>,
}

struct Sample<'t> {
    /// Text after the family's name: `total`, `bucket`, `sum`, `count` or nothing.
    suffix: &'t str,
    labels: Vec<(&'t str, &'t str)>,
    value: f64,
}

/// Converts the text format of Prometheus to an OTLP request, measured at `now` and counted since `began` (Unix time in
/// ns).
fn to_otlp(text: &str, began: u64, now: u64) -> Value {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            if let (Some(what), Some(name), Some(value)) = (words.next(), words.next(), words.next()) {
                let family = families.entry(name).or_default();
                match what {
                    "TYPE" => family.kind = value,
                    "HELP" => family.help = value,
                    _ => {}
                }
            }
        } else if let Some((name, sample)) = parse_sample(line) {
            let family = families.iter_mut().rev().find(|(family, _)| is_of(name, family));
            if let Some((family, found)) = family {
                let suffix = name[family.len()..].trim_start_matches('_');
                found.samples.push(Sample { suffix, ..sample });
            }
        }
    }
    let metrics: Vec<Value> = families.iter().filter_map(|(name, family)| metric(name, family, began, now)).collect();
    json!({ "resourceMetrics": [{
        "resource": resource(),
        "scopeMetrics": [{ "scope": { "name": "thalweg" }, "metrics": metrics }],
    }] })
}

/// Returns the description of this process.
fn resource() -> Value {
    json!({ "attributes": [
        attribute(("service.name", "thalweg")),
        attribute(("service.version", env!("CARGO_PKG_VERSION"))),
    ] })
}

fn is_of(name: &str, family: &str) -> bool {
    let suffix = name.strip_prefix(family);
    suffix.is_some_and(|suffix| matches!(suffix, "" | "_total" | "_bucket" | "_sum" | "_count"))
}

/// Parses `name{label="value",...} number`.
fn parse_sample(line: &str) -> Option<(&str, Sample<'_>)> {
    let (name_and_labels, value) = line.rsplit_once(' ')?;
    let (name, labels) = match name_and_labels.split_once('{') {
        Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}')?)),
        None => (name_and_labels, Vec::new()),
    };
    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
    Some((name, Sample { suffix: "", labels, value }))
}

/// Parses labels. Their values contain no quotes or commas, as the broker chooses them.
fn parse_labels(labels: &str) -> Vec<(&str, &str)> {
    let pairs = labels.split("\",").filter_map(|pair| pair.trim_end_matches('"').split_once("=\""));
    pairs.collect()
}

fn metric(name: &str, family: &Family<'_>, began: u64, now: u64) -> Option<Value> {
    let described = |data: (&str, Value)| {
        let mut metric = json!({ "name": name, "description": family.help });
        metric[data.0] = data.1;
        metric
    };
    let point = |sample: &Sample<'_>| {
        let attributes: Vec<Value> = sample.labels.iter().copied().map(attribute).collect();
        json!({
            "attributes": attributes,
            "startTimeUnixNano": began.to_string(),
            "timeUnixNano": now.to_string(),
            "asDouble": sample.value,
        })
    };
    let points = || family.samples.iter().map(point).collect::<Vec<_>>();
    match family.kind {
        "counter" => Some(described((
            "sum",
            json!({ "dataPoints": points(), "aggregationTemporality": CUMULATIVE, "isMonotonic": true }),
        ))),
        "gauge" => Some(described(("gauge", json!({ "dataPoints": points() })))),
        "histogram" => Some(described((
            "histogram",
            json!({ "dataPoints": [histogram(family, began, now)], "aggregationTemporality": CUMULATIVE }),
        ))),
        _ => None,
    }
}

/// Converts a histogram: the buckets of the text format are cumulative, those of OTLP are not.
fn histogram(family: &Family<'_>, began: u64, now: u64) -> Value {
    let mut bounds = Vec::new();
    let mut counts = Vec::new();
    let mut before = 0.0;
    let mut sum = 0.0;
    let mut count = 0.0;
    for sample in &family.samples {
        match sample.suffix {
            "bucket" => {
                let bound = sample.labels.iter().find(|(name, _)| *name == "le").map_or("+Inf", |(_, bound)| bound);
                if let (true, Ok(bound)) = (bound != "+Inf", bound.parse::<f64>()) {
                    bounds.push(bound);
                }
                counts.push(((sample.value - before) as u64).to_string());
                before = sample.value;
            }
            "sum" => sum = sample.value,
            "count" => count = sample.value,
            _ => {}
        }
    }
    json!({
        "startTimeUnixNano": began.to_string(),
        "timeUnixNano": now.to_string(),
        "count": (count as u64).to_string(),
        "sum": sum,
        "bucketCounts": counts,
        "explicitBounds": bounds,
    })
}

fn attribute((key, value): (&str, &str)) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn otlp_contains_the_metrics_of_the_text() {
        let text = "# HELP a_bytes Bytes.\n# TYPE a_bytes counter\na_bytes_total 7\n\
            # TYPE b gauge\nb{worker=\"0\"} 1\nb{worker=\"1\"} 2\n\
            # TYPE c_seconds histogram\nc_seconds_sum 0.5\nc_seconds_count 3\nc_seconds_bucket{le=\"0.1\"} 1\n\
            c_seconds_bucket{le=\"+Inf\"} 3\n# EOF\n";
        let otlp = to_otlp(text, 1, 2);
        let metrics = &otlp["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        assert_eq!(metrics[0]["name"], "a_bytes");
        assert_eq!(metrics[0]["sum"]["dataPoints"][0]["asDouble"], 7.0);
        assert_eq!(metrics[1]["gauge"]["dataPoints"][1]["attributes"][0]["value"]["stringValue"], "1");
        let histogram = &metrics[2]["histogram"]["dataPoints"][0];
        assert_eq!(histogram["bucketCounts"], json!(["1", "2"]));
        assert_eq!(histogram["explicitBounds"], json!([0.1]));
        assert_eq!((&histogram["count"], &histogram["sum"]), (&json!("3"), &json!(0.5)));
    }

    #[test]
    fn an_endpoint_without_a_path_gets_the_usual_one() {
        let every = Duration::from_secs(1);
        let parse = |endpoint: &str| OtlpSettings::parse(endpoint, every).map(|settings| settings.endpoint.to_string());
        assert_eq!(parse("http://localhost:4318").expect("valid"), "http://localhost:4318/v1/metrics");
        assert_eq!(parse("http://localhost:4318/x").expect("valid"), "http://localhost:4318/x");
        assert!(parse("https://localhost:4318").is_err());
        assert!(parse("localhost").is_err());
    }

    #[test]
    fn spans_go_to_the_collector_of_the_metrics() {
        let every = Duration::from_secs(1);
        let parse = |endpoint: &str| {
            OtlpSettings::parse_for_traces(endpoint, every).map(|settings| settings.endpoint.to_string())
        };
        assert_eq!(parse("http://localhost:4318").expect("valid"), "http://localhost:4318/v1/traces");
        assert_eq!(parse("http://localhost:4318/a/v1/metrics").expect("valid"), "http://localhost:4318/a/v1/traces");
        let error = parse("http://localhost:4318/x").expect_err("it is not known where spans go");
        assert!(error.to_string().contains("/v1/metrics"), "{error}");
    }
}
