//! OffsetCommit, OffsetFetch and OffsetDelete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::Broker;
use engine::groups::{Committed, Committer, NO_LEADER_EPOCH, Reason};
use engine::limits::{GROUP_PARTITIONS_MAX, OFFSET_METADATA_BYTES_MAX};
use engine::{TopicName, TopicPartition};

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
use super::{Outcome, Refused, by_topic, group_name, identity, partition_of};

/// In place of an offset that there is not.
const NO_OFFSET: i64 = -1;

pub(in super::super) async fn commit(broker: &Arc<Broker>, request: OffsetCommitRequest) -> OffsetCommitResponse {
    let mut offsets = Vec::new();
    let mut codes = Vec::new();
    for topic in &request.topics {
        let found = broker.find_topic(&topic.name).zip(TopicName::parse(&topic.name).ok());
        for partition in &topic.partitions {
            let commit = match &found {
                Some(((_, partitions), name)) => check(name, *partitions, partition),
                None => Err(Code::UNKNOWN_TOPIC_OR_PARTITION),
            };
            codes.push(commit.as_ref().err().copied());
            offsets.extend(commit);
        }
    }
    let committed = try_commit(broker, &request, offsets).await.map_err(|refused| refused.code);
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

/// What is wrong with one partition does not hold up the others.
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
    request: &OffsetCommitRequest,
    offsets: Vec<broker::OffsetCommit>,
) -> Outcome<()> {
    let group = group_name(&request.group_id)?;
    let committer = match u32::try_from(request.generation_id_or_member_epoch) {
        Ok(epoch) => {
            Committer::Member { who: identity(&request.member_id, request.group_instance_id.as_deref())?, epoch }
        }
        // One that takes no part in the group.
        Err(_) => Committer::Outsider,
    };
    broker.commit_offsets(&group, &committer, offsets).await.map_err(|refused| match refused.reason {
        Reason::HasMembers => Refused { code: Code::UNKNOWN_MEMBER_ID, message: refused.error.message },
        Reason::StaleEpoch => Refused { code: Code::STALE_MEMBER_EPOCH, message: refused.error.message },
        _ if refused.error.kind == engine::ErrorKind::TooLarge => {
            Refused { code: Code::INVALID_COMMIT_OFFSET_SIZE, message: refused.error.message }
        }
        _ => refused.into(),
    })
}

/// Topics with the offsets of their partitions, or of all that there are.
type Wanted = Option<Vec<(String, Vec<i32>)>>;
type Found = Vec<(String, Vec<(i32, Option<Committed>)>)>;

pub(in super::super) async fn fetch(broker: &Arc<Broker>, request: OffsetFetchRequest) -> OffsetFetchResponse {
    if request.groups.is_empty() {
        let wanted =
            request.topics.map(|topics| topics.into_iter().map(|of| (of.name, of.partition_indexes)).collect());
        let (topics, error_code) = answer(broker, &request.group_id, wanted).await;
        let topics = topics.into_iter().map(|(name, partitions)| OffsetFetchResponseTopic {
            name,
            partitions: partitions.into_iter().map(|(number, committed)| old_partition(number, committed)).collect(),
        });
        return OffsetFetchResponse { topics: topics.collect(), error_code, ..Default::default() };
    }
    let mut groups = Vec::with_capacity(request.groups.len());
    let mut seen = BTreeSet::new();
    for group in request.groups {
        if !seen.insert(group.group_id.clone()) {
            continue;
        }
        let wanted = group.topics.map(|topics| topics.into_iter().map(|of| (of.name, of.partition_indexes)).collect());
        let (topics, error_code) = answer(broker, &group.group_id, wanted).await;
        let topics = topics.into_iter().map(|(name, partitions)| OffsetFetchResponseTopics {
            name,
            partitions: partitions.into_iter().map(|(number, committed)| partition(number, committed)).collect(),
        });
        groups.push(OffsetFetchResponseGroup { group_id: group.group_id, topics: topics.collect(), error_code });
    }
    OffsetFetchResponse { groups, ..Default::default() }
}

/// With the code of what went wrong with all of it.
async fn answer(broker: &Arc<Broker>, group: &str, wanted: Wanted) -> (Found, i16) {
    match found(broker, group, wanted).await {
        Ok(found) => (found, Code::NONE.0),
        Err(refused) => (Found::new(), refused.code.0),
    }
}

