//! Path of a message into a queue: check, encode as a record, publish to the queue's topic.

use std::sync::Arc;

use engine::limits::BATCH_BYTES_MAX;
use engine::queue::{DELAY_MS_MAX, Dedup, DedupRule, MessageId, QueueDefinition, header};
use engine::{Acks, BatchBuilder, DraftBatch, Error, Offset, PartitionId, Result, partitioner};
use smallvec::{SmallVec, smallvec};

use crate::publish::{Attempt, Published};
use crate::queues::Queues;
use crate::topic::Topic;
use crate::view::QueueCell;
use crate::wakes::Wakes;

/// Maximum number of messages that one call sends.
pub const SEND_MAX: usize = 1000;
/// Number of headers of a message, including those of the broker, up to which no allocation is needed.
const FEW_HEADERS: usize = 16;
/// Size in bytes from which a batch takes no more messages.
const SEND_BATCH_BYTES: usize = BATCH_BYTES_MAX / 8;
/// Bytes that a record needs in addition to its parts, for lengths and numbers. Each header needs [`HEADER_BYTES`].
const RECORD_BYTES: usize = 12;
const HEADER_BYTES: usize = 4;

/// A message to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutMessage<'a> {
    pub body: &'a [u8],
    /// Key of the message group, which also orders the message.
    pub group: Option<&'a [u8]>,
    /// Deduplication id, which identifies the message if it is sent again.
    pub dedup: Option<&'a str>,
    /// Headers of the sender, and those headers of [`header`] that a door sets.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// Time before the message can be delivered; the queue's setting by default.
    pub delay_ms: Option<u64>,
}

/// A message that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: MessageId,
    pub partition: PartitionId,
    pub offset: Offset,
    /// `true` if the message was dropped, since one with its deduplication id was sent recently.
    pub is_duplicate: bool,
}

/// Answer for each message of a call, in the order of the call. The answer for a single message needs no allocation.
pub type SendAnswers = SmallVec<[Result<Sent>; 1]>;

/// Messages that are published as one batch.
struct SendBatch {
    partition: PartitionId,
    batch: DraftBatch,
    dedup: Option<Arc<[u8]>>,
}

/// Number of batches that a request appends before other tasks run. Each message with a deduplication id is a batch.
const APPENDED_TOGETHER: usize = 64;

/// Index of a batch, and index of the message in it.
type Place = (usize, u64);

