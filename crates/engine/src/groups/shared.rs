//! Members of both kinds in one group: classic members, which assign partitions among themselves ([`Classic`]), and
//! members for which the broker assigns. As soon as the group has a member of the second kind, the broker assigns for
//! all, until the group has no members. Classic members only notice that none of them is the leader: a heartbeat tells
//! them to rejoin whenever their assignment changes.

use std::collections::{BTreeMap, BTreeSet};

use super::classic_api::{ClassicJoin, ClassicSync, Entry, Given, Joined, Leaver, Protocol, Synced};
use super::group::{Group, Member, member_bytes};
use super::wait::{Outcome, rebalancing, replaced, unknown};
use super::{Catalog, GroupError, Identity, InstanceId, MemberId, Now, Reason};
use crate::ids::TopicPartition;
use crate::limits::{GROUP_MEMBERS_MAX, GROUP_PROTOCOLS_BYTES_MAX};

/// Additional state of a member for which the broker assigns and that uses the classic protocol.
#[derive(Debug)]
pub(super) struct Face {
    pub protocol_type: Box<str>,
    pub protocols: Vec<Protocol>,
    /// Tickets of its last join and its last sync.
    joined: u64,
    synced: u64,
    /// Partitions that it received last; `None` since it joined.
    reads: Option<BTreeSet<TopicPartition>>,
    /// Deadline for it to request its assignment.
    pub ends_ms: Option<u64>,
}

impl Face {
    /// Returns the state of a member that is restored. What it received last is not known: its next heartbeat tells it
    /// to join again, unless it has no partitions, and meanwhile it keeps them.
    pub(super) fn restored(protocol_type: Box<str>, protocols: Vec<Protocol>) -> Self {
        Self { protocol_type, protocols, joined: 0, synced: 0, reads: Some(BTreeSet::new()), ends_ms: None }
    }

    fn protocol(&self) -> &str {
        self.protocols.first().map_or("", |protocol| &protocol.name)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.protocols.iter().map(Protocol::bytes).sum()
    }
}

impl Group {
    /// Returns `true` if the broker assigns.
    fn is_shared(&self) -> bool {
        !self.members.is_empty()
    }

    /// Adds a classic member. The response is fetched with [`Group::joined`].
    pub fn join_classic(
        &mut self,
        mut join: ClassicJoin,
        initial_delay_ms: u64,
        catalog: &dyn Catalog,
        now: Now,
    ) -> Outcome<Entry> {
        join.check()?;
        if self.is_shared() {
            return self.join_shared(join, catalog, now);
        }
        let entry = self.classic.join(join, initial_delay_ms, now, &mut self.epoch);
        self.note_classic(now);
        entry
    }

    /// Wakes waiting requests if there are new responses, and updates the time since which the group is empty.
    pub(super) fn note_classic(&mut self, now: Now) {
        if self.classic.news != self.classic_news {
            self.classic_news = self.classic.news;
            self.version += 1;
        }
        match self.members_len() {
            0 => drop(self.empty_since_ms.get_or_insert(now.unix_ms)),
            _ => self.empty_since_ms = None,
        }
    }

