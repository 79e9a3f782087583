//! Requests and their answers over every transport: complete and in order, however the bytes are split.

use net::service::FaultKind;

use crate::harness::framed::{HEAD_BYTES, call, frame, one_way, open, open_raw, piece};
use crate::harness::stand::patient;
use crate::harness::{Fixture, ServerFrame, Way, noise, over_every_transport};

over_every_transport!(
    every_request_is_answered_and_many_of_one_read_too,
    frames_are_the_same_wherever_they_are_cut,
    frames_may_come_byte_by_byte,
    large_frames_are_taken_without_a_copy,
    large_answers_come_whole_and_in_order,
    a_slow_request_keeps_later_answers_waiting_where_order_counts,
    later_requests_overtake_where_a_tag_tells,
    a_stream_that_a_later_answer_ends_is_closed_behind_it,
    a_request_that_is_alone_holds_the_next_ones,
    requests_that_join_another_begin_with_it_and_hold_the_next_ones,
    a_fault_after_requests_that_joined_another_follows_their_answers,
    the_last_answer_closes,
    one_request_may_have_several_answers,
    a_request_without_an_answer_is_a_fault,
    a_message_holds_back_later_frames,
    a_request_that_cannot_begin_is_handled_again_before_later_frames,
    a_paused_stream_is_answered_and_not_read,
);

fn answer(id: u32, words: &str) -> ServerFrame {
    ServerFrame::Answer(id, words.into())
}

async fn every_request_is_answered_and_many_of_one_read_too(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        assert_eq!(peer.request(1, "echo hello").await, b"hello");
        assert_eq!(peer.request(2, "echo ").await, b"");
        let frames: Vec<Vec<u8>> = (0..2_000).map(|i| call(i, &format!("echo {i}"))).collect();
        let expected: Vec<ServerFrame> = (0..2_000).map(|i| answer(i, &i.to_string())).collect();
        assert_eq!(peer.exchange(&frames.concat(), 2_000).await, expected);
        drop(peer);
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.requests_started, totals.connections_opened, totals.faults), (2_002, 1, 0));
    }
}

/// Returns one frame of each kind, and the answers.
fn one_of_each() -> (Vec<u8>, Vec<ServerFrame>) {
    let frames = [
        call(1, "echo first"),
        one_way("note told"),
        frame(b'K', 2, b"kept words"),
        open(3, None, "collect x"),
        piece(3, b"", false),
        piece(3, b"some ", false),
        piece(3, b"pieces", true),
        open_raw(4, 9, "collect y"),
        b"raw bytes".to_vec(),
        open_raw(5, 0, "collect z"),
        call(6, "echo end"),
    ];
    let answers = [(1, "first"), (2, "copied:kept words"), (3, "some pieces"), (4, "raw bytes"), (5, ""), (6, "end")];
    (frames.concat(), answers.map(|(id, words)| answer(id, words)).into())
}

/// Sorts the frames by their ids, if the protocol has no order. A frame that was read into a buffer of the connection
/// was not copied out of it; with other splits it was.
fn leveled(mut received: Vec<ServerFrame>) -> Vec<ServerFrame> {
    received.sort_by_key(ServerFrame::id);
    let copied = |received| match received {
        ServerFrame::Answer(id, words) => ServerFrame::Answer(
            id,
            words.strip_prefix(b"taken:").map_or(words.clone(), |words| [&b"copied:"[..], words].concat()),
        ),
        other => other,
    };
    received.into_iter().map(copied).collect()
}

async fn frames_are_the_same_wherever_they_are_cut(way: Way) {
    let (bytes, expected) = one_of_each();
    for fixture in Fixture::both(patient()) {
        let mut read = 0;
        for cut in 1..bytes.len() {
            let mut peer = fixture.dial(way).await;
            peer.send(&bytes[..cut]).await;
            fixture.has_read(read + cut as u64).await;
            read += bytes.len() as u64;
            peer.send(&bytes[cut..]).await;
            assert_eq!(leveled(peer.receive_all(expected.len()).await), expected, "cut at {cut}");
        }
        let totals = fixture.assert_all_released().await;
        let connections = bytes.len() as u64 - 1;
        assert_eq!(totals.requests_started, 6 * connections);
        assert_eq!((totals.messages, totals.bytes_read), (connections, read));
        assert_eq!(fixture.world.noted("told") as u64, connections);
    }
}

