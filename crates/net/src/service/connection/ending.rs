//! End of a stream: its timeouts, and how it is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::super::input::Input;
use super::super::out::Out;
use super::super::protocol::{Decoded, Fault, FaultKind, Handler, Protocol};
use super::super::scratch::Scratch;
use super::super::transport::Transport;
use super::{Connection, End, FLUSH_BYTES, ROUNDS_MAX, Stage};
use crate::limits::coarse_ns;

/// Tick that is never reached.
const NEVER: u64 = u64::MAX / 2;
/// Bytes of a frame that extend its read timeout by one tick.
const READ_BYTES_PER_TICK_MIN: usize = 256;
/// Size from which a frame has to make progress while others wait for memory, and its minimum progress between two
/// checks.
const PACED_BYTES_MIN: usize = 256 << 10;
const PACE_BYTES_MIN: usize = 64 << 10;
/// Time after which a turn ends between two frames, even if more frames have arrived.
const TURN_NS: u64 = 4_000_000;

/// Size of a large frame at a tick.
pub(super) struct Pace {
    /// Tick at which the frame began.
    frame: u64,
    at: u64,
    bytes: usize,
}

impl<P: Protocol, H: Handler<P>, T: Transport> Connection<P, H, T> {
    /// Returns `true` if other connections are to get their turn.
    pub(super) fn is_turn_over(&self) -> bool {
        coarse_ns() - self.turn_ns >= TURN_NS
    }

    /// Returns `true` if another frame may be handled in this turn.
    pub(super) fn may_go_on(&self, cx: &Context<'_>, out: &Out) -> bool {
        self.is_reading() && self.may_handle_next(cx, out) && !self.is_turn_over()
    }

    /// Returns `true` if another frame may be handled: nothing has to be written, answered or delivered first. Requests
    /// that wait for their bodies block nothing, since the pieces are among the next frames.
    pub(super) fn may_handle(&self, cx: &Context<'_>, out: &Out) -> bool {
        !self.is_alone() && self.has_room(cx, out)
    }

    /// Returns `true` if another frame of the same read may be handled: it may join a request that runs alone.
    pub(super) fn may_handle_next(&self, cx: &Context<'_>, out: &Out) -> bool {
        (!self.is_alone() || self.live.handler.is_joinable(&self.session)) && self.has_room(cx, out)
    }

