//! Faults, and how they end.

use consensus::{Members, NodeId, Status, Time};

use super::bugs::Bug;
use super::node::Node;
use super::{Event, MS, NODES, Rates, World, place};
use crate::cuts::Cuts;
use crate::violation::{Outcome, Violation, check};

/// Time after the last fault within which everything has to be in order.
const HEALING: Time = 30_000 * MS;
/// Events of healing after which it has failed.
const HEALING_EVENTS: usize = 400_000;

impl World {
    pub(super) fn fault(&mut self) -> Outcome {
        let pause = 10 * MS + self.random.below(40 * MS);
        self.schedule(pause, Event::Fault);
        let at = self.random.below(NODES as u64) as usize;
        if self.random.one_in(self.rates.crash) {
            let is_power_cut = self.random.one_in(6);
            for node in 0..NODES {
                if node == at || is_power_cut {
                    self.crash(node);
                }
            }
        }
        if self.random.one_in(self.rates.cut) {
            self.cut(at);
        }
        if self.random.one_in(self.rates.pause) {
            self.nodes[at].paused_until = self.now + self.random.below(1500 * MS);
        }
        if self.random.one_in(self.rates.slow) {
            self.nodes[at].slow_until = self.now + self.random.below(2000 * MS);
        }
        if self.random.one_in(self.rates.fail_sync) {
            self.nodes[at].fails_sync = true;
        }
        if self.random.one_in(self.rates.starve) {
            self.nodes[at].starved_until = self.now + self.random.below(1500 * MS);
        }
        if self.random.one_in(self.rates.breaks) {
            self.break_links();
        }
        if self.random.one_in(self.rates.compact) {
            self.compact(at);
        }
        Ok(())
    }

    /// Lets some nodes learn that their connection to the leader broke, also if the leader is well.
    pub(super) fn break_links(&mut self) {
        for node in 0..NODES {
            if self.random.one_in(2) {
                let after = self.random.below(20 * MS);
                self.schedule(after, Event::Broken(node));
            }
        }
    }

    pub(super) fn crash(&mut self, at: usize) {
        if self.nodes[at].process.take().is_none() {
            return;
        }
        self.run.crashes += 1;
        self.break_links();
        let random = &mut self.random;
        self.nodes[at].disk.crash(|blocks| random.below(blocks));
        self.nodes[at].paused_until = 0;
        let down = MS + self.random.below(800 * MS);
        self.schedule(down, Event::Start(at));
    }

    /// Cuts links for a while: of one node, in one direction or both, or between two groups of nodes.
    pub(super) fn cut(&mut self, at: usize) {
        let until = self.now + self.random.below(2500 * MS);
        if self.random.one_in(2) {
            self.break_links();
        }
        self.cuts.cut(at, until, &mut self.random);
    }

    /// Makes a checkpoint of what a node has applied.
    pub(super) fn compact(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else {
            return;
        };
        let base = process.replica.log().base().position.index;
        let to = base + self.random.below(process.applied - base + 1);
        if to == base {
            return;
        }
        let point = process.replica.compact(to);
        let index = point.position.index;
        let state = if self.bug == Some(Bug::ChecksPointBeforeState) { index - 1 } else { index };
        let digest = process.digests.get(&state).copied().unwrap_or_default();
        node.disk.checkpoint(point, digest);
    }

    /// Ends all faults. After a while there must be one leader, equal members must have equal states, and a write must
    /// be acknowledged.
    pub(super) fn heal(&mut self) -> Outcome {
        self.rates = Rates::none();
        self.cuts = Cuts::none();
        for at in 0..NODES {
            self.nodes[at].paused_until = 0;
            self.nodes[at].slow_until = 0;
            self.nodes[at].starved_until = 0;
            self.nodes[at].fails_sync = false;
            self.schedule(0, Event::Start(at));
        }
        let end = self.now + HEALING;
        let before = self.truth.acknowledged();
        let mut events = 0;
        while self.now < end {
            self.turn()?;
            events += 1;
            check(events < HEALING_EVENTS, || "the nodes do not come to rest".to_owned())?;
            if events % 64 == 0 && self.truth.acknowledged() > before + 3 && self.is_in_order() {
                return Ok(());
            }
        }
        Err(Violation(format!(
            "the nodes do not agree after {} s without faults: {}",
            HEALING / (1000 * MS),
            self.states()
        )))
    }

    /// Returns `true` if one node leads, and all members have applied what was acknowledged.
    pub(super) fn is_in_order(&self) -> bool {
        let processes = || self.nodes.iter().filter_map(|node| node.process.as_ref());
        let latest = processes().filter(|process| process.leads.is_some()).max_by_key(|process| process.leads);
        let Some(leader) = latest else {
            return false;
        };
        let members = leader.replica.members();
        let acknowledged = self.truth.acknowledged();
        let has_all = |node: NodeId| {
            let process = self.nodes[place(node)].process.as_ref();
            process.is_some_and(|process| process.applied >= acknowledged && process.replica.members() == members)
        };
        members.outgoing.is_empty() && members.voters.iter().chain(&members.learners).all(|node| has_all(*node))
    }

    /// Returns the state of each node in words.
    pub(super) fn states(&self) -> String {
        let state = |(at, node): (usize, &Node)| match &node.process {
            Some(process) => {
                let Status { term, leader, last, applied, members, .. } = process.replica.status();
                let leader = leader.unwrap_or(0);
                let Members { voters, learners, outgoing, .. } = members;
                format!(
                    "node {}: term {term}, leader {leader}, {applied} of {} applied, voters {voters:?}, learners \
                     {learners:?}, leaving {outgoing:?}",
                    at + 1,
                    last.index
                )
            }
            None => format!("node {}: ended", at + 1),
        };
        self.nodes.iter().enumerate().map(state).collect::<Vec<_>>().join("; ")
    }
}
