//! Snapshots of queues: the unfinished messages at one moment are kept, and a queue can return to that state.

use std::sync::Arc;

use engine::queue::{Snapshot, SnapshotHead, SnapshotPartition};

use super::QUEUES;
use engine::{Error, ErrorKind, Result};

use crate::queues::Queues;
use crate::topic::Topic;

/// Kind of the documents that hold snapshots.
const SNAPSHOT: &str = "snapshot";
/// Maximum time that a snapshot is kept: one week.
pub const SNAPSHOT_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// Maximum number of snapshots of all queues.
pub const SNAPSHOTS_MAX: usize = 5000;

impl Queues {
    /// Creates a snapshot of the unfinished messages of a queue, kept until `expires_ms`. It is durable when this
    /// returns.
    pub async fn create_snapshot(&self, name: &str, queue: &str, expires_ms: u64) -> Result<Snapshot> {
        let act = async {
            let (cell, topic) = self.cell(queue).await?;
            let _control = self.hold().await?;
            if self.read_document(SNAPSHOT, name).is_some() {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("snapshot {name} already exists")));
            }
            if self.read_documents(SNAPSHOT, "").len() >= SNAPSHOTS_MAX {
                return Err(Error::busy(format!("snapshot limit reached ({SNAPSHOTS_MAX}): delete one first")));
            }
            let now = self.core.now_ms();
            let mut partitions = Vec::new();
            for partition in topic.partitions() {
                let one = partition
                    .with_view(cell.id, |view, _| SnapshotPartition::of(view.queue.next(), view.queue.pending()))?;
                partitions.push(one?);
            }
            let expires_ms = expires_ms.min(now + SNAPSHOT_MS_MAX);
            let name_of_topic = topic.name.clone();
            let topic_id = topic.id;
            let snapshot = Snapshot { topic: name_of_topic, topic_id, created_ms: now, expires_ms, partitions };
            // The log is held before the snapshot is persisted, so that no record of it is deleted in the meantime.
            hold(&topic, name, &snapshot);
            self.write_document(SNAPSHOT, name, Some(snapshot.encode().into())).await?;
            Ok(snapshot)
        };
        self.core.audited("create snapshot", name, act).await
    }

    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        self.restored().await?;
        let stored = self.read_document(SNAPSHOT, name);
        Snapshot::decode(&stored.ok_or_else(|| Error::not_found(format!("there is no snapshot {name}")))?)
    }

    /// Returns the snapshots whose names begin with `prefix`, in the order of their names, without their offsets.
    pub async fn snapshots(&self, prefix: &str) -> Result<Vec<(String, SnapshotHead)>> {
        self.restored().await?;
        let stored = self.read_documents(SNAPSHOT, prefix).into_iter();
        stored.map(|(name, bytes)| Ok((name, SnapshotHead::decode(&bytes)?))).collect()
    }

    /// Returns a snapshot without its offsets.
    pub async fn snapshot_head(&self, name: &str) -> Result<SnapshotHead> {
        self.restored().await?;
        let stored = self.read_document(SNAPSHOT, name);
        SnapshotHead::decode(&stored.ok_or_else(|| Error::not_found(format!("there is no snapshot {name}")))?)
    }

    pub async fn delete_snapshot(&self, name: &str) -> Result<()> {
        let act = async {
            let snapshot = self.snapshot_head(name).await?;
            let _control = self.hold().await?;
            self.write_document(SNAPSHOT, name, None).await?;
            if let Some(topic) = self.core.existing_topic(snapshot.topic.as_str()) {
                topic.partitions().iter().for_each(|partition| partition.let_go(name));
            }
            Ok(())
        };
        self.core.audited("delete snapshot", name, act).await
    }

    /// Restores a queue to a snapshot of a queue over the same topic: the messages that were unfinished then, and all
    /// later ones, are available again. Durable when the call returns.
    pub async fn seek_to_snapshot(&self, queue: &str, name: &str) -> Result<()> {
        let act = async {
            let snapshot = self.snapshot(name).await?;
            let (cell, topic) = self.cell(queue).await?;
            if snapshot.topic != topic.name {
                return Err(Error::invalid(format!(
                    "snapshot {name} belongs to topic {}, but queue {queue} reads topic {}",
                    snapshot.topic, topic.name
                )));
            }
            if snapshot.topic_id != topic.id {
                let message = format!(
                    "snapshot {name} belongs to a deleted topic {}; the topic that has this name now is another one",
                    topic.name
                );
                return Err(Error::not_found(message));
            }
            let mut saved = Vec::new();
            // Partitions that were added later are read from their beginning.
            let of = snapshot.partitions.iter().map(Some).chain(std::iter::repeat(None));
            for (partition, of) in topic.partitions().iter().zip(of) {
                let ((), one) = self.change_view(partition, cell.id, |view, log| {
                    let start = log.extent().start;
                    match of {
                        Some(of) => {
                            let present = of.offsets().filter(|offset| *offset >= start);
                            view.seek_to(present, of.next.max(start));
                        }
                        None => view.seek(start),
                    }
                })?;
                saved.extend(one);
                cell.wake_for_change();
                self.look_through(&cell, partition).await?;
            }
            for one in saved {
                one.wait().await?;
            }
            cell.wake_for_change();
            Ok(())
        };
        self.core.audited("seek queue", queue, act).await
    }

    /// Holds the records of snapshots again after a restart.
    pub(super) fn hold_snapshots(&self) -> Result<()> {
        for (name, bytes) in self.read_documents(SNAPSHOT, "") {
            let snapshot = Snapshot::decode(&bytes)?;
            if let Some(topic) = self.core.existing_topic(snapshot.topic.as_str()) {
                hold(&topic, &name, &snapshot);
            }
        }
        Ok(())
    }

    /// Deletes expired snapshots.
    pub(crate) async fn expire_snapshots(&self, now_ms: u64) -> Result<()> {
        // A broker without queues does not create their topic for this.
        if !QUEUES.exists(&self.core) {
            return Ok(());
        }
        for (name, snapshot) in self.snapshots("").await? {
            if snapshot.expires_ms <= now_ms {
                self.delete_snapshot(&name).await?;
            }
        }
        Ok(())
    }
}

fn hold(topic: &Topic, name: &str, snapshot: &Snapshot) {
    if snapshot.topic_id != topic.id {
        return;
    }
    // All partitions share the name.
    let name = Arc::from(name);
    for (partition, of) in topic.partitions().iter().zip(&snapshot.partitions) {
        partition.hold(&name, of.floor());
    }
}
