//! OffsetCommit, OffsetFetch and OffsetDelete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::Broker;
use engine::groups::{Committed, Committer, GroupError, GroupName, NO_LEADER_EPOCH, Reason};
use engine::limits::{GROUP_PARTITIONS_MAX, OFFSET_METADATA_BYTES_MAX};
use engine::security::Resource;
use engine::{TopicName, TopicPartition};
use tokio::task::yield_now;

use super::super::caller::Caller;
use super::super::errors::Code;
use super::super::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use super::super::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use super::super::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use super::{
    OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, Outcome, Refused, by_topic, group_for, identity, partition_of,
};

/// First version whose response has a code for the whole request.
const HAS_CODE: i16 = 2;
/// First version that can request several groups.
const ASKS_FOR_GROUPS: i16 = 8;
/// Value for no offset.
const NO_OFFSET: i64 = -1;

pub(in super::super) async fn commit(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let mut offsets = Vec::new();
    let mut codes = Vec::new();
    // A caller without the permission must not find out which topics exist.
    let group = group_for(broker, caller, OFFSET_COMMIT, &request.group_id);
    for topic in &request.topics {
        let found = broker.find_topic(&topic.name).zip(TopicName::parse(&topic.name).ok());
        let found = found.ok_or(Code::UNKNOWN_TOPIC_OR_PARTITION);
        let may_read = caller.may_use(broker, OFFSET_COMMIT, &Resource::topic(&topic.name));
        let denied = group.as_ref().err().map(|refused| refused.code);
        let found = denied.map_or(may_read.and(found), Err);
        for partition in &topic.partitions {
            let commit =
                found.as_ref().map_err(|code| *code).and_then(|((_, count), name)| check(name, *count, partition));
            codes.push(commit.as_ref().err().copied());
            offsets.extend(commit);
        }
    }
    let committed = match group {
        Ok(group) => try_commit(broker, &group, &request, offsets).await,
        Err(refused) => Err(refused),
    };
    let committed = committed.map_err(|refused| refused.code);
    let code = committed.err().unwrap_or(Code::NONE);
    let mut codes = codes.into_iter().map(|own| own.unwrap_or(code).0);
    let topics = request.topics.into_iter().map(|topic| OffsetCommitResponseTopic {
        name: topic.name,
        partitions: topic
            .partitions
            .iter()
            .zip(&mut codes)
            .map(|(partition, error_code)| OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code,
            })
            .collect(),
    });
    OffsetCommitResponse { topics: topics.collect(), ..Default::default() }
}

/// Checks the commit of one partition. An error does not affect the other partitions.
fn check(
    topic: &TopicName,
    partitions: u32,
    commit: &OffsetCommitRequestPartition,
) -> Result<broker::OffsetCommit, Code> {
    let partition = partition_of(topic, commit.partition_index).filter(|at| at.partition < partitions);
    let partition = partition.ok_or(Code::UNKNOWN_TOPIC_OR_PARTITION)?;
    let metadata = commit.committed_metadata.clone().unwrap_or_default();
    if metadata.len() > OFFSET_METADATA_BYTES_MAX {
        return Err(Code::OFFSET_METADATA_TOO_LARGE);
    }
    let Ok(offset) = u64::try_from(commit.committed_offset) else {
        return Err(Code::INVALID_REQUEST);
    };
    Ok(broker::OffsetCommit { partition, offset, leader_epoch: commit.committed_leader_epoch, metadata })
}

async fn try_commit(
    broker: &Arc<Broker>,
    group: &GroupName,
    request: &OffsetCommitRequest,
    offsets: Vec<broker::OffsetCommit>,
) -> Outcome<()> {
    let committer = match u32::try_from(request.generation_id_or_member_epoch) {
        Ok(epoch) => {
            Committer::Member { who: identity(&request.member_id, request.group_instance_id.as_deref())?, epoch }
        }
        // A client that is not a member of the group.
        Err(_) => Committer::Outsider,
    };
    broker.groups.commit_offsets(group, &committer, offsets).await.map_err(|refused| match refused.reason {
        Reason::HasMembers => Refused { code: Code::UNKNOWN_MEMBER_ID, message: refused.error.message },
        _ if refused.error.kind == engine::ErrorKind::TooLarge => {
            Refused { code: Code::INVALID_COMMIT_OFFSET_SIZE, message: refused.error.message }
        }
        _ => of_member(refused),
    })
}

/// Maps a refusal of a member's request. A member with a stale epoch is not removed: it receives the current epoch with
/// its next heartbeat.
fn of_member(refused: GroupError) -> Refused {
    match refused.reason {
        Reason::StaleEpoch => Refused { code: Code::STALE_MEMBER_EPOCH, message: refused.error.message },
        _ => refused.into(),
    }
}

