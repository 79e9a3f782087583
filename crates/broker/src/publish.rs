//! Publishing: admission, placement, append and acknowledgement.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::ids::is_inbox;
use engine::mesh::Groups;
use engine::{Acks, DraftBatch, Error, ErrorKind, Offset, PartitionId, Result, Storage, TopicName};
use parking_lot::MutexGuard;
use tokio::time::Instant;

use crate::channels::Listeners;
use crate::commit::{Appended, Commit};
use crate::core::Core;
use crate::partition::{AppendOptions, Blocking, Kept, PartitionCell, Refused};
use crate::peers::Created;
use crate::subscriber::Subscriber;
use crate::topic::{Topic, refuse_internal};
use crate::traces::PublishTimes;
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
    begin: Option<Instant>,
    batch: DraftBatch,
    waits: Waits,
}

/// Cause for which a batch waits.
enum Waits {
    /// A partition takes no more, or the records have to be checked.
    Here { cell: Arc<PartitionCell>, options: AppendOptions, cause: Cause },
    /// The batch is for an inbox that this site does not have: another site of the mesh may have it.
    Away(TopicName),
}

/// Destination of a batch in its topic.
pub(crate) struct Destination {
    /// Partition, or `None` for the one that the topic chooses.
    pub partition: Option<PartitionId>,
    /// Queue groups that get the batch.
    pub groups: Groups,
}

/// Topic or channel of a name.
enum Named<'c> {
    Topic(Arc<Topic>),
    /// No topic of the name can be created before the listeners are unlocked.
    Channel(Arc<Topic>, MutexGuard<'c, Listeners>),
}

