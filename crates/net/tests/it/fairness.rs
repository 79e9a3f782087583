//! Fairness: a connection that always has work leaves time for the others of its worker.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::harness::framed::{call, one_way};
use crate::harness::stand::{Fixture, Plan};
use crate::harness::{Peer, ServerFrame, Way, until};

/// Peer that repeats the same request without a pause, and reads everything immediately.
struct Tireless {
    first: Vec<u8>,
    then: Vec<u8>,
}

impl AsyncRead for Tireless {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            buf.put_slice(&first);
        } else if self.then.is_empty() {
            return Poll::Pending;
        } else {
            while buf.remaining() >= self.then.len() {
                buf.put_slice(&self.then);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tireless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn leaves_time(tireless: Tireless, is_at_it: impl Fn(&Fixture) -> bool) {
    let fixture = Fixture::build(Plan { workers: 1, is_in_order: false, ..Plan::default() });
    fixture.server.serve_pipe(tireless);
    until("it is at it", || is_at_it(&fixture)).await;
    for _ in 0..3 {
        fixture.dial(Way::Tcp).await.assert_served().await;
    }
    assert!(!fixture.end(std::time::Duration::ZERO).await.is_clean());
}

#[tokio::test]
async fn a_peer_that_never_stops_talking_leaves_time() {
    let first = one_way("note first");
    let then = call(1, &format!("echo {}", "x".repeat(1000)));
    leaves_time(Tireless { first, then }, |fixture| fixture.world.noted("first") > 0).await;
}

#[tokio::test]
async fn a_peer_that_never_stops_telling_leaves_time() {
    let first = one_way("note first");
    let then = one_way(&format!("ignore {}", "x".repeat(1000)));
    leaves_time(Tireless { first, then }, |fixture| fixture.world.noted("first") > 0).await;
}

#[tokio::test]
async fn an_answer_without_end_leaves_time() {
    let first = call(1, &format!("flood-quietly x {} 10000", usize::MAX));
    leaves_time(Tireless { first, then: Vec::new() }, |fixture| fixture.world.noted("begin x") > 0).await;
}

/// Sends these requests, each on a separate connection, while the thread of the worker is busy, so that it finds all of
/// them at the same time. Returns the notes from then on.
async fn found_together(fixture: &Fixture, peers: &mut [Peer], requests: &[Vec<u8>]) -> Vec<String> {
    let mut stopper = fixture.dial(Way::Tcp).await;
    let stopped = fixture.world.noted("stopped");
    let before = fixture.world.noted("go");
    assert_eq!(before, 0, "a fixture is stopped once");
    stopper.send(&call(1, "stop go")).await;
    fixture.world.until_times("stopped", stopped + 1).await;
    for (peer, request) in peers.iter_mut().zip(requests) {
        peer.send(request).await;
    }
    let noted = fixture.world.notes().len();
    fixture.world.note("go");
    for peer in peers {
        peer.receive().await;
    }
    fixture.world.notes().split_off(noted + 1)
}

/// Returns the number of heavy requests that are handled before a light one when the worker finds all of them together.
/// `first` contains the earlier requests of the heavy connections.
async fn heavy_ones_before_a_light_one(first: &[&str], heavy: &str) -> usize {
    const HEAVY: usize = 40;
    let fixture = Fixture::build(Plan { workers: 1, is_in_order: false, ..Plan::default() });
    let mut peers = Vec::new();
    for _ in 0..HEAVY {
        let mut peer = fixture.dial(Way::Tcp).await;
        for request in first {
            peer.request(1, request).await;
        }
        peers.push(peer);
    }
    peers.push(fixture.dial(Way::Tcp).await);
    peers[HEAVY].assert_served().await;
    let mut requests = vec![call(1, heavy); HEAVY];
    requests.push(call(1, "stall light"));
    let noted = found_together(&fixture, &mut peers, &requests).await;
    assert_eq!(noted.len(), HEAVY + 1, "none is lost");
    let place = noted.iter().position(|what| what == "light").expect("it was handled");
    assert!(place > 3 || fixture.totals().turns_waited as usize >= HEAVY - place);
    place
}

/// Checks that a light connection is served in time. If other threads have the processor during its first turns, it is
/// mistaken for a heavy one.
async fn leave_time(first: &[&str], heavy: &str) {
    let mut places = Vec::new();
    for _ in 0..4 {
        places.push(heavy_ones_before_a_light_one(first, heavy).await);
        if places.last().is_some_and(|place| *place <= 3) {
            return;
        }
    }
    panic!("heavy requests were handled before the light one: {places:?}");
}

#[tokio::test]
async fn many_large_requests_leave_time_for_a_light_one() {
    leave_time(&["echo served"], &format!("stall heavy {}", "x".repeat(5000))).await;
}

#[tokio::test]
async fn connections_that_took_long_before_leave_time_for_a_light_one() {
    leave_time(&["stall before", "stall before"], "stall heavy").await;
}

/// A connection that ends in the line leaves it, and those after it are served.
#[tokio::test]
async fn the_line_goes_on_when_connections_in_it_end() {
    const HEAVY: usize = 20;
    let fixture = Fixture::build(Plan { workers: 1, is_in_order: false, ..Plan::default() });
    let mut peers = Vec::new();
    for _ in 0..HEAVY {
        peers.push(fixture.dial(Way::Tcp).await);
    }
    let request = call(1, &format!("stall heavy {}", "x".repeat(5000)));
    for _ in 0..20 {
        let mut leaving = Vec::new();
        for _ in 0..HEAVY {
            leaving.push(fixture.dial(Way::Tcp).await);
        }
        for (peer, leaving) in peers.iter_mut().zip(&mut leaving) {
            leaving.send(&request).await;
            peer.send(&request).await;
        }
        drop(leaving);
        for peer in &mut peers {
            assert_eq!(peer.receive().await, ServerFrame::Answer(1, b"stalled".into()));
        }
    }
}

/// Heavy turns that cannot be delayed, such as those that write an endless answer, do not keep others in the line.
#[tokio::test]
async fn answers_without_end_do_not_keep_others_in_the_line() {
    let fixture = Fixture::build(Plan { workers: 1, is_in_order: false, ..Plan::default() });
    for _ in 0..3 {
        let first = call(1, &format!("flood-quietly x {} 10000", usize::MAX));
        fixture.server.serve_pipe(Tireless { first, then: Vec::new() });
    }
    until("they are at it", || fixture.world.noted("begin x") == 3).await;
    let mut peer = fixture.dial(Way::Tcp).await;
    for _ in 0..10 {
        peer.request(1, &format!("stall heavy {}", "x".repeat(5000))).await;
    }
    assert!(!fixture.end(std::time::Duration::ZERO).await.is_clean());
}

/// Returns how many answers were unwritten in the turn of each connection, if the worker finds all of them together and
/// each has this number of requests. `first` contains the earlier request of each connection.
async fn unwritten_in_each_turn(first: &[&str], requests: u32) -> Vec<usize> {
    let fixture = Fixture::build(Plan { workers: 1, is_in_order: false, ..Plan::default() });
    let mut peers = Vec::new();
    for request in first {
        let mut peer = fixture.dial(Way::Tcp).await;
        peer.request(1, request).await;
        peers.push(peer);
    }
    let pipeline: Vec<Vec<u8>> = (1..=requests).map(|id| call(id, "count-unwritten")).collect();
    let noted = found_together(&fixture, &mut peers, &vec![pipeline.concat(); first.len()]).await;
    for peer in &mut peers {
        for _ in 1..requests {
            peer.receive().await;
        }
        peer.assert_served().await;
    }
    let counts = noted.iter().map(|count| count.parse().expect("a number"));
    counts.step_by(requests as usize).collect()
}

/// Checks how many answers are unwritten in each turn. If other threads have the processor during a turn, its
/// connection is mistaken for a heavy one, so several tries are made.
async fn expect_unwritten(first: &[&str], requests: u32, is_expected: impl Fn(&[usize]) -> bool) {
    let mut all = Vec::new();
    for _ in 0..30 {
        let unwritten = unwritten_in_each_turn(first, requests).await;
        if is_expected(&unwritten) {
            return;
        }
        all.push(unwritten);
    }
    panic!("{all:?}");
}

/// A peer that waits for answers on several connections is woken once.
#[tokio::test]
async fn answers_to_pipelined_requests_are_written_after_the_turns_of_all_ready_connections() {
    expect_unwritten(&["echo served"; 6], 8, |unwritten| unwritten == [0, 1, 2, 3, 4, 5]).await;
}

#[tokio::test]
async fn answers_to_few_requests_are_written_at_once() {
    assert_eq!(unwritten_in_each_turn(&["echo served"; 6], 7).await, [0; 6]);
}

#[tokio::test]
async fn answers_do_not_wait_for_a_heavy_turn() {
    let first = ["echo served", "echo served", "stall before", "echo served"];
    expect_unwritten(&first, 8, |unwritten| unwritten == [0, 1, 0, 1]).await;
}

#[tokio::test]
async fn answers_of_many_connections_are_written_in_parts() {
    expect_unwritten(&["echo served"; 34], 8, |unwritten| {
        assert!(unwritten.iter().all(|count| *count < 32), "{unwritten:?}");
        unwritten.windows(2).any(|pair| pair == [31, 0])
    })
    .await;
}
