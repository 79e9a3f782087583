//! Generation of a classic group as the topic of offsets holds it: its members and their assignments, so that they stay
//! in the group when its broker restarts or another node takes over.
//!
//! The fields are as in `fields.rs`; `bytes` have a length of 4 bytes.
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
//! | protocols, as in `record.rs` | list |
//! | topics to which it subscribes, if known | optional list of text |
//! | partitions that it reads, as far as known | partitions |
//! | assignment | bytes |

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes};

use super::classic_api::Protocol;
use super::record::put_protocols;
use super::{InstanceId, MemberId};
use crate::error::Result;
use crate::fields::{Fields, put_list, put_long, put_optional, put_partitions, put_text};
use crate::ids::TopicPartition;
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
            leader: fields.optional(|fields| MemberId::parse(fields.text()?))?,
            members: fields.list(SavedMember::decode)?,
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
        put_protocols(out, &self.protocols);
        put_optional(out, self.topics.as_ref(), |out, topics| {
            put_list(out, topics, |out, topic| put_text(out, topic.as_str()));
        });
        put_partitions(out, &self.reads);
        put_long(out, &self.assignment);
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            id: MemberId::parse(fields.text()?)?,
            instance: fields.optional(|fields| InstanceId::parse(fields.text()?))?,
            client: fields.text()?.to_owned(),
            host: fields.text()?.to_owned(),
            session_timeout_ms: fields.u32()?,
            rebalance_timeout_ms: fields.u32()?,
            protocols: fields.protocols()?,
            topics: fields.optional(|fields| fields.list(|fields| Pattern::parse(fields.text()?)))?,
            reads: fields.partitions()?,
            assignment: Bytes::copy_from_slice(fields.long()?),
        })
    }
}
