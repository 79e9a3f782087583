//! Batches of one partition in their order: the choice of the next batch to send, and the effect of each answer. A lane
//! has neither a clock nor a socket: its owner passes in the time and the answers.
//!
//! A lane that numbers its batches sends each batch again that was temporarily refused or not answered: from the first
//! such batch on, in order, once all answers have arrived. The broker accepts each batch once. A lane without numbers
//! repeats only batches that were certainly not accepted.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use engine::limits::PRODUCER_BATCHES_MAX;
use engine::{BatchBuilder, Codec, DraftBatch, Error, ErrorKind, Producer, Result};
use wire::Published;

use crate::backoff::Backoff;

/// Outcome of a batch; `None` if no acknowledgement was requested.
pub(super) type Outcome = Result<Option<Published>>;

/// Batch that can still grow, or that waits to be sent. `T` holds what its waiters are owed.
pub(super) struct Open<T> {
    pub contents: Contents,
    pub owed: T,
    pub opened: Instant,
    /// Time at which its records fail.
    pub deadline: Instant,
    /// Bytes of the buffer that it occupies.
    pub held: usize,
}

pub(super) enum Contents {
    Records(BatchBuilder),
    Built(DraftBatch),
}

/// Batch in its wire form, until it is settled.
pub(super) struct Sealed<T> {
    /// Number of the batch, set by [`Lane::sent`].
    number: u64,
    /// Sequence of the first record; meaningless if batches are not numbered.
    sequence: i32,
    count: u32,
    pub bytes: Bytes,
    /// Waiters of the batch; `None` once it has failed. Then only the answer is awaited, which tells whether its
    /// sequence was used.
    owed: Option<T>,
    deadline: Instant,
    pub held: usize,
    is_sent: bool,
    /// `true` if it was sent without an answer, so that the broker may have accepted it.
    may_be_taken: bool,
}

/// Settled batch, with the resources that its lane held for it.
pub(super) struct Settled<T> {
    pub owed: Option<T>,
    pub held: usize,
    pub outcome: Outcome,
}

/// Next action for a lane.
pub(super) enum Step<T> {
    /// No batch is left to send.
    Rest,
    /// No batch may be sent before an answer arrives, or before this time.
    Wait(Option<Instant>),
    /// The lane needs a new identity: [`Lane::identify`].
    Identity,
    /// The batch is to be sent again.
    Send { number: u64, bytes: Bytes },
    /// The batch is to be closed and sent: [`Lane::sent`].
    Seal { open: Open<T>, producer: Option<Producer> },
}

/// Id and epoch of a producer.
pub(super) type Identity = (i64, i16);

/// Change of the sequences once all answers have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renumber {
    Keep,
    /// The batch with this sequence was certainly not accepted and has failed: the batches after it move up. If one of
    /// those was sent on a broken connection, they move to another identity instead: [`Lane::clear_doubts`].
    From(i32),
    /// The broker no longer knows this producer, or it is unknown which batches it has accepted.
    Restart,
}

pub(super) struct Lane<T> {
    /// Producer identity; `None` if batches are not numbered.
    identity: Option<Identity>,
    next_sequence: i32,
    next_number: u64,
    /// Batch that is growing.
    pub gathering: Option<Open<T>>,
    /// Full batches that wait to be closed.
    full: VecDeque<Open<T>>,
    /// `true` while a batch is being closed.
    is_sealing: bool,
    /// Builder with free capacity, for the next batch.
    pub spare: Option<BatchBuilder>,
    /// Closed batches in the order of their numbers, which is also the order of their sequences.
    queue: VecDeque<Sealed<T>>,
    /// Number of unanswered batches.
    outstanding: usize,
    /// Number of batches in `queue` that have to be sent again.
    unsent: usize,
    /// Renumbering that waits for all answers; no batch is sent before it.
    drain: Option<Renumber>,
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// Reason for sending batches again, since the last accepted batch.
    last_error: Option<Error>,
    /// Time and record count of the last batch that was closed.
    last: Option<(Instant, u32)>,
}

