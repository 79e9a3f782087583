//! Readers of a consumer's partitions, each with a separate subscription.

use std::collections::HashMap;
use std::sync::Arc;

use engine::{
    Error, ErrorKind, Missing, Offset, Overflow, PartitionId, RecordBatch, Result, Start, TopicName, TopicPartition,
};
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use wire::{Push, Subscribe};

use crate::backoff::Backoff;
use crate::pool::is_transient;
use crate::session::Session;
use crate::subscription::{Batch, Open};
use crate::topics::is_kept;

/// Reader of one partition, which reconnects as often as necessary.
pub(super) struct Reader {
    session: Arc<Session>,
    /// Turn of the connection that all partitions of a consumer share.
    turn: usize,
    pub at: TopicPartition,
    topic: Arc<str>,
    start: Start,
    /// Next offset, once it is known.
    next: Option<Offset>,
    /// End of the log when the reader began, until that end is reported.
    end: Option<Offset>,
    /// Maximum bytes in flight.
    credit: u64,
    /// Bytes that were read since the broker was last granted credit.
    unreported_bytes: u64,
    open: Option<Open>,
    /// `true` if the topic was deleted and no other topic with its name was found yet.
    is_missing: bool,
    /// Broker instance that the reader reads from.
    instance: Option<u64>,
    backoff: Backoff,
}

pub(super) enum Read {
    /// The reader begins at this offset, for the first time or because the log is another one.
    Begins(Offset),
    Batch(Batch),
    /// Records from the first to the second offset (exclusive) will not be delivered.
    Gap(Offset, Offset),
    /// All records that existed when the reader began were read.
    End(Offset),
    /// The topic was deleted. A later topic with its name is another topic.
    Gone,
    /// The broker was restarted, and the records were in its memory: the partition is released.
    Over,
    Failed(Error),
}

impl Reader {
    pub(super) fn new(session: &Arc<Session>, turn: usize, at: TopicPartition, start: Start, credit: u64) -> Self {
        Self {
            session: session.clone(),
            turn,
            topic: at.topic.as_str().into(),
            at,
            start,
            next: None,
            end: None,
            credit,
            unreported_bytes: 0,
            open: None,
            is_missing: false,
            instance: None,
            backoff: Backoff::new(),
        }
    }

    pub(super) fn place(&self) -> (Arc<str>, PartitionId) {
        (self.topic.clone(), self.at.partition)
    }

    async fn read(mut self) -> (Self, Read) {
        loop {
            if let Some(end) = self.end.take_if(|end| self.next.is_some_and(|next| next >= *end)) {
                return (self, Read::End(end));
            }
            let result = match &mut self.open {
                Some(open) => match open.events.next().await {
                    Ok(push) => self.take(push),
                    Err(error) => Err(error),
                },
                None => self.reopen().await,
            };
            match result {
                Ok(Some(read)) => return (self, read),
                Ok(None) => {}
                Err(error) if error.kind == ErrorKind::NotFound && !self.is_missing => {
                    self.start = Start::Earliest;
                    self.next = None;
                    self.end = None;
                    self.open = None;
                    self.is_missing = true;
                    return (self, Read::Gone);
                }
                // If the topic stays deleted, the broker revokes the partition.
                Err(error) if is_transient(&error) || error.kind == ErrorKind::NotFound => {
                    self.open = None;
                    tokio::time::sleep(self.backoff.next()).await;
                }
                Err(error) => return (self, Read::Failed(error)),
            }
        }
    }

