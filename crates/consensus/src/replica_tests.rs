//! Scenes of a few replicas whose messages arrive at once.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::*;

const TICK: Time = 25_000_000;
const SIZE: NonZeroU32 = NonZeroU32::MIN;

/// Replicas of a shard whose messages arrive at once, and whose saves are on disk when the test says so.
struct Group {
    replicas: BTreeMap<NodeId, Replica>,
    now: Time,
    /// Nodes that neither send nor receive.
    cut: Vec<NodeId>,
    /// Nodes whose saves wait, with the saves.
    slow: BTreeMap<NodeId, Vec<Save>>,
    /// `true` if a slow node waits only from a save on that replaces its state.
    only_installs: bool,
    roles: BTreeMap<NodeId, (Term, Role)>,
    leases: BTreeMap<NodeId, Option<Time>>,
    reads: Vec<(NodeId, ReadTicket, Index)>,
}

impl Group {
    fn new(voters: &[NodeId], nodes: &[NodeId]) -> Self {
        let founded = Log::of_founder(Members::of_voters(voters.iter().copied()));
        let start = |node: &NodeId| {
            let log = if voters.contains(node) { founded.clone() } else { Log::of_joiner() };
            (*node, Replica::start(*node, log, Settings::default(), *node, 0).expect("a replica"))
        };
        Self {
            replicas: nodes.iter().map(start).collect(),
            now: 0,
            cut: Vec::new(),
            slow: BTreeMap::new(),
            only_installs: false,
            roles: BTreeMap::new(),
            leases: BTreeMap::new(),
            reads: Vec::new(),
        }
    }

    /// Group of nodes 1 to 3, led by node 1.
    fn led() -> Self {
        let mut group = Self::new(&[1, 2, 3], &[1, 2, 3, 4]);
        group.elect(1);
        group
    }

    fn replica(&mut self, node: NodeId) -> &mut Replica {
        self.replicas.get_mut(&node).expect("a node")
    }

    fn elect(&mut self, node: NodeId) {
        self.replicas.values_mut().for_each(Replica::leader_lost);
        for _ in 0..40 {
            self.now += TICK;
            let now = self.now;
            self.replica(node).tick(now);
            self.settle();
            if self.replica(node).status().is_leader {
                return;
            }
        }
        panic!("node {node} is not elected");
    }

    /// Waits until a leader serves.
    fn serve(&mut self, node: NodeId) {
        let Some((_, Role::Leader { serves_from })) = self.roles.get(&node).copied() else {
            panic!("node {node} leads");
        };
        while self.now < serves_from {
            self.ticks(1);
        }
    }

    /// Passes ticks at all nodes.
    fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.now += TICK;
            let now = self.now;
            self.replicas.values_mut().for_each(|replica| replica.tick(now));
            self.settle();
        }
    }

    /// Delivers messages until there are none.
    fn settle(&mut self) {
        loop {
            let mut messages = Vec::new();
            let now = self.now;
            for (node, replica) in &mut self.replicas {
                let output = replica.take(now);
                self.roles.extend(output.role.map(|role| (*node, role)));
                self.leases.insert(*node, output.lease);
                self.reads.extend(output.reads.iter().map(|(ticket, index)| (*node, *ticket, *index)));
                let has_install = output.saves.iter().any(|save| save.install.is_some());
                match self.slow.get_mut(node) {
                    Some(waiting) if !self.only_installs || has_install || !waiting.is_empty() => {
                        waiting.extend(output.saves);
                    }
                    _ => output.saves.iter().for_each(|save| replica.saved(save.number)),
                }
                messages.extend(output.messages);
            }
            let is_quiet = messages.is_empty() && self.replicas.values().all(|replica| !replica.has_saved());
            if is_quiet {
                return;
            }
            for message in messages {
                if self.cut.contains(&message.from) || self.cut.contains(&message.to) {
                    continue;
                }
                let (from, to, is_install) = (message.from, message.to, matches!(message.kind, Kind::Install(_)));
                self.replica(to).receive(message, now).expect("a valid message");
                if is_install {
                    self.replica(from).installed(to, true);
                }
            }
        }
    }

    fn append(&mut self, node: NodeId) -> Position {
        let position = self.replica(node).append(SIZE).expect("a leader");
        self.settle();
        position
    }

    fn change(&mut self, node: NodeId, steps: &[Step]) {
        self.replica(node).change(Change { steps: steps.to_vec() }).expect("a possible change");
        self.settle();
    }

    fn committed(&mut self, node: NodeId) -> Index {
        self.replica(node).status().committed
    }
}

