//! Export of spans to an OpenTelemetry collector, in the JSON encoding of OTLP over HTTP.
//!
//! Names and attributes are those of OpenTelemetry's semantic conventions for messaging spans
//! (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>). What they do not define has the prefix
//! `messaging.thalweg.` or `thalweg.`, as they ask for.

use std::io;
use std::sync::Arc;

use broker::metrics::{Collect, Counter, Exposition};
use broker::{Broker, Door, LeaseEnd, Span, Step};
use hyper::{StatusCode, Uri};
use net::Drain;
use serde_json::{Value, json};

use super::{EXPORT_TIMEOUT, LAST_EXPORT_TIMEOUT, OtlpSettings, attribute, post, resource};

/// Maximum number of spans in one export.
const SPANS_MAX: usize = 512;
/// Code of a status that says that a step failed.
const STATUS_ERROR: u32 = 2;

/// Exports until the drain begins, and again at that time. A collector that cannot be reached, or is overloaded, gets
/// the same spans again; in the meantime the broker's queue fills up. Spans that a collector refuses are lost.
pub async fn run(settings: OtlpSettings, broker: Arc<Broker>, mut drain: Drain) {
    let sent = Arc::new(Counter::default());
    let failed = Arc::new(Counter::default());
    let shown = (sent.clone(), failed.clone());
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
        out.counter("thalweg_otlp_trace_exports", "Exports of spans to the collector", shown.0.get())?;
        out.counter("thalweg_otlp_trace_export_errors", "Exports of spans that failed", shown.1.get())
    })));
    let traces = broker.traces();
    let mut left: Vec<Span> = Vec::new();
    let mut was_failing = false;
    loop {
        let pause = async {
            // A collector that fails is not called more often because there is more to send.
            let ready = async { if was_failing { std::future::pending().await } else { traces.ready().await } };
            drop(tokio::time::timeout(settings.every, ready).await);
        };
        let is_over = drain.or_begun(pause).await.is_none();
        let timeout = if is_over { LAST_EXPORT_TIMEOUT } else { EXPORT_TIMEOUT };
        loop {
            if left.is_empty() {
                left = traces.take(SPANS_MAX);
            }
            if left.is_empty() {
                break;
            }
            let export = tokio::time::timeout(timeout, export(&settings.endpoint, &left));
            let exported = tokio::select! {
                exported = export => exported.unwrap_or_else(|elapsed| Err(Failed::again(elapsed))),
                () = drain.aborted() => return,
            };
            let (lost, error) = match exported {
                Ok(refused) => (refused, None),
                Err(failed) => (if failed.is_final { left.len() } else { 0 }, Some(failed)),
            };
            traces.note_lost(lost);
            match &error {
                None => sent.add(1),
                Some(Failed { error, .. }) => {
                    failed.add(1);
                    if !was_failing {
                        tracing::warn!(endpoint = %settings.endpoint, %error, "spans cannot be exported");
                    }
                }
            }
            if was_failing && error.is_none() {
                tracing::info!(endpoint = %settings.endpoint, "spans are exported again");
            }
            was_failing = error.is_some();
            if error.as_ref().is_some_and(|failed| !failed.is_final) {
                break;
            }
            left.clear();
        }
        if is_over {
            traces.note_lost(left.len());
            return;
        }
    }
}

/// Failure of an export.
struct Failed {
    error: io::Error,
    /// `true` if the collector would refuse the same spans again.
    is_final: bool,
}

impl Failed {
    fn again(error: impl Into<io::Error>) -> Self {
        Self { error: error.into(), is_final: false }
    }
}

/// Exports spans, and returns how many of them the collector refused.
async fn export(endpoint: &Uri, spans: &[Span]) -> Result<usize, Failed> {
    let answer = post(endpoint, to_otlp(spans).to_string()).await.map_err(Failed::again)?;
    let status = answer.status();
    if !status.is_success() {
        // OTLP over HTTP, "Retryable response codes".
        let is_final = !matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        let error = io::Error::other(format!("{status}: {}", String::from_utf8_lossy(answer.body())));
        return Err(Failed { error, is_final });
    }
    // An answer that is not JSON does not say that anything was refused.
    let answer: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let refused = &answer["partialSuccess"]["rejectedSpans"];
    let refused = refused.as_u64().or_else(|| refused.as_str()?.parse().ok());
    Ok(refused.and_then(|refused| usize::try_from(refused).ok()).unwrap_or(0).min(spans.len()))
}

