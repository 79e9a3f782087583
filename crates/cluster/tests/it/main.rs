//! Tests of the public interface.

mod identity;
mod join;
mod link;
mod shards;
mod support;
mod transport;
