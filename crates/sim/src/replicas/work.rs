//! The work that a replica gives: what it writes, sends, commits and answers.

use consensus::{Body, Index, Kind, Message, NodeId, Output, Position, Role, Save};

use super::bugs::Bug;
use super::disk::Digest;
use super::node::{Node, Process};
use super::{Event, Flight, MS, NODES, World, number, place};
use crate::violation::{Outcome, Violation, check, digest_after};

impl World {
    /// Takes the work of a replica and does it.
    pub(super) fn take(&mut self, at: usize) -> Outcome {
        let now = self.clock(at);
        let Some(process) = &mut self.nodes[at].process else {
            return Ok(());
        };
        let output = process.replica.take(now);
        if let Some(reason) = process.replica.stopped() {
            return Err(Violation(format!("the engine of node {} stopped: {reason}", at + 1)));
        }
        let Output { lease, role, saves, messages, committed, applied, members, reads } = output;
        if lease.is_some() || self.bug != Some(Bug::KeepsLease) {
            process.lease = lease;
        }
        if let Some((term, role)) = role {
            self.change_role(at, term, role)?;
        }
        self.write(at, &saves);
        for message in messages {
            self.send(at, message)?;
        }
        self.commit(at, committed)?;
        if let Some((index, members)) = members {
            self.truth.change(number(at), index, &members)?;
            if let Some(process) = &mut self.nodes[at].process {
                process.members = members;
            }
        }
        self.apply(at, applied)?;
        self.acknowledge(at)?;
        for (ticket, index) in reads {
            self.answer_read(at, ticket, index)?;
        }
        Ok(())
    }

    pub(super) fn change_role(&mut self, at: usize, term: u64, role: Role) -> Outcome {
        self.note(term);
        let Some(process) = &mut self.nodes[at].process else {
            return Ok(());
        };
        let Role::Leader { serves_from } = role else {
            process.leads = None;
            process.waiting.clear();
            process.reads.clear();
            return Ok(());
        };
        process.leads = Some((term, serves_from));
        process.waiting.clear();
        process.reads.clear();
        let log = process.replica.log();
        let base = log.base().position.index;
        let has = |position: Position| position.index <= base || log.term_of(position.index) == Some(position.term);
        self.truth.elect(number(at), term, has)
    }

    pub(super) fn write(&mut self, at: usize, saves: &[Save]) {
        for save in saves {
            let is_slow = self.nodes[at].slow_until > self.now;
            let duration = if is_slow { 300 * MS } else { 8 * MS };
            let duration = MS / 10 + self.random.below(duration);
            let node = &mut self.nodes[at];
            let Some(process) = &mut node.process else {
                return;
            };
            let mut state = save.install.as_ref().map(|point| {
                let index = point.position.index;
                (index, process.digests.get(&index).copied().unwrap_or_default())
            });
            if let Some((index, digest)) = state {
                self.truth.installs += 1;
                process.applied = index;
                process.committed = process.committed.max(index);
                process.digests = [(index, digest)].into();
                if self.bug == Some(Bug::ForgetsStateOfInstall) {
                    state = Some((index, 1));
                }
            }
            let contents = &process.contents;
            let by_index = self.bug == Some(Bug::TakesContentByIndex);
            let content = |position: Position| {
                let exact = contents.get(&position).copied();
                let first =
                    || contents.iter().find(|(known, _)| known.index == position.index).map(|(_, content)| *content);
                if by_index { first() } else { exact }.unwrap_or_default()
            };
            let blocks = node.disk.write(save, state.map(|(_, digest)| digest), content, self.bug);
            let number = save.number;
            if self.bug == Some(Bug::AnswersBeforeSync) {
                process.replica.saved(number);
            }
            let start = node.start;
            self.schedule(duration, Event::Synced { node: at, start, blocks, number });
        }
    }

