//! A consumer group: its members, their targets and assigned partitions, and its committed offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::assign::Assignor;
use super::classic::Classic;
use super::classic_api::CLIENT_BYTES_MAX;
use super::index::Subscriber;
use super::offsets::{Change, Committed, Offsets};
use super::record::SavedGroup;
use super::shared::Face;
use super::targets::Targets;
use super::wait::{self, Outcome};
use super::wanted::sort;
use super::{Catalog, GroupError, GroupName, InstanceId, MemberId, Reason};
use crate::error::{Error, Result};
use crate::ids::{Offset, TopicName, TopicPartition, is_inbox, is_internal};
use crate::limits::{
    GROUP_MEMBERS_MAX, GROUP_TOPICS_BYTES_MAX, GROUP_TOPICS_MAX, REBALANCE_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN, TOPIC_NAME_BYTES_MAX,
};
use crate::pattern::Pattern;

/// Time in ms after which a group with neither members nor offsets is deleted.
const IDLE_MS: u64 = 10 * 60 * 1000;
/// Bytes of a member in the tables of its group: its ids, its texts and its target.
const MEMBER_BYTES: usize = 1024;
/// Bytes of a topic or a pattern in a subscription, beyond its text.
const SUBSCRIBED_BYTES: usize = 64;

/// Returns an upper bound of the bytes that a member takes which subscribes to this number of topics and patterns.
pub fn member_bytes(topics: usize) -> usize {
    MEMBER_BYTES + topics * SUBSCRIBED_BYTES + (topics * TOPIC_NAME_BYTES_MAX).min(GROUP_TOPICS_BYTES_MAX)
}

/// Point in time on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic clock, for timeouts.
    pub steady_ms: u64,
    /// Milliseconds since 1970, for times that outlive the process.
    pub unix_ms: u64,
}

/// Identity of a member that sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub member: MemberId,
    /// Instance id of a static member; `None` for any other.
    pub instance: Option<InstanceId>,
}

/// Request of a member to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub who: Identity,
    /// Name of its program, for display.
    pub client: String,
    /// Host of its program, for display.
    pub host: String,
    pub topics: Vec<Pattern>,
    pub assignor: Assignor,
    /// Time in ms for which the member may be silent.
    pub session_timeout_ms: u32,
    /// Time in ms that the member may take to release partitions.
    pub rebalance_timeout_ms: u32,
    /// `true` if it replaces a member with its instance id that is still in the group.
    pub takes_over: bool,
}

impl Join {
    /// Checks that every value is in its range.
    pub fn check(&self) -> Result<()> {
        check_topics(&self.topics)?;
        check_session(self.session_timeout_ms)?;
        if !(SESSION_TIMEOUT_MS_MIN..=REBALANCE_TIMEOUT_MS_MAX).contains(&self.rebalance_timeout_ms) {
            return Err(Error::invalid(format!(
                "a rebalance timeout is {SESSION_TIMEOUT_MS_MIN} to {REBALANCE_TIMEOUT_MS_MAX} ms, not {}",
                self.rebalance_timeout_ms
            )));
        }
        Ok(())
    }
}

pub(super) fn check_session(timeout_ms: u32) -> Result<()> {
    if (SESSION_TIMEOUT_MS_MIN..=SESSION_TIMEOUT_MS_MAX).contains(&timeout_ms) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a session timeout is {SESSION_TIMEOUT_MS_MIN} to {SESSION_TIMEOUT_MS_MAX} ms, not {timeout_ms}"
    )))
}

pub(super) fn check_topics(topics: &[Pattern]) -> Result<()> {
    if topics.len() > GROUP_TOPICS_MAX {
        return Err(Error::invalid(format!(
            "a member subscribes to at most {GROUP_TOPICS_MAX} topics and patterns, not {}",
            topics.len()
        )));
    }
    let bytes: usize = topics.iter().map(|topic| topic.as_str().len()).sum();
    if bytes > GROUP_TOPICS_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the topics of a member have names of {bytes} bytes, more than {GROUP_TOPICS_BYTES_MAX}; use a pattern"
        )));
    }
    let is_name = |topic: &&Pattern| !matches!(topic, Pattern::Rule(_));
    match topics.iter().filter(is_name).find(|topic| is_internal(topic.as_str()) || is_inbox(topic.as_str())) {
        Some(topic) => Err(Error::invalid(format!("a group cannot consume the internal topic {topic}"))),
        None => Ok(()),
    }
}

