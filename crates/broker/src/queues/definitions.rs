//! Creation, change, renewal and deletion of queues.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aws_lc_rs::rand;
use engine::groups::GroupName;
use engine::queue::{DedupRule, Queue, QueueDefinition, QueueId, QueueName, QueueOverflow, QueueRecord, QueueSettings};
use engine::security::{QuotaKind, TenantName};
use engine::{
    Error, ErrorKind, Isolation, Offset, OwnSettings, PartitionId, Result, SettingsChange, Storage, TopicName,
    TopicSettings,
};
use tokio::sync::OwnedMutexGuard;

use super::QUEUES;
use super::receipt_key::{KEY_BYTES, ReceiptKey};
use super::{QUEUE_PARTITIONS_MAX, QUEUES_MAX, check_users};
use crate::commit::Commit;
use crate::partition::PartitionCell;
use crate::peers::Created;
use crate::queues::Queues;
use crate::topic::{Topic, refuse_internal};
use crate::view::{QueueCell, QueueView};
use crate::wakes::Wakes;

/// Kind and name of the document that holds the key of receipts.
const RECEIPT_KEY: (&str, &str) = ("broker", "receipt_key");

/// Position at which a queue over an existing topic begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueStart {
    #[default]
    Earliest,
    /// The queue begins with records that are published from now on.
    Live,
}

/// Parameters for the creation of a queue.
#[derive(Clone, Debug)]
pub struct NewQueue {
    pub name: QueueName,
    /// An existing topic; by default the queue gets its own topic, with its name.
    pub topic: Option<TopicName>,
    pub start: QueueStart,
    /// Storage of the queue's own topic.
    pub storage: Storage,
    pub settings: QueueSettings,
    pub notes: BTreeMap<String, String>,
}

impl NewQueue {
    pub fn new(name: QueueName) -> Self {
        Self {
            name,
            topic: None,
            start: QueueStart::default(),
            storage: Storage::default(),
            settings: QueueSettings::default(),
            notes: BTreeMap::new(),
        }
    }
}

impl Queues {
    /// Creates a queue. Succeeds if it already exists with the same settings. The queue is durable when this returns.
    pub async fn create(&self, new: NewQueue) -> Result<Arc<QueueDefinition>> {
        let name = new.name.clone();
        let act = async { self.make(new).await.map(|(definition, _)| definition) };
        self.core.audited("create queue", name.as_str(), act).await
    }

    /// Creates a queue as [`create_queue`](Self::create_queue) does. The second value is `true` if the queue is new: it
    /// did not exist, or was over a topic that was deleted.
    pub(crate) async fn make(&self, new: NewQueue) -> Result<(Arc<QueueDefinition>, bool)> {
        new.settings.validate()?;
        self.check_notes(&new.notes, &BTreeMap::new())?;
        let _control = self.hold().await?;
        let existing = self.by_name.read().get(&new.name).cloned();
        if let Some(existing) = existing {
            let definition = existing.definition();
            let is_same = definition.settings == new.settings
                && new.topic.as_ref().is_none_or(|topic| *topic == definition.topic);
            if !is_same && !new.name.is_internal() {
                return Err(exists_already(&definition, &new));
            }
            let (now, _) = self.renew(existing.clone(), new.start).await?;
            return Ok((now.definition(), now.id != existing.id));
        }
        if self.by_name.read().len() >= QUEUES_MAX {
            return Err(Error::busy(format!("queue limit reached ({QUEUES_MAX}): delete one first")));
        }
        // The topic that the queue may need is created before the views of its partitions.
        self.check_room(1)?;
        let count = |tenant: &TenantName| self.by_name.read().by_tenant.get(tenant);
        self.core.tenant_quotas().admit(QuotaKind::Queues, new.name.as_str(), count)?;
        self.core.peers().admit(Created::Queue)?;
        self.set_receipt_key().await?;
        let (topic, owns_topic) = self.topic_for(&new).await?;
        let now = self.core.now_ms();
        let definition = QueueDefinition {
            id: self.next_id(now),
            name: new.name,
            topic: topic.name.clone(),
            topic_id: topic.id,
            owns_topic,
            created_ms: now,
            altered_ms: now,
            settings: new.settings,
            notes: new.notes,
        };
        let (cell, saved) = self.begin(definition, &topic, new.start).await?;
        self.renew_over(&topic).await;
        saved.wait().await?;
        Ok((cell.definition(), true))
    }