#[test]
fn a_majority_of_disks_commits_without_that_of_the_leader() {
    let mut group = Group::led();
    group.slow.insert(1, Vec::new());
    let position = group.append(1);
    assert_eq!(group.committed(1), position.index);
    assert_eq!(group.replica(1).status().applied, position.index - 1, "not on its own disk");
    group.slow.insert(2, Vec::new());
    let position = group.append(1);
    assert_eq!(group.committed(1), position.index - 1, "on one disk");
}

#[test]
fn a_late_sync_of_a_replaced_entry_counts_for_nothing() {
    let mut group = Group::led();
    let before = group.append(1);
    // Node 1 appends alone, and its disk is slow.
    group.slow.insert(1, Vec::new());
    group.cut = vec![1];
    let replaced = group.replica(1).append(SIZE).expect("a leader");
    group.settle();
    group.elect(2);
    group.cut.clear();
    group.ticks(2);
    let other = Position { term: 3, index: replaced.index };
    assert_eq!(group.replica(1).log().term_of(other.index), Some(other.term));
    let late = group.slow.get_mut(&1).expect("saves").remove(0);
    assert_eq!(late.entries[0].position, replaced);
    group.replica(1).saved(late.number);
    group.settle();
    let matched = |group: &mut Group| group.replica(2).peers()[0].matched;
    assert!(matched(&mut group) <= before.index, "the replacing entry is not on the disk of node 1");
    let last = group.slow.remove(&1).and_then(|saves| saves.last().cloned()).expect("a save");
    group.replica(1).saved(last.number);
    group.settle();
    assert!(matched(&mut group) >= other.index);
}

#[test]
fn a_leader_serves_after_the_lease_before_and_at_once_if_it_was_asked() {
    let mut group = Group::led();
    let elected = group.now;
    let (term, Role::Leader { serves_from }) = group.roles[&1] else {
        panic!("node 1 leads");
    };
    assert_eq!((term, serves_from), (2, elected + wait_after(Settings::default().lease)));
    group.ticks(1);
    let sent = group.now;
    assert_eq!(group.leases[&1], Some(sent + Settings::default().lease));
    assert_eq!(group.replica(1).transfer(2), Err(Refused::Busy), "the leader before it may have a lease");
    group.serve(1);
    group.replica(1).transfer(2).expect("a voter");
    group.settle();
    let now = group.now;
    assert_eq!(group.roles[&2], (3, Role::Leader { serves_from: now }), "asked");
    assert_eq!(group.leases[&1], None);
}

#[test]
fn a_lease_ends_before_the_message_that_lets_another_lead() {
    let mut group = Group::led();
    group.serve(1);
    assert!(group.leases[&1].is_some());
    group.replica(1).transfer(2).expect("a voter");
    let now = group.now;
    let output = group.replica(1).take(now);
    assert!(output.messages.iter().any(|message| message.kind == Kind::Lead));
    assert_eq!(output.lease, None);
    // The message is lost, and the leader goes on for a while: without a lease, for the message may still arrive.
    group.ticks(5);
    assert_eq!((group.replica(1).status().is_leader, group.leases[&1]), (true, None));
    let term = group.replica(1).status().term;
    for _ in 0..30 {
        group.ticks(1);
        assert!(group.replica(1).status().term > term || group.leases[&1].is_none(), "a lease in the same term");
    }
}

#[test]
fn a_leader_alone_has_no_lease_and_steps_down() {
    let mut group = Group::led();
    group.ticks(1);
    group.cut = vec![1];
    let lease = group.leases[&1].expect("a lease");
    group.ticks(11);
    assert_eq!(group.leases[&1].filter(|until| *until > lease), None);
    group.ticks(10);
    assert!(!group.replica(1).status().is_leader);
    assert_eq!(group.replica(1).append(SIZE), Err(Refused::NotLeader { leader: None }));
}

#[test]
fn a_read_is_confirmed_by_a_majority_only() {
    let mut group = Group::led();
    let position = group.append(1);
    let ticket = group.replica(1).read().expect("a leader");
    group.settle();
    assert_eq!(group.reads, [(1, ticket, position.index)]);
    group.cut = vec![2, 3];
    group.replica(1).read().expect("it does not know yet");
    group.ticks(3);
    assert_eq!(group.reads.len(), 1);
    assert_eq!(group.replica(2).read(), Err(Refused::NotLeader { leader: Some(1) }));
}

#[test]
fn a_leader_that_removes_itself_steps_down() {
    let mut group = Group::led();
    group.change(1, &[Step::Remove(1)]);
    assert!(!group.replica(1).status().is_leader);
    assert_eq!(group.replica(1).stopped(), None);
    group.elect(2);
    assert_eq!(group.replica(2).members(), &Members::of_voters([2, 3]));
}