    /// Adds a classic member to a group in which the broker assigns.
    fn join_shared(&mut self, mut join: ClassicJoin, catalog: &dyn Catalog, now: Now) -> Outcome<Entry> {
        let Some(subscription) = join.subscription.take() else {
            return Err(self.cannot_share());
        };
        let known = join.instance.as_ref().and_then(|instance| self.instances.get(instance)).cloned();
        let id = match join.member.clone() {
            None if join.comes_twice && join.instance.is_none() => return self.classic.name_member(join, now),
            None => join.fresh.clone(),
            Some(id) if known.is_some() || !self.classic.use_name(&id) => {
                let who = Identity { member: id, instance: join.instance.clone() };
                self.find_face(&who)?;
                // The request has to name the same instance id as its first join.
                if self.find(&who)?.instance != who.instance {
                    return Err(unknown(&self.name, who.member.as_str()));
                }
                who.member
            }
            Some(id) => id,
        };
        self.check_room(&join, known.as_ref().unwrap_or(&id))?;
        let who = Identity { member: id.clone(), instance: join.instance.clone() };
        self.check_patterns(&who, &subscription.topics)?;
        let is_fresh = !self.members.contains_key(&id);
        self.take_over(&who);
        let ticket = self.classic.ticket();
        let member = self.members.entry(id.clone()).or_insert_with(|| Member::new(who.instance.clone()));
        let is_same = member.epoch > 0 && *member.topics == *subscription.topics;
        member.must_join = false;
        member.client = join.client;
        member.host = join.host;
        member.session_timeout_ms = join.session_timeout_ms;
        member.rebalance_timeout_ms = join.rebalance_timeout_ms;
        member.face = Some(Box::new(Face {
            protocol_type: join.protocol_type,
            protocols: join.protocols,
            joined: ticket,
            synced: 0,
            reads: None,
            ends_ms: Some(now.steady_ms + u64::from(join.rebalance_timeout_ms)),
        }));
        if let Some(instance) = &who.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        if is_same {
            self.refresh(catalog);
        } else {
            self.subscribe(&id, subscription.topics, catalog);
        }
        if is_fresh {
            self.begin_anew(&id);
        } else {
            self.unrecorded.insert(id.clone());
            // Revoked partitions that the member does not read are released immediately.
            self.reconcile(&who, now)?;
            self.release(&id, &subscription.owned);
        }
        self.renew_session(&id, now);
        Ok(Entry::Waits { who, ticket })
    }

    /// Checks the limits for a join. `before` is the member that joins again, or that it replaces.
    fn check_room(&self, join: &ClassicJoin, before: &MemberId) -> Outcome {
        let others = self.members.iter().filter(|(id, _)| *id != before);
        let mut count = 0;
        let mut bytes = join.held_bytes();
        for (_, member) in others {
            count += 1;
            bytes += member.face.as_ref().map_or(0, |face| face.held_bytes());
        }
        if count >= GROUP_MEMBERS_MAX {
            let message = format!("group {} has {GROUP_MEMBERS_MAX} members", self.name);
            return Err(GroupError::new(Reason::GroupFull, message));
        }
        if bytes > GROUP_PROTOCOLS_BYTES_MAX {
            let message = format!("the protocol metadata of all members has at most {GROUP_PROTOCOLS_BYTES_MAX} bytes");
            return Err(crate::error::Error::too_large(message).into());
        }
        Ok(())
    }

    fn cannot_share(&self) -> GroupError {
        let message =
            format!("group {} has members of another protocol, which cannot share partitions with this one", self.name);
        GroupError::new(Reason::InconsistentProtocol, message)
    }

    fn find_face(&mut self, who: &Identity) -> Outcome<&mut Face> {
        let name = self.name.clone();
        let face = self.find(who)?.face.as_deref_mut();
        face.ok_or_else(|| unknown(&name, who.member.as_str()))
    }