impl<T> Lane<T> {
    pub fn new(identity: Option<Identity>) -> Self {
        Self {
            identity,
            next_sequence: 0,
            next_number: 0,
            gathering: None,
            full: VecDeque::new(),
            is_sealing: false,
            spare: None,
            queue: VecDeque::new(),
            outstanding: 0,
            unsent: 0,
            drain: None,
            retry_at: None,
            backoff: Backoff::new(),
            last_error: None,
            last: None,
        }
    }

    /// Closes the growing batch to new records.
    pub fn close_gathering(&mut self) {
        self.full.extend(self.gathering.take());
    }

    /// Appends a batch after all others.
    pub fn push(&mut self, open: Open<T>) {
        self.close_gathering();
        self.full.push_back(open);
    }

    /// Returns the number after that of the last batch: all batches are settled once [`Lane::settled_to`] has reached
    /// it.
    pub fn end(&self) -> u64 {
        let to_come = self.full.len() + usize::from(self.is_sealing) + usize::from(self.gathering.is_some());
        self.next_number + to_come as u64
    }

    /// Returns a number below which all batches are settled. Failed batches are settled, too.
    pub fn settled_to(&self) -> u64 {
        self.queue.iter().find(|batch| batch.owed.is_some()).map_or(self.next_number, |batch| batch.number)
    }

