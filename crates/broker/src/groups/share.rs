//! Share groups at work: who is in them, and the queue that each has over each of its topics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use engine::groups::{GroupError, GroupName, MemberId, Now, Reason, ShareGroup, ShareJoin, Turn};
use engine::limits::GROUPS_MAX;
use engine::queue::{QueueName, QueueSettings, RETENTION_MS_MAX};
use engine::{Error, Offset, PartitionId, Pattern, Result, TopicName, TopicPartition};
use parking_lot::Mutex;

use super::{Outcome, Topics};
use crate::broker::Broker;
use crate::peers::Created;
use crate::queues::{AcquireFrom, NewQueue, QueuePosition, QueueStart, SeekTo};
use crate::topics::refuse_internal;

/// The kind of documents that say that there is such a group.
const SHARE_GROUP: &str = "share.group";
/// Messages of one partition that all members of a group have at a time, at most.
pub const SHARE_IN_FLIGHT_MAX: u32 = 10_000;

/// Where a share group begins in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareStart {
    Earliest,
    /// With what is published from now on.
    #[default]
    Live,
    /// With what was published so long ago.
    Ago(Duration),
}

/// A sign of life of a member.
#[derive(Clone, Debug)]
pub struct ShareBeat {
    pub member: MemberId,
    pub epoch: u32,
    /// What it subscribes to from now on.
    pub topics: Option<Vec<Pattern>>,
    /// How long the member may be silent from now on.
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

/// Every share group that has members; the others are known by their documents.
#[derive(Default)]
pub(super) struct ShareGroups(Mutex<BTreeMap<GroupName, ShareGroup>>);

impl ShareGroups {
    pub(super) fn has(&self, name: &GroupName) -> bool {
        self.0.lock().contains_key(name)
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.0.lock().values().filter_map(ShareGroup::next_deadline_ms).min()
    }

    /// How many there are, and how many members they have.
    pub(super) fn counts(&self) -> (usize, usize) {
        let groups = self.0.lock();
        (groups.len(), groups.values().map(ShareGroup::len).sum())
    }

    /// A topic was deleted: one that comes with the same name is another.
    pub(super) fn forget_topic(&self, topic: &TopicName) {
        self.0.lock().values_mut().for_each(|group| group.forget_topic(topic));
    }

    /// Puts out members whose session is over.
    pub(super) fn expire(&self, broker: &Broker, now: Now) -> u64 {
        let mut count = 0;
        self.0.lock().retain(|name, group| {
            group.refresh(&Topics(broker));
            for member in group.expire(now) {
                tracing::info!(group = %name, %member, "a member was removed from its share group");
                count += 1;
            }
            !group.is_empty()
        });
        count
    }
}

/// What every queue of a share group is set to; what a group says for itself comes with each call.
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

impl Broker {
    /// A program joins a share group, or begins anew in it.
    pub async fn join_share_group(&self, name: &GroupName, join: ShareJoin, start: ShareStart) -> Outcome<Turn> {
        join.check()?;
        let coordinator = self.restored_groups().await?;
        if coordinator.groups.read().contains_key(name) {
            return Err(GroupError::new(Reason::NoSuchGroup, format!("group '{name}' is not a share group")));
        }
        let turn = {
            let mut groups = coordinator.shares.0.lock();
            if groups.len() >= GROUPS_MAX && !groups.contains_key(name) {
                return Err(Error::busy(format!(
                    "this broker has {GROUPS_MAX} share groups with members, which is the limit"
                ))
                .into());
            }
            if !groups.contains_key(name) {
                self.peers().admit(Created::Group)?;
            }
            let group = groups.entry(name.clone()).or_insert_with(|| ShareGroup::new(name.clone()));
            let turn = group.join(join, &Topics(self), coordinator.now());
            if group.is_empty() {
                groups.remove(name);
            }
            turn?
        };
        // Its deadline may be the next one.
        coordinator.changed.notify_one();
        self.prepare(name, turn, start).await
    }

    /// A member is alive, and hears what it may take from.
    pub async fn share_group_heartbeat(&self, name: &GroupName, beat: ShareBeat, start: ShareStart) -> Outcome<Turn> {
        let coordinator = self.restored_groups().await?;
        let ShareBeat { member, epoch, topics, session_timeout_ms } = beat;
        let turn = {
            let mut groups = coordinator.shares.0.lock();
            // After a restart its members join again.
            let unknown =
                || GroupError::new(Reason::UnknownMember, format!("{member} is not a member of group {name}"));
            let group = groups.get_mut(name).ok_or_else(unknown)?;
            if group.set_session_timeout(&member, session_timeout_ms) {
                // Its deadline may be the next one.
                coordinator.changed.notify_one();
            }
            group.beat(&member, epoch, topics, &Topics(self), coordinator.now())?
        };
        self.prepare(name, turn, start).await
    }

    /// What a member is told to take from is there for it to take.
    async fn prepare(&self, name: &GroupName, turn: Turn, start: ShareStart) -> Outcome<Turn> {
        let topics: BTreeSet<&TopicName> = turn.assignment.iter().flatten().map(|at| &at.topic).collect();
        for topic in topics {
            match self.share_queue(name, topic, start).await {
                // It was deleted just now, and is told of no more with the next heartbeat.
                Err(error) if error.kind == engine::ErrorKind::NotFound => {}
                made => drop(made?),
            }
        }
        Ok(turn)
    }

    pub async fn leave_share_group(&self, name: &GroupName, member: &MemberId) -> Outcome {
        let coordinator = self.restored_groups().await?;
        let mut groups = coordinator.shares.0.lock();
        let group = groups.get_mut(name).ok_or_else(|| no_such_share_group(name))?;
        group.leave(member)?;
        if group.is_empty() {
            groups.remove(name);
        }
        Ok(())
    }

