//! View 2: who of a consumer group reads which partition, and up to where the group has read.
//!
//! The broker assigns. A [`Group`] counts an *epoch* that rises whenever its members, what they
//! subscribe to or those topics change; for each epoch there is a *target*, the partitions that each
//! member shall have. A member moves to its target in its own time: it first gives up what it must,
//! says so, and only then gets what others have given up. What it keeps it reads on all the while.
//! Kafka knows the same as KIP-848.
//!
//! Members may also share out among themselves, as older clients of Kafka do (`classic.rs`), until one comes that
//! leaves it to the broker (`shared.rs`).
//!
//! How far the group has read are its *committed offsets*. They count once their record is in the
//! topic [`OFFSETS_TOPIC`], from which they can be read again.

mod assign;
mod classic;
mod classic_api;
mod group;
mod offsets;
mod record;
mod share;
mod shared;
mod status;
mod wait;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::TopicName;
use crate::limits::GROUP_NAME_BYTES_MAX;
use crate::pattern::Pattern;

pub use assign::{Assignment, Assignor};
pub use classic_api::{
    ClassicJoin, ClassicPhase, ClassicSync, Entry, Given, Joined, JoinedMember, Leaver, Protocol, Share, Subscription,
    Synced,
};
pub use group::{Committer, Group, Identity, Join, Now, Turn};
pub use offsets::{Change, Committed, NO_LEADER_EPOCH};
pub use record::{OffsetsRecord, SavedGroup};
pub use share::{ShareGroup, ShareJoin, ShareMember};
pub use status::{ClassicStatus, GroupState, MemberState, MemberStatus};

/// The topic that holds the committed offsets and the epochs of all groups.
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
    /// The name of a consumer group: any text of 1 to 255 bytes without control characters.
    GroupName, "the name of a consumer group"
}

name! {
    /// What a member calls itself, unique in its group and new with each start of its program.
    MemberId, "the id of a member"
}

name! {
    /// The id of a static member, which stays the same when its program is started anew.
    InstanceId, "an instance id"
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > GROUP_NAME_BYTES_MAX {
        return Err(Error::invalid(format!("{what} has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {}", name.len())));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{what} has no control characters: {name:?}")));
    }
    Ok(())
}

/// What topics there are. A group asks again when they may have changed.
pub trait Catalog {
    /// Rises whenever a topic comes, goes or grows.
    fn version(&self) -> u64;

    /// The topics that a pattern means, with their partitions. No wildcard means an internal topic.
    fn matching(&self, pattern: &Pattern) -> Vec<(TopicName, u32)>;
}

/// Why a group refused, as finely as any protocol has to tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NoSuchGroup,
    /// Not, or no longer, in the group: it has to join.
    UnknownMember,
    /// The epoch is not one that this member may still show: it has to join.
    StaleEpoch,
    /// The same of a member of the classic kind.
    StaleGeneration,
    /// Another member came with the same instance id.
    ReplacedInstance,
    /// The member with this instance id has not gone.
    InstanceInUse,
    /// A commit of a partition that the member does not have.
    NotOwner,
    /// Not while the group has members.
    HasMembers,
    /// Not while members subscribe to the topic.
    Subscribed,
    /// The partitions are shared out anew: it has to join again.
    RebalanceInProgress,
    /// The member and the others do not know how to share with each other.
    InconsistentProtocol,
    /// The group has as many members as there may be.
    GroupFull,
    /// A session timeout that is not in its range.
    InvalidTimeout,
    /// The error's kind says it.
    Other,
}

/// A refusal, with its reason and the sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupError {
    pub reason: Reason,
    pub error: Error,
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
mod tests;
