//! Scripts for consumer groups (`testdata/groups/*.txt`), assignors against invariants, and records.
//!
//! The commands of the scripts:
//!
//! - `group`: creates a group, at time 0; topics stay
//! - `topic NAME N`: sets the number of partitions of a topic to N; `delete NAME`
//! - `join M topics=A,B [instance=I [yields=1]] [assignor=range] [session=MS] [rebalance=MS]`: prints the response, the
//!   epoch and, if it is included, the member's assignment
//! - `beat M [owns=A/0,A/1|none|told] [epoch=N] [instance=I]`: a heartbeat; `told` is the assignment received last
//! - `topics M A,B`: changes the subscription; `session M MS`: changes the session timeout
//! - `leave M`, `away M`
//! - `settle`: all members that are not away send heartbeats until nothing changes; prints the state
//! - `at MS`: sets the time and prints expired members; `deadline`: time of the next expiry
//! - `commit M A/0:5 [epoch=N]`, `outsider A/0:5`: staged at a position of the log; `safe N`: the log is durable up to
//!   there; `forget A`: the topic was deleted
//! - `committed`, `state`, `expired RETENTION_MS`
//! - `restart`: restores the group from the log; `lose`: forgets the clients

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proptest::prelude::*;

use super::assign::Strategy;
use super::index::{Index, Subscriber};
use super::*;
use crate::ids::{Offset, TopicPartition};
use crate::pattern::Pattern;
use crate::script::{self, Command};

#[derive(Clone, Debug, Default)]
pub(super) struct Topics {
    version: u64,
    partitions: BTreeMap<TopicName, u32>,
    /// Names that have changed, each with its version.
    changed: Vec<(u64, TopicName)>,
    pub(super) permissions: u64,
}

impl Catalog for Topics {
    fn version(&self) -> u64 {
        self.version
    }

    fn permissions(&self) -> u64 {
        self.permissions
    }

    fn changed_since(&self, version: u64) -> Option<Vec<TopicName>> {
        let reaches_back = self.changed.first().is_some_and(|(first, _)| *first <= version + 1);
        let later = self.changed.iter().filter(|(at, _)| *at > version).map(|(_, name)| name.clone());
        reaches_back.then(|| later.collect())
    }

    fn count(&self) -> usize {
        self.partitions.len()
    }

    fn partitions(&self, topic: &TopicName) -> Option<u32> {
        self.partitions.get(topic).copied()
    }

    fn topics(&self) -> Vec<(TopicName, u32)> {
        let shown = self.partitions.iter().filter(|(name, _)| !name.is_internal());
        shown.map(|(name, partitions)| (name.clone(), *partitions)).collect()
    }
}

impl Topics {
    /// Forgets what has changed until now.
    pub(super) fn forget(&mut self) {
        self.changed.clear();
    }

    pub(super) fn set(&mut self, name: &str, partitions: u32) {
        self.version += 1;
        let name = topic(name);
        self.changed.push((self.version, name.clone()));
        match partitions {
            0 => drop(self.partitions.remove(&name)),
            n => drop(self.partitions.insert(name, n)),
        }
    }
}

pub(super) fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a topic")
}

pub(super) fn patterns(names: &str) -> Vec<Pattern> {
    names.split(',').map(|name| Pattern::parse(name).expect("a pattern")).collect()
}

pub(super) fn partition(text: &str) -> TopicPartition {
    let (name, partition) = text.split_once('/').expect("TOPIC/PARTITION");
    TopicPartition { topic: topic(name), partition: partition.parse().expect("a partition") }
}

pub(super) fn show(partitions: impl IntoIterator<Item = impl fmt::Display>) -> String {
    partitions
        .into_iter()
        .fold(String::new(), |text, p| if text.is_empty() { p.to_string() } else { text + " " + &p.to_string() })
}

/// State of a member at its client.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub who: Identity,
    pub epoch: u32,
    pub told: BTreeSet<TopicPartition>,
}

impl Client {
    pub(super) fn new(name: &str, instance: Option<&str>) -> Self {
        let member = MemberId::parse(name).expect("an id");
        let instance = instance.map(|instance| InstanceId::parse(instance).expect("an id"));
        Self { who: Identity { member, instance }, epoch: 0, told: BTreeSet::new() }
    }
}

