//! Restore of queues and documents from their topic, after a start and after they were forgotten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use engine::queue::{
    Cursor, DEDUP_WINDOW_MS, Dedup, DedupRule, Entry, Queue, QueueDefinition, QueueId, QueueName, QueueRecord, header,
    header_of,
};
use engine::{Error, ErrorKind, Offset, PartitionId, RecordBatch, Result, Storage};

use super::QUEUES;
use super::acquire::read;
use super::definitions::{is_saved, own_topic};
use super::document_table::DocumentTable;
use crate::log::Log;
use crate::partition::PartitionCell;
use crate::queues::Queues;
use crate::topic::Topic;
use crate::view::{Examination, QueueCell, QueueView, SLICE_RECORDS};
use crate::wakes::Wakes;

/// Bytes of a log that are examined at a time.
const LOOK_BYTES: usize = 1 << 20;

impl Queues {
    /// Returns once all queues that existed before the restart are restored.
    pub(crate) async fn restored(&self) -> Result<()> {
        self.restored.ensure(|| self.restore()).await
    }

    /// Returns `true` if the queues have been restored, so that it is known which queues exist.
    pub(crate) fn has_restored(&self) -> bool {
        self.restored.is_done()
    }

    /// Returns `true` if it is known which messages the queues have not acknowledged. Without the topic of queues none
    /// exist.
    pub(crate) fn are_known(&self) -> bool {
        self.has_restored() || !QUEUES.exists(&self.core)
    }

    /// Forgets all queues and documents, as a restart does: the next call restores them from their log. Until then,
    /// their messages are kept. Queues over topics in memory begin again with the first record.
    pub(crate) async fn forget(&self) {
        let forgetting = self.restored.forgetting().await;
        let _control = self.control.lock().await;
        let cells = {
            let mut by_name = self.by_name.write();
            forgetting.begin();
            std::mem::take(&mut *by_name).all
        };
        for (name, cell) in cells {
            self.near.forget(name.as_str());
            if let Some(topic) = self.core.existing_topic(cell.topic.as_str()).filter(|topic| topic.id == cell.topic_id)
            {
                topic.partitions().iter().for_each(|partition| partition.forget_view(cell.id));
            }
            cell.wake_all();
        }
        *self.documents.write() = DocumentTable::default();
    }

    async fn restore(&self) -> Result<()> {
        let mut saved = Saved::default();
        let each = |record, partition| {
            saved.apply(record, partition);
            Ok(())
        };
        QUEUES.fold(&self.core, each).await?;
        *self.documents.write() = saved.documents.into();
        if !saved.definitions.is_empty() {
            self.set_receipt_key().await?;
        }
        self.hold_snapshots()?;
        let mut left = Vec::new();
        for mut definition in saved.definitions.into_values() {
            if definition.topic.is_internal() {
                let queue = &definition.name;
                let topic = &definition.topic;
                tracing::warn!(%queue, %topic, "ignored a queue over an internal topic");
                continue;
            }
            let topic = self.topic_again(&definition);
            if let Ok(topic) = &topic
                && topic.stored_as.is_none()
            {
                // A topic in memory has a new id at each start.
                definition.topic_id = topic.id;
            }
            let cell = QueueCell::new(definition, self.core.settings().clock, &self.views);
            match topic {
                Ok(topic) if topic.id == cell.topic_id => {
                    let entries = is_saved(&topic).then(|| saved.entries.remove(&cell.id)).flatten();
                    for partition in topic.partitions() {
                        let saved = entries.as_ref().and_then(|of_queue| of_queue.get(&partition.id));
                        self.resume_view(&cell, &topic, partition, saved).await?;
                    }
                }
                Ok(topic) => left.push(topic),
                // The queues of a deleted topic remain, and their calls report it.
                Err(_) => {}
            }
            self.by_name.write().insert(cell.definition().name.clone(), cell);
        }
        self.forget_left(&saved.entries)?;
        // No other task can hold `control` yet.
        for topic in left {
            self.renew_over(&topic).await;
        }
        Ok(())
    }

    /// Returns the topic of a queue that existed before the restart. A topic in memory that the queue owns is created
    /// again, empty. Any other topic in memory is a new one at each start.
    fn topic_again(&self, definition: &QueueDefinition) -> Result<Arc<Topic>> {
        match self.core.topic(definition.topic.as_str()) {
            Err(_) if definition.owns_topic => {
                let settings = own_topic(&definition.settings, Storage::Memory);
                Ok(self.core.create(definition.topic.clone(), self.core.resolve(settings)?)?.0)
            }
            found => found,
        }
    }

