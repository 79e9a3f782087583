//! Counters of a service, compared with the events.

use net::service::{FaultKind, ServiceSettings};
use net::telemetry::TelemetrySettings;

use crate::harness::framed::{call, frame, one_way, open, piece};
use crate::harness::stand::{Plan, patient};
use crate::harness::{Fixture, ServerFrame, Way, over_every_transport, until};

over_every_transport!(everything_is_counted_once, every_request_has_its_duration);

fn measured() -> ServiceSettings {
    ServiceSettings { telemetry: TelemetrySettings { bytes: true, durations: true }, ..patient() }
}

async fn everything_is_counted_once(way: Way) {
    for is_in_order in [true, false] {
        // On one worker, because another worker may keep the only permit of a cap for a moment.
        let settings = ServiceSettings { streamed_bodies_max: 1, ..measured() };
        let fixture = Fixture::build(Plan { is_in_order, settings, workers: 1, ..Plan::default() });
        let frames = [
            call(1, "echo at once"),
            call(2, "wait later"),
            call(3, "echo behind"),
            call(4, "several more 3"),
            call(5, "nothing"),
            one_way("note told"),
            open(6, None, "keep body"),
            piece(6, b"body", true),
            open(7, None, "collect refused"),
            piece(7, b"refused", true),
            call(8, "noise 8 100000 3"),
        ];
        let count = 8;
        let peers = 3;
        let mut bytes_received = 0;
        for peer in 0..peers {
            let mut peer_of = fixture.dial(way).await;
            peer_of.send_all(&frames).await;
            fixture.world.open("later", 1);
            fixture.world.open("more", 3);
            until("one is refused", || fixture.totals().requests_refused == peer as u64 + 1).await;
            fixture.world.open("body", 1);
            for _ in 0..count + 2 {
                bytes_received += peer_of.receive().await.frame_bytes();
            }
            let peer = peer as u64 + 1;
            until("all is counted", || fixture.totals().requests_completed == peer * count).await;
        }
        let totals = fixture.assert_all_released().await;
        let sent = frames.concat().len() as u64 * peers as u64;
        assert_eq!((totals.bytes_read, totals.bytes_written), (sent, bytes_received as u64));
        assert_eq!((totals.connections_opened, totals.requests_started), (3, 3 * count));
        assert_eq!((totals.messages, totals.requests_refused), (3, 3));
        assert_eq!((totals.faults, totals.timeouts, totals.panics), (0, 0, 0));
        assert_eq!((totals.connections(), totals.requests_in_flight()), (0, 0));

        let mut bad = fixture.dial(way).await;
        bad.send(&frame(b'?', 1, b"")).await;
        bad.reader.assert_fault_and_end(FaultKind::Malformed).await;
        drop(bad);
        assert_eq!(fixture.assert_all_released().await.faults, 1);
    }
}

/// Immediately, after another, later, or after several answers: every answered request is counted, none twice.
async fn every_request_has_its_duration(way: Way) {
    for fixture in Fixture::both(measured()) {
        let mut peer = fixture.dial(way).await;
        let at_once: Vec<u8> = (0..100).flat_map(|id| call(id, "echo x")).collect();
        assert_eq!(peer.exchange(&at_once, 100).await.len(), 100);
        peer.send_all(&[call(1, "wait x"), call(2, "echo behind"), call(3, "several y 2"), call(4, "nothing")]).await;
        fixture.world.until("begin y").await;
        fixture.world.open("x", 1);
        fixture.world.open("y", 2);
        assert_eq!(peer.receive_all(5).await.len(), 5);
        peer.send_all(&[open(5, None, "collect z"), piece(5, b"z", true)]).await;
        assert_eq!(peer.receive().await, ServerFrame::Answer(5, b"z".into()));
        drop(peer);
        let totals = fixture.assert_all_released().await;
        let net::telemetry::Distribution { buckets, sum_ns, .. } = fixture.telemetry.durations();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        assert_eq!((count, totals.requests_completed), (105, 105));
        let most: u64 = buckets.iter().map(|(bound, count)| bound * count).sum();
        assert!(0 < sum_ns && sum_ns <= most, "{sum_ns} of at most {most}");
    }
}

/// Answers to pipelined requests are written after their turn, and counted once, however the connection ends.
#[tokio::test]
async fn bytes_that_are_written_after_their_turn_are_counted_once() {
    let fixture = Fixture::in_order(measured());
    let mut peer = fixture.dial_abrupt(Way::Tcp).await;
    let requests: Vec<u8> = (0..100).flat_map(|id| call(id, "echo x")).collect();
    let mut bytes = 0;
    for _ in 0..10 {
        bytes += peer.exchange(&requests, 100).await.iter().map(ServerFrame::frame_bytes).sum::<usize>() as u64;
    }
    assert_eq!(fixture.totals().bytes_written, bytes);
    drop(peer);
    assert_eq!(fixture.assert_all_released().await.bytes_written, bytes);
}

/// Disabled measurements cost nothing and count nothing.
#[tokio::test]
async fn bytes_and_durations_are_counted_only_where_they_are_wanted() {
    let telemetry = TelemetrySettings { bytes: false, durations: false };
    let fixture = Fixture::in_order(ServiceSettings { telemetry, ..patient() });
    let mut peer = fixture.dial(Way::Tcp).await;
    peer.assert_served().await;
    peer.send(&call(1, "wait x")).await;
    fixture.world.open("x", 1);
    peer.receive().await;
    drop(peer);
    let totals = fixture.assert_all_released().await;
    assert_eq!((totals.requests_started, totals.bytes_read, totals.bytes_written), (2, 0, 0));
    assert_eq!(fixture.telemetry.durations(), net::telemetry::Distribution::default());
}
