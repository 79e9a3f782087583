//! Where log bytes live: in memory, or in a data directory with a journal and segments.

mod background;
pub mod catalog;
pub mod disk;
pub mod inspect;
pub mod journal;
mod memory;
pub mod partition;
mod state;
pub mod store;

pub use disk::{Disk, DiskFile, RealDisk};
pub use journal::Owner;
pub use memory::MemoryLog;
pub use partition::{ColdRead, CompactionSettings, CompactionStats, DiskExtent, DiskPartition, Read};
pub use store::{Store, StoreSettings, StoreStats, StoredTopic};