/// Id and epoch of the member as which a client requests offsets; the epoch is checked. `None` if it is not a member.
type MemberClaim = Option<(String, i32)>;
/// Topics with their partitions; `None`: all.
type Wanted = Option<Vec<(String, Vec<i32>)>>;
/// Committed offset of each partition, or the reason for its refusal.
type Found = Vec<(String, Vec<(i32, Result<Option<Committed>, Code>)>)>;

pub(in super::super) async fn fetch(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let is_stable = request.require_stable;
    if caller.version < ASKS_FOR_GROUPS {
        let wanted =
            request.topics.map(|topics| topics.into_iter().map(|of| (of.name, of.partition_indexes)).collect());
        let (topics, error_code) = if caller.version >= HAS_CODE {
            answer(broker, caller, &request.group_id, None, wanted, is_stable).await
        } else {
            answer_by_partition(broker, caller, &request.group_id, wanted.unwrap_or_default()).await
        };
        let topics = topics.into_iter().map(|(name, partitions)| OffsetFetchResponseTopic {
            name,
            partitions: partitions.into_iter().map(|(number, found)| old_partition(number, found)).collect(),
        });
        return OffsetFetchResponse { topics: topics.collect(), error_code, ..Default::default() };
    }
    let mut groups = Vec::with_capacity(request.groups.len());
    // Each once, so that a response has no more entries than the request has distinct names.
    let mut seen = BTreeSet::new();
    for group in request.groups {
        if !seen.insert(group.group_id.clone()) {
            continue;
        }
        yield_now().await;
        let wanted = group.topics.map(|topics| topics.into_iter().map(|of| (of.name, of.partition_indexes)).collect());
        let claim = group.member_id.map(|id| (id, group.member_epoch));
        let (topics, error_code) = answer(broker, caller, &group.group_id, claim, wanted, is_stable).await;
        let topics = topics.into_iter().map(|(name, partitions)| OffsetFetchResponseTopics {
            name,
            partitions: partitions.into_iter().map(|(number, found)| partition(number, found)).collect(),
        });
        groups.push(OffsetFetchResponseGroup { group_id: group.group_id, topics: topics.collect(), error_code });
    }
    OffsetFetchResponse { groups, ..Default::default() }
}

/// Returns the offsets, with a code for the whole request.
async fn answer(
    broker: &Arc<Broker>,
    caller: &Caller,
    group: &str,
    claim: MemberClaim,
    wanted: Wanted,
    is_stable: bool,
) -> (Found, i16) {
    match found(broker, caller, group, claim, wanted, is_stable).await {
        Ok(found) => (found, Code::NONE.0),
        Err(refused) => (Found::new(), refused.code.0),
    }
}

/// Returns the offsets, with a failure of the whole request repeated for each partition, because the version has no
/// other place for the code.
async fn answer_by_partition(
    broker: &Arc<Broker>,
    caller: &Caller,
    group: &str,
    wanted: Vec<(String, Vec<i32>)>,
) -> (Found, i16) {
    let found = found(broker, caller, group, None, Some(wanted.clone()), false).await.unwrap_or_else(|refused| {
        let of = |numbers: Vec<i32>| numbers.into_iter().map(|number| (number, Err(refused.code))).collect();
        wanted.into_iter().map(|(name, numbers)| (name, of(numbers))).collect()
    });
    (found, Code::NONE.0)
}

