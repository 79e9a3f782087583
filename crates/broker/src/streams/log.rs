//! The topic of streams: the state of streams, apart from their entries, is appended to it and restored from it on
//! startup.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::streams::{Group, STREAMS_TOPIC, SavedStream, StreamPlace, StreamRecord};
use engine::{ErrorKind, Offset, Result, TopicId, partitioner};

use super::{LockedStream, State, StreamCell};
use crate::broker::Broker;
use crate::internal::Appended;
use crate::publish::{CommittingPublish, Wakes};
use crate::topics::Topic;

/// A record of a stream that is being written.
#[must_use]
pub struct Saved(Saving);

enum Saving {
    Nothing,
    Known(Appended),
    Entry(Arc<Broker>, TopicId, CommittingPublish),
    /// The last entries of a copy, and its state.
    Copy {
        broker: Arc<Broker>,
        topic: TopicId,
        entries: Appended,
        known: Box<Saving>,
    },
}

impl Saved {
    /// Waits until the record is durable.
    pub async fn lasts(self) -> Result<()> {
        let mut saving = self.0;
        loop {
            match saving {
                Saving::Known(appended) => return appended.lasts().await.map(drop),
                Saving::Entry(broker, topic, commit) => {
                    let done = commit.finish(&broker).await.map(drop);
                    return broker.entry_lasts(topic, done).await;
                }
                Saving::Copy { broker, topic, entries, known } => {
                    let done = entries.lasts().await.map(drop);
                    broker.entry_lasts(topic, done).await?;
                    saving = *known;
                }
                Saving::Nothing => return Ok(()),
            }
        }
    }

    pub(super) fn nothing() -> Self {
        Self(Saving::Nothing)
    }

    pub(super) fn entry(broker: &Arc<Broker>, topic: TopicId, commit: CommittingPublish) -> Self {
        Self(Saving::Entry(broker.clone(), topic, commit))
    }

    /// Adds the entries of a copy: waits until they can be read, too.
    pub(super) fn with_entries(self, broker: &Arc<Broker>, topic: TopicId, entries: Option<Appended>) -> Self {
        match entries {
            Some(entries) => Self(Saving::Copy { broker: broker.clone(), topic, entries, known: Box::new(self.0) }),
            None => self,
        }
    }
}

impl Broker {
    /// Restores the state of streams from before startup, and lists their keys. `place_of` returns the cache and the
    /// key for the name of a topic, for streams that were created before keys were recorded.
    pub async fn restore_streams(self: &Arc<Self>, place_of: impl Fn(&str) -> (String, Vec<u8>)) -> Result<()> {
        let streams = self.streams_there();
        if streams.is_restored.load(Ordering::Acquire) {
            return Ok(());
        }
        let seen = self.topics.read().values().filter(|topic| !topic.name.is_hidden()).count();
        streams.others.store(seen as isize, Ordering::Relaxed);
        if let Ok(topic) = self.topic(STREAMS_TOPIC) {
            self.read_streams(&topic, place_of).await?;
        }
        streams.is_restored.store(true, Ordering::Release);
        for cache in self.caches().all() {
            self.list_streams(&cache);
        }
        Ok(())
    }

    async fn read_streams(&self, topic: &Topic, place_of: impl Fn(&str) -> (String, Vec<u8>)) -> Result<()> {
        let mut states: HashMap<TopicId, State> = HashMap::new();
        let each = |key: &[u8], value: Option<&[u8]>| {
            let record = StreamRecord::decode(key, value)?;
            states.entry(record.topic()).or_default().restore(record);
            Ok(())
        };
        self.read_internal(topic, each).await?;
        let (mut cells, mut unlisted) = (HashMap::new(), Vec::new());
        for (id, mut state) in states {
            let Ok(name) = self.topic_by_id(id) else {
                // The topic was deleted, and its state is obsolete.
                self.append_streams(id, state.gone(id))?;
                continue;
            };
            if state.saved.is_own {
                let place = state.place.take().unwrap_or_else(|| {
                    let (cache, key) = place_of(name.as_str());
                    StreamPlace { cache: cache.into_bytes().into(), key: key.into(), expires_ms: None }
                });
                unlisted.push((id, place));
            }
            let state = Arc::new(tokio::sync::Mutex::new(state));
            cells.insert(id, Arc::new(StreamCell { state, ..StreamCell::default() }));
        }
        self.streams_there().cells.lock().extend(cells);
        self.keep_unlisted(unlisted);
        Ok(())
    }

