//! Storage of log bytes: in memory, or in a data directory with a journal and segments.

mod background;
pub mod catalog;
pub mod disk;
mod durable;
mod holes;
pub mod inspect;
pub mod journal;
mod memory;
pub mod partition;
mod place;
mod room;
mod shared;
pub mod sqlite;
mod state;
pub mod store;

pub use disk::{Disk, DiskFile, RealDisk};
pub use durable::{ColdRead, DiskExtent, DurableLog, Read};
pub use journal::Owner;
pub use memory::MemoryLog;
pub use partition::{CompactionSettings, CompactionStats, DiskPartition};
pub use shared::{StoreSettings, StoredTopic};
pub use sqlite::{SqlitePartition, SqliteSettings, SqliteStats, SqliteStore};
pub use store::{Store, StoreStats};
