//! The logs in which views keep their state: internal topics of records by key ([`StateRecord`]).
//!
//! A view is a fold of its log. Its records about a partition are in an internal partition of the same shard
//! ([`Home`]), so that both are in one order.

use std::marker::PhantomData;
use std::sync::Arc;

use engine::limits::BATCH_BYTES_MAX;
use engine::shard::Home;
use engine::state::{KeyValue, StateRecord};
use engine::{
    BatchBuilder, Error, ErrorKind, PartitionId, RecordBatch, RecordView, Result, Storage, TopicName, TopicSettings,
};

use crate::commit::{Appended, Commit};
use crate::core::Core;
use crate::partition::AppendOptions;
use crate::topic::Topic;
use crate::wakes::Wakes;

/// Partitions of an internal topic, so that concurrent writes seldom wait for each other.
const PARTITIONS: u32 = 8;
/// Bytes that a partition of an internal topic keeps in memory, if it is not on disk and so never read again.
const MEMORY_BYTES: u64 = 4 << 20;
/// Bytes after which a batch takes no more records.
const BATCH_BYTES: usize = BATCH_BYTES_MAX / 8;

/// The log of one view's state.
pub(crate) struct StateLog<R>(PhantomData<fn() -> R>);

impl<R: StateRecord> StateLog<R> {
    /// Returns the log of the view that writes these records.
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }

    /// Returns `true` if the log has or had any record.
    pub(crate) fn exists(&self, core: &Core) -> bool {
        core.has_topic(R::TOPIC)
    }

    /// Creates the log, unless it exists. A caller that appends while it holds a lock that deletions of topics take
    /// creates the log before.
    pub(crate) fn create(&self, core: &Core) -> Result<()> {
        self.topic(core).map(drop)
    }

    fn topic(&self, core: &Core) -> Result<Arc<Topic>> {
        if let Some(topic) = core.topics.read().get(R::TOPIC) {
            return Ok(topic.clone());
        }
        let storage = if core.store().is_some() { Storage::Disk } else { Storage::Memory };
        // The topic's records are never durable before the topic is, so there is nothing to wait for.
        Ok(core.create(TopicName::parse(R::TOPIC)?, settings(storage))?.0)
    }

    /// Appends records, in this order and with no other record of their home in between.
    pub(crate) fn append(
        &self,
        core: &Core,
        home: Home<'_>,
        records: impl IntoIterator<Item = R>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        self.append_encoded(core, home, records.into_iter().map(|record| record.encode()), wakes)
    }

    /// Appends records that are encoded already.
    pub(crate) fn append_encoded(
        &self,
        core: &Core,
        home: Home<'_>,
        records: impl IntoIterator<Item = KeyValue>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let topic = self.topic(core)?;
        let partition = core.shards().internal_partition(home, topic.partitions().len() as u32);
        core.append_records(&topic, partition, records, wakes)
    }

    /// Returns the commit of all records that a home has so far.
    pub(crate) fn settled(&self, core: &Core, home: Home<'_>) -> Result<Commit> {
        let topic = self.topic(core)?;
        let partition = core.shards().internal_partition(home, topic.partitions().len() as u32);
        topic.partition(partition)?.settled()
    }

    /// Appends records to an internal partition that has older records of their keys.
    pub(crate) fn append_to(
        &self,
        core: &Core,
        partition: PartitionId,
        records: impl IntoIterator<Item = R>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        core.append_records(&*self.topic(core)?, partition, records.into_iter().map(|record| record.encode()), wakes)
    }

    /// Calls `each` with all records and their internal partitions, in the order of each partition.
    pub(crate) async fn fold(&self, core: &Core, each: impl FnMut(R, PartitionId) -> Result<()>) -> Result<()> {
        match core.topic(R::TOPIC) {
            Ok(topic) => self.fold_topic(core, &topic, each).await,
            Err(_) => Ok(()),
        }
    }

    /// Calls `each` with all records of a log whose topic is not in the table of topics.
    pub(crate) async fn fold_topic(
        &self,
        core: &Core,
        topic: &Topic,
        mut each: impl FnMut(R, PartitionId) -> Result<()>,
    ) -> Result<()> {
        // A record of a change that took effect may not be committed yet. After a start, all are.
        for cell in topic.partitions() {
            cell.settled()?.wait().await?;
        }
        let decode = |view: &RecordView<'_>| R::decode(view.key.unwrap_or_default(), view.value);
        core.read_records(topic, |partition, view, _| each(decode(view)?, partition)).await
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

impl Core {
    /// Appends records to a partition, in this order.
    pub(crate) fn append_records(
        &self,
        topic: &Topic,
        partition: PartitionId,
        records: impl IntoIterator<Item = KeyValue>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let cell = topic.partition(partition)?;
        let now_ms = self.now_ms();
        let options = AppendOptions::own(&topic.settings, now_ms);
        let mut builder = BatchBuilder::new();
        let mut last = None;
        let mut records = records.into_iter().peekable();
        while let Some((key, value)) = records.next() {
            builder.push(now_ms as i64, Some(&key), value.as_deref(), &[])?;
            if (builder.len() >= BATCH_BYTES || records.peek().is_none())
                && let Some(batch) = builder.finish()
            {
                last = Some(self.append_own(&cell, &options, batch, wakes)?);
            }
        }
        last.ok_or_else(|| Error::invalid("there is nothing to write"))
    }

    /// Calls `each` with all records of a topic and their batches, in the order of each partition.
    pub(crate) async fn read_records(
        &self,
        topic: &Topic,
        mut each: impl FnMut(PartitionId, &RecordView<'_>, &RecordBatch) -> Result<()>,
    ) -> Result<()> {
        for cell in topic.partitions() {
            let mut next = cell.extent().start;
            let mut bytes_max = BATCH_BYTES_MAX;
            loop {
                let (_, batches) = match cell.read(next, bytes_max).await {
                    // The batches before the damage are read one at a time.
                    Err(error) if error.kind == ErrorKind::Corrupt && bytes_max > 1 => {
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
                        each(cell.id, &view, batch).map_err(|error| {
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use engine::groups::{Committer, GroupName, OffsetsRecord};
    use engine::queue::{QueueName, QueueRecord};
    use engine::shard::Shards;
    use engine::streams::{EntryId, StreamRecord};
    use engine::transactions::{TransactionRecord, TransactionalId};
    use engine::{Acks, BatchBuilder, TopicPartition};
    use storage::{RealDisk, Store, StoreSettings};
    use tempfile::TempDir;
    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::Clock;
    use crate::{Broker, NewQueue, OffsetCommit, Receive, Settings};

    const PARTITIONS_OF_TOPIC: u32 = 12;

    fn on_disk(dir: &TempDir, shards: Shards) -> Arc<Broker> {
        let opened =
            Store::open(Arc::new(RealDisk), dir.path(), StoreSettings::default(), Clock::SYSTEM.read(), &mut |_| {});
        let opened = Some(opened.expect("opens"));
        Broker::start_on(Settings::default(), &[Handle::current()], opened, shards, None).expect("starts")
    }

    /// The state of a stream is in the shard of its entries, and that of a transactional id in the shard of its name.
    #[tokio::test]
    async fn records_of_streams_and_transactions_are_in_the_shards_of_their_subjects() {
        let dir = tempfile::tempdir().expect("a folder");
        let shards = Shards::new(8);
        let broker = on_disk(&dir, shards);
        broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
        for i in 0..PARTITIONS_OF_TOPIC {
            let name = format!("stream{i}");
            broker.create_topic(&name, TopicSettings::of_broker()).await.expect("created");
            let stream = broker.streams.get(&name).expect("known").expect("there");
            let mut locked = stream.lock().await.expect("locked");
            locked
                .create_group(b"readers", EntryId::ZERO, None)
                .expect("made")
                .expect("new")
                .wait()
                .await
                .expect("durable");
            let id = TransactionalId::parse(&format!("id{i}")).expect("an id");
            broker.transactions.init(&id, None, 60_000).await.expect("begun");
        }
        let mut seen = HashSet::new();
        let each = |record: StreamRecord, internal| {
            assert_eq!(shards.of_internal(internal), shards.of_partition(record.topic(), 0));
            seen.insert(shards.of_internal(internal));
            Ok(())
        };
        StateLog::<StreamRecord>::new().fold(&broker, each).await.expect("readable");
        assert!(seen.len() > 1, "the streams are in more than one shard");
        seen.clear();
        let each = |record: TransactionRecord, internal| {
            assert_eq!(shards.of_internal(internal), shards.of_name(record.id.as_str().as_bytes()));
            seen.insert(shards.of_internal(internal));
            Ok(())
        };
        StateLog::<TransactionRecord>::new().fold(&broker, each).await.expect("readable");
        assert!(seen.len() > 1, "the transactional ids are in more than one shard");
    }

    /// A leader of one shard must not need another to record what it does: a lease is in the shard of its message, and
    /// all offsets of a group are in one.
    #[tokio::test]
    async fn records_of_queues_and_groups_are_in_the_shards_of_their_subjects() {
        let dir = tempfile::tempdir().expect("a folder");
        let shards = Shards::new(8);
        let broker = on_disk(&dir, shards);
        let settings = TopicSettings { partitions: PARTITIONS_OF_TOPIC, ..TopicSettings::of_broker() };
        let topic = broker.create_topic("log", settings).await.expect("created");
        let name = Some(TopicName::parse("log").expect("a name"));
        let queue = NewQueue { topic: name.clone(), ..NewQueue::new(QueueName::parse("jobs").expect("a name")) };
        broker.queues.create(queue).await.expect("created");
        let group = GroupName::parse("readers").expect("a name");
        for partition in 0..PARTITIONS_OF_TOPIC {
            let mut builder = BatchBuilder::new();
            builder.push(broker.now_ms() as i64, None, Some(b"work"), &[]).expect("small");
            let batch = builder.finish().expect("a record");
            let mut wakes = Wakes::default();
            let published = broker.publish("log", Some(partition), Acks::Committed, batch, &mut wakes);
            published.await.expect("published");
            let at = TopicPartition { topic: topic.name.clone(), partition };
            let commit = OffsetCommit { partition: at, offset: 1, leader_epoch: -1, metadata: String::new() };
            broker.groups.commit_offsets(&group, &Committer::Outsider, vec![commit]).await.expect("committed");
        }
        let wanted = Receive { max: PARTITIONS_OF_TOPIC as usize, ..Receive::default() };
        assert_eq!(broker.queues.receive("jobs", &wanted).await.expect("received").len(), wanted.max);

        let mut seen = HashSet::new();
        let each = |record, internal| {
            if let QueueRecord::Entry { partition, .. } | QueueRecord::Cursor { partition, .. } = record {
                assert_eq!(shards.of_internal(internal), shards.of_partition(topic.id, partition));
                seen.insert(shards.of_internal(internal));
            }
            Ok(())
        };
        StateLog::<QueueRecord>::new().fold(&broker, each).await.expect("readable");
        assert!(seen.len() > 1, "the partitions are in more than one shard");
        let mut homes = HashSet::new();
        let each = |_: OffsetsRecord, internal| {
            homes.insert(shards.of_internal(internal));
            Ok(())
        };
        StateLog::<OffsetsRecord>::new().fold(&broker, each).await.expect("readable");
        assert_eq!(homes, HashSet::from([shards.of_name(group.as_str().as_bytes())]));
    }
}
