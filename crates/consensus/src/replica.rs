//! One node's part of one shard.
//!
//! The engine expects much of its caller: a state that is on disk before an answer leaves, steps that may not happen
//! between two others, messages that may not come from outside. All of that is here, so that the caller only has to
//! write what [`Output`] says and to call [`Replica::saved`] when it is on disk.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use raft::eraftpb::{Entry as RaftEntry, Message as RaftMessage, MessageType};
use raft::{Config, INVALID_ID, RawNode, ReadOnlyOption, Ready, SnapshotStatus, StateRole};
use slog::{Discard, Logger, o};

use crate::lease::{Lease, wait_after};
use crate::log::Log;
use crate::message::{self, Kind, Message};
use crate::random::Random;
use crate::values::{Body, Change, Entry, Hard, Index, Members, NodeId, Point, Position, ReadTicket, Step, Term, Time};

/// Settings of a shard, equal on all its nodes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ticks between two heartbeats.
    pub heartbeat_ticks: usize,
    /// Ticks without a leader after which a node asks for votes, at least; at most twice as many. A leader that has
    /// heard of no majority for as long steps down.
    pub election_ticks: usize,
    /// Time after a heartbeat, which a majority answered, during which the leader may serve reads by itself.
    pub lease: Time,
    /// Bytes of records in one message, at most; one entry may have more.
    pub append_bytes_max: u64,
    /// Messages with entries on the way to one node, at most.
    pub appends_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { heartbeat_ticks: 1, election_ticks: 10, lease: 250_000_000, append_bytes_max: 1 << 20, appends_max: 64 }
    }
}

/// Maximum number of members that one change adds or removes.
const STEPS_MAX: usize = 64;
/// Ticks after which a node without its leader asks for votes, at least, and how many more there may be: two nodes
/// should not ask at the same time.
const EARLY_TICKS_MIN: usize = 2;
const EARLY_TICKS_SPREAD: u64 = 5;

/// Reason for which a call has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node does not lead the shard.
    NotLeader { leader: Option<NodeId> },
    /// The node hands its leadership to another, has not committed an entry of its term yet or does not serve yet: try
    /// again.
    Busy,
    /// Another change of members is not complete: try again.
    ChangePending,
    /// The change is not possible with the present members.
    ImpossibleChange(String),
    /// The message is malformed, or of a node with another idea of the shard.
    Inconsistent(&'static str),
    /// The node lost entries that it had acknowledged. It may not take part under its number again.
    Lost { has: Index, committed: Index },
    /// The engine found a contradiction; the replica has stopped.
    Stopped(String),
}

/// Part that a node plays in the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Follower {
        leader: Option<NodeId>,
    },
    Candidate,
    /// It leads, and may serve from a time on: until then the leader before may have a lease.
    Leader {
        serves_from: Time,
    },
}

/// State to be written in the order of the fields, all or nothing: as one block with a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// Number for [`Replica::saved`].
    pub number: u64,
    /// Replaces the log.
    pub install: Option<Point>,
    pub hard: Option<Hard>,
    /// Each replaces the entry at its index and all after it.
    pub entries: Vec<Entry>,
    /// Index up to which the log is known to be committed. A node that knew the entries without it would restart with
    /// members of the past, and a majority of those may elect a second leader.
    pub commit: Index,
}

/// Work for the caller, in this order: note the lease, write the saves, send the messages, tell the owners of committed
/// entries.
#[derive(Debug, Default)]
pub struct Output {
    /// Time until which this node may serve reads by itself. It may be earlier than the one before: a message of this
    /// output may let another node serve.
    pub lease: Option<Time>,
    /// Role, if it or its term has changed.
    pub role: Option<(Term, Role)>,
    pub saves: Vec<Save>,
    pub messages: Vec<Message>,
    /// Index up to which a majority has the log on disk, though this node perhaps not yet.
    pub committed: Index,
    /// Index up to which the log is committed and on this node's disk.
    pub applied: Index,
    /// Members, if they have changed, and the index of the change.
    pub members: Option<(Index, Members)>,
    /// Reads that may be answered from a state that includes an index.
    pub reads: Vec<(ReadTicket, Index)>,
}

/// Another member, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub node: NodeId,
    /// Index up to which it has the log on disk.
    pub matched: Index,
    /// `true` if it has answered lately.
    pub is_active: bool,
    /// `true` while it needs the state before the log.
    pub is_installing: bool,
}

