//! Assignors: pure functions of the topics, the members and the previous assignment.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::MemberId;
use crate::error::{Error, Result};
use crate::ids::{PartitionId, TopicName, TopicPartition};
use crate::pattern::Pattern;

/// Partitions of each member.
pub type Assignment = BTreeMap<MemberId, BTreeSet<TopicPartition>>;

/// Strategy by which partitions are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Assignor {
    /// Shares that are as equal as possible, with as few moves as possible.
    #[default]
    Uniform = 0,
    /// Contiguous ranges of each topic, in the order of the members, so that partitions with the same number in topics
    /// of the same size belong to the same member.
    Range = 1,
}

impl Assignor {
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|assignor| *assignor as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// Returns the new target. Invariant: every partition that a member subscribes to has exactly one owner, which
    /// subscribes to it.
    pub(super) fn assign(
        self,
        topics: &BTreeMap<TopicName, u32>,
        members: &[Subscriber<'_>],
        before: &Assignment,
    ) -> Assignment {
        match self {
            Self::Uniform => Uniform::new(topics, members).assign(before),
            Self::Range => range(topics, members),
        }
    }
}

impl FromStr for Assignor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|assignor| assignor.name() == text)
            .ok_or_else(|| Error::invalid(format!("an assignor is uniform or range, not '{text}'")))
    }
}

/// Member as assignors see it.
pub(super) struct Subscriber<'a> {
    pub id: &'a MemberId,
    /// Key by which `range` orders members: an instance id if there is one, since that survives a restart.
    pub rank: &'a str,
    pub topics: BTreeSet<TopicName>,
}

impl<'a> Subscriber<'a> {
    /// Creates a subscriber to those of `topics` that the patterns match.
    pub(super) fn new(
        id: &'a MemberId,
        rank: &'a str,
        patterns: &[Pattern],
        topics: &BTreeMap<TopicName, u32>,
    ) -> Self {
        let mut subscribed = BTreeSet::new();
        for pattern in patterns {
            match pattern {
                Pattern::Topic(name) if topics.contains_key(name) => drop(subscribed.insert(name.clone())),
                Pattern::Topic(_) => {}
                Pattern::Wildcard(_) | Pattern::Rule(_) => {
                    subscribed.extend(topics.keys().filter(|topic| pattern.matches(topic)).cloned())
                }
            }
        }
        Self { id, rank, topics: subscribed }
    }
}

fn range(topics: &BTreeMap<TopicName, u32>, members: &[Subscriber<'_>]) -> Assignment {
    let mut order: Vec<&Subscriber<'_>> = members.iter().collect();
    order.sort_by_key(|member| (member.rank, member.id));
    let mut assignment: Assignment = members.iter().map(|member| (member.id.clone(), BTreeSet::new())).collect();
    for (topic, &partitions) in topics {
        let readers: Vec<&MemberId> =
            order.iter().filter(|member| member.topics.contains(topic)).map(|member| member.id).collect();
        let mut next: PartitionId = 0;
        for (i, id) in readers.iter().enumerate() {
            let share = partitions / readers.len() as u32;
            let extra = partitions % readers.len() as u32;
            let end = next + share + u32::from((i as u32) < extra);
            let run = (next..end).map(|partition| TopicPartition { topic: topic.clone(), partition });
            assignment.entry((*id).clone()).or_default().extend(run);
            next = end;
        }
    }
    assignment
}

/// Topics with the same subscribers: any partition of a class can be assigned to any of its members.
struct Class {
    /// Positions in `Uniform::members`.
    readers: Vec<usize>,
    topics: BTreeSet<TopicName>,
    /// Partitions of this class that each member holds.
    held: BTreeMap<usize, BTreeSet<TopicPartition>>,
}

struct Uniform<'a> {
    topics: &'a BTreeMap<TopicName, u32>,
    members: &'a [Subscriber<'a>],
    /// Classes in ascending number of readers, since members of small classes have the least choice.
    classes: Vec<Class>,
    /// Number of partitions of each member over all classes.
    counts: Vec<usize>,
}