impl Queues {
    /// Sends messages to a queue. Each message has a separate answer; accepted ones are durable when the call returns.
    pub async fn send(&self, queue: &str, messages: &[OutMessage<'_>]) -> Result<SendAnswers> {
        let bound = self.bound(queue).await?;
        let topic = &bound.topic;
        let definition = &bound.definition;
        check_count(messages.len())?;
        check_delays(messages)?;
        if messages.iter().any(|message| message.delay_ms.is_some_and(|delay_ms| delay_ms > 0)) {
            Box::pin(self.expect_delays(&bound.cell, topic)).await?;
        }
        let mut wakes = Wakes::default();
        let now = self.core.now_ms();
        if let [message] = messages {
            let batch = send_batch(definition, message, partition_of(topic, message), now)?;
            let published = match self.try_send(topic, batch, now, &mut wakes) {
                // An attempt that does not wait needs no room for the future of one that does.
                Ok(Attempt::Done(published)) => Ok(published),
                Ok(attempt) => {
                    wakes.flush();
                    Box::pin(self.core.finish_attempt(attempt, &mut wakes)).await
                }
                Err(error) => Err(error),
            };
            self.count_sent(1, &published);
            return Ok(smallvec![published.map(|published| sent_at(topic, &published, 0))]);
        }
        Box::pin(self.send_many(definition, topic, messages, now, wakes)).await
    }

    async fn send_many(
        &self,
        definition: &QueueDefinition,
        topic: &Topic,
        messages: &[OutMessage<'_>],
        now_ms: u64,
        mut wakes: Wakes,
    ) -> Result<SendAnswers> {
        let (batches, places) = send_batches(definition, topic, messages, now_ms)?;
        let mut under_way = Vec::with_capacity(batches.len());
        for (i, batch) in batches.into_iter().enumerate() {
            if i % APPENDED_TOGETHER == APPENDED_TOGETHER - 1 {
                wakes.flush();
                tokio::task::yield_now().await;
            }
            let count = batch.batch.count();
            let mut attempt = self.try_send(topic, batch, now_ms, &mut wakes);
            if let Ok(Attempt::Waits(waiting)) = attempt {
                // The following batches must not be appended before this one.
                attempt = waiting.finish(&self.core, &mut wakes).await.map(Attempt::Done);
            }
            under_way.push((count, attempt));
        }
        wakes.flush();
        let mut outcomes = Vec::with_capacity(under_way.len());
        for (count, attempt) in under_way {
            let published = match attempt {
                Ok(attempt) => self.core.finish_attempt(attempt, &mut wakes).await,
                Err(error) => Err(error),
            };
            self.count_sent(count as usize, &published);
            outcomes.push(published);
        }
        let sent = |(batch, i): Place| match &outcomes[batch] {
            Ok(published) => Ok(sent_at(topic, published, i)),
            Err(error) => Err(error.clone()),
        };
        Ok(places.into_iter().map(sent).collect())
    }

    fn try_send(&self, topic: &Topic, batch: SendBatch, now_ms: u64, wakes: &mut Wakes) -> Result<Attempt> {
        let SendBatch { partition, batch, dedup } = batch;
        // The partition was chosen among the existing ones.
        self.core.try_publish_once(topic, &topic.partitions()[partition as usize], batch, dedup, now_ms, wakes)
    }

    /// Sends messages to a topic, for all its queues.
    pub async fn send_to_topic(&self, topic: &str, messages: &[OutMessage<'_>]) -> Result<Vec<Sent>> {
        check_count(messages.len())?;
        let found = self.core.topic(topic)?;
        let now = self.core.now_ms();
        let mut by_partition: Vec<(PartitionId, Vec<usize>)> = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            let partition = partition_of(&found, message);
            match by_partition.iter_mut().find(|(at, _)| *at == partition) {
                Some((_, at)) => at.push(i),
                None => by_partition.push((partition, vec![i])),
            }
        }
        let mut sent = vec![None; messages.len()];
        let mut wakes = Wakes::default();
        for (partition, at) in by_partition {
            let mut batches = Vec::new();
            let mut builder = BatchBuilder::new();
            for (count, i) in at.iter().enumerate() {
                push(&mut builder, &messages[*i], None, now)?;
                if builder.len() >= SEND_BATCH_BYTES || count + 1 == at.len() {
                    batches.extend(builder.finish());
                }
            }
            let mut at = at.into_iter();
            for batch in batches {
                let count = u64::from(batch.count());
                let published = self.core.publish(topic, Some(partition), Acks::Default, batch, &mut wakes).await?;
                for i in 0..count {
                    if let Some(at) = at.next() {
                        sent[at] = Some(sent_at(&found, &published, i));
                    }
                }
            }
        }
        Ok(sent.into_iter().flatten().collect())
    }

    /// Records that messages of this queue may be delayed from now on, also after a restart.
    async fn expect_delays(&self, cell: &Arc<QueueCell>, topic: &Topic) -> Result<()> {
        let mut saved = Vec::new();
        for partition in topic.partitions() {
            // Under one lock: an older cursor must not be written after a newer one.
            let one = partition.with_view(cell.id, |view, _| {
                if std::mem::replace(&mut view.has_delays, true) || !view.is_saved {
                    return Ok(None);
                }
                let cursor = view.cursor_record(partition.id);
                let saved = self.append_records(cell, partition.id, [cursor], &mut Wakes::default());
                view.has_delays = saved.is_ok();
                saved.map(Some)
            })??;
            saved.extend(one);
        }
        for one in saved {
            one.wait().await?;
        }
        Ok(())
    }

    fn count_sent(&self, messages: usize, published: &Result<Published>) {
        let counts = &self.events;
        match published {
            Ok(published) if published.is_duplicate => counts.duplicates.add(messages as u64),
            Ok(_) => counts.sent.add(messages as u64),
            Err(_) => counts.refused.add(messages as u64),
        }
    }
}

fn check_count(messages: usize) -> Result<()> {
    match messages {
        1..=SEND_MAX => Ok(()),
        _ => Err(Error::invalid(format!("a request sends 1 to {SEND_MAX} messages, not {messages}"))),
    }
}

fn check_delays(messages: &[OutMessage<'_>]) -> Result<()> {
    match messages.iter().filter_map(|message| message.delay_ms).find(|delay_ms| *delay_ms > DELAY_MS_MAX) {
        Some(delay_ms) => Err(Error::invalid(format!("a delay is at most {DELAY_MS_MAX} ms, not {delay_ms}"))),
        None => Ok(()),
    }
}

fn sent_at(topic: &Topic, published: &Published, i: u64) -> Sent {
    let offset = published.base_offset + i;
    let id = MessageId::at(topic.id, published.partition, offset);
    Sent { id, partition: published.partition, offset, is_duplicate: published.is_duplicate }
}

/// Chooses the partition of a message: that of its group, or the next in turn for a message without a group.
fn partition_of(topic: &Topic, message: &OutMessage<'_>) -> PartitionId {
    match (topic.partitions().len() as u32, message.group) {
        (1, _) => 0,
        (partitions, Some(group)) => partitioner::for_key(group, partitions),
        (_, None) => topic.next_partition().id,
    }
}

/// Splits messages into batches: each message that is deduplicated has its own, the others share them. Also returns the
/// place of each message.
fn send_batches(
    definition: &QueueDefinition,
    topic: &Topic,
    messages: &[OutMessage<'_>],
    now_ms: u64,
) -> Result<(Vec<SendBatch>, Vec<Place>)> {
    // The reserved memory stays with the batch in the log, so nothing is reserved if the messages may be spread over
    // partitions.
    let room = match topic.partitions().len() {
        1 => messages.iter().map(bytes_of).sum::<usize>().min(SEND_BATCH_BYTES),
        _ => 0,
    };
    let mut batches: Vec<Option<SendBatch>> = Vec::new();
    let mut places = Vec::with_capacity(messages.len());
    // Batches that are still open, and the index of each among the batches.
    let mut open: Vec<(PartitionId, usize, BatchBuilder)> = Vec::new();
    let close = |batches: &mut Vec<Option<SendBatch>>, (partition, batch, mut builder): (_, usize, BatchBuilder)| {
        batches[batch] = builder.finish().map(|batch| SendBatch { partition, batch, dedup: None });
    };
    for message in messages {
        let partition = partition_of(topic, message);
        if definition.settings.dedup != DedupRule::Off && message.dedup.is_some() {
            // Earlier messages of the call must be published before this one.
            if let Some(at) = open.iter().position(|(of, ..)| *of == partition) {
                close(&mut batches, open.swap_remove(at));
            }
            places.push((batches.len(), 0));
            batches.push(Some(send_batch(definition, message, partition, now_ms)?));
            continue;
        }
        let at = open.iter().position(|(of, ..)| *of == partition).unwrap_or_else(|| {
            open.push((partition, batches.len(), BatchBuilder::with_room(room)));
            batches.push(None);
            open.len() - 1
        });
        let (_, batch, builder) = &mut open[at];
        places.push((*batch, builder.count().into()));
        push(builder, message, due_of(definition, message, now_ms).as_deref(), now_ms)?;
        if builder.len() >= SEND_BATCH_BYTES {
            close(&mut batches, open.swap_remove(at));
        }
    }
    open.into_iter().for_each(|one| close(&mut batches, one));
    // No batch is left open, and none is empty.
    Ok((batches.into_iter().flatten().collect(), places))
}

/// Returns the approximate number of bytes that a message takes in a batch.
fn bytes_of(message: &OutMessage<'_>) -> usize {
    let header = |(name, value): &(&str, &[u8])| name.len() + value.len() + HEADER_BYTES;
    let headers: usize = message.headers.iter().map(header).sum();
    message.body.len() + message.group.map_or(0, <[u8]>::len) + headers + RECORD_BYTES
}

/// Makes a batch of one message.
fn send_batch(
    definition: &QueueDefinition,
    message: &OutMessage<'_>,
    partition: PartitionId,
    now_ms: u64,
) -> Result<SendBatch> {
    let scope = match definition.settings.dedup {
        DedupRule::Off => None,
        DedupRule::Queue => Some(&[][..]),
        DedupRule::Group => Some(message.group.unwrap_or_default()),
    };
    let dedup = scope.zip(message.dedup).map(|(scope, id)| Dedup::id(scope, id.as_bytes()));
    let mut builder = BatchBuilder::new();
    push(&mut builder, message, due_of(definition, message, now_ms).as_deref(), now_ms)?;
    let batch = builder.finish().expect("invariant: it has a message");
    Ok(SendBatch { partition, batch, dedup })
}

/// Returns the value of the header that holds the time until which a message is delayed, if it is.
fn due_of(definition: &QueueDefinition, message: &OutMessage<'_>, now_ms: u64) -> Option<String> {
    let delay_ms = message.delay_ms.unwrap_or(definition.settings.delay_ms);
    (message.delay_ms.is_some() || delay_ms > 0).then(|| (now_ms + delay_ms).to_string())
}

fn push(builder: &mut BatchBuilder, message: &OutMessage<'_>, due: Option<&str>, now_ms: u64) -> Result<()> {
    let body = Some(message.body);
    let group = message.group;
    if message.headers.is_empty() && due.is_none() && message.dedup.is_none() {
        return builder.push(now_ms as i64, group, body, &[]);
    }
    let own = [(header::DUE, due), (header::DEDUP, message.dedup)];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.as_bytes(), Some(value?.as_bytes()))));
    let given = message.headers.iter().map(|(name, value)| (name.as_bytes(), Some(*value)));
    let mut few: [(&[u8], Option<&[u8]>); FEW_HEADERS] = [(&[], None); FEW_HEADERS];
    let mut count = 0;
    if message.headers.len() + 2 <= FEW_HEADERS {
        for (slot, header) in few.iter_mut().zip(given.chain(own)) {
            *slot = header;
            count += 1;
        }
        return builder.push(now_ms as i64, group, body, &few[..count]);
    }
    let many: Vec<_> = given.chain(own).collect();
    builder.push(now_ms as i64, group, body, &many)
}
