//! Shutdown: requests in progress are finished, no new work is accepted, and remaining connections are cut at the
//! deadline.

use std::time::Duration;

use net::service::FaultKind;

use crate::harness::framed::{call, one_way, open, piece};
use crate::harness::stand::patient;
use crate::harness::{Fixture, PATIENCE, ServerFrame, Way, noise, over_every_transport, until, within};

over_every_transport!(
    started_requests_are_answered_before_the_end,
    a_body_that_is_coming_is_taken_to_its_end,
    a_message_that_is_begun_is_finished,
    a_paused_stream_does_not_delay_the_end,
    a_peer_without_a_request_receives_a_fault,
    peers_that_do_not_end_are_cut_at_the_deadline,
    answers_reach_a_peer_that_closes_its_half,
);

/// Deadline that a test waits for.
const SHORT: Duration = Duration::from_millis(100);

/// Asserts that a QUIC connection ends as well, with the protocol's code for this.
async fn closes_its_connection(peer: &crate::harness::Peer) {
    if let Some((quic, _)) = &peer.quic {
        match within("the connection being closed", quic.closed()).await {
            quinn::ConnectionError::ApplicationClosed(close) => {
                assert_eq!(close.error_code.into_inner(), 100 + FaultKind::ShuttingDown as u64);
            }
            other => panic!("{other}"),
        }
    }
}

/// Asserts that new connections are refused, and not left waiting, after the shutdown has begun.
async fn is_closed_to(fixture: &Fixture, way: Way) {
    match fixture.try_dial(way).await {
        Ok(mut late) => {
            let _sent = within("sending", late.writer.try_send(&call(1, "echo late"))).await;
            let received = late.reader.next().await;
            assert!(
                received.as_ref().is_none_or(|received| received.is_fault(0, FaultKind::ShuttingDown)),
                "{received:?}"
            );
        }
        Err(refused) => assert_ne!(refused.kind(), std::io::ErrorKind::TimedOut, "{refused}"),
    }
}

async fn started_requests_are_answered_before_the_end(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "wait x"), call(2, "several y 2"), call(3, "noise 3 2000000 1")]).await;
        fixture.world.until("begin y").await;
        let end = async {
            fixture.world.until("drain").await;
            is_closed_to(&fixture, way).await;
            // It is too late for another request.
            let _lost = peer.writer.try_send(&call(4, "echo late")).await;
            fixture.world.open("x", 1);
            fixture.world.open("y", 2);
            let mut received = peer.reader.receive_all(5).await;
            let at = received
                .iter()
                .position(|received| *received == ServerFrame::Push(0, b"going away".into()))
                .expect("the announcement");
            received.remove(at);
            if !fixture.is_in_order {
                received.sort_by_key(ServerFrame::id);
            }
            assert_eq!(received[0], ServerFrame::Answer(1, b"x".into()));
            assert_eq!(received[1..3], [0, 1].map(|i| ServerFrame::Answer(2, format!("y {i}").into())));
            assert!(received[3] == ServerFrame::Answer(3, noise(3, 2_000_000)), "{:?}", received[3]);
            peer.reader.assert_end().await;
            peer.writer.finish().await;
            closes_its_connection(&peer).await;
        };
        let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
        assert!(ended.is_clean() && ended.stuck == 0 && ended.draining > 0, "{ended:?}");
        if way != Way::Quic {
            is_closed_to(&fixture, way).await;
        }
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.requests_started, totals.faults), (3, 0));
    }
}

async fn a_body_that_is_coming_is_taken_to_its_end(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[open(1, None, "collect x"), piece(1, b"first, ", false)]).await;
        fixture.world.until("begin x").await;
        let end = async {
            fixture.world.until("drain").await;
            assert_eq!(peer.receive().await, ServerFrame::Push(0, b"going away".into()));
            peer.send(&piece(1, b"second, ", false)).await;
            if !fixture.is_in_order {
                // A request between the pieces is refused.
                peer.send_all(&[call(2, "echo late"), one_way("note late")]).await;
                let received = peer.receive().await;
                assert!(received.is_fault(2, FaultKind::ShuttingDown), "{received:?}");
            }
            peer.send(&piece(1, b"last", true)).await;
            assert_eq!(peer.receive().await, ServerFrame::Answer(1, b"first, second, last".into()));
            peer.reader.assert_end().await;
            drop(peer);
        };
        let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
        assert_eq!((fixture.world.noted("late"), fixture.world.noted("begin late")), (0, 0));
        fixture.assert_all_released().await;
    }
}

async fn a_message_that_is_begun_is_finished(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send(&one_way("hold x")).await;
        fixture.world.until("begin x").await;
        let end = async {
            fixture.world.until("drain").await;
            assert_eq!(peer.receive().await, ServerFrame::Push(0, b"going away".into()));
            fixture.world.open("x", 1);
            fixture.world.until("passed x").await;
            peer.reader.assert_end().await;
            drop(peer);
        };
        let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
    }
}

async fn a_peer_without_a_request_receives_a_fault(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut silent = fixture.dial(way).await;
        let mut half = fixture.dial(way).await;
        half.send(&call(1, "echo x")[..5]).await;
        fixture.has_read(5).await;
        // A connection whose silence is not detected yet cannot be notified; over QUIC there is no stream for it.
        until("both are open", || fixture.totals().connections() == 2).await;
        let end = async {
            if way != Way::Quic {
                silent.reader.assert_fault_and_end(FaultKind::ShuttingDown).await;
            }
            half.reader.assert_fault_and_end(FaultKind::ShuttingDown).await;
            closes_its_connection(&silent).await;
            drop((silent, half));
        };
        let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
        let totals = fixture.totals();
        assert_eq!((totals.faults, totals.timeouts), (0, 0), "neither a fault nor a timeout");
    }
}

