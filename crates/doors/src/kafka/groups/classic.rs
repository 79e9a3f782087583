//! JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

use std::sync::Arc;

use broker::{Broker, Entered};
use bytes::Bytes;
use engine::groups::{ClassicJoin, ClassicSync, Given, Joined, Leaver, Protocol, Share, Subscription};
use engine::limits::GROUP_PARTITIONS_MAX;
use engine::security::TenantName;
use engine::{Pattern, TopicName};

use super::super::caller::Caller;
use super::super::errors::Code;
use super::super::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use super::super::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use super::super::messages::join_group::{
    JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse, JoinGroupResponseMember,
};
use super::super::messages::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse};
use super::super::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse};
use super::{
    CONSUMERS, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, Outcome, Refused, SYNC_GROUP, group_for, identity, instance_id,
    member_id, partitions_of, read_embedded, read_share, write_share,
};

/// First version whose clients join a second time, with the id that the broker generated.
const JOINS_TWICE: i16 = 4;
/// First version whose clients support that the leader skips the assignment.
const SKIPS_ASSIGNMENT: i16 = 9;
/// Name of Kafka Streams' protocol: its metadata contains more than the broker could use for an assignment.
const STREAMS: &str = "stream";

pub(in super::super) async fn join(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    let member_id = request.member_id.clone();
    match or_leave(caller, try_join(broker, caller, request)).await {
        Ok(Entered::Joined(joined)) => told(joined),
        Ok(Entered::Named(id)) => JoinGroupResponse {
            error_code: Code::MEMBER_ID_REQUIRED.0,
            protocol_name: None,
            member_id: id.to_string(),
            ..Default::default()
        },
        Err(refused) => {
            JoinGroupResponse { error_code: refused.code.0, protocol_name: None, member_id, ..Default::default() }
        }
    }
}

/// Waits for the response, which may depend on other members, unless the broker shuts down.
async fn or_leave<T>(caller: &Caller, answer: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::select! {
        answer = answer => answer,
        () = caller.leaving.begun() => {
            Err(Refused { code: Code::COORDINATOR_NOT_AVAILABLE, message: "the broker is shutting down".to_owned() })
        }
    }
}

async fn try_join(broker: &Arc<Broker>, caller: &Caller, request: JoinGroupRequest) -> Outcome<Entered> {
    let group = group_for(broker, caller, JOIN_GROUP, &request.group_id)?;
    let timeout_ms = |timeout_ms: i32| u32::try_from(timeout_ms).unwrap_or_default();
    // Version 0 has one timeout for both.
    let rebalance_timeout_ms =
        if request.rebalance_timeout_ms < 0 { request.session_timeout_ms } else { request.rebalance_timeout_ms };
    let member = Some(request.member_id.as_str()).filter(|id| !id.is_empty());
    let instance = instance_id(request.group_instance_id.as_deref())?;
    let join = ClassicJoin {
        member: member.map(member_id).transpose()?,
        fresh: broker.groups.new_member_id(request.group_instance_id.as_deref().unwrap_or(&caller.client))?,
        instance,
        client: caller.client.clone(),
        host: caller.identity.host().to_owned(),
        session_timeout_ms: timeout_ms(request.session_timeout_ms),
        rebalance_timeout_ms: timeout_ms(rebalance_timeout_ms),
        subscription: subscription(caller.tenant(), &request.protocol_type, &request.protocols),
        protocol_type: request.protocol_type.into(),
        // Copied, so that the rest of the request can be freed.
        protocols: request
            .protocols
            .into_iter()
            .map(|protocol| Protocol {
                name: protocol.name.into(),
                metadata: Bytes::copy_from_slice(&protocol.metadata),
            })
            .collect(),
        comes_twice: caller.version >= JOINS_TWICE,
        may_skip: caller.version >= SKIPS_ASSIGNMENT,
    };
    Ok(broker.groups.join_classic(&group, join).await?)
}

/// Returns the topics and partitions of a consumer, if the broker is able to assign partitions to it.
fn subscription(
    tenant: Option<&TenantName>,
    protocol_type: &str,
    protocols: &[JoinGroupRequestProtocol],
) -> Option<Subscription> {
    if protocol_type != CONSUMERS || protocols.iter().any(|protocol| protocol.name == STREAMS) {
        return None;
    }
    let said: ConsumerProtocolSubscription = read_embedded(tenant, &protocols.first()?.metadata)?;
    // Nothing is assigned for an invalid topic name, as elsewhere.
    let topics = said.topics.iter().filter_map(|topic| TopicName::parse(topic).ok().map(Pattern::Topic));
    let owned = partitions_of(said.owned_partitions.iter().map(|of| (of.topic.as_str(), &of.partitions[..])))?;
    Subscription::new(topics.collect(), owned.into_iter().collect()).ok()
}

fn told(joined: Joined) -> JoinGroupResponse {
    let members = joined.members.into_iter().map(|member| JoinGroupResponseMember {
        member_id: member.member.to_string(),
        group_instance_id: member.instance.map(|instance| instance.to_string()),
        metadata: member.metadata,
    });
    JoinGroupResponse {
        generation_id: joined.generation as i32,
        protocol_type: Some(joined.protocol_type.into()),
        protocol_name: Some(joined.protocol.into()),
        // There is no leader if the broker assigns the partitions.
        leader: joined.leader.map_or_else(String::new, |leader| leader.to_string()),
        skip_assignment: joined.is_assigned,
        member_id: joined.member.to_string(),
        members: members.collect(),
        ..Default::default()
    }
}

