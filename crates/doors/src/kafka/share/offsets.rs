//! DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: the positions of share groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::{Broker, QueuePosition};
use engine::groups::GroupName;
use engine::security::Resource;
use engine::{ErrorKind, Offset, PartitionId, TopicId, TopicName};
use tokio::task::yield_now;

use super::super::caller::Caller;
use super::super::errors::{self, Code};
use super::super::groups::{Outcome, Refused, distinct_partitions, group_for};
use super::super::messages::alter_share_group_offsets::{
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsRequestPartition as Wanted,
    AlterShareGroupOffsetsRequestTopic, AlterShareGroupOffsetsResponse, AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
};
use super::super::messages::delete_share_group_offsets::{
    DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse, DeleteShareGroupOffsetsResponseTopic,
};
use super::super::messages::describe_share_group_offsets::{
    DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse, DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition, DescribeShareGroupOffsetsResponseTopic,
};
use super::{ALTER_SHARE_GROUP_OFFSETS, DELETE_SHARE_GROUP_OFFSETS, DESCRIBE_SHARE_GROUP_OFFSETS, uuid};

/// Value for a position that is not set yet, and for an unknown lag.
const UNKNOWN: i64 = -1;

/// Returns a topic, if the caller may use the API on it.
fn topic(broker: &Broker, caller: &Caller, api: i16, name: &str) -> Outcome<(TopicName, TopicId)> {
    caller.may_use(broker, api, &Resource::topic(name))?;
    let unknown = || Refused { code: Code::UNKNOWN_TOPIC_OR_PARTITION, message: format!("there is no topic {name}") };
    let (id, _) = broker.find_topic(name).ok_or_else(unknown)?;
    Ok((TopicName::parse(name)?, id))
}

pub(in super::super) async fn describe_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DescribeShareGroupOffsetsRequest,
) -> DescribeShareGroupOffsetsResponse {
    let mut groups = Vec::new();
    let mut seen = BTreeSet::new();
    for DescribeShareGroupOffsetsRequestGroup { group_id, topics } in request.groups {
        // Each once, so that a response has no more entries than the request has distinct names.
        if !seen.insert(group_id.clone()) {
            continue;
        }
        let described = describe_group(broker, caller, &group_id, topics).await;
        groups.push(match described {
            Ok(topics) => DescribeShareGroupOffsetsResponseGroup { group_id, topics, ..Default::default() },
            Err(Refused { code, message }) => DescribeShareGroupOffsetsResponseGroup {
                group_id,
                error_code: code.0,
                error_message: Some(message),
                ..Default::default()
            },
        });
    }
    DescribeShareGroupOffsetsResponse { groups, ..Default::default() }
}

async fn describe_group(
    broker: &Arc<Broker>,
    caller: &Caller,
    name: &str,
    wanted: Option<Vec<DescribeShareGroupOffsetsRequestTopic>>,
) -> Outcome<Vec<DescribeShareGroupOffsetsResponseTopic>> {
    let group = group_for(broker, caller, DESCRIBE_SHARE_GROUP_OFFSETS, name)?;
    broker.groups.describe_share_group(&group).await?;
    let is_all = wanted.is_none();
    let epoch = broker.leader_epoch();
    let wanted = match wanted {
        Some(wanted) => distinct_partitions(wanted.into_iter().map(|wanted| (wanted.topic_name, wanted.partitions))),
        None => {
            let all = broker.groups.share_topics(&group).await?;
            distinct_partitions(all.into_iter().map(|topic| (topic.to_string(), Vec::new())))
        }
    };
    let mut topics = Vec::with_capacity(wanted.len());
    for (topic_name, numbers) in wanted {
        yield_now().await;
        match topic(broker, caller, DESCRIBE_SHARE_GROUP_OFFSETS, &topic_name) {
            Ok((topic, id)) => {
                let positions = positions(broker, &group, &topic).await?;
                let all = || positions.keys().map(|number| *number as i32).collect();
                let numbers = if is_all { all() } else { numbers };
                let partitions =
                    numbers.into_iter().map(|number| partition(number, epoch, positions.get(&(number as u32))));
                let partitions = partitions.collect();
                topics.push(DescribeShareGroupOffsetsResponseTopic { topic_name, topic_id: uuid(id), partitions });
            }
            // If all topics are requested, those that the caller may not see are left out.
            Err(_) if is_all => {}
            Err(Refused { code, message }) => {
                let refused = |number| DescribeShareGroupOffsetsResponsePartition {
                    partition_index: number,
                    start_offset: UNKNOWN,
                    error_code: code.0,
                    error_message: Some(message.clone()),
                    ..Default::default()
                };
                let partitions = numbers.into_iter().map(refused).collect();
                topics.push(DescribeShareGroupOffsetsResponseTopic { topic_name, partitions, ..Default::default() });
            }
        }
    }
    Ok(topics)
}

/// Returns the positions of a group in a topic; empty if no message of the topic was ever delivered to the group.
async fn positions(
    broker: &Arc<Broker>,
    group: &GroupName,
    topic: &TopicName,
) -> Outcome<BTreeMap<PartitionId, QueuePosition>> {
    match broker.groups.share_positions(group, topic).await {
        Err(refused) if refused.error.kind == ErrorKind::NotFound => Ok(BTreeMap::new()),
        found => Ok(found?.into_iter().map(|position| (position.partition, position)).collect()),
    }
}

