//! Records of the topic of durable caches: the caches that exist, and their changes, step by step.
//!
//! The records are read in their order, from the first to the last. All records of one batch are one step, which takes
//! effect as a whole or not at all. A step that is too large for one batch is written in parts, and takes effect if its
//! last part exists. Effects of an unknown cache (already deleted, or not yet created) are ignored. All integers are
//! big-endian. A text is UTF-8 with its length (2 bytes) in front.
//!
//! | Key | version | fields |
//! |---|---|---|
//! | a cache | 1 | its number (u64) |
//! | a step of a cache | 2 | number of the cache (u64) |
//! | a part of a step | 3 | number of the cache, number of the step (u64 each), 1 for the last part (1) |
//!
//! | Value | version | fields |
//! |---|---|---|
//! | a cache | 1 | name (text), bytes at most (u64), eviction (text), time to live (u64) |
//! | a step or a part of one | | effects ([`super::effects`]), to the end |
//!
//! A number that is not set is 2^64 - 1. The record of a deleted cache has no value.

use bytes::BufMut;

use super::{CacheName, CacheSettings, Eviction};
use crate::error::Result;
use crate::fields::{Fields, put_text, unknown_version};

/// Name of the topic of durable caches.
pub const CACHES_TOPIC: &str = "_caches";

const KEY_CACHE: u16 = 1;
const KEY_STEP: u16 = 2;
const KEY_PART: u16 = 3;
const VALUE_VERSION: u16 = 1;

const NONE: u64 = u64::MAX;

/// First format of the log of a cluster in which caches may exchange their entries
/// ([`Swapped`](super::effects::Effect::Swapped)): programs that write an earlier one cannot read that.
pub const SWAP_FORMAT: u32 = 3;

/// Number of a durable cache. It differs from the number of every other durable cache, earlier ones of its name
/// included.
pub type CacheNumber = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDefinition {
    pub name: CacheName,
    pub settings: CacheSettings,
}

/// Position of a record in a step that is too large for one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPart {
    /// Number of the step, which no other step has.
    pub step: u64,
    pub is_last: bool,
}

/// Record of the topic of durable caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheRecord<'a> {
    /// Definition of a cache, or `None` if the cache was deleted.
    Cache {
        cache: CacheNumber,
        definition: Option<CacheDefinition>,
    },
    Step {
        cache: CacheNumber,
        part: Option<StepPart>,
        effects: &'a [u8],
    },
}

impl<'a> CacheRecord<'a> {
    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(20);
        match self {
            Self::Cache { cache, .. } => {
                key.put_u16(KEY_CACHE);
                key.put_u64(*cache);
            }
            Self::Step { cache, part: None, .. } => {
                key.put_u16(KEY_STEP);
                key.put_u64(*cache);
            }
            Self::Step { cache, part: Some(part), .. } => {
                key.put_u16(KEY_PART);
                key.put_u64(*cache);
                key.put_u64(part.step);
                key.put_u8(u8::from(part.is_last));
            }
        }
        key
    }

    /// Returns the record value for the definition of a cache. The value of a step is its effects, unchanged.
    pub fn value(definition: &CacheDefinition) -> Vec<u8> {
        let mut value = Vec::with_capacity(64);
        value.put_u16(VALUE_VERSION);
        put_text(&mut value, definition.name.as_str());
        value.put_u64(definition.settings.bytes_max.unwrap_or(NONE));
        put_text(&mut value, definition.settings.eviction.name());
        value.put_u64(definition.settings.ttl_ms.unwrap_or(NONE));
        value
    }

    pub fn decode(key: &[u8], value: Option<&'a [u8]>) -> Result<Self> {
        let mut fields = Fields(key);
        let kind = fields.u16()?;
        let record = match kind {
            KEY_CACHE => {
                Self::Cache { cache: fields.u64()?, definition: value.map(CacheDefinition::decode).transpose()? }
            }
            KEY_STEP => Self::Step { cache: fields.u64()?, part: None, effects: value.unwrap_or_default() },
            KEY_PART => {
                let cache = fields.u64()?;
                let step = fields.u64()?;
                let part = Some(StepPart { step, is_last: fields.flag()? });
                Self::Step { cache, part, effects: value.unwrap_or_default() }
            }
            other => return Err(unknown_version("key", other)),
        };
        fields.end()?;
        Ok(record)
    }
}

impl CacheDefinition {
    fn decode(value: &[u8]) -> Result<Self> {
        let mut fields = Fields(value);
        fields.check_version("value", VALUE_VERSION)?;
        let number = |number: u64| (number != NONE).then_some(number);
        let name = CacheName::parse(fields.text()?)?;
        let bytes_max = number(fields.u64()?);
        let eviction = Eviction::parse(fields.text()?)?;
        let ttl_ms = number(fields.u64()?);
        fields.end()?;
        Ok(Self { name, settings: CacheSettings { bytes_max, eviction, ttl_ms, is_durable: true } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let settings =
            CacheSettings { bytes_max: Some(1 << 20), eviction: Eviction::TtlFirst, ttl_ms: None, is_durable: true };
        let definition = CacheDefinition { name: CacheName::parse("c").expect("a name"), settings };
        let value = CacheRecord::value(&definition);
        let records = [
            (CacheRecord::Cache { cache: 7, definition: Some(definition) }, Some(&value[..])),
            (CacheRecord::Cache { cache: 7, definition: None }, None),
            (CacheRecord::Step { cache: 7, part: None, effects: b"abc" }, Some(&b"abc"[..])),
            (
                CacheRecord::Step { cache: 8, part: Some(StepPart { step: 9, is_last: true }), effects: b"abc" },
                Some(&b"abc"[..]),
            ),
        ];
        for (record, value) in records {
            assert_eq!(CacheRecord::decode(&record.key(), value), Ok(record.clone()));
            for cut in 0..record.key().len() {
                CacheRecord::decode(&record.key()[..cut], value).expect_err("it is cut short");
            }
        }
        CacheRecord::decode(&[0, 9, 0], None).expect_err("a newer version wrote it");
        CacheRecord::decode(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 7], Some(&[0, 2])).expect_err("a newer version wrote it");
    }
}
