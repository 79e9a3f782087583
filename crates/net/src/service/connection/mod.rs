//! Stream of frames from its first byte to its last: read, decode, handle, write.
//!
//! A woken task reads until nothing is left, handles every complete frame, and writes all results in one call, at once
//! or at the end of the sweep. Between frames it holds no buffer.

mod ending;
mod reading;
mod writing;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Buf;

use self::ending::Pace;
use super::bodies::{Bodies, Incoming};
use super::body::{self, Permits};
use super::input::Input;
use super::out::Out;
use super::pending::{Answer, Begun, Pending};
use super::protocol::{Decoded, Fault, FaultKind, Handler, Held, Order, Protocol, Reply, Spent, Standing};
use super::rest::Rest;
use super::scratch::{self, Batch, Scratch};
use super::transport::Transport;
use super::{Live, Peer, Phase};
use crate::gate::expect_open;
use crate::heavy::Turns;
use crate::limits::{Permit, coarse_ns};
use crate::telemetry::{self, Lap};
use crate::workers::Timer;
use crate::{OpenConnection, Outbox};

/// Bytes to be written at which no more frames are handled until they are written.
const FLUSH_BYTES: usize = 64 << 10;
/// Maximum number of rounds of reading, answering and writing in one turn. After them, other connections get their
/// turn.
const ROUNDS_MAX: usize = 16;

pub(super) struct Connection<P: Protocol, H: Handler<P>, T> {
    live: Rc<Live<P, H>>,
    entry: Arc<OpenConnection>,
    transport: T,
    outbox: Arc<Outbox>,
    codec: P::Codec,
    session: H::Session,
    rest: Rest,
    /// Pending requests. Boxed, because most streams never have any.
    pending: Option<Box<Pending<P, H>>>,
    /// Memory permit of the frame whose request runs alone: the bytes of the frame exist as long as that request.
    paid: Option<Permit>,
    /// Tick before which no pending request has timed out.
    pending_due: u64,
    bodies: Bodies<P>,
    /// Future of a message that has to complete before any other frame is handled.
    held: Option<Held>,
    /// Pause that the handler wants: nothing is read until it ends.
    pause: Option<Held>,
    stage: Stage,
    timer: Timer,
    turns: Turns,
    /// `true` while the connection waits in the line of heavy turns: nothing is read or handled until it is called.
    is_in_line: bool,
    /// Tick at which the stream began.
    opened: u64,
    /// Tick of the last byte in either direction, or of the end of the last blocking message.
    active: u64,
    /// Tick at which the frame in `rest` began.
    frame_began: u64,
    /// Progress of a large frame at the last check.
    pace: Option<Pace>,
    /// Start of the turn by the coarse clock.
    turn_ns: u64,
    /// `true` while nothing is read, because something else has to be done or written first.
    is_held_up: bool,
    /// Written bytes at the last check, with those that it put off, and the tick since which others wait without
    /// progress.
    written: u64,
    /// Written bytes that the handler has been told of.
    told_written: u64,
    stalled: Option<u64>,
    /// `true` if the last turn has left its answers to the end of the sweep.
    has_put_off: bool,
}

enum Stage {
    /// No frame was complete yet, or the handler has not received everything that it needs first.
    Opening,
    Serving,
    /// No more frames are handled; requests in progress are finished.
    Finishing {
        drained: Option<Held>,
        is_eof: bool,
        /// Fault that the peer receives after all answers.
        fault: Option<Fault>,
    },
    /// The last bytes are being written, at most until this tick.
    Closing {
        due: u64,
        is_finished: bool,
        /// `true` if bytes from the peer are discarded until it closes: closing with unread bytes could destroy the
        /// last answers on their way to the peer.
        lingers: bool,
    },
}

