//! Live subscriptions: the batches that each subscriber of a partition may still receive.
//!
//! A [`Feed`] is the bounded queue of one subscription, with its credit and its overflow policy. Each of its sources (a
//! partition) is either *live*, fed by every append, or *behind*, reading the log until it reaches the end. A
//! [`Fanout`] is the list of receivers of the appends of one partition.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use crate::error::{Error, Result};
use crate::ids::{Offset, SourceId};
use crate::record::RecordBatch;

/// Policy for a full subscriber queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Overflow {
    /// Queue is emptied and the subscriber continues from the log: it misses only records that retention removed.
    #[default]
    Replay = 0,
    /// Publisher waits, at most as long as the broker allows.
    Block = 1,
    /// New batch is not queued.
    DropNew = 2,
    /// Oldest batches in the queue are dropped to make room.
    DropOld = 3,
    /// Subscription ends with `slow_subscriber`.
    DisconnectSlow = 4,
}

impl Overflow {
    pub const ALL: [Self; 5] = [Self::Replay, Self::Block, Self::DropNew, Self::DropOld, Self::DisconnectSlow];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| *policy as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Block => "block",
            Self::DropNew => "drop_new",
            Self::DropOld => "drop_old",
            Self::DisconnectSlow => "disconnect_slow",
        }
    }
}

impl std::str::FromStr for Overflow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            Error::invalid(format!("overflow is replay, block, drop_new, drop_old or disconnect_slow, not '{text}'"))
        })
    }
}

/// Limits of a feed, beyond which its overflow policy applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedLimits {
    pub batches_max: usize,
    pub bytes_max: usize,
}

/// Next item for a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    Batch {
        source: SourceId,
        batch: RecordBatch,
    },
    /// Records from `from` up to, not including, `to` will not be delivered.
    Gap {
        source: SourceId,
        from: Offset,
        to: Offset,
    },
}

/// Result of offering a batch to a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Batch is in the queue. `first` is `true` if the queue was empty: the writer has to be woken.
    Queued { first: bool },
    /// Number of records that were dropped, older ones or those of this batch.
    Dropped { records: u64 },
    /// Source is behind and reads the batch from the log later.
    Behind,
    /// Queue overflowed and all sources that still exist are behind now.
    FellBehind,
    /// Subscription has to end.
    Disconnect,
}

#[derive(Debug)]
struct Source {
    /// First offset of the source. The batch that holds this offset is delivered whole, and nothing before it counts as
    /// missed.
    start: Offset,
    /// Offset that the feed expects next from this source.
    next: Offset,
    is_live: bool,
    is_removed: bool,
}

/// Bounded queue of one subscription.
#[derive(Debug)]
pub struct Feed {
    sources: Vec<Source>,
    queue: VecDeque<Delivery>,
    /// Batches at the front of `queue` that were read from a log. A log is read only when the queue is empty, one step
    /// at a time, so history needs no limit and takes no room from live batches.
    history_batches: usize,
    /// Live batches in `queue`; gap notices do not count, since they merge with their neighbours.
    batches: usize,
    /// Bytes of the live batches in `queue`.
    bytes: usize,
    /// Bytes that may still be taken. One batch may overdraw it.
    credit: i64,
    limits: FeedLimits,
    overflow: Overflow,
    /// `true` for a member of a queue group: it gets a share of each source. A missing offset therefore means nothing
    /// to it, and reading a log again would deliver the other members' share.
    is_shared: bool,
    dropped_records: u64,
    /// Source at which the search for the next source that is behind begins, so that each has its turn.
    turn: usize,
    /// Number of sources that are behind.
    behind: usize,
    /// Sources whose partitions were removed.
    removed: Vec<SourceId>,
}

