//! Frames between nodes: what is encoded decodes, and nothing else does.

use std::num::NonZeroU32;

use bytes::{Bytes, BytesMut};
use cluster::link::{Block, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, Frame, Hello, Part, Purpose, Refusal, Row, Spliced};
use consensus::{Body, Change, Entry, Kind, Members, Message, Point, Position, Step};
use engine::shard::ShardId;
use engine::{ErrorKind, Result};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use storage::EntryKind;

const FROM: u64 = 1;
const TO: u64 = 2;

fn encode(frame: &Frame) -> Bytes {
    Bytes::from(frame.encode().concat())
}

fn decode(bytes: &Bytes, is_known: bool) -> Result<Frame> {
    let head: [u8; FRAME_HEAD_BYTES] = bytes[..FRAME_HEAD_BYTES].try_into().expect("a head");
    let length = Frame::body_bytes(head, is_known)?;
    assert_eq!(length, bytes.len() - FRAME_HEAD_BYTES);
    Frame::decode(head[4], bytes.slice(FRAME_HEAD_BYTES..), FROM, TO)
}

fn hello() -> Hello {
    hello_for(Purpose::Beats)
}

fn hello_for(purpose: Purpose) -> Hello {
    Hello { cluster: 7 << 100, node: 3, process: 0xfeed, program: "thalweg 1.2.3".to_owned(), purpose }
}

fn position() -> impl Strategy<Value = Position> {
    (any::<u64>(), 0..u64::MAX / 2).prop_map(|(term, index)| Position { term, index })
}

fn row() -> impl Strategy<Value = Row> {
    let kind = prop::sample::select(vec![EntryKind::Batch, EntryKind::Catalog, EntryKind::Start, EntryKind::View]);
    (kind, any::<u64>(), vec(any::<u8>(), 0..40)).prop_map(|(kind, stream, body)| Row::new(kind, stream, body.into()))
}

fn change() -> impl Strategy<Value = Change> {
    let step = (0..3_u8, any::<u64>()).prop_map(|(kind, node)| match kind {
        0 => Step::AddVoter(node),
        1 => Step::AddLearner(node),
        _ => Step::Remove(node),
    });
    vec(step, 0..4).prop_map(|steps| Change { steps })
}

/// An entry without its index, and its block.
fn entry() -> impl Strategy<Value = (u64, Body, Option<Block>)> {
    let block = vec(row(), 1..5).prop_map(|rows| Block::new(rows).expect("rows"));
    prop_oneof![
        any::<u64>().prop_map(|term| (term, Body::Empty, None)),
        (any::<u64>(), block).prop_map(|(term, block)| (term, Body::Block(block.size()), Some(block))),
        (any::<u64>(), change()).prop_map(|(term, change)| (term, Body::Members(change), None)),
    ]
}

fn members() -> impl Strategy<Value = Members> {
    let nodes = || btree_set(any::<u64>(), 0..4);
    (nodes(), nodes(), nodes(), nodes(), any::<bool>()).prop_map(
        |(voters, learners, outgoing, learners_next, leaves_joint)| Members {
            voters,
            learners,
            outgoing,
            learners_next,
            leaves_joint,
        },
    )
}

