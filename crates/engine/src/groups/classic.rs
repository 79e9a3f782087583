//! Classic members, which assign partitions among themselves: the group collects the members, one of them, the
//! *leader*, assigns partitions to all, and the group forwards the assignments without reading them. Kafka calls this
//! the classic protocol.
//!
//! All members join, then all request their assignments; whenever a member joins or leaves, all have to join again.
//! Each round is a *generation*. A response that has to wait for other members is polled with the ticket of its request
//! until it exists.

mod saved;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::classic_api::{
    ClassicJoin, ClassicPhase, ClassicSync, Entry, Given, Joined, JoinedMember, Leaver, Protocol, Synced,
};
use super::wait::{Outcome, Wait, rebalancing, replaced, unknown};
use super::{GroupError, GroupName, Identity, InstanceId, MemberId, Now, Reason};
use crate::error::Error;
use crate::ids::{TopicName, TopicPartition};
use crate::limits::{GROUP_MEMBERS_MAX, GROUP_PENDING_MEMBERS_MAX, GROUP_PROTOCOLS_BYTES_MAX};
use crate::pattern::Pattern;

#[derive(Debug)]
pub(super) struct Member {
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    pub session_timeout_ms: u32,
    pub rebalance_timeout_ms: u32,
    /// Assignment protocols, in order of preference.
    pub protocols: Vec<Protocol>,
    /// Topics that it subscribes to, if its door could decode them.
    pub topics: Option<Vec<Pattern>>,
    /// Partitions that it reads, as far as its door could decode its subscription and its assignment. Partitions that
    /// it owned when it joined, and that no other member was assigned, remain until it joins again.
    pub reads: BTreeSet<TopicPartition>,
    /// Assignment from the leader in this generation.
    pub assignment: Bytes,
    join: Wait<Joined>,
    sync: Wait<Synced>,
    /// `true` if it knows this generation and has not requested its assignment.
    owes_sync: bool,
    /// Ignored while a response is pending: the member then cannot send heartbeats.
    session_ends_ms: u64,
}

impl Member {
    fn is_waiting(&self) -> bool {
        self.join.is_open() || self.sync.is_open()
    }

    fn renew_session(&mut self, now: Now) {
        self.session_ends_ms = now.steady_ms + u64::from(self.session_timeout_ms);
    }

    fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.iter().find(|p| *p.name == *protocol).map(|p| p.metadata.clone()).unwrap_or_default()
    }

    pub(super) fn held_bytes(&self) -> usize {
        let protocols: usize = self.protocols.iter().map(Protocol::bytes).sum();
        protocols + self.client.len() + self.host.len()
    }

    /// Returns `true` if the member has received an assignment, which it reads until it receives another.
    pub(super) fn has_share(&self) -> bool {
        !self.is_waiting() && !self.owes_sync
    }

    fn update(&mut self, join: ClassicJoin, now: Now) {
        self.session_timeout_ms = join.session_timeout_ms;
        self.rebalance_timeout_ms = join.rebalance_timeout_ms;
        self.client = join.client;
        self.host = join.host;
        self.protocols = join.protocols;
        (self.topics, self.reads) = match join.subscription {
            Some(subscription) => (Some(subscription.topics), subscription.owned),
            None => (None, BTreeSet::new()),
        };
        self.renew_session(now);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Empty,
    /// Members join. The phase ends when all have joined, but not before `quiet_until_ms`; at `ends_ms` it ends without
    /// the rest.
    Preparing {
        quiet_until_ms: u64,
        ends_ms: u64,
    },
    /// All members wait for the assignments from the leader.
    Completing,
    Stable,
}

/// Invariants: the phase is `Empty` exactly while there are no members; responses to joins wait only in `Preparing`,
/// and responses to syncs only in `Completing`; `instances` has every member with an instance id.
#[derive(Debug)]
pub(super) struct Classic {
    name: GroupName,
    phase: Phase,
    generation: u32,
    pub members: BTreeMap<MemberId, Member>,
    pub(super) instances: BTreeMap<InstanceId, MemberId>,
    /// Ids that were assigned and not used yet, with the times at which they expire.
    pending: BTreeMap<MemberId, u64>,
    leader: Option<MemberId>,
    protocol_type: Box<str>,
    protocol: Box<str>,
    /// Deadline for syncs: members that owe one are removed.
    sync_ends_ms: u64,
    tickets: u64,
    /// Number that rises whenever there is a response for a waiting request.
    pub news: u64,
    /// Bytes that all members hold, without assignments.
    held_bytes: usize,
    /// Generation whose members and assignments the newest record in the topic of offsets has, unless they are too
    /// large for one.
    recorded: Option<u32>,
}

