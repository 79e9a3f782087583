//! Keys of streams: a stream's entries are in its topic, and its key is an entry that is never evicted nor logged.

use super::{Key, NONE, Shard, Structure};
use crate::error::Result;
use crate::ids::TopicId;

impl Shard {
    /// Puts the key of a stream where there is nothing. It takes its bytes even if there is no room: topics are
    /// bounded.
    pub fn put_stream(
        &mut self,
        key: Key<'_>,
        topic: TopicId,
        expires_ms: Option<u64>,
        now_ms: impl Fn() -> u64,
    ) -> Result<()> {
        super::check_size(key.bytes, 0)?;
        let before = std::mem::replace(&mut self.is_replaying, true);
        let put = self.insert_structure(key, Structure::Stream(topic));
        self.is_replaying = before;
        let at = put?;
        if expires_ms.is_some() {
            self.set_timer(at, expires_ms, now_ms());
        }
        Ok(())
    }

    /// Notes that a key was used, and counts neither a hit nor a miss.
    pub fn note_use(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) {
        if let Some(at) = self.find(key, now_ms) {
            self.touch(at);
        }
    }

    /// Takes the key of this stream away. The stream itself stays. Whether the key was there.
    pub fn take_stream(&mut self, key: Key<'_>, topic: TopicId) -> bool {
        let Some(at) = self.find(key, || 0).filter(|at| self.stream_at(*at) == Some(topic)) else {
            return false;
        };
        self.remove(at);
        self.lost.pop();
        self.version += 1;
        true
    }

    /// The same for a key that was there for a moment only: who watches it is not to be told.
    pub fn let_out_stream(&mut self, key: Key<'_>, topic: TopicId) {
        if self.take_stream(key, topic) {
            self.gone.forget(key.mark());
        }
    }

    /// Streams whose keys were deleted, replaced or have expired since the last call.
    pub fn take_lost(&mut self) -> Vec<TopicId> {
        std::mem::take(&mut self.lost)
    }

    /// The topic of the stream in a slot.
    pub(super) fn stream_at(&self, at: u32) -> Option<TopicId> {
        let number = self.slots[at].structure().map_or(NONE, |(number, _)| number);
        match (number != NONE).then(|| self.structures[number].as_deref())? {
            Some(Structure::Stream(topic)) => Some(*topic),
            _ => None,
        }
    }
}
