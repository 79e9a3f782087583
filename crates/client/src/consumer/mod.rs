//! Consumers: members of a group that read their share of its topics and commit their progress.

mod member;
mod reader;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use engine::groups::Assignor;
use engine::{Error, ErrorKind, Missing, Offset, PartitionId, Result, Start, TopicName, TopicPartition};
use futures_util::stream::{self, Stream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wire::TopicInfo;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::groups::committed_offsets;
use crate::pool::is_transient;
use crate::session::Session;
use crate::subscription::{Batch, Message, SubscriptionBuilder};
use crate::topics::describe_topic;
use member::{Member, Terms};
use reader::{Read, Reader, Readers, at_of};

/// Default interval of automatic commits.
const AUTO_COMMIT: Duration = Duration::from_secs(5);
const AUTO_COMMIT_MIN: Duration = Duration::from_millis(1);
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time that a consumer may process records before its partitions are assigned to others.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which a consumer without partitions checks that its topics still exist.
const IDLE_CHECK: Duration = Duration::from_secs(5);
/// Minimum credit of one partition in bytes.
const CREDIT_BYTES_MIN: u64 = 64 << 10;

/// Builder of a [`Consumer`].
#[must_use = "it does nothing until it is opened"]
pub struct ConsumerBuilder {
    session: Arc<Session>,
    terms: Terms,
    start: Start,
    auto_commit: Option<Duration>,
    buffer_bytes: u64,
    missing: Missing,
}

/// Member of a consumer group. Close it when you are done: a consumer that is only dropped leaves in the background,
/// and does not commit.
///
/// A returned record or event is considered processed when the next one is requested; that is the position that the
/// consumer commits, automatically or on request. So a record is redelivered if the program fails while it processes
/// it.
///
/// Its partitions take turns, one batch each. An error that concerns one partition ends only that one: the others
/// continue with the next call, and the failed one after a [`Consumer::seek`]. The deletion of a topic that it
/// subscribes to by name is such an error, reported once: with the next call the consumer waits for another topic with
/// that name. All waiting calls are cancel safe: they may be dropped and called again.
pub struct Consumer {
    session: Arc<Session>,
    member: Member,
    /// Start of partitions without a committed offset.
    start: Start,
    auto_commit: Option<Duration>,
    /// Maximum bytes in flight from the broker, shared by the partitions.
    buffer_bytes: u64,
    /// Connection that carries all its partitions.
    turn: usize,
    readers: Readers,
    owned: BTreeMap<TopicPartition, Owned>,
    /// Topics that it subscribes to by name. The value is `true` if the topic is considered deleted: the program
    /// received that error, or this membership has not read the topic yet although it may not exist.
    named: BTreeMap<TopicName, bool>,
    idle_check_due: Instant,
    /// Version and generation of the assignment that was last applied.
    seen: (u64, u64),
    /// Partitions that are released with the call after the one that reported the revocation.
    leaving: Vec<TopicPartition>,
    /// Records of the batch that [`Consumer::next`] returns from.
    current: Option<Current>,
    /// Events to return before any event that is read.
    pending: VecDeque<ConsumerEvent>,
    commit_due: Instant,
    /// Commit in flight, with its offsets.
    committing: Option<JoinHandle<(Vec<Progress>, Result<()>)>>,
}

/// Partition that this consumer reads.
#[derive(Default)]
struct Owned {
    /// Next offset for the program, once it is known.
    position: Option<Offset>,
    committed: Option<Offset>,
    is_paused: bool,
    /// Events of the partition that were read while it is paused, in order.
    held: VecDeque<ConsumerEvent>,
    /// Reader of a paused partition that has read as much as may be held.
    waiting: Option<Reader>,
}

struct Current {
    at: TopicPartition,
    batch: Batch,
    messages: VecDeque<Message>,
}

type Progress = (TopicPartition, Offset, String);

/// Event of a consumer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConsumerEvent {
    /// Records that were published together.
    Batch(Batch),
    /// Records in the range from `from` to `to` (exclusive) will not be delivered: retention removed them first.
    Gap {
        /// Name of the topic.
        topic: Arc<str>,
        /// Partition of the topic.
        partition: PartitionId,
        /// Offset of the first missing record.
        from: Offset,
        /// Offset after the last missing record.
        to: Offset,
    },
    /// All records were returned that the partition had when it was assigned to this consumer, or at the last seek.
    End {
        /// Name of the topic.
        topic: Arc<str>,
        /// Partition of the topic.
        partition: PartitionId,
        /// Offset after the last of these records.
        end: Offset,
    },
    /// Partitions that this consumer reads from now on, in addition to its others.
    Assigned(Vec<TopicPartition>),
    /// Partitions that are no longer read and that are assigned to others with the next call. Until then, their
    /// uncommitted records can be committed; no other operation on them is possible. A consumer with automatic commits
    /// commits them itself.
    Revoked(Vec<TopicPartition>),
    /// Partitions that were lost because the broker has removed this consumer from the group. Others may already read
    /// them, and uncommitted records are redelivered there.
    Lost(Vec<TopicPartition>),
}