/// Sender of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committer {
    /// Member, for its own partitions.
    Member { who: Identity, epoch: u32 },
    /// Client that is not a member, while the group has no members.
    Outsider,
    /// Client that is not a member, for topics that no member subscribes to.
    Cleaner,
}

/// Response to a heartbeat of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub epoch: u32,
    /// All partitions that the member may read; `None` if they have not changed and were not requested.
    pub assignment: Option<Vec<TopicPartition>>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) instance: Option<InstanceId>,
    pub(super) client: String,
    pub(super) host: String,
    /// Sorted by their text.
    pub(super) topics: Arc<[Pattern]>,
    pub(super) assignor: Assignor,
    pub(super) session_timeout_ms: u32,
    pub(super) rebalance_timeout_ms: u32,
    /// Epoch whose target this member has reached, or reaches as other members release partitions.
    pub(super) epoch: u32,
    /// Epoch that it sent last. A response may be lost, so it may send any epoch from this one to `epoch`.
    pub(super) shown_epoch: u32,
    /// Partitions that it may read.
    pub(super) assigned: BTreeSet<TopicPartition>,
    /// Partitions that it has to release and may still read. No other member gets them before it confirms the release.
    pub(super) revoking: BTreeSet<TopicPartition>,
    /// Subset of `revoking` whose topic was deleted: their offsets have no meaning any more.
    pub(super) gone: BTreeSet<TopicPartition>,
    pub(super) session_ends_ms: u64,
    /// Deadline of the release while `revoking` is not empty.
    pub(super) revocation_ends_ms: Option<u64>,
    pub(super) is_away: bool,
    /// `true` if its subscription is not known after a restart.
    pub(super) must_join: bool,
    /// `true` if the topic of offsets has a record of it, under its present id.
    pub(super) has_record: bool,
    /// Number that rises whenever there is something new to send to the member.
    pub(super) news: u64,
    pub(super) told: u64,
    /// Number of heartbeats of this member: the response to an earlier one that still waits carries no news.
    pub(super) beats: u64,
    /// State of a member that uses the classic protocol.
    pub(super) face: Option<Box<Face>>,
}

/// Invariants: a partition is in `assigned` or `revoking` of at most one member, and then that member is its owner;
/// `targets` has every member, and, unless it is due, every partition of the topics that a member subscribes to exactly
/// once; either `members` or `classic` has members, never both.
#[derive(Debug)]
pub struct Group {
    pub(super) name: GroupName,
    pub(super) epoch: u32,
    pub(super) members: BTreeMap<MemberId, Member>,
    pub(super) instances: BTreeMap<InstanceId, MemberId>,
    /// Members that assign partitions among themselves.
    pub(super) classic: Classic,
    /// Value of `classic.news` that `version` already accounts for.
    pub(super) classic_news: u64,
    /// Topics that members subscribe to, and the partitions that each member is to have.
    pub(super) targets: Targets,
    pub(super) owners: BTreeMap<TopicPartition, MemberId>,
    pub(super) offsets: Offsets,
    /// Milliseconds since 1970 at which the group became empty; `None` while it has members.
    pub(super) empty_since_ms: Option<u64>,
    /// State of the group in the topic of offsets.
    pub(super) saved: Option<SavedGroup>,
    /// Members whose newest state is not in the topic of offsets; some are not in the group any more.
    pub(super) unrecorded: BTreeSet<MemberId>,
    /// Number that rises whenever there may be something new for members other than the one that sent a request.
    pub(super) version: u64,
}

impl Group {
    pub fn new(name: GroupName, now: Now) -> Self {
        Self {
            classic: Classic::new(name.clone()),
            classic_news: 0,
            name,
            epoch: 0,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            targets: Targets::default(),
            owners: BTreeMap::new(),
            offsets: Offsets::default(),
            empty_since_ms: Some(now.unix_ms),
            saved: None,
            unrecorded: BTreeSet::new(),
            version: 0,
        }
    }

