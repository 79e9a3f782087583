//! Whole nodes of a cluster in one thread: their stores, their logs and what leaders serve from them.
//!
//! Everything below a node is simulated: disks lose what was not synced, and may lose power in the middle of any
//! operation; messages are lost, doubled and late; processes are killed and paused; clocks run at different rates. What
//! the threads of a node do is done by events, so that a seed decides about their order as well. `Ledger` has what
//! clients were told, and checks it. After the faults end, all nodes have to have the same records.

mod faults;
mod ledger;
mod members;
mod node;
mod serving;
mod views;

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;

use cluster::link::Part;
use cluster::node::plan::{Act, View, plan};
use cluster::roster::{FORMAT, Member, RosterChange};
use consensus::{Change, NodeId, Random, Step, Time};
use storage::Work;
use tokio::runtime::Runtime;

use crate::agenda::Agenda;
use crate::clock::Clock;
use crate::cuts::Cuts;
use crate::violation::{Outcome, Violation, digest_after};
use ledger::Ledger;
use node::{Node, Process, TICK};
use views::ViewLedger;

const MS: Time = 1_000_000;
/// Nodes that exist. The first one founds the cluster, and the others join it one after the other; the last one only
/// when one of the others leaves.
const NODES: usize = 5;
/// Time between two looks of a node at its segments and its checkpoint.
const UPKEEP: Time = 100 * MS;

/// How a run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub events: u64,
    /// Leaderships that began.
    pub elections: u64,
    /// Records that clients were told to be committed.
    pub acknowledged: u64,
    pub reads: u64,
    pub installs: u64,
    pub crashes: u64,
    pub checkpoints: u64,
    /// Nodes that learned that they were removed.
    pub leaves: u64,
    /// Digest of all that happened.
    pub trace: u64,
}

impl AddAssign for Run {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.elections += other.elections;
        self.acknowledged += other.acknowledged;
        self.reads += other.reads;
        self.installs += other.installs;
        self.crashes += other.crashes;
        self.checkpoints += other.checkpoints;
        self.leaves += other.leaves;
        self.trace ^= other.trace;
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, elections, acknowledged, reads, installs, crashes, checkpoints, leaves, .. } = self;
        write!(
            f,
            "{events} events, {elections} leaderships, {acknowledged} records acknowledged, {reads} reads, {installs} \
             states fetched, {crashes} crashes, {checkpoints} checkpoints, {leaves} nodes left"
        )
    }
}

/// Service of the leaders of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Partitions of the log, without a broker.
    Logs,
    /// A queue, a durable cache and a consumer group of a broker. Its tasks choose between what is ready by numbers
    /// that do not come from the seed, and one of its threads tells them the time: most runs of a seed are equal, and
    /// not all.
    Views,
}

/// Runs a seed: `events` events with faults, and then without.
pub fn run(serving: Serving, seed: u64, events: usize) -> Result<Run, Violation> {
    let mut world = World::new(serving, seed);
    for _ in 0..events {
        world.turn()?;
    }
    world.heal()?;
    Ok(world.run)
}

/// Rates of a seed: each fault happens once in `n` occasions, never for 0.
struct Rates {
    lose: u64,
    double: u64,
    late: u64,
    kill: u64,
    power: u64,
    cut: u64,
    pause: u64,
    slow: u64,
    transfer: u64,
    checkpoint: u64,
}

impl Rates {
    fn new(random: &mut Random) -> Self {
        let mut rate = |often: u64| if random.one_in(4) { 0 } else { often * (1 + random.below(8)) };
        Self {
            lose: rate(10),
            double: rate(15),
            late: rate(10),
            kill: rate(8),
            power: rate(8),
            cut: rate(8),
            pause: rate(12),
            slow: rate(10),
            transfer: rate(12),
            checkpoint: 1 + rate(3),
        }
    }

    fn none() -> Self {
        Self { lose: 0, double: 0, late: 0, kill: 0, power: 0, cut: 0, pause: 0, slow: 0, transfer: 0, checkpoint: 4 }
    }
}

enum Event {
    Tick(usize),
    Deliver(Box<Flight>),
    /// The journal's thread of a process works.
    Write(usize, Start),
    /// The thread that applies what other leaders have committed works.
    Apply(usize, Start),
    Upkeep(usize),
    Start(usize),
    /// A node fetches the state that a leader offered.
    Fetch(usize, Start, NodeId),
    Client,
    Fault,
}

