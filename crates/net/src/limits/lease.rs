//! What one thread has of a cap: permits without a write to memory of another thread.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::cap::{Cap, Counts, State, Turn};
use super::sync::Padded;

/// A thread's part of a cap.
#[repr(align(128))]
pub struct Lease {
    cap: Arc<Cap>,
    /// What no permit holds.
    free: Cell<u64>,
    /// The last recall that was answered.
    recall: Cell<u64>,
    /// It keeps nothing, and has said that it will not before it comes to the cap again.
    is_paused: Cell<bool>,
    counts: Arc<Padded<Counts>>,
}

impl Lease {
    pub(super) fn new(cap: Arc<Cap>) -> Rc<Self> {
        let counts = Arc::new(Padded(Counts::new()));
        let recall = cap.join(counts.clone());
        Rc::new(Self { cap, free: Cell::new(0), recall: Cell::new(recall), is_paused: Cell::new(false), counts })
    }

    pub fn cap(&self) -> &Arc<Cap> {
        &self.cap
    }

    /// Whether others wait for a permit, or one was refused a moment ago.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.cap.visit_from() == 0
    }

    /// A permit for so much, or `None` where the cap has less, or others wait for it. Leases of other
    /// threads may keep up to two blocks each; a refusal asks them for it.
    #[inline]
    pub fn acquire(self: &Rc<Self>, amount: u64) -> Option<Permit> {
        self.take(amount).then(|| Permit { lease: self.clone(), amount })
    }

    /// The same, but where the cap has less, it waits behind all who came before. Refused at once is only
    /// what is more than the maximum, or comes when too many wait. For callers with a deadline of their own:
    /// they drop it.
    pub fn acquire_in_turn(self: &Rc<Self>, amount: u64) -> Acquire {
        Acquire { lease: self.clone(), amount, ticket: None }
    }

    /// Waits no longer than that. What is there at once costs no timer.
    pub async fn acquire_within(self: &Rc<Self>, amount: u64, wait_max: Duration) -> Option<Permit> {
        let mut acquire = self.acquire_in_turn(amount);
        if let Poll::Ready(done) = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut acquire).poll(cx))).await {
            return done;
        }
        match tokio::time::timeout(wait_max, acquire).await {
            Ok(done) => done,
            Err(_elapsed) => {
                self.counts.0.add_refused();
                None
            }
        }
    }

    /// Gives back what others may need.
    #[inline]
    pub fn give_back_if_short(&self) {
        if self.free.get() >= self.cap.visit_from() {
            self.visit(|_| ());
        }
    }

    /// The same, also for a lease that keeps nothing: others wait until each has said so. To be called at every
    /// tick of the thread. At the last one before a pause everything is given back, and until the thread asks for
    /// something again nobody waits for it.
    pub fn tick(&self, is_last: bool) {
        if !self.is_short() && !is_last || self.is_paused.get() {
            return;
        }
        self.is_paused.set(is_last);
        self.cap.change(|state| {
            state.put(self.free.take());
            self.recall.set(state.answer_recall(self.recall.get()));
            if is_last {
                state.pause();
            }
        });
    }

    #[inline]
    fn take(&self, amount: u64) -> bool {
        let free = self.free.get();
        if amount <= free {
            self.free.set(free - amount);
        } else if !self.fetch(amount) {
            return false;
        }
        self.counts.0.add_in_use(amount);
        true
    }

    #[inline]
    fn put(&self, amount: u64) {
        self.counts.0.sub_in_use(amount);
        self.free.set(self.free.get() + amount);
        if self.is_paused.get() {
            self.visit(|_| ());
        }
        self.give_back_if_short();
    }

    /// Takes from the cap what is not free here.
    #[cold]
    fn fetch(&self, amount: u64) -> bool {
        let is_taken = amount <= self.cap.max()
            && self.visit(|state| {
                let is_taken = state.take(amount);
                if !is_taken {
                    state.recall();
                }
                is_taken
            });
        if !is_taken {
            self.counts.0.add_refused();
        }
        is_taken
    }

    /// Gives everything back, asks for something, and takes along what may be kept. Who answers a recall keeps
    /// nothing, so that after the last answer the cap has all that no permit holds.
    #[cold]
    fn visit<T>(&self, ask: impl FnOnce(&mut State) -> T) -> T {
        let was_paused = self.is_paused.take();
        self.cap.change(|state| {
            if was_paused {
                self.recall.set(state.resume());
            }
            state.put(self.free.take());
            let answer = ask(state);
            self.free.set(state.take_spare());
            self.recall.set(state.answer_recall(self.recall.get()));
            answer
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_paused.get() {
            self.recall.set(self.cap.change(State::resume));
        }
        self.cap.leave(&self.counts, self.free.get(), self.recall.get());
    }
}

/// The right to use so much, on the thread of its lease. Given back when it is dropped.
#[must_use = "what is not held is given back"]
pub struct Permit {
    lease: Rc<Lease>,
    amount: u64,
}

impl Permit {
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes more. `false` where the cap has less; then the permit is as it was.
    #[inline]
    pub fn grow(&mut self, amount: u64) -> bool {
        let is_taken = self.lease.take(amount);
        if is_taken {
            self.amount += amount;
        }
        is_taken
    }

    /// Takes over what another permit of the same lease holds.
    pub fn merge(&mut self, mut other: Permit) {
        debug_assert!(Rc::ptr_eq(&self.lease, &other.lease), "permits of different leases");
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Gives a part back, at most all of it.
    #[inline]
    pub fn shrink(&mut self, amount: u64) {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        self.lease.put(amount);
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.lease.put(self.amount);
    }
}

/// A request in its turn: a permit, or `None` if it is refused. Dropped before, it leaves no trace.
#[must_use = "a request waits only while it is polled"]
pub struct Acquire {
    lease: Rc<Lease>,
    amount: u64,
    /// The place in the queue, once there is one.
    ticket: Option<u64>,
}

impl Acquire {
    /// The permit at once or a place in the queue.
    fn begin(&mut self, cx: &Context<'_>) -> Poll<bool> {
        let lease = &*self.lease;
        if lease.free.get() >= self.amount {
            return Poll::Ready(lease.take(self.amount));
        }
        let turn = if self.amount <= lease.cap.max() {
            lease.visit(|state| state.take_or_wait(self.amount, cx.waker()))
        } else {
            Turn::Refused
        };
        match turn {
            Turn::Taken => {
                lease.counts.0.add_in_use(self.amount);
                Poll::Ready(true)
            }
            Turn::Waits(ticket) => {
                self.ticket = Some(ticket);
                Poll::Pending
            }
            Turn::Refused => {
                lease.counts.0.add_refused();
                Poll::Ready(false)
            }
        }
    }

    /// What was granted to the ticket, if it was.
    fn collect(&mut self, ticket: u64, cx: &Context<'_>) -> Poll<bool> {
        match self.lease.cap.change(|state| state.collect(ticket, self.amount, cx.waker())) {
            Some(_old) => Poll::Pending,
            None => {
                self.ticket = None;
                self.lease.counts.0.add_in_use(self.amount);
                Poll::Ready(true)
            }
        }
    }
}

impl Future for Acquire {
    type Output = Option<Permit>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_held = match self.ticket {
            None => self.begin(cx),
            Some(ticket) => self.collect(ticket, cx),
        };
        is_held.map(|is_held| is_held.then(|| Permit { lease: self.lease.clone(), amount: self.amount }))
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            drop(self.lease.cap.change(|state| state.cancel(ticket, self.amount)));
        }
    }
}
