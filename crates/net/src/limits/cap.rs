//! Process-wide maximum of a resource, with the queue of its waiters.

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::lease::Lease;
use super::sync::{AtomicU64, Mutex, Ordering, Padded};

/// Default block size of a lease.
const BLOCK: u64 = 64;
/// Part of the maximum that all leases together take with one block each, at most.
const BLOCKS_PART: u64 = 8;
/// Maximum number of waiters. Further requests are refused immediately.
const WAITERS_MAX: usize = 1024;

/// Process-wide maximum of a resource in use.
pub struct Cap {
    max: u64,
    block_max: u64,
    /// Free amount from which a lease returns it to the cap: two blocks, or 0 while the cap is short. Every release
    /// reads it; it is written under the lock, and only when it changes.
    visit_from: Padded<AtomicU64>,
    state: Padded<Mutex<State>>,
}

/// State under the lock. The sum of `free`, `held`, the amounts that leases keep free and those that their permits hold
/// is the maximum.
pub(super) struct State {
    /// Amount that is free. The first request of the queue never fits into it.
    free: u64,
    /// Amount that shared permits hold, and that was granted to waiters who have not collected it yet.
    held: u64,
    /// Refusals of shared permits, and those of dropped leases.
    refused: u64,
    leases: Vec<Arc<Padded<Counts>>>,
    /// Amount that a lease takes in addition to its request, as long as the cap is not short.
    block: u64,
    /// Number of the last recall.
    recall: u64,
    /// Number of leases that have not returned everything since the last recall.
    outstanding: usize,
    /// Number of leases that keep nothing until they return to the cap.
    paused: usize,
    /// Waiters in the order of their tickets. A ticket that is not in the queue was granted.
    queue: VecDeque<Waiting>,
    next_ticket: u64,
    /// Waiters that were granted under this lock and are woken after it: a waker may run code that needs the lock.
    granted: Vec<Waker>,
}

/// Place in the queue.
pub(super) struct Waiting {
    ticket: u64,
    amount: u64,
    waker: Waker,
}

/// Counts of a lease, for readers of totals. Only the lease's thread writes them, so plain stores are enough.
pub(super) struct Counts {
    in_use: AtomicU64,
    refused: AtomicU64,
}

/// Outcome of a request that may wait.
pub(super) enum Turn {
    Taken,
    Waits(u64),
    Refused,
}

impl Cap {
    /// Creates a maximum with the default block size, 64. `u64::MAX` means no maximum.
    pub fn new(max: u64) -> Arc<Self> {
        Self::with_block(max, BLOCK)
    }

    /// Creates a maximum whose leases take blocks of this size, or smaller ones if the maximum is small.
    pub fn with_block(max: u64, block: u64) -> Arc<Self> {
        let state = State {
            free: max,
            held: 0,
            refused: 0,
            leases: Vec::new(),
            block: 1,
            recall: 0,
            outstanding: 0,
            paused: 0,
            queue: VecDeque::new(),
            next_ticket: 0,
            granted: Vec::new(),
        };
        Arc::new(Self {
            max,
            block_max: block.max(1),
            visit_from: Padded(AtomicU64::new(0)),
            state: Padded(Mutex::new(state)),
        })
    }

    /// Creates a lease for this thread. One lease is enough for everything that runs on the thread.
    pub fn lease(self: &Arc<Self>) -> Rc<Lease> {
        Lease::new(self.clone())
    }

    /// Returns a permit that may move to any thread, directly from the cap, or `None` if there is too little. For
    /// callers without a lease.
    pub fn acquire(self: &Arc<Self>, amount: u64) -> Option<SharedPermit> {
        let is_held = self.change(|state| {
            let is_held = state.take(amount);
            if is_held {
                state.held += amount;
            } else {
                state.refused += 1;
                if amount <= self.max {
                    state.recall();
                }
            }
            is_held
        });
        is_held.then(|| SharedPermit { cap: self.clone(), amount })
    }

    /// Returns the maximum.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the approximate amount that permits hold: leases continue to work while it is summed up.
    pub fn in_use(&self) -> u64 {
        let state = self.state.0.lock();
        let in_use = state.leases.iter().map(|counts| counts.0.in_use.load(Ordering::Relaxed));
        in_use.fold(state.held, u64::saturating_add).min(self.max)
    }

    /// Returns the number of refused requests, including those that were refused after a wait.
    pub fn refused(&self) -> u64 {
        let state = self.state.0.lock();
        state.refused + state.leases.iter().map(|counts| counts.0.refused.load(Ordering::Relaxed)).sum::<u64>()
    }

    #[inline]
    pub(super) fn visit_from(&self) -> u64 {
        // A reader of an old value keeps something for one release or one tick longer.
        self.visit_from.0.load(Ordering::Relaxed)
    }

    /// Registers a lease. Returns the number of the last recall, which does not concern this lease.
    pub(super) fn join(&self, counts: Arc<Padded<Counts>>) -> u64 {
        self.change(|state| {
            state.leases.push(counts);
            state.size_block(self.max, self.block_max);
            state.recall
        })
    }

