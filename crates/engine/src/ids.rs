//! Names and ids: parsed once, at the edge, and valid from then on.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::TOPIC_NAME_BYTES_MAX;

/// Position of a record in its partition, counted from 0 without gaps.
pub type Offset = u64;

/// Number of a partition within its topic, counted from 0.
pub type PartitionId = u32;

/// Position of a partition among the partitions that one subscription reads.
pub type SourceId = u32;

/// Unique id of a topic. A topic that is deleted and created again with the same name gets another id. Never zero and
/// never 1: protocols with such ids reserve them for "no topic" and for a topic of the broker itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(u128);

impl TopicId {
    /// Returns the id of the topic with this number among the ids of one origin. `origin` is random and unique per
    /// origin. Its highest bit is ignored, so that no text encoding of an id begins with a dash.
    pub fn new(origin: u64, number: u64) -> Self {
        Self(u128::from((origin & (u64::MAX >> 1)).max(1)) << 64 | u128::from(number))
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TopicId {
    /// Formats the id like a UUID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |from: u32, bits: u32| self.0 >> from & ((1 << bits) - 1);
        let a = part(96, 32);
        let b = part(80, 16);
        let c = part(64, 16);
        let d = part(48, 16);
        let e = part(0, 48);
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Partition together with its topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    pub topic: TopicName,
    pub partition: PartitionId,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// Position at which a subscription begins in each partition.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Start {
    /// First record that is published from now on.
    #[default]
    Live,
    /// Oldest record that is still in the log.
    Earliest,
    /// Record at this offset.
    Offset(Offset),
    /// First batch that has a record at or after this time, ms since 1970.
    Time(i64),
    /// Separate offset for each partition, by which a subscription resumes; partitions that are not listed start live.
    Offsets(Vec<(PartitionId, Offset)>),
}

/// Name of a topic: 1 to 249 of `A-Z a-z 0-9 . _ -`, neither `.` nor `..` (Kafka's rule). Dots split it into the tokens
/// that wildcards match, so no token is empty.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Arc<str>);

impl TopicName {
    pub fn parse(name: &str) -> Result<Self> {
        check_topic_name(name)?;
        Ok(Self(Arc::from(name)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns `true` for a topic of the broker itself: clients cannot publish to it, and not all of these topics can
    /// be read by clients.
    pub fn is_internal(&self) -> bool {
        is_internal(&self.0)
    }

    /// Returns `true` if no pattern matches the topic: internal topics and inboxes.
    pub fn is_hidden(&self) -> bool {
        self.is_internal() || self.is_inbox()
    }

    /// Returns `true` for an inbox. Inboxes carry the responses of request/reply and exist as long as their subscriber.
    pub fn is_inbox(&self) -> bool {
        is_inbox(&self.0)
    }
}

/// Returns `true` if a name is that of an inbox, which only its owner's subscription creates.
pub fn is_inbox(name: &str) -> bool {
    name.starts_with(INBOX_PREFIX)
}

/// Returns `true` if a name is that of a topic of the broker itself.
pub fn is_internal(name: &str) -> bool {
    INTERNAL_TOPICS.contains(&name)
}

/// Topic with the records of the audit.
pub const AUDIT_TOPIC: &str = "_audit";

/// Topics that the broker itself writes: committed offsets, transactions, users and access control entries, queues,
/// caches, streams, and the audit.
pub const INTERNAL_TOPICS: [&str; 7] =
    ["_offsets", "_transactions", "_security", "_queues", "_caches", "_streams", AUDIT_TOPIC];

/// Returns `true` if a topic of the broker itself may hold secrets: endpoints with tokens in their URLs, policies, or
/// entries of clients in durable caches.
pub fn may_hold_secrets(name: &str) -> bool {
    matches!(name, "_security" | "_queues" | "_caches")
}

/// Prefix of the name of every inbox.
pub const INBOX_PREFIX: &str = "_inbox.";

/// Returns `true` if a text is a host and a port, such as `broker.example:7400` or `[::1]:7400`.
pub fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host = |char: char| char.is_ascii_alphanumeric() || ".-_:[]%".contains(char);
        let is_bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        let has_port = port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
        !host.is_empty() && host.chars().all(is_host) && !is_bare_ipv6 && has_port
    })
}

fn check_topic_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > TOPIC_NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a topic name has 1 to {TOPIC_NAME_BYTES_MAX} characters, this one has {}",
            name.len()
        )));
    }
    if let Some(bad) = name.chars().find(|c| !is_name_char(*c)) {
        return Err(Error::invalid(format!(
            "topic name '{name}' holds '{bad}'; use letters, digits, '.', '_' and '-'"
        )));
    }
    if name.split('.').any(str::is_empty) {
        return Err(Error::invalid(format!("topic name '{name}' has an empty part between dots")));
    }
    Ok(())
}

pub(crate) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_topics_differ_and_are_never_reserved_ones() {
        let ids = [(0, 0), (0, 1), (7, 0), (7, 1), (1 << 62, 1), (u64::MAX, u64::MAX)].map(|(a, b)| TopicId::new(a, b));
        for (i, id) in ids.iter().enumerate() {
            assert!(id.0 > 1 && id.to_bytes()[0] < 0x80, "{id}");
            assert_eq!(TopicId::from_bytes(id.to_bytes()), *id);
            assert!(!ids[..i].contains(id), "{id}");
        }
        assert_eq!(TopicId::new(0x1234_5678_9abc_def0, 0xf).to_string(), "12345678-9abc-def0-0000-00000000000f");
    }

    #[test]
    fn names_are_kafka_names_without_empty_tokens() {
        for good in ["a", "orders.eu-west.2024_11", "_inbox.x", &"x".repeat(249)] {
            assert!(TopicName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a..b", ".a", "a.", "a b", "a*", "ä", "a/b", &"x".repeat(250)] {
            assert!(TopicName::parse(bad).is_err(), "{bad}");
        }
    }
}