/// Reason why a stream ends.
enum End {
    /// The fault is sent to the peer.
    Fault(Fault),
    /// The connection is broken, so nothing can be sent.
    Gone(io::Error),
    /// Everything was sent.
    Over,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Reason why a stream stops working.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// No more work is possible now.
    Done,
    /// The output has to be written first.
    OutOfRoom,
}

/// State that the frames of one read share.
struct Turn<'t> {
    out: &'t mut Out,
    batch: &'t mut Batch,
    now: u64,
    /// Time at which the read began, if durations are measured.
    at: Option<Instant>,
    /// Permit of the last request, if it was answered immediately: the next request uses it again.
    permit: Option<Permit>,
}

/// Result of a read.
enum Read {
    Pending,
    Eof,
    /// Bytes in `rest` for the decoder.
    Own,
    /// Number of bytes in the scratch buffer for the decoder.
    Scratch(usize),
}

impl<P: Protocol, H: Handler<P>, T> Unpin for Connection<P, H, T> {}

impl<P: Protocol, H: Handler<P>, T: Transport> Future for Connection<P, H, T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.live.phase.get() == Phase::Aborting {
            return Poll::Ready(());
        }
        self.is_in_line = self.turns.waits(cx);
        if self.turns.are_suspect() && !self.is_in_line {
            // A heavy turn would delay the answers of others.
            self.live.worker.sweeps.write();
        }
        let clock = self.turns.clock();
        let polled = scratch::with(|scratch| self.poll_turn(cx, scratch));
        self.turns.end(&clock);
        if self.has_put_off {
            // Not in the turn, which the writes for others would make a heavy one.
            self.live.worker.sweeps.write_if_full();
        }
        polled
    }
}

impl<P: Protocol, H: Handler<P>, T> Drop for Connection<P, H, T> {
    fn drop(&mut self) {
        if self.has_put_off {
            self.outbox.flush();
        }
        self.outbox.close();
        self.give_up();
        if self.live.counts_bytes {
            self.live.cells.bytes_written.add(self.outbox.written().saturating_sub(self.written));
        }
    }
}

impl<P: Protocol, H: Handler<P>, T> Connection<P, H, T> {
    /// Drops everything unfinished, with its permits.
    fn give_up(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.live.cells.requests_completed.add(pending.unfinished());
        }
        self.held = None;
        self.pause = None;
        self.rest = Rest::new();
        self.paid = None;
        self.bodies.clear();
    }
}

impl<P: Protocol, H: Handler<P>, T: Transport> Connection<P, H, T> {
    pub(super) fn new(
        live: Rc<Live<P, H>>,
        peer: &Rc<Peer>,
        connection: &Rc<H::Connection>,
        transport: T,
        outbox: Arc<Outbox>,
    ) -> Self {
        let mut session = live.handler.open(connection, &outbox);
        Self {
            entry: peer.entry.clone(),
            codec: live.protocol.codec(peer),
            pause: live.handler.pause(&mut session, Spent::default()),
            session,
            transport,
            outbox,
            rest: Rest::new(),
            pending: None,
            paid: None,
            pending_due: u64::MAX,
            bodies: Bodies::default(),
            held: None,
            stage: Stage::Opening,
            timer: Timer::new(live.worker.clone()),
            turns: Turns::new(live.worker.clone()),
            is_in_line: false,
            opened: live.worker.now(),
            active: live.worker.now(),
            frame_began: 0,
            pace: None,
            turn_ns: 0,
            is_held_up: false,
            written: 0,
            told_written: 0,
            stalled: None,
            has_put_off: false,
            live,
        }
    }

