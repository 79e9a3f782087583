//! Failing peers and handlers: each ends only its own connection, and leaves nothing behind.

use net::service::{FaultKind, ServiceSettings};

use crate::harness::framed::{HEAD_BYTES, call, frame, open, piece, push, tell};
use crate::harness::stand::{impatient, patient};
use crate::harness::{PATIENCE, Said, Stand, Way, noise, over_every_transport, until};

over_every_transport!(
    a_malformed_frame_is_told_and_closes,
    what_was_asked_before_a_malformed_frame_is_answered_in_its_place,
    what_is_begun_is_given_up_at_once,
    a_frame_that_is_too_large_is_refused_before_it_comes,
    a_peer_that_closes_its_half_gets_all_answers,
    what_a_lost_connection_asked_is_given_up,
    a_panic_ends_its_connection_and_nothing_else,
    a_panic_while_a_connection_opens_is_counted,
);

async fn a_malformed_frame_is_told_and_closes(way: Way) {
    let bad = [
        frame(b'?', 1, b"no such kind"),
        b"\x01\0\0\0too short".to_vec(),
        piece(9, b"of no body", true),
        frame(b'O', 1, b"short"),
        open(7, None, "collect x").repeat(2),
    ];
    for stand in Stand::both(patient()) {
        for bad in &bad {
            let mut peer = stand.dial(way).await;
            // Also after answered requests, and with more bytes after it, which no one reads.
            let frames = [call(1, "echo before"), bad.clone(), noise(1, 100_000)];
            peer.send_all(&frames).await;
            assert_eq!(peer.hear().await, Said::Answer(1, b"before".into()));
            // With ordered responses, it is the answer to the request whose body did not arrive.
            let is_answer = stand.is_in_order && bad[4] == b'O' && bad.len() > 20;
            let said = peer.hear().await;
            assert!(said.is_fault(if is_answer { 7 } else { 0 }, FaultKind::Malformed), "{said:?}");
            peer.ear.hears_the_end().await;
        }
        let totals = stand.is_left_alone().await;
        assert_eq!(totals.faults, bad.len() as u64);
    }
}

/// With ordered responses, a fault that overtook an earlier answer would be mistaken for it.
async fn what_was_asked_before_a_malformed_frame_is_answered_in_its_place(way: Way) {
    let stand = Stand::in_order(patient());
    let mut peer = stand.dial(way).await;
    peer.send_all(&[call(1, "wait x"), call(2, "echo known"), frame(b'?', 3, b""), call(4, "echo never")]).await;
    stand.world.until("begin x").await;
    stand.world.open("x", 1);
    assert_eq!(peer.hear_all(2).await, [Said::Answer(1, b"x".into()), Said::Answer(2, b"known".into())]);
    peer.ear.is_told_and_closed(FaultKind::Malformed).await;
    drop(peer);
    let totals = stand.is_left_alone().await;
    assert_eq!((totals.requests_started, totals.faults), (2, 1));
}

/// Immediately, not only once the peer has closed its side as well.
async fn what_is_begun_is_given_up_at_once(way: Way) {
    let stand = Stand::out_of_order(impatient(|timeouts| timeouts.last_words = PATIENCE));
    let mut peer = stand.dial(way).await;
    peer.send_all(&[call(1, "wait x"), open(2, None, "collect y"), frame(b'?', 3, b"")]).await;
    let said = peer.hear().await;
    assert!(said.is_fault(0, FaultKind::Malformed), "{said:?}");
    stand.world.until("end x").await;
    stand.world.until("end y").await;
    until("permits are given back", || stand.requests.in_use() + stand.bodies.in_use() + stand.memory.in_use() == 0)
        .await;
    assert_eq!(stand.totals().requests_in_flight(), 0);
    assert_eq!(stand.connections.open(), 1);
}

async fn a_frame_that_is_too_large_is_refused_before_it_comes(way: Way) {
    for stand in Stand::both(ServiceSettings { frame_bytes_max: 1000, ..patient() }) {
        let mut peer = stand.dial(way).await;
        let echoed = "x".repeat(1000 - HEAD_BYTES - "echo ".len());
        assert_eq!(peer.ask(1, &format!("echo {echoed}")).await, echoed.as_bytes());
        peer.send(&call(1, &format!("echo {echoed}y"))[..HEAD_BYTES]).await;
        peer.ear.is_told_and_closed(FaultKind::TooLarge).await;
    }
}