    /// Returns `true` if a batch waits to be sent.
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0 || !self.full.is_empty() || self.gathering.is_some()
    }

    /// Returns the next action, if one more batch may be unanswered.
    pub fn step(&mut self, now: Instant, linger: Duration) -> Step<T> {
        if !self.has_unsent() {
            return Step::Rest;
        }
        match self.drain {
            Some(_) if self.outstanding > 0 => return Step::Wait(None),
            Some(Renumber::Restart) => return Step::Identity,
            Some(Renumber::From(sequence)) => {
                let at = self.queue.iter().position(|batch| !is_before(batch.sequence, sequence));
                let at = at.unwrap_or(self.queue.len());
                if self.clear_doubts(at) {
                    self.drain = Some(Renumber::Restart);
                    return Step::Identity;
                }
                self.renumber(at, sequence);
            }
            Some(Renumber::Keep) | None => {}
        }
        self.drain = None;
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Step::Wait(Some(at));
        }
        // If more batches than that were sent again, the broker could not tell them from new ones.
        if self.identity.is_some() && self.outstanding >= PRODUCER_BATCHES_MAX {
            return Step::Wait(None);
        }
        if self.unsent > 0
            && let Some(batch) = self.queue.iter_mut().find(|batch| !batch.is_sent)
        {
            batch.is_sent = true;
            self.unsent -= 1;
            self.outstanding += 1;
            return Step::Send { number: batch.number, bytes: batch.bytes.clone() };
        }
        if self.full.is_empty()
            && let Some(at) = self.lingers_until(now, linger)
        {
            return Step::Wait(Some(at));
        }
        let Some(open) = self.full.pop_front().or_else(|| self.gathering.take()) else {
            return Step::Rest;
        };
        let count = open.contents.count();
        self.last = Some((now, count));
        self.is_sealing = true;
        let producer = self.identity.map(|(id, epoch)| Producer { id, epoch, sequence: self.next_sequence });
        self.next_sequence = after(self.next_sequence, count);
        Step::Seal { open, producer }
    }

    /// Returns the time until which the growing batch waits for more records. It waits only if batches are in flight,
    /// or if the last batch was recent and had several records.
    fn lingers_until(&self, now: Instant, linger: Duration) -> Option<Instant> {
        let at = self.gathering.as_ref()?.opened + linger;
        let has_company = self.last.is_some_and(|(closed, count)| count > 1 && now < closed + linger);
        (at > now && (self.outstanding > 0 || has_company)).then_some(at)
    }

    /// Records that a batch from [`Step::Seal`] is closed and about to be sent. Returns its number.
    pub fn sent(&mut self, batch: Sealed<T>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.outstanding += 1;
        self.is_sealing = false;
        self.queue.push_back(Sealed { number, ..batch });
        number
    }

    /// Records that a batch from [`Step::Seal`] was sent without requesting an answer.
    pub fn sent_unanswered(&mut self, batch: Sealed<T>, outcome: Outcome) -> Settled<T> {
        self.next_number += 1;
        self.is_sealing = false;
        Settled { owed: batch.owed, held: batch.held, outcome }
    }

    /// Records that the connection broke before the batch was sent.
    pub fn not_sent(&mut self, number: u64) {
        self.outstanding -= 1;
        let Some(at) = self.find(number) else {
            return;
        };
        let batch = &mut self.queue[at];
        if batch.owed.is_none() {
            return self.give_up(at);
        }
        batch.is_sent = false;
        self.unsent += 1;
        self.drain_with(Renumber::Keep);
    }

    /// Processes the broker's answer to a batch.
    pub fn answered(&mut self, number: u64, answer: Result<Published>, now: Instant) -> Option<Settled<T>> {
        self.outstanding -= 1;
        let at = self.find(number)?;
        let error = match answer {
            Ok(published) => {
                if self.last_error.take().is_some() {
                    self.backoff = Backoff::new();
                }
                return self.settle(at, Ok(Some(published)));
            }
            Err(error) => error,
        };
        let is_numbered = self.identity.is_some();
        match error.kind {
            ErrorKind::OutOfSequence if is_numbered => {
                // After a refused batch this answer is expected. For the first of all batches it means that the broker
                // does not know the producer.
                let is_unknown_to_broker = at == 0 && self.drain.is_none();
                let renumber = if is_unknown_to_broker { Renumber::Restart } else { Renumber::Keep };
                self.repeat(at, renumber);
                None
            }
            ErrorKind::Busy
            | ErrorKind::DiskFull
            | ErrorKind::ShuttingDown
            | ErrorKind::Corrupt
            | ErrorKind::NotLeader => {
                self.retry_later(now, Duration::from_millis(error.retry_after_ms.into()), &error);
                self.repeat(at, Renumber::Keep);
                None
            }
            ErrorKind::Timeout | ErrorKind::Internal | ErrorKind::Disconnected if is_numbered => {
                self.lose(at, &error, now);
                None
            }
            kind => {
                let batch = &self.queue[at];
                if batch.may_be_taken {
                    self.drain_with(Renumber::Restart);
                    return self.settle(at, Err(uncertain(&error)));
                }
                let is_fenced = kind == ErrorKind::Fenced;
                self.drain_with(if is_fenced { Renumber::Restart } else { Renumber::From(batch.sequence) });
                self.settle(at, Err(error))
            }
        }
    }

    /// Records that the connection broke before the batch was answered.
    pub fn lost(&mut self, number: u64, error: &Error, now: Instant) -> Option<Settled<T>> {
        self.outstanding -= 1;
        let at = self.find(number)?;
        if self.identity.is_none() {
            return self.settle(at, Err(uncertain(error)));
        }
        self.lose(at, error, now);
        None
    }

    /// Sets a new identity of the lane. Batches that may have been accepted under the previous identity cannot be sent
    /// again: they are settled.
    pub fn identify(&mut self, identity: Identity) -> Vec<Settled<T>> {
        self.identity = Some(identity);
        self.drain = None;
        let (lost, rest): (VecDeque<Sealed<T>>, _) = self.queue.drain(..).partition(|batch| batch.may_be_taken);
        self.queue = rest;
        self.unsent = self.queue.len();
        self.renumber(0, 0);
        let message = "this publisher got a new producer id, under which it cannot send this batch again";
        let why = Error::new(ErrorKind::OutOfSequence, message);
        let settle = |batch: Sealed<T>| Settled { owed: batch.owed, held: batch.held, outcome: Err(uncertain(&why)) };
        lost.into_iter().map(settle).collect()
    }

    /// Fails batches whose deadline has passed; `unreachable` is the error of the connection, if it is down. Returns
    /// them with the next deadline.
    pub fn expire(
        &mut self,
        now: Instant,
        timeout: Duration,
        unreachable: Option<&Error>,
    ) -> (Vec<Settled<T>>, Option<Instant>) {
        let mut settled = Vec::new();
        let why = unreachable.or(self.last_error.as_ref()).cloned();
        while let Some(at) = self.queue.iter().position(|batch| batch.owed.is_some() && batch.deadline <= now) {
            let batch = &mut self.queue[at];
            let outcome = Err(expired(timeout, batch.is_sent || batch.may_be_taken, why.as_ref()));
            settled.push(Settled { owed: batch.owed.take(), held: std::mem::take(&mut batch.held), outcome });
            batch.bytes = Bytes::new();
            if !batch.is_sent {
                self.unsent -= 1;
                self.give_up(at);
            }
        }
        let is_due = |open: &Open<T>| open.deadline <= now;
        while let Some(open) =
            self.full.pop_front_if(|open| is_due(open)).or_else(|| self.gathering.take_if(|o| is_due(o)))
        {
            self.next_number += 1;
            settled.push(open.settle(Err(expired(timeout, false, why.as_ref()))));
        }
        let queued = self.queue.iter().filter(|batch| batch.owed.is_some()).map(|batch| batch.deadline);
        let open = self.full.iter().chain(&self.gathering).map(|open| open.deadline);
        (settled, queued.chain(open).min())
    }

    /// Settles all batches that are not in flight.
    pub fn fail_unsent(&mut self, error: &Error) -> Vec<Settled<T>> {
        let mut settled = Vec::new();
        while let Some(at) = self.queue.iter().position(|batch| !batch.is_sent) {
            let batch = &mut self.queue[at];
            let outcome = Err(if batch.may_be_taken { uncertain(error) } else { error.clone() });
            settled.push(Settled { owed: batch.owed.take(), held: batch.held, outcome });
            self.unsent -= 1;
            self.give_up(at);
        }
        self.close_gathering();
        self.next_number += self.full.len() as u64;
        settled.extend(self.full.drain(..).map(|open| open.settle(Err(error.clone()))));
        settled
    }

    /// Settles all batches. Later answers are only counted.
    pub fn abandon(&mut self, error: &Error) -> Vec<Settled<T>> {
        let mut settled = self.fail_unsent(error);
        for batch in self.queue.iter_mut().filter(|batch| batch.owed.is_some()) {
            let owed = batch.owed.take();
            let held = std::mem::take(&mut batch.held);
            batch.bytes = Bytes::new();
            settled.push(Settled { owed, held, outcome: Err(uncertain(error)) });
        }
        settled
    }

    fn find(&self, number: u64) -> Option<usize> {
        match self.queue.front() {
            Some(first) if first.number == number => Some(0),
            _ => self.queue.binary_search_by_key(&number, |batch| batch.number).ok(),
        }
    }

    fn settle(&mut self, at: usize, outcome: Outcome) -> Option<Settled<T>> {
        let batch = self.queue.remove(at)?;
        Some(Settled { owed: batch.owed, held: batch.held, outcome })
    }

    /// Sends a batch again that was certainly not accepted, unless it has failed.
    fn repeat(&mut self, at: usize, renumber: Renumber) {
        if self.identity.is_some() {
            self.drain_with(renumber);
        }
        if self.queue[at].owed.is_none() {
            return self.give_up(at);
        }
        self.queue[at].is_sent = false;
        self.unsent += 1;
    }

    /// Sends a batch again that may have been accepted, unless it has failed.
    fn lose(&mut self, at: usize, error: &Error, now: Instant) {
        self.queue[at].may_be_taken = true;
        self.retry_later(now, Duration::ZERO, error);
        self.repeat(at, Renumber::Keep);
    }

    /// Removes a batch that is already settled and will not be sent again.
    fn give_up(&mut self, at: usize) {
        if let Some(batch) = self.queue.remove(at) {
            let renumber = if batch.may_be_taken { Renumber::Restart } else { Renumber::From(batch.sequence) };
            self.drain_with(renumber);
        }
    }

    fn retry_later(&mut self, now: Instant, least: Duration, why: &Error) {
        self.last_error = Some(why.clone());
        // One pause for all batches that one event affects.
        if self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = Some(now + least + self.backoff.next());
        }
    }

    /// Waits for all answers, and then applies the most far-reaching of the requested renumberings.
    fn drain_with(&mut self, renumber: Renumber) {
        if self.identity.is_none() {
            return;
        }
        self.drain = Some(match (self.drain, renumber) {
            (Some(Renumber::Restart), _) | (_, Renumber::Restart) => Renumber::Restart,
            (Some(Renumber::From(a)), Renumber::From(b)) => Renumber::From(if is_before(b, a) { b } else { a }),
            (Some(Renumber::From(a)), Renumber::Keep) => Renumber::From(a),
            (Some(Renumber::Keep) | None, other) => other,
        });
    }

    /// Clears the doubts about the batches from this one on. Returns `true` if one of them may still be on a broken
    /// connection. The sequence before this batch was not used and will not be, so the broker has accepted none of them
    /// and accepts none before that sequence is used. Batches that moved up would be mistaken for them, so they need
    /// another identity.
    fn clear_doubts(&mut self, from: usize) -> bool {
        let mut had_any = false;
        for batch in self.queue.iter_mut().skip(from) {
            had_any |= std::mem::take(&mut batch.may_be_taken);
        }
        had_any
    }

    /// Assigns sequences, beginning with this one, to the queued batches from this one on. None of them may be in
    /// flight.
    fn renumber(&mut self, from: usize, mut sequence: i32) {
        let Some((id, epoch)) = self.identity else {
            return;
        };
        for batch in self.queue.iter_mut().skip(from) {
            let mut draft = DraftBatch::parse(BytesMut::from(&batch.bytes[..])).expect("invariant: it was built here");
            draft.set_producer(Producer { id, epoch, sequence });
            batch.bytes = draft.into_bytes();
            batch.sequence = sequence;
            sequence = after(sequence, batch.count);
        }
        self.next_sequence = sequence;
    }
}

