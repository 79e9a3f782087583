//! Requests of groups into calls of the broker: members that share out among themselves (`classic`), members that leave
//! that to the broker (`consumer`), committed offsets, what is shown of groups, and how groups are set (`settings`).

mod classic;
mod consumer;
mod offsets;
mod settings;
mod shown;

use std::collections::BTreeSet;

use broker::Broker;
use bytes::Bytes;
use engine::groups::{GroupError, GroupName, Identity, InstanceId, MemberId, Reason};
use engine::limits::GROUP_PARTITIONS_MAX;
use engine::security::Resource;
use engine::{PartitionId, Pattern, TopicName, TopicPartition};

use super::errors::{Code, of_group};
use super::map::Caller;
use super::messages::consumer_protocol_assignment::{ConsumerProtocolAssignment, TopicPartition as OfTopic};
use super::messages::{decode_embedded, encode_embedded};

pub(super) use classic::{heartbeat, join, leave, sync};
pub(super) use consumer::consumer_heartbeat;
pub(super) use offsets::{commit, delete_offsets, fetch};
pub(super) use settings::{GroupSettings, Shown, change, describe_settings, set_groups};
pub(super) use shown::{client_host, delete, describe, describe_consumer, list};

/// The keys of the requests.
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
/// What members share out that read topics: the only kind that the broker can share out itself.
const CONSUMERS: &str = "consumer";
/// The version in which the broker writes what is embedded: every client reads it.
const EMBEDDED_VERSION: i16 = 0;

pub(super) type Outcome<T> = Result<T, Refused>;

/// Why something of a group was not done.
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
    /// For want of a right.
    fn from(code: Code) -> Self {
        Self { code, message: "this user may not do that".to_owned() }
    }
}

/// The group, where the caller may use the API with this key on it.
pub(super) fn group_for(broker: &Broker, caller: &Caller, key: i16, name: &str) -> Outcome<GroupName> {
    caller.may_use(broker, key, &Resource::group(name))?;
    GroupName::parse(name).map_err(|error| Refused { code: Code::INVALID_GROUP_ID, message: error.message })
}

/// What cannot be an id is nobody's.
pub(super) fn member_id(id: &str) -> Outcome<MemberId> {
    MemberId::parse(id).map_err(|error| GroupError { reason: Reason::UnknownMember, error }.into())
}

/// The topics of these names, where the caller may use the API with this key on them. A name that no topic can have is
/// left out: as in Kafka it is a topic that is not there, and its member is assigned nothing of it. So are the topics
/// of the broker itself and inboxes, which no group shares: an error would end the client for good.
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

/// Each name once: an answer is no longer than what is asked about.
pub(super) fn distinct(names: Vec<String>) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    names.into_iter().filter(move |name| seen.insert(name.clone()))
}

/// `None` where a topic cannot have this partition.
fn partition_of(topic: &TopicName, number: i32) -> Option<TopicPartition> {
    Some(TopicPartition { topic: topic.clone(), partition: PartitionId::try_from(number).ok()? })
}

/// Partitions as a client names them; `None` if some of them cannot be, or if they are more than a group has.
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

/// Partitions in the order of their topics, by topic.
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

/// A share as a leader would write it.
fn write_share(partitions: impl IntoIterator<Item = TopicPartition>) -> Bytes {
    let of_topic = |(topic, partitions): (TopicName, Vec<i32>)| OfTopic { topic: topic.to_string(), partitions };
    let assigned_partitions = by_topic(partitions).into_iter().map(of_topic).collect();
    encode_embedded(&ConsumerProtocolAssignment { assigned_partitions, user_data: None }, EMBEDDED_VERSION)
}

/// What a leader wrote, if it can be read. Nothing is an empty share.
fn read_share(share: &Bytes) -> Option<Vec<TopicPartition>> {
    if share.is_empty() {
        return Some(Vec::new());
    }
    let (_, share): (_, ConsumerProtocolAssignment) = decode_embedded(share.clone()).ok()?;
    partitions_of(share.assigned_partitions.iter().map(|of| (of.topic.as_str(), &of.partitions[..])))
}
