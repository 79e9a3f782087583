//! Publishing: admission, placement, append and acknowledgement.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Acks, DraftBatch, Error, ErrorKind, Offset, PartitionId, Result, Storage, TopicName};
use tokio::time::Instant;

use crate::commit::{Appended, Commit};
use crate::core::Core;
use crate::partition::{AppendOptions, Blocking, PartitionCell, Refused};
use crate::peers::Created;
use crate::subscriber::Subscriber;
use crate::topic::{Topic, refuse_internal};
use crate::wakes::Wakes;

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
    commit: Commit,
    begin: Option<Instant>,
}

/// A batch that may not be appended to its partition yet.
pub struct WaitingPublish {
    cell: Arc<PartitionCell>,
    options: AppendOptions,
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

impl Core {
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
        let attempt = self.topic_for(topic, &batch);
        let attempt = attempt.and_then(|topic| self.place(&topic, partition, acks, batch, begin, wakes));
        if matches!(attempt, Ok(Attempt::Done(_)) | Err(_)) {
            self.count_publish(attempt.is_err(), begin, wakes);
        }
        attempt
    }

    /// Returns the topic of a batch, which is created if the settings allow that.
    fn topic_for(&self, name: &str, batch: &DraftBatch) -> Result<Arc<Topic>> {
        if batch.is_transactional() && !self.admits_transactions.load(Ordering::Acquire) {
            return Err(Error::busy("the broker has just started and is still restoring open transactions"));
        }
        self.topic_or_create(name)
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
        let attempt = self.place_in_channel(name, batch, begin, wakes);
        if matches!(attempt, Ok(Some(Attempt::Done(_))) | Err(_)) {
            self.count_publish(attempt.is_err(), begin, wakes);
        }
        attempt
    }

