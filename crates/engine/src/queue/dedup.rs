//! Deduplication of messages that are sent again within a few minutes.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::ids::Offset;

/// Time in ms for which a message is recognized by its deduplication id.
pub const DEDUP_WINDOW_MS: u64 = 300_000;
/// Maximum number of ids that one partition knows at a time. At the limit no message with an id is accepted.
const IDS_MAX: usize = 1 << 20;
/// Maximum number of ids that all partitions know together, each of which takes about 100 bytes. Beyond it, a partition
/// still accepts ids up to its share.
const ALL_IDS_MAX: usize = 8 << 20;
const IDS_SHARE: usize = 16_384;
/// Maximum number of ids that one call forgets: a call must not take long because many expired together.
const FORGOTTEN_TOGETHER: usize = 1024;
/// Number of ids of which the memory is kept for later ones.
const IDS_KEPT: usize = 4096;

/// Number of ids that all partitions know.
static ALL_IDS: AtomicUsize = AtomicUsize::new(0);

/// Deduplication ids of one partition. An id is known by 128 bits of a keyed hash, whatever its length.
///
/// Invariants: each id in `seen` is in `by_age`, with its offset and its time. `by_age` is in the order in which the
/// messages were sent. Some are stale: they have left the window, or were purged, and are not recognized.
#[derive(Debug, Default)]
pub struct Dedup {
    keys: [RandomState; 2],
    seen: HashMap<u128, Seen, foldhash::fast::RandomState>,
    by_age: VecDeque<(Seen, u128)>,
    /// Offset before which messages were purged.
    from: Offset,
}

/// Message that was sent with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    offset: Offset,
    at_ms: u64,
}

/// Returns the times at which a message was sent that is recognized now. A time in the far future is that of a clock
/// that was wrong.
fn window(now_ms: u64) -> Range<u64> {
    now_ms.saturating_sub(DEDUP_WINDOW_MS - 1)..now_ms.saturating_add(DEDUP_WINDOW_MS)
}

/// Returns `true` if a partition that knows `own` ids has room for another, when all partitions know `all`.
fn has_room(own: usize, all: usize) -> bool {
    own < IDS_MAX && (all < ALL_IDS_MAX || own < IDS_SHARE)
}

impl Dedup {
    /// Returns the id within its scope: a key, or the whole queue.
    pub fn id(scope: &[u8], id: &[u8]) -> Arc<[u8]> {
        let length = (scope.len() as u32).to_be_bytes();
        [&length[..], scope, id].concat().into()
    }

    fn hash(&self, id: &[u8]) -> u128 {
        let [high, low] = self.keys.each_ref().map(|key| u128::from(key.hash_one(id)));
        high << 64 | low
    }

    fn is_known(&self, seen: &Seen, now_ms: u64) -> bool {
        seen.offset >= self.from && window(now_ms).contains(&seen.at_ms)
    }

    /// Returns the offset of the message that was sent with this id within the window. Fails if there is no room for
    /// another id.
    pub fn find(&mut self, id: &[u8], now_ms: u64) -> Result<Option<Offset>> {
        self.forget(now_ms);
        match self.seen.get(&self.hash(id)).filter(|seen| self.is_known(seen, now_ms)) {
            Some(seen) => Ok(Some(seen.offset)),
            None if has_room(self.seen.len(), ALL_IDS.load(Ordering::Relaxed)) => Ok(None),
            None => Err(Error::busy(format!(
                "{IDS_MAX} messages with a deduplication id were sent within {} s, or {ALL_IDS_MAX} to all queues; \
                 send fewer, or to more queues",
                DEDUP_WINDOW_MS / 1000
            ))),
        }
    }

    /// Forgets some of the oldest ids that are stale.
    fn forget(&mut self, now_ms: u64) {
        let (known, from) = (window(now_ms), self.from);
        self.forget_front(|seen| seen.offset < from || !known.contains(&seen.at_ms));
    }

