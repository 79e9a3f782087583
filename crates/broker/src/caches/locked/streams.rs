//! Keys of streams in locked stripes.

use engine::cache::Value;
use engine::cache::structures::Structure;
use engine::streams::StreamPlace;
use engine::{Offset, Result, TopicId};

use crate::caches::cache::{Cache, Locked};
use crate::caches::log::Kept;
use crate::caches::notes::What;
use crate::commit::Commit;
use crate::streams::{LockedStream, Stream};

/// Type of a key's value, as a command on streams sees it.
pub enum Keyed {
    Nothing,
    /// The key has a value of another type.
    Other,
    Stream(Stream),
}

/// Position of a stream that changes whenever entries are added, deleted or trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamMark {
    topic: TopicId,
    start: Offset,
    end: Offset,
    deletions: u64,
}

impl StreamMark {
    pub fn of(stream: &Stream) -> Self {
        let extent = stream.extent();
        Self { topic: stream.id(), start: extent.start, end: extent.end, deletions: stream.deletions() }
    }
}

impl Locked<'_> {
    /// Returns the topic of the stream of a key, if it has one. If the key has just expired, the topic is deleted.
    pub fn stream_id(&mut self, key: &[u8]) -> Option<TopicId> {
        let found = match self.look(key).map(|found| found.value) {
            Some(Value::Structure(Structure::Stream(topic))) => Some(*topic),
            _ => None,
        };
        // A key that has just expired may have been a stream.
        let cache = self.cache;
        let dropped = cache.delete_streams(self.stripe(key).0.take_lost());
        self.wait_also(dropped);
        found
    }

    /// Returns the value of a key for a command on streams, and counts as a use of the key. If `is_read` is `true`, it
    /// also counts as a hit or a miss, as in Redis.
    pub fn use_stream(&mut self, key: &[u8], is_read: bool) -> Result<Keyed> {
        if is_read {
            self.get(key);
        } else {
            self.note_missed(key);
            let (stripe, key, time) = self.stripe(key);
            stripe.note_use(key, || time.now_ms());
        }
        self.stream(key)
    }

    /// Returns the value of a key for a command on streams, without counting as a use.
    pub fn stream(&mut self, key: &[u8]) -> Result<Keyed> {
        let Some(id) = self.stream_id(key) else {
            return Ok(if self.look(key).is_some() { Keyed::Other } else { Keyed::Nothing });
        };
        let stream = self.cache.streams.get_by_id(id)?;
        Ok(stream.map_or_else(
            || {
                // Another door has just deleted its topic.
                self.take_stream(key, id);
                Keyed::Nothing
            },
            Keyed::Stream,
        ))
    }

    /// Creates a stream, with a topic of this name, for a key without a value.
    pub fn add_stream(&mut self, key: &[u8], topic: &str) -> Result<LockedStream> {
        // A stream of the same name may just have been deleted with its key.
        self.drop_streams();
        let cache = self.cache;
        let place = cache.place(key, None);
        let (stream, later) = cache.streams.create(topic, cache.id(), place)?;
        self.wait_also(later);
        let (stripe, key, time) = self.stripe(key);
        stripe.put_stream(key, stream.topic_id(), None, || time.now_ms())?;
        cache.changes.note(stripe, key);
        self.is_changed = true;
        self.note(key.bytes, What::Put { is_new: true, expires: false });
        Ok(stream)
    }

    /// Adds the key of an existing stream. Returns `true` if the key had no value before.
    pub(crate) fn list_stream(&mut self, key: &[u8], id: TopicId, expires_ms: Option<u64>) -> bool {
        if self.peek(key).is_some() {
            return false;
        }
        let (stripe, key, time) = self.stripe(key);
        stripe.put_stream(key, id, expires_ms, || time.now_ms()).is_ok()
    }

    /// Adds a key without a value for this stream temporarily: until [`let_out`](Self::let_out), before the locks are
    /// released.
    pub fn let_in(&mut self, key: &[u8], id: TopicId) -> bool {
        self.list_stream(key, id, None)
    }

    pub fn let_out(&mut self, key: &[u8], id: TopicId) {
        let (stripe, key, _) = self.stripe(key);
        stripe.let_out_stream(key, id);
    }

    /// Removes the key of a stream, but not the stream.
    pub(crate) fn take_stream(&mut self, key: &[u8], id: TopicId) {
        let cache = self.cache;
        let (stripe, key, _) = self.stripe(key);
        if stripe.take_stream(key, id) {
            let version = stripe.version();
            cache.changes.note_deleted(stripe, key, version);
            self.note(key.bytes, What::Deleted);
        }
    }

    /// Saves the expiry time of a stream's key with the stream.
    pub(super) fn note_stream_expiry(&mut self, key: &[u8], expires_ms: Option<u64>) {
        let Some(id) = self.stream_id(key) else {
            return;
        };
        let saved = self.cache.streams.save_place(id, self.cache.place(key, expires_ms));
        self.wait_also(saved.unwrap_or_else(Commit::failed));
    }

    /// Adds what the caller has to wait for.
    fn wait_also(&mut self, commit: Commit) {
        self.later = std::mem::take(&mut self.later).and(commit);
    }

    /// Deletes the streams whose keys were removed.
    pub(super) fn drop_streams(&mut self) {
        for (_, stripe) in &mut self.stripes {
            let lost = stripe.take_lost();
            if !lost.is_empty() {
                self.later = std::mem::take(&mut self.later).and(self.cache.delete_streams(lost));
            }
        }
    }
}

impl Cache {
    fn place(&self, key: &[u8], expires_ms: Option<u64>) -> StreamPlace {
        StreamPlace { cache: self.name.as_str().as_bytes().into(), key: key.into(), expires_ms }
    }

    /// Deletes streams whose keys were removed. Returns the deletions, to wait until they are durable.
    fn delete_streams(&self, lost: Vec<TopicId>) -> Commit {
        Commit::all(lost.into_iter().filter_map(|id| self.streams.delete(id)))
    }

    /// Deletes the streams of a stripe whose keys were removed, if no caller waits for that.
    pub(in crate::caches) fn drop_streams(&self, stripe: &mut Kept) {
        let lost = stripe.take_lost();
        // Every change of a cache comes here, and few remove a stream.
        if !lost.is_empty() {
            self.finish_later(self.delete_streams(lost));
        }
    }

    /// Waits for pending changes of streams in the background.
    pub(crate) fn finish_later(&self, commit: Commit) {
        if commit.is_done() {
            return;
        }
        let name = self.name.clone();
        tokio::spawn(async move {
            if let Err(error) = commit.wait().await {
                tracing::warn!(cache = %name, %error, "a stream was changed in memory only");
            }
        });
    }
}
