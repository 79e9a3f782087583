//! Events in the order of their time, for millions of events: a wheel of short slots.
//!
//! Most events of a large mesh are timers that are seconds away. In one heap, each of them would be moved many times
//! before it happens; here it lies in its slot until that is reached.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use consensus::Time;

use super::MS;

/// Time of a slot, and number of slots.
const SLOT: Time = MS;
const SLOTS: u64 = 1 << 16;

/// Events that will happen. Those of one time happen in the order in which they were added.
pub(super) struct Wheel<E> {
    /// Events of the slot that was reached, and of those before.
    current: BinaryHeap<Reverse<Scheduled<E>>>,
    slots: Vec<Vec<Scheduled<E>>>,
    /// Events in slots.
    waiting: usize,
    /// Events after the last slot.
    later: BinaryHeap<Reverse<Scheduled<E>>>,
    /// Number of the slot that was reached, from time 0 on.
    reached: u64,
    order: u64,
}

struct Scheduled<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> Wheel<E> {
    pub fn new() -> Self {
        Self {
            current: BinaryHeap::new(),
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            waiting: 0,
            later: BinaryHeap::new(),
            reached: 0,
            order: 0,
        }
    }

    pub fn add(&mut self, at: Time, event: E) {
        self.order += 1;
        self.put(Scheduled { at, order: self.order, event });
    }

    fn put(&mut self, scheduled: Scheduled<E>) {
        let slot = scheduled.at / SLOT;
        if slot <= self.reached {
            self.current.push(Reverse(scheduled));
        } else if slot < self.reached + SLOTS {
            self.slots[(slot % SLOTS) as usize].push(scheduled);
            self.waiting += 1;
        } else {
            self.later.push(Reverse(scheduled));
        }
    }

    /// Takes the next event with its time, unless that is after `end`.
    pub fn next_until(&mut self, end: Time) -> Option<(Time, E)> {
        while self.current.is_empty() {
            let next = if self.waiting > 0 {
                self.reached + 1
            } else {
                self.later.peek().map(|Reverse(first)| first.at / SLOT)?
            };
            if next > end / SLOT {
                return None;
            }
            self.reach(next);
        }
        self.current.peek().filter(|Reverse(first)| first.at <= end)?;
        self.current.pop().map(|Reverse(scheduled)| (scheduled.at, scheduled.event))
    }

    fn reach(&mut self, slot: u64) {
        self.reached = slot;
        let events = std::mem::take(&mut self.slots[(slot % SLOTS) as usize]);
        self.waiting -= events.len();
        self.current.extend(events.into_iter().map(Reverse));
        while self.later.peek().is_some_and(|Reverse(first)| first.at / SLOT < slot + SLOTS) {
            if let Some(Reverse(scheduled)) = self.later.pop() {
                self.put(scheduled);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::agenda::Agenda;

    #[test]
    fn events_happen_in_the_order_of_an_agenda() {
        let (mut wheel, mut agenda, mut random) = (Wheel::new(), Agenda::new(), Random::new(1));
        let mut now = 0;
        for number in 0..20_000_u64 {
            let spans = [0, 100, 3 * MS, 2000 * MS, 200_000 * MS];
            let span = spans[random.below(5) as usize];
            let at = now + random.below(1 + span);
            wheel.add(at, number);
            agenda.add(at, number);
            if random.one_in(3) {
                let expected = agenda.next();
                assert_eq!(wheel.next_until(Time::MAX), expected);
                now = expected.map_or(now, |(at, _)| at);
            }
        }
        while let Some((at, number)) = agenda.next() {
            assert_eq!(wheel.next_until(at), Some((at, number)));
        }
        assert_eq!((wheel.next_until(Time::MAX), wheel.added()), (None, 20_000));
    }

    #[test]
    fn no_event_happens_before_its_time() {
        let mut wheel = Wheel::new();
        wheel.add(100_000 * MS + 5, 'b');
        wheel.add(7, 'a');
        assert_eq!((wheel.next_until(6), wheel.next_until(7)), (None, Some((7, 'a'))));
        assert_eq!(wheel.next_until(100_000 * MS), None);
        assert_eq!(wheel.next_until(100_000 * MS + 4), None);
        assert_eq!(wheel.next_until(100_000 * MS + 5), Some((100_000 * MS + 5, 'b')));
    }
}
