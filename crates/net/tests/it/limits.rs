//! Limits: excess use is refused and counted, and the limits are never exceeded.

use std::time::Duration;

use net::limits::ConnectionLimits;
use net::service::{FaultKind, ServiceSettings};

use crate::harness::framed::{HEAD_BYTES, call, frame, open, piece};
use crate::harness::stand::{Plan, impatient, patient};
use crate::harness::{Fixture, ServerFrame, Way, noise, over_every_transport, until};

over_every_transport!(
    requests_beyond_the_cap_are_answered_busy,
    requests_of_one_connection_hold_its_reading,
    connections_beyond_the_cap_are_refused,
    a_frame_waits_for_memory,
    a_frame_that_waits_too_long_for_memory_is_answered_busy,
    a_peer_that_never_reads_is_bounded_and_cut,
);

/// Timeout that is long enough for a check, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(50);

async fn requests_beyond_the_cap_are_answered_busy(way: Way) {
    for fixture in Fixture::both(ServiceSettings { requests_in_flight_max: 2, ..patient() }) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "wait x"), call(2, "wait x"), call(3, "echo no"), open(4, None, "collect no")]).await;
        peer.send_all(&[piece(4, b"skipped", true)]).await;
        fixture.world.until_times("begin x", 2).await;
        until("the others are refused", || fixture.totals().requests_refused == 2).await;
        // Requests of other peers, too.
        let mut other = fixture.dial(way).await;
        other.assert_fault(5, "echo no", FaultKind::Busy).await;
        fixture.world.open("x", 2);
        let mut received = peer.receive_all(4).await;
        received.sort_by_key(ServerFrame::id);
        assert_eq!(received[..2], [ServerFrame::Answer(1, b"x".into()), ServerFrame::Answer(2, b"x".into())]);
        assert!(received[2].is_fault(3, FaultKind::Busy) && received[3].is_fault(4, FaultKind::Busy), "{received:?}");
        peer.assert_served().await;
        drop((peer, other));
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.requests_started, totals.requests_refused), (6, 3));
    }
}

/// An idle worker does not keep permits from the other workers forever.
#[tokio::test]
async fn a_worker_that_is_idle_keeps_nothing_from_the_others() {
    let fixture = Fixture::out_of_order(ServiceSettings { requests_in_flight_max: 2, ..patient() });
    let mut one = fixture.dial(Way::Tcp).await;
    let mut other = fixture.dial(Way::Tcp).await;
    // Each on a separate worker.
    for id in 0..10 {
        one.send_all(&[call(id, "wait x"), call(100 + id, "wait x")]).await;
        fixture.world.open("x", 2);
        one.receive_all(2).await;
    }
    let is_served = async {
        loop {
            other.send_all(&[call(1, "wait y"), call(2, "wait y")]).await;
            fixture.world.open("y", 2);
            let received = other.receive_all(2).await;
            if received.iter().all(|received| matches!(received, ServerFrame::Answer(..))) {
                return;
            }
        }
    };
    crate::harness::within("both requests being served", is_served).await;
}

/// The frame after a refused one is decoded from its beginning.
#[tokio::test]
async fn a_large_request_that_is_refused_does_not_swallow_the_next() {
    for fixture in Fixture::both(ServiceSettings { requests_in_flight_max: 1, ..patient() }) {
        let mut holder = fixture.dial(Way::Tcp).await;
        let mut peer = fixture.dial(Way::Tcp).await;
        holder.send(&call(1, "wait x")).await;
        fixture.world.until("begin x").await;
        let large = frame(b'K', 2, &noise(2, 1 << 20));
        let read = fixture.totals().bytes_read;
        peer.send(&large[..100]).await;
        fixture.has_read(read + 100).await;
        peer.send(&large[100..]).await;
        let received = peer.receive().await;
        assert!(received.is_fault(2, FaultKind::Busy), "{received:?}");
        peer.assert_fault(3, "echo small", FaultKind::Busy).await;
    }
}