    fn is_alone(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.is_alone())
    }

    fn has_room(&self, cx: &Context<'_>, out: &Out) -> bool {
        let max = self.live.settings.requests_per_connection_max + self.bodies.count();
        out.len() < FLUSH_BYTES
            && self.held.is_none()
            && self.pause.is_none()
            && !self.live.handler.wants_pause(&self.session)
            && self.pending.as_ref().is_none_or(|pending| pending.count() < max)
            && self.bodies.have_room(cx)
    }

    /// Decodes the next frame. Returns `None` if it waits for a request that runs alone: it is then decoded again.
    pub(super) fn decode<'a>(&mut self, input: &mut Input<'a>) -> Result<Option<Decoded<'a, P>>, Fault> {
        let taken = input.taken();
        let decoded = self.live.protocol.decode(&mut self.codec, input);
        if !self.is_alone() {
            return decoded.map(Some);
        }
        let waits = match &decoded {
            Ok(Decoded::Request(_, request)) => !self.live.handler.may_join(&self.session, request),
            Ok(Decoded::Message(_)) => false,
            // Its first bytes remain.
            Ok(Decoded::More(wanted)) if *wanted > self.live.settings.frame_bytes_max => return Ok(None),
            Ok(Decoded::More(_)) => false,
            Ok(Decoded::Open(..) | Decoded::Piece { .. }) | Err(_) => true,
        };
        if waits {
            input.give_back(taken);
            return Ok(None);
        }
        decoded.map(Some)
    }

    #[cold]
    pub(super) fn too_large(&self, bytes: usize) -> Fault {
        let max = self.live.settings.frame_bytes_max;
        Fault::too_large(format!("a frame has at most {max} bytes, this one {bytes}"))
    }

    /// Ends everything that has timed out.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>, now: u64) -> Result<(), End> {
        if now >= self.pending_due
            && let Some(pending) = &mut self.pending
        {
            self.live.cells.timeouts.add(pending.expire(now));
            self.pending_due = pending.due().unwrap_or(u64::MAX);
            cx.waker().wake_by_ref();
        }
        self.rest.expire(now)?;
        self.check_pace(now)?;
        let ticks = &self.live.ticks;
        if self.stalled.is_some_and(|since| now >= since.saturating_add(ticks.write)) {
            self.live.cells.timeouts.add(1);
            let error = io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its responses");
            return Err(End::Gone(error));
        }
        match self.stage {
            // Requests that arrived in time are answered first.
            Stage::Opening if now >= self.opening_due() && self.pending.is_none() => {
                Err(Fault::new(FaultKind::Timeout, "no request arrived in time").into())
            }
            Stage::Serving | Stage::Finishing { .. } if self.coming_due().is_some_and(|due| now >= due) => {
                Err(Fault::new(FaultKind::Timeout, "a frame took too long to arrive").into())
            }
            Stage::Serving if self.is_idle() && now >= self.active.saturating_add(ticks.idle) => Err(End::Over),
            _ => Ok(()),
        }
    }

    /// Returns the earliest deadline in the current state.
    pub(super) fn due(&self) -> u64 {
        let ticks = &self.live.ticks;
        let mut due = self.rest.wait_due().map_or(self.pending_due, |due| due.min(self.pending_due));
        if let Some(since) = self.stalled {
            due = due.min(since.saturating_add(ticks.write));
        }
        if let Some(pace) = &self.pace {
            due = due.min(pace.at.saturating_add(ticks.pace));
        }
        match self.stage {
            Stage::Opening if self.pending.is_some() => {}
            Stage::Opening => due = due.min(self.opening_due()),
            Stage::Serving if self.is_idle() => due = due.min(self.active.saturating_add(ticks.idle)),
            Stage::Serving => due = due.min(self.coming_due().unwrap_or(u64::MAX)),
            Stage::Closing { due: last, .. } => due = due.min(last),
            Stage::Finishing { .. } => due = due.min(self.coming_due().unwrap_or(u64::MAX)),
        }
        due.min(NEVER)
    }

    /// Returns the deadline of the first frame. Sending the frame slowly does not extend it.
    fn opening_due(&self) -> u64 {
        self.opened.saturating_add(self.live.ticks.first_frame)
    }

    /// Returns the tick by which the frames and bodies in progress should be complete.
    fn coming_due(&self) -> Option<u64> {
        if self.is_held_up || !self.is_reading() {
            return None;
        }
        let due = |began: u64, bytes: usize| {
            let extra = (bytes / READ_BYTES_PER_TICK_MIN) as u64;
            began.saturating_add(self.live.ticks.read).saturating_add(extra)
        };
        let is_frame = !self.rest.is_empty() && !self.rest.is_ready() && !self.rest.is_waiting();
        let frame = is_frame.then(|| due(self.frame_began, self.rest.len()));
        self.bodies.due(due).into_iter().chain(frame).min()
    }

    /// Returns `true` if an incomplete frame holds memory that others could use, and its peer is responsible for that.
    fn holds_much(&self) -> bool {
        let is_coming = !self.rest.is_ready() && !self.rest.is_waiting() && !self.is_held_up && self.is_reading();
        is_coming && self.rest.len() >= PACED_BYTES_MIN
    }

    /// Fails if a large frame makes no progress while others wait for memory: otherwise, a few peers that never finish
    /// their frames could block all others until those frames time out.
    fn check_pace(&mut self, now: u64) -> Result<(), Fault> {
        self.look_at_pace(now);
        let Some(pace) = &mut self.pace else {
            return Ok(());
        };
        if now < pace.at.saturating_add(self.live.ticks.pace) {
            return Ok(());
        }
        let came_bytes = self.rest.len() - pace.bytes;
        pace.at = now;
        pace.bytes = self.rest.len();
        if came_bytes < PACE_BYTES_MIN && self.live.memory.is_short() {
            let message = "the frame stopped arriving, and other requests wait for the memory that it holds";
            Err(Fault::new(FaultKind::Timeout, message))
        } else {
            Ok(())
        }
    }

    fn look_at_pace(&mut self, now: u64) {
        if !self.holds_much() {
            self.pace = None;
        } else if self.pace.as_ref().is_none_or(|pace| pace.frame != self.frame_began || pace.bytes > self.rest.len()) {
            self.pace = Some(Pace { frame: self.frame_began, at: now, bytes: self.rest.len() });
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let is_working =
            self.pending.is_some() || self.held.is_some() || self.pause.is_some() || !self.bodies.is_empty();
        !is_working && self.rest.is_empty() && self.stalled.is_none()
    }

    /// Sets the timer to the earliest deadline. A timer that fires early checks again, so it only has to be moved to an
    /// earlier tick, or after it has fired. Every stream has a timer, because the shutdown wakes streams through it.
    pub(super) fn set_timer(&mut self, cx: &Context<'_>, now: u64) {
        self.look_at_pace(now);
        let due = self.due();
        if self.timer.due().is_none_or(|at| due < at || at <= now) {
            self.timer.set(due, cx);
        }
    }

    /// Closes the stream: sends the last bytes, closes the direction, and gives the peer time to read them.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, now: u64) -> Poll<()> {
        let Stage::Closing { due, is_finished, lingers } = self.stage else {
            return Poll::Ready(());
        };
        if now >= due {
            return Poll::Ready(());
        }
        if !is_finished {
            let is_written = self.write(cx, scratch, now).is_ok();
            if !is_written || self.outbox.is_closed() {
                return Poll::Ready(());
            }
            if !self.outbox.is_empty() || self.transport.poll_finish(&self.outbox, cx).is_pending() {
                self.set_timer(cx, now);
                return Poll::Pending;
            }
            self.stage = Stage::Closing { due, is_finished: true, lingers };
        }
        if !lingers {
            return Poll::Ready(());
        }
        let (buf, ..) = scratch.split(0);
        for _ in 0..ROUNDS_MAX {
            let mut buf = ReadBuf::new(buf);
            match Pin::new(self.transport.reader()).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    self.set_timer(cx, now);
                    return Poll::Pending;
                }
            }
        }
        // More bytes are available, but other connections get their turn first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
