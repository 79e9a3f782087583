//! Records of the topic `_offsets`: the newest value of each key is valid, null deletes the key.
//!
//! The fields are as in `fields.rs`.
//!
//! | key | version (u16) | then |
//! |---|---|---|
//! | a committed offset | 1 | group (text), topic (text), partition (u32) |
//! | a group | 2 | group (text) |
//! | a generation of a classic group | 3 | group (text) |
//! | a member for which the broker assigns | 4 | group (text), id (text) |
//!
//! | value | version (u16) | then |
//! |---|---|---|
//! | a committed offset | 1 | offset (u64), leader epoch (i32), committed at, ms since 1970 (u64), metadata (text) |
//! | a group | 1 | epoch bound (u32), empty since, ms since 1970 (u64, 2^64 - 1 while it has members) |
//! | a generation of a classic group | 1 | as in `generation.rs` |
//! | a member for which the broker assigns | 1 | as in `membership.rs` |
//!
//! Protocols are a list of names (text), each with its metadata (a length of 4 bytes, and the bytes).

use bytes::{BufMut, Bytes};

use super::classic_api::Protocol;
use super::generation::SavedGeneration;
use super::membership::SavedMembership;
use super::offsets::{Change, Committed};
use super::{GroupName, MemberId};
use crate::error::Result;
use crate::fields::{Fields, put_list, put_long, put_text, unknown_version};
use crate::ids::{TopicName, TopicPartition};

const KEY_OFFSET: u16 = 1;
const KEY_GROUP: u16 = 2;
const KEY_GENERATION: u16 = 3;
const KEY_MEMBER: u16 = 4;
const VALUE_VERSION: u16 = 1;
/// Encoding of a missing time.
const NEVER: u64 = u64::MAX;

/// Persisted state of a group apart from its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedGroup {
    /// Upper bound of all epochs that were assigned.
    pub epoch_bound: u32,
    /// Time since which the group has no members, ms since 1970.
    pub empty_since_ms: Option<u64>,
}

/// Record of the topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffsetsRecord {
    Offset { group: GroupName, change: Change },
    Group { group: GroupName, saved: Option<SavedGroup> },
    Generation { group: GroupName, saved: Option<SavedGeneration> },
    Member { group: GroupName, member: MemberId, saved: Option<SavedMembership> },
}

impl OffsetsRecord {
    pub fn group(&self) -> &GroupName {
        match self {
            Self::Offset { group, .. }
            | Self::Group { group, .. }
            | Self::Generation { group, .. }
            | Self::Member { group, .. } => group,
        }
    }

    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        match self {
            Self::Offset { group, change } => {
                key.put_u16(KEY_OFFSET);
                put_text(&mut key, group.as_str());
                put_text(&mut key, change.partition.topic.as_str());
                key.put_u32(change.partition.partition);
            }
            Self::Group { group, .. } => {
                key.put_u16(KEY_GROUP);
                put_text(&mut key, group.as_str());
            }
            Self::Generation { group, .. } => {
                key.put_u16(KEY_GENERATION);
                put_text(&mut key, group.as_str());
            }
            Self::Member { group, member, .. } => {
                key.put_u16(KEY_MEMBER);
                put_text(&mut key, group.as_str());
                put_text(&mut key, member.as_str());
            }
        }
        key
    }

    pub fn value(&self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        value.put_u16(VALUE_VERSION);
        match self {
            Self::Offset { change, .. } => {
                let committed = change.committed.as_ref()?;
                value.put_u64(committed.offset);
                value.put_i32(committed.leader_epoch);
                value.put_u64(committed.committed_ms);
                put_text(&mut value, &committed.metadata);
            }
            Self::Group { saved, .. } => {
                let saved = saved.as_ref()?;
                value.put_u32(saved.epoch_bound);
                value.put_u64(saved.empty_since_ms.unwrap_or(NEVER));
            }
            Self::Generation { saved, .. } => saved.as_ref()?.encode(&mut value),
            Self::Member { saved, .. } => saved.as_ref()?.encode(&mut value),
        }
        Some(value)
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        let mut key = Fields(key);
        let mut value = value.map(Fields);
        let key_version = key.u16()?;
        if let Some(value) = &mut value {
            value.check_version("value", VALUE_VERSION)?;
        }
        let group = GroupName::parse(key.text()?)?;
        let record = match key_version {
            KEY_OFFSET => {
                let topic = TopicName::parse(key.text()?)?;
                let partition = TopicPartition { topic, partition: key.u32()? };
                let committed = value.as_mut().map(Fields::committed).transpose()?;
                Self::Offset { group, change: Change { partition, committed } }
            }
            KEY_GROUP => Self::Group { group, saved: value.as_mut().map(Fields::saved).transpose()? },
            KEY_GENERATION => {
                Self::Generation { group, saved: value.as_mut().map(SavedGeneration::decode).transpose()? }
            }
            KEY_MEMBER => {
                let member = MemberId::parse(key.text()?)?;
                Self::Member { group, member, saved: value.as_mut().map(SavedMembership::decode).transpose()? }
            }
            unknown => return Err(unknown_version("key", unknown)),
        };
        key.end()?;
        value.map_or(Ok(()), Fields::end)?;
        Ok(record)
    }
}

pub(super) fn put_protocols(out: &mut Vec<u8>, protocols: &[Protocol]) {
    put_list(out, protocols, |out, protocol| {
        put_text(out, &protocol.name);
        put_long(out, &protocol.metadata);
    });
}

impl Fields<'_> {
    pub(super) fn protocols(&mut self) -> Result<Vec<Protocol>> {
        self.list(|fields| {
            Ok(Protocol { name: fields.text()?.into(), metadata: Bytes::copy_from_slice(fields.long()?) })
        })
    }

    fn committed(&mut self) -> Result<Committed> {
        Ok(Committed {
            offset: self.u64()?,
            leader_epoch: self.u32()? as i32,
            committed_ms: self.u64()?,
            metadata: self.text()?.into(),
        })
    }

    fn saved(&mut self) -> Result<SavedGroup> {
        let epoch_bound = self.u32()?;
        Ok(SavedGroup { epoch_bound, empty_since_ms: Some(self.u64()?).filter(|since| *since != NEVER) })
    }
}
