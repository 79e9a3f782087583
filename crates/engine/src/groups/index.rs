//! Topics that the members of a group subscribe to, numbered, with the topics of each pattern.
//!
//! A pattern is compared with a topic once: when a member brings the pattern, or when the topic is created.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::bits::Bits;
use super::{Catalog, InstanceId, MemberId};
use crate::ids::TopicName;
use crate::limits::GROUP_PARTITIONS_MAX;
use crate::pattern::Pattern;

/// Comparisons that a look-up of a name among those of one member may take.
const LOOKUP: usize = 8;

/// Member with its subscription.
#[derive(Clone, Debug)]
pub(super) struct Subscriber {
    pub(super) id: MemberId,
    pub(super) instance: Option<InstanceId>,
    /// Names and patterns, sorted by their text.
    pub(super) topics: Arc<[Pattern]>,
}

impl Subscriber {
    /// Returns `true` if it subscribes to a topic by name.
    pub(super) fn names(&self, topic: &TopicName) -> bool {
        let from = self.topics.partition_point(|pattern| pattern.as_str() < topic.as_str());
        // A rule may have the same text.
        let mut of_text = self.topics[from..].iter().take_while(|pattern| pattern.as_str() == topic.as_str());
        of_text.any(|pattern| matches!(pattern, Pattern::Topic(_)))
    }
}

#[derive(Clone, Debug)]
struct Topic {
    /// Number below the number of all topics that were in the index at the same time.
    number: u32,
    partitions: u32,
    /// Number of members that subscribe to it by its name.
    named: u32,
    /// `true` if its partitions are assigned: those of others are beyond the limit.
    fits: bool,
}

/// Wildcard or rule.
#[derive(Clone, Debug, Default)]
struct Matches {
    /// Number of members that subscribe to it.
    uses: u32,
    /// Numbers of the topics that it matches.
    topics: Bits,
}

/// Topics to which members subscribe, as of a version of the catalog. The order of their names decides which of them
/// exceed the limit of partitions.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// `None` until the catalog is read for the first time.
    version: Option<u64>,
    /// Number of the permissions with which the rules were compared.
    permissions: u64,
    topics: BTreeMap<TopicName, Topic>,
    /// Numbers of topics that have left.
    free: Vec<u32>,
    patterns: HashMap<Pattern, Matches, foldhash::fast::RandomState>,
    members: BTreeMap<MemberId, Arc<[Pattern]>>,
    left_out: usize,
}

/// Changes that an index lacks.
#[derive(Debug)]
pub(super) struct Changes {
    /// Subscriptions that begin, and those that end.
    added: Vec<Arc<[Pattern]>>,
    removed: Vec<Arc<[Pattern]>>,
    /// Wildcards and rules that no other member has.
    fresh: Vec<Pattern>,
    /// `None` if the catalog was not read.
    reading: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    version: u64,
    permissions: u64,
    /// Names of the topics that have changed; `None` if any may have.
    names: Option<Vec<TopicName>>,
}

impl Index {
    pub(super) fn version(&self) -> Option<u64> {
        self.version
    }

    /// Returns the number of partitions beyond the limit.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the topics whose partitions are assigned, with their numbers and the numbers of their partitions, in the
    /// order of their names.
    pub(super) fn topics(&self) -> impl Iterator<Item = (&TopicName, u32, u32)> {
        let all = self.topics.iter().filter(|(_, topic)| topic.fits);
        all.map(|(name, topic)| (name, topic.number, topic.partitions))
    }