async fn peers_that_do_not_end_are_cut_at_the_deadline(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut asking = fixture.dial(way).await;
        let mut deaf = fixture.dial(way).await;
        let mut mute = fixture.dial(way).await;
        // A handler that never ends, a peer that does not read, a body that does not arrive.
        asking.send(&call(1, "never")).await;
        deaf.send(&call(1, "flood x 2000 65536")).await;
        mute.send(&open(1, None, "collect y")).await;
        for begun in ["begin never", "x", "begin y"] {
            fixture.world.until(begun).await;
        }
        let ended = fixture.end(SHORT).await;
        assert!(ended.aborted >= 3, "{ended:?}");
        assert_eq!(ended.stuck, 0, "{ended:?}");
        for peer in [&mut asking, &mut mute] {
            assert_eq!(peer.reader.next().await, Some(ServerFrame::Push(0, b"going away".into())));
            peer.reader.assert_end().await;
        }
        drop((asking, deaf, mute));
        fixture.assert_all_released().await;
    }
}

/// The end follows immediately after the answer: over QUIC the connection is closed only when the answer has arrived.
async fn answers_reach_a_peer_that_closes_its_half(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send(&call(1, "wait x")).await;
        peer.send(&call(2, "noise 2 300000 3")).await;
        fixture.world.until("begin x").await;
        until("both requests have started", || fixture.totals().requests_started == 2).await;
        let end = async {
            fixture.world.until("drain").await;
            peer.writer.finish().await;
            fixture.world.open("x", 1);
            let mut received = peer.receive_all(3).await;
            received.sort_by_key(ServerFrame::id);
            assert_eq!(
                received[..2],
                [ServerFrame::Push(0, b"going away".into()), ServerFrame::Answer(1, b"x".into())]
            );
            assert!(received[2] == ServerFrame::Answer(2, noise(2, 300_000)), "{:?}", received[2]);
            peer.reader.assert_end().await;
        };
        let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
    }
}

/// Answers arrive even if the peer has closed its half before, and its last request is answered during the shutdown.
#[tokio::test]
async fn answers_reach_a_peer_that_closed_its_half_before() {
    for way in [Way::Tcp, Way::Tls, Way::Unix, Way::Quic, Way::Pipe] {
        for fixture in Fixture::both(patient()) {
            let mut peer = fixture.dial(way).await;
            peer.send(&call(1, "wait x")).await;
            peer.writer.finish().await;
            fixture.world.until("begin x").await;
            let end = async {
                until("connections are refused", || fixture.shutdown.drain().has_begun()).await;
                fixture.world.open("x", 1);
                // The shutdown is reported to a peer whose end was not received yet.
                let mut received = Vec::new();
                while let Some(more) = peer.reader.next().await {
                    received.push(more);
                }
                received.retain(|received| !matches!(received, ServerFrame::Push(..)));
                assert_eq!(received, [ServerFrame::Answer(1, b"x".into())], "{way:?}");
            };
            let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
            assert!(ended.is_clean(), "{way:?}: {ended:?}");
        }
    }
}

/// Handshakes in progress delay the end no longer than its deadline.
#[tokio::test]
async fn a_handshake_does_not_hold_the_end_up() {
    let fixture = Fixture::in_order(patient());
    let tcp = tokio::net::TcpStream::connect(fixture.socket_address(Way::Tls)).await.expect("connected");
    let first = fixture.first_quic_packet().await;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.send_to(&first, fixture.socket_address(Way::Quic)).expect("sent");
    until("both have begun", || fixture.connections.open() == 2).await;
    let ended = fixture.end(SHORT).await;
    // The endpoint may still repeat to the other that it was closed.
    assert!(ended.aborted <= 1 && ended.stuck == 0, "{ended:?}");
    drop(tcp);
    assert_eq!(fixture.connections.open(), 0);
}

/// Dropping the server and its workers ends them, with every listener open.
#[tokio::test]
async fn dropping_everything_ends_it() {
    for way in [Way::Tcp, Way::Tls, Way::Unix, Way::Quic, Way::Pipe] {
        let fixture = Fixture::in_order(patient());
        let mut peer = fixture.dial(way).await;
        peer.send(&call(1, "wait x")).await;
        fixture.world.until("begin x").await;
        let world = fixture.world.clone();
        let workers = std::sync::Arc::downgrade(&fixture.workers);
        drop(fixture);
        // Listeners are tasks of this runtime, which continue until it ends; over QUIC they are on the workers.
        if matches!(way, Way::Quic | Way::Pipe) {
            until("the workers are gone", || workers.strong_count() == 0).await;
            world.until("end x").await;
            peer.reader.assert_end().await;
        }
    }
}

async fn a_paused_stream_does_not_delay_the_end(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        assert_eq!(peer.request(1, "pause p").await, b"paused");
        fixture.world.until("begin p").await;
        let end = async {
            fixture.world.until("drain").await;
            assert_eq!(peer.receive().await, ServerFrame::Push(0, b"going away".into()));
            peer.reader.assert_end().await;
            drop(peer);
        };
        let (ended, ()) = tokio::join!(fixture.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
    }
}
