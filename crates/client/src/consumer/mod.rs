//! Consumers: members of a group that read their share of its topics and commit how far they are.

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
use reader::{Read, Reader, Readers};

/// The interval of commits that a consumer makes by itself.
const AUTO_COMMIT: Duration = Duration::from_secs(5);
const AUTO_COMMIT_MIN: Duration = Duration::from_millis(1);
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a consumer may be busy with what it was given before others get its partitions.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a consumer without partitions checks whether its topics still exist.
const IDLE_CHECK: Duration = Duration::from_secs(5);
/// Bytes that one partition may have on the way to a consumer, at least.
const CREDIT_BYTES_MIN: u64 = 64 << 10;

/// A [`Consumer`] before it joins its group.
#[must_use = "it does nothing until it is opened"]
pub struct ConsumerBuilder {
    session: Arc<Session>,
    terms: Terms,
    start: Start,
    auto_commit: Option<Duration>,
    buffer_bytes: u64,
    missing: Missing,
}

/// A member of a consumer group. Close it when you are done: one that is just dropped leaves in the background, and
/// does not commit.
///
/// Whatever it has returned counts as done when the next record or event is asked for; that is what it commits, by
/// itself or when it is told to. So a record that is being worked on comes again if the program fails.
///
/// Its partitions take turns, a batch each. An error that concerns one of them ends only that one: the others go on
/// with the next call, and that one after a [`Consumer::seek`]. A topic that it subscribes to by its name and that is
/// deleted is such an error, once: with the next call the consumer waits for another topic of the name. All that waits
/// may be dropped and asked for again.
pub struct Consumer {
    session: Arc<Session>,
    member: Member,
    /// Where partitions begin of which nothing is committed.
    start: Start,
    auto_commit: Option<Duration>,
    /// Bytes that may be on the way from the broker, shared by the partitions.
    buffer_bytes: u64,
    /// The connection that all its partitions come over.
    turn: usize,
    readers: Readers,
    owned: BTreeMap<TopicPartition, Owned>,
    /// Topics that it subscribes to by their names, each with whether it counts as deleted: the program received that
    /// error, or this membership has not read it yet although it may not exist.
    named: BTreeMap<TopicName, bool>,
    idle_check_due: Instant,
    /// The version and the generation of the assignment that was followed.
    seen: (u64, u64),
    /// Partitions that are given up with the call after the one that told the program.
    leaving: Vec<TopicPartition>,
    /// Records of the batch that [`Consumer::next`] is in.
    current: Option<Current>,
    /// What comes before anything that is read.
    pending: VecDeque<ConsumerEvent>,
    commit_due: Instant,
    /// A commit on its way, with what it commits.
    committing: Option<JoinHandle<(Vec<Progress>, Result<()>)>>,
}

/// A partition that this consumer reads.
#[derive(Default)]
struct Owned {
    /// The next offset for the program, once it is known.
    position: Option<Offset>,
    committed: Option<Offset>,
    is_paused: bool,
    /// What was read of it while it is paused, in order.
    held: VecDeque<ConsumerEvent>,
    /// Its reader, which has read all that a paused partition may hold.
    waiting: Option<Reader>,
}

struct Current {
    at: TopicPartition,
    batch: Batch,
    messages: VecDeque<Message>,
}

type Progress = (TopicPartition, Offset, String);

/// What a consumer gets.
#[derive(Clone, Debug)]
pub enum ConsumerEvent {
    Batch(Batch),
    /// Records from `from` up to, not including, `to` do not come: retention removed them first.
    Gap {
        topic: Arc<str>,
        partition: PartitionId,
        from: Offset,
        to: Offset,
    },
    /// All that the partition had when it came to this consumer, or when it was sought in, was returned.
    End {
        topic: Arc<str>,
        partition: PartitionId,
        end: Offset,
    },
    /// These partitions are read from now on, too.
    Assigned(Vec<TopicPartition>),
    /// Nothing comes from these any more, and with the next call others get them: what is not yet committed of
    /// them can be committed before, and nothing else can be done with them. Where the consumer commits by itself,
    /// it does.
    Revoked(Vec<TopicPartition>),
    /// The broker has put this consumer out, and others may read these already: what was not committed comes there
    /// again.
    Lost(Vec<TopicPartition>),
}

