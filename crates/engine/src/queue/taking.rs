//! Delivery of messages: a scan (a *look*) of a queue, and a receive call of several scans.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::leases::{Entry, Lease, NEVER, Phase, Queue};
use super::line::{Following, GroupId, Line, Place, Stand};
use super::{LEASE_TOTAL_MS_MAX, Order, WAITING_MAX};
use crate::ids::Offset;

/// Maximum number of messages that one scan returns to be moved to the dead-letter topic.
const DEAD_PER_LOOK_MAX: usize = 64;
/// Maximum number of messages that one scan skips without delivering them.
const PASSED_PER_LOOK_MAX: usize = 4096;
/// Number of messages of one call that need no allocation to be remembered: the maximum of one receive of SQS.
const FEW: usize = 10;
/// Number of waiting messages at which a scan no longer searches ahead for more of a group, or for a group with an
/// earlier place.
pub const LOOK_AHEAD_MAX: u64 = 4096;

/// Result of reading a message to determine its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Message(Option<GroupId>),
    /// No message is at this offset: compaction removed it, or the record is no message.
    Absent,
    /// Message has to be read from a file first.
    Cold,
}

/// Result of one scan of the queue.
#[derive(Debug, Default)]
pub struct Taken {
    pub leases: SmallVec<[Lease; 1]>,
    /// Messages with no attempt left: leased to the broker, to be moved to the dead-letter topic.
    pub dead: Vec<Lease>,
    /// Message at which the scan stopped, because it has to be read first.
    pub cold: Option<Offset>,
    /// `true` if the maximum number of messages is leased.
    pub is_full: bool,
    /// `true` if the scan stopped because it skipped the maximum number of messages: the next scan continues.
    pub is_cut: bool,
}

/// Receive call, which may take several scans. It gets each message at most once, even if the lease of one ends before
/// the call does, and all available messages of a group before the next group.
#[derive(Debug, Default)]
pub struct Call {
    /// First lease of the call.
    since: u64,
    given: SmallVec<[Offset; FEW]>,
    /// Last message that the call got of each group, if groups are ordered.
    groups: HashMap<GroupId, Offset, foldhash::fast::RandomState>,
    /// Group whose messages the call gets at present.
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

/// Message that was picked for delivery.
struct Picked {
    offset: Offset,
    group: Option<GroupId>,
    /// `true` if the message was never delivered and has no entry.
    is_new: bool,
}

/// State of one scan.
struct Walk<'a, L> {
    /// Offset from which no message is delivered for the first time.
    until: Offset,
    look: L,
    taken: &'a mut Taken,
    /// Number of messages that were skipped.
    passed: usize,
}

/// Result for the message at the cursor.
enum Step {
    /// Message may be delivered.
    Found(Picked),
    /// Cursor has passed the message.
    Passed,
    /// Message has to be read first.
    Cold,
    /// Maximum number of messages is waiting.
    Full,
}

impl Queue {
    /// Leases up to `max` messages until `lease_ms` from now. If messages have groups, `look` returns the group of a
    /// message.
    pub fn take(&mut self, now_ms: u64, max: usize, lease_ms: u64, look: impl FnMut(Offset) -> Look) -> Taken {
        self.take_before(Offset::MAX, now_ms, max, lease_ms, look)
    }

    /// Leases messages like [`Queue::take`], but delivers none at or after `until` for the first time.
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

    /// Leases messages like [`Queue::take_before`], for a call that may already have got some.
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
        let leases = SmallVec::with_capacity(self.undone().min(max as u64) as usize);
        let mut taken = Taken { leases, ..Taken::default() };
        let mut walk = Walk { until, look, taken: &mut taken, passed: 0 };
        let is_ordered = self.settings.order == Order::Groups;
        let mut aside = Vec::new();
        let mut unlisted = 0;
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
            if is_dead {
                walk.taken.dead.push(lease)
            } else {
                walk.taken.leases.push(lease)
            }
            if is_ordered {
                self.change(offset, entry);
                continue;
            }
            // The leased share of a group takes effect in the next scan, not in this one.
            if known.is_some() {
                self.drop_entry(offset);
            }
            unlisted += 1;
            self.entries.insert(offset, entry);
            self.note(offset);
            self.set_timer(offset, &entry);
        }
        self.counts.leased += unlisted;
        taken.is_cut |= self.has_due(now_ms);
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

    /// Picks the oldest available message.
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

    /// Picks the next message if groups are ordered: one of the call's present group while it has any, else the first
    /// of the group with the first place.
    fn pick_by_place(&mut self, call: &mut Call, walk: &mut Walk<'_, impl FnMut(Offset) -> Look>) -> Option<Picked> {
        loop {
            if let Some(id) = call.group {
                let last = call.groups.get(&id).copied().unwrap_or(0);
                match self.line.following(id, last) {
                    Following::Waiting(offset) => return Some(Picked { offset, group: Some(id), is_new: false }),
                    // More of its messages may come after the cursor.
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

    /// Returns `true` if messages after the cursor are read even though others could be delivered.
    fn may_look_ahead<L>(&self, walk: &Walk<'_, L>) -> bool {
        self.next < self.end.min(walk.until)
            && self.counts.waiting < LOOK_AHEAD_MAX
            && walk.passed < PASSED_PER_LOOK_MAX
    }

    /// Moves the cursor past one message. A message that is not wanted now becomes waiting, so that it is found without
    /// another read.
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

    /// Moves the cursor past a message that is not to be delivered now.
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
