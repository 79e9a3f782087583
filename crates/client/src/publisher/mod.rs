//! Publishing many records: gathered into batches, many on the way, order kept, each in the log once.

mod delivery;
mod lane;
mod ledger;
mod sender;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use engine::{Acks, BatchBuilder, Codec, DraftBatch, Error, ErrorKind, Missing, PartitionId, Record, Result};
use tokio::sync::oneshot;
use wire::request::publish_frame;
use wire::response::Published;
use wire::{Response, TopicInfo};

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

/// What a publisher holds of records that are not acknowledged, unless it is told otherwise.
const BUFFER_BYTES: usize = 4 << 20;

/// A [`Publisher`] before it is opened.
#[must_use = "it does nothing until it is opened"]
pub struct PublisherBuilder {
    session: Arc<Session>,
    settings: Settings,
    is_idempotent: bool,
}

/// Publishes to one topic. Records of one publisher to one partition keep their order.
///
/// Unless it is told otherwise a publisher is idempotent: it numbers its batches, sends again what was refused for
/// a time or not answered, and the broker takes each batch once and in order.
pub struct Publisher {
    sender: Arc<Sender>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    /// Publishes one record and waits for its acknowledgement. For many, use a [`Publisher`].
    pub async fn publish(&self, topic: &str, record: Record) -> Result<Published> {
        publish_once(&self.session, topic, record, Acks::Default).await
    }

    /// Begins a publisher: it gathers records into batches and keeps many on the way.
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

    /// What an acknowledgement shall mean; by default what the broker is set to. Without acknowledgements nothing
    /// is sent again.
    pub fn acks(mut self, acks: Acks) -> Self {
        self.settings.acks = acks;
        self
    }

    /// Always this partition, whatever the key.
    pub fn partition(mut self, partition: Option<PartitionId>) -> Self {
        self.settings.partition = partition;
        self
    }

    /// Which partition a record goes to; by default that of its key.
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.settings.partitioner = partitioner;
        self
    }

    /// How batches are compressed; by default not at all.
    pub fn compression(mut self, codec: Codec) -> Self {
        self.settings.codec = codec;
        self
    }

    /// Records that gather are sent when they reach this size, before they are compressed.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// How long a batch that is not full waits for more records, while others are on the way or records come one
    /// after the other. A lone record never waits, and nothing does while the buffer is full.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// What may be held of records that are not acknowledged; beyond it [`Publisher::send`] waits. A record may
    /// overdraw it.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.settings.buffer_bytes = bytes.max(1);
        self
    }

    /// How long a record may take, with all tries, from when it was sent; by default the client's request timeout.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.settings.delivery_timeout = timeout;
        self
    }

    /// Whether batches are numbered; by default they are. Without it a batch whose acknowledgement is lost is not
    /// sent again, and one that is refused for a time comes behind those that were taken meanwhile.
    pub fn idempotent(mut self, is_idempotent: bool) -> Self {
        self.is_idempotent = is_idempotent;
        self
    }

    /// Connects, and learns the topic's partitions. A topic that does not exist yet is created where the
    /// broker does that on the way; else the first publish says that it is missing.
    pub async fn open(self) -> Result<Publisher> {
        let Self { session, mut settings, is_idempotent } = self;
        let turn = session.publish.next_turn();
        let taken_at_once = session.publish.connection(turn).await?.hello.publishes_in_flight_max as usize;
        let link = session.publish.link(turn).await?;
        let partitions = partitions(&session, &settings.topic).await?.unwrap_or(1);
        if let Some(partition) = settings.partition.filter(|partition| *partition >= partitions) {
            return Err(Error::no_partition(&settings.topic, partitions as usize, partition.into()));
        }
        let identity = match is_idempotent && settings.acks != Acks::None {
            true => Some(sender::init_producer(&session).await?),
            false => None,
        };
        settings.batches_in_flight_max = settings.batches_in_flight_max.min(taken_at_once).max(1);
        let ledger = Ledger::new(settings, partitions, identity, (turn as u64) << 32 | 0x9e37_79b9);
        let sender = Arc::new(Sender::new(Arc::new(ledger), session, turn, link));
        let task = tokio::spawn(sender::run(sender.clone()));
        Ok(Publisher { sender, task })
    }
}