pub(super) fn join_of(who: Identity, topics: Vec<Pattern>) -> Join {
    Join {
        who,
        client: "a program".into(),
        host: "here".into(),
        topics,
        assignor: Assignor::Uniform,
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 5_000,
        takes_over: true,
    }
}

/// Records of a group in the topic of offsets.
#[derive(Default)]
pub(super) struct Log(pub Vec<OffsetsRecord>);

impl Log {
    /// Records what has to be in the log before the next change.
    pub(super) fn save(&mut self, group: &mut Group, is_joining: bool) {
        if let Some(saved) = group.to_save(is_joining) {
            group.saved(saved);
            assert_eq!(group.to_save(is_joining), None, "once is enough");
            self.0.push(OffsetsRecord::Group { group: group.name().clone(), saved: Some(saved) });
        }
    }

    /// Records what is new after a change.
    pub(super) fn note(&mut self, group: &mut Group) {
        if !group.is_recorded() {
            self.0.extend(group.to_records());
            group.recorded();
            assert!(group.is_recorded(), "once is enough");
        }
    }

    pub(super) fn restore(&self, now: Now) -> Group {
        let mut group = Group::new(new_group().name().clone(), now);
        for record in &self.0 {
            match OffsetsRecord::decode(&record.key(), record.value().as_deref()).expect("what was encoded") {
                OffsetsRecord::Offset { change, .. } => group.restore_offset(change),
                OffsetsRecord::Group { saved, .. } => group.restore(saved.expect("never deleted here")),
                OffsetsRecord::Generation { saved, .. } => group.restore_generation(saved, now),
                OffsetsRecord::Member { member, saved, .. } => group.restore_member(member, saved),
            }
        }
        group.restored(now);
        group
    }
}

struct Script {
    topics: Topics,
    group: Group,
    clients: BTreeMap<String, Client>,
    now: Now,
    position: Offset,
    log: Log,
}

pub(super) const BEGIN: Now = Now { steady_ms: 0, unix_ms: 1_000_000 };

pub(super) fn new_group() -> Group {
    Group::new(GroupName::parse("g").expect("a name"), BEGIN)
}

impl Script {
    fn new() -> Self {
        Self {
            topics: Topics::default(),
            group: new_group(),
            clients: BTreeMap::new(),
            now: BEGIN,
            position: 0,
            log: Log::default(),
        }
    }

    fn run(&mut self, line: &str) -> String {
        let text = self.run_command(&Command::parse(line));
        self.log.note(&mut self.group);
        text
    }

    fn run_command(&mut self, command: &Command<'_>) -> String {
        match command.word(0) {
            "group" => {
                *self = Self { topics: self.topics.clone(), ..Self::new() };
                return String::new();
            }
            "topic" => self.topics.set(command.word(1), command.number(2) as u32),
            "delete" => self.topics.set(command.word(1), 0),
            "state" => return self.state(),
            "at" => {
                let steady_ms: u64 = command.number(1);
                self.now = Now { steady_ms, unix_ms: BEGIN.unix_ms + steady_ms };
                self.log.save(&mut self.group, false);
                let expired = self.group.expire(self.now);
                return if expired.is_empty() { String::new() } else { format!("expired {}\n", show(expired)) };
            }
            "deadline" => return format!("{:?}\n", self.group.next_deadline_ms()),
            "expired" => {
                let retention_ms = command.number(1);
                return format!("{}\n", if self.group.is_expired(retention_ms, self.now) { "yes" } else { "no" });
            }
            "restart" => self.group = self.log.restore(self.now),
            "lose" => self.clients.clear(),
            "settle" => {
                let names: Vec<String> = self.clients.keys().cloned().collect();
                for _ in 0..3 {
                    for name in &names {
                        let away = self.group.members().any(|m| m.id.as_str() == name && m.state == MemberState::Away);
                        if !away && self.run(&format!("beat {name} owns=told")).contains("UnknownMember") {
                            self.clients.remove(name);
                        }
                    }
                }
                return self.state();
            }
            "commit" | "outsider" | "forget" | "safe" | "committed" => return self.run_offsets(command),
            _ => return self.run_member(command).unwrap_or_else(|refused| show_refusal(&refused)),
        }
        String::new()
    }

