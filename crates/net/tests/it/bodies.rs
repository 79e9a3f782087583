//! Bodies in pieces, in both directions: complete, bounded in memory, and at the pace of their readers.

use net::service::{FaultKind, ServiceSettings};

use crate::harness::framed::{call, one_way, open, open_raw, piece};
use crate::harness::stand::patient;
use crate::harness::{Fixture, ServerFrame, Way, noise, over_every_transport, until};

over_every_transport!(
    a_body_comes_whole,
    bodies_may_come_at_the_same_time,
    many_bodies_at_once_do_not_wait_for_each_other,
    in_order_nothing_comes_before_a_body_is_whole,
    a_slow_handler_slows_its_peer,
    a_slow_peer_slows_its_handler,
    a_body_that_is_dropped_is_read_to_its_end,
    a_body_over_the_limit_is_refused,
    bodies_beyond_the_cap_are_answered_busy,
    a_body_that_is_cut_is_not_taken_for_a_whole_one,
);

/// Splits a body into pieces of these sizes.
fn pieces(id: u32, body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut rest = body;
    for size in sizes.iter().cycle() {
        let (first, more) = rest.split_at((*size).min(rest.len()));
        frames.extend(piece(id, first, more.is_empty()));
        if more.is_empty() {
            return frames;
        }
        rest = more;
    }
    frames
}

async fn a_body_comes_whole(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        let body = noise(1, 3 << 20);
        let length = body.len() as u64;
        let mut bytes = Vec::new();
        for (id, declared) in [(1, None), (2, Some(length))] {
            bytes.extend(open(id, declared, "collect x"));
            bytes.extend(pieces(id, &body, &[1, 100, 70_000, 0, 3, 600_000]));
        }
        bytes.extend(open_raw(3, length, "collect x"));
        bytes.extend(&body);
        bytes.extend([open(4, Some(0), "collect x"), piece(4, b"", true), call(5, "echo end")].concat());
        let mut received = peer.exchange(&bytes, 5).await;
        if !fixture.is_in_order {
            received.sort_by_key(ServerFrame::id);
        }
        for id in 1..4 {
            assert!(
                received[id as usize - 1] == ServerFrame::Answer(id, body.clone()),
                "{:?}",
                received[id as usize - 1]
            );
        }
        assert_eq!(received[3..], [ServerFrame::Answer(4, Vec::new()), ServerFrame::Answer(5, b"end".into())]);
        drop(peer);
        fixture.assert_all_released().await;
    }
}

async fn bodies_may_come_at_the_same_time(way: Way) {
    let fixture = Fixture::out_of_order(patient());
    let body = |id: u32| noise(u64::from(id), 100_000 * id as usize);
    let mut bytes: Vec<u8> = (1..=8).flat_map(|id| open(id, None, "collect x")).collect();
    for at in (0..).step_by(30_000).take_while(|at| *at < 800_000) {
        for id in (1..=8).filter(|id| body(*id).len() > at) {
            let body = body(id);
            let to = at + 30_000;
            bytes.extend(piece(id, &body[at..to.min(body.len())], to >= body.len()));
            bytes.extend(call(100 + id, "echo between"));
        }
    }
    let between = (bytes.windows(7).filter(|words| *words == b"between")).count();
    let mut peer = fixture.dial(way).await;
    let received = peer.exchange(&bytes, 8 + between).await;
    for id in 1..=8 {
        let answer = received.iter().find(|received| received.id() == id).expect("an answer");
        assert!(*answer == ServerFrame::Answer(id, body(id)), "{answer:?}");
    }
    drop(peer);
    fixture.assert_all_released().await;
}

async fn many_bodies_at_once_do_not_wait_for_each_other(way: Way) {
    let fixture = Fixture::out_of_order(ServiceSettings { requests_per_connection_max: 3, ..patient() });
    let mut peer = fixture.dial(way).await;
    let each = |bytes: fn(u32) -> Vec<u8>| (1..=3).flat_map(bytes).collect::<Vec<u8>>();
    peer.send(&each(|id| open(id, None, "collect x"))).await;
    fixture.world.until_times("begin x", 3).await;
    let mut received = peer.exchange(&each(|id| piece(id, b"body", true)), 3).await;
    received.sort_by_key(ServerFrame::id);
    assert_eq!(received, [1, 2, 3].map(|id| ServerFrame::Answer(id, b"body".into())));
    drop(peer);
    fixture.assert_all_released().await;
}

async fn in_order_nothing_comes_before_a_body_is_whole(way: Way) {
    for between in [call(2, "echo x"), one_way("x"), open(2, None, "collect x")] {
        let fixture = Fixture::in_order(patient());
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[open(1, None, "collect x"), piece(1, b"a", false), between, piece(1, b"b", true)]).await;
        let received = peer.receive().await;
        assert!(received.is_fault(1, FaultKind::Malformed), "{received:?}");
        peer.reader.assert_end().await;
        drop(peer);
        fixture.assert_all_released().await;
    }
}

