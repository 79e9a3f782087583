//! Replication of a broker's shards over several nodes.
//!
//! So far it has what two nodes need to talk to each other; no broker uses it yet. Read it from the top.

// Who a node is, and how it becomes one.
pub mod identity;
pub mod join;

// The protocol between two nodes, and the connections that carry it.
pub mod link;
pub mod transport;