    async fn reopen(&mut self) -> Result<Option<Read>> {
        let connection = self.session.events.connection(self.turn).await?;
        let instance = connection.hello.instance;
        if *self.instance.get_or_insert(instance) != instance {
            if !is_kept(&self.session, &self.topic).await? {
                return Ok(Some(Read::Over));
            }
            self.instance = Some(instance);
        }
        let start = match self.next {
            Some(next) => Start::Offsets(vec![(self.at.partition, next)]),
            None => self.start.clone(),
        };
        let request = Subscribe {
            subscription: 0,
            topic: self.at.topic.to_string(),
            partition: Some(self.at.partition),
            start,
            overflow: Overflow::Replay,
            queue_batches: 0,
            group: String::new(),
            credit: self.credit,
            missing: Missing::Refuse,
        };
        let open = Open::new(&self.session, self.turn, &request).await?;
        let Some(source) = open.sources.first() else {
            return Err(Error::malformed("a subscription to a partition has no source"));
        };
        let begins = match request.start {
            // A gap reports missing records; a log that ends before the offset is another log, and is read from its
            // start.
            Start::Offset(offset) => offset.min(source.end),
            Start::Offsets(offsets) => offsets
                .first()
                .map(|(_, offset)| *offset)
                .filter(|offset| *offset <= source.end)
                .unwrap_or(source.start),
            Start::Live | Start::Earliest | Start::Time(_) => source.start,
        };
        let is_anew = self.next.is_none_or(|next| begins < next);
        if is_anew {
            self.end = Some(source.end);
        }
        self.next = Some(begins);
        self.open = Some(open);
        self.is_missing = false;
        self.unreported_bytes = 0;
        self.backoff = Backoff::new();
        Ok(is_anew.then_some(Read::Begins(begins)))
    }

    fn take(&mut self, push: Push) -> Result<Option<Read>> {
        let next = self.next.unwrap_or_default();
        match push {
            Push::Deliver { batch, .. } => {
                self.grant(batch.len() as u64);
                let batch = RecordBatch::parse(batch)?;
                if batch.next_offset() <= next {
                    return Ok(None);
                }
                self.next = Some(batch.next_offset());
                let (topic, partition) = self.place();
                Ok(Some(Read::Batch(Batch { topic, partition, batch, first: next })))
            }
            Push::Gap { from, to, .. } => {
                self.next = Some(next.max(to));
                Ok(Some(Read::Gap(from, to)))
            }
            Push::Ended { error, .. } => Err(error),
            Push::GoAway { .. } => Ok(None),
        }
    }

    /// Grants the broker new credit once half of it is used up.
    fn grant(&mut self, bytes: u64) {
        self.unreported_bytes += bytes;
        if self.unreported_bytes * 2 >= self.credit
            && let Some(open) = &self.open
        {
            open.grant(std::mem::take(&mut self.unreported_bytes));
        }
    }
}

pub(super) fn at_of(topic: &str, partition: PartitionId) -> Result<TopicPartition> {
    Ok(TopicPartition { topic: TopicName::parse(topic)?, partition })
}

type Step = Abortable<BoxFuture<'static, (Reader, Read)>>;

/// Readers of one consumer. A reader that has returned an event is not polled until the consumer puts it back.
#[derive(Default)]
pub(super) struct Readers {
    running: FuturesUnordered<Step>,
    handles: HashMap<TopicPartition, AbortHandle>,
}

impl Readers {
    /// Runs a reader, and stops any other reader of its partition.
    pub(super) fn put(&mut self, reader: Reader) {
        let (handle, registration) = AbortHandle::new_pair();
        if let Some(other) = self.handles.insert(reader.at.clone(), handle) {
            other.abort();
        }
        let step: BoxFuture<'static, _> = Box::pin(reader.read());
        self.running.push(Abortable::new(step, registration));
    }

    pub(super) fn stop(&mut self, at: &TopicPartition) {
        if let Some(handle) = self.handles.remove(at) {
            handle.abort();
        }
    }

    /// Returns the next event of any reader. Does not return while there are no readers.
    pub(super) async fn next(&mut self) -> (Reader, Read) {
        loop {
            match self.running.next().await {
                Some(Ok((reader, read))) => {
                    self.handles.remove(&reader.at);
                    return (reader, read);
                }
                // The reader was stopped.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}
