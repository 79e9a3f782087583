//! The batches of one partition, in their order: which goes out next, and what becomes of each by its answer.
//! Neither a clock nor a socket: whoever holds a lane says what time it is and what came.
//!
//! A lane that numbers its batches sends again whatever was refused for a time or not answered: from the first
//! such batch on, in order, once all answers are in. The broker takes each once. A lane that does not number them
//! repeats only what was surely not taken.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use engine::limits::PRODUCER_BATCHES_MAX;
use engine::{BatchBuilder, Codec, DraftBatch, Error, ErrorKind, Producer, Result};
use wire::Published;

use crate::backoff::Backoff;

/// What came of a batch; nothing is known of one that asked for no acknowledgement.
pub(super) type Outcome = Result<Option<Published>>;

/// A batch that may still grow, or waits for its turn. `T` is what is owed to those who wait for it.
pub(super) struct Open<T> {
    pub contents: Contents,
    pub owed: T,
    pub opened: Instant,
    /// When its records are given up.
    pub deadline: Instant,
    /// Bytes that it takes of the buffer.
    pub held: usize,
}

pub(super) enum Contents {
    Records(BatchBuilder),
    Built(DraftBatch),
}

/// A batch as it goes over the wire, until it is settled.
pub(super) struct Sealed<T> {
    /// Set by [`Lane::sent`].
    number: u64,
    /// Of its first record; of no meaning where batches are not numbered.
    sequence: i32,
    count: u32,
    pub bytes: Bytes,
    /// `None` once it was given up: then only the answer is awaited that says whether its sequence was used.
    owed: Option<T>,
    deadline: Instant,
    pub held: usize,
    is_sent: bool,
    /// It was sent and that was not answered: the broker may have it.
    may_be_taken: bool,
}

/// A batch that is settled, with what its lane held for it.
pub(super) struct Settled<T> {
    pub owed: Option<T>,
    pub held: usize,
    pub outcome: Outcome,
}

/// What can be done for a lane now.
pub(super) enum Step<T> {
    /// Nothing is left to send.
    Rest,
    /// Nothing may go before an answer comes, or this time.
    Wait(Option<Instant>),
    /// It needs a new identity: [`Lane::identify`].
    Identity,
    /// This batch is to be sent again.
    Send { number: u64, bytes: Bytes },
    /// This one is to be closed and sent: [`Lane::sent`].
    Seal { open: Open<T>, producer: Option<Producer> },
}

/// Id and epoch of a producer.
pub(super) type Identity = (i64, i16);

/// What is done with the sequences once all answers are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renumber {
    Keep,
    /// The batch that had this sequence was surely not taken and is given up: those behind it move up. If any of
    /// those is on a wire that broke, they move to another identity instead: [`Lane::clear_doubts`].
    From(i32),
    /// The broker no longer knows this producer, or nobody knows what it took.
    Anew,
}

pub(super) struct Lane<T> {
    /// `None` where batches are not numbered.
    identity: Option<Identity>,
    next_sequence: i32,
    next_number: u64,
    /// What grows.
    pub gathering: Option<Open<T>>,
    /// What waits to be closed.
    full: VecDeque<Open<T>>,
    /// A batch is being closed.
    is_sealing: bool,
    /// A builder with room, for the next batch.
    pub spare: Option<BatchBuilder>,
    /// In the order of their numbers, which is that of their sequences.
    queue: VecDeque<Sealed<T>>,
    /// Answers that are awaited.
    outstanding: usize,
    /// Batches of `queue` that have to be sent again.
    unsent: usize,
    /// Nothing goes out until all answers are in.
    drain: Option<Renumber>,
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// Why batches are sent again, since the broker last took one.
    last_error: Option<Error>,
    /// The last batch that was closed: when, and of how many records.
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

    /// What grows grows no more.
    pub fn close_gathering(&mut self) {
        self.full.extend(self.gathering.take());
    }

    /// Puts a batch behind all others.
    pub fn push(&mut self, open: Open<T>) {
        self.close_gathering();
        self.full.push_back(open);
    }

