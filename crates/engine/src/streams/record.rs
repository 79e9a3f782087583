//! Records of the topic of streams. Each record is identified by its key; the newest record of a key is valid, and one
//! without a value deletes the key. All integers are big-endian; a name is its length (2 bytes) and its bytes; an id is
//! its time and its number (u64 each). Every key begins with its version (u16) and the id of the stream's topic (16
//! bytes).
//!
//! | Key | version | fields |
//! |---|---|---|
//! | a stream | 1 | |
//! | a group | 2 | name |
//! | a consumer | 3 | group, name |
//! | a pending entry | 4 | group, id |
//! | a deleted entry | 5 | offset (u64) |
//! | the key of a stream | 6 | |
//!
//! | Value | version | fields |
//! |---|---|---|
//! | a stream | 1 | owns its topic (1), start (u64), id before it, offset (u64), last id, added (u64), deleted id |
//! | a group | 1 | last id, whether the number of entries that it has passed is known (1), that number (u64) |
//! | a consumer | 1 | time at which it was last seen (u64) |
//! | a pending entry | 1 | consumer, time of delivery (u64), number of deliveries (u64) |
//! | a deleted entry | 1 | |
//! | the key of a stream | 1 | the name of its cache, the key, when it expires (u64; never at 2^64 - 1) |
//!
//! The last id of a stream, the number of entries ever added and the largest deleted id are those at the time when the
//! next record was to get the offset that precedes them.

use std::sync::Arc;

use bytes::BufMut;

use super::{EntryId, Pending};
use crate::error::Result;
use crate::fields::{Fields, put_bytes, unknown_version};
use crate::ids::{Offset, TopicId};

const KEY_STREAM: u16 = 1;
const KEY_GROUP: u16 = 2;
const KEY_CONSUMER: u16 = 3;
const KEY_PENDING: u16 = 4;
const KEY_DELETED: u16 = 5;
const KEY_PLACE: u16 = 6;
const VALUE_VERSION: u16 = 1;

const NEVER: u64 = u64::MAX;

/// State of a stream that cannot be derived from its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedStream {
    /// `true` if its topic was created for it and is deleted with it.
    pub is_own: bool,
    /// Offset at which the stream began, and the id of the entry before that.
    pub start: Offset,
    pub before_start: EntryId,
    /// Offset of the next record at the time when the following fields were saved.
    pub at: Offset,
    pub last: EntryId,
    pub added: u64,
    pub max_deleted: EntryId,
}

/// Key under which a cache lists a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// Name of the cache.
    pub cache: Box<[u8]>,
    pub key: Box<[u8]>,
    /// Expiry time, ms since 1970; `None` if the key does not expire.
    pub expires_ms: Option<u64>,
}

/// Record of the topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRecord {
    Stream {
        topic: TopicId,
        saved: Option<SavedStream>,
    },
    /// Progress of a group: the last id, and the number of entries that it has passed.
    Group {
        topic: TopicId,
        group: Box<[u8]>,
        saved: Option<(EntryId, Option<u64>)>,
    },
    Consumer {
        topic: TopicId,
        group: Box<[u8]>,
        name: Arc<[u8]>,
        seen_ms: Option<u64>,
    },
    Pending {
        topic: TopicId,
        group: Box<[u8]>,
        id: EntryId,
        pending: Option<Pending>,
    },
    Deleted {
        topic: TopicId,
        offset: Offset,
        is_deleted: bool,
    },
    Place {
        topic: TopicId,
        place: Option<StreamPlace>,
    },
}

