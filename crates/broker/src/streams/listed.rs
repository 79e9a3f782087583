//! Table of the streams that are keys of caches.

use std::collections::HashMap;

use engine::TopicId;
use engine::streams::StreamPlace;
use parking_lot::Mutex;

/// An entry of a cache: the number of the cache, and the key.
#[derive(Debug)]
pub(crate) struct Listing {
    pub cache: u64,
    pub key: Box<[u8]>,
}

/// Streams by the name of their cache.
type Unlisted = HashMap<Box<[u8]>, Vec<(TopicId, StreamPlace)>>;

/// Entries of caches that hold streams.
#[derive(Default)]
pub(super) struct Keys {
    /// Entries by topic, at most one for each.
    pub(super) listed: Mutex<HashMap<TopicId, Listing>>,
    /// Entries whose topics were deleted: they are removed as soon as no lock prevents it.
    pub(super) deleted: Mutex<Vec<(TopicId, Listing)>>,
    /// Streams of caches that have not been opened since startup.
    pub(super) unlisted: Mutex<Unlisted>,
}

impl Keys {
    pub(super) fn len(&self) -> usize {
        self.listed.lock().len()
    }

    /// Removes the entry of a deleted topic. Returns `true` if the topic had one.
    pub(super) fn topic_removed(&self, id: TopicId) -> bool {
        let Some(listing) = self.listed.lock().remove(&id) else {
            return false;
        };
        self.deleted.lock().push((id, listing));
        true
    }
}
