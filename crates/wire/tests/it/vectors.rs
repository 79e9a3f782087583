//! Bytes of every request, response and push, as `tests/vectors/*.txt` contain them for authors of other
//! implementations, and the results of decoding bytes that no implementation would write.
//!
//! A vector is its value as a comment, and a line with its name and its bytes in hex. After an intended change,
//! `UPDATE=1 cargo test -p thalweg-wire` writes the files again.

use std::fmt::{Debug, Write as _};
use std::path::PathBuf;

use crate::{backups, caches, connections, mesh, nodes, queues, security};
use bytes::{BufMut, Bytes, BytesMut};
use engine::groups::{Assignor, GroupState, MemberState};
use engine::mesh::MeshMode;
use engine::{
    Acks, BatchBuilder, DraftBatch, Error, ErrorKind, Missing, Overflow, Producer, RecordBatch, Result, RetryClass,
    SettingsChange, Start, Storage, TopicSettings,
};
use proptest::prelude::*;
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES, put_frame};
use wire::groups::{
    CommittedOffset, GroupInfo, GroupPartition, GroupSummary, Heartbeat, MemberInfo, NewOffset, OffsetCommit,
    OffsetReset, Step,
};
use wire::request::publish_frame;
use wire::response::put_deliver_head;
use wire::{
    Assembler, Cluster, ClusterNode, Features, Frame, GroupRequest, GroupResponse, HelloOk, Level, PartitionInfo,
    Published, Push, Request, Response, SourceInfo, Subscribe, TopicInfo,
};

/// Value, as text and as its bytes on the wire.
struct Vector {
    name: String,
    shown: String,
    bytes: BytesMut,
}

/// Decoded frame, as text and encoded again.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    shown: String,
    again: BytesMut,
}

/// All vectors of one direction, and their decoder.
struct Family {
    file: &'static str,
    vectors: Vec<Vector>,
    decode: fn(Frame) -> Result<Decoded>,
}

fn families() -> [Family; 3] {
    [
        Family { file: "requests.txt", vectors: requests(), decode: decode_request },
        Family { file: "responses.txt", vectors: responses(), decode: decode_response },
        Family { file: "pushes.txt", vectors: pushes(), decode: decode_push },
    ]
}

fn decode_request(frame: Frame) -> Result<Decoded> {
    let correlation = frame.correlation;
    Request::decode(frame).map(|value| decoded(&value, |buf| value.encode(correlation, buf)))
}

fn decode_response(frame: Frame) -> Result<Decoded> {
    let correlation = frame.correlation;
    Response::decode(frame).map(|value| decoded(&value, |buf| value.encode(correlation, buf)))
}

fn decode_push(frame: Frame) -> Result<Decoded> {
    Push::decode(frame).map(|value| decoded(&value, |buf| value.encode(buf)))
}

fn decoded(value: &impl Debug, encode: impl FnOnce(&mut BytesMut)) -> Decoded {
    let mut again = BytesMut::new();
    encode(&mut again);
    Decoded { shown: format!("{value:?}"), again }
}

fn vector(name: impl Into<String>, value: impl Debug, encode: impl FnOnce(&mut BytesMut)) -> Vector {
    let Decoded { shown, again } = decoded(&value, encode);
    Vector { name: name.into(), shown, bytes: again }
}

fn draft() -> DraftBatch {
    let mut builder = BatchBuilder::new();
    builder.push(1_700_000_000_000, Some(b"key"), Some(b"value"), &[(b"h", None)]).expect("a small record");
    builder.push(1_700_000_000_001, None, Some(b"two"), &[]).expect("a small record");
    builder.finish().expect("records")
}

fn batch(base_offset: u64) -> RecordBatch {
    draft().stamp(base_offset)
}

