//! Deduplication of messages that are sent again within a few minutes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::Offset;

/// Time in ms for which a message is recognized by its deduplication id.
pub const DEDUP_WINDOW_MS: u64 = 300_000;
/// Maximum number of ids that one partition knows at a time. At the limit no message with an id is accepted.
const IDS_MAX: usize = 1 << 20;

/// Deduplication ids of one partition.
///
/// Invariant: both have the same ids, `by_age` in the order in which they were sent.
#[derive(Debug, Default)]
pub struct Dedup {
    seen: HashMap<Arc<[u8]>, Offset, foldhash::fast::RandomState>,
    by_age: VecDeque<(u64, Arc<[u8]>)>,
}

impl Dedup {
    /// Returns the id within its scope: a key, or the whole queue.
    pub fn id(scope: &[u8], id: &[u8]) -> Arc<[u8]> {
        let length = (scope.len() as u32).to_be_bytes();
        [&length[..], scope, id].concat().into()
    }

    /// Returns the offset of the message that was sent with this id within the window. Fails if there is no room for
    /// another id.
    pub fn find(&mut self, id: &[u8], now_ms: u64) -> Result<Option<Offset>> {
        self.forget(now_ms);
        match self.seen.get(id) {
            None if self.seen.len() >= IDS_MAX => Err(Error::busy(format!(
                "{IDS_MAX} messages with a deduplication id were sent within {} s; send fewer, or to more queues",
                DEDUP_WINDOW_MS / 1000
            ))),
            found => Ok(found.copied()),
        }
    }

    /// Forgets ids that are older than the window, and ids from the far future, when the clock was wrong.
    fn forget(&mut self, now_ms: u64) {
        let known = now_ms.saturating_sub(DEDUP_WINDOW_MS - 1)..now_ms.saturating_add(DEDUP_WINDOW_MS);
        while let Some((_, old)) = self.by_age.pop_front_if(|(at_ms, _)| !known.contains(at_ms)) {
            self.seen.remove(&old);
        }
    }

    /// Forgets the messages before this offset, which may be sent again.
    pub fn forget_before(&mut self, offset: Offset) {
        self.seen.retain(|_, at| *at >= offset);
        self.by_age.retain(|(_, id)| self.seen.contains_key(id));
    }

    /// Returns the oldest message that is recognized: a restart has to read the log from there.
    pub fn oldest(&mut self, now_ms: u64) -> Option<Offset> {
        self.forget(now_ms);
        self.by_age.front().and_then(|(_, id)| self.seen.get(id)).copied()
    }

    /// Adds a message that was sent with an id that [`Dedup::find`] did not know.
    pub fn insert(&mut self, id: Arc<[u8]>, offset: Offset, now_ms: u64) {
        if self.seen.insert(id.clone(), offset).is_none() {
            self.by_age.push_back((now_ms, id));
        }
    }

    pub fn len(&self) -> usize {
        self.seen.len()
    }

    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
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
}
