//! The log of a shard: the seam between the partitions of a data directory and what makes their entries durable.
//!
//! All entries of a store go through one [`ShardLog::append`], and their owners are notified through [`Owner`] when
//! they are committed. Alone, the journal is the log, and an entry is committed when it is synced. Another log can be
//! put in front of it ([`Store::open_front`](crate::Store::open_front)): it decides when an entry is committed, for
//! example when a majority of nodes has synced it.
//!
//! [`Owner`]: crate::Owner

use std::sync::Arc;

use bytes::Bytes;
use engine::{Error, Result};

use crate::journal::recover::{Found, Origin};
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

    /// Calls `look` while nothing is committed: until it returns, no owner is notified and no committed entry is
    /// applied. What it finds in all partitions and in the catalog is therefore the state at one position of the log.
    /// `look` must be short, and must not append.
    fn still(&self, look: &mut dyn FnMut());

    /// Sets a callback that runs when there is room again after [`ShardLog::admit`] refused a caller for a reason of
    /// this log. The journal has its own.
    fn on_room(&self, _tell: Box<dyn Fn() + Send + Sync>) {}

    /// Returns what the next checkpoint keeps for this log. It is called before the partitions' states are taken, so
    /// everything that the returned state regards as applied has to be applied by then. `None`: the checkpoint is that
    /// of a single broker.
    fn keep(&self) -> Option<Kept> {
        None
    }

    /// Notifies the log that the checkpoint with this state is on the disk.
    fn kept(&self, _: &Kept) {}
}

/// Data of a log in front of the journal in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// State in the log's own format; [`Front::adopt`] gets it back.
    pub state: Bytes,
    /// Origin from which the journal is needed, if that is earlier than the journal's own: an entry after it is not
    /// committed yet.
    pub origin: Option<Origin>,
}

/// Log in front of the journal, while a directory is opened. It decides which entries of the journal are committed: the
/// others have no effect.
///
/// The journal is read three times: once for [`Front::note`], then twice for [`Front::passes`]. If the disk is full,
/// the opening is repeated from [`Front::adopt`] on with the space of the reserve; what [`Front::start`] returned
/// before is dropped then, and its journal is stopped.
pub trait Front {
    /// Adopts the state that the last checkpoint keeps. It is empty if the directory is new or was a single broker's.
    fn adopt(&mut self, state: &[u8]) -> Result<()>;

    /// Takes note of an entry of the journal. Each one is passed once, in their order.
    fn note(&mut self, found: &Found<'_>) -> Result<()>;

    /// Prepares for another reading of the journal from its beginning.
    fn rewind(&mut self);

    /// Returns `true` if an entry is committed, so that it may be applied. Every entry is passed, in their order, and
    /// the answer is the same in both readings. If the body of a committed entry cannot be read, the opening fails.
    fn passes(&mut self, found: &Found<'_>) -> Result<bool>;

    /// Starts the log. The journal continues in a new file, and a checkpoint follows: entries that are not committed
    /// have to be appended to it again, and until these are durable, [`Kept::origin`] is the [`Found::block`] of the
    /// first of them.
    fn start(&mut self, journal: Arc<Journal>) -> Result<Arc<dyn ShardLog>>;
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

    fn still(&self, look: &mut dyn FnMut()) {
        Self::still(self, look);
    }
}
