//! Table of what happened lately, which is read without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::Counter;

/// Number of sets of the table, which has 16,384 places; a power of two. What happened is in the set that its hash
/// selects.
const SETS: usize = 2048;
/// Number of places of one set.
const PLACES: usize = 8;

/// Hashes of what happened lately, each with its time. If a set is full, the oldest of its entries is replaced.
///
/// Threads that note something in one set at the same time may overwrite each other's entry, which only forgets one of
/// them early.
pub(crate) struct Recent {
    sets: Box<[[Place; PLACES]]>,
    kept_ms: u64,
    displaced: Counter,
}

/// Invariant: `at_ms` is 0 or belongs to `who`, as it is 0 while `who` changes.
#[derive(Default)]
struct Place {
    who: AtomicU64,
    /// Time in ms, above 0; 0 if the place is free.
    at_ms: AtomicU64,
}

impl Recent {
    /// Creates an empty table whose entries expire after this time in ms.
    pub(crate) fn new(kept_ms: u64) -> Self {
        Self { sets: (0..SETS).map(|_| Default::default()).collect(), kept_ms, displaced: Counter::default() }
    }

    /// Notes that something happened, by its hash, at a time in ms above 0. Returns `true` unless it happened lately.
    /// Then nothing is written, as its first time is what counts.
    pub(crate) fn is_first(&self, who: u64, now_ms: u64) -> bool {
        let set = &self.sets[who as usize % SETS];
        let is_recent = |at_ms: u64| at_ms > 0 && now_ms.saturating_sub(at_ms) < self.kept_ms;
        let mut oldest = &set[0];
        let mut oldest_ms = u64::MAX;
        for place in set {
            let is_here = place.who.load(Ordering::Acquire) == who;
            let at_ms = place.at_ms.load(Ordering::Acquire);
            if is_here && is_recent(at_ms) {
                return false;
            }
            // The place of an expired entry is used again, as that of an oldest one.
            let at_ms = if is_here { 0 } else { at_ms };
            if at_ms < oldest_ms {
                (oldest, oldest_ms) = (place, at_ms);
            }
        }
        if is_recent(oldest_ms) {
            self.displaced.add(1);
        }
        oldest.at_ms.store(0, Ordering::Release);
        oldest.who.store(who, Ordering::Release);
        oldest.at_ms.store(now_ms, Ordering::Release);
        true
    }

    /// Returns the number of entries, including those that have expired.
    pub(crate) fn len(&self) -> usize {
        self.sets.iter().flatten().filter(|place| place.at_ms.load(Ordering::Relaxed) > 0).count()
    }

    /// Returns the number of entries that were replaced before they expired.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_lately_is_not_the_first_time() {
        let recent = Recent::new(100);
        assert!(recent.is_first(7, 1000) && !recent.is_first(7, 1000) && !recent.is_first(7, 1099));
        assert!(recent.is_first(8, 1000), "something else");
        assert!(recent.is_first(7, 1100) && !recent.is_first(7, 1199), "it has expired, and counts again");
        assert_eq!((recent.len(), recent.displaced()), (2, 0));
    }

    #[test]
    fn a_full_set_displaces_its_oldest_entry() {
        let recent = Recent::new(1_000_000);
        let who = |number: usize| (number * SETS) as u64;
        for number in 1..=PLACES {
            assert!(recent.is_first(who(number), number as u64));
        }
        assert!(recent.is_first(who(PLACES + 1), 100));
        assert_eq!((recent.len(), recent.displaced()), (PLACES, 1));
        assert!((2..=PLACES + 1).all(|number| !recent.is_first(who(number), 101)), "the others are known");
        assert!(recent.is_first(who(1), 102), "the oldest is not");
    }

    #[test]
    fn many_threads_share_the_table() {
        let recent = Recent::new(1_000_000);
        let first = AtomicU64::new(0);
        let work = || {
            for who in 0..1000 {
                first.fetch_add(u64::from(recent.is_first(who, 5)), Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert!((1000..=4000).contains(&first.load(Ordering::Relaxed)));
        assert!((0..1000).all(|who| !recent.is_first(who, 6)), "each is known from then on");
        assert_eq!(recent.displaced(), 0);
    }
}
