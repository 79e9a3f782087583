//! Topics: creation, lookup, description and deletion.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use engine::ids::{is_inbox, is_internal};
use engine::limits::{PARTITIONS_TOTAL_MAX, TOPICS_MAX};
use engine::queue::QueueName;
use engine::{
    DraftBatch, Error, ErrorKind, Offset, PartitionId, Pattern, Result, Storage, TopicId, TopicName, TopicSettings,
    nearest, partitioner,
};
use parking_lot::Mutex;
use storage::{MemoryLog, Owner, StoredTopic};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::log::Log;
use crate::partition::{Extent, PartitionCell};
use crate::peers::Created;
use crate::retention::Retention;

pub(crate) struct Topic {
    pub name: TopicName,
    pub id: TopicId,
    pub settings: TopicSettings,
    partitions: Box<[Arc<PartitionCell>]>,
    /// Id in the data directory, if the topic is stored there.
    pub(crate) stored_as: Option<u32>,
    turn: AtomicU32,
    /// `true` if the topic is in no table any more: it was deleted, or another version has replaced it.
    is_replaced: AtomicBool,
}

#[derive(Clone, Debug)]
pub struct TopicStatus {
    pub name: TopicName,
    /// Constant for the lifetime of the topic; a topic that is created again gets another id.
    pub id: TopicId,
    pub settings: TopicSettings,
    /// The queue that owns the topic: it decides how long records are kept, and the topic is deleted with it.
    pub owner: Option<QueueName>,
    pub partitions: Vec<PartitionStatus>,
}

pub type PartitionStatus = Extent;

/// A topic without its partitions: describing it takes none of their locks.
#[derive(Clone, Debug)]
pub struct TopicOutline {
    pub name: TopicName,
    pub id: TopicId,
    pub settings: TopicSettings,
}

/// All topics. Invariant: both tables hold the same topics, and `partitions` is the number of their partitions.
#[derive(Default)]
pub(crate) struct Topics {
    by_name: HashMap<TopicName, Arc<Topic>, foldhash::fast::RandomState>,
    by_id: HashMap<TopicId, Arc<Topic>, foldhash::fast::RandomState>,
    partitions: usize,
}

