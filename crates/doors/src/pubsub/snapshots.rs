//! Snapshots, and going back to them. A snapshot is a queue of its own over the topic, which nobody receives from: so the
//! log keeps what it needs until it is deleted or expires.

use std::collections::BTreeMap;

use broker::{NewQueue, QueueStart, SeekTo, now_ms};
use engine::ErrorKind;
use engine::queue::{QueueDefinition, QueueName, QueueSettings};

use super::errors::{Failure, Result};
use super::map::{Ask, Door};
use super::names::{DELETED_TOPIC, Kind, Name, is_id, parse_project};
use super::pages::{Page, page};
use super::proto::seek_request::Target;
use super::proto::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest, ListSnapshotsResponse,
    SeekRequest, SeekResponse, Snapshot, UpdateSnapshotRequest,
};
use super::subscriptions::Found;
use super::times::{DAY_MS, timestamp, timestamp_ms};
use super::topics::check_labels;
use super::{policies, rest};

/// How the names of the queues begin; no subscription's does.
const PREFIX: &str = "_snapshot.";
const NOTE: &str = "pubsub.snapshot";
const EXPIRES: &str = "pubsub.expires_ms";
/// Where a subscription goes back to, ms since 1970.
const OLDEST: &str = "pubsub.oldest_ms";
const MESSAGE: &str = "google.pubsub.v1.Snapshot";
/// How long a snapshot lives, less the age of its oldest message.
const LIFE_MS_MAX: u64 = 7 * DAY_MS;
/// One that would expire sooner is refused.
const LIFE_MS_MIN: u64 = 3_600_000;

pub(super) fn is_snapshot(queue: &QueueDefinition) -> bool {
    queue.name.as_str().starts_with(PREFIX)
}

fn missing() -> Failure {
    Failure::not_found("Snapshot does not exist")
}

fn inner(door: &Door, name: &Name) -> String {
    format!("{PREFIX}{}", door.names.inner(name))
}