    pub fn name(&self) -> &GroupName {
        &self.name
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of partitions that are not assigned because there are too many.
    pub fn left_out(&self) -> usize {
        self.targets.index().left_out()
    }

    pub fn members_len(&self) -> usize {
        self.members.len() + self.classic.members.len()
    }

    /// Adds a member, or restarts its membership. A static member takes over the partitions of its earlier instance.
    /// Returns the number of this heartbeat.
    pub fn join(&mut self, join: Join, catalog: &dyn Catalog, now: Now) -> Outcome<u64> {
        join.check()?;
        let is_adopting = self.adopt_classic(now)?;
        let known = self.members.get(&join.who.member);
        if known.is_some_and(|member| member.instance != join.who.instance) {
            return Err(Error::invalid(format!("member {} has another instance id", join.who.member)).into());
        }
        if let Some(holder) = self.instance_in_use(&join.who).filter(|_| !join.takes_over) {
            let message = format!("member {holder} of group {} has this instance id and has not left", self.name);
            return Err(GroupError::new(Reason::InstanceInUse, message));
        }
        let mut topics = join.topics;
        sort(&mut topics);
        self.check_patterns(&join.who, &topics)?;
        self.take_over(&join.who);
        let id = join.who.member;
        if !self.members.contains_key(&id) && self.members.len() >= GROUP_MEMBERS_MAX {
            let message = format!("group {} has {GROUP_MEMBERS_MAX} members", self.name);
            return Err(GroupError::new(Reason::GroupFull, message));
        }
        let member = self.members.entry(id.clone()).or_insert_with(|| Member::new(join.who.instance.clone()));
        let is_same = !is_adopting && member.epoch > 0 && *member.topics == *topics && member.assignor == join.assignor;
        member.client = join.client;
        member.host = join.host;
        member.client.truncate(member.client.floor_char_boundary(CLIENT_BYTES_MAX));
        member.face = None;
        member.must_join = false;
        member.assignor = join.assignor;
        member.session_timeout_ms = join.session_timeout_ms;
        member.rebalance_timeout_ms = join.rebalance_timeout_ms;
        member.news += 1;
        if let Some(instance) = join.who.instance {
            self.instances.insert(instance, id.clone());
        }
        self.empty_since_ms = None;
        if is_same {
            self.refresh(catalog);
        } else {
            self.subscribe(&id, topics, catalog);
        }
        self.begin_anew(&id);
        Ok(self.renew_session(&id, now))
    }

    /// Starts a membership. A member that joins reads nothing yet, so partitions outside its target are released
    /// immediately. Earlier epochs belong to an earlier membership, whose commits are void.
    pub(super) fn begin_anew(&mut self, id: &MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            (member.epoch, member.shown_epoch) = (self.epoch, self.epoch);
        }
        self.unrecorded.insert(id.clone());
        if let (Some(member), Some(target)) = (self.members.get_mut(id), self.targets.get(id)) {
            let lost: Vec<TopicPartition> = member.assigned.difference(target).cloned().collect();
            member.assigned.retain(|partition| target.contains(partition));
            member.revoking.extend(lost);
            self.release(id, &BTreeSet::new());
        }
    }

    /// Returns another member that has the instance id of this one and has not left. A classic member does not announce
    /// that it leaves, so it does not count.
    fn instance_in_use(&self, who: &Identity) -> Option<&MemberId> {
        let holder = self.instances.get(who.instance.as_ref()?).filter(|holder| **holder != who.member)?;
        self.members.get(holder).is_some_and(|member| !member.is_away && member.face.is_none()).then_some(holder)
    }

    /// Transfers the state of the earlier member with this instance id: the latest member with the id is valid.
    pub(super) fn take_over(&mut self, who: &Identity) {
        let Some(before) = who.instance.as_ref().and_then(|instance| self.instances.get(instance)).cloned() else {
            return;
        };
        if before == who.member {
            return;
        }
        if let Some(mut member) = self.members.remove(&before) {
            self.erase(&before, std::mem::take(&mut member.has_record));
            for partition in member.assigned.iter().chain(&member.revoking) {
                self.owners.insert(partition.clone(), who.member.clone());
            }
            self.members.insert(who.member.clone(), member);
            self.unrecorded.insert(who.member.clone());
        }
        self.targets.rename(&before, &who.member);
        // The earlier member may wait for a response.
        self.version += 1;
    }

