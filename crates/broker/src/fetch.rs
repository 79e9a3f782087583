//! Reading a partition by offset.

use std::time::Duration;

use engine::{Offset, PartitionId, RecordBatch, Result};

use crate::broker::Broker;

/// Bytes that one fetch returns at most, beyond its first batch.
const FETCH_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Debug)]
pub struct Fetched {
    pub start: Offset,
    pub end: Offset,
    /// The first batch holds the offset, and may begin before it.
    pub batches: Vec<RecordBatch>,
}

impl Broker {
    /// Batches from an offset on. At the end of the log it waits up to `wait` for the next append.
    pub async fn fetch(
        &self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<Fetched> {
        let cell = self.topic(topic)?.partition(partition)?;
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let appended = cell.appended();
            tokio::pin!(appended);
            appended.as_mut().enable();
            let (extent, batches) = cell.read(offset, bytes_max.min(FETCH_BYTES_MAX)).await?;
            let is_over = wait.is_zero() || tokio::time::Instant::now() >= deadline;
            if !batches.is_empty() || is_over {
                return Ok(Fetched { start: extent.start, end: extent.end, batches });
            }
            if tokio::time::timeout_at(deadline, appended).await.is_err() {
                let (extent, batches) = cell.read(offset, bytes_max.min(FETCH_BYTES_MAX)).await?;
                return Ok(Fetched { start: extent.start, end: extent.end, batches });
            }
        }
    }

    /// The offset of the first batch that has a record at or after this time, ms since 1970.
    pub fn offset_for_time(&self, topic: &str, partition: PartitionId, timestamp_ms: i64) -> Result<Offset> {
        self.topic(topic)?.partition(partition)?.offset_for_time(timestamp_ms)
    }
}
