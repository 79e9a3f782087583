//! A publish from admission to acknowledgement, on one screen.

use std::sync::Arc;
use std::time::Instant;

use engine::{Acks, DraftBatch, Error, ErrorKind, Offset, PartitionId, Result, TopicName};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::internal::Appended;
use crate::partition::{AppendContext, Blocking, Commit, PartitionCell, Refused};
use crate::queues::QueueCell;
use crate::retention::Retention;
use crate::subscriber::Subscriber;
use crate::timers::now_ms;
use crate::topics::{Topic, refuse_internal};

/// Outcome of a publish: the position of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub partition: PartitionId,
    pub base_offset: Offset,
    /// Number of partitions of the topic.
    pub partitions: u32,
    /// Number of live subscribers and queue groups to which the batch was delivered.
    pub receivers: u32,
    /// `true` if the batch is durable on disk, not only in memory.
    pub is_committed: bool,
    /// `true` if the batch was published before: nothing was appended.
    pub is_duplicate: bool,
    /// Timestamp of the records, if the topic sets timestamps on arrival. Unknown for a duplicate.
    pub arrival_ms: Option<i64>,
}

/// Subscribers that have new batches. A door collects them over all publishes of one read and then flushes, so that a
/// subscriber is woken, or written to, once and not for each batch.
#[derive(Default)]
pub struct Wakes {
    subscribers: Vec<Arc<Subscriber>>,
    queues: Vec<Arc<QueueCell>>,
    publishes: usize,
}

impl Wakes {
    pub(crate) fn add(&mut self, subscriber: &Arc<Subscriber>) {
        self.subscribers.push(subscriber.clone());
    }

    /// Adds a queue that has new messages, if a client waits for it.
    pub(crate) fn add_queue(&mut self, queue: &Arc<QueueCell>) {
        if queue.is_awaited() {
            self.queues.push(queue.clone());
        }
    }