    /// Handles a heartbeat. `owned` are the partitions that the member reads, if it reports them; revoked partitions
    /// that it does not read are released. Returns the number of this heartbeat.
    pub fn beat(
        &mut self,
        who: &Identity,
        epoch: u32,
        owned: Option<&BTreeSet<TopicPartition>>,
        catalog: &dyn Catalog,
        now: Now,
    ) -> Outcome<u64> {
        self.member(who, epoch)?.shown_epoch = epoch;
        if let Some(owned) = owned {
            self.release(&who.member, owned);
        }
        self.refresh(catalog);
        Ok(self.renew_session(&who.member, now))
    }

    /// Replaces the subscription of a member.
    pub fn resubscribe(
        &mut self,
        who: &Identity,
        epoch: u32,
        mut topics: Vec<Pattern>,
        catalog: &dyn Catalog,
    ) -> Outcome {
        check_topics(&topics)?;
        sort(&mut topics);
        if *self.member(who, epoch)?.topics != *topics {
            self.check_patterns(who, &topics)?;
            self.subscribe(&who.member, topics, catalog);
            self.unrecorded.insert(who.member.clone());
        }
        Ok(())
    }

    /// Sets the session timeout of a member. Returns `true` if it changed.
    pub fn set_session_timeout(&mut self, who: &Identity, epoch: u32, timeout_ms: u32) -> Outcome<bool> {
        let member = self.member(who, epoch)?;
        let is_changed = std::mem::replace(&mut member.session_timeout_ms, timeout_ms) != timeout_ms;
        self.unrecorded.extend(is_changed.then(|| who.member.clone()));
        Ok(is_changed)
    }

    pub(super) fn renew_session(&mut self, id: &MemberId, now: Now) -> u64 {
        let Some(member) = self.members.get_mut(id) else {
            return 0;
        };
        member.session_ends_ms = now.steady_ms + u64::from(member.session_timeout_ms);
        if std::mem::take(&mut member.is_away) {
            self.unrecorded.insert(id.clone());
        }
        member.beats += 1;
        member.beats
    }

    /// Removes a member. A static member that is only `away` keeps its partitions until its session expires.
    pub fn leave(&mut self, who: &Identity, is_away: bool, now: Now) -> Outcome {
        let member = self.find(who)?;
        if is_away && member.instance.is_some() {
            member.is_away = true;
            member.beats += 1;
            self.unrecorded.insert(who.member.clone());
            return Ok(());
        }
        self.remove([who.member.clone()], now);
        Ok(())
    }

