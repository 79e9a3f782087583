//! Order of the waiting messages of a queue, with and without groups.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::Order;
use crate::ids::Offset;

/// Hash of the key of a group. Messages without a key have no group, and never wait for each other.
pub type GroupId = u64;

/// Number of leased messages from which a group may be noisy: others are served before it if it also exceeds its share.
const NOISY_LEASED_MIN: usize = 30;
/// Divisor of the leased messages of all groups that yields the share of one group.
const NOISY_SHARE: usize = 10;
/// Maximum number of groups that are searched for one that is not noisy.
const QUIET_SEARCH_MAX: usize = 1024;
/// Maximum number of emptied groups whose place is remembered. Beyond that the oldest ones start as new groups again.
const EMPTIED_MAX: usize = 65_536;

/// Returns the group of a record key, which never changes (FNV-1a).
pub fn group_of(key: &[u8]) -> GroupId {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Place of a group among the others, ordered by offset and then by a counter.
///
/// A new group has the place of its first message. A group that becomes available again gets a place after every
/// message that the log had then, and before later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(Offset, u64);

impl Place {
    pub(super) fn of_new(offset: Offset) -> Self {
        Self(offset, u64::MAX)
    }
}

/// Waiting messages in the order in which they are delivered.
///
/// Invariant: `open` has every group that may be served, at its place, and no other.
#[derive(Debug)]
pub(super) struct Line {
    order: Order,
    /// Waiting messages without a group.
    waiting: BTreeSet<Offset>,
    groups: HashMap<GroupId, Group, foldhash::fast::RandomState>,
    open: BTreeSet<(Place, GroupId)>,
    /// Number of leased messages of all groups.
    leased: usize,
    /// End of the log, the place of groups that become available again.
    end: Offset,
    /// Number of times that a group became available again.
    returns: u64,
    /// Places of groups without an entry: the log may have more of their messages after the cursor.
    emptied: HashMap<GroupId, Place, foldhash::fast::RandomState>,
    /// Emptied groups in the order of their places. Some are stale: `emptied` decides.
    emptied_by_age: VecDeque<(Place, GroupId)>,
}

/// Invariant: at least one of the three sets is not empty.
#[derive(Debug, Default)]
struct Group {
    waiting: BTreeSet<Offset>,
    delayed: BTreeSet<Offset>,
    leased: BTreeSet<Offset>,
    /// Place in `open`.
    listed: Option<Place>,
    /// Place when it is listed the next time, unless that is after all others.
    next: Option<Place>,
    /// Place when it was listed the last time.
    last: Option<Place>,
}

/// State of a message within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    Waiting,
    Delayed,
    Leased,
}

/// Next message of a group after a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Following {
    Waiting(Offset),
    /// Message is leased or delayed: no message is delivered before it is finished or available again.
    Held,
    /// No further message is known.
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

    /// Returns the first of its messages from an offset on.
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

    /// Returns `true` if the groups of messages have to be known.
    pub(super) fn has_groups(&self) -> bool {
        self.order != Order::Any
    }

    /// Sets the end of the log.
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
            let was_present = group.set(stand).remove(&offset);
            self.leased -= usize::from(was_present && stand == Stand::Leased);
            self.list(id);
        }
    }

    /// Changes the state of a message.
    pub(super) fn shift(&mut self, offset: Offset, group: Option<GroupId>, from: Stand, to: Stand) {
        let Some((id, group)) = group.and_then(|id| Some((id, self.groups.get_mut(&id)?))) else {
            self.remove(offset, group, from);
            return self.add(offset, group, to);
        };
        let was_present = group.set(from).remove(&offset);
        self.leased -= usize::from(was_present && from == Stand::Leased);
        group.set(to).insert(offset);
        self.leased += usize::from(to == Stand::Leased);
        self.list(id);
    }

    /// Makes a message wait again as if it had not been delivered: if its group becomes available by that, it gets its
    /// former place.
    pub(super) fn untake(&mut self, offset: Offset, group: Option<GroupId>) {
        if let Some(group) = group.and_then(|id| self.groups.get_mut(&id)) {
            group.next = group.last;
        }
        self.shift(offset, group, Stand::Leased, Stand::Waiting);
        if let Some(group) = group.and_then(|id| self.groups.get_mut(&id)) {
            group.next = None;
        }
    }

    /// Updates the place of a group in `open`.
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

    /// Remembers the place of an emptied group: its messages after the cursor come after all other groups.
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

    /// Drops places that are not after the cursor: messages from there on are newer than these groups.
    pub(super) fn pass(&mut self, next: Offset) {
        while self.emptied_by_age.front().is_some_and(|(place, _)| place.0 <= next) {
            self.forget_oldest();
        }
    }

    /// Returns `true` if a message that was never delivered may be delivered before all waiting ones: its group has no
    /// entry, or is not noisy.
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

    /// Returns the next message; with `takes_noisy` also one of a noisy group.
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

    /// Returns the next message by the places of groups, and its place; groups that are already served are skipped.
    pub(super) fn first_by_place(
        &self,
        is_served: impl Fn(GroupId) -> bool,
    ) -> Option<(Place, Offset, Option<GroupId>)> {
        let alone = self.waiting.first().map(|offset| (Place::of_new(*offset), *offset, None));
        let grouped = self.open.iter().find(|(_, id)| !is_served(*id));
        let grouped = grouped.and_then(|(place, id)| Some((*place, *self.groups.get(id)?.waiting.first()?, Some(*id))));
        alone.into_iter().chain(grouped).min()
    }

    /// Returns the message after a given one in its group.
    pub(super) fn following(&self, id: GroupId, offset: Offset) -> Following {
        self.groups.get(&id).map_or(Following::Nothing, |group| group.from(offset + 1))
    }

    /// Returns the leased messages of a group after one of its messages.
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
