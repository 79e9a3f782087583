//! Membership in a group in which the broker assigns, as the topic of offsets holds it: so that the member stays in the
//! group, with its partitions, when its broker restarts or another node takes over.
//!
//! Each member has a record of its own, which is written whenever the member or its partitions change. The target of
//! the group is not written: it follows from what the members have. The fields are as in `fields.rs`.
//!
//! | field | type |
//! |---|---|
//! | instance id | optional text |
//! | names of its program and of its host | text, text |
//! | topics to which it subscribes | list of text |
//! | assignor | u8 |
//! | session timeout, rebalance timeout, ms | u32, u32 |
//! | its epoch, and the lowest epoch that it may send | u32, u32 |
//! | 1 if it is away | u8 |
//! | partitions that it may read | partitions |
//! | partitions that it has to release | partitions |
//! | those of them whose topic was deleted | partitions |
//! | of a member of the classic protocol, protocol type and protocols as in `record.rs` | optional text and list |

use std::collections::BTreeSet;

use bytes::BufMut;

use super::InstanceId;
use super::assign::Assignor;
use super::classic_api::Protocol;
use super::group::{Member, Now};
use super::record::put_protocols;
use super::shared::Face;
use crate::error::Result;
use crate::fields::{Fields, put_list, put_optional, put_partitions, put_text};
use crate::ids::TopicPartition;
use crate::pattern::Pattern;

/// Member as the topic of offsets holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedMembership {
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    pub topics: Vec<Pattern>,
    pub assignor: Assignor,
    pub session_timeout_ms: u32,
    pub rebalance_timeout_ms: u32,
    pub epoch: u32,
    /// Lowest epoch that it may send.
    pub shown_epoch: u32,
    pub is_away: bool,
    pub assigned: BTreeSet<TopicPartition>,
    pub revoking: BTreeSet<TopicPartition>,
    /// Subset of `revoking` whose topic was deleted.
    pub gone: BTreeSet<TopicPartition>,
    /// Protocol type and protocols of a member that uses the classic protocol.
    pub classic: Option<(Box<str>, Vec<Protocol>)>,
}

impl SavedMembership {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_optional(out, self.instance.as_ref(), |out, instance| put_text(out, instance.as_str()));
        put_text(out, &self.client);
        put_text(out, &self.host);
        put_list(out, &self.topics, |out, topic| put_text(out, topic.as_str()));
        out.put_u8(self.assignor as u8);
        out.put_u32(self.session_timeout_ms);
        out.put_u32(self.rebalance_timeout_ms);
        out.put_u32(self.epoch);
        out.put_u32(self.shown_epoch);
        out.put_u8(self.is_away.into());
        put_partitions(out, &self.assigned);
        put_partitions(out, &self.revoking);
        put_partitions(out, &self.gone);
        put_optional(out, self.classic.as_ref(), |out, (protocol_type, protocols)| {
            put_text(out, protocol_type);
            put_protocols(out, protocols);
        });
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            instance: fields.optional(|fields| InstanceId::parse(fields.text()?))?,
            client: fields.text()?.to_owned(),
            host: fields.text()?.to_owned(),
            topics: fields.list(|fields| Pattern::parse(fields.text()?))?,
            assignor: fields.code(Assignor::from_code)?,
            session_timeout_ms: fields.u32()?,
            rebalance_timeout_ms: fields.u32()?,
            epoch: fields.u32()?,
            shown_epoch: fields.u32()?,
            is_away: fields.flag()?,
            assigned: fields.partitions()?,
            revoking: fields.partitions()?,
            gone: fields.partitions()?,
            classic: fields.optional(|fields| Ok((fields.text()?.into(), fields.protocols()?)))?,
        })
    }
}

impl Member {
    /// Returns the member as it was saved. Its session begins again, and its next heartbeat gets all its partitions.
    pub(super) fn restored(saved: SavedMembership, now: Now) -> Self {
        let session_ends_ms = now.steady_ms + u64::from(saved.session_timeout_ms);
        let revocation_ends_ms = now.steady_ms + u64::from(saved.rebalance_timeout_ms);
        let mut member = Self::new(saved.instance);
        member.client = saved.client;
        member.host = saved.host;
        member.topics = saved.topics;
        member.assignor = saved.assignor;
        member.session_timeout_ms = saved.session_timeout_ms;
        member.rebalance_timeout_ms = saved.rebalance_timeout_ms;
        (member.epoch, member.shown_epoch) = (saved.epoch, saved.shown_epoch);
        member.is_away = saved.is_away;
        member.revocation_ends_ms = (!saved.revoking.is_empty()).then_some(revocation_ends_ms);
        (member.assigned, member.revoking, member.gone) = (saved.assigned, saved.revoking, saved.gone);
        member.session_ends_ms = session_ends_ms;
        member.news = 1;
        let face = saved.classic.map(|(protocol_type, protocols)| Box::new(Face::restored(protocol_type, protocols)));
        member.face = face;
        member
    }

    /// Returns the member for the topic of offsets; `None` if its subscription depends on the permissions of its
    /// client, so that only the client can renew it.
    pub(super) fn to_save(&self) -> Option<SavedMembership> {
        if self.topics.iter().any(|topic| matches!(topic, Pattern::Rule(_))) {
            return None;
        }
        Some(SavedMembership {
            instance: self.instance.clone(),
            client: self.client.clone(),
            host: self.host.clone(),
            topics: self.topics.clone(),
            assignor: self.assignor,
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            epoch: self.epoch,
            shown_epoch: self.shown_epoch,
            is_away: self.is_away,
            assigned: self.assigned.clone(),
            revoking: self.revoking.clone(),
            gone: self.gone.clone(),
            classic: self.face.as_ref().map(|face| (face.protocol_type.clone(), face.protocols.clone())),
        })
    }
}
