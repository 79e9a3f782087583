//! How one publisher works: what its builder collects and its ledger follows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::{Acks, Codec, PartitionId, Record};

/// Which partition a record goes to.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// That of its key, as Kafka's clients compute it; records without one stay together until a batch has
    /// gathered, then they go elsewhere.
    #[default]
    Key,
    /// Keys do not count: all records do as those without one.
    Sticky,
    /// The partition for a record, given the number of partitions.
    Custom(Arc<ChoosePartition>),
}

/// The partition of a record among so many.
pub type ChoosePartition = dyn Fn(&Record, u32) -> PartitionId + Send + Sync;

impl Partitioner {
    pub(super) fn ignores_keys(&self) -> bool {
        matches!(self, Self::Sticky)
    }
}

impl fmt::Debug for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "Key",
            Self::Sticky => "Sticky",
            Self::Custom(_) => "Custom",
        })
    }
}

/// How a publisher works.
pub(super) struct Settings {
    pub topic: Arc<str>,
    pub acks: Acks,
    pub partition: Option<PartitionId>,
    pub partitioner: Partitioner,
    pub codec: Codec,
    pub batch_bytes: usize,
    pub linger: Duration,
    pub buffer_bytes: usize,
    pub batches_in_flight_max: usize,
    pub delivery_timeout: Duration,
}