    /// Ends a lease that kept this amount, and that has answered the recall `seen`.
    pub(super) fn leave(&self, counts: &Arc<Padded<Counts>>, kept: u64, seen: u64) {
        self.change(|state| {
            state.put(kept);
            state.answer_recall(seen);
            state.leases.retain(|other| !Arc::ptr_eq(other, counts));
            state.size_block(self.max, self.block_max);
            state.refused += counts.0.refused.load(Ordering::Relaxed);
        });
    }

    /// Changes the state, then updates `visit_from` and wakes the waiters that were granted something. Returns the
    /// result of `change`, including anything taken out of the queue: a waker must not be dropped under the lock.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.0.lock();
        let done = change(&mut state);
        let visit_from = if state.is_short() { 0 } else { state.block.saturating_mul(2) };
        if self.visit_from.0.load(Ordering::Relaxed) != visit_from {
            self.visit_from.0.store(visit_from, Ordering::Relaxed);
        }
        let granted = mem::take(&mut state.granted);
        drop(state);
        granted.into_iter().for_each(Waker::wake);
        done
    }
}

impl State {
    fn size_block(&mut self, max: u64, block_max: u64) {
        let leases = self.leases.len().max(1) as u64;
        self.block = (max / BLOCKS_PART / leases).clamp(1, block_max);
    }

    /// Returns `true` if leases have to return everything that they keep.
    fn is_short(&self) -> bool {
        self.outstanding > 0 || !self.queue.is_empty()
    }

    /// Takes exactly this amount, if the queue is empty and it is free. Returns `false` otherwise.
    pub(super) fn take(&mut self, amount: u64) -> bool {
        let is_free = self.queue.is_empty() && amount <= self.free;
        if is_free {
            self.free -= amount;
        }
        is_free
    }

    /// Takes an amount that a lease may keep for later requests.
    pub(super) fn take_spare(&mut self) -> u64 {
        let spare = if self.is_short() { 0 } else { self.block.min(self.free) };
        self.free -= spare;
        spare
    }

    /// Returns an amount, and serves the queue.
    pub(super) fn put(&mut self, amount: u64) {
        self.free += amount;
        self.serve();
    }

    fn serve(&mut self) {
        while let Some(first) = self.queue.pop_front_if(|first| first.amount <= self.free) {
            self.free -= first.amount;
            self.held += first.amount;
            self.granted.push(first.waker);
        }
    }

    /// Recalls everything that the leases keep.
    pub(super) fn recall(&mut self) {
        self.recall += 1;
        self.outstanding = self.leases.len() - self.paused;
    }

    /// Records that a lease keeps nothing from now on.
    pub(super) fn pause(&mut self) {
        self.paused += 1;
    }

    /// Records that a paused lease is active again. Returns the number of the last recall, which did not concern it.
    pub(super) fn resume(&mut self) -> u64 {
        self.paused -= 1;
        self.recall
    }

    /// Records that a lease keeps nothing at this moment. `seen` is the last recall that it has answered; returns the
    /// current one.
    pub(super) fn answer_recall(&mut self, seen: u64) -> u64 {
        if seen != self.recall {
            self.outstanding -= 1;
        }
        self.recall
    }

    pub(super) fn take_or_wait(&mut self, amount: u64, waker: &Waker) -> Turn {
        if self.take(amount) {
            return Turn::Taken;
        }
        if self.queue.len() >= WAITERS_MAX {
            return Turn::Refused;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Waiting { ticket, amount, waker: waker.clone() });
        Turn::Waits(ticket)
    }

    /// Collects the grant of a ticket and returns `None`, or replaces its waker and returns the old one.
    pub(super) fn collect(&mut self, ticket: u64, amount: u64, waker: &Waker) -> Option<Waker> {
        match self.position(ticket) {
            Some(i) => Some(mem::replace(&mut self.queue[i].waker, waker.clone())),
            None => {
                self.held -= amount;
                None
            }
        }
    }

    /// Cancels a ticket, and returns its grant to the cap.
    pub(super) fn cancel(&mut self, ticket: u64, amount: u64) -> Option<Waiting> {
        match self.position(ticket) {
            Some(i) => {
                let waiting = self.queue.remove(i);
                self.serve();
                waiting
            }
            None => {
                self.held -= amount;
                self.put(amount);
                None
            }
        }
    }

    fn position(&self, ticket: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()
    }
}

impl Counts {
    pub(super) fn new() -> Self {
        Self { in_use: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    #[inline]
    pub(super) fn add_in_use(&self, amount: u64) {
        self.in_use.store(self.in_use.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn sub_in_use(&self, amount: u64) {
        self.in_use.store(self.in_use.load(Ordering::Relaxed) - amount, Ordering::Relaxed);
    }

    pub(super) fn add_refused(&self) {
        self.refused.store(self.refused.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Permit to use an amount, on any thread. Dropping it returns the amount.
#[must_use = "the permit is released when it is dropped"]
pub struct SharedPermit {
    cap: Arc<Cap>,
    amount: u64,
}

impl SharedPermit {
    /// Returns the amount that the permit holds.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.cap.change(|state| {
            state.held -= self.amount;
            state.put(self.amount);
        });
    }
}
