//! Publishing many records: gathered into batches, many on the way, order kept.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::partitioner::{self, Sticky};
use engine::{Acks, BatchBuilder, DraftBatch, Error, PartitionId, Record, Result};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use wire::Response;
use wire::request::publish_frame;
use wire::response::Published;

use crate::client::{Client, Shared};
use crate::link::{Link, OnAck, Waiter, unexpected};

pub struct PublisherBuilder {
    client: Client,
    topic: String,
    acks: Acks,
    partition: Option<PartitionId>,
}

/// Publishes to one topic. Records of one publisher to one partition keep their order.
pub struct Publisher {
    client: Client,
    topic: Arc<str>,
    acks: Acks,
    partition: Option<PartitionId>,
    partitions: u32,
    /// Its place in the pool: one stream, which keeps the order.
    turn: usize,
    gathered: Arc<Mutex<Gathered>>,
    window: Arc<Window>,
    /// Wakes the task that sends what has gathered.
    has_more: Arc<Notify>,
    flusher: tokio::task::JoinHandle<()>,
}

/// Records that are not yet sent, by partition.
struct Gathered {
    builders: Vec<BatchBuilder>,
    sticky: Sticky,
    link: Arc<Link>,
}

/// Batches on the way, and how they fared.
struct Window {
    free: Semaphore,
    size: usize,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    first_error: Option<Error>,
    failed_batches: u64,
}

impl OnAck for Window {
    fn acked(&self, answer: Result<Response>) {
        if let Err(error) = answer {
            let mut outcome = self.outcome.lock();
            outcome.failed_batches += 1;
            outcome.first_error.get_or_insert(error);
        }
        self.free.add_permits(1);
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

    /// Connects, and learns the topic's partitions. A topic that does not exist yet is left to the
    /// broker's rule for the first publish.
    pub async fn open(self) -> Result<Publisher> {
        let shared = &self.client.shared;
        let turn = shared.publish.next_turn();
        let link = shared.publish.link(turn).await?;
        let partitions = match self.client.describe_topic(&self.topic).await {
            Ok(info) => info.settings.partitions,
            Err(error) if error.kind == engine::ErrorKind::NotFound => 1,
            Err(error) => return Err(error),
        };
        let size = self.client.settings().publishes_in_flight_max.max(1);
        let gathered = Arc::new(Mutex::new(Gathered {
            builders: (0..partitions).map(|_| BatchBuilder::new()).collect(),
            sticky: Sticky::new((turn as u64) << 32 | 0x9e37_79b9),
            link,
        }));
        let window =
            Arc::new(Window { free: Semaphore::new(size), size, outcome: Mutex::default() });
        let topic: Arc<str> = self.topic.into();
        let has_more = Arc::new(Notify::new());
        let flusher = tokio::spawn(flush_when_idle(
            has_more.clone(),
            gathered.clone(),
            Sender { topic: topic.clone(), acks: self.acks, window: window.clone() },
        ));
        Ok(Publisher {
            client: self.client,
            topic,
            acks: self.acks,
            partition: self.partition,
            partitions,
            turn,
            gathered,
            window,
            has_more,
            flusher,
        })
    }
}

impl Publisher {
    pub(crate) fn builder(client: Client, topic: &str) -> PublisherBuilder {
        PublisherBuilder { client, topic: topic.to_owned(), acks: Acks::Default, partition: None }
    }

