//! Settings, status and changes of caches.

use bytes::Bytes;

use super::structures::Kind;
use super::{CacheName, Eviction, StripeStats};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSettings {
    /// Maximum size in bytes. By default, the limit for all caches together.
    pub bytes_max: Option<u64>,
    pub eviction: Eviction,
    /// Time to live of an entry that is put without one, in ms. By default, such an entry never expires.
    pub ttl_ms: Option<u64>,
    /// `true` if the entries survive a restart of the broker. Otherwise they are in memory only.
    pub is_durable: bool,
}

/// Time to live of a value that is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// Default of the cache, [`CacheSettings::ttl_ms`].
    #[default]
    Default,
    Never,
    /// Duration in ms from now.
    For(u64),
    /// Expiry time in ms since 1970.
    Until(u64),
    /// Expiry time of the existing entry; never, if the key has no entry.
    Kept,
}

/// Status of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStatus {
    pub name: CacheName,
    pub settings: CacheSettings,
    /// Effective limit in bytes: the lower one of the limit of this cache and the limit for all caches.
    pub bytes_max: u64,
    pub stats: StripeStats,
}

/// Position in a scan: the stripe, and the place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Bytes,
    pub kind: ChangeKind,
    /// Version of the value that was put, or the number of the deletion. It is 0 for entries that expired or were
    /// evicted, and for a flush.
    pub version: u64,
    pub expires_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The key has this value: found at the beginning, or put since.
    Put(Bytes),
    /// The key has a value of this kind, which is not bytes: a list, a hash and so on.
    Changed(Kind),
    Deleted,
    Expired,
    Evicted,
    /// All entries were removed.
    Flushed,
}

/// Position of a watcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchFrom {
    /// All current entries, then their changes.
    #[default]
    Snapshot,
    /// Position within the current entries. Changes made since the beginning follow from `position` on.
    Scan { cursor: ScanCursor, position: u64 },
    /// Changes from this position on.
    Changes { position: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    pub changes: Vec<Change>,
    /// Position from which to continue.
    pub next: WatchFrom,
    /// `true` if the watcher was away for too long, or if the cache has exchanged its entries with another one: the
    /// changes from here on begin with all current entries. The watcher has to discard every other entry that it knows.
    pub is_reset: bool,
}
