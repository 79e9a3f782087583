//! Snapshots, and seeking to them. The broker stores their state; labels and an earlier expiry are stored in documents.

use std::collections::BTreeMap;

use broker::SeekTo;
use engine::ErrorKind;
use engine::queue::SnapshotHead as Kept;
use prost::Message;
use tokio::task::yield_now;

use super::errors::{Code, Failure, Result};
use super::map::{Ask, Door};
use super::masks::distinct;
use super::names::{DELETED_TOPIC, Kind, Name, is_id, parse_project};
use super::pages::{NAMES_PER_TURN, Page, page};
use super::policies;
use super::proto::seek_request::Target;
use super::proto::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest, ListSnapshotsResponse,
    SeekRequest, SeekResponse, Snapshot, UpdateSnapshotRequest,
};
use super::subscriptions::Found;
use super::times::{DAY_MS, timestamp, timestamp_ms};
use super::topics::check_labels;

const DOCUMENT: &str = "pubsub.snapshot";
/// Maximum lifetime of a snapshot, from which the age of its oldest message is subtracted.
const LIFE_MS_MAX: u64 = 7 * DAY_MS;
/// Minimum lifetime; a snapshot that would expire sooner is refused.
const LIFE_MS_MIN: u64 = 3_600_000;

fn missing() -> Failure {
    Failure::not_found("Snapshot does not exist")
}

/// Reads the document of a snapshot: its labels, and its expiry if that is earlier than the broker's.
async fn noted(door: &Door, inner: &str) -> Result<Snapshot> {
    let document = door.broker.documents.get(DOCUMENT, inner).await?.unwrap_or_default();
    Snapshot::decode(document).map_err(|error| {
        Failure::new(Code::DataLoss, format!("the stored definition of a snapshot cannot be read: {error}"))
    })
}

async fn note(door: &Door, inner: &str, labels: BTreeMap<String, String>, ends_ms: Option<u64>) -> Result<()> {
    let note = Snapshot { labels, expire_time: ends_ms.map(timestamp), ..Snapshot::default() };
    Ok(door.broker.documents.put(DOCUMENT, inner, Some(note.encode_to_vec().into())).await?)
}

/// Returns the description of a snapshot; `None` once it has expired.
async fn shown(door: &Door, inner: &str, kept: &Kept) -> Result<Option<Snapshot>> {
    let noted = noted(door, inner).await?;
    let ends_ms = noted.expire_time.as_ref().and_then(timestamp_ms).map_or(kept.expires_ms, |ms| ms.max(0) as u64);
    let topic = if door.broker.has_topic(kept.topic.as_str()) {
        door.names.outer(Kind::Topic, kept.topic.as_str()).to_string()
    } else {
        DELETED_TOPIC.to_owned()
    };
    Ok((ends_ms > door.broker.now_ms()).then(|| Snapshot {
        name: door.names.outer(Kind::Snapshot, inner).to_string(),
        topic,
        expire_time: Some(timestamp(ends_ms)),
        labels: noted.labels,
    }))
}

async fn find_kept(door: &Door, name: &Name) -> Result<(Kept, Snapshot)> {
    let inner = door.names.inner(name);
    let kept = match door.broker.queues.snapshot_head(&inner).await {
        Err(error) if error.kind == ErrorKind::NotFound => return Err(missing()),
        kept => kept?,
    };
    let snapshot = shown(door, &inner, &kept).await?.ok_or_else(missing)?;
    Ok((kept, snapshot))
}

pub(super) async fn find(door: &Door, name: &Name) -> Result<Snapshot> {
    Ok(find_kept(door, name).await?.1)
}

/// Returns the snapshots of a topic.
pub(super) async fn over(door: &Door, topic: &Name) -> Result<Vec<Snapshot>> {
    let topic = door.names.inner(topic);
    let all = door.broker.queues.snapshots("").await?.into_iter();
    all_shown(door, all.filter(|(_, kept)| kept.topic.as_str() == topic)).await
}

/// Returns the descriptions of snapshots that have not expired. Other tasks of the thread run after each
/// [`NAMES_PER_TURN`].
async fn all_shown(door: &Door, kept: impl Iterator<Item = (String, Kept)>) -> Result<Vec<Snapshot>> {
    let mut snapshots = Vec::new();
    for (done, (inner, kept)) in kept.enumerate() {
        snapshots.extend(shown(door, &inner, &kept).await?);
        if done % NAMES_PER_TURN == NAMES_PER_TURN - 1 {
            yield_now().await;
        }
    }
    Ok(snapshots)
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
    match find(door, &name).await {
        Ok(_) => return Err(Failure::exists("Snapshot already exists")),
        Err(failure) if failure == missing() => {}
        Err(failure) => return Err(failure),
    }
    // An expired snapshot with this name is replaced.
    remove(door, &name).await?;
    let now = door.broker.now_ms();
    let inner = door.names.inner(&name);
    let oldest_ms = door.broker.queues.counts(queue.name.as_str()).await?.oldest_ms.unwrap_or(now);
    let expires_ms = oldest_ms.saturating_add(LIFE_MS_MAX);
    if expires_ms < now + LIFE_MS_MIN {
        return Err(Failure::precondition(
            "The operation could not be completed because the requested source subscription's backlog is too old.",
        ));
    }
    door.broker.queues.create_snapshot(&inner, queue.name.as_str(), expires_ms).await?;
    if !request.labels.is_empty() {
        note(door, &inner, request.labels, None).await?;
    }
    find(door, &name).await
}

