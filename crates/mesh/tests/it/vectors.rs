//! The bytes between two sites: those of each frame are fixed, since sites of two versions have to understand each
//! other.

use bytes::{Bytes, BytesMut};
use engine::mesh::{Groups, ListenedTopics, Member, SiteKey, SiteListener, SiteRole};
use engine::{TopicId, TopicName};
use mesh::frame::{
    BATCH_HEAD_BYTES, BatchHead, Frame, Head, NEXT_OFFSET_MAX, Origin, Refusal, STEP_BYTES, Step, StepKind, VERSION,
};

use crate::support::name;

fn member(address: Option<&str>, is_removed: bool) -> Member {
    let key = SiteKey::new(std::array::from_fn(|at| at as u8));
    let role = if is_removed { SiteRole::Leaf } else { SiteRole::Hub };
    Member {
        site: name("oslo"),
        key,
        role,
        address: address.map(str::to_owned),
        version: 1_800_000_000_000,
        is_removed,
    }
}

fn listeners() -> Vec<SiteListener> {
    let listener = |topics: engine::Result<ListenedTopics>, group| {
        SiteListener::new(topics.expect("topics"), group).expect("valid")
    };
    vec![
        listener(ListenedTopics::parse("prices.eu"), Some("workers")),
        listener(ListenedTopics::parse("prices.>"), None),
        listener(ListenedTopics::glob("news_x3a_*"), None),
    ]
}

/// One control frame of each kind.
fn frames() -> Vec<(&'static str, Frame)> {
    let topic = TopicName::parse("prices.eu").expect("a name");
    let sites = vec![name("a"), name("plant-7")];
    let relayed = |frame| Frame::Relayed { from: name("a"), to: name("plant-7"), frame: Box::new(frame) };
    let addresses = "oslo.example:7403,[2001:db8::1]:7403";
    vec![
        ("hello", Frame::Hello { version: VERSION, instance: 7, member: member(None, false) }),
        (
            "join",
            Frame::Join { version: VERSION, secret: [3; 16], instance: 7, member: member(Some(addresses), false) },
        ),
        ("sites", Frame::Sites(vec![member(None, true), member(Some("a:1"), false)])),
        ("sites_none", Frame::Sites(Vec::new())),
        ("linked", Frame::Linked(sites.clone())),
        ("advertise", Frame::Advertise { epoch: 7, topic: topic.clone(), ttl_ms: 120_000 }),
        ("withdraw", Frame::Withdraw { epoch: 7, topic: topic.clone() }),
        ("look_up", Frame::LookUp { id: 9, topic: topic.clone(), watch_ms: 120_000 }),
        ("found", Frame::Found { id: 9, sites: sites.clone() }),
        ("changed", Frame::Changed { topic: topic.clone(), sites }),
        ("offered", Frame::Offered(vec![topic.clone(), TopicName::parse("b").expect("a name")])),
        (
            "copy",
            Frame::Copy { run: 7, topic: topic.clone(), id: Some(TopicId::new(5, 6)), ends: vec![0, u64::MAX - 1] },
        ),
        ("copy_new", Frame::Copy { run: 7, topic: topic.clone(), id: None, ends: Vec::new() }),
        (
            "refused",
            Frame::Refused { run: 7, topic: topic.clone(), reason: Refusal::Another, text: "it has".to_owned() },
        ),
        ("listening", Frame::Listening { generation: 7 << 20, listeners: listeners() }),
        ("listening_none", Frame::Listening { generation: 1, listeners: Vec::new() }),
        ("begun", Frame::Begun { run: 7, topic: topic.clone() }),
        ("advertised", Frame::Advertised { epoch: 7, topics: 3 }),
        ("relayed", relayed(Frame::LookUp { id: 9, topic, watch_ms: 1 })),
    ]
}

/// Kinds of the steps of a copy, with the lengths of their batches.
const STEPS: [(StepKind, usize); 3] = [(StepKind::Batch, 61), (StepKind::Skipped, 0), (StepKind::Lost, 0)];