impl Client {
    /// Starts building a member of a consumer group. It reads its share of the group's topics, so that each record is
    /// delivered to one member, and commits its progress.
    pub fn consumer(&self, group: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.session.clone(), group)
    }
}

impl ConsumerBuilder {
    fn new(session: Arc<Session>, group: &str) -> Self {
        let terms = Terms {
            group: group.to_owned(),
            instance: String::new(),
            topics: Vec::new(),
            assignor: Assignor::default(),
            session_timeout: SESSION_TIMEOUT,
            rebalance_timeout: REBALANCE_TIMEOUT,
        };
        let buffer_bytes = session.settings().event_stream_recv_window;
        let start = Start::Earliest;
        let auto_commit = Some(AUTO_COMMIT);
        let missing = Missing::Refuse;
        Self { session, terms, start, auto_commit, buffer_bytes, missing }
    }

    /// Adds a topic, or a pattern: `orders.*`, `orders.>`. May be called several times.
    pub fn topic(mut self, topic: &str) -> Self {
        self.terms.topics.push(topic.to_owned());
        self
    }

    /// Sets the behavior for a topic that does not exist when the consumer is opened; by default that is an error. With
    /// [`Missing::Wait`] the consumer is assigned the topic's partitions once the topic is created.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Sets an id that survives restarts of the program and that no other member uses (static membership). If the
    /// program restarts within the session timeout, it gets its partitions back without a rebalance.
    pub fn instance(mut self, instance: &str) -> Self {
        instance.clone_into(&mut self.terms.instance);
        self
    }

    /// Sets the start of partitions without a committed offset; by default the oldest record. With [`Start::Live`] a
    /// partition starts at its end when it is assigned to a consumer: earlier records of a new partition, or of a
    /// partition that moves before the first commit, are skipped.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the interval of automatic commits, 5 s by default; `None` leaves commits to [`Consumer::commit`].
    pub fn auto_commit(mut self, interval: Option<Duration>) -> Self {
        self.auto_commit = interval.map(|interval| interval.max(AUTO_COMMIT_MIN));
        self
    }

