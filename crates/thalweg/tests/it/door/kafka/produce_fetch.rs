//! Publishing and reading of records, through one door and through both.

use std::time::Duration;

use bytes::Bytes;
use client::Start;
use engine::codec::Codec;
use engine::{Record, TopicSettings};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{ApiVersionsRequest, CreateTopicsRequest, FetchRequest, ProduceRequest};

use super::raw::{Raw, batch, fetch, fetched, produce, produced, records, text, topic};
use crate::support::reading::{subscribe, take};
use crate::support::server::{Server, metric, until, within};

fn numbered(range: std::ops::Range<u32>) -> Vec<Record> {
    let value = |n: u32| format!("value {n} {}", "x".repeat(100));
    let key = |n: u32| if n.is_multiple_of(3) { None } else { Some(Bytes::from(format!("key {n}"))) };
    let record = |n: u32| Record {
        timestamp_ms: 1_700_000_000_000 + i64::from(n),
        key: key(n),
        value: (n % 5 != 4).then(|| value(n).into()),
        headers: vec![("h".into(), Some("1".into())), ("h".into(), None), ("bytes".into(), Some(vec![0, 255].into()))],
        offset: n.into(),
    };
    range.map(record).collect()
}

/// In every version and with every codec, the fetched records are the produced ones, at their offsets.
#[tokio::test]
async fn records_come_out_as_they_went_in() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let codecs = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
    for (version, fetch_version) in (3..=12).zip([4, 5, 6, 7, 8, 9, 10, 11, 12, 12]) {
        let name = format!("versions.{version}");
        server.client("tcp").await.create_topic(&name, TopicSettings::default()).await.expect("created");
        let mut sent = Vec::new();
        for (at, codec) in (0..).zip(codecs) {
            let some = numbered(at * 10..(at + 1) * 10);
            let response = raw.call(version, produce(&name, 0, -1, batch(codec, &some))).await;
            assert_eq!(produced(&response), (0, i64::from(at) * 10, None), "{version} {codec:?}");
            sent.extend(some);
        }
        let response = raw.call(fetch_version, fetch(&name, 0, 0, 1000)).await;
        let (code, end, batches) = fetched(&response);
        assert_eq!((code, end, batches.len()), (0, 50, 5), "{fetch_version}");
        assert_eq!(records(&batches), sent);
        // A fetch from the middle of a batch returns the whole batch.
        let response = raw.call(fetch_version, fetch(&name, 0, 17, 0)).await;
        assert_eq!(records(&fetched(&response).2), sent[10..]);
    }
}

/// Records that one door wrote are read through the other: keys, values, headers and times.
#[tokio::test]
async fn both_doors_see_the_same_log() {
    let server = Server::start();
    let client = server.client("tcp").await;
    client.create_topic("both", TopicSettings::default()).await.expect("created");
    let mut raw = Raw::connect(&server).await;
    let all = numbered(0..20);
    raw.call(9, produce("both", 0, -1, batch(Codec::Zstd, &all[..10]))).await;
    for record in &all[10..] {
        within("publish", client.publish("both", record.clone())).await.expect("published");
    }
    let response = raw.call(11, fetch("both", 0, 0, 0)).await;
    assert_eq!(records(&fetched(&response).2), all);
    let mut subscription = subscribe(&client, "both", Start::Earliest).await;
    let seen = take(&mut subscription, all.len()).await.into_iter().map(|message| message.record);
    assert_eq!(seen.collect::<Vec<_>>(), all);
}

/// A fetch at the end waits for new records, but not longer than its timeout.
#[tokio::test]
async fn a_fetch_waits_for_records() {
    let server = Server::start();
    let mut reader = Raw::connect(&server).await;
    let mut writer = Raw::connect(&server).await;
    writer.create("waits").await;
    writer.call(9, produce("waits", 0, -1, batch(Codec::None, &numbered(0..1)))).await;
    let begin = std::time::Instant::now();
    let (code, end, batches) = fetched(&reader.call(11, fetch("waits", 0, 1, 50)).await);
    assert_eq!((code, end, batches.len()), (0, 1, 0));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    reader.send(11, &fetch("waits", 0, 1, 60_000)).await;
    let sent = numbered(1..2);
    writer.call(9, produce("waits", 0, 1, batch(Codec::None, &sent))).await;
    let (code, end, batches) = fetched(&reader.answer::<FetchRequest>(11).await);
    assert_eq!((code, end), (0, 2));
    assert_eq!(records(&batches), sent);
}

