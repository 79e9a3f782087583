//! Tests of a connection against servers that answer correctly, incorrectly and in pieces.

use std::time::Instant;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::rpc::worker::Pace;

const RESPONSE_BYTES: usize = 5;

fn shape(pipeline: usize) -> Shape {
    Shape { pipeline, payload_bytes: 3, response_bytes: RESPONSE_BYTES, is_one_write_per_request: false, pace: None }
}

/// Runs one connection for `millis` ms against `server`, and returns the results.
fn run<F: Future<Output = ()>>(shape: Shape, millis: u64, server: impl FnOnce(DuplexStream) -> F) -> Tally {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let window = Window { begin: Instant::now(), from: 0, until: millis * 1_000_000 };
        worker::install(Worker::new(shape, window, 1));
        let (near, far) = duplex(1 << 16);
        let requester = Requester::new(near, &shape, 0, 0);
        let arrivals = async {
            if let Some(pace) = shape.pace {
                crate::rpc::arrivals::run(pace, window, 0..1).await.expect("a timer");
            }
        };
        let load = async { tokio::join!(requester, arrivals) };
        // A server without an end is dropped with its load.
        tokio::select! {
            _ = load => {}
            () = async { server(far).await; std::future::pending().await } => {}
        }
    });
    worker::take()
}

/// Reads the next request and returns its id.
async fn request(socket: &mut DuplexStream) -> Option<u64> {
    let mut frame = [0; HEAD_BYTES + 3];
    socket.read_exact(&mut frame).await.ok()?;
    let head = Head::parse(&frame).expect("a frame").expect("a whole one");
    assert_eq!((head.body_bytes, head.opcode, head.flags), (3, OPCODE, START | END));
    Some(head.id)
}

fn answer(id: u64) -> Vec<u8> {
    let head = Head { body_bytes: RESPONSE_BYTES, id, opcode: OPCODE, flags: START | END };
    [&head.encode()[..], &[b'a'; RESPONSE_BYTES]].concat()
}

/// Answers the first request with these bytes, and continues to read.
fn first_answer(bytes: Vec<u8>) -> Tally {
    run(shape(2), 10_000, async |mut socket| {
        request(&mut socket).await;
        socket.write_all(&bytes).await.expect("written");
        while request(&mut socket).await.is_some() {}
    })
}

#[test]
fn keeps_a_pipeline_full_and_ends_when_all_is_answered() {
    let tally = run(shape(4), 50, async |mut socket| {
        let mut next = 0;
        while let Some(id) = request(&mut socket).await {
            assert_eq!(id, next, "ids count up");
            next += 1;
            socket.write_all(&answer(id)).await.expect("written");
        }
    });
    assert_eq!((tally.errors, &tally.told[..]), (0, &[][..]));
    assert!(tally.answers > 4, "{} answers are no more than the first requests", tally.answers);
    let timed = tally.latencies.percentiles().expect("some").count;
    assert_eq!(timed, tally.answers / ANSWERS_A_SAMPLE);
}

#[test]
fn requests_that_follow_from_one_read_go_out_by_one_write() {
    let mut written = [Vec::new(), Vec::new()];
    for (is_one_each, sizes) in [false, true].into_iter().zip(&mut written) {
        let shape = Shape { is_one_write_per_request: is_one_each, ..shape(3) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let window = Window { begin: Instant::now(), from: 0, until: u64::MAX };
            worker::install(Worker::new(shape, window, 1));
            let mut requester = Requester::new(Writes { sizes: Vec::new(), answers: answer(0) }, &shape, 0, 0);
            // The first turn sends a pipeline, reads one answer, and sends the requests that follow from it.
            futures_util::future::poll_immediate(&mut requester).await;
            requester.io.answers = answer(0);
            futures_util::future::poll_immediate(&mut requester).await;
            requester.is_over = true;
            *sizes = std::mem::take(&mut requester.io.sizes);
        });
    }
    let frame = HEAD_BYTES + 3;
    assert_eq!(written, [vec![3 * frame, frame], vec![frame; 4]]);
}

#[test]
fn a_socket_that_is_always_behind_costs_two_pipelines_at_most() {
    let shape = Shape { payload_bytes: 1000, ..shape(8) };
    let frame = shape.frame_bytes();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // No other task needs a turn here.
    runtime.block_on(tokio::task::unconstrained(async {
        let window = Window { begin: Instant::now(), from: 0, until: u64::MAX };
        worker::install(Worker::new(shape, window, 1));
        // Less than two requests fit, so more is always pending.
        let (near, mut far) = duplex(frame + frame / 2);
        let mut requester = Requester::new(near, &shape, 0, 0);
        let mut request = vec![0; frame];
        for id in 0..1000 {
            assert!(futures_util::future::poll_immediate(&mut requester).await.is_none(), "it continues");
            far.read_exact(&mut request).await.expect("a request");
            assert_eq!(Head::parse(&request).expect("a frame").map(|head| head.id), Some(id));
            far.write_all(&answer(id)).await.expect("written");
            assert!(requester.out.len() <= 2 * 8 * frame, "{} bytes are kept", requester.out.len());
        }
        requester.is_over = true;
    }));
    worker::take();
}

