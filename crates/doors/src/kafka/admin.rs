//! Topics, partitions and records as Kafka's tools create, describe and delete them, and the nodes of the cluster.

use std::collections::{BTreeSet, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use broker::{Broker, TopicOutline};
use engine::security::Resource;
use engine::{Error, ErrorKind, Offset, Storage, TopicId, TopicName, TopicSettings};
use tokio::task::yield_now;

use super::caller::Caller;
use super::cluster::Cluster;
use super::configs::{self, Draft, Levels};
use super::errors::{self, Code};
use super::messages::Uuid;
use super::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use super::messages::create_topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};
use super::messages::delete_records::{
    DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use super::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use super::messages::describe_cluster::{DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse};
use super::messages::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use super::outcome::{Failure, named_twice, of_error, outcome_code, twice};
use super::topics;

/// Value that requests the broker's default number of partitions or replicas.
const AS_SET: i32 = -1;
/// Value of an offset that means the end of a partition.
const END: i64 = -1;
/// Maximum number of partitions in one response that describes topics.
const PARTITIONS_PER_ANSWER_MAX: usize = 2000;
/// Topics that are looked at before other tasks of the thread get their turn.
const TOPICS_PER_TURN: usize = 64;
const DESCRIBE_TOPIC_PARTITIONS: i16 = 75;
/// Types of endpoints: brokers and controllers. There are no separate controllers.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// Maps an error about the name of a topic, or about a topic that only the broker itself changes.
fn of_name(error: Error) -> Failure {
    match error.kind {
        ErrorKind::Invalid => (Code::INVALID_TOPIC_EXCEPTION, error.message),
        _ => of_error(error),
    }
}

fn denied(code: Code) -> Failure {
    (code, String::new())
}

pub(super) async fn create_topics(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let twice = twice(request.topics.iter().map(|topic| topic.name.as_str()));
    let levels = Levels::of_broker(broker).await;
    let mut told = HashSet::new();
    let mut topics: Vec<CreatableTopicResult> = Vec::new();
    for wanted in &request.topics {
        let name = wanted.name.clone();
        if twice.contains(name.as_str()) {
            // One response per name.
            if told.insert(wanted.name.as_str()) {
                topics.push(not_created(name, named_twice(&wanted.name)));
            }
            continue;
        }
        topics.push(match create(broker, caller, wanted, request.validate_only).await {
            Ok((topic_id, settings)) => created(broker, &levels, caller, name, topic_id, &settings),
            // Clients before version 6 do not know the code of KIP-599.
            Err((code, message)) if code == Code::THROTTLING_QUOTA_EXCEEDED && caller.version < 6 => {
                not_created(name, (Code::POLICY_VIOLATION, message))
            }
            Err(failure) => not_created(name, failure),
        });
        // A new topic is compared with the patterns of subscriptions, which may be many.
        yield_now().await;
    }
    CreateTopicsResponse { topics, ..Default::default() }
}

async fn create(
    broker: &Arc<Broker>,
    caller: &Caller,
    wanted: &CreatableTopic,
    is_dry_run: bool,
) -> Result<(Uuid, TopicSettings), Failure> {
    caller.may_create(broker, 19, &wanted.name).map_err(denied)?;
    let name = TopicName::parse(&wanted.name).map_err(of_name)?;
    let mut draft = Draft::new(broker, partitions_of(&caller.cluster(broker), wanted)?);
    wanted.configs.iter().try_for_each(|config| draft.set(&config.name, config.value.as_deref()))?;
    let of_settings = |error: Error| match error.kind {
        ErrorKind::Invalid => (Code::INVALID_CONFIG, error.message),
        _ => of_error(error),
    };
    let settings = broker.resolve(draft.settings()).map_err(of_settings)?;
    if broker.has_topic(name.as_str()) {
        return Err((Code::TOPIC_ALREADY_EXISTS, format!("topic {name} already exists")));
    }
    if name.is_internal() || name.is_inbox() {
        return Err((Code::INVALID_TOPIC_EXCEPTION, format!("{name} is reserved for the broker")));
    }
    if is_dry_run {
        return Ok((Uuid::default(), settings));
    }
    let status = broker.create_topic(name.as_str(), settings).await.inspect_err(|error| caller.note_wait(error));
    let status = status.map_err(of_name)?;
    Ok((uuid(status.id), status.settings))
}

/// Returns the requested number of partitions. A topic has as many replicas as the cluster allows, also if fewer are
/// requested; an assignment of replicas must name all of them.
fn partitions_of(cluster: &Cluster, wanted: &CreatableTopic) -> Result<u32, Failure> {
    let CreatableTopic { num_partitions, replication_factor, assignments, .. } = wanted;
    if !assignments.is_empty() {
        if *num_partitions != AS_SET || i32::from(*replication_factor) != AS_SET {
            let message =
                "a request with an assignment of replicas must have -1 as partitions and as replication factor"
                    .to_owned();
            return Err((Code::INVALID_REQUEST, message));
        }
        let mut indexes: Vec<i32> = assignments.iter().map(|assignment| assignment.partition_index).collect();
        indexes.sort_unstable();
        if indexes != (0..assignments.len() as i32).collect::<Vec<_>>() {
            let message = "the partitions of an assignment must be 0, 1, 2 and so on, without a gap".to_owned();
            return Err((Code::INVALID_REPLICA_ASSIGNMENT, message));
        }
        assignments.iter().try_for_each(|assignment| cluster.check_replicas(&assignment.broker_ids))?;
        return Ok(assignments.len() as u32);
    }
    let factor_max = cluster.replicas(Storage::Disk).len();
    let factor = i32::from(*replication_factor);
    if factor != AS_SET && !usize::try_from(factor).is_ok_and(|factor| (1..=factor_max).contains(&factor)) {
        let message = match factor_max {
            1 => format!("the replication factor must be 1, not {factor}: the cluster has one node"),
            most => format!("the replication factor must be 1 to {most}, not {factor}: {most} nodes vote"),
        };
        return Err((Code::INVALID_REPLICATION_FACTOR, message));
    }
    match *num_partitions {
        AS_SET => Ok(TopicSettings::DEFAULT_PARTITIONS),
        partitions if (1..=engine::limits::PARTITIONS_MAX as i32).contains(&partitions) => Ok(partitions as u32),
        partitions => Err((Code::INVALID_PARTITIONS, too_many(partitions))),
    }
}

fn too_many(partitions: i32) -> String {
    format!("a topic has 1 to {} partitions, not {partitions}", engine::limits::PARTITIONS_MAX)
}

fn created(
    broker: &Broker,
    levels: &Levels,
    caller: &Caller,
    name: String,
    topic_id: Uuid,
    settings: &TopicSettings,
) -> CreatableTopicResult {
    let may_see = caller.may_use(broker, 32, &Resource::topic(&name));
    let configs = may_see.is_ok().then(|| {
        let configs = configs::of_topic(broker, levels, settings).into_iter();
        let config = configs.map(|config| CreatableTopicConfigs {
            name: config.name,
            value: config.value,
            read_only: config.read_only,
            config_source: config.config_source,
            is_sensitive: config.is_sensitive,
        });
        config.collect()
    });
    CreatableTopicResult {
        name,
        topic_id,
        error_code: Code::NONE.0,
        error_message: None,
        topic_config_error_code: may_see.err().unwrap_or(Code::NONE).0,
        num_partitions: settings.partitions as i32,
        replication_factor: caller.cluster(broker).replicas(settings.storage).len() as i16,
        configs,
    }
}

fn not_created(name: String, (Code(error_code), message): Failure) -> CreatableTopicResult {
    CreatableTopicResult { name, error_code, error_message: Some(message), configs: None, ..Default::default() }
}

pub(super) fn uuid(id: TopicId) -> Uuid {
    Uuid(u128::from_be_bytes(id.to_bytes()))
}

pub(super) async fn delete_topics(
    broker: &Broker,
    caller: &Caller,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let by_name =
        request.topic_names.into_iter().map(|name| DeleteTopicState { name: Some(name), ..Default::default() });
    let wanted: Vec<DeleteTopicState> = by_name.chain(request.topics).collect();
    let twice = twice(wanted.iter().map(|topic| (topic.name.as_deref(), topic.topic_id)));
    let mut responses = Vec::new();
    for DeleteTopicState { name, topic_id } in wanted.iter().cloned() {
        let is_by_id = name.is_none();
        if twice.contains(&(name.as_deref(), topic_id)) {
            let (Code(error_code), error_message) = outcome_code(Err(named_twice(name.as_deref().unwrap_or("an id"))));
            responses.push(DeletableTopicResult { name, topic_id, error_code, error_message });
            continue;
        }
        let found = match name {
            Some(name) => Ok(name),
            None => {
                let unknown = || (Code::UNKNOWN_TOPIC_ID, format!("no topic has the id {topic_id:?}"));
                caller.topic_by_id(broker, topic_id).map(|name| name.to_string()).ok_or_else(unknown)
            }
        };
        let (name, outcome) = match found {
            Err(failure) => (None, Err(failure)),
            Ok(name) => {
                let outcome = delete(broker, caller, &name).await;
                // A caller without the permission to see a topic must not receive its name for its id.
                let is_secret = is_by_id && matches!(outcome, Err((Code::TOPIC_AUTHORIZATION_FAILED, _)));
                ((!is_secret).then_some(name), outcome)
            }
        };
        let (Code(error_code), error_message) = outcome_code(outcome);
        responses.push(DeletableTopicResult { name, topic_id, error_code, error_message });
        yield_now().await;
    }
    DeleteTopicsResponse { responses, ..Default::default() }
}

async fn delete(broker: &Broker, caller: &Caller, name: &str) -> Result<(), Failure> {
    caller.may_use(broker, 20, &Resource::topic(name)).map_err(denied)?;
    broker.delete_topic(name).await.map_err(of_name)
}

pub(super) async fn create_partitions(
    broker: &Broker,
    caller: &Caller,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let twice = twice(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut results = Vec::with_capacity(request.topics.len());
    for wanted in &request.topics {
        let outcome = if twice.contains(wanted.name.as_str()) {
            Err(named_twice(&wanted.name))
        } else {
            grow(broker, caller, wanted, request.validate_only).await
        };
        let (Code(error_code), error_message) = outcome_code(outcome);
        results.push(CreatePartitionsTopicResult { name: wanted.name.clone(), error_code, error_message });
        yield_now().await;
    }
    CreatePartitionsResponse { results, ..Default::default() }
}

async fn grow(
    broker: &Broker,
    caller: &Caller,
    wanted: &CreatePartitionsTopic,
    is_dry_run: bool,
) -> Result<(), Failure> {
    let CreatePartitionsTopic { name, count, assignments } = wanted;
    caller.may_use(broker, 37, &Resource::topic(name)).map_err(denied)?;
    let has = broker.outline_topic(name).map_err(of_name)?.settings.partitions as i32;
    if *count <= has {
        return Err((Code::INVALID_PARTITIONS, format!("topic {name} has {has} partitions: they can only grow")));
    }
    if *count as u32 > engine::limits::PARTITIONS_MAX {
        return Err((Code::INVALID_PARTITIONS, too_many(*count)));
    }
    // Older clients send an empty list instead of null.
    if let Some(assignments) = assignments.as_ref().filter(|assignments| !assignments.is_empty()) {
        if assignments.len() as i32 != count - has {
            let message = format!("{} partitions are added, and {} assigned", count - has, assignments.len());
            return Err((Code::INVALID_REPLICA_ASSIGNMENT, message));
        }
        let cluster = caller.cluster(broker);
        assignments.iter().try_for_each(|assignment| cluster.check_replicas(&assignment.broker_ids))?;
    }
    if is_dry_run {
        return Ok(());
    }
    broker.grow_topic(name, *count as u32).await.map(drop).map_err(of_name)
}

pub(super) async fn delete_records(
    broker: &Broker,
    caller: &Caller,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let allowed = caller.may_use(broker, 21, &Resource::topic(&topic.name));
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            let outcome = match (allowed, u32::try_from(wanted.partition_index), wanted.offset) {
                (Err(code), ..) => Err(code),
                (_, Err(_), _) => Err(Code::UNKNOWN_TOPIC_OR_PARTITION),
                (_, _, offset) if offset < END => Err(Code::OFFSET_OUT_OF_RANGE),
                (Ok(()), Ok(partition), offset) => {
                    // -1 means the end: everything is deleted.
                    let before = Offset::try_from(offset).unwrap_or(Offset::MAX);
                    let deleted = broker.delete_records(&topic.name, partition, before).await;
                    deleted.map_err(|error| of_name(error).0)
                }
            };
            let (low_watermark, Code(error_code)) = match outcome {
                Ok(start) => (start as i64, Code::NONE),
                Err(code) => (-1, code),
            };
            let partition_index = wanted.partition_index;
            partitions.push(DeleteRecordsPartitionResult { partition_index, low_watermark, error_code });
        }
        topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    DeleteRecordsResponse { topics, ..Default::default() }
}

pub(super) fn describe_cluster(
    broker: &Broker,
    caller: &Caller,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let endpoint_type = request.endpoint_type;
    if endpoint_type != BROKERS {
        let (code, message) = match endpoint_type {
            CONTROLLERS => (
                Code::MISMATCHED_ENDPOINT_TYPE,
                "this is the endpoint of a broker; the cluster has no controller endpoint",
            ),
            _ => (Code::UNSUPPORTED_ENDPOINT_TYPE, "unknown type of endpoint"),
        };
        let error_message = Some(message.to_owned());
        return DescribeClusterResponse { error_code: code.0, error_message, endpoint_type, ..Default::default() };
    }
    let cluster = caller.cluster(broker);
    let node = |(broker_id, host, port): (i32, &str, u16), is_fenced| DescribeClusterBroker {
        broker_id,
        host: host.to_owned(),
        port: port.into(),
        is_fenced,
        ..Default::default()
    };
    let mut brokers: Vec<_> = cluster.brokers().map(|at| node(at, false)).collect();
    if request.include_fenced_brokers {
        brokers.extend(cluster.fenced().map(|at| node(at, true)));
    }
    let is_asked = request.include_cluster_authorized_operations;
    DescribeClusterResponse {
        endpoint_type,
        cluster_id: topics::cluster_id(broker),
        controller_id: cluster.leader,
        brokers,
        cluster_authorized_operations: caller.operations(broker, &Resource::CLUSTER, is_asked),
        ..Default::default()
    }
}

/// Describes topics in the order of their names, one page per response. Other tasks of the thread run between slices
/// of topics, and only the topics of the page are looked at.
pub(super) async fn describe_topic_partitions(
    broker: &Broker,
    caller: &Caller,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let (from, first) = request
        .cursor
        .map_or((String::new(), 0), |cursor| (cursor.topic_name, usize::try_from(cursor.partition_index).unwrap_or(0)));
    let room = usize::try_from(request.response_partition_limit).unwrap_or(0).clamp(1, PARTITIONS_PER_ANSWER_MAX);
    let mut page = PartitionsPage { broker, caller, cluster: caller.cluster(broker), room, answer: Default::default() };
    // If the topic was deleted in the meantime, its remaining partitions are skipped.
    let begin_of = |name: &str| if name == from { first } else { 0 };
    if request.topics.is_empty() {
        let mut next = Bound::Included(from.clone());
        loop {
            let slice = broker.outline_topics_from(next.as_ref().map(String::as_str), TOPICS_PER_TURN);
            let Some(last) = slice.last() else {
                return page.answer;
            };
            next = Bound::Excluded(last.name.to_string());
            for outline in slice {
                let name = outline.name.as_str();
                if caller.sees(broker, DESCRIBE_TOPIC_PARTITIONS, &Resource::topic(name))
                    && page.add(name.to_owned(), begin_of(name)).is_break()
                {
                    return page.answer;
                }
            }
            yield_now().await;
        }
    }
    let mut names = BTreeSet::new();
    for slice in request.topics.chunks(TOPICS_PER_TURN) {
        names.extend(slice.iter().map(|topic| topic.name.as_str()).filter(|name| *name >= from.as_str()));
        yield_now().await;
    }
    for (done, name) in names.into_iter().enumerate() {
        if done % TOPICS_PER_TURN == TOPICS_PER_TURN - 1 {
            yield_now().await;
        }
        if page.add(name.to_owned(), begin_of(name)).is_break() {
            break;
        }
    }
    page.answer
}

/// Page of a description of topics.
struct PartitionsPage<'c> {
    broker: &'c Broker,
    caller: &'c Caller,
    cluster: Cluster,
    /// Number of partitions that may be added.
    room: usize,
    answer: DescribeTopicPartitionsResponse,
}