/// Pipelined batches are appended in order, and answered in order. Without acks there is no response.
#[tokio::test]
async fn requests_are_answered_in_their_order() {
    let server = Server::with(&["data=data"]);
    let mut raw = Raw::connect(&server).await;
    raw.create("order").await;
    for n in 0..100u32 {
        let acks = [-1, 1, 0][n as usize % 3];
        raw.send(9, &produce("order", 0, acks, batch(Codec::None, &numbered(n..n + 1)))).await;
    }
    for n in (0..100).filter(|n| n % 3 != 2) {
        assert_eq!(produced(&raw.answer::<ProduceRequest>(9).await), (0, n, None));
    }
    let (_, end, batches) = fetched(&raw.call(11, fetch("order", 0, 0, 1000)).await);
    assert_eq!(end, 100);
    assert_eq!(records(&batches), numbered(0..100));
}

/// A fetch does not wait for more bytes than it may return.
#[tokio::test]
async fn a_fetch_does_not_wait_for_more_than_it_may_return() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    raw.call(9, produce("t", 0, -1, batch(Codec::None, &numbered(0..10)))).await;
    for bytes_max in [0, 100] {
        let request = fetch("t", 0, 0, 600_000).with_min_bytes(1 << 30).with_max_bytes(bytes_max);
        assert_eq!(records(&fetched(&raw.call(11, request).await).2), numbered(0..10), "{bytes_max}");
    }
}

/// Invalid records of a batch are reported by their indexes (KIP-467, `LogValidator.processRecordErrors`), so that a
/// client can send the others again.
#[tokio::test]
async fn the_records_for_which_a_batch_is_refused_are_listed() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::with(&[&format!("data={}", data.path().display())]);
    let mut raw = Raw::connect(&server).await;
    let policy = CreatableTopicConfig::default().with_name(text("cleanup.policy")).with_value(Some(text("compact")));
    let wanted = CreatableTopic::default().with_name(topic("t")).with_num_partitions(1).with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![wanted.with_configs(vec![policy])]);
    assert_eq!(raw.call(7, request).await.topics[0].error_code, 0);
    let records = |is_wrong: fn(usize) -> bool, count: usize| -> Vec<Record> {
        let record = |n| Record { key: (!is_wrong(n)).then(|| Bytes::from(n.to_string())), ..Record::new("value") };
        (0..count).map(record).collect()
    };
    for (version, codec) in [(8, Codec::None), (9, Codec::Gzip), (12, Codec::Zstd)] {
        let request = produce("t", 0, -1, batch(codec, &records(|n| n % 10 == 7, 100)));
        let response = raw.call(version, request).await;
        let refused = &response.responses[0].partition_responses[0];
        assert_eq!((refused.error_code, refused.base_offset), (87, -1));
        let message = refused.error_message.as_deref().expect("why");
        assert!(message.contains("10 of the 100 records") && message.contains("no key"), "{message}");
        let places: Vec<i32> = refused.record_errors.iter().map(|error| error.batch_index).collect();
        assert_eq!(places, (7..100).step_by(10).collect::<Vec<_>>(), "version {version}");
        let whys: Vec<_> = refused.record_errors.iter().map(|error| &error.batch_index_error_message).collect();
        assert!(whys.iter().all(|why| why.as_deref().is_some_and(|why| why.contains("key"))), "{whys:?}");
        let taken = raw.call(version, produce("t", 0, -1, batch(codec, &records(|_| false, 90)))).await;
        let taken = &taken.responses[0].partition_responses[0];
        assert_eq!((taken.error_code, taken.record_errors.len()), (0, 0));
    }
    // All of them are listed, and the first ones with the reason.
    let response = raw.call(12, produce("t", 0, -1, batch(Codec::Zstd, &records(|_| true, 2000)))).await;
    let errors = &response.responses[0].partition_responses[0].record_errors;
    assert_eq!((errors.len(), errors[1999].batch_index), (2000, 1999));
    assert_eq!(errors.iter().filter(|error| error.batch_index_error_message.is_some()).count(), 1000);
    // Earlier versions have no room for it.
    assert_eq!(produced(&raw.call(7, produce("t", 0, -1, batch(Codec::None, &records(|_| true, 2)))).await).0, 87);
}

