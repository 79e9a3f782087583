//! Generation of a classic group as the topic of offsets holds it: its members and their assignments, so that they stay
//! in the group when its broker restarts or another node takes over.
//!
//! All integers are big-endian; a text is its length (2 bytes) and its bytes, UTF-8; `bytes` have a length of 4 bytes.
//! An optional field is a byte, 0 or 1, and then the field if it is 1. A list is its length (u32) and its items.
//!
//! | field | type |
//! |---|---|
//! | number of the generation | u32 |
//! | protocol type, protocol | text, text |
//! | id of the leader | optional text |
//! | members | list |
//!
//! | field of a member | type |
//! |---|---|
//! | id | text |
//! | instance id | optional text |
//! | names of its program and of its host | text, text |
//! | session timeout, rebalance timeout, ms | u32, u32 |
//! | protocols | list of name (text) and metadata (bytes) |
//! | topics to which it subscribes, if known | optional list of text |
//! | partitions that it reads, as far as known | list of topic (text) and its partitions (list of u32) |
//! | assignment | bytes |

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes};

use super::classic_api::Protocol;
use super::{InstanceId, MemberId};
use crate::error::Result;
use crate::fields::{Fields, put_long, put_text};
use crate::ids::{TopicName, TopicPartition};
use crate::pattern::Pattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedGeneration {
    pub number: u32,
    pub protocol_type: Box<str>,
    pub protocol: Box<str>,
    pub leader: Option<MemberId>,
    pub members: Vec<SavedMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedMember {
    pub id: MemberId,
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    pub session_timeout_ms: u32,
    pub rebalance_timeout_ms: u32,
    pub protocols: Vec<Protocol>,
    pub topics: Option<Vec<Pattern>>,
    pub reads: BTreeSet<TopicPartition>,
    pub assignment: Bytes,
}

impl SavedGeneration {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.number);
        put_text(out, &self.protocol_type);
        put_text(out, &self.protocol);
        put_optional(out, self.leader.as_ref(), |out, leader| put_text(out, leader.as_str()));
        put_list(out, &self.members, |out, member| member.encode(out));
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            number: fields.u32()?,
            protocol_type: fields.text()?.into(),
            protocol: fields.text()?.into(),
            leader: optional(fields, |fields| MemberId::parse(fields.text()?))?,
            members: list(fields, SavedMember::decode)?,
        })
    }
}

impl SavedMember {
    fn encode(&self, out: &mut Vec<u8>) {
        put_text(out, self.id.as_str());
        put_optional(out, self.instance.as_ref(), |out, instance| put_text(out, instance.as_str()));
        put_text(out, &self.client);
        put_text(out, &self.host);
        out.put_u32(self.session_timeout_ms);
        out.put_u32(self.rebalance_timeout_ms);
        put_list(out, &self.protocols, |out, protocol| {
            put_text(out, &protocol.name);
            put_long(out, &protocol.metadata);
        });
        put_optional(out, self.topics.as_ref(), |out, topics| {
            put_list(out, topics, |out, topic| put_text(out, topic.as_str()));
        });
        let reads: Vec<&TopicPartition> = self.reads.iter().collect();
        let topics: Vec<&[&TopicPartition]> = reads.chunk_by(|a, b| a.topic == b.topic).collect();
        put_list(out, &topics, |out, of_topic| {
            put_text(out, of_topic[0].topic.as_str());
            put_list(out, of_topic, |out, read| out.put_u32(read.partition));
        });
        put_long(out, &self.assignment);
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            id: MemberId::parse(fields.text()?)?,
            instance: optional(fields, |fields| InstanceId::parse(fields.text()?))?,
            client: fields.text()?.to_owned(),
            host: fields.text()?.to_owned(),
            session_timeout_ms: fields.u32()?,
            rebalance_timeout_ms: fields.u32()?,
            protocols: list(fields, |fields| {
                Ok(Protocol { name: fields.text()?.into(), metadata: Bytes::copy_from_slice(fields.long()?) })
            })?,
            topics: optional(fields, |fields| list(fields, |fields| Pattern::parse(fields.text()?)))?,
            reads: list(fields, |fields| {
                let topic = TopicName::parse(fields.text()?)?;
                list(fields, |fields| Ok(TopicPartition { topic: topic.clone(), partition: fields.u32()? }))
            })?
            .into_iter()
            .flatten()
            .collect(),
            assignment: Bytes::copy_from_slice(fields.long()?),
        })
    }
}

fn put_optional<T>(out: &mut Vec<u8>, field: Option<&T>, put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u8(field.is_some().into());
    field.into_iter().for_each(|field| put(out, field));
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u32(items.len() as u32);
    items.iter().for_each(|item| put(out, item));
}

fn optional<'a, T>(fields: &mut Fields<'a>, read: impl Fn(&mut Fields<'a>) -> Result<T>) -> Result<Option<T>> {
    Ok(if fields.flag()? { Some(read(fields)?) } else { None })
}

/// Reads a list. Memory is reserved only for items that are there.
fn list<'a, T>(fields: &mut Fields<'a>, read: impl Fn(&mut Fields<'a>) -> Result<T>) -> Result<Vec<T>> {
    let count = fields.u32()?;
    (0..count).map(|_| read(fields)).collect()
}
