//! DescribeGroups, ConsumerGroupDescribe, ListGroups and DeleteGroups.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use broker::{Broker, ClassicInfo, GroupMember, GroupStatus};
use bytes::Bytes;
use engine::groups::{ClassicPhase, GroupState, Reason};
use engine::security::Resource;
use engine::{Pattern, TopicName, TopicPartition};
use tokio::task::yield_now;

use super::super::caller::Caller;
use super::super::errors::Code;
use super::super::messages::Uuid;
use super::super::messages::consumer_group_describe::{
    Assignment, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DescribedGroup as DescribedConsumers,
    Member, TopicPartitions,
};
use super::super::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use super::super::messages::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};
use super::super::messages::describe_groups::{
    DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use super::super::messages::list_groups::{ListGroupsRequest, ListGroupsResponse, ListedGroup};
use super::super::share;
use super::{
    CONSUMER_GROUP_DESCRIBE, CONSUMERS, DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, Outcome, Refused, by_topic,
    distinct, group_for, write_embedded, write_share,
};

/// Types of groups, which differ in who assigns the partitions.
const CLASSIC: &str = "Classic";
const CONSUMER: &str = "Consumer";
const SHARE: &str = "Share";
/// Protocol type of share groups.
const SHARERS: &str = "share";
/// State of a group that does not exist.
const DEAD: &str = "Dead";
/// First version that reports a nonexistent group as an error.
const SAYS_NOT_FOUND: i16 = 6;
/// Types of members in a group whose partitions the broker assigns: members that join and sync, and members that only
/// send heartbeats.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

/// Returns Kafka's name of a group's state. `classic` is `None` if the broker assigns the partitions.
fn state_name(state: GroupState, classic: Option<&ClassicInfo>) -> &'static str {
    match (classic.map(|classic| classic.phase), state) {
        (Some(ClassicPhase::Empty), _) | (None, GroupState::Empty) => "Empty",
        (Some(ClassicPhase::Preparing), _) => "PreparingRebalance",
        (Some(ClassicPhase::Completing), _) => "CompletingRebalance",
        (Some(ClassicPhase::Stable), _) | (None, GroupState::Stable) => "Stable",
        (None, GroupState::Reconciling) => "Reconciling",
    }
}

/// Returns the type of a group. An empty group takes the type of its next member; it is reported as classic because
/// tools describe it with the older API.
fn type_name(state: GroupState, classic: Option<&ClassicInfo>) -> &'static str {
    if classic.is_some() || state == GroupState::Empty { CLASSIC } else { CONSUMER }
}

pub(in super::super) async fn list(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ListGroupsRequest,
) -> ListGroupsResponse {
    let groups = match all(broker).await {
        Ok(groups) => groups,
        Err(refused) => return ListGroupsResponse { error_code: refused.code.0, ..Default::default() },
    };
    let (states, types) = (Names::of(&request.states_filter), Names::of(&request.types_filter));
    let may_see = |name: &str| caller.sees(broker, LIST_GROUPS, &Resource::group(name));
    let groups = groups.into_iter().filter(|group| may_see(&group.group_id));
    let groups = groups.filter(|group| states.have(&group.group_state) && types.have(&group.group_type));
    ListGroupsResponse { groups: groups.collect(), ..Default::default() }
}

/// Names of states or of types, in any case, that a client filters by.
struct Names(HashSet<String>);