impl Client {
    /// Begins a member of a consumer group: it reads its share of the group's topics, each record once in the group,
    /// and commits how far it is.
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
        let (start, auto_commit, missing) = (Start::Earliest, Some(AUTO_COMMIT), Missing::Refuse);
        Self { session, terms, start, auto_commit, buffer_bytes, missing }
    }

    /// A topic, or a pattern: `orders.*`, `orders.>`. May be said several times.
    pub fn topic(mut self, topic: &str) -> Self {
        self.terms.topics.push(topic.to_owned());
        self
    }

    /// What happens where a topic does not exist when the consumer is opened; by default that is an error. With
    /// [`Missing::Wait`] it gets the topic's partitions once the topic is created.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// An id that stays the same when the program is started anew, and that no other member has. Started again
    /// within the session timeout it gets its partitions back, and the others notice nothing.
    pub fn instance(mut self, instance: &str) -> Self {
        instance.clone_into(&mut self.terms.instance);
        self
    }

    /// Where partitions begin of which the group has committed nothing; by default with the oldest record.
    /// [`Start::Live`] means what is published from when a consumer gets the partition: what came before, to a new
    /// partition or to one that moves before the first commit, is passed over.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How often it commits by itself, every 5 s by default; `None` leaves that to [`Consumer::commit`].
    pub fn auto_commit(mut self, interval: Option<Duration>) -> Self {
        self.auto_commit = interval.map(|interval| interval.max(AUTO_COMMIT_MIN));
        self
    }

    /// How long the broker may hear nothing of this consumer before its partitions go to others; 30 s by default.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.terms.session_timeout = timeout;
        self
    }

    /// How long the program may take from one call of [`Consumer::next`] to the next while another member waits for
    /// a partition; 5 min by default.
    pub fn rebalance_timeout(mut self, timeout: Duration) -> Self {
        self.terms.rebalance_timeout = timeout;
        self
    }

    /// Bytes that may be on the way and unread, shared by all partitions, but at least 64 KiB for each; by default
    /// `event_stream_recv_window`. When they are used up the broker sends no more before some were read; it keeps
    /// nothing for this consumer meanwhile but its place in the log.
    pub fn buffer_bytes(mut self, bytes: u64) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// How partitions are shared out. The group uses the assignor that most of its members ask for.
    pub fn assignor(mut self, assignor: Assignor) -> Self {
        self.terms.assignor = assignor;
        self
    }

    /// Joins the group. Dropped before it returns it leaves the group again in the background.
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
}

impl ConsumerBuilder {
    /// The topics that are named, without patterns and topics of the broker itself.
    fn named(&self) -> impl Iterator<Item = &String> {
        let is_name = |topic: &&String| !topic.contains(['*', '>']) && !engine::ids::is_internal(topic);
        self.terms.topics.iter().filter(is_name)
    }