fn to_otlp(spans: &[Span]) -> Value {
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": resource(),
        "scopeSpans": [{ "scope": { "name": "thalweg" }, "spans": spans }],
    }] })
}

fn span(span: &Span) -> Value {
    let mut out = json!({
        "traceId": hex(&span.trace),
        "spanId": hex(&span.id),
        "name": format!("{} {}", operation(span.step), span.place.topic),
        "kind": kind(span) as u32,
        "startTimeUnixNano": (span.began_us * 1000).to_string(),
        "endTimeUnixNano": (span.ended_us * 1000).to_string(),
        "attributes": attributes(span),
    });
    if let Some(parent) = &span.parent {
        out["parentSpanId"] = hex(parent).into();
    }
    if let Some(state) = &span.state {
        out["traceState"] = state.as_ref().into();
    }
    if let Some(link) = &span.link {
        out["links"] = json!([{ "traceId": hex(&span.trace), "spanId": hex(link) }]);
    }
    if let Some(error) = &span.error {
        out["status"] = json!({ "code": STATUS_ERROR, "message": error });
    }
    out
}

/// Kind of a span, with its number in OTLP.
#[derive(Clone, Copy)]
enum Kind {
    Internal = 1,
    Server = 2,
    Producer = 4,
    Consumer = 5,
}

/// Returns the kind that the conventions define ("Span kind"). The context of the span of a publish is that of the
/// record only if the producer sent none.
fn kind(span: &Span) -> Kind {
    match span.step {
        Step::Publish if span.parent.is_none() => Kind::Producer,
        Step::Publish | Step::Ack => Kind::Server,
        Step::Deliver => Kind::Consumer,
        Step::Commit | Step::Replicate(_) | Step::Lease(_) => Kind::Internal,
    }
}

fn operation(step: Step) -> &'static str {
    match step {
        Step::Publish => "publish",
        Step::Commit => "commit",
        Step::Replicate(_) => "replicate",
        Step::Deliver => "deliver",
        Step::Lease(_) => "lease",
        Step::Ack => "ack",
    }
}

/// Returns the type of an operation that the conventions define ("Operation types").
fn operation_type(step: Step) -> Option<&'static str> {
    match step {
        Step::Publish => Some("send"),
        Step::Deliver => Some("receive"),
        Step::Ack => Some("settle"),
        Step::Commit | Step::Replicate(_) | Step::Lease(_) => None,
    }
}

fn attributes(span: &Span) -> Vec<Value> {
    let place = &span.place;
    let number = |key: &str, value: u64| json!({ "key": key, "value": { "intValue": value.to_string() } });
    let mut out = vec![
        attribute(("messaging.system", "thalweg")),
        attribute(("messaging.operation.name", operation(span.step))),
        attribute(("messaging.destination.name", place.topic.as_str())),
        attribute(("messaging.destination.partition.id", &place.partition.to_string())),
        attribute(("messaging.message.id", &place.message.to_string())),
        number("messaging.thalweg.offset", place.offset),
    ];
    out.extend(operation_type(span.step).map(|kind| attribute(("messaging.operation.type", kind))));
    out.extend(span.door.map(|door| attribute(("network.protocol.name", protocol(door)))));
    if let Some(queue) = &place.queue {
        out.push(match queue.share_group() {
            Some(group) => attribute(("messaging.consumer.group.name", group.as_str())),
            None => attribute(("messaging.destination.subscription.name", queue.as_str())),
        });
    }
    match span.step {
        Step::Lease(end) => out.push(attribute(("thalweg.lease.end", lease_end(end)))),
        Step::Replicate(term) => out.push(number("thalweg.cluster.term", term)),
        Step::Publish | Step::Commit | Step::Deliver | Step::Ack => {}
    }
    out
}

fn lease_end(end: LeaseEnd) -> &'static str {
    match end {
        LeaseEnd::Acked => "acked",
        LeaseEnd::Returned => "returned",
        LeaseEnd::Expired => "expired",
    }
}

fn protocol(door: Door) -> &'static str {
    match door {
        Door::Native => "thalweg",
        Door::Http => "http",
        Door::Kafka => "kafka",
        Door::Pubsub => "pubsub",
        Door::Redis => "redis",
        Door::Sqs => "sqs",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