fn kind() -> impl Strategy<Value = (Kind, Vec<Block>)> {
    let append = (position(), any::<u64>(), vec(entry(), 0..5)).prop_map(|(prev, commit, entries)| {
        let mut blocks = Vec::new();
        let entries = (prev.index + 1..).zip(entries).map(|(index, (term, body, block))| {
            blocks.extend(block);
            Entry { position: Position { term, index }, body }
        });
        let entries = entries.collect();
        (Kind::Append { prev, commit, entries }, blocks)
    });
    let appended = (any::<u64>(), any::<u64>(), prop::option::of(position()))
        .prop_map(|(index, commit, hint)| Kind::Appended { index, commit, hint });
    let vote = (any::<bool>(), any::<bool>(), position(), position())
        .prop_map(|(is_pre, is_transfer, last, commit)| Kind::Vote { is_pre, is_transfer, last, commit });
    let voted = (any::<bool>(), any::<bool>(), position()).prop_map(|(is_pre, is_granted, commit)| Kind::Voted {
        is_pre,
        is_granted,
        commit,
    });
    let beat = (any::<u64>(), any::<u64>(), prop::option::of(any::<u64>()), any::<bool>()).prop_map(
        |(commit, sent, read, is_answer)| {
            if is_answer { Kind::BeatAnswer { commit, sent, read } } else { Kind::Beat { commit, sent, read } }
        },
    );
    let install = (position(), members()).prop_map(|(position, members)| Kind::Install(Point { position, members }));
    let others = prop_oneof![appended, vote, voted, beat, install, Just(Kind::Lead)];
    prop_oneof![append, others.prop_map(|kind| (kind, Vec::new()))]
}

fn parts() -> impl Strategy<Value = Frame> {
    let part = (any::<u16>(), any::<u64>(), kind()).prop_map(|(shard, term, (kind, blocks))| Part {
        shard: ShardId::new(shard),
        message: Message { from: FROM, to: TO, term, kind },
        blocks,
    });
    vec(part, 0..4).prop_map(Frame::Parts)
}

