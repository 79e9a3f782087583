//! Pushes of other threads on a connection, between its answers.

use std::sync::Arc;

use net::Outbox;
use tokio::io::AsyncReadExt;

use crate::harness::framed::{call, push};
use crate::harness::stand::{impatient, patient};
use crate::harness::{Fixture, ServerFrame, Way, noise, over_every_transport, until};

over_every_transport!(pushes_and_answers_never_split_each_other, pushes_to_a_peer_that_does_not_read_end_with_it);

const THREADS: u32 = 4;
const PUSHES: u32 = 400;

/// Returns small pushes, and some that a socket does not accept in one write.
fn pushed(thread: u32, i: u32) -> Vec<u8> {
    let len = if i.is_multiple_of(50) { 300_000 } else { (i as usize * 37) % 3000 };
    [&i.to_le_bytes()[..], &noise(u64::from(thread * PUSHES + i), len)].concat()
}

/// Pushes everything from a separate thread, in frames of one chunk or two, sometimes several together.
fn push_all(outbox: &Outbox, thread: u32) {
    for i in 0..PUSHES {
        while !outbox.has_room() {
            std::thread::yield_now();
        }
        let frame = push(thread, &pushed(thread, i));
        let at = frame.len() / 2;
        assert!(outbox.push([frame.slice(..at), frame.slice(at..)]));
        if i % 3 != 0 {
            outbox.flush();
        }
    }
    outbox.flush();
}

async fn pushes_and_answers_never_split_each_other(way: Way) {
    for fixture in Fixture::both(patient()) {
        let mut peer = fixture.dial(way).await;
        peer.assert_served().await;
        let outbox = fixture.world.outboxes().pop().expect("a stream");
        let threads: Vec<_> = (1..=THREADS)
            .map(|thread| {
                let outbox = outbox.clone();
                std::thread::spawn(move || push_all(&outbox, thread))
            })
            .collect();
        // Concurrently, immediate answers and later ones, small and large.
        let requests: Vec<Vec<u8>> = (0..600)
            .map(|i| match i % 4 {
                0 => call(1000 + i, &format!("noise {i} 50000 3")),
                1 => call(1000 + i, "wait x"),
                _ => call(1000 + i, &format!("echo {i}")),
            })
            .collect();
        fixture.world.open("x", 150);
        let received = peer.exchange(&requests.concat(), (600 + THREADS * PUSHES) as usize).await;
        for thread in 1..=THREADS {
            let of_thread =
                received.iter().filter(|received| matches!(received, ServerFrame::Push(of, _) if *of == thread));
            for (i, received) in (0..).zip(of_thread) {
                assert!(
                    *received == ServerFrame::Push(thread, pushed(thread, i)),
                    "{received:?} is not push {i} of thread {thread}"
                );
            }
        }
        let mut answers: Vec<&ServerFrame> =
            received.iter().filter(|received| matches!(received, ServerFrame::Answer(..))).collect();
        if !fixture.is_in_order {
            answers.sort_by_key(|received| received.id());
        }
        for (i, received) in (0..).zip(answers) {
            let expected = match i % 4 {
                0 => noise(i, 50_000),
                1 => b"x".to_vec(),
                _ => i.to_string().into(),
            };
            assert!(*received == ServerFrame::Answer(1000 + i as u32, expected), "{received:?} is not answer {i}");
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
        drop(peer);
        let totals = fixture.assert_all_released().await;
        assert_eq!(totals.requests_started, 601);
    }
}

/// A caller that waits for room is woken when there never will be any.
async fn pushes_to_a_peer_that_does_not_read_end_with_it(way: Way) {
    let fixture = Fixture::in_order(impatient(|timeouts| timeouts.write = std::time::Duration::from_millis(100)));
    let mut slow = fixture.dial(way).await;
    slow.assert_served().await;
    let outbox: Arc<Outbox> = fixture.world.outboxes().pop().expect("a stream");
    let chunk = push(0, &noise(1, 64 << 10));
    let push = async {
        let mut pushed = 0;
        loop {
            outbox.room().await;
            if !outbox.push([chunk.clone()]) {
                return pushed;
            }
            outbox.flush();
            pushed += chunk.len();
        }
    };
    let pushed = crate::harness::within("being refused", push).await;
    assert!(pushed < 24 << 20, "{pushed} bytes for one that reads none");
    until("it is cut", || fixture.totals().timeouts == 1).await;
    crate::harness::within("the outbox being empty", outbox.drained()).await;
    drop(slow);
    fixture.assert_all_released().await;
}

/// Small chunks that wait take little more memory than their bytes: they are collected in large ones, in their order.
#[tokio::test]
async fn small_pushes_that_wait_are_collected() {
    let outbox = Outbox::to_writer(usize::MAX);
    let mut expected = Vec::new();
    let mut push = |chunk: Vec<u8>| {
        expected.extend_from_slice(&chunk);
        assert!(outbox.push([chunk.into()]));
    };
    (0..40_000_u32).for_each(|i| push(format!("message {i}\n").into()));
    let chunks_of_small = outbox.chunks();
    // Large ones in between keep their place, and are not copied.
    (0..2000_u32).for_each(|i| push(noise(i.into(), [3, 2000, 500, 513][i as usize % 4])));
    let chunks_of_both = outbox.chunks() - chunks_of_small;
    (0..300_u32).for_each(|i| push(vec![i as u8]));
    assert_eq!(outbox.waiting(), expected.len());
    assert!(chunks_of_small < 200, "{chunks_of_small} chunks");
    assert!((1000..2000).contains(&chunks_of_both), "{chunks_of_both} chunks");

    let (mut writer, mut reader) = tokio::io::duplex(1000);
    let mut received = vec![0; expected.len()];
    let read = async {
        let read = reader.read_exact(&mut received).await.map(drop);
        outbox.close();
        read
    };
    let (written, read) = tokio::join!(outbox.run_writer(&mut writer), read);
    written.expect("it is written");
    read.expect("it is read");
    assert!(received == expected, "the bytes are in another order");
}
