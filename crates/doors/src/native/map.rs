//! Maps requests to calls of the broker.

use std::sync::Arc;
use std::time::Duration;

use broker::{Attempt, Broker, FREE_BYTES, Fetched, Held, TopicStatus, Wakes};
use bytes::BytesMut;
use engine::{Acks, Error, PartitionId, Pattern, RecordBatch, Result};
use wire::Subscribe;
use wire::response::{Level, PartitionInfo, Published, Response, TopicInfo};

use super::codec::{self, Answer};
use super::room::Room;

/// Maximum number of topics in one response to a list.
const LIST_COUNT_MAX: u32 = 1000;
/// Maximum number of reads of one fetch that waits for memory. Records may be appended while it waits, so that the next
/// read needs more memory.
const ROOM_TRIES_MAX: usize = 4;

pub(super) fn publish(
    broker: &Broker,
    wakes: &mut Wakes,
    topic: &str,
    partition: Option<PartitionId>,
    acks: Acks,
    batch: BytesMut,
) -> Result<Attempt> {
    let batch = codec::parse_batch(batch).inspect_err(|_| broker.metrics().publish_errors.add(1))?;
    broker.try_publish(topic, partition, acks, batch, wakes)
}

pub(super) fn published(published: broker::Published) -> Response {
    Response::Published(Published {
        partition: published.partition,
        base_offset: published.base_offset,
        level: if published.is_committed { Level::Committed } else { Level::Accepted },
        receivers: published.receivers,
        partitions: published.partitions,
    })
}

/// Counts a failed publish whose client wants no acknowledgement.
pub(super) fn publish_lost(broker: &Broker, topic: &str, error: &Error) {
    broker.metrics().publish_lost.add(1);
    tracing::debug!(topic, %error, "a publish without acknowledgement failed");
}

/// Converts a subscribe request. The connection adds the origin and the direct outbox.
pub(super) fn subscribe(request: Subscribe) -> Result<broker::Subscribe> {
    Ok(broker::Subscribe {
        pattern: Pattern::parse(&request.topic)?,
        partition: request.partition,
        start: request.start,
        overflow: request.overflow,
        queue_batches: (request.queue_batches > 0).then_some(request.queue_batches as usize),
        group: (!request.group.is_empty()).then_some(request.group),
        credit: request.credit,
        missing: request.missing,
        is_channel: false,
        origin: broker::Origin::default(),
        direct: None,
    })
}

pub(super) async fn fetch(
    broker: Arc<Broker>,
    room: Room,
    topic: String,
    partition: PartitionId,
    offset: u64,
    bytes_max: u32,
    wait_ms: u32,
) -> Result<Answer> {
    let mut held = None;
    let mut wait = Duration::from_millis(wait_ms.into());
    for _ in 0..ROOM_TRIES_MAX {
        let fetched = broker.fetch(&topic, partition, offset, bytes_max as usize, wait).await?;
        let bytes = fetched.batches.iter().map(RecordBatch::len).sum();
        let response =
            |fetched: Fetched| Response::Fetched { start: fetched.start, end: fetched.end, batches: fetched.batches };
        if bytes <= FREE_BYTES {
            return Ok(Answer::Response(response(fetched)));
        }
        let memory = held.take().filter(|held: &Held| held.bytes() >= bytes).or_else(|| room.try_take(bytes));
        if let Some(mut memory) = memory {
            memory.shrink(bytes);
            return Ok(Answer::Charged(response(fetched), memory));
        }
        // A fetch that waits holds no batches. It reads them again when it has memory for them.
        drop(fetched);
        held = room.take(bytes).await?;
        wait = Duration::ZERO;
    }
    Err(room.refuse())
}

pub(super) async fn init_producer(broker: Arc<Broker>) -> Result<Response> {
    broker.init_producer().await.map(|(id, epoch)| Response::Producer { id, epoch })
}

pub(super) fn list(broker: &Broker, after: &str, count_max: u32) -> Response {
    let (topics, is_last) = broker.list_topics(after, count_max.clamp(1, LIST_COUNT_MAX) as usize);
    Response::Topics { topics: topics.iter().map(topic_info).collect(), is_last }
}

pub(super) fn topic_info(status: &TopicStatus) -> TopicInfo {
    let partition = |extent: &broker::PartitionStatus| PartitionInfo {
        start: extent.start,
        end: extent.end,
        bytes: extent.bytes,
        subscribers: extent.subscribers as u32,
    };
    TopicInfo {
        topic: status.name.to_string(),
        settings: status.settings,
        owner: status.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
        partitions: status.partitions.iter().map(partition).collect(),
    }
}