impl Feed {
    pub fn new(limits: FeedLimits, overflow: Overflow, credit: i64, is_shared: bool) -> Self {
        Self {
            sources: Vec::new(),
            queue: VecDeque::new(),
            history_batches: 0,
            batches: 0,
            bytes: 0,
            credit,
            limits,
            overflow,
            is_shared,
            dropped_records: 0,
            turn: 0,
            behind: 0,
            removed: Vec::new(),
        }
    }

    /// Adds a source in the slot of a removed one. Returns `None` if no source was removed, or if anything is still
    /// queued.
    pub fn reuse_source(&mut self, next: Offset) -> Option<SourceId> {
        let source = self.removed.pop_if(|_| self.queue.is_empty())?;
        self.sources[source as usize] = Source { start: next, next, is_live: true, is_removed: false };
        Some(source)
    }

    /// Adds a source that starts at `next`. A source that starts at the end of its log is live immediately.
    pub fn add_source(&mut self, next: Offset, is_live: bool) -> SourceId {
        self.sources.push(Source { start: next, next, is_live, is_removed: false });
        self.behind += usize::from(!is_live);
        (self.sources.len() - 1) as SourceId
    }

    /// Removes the source of a deleted partition; its queued batches are still delivered.
    pub fn remove_source(&mut self, source: SourceId) {
        let removed = &mut self.sources[source as usize];
        if !removed.is_removed {
            self.removed.push(source);
        }
        self.behind -= usize::from(!removed.is_live);
        removed.is_removed = true;
        removed.is_live = true;
    }

    /// Returns `true` if the partition of a source still exists.
    pub fn is_source(&self, source: SourceId) -> bool {
        self.sources.get(source as usize).is_some_and(|source| !source.is_removed)
    }

    /// Returns the number of sources whose partitions still exist.
    pub fn source_count(&self) -> usize {
        self.sources.len() - self.removed.len()
    }

    /// Removes a source whose log ends at `end` and can no longer be read: its unread records are reported as a gap.
    pub fn close_source(&mut self, source: SourceId, end: Offset) {
        if !self.sources[source as usize].is_live {
            self.catch_up(source, end);
        }
        self.remove_source(source);
    }

    pub fn overflow(&self) -> Overflow {
        self.overflow
    }

    pub fn queued_batches(&self) -> usize {
        self.history_batches + self.batches
    }

    pub fn dropped_records(&self) -> u64 {
        self.dropped_records
    }