async fn frames_may_come_byte_by_byte(way: Way) {
    let (bytes, expected) = one_of_each();
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        for (n, byte) in (1..).zip(&bytes) {
            peer.send(&[*byte]).await;
            fixture.has_read(n).await;
        }
        assert_eq!(leveled(peer.receive_all(expected.len()).await), expected);
    }
}

async fn large_frames_are_taken_without_a_copy(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        for (id, len) in [(1, 300 << 10), (2, 5 << 20), (3, 5 << 20)] {
            let words = noise(id, len);
            let bytes = frame(b'K', id as u32, &words);
            // The first bytes, which are read into the thread's buffer, contain the length of the rest.
            let read = fixture.totals().bytes_read;
            let at = [HEAD_BYTES, HEAD_BYTES + 5_000, 7][id as usize - 1];
            peer.send(&bytes[..at]).await;
            fixture.has_read(read + at as u64).await;
            peer.send(&bytes[at..]).await;
            let received = peer.receive().await;
            let ServerFrame::Answer(_, answered) = &received else { panic!("{received:?}") };
            let expected = [&b"taken:"[..], &words].concat();
            assert!(*answered == expected, "{received:?} {}", String::from_utf8_lossy(&answered[..7]));
        }
        drop(peer);
        fixture.assert_all_released().await;
    }
}

async fn large_answers_come_whole_and_in_order(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        // Larger than the buffers between the ends, in one piece, in large ones, in more than one write takes, in small
        // ones; with small answers between them.
        let sizes = [(9 << 20, 1), (9 << 20, 7), (9 << 20, 200), (1 << 20, 1000), (100, 3)];
        let mut frames = Vec::new();
        for (i, (bytes, pieces)) in (0..).zip(sizes) {
            frames.push(call(2 * i, &format!("noise {i} {bytes} {pieces}")));
            frames.push(call(2 * i + 1, "echo small"));
        }
        let received = peer.exchange(&frames.concat(), 2 * sizes.len()).await;
        for (i, (bytes, _)) in (0..).zip(sizes) {
            let expected = ServerFrame::Answer(2 * i, noise(u64::from(i), bytes));
            assert!(received[2 * i as usize] == expected, "{:?}", received[2 * i as usize]);
            assert_eq!(received[2 * i as usize + 1], answer(2 * i + 1, "small"));
        }
        drop(peer);
        let totals = fixture.assert_all_released().await;
        let heads = (HEAD_BYTES * 2 * sizes.len() + 5 * sizes.len()) as u64;
        assert_eq!(totals.bytes_written, sizes.iter().map(|(bytes, _)| *bytes as u64).sum::<u64>() + heads);
    }
}

async fn a_slow_request_keeps_later_answers_waiting_where_order_counts(way: Way) {
    let fixture = Fixture::in_order(patient());
    let mut peer = fixture.dial(way).await;
    let frames = [
        call(1, "wait slow"),
        call(2, "echo at once"),
        call(3, "wait fast"),
        call(4, "several many 2"),
        call(5, "nothing"),
        call(6, "echo last"),
    ];
    peer.send_all(&frames).await;
    fixture.world.until("begin many").await;
    fixture.world.open("fast", 1);
    fixture.world.open("many", 2);
    // It has finished, and its answer waits.
    fixture.world.until("end fast").await;
    // A push of another sender does not wait for it.
    fixture.world.outboxes()[0].push([crate::harness::framed::push(7, b"before")]);
    fixture.world.outboxes()[0].flush();
    assert_eq!(peer.receive().await, ServerFrame::Push(7, b"before".into()));
    fixture.world.open("slow", 1);
    let expected = [(1, "slow"), (2, "at once"), (3, "fast"), (4, "many 0"), (4, "many 1")];
    for (id, words) in expected {
        assert_eq!(peer.receive().await, answer(id, words));
    }
    let received = peer.receive().await;
    assert!(received.is_fault(5, FaultKind::Internal), "{received:?}");
    assert_eq!(peer.receive().await, answer(6, "last"));
    drop(peer);
    assert_eq!(fixture.assert_all_released().await.requests_started, 6);
}