    /// Removes members whose session has expired, or that did not release partitions in time. Returns their ids.
    pub fn expire(&mut self, now: Now) -> Vec<MemberId> {
        let is_over = |member: &Member| member.ends_ms() <= now.steady_ms;
        let mut over: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| is_over(member)).map(|(id, _)| id.clone()).collect();
        self.remove(over.clone(), now);
        over.extend(self.expire_classic(now));
        over
    }

    /// Returns the time at which [`Group::expire`] has something to do if no request arrives until then.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.members.values().map(Member::ends_ms).chain(self.classic.next_deadline_ms()).min()
    }

    fn remove(&mut self, ids: impl IntoIterator<Item = MemberId>, now: Now) {
        let before = self.members.len();
        ids.into_iter().for_each(|id| self.take_out(&id));
        self.go_on(before, now);
    }

    /// Removes a member. [`Group::go_on`] follows.
    pub(super) fn take_out(&mut self, id: &MemberId) {
        let Some(member) = self.members.remove(id) else {
            return;
        };
        for partition in member.assigned.iter().chain(&member.revoking) {
            self.owners.remove(partition);
        }
        if let Some(instance) = member.instance {
            self.instances.remove(&instance);
        }
        self.targets.discount(&member.topics);
        self.erase(id, member.has_record);
    }

    /// Renews the targets for the members that are left of `before` members, if some are missing.
    pub(super) fn go_on(&mut self, before: usize, now: Now) {
        if self.members.len() < before {
            if self.members.is_empty() {
                self.empty_since_ms = Some(now.unix_ms);
            }
            self.renew_targets(None, true);
        }
    }

    /// Returns the assignor that most members prefer.
    pub fn assignor(&self) -> Assignor {
        let votes = |assignor: Assignor| self.members.values().filter(|member| member.assignor == assignor).count();
        if votes(Assignor::Range) > votes(Assignor::Uniform) { Assignor::Range } else { Assignor::Uniform }
    }

    /// Releases the revoked partitions that the member no longer reads.
    pub(super) fn release(&mut self, id: &MemberId, owned: &BTreeSet<TopicPartition>) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        let freed: Vec<TopicPartition> = member.revoking.difference(owned).cloned().collect();
        for partition in &freed {
            member.revoking.remove(partition);
            member.gone.remove(partition);
            self.owners.remove(partition);
        }
        if member.revoking.is_empty() {
            member.revocation_ends_ms = None;
        }
        if !freed.is_empty() {
            self.version += 1;
            self.unrecorded.insert(id.clone());
        }
    }

    /// Moves a member towards its target, as far as possible now. Returns `true` if there is something new to send to
    /// it.
    pub fn reconcile(&mut self, who: &Identity, now: Now) -> Outcome<bool> {
        let epoch = self.epoch;
        self.find(who)?;
        let (Some(member), Some(target)) = (self.members.get_mut(&who.member), self.targets.get(&who.member)) else {
            return Ok(false);
        };
        let lost: Vec<TopicPartition> = member.assigned.difference(target).cloned().collect();
        if !lost.is_empty() {
            member.revoke(lost, now);
            self.unrecorded.insert(who.member.clone());
        }
        if !member.revoking.is_empty() {
            return Ok(member.news > member.told);
        }
        if member.epoch < epoch {
            member.epoch = epoch;
            member.news += 1;
            self.unrecorded.insert(who.member.clone());
        }
        let owners = &mut self.owners;
        let gained: Vec<TopicPartition> =
            target.difference(&member.assigned).filter(|partition| !owners.contains_key(*partition)).cloned().collect();
        if !gained.is_empty() {
            let owned = gained.iter().map(|partition| (partition.clone(), who.member.clone()));
            if gained.len() > owners.len() / 4 {
                // Many are merged faster than inserted one by one.
                owners.append(&mut owned.collect());
                member.assigned.append(&mut gained.into_iter().collect());
            } else {
                owners.extend(owned);
                member.assigned.extend(gained);
            }
            member.news += 1;
            self.unrecorded.insert(who.member.clone());
        }
        Ok(member.news > member.told)
    }

    /// Returns the response to this heartbeat of a member. `in_full` includes its partitions even if they did not
    /// change. The member reads only the response to its last heartbeat, so that an earlier one carries no news.
    pub fn answer(&mut self, who: &Identity, beat: u64, in_full: bool) -> Outcome<Turn> {
        let member = self.find(who)?;
        if member.beats != beat {
            return Ok(Turn { epoch: member.epoch, assignment: None });
        }
        let has_news = member.news > member.told;
        member.told = member.news;
        let assignment = (has_news || in_full).then(|| member.assigned.iter().cloned().collect());
        Ok(Turn { epoch: member.epoch, assignment })
    }

    /// Returns `true` if no heartbeat of the member arrived after this one.
    pub fn is_last_beat(&self, id: &MemberId, beat: u64) -> bool {
        self.members.get(id).is_some_and(|member| member.beats == beat)
    }

    pub(super) fn find(&mut self, who: &Identity) -> Outcome<&mut Member> {
        let name = &self.name;
        let id = &who.member;
        if who.instance.as_ref().and_then(|i| self.instances.get(i)).is_some_and(|other| other != id) {
            return Err(wait::replaced(name, id));
        }
        self.members.get_mut(id).ok_or_else(|| wait::unknown(name, id.as_str()))
    }

    /// Returns a member whose epoch is one that it may have received.
    pub(super) fn member(&mut self, who: &Identity, epoch: u32) -> Outcome<&mut Member> {
        let name = self.name.clone();
        let member = self.find(who)?;
        if member.must_join {
            return Err(wait::unknown(&name, who.member.as_str()));
        }
        if epoch < member.shown_epoch || epoch > member.epoch {
            let reason = if member.face.is_some() { Reason::StaleGeneration } else { Reason::StaleEpoch };
            return Err(GroupError::new(
                reason,
                format!(
                    "member {} of group {name} sent epoch {epoch}, but is at {}: join again",
                    who.member, member.epoch
                ),
            ));
        }
        Ok(member)
    }

    /// Checks whether these changes may be committed. They take effect when [`Group::committed_through`] reaches their
    /// position.
    pub fn check_commit(&mut self, committer: &Committer, changes: &[Change]) -> Outcome {
        match committer {
            Committer::Member { who, epoch } if !self.classic.members.is_empty() => {
                self.classic.check_commit(who, *epoch)?;
            }
            Committer::Member { who, epoch } => {
                self.member(who, *epoch)?;
                let Some(member) = self.members.get(&who.member) else {
                    return Ok(());
                };
                // Partitions of topics that are not assigned here, and for a classic member also partitions without an
                // owner.
                let is_free = |partition: &TopicPartition| {
                    let is_shared = self.targets.index().has(&partition.topic);
                    !self.owners.contains_key(partition) && (member.face.is_some() || !is_shared)
                };
                let has = |partition: &TopicPartition| {
                    member.assigned.contains(partition)
                        || (member.revoking.contains(partition) && !member.gone.contains(partition))
                        || is_free(partition)
                };
                if let Some(foreign) = changes.iter().find(|change| !has(&change.partition)) {
                    if member.face.is_some() {
                        return Err(wait::rebalancing(&self.name));
                    }
                    return Err(GroupError::new(
                        Reason::NotOwner,
                        format!("partition {} is not assigned to member {}", foreign.partition, who.member),
                    ));
                }
            }
            Committer::Outsider => self.check_empty("its offsets can be set")?,
            Committer::Cleaner => {
                if let Some(read) = changes.iter().find(|change| self.subscribes(&change.partition.topic)) {
                    let message = format!("members of group {} subscribe to {}", self.name, read.partition.topic);
                    return Err(GroupError::new(Reason::Subscribed, message));
                }
            }
        }
        self.offsets.check(changes)?;
        Ok(())
    }

    /// Checks that a member of this epoch may fetch committed offsets. If members assign partitions among themselves,
    /// or if the group has no members, any client may.
    pub fn check_fetch(&mut self, who: &Identity, epoch: u32) -> Outcome {
        if self.members.is_empty() {
            return Ok(());
        }
        self.member(who, epoch).map(drop)
    }

    /// Checks that there is room for these changes, regardless of their committer.
    pub fn check_offsets(&self, changes: &[Change]) -> Outcome {
        self.offsets.check(changes)?;
        Ok(())
    }

    /// Returns `true` if a member subscribes to an existing topic, or may: the subscriptions of some classic members
    /// are unknown.
    pub fn subscribes(&self, topic: &TopicName) -> bool {
        let is_meant = |topics: &Vec<Pattern>| topics.iter().any(|pattern| pattern.matches(topic));
        // The topics of the index are those of all members, unless some have changed since.
        let is_current = self.is_resolved() && !self.is_due();
        self.targets.index().knows(topic)
            || !is_current && self.targets.matches(topic)
            || !is_current && self.members.iter().any(|(id, member)| member.subscriber(id).names(topic))
            || self.classic.members.values().any(|member| member.topics.as_ref().is_none_or(is_meant))
    }

    /// Returns `true` if partitions of a topic are assigned to members, or can be.
    pub fn assigns(&self, topic: &TopicName) -> bool {
        let first = TopicPartition { topic: topic.clone(), partition: 0 };
        let has = |partitions: &BTreeSet<TopicPartition>| {
            partitions.range(&first..).next().is_some_and(|at| at.topic == *topic)
        };
        self.targets.index().has(topic)
            || self.owners.range(&first..).next().is_some_and(|(at, _)| at.topic == *topic)
            || self.classic.members.values().any(|member| has(&member.reads))
    }

    /// Checks that the group has no members.
    pub fn check_empty(&self, what: &str) -> Outcome {
        match self.members_len() {
            0 => Ok(()),
            n => Err(GroupError::new(
                Reason::HasMembers,
                format!("group {} has members ({n}); {what} once they have left", self.name),
            )),
        }
    }

    /// Stages these changes, whose record is at this position of the log.
    pub fn stage(&mut self, position: Offset, changes: Vec<Change>) {
        self.offsets.stage(position, changes);
    }

    /// Commits the staged changes up to and including this position, which are now durable in the log.
    pub fn committed_through(&mut self, position: Offset) {
        self.offsets.commit_through(position);
    }

    /// Returns the committed offsets, without those that are still in flight.
    pub fn committed(&self) -> &BTreeMap<TopicPartition, Committed> {
        self.offsets.committed()
    }

    /// Returns the offset that is committed in a partition, or will be once the log is durable that far.
    pub fn newest(&self, partition: &TopicPartition) -> Option<&Committed> {
        self.offsets.newest(partition)
    }

    /// Returns the partitions of commits that have their place in the log but are not effective yet.
    pub fn on_their_way(&self) -> impl Iterator<Item = &TopicPartition> {
        self.offsets.on_their_way()
    }

    /// Returns the changes that delete the offsets of a topic, or of all topics, from the log.
    pub fn tombstones(&self, topic: Option<&TopicName>) -> Vec<Change> {
        self.offsets.tombstones(topic)
    }

    /// Forgets a deleted topic. Its offsets are deleted immediately, including those in flight. Members release its
    /// partitions, and cannot commit offsets of them, before they get partitions of a new topic with the same name.
    pub fn forget_topic(&mut self, topic: &TopicName, now: Now) {
        self.offsets.forget(topic);
        self.classic.forget_topic(topic);
        for (id, member) in &mut self.members {
            let has = member.assigned.iter().chain(&member.revoking);
            let gone: Vec<TopicPartition> = has.filter(|partition| partition.topic == *topic).cloned().collect();
            if !gone.is_empty() {
                member.gone.extend(gone.iter().cloned());
                member.revoke(gone, now);
                self.version += 1;
                self.unrecorded.insert(id.clone());
            }
        }
    }

    /// Returns `true` if the group has been empty for so long that it is to be deleted, together with its offsets.
    pub fn is_expired(&self, retention_ms: u64, now: Now) -> bool {
        let retention_ms = if self.offsets.is_empty() { retention_ms.min(IDLE_MS) } else { retention_ms };
        self.empty_since_ms.is_some_and(|since| since.saturating_add(retention_ms) <= now.unix_ms)
    }

    /// Returns the member that may read a partition.
    pub fn owner(&self, partition: &TopicPartition) -> Option<&MemberId> {
        self.owners.get(partition)
    }

    /// Returns every partition of the topics that members subscribe to.
    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        self.targets.index().topics().flat_map(|(topic, _, count)| {
            (0..count).map(|partition| TopicPartition { topic: topic.clone(), partition })
        })
    }

    pub fn assignor_name(&self) -> &'static str {
        self.assignor().name()
    }
}

