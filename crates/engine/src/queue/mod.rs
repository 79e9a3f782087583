//! Queues: views of a topic whose messages are delivered one by one, each to one receiver at a time.
//!
//! A receiver *leases* a message. It acknowledges the message, which is then finished; or it returns the message or
//! lets the lease expire, and another receiver gets it. [`Queue`] is the state machine of one queue over one partition,
//! [`Dedup`] recognizes messages that were sent before, [`Message`] is a record as queues see it, and [`QueueRecord`]
//! is the persisted state that a restart begins with.

mod dedup;
pub mod filter;
mod leases;
mod line;
mod message;
mod named;
mod record;
mod snapshot;
mod taking;
mod voids;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::groups::GroupName;
use crate::ids::TopicName;
use crate::producers::Isolation;

pub use dedup::{DEDUP_WINDOW_MS, Dedup};
pub use filter::Filter;
pub use leases::{Counts, Entry, Lease, LeaseError, Phase, Queue};
pub use line::{GroupId, group_of};
pub use message::{Message, MessageId, header, header_of, text_of};
pub use named::SettingValue;
pub use record::{Cursor, QueueDefinition, QueueId, QueueRecord};
pub use snapshot::{Snapshot, SnapshotHead, SnapshotPartition};
pub use taking::{Call, LOOK_AHEAD_MAX, Look, Taken};

/// Topic that persists the definitions of queues and their delivered messages.
pub const QUEUES_TOPIC: &str = "_queues";

/// Maximum number of messages of a partition that wait behind others of their group. At the limit a scan stops.
pub const WAITING_MAX: u64 = 120_000;
/// Maximum time in ms that one receiver may hold a message, however often its lease is extended: 12 hours.
pub const LEASE_TOTAL_MS_MAX: u64 = 12 * 3_600_000;
/// Maximum delay in ms of a message, or of a queue.
pub const DELAY_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// Maximum number of attempts after which a message is moved to the dead-letter topic.
pub const ATTEMPTS_MAX: u32 = 1000;
/// Maximum time in ms that a message may wait for a receiver.
pub const RETENTION_MS_MAX: u64 = 31 * 24 * 3_600_000;
/// Maximum number of leases of one queue in one partition.
pub const IN_FLIGHT_MAX: u32 = 1_000_000;

/// Prefix of the names of the queues of share groups. No topic name can begin with it.
const SHARE_PREFIX: &str = "_share/";
/// Separator between the topic, whose name cannot contain it, and the group.
const SHARE_SEPARATOR: char = '/';

/// Name of a queue. It follows the rules of topic names, unless the queue belongs to a share group.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(Arc<str>);

impl QueueName {
    pub fn parse(name: &str) -> Result<Self> {
        let topic = TopicName::parse(name)
            .map_err(|error| Error::new(error.kind, error.message.replace("topic name", "queue name")))?;
        if topic.is_hidden() {
            Err(Error::invalid(format!("queue name '{name}' is reserved for the broker")))
        } else {
            Ok(Self(Arc::from(name)))
        }
    }

    /// Returns the name of the queue of a share group over a topic. No other queue can have this name.
    pub fn of_share(group: &GroupName, topic: &TopicName) -> Self {
        Self(Arc::from(format!("{SHARE_PREFIX}{topic}{SHARE_SEPARATOR}{group}")))
    }

    /// Returns the share group to which the queue belongs.
    pub fn share_group(&self) -> Option<GroupName> {
        let (_, group) = self.0.strip_prefix(SHARE_PREFIX)?.split_once(SHARE_SEPARATOR)?;
        GroupName::parse(group).ok()
    }

    /// Returns `true` if the queue belongs to the broker and is not listed among the queues of users.
    pub fn is_internal(&self) -> bool {
        Self::is_internal_name(&self.0)
    }

    pub fn is_internal_name(name: &str) -> bool {
        name.starts_with(SHARE_PREFIX)
    }

    /// Parses a name that was persisted.
    fn kept(name: &str) -> Result<Self> {
        let kept = Self(Arc::from(name));
        if kept.share_group().is_some() { Ok(kept) } else { Self::parse(name) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl std::borrow::Borrow<str> for QueueName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Order in which messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// Oldest available message first.
    #[default]
    Any = 0,
    /// Messages of one key in their order, and none of them while another receiver holds one.
    Groups = 1,
    /// Oldest available message first, except that keys with a large share of the leased messages come after others.
    Fair = 2,
}

impl Order {
    pub const ALL: [Self; 3] = [Self::Any, Self::Groups, Self::Fair];

    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Groups => "groups",
            Self::Fair => "fair",
        }
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|order| *order as u8 == code)
    }
}

impl std::str::FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|order| order.name() == text);
        known.ok_or_else(|| Error::invalid(format!("order is any, groups or fair, not '{text}'")))
    }
}

/// Scope of a deduplication id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DedupRule {
    #[default]
    Off = 0,
    /// All messages of the queue.
    Queue = 1,
    /// Messages with the same key.
    Group = 2,
}

impl DedupRule {
    pub const ALL: [Self; 3] = [Self::Off, Self::Queue, Self::Group];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| *rule as u8 == code)
    }
}

