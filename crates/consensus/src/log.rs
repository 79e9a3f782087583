//! The log of a shard as the engine sees it: terms, sizes and changes of members. The records are elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use raft::eraftpb::{ConfState, Entry as RaftEntry, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::message;
use crate::values::{Body, Change, Entry, Hard, Index, Members, Point, Position, Term};

/// Log of a shard: the entries after a point that the state includes. An entry takes 4 bytes.
#[derive(Clone, Debug)]
pub struct Log {
    base: Position,
    hard: Hard,
    /// Index up to which entries are known to be committed.
    commit: Index,
    /// Terms, each with the index of its first entry.
    terms: Vec<(Term, Index)>,
    /// Bytes of each entry after the base; 0 for an entry that is no block.
    sizes: VecDeque<u32>,
    changes: BTreeMap<Index, Change>,
    /// Members from an index on, in order. The first ones are those at the base.
    members: Vec<(Index, Members)>,
    /// Index up to which changes of members are in effect.
    applied: Index,
}

impl Log {
    /// Creates the log of a node that knows nothing: a leader sends it the state first.
    pub fn of_joiner() -> Self {
        Self::from_point(Point::default())
    }

    /// Creates the first log of a shard, equal on all nodes that found it.
    pub fn of_founder(members: Members) -> Self {
        let mut log = Self::from_point(Point { position: Position { term: 1, index: 1 }, members });
        log.set_hard(Hard { term: 1, vote: None });
        log
    }

    /// Creates a log without entries whose state includes everything up to a point.
    pub fn from_point(point: Point) -> Self {
        let Point { position, members } = point;
        Self {
            base: position,
            hard: Hard { term: position.term, vote: None },
            commit: position.index,
            terms: Vec::new(),
            sizes: VecDeque::new(),
            changes: BTreeMap::new(),
            members: vec![(position.index, members)],
            applied: position.index,
        }
    }

    pub fn set_hard(&mut self, hard: Hard) {
        self.hard = hard;
    }

    /// Notes that entries are committed up to an index. One that is not in the log is limited by the last.
    pub fn set_commit(&mut self, commit: Index) {
        self.commit = self.commit.max(commit.min(self.last().index));
    }

    /// Appends an entry. It replaces the one at its index and all after it, also if its own index is not after the
    /// base. Returns `false` if the log does not hold it then: because its index is not after the base or not the next
    /// one, or because its term is before that of the entry it follows.
    pub fn push(&mut self, entry: Entry) -> bool {
        let Position { term, index } = entry.position;
        if index <= self.base.index {
            self.cut(self.base.index + 1);
            return false;
        }
        if index > self.last().index + 1 {
            return false;
        }
        if self.term_of(index - 1).is_none_or(|before| before > term) {
            return false;
        }
        self.cut(index);
        if self.last().term != term || self.terms.is_empty() {
            self.terms.push((term, index));
        }
        self.sizes.push_back(match entry.body {
            Body::Block(bytes) => bytes.get(),
            Body::Empty | Body::Members(_) => 0,
        });
        if let Body::Members(change) = entry.body {
            self.changes.insert(index, change);
        }
        true
    }

    /// Removes all entries from an index on.
    fn cut(&mut self, from: Index) {
        self.sizes.truncate((from - self.base.index - 1) as usize);
        let kept = self.terms.partition_point(|(_, first)| *first < from);
        self.terms.truncate(kept);
        self.changes.split_off(&from);
    }

    /// Returns the point up to which the state includes the log.
    pub fn base(&self) -> Point {
        Point { position: self.base, members: self.members_at(self.base.index) }
    }

    /// Returns the point at an index, with the members that are in effect there. `None` if the log does not have the
    /// term of that index, or the entries up to it are not in effect.
    pub fn point(&self, index: Index) -> Option<Point> {
        let term = self.term_of(index).filter(|_| index <= self.applied)?;
        Some(Point { position: Position { term, index }, members: self.members_at(index) })
    }

    pub fn hard(&self) -> Hard {
        self.hard
    }

    pub fn commit(&self) -> Index {
        self.commit
    }

    pub fn last(&self) -> Position {
        match self.terms.last() {
            Some((term, _)) => Position { term: *term, index: self.base.index + self.sizes.len() as u64 },
            None => self.base,
        }
    }

    pub fn term_of(&self, index: Index) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        if index < self.base.index || index > self.last().index {
            return None;
        }
        let next = self.terms.partition_point(|(_, first)| *first <= index);
        self.terms.get(next.checked_sub(1)?).map(|(term, _)| *term)
    }

    pub fn entry(&self, index: Index) -> Option<Entry> {
        let at = index.checked_sub(self.base.index + 1)?;
        let bytes = *self.sizes.get(usize::try_from(at).ok()?)?;
        let body = match (NonZeroU32::new(bytes), self.changes.get(&index)) {
            (Some(bytes), _) => Body::Block(bytes),
            (None, Some(change)) => Body::Members(change.clone()),
            (None, None) => Body::Empty,
        };
        Some(Entry { position: Position { term: self.term_of(index)?, index }, body })
    }

    /// Returns the members that are in effect after the entry at an index, which is not before the base.
    fn members_at(&self, index: Index) -> Members {
        let known = self.members.partition_point(|(from, _)| *from <= index);
        self.members.get(known.saturating_sub(1)).map(|(_, members)| members.clone()).unwrap_or_default()
    }

    /// Returns the members in effect.
    pub(crate) fn members(&self) -> &Members {
        // The list has at least the members at the base.
        &self.members[self.members.len() - 1].1
    }

    /// Notes that the entries up to an index are in effect.
    pub(crate) fn apply(&mut self, index: Index) {
        self.applied = self.applied.max(index);
        self.set_commit(index);
    }

    pub(crate) fn change_members(&mut self, index: Index, members: Members) {
        self.members.push((index, members));
    }

    /// Replaces the log by a point.
    pub(crate) fn install(&mut self, point: Point) {
        *self = Self { hard: self.hard, ..Self::from_point(point) };
    }

    /// Moves the base to an index that is in effect. Returns `false` if there is nothing to do.
    pub(crate) fn compact(&mut self, to: Index) -> bool {
        let to = to.min(self.applied);
        let Some(term) = self.term_of(to).filter(|_| to > self.base.index) else {
            return false;
        };
        let members = self.members_at(to);
        let last = self.last();
        self.members.retain(|(from, _)| *from > to);
        self.members.insert(0, (to, members));
        self.sizes.drain(..(to - self.base.index) as usize);
        self.changes = self.changes.split_off(&(to + 1));
        let first_kept = self.terms.partition_point(|(_, first)| *first <= to + 1).saturating_sub(1);
        self.terms.drain(..first_kept);
        if last.index == to {
            self.terms.clear();
        }
        self.base = Position { term, index: to };
        true
    }
}

