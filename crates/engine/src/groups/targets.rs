//! Targets of a group's members, and their renewal: at once, or, where that takes long, by a [`Plan`] that runs while
//! the group serves its members.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::assign::{Assignment, Strategy};
use super::index::{Index, Subscriber};
use super::wait::Outcome;
use super::wanted::Wanted;
use super::{Catalog, GroupError, GroupName, MemberId, Reason};
use crate::ids::{TopicName, TopicPartition};
use crate::limits::GROUP_PATTERNS_MAX;
use crate::pattern::Pattern;

/// Comparisons, look-ups and steps that are made at once, in a request or in a timer: about a millisecond.
const WORK_AT_ONCE: usize = 16_384;

/// Topics to which the members of a group subscribe, and the partitions that each member is to have.
///
/// While `is_due`, both are those of an earlier state of the members or of the catalog: a member that has joined since
/// has no partitions.
#[derive(Debug)]
pub(super) struct Targets {
    index: Arc<Index>,
    target: Arc<Assignment>,
    is_due: bool,
    /// `true` if only a plan renews them, since that takes long.
    is_large: bool,
    /// Cost of what is made at once.
    work_at_once: usize,
    /// `true` if the next renewal begins an epoch even if the topics are the same.
    is_forced: bool,
    /// Number of changes, and number of those that the targets include. They differ if, and only if, a renewal is due.
    changes: u64,
    included: u64,
    /// Number of members that have taken over the target of another.
    renames: u64,
    /// Wildcards and rules, each with the number of members that subscribe to it.
    patterns: HashMap<Pattern, usize, foldhash::fast::RandomState>,
}

/// Renewal of the targets of a group. It holds what it needs of the group.
#[derive(Debug)]
pub struct Plan {
    index: Arc<Index>,
    target: Arc<Assignment>,
    members: Vec<Subscriber>,
    strategy: Strategy,
    is_forced: bool,
    changes: u64,
    renames: u64,
}

/// Result of a [`Plan`]. The group to which it is applied leaves in it what it no longer needs.
#[derive(Debug)]
pub struct Planned {
    plan: Plan,
    index: Arc<Index>,
    /// `None` if nothing changes for the members.
    target: Option<Arc<Assignment>>,
}

impl Plan {
    /// Compares the subscriptions with the catalog, and assigns the partitions. This may take a second.
    pub fn run(self, catalog: &dyn Catalog) -> Planned {
        let mut index = Index::clone(&self.index);
        let changes = index.changes(&self.members, Some(catalog));
        let has_changed = index.update(&self.members, changes, Some(catalog));
        let is_new = has_changed || self.is_forced;
        let target = is_new.then(|| Arc::new(self.strategy.assign(&index, &self.members, &self.target)));
        Planned { plan: self, index: Arc::new(index), target }
    }
}

impl Default for Targets {
    fn default() -> Self {
        Self::new(WORK_AT_ONCE)
    }
}

impl Targets {
    pub(super) fn new(work_at_once: usize) -> Self {
        Self {
            index: Arc::default(),
            target: Arc::default(),
            is_due: false,
            is_large: false,
            work_at_once,
            is_forced: false,
            changes: 0,
            included: 0,
            renames: 0,
            patterns: HashMap::default(),
        }
    }

