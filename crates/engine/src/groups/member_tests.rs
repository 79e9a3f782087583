//! Members for which the broker assigns, against invariants, under any sequence of operations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::{BEGIN, Client, Log, Topics, change, join_of, new_group, partition, patterns, topic};
use super::*;
use crate::ids::{Offset, TopicPartition};
use crate::pattern::Pattern;

/// Operation on a group and its members, by the number of the member.
#[derive(Clone, Debug)]
enum Op {
    /// With one of four subscriptions.
    Join {
        member: usize,
        topics: usize,
    },
    /// A heartbeat, whose response may be lost.
    Beat {
        member: usize,
        says_owned: bool,
        is_lost: bool,
    },
    Leave(usize),
    Away(usize),
    /// The program ends without leaving. A static member returns under another id, with the same instance id.
    Kill {
        member: usize,
        topics: usize,
    },
    Commit {
        member: usize,
        topic: usize,
        partition: u32,
    },
    Topic {
        topic: usize,
        partitions: u32,
    },
    Pass(u64),
    /// The group is restored from its records, without some of the newest: those that no response depends on.
    Restart(usize),
}

const NAMES: [&str; 3] = ["a", "b.x", "b.y"];
const SUBSCRIPTIONS: [&str; 4] = ["a", "a,b.*", "b.x,b.y", "a,b.x,b.y"];
const MEMBERS: usize = 5;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let member = 0..MEMBERS;
    let op = prop_oneof![
        3 => (member.clone(), 0..4usize).prop_map(|(member, topics)| Op::Join { member, topics }),
        8 => (member.clone(), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(member, says_owned, is_lost)| Op::Beat { member, says_owned, is_lost }),
        1 => member.clone().prop_map(Op::Leave),
        1 => member.clone().prop_map(Op::Away),
        1 => (member.clone(), 0..4usize).prop_map(|(member, topics)| Op::Kill { member, topics }),
        3 => (member, 0..3usize, 0..5u32)
            .prop_map(|(member, topic, partition)| Op::Commit { member, topic, partition }),
        1 => (0..3usize, 0..5u32).prop_map(|(topic, partitions)| Op::Topic { topic, partitions }),
        1 => (1..4000u64).prop_map(Op::Pass),
        1 => (0..4usize).prop_map(Op::Restart),
    ];
    prop::collection::vec(op, 1..80)
}

/// Program with its state, and the partitions that it reads.
struct Program {
    who: Identity,
    epoch: u32,
    reads: BTreeSet<TopicPartition>,
    /// Subset of `reads` whose topic was deleted in the meantime.
    gone: BTreeSet<TopicPartition>,
}

/// Group with programs that follow the protocol.
struct World {
    topics: Topics,
    group: Group,
    /// Programs, of which the even ones are static members.
    programs: Vec<Option<Program>>,
    starts: usize,
    now: Now,
    position: Offset,
    epoch: u32,
    log: Log,
    /// Number of records that are committed: a response depends on them, or a later change of the topics.
    settled: usize,
}

impl World {
    fn new() -> Self {
        let mut topics = Topics::default();
        NAMES.iter().for_each(|name| topics.set(name, 3));
        let programs = (0..MEMBERS).map(|_| None).collect();
        Self {
            topics,
            group: new_group(),
            programs,
            starts: 0,
            now: BEGIN,
            position: 0,
            epoch: 0,
            log: Log::default(),
            settled: 0,
        }
    }

    fn save(&mut self, is_joining: bool) {
        self.log.save(&mut self.group, is_joining);
        self.settled = self.log.0.len();
    }

    /// Appends the records about members, without a response that waits for them.
    fn note(&mut self) {
        self.log.note(&mut self.group);
    }

    /// Appends the records about members and waits until they are committed, as each response does.
    fn settle_log(&mut self) {
        self.note();
        self.settled = self.log.0.len();
    }