    fn run_member(&mut self, command: &Command<'_>) -> Result<String, GroupError> {
        let name = command.word(1).to_owned();
        let instance = command.named("instance");
        let mut client = self.clients.get(&name).cloned().unwrap_or_else(|| Client::new(&name, instance));
        let mut is_full = false;
        let beat;
        self.log.save(&mut self.group, command.word(0) == "join");
        match command.word(0) {
            "join" => {
                client = Client::new(&name, instance);
                let join = Join {
                    assignor: command.named("assignor").map_or(Ok(Assignor::Uniform), |name| name.parse())?,
                    session_timeout_ms: command.named_number("session").unwrap_or(10_000) as u32,
                    rebalance_timeout_ms: command.named_number("rebalance").unwrap_or(5_000) as u32,
                    takes_over: command.named("yields").is_none(),
                    ..join_of(client.who.clone(), patterns(command.named("topics").expect("join wants topics=")))
                };
                beat = self.group.join(join, &self.topics, self.now)?;
            }
            "beat" => {
                let owned: Option<BTreeSet<TopicPartition>> = command.named("owns").map(|owns| match owns {
                    "none" => BTreeSet::new(),
                    "told" => client.told.clone(),
                    list => list.split(',').map(partition).collect(),
                });
                is_full = owned.is_some();
                let epoch = command.named_number("epoch").map_or(client.epoch, |epoch| epoch as u32);
                beat = self.group.beat(&client.who, epoch, owned.as_ref(), &self.topics, self.now)?;
            }
            "topics" => {
                self.group.resubscribe(&client.who, client.epoch, patterns(command.word(2)), &self.topics)?;
                beat = self.group.beat(&client.who, client.epoch, None, &self.topics, self.now)?;
            }
            "session" => {
                let timeout_ms = command.number(2) as u32;
                self.group.set_session_timeout(&client.who, client.epoch, timeout_ms)?;
                return Ok(String::new());
            }
            "leave" | "away" => {
                self.group.leave(&client.who, command.word(0) == "away", self.now)?;
                return Ok(String::new());
            }
            other => panic!("no command '{other}'"),
        }
        let has_news = self.group.reconcile(&client.who, self.now)?;
        let turn = self.group.answer(&client.who, beat, is_full)?;
        assert!(turn.assignment.is_some() == (has_news || is_full));
        client.epoch = turn.epoch;
        let mut text = format!("epoch {}", turn.epoch);
        if let Some(assignment) = turn.assignment {
            write!(text, ": {}", if assignment.is_empty() { "nothing".into() } else { show(&assignment) })
                .expect("a string takes all");
            client.told = assignment.into_iter().collect();
        }
        self.clients.insert(name, client);
        Ok(text + "\n")
    }

    fn run_offsets(&mut self, command: &Command<'_>) -> String {
        let changes = |words: &[&str]| -> Vec<Change> {
            let pairs = words.iter().filter_map(|pair| pair.split_once(':'));
            pairs.map(|(at, offset)| change(at, offset.parse().expect("an offset"))).collect()
        };
        let (committer, changes) = match command.word(0) {
            "safe" => {
                self.group.committed_through(command.number(1));
                return String::new();
            }
            "committed" => {
                let committed = self.group.committed().iter();
                let text = show(committed.map(|(at, committed)| format!("{at}={}", committed.offset)));
                return format!("{}\n", if text.is_empty() { "nothing" } else { &text });
            }
            "forget" => {
                let tombstones = self.group.tombstones(Some(&topic(command.word(1))));
                let text = show(tombstones.iter().map(|change| &change.partition));
                let records: Vec<OffsetsRecord> = tombstones.into_iter().map(|change| self.record(change)).collect();
                self.log.0.extend(records);
                self.group.forget_topic(&topic(command.word(1)), self.now);
                return if text.is_empty() { "nothing\n".into() } else { text + "\n" };
            }
            "outsider" => (Committer::Outsider, changes(&command.words[1..])),
            _ => {
                self.log.save(&mut self.group, false);
                self.group.refresh(&self.topics);
                let client = &self.clients[command.word(1)];
                let epoch = command.named_number("epoch").map_or(client.epoch, |epoch| epoch as u32);
                (Committer::Member { who: client.who.clone(), epoch }, changes(&command.words[2..]))
            }
        };
        if let Err(refused) = self.group.check_commit(&committer, &changes) {
            return show_refusal(&refused);
        }
        self.log.0.extend(changes.iter().map(|change| self.record(change.clone())).collect::<Vec<_>>());
        self.group.stage(self.position, changes);
        self.position += 1;
        format!("staged at {}\n", self.position - 1)
    }

