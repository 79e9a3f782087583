//! Faults, and how they end.

use consensus::Time;

use super::ledger::contents;
use super::{Event, MS, NODES, Rates, World, number};
use crate::cuts::Cuts;
use crate::violation::{Outcome, Violation, check};

/// Time after the last fault within which everything has to be in order.
const HEALING: Time = 60_000 * MS;
/// Events of healing after which it has failed.
const HEALING_EVENTS: usize = 400_000;

impl World {
    pub(super) fn fault(&mut self) -> Outcome {
        let pause = 20 * MS + self.random.below(60 * MS);
        self.schedule(pause, Event::Fault);
        let at = self.random.below(NODES as u64) as usize;
        if self.random.one_in(self.rates.kill) {
            self.kill(at);
        }
        if self.random.one_in(self.rates.power) {
            let is_everywhere = self.random.one_in(6);
            for node in 0..NODES {
                if node == at || is_everywhere {
                    let operations = self.random.below(40);
                    self.nodes[node].disk.power_off_after(operations);
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
        if self.random.one_in(self.rates.transfer) {
            self.transfer(at)?;
        }
        self.collect(at)
    }

    fn transfer(&mut self, to: usize) -> Outcome {
        let leads = |at: &usize| self.nodes[*at].process.as_ref().is_some_and(|process| process.leading.is_some());
        let leader = (0..NODES).find(leads);
        if let Some(at) = leader
            && self.pause(at).is_none()
            && let Some(process) = self.process(at)
        {
            // It may be refused.
            process.shard.transfer(number(to)).unwrap_or_default();
            return self.collect(at);
        }
        Ok(())
    }

    /// Ends a process; its disk keeps everything.
    fn kill(&mut self, at: usize) {
        let disk = self.nodes[at].disk.kill();
        self.restart(at, disk);
    }

    /// Ends a process by a power cut.
    pub(super) fn lose_power(&mut self, at: usize) {
        let disk = self.nodes[at].disk.cut(self.random.number());
        self.restart(at, disk);
    }

    fn restart(&mut self, at: usize, disk: crate::SimDisk) {
        self.drop_calls(at);
        let node = &mut self.nodes[at];
        // What the old process still does, it does to a disk that nobody has.
        node.disk = disk;
        node.process = None;
        node.paused_until = 0;
        self.run.crashes += 1;
        let down = MS + self.random.below(800 * MS);
        self.schedule(down, Event::Start(at));
    }

    /// Cuts links for a while: of one node, in one direction or both, or between two groups of nodes.
    fn cut(&mut self, at: usize) {
        let until = self.now + self.random.below(2500 * MS);
        self.cuts.cut(at, until, &mut self.random);
    }

    /// Ends all faults. After a while one node must lead and acknowledge records, and all nodes must have the same.
    pub(super) fn heal(&mut self) -> Outcome {
        self.rates = Rates::none();
        self.cuts = Cuts::none();
        for at in 0..NODES {
            self.nodes[at].paused_until = 0;
            self.nodes[at].slow_until = 0;
            self.nodes[at].disk.stay_on();
            self.schedule(0, Event::Start(at));
            self.collect(at)?;
        }
        let end = self.now + HEALING;
        let before = self.run.acknowledged;
        let mut events = 0;
        while self.now < end {
            self.turn()?;
            events += 1;
            check(events < HEALING_EVENTS, || "the nodes do not come to rest".to_owned())?;
            self.is_quiet = self.run.acknowledged > before + 3;
            let is_served = !self.has_views || self.views_ledger.is_complete(self.now);
            if events % 64 == 0 && self.is_quiet && is_served && self.are_complete() {
                return self.compare();
            }
        }
        Err(Violation(format!(
            "the nodes do not agree after {} s without faults: {}; {}",
            HEALING / (1000 * MS),
            self.states(),
            self.views_ledger.about_missing()
        )))
    }

    /// Returns the places of the nodes that belong to the cluster in the end.
    fn remaining(&self) -> impl Iterator<Item = usize> {
        let (leaver, last) = (self.leaver(), number(NODES - 1));
        (0..NODES).filter(move |at| match leaver {
            Some(leaver) => number(*at) != leaver,
            None => number(*at) != last,
        })
    }

    /// Returns `true` if one node leads, and the nodes of the cluster vote, no others, and have applied its log.
    fn are_complete(&self) -> bool {
        let leads = |at: &usize| self.nodes[*at].process.as_ref().is_some_and(|process| process.leading.is_some());
        let Some(leader) = (0..NODES).find(leads) else { return false };
        let applied = |at: usize| self.process(at).map(|process| process.shard.status().applied);
        let members = self.process(leader).map(|process| process.shard.status().members);
        let is_whole = members.is_some_and(|members| {
            members.outgoing.is_empty() && members.voters.iter().copied().eq(self.remaining().map(number))
        });
        let index = applied(leader);
        let has_settled = |at: usize| self.process(at).and_then(|process| process.shard.settled_to_end());
        is_whole && self.remaining().all(|at| applied(at) == index && has_settled(at) == index)
    }

    /// Compares what all nodes have.
    fn compare(&self) -> Outcome {
        let mut first = None;
        for at in self.remaining() {
            let Some(process) = self.process(at) else { continue };
            if !self.has_views {
                self.ledger.check_all(&process.store, number(at))?;
            }
            let all = contents(&process.store, number(at))?;
            let first = first.get_or_insert_with(|| all.clone());
            check(*first == all, || format!("node {} has other records than another one", at + 1))?;
        }
        Ok(())
    }

    /// Returns the state of each node in words.
    fn states(&self) -> String {
        let state = |at: usize| match self.process(at) {
            Some(process) => {
                let status = process.shard.status();
                let stats = process.store.stats().journal;
                format!(
                    "node {}: term {}, leader {}, {} of {} applied, voters {:?}, journal full: {}, waits: {}",
                    at + 1,
                    status.term,
                    status.leader.unwrap_or(0),
                    status.applied,
                    status.last.index,
                    status.members.voters,
                    stats.is_full,
                    process.store.has_unwritten(),
                )
            }
            None => format!("node {}: ended", at + 1),
        };
        (0..NODES).map(state).collect::<Vec<_>>().join("; ")
    }
}