    /// Returns the outcome of adding an entry. If the stream was deleted before the entry was on disk, the entry was
    /// added all the same: the response waits until a later record than both is durable.
    async fn entry_lasts(&self, topic: TopicId, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if error.kind == ErrorKind::NotFound => {
                match self.append_streams(topic, vec![StreamRecord::Place { topic, place: None }])? {
                    Some(appended) => appended.lasts().await.map(drop),
                    None => Ok(()),
                }
            }
            done => done,
        }
    }

    pub(super) fn append_streams(&self, id: TopicId, records: Vec<StreamRecord>) -> Result<Option<Appended>> {
        if records.is_empty() {
            return Ok(None);
        }
        let topic = self.internal_topic(STREAMS_TOPIC)?;
        // All records of a stream are in one partition.
        let partition = partitioner::for_key(&id.to_bytes(), topic.partitions().len() as u32);
        let records = records.into_iter().map(|record| (record.key(), record.value()));
        self.append_internal(&topic, partition, records, &mut Wakes::default()).map(Some)
    }
}

impl LockedStream {
    /// Appends the state of the stream as a whole, and more records.
    pub(super) fn save(&mut self, more: impl IntoIterator<Item = StreamRecord>) -> Result<Saved> {
        let first = self.index().first();
        let (at, last) = (self.index().next(), self.last());
        let state = &mut *self.state;
        let (start, before_start) = (first.offset, first.prev);
        state.saved = SavedStream { start, before_start, at, last, added: state.added, ..state.saved };
        let (topic, saved) = (self.stream.topic.id, Some(state.saved));
        self.append([StreamRecord::Stream { topic, saved }].into_iter().chain(more).collect())
    }

    /// Appends the changes of a group.
    pub(super) fn save_group(&mut self, name: &[u8]) -> Result<Saved> {
        let topic = self.stream.topic.id;
        let records = self.state.groups.get_mut(name).map(|group| group.take_changes(topic, name));
        self.append(records.unwrap_or_default())
    }

    /// Appends records of the stream, unless its topic does not survive a restart.
    pub(super) fn append(&self, records: Vec<StreamRecord>) -> Result<Saved> {
        let Some(_) = self.stream.topic.stored_as else {
            return Ok(Saved::nothing());
        };
        let appended = self.stream.broker.append_streams(self.stream.topic.id, records)?;
        Ok(Saved(appended.map_or(Saving::Nothing, Saving::Known)))
    }
}

impl State {
    /// Forgets deleted entries before an offset. Returns the records of that.
    pub(super) fn split_deleted(&mut self, topic: TopicId, start: Offset) -> Vec<StreamRecord> {
        let kept = self.deleted.split_off(&start);
        let forgotten = std::mem::replace(&mut self.deleted, kept);
        forgotten.into_iter().map(|offset| StreamRecord::Deleted { topic, offset, is_deleted: false }).collect()
    }

    fn restore(&mut self, record: StreamRecord) {
        match record {
            StreamRecord::Stream { saved, .. } => self.saved = saved.unwrap_or_default(),
            StreamRecord::Place { place, .. } => self.place = place,
            StreamRecord::Group { ref group, saved: None, .. } => {
                self.groups.remove(group);
            }
            StreamRecord::Deleted { offset, is_deleted: true, .. } => {
                self.deleted.insert(offset);
            }
            StreamRecord::Deleted { offset, is_deleted: false, .. } => {
                self.deleted.remove(&offset);
            }
            StreamRecord::Group { ref group, .. } => {
                let group = group.clone();
                self.groups.entry(group).or_default().restore(record);
            }
            // A tombstone in a deleted group does not create the group.
            StreamRecord::Consumer { seen_ms: None, ref group, .. }
            | StreamRecord::Pending { pending: None, ref group, .. } => {
                if let Some(group) = self.groups.get_mut(group) {
                    group.restore(record);
                }
            }
            StreamRecord::Consumer { ref group, .. } | StreamRecord::Pending { ref group, .. } => {
                let group = group.clone();
                self.groups.entry(group).or_default().restore(record);
            }
        }
    }

    /// Returns the tombstones for a deleted stream.
    pub(super) fn gone(&self, topic: TopicId) -> Vec<StreamRecord> {
        let groups = self.groups.iter().flat_map(|(name, group): (_, &Group)| group.gone(topic, name));
        let deleted =
            self.deleted.iter().map(|offset| StreamRecord::Deleted { topic, offset: *offset, is_deleted: false });
        let stream = (self.saved != SavedStream::default()).then_some(StreamRecord::Stream { topic, saved: None });
        let place = self.saved.is_own.then_some(StreamRecord::Place { topic, place: None });
        groups.chain(deleted).chain(stream).chain(place).collect()
    }
}
