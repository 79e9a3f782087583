//! What one look at a queue gives out, and what all looks of one call together do.

use std::collections::HashMap;

use super::leases::{Entry, Lease, NEVER, Phase, Queue};
use super::line::{Following, GroupId, Line, Place, Stand};
use super::{LEASE_TOTAL_MS_MAX, Order, WAITING_MAX};
use crate::ids::Offset;

/// Messages that one look hands over to be moved to the dead letters.
const DEAD_PER_LOOK_MAX: usize = 64;
/// Messages that one look goes by at most, without giving them out.
const PASSED_PER_LOOK_MAX: usize = 4096;
/// With so many messages waiting nobody looks further for more of a group, or for a group that goes before another.
pub const LOOK_AHEAD_MAX: u64 = 4096;

/// What is seen of a message where its group has to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Message(Option<GroupId>),
    /// There is none at this offset: compaction took it, or it is no message.
    Absent,
    /// It has to be read from a file first.
    Cold,
}

/// What one look at the queue gives out.
#[derive(Debug, Default)]
pub struct Taken {
    pub leases: Vec<Lease>,
    /// Messages with no attempt left: leased to the broker, to be moved to the dead letters.
    pub dead: Vec<Lease>,
    /// The message at which it had to stop, because it has to be read first.
    pub cold: Option<Offset>,
    /// As many are leased as may be.
    pub is_full: bool,
    /// It has gone by so many that it stopped: the next look goes on.
    pub is_cut: bool,
}

/// A call of a receiver, which may take several looks. It is given each message once, also if the lease of one ends
/// before the call does, and all that there is of a group before the next group.
#[derive(Debug, Default)]
pub struct Call {
    /// The first lease of the call.
    since: u64,
    given: Vec<Offset>,
    /// Of each group that it was given messages of, the last one; where groups have an order.
    groups: HashMap<GroupId, Offset, foldhash::fast::RandomState>,
    /// The group that it is given messages of now.
    group: Option<GroupId>,
}

impl Call {
    fn has(&self, offset: Offset, entry: &Entry) -> bool {
        self.since > 0 && entry.lease >= self.since && self.given.contains(&offset)
    }

    fn add(&mut self, lease: &Lease, group: Option<GroupId>) {
        if self.given.is_empty() {
            self.since = lease.lease;
        }
        self.given.push(lease.offset);
        self.group = group;
        if let Some(group) = group {
            self.groups.insert(group, lease.offset);
        }
    }
}

/// The message that is next.
struct Picked {
    offset: Offset,
    group: Option<GroupId>,
    /// Nobody was given it yet, and nothing is known of it.
    is_new: bool,
}

/// How one look goes.
struct Walk<'a, L> {
    /// Nothing from here on that nobody was ever given.
    until: Offset,
    look: L,
    taken: &'a mut Taken,
    /// Messages that it has gone by.
    passed: usize,
}

/// What became of the message at the cursor.
enum Step {
    /// It may be given out.
    Found(Picked),
    /// The cursor has gone by it.
    Passed,
    /// It has to be read first.
    Cold,
    /// As many messages wait as may.
    Full,
}

impl Queue {
    /// Gives out up to `max` messages until `lease_ms` from now. Where messages have groups, `look` says which.
    pub fn take(&mut self, now_ms: u64, max: usize, lease_ms: u64, look: impl FnMut(Offset) -> Look) -> Taken {
        self.take_before(Offset::MAX, now_ms, max, lease_ms, look)
    }

    /// The same, and nothing from `until` on that nobody was ever given.
    pub fn take_before(
        &mut self,
        until: Offset,
        now_ms: u64,
        max: usize,
        lease_ms: u64,
        look: impl FnMut(Offset) -> Look,
    ) -> Taken {
        self.take_for(&mut Call::default(), until, now_ms, max, lease_ms, look)
    }

    /// The same for a call that may have been given messages before.
    pub fn take_for(
        &mut self,
        call: &mut Call,
        until: Offset,
        now_ms: u64,
        max: usize,
        lease_ms: u64,
        look: impl FnMut(Offset) -> Look,
    ) -> Taken {
        self.expire(now_ms);
        self.line.pass(self.next);
        let leases = Vec::with_capacity(self.undone().min(max as u64) as usize);
        let mut taken = Taken { leases, ..Taken::default() };
        let mut walk = Walk { until, look, taken: &mut taken, passed: 0 };
        let is_ordered = self.settings.order == Order::Groups;
        let (mut aside, mut unlisted) = (Vec::new(), 0);
        while walk.taken.leases.len() < max && walk.taken.dead.len() < DEAD_PER_LOOK_MAX {
            walk.taken.is_full = self.counts.leased + unlisted >= u64::from(self.settings.in_flight_max);
            if walk.taken.is_full {
                break;
            }
            let picked = if is_ordered { self.pick_by_place(call, &mut walk) } else { self.pick(&mut walk) };
            let Some(Picked { offset, group, is_new }) = picked else {
                break;
            };
            let known = if is_new { None } else { self.entries.get(&offset).copied() };
            if known.is_some_and(|entry| call.has(offset, &entry)) {
                self.line.remove(offset, group, Stand::Waiting);
                aside.push((offset, group));
                continue;
            }
            let before = known.map_or((0, 0), |entry| (entry.attempts, entry.first_ms));
            let is_dead = self.settings.is_last_attempt(before.0);
            let attempts = before.0 + u32::from(!is_dead);
            let first_ms = if before.0 == 0 { now_ms } else { before.1 };
            let lease = Lease { offset, lease: self.new_lease(now_ms), attempts, first_ms };
            let due_ms = if is_dead { NEVER } else { now_ms.saturating_add(lease_ms.min(LEASE_TOTAL_MS_MAX)) };
            let entry = Entry { phase: Phase::Leased, due_ms, lease: lease.lease, attempts, first_ms, group };
            call.add(&lease, group.filter(|_| is_ordered));
            match is_dead {
                true => walk.taken.dead.push(lease),
                false => walk.taken.leases.push(lease),
            }
            if is_ordered {
                self.change(offset, entry);
                continue;
            }
            // How much of a group is leased counts for the next look, not for this one.
            if known.is_some() {
                self.drop_entry(offset);
            }
            unlisted += 1;
            self.entries.insert(offset, entry);
            self.note(offset);
            self.set_timer(offset, &entry);
        }
        self.counts.leased += unlisted;
        if self.line.has_groups() && !is_ordered {
            for lease in taken.leases.iter().chain(&taken.dead) {
                let group = self.entries.get(&lease.offset).and_then(|entry| entry.group);
                self.line.add(lease.offset, group, Stand::Leased);
            }
        }
        for (offset, group) in aside {
            self.line.add(offset, group, Stand::Waiting);
        }
        taken
    }