/// Number of a process of a node: what an earlier one began does not concern a later one.
type Start = u32;

impl Event {
    /// Returns a number of the event's kind, for the digest of a run.
    fn kind(&self) -> u64 {
        let of = |kind: u64, node: &usize| kind << 8 | *node as u64;
        match self {
            Self::Tick(node) => of(1, node),
            Self::Deliver(flight) => of(2, &flight.to),
            Self::Write(node, _) => of(3, node),
            Self::Apply(node, _) => of(4, node),
            Self::Upkeep(node) => of(5, node),
            Self::Start(node) => of(6, node),
            Self::Fetch(node, ..) => of(7, node),
            Self::Client => 8 << 8,
            Self::Fault => 9 << 8,
        }
    }
}

/// Message on its way.
#[derive(Clone)]
struct Flight {
    to: usize,
    part: Part,
}

struct World {
    random: Random,
    rates: Rates,
    now: Time,
    agenda: Agenda<Event>,
    nodes: Vec<Node>,
    cuts: Cuts<NODES>,
    ledger: Ledger,
    run: Run,
    /// Node that is removed from the cluster, and when.
    leaving: Option<(NodeId, Time)>,
    /// Runs the fetches of states.
    runtime: Runtime,
    /// `true` once clients only read.
    is_quiet: bool,
    /// `true` if leaders have brokers, and clients use their views.
    has_views: bool,
    views_ledger: ViewLedger,
}

/// Returns the place of a node in the lists.
fn place(node: NodeId) -> usize {
    node as usize - 1
}

fn number(place: usize) -> NodeId {
    place as u64 + 1
}

impl World {
    fn new(serving: Serving, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rates = Rates::new(&mut random);
        // A tenth slower or faster than the true time, at most.
        let leaving = random.one_in(2).then(|| (1 + random.below(NODES as u64 - 1), (1300 + random.below(2500)) * MS));
        let clock = |random: &mut Random| Clock::new(random.below(1000 * MS), 910 + random.below(181));
        let nodes = (0..NODES).map(|_| Node::new(clock(&mut random))).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let mut world = Self {
            random,
            rates,
            now: 0,
            agenda: Agenda::new(),
            nodes,
            cuts: Cuts::none(),
            ledger: Ledger::default(),
            run: Run::default(),
            leaving,
            runtime: runtime.expect("invariant: a runtime of one thread starts unless there are no file handles"),
            is_quiet: false,
            has_views: serving == Serving::Views,
            views_ledger: ViewLedger::default(),
        };
        for node in 0..NODES {
            world.schedule(0, Event::Start(node));
            let (tick, upkeep) = (world.random.below(TICK), world.random.below(UPKEEP));
            world.schedule(tick, Event::Tick(node));
            world.schedule(upkeep, Event::Upkeep(node));
        }
        world.schedule(MS, Event::Client);
        world.schedule(500 * MS, Event::Fault);
        world
    }

    fn schedule(&mut self, after: Time, event: Event) {
        self.agenda.add(self.now + after, event);
    }

    fn note(&mut self, what: u64) {
        self.run.trace = digest_after(self.run.trace, [self.now, self.agenda.added(), what]);
    }

    fn turn(&mut self) -> Outcome {
        let Some((at, event)) = self.agenda.next() else {
            return Err(Violation("nothing happens any more".to_owned()));
        };
        self.now = at;
        node::set_wall_clock(at);
        self.run.events += 1;
        let operations: u64 = self.nodes.iter().map(|node| node.disk.operations()).sum();
        self.note(event.kind() << 32 | operations);
        match event {
            Event::Tick(node) => self.tick(node),
            Event::Deliver(flight) => self.deliver(flight),
            Event::Write(node, start) => self.write(node, start),
            Event::Apply(node, start) => self.apply(node, start),
            Event::Upkeep(node) => self.keep_up(node),
            Event::Start(node) => self.start(node),
            Event::Fetch(node, start, leader) => self.fetch(node, start, leader),
            Event::Client => self.client(),
            Event::Fault => self.fault(),
        }
    }