    pub(super) fn has(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.fits)
    }

    /// Returns `true` if a member subscribes to an existing topic, also if that is beyond the limit.
    pub(super) fn knows(&self, topic: &TopicName) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns the numbers of the topics that a subscription includes.
    pub(super) fn subscribed(&self, topics: &[Pattern]) -> Bits {
        let mut subscribed = Bits::default();
        for pattern in topics {
            match pattern {
                Pattern::Topic(name) => self.topics.get(name).into_iter().for_each(|of| subscribed.insert(of.number)),
                Pattern::Wildcard(_) | Pattern::Rule(_) => {
                    self.patterns.get(pattern).into_iter().for_each(|of| subscribed.add(&of.topics));
                }
            }
        }
        subscribed
    }

    /// Compares the index with the members and with the catalog.
    pub(super) fn changes(&self, members: &[Subscriber], catalog: Option<&dyn Catalog>) -> Changes {
        let reading = catalog.map(|catalog| self.read(catalog));
        let starts_over = reading.as_ref().is_some_and(|reading| reading.names.is_none());
        let mut removed = Vec::new();
        let mut added = Vec::new();
        let mut known = self.members.iter().filter(|_| !starts_over).peekable();
        for member in members {
            while let Some((_, topics)) = known.next_if(|(id, _)| **id < member.id) {
                removed.push(topics.clone());
            }
            match known.next_if(|(id, _)| **id == member.id) {
                Some((_, topics)) if Arc::ptr_eq(topics, &member.topics) || *topics == member.topics => continue,
                before => removed.extend(before.map(|(_, topics)| topics.clone())),
            }
            added.push(member.topics.clone());
        }
        removed.extend(known.map(|(_, topics)| topics.clone()));
        // A member that took the place of another has its subscription.
        added.retain(|topics| {
            let same = removed.iter().position(|before| Arc::ptr_eq(before, topics));
            same.map(|at| removed.swap_remove(at)).is_none()
        });
        let patterns = added.iter().flat_map(|topics| topics.iter());
        let is_fresh = |pattern: &&Pattern| {
            !matches!(pattern, Pattern::Topic(_)) && (starts_over || !self.patterns.contains_key(*pattern))
        };
        let fresh: HashSet<&Pattern, foldhash::fast::RandomState> = patterns.filter(is_fresh).collect();
        let fresh = fresh.into_iter().cloned().collect();
        Changes { added, removed, fresh, reading }
    }

    fn read(&self, catalog: &dyn Catalog) -> Reading {
        // The version is read first: concurrent changes are noticed the next time.
        let version = catalog.version();
        let permissions = catalog.permissions();
        let has_rules = || self.patterns.keys().any(|pattern| matches!(pattern, Pattern::Rule(_)));
        let names = match self.version {
            Some(_) if permissions != self.permissions && has_rules() => None,
            Some(known) if known == version => Some(Vec::new()),
            Some(known) => catalog.changed_since(known),
            None => None,
        };
        Reading { version, permissions, names }
    }

    /// Returns `false` if the changes require that the catalog is read.
    pub(super) fn is_ready(&self, changes: &Changes) -> bool {
        changes.reading.is_some() || changes.added.is_empty()
    }

    /// Returns the approximate number of comparisons and look-ups of an update.
    pub(super) fn cost(&self, changes: &Changes, members: usize, catalog: Option<&dyn Catalog>) -> usize {
        let listed = |lists: &[Arc<[Pattern]>]| lists.iter().map(|topics| topics.len()).sum::<usize>();
        let names = changes.reading.as_ref().and_then(|reading| reading.names.as_ref()).map_or(0, Vec::len);
        let searched = if changes.fresh.is_empty() { 0 } else { catalog.map_or(0, Catalog::count) };
        let freed = if changes.removed.is_empty() { 0 } else { self.topics.len() * (1 + self.patterns.len() / 64) };
        changes.fresh.len() * searched
            + listed(&changes.added)
            + listed(&changes.removed)
            + names * (self.patterns.len() + LOOKUP * members)
            + freed
            + self.topics.len() / 4
    }

    /// Updates the index. Returns `true` if topics whose partitions are assigned, or their partitions, have changed.
    pub(super) fn update(&mut self, members: &[Subscriber], changes: Changes, catalog: Option<&dyn Catalog>) -> bool {
        let Changes { added, removed, fresh, reading } = changes;
        let before = match &reading {
            Some(Reading { names: None, .. }) => Some(std::mem::take(self)),
            _ => None,
        };
        let mut has_changed = false;
        for topics in &added {
            self.acquire(topics, catalog);
        }
        if let Some(catalog) = catalog.filter(|_| !fresh.is_empty()) {
            self.search(&fresh, catalog);
        }
        let mut has_freed = false;
        for topics in &removed {
            has_freed |= self.release(topics);
        }
        if has_freed {
            has_changed |= self.prune();
        }
        let is_known = |(id, topics): (&MemberId, &Arc<[Pattern]>), member: &Subscriber| {
            *id == member.id && Arc::ptr_eq(topics, &member.topics)
        };
        let are_known = self.members.iter().zip(members).all(|(known, member)| is_known(known, member));
        if !are_known || self.members.len() != members.len() {
            self.members = members.iter().map(|member| (member.id.clone(), member.topics.clone())).collect();
        }
        if let Some((reading, catalog)) = reading.zip(catalog) {
            for name in reading.names.iter().flatten() {
                has_changed |= self.follow(name, members, catalog);
            }
            (self.version, self.permissions) = (Some(reading.version), reading.permissions);
        }
        has_changed |= self.fit();
        if self.topics.is_empty() {
            self.free = Vec::new();
        }
        match before {
            Some(before) => before.version.is_none() || !self.assigns_same(&before),
            None => has_changed,
        }
    }

    /// Returns `true` if the same partitions are assigned as before, to members that subscribe to the same of them.
    fn assigns_same(&self, before: &Self) -> bool {
        let listed = |index: &Self| index.topics().map(|(name, _, count)| (name.clone(), count)).collect::<Vec<_>>();
        listed(self) == listed(before) && self.matches_same(before)
    }

    /// Returns `true` if each pattern matches the same topics as before.
    fn matches_same(&self, before: &Self) -> bool {
        let pairs: Vec<(&Bits, &Bits)> = self
            .patterns
            .iter()
            .filter_map(|(pattern, of)| Some((&of.topics, &before.patterns.get(pattern)?.topics)))
            .collect();
        self.topics.iter().all(|(name, topic)| {
            let number = before.topics.get(name).map(|topic| topic.number);
            pairs.iter().all(|(now, before)| now.has(topic.number) == number.is_some_and(|number| before.has(number)))
        })
    }

    /// Returns the topic of a name, which is added if it is not in the index.
    fn topic(&mut self, name: &TopicName, partitions: u32) -> &mut Topic {
        let (next, free) = (self.topics.len() as u32, &mut self.free);
        self.topics.entry(name.clone()).or_insert_with(|| {
            // All numbers below `next` are in use if none is free.
            let number = free.pop().unwrap_or(next);
            Topic { number, partitions, named: 0, fits: false }
        })
    }

    fn acquire(&mut self, topics: &[Pattern], catalog: Option<&dyn Catalog>) {
        for pattern in topics {
            match pattern {
                Pattern::Topic(name) => {
                    let known = self.topics.get(name).map(|topic| topic.partitions);
                    let found = known.or_else(|| catalog?.partitions(name));
                    if let Some(partitions) = found {
                        self.topic(name, partitions).named += 1;
                    }
                }
                Pattern::Wildcard(_) | Pattern::Rule(_) => {
                    self.patterns.entry(pattern.clone()).or_default().uses += 1;
                }
            }
        }
    }

    /// Compares new patterns with all topics.
    fn search(&mut self, fresh: &[Pattern], catalog: &dyn Catalog) {
        let mut found: Vec<Bits> = vec![Bits::default(); fresh.len()];
        for (name, partitions) in catalog.topics() {
            let mut number = None;
            for (pattern, found) in fresh.iter().zip(&mut found).filter(|(pattern, _)| pattern.matches(&name)) {
                debug_assert!(!matches!(pattern, Pattern::Topic(_)));
                found.insert(*number.get_or_insert_with(|| self.topic(&name, partitions).number));
            }
        }
        for (pattern, topics) in fresh.iter().zip(found) {
            self.patterns.entry(pattern.clone()).or_default().topics = topics;
        }
    }

    /// Ends a subscription. Returns `true` if a name or a pattern is not used any more.
    fn release(&mut self, topics: &[Pattern]) -> bool {
        let mut has_freed = false;
        for pattern in topics {
            match pattern {
                Pattern::Topic(name) => {
                    if let Some(topic) = self.topics.get_mut(name) {
                        topic.named = topic.named.saturating_sub(1);
                        has_freed |= topic.named == 0;
                    }
                }
                Pattern::Wildcard(_) | Pattern::Rule(_) => {
                    if let Some(matches) = self.patterns.get_mut(pattern) {
                        matches.uses = matches.uses.saturating_sub(1);
                        if matches.uses == 0 {
                            self.patterns.remove(pattern);
                            has_freed = true;
                        }
                    }
                }
            }
        }
        has_freed
    }

    /// Removes the topics to which no member subscribes any more. Returns `true` if partitions of one were assigned.
    fn prune(&mut self) -> bool {
        let mut matched = Bits::default();
        self.patterns.values().for_each(|of| matched.add(&of.topics));
        let mut has_changed = false;
        let free = &mut self.free;
        self.topics.retain(|_, topic| {
            let is_kept = topic.named > 0 || matched.has(topic.number);
            if !is_kept {
                free.push(topic.number);
                has_changed |= topic.fits;
            }
            is_kept
        });
        has_changed
    }

    /// Takes over a change of one topic. Returns `true` if its partitions are assigned and have changed.
    fn follow(&mut self, name: &TopicName, members: &[Subscriber], catalog: &dyn Catalog) -> bool {
        let Some(partitions) = catalog.partitions(name) else {
            return self.remove(name);
        };
        let named = members.iter().filter(|member| member.names(name)).count() as u32;
        let is_matched = |pattern: &Pattern| pattern.matches(name);
        let matching: Vec<Pattern> = self.patterns.keys().filter(|pattern| is_matched(pattern)).cloned().collect();
        if named == 0 && matching.is_empty() {
            return self.remove(name);
        }
        let topic = self.topic(name, partitions);
        let has_grown = topic.fits && topic.partitions != partitions;
        (topic.partitions, topic.named) = (partitions, named);
        let number = topic.number;
        self.patterns.values_mut().for_each(|of| of.topics.remove(number));
        for pattern in &matching {
            self.patterns.entry(pattern.clone()).or_default().topics.insert(number);
        }
        has_grown
    }

    /// Removes a topic. Returns `true` if its partitions were assigned.
    pub(super) fn remove(&mut self, name: &TopicName) -> bool {
        let Some(topic) = self.topics.remove(name) else {
            return false;
        };
        self.patterns.values_mut().for_each(|of| of.topics.remove(topic.number));
        self.free.push(topic.number);
        topic.fits
    }

    /// Decides which topics are assigned: those that fit, in the order of their names. Returns `true` if others do than
    /// before.
    fn fit(&mut self) -> bool {
        let mut taken = 0usize;
        let mut has_changed = false;
        self.left_out = 0;
        for topic in self.topics.values_mut() {
            let partitions = topic.partitions as usize;
            let fits = taken + partitions <= GROUP_PARTITIONS_MAX;
            *(if fits { &mut taken } else { &mut self.left_out }) += partitions;
            has_changed |= std::mem::replace(&mut topic.fits, fits) != fits;
        }
        has_changed
    }
}
