//! Work of clients and operators with the nodes that think that they lead.

use std::num::NonZeroU32;

use consensus::{Change, Step};

use super::bugs::Bug;
use super::{Event, MS, NODES, World, number};
use crate::violation::Outcome;

impl World {
    pub(super) fn client(&mut self) -> Outcome {
        let pause = MS / 2 + self.random.below(12 * MS);
        self.schedule(pause, Event::Client);
        for at in 0..NODES {
            let leads = self.nodes[at].process.as_ref().is_some_and(|process| process.leads.is_some());
            if leads && self.pause(at).is_none() {
                self.use_leader(at)?;
            }
        }
        Ok(())
    }

    /// Does what clients and operators do with a node that thinks it leads.
    pub(super) fn use_leader(&mut self, at: usize) -> Outcome {
        self.read(at)?;
        let content = self.random.number();
        let bytes = NonZeroU32::MIN.saturating_add(self.random.below(300) as u32);
        let Some(process) = &mut self.nodes[at].process else {
            return Ok(());
        };
        if let Ok(position) = process.replica.append(bytes) {
            process.contents.insert(position, content);
            process.waiting.push_back(position);
        }
        if self.random.one_in(self.rates.change * 4) {
            let change = self.random_change(at);
            if let Some(process) = &mut self.nodes[at].process {
                // Most changes are possible; the others are refused.
                process.replica.change(change).ok();
            }
        }
        if self.random.one_in(self.rates.transfer * 4) {
            let to = number(self.random.below(NODES as u64) as usize);
            if let Some(process) = &mut self.nodes[at].process {
                process.replica.transfer(to).ok();
            }
        }
        self.take(at)
    }

    pub(super) fn random_change(&mut self, at: usize) -> Change {
        let members = self.nodes[at].process.as_ref().map(|process| process.replica.members().clone());
        let members = members.unwrap_or_default();
        let mut steps = Vec::new();
        for _ in 0..=self.random.below(3) {
            let node = number(self.random.below(NODES as u64) as usize);
            steps.push(match self.random.below(4) {
                0 if members.contains(node) => Step::Remove(node),
                1 => Step::AddLearner(node),
                _ => Step::AddVoter(node),
            });
        }
        Change { steps }
    }

    /// Reads at a node that thinks it leads, under its lease and by asking.
    pub(super) fn read(&mut self, at: usize) -> Outcome {
        let now = self.clock(at);
        let began = self.truth.acknowledged();
        let Some(process) = &mut self.nodes[at].process else {
            return Ok(());
        };
        let serves = match self.bug {
            Some(Bug::ServesAtOnce) => process.leads.is_some(),
            _ => process.leads.is_some_and(|(_, from)| now >= from),
        };
        let is_leased = process.lease.is_some_and(|until| now < until);
        let sees = process.committed;
        if serves && (is_leased || self.bug == Some(Bug::ReadsWithoutLease)) {
            self.truth.read(number(at), sees, began)?;
        }
        if self.random.one_in(4)
            && let Some(process) = &mut self.nodes[at].process
            && let Ok(ticket) = process.replica.read()
        {
            if self.bug == Some(Bug::ReadsWithoutMajority) {
                self.truth.read(number(at), sees, began)?;
            }
            process.reads.push((ticket, began));
        }
        Ok(())
    }
}
