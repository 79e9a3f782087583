//! Invalid requests are answered as the protocol specifies, and affect no other client.

use bytes::BytesMut;
use doors::kafka::messages::APIS;
use engine::Record;
use engine::codec::Codec;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, DeleteTopicsRequest, DescribeConfigsRequest, ListOffsetsRequest, MetadataRequest,
};
use kafka_protocol::protocol::Encodable;

use super::raw::{Raw, batch, fetch, fetched, produce, produced, text, topic};
use crate::support::server::{Server, until};

/// Returns the checksum, computed bit by bit from its definition.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// Batches that are refused, and the errors that their producer receives. The connection continues.
#[tokio::test]
async fn wrong_batches_are_refused_one_by_one() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let good = batch(Codec::None, &[Record::new("v")]);
    raw.create("t").await;
    raw.call(9, produce("t", 0, -1, good.clone())).await;
    let changed = |at: usize, to: u8| {
        let mut bytes = BytesMut::from(&good[..]);
        bytes[at] = to;
        bytes.freeze()
    };
    // Its checksum is valid.
    let unknown_codec = {
        let mut bytes = BytesMut::from(&good[..]);
        bytes[22] |= 6;
        let checksum = crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
        bytes.freeze()
    };
    let cases = [
        ("a bit of a record", changed(good.len() - 1, 0xff), 2),
        ("an old magic", changed(16, 1), 87),
        ("a length that is none", changed(11, 0xff), 87),
        ("an unknown codec", unknown_codec, 87),
        ("nothing", good.slice(..0), 87),
        ("half of it", good.slice(..good.len() / 2), 87),
        ("no topic", good.clone(), 17),
        ("a topic that is not there", good.clone(), 3),
        ("a partition that is not there", good.clone(), 3),
        ("a partition that cannot exist", good.clone(), 3),
        ("two batches", [&good[..], &good[..]].concat().into(), 87),
        ("what is the broker's own", good.clone(), 3),
    ];
    for (what, bytes, code) in cases {
        let (name, partition) = match what {
            "no topic" => ("not a name", 0),
            "a topic that is not there" => ("u", 0),
            "a partition that is not there" => ("t", 7),
            "a partition that cannot exist" => ("t", -1),
            "what is the broker's own" => ("_offsets", 0),
            _ => ("t", 0),
        };
        let response = raw.call(9, produce(name, partition, -1, bytes)).await;
        let (found, offset, message) = produced(&response);
        assert_eq!((found, offset), (code, -1), "{what}: {message:?}");
        assert!(message.is_some_and(|message| message.len() > 10), "{what}");
    }
    let response = raw.call(9, produce("t", 0, 7, good.clone())).await;
    assert_eq!(produced(&response).0, 21, "acks = 7");
    assert_eq!(produced(&raw.call(9, produce("t", 0, -1, good)).await), (0, 1, None));
}

/// Fetches from nonexistent positions.
#[tokio::test]
async fn wrong_places_are_refused_one_by_one() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    raw.call(9, produce("t", 0, -1, batch(Codec::None, &[Record::new("v")]))).await;
    for (name, partition, offset, code) in
        [("t", 0, 2, 1), ("t", 0, -5, 1), ("t", 1, 0, 3), ("t", -1, 0, 3), ("u", 0, 0, 3), ("t", 0, 1, 0)]
    {
        let response = raw.call(11, fetch(name, partition, offset, 0)).await;
        assert_eq!(fetched(&response).0, code, "{name} {partition} {offset}");
    }
    // An unknown session, and a leader epoch that never existed.
    let response = raw.call(11, fetch("t", 0, 0, 0).with_session_id(5).with_session_epoch(1)).await;
    assert_eq!(response.error_code, 70);
    let mut request = fetch("t", 0, 0, 0);
    request.topics[0].partitions[0].current_leader_epoch = 3;
    assert_eq!(fetched(&raw.call(11, request).await).0, 75);
}