fn requests() -> Vec<Vector> {
    let topic = || "orders.eu".to_owned();
    let numbered = || {
        let mut batch = draft();
        batch.set_producer(Producer { id: 0x0123_4567_89ab_cdef, epoch: 7, sequence: 41 });
        BytesMut::from(&batch.into_bytes()[..])
    };
    let publish = |partition, acks| {
        let batch = BytesMut::from(&draft().into_bytes()[..]);
        Request::Publish { topic: topic(), partition, acks, batch }
    };
    let subscribe = |start| Subscribe {
        subscription: 3,
        topic: "orders.*".into(),
        partition: None,
        start,
        overflow: Overflow::Replay,
        queue_batches: 0,
        group: String::new(),
        credit: 1 << 20,
        missing: Missing::Refuse,
    };
    let subscribe_with = |partition, overflow| Subscribe {
        topic: topic(),
        partition,
        overflow,
        queue_batches: 4096,
        group: "workers".into(),
        ..subscribe(Start::Live)
    };
    let required = Features(0);
    let offered = Features(0x8000_0000_0000_0001);
    let retention_bytes = 64 << 20;
    let retention_ms = 3_600_000;
    let settings = TopicSettings {
        partitions: 4,
        retention_bytes,
        retention_ms,
        storage: Storage::Disk,
        compact: true,
        ..TopicSettings::default()
    };
    let mut values = vec![
        ("hello", Request::Hello { version: 1, required, offered, client: "thalweg-rust/0.1".into() }),
        ("publish", publish(Some(2), Acks::Accepted)),
        ("publish_acks_none", publish(Some(0), Acks::None)),
        ("publish_acks_committed", publish(Some(0), Acks::Committed)),
        ("publish_any_partition", publish(None, Acks::Default)),
        ("subscribe_live", Request::Subscribe(subscribe(Start::Live))),
        ("subscribe_earliest", Request::Subscribe(subscribe(Start::Earliest))),
        ("subscribe_offset", Request::Subscribe(subscribe(Start::Offset(u64::MAX)))),
        ("subscribe_time", Request::Subscribe(subscribe(Start::Time(-1)))),
        ("subscribe_offsets", Request::Subscribe(subscribe(Start::Offsets(vec![(0, 17), (3, 1 << 40)])))),
        ("subscribe_no_offsets", Request::Subscribe(subscribe(Start::Offsets(Vec::new())))),
        ("subscribe_creating", Request::Subscribe(Subscribe { missing: Missing::Create, ..subscribe(Start::Live) })),
        ("subscribe_waiting", Request::Subscribe(Subscribe { missing: Missing::Wait, ..subscribe(Start::Live) })),
    ];
    for (partition, overflow) in Overflow::ALL.into_iter().enumerate() {
        let value = Request::Subscribe(subscribe_with(Some(partition as u32), overflow));
        let name = match overflow {
            Overflow::Replay => "subscribe_replay",
            Overflow::Block => "subscribe_block",
            Overflow::DropNew => "subscribe_drop_new",
            Overflow::DropOld => "subscribe_drop_old",
            Overflow::DisconnectSlow => "subscribe_disconnect_slow",
        };
        values.push((name, value));
    }
    values.extend([
        ("unsubscribe", Request::Unsubscribe { subscription: 3 }),
        ("credit", Request::Credit { subscription: 3, bytes: 1 << 33 }),
        ("fetch", Request::Fetch { topic: topic(), partition: 1, offset: 1 << 40, bytes_max: 1 << 20, wait_ms: 500 }),
        ("topic_create", Request::TopicCreate { topic: topic(), settings }),
        ("topic_delete", Request::TopicDelete { topic: topic() }),
        ("topic_describe", Request::TopicDescribe { topic: topic() }),
        ("topic_list", Request::TopicList { after: String::new(), count_max: 1000 }),
        ("topic_list_after", Request::TopicList { after: topic(), count_max: 1 }),
        ("stats", Request::Stats),
        ("ping", Request::Ping),
        ("login", Request::Login { mechanism: "PLAIN".into(), message: b"\0ann\0pencil".to_vec() }),
        ("init_producer", Request::InitProducer),
        (
            "publish_with_producer",
            Request::Publish { topic: topic(), partition: Some(2), acks: Acks::Accepted, batch: numbered() },
        ),
        ("topic_grow", Request::TopicGrow { topic: topic(), partitions: 1024 }),
        ("topic_alter_nothing", Request::TopicAlter { topic: topic(), change: SettingsChange::default() }),
        (
            "topic_alter_all",
            Request::TopicAlter {
                topic: topic(),
                change: SettingsChange {
                    retention_bytes: Some(u64::MAX),
                    retention_ms: Some(1 << 40),
                    compact: Some(true),
                    batch_bytes_max: Some(1 << 20),
                    arrival_times: Some(false),
                    mesh: Some(MeshMode::Off),
                    ..SettingsChange::default()
                },
            },
        ),
        ("records_delete", Request::RecordsDelete { topic: topic(), partition: 3, before: 1 << 40 }),
    ]);
    values.extend(group_requests().into_iter().map(|(name, value)| (name, Request::Group(value))));
    values.extend(security::requests().into_iter().map(|(name, value)| (name, Request::Security(value))));
    values.extend(queues::requests().into_iter().map(|(name, value)| (name, Request::Queue(value))));
    values.extend(caches::requests().into_iter().map(|(name, value)| (name, Request::Cache(value))));
    values.extend(nodes::requests().into_iter().map(|(name, value)| (name, Request::Cluster(value))));
    values.extend(mesh::requests().into_iter().map(|(name, value)| (name, Request::Mesh(value))));
    // At the end, so that the correlation ids of the vectors above stay as they are.
    let rest = TopicSettings { segment_bytes: 1 << 20, mesh: MeshMode::Live, ..settings };
    let in_mesh = TopicSettings { mesh: MeshMode::Live, ..settings };
    let live = SettingsChange { mesh: Some(MeshMode::Live), ..SettingsChange::default() };
    values.extend([
        ("topic_create_in_the_mesh", Request::TopicCreate { topic: topic(), settings: in_mesh }),
        ("topic_create_in_the_mesh_with_segments", Request::TopicCreate { topic: topic(), settings: rest }),
        ("topic_alter_mesh", Request::TopicAlter { topic: topic(), change: live }),
    ]);
    values.extend(backups::requests().into_iter().map(|(name, value)| (name, Request::Backup(value))));
    values.extend(connections::requests().into_iter().map(|(name, value)| (name, Request::Connection(value))));
    let encode = |(i, (name, value)): (usize, (&str, Request))| {
        let correlation = 0x0100_0000 + i as u32;
        let mut buf = BytesMut::new();
        value.encode(correlation, &mut buf);
        vector(name, value, |b| b.put_slice(&buf))
    };
    values.into_iter().enumerate().map(encode).collect()
}

