//! Maps consumer group requests to calls of the broker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use broker::{Beat, Broker, GroupStatus, ResetTo};
use engine::groups::{Committer, GroupName, Identity, InstanceId, Join, MemberId, NO_LEADER_EPOCH};
use engine::limits::GROUP_PARTITIONS_MAX;
use engine::security::ResourceKind;
use engine::{Error, PartitionId, Pattern, Result, Rule, TopicName, TopicPartition};
use wire::groups::{
    ByTopic, CommittedOffset, GroupInfo, GroupPartition, GroupSummary, Heartbeat, MemberInfo, OffsetCommit,
    OffsetReset, Step,
};
use wire::{GroupRequest, GroupResponse, Response};

use super::access;

/// Maximum number of groups in one response to a list.
const LIST_COUNT_MAX: u32 = 1000;
/// Maximum time that the response to a heartbeat waits.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the wait time of a request, in ms, if the request is a heartbeat of a member.
pub(super) fn wait_ms(request: &mut GroupRequest) -> Option<&mut u32> {
    match request {
        GroupRequest::Heartbeat(Heartbeat { step: Step::Alive { wait_ms, .. }, .. }) => Some(wait_ms),
        _ => None,
    }
}

/// Executes a request of the client at `peer`.
pub(super) async fn answer(
    broker: &Arc<Broker>,
    identity: &Arc<broker::Identity>,
    request: GroupRequest,
    peer: &str,
) -> Result<Response> {
    let response = match request {
        GroupRequest::Heartbeat(heartbeat) => self::heartbeat(broker, identity, heartbeat, peer).await?,
        GroupRequest::Commit(commit) => {
            self::commit(broker, commit).await?;
            GroupResponse::Committed
        }
        GroupRequest::Fetch { group, partitions } => {
            let partitions = self::partitions(&partitions)?;
            let partitions = (!partitions.is_empty()).then_some(&partitions[..]);
            let offsets = broker.groups.committed_offsets(&GroupName::parse(&group)?, partitions).await?;
            GroupResponse::Offsets(by_topic(offsets.into_iter().map(|(at, committed)| {
                let offset = CommittedOffset {
                    partition: at.partition,
                    offset: committed.offset,
                    committed_ms: committed.committed_ms,
                    metadata: committed.metadata.into(),
                };
                (at.topic, offset)
            })))
        }
        GroupRequest::List { after, count_max } => {
            let is_shown = |group: &str| broker.is_shown(identity, ResourceKind::Group, group);
            let count_max = count_max.clamp(1, LIST_COUNT_MAX) as usize;
            let (groups, is_last) = broker.groups.list(&after, count_max, is_shown).await?;
            GroupResponse::Groups { groups: groups.into_iter().map(summary).collect(), is_last }
        }
        GroupRequest::Describe { group } => {
            GroupResponse::Described(info(broker.groups.describe(&GroupName::parse(&group)?).await?))
        }
        GroupRequest::Delete { group } => {
            broker.groups.delete(&GroupName::parse(&group)?).await?;
            GroupResponse::Deleted
        }
        GroupRequest::Reset(reset) => {
            let OffsetReset { group, topic, partitions, to, is_dry_run } = reset;
            let to = to.map_or(ResetTo::Forget, ResetTo::Start);
            let group = GroupName::parse(&group)?;
            GroupResponse::Reset(broker.groups.reset_offsets(&group, &topic, &partitions, &to, is_dry_run).await?)
        }
    };
    Ok(Response::Group(response))
}

async fn heartbeat(
    broker: &Arc<Broker>,
    caller: &Arc<broker::Identity>,
    heartbeat: Heartbeat,
    peer: &str,
) -> Result<GroupResponse> {
    let group = GroupName::parse(&heartbeat.group)?;
    let who = identity(&heartbeat.member, &heartbeat.instance)?;
    let turn = match heartbeat.step {
        Step::Join { client, session_timeout_ms, rebalance_timeout_ms, assignor, topics } => {
            let join = Join {
                who,
                client,
                host: peer.to_owned(),
                topics: patterns(broker, caller, &topics)?,
                assignor,
                session_timeout_ms,
                rebalance_timeout_ms,
                takes_over: true,
            };
            broker.groups.join(&group, join).await?
        }
        Step::Alive { epoch, wait_ms, owned, topics } => {
            let owned = owned.map(|owned| partitions(&owned)).transpose()?;
            let beat = Beat {
                who,
                epoch,
                owned: owned.map(BTreeSet::from_iter),
                topics: topics.map(|topics| patterns(broker, caller, &topics)).transpose()?,
                session_timeout_ms: None,
                wait: Duration::from_millis(wait_ms.into()).min(WAIT_MAX),
            };
            broker.groups.heartbeat(&group, beat).await?
        }
        step @ (Step::Leave | Step::Away) => {
            broker.groups.leave(&group, &who, step == Step::Away).await?;
            return Ok(GroupResponse::Turn { epoch: 0, assignment: None });
        }
    };
    let assignment = turn.assignment.map(|assignment| by_topic(assignment.into_iter().map(|p| (p.topic, p.partition))));
    Ok(GroupResponse::Turn { epoch: turn.epoch, assignment })
}

