//! Connection of a load: requests in flight, checked answers, and one write for all requests that follow from one read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::protocol::{END, ERROR, HEAD_BYTES, Head, OPCODE, START};
use super::worker::{self, ANSWERS_A_SAMPLE, Shape, Tally, Window, Worker};

/// Position of the id in a frame.
const ID_AT: usize = 4;

/// Reason why a connection cannot be used any more.
type Wrong = String;

/// Future that ends when the window is over and all requests are answered, or with an error, which it records.
pub(super) struct Requester<S> {
    io: S,
    /// Index among all connections; `place` is the index among those of its thread.
    index: usize,
    place: usize,
    /// Ids count up from 0. Answers arrive in the order of the requests.
    next_to_send: u64,
    next_to_come: u64,
    /// Time at which request `id` was sent (open loop: due), at `id % pipeline`.
    begun_at: Box<[u64]>,
    /// Part of an answer's head that was received.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Remaining bytes of a body, once its head was received.
    body_left: Option<usize>,
    /// Requests that the socket did not accept, after some that it did. The unsent part is at most a pipeline, and the
    /// sent part is no larger than that.
    out: Vec<u8>,
    out_sent: usize,
    is_flushed: bool,
    is_over: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Requester<S> {
    pub(super) fn new(io: S, shape: &Shape, index: usize, place: usize) -> Self {
        Self {
            io,
            index,
            place,
            next_to_send: 0,
            next_to_come: 0,
            begun_at: vec![0; shape.pipeline].into_boxed_slice(),
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            body_left: None,
            out: Vec::new(),
            out_sent: 0,
            is_flushed: true,
            is_over: false,
        }
    }

    /// Reads, schedules and sends as far as possible without waiting.
    fn turn(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> Result<(), Wrong> {
        let now = self.read(cx, worker)?;
        let count = self.take_due(worker, now);
        self.send(cx, worker, count)?;
        self.is_over = self.in_flight() == 0
            && match &worker.shape.pace {
                None => now >= worker.window.until,
                Some(pace) => pace.due(self.index, self.next_to_send) >= worker.window.until,
            };
        Ok(())
    }

    fn in_flight(&self) -> usize {
        (self.next_to_send - self.next_to_come) as usize
    }

    /// Reads all available answers. Returns the time of the last one, or the current time.
    fn read(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> Result<u64, Wrong> {
        let Worker { shape, window, input, tally, .. } = worker;
        let mut now = None;
        loop {
            let mut buf = ReadBuf::new(input);
            match Pin::new(&mut self.io).poll_read(cx, &mut buf) {
                Poll::Pending => return Ok(now.unwrap_or_else(|| window.now())),
                Poll::Ready(Err(error)) => return Err(format!("reading: {error}")),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                    return Err(format!("the server closed a connection with {} requests in flight", self.in_flight()));
                }
                Poll::Ready(Ok(())) => {
                    let at = window.now();
                    self.take_answers(buf.filled(), at, shape, window, tally)?;
                    now = Some(at);
                }
            }
        }
    }

    fn take_answers(
        &mut self,
        mut bytes: &[u8],
        now: u64,
        shape: &Shape,
        window: &Window,
        tally: &mut Tally,
    ) -> Result<(), Wrong> {
        while !bytes.is_empty() {
            let body_left = match self.body_left {
                Some(left) => left,
                None => match self.take_head(&mut bytes) {
                    Some(head) => self.check(&head, bytes, shape)?,
                    None => return Ok(()),
                },
            };
            let part = body_left.min(bytes.len());
            bytes = &bytes[part..];
            if part < body_left {
                self.body_left = Some(body_left - part);
            } else {
                self.body_left = None;
                self.end_answer(now, shape, window, tally);
            }
        }
        Ok(())
    }

    /// Takes the next head, once it is complete.
    fn take_head(&mut self, bytes: &mut &[u8]) -> Option<[u8; HEAD_BYTES]> {
        if let (0, Some((head, rest))) = (self.head_bytes, bytes.split_first_chunk()) {
            *bytes = rest;
            return Some(*head);
        }
        let part = (HEAD_BYTES - self.head_bytes).min(bytes.len());
        self.head[self.head_bytes..][..part].copy_from_slice(&bytes[..part]);
        *bytes = &bytes[part..];
        self.head_bytes += part;
        if self.head_bytes < HEAD_BYTES {
            return None;
        }
        self.head_bytes = 0;
        Some(self.head)
    }

    /// Checks the head of the expected answer. Returns the length of its body.
    fn check(&self, head: &[u8; HEAD_BYTES], body: &[u8], shape: &Shape) -> Result<usize, Wrong> {
        let parsed = Head::parse(head).map_err(|fault| format!("not a valid answer: {fault}"))?;
        let Some(Head { body_bytes, id, opcode, flags }) = parsed else {
            return Err("an incomplete head".to_owned());
        };
        if flags & ERROR != 0 {
            let text = String::from_utf8_lossy(&body[..body_bytes.min(body.len())]);
            return Err(format!("the answer to {id} is an error: {text}"));
        }
        if self.in_flight() == 0 {
            return Err(format!("an answer to {id}, with nothing in flight"));
        }
        if id != self.next_to_come {
            return Err(format!("an answer to {id} instead of {}", self.next_to_come));
        }
        if opcode != OPCODE {
            return Err(format!("the answer to {id} has opcode {opcode}"));
        }
        if flags != START | END {
            return Err(format!("the answer to {id} has flags {flags}"));
        }
        if body_bytes != shape.response_bytes {
            return Err(format!("the answer to {id} has {body_bytes} bytes, not {}", shape.response_bytes));
        }
        Ok(body_bytes)
    }

    fn end_answer(&mut self, now: u64, shape: &Shape, window: &Window, tally: &mut Tally) {
        let begun_at = self.begun_at[(self.next_to_come % shape.pipeline as u64) as usize];
        self.next_to_come += 1;
        let latency = Duration::from_nanos(now.saturating_sub(begun_at));
        let is_counted = window.has(now);
        tally.answers += u64::from(is_counted);
        if shape.pace.is_none() {
            if is_counted && tally.answers.is_multiple_of(ANSWERS_A_SAMPLE) {
                tally.latencies.record(latency);
            }
        } else if window.has(begun_at) {
            tally.latencies.record(latency);
            tally.late += u64::from(!is_counted);
        }
    }

    /// Records the start time of the requests to be sent now. Returns their number.
    fn take_due(&mut self, worker: &mut Worker, now: u64) -> usize {
        let Worker { shape, window, tally, .. } = worker;
        let room = shape.pipeline - self.in_flight();
        let mut id = self.next_to_send;
        while (id - self.next_to_send) < room as u64 {
            let begun_at = match &shape.pace {
                None => now,
                Some(pace) => pace.due(self.index, id),
            };
            if begun_at > now || begun_at >= window.until {
                break;
            }
            if shape.pace.is_some() && window.has(begun_at) {
                tally.due += 1;
                tally.lags.record(Duration::from_nanos(now - begun_at));
            }
            self.begun_at[(id % shape.pipeline as u64) as usize] = begun_at;
            id += 1;
        }
        (id - self.next_to_send) as usize
    }

    fn send(&mut self, cx: &mut Context<'_>, worker: &mut Worker, count: usize) -> Result<(), Wrong> {
        let frame_bytes = worker.shape.frame_bytes();
        let bytes = &mut worker.requests[..count * frame_bytes];
        for frame in bytes.chunks_exact_mut(frame_bytes) {
            frame[ID_AT..ID_AT + 8].copy_from_slice(&self.next_to_send.to_le_bytes());
            self.next_to_send += 1;
        }
        let mut sent = 0;
        while self.out.is_empty() && sent < bytes.len() {
            let end = if worker.shape.is_one_write_per_request {
                (sent / frame_bytes + 1) * frame_bytes
            } else {
                bytes.len()
            };
            match self.write(cx, &bytes[sent..end])? {
                Some(n) => sent += n,
                None => break,
            }
        }
        self.keep(&bytes[sent..]);
        self.send_kept(cx)
    }

    /// Appends bytes to the pending ones. The sent part is removed once it is the larger one.
    fn keep(&mut self, bytes: &[u8]) {
        if self.out_sent > self.out.len() / 2 {
            self.out.drain(..self.out_sent);
            self.out_sent = 0;
        }
        self.out.extend_from_slice(bytes);
    }

    fn send_kept(&mut self, cx: &mut Context<'_>) -> Result<(), Wrong> {
        while self.out_sent < self.out.len() {
            let out = std::mem::take(&mut self.out);
            let written = self.write(cx, &out[self.out_sent..]);
            self.out = out;
            match written? {
                Some(n) => self.out_sent += n,
                None => return Ok(()),
            }
        }
        self.out.clear();
        self.out_sent = 0;
        if !self.is_flushed {
            match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Ready(flushed) => flushed.map_err(|error| format!("writing: {error}"))?,
                Poll::Pending => return Ok(()),
            }
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Writes bytes; `None` if the socket is full.
    fn write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<Option<usize>, Wrong> {
        self.is_flushed = false;
        let wrote = match Pin::new(&mut self.io).poll_write(cx, bytes) {
            Poll::Ready(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(n)) => Ok(Some(n)),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(None),
        };
        wrote.map_err(|error| format!("writing: {error}"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Requester<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let turned = worker::with(|worker| {
            if worker.shape.pace.is_some() && worker.wakers[self.place].is_none() {
                worker.wakers[self.place] = Some(cx.waker().clone());
            }
            if let Err(wrong) = self.turn(cx, worker) {
                self.is_over = true;
                worker.tally.fail(wrong);
            }
        });
        if self.is_over || turned.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<S> Drop for Requester<S> {
    /// Counts the answers that are still missing when the load is cut off, after the grace period.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        worker::with(|worker| {
            let in_flight = self.next_to_send - self.next_to_come;
            if in_flight > 0 {
                worker.tally.fail(format!("{in_flight} answers of a connection did not arrive"));
            }
            if let Some(pace) = &worker.shape.pace {
                let unsent = pace.count_before(self.index, worker.window.until).saturating_sub(self.next_to_send);
                if unsent > 0 {
                    worker.tally.due += unsent;
                    worker.tally.fail(format!("{unsent} requests of a connection were due but never sent"));
                }
            }
        });
    }
}

#[cfg(test)]
#[path = "requester_tests.rs"]
mod tests;
