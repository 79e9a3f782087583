//! Scripts for classic members (`testdata/classic/*.txt`), alone and together with others, and invariants under random
//! operations.
//!
//! The commands of the scripts; after each one all available responses are printed:
//!
//! - `group [delay=MS]`: creates a group, at time 0; topics stay; `topic NAME N`, `at MS`, `deadline`, `state`
//! - `join M [knows=x,y] [type=T] [topics=A,B] [owns=A/0] [instance=I] [session=MS] [rebalance=MS] [twice=1] [skip=1]`
//! - `sync M [M:SHARE ..] [generation=N] [protocol=P]`, `beat M [generation=N]`, `leave M [instance=I]`
//! - `commit M A/0 [generation=N]`
//! - `restart`: the group is restored from its records; the members are not told
//! - `native M topics=A,B` and `alive M`: a member for which the broker assigns, and its heartbeat, which reports the
//!   partitions that it received last

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proptest::prelude::*;

use super::tests::{BEGIN, Client, Log, Topics, change, join_of, new_group, partition, patterns, show};
use super::*;
use crate::ids::TopicPartition;
use crate::script::{self, Command};

#[derive(Clone, Debug, Default)]
struct Member {
    who: Option<Identity>,
    generation: u32,
    joining: Option<(Identity, u64)>,
    syncing: Option<u64>,
}

struct Script {
    topics: Topics,
    group: Group,
    delay_ms: u64,
    now: Now,
    members: BTreeMap<String, Member>,
    natives: BTreeMap<String, Client>,
    log: Log,
}

fn bytes(text: &str) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(text.as_bytes())
}

fn id(name: &str) -> MemberId {
    MemberId::parse(name).expect("an id")
}

fn save(group: &mut Group, is_joining: bool) {
    if let Some(saved) = group.to_save(is_joining) {
        group.saved(saved);
    }
}

fn classic(name: &str) -> ClassicJoin {
    ClassicJoin {
        member: None,
        fresh: id(name),
        instance: None,
        client: "a program".into(),
        host: "here".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 5_000,
        protocol_type: "consumer".into(),
        protocols: Vec::new(),
        subscription: None,
        comes_twice: false,
        may_skip: false,
    }
}

impl Script {
    fn new() -> Self {
        let topics = Topics::default();
        Self {
            topics,
            group: new_group(),
            delay_ms: 0,
            now: BEGIN,
            members: BTreeMap::new(),
            natives: BTreeMap::new(),
            log: Log::default(),
        }
    }

    fn restart(&mut self) {
        self.group = self.log.restore(self.now);
        for member in self.members.values_mut() {
            (member.joining, member.syncing) = (None, None);
        }
    }

    fn run(&mut self, line: &str) -> String {
        let command = Command::parse(line);
        self.log.save(&mut self.group, matches!(command.word(0), "join" | "native"));
        let mut text = match command.word(0) {
            "group" => {
                let delay_ms = command.named_number("delay").unwrap_or_default() as u64;
                *self = Self { topics: self.topics.clone(), delay_ms, ..Self::new() };
                return String::new();
            }
            "topic" => {
                self.topics.set(command.word(1), command.number(2) as u32);
                String::new()
            }
            "at" => {
                let steady_ms = command.number(1);
                self.now = Now { steady_ms, unix_ms: BEGIN.unix_ms + steady_ms };
                let expired = self.group.expire(self.now);
                if expired.is_empty() { String::new() } else { format!("expired {}\n", show(expired)) }
            }
            "deadline" => format!("{:?}\n", self.group.next_deadline_ms()),
            "state" => self.state(),
            "restart" => {
                self.restart();
                String::new()
            }
            _ => {
                self.run_member(&command).unwrap_or_else(|refused| format!("{:?}: {}\n", refused.reason, refused.error))
            }
        };
        self.answers(&mut text);
        self.log.note(&mut self.group);
        self.log.save(&mut self.group, false);
        text
    }