fn responses() -> Vec<Vector> {
    let source = |partition, start| SourceInfo { topic: "orders.eu".into(), partition, start, end: 1 << 40 };
    let topic = |partitions| TopicInfo {
        topic: "orders.eu".into(),
        settings: TopicSettings {
            partitions: 2,
            retention_bytes: 0,
            retention_ms: u64::MAX,
            storage: Storage::Memory,
            ..TopicSettings::default()
        },
        owner: String::new(),
        partitions,
    };
    let partitions = || {
        vec![
            PartitionInfo { start: 5, end: 10, bytes: 1234, subscribers: 2 },
            PartitionInfo { start: 0, end: 0, bytes: 0, subscribers: 0 },
        ]
    };
    let published = |level| Published { partition: 2, base_offset: 1 << 40, level, receivers: 3, partitions: 4 };
    let hello = HelloOk {
        version: 1,
        features: Features(0),
        body_bytes_max: BODY_BYTES_MAX as u32,
        publishes_in_flight_max: 256,
        instance: 0x0123_4567_89ab_cdef,
        server: "thalweg/0.1.0".into(),
        cluster: None,
    };
    let node = |id, host: &str| ClusterNode { id, host: host.into(), port: 7400 };
    let nodes = vec![node(1, "a.example"), node(2, "fd00::2")];
    let cluster = Cluster { id: 0x0fed_cba9_8765_4321, term: 7, leader: 2, nodes };
    let hello_of = |cluster| Response::Hello(HelloOk { features: Features::CLUSTER, cluster, ..hello.clone() });
    let fetched = |batches| Response::Fetched { start: 5, end: 11, batches };
    let values = [
        ("hello", Response::Hello(hello.clone())),
        ("hello_alone", hello_of(None)),
        ("hello_in_cluster", hello_of(Some(cluster))),
        ("published_accepted", Response::Published(published(Level::Accepted))),
        ("published_committed", Response::Published(published(Level::Committed))),
        ("subscribed", Response::Subscribed { subscription: 3, sources: vec![source(0, 17), source(1, 1 << 40)] }),
        ("subscribed_to_nothing_yet", Response::Subscribed { subscription: 3, sources: Vec::new() }),
        ("unsubscribed", Response::Unsubscribed),
        ("fetched", fetched(vec![batch(7), batch(9)])),
        ("fetched_nothing", fetched(Vec::new())),
        ("topic_created", Response::TopicCreated(topic(partitions()))),
        ("topic_deleted", Response::TopicDeleted),
        ("topic_described", Response::TopicDescribed(topic(partitions()))),
        (
            "topic_of_a_queue",
            Response::TopicDescribed(TopicInfo {
                settings: TopicSettings { drop_consumed: true, ..topic(Vec::new()).settings },
                owner: "orders.eu".into(),
                ..topic(partitions())
            }),
        ),
        (
            "topic_that_keeps_unacknowledged_records",
            Response::TopicDescribed(TopicInfo {
                settings: TopicSettings { keeps_unacked: true, ..topic(Vec::new()).settings },
                ..topic(partitions())
            }),
        ),
        ("topics", Response::Topics { topics: vec![topic(partitions()), topic(Vec::new())], is_last: false }),
        ("topics_last", Response::Topics { topics: Vec::new(), is_last: true }),
        ("stats", Response::Stats("thalweg_topics 1\n".into())),
        ("pong", Response::Pong),
        ("login", Response::Login { is_done: false, message: b"r=n,s=c2FsdA==,i=4096".to_vec() }),
        ("login_done", Response::Login { is_done: true, message: Vec::new() }),
        ("producer", Response::Producer { id: 0x0123_4567_89ab_cdef, epoch: 7 }),
        ("topic_grown", Response::TopicGrown(topic(partitions()))),
        (
            "topic_altered",
            Response::TopicAltered(TopicInfo {
                settings: TopicSettings { batch_bytes_max: 1 << 20, arrival_times: true, ..topic(Vec::new()).settings },
                ..topic(Vec::new())
            }),
        ),
        ("records_deleted", Response::RecordsDeleted { start: 1 << 40 }),
    ];
    let encode = |i: usize, name: String, value: Response| {
        let mut buf = BytesMut::new();
        value.encode(0x0200_0000 + i as u32, &mut buf);
        vector(name, value, |b| b.put_slice(&buf))
    };
    // At the end, so that the correlation ids of the vectors before stay as they are.
    let in_mesh = Response::TopicDescribed(TopicInfo {
        settings: TopicSettings { mesh: MeshMode::Live, ..topic(Vec::new()).settings },
        ..topic(partitions())
    });
    let answers = values.into_iter().map(|(name, value)| (name.to_owned(), value));
    let groups = group_responses().into_iter().map(|(name, value)| (name.to_owned(), Response::Group(value)));
    let errors = ErrorKind::ALL
        .into_iter()
        .map(|kind| (format!("error_{}", kind.name()), Error::new(kind, "what to do, für alle")))
        .chain([("error_redirect".to_owned(), Error::not_leader("what to do, für alle", Some("b.example:7400")))])
        .map(|(name, error)| (name, Response::Error(error)));
    let security = security::responses().into_iter();
    let security = security.map(|(name, value)| (name.to_owned(), Response::Security(value)));
    let queues = queues::responses().into_iter();
    let queues = queues.map(|(name, value)| (name.to_owned(), Response::Queue(value)));
    answers
        .chain(errors)
        .chain(groups)
        .chain(security)
        .chain(queues)
        .chain(caches::responses().into_iter().map(|(name, value)| (name.to_owned(), Response::Cache(value))))
        .chain(nodes::responses().into_iter().map(|(name, value)| (name.to_owned(), Response::Cluster(value))))
        .chain(mesh::responses().into_iter().map(|(name, value)| (name.to_owned(), Response::Mesh(value))))
        .chain([("topic_in_the_mesh".to_owned(), in_mesh)])
        .chain(backups::responses(batch(7)).into_iter().map(|(name, value)| (name.to_owned(), Response::Backup(value))))
        .chain(connections::responses().into_iter().map(|(name, of)| (name.to_owned(), Response::Connection(of))))
        .enumerate()
        .map(|(i, (name, value))| encode(i, name, value))
        .collect()
}

