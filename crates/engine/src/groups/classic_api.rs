//! What members say that share out among themselves, and what they are told.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{GroupError, Identity, InstanceId, MemberId, Reason};
use crate::error::Result;
use crate::ids::TopicPartition;
use crate::limits::{
    GROUP_PROTOCOL_NAME_BYTES_MAX, GROUP_PROTOCOLS_MAX, REBALANCE_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN,
};
use crate::pattern::Pattern;

/// What a member may call its program, and its address.
pub(super) const CLIENT_BYTES_MAX: usize = 255;

/// A way to share out that a member knows, with what its leader has to know of it for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub name: Box<str>,
    pub metadata: Bytes,
}

impl Protocol {
    pub(super) fn bytes(&self) -> usize {
        self.name.len() + self.metadata.len()
    }
}

/// What a member wants and has, where its door can read that: then the broker can share out for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub(super) topics: Vec<Pattern>,
    pub(super) owned: BTreeSet<TopicPartition>,
}

impl Subscription {
    pub fn new(mut topics: Vec<Pattern>, owned: BTreeSet<TopicPartition>) -> Result<Self> {
        super::group::check_topics(&topics)?;
        super::group::sort(&mut topics);
        Ok(Self { topics, owned })
    }
}

/// What a member says when it joins.
#[derive(Clone, Debug)]
pub struct ClassicJoin {
    /// `None`: it has no id yet, or is a static member that is started anew.
    pub member: Option<MemberId>,
    /// The id that it gets if it has none: one that nobody had before.
    pub fresh: MemberId,
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    pub session_timeout_ms: u32,
    pub rebalance_timeout_ms: u32,
    /// What kind of things the group shares out. All members have the same.
    pub protocol_type: Box<str>,
    /// Those it likes best first.
    pub protocols: Vec<Protocol>,
    pub subscription: Option<Subscription>,
    /// A new member is given an id first and joins with that, so that one whose answer is lost is not there twice.
    pub comes_twice: bool,
    /// A leader that is started anew knows that it need not share out.
    pub may_skip: bool,
}

impl ClassicJoin {
    /// Whether every value is in its range. Texts for people are cut, and a rebalance timeout is brought into its
    /// range.
    pub fn check(&mut self) -> Result<(), GroupError> {
        if let Err(error) = super::group::check_session(self.session_timeout_ms) {
            return Err(GroupError { reason: Reason::InvalidTimeout, error });
        }
        self.rebalance_timeout_ms = self.rebalance_timeout_ms.clamp(SESSION_TIMEOUT_MS_MIN, REBALANCE_TIMEOUT_MS_MAX);
        self.client.truncate(self.client.floor_char_boundary(CLIENT_BYTES_MAX));
        self.host.truncate(self.host.floor_char_boundary(CLIENT_BYTES_MAX));
        let is_too_long = |name: &str| name.is_empty() || name.len() > GROUP_PROTOCOL_NAME_BYTES_MAX;
        let mut names = self.protocols.iter().map(|protocol| &*protocol.name).chain([&*self.protocol_type]);
        if names.any(is_too_long) {
            let message = format!("a protocol and its type have 1 to {GROUP_PROTOCOL_NAME_BYTES_MAX} bytes");
            return Err(GroupError::new(Reason::InconsistentProtocol, message));
        }
        if self.protocols.is_empty() || self.protocols.len() > GROUP_PROTOCOLS_MAX {
            let message = format!("a member knows 1 to {GROUP_PROTOCOLS_MAX} protocols, not {}", self.protocols.len());
            return Err(GroupError::new(Reason::InconsistentProtocol, message));
        }
        Ok(())
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.protocols.iter().map(Protocol::bytes).sum::<usize>() + self.client.len() + self.host.len()
    }

    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.iter().find(|p| *p.name == *protocol).map(|p| p.metadata.clone()).unwrap_or_default()
    }
}

/// What becomes of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It has to join again, under this id.
    Named(MemberId),
    /// Its answer is there, or waits for other members.
    Waits { who: Identity, ticket: u64 },
}

/// What a member is told of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub generation: u32,
    pub protocol_type: Box<str>,
    pub protocol: Box<str>,
    /// `None`: the broker shares out.
    pub leader: Option<MemberId>,
    pub member: MemberId,
    /// All members; only the leader is told.
    pub members: Vec<JoinedMember>,
    /// It leads, and what was shared out in this generation stays as it is.
    pub is_assigned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    pub member: MemberId,
    pub instance: Option<InstanceId>,
    pub metadata: Bytes,
}

/// A member asks for its share.
#[derive(Clone, Debug)]
pub struct ClassicSync {
    pub who: Identity,
    pub generation: u32,
    /// What it believes that is shared out, and how, where it says so.
    pub protocol_type: Option<Box<str>>,
    pub protocol: Option<Box<str>>,
    /// Of the leader: what each member gets.
    pub shares: Vec<Share>,
}

#[derive(Clone, Debug)]
pub struct Share {
    pub member: MemberId,
    pub bytes: Bytes,
    /// The same, where its door can read it.
    pub partitions: Option<Vec<TopicPartition>>,
}

/// A member's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    pub protocol_type: Box<str>,
    pub protocol: Box<str>,
    pub given: Given,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// As the leader wrote it.
    Bytes(Bytes),
    /// As the broker shared it out.
    Partitions(Vec<TopicPartition>),
}

/// Who leaves: by its id, by its instance, or by both, which then have to belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    pub member: Option<MemberId>,
    pub instance: Option<InstanceId>,
}

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicPhase {
    Empty,
    /// Members join.
    Preparing,
    /// The leader has been told who is there, and has not said what each gets.
    Completing,
    Stable,
}