    fn run_member(&mut self, command: &Command<'_>) -> Result<String, GroupError> {
        let name = command.word(1);
        let mut member = self.members.get(name).cloned().unwrap_or_default();
        let generation = command.named_number("generation").map_or(member.generation, |number| number as u32);
        let instance = command.named("instance").map(|instance| InstanceId::parse(instance).expect("an id"));
        let who = member.who.clone().unwrap_or(Identity { member: id(name), instance: instance.clone() });
        match command.word(0) {
            "join" => {
                let join = ClassicJoin { member: member.who.as_ref().map(|who| who.member.clone()), ..asked(command) };
                match self.group.join_classic(join, self.delay_ms, &self.topics, self.now)? {
                    Entry::Named(id) => {
                        member.who = Some(Identity { member: id.clone(), instance: None });
                        self.members.insert(name.into(), member);
                        return Ok(format!("is {id}\n"));
                    }
                    Entry::Waits { who, ticket } => {
                        member.who = Some(who.clone());
                        member.joining = Some((who, ticket));
                    }
                }
            }
            "sync" => {
                let pairs = command.words[2..].iter().filter_map(|pair| pair.split_once(':'));
                let share = |(member, share): (&str, &str)| {
                    let partitions = share.split(',').filter(|text| text.contains('/')).map(partition).collect();
                    Share { member: id(member), bytes: bytes(share), partitions: Some(partitions) }
                };
                let protocol = command.named("protocol").map(Into::into);
                let shares = pairs.map(share).collect();
                let sync = ClassicSync { who, generation, protocol_type: None, protocol, shares };
                member.syncing = Some(self.group.sync_classic(sync, self.now)?);
            }
            "beat" => {
                self.group.heartbeat_classic(&who, generation, &self.topics, self.now)?;
                return Ok("fine\n".into());
            }
            "leave" => {
                let native = self.natives.get(name).map(|client| client.who.clone());
                let leaver = Leaver { member: member.who.or(native).map(|who| who.member), instance };
                let left = self.group.leave_classic(&[leaver], self.now).remove(0)?;
                self.members.remove(name);
                return Ok(format!("left {left}\n"));
            }
            "commit" => {
                let committer = Committer::Member { who, epoch: generation };
                self.group.check_commit(&committer, &[change(command.word(2), 1)])?;
                return Ok("fine\n".into());
            }
            "native" | "alive" => return self.run_native(command),
            other => panic!("no command '{other}'"),
        }
        self.members.insert(name.into(), member);
        Ok(String::new())
    }

    fn run_native(&mut self, command: &Command<'_>) -> Result<String, GroupError> {
        let name = command.word(1);
        let mut client = self.natives.remove(name).unwrap_or_else(|| Client::new(name, command.named("instance")));
        let beat = if command.word(0) == "native" {
            let topics = patterns(command.named("topics").expect("native wants topics="));
            self.group.join(join_of(client.who.clone(), topics), &self.topics, self.now)?
        } else {
            self.group.beat(&client.who, client.epoch, Some(&client.told), &self.topics, self.now)?
        };
        self.group.reconcile(&client.who, self.now)?;
        let turn = self.group.answer(&client.who, beat, true)?;
        client.epoch = turn.epoch;
        client.told = turn.assignment.into_iter().flatten().collect();
        let text = format!("epoch {}: {}\n", client.epoch, show(&client.told));
        self.natives.insert(name.into(), client);
        Ok(text)
    }

    /// Prints all responses that no longer wait.
    fn answers(&mut self, text: &mut String) {
        for (name, member) in &mut self.members {
            if let Some((who, ticket)) = &member.joining {
                let answer = match self.group.joined(who, *ticket, self.now) {
                    Ok(None) => continue,
                    Ok(Some(joined)) => {
                        member.generation = joined.generation;
                        show_joined(&joined)
                    }
                    Err(refused) => format!("{:?}", refused.reason),
                };
                member.joining = None;
                writeln!(text, "{name}: {answer}").expect("a string takes all");
            }
        }
        for (name, member) in &mut self.members {
            if let (Some(who), Some(ticket)) = (&member.who, member.syncing) {
                let answer = match self.group.synced(who, ticket, self.now) {
                    Ok(None) => continue,
                    Ok(Some(synced)) => match synced.given {
                        Given::Bytes(bytes) => format!("gets '{}'", String::from_utf8_lossy(&bytes)),
                        Given::Partitions(partitions) => format!("reads {}", show(partitions)),
                    },
                    Err(refused) => format!("{:?}", refused.reason),
                };
                member.syncing = None;
                writeln!(text, "{name}: {answer}").expect("a string takes all");
            }
        }
    }

