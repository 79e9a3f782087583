//! Subscriptions, which resume at their position after a broken connection.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use engine::{Error, ErrorKind, Missing, Offset, Overflow, PartitionId, Record, RecordBatch, Records, Result, Start};
use futures_util::stream::{self, Stream};
use wire::{Push, Request, Response, SourceInfo, Subscribe};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::connection::{Connection, Events};
use crate::link::unexpected;
use crate::pool::is_transient;
use crate::session::Session;
use crate::topics::is_kept;

/// Builder of a [`Subscription`].
#[must_use = "it does nothing until it is opened"]
pub struct SubscriptionBuilder {
    session: Arc<Session>,
    request: Subscribe,
}

/// Open subscription. Dropping it closes it.
pub struct Subscription {
    session: Arc<Session>,
    /// Request that opened the subscription. Its start applies only to the first time.
    request: Subscribe,
    turn: usize,
    open: Open,
    /// `true` if the subscription has ended and was not resumed yet.
    is_broken: bool,
    /// Position of each partition, in the order of first delivery.
    next: Vec<Position>,
    /// Bytes that were read since the broker was last granted credit.
    unreported_bytes: u64,
    /// Remaining messages of the batch that [`Subscription::next`] returns from.
    messages: VecDeque<Message>,
    /// Events to return before the broker's next push.
    pending: VecDeque<Event>,
}

/// Subscription on one connection, which ends with that connection. Dropping it unsubscribes.
pub(crate) struct Open {
    pub connection: Arc<Connection>,
    pub events: Events,
    pub id: u32,
    pub sources: Vec<SourceInfo>,
}

struct Position {
    topic: Arc<str>,
    partition: PartitionId,
    next: Offset,
    /// Start offset of a pattern's first batch, if it lies within the batch.
    begin: Option<Offset>,
}

/// Event of a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Records that were published together.
    Batch(Batch),
    /// Records in the range from `from` to `to` (exclusive) will not be delivered: they were dropped, or retention
    /// removed them first.
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
    /// The broker was restarted and the topic was in memory, or the topic was deleted and created again: the next
    /// records are from another log, which begins at offset 0.
    Restarted,
    /// The connection broke, and a subscription to a pattern or in a queue group resumes live: records that were
    /// published in the meantime were not delivered.
    Reconnected,
}

/// Batch of records that were published together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Partition of the topic.
    pub partition: PartitionId,
    /// Complete batch as it is stored. It may begin before the first requested record; see [`Batch::records`].
    pub batch: RecordBatch,
    /// Offset of the first requested record; a batch may begin before it.
    pub(crate) first: Offset,
}

/// Record with its topic and partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Message {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Partition of the topic.
    pub partition: PartitionId,
    /// The record, with its offset.
    pub record: Record,
}

impl Batch {
    /// Returns the requested records in their order, decompressed if necessary.
    pub fn records(&self) -> Result<Records> {
        self.batch.records_from(self.first)
    }

    /// Returns the number of records that [`Batch::records`] yields.
    pub fn len(&self) -> usize {
        if self.batch.is_control() {
            return 0;
        }
        let skipped = self.first.saturating_sub(self.batch.base_offset());
        (self.batch.count() as usize).saturating_sub(skipped as usize)
    }

    /// Returns `true` if [`Batch::records`] yields no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Client {
    /// Starts building a subscription to a topic, or to a pattern: `orders.*`, `orders.>`.
    pub fn subscribe(&self, topic: &str) -> SubscriptionBuilder {
        SubscriptionBuilder::new(self.session.clone(), topic)
    }
}

impl SubscriptionBuilder {
    pub(crate) fn new(session: Arc<Session>, topic: &str) -> Self {
        let credit = session.settings().event_stream_recv_window;
        let request = Subscribe {
            subscription: 0,
            topic: topic.to_owned(),
            partition: None,
            start: Start::Live,
            overflow: Overflow::default(),
            queue_batches: 0,
            group: String::new(),
            credit,
            missing: Missing::Refuse,
        };
        Self { session, request }
    }

    /// Sets the start of the subscription; by default [`Start::Live`], which delivers records published from now on.
    pub fn start(mut self, start: Start) -> Self {
        self.request.start = start;
        self
    }

    /// Restricts the subscription to one partition; `None`, the default, reads all.
    pub fn partition(mut self, partition: Option<PartitionId>) -> Self {
        self.request.partition = partition;
        self
    }

