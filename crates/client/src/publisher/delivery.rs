//! What became of a record, for whoever wants to know.

use std::sync::{Arc, OnceLock};

use engine::{Error, Offset, PartitionId, Result};
use tokio::sync::Notify;
use wire::{Level, Published};

use super::lane::Outcome;

/// Where a record is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    pub partition: PartitionId,
    pub offset: Offset,
    /// What its acknowledgement promises.
    pub level: Level,
}

/// A record on its way. Dropping it changes nothing: the record goes its way.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(super) receipt: Arc<Receipt>,
    /// Its place in the batch.
    pub(super) index: u32,
}

/// What is told of one record.
pub(super) type Callback = Box<dyn FnOnce(Result<Delivered>) + Send>;

/// What came of a batch, once it is known.
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
    /// Waits until the record is acknowledged, or given up: no longer than the publisher's delivery timeout.
    pub async fn delivered(&self) -> Result<Delivered> {
        of_record(&self.receipt.outcome().await, self.index)
    }

    /// The outcome of its whole batch.
    pub(super) async fn outcome(&self) -> Outcome {
        self.receipt.outcome().await
    }
}

/// What the outcome of a batch means for one of its records.
pub(super) fn of_record(outcome: &Outcome, index: u32) -> Result<Delivered> {
    match outcome {
        Ok(Some(Published { partition, base_offset, level, .. })) => {
            Ok(Delivered { partition: *partition, offset: base_offset + Offset::from(index), level: *level })
        }
        Ok(None) => Err(Error::invalid("a publisher with acks none does not learn where its records are")),
        Err(error) => Err(error.clone()),
    }
}
