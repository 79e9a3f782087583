//! Failing peers and handlers: each ends only its own connection, and leaves nothing behind.

use net::service::{FaultKind, ServiceSettings};

use crate::harness::framed::{HEAD_BYTES, call, frame, one_way, open, piece, push};
use crate::harness::stand::{impatient, patient};
use crate::harness::{Fixture, PATIENCE, ServerFrame, Way, noise, over_every_transport, until};

over_every_transport!(
    a_malformed_frame_is_a_fault_and_closes,
    requests_before_a_malformed_frame_are_answered_in_order,
    started_requests_are_abandoned_immediately,
    a_frame_that_is_too_large_is_refused_before_it_comes,
    a_peer_that_closes_its_half_gets_all_answers,
    requests_of_a_lost_connection_are_abandoned,
    a_panic_ends_its_connection_and_nothing_else,
    a_panic_while_a_connection_opens_is_counted,
);

async fn a_malformed_frame_is_a_fault_and_closes(way: Way) {
    let bad = [
        frame(b'?', 1, b"no such kind"),
        b"\x01\0\0\0too short".to_vec(),
        piece(9, b"of no body", true),
        frame(b'O', 1, b"short"),
        open(7, None, "collect x").repeat(2),
    ];
    for fixture in Fixture::both(patient()) {
        for bad in &bad {
            let mut peer = fixture.dial(way).await;
            // Also after answered requests, and with more bytes after it, which no one reads.
            let frames = [call(1, "echo before"), bad.clone(), noise(1, 100_000)];
            peer.send_all(&frames).await;
            assert_eq!(peer.receive().await, ServerFrame::Answer(1, b"before".into()));
            // With ordered responses, it is the answer to the request whose body did not arrive.
            let is_answer = fixture.is_in_order && bad[4] == b'O' && bad.len() > 20;
            let received = peer.receive().await;
            assert!(received.is_fault(if is_answer { 7 } else { 0 }, FaultKind::Malformed), "{received:?}");
            peer.reader.assert_end().await;
        }
        let totals = fixture.assert_all_released().await;
        assert_eq!(totals.faults, bad.len() as u64);
    }
}

/// With ordered responses, a fault that overtook an earlier answer would be mistaken for it.
async fn requests_before_a_malformed_frame_are_answered_in_order(way: Way) {
    let fixture = Fixture::in_order(patient());
    let mut peer = fixture.dial(way).await;
    peer.send_all(&[call(1, "wait x"), call(2, "echo known"), frame(b'?', 3, b""), call(4, "echo never")]).await;
    fixture.world.until("begin x").await;
    fixture.world.open("x", 1);
    assert_eq!(
        peer.receive_all(2).await,
        [ServerFrame::Answer(1, b"x".into()), ServerFrame::Answer(2, b"known".into())]
    );
    peer.reader.assert_fault_and_end(FaultKind::Malformed).await;
    drop(peer);
    let totals = fixture.assert_all_released().await;
    assert_eq!((totals.requests_started, totals.faults), (2, 1));
}

/// Immediately, not only once the peer has closed its side as well.
async fn started_requests_are_abandoned_immediately(way: Way) {
    let fixture = Fixture::out_of_order(impatient(|timeouts| timeouts.last_words = PATIENCE));
    let mut peer = fixture.dial(way).await;
    peer.send_all(&[call(1, "wait x"), open(2, None, "collect y"), frame(b'?', 3, b"")]).await;
    let received = peer.receive().await;
    assert!(received.is_fault(0, FaultKind::Malformed), "{received:?}");
    fixture.world.until("end x").await;
    fixture.world.until("end y").await;
    until("permits are released", || {
        fixture.requests.in_use() + fixture.bodies.in_use() + fixture.memory.in_use() == 0
    })
    .await;
    assert_eq!(fixture.totals().requests_in_flight(), 0);
    assert_eq!(fixture.connections.open(), 1);
}

async fn a_frame_that_is_too_large_is_refused_before_it_comes(way: Way) {
    for fixture in Fixture::both(ServiceSettings { frame_bytes_max: 1000, ..patient() }) {
        let mut peer = fixture.dial(way).await;
        let echoed = "x".repeat(1000 - HEAD_BYTES - "echo ".len());
        assert_eq!(peer.request(1, &format!("echo {echoed}")).await, echoed.as_bytes());
        peer.send(&call(1, &format!("echo {echoed}y"))[..HEAD_BYTES]).await;
        peer.reader.assert_fault_and_end(FaultKind::TooLarge).await;
    }
}