    /// Counts a turn that ended in a panic.
    pub(super) fn count_panic(&self) {
        self.live.cells.panics.add(1);
        scratch::with(|scratch| self.count(&mut scratch.batch));
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<()> {
        let now = self.live.worker.now();
        // Usually no other owner has a clone, and then no other thread can push.
        let is_shared = Arc::strong_count(&self.outbox) > 1;
        if is_shared {
            self.outbox.register(cx);
        }
        if !matches!(self.stage, Stage::Closing { .. }) {
            let mut lingers = true;
            self.live.handler.turn(&self.session, true);
            let mut turn = self.turn(cx, scratch, now);
            if turn.is_err() {
                self.live.handler.settle(&mut self.session);
            }
            if P::ORDER == Order::Request
                && self.pending.is_some()
                && let Err(End::Fault(fault)) = turn
            {
                self.put_off(fault);
                turn = self.turn(cx, scratch, now);
            }
            self.live.handler.turn(&self.session, false);
            match turn {
                Ok(()) => {
                    if !is_shared && !self.has_put_off && Arc::strong_count(&self.outbox) > 1 {
                        // The new owner of a clone may have pushed already.
                        cx.waker().wake_by_ref();
                    }
                    self.set_timer(cx, now);
                    return Poll::Pending;
                }
                Err(End::Gone(error)) => {
                    tracing::debug!(%error, "connection lost");
                    self.count(&mut scratch.batch);
                    return Poll::Ready(());
                }
                // If closing cannot destroy bytes on their way to the peer, there is no need to wait for the peer to
                // close.
                Err(End::Over) => lingers = T::CLOSES_HARD,
                Err(End::Fault(fault)) => {
                    self.count_fault(&fault);
                    self.live.protocol.encode_fault(&mut self.codec, None, &fault, &mut scratch.out);
                }
            }
            self.give_up();
            lingers &= !matches!(self.stage, Stage::Finishing { is_eof: true, .. });
            self.stage = Stage::Closing { due: now + self.live.ticks.last_words, is_finished: false, lingers };
        }
        self.poll_close(cx, scratch, now)
    }

    /// Queues a fault of the stream like an answer. With ordered responses it has no tag, so the peer would take it for
    /// an earlier answer. It replaces the answer of the request whose body is incomplete, or else comes last.
    fn put_off(&mut self, fault: Fault) {
        let mut is_placed = false;
        for number in self.bodies.cut() {
            is_placed |= self.pending.as_mut().is_some_and(|pending| pending.fail(number, &fault));
        }
        if is_placed {
            self.count_fault(&fault);
        }
        self.rest = Rest::new();
        let fault = (!is_placed).then_some(fault);
        self.stage = Stage::Finishing { drained: None, is_eof: false, fault };
    }

    fn count_fault(&self, fault: &Fault) {
        tracing::debug!(%fault, "closing a connection");
        let cells = &self.live.cells;
        match fault.kind {
            FaultKind::Malformed | FaultKind::Unsupported | FaultKind::TooLarge => cells.faults.add(1),
            FaultKind::Busy => cells.requests_refused.add(1),
            FaultKind::Timeout => cells.timeouts.add(1),
            FaultKind::Internal | FaultKind::ShuttingDown => {}
        }
    }

    /// Executes all work that is possible now.
    fn turn(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, now: u64) -> Result<(), End> {
        if self.outbox.is_closed() {
            return Err(End::Over);
        }
        if self.live.phase.get() == Phase::Draining {
            match self.stage {
                Stage::Opening => {
                    return Err(going_away().into());
                }
                Stage::Serving => {
                    let drained = self.live.handler.drain(&mut self.session);
                    self.stage = Stage::Finishing { drained, is_eof: false, fault: None };
                }
                Stage::Finishing { .. } | Stage::Closing { .. } => {}
            }
        }
        if !self.outbox.is_empty() {
            self.write(cx, scratch, now)?;
        }
        let mut rounds = ROUNDS_MAX;
        self.turn_ns = coarse_ns();
        while self.work(cx, scratch, now, &mut rounds)? == Work::OutOfRoom && self.outbox.has_room() {}
        if let Stage::Finishing { drained, fault, .. } = &mut self.stage
            && drained.as_mut().is_none_or(|drained| drained.as_mut().poll(cx).is_ready())
        {
            *drained = None;
            if self.held.is_none() && self.pending.is_none() && self.outbox.is_empty() {
                return Err(fault.take().map_or(End::Over, End::Fault));
            }
        }
        // The timer never fires later than the earliest deadline.
        if self.timer.has_fired(now) { self.expire(cx, now) } else { Ok(()) }
    }

    /// Answers, reads and handles until nothing more is possible or the rounds are used up, and writes the results.
    fn work(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, now: u64, rounds: &mut usize) -> Result<Work, End> {
        let at = self.live.measures_durations.then(Instant::now);
        scratch.batch.began = at;
        let mut is_unsettled = false;
        let why = loop {
            if *rounds == 0 || self.is_turn_over() {
                cx.waker().wake_by_ref();
                break Work::Done;
            }
            *rounds -= 1;
            if self.held.as_mut().is_some_and(|held| held.as_mut().poll(cx).is_ready()) {
                self.held = None;
                self.active = now;
            }
            if self.pause.as_mut().is_some_and(|pause| pause.as_mut().poll(cx).is_ready()) {
                self.pause = None;
                self.active = now;
                self.look_at_standing();
            }
            if self.pending.is_some() && self.outbox.has_room() {
                expect_open(self.live.gate.as_ref())?;
                self.answer(cx, &mut scratch.out, &mut scratch.batch);
                self.look_at_standing();
            }
            let has_room = self.outbox.has_room();
            if scratch.out.len() >= FLUSH_BYTES || !has_room {
                self.is_held_up |= !has_room;
                break Work::OutOfRoom;
            }
            if !self.is_reading() || self.is_in_line {
                break Work::Done;
            }
            if !self.may_handle(cx, &scratch.out) {
                self.is_held_up = true;
                if self.pending.as_ref().is_some_and(|pending| pending.is_blocked()) {
                    self.read_ahead(cx, scratch, now)?;
                }
                break Work::Done;
            }
            if std::mem::take(&mut self.is_held_up) {
                self.begin_anew(now);
            }
            let lap = Lap::begin();
            let read = if self.rest.is_ready() { Read::Own } else { self.read(cx, scratch, now)? };
            lap.end(telemetry::Phase::Read, &self.live.cells);
            let lap = Lap::begin();
            if matches!(read, Read::Own | Read::Scratch(_)) {
                expect_open(self.live.gate.as_ref())?;
            }
            match read {
                Read::Pending => break Work::Done,
                Read::Eof => {
                    match &mut self.stage {
                        Stage::Finishing { is_eof, .. } => *is_eof = true,
                        stage => *stage = Stage::Finishing { drained: None, is_eof: true, fault: None },
                    }
                    self.bodies.clear();
                }
                Read::Own if self.stands_in_line(cx, self.rest.len()) => break Work::Done,
                Read::Own => self.handle_own(cx, scratch, now, at)?,
                Read::Scratch(bytes) if self.stands_in_line(cx, bytes) => {
                    let (buf, ..) = scratch.split(bytes);
                    self.rest.keep(cx, &buf[..bytes], &Self::memory(&self.live, now))?;
                    break Work::Done;
                }
                Read::Scratch(bytes) => self.handle_scratch(cx, scratch, bytes, now, at)?,
            }
            lap.end(telemetry::Phase::Handle, &self.live.cells);
            is_unsettled = true;
        };
        if is_unsettled {
            self.live.handler.settle(&mut self.session);
        }
        let requests = scratch.batch.started + scratch.batch.messages;
        let bytes_read = scratch.batch.bytes_read;
        // An answer is correct if the gate is still open after its data was read.
        if !scratch.out.is_empty() {
            expect_open(self.live.gate.as_ref())?;
        }
        // Before the peer can send the next request: on another stream it might be handled by another thread.
        self.pause_after(cx, Spent { requests, bytes_read, bytes_written: 0 });
        self.has_put_off = why == Work::Done && self.writes_later(requests, &scratch.out);
        if self.has_put_off {
            self.write_later(cx, scratch);
        } else {
            self.write(cx, scratch, now)?;
        }
        self.pause_after(cx, Spent { bytes_written: self.written - self.told_written, ..Spent::default() });
        Ok(why)
    }

    /// Tells the handler what the peer has used, and begins the pause that it wants.
    fn pause_after(&mut self, cx: &mut Context<'_>, spent: Spent) {
        let has_spent = spent != Spent::default();
        if self.pause.is_some() || !has_spent && !self.live.handler.wants_pause(&self.session) {
            return;
        }
        self.told_written += spent.bytes_written;
        self.pause = self.live.handler.pause(&mut self.session, spent);
        // The first poll registers the waker.
        if self.pause.as_mut().is_some_and(|pause| pause.as_mut().poll(cx).is_ready()) {
            self.pause = None;
            cx.waker().wake_by_ref();
        }
        self.is_held_up |= self.pause.is_some();
    }

    /// Returns `true` if the bytes read are handled later, because they are likely to take long and other connections
    /// get their turn first.
    fn stands_in_line(&mut self, cx: &Context<'_>, read_bytes: usize) -> bool {
        self.is_in_line = self.turns.begin(cx, read_bytes);
        if self.is_in_line {
            self.live.cells.turns_waited.add(1);
            self.is_held_up = true;
        }
        self.is_in_line
    }

    /// Restarts the time measurement of the frames and bodies that the peer has begun: it is not responsible for the
    /// time in which the connection was not read.
    fn begin_anew(&mut self, now: u64) {
        self.frame_began = now;
        self.bodies.begin_anew(now);
    }

    fn handle_own(
        &mut self,
        cx: &Context<'_>,
        scratch: &mut Scratch,
        now: u64,
        at: Option<Instant>,
    ) -> Result<(), End> {
        let (_, out, batch) = scratch.split(0);
        let turn = &mut Turn { out, batch, now, at, permit: None };
        let mut rest = self.rest.take();
        let mut has_frame = false;
        loop {
            let mut input = Input::own(&mut rest);
            let is_whole = self.handle_frame(&mut input, turn)?;
            let taken = input.taken();
            rest.advance(taken);
            has_frame |= is_whole;
            if rest.is_empty() || !is_whole || !self.may_go_on(cx, turn.out) {
                break;
            }
        }
        let paid = self.rest.release(rest);
        if self.pending.as_ref().is_some_and(|pending| pending.is_alone()) {
            self.paid = paid;
        }
        if has_frame {
            self.frame_began = now;
        }
        Ok(())
    }

    fn handle_scratch(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        bytes: usize,
        now: u64,
        at: Option<Instant>,
    ) -> Result<(), End> {
        let (buf, out, batch) = scratch.split(bytes);
        let turn = &mut Turn { out, batch, now, at, permit: None };
        let mut input = Input::new(&buf[..bytes]);
        let is_new = self.rest.is_empty();
        while !input.is_empty() && self.is_reading() && self.may_handle_next(cx, turn.out) {
            if !self.handle_frame(&mut input, turn)? || self.is_turn_over() {
                break;
            }
        }
        if is_new || input.taken() > 0 {
            self.frame_began = now;
        }
        self.rest.keep(cx, input.bytes(), &Self::memory(&self.live, now))?;
        Ok(())
    }

    /// Returns `true` if the stream is read. During the shutdown, only outstanding pieces of bodies are read.
    fn is_reading(&self) -> bool {
        match self.stage {
            Stage::Opening | Stage::Serving => true,
            Stage::Finishing { is_eof, .. } => !is_eof && self.bodies.are_wanted(),
            Stage::Closing { .. } => false,
        }
    }

    /// Handles the first frame. Returns `false` if it is incomplete, or has to wait.
    fn handle_frame(&mut self, input: &mut Input<'_>, turn: &mut Turn<'_>) -> Result<bool, End> {
        let (buffered, taken) = (input.len(), input.taken());
        let is_late = matches!(self.stage, Stage::Finishing { .. });
        let Some(decoded) = self.decode(input)? else {
            return Ok(false);
        };
        match decoded {
            Decoded::More(wanted) => {
                if wanted > self.live.settings.frame_bytes_max {
                    return Err(self.too_large(wanted).into());
                }
                // At least one more byte is needed, whatever the decoder has requested.
                self.rest.wanted = wanted.max(input.len() + 1);
                return Ok(false);
            }
            Decoded::Request(..) | Decoded::Open(..) | Decoded::Message(_) if self.bodies.forbid_others() => {
                return Err(Fault::malformed("the body that was started is incomplete").into());
            }
            Decoded::Request(tag, _) | Decoded::Open(tag, ..) if is_late => {
                turn.batch.started += 1;
                self.answer_fault(tag, going_away(), turn);
            }
            Decoded::Message(_) if is_late => {}
            Decoded::Piece { tag, .. } if is_late && !self.bodies.have(tag) => {}
            Decoded::Request(..) | Decoded::Message(_)
                if buffered - input.len() > self.live.settings.frame_bytes_max =>
            {
                return Err(self.too_large(buffered - input.len()).into());
            }
            Decoded::Message(message) => {
                turn.batch.messages += 1;
                self.held = self.live.handler.accept_one_way(&mut self.session, message);
            }
            Decoded::Request(tag, request) => match turn.permit.take().or_else(|| self.live.requests.acquire(1)) {
                Some(permit) => match self.live.handler.call(&mut self.session, request) {
                    Reply::Now(response) => {
                        turn.batch.started += 1;
                        self.respond(tag, response, turn);
                        turn.permit = Some(permit);
                    }
                    Reply::Again(held) => {
                        input.give_back(taken);
                        self.held = Some(held);
                        return Ok(false);
                    }
                    reply => {
                        let _number = self.reply(tag, reply, permit, turn);
                    }
                },
                None => self.refuse(tag, "the server has too many requests in flight; try again later", turn),
            },
            Decoded::Open(tag, request, body_bytes) => self.open_body(tag, request, body_bytes, turn)?,
            Decoded::Piece { tag, bytes, is_last } => {
                self.bodies.take(tag, bytes, is_last, self.live.settings.body_bytes_max)?
            }
        }
        self.rest.wanted = 1;
        self.look_at_standing();
        Ok(true)
    }

    /// Applies the handler's view of the stream's progress.
    fn look_at_standing(&mut self) {
        match (&self.stage, self.live.handler.standing(&self.session)) {
            (Stage::Opening, Standing::Open) => self.stage = Stage::Serving,
            (Stage::Opening | Stage::Serving, Standing::Over) => {
                self.bodies.clear();
                self.stage = Stage::Finishing { drained: None, is_eof: false, fault: None };
            }
            _ => {}
        }
    }

    /// Returns the number of the request if it is pending.
    fn reply(
        &mut self,
        tag: P::Tag,
        reply: Reply<P::Response, H::Later>,
        permit: Permit,
        turn: &mut Turn<'_>,
    ) -> Option<u64> {
        turn.batch.started += 1;
        let is_blocked = matches!(reply, Reply::Blocked(_));
        let (later, is_alone) = match reply {
            Reply::Now(response) => {
                self.respond(tag, response, turn);
                return None;
            }
            Reply::Last(response) => {
                self.respond(tag, response, turn);
                self.bodies.clear();
                self.stage = Stage::Finishing { drained: None, is_eof: false, fault: None };
                return None;
            }
            Reply::Again(_) => {
                // Its body cannot be received again.
                self.answer_fault(tag, Fault::new(FaultKind::Internal, "the request cannot begin"), turn);
                return None;
            }
            Reply::Later(later) => (later, false),
            Reply::Alone(later) | Reply::Blocked(later) => (later, true),
        };
        let due = turn.now.saturating_add(self.live.ticks.handler);
        self.pending_due = self.pending_due.min(due);
        let pending = self.pending.get_or_insert_default();
        let number = pending.push(Begun { tag, due, at: turn.at, _permit: permit }, later, is_alone);
        if is_blocked {
            pending.block();
        }
        Some(number)
    }

    /// Answers immediately, unless another request has to be answered first.
    #[inline]
    fn respond(&mut self, tag: P::Tag, response: P::Response, turn: &mut Turn<'_>) {
        match &mut self.pending {
            Some(pending) if P::ORDER == Order::Request => pending.push_known(tag, response, turn.at),
            _ => {
                turn.batch.completed += 1;
                turn.batch.answered_at_once += 1;
                self.live.protocol.encode(&mut self.codec, tag, response, turn.out);
            }
        }
    }

    fn refuse(&mut self, tag: P::Tag, why: &'static str, turn: &mut Turn<'_>) {
        turn.batch.started += 1;
        self.live.cells.requests_refused.add(1);
        self.answer_fault(tag, Fault::busy(why), turn);
    }

    fn answer_fault(&mut self, tag: P::Tag, fault: Fault, turn: &mut Turn<'_>) {
        match &mut self.pending {
            Some(pending) if P::ORDER == Order::Request => pending.push_fault(tag, fault),
            _ => {
                turn.batch.completed += 1;
                turn.batch.answered_at_once += 1;
                self.live.protocol.encode_fault(&mut self.codec, Some(tag), &fault, turn.out);
            }
        }
    }

    fn open_body(
        &mut self,
        tag: P::Tag,
        request: P::Request<'_>,
        body_bytes: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<(), End> {
        self.bodies.admit(tag, body_bytes, &self.live.settings)?;
        let live = self.live.clone();
        let granted = (live.requests.acquire(1), live.bodies.acquire(1), live.memory.acquire(body::WAITING_BYTES_MAX));
        let (permit, permits) = match granted {
            (Some(permit), Some(body), Some(memory)) => (Some(permit), Some(Permits { _body: body, memory })),
            _ => (None, None),
        };
        let (writer, body) = body::channel(permits);
        let mut incoming = Incoming { tag, number: None, writer, began: turn.now, came_bytes: 0 };
        match permit {
            Some(permit) => {
                let reply = live.handler.call_streamed(&mut self.session, request, body);
                incoming.number = self.reply(tag, reply, permit, turn);
            }
            None => {
                drop(body);
                self.refuse(tag, "the server has too many bodies in flight; try again later", turn);
            }
        }
        if self.is_reading() {
            self.bodies.push(incoming);
        }
        Ok(())
    }

    /// Encodes the available answers of pending requests, while there is room for them.
    fn answer(&mut self, cx: &mut Context<'_>, out: &mut Out, batch: &mut Batch) {
        let Some(pending) = &mut self.pending else {
            return;
        };
        let protocol = &self.live.protocol;
        let codec = &mut self.codec;
        while out.len() < FLUSH_BYTES {
            match pending.poll_next(cx) {
                Some(Answer::Response(tag, response)) => protocol.encode(codec, tag, response, out),
                Some(Answer::Fault(tag, fault)) => protocol.encode_fault(codec, Some(tag), &fault, out),
                Some(Answer::Done(at)) => {
                    batch.completed += 1;
                    if let Some(at) = at {
                        self.live.cells.durations.record(at.elapsed(), 1);
                    }
                }
                None => break,
            }
        }
        if !pending.is_alone() {
            self.paid = None;
        }
        if pending.is_empty() {
            self.pending = None;
            self.pending_due = u64::MAX;
        }
    }
}

fn going_away() -> Fault {
    Fault::new(FaultKind::ShuttingDown, "the server is shutting down")
}
