//! Leaders, replicas and log directories, as Kafka's tools request them.
//!
//! Replicas never move: a partition has one on each node that votes, or only one if the broker is alone. A request for
//! the current state succeeds; any other is refused with Kafka's response. An election moves the leadership of all
//! partitions at once.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use broker::{Broker, NodeInfo, TopicOutline};
use engine::Storage;
use engine::security::Resource;
use tokio::task::yield_now;

use super::caller::Caller;
use super::cluster::Cluster;
use super::errors::{self, Code};
use super::messages::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ReassignablePartition,
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use super::messages::alter_replica_log_dirs::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
};
use super::messages::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse,
    DescribeLogDirsResult, DescribeLogDirsTopic,
};
use super::messages::describe_quorum::{
    DescribeQuorumRequest, DescribeQuorumResponse, Listener, Node, ReplicaState, ResponsePartitionData,
    ResponseTopicData,
};
use super::messages::elect_leaders::{
    ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use super::messages::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use super::outcome::{Failure, outcome_code};

/// Topics that are described before other tasks of the thread get their turn.
const TOPICS_PER_TURN: usize = 64;
/// Partitions of which the leader is elected before other tasks of the thread get their turn.
const PARTITIONS_PER_TURN: usize = 256;
/// Log directory that is reported for topics in memory.
const IN_MEMORY: &str = "memory";
/// Types of elections: of the preferred replica, and of one that may lack records.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;
/// Topic of a quorum's partition, and the name of the listener of its controllers.
const METADATA_TOPIC: &str = "__cluster_metadata";
const CONTROLLER: &str = "CONTROLLER";

/// Checks that a topic exists and has a partition with this number.
fn check_place(broker: &Broker, topic: &str, partition: i32) -> Result<TopicOutline, Failure> {
    let unknown = |message| (Code::UNKNOWN_TOPIC_OR_PARTITION, message);
    // tidy: the error adds nothing: no topic has this name.
    let outline = broker.outline_topic(topic).map_err(|_| unknown(format!("there is no topic '{topic}'")))?;
    match u32::try_from(partition) {
        Ok(number) if number < outline.settings.partitions => Ok(outline),
        _ => {
            let partitions = outline.settings.partitions as usize;
            Err(unknown(engine::Error::no_partition(topic, partitions, partition.into()).message))
        }
    }
}

fn not_allowed(code: Code) -> Failure {
    (code, "this user is not authorized".to_owned())
}

/// Elects the preferred leader, the node that is the first replica, by passing the leadership to it. All partitions
/// have one leader, so it leads all of them then. An unclean election is never needed: Kafka has it for a partition
/// without a leader. Other tasks of the thread run between slices of partitions.
pub(super) async fn elect_leaders(
    broker: &Broker,
    caller: &Caller,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    let election_type = request.election_type;
    let refused = match caller.may_use(broker, 43, &Resource::CLUSTER) {
        Err(code) => Some(not_allowed(code)),
        Ok(()) if ![PREFERRED, UNCLEAN].contains(&election_type) => Some((
            Code::INVALID_REQUEST,
            format!("{election_type} is not an election type: use 0 (preferred) or 1 (unclean)"),
        )),
        Ok(()) => None,
    };
    let cluster = caller.cluster(broker);
    let transferred = OnceCell::new();
    let elect = |topic: &str, partition: i32| {
        refused.clone().map_or(Ok(()), Err)?;
        let storage = check_place(broker, topic, partition)?.settings.storage;
        let preferred = cluster.replicas(storage).first().copied().unwrap_or(cluster.leader);
        if election_type == UNCLEAN || preferred == cluster.leader {
            return Err((Code::ELECTION_NOT_NEEDED, format!("node {} is its leader already", cluster.leader)));
        }
        if !cluster.in_sync_replicas(storage).contains(&preferred) {
            let message = format!("node {preferred} is the preferred leader, and is not in sync");
            return Err((Code::PREFERRED_LEADER_NOT_AVAILABLE, message));
        }
        transferred.get_or_init(|| transfer(broker, &cluster, preferred)).clone()
    };
    let is_all = request.topic_partitions.is_none();
    let asked = match request.topic_partitions {
        Some(asked) => asked,
        None if refused.is_none() && broker.leadership().is_some() => all_partitions(broker).await,
        None => Vec::new(),
    };
    let mut replica_election_results = Vec::new();
    let mut tried = 0_usize;
    for TopicPartitions { topic, partitions } in asked {
        let mut partition_result = Vec::new();
        for partition_id in partitions {
            let (Code(error_code), error_message) = outcome_code(elect(&topic, partition_id));
            // If all partitions are requested, those that need no election are not listed.
            if !is_all || error_code != Code::ELECTION_NOT_NEEDED.0 {
                partition_result.push(PartitionResult { partition_id, error_code, error_message });
            }
            tried += 1;
            if tried.is_multiple_of(PARTITIONS_PER_TURN) {
                yield_now().await;
            }
        }
        if !is_all || !partition_result.is_empty() {
            replica_election_results.push(ReplicaElectionResult { topic, partition_result });
        }
    }
    ElectLeadersResponse {
        replica_election_results,
        error_code: refused.as_ref().map_or(Code::NONE, |(code, _)| *code).0,
        ..Default::default()
    }
}

/// Passes the leadership to a node.
fn transfer(broker: &Broker, cluster: &Cluster, to: i32) -> Result<(), Failure> {
    let node = cluster.infos(true).find(|(id, _)| *id == to).map(|(_, info)| info.id);
    let (Some(leadership), Some(node)) = (broker.leadership(), node) else {
        return Err((Code::ELECTION_NOT_NEEDED, format!("node {} is the only one", cluster.leader)));
    };
    leadership.nodes.transfer(node).map_err(|error| (errors::code(&error), error.message))
}

/// Returns all partitions. Other tasks of the thread run between slices of topics.
async fn all_partitions(broker: &Broker) -> Vec<TopicPartitions> {
    let of_topic = |outline: TopicOutline| TopicPartitions {
        topic: outline.name.to_string(),
        partitions: (0..outline.settings.partitions as i32).collect(),
    };
    let mut all = Vec::new();
    let mut from = Bound::Unbounded;
    loop {
        let slice = broker.outline_topics_from(from.as_ref().map(String::as_str), TOPICS_PER_TURN);
        let Some(last) = slice.last() else {
            return all;
        };
        from = Bound::Excluded(last.name.to_string());
        all.extend(slice.into_iter().map(of_topic));
        yield_now().await;
    }
}

/// Describes the quorum: the nodes that vote, and how much of the log each has.
pub(super) fn describe_quorum(
    broker: &Broker,
    caller: &Caller,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    if let Err(code) = caller.may_use(broker, 55, &Resource::CLUSTER) {
        let (Code(error_code), message) = not_allowed(code);
        return DescribeQuorumResponse { error_code, error_message: Some(message), ..Default::default() };
    }
    let cluster = caller.cluster(broker);
    let quorum = Quorum::of(broker, &cluster);
    let described = |topic: &str, partition_index: i32| match (topic, partition_index) {
        (METADATA_TOPIC, 0) => ResponsePartitionData {
            error_code: cluster.leader_error().0,
            error_message: None,
            leader_id: cluster.leader,
            leader_epoch: cluster.epoch,
            high_watermark: quorum.committed,
            current_voters: quorum.voters.clone(),
            observers: quorum.observers.clone(),
            ..Default::default()
        },
        _ => ResponsePartitionData {
            partition_index,
            error_code: Code::UNKNOWN_TOPIC_OR_PARTITION.0,
            error_message: Some(format!(
                "{topic}-{partition_index} is not the partition of a quorum: use {METADATA_TOPIC}-0"
            )),
            ..Default::default()
        },
    };
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| described(&topic.topic_name, asked.partition_index));
        let partitions = partitions.collect();
        ResponseTopicData { topic_name: topic.topic_name, partitions }
    });
    DescribeQuorumResponse { error_message: None, topics: topics.collect(), nodes: quorum.nodes, ..Default::default() }
}