    /// Deletes the records of queues and topics that no longer exist.
    fn forget_left(&self, left: &HashMap<QueueId, HashMap<PartitionId, SavedPartition>>) -> Result<()> {
        for (queue, partitions) in left {
            for (partition, saved) in partitions {
                let entry = |offset: &Offset| QueueRecord::Entry {
                    queue: *queue,
                    partition: *partition,
                    offset: *offset,
                    entry: None,
                };
                let cursor =
                    saved.cursor.map(|_| QueueRecord::Cursor { queue: *queue, partition: *partition, cursor: None });
                let mut records = saved.entries.keys().map(entry).chain(cursor).peekable();
                if records.peek().is_some() {
                    drop(QUEUES.append_to(&self.core, saved.kept_in, records, &mut Wakes::default())?);
                }
            }
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
        let mut view = QueueView::new(cell.clone(), queue, is_saved(topic));
        view.has_delays = cursor.is_some_and(|cursor| cursor.has_delays);
        view.saved_next = cursor.map(|cursor| cursor.next);
        view.dedup_from = cursor.map_or(0, |cursor| cursor.dedup_from);
        partition.attach_view(view);
        // A partition that cannot be read does not prevent the others from being served. Receivers try again.
        if let Err(error) = self.look_through(cell, partition).await {
            tracing::warn!(queue = %definition.name, partition = partition.id, %error, "messages cannot be read");
        }
        if definition.settings.dedup != DedupRule::Off
            && let Err(error) =
                self.restore_dedup(&definition, partition, cursor.map_or(0, |cursor| cursor.dedup_from)).await
        {
            let queue = &definition.name;
            let partition = partition.id;
            tracing::warn!(%queue, partition, %error, "the ids of recently sent messages cannot be read");
        }
        Ok(())
    }

    /// Examines the messages that were never delivered, to find those that are delayed or are no messages of this
    /// queue.
    pub(super) async fn look_through(&self, cell: &QueueCell, partition: &Arc<PartitionCell>) -> Result<()> {
        let unseen = |view: &mut QueueView, log: &Log| Some((view.unseen(log)?, view.isolation(), view.rules()));
        let mut examined_records = 0;
        'look: while let Some((at, isolation, rules)) = partition.with_view(cell.id, unseen)? {
            let (end, batches, aborted) = match read(partition, at, LOOK_BYTES, isolation).await {
                // Retention removed it in the meantime.
                Err(error) if error.kind == ErrorKind::OutOfRange => continue,
                read => read?,
            };
            let now = self.core.now_ms();
            let until = batches.last().map_or(end, RecordBatch::next_offset);
            let mut from = at;
            for batch in &batches {
                let begin = || Examination::new(&rules, batch, from, aborted.has(batch), now);
                let mut examination = self.core.answers().work(batch.len(), begin).await;
                while let Some(examined) = examination.next_slice() {
                    examined_records += examined.until - from;
                    from = examined.until;
                    if !partition.with_view(cell.id, |view, _| view.apply(&examined))? {
                        continue 'look;
                    }
                    if examined_records >= SLICE_RECORDS as u64 {
                        examined_records = 0;
                        tokio::task::yield_now().await;
                    }
                }
            }
            partition.with_view(cell.id, |view, _| view.end_look(from, until))?;
        }
        Ok(())
    }

    /// Finds the messages that were sent within the deduplication window, and their ids.
    async fn restore_dedup(
        &self,
        definition: &QueueDefinition,
        partition: &Arc<PartitionCell>,
        from: Offset,
    ) -> Result<()> {
        let now = self.core.now_ms();
        let since = now.saturating_sub(DEDUP_WINDOW_MS) as i64;
        let searched = partition.clone();
        let found = tokio::task::spawn_blocking(move || searched.offset_for_time(since)).await;
        let mut at = found.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a time could not be looked up: {error}")))
        })?;
        at = at.max(from);
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
                // A batch that cannot be decoded, as a publisher may send it, was not sent to a queue.
                let Ok(records) = batch.records() else {
                    continue;
                };
                for view in records.iter().map_while(Result::ok) {
                    if let Some(id) = header_of(&view, header::DEDUP) {
                        let scope = match definition.settings.dedup {
                            DedupRule::Group => view.key.unwrap_or_default(),
                            DedupRule::Off | DedupRule::Queue => &[],
                        };
                        let sent_ms = (view.timestamp_ms.max(0) as u64).min(now);
                        dedup.insert(Dedup::id(scope, id.as_bytes()), view.offset, sent_ms);
                    }
                }
            }
        }
        partition.restore_dedup(dedup);
        Ok(())
    }
}

/// Contents of the topic of queues, by its newest records.
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
    /// Internal partition that has the records.
    kept_in: PartitionId,
}

impl Saved {
    fn apply(&mut self, record: QueueRecord, kept_in: PartitionId) {
        match record {
            QueueRecord::Queue { name, definition: Some(definition) } => {
                self.definitions.insert(name, *definition);
            }
            QueueRecord::Queue { name, definition: None } => {
                self.definitions.remove(&name);
            }
            QueueRecord::Entry { queue, partition, offset, entry } => {
                let saved = self.entries.entry(queue).or_default().entry(partition).or_default();
                saved.kept_in = kept_in;
                match entry {
                    Some(entry) => saved.entries.insert(offset, entry),
                    None => saved.entries.remove(&offset),
                };
            }
            QueueRecord::Cursor { queue, partition, cursor } => {
                let saved = self.entries.entry(queue).or_default().entry(partition).or_default();
                saved.kept_in = kept_in;
                saved.cursor = cursor;
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