async fn later_requests_overtake_where_a_tag_tells(way: Way) {
    let fixture = Fixture::out_of_order(patient());
    let mut peer = fixture.dial(way).await;
    peer.send_all(&[call(1, "wait slow"), call(2, "echo at once"), call(3, "wait fast"), call(4, "wait middle")]).await;
    assert_eq!(peer.receive().await, answer(2, "at once"));
    for (gate, id) in [("fast", 3), ("middle", 4), ("slow", 1)] {
        fixture.world.open(gate, 1);
        assert_eq!(peer.receive().await, answer(id, gate));
    }
    drop(peer);
    fixture.assert_all_released().await;
}

async fn a_stream_that_a_later_answer_ends_is_closed_behind_it(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "wait first"), call(2, "over second"), call(3, "echo third")]).await;
        fixture.world.until("begin second").await;
        fixture.world.open("second", 1);
        fixture.world.open("first", 1);
        let mut received = peer.receive_all(2).await;
        received.sort_by_key(ServerFrame::id);
        assert_eq!(received, [answer(1, "first"), answer(2, "second")]);
        peer.reader.assert_end().await;
        drop(peer);
        fixture.assert_all_released().await;
    }
}

async fn a_request_that_is_alone_holds_the_next_ones(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "wait first"), call(2, "alone second"), call(3, "wait third"), one_way("note told")])
            .await;
        fixture.world.until("begin second").await;
        // Requests before it continue.
        fixture.world.open("first", 1);
        assert_eq!(peer.receive().await, answer(1, "first"));
        assert_eq!((fixture.world.noted("begin third"), fixture.world.noted("told")), (0, 0));
        fixture.world.open("second", 1);
        assert_eq!(peer.receive().await, answer(2, "second"));
        fixture.world.until("told").await;
        fixture.world.open("third", 1);
        assert_eq!(peer.receive().await, answer(3, "third"));
        peer.assert_served().await;
        drop(peer);
        fixture.assert_all_released().await;
    }
}

/// Maximum number of attempts at joining requests. A turn may end between two frames of one read, because its duration
/// is measured with the ticks of the kernel; then the second request waits for the first.
const JOINS_MAX: usize = 50;

/// Waits for the end of the turn in which the request began, and returns `true` if the other one has joined it.
async fn has_joined(fixture: &Fixture, first: &str, second: &str) -> bool {
    fixture.world.until(&format!("joined {first}")).await;
    fixture.world.noted(&format!("begin {second}")) == 1
}

async fn requests_that_join_another_begin_with_it_and_hold_the_next_ones(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        let mut requests = 1;
        for attempt in 1.. {
            let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| format!("{name}{attempt}"));
            let words = [format!("join {a}"), format!("join {b}"), format!("wait {c}"), format!("join {d}")];
            peer.send_all(&(1..).zip(&words).map(|(id, words)| call(id, words)).collect::<Vec<_>>()).await;
            requests += 4;
            let has_joined = has_joined(&fixture, &a, &b).await;
            assert_eq!(fixture.world.noted(&format!("begin {c}")), 0, "it waits for both");
            fixture.world.open(&b, 1);
            fixture.world.open(&a, 1);
            let mut received = peer.receive_all(2).await;
            received.sort_by_key(ServerFrame::id);
            assert_eq!(received, [answer(1, &a), answer(2, &b)]);
            // It is decoded again.
            fixture.world.until(&format!("begin {c}")).await;
            assert_eq!(fixture.world.noted(&format!("begin {c}")), 1);
            fixture.world.open(&c, 1);
            assert_eq!(peer.receive().await, answer(3, &c));
            fixture.world.open(&d, 1);
            assert_eq!(peer.receive().await, answer(4, &d));
            if has_joined {
                break;
            }
            assert!(attempt < JOINS_MAX, "no request joins another");
        }
        peer.assert_served().await;
        drop(peer);
        let totals = fixture.assert_all_released().await;
        assert_eq!((totals.requests_started, totals.requests_completed), (requests, requests));
    }
}

async fn a_fault_after_requests_that_joined_another_follows_their_answers(way: Way) {
    for fixture in Fixture::both(patient()) {
        for attempt in 1.. {
            let mut peer = fixture.dial(way).await;
            let [a, b] = ["a", "b"].map(|name| format!("{name}{attempt}"));
            let malformed = frame(b'?', 3, b"");
            peer.send_all(&[call(1, &format!("join {a}")), call(2, &format!("join {b}")), malformed]).await;
            let has_joined = has_joined(&fixture, &a, &b).await;
            fixture.world.open(&a, 1);
            fixture.world.open(&b, 1);
            let mut received = peer.receive_all(2).await;
            received.sort_by_key(ServerFrame::id);
            assert_eq!(received, [answer(1, &a), answer(2, &b)]);
            assert!(matches!(peer.receive().await, ServerFrame::Fault(..)), "the stream ends with a fault");
            peer.reader.assert_end().await;
            if has_joined {
                break;
            }
            assert!(attempt < JOINS_MAX, "no request joins another");
        }
        fixture.assert_all_released().await;
    }
}

