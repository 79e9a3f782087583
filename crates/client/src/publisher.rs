//! Publishing many records: gathered into batches, many on the way, order kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::partitioner::{self, Sticky};
use engine::{Acks, BatchBuilder, DraftBatch, Error, ErrorKind, PartitionId, Record, Result};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};
use wire::Response;
use wire::request::publish_frame;
use wire::response::Published;

use crate::client::{Client, Shared};
use crate::link::{Link, OnAck, Waiter, unexpected};

/// How often a publisher without acknowledgements asks how many partitions its topic has.
const PARTITIONS_LOOK_EVERY: Duration = Duration::from_secs(10);

pub struct PublisherBuilder {
    client: Client,
    topic: String,
    acks: Acks,
    partition: Option<PartitionId>,
}

/// Publishes to one topic. Records of one publisher to one partition keep their order.
pub struct Publisher {
    partition: Option<PartitionId>,
    sender: Arc<Sender>,
    /// Wakes the task that sends what has gathered.
    has_more: Arc<Notify>,
    flusher: tokio::task::JoinHandle<()>,
}

/// Records that are not yet sent, by partition.
struct Gathered {
    builders: Vec<BatchBuilder>,
    sticky: Sticky,
}

/// Batches on the way, and how they fared.
struct Window {
    free: Semaphore,
    size: usize,
    /// Answers so far, failures included: that the broker does something.
    answered: AtomicU64,
    /// Partitions that the topic has, as the broker last said. They only grow.
    partitions: AtomicU32,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    first_error: Option<Error>,
    failed_batches: u64,
}

impl OnAck for Window {
    fn acked(&self, answer: Result<Response>) {
        match answer {
            Ok(Response::Published(published)) => self.learn(published.partitions),
            Ok(_) => {}
            Err(error) => {
                let mut outcome = self.outcome.lock();
                outcome.failed_batches += 1;
                outcome.first_error.get_or_insert(error);
            }
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.free.add_permits(1);
    }
}

impl Window {
    fn partitions(&self) -> u32 {
        self.partitions.load(Ordering::Relaxed)
    }

    fn learn(&self, partitions: u32) {
        if partitions > self.partitions() {
            self.partitions.fetch_max(partitions, Ordering::Relaxed);
        }
    }
}

impl PublisherBuilder {
    /// What an acknowledgement shall mean; by default what the broker is set to.
    pub fn acks(mut self, acks: Acks) -> Self {
        self.acks = acks;
        self
    }

    /// Always this partition, whatever the key.
    pub fn partition(mut self, partition: Option<PartitionId>) -> Self {
        self.partition = partition;
        self
    }

    /// Connects, and learns the topic's partitions. A topic that does not exist yet is created where the
    /// broker does that on the way; else the first publish says that it is missing.
    pub async fn open(self) -> Result<Publisher> {
        let shared = &self.client.shared;
        let turn = shared.publish.next_turn();
        let taken_at_once = shared.publish.connection(turn).await?.hello.publishes_in_flight_max as usize;
        let link = shared.publish.link(turn).await?;
        let partitions = self.partitions().await?.unwrap_or(1);
        if let Some(partition) = self.partition.filter(|partition| *partition >= partitions) {
            return Err(Error::not_found(format!(
                "topic {} has partitions 0 to {}, not {partition}",
                self.topic,
                partitions - 1
            )));
        }
        let size = self.client.settings().publishes_in_flight_max.min(taken_at_once).max(1);
        let gathered = Gathered {
            builders: (0..partitions).map(|_| BatchBuilder::new()).collect(),
            sticky: Sticky::new((turn as u64) << 32 | 0x9e37_79b9),
        };
        let sender = Arc::new(Sender {
            topic: self.topic.into(),
            acks: self.acks,
            turn,
            gathered: Mutex::new(gathered),
            window: Arc::new(Window {
                free: Semaphore::new(size),
                size,
                answered: AtomicU64::new(0),
                partitions: AtomicU32::new(partitions),
                outcome: Mutex::default(),
            }),
            link: tokio::sync::Mutex::new(link),
            client: self.client,
        });
        let has_more = Arc::new(Notify::new());
        let flusher = tokio::spawn(flush_when_idle(has_more.clone(), sender.clone()));
        Ok(Publisher { partition: self.partition, sender, has_more, flusher })
    }