    /// Sets the behavior for a subscriber that reads too slowly; by default it continues to read from the log.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.request.overflow = overflow;
        self
    }

    /// Sets the number of batches that the broker queues for this subscriber; 0 selects the broker's default.
    pub fn queue_batches(mut self, batches: u32) -> Self {
        self.request.queue_batches = batches;
        self
    }

    /// Sets the behavior for a topic that does not exist; by default that is an error, which suggests the name of an
    /// existing topic if one is similar.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.request.missing = missing;
        self
    }

    /// Shares the topic with the other members of this queue group: each batch is delivered to one of them.
    pub fn group(mut self, group: &str) -> Self {
        group.clone_into(&mut self.request.group);
        self
    }

    /// Opens the subscription and waits until the broker has confirmed it.
    pub async fn open(self) -> Result<Subscription> {
        let turn = self.session.events.next_turn();
        let open = Open::new(&self.session, turn, &self.request).await?;
        let mut subscription = Subscription {
            session: self.session,
            request: self.request,
            turn,
            next: Vec::new(),
            open,
            is_broken: false,
            unreported_bytes: 0,
            messages: VecDeque::new(),
            pending: VecDeque::new(),
        };
        let start = subscription.request.start.clone();
        subscription.next = subscription.open.positions(&start);
        Ok(subscription)
    }
}

impl Subscription {
    /// Returns the partitions of this subscription, each with its start and with the end of its log at that time.
    pub fn sources(&self) -> &[SourceInfo] {
        &self.open.sources
    }