fn group_requests() -> Vec<(&'static str, GroupRequest)> {
    let group = || "billing".to_owned();
    let owned = || vec![("orders.eu".to_owned(), vec![0, 3]), ("orders.us".to_owned(), Vec::new())];
    let heartbeat = |instance: &str, step| {
        GroupRequest::Heartbeat(Heartbeat { group: group(), member: "m-1".into(), instance: instance.into(), step })
    };
    let join = |assignor| Step::Join {
        client: "rust".into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 60_000,
        assignor,
        topics: vec!["orders.eu".into(), "orders.*".into()],
    };
    let alive = |owned, topics| Step::Alive { epoch: 7, wait_ms: 10_000, owned, topics };
    let new = |partition| NewOffset { partition, offset: 1 << 40, metadata: "bis hierher, für alle".into() };
    let commit = |member: &str, offsets| {
        GroupRequest::Commit(OffsetCommit {
            group: group(),
            member: member.into(),
            instance: String::new(),
            epoch: 7,
            offsets,
        })
    };
    let reset = |to, is_dry_run, partitions| {
        GroupRequest::Reset(OffsetReset { group: group(), topic: "orders.eu".into(), partitions, to, is_dry_run })
    };
    vec![
        ("group_join", heartbeat("", join(Assignor::Uniform))),
        ("group_join_static", heartbeat("billing-1", join(Assignor::Range))),
        ("group_alive", heartbeat("", alive(None, None))),
        ("group_alive_owned", heartbeat("", alive(Some(owned()), None))),
        ("group_alive_topics", heartbeat("billing-1", alive(Some(Vec::new()), Some(vec!["orders.us".into()])))),
        ("group_leave", heartbeat("", Step::Leave)),
        ("group_away", heartbeat("billing-1", Step::Away)),
        ("offset_commit", commit("m-1", vec![("orders.eu".into(), vec![new(0), new(3)])])),
        ("offset_commit_of_no_member", commit("", Vec::new())),
        ("offset_fetch", GroupRequest::Fetch { group: group(), partitions: owned() }),
        ("offset_fetch_all", GroupRequest::Fetch { group: group(), partitions: Vec::new() }),
        ("group_list", GroupRequest::List { after: group(), count_max: 100 }),
        ("group_describe", GroupRequest::Describe { group: group() }),
        ("group_delete", GroupRequest::Delete { group: group() }),
        ("offset_reset_latest", reset(Some(Start::Live), false, Vec::new())),
        ("offset_reset_earliest", reset(Some(Start::Earliest), true, vec![0])),
        ("offset_reset_offset", reset(Some(Start::Offset(17)), false, vec![0, 3])),
        ("offset_reset_time", reset(Some(Start::Time(-1)), false, Vec::new())),
        ("offset_reset_offsets", reset(Some(Start::Offsets(vec![(0, 17)])), false, Vec::new())),
        ("offset_reset_forget", reset(None, false, Vec::new())),
    ]
}

fn group_responses() -> Vec<(&'static str, GroupResponse)> {
    let assignment = vec![("orders.eu".to_owned(), vec![0, 3])];
    let committed = CommittedOffset {
        partition: 3,
        offset: 1 << 40,
        committed_ms: 1_700_000_000_000,
        metadata: "bis hierher, für alle".into(),
    };
    let summary = |state| GroupSummary { group: "billing".into(), state, members: 2, offsets: 3, lag: 1 << 33 };
    let member = |state, instance: &str| MemberInfo {
        member: "m-1".into(),
        instance: instance.into(),
        client: "rust".into(),
        state,
        epoch: 7,
        topics: vec!["orders.*".into()],
    };
    let partition = |partition, owner, committed| GroupPartition {
        partition,
        owner,
        committed,
        committed_ms: 1_700_000_000_000,
        start: 5,
        end: 1 << 40,
    };
    let info = GroupInfo {
        group: "billing".into(),
        state: GroupState::Reconciling,
        epoch: 7,
        assignor: Assignor::Uniform,
        members: vec![
            member(MemberState::Stable, ""),
            member(MemberState::Revoking, ""),
            member(MemberState::Waiting, ""),
            member(MemberState::Away, "billing-1"),
        ],
        partitions: vec![("orders.eu".into(), vec![partition(0, Some(1), Some(17)), partition(1, None, None)])],
    };
    let nothing = GroupInfo {
        state: GroupState::Empty,
        assignor: Assignor::Range,
        members: Vec::new(),
        partitions: Vec::new(),
        ..info.clone()
    };
    let states = [GroupState::Empty, GroupState::Stable, GroupState::Reconciling];
    vec![
        ("group_turn", GroupResponse::Turn { epoch: 7, assignment: Some(assignment) }),
        ("group_turn_without_news", GroupResponse::Turn { epoch: 7, assignment: None }),
        ("offsets_committed", GroupResponse::Committed),
        ("offsets", GroupResponse::Offsets(vec![("orders.eu".into(), vec![committed])])),
        ("offsets_none", GroupResponse::Offsets(Vec::new())),
        ("groups", GroupResponse::Groups { groups: states.map(summary).to_vec(), is_last: false }),
        ("groups_last", GroupResponse::Groups { groups: Vec::new(), is_last: true }),
        ("group_described", GroupResponse::Described(info)),
        ("group_described_empty", GroupResponse::Described(nothing)),
        ("group_deleted", GroupResponse::Deleted),
        ("offsets_reset", GroupResponse::Reset(vec![(0, Some(17)), (3, None)])),
    ]
}

