//! Share groups: their members, and the queue of each group over each of its topics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use engine::groups::{GroupError, GroupName, MemberId, Reason, ShareGroup, ShareJoin, Turn};
use engine::limits::GROUPS_MAX;
use engine::queue::{QueueName, QueueSettings, RETENTION_MS_MAX};
use engine::{Error, Offset, PartitionId, Pattern, Result, TopicName, TopicPartition};

use super::Outcome;
use crate::groups::Groups;
use crate::peers::Created;
use crate::queues::{AcquireFrom, NewQueue, QueuePosition, QueueStart, SeekTo};
use crate::topic::refuse_internal;

/// Kind of the documents that record the existence of a share group.
const SHARE_GROUP: &str = "share.group";
/// Maximum messages of one partition that are leased to the members of a group at the same time.
pub const SHARE_IN_FLIGHT_MAX: u32 = 10_000;

/// Position in a topic at which a share group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareStart {
    Earliest,
    /// The records that are published from now on.
    #[default]
    Live,
    /// The records published at most this long ago.
    Ago(Duration),
}

/// Heartbeat of a member.
#[derive(Clone, Debug)]
pub struct ShareBeat {
    pub member: MemberId,
    pub epoch: u32,
    /// Topics to which the member subscribes from now on; `None` leaves them unchanged.
    pub topics: Option<Vec<Pattern>>,
    /// Session timeout of the member from now on.
    pub session_timeout_ms: u32,
}

#[derive(Clone, Debug)]
pub struct ShareGroupMember {
    pub id: MemberId,
    pub client: String,
    pub host: String,
    pub epoch: u32,
    pub topics: Vec<Pattern>,
    pub assigned: Vec<TopicPartition>,
}

#[derive(Clone, Debug)]
pub struct ShareGroupStatus {
    pub epoch: u32,
    pub members: Vec<ShareGroupMember>,
}

/// Returns the settings of every queue of a share group. Settings of a group itself are passed with each call.
fn queue_settings() -> QueueSettings {
    QueueSettings {
        retention_ms: RETENTION_MS_MAX,
        is_strict: true,
        in_flight_max: SHARE_IN_FLIGHT_MAX,
        ..QueueSettings::default()
    }
}

fn no_such_share_group(name: &GroupName) -> GroupError {
    GroupError::new(Reason::NoSuchGroup, format!("there is no share group '{name}'"))
}

impl Groups {
    /// Joins a member to a share group, or lets a member rejoin.
    pub async fn join_share_group(&self, name: &GroupName, join: ShareJoin, start: ShareStart) -> Outcome<Turn> {
        join.check()?;
        let coordinator = self.restored().await?;
        if coordinator.groups.read().contains_key(name) {
            return Err(GroupError::new(Reason::NoSuchGroup, format!("group '{name}' is not a share group")));
        }
        let (member, turn) = {
            let mut groups = coordinator.shares.groups.lock();
            if groups.len() >= GROUPS_MAX && !groups.contains_key(name) {
                return Err(Error::busy(format!(
                    "share group limit reached ({GROUPS_MAX} with members): end all members of one first"
                ))
                .into());
            }
            if !groups.contains_key(name) {
                self.core.peers().admit(Created::Group)?;
            }
            let group = groups.entry(name.clone()).or_insert_with(|| ShareGroup::new(name.clone()));
            let member = join.member.clone();
            let turn = group.join(join, &self.topics(), coordinator.now());
            if group.is_empty() {
                groups.remove(name);
            }
            (member, turn?)
        };
        // The deadline of the member may be the next one.
        coordinator.changed.notify_one();
        let turn = self.planned_turn(name, &member, turn).await?;
        self.prepare(name, turn, start).await
    }

    /// Processes a heartbeat of a member. Returns the partitions from which it may take messages.
    pub async fn share_group_heartbeat(&self, name: &GroupName, beat: ShareBeat, start: ShareStart) -> Outcome<Turn> {
        let coordinator = self.restored().await?;
        let ShareBeat { member, epoch, topics, session_timeout_ms } = beat;
        let is_resubscribing = topics.is_some();
        let mut turn = {
            let mut groups = coordinator.shares.groups.lock();
            // After a restart, members have to join again.
            let unknown =
                || GroupError::new(Reason::UnknownMember, format!("{member} is not a member of group {name}"));
            let group = groups.get_mut(name).ok_or_else(unknown)?;
            if group.set_session_timeout(&member, session_timeout_ms) {
                // The deadline of the member may be the next one.
                coordinator.changed.notify_one();
            }
            let turn = group.beat(&member, epoch, topics, &self.topics(), coordinator.now())?;
            if group.is_due() {
                coordinator.planning.due.notify_one();
            }
            turn
        };
        if is_resubscribing {
            turn = self.planned_turn(name, &member, turn).await?;
        }
        self.prepare(name, turn, start).await
    }

