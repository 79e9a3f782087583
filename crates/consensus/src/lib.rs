//! Consensus of the nodes of a cluster: which one leads a shard, and which entries of its log are committed.
//!
//! [`Replica`] is one node's part of one shard. It takes values (ticks, messages, what is on disk) and returns values
//! (what to write, what to send, what is committed); it has no clock, socket, file or task. An entry is what one block
//! of the journal holds of the shard; the records themselves stay with the caller, and an entry only says how many
//! bytes they have.
//!
//! The rules are those of the crate `raft` (TiKV). No type of it is visible outside of this crate, and a replica keeps
//! the rules that it expects of its caller.

mod lease;
mod log;
mod message;
mod random;
mod replica;
mod values;

pub use crate::log::Log;
pub use crate::message::{Kind, Message};
pub use crate::random::Random;
pub use crate::replica::{Output, Peer, Refused, Replica, Role, Save, Settings, Status};
pub use crate::values::{
    Body, Change, Entry, Hard, Index, Members, NodeId, Point, Position, ReadTicket, Step, Term, Time,
};