    /// Sets the time without a heartbeat after which the broker assigns the partitions to others; 30 s by default.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.terms.session_timeout = timeout;
        self
    }

    /// Sets the maximum time between two calls of [`Consumer::next`] while another member waits for a partition; 5 min
    /// by default.
    pub fn rebalance_timeout(mut self, timeout: Duration) -> Self {
        self.terms.rebalance_timeout = timeout;
        self
    }

    /// Limits the bytes in flight and unread, shared by all partitions, but at least 64 KiB for each; by default
    /// `event_stream_recv_window`. When they are used up, the broker stops sending until some are read; in the meantime
    /// it keeps nothing for this consumer but its position in the log.
    pub fn buffer_bytes(mut self, bytes: u64) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Sets the assignment strategy. The group uses the strategy that most of its members request.
    pub fn assignor(mut self, assignor: Assignor) -> Self {
        self.terms.assignor = assignor;
        self
    }

    /// Joins the group. If the future is dropped before it returns, it leaves the group again in the background.
    pub async fn open(self) -> Result<Consumer> {
        self.find_topics().await?;
        let is_awaited = self.missing == Missing::Wait;
        let named = self.named().filter_map(|topic| Some((TopicName::parse(topic).ok()?, is_awaited))).collect();
        let member = Member::join(self.session.clone(), self.terms).await?;
        Ok(Consumer {
            turn: self.session.events.next_turn(),
            commit_due: Instant::now() + self.auto_commit.unwrap_or_default(),
            session: self.session,
            member,
            start: self.start,
            auto_commit: self.auto_commit,
            buffer_bytes: self.buffer_bytes,
            readers: Readers::default(),
            owned: BTreeMap::new(),
            named,
            idle_check_due: Instant::now() + IDLE_CHECK,
            seen: (0, 0),
            leaving: Vec::new(),
            current: None,
            pending: VecDeque::new(),
            committing: None,
        })
    }

    /// Returns the topics that are named, without patterns and the broker's internal topics.
    fn named(&self) -> impl Iterator<Item = &String> {
        let is_name = |topic: &&String| !topic.contains(['*', '>']) && !engine::ids::is_internal(topic);
        self.terms.topics.iter().filter(is_name)
    }

    /// Checks or creates the named topics. The broker refuses internal topics when the group is joined.
    async fn find_topics(&self) -> Result<()> {
        for topic in self.named() {
            match self.missing {
                Missing::Refuse => drop(describe_topic(&self.session, topic).await?),
                Missing::Create => {
                    let topic = SubscriptionBuilder::new(self.session.clone(), topic);
                    drop(topic.missing(Missing::Create).open().await?);
                }
                Missing::Wait => {}
            }
        }
        Ok(())
    }
}

impl Consumer {
    /// Returns the next record. Skips gaps, ends and changes of the assignment, which [`Consumer::next_event`] reports.
    pub async fn next(&mut self) -> Result<Message> {
        loop {
            self.keep_up().await?;
            while !self.leaving.is_empty() {
                // This function reports no revocation, so it does not wait for the end of the current batch either.
                self.pending.retain(|event| !matches!(event, ConsumerEvent::Revoked(_)));
                self.keep_up().await?;
            }
            if let Some(current) = &mut self.current {
                if let Some(message) = current.messages.pop_front() {
                    return Ok(message);
                }
                self.finish_current();
            }
            match self.event().await? {
                ConsumerEvent::Batch(batch) => {
                    let at = at_of(&batch.topic, batch.partition)?;
                    match messages_of(&batch) {
                        Ok(messages) => self.current = Some(Current { at, batch, messages }),
                        Err(error) => {
                            // Unreadable records are not skipped: only a seek continues from here.
                            self.readers.stop(&at);
                            return Err(error);
                        }
                    }
                }
                ConsumerEvent::Gap { topic, partition, to, .. } => self.advance(&at_of(&topic, partition)?, to),
                ConsumerEvent::End { .. }
                | ConsumerEvent::Assigned(_)
                | ConsumerEvent::Revoked(_)
                | ConsumerEvent::Lost(_) => {}
            }
        }
    }