    /// Returns the turn of a member once the targets of its group are renewed, if they are due.
    async fn planned_turn(&self, name: &GroupName, member: &MemberId, turn: Turn) -> Outcome<Turn> {
        if !self.table.shares.is_due(name) {
            return Ok(turn);
        }
        // If this fails, or the member leaves, it is made later.
        self.table.planning.due.notify_one();
        self.settle_share_group(name).await.unwrap_or_default();
        let mut groups = self.table.shares.groups.lock();
        let group = groups.get_mut(name).ok_or_else(|| no_such_share_group(name))?;
        let later = group.beat(member, turn.epoch, None, &self.topics(), self.table.now())?;
        Ok(if later.assignment.is_some() { later } else { turn })
    }

    /// Creates the missing queues over all topics that are assigned to a member.
    async fn prepare(&self, name: &GroupName, turn: Turn, start: ShareStart) -> Outcome<Turn> {
        let topics: BTreeSet<&TopicName> = turn.assignment.iter().flatten().map(|at| &at.topic).collect();
        for topic in topics {
            match self.share_queue(name, topic, start).await {
                // The topic was deleted concurrently; the next heartbeat no longer assigns it.
                Err(error) if error.kind == engine::ErrorKind::NotFound => {}
                made => drop(made?),
            }
        }
        Ok(turn)
    }

    pub async fn leave_share_group(&self, name: &GroupName, member: &MemberId) -> Outcome {
        let coordinator = self.restored().await?;
        let mut groups = coordinator.shares.groups.lock();
        let group = groups.get_mut(name).ok_or_else(|| no_such_share_group(name))?;
        group.leave(member)?;
        if group.is_due() {
            coordinator.planning.due.notify_one();
        }
        if group.is_empty() {
            groups.remove(name);
        }
        Ok(())
    }

    /// Returns the queue of a share group over a topic, which is created if it does not exist.
    pub async fn share_queue(&self, name: &GroupName, topic: &TopicName, start: ShareStart) -> Result<QueueName> {
        refuse_internal(topic.as_str())?;
        let queue = QueueName::of_share(name, topic);
        if self.queues.has(&queue).await? {
            return Ok(queue);
        }
        // The topic must exist before the existence of the group is recorded.
        self.core.topic(topic.as_str())?;
        // The group exists until it is deleted, even without a topic.
        if self.documents.get(SHARE_GROUP, name.as_str()).await?.is_none() {
            self.documents.put(SHARE_GROUP, name.as_str(), Some(Bytes::new())).await?;
        }
        let new = NewQueue {
            topic: Some(topic.clone()),
            start: if start == ShareStart::Earliest { QueueStart::Earliest } else { QueueStart::Live },
            settings: queue_settings(),
            ..NewQueue::new(queue.clone())
        };
        // Another member may have created the queue concurrently.
        let (_, begins) = self.queues.make(new).await?;
        if begins && let ShareStart::Ago(ago) = start {
            let at_ms = self.core.now_ms().saturating_sub(ago.as_millis() as u64);
            self.queues.seek_any(queue.as_str(), SeekTo::Time(at_ms as i64)).await?;
        }
        Ok(queue)
    }

    /// Returns the names of all share groups, each with `true` if it has members.
    pub async fn share_groups(&self) -> Outcome<BTreeMap<GroupName, bool>> {
        let coordinator = self.restored().await?;
        let kept = self.documents.list(SHARE_GROUP, "").await?.into_iter();
        let mut all: BTreeMap<GroupName, bool> =
            kept.filter_map(|(name, _)| Some((GroupName::parse(&name).ok()?, false))).collect();
        all.extend(coordinator.shares.groups.lock().keys().map(|name| (name.clone(), true)));
        Ok(all)
    }

