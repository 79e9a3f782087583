//! Applying committed entries of a shard's log: what recovery does with its own journal, and a follower with the log of
//! its leader.
//!
//! An entry says what happened, not what was requested, so applying it depends on no clock and no setting of the node.
//! Applying an entry a second time has no effect.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine::catalog::Change;
use engine::{Error, Offset, RecordBatch, Result};

use crate::journal::EntryKind;
use crate::log::PartitionLog;
use crate::partition::DiskPartition;
use crate::state::State;

impl State {
    pub(crate) fn apply_change(&mut self, change: &Change) -> Result<()> {
        if let Change::Delete { id } = change
            && self.catalog.topics.contains_key(id)
        {
            self.forget(*id);
        }
        if let Change::Grow { id, partitions } = change
            && self.catalog.topics.get(id).is_some_and(|topic| topic.settings.partitions >= *partitions)
        {
            return Ok(());
        }
        self.catalog.apply(change);
        self.note_ids(change);
        if let Change::Create { id, .. } = change
            && self.deleted.contains(id)
        {
            // Only its used id remains.
            self.catalog.apply(&Change::Delete { id: *id });
        }
        match change {
            Change::Create { id, .. } | Change::Grow { id, .. } => {
                let opened = self.open_partitions(*id);
                let mut served = opened.iter().filter(|partition| partition.refused().is_none());
                served.try_for_each(|partition| partition.settle())
            }
            Change::Alter { id, .. } => {
                self.set_segment_limits(*id);
                Ok(())
            }
            Change::Delete { .. } | Change::Producers { .. } => Ok(()),
        }
    }

    /// Applies deletions that are appended and not committed yet, of these topics and of records, for a checkpoint that
    /// makes them durable. Returns `false` if there are none.
    pub(crate) fn apply_deletions_due(&mut self, ids: &[u32]) -> Result<bool> {
        for id in ids {
            self.apply_change(&Change::Delete { id: *id })?;
        }
        let starts = self.partitions.values().filter(|partition| partition.apply_start_due()).count();
        Ok(!ids.is_empty() || starts > 0)
    }

    /// Applies an entry to its partition, which is served.
    pub(crate) fn apply_to(
        &self,
        partition: &DiskPartition,
        kind: EntryKind,
        body: &[u8],
        clock: fn() -> u64,
    ) -> Result<()> {
        match kind {
            EntryKind::Batch => partition.replay(RecordBatch::parse(Bytes::copy_from_slice(body))?),
            _ => partition.apply_start(start_of(body)?),
        }
        // Recovered batches do not all have to be in memory at the same time.
        if self.shared.tails.held.load(Ordering::Relaxed) > self.settings.unflushed_bytes_max {
            for partition in self.partitions.values() {
                partition.flush(usize::MAX, clock())?;
                partition.trim_tail(u64::MAX);
            }
        }
        Ok(())
    }
}

pub(crate) fn start_of(body: &[u8]) -> Result<Offset> {
    let start = body
        .try_into()
        .map_err(|error| Error::malformed(format!("a start has 8 bytes, not {}: {error}", body.len())))?;
    Ok(u64::from_le_bytes(start))
}
