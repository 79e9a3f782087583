//! Writing of answers: in the turn of their connection, or at the end of the sweep.

use std::io;
use std::task::Context;

use super::super::out::Out;
use super::super::protocol::{Handler, Protocol};
use super::super::scratch::{Batch, Scratch};
use super::super::transport::Transport;
use super::{Connection, Stage};
use crate::sweeps;
use crate::telemetry::{self, Lap};

impl<P: Protocol, H: Handler<P>, T: Transport> Connection<P, H, T> {
    /// Returns `true` if the answers to these requests are written at the end of the sweep.
    pub(super) fn writes_later(&self, requests: u64, out: &Out) -> bool {
        T::IS_DIRECT
            && requests >= sweeps::REQUESTS_MIN
            && (1..=sweeps::BYTES_MAX).contains(&out.len())
            && self.outbox.is_empty()
            && matches!(self.stage, Stage::Serving)
    }

    /// Leaves all encoded bytes to the end of the sweep, and updates the counters.
    pub(super) fn write_later(&mut self, cx: &Context<'_>, scratch: &mut Scratch) {
        // This task writes what the socket does not accept then.
        self.outbox.register(cx);
        let bytes = scratch.out.len() as u64;
        if !self.outbox.push(scratch.out.rest(0)) {
            // It was closed before this task was registered.
            cx.waker().wake_by_ref();
        }
        scratch.out.clear();
        self.count(&mut scratch.batch);
        self.count_written(self.outbox.written() + bytes);
        // Everything before was written.
        self.stalled = None;
        self.live.worker.sweeps.put_off(&self.outbox);
    }

    /// Writes all encoded bytes, and updates the counters.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, now: u64) -> io::Result<()> {
        let lap = Lap::begin();
        let written = self.transport.write(&self.outbox, &scratch.out, cx);
        lap.end(telemetry::Phase::Write, &self.live.cells);
        if !scratch.out.is_empty() {
            scratch.out.clear();
        }
        self.count(&mut scratch.batch);
        let has_progress = self.count_written(self.outbox.written());
        if has_progress {
            self.active = now;
        }
        self.stalled = match self.stalled {
            _ if self.outbox.is_empty() => None,
            Some(since) if !has_progress => Some(since),
            _ => Some(now),
        };
        written
    }

    /// Counts all bytes up to this number as written. Returns `true` if there are more than before: those that are
    /// written at the end of the sweep were counted when they were put off.
    fn count_written(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.written);
        if self.live.counts_bytes {
            self.live.cells.bytes_written.add(more);
        }
        self.written += more;
        more > 0
    }

    /// Adds the counts of this turn to the counters.
    pub(super) fn count(&self, batch: &mut Batch) {
        let batch = std::mem::take(batch);
        let cells = &self.live.cells;
        if batch.started + batch.messages > 0 {
            self.entry.add_requests_on_one_thread(batch.started + batch.messages);
            cells.requests_started.add(batch.started);
            cells.messages.add(batch.messages);
        }
        if batch.completed > 0 {
            cells.requests_completed.add(batch.completed);
        }
        if batch.answered_at_once > 0
            && let Some(began) = batch.began
        {
            cells.durations.record(began.elapsed(), batch.answered_at_once);
        }
        if self.live.counts_bytes {
            cells.bytes_read.add(batch.bytes_read);
        }
    }
}
