//! A maximum of the whole process, and the queue of those who wait for their turn at it.

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::lease::Lease;
use super::sync::{AtomicU64, Mutex, Ordering, Padded};

/// What a lease takes at once, unless the cap is made with another block.
const BLOCK: u64 = 64;
/// All leases together take at most this part of the maximum with one block each.
const BLOCKS_PART: u64 = 8;
/// How many may wait. Who comes then is refused at once.
const WAITERS_MAX: usize = 1024;

/// How much of something may be used at once in the whole process.
pub struct Cap {
    max: u64,
    block_max: u64,
    /// A lease that has so much free, or more, comes to the cap: two blocks, and 0 while the cap is short. Every
    /// release reads it; it is written under the lock, and only when it changes.
    visit_from: Padded<AtomicU64>,
    state: Padded<Mutex<State>>,
}

/// What is under the lock. `free + held +` what leases keep free and what their permits hold is the maximum.
pub(super) struct State {
    /// What nobody has. The first of the queue never fits into it.
    free: u64,
    /// What shared permits hold, and what was granted to waiters who have not come for it yet.
    held: u64,
    /// Refusals of shared permits, and those of leases that are gone.
    refused: u64,
    leases: Vec<Arc<Padded<Counts>>>,
    /// What a lease takes beyond what it was asked for, as long as the cap is not short.
    block: u64,
    /// The number of the last recall.
    recall: u64,
    /// Leases that have not given everything back since the last recall.
    outstanding: usize,
    /// Leases that keep nothing and will not before they come here again.
    paused: usize,
    /// Who waits, in the order of tickets. A ticket that is not here was granted.
    queue: VecDeque<Waiting>,
    next_ticket: u64,
    /// Who was granted under this lock and is woken after it: a waker may run code that needs the lock.
    granted: Vec<Waker>,
}

/// A place in the queue.
pub(super) struct Waiting {
    ticket: u64,
    amount: u64,
    waker: Waker,
}

/// What a lease tells to those who look at totals. Only its thread writes, so plain stores are enough.
pub(super) struct Counts {
    in_use: AtomicU64,
    refused: AtomicU64,
}

/// What became of a request that may wait.
pub(super) enum Turn {
    Taken,
    Waits(u64),
    Refused,
}

impl Cap {
    /// A maximum of things that are counted one by one. Without one, it is `u64::MAX`.
    pub fn new(max: u64) -> Arc<Self> {
        Self::with_block(max, BLOCK)
    }

    /// A maximum of something whose leases take so much at once, or less where the maximum is small.
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

    /// A lease for this thread. One is enough for all that runs on it.
    pub fn lease(self: &Arc<Self>) -> Rc<Lease> {
        Lease::new(self.clone())
    }

    /// A permit that may go to any thread, straight from the cap: for callers that have no lease.
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

    pub fn max(&self) -> u64 {
        self.max
    }

    /// What permits hold, at about this moment: leases go on while they are added up.
    pub fn in_use(&self) -> u64 {
        let state = self.state.0.lock();
        let in_use = state.leases.iter().map(|counts| counts.0.in_use.load(Ordering::Relaxed));
        in_use.fold(state.held, u64::saturating_add).min(self.max)
    }

    /// Requests that were refused so far, also after a wait.
    pub fn refused(&self) -> u64 {
        let state = self.state.0.lock();
        state.refused + state.leases.iter().map(|counts| counts.0.refused.load(Ordering::Relaxed)).sum::<u64>()
    }

    #[inline]
    pub(super) fn visit_from(&self) -> u64 {
        // Who reads an old value keeps something for one release or one tick longer.
        self.visit_from.0.load(Ordering::Relaxed)
    }

    /// Enters a lease. Returns the number of the last recall: it was before this lease.
    pub(super) fn join(&self, counts: Arc<Padded<Counts>>) -> u64 {
        self.change(|state| {
            state.leases.push(counts);
            state.size_block(self.max, self.block_max);
            state.recall
        })
    }

    /// Ends a lease, with what it kept and the last recall that it knew.
    pub(super) fn leave(&self, counts: &Arc<Padded<Counts>>, kept: u64, seen: u64) {
        self.change(|state| {
            state.put(kept);
            state.answer_recall(seen);
            state.leases.retain(|other| !Arc::ptr_eq(other, counts));
            state.size_block(self.max, self.block_max);
            state.refused += counts.0.refused.load(Ordering::Relaxed);
        });
    }

    /// Changes the state, then says whether the cap is short and wakes who was granted something.
    /// What `change` takes out of the queue it returns: a waker must not be dropped under the lock.
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

    /// Whether leases have to give back all that they keep.
    fn is_short(&self) -> bool {
        self.outstanding > 0 || !self.queue.is_empty()
    }

    /// Takes exactly so much. Nobody overtakes the queue.
    pub(super) fn take(&mut self, amount: u64) -> bool {
        let is_free = self.queue.is_empty() && amount <= self.free;
        if is_free {
            self.free -= amount;
        }
        is_free
    }

    /// Takes what a lease may keep for later requests.
    pub(super) fn take_spare(&mut self) -> u64 {
        let spare = if self.is_short() { 0 } else { self.block.min(self.free) };
        self.free -= spare;
        spare
    }

    /// Takes back what nobody has any more.
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

    /// Asks every lease for all that it keeps.
    pub(super) fn recall(&mut self) {
        self.recall += 1;
        self.outstanding = self.leases.len() - self.paused;
    }

    /// A lease keeps nothing from now on.
    pub(super) fn pause(&mut self) {
        self.paused += 1;
    }

    /// A lease that was paused comes again. Returns the number of the last recall, which was none of its business.
    pub(super) fn resume(&mut self) -> u64 {
        self.paused -= 1;
        self.recall
    }

    /// A lease keeps nothing at this moment. `seen` is the last recall that it knew; returns the last one.
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

    /// Hands over what was granted to a ticket, or remembers whom to wake: then the old waker is returned.
    pub(super) fn collect(&mut self, ticket: u64, amount: u64, waker: &Waker) -> Option<Waker> {
        match self.position(ticket) {
            Some(i) => Some(mem::replace(&mut self.queue[i].waker, waker.clone())),
            None => {
                self.held -= amount;
                None
            }
        }
    }

    /// Gives a ticket up, and what was granted to it.
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

/// The right to use so much, on any thread. Given back when it is dropped.
#[must_use = "what is not held is given back"]
pub struct SharedPermit {
    cap: Arc<Cap>,
    amount: u64,
}

impl SharedPermit {
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
