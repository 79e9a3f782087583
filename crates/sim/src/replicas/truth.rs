//! What must hold over all nodes and all time.

use std::collections::BTreeMap;

use consensus::{Body, Entry, Index, Members, NodeId, Position, Term};

use super::disk::{Content, Digest};
use crate::violation::{Outcome, Violation, check};

/// History of a shard.
#[derive(Default)]
pub struct Truth {
    leaders: BTreeMap<Term, NodeId>,
    /// Votes that left a node, by node and term.
    votes: BTreeMap<(NodeId, Term), NodeId>,
    /// Committed entries from index `first` on, and the term in which each was first seen to be committed.
    first: Index,
    committed: Vec<Committed>,
    /// Digest of the state after each index.
    digests: BTreeMap<Index, Digest>,
    members: BTreeMap<Index, Members>,
    acknowledged: Index,
    /// Reads that were answered.
    pub reads: u64,
    pub elections: u64,
    pub changes: u64,
    pub installs: u64,
}

struct Committed {
    entry: Entry,
    content: Content,
    seen: Term,
}

impl Truth {
    /// Begins a history after the point with which the shard was founded.
    pub fn new(founded: Index) -> Self {
        Self { first: founded + 1, acknowledged: founded, ..Self::default() }
    }

    pub fn committed(&self) -> Index {
        self.first + self.committed.len() as u64 - 1
    }

    /// Index up to which clients were told that their writes are committed.
    pub fn acknowledged(&self) -> Index {
        self.acknowledged
    }

    pub fn acknowledge(&mut self, index: Index) -> Outcome {
        check(index <= self.committed(), || format!("entry {index} is acknowledged and not committed"))?;
        self.acknowledged = self.acknowledged.max(index);
        Ok(())
    }

    /// A term has one leader, whose log has everything that was committed in earlier terms.
    pub fn elect(&mut self, node: NodeId, term: Term, has: impl Fn(Position) -> bool) -> Outcome {
        let leader = *self.leaders.entry(term).or_insert(node);
        check(leader == node, || format!("nodes {leader} and {node} lead in term {term}"))?;
        self.elections += 1;
        let lost = self.committed.iter().find(|known| known.seen < term && !has(known.entry.position));
        check(lost.is_none(), || format!("leader {node} of term {term} lacks {:?}", lost.map(|known| &known.entry)))
    }

    /// A node votes for one node in a term.
    pub fn vote(&mut self, node: NodeId, term: Term, vote: NodeId) -> Outcome {
        let first = *self.votes.entry((node, term)).or_insert(vote);
        check(first == vote, || format!("node {node} votes for {first} and {vote} in term {term}"))
    }

    /// An index has one committed entry. Returns whether it is new.
    pub fn commit(&mut self, node: NodeId, term: Term, entry: &Entry, content: Content) -> Result<bool, Violation> {
        let index = entry.position.index;
        let Some(at) = index.checked_sub(self.first) else {
            return Ok(false);
        };
        if let Some(known) = self.committed.get(at as usize) {
            let is_same = known.entry == *entry && (known.content == content || !is_block(entry));
            check(is_same, || {
                format!(
                    "node {node} has {entry:?} with {content:x}, and {:?} with {:x} is committed",
                    known.entry, known.content
                )
            })?;
            return Ok(false);
        }
        check(at as usize == self.committed.len(), || format!("node {node} commits {index} before what precedes it"))?;
        self.committed.push(Committed { entry: entry.clone(), content, seen: term });
        Ok(true)
    }

    /// Nodes with one index have one state.
    pub fn apply(&mut self, node: NodeId, index: Index, digest: Digest) -> Outcome {
        check(index <= self.committed(), || format!("node {node} applies {index}, which is not committed"))?;
        let known = *self.digests.entry(index).or_insert(digest);
        check(known == digest, || format!("node {node} has another state at {index}"))
    }

    /// Nodes with one index have one set of members.
    pub fn change(&mut self, node: NodeId, index: Index, members: &Members) -> Outcome {
        let known = self.members.entry(index).or_insert_with(|| {
            self.changes += 1;
            members.clone()
        });
        check(known == members, || format!("node {node} has other members at {index}: {members:?}, not {known:?}"))
    }

    /// A read sees everything that was acknowledged before it began.
    pub fn read(&mut self, node: NodeId, sees: Index, began: Index) -> Outcome {
        self.reads += 1;
        check(sees >= began, || format!("node {node} reads up to {sees}, and {began} was acknowledged before"))
    }
}

fn is_block(entry: &Entry) -> bool {
    matches!(entry.body, Body::Block(_))
}