/// Head of a live topic, and of a copy.
fn heads() -> [(&'static str, Head); 3] {
    let topic = TopicName::parse("prices.eu").expect("a name");
    let (is_confirmed, groups) = (false, Groups::All);
    let live = Head { from: name("a"), run: 7, to: name("plant-7"), topic, origin: None, is_confirmed, groups };
    let origin = Some(Origin { id: TopicId::new(5, 6), partitions: 258 });
    let groups = Groups::named(vec!["audit".into(), "workers".into()]);
    [
        ("head", live.clone()),
        ("head_copy", Head { origin, ..live.clone() }),
        ("head_groups", Head { is_confirmed: true, groups, ..live }),
    ]
}

/// `UPDATE=1 cargo test -p thalweg-mesh` writes the file again after an intended change.
#[test]
fn the_bytes_of_each_frame_are_those_of_the_vectors() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut text =
        "# Name; 00 for a control frame, 01 for a head, 02 for an entry, 03 for a step of a copy; bytes.\n".to_owned();
    for (name, frame) in frames() {
        let mut bytes = BytesMut::new();
        frame.put(&mut bytes);
        assert_eq!(bytes[..4], ((bytes.len() - 4) as u32).to_be_bytes());
        let body = bytes.freeze().slice(4..);
        assert_eq!(Frame::decode(body.clone()), Ok(frame), "{name}");
        for cut in 1..body.len() {
            // A list ends with its frame, so a shorter one may be valid.
            if let Ok(shorter) = Frame::decode(body.slice(..cut)) {
                let mut again = BytesMut::new();
                shorter.put(&mut again);
                assert_eq!(again[4..], body[..cut], "{name}");
            }
        }
        text += &format!("{name} 00 {}\n", hex(&body));
    }
    for (name, head) in heads() {
        let mut bytes = BytesMut::new();
        head.put(&mut bytes);
        let body = bytes.freeze().slice(2..);
        assert_eq!(Head::decode(body.clone()), Ok(head), "{name}");
        assert!((0..body.len()).all(|cut| Head::decode(body.slice(..cut)).is_err()), "{name}");
        text += &format!("{name} 01 {}\n", hex(&body));
    }
    for (kind, length) in STEPS {
        let mut bytes = BytesMut::new();
        Step { kind, length, partition: 258, next: 1 << 40, end: (1 << 40) + 7 }.put(&mut bytes);
        text += &format!("step_{} 03 {}\n", kind as u8, hex(&bytes));
    }
    text += &format!("entry 02 {}\n", hex(&member(Some("a:1"), false).encode()));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/frames.txt");
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
        std::fs::write(&path, &text).expect("the vectors can be written");
    }
    assert_eq!(text, std::fs::read_to_string(&path).expect("the vectors"));
}

#[test]
fn a_frame_is_relayed_once_and_unknown_kinds_are_refused() {
    let inner = Frame::Found { id: 1, sites: Vec::new() };
    let once = Frame::Relayed { from: name("a"), to: name("b"), frame: Box::new(inner) };
    let twice = Frame::Relayed { from: name("a"), to: name("b"), frame: Box::new(once) };
    let mut bytes = BytesMut::new();
    twice.put(&mut bytes);
    assert!(Frame::decode(bytes.freeze().slice(4..)).is_err());
    for kind in (0..=u8::MAX).filter(|kind| !(1..=16).contains(kind)) {
        assert!(Frame::decode(Bytes::copy_from_slice(&[kind, 0, 0])).is_err(), "{kind}");
    }
    let head = BatchHead { length: 61, number: u64::MAX - 1, partition: 258 };
    let mut bytes = BytesMut::new();
    head.put(&mut bytes);
    let bytes: [u8; BATCH_HEAD_BYTES] = bytes[..].try_into().expect("its length");
    assert_eq!(BatchHead::decode(&bytes), head);
    for (kind, length) in STEPS {
        let step = Step { kind, length, partition: 258, next: NEXT_OFFSET_MAX, end: 7 };
        let mut bytes = BytesMut::new();
        step.put(&mut bytes);
        let mut bytes: [u8; STEP_BYTES] = bytes[..].try_into().expect("its length");
        assert_eq!(Step::decode(&bytes), Ok(step));
        let mut beyond = bytes;
        beyond[STEP_BYTES - 9] += 1;
        assert!(Step::decode(&beyond).is_err(), "an offset that no log reaches");
        bytes[4] ^= 61;
        assert!(Step::decode(&bytes).is_err(), "a batch has bytes, and only a batch");
        bytes[0] = 4;
        assert!(Step::decode(&bytes).is_err());
    }
}