impl Topics {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    pub(crate) fn get_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// Adds a topic, or replaces the earlier version of it.
    pub(crate) fn insert(&mut self, topic: Arc<Topic>) {
        self.by_id.insert(topic.id, topic.clone());
        self.partitions += topic.partitions.len();
        if let Some(before) = self.by_name.insert(topic.name.clone(), topic) {
            self.partitions -= before.partitions.len();
            before.is_replaced.store(true, Ordering::Release);
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(topic) = self.by_name.remove(name) {
            self.by_id.remove(&topic.id);
            self.partitions -= topic.partitions.len();
            topic.is_replaced.store(true, Ordering::Release);
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

impl FromIterator<Arc<Topic>> for Topics {
    fn from_iter<I: IntoIterator<Item = Arc<Topic>>>(topics: I) -> Self {
        let mut all = Self::default();
        topics.into_iter().for_each(|topic| all.insert(topic));
        all
    }
}

impl Topic {
    pub(crate) fn in_memory(name: TopicName, id: TopicId, settings: TopicSettings) -> Arc<Self> {
        let logs = (0..settings.partitions).map(|_| Log::Memory(MemoryLog::default()));
        Self::new(name, id, settings, None, logs)
    }

    /// Creates a topic from a topic of the data directory with this number.
    pub(crate) fn stored(directory: u64, stored: StoredTopic) -> Arc<Self> {
        let (id, logs) = (TopicId::new(directory, stored.id.into()), stored.partitions.into_iter().map(Log::Disk));
        Self::new(stored.name, id, stored.settings, Some(stored.id), logs)
    }

    fn new(
        name: TopicName,
        id: TopicId,
        settings: TopicSettings,
        stored_as: Option<u32>,
        logs: impl Iterator<Item = Log>,
    ) -> Arc<Self> {
        let cell = |(partition, log)| Arc::new(PartitionCell::new(name.clone(), partition, log));
        let partitions = (0..).zip(logs).map(cell).collect();
        Self { name, id, settings, partitions, stored_as, turn: AtomicU32::new(0), is_replaced: AtomicBool::new(false) }
            .into()
    }

    /// Returns a copy of the topic with partitions added, which no client reads yet.
    pub(crate) fn grown(&self, added: impl Iterator<Item = Log>) -> Arc<Self> {
        let cell = |(id, log)| Arc::new(PartitionCell::new(self.name.clone(), id, log));
        let added = (self.settings.partitions..).zip(added).map(cell);
        let partitions: Box<[_]> = self.partitions.iter().cloned().chain(added).collect();
        let settings = TopicSettings { partitions: partitions.len() as u32, ..self.settings };
        self.with(settings, partitions)
    }

    /// Returns a copy of the topic with other settings. The number of its partitions is unchanged.
    pub(crate) fn altered(&self, settings: TopicSettings) -> Arc<Self> {
        let settings = TopicSettings { partitions: self.settings.partitions, ..settings };
        self.with(settings, self.partitions.clone())
    }

    fn with(&self, settings: TopicSettings, partitions: Box<[Arc<PartitionCell>]>) -> Arc<Self> {
        let turn = AtomicU32::new(self.turn.load(Ordering::Relaxed));
        let (name, id, stored_as) = (self.name.clone(), self.id, self.stored_as);
        Arc::new(Self { name, id, settings, partitions, stored_as, turn, is_replaced: AtomicBool::new(false) })
    }

    /// Returns `true` if a lookup by name finds this topic, not another one or none.
    pub(crate) fn is_current(&self) -> bool {
        !self.is_replaced.load(Ordering::Acquire)
    }

    pub(crate) fn partitions(&self) -> &[Arc<PartitionCell>] {
        &self.partitions
    }

    pub(crate) fn partition(&self, id: PartitionId) -> Result<Arc<PartitionCell>> {
        let partition = self.partitions.get(id as usize).cloned();
        partition.ok_or_else(|| Error::no_partition(self.name.as_str(), self.partitions.len(), id.into()))
    }

    /// Returns the partition of a batch that names none: that of the key of its first record, or else the next one in
    /// turn.
    pub(crate) fn partition_of(&self, batch: &DraftBatch) -> Result<Arc<PartitionCell>> {
        if self.partitions.len() > 1 && batch.producer().is_some() {
            // A repeated batch might go to another partition, and so be accepted twice.
            return Err(Error::invalid(format!(
                "topic {} has {} partitions: a batch with a producer id must name its partition",
                self.name,
                self.partitions.len()
            )));
        }
        Ok(match batch.first_key().filter(|_| self.partitions.len() > 1) {
            Some(key) => {
                let partition = partitioner::for_key(key, self.partitions.len() as u32);
                self.partitions[partition as usize].clone()
            }
            None => self.next_partition(),
        })
    }

    /// Returns the next partition in turn, for batches without a partition and a key.
    pub(crate) fn next_partition(&self) -> Arc<PartitionCell> {
        let turn = match self.partitions.len() {
            1 => 0,
            _ => self.turn.fetch_add(1, Ordering::Relaxed) as usize,
        };
        self.partitions[turn % self.partitions.len()].clone()
    }

    fn status(&self, owner: Option<QueueName>) -> TopicStatus {
        TopicStatus {
            name: self.name.clone(),
            id: self.id,
            settings: self.settings,
            owner,
            partitions: self.partitions.iter().map(|cell| cell.extent()).collect(),
        }
    }

    fn outline(&self) -> TopicOutline {
        TopicOutline { name: self.name.clone(), id: self.id, settings: self.settings }
    }
}

impl Broker {
    /// Creates a topic. Returns the existing topic if it has the same settings. Settings that are left open take the
    /// broker's defaults. A topic on disk is durable when this completes.
    pub async fn create_topic(&self, name: &str, settings: TopicSettings) -> Result<TopicStatus> {
        let topic = self.create_topic_alone(name, settings).await?;
        self.renew_queues_over(&topic).await;
        Ok(self.status_of(&topic))
    }

    /// Creates a topic as [`Broker::create_topic`] does, but does not renew the queues over an earlier topic of its
    /// name.
    pub(crate) async fn create_topic_alone(&self, name: &str, settings: TopicSettings) -> Result<Arc<Topic>> {
        let name = TopicName::parse(name)?;
        let settings = self.resolve(settings)?;
        if name.is_inbox() {
            return Err(Error::invalid(format!("{name}: an inbox is created by subscribing to it")));
        }
        refuse_internal(name.as_str())?;
        let (topic, lasts) = self.create(name, settings)?;
        if !topic.settings.is_as(&settings.or(&self.topic_defaults(settings.storage))) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("topic {} exists with other settings", topic.name),
            ));
        }
        lasts.wait().await?;
        Ok(topic)
    }

    /// Returns the settings that [`Broker::create_topic`] would give such a topic, or the error with which it would
    /// refuse them.
    pub fn resolve(&self, settings: TopicSettings) -> Result<TopicSettings> {
        let storage = match (settings.storage, self.store()) {
            (Storage::Auto, None) => Storage::Memory,
            (Storage::Auto, Some(_)) => Storage::Disk,
            (Storage::Disk | Storage::Sqlite, None) => {
                return Err(Error::invalid("this broker keeps all topics in memory; start it with --data DIR"));
            }
            (storage, _) => storage,
        };
        let settings = TopicSettings { storage, ..settings }.or(&self.topic_defaults(storage));
        settings.validate()?;
        Ok(settings)
    }

    pub fn describe_topic(&self, name: &str) -> Result<TopicStatus> {
        Ok(self.status_of(&*self.topic(name)?))
    }

    pub(crate) fn status_of(&self, topic: &Topic) -> TopicStatus {
        topic.status(self.owner_of(topic))
    }

    pub fn outline_topic(&self, name: &str) -> Result<TopicOutline> {
        Ok(self.topic(name)?.outline())
    }

    /// Returns the number of topics, including inboxes and the broker's internal topics.
    pub fn topic_count(&self) -> usize {
        self.topics.read().len()
    }

    /// Returns all topics, ordered by name. Inboxes are not listed.
    pub fn outline_topics(&self) -> Vec<TopicOutline> {
        let mut found: Vec<TopicOutline> = {
            let topics = self.topics.read();
            topics.values().filter(|topic| !topic.name.is_inbox()).map(|topic| topic.outline()).collect()
        };
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// Returns the name of the topic that has this id.
    pub fn topic_by_id(&self, id: TopicId) -> Result<TopicName> {
        let found = self.topics.read().get_by_id(id).map(|topic| topic.name.clone());
        found.ok_or_else(|| Error::not_found(format!("there is no topic with the id {id}; it may have been deleted")))
    }

    /// Returns the id of a topic and the number of its partitions, if the topic exists.
    pub fn find_topic(&self, name: &str) -> Option<(TopicId, u32)> {
        self.topics.read().get(name).map(|topic| (topic.id, topic.partitions().len() as u32))
    }

    /// Returns `true` if a topic keeps only the newest record of each key; `None` if the topic does not exist.
    pub fn is_compacted(&self, name: &str) -> Option<bool> {
        self.topics.read().get(name).map(|topic| topic.settings.compact)
    }

    pub fn has_topic(&self, name: &str) -> bool {
        self.topics.read().get(name).is_some()
    }

    /// Returns the bounds of one partition's log.
    pub fn describe_partition(&self, name: &str, partition: PartitionId) -> Result<PartitionStatus> {
        Ok(self.topic(name)?.partition(partition)?.extent())
    }

    /// Returns the number of partitions of a topic. A missing topic is created, if that is allowed.
    pub fn partitions_of(&self, name: &str) -> Result<u32> {
        Ok(self.topic_or_create(name)?.settings.partitions)
    }

    /// Returns the next partition in turn of a topic, for records without a key. A missing topic is created, if that is
    /// allowed.
    pub fn next_partition_of(&self, name: &str) -> Result<PartitionId> {
        Ok(self.topic_or_create(name)?.next_partition().id)
    }

    /// Returns at most `count_max` topics after this name, ordered by name, and `true` if they are the last ones.
    /// Inboxes are not listed.
    pub fn list_topics(&self, after: &str, count_max: usize) -> (Vec<TopicStatus>, bool) {
        let (found, is_last) = {
            let topics = self.topics.read();
            let mut found: Vec<&Arc<Topic>> =
                topics.values().filter(|topic| topic.name.as_str() > after && !topic.name.is_inbox()).collect();
            let is_last = found.len() <= count_max;
            if !is_last {
                // Only the listed topics have to be sorted.
                found.select_nth_unstable_by(count_max, |a, b| a.name.cmp(&b.name));
                found.truncate(count_max);
            }
            found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            (found.into_iter().take(count_max).cloned().collect::<Vec<_>>(), is_last)
        };
        (found.iter().map(|topic| self.status_of(topic)).collect(), is_last)
    }

    /// Deletes a topic with all its records, and ends its subscriptions. The deletion is durable when this completes.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        refuse_internal(name)?;
        // The queue that owns the topic is deleted with it.
        if let Some(queue) = self.queues_over(name).await?.into_iter().find(|queue| queue.owns_topic) {
            return Box::pin(self.delete_queue(queue.name.as_str())).await;
        }
        // Messages that share groups have not acknowledged must not be attributed to a later topic of this name.
        for (_, queue) in self.share_queues().await?.into_iter().filter(|(_, queue)| queue.topic.as_str() == name) {
            self.delete_any_queue(queue.name.as_str()).await?;
        }
        let lasts = self.remove(name)?;
        self.forget_topic_of_transactions(&TopicName::parse(name)?);
        self.unlist_deleted_streams();
        lasts.wait().await
    }

    /// Deletes a topic without waiting until the deletion is durable.
    pub(crate) fn remove(&self, name: &str) -> Result<Lasts> {
        let _control = self.listeners.lock();
        let topic = self.topic(name)?;
        let mut lasts = Lasts::already();
        if let (Some(id), Some(store)) = (topic.stored_as, self.store()) {
            let (said, hears) = Lasts::when_committed();
            store.delete_topic(id, said)?;
            lasts = hears;
        }
        self.topics.write().remove(name);
        for cell in &topic.partitions {
            let (members, freed) = cell.delete();
            self.log_budget().release(freed);
            for (subscriber, source) in members {
                subscriber.lose_source(source, Error::not_found(format!("topic {name} was deleted")));
            }
        }
        self.forget_topic(&topic.name);
        self.streams_there().topic_removed(&topic);
        Ok(lasts)
    }

    /// Deletes the records of a partition before an offset, or all records for `Offset::MAX`. Returns the new start
    /// of the log. The change is durable when this completes.
    pub async fn delete_records(&self, name: &str, partition: PartitionId, before: Offset) -> Result<Offset> {
        refuse_internal(name)?;
        let cell = self.topic(name)?.partition(partition)?;
        let (start, freed, lasts) = cell.delete_records(before)?;
        self.log_budget().release(freed);
        lasts.wait().await?;
        Ok(start)
    }

    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>> {
        let found = self.topics.read().get(name).cloned();
        found.ok_or_else(|| self.no_such_topic(name))
    }

    /// Returns the error for a topic that does not exist; it suggests the nearest existing name.
    pub(crate) fn no_such_topic(&self, name: &str) -> Error {
        let topics = self.topics.read();
        let names = topics.values().filter(|topic| !topic.name.is_hidden()).map(|topic| topic.name.as_str());
        match nearest(name, names) {
            Some(nearest) => Error::not_found(format!(
                "there is no topic '{name}'; did you mean '{nearest}'? Otherwise create it, or list those that exist"
            )),
            None => Error::not_found(format!("there is no topic '{name}'; create it, or list those that exist")),
        }
    }

    pub(crate) fn topic_or_create(&self, name: &str) -> Result<Arc<Topic>> {
        if let Some(topic) = self.topics.read().get(name) {
            return Ok(topic.clone());
        }
        if is_inbox(name) {
            return Err(Error::not_found(format!("no client waits for an answer at {name} any more")));
        }
        if is_internal(name) || !self.settings().auto_create_topics {
            TopicName::parse(name)?;
            return Err(self.no_such_topic(name));
        }
        let settings = self.resolve(TopicSettings::of_broker())?;
        // The topic's records are never durable before the topic is, so there is nothing to wait for.
        Ok(self.create(TopicName::parse(name)?, settings)?.0)
    }

    /// Creates a topic, or returns the topic that another caller created concurrently.
    pub(crate) fn create(&self, name: TopicName, settings: TopicSettings) -> Result<(Arc<Topic>, Lasts)> {
        let mut listeners = self.listeners.lock();
        {
            let topics = self.topics.read();
            if let Some(topic) = topics.get(name.as_str()) {
                return Ok((topic.clone(), self.lasts(topic)?));
            }
            room_for(&topics, 1, settings.partitions)?;
        }
        if !is_internal(name.as_str()) {
            self.peers().admit(Created::Topic)?;
        }
        // Settings that follow the broker's defaults do so from here on: defaults change under the lock that is held.
        let settings = match settings.own {
            Some(_) => settings.or(&self.topic_defaults(settings.storage)),
            None => settings,
        };
        let (topic, lasts) = match (settings.storage, self.store()) {
            (Storage::Disk | Storage::Sqlite, Some(store)) => {
                let (said, lasts) = Lasts::when_committed();
                (Topic::stored(store.directory(), store.create_topic(name.clone(), settings, said)?), lasts)
            }
            _ => (Topic::in_memory(name.clone(), self.next_volatile_id(), settings), Lasts::already()),
        };
        if !name.is_hidden() {
            listeners.join_topic(&topic)?;
        }
        self.topics.write().insert(topic.clone());
        // Records published to the channel of this name are queued before those of the topic.
        listeners.close(self, &name);
        drop(listeners);
        self.groups().topics_changed();
        self.streams_there().topic_made(&topic);
        Ok((topic, lasts))
    }

    /// Returns when the existing topic is durable: another caller may have created it just now.
    pub(crate) fn lasts(&self, topic: &Topic) -> Result<Lasts> {
        let (Some(id), Some(store)) = (topic.stored_as, self.store()) else {
            return Ok(Lasts::already());
        };
        let (said, lasts) = Lasts::when_committed();
        store.confirm_topic(id, topic.settings.partitions, said)?;
        Ok(lasts)
    }

    /// Returns the number of partitions of all topics together.
    pub(crate) fn partition_count(&self) -> usize {
        self.topics.read().partitions
    }

    /// Returns the existing topics that match a pattern.
    pub(crate) fn topics_matching(&self, pattern: &Pattern) -> Vec<Arc<Topic>> {
        let topics = self.topics.read();
        topics.values().filter(|topic| !topic.name.is_hidden() && pattern.matches(&topic.name)).cloned().collect()
    }

    pub(crate) fn trim_logs(&self, now_ms: u64) {
        let channels = self.listeners.lock().channels();
        let topics: Vec<Arc<Topic>> = self.topics.read().values().cloned().collect();
        for topic in topics.into_iter().chain(channels) {
            for cell in &topic.partitions {
                let settings = &topic.settings;
                if !settings.keeps_unacked || self.knows_queues() {
                    self.log_budget().release(cell.trim(Retention::of(settings), now_ms));
                }
                if settings.drop_consumed && self.has_restored_queues() {
                    self.log_budget().release(cell.sweep_consumed());
                }
            }
        }
    }
}

/// Waiter until a change of the catalog is durable.
pub(crate) struct Lasts(Option<oneshot::Receiver<Result<()>>>);

impl Lasts {
    pub(crate) fn already() -> Self {
        Self(None)
    }

