//! One shard on several nodes: [`consensus::Replica`] with a model of disks, network and clocks.
//!
//! Everything that can go wrong goes wrong at rates that the seed chooses: messages are lost, doubled and late, links
//! are cut in one direction or both, processes are killed and paused, disks are slow and lose what was not synced,
//! clocks run at different rates, members change, the log is compacted. `Truth` checks what must hold all the time.
//! After the faults end, the nodes have to agree and to take writes again.

mod bugs;
mod clients;
mod disk;
mod faults;
mod node;
mod truth;
mod work;

use std::collections::VecDeque;
use std::fmt;
use std::ops::AddAssign;

use consensus::{Kind, Log, Members, Message, NodeId, Random, Refused, Replica, Settings, Time};

use crate::agenda::Agenda;
use crate::clock::Clock;
use crate::cuts::Cuts;
use crate::violation::{Outcome, Violation, digest_after};
pub use bugs::Bug;
use disk::{Content, Digest, Disk};
use node::{Node, Process};
use truth::Truth;

const MS: Time = 1_000_000;
/// Time between two ticks of a node, by its clock.
const TICK: Time = 25 * MS;
/// Nodes that exist. Some of them are members at first.
const NODES: usize = 5;

/// How a run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub events: u64,
    pub elections: u64,
    pub committed: u64,
    pub changes: u64,
    pub installs: u64,
    pub reads: u64,
    pub crashes: u64,
    /// Digest of all that happened: equal for two runs of a seed.
    pub trace: u64,
}

impl AddAssign for Run {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.elections += other.elections;
        self.committed += other.committed;
        self.changes += other.changes;
        self.installs += other.installs;
        self.reads += other.reads;
        self.crashes += other.crashes;
        self.trace ^= other.trace;
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, elections, committed, changes, installs, reads, crashes, .. } = self;
        write!(
            f,
            "{events} events, {elections} elections, {committed} entries committed, {changes} changes of members, \
             {installs} states installed, {reads} reads, {crashes} crashes"
        )
    }
}

/// Runs a seed: `events` events with faults, and then without.
pub fn run(seed: u64, events: usize, bug: Option<Bug>) -> Result<Run, Violation> {
    let mut world = World::new(seed, bug);
    for _ in 0..events {
        world.turn()?;
    }
    world.heal()?;
    let Truth { elections, changes, installs, reads, .. } = world.truth;
    Ok(Run { elections, changes, installs, reads, committed: world.truth.committed(), ..world.run })
}

/// Rates of a seed: each fault happens once in `n` occasions, never for 0.
struct Rates {
    lose: u64,
    double: u64,
    late: u64,
    crash: u64,
    cut: u64,
    pause: u64,
    slow: u64,
    fail_sync: u64,
    starve: u64,
    breaks: u64,
    change: u64,
    compact: u64,
    transfer: u64,
}

impl Rates {
    fn new(random: &mut Random) -> Self {
        let mut rate = |often: u64| if random.one_in(4) { 0 } else { often * (1 + random.below(8)) };
        Self {
            lose: rate(7),
            double: rate(10),
            late: rate(10),
            crash: rate(8),
            cut: rate(8),
            pause: rate(12),
            slow: rate(12),
            fail_sync: rate(25),
            starve: rate(12),
            breaks: rate(6),
            change: rate(2),
            compact: rate(4),
            transfer: rate(2),
        }
    }

    fn none() -> Self {
        Self {
            lose: 0,
            double: 0,
            late: 0,
            crash: 0,
            cut: 0,
            pause: 0,
            slow: 0,
            fail_sync: 0,
            starve: 0,
            breaks: 0,
            change: 0,
            compact: 0,
            transfer: 0,
        }
    }
}

enum Event {
    Tick(usize),
    Deliver(Box<Flight>),
    /// The first blocks of a disk are on the medium: the save with this number, and all before it.
    Synced {
        node: usize,
        start: u32,
        blocks: usize,
        number: u64,
    },
    Start(usize),
    /// A node learns that its connection to the leader broke.
    Broken(usize),
    Installed {
        node: usize,
        start: u32,
        of: NodeId,
        is_done: bool,
    },
    Client,
    Fault,
}