    /// Returns `true` if a live batch of `bytes` fits without the overflow policy. An empty queue takes any batch.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.batches == 0 || (self.batches < self.limits.batches_max && self.bytes + bytes <= self.limits.bytes_max)
    }

    /// Returns `true` if a publisher has to wait for this feed.
    pub fn blocks(&self, source: SourceId, bytes: usize) -> bool {
        self.overflow == Overflow::Block && self.sources[source as usize].is_live && !self.has_room(bytes)
    }

    pub fn add_credit(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add_unsigned(bytes);
    }

    pub fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// Returns `true` if `take` would return something.
    pub fn is_ready(&self) -> bool {
        !self.queue.is_empty() && self.has_credit()
    }

    /// Offers an append of a source, in offset order. The feed queues it if the source is live.
    pub fn offer(&mut self, source: SourceId, batch: &RecordBatch) -> Offer {
        let state = &mut self.sources[source as usize];
        if !state.is_live {
            return Offer::Behind;
        }
        let first = self.queue.is_empty();
        if self.has_room(batch.len()) {
            self.push_live(source, batch.clone());
            return Offer::Queued { first };
        }
        let before = self.dropped_records;
        match self.overflow {
            // `blocks` was checked before the append, but another of its partitions may have taken the room since: the
            // queue exceeds its limits by at most one batch per partition.
            Overflow::Block => {
                self.push_live(source, batch.clone());
                return Offer::Queued { first };
            }
            Overflow::Replay if !self.is_shared => {
                self.fall_behind();
                return Offer::FellBehind;
            }
            Overflow::Replay | Overflow::DropNew => {
                self.note_gap_back(source, batch.base_offset(), batch.next_offset());
                self.dropped_records += u64::from(batch.count());
            }
            Overflow::DropOld => {
                while !self.has_room(batch.len()) {
                    self.drop_oldest();
                }
                self.push_live(source, batch.clone());
            }
            Overflow::DisconnectSlow => return Offer::Disconnect,
        }
        Offer::Dropped { records: self.dropped_records - before }
    }

    /// Takes deliveries for one write: at most `records_max` records and `bytes_max` bytes, but at least one delivery
    /// if one is queued and there is credit.
    pub fn take(&mut self, records_max: usize, bytes_max: usize, out: &mut Vec<Delivery>) {
        let mut records = 0usize;
        let mut bytes = 0usize;
        while self.has_credit() {
            match self.queue.front() {
                None => break,
                Some(Delivery::Gap { .. }) => {}
                Some(Delivery::Batch { batch, .. }) => {
                    let is_over = records + batch.count() as usize > records_max || bytes + batch.len() > bytes_max;
                    if records > 0 && is_over {
                        break;
                    }
                    records += batch.count() as usize;
                    bytes += batch.len();
                    self.credit -= batch.len() as i64;
                    if self.history_batches > 0 {
                        self.history_batches -= 1;
                    } else {
                        self.batches -= 1;
                        self.bytes -= batch.len();
                    }
                }
            }
            out.extend(self.queue.pop_front());
        }
    }

    /// Returns `true` if a source is behind and reads its log.
    pub fn has_behind(&self) -> bool {
        self.behind > 0
    }

    /// Returns a source that has to read its log now, and its next offset. Only an empty queue accepts history.
    pub fn behind(&mut self) -> Option<(SourceId, Offset)> {
        if !self.queue.is_empty() || self.behind == 0 {
            return None;
        }
        let count = self.sources.len();
        let found = (0..count).map(|i| (self.turn + i) % count).find(|i| !self.sources[*i].is_live)?;
        self.turn = found + 1;
        Some((found as SourceId, self.sources[found].next))
    }

    /// Queues history of a source that is behind, read from its log at the offset that `behind` returned.
    pub fn backfill(&mut self, source: SourceId, batches: impl IntoIterator<Item = RecordBatch>) {
        // Batches that other sources appended while the log was read come after it.
        let mut live = self.queue.split_off(self.first_live());
        for batch in batches {
            let next = self.sources[source as usize].next;
            if batch.base_offset() > next {
                self.note_gap_back(source, next, batch.base_offset());
                self.dropped_records += batch.base_offset() - next;
            }
            self.sources[source as usize].next = batch.next_offset();
            self.history_batches += 1;
            self.queue.push_back(Delivery::Batch { source, batch });
        }
        self.queue.append(&mut live);
    }

    /// Makes a source live that has read its whole log. The caller holds the partition, so that no append can
    /// intervene.
    pub fn catch_up(&mut self, source: SourceId, end: Offset) {
        let state = &mut self.sources[source as usize];
        if state.next < end {
            // Retention removed the rest of the log.
            let from = state.next;
            self.note_gap_back(source, from, end);
            self.dropped_records += end - from;
        }
        let state = &mut self.sources[source as usize];
        self.behind -= usize::from(!state.is_live);
        state.next = end;
        state.is_live = true;
    }

    fn push_live(&mut self, source: SourceId, batch: RecordBatch) {
        self.sources[source as usize].next = batch.next_offset();
        self.batches += 1;
        self.bytes += batch.len();
        self.queue.push_back(Delivery::Batch { source, batch });
    }

    /// Drops all batches that the logs still have; each source resumes from its first dropped batch. Gaps before that
    /// batch are kept, and so is everything of a deleted partition, which has no log to read.
    fn fall_behind(&mut self) {
        let mut is_forgotten = vec![false; self.sources.len()];
        let mut history_left = self.history_batches;
        let mut history_batches = 0;
        let mut batches = 0;
        let mut bytes = 0;
        let sources = &mut self.sources;
        self.queue.retain(|delivery| {
            let (at, batch) = match delivery {
                Delivery::Gap { source, .. } => return !is_forgotten[*source as usize],
                Delivery::Batch { source, batch } => (*source as usize, batch),
            };
            let is_history = history_left > 0;
            history_left -= usize::from(is_history);
            if !sources[at].is_removed {
                if !is_forgotten[at] {
                    is_forgotten[at] = true;
                    sources[at].next = batch.base_offset().max(sources[at].start);
                }
                return false;
            }
            if is_history {
                history_batches += 1;
            } else {
                batches += 1;
                bytes += batch.len();
            }
            true
        });
        for source in &mut self.sources {
            source.is_live = source.is_removed;
        }
        self.behind = self.source_count();
        self.history_batches = history_batches;
        self.batches = batches;
        self.bytes = bytes;
    }

    /// Returns the position of the first live batch in the queue, or the queue's end.
    fn first_live(&self) -> usize {
        let batches = self.queue.iter().enumerate().filter(|(_, delivery)| matches!(delivery, Delivery::Batch { .. }));
        batches.map(|(at, _)| at).nth(self.history_batches).unwrap_or(self.queue.len())
    }

    fn drop_oldest(&mut self) {
        // Dropping history would make no room, since it takes none.
        let at = self.first_live();
        let Some(Delivery::Batch { source, batch }) = self.queue.remove(at) else {
            return;
        };
        self.batches -= 1;
        self.bytes -= batch.len();
        self.dropped_records += u64::from(batch.count());
        let from = batch.base_offset();
        let to = batch.next_offset();
        let before = self.queue.iter_mut().take(at).rev();
        if !self.is_shared && !merge_gap(before, source, from, to) {
            self.queue.insert(at, Delivery::Gap { source, from, to });
        }
    }

    fn note_gap_back(&mut self, source: SourceId, from: Offset, to: Offset) {
        self.sources[source as usize].next = to;
        if !self.is_shared && !merge_gap(self.queue.iter_mut().rev(), source, from, to) {
            self.queue.push_back(Delivery::Gap { source, from, to });
        }
    }
}