impl Contents {
    /// Returns the uncompressed size of the batch in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Records(builder) => builder.len(),
            Self::Built(batch) => batch.len(),
        }
    }

    fn count(&self) -> u32 {
        match self {
            Self::Records(builder) => builder.count(),
            Self::Built(batch) => batch.count(),
        }
    }
}

impl<T> Open<T> {
    /// Closes the batch. Returns its builder, which can be used again.
    pub fn seal(self, codec: Codec, producer: Option<Producer>) -> (Sealed<T>, Option<BatchBuilder>) {
        let count = self.contents.count();
        let (draft, builder) = match self.contents {
            Contents::Records(mut builder) => {
                (builder.finish_with(codec, producer).expect("invariant: a batch has a record"), Some(builder))
            }
            Contents::Built(mut draft) => {
                if let Some(producer) = producer {
                    draft.set_producer(producer);
                }
                (draft, None)
            }
        };
        let bytes = draft.into_bytes();
        let sealed = Sealed {
            number: 0,
            sequence: producer.map_or(0, |producer| producer.sequence),
            count,
            held: bytes.len(),
            bytes,
            owed: Some(self.owed),
            deadline: self.deadline,
            is_sent: true,
            may_be_taken: false,
        };
        (sealed, builder)
    }

    pub fn settle(self, outcome: Outcome) -> Settled<T> {
        Settled { owed: Some(self.owed), held: self.held, outcome }
    }
}

