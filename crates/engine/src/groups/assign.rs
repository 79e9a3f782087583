//! Assignors: pure functions of the topics, the members and the previous assignment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::str::FromStr;

use super::MemberId;
use super::bits::ones;
use super::index::{Index, Subscriber};
use crate::error::{Error, Result};
use crate::ids::{TopicName, TopicPartition};
use crate::limits::GROUP_PARTITIONS_MAX;

/// Steps after which [`Assignor::Uniform`] balances no further, for members of very different subscriptions: some
/// hundred milliseconds.
const BALANCING_MAX: usize = 1 << 26;
/// Partitions of a share group that are assigned to more than one member, each counted as often.
const COPIES_MAX: usize = 4 * GROUP_PARTITIONS_MAX;

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

/// How the partitions of a group are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Each partition to one member.
    Divide(Assignor),
    /// Each partition to one or several members.
    Share,
}

impl Strategy {
    /// Returns the new target. Invariant: every partition that a member subscribes to has an owner, which subscribes
    /// to it; exactly one if partitions are divided.
    pub(super) fn assign(self, index: &Index, members: &[Subscriber], before: &Assignment) -> Assignment {
        let numbers = Numbers::new(index, members);
        let owned = match self {
            Self::Divide(Assignor::Uniform) => numbers.by_owner(Uniform::new(&numbers).assign(before)),
            Self::Divide(Assignor::Range) => numbers.by_owner(range(&numbers)),
            Self::Share => share_out(&numbers),
        };
        numbers.named(owned)
    }

    /// Returns the approximate number of steps of [`Strategy::assign`].
    pub(super) fn cost(index: &Index, members: &[Subscriber]) -> usize {
        let (topics, partitions) = index.topics().fold((0, 0), |(n, sum), (_, _, count)| (n + 1, sum + count as usize));
        let listed: usize = members.iter().map(|member| member.topics.len()).sum();
        members.len() * topics / 4 + 2 * partitions + listed
    }
}

/// Topics, partitions and members by their numbers: topics in the order of their names, members in that of their ids,
/// and the partitions of a topic after those of the topic before.
struct Numbers<'a> {
    members: &'a [Subscriber],
    topics: Vec<Topic<'a>>,
    /// Number of partitions.
    partitions: usize,
    /// Members that subscribe to each topic, a bit for each: as many words for one topic as for another.
    readers: Vec<u64>,
}

struct Topic<'a> {
    name: &'a TopicName,
    /// Number of its first partition.
    first: usize,
    partitions: usize,
}

/// Topics with the same subscribers: any partition of a class can be assigned to any of its members.
struct Class {
    topics: Vec<usize>,
    readers: usize,
}

/// Stands for no member.
const NONE: u32 = u32::MAX;

impl<'a> Numbers<'a> {
    fn new(index: &'a Index, members: &'a [Subscriber]) -> Self {
        let mut numbers = Self { members, topics: Vec::new(), partitions: 0, readers: Vec::new() };
        let mut known: Vec<u32> = Vec::new();
        for (name, number, partitions) in index.topics() {
            let partitions = partitions as usize;
            numbers.topics.push(Topic { name, first: numbers.partitions, partitions });
            numbers.partitions += partitions;
            known.push(number);
        }
        let words = numbers.words();
        numbers.readers = vec![0; words * known.len()];
        for (at, member) in members.iter().enumerate() {
            let subscribed = index.subscribed(&member.topics);
            let (word, bit) = (at / 64, 1 << (at % 64));
            for (topic, number) in known.iter().enumerate().filter(|(_, number)| subscribed.has(**number)) {
                debug_assert!(*number != NONE);
                numbers.readers[topic * words + word] |= bit;
            }
        }
        numbers
    }

    fn words(&self) -> usize {
        self.members.len().div_ceil(64)
    }

    /// Returns the members that subscribe to a topic.
    fn readers(&self, topic: usize) -> &[u64] {
        let words = self.words();
        &self.readers[topic * words..(topic + 1) * words]
    }

    /// Returns the classes in ascending number of readers, since members of small classes have the least choice. Topics
    /// without readers are left out.
    fn classes(&self) -> Vec<Class> {
        let mut by_readers: HashMap<&[u64], Vec<usize>, foldhash::fast::RandomState> = HashMap::default();
        for topic in 0..self.topics.len() {
            by_readers.entry(self.readers(topic)).or_default().push(topic);
        }
        let class = |(readers, topics): (&[u64], _)| Class { topics, readers: ones(readers).count() };
        let mut classes: Vec<Class> = by_readers.into_iter().map(class).filter(|class| class.readers > 0).collect();
        // Of two classes with the same number of readers, the one with the first reader that the other lacks comes
        // first.
        classes.sort_by_cached_key(|class| {
            let first = self.readers_of(class).iter().map(|word| !word.reverse_bits());
            (class.readers, first.collect::<Vec<_>>())
        });
        classes
    }

