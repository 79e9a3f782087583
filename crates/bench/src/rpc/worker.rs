//! State that the connections of one load thread share: buffers, the time, and results.

use std::cell::Cell;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::protocol::{END, HEAD_BYTES, Head, OPCODE, START};
use crate::latency::Latencies;

/// Maximum bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// In a closed loop one of this many answers is timed: a prime, so that each position in a batch is covered.
pub(super) const ANSWERS_A_SAMPLE: u64 = 7;
/// Maximum number of errors that are described; the others are only counted.
const ERRORS_TOLD: usize = 10;

/// Parameters that all connections share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Maximum number of requests in flight.
    pub pipeline: usize,
    pub payload_bytes: usize,
    /// Bytes of the body of every answer.
    pub response_bytes: usize,
    pub is_one_write_per_request: bool,
    /// Schedule of requests; without it a request is sent as soon as the pipeline has room.
    pub pace: Option<Pace>,
}

impl Shape {
    pub(super) fn frame_bytes(&self) -> usize {
        HEAD_BYTES + self.payload_bytes
    }
}

/// Fixed schedule of requests, on which all connections take turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds from one request to the next, on any connection.
    pub interval_ns: f64,
    pub connections: usize,
}

impl Pace {
    /// Returns the time at which request `number` of a connection is due, in nanoseconds since the beginning.
    pub(super) fn due(&self, connection: usize, number: u64) -> u64 {
        ((connection as u64 + number * self.connections as u64) as f64 * self.interval_ns) as u64
    }

    /// Returns the number of requests of a connection that are due before this time.
    pub(super) fn count_before(&self, connection: usize, ns: u64) -> u64 {
        let mut count = (ns as f64 / self.interval_ns / self.connections as f64) as u64;
        // The rounding of both may differ by one.
        while count > 0 && self.due(connection, count - 1) >= ns {
            count -= 1;
        }
        while self.due(connection, count) < ns {
            count += 1;
        }
        count
    }
}

/// Time window of the measurement, in nanoseconds since the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub begin: Instant,
    pub from: u64,
    pub until: u64,
}

impl Window {
    pub(super) fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    pub(super) fn at(&self, ns: u64) -> Instant {
        self.begin + Duration::from_nanos(ns)
    }

    pub(super) fn has(&self, ns: u64) -> bool {
        (self.from..self.until).contains(&ns)
    }
}

/// Results of a thread.
#[derive(Default)]
pub(super) struct Tally {
    /// Answers that were received within the window.
    pub answers: u64,
    pub latencies: Latencies,
    /// Open loop: requests that were due within the window. `late` counts those answered after it, and `lags` holds the
    /// delays with which they were sent.
    pub due: u64,
    pub late: u64,
    pub lags: Latencies,
    pub errors: u64,
    pub told: Vec<String>,
}

impl Tally {
    pub(super) fn fail(&mut self, why: String) {
        self.errors += 1;
        if self.told.len() < ERRORS_TOLD {
            self.told.push(why);
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.latencies.add(&other.latencies);
        self.due += other.due;
        self.late += other.late;
        self.lags.add(&other.lags);
        self.errors += other.errors;
        self.told.extend(other.told);
        self.told.truncate(ERRORS_TOLD);
    }
}

pub(super) struct Worker {
    pub shape: Shape,
    pub window: Window,
    /// Buffer of the last read.
    pub input: Vec<u8>,
    /// Requests of a whole pipeline, without their ids.
    pub requests: Vec<u8>,
    /// Wakers of connections, to be woken when a request is due, if there is a schedule.
    pub wakers: Vec<Option<Waker>>,
    pub tally: Tally,
}

impl Worker {
    pub(super) fn new(shape: Shape, window: Window, connections: usize) -> Self {
        let head = Head { body_bytes: shape.payload_bytes, id: 0, opcode: OPCODE, flags: START | END }.encode();
        let mut request = head.to_vec();
        request.resize(shape.frame_bytes(), b'r');
        Self {
            shape,
            window,
            input: vec![0; READ_BYTES],
            requests: request.repeat(shape.pipeline),
            wakers: vec![None; connections],
            tally: Tally::default(),
        }
    }
}

thread_local! {
    static WORKER: Cell<Option<Box<Worker>>> = const { Cell::new(None) };
}

/// Sets the worker of this thread.
pub(super) fn install(worker: Worker) {
    WORKER.set(Some(Box::new(worker)));
}

/// Lends the worker of this thread. `None` if it has no worker, or the worker is already lent.
pub(super) fn with<T>(work: impl FnOnce(&mut Worker) -> T) -> Option<T> {
    WORKER.with(|cell| {
        let mut worker = cell.take()?;
        let done = work(&mut worker);
        cell.set(Some(worker));
        Some(done)
    })
}

/// Takes the results of this thread, at its end.
pub(super) fn take() -> Tally {
    WORKER.take().map(|worker| worker.tally).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_gives_every_connection_its_turn() {
        let pace = Pace { interval_ns: 1e9 / 3.0, connections: 2 };
        let due: Vec<u64> = (0..3).flat_map(|number| [pace.due(0, number), pace.due(1, number)]).collect();
        assert_eq!(due, [0, 333_333_333, 666_666_666, 1_000_000_000, 1_333_333_333, 1_666_666_666]);
        for ns in [0, 1, 333_333_333, 333_333_334, 1_000_000_000, 1_000_000_001, 7_777_777_777] {
            for connection in 0..2 {
                let counted = (0..).take_while(|number| pace.due(connection, *number) < ns).count() as u64;
                assert_eq!(pace.count_before(connection, ns), counted, "{connection} before {ns}");
            }
        }
    }
}
