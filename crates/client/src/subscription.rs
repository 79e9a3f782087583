//! Subscriptions that go on after a broken connection where they were.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use engine::{
    Error, ErrorKind, Missing, Offset, Overflow, PartitionId, Record, RecordBatch, Records, Result, Start, Storage,
};
use futures_util::stream::{self, Stream};
use wire::{Push, Request, Response, SourceInfo, Subscribe};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::connection::{Connection, Events};
use crate::link::unexpected;
use crate::pool::is_transient;
use crate::session::Session;
use crate::topics::describe_topic;

/// A [`Subscription`] before it is opened.
#[must_use = "it does nothing until it is opened"]
pub struct SubscriptionBuilder {
    session: Arc<Session>,
    request: Subscribe,
}

/// An open subscription. Dropping it closes it.
pub struct Subscription {
    session: Arc<Session>,
    /// What was asked for; its start is only that of the first time.
    request: Subscribe,
    turn: usize,
    open: Open,
    /// Where each partition goes on, in the order in which they were met.
    next: Vec<Position>,
    /// Bytes that were read since the broker was last granted credit.
    unreported_bytes: u64,
    /// Messages of the batch that [`Subscription::next`] is in.
    messages: VecDeque<Message>,
    /// Events that have to come before what the broker sends.
    pending: VecDeque<Event>,
}

/// A subscription as long as its connection lasts. Dropping it ends it.
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
    /// Where a pattern's first batch begins, if that is within the batch.
    begin: Option<Offset>,
}

/// What a subscription gets.
#[derive(Clone, Debug)]
pub enum Event {
    Batch(Batch),
    /// Records from `from` up to, not including, `to` do not come: they were dropped, or retention
    /// removed them first.
    Gap {
        topic: Arc<str>,
        partition: PartitionId,
        from: Offset,
        to: Offset,
    },
    /// The broker was restarted and the topic was in memory, or the topic was deleted and created
    /// again: the next records are of another log, which begins at offset 0.
    Restarted,
    /// The connection broke, and a subscription of a pattern or a queue group goes on live: what was
    /// published meanwhile did not come.
    Reconnected,
}

/// Records as they were published together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    pub topic: Arc<str>,
    pub partition: PartitionId,
    pub batch: RecordBatch,
    /// The first record that was asked for; a batch may begin before it.
    pub(crate) first: Offset,
}

/// One record, with where it comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Message {
    pub topic: Arc<str>,
    pub partition: PartitionId,
    pub record: Record,
}

impl Batch {
    /// The records in their order, decompressed if need be.
    pub fn records(&self) -> Result<Records> {
        self.batch.records_from(self.first)
    }