async fn a_peer_that_closes_its_half_gets_all_answers(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        let mut frames = vec![call(0, "wait x"), call(1, "several y 3")];
        frames.extend((2..302).map(|i| call(i, &format!("noise {i} 10000 1"))));
        frames.extend([open(302, None, "collect z"), piece(302, b"half", false), call(303, "echo cut")[..10].to_vec()]);
        let bytes = frames.concat();
        let writer = &mut peer.writer;
        let reader = &mut peer.reader;
        let send = async {
            writer.send(&bytes).await;
            writer.finish().await;
            fixture.world.until("cut z").await;
            fixture.world.open("x", 1);
            fixture.world.open("y", 3);
        };
        let (mut received, ()) = tokio::join!(reader.receive_all(305), send);
        if !fixture.is_in_order {
            received.sort_by_key(ServerFrame::id);
        }
        assert_eq!(received[0], ServerFrame::Answer(0, b"x".into()));
        for i in 0..3 {
            assert_eq!(received[1 + i], ServerFrame::Answer(1, format!("y {i}").into()));
        }
        for i in 2..302 {
            assert!(
                received[2 + i as usize] == ServerFrame::Answer(i, noise(u64::from(i), 10_000)),
                "{:?}",
                received[2 + i as usize]
            );
        }
        assert!(
            matches!(&received[304], ServerFrame::Answer(302, words) if words.starts_with(b"cut:")),
            "{:?}",
            received[304]
        );
        peer.reader.assert_end().await;
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.faults, 0);
    }
}

async fn requests_of_a_lost_connection_are_abandoned(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut lost = fixture.dial_abrupt(way).await;
        let mut other = fixture.dial(way).await;
        let kept = call(1, "wait kept");
        other.send(&kept).await;
        fixture.world.until("begin kept").await;
        let requests = [
            [call(1, "wait lost"), call(2, "several lost 3"), call(3, "echo known"), call(4, "nothing")].concat(),
            [one_way("note told"), call(5, "wait lost"), one_way("push unread")].concat(),
            [open(6, None, "collect lost"), piece(6, b"some", false)].concat(),
            // In the middle of a frame, and with unread bytes.
            piece(6, b"more", true)[..9].to_vec(),
        ]
        .concat();
        lost.send(&requests).await;
        fixture.world.until_times("begin lost", 4).await;
        until("the requests are read", || fixture.totals().bytes_read == (kept.len() + requests.len()) as u64).await;
        drop(lost);
        if way == Way::Pipe {
            // A pipe has no reset: a closed peer is detected by a write.
            for outbox in fixture.world.outboxes() {
                outbox.push([push(0, b"x")]);
                outbox.flush();
            }
            assert_eq!(other.receive().await, ServerFrame::Push(0, b"x".into()));
        }
        fixture.world.until_times("end lost", 4).await;
        until("it is counted", || fixture.totals().requests_in_flight() == 1).await;
        fixture.world.open("kept", 1);
        assert_eq!(other.receive().await, ServerFrame::Answer(1, b"kept".into()));
        drop(other);
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.requests_started, totals.messages, totals.panics), (7, 2, 0));
    }
}

async fn a_panic_ends_its_connection_and_nothing_else(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut other = fixture.dial(way).await;
        other.send(&call(1, "wait kept")).await;
        for (n, words) in (1..).zip(["panic", "panic-later", "panic"]) {
            let mut peer = fixture.dial(way).await;
            peer.send_all(&[call(1, "wait lost"), call(2, "echo lost"), call(3, words), call(4, "echo never")]).await;
            // Answers before it may or may not arrive.
            while let Some(received) = peer.reader.next().await {
                assert_eq!(received, ServerFrame::Answer(2, b"lost".into()));
            }
            until("it is counted", || fixture.totals().panics == n).await;
        }
        fixture.world.open("kept", 1);
        assert_eq!(other.receive().await, ServerFrame::Answer(1, b"kept".into()));
        fixture.dial(way).await.assert_served().await;
        drop(other);
        fixture.assert_all_released().await;
    }
}

async fn a_panic_while_a_connection_opens_is_counted(way: Way) {
    for (n, when) in (1..).zip(["refuse to connect", "refuse to open"]) {
        let fixture = Fixture::in_order(patient());
        let mut other = fixture.dial(way).await;
        other.assert_served().await;
        fixture.world.note(when);
        // The connection may be closed before the client has opened its stream.
        if let Ok(mut peer) = fixture.try_dial(way).await {
            assert!(!peer.is_admitted().await, "{n}");
        }
        until("it is counted", || fixture.totals().panics == 1).await;
        other.assert_served().await;
        drop(other);
        fixture.assert_all_released().await;
    }
}

/// Refused bodies take memory until they end, so their number has the same limit as that of others.
#[tokio::test]
async fn bodies_that_are_refused_are_bounded_as_well() {
    let settings = ServiceSettings { streamed_bodies_max: 1, requests_per_connection_max: 10, ..patient() };
    let fixture = Fixture::out_of_order(settings);
    let mut peer = fixture.dial(Way::Tcp).await;
    let frames: Vec<Vec<u8>> = (1..12).map(|id| open(id, None, "collect x")).collect();
    peer.send_all(&frames).await;
    for id in 2..11 {
        let received = peer.receive().await;
        assert!(received.is_fault(id, FaultKind::Busy), "{received:?}");
    }
    peer.reader.assert_fault_and_end(FaultKind::Busy).await;
    drop(peer);
    assert_eq!(fixture.assert_all_released().await.requests_refused, 10);
}
