//! Status of a group and of its members, for display.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::classic_api::{ClassicPhase, Protocol};
use super::group::{Group, Member};
use super::{InstanceId, MemberId};
use crate::ids::TopicPartition;
use crate::pattern::Pattern;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GroupState {
    Empty = 0,
    /// Every member has its target.
    Stable = 1,
    /// Some members have to release partitions or wait for them.
    Reconciling = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    Stable = 0,
    /// Member has to release partitions and has not confirmed it.
    Revoking = 1,
    /// Some partitions of its target still belong to other members.
    Waiting = 2,
    /// Static member that has left and may return.
    Away = 3,
}

/// Status of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus<'a> {
    pub id: &'a MemberId,
    pub instance: Option<&'a InstanceId>,
    pub client: &'a str,
    pub host: &'a str,
    pub epoch: u32,
    pub state: MemberState,
    pub topics: &'a [Pattern],
    /// Partitions that it may read.
    pub assigned: &'a BTreeSet<TopicPartition>,
    /// Partitions that it has to release.
    pub revoking: &'a BTreeSet<TopicPartition>,
    /// Partitions that it is to have.
    pub target: &'a BTreeSet<TopicPartition>,
    /// Assignment protocols that it supports, if any.
    pub protocols: &'a [Protocol],
    /// Assignment that its leader gave it, if it has a leader.
    pub assignment: Option<&'a Bytes>,
}

/// Status of a group whose members assign partitions among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassicStatus<'a> {
    pub phase: ClassicPhase,
    pub protocol_type: &'a str,
    /// Protocol of the generation; empty before the first one.
    pub protocol: &'a str,
}

static NOTHING: BTreeSet<TopicPartition> = BTreeSet::new();

impl Group {
    pub fn state(&self) -> GroupState {
        let is_stable = |(id, member): (&MemberId, &Member)| {
            let state = self.member_state(id, member);
            state == MemberState::Stable || state == MemberState::Away
        };
        match self.classic.phase() {
            ClassicPhase::Preparing | ClassicPhase::Completing => return GroupState::Reconciling,
            ClassicPhase::Stable => return GroupState::Stable,
            ClassicPhase::Empty => {}
        }
        if self.members.is_empty() {
            GroupState::Empty
        } else if !self.is_due() && self.members.iter().all(is_stable) {
            GroupState::Stable
        } else {
            GroupState::Reconciling
        }
    }

    /// Returns `None` if the broker assigns, or if there are no members.
    pub fn classic_status(&self) -> Option<ClassicStatus<'_>> {
        let protocol_type = self.classic.protocol_type();
        let protocol = self.classic.protocol();
        let status = ClassicStatus { phase: self.classic.phase(), protocol_type, protocol };
        (!self.classic.members.is_empty()).then_some(status)
    }

    fn member_state(&self, id: &MemberId, member: &Member) -> MemberState {
        if member.is_away {
            return MemberState::Away;
        }
        if !member.revoking.is_empty() {
            return MemberState::Revoking;
        }
        let has_all = member.epoch == self.epoch && self.targets.get(id) == Some(&member.assigned);
        if has_all { MemberState::Stable } else { MemberState::Waiting }
    }

    pub fn members(&self) -> impl Iterator<Item = MemberStatus<'_>> {
        let shared = self.members.iter().map(|(id, member)| MemberStatus {
            id,
            instance: member.instance.as_ref(),
            client: &member.client,
            host: &member.host,
            epoch: member.epoch,
            state: self.member_state(id, member),
            topics: &member.topics,
            assigned: &member.assigned,
            revoking: &member.revoking,
            target: self.targets.get(id).unwrap_or(&NOTHING),
            protocols: member.face.as_ref().map_or(&[], |face| &face.protocols),
            assignment: None,
        });
        let is_stable = self.classic.phase() == ClassicPhase::Stable;
        shared.chain(self.classic.members.iter().map(move |(id, member)| MemberStatus {
            id,
            instance: member.instance.as_ref(),
            client: &member.client,
            host: &member.host,
            epoch: self.classic.generation(),
            state: if is_stable { MemberState::Stable } else { MemberState::Waiting },
            topics: member.topics.as_deref().unwrap_or(&[]),
            assigned: &member.reads,
            revoking: &NOTHING,
            target: &member.reads,
            protocols: &member.protocols,
            assignment: Some(&member.assignment),
        }))
    }
}

impl GroupState {
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Empty, Self::Stable, Self::Reconciling].into_iter().find(|state| *state as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Stable => "stable",
            Self::Reconciling => "reconciling",
        }
    }
}

impl MemberState {
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Stable, Self::Revoking, Self::Waiting, Self::Away].into_iter().find(|state| *state as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Revoking => "revoking",
            Self::Waiting => "waiting",
            Self::Away => "away",
        }
    }
}
