//! Streams as keys of caches.
//!
//! The key of a stream is an entry of its cache that holds the id of its topic. It is a view: the source of truth is
//! the topic, and the record of the topic `_streams` that holds the key and its expiry time. A key is therefore listed
//! again on startup, in any kind of cache, and never written to the log of the cache. Removing the entry (by a
//! deletion, another value, expiry or a flush) deletes the topic, under the lock of the shard; deleting the topic
//! removes the entry. A topic that another door created has no such entry.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::streams::{StreamPlace, StreamRecord};
use engine::{Error, ErrorKind, OwnSettings, Result, Storage, TopicId, TopicName, TopicSettings};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::{LockedStream, Stream, why_no_stream};
use crate::broker::Broker;
use crate::caches::Cache;
use crate::topics::refuse_internal;

/// An entry of a cache: the number of the cache, and the key.
#[derive(Debug)]
struct Listing {
    cache: u64,
    key: Box<[u8]>,
}

/// Streams by the name of their cache.
type Unlisted = HashMap<Box<[u8]>, Vec<(TopicId, StreamPlace)>>;

/// Entries of caches that hold streams.
#[derive(Default)]
pub(super) struct Keys {
    /// Entries by topic, at most one for each.
    listed: Mutex<HashMap<TopicId, Listing>>,
    /// Entries whose topics were deleted: they are removed as soon as no lock prevents it.
    deleted: Mutex<Vec<(TopicId, Listing)>>,
    /// Streams of caches that have not been opened since startup.
    unlisted: Mutex<Unlisted>,
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

impl Broker {
    /// Returns `true` if the topic can be used as a stream. For topics without a key.
    pub fn is_other_stream(&self, name: &str) -> bool {
        let topic = self.topics.read().get(name).cloned();
        topic.is_some_and(|topic| why_no_stream(&topic).is_none())
    }

    /// Returns `true` if topics without a key may exist. This check is very cheap.
    pub fn has_other_streams(&self) -> bool {
        self.streams_there().others.load(Ordering::Relaxed) > 0
    }

    /// Creates a topic of this name for a stream of this key. The caller must hold the lock of the key's shard.
    pub(crate) fn make_stream(
        self: &Arc<Self>,
        name: &str,
        cache: u64,
        place: StreamPlace,
    ) -> Result<(LockedStream, BoxFuture<'static, Result<()>>)> {
        refuse_internal(name)?;
        let parsed = TopicName::parse(name)?;
        if !self.settings().auto_create_topics {
            return Err(self.no_such_topic(name));
        }
        let taken =
            || Error::new(ErrorKind::AlreadyExists, format!("topic {name} exists and was created at another door"));
        if self.has_topic(name) {
            return Err(taken());
        }
        let settings = self.resolve(TopicSettings {
            partitions: 1,
            retention_bytes: 0,
            retention_ms: 0,
            storage: Storage::Auto,
            // Ids of entries are derived from their times, and batches are not rewritten.
            own: Some(OwnSettings::ALL),
            ..TopicSettings::default()
        })?;
        // The topic's records are never durable before the topic is: its creator need not wait.
        let (topic, _) = self.create(parsed, settings)?;
        let stream = self.stream_of(topic.clone())?;
        let mut state = stream.cell.state.clone().try_lock_owned().map_err(|_in_use| taken())?;
        if stream.topic.settings != settings || state.index.is_some() {
            return Err(taken());
        }
        (state.saved.is_own, state.place) = (true, None);
        let mut locked = LockedStream { stream, state };
        locked.begin();
        let key = place.key.clone();
        let saved = locked.save([StreamRecord::Place { topic: topic.id, place: Some(place) }])?;
        self.list(topic.id, cache, key);
        let broker = self.clone();
        let later = async move {
            broker.renew_queues_over(&topic).await;
            saved.lasts().await
        };
        Ok((locked, later.boxed()))
    }