async fn the_last_answer_closes(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "wait before"), call(2, "last"), call(3, "echo never"), one_way("note told")]).await;
        fixture.world.until("begin before").await;
        fixture.world.open("before", 1);
        let mut received = peer.receive_all(2).await;
        received.sort_by_key(ServerFrame::id);
        assert_eq!(received, [answer(1, "before"), answer(2, "bye")]);
        peer.reader.assert_end().await;
        assert_eq!(fixture.world.noted("told"), 0);
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.requests_started, 2);
    }
}

async fn one_request_may_have_several_answers(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "several x 3"), call(2, "several y 3"), call(3, "flood z 500 3000")]).await;
        // With ordered responses, the answers of the second wait for the first to end.
        for gate in ["y", "x"] {
            fixture.world.open(gate, 3);
        }
        let mut received = peer.receive_all(506).await;
        if !fixture.is_in_order {
            received.sort_by_key(ServerFrame::id);
        }
        let mut expected: Vec<ServerFrame> = (0..3).map(|i| answer(1, &format!("x {i}"))).collect();
        expected.extend((0..3).map(|i| answer(2, &format!("y {i}"))));
        expected.extend((0..500).map(|i| ServerFrame::Answer(3, noise(i, 3000))));
        assert!(received == expected, "{received:?}");
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.requests_started, 3);
    }
}

async fn a_request_without_an_answer_is_a_fault(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.assert_fault(1, "nothing", FaultKind::Internal).await;
        peer.assert_served().await;
        drop(peer);
        fixture.assert_all_released().await;
    }
}

async fn a_request_that_cannot_begin_is_handled_again_before_later_frames(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        let frames = [call(1, "echo first"), call(2, "again a"), one_way("note later"), call(3, "echo last")];
        peer.send_all(&frames).await;
        fixture.world.until("begin a").await;
        assert_eq!(peer.receive_all(1).await, [answer(1, "first")]);
        assert_eq!(fixture.world.noted("later"), 0, "it was handled too early");
        fixture.world.open("a", 1);
        assert_eq!(peer.receive_all(2).await, [answer(2, "a"), answer(3, "last")]);
        assert_eq!((fixture.world.noted("tried a"), fixture.world.noted("later")), (2, 1));
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.requests_started, 3, "it is counted once");
    }
}

async fn a_message_holds_back_later_frames(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.send_all(&[call(1, "wait before"), one_way("hold up"), one_way("note told"), call(2, "echo after")]).await;
        fixture.world.until("begin up").await;
        // Earlier requests are answered in the meantime.
        fixture.world.open("before", 1);
        assert_eq!(peer.receive().await, answer(1, "before"));
        assert_eq!(fixture.world.noted("told"), 0);
        fixture.world.open("up", 1);
        assert_eq!(peer.receive().await, answer(2, "after"));
        let order = ["passed up", "told"].map(|note| fixture.world.notes().iter().position(|noted| noted == note));
        assert!(order[0].is_some() && order[0] < order[1], "{order:?}");
        drop(peer);
        assert_eq!(fixture.assert_all_released().await.messages, 2);
    }
}

async fn a_paused_stream_is_answered_and_not_read(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        assert_eq!(peer.request(1, "echo first").await, b"first");
        assert_eq!(peer.request(2, "pause p").await, b"paused");
        fixture.world.until("begin p").await;
        // The request before it was told after its own turn.
        fixture.world.until("spent 1 requests").await;
        peer.send_all(&[one_way("note told"), call(3, "echo after")]).await;
        // Another connection is served, and this one is not read.
        let mut other = fixture.dial(way).await;
        assert_eq!(other.request(1, "echo other").await, b"other");
        assert_eq!(fixture.world.noted("told"), 0);
        fixture.world.open("p", 1);
        assert_eq!(peer.receive().await, answer(3, "after"));
        assert_eq!(fixture.world.noted("told"), 1);
        drop((peer, other));
        fixture.assert_all_released().await;
    }
}