impl PartitionsPage<'_> {
    /// Adds the partitions of a topic from number `begin` on. Breaks if the page is full.
    fn add(&mut self, name: String, begin: usize) -> ControlFlow<()> {
        let Self { broker, caller, .. } = *self;
        let resource = Resource::topic(&name);
        let found = match caller.may_use(broker, DESCRIBE_TOPIC_PARTITIONS, &resource) {
            Err(code) => Err(code),
            Ok(()) => broker.outline_topic(&name).map_err(|error| {
                TopicName::parse(&name).map_or(Code::INVALID_TOPIC_EXCEPTION, |_| errors::code(&error))
            }),
        };
        let outline = match found {
            Ok(outline) => outline,
            Err(Code(error_code)) => {
                self.answer.topics.push(DescribeTopicPartitionsResponseTopic {
                    error_code,
                    name: Some(name),
                    ..Default::default()
                });
                return ControlFlow::Continue(());
            }
        };
        let partitions = outline.settings.partitions as usize;
        let end = partitions.min(begin.saturating_add(self.room));
        if self.room == 0 || end < partitions && begin >= end {
            self.answer.next_cursor = Some(Cursor { topic_name: name, partition_index: begin as i32 });
            return ControlFlow::Break(());
        }
        self.room -= end.saturating_sub(begin);
        let operations = caller.operations(broker, &resource, true);
        self.answer.topics.push(describe(&self.cluster, &outline, begin..end, operations));
        if end < partitions {
            self.answer.next_cursor = Some(Cursor { topic_name: name, partition_index: end as i32 });
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

fn describe(
    cluster: &Cluster,
    outline: &TopicOutline,
    partitions: std::ops::Range<usize>,
    topic_authorized_operations: i32,
) -> DescribeTopicPartitionsResponseTopic {
    let storage = outline.settings.storage;
    let [replicas, in_sync, offline] =
        [cluster.replicas(storage), cluster.in_sync_replicas(storage), cluster.offline_replicas(storage)];
    let partition = |partition_index| DescribeTopicPartitionsResponsePartition {
        error_code: cluster.leader_error().0,
        partition_index,
        leader_id: cluster.leader,
        leader_epoch: cluster.epoch,
        replica_nodes: replicas.clone(),
        isr_nodes: in_sync.clone(),
        offline_replicas: offline.clone(),
        // These lists may be null, but Kafka's own client iterates over them without a check.
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
    };
    DescribeTopicPartitionsResponseTopic {
        name: Some(outline.name.to_string()),
        topic_id: uuid(outline.id),
        is_internal: outline.name.is_internal(),
        partitions: (partitions.start as i32..partitions.end as i32).map(partition).collect(),
        topic_authorized_operations,
        ..Default::default()
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
pub(super) mod tests;