    /// The number after that of the last batch here: all of them are settled once [`Lane::settled_to`] is as high.
    pub fn end(&self) -> u64 {
        let to_come = self.full.len() + usize::from(self.is_sealing) + usize::from(self.gathering.is_some());
        self.next_number + to_come as u64
    }

    /// All batches with a smaller number are settled. Those that were given up are.
    pub fn settled_to(&self) -> u64 {
        self.queue.iter().find(|batch| batch.owed.is_some()).map_or(self.next_number, |batch| batch.number)
    }

    /// Whether anything waits to be sent.
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0 || !self.full.is_empty() || self.gathering.is_some()
    }

    /// What can be done now, if one more batch may be unanswered.
    pub fn step(&mut self, now: Instant, linger: Duration) -> Step<T> {
        if !self.has_unsent() {
            return Step::Rest;
        }
        match self.drain {
            Some(_) if self.outstanding > 0 => return Step::Wait(None),
            Some(Renumber::Anew) => return Step::Identity,
            Some(Renumber::From(sequence)) => {
                let at = self.queue.iter().position(|batch| !is_before(batch.sequence, sequence));
                let at = at.unwrap_or(self.queue.len());
                if self.clear_doubts(at) {
                    self.drain = Some(Renumber::Anew);
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
        // More than that the broker could not tell from new ones if they came again.
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

    /// Until when what has gathered waits for more: not at all unless batches are on the way, or the last one was
    /// a moment ago and had company.
    fn lingers_until(&self, now: Instant, linger: Duration) -> Option<Instant> {
        let at = self.gathering.as_ref()?.opened + linger;
        let has_company = self.last.is_some_and(|(closed, count)| count > 1 && now < closed + linger);
        (at > now && (self.outstanding > 0 || has_company)).then_some(at)
    }

    /// A batch from [`Step::Seal`] is closed and about to be sent. Returns its number.
    pub fn sent(&mut self, batch: Sealed<T>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.outstanding += 1;
        self.is_sealing = false;
        self.queue.push_back(Sealed { number, ..batch });
        number
    }

    /// A batch from [`Step::Seal`] went out, and nobody will answer it.
    pub fn sent_unanswered(&mut self, batch: Sealed<T>, outcome: Outcome) -> Settled<T> {
        self.next_number += 1;
        self.is_sealing = false;
        Settled { owed: batch.owed, held: batch.held, outcome }
    }

    /// The connection was gone before the batch could go out.
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

    /// The broker answered a batch.
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
                // Behind one that was refused that is what has to come. The first of all it means something else.
                let is_unknown_there = at == 0 && self.drain.is_none();
                let renumber = if is_unknown_there { Renumber::Anew } else { Renumber::Keep };
                self.repeat(at, renumber);
                None
            }
            ErrorKind::Busy | ErrorKind::DiskFull | ErrorKind::ShuttingDown | ErrorKind::Corrupt => {
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
                    self.drain_with(Renumber::Anew);
                    return self.settle(at, Err(uncertain(&error)));
                }
                let is_fenced = kind == ErrorKind::Fenced;
                self.drain_with(if is_fenced { Renumber::Anew } else { Renumber::From(batch.sequence) });
                self.settle(at, Err(error))
            }
        }
    }

    /// The connection broke before the batch was answered.
    pub fn lost(&mut self, number: u64, error: &Error, now: Instant) -> Option<Settled<T>> {
        self.outstanding -= 1;
        let at = self.find(number)?;
        if self.identity.is_none() {
            return self.settle(at, Err(uncertain(error)));
        }
        self.lose(at, error, now);
        None
    }

    /// From now on the lane has this identity, which is new to the broker. What may have been taken under the one
    /// before cannot be sent again: it is settled.
    pub fn identify(&mut self, identity: Identity) -> Vec<Settled<T>> {
        self.identity = Some(identity);
        self.drain = None;
        let (lost, rest): (VecDeque<Sealed<T>>, _) = self.queue.drain(..).partition(|batch| batch.may_be_taken);
        self.queue = rest;
        self.unsent = self.queue.len();
        self.renumber(0, 0);
        let why = Error::new(ErrorKind::OutOfSequence, "the broker does not know this publisher any more");
        let settle = |batch: Sealed<T>| Settled { owed: batch.owed, held: batch.held, outcome: Err(uncertain(&why)) };
        lost.into_iter().map(settle).collect()
    }

    /// Gives up what has waited too long; `unreachable` is why there is no connection, if there is none. Returns it
    /// with the next time to look.
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

    /// Settles all that is not on its way.
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

    /// Settles all there is. Answers that still come are only counted.
    pub fn abandon(&mut self, error: &Error) -> Vec<Settled<T>> {
        let mut settled = self.fail_unsent(error);
        for batch in self.queue.iter_mut().filter(|batch| batch.owed.is_some()) {
            let (owed, held) = (batch.owed.take(), std::mem::take(&mut batch.held));
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

    /// A batch that was surely not taken is sent again, unless it was given up.
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

    /// A batch that may have been taken is sent again, unless it was given up.
    fn lose(&mut self, at: usize, error: &Error, now: Instant) {
        self.queue[at].may_be_taken = true;
        self.retry_later(now, Duration::ZERO, error);
        self.repeat(at, Renumber::Keep);
    }

    /// Takes a batch out that is settled already and will not be sent again.
    fn give_up(&mut self, at: usize) {
        if let Some(batch) = self.queue.remove(at) {
            let renumber = if batch.may_be_taken { Renumber::Anew } else { Renumber::From(batch.sequence) };
            self.drain_with(renumber);
        }
    }

    fn retry_later(&mut self, now: Instant, least: Duration, why: &Error) {
        self.last_error = Some(why.clone());
        // Once for all batches that one event hits.
        if self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = Some(now + least + self.backoff.next());
        }
    }

    /// Waits for all answers, and then does what the worst of what came asks for.
    fn drain_with(&mut self, renumber: Renumber) {
        if self.identity.is_none() {
            return;
        }
        self.drain = Some(match (self.drain, renumber) {
            (Some(Renumber::Anew), _) | (_, Renumber::Anew) => Renumber::Anew,
            (Some(Renumber::From(a)), Renumber::From(b)) => Renumber::From(if is_before(b, a) { b } else { a }),
            (Some(Renumber::From(a)), Renumber::Keep) => Renumber::From(a),
            (Some(Renumber::Keep) | None, other) => other,
        });
    }

    /// The sequence before this batch was not used and will not be, so neither it nor any behind it was taken, nor
    /// will be: not before that sequence is used. Whether any of them may still be on a wire that broke. Those that
    /// moved up would be mistaken for them, so they need another identity.
    fn clear_doubts(&mut self, from: usize) -> bool {
        let mut had_any = false;
        for batch in self.queue.iter_mut().skip(from) {
            had_any |= std::mem::take(&mut batch.may_be_taken);
        }
        had_any
    }

    /// Gives the batches of the queue from this one on, none of which is on its way, sequences from this one on.
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
    /// Bytes of the batch, not compressed yet.
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
    /// Closes the batch. Its builder is there for another.
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

/// The sequence after so many records: 31 bits wide.
fn after(sequence: i32, count: u32) -> i32 {
    ((sequence as u32).wrapping_add(count) & i32::MAX as u32) as i32
}

/// Whether a sequence comes before another; both are of the last few batches.
fn is_before(sequence: i32, other: i32) -> bool {
    (sequence as u32).wrapping_sub(other as u32) & i32::MAX as u32 > 1 << 30
}

/// What is said of a batch that was sent and not answered, after this.
fn uncertain(error: &Error) -> Error {
    let message = format!("{}; the records may be in the log: what was sent was not answered", error.message);
    Error::new(ErrorKind::Disconnected, message)
}

fn expired(timeout: Duration, may_be_taken: bool, why: Option<&Error>) -> Error {
    let what = if may_be_taken { "not acknowledged" } else { "not sent" };
    let last = why.map_or(String::new(), |why| format!("; last: {}", why.message));
    // Why it was refused says more, and that it is not in the log.
    let says_enough = |kind: &ErrorKind| !may_be_taken || *kind == ErrorKind::Disconnected;
    let kind = why.map(|why| why.kind).filter(says_enough).unwrap_or(ErrorKind::Timeout);
    Error::new(kind, format!("{what} within {} ms{last}", timeout.as_millis()))
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