    fn place_in_channel(
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
                        let admit = || {
                            self.check_leads()?;
                            self.peers().admit(Created::Channel)?;
                            Ok((self.next_volatile_id(), self.topic_defaults(Storage::Memory)))
                        };
                        let Some(channel) = listeners.channel(name, self.log_budget(), admit, self.epoch())? else {
                            return Ok(None);
                        };
                        let options = AppendOptions::of(&channel.settings, false, self.now_ms());
                        return self.try_append(&channel.partition(0)?, options, batch, begin, wakes).map(Some);
                    }
                }
            }
        };
        self.place(&topic, Some(0), Acks::Accepted, batch, begin, wakes).map(Some)
    }

    /// Waits until an attempt is finished.
    pub(crate) async fn finish_attempt(&self, attempt: Attempt, wakes: &mut Wakes) -> Result<Published> {
        match attempt {
            Attempt::Done(published) => Ok(published),
            Attempt::Waits(waiting) => waiting.finish(self, wakes).await,
            Attempt::Commits(committing) => committing.finish(self).await,
        }
    }

    /// Publishes a batch of messages of a queue. A batch whose deduplication id was sent recently is a duplicate.
    pub(crate) fn try_publish_once(
        &self,
        topic: &Topic,
        cell: &Arc<PartitionCell>,
        mut batch: DraftBatch,
        dedup: Option<Arc<[u8]>>,
        now_ms: u64,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        self.check_stored(topic)?;
        topic.admit(&mut batch, self.settings().record_expansion_max)?;
        let options = AppendOptions { dedup, ..self.options(topic, Acks::Default, &batch, now_ms) };
        self.try_append(cell, options, batch, None, wakes)
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
        self.check_stored(topic)?;
        let begin = self.settings().timings.then(Instant::now);
        topic.admit(&mut batch, self.settings().record_expansion_max)?;
        let options = AppendOptions { at: Some(at), ..self.options(topic, Acks::Default, &batch, self.now_ms()) };
        let attempt = self.try_append(cell, options, batch, begin, wakes);
        if matches!(attempt, Ok(Attempt::Done(_))) {
            self.count_publish(false, begin, wakes);
        }
        attempt
    }

    /// Appends a batch of the broker itself, with options of [`AppendOptions::own`] or
    /// [`AppendOptions::own_admitted`]. It never waits for subscribers or for room in the journal.
    pub(crate) fn append_own(
        &self,
        cell: &Arc<PartitionCell>,
        options: &AppendOptions,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let count = u64::from(batch.count());
        let (published, commit) = self.append(cell, options, batch, wakes).map_err(|refused| match refused {
            Refused::Failed(error) | Refused::Blocked(_, Blocking::Journal(error)) => error,
            Refused::Blocked(_, Blocking::Subscriber(subscriber)) => {
                Error::busy(format!("subscriber {} of topic {} blocks", subscriber.id, cell.topic))
            }
        })?;
        Ok(Appended { position: published.base_offset + count - 1, commit })
    }

    /// Returns the options of a client's batch, which the topic has admitted.
    fn options(&self, topic: &Topic, acks: Acks, batch: &DraftBatch, now_ms: u64) -> AppendOptions {
        let awaits_commit = match acks {
            Acks::None | Acks::Accepted => false,
            Acks::Committed => true,
            Acks::Default => self.settings().ack_on_commit,
        };
        let arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
        AppendOptions { arrival_ms, ..AppendOptions::of(&topic.settings, awaits_commit, now_ms) }
    }

    /// Admits a client's batch to a topic, chooses its partition, and attempts to append it.
    fn place(
        &self,
        topic: &Arc<Topic>,
        partition: Option<PartitionId>,
        acks: Acks,
        mut batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        self.check_stored(topic)?;
        let expansion = self.settings().record_expansion_max;
        let is_slow = topic.admits_slowly(&batch, expansion);
        if !is_slow {
            topic.admit(&mut batch, expansion)?;
        }
        let cell = match partition {
            Some(partition) => topic.partition(partition)?,
            None => topic.partition_of(&batch)?,
        };
        let options = self.options(topic, acks, &batch, self.now_ms());
        if is_slow {
            self.metrics().publish_waits.add(1);
            let waits = Waits::Check(topic.clone());
            return Ok(Attempt::Waits(Box::new(WaitingPublish { cell, options, batch, waits, begin })));
        }
        self.try_append(&cell, options, batch, begin, wakes)
    }

    /// Attempts to append a batch: the one way of all batches of clients.
    fn try_append(
        &self,
        cell: &Arc<PartitionCell>,
        options: AppendOptions,
        batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        match self.append(cell, &options, batch, wakes) {
            Ok((published, commit)) if commit.is_done() => Ok(Attempt::Done(published)),
            Ok((published, commit)) => Ok(Attempt::Commits(CommittingPublish { published, commit, begin })),
            Err(Refused::Failed(error)) => Err(error),
            Err(Refused::Blocked(batch, blocking)) => {
                self.metrics().publish_waits.add(1);
                let waits = Waits::Room(blocking);
                Ok(Attempt::Waits(Box::new(WaitingPublish { cell: cell.clone(), options, batch, waits, begin })))
            }
        }
    }

    /// Appends a batch and counts it: the one way of all batches.
    fn append(
        &self,
        cell: &Arc<PartitionCell>,
        options: &AppendOptions,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> std::result::Result<(Published, Commit), Refused> {
        let records = u64::from(batch.count());
        let bytes = batch.len() as u64;
        let appended = cell.append(batch, options, self.log_budget(), wakes)?;
        if appended.is_duplicate {
            self.metrics().publish_duplicates.add(1);
        } else {
            self.metrics().published_batches.add(1);
            self.metrics().published_records.add(records);
            self.metrics().published_bytes.add(bytes);
        }
        let base_offset = appended.base_offset;
        let receivers = appended.receivers as u32;
        let partition = cell.id;
        let partitions = options.partitions;
        let is_duplicate = appended.is_duplicate;
        let is_committed = appended.is_on_disk && appended.commit.is_done();
        let arrival_ms = appended.arrival_ms;
        let published =
            Published { partition, base_offset, partitions, receivers, is_committed, is_duplicate, arrival_ms };
        Ok((published, appended.commit))
    }

    /// Returns the id and the epoch of a new producer. Waits for the disk from time to time.
    pub async fn init_producer(self: &Arc<Self>) -> Result<(i64, i16)> {
        Ok((self.next_producer_id().await?, 0))
    }

    pub(crate) async fn next_producer_id(self: &Arc<Self>) -> Result<i64> {
        let core = self.clone();
        let given = tokio::task::spawn_blocking(move || core.producer_ids().next()).await;
        given.map_err(|error| Error::new(ErrorKind::Internal, format!("cannot assign a producer id: {error}")))?
    }

    /// Waits until half of the journal's queue is free.
    async fn wait_for_journal(&self, cell: &PartitionCell, full: &Error, deadline: Instant) -> Result<()> {
        let room = self.journal_room().notified();
        tokio::pin!(room);
        room.as_mut().enable();
        // The journal may have made room since it refused the batch.
        if cell.admit().is_ok() {
            return Ok(());
        }
        tokio::time::timeout_at(deadline, room)
            .await
            .map_err(|elapsed| full.clone().map_message(|why| format!("{why} ({elapsed})")))
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

impl Published {
    /// Waits for the commit of the batch.
    async fn once(self, commit: Commit) -> Result<Self> {
        let is_committed = self.is_committed || !commit.is_done();
        commit.wait().await?;
        Ok(Self { is_committed, ..self })
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
    pub async fn finish(self, core: &Core, wakes: &mut Wakes) -> Result<Published> {
        let begin = self.begin;
        let result = self.append(core, wakes).await;
        core.count_publish(result.is_err(), begin, wakes);
        result
    }

    async fn append(self, core: &Core, wakes: &mut Wakes) -> Result<Published> {
        let Self { cell, mut options, mut batch, mut waits, .. } = self;
        let deadline = Instant::now() + core.settings().publish_wait;
        loop {
            wakes.flush();
            match &waits {
                Waits::Check(topic) => {
                    let expansion = core.settings().record_expansion_max;
                    batch = core.checking.admit(topic, batch, expansion, deadline).await?;
                    options.arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
                }
                Waits::Room(Blocking::Subscriber(subscriber)) => {
                    wait_for_room(subscriber, &cell, batch.len(), deadline).await?;
                }
                Waits::Room(Blocking::Journal(full)) => core.wait_for_journal(&cell, full, deadline).await?,
            }
            options.now_ms = core.now_ms();
            (batch, waits) = match core.append(&cell, &options, batch, wakes) {
                Ok((published, commit)) => return published.once(commit).await,
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Blocked(batch, blocking)) => (batch, Waits::Room(blocking)),
            };
        }
    }
}

impl CommittingPublish {
    /// Waits until the journal has synced the batch.
    pub async fn finish(self, core: &Core) -> Result<Published> {
        let result = self.published.once(self.commit).await;
        core.count_publish(result.is_err(), self.begin, &mut Wakes::default());
        result
    }
}

async fn wait_for_room(
    subscriber: &Subscriber,
    cell: &Arc<PartitionCell>,
    bytes: usize,
    deadline: Instant,
) -> Result<()> {
    let room = subscriber.room();
    tokio::pin!(room);
    room.as_mut().enable();
    if !subscriber.is_blocking(cell, bytes) {
        return Ok(());
    }
    tokio::time::timeout_at(deadline, room).await.map_err(|elapsed| {
        Error::busy(format!(
            "subscriber {} of topic {} is full (overflow = block) and freed no room within \
             publish_queue_wait_timeout_ms ({elapsed}): retry, or give the subscriber another overflow policy",
            subscriber.id, cell.topic
        ))
    })
}