    /// How many records [`Batch::records`] yields.
    pub fn len(&self) -> usize {
        if self.batch.is_control() {
            return 0;
        }
        let skipped = self.first.saturating_sub(self.batch.base_offset());
        (self.batch.count() as usize).saturating_sub(skipped as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Client {
    /// Begins a subscription to a topic, or to a pattern: `orders.*`, `orders.>`.
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

    /// Where to begin; by default with what is published from now on.
    pub fn start(mut self, start: Start) -> Self {
        self.request.start = start;
        self
    }

    /// Only this partition.
    pub fn partition(mut self, partition: Option<PartitionId>) -> Self {
        self.request.partition = partition;
        self
    }

    /// What happens when this subscriber reads too slowly; by default it reads on from the log.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.request.overflow = overflow;
        self
    }

    /// Batches that the broker queues for this subscriber; 0 for its default.
    pub fn queue_batches(mut self, batches: u32) -> Self {
        self.request.queue_batches = batches;
        self
    }

    /// What happens where the topic does not exist; by default that is an error, which names the topic that may have
    /// been meant.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.request.missing = missing;
        self
    }

    /// Shares the topic with the other members of this queue group: each batch goes to one of them.
    pub fn group(mut self, group: &str) -> Self {
        group.clone_into(&mut self.request.group);
        self
    }

    pub async fn open(self) -> Result<Subscription> {
        let turn = self.session.events.next_turn();
        let open = Open::new(&self.session, turn, &self.request).await?;
        let mut subscription = Subscription {
            session: self.session,
            request: self.request,
            turn,
            next: Vec::new(),
            open,
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
    /// The partitions that this subscription reads, with where it began and where they ended then.
    pub fn sources(&self) -> &[SourceInfo] {
        &self.open.sources
    }

    /// The next record. Gaps and restarts are passed over; [`Subscription::next_event`] tells them.
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

    /// Records as a stream. It ends after the first error; the subscription can be used again when the stream is
    /// dropped.
    ///
    /// ```no_run
    /// # async fn example(client: client::Client) -> Result<(), client::Error> {
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

    /// The next batch, gap or restart. A broken connection is made again, and the subscription goes on
    /// after the last record that was returned.
    pub async fn next_event(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            match self.open.events.next().await {
                Ok(push) => {
                    if let Some(event) = self.take(push).await? {
                        return Ok(event);
                    }
                }
                Err(error) if is_transient(&error) => self.resume().await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn take(&mut self, push: Push) -> Result<Option<Event>> {
        match push {
            Push::Deliver { partition, topic, batch, .. } => {
                let bytes = batch.len() as u64;
                let batch = RecordBatch::parse(batch)?;
                let is_pattern = self.is_pattern();
                let position = self.position(&topic, partition, batch.base_offset());
                let begin = position.begin.take();
                let first = match begin {
                    // A pattern resumes live, and a topic that was deleted and made again begins at 0.
                    _ if !is_pattern => position.next,
                    Some(begin) if begin < batch.next_offset() => begin.max(batch.base_offset()),
                    Some(_) | None => batch.base_offset(),
                };
                // Seen before a broken connection.
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
                self.resume().await?;
                Ok(None)
            }
            Push::Ended { error, .. } => Err(error),
            Push::GoAway { .. } => Ok(None),
        }
    }

    /// The position of a partition; one that was not met before begins here.
    fn position(&mut self, topic: &str, partition: PartitionId, begin: Offset) -> &mut Position {
        let topic = if topic.is_empty() { &self.request.topic } else { topic };
        let found = self.next.iter().position(|known| known.partition == partition && &*known.topic == topic);
        let at = found.unwrap_or_else(|| {
            self.next.push(Position { topic: topic.into(), partition, next: begin, begin: None });
            self.next.len() - 1
        });
        &mut self.next[at]
    }

    /// Lets the broker send on, once half of the credit is used up.
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
                Ok(()) => return Ok(()),
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
        // A broker that was started again has no topics in memory: this one continues when its topic is used again.
        // Of the same broker the topic can only have been deleted.
        if is_restarted {
            request.missing = Missing::Wait;
        } else if !self.next.is_empty() {
            request.missing = Missing::Refuse;
        }
        let has_offsets = matches!(request.start, Start::Offsets(_));
        let is_kept = is_restarted && has_offsets && self.is_kept().await?;
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
                // The topic has grown meanwhile: all of what these have is new.
                known.extend(added);
                self.open = Open::new(&self.session, self.turn, &request).await?;
            }
        }
        self.unreported_bytes = 0;
        // A log that ends before what was read is another one: its topic was deleted and made again.
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

    /// Whether the topic and its offsets survive a restart of the broker.
    async fn is_kept(&self) -> Result<bool> {
        match describe_topic(&self.session, &self.request.topic).await {
            Ok(topic) => Ok(topic.settings.storage != Storage::Memory),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_pattern(&self) -> bool {
        self.request.topic.contains(['*', '>'])
    }
}

impl Open {
    /// Where each partition begins for a subscription that asked for this start.
    fn positions(&self, start: &Start) -> Vec<Position> {
        let sources = self.sources.iter();
        sources
            .map(|source| {
                // A gap notice comes for what is asked for and gone.
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
    /// Lets the broker send so many bytes more.
    pub(crate) fn grant(&self, bytes: u64) {
        let mut buf = BytesMut::new();
        Request::Credit { subscription: self.id, bytes }.encode(0, &mut buf);
        // Where the connection is gone, the next read says so.
        self.connection.control.tell([buf.freeze()]).unwrap_or_default();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.forget_events(self.id);
        let mut buf = BytesMut::new();
        let control = &self.connection.control;
        Request::Unsubscribe { subscription: self.id }.encode(control.next_correlation(), &mut buf);
        // Where the connection is gone, so is the subscription.
        control.tell([buf.freeze()]).unwrap_or_default();
    }
}
