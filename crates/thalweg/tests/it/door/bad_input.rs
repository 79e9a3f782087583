//! Peers that violate the protocol: each receives an error, and other clients are not affected.

use bytes::{BufMut, BytesMut};
use client::{Acks, ErrorKind, Overflow, Start, TopicSettings};
use tokio::io::AsyncWriteExt;
use wire::frame::{BODY_BYTES_BEFORE_HELLO_MAX, BODY_BYTES_BEFORE_LOGIN_MAX, BODY_BYTES_MAX, HEADER_BYTES};
use wire::groups::OffsetReset;
use wire::negotiate::{Features, MAGIC, VERSION};
use wire::{CacheRequest, Frame, GroupRequest, Header, Request, Response};

use crate::support::bystander::Bystander;
use crate::support::raw::{Incoming, Raw, batch, encode, frame, hello, publish, subscribe};
use crate::support::server::{Server, within};

/// Returns the kind of the final error that the bytes cause, on a connection with or without a hello.
async fn last_words(server: &Server, said_hello: bool, bytes: &[u8]) -> ErrorKind {
    let mut raw = if said_hello { Raw::open(server.address).await } else { Raw::connect(server.address).await };
    raw.write(bytes).await;
    raw.last_words().await.expect("a reason").kind
}

/// Returns the kind of the error that a request causes, after which the connection still works.
async fn answered(raw: &mut Raw, bytes: &[u8], correlation: u32) -> ErrorKind {
    raw.write(bytes).await;
    let kind = match raw.answer(correlation).await {
        Response::Error(error) => error.kind,
        other => panic!("not refused: {other:?}"),
    };
    assert!(matches!(raw.call(&Request::Ping).await, Response::Pong), "the connection goes on");
    kind
}

fn header(length: u32, kind: u8) -> BytesMut {
    let mut buf = BytesMut::new();
    Header { length, kind, correlation: 1 }.put(&mut buf);
    buf
}

/// Returns one request of each kind, with every optional part.
fn requests() -> Vec<Request> {
    let mut subscription = subscribe("topic", Overflow::Replay, 8, 1 << 20);
    subscription.start = Start::Offsets(vec![(0, 1), (1, 2)]);
    subscription.group = "group".to_owned();
    vec![
        hello(),
        publish("topic", Acks::Accepted, &[b"one", b"two"]),
        Request::Subscribe(subscription),
        Request::Unsubscribe { subscription: 1 },
        Request::Credit { subscription: 1, bytes: 1 },
        Request::Fetch { topic: "topic".into(), partition: 0, offset: 0, bytes_max: 1, wait_ms: 0 },
        Request::TopicCreate { topic: "topic".into(), settings: TopicSettings::default() },
        Request::TopicDelete { topic: "topic".into() },
        Request::TopicDescribe { topic: "topic".into() },
        Request::TopicList { after: "topic".into(), count_max: 1 },
        Request::TopicGrow { topic: "topic".into(), partitions: 2 },
        Request::RecordsDelete { topic: "topic".into(), partition: 0, before: 0 },
    ]
}

/// A frame that is truncated by the end of its connection counts as a peer that disconnected.
#[tokio::test]
async fn a_truncated_frame_is_a_peer_that_left() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    for request in requests() {
        let bytes = encode(&request, 1);
        for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, bytes.len() - 1] {
            for said_hello in [false, true] {
                let mut raw =
                    if said_hello { Raw::open(server.address).await } else { Raw::connect(server.address).await };
                raw.write(&bytes[..cut]).await;
                raw.socket.shutdown().await.expect("closed");
                assert!(matches!(raw.incoming().await, Incoming::Closed));
            }
        }
    }
    bystander.is_unharmed().await;
}

/// A frame whose header announces a length beyond the limit is refused immediately; before the hello the limit is
/// lower.
#[tokio::test]
async fn an_oversized_frame_is_refused() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let before = BODY_BYTES_BEFORE_HELLO_MAX as u32;
    for (said_hello, length) in
        [(false, before + 1), (false, u32::MAX), (true, BODY_BYTES_MAX as u32 + 1), (true, u32::MAX)]
    {
        let kind = last_words(&server, said_hello, &header(length, 0x0c)).await;
        assert_eq!(kind, ErrorKind::TooLarge, "{said_hello} {length}");
    }
    // The broker waits for a body that is within the limit, but larger than the memory that it reserves in advance.
    let mut raw = Raw::open(server.address).await;
    raw.write(&header(BODY_BYTES_MAX as u32, 0x0c)).await;
    bystander.is_unharmed().await;
}

