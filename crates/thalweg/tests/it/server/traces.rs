//! Traces of records, as an OpenTelemetry collector receives them.
//!
//! Names, kinds and attributes are those of OpenTelemetry's semantic conventions for messaging spans
//! (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>: "Span name", "Operation types", "Span
//! kind"). The numbers of the kinds are those of `Span.SpanKind` in opentelemetry/proto/trace/v1/trace.proto.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Record, Start};
use engine::codec::Codec;
use serde_json::json;

use crate::door::kafka::raw::{self, Raw};
use crate::door::pubsub::push::done;
use crate::door::sqs::client::Sqs;
use crate::door::web::ask;
use crate::support::cluster::Cluster;
use crate::support::collector::{Collector, PARENT, PRODUCER, Span, TRACE};
use crate::support::command::thalweg;
use crate::support::reading::{subscribe, take};
use crate::support::server::{Server, metric, until, within};

const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const PRODUCER_KIND: u64 = 4;
const CONSUMER: u64 = 5;

fn traced(value: &'static str) -> Record {
    Record::new(value).with_header("traceparent", PARENT).with_header("tracestate", "rojo=1")
}

/// Publishes records through the Kafka door.
async fn produce(server: &Server, topic: &str, codec: Codec, records: &[Record]) {
    let mut kafka = Raw::connect(server).await;
    let produced = kafka.call(9, raw::produce(topic, 0, -1, raw::batch(codec, records))).await;
    assert_eq!(raw::produced(&produced).0, 0, "{produced:?}");
}

#[tokio::test]
async fn a_record_from_a_kafka_producer_to_an_sqs_consumer_is_one_trace() {
    let collector = Collector::start().await;
    let server = Server::with(&collector.settings(&["data=data"]));
    let sqs = Sqs::of(&server);
    let url = sqs.create("jobs", json!({})).await;
    produce(&server, "jobs", Codec::Lz4, &[traced("one")]).await;
    let request = json!({"MessageAttributeNames": ["All"], "WaitTimeSeconds": 5});
    let message = sqs.receive_with(&url, request).await.swap_remove(0);
    let attributes = &message["MessageAttributes"];
    assert_eq!(attributes["traceparent"], json!({"DataType": "String", "StringValue": PARENT}));
    sqs.delete(&url, &message).await.ok();

    let spans = collector.trace(TRACE, &["publish", "commit", "deliver", "lease", "ack"]).await;
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let parents = [("publish", PRODUCER), ("commit", spans["publish"].id()), ("deliver", spans["publish"].id())];
    let more = [("lease", spans["deliver"].id()), ("ack", spans["lease"].id())];
    for (operation, parent) in parents.into_iter().chain(more) {
        let span = &spans[operation];
        assert_eq!(span.parent(), Some(parent), "{operation}");
        assert_eq!(span.0["name"], format!("{operation} jobs"));
        assert_eq!(span.0["traceState"], "rojo=1", "{operation}");
        assert_eq!(span.attribute("messaging.system"), Some("thalweg"));
        assert_eq!(span.attribute("messaging.destination.name"), Some("jobs"));
        assert_eq!(span.attribute("messaging.destination.partition.id"), Some("0"));
        assert_eq!(span.attribute("messaging.thalweg.offset"), Some("0"));
        assert_eq!(span.attribute("messaging.message.id"), message["MessageId"].as_str(), "{operation}");
        let (began, ended) = span.times();
        assert!(began <= ended && began >= spans["publish"].times().0, "{operation}: {span:?}");
    }
    let what = |operation: &str| {
        let span = &spans[operation];
        (span.kind(), span.attribute("messaging.operation.type"), span.attribute("network.protocol.name"))
    };
    assert_eq!(what("publish"), (SERVER, Some("send"), Some("kafka")));
    assert_eq!(what("commit"), (INTERNAL, None, Some("kafka")));
    assert_eq!(what("deliver"), (CONSUMER, Some("receive"), Some("sqs")));
    assert_eq!(what("lease"), (INTERNAL, None, Some("sqs")));
    assert_eq!(what("ack"), (SERVER, Some("settle"), Some("sqs")));
    assert_eq!(spans["lease"].attribute("thalweg.lease.end"), Some("acked"));
    assert_eq!(spans["ack"].attribute("messaging.destination.subscription.name"), Some("jobs"));
    assert_eq!(spans["deliver"].0["links"], json!([{"traceId": TRACE, "spanId": PRODUCER}]), "the creation context");
    assert!(spans["publish"].times().1 >= spans["commit"].times().1, "acks=all waits for the commit");
    assert!(spans["deliver"].times().0 >= spans["commit"].times().1, "a record is durable before it is read");
}