async fn requests_of_one_connection_hold_its_reading(way: Way) {
    for fixture in Fixture::both(ServiceSettings { requests_per_connection_max: 3, ..patient() }) {
        let mut peer = fixture.dial(way).await;
        let frames: Vec<Vec<u8>> = (0..10).map(|i| call(i, "wait x")).collect();
        peer.send_all(&frames).await;
        for i in 0..10 {
            fixture.world.until_times("begin x", (3 + i).min(10)).await;
            assert_eq!(fixture.world.noted("begin x"), (3 + i).min(10));
            fixture.world.open("x", 1);
            let received = peer.receive().await;
            assert!(matches!(received, ServerFrame::Answer(..)), "{received:?}");
        }
        // Other connections were served in the meantime.
        fixture.dial(way).await.assert_served().await;
    }
}

async fn connections_beyond_the_cap_are_refused(way: Way) {
    let cap = 20;
    let limits = ConnectionLimits { opens_per_second_per_peer_max: None, ..ConnectionLimits::up_to(cap) };
    let fixture = Fixture::build(Plan { limits, ..Plan::default() });
    let mut held = Vec::new();
    for i in 0..3 * cap {
        match fixture.try_dial(way).await {
            Ok(mut peer) => {
                if peer.is_admitted().await {
                    held.push(peer)
                } else {
                    assert!(i >= cap)
                }
            }
            Err(_refused) => assert!(i >= cap),
        }
    }
    assert_eq!(held.len(), cap);
    assert_eq!((fixture.connections.open(), fixture.connections.refused()), (cap, 2 * cap as u64));
    assert_eq!(fixture.totals().connections(), cap as u64);
    // Admitted peers are served, and a freed place is used again.
    held[7].assert_served().await;
    drop(held.remove(3));
    until("a place is free", || fixture.connections.open() < cap).await;
    fixture.dial(way).await.assert_served().await;
    assert_eq!(fixture.world.connections_max(), cap);
    drop(held);
    fixture.assert_all_released().await;
}

/// The cap is shared by all listeners.
#[tokio::test]
async fn connections_of_all_listeners_together_do_not_exceed_the_cap() {
    let cap = 10;
    let limits = ConnectionLimits { opens_per_second_per_peer_max: None, ..ConnectionLimits::up_to(cap) };
    let fixture = Fixture::build(Plan { limits, ..Plan::default() });
    let ways = [Way::Tcp, Way::Tls, Way::Unix, Way::Quic, Way::Pipe];
    let come = ways.iter().cycle().take(3 * cap).map(async |way| match fixture.try_dial(*way).await {
        Ok(mut peer) => peer.is_admitted().await.then_some(peer),
        Err(_refused) => None,
    });
    let held: Vec<_> = futures_util::future::join_all(come).await.into_iter().flatten().collect();
    // A failed handshake has returned its place, perhaps too late for another.
    assert!(!held.is_empty() && held.len() <= cap, "{}", held.len());
    assert!(fixture.world.connections_max() <= cap);
    assert!(fixture.connections.refused() >= (2 * cap) as u64);
    drop(held);
    fixture.assert_all_released().await;
}

/// Returns two peers, of which one holds almost all of the memory for an incomplete frame.
async fn with_little_memory(fixture: &Fixture, way: Way) -> (crate::harness::Peer, Vec<u8>, crate::harness::Peer) {
    let mut greedy = fixture.dial(way).await;
    let mut peer = fixture.dial(way).await;
    for peer in [&mut greedy, &mut peer] {
        peer.assert_served().await;
    }
    let large = frame(b'K', 1, &noise(1, 1000 << 10));
    let (most, end) = large.split_at(large.len() - 10);
    let read = fixture.totals().bytes_read;
    greedy.send(most).await;
    fixture.has_read(read + most.len() as u64).await;
    assert!(fixture.memory.in_use() >= most.len() as u64, "{} for {}", fixture.memory.in_use(), most.len());
    (greedy, end.to_vec(), peer)
}

