//! The topic of streams: the state of streams, apart from their entries, is appended to it and restored from it on
//! startup.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::streams::{Group, SavedStream, StreamPlace, StreamRecord};
use engine::{ErrorKind, Offset, Result, TopicId};

use super::{LockedStream, State, StreamCell};
use crate::commit::{Appended, Commit};
use crate::state_log::StateLog;
use crate::streams::Streams;
use crate::wakes::Wakes;

/// State of streams, apart from their entries.
pub(super) const STREAMS: StateLog<StreamRecord> = StateLog::new();

impl Streams {
    /// Restores the state of streams from before startup, unless that was done, and lists their keys. `place_of`
    /// returns the cache and the key for the name of a topic, for streams that were created before keys were recorded.
    pub async fn restore(&self, place_of: impl Fn(&str) -> (String, Vec<u8>) + Send + Sync + 'static) -> Result<()> {
        let seen = self.core.topics.read().values().filter(|topic| !topic.name.is_hidden()).count();
        if self.table.place_of.set(Box::new(place_of)).is_ok() {
            self.table.others.store(seen as isize, Ordering::Relaxed);
            self.core.topics.read().values().for_each(|topic| self.table.note_key(topic));
        }
        self.table.restored.ensure(|| self.read()).await
    }

    /// Forgets the state of all streams on disk, as a restart does, and reads it again. Streams whose keys were in
    /// these caches are listed again in the next caches of the same names.
    pub(crate) async fn refold(&self, gone: &HashSet<u64>) -> Result<()> {
        let Some(_) = self.table.place_of.get() else {
            // They were never restored.
            return Ok(());
        };
        let forgetting = self.table.restored.forgetting().await;
        let cells = {
            let mut cells = self.table.cells.lock();
            forgetting.begin();
            std::mem::take(&mut *cells)
        };
        for (id, cell) in cells {
            let stored_as = self.core.topics.read().get_by_id(id).map(|topic| topic.stored_as);
            if stored_as == Some(None) {
                // The state of a topic in memory has no log. A caller may wait for news of a cell that has no state.
                let awaited = self.table.cells.lock().insert(id, cell);
                awaited.iter().for_each(|awaited| awaited.forget());
                continue;
            }
            // A caller that has locked the stream completes its change.
            let _locked = cell.state.lock().await;
            cell.is_gone.store(stored_as.is_none(), Ordering::Release);
            cell.forget();
        }
        self.unlist_keys_of(gone);
        drop(forgetting);
        self.table.restored.ensure(|| self.read()).await
    }

    async fn read(&self) -> Result<()> {
        let mut states: HashMap<TopicId, State> = HashMap::new();
        let each = |record: StreamRecord, _| {
            states.entry(record.topic()).or_default().restore(record);
            Ok(())
        };
        STREAMS.fold(&self.core, each).await?;
        let mut unlisted = Vec::new();
        for (id, mut state) in states {
            let Ok(name) = self.core.topic_by_id(id) else {
                // The topic was deleted, and its state is obsolete.
                self.append(id, state.gone(id))?;
                continue;
            };
            if state.saved.is_own && !self.is_listed(id) {
                let place = state.place.take().or_else(|| {
                    let (cache, key) = self.table.place_of.get()?(name.as_str());
                    Some(StreamPlace { cache: cache.into_bytes().into(), key: key.into(), expires_ms: None })
                });
                unlisted.extend(place.map(|place| (id, place)));
            }
            let state = Arc::new(tokio::sync::Mutex::new(state));
            let cell = Arc::new(StreamCell { state, ..StreamCell::default() });
            // A caller that waits for news of the stream waits for those of its new cell.
            if let Some(awaited) = self.table.cells.lock().insert(id, cell) {
                awaited.forget();
            }
        }
        self.keep_unlisted(unlisted);
        Ok(())
    }

    /// Returns the outcome of adding an entry. If the stream was deleted before the entry was on disk, the entry was
    /// added all the same: the response waits until a later record than both is durable.
    pub(super) async fn commit_entries(&self, topic: TopicId, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if error.kind == ErrorKind::NotFound => {
                match self.append(topic, vec![StreamRecord::Place { topic, place: None }])? {
                    Some(appended) => appended.commit.wait().await,
                    None => Ok(()),
                }
            }
            done => done,
        }
    }

    pub(super) fn append(&self, id: TopicId, records: Vec<StreamRecord>) -> Result<Option<Appended>> {
        if records.is_empty() {
            return Ok(None);
        }
        // A stream is in one partition, the first of its topic.
        let key = id.to_bytes();
        let home = self.core.shards().home(id, 0, &key);
        STREAMS.append(&self.core, home, records, &mut Wakes::default()).map(Some)
    }
}

impl LockedStream {
    /// Appends the state of the stream as a whole, and more records.
    pub(super) fn save(&mut self, more: impl IntoIterator<Item = StreamRecord>) -> Result<Commit> {
        let first = self.index().first();
        let at = self.index().next();
        let last = self.last();
        let state = &mut *self.state;
        let start = first.offset;
        let before_start = first.prev;
        state.saved = SavedStream { start, before_start, at, last, added: state.added, ..state.saved };
        let topic = self.stream.topic.id;
        let saved = Some(state.saved);
        self.append([StreamRecord::Stream { topic, saved }].into_iter().chain(more).collect())
    }

    /// Appends the changes of a group.
    pub(super) fn save_group(&mut self, name: &[u8]) -> Result<Commit> {
        let topic = self.stream.topic.id;
        let records = self.state.groups.get_mut(name).map(|group| group.take_changes(topic, name));
        self.append(records.unwrap_or_default())
    }

    /// Appends records of the stream, unless its topic does not survive a restart.
    pub(super) fn append(&self, records: Vec<StreamRecord>) -> Result<Commit> {
        let Some(_) = self.stream.topic.stored_as else {
            return Ok(Commit::done());
        };
        let appended = self.stream.streams.append(self.stream.topic.id, records)?;
        Ok(appended.map_or_else(Commit::done, |appended| appended.commit))
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
