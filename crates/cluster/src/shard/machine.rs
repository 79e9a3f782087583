//! One node's part of one shard: the consensus, the blocks of its entries, and who waits for them.
//!
//! The machine has no thread, disk or socket. Its calls leave work ([`Effects`]) for the caller, who must do it in the
//! order of the calls: write saves, then send parts. Committed entries are settled one after the other
//! ([`Machine::next`]): their owners are told if this node appended them as the leader, otherwise they are applied.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use consensus::{
    Body, Change, Entry, Index, Kind, Log, Members, Message, NodeId, Peer, Point, Position, Refused, Replica, Role,
    Settings, Status, Term, Time,
};
use engine::shard::ShardId;
use storage::{EntryKind, Owner};

use super::blocks::Blocks;
use super::save::{Base, SaveRow, SavedEntry};
use crate::link::{Block, Part};
use crate::roster::{Roster, RosterChange};

/// Maximum number of entries that are applied in one step.
const APPLIED_MAX: usize = 64;
/// Ticks after which the leader offers its state again to a node that needs it.
const OFFER_AGAIN_TICKS: u64 = 40;

/// Owners of a block, each with its mark.
pub(super) type Owners = Vec<(Arc<dyn Owner>, u64)>;

/// Part of this node in the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stance {
    pub term: Term,
    /// The node that leads, as far as this one knows.
    pub leader: Option<NodeId>,
    /// Time from which this node may serve, if it leads and has applied everything from before.
    pub serves_from: Option<Time>,
}

/// Work that calls leave, in the order of the fields.
#[derive(Default)]
pub(super) struct Effects {
    /// Saves for the journal: number, rows, and the description of the rows.
    pub saves: Vec<(u64, Vec<Block>, SaveRow)>,
    pub parts: Vec<Part>,
    /// Members, if they have changed.
    pub members: Option<Members>,
}

/// Next step in settling committed entries.
pub(super) enum Settle {
    /// The leader's own entries up to an index are committed.
    Tell(Owners, Index),
    /// Entries of other leaderships up to an index are committed and on this node's disk.
    Apply(Vec<Block>, Index),
    /// The leadership is over: everything that is not committed goes, and these are told so.
    Depose(Owners),
}

/// Kind of the next step in settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Tell,
    Apply,
    Depose,
}

/// Entry of this leadership that is not settled.
struct Waiting {
    index: Index,
    owners: Owners,
    bytes: u64,
}

pub(super) struct Machine {
    shard: ShardId,
    replica: Replica,
    blocks: Blocks,
    /// Blocks whose entries the consensus has not taken yet.
    incoming: BTreeMap<Position, Block>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// Owners of a leadership that is over.
    failing: Owners,
    is_deposed: bool,
    /// Term in which this node leads.
    leads: Option<(Term, Time)>,
    settled: Index,
    committed: Index,
    applied: Index,
    lease: Time,
    stance: Stance,
    roster: Roster,
    /// Saves that were given to the journal and are not on disk yet: the number of each, and the index of its first
    /// entry, if it has any.
    saving: VecDeque<(u64, Option<Index>)>,
    /// Saves that the journal has to keep: the number of each, and the last index up to then of an entry that no later
    /// save on disk replaces. Save 0 is that of the entries that were read.
    unsettled: VecDeque<(u64, Index)>,
    /// Number of the last save that the journal need not keep.
    settled_save: Option<u64>,
    ticks: u64,
}

/// State with which a machine begins, from the disk.
pub(super) struct Begin {
    pub log: Log,
    /// Index up to which the store includes the log.
    pub settled: Index,
    /// Blocks of the entries after it.
    pub blocks: Vec<Option<Block>>,
    pub roster: Roster,
    /// Index of the last entry that is not committed, if there is any.
    pub unsettled: Option<Index>,
}