impl StreamRecord {
    pub fn topic(&self) -> TopicId {
        match self {
            Self::Stream { topic, .. }
            | Self::Group { topic, .. }
            | Self::Consumer { topic, .. }
            | Self::Pending { topic, .. }
            | Self::Deleted { topic, .. }
            | Self::Place { topic, .. } => *topic,
        }
    }

    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        let begin = |key: &mut Vec<u8>, kind, topic: &TopicId| {
            key.put_u16(kind);
            key.put_slice(&topic.to_bytes());
        };
        match self {
            Self::Stream { topic, .. } => begin(&mut key, KEY_STREAM, topic),
            Self::Group { topic, group, .. } => {
                begin(&mut key, KEY_GROUP, topic);
                put_bytes(&mut key, group);
            }
            Self::Consumer { topic, group, name, .. } => {
                begin(&mut key, KEY_CONSUMER, topic);
                put_bytes(&mut key, group);
                put_bytes(&mut key, name);
            }
            Self::Pending { topic, group, id, .. } => {
                begin(&mut key, KEY_PENDING, topic);
                put_bytes(&mut key, group);
                put_id(&mut key, *id);
            }
            Self::Place { topic, .. } => begin(&mut key, KEY_PLACE, topic),
            Self::Deleted { topic, offset, .. } => {
                begin(&mut key, KEY_DELETED, topic);
                key.put_u64(*offset);
            }
        }
        key
    }

    /// Returns `None` for a record that deletes its key.
    pub fn value(&self) -> Option<Vec<u8>> {
        let mut value = Vec::with_capacity(80);
        value.put_u16(VALUE_VERSION);
        match self {
            Self::Stream { saved, .. } => {
                let saved = (*saved)?;
                value.put_u8(u8::from(saved.is_own));
                value.put_u64(saved.start);
                put_id(&mut value, saved.before_start);
                value.put_u64(saved.at);
                put_id(&mut value, saved.last);
                value.put_u64(saved.added);
                put_id(&mut value, saved.max_deleted);
            }
            Self::Group { saved, .. } => {
                let (last, read) = (*saved)?;
                put_id(&mut value, last);
                value.put_u8(u8::from(read.is_some()));
                value.put_u64(read.unwrap_or_default());
            }
            Self::Consumer { seen_ms, .. } => value.put_u64((*seen_ms)?),
            Self::Pending { pending, .. } => {
                let pending = pending.as_ref()?;
                put_bytes(&mut value, &pending.consumer);
                value.put_u64(pending.delivered_ms);
                value.put_u64(pending.deliveries);
            }
            Self::Place { place, .. } => {
                let place = place.as_ref()?;
                put_bytes(&mut value, &place.cache);
                put_bytes(&mut value, &place.key);
                value.put_u64(place.expires_ms.unwrap_or(NEVER));
            }
            Self::Deleted { is_deleted, .. } => {
                if !is_deleted {
                    return None;
                }
            }
        }
        Some(value)
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        let mut key = Fields(key);
        let mut value = value.map(Fields);
        let kind = key.u16()?;
        if let Some(value) = &mut value {
            value.check_version("value", VALUE_VERSION)?;
        }
        let topic = key.topic()?;
        let record = match kind {
            KEY_STREAM => Self::Stream { topic, saved: value.as_mut().map(Fields::stream).transpose()? },
            KEY_GROUP => {
                let group = key.bytes()?.into();
                Self::Group { topic, group, saved: value.as_mut().map(Fields::stream_group).transpose()? }
            }
            KEY_CONSUMER => Self::Consumer {
                topic,
                group: key.bytes()?.into(),
                name: key.bytes()?.into(),
                seen_ms: value.as_mut().map(Fields::u64).transpose()?,
            },
            KEY_PENDING => Self::Pending {
                topic,
                group: key.bytes()?.into(),
                id: key.entry_id()?,
                pending: value.as_mut().map(Fields::pending).transpose()?,
            },
            KEY_DELETED => Self::Deleted { topic, offset: key.u64()?, is_deleted: value.is_some() },
            KEY_PLACE => Self::Place { topic, place: value.as_mut().map(Fields::place).transpose()? },
            version => return Err(unknown_version("key", version)),
        };
        key.end()?;
        value.map_or(Ok(()), Fields::end)?;
        Ok(record)
    }
}

fn put_id(out: &mut Vec<u8>, id: EntryId) {
    out.put_u64(id.ms);
    out.put_u64(id.seq);
}

impl Fields<'_> {
    fn topic(&mut self) -> Result<TopicId> {
        let high = self.u64()?;
        let low = self.u64()?;
        Ok(TopicId::from_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()))
    }

    fn entry_id(&mut self) -> Result<EntryId> {
        Ok(EntryId::new(self.u64()?, self.u64()?))
    }

    fn stream(&mut self) -> Result<SavedStream> {
        Ok(SavedStream {
            is_own: self.flag()?,
            start: self.u64()?,
            before_start: self.entry_id()?,
            at: self.u64()?,
            last: self.entry_id()?,
            added: self.u64()?,
            max_deleted: self.entry_id()?,
        })
    }

    fn stream_group(&mut self) -> Result<(EntryId, Option<u64>)> {
        let last = self.entry_id()?;
        let is_known = self.flag()?;
        let read = self.u64()?;
        Ok((last, is_known.then_some(read)))
    }

    fn place(&mut self) -> Result<StreamPlace> {
        let cache = self.bytes()?.into();
        let key = self.bytes()?.into();
        let expires = self.u64()?;
        Ok(StreamPlace { cache, key, expires_ms: (expires != NEVER).then_some(expires) })
    }

    fn pending(&mut self) -> Result<Pending> {
        Ok(Pending { consumer: self.bytes()?.into(), delivered_ms: self.u64()?, deliveries: self.u64()? })
    }
}
