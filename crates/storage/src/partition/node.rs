//! Partition of a node of a cluster: it takes what the log of the cluster committed, drops what was not, and can be
//! replaced by the records of another node.

use std::sync::atomic::Ordering;

use bytes::BytesMut;
use engine::producers::Producers;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};

use super::{DiskPartition, State, cost};
use crate::log::PartitionLog;
use crate::store::manifest::PartitionExtent;

impl DiskPartition {
    /// Appends a committed batch. One that is already in the log has no effect.
    pub(crate) fn take(&self, batch: RecordBatch) -> Result<()> {
        let is_first = self.begins_before(&batch) && self.is_empty();
        let mut state = self.state.lock();
        if state.is_deleted || batch.next_offset() <= state.committed {
            return Ok(());
        }
        self.check(&state)?;
        if is_first && state.committed == state.end {
            let base = batch.base_offset();
            (state.flushed, state.committed, state.end) = (base, base, base);
        }
        if batch.base_offset() != state.end || state.committed != state.end {
            let State { committed, end, .. } = *state;
            let message = format!(
                "{} has committed records up to {committed} and others up to {end}: the records {} to {} cannot follow",
                self.name(),
                batch.base_offset(),
                batch.next_offset()
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        state.note(&batch);
        state.unflushed_bytes += batch.len() as u64;
        let bytes = cost(&batch);
        self.hold(&mut state, batch);
        state.committed = state.end;
        state.changes += 1;
        // Counted before another thread can flush it.
        self.shared.committed(bytes);
        Ok(())
    }

    /// Returns `true` if a batch begins before the end of the log, and ends after it. If the log is empty, the first
    /// records of the batch are deleted.
    fn begins_before(&self, batch: &RecordBatch) -> bool {
        let end = self.state.lock().end;
        batch.base_offset() < end && end < batch.next_offset()
    }

    fn is_empty(&self) -> bool {
        let segments = self.segments.lock();
        segments.is_empty() && self.state.lock().tail.is_empty()
    }

    fn name(&self) -> String {
        format!("partition {} of the topic with the id {}", self.stream & u64::from(u32::MAX), self.stream >> 32)
    }

    /// Drops records and a start that are appended and not committed.
    pub(crate) fn depose(&self) -> Result<()> {
        let committed = {
            let mut state = self.state.lock();
            state.start_due = 0;
            state.committed
        };
        match self.truncate(committed) {
            // It was deleted in the meantime.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            cut => cut,
        }
    }

    /// Returns the extent of the committed records, and what is known about them.
    pub(crate) fn committed_extent(&self) -> PartitionExtent {
        let state = self.state.lock();
        let mut producers = BytesMut::new();
        if !state.producers.is_empty() {
            state.producers.encode(&mut producers);
        }
        PartitionExtent {
            start: state.start,
            end: state.committed,
            compacted: state.compacted,
            producers: producers.freeze(),
            producers_end: state.producers_end,
        }
    }

    /// Returns the end of the log, and `true` if records may be missing in it that another node has at this extent: it
    /// has deleted them, or compacted them, together with the records without a value that replaced them; or a segment
    /// is damaged here.
    pub(crate) fn lacks(&self, other: &PartitionExtent) -> (Offset, bool) {
        let state = self.state.lock();
        (state.end, other.is_beyond(state.end) || (state.damage.is_some() && !state.is_replaced))
    }

    /// Begins to replace all records by those of another node with this extent. A checkpoint keeps the old ones until
    /// [`DiskPartition::end_replacing`].
    pub(crate) fn begin_replacing(&self, other: &PartitionExtent) -> Result<()> {
        let producers = other.decode_producers()?;
        let mut segments = self.segments.lock();
        let mut state = self.state.lock();
        self.check(&state)?;
        segments.start_over();
        self.drop_tail(&mut state);
        let State { changes, changes_kept, .. } = *state;
        let damage = state.damage.take();
        *state = State {
            start: other.start,
            flushed: other.start,
            committed: other.start,
            end: other.start,
            producers,
            producers_end: other.producers_end,
            compacted: other.compacted,
            is_replaced: true,
            damage,
            changes: changes + 1,
            changes_kept,
            ..State::default()
        };
        Ok(())
    }

    /// Lets the next checkpoint have the new records.
    pub(crate) fn end_replacing(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_replaced) {
            state.damage = None;
        }
    }

    /// Removes all batches from the tail, and from what is counted.
    pub(super) fn drop_tail(&self, state: &mut State) {
        let unflushed = state.flushed..state.committed;
        let mut held_bytes = 0;
        let mut unflushed_bytes = 0;
        for held in state.tail.drain(..) {
            held_bytes += cost(&held.batch);
            unflushed_bytes += if unflushed.contains(&held.batch.base_offset()) { cost(&held.batch) } else { 0 };
        }
        state.unflushed_bytes = 0;
        self.shared.tails.held.fetch_sub(held_bytes, Ordering::Relaxed);
        self.shared.tails.unflushed.fetch_sub(unflushed_bytes, Ordering::Relaxed);
    }
}

impl PartitionExtent {
    /// Returns `true` if a copy that ends at an offset cannot be continued up to this extent, but has to be replaced:
    /// records after it are deleted, or compacted together with the records without a value that replaced its own.
    pub fn is_beyond(&self, end: Offset) -> bool {
        end < self.start.max(self.compacted.to)
    }

    pub(crate) fn decode_producers(&self) -> Result<Producers> {
        if self.producers.is_empty() { Ok(Producers::default()) } else { Producers::decode(self.producers.clone()) }
    }
}