/// Unreadable frames end their connection, with a message in the log, and no other.
#[tokio::test]
async fn wrong_frames_end_their_connection() {
    let server = Server::start();
    let mut bystander = Raw::connect(&server).await;
    let frames: [(&str, &[u8]); 7] = [
        ("too long", &[0x7f, 0xff, 0xff, 0xff]),
        ("a negative length", &[0xff, 0xff, 0xff, 0xff]),
        ("too short", &[0, 0, 0, 4, 0, 18, 0, 0]),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n"),
        ("an API that is none", &[0, 0, 0, 10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]),
        ("a version that is none", &[0, 0, 0, 10, 0, 0, 0, 99, 0, 0, 0, 1, 0xff, 0xff]),
        ("a name that is no text", &[0, 0, 0, 12, 0, 18, 0, 0, 0, 0, 0, 1, 0, 2, 0xc3, 0x28]),
    ];
    for (what, bytes) in frames {
        let mut raw = Raw::connect(&server).await;
        raw.send_bytes(bytes).await;
        assert!(raw.frame().await.is_none(), "{what}");
        assert_eq!(bystander.call(3, ApiVersionsRequest::default()).await.error_code, 0, "{what}");
    }
    // A huge array costs nothing.
    let mut raw = Raw::connect(&server).await;
    raw.send_body(ApiKey::Metadata as i16, 4, 1, &[0x7f, 0xff, 0xff, 0xff]).await;
    assert!(raw.frame().await.is_none());
    until("a word in the log", async || server.log().matches("closed a Kafka connection").count() >= 8).await;
    assert_eq!(bystander.call(4, MetadataRequest::default()).await.brokers.len(), 1);
}

/// Repeated names are not answered repeatedly: otherwise a small request could cause a response of any size.
#[tokio::test]
async fn a_thing_that_is_named_twice_is_answered_once_or_refused() {
    const TIMES: usize = 100_000;
    let server = Server::with(&["default_partitions=1000"]);
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let named = MetadataRequestTopic::default().with_name(Some(topic("t")));
    let response = raw.call(12, MetadataRequest::default().with_topics(Some(vec![named; TIMES]))).await;
    assert_eq!(response.topics.len(), 1);
    assert_eq!(response.topics[0].partitions.len(), 1000);
    let named = DescribeConfigsResource::default().with_resource_type(2).with_resource_name(text("t"));
    let named = named.with_configuration_keys(None);
    let response = raw.call(4, DescribeConfigsRequest::default().with_resources(vec![named; TIMES])).await;
    assert_eq!(response.results.len(), 1);
    let at = |index| ListOffsetsPartition::default().with_partition_index(index).with_timestamp(-1);
    let named = ListOffsetsTopic::default().with_name(topic("t")).with_partitions(vec![at(1), at(2), at(1)]);
    let response = raw.call(7, ListOffsetsRequest::default().with_topics(vec![named])).await;
    let codes: Vec<i16> = response.topics[0].partitions.iter().map(|partition| partition.error_code).collect();
    assert_eq!(codes, [42, 0, 42]);
    let named = DeleteTopicState::default().with_name(Some(topic("t")));
    let response = raw.call(6, DeleteTopicsRequest::default().with_topics(vec![named; 2])).await;
    assert_eq!(response.responses.iter().map(|topic| topic.error_code).collect::<Vec<_>>(), [42, 42]);
    assert_eq!(raw.call(4, MetadataRequest::default().with_topics(None)).await.topics.len(), 1);
}

/// A refused publish without acks ends its connection, so that the client notices.
#[tokio::test]
async fn records_that_are_lost_end_their_connection() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let good = batch(Codec::None, &[Record::new("v")]);
    raw.send(9, &produce("t", 0, 0, good.clone())).await;
    assert_eq!(produced(&raw.call(9, produce("t", 0, -1, good.clone())).await), (0, 1, None));
    raw.send(9, &produce("nowhere", 0, 0, good)).await;
    assert!(raw.frame().await.is_none());
}

