//! Share of a cap on one thread: permits without writes to memory of other threads.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::cap::{Cap, Counts, State, Turn};
use super::sync::Padded;

/// Share of a cap for one thread.
#[repr(align(128))]
pub struct Lease {
    cap: Arc<Cap>,
    /// Amount that no permit holds.
    free: Cell<u64>,
    /// Number of the last recall that was answered.
    recall: Cell<u64>,
    /// `true` if the lease keeps nothing, and has announced that it stays so until it returns to the cap.
    is_paused: Cell<bool>,
    counts: Arc<Padded<Counts>>,
}

impl Lease {
    pub(super) fn new(cap: Arc<Cap>) -> Rc<Self> {
        let counts = Arc::new(Padded(Counts::new()));
        let recall = cap.join(counts.clone());
        Rc::new(Self { cap, free: Cell::new(0), recall: Cell::new(recall), is_paused: Cell::new(false), counts })
    }

    /// Returns the cap that this lease belongs to.
    pub fn cap(&self) -> &Arc<Cap> {
        &self.cap
    }

    /// Returns `true` if others wait for a permit, or one was refused a moment ago.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.cap.visit_from() == 0
    }

    /// Returns a permit for this amount, or `None` if the cap has less or others wait for it. Leases of other threads
    /// may keep up to two blocks each; a refusal recalls them.
    #[inline]
    pub fn acquire(self: &Rc<Self>, amount: u64) -> Option<Permit> {
        self.take(amount).then(|| Permit { lease: self.clone(), amount })
    }

    /// Requests a permit for this amount, and waits in order of arrival if the cap has less. Only a request above the
    /// maximum, or one beyond 1024 waiters, is refused immediately. For callers with their own deadline: they drop the
    /// future.
    pub fn acquire_in_turn(self: &Rc<Self>, amount: u64) -> Acquire {
        Acquire { lease: self.clone(), amount, ticket: None }
    }

    /// Requests a permit and waits up to `wait_max`. An amount that is available immediately costs no timer.
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

    /// Returns the free amount to the cap if others may need it.
    #[inline]
    pub fn give_back_if_short(&self) {
        if self.free.get() >= self.cap.visit_from() {
            self.visit(|_| ());
        }
    }

    /// Returns the free amount if the cap is short, even if it is zero, because others wait until each lease has
    /// answered. Must be called at every tick of the thread. At the last tick before a pause everything is returned,
    /// and until the thread requests something again no other lease waits for it.
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

    /// Takes the amount from the cap.
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

    /// Returns everything to the cap, makes a request, and takes an amount to keep, if that is allowed. A lease that
    /// answers a recall keeps nothing, so that after the last answer the cap has everything that no permit holds.
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

/// Permit to use an amount, on the thread of its lease. Dropping it returns the amount.
#[must_use = "the permit is released when it is dropped"]
pub struct Permit {
    lease: Rc<Lease>,
    amount: u64,
}

impl Permit {
    /// Returns the amount that the permit holds.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Enlarges the permit. Returns `false` and leaves it unchanged if the cap has less.
    #[inline]
    pub fn grow(&mut self, amount: u64) -> bool {
        let is_taken = self.lease.take(amount);
        if is_taken {
            self.amount += amount;
        }
        is_taken
    }

    /// Adds the amount of another permit of the same lease.
    pub fn merge(&mut self, mut other: Permit) {
        debug_assert!(Rc::ptr_eq(&self.lease, &other.lease), "permits of different leases");
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Returns a part of the amount, at most all of it.
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

/// Request that waits for its turn. It completes with a permit, or with `None` if it is refused. Dropping it cancels
/// it.
#[must_use = "a request waits only while it is polled"]
pub struct Acquire {
    lease: Rc<Lease>,
    amount: u64,
    /// Place in the queue, once there is one.
    ticket: Option<u64>,
}

impl Acquire {
    /// Takes the permit immediately, or a place in the queue.
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

    /// Collects the grant of the ticket, if there is one.
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
