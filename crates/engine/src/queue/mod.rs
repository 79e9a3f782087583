//! Queues: views of a topic whose messages are given out one by one, each to one receiver at a time.
//!
//! A receiver *leases* a message. It acknowledges it, and it is done with; or returns it, or lets the lease end, and
//! another receives it. [`Queue`] is the state machine of one queue over one partition, [`Dedup`] knows what was sent
//! before, [`Message`] is a record as queues see it, and [`QueueRecord`] is what a restart begins with.

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
pub use message::{Message, MessageId, header, header_of};
pub use named::SettingValue;
pub use record::{Cursor, QueueDefinition, QueueId, QueueRecord};
pub use snapshot::{Snapshot, SnapshotPartition};
pub use taking::{Call, LOOK_AHEAD_MAX, Look, Taken};

/// The topic that the definitions of queues and what was given out are kept in.
pub const QUEUES_TOPIC: &str = "_queues";

/// Messages of a partition that wait behind others of their group, at most. Behind so many nobody looks further.
pub const WAITING_MAX: u64 = 120_000;
/// How long one receiver may hold a message, however often its lease is extended: 12 hours.
pub const LEASE_TOTAL_MS_MAX: u64 = 12 * 3_600_000;
/// A delay of a message, or of a queue.
pub const DELAY_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// Attempts after which a message goes to the dead letters.
pub const ATTEMPTS_MAX: u32 = 1000;
/// How long a message may wait for a receiver.
pub const RETENTION_MS_MAX: u64 = 31 * 24 * 3_600_000;
/// Leases of one queue in one partition.
pub const IN_FLIGHT_MAX: u32 = 1_000_000;

/// What names of topics do not have: the names of the queues of share groups begin with it.
const SHARE_PREFIX: &str = "_share/";
/// Between the topic, which does not have it either, and the group.
const SHARE_SEPARATOR: char = '/';

/// The name of a queue. It follows the rules of the names of topics, unless it is that of a share group.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(Arc<str>);

impl QueueName {
    pub fn parse(name: &str) -> Result<Self> {
        let topic = TopicName::parse(name)
            .map_err(|error| Error::new(error.kind, error.message.replace("topic name", "queue name")))?;
        match topic.is_hidden() {
            true => Err(Error::invalid(format!("queue name '{name}' is reserved for the broker"))),
            false => Ok(Self(Arc::from(name))),
        }
    }

    /// The name of the queue of a share group over a topic. No other queue can have it.
    pub fn of_share(group: &GroupName, topic: &TopicName) -> Self {
        Self(Arc::from(format!("{SHARE_PREFIX}{topic}{SHARE_SEPARATOR}{group}")))
    }

    /// The share group whose queue this is.
    pub fn share_group(&self) -> Option<GroupName> {
        let (_, group) = self.0.strip_prefix(SHARE_PREFIX)?.split_once(SHARE_SEPARATOR)?;
        GroupName::parse(group).ok()
    }

    /// Whether it is the broker's own, and is not shown among the queues of users.
    pub fn is_internal(&self) -> bool {
        Self::is_internal_name(&self.0)
    }

    pub fn is_internal_name(name: &str) -> bool {
        name.starts_with(SHARE_PREFIX)
    }

    /// A name as it was kept.
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

/// Which message goes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// The oldest that can be had.
    #[default]
    Any = 0,
    /// The messages of one key in their order, and none of them while another receiver has some.
    Groups = 1,
    /// A key that has much of what is leased steps back behind others.
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

/// Among which messages a deduplication id is told again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DedupRule {
    #[default]
    Off = 0,
    /// All of the queue.
    Queue = 1,
    /// Those of the same key.
    Group = 2,
}

impl DedupRule {
    pub const ALL: [Self; 3] = [Self::Off, Self::Queue, Self::Group];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| *rule as u8 == code)
    }
}

/// What happens to a message for which a queue has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueOverflow {
    /// It is refused.
    #[default]
    Reject = 0,
    /// The oldest make room for it.
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

/// The settings of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// How long a receiver has a message where it does not say.
    pub lease_ms: u64,
    /// How long a message is for nobody where its sender does not say.
    pub delay_ms: u64,
    /// How long a message waits for a receiver before it is dropped.
    pub retention_ms: u64,
    pub order: Order,
    /// How often a message is given out before it goes to the dead letters; 0 is no limit.
    pub attempts_max: u32,
    /// The topic of the dead letters.
    pub dead_letter: Option<TopicName>,
    /// Whether records of open and aborted transactions are messages, too.
    pub isolation: Isolation,
    /// The shortest and the longest delay of a message that comes back, growing with its attempts.
    pub backoff_ms: (u64, u64),
    /// Only the newest receipt of a lease that still runs counts.
    pub is_strict: bool,
    /// Where a message comes back, those of its key that were given out after it do too.
    pub returns_following: bool,
    /// Leases at a time, in each partition.
    pub in_flight_max: u32,
    /// Messages that are not done with, and bytes of the log, in each partition; 0 is no limit of its own.
    pub messages_max: u64,
    pub bytes_max: u64,
    pub overflow: QueueOverflow,
    /// Messages that it does not match are for nobody.
    pub filter: Option<Filter>,
    /// What is done with stays as long as the topic keeps it, so that the queue can go back to it.
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
        let within = |what: &str, value: u64, most: u64| match value <= most {
            true => Ok(()),
            false => Err(Error::invalid(format!("{what} is at most {most}, not {value}"))),
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

    /// Whether a message that was given out so often goes to the dead letters in place of being given out again.
    pub(crate) fn is_last_attempt(&self, attempts: u32) -> bool {
        self.has_last_attempt() && attempts >= self.attempts_max
    }

    /// Whether any message goes there.
    pub(crate) fn has_last_attempt(&self) -> bool {
        self.attempts_max > 0 && self.dead_letter.is_some()
    }

    /// The delay of a message that comes back after so many attempts: twice as long each time.
    pub(crate) fn backoff_after(&self, attempts: u32) -> u64 {
        let (least, most) = self.backoff_ms;
        least.saturating_mul(1u64 << attempts.saturating_sub(1).min(32)).min(most)
    }
}