impl Member {
    pub(super) fn subscriber(&self, id: &MemberId) -> Subscriber {
        Subscriber { id: id.clone(), instance: self.instance.clone(), topics: self.topics.clone() }
    }

    /// Returns the time at which the member is removed if no request arrives until then.
    fn ends_ms(&self) -> u64 {
        let sync_ends_ms = self.face.as_ref().and_then(|face| face.ends_ms);
        let ends = [self.revocation_ends_ms, sync_ends_ms].into_iter().flatten().min();
        ends.unwrap_or(u64::MAX).min(self.session_ends_ms)
    }

    /// Requires the member to release these partitions.
    fn revoke(&mut self, partitions: Vec<TopicPartition>, now: Now) {
        for partition in partitions {
            self.assigned.remove(&partition);
            self.revoking.insert(partition);
        }
        let ends = now.steady_ms + u64::from(self.rebalance_timeout_ms);
        self.revocation_ends_ms.get_or_insert(ends);
        self.news += 1;
    }

    pub(super) fn new(instance: Option<InstanceId>) -> Self {
        Self {
            instance,
            client: String::new(),
            host: String::new(),
            topics: Arc::default(),
            assignor: Assignor::default(),
            session_timeout_ms: 0,
            rebalance_timeout_ms: 0,
            epoch: 0,
            shown_epoch: 0,
            assigned: BTreeSet::new(),
            revoking: BTreeSet::new(),
            gone: BTreeSet::new(),
            session_ends_ms: 0,
            revocation_ends_ms: None,
            is_away: false,
            must_join: false,
            has_record: false,
            news: 0,
            told: 0,
            beats: 0,
            face: None,
        }
    }
}
