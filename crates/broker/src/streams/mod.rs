//! Streams: entries of topics with one partition, found by ids, and consumer groups that read them.
//!
//! A stream consists of the records of its topic: each record published there is an entry. The key of a stream is in a
//! cache (`keys.rs`), and the stream is deleted with it. The remaining state of a stream is in `State`, behind its own
//! lock, and is brought up to the end of the log each time the lock is taken. An entry is added only after the last
//! known record, so that its id is above all others.

mod add;
mod copy;
mod filter;
mod groups;
mod keys;
mod listed;
mod log;
mod read;
mod status;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::streams::{EntryId, Group, Index, SavedStream, StreamPlace};
use engine::{Error, Offset, Result, TopicId};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::core::{Core, TopicObserver};
use crate::fetch::any;
use crate::metrics::Exposition;
use crate::partition::PartitionCell;
use crate::queues::Queues;
use crate::restored::Restored;
use crate::topic::{Topic, refuse_internal};

use filter::KeyFilter;

pub use add::{NewEntryId, TrimTo};
pub(crate) use listed::Listing;
pub use status::{PendingEntry, StreamCounts, StreamGroup, StreamStatus};

/// Returns the cache and the key for the name of a topic.
type PlaceOf = Box<dyn Fn(&str) -> (String, Vec<u8>) + Send + Sync>;

/// Streams: entries, and groups that read them.
pub struct Streams {
    core: Arc<Core>,
    queues: Arc<Queues>,
    table: Arc<StreamTable>,
}

/// State of all streams that have been used.
#[derive(Default)]
pub(crate) struct StreamTable {
    cells: Mutex<HashMap<TopicId, Arc<StreamCell>>>,
    /// Done once all streams have been read from their topic.
    restored: Restored,
    place_of: OnceLock<PlaceOf>,
    keys: listed::Keys,
    /// Number of topics that clients can see and that have no key.
    others: AtomicIsize,
    /// Keys of all topics that clients can see, once `place_of` is known.
    topic_keys: KeyFilter,
}

/// State of one stream, apart from its topic.
#[derive(Default)]
struct StreamCell {
    state: Arc<tokio::sync::Mutex<State>>,
    /// Notified when its groups change, or when it is deleted.
    news: Notify,
    is_gone: AtomicBool,
    /// `true` if the state was forgotten: the stream has another cell now.
    is_forgotten: AtomicBool,
    /// Number of deletions of entries.
    deletions: AtomicU64,
}

/// State behind the lock of a stream. Invariant: each offset in `deleted` is at or after the start of the index, and is
/// an entry that the index counts.
#[derive(Default)]
struct State {
    /// `None` until the stream is first locked.
    index: Option<Index>,
    saved: SavedStream,
    added: u64,
    deleted: BTreeSet<Offset>,
    groups: BTreeMap<Box<[u8]>, Group>,
    /// Origin from which nodes of entries are counted, for approximate trimming.
    nodes_from: u64,
    /// Key read from the saved records, until it is listed.
    place: Option<StreamPlace>,
}

/// A stream, which is a topic.
#[derive(Clone)]
pub struct Stream {
    streams: Arc<Streams>,
    topic: Arc<Topic>,
    partition: Arc<PartitionCell>,
    cell: Arc<StreamCell>,
}

/// A locked stream: other clients can only publish to its topic.
pub struct LockedStream {
    stream: Stream,
    state: OwnedMutexGuard<State>,
}

impl StreamCell {
    /// Notifies the users of the cell that the stream has another one, or none.
    fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Release);
        self.news.notify_waiters();
    }
}

impl StreamTable {
    fn cell(&self, id: TopicId) -> Arc<StreamCell> {
        self.cells.lock().entry(id).or_default().clone()
    }

    /// Adds the key of a topic to the filter.
    fn note_key(&self, topic: &Topic) {
        if let Some(place_of) = self.place_of.get().filter(|_| !topic.name.is_hidden()) {
            let (cache, key) = place_of(topic.name.as_str());
            self.topic_keys.add(cache.as_bytes(), &key);
        }
    }
}

impl TopicObserver for StreamTable {
    fn topic_created(&self, topic: &Topic) {
        self.others.fetch_add(isize::from(!topic.name.is_hidden()), Ordering::Relaxed);
        self.note_key(topic);
    }

    fn topic_removed(&self, _core: &Core, topic: &Topic) {
        let was_listed = self.keys.topic_removed(topic.id);
        self.others.fetch_sub(isize::from(!topic.name.is_hidden() && !was_listed), Ordering::Relaxed);
        if let Some(cell) = self.cells.lock().remove(&topic.id) {
            cell.is_gone.store(true, Ordering::Release);
            cell.news.notify_waiters();
        }
    }
}

impl Streams {
    pub(crate) fn new(core: Arc<Core>, queues: Arc<Queues>, table: Arc<StreamTable>) -> Self {
        Self { core, queues, table }
    }

    /// Returns the stream of a topic; `None` if the topic does not exist.
    pub fn get(self: &Arc<Self>, name: &str) -> Result<Option<Stream>> {
        refuse_internal(name)?;
        let topic = self.core.topics.read().get(name).cloned();
        topic.map(|topic| self.stream_of(topic)).transpose()
    }