pub(super) async fn get(ask: Ask, request: GetSnapshotRequest) -> Result<Snapshot> {
    find(&ask.door, &Name::parse(Kind::Snapshot, &request.snapshot)?).await
}

pub(super) async fn list(ask: Ask, request: ListSnapshotsRequest) -> Result<ListSnapshotsResponse> {
    let door = &ask.door;
    let project = parse_project(&request.project)?;
    let all = door.broker.queues.snapshots(&door.names.prefix(project)).await?.into_iter();
    let snapshots = all_shown(door, all.filter(|(inner, _)| ask.shows_all(Kind::Snapshot, inner))).await?;
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
    let paths = distinct(request.update_mask);
    if paths.is_empty() {
        return Err(Failure::invalid(
            "The update_mask in the UpdateSnapshotRequest must be set, and must contain a non-empty paths list.",
        ));
    }
    let (kept, snapshot) = find_kept(&ask.door, &name).await?;
    let mut labels = snapshot.labels;
    let mut ends_ms = None;
    for path in &paths {
        match path.as_str() {
            "labels" => labels = given.labels.clone(),
            "expire_time" => {
                let given_ms = given.expire_time.as_ref().and_then(timestamp_ms).and_then(|ms| u64::try_from(ms).ok());
                let ends = given_ms.filter(|ms| (ask.door.broker.now_ms()..=kept.expires_ms).contains(ms));
                ends_ms = Some(ends.ok_or_else(|| Failure::invalid("expire_time out of bounds"))?);
            }
            other => {
                return Err(Failure::invalid(format!(
                    "Invalid update_mask provided in the UpdateSnapshotRequest: {other} is not a known Snapshot field, \
                     or not mutable."
                )));
            }
        }
    }
    check_labels(&labels)?;
    if ends_ms.is_none() {
        ends_ms = noted(&ask.door, &ask.door.names.inner(&name))
            .await?
            .expire_time
            .as_ref()
            .and_then(timestamp_ms)
            .map(|ms| ms.max(0) as u64);
    }
    note(&ask.door, &ask.door.names.inner(&name), labels, ends_ms).await?;
    find(&ask.door, &name).await
}

pub(super) async fn delete(ask: Ask, request: DeleteSnapshotRequest) -> Result<()> {
    let name = Name::parse(Kind::Snapshot, &request.snapshot)?;
    find(&ask.door, &name).await?;
    remove(&ask.door, &name).await?;
    policies::forget(&ask.door, &name).await
}

pub(super) async fn remove(door: &Door, name: &Name) -> Result<()> {
    let inner = door.names.inner(name);
    match door.broker.queues.delete_snapshot(&inner).await {
        Err(error) if error.kind != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    match door.broker.documents.get(DOCUMENT, &inner).await? {
        Some(_) => Ok(door.broker.documents.put(DOCUMENT, &inner, None).await?),
        None => Ok(()),
    }
}

/// Deletes expired snapshots.
pub(super) async fn sweep(door: &Door) -> Result<()> {
    for (inner, _) in door.broker.documents.list(DOCUMENT, "").await? {
        let name = door.names.outer(Kind::Snapshot, &inner);
        match find(door, &name).await {
            Err(failure) if failure == missing() => remove(door, &name).await?,
            found => drop(found?),
        }
    }
    Ok(())
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
            let name = Name::parse(Kind::Snapshot, &snapshot)?;
            let (kept, _) = find_kept(door, &name).await?;
            if kept.topic != queue.topic {
                return Err(Failure::precondition(format!(
                    "The subscription's topic {} is different from that of the snapshot {}; they must match in order \
                     for Seek work.",
                    queue.topic, kept.topic
                )));
            }
            door.broker.queues.seek_to_snapshot(queue.name.as_str(), &door.names.inner(&name)).await?;
            return Ok(SeekResponse {});
        }
    };
    door.broker.queues.seek(queue.name.as_str(), to).await?;
    Ok(SeekResponse {})
}

#[cfg(test)]
mod tests {
    use broker::{Broker, NewQueue, Settings};
    use engine::TopicSettings;
    use engine::queue::QueueName;
    use futures_util::FutureExt;
    use tokio::runtime::Handle;

    use super::super::names::Names;
    use super::super::push::Allow;
    use super::*;

    /// The snapshots of a list are described in slices.
    #[tokio::test]
    async fn other_tasks_run_while_many_snapshots_are_listed() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
        broker.create_topic("t", TopicSettings::default()).await.expect("created");
        let topic = Some(engine::TopicName::parse("t").expect("a name"));
        let queue = NewQueue { topic, ..NewQueue::new(QueueName::parse("q").expect("a name")) };
        broker.queues.create(queue).await.expect("created");
        let count = 2 * NAMES_PER_TURN + 10;
        for i in 0..count {
            broker.queues.create_snapshot(&format!("s{i}"), "q", u64::MAX).await.expect("created");
        }
        let door = Door::new(broker, Names::new("p".into()), 1 << 20, Allow::default(), false);
        let name = Name { kind: Kind::Topic, project: "p".into(), id: "t".into() };
        let mut all = std::pin::pin!(over(&door, &name));
        let mut pauses = 0;
        let found = loop {
            match (&mut all).now_or_never() {
                Some(found) => break found.expect("listed"),
                None => pauses += 1,
            }
        };
        assert_eq!((found.len(), pauses), (count, 2));
    }
}
