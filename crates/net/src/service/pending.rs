//! Pending requests of one stream, and the order of their answers.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};

use super::protocol::{Fault, FaultKind, Handler, Order, Protocol};
use crate::limits::Permit;

/// Progress of the pending requests.
pub(super) enum Answer<P: Protocol> {
    Response(P::Tag, P::Response),
    Fault(P::Tag, Fault),
    /// A request has all of its responses; contains the time at which it began, if durations are measured.
    Done(Option<Instant>),
}

/// Properties of a request in progress.
pub(super) struct Begun<P: Protocol> {
    pub(super) tag: P::Tag,
    /// Tick at which it times out.
    pub(super) due: u64,
    pub(super) at: Option<Instant>,
    /// Permit to be in flight.
    pub(super) _permit: Permit,
}

pub(super) struct Pending<P: Protocol, H: Handler<P>> {
    running: FuturesUnordered<Running<P, H::Later>>,
    /// Places in the order of responses, if order matters: one for each request from the first incompletely answered
    /// one on.
    places: VecDeque<Place<P, H::Later>>,
    /// Number of the first place.
    first: u64,
    /// Number of the next request.
    next: u64,
    /// Answers that may be sent now.
    ready: VecDeque<Answer<P>>,
    /// Number of requests that have to finish before another is handled.
    alone: usize,
    /// `true` if that request is cancelled when the peer disconnects.
    is_blocked: bool,
    /// Requests that were not reported as done yet, including those that panicked.
    unfinished: u64,
}

/// Place in the order of responses.
enum Place<P: Protocol, L> {
    Running,
    /// The response is known before its turn; contains the time at which the request began, if durations are measured.
    Known(P::Tag, P::Response, Option<Instant>),
    /// The first response is known, and the remaining work continues after it.
    Ahead(Work<P, L>, P::Response),
    /// The request has ended, with a fault or after its last response.
    Over(Option<(P::Tag, Fault)>, Option<Instant>),
}

struct Work<P: Protocol, L> {
    number: u64,
    begun: Begun<P>,
    is_alone: bool,
    is_answered: bool,
    later: Pin<Box<L>>,
}

/// Work up to its next response.
struct Running<P: Protocol, L>(Option<Work<P, L>>);

impl<P: Protocol, L: Stream<Item = P::Response>> Future for Running<P, L> {
    type Output = Option<(Work<P, L>, Option<P::Response>)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let response = std::task::ready!(work.later.as_mut().poll_next(cx));
        Poll::Ready(self.0.take().map(|work| (work, response)))
    }
}

impl<P: Protocol, H: Handler<P>> Default for Pending<P, H> {
    fn default() -> Self {
        Self {
            running: FuturesUnordered::new(),
            places: VecDeque::new(),
            first: 0,
            next: 0,
            ready: VecDeque::new(),
            alone: 0,
            is_blocked: false,
            unfinished: 0,
        }
    }
}

impl<P: Protocol, H: Handler<P>> Pending<P, H> {
    /// Returns the number of incompletely answered requests.
    pub(super) fn count(&self) -> usize {
        self.running.len().max(self.places.len()) + self.ready.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the number of requests that are abandoned if this value is dropped now.
    pub(super) fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Returns `true` if a request is running that excludes all others.
    pub(super) fn is_alone(&self) -> bool {
        self.alone > 0
    }

    /// Returns `true` if a request is running that is cancelled when the peer disconnects.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_alone() && self.is_blocked
    }

    /// Marks the exclusive request to be cancelled when the peer disconnects.
    pub(super) fn block(&mut self) {
        self.is_blocked = true;
    }

    /// Adds a request. Returns its number.
    pub(super) fn push(&mut self, begun: Begun<P>, later: H::Later, is_alone: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        self.unfinished += 1;
        if is_alone {
            self.alone += 1;
            self.is_blocked = false;
        }
        if P::ORDER == Order::Request {
            self.places.push_back(Place::Running);
        }
        let work = Work { number, begun, is_alone, is_answered: false, later: Box::pin(later) };
        self.running.push(Running(Some(work)));
        number
    }

    /// Adds a response that has to wait for its turn.
    pub(super) fn push_known(&mut self, tag: P::Tag, response: P::Response, at: Option<Instant>) {
        self.next += 1;
        self.unfinished += 1;
        self.places.push_back(Place::Known(tag, response, at));
    }

    /// Adds a refusal that has to wait for its turn.
    pub(super) fn push_fault(&mut self, tag: P::Tag, fault: Fault) {
        self.next += 1;
        self.unfinished += 1;
        self.places.push_back(Place::Over(Some((tag, fault)), None));
    }