pub(in super::super) async fn sync(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    or_leave(caller, try_sync(broker, caller, request)).await.unwrap_or_else(|refused| {
        // As in Kafka's `GroupCoordinator.handleSyncGroup`: clients do not expect that the coordinator is loading, and
        // start again with a join.
        let code = match refused.code {
            Code::COORDINATOR_LOAD_IN_PROGRESS => Code::REBALANCE_IN_PROGRESS,
            code => code,
        };
        SyncGroupResponse { error_code: code.0, ..Default::default() }
    })
}

async fn try_sync(broker: &Arc<Broker>, caller: &Caller, request: SyncGroupRequest) -> Outcome<SyncGroupResponse> {
    let group = group_for(broker, caller, SYNC_GROUP, &request.group_id)?;
    let sync = ClassicSync {
        who: identity(&request.member_id, request.group_instance_id.as_deref())?,
        generation: generation(request.generation_id),
        protocol_type: request.protocol_type.map(Into::into),
        protocol: request.protocol_name.map(Into::into),
        shares: shares(caller.tenant(), request.assignments)?,
    };
    let synced = broker.groups.sync_classic(&group, sync).await?;
    Ok(SyncGroupResponse {
        protocol_type: Some(synced.protocol_type.into()),
        protocol_name: Some(synced.protocol.into()),
        assignment: match synced.given {
            Given::Bytes(bytes) => bytes,
            Given::Partitions(partitions) => write_share(caller.tenant(), partitions),
        },
        ..Default::default()
    })
}

/// Converts a generation. A negative number becomes one that no generation reaches.
fn generation(generation: i32) -> u32 {
    generation as u32
}

fn shares(tenant: Option<&TenantName>, assignments: Vec<SyncGroupRequestAssignment>) -> Outcome<Vec<Share>> {
    let mut left = GROUP_PARTITIONS_MAX;
    let share = |SyncGroupRequestAssignment { member_id: member, assignment }| {
        let partitions = read_share(tenant, &assignment).filter(|partitions| partitions.len() <= left);
        left -= partitions.as_ref().map_or(0, Vec::len);
        // Copied, so that the rest of the request can be freed.
        Ok(Share { member: member_id(&member)?, bytes: Bytes::copy_from_slice(&assignment), partitions })
    };
    assignments.into_iter().map(share).collect()
}

pub(in super::super) async fn heartbeat(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    let beat = async {
        let group = group_for(broker, caller, HEARTBEAT, &request.group_id)?;
        let who = identity(&request.member_id, request.group_instance_id.as_deref())?;
        Outcome::Ok(broker.groups.heartbeat_classic(&group, &who, generation(request.generation_id)).await?)
    };
    HeartbeatResponse { error_code: code_of(beat.await), ..Default::default() }
}

pub(in super::super) async fn leave(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let is_of_one = caller.version < 3;
    let leaving = if is_of_one {
        vec![MemberIdentity { member_id: request.member_id, ..Default::default() }]
    } else {
        request.members
    };
    match try_leave(broker, caller, &request.group_id, &leaving).await {
        Err(refused) => LeaveGroupResponse { error_code: refused.code.0, ..Default::default() },
        Ok(codes) if is_of_one => {
            LeaveGroupResponse { error_code: codes.first().copied().unwrap_or_default(), ..Default::default() }
        }
        Ok(codes) => {
            let members = leaving.into_iter().zip(codes).map(|(member, error_code)| MemberResponse {
                member_id: member.member_id,
                group_instance_id: member.group_instance_id,
                error_code,
            });
            LeaveGroupResponse { members: members.collect(), ..Default::default() }
        }
    }
}

/// Returns the code for each leaving member.
async fn try_leave(
    broker: &Arc<Broker>,
    caller: &Caller,
    group: &str,
    leaving: &[MemberIdentity],
) -> Outcome<Vec<i16>> {
    let group = group_for(broker, caller, LEAVE_GROUP, group)?;
    let leaver = |member: &MemberIdentity| {
        let id = Some(member.member_id.as_str()).filter(|id| !id.is_empty());
        let instance = instance_id(member.group_instance_id.as_deref())?;
        Outcome::Ok(Leaver { member: id.map(member_id).transpose()?, instance })
    };
    let leavers: Vec<Leaver> = leaving.iter().map(leaver).collect::<Outcome<_>>()?;
    match broker.groups.leave_classic(&group, &leavers).await {
        Ok(left) => Ok(left.into_iter().map(|left| code_of(left.map_err(Refused::from))).collect()),
        // A nonexistent group has no members.
        Err(refused) if refused.reason == engine::groups::Reason::NoSuchGroup => {
            Ok(vec![Code::UNKNOWN_MEMBER_ID.0; leaving.len()])
        }
        Err(refused) => Err(refused.into()),
    }
}

fn code_of<T>(outcome: Outcome<T>) -> i16 {
    outcome.err().map_or(Code::NONE, |refused| refused.code).0
}
