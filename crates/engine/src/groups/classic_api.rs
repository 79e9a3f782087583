//! Requests of classic members, which assign partitions among themselves, and the responses to them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{GroupError, Identity, InstanceId, MemberId, Reason};
use crate::error::Result;
use crate::ids::TopicPartition;
use crate::limits::{
    GROUP_PROTOCOL_NAME_BYTES_MAX, GROUP_PROTOCOLS_MAX, REBALANCE_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN,
};
use crate::pattern::Pattern;

/// Maximum length in bytes of the client name of a member, and of its host.
pub(super) const CLIENT_BYTES_MAX: usize = 255;

/// Assignment protocol that a member supports, with the metadata that its leader needs for it.
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

/// Subscription and owned partitions of a member, if its door can decode them: the broker can then assign for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub(super) topics: Vec<Pattern>,
    pub(super) owned: BTreeSet<TopicPartition>,
}

impl Subscription {
    pub fn new(mut topics: Vec<Pattern>, owned: BTreeSet<TopicPartition>) -> Result<Self> {
        super::group::check_topics(&topics)?;
        super::wanted::sort(&mut topics);
        Ok(Self { topics, owned })
    }

    /// Returns the number of topics.
    pub fn topics_len(&self) -> usize {
        self.topics.len()
    }
}

/// Request of a classic member to join.
#[derive(Clone, Debug)]
pub struct ClassicJoin {
    /// Id of the member; `None` if it has no id yet, or is a static member after a restart.
    pub member: Option<MemberId>,
    /// Id that a member without an id gets: one that no member had before.
    pub fresh: MemberId,
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    pub session_timeout_ms: u32,
    pub rebalance_timeout_ms: u32,
    /// Type of resource that the group assigns; all members have the same type.
    pub protocol_type: Box<str>,
    /// Assignment protocols, in order of preference.
    pub protocols: Vec<Protocol>,
    pub subscription: Option<Subscription>,
    /// `true` if a new member first gets an id and then joins with it, so that a lost response leaves no duplicate.
    pub comes_twice: bool,
    /// `true` if a restarted leader supports being told that it need not assign again.
    pub may_skip: bool,
}

impl ClassicJoin {
    /// Checks that every value is in its range. Texts for display are truncated, and the rebalance timeout is clamped.
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

/// Result of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Member has to join again, with this id.
    Named(MemberId),
    /// Response is available, or waits for other members.
    Waits { who: Identity, ticket: u64 },
}

/// Generation that a member has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub generation: u32,
    pub protocol_type: Box<str>,
    pub protocol: Box<str>,
    /// Leader of the generation; `None` if the broker assigns.
    pub leader: Option<MemberId>,
    pub member: MemberId,
    /// All members, for the leader only.
    pub members: Vec<JoinedMember>,
    /// `true` if the member is the leader and the present assignment of this generation stays.
    pub is_assigned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    pub member: MemberId,
    pub instance: Option<InstanceId>,
    pub metadata: Bytes,
}

/// Request of a member for its assignment.
#[derive(Clone, Debug)]
pub struct ClassicSync {
    pub who: Identity,
    pub generation: u32,
    /// Protocol type and protocol that the member expects, if it specifies them.
    pub protocol_type: Option<Box<str>>,
    pub protocol: Option<Box<str>>,
    /// Assignment of every member, sent by the leader.
    pub shares: Vec<Share>,
}

#[derive(Clone, Debug)]
pub struct Share {
    pub member: MemberId,
    pub bytes: Bytes,
    /// Decoded assignment, if its door can decode it.
    pub partitions: Option<Vec<TopicPartition>>,
}

/// Assignment of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    pub protocol_type: Box<str>,
    pub protocol: Box<str>,
    pub given: Given,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// Bytes as the leader sent them.
    Bytes(Bytes),
    /// Partitions as the broker assigned them.
    Partitions(Vec<TopicPartition>),
}

/// Member that leaves, by its id, by its instance id, or by both, which then have to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    pub member: Option<MemberId>,
    pub instance: Option<InstanceId>,
}

/// Phase of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicPhase {
    Empty,
    /// Members join.
    Preparing,
    /// Leader knows the members and has not sent their assignments.
    Completing,
    Stable,
}