    fn restart(&mut self, lost: usize) {
        self.note();
        self.log.0.truncate(self.log.0.len().saturating_sub(lost).max(self.settled));
        self.group = self.log.restore(self.now);
        for topic in self.group.known_topics() {
            if self.topics.partitions(&topic).is_none() {
                self.group.forget_topic(&topic, self.now);
            }
        }
        self.settle_log();
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Join { member, topics } => self.join(*member, *topics),
            Op::Beat { member, says_owned, is_lost } => self.beat(*member, *says_owned, *is_lost),
            Op::Leave(member) => {
                if let Some(program) = self.programs[*member].take() {
                    self.save(false);
                    // The member may have expired or been replaced.
                    self.group.leave(&program.who, false, self.now).unwrap_or_default();
                    self.settle_log();
                }
            }
            Op::Away(member) => {
                if let Some(program) = self.programs[*member].take() {
                    self.save(false);
                    self.group.leave(&program.who, true, self.now).unwrap_or_default();
                    self.settle_log();
                }
            }
            Op::Kill { member, topics } => {
                self.programs[*member] = None;
                if member.is_multiple_of(2) {
                    self.join(*member, *topics);
                }
            }
            Op::Commit { member, topic, partition } => self.commit(*member, NAMES[*topic], *partition),
            Op::Topic { topic, partitions } => self.set_topic(NAMES[*topic], *partitions),
            Op::Pass(ms) => {
                self.now.steady_ms += ms;
                self.save(false);
                self.group.expire(self.now);
            }
            Op::Restart(lost) => self.restart(*lost),
        }
        self.note();
        self.check();
    }

    /// Sets the number of partitions; zero deletes the topic.
    fn set_topic(&mut self, name: &str, partitions: u32) {
        self.topics.set(name, partitions);
        // The log of the shard has the change of the topics after all records before it.
        self.settle_log();
        if partitions == 0 {
            self.group.forget_topic(&topic(name), self.now);
            for program in self.programs.iter_mut().flatten() {
                program.gone.extend(program.reads.iter().filter(|at| at.topic.as_str() == name).cloned());
            }
        }
    }

    fn join(&mut self, member: usize, topics: usize) {
        if self.programs[member].is_none() {
            self.starts += 1;
            let instance = member.is_multiple_of(2).then(|| format!("i{member}"));
            let Client { who, .. } = Client::new(&format!("m{member}-{}", self.starts), instance.as_deref());
            self.programs[member] = Some(Program { who, epoch: 0, reads: BTreeSet::new(), gone: BTreeSet::new() });
        }
        self.save(true);
        let program = self.programs[member].as_mut().expect("it runs");
        // Its membership starts again.
        program.reads.clear();
        program.gone.clear();
        let join = join_of(program.who.clone(), patterns(SUBSCRIPTIONS[topics]));
        let beat = self.group.join(join, &self.topics, self.now).expect("there is room");
        self.process_beat(member, beat, true);
    }

    fn beat(&mut self, member: usize, says_owned: bool, is_lost: bool) {
        self.save(false);
        let Some(program) = &mut self.programs[member] else {
            return;
        };
        let owned = says_owned.then_some(&program.reads);
        match self.group.beat(&program.who, program.epoch, owned, &self.topics, self.now) {
            Ok(beat) if is_lost => {
                self.group.reconcile(&program.who, self.now).expect("a member");
                self.group.answer(&program.who, beat, says_owned).expect("a member");
            }
            Ok(beat) => self.process_beat(member, beat, says_owned),
            // It was removed: it stops reading.
            Err(_) => self.programs[member] = None,
        }
    }

    fn process_beat(&mut self, member: usize, beat: u64, in_full: bool) {
        let program = self.programs[member].as_mut().expect("it runs");
        self.group.reconcile(&program.who, self.now).expect("a member");
        let earlier = self.group.answer(&program.who, beat - 1, true).expect("a member");
        assert_eq!(earlier.assignment, None, "only the last heartbeat is told something");
        let turn = self.group.answer(&program.who, beat, in_full).expect("a member");
        self.log.note(&mut self.group);
        self.settled = self.log.0.len();
        assert!(turn.epoch >= program.epoch, "a member's epoch goes backwards");
        program.epoch = turn.epoch;
        if let Some(assignment) = turn.assignment {
            program.reads = assignment.into_iter().collect();
            program.gone.retain(|at| program.reads.contains(at));
        }
    }

    fn commit(&mut self, member: usize, topic_name: &str, number: u32) {
        let Some(program) = &self.programs[member] else {
            return;
        };
        let at = format!("{topic_name}/{number}");
        let committer = Committer::Member { who: program.who.clone(), epoch: program.epoch };
        let changes = vec![change(&at, self.position)];
        let others = self.programs.iter().flatten().filter(|other| other.who != program.who);
        let is_read_by_another =
            others.filter(|other| self.is_member(other)).any(|o| o.reads.contains(&partition(&at)));
        let is_gone = program.gone.contains(&partition(&at));
        let is_its_own = self.is_member(program) && program.reads.contains(&partition(&at));
        match self.group.check_commit(&committer, &changes) {
            Ok(()) => {
                assert!(!is_read_by_another, "{at} is with another");
                assert!(!is_gone, "{at} is of a topic that was deleted");
                assert!(self.is_member(program), "{at} was committed by one that is no member");
                self.group.stage(self.position, changes);
                self.group.committed_through(self.position);
                self.position += 1;
            }
            Err(refused) => assert!(!is_its_own || is_gone, "{at}: {refused:?}"),
        }
    }

    fn is_member(&self, program: &Program) -> bool {
        self.group.members().any(|member| *member.id == program.who.member)
    }

    /// Checks the invariants that hold at any moment.
    fn check(&mut self) {
        assert!(self.group.epoch() >= self.epoch, "the epoch goes backwards");
        self.epoch = self.group.epoch();
        let mut owned: BTreeMap<TopicPartition, MemberId> = BTreeMap::new();
        for member in self.group.members() {
            for partition in member.assigned.iter().chain(member.revoking) {
                let other = owned.insert(partition.clone(), member.id.clone());
                assert_eq!(other, None, "{partition} is with {} too", member.id);
                assert_eq!(self.group.owner(partition), Some(member.id));
            }
        }
        for program in self.programs.iter().flatten().filter(|program| self.is_member(program)) {
            for partition in &program.reads {
                let owner = owned.get(partition);
                assert_eq!(owner, Some(&program.who.member), "{partition} is read by {}", program.who.member);
            }
        }
    }

    /// Continues all running programs until nothing is left to do.
    fn settle(&mut self) {
        // Programs that ended without leaving expire.
        for _ in 0..10 {
            self.now.steady_ms += 2_000;
            self.save(false);
            self.group.expire(self.now);
            (0..MEMBERS).for_each(|member| self.beat(member, true, false));
            self.check();
        }
        let expected = if self.group.members_len() == 0 { GroupState::Empty } else { GroupState::Stable };
        assert_eq!(self.group.state(), expected, "{:#?}", self.group);
        let read: Vec<&TopicPartition> = self.programs.iter().flatten().flat_map(|program| &program.reads).collect();
        let wanted: BTreeSet<TopicPartition> = self.group.partitions().collect();
        assert_eq!(read.len(), wanted.len(), "each is read once");
        assert!(read.into_iter().all(|partition| wanted.contains(partition)));
    }
}