    fn forget_front(&mut self, is_stale: impl Fn(&Seen) -> bool) {
        for _ in 0..FORGOTTEN_TOGETHER {
            let Some((old, hash)) = self.by_age.pop_front_if(|(seen, _)| is_stale(seen)) else {
                break;
            };
            // A message may have been sent with the same id since.
            if self.seen.get(&hash) == Some(&old) {
                self.seen.remove(&hash);
                ALL_IDS.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if self.by_age.is_empty() && self.by_age.capacity() > IDS_KEPT {
            self.clear();
        }
    }

    /// Forgets all ids. Takes the same time for any number of them.
    fn clear(&mut self) {
        ALL_IDS.fetch_sub(self.seen.len(), Ordering::Relaxed);
        self.seen = HashMap::default();
        self.by_age = VecDeque::new();
    }

    /// Forgets the messages before this offset, which may be sent again.
    pub fn forget_before(&mut self, offset: Offset) {
        self.from = self.from.max(offset);
        if self.by_age.back().is_some_and(|(newest, _)| newest.offset < offset) {
            return self.clear();
        }
        self.forget_front(|seen| seen.offset < offset);
    }

    /// Returns the oldest message that may be recognized: a restart has to read the log from there.
    pub fn oldest(&mut self, now_ms: u64) -> Option<Offset> {
        self.forget(now_ms);
        self.by_age.front().map(|(seen, _)| seen.offset)
    }

    /// Adds a message that was sent with an id that [`Dedup::find`] did not know.
    pub fn insert(&mut self, id: Arc<[u8]>, offset: Offset, now_ms: u64) {
        let hash = self.hash(&id);
        let before = self.seen.get(&hash).copied();
        if before.is_some_and(|seen| self.is_known(&seen, now_ms)) {
            return;
        }
        let seen = Seen { offset, at_ms: now_ms };
        self.seen.insert(hash, seen);
        self.by_age.push_back((seen, hash));
        ALL_IDS.fetch_add(usize::from(before.is_none()), Ordering::Relaxed);
    }

    pub fn len(&self) -> usize {
        self.seen.len()
    }

    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

impl Drop for Dedup {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_for_its_window_and_among_its_scope() {
        let mut dedup = Dedup::default();
        let id = Dedup::id(b"a", b"1");
        assert_eq!(dedup.find(&id, 0), Ok(None));
        dedup.insert(id.clone(), 7, 0);
        assert_eq!(dedup.find(&id, DEDUP_WINDOW_MS - 1), Ok(Some(7)));
        assert_eq!(dedup.find(&Dedup::id(b"b", b"1"), 1), Ok(None));
        assert_eq!(dedup.find(&Dedup::id(b"", b"a1"), 1), Ok(None));
        assert_eq!(dedup.find(&id, DEDUP_WINDOW_MS), Ok(None));
        assert!(dedup.is_empty());
    }

    #[test]
    fn purged_messages_may_be_sent_again() {
        let mut dedup = Dedup::default();
        for (offset, name) in [(0, "a"), (1, "b"), (2, "c")] {
            dedup.insert(Dedup::id(b"", name.as_bytes()), offset, 10);
        }
        dedup.forget_before(2);
        assert_eq!((dedup.len(), dedup.oldest(10)), (1, Some(2)));
        assert_eq!(dedup.find(&Dedup::id(b"", b"b"), 10), Ok(None));
        assert_eq!(dedup.find(&Dedup::id(b"", b"c"), 10), Ok(Some(2)));
    }

    #[test]
    fn a_clock_that_was_wrong_keeps_no_id_for_ever() {
        let mut dedup = Dedup::default();
        let year_ms = 365 * 24 * 3_600_000;
        dedup.insert(Dedup::id(b"", b"1"), 1, year_ms);
        dedup.insert(Dedup::id(b"", b"2"), 2, 10);
        assert_eq!(dedup.oldest(10), Some(2));
        assert_eq!(dedup.find(&Dedup::id(b"", b"1"), 10), Ok(None));
        assert_eq!(dedup.find(&Dedup::id(b"", b"2"), 10 + DEDUP_WINDOW_MS), Ok(None));
        assert_eq!(dedup.oldest(10), None);
    }

    /// Expired and purged ids are not recognized, however many of them are still to be forgotten.
    #[test]
    fn many_ids_are_forgotten_in_slices() {
        let mut dedup = Dedup::default();
        let id = |i: u64| Dedup::id(b"", &i.to_be_bytes());
        (0..10_000).for_each(|i| dedup.insert(id(i), i, 10));
        let later = 10 + DEDUP_WINDOW_MS;
        assert_eq!(dedup.find(&id(9_999), later), Ok(None));
        assert_eq!(dedup.len(), 10_000 - FORGOTTEN_TOGETHER, "one call forgets some of them");
        // The message that is sent again is recognized, and is not forgotten with the first one.
        dedup.insert(id(9_999), 10_000, later);
        for _ in 0..10 {
            assert_eq!(dedup.find(&id(9_999), later), Ok(Some(10_000)));
        }
        assert_eq!((dedup.len(), dedup.oldest(later)), (1, Some(10_000)));
        (1..5_000).for_each(|i| dedup.insert(id(i), 10_000 + i, later));
        dedup.forget_before(14_000);
        assert_eq!(dedup.find(&id(3_999), later), Ok(None), "purged, and not forgotten yet");
        assert_eq!(dedup.find(&id(4_000), later), Ok(Some(14_000)));
        dedup.forget_before(20_000);
        assert_eq!((dedup.len(), dedup.by_age.capacity()), (0, 0), "a purge of all takes one step");
    }

    #[test]
    fn ids_take_the_same_memory_whatever_their_length() {
        let mut dedup = Dedup::default();
        let long = "x".repeat(1 << 20);
        let id = |end: &str| Dedup::id(b"", format!("{long}{end}").as_bytes());
        dedup.insert(id("a"), 1, 10);
        assert_eq!((dedup.find(&id("a"), 10), dedup.find(&id("b"), 10)), (Ok(Some(1)), Ok(None)));
        assert!(size_of::<(u128, Seen)>() + size_of::<(Seen, u128)>() <= 64);
    }

    /// A client that fills the table of all partitions does not keep others from sending.
    #[test]
    fn each_partition_has_a_share_of_all_ids() {
        assert!(has_room(IDS_MAX - 1, ALL_IDS_MAX - 1) && !has_room(IDS_MAX, 0));
        assert!(has_room(IDS_SHARE - 1, ALL_IDS_MAX) && !has_room(IDS_SHARE, ALL_IDS_MAX));
    }
}