/// Before the login, frames are limited as well.
#[tokio::test]
async fn a_large_frame_before_the_login_is_refused() {
    let server = Server::with(&["auth=required", "users=bob:secret"]);
    let mut bystander = Bystander::of(&server).await;
    let max = BODY_BYTES_BEFORE_LOGIN_MAX as u32;
    for length in [max + 1, BODY_BYTES_MAX as u32] {
        let kind = last_words(&server, true, &header(length, 0x0c)).await;
        assert_eq!(kind, ErrorKind::TooLarge, "{length}");
    }
    let mut raw = Raw::open(server.address).await;
    let long = Request::TopicDescribe { topic: "y".repeat(60_000) };
    raw.write(&encode(&long, 7)).await;
    assert!(matches!(raw.answer(7).await, Response::Error(error) if error.kind == ErrorKind::Denied));
    bystander.is_unharmed().await;
}

/// A list has a maximum of entries, also of entries without contents, and starts and resets have no more partitions
/// than a topic.
#[tokio::test]
async fn a_list_with_too_many_entries_is_refused() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    let keys = vec![Vec::new().into(); (1 << 18) + 1];
    let get = Request::Cache(CacheRequest::MultiGet { cache: 1, keys });
    assert_eq!(answered(&mut raw, &encode(&get, 700), 700).await, ErrorKind::TooLarge);
    let reset = |partitions, to| {
        let (group, topic) = ("g".into(), "t".into());
        Request::Group(GroupRequest::Reset(OffsetReset { group, topic, partitions, to: Some(to), is_dry_run: true }))
    };
    let mut far = subscribe("t", Overflow::Replay, 8, 1 << 20);
    far.start = Start::Offsets(vec![(0, 1); 1025]);
    let refused = [reset(vec![0; 1025], Start::Live), reset(vec![0], far.start.clone()), Request::Subscribe(far)];
    for request in refused {
        assert_eq!(answered(&mut raw, &encode(&request, 700), 700).await, ErrorKind::TooLarge, "{request:?}");
    }
    let allowed = reset(vec![0; 1024], Start::Offsets(vec![(0, 1); 1024]));
    assert_eq!(answered(&mut raw, &encode(&allowed, 700), 700).await, ErrorKind::NotFound, "there is no topic");
    bystander.is_unharmed().await;
}

/// Every unknown flag or reserved bit is refused, in the header of each request.
#[tokio::test]
async fn unknown_flags_and_reserved_bits_are_refused() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    for said_hello in [false, true] {
        for bit in 0..24 {
            let request = if said_hello { Request::Ping } else { hello() };
            let mut bytes = encode(&request, 1);
            bytes[5 + bit / 8] |= 1 << (bit % 8);
            assert_eq!(last_words(&server, said_hello, &bytes).await, ErrorKind::Unsupported, "bit {bit}");
        }
    }
    bystander.is_unharmed().await;
}

/// An unknown kind of request is refused, and the connection continues.
#[tokio::test]
async fn unknown_kinds_are_refused() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    for kind in (0..=u8::MAX).filter(|kind| !matches!(kind, 0x01..=0x3f | 0x60..=0x63)) {
        let bytes = frame(kind, 1_000 + u32::from(kind), b"anything");
        assert_eq!(answered(&mut raw, &bytes, 1_000 + u32::from(kind)).await, ErrorKind::Unsupported, "{kind:#x}");
    }
    bystander.is_unharmed().await;
}

/// A hello must have the magic, the version, and no unknown requirement; unknown offers are allowed.
#[tokio::test]
async fn a_hello_that_does_not_fit_is_refused() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let hello_of = |version, required, offered| Request::Hello {
        version,
        required: Features(required),
        offered: Features(offered),
        client: "x".into(),
    };
    let hello = |version, required| encode(&hello_of(version, required, 0), 1);
    for bit in (0..64).filter(|bit| !Features::KNOWN.contains(Features(1 << bit))) {
        let kind = last_words(&server, false, &hello(VERSION, 1 << bit)).await;
        assert_eq!(kind, ErrorKind::Unsupported, "feature {bit}");
    }
    for version in [0, VERSION + 1, u16::MAX] {
        assert_eq!(last_words(&server, false, &hello(version, 0)).await, ErrorKind::Unsupported);
    }
    for bit in 0..32 {
        let mut bytes = hello(VERSION, 0);
        let magic = (MAGIC ^ (1 << bit)).to_be_bytes();
        bytes[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&magic);
        assert_eq!(last_words(&server, false, &bytes).await, ErrorKind::Malformed, "magic bit {bit}");
    }
    let mut raw = Raw::connect(server.address).await;
    match raw.call(&hello_of(VERSION, 0, u64::MAX)).await {
        Response::Hello(answer) => assert_eq!((answer.version, answer.features), (VERSION, Features::KNOWN)),
        other => panic!("not welcomed: {other:?}"),
    }
    bystander.is_unharmed().await;
}