proptest! {
    /// No two members ever have the same partition, under any sequence of operations; no removed member can commit; and
    /// in the end every partition is read.
    #[test]
    fn partitions_have_one_reader_at_any_moment_and_in_the_end(ops in ops()) {
        let mut world = World::new();
        ops.iter().for_each(|op| world.act(op));
        world.settle();
    }
}

/// Topics change while members expire: one change starts two epochs, wherever in a block it begins.
#[test]
fn a_change_may_rebalance_twice() {
    let mut topics = Topics::default();
    let mut group = new_group();
    let mut now = BEGIN;
    let save = |group: &mut Group, is_joining| {
        if let Some(saved) = group.to_save(is_joining) {
            group.saved(saved);
        }
    };
    let join = join_of(Client::new("m", None).who, patterns("a"));
    for round in 0..3000 {
        for _ in 0..1 + round % 2 {
            save(&mut group, true);
            group.join(join.clone(), &topics, now).expect("there is room");
            save(&mut group, false);
            group.leave(&join.who, false, now).expect("a member");
        }
        save(&mut group, true);
        group.join(join.clone(), &topics, now).expect("there is room");
        topics.set("a", 1 + round % 2);
        now.steady_ms += u64::from(join.session_timeout_ms);
        save(&mut group, false);
        let before = group.epoch();
        group.refresh(&topics);
        assert_eq!(group.expire(now).len(), 1);
        assert_eq!(group.epoch(), before + 2);
    }
}