async fn a_peer_that_closes_its_half_gets_all_answers(way: Way) {
    for stand in Stand::both(patient()) {
        let mut peer = stand.dial(way).await;
        let mut frames = vec![call(0, "wait x"), call(1, "several y 3")];
        frames.extend((2..302).map(|i| call(i, &format!("noise {i} 10000 1"))));
        frames.extend([open(302, None, "collect z"), piece(302, b"half", false), call(303, "echo cut")[..10].to_vec()]);
        let bytes = frames.concat();
        let mouth = &mut peer.mouth;
        let ear = &mut peer.ear;
        let ask = async {
            mouth.send(&bytes).await;
            mouth.finish().await;
            stand.world.until("cut z").await;
            stand.world.open("x", 1);
            stand.world.open("y", 3);
        };
        let (mut said, ()) = tokio::join!(ear.hear_all(305), ask);
        if !stand.is_in_order {
            said.sort_by_key(Said::id);
        }
        assert_eq!(said[0], Said::Answer(0, b"x".into()));
        for i in 0..3 {
            assert_eq!(said[1 + i], Said::Answer(1, format!("y {i}").into()));
        }
        for i in 2..302 {
            assert!(said[2 + i as usize] == Said::Answer(i, noise(u64::from(i), 10_000)), "{:?}", said[2 + i as usize]);
        }
        assert!(matches!(&said[304], Said::Answer(302, words) if words.starts_with(b"cut:")), "{:?}", said[304]);
        peer.ear.hears_the_end().await;
        drop(peer);
        assert_eq!(stand.is_left_alone().await.faults, 0);
    }
}

async fn what_a_lost_connection_asked_is_given_up(way: Way) {
    for stand in Stand::both(patient()) {
        let mut lost = stand.dial_abrupt(way).await;
        let mut other = stand.dial(way).await;
        let kept = call(1, "wait kept");
        other.send(&kept).await;
        stand.world.until("begin kept").await;
        let asked = [
            [call(1, "wait lost"), call(2, "several lost 3"), call(3, "echo known"), call(4, "nothing")].concat(),
            [tell("note told"), call(5, "wait lost"), tell("push unread")].concat(),
            [open(6, None, "collect lost"), piece(6, b"some", false)].concat(),
            // In the middle of a frame, and with unread bytes.
            piece(6, b"more", true)[..9].to_vec(),
        ]
        .concat();
        lost.send(&asked).await;
        stand.world.until_times("begin lost", 4).await;
        until("that is read", || stand.totals().bytes_read == (kept.len() + asked.len()) as u64).await;
        drop(lost);
        if way == Way::Pipe {
            // A pipe has no reset: a closed peer is detected by a write.
            for outbox in stand.world.outboxes() {
                outbox.push([push(0, b"x")]);
                outbox.flush();
            }
            assert_eq!(other.hear().await, Said::Push(0, b"x".into()));
        }
        stand.world.until_times("end lost", 4).await;
        until("it is counted", || stand.totals().requests_in_flight() == 1).await;
        stand.world.open("kept", 1);
        assert_eq!(other.hear().await, Said::Answer(1, b"kept".into()));
        drop(other);
        let totals = stand.is_left_alone().await;
        assert_eq!((totals.requests_started, totals.messages, totals.panics), (7, 2, 0));
    }
}

async fn a_panic_ends_its_connection_and_nothing_else(way: Way) {
    for stand in Stand::both(patient()) {
        let mut other = stand.dial(way).await;
        other.send(&call(1, "wait kept")).await;
        for (n, words) in (1..).zip(["panic", "panic-later", "panic"]) {
            let mut peer = stand.dial(way).await;
            peer.send_all(&[call(1, "wait lost"), call(2, "echo lost"), call(3, words), call(4, "echo never")]).await;
            // Answers before it may or may not arrive.
            while let Some(said) = peer.ear.next().await {
                assert_eq!(said, Said::Answer(2, b"lost".into()));
            }
            until("it is counted", || stand.totals().panics == n).await;
        }
        stand.world.open("kept", 1);
        assert_eq!(other.hear().await, Said::Answer(1, b"kept".into()));
        stand.dial(way).await.is_served().await;
        drop(other);
        stand.is_left_alone().await;
    }
}

async fn a_panic_while_a_connection_opens_is_counted(way: Way) {
    for (n, when) in (1..).zip(["refuse to connect", "refuse to open"]) {
        let stand = Stand::in_order(patient());
        let mut other = stand.dial(way).await;
        other.is_served().await;
        stand.world.note(when);
        let mut peer = stand.dial(way).await;
        assert!(!peer.is_let_in().await, "{n}");
        until("it is counted", || stand.totals().panics == 1).await;
        other.is_served().await;
        drop((peer, other));
        stand.is_left_alone().await;
    }
}

/// Refused bodies take memory until they end, so their number has the same limit as that of others.
#[tokio::test]
async fn bodies_that_are_refused_are_bounded_as_well() {
    let settings = ServiceSettings { streamed_bodies_max: 1, requests_per_connection_max: 10, ..patient() };
    let stand = Stand::out_of_order(settings);
    let mut peer = stand.dial(Way::Tcp).await;
    let frames: Vec<Vec<u8>> = (1..12).map(|id| open(id, None, "collect x")).collect();
    peer.send_all(&frames).await;
    for id in 2..11 {
        let said = peer.hear().await;
        assert!(said.is_fault(id, FaultKind::Busy), "{said:?}");
    }
    peer.ear.is_told_and_closed(FaultKind::Busy).await;
    drop(peer);
    assert_eq!(stand.is_left_alone().await.requests_refused, 10);
}
