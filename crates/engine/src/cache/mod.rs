//! Caches: the latest value of each key, for as long as it is to be kept and there is room.
//!
//! A cache is cut into shards by the hash of the key. [`Shard`] is the state machine of one: a table of entries, when
//! they expire (`expiry.rs`), and which goes when there is no room (`evict.rs`). All shards take their bytes from one
//! [`Budget`].

mod budget;
pub mod effects;
mod evict;
mod expiry;
mod gone;
pub mod operations;
pub mod record;
mod shard;
mod slab;
pub mod structures;
mod uses;
mod values;

#[cfg(test)]
mod effects_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::TopicName;

pub use budget::Budget;
pub use shard::{
    Added, Condition, Cursor, Expires, Found, Key, Owned, Removed, Shard, ShardSettings, ShardStats, Stored, Value,
    Why, check_size, parse_number, write_number,
};

pub use uses::Uses;
pub use values::{CacheSettings, CacheStatus, Change, ChangeKind, ScanCursor, Ttl, WatchFrom, Watched};

/// A key.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// A value, so that a change is one record.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// What a list, hash, set or sorted set takes: one that has so much does not grow.
pub const STRUCTURE_BYTES_MAX: u64 = 1 << 30;
/// Caches of one broker.
pub const CACHES_MAX: usize = 1024;
/// How long an entry may be kept that does not stay for ever: 100 years.
pub const TTL_MS_MAX: u64 = 100 * 365 * 24 * 3_600_000;

/// The name of a cache. It follows the rules of the names of topics.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheName(Arc<str>);

impl CacheName {
    pub fn parse(name: &str) -> Result<Self> {
        TopicName::parse(name)
            .map_err(|error| Error::new(error.kind, error.message.replace("topic name", "cache name")))?;
        Ok(Self(Arc::from(name)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for CacheName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CacheName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CacheName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// What happens when a cache has no room for what is put into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The put is refused: nothing goes that nobody removed.
    #[default]
    None,
    /// Entries that are asked for least go (S3-FIFO).
    S3Fifo,
    /// Entries go that would expire next; without any, those that are asked for least.
    TtlFirst,
}

impl Eviction {
    pub const ALL: [Self; 3] = [Self::None, Self::S3Fifo, Self::TtlFirst];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::S3Fifo => "s3-fifo",
            Self::TtlFirst => "ttl-first",
        }
    }

    pub fn parse(name: &str) -> Result<Self> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|eviction| eviction.name() == name);
        found.ok_or_else(|| Error::invalid(format!("eviction '{name}' is not one of: {}", names())))
    }
}