/// Maximum bytes between a peer that sends a body and the handler that reads it: the waiting bytes, two reads, and the
/// buffers of the system or the transport at both ends.
const BETWEEN_BYTES_MAX: u64 = 24 << 20;

async fn a_slow_handler_slows_its_peer(way: Way) {
    for fixture in Fixture::both(ServiceSettings { body_bytes_max: 1 << 30, ..patient() }) {
        let mut peer = fixture.dial(way).await;
        let mut other = fixture.dial(way).await;
        let count = 1000;
        let bytes = 64 << 10;
        let chunk = piece(1, &noise(1, bytes), false);
        peer.send(&open(1, None, "slowly x")).await;
        let sent = std::cell::Cell::new(0);
        let send = async {
            for _ in 0..count {
                peer.writer.send(&chunk).await;
                sent.set(sent.get() + bytes as u64);
            }
            peer.writer.send(&piece(1, b"end", true)).await;
        };
        let take = async {
            // Before each piece is taken, and so after everything that could arrive without it.
            for taken in 0..count / 2 {
                let read = fixture.totals().bytes_read;
                let most = (taken * bytes) as u64 + (1 << 20);
                assert!(read < most, "the server has read {read} bytes, and {taken} pieces were taken");
                assert!(sent.get() < most + BETWEEN_BYTES_MAX, "{} bytes sent, {taken} pieces taken", sent.get());
                fixture.world.open("x", 1);
                fixture.world.until_times("took x", taken + 1).await;
            }
            // Other connections are served, and requests of the same peer wait.
            other.assert_served().await;
            let in_use = fixture.memory.in_use();
            assert!(in_use < 2 << 20, "{in_use}");
            fixture.world.open("x", 2 * count);
        };
        tokio::join!(send, take);
        let received = peer.receive().await;
        assert_eq!(received, ServerFrame::Answer(1, (count * bytes + 3).to_string().into()));
        drop((peer, other));
        fixture.assert_all_released().await;
    }
}

async fn a_slow_peer_slows_its_handler(way: Way) {
    let bytes = 64 << 10;
    for fixture in Fixture::both(ServiceSettings { outbox_bytes_max: 256 << 10, ..patient() }) {
        let mut peer = fixture.dial(way).await;
        peer.send(&call(1, &format!("flood x 1000 {bytes}"))).await;
        for read in 0..1000 {
            let created = fixture.world.noted("x") as u64;
            let between = (created - read) * bytes;
            assert!(between < BETWEEN_BYTES_MAX, "{created} answers were created, {read} were read");
            let received = peer.receive().await;
            assert!(received == ServerFrame::Answer(1, noise(read, bytes as usize)), "{received:?}");
        }
        peer.assert_served().await;
        drop(peer);
        fixture.assert_all_released().await;
    }
}

async fn a_body_that_is_dropped_is_read_to_its_end(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        let body = noise(1, 4 << 20);
        // Dropped before it arrives.
        let bytes = [open(1, None, "drop x"), pieces(1, &body, &[100_000]), call(2, "echo after")].concat();
        let received = peer.exchange(&bytes, 2).await;
        assert_eq!(received, [ServerFrame::Answer(1, b"dropped".into()), ServerFrame::Answer(2, b"after".into())]);
        // Dropped while it blocks the peer.
        let bytes = [open(3, None, "keep y"), pieces(3, &body, &[100_000]), call(4, "echo after")].concat();
        let release = async {
            fixture.world.until("begin y").await;
            fixture.world.open("y", 1);
        };
        let (mut received, ()) = tokio::join!(peer.exchange(&bytes, 2), release);
        if !fixture.is_in_order {
            received.sort_by_key(ServerFrame::id);
        }
        assert_eq!(received, [ServerFrame::Answer(3, b"dropped".into()), ServerFrame::Answer(4, b"after".into())]);
        until("its permits are released", || fixture.bodies.in_use() + fixture.memory.in_use() == 0).await;
        drop(peer);
        fixture.assert_all_released().await;
    }
}

async fn a_body_over_the_limit_is_refused(way: Way) {
    for fixture in Fixture::both(ServiceSettings { body_bytes_max: 100_000, ..patient() }) {
        let whole = noise(1, 100_000);
        // A body with an announced length is refused before it arrives.
        for opening in [open(1, Some(100_001), "collect x"), open_raw(1, 1 << 40, "collect x")] {
            let mut peer = fixture.dial(way).await;
            let fits = [open(2, Some(100_000), "collect x"), pieces(2, &whole, &[9_000])].concat();
            assert!(peer.exchange(&fits, 1).await[0] == ServerFrame::Answer(2, whole.clone()));
            peer.send(&opening).await;
            peer.reader.assert_fault_and_end(FaultKind::TooLarge).await;
        }
        assert_eq!(fixture.world.noted("begin x"), 2);
        // A body without one is refused as soon as it is too large.
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[open(1, None, "collect y"), piece(1, &whole, false), piece(1, b"x", false)]).await;
        let received = peer.receive().await;
        assert!(received.is_fault(u32::from(fixture.is_in_order), FaultKind::TooLarge), "{received:?}");
        peer.reader.assert_end().await;
        fixture.world.until("end y").await;
        drop(peer);
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.faults, totals.requests_started), (3, 3));
        assert!(totals.bytes_read < 4 * 100_000);
    }
}

