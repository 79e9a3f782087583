//! The log of one partition, wherever its bytes live.

use std::sync::Arc;

use engine::{Offset, RecordBatch, Result};
use storage::{ColdRead, DiskExtent, DurableLog, MemoryLog};

pub(crate) enum Log {
    Memory(MemoryLog),
    /// In segments behind the journal, or in SQLite.
    Disk(Arc<dyn DurableLog>),
}

/// What a read found.
pub(crate) enum Read {
    Batches(Vec<RecordBatch>),
    /// It has to be fetched from a file.
    Cold(ColdRead),
}

impl Log {
    /// The offset of the oldest record that can be read, and the one after the newest, with the bytes between.
    pub(crate) fn extent(&self) -> DiskExtent {
        match self {
            Self::Memory(log) => DiskExtent { start: log.start(), end: log.end(), bytes: log.bytes() as u64 },
            Self::Disk(log) => log.extent(),
        }
    }

    /// Refuses where the partition cannot be served: what it has nobody knows then.
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
    /// The batches; where they are in a file, other tasks of this thread go on meanwhile.
    pub(crate) async fn batches(self) -> Result<Vec<RecordBatch>> {
        match self {
            Self::Batches(batches) => Ok(batches),
            Self::Cold(cold) => match cold.run_if_cached() {
                Some(batches) => batches,
                None => Self::read_aside(cold).await,
            },
        }
    }

    async fn read_aside(cold: ColdRead) -> Result<Vec<RecordBatch>> {
        tokio::task::spawn_blocking(move || cold.run()).await.unwrap_or_else(|error| {
            Err(engine::Error::new(engine::ErrorKind::Internal, format!("a read of a file failed: {error}")))
        })
    }
}
