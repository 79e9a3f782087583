//! The topic of offsets: what groups have to keep goes into it, and comes out of it at the start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use engine::groups::{Group, GroupName, Now, OFFSETS_TOPIC, OffsetsRecord};
use engine::limits::BATCH_BYTES_MAX;
use engine::{BatchBuilder, Error, Offset, PartitionId, Result, Storage, TopicName, TopicSettings, partitioner};

use crate::broker::Broker;
use crate::partition::Commit;
use crate::publish::{Published, Wakes, finish_commit};
use crate::timers;
use crate::topics::Topic;

/// Partitions of the topic: groups that commit at once seldom wait for each other.
const PARTITIONS: u32 = 8;
/// What a partition of it keeps in memory, where nobody ever reads it again.
const MEMORY_BYTES: u64 = 4 << 20;
/// A batch takes no more records once it has so many bytes.
const BATCH_BYTES: usize = BATCH_BYTES_MAX / 8;

/// Records that have their place in the topic.
#[must_use]
pub(super) struct Appended {
    /// The offset of the last of them.
    pub position: Offset,
    last: Published,
    commit: Commit,
}

impl Appended {
    /// Whether [`Appended::committed`] has nothing to wait for.
    pub(super) fn is_reached(&self) -> bool {
        !matches!(self.commit, Commit::Awaited(_))
    }

    /// Returns when the records are committed, the last of them after all others. In memory they are so at once.
    pub(super) async fn committed(self) -> Result<Offset> {
        finish_commit(self.last, self.commit).await?;
        Ok(self.position)
    }
}

impl Broker {
    /// The topic, which is made when the first group is.
    pub(super) fn offsets_topic(&self) -> Result<Arc<Topic>> {
        if let Some(topic) = self.topics.read().get(OFFSETS_TOPIC) {
            return Ok(topic.clone());
        }
        // On disk what is newest of each key stays: it is what a restart begins with.
        let (storage, retention_bytes) = match self.store() {
            Some(_) => (Storage::Disk, 0),
            None => (Storage::Memory, MEMORY_BYTES),
        };
        let compact = storage == Storage::Disk;
        let settings = TopicSettings {
            partitions: PARTITIONS,
            retention_bytes,
            retention_ms: 0,
            storage,
            compact,
            ..TopicSettings::default()
        };
        // No record of it lasts before it does: nobody has to wait.
        Ok(self.create(TopicName::parse(OFFSETS_TOPIC)?, settings)?.0)
    }

    /// Gives the records their place in the topic, in this order. Whoever holds the group's lock meanwhile knows
    /// that no other record of the group comes between.
    pub(super) fn append_offsets(
        &self,
        topic: &Topic,
        group: &GroupName,
        records: impl IntoIterator<Item = OffsetsRecord>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let now_ms = timers::now_ms() as i64;
        // All of a group is in one partition.
        let partition = partitioner::for_key(group.as_str().as_bytes(), topic.partitions().len() as u32);
        let (mut builder, mut last) = (BatchBuilder::new(), None);
        let mut records = records.into_iter().peekable();
        while let Some(record) = records.next() {
            builder.push(now_ms, Some(&record.key()), record.value().as_deref(), &[])?;
            if builder.len() >= BATCH_BYTES || records.peek().is_none() {
                let count = u64::from(builder.count());
                if let Some(batch) = builder.finish() {
                    let (published, commit) = self.publish_internal(topic, partition, batch, wakes)?;
                    let position = published.base_offset + count - 1;
                    last = Some(Appended { position, last: published, commit });
                }
            }
        }
        last.ok_or_else(|| Error::invalid("there is nothing to commit"))
    }

    /// All groups as the topic has them.
    pub(super) async fn read_groups(&self, now: Now) -> Result<HashMap<GroupName, Group>> {
        let mut groups = HashMap::new();
        let Ok(topic) = self.topic(OFFSETS_TOPIC) else {
            return Ok(groups);
        };
        for cell in topic.partitions() {
            let mut next = cell.extent().start;
            loop {
                let fetched = self.fetch(OFFSETS_TOPIC, cell.id, next, BATCH_BYTES_MAX, Duration::ZERO).await?;
                let Some(last) = fetched.batches.last() else {
                    break;
                };
                next = last.next_offset();
                for record in fetched.batches.iter().map(|batch| batch.records()) {
                    for view in &record? {
                        let view = view?;
                        let record = OffsetsRecord::decode(view.key.unwrap_or_default(), view.value);
                        restore(&mut groups, record.map_err(|error| unreadable(cell.id, view.offset, &error))?, now);
                    }
                }
            }
        }
        Ok(groups)
    }
}

fn restore(groups: &mut HashMap<GroupName, Group>, record: OffsetsRecord, now: Now) {
    let name = record.group().clone();
    if matches!(record, OffsetsRecord::Group { saved: None, .. }) {
        // Deleted, with all its offsets.
        groups.remove(&name);
        return;
    }
    if record.value().is_none() && !groups.contains_key(&name) {
        return;
    }
    let group = groups.entry(name.clone()).or_insert_with(|| Group::new(name, now));
    match record {
        OffsetsRecord::Offset { change, .. } => group.restore_offset(change),
        OffsetsRecord::Group { saved, .. } => saved.into_iter().for_each(|saved| group.restore(saved)),
    }
}

fn unreadable(partition: PartitionId, offset: Offset, error: &Error) -> Error {
    Error::new(
        error.kind,
        format!(
            "the record at offset {offset} of {OFFSETS_TOPIC} partition {partition} cannot be read: {}; was the data \
             written by a newer version?",
            error.message
        ),
    )
}
