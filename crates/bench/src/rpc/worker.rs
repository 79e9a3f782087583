//! What the connections of one load thread share: its buffers, the time, and what was found.

use std::cell::Cell;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::protocol::{END, HEAD_BYTES, Head, OPCODE, START};
use crate::latency::Latencies;

/// What one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// In a closed loop one answer in so many is timed: a prime, so that each place in a batch gets its turn.
pub(super) const ANSWERS_A_SAMPLE: u64 = 7;
/// Errors that are told about; the others are only counted.
const ERRORS_TOLD: usize = 10;

/// What every connection does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Requests in flight at most.
    pub pipeline: usize,
    pub payload_bytes: usize,
    /// Of the body of every answer.
    pub response_bytes: usize,
    pub is_one_write_per_request: bool,
    /// When requests are due; without it as soon as there is room in the pipeline.
    pub pace: Option<Pace>,
}

impl Shape {
    pub(super) fn frame_bytes(&self) -> usize {
        HEAD_BYTES + self.payload_bytes
    }
}

/// A fixed schedule of requests that all connections take turns with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds from one request to the next, whichever connection it is on.
    pub interval_ns: f64,
    pub connections: usize,
}

impl Pace {
    /// When a connection's request of this number is due, in nanoseconds since the beginning.
    pub(super) fn due(&self, connection: usize, number: u64) -> u64 {
        ((connection as u64 + number * self.connections as u64) as f64 * self.interval_ns) as u64
    }

    /// How many requests of a connection are due before this time.
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

/// When what happens counts, in nanoseconds since the beginning.
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

/// What was found.
#[derive(Default)]
pub(super) struct Tally {
    /// Answers that came within the window.
    pub answers: u64,
    pub latencies: Latencies,
    /// Of an open loop: requests that were due within the window, those answered after it, and how late they
    /// were sent.
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
    /// What was read last.
    pub input: Vec<u8>,
    /// As many requests as a pipeline holds, without their ids.
    pub requests: Vec<u8>,
    /// Where there is a schedule: who to wake when a request is due.
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

/// Makes it that of this thread.
pub(super) fn install(worker: Worker) {
    WORKER.set(Some(Box::new(worker)));
}

/// Lends that of this thread. `None` where there is none, or it is lent already.
pub(super) fn with<T>(work: impl FnOnce(&mut Worker) -> T) -> Option<T> {
    WORKER.with(|cell| {
        let mut worker = cell.take()?;
        let done = work(&mut worker);
        cell.set(Some(worker));
        Some(done)
    })
}

/// What was found on this thread, at its end.
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
