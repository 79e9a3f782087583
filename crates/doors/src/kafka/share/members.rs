//! ShareGroupHeartbeat and ShareGroupDescribe: the members of a share group.

use std::collections::BTreeSet;
use std::sync::Arc;

use broker::{Broker, ShareBeat, ShareGroupStatus};
use engine::groups::{GroupName, ShareJoin, Turn};
use engine::security::Resource;
use engine::{TopicName, TopicPartition};
use tokio::task::yield_now;

use super::super::caller::Caller;
use super::super::errors::Code;
use super::super::groups::{
    GroupSettings, Outcome, Refused, by_topic, client_host, distinct, group_for, member_id, topics_named,
};
use super::super::messages::share_group_describe::{
    Assignment as Described, DescribedGroup, Member, ShareGroupDescribeRequest, ShareGroupDescribeResponse,
    TopicPartitions as DescribedPartitions,
};
use super::super::messages::share_group_heartbeat::{
    Assignment, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, TopicPartitions,
};
use super::{SHARE_GROUP_DESCRIBE, SHARE_GROUP_HEARTBEAT, uuid};

/// Values of the epoch for a member that joins, and for one that leaves.
const JOINS: i32 = 0;
const LEAVES: i32 = -1;
/// Name of the only assignor.
const ASSIGNOR: &str = "simple";
const EMPTY: &str = "Empty";
const STABLE: &str = "Stable";
const DEAD: &str = "Dead";

pub(in super::super) async fn heartbeat(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ShareGroupHeartbeatRequest,
) -> ShareGroupHeartbeatResponse {
    let member_id = Some(request.member_id.clone());
    match try_heartbeat(broker, caller, request).await {
        Ok(None) => ShareGroupHeartbeatResponse { member_id, member_epoch: LEAVES, ..Default::default() },
        Ok(Some((turn, heartbeat_interval_ms))) => ShareGroupHeartbeatResponse {
            member_id,
            member_epoch: turn.epoch as i32,
            heartbeat_interval_ms,
            assignment: turn.assignment.map(|partitions| assignment(broker, partitions)),
            ..Default::default()
        },
        Err(Refused { code, message }) => {
            ShareGroupHeartbeatResponse { error_code: code.0, error_message: Some(message), ..Default::default() }
        }
    }
}

/// Returns the assignment of the member and its heartbeat interval; `None` if it leaves.
async fn try_heartbeat(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ShareGroupHeartbeatRequest,
) -> Outcome<Option<(Turn, i32)>> {
    let invalid = |message: &str| Refused { code: Code::INVALID_REQUEST, message: message.to_owned() };
    let group = group_for(broker, caller, SHARE_GROUP_HEARTBEAT, &request.group_id)?;
    if request.member_id.is_empty() {
        return Err(invalid("the member id is missing: a member of a share group chooses its own id"));
    }
    let member = member_id(&request.member_id)?;
    if request.member_epoch == LEAVES {
        broker.groups.leave_share_group(&group, &member).await?;
        return Ok(None);
    }
    let names = request.subscribed_topic_names;
    let topics = names.map(|names| topics_named(broker, caller, SHARE_GROUP_HEARTBEAT, &names)).transpose()?;
    let settings = GroupSettings::of(broker, &group).await?;
    let turn = match (request.member_epoch, topics) {
        (JOINS, None) => return Err(invalid("a member that joins must name the topics of its subscription")),
        (JOINS, Some(topics)) => {
            let client = caller.client.clone();
            let host = caller.identity.host().to_owned();
            let session_timeout_ms = settings.session_timeout_ms;
            let join = ShareJoin { member, client, host, topics, session_timeout_ms };
            broker.groups.join_share_group(&group, join, settings.start).await?
        }
        (epoch, topics) => {
            let epoch = u32::try_from(epoch).or(Err(invalid("the epoch of a member is -1 or more")))?;
            broker
                .groups
                .share_group_heartbeat(
                    &group,
                    ShareBeat { member, epoch, topics, session_timeout_ms: settings.session_timeout_ms },
                    settings.start,
                )
                .await?
        }
    };
    Ok(Some((turn, settings.heartbeat_ms as i32)))
}

fn assignment(broker: &Broker, partitions: Vec<TopicPartition>) -> Assignment {
    let of_topic = |(topic, partitions): (TopicName, Vec<i32>)| {
        let (id, _) = broker.find_topic(topic.as_str())?;
        Some(TopicPartitions { topic_id: uuid(id), partitions })
    };
    Assignment { topic_partitions: by_topic(partitions).into_iter().filter_map(of_topic).collect() }
}

pub(in super::super) async fn describe(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ShareGroupDescribeRequest,
) -> ShareGroupDescribeResponse {
    let mut groups = Vec::with_capacity(request.group_ids.len());
    for name in distinct(request.group_ids) {
        yield_now().await;
        let authorized_operations =
            caller.operations(broker, &Resource::group(&name), request.include_authorized_operations);
        let described = match status(broker, caller, &name).await {
            Ok(status) => DescribedGroup { authorized_operations, ..described(broker, status) },
            Err(Refused { code, message }) => DescribedGroup {
                error_code: code.0,
                error_message: Some(message),
                group_state: DEAD.into(),
                ..Default::default()
            },
        };
        groups.push(DescribedGroup { group_id: name, ..described });
    }
    ShareGroupDescribeResponse { groups, ..Default::default() }
}

/// Returns the state of a group, if the caller may see all topics of its members; otherwise the group is not described.
async fn status(broker: &Arc<Broker>, caller: &Caller, name: &str) -> Outcome<ShareGroupStatus> {
    let group = group_for(broker, caller, SHARE_GROUP_DESCRIBE, name)?;
    let status = broker.groups.describe_share_group(&group).await?;
    let topics: BTreeSet<&TopicName> = status.members.iter().flat_map(|m| &m.assigned).map(|at| &at.topic).collect();
    for topic in topics {
        caller.may_use(broker, SHARE_GROUP_DESCRIBE, &Resource::topic(topic.as_str()))?;
    }
    Ok(status)
}

fn described(broker: &Broker, status: ShareGroupStatus) -> DescribedGroup {
    let of_topic = |(topic, partitions): (TopicName, Vec<i32>)| {
        let (id, _) = broker.find_topic(topic.as_str())?;
        Some(DescribedPartitions { topic_id: uuid(id), topic_name: topic.to_string(), partitions })
    };
    let epoch = status.epoch as i32;
    let group_state = if status.members.is_empty() { EMPTY } else { STABLE }.to_owned();
    let members = status.members.into_iter().map(|member| Member {
        member_id: member.id.to_string(),
        member_epoch: member.epoch as i32,
        client_id: member.client,
        client_host: client_host(&member.host),
        subscribed_topic_names: member.topics.iter().map(ToString::to_string).collect(),
        assignment: Described {
            topic_partitions: by_topic(member.assigned).into_iter().filter_map(of_topic).collect(),
        },
        ..Default::default()
    });
    DescribedGroup {
        group_state,
        group_epoch: epoch,
        assignment_epoch: epoch,
        assignor_name: ASSIGNOR.into(),
        members: members.collect(),
        ..Default::default()
    }
}

/// Returns all share groups with the names of their states.
pub(in super::super) async fn states(broker: &Broker) -> Outcome<Vec<(GroupName, &'static str)>> {
    let groups = broker.groups.share_groups().await?.into_iter();
    Ok(groups.map(|(name, has_members)| (name, if has_members { STABLE } else { EMPTY })).collect())
}
