//! Transactions of producers in a partition.

use engine::producers::ProducerStatus;
use engine::{Error, ErrorKind, Result};

use super::PartitionCell;

impl PartitionCell {
    /// Allows a producer's transaction to write to this partition. Called by the transaction coordinator.
    pub(crate) fn begin(&self, id: i64, epoch: i16) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        state.check_changes()?;
        state.log.check_served()?;
        if !state.log.takes_transactions() {
            let message = format!("topic {} is stored in SQLite, which does not support transactions", self.topic);
            return Err(Error::new(ErrorKind::Unsupported, format!("{message}; use storage disk")));
        }
        state.order.begin(id, epoch)
    }

    /// Refuses further batches of a producer's transaction. Returns the timestamp of the marker if the transaction
    /// needs one.
    pub(crate) fn close(&self, id: i64) -> Result<Option<i64>> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Ok(None);
        }
        state.log.check_served()?;
        Ok(state.order.close(id))
    }

    pub(crate) fn producers(&self) -> Vec<ProducerStatus> {
        self.state.lock().order.producers().status()
    }
}