    pub(super) fn next_id(&self, now_ms: u64) -> QueueId {
        self.core.next_volatile_number() ^ (now_ms << 20)
    }

    /// Starts a queue with a view of each partition of its topic, and replaces a queue of the same name. The caller
    /// holds `control`.
    pub(super) async fn begin(
        &self,
        definition: QueueDefinition,
        topic: &Arc<Topic>,
        start: QueueStart,
    ) -> Result<(Arc<QueueCell>, Commit)> {
        check_dedup(&definition, topic.settings.partitions)?;
        self.check_room(topic.partitions().len())?;
        let cell = QueueCell::new(definition, self.core.settings().clock, &self.views);
        let definition = cell.definition();
        let mut birth = Birth { cell: &cell, topic, is_over: false };
        for partition in topic.partitions() {
            let extent = partition.extent();
            // A queue that begins with new records gets open transactions as a whole, as Kafka's consumers do.
            let end = match cell.isolation(&definition.settings) {
                Isolation::Committed => extent.stable_end,
                Isolation::Uncommitted => extent.end,
            };
            let start = if start == QueueStart::Live && !cell.owns_topic { end } else { extent.start };
            let queue = Queue::new(definition.settings.clone(), start, extent.end, is_saved(topic));
            partition.attach_view(QueueView::new(cell.clone(), queue, is_saved(topic)));
            self.look_through(&cell, partition).await?;
            // The start position has to be recorded no later than the existence of the queue.
            self.change_view(partition, cell.id, |_, _| ()).map(drop)?;
        }
        let saved = self.save_definition(&definition)?;
        self.by_name.write().insert(definition.name.clone(), cell.clone());
        self.near.forget(definition.name.as_str());
        birth.is_over = true;
        drop(birth);
        Ok((cell, saved))
    }

    /// Returns the topic of a new queue, and `true` if the queue owns it.
    async fn topic_for(&self, new: &NewQueue) -> Result<(Arc<Topic>, bool)> {
        if let Some(name) = &new.topic {
            // The state of queues is written to internal topics: a queue over one of them would wait for itself.
            refuse_internal(name.as_str())?;
            return Ok((self.core.topic(name.as_str())?, false));
        }
        if let Some(topic) = self.core.existing_topic(new.name.as_str()) {
            // The creator of the topic decides its retention, so the queue does not own it. A topic that drops consumed
            // records but has no queue was left over by the interrupted creation or deletion of a queue.
            let by_name = self.by_name.read();
            let is_left = topic.settings.drop_consumed && !by_name.values().any(|cell| cell.is_over(&topic.name));
            return Ok((topic, is_left));
        }
        Ok((self.core.create_resolved(new.name.as_str(), own_topic(&new.settings, new.storage)).await?, true))
    }