/// Handling of a message for which a queue has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueOverflow {
    /// Message is refused.
    #[default]
    Reject = 0,
    /// Oldest messages are dropped to make room.
    DropOldest = 1,
}

impl QueueOverflow {
    pub const ALL: [Self; 2] = [Self::Reject, Self::DropOldest];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::DropOldest => "drop_oldest",
        }
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|overflow| *overflow as u8 == code)
    }
}

impl std::str::FromStr for QueueOverflow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|overflow| overflow.name() == text);
        known.ok_or_else(|| Error::invalid(format!("overflow is reject or drop_oldest, not '{text}'")))
    }
}

/// Settings of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Lease duration in ms if the receiver specifies none.
    pub lease_ms: u64,
    /// Delay of a message in ms if its sender specifies none.
    pub delay_ms: u64,
    /// Time in ms that a message waits for a receiver before it is dropped.
    pub retention_ms: u64,
    pub order: Order,
    /// Number of deliveries after which a message is moved to the dead-letter topic; 0 is no limit.
    pub attempts_max: u32,
    /// Dead-letter topic.
    pub dead_letter: Option<TopicName>,
    /// Isolation, which decides whether records of open and aborted transactions are messages, too.
    pub isolation: Isolation,
    /// Shortest and longest delay in ms of a message that returns to the queue; the delay doubles with each attempt.
    pub backoff_ms: (u64, u64),
    /// `true` if only the newest receipt of a message is valid, and only while its lease runs.
    pub is_strict: bool,
    /// `true` if a message that returns to the queue also returns those of its key that were delivered after it.
    pub returns_following: bool,
    /// Maximum number of concurrent leases in each partition.
    pub in_flight_max: u32,
    /// Maximum number of unfinished messages in each partition; 0 is no separate limit.
    pub messages_max: u64,
    /// Maximum size of the log in bytes in each partition; 0 is no separate limit.
    pub bytes_max: u64,
    pub overflow: QueueOverflow,
    /// Filter of the queue: messages that it does not match are not delivered.
    pub filter: Option<Filter>,
    /// `true` if finished messages are kept as long as the topic keeps them, so that the queue can seek back to them.
    pub keeps_acked: bool,
    pub dedup: DedupRule,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            lease_ms: 30_000,
            delay_ms: 0,
            retention_ms: 4 * 24 * 3_600_000,
            order: Order::Any,
            attempts_max: 0,
            dead_letter: None,
            isolation: Isolation::Committed,
            backoff_ms: (0, 0),
            is_strict: false,
            returns_following: false,
            in_flight_max: 120_000,
            messages_max: 0,
            bytes_max: 0,
            overflow: QueueOverflow::Reject,
            filter: None,
            keeps_acked: false,
            dedup: DedupRule::Off,
        }
    }
}

impl QueueSettings {
    pub fn validate(&self) -> Result<()> {
        let within = |what: &str, value: u64, most: u64| {
            if value <= most { Ok(()) } else { Err(Error::invalid(format!("{what} is at most {most}, not {value}"))) }
        };
        within("lease_ms", self.lease_ms, LEASE_TOTAL_MS_MAX)?;
        within("delay_ms", self.delay_ms, DELAY_MS_MAX)?;
        within("retention_ms", self.retention_ms, RETENTION_MS_MAX)?;
        within("attempts_max", self.attempts_max.into(), ATTEMPTS_MAX.into())?;
        within("in_flight_max", self.in_flight_max.into(), IN_FLIGHT_MAX.into())?;
        within("the longest backoff_ms", self.backoff_ms.1, DELAY_MS_MAX)?;
        within("the shortest backoff_ms", self.backoff_ms.0, self.backoff_ms.1)?;
        if self.retention_ms == 0 || self.in_flight_max == 0 {
            return Err(Error::invalid("retention_ms and in_flight_max are at least 1"));
        }
        if self.order != Order::Groups && self.dedup == DedupRule::Group {
            return Err(Error::invalid("dedup by group needs order = groups"));
        }
        if let Some(topic) = self.dead_letter.as_ref().filter(|topic| topic.is_internal()) {
            return Err(Error::invalid(format!("dead_letter: '{topic}' is an internal topic of the broker")));
        }
        Ok(())
    }

    /// Returns `true` if a message with this number of deliveries is moved to the dead-letter topic instead of being
    /// delivered again.
    pub(crate) fn is_last_attempt(&self, attempts: u32) -> bool {
        self.has_last_attempt() && attempts >= self.attempts_max
    }

    /// Returns `true` if messages have a last attempt: the number of attempts is limited, and a dead-letter topic is
    /// set.
    pub(crate) fn has_last_attempt(&self) -> bool {
        self.attempts_max > 0 && self.dead_letter.is_some()
    }

    /// Returns the delay in ms of a message that returns after this number of attempts: it doubles each time.
    pub(crate) fn backoff_after(&self, attempts: u32) -> u64 {
        let (least, most) = self.backoff_ms;
        least.saturating_mul(1u64 << attempts.saturating_sub(1).min(32)).min(most)
    }
}