/// A quorum as Kafka describes it.
struct Quorum {
    /// Offset before which a majority of the voters has everything.
    committed: i64,
    voters: Vec<ReplicaState>,
    observers: Vec<ReplicaState>,
    /// Addresses of the voters.
    nodes: Vec<Node>,
}

impl Quorum {
    /// Returns the quorum of a cluster. That of a broker that is alone has one voter, and the log of its catalog.
    fn of(broker: &Broker, cluster: &Cluster) -> Self {
        let now_ms = broker.now_ms() as i64;
        if broker.leadership().is_none() {
            let committed = broker.catalog_version() as i64;
            let only = ReplicaState {
                replica_id: cluster.leader,
                log_end_offset: committed,
                last_fetch_timestamp: now_ms,
                last_caught_up_timestamp: now_ms,
                ..Default::default()
            };
            let address = cluster.leader_address().map(|(host, port)| (host.to_owned(), port));
            let nodes = vec![node(cluster.leader, address)];
            return Self { committed, voters: vec![only], observers: Vec::new(), nodes };
        }
        // As in Kafka, the leader itself is always current.
        let state = |(replica_id, info): (i32, &NodeInfo)| {
            let is_leader = replica_id == cluster.leader;
            let time = |at: Option<u64>| if is_leader { now_ms } else { at.map_or(-1, |at| at as i64) };
            ReplicaState {
                replica_id,
                log_end_offset: info.log_end as i64,
                last_fetch_timestamp: time(info.last_fetch_ms),
                last_caught_up_timestamp: time(info.last_caught_up_ms),
                ..Default::default()
            }
        };
        let voters: Vec<ReplicaState> = cluster.infos(true).map(state).collect();
        let mut ends: Vec<i64> = voters.iter().map(|voter| voter.log_end_offset).collect();
        ends.sort_unstable();
        let committed = ends.get(ends.len().saturating_sub(1) / 2).copied().unwrap_or_default();
        let nodes = cluster.infos(true).map(|(id, info)| node(id, info.cluster_addresses.iter().cloned()));
        let nodes = nodes.collect();
        Self { committed, voters, observers: cluster.infos(false).map(state).collect(), nodes }
    }
}

