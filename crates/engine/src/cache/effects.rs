//! Results of the changes of a cache, recorded so that they can be replayed: values and expiry times as they are after
//! the change, and the edits of structures.
//!
//! An effect is its number, followed by its fields. All integers are big-endian. A key is prefixed with its length (2
//! bytes), a value or edits with their length (4 bytes). An entry that never expires has the expiry time 2^64 - 1.
//!
//! | Effect | | |
//! |---|---|---|
//! | 1 | put | version, expires (u64 each), key, value |
//! | 2 | deleted, or evicted | version (u64), key |
//! | 3 | expiry time changed | expires (u64), key |
//! | 4 | structure changed | version (u64), kind (1), 1 if the key had no entry before (1), key, edits |
//! | 5 | all entries removed | |
//! | 6 | operation completed, with the preceding effects of its step | its client, its number (u64 each), its answer |
//! | 7 | all entries exchanged with those of another cache | its number, version of all entries of both (u64 each) |

use bytes::BufMut;

use super::operations::{OperationAnswer, OperationId};
use super::record::CacheNumber;
use super::structures::Kind;
use crate::error::{Error, Result};
use crate::fields::{Fields, put_bytes, put_long};

const PUT: u8 = 1;
const DELETED: u8 = 2;
const EXPIRES: u8 = 3;
const CHANGED: u8 = 4;
const FLUSHED: u8 = 5;
const ANSWERED: u8 = 6;
const SWAPPED: u8 = 7;

const NEVER: u64 = u64::MAX;

/// Encoded effects in their order, with the hashes of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub bytes: Vec<u8>,
    /// Upper half of the hash of the key, for each effect.
    pub marks: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
        version: u64,
        expires_ms: Option<u64>,
    },
    Deleted {
        key: &'a [u8],
        version: u64,
    },
    Expires {
        key: &'a [u8],
        expires_ms: Option<u64>,
    },
    Changed {
        key: &'a [u8],
        kind: Kind,
        version: u64,
        /// `true` if the key had no entry before: the edits contain the whole structure.
        is_new: bool,
        edits: &'a [u8],
    },
    Flushed,
    Answered {
        operation: OperationId,
        answer: OperationAnswer,
    },
    /// Exchange of all entries with those of another durable cache. It is an effect of one of the two.
    Swapped {
        with: CacheNumber,
        /// Version that all entries of both have afterwards.
        version: u64,
    },
}

impl<'a> Effect<'a> {
    /// Returns the key of the effect, if the effect has one.
    pub fn key(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Put { key, .. } | Self::Deleted { key, .. } => Some(key),
            Self::Expires { key, .. } | Self::Changed { key, .. } => Some(key),
            Self::Flushed | Self::Answered { .. } | Self::Swapped { .. } => None,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Put { key, value, version, expires_ms } => {
                out.put_u8(PUT);
                out.put_u64(version);
                out.put_u64(expires_ms.unwrap_or(NEVER));
                put_bytes(out, key);
                put_long(out, value);
            }
            Self::Deleted { key, version } => {
                out.put_u8(DELETED);
                out.put_u64(version);
                put_bytes(out, key);
            }
            Self::Expires { key, expires_ms } => {
                out.put_u8(EXPIRES);
                out.put_u64(expires_ms.unwrap_or(NEVER));
                put_bytes(out, key);
            }
            Self::Changed { key, kind, version, is_new, edits } => {
                out.put_u8(CHANGED);
                out.put_u64(version);
                out.put_slice(&[kind as u8, u8::from(is_new)]);
                put_bytes(out, key);
                put_long(out, edits);
            }
            Self::Flushed => out.put_u8(FLUSHED),
            Self::Answered { operation, answer } => {
                out.put_u8(ANSWERED);
                out.put_u64(operation.client);
                out.put_u64(operation.sequence);
                answer.encode(out);
            }
            Self::Swapped { with, version } => {
                out.put_u8(SWAPPED);
                out.put_u64(with);
                out.put_u64(version);
            }
        }
    }

    fn decode(fields: &mut Fields<'a>) -> Result<Self> {
        let time = |ms: u64| (ms != NEVER).then_some(ms);
        Ok(match fields.u8()? {
            PUT => {
                let version = fields.u64()?;
                let expires_ms = time(fields.u64()?);
                Self::Put { version, expires_ms, key: fields.bytes()?, value: fields.long()? }
            }
            DELETED => Self::Deleted { version: fields.u64()?, key: fields.bytes()? },
            EXPIRES => Self::Expires { expires_ms: time(fields.u64()?), key: fields.bytes()? },
            CHANGED => {
                let version = fields.u64()?;
                let kind = fields.code(Kind::from_code)?;
                Self::Changed { version, kind, is_new: fields.flag()?, key: fields.bytes()?, edits: fields.long()? }
            }
            FLUSHED => Self::Flushed,
            ANSWERED => {
                let operation = OperationId { client: fields.u64()?, sequence: fields.u64()? };
                Self::Answered { operation, answer: OperationAnswer::decode(fields)? }
            }
            SWAPPED => Self::Swapped { with: fields.u64()?, version: fields.u64()? },
            other => return Err(Error::malformed(format!("unknown effect {other}"))),
        })
    }
}

impl Effects {
    pub(super) fn push(&mut self, mark: u32, effect: &Effect<'_>) {
        effect.encode(&mut self.bytes);
        self.marks.push(mark);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Calls `each` for every encoded effect, in order. Fails if an effect is malformed or `each` fails.
pub fn decode<'a>(bytes: &'a [u8], mut each: impl FnMut(Effect<'a>) -> Result<()>) -> Result<()> {
    let mut fields = Fields(bytes);
    while !fields.0.is_empty() {
        each(Effect::decode(&mut fields)?)?;
    }
    Ok(())
}