/// Stream that records the size of each write.
struct Writes {
    sizes: Vec<usize>,
    /// Result of the next read, but only after a write.
    answers: Vec<u8>,
}

impl AsyncRead for Writes {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.sizes.is_empty() || self.answers.is_empty() {
            return Poll::Pending;
        }
        buf.put_slice(&std::mem::take(&mut self.answers));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Writes {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sizes.push(bytes.len());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn an_answer_that_is_not_the_one_due_is_an_error() {
    let with = |change: fn(&mut Head)| {
        let mut head = Head { body_bytes: RESPONSE_BYTES, id: 0, opcode: OPCODE, flags: START | END };
        change(&mut head);
        [&head.encode()[..], b"aaaaa"].concat()
    };
    let cases: [(Vec<u8>, &str); 6] = [
        (with(|head| head.id = 1), "an answer to 1 instead of 0"),
        (with(|head| head.opcode = 2), "the answer to 0 has opcode 2"),
        (with(|head| head.flags = START), "the answer to 0 has flags 1"),
        (with(|head| head.body_bytes = 4), "the answer to 0 has 4 bytes, not 5"),
        (with(|head| head.flags |= ERROR), "the answer to 0 is an error: aaaaa"),
        ([&[19, 0, 0, 0][..], &[0; 20]].concat(), "not a valid answer: the length of a frame is at least 20"),
    ];
    for (bytes, why) in cases {
        let tally = first_answer(bytes);
        assert_eq!((tally.errors, &tally.told[..]), (1, &[why.to_owned()][..]));
    }
    let tally = first_answer([answer(0), answer(1), answer(2)].concat());
    assert_eq!(tally.told, ["an answer to 2, with nothing in flight"]);
}

#[test]
fn a_server_that_goes_away_is_an_error() {
    let tally = run(shape(2), 10_000, async |mut socket| {
        request(&mut socket).await;
    });
    assert_eq!(tally.told, ["the server closed a connection with 2 requests in flight"]);
}

#[test]
fn missing_responses_are_counted_when_the_load_is_cut_off() {
    let pace = Pace { interval_ns: 1e6, connections: 1 };
    let window = Window { begin: Instant::now() - Duration::from_millis(5), from: 0, until: 10_000_000 };
    let shape = Shape { pace: Some(pace), ..shape(2) };
    worker::install(Worker::new(shape, window, 1));
    let (near, _far) = duplex(1 << 16);
    let mut requester = Requester::new(near, &shape, 0, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { futures_util::future::poll_immediate(&mut requester).await });
    drop(requester);
    let tally = worker::take();
    assert_eq!((tally.due, tally.errors), (10, 2));
    assert_eq!(
        tally.told,
        ["2 answers of a connection did not arrive", "8 requests of a connection were due but never sent"]
    );
}

#[test]
fn an_open_loop_counts_from_when_a_request_was_due() {
    const STALL: Duration = Duration::from_millis(60);
    let pace = Pace { interval_ns: 2e6, connections: 1 };
    let tally = run(Shape { pace: Some(pace), ..shape(4) }, 100, async |mut socket| {
        // All requests that become due in the meantime have to wait, in the pipeline or before it.
        tokio::time::sleep(STALL).await;
        while let Some(id) = request(&mut socket).await {
            socket.write_all(&answer(id)).await.expect("written");
        }
    });
    assert_eq!((tally.errors, tally.due), (0, 50));
    let latencies = tally.latencies.percentiles().expect("some");
    assert_eq!(latencies.count, 50, "every answer is timed");
    let stalled = STALL.as_micros() as f64 / 2.0;
    assert!(latencies.max >= 1.9 * stalled && latencies.mean >= stalled / 4.0, "{latencies:?}");
    assert!(tally.lags.percentiles().expect("some").max >= stalled, "requests beyond the pipeline were sent late");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn answers_may_come_in_any_pieces(sizes in proptest::collection::vec(1usize..70, 1..40)) {
        let tally = run(shape(8), 5, async |mut socket| {
            let mut sizes = sizes.iter().copied().cycle();
            let mut input = Vec::new();
            let mut next = 0;
            while socket.read_buf(&mut input).await.is_ok_and(|n| n > 0) {
                let requests = input.len() / (HEAD_BYTES + 3);
                input.drain(..requests * (HEAD_BYTES + 3));
                let answers: Vec<u8> = (next..next + requests as u64).flat_map(answer).collect();
                next += requests as u64;
                let mut rest = &answers[..];
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
                    socket.write_all(piece).await.expect("written");
                    tokio::task::yield_now().await;
                    rest = after;
                }
            }
        });
        prop_assert_eq!(tally.told, Vec::<String>::new());
        prop_assert!(tally.errors == 0);
    }
}