/// Describes a node at these addresses.
fn node(node_id: i32, addresses: impl IntoIterator<Item = (String, u16)>) -> Node {
    let listener = |(host, port)| Listener { name: CONTROLLER.to_owned(), host, port };
    Node { node_id, listeners: addresses.into_iter().map(listener).collect() }
}

/// Refuses to move replicas: their nodes cannot be chosen.
pub(super) fn alter_partition_reassignments(
    broker: &Broker,
    caller: &Caller,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let refused = caller.may_use(broker, 45, &Resource::CLUSTER).err().map(not_allowed);
    let may_grow = request.allow_replication_factor_change;
    let cluster = caller.cluster(broker);
    let reassign = |topic: &str, wanted: &ReassignablePartition| {
        refused.clone().map_or(Ok(()), Err)?;
        let storage = check_place(broker, topic, wanted.partition_index)?.settings.storage;
        let has = cluster.replicas(storage).len();
        match &wanted.replicas {
            None => Err((Code::NO_REASSIGNMENT_IN_PROGRESS, "no replica of this partition is being moved".to_owned())),
            Some(nodes) if !may_grow && nodes.len() != has => Err((
                Code::INVALID_REPLICATION_FACTOR,
                format!(
                    "the replication factor would be {} instead of {has}, and this request does not allow a change",
                    nodes.len()
                ),
            )),
            Some(nodes) => cluster.check_replicas(nodes),
        }
    };
    let responses = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|wanted| {
            let (Code(error_code), error_message) = outcome_code(reassign(&topic.name, wanted));
            ReassignablePartitionResponse { partition_index: wanted.partition_index, error_code, error_message }
        });
        ReassignableTopicResponse { name: topic.name.clone(), partitions: partitions.collect() }
    });
    let responses = responses.collect();
    let (Code(error_code), error_message) = outcome_code(refused.clone().map_or(Ok(()), Err));
    AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: may_grow,
        error_code,
        error_message,
        responses,
        ..Default::default()
    }
}

/// Returns no reassignments: replicas never move.
pub(super) fn list_partition_reassignments(
    broker: &Broker,
    caller: &Caller,
    _request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let Code(error_code) = caller.may_use(broker, 46, &Resource::CLUSTER).err().unwrap_or(Code::NONE);
    ListPartitionReassignmentsResponse { error_code, error_message: None, ..Default::default() }
}

/// Returns the directory of topics on disk, if there is one, or the name for topics in memory.
fn log_dir(broker: &Broker, is_on_disk: bool) -> Option<String> {
    if !is_on_disk {
        return Some(IN_MEMORY.to_owned());
    }
    let dir = broker.store()?.dir();
    // Kafka's tools accept only absolute paths. This fails only if the working directory was deleted.
    Some(std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()).display().to_string())
}

fn is_on_disk(outline: &TopicOutline) -> bool {
    outline.settings.storage != Storage::Memory
}

