//! Mapping of group requests to calls of the broker: members that assign partitions among themselves (`classic`),
//! members that leave the assignment to the broker (`consumer`), committed offsets (`offsets`), descriptions of groups
//! (`shown`), and their settings (`settings`).

mod classic;
mod consumer;
mod offsets;
mod settings;
mod shown;

use std::collections::{BTreeMap, BTreeSet};

use broker::Broker;
use bytes::Bytes;
use engine::groups::{GroupError, GroupName, Identity, InstanceId, MemberId, Reason};
use engine::limits::GROUP_PARTITIONS_MAX;
use engine::security::{Resource, TenantName};
use engine::{PartitionId, Pattern, TopicName, TopicPartition};

use super::caller::Caller;
use super::errors::{Code, of_group};
use super::messages::consumer_protocol_assignment::{ConsumerProtocolAssignment, TopicPartition as OfTopic};
use super::messages::{Entity, Message, decode_embedded, encode_embedded};
use super::tenants;

pub(super) use classic::{heartbeat, join, leave, sync};
pub(super) use consumer::consumer_heartbeat;
pub(super) use offsets::{commit, delete_offsets, fetch};
pub(super) use settings::{GroupSettings, Shown, change, describe_settings, set_groups};
pub(super) use shown::{client_host, delete, describe, describe_consumer, list};

/// Keys of the APIs.
const OFFSET_COMMIT: i16 = 8;
const OFFSET_FETCH: i16 = 9;
const JOIN_GROUP: i16 = 11;
const HEARTBEAT: i16 = 12;
const LEAVE_GROUP: i16 = 13;
const SYNC_GROUP: i16 = 14;
const DESCRIBE_GROUPS: i16 = 15;
const LIST_GROUPS: i16 = 16;
const DELETE_GROUPS: i16 = 42;
const OFFSET_DELETE: i16 = 47;
const CONSUMER_GROUP_HEARTBEAT: i16 = 68;
const CONSUMER_GROUP_DESCRIBE: i16 = 69;
/// Protocol type of groups that read topics: the only type for which the broker can assign partitions.
const CONSUMERS: &str = "consumer";
/// Version in which the broker writes embedded structures: every client reads it.
const EMBEDDED_VERSION: i16 = 0;

pub(super) type Outcome<T> = Result<T, Refused>;

/// Reason for the refusal of a group request.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub code: Code,
    pub message: String,
}

impl From<GroupError> for Refused {
    fn from(refused: GroupError) -> Self {
        Self { code: of_group(&refused), message: refused.error.message }
    }
}

impl From<engine::Error> for Refused {
    fn from(error: engine::Error) -> Self {
        GroupError::from(error).into()
    }
}

impl From<Code> for Refused {
    /// Returns the refusal for a missing permission.
    fn from(code: Code) -> Self {
        Self { code, message: "this user is not authorized".to_owned() }
    }
}

/// Parses the name of a group, if the caller may use the API with this key on it.
pub(super) fn group_for(broker: &Broker, caller: &Caller, key: i16, name: &str) -> Outcome<GroupName> {
    caller.may_use(broker, key, &Resource::group(name))?;
    GroupName::parse(name).map_err(|error| Refused { code: Code::INVALID_GROUP_ID, message: error.message })
}

/// Parses a member id. An invalid id belongs to no member.
pub(super) fn member_id(id: &str) -> Outcome<MemberId> {
    MemberId::parse(id).map_err(|error| GroupError { reason: Reason::UnknownMember, error }.into())
}

/// Parses topic names, if the caller may use the API with this key on all of them. Invalid names are left out: as in
/// Kafka, such a topic does not exist, and the member is assigned none of it. The broker's internal topics and inboxes
/// are left out as well, because groups cannot read them, and an error would stop the client for good.
pub(super) fn topics_named(broker: &Broker, caller: &Caller, key: i16, names: &[String]) -> Outcome<Vec<Pattern>> {
    for name in names {
        caller.may_use(broker, key, &Resource::topic(name))?;
    }
    let shared = names.iter().filter_map(|name| TopicName::parse(name).ok().filter(|name| !name.is_hidden()));
    Ok(shared.map(Pattern::Topic).collect())
}