/// An incomplete frame is charged for all its received bytes, however its buffer grows.
#[tokio::test]
async fn all_that_has_come_of_a_frame_is_charged() {
    let fixture = Fixture::in_order(patient());
    let mut peer = fixture.dial(Way::Unix).await;
    let bytes = frame(b'K', 1, &noise(1, 8 << 20));
    let mut read = 0;
    for piece in bytes.chunks(100 << 10) {
        let in_use = fixture.memory.in_use();
        assert!(in_use >= read && in_use <= read + (1 << 20), "{in_use} for {read}");
        peer.send(piece).await;
        read += piece.len() as u64;
        fixture.has_read(read).await;
    }
    assert!(matches!(peer.receive().await, ServerFrame::Answer(1, _)));
    until("it is released", || fixture.memory.in_use() == 0).await;
}

fn little_memory(memory_wait: Duration) -> ServiceSettings {
    ServiceSettings { memory_bytes_max: 1 << 20, memory_wait, ..patient() }
}

async fn a_frame_waits_for_memory(way: Way) {
    for fixture in Fixture::both(little_memory(crate::harness::PATIENCE)) {
        for first in [HEAD_BYTES, 3 << 10, 200 << 10] {
            let (mut greedy, end, peer) = with_little_memory(&fixture, way).await;
            let words = noise(2, 600 << 10);
            let bytes = frame(b'K', 2, &words);
            let read = fixture.totals().bytes_read;
            // The bytes may not be accepted as a whole, so they are sent concurrently.
            let mut writer = peer.writer;
            let mut reader = peer.reader;
            let send = async {
                writer.send(&bytes[..first]).await;
                fixture.has_read(read + 1).await;
                writer.send(&bytes[first..]).await;
            };
            let free = async {
                fixture.has_read(read + 1).await;
                // Small frames need none of that memory.
                fixture.dial(way).await.assert_served().await;
                greedy.send(&end).await;
                greedy.receive().await
            };
            let (received, freed, ()) = tokio::join!(reader.receive(), free, send);
            assert!(matches!(freed, ServerFrame::Answer(1, _)), "{freed:?}");
            let ServerFrame::Answer(2, answered) = received else { panic!("first {first}: {received:?}") };
            assert!(answered.ends_with(&words));
            drop((greedy, writer, reader, peer.quic));
            fixture.assert_all_released().await;
        }
    }
}

async fn a_frame_that_waits_too_long_for_memory_is_answered_busy(way: Way) {
    for memory_wait in [Duration::ZERO, SHORT] {
        for fixture in Fixture::both(little_memory(memory_wait)) {
            for first in [HEAD_BYTES, 200 << 10] {
                let (mut greedy, end, mut peer) = with_little_memory(&fixture, way).await;
                let bytes = frame(b'K', 2, &noise(2, 600 << 10));
                peer.send(&bytes[..first]).await;
                peer.reader.assert_fault_and_end(FaultKind::Busy).await;
                greedy.send(&end).await;
                greedy.receive().await;
                drop((greedy, peer));
                fixture.assert_all_released().await;
            }
        }
    }
}

/// Frames that are never complete do not hold the memory until they time out.
#[tokio::test]
async fn a_large_frame_that_does_not_come_on_ends_while_others_wait_for_its_memory() {
    for fixture in Fixture::both(little_memory(crate::harness::PATIENCE)) {
        let (mut greedy, _end, mut peer) = with_little_memory(&fixture, Way::Tcp).await;
        let words = noise(2, 600 << 10);
        let mut writer = peer.writer;
        let mut reader = peer.reader;
        let bytes = frame(b'K', 2, &words);
        let (received, ()) = tokio::join!(reader.receive(), writer.send(&bytes));
        let ServerFrame::Answer(2, answered) = received else { panic!("{received:?}") };
        assert!(answered.ends_with(&words));
        greedy.reader.assert_fault_and_end(FaultKind::Timeout).await;
        peer.quic.take();
        drop((greedy, writer, reader));
        fixture.assert_all_released().await;
    }
}

