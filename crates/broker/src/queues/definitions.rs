//! Queues defined, changed, deleted and found again after a restart; and what doors define beside them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aws_lc_rs::rand;
use bytes::Bytes;
use engine::queue::{
    Cursor, DEDUP_WINDOW_MS, Dedup, DedupRule, Entry, QUEUES_TOPIC, Queue, QueueDefinition, QueueId, QueueName,
    QueueRecord, QueueSettings, header, header_of,
};
use engine::{Error, ErrorKind, Offset, PartitionId, Result, Storage, TopicName, TopicSettings, partitioner};

use super::receipt::{KEY_BYTES, ReceiptKey};
use super::status::view_needs_look;
use super::{DOCUMENT_BYTES_MAX, DOCUMENTS_MAX, NOTES_BYTES_MAX, QUEUES_MAX, QueueCell, QueueView, no_such_queue};
use crate::broker::Broker;
use crate::internal::Appended;
use crate::partition::PartitionCell;
use crate::publish::Wakes;
use crate::timers::now_ms;
use crate::topics::Topic;

/// The document that has the key of receipts.
const RECEIPT_KEY: (&str, &str) = ("broker", "receipt_key");
/// Bytes of a log that are looked through at a time.
const LOOK_BYTES: usize = 1 << 20;

/// Where a queue over a topic that is there begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueStart {
    #[default]
    Earliest,
    /// With what is published from now on.
    Live,
}

/// A queue to be.
#[derive(Clone, Debug)]
pub struct NewQueue {
    pub name: QueueName,
    /// Over a topic that is there; where none is said, the queue gets one of its own, with its name.
    pub topic: Option<TopicName>,
    pub start: QueueStart,
    /// Where its own topic is kept.
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

impl Broker {
    /// Creates a queue. One that is there already with the same settings is fine. It lasts when this is over.
    pub async fn create_queue(&self, new: NewQueue) -> Result<Arc<QueueDefinition>> {
        new.settings.validate()?;
        check_notes(&new.notes)?;
        self.restored_queues().await?;
        let queues = self.queues_there();
        let _control = queues.control.lock().await;
        if let Some(there) = queues.by_name.read().get(&new.name).map(|cell| cell.definition()) {
            let is_same =
                there.settings == new.settings && new.topic.as_ref().is_none_or(|topic| *topic == there.topic);
            return if is_same { Ok(there) } else { Err(is_there(&new.name)) };
        }
        if queues.by_name.read().len() >= QUEUES_MAX {
            return Err(Error::busy(format!("there are {QUEUES_MAX} queues, which is all there may be")));
        }
        let (topic, owns_topic) = self.topic_for(&new).await?;
        let now = now_ms();
        let definition = QueueDefinition {
            id: self.next_volatile_number() ^ (now << 20),
            name: new.name,
            topic: topic.name.clone(),
            owns_topic,
            created_ms: now,
            altered_ms: now,
            settings: new.settings,
            notes: new.notes,
        };
        let saved = self.save_definition(&definition)?;
        let cell = QueueCell::new(definition);
        for partition in topic.partitions() {
            let extent = partition.extent();
            let start = if new.start == QueueStart::Live && !owns_topic { extent.end } else { extent.start };
            let queue = Queue::new(cell.definition().settings.clone(), start, extent.end, is_saved(&topic));
            partition.attach_view(QueueView::new(cell.clone(), queue, is_saved(&topic)));
            if view_needs_look(&cell.definition()) {
                self.look_through(&cell, partition).await?;
            }
        }
        let definition = cell.definition();
        queues.by_name.write().insert(definition.name.clone(), cell);
        saved.lasts().await?;
        Ok(definition)
    }

    /// The topic of a queue to be, and whether that is its own.
    async fn topic_for(&self, new: &NewQueue) -> Result<(Arc<Topic>, bool)> {
        if let Some(name) = &new.topic {
            return Ok((self.topic(name.as_str())?, false));
        }
        if let Ok(topic) = self.topic(new.name.as_str()) {
            // What it keeps, and for how long, is for whoever created it to say.
            return Ok((topic, false));
        }
        let settings = TopicSettings {
            partitions: 1,
            retention_bytes: 0,
            retention_ms: new.settings.retention_ms,
            storage: new.storage,
            drop_consumed: true,
            ..TopicSettings::default()
        };
        self.create_topic(new.name.as_str(), settings).await?;
        Ok((self.topic(new.name.as_str())?, true))
    }