/// Returns the sequence after `count` records. Sequences are 31 bits wide and wrap.
fn after(sequence: i32, count: u32) -> i32 {
    ((sequence as u32).wrapping_add(count) & i32::MAX as u32) as i32
}

/// Returns `true` if a sequence precedes another; both belong to the last few batches.
fn is_before(sequence: i32, other: i32) -> bool {
    (sequence as u32).wrapping_sub(other as u32) & i32::MAX as u32 > 1 << 30
}

/// Returns the error of a batch that was sent and not answered, caused by `error`.
fn uncertain(error: &Error) -> Error {
    let message = format!(
        "{}; the records may be in the log: they were sent, but not acknowledged. Check the log before you publish \
         them again",
        error.message
    );
    Error::new(ErrorKind::Disconnected, message)
}

fn expired(timeout: Duration, may_be_taken: bool, why: Option<&Error>) -> Error {
    let what = if may_be_taken { "not acknowledged" } else { "not sent" };
    let last = why.map_or(String::new(), |why| format!("; last: {}", why.message));
    // The refusal is more informative, and implies that the batch is not in the log.
    let says_enough = |kind: &ErrorKind| !may_be_taken || *kind == ErrorKind::Disconnected;
    let kind = why.map(|why| why.kind).filter(says_enough).unwrap_or(ErrorKind::Timeout);
    Error::new(kind, format!("{what} within {} ms{last}", timeout.as_millis()))
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