#[tokio::test]
async fn the_context_of_an_http_request_is_that_of_its_records() {
    let collector = Collector::start().await;
    let server = Server::with(&collector.settings(&["http=127.0.0.1:0"]));
    let client = server.client("tcp").await;
    client.create_topic("t", client::TopicSettings::default()).await.expect("created");
    let mut reader = subscribe(&client, "t", Start::Earliest).await;
    let publish = |headers: &str, body: &str| {
        let length = body.len();
        let head = format!("content-type: application/json\r\ncontent-length: {length}\r\nconnection: close");
        let request = format!("POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\n{head}\r\n{headers}\r\n{body}");
        let (status, answer) = ask(server.door("http"), &request);
        assert_eq!(status, 200, "{answer}");
    };
    let bad = PARENT.replace("00-", "ff-");
    publish(&format!("traceparent: {bad}\r\n"), &json!({"records": [{"value": "0"}]}).to_string());
    let own = PARENT.replace("0319c-", "0319d-");
    let body = json!({"records": [{"value": "1"}, {"value": "2", "headers": {"traceparent": own}}]}).to_string();
    publish(&format!("Traceparent: {PARENT}\r\ntracestate: a=1\r\ntracestate: b=2\r\n"), &body);
    let records = take(&mut reader, 3).await;
    let header = |at: usize, name: &str| {
        let value = records[at].record.header(name);
        value.map(|value: &bytes::Bytes| String::from_utf8_lossy(value).into_owned())
    };
    assert_eq!(header(0, "traceparent"), None, "it is not valid");
    assert_eq!((header(1, "traceparent"), header(1, "tracestate")), (Some(PARENT.into()), Some("a=1,b=2".into())));
    assert_eq!((header(2, "traceparent"), header(2, "tracestate")), (Some(own), None));

    let spans = collector.trace(TRACE, &["publish", "deliver"]).await;
    assert_eq!(spans["publish"].attribute("network.protocol.name"), Some("http"));
    assert_eq!(spans["publish"].parent(), Some(PRODUCER));
    assert_eq!(spans["deliver"].attribute("network.protocol.name"), Some("thalweg"));
    assert_eq!(spans["deliver"].parent(), Some(spans["publish"].id()));
    assert_eq!(spans.len(), 2, "a topic in memory has no commit: {spans:#?}");
    collector.trace(&TRACE.replace("0319c", "0319d"), &["publish", "deliver"]).await;
}

/// The attributes are those that google-cloud-pubsub 2.31 sends and reads: `OpenTelemetryContextSetter` and
/// `OpenTelemetryContextGetter` in google/cloud/pubsub_v1/open_telemetry/context_propagation.py.
#[tokio::test]
async fn contexts_of_googles_libraries_pass_through_every_door() {
    let collector = Collector::start().await;
    let server = Server::with(&collector.settings(&["pubsub=127.0.0.1:0"]));
    let pubsub = server.pubsub();
    let (topic, subscription) = ("/v1/projects/shop/topics/orders", "/v1/projects/shop/subscriptions/billing");
    done(pubsub, "PUT", topic, json!({})).await;
    done(pubsub, "PUT", subscription, json!({"topic": "projects/shop/topics/orders"})).await;
    let sent = json!({"googclient_traceparent": PARENT, "googclient_tracestate": "rojo=1", "a": "b"});
    let message = json!({"data": BASE64.encode("x"), "attributes": sent});
    let ids = done(pubsub, "POST", &format!("{topic}:publish"), json!({"messages": [message]})).await;
    let pull = async || {
        let path = format!("{subscription}:pull");
        let pulled = done(pubsub, "POST", &path, json!({"maxMessages": 1})).await;
        let message = pulled["receivedMessages"][0].clone();
        let ack = json!({"ackIds": [message["ackId"]]});
        done(pubsub, "POST", &format!("{subscription}:acknowledge"), ack).await;
        message["message"].clone()
    };
    let first = pull().await;
    assert_eq!((&first["attributes"], &first["messageId"]), (&sent, &ids["messageIds"][0]), "as they were sent");
    let spans = collector.trace(TRACE, &["publish", "deliver", "lease", "ack"]).await;
    for operation in ["publish", "deliver", "ack"] {
        assert_eq!(spans[operation].attribute("network.protocol.name"), Some("pubsub"), "{operation}");
    }
    assert_eq!(spans["ack"].attribute("messaging.message.id"), first["messageId"].as_str());
    assert_eq!(spans["publish"].parent(), Some(PRODUCER));

    let name = spans["publish"].attribute("messaging.destination.name").expect("a topic").to_owned();
    let mut kafka = Raw::connect(&server).await;
    let (_, _, batches) = raw::fetched(&kafka.call(11, raw::fetch(&name, 0, 0, 0)).await);
    let record = raw::records(&batches).swap_remove(0);
    assert_eq!(record.header("traceparent").map(|value| &value[..]), Some(PARENT.as_bytes()), "for other clients");
    until("the span of the fetch", async || {
        let is_fetch =
            |span: &Span| span.operation() == "deliver" && span.attribute("network.protocol.name") == Some("kafka");
        collector.spans().iter().any(is_fetch)
    })
    .await;
    // Its time is now: a subscription does not deliver what is older than its retention.
    let timestamp_ms = record.timestamp_ms;
    produce(&server, &name, Codec::None, &[Record { timestamp_ms, ..traced("from kafka") }]).await;
    let second = pull().await;
    assert_eq!(second["attributes"]["googclient_traceparent"], PARENT, "as Google's libraries read it");
    assert_eq!(second["attributes"]["googclient_tracestate"], "rojo=1");
}