    /// The message that is next: the oldest that can be had.
    fn pick(&mut self, walk: &mut Walk<'_, impl FnMut(Offset) -> Look>) -> Option<Picked> {
        let waiting = |(offset, group)| Picked { offset, group, is_new: false };
        if let Some(first) = self.line.first(false) {
            return Some(waiting(first));
        }
        while self.next < self.end.min(walk.until) {
            if walk.passed >= PASSED_PER_LOOK_MAX {
                walk.taken.is_cut = true;
                return None;
            }
            match self.step(walk, |line, group| line.admits(group)) {
                Step::Found(picked) => return Some(picked),
                Step::Passed => {}
                Step::Cold | Step::Full => break,
            }
        }
        self.line.first(true).map(waiting)
    }

    /// The message that is next where groups have an order: one of the group that the call is at, as long as there is
    /// one, else the first of the group with the first place.
    fn pick_by_place(&mut self, call: &mut Call, walk: &mut Walk<'_, impl FnMut(Offset) -> Look>) -> Option<Picked> {
        loop {
            if let Some(id) = call.group {
                let last = call.groups.get(&id).copied().unwrap_or(0);
                match self.line.following(id, last) {
                    Following::Waiting(offset) => return Some(Picked { offset, group: Some(id), is_new: false }),
                    // More of it may come after the cursor.
                    Following::Nothing if self.may_look_ahead(walk) => {}
                    Following::Nothing | Following::Held => {
                        call.group = None;
                        continue;
                    }
                }
            } else {
                let found = self.line.first_by_place(|id| call.groups.contains_key(&id));
                if let Some((place, offset, group)) = found
                    && (place < Place::of_new(self.next) || !self.may_look_ahead(walk))
                {
                    return Some(Picked { offset, group, is_new: false });
                }
            }
            if self.next >= self.end.min(walk.until) {
                return None;
            }
            if walk.passed >= PASSED_PER_LOOK_MAX {
                walk.taken.is_cut = true;
                return None;
            }
            let of_call = call.group;
            let step = self.step(walk, |line, group| match of_call {
                Some(_) => group == of_call,
                None => line.admits(group),
            });
            match step {
                Step::Found(picked) => return Some(picked),
                Step::Passed => {}
                Step::Cold | Step::Full => return None,
            }
        }
    }

    /// Whether messages after the cursor are looked at though others could be given out.
    fn may_look_ahead<L>(&self, walk: &Walk<'_, L>) -> bool {
        self.next < self.end.min(walk.until)
            && self.counts.waiting < LOOK_AHEAD_MAX
            && walk.passed < PASSED_PER_LOOK_MAX
    }

    /// The cursor goes by one message. One that is not wanted now waits where it is found without looking again.
    fn step(
        &mut self,
        walk: &mut Walk<'_, impl FnMut(Offset) -> Look>,
        is_wanted: impl Fn(&Line, Option<GroupId>) -> bool,
    ) -> Step {
        let offset = self.next;
        let group = match self.line.has_groups().then(|| (walk.look)(offset)) {
            Some(Look::Cold) => {
                walk.taken.cold = Some(offset);
                return Step::Cold;
            }
            Some(Look::Absent) => {
                walk.passed += 1;
                self.pass(offset, None);
                return Step::Passed;
            }
            Some(Look::Message(group)) => group,
            None => None,
        };
        if self.ahead > 0 && self.entries.contains_key(&offset) {
            walk.passed += 1;
            self.pass(offset, group);
            return Step::Passed;
        }
        if is_wanted(&self.line, group) {
            self.advance();
            return Step::Found(Picked { offset, group, is_new: true });
        }
        if self.counts.waiting >= WAITING_MAX {
            return Step::Full;
        }
        walk.passed += 1;
        self.advance();
        self.put(offset, Entry { phase: Phase::Waiting, due_ms: 0, lease: 0, attempts: 0, first_ms: 0, group });
        Step::Passed
    }

    /// The cursor goes by a message that is not to be given out now.
    fn pass(&mut self, offset: Offset, group: Option<GroupId>) {
        self.advance();
        // It is in no line yet.
        let Some(entry) = self.entries.remove(&offset) else {
            return;
        };
        self.ahead -= 1;
        if entry.phase == Phase::Delayed {
            self.counts.delayed -= 1;
            self.put(offset, Entry { group, ..entry });
        }
    }
}
