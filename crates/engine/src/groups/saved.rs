//! State of a group in the topic of offsets: what is recorded of it, and how it is restored.

use std::collections::BTreeSet;

use super::generation::SavedGeneration;
use super::group::{Group, Member, Now};
use super::membership::SavedMembership;
use super::offsets::Change;
use super::record::{OffsetsRecord, SavedGroup};
use super::wait::Outcome;
use super::{Identity, MemberId};
use crate::ids::{TopicName, TopicPartition};

/// Number of epochs that one record in the topic of offsets allows.
const EPOCH_BLOCK: u32 = 1024;
/// Maximum number of epochs that begin with one change: the topics are resolved, and then members are removed.
const EPOCHS_PER_CHANGE: u32 = 2;

impl Group {
    /// Returns the state that has to be in the topic of offsets before the next change. Epochs are assigned only up to
    /// a persisted bound, so that none is assigned twice, even after a restart.
    pub fn to_save(&self, is_joining: bool) -> Option<SavedGroup> {
        let empty_since_ms = self.empty_since_ms.filter(|_| !is_joining);
        let has_room = |bound: &u32| *bound >= self.epoch + EPOCHS_PER_CHANGE;
        let bound = self.saved.map(|saved| saved.epoch_bound).filter(has_room);
        let wanted = SavedGroup { epoch_bound: bound.unwrap_or(self.epoch + EPOCH_BLOCK), empty_since_ms };
        Some(wanted).filter(|wanted| self.saved.as_ref() != Some(wanted))
    }

    pub fn saved(&mut self, saved: SavedGroup) {
        self.saved = Some(saved);
    }

    /// Restores the state of the group before a restart of the broker. Its members have records of their own.
    pub fn restore(&mut self, saved: SavedGroup) {
        self.epoch = saved.epoch_bound;
        // A group that had members then counts as empty only from now on: they may return.
        self.empty_since_ms = saved.empty_since_ms.or(self.empty_since_ms);
        self.saved = Some(saved);
    }

    /// Restores the classic members with their assignments; `None` if they are void.
    pub fn restore_generation(&mut self, saved: Option<SavedGeneration>, now: Now) {
        self.classic.restore(saved, now);
        self.note_classic(now);
    }

    /// Restores a member for which the broker assigns; `None` if it is void.
    pub fn restore_member(&mut self, id: MemberId, saved: Option<SavedMembership>) {
        match saved {
            Some(saved) => self.members.insert(id, Member::restored(saved)),
            None => self.members.remove(&id),
        };
    }

    /// Completes the restoration, after all records: the sessions of members begin again. The next change starts an
    /// epoch, in which members keep the partitions that they have.
    pub fn restored(&mut self, now: Now) {
        self.classic.renew_sessions(now);
        if !self.classic.members.is_empty() {
            // The broker was about to assign for them, and no member has been told.
            self.unrecorded.extend(std::mem::take(&mut self.members).into_keys());
        }
        for (id, member) in &mut self.members {
            let owners = &mut self.owners;
            let mut is_first =
                |partition: &TopicPartition| *owners.entry(partition.clone()).or_insert_with(|| id.clone()) == *id;
            member.assigned.retain(&mut is_first);
            member.revoking.retain(&mut is_first);
            member.gone.retain(|partition| member.revoking.contains(partition));
            member.renew(now);
            member.has_record = true;
            if let Some(instance) = &member.instance {
                self.instances.insert(instance.clone(), id.clone());
            }
            self.targets.set(id, member.assigned.clone());
            self.targets.count(&member.topics);
            self.empty_since_ms = None;
        }
    }

    /// Returns `true` if the topic of offsets has all members and their assignments. No member may receive an
    /// assignment before it has, and before those records are committed.
    pub fn is_recorded(&self) -> bool {
        self.unrecorded.is_empty() && self.classic.is_recorded()
    }

    /// Returns the records about members that are missing in the topic of offsets. The one about classic members is the
    /// last: while it is missing, they are members.
    pub fn to_records(&self) -> Vec<OffsetsRecord> {
        let group = &self.name;
        let member = |id: &MemberId| OffsetsRecord::Member {
            group: group.clone(),
            member: id.clone(),
            saved: self.members.get(id).map(Member::to_save),
        };
        let generation = || OffsetsRecord::Generation { group: group.clone(), saved: self.classic.to_record() };
        self.unrecorded.iter().map(member).chain((!self.classic.is_recorded()).then(generation)).collect()
    }

    /// Notes that the records about the members were appended.
    pub fn recorded(&mut self) {
        for id in std::mem::take(&mut self.unrecorded) {
            self.members.get_mut(&id).into_iter().for_each(|member| member.has_record = true);
        }
        if !self.classic.is_recorded() {
            self.classic.recorded();
        }
    }

    /// Has the record of a member that is gone deleted, if there is one: members that come and go while nothing can be
    /// written leave nothing behind.
    pub(super) fn erase(&mut self, id: &MemberId, has_record: bool) {
        if has_record {
            self.unrecorded.insert(id.clone());
        } else {
            self.unrecorded.remove(id);
        }
    }

    /// Checks that a member is still one after its answer had to wait. Only the member can be silent, not the log.
    pub fn confirm(&mut self, who: &Identity, now: Now) -> Outcome {
        let member = self.find(who)?;
        member.session_ends_ms = now.steady_ms + u64::from(member.session_timeout_ms);
        Ok(())
    }

    /// Returns the topics of all committed offsets, and of all partitions that a member has.
    pub fn known_topics(&self) -> BTreeSet<TopicName> {
        self.committed().keys().chain(self.owners.keys()).map(|partition| partition.topic.clone()).collect()
    }

    /// Restores a change from the topic of offsets.
    pub fn restore_offset(&mut self, change: Change) {
        self.offsets.apply(change);
    }
}