#[tokio::test]
async fn the_trace_header_of_aws_is_a_context() {
    let collector = Collector::start().await;
    let server = Server::with(&collector.settings(&[]));
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({"VisibilityTimeout": "1"})).await;
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let system = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": trace}});
    let send = json!({"QueueUrl": url, "MessageBody": "x", "MessageSystemAttributes": system});
    sqs.call("SendMessage", send).await.ok();
    let message = sqs.receive(&url, 1, 5).await.swap_remove(0);
    let trace = "5759e988bd862e3fe1be46a994272793";
    let spans = collector.trace(trace, &["publish", "deliver", "lease"]).await;
    assert_eq!(spans["publish"].parent(), Some("53995c3f42cd8ad8"));
    assert_eq!(spans["lease"].attribute("thalweg.lease.end"), Some("expired"));
    let (began, ended) = spans["lease"].times();
    assert!((900_000_000..=1_500_000_000).contains(&(ended - began)), "one second: {}", ended - began);
    assert!(!spans.contains_key("ack"), "{message}");
}

#[tokio::test]
async fn without_tracing_or_a_sampled_context_nothing_is_exported() {
    let collector = Collector::start().await;
    let off = Server::with(&collector.settings(&["tracing=false", "tracing_sample_ratio=1"]));
    let on = Server::with(&collector.settings(&[]));
    let unsampled = PARENT.replace("-01", "-00");
    let bad = ["", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "01", &PARENT.to_uppercase()];
    for server in [&off, &on] {
        let client = server.client("tcp").await;
        client.create_topic("t", client::TopicSettings::default()).await.expect("created");
        let mut records = vec![Record::new("none"), Record::new("x").with_header("traceparent", unsampled.clone())];
        records.extend(bad.map(|bad| Record::new("x").with_header("traceparent", bad.to_owned())));
        produce(server, "t", Codec::None, &records).await;
        take(&mut subscribe(&client, "t", Start::Earliest).await, records.len()).await;
    }
    produce(&off, "t", Codec::None, &[traced("x")]).await;
    let metrics = collector.requests("/v1/metrics");
    until("two more exports of each", async || collector.requests("/v1/metrics") >= metrics + 6).await;
    assert_eq!(collector.requests("/v1/traces"), 0, "{:?}", collector.spans());
    let client = on.client("tcp").await;
    assert_eq!(metric(&client, "thalweg_trace_contexts_invalid_total").await, bad.len() as u64);
    let text = off.client("tcp").await.stats().await.expect("metrics");
    assert!(!text.contains("thalweg_trace_"), "it has no queue of spans");
    // The exporter works: what it is sent next arrives.
    produce(&on, "t", Codec::None, &[traced("x")]).await;
    let spans = collector.trace(TRACE, &["publish"]).await;
    assert_eq!(collector.spans().len(), spans.len());
}