    /// Changes the definition of a queue. The order of its messages cannot be changed. The change is durable when this
    /// returns.
    pub async fn alter(
        &self,
        name: &str,
        change: impl FnOnce(&mut QueueDefinition) -> Result<()>,
    ) -> Result<Arc<QueueDefinition>> {
        let act = async {
            check_users(name)?;
            let _control = self.hold().await?;
            let found = self.by_name.read().get(name).cloned();
            let cell = found.ok_or_else(|| self.no_such_queue(name))?;
            let before = cell.definition();
            let mut definition = (*before).clone();
            change(&mut definition)?;
            definition.settings.validate()?;
            self.check_notes(&definition.notes, &before.notes)?;
            let fixed = |definition: &QueueDefinition| {
                (definition.id, definition.name.clone(), definition.topic.clone(), definition.owns_topic)
            };
            if fixed(&definition) != fixed(&before) {
                return Err(Error::invalid("the name and the topic of a queue cannot be changed"));
            }
            if definition.settings.order != before.settings.order {
                return Err(Error::invalid("the order of a queue cannot be changed"));
            }
            if definition.settings.filter != before.settings.filter {
                return Err(Error::invalid("the filter of a queue cannot be changed"));
            }
            definition.altered_ms = self.core.now_ms();
            if let Some(topic) = self.core.existing_topic(definition.topic.as_str()) {
                check_dedup(&definition, topic.settings.partitions)?;
            }
            let kept = |settings| {
                let TopicSettings { retention_ms, retention_bytes, .. } = own_topic(settings, Storage::Auto);
                (retention_ms, retention_bytes)
            };
            if before.owns_topic && kept(&before.settings) != kept(&definition.settings) {
                let (retention_ms, retention_bytes) = kept(&definition.settings);
                let retention_ms = Some(retention_ms);
                let retention_bytes = Some(retention_bytes);
                let change = SettingsChange { retention_ms, retention_bytes, ..SettingsChange::default() };
                self.core.alter(definition.topic.as_str(), change)?.1.wait().await?;
            }
            let saved = self.save_definition(&definition)?;
            if let Some(topic) = self.core.existing_topic(definition.topic.as_str())
                && topic.id == cell.topic_id
            {
                for partition in topic.partitions() {
                    partition.with_view(cell.id, |view, _| view.alter(definition.settings.clone()))?;
                    self.look_through(&cell, partition).await?;
                }
            }
            let definition = Arc::new(definition);
            *cell.definition.write() = definition.clone();
            self.near.forget(name);
            cell.wake();
            saved.wait().await?;
            Ok(definition)
        };
        self.core.audited("alter queue", name, act).await
    }

