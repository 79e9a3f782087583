//! Publishing of many records: gathered into batches, with many batches in flight, in order, each in the log once.

mod delivery;
mod lane;
mod ledger;
mod sender;
mod settings;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Acks, BatchBuilder, Codec, DraftBatch, Error, ErrorKind, Missing, PartitionId, Record, Result};
use tokio::sync::oneshot;
use wire::request::publish_frame;
use wire::response::Published;
use wire::{Response, TopicInfo};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::link::unexpected;
use crate::session::Session;
use crate::subscription::SubscriptionBuilder;
use crate::topics::describe_topic;

use delivery::Callback;
pub use delivery::{Delivered, Delivery};
use lane::Contents;
use ledger::{Gathered, Ledger, Wake, now_ms};
use sender::Sender;
use settings::Settings;
pub use settings::{ChoosePartition, Partitioner};

/// Default limit of the bytes of unacknowledged records that a publisher holds.
const BUFFER_BYTES: usize = 4 << 20;

/// Builder of a [`Publisher`].
#[must_use = "it does nothing until it is opened"]
pub struct PublisherBuilder {
    session: Arc<Session>,
    settings: Settings,
    is_idempotent: bool,
}

/// Publisher to one topic. Records of one publisher to one partition keep their order.
///
/// By default, a publisher is idempotent: it numbers its batches and repeats those that were temporarily refused or not
/// answered, and the broker accepts each batch once and in order.
pub struct Publisher {
    sender: Arc<Sender>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    /// Publishes one record and waits for its acknowledgement. For many records, use a [`Publisher`].
    pub async fn publish(&self, topic: &str, record: Record) -> Result<Published> {
        publish_once(&self.session, topic, record, Acks::Default).await
    }

    /// Starts building a publisher, which gathers records into batches and keeps many of them in flight.
    pub fn publisher(&self, topic: &str) -> PublisherBuilder {
        PublisherBuilder::new(self.session.clone(), topic)
    }
}

impl PublisherBuilder {
    fn new(session: Arc<Session>, topic: &str) -> Self {
        let given = session.settings();
        let settings = Settings {
            topic: topic.into(),
            acks: Acks::Default,
            partition: None,
            partitioner: Partitioner::default(),
            codec: Codec::None,
            batch_bytes: given.publish_chunk_bytes,
            linger: Duration::ZERO,
            buffer_bytes: BUFFER_BYTES,
            batches_in_flight_max: given.publishes_in_flight_max,
            delivery_timeout: given.request_timeout,
        };
        Self { session, settings, is_idempotent: true }
    }

    /// Sets the guarantee of an acknowledgement; by default the broker's setting. Without acknowledgements nothing is
    /// sent again.
    pub fn acks(mut self, acks: Acks) -> Self {
        self.settings.acks = acks;
        self
    }

    /// Publishes to this partition regardless of the key; `None`, the default, uses the partitioner.
    pub fn partition(mut self, partition: Option<PartitionId>) -> Self {
        self.settings.partition = partition;
        self
    }

    /// Sets the choice of the partition of each record; by default it depends on the key.
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.settings.partitioner = partitioner;
        self
    }

    /// Sets the compression of batches; none by default.
    pub fn compression(mut self, codec: Codec) -> Self {
        self.settings.codec = codec;
        self
    }

    /// Sets the size before compression at which gathered records are sent; by default the client's
    /// `publish_chunk_bytes`.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// Sets the maximum wait of a batch that is not full for more records, while other batches are in flight or records
    /// arrive one after the other; zero by default. A lone record never waits, and no batch waits while the buffer is
    /// full.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Limits the bytes of unacknowledged records, 4 MiB by default; beyond the limit [`Publisher::send`] waits. One
    /// record may exceed it.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.settings.buffer_bytes = bytes.max(1);
        self
    }

    /// Limits the duration of a delivery with all its attempts, from the time when the record was sent; by default the
    /// client's request timeout.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.settings.delivery_timeout = timeout;
        self
    }

    /// Enables the numbering of batches, which is on by default. Without it, a batch whose acknowledgement is lost is
    /// not sent again, and a batch that is temporarily refused arrives after batches that were accepted in the
    /// meantime.
    pub fn idempotent(mut self, is_idempotent: bool) -> Self {
        self.is_idempotent = is_idempotent;
        self
    }

    /// Connects, and reads the number of partitions. A topic that does not exist is created if the broker creates
    /// topics automatically; otherwise the first publish returns the error.
    pub async fn open(self) -> Result<Publisher> {
        let Self { session, mut settings, is_idempotent } = self;
        let turn = session.publish.next_turn();
        let taken_at_once = session.publish.connection(turn).await?.hello.publishes_in_flight_max as usize;
        let link = session.publish.link(turn).await?;
        let partitions = partitions(&session, &settings.topic).await?.unwrap_or(1);
        if let Some(partition) = settings.partition.filter(|partition| *partition >= partitions) {
            return Err(Error::no_partition(&settings.topic, partitions as usize, partition.into()));
        }
        let identity = if is_idempotent && settings.acks != Acks::None {
            Some(sender::init_producer(&session).await?)
        } else {
            None
        };
        settings.batches_in_flight_max = settings.batches_in_flight_max.min(taken_at_once).max(1);
        let ledger = Ledger::new(settings, partitions, identity, (turn as u64) << 32 | 0x9e37_79b9);
        let sender = Arc::new(Sender::new(Arc::new(ledger), session, turn, link));
        let task = tokio::spawn(sender::run(sender.clone()));
        Ok(Publisher { sender, task })
    }
}