    /// Returns the next answer that may be sent. Requests make progress only in this call, so the caller needs room for
    /// the answer.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Option<Answer<P>> {
        loop {
            if let Some(answer) = self.ready.pop_front().or_else(|| self.next_in_order()) {
                self.unfinished -= u64::from(matches!(answer, Answer::Done(_)));
                return Some(answer);
            }
            match self.running.poll_next_unpin(cx) {
                Poll::Ready(Some(Some((work, response)))) => self.take(work, response),
                Poll::Ready(Some(None)) => {}
                Poll::Ready(None) | Poll::Pending => return None,
            }
        }
    }

    fn next_in_order(&mut self) -> Option<Answer<P>> {
        match self.places.front()? {
            Place::Running => return None,
            Place::Known(..) | Place::Over(..) => self.first += 1,
            Place::Ahead(..) => {}
        }
        match self.places.pop_front()? {
            Place::Running => None,
            Place::Known(tag, response, at) => {
                self.ready.push_back(Answer::Done(at));
                Some(Answer::Response(tag, response))
            }
            Place::Ahead(work, response) => {
                let tag = work.begun.tag;
                self.places.push_front(Place::Running);
                self.running.push(Running(Some(work)));
                Some(Answer::Response(tag, response))
            }
            Place::Over(fault, at) => {
                if let Some((tag, fault)) = fault {
                    self.ready.push_back(Answer::Done(at));
                    return Some(Answer::Fault(tag, fault));
                }
                Some(Answer::Done(at))
            }
        }
    }

    /// Processes the result of a piece of work: a response, or its end.
    fn take(&mut self, mut work: Work<P, H::Later>, response: Option<P::Response>) {
        let is_turn = P::ORDER == Order::Completion || work.number == self.first;
        match response {
            Some(response) if is_turn => {
                work.is_answered = true;
                self.ready.push_back(Answer::Response(work.begun.tag, response));
                self.running.push(Running(Some(work)));
            }
            Some(response) => {
                work.is_answered = true;
                let at = (work.number - self.first) as usize;
                self.places[at] = Place::Ahead(work, response);
            }
            None => {
                let missing = || Fault::new(FaultKind::Internal, "the request was not answered");
                let fault = (!work.is_answered).then(missing);
                self.end(&work, fault);
            }
        }
    }

    fn end(&mut self, work: &Work<P, H::Later>, fault: Option<Fault>) {
        self.alone -= usize::from(work.is_alone);
        let fault = fault.map(|fault| (work.begun.tag, fault));
        match P::ORDER {
            Order::Request => self.places[(work.number - self.first) as usize] = Place::Over(fault, work.begun.at),
            Order::Completion => {
                self.ready.extend(fault.map(|(tag, fault)| Answer::Fault(tag, fault)));
                self.ready.push_back(Answer::Done(work.begun.at));
            }
        }
    }

    /// Ends a request with a fault as its answer. Returns `false` if it has ended or has begun to answer.
    pub(super) fn fail(&mut self, number: u64, fault: &Fault) -> bool {
        let mut failed = None;
        for running in std::mem::take(&mut self.running) {
            match running.0 {
                Some(work) if work.number == number && !work.is_answered => failed = Some(work),
                _ => self.running.push(running),
            }
        }
        if let Some(work) = &failed {
            self.end(work, Some(fault.clone()));
        }
        failed.is_some()
    }

    /// Returns the tick at which the first of the requests times out.
    pub(super) fn due(&self) -> Option<u64> {
        let running = self.running.iter().filter_map(|running| running.0.as_ref());
        let ahead = self.places.iter().filter_map(|place| match place {
            Place::Ahead(work, _) => Some(work),
            _ => None,
        });
        running.chain(ahead).map(|work| work.begun.due).min()
    }

    /// Ends every request that has timed out. Returns their number.
    pub(super) fn expire(&mut self, now: u64) -> u64 {
        let mut late = Vec::new();
        for running in std::mem::take(&mut self.running) {
            match running.0 {
                Some(work) if work.begun.due <= now => late.push(work),
                _ => self.running.push(running),
            }
        }
        for place in &mut self.places {
            if matches!(place, Place::Ahead(work, _) if work.begun.due <= now)
                && let Place::Ahead(work, _) = std::mem::replace(place, Place::Running)
            {
                // Its first response will not be sent: a fault replaces it.
                late.push(work);
            }
        }
        for work in &late {
            self.end(work, Some(Fault::new(FaultKind::Timeout, "the request took too long")));
        }
        late.len() as u64
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
