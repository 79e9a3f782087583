//! Interface of a partition's log, independent of its storage: in memory, in segments behind a journal, or in SQLite.

use std::sync::Arc;

use engine::producers::{Aborted, Producers};
use engine::{Error, Offset, RecordBatch, Result};

use crate::journal::Owner;

/// Log of one partition. An appended batch has its offsets immediately, and is readable when it is committed.
///
/// Its owner orders the calls that change it. Reads may come from any thread.
pub trait PartitionLog: Send + Sync {
    /// Returns the offset that the next record gets.
    fn end(&self) -> Offset;

    /// Returns the state of the producers of the committed batches.
    fn producers(&self) -> Producers;

    /// Returns the offset before which every transaction is durably committed or aborted. A crash may still undo the
    /// end of a transaction that is not on the disk yet.
    fn stable_end(&self) -> Offset;

    /// Returns durably aborted transactions that may have records between two offsets.
    fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted>;

    /// Forgets aborted transactions that have no stored record any more. Returns the offset before which all of them
    /// are forgotten.
    fn forget_aborted(&self) -> Offset;

    /// Returns the reason why this partition is not served, if it is not.
    fn refused(&self) -> Option<Error>;

    fn extent(&self) -> LogExtent;

    /// Appends a batch at this time, in milliseconds since 1970. If it commits later, its owner is notified; the mark
    /// is the offset after it.
    fn append(&self, batch: RecordBatch, now_ms: u64, owner: Arc<dyn Owner>) -> Result<Commits>;

    /// Drops the records from an offset on, which were appended and are not committed, and will not be: their log was
    /// given up. Fails with `invalid` if any of them is committed.
    fn truncate(&self, end: Offset) -> Result<()>;

    /// Commits all records before `mark`, which are durable. Returns the batches that become visible.
    fn commit(&self, mark: Offset) -> Vec<RecordBatch>;

    /// Returns the committed batch that holds an offset, for a log that is only in memory.
    fn find(&self, _: Offset) -> Option<RecordBatch> {
        None
    }

    /// Reads committed batches from the one that holds `from`, up to `bytes_max`, but at least one if one exists. Empty
    /// at the end.
    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read>;

    /// Returns the offset of the first committed batch with a record of this time or later; the end if no such batch
    /// exists. May block on a file.
    fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset>;

    /// Deletes the records before this offset. If that commits later, its owner is notified, and the records stay
    /// readable until then.
    fn set_start(self: Arc<Self>, start: Offset, owner: Arc<dyn Owner>) -> Result<Commits>;

    /// Returns the start offset that retention allows, if it is later than the current one. A limit of 0 means no
    /// limit. Records from the offset `needed_from` on stay in any case. May block on a file.
    fn retain(&self, retention_bytes: u64, retention_ms: u64, needed_from: Offset, now_ms: u64) -> Option<Offset>;

    /// Marks a committed record as no longer needed. It may be deleted at any later time; readers then skip it.
    fn forget(&self, offset: Offset);

    /// Marks all records before an offset as no longer needed. They may be deleted at any later time.
    fn forget_before(&self, _: Offset) {}

    /// Returns `true` if the log survives a restart.
    fn is_durable(&self) -> bool {
        true
    }

    /// Returns the bytes that all batches take of the memory for logs: 0 for a durable log.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Returns the bytes that a batch of this length would take of the memory for logs.
    fn memory_cost(&self, _: usize) -> usize {
        0
    }

    /// Refuses while an appended batch could not be written to its place, because the disk is full or broken. Unlike
    /// [`PartitionLog::admit`] it ignores the amount of pending data.
    fn check_room(&self) -> Result<()> {
        Ok(())
    }

    /// Refuses if too much data is pending already, or the disk is full. Callers that may append several batches
    /// together call it once: they can exceed the limit by these batches, never by more.
    fn admit(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the reason why nothing can be appended any more.
    fn broken(&self) -> Option<Error> {
        None
    }

    /// Returns `true` if appended batches become durable in one order with batches of the broker's own topics: a marker
    /// must not become durable before the decision that it is about.
    fn takes_transactions(&self) -> bool;
}

/// Time at which a change of a log is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    /// Immediately: the change is visible, and its owner is not notified.
    Now,
    /// Later: its owner is notified.
    Later,
}

/// Bounds of a partition at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogExtent {
    pub start: Offset,
    /// Offset after the last committed record.
    pub end: Offset,
    pub bytes: u64,
}

/// Result of a read.
pub enum Read {
    Batches(Vec<RecordBatch>),
    /// Batches in a file: [`ColdRead::run`] fetches them, and may block.
    Cold(Box<dyn ColdRead>),
}

/// Read of batches that are not in memory.
pub trait ColdRead: Send {
    /// Runs the read immediately, if it needs no waiting and little work. `None` otherwise.
    fn run_if_cached(&self) -> Option<Result<Vec<RecordBatch>>> {
        None
    }

    /// Runs the read. May block on a file.
    fn run(self: Box<Self>) -> Result<Vec<RecordBatch>>;
}
