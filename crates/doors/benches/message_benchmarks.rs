//! Costs of the steps that one message passes in the SQS door, measured with the components of that door:
//! `cargo bench -p thalweg-doors --bench message_benchmarks`. The rows are described in `docs/benchmarks/queues.md`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::queue::{Message, MessageId};
use engine::{BatchBuilder, TopicId};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

/// Allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BODIES: [(&str, usize); 4] = [("100B", 100), ("1KB", 1024), ("10KB", 10 << 10), ("100KB", 100 << 10)];
const SMALL: [usize; 4] = [32, 64, 128, 256];
const RECEIPT: &str = "AAAAAAAAAAAAAAB7AAABmqhB0AAAAAAB1mYd4uVwQ0KzJrJmQ1VwYg";

/// Message in an answer to `ReceiveMessage`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shown<'a> {
    message_id: String,
    receipt_handle: &'a str,
    #[serde(rename = "MD5OfBody")]
    md5_of_body: &'a str,
    body: &'a str,
    message_attributes: BTreeMap<String, Attribute<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Attribute<'a> {
    data_type: &'a str,
    string_value: &'a str,
}

/// Message in a `SendMessage` request: text without escapes is borrowed from the request.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Asked<'a> {
    #[serde(borrow)]
    queue_url: Cow<'a, str>,
    #[serde(borrow)]
    message_body: Cow<'a, str>,
}

fn id(offset: u64) -> MessageId {
    MessageId::at(TopicId::new(1, 2), 0, offset)
}

fn shown(body: &str, attributes: usize) -> Shown<'_> {
    let attribute =
        |i| (format!("attribute_{i}"), Attribute { data_type: "String", string_value: "the value of an attribute" });
    Shown {
        message_id: id(7).to_string(),
        receipt_handle: RECEIPT,
        md5_of_body: "78e731027d8fd50ed642340b7c9a63b3",
        body,
        message_attributes: (0..attributes).map(attribute).collect(),
    }
}

fn hashes(c: &mut Criterion) {
    let mut group = c.benchmark_group("md5_body_hash");
    for (name, bytes) in BODIES.into_iter().chain([("256KB", 256 << 10)]) {
        let body = vec![b'x'; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(name, |b| b.iter(|| Md5::digest(black_box(&body))));
    }
    group.finish();

    let mut group = c.benchmark_group("hmac_signature");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
    for bytes in SMALL {
        let data = vec![b'x'; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(bytes.to_string(), |b| b.iter(|| hmac::sign(&key, black_box(&data))));
    }
    group.finish();
}

fn json(c: &mut Criterion) {
    let mut group = c.benchmark_group("message_serialize_json");
    for (name, bytes) in BODIES {
        let body = "x".repeat(bytes);
        let message = shown(&body, 0);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(name, |b| b.iter(|| serde_json::to_vec(black_box(&message)).expect("JSON")));
    }
    group.finish();

    let mut group = c.benchmark_group("message_deserialize_json");
    for (name, bytes) in BODIES {
        let url = "http://127.0.0.1:9324/000000000000/jobs";
        let text = format!("{{\"QueueUrl\":\"{url}\",\"MessageBody\":\"{}\"}}", "x".repeat(bytes));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let asked: Asked<'_> = serde_json::from_slice(black_box(text.as_bytes())).expect("a request");
                assert_eq!((asked.queue_url.len(), asked.message_body.len()), (url.len(), bytes));
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("message_with_attributes");
    for count in [0, 1, 10, 100] {
        let message = shown("Benchmark message", count);
        group.throughput(Throughput::Elements(count.max(1) as u64));
        group.bench_function(count.to_string(), |b| {
            b.iter(|| serde_json::to_vec(black_box(&message)).expect("JSON"));
        });
    }
    group.finish();
}

fn messages(c: &mut Criterion) {
    c.bench_function("uuid_generation", |b| {
        let mut offset = 0;
        b.iter(|| {
            offset += 1;
            id(black_box(offset)).to_string()
        });
    });

    let mut group = c.benchmark_group("message_clone");
    for (name, bytes) in BODIES {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(&vec![b'x'; bytes]), &[(b"kind", Some(b"measured"))]).expect("it fits");
        let batch = builder.finish().expect("a record").stamp(0);
        let message = Message::from(batch.records().expect("records").find(0).expect("the record"));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(name, |b| b.iter(|| black_box(&message).clone()));
    }
    group.finish();
}

fn texts(c: &mut Criterion) {
    let mut group = c.benchmark_group("base64_encode");
    for bytes in SMALL {
        let data = vec![0x5a; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(bytes.to_string(), |b| b.iter(|| URL_SAFE_NO_PAD.encode(black_box(&data))));
    }
    group.finish();

    let mut group = c.benchmark_group("base64_decode");
    for bytes in SMALL {
        let text = URL_SAFE_NO_PAD.encode(vec![0x5a; bytes]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(bytes.to_string(), |b| {
            b.iter(|| URL_SAFE_NO_PAD.decode(black_box(&text)).expect("it was encoded"));
        });
    }
    group.finish();

    let mut group = c.benchmark_group("hashmap_operations");
    for count in [10u64, 100, 1000] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| {
                let mut map: HashMap<String, u64, foldhash::fast::RandomState> = HashMap::default();
                map.extend((0..count).map(|i| (format!("message-{i}"), i)));
                (0..count).filter(|i| map.get(black_box(&format!("message-{i}"))) == Some(i)).count()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = hashes, json, messages, texts
}
criterion_main!(benches);