fn partition(
    number: i32,
    leader_epoch: i32,
    position: Option<&QueuePosition>,
) -> DescribeShareGroupOffsetsResponsePartition {
    DescribeShareGroupOffsetsResponsePartition {
        partition_index: number,
        start_offset: position.map_or(UNKNOWN, |position| position.start as i64),
        leader_epoch,
        lag: position.map_or(UNKNOWN, |position| position.undone as i64),
        ..Default::default()
    }
}

pub(in super::super) async fn alter_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AlterShareGroupOffsetsRequest,
) -> AlterShareGroupOffsetsResponse {
    match try_alter(broker, caller, request).await {
        Ok(responses) => AlterShareGroupOffsetsResponse { responses, ..Default::default() },
        Err(Refused { code, message }) => {
            AlterShareGroupOffsetsResponse { error_code: code.0, error_message: Some(message), ..Default::default() }
        }
    }
}

async fn try_alter(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AlterShareGroupOffsetsRequest,
) -> Outcome<Vec<AlterShareGroupOffsetsResponseTopic>> {
    let group = group_for(broker, caller, ALTER_SHARE_GROUP_OFFSETS, &request.group_id)?;
    let found = |wanted: &AlterShareGroupOffsetsRequestTopic| {
        topic(broker, caller, ALTER_SHARE_GROUP_OFFSETS, &wanted.topic_name)
    };
    let found: Vec<Outcome<_>> = request.topics.iter().map(found).collect();
    let is_refused =
        |found: &Outcome<_>| found.as_ref().is_err_and(|refused| refused.code == Code::TOPIC_AUTHORIZATION_FAILED);
    // An error about the group refuses the whole request. A nonexistent group is created, as in Kafka, so that a tool
    // can set the start of a group before its first member joins; but not by a request that may set nothing.
    if found.is_empty() || !found.iter().all(is_refused) {
        broker.groups.create_share_group(&group, "its offsets can be set").await?;
    }
    let mut responses = Vec::with_capacity(request.topics.len());
    for (AlterShareGroupOffsetsRequestTopic { topic_name, partitions }, found) in request.topics.into_iter().zip(found)
    {
        let topic_id = found.as_ref().map(|(_, id)| uuid(*id)).unwrap_or_default();
        let altered = match found {
            Ok((topic, _)) => {
                let offsets = partitions.iter().map(|partition| {
                    let offset = Offset::try_from(partition.start_offset).unwrap_or_default();
                    (partition.partition_index as PartitionId, offset)
                });
                let offsets: Vec<_> = offsets.collect();
                broker.groups.seek_share_group(&group, &topic, &offsets).await.map_err(Refused::from)
            }
            Err(refused) => Err(refused),
        };
        // A partition that the topic does not have is refused on its own.
        let altered: Vec<Outcome<()>> = match altered {
            Ok(altered) => altered.into_iter().map(|altered| altered.map_err(Refused::from)).collect(),
            Err(refused) => partitions.iter().map(|_| Err(refused.clone())).collect(),
        };
        let altered_partition = |(partition, altered): (&Wanted, &Outcome<()>)| {
            let (error_code, error_message) = outcome(altered);
            let partition_index = partition.partition_index;
            AlterShareGroupOffsetsResponsePartition { partition_index, error_code, error_message }
        };
        responses.push(AlterShareGroupOffsetsResponseTopic {
            topic_name,
            topic_id,
            partitions: partitions.iter().zip(&altered).map(altered_partition).collect(),
        });
    }
    Ok(responses)
}

fn outcome<T>(outcome: &Outcome<T>) -> (i16, Option<String>) {
    outcome.as_ref().err().map_or((Code::NONE.0, None), |refused| (refused.code.0, Some(refused.message.clone())))
}

pub(in super::super) async fn delete_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DeleteShareGroupOffsetsRequest,
) -> DeleteShareGroupOffsetsResponse {
    match try_delete(broker, caller, request).await {
        Ok(responses) => DeleteShareGroupOffsetsResponse { responses, ..Default::default() },
        Err(Refused { code, message }) => {
            DeleteShareGroupOffsetsResponse { error_code: code.0, error_message: Some(message), ..Default::default() }
        }
    }
}

async fn try_delete(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DeleteShareGroupOffsetsRequest,
) -> Outcome<Vec<DeleteShareGroupOffsetsResponseTopic>> {
    let group = group_for(broker, caller, DELETE_SHARE_GROUP_OFFSETS, &request.group_id)?;
    broker.groups.check_share_group_empty(&group, "its offsets can be deleted").await?;
    let mut responses = Vec::with_capacity(request.topics.len());
    for of in request.topics {
        let deleted = match topic(broker, caller, DELETE_SHARE_GROUP_OFFSETS, &of.topic_name) {
            Ok((topic, id)) => match broker.groups.forget_share_topic(&group, &topic).await {
                Ok(()) => Ok(id),
                Err(refused) if refused.error.kind == ErrorKind::NotFound => Err(Refused {
                    code: errors::code(&refused.error),
                    message: format!("group {group} has no offsets of topic {topic}"),
                }),
                Err(refused) => Err(refused.into()),
            },
            Err(refused) => Err(refused),
        };
        let (error_code, error_message) = outcome(&deleted);
        let topic_id = deleted.map(uuid).unwrap_or_default();
        let topic_name = of.topic_name;
        responses.push(DeleteShareGroupOffsetsResponseTopic { topic_name, topic_id, error_code, error_message });
    }
    Ok(responses)
}
