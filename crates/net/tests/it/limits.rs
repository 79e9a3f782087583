//! Limits: excess use is refused and counted, and the limits are never exceeded.

use std::time::Duration;

use net::limits::ConnectionLimits;
use net::service::{FaultKind, ServiceSettings};

use crate::harness::framed::{HEAD_BYTES, call, frame, open, piece};
use crate::harness::stand::{Plan, impatient, patient};
use crate::harness::{Said, Stand, Way, noise, over_every_transport, until};

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
    for stand in Stand::both(ServiceSettings { requests_in_flight_max: 2, ..patient() }) {
        let mut peer = stand.dial(way).await;
        peer.send_all(&[call(1, "wait x"), call(2, "wait x"), call(3, "echo no"), open(4, None, "collect no")]).await;
        peer.send_all(&[piece(4, b"skipped", true)]).await;
        stand.world.until_times("begin x", 2).await;
        // Requests of other peers, too.
        let mut other = stand.dial(way).await;
        other.ask_in_vain(5, "echo no", FaultKind::Busy).await;
        stand.world.open("x", 2);
        let mut said = peer.hear_all(4).await;
        said.sort_by_key(Said::id);
        assert_eq!(said[..2], [Said::Answer(1, b"x".into()), Said::Answer(2, b"x".into())]);
        assert!(said[2].is_fault(3, FaultKind::Busy) && said[3].is_fault(4, FaultKind::Busy), "{said:?}");
        peer.is_served().await;
        drop((peer, other));
        let totals = stand.is_left_alone().await;
        assert_eq!((totals.requests_started, totals.requests_refused), (6, 3));
    }
}

/// An idle worker does not keep permits from the other workers forever.
#[tokio::test]
async fn a_worker_that_is_idle_keeps_nothing_from_the_others() {
    let stand = Stand::out_of_order(ServiceSettings { requests_in_flight_max: 2, ..patient() });
    let mut one = stand.dial(Way::Tcp).await;
    let mut other = stand.dial(Way::Tcp).await;
    // Each on a separate worker.
    for id in 0..10 {
        one.send_all(&[call(id, "wait x"), call(100 + id, "wait x")]).await;
        stand.world.open("x", 2);
        one.hear_all(2).await;
    }
    let is_served = async {
        loop {
            other.send_all(&[call(1, "wait y"), call(2, "wait y")]).await;
            stand.world.open("y", 2);
            let said = other.hear_all(2).await;
            if said.iter().all(|said| matches!(said, Said::Answer(..))) {
                return;
            }
        }
    };
    crate::harness::within("both requests being served", is_served).await;
}

/// The frame after a refused one is decoded from its beginning.
#[tokio::test]
async fn a_large_request_that_is_refused_does_not_swallow_the_next() {
    for stand in Stand::both(ServiceSettings { requests_in_flight_max: 1, ..patient() }) {
        let mut holder = stand.dial(Way::Tcp).await;
        let mut peer = stand.dial(Way::Tcp).await;
        holder.send(&call(1, "wait x")).await;
        stand.world.until("begin x").await;
        let large = frame(b'K', 2, &noise(2, 1 << 20));
        let read = stand.totals().bytes_read;
        peer.send(&large[..100]).await;
        stand.has_read(read + 100).await;
        peer.send(&large[100..]).await;
        let said = peer.hear().await;
        assert!(said.is_fault(2, FaultKind::Busy), "{said:?}");
        peer.ask_in_vain(3, "echo small", FaultKind::Busy).await;
    }
}

async fn requests_of_one_connection_hold_its_reading(way: Way) {
    for stand in Stand::both(ServiceSettings { requests_per_connection_max: 3, ..patient() }) {
        let mut peer = stand.dial(way).await;
        let frames: Vec<Vec<u8>> = (0..10).map(|i| call(i, "wait x")).collect();
        peer.send_all(&frames).await;
        for i in 0..10 {
            stand.world.until_times("begin x", (3 + i).min(10)).await;
            assert_eq!(stand.world.noted("begin x"), (3 + i).min(10));
            stand.world.open("x", 1);
            let said = peer.hear().await;
            assert!(matches!(said, Said::Answer(..)), "{said:?}");
        }
        // Other connections were served in the meantime.
        stand.dial(way).await.is_served().await;
    }
}