async fn found(broker: &Arc<Broker>, group: &str, wanted: Wanted) -> Outcome<Found> {
    let committed = broker.committed_offsets(&group_name(group)?, None).await?;
    let Some(wanted) = wanted else {
        let mut committed: BTreeMap<TopicPartition, Committed> = committed.into_iter().collect();
        let topics = by_topic(committed.keys().cloned().collect::<Vec<_>>()).into_iter();
        return Ok(topics
            .map(|(topic, numbers)| {
                let partitions = numbers.into_iter().map(|number| {
                    let at = partition_of(&topic, number);
                    (number, at.and_then(|at| committed.remove(&at)))
                });
                (topic.to_string(), partitions.collect())
            })
            .collect());
    };
    let committed: BTreeMap<TopicPartition, Committed> = committed.into_iter().collect();
    // Each once: an answer is no longer than what is asked about.
    let mut seen = BTreeSet::new();
    let mut of_topic = |(name, numbers): (String, Vec<i32>)| {
        let topic = TopicName::parse(&name).ok();
        let of = |number| committed.get(&partition_of(topic.as_ref()?, number)?).cloned();
        let numbers = numbers.into_iter().filter(|number| seen.insert((name.clone(), *number)));
        let partitions = numbers.map(|number| (number, of(number))).collect();
        (name.clone(), partitions)
    };
    Ok(wanted.into_iter().map(&mut of_topic).collect())
}

fn partition(number: i32, committed: Option<Committed>) -> OffsetFetchResponsePartitions {
    let (committed_offset, committed_leader_epoch, metadata) = fields(committed);
    OffsetFetchResponsePartitions {
        partition_index: number,
        committed_offset,
        committed_leader_epoch,
        metadata: Some(metadata),
        error_code: Code::NONE.0,
    }
}

fn old_partition(number: i32, committed: Option<Committed>) -> OffsetFetchResponsePartition {
    let (committed_offset, committed_leader_epoch, metadata) = fields(committed);
    OffsetFetchResponsePartition {
        partition_index: number,
        committed_offset,
        committed_leader_epoch,
        metadata: Some(metadata),
        error_code: Code::NONE.0,
    }
}

fn fields(committed: Option<Committed>) -> (i64, i32, String) {
    committed.map_or((NO_OFFSET, NO_LEADER_EPOCH, String::new()), |committed| {
        (committed.offset as i64, committed.leader_epoch, committed.metadata.into())
    })
}

pub(in super::super) async fn delete_offsets(
    broker: &Arc<Broker>,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    try_delete(broker, request)
        .await
        .unwrap_or_else(|refused| OffsetDeleteResponse { error_code: refused.code.0, ..Default::default() })
}

async fn try_delete(broker: &Arc<Broker>, request: OffsetDeleteRequest) -> Outcome<OffsetDeleteResponse> {
    let group = group_name(&request.group_id)?;
    let known = request.topics.iter().flat_map(|of| {
        let topic = TopicName::parse(&of.name).ok();
        of.partitions.iter().filter_map(move |partition| partition_of(topic.as_ref()?, partition.partition_index))
    });
    let known: Vec<TopicPartition> = known.take(GROUP_PARTITIONS_MAX).collect();
    let deleted = broker.delete_offsets(&group, known).await?.into_iter();
    let codes: BTreeMap<TopicPartition, Code> = deleted
        .map(|(at, outcome)| (at, outcome.err().map_or(Code::NONE, |refused| Refused::from(refused).code)))
        .collect();
    let topics = request.topics.into_iter().map(|of| {
        let topic = TopicName::parse(&of.name).ok();
        let code = |number| Some(*codes.get(&partition_of(topic.as_ref()?, number)?)?);
        let partitions = of.partitions.iter().map(|partition| OffsetDeleteResponsePartition {
            partition_index: partition.partition_index,
            error_code: code(partition.partition_index).unwrap_or(Code::UNKNOWN_TOPIC_OR_PARTITION).0,
        });
        OffsetDeleteResponseTopic { partitions: partitions.collect(), name: of.name }
    });
    Ok(OffsetDeleteResponse { topics: topics.collect(), ..Default::default() })
}