/// Refuses to move a topic to another directory: its storage is chosen when it is created.
pub(super) fn alter_replica_log_dirs(
    broker: &Broker,
    caller: &Caller,
    request: AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    let allowed = caller.may_use(broker, 34, &Resource::CLUSTER);
    let dirs = [true, false].map(|is_on_disk| (is_on_disk, log_dir(broker, is_on_disk)));
    let move_to = |path: &str, topic: &str, partition: i32| {
        allowed?;
        let found = dirs.iter().find(|(_, dir)| dir.as_deref() == Some(path));
        let (is_dir_on_disk, _) = found.ok_or(Code::LOG_DIR_NOT_FOUND)?;
        // tidy: the response has only room for a code.
        let outline = check_place(broker, topic, partition).map_err(|_| Code::REPLICA_NOT_AVAILABLE)?;
        if is_on_disk(&outline) == *is_dir_on_disk { Ok(()) } else { Err(Code::INVALID_REQUEST) }
    };
    let mut results: BTreeMap<String, Vec<AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for dir in request.dirs {
        for topic in dir.topics {
            let of_topic = topic.partitions.iter().map(|partition_index| {
                let Code(error_code) = move_to(&dir.path, &topic.name, *partition_index).err().unwrap_or(Code::NONE);
                AlterReplicaLogDirPartitionResult { partition_index: *partition_index, error_code }
            });
            let of_topic: Vec<_> = of_topic.collect();
            results.entry(topic.name).or_default().extend(of_topic);
        }
    }
    let results = results.into_iter();
    let results = results.map(|(topic_name, partitions)| AlterReplicaLogDirTopicResult { topic_name, partitions });
    AlterReplicaLogDirsResponse { results: results.collect(), ..Default::default() }
}

/// Describes the directories. Other tasks of the thread run between the topics.
pub(super) async fn describe_log_dirs(
    broker: &Broker,
    caller: &Caller,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    if let Err(Code(error_code)) = caller.may_use(broker, 35, &Resource::CLUSTER) {
        return DescribeLogDirsResponse { error_code, ..Default::default() };
    }
    let mut by_storage: BTreeMap<bool, Vec<DescribeLogDirsTopic>> = BTreeMap::new();
    // The directory is listed even if it has no topics.
    by_storage.insert(broker.store().is_some(), Vec::new());
    // Requested partitions of each topic; `None`: all partitions of all topics.
    let asked: Option<HashMap<&str, HashSet<i32>>> = request.topics.as_ref().map(|topics| {
        let mut asked: HashMap<&str, HashSet<i32>> = HashMap::new();
        for DescribableLogDirTopic { topic, partitions, .. } in topics {
            asked.entry(topic).or_default().extend(partitions);
        }
        asked
    });
    let is_asked =
        |outline: &TopicOutline| asked.as_ref().is_none_or(|asked| asked.contains_key(outline.name.as_str()));
    let mut from = Bound::Unbounded;
    loop {
        let slice = broker.outline_topics_from(from.as_ref().map(String::as_str), TOPICS_PER_TURN);
        let Some(last) = slice.last() else {
            break;
        };
        from = Bound::Excluded(last.name.to_string());
        for outline in slice.into_iter().filter(is_asked) {
            let name = &outline.name;
            // It may have been deleted in the meantime.
            let Ok(status) = broker.describe_topic(name.as_str()) else {
                continue;
            };
            let wanted = asked.as_ref().and_then(|asked| asked.get(name.as_str()));
            let is_asked = |partition: &i32| wanted.is_none_or(|partitions| partitions.contains(partition));
            let extents = (0..).zip(&status.partitions).filter(|(partition, _)| is_asked(partition));
            let partitions = extents.map(|(partition_index, extent)| DescribeLogDirsPartition {
                partition_index,
                partition_size: extent.bytes as i64,
                ..Default::default()
            });
            let topic = DescribeLogDirsTopic { name: name.to_string(), partitions: partitions.collect() };
            by_storage.entry(is_on_disk(&outline)).or_default().push(topic);
        }
        yield_now().await;
    }
    let results = by_storage.into_iter().map(|(is_on_disk, topics)| {
        let mut described = DescribeLogDirsResult {
            error_code: Code::NONE.0,
            log_dir: log_dir(broker, is_on_disk).unwrap_or_default(),
            topics,
            ..Default::default()
        };
        // -1 means unknown: for memory, and if the system does not report it.
        if let Some(Ok((total, usable))) = broker.store().filter(|_| is_on_disk).map(|store| store.volume_bytes()) {
            let most = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
            described.total_bytes = most(total);
            described.usable_bytes = most(usable);
        }
        described
    });
    DescribeLogDirsResponse { results: results.collect(), ..Default::default() }
}
