//! The log of one partition, and reads of it that may need a file.

use std::sync::Arc;

use engine::{Error, ErrorKind, RecordBatch, Result};
use storage::{PartitionLog, Read};

/// Log of one partition, in memory or on disk.
pub(crate) type Log = Arc<dyn PartitionLog>;

/// Returns an error if the partition cannot be served because its contents are unknown.
pub(crate) fn check_served(log: &Log) -> Result<()> {
    log.refused().map_or(Ok(()), Err)
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
    read.await.unwrap_or_else(|error| Err(Error::new(ErrorKind::Internal, format!("a read of a file failed: {error}"))))
}
