//! Where things are: topics, and this one broker, which leads every partition and coordinates every group.

use std::sync::Arc;

use broker::{Broker, TopicStatus};
use engine::{Error, ErrorKind, Result};

use super::errors::{self, Code};
use super::map::{Caller, LEADER_EPOCH, NODE_ID};
use super::messages::Uuid;
use super::messages::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use super::messages::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
    MetadataResponseTopic,
};

/// Keys of coordinators: groups and transactions.
const COORDINATORS: std::ops::RangeInclusive<i8> = 0..=1;

pub(super) fn metadata(broker: &Arc<Broker>, caller: &Caller, request: MetadataRequest) -> MetadataResponse {
    // Older clients create topics without having to say so.
    let may_create = caller.version < 4 || request.allow_auto_topic_creation;
    let topics = match request.topics {
        // The first version had no other way to ask for all.
        Some(topics) if !(caller.version == 0 && topics.is_empty()) => {
            topics.into_iter().map(|topic| describe(broker, topic, may_create)).collect()
        }
        _ => broker.list_topics("", usize::MAX).0.iter().map(self::topic).collect(),
    };
    let (host, port) = caller.advertised.clone();
    MetadataResponse {
        brokers: vec![MetadataResponseBroker { node_id: NODE_ID, host, port: port.into(), ..Default::default() }],
        cluster_id: Some(cluster_id(broker)),
        controller_id: NODE_ID,
        topics,
        ..Default::default()
    }
}

/// The cluster's id as Kafka writes ids: 22 letters.
pub(super) fn cluster_id(broker: &Broker) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(broker.cluster_id())
}

fn describe(broker: &Arc<Broker>, wanted: MetadataRequestTopic, may_create: bool) -> MetadataResponseTopic {
    let MetadataRequestTopic { topic_id, name, .. } = wanted;
    let found = match &name {
        Some(name) => find(broker, name, may_create),
        None => broker
            .topic_by_id(engine::TopicId::from_bytes(topic_id.0.to_be_bytes()))
            .and_then(|name| broker.describe_topic(name.as_str())),
    };
    found.map_or_else(
        |error| {
            let error_code = match (&name, error.kind) {
                (None, ErrorKind::NotFound) => Code::UNKNOWN_TOPIC_ID,
                (_, ErrorKind::Invalid) => Code::INVALID_TOPIC_EXCEPTION,
                _ => errors::code(&error),
            };
            MetadataResponseTopic { error_code: error_code.0, name, topic_id, ..Default::default() }
        },
        |status| topic(&status),
    )
}

fn find(broker: &Arc<Broker>, name: &str, may_create: bool) -> Result<TopicStatus> {
    match broker.describe_topic(name) {
        Err(Error { kind: ErrorKind::NotFound, .. }) if may_create => {
            broker.partitions_of(name)?;
            broker.describe_topic(name)
        }
        // A name that no topic can have, too.
        found => found.map_err(|error| engine::TopicName::parse(name).err().unwrap_or(error)),
    }
}

fn topic(status: &TopicStatus) -> MetadataResponseTopic {
    let partition = |partition_index| MetadataResponsePartition {
        partition_index,
        leader_id: NODE_ID,
        leader_epoch: LEADER_EPOCH,
        replica_nodes: vec![NODE_ID],
        isr_nodes: vec![NODE_ID],
        ..Default::default()
    };
    MetadataResponseTopic {
        name: Some(status.name.to_string()),
        topic_id: Uuid(u128::from_be_bytes(status.id.to_bytes())),
        is_internal: status.name.is_internal(),
        partitions: (0..status.partitions.len() as i32).map(partition).collect(),
        ..Default::default()
    }
}

pub(super) fn find_coordinator(caller: &Caller, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let (host, port) = caller.advertised.clone();
    let port = i32::from(port);
    let code = if COORDINATORS.contains(&request.key_type) { Code::NONE } else { Code::INVALID_REQUEST };
    let coordinator =
        |key| Coordinator { key, node_id: NODE_ID, host: host.clone(), port, error_code: code.0, ..Default::default() };
    // Versions from 4 on ask for several at once.
    let coordinators = request.coordinator_keys.into_iter().map(coordinator).collect();
    FindCoordinatorResponse {
        error_code: code.0,
        node_id: NODE_ID,
        host: host.clone(),
        port,
        coordinators,
        ..Default::default()
    }
}