    /// Sees to the topics that are named. Those of the broker itself it refuses when the group is joined.
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
    /// The next record. Gaps, ends and changes of the assignment are passed over; [`Consumer::next_event`] tells them.
    pub async fn next(&mut self) -> Result<Message> {
        loop {
            self.keep_up().await?;
            while !self.leaving.is_empty() {
                // Nobody is told of it here, so it does not wait for the end of the current batch either.
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
                            // What cannot be read is not passed over: only a seek goes on from here.
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

    /// Records as a stream, as [`Consumer::next`] returns them. An error does not end it: partitions that it does
    /// not concern follow. The consumer can be used again, to commit or to close it, when the stream is dropped.
    ///
    /// A record counts as done when the next one is polled. So process each before that: what a combinator such as
    /// `buffered` has read ahead may be committed before it is processed.
    ///
    /// ```no_run
    /// # async fn example(client: client::Client) -> Result<(), client::Error> {
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

    /// The next batch, gap, end or change of the assignment.
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

    /// The partitions that this consumer reads.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.owned.keys().cloned().collect()
    }

    /// The offset after the last record that was returned of a partition, or where it begins; `None` while that is
    /// not known.
    pub fn position(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        let at = at_of(topic, partition).ok()?;
        match &self.current {
            Some(current) if current.at == at => Some(current.position()),
            _ => self.owned.get(&at)?.position,
        }
    }

    /// How many records each of its partitions has beyond those that were returned. One that has not begun yet is
    /// left out.
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

    /// Commits all that was returned, and waits until that is safe.
    pub async fn commit(&mut self) -> Result<()> {
        self.finish_committing().await;
        let progress = self.progress();
        self.commit_now(progress).await
    }

    /// Commits these offsets, each the next one to read, of partitions that this consumer reads. The text is a note
    /// that comes back with the offset.
    pub async fn commit_offsets(&mut self, offsets: &[(TopicPartition, Offset, String)]) -> Result<()> {
        self.finish_committing().await;
        self.commit_now(offsets.to_vec()).await
    }

    /// Goes on elsewhere in a partition that this consumer reads.
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

    /// Nothing comes from this partition until it is resumed. It stays with this consumer.
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

    pub fn resume(&mut self, topic: &str, partition: PartitionId) -> Result<()> {
        let at = self.owned_at(topic, partition)?;
        if let Some(owned) = self.owned.get_mut(&at) {
            owned.is_paused = false;
            self.pending.append(&mut owned.held);
            owned.waiting.take().into_iter().for_each(|reader| self.readers.put(reader));
        }
        Ok(())
    }

    /// Commits what was returned, where the consumer commits by itself, and leaves the group. A static member only
    /// steps away: its partitions wait for it until its session is over.
    pub async fn close(mut self) -> Result<()> {
        self.finish_committing().await;
        let committed = match self.auto_commit {
            Some(_) => self.commit_now(self.progress()).await,
            None => Ok(()),
        };
        let left = self.member.leave().await;
        committed.and(left)
    }

    /// What has to happen before anything is returned: following the assignment, and commits.
    async fn keep_up(&mut self) -> Result<()> {
        let is_to_follow = |this: &Self| match this.leaving.is_empty() {
            true => this.member.link.version() != this.seen.0,
            // The program hears of it first.
            false => !this.pending.iter().any(|event| matches!(event, ConsumerEvent::Revoked(_))),
        };
        while is_to_follow(self) {
            self.follow().await?;
        }
        if self.auto_commit.is_some() && Instant::now() >= self.commit_due {
            self.commit_in_background().await;
        }
        Ok(())
    }

    /// The next thing for the program. What it was given before is done.
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
                // Nothing of it may be committed for another one of its name.
                (owned.position, owned.committed) = (None, None);
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
            Read::Over => return Ok(None),
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

    /// Becomes what the broker wants: first what is to be given up, then what is new.
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

    /// The membership is over, and with it all that it had.
    fn lose(&mut self) {
        let lost: Vec<_> = std::mem::take(&mut self.owned).into_keys().collect();
        lost.iter().for_each(|at| self.readers.stop(at));
        self.current = None;
        self.leaving.clear();
        self.pending.clear();
        // The broker may be another one, which in memory has no topics yet.
        self.named.values_mut().for_each(|is_told| *is_told = true);
        if !lost.is_empty() {
            self.pending.push_back(ConsumerEvent::Lost(lost));
        }
    }

    /// Nothing more of these partitions reaches the program.
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
                tracing::debug!(group = self.member.link.group(), %error, "partitions were given up without a commit");
            }
        }
        for at in std::mem::take(&mut self.leaving) {
            self.owned.remove(&at);
        }
        self.own();
    }

    /// Checks whether the named topics of which it has no partition still exist: where one was deleted, the broker
    /// takes its partitions back.
    async fn check_topics(&mut self) -> Result<()> {
        let is_owned = |topic: &TopicName| self.owned.keys().any(|at| at.topic == *topic);
        let unsure = self.named.iter().filter(|(topic, is_told)| !**is_told && !is_owned(topic));
        for topic in unsure.map(|(topic, _)| topic.clone()).collect::<Vec<_>>() {
            // Any other error is that of the connection, which the membership notices.
            if let Err(Error { kind: ErrorKind::NotFound, .. }) = describe_topic(&self.session, topic.as_str()).await {
                self.report_deleted(&topic)?;
            }
        }
        Ok(())
    }

    /// Returns the error of a topic that was deleted, if it was subscribed to by its name; once.
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

    /// Tells the broker what is read.
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

    /// What one of so many partitions may have on the way.
    fn credit(&self, partitions: usize) -> u64 {
        (self.buffer_bytes / partitions.max(1) as u64).max(CREDIT_BYTES_MIN)
    }

    /// A partition that is read, and goes on to be.
    fn owned_at(&self, topic: &str, partition: PartitionId) -> Result<TopicPartition> {
        let at = at_of(topic, partition)?;
        match self.owned.contains_key(&at) && !self.leaving.contains(&at) {
            true => Ok(at),
            false => Err(Error::not_found(format!("partition {at} is not with this consumer"))),
        }
    }

    fn advance(&mut self, at: &TopicPartition, next: Offset) {
        if let Some(owned) = self.owned.get_mut(at) {
            owned.position = Some(next);
        }
    }

    /// The current batch is over for [`Consumer::next`]: what it has not returned comes again elsewhere.
    fn finish_current(&mut self) {
        if let Some(current) = self.current.take() {
            self.advance(&current.at, current.position());
        }
    }

    /// What [`Consumer::next`] has not returned of its batch.
    fn rest_of_current(&mut self) -> Option<Batch> {
        let current = self.current.take()?;
        let first = current.position();
        self.advance(&current.at, first);
        (!current.messages.is_empty()).then_some(Batch { first, ..current.batch })
    }

    /// What was returned and is not committed.
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

    /// Sends what was returned on its way, unless the last commit is still on its own.
    async fn commit_in_background(&mut self) {
        self.commit_due = Instant::now() + self.auto_commit.unwrap_or_default();
        if self.committing.as_ref().is_some_and(|committing| !committing.is_finished()) {
            return;
        }
        self.finish_committing().await;
        let progress = self.progress();
        if !progress.is_empty() {
            let (link, generation) = (self.member.link.clone(), self.seen.1);
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
            // The next one has it all again; if this consumer was put out, its heartbeat says so.
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

fn at_of(topic: &str, partition: PartitionId) -> Result<TopicPartition> {
    Ok(TopicPartition { topic: TopicName::parse(topic)?, partition })
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
