//! Streams as keys of caches.
//!
//! The key of a stream is an entry of its cache that holds the id of its topic. It is a view: the source of truth is
//! the topic, and the record of the topic `_streams` that holds the key and its expiry time. A key is therefore listed
//! again on startup, in any kind of cache, and never written to the log of the cache. Removing the entry (by a
//! deletion, another value, expiry or a flush) deletes the topic, under the lock of the stripe; deleting the topic
//! removes the entry. A topic that another door created has no such entry.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::streams::{StreamPlace, StreamRecord};
use engine::{Error, ErrorKind, OwnSettings, Result, Storage, TopicId, TopicName, TopicSettings};

use super::listed::Listing;
use super::{LockedStream, Stream, why_no_stream};
use crate::commit::Commit;
use crate::streams::Streams;
use crate::topic::refuse_internal;

impl Streams {
    /// Returns `true` if the topic can be used as a stream. For topics without a key.
    pub fn is_other(&self, name: &str) -> bool {
        let topic = self.core.topics.read().get(name).cloned();
        topic.is_some_and(|topic| why_no_stream(&topic).is_none())
    }

    /// Returns `true` if topics without a key may exist. This check is very cheap.
    pub fn has_others(&self) -> bool {
        self.table.others.load(Ordering::Relaxed) > 0
    }

    /// Returns `false` if no topic has the name of this key of a cache. This check is cheap, and certain only once
    /// streams were restored.
    pub fn may_be_topic(&self, cache: &[u8], key: &[u8]) -> bool {
        self.table.place_of.get().is_none() || self.table.topic_keys.may_contain(cache, key)
    }

    /// Creates a topic of this name for a stream of this key. The caller must hold the lock of the key's stripe.
    pub(crate) fn create(
        self: &Arc<Self>,
        name: &str,
        cache: u64,
        place: StreamPlace,
    ) -> Result<(LockedStream, Commit)> {
        refuse_internal(name)?;
        let parsed = TopicName::parse(name)?;
        self.check_restored()?;
        if !self.core.settings().auto_create_topics {
            return Err(self.core.no_such_topic(name));
        }
        let taken =
            || Error::new(ErrorKind::AlreadyExists, format!("topic {name} exists and was created at another door"));
        if self.core.has_topic(name) {
            return Err(taken());
        }
        let settings = self.core.resolve(TopicSettings {
            partitions: 1,
            retention_bytes: 0,
            retention_ms: 0,
            storage: Storage::Auto,
            // Ids of entries are derived from their times, and batches are not rewritten.
            own: Some(OwnSettings::ALL),
            ..TopicSettings::default()
        })?;
        // The topic's records are never durable before the topic is: its creator need not wait.
        let (topic, _) = self.core.create(parsed, settings)?;
        let stream = self.stream_of(topic.clone())?;
        let mut state = stream.cell.state.clone().try_lock_owned().map_err(|_in_use| taken())?;
        if stream.topic.settings != settings || state.index.is_some() {
            return Err(taken());
        }
        state.saved.is_own = true;
        state.place = None;
        let mut locked = LockedStream { stream, state };
        locked.begin();
        let key = place.key.clone();
        let saved = locked.save([StreamRecord::Place { topic: topic.id, place: Some(place) }])?;
        self.list(topic.id, cache, key);
        let streams = self.clone();
        let commit = Commit::later(async move {
            streams.queues.follow_topic(&topic).await;
            saved.wait().await
        });
        Ok((locked, commit))
    }

    pub(crate) fn list(&self, id: TopicId, cache: u64, key: Box<[u8]>) {
        let table = &self.table;
        table.keys.listed.lock().insert(id, Listing { cache, key });
        table.others.fetch_sub(1, Ordering::Relaxed);
    }

    /// Deletes the topic of a stream whose key was removed, and returns the commit of the deletion. The
    /// caller must hold the lock of the key's stripe. A topic that has no key is not deleted.
    pub(crate) fn delete(self: &Arc<Self>, id: TopicId) -> Option<Commit> {
        let table = &self.table;
        table.keys.listed.lock().remove(&id)?;
        table.others.fetch_add(1, Ordering::Relaxed);
        let name = self.core.topic_by_id(id).ok()?;
        let cell = table.cells.lock().get(&id).cloned();
        let removed = self.core.remove(name.as_str());
        let streams = self.clone();
        let commit = Commit::later(async move {
            removed?.wait().await?;
            let Some(cell) = cell else {
                return Ok(());
            };
            let gone = cell.state.lock().await.gone(id);
            match streams.append(id, gone)? {
                Some(appended) => appended.commit.wait().await,
                None => Ok(()),
            }
        });
        Some(commit)
    }

    /// Records the expiry time of a stream's key, and returns the commit of the record.
    pub(crate) fn save_place(&self, id: TopicId, place: StreamPlace) -> Result<Commit> {
        let is_stored = self.core.topics.read().get_by_id(id).is_some_and(|topic| topic.stored_as.is_some());
        let record = StreamRecord::Place { topic: id, place: Some(place) };
        let appended = self.append(id, if is_stored { vec![record] } else { Vec::new() })?;
        Ok(appended.map_or_else(Commit::done, |appended| appended.commit))
    }

    /// Takes the entries of topics that were deleted since the last call.
    pub(crate) fn take_deleted(&self) -> Vec<(TopicId, Listing)> {
        std::mem::take(&mut *self.table.keys.deleted.lock())
    }

    /// Keeps the entry of a deleted topic for the next [`take_deleted`](Self::take_deleted).
    pub(crate) fn note_deleted(&self, id: TopicId, listing: Listing) {
        self.table.keys.deleted.lock().push((id, listing));
    }

    /// Takes the streams of a cache that existed before the start and are not listed yet.
    pub(crate) fn take_unlisted(&self, cache: &str) -> Vec<(TopicId, StreamPlace)> {
        self.table.keys.unlisted.lock().remove(cache.as_bytes()).unwrap_or_default()
    }

    /// Fails until the streams of a cache from before startup are its entries.
    pub(crate) fn check_listed(&self, cache: &str) -> Result<()> {
        self.check_restored()?;
        if self.has_unlisted(cache) { Err(super::still_restoring()) } else { Ok(()) }
    }

    pub(super) fn is_listed(&self, id: TopicId) -> bool {
        self.table.keys.listed.lock().contains_key(&id)
    }

    /// Forgets the keys in caches that were forgotten.
    pub(super) fn unlist_keys_of(&self, gone: &HashSet<u64>) {
        let mut listed = self.table.keys.listed.lock();
        let before = listed.len();
        listed.retain(|_, listing| !gone.contains(&listing.cache));
        self.table.others.fetch_add((before - listed.len()) as isize, Ordering::Relaxed);
    }

    /// Keeps the streams from before startup, by cache, until their caches are opened.
    pub(super) fn keep_unlisted(&self, unlisted: Vec<(TopicId, StreamPlace)>) {
        let mut all = self.table.keys.unlisted.lock();
        all.clear();
        for (id, place) in unlisted {
            all.entry(place.cache.clone()).or_default().push((id, place));
        }
    }

    /// Returns `true` if a cache that has not been opened since startup has streams.
    pub fn has_unlisted(&self, cache: &str) -> bool {
        self.table.keys.unlisted.lock().contains_key(cache.as_bytes())
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