    fn record(&self, change: Change) -> OffsetsRecord {
        OffsetsRecord::Offset { group: self.group.name().clone(), change }
    }

    fn state(&self) -> String {
        let group = &self.group;
        let mut text = format!("{:?} at epoch {}\n", group.state(), group.epoch());
        for member in group.members() {
            write!(text, "{}", member.id).expect("a string takes all");
            if let Some(instance) = member.instance {
                write!(text, " ({instance})").expect("a string takes all");
            }
            let assigned = if member.assigned.is_empty() { "nothing".into() } else { show(member.assigned) };
            write!(text, " {:?} at {}: {assigned}", member.state, member.epoch).expect("a string takes all");
            if !member.revoking.is_empty() {
                write!(text, ", revoking {}", show(member.revoking)).expect("a string takes all");
            }
            text += "\n";
        }
        text
    }
}

pub(super) fn change(at: &str, offset: Offset) -> Change {
    let committed = Committed { offset, leader_epoch: NO_LEADER_EPOCH, metadata: "".into(), committed_ms: 0 };
    Change { partition: partition(at), committed: Some(committed) }
}

fn show_refusal(refused: &GroupError) -> String {
    format!("{:?}: {}\n", refused.reason, refused.error)
}

#[test]
fn scripts() {
    script::check("groups", Script::new, Script::run);
}

fn ids(count: usize) -> Vec<MemberId> {
    (0..count).map(|i| MemberId::parse(&format!("m{i:03}")).expect("an id")).collect()
}

/// Assigns the partitions of topics to members, each of which subscribes to some by name.
pub(super) fn assign(
    strategy: Strategy,
    topics: &BTreeMap<TopicName, u32>,
    members: &[(&MemberId, Vec<&TopicName>)],
    before: &Assignment,
) -> Assignment {
    let catalog = Topics { version: 1, partitions: topics.clone(), ..Topics::default() };
    let subscriber = |(id, topics): &(&MemberId, Vec<&TopicName>)| Subscriber {
        id: Clone::clone(id),
        instance: None,
        topics: topics.iter().map(|topic| Pattern::Topic(Clone::clone(topic))).collect(),
    };
    let members: Vec<Subscriber> = members.iter().map(subscriber).collect();
    let mut index = Index::default();
    let changes = index.changes(&members, Some(&catalog));
    index.update(&members, changes, Some(&catalog));
    strategy.assign(&index, &members, before)
}

/// Assigns the partitions of a topic to members that all subscribe to it.
fn assign_all(ids: &[MemberId], partitions: u32, before: &Assignment) -> Assignment {
    let name = topic("t");
    let members: Vec<_> = ids.iter().map(|id| (id, vec![&name])).collect();
    assign(Strategy::Divide(Assignor::Uniform), &[(name.clone(), partitions)].into(), &members, before)
}

/// Counts the partitions that moved to another member although their previous owner is still a member.
fn moves(ids: &[MemberId], before: &Assignment, after: &Assignment) -> usize {
    ids.iter().filter_map(|id| Some(before.get(id)?.difference(&after[id]).count())).sum()
}