    pub(crate) fn when_committed() -> (Arc<dyn Owner>, Self) {
        let (said, heard) = oneshot::channel();
        (Arc::new(Said(Mutex::new(Some(said)))), Self(Some(heard)))
    }

    pub(crate) async fn wait(self) -> Result<()> {
        let Some(heard) = self.0 else {
            return Ok(());
        };
        heard.await.unwrap_or_else(|gone| {
            Err(Error::new(
                ErrorKind::Internal,
                format!("the journal was closed before the change was durable: {gone}"),
            ))
        })
    }
}

struct Said(Mutex<Option<oneshot::Sender<Result<()>>>>);

impl Said {
    fn say(&self, result: Result<()>) {
        if let Some(said) = self.0.lock().take() {
            // A caller that no longer waits needs no result.
            said.send(result).unwrap_or_default();
        }
    }
}

impl Owner for Said {
    fn committed(&self, _mark: u64) {
        self.say(Ok(()));
    }

    fn failed(&self, error: &Error) {
        self.say(Err(error.clone()));
    }
}

/// Checks that this number of topics and partitions may be added. Fails as busy if a limit would be exceeded.
pub(crate) fn room_for(topics: &Topics, more_topics: usize, more_partitions: u32) -> Result<()> {
    let (count, partitions) = (topics.len(), topics.partitions);
    if count + more_topics > TOPICS_MAX || partitions + more_partitions as usize > PARTITIONS_TOTAL_MAX {
        let message = format!("this broker holds {count} topics with {partitions} partitions; delete some first");
        return Err(Error::busy(message));
    }
    Ok(())
}

/// Refuses the broker's internal topics: clients can only read them.
pub(crate) fn refuse_internal(name: &str) -> Result<()> {
    if is_internal(name) {
        return Err(Error::invalid(format!("'{name}' is a topic of the broker itself; clients can only read it")));
    }
    Ok(())
}