    /// Returns how long a process does not run, if it is paused.
    fn pause(&self, node: usize) -> Option<Time> {
        self.nodes[node].paused_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    /// Returns the process of a node, with the clock set to its time.
    fn process(&self, at: usize) -> Option<&Process> {
        node::set_clock(self.nodes[at].clock.at(self.now));
        self.nodes[at].process.as_ref()
    }

    /// Returns a process, if it is still the one that was started then.
    fn process_since(&self, at: usize, start: Start) -> Option<&Process> {
        (self.nodes[at].start == start).then(|| self.process(at)).flatten()
    }

    fn start(&mut self, at: usize) -> Outcome {
        if self.nodes[at].process.is_some() || self.nodes[at].has_left {
            return Ok(());
        }
        node::set_clock(self.nodes[at].clock.at(self.now));
        let seed = self.random.number();
        match Process::start(number(at), &self.nodes[at].disk, seed) {
            Ok(process) => {
                self.nodes[at].start += 1;
                self.nodes[at].process = Some(process);
                self.collect(at)
            }
            Err(_) if self.nodes[at].disk.is_off() => {
                self.lose_power(at);
                Ok(())
            }
            Err(error) => Err(Violation(format!("node {} does not start: {error}", at + 1))),
        }
    }

    fn tick(&mut self, at: usize) -> Outcome {
        if let Some(left) = self.pause(at) {
            self.schedule(left, Event::Tick(at));
            return Ok(());
        }
        let jitter = self.random.below(MS);
        let next = self.nodes[at].clock.span(TICK) + jitter;
        self.schedule(next, Event::Tick(at));
        if let Some(process) = self.process(at) {
            process.shard.tick();
            self.change_members(at);
        }
        self.collect(at)
    }

    /// Returns the node that has to leave by now.
    fn leaver(&self) -> Option<NodeId> {
        self.leaving.and_then(|(node, at)| (at <= self.now).then_some(node))
    }

    /// Takes the next step to a cluster of the nodes that have joined and not left, if this node leads.
    fn change_members(&mut self, at: usize) {
        let leaver = self.leaver();
        let joined = 1 + (self.now / (300 * MS)).min(NODES as u64 - 2);
        let wanted = if leaver.is_some() { NODES as u64 } else { joined };
        let Some(process) = self.process(at).filter(|process| process.leading.is_some()) else { return };
        let shard = &process.shard;
        let (roster, status, peers) = (shard.roster(), shard.status(), shard.peers());
        let missing = (1..=wanted).find(|node| roster.nodes.get(node).is_none_or(|member| member.format == 0));
        let described = |node| RosterChange::Describe { node, member: Member { format: FORMAT, ..Member::default() } };
        let removed = leaver.filter(|node| roster.nodes.get(node).is_some_and(|member| !member.is_removed));
        for change in missing.map(described).into_iter().chain(removed.map(|node| RosterChange::Remove { node })) {
            // It may not lead any more, or have no room: the next tick tries again.
            shard.change_roster(&change, Arc::new(serving::Ignored)).unwrap_or_default();
        }
        let view =
            View { own: number(at), roster: &roster, members: &status.members, peers: &peers, last: status.last.index };
        let step = match plan(view) {
            Some(Act::AddLearner(node)) => Step::AddLearner(node),
            Some(Act::Promote(node)) => Step::AddVoter(node),
            Some(Act::Remove(node)) => Step::Remove(node),
            Some(Act::HandOver(node)) => return shard.transfer(node).unwrap_or_default(),
            None => return,
        };
        shard.change(Change { steps: vec![step] }).map_or_else(drop, drop);
    }

    fn deliver(&mut self, flight: Box<Flight>) -> Outcome {
        if let Some(left) = self.pause(flight.to) {
            self.schedule(left, Event::Deliver(flight));
            return Ok(());
        }
        let Flight { to, part } = *flight;
        let from = part.message.from;
        if let Some(process) = self.process(to) {
            if process.shard.roster().gone(&process.shard.status().members).contains(&from) {
                self.leave(place(from));
                return Ok(());
            }
            process.shard.receive(part);
        }
        self.collect(to)
    }

    /// Ends the process of a node for good: another one has told it that it was removed.
    fn leave(&mut self, at: usize) {
        self.drop_calls(at);
        self.nodes[at].process = None;
        self.nodes[at].has_left = true;
        self.run.leaves += 1;
    }

    fn write(&mut self, at: usize, start: Start) -> Outcome {
        if let Some(left) = self.pause(at) {
            self.schedule(left, Event::Write(at, start));
            return Ok(());
        }
        let Some(process) = self.process_since(at, start) else { return Ok(()) };
        let has_written = process.turn(Work::Journal)?;
        // What cannot be written yet waits for the next upkeep.
        process.is_writing.set(!has_written && process.store.has_unwritten());
        self.collect(at)
    }

    fn apply(&mut self, at: usize, start: Start) -> Outcome {
        if let Some(left) = self.pause(at) {
            self.schedule(left, Event::Apply(at, start));
            return Ok(());
        }
        let Some(process) = self.process_since(at, start) else { return Ok(()) };
        process.is_applying.set(false);
        process.shard.turn();
        self.collect(at)
    }

    /// Does what the background threads of a store do.
    fn keep_up(&mut self, at: usize) -> Outcome {
        let next = UPKEEP / 2 + self.random.below(UPKEEP);
        self.schedule(next, Event::Upkeep(at));
        if self.pause(at).is_some() {
            return Ok(());
        }
        let (is_chosen, is_idle) = (self.random.one_in(self.rates.checkpoint), self.random.one_in(3));
        let Some(process) = self.process(at) else { return Ok(()) };
        process.turn(Work::Segments)?;
        if is_idle {
            process.turn(Work::Seal)?;
        }
        if is_chosen || process.store.stats().journal.is_full {
            let is_taken = process.turn(Work::Checkpoint)?;
            self.run.checkpoints += u64::from(is_taken);
        }
        if let Some(process) = self.process(at) {
            process.is_writing.set(false);
        }
        self.collect(at)
    }

    /// Fetches the state of a leader in one step, as if nothing else happened meanwhile.
    fn fetch(&mut self, at: usize, start: Start, leader: NodeId) -> Outcome {
        if let Some(left) = self.pause(at) {
            self.schedule(left, Event::Fetch(at, start, leader));
            return Ok(());
        }
        if self.process_since(at, start).is_none() {
            return Ok(());
        }
        let is_reached = !self.cuts.is_cut(at, place(leader), self.now) && self.pause(place(leader)).is_none();
        let state = match (self.nodes[at].process.as_ref(), self.nodes[place(leader)].process.as_ref()) {
            (Some(own), Some(of)) if is_reached => {
                node::set_clock(self.nodes[at].clock.at(self.now));
                own.fetch(of, &self.runtime)
            }
            _ => None,
        };
        self.run.installs += u64::from(state.is_some());
        if let Some(process) = self.process(at) {
            process.shard.installed(state);
        }
        self.collect(at)
    }

    /// Takes what a node has left to do after a call: messages, work of its threads, a leadership, and what its clients
    /// were told.
    fn collect(&mut self, at: usize) -> Outcome {
        if self.nodes[at].disk.is_off() {
            self.lose_power(at);
            return Ok(());
        }
        self.run_views(at)?;
        let Some(process) = self.process(at) else { return Ok(()) };
        let start = self.nodes[at].start;
        if let Some(error) = process.shard.failed() {
            return Err(Violation(format!("node {} takes no part any more: {error}", at + 1)));
        }
        let offers = process.outbox.take_offers();
        let parts = process.outbox.take_parts();
        let has_unwritten = process.store.has_unwritten();
        let begins_applying = process.shard.has_work() && !process.is_applying.replace(true);
        for leader in offers {
            let after = MS + self.random.below(20 * MS);
            self.schedule(after, Event::Fetch(at, start, leader));
        }
        parts.into_iter().for_each(|part| self.send(at, part));
        if has_unwritten {
            self.schedule_write(at);
        }
        if begins_applying {
            let after = MS + self.random.below(8 * MS);
            self.schedule(after, Event::Apply(at, start));
        }
        self.serve(at)
    }

    /// Has the journal's thread of a node work, unless it will do so already.
    fn schedule_write(&mut self, at: usize) {
        let node = &self.nodes[at];
        if node.process.as_ref().is_none_or(|process| process.is_writing.replace(true)) {
            return;
        }
        let (start, slow) = (node.start, if node.slow_until > self.now { 60 * MS } else { MS });
        let after = MS / 10 + self.random.below(slow);
        self.schedule(after, Event::Write(at, start));
    }

    fn send(&mut self, from: usize, part: Part) {
        let to = place(part.message.to);
        if to >= NODES || self.cuts.is_cut(from, to, self.now) || self.random.one_in(self.rates.lose) {
            return;
        }
        let copies = 1 + u64::from(self.random.one_in(self.rates.double));
        for _ in 0..copies {
            let late = if self.random.one_in(self.rates.late) { 30 * MS } else { MS };
            let after = MS / 20 + self.random.below(late);
            self.schedule(after, Event::Deliver(Box::new(Flight { to, part: part.clone() })));
        }
    }
}