    pub(super) fn get(&self, member: &MemberId) -> Option<&BTreeSet<TopicPartition>> {
        self.target.get(member)
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns `true` if a renewal is due that includes the first `changes` changes.
    pub(super) fn is_due_since(&self, changes: u64) -> bool {
        self.is_due && self.included < changes
    }

    /// Sets the target of a member until the next renewal.
    pub(super) fn set(&mut self, member: &MemberId, partitions: BTreeSet<TopicPartition>) {
        Arc::make_mut(&mut self.target).insert(member.clone(), partitions);
    }

    /// Gives the target of a member to the member that takes its place.
    pub(super) fn rename(&mut self, before: &MemberId, after: &MemberId) {
        self.renames += 1;
        let target = Arc::make_mut(&mut self.target);
        if let Some(partitions) = target.remove(before) {
            target.insert(after.clone(), partitions);
        }
    }

    /// Forgets a deleted topic. Returns `true` if partitions of it were assigned.
    pub(super) fn forget_topic(&mut self, topic: &TopicName) -> bool {
        // A plan that runs was made with the topic, and is void.
        self.index.has(topic) && Arc::make_mut(&mut self.index).remove(topic)
    }

    /// Checks that members may have the wildcards and rules of a new subscription in the place of an earlier one.
    pub(super) fn check(&self, group: &GroupName, before: &[Pattern], after: &[Pattern]) -> Outcome {
        let is_pattern = |pattern: &&Pattern| !matches!(pattern, Pattern::Topic(_));
        let fresh = after.iter().filter(is_pattern).filter(|pattern| !self.patterns.contains_key(*pattern)).count();
        if fresh == 0 || self.patterns.len() + fresh <= GROUP_PATTERNS_MAX {
            return Ok(());
        }
        let is_freed = |pattern: &&Pattern| self.patterns.get(*pattern) == Some(&1) && !after.contains(*pattern);
        let freed = before.iter().filter(is_pattern).filter(is_freed).count();
        if self.patterns.len() - freed + fresh <= GROUP_PATTERNS_MAX {
            return Ok(());
        }
        let message = format!(
            "the members of group {group} subscribe to {} different patterns, at most {GROUP_PATTERNS_MAX}: subscribe \
             to patterns of other members, or to topics by name",
            self.patterns.len()
        );
        Err(GroupError::new(Reason::GroupFull, message))
    }

    /// Counts the wildcards and rules of a new subscription.
    pub(super) fn count(&mut self, topics: &[Pattern]) {
        for pattern in topics.iter().filter(|pattern| !matches!(pattern, Pattern::Topic(_))) {
            *self.patterns.entry(pattern.clone()).or_default() += 1;
        }
    }

    /// Counts the wildcards and rules of a subscription that ends no longer.
    pub(super) fn discount(&mut self, topics: &[Pattern]) {
        for pattern in topics.iter().filter(|pattern| !matches!(pattern, Pattern::Topic(_))) {
            if let Some(count) = self.patterns.get_mut(pattern) {
                *count -= 1;
                if *count == 0 {
                    self.patterns.remove(pattern);
                }
            }
        }
    }

    /// Returns `true` if a wildcard or a rule of a member matches a topic.
    pub(super) fn matches(&self, topic: &TopicName) -> bool {
        self.patterns.keys().any(|pattern| pattern.matches(topic))
    }

    /// Renews the targets, or makes them due if that takes long, or if the catalog is needed and not given. Returns
    /// `true` if an epoch begins. `is_forced`: the members or their subscriptions have changed.
    pub(super) fn renew(
        &mut self,
        members: &[Subscriber],
        strategy: Strategy,
        catalog: Option<&dyn Catalog>,
        is_forced: bool,
    ) -> bool {
        self.changes += u64::from(is_forced);
        self.is_forced |= is_forced;
        if members.is_empty() {
            (self.index, self.target) = Default::default();
            (self.is_due, self.is_large, self.included) = (false, false, self.changes);
            return std::mem::take(&mut self.is_forced);
        }
        if self.is_large {
            return self.defer(members);
        }
        let changes = self.index.changes(members, catalog);
        if !self.index.is_ready(&changes) {
            return self.defer(members);
        }
        if self.index.cost(&changes, members.len(), catalog) > self.work_at_once {
            self.is_large = true;
            return self.defer(members);
        }
        let has_changed = Arc::make_mut(&mut self.index).update(members, changes, catalog);
        self.is_forced |= has_changed;
        self.is_due = self.is_forced;
        if self.is_forced && Strategy::cost(&self.index, members) > self.work_at_once {
            self.is_large = true;
            return self.defer(members);
        }
        if self.is_forced {
            self.target = Arc::new(strategy.assign(&self.index, members, &self.target));
        }
        self.is_due = false;
        self.included = self.changes;
        std::mem::take(&mut self.is_forced)
    }

    /// Makes the targets due. Every member has one in the meantime, and nobody else.
    fn defer(&mut self, members: &[Subscriber]) -> bool {
        self.is_due = true;
        // A change of the catalog alone counts, too.
        self.changes = self.changes.max(self.included + 1);
        let is_fit = self.target.len() == members.len() && members.iter().all(|m| self.target.contains_key(&m.id));
        if !is_fit {
            let target = Arc::make_mut(&mut self.target);
            let mut before = std::mem::take(target);
            *target = members.iter().map(|m| (m.id.clone(), before.remove(&m.id).unwrap_or_default())).collect();
        }
        false
    }

    /// Takes the partitions of topics to which a member no longer subscribes from its target, while that is due. If
    /// this takes long, all of them.
    pub(super) fn narrow(&mut self, member: &MemberId, topics: &[Pattern]) {
        let Some(partitions) = self.target.get(member).filter(|partitions| self.is_due && !partitions.is_empty())
        else {
            return;
        };
        let mut names: Vec<&TopicName> = partitions.iter().map(|partition| &partition.topic).collect();
        names.dedup();
        let patterns = topics.iter().filter(|pattern| !matches!(pattern, Pattern::Topic(_))).count();
        let mut kept = BTreeSet::new();
        if names.len() * (1 + patterns) <= WORK_AT_ONCE {
            let wanted = Wanted::of(topics.iter());
            let lost: BTreeSet<&TopicName> = names.into_iter().filter(|name| !wanted.has(name)).collect();
            if lost.is_empty() {
                return;
            }
            kept = partitions.iter().filter(|partition| !lost.contains(&partition.topic)).cloned().collect();
        }
        self.set(member, kept);
    }

    /// Returns the plan of a renewal that is due.
    pub(super) fn plan(&self, members: impl FnOnce() -> Vec<Subscriber>, strategy: Strategy) -> Option<Plan> {
        self.is_due.then(|| Plan {
            index: self.index.clone(),
            target: self.target.clone(),
            members: members(),
            strategy,
            is_forced: self.is_forced,
            changes: self.changes,
            renames: self.renames,
        })
    }

    /// Takes over what was planned, unless it is void. A renewal stays due if the members have changed since. Returns
    /// `true` if an epoch begins.
    pub(super) fn apply(&mut self, planned: &mut Planned, members: &[Subscriber]) -> bool {
        let Planned { plan, index, target } = planned;
        if !Arc::ptr_eq(&self.index, &plan.index) || self.renames != plan.renames {
            return false;
        }
        std::mem::swap(&mut self.index, index);
        self.included = plan.changes;
        self.is_due = self.changes != plan.changes;
        self.is_large = self.is_due;
        self.is_forced = self.is_due;
        let Some(target) = target else {
            return false;
        };
        std::mem::swap(&mut self.target, target);
        if self.is_due {
            // Those that the plan does not know keep what they had.
            let mut known = plan.members.iter().peekable();
            for member in members {
                while known.next_if(|known| known.id < member.id).is_some() {}
                match known.next_if(|known| known.id == member.id) {
                    Some(known) if Arc::ptr_eq(&known.topics, &member.topics) => {}
                    Some(_) => self.narrow(&member.id, &member.topics),
                    None => self.set(&member.id, target.get(&member.id).cloned().unwrap_or_default()),
                }
            }
            self.defer(members);
        }
        true
    }
}