/// While no other connection needs the memory, a slow frame has its full time.
#[tokio::test]
async fn a_stalled_large_frame_is_kept_while_memory_is_available() {
    let fixture = Fixture::in_order(ServiceSettings { memory_bytes_max: 4 << 20, ..patient() });
    let (mut slow, end, _peer) = with_little_memory(&fixture, Way::Tcp).await;
    // A peer whose first frame times out after three seconds, which have elapsed then.
    let clock = Fixture::in_order(impatient(|timeouts| timeouts.read = Duration::from_secs(3)));
    let mut late = clock.dial(Way::Tcp).await;
    late.assert_served().await;
    late.send(&frame(b'K', 1, b"words")[..HEAD_BYTES]).await;
    late.reader.assert_fault_and_end(FaultKind::Timeout).await;
    slow.send(&end).await;
    assert!(matches!(slow.receive().await, ServerFrame::Answer(1, _)));
}

/// With ordered responses, its refusal waits for its turn.
#[tokio::test]
async fn a_frame_without_memory_is_refused_after_the_answers_before_it() {
    let fixture = Fixture::in_order(little_memory(SHORT));
    let (_greedy, _end, mut peer) = with_little_memory(&fixture, Way::Tcp).await;
    let large = frame(b'K', 2, &noise(2, 600 << 10));
    peer.send(&call(1, "wait x")).await;
    fixture.world.until("begin x").await;
    let refused = fixture.memory.refused();
    peer.send(&large[..HEAD_BYTES]).await;
    until("it waits", || fixture.memory.refused() > refused).await;
    // A peer that begins to wait later is refused, so the first one's time has elapsed as well.
    for _ in 0..2 {
        let mut clock = fixture.dial(Way::Tcp).await;
        clock.send(&large[..HEAD_BYTES]).await;
        clock.reader.assert_fault_and_end(FaultKind::Busy).await;
    }
    fixture.world.open("x", 1);
    assert_eq!(peer.receive().await, ServerFrame::Answer(1, b"x".into()));
    peer.reader.assert_fault_and_end(FaultKind::Busy).await;
}

/// Maximum bytes of answers between a handler and a peer that does not read: the outbox, one write, and the buffers of
/// the system at both ends.
const BETWEEN_BYTES_MAX: usize = 24 << 20;

async fn a_peer_that_never_reads_is_bounded_and_cut(way: Way) {
    let bytes = 64 << 10;
    let settings = ServiceSettings { outbox_bytes_max: 256 << 10, ..impatient(|timeouts| timeouts.write = 4 * SHORT) };
    for fixture in Fixture::both(settings) {
        // Later answers, and immediate ones.
        let mut slow = fixture.dial(way).await;
        slow.send(&call(1, &format!("flood x 5000 {bytes}"))).await;
        fixture.world.until("end x").await;
        let answered = fixture.world.noted("x");
        assert!(answered * bytes < BETWEEN_BYTES_MAX, "{answered} answers for one that reads none");
        drop(slow);
        let mut slow = fixture.dial(way).await;
        let frames: Vec<Vec<u8>> = (0..5000).map(|i| call(i, &format!("noise 1 {bytes} 1"))).collect();
        let started = fixture.totals().requests_started;
        let _cut = crate::harness::within("being cut", slow.writer.try_send(&frames.concat())).await;
        until("it is cut", || fixture.totals().timeouts == 2).await;
        let answered = (fixture.totals().requests_started - started) as usize;
        assert!(answered * bytes < BETWEEN_BYTES_MAX, "{answered} answers for one that reads none");
        drop(slow);
        assert_eq!(fixture.assert_all_released().await.timeouts, 2);
        fixture.dial(way).await.assert_served().await;
    }
}

/// A request that excludes all others keeps its bytes until it is answered, and so the permit of its frame.
#[tokio::test]
async fn a_request_that_is_alone_is_charged_until_it_is_answered() {
    let fixture = Fixture::in_order(patient());
    let mut peer = fixture.dial(Way::Unix).await;
    let words = format!("alone gate {}", "x".repeat(1 << 20));
    peer.send(&call(1, &words)).await;
    fixture.world.until("begin gate").await;
    // It is handled by now, and another turn has ended once another peer is served.
    fixture.dial(Way::Unix).await.assert_served().await;
    assert!(fixture.memory.in_use() >= words.len() as u64, "{}", fixture.memory.in_use());
    fixture.world.open("gate", 1);
    assert!(matches!(peer.receive().await, ServerFrame::Answer(1, _)));
    until("it is released", || fixture.memory.in_use() == 0).await;
}
