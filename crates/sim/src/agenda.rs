//! Events in the order of their time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use consensus::Time;

/// Events that will happen. Those of one time happen in the order in which they were added.
pub(crate) struct Agenda<E> {
    queue: BinaryHeap<Reverse<Scheduled<E>>>,
    order: u64,
}

struct Scheduled<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub fn new() -> Self {
        Self { queue: BinaryHeap::new(), order: 0 }
    }

    pub fn add(&mut self, at: Time, event: E) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { at, order: self.order, event }));
    }

    /// Takes the next event, with its time.
    pub fn next(&mut self) -> Option<(Time, E)> {
        self.queue.pop().map(|Reverse(scheduled)| (scheduled.at, scheduled.event))
    }

    /// Returns the number of events that were ever added.
    pub fn added(&self) -> u64 {
        self.order
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