#[tokio::test]
async fn a_full_queue_of_spans_is_counted_and_nothing_waits_for_it() {
    let collector = Collector::start().await;
    collector.answer(503);
    let server = Server::with(&collector.settings(&[]));
    let client = server.client("tcp").await;
    client.create_topic("t", client::TopicSettings::default()).await.expect("created");
    let records: Vec<Record> = (0..70).map(|_| traced("x")).collect();
    for _ in 0..150 {
        produce(&server, "t", Codec::None, &records).await;
    }
    until("a failed export", async || metric(&client, "thalweg_otlp_trace_export_errors_total").await > 0).await;
    let finished = metric(&client, "thalweg_trace_spans_total").await;
    let dropped = metric(&client, "thalweg_trace_spans_dropped_total").await;
    assert_eq!(finished + dropped, 150 * 64, "each batch has 64 traced records");
    assert_eq!(metric(&client, "thalweg_trace_records_left_out_total").await, 150 * 6);
    // Up to 512 spans are with the exporter, which tries them again.
    assert_eq!(metric(&client, "thalweg_trace_spans_queued").await, 8192);
    assert!((8192 + 1..=8192 + 512).contains(&finished), "{finished}");
    assert_eq!(metric(&client, "thalweg_published_records_total").await, 150 * 70);
    collector.answer(0);
    until("all queued spans", async || collector.spans().len() as u64 == finished).await;
    // A collector that refuses spans does not get them again.
    collector.answer(400);
    produce(&server, "t", Codec::None, &[traced("x")]).await;
    until("the refused span", async || metric(&client, "thalweg_trace_spans_dropped_total").await == dropped + 1).await;
}

#[tokio::test]
async fn a_record_that_the_ratio_chose_has_the_same_trace_after_a_restart() {
    let collector = Collector::start().await;
    let mut server = Server::with(&collector.settings(&["data=data", "tracing_sample_ratio=1"]));
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    produce(&server, "q", Codec::None, &[Record::new("x")]).await;
    until("the publish", async || collector.spans().iter().any(|span| span.operation() == "commit")).await;
    let publish = collector.spans().into_iter().find(|span| span.operation() == "publish").expect("a publish");
    assert_eq!((publish.parent(), publish.kind()), (None, PRODUCER_KIND), "it is the root");
    server.crash_and_restart();
    let request = json!({"MessageAttributeNames": ["All"], "WaitTimeSeconds": 5});
    let message = Sqs::of(&server).receive_with(&url, request).await.swap_remove(0);
    assert!(message["MessageAttributes"].is_null(), "the record is the producer's: {message}");
    let trace = publish.0["traceId"].as_str().expect("an id");
    let spans = collector.trace(trace, &["publish", "deliver"]).await;
    assert_eq!(spans["deliver"].parent(), Some(publish.id()));
    assert!(spans["deliver"].0["links"].is_null(), "there is no other creation context");
}

#[tokio::test]
async fn a_cluster_has_a_span_of_the_replication() {
    let collector = Collector::start().await;
    let cluster = Cluster::with(3, &collector.settings(&[])).await;
    let client = cluster.client(cluster.leader().await).await;
    client.create_topic("t", client::TopicSettings::default()).await.expect("created");
    within("a publish", client.publish("t", traced("x"))).await.expect("published");
    let spans = collector.trace(TRACE, &["publish", "commit", "replicate"]).await;
    assert_eq!(spans["replicate"].parent(), Some(spans["commit"].id()));
    assert_eq!(spans["replicate"].kind(), INTERNAL);
    let term = spans["replicate"].attribute("thalweg.cluster.term").and_then(|term| term.parse::<u64>().ok());
    assert!(term > Some(0), "{spans:#?}");
}

#[test]
fn tracing_without_a_collector_is_refused() {
    let refused = |set: &[&str]| {
        let set = set.iter().flat_map(|pair| ["--set", pair]);
        thalweg(["config", "show"].into_iter().chain(set)).failed(2)
    };
    assert!(refused(&["tracing=true"]).contains("set otlp_endpoint"));
    assert!(refused(&["tracing_sample_ratio=1.5"]).contains("not a number from 0 to 1"));
    let error = refused(&["tracing=true", "otlp_endpoint=http://localhost:4318/x"]);
    assert!(error.contains("/v1/metrics"), "{error}");
}