    /// Adds a record. It is sent with others as soon as they fill a batch or there is nothing else to
    /// do. Waits while too much is on the way. How it fared, [`Publisher::flush`] says.
    pub async fn send(&self, record: &Record) -> Result<()> {
        let full = {
            let mut gathered = self.gathered.lock();
            let gathered = &mut *gathered;
            let partition = self.partition_of(record, &gathered.sticky);
            let builder = self.builder_of(&mut gathered.builders, partition);
            builder.push_record(record, now_ms())?;
            if builder.len() < self.client.settings().publish_chunk_bytes {
                self.has_more.notify_one();
                return Ok(());
            }
            if record.key.is_none() {
                gathered.sticky.advance(self.partitions);
            }
            builder.finish().map(|batch| (partition, batch))
        };
        match full {
            Some((partition, batch)) => self.send_batch(partition, batch).await,
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
        self.reconnect_if_needed().await?;
        let partition = self.partition_of(first, &self.gathered.lock().sticky);
        let batch = batch_of(records)?;
        let link = self.gathered.lock().link.clone();
        if self.acks == Acks::None {
            link.room().await;
            let correlation = link.next_correlation();
            link.tell(publish_frame(correlation, &self.topic, partition, self.acks, batch.into_bytes()))?;
            return Ok(None);
        }
        publish_batch_once(&self.client.shared, &link, &self.topic, partition, self.acks, batch).await.map(Some)
    }

    /// Sends one batch that is already built, without waiting for its acknowledgement.
    pub async fn send_batch(&self, partition: Option<PartitionId>, batch: DraftBatch) -> Result<()> {
        self.reconnect_if_needed().await?;
        let sender =
            Sender { topic: self.topic.clone(), acks: self.acks, window: self.window.clone() };
        let link = self.gathered.lock().link.clone();
        sender.send(&link, partition, batch).await
    }

    /// Sends what has gathered and waits until all of it is acknowledged. The first error of what was
    /// sent since the last flush is returned, and says how many batches failed.
    pub async fn flush(&self) -> Result<()> {
        let (link, batches) = self.gathered.lock().take_all();
        for (partition, batch) in batches {
            self.send_batch(partition, batch).await?;
        }
        if self.acks == Acks::None {
            link.drained().await;
        } else {
            // All permits are back when all answers are.
            let all = self.window.free.acquire_many(self.window.size as u32).await;
            drop(all.map_err(|e| Error::invalid(format!("the publisher is closed: {e}")))?);
        }
        let outcome = std::mem::take(&mut *self.window.outcome.lock());
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

    fn partition_of(&self, record: &Record, sticky: &Sticky) -> Option<PartitionId> {
        match (self.partition, &record.key) {
            (Some(partition), _) => Some(partition),
            (None, _) if self.partitions == 1 => None,
            (None, Some(key)) => Some(partitioner::for_key(key, self.partitions)),
            (None, None) => Some(sticky.current(self.partitions)),
        }
    }

    fn builder_of<'a>(&self, builders: &'a mut [BatchBuilder], partition: Option<PartitionId>) -> &'a mut BatchBuilder {
        let last = builders.len() - 1;
        &mut builders[(partition.unwrap_or(0) as usize).min(last)]
    }

    async fn reconnect_if_needed(&self) -> Result<()> {
        if !self.gathered.lock().link.is_closed() {
            return Ok(());
        }
        let link = self.client.shared.publish.link(self.turn).await?;
        self.gathered.lock().link = link;
        Ok(())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.flusher.abort();
    }
}

impl Gathered {
    fn take_all(&mut self) -> (Arc<Link>, Vec<(Option<PartitionId>, DraftBatch)>) {
        let is_one = self.builders.len() == 1;
        let batches = self.builders.iter_mut().enumerate().filter_map(|(partition, builder)| {
            builder.finish().map(|batch| ((!is_one).then_some(partition as PartitionId), batch))
        });
        (self.link.clone(), batches.collect())
    }
}

/// Puts batches on their way, within the window.
struct Sender {
    topic: Arc<str>,
    acks: Acks,
    window: Arc<Window>,
}

impl Sender {
    async fn send(&self, link: &Link, partition: Option<PartitionId>, batch: DraftBatch) -> Result<()> {
        link.room().await;
        let correlation = link.next_correlation();
        let frame = publish_frame(correlation, &self.topic, partition, self.acks, batch.into_bytes());
        if self.acks == Acks::None {
            return link.tell(frame);
        }
        let permit = self.window.free.acquire().await;
        permit.map_err(|e| Error::invalid(format!("the publisher is closed: {e}")))?.forget();
        let sent = link.call_with(correlation, frame, Waiter::Publisher(self.window.clone()));
        if sent.is_err() {
            self.window.free.add_permits(1);
        }
        sent
    }
}

/// Sends what has gathered whenever the program has nothing else to do: a lone record goes at once,
/// and under load a batch grows while the one before it is on its way.
async fn flush_when_idle(has_more: Arc<Notify>, gathered: Arc<Mutex<Gathered>>, sender: Sender) {
    loop {
        has_more.notified().await;
        let (link, batches) = gathered.lock().take_all();
        for (partition, batch) in batches {
            if let Err(error) = sender.send(&link, partition, batch).await {
                let mut outcome = sender.window.outcome.lock();
                outcome.failed_batches += 1;
                outcome.first_error.get_or_insert(error);
            }
        }
    }
}

/// One record by itself, on the pool's first stream.
pub(crate) async fn publish_once(shared: &Shared, topic: &str, record: Record, acks: Acks) -> Result<Published> {
    let link = shared.publish.link(0).await?;
    let batch = batch_of(std::slice::from_ref(&record))?;
    publish_batch_once(shared, &link, topic, None, acks, batch).await
}

async fn publish_batch_once(
    shared: &Shared,
    link: &Link,
    topic: &str,
    partition: Option<PartitionId>,
    acks: Acks,
    batch: DraftBatch,
) -> Result<Published> {
    let correlation = link.next_correlation();
    let answer = link.call(correlation, publish_frame(correlation, topic, partition, acks, batch.into_bytes()))?;
    let timeout = shared.dialer.settings.request_timeout;
    let answer = tokio::time::timeout(timeout, answer).await.map_err(|_| {
        Error::new(engine::ErrorKind::Timeout, format!("no acknowledgement within {} ms", timeout.as_millis()))
    })?;
    match answer.map_err(|_| crate::link::disconnected("the connection was closed"))?? {
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