proptest! {
    #[test]
    fn encoded_parts_decode(frame in parts()) {
        prop_assert_eq!(decode(&encode(&frame), true), Ok(frame));
    }

    #[test]
    fn a_part_knows_its_size(frame in parts()) {
        let Frame::Parts(parts) = &frame else { unreachable!("parts") };
        let bytes: usize = parts.iter().map(Part::encoded_bytes).sum();
        prop_assert_eq!(FRAME_HEAD_BYTES + bytes, encode(&frame).len());
    }

    /// A part ends where its fields end, so a cut between two parts is a shorter frame.
    #[test]
    fn a_frame_that_is_cut_is_refused_or_has_fewer_parts(frame in parts(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&frame);
        let body = bytes.slice(FRAME_HEAD_BYTES..);
        if !body.is_empty() {
            let (Frame::Parts(parts), at) = (&frame, cut.index(body.len())) else { unreachable!("parts") };
            if let Ok(Frame::Parts(fewer)) = Frame::decode(3, body.slice(..at), FROM, TO) {
                prop_assert!(fewer.len() < parts.len());
                prop_assert_eq!(&fewer[..], &parts[..fewer.len()]);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_refused(kind in 0..5_u8, bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(frame) = Frame::decode(kind, bytes.clone().into(), FROM, TO) {
            let again = encode(&frame);
            prop_assert_eq!(&again[FRAME_HEAD_BYTES..], &bytes[..]);
        }
    }
}

#[test]
fn nodes_say_who_they_are() {
    let frame = Frame::Hello(hello());
    let bytes = encode(&frame);
    assert_eq!(decode(&bytes, false), Ok(frame));
    assert_eq!(decode(&bytes, true).expect_err("a second hello").kind, ErrorKind::Malformed);
    let refusal = Frame::Refusal(Refusal::new("node 3 is no member of this cluster"));
    for is_known in [false, true] {
        assert_eq!(decode(&encode(&refusal), is_known), Ok(refusal.clone()));
    }
    let early = encode(&Frame::Parts(Vec::new()));
    assert_eq!(decode(&early, false).expect_err("before the hello").kind, ErrorKind::Malformed);
}

#[test]
fn only_a_program_that_joins_has_no_number() {
    let nobody = |purpose| encode(&Frame::Hello(Hello { node: 0, ..hello_for(purpose) }));
    assert!(decode(&nobody(Purpose::Join), false).is_ok());
    assert_eq!(decode(&nobody(Purpose::Entries), false).expect_err("node 0").kind, ErrorKind::Malformed);
}

#[test]
fn another_version_is_named() {
    let mut bytes = BytesMut::from(&encode(&Frame::Hello(hello()))[..]);
    bytes[FRAME_HEAD_BYTES + 1] = 9;
    let refused = decode(&bytes.freeze(), false).expect_err("version 9");
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert!(refused.message.contains("version 9"), "{refused}");
}

#[test]
fn a_length_is_limited_before_anything_is_read() {
    let head = |length: u32, kind: u8| {
        let [a, b, c, d] = length.to_be_bytes();
        [a, b, c, d, kind, 0, 0, 0]
    };
    assert_eq!(Frame::body_bytes(head(FRAME_BYTES_MAX as u32, 3), true), Ok(FRAME_BYTES_MAX));
    assert_eq!(
        Frame::body_bytes(head(FRAME_BYTES_MAX as u32 + 1, 3), true).map_err(|e| e.kind),
        Err(ErrorKind::TooLarge)
    );
    assert_eq!(Frame::body_bytes(head(4096, 1), false).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
    // The beginning of an HTTP request.
    assert!(Frame::body_bytes(*b"GET / HT", false).is_err());
}

#[test]
fn a_damaged_row_is_noticed() {
    let row = Row::new(EntryKind::Batch, 7, Bytes::from_static(b"records"));
    let block = Block::new(vec![row]).expect("a row");
    let entries = vec![Entry { position: Position { term: 1, index: 2 }, body: Body::Block(block.size()) }];
    let kind = Kind::Append { prev: Position { term: 1, index: 1 }, commit: 1, entries };
    let message = Message { from: FROM, to: TO, term: 1, kind };
    let frame = Frame::Parts(vec![Part { shard: ShardId::FIRST, message, blocks: vec![block] }]);
    let mut bytes = BytesMut::from(&encode(&frame)[..]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert_eq!(decode(&bytes.freeze(), true).expect_err("damaged").kind, ErrorKind::Malformed);
}

/// Small entries fit into one message in large numbers.
#[test]
fn a_message_has_more_entries_than_two_bytes_count() {
    let entry = |index| Entry { position: Position { term: 1, index }, body: Body::Empty };
    let entries = (2..70_002).map(entry).collect();
    let kind = Kind::Append { prev: Position { term: 1, index: 1 }, commit: 1, entries };
    let message = Message { from: FROM, to: TO, term: 1, kind };
    let frame = Frame::Parts(vec![Part { shard: ShardId::FIRST, message, blocks: Vec::new() }]);
    assert_eq!(decode(&encode(&frame), true), Ok(frame));
}

#[test]
fn bodies_are_shared_and_not_copied() {
    let body = Bytes::from(vec![1; 1000]);
    let block = Block::new(vec![Row::new(EntryKind::Batch, 7, body.clone())]).expect("a row");
    assert_eq!(block.size(), NonZeroU32::new(1017).expect("a size"));
    let entries = vec![Entry { position: Position { term: 1, index: 2 }, body: Body::Block(block.size()) }];
    let kind = Kind::Append { prev: Position { term: 1, index: 1 }, commit: 1, entries };
    let message = Message { from: FROM, to: TO, term: 1, kind };
    let chunks = Frame::Parts(vec![Part { shard: ShardId::FIRST, message, blocks: vec![block] }]).encode();
    assert!(chunks.iter().any(|chunk| chunk.as_ptr() == body.as_ptr() && chunk.len() == body.len()));
    assert_eq!(Block::new(Vec::new()), None);
}

/// One frame of each kind, and of each kind of part.
fn vectors() -> Vec<(&'static str, Frame)> {
    let at = |term, index| Position { term, index };
    let part = |kind, blocks| {
        let message = Message { from: FROM, to: TO, term: 9, kind };
        Frame::Parts(vec![Part { shard: ShardId::new(258), message, blocks }])
    };
    let rows = vec![
        Row::new(EntryKind::Batch, 7, Bytes::from_static(b"records")),
        Row::new(EntryKind::Start, 7, Bytes::from_static(&[5, 0, 0, 0, 0, 0, 0, 0])),
    ];
    let block = Block::new(rows).expect("rows");
    let steps = vec![Step::AddVoter(4), Step::AddLearner(5), Step::Remove(1)];
    let bodies = [Body::Empty, Body::Block(block.size()), Body::Members(Change { steps })];
    let entries = (6..).zip(bodies).map(|(index, body)| Entry { position: at(9, index), body }).collect();
    let members = Members {
        learners: [4].into(),
        outgoing: [1, 2].into(),
        learners_next: [1].into(),
        leaves_joint: true,
        ..Members::of_voters([2, 3])
    };
    let beat = |read| Kind::Beat { commit: 5, sent: 77, read };
    let spliced = Spliced { door: 2, peer: "[2001:db8::1]:40000".to_owned(), is_owner: true };
    vec![
        ("hello_beats", Frame::Hello(hello())),
        ("hello_entries", Frame::Hello(hello_for(Purpose::Entries))),
        ("hello_bulk", Frame::Hello(hello_for(Purpose::Bulk))),
        ("hello_splice", Frame::Hello(hello_for(Purpose::Splice(spliced)))),
        ("hello_join", Frame::Hello(Hello { cluster: 0, node: 0, process: 0, ..hello_for(Purpose::Join) })),
        ("refusal", Frame::Refusal(Refusal::new("node 3 is no member"))),
        ("refusal_removed", Frame::Refusal(Refusal { is_removed: true, ..Refusal::new("node 3 was removed") })),
        ("append", part(Kind::Append { prev: at(8, 5), commit: 4, entries }, vec![block])),
        ("append_empty", part(Kind::Append { prev: at(8, 5), commit: 5, entries: Vec::new() }, Vec::new())),
        ("appended", part(Kind::Appended { index: 8, commit: 5, hint: None }, Vec::new())),
        ("appended_not", part(Kind::Appended { index: 8, commit: 5, hint: Some(at(7, 3)) }, Vec::new())),
        ("vote", part(Kind::Vote { is_pre: true, is_transfer: false, last: at(8, 5), commit: at(8, 4) }, Vec::new())),
        ("voted", part(Kind::Voted { is_pre: false, is_granted: true, commit: at(0, 0) }, Vec::new())),
        ("beat", part(beat(None), Vec::new())),
        ("beat_read", part(beat(Some(3)), Vec::new())),
        ("beat_answer", part(Kind::BeatAnswer { commit: 5, sent: 77, read: Some(3) }, Vec::new())),
        ("install", part(Kind::Install(Point { position: at(8, 5), members }), Vec::new())),
        ("lead", part(Kind::Lead, Vec::new())),
    ]
}

/// The bytes are fixed: nodes of two versions have to understand each other during an update.
/// `UPDATE=1 cargo test -p thalweg-cluster` writes the file again after an intended change.
#[test]
fn the_bytes_of_each_frame_are_those_of_the_vectors() {
    let mut text = "# Name, and the frame: its head and its body.\n".to_owned();
    for (name, frame) in vectors() {
        let bytes = encode(&frame);
        let is_known = matches!(frame, Frame::Parts(_));
        assert_eq!(decode(&bytes, is_known), Ok(frame), "{name}");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (head, body) = bytes.split_at(FRAME_HEAD_BYTES);
        text += &format!("{name} {} {}\n", hex(head), hex(body));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/frames.txt");
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
        std::fs::write(&path, &text).expect("the vectors can be written");
    }
    let file = std::fs::read_to_string(&path).expect("the vectors");
    for (is, should) in text.lines().zip(file.lines()) {
        assert_eq!(is, should);
    }
    assert_eq!(text, file);
}