fn pushes() -> Vec<Vector> {
    let deliver = |topic: &str| {
        let batch = batch(1 << 40).bytes().clone();
        Push::Deliver { subscription: 3, partition: 2, topic: topic.into(), batch }
    };
    let gap = |topic: &str| Push::Gap { subscription: 3, partition: 2, topic: topic.into(), from: 5, to: 1 << 40 };
    let slow = Error::new(ErrorKind::SlowSubscriber, "the subscriber reads too slowly");
    let mut bye = Error::new(ErrorKind::ShuttingDown, "");
    bye.retry_after_ms = 2000;
    let values = [
        ("deliver", deliver("")),
        ("deliver_of_a_pattern", deliver("orders.eu")),
        ("gap", gap("")),
        ("gap_of_a_pattern", gap("orders.eu")),
        ("ended", Push::Ended { subscription: 3, error: slow }),
        ("go_away", Push::GoAway { error: bye }),
    ];
    values
        .into_iter()
        .map(|(name, value)| {
            let mut buf = BytesMut::new();
            value.encode(&mut buf);
            vector(name, value, |b| b.put_slice(&buf))
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> BytesMut {
    assert_eq!(text.len() % 2, 0, "two digits for each byte");
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

/// Returns the only frame in the bytes.
pub fn frame_of(bytes: &[u8]) -> Frame {
    let mut frames = Vec::new();
    let mut assembler = Assembler::new(BODY_BYTES_MAX);
    assembler.feed(bytes, &mut frames).expect("a frame");
    assert!(assembler.is_between_frames() && frames.len() == 1);
    frames.remove(0)
}

fn frame(kind: u8, body: &[u8]) -> Frame {
    Frame { kind, correlation: 1, body: BytesMut::from(body) }
}

/// Returns the number of bytes at the end of a body that have no length field, if it ends with such bytes.
fn open_end(file: &str, vector: &Vector) -> Option<usize> {
    let name = &*vector.name;
    match file {
        "requests.txt" if name.starts_with("publish") => Some(draft().len()),
        "requests.txt" if name.starts_with("login") => Some(vector.bytes.len() - HEADER_BYTES - "__PLAIN".len()),
        "responses.txt" if name.starts_with("login") => Some(vector.bytes.len() - HEADER_BYTES - 1),
        "responses.txt" if name == "stats" => Some(vector.bytes.len() - HEADER_BYTES),
        "pushes.txt" if name.starts_with("deliver") => Some(batch(0).len()),
        _ => None,
    }
}

#[test]
fn every_value_has_exactly_these_bytes() {
    for family in families() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(family.file);
        let mut text = String::from("# Name; length, kind, flags, reserved, correlation id; body.\n\n");
        for Vector { name, shown, bytes } in &family.vectors {
            let fields = [0..4, 4..5, 5..6, 6..8, 8..12, 12..bytes.len()].map(|field| hex(&bytes[field]));
            let line = format!("{name} {}", fields.join(" "));
            write!(text, "# {shown}\n{}\n\n", line.trim_end()).expect("a string takes all");
        }
        text.truncate(text.trim_end().len() + 1);
        if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
            std::fs::write(&path, &text).expect("the vectors can be written");
        }
        let file = std::fs::read_to_string(&path).expect("the vectors");
        for (is, should) in text.lines().zip(file.lines()) {
            assert_eq!(is, should, "{}", family.file);
        }
        assert_eq!(text, file, "{}", family.file);
    }
}

#[test]
fn these_bytes_become_the_value_again() {
    for family in families() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(family.file);
        let file = std::fs::read_to_string(path).expect("the vectors");
        let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(lines.clone().count(), family.vectors.len());
        for (line, vector) in lines.zip(&family.vectors) {
            let (name, digits) = line.split_once(' ').expect("a name and its bytes");
            let bytes = from_hex(&digits.replace(' ', ""));
            let decoded = (family.decode)(frame_of(&bytes)).expect(name);
            assert_eq!((decoded.shown, decoded.again), (vector.shown.clone(), bytes), "{name}");
        }
    }
}

#[test]
fn every_kind_has_a_vector() {
    for family in families() {
        for kind in 0..=u8::MAX {
            let is_known = (family.decode)(frame(kind, &[])).map_err(|e| e.kind) != Err(ErrorKind::Unsupported);
            let has_vector = family.vectors.iter().any(|vector| vector.bytes[4] == kind);
            assert_eq!(is_known, has_vector, "{}: kind {kind:#04x}", family.file);
            if is_known {
                assert_eq!(Push::is_push(kind), family.file == "pushes.txt", "kind {kind:#04x}");
            }
        }
    }
}

#[test]
fn a_body_that_is_cut_or_too_long_is_refused() {
    for family in families() {
        for vector in &family.vectors {
            let name = &vector.name;
            let whole = frame_of(&vector.bytes);
            let open_end = open_end(family.file, vector);
            let decode = |body: &[u8]| (family.decode)(frame(whole.kind, body)).map_err(|error| error.kind);
            for length in 0..whole.body.len() {
                if open_end.is_some_and(|open_end| length + open_end >= whole.body.len()) {
                    assert!(decode(&whole.body[..length]).is_ok(), "{name} with {length} bytes");
                } else {
                    let refused = decode(&whole.body[..length]);
                    assert_eq!(refused, Err(ErrorKind::Malformed), "{name} with {length} bytes");
                }
            }
            let longer = decode(&[&whole.body[..], &[0]].concat());
            assert_eq!(longer.is_ok(), open_end.is_some(), "{name} with a byte too many");
        }
    }
}

#[test]
fn values_out_of_range_are_refused() {
    // File, vector, position in its body, and the bytes that replace the original ones.
    let cases: [(&str, &str, usize, &[u8]); 23] = [
        ("requests.txt", "hello", 0, b"HTTP"),
        ("requests.txt", "hello", 24, &[0xff]),
        ("requests.txt", "publish", 2, &[0xc0]),
        ("requests.txt", "publish", 15, &[4]),
        ("requests.txt", "subscribe_live", 18, &[5]),
        ("requests.txt", "subscribe_live", 19, &[5]),
        ("requests.txt", "subscribe_no_offsets", 19, &[0xff; 4]),
        ("responses.txt", "published_accepted", 12, &[0]),
        ("responses.txt", "published_accepted", 12, &[3]),
        ("responses.txt", "subscribed", 4, &[0x80, 0, 0, 0]),
        ("responses.txt", "stats", 0, &[0xff]),
        // The step, the assignor, the flag of a list, and its length.
        ("requests.txt", "group_join", 16, &[4]),
        ("requests.txt", "group_join", 31, &[2]),
        ("requests.txt", "group_alive", 25, &[2]),
        ("requests.txt", "group_alive_owned", 26, &[0xff; 4]),
        ("requests.txt", "offset_reset_forget", 24, &[2]),
        ("requests.txt", "offset_reset_forget", 25, &[6]),
        ("responses.txt", "group_described", 9, &[3]),
        ("responses.txt", "group_described", 14, &[2]),
        ("responses.txt", "groups", 0, &[2]),
        // The flags of settings, and the mode in the mesh.
        ("requests.txt", "topic_create_in_the_mesh", 32, &[0x31]),
        ("requests.txt", "topic_create_in_the_mesh", 33, &[5]),
        ("requests.txt", "topic_alter_mesh", 12, &[5]),
    ];
    for (file, name, at, instead) in cases {
        let family = families().into_iter().find(|family| family.file == file).expect(file);
        let vector = family.vectors.iter().find(|vector| vector.name == name).expect(name);
        let mut wrong = frame_of(&vector.bytes);
        wrong.body[at..at + instead.len()].copy_from_slice(instead);
        let decoded = (family.decode)(wrong).map_err(|error| error.kind);
        assert_eq!(decoded, Err(ErrorKind::Malformed), "{name} at {at}");
    }
    // A batch in a fetch is checked.
    let fetched = responses().into_iter().find(|vector| vector.name == "fetched").expect("a fetch");
    let mut damaged = frame_of(&fetched.bytes);
    let last = damaged.body.len() - 1;
    damaged.body[last] ^= 1;
    assert_eq!(Response::decode(damaged).map_err(|error| error.kind), Err(ErrorKind::Corrupt));
    // So is its position, which the checksum does not cover: after the log's bounds, the count and a length.
    let mut misplaced = frame_of(&fetched.bytes);
    misplaced.body[24] = 0x80;
    assert_eq!(Response::decode(misplaced).map_err(|error| error.kind), Err(ErrorKind::Malformed));
}

#[test]
fn many_of_the_smallest_entries_are_read() {
    let source = SourceInfo { topic: String::new(), partition: 0, start: 0, end: 0 };
    let topic = TopicInfo {
        topic: String::new(),
        settings: TopicSettings::default(),
        owner: String::new(),
        partitions: Vec::new(),
    };
    for response in [
        Response::Subscribed { subscription: 0, sources: vec![source; 100] },
        Response::Topics { topics: vec![topic; 100], is_last: true },
    ]
    .into_iter()
    .chain(smallest_groups().into_iter().map(Response::Group))
    {
        let mut buf = BytesMut::new();
        response.encode(1, &mut buf);
        assert_eq!(Response::decode(frame_of(&buf)), Ok(response));
    }
    let mut subscribe = Subscribe {
        subscription: 0,
        topic: String::new(),
        partition: None,
        start: Start::Live,
        overflow: Overflow::Replay,
        queue_batches: 0,
        group: String::new(),
        credit: 0,
        missing: Missing::Refuse,
    };
    for count in [0, 1, 100] {
        subscribe.start = Start::Offsets(vec![(0, 0); count]);
        let mut buf = BytesMut::new();
        Request::Subscribe(subscribe.clone()).encode(1, &mut buf);
        let Ok(Request::Subscribe(read)) = Request::decode(frame_of(&buf)) else { panic!("a subscribe") };
        assert_eq!(read, subscribe);
    }
}

fn smallest_groups() -> Vec<GroupResponse> {
    let state = GroupState::Empty;
    let assignor = Assignor::Uniform;
    let summary = GroupSummary { group: String::new(), state, members: 0, offsets: 0, lag: 0 };
    let member = MemberInfo {
        member: String::new(),
        instance: String::new(),
        client: String::new(),
        state: MemberState::Stable,
        epoch: 0,
        topics: vec![String::new(); 100],
    };
    let partition = GroupPartition { partition: 0, owner: None, committed: None, committed_ms: 0, start: 0, end: 0 };
    let offset = CommittedOffset { partition: 0, offset: 0, committed_ms: 0, metadata: String::new() };
    let info = |members, partitions| {
        GroupResponse::Described(GroupInfo { group: String::new(), state, epoch: 0, assignor, members, partitions })
    };
    vec![
        GroupResponse::Groups { groups: vec![summary; 100], is_last: true },
        info(vec![member; 100], Vec::new()),
        info(Vec::new(), vec![(String::new(), vec![partition; 100])]),
        GroupResponse::Offsets(vec![(String::new(), vec![offset; 100])]),
        GroupResponse::Turn { epoch: 0, assignment: Some(vec![(String::new(), Vec::new()); 100]) },
        GroupResponse::Reset(vec![(0, None); 100]),
    ]
}

#[test]
fn a_very_large_body_is_read_in_place_and_not_past_its_end() {
    let large = (512 << 10) + (20 << 10);
    let mut stream = BytesMut::new();
    put_frame(&mut stream, 1, 1, |body| body.put_bytes(1, large));
    put_frame(&mut stream, 2, 2, |body| body.put_bytes(2, 3));
    let mut frames = Vec::new();
    let mut assembler = Assembler::new(BODY_BYTES_MAX);
    let mut rest = stream.freeze();
    let mut places = 0;
    while !rest.is_empty() {
        if let Some(mut place) = assembler.large_rest() {
            place.put_slice(&rest.split_to(rest.len().min(place.remaining_mut())));
            places += 1;
            assembler.close_frame(&mut frames);
        } else {
            assembler.feed(&rest.split_to(rest.len().min(20)), &mut frames).expect("valid frames");
        }
    }
    let lengths: Vec<(u8, usize)> = frames.iter().map(|frame| (frame.kind, frame.body.len())).collect();
    assert_eq!((lengths, places), (vec![(1, large), (2, 3)], 2));
}

#[test]
fn an_error_of_a_later_version_asks_the_same_of_the_caller() {
    let read = |code: u16, class: u8| {
        let mut body = BytesMut::new();
        body.put_u16(code);
        body.put_u8(class);
        body.put_u32(5);
        body.put_u16(0);
        let answer = Response::decode(frame(0xff, &body));
        let Ok(Response::Error(error)) = answer else { panic!("no error: {answer:?}") };
        // The pushes that carry an error read it the same way.
        assert_eq!(Push::decode(frame(0x43, &body)), Ok(Push::GoAway { error: error.clone() }));
        assert_eq!((error.retry_after_ms, &*error.message), (5, ""));
        error.kind
    };
    let cases = [
        (RetryClass::Retry, ErrorKind::Corrupt),
        (RetryClass::RetryAfter, ErrorKind::Busy),
        (RetryClass::Redirect, ErrorKind::NotLeader),
        (RetryClass::OutcomeUnknown, ErrorKind::Internal),
        (RetryClass::Fatal, ErrorKind::Unsupported),
    ];
    for code in [0, 99, 999, u16::MAX] {
        for (class, kind) in cases {
            assert_eq!((read(code, class.code()), kind.retry_class()), (kind, class), "{code}");
        }
        // A class may itself be of a later version: then the outcome of the request is unknown.
        for class in [0, 6, u8::MAX] {
            assert_eq!(read(code, class), ErrorKind::Internal, "{code} of class {class}");
        }
    }
    // A known kind stays itself, whatever class comes with it.
    for kind in ErrorKind::ALL {
        for class in [0, 1, 5, u8::MAX] {
            assert_eq!(read(kind.code(), class), kind);
        }
    }
}

#[test]
fn a_long_message_is_cut() {
    let mut buf = BytesMut::new();
    Response::Error(Error::invalid("ä".repeat(600) + "x")).encode(1, &mut buf);
    assert_eq!(Response::decode(frame_of(&buf)), Ok(Response::Error(Error::invalid("ä".repeat(512)))));
    buf.clear();
    Response::Error(Error::invalid(format!("x{}", "ä".repeat(600)))).encode(1, &mut buf);
    assert_eq!(Response::decode(frame_of(&buf)), Ok(Response::Error(Error::invalid(format!("x{}", "ä".repeat(511))))));
}

/// The names that brokers accept are shorter; the frame stays well formed whatever a caller passes.
#[test]
fn a_text_too_long_for_its_length_loses_its_end() {
    let most = usize::from(u16::MAX);
    let ends = "and what comes after it";
    let cases = [
        ("x".repeat(most), most),
        ("x".repeat(most + 1), most),
        ("x".repeat(most) + ends, most),
        ("x".repeat(4 * most), most),
        // Characters stay whole: with two bytes each, the length holds one byte less.
        ("ä".repeat(most), most - 1),
        ("x".to_owned() + &"ä".repeat(most), most),
        ("€".repeat(most), most),
        ("x".to_owned() + &"€".repeat(most), most - 2),
        ("🦀".repeat(most), most - 3),
    ];
    for (text, length) in cases {
        let source = |topic: &str| SourceInfo { topic: topic.into(), partition: 1, start: 2, end: 3 };
        let answer = |topic| Response::Subscribed { subscription: 4, sources: vec![source(topic), source("t")] };
        let mut buf = BytesMut::new();
        answer(&text).encode(1, &mut buf);
        assert_eq!(Response::decode(frame_of(&buf)), Ok(answer(&text[..length])));

        buf.clear();
        Request::TopicList { after: text.clone(), count_max: 5 }.encode(1, &mut buf);
        let Ok(Request::TopicList { after, count_max }) = Request::decode(frame_of(&buf)) else {
            panic!("a list of topics")
        };
        assert_eq!((&*after, count_max), (&text[..length], 5));

        // A frame that is written in two parts has one length.
        let bytes = draft().into_bytes();
        buf.clear();
        put_deliver_head(&mut buf, 1, 2, &text, bytes.len());
        buf.put_slice(&bytes);
        let topic = text[..length].to_owned();
        let deliver = Push::Deliver { subscription: 1, partition: 2, topic, batch: bytes };
        assert_eq!(Push::decode(frame_of(&buf)), Ok(deliver));
    }
}

#[test]
fn the_pieces_for_vectored_writes_are_the_same_bytes() {
    let bytes = draft().into_bytes();
    let mut whole = BytesMut::new();
    let batch = BytesMut::from(&bytes[..]);
    Request::Publish { topic: "t".into(), partition: None, acks: Acks::Default, batch }.encode(9, &mut whole);
    assert_eq!(publish_frame(9, "t", None, Acks::Default, bytes.clone()).concat(), whole);

    let mut whole = BytesMut::new();
    let mut head = BytesMut::new();
    Push::Deliver { subscription: 1, partition: 2, topic: "t".into(), batch: bytes.clone() }.encode(&mut whole);
    put_deliver_head(&mut head, 1, 2, "t", bytes.len());
    assert_eq!([head.freeze(), bytes].concat(), whole);
}

/// Decodes, and if that succeeds, decodes the encoding of the result: the value must stay the same.
fn assert_survives(decode: fn(Frame) -> Result<Decoded>, kind: u8, body: &[u8]) {
    if let Ok(decoded) = decode(frame(kind, body)) {
        assert_eq!(decode(frame_of(&decoded.again)).as_ref(), Ok(&decoded));
    }
}

proptest! {
    #[test]
    fn any_body_of_any_kind_is_survived(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for family in families() {
            for kind in 0..=u8::MAX {
                assert_survives(family.decode, kind, &body);
            }
        }
    }

    #[test]
    fn a_vector_with_some_bytes_changed_is_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for family in families() {
            for vector in &family.vectors {
                let mut changed = frame_of(&vector.bytes);
                let length = changed.body.len();
                for (at, byte) in changes.iter().filter(|_| length > 0) {
                    changed.body[at.index(length)] = *byte;
                }
                assert_survives(family.decode, changed.kind, &changed.body);
            }
        }
    }

    #[test]
    fn frames_are_the_same_however_the_stream_is_cut(
        sent in prop::collection::vec(
            (any::<u8>(), any::<u32>(), prop_oneof![4 => 0usize..40, 1 => 0usize..70_000]),
            1..8,
        ),
        cuts in prop::collection::vec(prop_oneof![1usize..30, 1usize..30_000], 1..20),
    ) {
        let mut stream = BytesMut::new();
        for (kind, correlation, length) in &sent {
            put_frame(&mut stream, *kind, *correlation, |body| body.put_bytes(*kind, *length));
        }
        let mut frames = Vec::new();
        let mut assembler = Assembler::new(BODY_BYTES_MAX);
        let mut rest = Bytes::from(stream);
        let mut cuts = cuts.into_iter().cycle();
        while !rest.is_empty() {
            let mut part = rest.split_to(cuts.next().expect("endless").min(rest.len()));
            // Like a socket: directly into a large body if there is one, otherwise through a buffer.
            if let Some(mut place) = assembler.large_rest() {
                place.put_slice(&part.split_to(part.len().min(place.remaining_mut())));
                assembler.close_frame(&mut frames);
            }
            assembler.feed(&part, &mut frames).expect("valid frames");
        }
        prop_assert!(assembler.is_between_frames());
        let expected: Vec<Frame> = sent
            .iter()
            .map(|(kind, correlation, length)| {
                let body = BytesMut::from(&vec![*kind; *length][..]);
                Frame { kind: *kind, correlation: *correlation, body }
            })
            .collect();
        prop_assert!(frames == expected);
    }
}

