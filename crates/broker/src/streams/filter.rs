//! Filter of the keys that have topics: it tells of most other keys at once that they have none.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::limits::TOPICS_MAX;

/// Bits, of which each topic sets one. With the maximum number of topics, two thirds of them are set.
const BITS: usize = TOPICS_MAX;
const WORD_BITS: usize = u64::BITS as usize;

/// Set of keys that may contain more than were added. A key stays in it after its topic was deleted.
pub(super) struct KeyFilter {
    words: Box<[AtomicU64]>,
    hasher: foldhash::fast::RandomState,
}

impl Default for KeyFilter {
    fn default() -> Self {
        Self {
            words: (0..BITS / WORD_BITS).map(|_| AtomicU64::new(0)).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }
}

impl KeyFilter {
    /// Returns the index of the word of a key, and its bit in that word.
    fn place(&self, cache: &[u8], key: &[u8]) -> (usize, u64) {
        let bit = self.hasher.hash_one((cache, key)) as usize % BITS;
        (bit / WORD_BITS, 1 << (bit % WORD_BITS))
    }

    pub(super) fn add(&self, cache: &[u8], key: &[u8]) {
        let (word, bit) = self.place(cache, key);
        self.words[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Returns `false` if the key was not added.
    pub(super) fn may_contain(&self, cache: &[u8], key: &[u8]) -> bool {
        let (word, bit) = self.place(cache, key);
        self.words[word].load(Ordering::Relaxed) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_contains_all_that_was_added_and_little_else() {
        let filter = KeyFilter::default();
        let key = |at: usize| format!("key:{at}").into_bytes();
        (0..100).for_each(|at| filter.add(b"db0", &key(at)));
        assert!((0..100).all(|at| filter.may_contain(b"db0", &key(at))));
        let false_hits = (0..1000).filter(|at| filter.may_contain(b"db1", &key(*at))).count();
        assert!(false_hits < 100, "{false_hits}");
    }
}