/// `fetch.max.bytes` limits the whole response: only its first batch may be larger (`ReplicaManager.readFromLog` of
/// Apache Kafka: after the first batch no partition ignores the limits). librdkafka closes a connection whose response
/// is larger.
#[tokio::test]
async fn only_the_first_batch_of_an_answer_may_exceed_the_limits() {
    const PARTITIONS: i32 = 4;
    let data = tempfile::tempdir().expect("a folder");
    let on_disk = format!("data={}", data.path().display());
    for set in [&[][..], &[on_disk.as_str()]] {
        let server = Server::with(set);
        let mut raw = Raw::connect(&server).await;
        let wanted =
            CreatableTopic::default().with_name(topic("t")).with_num_partitions(PARTITIONS).with_replication_factor(1);
        let created = raw.call(7, CreateTopicsRequest::default().with_topics(vec![wanted])).await;
        assert_eq!(created.topics[0].error_code, 0);
        let mut sizes = Vec::new();
        for partition in 0..PARTITIONS {
            // Partition 1 has one large batch, the others five small ones.
            for _ in 0..if partition == 1 { 1 } else { 5 } {
                let value = "x".repeat(if partition == 1 { 30_000 } else { 1000 });
                let batch = batch(Codec::None, &[Record::new(value)]);
                sizes.push(batch.len());
                assert_eq!(produced(&raw.call(9, produce("t", partition, -1, batch)).await).0, 0);
            }
        }
        let small = sizes[0];
        // Bytes of each partition, if the partitions are requested in this order.
        let mut lengths = async |version: i16, order: &[i32], bytes_max: usize, partition_bytes_max: usize| {
            let partition = |index: &i32| {
                let limit = partition_bytes_max as i32;
                FetchPartition::default()
                    .with_partition(*index)
                    .with_current_leader_epoch(-1)
                    .with_partition_max_bytes(limit)
            };
            let of =
                FetchTopic::default().with_topic(topic("t")).with_partitions(order.iter().map(partition).collect());
            // The remaining records exist, so that the broker does not wait for the minimum, unless partitions have
            // limits.
            let bytes_min = if partition_bytes_max < 1 << 20 { 1 } else { 1 << 20 };
            let request = FetchRequest::default().with_max_wait_ms(600_000).with_min_bytes(bytes_min);
            let response = raw.call(version, request.with_max_bytes(bytes_max as i32).with_topics(vec![of])).await;
            let found = &response.responses[0].partitions;
            assert!(found.iter().all(|found| found.error_code == 0 && found.high_watermark > 0));
            found.iter().map(|found| found.records.as_ref().map_or(0, Bytes::len)).collect::<Vec<_>>()
        };
        for version in 4..=12 {
            let large = 30_000;
            for (order, bytes_max, partition_bytes_max, expected) in [
                // Two partitions and a part of a third one.
                ([0, 2, 3], 12 * small, 1 << 20, [5, 5, 2]),
                ([0, 2, 3], 12 * small + small / 2, 1 << 20, [5, 5, 2]),
                ([0, 2, 3], 5 * small, 1 << 20, [5, 0, 0]),
                // The first batch is returned whatever its size, and nothing after it.
                ([0, 2, 3], 1, 1 << 20, [1, 0, 0]),
                ([0, 2, 3], 0, 1 << 20, [1, 0, 0]),
                // The limit of a partition applies as well.
                ([0, 2, 3], 1 << 20, 2 * small, [2, 2, 2]),
                ([0, 2, 3], 1 << 20, small - 1, [1, 0, 0]),
            ] {
                let found = lengths(version, &order, bytes_max, partition_bytes_max).await;
                let expected = expected.map(|batches| batches * small);
                assert_eq!(found, expected, "version {version}: {bytes_max}, {partition_bytes_max} each");
            }
            // A large batch is only returned once its partition is the first.
            let found = lengths(version, &[0, 1, 2], 10 * small, 1 << 20).await;
            assert!(found[0] == 5 * small && found[1] == 0 && found.iter().sum::<usize>() <= 10 * small, "{found:?}");
            let found = lengths(version, &[1, 2, 0], 10 * small, 1 << 20).await;
            assert!(found[0] > large && found[1..] == [0, 0], "{found:?}");
        }
    }
}