    /// Returns the next record. Skips gaps and restarts, which [`Subscription::next_event`] reports.
    pub async fn next(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(message);
            }
            if let Event::Batch(batch) = self.next_event().await? {
                let records = batch.records()?;
                for view in &records {
                    let record = records.own(&view?);
                    self.messages.push_back(Message { topic: batch.topic.clone(), partition: batch.partition, record });
                }
            }
        }
    }

    /// Returns the records as a stream. The stream ends after the first error; the subscription can be used again after
    /// the stream is dropped.
    ///
    /// ```no_run
    /// # async fn example(client: thalweg_client::Client) -> Result<(), thalweg_client::Error> {
    /// use futures_util::TryStreamExt;
    ///
    /// let mut orders = client.subscribe("orders").open().await?;
    /// let mut large = orders.stream().try_filter(|message| std::future::ready(message.record.value().len() > 100));
    /// while let Some(message) = large.try_next().await? {
    ///     println!("{} bytes at {}", message.record.value().len(), message.record.offset);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(&mut self) -> impl Stream<Item = Result<Message>> + Send + Unpin + use<'_> {
        Box::pin(stream::try_unfold(self, async |this: &mut Self| Ok(Some((this.next().await?, this)))))
    }

    /// Returns the next batch, gap or restart. Restores a broken connection, and then resumes after the last returned
    /// record. If that does not succeed within the request timeout, returns the error; the next call tries it again.
    pub async fn next_event(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            if self.is_broken {
                self.resume().await?;
                continue;
            }
            match self.open.events.next().await {
                Ok(push) => {
                    if let Some(event) = self.take(push)? {
                        return Ok(event);
                    }
                }
                Err(error) if is_transient(&error) => self.is_broken = true,
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, push: Push) -> Result<Option<Event>> {
        match push {
            Push::Deliver { partition, topic, batch, .. } => {
                let bytes = batch.len() as u64;
                let batch = RecordBatch::parse(batch)?;
                let is_pattern = self.is_pattern();
                let position = self.position(&topic, partition, batch.base_offset());
                let begin = position.begin.take();
                let first = match begin {
                    // A pattern resumes live, and a topic that was deleted and created again begins at 0.
                    _ if !is_pattern => position.next,
                    Some(begin) if begin < batch.next_offset() => begin.max(batch.base_offset()),
                    Some(_) | None => batch.base_offset(),
                };
                // Already returned before the connection broke.
                if batch.next_offset() <= first {
                    self.grant(bytes);
                    return Ok(None);
                }
                position.next = batch.next_offset();
                let topic = position.topic.clone();
                self.grant(bytes);
                Ok(Some(Event::Batch(Batch { topic, partition, batch, first })))
            }
            Push::Gap { partition, topic, from, to, .. } => {
                let position = self.position(&topic, partition, from);
                position.next = position.next.max(to);
                let topic = position.topic.clone();
                Ok(Some(Event::Gap { topic, partition, from, to }))
            }
            Push::Ended { error, .. } if is_transient(&error) => {
                self.is_broken = true;
                Ok(None)
            }
            Push::Ended { error, .. } => Err(error),
            Push::GoAway { .. } => Ok(None),
        }
    }

    /// Returns the position of a partition. A partition that is new here begins at `begin`.
    fn position(&mut self, topic: &str, partition: PartitionId, begin: Offset) -> &mut Position {
        let topic = if topic.is_empty() { &self.request.topic } else { topic };
        let found = self.next.iter().position(|known| known.partition == partition && &*known.topic == topic);
        let at = found.unwrap_or_else(|| {
            self.next.push(Position { topic: topic.into(), partition, next: begin, begin: None });
            self.next.len() - 1
        });
        &mut self.next[at]
    }

    /// Grants the broker new credit once half of it is used up.
    fn grant(&mut self, bytes: u64) {
        self.unreported_bytes += bytes;
        if self.unreported_bytes * 2 >= self.request.credit {
            self.open.grant(std::mem::take(&mut self.unreported_bytes));
        }
    }

    async fn resume(&mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + self.session.settings().request_timeout;
        let instance = self.open.connection.hello.instance;
        let mut backoff = Backoff::new();
        loop {
            let mut request = self.request.clone();
            if !self.is_pattern() && request.group.is_empty() {
                request.start = Start::Offsets(self.next.iter().map(|p| (p.partition, p.next)).collect());
            } else {
                request.start = Start::Live;
            }
            let result = self.reopen(&request, instance).await;
            match result {
                Ok(()) => {
                    self.is_broken = false;
                    return Ok(());
                }
                Err(error) if is_transient(&error) => {
                    let wait = backoff.next();
                    if tokio::time::Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    tokio::time::sleep(wait).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn reopen(&mut self, request: &Subscribe, instance: u64) -> Result<()> {
        let connection = self.session.events.connection(self.turn).await?;
        let is_restarted = connection.hello.instance != instance;
        let mut request = request.clone();
        // A restarted broker has no topics in memory: the subscription continues when its topic is used again. If the
        // broker was not restarted, the topic can only have been deleted.
        if is_restarted {
            request.missing = Missing::Wait;
        } else if !self.next.is_empty() {
            request.missing = Missing::Refuse;
        }
        let has_offsets = matches!(request.start, Start::Offsets(_));
        let is_kept = is_restarted && has_offsets && is_kept(&self.session, &self.request.topic).await?;
        if is_restarted && has_offsets && !is_kept {
            // All records of the restarted broker are new.
            request.start = Start::Earliest;
        }
        let reopened = Open::new(&self.session, self.turn, &request).await;
        self.open = reopened.map_err(|error| match error.kind {
            ErrorKind::NotFound if !self.is_pattern() => {
                Error::not_found(format!("topic {} was deleted while the connection was broken", self.request.topic))
            }
            _ => error,
        })?;
        if let Start::Offsets(known) = &mut request.start {
            let is_new = |source: &&SourceInfo| known.iter().all(|(partition, _)| *partition != source.partition);
            let added: Vec<_> = self.open.sources.iter().filter(is_new).map(|source| (source.partition, 0)).collect();
            if !added.is_empty() {
                // Partitions were added to the topic in the meantime: all their records are new.
                known.extend(added);
                self.open = Open::new(&self.session, self.turn, &request).await?;
            }
        }
        self.unreported_bytes = 0;
        // A log that ends before the last returned record is another log: its topic was deleted and created again.
        let is_anew = |position: &Position| {
            let mut sources = self.open.sources.iter();
            sources.any(|source| source.partition == position.partition && source.end < position.next)
        };
        if (is_restarted && !is_kept) || (!self.is_pattern() && self.next.iter().any(is_anew)) {
            self.next = self.open.positions(&request.start);
            self.pending.push_back(Event::Restarted);
        } else if request.start == Start::Live {
            self.pending.push_back(Event::Reconnected);
        }
        Ok(())
    }

    fn is_pattern(&self) -> bool {
        self.request.topic.contains(['*', '>'])
    }
}

impl Open {
    /// Returns the position at which each partition begins for a subscription with this start.
    fn positions(&self, start: &Start) -> Vec<Position> {
        let sources = self.sources.iter();
        sources
            .map(|source| {
                // A gap notice reports requested records that no longer exist.
                let asked = match start {
                    Start::Offset(offset) => (*offset).min(source.end),
                    _ => source.start,
                };
                Position {
                    topic: source.topic.as_str().into(),
                    partition: source.partition,
                    next: asked,
                    begin: Some(asked),
                }
            })
            .collect()
    }

    pub(crate) async fn new(session: &Session, turn: usize, request: &Subscribe) -> Result<Self> {
        let connection = session.events.connection(turn).await?;
        let id = connection.next_subscription();
        let events = connection.expect_events(id)?;
        let request = Request::Subscribe(Subscribe { subscription: id, ..request.clone() });
        let answer = connection.control.request(&request, session.settings().request_timeout).await;
        match answer {
            Ok(Response::Subscribed { sources, .. }) => Ok(Self { connection, events, id, sources }),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => {
                connection.forget_events(id);
                Err(error)
            }
        }
    }
}

impl Open {
    /// Grants the broker credit for `bytes` more bytes.
    pub(crate) fn grant(&self, bytes: u64) {
        let mut buf = BytesMut::new();
        Request::Credit { subscription: self.id, bytes }.encode(0, &mut buf);
        // If the connection is broken, the next read returns the error.
        self.connection.control.send_one_way([buf.freeze()]).unwrap_or_default();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.forget_events(self.id);
        let mut buf = BytesMut::new();
        let control = &self.connection.control;
        Request::Unsubscribe { subscription: self.id }.encode(control.next_correlation(), &mut buf);
        // The subscription ends with its connection, so a broken connection is no error here.
        control.send_one_way([buf.freeze()]).unwrap_or_default();
    }
}