async fn found(
    broker: &Arc<Broker>,
    caller: &Caller,
    group: &str,
    claim: MemberClaim,
    wanted: Wanted,
    is_stable: bool,
) -> Outcome<Found> {
    let group = group_for(broker, caller, OFFSET_FETCH, group)?;
    // A client that is not a member sends no epoch.
    if let Some((id, Ok(epoch))) = claim.map(|(id, epoch)| (id, u32::try_from(epoch))) {
        broker.groups.check_fetch(&group, &identity(&id, None)?, epoch).await.map_err(of_member)?;
    }
    // Read first, so that a commit of a transaction in the meantime is not missed.
    let unstable = if is_stable { broker.transactions.unstable_offsets(&group).await? } else { BTreeSet::new() };
    let asked = |(name, numbers): &(String, Vec<i32>)| {
        let topic = TopicName::parse(name).ok();
        numbers.iter().filter_map(|number| partition_of(topic.as_ref()?, *number)).collect::<Vec<_>>()
    };
    let asked: Option<Vec<TopicPartition>> = wanted.as_ref().map(|topics| topics.iter().flat_map(asked).collect());
    let committed: BTreeMap<TopicPartition, Committed> =
        broker.groups.committed_offsets(&group, asked.as_deref()).await?.into_iter().collect();
    let may_describe = |topic: &str| caller.may_use(broker, OFFSET_FETCH, &Resource::topic(topic));
    let wanted = wanted.unwrap_or_else(|| {
        let all: BTreeSet<TopicPartition> = committed.keys().chain(&unstable).cloned().collect();
        let topics = by_topic(all).into_iter().map(|(topic, numbers)| (topic.to_string(), numbers));
        topics.filter(|(topic, _)| caller.sees(broker, OFFSET_FETCH, &Resource::topic(topic))).collect()
    });
    // Each once, so that a response has no more entries than the request has distinct names.
    let mut seen = BTreeSet::new();
    let mut of_topic = |(name, numbers): (String, Vec<i32>)| {
        let topic = TopicName::parse(&name).ok();
        let may = may_describe(&name);
        let of = |number| {
            may?;
            match topic.as_ref().and_then(|topic| partition_of(topic, number)) {
                Some(at) if unstable.contains(&at) => Err(Code::UNSTABLE_OFFSET_COMMIT),
                at => Ok(at.and_then(|at| committed.get(&at).cloned())),
            }
        };
        let numbers = numbers.into_iter().filter(|number| seen.insert((name.clone(), *number)));
        let partitions = numbers.map(|number| (number, of(number))).collect();
        (name.clone(), partitions)
    };
    Ok(wanted.into_iter().map(&mut of_topic).collect())
}

fn partition(number: i32, found: Result<Option<Committed>, Code>) -> OffsetFetchResponsePartitions {
    let old = old_partition(number, found);
    OffsetFetchResponsePartitions {
        partition_index: number,
        committed_offset: old.committed_offset,
        committed_leader_epoch: old.committed_leader_epoch,
        metadata: old.metadata,
        error_code: old.error_code,
    }
}

fn old_partition(number: i32, found: Result<Option<Committed>, Code>) -> OffsetFetchResponsePartition {
    let code = found.as_ref().err().copied().unwrap_or(Code::NONE);
    let committed = found.unwrap_or_default();
    let (committed_offset, committed_leader_epoch, metadata) = committed
        .map_or((NO_OFFSET, NO_LEADER_EPOCH, String::new()), |committed| {
            (committed.offset as i64, committed.leader_epoch, committed.metadata.into())
        });
    OffsetFetchResponsePartition {
        partition_index: number,
        committed_offset,
        committed_leader_epoch,
        metadata: Some(metadata),
        error_code: code.0,
    }
}

pub(in super::super) async fn delete_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    try_delete(broker, caller, request)
        .await
        .unwrap_or_else(|refused| OffsetDeleteResponse { error_code: refused.code.0, ..Default::default() })
}

async fn try_delete(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: OffsetDeleteRequest,
) -> Outcome<OffsetDeleteResponse> {
    let group = group_for(broker, caller, OFFSET_DELETE, &request.group_id)?;
    let known = |name: &str, number| partition_of(&TopicName::parse(name).ok()?, number);
    let mut codes: BTreeMap<TopicPartition, Code> = BTreeMap::new();
    let mut wanted = Vec::new();
    for of in &request.topics {
        let may_read = caller.may_use(broker, OFFSET_DELETE, &Resource::topic(&of.name));
        for at in of.partitions.iter().filter_map(|partition| known(&of.name, partition.partition_index)) {
            match may_read {
                Ok(()) if wanted.len() < GROUP_PARTITIONS_MAX => wanted.push(at),
                Ok(()) => {}
                Err(code) => drop(codes.insert(at, code)),
            }
        }
    }
    for (at, outcome) in broker.groups.delete_offsets(&group, wanted).await? {
        codes.insert(at, outcome.err().map_or(Code::NONE, |refused| Refused::from(refused).code));
    }
    let topics = request.topics.into_iter().map(|of| {
        let partitions = of.partitions.iter().map(|partition| {
            let code = known(&of.name, partition.partition_index).and_then(|at| codes.get(&at).copied());
            OffsetDeleteResponsePartition {
                partition_index: partition.partition_index,
                error_code: code.unwrap_or(Code::UNKNOWN_TOPIC_OR_PARTITION).0,
            }
        });
        OffsetDeleteResponseTopic { partitions: partitions.collect(), name: of.name.clone() }
    });
    Ok(OffsetDeleteResponse { topics: topics.collect(), ..Default::default() })
}