/// Cause for which a batch waits for its partition.
enum Cause {
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
        if is_inbox(topic) && !self.has_topic(topic) && self.mesh.get().is_ok() {
            let waits = Waits::Away(TopicName::parse(topic)?);
            return Ok(Attempt::Waits(Box::new(WaitingPublish { begin, batch, waits })));
        }
        let attempt = self.topic_for(topic, &batch);
        let attempt = attempt.and_then(|topic| {
            let to = Destination { partition, groups: Groups::All };
            self.place(&topic, to, acks, batch, begin, wakes)
        });
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
        let to = Destination { partition: Some(0), groups: Groups::All };
        self.try_publish_to_channel(name, to, |_topic| Ok(()), batch, wakes)
    }

    /// Publishes a batch of another site of the mesh: to the live topic or the inbox of this name, or else to its
    /// listeners. Fails as not found if this site has none of them.
    pub async fn publish_from_site(
        &self,
        name: &TopicName,
        partition: PartitionId,
        groups: Groups,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        refuse_internal(name.as_str())?;
        let not_taken = || Error::not_found(format!("{name} is neither a live topic here nor listened to"));
        let check = |topic: &Topic| if topic.takes_from_sites() { Ok(()) } else { Err(not_taken()) };
        if name.is_inbox() && !self.has_topic(name.as_str()) {
            return Err(not_taken());
        }
        let to = Destination { partition: Some(partition), groups };
        match self.try_publish_to_channel(name, to, check, batch, wakes)? {
            Some(attempt) => self.finish_attempt(attempt, wakes).await,
            None => Err(not_taken()),
        }
    }

    fn try_publish_to_channel(
        &self,
        name: &TopicName,
        to: Destination,
        check: impl FnOnce(&Topic) -> Result<()>,
        batch: DraftBatch,
        wakes: &mut Wakes,
    ) -> Result<Option<Attempt>> {
        let begin = self.settings().timings.then(Instant::now);
        let placed = match self.topic_or_channel(name) {
            Ok(None) => return Ok(None),
            Ok(Some(Named::Channel(channel, listeners))) => {
                let options = AppendOptions::of(&channel.settings, false, self.now_ms());
                let traced_since_us = self.traces().now_us();
                let options = AppendOptions { groups: to.groups, traced_since_us, ..options };
                let attempt =
                    channel.partition(0).and_then(|cell| self.try_append(&cell, options, batch, begin, wakes));
                drop(listeners);
                attempt
            }
            Ok(Some(Named::Topic(topic))) => check(&topic).and_then(|()| {
                let partition = to.partition.map(|partition| partition % topic.partitions().len() as u32);
                self.place(&topic, Destination { partition, ..to }, Acks::Accepted, batch, begin, wakes)
            }),
            Err(error) => Err(error),
        };
        if matches!(placed, Ok(Attempt::Done(_)) | Err(_)) {
            self.count_publish(placed.is_err(), begin, wakes);
        }
        placed.map(Some)
    }

    /// Returns the topic of a name, or else its channel, which is created if the name has listeners.
    fn topic_or_channel(&self, name: &TopicName) -> Result<Option<Named<'_>>> {
        let find = || self.topics.read().get(name.as_str()).cloned();
        if let Some(topic) = find() {
            return Ok(Some(Named::Topic(topic)));
        }
        let mut listeners = self.listeners.lock();
        // The topic may have been created since the first lookup. No topic can be created while the listeners are
        // locked.
        if let Some(topic) = find() {
            return Ok(Some(Named::Topic(topic)));
        }
        let admit = || {
            self.check_leads()?;
            self.peers().admit(Created::Channel)?;
            Ok((self.next_volatile_id(), self.topic_defaults(Storage::Memory)))
        };
        let channel = listeners.channel(name, self.log_budget(), admit, self.epoch())?;
        Ok(channel.map(|channel| Named::Channel(channel, listeners)))
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
        self.check_publish(topic)?;
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
        self.check_publish(topic)?;
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
        let traced_since_us = self.traces().now_us();
        AppendOptions { arrival_ms, traced_since_us, ..AppendOptions::of(&topic.settings, awaits_commit, now_ms) }
    }

    /// Admits a client's batch to a topic, chooses its partition, and attempts to append it.
    fn place(
        &self,
        topic: &Arc<Topic>,
        to: Destination,
        acks: Acks,
        mut batch: DraftBatch,
        begin: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        self.check_publish(topic)?;
        let expansion = self.settings().record_expansion_max;
        let is_slow = topic.admits_slowly(&batch, expansion);
        if !is_slow {
            topic.admit(&mut batch, expansion)?;
        }
        let cell = match to.partition {
            Some(partition) => topic.partition(partition)?,
            None => topic.partition_of(&batch)?,
        };
        let options = AppendOptions { groups: to.groups, ..self.options(topic, acks, &batch, self.now_ms()) };
        if is_slow {
            self.metrics().publish_waits.add(1);
            let waits = Waits::Here { cell, options, cause: Cause::Check(topic.clone()) };
            return Ok(Attempt::Waits(Box::new(WaitingPublish { begin, batch, waits })));
        }
        self.try_append(&cell, options, batch, begin, wakes)
    }

    /// Attempts to append a batch: the one way of all batches of clients.
    pub(crate) fn try_append(
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
                let waits = Waits::Here { cell: cell.clone(), options, cause: Cause::Room(blocking) };
                Ok(Attempt::Waits(Box::new(WaitingPublish { begin, batch, waits })))
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
        if let (Some(began_us), Some(kept)) = (options.traced_since_us, &appended.kept) {
            self.trace_publish(cell, kept, began_us, options.awaits_commit);
        }
        Ok((published, appended.commit))
    }

    /// Finishes the spans of a publish if its records are traced: now, or when its batch is durable.
    fn trace_publish(&self, cell: &PartitionCell, kept: &Kept, began_us: u64, awaits_commit: bool) {
        let Some(appended_us) = self.traces().now_us() else { return };
        let traced = self.traces().published(cell.source(), &kept.batch);
        if traced.is_empty() {
            return;
        }
        let term = self.leadership().map(|leadership| leadership.term);
        let times = PublishTimes { began_us, appended_us, answered_us: None, committed_us: None, term };
        if !kept.is_durable_later {
            self.traces().finish_publish(&traced, times, None);
            return;
        }
        if let Some(finish) = self.traces().at_commit(traced, times, awaits_commit) {
            cell.at_commit(kept.batch.next_offset(), finish);
        }
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
        let Self { begin, batch, waits } = self;
        let result = match waits {
            Waits::Here { cell, options, cause } => Self::append(core, cell, options, batch, cause, wakes).await,
            Waits::Away(inbox) => {
                wakes.flush();
                core.publish_away(inbox, batch).await
            }
        };
        core.count_publish(result.is_err(), begin, wakes);
        result
    }

    async fn append(
        core: &Core,
        cell: Arc<PartitionCell>,
        mut options: AppendOptions,
        mut batch: DraftBatch,
        mut cause: Cause,
        wakes: &mut Wakes,
    ) -> Result<Published> {
        let deadline = Instant::now() + core.settings().publish_wait;
        loop {
            wakes.flush();
            match &cause {
                Cause::Check(topic) => {
                    let expansion = core.settings().record_expansion_max;
                    batch = core.checking.admit(topic, batch, expansion, deadline).await?;
                    options.arrival_ms = topic.settings.arrival_times.then(|| batch.max_timestamp_ms());
                }
                Cause::Room(Blocking::Subscriber(subscriber)) => {
                    wait_for_room(subscriber, &cell, batch.len(), deadline).await?;
                }
                Cause::Room(Blocking::Journal(full)) => core.wait_for_journal(&cell, full, deadline).await?,
            }
            options.now_ms = core.now_ms();
            (batch, cause) = match core.append(&cell, &options, batch, wakes) {
                Ok((published, commit)) => return published.once(commit).await,
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Blocked(batch, blocking)) => (batch, Cause::Room(blocking)),
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