impl Event {
    /// Returns a number of the event's kind, for the digest of a run.
    fn kind(&self) -> u64 {
        match self {
            Self::Tick(node) => 1 << 8 | *node as u64,
            Self::Deliver(flight) => 2 << 8 | flight.message.term,
            Self::Synced { blocks, .. } => 3 << 8 | *blocks as u64,
            Self::Start(node) => 4 << 8 | *node as u64,
            Self::Broken(node) => 5 << 8 | *node as u64,
            Self::Installed { node, .. } => 6 << 8 | *node as u64,
            Self::Client => 7 << 8,
            Self::Fault => 8 << 8,
        }
    }
}

/// Message on its way, with what accompanies it.
#[derive(Clone)]
struct Flight {
    message: Message,
    contents: Vec<Content>,
    state: Digest,
    /// Start of the sender's process.
    start: u32,
}

struct World {
    random: Random,
    rates: Rates,
    bug: Option<Bug>,
    now: Time,
    agenda: Agenda<Event>,
    nodes: Vec<Node>,
    cuts: Cuts<NODES>,
    truth: Truth,
    run: Run,
    settings: Settings,
}

/// Returns the place of a node in the lists.
fn place(node: NodeId) -> usize {
    node as usize - 1
}

fn number(place: usize) -> NodeId {
    place as u64 + 1
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let rates = Rates::new(&mut random);
        let founders = if random.one_in(2) { 3 } else { 5 };
        let first = Log::of_founder(Members::of_voters((0..founders).map(number)));
        let nodes = (0..NODES).map(|at| {
            let log = if at < founders { first.clone() } else { Log::of_joiner() };
            // A tenth slower or faster than the true time, at most.
            let clock = Clock::new(random.below(1000 * MS), 910 + random.below(181));
            Node {
                clock,
                disk: Disk::new(log),
                start: 0,
                process: None,
                paused_until: 0,
                slow_until: 0,
                starved_until: 0,
                fails_sync: false,
            }
        });
        let nodes = nodes.collect();
        let settings = Settings {
            heartbeat_ticks: 2,
            election_ticks: 12,
            lease: 400 * MS,
            append_bytes_max: [200, 1000, 100_000][random.below(3) as usize],
            appends_max: [2, 8, 64][random.below(3) as usize],
        };
        let truth = Truth::new(first.base().position.index);
        let mut world = Self {
            random,
            rates,
            bug,
            now: 0,
            agenda: Agenda::new(),
            nodes,
            cuts: Cuts::none(),
            truth,
            run: Run::default(),
            settings,
        };
        for node in 0..NODES {
            world.schedule(0, Event::Start(node));
            let first_tick = world.random.below(TICK);
            world.schedule(first_tick, Event::Tick(node));
        }
        world.schedule(MS, Event::Client);
        world.schedule(MS, Event::Fault);
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
        self.run.events += 1;
        self.note(event.kind());
        match event {
            Event::Tick(node) => self.tick(node),
            Event::Deliver(flight) => self.deliver(flight),
            Event::Synced { node, start, blocks, number } => self.sync(node, start, blocks, number),
            Event::Start(node) => self.start(node),
            Event::Installed { node, start, of, is_done } => {
                if self.nodes[node].start == start
                    && let Some(process) = &mut self.nodes[node].process
                {
                    process.replica.installed(of, is_done);
                }
                self.take(node)
            }
            Event::Broken(node) => {
                if self.pause(node).is_none()
                    && let Some(process) = &mut self.nodes[node].process
                {
                    process.replica.leader_lost();
                }
                self.take(node)
            }
            Event::Client => self.client(),
            Event::Fault => self.fault(),
        }
    }

    fn clock(&self, node: usize) -> Time {
        self.nodes[node].clock.at(self.now)
    }

    /// Returns how long a process does not run, if it is paused.
    fn pause(&self, node: usize) -> Option<Time> {
        self.nodes[node].paused_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    fn start(&mut self, at: usize) -> Outcome {
        if self.nodes[at].process.is_some() {
            return Ok(());
        }
        if self.bug == Some(Bug::StartsWithoutDisk) && self.run.crashes > 0 && self.random.one_in(4) {
            self.nodes[at].disk.lose();
        }
        let seed = self.random.number();
        let now = self.clock(at);
        let node = &mut self.nodes[at];
        node.start += 1;
        let disk::Recovered { log, digest, contents } = node.disk.recover(self.bug);
        let base = log.base();
        let replica = Replica::start(number(at), log, self.settings.clone(), seed, now);
        let replica = replica.map_err(|refused| Violation(format!("node {} cannot start: {refused:?}", at + 1)))?;
        node.process = Some(Process {
            members: replica.members().clone(),
            replica,
            lease: None,
            leads: None,
            committed: base.position.index,
            applied: base.position.index,
            digests: [(base.position.index, digest)].into(),
            contents,
            waiting: VecDeque::new(),
            reads: Vec::new(),
        });
        self.take(at)
    }

    fn tick(&mut self, at: usize) -> Outcome {
        if let Some(left) = self.pause(at) {
            self.schedule(left, Event::Tick(at));
            return Ok(());
        }
        let jitter = self.random.below(MS);
        let next = self.nodes[at].clock.span(TICK) + jitter;
        self.schedule(next, Event::Tick(at));
        let now = self.clock(at);
        let is_starved = self.nodes[at].starved_until > self.now;
        if let Some(process) = &mut self.nodes[at].process
            && !is_starved
        {
            process.replica.tick(now);
        }
        self.take(at)
    }

    fn sync(&mut self, at: usize, start: u32, blocks: usize, number: u64) -> Outcome {
        if self.nodes[at].start != start || self.nodes[at].process.is_none() {
            return Ok(());
        }
        if std::mem::take(&mut self.nodes[at].fails_sync) {
            // What is on the medium is not known: the process ends.
            self.crash(at);
            return Ok(());
        }
        self.nodes[at].disk.sync(blocks);
        if let Some(left) = self.pause(at) {
            self.schedule(left, Event::Synced { node: at, start, blocks, number });
            return Ok(());
        }
        let later = if self.bug == Some(Bug::CountsLaterSaves) { 2 } else { 0 };
        if let Some(process) = &mut self.nodes[at].process {
            process.replica.saved(number + later);
        }
        self.take(at)
    }

    fn deliver(&mut self, flight: Box<Flight>) -> Outcome {
        let (from, to) = (place(flight.message.from), place(flight.message.to));
        if let Some(left) = self.pause(to) {
            self.schedule(left, Event::Deliver(flight));
            return Ok(());
        }
        let now = self.clock(to);
        let Some(process) = &mut self.nodes[to].process else {
            self.report(&flight, false);
            return Ok(());
        };
        let Flight { mut message, contents, state, start } = *flight;
        match &mut message.kind {
            Kind::Append { entries, .. } => {
                let blocks = entries.iter().map(|entry| entry.position).zip(contents);
                for (position, content) in blocks {
                    let known = process.contents.entry(position).or_insert(content);
                    if self.bug != Some(Bug::TakesContentByIndex) {
                        *known = content;
                    }
                }
            }
            Kind::Install(point) => {
                let state = if self.bug == Some(Bug::InstallsWithoutState) { process.digest() } else { state };
                process.digests.insert(point.position.index, state);
            }
            Kind::BeatAnswer { sent, .. } if self.bug == Some(Bug::LeasesFromAnswer) => *sent = now,
            _ => {}
        }
        let is_install = matches!(message.kind, Kind::Install(_));
        let sender = message.from;
        let received = process.replica.receive(message, now);
        if is_install {
            let installed = Event::Installed { node: from, start, of: number(to), is_done: true };
            self.schedule(MS, installed);
        }
        match received {
            Ok(()) => self.take(to),
            Err(Refused::Lost { has, committed }) => {
                Err(Violation(format!("node {} has {has} and node {sender} commits {committed}", to + 1)))
            }
            Err(refused) => Err(Violation(format!("node {} refuses a message: {refused:?}", to + 1))),
        }
    }

    /// Tells the sender of a state that it did not arrive.
    fn report(&mut self, flight: &Flight, is_done: bool) {
        if let Kind::Install(_) = flight.message.kind {
            let (node, of) = (place(flight.message.from), flight.message.to);
            self.schedule(10 * MS, Event::Installed { node, start: flight.start, of, is_done });
        }
    }
}