    /// Wakes every subscriber and queue that has new batches. Dropping the value does this too.
    pub fn flush(&mut self) {
        self.publishes = 0;
        if self.queues.is_empty() && self.subscribers.is_empty() {
            return;
        }
        self.queues.drain(..).for_each(|queue| queue.wake());
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

/// Result of a publish that does not wait.
pub enum Attempt {
    Done(Published),
    /// The batch waits: a subscriber whose overflow policy is to block has no room, the journal has no room, or the
    /// records are checked on another thread. [`WaitingPublish::finish`] waits.
    Waits(Box<WaitingPublish>),
    /// The batch has its offsets and is acknowledged when it is on disk. [`CommittingPublish::finish`] waits for that.
    Commits(CommittingPublish),
}

/// A batch that has its offsets but is not synced by the journal yet.
pub struct CommittingPublish {
    published: Published,
    committed: oneshot::Receiver<Result<()>>,
    begin: Option<Instant>,
}

/// A batch that may not be appended to its partition yet.
pub struct WaitingPublish {
    cell: Arc<PartitionCell>,
    how: How,
    batch: DraftBatch,
    waits: Waits,
    begin: Option<Instant>,
}

/// Reason for which a batch waits.
enum Waits {
    /// The records have to be checked against the settings of the topic.
    Check(Arc<Topic>),
    Room(Blocking),
}

/// Options of one append, apart from its batch.
#[derive(Clone)]
struct How {
    partitions: u32,
    retention: Retention,
    awaits_commit: bool,
    /// `true` if the append may have to wait for room in the journal or for a blocking subscriber.
    yields: bool,
    /// `true` if room on the disk was checked before.
    is_admitted: bool,
    arrival_ms: Option<i64>,
    /// Deduplication id of the batch.
    dedup: Option<Arc<[u8]>>,
    /// Offset that the batch must get.
    at: Option<Offset>,
    now_ms: u64,
}

impl How {
    fn of(topic: &Topic, awaits_commit: bool, now_ms: u64) -> Self {
        let settings = &topic.settings;
        Self {
            partitions: settings.partitions,
            retention: Retention::of(settings),
            awaits_commit,
            yields: true,
            is_admitted: false,
            arrival_ms: None,
            dedup: None,
            at: None,
            now_ms,
        }
    }
}

impl Broker {
    /// Publishes a batch to a topic, which is created if the settings allow that. Without a partition, the key of the
    /// first record selects one, and batches without keys are distributed round robin. Waits for subscribers whose
    /// overflow policy is to block, and for the disk if `acks` requires it.
    pub async fn publish(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        acks: Acks,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        let attempt = self.try_publish(topic, partition, acks, batch, wakes)?;
        self.finish_attempt(attempt, wakes).await
    }

    /// Publishes a batch without waiting: returns [`Attempt::Waits`] or [`Attempt::Commits`] if the publish has to
    /// wait.
    pub fn try_publish(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        acks: Acks,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        refuse_internal(topic)?;
        let begin = self.settings().timings.then(Instant::now);
        let attempt = self.append(topic, partition, acks, batch, begin, wakes);
        if matches!(attempt, Ok(Attempt::Done(_)) | Err(_)) {
            self.count_publish(attempt.is_err(), begin, wakes);
        }
        attempt
    }

    /// Publishes to a channel: to the first partition of the topic that has the name, or else only to the listeners,
    /// without storing or creating anything. Returns `None` if there is neither a topic nor a listener.
    pub fn publish_to_channel(
        &self,
        name: &TopicName,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Option<Attempt>> {
        refuse_internal(name.as_str())?;
        let begin = self.settings().timings.then(Instant::now);
        let attempt = self.append_to_channel(name, batch, begin, wakes);
        if matches!(attempt, Ok(Some(Attempt::Done(_))) | Err(_)) {
            self.count_publish(attempt.is_err(), begin, wakes);
        }
        attempt
    }

    fn append_to_channel(
        &self,
        name: &TopicName,
        batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Option<Attempt>> {
        let find = || self.topics.read().get(name.as_str()).cloned();
        let topic = match find() {
            Some(topic) => topic,
            None => {
                let mut listeners = self.listeners.lock();
                // The topic may have been created since the first lookup. No topic can be created while the listeners
                // are locked.
                match find() {
                    Some(topic) => topic,
                    None => {
                        let Some(channel) = listeners.channel(self, name)? else {
                            return Ok(None);
                        };
                        let how = How::of(&channel, false, now_ms());
                        return self.attempt(&channel.partition(0)?, how, batch, begin, wakes).map(Some);
                    }
                }
            }
        };
        self.append_to_topic(&topic, Some(0), Acks::Accepted, batch, begin, wakes).map(Some)
    }

    /// Sends a batch of messages to a queue. A batch whose deduplication id was sent recently is a duplicate.
    pub(crate) fn try_send(
        &self,
        topic: &Topic,
        cell: &Arc<PartitionCell>,
        mut batch: DraftBatch,
        dedup: Option<Arc<[u8]>>,
        now_ms: u64,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        topic.admit(&mut batch, self.settings().record_expansion_max)?;
        let arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
        let how = How { arrival_ms, dedup, ..How::of(topic, self.settings().ack_on_commit, now_ms) };
        self.attempt(cell, how, batch, None, wakes)
    }

    /// Publishes a batch that must get offset `at`. It is refused as out of sequence if another batch got this offset.
    pub(crate) fn try_publish_at(
        &self,
        topic: &Topic,
        cell: &Arc<PartitionCell>,
        at: Offset,
        mut batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        let begin = self.settings().timings.then(Instant::now);
        topic.admit(&mut batch, self.settings().record_expansion_max)?;
        let arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
        let how = How { arrival_ms, at: Some(at), ..How::of(topic, self.settings().ack_on_commit, now_ms()) };
        let attempt = self.attempt(cell, how, batch, begin, wakes);
        if matches!(attempt, Ok(Attempt::Done(_))) {
            self.count_publish(false, begin, wakes);
        }
        attempt
    }

    /// Waits until an attempt is finished.
    pub(crate) async fn finish_attempt(&self, attempt: Attempt, wakes: &mut Wakes) -> Result<Published> {
        match attempt {
            Attempt::Done(published) => Ok(published),
            Attempt::Waits(waiting) => waiting.finish(self, wakes).await,
            Attempt::Commits(committing) => committing.finish(self).await,
        }
    }

    /// Appends a batch of the broker itself. It never waits for subscribers or for room in the journal.
    pub(crate) fn publish_internal(
        &self,
        topic: &Topic,
        partition: PartitionId,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let count = u64::from(batch.count());
        let how = How { yields: false, ..How::of(topic, true, now_ms()) };
        let (published, commit) = self.try_internal(topic, partition, how, batch, wakes)?;
        Ok(Appended::new(published, count, commit))
    }

    /// Appends a batch that records what has already happened, without waiting for the disk. The caller must have
    /// called [`PartitionCell::admit`] before it acted.
    pub(crate) fn place_admitted(
        &self,
        topic: &Topic,
        partition: PartitionId,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        let how = How { yields: false, is_admitted: true, ..How::of(topic, false, now_ms()) };
        Ok(self.try_internal(topic, partition, how, batch, wakes)?.0)
    }

    fn try_internal(
        &self,
        topic: &Topic,
        partition: PartitionId,
        how: How,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<(Published, Commit)> {
        let cell = topic.partition(partition)?;
        self.append_to(&cell, &how, batch, wakes).map_err(|refused| match refused {
            Refused::Failed(error) | Refused::Blocked(_, Blocking::Journal(error)) => error,
            Refused::Blocked(_, Blocking::Subscriber(subscriber)) => {
                Error::busy(format!("subscriber {} of topic {} blocks", subscriber.id, topic.name))
            }
        })
    }

    fn append(
        &self,
        topic: &str,
        partition: Option<PartitionId>,
        acks: Acks,
        batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        if batch.is_transactional() && !self.transactions().is_restored() {
            return Err(Error::busy("the broker has just started and is still restoring open transactions"));
        }
        let topic = self.topic_or_create(topic)?;
        self.append_to_topic(&topic, partition, acks, batch, begin, wakes)
    }

    fn append_to_topic(
        &self,
        topic: &Arc<Topic>,
        partition: Option<PartitionId>,
        acks: Acks,
        mut batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        let expansion = self.settings().record_expansion_max;
        let is_slow = topic.admits_slowly(&batch, expansion);
        if !is_slow {
            topic.admit(&mut batch, expansion)?;
        }
        let cell = match partition {
            Some(partition) => topic.partition(partition)?,
            None => topic.partition_of(&batch)?,
        };
        let awaits_commit = match acks {
            Acks::None | Acks::Accepted => false,
            Acks::Committed => true,
            Acks::Default => self.settings().ack_on_commit,
        };
        let arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
        let how = How { arrival_ms, ..How::of(topic, awaits_commit, now_ms()) };
        if is_slow {
            self.metrics().publish_waits.add(1);
            let waits = Waits::Check(topic.clone());
            return Ok(Attempt::Waits(Box::new(WaitingPublish { cell, how, batch, waits, begin })));
        }
        self.attempt(&cell, how, batch, begin, wakes)
    }

    fn attempt(
        &self,
        cell: &Arc<PartitionCell>,
        how: How,
        batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        match self.append_to(cell, &how, batch, wakes) {
            Ok((published, Commit::Awaited(committed))) => {
                Ok(Attempt::Commits(CommittingPublish { published, committed, begin }))
            }
            Ok((published, commit)) => Ok(Attempt::Done(Published { is_committed: commit.is_reached(), ..published })),
            Err(Refused::Failed(error)) => Err(error),
            Err(Refused::Blocked(batch, blocking)) => {
                self.metrics().publish_waits.add(1);
                let waits = Waits::Room(blocking);
                Ok(Attempt::Waits(Box::new(WaitingPublish { cell: cell.clone(), how, batch, waits, begin })))
            }
        }
    }

    fn append_to(
        &self,
        cell: &Arc<PartitionCell>,
        how: &How,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> std::result::Result<(Published, Commit), Refused> {
        let (records, bytes) = (u64::from(batch.count()), batch.len() as u64);
        let context = AppendContext {
            budget: self.log_budget(),
            awaits_commit: how.awaits_commit,
            yields: how.yields,
            is_admitted: how.is_admitted,
            retention: how.retention,
            dedup: how.dedup.as_ref(),
            at: how.at,
            now_ms: how.now_ms,
        };
        let appended = cell.append(batch, &context, wakes)?;
        if appended.is_duplicate {
            self.metrics().publish_duplicates.add(1);
        } else {
            self.metrics().published_batches.add(1);
            self.metrics().published_records.add(records);
            self.metrics().published_bytes.add(bytes);
        }
        let (base_offset, receivers) = (appended.base_offset, appended.receivers as u32);
        let (partition, partitions, is_duplicate) = (cell.id, how.partitions, appended.is_duplicate);
        let arrival_ms = how.arrival_ms.filter(|_| !appended.is_duplicate);
        let published =
            Published { partition, base_offset, partitions, receivers, is_committed: false, is_duplicate, arrival_ms };
        Ok((published, appended.commit))
    }

    /// Waits until half of the journal's queue is free.
    async fn wait_for_journal(&self, cell: &PartitionCell, full: &Error, deadline: tokio::time::Instant) -> Result<()> {
        let room = self.journal_room().notified();
        tokio::pin!(room);
        room.as_mut().enable();
        // The journal may have made room since it refused the batch.
        if cell.admit().is_ok() {
            return Ok(());
        }
        tokio::time::timeout_at(deadline, room)
            .await
            .map_err(|elapsed| Error { message: format!("{} ({elapsed})", full.message), ..full.clone() })
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

impl CommittingPublish {
    /// Returns the position of the batch and the number of its receivers.
    pub fn published(&self) -> Published {
        self.published
    }
}

impl WaitingPublish {
    /// Waits for room, for at most the time that the settings allow, and publishes the batch.
    pub async fn finish(self, broker: &Broker, wakes: &mut Wakes) -> Result<Published> {
        let begin = self.begin;
        let result = self.append(broker, wakes).await;
        broker.count_publish(result.is_err(), begin, wakes);
        result
    }

    async fn append(self, broker: &Broker, wakes: &mut Wakes) -> Result<Published> {
        let Self { cell, mut how, mut batch, mut waits, .. } = self;
        let deadline = tokio::time::Instant::now() + broker.settings().publish_wait;
        loop {
            wakes.flush();
            match &waits {
                Waits::Check(topic) => {
                    let expansion = broker.settings().record_expansion_max;
                    batch = broker.checking.admit(topic, batch, expansion, deadline).await?;
                    how.arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
                }
                Waits::Room(Blocking::Subscriber(subscriber)) => {
                    wait_for_room(subscriber, &cell, batch.len(), deadline).await?;
                }
                Waits::Room(Blocking::Journal(full)) => broker.wait_for_journal(&cell, full, deadline).await?,
            }
            how.now_ms = now_ms();
            (batch, waits) = match broker.append_to(&cell, &how, batch, wakes) {
                Ok((published, commit)) => return finish_commit(published, commit).await,
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Blocked(batch, blocking)) => (batch, Waits::Room(blocking)),
            };
        }
    }
}

impl CommittingPublish {
    /// Waits until the journal has synced the batch.
    pub async fn finish(self, broker: &Broker) -> Result<Published> {
        let result = finish_commit(self.published, Commit::Awaited(self.committed)).await;
        broker.count_publish(result.is_err(), self.begin, &mut Wakes::default());
        result
    }
}

/// Waits for the commit of an append and returns the final outcome of its publish.
pub(crate) async fn finish_commit(published: Published, commit: Commit) -> Result<Published> {
    let is_committed = commit.is_reached() || matches!(commit, Commit::Awaited(_));
    committed(commit).await?;
    Ok(Published { is_committed, ..published })
}

/// Waits for a commit. Returns immediately if it has nothing to wait for.
pub(crate) async fn committed(commit: Commit) -> Result<()> {
    let Commit::Awaited(committed) = commit else {
        return Ok(());
    };
    committed.await.unwrap_or_else(|gone| {
        Err(Error::new(ErrorKind::Internal, format!("the partition was closed before its record was durable: {gone}")))
    })
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
