//! State machines of the broker: pure, without clock, socket, file or task.
//!
//! Time and identities come in as arguments and decisions go out as values, so that a script, a property test or a
//! simulation can drive them as well as a broker can.
//!
//! This crate refuses to read a clock, to do input or output, to start a task or a thread, and to log. Read it from the
//! top: most modules use only those above them.

// Words that every crate uses.
pub mod limits;
pub mod error;
pub mod ids;
mod nearest;
pub mod glob;
#[cfg(test)]
mod glob_tests;
pub mod prefixes;
pub mod pattern;

// Records, and their bytes.
pub mod record;
pub mod codec;
mod fields;

// Topics and their partitions.
pub mod catalog;
pub mod partitioner;
pub mod producers;
pub mod partition;
pub mod fanout;

// The shard, and the records in which views keep their state there.
pub mod shard;
pub mod state;

// Views of topics.
pub mod queue;
pub mod groups;
pub mod transactions;
pub mod streams;
pub mod cache;

// Traces of records.
pub mod trace;

// The nodes of a cluster, and the sites of a mesh.
pub mod cluster;
pub mod mesh;

// Authentication and authorization.
pub mod security;

#[cfg(test)]
mod script;

pub use catalog::{OwnSettings, SettingsChange, Storage, TopicSettings};
pub use codec::Codec;
pub use error::{Error, ErrorKind, Result, RetryClass};
pub use fanout::{Delivery, Fanout, Feed, FeedLimits, Offer, Overflow};
pub use ids::{Offset, PartitionId, SourceId, Start, TopicId, TopicName, TopicPartition};
pub use nearest::{nearest, nearest_resource};
pub use partition::{Partition, Placed};
pub use pattern::{Missing, Pattern, Rule};
pub use producers::Isolation;
pub use record::{
    Acks, BatchBuilder, Decision, DraftBatch, Marker, ONLY_EPOCH, Producer, Record, RecordBatch, RecordView, Records,
};