/// Clients of other protocols immediately receive an error, or are disconnected.
#[tokio::test]
async fn other_protocols_are_refused() {
    let server = Server::with(&["hello_timeout_ms=600000"]);
    let mut bystander = Bystander::of(&server).await;
    for (text, answer) in [
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 "),
        ("POST /topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400 "),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 400 "),
        ("*1\r\n$4\r\nPING\r\n", "-ERR this is the native door"),
    ] {
        let mut raw = Raw::connect(server.address).await;
        raw.write(text.as_bytes()).await;
        let mut told = Vec::new();
        let closed = tokio::io::AsyncReadExt::read_to_end(&mut raw.socket, &mut told);
        within("the end", closed).await.expect("an answer");
        assert!(told.starts_with(answer.as_bytes()), "{text:?}: {}", told.escape_ascii());
    }
    let mut raw = Raw::connect(server.address).await;
    raw.write(b"CONNECT {\"verbose\":false}\r\n").await;
    let words = raw.last_words().await.expect("a reason");
    assert!(matches!(words.kind, ErrorKind::Unsupported | ErrorKind::TooLarge | ErrorKind::Malformed), "{words}");
    // Bytes that begin like TLS and are not: they have no frame to respond to.
    let mut raw = Raw::connect(server.address).await;
    raw.write(&[0x16; 64]).await;
    let mut rest = Vec::new();
    let closed = tokio::io::AsyncReadExt::read_to_end(&mut raw.socket, &mut rest);
    within("the end", closed).await.map(drop).unwrap_or_default();
    bystander.is_unharmed().await;
}

/// A batch with an invalid checksum or invalid lengths is refused as a whole; the next one on the connection is
/// accepted.
#[tokio::test]
async fn a_broken_batch_is_refused() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    let good = batch(&[b"one", b"two", b"three"]);
    let send = |batch: BytesMut| {
        encode(&Request::Publish { topic: "t".into(), partition: None, acks: Acks::Accepted, batch }, 77)
    };
    let mut expect = async |what: &str, kind: ErrorKind, batch: BytesMut| {
        assert_eq!(answered(&mut raw, &send(batch), 77).await, kind, "{what}");
    };
    // The checksum covers every byte from itself on.
    for at in 17..good.len() {
        let mut bad = BytesMut::from(&good[..]);
        bad[at] ^= 0x01;
        expect(&format!("byte {at}"), ErrorKind::Corrupt, bad).await;
    }
    for change in [-1i32, 1, 1_000_000, i32::MAX / 2] {
        let mut bad = BytesMut::from(&good[..]);
        let length = (good.len() as i32 - 12 + change).to_be_bytes();
        bad[8..12].copy_from_slice(&length);
        expect("a length that lies", ErrorKind::Malformed, bad).await;
    }
    for magic in [0, 1, 3] {
        let mut bad = BytesMut::from(&good[..]);
        bad[16] = magic;
        expect("another magic", ErrorKind::Unsupported, bad).await;
    }
    for cut in [0, 1, 12, 60, good.len() - 1] {
        expect("cut short", ErrorKind::Malformed, BytesMut::from(&good[..cut])).await;
    }
    let mut double = BytesMut::from(&good[..]);
    double.put_slice(&good);
    expect("two batches", ErrorKind::Malformed, double).await;
    assert_eq!(raw.publish("t", &[b"good"]).await, 0, "nothing of all that is in the log");
    bystander.is_unharmed().await;
}

/// A body that ends before its last field, or continues after it, is malformed, wherever it is cut.
#[tokio::test]
async fn bodies_have_their_exact_length() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    for request in requests().into_iter().skip(1) {
        let whole = encode(&request, 1);
        let kind = whole[4];
        let body = &whole[HEADER_BYTES..];
        for cut in 0..body.len() {
            let refused = answered(&mut raw, &frame(kind, 500 + cut as u32, &body[..cut]), 500 + cut as u32).await;
            assert_eq!(refused, ErrorKind::Malformed, "{request:?} cut at {cut}");
        }
        let mut longer = body.to_vec();
        longer.push(0);
        assert_eq!(answered(&mut raw, &frame(kind, 499, &longer), 499).await, ErrorKind::Malformed, "{request:?}");
    }
    bystander.is_unharmed().await;
}