fn instance_id(id: Option<&str>) -> Outcome<Option<InstanceId>> {
    Ok(id.map(InstanceId::parse).transpose()?)
}

fn identity(member: &str, instance: Option<&str>) -> Outcome<Identity> {
    Ok(Identity { member: member_id(member)?, instance: instance_id(instance)? })
}

/// Removes duplicate names, so that a response has no more entries than the request has distinct names.
pub(super) fn distinct(names: Vec<String>) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    names.into_iter().filter(move |name| seen.insert(name.clone()))
}

/// Returns the distinct partitions of the distinct topics that a request names, so that a response has no more entries.
pub(super) fn distinct_partitions(
    topics: impl IntoIterator<Item = (String, Vec<i32>)>,
) -> BTreeMap<String, BTreeSet<i32>> {
    let mut distinct = BTreeMap::<String, BTreeSet<i32>>::new();
    for (topic, numbers) in topics {
        distinct.entry(topic).or_default().extend(numbers);
    }
    distinct
}

/// Returns a partition; `None` if the number is not a valid one.
fn partition_of(topic: &TopicName, number: i32) -> Option<TopicPartition> {
    Some(TopicPartition { topic: topic.clone(), partition: PartitionId::try_from(number).ok()? })
}

/// Returns partitions as named by a client; `None` if some are invalid or there are more than a group may have.
fn partitions_of<'a>(topics: impl IntoIterator<Item = (&'a str, &'a [i32])>) -> Option<Vec<TopicPartition>> {
    let mut partitions = Vec::new();
    for (name, numbers) in topics {
        let topic = TopicName::parse(name).ok()?;
        if partitions.len() + numbers.len() > GROUP_PARTITIONS_MAX {
            return None;
        }
        for number in numbers {
            partitions.push(partition_of(&topic, *number)?);
        }
    }
    Some(partitions)
}

/// Groups partitions, which are ordered by topic, by their topics.
pub(super) fn by_topic(partitions: impl IntoIterator<Item = TopicPartition>) -> Vec<(TopicName, Vec<i32>)> {
    let mut topics: Vec<(TopicName, Vec<i32>)> = Vec::new();
    for TopicPartition { topic, partition } in partitions {
        match topics.last_mut() {
            Some((last, partitions)) if *last == topic => partitions.push(partition as i32),
            _ => topics.push((topic, vec![partition as i32])),
        }
    }
    topics
}

/// Encodes an assignment as a leader would, with the names that members of this tenant use.
fn write_share(tenant: Option<&TenantName>, partitions: impl IntoIterator<Item = TopicPartition>) -> Bytes {
    let of_topic = |(topic, partitions): (TopicName, Vec<i32>)| OfTopic { topic: topic.to_string(), partitions };
    let assigned_partitions = by_topic(partitions).into_iter().map(of_topic).collect();
    write_embedded(tenant, ConsumerProtocolAssignment { assigned_partitions, user_data: None })
}

/// Decodes the assignment of a leader of this tenant; `None` if it is unreadable. Empty bytes are an empty assignment.
fn read_share(tenant: Option<&TenantName>, share: &Bytes) -> Option<Vec<TopicPartition>> {
    if share.is_empty() {
        return Some(Vec::new());
    }
    let share: ConsumerProtocolAssignment = read_embedded(tenant, share)?;
    partitions_of(share.assigned_partitions.iter().map(|of| (of.topic.as_str(), &of.partitions[..])))
}

/// Encodes a message of members for members of this tenant, without the names that are not the tenant's.
fn write_embedded<M: Message>(tenant: Option<&TenantName>, mut message: M) -> Bytes {
    if let Some(tenant) = tenant {
        message.names(Entity::None, &mut |entity, name| tenants::to_client(tenant, entity, name));
    }
    encode_embedded(&message, EMBEDDED_VERSION)
}

/// Decodes a message of a member of this tenant, with the names of the broker; `None` if it is unreadable.
fn read_embedded<M: Message>(tenant: Option<&TenantName>, bytes: &Bytes) -> Option<M> {
    let (_, mut message): (_, M) = decode_embedded(bytes.clone()).ok()?;
    if let Some(tenant) = tenant {
        message.names(Entity::None, &mut |entity, name| tenants::to_broker(tenant, entity, name));
    }
    Some(message)
}