impl Machine {
    pub fn start(
        (shard, node): (ShardId, NodeId),
        begin: Begin,
        settings: Settings,
        seed: u64,
        now: Time,
    ) -> Result<Self, Refused> {
        let Begin { log, settled, blocks: held, roster, unsettled } = begin;
        let mut blocks = Blocks::from(settled + 1);
        held.into_iter().for_each(|block| blocks.push(block));
        let term = log.hard().term;
        let mut replica = Replica::start(node, log, settings, seed, now)?;
        // Brings the entries into effect that the store includes already, so that a checkpoint may begin after them.
        let output = replica.take(now);
        if output.applied != settled || !output.saves.is_empty() {
            return Err(Refused::Inconsistent("the log and the state of this node contradict each other"));
        }
        Ok(Self {
            shard,
            replica,
            blocks,
            incoming: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            failing: Vec::new(),
            is_deposed: false,
            leads: None,
            settled,
            committed: settled,
            applied: settled,
            lease: 0,
            stance: Stance { term, ..Stance::default() },
            roster,
            saving: VecDeque::new(),
            unsettled: unsettled.map(|last| (0, last)).into_iter().collect(),
            settled_save: None,
            ticks: 0,
        })
    }

    pub fn tick(&mut self, now: Time) {
        self.replica.tick(now);
        self.ticks += 1;
        if self.leads.is_some() && self.ticks.is_multiple_of(OFFER_AGAIN_TICKS) {
            // The offer may have been lost, or the node could not fetch the state. One that still does ignores another.
            let waiting = self.replica.peers().into_iter().filter(|peer| peer.is_installing);
            waiting.for_each(|peer| self.replica.installed(peer.node, false));
        }
    }

    /// Takes a message, unless it announces a state that this node has to fetch first: that is returned.
    pub fn receive(&mut self, part: Part, now: Time) -> Result<Option<(NodeId, Point)>, Refused> {
        let Part { message, blocks, .. } = part;
        if let Kind::Install(point) = &message.kind
            && point.position.index > self.settled
        {
            return Ok(Some((message.from, point.clone())));
        }
        self.pass(message, blocks, now).map(|()| None)
    }

    /// Takes the announcement of a state that this node has fetched.
    pub fn install(&mut self, message: Message, roster: Roster, now: Time) -> Result<(), Refused> {
        // While the state was fetched, the log may have come further than that.
        if matches!(&message.kind, Kind::Install(point) if point.position.index > self.settled) {
            self.roster = roster;
        }
        self.pass(message, Vec::new(), now)
    }

    /// Returns everybody who waits, for a node that takes no part any more.
    pub fn give_up(&mut self) -> Owners {
        self.waiting_bytes = 0;
        let waiting = self.waiting.drain(..).flat_map(|waiting| waiting.owners);
        self.failing.drain(..).chain(waiting).collect()
    }

    fn pass(&mut self, message: Message, blocks: Vec<Block>, now: Time) -> Result<(), Refused> {
        if let Kind::Append { entries, .. } = &message.kind {
            let with_block = entries.iter().filter(|entry| matches!(entry.body, Body::Block(_)));
            self.incoming.extend(with_block.map(|entry| entry.position).zip(blocks));
        }
        self.replica.receive(message, now)
    }

    /// Appends a block of this leader.
    pub fn propose(&mut self, block: Block, owners: Owners) -> Result<Position, (Refused, Block, Owners)> {
        match self.replica.append(block.size()) {
            Ok(position) => {
                let bytes = u64::from(block.size().get());
                self.incoming.insert(position, block);
                self.waiting.push_back(Waiting { index: position.index, owners, bytes });
                self.waiting_bytes += bytes;
                Ok(position)
            }
            Err(refused) => Err((refused, block, owners)),
        }
    }

    /// Fails the owners of rows that were never appended.
    pub fn refuse(&mut self, owners: Owners) {
        self.failing.extend(owners);
        self.is_deposed = true;
    }

    pub fn change(&mut self, change: Change) -> Result<Position, Refused> {
        self.replica.change(change)
    }

    pub fn transfer(&mut self, to: NodeId) -> Result<(), Refused> {
        self.replica.transfer(to)
    }

    /// Notes that a save, and all before it, is on disk.
    pub fn saved(&mut self, number: u64) {
        while let Some((saved, first)) = self.saving.pop_front_if(|(saving, _)| *saving <= number) {
            let Some(first) = first else { continue };
            // Entries that these replace are not needed any more: they will never be settled.
            let before = self.unsettled.partition_point(|(unsettled, _)| *unsettled < saved);
            let replaced = self.unsettled.range_mut(..before).rev().take_while(|(_, last)| *last >= first);
            replaced.for_each(|(_, last)| *last = first - 1);
        }
        self.replica.saved(number);
    }