/// Hello must be the first request, and may be sent only once.
#[tokio::test]
async fn hello_comes_first_and_once() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    for request in requests().iter().skip(1).chain([&Request::Ping, &Request::Stats]) {
        assert_eq!(last_words(&server, false, &encode(request, 1)).await, ErrorKind::Malformed, "{request:?}");
    }
    let mut raw = Raw::open(server.address).await;
    assert_eq!(answered(&mut raw, &encode(&hello(), 9), 9).await, ErrorKind::Malformed);
    // Requests may follow the hello immediately, in the same packet.
    let mut raw = Raw::connect(server.address).await;
    let mut bytes = encode(&hello(), 1);
    bytes.unsplit(encode(&Request::Ping, 2));
    raw.write(&bytes).await;
    assert!(matches!(raw.answer(1).await, Response::Hello(_)));
    assert!(matches!(raw.answer(2).await, Response::Pong));
    bystander.is_unharmed().await;
}

/// A subscription id is unique on its connection, and can be reused once its subscription has ended.
#[tokio::test]
async fn a_subscription_id_is_unique() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    let request = Request::Subscribe(subscribe("t", Overflow::Replay, 0, 1 << 20));
    raw.subscribe(subscribe("t", Overflow::Replay, 0, 1 << 20)).await;
    assert_eq!(answered(&mut raw, &encode(&request, 900), 900).await, ErrorKind::Invalid);
    let mut other = Raw::open(server.address).await;
    other.subscribe(subscribe("t", Overflow::Replay, 0, 1 << 20)).await;
    assert!(matches!(raw.call(&Request::Unsubscribe { subscription: 1 }).await, Response::Unsubscribed));
    match raw.push().await {
        wire::Push::Ended { subscription: 1, .. } => {}
        push => panic!("not ended but {push:?}"),
    }
    let unknown = Request::Unsubscribe { subscription: 1 };
    assert_eq!(answered(&mut raw, &encode(&unknown, 901), 901).await, ErrorKind::NotFound);
    // The new subscription with this id is complete: it is granted credit and receives records.
    raw.subscribe(subscribe("t", Overflow::Replay, 0, 1)).await;
    for i in 0..5 {
        assert_eq!(other.publish("t", &[b"x"]).await, i);
        assert!(matches!(raw.push().await, wire::Push::Deliver { subscription: 1, .. }));
        raw.grant(1, 1 << 10).await;
    }
    bystander.is_unharmed().await;
}

/// An id that is reused before its subscription has ended never stands for two subscriptions.
#[tokio::test]
async fn a_subscription_id_is_not_reused_too_early() {
    let server = Server::start();
    let mut publisher = Raw::open(server.address).await;
    let mut raw = Raw::open(server.address).await;
    let request = || Request::Subscribe(subscribe("t", Overflow::Replay, 0, 1));
    for _ in 0..50 {
        // All three together: the response to the last one depends on the end of the first one.
        let mut bytes = encode(&request(), 10_001);
        bytes.unsplit(encode(&Request::Unsubscribe { subscription: 1 }, 10_002));
        bytes.unsplit(encode(&request(), 10_003));
        raw.write(&bytes).await;
        assert!(matches!(raw.answer(10_001).await, Response::Subscribed { .. }));
        assert!(matches!(raw.answer(10_002).await, Response::Unsubscribed));
        let again = raw.answer(10_003).await;
        assert!(matches!(raw.push().await, wire::Push::Ended { .. }), "the first one's end");
        match again {
            Response::Error(error) => assert_eq!(error.kind, ErrorKind::Invalid),
            Response::Subscribed { .. } => {
                for _ in 0..3 {
                    publisher.publish("t", &[b"x"]).await;
                    assert!(matches!(raw.push().await, wire::Push::Deliver { .. }), "its credit counts");
                    raw.grant(1, 1 << 10).await;
                }
                assert!(matches!(raw.call(&Request::Unsubscribe { subscription: 1 }).await, Response::Unsubscribed));
                assert!(matches!(raw.push().await, wire::Push::Ended { .. }));
            }
            other => panic!("neither: {other:?}"),
        }
    }
}