    fn state(&self) -> String {
        let group = &self.group;
        let mut text = match group.classic_status() {
            Some(status) => format!("{:?} at generation {} by '{}'\n", status.phase, group.epoch(), status.protocol),
            None => format!("{:?} at epoch {}\n", group.state(), group.epoch()),
        };
        for member in group.members() {
            let instance = member.instance.map_or(String::new(), |instance| format!(" ({instance})"));
            writeln!(text, "{}{instance}: {}", member.id, show(member.assigned)).expect("a string takes all");
        }
        text
    }
}

fn asked(command: &Command<'_>) -> ClassicJoin {
    let names = command.named("knows").unwrap_or("range").split(',');
    let metadata = bytes(command.named("topics").unwrap_or_default());
    let subscription = command.named("topics").map(|topics| {
        let owned = command.named("owns").unwrap_or_default().split(',').filter(|text| !text.is_empty());
        Subscription::new(patterns(topics), owned.map(partition).collect()).expect("within limits")
    });
    ClassicJoin {
        instance: command.named("instance").map(|instance| InstanceId::parse(instance).expect("an id")),
        session_timeout_ms: command.named_number("session").unwrap_or(10_000) as u32,
        rebalance_timeout_ms: command.named_number("rebalance").unwrap_or(5_000) as u32,
        protocol_type: command.named("type").unwrap_or("consumer").into(),
        protocols: names.map(|name| Protocol { name: name.into(), metadata: metadata.clone() }).collect(),
        subscription,
        comes_twice: command.named("twice").is_some(),
        may_skip: command.named("skip").is_some(),
        ..classic(command.word(1))
    }
}

fn show_joined(joined: &Joined) -> String {
    let Joined { generation, protocol, leader, member, members, is_assigned, .. } = joined;
    let role = match leader {
        None => "of the broker".into(),
        Some(leader) if leader == member => format!("leads {}", show(members.iter().map(|member| &member.member))),
        Some(leader) => format!("follows {leader}"),
    };
    format!("{member} joined {generation} by {protocol}, {role}{}", if *is_assigned { ", shared out" } else { "" })
}

#[test]
fn scripts() {
    script::check("classic", Script::new, Script::run);
}

/// Operation on members, by their number.
#[derive(Clone, Debug)]
enum Op {
    /// Starts the member, or lets it join again, with some of three protocols.
    Join(usize, usize),
    /// Continues: the member fetches its response, syncs, sends a heartbeat.
    Step(usize),
    Leave(usize),
    /// Ends the program without leaving.
    Kill(usize),
    Pass(u64),
    /// Restores the group from its records.
    Restart,
}

const MEMBERS: usize = 5;
const KNOWN: [&[&str]; 3] = [&["a", "b"], &["b", "a"], &["b"]];
const PARTITIONS: u32 = 7;

fn ops(members: usize) -> impl Strategy<Value = Vec<Op>> {
    let member = 0..members;
    let op = prop_oneof![
        4 => (member.clone(), 0..KNOWN.len()).prop_map(|(member, known)| Op::Join(member, known)),
        14 => member.clone().prop_map(Op::Step),
        1 => member.clone().prop_map(Op::Leave),
        1 => member.prop_map(Op::Kill),
        2 => (1..4000u64).prop_map(Op::Pass),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..120)
}

/// Kind of participation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Releases everything before it joins.
    Eager,
    /// Continues to read the partitions that it keeps.
    Cooperative,
    /// Leaves the assignment to the broker.
    Native,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Named,
    Joining(u64),
    Joined,
    Syncing(u64),
    In,
    /// Program has to join again.
    Out,
}