/// Reads the answer to a request that another broker has to answer.
fn read_redirect(code: u16, message: &str) -> Error {
    let mut body = BytesMut::new();
    body.put_u16(code);
    body.put_u8(RetryClass::Redirect.code());
    body.put_u32(0);
    body.put_u16(message.len() as u16);
    body.put_slice(message.as_bytes());
    match Response::decode(frame(0xff, &body)) {
        Ok(Response::Error(error)) => error,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn a_redirect_has_the_address_in_the_first_line_of_its_message() {
    let long = "x".repeat(1 << 15);
    let cases = [
        ("b.example:7400\nwhy", Some("b.example:7400"), "why"),
        ("b.example:7400\n", Some("b.example:7400"), ""),
        ("b.example:7400\nwhy\nand how", Some("b.example:7400"), "why\nand how"),
        ("\nwhy", None, "why"),
        // Another implementation may leave the line out, or send a line that is no address.
        ("why", None, "why"),
        ("", None, ""),
        ("b.\texample\nwhy", None, "b.\texample\nwhy"),
        (&format!("{long}\nwhy"), None, &format!("{long}\nwhy")),
    ];
    // The kind of this version and one of a later version.
    for code in [ErrorKind::NotLeader.code(), 999] {
        for (sent, address, message) in cases {
            let error = read_redirect(code, sent);
            assert_eq!((error.kind, error.retry_class()), (ErrorKind::NotLeader, RetryClass::Redirect));
            assert_eq!((error.redirect.as_deref(), &*error.message), (address, message), "{sent:?}");
        }
    }
    // Only redirects have an address.
    let mut body = BytesMut::new();
    Response::Error(Error::busy("b.example:7400\nwhy")).encode(1, &mut body);
    let read = Response::decode(frame_of(&body));
    assert_eq!(read, Ok(Response::Error(Error::busy("b.example:7400\nwhy"))));
}

#[test]
fn an_address_that_cannot_be_sent_is_left_out_of_a_redirect() {
    let long = "x".repeat(273);
    for address in ["", "b.example:7400\nc.example:7400", &long] {
        let mut bytes = BytesMut::new();
        Response::Error(Error::not_leader("why", Some(address))).encode(1, &mut bytes);
        assert_eq!(
            Response::decode(frame_of(&bytes)),
            Ok(Response::Error(Error::not_leader("why", None))),
            "{address}"
        );
    }
    // The end of a long message is cut off, and never the address.
    let error = Error::not_leader("y".repeat(2000), Some("b.example:7400"));
    let mut bytes = BytesMut::new();
    Push::Ended { subscription: 3, error }.encode(&mut bytes);
    let Ok(Push::Ended { error, .. }) = Push::decode(frame_of(&bytes)) else { panic!("no end") };
    assert_eq!((error.redirect.as_deref(), error.message.len()), (Some("b.example:7400"), 1024 - 15));
}