async fn commit(broker: &Arc<Broker>, commit: OffsetCommit) -> Result<()> {
    let group = GroupName::parse(&commit.group)?;
    let committer = match commit.member.as_str() {
        "" => Committer::Outsider,
        member => Committer::Member { who: identity(member, &commit.instance)?, epoch: commit.epoch },
    };
    check_count(commit.offsets.iter().map(|(_, offsets)| offsets.len()).sum())?;
    let mut offsets = Vec::new();
    for (topic, new) in commit.offsets {
        let topic = TopicName::parse(&topic)?;
        offsets.extend(new.into_iter().map(|new| broker::OffsetCommit {
            partition: TopicPartition { topic: topic.clone(), partition: new.partition },
            offset: new.offset,
            leader_epoch: NO_LEADER_EPOCH,
            metadata: new.metadata,
        }));
    }
    Ok(broker.groups.commit_offsets(&group, &committer, offsets).await?)
}

fn identity(member: &str, instance: &str) -> Result<Identity> {
    let instance = (!instance.is_empty()).then(|| InstanceId::parse(instance)).transpose()?;
    Ok(Identity { member: MemberId::parse(member)?, instance })
}

fn patterns(broker: &Arc<Broker>, caller: &Arc<broker::Identity>, topics: &[String]) -> Result<Vec<Pattern>> {
    if topics.is_empty() {
        return Err(Error::invalid("a member must subscribe to at least one topic or pattern"));
    }
    let readable =
        |pattern| if broker.security.is_unlimited(caller) { pattern } else { readable(broker, caller, pattern) };
    topics.iter().map(|topic| Pattern::parse(topic).map(readable)).collect()
}

/// Returns a pattern that takes only the topics that a client may read, unless it names one topic.
fn readable(broker: &Arc<Broker>, caller: &Arc<broker::Identity>, pattern: Pattern) -> Pattern {
    if matches!(pattern, Pattern::Topic(_)) {
        return pattern;
    }
    let text = pattern.as_str().to_owned();
    let whose = caller.decided_by();
    let caller = caller.clone();
    let broker = Arc::downgrade(broker);
    Pattern::Rule(Rule::new(&text, &whose, move |topic| {
        let may_read = |broker: Arc<Broker>| access::may_read(&broker, &caller, topic);
        pattern.matches(topic) && broker.upgrade().is_some_and(may_read)
    }))
}

fn partitions(topics: &ByTopic<PartitionId>) -> Result<Vec<TopicPartition>> {
    check_count(topics.iter().map(|(_, partitions)| partitions.len()).sum())?;
    let mut found = Vec::new();
    for (topic, partitions) in topics {
        let topic = TopicName::parse(topic)?;
        let of_topic =
            partitions.iter().map(|partition| TopicPartition { topic: topic.clone(), partition: *partition });
        found.extend(of_topic);
    }
    Ok(found)
}

fn check_count(partitions: usize) -> Result<()> {
    if partitions > GROUP_PARTITIONS_MAX {
        return Err(Error::too_large(format!(
            "{partitions} partitions are more than a group can have ({GROUP_PARTITIONS_MAX})"
        )));
    }
    Ok(())
}

/// Groups adjacent entries of the same topic.
fn by_topic<T>(entries: impl Iterator<Item = (TopicName, T)>) -> ByTopic<T> {
    let mut topics: ByTopic<T> = Vec::new();
    for (topic, entry) in entries {
        match topics.last_mut() {
            Some((last, entries)) if last == topic.as_str() => entries.push(entry),
            _ => topics.push((topic.to_string(), vec![entry])),
        }
    }
    topics
}

fn summary(summary: broker::GroupSummary) -> GroupSummary {
    GroupSummary {
        group: summary.name.to_string(),
        state: summary.state,
        members: summary.members as u32,
        offsets: summary.offsets as u32,
        lag: summary.lag,
    }
}

fn info(status: GroupStatus) -> GroupInfo {
    // Members are sorted by id.
    let place = |owner: &MemberId| status.members.binary_search_by(|m| m.id.cmp(owner)).ok().map(|at| at as u32);
    let partitions = status.partitions.iter().map(|partition| {
        let committed = partition.committed.as_ref();
        let shown = GroupPartition {
            partition: partition.partition.partition,
            owner: partition.owner.as_ref().and_then(place),
            committed: committed.map(|committed| committed.offset),
            committed_ms: committed.map_or(0, |committed| committed.committed_ms),
            start: partition.start,
            end: partition.end,
        };
        (partition.partition.topic.clone(), shown)
    });
    let partitions = by_topic(partitions);
    let member = |member: broker::GroupMember| MemberInfo {
        member: member.id.to_string(),
        instance: member.instance.map_or(String::new(), |instance| instance.to_string()),
        client: match member.host.as_str() {
            "" => member.client,
            host => format!("{} at {host}", member.client),
        },
        state: member.state,
        epoch: member.epoch,
        topics: member.topics.iter().map(ToString::to_string).collect(),
    };
    GroupInfo {
        group: status.name.to_string(),
        state: status.state,
        epoch: status.epoch,
        assignor: status.assignor,
        members: status.members.into_iter().map(member).collect(),
        partitions,
    }
}
