//! The log of one partition, in memory or on disk.

use std::sync::Arc;

use engine::{Offset, RecordBatch, Result};
use storage::{ColdRead, DiskExtent, DurableLog, MemoryLog};

pub(crate) enum Log {
    Memory(MemoryLog),
    /// A log in segments with a journal in front of them, or in SQLite.
    Disk(Arc<dyn DurableLog>),
}

/// The result of a read.
pub(crate) enum Read {
    Batches(Vec<RecordBatch>),
    /// The batches have to be read from a file.
    Cold(Box<dyn ColdRead>),
}

impl Log {
    /// Returns the offset of the oldest readable record, the offset after the newest, and the bytes between them.
    pub(crate) fn extent(&self) -> DiskExtent {
        match self {
            Self::Memory(log) => DiskExtent { start: log.start(), end: log.end(), bytes: log.bytes() as u64 },
            Self::Disk(log) => log.extent(),
        }
    }

    /// Returns an error if the partition cannot be served because its contents are unknown.
    pub(crate) fn check_served(&self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Disk(log) => log.refused().map_or(Ok(()), Err),
        }
    }

    pub(crate) fn read(&self, from: Offset, bytes_max: usize) -> Result<Read> {
        match self {
            Self::Memory(log) => Ok(Read::Batches(log.read(from, bytes_max)?)),
            Self::Disk(log) => Ok(match log.clone().read(from, bytes_max)? {
                storage::Read::Batches(batches) => Read::Batches(batches),
                storage::Read::Cold(cold) => Read::Cold(cold),
            }),
        }
    }
}

impl Read {
    /// Returns the batches. If they are in a file, other tasks of this thread continue to run during the read.
    pub(crate) async fn batches(self) -> Result<Vec<RecordBatch>> {
        match self {
            Self::Batches(batches) => Ok(batches),
            Self::Cold(cold) => match cold.run_if_cached() {
                Some(batches) => batches,
                None => Self::read_aside(cold).await,
            },
        }
    }

    async fn read_aside(cold: Box<dyn ColdRead>) -> Result<Vec<RecordBatch>> {
        tokio::task::spawn_blocking(move || cold.run()).await.unwrap_or_else(|error| {
            Err(engine::Error::new(engine::ErrorKind::Internal, format!("a read of a file failed: {error}")))
        })
    }
}
