//! The log of a shard: the seam between the partitions of a data directory and what makes their entries durable.
//!
//! All entries of a store go through one [`ShardLog::append`], and their owners are notified through [`Owner`] when
//! they are committed. Alone, the journal is the log, and an entry is committed when it is synced. Another log can be
//! put in front of it ([`Store::open_behind`](crate::Store::open_behind)): it decides when an entry is committed, for
//! example when a majority of nodes has synced it.
//!
//! [`Owner`]: crate::Owner

use engine::{Error, Result};

use crate::journal::{Entry, Journal};

/// Log of one shard, whose entries are committed in the order in which they were appended.
pub trait ShardLog: Send + Sync {
    /// Appends an entry after all others. Its owner is notified once: that the entry is committed, or that it failed.
    /// The calling thread must not notify it: callers hold locks that owners take.
    fn append(&self, entry: Entry) -> Result<()>;

    /// Refuses if too much data is queued already. Callers that may append several entries together call it once: they
    /// can exceed the limit by these entries, never by more.
    fn admit(&self) -> Result<()>;

    /// Returns the reason why nothing can be appended any more.
    fn broken(&self) -> Option<Error>;

    /// Returns `true` if this node alone commits an entry, by making it durable: in the journal, or in a checkpoint if
    /// the disk has no space for the journal.
    fn is_local(&self) -> bool {
        false
    }
}

impl ShardLog for Journal {
    fn append(&self, entry: Entry) -> Result<()> {
        Self::append(self, entry)
    }

    fn admit(&self) -> Result<()> {
        Self::admit(self)
    }

    fn broken(&self) -> Option<Error> {
        Self::broken(self)
    }

    fn is_local(&self) -> bool {
        true
    }
}
