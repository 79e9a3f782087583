//! Replication of a broker's shards over several nodes.
//!
//! So far it has the protocol between two nodes ([`link`]). No broker uses it yet.

pub mod link;
