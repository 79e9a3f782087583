//! Share groups: members receive messages of the same partitions, each message one member.
//!
//! No member owns a partition, so none has to release one: a member has its partitions of the newest epoch as soon as
//! it receives them. Kafka describes the same protocol as KIP-932. The queues of the group track which member has which
//! message.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assign::Strategy;
use super::classic_api::CLIENT_BYTES_MAX;
use super::group::{Now, Turn, check_session, check_topics};
use super::index::Subscriber;
use super::targets::{Plan, Planned, Targets};
use super::wait::{self, Outcome};
use super::wanted::sort;
use super::{Catalog, GroupError, GroupName, MemberId, Reason};
use crate::error::Result;
use crate::ids::{TopicName, TopicPartition};
use crate::limits::GROUP_MEMBERS_MAX;
use crate::pattern::Pattern;

/// Request of a member to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareJoin {
    pub member: MemberId,
    /// Name of its program and its host, for display.
    pub client: String,
    pub host: String,
    pub topics: Vec<Pattern>,
    /// Time in ms for which the member may be silent.
    pub session_timeout_ms: u32,
}

impl ShareJoin {
    /// Checks that every value is in its range.
    pub fn check(&self) -> Result<()> {
        check_topics(&self.topics)?;
        check_session(self.session_timeout_ms)
    }
}

/// Status of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMember<'a> {
    pub id: &'a MemberId,
    pub client: &'a str,
    pub host: &'a str,
    pub epoch: u32,
    pub topics: &'a [Pattern],
    pub assigned: Vec<TopicPartition>,
}

#[derive(Debug)]
struct Member {
    client: String,
    host: String,
    topics: Arc<[Pattern]>,
    session_timeout_ms: u32,
    session_ends_ms: u64,
    /// Epoch that it received last, and the one before: a response may be lost.
    epoch: u32,
    epoch_before: u32,
}

/// Invariant: `targets` has every member, and, unless it is due, every partition of the topics with at least one of its
/// subscribers.
#[derive(Debug)]
pub struct ShareGroup {
    name: GroupName,
    epoch: u32,
    members: BTreeMap<MemberId, Member>,
    /// Topics that members subscribe to, and the partitions from which each member takes.
    pub(super) targets: Targets,
}

impl ShareGroup {
    pub fn new(name: GroupName) -> Self {
        Self { name, epoch: 0, members: BTreeMap::new(), targets: Targets::default() }
    }

    pub fn name(&self) -> &GroupName {
        &self.name
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the existing topics that members subscribe to.
    pub fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.targets.index().topics().map(|(name, _, _)| name)
    }