#[derive(Debug)]
struct Program {
    who: Identity,
    known: usize,
    step: Step,
    generation: u32,
    reads: BTreeSet<TopicPartition>,
    has_id: bool,
}

struct World {
    topics: Topics,
    group: Group,
    kinds: Vec<Kind>,
    /// `true` if members with an odd number are static.
    has_instances: bool,
    programs: Vec<Option<Program>>,
    /// Leader of each generation that has sent assignments.
    leaders: BTreeMap<u32, MemberId>,
    starts: usize,
    now: Now,
    epoch: u32,
    log: Log,
}

impl World {
    fn new(kinds: &[Kind], has_instances: bool) -> Self {
        let mut topics = Topics::default();
        topics.set("t", PARTITIONS);
        Self {
            topics,
            group: new_group(),
            kinds: kinds.to_vec(),
            has_instances,
            programs: kinds.iter().map(|_| None).collect(),
            leaders: BTreeMap::new(),
            starts: 0,
            now: BEGIN,
            epoch: 0,
            log: Log::default(),
        }
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Join(member, known) => self.join(*member, *known),
            Op::Step(member) => self.step(*member),
            Op::Leave(member) => {
                if let Some(program) = self.programs[*member].take() {
                    self.log.save(&mut self.group, false);
                    let leaver = Leaver { member: Some(program.who.member), instance: program.who.instance };
                    drop(self.group.leave_classic(&[leaver], self.now));
                }
            }
            Op::Kill(member) => self.programs[*member] = None,
            Op::Pass(ms) => self.pass(*ms),
            Op::Restart => self.restart(),
        }
        self.check();
    }

    fn restart(&mut self) {
        if self.has_instances {
            // A program that took over an instance id in an unfinished round is fenced afterwards: the record has the
            // id of the program before. Kafka, too, writes the new one only in a stable group
            // (`updateStaticMemberThenRebalanceOrCompleteJoin` in its `GroupMetadataManager`).
            return;
        }
        self.log.note(&mut self.group);
        self.log.save(&mut self.group, false);
        self.group = self.log.restore(self.now);
        for program in self.programs.iter_mut().flatten() {
            match program.step {
                Step::Named | Step::In => {}
                // A generation without assignments is forgotten: the one before is in effect again.
                _ => (program.step, program.generation) = (Step::Out, 0),
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.steady_ms += ms;
        self.log.save(&mut self.group, false);
        self.group.expire(self.now);
    }

    fn join(&mut self, member: usize, known: usize) {
        if self.programs[member].is_none() {
            self.starts += 1;
            let instance = (self.has_instances && member % 2 == 1).then(|| format!("i{member}"));
            let Client { who, .. } = Client::new(&format!("m{member}-{}", self.starts), instance.as_deref());
            let step = Step::Out;
            let reads = BTreeSet::new();
            self.programs[member] = Some(Program { who, known, step, generation: 0, reads, has_id: false });
        }
        let kind = self.kinds[member];
        let program = self.programs[member].as_mut().expect("it runs");
        if kind != Kind::Cooperative {
            program.reads.clear();
        }
        self.log.save(&mut self.group, true);
        if kind == Kind::Native {
            program.generation = 0;
            let join = join_of(program.who.clone(), patterns("t"));
            match self.group.join(join, &self.topics, self.now) {
                Ok(beat) => self.process_beat(member, beat),
                Err(refused) => panic!("{refused:?}"),
            }
            return;
        }
        program.known = known;
        let owned: Vec<String> = program.reads.iter().map(ToString::to_string).collect();
        let metadata = bytes(&format!("{known} {}", owned.join(",")));
        let names = KNOWN[known].iter();
        let join = ClassicJoin {
            member: program.has_id.then(|| program.who.member.clone()),
            instance: program.who.instance.clone(),
            protocols: names.map(|name| Protocol { name: (*name).into(), metadata: metadata.clone() }).collect(),
            subscription: Some(Subscription::new(patterns("t"), program.reads.clone()).expect("within limits")),
            comes_twice: true,
            may_skip: member == 1,
            ..classic(program.who.member.as_str())
        };
        match self.group.join_classic(join, 0, &self.topics, self.now) {
            Ok(Entry::Named(id)) => {
                assert_eq!(id, program.who.member);
                program.has_id = true;
                program.step = Step::Named;
            }
            Ok(Entry::Waits { who, ticket }) => {
                assert_eq!(who, program.who);
                program.has_id = true;
                program.step = Step::Joining(ticket);
            }
            Err(refused) => {
                assert_eq!(refused.reason, if program.has_id { refused.reason } else { Reason::InconsistentProtocol });
                self.programs[member] = None;
            }
        }
    }

    fn process_beat(&mut self, member: usize, beat: u64) {
        let program = self.programs[member].as_mut().expect("it runs");
        self.group.reconcile(&program.who, self.now).expect("a member");
        let turn = self.group.answer(&program.who, beat, true).expect("a member");
        program.generation = turn.epoch;
        program.reads = turn.assignment.into_iter().flatten().collect();
        program.step = Step::In;
    }

    fn step(&mut self, member: usize) {
        let Some(program) = &self.programs[member] else {
            return;
        };
        self.log.save(&mut self.group, false);
        let who = program.who.clone();
        let known = program.known;
        let generation = program.generation;
        let outcome = match program.step.clone() {
            _ if self.kinds[member] == Kind::Native => {
                let owned = program.reads.clone();
                let beat = self.group.beat(&who, generation, Some(&owned), &self.topics, self.now);
                beat.map(|beat| self.process_beat(member, beat))
            }
            Step::Named | Step::Out => return self.join(member, known),
            Step::Joining(ticket) => self.group.joined(&who, ticket, self.now).map(|joined| match joined {
                Some(joined) => self.joined(member, &joined),
                None => assert!(self.group.next_deadline_ms().is_some(), "it would wait for ever"),
            }),
            Step::Joined => self.sync(member, Vec::new()),
            Step::Syncing(ticket) => self.group.synced(&who, ticket, self.now).map(|synced| match synced {
                Some(synced) => self.synced(member, synced),
                None => assert!(self.group.next_deadline_ms().is_some(), "it would wait for ever"),
            }),
            Step::In => self.group.heartbeat_classic(&who, generation, &self.topics, self.now),
        };
        if let Err(refused) = outcome {
            let program = self.programs[member].as_mut().expect("it runs");
            match refused.reason {
                Reason::RebalanceInProgress => program.step = Step::Out,
                // It has lost everything.
                Reason::UnknownMember | Reason::StaleEpoch | Reason::StaleGeneration => self.programs[member] = None,
                Reason::ReplacedInstance => panic!("nobody came instead"),
                other => panic!("{other:?}: {}", refused.error),
            }
        }
    }

    fn joined(&mut self, member: usize, joined: &Joined) {
        let program = self.programs[member].as_mut().expect("it runs");
        assert_eq!(joined.member, program.who.member);
        assert!(joined.generation > 0 && joined.generation >= program.generation, "a generation goes backwards");
        program.generation = joined.generation;
        program.step = Step::Joined;
        let Some(leader) = &joined.leader else {
            return;
        };
        let leads = *leader == joined.member;
        assert_eq!(joined.members.is_empty(), !leads);
        if self.has_instances {
            return if leads && !joined.is_assigned {
                self.share_out(member, joined)
            };
        }
        let first = self.leaders.entry(joined.generation).or_insert_with(|| leader.clone());
        assert_eq!(first, leader, "generation {} has two leaders", joined.generation);
        if leads {
            self.share_out(member, joined);
        }
    }

    /// Assigns partitions: owners keep theirs, up to a fair share; others are assigned to the members with the fewest.
    fn share_out(&mut self, member: usize, joined: &Joined) {
        let knows = |other: &JoinedMember| {
            let known = usize::from(other.metadata[0] - b'0');
            KNOWN[known].contains(&&*joined.protocol)
        };
        assert!(joined.members.iter().all(knows), "{joined:?}");
        let mut shares: BTreeMap<MemberId, BTreeSet<TopicPartition>> = BTreeMap::new();
        let mut free: BTreeSet<TopicPartition> = (0..PARTITIONS).map(|n| partition(&format!("t/{n}"))).collect();
        for other in &joined.members {
            let text = String::from_utf8_lossy(&other.metadata).into_owned();
            let owned = text.split_once(' ').map_or("", |(_, owned)| owned).split(',').filter(|text| !text.is_empty());
            let share = shares.entry(other.member.clone()).or_default();
            // Of two members that claim the same partition one is wrong, and the broker has removed it before.
            let fair = (PARTITIONS as usize).div_ceil(joined.members.len());
            share.extend(owned.map(partition).filter(|at| free.remove(at)).take(fair));
        }
        let taken: BTreeSet<TopicPartition> = shares.values().flatten().cloned().collect();
        let claimed = joined.members.iter().map(|other| String::from_utf8_lossy(&other.metadata).into_owned());
        let claimed = claimed.collect::<Vec<_>>().join(",");
        free.retain(|at| !taken.contains(at) && !claimed.contains(&at.to_string()));
        for at in free {
            let (_, fewest) = shares.iter_mut().min_by_key(|(_, share)| share.len()).expect("the leader is one");
            fewest.insert(at);
        }
        let shares = joined.members.iter().map(|other| Share {
            member: other.member.clone(),
            bytes: bytes(&format!(
                "{} {}",
                joined.generation,
                other.instance.as_ref().map_or(other.member.as_str(), InstanceId::as_str)
            )),
            partitions: Some(shares.remove(&other.member).into_iter().flatten().collect()),
        });
        let shares = shares.collect();
        // It may be too late.
        if self.sync(member, shares).is_err() {
            self.programs[member].as_mut().expect("it runs").step = Step::Out;
        }
    }

    fn sync(&mut self, member: usize, shares: Vec<Share>) -> Result<(), GroupError> {
        let program = self.programs[member].as_mut().expect("it runs");
        let who = program.who.clone();
        let generation = program.generation;
        let sync = ClassicSync { who, generation, protocol_type: None, protocol: None, shares };
        program.step = Step::Syncing(self.group.sync_classic(sync, self.now)?);
        Ok(())
    }

    fn synced(&mut self, member: usize, synced: Synced) {
        let program = self.programs[member].as_mut().expect("it runs");
        let before = std::mem::take(&mut program.reads);
        match synced.given {
            Given::Partitions(partitions) => program.reads = partitions.into_iter().collect(),
            Given::Bytes(assignment) => {
                let name = program.who.instance.as_ref().map_or(program.who.member.as_str(), InstanceId::as_str);
                if !assignment.is_empty() {
                    assert_eq!(assignment, bytes(&format!("{} {name}", program.generation)), "another's share");
                }
                let shown = self.group.members().find(|shown| *shown.id == program.who.member).expect("a member");
                program.reads = shown.assigned.clone();
            }
        }
        // A cooperative member reports which partitions it has released.
        let has_given_up = !before.is_subset(&program.reads);
        let is_cooperative = self.kinds[member] == Kind::Cooperative;
        program.step = if has_given_up && is_cooperative { Step::Out } else { Step::In };
    }

    /// Checks the invariants that hold at any moment.
    fn check(&mut self) {
        self.log.note(&mut self.group);
        assert!(self.group.epoch() >= self.epoch, "the epoch goes backwards");
        self.epoch = self.group.epoch();
        let members = self.group.members().count();
        assert_eq!(members, self.group.members_len());
        assert_eq!(self.group.check_empty("x").is_ok(), members == 0);
        if self.has_instances {
            return;
        }
        let mut readers: BTreeMap<&TopicPartition, &MemberId> = BTreeMap::new();
        let is_member = |program: &&Program| self.group.members().any(|member| *member.id == program.who.member);
        for program in self.programs.iter().flatten().filter(is_member) {
            for at in &program.reads {
                let other = readers.insert(at, &program.who.member);
                assert_eq!(other, None, "{at} is read by {} too", program.who.member);
            }
        }
    }

    /// Continues all running programs until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.pass(1_000);
            for member in 0..self.programs.len() {
                for _ in 0..3 {
                    self.step(member);
                    self.check();
                }
            }
        }
        let running: Vec<&Program> = self.programs.iter().flatten().collect();
        assert_eq!(self.group.members_len(), running.len(), "{:#?}\n{:#?}", self.group, self.programs);
        let expected = if running.is_empty() { GroupState::Empty } else { GroupState::Stable };
        assert_eq!(self.group.state(), expected, "{:#?}\n{:#?}", self.group, self.programs);
        assert!(running.iter().all(|program| program.step == Step::In), "{running:#?}");
        if !running.is_empty() && !self.has_instances {
            let read: usize = running.iter().map(|program| program.reads.len()).sum();
            assert_eq!(read, PARTITIONS as usize, "each is read once: {running:#?}");
        }
    }
}