/// A rule of a door is not recorded. After a restart its member has to join again, and until then or the end of its
/// session nobody else gets its partitions.
#[test]
fn members_with_a_rule_join_again_and_keep_their_partitions_until_then() {
    let mut topics = Topics::default();
    topics.set("a", 2);
    let mut group = new_group();
    let mut log = Log::default();
    let rule = || vec![Pattern::Rule(crate::pattern::Rule::new("a|b", "", |topic| topic.as_str() == "a"))];
    let clients = ["by-name", "by-rule"].map(|name| Client::new(name, None).who);
    let turn = |group: &mut Group, log: &mut Log, who: &Identity, beat: Result<u64, GroupError>| {
        let beat = beat?;
        group.reconcile(who, BEGIN)?;
        log.note(group);
        group.answer(who, beat, true).map(|turn| turn.assignment.expect("all of them"))
    };
    let join = |group: &mut Group, log: &mut Log, who: &Identity, patterns| {
        log.save(group, true);
        let beat = group.join(join_of(who.clone(), patterns), &topics, BEGIN);
        turn(group, log, who, beat).expect("joined")
    };
    assert_eq!(join(&mut group, &mut log, &clients[1], rule()).len(), 2);
    let mut group = log.restore(BEGIN);
    assert_eq!(join(&mut group, &mut log, &clients[0], patterns("a")), [], "they are still read");
    let beat = group.beat(&clients[1], 1, None, &topics, BEGIN);
    let refused = turn(&mut group, &mut log, &clients[1], beat).expect_err("its subscription is not known");
    assert_eq!(refused.reason, Reason::UnknownMember);
    assert_eq!(join(&mut group, &mut log, &clients[1], rule()).len(), 1);
    let beat = group.beat(&clients[0], group.epoch() - 1, None, &topics, BEGIN);
    assert_eq!(turn(&mut group, &mut log, &clients[0], beat).expect("a member").len(), 1);

    // It may also leave.
    let mut group = log.restore(BEGIN);
    log.save(&mut group, false);
    group.leave(&clients[1], false, BEGIN).expect("a member");
    assert_eq!(group.members_len(), 1);

    // Without a heartbeat its session ends.
    let mut group = log.restore(BEGIN);
    log.save(&mut group, false);
    let later = Now { steady_ms: BEGIN.steady_ms + 10_000, ..BEGIN };
    assert!(group.expire(later).contains(&clients[1].member));
}

/// Members that come and go while nothing can be written need no records: they would be ever more.
#[test]
fn members_without_a_record_leave_nothing_to_record() {
    let mut topics = Topics::default();
    topics.set("a", 2);
    let mut group = new_group();
    let mut log = Log::default();
    let join = |group: &mut Group, log: &mut Log, name: &str| {
        log.save(group, true);
        let who = Client::new(name, None).who;
        group.join(join_of(who.clone(), patterns("a")), &topics, BEGIN).expect("there is room");
        who
    };
    let recorded = join(&mut group, &mut log, "recorded");
    log.note(&mut group);
    for number in 0..10 {
        let who = join(&mut group, &mut log, &format!("m{number}"));
        assert_eq!(group.to_records().len(), 1);
        group.leave(&who, false, BEGIN).expect("a member");
        assert!(group.is_recorded());
    }
    log.save(&mut group, false);
    group.leave(&recorded, false, BEGIN).expect("a member");
    let records = group.to_records();
    assert!(matches!(&records[..], [OffsetsRecord::Member { saved: None, .. }]), "{records:?}");
}
