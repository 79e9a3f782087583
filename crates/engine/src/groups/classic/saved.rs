//! Members of a classic group and their assignments, as the topic of offsets keeps them.

use super::{Classic, Member, Phase};
use crate::groups::generation::{SavedGeneration, SavedMember};
use crate::groups::wait::Wait;
use crate::groups::{MemberId, Now};
use crate::limits::GROUP_RECORDED_BYTES_MAX;
use crate::pattern::Pattern;

impl Classic {
    /// Restores the members and their assignments, as they were recorded. Their sessions begin again.
    pub(in crate::groups) fn restore(&mut self, saved: Option<SavedGeneration>, now: Now) {
        *self = Self { news: self.news + 1, ..Self::new(self.name.clone()) };
        let Some(SavedGeneration { number, protocol_type, protocol, leader, members }) = saved else {
            return;
        };
        self.generation = number;
        (self.protocol_type, self.protocol, self.leader) = (protocol_type, protocol, leader);
        self.recorded = Some(number);
        self.phase = if members.is_empty() { Phase::Empty } else { Phase::Stable };
        for saved in members {
            let (id, member) = Member::restored(saved, now);
            self.held_bytes += member.held_bytes();
            if let Some(instance) = &member.instance {
                self.instances.insert(instance.clone(), id.clone());
            }
            self.members.insert(id, member);
        }
    }

    /// Starts the sessions of all members again.
    pub(in crate::groups) fn renew_sessions(&mut self, now: Now) {
        self.members.values_mut().for_each(|member| member.renew_session(now));
    }

    /// Returns `true` if the topic of offsets has the members and their assignments. While members join, it keeps those
    /// of the generation before: they are still members.
    pub(in crate::groups) fn is_recorded(&self) -> bool {
        match self.phase {
            Phase::Empty => self.recorded.is_none(),
            Phase::Preparing { .. } | Phase::Completing => true,
            Phase::Stable => self.recorded == Some(self.generation),
        }
    }

    /// Returns the members and their assignments for the topic of offsets; `None` if there are none, or if they are too
    /// large.
    pub(in crate::groups) fn to_record(&self) -> Option<SavedGeneration> {
        if self.phase != Phase::Stable || self.held_bytes() > GROUP_RECORDED_BYTES_MAX {
            return None;
        }
        Some(SavedGeneration {
            number: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            members: self.members.iter().map(|(id, member)| member.to_save(id)).collect(),
        })
    }

    /// Notes that the topic of offsets has what [`Classic::to_record`] returned.
    pub(in crate::groups) fn recorded(&mut self) {
        self.recorded = (self.phase == Phase::Stable).then_some(self.generation);
    }
}

impl Member {
    fn restored(saved: SavedMember, now: Now) -> (MemberId, Self) {
        let mut member = Self {
            instance: saved.instance,
            client: saved.client,
            host: saved.host,
            session_timeout_ms: saved.session_timeout_ms,
            rebalance_timeout_ms: saved.rebalance_timeout_ms,
            protocols: saved.protocols,
            topics: saved.topics,
            reads: saved.reads,
            assignment: saved.assignment,
            join: Wait::None,
            sync: Wait::None,
            owes_sync: false,
            session_ends_ms: 0,
        };
        member.renew_session(now);
        (saved.id, member)
    }

    fn to_save(&self, id: &MemberId) -> SavedMember {
        SavedMember {
            id: id.clone(),
            instance: self.instance.clone(),
            client: self.client.clone(),
            host: self.host.clone(),
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            protocols: self.protocols.clone(),
            topics: self.topics.clone().filter(|topics| topics.iter().all(is_name)),
            reads: self.reads.clone(),
            assignment: self.assignment.clone(),
        }
    }
}

fn is_name(topic: &Pattern) -> bool {
    matches!(topic, Pattern::Topic(_))
}