/// Summary of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub term: Term,
    pub leader: Option<NodeId>,
    pub is_leader: bool,
    pub last: Position,
    pub committed: Index,
    pub applied: Index,
    pub members: Members,
}

/// A state of the engine that is being written, and the messages that wait for it.
struct Unsaved {
    number: u64,
    /// `false` if nothing has to be on disk.
    has_save: bool,
    /// `true` if the term or the vote changed.
    has_hard: bool,
    is_saved: bool,
    install: Option<Index>,
    messages: Vec<Message>,
}

/// One node's part of one shard.
pub struct Replica {
    id: NodeId,
    settings: Settings,
    node: RawNode<Log>,
    random: Random,
    /// Latest time of a call.
    now: Time,
    role: (Term, Role),
    lease: Lease,
    /// Term in which a leader asked this node to lead.
    asked: Option<Term>,
    /// Ticks until this node asks for votes, because its leader is probably gone.
    early: Option<usize>,
    /// Leader, term and sending time of the latest heartbeat.
    heard: Option<(NodeId, Term, Time)>,
    unsaved: VecDeque<Unsaved>,
    next_read: ReadTicket,
    /// Reason for which the engine has stopped.
    stopped: Option<String>,
}

impl Replica {
    /// Starts a replica with the log that is on this node's disk. Equal arguments give equal behaviour.
    pub fn start(id: NodeId, log: Log, settings: Settings, seed: u64, now: Time) -> Result<Self, Refused> {
        let config = Config {
            id,
            election_tick: settings.election_ticks,
            heartbeat_tick: settings.heartbeat_ticks,
            applied: log.base().position.index,
            max_size_per_msg: settings.append_bytes_max,
            max_inflight_msgs: settings.appends_max,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            batch_append: true,
            // Followers learn what is committed with the next entries or the next heartbeat. A message for it alone
            // would cost as much as one with an entry.
            skip_bcast_commit: true,
            ..Config::new(id)
        };
        let term = log.hard().term;
        let logger = Logger::root(Discard, o!());
        let started = catch_unwind(AssertUnwindSafe(|| RawNode::new(&config, log, &logger)));
        let node = match started {
            Ok(Ok(node)) => node,
            Ok(Err(error)) => return Err(Refused::Stopped(error.to_string())),
            Err(panic) => return Err(Refused::Stopped(text_of(&*panic))),
        };
        Ok(Self {
            id,
            settings,
            node,
            random: Random::new(seed),
            now,
            role: (term, Role::Follower { leader: None }),
            lease: Lease::default(),
            asked: None,
            early: None,
            heard: None,
            unsaved: VecDeque::new(),
            next_read: 0,
            stopped: None,
        })
    }

