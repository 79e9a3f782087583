//! Which of the waiting messages of a queue is next, where messages belong to groups and where not.

use std::collections::{BTreeSet, HashMap, VecDeque};

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
/// Groups without a known message whose place is remembered. Beyond that the oldest begin again as new ones.
const EMPTIED_MAX: usize = 65_536;

/// A group: for the key of a record, always the same (FNV-1a).
pub fn group_of(key: &[u8]) -> GroupId {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The place of a group among the others, in the order of the log and then of the count.
///
/// A new group has the place of its first message. One that can be had again has a place after every message that the
/// log had then, and before those that came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(Offset, u64);

impl Place {
    pub(super) fn of_new(offset: Offset) -> Self {
        Self(offset, u64::MAX)
    }
}

/// Messages that wait, in the order in which they are to go.
///
/// Invariant: `open` has every group that may be served, at its place, and no other.
#[derive(Debug)]
pub(super) struct Line {
    order: Order,
    /// Those without a group.
    waiting: BTreeSet<Offset>,
    groups: HashMap<GroupId, Group, foldhash::fast::RandomState>,
    open: BTreeSet<(Place, GroupId)>,
    /// Leased messages of all groups.
    leased: usize,
    /// The end of the log, where groups go that can be had again.
    end: Offset,
    /// How many groups could be had again so far.
    returns: u64,
    /// Places of groups without a known message: others of theirs may be in the log after the cursor.
    emptied: HashMap<GroupId, Place, foldhash::fast::RandomState>,
    /// The same in the order of their places. Some are out of date: `emptied` decides.
    emptied_by_age: VecDeque<(Place, GroupId)>,
}

/// Invariant: none is empty in all three sets.
#[derive(Debug, Default)]
struct Group {
    waiting: BTreeSet<Offset>,
    delayed: BTreeSet<Offset>,
    leased: BTreeSet<Offset>,
    /// Its place in `open`.
    listed: Option<Place>,
    /// Its place the next time that it is listed, if that is not behind all others.
    next: Option<Place>,
    /// Its place the last time that it was listed.
    last: Option<Place>,
}

/// What a message of a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    Waiting,
    Delayed,
    Leased,
}

/// What follows a message in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Following {
    Waiting(Offset),
    /// One that somebody has, or that is delayed: nothing goes before it is done with or can be had again.
    Held,
    /// Nothing that is known.
    Nothing,
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

    /// What is first among its messages from an offset on.
    fn from(&self, offset: Offset) -> Following {
        let first = |set: &BTreeSet<Offset>| set.range(offset..).next().copied();
        let held = [first(&self.leased), first(&self.delayed)].into_iter().flatten().min();
        match (first(&self.waiting), held) {
            (Some(waiting), held) if held.is_none_or(|held| waiting < held) => Following::Waiting(waiting),
            (None, None) => Following::Nothing,
            _ => Following::Held,
        }
    }
}

impl Line {
    pub(super) fn new(order: Order) -> Self {
        Self {
            order,
            waiting: BTreeSet::new(),
            groups: HashMap::default(),
            open: BTreeSet::new(),
            leased: 0,
            end: 0,
            returns: 0,
            emptied: HashMap::default(),
            emptied_by_age: VecDeque::new(),
        }
    }

    /// Whether the group of a message has to be known.
    pub(super) fn has_groups(&self) -> bool {
        self.order != Order::Any
    }

    /// The log has grown to this offset.
    pub(super) fn reach(&mut self, end: Offset) {
        self.end = end;
    }

