//! What is shown of a group and its members.

use std::collections::BTreeSet;

use super::{InstanceId, MemberId};
use crate::ids::TopicPartition;
use crate::pattern::Pattern;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GroupState {
    Empty = 0,
    /// Every member has its target.
    Stable = 1,
    /// Some give up partitions or wait for them.
    Reconciling = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    Stable = 0,
    /// It was asked to give up partitions and has not said that it did.
    Revoking = 1,
    /// What it shall have is still with others.
    Waiting = 2,
    /// A static member that has left and may come back.
    Away = 3,
}

/// A member as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus<'a> {
    pub id: &'a MemberId,
    pub instance: Option<&'a InstanceId>,
    pub client: &'a str,
    pub epoch: u32,
    pub state: MemberState,
    pub topics: &'a [Pattern],
    /// What it may read.
    pub assigned: &'a BTreeSet<TopicPartition>,
    /// What it was asked to give up.
    pub revoking: &'a BTreeSet<TopicPartition>,
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