    pub fn members(&self) -> impl Iterator<Item = ShareMember<'_>> {
        self.members.iter().map(|(id, member)| ShareMember {
            id,
            client: &member.client,
            host: &member.host,
            epoch: member.epoch,
            topics: &member.topics,
            assigned: self.assigned(id),
        })
    }

    fn assigned(&self, id: &MemberId) -> Vec<TopicPartition> {
        self.targets.get(id).into_iter().flatten().cloned().collect()
    }

    /// Checks that the group has no members.
    pub fn check_empty(&self, what: &str) -> Outcome {
        match self.members.len() {
            0 => Ok(()),
            n => {
                let message = format!("group {} has members ({n}); {what} once they have left", self.name);
                Err(GroupError::new(Reason::HasMembers, message))
            }
        }
    }

    /// Adds a member, or restarts its membership.
    pub fn join(&mut self, join: ShareJoin, catalog: &dyn Catalog, now: Now) -> Outcome<Turn> {
        join.check()?;
        let ShareJoin { member: id, mut client, host, mut topics, session_timeout_ms } = join;
        sort(&mut topics);
        client.truncate(client.floor_char_boundary(CLIENT_BYTES_MAX));
        let before = self.members.get(&id).map(|member| member.topics.clone());
        if !self.members.contains_key(&id) && self.members.len() >= GROUP_MEMBERS_MAX {
            let message = format!("group {} has {GROUP_MEMBERS_MAX} members", self.name);
            return Err(GroupError::new(Reason::GroupFull, message));
        }
        let is_same = before.as_ref().is_some_and(|before| **before == *topics);
        let before = before.unwrap_or_default();
        self.targets.check(&self.name, &before, &topics)?;
        let topics: Arc<[Pattern]> = topics.into();
        let kept = topics.clone();
        let member = Member { client, host, topics, session_timeout_ms, session_ends_ms: 0, epoch: 0, epoch_before: 0 };
        self.members.insert(id.clone(), member);
        if is_same {
            self.refresh(catalog)
        } else {
            self.subscribed(&id, &before, &kept, catalog);
        }
        self.turn(&id, true, now)
    }

    /// Handles a heartbeat, which may change the subscription. The response has the member's partitions if they are new
    /// to it, or if it sent its subscription.
    pub fn beat(
        &mut self,
        id: &MemberId,
        epoch: u32,
        topics: Option<Vec<Pattern>>,
        catalog: &dyn Catalog,
        now: Now,
    ) -> Outcome<Turn> {
        let name = &self.name;
        let member = self.members.get_mut(id).ok_or_else(|| wait::unknown(name, id.as_str()))?;
        if epoch != member.epoch && epoch != member.epoch_before {
            let message = format!("member {id} of group {name} sent epoch {epoch}, but is at {}", member.epoch);
            return Err(GroupError::new(Reason::StaleEpoch, format!("{message}: join again")));
        }
        let in_full = topics.is_some() || epoch != member.epoch;
        if let Some(mut topics) = topics {
            check_topics(&topics)?;
            sort(&mut topics);
            if *member.topics != *topics {
                self.targets.check(name, &member.topics, &topics)?;
                let topics: Arc<[Pattern]> = topics.into();
                let before = std::mem::replace(&mut member.topics, topics.clone());
                self.subscribed(id, &before, &topics, catalog);
            }
        }
        self.refresh(catalog);
        self.turn(id, in_full, now)
    }

    /// Sets the session timeout of a member. Returns `true` if it changed.
    pub fn set_session_timeout(&mut self, id: &MemberId, timeout_ms: u32) -> bool {
        let member = self.members.get_mut(id);
        member.is_some_and(|member| std::mem::replace(&mut member.session_timeout_ms, timeout_ms) != timeout_ms)
    }

    fn turn(&mut self, id: &MemberId, in_full: bool, now: Now) -> Outcome<Turn> {
        let name = &self.name;
        let epoch = self.epoch;
        let member = self.members.get_mut(id).ok_or_else(|| wait::unknown(name, id.as_str()))?;
        member.session_ends_ms = now.steady_ms + u64::from(member.session_timeout_ms);
        let has_news = member.epoch != epoch;
        if has_news {
            member.epoch_before = member.epoch;
            member.epoch = epoch;
        }
        Ok(Turn { epoch, assignment: (has_news || in_full).then(|| self.assigned(id)) })
    }

    pub fn leave(&mut self, id: &MemberId) -> Outcome {
        let left = self.members.remove(id).ok_or_else(|| wait::unknown(&self.name, id.as_str()))?;
        self.targets.discount(&left.topics);
        self.renew_targets(None, true);
        Ok(())
    }

    /// Removes members whose session has expired. Returns their ids.
    pub fn expire(&mut self, now: Now) -> Vec<MemberId> {
        let is_over = |(_, member): &(&MemberId, &Member)| member.session_ends_ms <= now.steady_ms;
        let over: Vec<MemberId> = self.members.iter().filter(is_over).map(|(id, _)| id.clone()).collect();
        if !over.is_empty() {
            for left in over.iter().filter_map(|id| self.members.remove(id)) {
                self.targets.discount(&left.topics);
            }
            self.renew_targets(None, true);
        }
        over
    }

    /// Forgets a deleted topic: a new topic with the same name is another one, about which members are notified.
    pub fn forget_topic(&mut self, topic: &TopicName) {
        if self.targets.forget_topic(topic) {
            self.renew_targets(None, true);
        }
    }

    /// Returns the time at which [`ShareGroup::expire`] has something to do if no request arrives until then.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.members.values().map(|member| member.session_ends_ms).min()
    }

    /// Renews the targets if topics may have changed. If that takes long, it is left to a [`Plan`].
    pub fn refresh(&mut self, catalog: &dyn Catalog) {
        if self.is_outdated(catalog) {
            self.renew_targets(Some(catalog), false);
        }
    }

    /// Returns `true` if topics may have changed since the targets were renewed.
    pub fn is_outdated(&self, catalog: &dyn Catalog) -> bool {
        self.targets.index().version() != Some(catalog.version()) && !self.members.is_empty()
    }

    /// Returns `true` if the members wait for a [`Plan`]: the group has many members, topics and patterns.
    pub fn is_due(&self) -> bool {
        self.targets.is_due()
    }

    /// Returns the number of changes of the members until now, for [`ShareGroup::is_due_since`].
    pub fn changes(&self) -> u64 {
        self.targets.changes()
    }

    /// Returns `true` if members wait for a [`Plan`] that includes the first `changes` changes.
    pub fn is_due_since(&self, changes: u64) -> bool {
        self.targets.is_due_since(changes)
    }

    /// Returns how to renew the targets of a group that is due. The result is passed to [`ShareGroup::apply`].
    pub fn plan(&self) -> Option<Plan> {
        self.targets.plan(|| self.subscribers(), Strategy::Share)
    }

    /// Begins an epoch with what was planned, unless nothing changes, or the plan is void: then the group stays due.
    pub fn apply(&mut self, planned: &mut Planned) {
        let members = self.subscribers();
        self.epoch += u32::from(self.targets.apply(planned, &members));
    }

    fn renew_targets(&mut self, catalog: Option<&dyn Catalog>, is_forced: bool) {
        let members = self.subscribers();
        self.epoch += u32::from(self.targets.renew(&members, Strategy::Share, catalog, is_forced));
    }

    fn subscribers(&self) -> Vec<Subscriber> {
        let subscriber = |(id, member): (&MemberId, &Member)| Subscriber {
            id: id.clone(),
            instance: None,
            topics: member.topics.clone(),
        };
        self.members.iter().map(subscriber).collect()
    }

    /// Renews the targets after the subscription of a member has changed.
    fn subscribed(&mut self, id: &MemberId, before: &[Pattern], topics: &[Pattern], catalog: &dyn Catalog) {
        self.targets.count(topics);
        self.targets.discount(before);
        self.renew_targets(Some(catalog), true);
        self.targets.narrow(id, topics);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Topics, patterns, show};
    use super::*;

    fn group() -> ShareGroup {
        ShareGroup::new(GroupName::parse("g").expect("a name"))
    }

    fn id(name: &str) -> MemberId {
        MemberId::parse(name).expect("an id")
    }

    fn at(steady_ms: u64) -> Now {
        Now { steady_ms, unix_ms: 1_000_000 + steady_ms }
    }

    fn join(group: &mut ShareGroup, name: &str, topics: &str, catalog: &Topics) -> Turn {
        let join = ShareJoin {
            member: id(name),
            client: "c".into(),
            host: "h".into(),
            topics: patterns(topics),
            session_timeout_ms: 1000,
        };
        group.join(join, catalog, at(0)).expect("joined")
    }

    fn topics(of: &[(&str, u32)]) -> Topics {
        let mut topics = Topics::default();
        of.iter().for_each(|(name, partitions)| topics.set(name, *partitions));
        topics
    }

    fn shares(group: &ShareGroup) -> Vec<String> {
        group.members().map(|member| format!("{}: {}", member.id, show(member.assigned))).collect()
    }

    #[test]
    fn partitions_are_shared_out_and_shared() {
        let catalog = topics(&[("one", 1), ("two", 2), ("many", 5)]);
        let group = &mut group();
        join(group, "a", "many", &catalog);
        join(group, "b", "many", &catalog);
        assert_eq!(shares(group), ["a: many/0 many/2 many/4", "b: many/1 many/3"]);
        // More members than partitions: each member has one, and every partition has a member.
        for member in ["a", "b", "c"] {
            join(group, member, "two", &catalog);
        }
        assert_eq!(shares(group), ["a: two/0", "b: two/1", "c: two/0"]);
        join(group, "c", "one,two", &catalog);
        join(group, "d", "one", &catalog);
        assert_eq!(shares(group), ["a: two/0", "b: two/1", "c: one/0 two/0", "d: one/0"]);
        group.leave(&id("a")).expect("it was there");
        assert_eq!(shares(group), ["b: two/0", "c: one/0 two/1", "d: one/0"]);
        assert_eq!(group.topics().map(TopicName::as_str).collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn a_member_receives_new_assignments_and_lost_ones_again() {
        let mut catalog = topics(&[("t", 2)]);
        let group = &mut group();
        let first = join(group, "a", "t,later", &catalog);
        assert_eq!((first.epoch, first.assignment.map(show)), (1, Some("t/0 t/1".into())));
        let beat = |group: &mut ShareGroup, epoch, catalog: &Topics| group.beat(&id("a"), epoch, None, catalog, at(1));
        assert_eq!(beat(group, 1, &catalog), Ok(Turn { epoch: 1, assignment: None }));
        join(group, "b", "t", &catalog);
        for _ in 0..2 {
            // The member sends the earlier epoch, as if the response with the new one was lost.
            let turn = beat(group, 1, &catalog).expect("a member");
            assert_eq!((turn.epoch, turn.assignment.map(show)), (2, Some("t/0".into())));
        }
        assert_eq!(beat(group, 2, &catalog), Ok(Turn { epoch: 2, assignment: None }));
        for stale in [0, 3] {
            assert_eq!(beat(group, stale, &catalog).map_err(|refused| refused.reason), Err(Reason::StaleEpoch));
        }
        // A topic that was created later.
        catalog.set("later", 1);
        let turn = beat(group, 2, &catalog).expect("a member");
        assert_eq!((turn.epoch, turn.assignment.map(show)), (3, Some("later/0 t/0".into())));
    }

    #[test]
    fn a_silent_member_is_removed_and_has_to_join_again() {
        let catalog = topics(&[("t", 1)]);
        let group = &mut group();
        join(group, "a", "t", &catalog);
        join(group, "b", "t", &catalog);
        group.beat(&id("b"), 2, None, &catalog, at(500)).expect("a member");
        assert_eq!((group.next_deadline_ms(), group.expire(at(999))), (Some(1000), vec![]));
        assert_eq!((group.expire(at(1000)), group.len()), (vec![id("a")], 1));
        let refused = group.beat(&id("a"), 1, None, &catalog, at(1000)).map_err(|refused| refused.reason);
        assert_eq!(refused, Err(Reason::UnknownMember));
        assert!(group.check_empty("it can be deleted").is_err());
        assert_eq!(group.expire(at(2000)), [id("b")]);
        assert_eq!((group.is_empty(), group.topics().count()), (true, 0));
    }

    #[test]
    fn topics_of_members_that_have_left_are_forgotten_unless_others_want_them() {
        let catalog = topics(&[("a", 1), ("b", 1), ("c", 1), ("jobs.1", 1), ("jobs.2", 1)]);
        let group = &mut group();
        join(group, "one", "a,b,jobs.*", &catalog);
        join(group, "two", "b,c,jobs.2", &catalog);
        let named =
            |group: &ShareGroup| group.topics().map(|topic| topic.as_str().to_owned()).collect::<Vec<_>>().join(" ");
        assert_eq!(named(group), "a b c jobs.1 jobs.2");
        group.leave(&id("two")).expect("it was there");
        assert_eq!(named(group), "a b jobs.1 jobs.2");
        join(group, "two", "c,jobs.2", &catalog);
        group.leave(&id("one")).expect("it was there");
        assert_eq!(named(group), "c jobs.2");
    }

    #[test]
    fn members_beyond_the_limit_are_refused() {
        let catalog = topics(&[("t", 1)]);
        let group = &mut group();
        for number in 0..GROUP_MEMBERS_MAX {
            join(group, &format!("m{number}"), "t", &catalog);
        }
        let one_more = ShareJoin {
            member: id("one-more"),
            client: String::new(),
            host: String::new(),
            topics: patterns("t"),
            session_timeout_ms: 1000,
        };
        let refused = group.join(one_more, &catalog, at(0)).map_err(|refused| refused.reason);
        assert_eq!(refused, Err(Reason::GroupFull));
    }
}