    pub async fn describe_share_group(&self, name: &GroupName) -> Outcome<ShareGroupStatus> {
        let coordinator = self.restored().await?;
        if let Some(group) = coordinator.shares.groups.lock().get(name) {
            let members = group.members().map(|member| ShareGroupMember {
                id: member.id.clone(),
                client: member.client.to_owned(),
                host: member.host.to_owned(),
                epoch: member.epoch,
                topics: member.topics.to_vec(),
                assigned: member.assigned,
            });
            return Ok(ShareGroupStatus { epoch: group.epoch(), members: members.collect() });
        }
        match self.documents.get(SHARE_GROUP, name.as_str()).await? {
            Some(_) => Ok(ShareGroupStatus { epoch: 0, members: Vec::new() }),
            None => Err(no_such_share_group(name)),
        }
    }

    /// Returns the topics over which a share group has a queue.
    pub async fn share_topics(&self, name: &GroupName) -> Outcome<BTreeSet<TopicName>> {
        let queues = self.queues.of_share_groups().await?.into_iter();
        Ok(queues.filter(|(group, _)| group == name).map(|(_, queue)| queue.topic.clone()).collect())
    }

    /// Returns the positions of a share group in a topic.
    pub async fn share_positions(&self, name: &GroupName, topic: &TopicName) -> Outcome<Vec<QueuePosition>> {
        Ok(self.queues.positions(&QueueName::of_share(name, topic)).await?)
    }

    /// Creates a share group, unless it exists. Fails if another kind of group has the name, or if the group has
    /// members.
    pub async fn create_share_group(&self, name: &GroupName, what: &str) -> Outcome {
        let act = async {
            match self.check_share_group_empty(name, what).await {
                Err(refused) if refused.reason == Reason::NoSuchGroup => {}
                checked => return checked,
            }
            let coordinator = self.restored().await?;
            if coordinator.groups.read().contains_key(name) {
                return Err(GroupError::new(Reason::NoSuchGroup, format!("group '{name}' is not a share group")));
            }
            Ok(self.documents.put(SHARE_GROUP, name.as_str(), Some(Bytes::new())).await?)
        };
        self.core.audited("create group", name.as_str(), act).await
    }

    /// Moves a share group without members to other offsets in partitions of a topic. Returns the outcome for each
    /// partition.
    pub async fn seek_share_group(
        &self,
        name: &GroupName,
        topic: &TopicName,
        offsets: &[(PartitionId, Offset)],
    ) -> Outcome<Vec<Result<()>>> {
        let act = async {
            self.check_share_group_empty(name, "its offsets can be set").await?;
            let queue = self.share_queue(name, topic, ShareStart::Live).await?;
            let mut outcomes = Vec::with_capacity(offsets.len());
            for (partition, offset) in offsets {
                let from = AcquireFrom { queue: queue.clone(), partition: *partition };
                outcomes.push(self.queues.seek_partition(&from, *offset).await);
            }
            Ok(outcomes)
        };
        self.core.audited("reset offsets of group", name.as_str(), act).await
    }

    /// Deletes the position of a share group without members in a topic.
    pub async fn forget_share_topic(&self, name: &GroupName, topic: &TopicName) -> Outcome {
        let act = async {
            self.check_share_group_empty(name, "its offsets can be deleted").await?;
            Ok(self.queues.delete_any(QueueName::of_share(name, topic).as_str()).await?)
        };
        self.core.audited("delete offsets of group", name.as_str(), act).await
    }

    /// Deletes a share group that has no members, with its unacknowledged messages.
    pub async fn delete_share_group(&self, name: &GroupName) -> Outcome {
        let act = async {
            self.check_share_group_empty(name, "it can be deleted").await?;
            for topic in self.share_topics(name).await? {
                self.queues.delete_any(QueueName::of_share(name, &topic).as_str()).await?;
            }
            Ok(self.documents.put(SHARE_GROUP, name.as_str(), None).await?)
        };
        self.core.audited("delete group", name.as_str(), act).await
    }

    /// Checks that the share group exists and has no members.
    pub async fn check_share_group_empty(&self, name: &GroupName, what: &str) -> Outcome {
        let coordinator = self.restored().await?;
        if let Some(group) = coordinator.shares.groups.lock().get(name) {
            return group.check_empty(what);
        }
        self.documents.get(SHARE_GROUP, name.as_str()).await?.map(drop).ok_or_else(|| no_such_share_group(name))
    }
}
