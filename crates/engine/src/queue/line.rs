//! Which of the waiting messages of a queue is next, where messages belong to groups and where not.

use std::collections::{BTreeSet, HashMap};

use super::Order;
use crate::ids::Offset;

/// What stands for the key of a group. Messages without a key have none, and never wait for each other.
pub type GroupId = u64;

/// A group with more of its messages leased than this, and than its share, is noisy: others are served before it.
const NOISY_LEASED_MIN: usize = 30;
/// One in so many of all that is leased is a group's share.
const NOISY_SHARE: usize = 10;
/// Groups that are looked at for one that is not noisy.
const QUIET_SEARCH_MAX: usize = 1024;

/// A group: for the key of a record, always the same (FNV-1a).
pub fn group_of(key: &[u8]) -> GroupId {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Messages that wait, in the order in which they are to go.
///
/// Invariant: `open` has the first waiting message of every group that may be served, and of no other.
#[derive(Debug)]
pub(super) struct Line {
    order: Order,
    /// Those without a group.
    waiting: BTreeSet<Offset>,
    groups: HashMap<GroupId, Group, foldhash::fast::RandomState>,
    open: BTreeSet<(Offset, GroupId)>,
    /// Leased messages of all groups.
    leased: usize,
}

/// Invariant: none is empty in all three sets.
#[derive(Debug, Default)]
struct Group {
    waiting: BTreeSet<Offset>,
    delayed: BTreeSet<Offset>,
    leased: BTreeSet<Offset>,
    /// Its entry in `open`.
    listed: Option<Offset>,
}

/// What a message of a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    Waiting,
    Delayed,
    Leased,
}

impl Group {
    fn set(&mut self, stand: Stand) -> &mut BTreeSet<Offset> {
        match stand {
            Stand::Waiting => &mut self.waiting,
            Stand::Delayed => &mut self.delayed,
            Stand::Leased => &mut self.leased,
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.delayed.is_empty() && self.leased.is_empty()
    }

    /// Its first waiting message, if that may go.
    fn next(&self, order: Order) -> Option<Offset> {
        let first = self.waiting.first().copied()?;
        let is_held = order == Order::Groups
            && (!self.leased.is_empty() || self.delayed.first().is_some_and(|delayed| *delayed < first));
        (!is_held).then_some(first)
    }
}

impl Line {
    pub(super) fn new(order: Order) -> Self {
        Self { order, waiting: BTreeSet::new(), groups: HashMap::default(), open: BTreeSet::new(), leased: 0 }
    }

    /// Whether the group of a message has to be known.
    pub(super) fn has_groups(&self) -> bool {
        self.order != Order::Any
    }

    pub(super) fn add(&mut self, offset: Offset, group: Option<GroupId>, stand: Stand) {
        let Some(id) = group.filter(|_| self.has_groups()) else {
            if stand == Stand::Waiting {
                self.waiting.insert(offset);
            }
            return;
        };
        self.groups.entry(id).or_default().set(stand).insert(offset);
        self.leased += usize::from(stand == Stand::Leased);
        self.list(id);
    }

    pub(super) fn remove(&mut self, offset: Offset, group: Option<GroupId>, stand: Stand) {
        let Some(id) = group.filter(|_| self.has_groups()) else {
            if stand == Stand::Waiting {
                self.waiting.remove(&offset);
            }
            return;
        };
        if let Some(group) = self.groups.get_mut(&id) {
            let was_there = group.set(stand).remove(&offset);
            self.leased -= usize::from(was_there && stand == Stand::Leased);
            self.list(id);
        }
    }

    /// Brings `open` up to date with a group.
    fn list(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let next = group.next(self.order);
        if next != group.listed {
            group.listed.take().map(|listed| self.open.remove(&(listed, id)));
            group.listed = next;
            next.map(|next| self.open.insert((next, id)));
        }
        if group.is_empty() {
            self.groups.remove(&id);
        }
    }

    /// Whether a message that nobody was given yet may go before all that wait: none of its group is before it.
    pub(super) fn admits(&self, group: Option<GroupId>) -> bool {
        let Some(group) = group.and_then(|id| self.groups.get(&id)) else {
            return true;
        };
        match self.order {
            Order::Any => true,
            Order::Groups => group.is_empty(),
            Order::Fair => !self.is_noisy(group),
        }
    }

    fn is_noisy(&self, group: &Group) -> bool {
        group.leased.len() >= NOISY_LEASED_MIN && group.leased.len() * NOISY_SHARE > self.leased
    }

    /// The message that is next; of noisy groups only if `takes_noisy`.
    pub(super) fn first(&self, takes_noisy: bool) -> Option<(Offset, Option<GroupId>)> {
        let alone = self.waiting.first().map(|offset| (*offset, None));
        let is_fit = |(_, id): &&(Offset, GroupId)| {
            takes_noisy || self.order != Order::Fair || self.groups.get(id).is_some_and(|group| !self.is_noisy(group))
        };
        let grouped = self.open.iter().take(QUIET_SEARCH_MAX).find(is_fit).map(|(offset, id)| (*offset, Some(*id)));
        match (alone, grouped) {
            (Some(alone), Some(grouped)) => Some(if alone.0 < grouped.0 { alone } else { grouped }),
            (alone, grouped) => alone.or(grouped),
        }
    }

    /// Leased messages of a group that come after one of its messages.
    pub(super) fn leased_after(&self, offset: Offset, group: Option<GroupId>) -> Vec<Offset> {
        let group = group.and_then(|id| self.groups.get(&id));
        group.map_or(Vec::new(), |group| group.leased.range(offset + 1..).copied().collect())
    }

    pub(super) fn noisy_groups(&self) -> usize {
        match self.order {
            Order::Fair => self.groups.values().filter(|group| self.is_noisy(group)).count(),
            _ => 0,
        }
    }
}