    /// Deletes a queue, and its topic with all messages if the queue owns it. The deletion is durable when this
    /// returns.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let act = async {
            check_users(name)?;
            self.delete_any(name).await
        };
        self.core.audited("delete queue", name, act).await
    }

    pub(crate) async fn delete_any(&self, name: &str) -> Result<()> {
        let _control = self.hold().await?;
        let removed = self.by_name.write().remove(name);
        let cell = removed.ok_or_else(|| self.no_such_queue(name))?;
        cell.is_deleted.store(true, Ordering::Release);
        self.near.forget(name);
        cell.wake_all();
        let definition = cell.definition();
        let mut saved = Vec::new();
        if let Some(topic) = self.core.existing_topic(definition.topic.as_str()) {
            for partition in topic.partitions() {
                let Some(view) = partition.detach_view(cell.id).filter(|view| view.is_saved) else {
                    continue;
                };
                saved.push(self.forget_view(partition.id, &view)?);
                self.drop_consumed(&topic, partition, []);
            }
        }
        let gone = QueueRecord::Queue { name: definition.name.clone(), definition: None };
        saved.push(self.append_named(definition.name.as_str(), gone)?);
        // Before anything is waited for, so that a caller that stops waiting leaves nothing undone.
        let topic_gone = match definition.owns_topic.then(|| self.core.remove(definition.topic.as_str())) {
            Some(Err(error)) if error.kind != ErrorKind::NotFound => return Err(error),
            Some(Ok(deleted)) => Some(deleted),
            _ => None,
        };
        for one in saved {
            one.wait().await?;
        }
        match topic_gone {
            Some(deleted) => deleted.wait().await,
            None => Ok(()),
        }
    }

    /// Returns the lock that is held during a change of queues, of documents, or of the partitions of a topic with
    /// queues. They are restored as long as it is held.
    pub(crate) async fn hold(&self) -> Result<OwnedMutexGuard<()>> {
        loop {
            self.restored().await?;
            let control = self.control.clone().lock_owned().await;
            if self.has_restored() {
                return Ok(control);
            }
        }
    }

    /// Checks that the queues of a topic can have `partitions` partitions: that does not break their deduplication, and
    /// there is room for them. The caller holds `control`.
    pub(crate) fn check_growth(&self, topic: &Topic, partitions: u32) -> Result<()> {
        let mut more = 0;
        for cell in self.by_name.read().values().filter(|cell| cell.is_over(&topic.name)) {
            check_dedup(&cell.definition(), partitions)?;
            more += partitions.saturating_sub(topic.settings.partitions) as usize;
        }
        self.check_room(more)
    }

    /// Checks that queues can read this many more partitions. The caller holds `control`.
    fn check_room(&self, partitions: usize) -> Result<()> {
        if self.views.load(Ordering::Relaxed).saturating_add(partitions) <= QUEUE_PARTITIONS_MAX {
            return Ok(());
        }
        Err(Error::busy(format!(
            "limit of partitions of all queues reached ({QUEUE_PARTITIONS_MAX}; each queue counts all those of its \
             topic): delete a queue, or use topics with fewer partitions"
        )))
    }

    /// Attaches the queues over a topic to its new partitions, which they read from the first record on.
    pub(crate) fn grow(&self, topic: &Topic, had: usize) {
        let over = |cell: &&Arc<QueueCell>| cell.topic_id == topic.id;
        for cell in self.by_name.read().values().filter(over) {
            for partition in &topic.partitions()[had..] {
                let queue = Queue::new(cell.definition().settings.clone(), 0, 0, is_saved(topic));
                partition.attach_view(QueueView::new(cell.clone(), queue, is_saved(topic)));
            }
        }
    }

    fn forget_view(&self, partition: PartitionId, view: &QueueView) -> Result<Commit> {
        let queue = view.cell.id;
        let entry = |offset| QueueRecord::Entry { queue, partition, offset, entry: None };
        let cursor = QueueRecord::Cursor { queue, partition, cursor: None };
        let records = view.queue.offsets().map(entry).chain([cursor]);
        self.append_records(&view.cell, partition, records, &mut Wakes::default())
    }

    pub async fn get(&self, name: &str) -> Result<Arc<QueueDefinition>> {
        check_users(name)?;
        let found = self.table().await?.get(name).map(|cell| cell.definition());
        found.ok_or_else(|| self.no_such_queue(name))
    }

    /// Returns the queues whose names begin with `prefix` and follow `after`, in the order of their names; the second
    /// value is `true` if they are the last.
    pub async fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Result<(Vec<Arc<QueueDefinition>>, bool)> {
        let by_name = self.table().await?;
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let with_prefix = by_name.range::<str, _>((from, Bound::Unbounded));
        let mut meant = with_prefix
            .take_while(|(name, _)| name.as_str().starts_with(prefix))
            .filter(|(name, _)| !name.is_internal() && is_shown(name.as_str()));
        let page = meant.by_ref().take(max).map(|(_, cell)| cell.definition()).collect();
        Ok((page, meant.next().is_none()))
    }

    /// Returns up to `count_max` names of queues from a name on, in their order, so that a long list can be made in
    /// slices.
    pub async fn names_from(&self, from: Bound<&str>, count_max: usize) -> Result<Vec<String>> {
        let by_name = self.table().await?;
        let names = by_name.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| name);
        Ok(names.filter(|name| !name.is_internal()).take(count_max).map(|name| name.as_str().to_owned()).collect())
    }

    /// Returns the queues over a topic, in the order of their names.
    pub async fn over(&self, topic: &str) -> Result<Vec<Arc<QueueDefinition>>> {
        let by_name = self.table().await?;
        let over = by_name.iter().filter(|(name, cell)| cell.topic.as_str() == topic && !name.is_internal());
        Ok(over.map(|(_, cell)| cell.definition()).collect())
    }

    /// Returns the queues of share groups, each with its group.
    pub(crate) async fn of_share_groups(&self) -> Result<Vec<(GroupName, Arc<QueueDefinition>)>> {
        let by_name = self.table().await?;
        let of_group = |(name, cell): (&QueueName, &Arc<QueueCell>)| Some((name.share_group()?, cell.definition()));
        Ok(by_name.iter().filter_map(of_group).collect())
    }

    /// Returns `true` if a queue exists and its topic was not replaced by another one of the same name.
    pub(crate) async fn has(&self, name: &QueueName) -> Result<bool> {
        let (cell, topic) = match self.any_cell(name.as_str()).await {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        Ok(topic.partitions().first().is_some_and(|partition| partition.with_view(cell.id, |_, _| ()).is_ok()))
    }

    fn save_definition(&self, definition: &QueueDefinition) -> Result<Commit> {
        let name = definition.name.clone();
        let record = QueueRecord::Queue { name, definition: Some(Box::new(definition.clone())) };
        self.append_named(definition.name.as_str(), record)
    }

    /// Appends records about one partition of a queue, in their order.
    pub(super) fn append_records(
        &self,
        cell: &QueueCell,
        partition: PartitionId,
        records: impl IntoIterator<Item = QueueRecord>,
        wakes: &mut Wakes,
    ) -> Result<Commit> {
        let key = records_key(cell.id, partition);
        QUEUES
            .append(&self.core, self.core.shards().home(cell.topic_id, partition, &key), records, wakes)
            .map(|appended| appended.commit)
    }

    /// Appends a record about something with a name: a queue as a whole, or a document.
    pub(crate) fn append_named(&self, name: &str, record: QueueRecord) -> Result<Commit> {
        let home = self.core.shards().home_of_name(name.as_bytes());
        QUEUES.append(&self.core, home, [record], &mut Wakes::default()).map(|appended| appended.commit)
    }

    /// Returns the commit of all records written so far about a partition of a queue.
    pub(super) fn settled_records(&self, cell: &QueueCell, partition: PartitionId) -> Result<Commit> {
        let key = records_key(cell.id, partition);
        QUEUES.settled(&self.core, self.core.shards().home(cell.topic_id, partition, &key))
    }

    /// Sets the key of receipts. A broker without queues needs none.
    pub(super) async fn set_receipt_key(&self) -> Result<()> {
        let key = &self.receipt_key;
        key.get_or_try_init(|| self.make_receipt_key()).await.map(drop)
    }

    async fn make_receipt_key(&self) -> Result<ReceiptKey> {
        let (kind, name) = RECEIPT_KEY;
        if let Some(bytes) = self.read_document(kind, name) {
            return Ok(ReceiptKey::new(&bytes));
        }
        let mut fresh = vec![0; KEY_BYTES];
        rand::fill(&mut fresh).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot get random numbers from the system: {error}"))
        })?;
        // A broker without a disk has no receipts from before the restart.
        if self.core.store().is_some() {
            self.write_document(kind, name, Some(fresh.clone().into())).await?;
        }
        Ok(ReceiptKey::new(&fresh))
    }

    /// Returns the queue that owns a topic, if the queues have been restored. Both have the same name.
    pub(crate) fn owner_of(&self, topic: &Topic) -> Option<QueueName> {
        let by_name = self.by_name.read();
        let cell = by_name.get(topic.name.as_str())?;
        (cell.owns_topic && cell.topic_id == topic.id).then(|| cell.definition().name.clone())
    }

    /// Drops the records that all queues of a partition have acknowledged, including those of `done`, if the topic's
    /// settings require it.
    pub(super) fn drop_consumed(
        &self,
        topic: &Topic,
        partition: &PartitionCell,
        done: impl IntoIterator<Item = Offset>,
    ) {
        if topic.settings.drop_consumed {
            self.core.log_budget().release(partition.drop_consumed(done));
        }
    }
}