    /// Notes that the connection to a node broke.
    pub fn disconnected(&mut self, node: NodeId) {
        if self.leads.is_some() {
            self.replica.unreachable(node);
            if self.replica.peers().iter().any(|peer| peer.node == node && peer.is_installing) {
                self.replica.installed(node, false);
            }
        } else if self.replica.leader() == Some(node) {
            self.replica.leader_lost();
        }
    }

    /// Takes the work that the calls since the last one have left.
    pub fn work(&mut self, now: Time) -> Effects {
        let output = self.replica.take(now);
        let mut effects = Effects::default();
        for save in output.saves {
            let consensus::Save { number, install, hard, entries, commit } = save;
            self.saving.push_back((number, entries.first().map(|first| first.position.index)));
            if let Some(point) = &install {
                self.settled = point.position.index;
                self.blocks = Blocks::from(self.settled + 1);
                self.unsettled.iter_mut().for_each(|(_, last)| *last = 0);
            }
            let before = self.unsettled.back().map_or(0, |(_, last)| *last);
            self.unsettled.push_back((number, entries.last().map_or(before, |last| last.position.index)));
            let (rows, entries) = self.take_blocks(entries);
            let with_roster = |point| (point, self.roster.clone());
            effects.saves.push((number, rows, SaveRow { install: install.map(with_roster), hard, commit, entries }));
        }
        self.incoming.clear();
        effects.parts = output.messages.into_iter().filter_map(|message| self.part(message)).collect();
        effects.members = output.members.map(|(_, members)| members);
        self.committed = self.committed.max(output.committed);
        self.applied = self.applied.max(output.applied);
        self.lease = output.lease.unwrap_or(0);
        self.note_leadership();
        self.trim();
        effects
    }

    /// Moves the blocks of saved entries into the table. Returns them with the description of the entries.
    fn take_blocks(&mut self, entries: Vec<Entry>) -> (Vec<Block>, Vec<SavedEntry>) {
        if let Some(first) = entries.first() {
            self.blocks.cut(first.position.index);
        }
        let mut rows = Vec::new();
        let mut saved = Vec::with_capacity(entries.len());
        for entry in entries {
            let block = self.incoming.remove(&entry.position);
            let count = block.as_ref().map_or(0, |block| block.rows().len() as u16);
            rows.extend(block.clone());
            self.blocks.push(block);
            saved.push(SavedEntry { entry, rows: count });
        }
        (rows, saved)
    }

    /// Returns a message with the blocks of its entries. One whose blocks are gone is not sent: the node gets the state
    /// instead.
    fn part(&self, message: Message) -> Option<Part> {
        let blocks = match &message.kind {
            Kind::Append { entries, .. } => {
                let with_block = entries.iter().filter(|entry| matches!(entry.body, Body::Block(_)));
                with_block.map(|entry| self.blocks.get(entry.position.index).cloned()).collect::<Option<Vec<_>>>()
            }
            _ => Some(Vec::new()),
        };
        if blocks.is_none() {
            tracing::error!(node = message.to, "the blocks of a message are gone");
        }
        Some(Part { shard: self.shard, message, blocks: blocks? })
    }

    fn note_leadership(&mut self) {
        let status = self.replica.status();
        let leads = match self.replica.role() {
            (term, Role::Leader { serves_from }) => Some((term, serves_from)),
            _ => None,
        };
        if self.leads.is_some() && leads != self.leads {
            let committed = self.committed;
            let first = self.waiting.partition_point(|waiting| waiting.index <= committed);
            for Waiting { owners, bytes, .. } in self.waiting.drain(first..) {
                self.waiting_bytes -= bytes;
                self.failing.extend(owners);
            }
            self.is_deposed = true;
        }
        self.leads = leads;
        self.stance = Stance { term: status.term, leader: status.leader, serves_from: None };
        let own = |(term, from): (Term, Time)| {
            let has_applied = self.replica.log().term_of(self.settled) == Some(term);
            (has_applied && !self.is_deposed).then_some(from)
        };
        self.stance.serves_from = leads.and_then(own);
    }

