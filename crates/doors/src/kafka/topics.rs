//! Metadata of topics and of the nodes, of which one leads every partition and coordinates every group.

use std::collections::HashSet;
use std::sync::Arc;

use broker::{Broker, TopicOutline};
use engine::security::{Operation, Resource};
use engine::{Error, ErrorKind};
use tokio::sync::Semaphore;

use super::caller::Caller;
use super::cluster::Cluster;
use super::errors::{self, Code};
use super::messages::Uuid;
use super::messages::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use super::messages::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
    MetadataResponseTopic,
};

/// Types of coordinators.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// Topics that are looked up or created before the task yields to other connections.
const TOPICS_PER_TURN: usize = 64;
/// Maximum number of topics that are listed without yielding. Longer lists are built one at a time, on a separate
/// thread, so that such requests take a bounded share of the time of other connections. Further requests wait, each
/// with its connection.
const TOPICS_AT_ONCE: usize = 2048;
static LONG_LISTS: Semaphore = Semaphore::const_new(1);
/// Keys of the two APIs.
const METADATA: i16 = 3;
const FIND_COORDINATOR: i16 = 10;

pub(super) async fn metadata(broker: &Arc<Broker>, caller: &Caller, request: MetadataRequest) -> MetadataResponse {
    // Older clients always request the creation of topics.
    let may_create = caller.version < 4 || request.allow_auto_topic_creation;
    let cluster = caller.cluster(broker);
    let shown = |outline: &TopicOutline| {
        let resource = Resource::topic(outline.name.as_str());
        let operations = caller.operations(broker, &resource, request.include_topic_authorized_operations);
        MetadataResponseTopic { topic_authorized_operations: operations, ..topic(&cluster, outline) }
    };
    let mut topics = Vec::new();
    match request.topics {
        // Version 0 has no other way to request all topics.
        Some(wanted) if !(caller.version == 0 && wanted.is_empty()) => {
            // A topic is described only once, even if it is named several times.
            let mut named = HashSet::new();
            for wanted in wanted {
                if !named.insert((wanted.topic_id, wanted.name.clone())) {
                    continue;
                }
                topics.push(match find(broker, caller, &wanted, may_create) {
                    Ok(outline) => shown(&outline),
                    Err(code) => refused(wanted, code),
                });
                if topics.len().is_multiple_of(TOPICS_PER_TURN) {
                    tokio::task::yield_now().await;
                }
            }
        }
        _ => {
            // What a list does not show is not refused.
            let may_see = |outline: &&TopicOutline| {
                let topic = Resource::topic(outline.name.as_str());
                broker.security.allows(&caller.identity, Operation::Describe, &topic)
            };
            let is_long = broker.topic_count() > TOPICS_AT_ONCE;
            // The semaphore is never closed.
            let _turn = if is_long { LONG_LISTS.acquire().await.ok() } else { None };
            for outlines in all_topics(broker, is_long).await.chunks(TOPICS_PER_TURN) {
                topics.extend(outlines.iter().filter(may_see).map(shown));
                if is_long {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    let node = |(node_id, host, port): (i32, &str, u16)| MetadataResponseBroker {
        node_id,
        host: host.to_owned(),
        port: port.into(),
        ..Default::default()
    };
    MetadataResponse {
        brokers: cluster.members().map(node).collect(),
        cluster_id: Some(cluster_id(broker)),
        controller_id: cluster.leader,
        topics,
        cluster_authorized_operations: caller.operations(
            broker,
            &Resource::CLUSTER,
            request.include_cluster_authorized_operations,
        ),
        ..Default::default()
    }
}

/// Returns all topics in the order of their names.
async fn all_topics(broker: &Arc<Broker>, is_long: bool) -> Vec<TopicOutline> {
    if !is_long {
        return broker.outline_topics();
    }
    let listed = tokio::task::spawn_blocking({
        let broker = broker.clone();
        move || broker.outline_topics()
    });
    // The runtime is shutting down, and so is the connection.
    listed.await.unwrap_or_default()
}

fn may_describe(broker: &Broker, caller: &Caller, topic: &str) -> Result<(), Code> {
    caller.may_use(broker, METADATA, &Resource::topic(topic))
}

fn refused(wanted: MetadataRequestTopic, code: Code) -> MetadataResponseTopic {
    let name = asked_name(&wanted).cloned();
    MetadataResponseTopic { error_code: code.0, name, topic_id: wanted.topic_id, ..Default::default() }
}

/// Returns the requested name; `None` if the topic is requested by its id, with which Kafka's own client sends an empty
/// name.
fn asked_name(wanted: &MetadataRequestTopic) -> Option<&String> {
    wanted.name.as_ref().filter(|_| wanted.topic_id == Uuid::default())
}

/// Returns the cluster's id in Kafka's format: 22 characters.
pub(super) fn cluster_id(broker: &Broker) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(broker.cluster_id())
}

/// Finds a topic by its name or its id.
fn find(
    broker: &Arc<Broker>,
    caller: &Caller,
    wanted: &MetadataRequestTopic,
    may_create: bool,
) -> Result<TopicOutline, Code> {
    let Some(name) = asked_name(wanted) else {
        let found = caller.topic_by_id(broker, wanted.topic_id);
        let found = found.filter(|name| may_describe(broker, caller, name.as_str()).is_ok());
        let outline = found.and_then(|name| broker.outline_topic(name.as_str()).ok());
        return outline.ok_or(Code::UNKNOWN_TOPIC_ID);
    };
    may_describe(broker, caller, name)?;
    match broker.outline_topic(name) {
        Err(Error { kind: ErrorKind::NotFound, .. }) if may_create => {
            caller.may_create(broker, METADATA, name)?;
            broker.partitions_of(name).and_then(|_| broker.outline_topic(name))
        }
        // An invalid name is reported as such.
        found => found.map_err(|error| engine::TopicName::parse(name).err().unwrap_or(error)),
    }
    .map_err(|error| match error.kind {
        ErrorKind::Invalid => Code::INVALID_TOPIC_EXCEPTION,
        _ => errors::code(&error),
    })
}

fn topic(cluster: &Cluster, outline: &TopicOutline) -> MetadataResponseTopic {
    let storage = outline.settings.storage;
    let [replicas, in_sync, offline] =
        [cluster.replicas(storage), cluster.in_sync_replicas(storage), cluster.offline_replicas(storage)];
    let partition = |partition_index| MetadataResponsePartition {
        error_code: cluster.leader_error().0,
        partition_index,
        leader_id: cluster.leader,
        leader_epoch: cluster.epoch,
        replica_nodes: replicas.clone(),
        isr_nodes: in_sync.clone(),
        offline_replicas: offline.clone(),
    };
    MetadataResponseTopic {
        name: Some(outline.name.to_string()),
        topic_id: Uuid(u128::from_be_bytes(outline.id.to_bytes())),
        is_internal: outline.name.is_internal(),
        partitions: (0..outline.settings.partitions as i32).map(partition).collect(),
        ..Default::default()
    }
}

/// Text for a refused request for a coordinator, which some clients show without the name of the code.
const REFUSED_COORDINATOR: &str = "the client may not use this group or transaction; see thalweg acl";

pub(super) fn find_coordinator(
    broker: &Broker,
    caller: &Caller,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let cluster = caller.cluster(broker);
    let leader = cluster.leader_address();
    let (node_id, host, port) = leader.map_or((-1, "", -1), |(host, port)| (cluster.leader, host, i32::from(port)));
    let check = |key: &str| match request.key_type {
        GROUP => caller.may_use(broker, FIND_COORDINATOR, &Resource::group(key)),
        TRANSACTION => caller.may_use(broker, FIND_COORDINATOR, &Resource::transaction(key)),
        _ => Err(Code::INVALID_REQUEST),
    };
    // Clients ask again for a coordinator that is not known yet.
    let known = leader.map_or(Err(Code::COORDINATOR_NOT_AVAILABLE), |_| Ok(()));
    let code_of = |key: &str| check(key).and(known).err().unwrap_or(Code::NONE).0;
    let text_of = |code: i16| {
        Some(match Code(code) {
            Code::NONE => String::new(),
            Code::COORDINATOR_NOT_AVAILABLE => "the cluster has no leader that can be reached".to_owned(),
            _ => REFUSED_COORDINATOR.to_owned(),
        })
    };
    let coordinator = |key: String| {
        let error_code = code_of(&key);
        let error_message = text_of(error_code);
        Coordinator { node_id, host: host.to_owned(), port, error_code, error_message, key }
    };
    // Clients from version 4 on may request several coordinators in one request.
    let coordinators = request.coordinator_keys.into_iter().map(coordinator).collect();
    let error_code = code_of(&request.key);
    FindCoordinatorResponse {
        error_code,
        error_message: text_of(error_code),
        node_id,
        host: host.to_owned(),
        port,
        coordinators,
        ..Default::default()
    }
}

#[cfg(test)]
#[path = "topics_tests.rs"]
mod tests;
