//! Consumer groups: the assignment of partitions to members, and the committed offsets.
//!
//! The broker assigns partitions. A [`Group`] counts an *epoch*, which rises whenever its members, their subscriptions
//! or the subscribed topics change. Each epoch has a *target*: the partitions that each member is to have. A member
//! moves to its target at its own pace: it first releases partitions that it has to give up and confirms that, and only
//! then gets partitions that others have released. It continues to read the partitions that it keeps. Kafka describes
//! the same protocol as KIP-848.
//!
//! Members may also assign partitions among themselves, as older clients of Kafka do (`classic.rs`), until a member
//! joins for which the broker assigns (`shared.rs`).
//!
//! The members of both kinds are in the topic of offsets with their partitions (`membership.rs`, `generation.rs`), so
//! that they stay in the group when it is restored: no member acts on an assignment that a restart would not know.
//!
//! The progress of the group is its *committed offsets*. A commit takes effect once its record is in the topic
//! [`OFFSETS_TOPIC`], from which the offsets are restored.

mod assign;
mod bits;
mod classic;
mod classic_api;
mod generation;
mod group;
mod index;
mod membership;
mod offsets;
mod record;
mod renewal;
mod saved;
mod share;
mod shared;
mod status;
mod targets;
mod wait;
mod wanted;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::TopicName;
use crate::limits::GROUP_NAME_BYTES_MAX;

pub use assign::{Assignment, Assignor};
pub use classic_api::{
    ClassicJoin, ClassicPhase, ClassicSync, Entry, Given, Joined, JoinedMember, Leaver, Protocol, Share, Subscription,
    Synced,
};
pub use generation::{SavedGeneration, SavedMember};
pub use group::{Committer, Group, Identity, Join, Now, Turn, member_bytes};
pub use membership::SavedMembership;
pub use offsets::{Change, Committed, NO_LEADER_EPOCH};
pub use record::{OffsetsRecord, SavedGroup};
pub use share::{ShareGroup, ShareJoin, ShareMember};
pub use status::{ClassicStatus, GroupState, MemberState, MemberStatus};
pub use targets::{Plan, Planned};

/// Name of the topic that holds the committed offsets, the epochs and the members of all groups.
pub const OFFSETS_TOPIC: &str = "_offsets";

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn parse(name: &str) -> Result<Self> {
                check_name($what, name)?;
                Ok(Self(Arc::from(name)))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// Name of a consumer group: any text of 1 to 255 bytes without control characters.
    GroupName, "the name of a consumer group"
}

name! {
    /// Id of a member, unique in its group and new with each start of its program.
    MemberId, "the id of a member"
}

name! {
    /// Id of a static member, which stays the same when its program is restarted.
    InstanceId, "an instance id"
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > GROUP_NAME_BYTES_MAX {
        return Err(Error::invalid(format!("{what} has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {}", name.len())));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{what} must not contain control characters: {name:?}")));
    }
    Ok(())
}

/// Existing topics. A group renews what its members subscribe to when they may have changed.
pub trait Catalog {
    /// Returns a number that rises whenever a topic is created, deleted or gets more partitions.
    fn version(&self) -> u64;

    /// Returns a number that rises whenever a rule may match other topics because permissions have changed.
    fn permissions(&self) -> u64;

    /// Returns the names of the topics that have changed since a version, or `None` if that was too long ago.
    fn changed_since(&self, version: u64) -> Option<Vec<TopicName>>;

    /// Returns the approximate number of topics.
    fn count(&self) -> usize;

    /// Returns the number of partitions of a topic, if it exists and groups may subscribe to it.
    fn partitions(&self, topic: &TopicName) -> Option<u32>;

    /// Returns all topics to which groups may subscribe, with their numbers of partitions: no internal topics.
    fn topics(&self) -> Vec<(TopicName, u32)>;
}

/// Reason for which a group refused a request, as detailed as any protocol has to report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NoSuchGroup,
    /// Member is not in the group, or no longer: it has to join.
    UnknownMember,
    /// Epoch is not valid for this member, or no longer: it has to join.
    StaleEpoch,
    /// Generation is not valid for this classic member, or no longer: it has to join.
    StaleGeneration,
    /// Another member has joined with the same instance id.
    ReplacedInstance,
    /// Another member has this instance id and has not left.
    InstanceInUse,
    /// Commit names a partition that the member does not own.
    NotOwner,
    /// Operation is refused while the group has members.
    HasMembers,
    /// Operation is refused while members subscribe to the topic.
    Subscribed,
    /// Group is rebalancing: the member has to join again.
    RebalanceInProgress,
    /// Member has no assignment protocol in common with the other members.
    InconsistentProtocol,
    /// Group has the maximum number of members, or of patterns to which they subscribe.
    GroupFull,
    /// Session timeout is out of range.
    InvalidTimeout,
    /// Reason is given by the kind of the error.
    Other,
}

/// Refusal with its reason and an error message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupError {
    pub reason: Reason,
    pub error: Error,
}

impl std::borrow::Borrow<Error> for GroupError {
    fn borrow(&self) -> &Error {
        &self.error
    }
}

impl GroupError {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let kind = match reason {
            Reason::NoSuchGroup => ErrorKind::NotFound,
            Reason::UnknownMember | Reason::StaleEpoch | Reason::StaleGeneration | Reason::NotOwner => {
                ErrorKind::Fenced
            }
            Reason::ReplacedInstance | Reason::InstanceInUse => ErrorKind::AlreadyExists,
            Reason::HasMembers | Reason::Subscribed | Reason::RebalanceInProgress | Reason::GroupFull => {
                ErrorKind::Busy
            }
            Reason::InconsistentProtocol | Reason::InvalidTimeout => ErrorKind::Invalid,
            Reason::Other => ErrorKind::Internal,
        };
        Self { reason, error: Error::new(kind, message) }
    }
}

impl From<Error> for GroupError {
    fn from(error: Error) -> Self {
        Self { reason: Reason::Other, error }
    }
}

impl From<GroupError> for Error {
    fn from(refused: GroupError) -> Self {
        refused.error
    }
}

#[cfg(test)]
mod classic_tests;
#[cfg(test)]
mod member_tests;
#[cfg(test)]
mod target_tests;
#[cfg(test)]
mod tests;
