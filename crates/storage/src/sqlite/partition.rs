//! Partition in the database: its newest batches are in memory, all committed batches in rows.
//!
//! ```text
//! start ............. recent from ............ committed ........ end
//!        in rows only             in rows and in memory      in memory
//! ```

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use engine::producers::{Aborted, Producers};
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use super::read::RowsRead;
use super::{Op, OpKind, Shared};
use crate::holes::{Forgotten, Gathered};
use crate::journal::Owner;
use crate::log::{Commits, LogExtent, PartitionLog, Read};

/// Memory cost of a batch in memory in addition to its bytes.
const ENTRY_BYTES: usize = 96;
/// Approximate maximum number of batches with a producer that a start has to read again for each partition.
const UNSAVED_MAX: u64 = 4096;

/// Partition with the row id `id`.
pub struct SqlitePartition {
    pub(super) id: i64,
    me: Weak<Self>,
    pub(super) shared: Arc<Shared>,
    pub(super) state: Mutex<State>,
}

/// State of the partition. Invariant: `start <= committed <= end`, and `recent` has every batch from `recent_from` to
/// `end`, except for those that were forgotten.
#[derive(Default)]
pub(super) struct State {
    start: Offset,
    recent_from: Offset,
    pub(super) committed: Offset,
    end: Offset,
    recent: VecDeque<Recent>,
    /// Producer state that results from all committed batches; `unsaved` counts the batches that no saved state
    /// includes.
    pub(super) producers: Producers,
    pub(super) unsaved: u64,
    /// Bytes of the rows, and the append time of the oldest.
    bytes: u64,
    oldest_ms: Option<u64>,
    /// Forgotten records that the writer has not removed yet: never more than there are records.
    pub(super) forgotten: Vec<Offset>,
    /// `true` if the writer was notified of them, or that producers have to be saved.
    pub(super) is_dirty: bool,
    refused: Option<Error>,
    is_deleted: bool,
}

struct Recent {
    batch: RecordBatch,
    forgotten: Option<Box<Forgotten>>,
}

/// Contents of the rows of a partition when it is opened.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) start: Offset,
    pub(super) end: Offset,
    pub(super) bytes: u64,
    pub(super) oldest_ms: Option<u64>,
    pub(super) producers: Producers,
    pub(super) unsaved: u64,
    pub(super) refused: Option<Error>,
}

/// Rows of a partition that a transaction removed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Removed {
    pub(super) bytes: u64,
    /// First offset that is in a row, and the append time of its batch; `None` if no row is left.
    pub(super) first: Option<(Offset, u64)>,
    /// Number of batches that the saved producer state now includes.
    pub(super) saved: u64,
}

impl SqlitePartition {
    pub(super) fn new(id: i64, shared: Arc<Shared>, found: Found) -> Arc<Self> {
        let state = State {
            start: found.start,
            recent_from: found.end,
            committed: found.end,
            end: found.end,
            producers: found.producers,
            unsaved: found.unsaved,
            bytes: found.bytes,
            oldest_ms: found.oldest_ms,
            refused: found.refused,
            ..State::default()
        };
        Arc::new_cyclic(|me| Self { id, me: me.clone(), shared, state: Mutex::new(state) })
    }

    fn me(&self) -> Arc<Self> {
        self.me.upgrade().expect("invariant: the caller has a reference")
    }

    /// Removes committed batches from memory up to an offset. Returns the freed bytes.
    pub(super) fn trim_recent(&self, to: Offset) -> u64 {
        let mut state = self.state.lock();
        let to = to.min(state.committed);
        let mut freed = 0;
        while let Some(recent) = state.recent.pop_front_if(|recent| recent.batch.next_offset() <= to) {
            freed += cost(&recent.batch);
        }
        state.recent_from = state.recent_from.max(to);
        if state.recent.capacity() > 1024 && state.recent.len() < state.recent.capacity() / 4 {
            let len = state.recent.len();
            state.recent.shrink_to(len * 2);
        }
        freed
    }

    /// Applies a committed start of the log. Its rows are removed later.
    pub(super) fn apply_start(&self, start: Offset) {
        let mut state = self.state.lock();
        state.start = state.start.max(start);
    }