/// Returns the settings of a topic that a queue owns.
pub(super) fn own_topic(settings: &QueueSettings, storage: Storage) -> TopicSettings {
    let drops_oldest = settings.overflow == QueueOverflow::DropOldest;
    TopicSettings {
        partitions: 1,
        // If the queue drops its oldest messages, the topic enforces the byte limit by its retention.
        retention_bytes: if drops_oldest { settings.bytes_max } else { 0 },
        retention_ms: settings.retention_ms,
        storage,
        drop_consumed: true,
        own: Some(OwnSettings::ALL),
        ..TopicSettings::default()
    }
}

/// Returns the key that all records about one partition of a queue share.
fn records_key(queue: QueueId, partition: PartitionId) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&queue.to_be_bytes());
    key[8..].copy_from_slice(&partition.to_be_bytes());
    key
}

/// A queue that is being created. If the creation fails, all its views are detached on drop.
struct Birth<'a> {
    cell: &'a QueueCell,
    topic: &'a Topic,
    is_over: bool,
}

impl Drop for Birth<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.topic.partitions().iter().for_each(|partition| drop(partition.detach_view(self.cell.id)));
        }
    }
}

/// Refuses deduplication over the whole queue if the topic has several partitions: each knows only its own messages.
fn check_dedup(definition: &QueueDefinition, partitions: u32) -> Result<()> {
    if definition.settings.dedup == DedupRule::Queue && partitions > 1 {
        Err(Error::invalid(format!(
            "queue {} deduplicates over the whole queue (dedup = queue), which needs one partition: topic {} has more",
            definition.name, definition.topic
        )))
    } else {
        Ok(())
    }
}