impl<'a> Uniform<'a> {
    fn new(topics: &'a BTreeMap<TopicName, u32>, members: &'a [Subscriber<'a>]) -> Self {
        let mut by_readers: BTreeMap<Vec<usize>, BTreeSet<TopicName>> = BTreeMap::new();
        for topic in topics.keys() {
            let readers: Vec<usize> = (0..members.len()).filter(|i| members[*i].topics.contains(topic)).collect();
            if !readers.is_empty() {
                by_readers.entry(readers).or_default().insert(topic.clone());
            }
        }
        let class = |(readers, topics)| Class { readers, topics, held: BTreeMap::new() };
        let mut classes: Vec<Class> = by_readers.into_iter().map(class).collect();
        classes.sort_by_key(|class| class.readers.len());
        Self { topics, members, classes, counts: vec![0; members.len()] }
    }

    fn assign(mut self, before: &Assignment) -> Assignment {
        let free = self.keep(before);
        for (at, free) in free.into_iter().enumerate() {
            self.hand_out(at, free);
        }
        // Each move makes the sum of the squared counts smaller, so the loop terminates.
        while (0..self.classes.len()).any(|at| self.balance(at)) {}
        let mut assignment: Assignment = self.members.iter().map(|m| (m.id.clone(), BTreeSet::new())).collect();
        for class in self.classes {
            for (member, partitions) in class.held {
                assignment.entry(self.members[member].id.clone()).or_default().extend(partitions);
            }
        }
        assignment
    }

    /// Leaves each member the partitions that it had and still subscribes to. Returns the partitions without an owner,
    /// by class.
    fn keep(&mut self, before: &Assignment) -> Vec<Vec<TopicPartition>> {
        let mut free = Vec::new();
        for class in &mut self.classes {
            let mut taken: BTreeSet<&TopicPartition> = BTreeSet::new();
            for &member in &class.readers {
                let had = before.get(self.members[member].id).into_iter().flatten();
                let keeps = had.filter(|had| {
                    let exists = self.topics.get(&had.topic).is_some_and(|count| had.partition < *count);
                    exists && class.topics.contains(&had.topic) && taken.insert(had)
                });
                let keeps: BTreeSet<TopicPartition> = keeps.cloned().collect();
                self.counts[member] += keeps.len();
                class.held.insert(member, keeps);
            }
            let all = class.topics.iter().flat_map(|topic| {
                (0..self.topics[topic]).map(|partition| TopicPartition { topic: topic.clone(), partition })
            });
            free.push(all.filter(|partition| !taken.contains(partition)).collect());
        }
        free
    }

    /// Returns the readers of a class, in ascending number of partitions.
    fn by_count(&self, class: usize) -> BTreeSet<(usize, usize)> {
        self.classes[class].readers.iter().map(|member| (self.counts[*member], *member)).collect()
    }

    fn hand_out(&mut self, class: usize, free: Vec<TopicPartition>) {
        let mut by_count = self.by_count(class);
        for partition in free {
            if let Some((count, member)) = by_count.pop_first() {
                self.classes[class].held.entry(member).or_default().insert(partition);
                self.counts[member] = count + 1;
                by_count.insert((count + 1, member));
            }
        }
    }

    /// Moves partitions from the members with the most to those with the fewest, while they differ by two or more.
    /// Among the same readers a member that gains never loses, so no partition moves unnecessarily.
    fn balance(&mut self, class: usize) -> bool {
        let mut by_count = self.by_count(class);
        let mut has_moved = false;
        while let Some(&(fewest, gainer)) = by_count.first() {
            let held = &self.classes[class].held;
            let has_some = |member: &usize| held.get(member).is_some_and(|partitions| !partitions.is_empty());
            let most = by_count.iter().rev().find(|(_, member)| has_some(member)).copied();
            let Some((most, loser)) = most.filter(|(most, _)| *most >= fewest + 2) else {
                break;
            };
            let held = &mut self.classes[class].held;
            if let Some(moved) = held.get_mut(&loser).and_then(BTreeSet::pop_last) {
                held.entry(gainer).or_default().insert(moved);
            }
            for (member, before, after) in [(loser, most, most - 1), (gainer, fewest, fewest + 1)] {
                by_count.remove(&(before, member));
                by_count.insert((after, member));
                self.counts[member] = after;
            }
            has_moved = true;
        }
        has_moved
    }
}