    /// How many partitions the topic has; `None` where there is no such topic and none is made.
    async fn partitions(&self) -> Result<Option<u32>> {
        let describe = async || match self.client.describe_topic(&self.topic).await {
            Ok(info) => Ok(Some(info.settings.partitions)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        if let Some(partitions) = describe().await? {
            return Ok(Some(partitions));
        }
        // Only the broker knows how many a new topic gets, and a key must not change its partition after
        // the first batch: a subscription makes the topic as a publish would.
        match self.client.subscribe(&self.topic).open().await {
            Ok(_) => describe().await,
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Publisher {
    pub(crate) fn builder(client: Client, topic: &str) -> PublisherBuilder {
        PublisherBuilder { client, topic: topic.to_owned(), acks: Acks::Default, partition: None }
    }

    /// Adds a record. It is sent with others as soon as they fill a batch or there is nothing else to
    /// do. Waits while too much is on the way. How it fared, [`Publisher::flush`] says.
    pub async fn send(&self, record: &Record) -> Result<()> {
        let partition = {
            let mut gathered = self.sender.gathered.lock();
            let gathered = &mut *gathered;
            let partition = self.partition_of(record, &gathered.sticky);
            let builder = gathered.builder(partition);
            builder.push_record(record, now_ms())?;
            if builder.len() < self.sender.client.settings().publish_chunk_bytes {
                self.has_more.notify_one();
                return Ok(());
            }
            if record.key.is_none() {
                gathered.sticky.advance(self.sender.window.partitions());
            }
            partition
        };
        let mut link = self.sender.link.lock().await;
        // The background task may have had it first.
        let full = self.sender.gathered.lock().builder(partition).finish();
        match full {
            Some(batch) => self.sender.send(&mut link, Some(partition), batch).await,
            None => Ok(()),
        }
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
        let sender = &self.sender;
        let partition = Some(self.partition_of(first, &sender.gathered.lock().sticky));
        let batch = batch_of(records)?;
        let mut link = sender.link.lock().await;
        sender.send_gathered(&mut link).await;
        sender.reconnect_if_needed(&mut link).await?;
        if sender.acks == Acks::None {
            sender.patiently(link.room()).await?;
            let correlation = link.next_correlation();
            link.tell(publish_frame(correlation, &sender.topic, partition, sender.acks, batch.into_bytes()))?;
            return Ok(None);
        }
        let answer = ask(&link, &sender.topic, partition, sender.acks, batch)?;
        drop(link);
        let published = acknowledged(&sender.client.shared, answer).await?;
        sender.window.learn(published.partitions);
        Ok(Some(published))
    }

    /// Sends one batch that is already built, without waiting for its acknowledgement.
    pub async fn send_batch(&self, partition: Option<PartitionId>, batch: DraftBatch) -> Result<()> {
        let mut link = self.sender.link.lock().await;
        self.sender.send_gathered(&mut link).await;
        self.sender.send(&mut link, partition, batch).await
    }

    /// Sends what has gathered and waits until all of it is acknowledged. The first error of what was
    /// sent since the last flush is returned, and says how many batches failed.
    pub async fn flush(&self) -> Result<()> {
        let mut link = self.sender.link.lock().await;
        self.sender.send_gathered(&mut link).await;
        let window = &self.sender.window;
        if self.sender.acks == Acks::None {
            self.sender.patiently(link.drained()).await?;
        } else {
            drop(link);
            // All permits are back when all answers are.
            let all = self.sender.patiently(window.free.acquire_many(window.size as u32)).await?;
            drop(all.map_err(|e| Error::invalid(format!("the publisher is closed: {e}")))?);
        }
        let outcome = std::mem::take(&mut *window.outcome.lock());
        match outcome.first_error {
            None => Ok(()),
            Some(mut error) => {
                if outcome.failed_batches > 1 {
                    error.message = format!("{} batches failed; the first: {}", outcome.failed_batches, error.message);
                }
                Err(error)
            }
        }
    }

    /// Named even where there is one: keys that were gathered for it do not belong to others that came since.
    fn partition_of(&self, record: &Record, sticky: &Sticky) -> PartitionId {
        let partitions = self.sender.window.partitions();
        match (self.partition, &record.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partitioner::for_key(key, partitions),
            (None, None) => sticky.current(partitions),
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.flusher.abort();
    }
}

impl Gathered {
    fn take_all(&mut self) -> Vec<(Option<PartitionId>, DraftBatch)> {
        let builders = (0..).zip(&mut self.builders);
        builders.filter_map(|(partition, builder)| Some((Some(partition), builder.finish()?))).collect()
    }

    /// What gathers for a partition.
    fn builder(&mut self, partition: PartitionId) -> &mut BatchBuilder {
        let place = partition as usize;
        if place >= self.builders.len() {
            self.builders.resize_with(place + 1, BatchBuilder::new);
        }
        &mut self.builders[place]
    }
}

/// Puts batches on their way, within the window.
struct Sender {
    client: Client,
    topic: Arc<str>,
    acks: Acks,
    /// Its place in the pool: one stream, which keeps the order.
    turn: usize,
    gathered: Mutex<Gathered>,
    window: Arc<Window>,
    /// Held from when a batch is taken from what has gathered until it is on its way, so that none
    /// overtakes another.
    link: tokio::sync::Mutex<Arc<Link>>,
}

impl Sender {
    async fn send(&self, link: &mut Arc<Link>, partition: Option<PartitionId>, batch: DraftBatch) -> Result<()> {
        self.reconnect_if_needed(link).await?;
        self.patiently(link.room()).await?;
        let correlation = link.next_correlation();
        let frame = publish_frame(correlation, &self.topic, partition, self.acks, batch.into_bytes());
        if self.acks == Acks::None {
            return link.tell(frame);
        }
        let permit = self.patiently(self.window.free.acquire()).await?;
        permit.map_err(|e| Error::invalid(format!("the publisher is closed: {e}")))?.forget();
        let sent = link.call_with(correlation, frame, Waiter::Publisher(self.window.clone()));
        if sent.is_err() {
            self.window.free.add_permits(1);
        }
        sent
    }

    /// Sends what has gathered. What cannot be sent counts as failed.
    async fn send_gathered(&self, link: &mut Arc<Link>) {
        let batches = self.gathered.lock().take_all();
        for (partition, batch) in batches {
            if let Err(error) = self.send(link, partition, batch).await {
                let mut outcome = self.window.outcome.lock();
                outcome.failed_batches += 1;
                outcome.first_error.get_or_insert(error);
            }
        }
    }

    /// Waits for what the broker has to do first: as long as it does something, and not for ever when it
    /// does nothing at all.
    async fn patiently<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let timeout = self.client.settings().request_timeout;
        tokio::pin!(work);
        loop {
            let answered = self.window.answered.load(Ordering::Relaxed);
            if let Ok(done) = tokio::time::timeout(timeout, &mut work).await {
                return Ok(done);
            }
            if self.window.answered.load(Ordering::Relaxed) == answered {
                let message = format!("the broker has taken nothing for {} ms", timeout.as_millis());
                return Err(Error::new(ErrorKind::Timeout, message));
            }
        }
    }

    async fn reconnect_if_needed(&self, link: &mut Arc<Link>) -> Result<()> {
        if link.is_closed() {
            *link = self.client.shared.publish.link(self.turn).await?;
        }
        Ok(())
    }
}

/// Sends what has gathered whenever the program has nothing else to do: a lone record goes at once,
/// and under load a batch grows while the one before it is on its way.
async fn flush_when_idle(has_more: Arc<Notify>, sender: Arc<Sender>) {
    let mut looked = Instant::now();
    loop {
        has_more.notified().await;
        let mut link = sender.link.lock().await;
        sender.send_gathered(&mut link).await;
        drop(link);
        // Acknowledgements say how many partitions there are; without any, somebody has to ask.
        if sender.acks == Acks::None && looked.elapsed() > PARTITIONS_LOOK_EVERY {
            if let Ok(info) = sender.client.describe_topic(&sender.topic).await {
                sender.window.learn(info.settings.partitions);
            }
            looked = Instant::now();
        }
    }
}

/// One record by itself, on the pool's first stream.
pub(crate) async fn publish_once(shared: &Shared, topic: &str, record: Record, acks: Acks) -> Result<Published> {
    let link = shared.publish.link(0).await?;
    let batch = batch_of(std::slice::from_ref(&record))?;
    let answer = ask(&link, topic, None, acks, batch)?;
    acknowledged(shared, answer).await
}

/// Sends one batch, whose answer will come.
fn ask(
    link: &Link,
    topic: &str,
    partition: Option<PartitionId>,
    acks: Acks,
    batch: DraftBatch,
) -> Result<oneshot::Receiver<Result<Response>>> {
    let correlation = link.next_correlation();
    link.call(correlation, publish_frame(correlation, topic, partition, acks, batch.into_bytes()))
}

async fn acknowledged(shared: &Shared, answer: oneshot::Receiver<Result<Response>>) -> Result<Published> {
    let timeout = shared.dialer.settings.request_timeout;
    let answer = tokio::time::timeout(timeout, answer).await.map_err(|e| {
        Error::new(ErrorKind::Timeout, format!("no acknowledgement in {} ms: {e}", timeout.as_millis()))
    })?;
    match answer.map_err(|e| crate::link::disconnected(&format!("the connection was closed: {e}")))?? {
        Response::Published(published) => Ok(published),
        other => Err(unexpected(&other)),
    }
}

fn batch_of(records: &[Record]) -> Result<DraftBatch> {
    let mut builder = BatchBuilder::new();
    let now = now_ms();
    for record in records {
        builder.push_record(record, now)?;
    }
    builder.finish().ok_or_else(|| Error::invalid("a batch has at least one record"))
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}
