//! A publish from admission to acknowledgement, on one screen.

use std::sync::Arc;
use std::time::Instant;

use engine::{DraftBatch, Error, Offset, PartitionId, Result};

use crate::broker::Broker;
use crate::partition::{AppendContext, PartitionCell, Refused};
use crate::subscriber::Subscriber;
use crate::timers::now_ms;
use crate::topics::{Topic, refuse_internal};

/// Where a batch is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub partition: PartitionId,
    pub base_offset: Offset,
    /// Live subscribers and queue groups that it was handed to.
    pub receivers: u32,
}

/// Subscribers that have something new. A door collects them over all publishes of one read and then
/// flushes, so that a subscriber is woken, or written to, once and not for each batch.
#[derive(Default)]
pub struct Wakes {
    subscribers: Vec<Arc<Subscriber>>,
    publishes: usize,
}

impl Wakes {
    pub(crate) fn add(&mut self, subscriber: &Arc<Subscriber>) {
        self.subscribers.push(subscriber.clone());
    }

    /// Lets every subscriber have what it was offered. Dropping does the same.
    pub fn flush(&mut self) {
        self.publishes = 0;
        for subscriber in &self.subscribers {
            subscriber.wake();
        }
        for subscriber in self.subscribers.drain(..) {
            subscriber.flush();
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What became of a publish that does not wait.
pub enum Attempt {
    Done(Published),
    /// A subscriber whose overflow policy is to block has no room: [`WaitingPublish::finish`] waits for it.
    Waits(WaitingPublish),
}

/// A batch on its way into a partition whose subscribers have no room for it yet.
pub struct WaitingPublish {
    cell: Arc<PartitionCell>,
    retention: (u64, u64),
    batch: DraftBatch,
    blocking: Arc<Subscriber>,
    begin: Option<Instant>,
}

impl Broker {
    /// Puts a batch into a topic, which is created if that is allowed. Without a partition, the key of
    /// its first record decides, and batches without keys take turns. Waits only for subscribers whose
    /// overflow policy is to block.
    pub async fn publish(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        match self.try_publish(topic, partition, batch, wakes)? {
            Attempt::Done(published) => Ok(published),
            Attempt::Waits(waiting) => waiting.finish(self, wakes).await,
        }
    }

    /// The same up to where it would wait.
    pub fn try_publish(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        refuse_internal(topic)?;
        let begin = self.settings().timings.then(Instant::now);
        let attempt = self.append(topic, partition, batch, begin, wakes);
        if !matches!(attempt, Ok(Attempt::Waits(_))) {
            self.count_publish(attempt.is_err(), begin, wakes);
        }
        attempt
    }

    /// A batch of the broker itself, into a topic that takes no others. Nobody makes it wait.
    pub(crate) fn publish_internal(
        &self,
        topic: &Topic,
        partition: PartitionId,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        let cell = topic.partition(partition)?;
        let retention = (topic.settings.retention_bytes, topic.settings.retention_ms);
        self.append_to(&cell, retention, batch, wakes).map_err(|refused| match refused {
            Refused::Failed(error) => error,
            Refused::Blocked(_, subscriber) => {
                Error::busy(format!("subscriber {} of topic {} blocks", subscriber.id, topic.name))
            }
        })
    }

    fn append(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        let topic = self.topic_or_create(topic)?;
        let cell = match partition {
            Some(partition) => topic.partition(partition)?,
            None => topic.partition_of(&batch),
        };
        let retention = (topic.settings.retention_bytes, topic.settings.retention_ms);
        match self.append_to(&cell, retention, batch, wakes) {
            Ok(published) => Ok(Attempt::Done(published)),
            Err(Refused::Failed(error)) => Err(error),
            Err(Refused::Blocked(batch, blocking)) => {
                self.metrics().publish_waits.add(1);
                Ok(Attempt::Waits(WaitingPublish { cell, retention, batch, blocking, begin }))
            }
        }
    }

    fn append_to(
        &self,
        cell: &PartitionCell,
        (retention_bytes, retention_ms): (u64, u64),
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> std::result::Result<Published, Refused> {
        let (records, bytes) = (u64::from(batch.count()), batch.len() as u64);
        let context = AppendContext { budget: self.log_budget(), retention_bytes, retention_ms, now_ms: now_ms() };
        let appended = cell.append(batch, &context, wakes)?;
        self.metrics().published_batches.add(1);
        self.metrics().published_records.add(records);
        self.metrics().published_bytes.add(bytes);
        Ok(Published { partition: cell.id, base_offset: appended.base_offset, receivers: appended.receivers as u32 })
    }

    fn count_publish(&self, has_failed: bool, begin: Option<Instant>, wakes: &mut Wakes) {
        if has_failed {
            self.metrics().publish_errors.add(1);
        } else if let Some(begin) = begin {
            self.metrics().publish_seconds.record(begin.elapsed());
        }
        wakes.publishes += 1;
        if wakes.publishes >= self.settings().fanout_batch_size {
            wakes.flush();
        }
    }
}

impl WaitingPublish {
    /// Waits for room, no longer than settings allow, and goes on.
    pub async fn finish(self, broker: &Broker, wakes: &mut Wakes) -> Result<Published> {
        let begin = self.begin;
        let result = self.append(broker, wakes).await;
        broker.count_publish(result.is_err(), begin, wakes);
        result
    }

    async fn append(self, broker: &Broker, wakes: &mut Wakes) -> Result<Published> {
        let Self { cell, retention, mut batch, mut blocking, .. } = self;
        let deadline = tokio::time::Instant::now() + broker.settings().publish_wait;
        loop {
            wakes.flush();
            wait_for_room(&blocking, &cell, batch.len(), deadline).await?;
            (batch, blocking) = match broker.append_to(&cell, retention, batch, wakes) {
                Ok(published) => return Ok(published),
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Blocked(batch, blocking)) => (batch, blocking),
            };
        }
    }
}

async fn wait_for_room(
    subscriber: &Subscriber,
    cell: &Arc<PartitionCell>,
    bytes: usize,
    deadline: tokio::time::Instant,
) -> Result<()> {
    let room = subscriber.room();
    tokio::pin!(room);
    room.as_mut().enable();
    if !subscriber.is_blocking(cell, bytes) {
        return Ok(());
    }
    tokio::time::timeout_at(deadline, room).await.map_err(|elapsed| {
        Error::busy(format!(
            "subscriber {} of topic {} reads too slowly and asked publishers to wait ({elapsed})",
            subscriber.id, cell.topic
        ))
    })
}