    fn list(&self, id: TopicId, cache: u64, key: Box<[u8]>) {
        let streams = self.streams_there();
        streams.keys.listed.lock().insert(id, Listing { cache, key });
        streams.others.fetch_sub(1, Ordering::Relaxed);
    }

    /// Deletes the topic of a stream whose key was removed, and returns a future that waits for the deletion. The
    /// caller must hold the lock of the key's shard. A topic that has no key is not deleted.
    pub(crate) fn drop_stream(self: &Arc<Self>, id: TopicId) -> Option<BoxFuture<'static, Result<()>>> {
        let streams = self.streams_there();
        streams.keys.listed.lock().remove(&id)?;
        streams.others.fetch_add(1, Ordering::Relaxed);
        let name = self.topic_by_id(id).ok()?;
        let cell = streams.cells.lock().get(&id).cloned();
        let lasts = self.remove(name.as_str());
        self.forget_topic_of_transactions(&name);
        let broker = self.clone();
        let later = async move {
            lasts?.wait().await?;
            let Some(cell) = cell else {
                return Ok(());
            };
            let gone = cell.state.lock().await.gone(id);
            match broker.append_streams(id, gone)? {
                Some(appended) => appended.lasts().await.map(drop),
                None => Ok(()),
            }
        };
        Some(later.boxed())
    }

    /// Records the expiry time of a stream's key, and returns a future that waits for the record.
    pub(crate) fn save_stream_place(&self, id: TopicId, place: StreamPlace) -> Result<BoxFuture<'static, Result<()>>> {
        let is_stored = self.topics.read().get_by_id(id).is_some_and(|topic| topic.stored_as.is_some());
        let record = StreamRecord::Place { topic: id, place: Some(place) };
        let appended = self.append_streams(id, if is_stored { vec![record] } else { Vec::new() })?;
        Ok(async move {
            match appended {
                Some(appended) => appended.lasts().await.map(drop),
                None => Ok(()),
            }
        }
        .boxed())
    }

    /// Removes the entries of topics that were deleted by other means. The caller must hold no lock.
    pub(crate) fn unlist_deleted_streams(&self) {
        let deleted = std::mem::take(&mut *self.streams_there().keys.deleted.lock());
        for (id, Listing { cache, key }) in deleted {
            if let Ok(cache) = self.cache_of(cache) {
                cache.lock_one(&key).take_stream(&key, id);
            }
        }
    }

    /// Keeps the streams from before startup, by cache, until their caches are opened.
    pub(super) fn keep_unlisted(&self, unlisted: Vec<(TopicId, StreamPlace)>) {
        let mut all = self.streams_there().keys.unlisted.lock();
        for (id, place) in unlisted {
            all.entry(place.cache.clone()).or_default().push((id, place));
        }
    }

    /// Returns `true` if a cache that has not been opened since startup has streams.
    pub fn has_unlisted_streams(&self, cache: &str) -> bool {
        self.streams_there().keys.unlisted.lock().contains_key(cache.as_bytes())
    }

    /// Lists the streams of a cache that existed before startup. If the key has another value, that value is newer and
    /// the stream is deleted.
    pub(crate) fn list_streams(self: &Arc<Self>, cache: &Cache) {
        let found = self.streams_there().keys.unlisted.lock().remove(cache.name().as_str().as_bytes());
        for (id, place) in found.unwrap_or_default() {
            if self.topic_by_id(id).is_err() {
                continue;
            }
            self.list(id, cache.id(), place.key.clone());
            let mut locked = cache.lock_one(&place.key);
            if !locked.list_stream(&place.key, id, place.expires_ms) {
                drop(locked);
                cache.finish_later(self.drop_stream(id).into_iter().collect());
            }
        }
    }
}

impl Stream {
    pub(crate) fn extent(&self) -> crate::partition::Extent {
        self.partition.extent()
    }

    pub(crate) fn deletions(&self) -> u64 {
        self.cell.deletions.load(Ordering::Relaxed)
    }

    pub fn id(&self) -> TopicId {
        self.topic.id
    }
}