    /// Passes one tick of time.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.is_held() {
            return;
        }
        // The engine draws its timeout from the system; ours comes from the seed.
        if self.node.raft.election_elapsed == 0 {
            let ticks = self.settings.election_ticks;
            let timeout = ticks + self.random.below(ticks as u64) as usize;
            self.node.raft.set_randomized_election_timeout(timeout);
        }
        self.run(RawNode::tick).ok();
        self.resign_without_successor();
        self.early = self.early.and_then(|ticks| ticks.checked_sub(1)).filter(|_| self.leader().is_none());
        if self.early == Some(0) {
            self.early = None;
            // The engine would let a node that is no voter win.
            if self.node.raft.promotable() {
                self.run(RawNode::campaign).ok();
            }
        }
    }

    /// Notes that the connection to the leader broke: the process at its other end has probably ended. This node looks
    /// for another one soon, and gives its vote to one that does, instead of waiting for [`Settings::election_ticks`].
    pub fn leader_lost(&mut self) {
        if self.is_held() || self.leader().is_none_or(|leader| leader == self.id) {
            return;
        }
        let term = self.node.raft.term;
        self.early = Some(EARLY_TICKS_MIN + self.random.below(EARLY_TICKS_SPREAD) as usize);
        self.run(|node| node.raft.become_follower(term, INVALID_ID)).ok();
    }

    /// Ends a leadership that was handed to a node which did not take it. The leader has given its lease up and cannot
    /// have it back in this term, since the other node may still take the leadership, and does not wait then.
    fn resign_without_successor(&mut self) {
        let raft = &self.node.raft;
        let term = raft.term;
        // The lease is that of the role: a voter that is alone may have been elected in this very tick.
        let has_led = raft.state == StateRole::Leader && matches!(self.role, (led, Role::Leader { .. }) if led == term);
        if has_led && raft.lead_transferee.is_none() && self.lease.is_given_up() {
            self.run(|node| node.raft.become_follower(term, INVALID_ID)).ok();
        }
    }

    /// Appends a block of the journal with the given size.
    pub fn append(&mut self, bytes: std::num::NonZeroU32) -> Result<Position, Refused> {
        self.propose(Body::Block(bytes))
    }

    /// Appends a change of members. It takes effect when it is applied, on each node.
    pub fn change(&mut self, change: Change) -> Result<Position, Refused> {
        self.check_leads()?;
        if self.node.raft.has_pending_conf() {
            return Err(Refused::ChangePending);
        }
        self.check_possible(&change)?;
        self.propose(Body::Members(change))
    }

    fn propose(&mut self, body: Body) -> Result<Position, Refused> {
        self.check_leads()?;
        let entries: Vec<RaftEntry> = vec![message::proposed(body)];
        let proposal = RaftMessage { msg_type: MessageType::MsgPropose, entries, ..RaftMessage::default() };
        let proposed = self.run(|node| {
            node.raft.step(proposal).map(|()| Position { term: node.raft.term, index: node.raft.raft_log.last_index() })
        })?;
        // Dropped while the leadership is handed on.
        proposed.map_err(|_dropped| Refused::Busy)
    }

    fn check_leads(&self) -> Result<(), Refused> {
        match &self.stopped {
            Some(reason) => Err(Refused::Stopped(reason.clone())),
            None if !self.leads() => Err(Refused::NotLeader { leader: self.leader() }),
            None => Ok(()),
        }
    }

    /// Checks a change against the present members. The engine would replace an impossible one by an empty entry.
    fn check_possible(&self, change: &Change) -> Result<(), Refused> {
        let members = self.members();
        if !members.outgoing.is_empty() {
            return if change.steps.is_empty() { Ok(()) } else { Err(Refused::ChangePending) };
        }
        let impossible = |reason: String| Err(Refused::ImpossibleChange(reason));
        if change.steps.len() > STEPS_MAX {
            return impossible(format!(
                "the change has {} steps, at most {STEPS_MAX} are possible",
                change.steps.len()
            ));
        }
        let mut after = members.voters.clone();
        let mut nodes = std::collections::BTreeSet::new();
        for step in &change.steps {
            let (Step::AddVoter(node) | Step::AddLearner(node) | Step::Remove(node)) = *step;
            if node == INVALID_ID || !nodes.insert(node) {
                return impossible(format!("node {node} is 0 or in two steps"));
            }
            match step {
                Step::AddVoter(node) => drop(after.insert(*node)),
                Step::AddLearner(node) | Step::Remove(node) => drop(after.remove(node)),
            }
        }
        if change.steps.is_empty() {
            return impossible("the change has no steps".to_owned());
        }
        if after.is_empty() {
            return impossible("no voter would remain".to_owned());
        }
        Ok(())
    }

    /// Takes a message of another node.
    pub fn receive(&mut self, message: Message, now: Time) -> Result<(), Refused> {
        self.now = self.now.max(now);
        if let Some(reason) = &self.stopped {
            return Err(Refused::Stopped(reason.clone()));
        }
        self.check(&message)?;
        // Held back messages are like lost ones: they are sent again.
        if self.is_held() {
            return Ok(());
        }
        let Message { from, term, .. } = message;
        match message.kind {
            Kind::Beat { sent, .. } => {
                self.step(message)?;
                if self.node.raft.term == term {
                    self.heard = Some((from, term, sent));
                }
            }
            Kind::BeatAnswer { sent, .. } => {
                if self.leads() && self.node.raft.term == term {
                    self.lease.answer(from, sent);
                }
                self.step(message)?;
            }
            Kind::Lead => {
                self.asked = (self.node.raft.leader_id == from && self.node.raft.term == term).then_some(term);
                self.step(message)?;
            }
            _ => self.step(message)?,
        }
        Ok(())
    }

    fn check(&self, message: &Message) -> Result<(), Refused> {
        if message.to != self.id || message.from == self.id || message.from == INVALID_ID {
            return Err(Refused::Inconsistent("the message is for another node"));
        }
        if message.term == 0 || !message.is_consistent() {
            return Err(Refused::Inconsistent("the parts of the message contradict each other"));
        }
        // A leader tells a node no commit beyond what this node has acknowledged.
        let has = self.last().index;
        match message.kind {
            Kind::Beat { commit, .. } if commit > has && message.term >= self.node.raft.term => {
                Err(Refused::Lost { has, committed: commit })
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, message: Message) -> Result<(), Refused> {
        let stepped = self.run(|node| node.step(message.into_engine()))?;
        // An answer of a node that is no member any more has no effect.
        stepped.or_else(|error| match error {
            raft::Error::StepPeerNotFound | raft::Error::ProposalDropped => Ok(()),
            error => Err(Refused::Stopped(error.to_string())),
        })
    }

    /// Notes that everything of a save, and of those before it, is on disk.
    pub fn saved(&mut self, number: u64) {
        for unsaved in self.unsaved.iter_mut().take_while(|unsaved| unsaved.number <= number) {
            unsaved.is_saved = true;
        }
    }

    /// Asks another voter to lead. This leader appends nothing until that is done, or an election has taken place. It
    /// has to serve already: the other will not wait for the leader before this one.
    pub fn transfer(&mut self, to: NodeId) -> Result<(), Refused> {
        self.check_leads()?;
        if !matches!(self.role, (_, Role::Leader { serves_from }) if serves_from <= self.now) {
            return Err(Refused::Busy);
        }
        if to == self.id || !self.members().is_voter(to) {
            return Err(Refused::ImpossibleChange(format!("node {to} is no other voter")));
        }
        self.run(|node| node.transfer_leader(to))
    }

    /// Asks the voters whether this node still leads. The answer is in a later [`Output::reads`], or never, if it does
    /// not.
    pub fn read(&mut self) -> Result<ReadTicket, Refused> {
        self.check_leads()?;
        if !self.node.raft.commit_to_current_term() {
            return Err(Refused::Busy);
        }
        self.next_read += 1;
        let ticket = self.next_read;
        self.run(|node| node.read_index(message::ticket_context(ticket).to_vec()))?;
        Ok(ticket)
    }

    /// Returns the time until which this node may serve reads by itself, if it leads and has committed an entry of its
    /// term. It does not before the time of its role.
    fn lease_until(&self) -> Option<Time> {
        let (_, Role::Leader { .. }) = self.role else {
            return None;
        };
        if self.check_leads().is_err() || !self.node.raft.commit_to_current_term() {
            return None;
        }
        self.lease.until(self.id, self.members(), self.settings.lease)
    }

    /// Notes that a message to a node was probably lost.
    pub fn unreachable(&mut self, node: NodeId) {
        self.run(|raft| raft.report_unreachable(node)).ok();
    }

    /// Notes that a node has taken the state that [`Kind::Install`] announced, or has not.
    pub fn installed(&mut self, node: NodeId, is_done: bool) {
        let status = if is_done { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.run(|raft| raft.report_snapshot(node, status)).ok();
    }

    /// Removes the entries up to an index that is in effect, and returns the point there. A node that needs one of
    /// them has to install the state.
    pub fn compact(&mut self, to: Index) -> Point {
        let log = self.node.mut_store();
        log.compact(to);
        log.base()
    }

    /// Takes the work that the calls since the last one have given.
    pub fn take(&mut self, now: Time) -> Output {
        self.now = self.now.max(now);
        let mut output = Output::default();
        self.release(&mut output);
        while self.stopped.is_none() && !self.is_installing() && self.node.has_ready() {
            let Ok(ready) = self.run(RawNode::ready) else {
                break;
            };
            self.handle(ready, &mut output);
            self.release(&mut output);
        }
        output.committed = self.node.raft.raft_log.committed;
        output.applied = self.node.raft.raft_log.applied;
        self.note_role(&mut output);
        let bytes_max = self.settings.append_bytes_max;
        let messages = std::mem::take(&mut output.messages);
        messages.into_iter().for_each(|message| message.push_split(bytes_max, &mut output.messages));
        self.stamp(&mut output.messages);
        output.lease = self.lease_until();
        output
    }

    /// Handles a state of the engine. No other call reaches the engine until it has been taken back.
    fn handle(&mut self, mut ready: Ready, output: &mut Output) {
        let number = ready.number();
        let install = Some(ready.snapshot()).filter(|snapshot| !snapshot.is_empty());
        let install = install.map(|snapshot| message::point(snapshot.metadata.clone()));
        let hard =
            ready.hs().map(|hard| Hard { term: hard.term, vote: Some(hard.vote).filter(|vote| *vote != INVALID_ID) });
        let commit = self.node.raft.raft_log.committed;
        let has_save = ready.must_sync();
        let entries: Vec<Entry> = ready.take_entries().into_iter().filter_map(message::from_engine).collect();
        let log = self.node.mut_store();
        if let Some(hard) = hard {
            log.set_hard(hard);
        }
        if let Some(point) = &install {
            log.install(point.clone());
            output.members = Some((point.position.index, point.members.clone()));
        }
        for entry in &entries {
            log.push(entry.clone());
        }
        log.set_commit(commit);
        for state in ready.take_read_states() {
            output.reads.extend(message::ticket(&state.request_ctx).map(|ticket| (ticket, state.index)));
        }
        let at_once = ready.take_messages().into_iter().filter_map(Message::from_engine).collect::<Vec<_>>();
        // A heartbeat's answer promises nothing that has to be on disk.
        let waiting = ready.take_persisted_messages().into_iter().filter_map(Message::from_engine);
        let (answers, mut messages): (Vec<_>, Vec<_>) =
            waiting.partition(|message| matches!(message.kind, Kind::BeatAnswer { .. }));
        output.messages.extend(answers);
        let has_hard = has_save && hard.is_some();
        if has_hard || self.awaits_term() {
            messages.extend(at_once);
        } else {
            output.messages.extend(at_once);
        }
        let installs = install.as_ref().map(|point| point.position.index);
        self.unsaved.push_back(Unsaved {
            number,
            has_save,
            has_hard,
            is_saved: !has_save,
            install: installs,
            messages,
        });
        if has_save {
            let commit = self.node.store().commit();
            output.saves.push(Save { number, install, hard, entries, commit });
        }
        let committed = ready.take_committed_entries();
        if self.run(|node| node.advance_append_async(ready)).is_ok() {
            self.apply(committed, output);
        }
    }

    /// Brings committed entries into effect.
    fn apply(&mut self, entries: Vec<RaftEntry>, output: &mut Output) {
        let Some(last) = entries.last().map(|entry| entry.index) else {
            return;
        };
        for entry in entries.into_iter().filter_map(message::from_engine) {
            if let Body::Members(change) = entry.body {
                self.apply_change(entry.position.index, &change, output);
            }
        }
        self.node.mut_store().apply(last);
        self.run(|node| node.advance_apply_to(last)).ok();
    }

    fn apply_change(&mut self, index: Index, change: &Change, output: &mut Output) {
        // A change that became impossible changes nothing, on any node.
        let Ok(Ok(state)) = self.run(|node| node.apply_conf_change(&message::conf_change(change))) else {
            return;
        };
        let members = message::members(state);
        self.node.mut_store().change_members(index, members.clone());
        output.members = Some((index, members));
        // The engine goes on as the leader of a shard without itself, and fails when it counts its own disk.
        if self.node.raft.state == StateRole::Leader && !self.node.raft.promotable() {
            let term = self.node.raft.term;
            self.run(|node| node.raft.become_follower(term, INVALID_ID)).ok();
        }
    }

    /// Tells the engine of everything that is on disk, and sends what waited for it.
    fn release(&mut self, output: &mut Output) {
        while let Some(unsaved) = self.unsaved.pop_front_if(|unsaved| unsaved.is_saved) {
            let Unsaved { number, install, messages, .. } = unsaved;
            let told = self.run(|node| {
                node.on_persist_ready(number);
                if let Some(index) = install {
                    node.advance_apply_to(index);
                }
            });
            if told.is_err() {
                return;
            }
            output.messages.extend(messages);
        }
    }

    /// Returns `true` while the engine may neither tick nor take a message: while the state is replaced, and while a
    /// node alone has something that is not on disk, for it would elect itself with it.
    fn is_held(&self) -> bool {
        let is_alone = || self.members().voters.len() == 1 && self.members().voters.contains(&self.id);
        let is_unsaved = || self.unsaved.iter().any(|unsaved| unsaved.has_save && !unsaved.is_saved);
        self.is_installing() || (self.node.raft.state != StateRole::Leader && is_alone() && is_unsaved())
    }

    /// Returns `true` if the engine does not know yet of something that is on disk.
    #[cfg(test)]
    fn has_saved(&self) -> bool {
        self.unsaved.front().is_some_and(|unsaved| unsaved.is_saved)
    }

    /// Returns `true` while the term or the vote of this node is not on disk. A lone voter leads in the engine as soon
    /// as it votes for itself; after a crash it would not know of that, and another could lead in the same term.
    fn awaits_term(&self) -> bool {
        self.unsaved.iter().any(|unsaved| unsaved.has_hard && !unsaved.is_saved)
    }

    fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader && !self.awaits_term()
    }

    fn is_installing(&self) -> bool {
        self.unsaved.iter().any(|unsaved| unsaved.install.is_some())
    }

    fn note_role(&mut self, output: &mut Output) {
        let term = self.node.raft.term;
        let role = match (self.node.raft.state, self.role) {
            (StateRole::Leader, _) if !self.leads() => Role::Candidate,
            (StateRole::Leader, (led, Role::Leader { serves_from })) if led == term => Role::Leader { serves_from },
            (StateRole::Leader, _) => {
                self.lease = Lease::default();
                Role::Leader { serves_from: self.serves_from() }
            }
            (StateRole::Follower, _) => Role::Follower { leader: self.leader() },
            (StateRole::Candidate | StateRole::PreCandidate, _) => Role::Candidate,
        };
        if self.role != (term, role) {
            self.role = (term, role);
            output.role = Some(self.role);
        }
    }

    /// Returns the time from which a leader that is elected now may serve.
    fn serves_from(&self) -> Time {
        // The leader before gave up its lease, and none led in between.
        let was_asked = self.asked.is_some_and(|term| term + 1 == self.node.raft.term);
        if was_asked { self.now } else { self.now.saturating_add(wait_after(self.settings.lease)) }
    }

    /// Puts times into heartbeats and their answers. A lease counts from them.
    fn stamp(&mut self, messages: &mut Vec<Message>) {
        for Message { to, term, kind, .. } in messages {
            match kind {
                Kind::Beat { sent, .. } => *sent = self.now,
                Kind::BeatAnswer { sent, .. } => {
                    let heard = self.heard.filter(|(leader, heard, _)| (leader, heard) == (to, term));
                    *sent = heard.map_or(0, |(_, _, sent)| sent);
                }
                Kind::Lead => self.lease.give_up(),
                _ => {}
            }
        }
    }

    /// Calls the engine. Each of its broken invariants is a panic, which stops this replica and not the broker.
    fn run<R>(&mut self, call: impl FnOnce(&mut RawNode<Log>) -> R) -> Result<R, Refused> {
        if let Some(reason) = &self.stopped {
            return Err(Refused::Stopped(reason.clone()));
        }
        catch_unwind(AssertUnwindSafe(|| call(&mut self.node))).map_err(|panic| {
            let reason = text_of(&*panic);
            self.stopped = Some(reason.clone());
            Refused::Stopped(reason)
        })
    }

    /// Returns the reason for which the replica has stopped, if it has.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Returns the term, and the part that this node plays in it, as of the last [`Replica::take`].
    pub fn role(&self) -> (Term, Role) {
        self.role
    }

    pub fn leader(&self) -> Option<NodeId> {
        let leader = self.node.raft.leader_id;
        let is_known = leader != INVALID_ID && (leader != self.id || self.leads());
        is_known.then_some(leader)
    }

    pub fn members(&self) -> &Members {
        self.node.store().members()
    }

    /// Returns the log as this node has or is writing it.
    pub fn log(&self) -> &Log {
        self.node.store()
    }

    fn last(&self) -> Position {
        let log = &self.node.raft.raft_log;
        Position { term: log.term(log.last_index()).unwrap_or_default(), index: log.last_index() }
    }

    pub fn status(&self) -> Status {
        let raft = &self.node.raft;
        Status {
            term: raft.term,
            leader: self.leader(),
            is_leader: self.leads(),
            last: self.last(),
            committed: raft.raft_log.committed,
            applied: raft.raft_log.applied,
            members: self.members().clone(),
        }
    }

    /// Returns the other members as this leader knows them, by number.
    pub fn peers(&self) -> Vec<Peer> {
        let mut peers: Vec<Peer> = (self.node.raft.prs().iter())
            .filter(|(node, _)| **node != self.id)
            .map(|(node, progress)| Peer {
                node: *node,
                matched: progress.matched,
                is_active: progress.recent_active,
                is_installing: progress.state == raft::ProgressState::Snapshot,
            })
            .collect();
        peers.sort_unstable_by_key(|peer| peer.node);
        peers
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the engine stopped").to_owned()
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
