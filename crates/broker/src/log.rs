//! The log of one partition, and reads of it that may need a file.

use std::sync::Arc;

use engine::producers::{Aborted, Producers};
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use storage::{Commits, LogExtent, MemoryLog, Owner, PartitionLog, Read};

/// Log of one partition. The lock of the partition orders all calls, so a log in memory has no lock of its own.
pub(crate) enum Log {
    Memory(MemoryLog),
    /// A log that other threads use, too: it commits and writes in the background.
    Shared(Arc<dyn PartitionLog>),
}

impl Log {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(MemoryLog::default())
    }

    /// Returns the log if it can be used without the lock of the partition, for calls that may block.
    pub(crate) fn shared(&self) -> Option<Arc<dyn PartitionLog>> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(log) => Some(log.clone()),
        }
    }

    /// Returns the offset that the next record gets, and the state of the producers of the committed batches.
    pub(crate) fn resume(&self) -> (Offset, Producers) {
        match self {
            Self::Memory(log) => (log.end(), log.producers().clone()),
            Self::Shared(log) => (log.end(), log.producers()),
        }
    }

    /// Returns the offset of the oldest readable record, the offset after the newest, and the bytes between them.
    pub(crate) fn extent(&self) -> LogExtent {
        match self {
            Self::Memory(log) => LogExtent { start: log.start(), end: log.end(), bytes: log.bytes() as u64 },
            Self::Shared(log) => log.extent(),
        }
    }

    pub(crate) fn stable_end(&self) -> Offset {
        match self {
            Self::Memory(log) => log.producers().first_open().unwrap_or(log.end()),
            Self::Shared(log) => log.stable_end(),
        }
    }

    pub(crate) fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted> {
        match self {
            Self::Memory(log) => log.producers().aborted(from, to),
            Self::Shared(log) => log.aborted(from, to),
        }
    }

    pub(crate) fn forget_aborted(&mut self) -> Offset {
        match self {
            Self::Memory(log) => log.forget_aborted(),
            Self::Shared(log) => log.forget_aborted(),
        }
    }

    /// Returns an error if the partition cannot be served because its contents are unknown.
    pub(crate) fn check_served(&self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Shared(log) => log.refused().map_or(Ok(()), Err),
        }
    }

    /// Returns `true` if the log survives a restart, and commits later than it appends.
    pub(crate) fn is_durable(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Shared(log) => log.is_durable(),
        }
    }

    pub(crate) fn takes_transactions(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Shared(log) => log.takes_transactions(),
        }
    }

    pub(crate) fn check_room(&self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Shared(log) => log.check_room(),
        }
    }

    pub(crate) fn admit(&self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Shared(log) => log.admit(),
        }
    }

    pub(crate) fn broken(&self) -> Option<Error> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(log) => log.broken(),
        }
    }

    /// Returns the bytes that all batches take of the memory for logs.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Memory(log) => log.bytes(),
            Self::Shared(log) => log.memory_bytes(),
        }
    }

    /// Returns the bytes that a batch of this length would take of the memory for logs.
    pub(crate) fn memory_cost(&self, batch_bytes: usize) -> usize {
        match self {
            Self::Memory(_) => MemoryLog::cost(batch_bytes),
            Self::Shared(log) => log.memory_cost(batch_bytes),
        }
    }

    /// Appends a batch. A log that commits later notifies the owner.
    pub(crate) fn append(
        &mut self,
        batch: RecordBatch,
        now_ms: u64,
        owner: impl FnOnce() -> Arc<dyn Owner>,
    ) -> Result<Commits> {
        match self {
            Self::Memory(log) => {
                log.append(batch, now_ms);
                Ok(Commits::Now)
            }
            Self::Shared(log) => log.append(batch, now_ms, owner()),
        }
    }

    pub(crate) fn commit(&self, mark: Offset) -> Vec<RecordBatch> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Shared(log) => log.commit(mark),
        }
    }

    /// Deletes the records before an offset. A log that commits later notifies the owner.
    pub(crate) fn set_start(&mut self, start: Offset, owner: impl FnOnce() -> Arc<dyn Owner>) -> Result<Commits> {
        match self {
            Self::Memory(log) => {
                log.set_start(start);
                Ok(Commits::Now)
            }
            Self::Shared(log) => log.clone().set_start(start, owner()),
        }
    }

    /// Returns the start that retention allows, for a log that trims as it grows.
    pub(crate) fn retain_now(
        &self,
        retention_bytes: u64,
        retention_ms: u64,
        needed_from: Offset,
        now_ms: u64,
    ) -> Option<Offset> {
        match self {
            Self::Memory(log) => log.retain(retention_bytes, retention_ms, needed_from, now_ms),
            Self::Shared(_) => None,
        }
    }

    /// Marks a record as no longer needed.
    pub(crate) fn forget(&mut self, offset: Offset) {
        match self {
            Self::Memory(log) => drop(log.forget(offset)),
            Self::Shared(log) => log.forget(offset),
        }
    }

    /// Marks all records before an offset as no longer needed.
    pub(crate) fn forget_before(&mut self, offset: Offset) {
        match self {
            Self::Memory(log) => drop(log.set_start(offset)),
            Self::Shared(log) => log.forget_before(offset),
        }
    }

    /// Returns the batch that holds an offset, if the log is only in memory.
    pub(crate) fn find(&self, offset: Offset) -> Option<&RecordBatch> {
        match self {
            Self::Memory(log) => log.find(offset),
            Self::Shared(_) => None,
        }
    }

    pub(crate) fn read(&self, from: Offset, bytes_max: usize) -> Result<Read> {
        match self {
            Self::Memory(log) => log.read(from, bytes_max).map(Read::Batches),
            Self::Shared(log) => log.clone().read(from, bytes_max),
        }
    }

    /// Returns the first offset at or after this time, for a log that needs no file for it.
    pub(crate) fn offset_for_time_now(&self, timestamp_ms: i64) -> Option<Offset> {
        match self {
            Self::Memory(log) => Some(log.offset_for_time(timestamp_ms)),
            Self::Shared(_) => None,
        }
    }
}

/// Completes a read. If the batches are in a file, other tasks of this thread continue to run in the meantime.
pub(crate) async fn batches_of(read: Read) -> Result<Vec<RecordBatch>> {
    let cold = match read {
        Read::Batches(batches) => return Ok(batches),
        Read::Cold(cold) => cold,
    };
    if let Some(batches) = cold.run_if_cached() {
        return batches;
    }
    let read = tokio::task::spawn_blocking(move || cold.run());
    read.await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Internal, format!("the read of a file was interrupted ({error}): retry")))
    })
}
