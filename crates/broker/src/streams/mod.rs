//! Streams: entries of topics of one partition, found by ids, and groups that are given them.
//!
//! A stream is what is in its topic: whatever is published there is an entry of it. What else is known of it is in
//! `State`, behind a lock of its own, which is brought up to the end of the log each time it is taken. An entry is
//! added only behind the last record that is known here, so that its id is above all others.

mod add;
mod groups;
mod log;
mod read;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::streams::{EntryId, Group, Index, SavedStream};
use engine::{Error, ErrorKind, Offset, Result, Storage, TopicId, TopicName, TopicSettings};
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, OwnedMutexGuard};

use crate::broker::Broker;
use crate::fetch::any;
use crate::metrics::Exposition;
use crate::partition::PartitionCell;
use crate::topics::{Topic, refuse_internal};

pub use add::{NewEntryId, TrimTo};
pub use log::Saved;

/// What is known of all streams that were used.
#[derive(Default)]
pub(crate) struct Streams {
    cells: Mutex<HashMap<TopicId, Arc<StreamCell>>>,
    /// Set once all were read from their topic.
    is_restored: OnceCell<()>,
    /// A topic was made.
    news: Notify,
}

/// What is known of one stream beside its topic.
#[derive(Default)]
struct StreamCell {
    state: Arc<tokio::sync::Mutex<State>>,
    /// Its groups changed, or it is gone.
    news: Notify,
    is_gone: AtomicBool,
}

/// Invariant: what is in `deleted` is from the start of the index on, and an entry that the index counts.
#[derive(Default)]
struct State {
    /// `None` until somebody looks.
    index: Option<Index>,
    saved: SavedStream,
    added: u64,
    deleted: BTreeSet<Offset>,
    groups: BTreeMap<Box<[u8]>, Group>,
}

/// A stream, which is a topic.
#[derive(Clone)]
pub struct Stream {
    broker: Arc<Broker>,
    topic: Arc<Topic>,
    partition: Arc<PartitionCell>,
    cell: Arc<StreamCell>,
}

/// A stream of which nobody else does anything meanwhile but publish.
pub struct LockedStream {
    stream: Stream,
    state: OwnedMutexGuard<State>,
}

impl Streams {
    pub(crate) fn topics_changed(&self) {
        self.news.notify_waiters();
    }

    pub(crate) fn forget_topic(&self, id: TopicId) {
        if let Some(cell) = self.cells.lock().remove(&id) {
            cell.is_gone.store(true, Ordering::Release);
            cell.news.notify_waiters();
        }
    }

    fn cell(&self, id: TopicId) -> Arc<StreamCell> {
        self.cells.lock().entry(id).or_default().clone()
    }
}

impl Broker {
    /// The stream of a name, if there is such a topic.
    pub async fn stream(self: &Arc<Self>, name: &str) -> Result<Option<Stream>> {
        refuse_internal(name)?;
        let topic = self.topics.read().get(name).cloned();
        match topic {
            Some(topic) => self.stream_of(topic).await.map(Some),
            None => Ok(None),
        }
    }

    /// The same; where there is no such topic, one is made that has a partition and keeps all that it is given, if that
    /// is allowed.
    pub async fn stream_or_create(self: &Arc<Self>, name: &str) -> Result<Stream> {
        if let Some(stream) = self.stream(name).await? {
            return Ok(stream);
        }
        TopicName::parse(name)?;
        if !self.settings().auto_create_topics {
            return Err(self.no_such_topic(name));
        }
        let settings = TopicSettings {
            partitions: 1,
            retention_bytes: 0,
            retention_ms: 0,
            storage: Storage::Auto,
            ..TopicSettings::default()
        };
        let made = self.create_topic(name, settings).await;
        let stream = self.stream_of(self.topic(name)?).await?;
        match made {
            // Somebody else was faster.
            Err(error) if error.kind == ErrorKind::AlreadyExists => return Ok(stream),
            made => drop(made?),
        }
        let mut locked = stream.lock().await?;
        locked.state.saved.is_own = true;
        let saved = locked.save([])?;
        drop(locked);
        saved.lasts().await?;
        Ok(stream)
    }