#[test]
fn a_lone_voter_waits_for_its_disk_before_it_elects_itself() {
    let mut group = Group::new(&[1, 2], &[1, 2]);
    group.elect(1);
    // Node 2 leaves while what it has is not on its disk, and the other way round.
    group.serve(1);
    group.slow.insert(2, Vec::new());
    group.append(1);
    group.replica(1).transfer(2).expect("a voter");
    group.settle();
    group.slow.remove(&2);
    let now = group.now;
    for node in [1, 2] {
        group.replica(node).take(now);
    }
    group.ticks(30);
    assert!(group.replicas.values().all(|replica| replica.stopped().is_none()));
}

#[test]
fn a_lone_voter_leads_when_its_vote_is_on_disk() {
    let mut group = Group::new(&[1], &[1, 2]);
    group.slow.insert(1, Vec::new());
    group.ticks(2 * Settings::default().election_ticks);
    assert!(!group.replica(1).status().is_leader);
    assert_eq!(group.replica(1).append(SIZE), Err(Refused::NotLeader { leader: None }));
    assert_eq!(group.roles.get(&1).map(|(_, role)| *role), Some(Role::Candidate));
    let saves = group.slow.remove(&1).expect("saves");
    group.replica(1).saved(saves[saves.len() - 1].number);
    group.settle();
    assert!(group.replica(1).status().is_leader);
    let position = group.append(1);
    assert_eq!(group.committed(1), position.index);
}

#[test]
fn a_joiner_installs_the_state_and_then_follows() {
    let mut group = Group::led();
    group.append(1);
    let applied = group.replica(1).status().applied;
    group.replica(1).compact(applied);
    group.change(1, &[Step::AddLearner(4)]);
    group.ticks(3);
    let position = group.append(1);
    group.ticks(2);
    let status = group.replica(4).status();
    assert_eq!((status.committed, status.leader), (position.index, Some(1)));
    assert!(group.replica(4).log().base().position.index >= applied, "the log before is not there");
    group.change(1, &[Step::AddVoter(4)]);
    assert_eq!(group.replica(4).members(), &Members::of_voters([1, 2, 3, 4]));
}

#[test]
fn while_the_state_is_replaced_nothing_reaches_the_engine() {
    let mut group = Group::led();
    group.slow.insert(4, Vec::new());
    group.only_installs = true;
    let applied = group.replica(1).status().applied;
    group.replica(1).compact(applied);
    group.change(1, &[Step::AddVoter(4)]);
    // Far beyond an election.
    group.ticks(60);
    assert_eq!(group.replica(4).stopped(), None);
    let saves = group.slow.remove(&4).expect("saves");
    assert!(saves.iter().any(|save| save.install.is_some()));
    group.replica(4).saved(saves[saves.len() - 1].number);
    group.ticks(4);
    let committed = group.committed(1);
    assert_eq!(group.committed(4), committed);
}

#[test]
fn several_members_change_together() {
    let mut group = Group::led();
    group.change(1, &[Step::AddVoter(4), Step::Remove(3)]);
    group.ticks(3);
    assert_eq!(group.replica(1).members(), &Members::of_voters([1, 2, 4]));
    assert_eq!(group.replica(4).members(), &Members::of_voters([1, 2, 4]));
}

