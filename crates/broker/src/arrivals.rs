//! Arrival times after a change of the leader: the clocks of two nodes differ, and the times of a log do not step back
//! by that.

use std::sync::Arc;

use crate::core::Core;
use crate::partition::PartitionCell;
use crate::topic::Topic;

/// Bytes of a read of one batch: it returns a batch of any size.
const ONE_BATCH: usize = 1;

impl Core {
    /// Notes the newest arrival time in each partition on disk whose topic sets them: later records arrive no earlier.
    /// Without a leadership this has no effect.
    pub async fn restore_arrivals(&self) {
        if self.leadership().is_none() {
            return;
        }
        let has_arrivals = |topic: &&Arc<Topic>| topic.stored_as.is_some() && topic.settings.arrival_times;
        let topics: Vec<_> = self.topics.read().values().filter(has_arrivals).cloned().collect();
        for cell in topics.iter().flat_map(|topic| topic.partitions()) {
            if let Some(arrival_ms) = newest_arrival(cell).await {
                cell.arrive_from(arrival_ms);
            }
        }
    }
}

/// Returns the arrival time of the newest batch. A log that cannot be read has none: it refuses its readers.
async fn newest_arrival(cell: &Arc<PartitionCell>) -> Option<i64> {
    let last = cell.extent().end.checked_sub(1)?;
    let (_, batches) = cell.read(last, ONE_BATCH).await.ok()?;
    batches.last()?.arrival_ms()
}