/// A response names every requested partition. librdkafka accepts 512 bytes of other data in addition to
/// `fetch.max.bytes` (`receive.message.max.bytes` in its CONFIGURATION.md), and closes a connection whose response is
/// larger.
#[tokio::test]
async fn an_answer_with_many_partitions_is_no_larger_than_clients_take() {
    const PARTITIONS: i32 = 400;
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let name = "a.topic.with.a.name.of.some.length";
    let wanted =
        CreatableTopic::default().with_name(topic(name)).with_num_partitions(PARTITIONS).with_replication_factor(1);
    let created = raw.call(7, CreateTopicsRequest::default().with_topics(vec![wanted])).await;
    assert_eq!(created.topics[0].error_code, 0);
    let value = || "x".repeat(1000);
    for partition in 0..60 {
        let sent = batch(Codec::None, &[Record::new(value())]);
        assert_eq!(produced(&raw.call(9, produce(name, partition, -1, sent)).await).0, 0);
    }
    let request = |bytes_max: i32, partitions: std::ops::Range<i32>, wait_ms: i32| {
        let partition = |index| {
            FetchPartition::default()
                .with_partition(index)
                .with_current_leader_epoch(-1)
                .with_partition_max_bytes(1 << 20)
        };
        let of = FetchTopic::default().with_topic(topic(name)).with_partitions(partitions.map(partition).collect());
        FetchRequest::default()
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(bytes_max)
            .with_topics(vec![of])
    };
    for version in 4..=12 {
        for bytes_max in [22_000, 30_000, 60_000] {
            raw.send(version, &request(bytes_max, 0..PARTITIONS, 0)).await;
            let frame = raw.frame().await.expect("an answer");
            let bytes = frame.len();
            assert!(bytes <= bytes_max as usize + 512, "version {version}: {bytes} bytes for {bytes_max}");
            assert!(bytes + 2500 > bytes_max as usize, "version {version}: only {bytes} bytes for {bytes_max}");
        }
        // If the names alone exceed the limit, the first batch is returned nevertheless.
        let response = raw.call(version, request(1000, 0..PARTITIONS, 0)).await;
        let lengths = response.responses[0].partitions.iter().map(|found| found.records.as_ref().map_or(0, Bytes::len));
        let lengths: Vec<usize> = lengths.filter(|bytes| *bytes > 0).collect();
        assert!(lengths.len() == 1 && lengths[0] > 1000, "{lengths:?}");
    }
    // If there are no records, such a client waits.
    let begin = std::time::Instant::now();
    raw.call(12, request(1000, 100..PARTITIONS, 50)).await;
    assert!(begin.elapsed() >= Duration::from_millis(50));
}

/// A waiting fetch is answered when the broker shuts down, and does not delay it.
#[tokio::test]
async fn a_fetch_that_waits_ends_with_the_broker() {
    let mut server = Server::with(&["shutdown_timeout_ms=600000"]);
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    // Requests that are read together are handled before any of them is answered: the fetch waits by then.
    let versions = raw.frame_of(3, &ApiVersionsRequest::default());
    let fetch = raw.frame_of(11, &fetch("t", 0, 0, 50_000));
    raw.send_bytes(&[versions, fetch].concat()).await;
    raw.answer::<ApiVersionsRequest>(3).await;
    server.signal(rustix::process::Signal::TERM);
    let (code, end, batches) = fetched(&raw.answer::<FetchRequest>(11).await);
    assert_eq!((code, end, batches.len()), (0, 0, 0));
    assert!(raw.frame().await.is_none());
    assert!(server.ended().await.success());
}

/// If records get their arrival time, it is returned to their producer.
#[tokio::test]
async fn a_producer_is_told_the_time_of_arrival() {
    let server = Server::start();
    let settings = TopicSettings { arrival_times: true, ..TopicSettings::default() };
    server.client("tcp").await.create_topic("arrivals", settings).await.expect("created");
    let mut raw = Raw::connect(&server).await;
    raw.create("own").await;
    let response = raw.call(9, produce("arrivals", 0, -1, batch(Codec::Lz4, &numbered(0..2)))).await;
    let told = response.responses[0].partition_responses[0].log_append_time_ms;
    let read = records(&fetched(&raw.call(11, fetch("arrivals", 0, 0, 0)).await).2);
    assert!(told > 0 && read.iter().all(|record| record.timestamp_ms == told), "{told} {read:?}");
    let response = raw.call(9, produce("own", 0, -1, batch(Codec::Lz4, &numbered(0..2)))).await;
    assert_eq!(response.responses[0].partition_responses[0].log_append_time_ms, -1);
}

/// The response has no receiver any more, so the connection and its descriptor are released immediately.
#[tokio::test]
async fn a_connection_that_closes_while_its_fetch_waits_is_released_at_once() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let open = metric(&client, "thalweg_kafka_connections").await;
    let begin = std::time::Instant::now();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(&server).await;
        raw.send(4, &fetch("t", 0, 0, 60_000)).await;
        waiting.push(raw);
    }
    until("all are open", async || metric(&client, "thalweg_kafka_connections").await == open + 20).await;
    drop(waiting);
    until("all are closed", async || metric(&client, "thalweg_kafka_connections").await == open).await;
    assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", begin.elapsed());
}
