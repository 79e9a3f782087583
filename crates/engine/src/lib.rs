//! State machines of the broker: pure, without clock, socket, file or task.
//!
//! Time and identities come in as arguments and decisions go out as values, so that a script, a property test or a
//! simulation can drive them as well as a broker can. Read the modules in this order.

pub mod cache;
pub mod catalog;
pub mod codec;
pub mod error;
pub mod fanout;
mod fields;
pub mod groups;
pub mod ids;
pub mod limits;
mod nearest;
pub mod partition;
pub mod partitioner;
pub mod pattern;
pub mod producers;
pub mod queue;
pub mod record;
pub mod security;
pub mod shard;
pub mod state;
pub mod streams;
pub mod transactions;

#[cfg(test)]
mod script;

pub use catalog::{OwnSettings, SettingsChange, Storage, TopicSettings};
pub use codec::Codec;
pub use error::{Error, ErrorKind, Result, RetryClass};
pub use fanout::{Delivery, Fanout, Feed, FeedLimits, Offer, Overflow};
pub use ids::{Offset, PartitionId, SourceId, Start, TopicId, TopicName, TopicPartition};
pub use nearest::nearest;
pub use partition::{Partition, Placed};
pub use pattern::{Missing, Pattern, Rule};
pub use producers::Isolation;
pub use record::{
    Acks, BatchBuilder, Decision, DraftBatch, Marker, Producer, Record, RecordBatch, RecordView, Records,
};
