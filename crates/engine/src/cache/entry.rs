//! Entries of a cache as its callers see them: keys, values, and the outcomes of changes.

use std::sync::Arc;

use super::Eviction;
use super::budget::Budget;
use super::structures::{Kind, Structure};
use super::uses::Uses;
use crate::error::{Error, Result};

/// Key with its hash, which selects the stripe and the place in it.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub hash: u64,
    pub bytes: &'a [u8],
}

impl Key<'_> {
    /// Returns the upper half of the hash. The lower half selects the stripe.
    pub fn mark(&self) -> u32 {
        (self.hash >> 32) as u32
    }
}

/// Entry as its reader sees it.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub key: &'a [u8],
    pub value: Value<'a>,
    /// Version of the value. It differs after each change of the value, and grows.
    pub version: u64,
    /// Expiry time in ms since 1970.
    pub expires_ms: Option<u64>,
    /// Last use and use frequency.
    pub uses: Uses,
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Bytes(&'a [u8]),
    Structure(&'a Structure),
}

impl<'a> Value<'a> {
    pub fn kind(self) -> Kind {
        match self {
            Self::Bytes(_) => Kind::Bytes,
            Self::Structure(structure) => structure.kind(),
        }
    }

    /// Returns the bytes. Fails if the value is of another kind.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Structure(structure) => Err(wrong_kind(structure.kind(), Kind::Bytes)),
        }
    }
}

/// Value that is independent of a stripe.
#[derive(Clone, Debug)]
pub enum Owned {
    Bytes(Box<[u8]>),
    Structure(Box<Structure>),
}

/// Expiry time of an entry that is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expires {
    #[default]
    Never,
    /// Expiry time in ms since 1970.
    At(u64),
    /// Expiry time of the existing entry; never, if the key has no entry.
    Kept,
}

/// Condition for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Always,
    IfAbsent,
    IfPresent,
    /// If the key has an entry with this version.
    IfVersion(u64),
}

/// Outcome of a put or a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Success. `version` is the number of the change, which is also the version of a value that was put; `previous` is
    /// the version of the entry before.
    Done { version: u64, previous: Option<u64> },
    /// The condition is not met. `current` is the version of the existing entry.
    Unmet { current: Option<u64> },
}

/// Outcome of an addition to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    pub value: i64,
    pub version: u64,
    /// Expiry time in ms since 1970, which an addition does not change.
    pub expires_ms: Option<u64>,
}

/// Entry that expired or was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub key: Box<[u8]>,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Expired,
    Evicted,
}

/// Position from which a scan continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripeStats {
    pub entries: u64,
    /// Size of all entries, including the overhead of finding them.
    pub bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub evicted: u64,
}

#[derive(Clone, Debug)]
pub struct StripeSettings {
    pub eviction: Eviction,
    pub budget: Arc<Budget>,
    /// Number of bytes to reserve from the budget per step.
    pub block: u64,
    /// Number from which changes are counted. No earlier stripe of the same keys has reached it.
    pub version: u64,
    /// Time of creation in ms since 1970. [`Stripe::expire`](super::Stripe::expire) advances the clock of the stripe.
    pub now_ms: u64,
}

impl Condition {
    pub(super) fn holds(self, current: Option<u64>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => current.is_none(),
            Self::IfPresent => current.is_some(),
            Self::IfVersion(version) => current == Some(version),
        }
    }
}

/// Returns the error for a key whose value has another kind than a call requires.
pub(super) fn wrong_kind(is: Kind, wanted: Kind) -> Error {
    Error::invalid(format!("the key has a {}, not a {}", is.name(), wanted.name()))
}