async fn connections_beyond_the_cap_are_refused(way: Way) {
    let cap = 20;
    let limits = ConnectionLimits { opens_per_second_per_peer_max: None, ..ConnectionLimits::up_to(cap) };
    let stand = Stand::build(Plan { limits, ..Plan::default() });
    let mut held = Vec::new();
    for i in 0..3 * cap {
        match stand.try_dial(way).await {
            Ok(mut peer) => {
                if peer.is_let_in().await {
                    held.push(peer)
                } else {
                    assert!(i >= cap)
                }
            }
            Err(_refused) => assert!(i >= cap),
        }
    }
    assert_eq!(held.len(), cap);
    assert_eq!((stand.connections.open(), stand.connections.refused()), (cap, 2 * cap as u64));
    assert_eq!(stand.totals().connections(), cap as u64);
    // Admitted peers are served, and a freed place is used again.
    held[7].is_served().await;
    drop(held.remove(3));
    until("a place is free", || stand.connections.open() < cap).await;
    stand.dial(way).await.is_served().await;
    assert_eq!(stand.world.connections_max(), cap);
    drop(held);
    stand.is_left_alone().await;
}

/// The cap is shared by all listeners.
#[tokio::test]
async fn connections_of_all_listeners_together_do_not_exceed_the_cap() {
    let cap = 10;
    let limits = ConnectionLimits { opens_per_second_per_peer_max: None, ..ConnectionLimits::up_to(cap) };
    let stand = Stand::build(Plan { limits, ..Plan::default() });
    let ways = [Way::Tcp, Way::Tls, Way::Unix, Way::Quic, Way::Pipe];
    let come = ways.iter().cycle().take(3 * cap).map(async |way| match stand.try_dial(*way).await {
        Ok(mut peer) => peer.is_let_in().await.then_some(peer),
        Err(_refused) => None,
    });
    let held: Vec<_> = futures_util::future::join_all(come).await.into_iter().flatten().collect();
    // A failed handshake has returned its place, perhaps too late for another.
    assert!(!held.is_empty() && held.len() <= cap, "{}", held.len());
    assert!(stand.world.connections_max() <= cap);
    assert!(stand.connections.refused() >= (2 * cap) as u64);
    drop(held);
    stand.is_left_alone().await;
}

/// Returns two peers, of which one holds almost all of the memory for an incomplete frame.
async fn with_little_memory(stand: &Stand, way: Way) -> (crate::harness::Peer, Vec<u8>, crate::harness::Peer) {
    let mut greedy = stand.dial(way).await;
    let mut peer = stand.dial(way).await;
    for peer in [&mut greedy, &mut peer] {
        peer.is_served().await;
    }
    let large = frame(b'K', 1, &noise(1, 1000 << 10));
    let (most, end) = large.split_at(large.len() - 10);
    let read = stand.totals().bytes_read;
    greedy.send(most).await;
    stand.has_read(read + most.len() as u64).await;
    assert!(stand.memory.in_use() >= most.len() as u64, "{} for {}", stand.memory.in_use(), most.len());
    (greedy, end.to_vec(), peer)
}

/// An incomplete frame is charged for all its received bytes, however its buffer grows.
#[tokio::test]
async fn all_that_has_come_of_a_frame_is_charged() {
    let stand = Stand::in_order(patient());
    let mut peer = stand.dial(Way::Unix).await;
    let bytes = frame(b'K', 1, &noise(1, 8 << 20));
    let mut read = 0;
    for piece in bytes.chunks(100 << 10) {
        let in_use = stand.memory.in_use();
        assert!(in_use >= read && in_use <= read + (1 << 20), "{in_use} for {read}");
        peer.send(piece).await;
        read += piece.len() as u64;
        stand.has_read(read).await;
    }
    assert!(matches!(peer.hear().await, Said::Answer(1, _)));
    until("it is given back", || stand.memory.in_use() == 0).await;
}