/// Deterministic pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Returns a valid body of each API, with its key and its version.
fn bodies() -> Vec<(i16, i16, Vec<u8>)> {
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).expect("hex"), 16).expect("hex");
    let vectors = include_str!("../../../../../doors/tests/vectors/kafka_requests.txt").lines();
    let vectors = vectors.filter(|line| !line.starts_with('#')).map(|line| {
        let hex = line.split_once(' ').expect("a name and its bytes").1;
        let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        let number = |at: usize| i16::from_be_bytes([bytes[at], bytes[at + 1]]);
        (number(0), number(2), bytes[4..].to_vec())
    });
    let mut bodies: Vec<_> = vectors.collect();
    for version in [3, 12] {
        let mut body = BytesMut::new();
        let records = batch(Codec::Zstd, &[Record::new("v").with_key("k")]);
        produce("t", 0, -1, records).encode(&mut body, version).expect("a produce");
        bodies.push((ApiKey::Produce as i16, version, body.to_vec()));
    }
    for version in [4, 12] {
        let mut body = BytesMut::new();
        fetch("t", 0, 0, 0).encode(&mut body, version).expect("a fetch");
        bodies.push((ApiKey::Fetch as i16, version, body.to_vec()));
    }
    bodies
}

/// Returns variants of the body: truncated, changed, extended, and empty.
fn damaged(body: &[u8], random: &mut Random) -> Vec<Vec<u8>> {
    let mut damaged: Vec<Vec<u8>> = (0..=body.len()).step_by(3).map(|length| body[..length].to_vec()).collect();
    for times in [1, 1, 2, 4, 8] {
        let mut changed = body.to_vec();
        for _ in 0..times.min(body.len()) {
            let at = random.below(body.len());
            changed[at] = random.next() as u8;
        }
        damaged.push(changed);
    }
    let extra = random.bytes(1000);
    damaged.push([body, &extra[..]].concat());
    damaged.push(extra);
    damaged
}

/// Every API in every version: a damaged request is answered, or ends its own connection, and no other client has to
/// wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_requests_of_every_api_harm_nobody_else() {
    /// Maximum wait for a response: some requests rightly wait for others.
    const SOON: std::time::Duration = std::time::Duration::from_millis(50);
    let mut server = Server::with(&["data=data"]);
    let mut bystander = Raw::connect(&server).await;
    let own = batch(Codec::None, &[Record::new("v")]);
    for name in ["bystander.of.all", "t"] {
        bystander.create(name).await;
    }
    let mut random = Random(5);
    for (key, at_version, body) in bodies() {
        let api = APIS.iter().find(|api| api.key == key).expect("an API that is served");
        // A body in the versions between those of the vectors is damaged in the same form.
        let versions =
            if at_version == api.version_min { at_version..=api.version_max } else { at_version..=at_version };
        let mut open = Vec::new();
        for version in versions {
            let header_version = if api.is_flexible(version) { 2 } else { 1 };
            let mut raw = Raw::connect(&server).await;
            for damaged in damaged(&body, &mut random) {
                raw.send_body(key, version, header_version, &damaged).await;
                let is_answered = tokio::time::timeout(SOON, raw.frame()).await;
                if !matches!(is_answered, Ok(Some(_))) {
                    let next = Raw::connect(&server).await;
                    open.push(std::mem::replace(&mut raw, next));
                }
            }
            // An incomplete frame.
            raw.send_bytes(&[&[0, 0, 1, 0], &body[..body.len() / 2]].concat()).await;
            open.push(raw);
        }
        let response = bystander.call(9, produce("bystander.of.all", 0, -1, own.clone())).await;
        assert_eq!(produced(&response).0, 0, "{} has harmed another client", api.name);
        assert!(server.is_running(), "{}", api.name);
    }
    let end = fetched(&bystander.call(11, fetch("bystander.of.all", 0, 0, 0)).await).1;
    assert_eq!(end, bodies().len() as i64);
    assert!(!server.log().contains("panic"), "{}", server.log());
}
