//! A publish from admission to acknowledgement, on one screen.

use std::sync::Arc;
use std::time::Instant;

use engine::{DraftBatch, Error, Offset, PartitionId, Result};

use crate::broker::Broker;
use crate::partition::{AppendContext, Refused};
use crate::subscriber::Subscriber;
use crate::timers::now_ms;

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
        let begin = self.settings().timings.then(Instant::now);
        let (records, bytes) = (u64::from(batch.count()), batch.len() as u64);
        let result = self.append(topic, partition, batch, wakes).await;
        match &result {
            Ok(_) => {
                self.metrics().published_batches.add(1);
                self.metrics().published_records.add(records);
                self.metrics().published_bytes.add(bytes);
                if let Some(begin) = begin {
                    self.metrics().publish_seconds.record(begin.elapsed());
                }
            }
            Err(_) => self.metrics().publish_errors.add(1),
        }
        wakes.publishes += 1;
        if wakes.publishes >= self.settings().fanout_batch_size {
            wakes.flush();
        }
        result
    }

    async fn append(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        mut batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        let topic = self.topic_or_create(topic)?;
        let cell = match partition {
            Some(partition) => topic.partition(partition)?,
            None => topic.partition_of(&batch),
        };
        let context = AppendContext {
            budget: self.log_budget(),
            retention_bytes: topic.settings.retention_bytes,
            retention_ms: topic.settings.retention_ms,
            now_ms: now_ms(),
        };
        let mut deadline = None;
        loop {
            let (returned, subscriber) = match cell.append(batch, &context, wakes) {
                Ok(appended) => {
                    return Ok(Published {
                        partition: cell.id,
                        base_offset: appended.base_offset,
                        receivers: appended.receivers as u32,
                    });
                }
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Blocked(batch, subscriber)) => (batch, subscriber),
            };
            batch = returned;
            if deadline.is_none() {
                self.metrics().publish_waits.add(1);
            }
            wakes.flush();
            let deadline = *deadline.get_or_insert_with(|| tokio::time::Instant::now() + self.settings().publish_wait);
            // Boxed: every publish would carry the state of the few that wait.
            Box::pin(wait_for_room(&subscriber, &cell, batch.len(), deadline)).await?;
        }
    }
}

async fn wait_for_room(
    subscriber: &Subscriber,
    cell: &Arc<crate::partition::PartitionCell>,
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
