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
//! | topics to which it subscribes; none if only its client knows which it may read | optional list of text |
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
use crate::limits::GROUP_RECORDED_BYTES_MAX;
use crate::pattern::Pattern;

/// Member as the topic of offsets holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedMembership {
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    /// `None` if only its client can tell.
    pub topics: Option<Vec<Pattern>>,
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
        put_optional(out, self.topics.as_ref(), |out, topics| {
            put_list(out, topics, |out, topic| put_text(out, topic.as_str()));
        });
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
            topics: fields.optional(|fields| fields.list(|fields| Pattern::parse(fields.text()?)))?,
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
    /// Returns the member as it was saved. Its next heartbeat gets all its partitions. If its subscription is unknown,
    /// it has to release them and join again.
    pub(super) fn restored(saved: SavedMembership) -> Self {
        let mut member = Self::new(saved.instance);
        member.client = saved.client;
        member.host = saved.host;
        member.must_join = saved.topics.is_none();
        member.topics = saved.topics.unwrap_or_default().into();
        member.assignor = saved.assignor;
        member.session_timeout_ms = saved.session_timeout_ms;
        member.rebalance_timeout_ms = saved.rebalance_timeout_ms;
        (member.epoch, member.shown_epoch) = (saved.epoch, saved.shown_epoch);
        member.is_away = saved.is_away;
        (member.assigned, member.revoking, member.gone) = (saved.assigned, saved.revoking, saved.gone);
        if member.must_join {
            member.revoking.append(&mut member.assigned);
        }
        member.news = 1;
        let face = saved.classic.map(|(protocol_type, protocols)| Box::new(Face::restored(protocol_type, protocols)));
        member.face = face;
        member
    }

    /// Starts the session and the time for a release again.
    pub(super) fn renew(&mut self, now: Now) {
        self.session_ends_ms = now.steady_ms + u64::from(self.session_timeout_ms);
        let release_ends_ms = now.steady_ms + u64::from(self.rebalance_timeout_ms);
        self.revocation_ends_ms = (!self.revoking.is_empty()).then_some(release_ends_ms);
    }

    /// Returns the member for the topic of offsets. A rule of a door is not saved, nor are protocols that are too large
    /// for that.
    pub(super) fn to_save(&self) -> SavedMembership {
        let is_rule = |topic: &Pattern| matches!(topic, Pattern::Rule(_));
        let is_large = self.face.as_ref().is_some_and(|face| face.held_bytes() > GROUP_RECORDED_BYTES_MAX);
        let face = self.face.as_ref().filter(|_| !is_large);
        let is_known = !self.must_join && !is_large && !self.topics.iter().any(is_rule);
        SavedMembership {
            instance: self.instance.clone(),
            client: self.client.clone(),
            host: self.host.clone(),
            topics: is_known.then(|| self.topics.to_vec()),
            assignor: self.assignor,
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            epoch: self.epoch,
            shown_epoch: self.shown_epoch,
            is_away: self.is_away,
            assigned: self.assigned.clone(),
            revoking: self.revoking.clone(),
            gone: self.gone.clone(),
            classic: face.map(|face| (face.protocol_type.clone(), face.protocols.clone())),
        }
    }
}
