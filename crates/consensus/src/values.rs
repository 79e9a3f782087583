//! Values that nodes agree about.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// Number of a node in its cluster; never 0, and never given again.
pub type NodeId = u64;

/// Number of a leadership. There is at most one leader in a term.
pub type Term = u64;

/// Number of an entry in the log of a shard, counted from 1.
pub type Index = u64;

/// Time of a node's monotonic clock, in ns from any origin.
pub type Time = u64;

/// Number of a read that waits for the node's leadership to be confirmed.
pub type ReadTicket = u64;

/// Entry of a log, by the leadership that created it. Two logs with an entry at one position are equal up to it.
/// Of two logs, the one with the greater last position may lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    pub term: Term,
    pub index: Index,
}

/// Entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub position: Position,
    pub body: Body,
}

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Nothing: the first entry of a leadership, or the place of a change that was not possible.
    Empty,
    /// Records that one block of the journal holds of the shard, by their bytes.
    Block(NonZeroU32),
    Members(Change),
}

/// Change of members. Several steps take effect together, by a joint configuration; a change without steps leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Change {
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Adds a voter, or makes a learner one.
    AddVoter(NodeId),
    /// Adds a node that receives the log and has no vote, or takes the vote of a voter.
    AddLearner(NodeId),
    Remove(NodeId),
}

/// Members of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    pub voters: BTreeSet<NodeId>,
    pub learners: BTreeSet<NodeId>,
    /// Voters of the configuration that a joint one leaves. Until then a majority of them is necessary as well.
    pub outgoing: BTreeSet<NodeId>,
    /// Outgoing voters that become learners.
    pub learners_next: BTreeSet<NodeId>,
    /// `true` if the leader leaves the joint configuration by itself.
    pub leaves_joint: bool,
}

impl Members {
    pub fn of_voters(voters: impl IntoIterator<Item = NodeId>) -> Self {
        Self { voters: voters.into_iter().collect(), ..Self::default() }
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.is_voter(node) || self.learners.contains(&node)
    }

    pub fn is_voter(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.outgoing.contains(&node)
    }

    /// Returns `true` if the nodes for which `agrees` returns `true` decide: a majority of the voters, and of those
    /// of the configuration that a joint one leaves.
    pub fn is_decided(&self, agrees: impl Fn(NodeId) -> bool) -> bool {
        let has_majority = |voters: &BTreeSet<NodeId>| {
            voters.is_empty() || voters.iter().filter(|node| agrees(**node)).count() > voters.len() / 2
        };
        !self.voters.is_empty() && has_majority(&self.voters) && has_majority(&self.outgoing)
    }
}

/// Position up to which the state of a shard includes the log, and the members there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    pub position: Position,
    pub members: Members,
}

/// State of a node, beside its log, that has to survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hard {
    pub term: Term,
    /// Node for which it voted in this term.
    pub vote: Option<NodeId>,
}