    /// Applies a committed transaction that removed rows.
    pub(super) fn note_removed(&self, removed: &Removed) {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(removed.bytes);
        state.unsaved -= removed.saved;
        // Rows that became readable in the meantime come after all earlier ones.
        let first = removed.first.map_or(state.committed, |(first, _)| first);
        state.start = state.start.max(first.min(state.committed));
        state.oldest_ms = removed.first.map(|(_, appended_ms)| appended_ms);
    }

    /// Deletes the partition: nothing is appended or read any more.
    pub(super) fn delete(&self) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        let freed: u64 = state.recent.drain(..).map(|recent| cost(&recent.batch)).sum();
        state.forgotten = Vec::new();
        self.shared.held.fetch_sub(freed, Ordering::Relaxed);
    }

    /// Notifies the writer of work in addition to appends.
    fn note_dirty(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_dirty, true) {
            self.shared.put_dirty(self.me());
        }
    }

    /// Fails if committed records cannot be read from this offset on.
    pub(super) fn check_readable(&self, from: Offset) -> Result<()> {
        let state = self.state.lock();
        self.check(&state)?;
        state.check_readable(from)
    }

    fn check(&self, state: &State) -> Result<()> {
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        if state.is_deleted {
            return Err(Error::not_found("the partition was deleted"));
        }
        Ok(())
    }
}

impl PartitionLog for SqlitePartition {
    fn end(&self) -> Offset {
        self.state.lock().end
    }

    fn producers(&self) -> Producers {
        self.state.lock().producers.clone()
    }

    fn stable_end(&self) -> Offset {
        self.state.lock().committed
    }

    fn aborted(&self, _: Offset, _: Offset) -> Vec<Aborted> {
        Vec::new()
    }

    fn forget_aborted(&self) -> Offset {
        self.state.lock().start
    }

    fn refused(&self) -> Option<Error> {
        self.state.lock().refused.clone()
    }

    fn extent(&self) -> LogExtent {
        let state = self.state.lock();
        LogExtent { start: state.start, end: state.committed, bytes: state.bytes }
    }

    fn append(&self, batch: RecordBatch, _: u64, owner: Arc<dyn Owner>) -> Result<Commits> {
        let mut state = self.state.lock();
        self.check(&state)?;
        debug_assert_eq!(batch.base_offset(), state.end, "invariant: appends are contiguous");
        let kind = OpKind::Batch { partition: self.me(), batch: batch.clone() };
        self.shared.put(Op { kind, owner, mark: batch.next_offset() })?;
        self.shared.held.fetch_add(cost(&batch), Ordering::Relaxed);
        state.end = batch.next_offset();
        state.recent.push_back(Recent { batch, forgotten: None });
        Ok(Commits::Later)
    }