    /// Makes the broker assign from now on: classic members keep the partitions that they read. Returns `true` if there
    /// were any. Fails if the subscription of one of them is unknown.
    pub(super) fn adopt_classic(&mut self, now: Now) -> Outcome<bool> {
        if self.classic.members.is_empty() {
            return Ok(false);
        }
        if !self.classic.is_readable() {
            return Err(self.cannot_share());
        }
        let generation = self.classic.generation();
        let protocol_type = self.classic.protocol_type().to_owned();
        for (id, member) in self.classic.hand_over() {
            let mut adopted = Member::new(member.instance.clone());
            for partition in &member.reads {
                // A partition that two members claim is assigned to the first.
                if !self.owners.contains_key(partition) {
                    self.owners.insert(partition.clone(), id.clone());
                    adopted.assigned.insert(partition.clone());
                }
            }
            adopted.epoch = generation;
            adopted.shown_epoch = generation;
            adopted.session_timeout_ms = member.session_timeout_ms;
            adopted.rebalance_timeout_ms = member.rebalance_timeout_ms;
            adopted.session_ends_ms = member.session_ends_ms(now);
            let reads = member.has_share().then(|| adopted.assigned.clone());
            adopted.face = Some(Box::new(Face {
                protocol_type: protocol_type.as_str().into(),
                joined: member.open_join().unwrap_or_default(),
                synced: 0,
                ends_ms: reads.is_none().then(|| now.steady_ms + u64::from(member.rebalance_timeout_ms)),
                reads,
                protocols: member.protocols,
            }));
            adopted.client = member.client;
            adopted.host = member.host;
            adopted.topics = member.topics.unwrap_or_default().into();
            self.targets.count(&adopted.topics);
            if let Some(instance) = member.instance {
                self.instances.insert(instance, id.clone());
            }
            self.targets.set(&id, adopted.assigned.clone());
            self.unrecorded.insert(id.clone());
            self.members.insert(id, adopted);
        }
        self.version += 1;
        Ok(true)
    }

    /// Returns the response to a join once it exists.
    pub fn joined(&mut self, who: &Identity, ticket: u64, now: Now) -> Outcome<Option<Joined>> {
        if !self.is_shared() {
            return self.classic.joined(who, ticket);
        }
        let name = self.name.clone();
        if self.find_face(who)?.joined != ticket {
            return Err(rebalancing(&name));
        }
        self.reconcile(who, now)?;
        let generation = self.find(who)?.epoch;
        let face = self.find_face(who)?;
        Ok(Some(Joined {
            generation,
            protocol_type: face.protocol_type.clone(),
            protocol: face.protocol().into(),
            leader: None,
            member: who.member.clone(),
            members: Vec::new(),
            is_assigned: false,
        }))
    }

    /// Handles the request of a member for its assignment; a leader sends the assignment of all members. The response
    /// is fetched with [`Group::synced`].
    pub fn sync_classic(&mut self, sync: ClassicSync, now: Now) -> Outcome<u64> {
        if !self.is_shared() {
            let ticket = self.classic.sync(sync, now);
            self.note_classic(now);
            return ticket;
        }
        self.find_face(&sync.who)?;
        self.member(&sync.who, sync.generation)?.shown_epoch = sync.generation;
        let ticket = self.classic.ticket();
        self.find_face(&sync.who)?.synced = ticket;
        self.renew_session(&sync.who.member, now);
        Ok(ticket)
    }

    /// Returns the response to a sync once it exists.
    pub fn synced(&mut self, who: &Identity, ticket: u64, now: Now) -> Outcome<Option<Synced>> {
        if !self.is_shared() {
            return self.classic.synced(who, ticket);
        }
        let name = self.name.clone();
        if self.find_face(who)?.synced != ticket {
            return Err(rebalancing(&name));
        }
        self.reconcile(who, now)?;
        let assigned = self.find(who)?.assigned.clone();
        let face = self.find_face(who)?;
        face.reads = Some(assigned.clone());
        face.ends_ms = None;
        Ok(Some(Synced {
            protocol_type: face.protocol_type.clone(),
            protocol: face.protocol().into(),
            given: Given::Partitions(assigned.into_iter().collect()),
        }))
    }