/// Extends a gap of the same source among the adjacent gaps, nearest first. There is at most one per source, which
/// bounds the notices.
fn merge_gap<'a>(near: impl Iterator<Item = &'a mut Delivery>, source: SourceId, from: Offset, to: Offset) -> bool {
    for delivery in near {
        match delivery {
            Delivery::Gap { source: s, to: end, .. } if *s == source && *end == from => {
                *end = to;
                return true;
            }
            Delivery::Gap { .. } => {}
            Delivery::Batch { .. } => return false,
        }
    }
    false
}

/// Receivers of the appends of one partition. `H` is the caller's handle of a subscriber.
#[derive(Debug)]
pub struct Fanout<H> {
    /// Subscribers without a group, by their ids.
    each: IndexMap<u64, Member<H>, RandomState>,
    groups: Vec<Group<H>>,
}

/// Subscriber of the partition, and the partition's position among its sources.
#[derive(Clone, Debug)]
pub struct Member<H> {
    pub handle: H,
    pub source: SourceId,
}

#[derive(Debug)]
struct Group<H> {
    name: Box<str>,
    members: IndexMap<u64, Member<H>, RandomState>,
    turn: usize,
}

impl<H> Default for Fanout<H> {
    fn default() -> Self {
        Self { each: IndexMap::default(), groups: Vec::new() }
    }
}

impl<H> Fanout<H> {
    pub fn is_empty(&self) -> bool {
        self.each.is_empty() && self.groups.is_empty()
    }