    fn truncate(&self, end: Offset) -> Result<()> {
        if end == self.end() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, "a topic in SQLite belongs to one node: its log is not cut"))
    }

    fn commit(&self, mark: Offset) -> Vec<RecordBatch> {
        let mut state = self.state.lock();
        if mark <= state.committed || state.is_deleted {
            return Vec::new();
        }
        let before = std::mem::replace(&mut state.committed, mark);
        let first = state.recent.partition_point(|recent| recent.batch.base_offset() < before);
        let visible = state.recent.iter().skip(first).take_while(|recent| recent.batch.base_offset() < mark);
        let batches: Vec<RecordBatch> = visible.map(|recent| recent.batch.clone()).collect();
        for batch in &batches {
            state.bytes += batch.len() as u64;
            if batch.producer().is_some() {
                state.producers.replay(batch);
                state.unsaved += 1;
            }
        }
        let now_ms = (self.shared.clock)();
        state.oldest_ms.get_or_insert(now_ms);
        if state.unsaved > UNSAVED_MAX {
            self.note_dirty(&mut state);
        }
        batches
    }

    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read> {
        let state = self.state.lock();
        self.check(&state)?;
        state.check_readable(from)?;
        let end = state.committed;
        if from == end {
            return Ok(Read::Batches(Vec::new()));
        }
        if from < state.recent_from {
            drop(state);
            return Ok(Read::Cold(Box::new(RowsRead { partition: self, from, end, bytes_max })));
        }
        let first = state.recent.partition_point(|recent| recent.batch.next_offset() <= from);
        let mut gathered = Gathered::new(from, bytes_max);
        for Recent { batch, .. } in state.recent.iter().skip(first) {
            if batch.base_offset() < end && !gathered.push(batch.clone()) {
                return Ok(Read::Batches(gathered.batches()));
            }
        }
        Ok(Read::Batches(gathered.reach(end)))
    }

    fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset> {
        let (start, end) = {
            let state = self.state.lock();
            self.check(&state)?;
            (state.start, state.committed)
        };
        let found = self.shared.readers.first_at(self.id, start, end, timestamp_ms)?;
        // If the topic was deleted in the meantime, a missing row has no meaning.
        self.check(&self.state.lock())?;
        Ok(found.map_or(end, |found| found.max(start)))
    }

    fn set_start(self: Arc<Self>, start: Offset, owner: Arc<dyn Owner>) -> Result<Commits> {
        let state = self.state.lock();
        self.check(&state)?;
        if start > state.committed {
            let message = format!("records up to {} may be deleted, not up to {start}", state.committed);
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if start < state.start {
            return Ok(Commits::Now);
        }
        // Its owner may be the same as that of batches, which all precede it.
        let kind = OpKind::Start { partition: self.clone(), start };
        self.shared.put(Op { kind, owner, mark: state.end })?;
        Ok(Commits::Later)
    }

    fn retain(&self, retention_bytes: u64, retention_ms: u64, needed_from: Offset, now_ms: u64) -> Option<Offset> {
        let is_over_time = |appended_ms: u64| retention_ms > 0 && appended_ms.saturating_add(retention_ms) <= now_ms;
        let (start, end, bytes) = {
            let state = self.state.lock();
            let is_over_bytes = retention_bytes > 0 && state.bytes > retention_bytes;
            if state.check_due().is_none_or(|oldest_ms| !is_over_bytes && !is_over_time(oldest_ms)) {
                return None;
            }
            (state.start, state.committed, state.bytes)
        };
        let mut left = bytes;
        let planned = self.shared.readers.first_to_stay(self.id, start, end, |row| {
            // The newest batch stays, unless its time limit has passed.
            let is_over_bytes = retention_bytes > 0 && left > retention_bytes && row.next < end;
            left = left.saturating_sub(row.bytes);
            // Rows before the start are already being removed.
            row.next > start && !is_over_bytes && !is_over_time(row.appended_ms)
        });
        match planned {
            Ok(planned) => Some(planned.min(needed_from)).filter(|planned| *planned > start),
            Err(error) => {
                tracing::debug!(%error, "retention is delayed");
                None
            }
        }
    }

    fn forget(&self, offset: Offset) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if offset < state.start || offset >= state.committed || state.is_deleted || state.refused.is_some() {
            return;
        }
        let at = state.recent.partition_point(|recent| recent.batch.next_offset() <= offset);
        if let Some(recent) = state.recent.get_mut(at)
            && recent.batch.base_offset() <= offset
        {
            let before = cost(&recent.batch);
            let after = match Forgotten::note(&mut recent.forgotten, &recent.batch, offset, state.start) {
                None => before,
                Some(Some(left)) => {
                    recent.batch = left;
                    cost(&recent.batch)
                }
                Some(None) => {
                    state.recent.remove(at);
                    0
                }
            };
            self.shared.held.fetch_sub(before - after, Ordering::Relaxed);
        }
        state.forgotten.push(offset);
        self.note_dirty(state);
    }

    fn admit(&self) -> Result<()> {
        self.shared.admit()
    }

    fn broken(&self) -> Option<Error> {
        self.shared.broken.get().cloned()
    }

    fn takes_transactions(&self) -> bool {
        false
    }
}

impl State {
    pub(super) fn start(&self) -> Offset {
        self.start
    }

    fn check_readable(&self, from: Offset) -> Result<()> {
        let start = self.start;
        let end = self.committed;
        if from < start || from > end {
            let message = format!("offset {from} is not in the log, which has {start} to {end}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        Ok(())
    }

    /// Returns the append time of the oldest row; `None` if retention has nothing to do.
    fn check_due(&self) -> Option<u64> {
        self.oldest_ms.filter(|_| !self.is_deleted && self.refused.is_none())
    }
}

pub(super) fn cost(batch: &RecordBatch) -> u64 {
    (batch.len() + ENTRY_BYTES) as u64
}
