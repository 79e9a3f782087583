//! What is said of caches, whoever says it.

use bytes::Bytes;

use super::structures::Kind;
use super::{CacheName, Eviction, ShardStats};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSettings {
    /// What it may hold; as much as there is for all caches where nothing is said.
    pub bytes_max: Option<u64>,
    pub eviction: Eviction,
    /// How long an entry stays that is put without a time.
    pub ttl_ms: Option<u64>,
    /// Its entries outlive the broker. Otherwise they are in memory only.
    pub is_durable: bool,
}

/// How long what is put shall stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// As the cache is set.
    #[default]
    Default,
    Never,
    /// Ms from now.
    For(u64),
    /// Ms since 1970.
    Until(u64),
    /// As long as what was there.
    Kept,
}

/// A cache as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStatus {
    pub name: CacheName,
    pub settings: CacheSettings,
    /// What it may hold, all things considered.
    pub bytes_max: u64,
    pub stats: ShardStats,
}

/// A place in a scan: the shard, and the place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Bytes,
    pub kind: ChangeKind,
    /// The version that was put, or the number of the change.
    pub version: u64,
    pub expires_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is there with this value: found at the beginning, or put since.
    Put(Bytes),
    /// The same of what is no bytes: a list, a hash and so on.
    Changed(Kind),
    Deleted,
    Expired,
    Evicted,
    /// All entries went.
    Flushed,
}

/// Where a watcher is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchFrom {
    /// All that is there, then what changes.
    #[default]
    Snapshot,
    /// In the middle of what is there; what changed since is from this position on.
    Scan { cursor: ScanCursor, position: u64 },
    /// What changed from this position on.
    Changes { position: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    pub changes: Vec<Change>,
    /// Where to go on.
    pub next: WatchFrom,
    /// The watcher was away for too long: what is told from here on is all that is there. What it knows beside that is
    /// gone.
    pub is_reset: bool,
}