/// Returns the number of partitions of a topic; `None` if the topic does not exist and is not created.
async fn partitions(session: &Arc<Session>, topic: &str) -> Result<Option<u32>> {
    let describe = async || -> Result<Option<TopicInfo>> {
        match describe_topic(session, topic).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            info => info.map(Some),
        }
    };
    if let Some(info) = describe().await? {
        return Ok(Some(info.settings.partitions));
    }
    // Only the broker knows the number of partitions of a new topic, and a key must not change its partition after the
    // first batch: a subscription creates the topic as a publish would.
    match SubscriptionBuilder::new(session.clone(), topic).missing(Missing::Create).open().await {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        // A client that may only write is refused once the topic exists.
        Err(error) if error.kind != ErrorKind::Denied => return Err(error),
        _ => {}
    }
    match describe().await {
        Err(error) if error.kind == ErrorKind::Denied => Ok(None),
        info => Ok(info?.map(|info| info.settings.partitions)),
    }
}

impl Publisher {
    /// Adds a record. It is sent together with others as soon as they fill a batch or the publisher is otherwise idle.
    /// Waits while the buffer is full. The returned value provides the outcome of the record, and [`Publisher::flush`]
    /// that of all records.
    pub async fn send(&self, record: &Record) -> Result<Delivery> {
        self.gather(record, &mut None).await
    }

    /// Adds a record as [`Publisher::send`] does, and calls a function with its outcome. The function runs on the
    /// thread that reads the connection: it should only forward the outcome, and must not panic.
    pub async fn send_then(
        &self,
        record: &Record,
        callback: impl FnOnce(Result<Delivered>) + Send + 'static,
    ) -> Result<()> {
        let callback: Callback = Box::new(callback);
        self.gather(record, &mut Some(callback)).await.map(drop)
    }

    /// Adds records as [`Publisher::send`] does, at a much lower cost for many records. [`Publisher::flush`] reports
    /// their outcome. If an error concerns one record, the records before it are already in flight. If the future is
    /// dropped while it waits, some of the records were added.
    pub async fn send_all(&self, mut records: &[Record]) -> Result<()> {
        while !records.is_empty() {
            let (added, wake, result) = self.ledger().gather_all(records);
            self.wake(wake);
            result?;
            records = &records[added..];
            if added == 0 {
                self.sender.send_now();
                self.ledger().room().await;
            }
        }
        Ok(())
    }

    /// Publishes one record immediately and waits for its acknowledgement; returns `None` without acknowledgements.
    pub async fn publish(&self, record: &Record) -> Result<Option<Published>> {
        self.publish_batch(std::slice::from_ref(record)).await
    }

    /// Publishes records as one batch, in the partition of the first record, and waits for their acknowledgement.
    /// Returns `None` without acknowledgements or without records.
    pub async fn publish_batch(&self, records: &[Record]) -> Result<Option<Published>> {
        let Some(first) = records.first() else {
            return Ok(None);
        };
        let builder = builder_of(records)?;
        let at = self.ledger().lane_of(first, builder.len())?;
        self.add(at, Contents::Records(builder), false).await.outcome().await
    }