    async fn stream_of(self: &Arc<Self>, topic: Arc<Topic>) -> Result<Stream> {
        self.restored_streams().await?;
        let name = &topic.name;
        let settings = &topic.settings;
        let why = if name.is_hidden() {
            Some("is the broker's own".to_owned())
        } else if settings.partitions != 1 {
            Some(format!("has {} partitions, and a stream has one", settings.partitions))
        } else if settings.compact {
            Some("is compacted, and a stream keeps all entries that nobody deletes".to_owned())
        } else if settings.drop_consumed {
            Some("is that of a queue: use it as such".to_owned())
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Error::invalid(format!("topic {name} is no stream: it {why}")));
        }
        let (partition, cell) = (topic.partition(0)?, self.streams_there().cell(topic.id));
        Ok(Stream { broker: self.clone(), topic, partition, cell })
    }

    /// The same; a topic that is no stream is none.
    async fn stream_or_other(self: &Arc<Self>, name: &str) -> Result<Option<Stream>> {
        match self.stream(name).await {
            Err(error) if error.kind == ErrorKind::Invalid => Ok(None),
            found => found,
        }
    }

    /// Whether there is a stream of this name that was made as one, or that has groups.
    pub async fn has_stream(self: &Arc<Self>, name: &str) -> Result<bool> {
        let Some(stream) = self.stream_or_other(name).await? else {
            return Ok(false);
        };
        let state = stream.cell.state.lock().await;
        Ok(state.saved.is_own || !state.groups.is_empty())
    }

    /// Deletes a stream, with its topic, if that was made for it. Whether it did; it lasts when this is over.
    pub async fn delete_stream(self: &Arc<Self>, name: &str) -> Result<bool> {
        let Some(stream) = self.stream_or_other(name).await? else {
            return Ok(false);
        };
        let mut locked = stream.lock().await?;
        if !locked.state.saved.is_own {
            return Ok(false);
        }
        self.delete_topic(name).await?;
        // What is left of it where this is not reached goes with the next start.
        let gone = locked.save_gone()?;
        drop(locked);
        gone.lasts().await?;
        Ok(true)
    }

    /// Tries again whenever one of these streams may have more, is made or deleted, or has other groups; until there is
    /// something, or it is stopped.
    pub async fn await_streams<T>(
        &self,
        names: &[String],
        stop: impl Future<Output = ()>,
        mut attempt: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        tokio::pin!(stop);
        loop {
            let topics: Vec<_> = names.iter().filter_map(|name| self.topic(name).ok()).collect();
            let parts: Vec<_> = topics
                .iter()
                .filter_map(|topic| Some((topic.partition(0).ok()?, self.streams_there().cell(topic.id))))
                .collect();
            let mut events: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::with_capacity(2 * parts.len() + 1);
            for (partition, cell) in &parts {
                events.push(Box::pin(partition.appended()));
                events.push(notified(&cell.news));
            }
            if parts.len() < names.len() {
                events.push(notified(&self.streams_there().news));
            }
            if let Some(found) = attempt().await? {
                return Ok(Some(found));
            }
            tokio::select! {
                () = &mut stop => return Ok(None),
                () = any(&mut events) => {}
            }
        }
    }

    pub(crate) fn expose_streams(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let cells: Vec<_> = self.streams_there().cells.lock().values().cloned().collect();
        let (mut groups, mut pending, mut deleted) = (0, 0, 0);
        // One that is being used has its turn with the next look.
        for state in cells.iter().filter_map(|cell| cell.state.try_lock().ok()) {
            groups += state.groups.len() as u64;
            pending += state.groups.values().map(|group| group.pending_count() as u64).sum::<u64>();
            deleted += state.deleted.len() as u64;
        }
        out.gauge("thalweg_streams", "Topics that were used as streams", cells.len() as u64)?;
        out.gauge("thalweg_stream_groups", "Groups of streams", groups)?;
        out.gauge("thalweg_stream_pending", "Entries that were given out and not acknowledged", pending)?;
        out.gauge("thalweg_stream_deleted", "Entries that were deleted behind others that are there", deleted)
    }
}

/// Completes with the next notification from now on.
fn notified(news: &Notify) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    let mut notified = Box::pin(news.notified());
    notified.as_mut().enable();
    notified
}

impl Stream {
    /// Knows all that is in the log by then.
    pub async fn lock(&self) -> Result<LockedStream> {
        let state = self.cell.state.clone().lock_owned().await;
        if self.cell.is_gone.load(Ordering::Acquire) {
            return Err(Error::not_found(format!("topic {} was deleted", self.topic.name)));
        }
        let mut locked = LockedStream { stream: self.clone(), state };
        locked.catch_up().await?;
        Ok(locked)
    }
}

impl LockedStream {
    fn index(&self) -> &Index {
        self.state.index.as_ref().expect("invariant: it was made when the stream was locked")
    }

    fn index_mut(&mut self) -> &mut Index {
        self.state.index.as_mut().expect("invariant: it was made when the stream was locked")
    }

    /// The id above which all that is added will be.
    pub fn last(&self) -> EntryId {
        self.index().last()
    }

    pub fn len(&self) -> u64 {
        self.index().len() - self.state.deleted.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Places from which entries are looked for.
    pub fn marks(&self) -> usize {
        self.index().marks()
    }
}