    /// Returns the stream of the topic with this id; `None` if the topic does not exist.
    pub fn get_by_id(self: &Arc<Self>, id: TopicId) -> Result<Option<Stream>> {
        let topic = self.core.topics.read().get_by_id(id).cloned();
        topic.map(|topic| self.stream_of(topic)).transpose()
    }

    /// Fails while the streams of a broker with a data directory are being restored.
    fn check_restored(&self) -> Result<()> {
        if self.core.store().is_some() && !self.table.restored.is_done() { Err(still_restoring()) } else { Ok(()) }
    }

    fn stream_of(self: &Arc<Self>, topic: Arc<Topic>) -> Result<Stream> {
        if let Some(why) = why_no_stream(&topic) {
            return Err(Error::invalid(format!("topic {} is not a stream: it {why}", topic.name)));
        }
        let partition = topic.partition(0)?;
        let cell = {
            let mut cells = self.table.cells.lock();
            self.check_restored()?;
            cells.entry(topic.id).or_default().clone()
        };
        Ok(Stream { streams: self.clone(), topic, partition, cell })
    }

    /// Calls `attempt` whenever one of these streams may have new entries, is created or deleted, or its groups change,
    /// until it returns a value or `stop` completes.
    pub async fn wait_for<T>(
        &self,
        names: &[String],
        stop: impl Future<Output = ()>,
        mut attempt: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        tokio::pin!(stop);
        loop {
            let topics: Vec<_> = names.iter().filter_map(|name| self.core.existing_topic(name)).collect();
            let parts: Vec<_> =
                topics.iter().filter_map(|topic| Some((topic.partition(0).ok()?, self.table.cell(topic.id)))).collect();
            let mut events: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::with_capacity(2 * parts.len() + 1);
            for (partition, cell) in &parts {
                events.push(Box::pin(partition.appended()));
                events.push(notified(&cell.news));
            }
            if parts.len() < names.len() {
                events.push(notified(&self.core.topic_created));
            }
            if let Some(found) = attempt().await? {
                return Ok(Some(found));
            }
            tokio::select! {
                // Entries appended before the stop still belong to this call.
                () = &mut stop => return attempt().await,
                () = any(&mut events) => {}
            }
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let cells: Vec<_> = self.table.cells.lock().values().cloned().collect();
        let mut groups = 0;
        let mut pending = 0;
        let mut deleted = 0;
        // A stream that is in use is counted at the next collection.
        for state in cells.iter().filter_map(|cell| cell.state.try_lock().ok()) {
            groups += state.groups.len() as u64;
            pending += state.groups.values().map(|group| group.pending_count() as u64).sum::<u64>();
            deleted += state.deleted.len() as u64;
        }
        out.gauge("thalweg_streams", "Topics used as streams", cells.len() as u64)?;
        let keys = self.table.keys.len() as u64;
        out.gauge("thalweg_stream_keys", "Streams that are keys of caches, at most one for each topic", keys)?;
        out.gauge("thalweg_stream_groups", "Groups of streams", groups)?;
        out.gauge("thalweg_stream_pending", "Entries delivered to a group and not acknowledged", pending)?;
        out.gauge("thalweg_stream_deleted", "Entries deleted while older entries exist", deleted)
    }
}

fn still_restoring() -> Error {
    Error::busy("the broker is still restoring its streams: try again")
}

/// Returns the reason for which a topic cannot be used as a stream; `None` if it can.
fn why_no_stream(topic: &Topic) -> Option<String> {
    let settings = &topic.settings;
    if topic.name.is_hidden() {
        Some("is the broker's own".to_owned())
    } else if settings.partitions != 1 {
        Some(format!("has {} partitions, and a stream has one", settings.partitions))
    } else if settings.compact {
        Some("is compacted, and a stream keeps all entries until they are deleted".to_owned())
    } else if settings.drop_consumed {
        Some("belongs to a queue: use it as a queue".to_owned())
    } else {
        None
    }
}

/// Returns a future that completes with the next notification after this call.
fn notified(news: &Notify) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    let mut notified = Box::pin(news.notified());
    notified.as_mut().enable();
    notified
}

impl Stream {
    /// Locks the stream and brings its state up to the end of the log.
    pub async fn lock(&self) -> Result<LockedStream> {
        let state = self.cell.state.clone().lock_owned().await;
        if self.cell.is_gone.load(Ordering::Acquire) {
            return Err(Error::not_found(format!("topic {} was deleted", self.topic.name)));
        }
        if self.cell.is_forgotten.load(Ordering::Acquire) {
            return Err(still_restoring());
        }
        let mut locked = LockedStream { stream: self.clone(), state };
        locked.catch_up().await?;
        Ok(locked)
    }
}

impl LockedStream {
    pub fn topic_id(&self) -> TopicId {
        self.stream.topic.id
    }

    fn index(&self) -> &Index {
        self.state.index.as_ref().expect("invariant: it was made when the stream was locked")
    }

    fn index_mut(&mut self) -> &mut Index {
        self.state.index.as_mut().expect("invariant: it was made when the stream was locked")
    }

    /// Returns the id above which all later entries will be.
    pub fn last(&self) -> EntryId {
        self.index().last()
    }

    pub fn len(&self) -> u64 {
        self.index().len() - self.state.deleted.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of marks, the positions at which a search for entries can start.
    pub fn marks(&self) -> usize {
        self.index().marks()
    }
}
