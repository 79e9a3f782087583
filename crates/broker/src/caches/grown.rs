//! Keys that have grown in a step: each of them once, in the order of their first growth.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// Keys that have grown. The first one is served first. `K` is the type of a key.
pub(super) struct Grown<K = Box<[u8]>> {
    /// Position of each key in the order of first growth. Adding a key compares it with few others, as one step may let
    /// every key grow that clients wait for.
    positions: BTreeMap<K, usize>,
}

impl<K: Ord> Grown<K> {
    pub(super) const fn new() -> Self {
        Self { positions: BTreeMap::new() }
    }

    /// Adds a key, unless it has grown before.
    pub(super) fn add<'k, Q>(&mut self, key: &'k Q)
    where
        K: Borrow<Q> + From<&'k Q>,
        Q: Ord + ?Sized,
    {
        if !self.positions.contains_key(key) {
            let position = self.positions.len();
            self.positions.insert(key.into(), position);
        }
    }

    /// Takes all keys, in the order of their first growth.
    pub(super) fn take(&mut self) -> Vec<K> {
        if self.positions.is_empty() {
            return Vec::new();
        }
        let mut keys: Vec<(K, usize)> = std::mem::take(&mut self.positions).into_iter().collect();
        keys.sort_unstable_by_key(|(_, position)| *position);
        keys.into_iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// Key that counts how often it is compared.
    #[derive(Clone, Debug, Eq)]
    struct Counted(usize);

    impl From<&Counted> for Counted {
        fn from(key: &Counted) -> Self {
            key.clone()
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    #[test]
    fn keys_are_kept_once_in_the_order_of_their_first_growth() {
        let mut grown: Grown = Grown::new();
        for key in ["d", "a", "d", "c", "a", "b"] {
            grown.add(key.as_bytes());
        }
        assert_eq!(grown.take(), [b"d", b"a", b"c", b"b"].map(|key| Box::from(&key[..])));
        assert!(grown.take().is_empty());
    }

    #[test]
    fn a_key_is_compared_with_few_of_the_others() {
        const KEYS: usize = 16_000;
        let mut grown: Grown<Counted> = Grown::new();
        // An order in which no two neighbours follow each other.
        let keys: Vec<Counted> = (0..KEYS).map(|at| Counted(at * 7_919 % KEYS)).collect();
        keys.iter().chain(&keys).for_each(|key| grown.add(key));
        let compared = COMPARED.get();
        // A search of a list compares each with half of the others: 256,000,000 times.
        assert!(compared < KEYS * 300, "compared {compared} times");
        assert_eq!(grown.take(), keys);
    }
}