fn number(queue: &QueueDefinition, note: &str) -> u64 {
    queue.notes.get(note).and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn has_expired(queue: &QueueDefinition) -> bool {
    is_snapshot(queue) && number(queue, EXPIRES) <= now_ms()
}

fn snapshot_of(door: &Door, queue: &QueueDefinition) -> Result<Snapshot> {
    let noted = queue.notes.get(NOTE).map(|note| rest::from_text(MESSAGE, note)).transpose()?;
    let noted: Snapshot = noted.unwrap_or_default();
    let name = queue.name.as_str().strip_prefix(PREFIX).unwrap_or_default();
    let topic = match door.broker.has_topic(queue.topic.as_str()) {
        true => door.names.outer(Kind::Topic, queue.topic.as_str()).to_string(),
        false => DELETED_TOPIC.to_owned(),
    };
    Ok(Snapshot {
        name: door.names.outer(Kind::Snapshot, name).to_string(),
        topic,
        expire_time: Some(timestamp(number(queue, EXPIRES))),
        labels: noted.labels,
    })
}

async fn find_queue(door: &Door, name: &Name) -> Result<std::sync::Arc<QueueDefinition>> {
    match door.broker.queue(&inner(door, name)).await {
        Ok(queue) if !has_expired(&queue) => Ok(queue),
        Err(error) if error.kind != ErrorKind::NotFound => Err(error.into()),
        _ => Err(missing()),
    }
}

pub(super) async fn find(door: &Door, name: &Name) -> Result<Snapshot> {
    snapshot_of(door, &*find_queue(door, name).await?)
}

/// The snapshots of a topic.
pub(super) async fn over(door: &Door, topic: &Name) -> Result<Vec<Snapshot>> {
    let queues = door.broker.queues_over(&door.names.inner(topic)).await?;
    let snapshots = queues.iter().filter(|queue| is_snapshot(queue) && !has_expired(queue));
    snapshots.map(|queue| snapshot_of(door, queue)).collect()
}

fn notes(labels: BTreeMap<String, String>) -> Result<String> {
    rest::text_of(MESSAGE, &Snapshot { labels, ..Snapshot::default() })
}

pub(super) async fn create(ask: Ask, request: CreateSnapshotRequest) -> Result<Snapshot> {
    let door = &ask.door;
    let name = Name::parse(Kind::Snapshot, &request.name)?;
    let subscription = Name::parse(Kind::Subscription, &request.subscription)?;
    check_labels(&request.labels)?;
    let queue = match door.find_subscription(&subscription).await? {
        Found::Queue(queue) => queue,
        Found::WithoutQueue(left) if left.detached => return Err(Failure::precondition("Subscription is detached.")),
        Found::WithoutQueue(_) => return Err(Failure::precondition("Topic does not exist.")),
    };
    match find_queue(door, &name).await {
        Ok(_) => return Err(Failure::exists("Snapshot already exists")),
        Err(failure) if failure == missing() => {}
        Err(failure) => return Err(failure),
    }
    // One that expired makes room.
    remove(door, &name).await?;
    let now = now_ms();
    let oldest_ms = oldest(door, &queue).await?.unwrap_or(now);
    let expires_ms = oldest_ms.saturating_add(LIFE_MS_MAX);
    if expires_ms < now + LIFE_MS_MIN {
        return Err(Failure::precondition(
            "The operation could not be completed because the requested source subscription's backlog is too old.",
        ));
    }
    let notes = [(NOTE, notes(request.labels)?), (EXPIRES, expires_ms.to_string()), (OLDEST, oldest_ms.to_string())];
    let new = NewQueue {
        topic: Some(queue.topic.clone()),
        start: QueueStart::Earliest,
        settings: QueueSettings { retention_ms: LIFE_MS_MAX, ..QueueSettings::default() },
        notes: notes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..NewQueue::new(QueueName::parse(&inner(door, &name))?)
    };
    let made = door.broker.create_queue(new).await?;
    door.broker.seek_queue(made.name.as_str(), SeekTo::Time(oldest_ms as i64)).await?;
    snapshot_of(door, &made)
}

/// When the oldest message was published that a queue is not done with, ms since 1970.
async fn oldest(door: &Door, queue: &QueueDefinition) -> Result<Option<u64>> {
    let mut oldest = None;
    let mut after = None;
    loop {
        let found = door.broker.peek(queue.name.as_str(), after, 1).await?;
        let Some(first) = found.first() else {
            return Ok(oldest);
        };
        let sent_ms = first.message.record().timestamp_ms.max(0) as u64;
        oldest = Some(oldest.map_or(sent_ms, |oldest: u64| oldest.min(sent_ms)));
        // On with the next partition.
        after = Some((first.partition + 1, 0));
        if door.broker.find_topic(queue.topic.as_str()).is_none_or(|(_, partitions)| first.partition + 1 >= partitions)
        {
            return Ok(oldest);
        }
    }
}

pub(super) async fn get(ask: Ask, request: GetSnapshotRequest) -> Result<Snapshot> {
    find(&ask.door, &Name::parse(Kind::Snapshot, &request.snapshot)?).await
}

pub(super) async fn list(ask: Ask, request: ListSnapshotsRequest) -> Result<ListSnapshotsResponse> {
    let door = &ask.door;
    let project = parse_project(&request.project)?;
    let (queues, _) = door.broker.queues(&format!("{PREFIX}{}", door.names.prefix(project)), "", usize::MAX).await?;
    let there = queues.iter().filter(|queue| !has_expired(queue));
    let snapshots: Vec<Snapshot> = there.map(|queue| snapshot_of(door, queue)).collect::<Result<_>>()?;
    let of_project = snapshots.into_iter().filter(|snapshot| {
        Name::parse(Kind::Snapshot, &snapshot.name).is_ok_and(|name| name.project == project && is_id(&name.id))
    });
    let Page { items, next_page_token } =
        page(of_project, |snapshot| snapshot.name.clone(), request.page_size, &request.page_token)?;
    Ok(ListSnapshotsResponse { snapshots: items, next_page_token })
}

pub(super) async fn update(ask: Ask, request: UpdateSnapshotRequest) -> Result<Snapshot> {
    let given = request.snapshot.ok_or_else(|| Failure::invalid("Invalid [snapshots] name: (name=)"))?;
    let name = Name::parse(Kind::Snapshot, &given.name)?;
    let paths = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
    if paths.is_empty() {
        return Err(Failure::invalid(
            "The update_mask in the UpdateSnapshotRequest must be set, and must contain a non-empty paths list.",
        ));
    }
    let queue = find_queue(&ask.door, &name).await?;
    let mut expires_ms = number(&queue, EXPIRES);
    let mut labels = snapshot_of(&ask.door, &queue)?.labels;
    for path in &paths {
        match path.as_str() {
            "labels" => labels = given.labels.clone(),
            "expire_time" => {
                let given_ms = given.expire_time.as_ref().and_then(timestamp_ms).and_then(|ms| u64::try_from(ms).ok());
                let latest_ms = number(&queue, OLDEST).saturating_add(LIFE_MS_MAX);
                expires_ms = given_ms
                    .filter(|ms| (now_ms()..=latest_ms).contains(ms))
                    .ok_or_else(|| Failure::invalid("expire_time out of bounds"))?;
            }
            other => {
                return Err(Failure::invalid(format!(
                    "Invalid update_mask provided in the UpdateSnapshotRequest: {other} is not a known Snapshot field, or \
                     not mutable."
                )));
            }
        }
    }
    check_labels(&labels)?;
    let note = notes(labels)?;
    let alter = |definition: &mut QueueDefinition| {
        definition.notes.insert(NOTE.to_owned(), note);
        definition.notes.insert(EXPIRES.to_owned(), expires_ms.to_string());
        Ok(())
    };
    let queue = ask.door.broker.alter_queue(queue.name.as_str(), alter).await?;
    snapshot_of(&ask.door, &queue)
}

pub(super) async fn delete(ask: Ask, request: DeleteSnapshotRequest) -> Result<()> {
    let name = Name::parse(Kind::Snapshot, &request.snapshot)?;
    find_queue(&ask.door, &name).await?;
    remove(&ask.door, &name).await?;
    policies::forget(&ask.door, &name).await
}

async fn remove(door: &Door, name: &Name) -> Result<()> {
    match door.broker.delete_queue(&inner(door, name)).await {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

pub(super) async fn seek(ask: Ask, request: SeekRequest) -> Result<SeekResponse> {
    let door = &ask.door;
    let name = Name::parse(Kind::Subscription, &request.subscription)?;
    let Found::Queue(queue) = door.find_subscription(&name).await? else {
        return Err(Failure::precondition("Subscription is detached."));
    };
    let to = match request.target {
        None => {
            let message = "No target was specified in the SeekRequest. Must specify either a time or a snapshot";
            return Err(Failure::invalid(message));
        }
        Some(Target::Time(time)) => SeekTo::Time(timestamp_ms(&time).ok_or_else(|| {
            Failure::invalid("An invalid time was specified in the SeekRequest. See definition of Timestamp.")
        })?),
        Some(Target::Snapshot(snapshot)) => {
            let snapshot = find_queue(door, &Name::parse(Kind::Snapshot, &snapshot)?).await?;
            if snapshot.topic != queue.topic {
                return Err(Failure::precondition(format!(
                    "The subscription's topic {} is different from that of the snapshot {}; they must match in order for \
                     Seek work.",
                    queue.topic, snapshot.topic
                )));
            }
            SeekTo::Time(number(&snapshot, OLDEST) as i64)
        }
    };
    door.broker.seek_queue(queue.name.as_str(), to).await?;
    Ok(SeekResponse {})
}
