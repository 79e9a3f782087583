//! Responses that wait for other members, and the refusals that all kinds of members share.

use super::{GroupError, GroupName, MemberId, Reason};

pub(super) type Outcome<T = ()> = Result<T, GroupError>;

/// Response to a request that waits for other members.
#[derive(Debug)]
pub(super) enum Wait<T> {
    /// No request was made, or its response was fetched.
    None,
    Open(u64),
    Done(u64, Outcome<T>),
}

impl<T> Wait<T> {
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    pub(super) fn ticket(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Open(ticket) | Self::Done(ticket, _) => Some(*ticket),
        }
    }

    pub(super) fn answer(&mut self, outcome: Outcome<T>) {
        if let Self::Open(ticket) = self {
            *self = Self::Done(*ticket, outcome);
        }
    }

    /// Returns the response, or `None` while it is pending. Only the latest request gets a response: an earlier one
    /// fails.
    pub(super) fn fetch(&mut self, ticket: u64, group: &GroupName) -> Outcome<Option<T>> {
        match std::mem::replace(self, Self::None) {
            Self::Done(of, outcome) if of == ticket => outcome.map(Some),
            other => {
                let is_waiting = other.ticket() == Some(ticket);
                *self = other;
                if is_waiting { Ok(None) } else { Err(rebalancing(group)) }
            }
        }
    }
}

pub(super) fn rebalancing(group: &GroupName) -> GroupError {
    GroupError::new(Reason::RebalanceInProgress, format!("group {group} is rebalancing: join again"))
}

pub(super) fn unknown(group: &GroupName, id: &str) -> GroupError {
    GroupError::new(Reason::UnknownMember, format!("'{id}' is not a member of group {group}: join again"))
}

pub(super) fn replaced(group: &GroupName, id: &MemberId) -> GroupError {
    let message = format!("another member of group {group} has joined with the instance id of member {id}");
    GroupError::new(Reason::ReplacedInstance, message)
}