impl Classic {
    pub(super) fn new(name: GroupName) -> Self {
        Self {
            name,
            phase: Phase::Empty,
            generation: 0,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            leader: None,
            protocol_type: "".into(),
            protocol: "".into(),
            sync_ends_ms: u64::MAX,
            tickets: 0,
            news: 0,
            held_bytes: 0,
            recorded: None,
        }
    }

    pub(super) fn phase(&self) -> ClassicPhase {
        match self.phase {
            Phase::Empty => ClassicPhase::Empty,
            Phase::Preparing { .. } => ClassicPhase::Preparing,
            Phase::Completing => ClassicPhase::Completing,
            Phase::Stable => ClassicPhase::Stable,
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn protocol_type(&self) -> &str {
        &self.protocol_type
    }

    pub(super) fn protocol(&self) -> &str {
        &self.protocol
    }

    /// Returns the number of bytes that its members hold.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes + self.assigned_bytes()
    }

    /// Returns the size of the assignments of its members.
    pub(super) fn assigned_bytes(&self) -> usize {
        self.members.values().map(|member| member.assignment.len()).sum()
    }

    pub(super) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Assigns an id with which the client has to join again.
    pub(super) fn name_member(&mut self, join: ClassicJoin, now: Now) -> Outcome<Entry> {
        if self.pending.len() >= GROUP_PENDING_MEMBERS_MAX {
            return Err(GroupError::new(
                Reason::GroupFull,
                format!(
                    "{GROUP_PENDING_MEMBERS_MAX} members of group {} have an id and have not joined yet, which is the \
                     limit: try again later",
                    self.name
                ),
            ));
        }
        self.pending.insert(join.fresh.clone(), now.steady_ms + u64::from(join.session_timeout_ms));
        Ok(Entry::Named(join.fresh))
    }

    /// Uses up an assigned id. Returns `true` if it was assigned and not used yet.
    pub(super) fn use_name(&mut self, id: &MemberId) -> bool {
        self.pending.remove(id).is_some()
    }

    /// Adds a member, or lets it join again.
    pub(super) fn join(
        &mut self,
        join: ClassicJoin,
        initial_delay_ms: u64,
        now: Now,
        epoch: &mut u32,
    ) -> Outcome<Entry> {
        let known = join.instance.as_ref().and_then(|instance| self.instances.get(instance)).cloned();
        match (join.member.clone(), known) {
            (Some(id), Some(known)) if id != known => Err(replaced(&self.name, &id)),
            (Some(id), _) if self.members.contains_key(&id) => {
                self.check_join(&join, Some(&id))?;
                self.rejoin(id, join, now, epoch)
            }
            (Some(id), _) if self.pending.contains_key(&id) => {
                self.check_join(&join, None)?;
                self.pending.remove(&id);
                self.add(id, join, initial_delay_ms, now, epoch)
            }
            (Some(id), _) => Err(unknown(&self.name, id.as_str())),
            (None, Some(before)) => {
                self.check_join(&join, Some(&before))?;
                self.replace(&before, join, now, epoch)
            }
            (None, None) => {
                self.check_join(&join, None)?;
                if join.comes_twice && join.instance.is_none() {
                    return self.name_member(join, now);
                }
                self.add(join.fresh.clone(), join, initial_delay_ms, now, epoch)
            }
        }
    }

    /// Checks that the other members have a protocol in common with it, and that there is room. `before` is the member
    /// that joins again, or that it replaces.
    fn check_join(&self, join: &ClassicJoin, before: Option<&MemberId>) -> Outcome {
        let is_other = |id: &&MemberId| Some(*id) != before;
        let others = self.members.keys().filter(is_other).count();
        if others >= GROUP_MEMBERS_MAX {
            let message = format!("group {} has {GROUP_MEMBERS_MAX} members", self.name);
            return Err(GroupError::new(Reason::GroupFull, message));
        }
        if others > 0 {
            let common = self.common_protocols(before);
            let is_known = |protocol: &Protocol| common.contains(&*protocol.name);
            if join.protocol_type != self.protocol_type || !join.protocols.iter().any(is_known) {
                return Err(GroupError::new(
                    Reason::InconsistentProtocol,
                    format!("the members of group {} and this one have no protocol in common", self.name),
                ));
            }
        }
        let freed = before.and_then(|id| self.members.get(id)).map_or(0, Member::held_bytes);
        if self.held_bytes - freed + join.held_bytes() > GROUP_PROTOCOLS_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the protocol metadata of the members of group {} has at most {GROUP_PROTOCOLS_BYTES_MAX} bytes \
                 together",
                self.name
            ))
            .into());
        }
        Ok(())
    }

    /// Returns the protocols that all members but one support.
    fn common_protocols(&self, without: Option<&MemberId>) -> BTreeSet<&str> {
        let members = self.members.iter().filter(|(id, _)| Some(*id) != without);
        let names = members.map(|(_, m)| m.protocols.iter().map(|p| &*p.name).collect::<BTreeSet<_>>());
        names.reduce(|common, names| common.intersection(&names).copied().collect()).unwrap_or_default()
    }

    /// Returns the protocol that most members prefer among those that all support.
    fn elected_protocol(&self) -> Option<&str> {
        let common = self.common_protocols(None);
        let favourite = |member: &'_ Member| -> Option<Box<str>> {
            member.protocols.iter().find(|p| common.contains(&*p.name)).map(|p| p.name.clone())
        };
        let mut votes: BTreeMap<Box<str>, usize> = BTreeMap::new();
        self.members.values().filter_map(favourite).for_each(|name| *votes.entry(name).or_default() += 1);
        common.into_iter().max_by_key(|name| votes.get(*name).copied().unwrap_or_default())
    }

    fn add(
        &mut self,
        id: MemberId,
        join: ClassicJoin,
        initial_delay_ms: u64,
        now: Now,
        epoch: &mut u32,
    ) -> Outcome<Entry> {
        if self.members.is_empty() {
            self.protocol_type = join.protocol_type.clone();
        }
        let ticket = self.ticket();
        let who = Identity { member: id.clone(), instance: join.instance.clone() };
        let mut member = Member {
            instance: join.instance.clone(),
            client: String::new(),
            host: String::new(),
            session_timeout_ms: 0,
            rebalance_timeout_ms: 0,
            protocols: Vec::new(),
            topics: None,
            reads: BTreeSet::new(),
            assignment: Bytes::new(),
            join: Wait::Open(ticket),
            sync: Wait::None,
            owes_sync: false,
            session_ends_ms: 0,
        };
        member.update(join, now);
        self.held_bytes += member.held_bytes();
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.members.insert(id, member);
        match &mut self.phase {
            Phase::Empty => {
                let ends_ms = now.steady_ms + self.rebalance_timeout_ms();
                let quiet_until_ms = ends_ms.min(now.steady_ms + initial_delay_ms);
                self.phase = Phase::Preparing { quiet_until_ms, ends_ms };
            }
            Phase::Preparing { quiet_until_ms, ends_ms } if *quiet_until_ms > now.steady_ms => {
                *quiet_until_ms = (*ends_ms).min(now.steady_ms + initial_delay_ms);
            }
            Phase::Preparing { .. } => {}
            Phase::Completing | Phase::Stable => self.prepare(now),
        }
        self.try_complete(now, epoch);
        Ok(Entry::Waits { who, ticket })
    }

    fn rejoin(&mut self, id: MemberId, join: ClassicJoin, now: Now, epoch: &mut u32) -> Outcome<Entry> {
        let ticket = self.ticket();
        let Some(member) = self.members.get_mut(&id) else {
            return Err(unknown(&self.name, id.as_str()));
        };
        let who = Identity { member: id.clone(), instance: member.instance.clone() };
        let is_same = member.protocols == join.protocols;
        let is_leader = self.leader.as_ref() == Some(&id);
        let keeps = match self.phase {
            // The response was lost.
            Phase::Completing => is_same,
            // A leader joins again because of a change that affects the assignment.
            Phase::Stable => is_same && !is_leader,
            Phase::Empty | Phase::Preparing { .. } => false,
        };
        // A request that waits for the response to the previous join has to fail.
        self.news += u64::from(member.join.is_open());
        if keeps {
            member.renew_session(now);
            member.join = Wait::Open(ticket);
            self.answer_join(&id);
            return Ok(Entry::Waits { who, ticket });
        }
        self.held_bytes -= member.held_bytes();
        member.update(join, now);
        self.held_bytes += member.held_bytes();
        self.begin_round(&id, ticket, now, epoch);
        Ok(Entry::Waits { who, ticket })
    }

    /// Makes the member wait for a new generation.
    fn begin_round(&mut self, id: &MemberId, ticket: u64, now: Now, epoch: &mut u32) {
        if !matches!(self.phase, Phase::Preparing { .. }) {
            self.prepare(now);
        }
        if let Some(member) = self.members.get_mut(id) {
            member.join = Wait::Open(ticket);
        }
        self.try_complete(now, epoch);
    }

    /// Replaces a static member that was restarted, under another id. It keeps its assignment; the earlier member is
    /// fenced.
    fn replace(&mut self, before: &MemberId, join: ClassicJoin, now: Now, epoch: &mut u32) -> Outcome<Entry> {
        let ticket = self.ticket();
        let Some(mut member) = self.members.remove(before) else {
            return Err(unknown(&self.name, before.as_str()));
        };
        // Requests that wait for a response to the earlier member fail: it is fenced.
        self.news += 1;
        let id = join.fresh.clone();
        let may_skip = join.may_skip;
        let who = Identity { member: id.clone(), instance: member.instance.clone() };
        let wants_same = match (&member.topics, &join.subscription) {
            (Some(before), Some(now)) => *before == now.topics,
            _ => member.metadata(&self.protocol) == join.metadata(&self.protocol),
        };
        self.held_bytes -= member.held_bytes();
        let reads = std::mem::take(&mut member.reads);
        member.update(join, now);
        self.held_bytes += member.held_bytes();
        member.join = Wait::Open(ticket);
        member.sync = Wait::None;
        let was_leader = self.leader.as_ref() == Some(before);
        if was_leader {
            self.leader = Some(id.clone());
        }
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.members.insert(id.clone(), member);
        let is_stable = self.phase == Phase::Stable;
        if is_stable && wants_same && self.elected_protocol() == Some(&*self.protocol) {
            // The same generation has a member with another id now.
            self.recorded = None;
            if let Some(member) = self.members.get_mut(&id) {
                member.reads = reads;
            }
            self.answer_join(&id);
            self.skip_assignment(&id, was_leader.then_some(before).filter(|_| !may_skip));
        } else {
            self.begin_round(&id, ticket, now, epoch);
        }
        Ok(Entry::Waits { who, ticket })
    }

    /// Completes the join of a restarted leader, whose assignment stays. A leader that does not support this receives
    /// another member as the leader and therefore does not assign.
    fn skip_assignment(&mut self, id: &MemberId, other: Option<&MemberId>) {
        let Some(Member { join: Wait::Done(_, Ok(joined)), .. }) = self.members.get_mut(id) else {
            return;
        };
        if let Some(other) = other {
            joined.leader = Some(other.clone());
            joined.members = Vec::new();
        } else {
            joined.is_assigned = joined.leader.as_ref() == Some(id);
        }
    }

    /// Returns the longest rebalance timeout of any member.
    fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|member| u64::from(member.rebalance_timeout_ms)).max().unwrap_or_default()
    }

    /// Starts a round in which all members have to join again.
    fn prepare(&mut self, now: Now) {
        for member in self.members.values_mut() {
            if member.sync.is_open() {
                member.renew_session(now);
                member.sync.answer(Err(rebalancing(&self.name)));
            }
            member.owes_sync = false;
        }
        self.sync_ends_ms = u64::MAX;
        let ends_ms = now.steady_ms + self.rebalance_timeout_ms();
        self.phase = Phase::Preparing { quiet_until_ms: now.steady_ms, ends_ms };
        self.news += 1;
    }

    fn try_complete(&mut self, now: Now, epoch: &mut u32) {
        let Phase::Preparing { quiet_until_ms, .. } = self.phase else {
            return;
        };
        let have_all_joined = self.members.values().all(|member| member.join.is_open());
        if have_all_joined && (self.members.is_empty() || self.pending.is_empty() && quiet_until_ms <= now.steady_ms) {
            self.complete(now, epoch);
        }
    }

    /// Starts the next generation with the members that have joined.
    fn complete(&mut self, now: Now, epoch: &mut u32) {
        if self.members.is_empty() {
            *epoch += 1;
            self.generation = *epoch;
            self.phase = Phase::Empty;
            self.protocol_type = "".into();
            self.protocol = "".into();
            self.leader = None;
            self.sync_ends_ms = u64::MAX;
            self.news += 1;
            return;
        }
        let has_joined = |id: &MemberId| self.members.get(id).is_some_and(|member| member.join.is_open());
        let leader = self.leader.clone().filter(has_joined);
        let Some(leader) = leader.or_else(|| self.members.keys().find(|id| has_joined(id)).cloned()) else {
            // Only static members are left, which may return until their session expires.
            let ends_ms = now.steady_ms + self.rebalance_timeout_ms();
            self.phase = Phase::Preparing { quiet_until_ms: now.steady_ms, ends_ms };
            return;
        };
        *epoch += 1;
        self.generation = *epoch;
        self.leader = Some(leader);
        self.protocol = self.elected_protocol().unwrap_or_default().into();
        self.phase = Phase::Completing;
        self.sync_ends_ms = now.steady_ms + self.rebalance_timeout_ms();
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for id in &ids {
            if let Some(member) = self.members.get_mut(id) {
                member.assignment = Bytes::new();
                member.owes_sync = member.join.is_open();
                if member.owes_sync {
                    member.renew_session(now);
                }
            }
            self.answer_join(id);
        }
        self.news += 1;
    }

    /// Sends this generation to a member if its join waits.
    fn answer_join(&mut self, id: &MemberId) {
        let is_leader = self.leader.as_ref() == Some(id);
        let members = self.members.iter().filter(|_| is_leader).map(|(id, member)| JoinedMember {
            member: id.clone(),
            instance: member.instance.clone(),
            metadata: member.metadata(&self.protocol),
        });
        let joined = Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            member: id.clone(),
            members: members.collect(),
            is_assigned: false,
        };
        if let Some(member) = self.members.get_mut(id) {
            member.join.answer(Ok(joined));
        }
    }

    /// Returns the response to a join once it exists.
    pub(super) fn joined(&mut self, who: &Identity, ticket: u64) -> Outcome<Option<Joined>> {
        let name = self.name.clone();
        self.find(who)?.join.fetch(ticket, &name)
    }

    /// Returns the member. Fails if another member has taken over its instance id.
    fn find(&mut self, who: &Identity) -> Outcome<&mut Member> {
        let name = &self.name;
        let id = &who.member;
        let known = who.instance.as_ref().and_then(|instance| self.instances.get(instance));
        if known.is_some_and(|known| known != id) {
            return Err(replaced(name, id));
        }
        self.members.get_mut(id).ok_or_else(|| unknown(name, id.as_str()))
    }

    /// Returns the member if it knows this generation.
    fn member(&mut self, who: &Identity, generation: u32) -> Outcome<&mut Member> {
        let name = self.name.clone();
        let is_at = self.generation;
        let member = self.find(who)?;
        if generation != is_at {
            return Err(GroupError::new(
                Reason::StaleGeneration,
                format!(
                    "member {} of group {name} sent generation {generation}, but the group is at {is_at}",
                    who.member
                ),
            ));
        }
        Ok(member)
    }

    /// Handles the request of a member for its assignment; the leader sends the assignments of all members.
    pub(super) fn sync(&mut self, sync: ClassicSync, now: Now) -> Outcome<u64> {
        let ticket = self.ticket();
        let phase = self.phase;
        let is_leader = self.leader.as_ref() == Some(&sync.who.member);
        self.member(&sync.who, sync.generation)?;
        let is_ours = |theirs: &Option<Box<str>>, ours: &str| theirs.as_deref().is_none_or(|theirs| theirs == ours);
        if !is_ours(&sync.protocol_type, &self.protocol_type) || !is_ours(&sync.protocol, &self.protocol) {
            let ours = &self.protocol;
            let message = format!("group {} uses the protocol '{ours}' in this generation", self.name);
            return Err(GroupError::new(Reason::InconsistentProtocol, message));
        }
        let bytes: usize = sync.shares.iter().map(|share| share.bytes.len()).sum();
        if bytes > GROUP_PROTOCOLS_BYTES_MAX {
            let message =
                format!("the assignments of a leader have at most {GROUP_PROTOCOLS_BYTES_MAX} bytes, not {bytes}");
            return Err(Error::too_large(message).into());
        }
        let name = self.name.clone();
        let member = self.find(&sync.who)?;
        let was_open = member.sync.is_open();
        match phase {
            Phase::Empty => return Err(unknown(&name, sync.who.member.as_str())),
            Phase::Preparing { .. } => return Err(rebalancing(&name)),
            Phase::Completing => {
                member.sync = Wait::Open(ticket);
                member.owes_sync = false;
                if is_leader {
                    self.share_out(sync, now);
                }
            }
            Phase::Stable => {
                member.renew_session(now);
                member.sync = Wait::Open(ticket);
                member.owes_sync = false;
                self.answer_sync(&sync.who.member);
            }
        }
        // A request that waits for the response to the previous sync has to fail.
        self.news += u64::from(was_open);
        Ok(ticket)
    }

    /// Applies the assignments from the leader.
    fn share_out(&mut self, sync: ClassicSync, now: Now) {
        let taken: BTreeSet<&TopicPartition> =
            sync.shares.iter().filter_map(|share| share.partitions.as_ref()).flatten().collect();
        self.members.values_mut().for_each(|member| member.reads.retain(|partition| !taken.contains(partition)));
        for share in sync.shares {
            if let Some(member) = self.members.get_mut(&share.member) {
                member.assignment = share.bytes;
                match share.partitions {
                    Some(partitions) => member.reads.extend(partitions),
                    // The partitions that it reads are unknown until it joins again.
                    None => member.topics = None,
                }
            }
        }
        self.phase = Phase::Stable;
        let waiting: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.sync.is_open()).map(|(id, _)| id.clone()).collect();
        for id in &waiting {
            if let Some(member) = self.members.get_mut(id) {
                member.renew_session(now);
            }
            self.answer_sync(id);
        }
        self.news += 1;
    }

    fn answer_sync(&mut self, id: &MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            let synced = Synced {
                protocol_type: self.protocol_type.clone(),
                protocol: self.protocol.clone(),
                given: Given::Bytes(member.assignment.clone()),
            };
            member.sync.answer(Ok(synced));
        }
    }

    /// Returns the response to a sync once it exists.
    pub(super) fn synced(&mut self, who: &Identity, ticket: u64) -> Outcome<Option<Synced>> {
        let name = self.name.clone();
        self.find(who)?.sync.fetch(ticket, &name)
    }

    /// Handles a heartbeat.
    pub(super) fn heartbeat(&mut self, who: &Identity, generation: u32, now: Now) -> Outcome {
        self.member(who, generation)?.renew_session(now);
        match self.phase {
            Phase::Preparing { .. } => Err(rebalancing(&self.name)),
            Phase::Empty | Phase::Completing | Phase::Stable => Ok(()),
        }
    }

    /// Checks that a member may commit offsets in this generation.
    pub(super) fn check_commit(&mut self, who: &Identity, generation: u32) -> Outcome {
        self.member(who, generation)?;
        match self.phase {
            // Its partitions may already belong to another member.
            Phase::Completing => Err(rebalancing(&self.name)),
            Phase::Empty | Phase::Preparing { .. } | Phase::Stable => Ok(()),
        }
    }

    /// Removes members that leave, and begins one round for all of them. Returns the id of each.
    pub(super) fn leave(&mut self, leavers: &[Leaver], now: Now, epoch: &mut u32) -> Vec<Outcome<MemberId>> {
        let before = self.members.len();
        let left = leavers.iter().map(|leaver| self.leave_one(leaver)).collect();
        self.go_on(before, now, epoch);
        left
    }

    fn leave_one(&mut self, leaver: &Leaver) -> Outcome<MemberId> {
        let known = leaver.instance.as_ref().and_then(|instance| self.instances.get(instance)).cloned();
        let id = match (&leaver.member, known) {
            (Some(id), Some(known)) if *id != known => return Err(replaced(&self.name, id)),
            (Some(id), _) if self.members.contains_key(id) => id.clone(),
            (Some(id), _) if self.pending.remove(id).is_some() => return Ok(id.clone()),
            (None, Some(known)) => known,
            (id, None) | (id, Some(_)) => {
                return Err(unknown(&self.name, id.as_ref().map_or("", MemberId::as_str)));
            }
        };
        self.take_out(&id);
        Ok(id)
    }

    fn take_out(&mut self, id: &MemberId) -> Option<Member> {
        let member = self.members.remove(id)?;
        self.held_bytes -= member.held_bytes();
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        if self.leader.as_ref() == Some(id) {
            self.leader = None;
        }
        self.news += 1;
        Some(member)
    }

    fn remove(&mut self, ids: impl IntoIterator<Item = MemberId>, now: Now, epoch: &mut u32) {
        let before = self.members.len();
        ids.into_iter().for_each(|id| drop(self.take_out(&id)));
        self.go_on(before, now, epoch);
    }

    /// Continues with the members that are left of `before` members: with a new round if some are missing.
    fn go_on(&mut self, before: usize, now: Now, epoch: &mut u32) {
        if self.members.len() < before && !matches!(self.phase, Phase::Preparing { .. }) {
            self.prepare(now);
        }
        self.try_complete(now, epoch);
    }

    /// Removes members that missed a deadline and continues without them. Returns their ids.
    pub(super) fn expire(&mut self, now: Now, epoch: &mut u32) -> Vec<MemberId> {
        let is_due = |at: u64| at <= now.steady_ms;
        self.pending.retain(|_, ends_ms| !is_due(*ends_ms));
        let is_preparing_over = matches!(self.phase, Phase::Preparing { ends_ms, .. } if is_due(ends_ms));
        let is_sync_over = is_due(self.sync_ends_ms);
        let is_over = |member: &Member| {
            let is_silent = !member.is_waiting() && is_due(member.session_ends_ms);
            let is_late = is_preparing_over && !member.join.is_open() && member.instance.is_none();
            is_silent || is_late || is_sync_over && member.owes_sync
        };
        let over: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| is_over(member)).map(|(id, _)| id.clone()).collect();
        if is_sync_over {
            self.sync_ends_ms = u64::MAX;
        }
        // Without them all remaining members may have joined.
        let before = self.generation;
        self.remove(over.clone(), now, epoch);
        if is_preparing_over && self.generation == before && matches!(self.phase, Phase::Preparing { .. }) {
            self.complete(now, epoch);
        }
        over
    }

    /// Returns the time at which [`Classic::expire`] has something to do if no request arrives until then.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let sessions = self.members.values().filter(|member| !member.is_waiting()).map(|m| m.session_ends_ms);
        let mut ends: Vec<u64> = sessions.chain(self.pending.values().copied()).collect();
        if self.members.values().any(|member| member.owes_sync) {
            ends.push(self.sync_ends_ms);
        }
        if let Phase::Preparing { quiet_until_ms, ends_ms } = self.phase {
            let is_complete = self.members.values().all(|member| member.join.is_open()) && self.pending.is_empty();
            ends.push(if is_complete { quiet_until_ms.min(ends_ms) } else { ends_ms });
        }
        ends.into_iter().min()
    }

    /// Forgets a deleted topic, which no member reads any more.
    pub(super) fn forget_topic(&mut self, topic: &TopicName) {
        self.members.values_mut().for_each(|member| member.reads.retain(|partition| partition.topic != *topic));
    }

    /// Returns `true` if the subscriptions of all members are known, so that the broker could assign for them.
    pub(super) fn is_readable(&self) -> bool {
        self.members.values().all(|member| member.topics.is_some())
    }

    /// Removes all members and returns them: the broker assigns for them from now on.
    pub(super) fn hand_over(&mut self) -> Vec<(MemberId, Member)> {
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        let members = ids.into_iter().filter_map(|id| Some((id.clone(), self.take_out(&id)?))).collect();
        self.phase = Phase::Empty;
        self.sync_ends_ms = u64::MAX;
        self.protocol_type = "".into();
        self.protocol = "".into();
        self.leader = None;
        members
    }
}

impl Member {
    /// Returns the ticket of a join that waits.
    pub(super) fn open_join(&self) -> Option<u64> {
        match self.join {
            Wait::Open(ticket) => Some(ticket),
            Wait::None | Wait::Done(..) => None,
        }
    }

    pub(super) fn session_ends_ms(&self, now: Now) -> u64 {
        if self.is_waiting() { now.steady_ms + u64::from(self.session_timeout_ms) } else { self.session_ends_ms }
    }
}
