//! Queries about partition logs: their start, their end, and the offset for a timestamp.

use std::collections::HashSet;
use std::sync::Arc;

use broker::{Broker, Isolation};
use engine::security::Resource;
use engine::{Offset, PartitionId, Result};

use super::caller::Caller;
use super::cluster::check_leader_epoch;
use super::errors::{self, Code};
use super::fetch::isolation;
use super::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse,
};
use super::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
};
use super::outcome::twice;

/// Special timestamps: the end of the log, its start, and its newest record.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
/// Keys of the two APIs.
const LIST_OFFSETS: i16 = 2;
const OFFSET_FOR_LEADER_EPOCH: i16 = 23;
/// Value for no offset or no timestamp.
const NONE: i64 = -1;

pub(super) async fn list_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let isolation = isolation(request.isolation_level);
    let all = request
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|partition| (topic.name.as_str(), partition.partition_index)));
    let twice: HashSet<(String, i32)> = twice(all).into_iter().map(|(topic, at)| (topic.to_owned(), at)).collect();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let may_describe = caller.may_use(broker, LIST_OFFSETS, &Resource::topic(&topic.name));
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            let partition_index = wanted.partition_index;
            let is_twice = !twice.is_empty() && twice.contains(&(topic.name.clone(), partition_index));
            let is_asked_well = if is_twice { Err(Code::INVALID_REQUEST) } else { may_describe };
            let found = match is_asked_well.and_then(|()| check_leader_epoch(broker, wanted.current_leader_epoch)) {
                Ok(()) => offset_of(broker, &topic.name, &wanted, isolation).await.map_err(|e| errors::code(&e)),
                Err(code) => Err(code),
            };
            partitions.push(match found {
                Ok((offset, timestamp, leader_epoch)) => ListOffsetsPartitionResponse {
                    partition_index,
                    timestamp,
                    offset,
                    leader_epoch,
                    error_code: Code::NONE.0,
                },
                Err(Code(error_code)) => ListOffsetsPartitionResponse {
                    partition_index,
                    error_code,
                    timestamp: NONE,
                    offset: NONE,
                    leader_epoch: -1,
                },
            });
        }
        topics.push(ListOffsetsTopicResponse { name: topic.name, partitions });
    }
    ListOffsetsResponse { topics, ..Default::default() }
}

/// Returns an offset, with the timestamp of its record if a timestamp was requested, and the leader epoch of that
/// record.
async fn offset_of(
    broker: &Arc<Broker>,
    topic: &str,
    wanted: &ListOffsetsPartition,
    isolation: Isolation,
) -> Result<(i64, i64, i32)> {
    let (offset, timestamp) = position_of(broker, topic, wanted, isolation).await?;
    let partition = wanted.partition_index as PartitionId;
    let epoch = match (wanted.timestamp, Offset::try_from(offset)) {
        (LATEST, _) | (_, Err(_)) => broker.leader_epoch(),
        (_, Ok(offset)) => broker.epoch_at(topic, partition, offset).await?,
    };
    Ok((offset, timestamp, epoch))
}

async fn position_of(
    broker: &Arc<Broker>,
    topic: &str,
    wanted: &ListOffsetsPartition,
    isolation: Isolation,
) -> Result<(i64, i64)> {
    let partition = wanted.partition_index as PartitionId;
    let end = || {
        let bounds = broker.describe_partition(topic, partition)?;
        Ok(match isolation {
            Isolation::Uncommitted => bounds.end,
            Isolation::Committed => bounds.stable_end,
        })
    };
    let record = match wanted.timestamp {
        LATEST => return end().map(|end| (end as i64, NONE)),
        EARLIEST => return Ok((broker.describe_partition(topic, partition)?.start as i64, NONE)),
        MAX_TIMESTAMP => broker.find_max_time(topic, partition).await?,
        time => broker.find_time(topic, partition, time).await?,
    };
    // A record that the reader cannot see yet is not reported.
    let end = end()?;
    Ok(found(record.filter(|(offset, _)| *offset < end)))
}

fn found(record: Option<(Offset, i64)>) -> (i64, i64) {
    record.map_or((NONE, NONE), |(offset, timestamp)| (offset as i64, timestamp))
}

/// Returns the end offset of each leader epoch that a client names (KIP-320): a consumer whose position is after it has
/// read records that the log does not have any more.
pub(super) async fn offset_for_leader_epoch(
    broker: &Broker,
    caller: &Caller,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for OffsetForLeaderTopic { topic, partitions: asked } in request.topics {
        let may_describe = caller.may_use(broker, OFFSET_FOR_LEADER_EPOCH, &Resource::topic(&topic));
        let mut partitions = Vec::with_capacity(asked.len());
        for wanted in asked {
            let partition = wanted.partition;
            let number = partition as PartitionId;
            let is_asked_well = may_describe.and_then(|()| check_leader_epoch(broker, wanted.current_leader_epoch));
            let end = match is_asked_well {
                Ok(()) => broker.end_of_epoch(&topic, number, wanted.leader_epoch).await.map_err(|e| errors::code(&e)),
                Err(code) => Err(code),
            };
            partitions.push(match end {
                Ok(Some((leader_epoch, end))) => {
                    EpochEndOffset { partition, leader_epoch, end_offset: end as i64, ..Default::default() }
                }
                // The end of a future epoch is unknown.
                Ok(None) => EpochEndOffset { partition, leader_epoch: -1, end_offset: NONE, ..Default::default() },
                Err(Code(error_code)) => EpochEndOffset { partition, error_code, leader_epoch: -1, end_offset: NONE },
            });
        }
        topics.push(OffsetForLeaderTopicResult { topic, partitions });
    }
    OffsetForLeaderEpochResponse { topics, ..Default::default() }
}