    /// Changes what is said about a queue. The order of its messages stays. It lasts when this is over.
    pub async fn alter_queue(
        &self,
        name: &str,
        change: impl FnOnce(&mut QueueDefinition) -> Result<()>,
    ) -> Result<Arc<QueueDefinition>> {
        self.restored_queues().await?;
        let queues = self.queues_there();
        let _control = queues.control.lock().await;
        let cell = queues.by_name.read().get(name).cloned().ok_or_else(|| no_such_queue(name))?;
        let before = cell.definition();
        let mut definition = (*before).clone();
        change(&mut definition)?;
        definition.settings.validate()?;
        check_notes(&definition.notes)?;
        if definition.settings.order != before.settings.order {
            return Err(Error::invalid("the order of a queue is what it was created with"));
        }
        if definition.settings.filter != before.settings.filter {
            return Err(Error::invalid("the filter of a queue is what it was created with"));
        }
        definition.altered_ms = now_ms();
        if before.owns_topic && before.settings.retention_ms != definition.settings.retention_ms {
            let retention_ms = definition.settings.retention_ms;
            let change =
                engine::SettingsChange { retention_ms: Some(retention_ms), ..engine::SettingsChange::default() };
            self.alter_topic(definition.topic.as_str(), change).await?;
        }
        let saved = self.save_definition(&definition)?;
        if let Ok(topic) = self.topic(definition.topic.as_str()) {
            for partition in topic.partitions() {
                partition.with_view(cell.id, |view, _| view.queue.alter(definition.settings.clone()))?;
            }
        }
        let definition = Arc::new(definition);
        *cell.definition.write() = definition.clone();
        cell.wake();
        saved.lasts().await?;
        Ok(definition)
    }