proptest! {
    /// Shares differ by one at most, and no partition moves unnecessarily.
    #[test]
    fn uniform_moves_as_little_as_it_can(
        owners in prop::collection::vec(prop::option::of(0usize..12), 0..60),
        count in 1usize..12,
    ) {
        let all = ids(12);
        let mut before = Assignment::new();
        for (partition, owner) in owners.iter().enumerate().filter_map(|(p, owner)| Some((p, (*owner)?))) {
            let partition = TopicPartition { topic: topic("t"), partition: partition as u32 };
            before.entry(all[owner].clone()).or_default().insert(partition);
        }
        let after = assign_all(&all[..count], owners.len() as u32, &before);
        let share = owners.len() / count;
        let extra = owners.len() % count;
        let mut had: Vec<usize> = all[..count].iter().map(|id| before.get(id).map_or(0, BTreeSet::len)).collect();
        had.sort_unstable_by(|a, b| b.cmp(a));
        let fewest: usize =
            had.iter().enumerate().map(|(i, had)| had.saturating_sub(share + usize::from(i < extra))).sum();
        prop_assert_eq!(moves(&all[..count], &before, &after), fewest);
        prop_assert!(after.values().all(|has| has.len() == share || has.len() == share + 1));
        prop_assert_eq!(after.values().flatten().collect::<BTreeSet<_>>().len(), owners.len());
        prop_assert_eq!(&assign_all(&all[..count], owners.len() as u32, &after), &after, "nothing moves twice");
    }

    /// A joining member gets its share, and the others exchange nothing among themselves; when a member leaves, the
    /// others keep all of theirs.
    #[test]
    fn a_join_and_a_leave_move_only_their_share(count in 1usize..12, partitions in 0u32..60) {
        let all = ids(count + 1);
        let before = assign_all(&all[..count], partitions, &Assignment::new());
        let joined = assign_all(&all, partitions, &before);
        prop_assert_eq!(moves(&all, &before, &joined), joined[&all[count]].len());
        prop_assert_eq!(joined[&all[count]].len(), partitions as usize / (count + 1));
        let left = assign_all(&all[..count], partitions, &joined);
        prop_assert_eq!(moves(&all[..count], &joined, &left), 0);
    }

    /// With any subscriptions, both assignors give every partition to exactly one member that subscribes to its topic,
    /// and no move to a member with two fewer partitions is possible.
    #[test]
    fn every_partition_has_one_owner_that_subscribes(
        partitions in prop::collection::vec(0u32..9, 1..5),
        subscriptions in prop::collection::vec(prop::collection::btree_set(0usize..4, 0..4), 1..7),
        earlier in prop::collection::vec(prop::collection::btree_set(0usize..4, 0..4), 1..7),
    ) {
        let names: Vec<TopicName> = (0..4).map(|i| topic(&format!("t{i}"))).collect();
        let topics: BTreeMap<TopicName, u32> = names.iter().cloned().zip(partitions.iter().copied()).collect();
        let all = ids(7);
        for assignor in Assignor::ALL {
            let mut before = Assignment::new();
            for subscriptions in [&earlier, &subscriptions] {
                let members: Vec<(&MemberId, Vec<&TopicName>)> = all
                    .iter()
                    .zip(subscriptions)
                    .map(|(id, topics)| (id, topics.iter().map(|topic| &names[*topic]).collect()))
                    .collect();
                let after = assign(Strategy::Divide(assignor), &topics, &members, &before);
                let reads =
                    |id: &MemberId, topic| members.iter().any(|(member, of)| *member == id && of.contains(&topic));
                for (topic, count) in &topics {
                    for partition in 0..*count {
                        let partition = TopicPartition { topic: topic.clone(), partition };
                        let owners: Vec<&MemberId> =
                            after.iter().filter(|(_, has)| has.contains(&partition)).map(|(id, _)| id).collect();
                        let is_wanted = members.iter().any(|(_, topics)| topics.contains(&topic));
                        prop_assert_eq!(owners.len(), usize::from(is_wanted), "{}", partition);
                        prop_assert!(owners.iter().all(|owner| reads(owner, topic)));
                        if assignor == Assignor::Uniform && is_wanted {
                            let most = after[owners[0]].len();
                            let fewest = members.iter().filter(|m| m.1.contains(&topic)).map(|m| after[m.0].len());
                            prop_assert!(most <= fewest.min().unwrap_or(most) + 1, "{}", partition);
                        }
                    }
                }
                before = after;
            }
        }
    }

    /// Records of the topic of offsets are read as they were written, and anything else is refused.
    #[test]
    fn records_are_read_as_they_were_written(
        group in "[^\\p{Cc}]{1,20}",
        offset in prop::option::of((any::<u64>(), any::<i32>(), any::<u64>(), ".{0,20}")),
        saved in prop::option::of((any::<u32>(), prop::option::of(0..u64::MAX))),
        partition in any::<u32>(),
        noise in prop::collection::vec(any::<u8>(), 0..40),
        cut in 0usize..80,
    ) {
        let group = GroupName::parse(&group).expect("a name");
        let committed = offset.map(|(offset, leader_epoch, committed_ms, metadata)| Committed {
            offset, leader_epoch, committed_ms, metadata: metadata.into(),
        });
        let change = Change { partition: TopicPartition { topic: topic("t"), partition }, committed };
        let saved = saved.map(|(epoch_bound, empty_since_ms)| SavedGroup { epoch_bound, empty_since_ms });
        let generation = saved.map(|saved| SavedGeneration {
            number: saved.epoch_bound,
            protocol_type: "consumer".into(),
            protocol: "range".into(),
            leader: Some(MemberId::parse("m1").expect("an id")),
            members: ["m1", "m2"].map(|name| saved_member(name, partition, &noise)).into(),
        });
        for record in [
            OffsetsRecord::Offset { group: group.clone(), change },
            OffsetsRecord::Group { group: group.clone(), saved },
            OffsetsRecord::Generation { group: group.clone(), saved: generation },
            OffsetsRecord::Member {
                group,
                member: MemberId::parse("m1").expect("an id"),
                saved: saved.map(|saved| membership(saved.epoch_bound, partition, &noise)),
            },
        ] {
            let key = record.key();
            let value = record.value();
            prop_assert_eq!(OffsetsRecord::decode(&key, value.as_deref()), Ok(record));
            prop_assert!(OffsetsRecord::decode(&key[..cut % key.len()], value.as_deref()).is_err());
            if let Some(value) = &value {
                prop_assert!(OffsetsRecord::decode(&key, Some(&value[..cut % value.len()])).is_err());
                let longer = [&value[..], &[0]].concat();
                prop_assert!(OffsetsRecord::decode(&key, Some(&longer)).is_err());
            }
            // Any bytes are decoded or refused.
            drop(OffsetsRecord::decode(&noise, value.as_deref()));
            drop(OffsetsRecord::decode(&key, Some(&noise)));
        }
    }
}

