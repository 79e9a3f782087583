//! The nodes of a cluster on the wire: their state, tokens for new ones, removals, and transfers of the leadership.

use bytes::{Buf, BufMut, BytesMut};
use engine::Result;
use engine::cluster::{ClusterStatus, JoinToken, NodeStatus, check_minutes};

use crate::field::{Fields, get_code, get_flags, get_option, put_flags, put_list, put_option, put_str};

/// Action of a request about the cluster: the first byte of its body, and of that of its answer.
#[derive(Clone, Copy)]
#[repr(u8)]
enum ClusterAction {
    Describe = 1,
    IssueToken = 2,
    Transfer = 3,
    Remove = 4,
}

impl ClusterAction {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Describe, Self::IssueToken, Self::Transfer, Self::Remove].into_iter().find(|of| *of as u8 == code)
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        get_code(f, "action", Self::from_code)
    }
}

/// Request about the nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterRequest {
    /// Requests the state of the cluster.
    Describe,
    /// Issues a token with which one node can join.
    IssueToken {
        /// Minutes for which it is valid.
        minutes: u32,
    },
    /// Passes the leadership to another node.
    Transfer {
        /// Number of the node.
        to: u64,
    },
    /// Removes a node.
    Remove {
        /// Number of the node.
        node: u64,
    },
}

/// Answer about the nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterResponse {
    /// Answers [`ClusterRequest::Describe`].
    Described(ClusterStatus),
    /// Answers [`ClusterRequest::IssueToken`].
    TokenIssued(JoinToken),
    /// Answers [`ClusterRequest::Transfer`]: the transfer has begun.
    Transferring,
    /// Answers [`ClusterRequest::Remove`].
    Removed,
}

impl ClusterRequest {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Describe => b.put_u8(ClusterAction::Describe as u8),
            Self::IssueToken { minutes } => {
                b.put_u8(ClusterAction::IssueToken as u8);
                b.put_u32(*minutes);
            }
            Self::Transfer { to } => {
                b.put_u8(ClusterAction::Transfer as u8);
                b.put_u64(*to);
            }
            Self::Remove { node } => {
                b.put_u8(ClusterAction::Remove as u8);
                b.put_u64(*node);
            }
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match ClusterAction::get(f)? {
            ClusterAction::Describe => Self::Describe,
            ClusterAction::IssueToken => {
                let minutes = f.u32()?;
                check_minutes(minutes)?;
                Self::IssueToken { minutes }
            }
            ClusterAction::Transfer => Self::Transfer { to: f.u64()? },
            ClusterAction::Remove => Self::Remove { node: f.u64()? },
        })
    }
}

impl ClusterResponse {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Described(status) => {
                b.put_u8(ClusterAction::Describe as u8);
                put_status(b, status);
            }
            Self::TokenIssued(token) => {
                b.put_u8(ClusterAction::IssueToken as u8);
                put_str(b, token.reveal());
            }
            Self::Transferring => b.put_u8(ClusterAction::Transfer as u8),
            Self::Removed => b.put_u8(ClusterAction::Remove as u8),
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match ClusterAction::get(f)? {
            ClusterAction::Describe => Self::Described(get_status(f)?),
            ClusterAction::IssueToken => Self::TokenIssued(JoinToken::new(f.str()?)),
            ClusterAction::Transfer => Self::Transferring,
            ClusterAction::Remove => Self::Removed,
        })
    }
}

/// Minimum bytes of a node, and of a door.
const NODE_BYTES_MIN: usize = 26;
const DOOR_BYTES_MIN: usize = 4;

fn put_status(b: &mut BytesMut, status: &ClusterStatus) {
    put_str(b, &status.cluster);
    b.put_u64(status.node);
    put_option(b, status.leader.as_ref(), |b, leader| b.put_u64(*leader));
    let ClusterStatus { term, committed, applied, elections, .. } = status;
    let ClusterStatus { waiting_bytes, catch_ups, caught_up_bytes, .. } = status;
    let numbers = [term, committed, applied, elections, waiting_bytes, catch_ups, caught_up_bytes];
    numbers.into_iter().for_each(|number| b.put_u64(*number));
    b.put_u32(status.format);
    put_list(b, &status.nodes, put_node);
}

fn get_status<B: Buf>(f: &mut Fields<B>) -> Result<ClusterStatus> {
    Ok(ClusterStatus {
        cluster: f.str()?,
        node: f.u64()?,
        leader: get_option(f, Fields::u64)?,
        term: f.u64()?,
        committed: f.u64()?,
        applied: f.u64()?,
        elections: f.u64()?,
        waiting_bytes: f.u64()?,
        catch_ups: f.u64()?,
        caught_up_bytes: f.u64()?,
        format: f.u32()?,
        nodes: f.list(NODE_BYTES_MIN, get_node)?,
    })
}

fn put_node(b: &mut BytesMut, of: &NodeStatus) {
    b.put_u64(of.node);
    put_str(b, &of.address);
    put_str(b, &of.program);
    put_flags(b, &[of.is_leader, of.is_voter, of.is_alive, of.is_catching_up, of.is_leaving]);
    b.put_u64(of.behind);
    put_option(b, of.silent_ms.as_ref(), |b, silent_ms| b.put_u64(*silent_ms));
    put_list(b, &of.doors, |b, (door, address)| {
        put_str(b, door);
        put_str(b, address);
    });
}

fn get_node<B: Buf>(f: &mut Fields<B>) -> Result<NodeStatus> {
    let (node, address, program) = (f.u64()?, f.str()?, f.str()?);
    let [is_leader, is_voter, is_alive, is_catching_up, is_leaving] = get_flags(f)?;
    Ok(NodeStatus {
        node,
        address,
        program,
        is_leader,
        is_voter,
        is_alive,
        is_catching_up,
        is_leaving,
        behind: f.u64()?,
        silent_ms: get_option(f, Fields::u64)?,
        doors: f.list(DOOR_BYTES_MIN, |f| Ok((f.str()?, f.str()?)))?,
    })
}