    pub(super) fn send(&mut self, at: usize, message: Message) -> Outcome {
        self.note(message.term << 8 | message.to);
        let Node { process: Some(process), start, .. } = &self.nodes[at] else {
            return Ok(());
        };
        if let Kind::Voted { is_pre: false, is_granted: true, .. } = message.kind {
            self.truth.vote(message.from, message.term, message.to)?;
        }
        let contents = match &message.kind {
            Kind::Append { entries, .. } => {
                let content = |position| process.contents.get(position).copied().unwrap_or_default();
                entries.iter().map(|entry| content(&entry.position)).collect()
            }
            _ => Vec::new(),
        };
        let state = match &message.kind {
            // The state is taken when it is applied, a little later in the same turn.
            Kind::Install(point) => self.state_at(at, point.position.index),
            _ => 0,
        };
        let flight = Flight { message, contents, state, start: *start };
        let (from, to) = (at, place(flight.message.to));
        let is_cut = self.cuts.is_cut(from, to, self.now);
        if is_cut || self.random.one_in(self.rates.lose) {
            if self.random.one_in(3)
                && let Some(process) = &mut self.nodes[from].process
            {
                process.replica.unreachable(flight.message.to);
            }
            self.report(&flight, false);
            return Ok(());
        }
        let copies = if self.random.one_in(self.rates.double) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if self.random.one_in(self.rates.late) { 1500 * MS } else { 3 * MS };
            let delay = MS / 20 + self.random.below(late);
            self.schedule(delay, Event::Deliver(Box::new(flight.clone())));
        }
        Ok(())
    }

    /// Returns the state of a node at an index that it has applied or is about to apply.
    pub(super) fn state_at(&self, at: usize, index: Index) -> Digest {
        let Some(process) = &self.nodes[at].process else {
            return 0;
        };
        let mut digest = process.digest();
        if index <= process.applied {
            return process.digests.get(&index).copied().unwrap_or_default();
        }
        for next in process.applied + 1..=index {
            digest = Self::state_after(process, digest, next).unwrap_or(digest);
        }
        digest
    }

    pub(super) fn state_after(process: &Process, before: Digest, index: Index) -> Option<Digest> {
        let entry = process.replica.log().entry(index)?;
        let content = process.contents.get(&entry.position).copied().unwrap_or_default();
        let is_block = matches!(entry.body, Body::Block(_));
        Some(if is_block { digest_after(before, [entry.position.term, entry.position.index, content]) } else { before })
    }

    pub(super) fn commit(&mut self, at: usize, committed: Index) -> Outcome {
        let Some(process) = &self.nodes[at].process else {
            return Ok(());
        };
        let status = process.replica.status();
        for index in process.committed + 1..=committed {
            let Some(entry) = process.replica.log().entry(index) else {
                continue;
            };
            let content = process.contents.get(&entry.position).copied().unwrap_or_default();
            let is_new = self.truth.commit(number(at), status.term, &entry, content)?;
            if is_new {
                self.check_durable(entry.position, at)?;
            }
        }
        if let Some(process) = &mut self.nodes[at].process {
            process.committed = process.committed.max(committed);
        }
        Ok(())
    }

    /// What is committed is on the disks of a majority, by the members before or after what was applied with it.
    pub(super) fn check_durable(&self, position: Position, at: usize) -> Outcome {
        let Some(process) = &self.nodes[at].process else {
            return Ok(());
        };
        let has = |node: NodeId| self.nodes[place(node)].disk.has(position);
        let (now, before) = (process.replica.members(), &process.members);
        let is_durable = now.is_decided(has) || before.is_decided(has);
        check(is_durable, || {
            let on: Vec<NodeId> = (0..NODES).map(number).filter(|node| has(*node)).collect();
            let (node, Position { term, index }) = (at + 1, position);
            format!("node {node} commits entry {index} of term {term}, which is on the disks of {on:?} only")
        })
    }

    pub(super) fn apply(&mut self, at: usize, applied: Index) -> Outcome {
        let Some(process) = &mut self.nodes[at].process else {
            return Ok(());
        };
        for index in process.applied + 1..=applied {
            let Some(digest) = Self::state_after(process, process.digest(), index) else {
                return Err(Violation(format!("node {} applies {index} and does not have it", at + 1)));
            };
            process.applied = index;
            process.digests.insert(index, digest);
            self.truth.apply(number(at), index, digest)?;
        }
        Ok(())
    }

    /// Answers clients whose writes are committed.
    pub(super) fn acknowledge(&mut self, at: usize) -> Outcome {
        let now = self.clock(at);
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else {
            return Ok(());
        };
        let Some((_, serves_from)) = process.leads else {
            return Ok(());
        };
        if now < serves_from && self.bug != Some(Bug::ServesAtOnce) {
            return Ok(());
        }
        while let Some(position) = process.waiting.front().copied() {
            let is_done = match self.bug {
                Some(Bug::AcknowledgesAtOnce) => true,
                Some(Bug::AcknowledgesOwnDisk) => node.disk.has(position),
                _ => position.index <= process.committed,
            };
            if !is_done {
                break;
            }
            process.waiting.pop_front();
            self.truth.acknowledge(position.index)?;
        }
        Ok(())
    }

    pub(super) fn answer_read(&mut self, at: usize, ticket: u64, index: Index) -> Outcome {
        let Some(process) = &mut self.nodes[at].process else {
            return Ok(());
        };
        let Some(found) = process.reads.iter().position(|(known, _)| *known == ticket) else {
            return Ok(());
        };
        let (_, began) = process.reads.swap_remove(found);
        self.truth.read(number(at), index, began)
    }
}