#[test]
fn impossible_changes_are_refused_with_the_reason() {
    let mut group = Group::led();
    let mut refused = |steps: &[Step]| {
        let change = Change { steps: steps.to_vec() };
        match group.replica(1).change(change) {
            Err(Refused::ImpossibleChange(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&[]), "the change has no steps");
    let many: Vec<Step> = (1..=STEPS_MAX as u64 + 1).map(Step::AddVoter).collect();
    assert_eq!(refused(&many), "the change has 65 steps, at most 64 are possible");
    assert_eq!(refused(&[Step::AddVoter(0)]), "node 0 is 0 or in two steps");
    assert_eq!(refused(&[Step::AddVoter(4), Step::Remove(4)]), "node 4 is 0 or in two steps");
    assert_eq!(refused(&[Step::Remove(1), Step::Remove(2), Step::AddLearner(3)]), "no voter would remain");
    group.cut = vec![2, 3];
    group.change(1, &[Step::AddLearner(4)]);
    let pending = group.replica(1).change(Change { steps: vec![Step::Remove(4)] });
    assert_eq!(pending, Err(Refused::ChangePending));
}

#[test]
fn a_node_that_lost_its_log_is_told_so() {
    let mut group = Group::led();
    let position = group.append(1);
    let empty = Log::of_founder(Members::of_voters([1, 2, 3]));
    let mut forgetful = Replica::start(2, empty, Settings::default(), 2, 0).expect("a replica");
    let beat = Kind::Beat { commit: position.index, sent: 1, read: None };
    let received = forgetful.receive(Message { from: 1, to: 2, term: 2, kind: beat }, 0);
    assert_eq!(received, Err(Refused::Lost { has: 1, committed: position.index }));
    assert_eq!(forgetful.stopped(), None);
}

#[test]
fn messages_that_no_correct_node_sends_are_refused() {
    let mut group = Group::led();
    let kind = Kind::Appended { index: 1, commit: 1, hint: None };
    for (from, to, term) in [(2, 3, 2), (1, 1, 2), (0, 1, 2), (2, 1, 0)] {
        let message = Message { from, to, term, kind: kind.clone() };
        let refused = group.replica(1).receive(message, 0);
        assert!(matches!(refused, Err(Refused::Inconsistent(_))), "{from} {to} {term}");
    }
    // An answer of a node that is no member has no effect.
    let stranger = Message { from: 9, to: 1, term: 2, kind };
    assert_eq!(group.replica(1).receive(stranger, 0), Ok(()));
    assert_eq!(group.replica(1).stopped(), None);
}

#[test]
fn a_contradiction_stops_the_replica_and_not_the_program() {
    let mut group = Group::led();
    let stopped = Refused::Stopped("entry 3 contradicts entry 3".to_owned());
    let panicked: Result<(), _> = group.replica(1).run(|_| panic!("entry {} contradicts entry {}", 3, 3));
    assert_eq!(panicked, Err(stopped.clone()));
    let now = group.now;
    let replica = group.replica(1);
    assert_eq!(replica.stopped(), Some("entry 3 contradicts entry 3"));
    assert_eq!(replica.append(SIZE), Err(stopped.clone()));
    assert_eq!(replica.read(), Err(stopped.clone()));
    let kind = Kind::Appended { index: 1, commit: 1, hint: None };
    assert_eq!(replica.receive(Message { from: 2, to: 1, term: 2, kind }, now), Err(stopped));
    replica.tick(now + TICK);
    let output = replica.take(now + TICK);
    assert!(output.messages.is_empty() && output.saves.is_empty() && output.lease.is_none());
}

#[test]
fn without_its_leader_a_node_asks_for_votes_soon() {
    let mut group = Group::led();
    group.ticks(2);
    group.cut = vec![1];
    for node in [2, 3] {
        group.replica(node).leader_lost();
    }
    group.ticks(EARLY_TICKS_MIN + EARLY_TICKS_SPREAD as usize);
    let leads = [2, 3].map(|node| group.replica(node).status().is_leader);
    assert!(leads.contains(&true), "before {} ticks", Settings::default().election_ticks);
    group.replica(1).leader_lost();
    assert!(group.replica(1).status().is_leader, "a leader has no leader to lose");
}

#[test]
fn a_leader_whose_successor_does_not_take_over_resigns() {
    let mut group = Group::led();
    group.serve(1);
    let term = group.replica(1).status().term;
    group.replica(1).transfer(2).expect("a voter");
    // The message that asks node 2 to lead is lost.
    let now = group.now;
    group.replica(1).take(now);
    let leader = |group: &mut Group| (1..=3).find(|node| group.replica(*node).status().is_leader);
    let mut ticks = 0;
    while leader(&mut group).is_none_or(|node| group.replica(node).status().term == term) {
        group.ticks(1);
        ticks += 1;
        assert!(ticks < 100, "nobody leads in a later term");
    }
    let leader = leader(&mut group).expect("a leader");
    group.serve(leader);
    group.ticks(2);
    assert!(group.leases[&leader].is_some(), "node {leader} leads and may not serve");
}

#[test]
fn a_voter_that_is_alone_leads_again_after_it_has_resigned() {
    let mut group = Group::new(&[1], &[1]);
    group.elect(1);
    let term = group.replica(1).status().term;
    // As after a transfer whose target was removed from the group.
    group.replica(1).lease.give_up();
    group.ticks(60);
    let status = group.replica(1).status();
    assert!(status.is_leader && status.term > term, "{status:?}");
    group.serve(1);
    group.ticks(2);
    assert!(group.leases[&1].is_some());
    let later = group.replica(1).status().term;
    group.ticks(60);
    assert_eq!(group.replica(1).status().term, later, "it stays");
}
