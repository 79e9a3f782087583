//! What the log of a partition can do that outlives its broker, in whatever way it is kept.

use std::sync::Arc;

use engine::producers::{Aborted, Producers};
use engine::{Error, Offset, RecordBatch, Result};

use crate::journal::Owner;
use crate::partition::SegmentRead;
use crate::sqlite::RowsRead;

/// The log of one partition. What is appended has its place at once, and is readable when it is committed.
pub trait DurableLog: Send + Sync {
    /// The offset that the next record gets.
    fn end(&self) -> Offset;

    /// What is known of those who wrote the committed batches.
    fn producers(&self) -> Producers;

    /// What is before this offset was committed or aborted for good, and that lasts: a crash may still undo an end of a
    /// transaction that is not on the disk yet.
    fn stable_end(&self) -> Offset;

    /// Transactions whose abort lasts and that may have records from an offset up to another.
    fn aborted(&self, from: Offset, to: Offset) -> Vec<Aborted>;

    /// Forgets aborted transactions of which no record is there. Returns the offset before which all of them are
    /// forgotten.
    fn forget_aborted(&self) -> Offset;

    /// Why it is not served, if it is not.
    fn refused(&self) -> Option<Error>;

    fn extent(&self) -> DiskExtent;

    /// Puts a batch behind all others. Its owner hears when it is committed; the mark is the offset after it.
    fn append(&self, batch: RecordBatch, owner: Arc<dyn Owner>) -> Result<()>;

    /// All before this offset lasts. Returns what has become visible by that.
    fn commit(&self, mark: Offset) -> Vec<RecordBatch>;

    /// Committed batches from the one that holds `from`, up to `bytes_max`, at least one where there is one. Empty
    /// at the end.
    fn read(self: Arc<Self>, from: Offset, bytes_max: usize) -> Result<Read>;

    /// The offset of the first committed batch with a record of this time or later; the end where there is none.
    /// May block on a file.
    fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset>;

    /// Records before this offset are gone, as soon as that lasts.
    fn set_start(&self, start: Offset, owner: Arc<dyn Owner>) -> Result<()>;

    /// Where retention lets the partition begin. 0 is no limit. May block on a file.
    fn retain(&self, retention_bytes: u64, retention_ms: u64, now_ms: u64) -> Option<Offset>;

    /// Nobody needs a committed record any more. It may go, and readers go on behind it; nothing says when.
    fn forget(&self, offset: Offset);

    /// Refuses while what is appended could not be written to its place, because the disk is full or broken. Unlike
    /// [`DurableLog::admit`] it does not ask how much waits.
    fn check_room(&self) -> Result<()> {
        Ok(())
    }

    /// Refuses where too much waits already, or the disk is full. Callers that may append several batches at once ask
    /// once: they can overshoot by what they append, never by more.
    fn admit(&self) -> Result<()>;

    /// Why nothing can be appended any more.
    fn broken(&self) -> Option<Error>;

    /// Whether what is appended here lasts in one order with what is appended to the broker's own topics: a marker must
    /// not last before the decision that it is about.
    fn takes_transactions(&self) -> bool;
}

/// The bounds of a partition at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskExtent {
    pub start: Offset,
    /// The offset after the last committed record.
    pub end: Offset,
    pub bytes: u64,
}

/// What a read found.
pub enum Read {
    Batches(Vec<RecordBatch>),
    /// It is in a file: [`ColdRead::run`] fetches it, and may block.
    Cold(ColdRead),
}

/// A read of what is not in memory.
pub enum ColdRead {
    Segments(SegmentRead),
    Rows(RowsRead),
}

impl ColdRead {
    /// The same at once, if none of it has to be waited for and it is not much work.
    pub fn run_if_cached(&self) -> Option<Result<Vec<RecordBatch>>> {
        match self {
            Self::Segments(read) => read.run_if_cached(),
            Self::Rows(_) => None,
        }
    }

    pub fn run(self) -> Result<Vec<RecordBatch>> {
        match self {
            Self::Segments(read) => read.run(),
            Self::Rows(read) => read.run(),
        }
    }
}