    /// Deletes a queue, with its messages if the topic is its own. It lasts when this is over.
    pub async fn delete_queue(&self, name: &str) -> Result<()> {
        self.restored_queues().await?;
        let queues = self.queues_there();
        let _control = queues.control.lock().await;
        let cell = queues.by_name.write().remove(name).ok_or_else(|| no_such_queue(name))?;
        cell.is_deleted.store(true, Ordering::Release);
        cell.wake_all();
        let definition = cell.definition();
        let mut saved = Vec::new();
        if let Ok(topic) = self.topic(definition.topic.as_str()) {
            for partition in topic.partitions() {
                let Some(view) = partition.detach_view(cell.id).filter(|view| view.is_saved) else {
                    continue;
                };
                saved.push(self.forget_view(cell.id, partition.id, &view)?);
                self.drop_consumed(&topic, partition, &[]);
            }
        }
        let gone = QueueRecord::Queue { name: definition.name.clone(), definition: None };
        let key = definition.name.as_str().as_bytes();
        saved.push(self.append_queues(key, [gone], &mut Wakes::default())?);
        for one in saved {
            one.lasts().await?;
        }
        if definition.owns_topic {
            match self.delete_topic(definition.topic.as_str()).await {
                Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Queues over a topic read its new partitions, too, from the first record on.
    pub(crate) fn grow_queues(&self, topic: &Topic, had: usize) {
        let over = |cell: &&Arc<QueueCell>| cell.definition().topic == topic.name;
        for cell in self.queues_there().by_name.read().values().filter(over) {
            for partition in &topic.partitions()[had..] {
                let queue = Queue::new(cell.definition().settings.clone(), 0, 0, is_saved(topic));
                partition.attach_view(QueueView::new(cell.clone(), queue, is_saved(topic)));
            }
        }
    }

    fn forget_view(&self, queue: QueueId, partition: PartitionId, view: &QueueView) -> Result<Appended> {
        let entry = |offset| QueueRecord::Entry { queue, partition, offset, entry: None };
        let cursor = QueueRecord::Cursor { queue, partition, cursor: None };
        let records = view.queue.offsets().map(entry).chain([cursor]);
        self.append_queue_records(queue, partition, records, &mut Wakes::default())
    }

    pub async fn queue(&self, name: &str) -> Result<Arc<QueueDefinition>> {
        self.restored_queues().await?;
        let found = self.queues_there().by_name.read().get(name).map(|cell| cell.definition());
        found.ok_or_else(|| no_such_queue(name))
    }

    /// Queues whose names begin so, in the order of their names, those after one; and whether they are the last.
    pub async fn queues(&self, prefix: &str, after: &str, max: usize) -> Result<(Vec<Arc<QueueDefinition>>, bool)> {
        self.restored_queues().await?;
        let by_name = self.queues_there().by_name.read();
        let is_meant = |name: &&QueueName| name.as_str().starts_with(prefix) && name.as_str() > after;
        let mut names: Vec<&QueueName> = by_name.keys().filter(is_meant).collect();
        names.sort_unstable();
        let is_last = names.len() <= max;
        Ok((names.into_iter().take(max).map(|name| by_name[name].definition()).collect(), is_last))
    }

    /// Queues over a topic, in the order of their names.
    pub async fn queues_over(&self, topic: &str) -> Result<Vec<Arc<QueueDefinition>>> {
        self.restored_queues().await?;
        let by_name = self.queues_there().by_name.read();
        let mut over: Vec<_> = by_name.values().map(|cell| cell.definition()).collect();
        over.retain(|definition| definition.topic.as_str() == topic);
        over.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(over)
    }

    /// Keeps something that a door defines; without a value it is gone. It lasts when this is over.
    pub async fn put_document(&self, kind: &str, name: &str, value: Option<Bytes>) -> Result<()> {
        self.restored_queues().await?;
        let _control = self.queues_there().control.lock().await;
        self.write_document(kind, name, value).await
    }

    pub(super) async fn write_document(&self, kind: &str, name: &str, value: Option<Bytes>) -> Result<()> {
        let documents = &self.queues_there().documents;
        let key = (kind.to_owned(), name.to_owned());
        if let Some(value) = &value {
            if value.len() > DOCUMENT_BYTES_MAX {
                return Err(Error::too_large(format!("a definition has at most {DOCUMENT_BYTES_MAX} bytes")));
            }
            let there = documents.read();
            if there.len() >= DOCUMENTS_MAX && !there.contains_key(&key) {
                return Err(Error::busy(format!("there are {DOCUMENTS_MAX} definitions, which is all there may be")));
            }
        }
        let document = value.as_ref().map(|value| value.to_vec());
        let record = QueueRecord::Document { kind: kind.into(), name: name.into(), value: document };
        let saved = self.append_queues(name.as_bytes(), [record], &mut Wakes::default())?;
        saved.lasts().await?;
        match value {
            Some(value) => documents.write().insert(key, value),
            None => documents.write().remove(&key),
        };
        Ok(())
    }

    pub async fn document(&self, kind: &str, name: &str) -> Result<Option<Bytes>> {
        self.restored_queues().await?;
        Ok(self.read_document(kind, name))
    }

    pub(super) fn read_document(&self, kind: &str, name: &str) -> Option<Bytes> {
        self.queues_there().documents.read().get(&(kind.to_owned(), name.to_owned())).cloned()
    }

    /// Documents of a kind whose names begin so, in the order of their names.
    pub async fn documents(&self, kind: &str, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.restored_queues().await?;
        Ok(self.read_documents(kind, prefix))
    }

    pub(super) fn read_documents(&self, kind: &str, prefix: &str) -> Vec<(String, Bytes)> {
        let documents = self.queues_there().documents.read();
        let from = documents.range((kind.to_owned(), prefix.to_owned())..);
        let of = from.take_while(|((of, name), _)| of == kind && name.starts_with(prefix));
        of.map(|((_, name), value)| (name.clone(), value.clone())).collect()
    }

    fn save_definition(&self, definition: &QueueDefinition) -> Result<Appended> {
        let name = definition.name.clone();
        let key = name.as_str().as_bytes().to_vec();
        let record = QueueRecord::Queue { name, definition: Some(Box::new(definition.clone())) };
        self.append_queues(&key, [record], &mut Wakes::default())
    }

    /// Records about one partition of a queue, in their order.
    pub(super) fn append_queue_records(
        &self,
        queue: QueueId,
        partition: PartitionId,
        records: impl IntoIterator<Item = QueueRecord>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&queue.to_be_bytes());
        key[8..].copy_from_slice(&partition.to_be_bytes());
        self.append_queues(&key, records, wakes)
    }

    fn append_queues(
        &self,
        key: &[u8],
        records: impl IntoIterator<Item = QueueRecord>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let topic = self.internal_topic(QUEUES_TOPIC)?;
        let partition = partitioner::for_key(key, topic.partitions().len() as u32);
        let records = records.into_iter().map(|record| (record.key(), record.value()));
        self.append_internal(&topic, partition, records, wakes)
    }

    /// Returns once all queues are there that were there before the start.
    pub(crate) async fn restored_queues(&self) -> Result<()> {
        self.queues_there().is_restored.get_or_try_init(|| self.restore_queues()).await.map(|_| ())
    }

    /// Whether it is known which queues there are.
    pub(crate) fn has_restored_queues(&self) -> bool {
        self.queues_there().is_restored.get().is_some()
    }

    async fn restore_queues(&self) -> Result<()> {
        let mut saved = Saved::default();
        if let Ok(topic) = self.topic(QUEUES_TOPIC) {
            let each = |key: &[u8], value: Option<&[u8]>| {
                saved.apply(QueueRecord::decode(key, value)?);
                Ok(())
            };
            self.read_internal(&topic, each).await?;
        }
        let queues = self.queues_there();
        *queues.documents.write() = saved.documents;
        self.set_receipt_key().await?;
        self.hold_snapshots()?;
        for definition in saved.definitions.into_values() {
            let entries = saved.entries.remove(&definition.id).unwrap_or_default();
            let cell = QueueCell::new(definition);
            let definition = cell.definition();
            // A topic that is gone leaves its queues behind: they say so themselves.
            if let Ok(topic) = self.topic(definition.topic.as_str()) {
                for partition in topic.partitions() {
                    self.resume_view(&cell, &topic, partition, entries.get(&partition.id)).await?;
                }
            }
            queues.by_name.write().insert(definition.name.clone(), cell);
        }
        Ok(())
    }

    async fn resume_view(
        &self,
        cell: &Arc<QueueCell>,
        topic: &Topic,
        partition: &Arc<PartitionCell>,
        saved: Option<&SavedPartition>,
    ) -> Result<()> {
        let definition = cell.definition();
        let extent = partition.extent();
        let mut queue = Queue::new(definition.settings.clone(), extent.start, extent.end, is_saved(topic));
        let cursor = saved.and_then(|saved| saved.cursor);
        for (offset, entry) in saved.iter().flat_map(|saved| &saved.entries) {
            queue.restore(*offset, Some(*entry));
        }
        queue.restore_next(cursor.map_or(extent.start, |cursor| cursor.next));
        queue.resume(extent.start, extent.end);
        let has_delays = cursor.is_some_and(|cursor| cursor.has_delays);
        let mut view = QueueView::new(cell.clone(), queue, is_saved(topic));
        view.has_delays = has_delays;
        partition.attach_view(view);
        if has_delays || view_needs_look(&definition) {
            self.look_through(cell, partition).await?;
        }
        if definition.settings.dedup != DedupRule::Off {
            self.restore_dedup(&definition, partition).await?;
        }
        Ok(())
    }

    /// Finds what is delayed, or for nobody, among the messages that nobody was given yet.
    pub(super) async fn look_through(&self, cell: &QueueCell, partition: &Arc<PartitionCell>) -> Result<()> {
        let (mut at, end) = partition.with_view(cell.id, |view, _| (view.queue.next(), view.queue.end()))?;
        while at < end {
            let batches = match partition.read(at, LOOK_BYTES).await {
                Err(error) if error.kind == ErrorKind::OutOfRange => return Ok(()),
                read => read?.1,
            };
            let Some(last) = batches.last() else {
                return Ok(());
            };
            at = last.next_offset();
            let now = now_ms();
            partition.with_view(cell.id, |view, _| batches.iter().for_each(|batch| view.look_through(batch, now)))?;
        }
        Ok(())
    }

    /// Finds the messages that were sent within the window, and what they are known by.
    async fn restore_dedup(&self, definition: &QueueDefinition, partition: &Arc<PartitionCell>) -> Result<()> {
        let now = now_ms();
        let since = now.saturating_sub(DEDUP_WINDOW_MS) as i64;
        let searched = partition.clone();
        let found = tokio::task::spawn_blocking(move || searched.offset_for_time(since)).await;
        let mut at = found.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a time could not be looked for: {error}")))
        })?;
        let mut dedup = Dedup::default();
        loop {
            let batches = match partition.read(at, LOOK_BYTES).await {
                Err(error) if error.kind == ErrorKind::OutOfRange => break,
                read => read?.1,
            };
            let Some(last) = batches.last() else {
                break;
            };
            at = last.next_offset();
            for batch in &batches {
                for view in &batch.records()? {
                    let view = view?;
                    if let Some(id) = header_of(&view, header::DEDUP) {
                        let scope = match definition.settings.dedup {
                            DedupRule::Group => view.key.unwrap_or_default(),
                            DedupRule::Off | DedupRule::Queue => &[],
                        };
                        dedup.insert(Dedup::id(scope, id.as_bytes()), view.offset, view.timestamp_ms.max(0) as u64);
                    }
                }
            }
        }
        partition.restore_dedup(dedup);
        Ok(())
    }