    /// Returns the records of [`Consumer::next`] as a stream. An error does not end it: partitions that the error does
    /// not concern continue. The consumer can be used again, to commit or to close it, after the stream is dropped.
    ///
    /// A record is considered processed when the next one is polled. So process each before that: records that a
    /// combinator such as `buffered` has read ahead may be committed before they are processed.
    ///
    /// ```no_run
    /// # async fn example(client: thalweg_client::Client) -> Result<(), thalweg_client::Error> {
    /// use futures_util::TryStreamExt;
    ///
    /// let mut billing = client.consumer("billing").topic("orders").open().await?;
    /// let mut orders = billing.stream();
    /// while let Some(order) = orders.try_next().await? {
    ///     println!("{} at {}", order.partition, order.record.offset);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(&mut self) -> impl Stream<Item = Result<Message>> + Send + Unpin + use<'_> {
        Box::pin(stream::unfold(self, async |this: &mut Self| Some((this.next().await, this))))
    }

    /// Returns the next batch, gap, end or change of the assignment.
    pub async fn next_event(&mut self) -> Result<ConsumerEvent> {
        self.keep_up().await?;
        let event = match self.rest_of_current() {
            Some(batch) => ConsumerEvent::Batch(batch),
            None => self.event().await?,
        };
        match &event {
            ConsumerEvent::Batch(batch) => {
                self.advance(&at_of(&batch.topic, batch.partition)?, batch.batch.next_offset());
            }
            ConsumerEvent::Gap { topic, partition, to, .. } => self.advance(&at_of(topic, *partition)?, *to),
            _ => {}
        }
        Ok(event)
    }

    /// Returns the partitions that this consumer reads.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.owned.keys().cloned().collect()
    }

    /// Returns the offset after the last returned record of a partition, or its start offset if none was returned;
    /// `None` while that is unknown.
    pub fn position(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        let at = at_of(topic, partition).ok()?;
        match &self.current {
            Some(current) if current.at == at => Some(current.position()),
            _ => self.owned.get(&at)?.position,
        }
    }

    /// Returns the number of records that follow the last returned one, for each partition of this consumer. Omits
    /// partitions whose position is not known yet.
    pub async fn lag(&self) -> Result<Vec<(TopicPartition, u64)>> {
        let mut found = Vec::new();
        let mut ends: Option<TopicInfo> = None;
        for at in self.owned.keys() {
            let topic = at.topic.as_str();
            // Partitions of a topic are neighbours.
            let info = match ends.take() {
                Some(info) if info.topic == topic => info,
                _ => describe_topic(&self.session, topic).await?,
            };
            let end = info.partitions.get(at.partition as usize).map(|partition| partition.end);
            if let (Some(end), Some(position)) = (end, self.position(topic, at.partition)) {
                found.push((at.clone(), end.saturating_sub(position)));
            }
            ends = Some(info);
        }
        Ok(found)
    }

    /// Commits all returned records, and waits until the broker has confirmed that.
    pub async fn commit(&mut self) -> Result<()> {
        self.finish_committing().await;
        let progress = self.progress();
        self.commit_now(progress).await
    }

    /// Commits these offsets, each the next one to read, of partitions that this consumer reads. The text is metadata
    /// that is stored with the offset.
    pub async fn commit_offsets(&mut self, offsets: &[(TopicPartition, Offset, String)]) -> Result<()> {
        self.finish_committing().await;
        self.commit_now(offsets.to_vec()).await
    }

    /// Moves to another position in a partition that this consumer reads.
    pub fn seek(&mut self, topic: &str, partition: PartitionId, to: Start) -> Result<()> {
        let at = self.owned_at(topic, partition)?;
        if self.current.as_ref().is_some_and(|current| current.at == at) {
            self.current = None;
        }
        self.pending.retain(|event| !is_of(event, &at));
        let credit = self.credit(self.owned.len());
        if let Some(owned) = self.owned.get_mut(&at) {
            *owned = Owned { committed: owned.committed, is_paused: owned.is_paused, ..Owned::default() };
        }
        self.readers.put(Reader::new(&self.session, self.turn, at, to, credit));
        Ok(())
    }

    /// Pauses a partition: no record of it is returned until it is resumed. It stays assigned to this consumer.
    pub fn pause(&mut self, topic: &str, partition: PartitionId) -> Result<()> {
        let at = self.owned_at(topic, partition)?;
        let is_current = self.current.as_ref().is_some_and(|current| current.at == at);
        let rest = if is_current { self.rest_of_current() } else { None };
        if let Some(owned) = self.owned.get_mut(&at) {
            owned.is_paused = true;
            owned.held.extend(rest.map(ConsumerEvent::Batch));
            let (held, others) = std::mem::take(&mut self.pending).into_iter().partition(|event| is_of(event, &at));
            let held: VecDeque<ConsumerEvent> = held;
            owned.held.extend(held);
            self.pending = others;
        }
        Ok(())
    }

    /// Resumes a paused partition, beginning with the events that were held.
    pub fn resume(&mut self, topic: &str, partition: PartitionId) -> Result<()> {
        let at = self.owned_at(topic, partition)?;
        if let Some(owned) = self.owned.get_mut(&at) {
            owned.is_paused = false;
            self.pending.append(&mut owned.held);
            owned.waiting.take().into_iter().for_each(|reader| self.readers.put(reader));
        }
        Ok(())
    }

    /// Commits the returned records if automatic commits are enabled, and leaves the group. The partitions of a static
    /// member stay reserved for it until its session expires.
    pub async fn close(mut self) -> Result<()> {
        self.finish_committing().await;
        let committed = match self.auto_commit {
            Some(_) => self.commit_now(self.progress()).await,
            None => Ok(()),
        };
        let left = self.member.leave().await;
        committed.and(left)
    }

    /// Applies changes of the assignment and starts due commits, which precedes every returned event.
    async fn keep_up(&mut self) -> Result<()> {
        let is_to_follow = |this: &Self| {
            if this.leaving.is_empty() {
                this.member.link.version() != this.seen.0
            } else {
                // The revocation is returned to the program first.
                !this.pending.iter().any(|event| matches!(event, ConsumerEvent::Revoked(_)))
            }
        };
        while is_to_follow(self) {
            self.follow().await?;
        }
        if self.auto_commit.is_some() && Instant::now() >= self.commit_due {
            self.commit_in_background().await;
        }
        Ok(())
    }

    /// Returns the next event for the program. The previous one is considered processed.
    async fn event(&mut self) -> Result<ConsumerEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            let link = self.member.link.clone();
            let commit_due = self.commit_due;
            tokio::select! {
                biased;
                () = link.changed.notified() => self.keep_up().await?,
                (reader, read) = self.readers.next() => {
                    if let Some(event) = self.take(reader, read)? {
                        return Ok(event);
                    }
                }
                () = tokio::time::sleep_until(commit_due), if self.auto_commit.is_some() => {
                    self.commit_in_background().await;
                }
                () = tokio::time::sleep_until(self.idle_check_due), if self.owned.is_empty() => {
                    self.idle_check_due = Instant::now() + IDLE_CHECK;
                    self.check_topics().await?;
                }
            }
        }
    }

    fn take(&mut self, reader: Reader, read: Read) -> Result<Option<ConsumerEvent>> {
        let Some(owned) = self.owned.get_mut(&reader.at) else {
            return Ok(None);
        };
        let event = match read {
            Read::Begins(begins) => {
                owned.position = Some(begins);
                self.note_topic(&reader.at.topic);
                self.readers.put(reader);
                return Ok(None);
            }
            Read::Gone => {
                // No offset of it may be committed for another topic with the same name.
                owned.position = None;
                owned.committed = None;
                let topic = reader.at.topic.clone();
                self.readers.put(reader);
                return self.report_deleted(&topic).map(|()| None);
            }
            Read::Batch(batch) => ConsumerEvent::Batch(batch),
            Read::Gap(from, to) => {
                let (topic, partition) = reader.place();
                ConsumerEvent::Gap { topic, partition, from, to }
            }
            Read::End(end) => {
                let (topic, partition) = reader.place();
                ConsumerEvent::End { topic, partition, end }
            }
            Read::Over => {
                self.named.entry(reader.at.topic).and_modify(|is_told| *is_told = true);
                return Ok(None);
            }
            Read::Failed(error) => return Err(error),
        };
        if owned.is_paused {
            owned.held.push_back(event);
            owned.waiting = Some(reader);
            return Ok(None);
        }
        self.readers.put(reader);
        Ok(Some(event))
    }

    /// Applies the broker's assignment: first releases revoked partitions, then adds new ones.
    async fn follow(&mut self) -> Result<()> {
        let view = self.member.link.view()?;
        if view.generation != self.seen.1 {
            self.lose();
            self.seen.1 = view.generation;
        }
        if !self.leaving.is_empty() {
            self.give_up().await;
            self.check_topics().await?;
        }
        let revoked: Vec<_> = self.owned.keys().filter(|at| !view.assignment.contains(*at)).cloned().collect();
        if !revoked.is_empty() {
            self.stop(&revoked);
            self.leaving.clone_from(&revoked);
            self.pending.push_back(ConsumerEvent::Revoked(revoked));
            return Ok(());
        }
        let gained: Vec<_> = view.assignment.iter().filter(|at| !self.owned.contains_key(*at)).cloned().collect();
        if !gained.is_empty() {
            self.gain(gained).await?;
        }
        self.seen.0 = view.version;
        Ok(())
    }

    /// Ends the membership and drops all its partitions.
    fn lose(&mut self) {
        let lost: Vec<_> = std::mem::take(&mut self.owned).into_keys().collect();
        lost.iter().for_each(|at| self.readers.stop(at));
        self.current = None;
        self.leaving.clear();
        self.pending.clear();
        // The broker may have been restarted and has no topics in memory then.
        self.named.values_mut().for_each(|is_told| *is_told = true);
        if !lost.is_empty() {
            self.pending.push_back(ConsumerEvent::Lost(lost));
        }
    }

    /// Stops these partitions: no further event of them reaches the program.
    fn stop(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.readers.stop(at);
            if self.current.as_ref().is_some_and(|current| current.at == *at) {
                self.finish_current();
            }
            self.pending.retain(|event| !is_of(event, at));
            if let Some(owned) = self.owned.get_mut(at) {
                owned.held.clear();
                owned.waiting = None;
            }
        }
    }

    async fn give_up(&mut self) {
        if self.auto_commit.is_some() {
            self.finish_committing().await;
            let mut progress = self.progress();
            progress.retain(|(at, _, _)| self.leaving.contains(at));
            if let Err(error) = self.commit_now(progress).await {
                tracing::debug!(group = self.member.link.group(), %error, "partitions were released without a commit");
            }
        }
        for at in std::mem::take(&mut self.leaving) {
            self.owned.remove(&at);
        }
        self.own();
    }

    /// Checks that the named topics without a partition here still exist: if a topic is deleted, the broker revokes its
    /// partitions.
    async fn check_topics(&mut self) -> Result<()> {
        let is_owned = |topic: &TopicName| self.owned.keys().any(|at| at.topic == *topic);
        let unsure = self.named.iter().filter(|(topic, is_told)| !**is_told && !is_owned(topic));
        for topic in unsure.map(|(topic, _)| topic.clone()).collect::<Vec<_>>() {
            // Any other error is an error of the connection, which the membership notices.
            if let Err(Error { kind: ErrorKind::NotFound, .. }) = describe_topic(&self.session, topic.as_str()).await {
                self.report_deleted(&topic)?;
            }
        }
        Ok(())
    }

    /// Returns an error, once, if the deleted topic was subscribed to by name.
    fn report_deleted(&mut self, topic: &TopicName) -> Result<()> {
        match self.named.get_mut(topic).map(|is_told| std::mem::replace(is_told, true)) {
            Some(false) => Err(Error::not_found(format!("topic {topic} was deleted"))),
            Some(true) | None => Ok(()),
        }
    }

    fn note_topic(&mut self, topic: &TopicName) {
        if let Some(is_told) = self.named.get_mut(topic) {
            *is_told = false;
        }
    }

    /// Reports the partitions that are read to the broker.
    fn own(&self) {
        let owned: BTreeSet<TopicPartition> = self.owned.keys().cloned().collect();
        self.member.link.own(self.seen.1, owned);
    }

    async fn gain(&mut self, gained: Vec<TopicPartition>) -> Result<()> {
        let group = self.member.link.group().to_owned();
        let deadline = Instant::now() + self.session.settings().request_timeout;
        let mut backoff = Backoff::new();
        let committed = loop {
            match committed_offsets(&self.session, &group, &gained).await {
                Ok(committed) => break committed,
                Err(error) if is_transient(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error),
            }
        };
        let committed: BTreeMap<_, _> = committed.into_iter().map(|(at, committed)| (at, committed.offset)).collect();
        let credit = self.credit(self.owned.len() + gained.len());
        for at in &gained {
            let committed = committed.get(at).copied();
            let start = committed.map_or(self.start.clone(), |offset| Start::Offsets(vec![(at.partition, offset)]));
            self.owned.insert(at.clone(), Owned { committed, ..Owned::default() });
            self.readers.put(Reader::new(&self.session, self.turn, at.clone(), start, credit));
        }
        self.own();
        self.pending.push_back(ConsumerEvent::Assigned(gained));
        Ok(())
    }

    /// Returns the credit of one of `partitions` partitions in bytes.
    fn credit(&self, partitions: usize) -> u64 {
        (self.buffer_bytes / partitions.max(1) as u64).max(CREDIT_BYTES_MIN)
    }

    /// Returns a partition that is read and is not being released.
    fn owned_at(&self, topic: &str, partition: PartitionId) -> Result<TopicPartition> {
        let at = at_of(topic, partition)?;
        if self.owned.contains_key(&at) && !self.leaving.contains(&at) {
            Ok(at)
        } else {
            Err(Error::not_found(format!("partition {at} is not assigned to this consumer")))
        }
    }

    fn advance(&mut self, at: &TopicPartition, next: Offset) {
        if let Some(owned) = self.owned.get_mut(at) {
            owned.position = Some(next);
        }
    }

    /// Ends the current batch for [`Consumer::next`]. Its remaining records are redelivered elsewhere.
    fn finish_current(&mut self) {
        if let Some(current) = self.current.take() {
            self.advance(&current.at, current.position());
        }
    }

    /// Returns the records of the current batch that [`Consumer::next`] has not returned.
    fn rest_of_current(&mut self) -> Option<Batch> {
        let current = self.current.take()?;
        let first = current.position();
        self.advance(&current.at, first);
        (!current.messages.is_empty()).then_some(Batch { first, ..current.batch })
    }

    /// Returns the positions that are not committed yet.
    fn progress(&self) -> Vec<Progress> {
        let position = |at: &TopicPartition, owned: &Owned| match &self.current {
            Some(current) if current.at == *at => Some(current.position()),
            _ => owned.position,
        };
        let moved = self.owned.iter().filter_map(|(at, owned)| {
            let position = position(at, owned).filter(|position| owned.committed != Some(*position))?;
            Some((at.clone(), position, String::new()))
        });
        moved.collect()
    }

    async fn commit_now(&mut self, progress: Vec<Progress>) -> Result<()> {
        if progress.is_empty() {
            return Ok(());
        }
        self.member.link.commit(self.seen.1, &progress).await?;
        self.note_committed(&progress);
        Ok(())
    }

    fn note_committed(&mut self, progress: &[Progress]) {
        for (at, offset, _) in progress {
            if let Some(owned) = self.owned.get_mut(at) {
                owned.committed = Some(*offset);
            }
        }
    }

    /// Starts a commit of the returned records, unless the last commit is still in flight.
    async fn commit_in_background(&mut self) {
        self.commit_due = Instant::now() + self.auto_commit.unwrap_or_default();
        if self.committing.as_ref().is_some_and(|committing| !committing.is_finished()) {
            return;
        }
        self.finish_committing().await;
        let progress = self.progress();
        if !progress.is_empty() {
            let link = self.member.link.clone();
            let generation = self.seen.1;
            self.committing = Some(tokio::spawn(async move {
                let result = link.commit(generation, &progress).await;
                (progress, result)
            }));
        }
    }

    async fn finish_committing(&mut self) {
        let Some(committing) = &mut self.committing else {
            return;
        };
        match committing.await {
            Ok((progress, Ok(()))) => self.note_committed(&progress),
            // The next commit contains all of it again. If this consumer was removed from the group, its heartbeat
            // reports that.
            Ok((_, Err(error))) => tracing::debug!(group = self.member.link.group(), %error, "a commit failed"),
            Err(panic) => tracing::debug!(%panic, "a commit failed"),
        }
        self.committing = None;
    }
}

impl Current {
    /// The offset of the next record.
    fn position(&self) -> Offset {
        self.messages.front().map_or(self.batch.batch.next_offset(), |message| message.record.offset)
    }
}

fn messages_of(batch: &Batch) -> Result<VecDeque<Message>> {
    let records = batch.records()?;
    let message = |record| Message { topic: batch.topic.clone(), partition: batch.partition, record };
    records.iter().map(|view| Ok(message(records.own(&view?)))).collect()
}

fn is_of(event: &ConsumerEvent, at: &TopicPartition) -> bool {
    match event {
        ConsumerEvent::Batch(Batch { topic, partition, .. })
        | ConsumerEvent::Gap { topic, partition, .. }
        | ConsumerEvent::End { topic, partition, .. } => **topic == *at.topic.as_str() && *partition == at.partition,
        _ => false,
    }
}