    /// Handles a heartbeat. Fails if the member has to rejoin because its assignment has changed.
    pub fn heartbeat_classic(&mut self, who: &Identity, generation: u32, catalog: &dyn Catalog, now: Now) -> Outcome {
        if !self.is_shared() {
            return self.classic.heartbeat(who, generation, now);
        }
        self.find_face(who)?;
        self.member(who, generation)?.shown_epoch = generation;
        self.refresh(catalog);
        self.renew_session(&who.member, now);
        self.reconcile(who, now)?;
        let name = self.name.clone();
        let member = self.find(who)?;
        let ends_ms = now.steady_ms + u64::from(member.rebalance_timeout_ms);
        let has_to_give_up = !member.revoking.is_empty();
        let assigned = &member.assigned;
        let Some(face) = &mut member.face else {
            return Ok(());
        };
        // A member that has joined gets its current assignment when it syncs.
        let is_as_told = face.reads.as_ref().is_none_or(|reads| !has_to_give_up && reads == assigned);
        if is_as_told {
            return Ok(());
        }
        face.ends_ms.get_or_insert(ends_ms);
        Err(rebalancing(&name))
    }

    /// Removes members, at their own request or at that of an administrator, and renews the targets once for all of
    /// them. Returns the id of each.
    pub fn leave_classic(&mut self, leavers: &[Leaver], now: Now) -> Vec<Outcome<MemberId>> {
        if !self.is_shared() {
            let left = self.classic.leave(leavers, now, &mut self.epoch);
            self.note_classic(now);
            return left;
        }
        let before = self.members.len();
        let left = leavers.iter().map(|leaver| self.leave_one(leaver)).collect();
        self.go_on(before, now);
        left
    }

    fn leave_one(&mut self, leaver: &Leaver) -> Outcome<MemberId> {
        let known = |instance: &InstanceId| self.instances.get(instance).cloned();
        let by_instance = leaver.instance.as_ref().and_then(known);
        let member = match (&leaver.member, by_instance) {
            (Some(member), Some(known)) if *member != known => return Err(replaced(&self.name, member)),
            (member, known) => member.clone().or(known).ok_or_else(|| unknown(&self.name, ""))?,
        };
        if !self.classic.use_name(&member) {
            self.find(&Identity { member: member.clone(), instance: leaver.instance.clone() })?;
            self.take_out(&member);
        }
        Ok(member)
    }

    /// Returns the number of bytes that classic members make the group hold.
    pub fn protocols_bytes(&self) -> usize {
        let faces = self.members.values().filter_map(|member| member.face.as_ref());
        self.classic.held_bytes() + faces.map(|face| face.held_bytes()).sum::<usize>()
    }

    /// Returns an upper bound of the bytes that the members take: their entries in the tables of the group, their
    /// subscriptions, and what classic members make the group hold.
    pub fn members_bytes(&self) -> usize {
        let of_classic = self.classic.members.values().map(|member| member.topics.as_ref().map_or(0, Vec::len));
        let topics = self.members.values().map(|member| member.topics.len()).chain(of_classic);
        self.protocols_bytes() + topics.map(member_bytes).sum::<usize>()
    }

    /// Returns the size of the assignments that the leader of its classic members has made.
    pub fn assigned_bytes(&self) -> usize {
        self.classic.assigned_bytes()
    }

    /// Returns an upper bound of the bytes that a member takes already; 0 if the group has no such member.
    pub fn bytes_of(&self, id: Option<&MemberId>, instance: Option<&InstanceId>) -> usize {
        let static_id = |instances: &BTreeMap<InstanceId, MemberId>| instance.and_then(|of| instances.get(of)).cloned();
        let known = static_id(&self.instances).or_else(|| static_id(&self.classic.instances));
        let Some(id) = known.as_ref().or(id) else {
            return 0;
        };
        let shared = self
            .members
            .get(id)
            .map(|member| member_bytes(member.topics.len()) + member.face.as_ref().map_or(0, |face| face.held_bytes()));
        let classic = || {
            let member = self.classic.members.get(id)?;
            Some(member_bytes(member.topics.as_ref().map_or(0, Vec::len)) + member.held_bytes())
        };
        shared.or_else(classic).unwrap_or_default()
    }

    pub(super) fn expire_classic(&mut self, now: Now) -> Vec<MemberId> {
        let over = self.classic.expire(now, &mut self.epoch);
        self.note_classic(now);
        over
    }
}
