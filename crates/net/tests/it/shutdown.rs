//! Shutdown: requests in progress are finished, no new work is accepted, and remaining connections are cut at the
//! deadline.

use std::time::Duration;

use net::service::FaultKind;

use crate::harness::framed::{call, open, piece, tell};
use crate::harness::stand::patient;
use crate::harness::{PATIENCE, Said, Stand, Way, noise, over_every_transport, until, within};

over_every_transport!(
    what_is_asked_is_answered_before_the_end,
    a_body_that_is_coming_is_taken_to_its_end,
    a_message_that_is_begun_is_finished,
    whoever_has_not_asked_yet_is_told,
    whoever_does_not_end_is_cut_at_the_deadline,
    answers_reach_a_peer_that_has_said_all_it_wants,
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
async fn is_closed_to(stand: &Stand, way: Way) {
    match stand.try_dial(way).await {
        Ok(mut late) => {
            let _sent = within("sending", late.mouth.try_send(&call(1, "echo late"))).await;
            let said = late.ear.next().await;
            assert!(said.as_ref().is_none_or(|said| said.is_fault(0, FaultKind::ShuttingDown)), "{said:?}");
        }
        Err(refused) => assert_ne!(refused.kind(), std::io::ErrorKind::TimedOut, "{refused}"),
    }
}

async fn what_is_asked_is_answered_before_the_end(way: Way) {
    for stand in Stand::both(patient()) {
        let mut peer = stand.dial(way).await;
        peer.send_all(&[call(1, "wait x"), call(2, "several y 2"), call(3, "noise 3 2000000 1")]).await;
        stand.world.until("begin y").await;
        let end = async {
            stand.world.until("drain").await;
            is_closed_to(&stand, way).await;
            // It is too late for another request.
            let _lost = peer.mouth.try_send(&call(4, "echo late")).await;
            stand.world.open("x", 1);
            stand.world.open("y", 2);
            let mut said = peer.ear.hear_all(5).await;
            let at = said.iter().position(|said| *said == Said::Push(0, b"going away".into())).expect("a word");
            said.remove(at);
            if !stand.is_in_order {
                said.sort_by_key(Said::id);
            }
            assert_eq!(said[0], Said::Answer(1, b"x".into()));
            assert_eq!(said[1..3], [0, 1].map(|i| Said::Answer(2, format!("y {i}").into())));
            assert!(said[3] == Said::Answer(3, noise(3, 2_000_000)), "{:?}", said[3]);
            peer.ear.hears_the_end().await;
            peer.mouth.finish().await;
            closes_its_connection(&peer).await;
        };
        let (ended, ()) = tokio::join!(stand.end(PATIENCE), end);
        assert!(ended.is_clean() && ended.stuck == 0 && ended.draining > 0, "{ended:?}");
        if way != Way::Quic {
            is_closed_to(&stand, way).await;
        }
        let totals = stand.is_left_alone().await;
        assert_eq!((totals.requests_started, totals.faults), (3, 0));
    }
}

async fn a_body_that_is_coming_is_taken_to_its_end(way: Way) {
    for stand in Stand::both(patient()) {
        let mut peer = stand.dial(way).await;
        peer.send_all(&[open(1, None, "collect x"), piece(1, b"first, ", false)]).await;
        stand.world.until("begin x").await;
        let end = async {
            stand.world.until("drain").await;
            assert_eq!(peer.hear().await, Said::Push(0, b"going away".into()));
            peer.send(&piece(1, b"second, ", false)).await;
            if !stand.is_in_order {
                // A request between the pieces is refused.
                peer.send_all(&[call(2, "echo late"), tell("note late")]).await;
                let said = peer.hear().await;
                assert!(said.is_fault(2, FaultKind::ShuttingDown), "{said:?}");
            }
            peer.send(&piece(1, b"last", true)).await;
            assert_eq!(peer.hear().await, Said::Answer(1, b"first, second, last".into()));
            peer.ear.hears_the_end().await;
            drop(peer);
        };
        let (ended, ()) = tokio::join!(stand.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
        assert_eq!((stand.world.noted("late"), stand.world.noted("begin late")), (0, 0));
        stand.is_left_alone().await;
    }
}

async fn a_message_that_is_begun_is_finished(way: Way) {
    for stand in Stand::both(patient()) {
        let mut peer = stand.dial(way).await;
        peer.send(&tell("hold x")).await;
        stand.world.until("begin x").await;
        let end = async {
            stand.world.until("drain").await;
            assert_eq!(peer.hear().await, Said::Push(0, b"going away".into()));
            stand.world.open("x", 1);
            stand.world.until("passed x").await;
            peer.ear.hears_the_end().await;
            drop(peer);
        };
        let (ended, ()) = tokio::join!(stand.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
    }
}

async fn whoever_has_not_asked_yet_is_told(way: Way) {
    for stand in Stand::both(patient()) {
        let mut silent = stand.dial(way).await;
        let mut half = stand.dial(way).await;
        half.send(&call(1, "echo x")[..5]).await;
        stand.has_read(5).await;
        // A connection whose silence is not detected yet cannot be notified; over QUIC there is no stream for it.
        until("both are open", || stand.totals().connections() == 2).await;
        let end = async {
            if way != Way::Quic {
                silent.ear.is_told_and_closed(FaultKind::ShuttingDown).await;
            }
            half.ear.is_told_and_closed(FaultKind::ShuttingDown).await;
            closes_its_connection(&silent).await;
            drop((silent, half));
        };
        let (ended, ()) = tokio::join!(stand.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
        let totals = stand.totals();
        assert_eq!((totals.faults, totals.timeouts), (0, 0), "that is nobody's fault");
    }
}

async fn whoever_does_not_end_is_cut_at_the_deadline(way: Way) {
    for stand in Stand::both(patient()) {
        let mut asking = stand.dial(way).await;
        let mut deaf = stand.dial(way).await;
        let mut mute = stand.dial(way).await;
        // A handler that never ends, a peer that does not read, a body that does not arrive.
        asking.send(&call(1, "never")).await;
        deaf.send(&call(1, "flood x 2000 65536")).await;
        mute.send(&open(1, None, "collect y")).await;
        for begun in ["begin never", "x", "begin y"] {
            stand.world.until(begun).await;
        }
        let ended = stand.end(SHORT).await;
        assert!(ended.aborted >= 3, "{ended:?}");
        assert_eq!(ended.stuck, 0, "{ended:?}");
        for peer in [&mut asking, &mut mute] {
            assert_eq!(peer.ear.next().await, Some(Said::Push(0, b"going away".into())));
            peer.ear.hears_the_end().await;
        }
        drop((asking, deaf, mute));
        stand.is_left_alone().await;
    }
}

/// The end follows immediately after the answer: over QUIC the connection is closed only when the answer has arrived.
async fn answers_reach_a_peer_that_has_said_all_it_wants(way: Way) {
    for stand in Stand::both(patient()) {
        let mut peer = stand.dial(way).await;
        peer.send(&call(1, "wait x")).await;
        peer.send(&call(2, "noise 2 300000 3")).await;
        stand.world.until("begin x").await;
        until("both are asked", || stand.totals().requests_started == 2).await;
        let end = async {
            stand.world.until("drain").await;
            peer.mouth.finish().await;
            stand.world.open("x", 1);
            let mut said = peer.hear_all(3).await;
            said.sort_by_key(Said::id);
            assert_eq!(said[..2], [Said::Push(0, b"going away".into()), Said::Answer(1, b"x".into())]);
            assert!(said[2] == Said::Answer(2, noise(2, 300_000)), "{:?}", said[2]);
            peer.ear.hears_the_end().await;
        };
        let (ended, ()) = tokio::join!(stand.end(PATIENCE), end);
        assert!(ended.is_clean(), "{ended:?}");
    }
}

/// Answers arrive even if the peer has closed its half before, and its last request is answered during the shutdown.
#[tokio::test]
async fn answers_reach_a_peer_that_had_said_all_before() {
    for way in [Way::Tcp, Way::Tls, Way::Unix, Way::Quic, Way::Pipe] {
        for stand in Stand::both(patient()) {
            let mut peer = stand.dial(way).await;
            peer.send(&call(1, "wait x")).await;
            peer.mouth.finish().await;
            stand.world.until("begin x").await;
            let end = async {
                until("nobody gets in", || stand.shutdown.drain().has_begun()).await;
                stand.world.open("x", 1);
                // The shutdown is reported to a peer whose end was not received yet.
                let mut said = Vec::new();
                while let Some(more) = peer.ear.next().await {
                    said.push(more);
                }
                said.retain(|said| !matches!(said, Said::Push(..)));
                assert_eq!(said, [Said::Answer(1, b"x".into())], "{way:?}");
            };
            let (ended, ()) = tokio::join!(stand.end(PATIENCE), end);
            assert!(ended.is_clean(), "{way:?}: {ended:?}");
        }
    }
}

/// Handshakes in progress delay the end no longer than its deadline.
#[tokio::test]
async fn a_handshake_does_not_hold_the_end_up() {
    let stand = Stand::in_order(patient());
    let tcp = tokio::net::TcpStream::connect(stand.socket_address(Way::Tls)).await.expect("connected");
    let first = stand.first_quic_packet().await;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.send_to(&first, stand.socket_address(Way::Quic)).expect("sent");
    until("both have begun", || stand.connections.open() == 2).await;
    let ended = stand.end(SHORT).await;
    // The endpoint may still repeat to the other that it was closed.
    assert!(ended.aborted <= 1 && ended.stuck == 0, "{ended:?}");
    drop(tcp);
    assert_eq!(stand.connections.open(), 0);
}

/// Dropping the server and its workers ends them, with every listener open.
#[tokio::test]
async fn dropping_everything_ends_it() {
    for way in [Way::Tcp, Way::Tls, Way::Unix, Way::Quic, Way::Pipe] {
        let stand = Stand::in_order(patient());
        let mut peer = stand.dial(way).await;
        peer.send(&call(1, "wait x")).await;
        stand.world.until("begin x").await;
        let world = stand.world.clone();
        let workers = std::sync::Arc::downgrade(&stand.workers);
        drop(stand);
        // Listeners are tasks of this runtime, which continue until it ends; over QUIC they are on the workers.
        if matches!(way, Way::Quic | Way::Pipe) {
            until("the workers are gone", || workers.strong_count() == 0).await;
            world.until("end x").await;
            peer.ear.hears_the_end().await;
        }
    }
}
