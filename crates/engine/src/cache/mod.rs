//! Caches: the latest value of each key, until it expires or is evicted.
//!
//! A cache is divided into stripes by the hash of the key. [`Stripe`] is the state machine of one stripe: a table of
//! entries, their expiry (`expiry.rs`), and the choice of entries to evict (`evict.rs`). All stripes reserve their
//! bytes from one [`Budget`].

mod number;
pub mod structures;
mod budget;
mod values;
mod entry;

// One stripe, and its parts.
mod slab;
mod expiry;
mod uses;
mod evict;
mod gone;
pub mod effects;
mod stripe;

// Records in the log of a durable cache.
pub mod operations;
pub mod record;

#[cfg(test)]
mod effects_tests;
#[cfg(test)]
mod swap_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::TopicName;

pub use budget::Budget;
pub use entry::{
    Added, Condition, Cursor, Expires, Found, Key, Owned, Removed, Stored, StripeSettings, StripeStats, Value, Why,
};
pub use number::{parse_number, write_number};
pub use stripe::{Stripe, check_size};
pub use uses::Uses;
pub use values::{CacheSettings, CacheStatus, Change, ChangeKind, ScanCursor, Ttl, WatchFrom, Watched};

/// Maximum size of a key, in bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Maximum size of a value, in bytes: a change must fit in one record.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// Maximum size of a list, hash, set or sorted set, in bytes. A structure of this size does not grow any more.
pub const STRUCTURE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of caches per broker.
pub const CACHES_MAX: usize = 1024;
/// Longest time to live of an entry that expires, in ms: 100 years.
pub const TTL_MS_MAX: u64 = 100 * 365 * 24 * 3_600_000;

/// Name of a cache. It follows the rules for topic names.
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

/// Eviction policy: the action if a cache has no room for a new value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The put is refused: no entry is evicted.
    #[default]
    None,
    /// The least used entries are evicted (S3-FIFO).
    S3Fifo,
    /// The entries that expire next are evicted. If no entry expires, the least used ones are.
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