    async fn set_receipt_key(&self) -> Result<()> {
        let queues = self.queues_there();
        let (kind, name) = RECEIPT_KEY;
        let bytes = match self.read_document(kind, name) {
            Some(bytes) => bytes,
            None => {
                let mut fresh = vec![0; KEY_BYTES];
                rand::fill(&mut fresh).map_err(|error| {
                    Error::new(ErrorKind::Internal, format!("the system gives no random numbers: {error}"))
                })?;
                let fresh = Bytes::from(fresh);
                // A broker without a disk has no receipts of before.
                if self.store().is_some() {
                    self.write_document(kind, name, Some(fresh.clone())).await?;
                }
                fresh
            }
        };
        // Nobody else sets it: this is done once.
        queues.receipt_key.set(ReceiptKey::new(&bytes)).unwrap_or_default();
        Ok(())
    }

    /// Lets go of what all queues of a partition are done with, these records among it, where its topic is set so.
    pub(super) fn drop_consumed(&self, topic: &Topic, partition: &Arc<PartitionCell>, done: &[Offset]) {
        if topic.settings.drop_consumed {
            self.log_budget().release(partition.drop_consumed(done, false));
        }
    }
}

/// Whether what happens to a queue over this topic is written down.
fn is_saved(topic: &Topic) -> bool {
    topic.settings.storage != Storage::Memory && topic.stored_as.is_some()
}

fn is_there(name: &QueueName) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("queue {name} is there already, with other settings"))
}