/// Returns `true` if the state of a queue over this topic is persisted.
pub(super) fn is_saved(topic: &Topic) -> bool {
    topic.settings.storage != Storage::Memory && topic.stored_as.is_some()
}

fn exists_already(existing: &QueueDefinition, new: &NewQueue) -> Error {
    let mut differences = existing.settings.differences(&new.settings);
    let topic = new.topic.iter().filter(|topic| **topic != existing.topic);
    differences.extend(topic.map(|topic| format!("topic is {}, not {topic}", existing.topic)));
    let differences = differences.join("; ");
    let message = format!("queue {} already exists with other settings: {differences}", existing.name);
    Error::new(ErrorKind::AlreadyExists, message)
}

/// Renewal of queues whose topic was deleted and created again.
///
/// Such a queue begins again, with another id, over the topic that now has the name of the deleted one. If the topic is
/// created explicitly, the queue is renewed immediately. If it is created automatically, the queue is renewed on its
/// next use, and still receives all records published since the creation.
impl Queues {
    /// Renews a queue whose topic was deleted: it begins again over the topic that now has the name. The persisted
    /// state of the old queue is ignored, since it belongs to another queue id. The caller holds `control`.
    pub(super) async fn renew(&self, cell: Arc<QueueCell>, start: QueueStart) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        let topic = self.core.topic(cell.topic.as_str())?;
        if topic.id == cell.topic_id {
            return Ok((cell, topic));
        }
        let before = cell.definition();
        let definition = QueueDefinition {
            id: self.next_id(self.core.now_ms()),
            topic_id: topic.id,
            owns_topic: before.owns_topic && topic.settings.drop_consumed,
            ..(*before).clone()
        };
        let (renewed, saved) = self.begin(definition, &topic, start).await?;
        // Receivers that wait for messages of the deleted topic are notified of the deletion.
        cell.wake_all();
        saved.wait().await?;
        Ok((renewed, topic))
    }

    /// Returns a user's queue with the topic that has its topic's name now, and renews the queue if the topic is a new
    /// one.
    pub(super) async fn renewed(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        // The group decides where a share group begins.
        check_users(name)?;
        let _control = self.hold().await?;
        let found = self.by_name.read().get(name).cloned();
        let cell = found.ok_or_else(|| self.no_such_queue(name))?;
        self.renew(cell, QueueStart::Earliest).await
    }

    /// Renews the queues over a topic that was created again. They receive all of its records.
    pub(crate) async fn follow_topic(&self, topic: &Topic) {
        // A task that restores the queues later finds the topic, too.
        if self.has_restored()
            && !self.left_over(topic).is_empty()
            && let Ok(_control) = self.hold().await
        {
            self.renew_over(topic).await;
        }
    }

    /// Renews the queues over a topic that was created again. The caller holds `control`.
    pub(super) async fn renew_over(&self, topic: &Topic) {
        for cell in self.left_over(topic) {
            if let Err(error) = self.renew(cell.clone(), QueueStart::Earliest).await {
                // The next use of the queue tries again and returns the error.
                tracing::warn!(queue = %cell.definition().name, %error, "a queue cannot be over its new topic");
            }
        }
    }

    /// Returns the queues of users over a deleted topic of this name.
    fn left_over(&self, topic: &Topic) -> Vec<Arc<QueueCell>> {
        let is_left = |(name, cell): &(&QueueName, &Arc<QueueCell>)| {
            cell.topic == topic.name && cell.topic_id != topic.id && !name.is_internal()
        };
        self.by_name.read().iter().filter(is_left).map(|(_, cell)| cell.clone()).collect()
    }
}