/// The engine reads the log by this trait. All that it asks for is in memory.
impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let vote = self.hard.vote.unwrap_or(raft::INVALID_ID);
        let hard = HardState { term: self.hard.term, vote, commit: self.commit };
        let members = self.members_at(self.base.index);
        Ok(RaftState::new(hard, message::conf_state(&members)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        if low <= self.base.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let mut entries = Vec::new();
        let mut bytes = 0;
        for index in low..high {
            let entry = self.entry(index).ok_or(raft::Error::Store(StorageError::Unavailable))?;
            let entry = message::to_engine(entry);
            bytes += message::size(&entry);
            if bytes > max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.term_of(index).ok_or(raft::Error::Store(if index < self.base.index {
            StorageError::Compacted
        } else {
            StorageError::Unavailable
        }))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last().index)
    }

    fn snapshot(&self, request_index: u64, _: u64) -> raft::Result<Snapshot> {
        if self.applied < request_index {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let conf_state: ConfState = message::conf_state(self.members());
        let term = Storage::term(self, self.applied)?;
        Ok(Snapshot { metadata: SnapshotMetadata { conf_state, index: self.applied, term }, ..Snapshot::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Step;

    fn block(term: Term, index: Index, bytes: u32) -> Entry {
        let body = NonZeroU32::new(bytes).map_or(Body::Empty, Body::Block);
        Entry { position: Position { term, index }, body }
    }

    fn add_voter(term: Term, index: Index, node: u64) -> Entry {
        let change = Change { steps: vec![Step::AddVoter(node)] };
        Entry { position: Position { term, index }, body: Body::Members(change) }
    }

    /// Log of founders with entries 2 to 6: terms 2, 2, 3, 3, 5.
    fn log() -> Log {
        let mut log = Log::of_founder(Members::of_voters([1, 2, 3]));
        for entry in [block(2, 2, 0), block(2, 3, 10), block(3, 4, 0), add_voter(3, 5, 4), block(5, 6, 20)] {
            assert!(log.push(entry));
        }
        log
    }

    #[test]
    fn entries_are_found_as_they_were_pushed() {
        let log = log();
        assert_eq!(log.last(), Position { term: 5, index: 6 });
        assert_eq!(
            (0..8).map(|index| log.term_of(index)).collect::<Vec<_>>(),
            [None, Some(1), Some(2), Some(2), Some(3), Some(3), Some(5), None]
        );
        assert_eq!(log.entry(3), Some(block(2, 3, 10)));
        assert_eq!(log.entry(5), Some(add_voter(3, 5, 4)));
        assert_eq!((log.entry(1), log.entry(7)), (None, None));
    }

    #[test]
    fn an_entry_replaces_those_from_its_index_on() {
        let mut log = log();
        assert!(log.push(block(6, 5, 30)));
        assert_eq!(log.last(), Position { term: 6, index: 5 });
        assert_eq!(log.entry(5), Some(block(6, 5, 30)));
        assert!(!log.push(block(6, 7, 1)), "a gap");
        assert!(!log.push(block(5, 6, 1)), "an older term");
        assert!(log.push(block(6, 2, 1)));
        assert_eq!((log.last(), log.term_of(3)), (Position { term: 6, index: 2 }, None));
        assert!(!log.push(block(1, 1, 1)), "included in the base");
        assert_eq!(log.last(), Position { term: 1, index: 1 });
    }

    #[test]
    fn a_compacted_log_keeps_what_follows() {
        for to in 2..=6 {
            let mut log = log();
            log.apply(5);
            log.change_members(5, Members::of_voters([1, 2, 3, 4]));
            log.apply(6);
            let before: Vec<_> = (to + 1..=6).map(|index| log.entry(index)).collect();
            let base = Position { term: log.term_of(to).expect("an entry"), index: to };
            assert!(log.compact(to));
            assert!(!log.compact(to));
            assert_eq!((to + 1..=6).map(|index| log.entry(index)).collect::<Vec<_>>(), before, "{to}");
            let members = Members::of_voters(if to < 5 { vec![1, 2, 3] } else { vec![1, 2, 3, 4] });
            assert_eq!(log.base(), Point { position: base, members });
            assert_eq!((log.last(), log.term_of(to)), (Position { term: 5, index: 6 }, Some(base.term)));
            assert!(log.push(block(7, 7, 1)));
            assert_eq!(log.entry(7), Some(block(7, 7, 1)));
        }
    }

    #[test]
    fn what_is_not_in_effect_is_not_compacted() {
        let mut log = log();
        assert!(!log.compact(6));
        log.apply(3);
        assert!(log.compact(6));
        assert_eq!(log.base().position, Position { term: 2, index: 3 });
    }
}