fn check_notes(notes: &BTreeMap<String, String>) -> Result<()> {
    let bytes: usize = notes.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    match bytes <= NOTES_BYTES_MAX {
        true => Ok(()),
        false => Err(Error::too_large(format!("what is kept with a queue has at most {NOTES_BYTES_MAX} bytes"))),
    }
}

/// What the topic says, as its newest records have it.
#[derive(Default)]
struct Saved {
    definitions: HashMap<QueueName, QueueDefinition>,
    entries: HashMap<QueueId, HashMap<PartitionId, SavedPartition>>,
    documents: BTreeMap<(String, String), Bytes>,
}

#[derive(Default)]
struct SavedPartition {
    entries: BTreeMap<Offset, Entry>,
    cursor: Option<Cursor>,
}

impl Saved {
    fn apply(&mut self, record: QueueRecord) {
        match record {
            QueueRecord::Queue { name, definition: Some(definition) } => {
                self.definitions.insert(name, *definition);
            }
            QueueRecord::Queue { name, definition: None } => {
                self.definitions.remove(&name);
            }
            QueueRecord::Entry { queue, partition, offset, entry } => {
                let entries = &mut self.entries.entry(queue).or_default().entry(partition).or_default().entries;
                match entry {
                    Some(entry) => entries.insert(offset, entry),
                    None => entries.remove(&offset),
                };
            }
            QueueRecord::Cursor { queue, partition, cursor } => {
                self.entries.entry(queue).or_default().entry(partition).or_default().cursor = cursor;
            }
            QueueRecord::Document { kind, name, value: Some(value) } => {
                self.documents.insert((kind, name), value.into());
            }
            QueueRecord::Document { kind, name, value: None } => {
                self.documents.remove(&(kind, name));
            }
        }
    }
}
