//! Timeouts: silent, slow, idle and non-reading peers are notified and cut, on every kind of listener.

use std::time::Duration;

use net::Plaintext;
use net::service::FaultKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::framed::{HEAD_BYTES, call, frame, one_way, open, open_raw, piece};
use crate::harness::stand::impatient;
use crate::harness::{Fixture, Peer, ServerFrame, Way, noise, over_every_transport, until, within};

over_every_transport!(
    a_silent_connection_is_closed,
    an_unidentified_peer_is_closed,
    a_first_frame_byte_by_byte_is_too_slow,
    a_later_frame_byte_by_byte_is_too_slow,
    a_body_byte_by_byte_is_too_slow,
    a_slow_frame_that_comes_fast_enough_is_waited_for,
    an_idle_connection_is_closed_and_no_other,
    a_handler_that_never_ends_is_a_fault_and_no_end,
    a_peer_that_does_not_read_is_cut,
    a_peer_is_not_blamed_for_the_time_that_it_was_held_up,
);

/// Timeout that a test waits for.
const SHORT: Duration = Duration::from_millis(50);

/// Sends a byte, waits until it was read, and repeats that until the server closes. The fault concerns the whole stream
/// (0), or with ordered responses the request that the body belongs to.
async fn trickle(fixture: &Fixture, peer: &mut Peer, bytes: &[u8], fault_id: u32) {
    let mut read = fixture.totals().bytes_read;
    let trickle = async {
        for byte in bytes {
            if peer.writer.try_send(&[*byte]).await.is_err() {
                break;
            }
            read += 1;
            // Slower than the timeout allows, and each byte in a separate read.
            tokio::time::sleep(Duration::from_millis(1)).await;
            while fixture.totals().bytes_read < read && fixture.totals().timeouts == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        panic!("the server took byte after byte");
    };
    // Until the end of the connection is received.
    let end = async {
        let received = peer.reader.receive().await;
        assert!(received.is_fault(fault_id, FaultKind::Timeout), "{received:?}");
        peer.reader.assert_end().await;
    };
    tokio::select! {
        biased;
        () = end => {}
        () = trickle => {}
    }
}

async fn a_silent_connection_is_closed(way: Way) {
    for fixture in Fixture::both(impatient(|timeouts| timeouts.first_frame = SHORT)) {
        let mut silent = fixture.dial(way).await;
        match &silent.quic {
            // A stream is unknown to the server before its first bytes.
            Some((quic, _)) => assert_eq!(closed_with(quic).await, Some(close_code(FaultKind::Timeout))),
            None => silent.reader.assert_fault_and_end(FaultKind::Timeout).await,
        }
        drop(silent);
        let mut half = fixture.dial(way).await;
        half.send(&call(1, "echo x")[..HEAD_BYTES]).await;
        half.reader.assert_fault_and_end(FaultKind::Timeout).await;
        drop(half);
        fixture.assert_all_released().await;
    }
}

/// Until the handler knows the peer, the timeout of the first frame continues, even if the peer sends requests.
async fn an_unidentified_peer_is_closed(way: Way) {
    for fixture in Fixture::both(impatient(|timeouts| timeouts.first_frame = 4 * SHORT)) {
        let mut silent = fixture.dial(way).await;
        let mut known = fixture.dial(way).await;
        known.send_all(&[call(1, "opening"), call(2, "open gate")]).await;
        fixture.world.open("gate", 1);
        assert_eq!(
            known.receive_all(2).await,
            [ServerFrame::Answer(1, b"who".into()), ServerFrame::Answer(2, b"gate".into())]
        );
        assert_eq!(silent.request(1, "opening").await, b"who");
        silent.reader.assert_fault_and_end(FaultKind::Timeout).await;
        known.assert_served().await;
        drop((silent, known));
        fixture.assert_all_released().await;
    }
}

fn close_code(kind: FaultKind) -> u64 {
    100 + kind as u64
}

/// Returns the code that the server closes a QUIC connection with.
async fn closed_with(quic: &quinn::Connection) -> Option<u64> {
    match within("the connection being closed", quic.closed()).await {
        quinn::ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        _other => None,
    }
}

async fn a_first_frame_byte_by_byte_is_too_slow(way: Way) {
    let fixture = Fixture::in_order(impatient(|timeouts| timeouts.first_frame = 3 * SHORT));
    let mut peer = fixture.dial(way).await;
    trickle(&fixture, &mut peer, &frame(b'K', 1, &noise(1, 1 << 20)), 0).await;
    drop(peer);
    assert_eq!(fixture.assert_all_released().await.timeouts, 1);
}

async fn a_later_frame_byte_by_byte_is_too_slow(way: Way) {
    // A small frame, and the end of a large one, which is in its own buffer.
    for ahead in [0, 20 << 10] {
        let fixture = Fixture::in_order(impatient(|timeouts| timeouts.read = 3 * SHORT));
        let mut peer = fixture.dial(way).await;
        peer.assert_served().await;
        let bytes = frame(b'K', 1, &noise(1, 1 << 20));
        let read = fixture.totals().bytes_read;
        peer.send(&bytes[..ahead]).await;
        fixture.has_read(read + ahead as u64).await;
        trickle(&fixture, &mut peer, &bytes[ahead..], 0).await;
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.timeouts, 1);
    }
}

