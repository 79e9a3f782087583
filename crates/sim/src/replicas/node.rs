//! A node: a replica, its disk and its clock.

use std::collections::{BTreeMap, VecDeque};

use consensus::{Index, Members, Position, ReadTicket, Replica, Term, Time};

use super::disk::{Content, Digest, Disk};
use crate::clock::Clock;

pub struct Node {
    pub clock: Clock,
    pub disk: Disk,
    /// Counts starts: what an earlier process began does not concern a later one.
    pub start: u32,
    pub process: Option<Process>,
    /// Time until which the process does not run.
    pub paused_until: Time,
    /// Time until which the disk is slow.
    pub slow_until: Time,
    /// Time until which the process gets no ticks, though it takes messages.
    pub starved_until: Time,
    /// `true` if the next sync fails.
    pub fails_sync: bool,
}

/// State of a node in memory.
pub struct Process {
    pub replica: Replica,
    /// Members before the work that is being done.
    pub members: Members,
    pub lease: Option<Time>,
    /// Term that it leads, and the time from which it serves.
    pub leads: Option<(Term, Time)>,
    pub committed: Index,
    pub applied: Index,
    pub digests: BTreeMap<Index, Digest>,
    pub contents: BTreeMap<Position, Content>,
    /// Positions that clients wait for.
    pub waiting: VecDeque<Position>,
    /// Reads that wait, each with what was acknowledged when it began.
    pub reads: Vec<(ReadTicket, Index)>,
}

impl Process {
    pub fn digest(&self) -> Digest {
        self.digests.get(&self.applied).copied().unwrap_or_default()
    }
}