proptest! {
    /// Every generation has one leader, every member gets its leader's assignment of this generation, no response is
    /// lost, no two members read the same partition, and in the end all are read.
    #[test]
    fn generations_have_one_leader_and_nobody_waits_for_ever(ops in ops(MEMBERS)) {
        use Kind::{Cooperative, Eager};
        let mut world = World::new(&[Eager, Cooperative, Eager, Cooperative, Eager], false);
        ops.iter().for_each(|op| world.act(op));
        world.settle();
    }

    /// Static members return under other ids to the partitions that they had.
    #[test]
    fn static_members_return_to_their_partitions(ops in ops(MEMBERS)) {
        let mut world = World::new(&[Kind::Eager; MEMBERS], true);
        ops.iter().for_each(|op| world.act(op));
        world.settle();
    }

    /// Members of all kinds share a group: no two ever read the same partition, and in the end all are read.
    #[test]
    fn members_of_all_kinds_share_a_group(ops in ops(6)) {
        use Kind::{Cooperative, Eager, Native};
        let mut world = World::new(&[Eager, Cooperative, Native, Eager, Native, Cooperative], false);
        ops.iter().for_each(|op| world.act(op));
        world.settle();
    }
}

/// Metadata of members is bounded, and freed when they leave.
#[test]
fn member_metadata_is_bounded() {
    use crate::limits::{GROUP_MEMBERS_MAX, GROUP_PENDING_MEMBERS_MAX, GROUP_PROTOCOLS_BYTES_MAX};
    let mut group = new_group();
    let topics = Topics::default();
    let large = |name: &str, bytes: usize| ClassicJoin {
        protocols: vec![Protocol { name: "a".into(), metadata: vec![0; bytes].into() }],
        ..classic(name)
    };
    let join = |group: &mut Group, join: ClassicJoin| {
        save(group, true);
        group.join_classic(join, 0, &topics, BEGIN).map_err(|refused| refused.reason)
    };
    join(&mut group, large("m0", GROUP_PROTOCOLS_BYTES_MAX - 2000)).expect("there is room");
    assert_eq!(join(&mut group, large("m1", 2000)), Err(Reason::Other));
    let leaver = Leaver { member: Some(id("m0")), instance: None };
    group.leave_classic(&[leaver], BEGIN).remove(0).expect("a member");
    assert_eq!(group.protocols_bytes(), 0);
    for i in 0..GROUP_MEMBERS_MAX {
        join(&mut group, large(&format!("m{i}"), 1)).expect("there is room");
    }
    assert_eq!(join(&mut group, large("more", 1)), Err(Reason::GroupFull));
    let mut group = new_group();
    for i in 0..GROUP_PENDING_MEMBERS_MAX {
        let named = join(&mut group, ClassicJoin { comes_twice: true, ..large(&format!("m{i}"), 1) });
        assert_eq!(named, Ok(Entry::Named(id(&format!("m{i}")))));
    }
    assert_eq!(join(&mut group, ClassicJoin { comes_twice: true, ..large("more", 1) }), Err(Reason::GroupFull));
    let later = Now { steady_ms: BEGIN.steady_ms + 10_000, ..BEGIN };
    assert_eq!(group.expire(later), []);
    assert_eq!(group.next_deadline_ms(), None);
}
