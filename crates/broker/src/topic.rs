//! A topic with its partitions, and the table of all topics.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use engine::ids::is_internal;
use engine::limits::{PARTITIONS_TOTAL_MAX, TOPICS_MAX};
use engine::mesh::MeshMode;
use engine::queue::QueueName;
use engine::{DraftBatch, Error, PartitionId, Result, TopicId, TopicName, TopicSettings, partitioner};
use storage::StoredTopic;

use crate::leadership::Epoch;
use crate::log::Log;
use crate::partition::{Extent, PartitionCell};
use crate::tenant_quotas::ByTenant;

pub(crate) struct Topic {
    pub name: TopicName,
    pub id: TopicId,
    pub settings: TopicSettings,
    partitions: Box<[Arc<PartitionCell>]>,
    /// Id in the data directory, if the topic is stored there.
    pub(crate) stored_as: Option<u32>,
    pub(crate) epoch: Epoch,
    turn: AtomicU32,
    /// `true` if the topic is in no table any more: it was deleted, or another version has replaced it.
    is_replaced: AtomicBool,
    /// `true` if the tenant of the topic stores more bytes than its quota allows. All versions of the topic share it.
    is_over_quota: Arc<AtomicBool>,
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

/// All topics. Invariant: both tables hold the same topics, `listed` those that are not inboxes, `partitions` is the
/// number of their partitions, and `by_tenant` counts them.
#[derive(Default)]
pub(crate) struct Topics {
    by_name: HashMap<TopicName, Arc<Topic>, foldhash::fast::RandomState>,
    by_id: HashMap<TopicId, Arc<Topic>, foldhash::fast::RandomState>,
    /// Topics in the order of their names, for lists.
    listed: BTreeMap<TopicName, Arc<Topic>>,
    pub(crate) partitions: usize,
    pub(crate) by_tenant: ByTenant,
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
        if !topic.name.is_inbox() {
            self.listed.insert(topic.name.clone(), topic.clone());
        }
        self.partitions += topic.partitions.len();
        self.by_tenant.add(topic.name.as_str());
        if let Some(before) = self.by_name.insert(topic.name.clone(), topic) {
            self.partitions -= before.partitions.len();
            self.by_tenant.remove(before.name.as_str());
            before.is_replaced.store(true, Ordering::Release);
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(topic) = self.by_name.remove(name) {
            self.by_id.remove(&topic.id);
            self.listed.remove(name);
            self.partitions -= topic.partitions.len();
            self.by_tenant.remove(name);
            topic.is_replaced.store(true, Ordering::Release);
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    /// Returns the topics that are not inboxes in the order of their names, from a name on.
    pub(crate) fn listed(&self, from: Bound<&str>) -> impl Iterator<Item = &Arc<Topic>> {
        self.listed.range::<str, _>((from, Bound::Unbounded)).map(|(_, topic)| topic)
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
    pub(crate) fn in_memory(name: TopicName, id: TopicId, settings: TopicSettings, epoch: Epoch) -> Arc<Self> {
        let logs = (0..settings.partitions).map(|_| Log::in_memory());
        Self::new(name, id, settings, None, logs, epoch)
    }

    /// Creates a topic from a topic of a data directory, with an id that is made from `ids`.
    pub(crate) fn stored(ids: u64, stored: StoredTopic, epoch: Epoch) -> Arc<Self> {
        let id = TopicId::new(ids, stored.id.into());
        let logs = stored.partitions.into_iter().map(Log::Shared);
        Self::new(stored.name, id, stored.settings, Some(stored.id), logs, epoch)
    }

    fn new(
        name: TopicName,
        id: TopicId,
        settings: TopicSettings,
        stored_as: Option<u32>,
        logs: impl Iterator<Item = Log>,
        epoch: Epoch,
    ) -> Arc<Self> {
        let cell = |(partition, log)| Arc::new(PartitionCell::new((name.clone(), id), partition, log, epoch));
        let partitions = (0..).zip(logs).map(cell).collect();
        let turn = AtomicU32::new(0);
        let is_replaced = AtomicBool::new(false);
        let is_over_quota = Arc::default();
        Arc::new(Self { name, id, settings, partitions, stored_as, epoch, turn, is_replaced, is_over_quota })
    }

    /// Returns a copy of the topic with partitions added, which no client reads yet.
    pub(crate) fn grown(&self, added: impl Iterator<Item = Log>) -> Arc<Self> {
        let cell = |(id, log)| Arc::new(PartitionCell::new((self.name.clone(), self.id), id, log, self.epoch));
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
        let name = self.name.clone();
        let id = self.id;
        let stored_as = self.stored_as;
        let epoch = self.epoch;
        let is_replaced = AtomicBool::new(false);
        let is_over_quota = self.is_over_quota.clone();
        Arc::new(Self { name, id, settings, partitions, stored_as, epoch, turn, is_replaced, is_over_quota })
    }

    /// Returns `true` if the tenant of the topic stored more bytes than its quota allows when that was last measured.
    #[inline]
    pub(crate) fn is_over_quota(&self) -> bool {
        self.is_over_quota.load(Ordering::Relaxed)
    }

    pub(crate) fn set_over_quota(&self, is_over: bool) {
        self.is_over_quota.store(is_over, Ordering::Relaxed);
    }

    /// Returns `true` if a lookup by name finds this topic, not another one or none.
    pub(crate) fn is_current(&self) -> bool {
        !self.is_replaced.load(Ordering::Acquire)
    }

    /// Returns `true` if other sites of the mesh publish here: the topic is live, or an inbox.
    pub(crate) fn takes_from_sites(&self) -> bool {
        self.settings.mesh == MeshMode::Live || self.name.is_inbox()
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

    pub(crate) fn status(&self, owner: Option<QueueName>) -> TopicStatus {
        TopicStatus {
            name: self.name.clone(),
            id: self.id,
            settings: self.settings,
            owner,
            partitions: self.partitions.iter().map(|cell| cell.extent()).collect(),
        }
    }

    pub(crate) fn outline(&self) -> TopicOutline {
        TopicOutline { name: self.name.clone(), id: self.id, settings: self.settings }
    }
}

/// Checks that this number of topics and partitions may be added. Fails as busy if a limit would be exceeded.
pub(crate) fn room_for(topics: &Topics, more_topics: usize, more_partitions: u32) -> Result<()> {
    let count = topics.len();
    let partitions = topics.partitions;
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