async fn a_body_byte_by_byte_is_too_slow(way: Way) {
    let pieces: Vec<u8> = (0..5000).flat_map(|_| piece(1, b"x", false)).collect();
    let raw = open_raw(1, 100_000, "collect x");
    let bodies = [(open(1, None, "collect x"), pieces), (raw, noise(1, 50_000))];
    for (opening, body) in &bodies {
        for fixture in Fixture::both(impatient(|timeouts| timeouts.read = 3 * SHORT)) {
            let mut peer = fixture.dial(way).await;
            peer.send(opening).await;
            fixture.world.until("begin x").await;
            trickle(&fixture, &mut peer, body, u32::from(fixture.is_in_order)).await;
            fixture.world.until("end x").await;
            drop(peer);
            assert_eq!(fixture.assert_all_released().await.timeouts, 1);
        }
    }
}

/// A frame may exceed its timeout if it makes steady progress: 256 bytes extend it by one tick.
async fn a_slow_frame_that_comes_fast_enough_is_waited_for(way: Way) {
    let fixture = Fixture::in_order(impatient(|timeouts| timeouts.read = 4 * SHORT));
    let mut peer = fixture.dial(way).await;
    let mut clock = fixture.dial(Way::Tcp).await;
    peer.assert_served().await;
    clock.assert_served().await;
    clock.send(b"half").await;
    let words = noise(1, 200 << 10);
    let bytes = frame(b'K', 1, &words);
    let (most, end) = bytes.split_at(bytes.len() - 1);
    peer.send(most).await;
    // The timeout has elapsed for a peer that sent nothing.
    clock.reader.assert_fault_and_end(FaultKind::Timeout).await;
    peer.send(end).await;
    let received = peer.receive().await;
    assert!(matches!(received, ServerFrame::Answer(1, _)), "{received:?}");
}

async fn an_idle_connection_is_closed_and_no_other(way: Way) {
    let settings = impatient(|timeouts| {
        timeouts.idle = Some(SHORT);
        timeouts.last_words = SHORT;
    });
    for fixture in Fixture::both(settings) {
        let mut asking = fixture.dial(way).await;
        asking.send(&call(1, "wait x")).await;
        let mut held = fixture.dial(way).await;
        held.send(&one_way("hold y")).await;
        let mut sending = fixture.dial(way).await;
        sending.send(&open(1, None, "collect z")).await;
        for begun in ["begin x", "begin y", "begin z"] {
            fixture.world.until(begun).await;
        }
        // Time passes: one after the other these become idle.
        for _ in 0..3 {
            let mut idle = fixture.dial(way).await;
            idle.assert_served().await;
            idle.reader.assert_end().await;
            if let Some((quic, _)) = &idle.quic {
                assert_eq!(closed_with(quic).await, Some(close_code(FaultKind::Timeout)));
            }
        }
        assert_eq!(fixture.world.noted("end y"), 0);
        fixture.world.open("x", 1);
        assert_eq!(asking.receive().await, ServerFrame::Answer(1, b"x".into()));
        sending.send(&piece(1, b"body", true)).await;
        assert_eq!(sending.receive().await, ServerFrame::Answer(1, b"body".into()));
        fixture.world.open("y", 1);
        fixture.world.until("passed y").await;
        held.assert_served().await;
        for mut peer in [asking, held, sending] {
            peer.reader.assert_end().await;
        }
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.timeouts, totals.faults), (0, 0));
    }
}

async fn a_handler_that_never_ends_is_a_fault_and_no_end(way: Way) {
    for fixture in Fixture::both(impatient(|timeouts| timeouts.handler = SHORT)) {
        let mut peer = fixture.dial(way).await;
        peer.assert_fault(1, "never", FaultKind::Timeout).await;
        fixture.world.until("end never").await;
        // Also a request that has begun to answer, one that would be answered out of turn, and one that is alone.
        fixture.world.open("x", 1);
        peer.send_all(&[call(2, "never"), call(3, "several x 2"), call(4, "echo known"), call(5, "alone y")]).await;
        let mut received = peer.receive_all(if fixture.is_in_order { 4 } else { 5 }).await;
        received.sort_by_key(ServerFrame::id);
        assert!(received[0].is_fault(2, FaultKind::Timeout), "{received:?}");
        if !fixture.is_in_order {
            assert_eq!(received.remove(1), ServerFrame::Answer(3, b"x 0".into()));
        }
        assert!(received[1].is_fault(3, FaultKind::Timeout), "{received:?}");
        assert_eq!(received[2], ServerFrame::Answer(4, b"known".into()));
        assert!(received[3].is_fault(5, FaultKind::Timeout), "{received:?}");
        peer.send(&open(6, None, "collect z")).await;
        assert!(peer.receive().await.is_fault(6, FaultKind::Timeout));
        // Its body is read to get past it.
        peer.send(&piece(6, b"late", true)).await;
        peer.assert_served().await;
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.timeouts, 5);
    }
}