    /// Adds a subscriber with this id; with a group's name it shares the partition with the group's other members.
    pub fn join(&mut self, id: u64, member: Member<H>, group: Option<&str>) {
        let members = match group {
            None => &mut self.each,
            Some(name) => {
                let at = self.place_of(name).unwrap_or_else(|| {
                    self.groups.push(Group { name: name.into(), members: IndexMap::default(), turn: 0 });
                    self.groups.len() - 1
                });
                &mut self.groups[at].members
            }
        };
        members.insert(id, member);
    }

    /// Returns `true` if the subscriber with this id has joined, with this group.
    pub fn has(&self, id: u64, group: Option<&str>) -> bool {
        match group {
            None => self.each.contains_key(&id),
            Some(name) => self.place_of(name).is_some_and(|at| self.groups[at].members.contains_key(&id)),
        }
    }

    /// Removes the subscriber with this id. The last subscriber takes its place.
    pub fn leave(&mut self, id: u64, group: Option<&str>) -> Option<Member<H>> {
        let Some(name) = group else {
            return self.each.swap_remove(&id);
        };
        let at = self.place_of(name)?;
        let left = self.groups[at].members.swap_remove(&id);
        if self.groups[at].members.is_empty() {
            self.groups.remove(at);
        }
        left
    }

    fn place_of(&self, group: &str) -> Option<usize> {
        self.groups.iter().position(|of| &*of.name == group)
    }

    /// Removes all subscribers for which `is_leaving` returns `true`.
    pub fn remove_all(&mut self, is_leaving: impl Fn(&H) -> bool) {
        self.each.retain(|_, member| !is_leaving(&member.handle));
        for group in &mut self.groups {
            group.members.retain(|_, member| !is_leaving(&member.handle));
        }
        self.groups.retain(|group| !group.members.is_empty());
    }

    pub fn members(&self) -> impl Iterator<Item = &Member<H>> {
        self.each.values().chain(self.groups.iter().flat_map(|group| group.members.values()))
    }

    /// Returns the subscribers that get every append.
    pub fn plain_members(&self) -> impl Iterator<Item = &Member<H>> {
        self.each.values()
    }

    /// Returns the groups with their members.
    pub fn groups(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &Member<H>>)> {
        self.groups.iter().map(|group| (&*group.name, group.members.values()))
    }

    /// Returns the number of receivers of an append: every plain subscriber and one member of each group.
    pub fn receivers(&self) -> usize {
        self.each.len() + self.groups.len()
    }

    /// Returns `Ok` if every receiver accepts, where one accepting member is enough for a group for which `is_for`
    /// returns `true`. Otherwise returns a member that does not accept.
    pub fn all_accept(
        &self,
        is_for: impl Fn(&str) -> bool,
        accepts: impl Fn(&Member<H>) -> bool,
    ) -> Result<(), &Member<H>> {
        for member in self.each.values() {
            if !accepts(member) {
                return Err(member);
            }
        }
        for group in self.groups.iter().filter(|group| is_for(&group.name)) {
            if !group.members.values().any(&accepts) {
                return Err(&group.members[group.turn % group.members.len()]);
            }
        }
        Ok(())
    }

    /// Delivers an append to every receiver, and of the groups to those for which `is_for` returns `true`. In a group
    /// that is the next member in turn that accepts. If no member accepts, it is the next in turn, whose overflow
    /// policy then decides.
    pub fn deliver(
        &mut self,
        is_for: impl Fn(&str) -> bool,
        accepts: impl Fn(&Member<H>) -> bool,
        mut deliver: impl FnMut(&Member<H>),
    ) {
        for member in self.each.values() {
            deliver(member);
        }
        for group in self.groups.iter_mut().filter(|group| is_for(&group.name)) {
            let count = group.members.len();
            let chosen = (0..count)
                .map(|i| (group.turn + i) % count)
                .find(|i| accepts(&group.members[*i]))
                .unwrap_or(group.turn % count);
            group.turn = (chosen + 1) % count;
            deliver(&group.members[chosen]);
        }
    }
}

#[cfg(test)]
#[path = "fanout_tests.rs"]
mod tests;