    /// Sends a batch that is already built, without waiting for its acknowledgement.
    pub async fn send_batch(&self, partition: Option<PartitionId>, batch: DraftBatch) -> Result<()> {
        let at = self.ledger().lane_of_batch(partition, &batch)?;
        self.add(at, Contents::Built(batch), true).await;
        Ok(())
    }

    /// Sends all gathered records and waits until each is acknowledged or has failed. Returns the first error since the
    /// last flush, with the number of failed batches.
    pub async fn flush(&self) -> Result<()> {
        let ends = self.ledger().close_gathering();
        self.sender.send_now();
        let result = self.ledger().flushed(&ends).await;
        let settings = &self.ledger().settings;
        if settings.acks == Acks::None {
            let drained = tokio::time::timeout(settings.delivery_timeout, self.sender.drained()).await;
            drained.map_err(|elapsed| {
                Error::new(ErrorKind::Timeout, format!("the broker does not accept the sent records: {elapsed}"))
            })?;
        }
        result
    }

    fn ledger(&self) -> &Ledger {
        &self.sender.ledger
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Now => self.sender.send_now(),
            Wake::Idle => self.ledger().has_more.notify_one(),
            Wake::No => {}
        }
    }

    async fn gather(&self, record: &Record, callback: &mut Option<Callback>) -> Result<Delivery> {
        loop {
            match self.ledger().gather(record, callback)? {
                Gathered::Added { delivery, wake } => {
                    self.wake(wake);
                    return Ok(delivery);
                }
                Gathered::Full => {
                    self.sender.send_now();
                    self.ledger().room().await;
                }
            }
        }
    }

    /// Appends a batch to the batches of its partition, and has it sent.
    async fn add(&self, at: usize, mut contents: Contents, is_flushed: bool) -> Delivery {
        loop {
            contents = match self.ledger().add_batch(at, contents, is_flushed) {
                Ok(delivery) => {
                    self.sender.send_now();
                    return delivery;
                }
                Err(contents) => contents,
            };
            self.sender.send_now();
            self.ledger().room().await;
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
        let message = "the publisher was dropped before this was acknowledged";
        self.ledger().close(&Error::new(ErrorKind::Disconnected, message));
    }
}

/// Publishes one record by itself, on the pool's first stream.
pub(crate) async fn publish_once(session: &Session, topic: &str, record: Record, acks: Acks) -> Result<Published> {
    let mut builder = builder_of(std::slice::from_ref(&record))?;
    let batch = builder.finish().ok_or_else(no_record)?.into_bytes();
    let begin = Instant::now();
    let mut backoff = Backoff::new();
    loop {
        let link = session.publish.link(0).await?;
        let correlation = link.next_correlation();
        let answer = link.call(correlation, publish_frame(correlation, topic, None, acks, batch.clone()))?;
        let error = match acknowledged(session, answer).await {
            Ok(published) => return Ok(published),
            Err(error) => error,
        };
        // The leader has changed, and the record was not taken: another connection leads to the new one.
        let is_refused = error.kind == ErrorKind::NotLeader && session.is_of_cluster();
        let wait = backoff.next();
        if !is_refused || begin.elapsed() + wait >= session.settings().request_timeout {
            return Err(error);
        }
        tokio::time::sleep(wait).await;
    }
}

async fn acknowledged(session: &Session, answer: oneshot::Receiver<Result<Response>>) -> Result<Published> {
    let timeout = session.settings().request_timeout;
    let answer = tokio::time::timeout(timeout, answer).await.map_err(|e| {
        Error::new(ErrorKind::Timeout, format!("no acknowledgement in {} ms: {e}", timeout.as_millis()))
    })?;
    match answer.map_err(|e| crate::link::disconnected(&format!("the connection was closed: {e}")))?? {
        Response::Published(published) => Ok(published),
        other => Err(unexpected(&other)),
    }
}

fn builder_of(records: &[Record]) -> Result<BatchBuilder> {
    let mut builder = BatchBuilder::with_room(records.iter().map(Record::bytes_in_batch).sum());
    let now = now_ms();
    for record in records {
        builder.push_record(record, now)?;
    }
    if builder.is_empty() { Err(no_record()) } else { Ok(builder) }
}

fn no_record() -> Error {
    Error::invalid("a batch has at least one record")
}
