//! Settings of one publisher: its builder collects them, its ledger follows them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::{Acks, Codec, PartitionId, Record};

/// Choice of the partition of a record.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// Partition of the record's key, computed as Kafka's clients do. Records without a key stay in one partition until
    /// a batch has gathered, and then move to another.
    #[default]
    Key,
    /// Partition that ignores keys: all records are treated as records without one.
    Sticky,
    /// Partition that this function returns, given the record and the number of partitions.
    Custom(Arc<ChoosePartition>),
}

/// Function that returns the partition of a record, given the number of partitions.
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

/// Settings of one publisher.
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