    /// The queue of a share group over a topic, which is made where there is none.
    pub async fn share_queue(&self, name: &GroupName, topic: &TopicName, start: ShareStart) -> Result<QueueName> {
        refuse_internal(topic.as_str())?;
        let queue = QueueName::of_share(name, topic);
        if self.has_queue(&queue).await? {
            return Ok(queue);
        }
        // The topic has to be there before it is written down that the group is.
        self.topic(topic.as_str())?;
        // It is there until it is deleted, also without a topic.
        if self.document(SHARE_GROUP, name.as_str()).await?.is_none() {
            self.put_document(SHARE_GROUP, name.as_str(), Some(Bytes::new())).await?;
        }
        let new = NewQueue {
            topic: Some(topic.clone()),
            start: if start == ShareStart::Earliest { QueueStart::Earliest } else { QueueStart::Live },
            settings: queue_settings(),
            ..NewQueue::new(queue.clone())
        };
        // Another member may have made it meanwhile.
        let (_, begins) = self.make_queue(new).await?;
        if begins && let ShareStart::Ago(ago) = start {
            let at_ms = crate::timers::now_ms().saturating_sub(ago.as_millis() as u64);
            self.seek_any_queue(queue.as_str(), SeekTo::Time(at_ms as i64)).await?;
        }
        Ok(queue)
    }

    /// The names of all share groups, and whether they have members.
    pub async fn share_groups(&self) -> Outcome<BTreeMap<GroupName, bool>> {
        let coordinator = self.restored_groups().await?;
        let kept = self.documents(SHARE_GROUP, "").await?.into_iter();
        let mut all: BTreeMap<GroupName, bool> =
            kept.filter_map(|(name, _)| Some((GroupName::parse(&name).ok()?, false))).collect();
        all.extend(coordinator.shares.0.lock().keys().map(|name| (name.clone(), true)));
        Ok(all)
    }

    pub async fn describe_share_group(&self, name: &GroupName) -> Outcome<ShareGroupStatus> {
        let coordinator = self.restored_groups().await?;
        if let Some(group) = coordinator.shares.0.lock().get(name) {
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
        match self.document(SHARE_GROUP, name.as_str()).await? {
            Some(_) => Ok(ShareGroupStatus { epoch: 0, members: Vec::new() }),
            None => Err(no_such_share_group(name)),
        }
    }

    /// The topics that a share group has a queue over.
    pub async fn share_topics(&self, name: &GroupName) -> Outcome<BTreeSet<TopicName>> {
        let queues = self.share_queues().await?.into_iter();
        Ok(queues.filter(|(group, _)| group == name).map(|(_, queue)| queue.topic.clone()).collect())
    }

    /// How far a share group has come in a topic.
    pub async fn share_positions(&self, name: &GroupName, topic: &TopicName) -> Outcome<Vec<QueuePosition>> {
        Ok(self.queue_positions(&QueueName::of_share(name, topic)).await?)
    }

    /// Creates a share group, unless it is there. Refused where another kind of group has the name, or where it has
    /// members.
    pub async fn create_share_group(&self, name: &GroupName, what: &str) -> Outcome {
        match self.check_share_group_empty(name, what).await {
            Err(refused) if refused.reason == Reason::NoSuchGroup => {}
            checked => return checked,
        }
        let coordinator = self.restored_groups().await?;
        if coordinator.groups.read().contains_key(name) {
            return Err(GroupError::new(Reason::NoSuchGroup, format!("group '{name}' is not a share group")));
        }
        Ok(self.put_document(SHARE_GROUP, name.as_str(), Some(Bytes::new())).await?)
    }

    /// A share group without members goes on elsewhere in partitions of a topic. Returns what came of each of them.
    pub async fn seek_share_group(
        &self,
        name: &GroupName,
        topic: &TopicName,
        offsets: &[(PartitionId, Offset)],
    ) -> Outcome<Vec<Result<()>>> {
        self.check_share_group_empty(name, "its offsets can be set").await?;
        let queue = self.share_queue(name, topic, ShareStart::Live).await?;
        let mut outcomes = Vec::with_capacity(offsets.len());
        for (partition, offset) in offsets {
            let from = AcquireFrom { queue: queue.clone(), partition: *partition };
            outcomes.push(self.seek_partition(&from, *offset).await);
        }
        Ok(outcomes)
    }

    /// A share group without members forgets how far it has come in a topic.
    pub async fn forget_share_topic(&self, name: &GroupName, topic: &TopicName) -> Outcome {
        self.check_share_group_empty(name, "its offsets can be deleted").await?;
        Ok(self.delete_any_queue(QueueName::of_share(name, topic).as_str()).await?)
    }

    /// Removes a share group that has no members, with all that it was not done with.
    pub async fn delete_share_group(&self, name: &GroupName) -> Outcome {
        self.check_share_group_empty(name, "it can be deleted").await?;
        for topic in self.share_topics(name).await? {
            self.delete_any_queue(QueueName::of_share(name, &topic).as_str()).await?;
        }
        Ok(self.put_document(SHARE_GROUP, name.as_str(), None).await?)
    }

    /// That there is such a group, and nobody in it.
    pub async fn check_share_group_empty(&self, name: &GroupName, what: &str) -> Outcome {
        let coordinator = self.restored_groups().await?;
        if let Some(group) = coordinator.shares.0.lock().get(name) {
            return group.check_empty(what);
        }
        self.document(SHARE_GROUP, name.as_str()).await?.map(drop).ok_or_else(|| no_such_share_group(name))
    }
}
