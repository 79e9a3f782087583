//! Keys of streams. The entries of a stream are in its topic; its key is an entry that is neither evicted nor logged.

use super::{Key, NONE, Stripe, Structure};
use crate::error::Result;
use crate::ids::TopicId;

impl Stripe {
    /// Inserts the key of a stream; the key must have no entry. Its bytes are used even if there is no room, as the
    /// number of topics is bounded.
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

    /// Records a use of a key, without counting a hit or a miss.
    pub fn note_use(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) {
        if let Some(at) = self.find(key, now_ms) {
            self.touch(at);
        }
    }

    /// Removes the key of this stream, but not the stream itself. Returns `true` if the key existed. The removal is not
    /// reported by [`Stripe::take_lost`].
    pub fn take_stream(&mut self, key: Key<'_>, topic: TopicId) -> bool {
        let Some(at) = self.find(key, || 0).filter(|at| self.stream_at(*at) == Some(topic)) else {
            return false;
        };
        self.remove(at);
        self.lost.pop();
        self.version += 1;
        true
    }

    /// Removes the key of a stream that existed only for a moment, without a notification to its watchers.
    pub fn let_out_stream(&mut self, key: Key<'_>, topic: TopicId) {
        if self.take_stream(key, topic) {
            self.gone.forget(key.mark());
        }
    }

    /// Takes the streams whose keys were deleted, replaced or have expired since the last call.
    pub fn take_lost(&mut self) -> Vec<TopicId> {
        std::mem::take(&mut self.lost)
    }

    /// Returns the topic of the stream in a slot.
    pub(super) fn stream_at(&self, at: u32) -> Option<TopicId> {
        let number = self.slots[at].structure().map_or(NONE, |(number, _)| number);
        match (number != NONE).then(|| self.structures[number].as_deref())? {
            Some(Structure::Stream(topic)) => Some(*topic),
            _ => None,
        }
    }
}
