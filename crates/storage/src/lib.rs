//! Storage of log bytes: in memory, or in a data directory with a journal and segments.
//!
//! It refuses to know what a record means: it has no policies of topics, no views and no clients. It also refuses to
//! use the disk other than through [`Disk`], so that a test can cut the power at any byte. Read it from the top.

// The logs of partitions.
mod log;
mod memory;
mod holes;

// A data directory: its parts, and how it is opened.
pub mod store;
mod shared;
mod state;
mod apply;
pub mod checkpoint;
mod info;
pub mod partition;
mod shard_log;
pub mod journal;
pub mod sqlite;

// The disk, its room, and work in the background.
pub mod disk;
mod room;
mod pins;
mod place;
mod background;

// Looking at a directory, and repairing it.
pub mod inspect;

pub use disk::{Disk, DiskFile, RealDisk};
pub use info::{CompactionSettings, CompactionStats, SegmentInfo, SqliteSettings};
pub use journal::recover::{Found, Origin};
pub use journal::{Entry, EntryKind, Journal, Owner, Source};
pub use log::{ColdRead, Commits, LogExtent, PartitionLog, Read};
pub use memory::MemoryLog;
pub use partition::DiskPartition;
pub use shard_log::{Front, Kept, ShardLog};
pub use shared::{StoreSettings, StoredTopic};
pub use sqlite::{SqlitePartition, SqliteStats, SqliteStore};
pub use store::manifest::{Manifest, PartitionExtent, Wanted};
pub use store::snapshot::Snapshot;
pub use store::{Store, StoreStats, Work};