    /// Returns the kind of the next step in settling, if there is one.
    pub fn pending(&self) -> Option<Pending> {
        let from = self.settled + 1;
        let front = self.waiting.front().map(|waiting| waiting.index);
        if front.is_some_and(|first| first <= self.committed && self.are_empty(from, first)) {
            return Some(Pending::Tell);
        }
        // Not while owners of committed entries before it wait.
        if self.is_deposed && front.is_none() {
            return Some(Pending::Depose);
        }
        (self.applicable() >= from).then_some(Pending::Apply)
    }

    /// Returns the last index up to which entries of other leaderships may be applied.
    fn applicable(&self) -> Index {
        self.waiting.front().map_or(self.applied, |waiting| self.applied.min(waiting.index - 1))
    }

    /// Returns `true` if no entry from an index on, and before another, has rows.
    fn are_empty(&self, from: Index, end: Index) -> bool {
        (from..end).all(|index| self.blocks.get(index).is_none())
    }

    /// Returns the next step in settling, if there is one.
    pub fn next(&mut self) -> Option<Settle> {
        let from = self.settled + 1;
        match self.pending()? {
            Pending::Tell => {
                let mut owners = Vec::new();
                let mut last = self.settled;
                while let Some(index) = self.waiting.front().map(|waiting| waiting.index)
                    && index <= self.committed
                    && self.are_empty(last + 1, index)
                    && let Some(waiting) = self.waiting.pop_front()
                {
                    last = index;
                    self.waiting_bytes -= waiting.bytes;
                    owners.extend(waiting.owners);
                }
                Some(Settle::Tell(owners, last))
            }
            Pending::Depose => Some(Settle::Depose(std::mem::take(&mut self.failing))),
            Pending::Apply => {
                let until = self.applicable().min(from + APPLIED_MAX as u64 - 1);
                let blocks = (from..=until).filter_map(|index| self.blocks.get(index).cloned()).collect();
                Some(Settle::Apply(blocks, until))
            }
        }
    }

    /// Notes that the entries up to an index are settled.
    pub fn settled(&mut self, until: Index) {
        for index in self.settled + 1..=until {
            let rows = self.blocks.get(index).map(Block::rows).unwrap_or_default();
            for row in rows.iter().filter(|row| row.kind == EntryKind::Cluster) {
                match RosterChange::decode(row.body.clone()) {
                    Ok(change) => self.roster.apply(&change),
                    Err(error) => tracing::error!(%error, "cannot read a change of the cluster's nodes"),
                }
            }
        }
        self.settled = self.settled.max(until);
        self.note_leadership();
        self.trim();
    }

    /// Notes that nothing of the leadership before is left.
    pub fn deposed(&mut self) {
        self.is_deposed = !self.failing.is_empty();
        self.note_leadership();
    }

    fn trim(&mut self) {
        let before = self.blocks.trim(self.settled.min(self.applied));
        if before > self.replica.log().base().position.index {
            self.replica.compact(before);
        }
    }

    /// Returns the state for a checkpoint of a store that includes everything that is settled, and the number of the
    /// last save that the journal need not keep then.
    pub fn keep(&mut self) -> (Base, Option<u64>) {
        let until = self.settled.min(self.applied);
        let log = self.replica.log();
        let point = log.point(until).unwrap_or_else(|| log.base());
        let until = point.position.index;
        while let Some((number, _)) = self.unsettled.pop_front_if(|(_, last)| *last <= until) {
            self.settled_save = Some(number);
        }
        // No entry that is not on the disk yet: there may be another one in its place.
        let commit = log.commit().min(self.applied);
        let base = Base { point, hard: log.hard(), commit, roster: self.roster.clone() };
        (base, self.settled_save)
    }

    pub fn stance(&self) -> Stance {
        self.stance
    }

    pub fn leads(&self) -> Option<Term> {
        self.leads.map(|(term, _)| term)
    }

