//! Replication of a broker's shards over several nodes.
//!
//! A cluster has a leader, on which the broker runs, and followers, which have the same log. Read it from the top.

// A node: what it does, and what the nodes know of each other.
pub mod node;
pub mod roster;

// The log of a shard, in front of the journal.
pub mod shard;

// Who a node is, and how it becomes one.
pub mod identity;
pub mod join;

// The protocol between two nodes, and the connections that carry it.
pub mod link;
pub mod transport;
