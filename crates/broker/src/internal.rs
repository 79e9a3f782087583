//! The broker's internal topics: its own state is appended to them as records and restored from them on startup.

use std::sync::Arc;

use engine::limits::BATCH_BYTES_MAX;
use engine::{
    BatchBuilder, Error, Offset, PartitionId, RecordBatch, RecordView, Result, Storage, TopicName, TopicSettings,
};

use crate::broker::Broker;
use crate::partition::Commit;
use crate::publish::{Published, Wakes, finish_commit};
use crate::timers;
use crate::topics::Topic;

/// Partitions of an internal topic, so that concurrent writes seldom wait for each other.
const PARTITIONS: u32 = 8;
/// Bytes that a partition of an internal topic keeps in memory, if it is not on disk and so never read again.
const MEMORY_BYTES: u64 = 4 << 20;
/// Bytes after which a batch takes no more records.
const BATCH_BYTES: usize = BATCH_BYTES_MAX / 8;

/// Key and value of a record. A record without a value deletes the key.
pub(crate) type KeyValue = (Vec<u8>, Option<Vec<u8>>);

/// Records that have their offsets in a partition.
///
/// The journal keeps the order in which the broker appends to all topics. A later append is therefore durable only if
/// this one is: an append that follows from a decision need not wait for it.
#[must_use]
pub(crate) struct Appended {
    /// Offset of the last record.
    pub position: Offset,
    last: Published,
    commit: Commit,
}

impl Appended {
    pub(crate) fn new(last: Published, count: u64, commit: Commit) -> Self {
        Self { position: last.base_offset + count - 1, last, commit }
    }

    /// Returns `true` if [`Appended::lasts`] has nothing to wait for.
    pub(crate) fn is_reached(&self) -> bool {
        !matches!(self.commit, Commit::Awaited(_))
    }

    /// Waits until the records are durable, with all that was appended before them. Returns immediately if they are in
    /// memory.
    pub(crate) async fn lasts(self) -> Result<Offset> {
        finish_commit(self.last, self.commit).await?;
        Ok(self.position)
    }
}

/// Returns the settings of an internal topic. On disk, the newest record of each key is kept, and a restart restores
/// the state from these records.
pub(crate) fn settings(storage: Storage) -> TopicSettings {
    let is_on_disk = storage == Storage::Disk;
    TopicSettings {
        partitions: PARTITIONS,
        retention_bytes: if is_on_disk { 0 } else { MEMORY_BYTES },
        retention_ms: 0,
        storage,
        compact: is_on_disk,
        ..TopicSettings::default()
    }
}

impl Broker {
    /// Returns an internal topic, which is created when the first record needs it.
    pub(crate) fn internal_topic(&self, name: &str) -> Result<Arc<Topic>> {
        if let Some(topic) = self.topics.read().get(name) {
            return Ok(topic.clone());
        }
        let storage = if self.store().is_some() { Storage::Disk } else { Storage::Memory };
        // The topic's records are never durable before the topic is, so there is nothing to wait for.
        Ok(self.create(TopicName::parse(name)?, settings(storage))?.0)
    }

    /// Appends records to a partition, in this order.
    pub(crate) fn append_internal(
        &self,
        topic: &Topic,
        partition: PartitionId,
        records: impl IntoIterator<Item = KeyValue>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let now_ms = timers::now_ms() as i64;
        let (mut builder, mut last) = (BatchBuilder::new(), None);
        let mut records = records.into_iter().peekable();
        while let Some((key, value)) = records.next() {
            builder.push(now_ms, Some(&key), value.as_deref(), &[])?;
            if (builder.len() >= BATCH_BYTES || records.peek().is_none())
                && let Some(batch) = builder.finish()
            {
                last = Some(self.publish_internal(topic, partition, batch, wakes)?);
            }
        }
        last.ok_or_else(|| Error::invalid("there is nothing to write"))
    }

    /// Returns all records appended to a partition so far, by any producer.
    pub(crate) fn appended_before(&self, topic: &Topic, partition: PartitionId) -> Result<Appended> {
        let cell = topic.partition(partition)?;
        let commit = cell.settled()?;
        let position = cell.extent().end;
        let last = Published {
            partition,
            base_offset: position,
            partitions: topic.settings.partitions,
            receivers: 0,
            is_committed: false,
            is_duplicate: true,
            arrival_ms: None,
        };
        Ok(Appended { position, last, commit })
    }

    /// Calls `each` with the key and the value of all records of a topic, in the order of each partition.
    pub(crate) async fn read_internal(
        &self,
        topic: &Topic,
        mut each: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        self.read_records(topic, |view, _| each(view.key.unwrap_or_default(), view.value)).await
    }

    /// Calls `each` with all records of a topic and their batches, in the order of each partition.
    pub(crate) async fn read_records(
        &self,
        topic: &Topic,
        mut each: impl FnMut(&RecordView<'_>, &RecordBatch) -> Result<()>,
    ) -> Result<()> {
        for cell in topic.partitions() {
            let (mut next, mut bytes_max) = (cell.extent().start, BATCH_BYTES_MAX);
            loop {
                let (_, batches) = match cell.read(next, bytes_max).await {
                    // The batches before the damage are read one at a time.
                    Err(error) if error.kind == engine::ErrorKind::Corrupt && bytes_max > 1 => {
                        bytes_max = 1;
                        continue;
                    }
                    read => read?,
                };
                let Some(last) = batches.last() else {
                    break;
                };
                next = last.next_offset();
                for batch in &batches {
                    for view in &batch.records()? {
                        let view = view?;
                        each(&view, batch).map_err(|error| {
                            let at =
                                format!("the record at offset {} of {} partition {}", view.offset, topic.name, cell.id);
                            let hint = "was the data written by a newer version?";
                            Error::new(error.kind, format!("{at} cannot be read: {}; {hint}", error.message))
                        })?;
                    }
                }
            }
        }
        Ok(())
    }
}