/// How many partitions a topic has; `None` where there is no such topic and none is made.
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
    // Only the broker knows how many a new topic gets, and a key must not change its partition after
    // the first batch: a subscription makes the topic as a publish would.
    match SubscriptionBuilder::new(session.clone(), topic).missing(Missing::Create).open().await {
        Ok(_) => Ok(describe().await?.map(|info| info.settings.partitions)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Publisher {
    /// Adds a record. It is sent with others as soon as they fill a batch or there is nothing else to do. Waits
    /// while too much is held. What became of it the returned value says, and of all [`Publisher::flush`].
    pub async fn send(&self, record: &Record) -> Result<Delivery> {
        self.gather(record, &mut None).await
    }

    /// The same with a function that is told what became of the record. It is called on the thread that reads the
    /// connection: it should only pass the word on, and may not panic.
    pub async fn send_then(
        &self,
        record: &Record,
        callback: impl FnOnce(Result<Delivered>) + Send + 'static,
    ) -> Result<()> {
        let callback: Callback = Box::new(callback);
        self.gather(record, &mut Some(callback)).await.map(drop)
    }

    /// Adds records as [`Publisher::send`] does, for much less where there are many. What became of them
    /// [`Publisher::flush`] tells. On an error those before the record that it is about are on their way. Dropped
    /// while it waits, it has added some of them.
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

    /// Publishes one record at once and waits for its acknowledgement; `None` without acknowledgements.
    pub async fn publish(&self, record: &Record) -> Result<Option<Published>> {
        self.publish_batch(std::slice::from_ref(record)).await
    }

    /// The same for records that belong together: one batch, in the partition of the first.
    pub async fn publish_batch(&self, records: &[Record]) -> Result<Option<Published>> {
        let Some(first) = records.first() else {
            return Ok(None);
        };
        let builder = builder_of(records)?;
        let at = self.ledger().lane_of(first, builder.len())?;
        self.add(at, Contents::Records(builder), false).await.outcome().await
    }

    /// Sends one batch that is already built, without waiting for its acknowledgement.
    pub async fn send_batch(&self, partition: Option<PartitionId>, batch: DraftBatch) -> Result<()> {
        let at = self.ledger().lane_of_batch(partition, &batch)?;
        self.add(at, Contents::Built(batch), true).await;
        Ok(())
    }

    /// Sends what has gathered and waits until all of it is acknowledged or given up. The first error of what was
    /// sent since the last flush is returned, and says how many batches failed.
    pub async fn flush(&self) -> Result<()> {
        let ends = self.ledger().close_gathering();
        self.sender.send_now();
        let result = self.ledger().flushed(&ends).await;
        let settings = &self.ledger().settings;
        if settings.acks == Acks::None {
            let drained = tokio::time::timeout(settings.delivery_timeout, self.sender.drained()).await;
            drained.map_err(|elapsed| {
                Error::new(ErrorKind::Timeout, format!("the broker does not take what was sent: {elapsed}"))
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

    /// Puts a batch behind all that was sent to its partition, and on its way.
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

/// One record by itself, on the pool's first stream.
pub(crate) async fn publish_once(session: &Session, topic: &str, record: Record, acks: Acks) -> Result<Published> {
    let link = session.publish.link(0).await?;
    let mut builder = builder_of(std::slice::from_ref(&record))?;
    let batch = builder.finish().ok_or_else(no_record)?;
    let correlation = link.next_correlation();
    let answer = link.call(correlation, publish_frame(correlation, topic, None, acks, batch.into_bytes()))?;
    acknowledged(session, answer).await
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
    let mut builder = BatchBuilder::new();
    let now = now_ms();
    for record in records {
        builder.push_record(record, now)?;
    }
    if builder.is_empty() { Err(no_record()) } else { Ok(builder) }
}

fn no_record() -> Error {
    Error::invalid("a batch has at least one record")
}