    fn readers_of(&self, class: &Class) -> &[u64] {
        class.topics.first().map_or(&[], |topic| self.readers(*topic))
    }

    fn partitions_of<'s>(&'s self, class: &'s Class) -> impl Iterator<Item = usize> + 's {
        class.topics.iter().flat_map(|topic| {
            let topic = &self.topics[*topic];
            topic.first..topic.first + topic.partitions
        })
    }

    /// Returns the partitions of each member, in ascending order, from the owner of each partition.
    fn by_owner(&self, owners: Vec<u32>) -> Vec<Vec<usize>> {
        let mut owned = vec![Vec::new(); self.members.len()];
        for (partition, owner) in owners.into_iter().enumerate() {
            if let Some(owned) = owned.get_mut(owner as usize) {
                owned.push(partition);
            }
        }
        owned
    }

    fn named(&self, owned: Vec<Vec<usize>>) -> Assignment {
        let name = |partition: usize| {
            let topic = &self.topics[self.topics.partition_point(|topic| topic.first <= partition) - 1];
            TopicPartition { topic: topic.name.clone(), partition: (partition - topic.first) as u32 }
        };
        let named = |partitions: Vec<usize>| partitions.into_iter().map(name).collect();
        self.members.iter().zip(owned).map(|(member, owned)| (member.id.clone(), named(owned))).collect()
    }

    /// Returns the topic of a name.
    fn find(&self, name: &TopicName) -> Option<usize> {
        self.topics.binary_search_by(|topic| topic.name.cmp(name)).ok()
    }
}

/// Returns the owner of each partition.
fn range(numbers: &Numbers<'_>) -> Vec<u32> {
    let rank = |member: &Subscriber| {
        // An instance id if there is one, since that survives a restart.
        let rank = member.instance.as_ref().map_or(member.id.as_str(), |instance| instance.as_str());
        (rank.to_owned(), member.id.clone())
    };
    let mut order: Vec<usize> = (0..numbers.members.len()).collect();
    order.sort_by_cached_key(|at| rank(&numbers.members[*at]));
    let mut owners = vec![NONE; numbers.partitions];
    for (at, topic) in numbers.topics.iter().enumerate() {
        let row = numbers.readers(at);
        let readers: Vec<usize> =
            order.iter().copied().filter(|member| row[member / 64] >> (member % 64) & 1 == 1).collect();
        let mut next = topic.first;
        for (i, member) in readers.iter().enumerate() {
            let share = topic.partitions / readers.len();
            let extra = topic.partitions % readers.len();
            let end = next + share + usize::from(i < extra);
            owners[next..end].fill(*member as u32);
            next = end;
        }
    }
    owners
}

/// Assigns the partitions of a share group to their subscribers. Returns those of each member. With at least as many
/// subscribers as partitions every subscriber has one partition, and a partition may have several, up to the limit of
/// such copies; otherwise the partitions are divided into equal shares.
fn share_out(numbers: &Numbers<'_>) -> Vec<Vec<usize>> {
    let mut owned = vec![Vec::new(); numbers.members.len()];
    let mut copies_left = COPIES_MAX;
    let mut next = 0;
    for class in numbers.classes() {
        let readers: Vec<usize> = ones(numbers.readers_of(&class)).collect();
        let partitions: Vec<usize> = numbers.partitions_of(&class).collect();
        if partitions.is_empty() {
            continue;
        }
        let copies = readers.len().saturating_sub(partitions.len());
        let mut pairs = partitions.len();
        let mut from = 0;
        if copies <= copies_left {
            copies_left -= copies;
            pairs += copies;
        } else {
            // Another member than that of the class before.
            (from, next) = (next, next + pairs);
        }
        for pair in 0..pairs {
            owned[readers[(from + pair) % readers.len()]].push(partitions[pair % partitions.len()]);
        }
    }
    owned
}

struct Uniform<'a> {
    numbers: &'a Numbers<'a>,
    classes: Vec<Class>,
    /// Owner of each partition.
    owners: Vec<u32>,
    /// Number of partitions of each member over all classes.
    counts: Vec<usize>,
}