/// Returns a member whose optional fields are set if the partition is odd.
fn saved_member(name: &str, partition: u32, bytes: &[u8]) -> SavedMember {
    let is_known = partition % 2 == 1;
    SavedMember {
        id: MemberId::parse(name).expect("an id"),
        instance: is_known.then(|| InstanceId::parse(name).expect("an id")),
        client: "a program".into(),
        host: String::new(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: partition,
        protocols: vec![Protocol { name: "range".into(), metadata: bytes.to_vec().into() }],
        topics: is_known.then(|| patterns("a,b")),
        reads: ["t", "t.u"]
            .iter()
            .flat_map(|name| [partition, 7].map(|partition| TopicPartition { topic: topic(name), partition }))
            .collect(),
        assignment: bytes.to_vec().into(),
    }
}

/// Returns a member whose optional fields are set if the partition is odd.
fn membership(epoch: u32, number: u32, bytes: &[u8]) -> SavedMembership {
    let SavedMember { instance, client, host, protocols, reads, .. } = saved_member("m1", number, bytes);
    let topics = instance.is_none().then(|| patterns("a,b.*"));
    SavedMembership {
        classic: instance.is_some().then(|| ("consumer".into(), protocols)),
        is_away: instance.is_some(),
        instance,
        client,
        host,
        topics,
        assignor: Assignor::Range,
        session_timeout_ms: number,
        rebalance_timeout_ms: 5_000,
        epoch,
        shown_epoch: epoch / 2,
        gone: [partition("t.v/1")].into(),
        revoking: [partition("t.v/0"), partition("t.v/1")].into(),
        assigned: reads,
    }
}

#[test]
fn names_are_bounded_text() {
    for good in ["g", "a group/of Ä", &"x".repeat(255)] {
        assert!(GroupName::parse(good).is_ok(), "{good}");
    }
    for bad in ["", "a\nb", &"x".repeat(256)] {
        assert_eq!(MemberId::parse(bad).map_err(|e| e.kind), Err(ErrorKind::Invalid), "{bad}");
    }
    for assignor in Assignor::ALL {
        assert_eq!(Assignor::from_code(assignor as u8), Some(assignor));
        assert_eq!(assignor.name().parse(), Ok(assignor));
    }
}