/// A burst of more subscriptions than a lane accepts in one turn waits: none is refused, and each receives the records
/// that are published afterwards.
#[tokio::test]
async fn a_burst_of_subscriptions_is_taken_whole() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let mut raw = Raw::open(server.address).await;
    let count = 3_000u32;
    let mut bytes = BytesMut::new();
    for id in 1..=count {
        let mut request = subscribe("t", Overflow::Replay, 0, 1 << 20);
        request.subscription = id;
        bytes.unsplit(encode(&Request::Subscribe(request), id));
    }
    raw.write(&bytes).await;
    for id in 1..=count {
        match raw.answer(id).await {
            Response::Subscribed { subscription, .. } => assert_eq!(subscription, id),
            other => panic!("not taken: {other:?}"),
        }
    }
    Raw::open(server.address).await.publish("t", &[b"x"]).await;
    for _ in 0..count {
        assert!(matches!(raw.push().await, wire::Push::Deliver { .. }));
    }
    bystander.is_unharmed().await;
}

/// Two hundred sessions with randomly flipped bits end in some way; the broker continues.
#[tokio::test]
async fn random_bit_flips_do_not_hurt_the_broker() {
    let server = Server::with(&["publish_queue_wait_timeout_ms=20", "hello_timeout_ms=1000"]);
    let mut bystander = Bystander::of(&server).await;
    let mut session = BytesMut::new();
    for (i, request) in requests().into_iter().chain([Request::Stats, Request::Ping]).enumerate() {
        session.unsplit(encode(&request, i as u32 + 1));
    }
    // A linear congruential generator: the same flips in every run.
    let mut state = 0x5eed_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..200 {
        let mut bytes = session.clone();
        for _ in 0..1 + random(4) {
            let bit = random(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut raw = Raw::connect(server.address).await;
        // The broker may disconnect before it has received everything.
        raw.socket.write_all(&bytes).await.unwrap_or_default();
        raw.socket.shutdown().await.unwrap_or_default();
        raw.last_words().await;
    }
    bystander.is_unharmed().await;
    let kind = within("list", bystander.watcher().list_topics()).await;
    assert!(kind.is_ok(), "{kind:?}");
}

/// The smallest invalid frames are refused as well: without a kind, and with an empty body.
#[tokio::test]
async fn empty_frames_are_answered() {
    let server = Server::start();
    let mut raw = Raw::open(server.address).await;
    for kind in 0x01..=0x0au8 {
        assert_eq!(answered(&mut raw, &frame(kind, 600, b""), 600).await, ErrorKind::Malformed, "{kind:#x}");
    }
    let decoded = Request::decode(Frame { kind: 0x0c, correlation: 0, body: BytesMut::new() });
    assert!(matches!(decoded, Ok(Request::Ping)));
}

/// Numbers that stand for a choice are refused if they are out of range, and names must be UTF-8.
#[tokio::test]
async fn choices_and_names_are_checked() {
    let server = Server::start();
    let mut raw = Raw::open(server.address).await;
    // Offsets of fields in bodies whose topic is "t".
    let publish = encode(&publish("t", Acks::Accepted, &[b"x"]), 700);
    let subscribe = encode(&Request::Subscribe(subscribe("t", Overflow::Replay, 0, 1)), 700);
    let describe = encode(&Request::TopicDescribe { topic: "t".into() }, 700);
    let acks = 3 + 4;
    let start = 4 + 3 + 4;
    let overflow = 4 + 3 + 4 + 1;
    let name = 2;
    for (request, at, first_bad) in
        [(&publish, acks, 4), (&subscribe, start, 5), (&subscribe, overflow, 5), (&describe, name, 0x80)]
    {
        for value in [first_bad, 0xff] {
            let mut bytes = request.clone();
            bytes[HEADER_BYTES + at] = value;
            assert_eq!(answered(&mut raw, &bytes, 700).await, ErrorKind::Malformed, "{value} at {at}");
        }
    }
    for name in ["", "a b", "a..b", ".", "a/b", "a*b", &"x".repeat(250)] {
        let bytes = encode(
            &Request::Publish {
                topic: name.into(),
                partition: None,
                acks: Acks::Accepted,
                batch: BytesMut::from(&batch(&[b"x"])[..]),
            },
            700,
        );
        assert_eq!(answered(&mut raw, &bytes, 700).await, ErrorKind::Invalid, "{name}");
    }
    let long = Request::TopicDescribe { topic: "y".repeat(60_000) };
    assert_eq!(answered(&mut raw, &encode(&long, 700), 700).await, ErrorKind::NotFound);
}
