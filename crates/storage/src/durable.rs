//! Interface of a partition's log that survives a restart, independent of its storage.

use std::sync::Arc;

use engine::producers::{Aborted, Producers};
use engine::{Error, Offset, RecordBatch, Result};

use crate::journal::Owner;

/// Log of one partition. An appended batch has its offsets immediately, and is readable when it is committed.
pub trait DurableLog: Send + Sync {
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

    fn extent(&self) -> DiskExtent;

    /// Appends a batch. Its owner is notified when it is committed; the mark is the offset after it.
    fn append(&self, batch: RecordBatch, owner: Arc<dyn Owner>) -> Result<()>;

    /// Drops the records from an offset on, which were appended and are not committed, and will not be: their log was
    /// given up. Fails with `invalid` if any of them is committed.
    fn truncate(&self, end: Offset) -> Result<()>;

    /// Commits all records before `mark`, which are durable. Returns the batches that become visible.
    fn commit(&self, mark: Offset) -> Vec<RecordBatch>;

    /// Reads committed batches from the one that holds `from`, up to `bytes_max`, but at least one if one exists. Empty
    /// at the end.
    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read>;

    /// Returns the offset of the first committed batch with a record of this time or later; the end if no such batch
    /// exists. May block on a file.
    fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset>;

    /// Deletes records before this offset, as soon as the new start is durable.
    fn set_start(&self, start: Offset, owner: Arc<dyn Owner>) -> Result<()>;

    /// Returns the start offset that retention allows, if it is later than the current one. A limit of 0 means no
    /// limit. May block on a file.
    fn retain(&self, retention_bytes: u64, retention_ms: u64, now_ms: u64) -> Option<Offset>;

    /// Marks a committed record as no longer needed. It may be deleted at any later time; readers then skip it.
    fn forget(&self, offset: Offset);

    /// Refuses while an appended batch could not be written to its place, because the disk is full or broken. Unlike
    /// [`DurableLog::admit`] it ignores the amount of pending data.
    fn check_room(&self) -> Result<()> {
        Ok(())
    }

    /// Refuses if too much data is pending already, or the disk is full. Callers that may append several batches
    /// together call it once: they can exceed the limit by these batches, never by more.
    fn admit(&self) -> Result<()>;

    /// Returns the reason why nothing can be appended any more.
    fn broken(&self) -> Option<Error>;

    /// Returns `true` if appended batches become durable in one order with batches of the broker's own topics: a marker
    /// must not become durable before the decision that it is about.
    fn takes_transactions(&self) -> bool;
}

/// Bounds of a partition at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskExtent {
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