    pub(super) fn add(&mut self, offset: Offset, group: Option<GroupId>, stand: Stand) {
        let Some(id) = group.filter(|_| self.has_groups()) else {
            if stand == Stand::Waiting {
                self.waiting.insert(offset);
            }
            return;
        };
        let emptied = &mut self.emptied;
        let group = self.groups.entry(id).or_insert_with(|| {
            let place = Some(emptied.remove(&id).unwrap_or(Place::of_new(offset)));
            match stand {
                // It had its turn already.
                Stand::Leased => Group { last: place, ..Group::default() },
                Stand::Waiting | Stand::Delayed => Group { next: place, ..Group::default() },
            }
        });
        group.set(stand).insert(offset);
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

    /// A message does something else from now on.
    pub(super) fn shift(&mut self, offset: Offset, group: Option<GroupId>, from: Stand, to: Stand) {
        let Some((id, group)) = group.and_then(|id| Some((id, self.groups.get_mut(&id)?))) else {
            self.remove(offset, group, from);
            return self.add(offset, group, to);
        };
        let was_there = group.set(from).remove(&offset);
        self.leased -= usize::from(was_there && from == Stand::Leased);
        group.set(to).insert(offset);
        self.leased += usize::from(to == Stand::Leased);
        self.list(id);
    }

    /// A message that was given out just now waits again as if it had not been: if its group can be had by that, it is
    /// at the place where it was.
    pub(super) fn untake(&mut self, offset: Offset, group: Option<GroupId>) {
        if let Some(group) = group.and_then(|id| self.groups.get_mut(&id)) {
            group.next = group.last;
        }
        self.shift(offset, group, Stand::Leased, Stand::Waiting);
        if let Some(group) = group.and_then(|id| self.groups.get_mut(&id)) {
            group.next = None;
        }
    }

    /// Brings `open` up to date with a group.
    fn list(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let place = match self.order {
            Order::Any => None,
            Order::Fair => group.waiting.first().map(|first| Place(*first, 0)),
            Order::Groups if !matches!(group.from(0), Following::Waiting(_)) => None,
            Order::Groups => group.listed.or_else(|| group.next.take()).or_else(|| {
                self.returns += 1;
                Some(Place(self.end, self.returns))
            }),
        };
        if place != group.listed {
            if let Some(listed) = group.listed.take() {
                group.last = Some(listed);
                self.open.remove(&(listed, id));
            }
            group.listed = place;
            place.map(|place| self.open.insert((place, id)));
        }
        if group.is_empty() {
            self.groups.remove(&id);
            self.forget_later(id);
        }
    }

    /// Nothing is known of a group any more. What comes of it after the cursor is behind all others.
    fn forget_later(&mut self, id: GroupId) {
        if self.order != Order::Groups {
            return;
        }
        self.returns += 1;
        let place = Place(self.end, self.returns);
        self.emptied.insert(id, place);
        self.emptied_by_age.push_back((place, id));
        if self.emptied_by_age.len() > EMPTIED_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((place, id)) = self.emptied_by_age.pop_front()
            && self.emptied.get(&id) == Some(&place)
        {
            self.emptied.remove(&id);
        }
    }

    /// The cursor is here: what comes from here on is newer than groups that were emptied before.
    pub(super) fn pass(&mut self, next: Offset) {
        while self.emptied_by_age.front().is_some_and(|(place, _)| place.0 <= next) {
            self.forget_oldest();
        }
    }

    /// Whether a message that nobody was given yet may go before all that wait: its group is not known, or not noisy.
    pub(super) fn admits(&self, group: Option<GroupId>) -> bool {
        let Some(id) = group else {
            return true;
        };
        match self.order {
            Order::Any => true,
            Order::Groups => !self.groups.contains_key(&id) && !self.emptied.contains_key(&id),
            Order::Fair => self.groups.get(&id).is_none_or(|group| !self.is_noisy(group)),
        }
    }

    fn is_noisy(&self, group: &Group) -> bool {
        group.leased.len() >= NOISY_LEASED_MIN && group.leased.len() * NOISY_SHARE > self.leased
    }

    /// The message that is next; of noisy groups only if `takes_noisy`.
    pub(super) fn first(&self, takes_noisy: bool) -> Option<(Offset, Option<GroupId>)> {
        let alone = self.waiting.first().map(|offset| (*offset, None));
        let is_fit = |(_, id): &&(Place, GroupId)| {
            takes_noisy || self.order != Order::Fair || self.groups.get(id).is_some_and(|group| !self.is_noisy(group))
        };
        let grouped = self.open.iter().take(QUIET_SEARCH_MAX).find(is_fit);
        let grouped = grouped.and_then(|(_, id)| Some((*self.groups.get(id)?.waiting.first()?, Some(*id))));
        match (alone, grouped) {
            (Some(alone), Some(grouped)) => Some(if alone.0 < grouped.0 { alone } else { grouped }),
            (alone, grouped) => alone.or(grouped),
        }
    }

    /// The message that is next by the places of groups, and its place; none of the groups that are `served` already.
    pub(super) fn first_by_place(
        &self,
        is_served: impl Fn(GroupId) -> bool,
    ) -> Option<(Place, Offset, Option<GroupId>)> {
        let alone = self.waiting.first().map(|offset| (Place::of_new(*offset), *offset, None));
        let grouped = self.open.iter().find(|(_, id)| !is_served(*id));
        let grouped = grouped.and_then(|(place, id)| Some((*place, *self.groups.get(id)?.waiting.first()?, Some(*id))));
        alone.into_iter().chain(grouped).min()
    }

    /// What follows a message in its group.
    pub(super) fn following(&self, id: GroupId, offset: Offset) -> Following {
        self.groups.get(&id).map_or(Following::Nothing, |group| group.from(offset + 1))
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