fn little_memory(memory_wait: Duration) -> ServiceSettings {
    ServiceSettings { memory_bytes_max: 1 << 20, memory_wait, ..patient() }
}

async fn a_frame_waits_for_memory(way: Way) {
    for stand in Stand::both(little_memory(crate::harness::PATIENCE)) {
        for first in [HEAD_BYTES, 3 << 10, 200 << 10] {
            let (mut greedy, end, peer) = with_little_memory(&stand, way).await;
            let words = noise(2, 600 << 10);
            let bytes = frame(b'K', 2, &words);
            let read = stand.totals().bytes_read;
            // The bytes may not be accepted as a whole, so they are sent concurrently.
            let mut mouth = peer.mouth;
            let mut ear = peer.ear;
            let send = async {
                mouth.send(&bytes[..first]).await;
                stand.has_read(read + 1).await;
                mouth.send(&bytes[first..]).await;
            };
            let free = async {
                stand.has_read(read + 1).await;
                // Small frames need none of that memory.
                stand.dial(way).await.is_served().await;
                greedy.send(&end).await;
                greedy.hear().await
            };
            let (said, freed, ()) = tokio::join!(ear.hear(), free, send);
            assert!(matches!(freed, Said::Answer(1, _)), "{freed:?}");
            let Said::Answer(2, answered) = said else { panic!("first {first}: {said:?}") };
            assert!(answered.ends_with(&words));
            drop((greedy, mouth, ear, peer.quic));
            stand.is_left_alone().await;
        }
    }
}

async fn a_frame_that_waits_too_long_for_memory_is_answered_busy(way: Way) {
    for memory_wait in [Duration::ZERO, SHORT] {
        for stand in Stand::both(little_memory(memory_wait)) {
            for first in [HEAD_BYTES, 200 << 10] {
                let (mut greedy, end, mut peer) = with_little_memory(&stand, way).await;
                let bytes = frame(b'K', 2, &noise(2, 600 << 10));
                peer.send(&bytes[..first]).await;
                peer.ear.is_told_and_closed(FaultKind::Busy).await;
                greedy.send(&end).await;
                greedy.hear().await;
                drop((greedy, peer));
                stand.is_left_alone().await;
            }
        }
    }
}

/// Frames that are never complete do not hold the memory until they time out.
#[tokio::test]
async fn a_large_frame_that_does_not_come_on_ends_while_others_wait_for_its_memory() {
    for stand in Stand::both(little_memory(crate::harness::PATIENCE)) {
        let (mut greedy, _end, mut peer) = with_little_memory(&stand, Way::Tcp).await;
        let words = noise(2, 600 << 10);
        let mut mouth = peer.mouth;
        let mut ear = peer.ear;
        let bytes = frame(b'K', 2, &words);
        let (said, ()) = tokio::join!(ear.hear(), mouth.send(&bytes));
        let Said::Answer(2, answered) = said else { panic!("{said:?}") };
        assert!(answered.ends_with(&words));
        greedy.ear.is_told_and_closed(FaultKind::Timeout).await;
        peer.quic.take();
        drop((greedy, mouth, ear));
        stand.is_left_alone().await;
    }
}

/// While no other connection needs the memory, a slow frame has its full time.
#[tokio::test]
async fn a_large_frame_that_stops_for_a_while_is_kept_where_there_is_memory() {
    let stand = Stand::in_order(ServiceSettings { memory_bytes_max: 4 << 20, ..patient() });
    let (mut slow, end, _peer) = with_little_memory(&stand, Way::Tcp).await;
    // A peer whose first frame times out after three seconds, which have elapsed then.
    let clock = Stand::in_order(impatient(|timeouts| timeouts.read = Duration::from_secs(3)));
    let mut late = clock.dial(Way::Tcp).await;
    late.is_served().await;
    late.send(&frame(b'K', 1, b"words")[..HEAD_BYTES]).await;
    late.ear.is_told_and_closed(FaultKind::Timeout).await;
    slow.send(&end).await;
    assert!(matches!(slow.hear().await, Said::Answer(1, _)));
}