    /// Returns the time until which this node may serve by itself.
    pub fn lease(&self) -> Time {
        self.lease
    }

    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub fn held_bytes(&self) -> u64 {
        self.blocks.bytes()
    }

    /// Returns the number of entries of the log in memory, and of saves that are not on disk yet.
    pub fn counts(&self) -> (u64, u64) {
        let log = self.replica.log();
        (log.last().index.saturating_sub(log.base().position.index), self.saving.len() as u64)
    }

    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    pub fn status(&self) -> Status {
        self.replica.status()
    }

    pub fn peers(&self) -> Vec<Peer> {
        self.replica.peers()
    }

    /// Returns the index up to which the store includes the log, and the point there.
    pub fn point(&self) -> Option<Point> {
        self.replica.log().point(self.settled.min(self.applied))
    }

    pub fn stopped(&self) -> Option<&str> {
        self.replica.stopped()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::link::Row;

    fn follower() -> Machine {
        let log = Log::of_founder(Members::of_voters(1..=3));
        let settled = log.base().position.index;
        let begin = Begin { log, settled, blocks: Vec::new(), roster: Roster::default(), unsettled: None };
        Machine::start((ShardId::FIRST, 2), begin, Settings::default(), 7, 0).expect("it starts")
    }

    /// Returns an append of a leader: entries of its term after `prev`, up to an index.
    fn append(term: Term, from: NodeId, prev: Position, last: Index, commit: Index) -> Part {
        let block = Block::new(vec![Row::new(EntryKind::Batch, 0, Bytes::from_static(b"record"))]).expect("a row");
        let positions = (prev.index + 1..=last).map(|index| Position { term, index });
        let entries: Vec<_> = positions.map(|position| Entry { position, body: Body::Block(block.size()) }).collect();
        let blocks = vec![block; entries.len()];
        let message = Message { from, to: 2, term, kind: Kind::Append { prev, commit, entries } };
        Part { shard: ShardId::FIRST, message, blocks }
    }

    #[test]
    fn entries_that_were_replaced_are_not_kept_in_the_journal() {
        let mut machine = follower();
        let base = machine.point().expect("a point").position;
        let take = |machine: &mut Machine, part: Part| {
            machine.receive(part, 1).expect("it fits");
            let saves = machine.work(1).saves;
            saves.last().map(|(number, ..)| *number)
        };
        // Ten entries of a leader that loses its leadership, of which one is committed.
        let first = take(&mut machine, append(1, 1, base, base.index + 10, base.index + 1)).expect("a save");
        machine.saved(first);
        machine.settled(base.index + 1);
        assert_eq!(machine.keep().1, None, "nine entries are not committed");
        // Another leader replaces all but the first two.
        let prev = Position { term: 1, index: base.index + 2 };
        let second = take(&mut machine, append(2, 3, prev, base.index + 4, base.index + 2)).expect("a save");
        machine.work(1);
        machine.settled(base.index + 2);
        assert_eq!(machine.keep().1, None, "what replaces them is not on the disk yet");
        machine.saved(second);
        machine.work(1);
        assert_eq!(machine.keep().1, Some(first));
        let committed = append(2, 3, Position { term: 2, index: base.index + 4 }, base.index + 4, base.index + 4);
        assert_eq!(take(&mut machine, committed), None);
        machine.settled(base.index + 4);
        assert_eq!(machine.keep().1, Some(second));
    }

    #[test]
    fn a_checkpoint_has_no_commit_of_entries_that_are_not_on_the_disk() {
        let mut machine = follower();
        let base = machine.point().expect("a point").position;
        machine.receive(append(1, 1, base, base.index + 4, base.index), 1).expect("it fits");
        let saves = machine.work(1).saves;
        machine.saved(saves[0].0);
        machine.work(1);
        // Another leader has committed other entries at these places.
        machine.receive(append(2, 3, base, base.index + 2, base.index + 2), 1).expect("it fits");
        let saves = machine.work(1).saves;
        assert_eq!(machine.status().committed, base.index + 2);
        assert_eq!(machine.keep().0.commit, base.index, "after a power cut, the disk may have those of before");
        machine.saved(saves[0].0);
        machine.work(1);
        assert_eq!(machine.keep().0.commit, base.index + 2);
    }
}
