//! Leader epochs in a log: where each ends.
//!
//! Every batch has the epoch of its leader in its header, and epochs never fall along a log. So the end of an epoch is
//! found by bisection, and no table of epochs has to be kept, replicated and trimmed with the log.

use std::sync::Arc;

use engine::{ONLY_EPOCH, Offset, PartitionId, RecordBatch, Result};

use crate::core::Core;
use crate::partition::PartitionCell;

/// Bytes of a read of one batch: it returns a batch of any size.
const ONE_BATCH: usize = 1;

impl Core {
    /// Returns the largest leader epoch in a partition that is not larger than `epoch`, and the offset at which it
    /// ends: the start of the next epoch, or the end of the log. Without records of such an epoch, it is `epoch`, which
    /// ends where the log begins. `None` if the epoch is later than the current one.
    pub async fn end_of_epoch(&self, topic: &str, partition: PartitionId, epoch: i32) -> Result<Option<(i32, Offset)>> {
        let cell = self.topic(topic)?.partition(partition)?;
        let extent = cell.extent();
        let current = self.leader_epoch();
        if epoch > current {
            return Ok(None);
        }
        // A broker that is alone has written everything in its only epoch.
        if epoch == current || current == ONLY_EPOCH {
            return Ok(Some((current, extent.end)));
        }
        let Some(last) = last_of(&cell, extent.start, extent.end).await? else {
            return Ok(Some((epoch, extent.end)));
        };
        if last.leader_epoch() <= epoch {
            return Ok(Some((last.leader_epoch(), extent.end)));
        }
        // Every batch before `low` has an epoch up to the wanted one, and every batch from `high` on a later one, of
        // which the first known one begins at `end`.
        let mut found = epoch;
        let mut end = last.base_offset();
        let mut low = extent.start;
        let mut high = end;
        while low < high {
            let middle = low + (high - low) / 2;
            match batch_from(&cell, middle).await? {
                Some(batch) if batch.leader_epoch() <= epoch => {
                    found = batch.leader_epoch();
                    low = batch.next_offset();
                }
                Some(batch) => {
                    end = end.min(batch.base_offset());
                    // Compaction may have removed the batches between the middle and this one.
                    high = middle.min(end);
                }
                None => high = middle,
            }
        }
        Ok(Some((found, end.max(extent.start))))
    }

    /// Returns the leader epoch of the record at an offset: that of its batch, or the current one at the end of the
    /// log.
    pub async fn epoch_at(&self, topic: &str, partition: PartitionId, offset: Offset) -> Result<i32> {
        let current = self.leader_epoch();
        if current == ONLY_EPOCH {
            return Ok(current);
        }
        let cell = self.topic(topic)?.partition(partition)?;
        Ok(batch_from(&cell, offset).await?.map_or(current, |batch| batch.leader_epoch()))
    }
}

/// Returns the batch that holds an offset, or the next one if compaction has removed it; `None` at the end of the log.
async fn batch_from(cell: &Arc<PartitionCell>, offset: Offset) -> Result<Option<RecordBatch>> {
    let (_, batches) = cell.read(offset, ONE_BATCH).await?;
    Ok(batches.into_iter().find(|batch| batch.next_offset() > offset))
}

/// Returns the last batch of a log; `None` if it has none.
async fn last_of(cell: &Arc<PartitionCell>, start: Offset, end: Offset) -> Result<Option<RecordBatch>> {
    if start >= end {
        return Ok(None);
    }
    batch_from(cell, end - 1).await
}