impl Names {
    fn of(names: &[String]) -> Self {
        Self(names.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Returns `true` if this name is one of them, or if there are none.
    fn have(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.contains(&name.to_ascii_lowercase())
    }
}

/// Returns all groups of all types, in the order of their names.
async fn all(broker: &Arc<Broker>) -> Outcome<Vec<ListedGroup>> {
    let consumers = broker.groups.states().await?.into_iter().map(|(name, state, classic)| ListedGroup {
        group_state: state_name(state, classic.as_ref()).into(),
        group_type: type_name(state, classic.as_ref()).into(),
        protocol_type: classic.map_or_else(|| CONSUMERS.into(), |classic| classic.protocol_type),
        group_id: name.to_string(),
    });
    let shares = share::states(broker).await?.into_iter().map(|(name, state)| ListedGroup {
        group_state: state.into(),
        group_type: SHARE.into(),
        protocol_type: SHARERS.into(),
        group_id: name.to_string(),
    });
    let mut groups: Vec<ListedGroup> = consumers.chain(shares).collect();
    groups.sort_unstable_by(|a, b| a.group_id.cmp(&b.group_id));
    Ok(groups)
}

pub(in super::super) async fn describe(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let mut groups = Vec::with_capacity(request.groups.len());
    for name in distinct(request.groups) {
        yield_now().await;
        let authorized_operations =
            caller.operations(broker, &Resource::group(&name), request.include_authorized_operations);
        groups.push(match status(broker, caller, DESCRIBE_GROUPS, &name).await {
            Ok(status) => DescribedGroup { authorized_operations, ..described(caller, status) },
            // Older clients expect this for a nonexistent group.
            Err(refused) if refused.code == Code::GROUP_ID_NOT_FOUND && caller.version < SAYS_NOT_FOUND => {
                DescribedGroup { group_id: name, group_state: DEAD.into(), ..Default::default() }
            }
            Err(refused) => DescribedGroup {
                error_code: refused.code.0,
                error_message: Some(refused.message),
                group_id: name,
                group_state: DEAD.into(),
                ..Default::default()
            },
        });
    }
    DescribeGroupsResponse { groups, ..Default::default() }
}

async fn status(broker: &Arc<Broker>, caller: &Caller, key: i16, name: &str) -> Outcome<GroupStatus> {
    Ok(broker.groups.describe(&group_for(broker, caller, key, name)?).await?)
}

fn described(caller: &Caller, status: GroupStatus) -> DescribedGroup {
    let classic = status.classic;
    let state = match state_name(status.state, classic.as_ref()) {
        // The classic API has no other state for members that are moving to their target assignment.
        "Reconciling" => "PreparingRebalance",
        state => state,
    };
    let members = status.members.into_iter().map(|member| DescribedGroupMember {
        member_metadata: metadata(caller, &member),
        member_assignment: member.assignment.unwrap_or_else(|| write_share(caller.tenant(), member.assigned)),
        member_id: member.id.to_string(),
        group_instance_id: member.instance.map(|instance| instance.to_string()),
        client_id: member.client,
        client_host: client_host(&member.host),
    });
    DescribedGroup {
        group_id: status.name.to_string(),
        group_state: state.into(),
        members: members.collect(),
        protocol_data: classic.as_ref().map_or(status.assignor.name().into(), |classic| classic.protocol.clone()),
        protocol_type: classic.map_or_else(|| CONSUMERS.into(), |classic| classic.protocol_type),
        ..Default::default()
    }
}

/// Returns the address of a client in Kafka's format.
pub(in super::super) fn client_host(host: &str) -> String {
    format!("/{host}")
}

/// Splits the subscriptions of a member into topic names and its regular expression.
fn split(topics: &[Pattern]) -> (Vec<String>, Option<String>) {
    let (rules, names): (Vec<&Pattern>, Vec<&Pattern>) =
        topics.iter().partition(|topic| matches!(topic, Pattern::Rule(_)));
    (names.iter().map(ToString::to_string).collect(), rules.first().map(ToString::to_string))
}

/// Returns the metadata that the member sends, or would send, to its leader.
fn metadata(caller: &Caller, member: &GroupMember) -> Bytes {
    if !member.metadata.is_empty() || member.assignment.is_some() {
        return member.metadata.clone();
    }
    let said = ConsumerProtocolSubscription { topics: split(&member.topics).0, ..Default::default() };
    write_embedded(caller.tenant(), said)
}

pub(in super::super) async fn describe_consumer(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let mut groups = Vec::with_capacity(request.group_ids.len());
    for name in distinct(request.group_ids) {
        yield_now().await;
        let authorized_operations =
            caller.operations(broker, &Resource::group(&name), request.include_authorized_operations);
        let status = status(broker, caller, CONSUMER_GROUP_DESCRIBE, &name).await.and_then(|status| {
            if type_name(status.state, status.classic.as_ref()) == CONSUMER {
                return may_see_topics(broker, caller, status);
            }
            let message = format!("group '{name}' does not use the protocol consumer");
            Err(Refused { code: Code::GROUP_ID_NOT_FOUND, message })
        });
        groups.push(status.map_or_else(
            |refused| DescribedConsumers {
                error_code: refused.code.0,
                error_message: Some(refused.message),
                group_id: name,
                group_state: DEAD.into(),
                ..Default::default()
            },
            |status| DescribedConsumers { authorized_operations, ..described_consumers(broker, status) },
        ));
    }
    ConsumerGroupDescribeResponse { groups, ..Default::default() }
}

/// Checks that the caller may see all topics of the members; otherwise the group is not described.
fn may_see_topics(broker: &Broker, caller: &Caller, status: GroupStatus) -> Outcome<GroupStatus> {
    let had = status.members.iter().flat_map(|member| member.assigned.iter().chain(&member.target));
    let topics: BTreeSet<&TopicName> = had.map(|partition| &partition.topic).collect();
    for topic in topics {
        caller.may_use(broker, CONSUMER_GROUP_DESCRIBE, &Resource::topic(topic.as_str()))?;
    }
    Ok(status)
}

fn described_consumers(broker: &Broker, status: GroupStatus) -> DescribedConsumers {
    let epoch = status.epoch as i32;
    let members = status.members.into_iter().map(|member| (split(&member.topics), member));
    let members = members.map(|((names, regex), member)| Member {
        member_epoch: member.epoch as i32,
        member_type: if member.metadata.is_empty() { CONSUMER_MEMBER } else { CLASSIC_MEMBER },
        assignment: assignment(broker, member.assigned),
        target_assignment: assignment(broker, member.target),
        subscribed_topic_names: names,
        subscribed_topic_regex: regex,
        member_id: member.id.to_string(),
        instance_id: member.instance.map(|instance| instance.to_string()),
        client_id: member.client,
        client_host: client_host(&member.host),
        ..Default::default()
    });
    DescribedConsumers {
        group_state: state_name(status.state, None).into(),
        group_id: status.name.to_string(),
        group_epoch: epoch,
        assignment_epoch: epoch,
        assignor_name: status.assignor.name().into(),
        members: members.collect(),
        ..Default::default()
    }
}

fn assignment(broker: &Broker, partitions: Vec<TopicPartition>) -> Assignment {
    let of_topic = |(topic, partitions): (TopicName, Vec<i32>)| {
        let (id, _) = broker.find_topic(topic.as_str())?;
        let topic_id = Uuid(u128::from_be_bytes(id.to_bytes()));
        Some(TopicPartitions { topic_id, topic_name: topic.to_string(), partitions })
    };
    Assignment { topic_partitions: by_topic(partitions).into_iter().filter_map(of_topic).collect() }
}

pub(in super::super) async fn delete(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group_id in request.groups_names {
        let deleted = match group_for(broker, caller, DELETE_GROUPS, &group_id) {
            Ok(name) => match broker.groups.delete(&name).await {
                Err(refused) if refused.reason == Reason::NoSuchGroup => broker.groups.delete_share_group(&name).await,
                deleted => deleted,
            }
            .map_err(Refused::from),
            Err(refused) => Err(refused),
        };
        let error_code = deleted.err().map_or(Code::NONE, |refused| refused.code).0;
        results.push(DeletableGroupResult { group_id, error_code });
    }
    DeleteGroupsResponse { results, ..Default::default() }
}
