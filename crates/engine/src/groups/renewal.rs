//! Renewal of a group's targets, when its members, their subscriptions or the topics change.

use std::sync::Arc;

use super::assign::Strategy;
use super::group::Group;
use super::index::Subscriber;
use super::targets::{Plan, Planned};
use super::wait::Outcome;
use super::{Catalog, Identity, MemberId};
use crate::pattern::Pattern;

impl Group {
    /// Returns `true` if topics may have changed since the group resolved its subscriptions.
    pub fn is_outdated(&self, catalog: &dyn Catalog) -> bool {
        self.targets.index().version() != Some(catalog.version()) && !self.members.is_empty()
    }

    /// Returns `true` if what the members subscribe to was compared with the topics.
    pub fn is_resolved(&self) -> bool {
        self.members.is_empty() || self.targets.index().version().is_some()
    }

    /// Renews the targets if topics may have changed. If that takes long, it is left to a [`Plan`].
    pub fn refresh(&mut self, catalog: &dyn Catalog) {
        if self.is_outdated(catalog) {
            self.renew_targets(Some(catalog), false);
        }
    }

    /// Returns `true` if the members wait for a [`Plan`]: the group has many members, topics and patterns.
    pub fn is_due(&self) -> bool {
        self.targets.is_due()
    }

    /// Returns the number of changes of the members until now, for [`Group::is_due_since`].
    pub fn changes(&self) -> u64 {
        self.targets.changes()
    }

    /// Returns `true` if members wait for a [`Plan`] that includes the first `changes` changes.
    pub fn is_due_since(&self, changes: u64) -> bool {
        self.targets.is_due_since(changes)
    }

    /// Returns how to renew the targets of a group that is due. The result is passed to [`Group::apply`].
    pub fn plan(&self) -> Option<Plan> {
        self.targets.plan(|| self.subscribers(), self.strategy())
    }

    /// Begins an epoch with what was planned, unless nothing changes, or the plan is void: then the group stays due.
    pub fn apply(&mut self, planned: &mut Planned) {
        let members = self.subscribers();
        if self.targets.apply(planned, &members) {
            self.begin_epoch();
        }
    }

    /// Renews the targets. `is_forced`: the members or their subscriptions have changed.
    pub(super) fn renew_targets(&mut self, catalog: Option<&dyn Catalog>, is_forced: bool) {
        let members = self.subscribers();
        if self.targets.renew(&members, self.strategy(), catalog, is_forced) {
            self.begin_epoch();
        }
    }

    /// Starts an epoch with a new target. Members move to it with their next heartbeats.
    fn begin_epoch(&mut self) {
        debug_assert!(self.saved.is_some_and(|saved| self.epoch < saved.epoch_bound), "invariant: saved beforehand");
        self.epoch += 1;
        self.version += 1;
    }

    fn subscribers(&self) -> Vec<Subscriber> {
        self.members.iter().map(|(id, member)| member.subscriber(id)).collect()
    }

    fn strategy(&self) -> Strategy {
        Strategy::Divide(self.assignor())
    }

    /// Checks that a member, or the one that it replaces, may subscribe to these topics instead.
    pub(super) fn check_patterns(&self, who: &Identity, topics: &[Pattern]) -> Outcome {
        let replaced = who.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let before = self.members.get(replaced.unwrap_or(&who.member)).map_or(&[][..], |member| &member.topics);
        self.targets.check(&self.name, before, topics)
    }

    /// Replaces the subscription of a member, and renews the targets.
    pub(super) fn subscribe(&mut self, id: &MemberId, topics: Vec<Pattern>, catalog: &dyn Catalog) {
        let topics: Arc<[Pattern]> = topics.into();
        if let Some(member) = self.members.get_mut(id) {
            self.targets.count(&topics);
            self.targets.discount(&member.topics);
            member.topics = topics.clone();
        }
        self.renew_targets(Some(catalog), true);
        self.targets.narrow(id, &topics);
    }
}
