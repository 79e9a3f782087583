//! What the changes of a cache come to, so that they can be done again: values and times as they are then, and of
//! structures what was changed.
//!
//! An effect is its number and its fields; all integers are big-endian, a key is its length (2 bytes) and it, a value
//! or edits are their length (4 bytes) and they. What has no time expires at 2^64 - 1.
//!
//! | Effect | | |
//! |---|---|---|
//! | 1 | put | version, expires (u64 each), key, value |
//! | 2 | deleted, or evicted | version (u64), key |
//! | 3 | another time | expires (u64), key |
//! | 4 | a structure changed | version (u64), kind (1), whether nothing was there before (1), key, edits |
//! | 5 | all entries went | |
//! | 6 | an operation was done, with what is before it in its step | its client, its number (u64 each), its answer |

use bytes::BufMut;

use super::operations::{OperationAnswer, OperationId};
use super::structures::Kind;
use crate::error::{Error, Result};
use crate::fields::{Fields, put_bytes, put_long};

const PUT: u8 = 1;
const DELETED: u8 = 2;
const EXPIRES: u8 = 3;
const CHANGED: u8 = 4;
const FLUSHED: u8 = 5;
const ANSWERED: u8 = 6;

const NEVER: u64 = u64::MAX;

/// Effects in their order, and whose they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub bytes: Vec<u8>,
    /// Of the key of each effect, the upper half of its hash.
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
        /// Nothing was there before: the edits make it whole.
        is_new: bool,
        edits: &'a [u8],
    },
    Flushed,
    Answered {
        operation: OperationId,
        answer: OperationAnswer,
    },
}

impl<'a> Effect<'a> {
    /// The key that it is about, if it is about one.
    pub fn key(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Put { key, .. } | Self::Deleted { key, .. } => Some(key),
            Self::Expires { key, .. } | Self::Changed { key, .. } => Some(key),
            Self::Flushed | Self::Answered { .. } => None,
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
        }
    }

    fn decode(fields: &mut Fields<'a>) -> Result<Self> {
        let time = |ms: u64| (ms != NEVER).then_some(ms);
        Ok(match fields.u8()? {
            PUT => {
                let (version, expires_ms) = (fields.u64()?, time(fields.u64()?));
                Self::Put { version, expires_ms, key: fields.bytes()?, value: fields.long()? }
            }
            DELETED => Self::Deleted { version: fields.u64()?, key: fields.bytes()? },
            EXPIRES => Self::Expires { expires_ms: time(fields.u64()?), key: fields.bytes()? },
            CHANGED => {
                let (version, kind) = (fields.u64()?, fields.code(Kind::from_code)?);
                Self::Changed { version, kind, is_new: fields.flag()?, key: fields.bytes()?, edits: fields.long()? }
            }
            FLUSHED => Self::Flushed,
            ANSWERED => {
                let operation = OperationId { client: fields.u64()?, sequence: fields.u64()? };
                Self::Answered { operation, answer: OperationAnswer::decode(fields)? }
            }
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

/// Each of these effects, in their order.
pub fn decode<'a>(bytes: &'a [u8], mut each: impl FnMut(Effect<'a>) -> Result<()>) -> Result<()> {
    let mut fields = Fields(bytes);
    while !fields.0.is_empty() {
        each(Effect::decode(&mut fields)?)?;
    }
    Ok(())
}
