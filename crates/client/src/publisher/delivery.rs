//! Outcome of a record's delivery.

use std::sync::{Arc, OnceLock};

use engine::{Error, Offset, PartitionId, Result};
use tokio::sync::Notify;
use wire::{Level, Published};

use super::lane::Outcome;

/// Position of a delivered record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Partition that holds the record.
    pub partition: PartitionId,
    /// Offset of the record in its partition.
    pub offset: Offset,
    /// Guarantee that the acknowledgement gives.
    pub level: Level,
}

/// Record in flight. Dropping this value does not cancel the record.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(super) receipt: Arc<Receipt>,
    /// Index of the record in its batch.
    pub(super) index: u32,
}

/// Function that receives the outcome of one record.
pub(super) type Callback = Box<dyn FnOnce(Result<Delivered>) + Send>;

/// Outcome of a batch, once it is known.
#[derive(Debug, Default)]
pub(super) struct Receipt {
    outcome: OnceLock<Outcome>,
    known: Notify,
}

impl Receipt {
    pub fn settle(&self, outcome: Outcome) {
        if self.outcome.set(outcome).is_ok() {
            self.known.notify_waiters();
        }
    }

    pub async fn outcome(&self) -> Outcome {
        loop {
            let known = self.known.notified();
            tokio::pin!(known);
            known.as_mut().enable();
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            known.await;
        }
    }
}

impl Delivery {
    /// Waits until the record is acknowledged or has failed, at most for the publisher's delivery timeout.
    pub async fn delivered(&self) -> Result<Delivered> {
        of_record(&self.receipt.outcome().await, self.index)
    }

    /// Returns the outcome of the whole batch.
    pub(super) async fn outcome(&self) -> Outcome {
        self.receipt.outcome().await
    }
}

/// Returns the outcome of one record, given the outcome of its batch.
pub(super) fn of_record(outcome: &Outcome, index: u32) -> Result<Delivered> {
    match outcome {
        Ok(Some(Published { partition, base_offset, level, .. })) => {
            Ok(Delivered { partition: *partition, offset: base_offset + Offset::from(index), level: *level })
        }
        Ok(None) => Err(Error::invalid("a publisher with acks none receives no offsets")),
        Err(error) => Err(error.clone()),
    }
}