/// With ordered responses, its refusal waits for its turn.
#[tokio::test]
async fn a_frame_without_memory_is_refused_after_the_answers_before_it() {
    let stand = Stand::in_order(little_memory(SHORT));
    let (_greedy, _end, mut peer) = with_little_memory(&stand, Way::Tcp).await;
    let large = frame(b'K', 2, &noise(2, 600 << 10));
    peer.send(&call(1, "wait x")).await;
    stand.world.until("begin x").await;
    let refused = stand.memory.refused();
    peer.send(&large[..HEAD_BYTES]).await;
    until("it waits", || stand.memory.refused() > refused).await;
    // A peer that begins to wait later is refused, so the first one's time has elapsed as well.
    for _ in 0..2 {
        let mut clock = stand.dial(Way::Tcp).await;
        clock.send(&large[..HEAD_BYTES]).await;
        clock.ear.is_told_and_closed(FaultKind::Busy).await;
    }
    stand.world.open("x", 1);
    assert_eq!(peer.hear().await, Said::Answer(1, b"x".into()));
    peer.ear.is_told_and_closed(FaultKind::Busy).await;
}

/// Maximum bytes of answers between a handler and a peer that does not read: the outbox, one write, and the buffers of
/// the system at both ends.
const BETWEEN_BYTES_MAX: usize = 24 << 20;

async fn a_peer_that_never_reads_is_bounded_and_cut(way: Way) {
    let bytes = 64 << 10;
    let settings = ServiceSettings { outbox_bytes_max: 256 << 10, ..impatient(|timeouts| timeouts.write = 4 * SHORT) };
    for stand in Stand::both(settings) {
        // Later answers, and immediate ones.
        let mut slow = stand.dial(way).await;
        slow.send(&call(1, &format!("flood x 5000 {bytes}"))).await;
        stand.world.until("end x").await;
        let answered = stand.world.noted("x");
        assert!(answered * bytes < BETWEEN_BYTES_MAX, "{answered} answers for one that reads none");
        drop(slow);
        let mut slow = stand.dial(way).await;
        let frames: Vec<Vec<u8>> = (0..5000).map(|i| call(i, &format!("noise 1 {bytes} 1"))).collect();
        let started = stand.totals().requests_started;
        let _cut = crate::harness::within("being cut", slow.mouth.try_send(&frames.concat())).await;
        until("it is cut", || stand.totals().timeouts == 2).await;
        let answered = (stand.totals().requests_started - started) as usize;
        assert!(answered * bytes < BETWEEN_BYTES_MAX, "{answered} answers for one that reads none");
        drop(slow);
        assert_eq!(stand.is_left_alone().await.timeouts, 2);
        stand.dial(way).await.is_served().await;
    }
}

/// A request that excludes all others keeps its bytes until it is answered, and so the permit of its frame.
#[tokio::test]
async fn a_request_that_is_alone_is_charged_until_it_is_answered() {
    let stand = Stand::in_order(patient());
    let mut peer = stand.dial(Way::Unix).await;
    let words = format!("alone gate {}", "x".repeat(1 << 20));
    peer.send(&call(1, &words)).await;
    stand.world.until("begin gate").await;
    // It is handled by now, and another turn has ended once another peer is served.
    stand.dial(Way::Unix).await.is_served().await;
    assert!(stand.memory.in_use() >= words.len() as u64, "{}", stand.memory.in_use());
    stand.world.open("gate", 1);
    assert!(matches!(peer.hear().await, Said::Answer(1, _)));
    until("it is given back", || stand.memory.in_use() == 0).await;
}