async fn a_peer_that_does_not_read_is_cut(way: Way) {
    for fixture in Fixture::both(impatient(|timeouts| timeouts.write = 2 * SHORT)) {
        let mut slow = fixture.dial(way).await;
        slow.send(&call(1, "flood x 1000 65536")).await;
        fixture.world.until("end x").await;
        until("it is counted", || fixture.totals().timeouts == 1).await;
        // When it reads at last, it finds the earlier bytes, and the end.
        let mut answers = 0;
        while let Some(received) = within("the end", slow.reader.next_or_cut()).await {
            assert_eq!(received, ServerFrame::Answer(1, noise(answers, 65536)));
            answers += 1;
        }
        assert!(answers < 1000);
        drop(slow);
        fixture.assert_all_released().await;
    }
}

/// Half of a frame waits behind a request that is alone, or half of a body is with a slow handler: only after that is
/// the peer responsible for the rest.
async fn a_peer_is_not_blamed_for_the_time_that_it_was_held_up(way: Way) {
    for fixture in Fixture::both(impatient(|timeouts| timeouts.read = 2 * SHORT)) {
        let mut framing = fixture.dial(way).await;
        let mut sending = fixture.dial(way).await;
        let behind = call(2, "echo behind");
        framing.send_all(&[call(1, "alone x"), behind[..12].to_vec()]).await;
        sending.send_all(&[open(1, None, "slowly y"), piece(1, &noise(1, 300 << 10), false)]).await;
        for begun in ["begin x", "begin y"] {
            fixture.world.until(begun).await;
        }
        for _ in 0..3 {
            let mut clock = fixture.dial(Way::Tcp).await;
            clock.assert_served().await;
            clock.send(b"half").await;
            clock.reader.assert_fault_and_end(FaultKind::Timeout).await;
        }
        fixture.world.open("x", 1);
        assert_eq!(framing.receive().await, ServerFrame::Answer(1, b"x".into()));
        fixture.world.open("y", 1);
        fixture.world.until("took y").await;
        framing.send(&behind[12..]).await;
        sending.send(&piece(1, b"end", true)).await;
        assert_eq!(framing.receive().await, ServerFrame::Answer(2, b"behind".into()));
        fixture.world.open("y", 2);
        let received = sending.receive().await;
        assert_eq!(received, ServerFrame::Answer(1, ((300 << 10) + 3).to_string().into()));
        assert_eq!(fixture.totals().timeouts, 3);
    }
}

/// An unfinished handshake holds a connection no longer than its timeout.
#[tokio::test]
async fn a_tls_handshake_that_is_never_finished_is_given_up() {
    for plaintext in [Plaintext::Refused, Plaintext::FromAnywhere] {
        let fixture = Fixture::in_order(impatient(|timeouts| timeouts.handshake = SHORT));
        let at = fixture.listen_tls(plaintext);
        // A record that announces more than arrives.
        for sent in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
            let mut socket = within("connecting", TcpStream::connect(at)).await.expect("connected");
            within("sending", socket.write_all(sent)).await.expect("sent");
            let mut words = Vec::new();
            within("the end", socket.read_to_end(&mut words)).await.map(drop).unwrap_or_default();
            assert!(words.is_empty(), "{words:?}");
        }
        until("their places are free", || fixture.connections.open() == 0).await;
        assert_eq!(fixture.totals().connections_opened, 0);
    }
}

/// An unfinished QUIC handshake, of a client that vanishes after its first packet, is abandoned.
#[tokio::test]
async fn a_quic_handshake_that_is_never_finished_is_given_up() {
    let fixture = Fixture::in_order(impatient(|timeouts| timeouts.handshake = SHORT));
    let first = fixture.first_quic_packet().await;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.send_to(&first, fixture.socket_address(Way::Quic)).expect("sent");
    until("it has begun", || fixture.connections.open() == 1).await;
    until("its place is free", || fixture.connections.open() == 0).await;
    assert_eq!(fixture.totals().connections_opened, 0);
    let mut peer = fixture.dial(Way::Quic).await;
    // A genuine client is not dropped, however short the timeout of others is.
    let _served = peer.is_admitted().await;
}