impl<'a> Uniform<'a> {
    fn new(numbers: &'a Numbers<'a>) -> Self {
        let owners = vec![NONE; numbers.partitions];
        Self { numbers, classes: numbers.classes(), owners, counts: vec![0; numbers.members.len()] }
    }

    fn assign(mut self, before: &Assignment) -> Vec<u32> {
        self.keep(before);
        for at in 0..self.classes.len() {
            self.hand_out(at);
        }
        // Each move makes the sum of the squared counts smaller, so the loop terminates.
        let mut steps = 0;
        let mut has_moved = true;
        while has_moved && steps < BALANCING_MAX {
            has_moved = false;
            for at in 0..self.classes.len() {
                has_moved |= self.balance(at, &mut steps);
            }
        }
        self.owners
    }

    /// Leaves each member the partitions that it had and still subscribes to.
    fn keep(&mut self, before: &Assignment) {
        for (member, subscriber) in self.numbers.members.iter().enumerate() {
            let mut last: Option<(&TopicName, Option<usize>)> = None;
            for had in before.get(&subscriber.id).into_iter().flatten() {
                let topic = match last {
                    Some((name, topic)) if *name == had.topic => topic,
                    _ => self.numbers.find(&had.topic),
                };
                last = Some((&had.topic, topic));
                let Some(at) = topic else { continue };
                let topic = &self.numbers.topics[at];
                let is_reader = self.numbers.readers(at)[member / 64] >> (member % 64) & 1 == 1;
                if !is_reader || had.partition as usize >= topic.partitions {
                    continue;
                }
                let owner = &mut self.owners[topic.first + had.partition as usize];
                if *owner == NONE {
                    *owner = member as u32;
                    self.counts[member] += 1;
                }
            }
        }
    }

    /// Gives the partitions of a class that have no owner to the readers with the fewest partitions.
    fn hand_out(&mut self, class: usize) {
        let class = &self.classes[class];
        let owners = &mut self.owners;
        let free: Vec<usize> = self.numbers.partitions_of(class).filter(|at| owners[*at] == NONE).collect();
        if free.is_empty() {
            return;
        }
        let readers = ones(self.numbers.readers_of(class));
        let mut by_count: BinaryHeap<_> = readers.map(|member| Reverse((self.counts[member], member))).collect();
        for partition in free {
            if let Some(Reverse((count, member))) = by_count.pop() {
                owners[partition] = member as u32;
                self.counts[member] = count + 1;
                by_count.push(Reverse((count + 1, member)));
            }
        }
    }

    /// Moves partitions from the members with the most to those with the fewest, while they differ by two or more.
    /// Among the same readers a member that gains never loses, so no partition moves unnecessarily.
    fn balance(&mut self, class: usize, steps: &mut usize) -> bool {
        let numbers = self.numbers;
        let class = &self.classes[class];
        let readers = || ones(numbers.readers_of(class));
        let mut partitions = 0;
        let owners = numbers.partitions_of(class).inspect(|_| partitions += 1).map(|at| self.owners[at]);
        let most = owners.filter_map(|owner| self.counts.get(owner as usize)).max().copied().unwrap_or_default();
        let fewest = readers().map(|member| self.counts[member]).min().unwrap_or_default();
        *steps += partitions + class.readers;
        if most < fewest + 2 {
            return false;
        }
        let mut held: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for partition in numbers.partitions_of(class) {
            held.entry(self.owners[partition] as usize).or_default().insert(partition);
        }
        let mut by_count: BTreeSet<(usize, usize)> = readers().map(|member| (self.counts[member], member)).collect();
        let mut holders: BTreeSet<(usize, usize)> = held.keys().map(|member| (self.counts[*member], *member)).collect();
        let mut has_moved = false;
        while let (Some(&(fewest, gainer)), Some(&(most, loser))) = (by_count.first(), holders.last()) {
            if most < fewest + 2 {
                break;
            }
            let Some(moved) = held.get_mut(&loser).and_then(BTreeSet::pop_last) else {
                break;
            };
            self.owners[moved] = gainer as u32;
            held.entry(gainer).or_default().insert(moved);
            for (member, before, after) in [(loser, most, most - 1), (gainer, fewest, fewest + 1)] {
                by_count.remove(&(before, member));
                by_count.insert((after, member));
                holders.remove(&(before, member));
                if held.get(&member).is_some_and(|held| !held.is_empty()) {
                    holders.insert((after, member));
                }
                self.counts[member] = after;
            }
            *steps += 1;
            has_moved = true;
        }
        has_moved
    }
}
