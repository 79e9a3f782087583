//! What a stream has to be done with by when, and what happens if it is not.

use std::io;
use std::task::Context;

use super::super::protocol::{Fault, FaultKind, Handler, Protocol};
use super::super::transport::Transport;
use super::{Connection, End, Stage};

/// A tick that does not come.
const NEVER: u64 = u64::MAX / 2;
/// A frame may take its read timeout, and a tick more for each so many bytes that have come of it.
const READ_BYTES_PER_TICK_MIN: usize = 256;

impl<P: Protocol, H: Handler<P>, T: Transport> Connection<P, H, T> {
    /// Ends what has taken too long.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>, now: u64) -> Result<(), End> {
        if now < self.due() {
            return Ok(());
        }
        if now >= self.pending_due
            && let Some(pending) = &mut self.pending
        {
            self.live.cells.timeouts.add(pending.expire(now));
            self.pending_due = pending.due().unwrap_or(u64::MAX);
            cx.waker().wake_by_ref();
        }
        self.rest.expire(now)?;
        let ticks = &self.live.ticks;
        if self.stalled.is_some_and(|since| now >= since.saturating_add(ticks.write)) {
            self.live.cells.timeouts.add(1);
            let error = io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what it is sent");
            return Err(End::Gone(error));
        }
        match self.stage {
            Stage::Opening if now >= self.opening_due() => {
                Err(Fault::new(FaultKind::Timeout, "nothing was asked in time").into())
            }
            Stage::Serving | Stage::Finishing { .. } if self.coming_due().is_some_and(|due| now >= due) => {
                Err(Fault::new(FaultKind::Timeout, "a frame took too long to come").into())
            }
            Stage::Serving if self.is_idle() && now >= self.active.saturating_add(ticks.idle) => Err(End::Over),
            _ => Ok(()),
        }
    }

    /// The tick at which something has taken too long, as it looks now.
    fn due(&self) -> u64 {
        let ticks = &self.live.ticks;
        let mut due = self.rest.wait_due().map_or(self.pending_due, |due| due.min(self.pending_due));
        if let Some(since) = self.stalled {
            due = due.min(since.saturating_add(ticks.write));
        }
        match self.stage {
            Stage::Opening => due = due.min(self.opening_due()),
            Stage::Serving if self.is_idle() => due = due.min(self.active.saturating_add(ticks.idle)),
            Stage::Serving => due = due.min(self.coming_due().unwrap_or(u64::MAX)),
            Stage::Closing { due: last, .. } => due = due.min(last),
            Stage::Finishing { .. } => due = due.min(self.coming_due().unwrap_or(u64::MAX)),
        }
        due.min(NEVER)
    }

    /// A stream that opens may not put its first frame off by sending it slowly.
    fn opening_due(&self) -> u64 {
        self.opened.saturating_add(self.live.ticks.first_frame)
    }

    /// The tick at which what the peer has begun should be whole.
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

    fn is_idle(&self) -> bool {
        let is_working = self.pending.is_some() || self.held.is_some() || !self.bodies.is_empty();
        !is_working && self.rest.is_empty() && self.stalled.is_none()
    }

    /// A timer that fires early looks again; so it only has to be moved to an earlier tick, or after it fired.
    /// There always is one: the shutdown wakes those who have.
    pub(super) fn set_timer(&mut self, cx: &Context<'_>, now: u64) {
        let due = self.due();
        if self.timer.due().is_none_or(|at| due < at || at <= now) {
            self.timer.set(due, cx);
        }
    }
}
