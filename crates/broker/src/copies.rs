//! Copies of topics of other sites. A copy has the records of its origin at their offsets, so copying continues at its
//! end, whatever has interrupted it, and a batch that is received again changes nothing.

use std::sync::Arc;

use engine::mesh::MeshMode;
use engine::{
    DraftBatch, Error, ErrorKind, Offset, PartitionId, RecordBatch, Result, TopicId, TopicName, TopicSettings,
};

use crate::core::Core;
use crate::partition::{AppendOptions, PartitionCell};
use crate::topic::{Topic, TopicOutline};
use crate::wakes::Wakes;

/// Maximum number of offsets without records that a copy is extended by in one step.
const SKIP_MAX: u64 = 1 << 43;

impl Core {
    /// Returns the topics that other sites copy, and the copies of this site, in the order of their names.
    pub fn mirrored_topics(&self) -> Vec<TopicOutline> {
        let topics = self.topics.read();
        let is_mirrored = |topic: &&Arc<Topic>| topic.settings.mesh.is_offered() || is_copy(topic);
        let mut mirrored: Vec<TopicOutline> =
            topics.values().filter(is_mirrored).map(|topic| topic.outline()).collect();
        drop(topics);
        mirrored.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        mirrored
    }

    /// Creates a copy with these settings, and returns when it is durable. One that exists keeps its settings.
    pub(crate) async fn create_copy_resolved(&self, name: &TopicName, settings: TopicSettings) -> Result<Arc<Topic>> {
        let settings = TopicSettings { mesh: MeshMode::Copy, ..self.resolve(settings)? };
        let (topic, commit) = self.create(name.clone(), settings)?;
        commit.wait().await?;
        if !is_copy(&topic) {
            return Err(no_copy(name));
        }
        Ok(topic)
    }

    /// Returns the id of a copy, and the offset of the next record of each of its partitions, in their order.
    pub fn copy_ends(&self, name: &TopicName) -> Result<(TopicId, Vec<Offset>)> {
        let topic = self.copy(name)?;
        Ok((topic.id, topic.partitions().iter().map(|cell| cell.next_offset()).collect()))
    }

    /// Appends a batch of the origin to the copy with this id at the offset of the batch. Offsets before it for which
    /// there was no batch become a hole. A batch that the copy has already is not appended again. At most one caller
    /// may append to a partition at a time. The batch is not durable yet when this returns.
    pub async fn append_copied(
        &self,
        name: &TopicName,
        id: TopicId,
        partition: PartitionId,
        batch: RecordBatch,
        wakes: &mut Wakes,
    ) -> Result<()> {
        let from = batch.base_offset();
        for record in &batch.records()? {
            record?;
        }
        self.skip_copied(name, id, partition, from, wakes).await?;
        let topic = self.copy_with(name, id)?;
        let cell = topic.partition(partition)?;
        let end = cell.next_offset();
        if end == from {
            return self.append_at(&topic, &cell, end, DraftBatch::copied(batch), wakes).await;
        }
        if batch.next_offset() <= end {
            return Ok(());
        }
        let text = format!("a batch from offset {from} does not follow the end of the copy {name}, {end}");
        Err(Error::new(ErrorKind::OutOfSequence, text))
    }

    /// Extends the copy with this id up to an offset, before which its origin has no more records.
    pub async fn skip_copied(
        &self,
        name: &TopicName,
        id: TopicId,
        partition: PartitionId,
        to: Offset,
        wakes: &mut Wakes,
    ) -> Result<()> {
        loop {
            let topic = self.copy_with(name, id)?;
            let cell = topic.partition(partition)?;
            let end = cell.next_offset();
            if end >= to {
                return Ok(());
            }
            if to - end > SKIP_MAX {
                let text = format!("the origin of {name} has no records between the offsets {end} and {to}");
                return Err(Error::new(ErrorKind::OutOfRange, text));
            }
            let hole = DraftBatch::copied(RecordBatch::hole(end, to));
            self.append_at(&topic, &cell, end, hole, wakes).await?;
            tokio::task::consume_budget().await;
        }
    }

    async fn append_at(
        &self,
        topic: &Topic,
        cell: &Arc<PartitionCell>,
        at: Offset,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<()> {
        if topic.is_over_quota() {
            return Err(self.tenant_quotas().refuse_publish(topic.name.as_str()));
        }
        let traced_since_us = self.traces().now_us();
        let options = AppendOptions::of(&topic.settings, false, self.now_ms());
        let options = AppendOptions { at: Some(at), traced_since_us, ..options };
        let attempt = self.try_append(cell, options, batch, None, wakes)?;
        self.finish_attempt(attempt, wakes).await.map(drop)
    }

    fn copy_with(&self, name: &TopicName, id: TopicId) -> Result<Arc<Topic>> {
        let topic = self.copy(name)?;
        if topic.id == id { Ok(topic) } else { Err(Error::not_found(format!("topic {name} was created again"))) }
    }

    fn copy(&self, name: &TopicName) -> Result<Arc<Topic>> {
        let topic = self.topic(name.as_str())?;
        if is_copy(&topic) { Ok(topic) } else { Err(no_copy(name)) }
    }
}

/// Returns the error of a publish of a client to a copy.
pub(crate) fn refuse_copy(name: &TopicName) -> Error {
    Error::invalid(format!(
        "topic {name} is a copy of a topic of another site: publish there, or run `thalweg topic alter {name} --mesh \
         off` to end the copying"
    ))
}

fn is_copy(topic: &Topic) -> bool {
    topic.settings.mesh == MeshMode::Copy
}

fn no_copy(name: &TopicName) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("topic {name} exists and is not a copy: delete it to have it copied"))
}