async fn bodies_beyond_the_cap_are_answered_busy(way: Way) {
    for fixture in Fixture::both(ServiceSettings { streamed_bodies_max: 1, ..patient() }) {
        let mut first = fixture.dial(way).await;
        let mut second = fixture.dial(way).await;
        first.send_all(&[open(1, None, "collect x"), piece(1, b"a", false)]).await;
        fixture.world.until("begin x").await;
        second.send_all(&[open(2, None, "collect y"), piece(2, b"lost", false)]).await;
        let received = second.receive().await;
        assert!(received.is_fault(2, FaultKind::Busy), "{received:?}");
        second.send_all(&[piece(2, b"lost", true), call(3, "echo after")]).await;
        assert_eq!(second.receive().await, ServerFrame::Answer(3, b"after".into()));
        first.send(&piece(1, b"b", true)).await;
        assert_eq!(first.receive().await, ServerFrame::Answer(1, b"ab".into()));
        assert_eq!(fixture.world.noted("begin y"), 0);
        drop((first, second));
        assert_eq!(fixture.assert_all_released().await.requests_refused, 1);
    }
}

async fn a_body_that_is_cut_is_not_taken_for_a_whole_one(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut lost = fixture.dial_abrupt(way).await;
        let mut half = fixture.dial(way).await;
        for (peer, name) in [(&mut lost, "lost"), (&mut half, "half")] {
            peer.send_all(&[open(1, Some(10), &format!("collect {name}")), piece(1, b"12345", false)]).await;
            fixture.world.until(&format!("begin {name}")).await;
        }
        half.writer.finish().await;
        let received = half.receive().await;
        assert!(matches!(&received, ServerFrame::Answer(1, words) if words.starts_with(b"cut:")), "{received:?}");
        drop(lost);
        fixture.world.until("end lost").await;
        drop(half);
        fixture.assert_all_released().await;
    }
}

/// Each accepted body may have a quarter of a MiB waiting.
#[tokio::test]
async fn waiting_bytes_of_all_bodies_are_bounded_by_the_memory() {
    let settings = ServiceSettings { memory_bytes_max: 1 << 20, streamed_bodies_max: 1000, ..patient() };
    let fixture = Fixture::out_of_order(settings);
    let mut peer = fixture.dial_abrupt(Way::Tcp).await;
    let opened: Vec<u8> = (1..=10).flat_map(|id| open(id, None, "keep x")).collect();
    peer.send(&opened).await;
    for received in peer.receive_all(6).await {
        assert!(received.is_fault(received.id(), FaultKind::Busy), "{received:?}");
    }
    fixture.world.until_times("begin x", 4).await;
    assert_eq!(fixture.memory.in_use(), 1 << 20);
    drop(peer);
    fixture.assert_all_released().await;
}

/// A larger piece is charged for its excess while it waits.
#[tokio::test]
async fn a_large_piece_is_charged_while_it_waits() {
    let settings = ServiceSettings { memory_bytes_max: 4 << 20, ..patient() };
    let fixture = Fixture::out_of_order(settings);
    let mut peer = fixture.dial(Way::Tcp).await;
    let large = noise(1, 1 << 20);
    peer.send_all(&[open(1, None, "slowly x"), piece(1, &large, false)]).await;
    fixture.world.until("begin x").await;
    fixture.has_read(1 << 20).await;
    until("it is charged", || fixture.memory.in_use() >= 1 << 20).await;
    fixture.world.open("x", 1);
    fixture.world.until("took x").await;
    peer.send(&piece(1, b"small", false)).await;
    until("it is released", || fixture.memory.in_use() < 1 << 19).await;
    // A piece that does not fit is refused, and not kept.
    let mut second = fixture.dial(Way::Tcp).await;
    second.send_all(&[open(2, None, "keep y"), piece(2, &noise(2, 3 << 20), false)]).await;
    second.reader.assert_fault_and_end(FaultKind::Busy).await;
    // It remains charged while it waits, even when it is complete.
    drop(second);
    fixture.world.open("x", 1);
    fixture.world.until_times("took x", 2).await;
    peer.send(&piece(1, &large, true)).await;
    until("it is charged", || fixture.memory.in_use() >= 1 << 20).await;
    fixture.world.open("x", 2);
    assert_eq!(peer.receive().await, ServerFrame::Answer(1, (2 * large.len() + 5).to_string().into()));
    drop(peer);
    fixture.assert_all_released().await;
}
