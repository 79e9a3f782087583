//! Subscriptions to topics that do not exist yet: subscriptions of patterns, waiting subscriptions, and channels.
//!
//! A channel is a name that has subscriptions but no topic. A message published to it is delivered to the current
//! listeners and is not stored: its log only holds what a slow subscriber still has to read. No request can name this
//! log, so that a listener never decides how the records of a topic are kept. A topic created with the name replaces
//! the channel and takes over its listeners.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use engine::limits::{CHANNELS_MAX, TOPIC_NAME_BYTES_MAX};
use engine::mesh::{ListenedTopics, MeshMode, SiteListener};
use engine::prefixes::PrefixMap;
use engine::{Error, PartitionId, Pattern, Result, Start, Storage, TopicId, TopicName, TopicSettings};

use crate::admission::LogBudget;
use crate::leadership::Epoch;
use crate::metrics::{Counter, Exposition};
use crate::ordered::Ordered;
use crate::partition::PartitionCell;
use crate::permit::refused;
use crate::subscriber::Subscriber;
use crate::topic::Topic;

/// Maximum bytes and age of the records that a channel keeps for slow subscribers, which read them from its log.
const CHANNEL_BYTES: u64 = 64 << 10;
const CHANNEL_MS: u64 = 10_000;

/// A subscription that joins topics when they are created.
pub(crate) struct Listener {
    /// Queue group of the subscription.
    pub group: Option<String>,
    /// Partition to read, or `None` for all.
    pub partition: Option<PartitionId>,
    pub subscriber: Arc<Subscriber>,
}

/// Place of a subscription in the table of listeners, with its number there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not in the table: the subscription reads a topic that existed when it began, and ends with the topic.
    Topic,
    Name(TopicName, u64),
    Pattern(Pattern, u64),
}

/// All listeners, and the channels in use. Invariant: a name has a channel or a topic, never both.
#[derive(Default)]
pub(crate) struct Listeners {
    named: HashMap<TopicName, Ordered<Listener>, foldhash::fast::RandomState>,
    /// Patterns by their literal start: a name is compared with those whose start is its own.
    patterns: PrefixMap<Ordered<(Pattern, Listener)>>,
    /// Number of the next listener. Listeners join a new topic in the order of their numbers.
    next: u64,
    channels: HashMap<TopicName, Arc<Topic>, foldhash::fast::RandomState>,
    /// Names of the channels: a pattern is compared with those that begin with its literal start.
    channel_names: BTreeSet<TopicName>,
    /// Messages refused because the maximum of channels was reached.
    refused: Counter,
}

impl Listener {
    /// Returns `true` if the subscription receives records published to a name without a topic.
    fn is_of_channels(&self) -> bool {
        self.subscriber.scope.is_channel
    }

    fn joins(&self, cell: &Arc<PartitionCell>) -> Result<()> {
        cell.join(&self.subscriber, &Start::Live, cell, self.group.as_deref()).map(drop)
    }

    /// Adds the partitions of a topic, or a channel, that has just been created, if the subscription may read it.
    fn joins_topic(&self, topic: &Topic, is_channel: bool) -> Result<()> {
        let scope = &self.subscriber.scope;
        if !scope.permit.allows(&topic.name, is_channel) {
            // A pattern passes over the topic; a subscription that waited for this one has nothing left to read.
            if !scope.is_channel {
                self.subscriber.end(refused(&topic.name));
            }
            return Ok(());
        }
        match self.partition.map(|partition| topic.partition(partition)) {
            None => topic.partitions().iter().try_for_each(|cell| self.joins(cell))?,
            Some(Ok(cell)) => self.joins(&cell)?,
            // The topic does not have the partition that the subscriber expects; the client that creates the topic is
            // not at fault.
            Some(Err(error)) => self.subscriber.end(error),
        }
        // Permissions may have changed before the partitions were joined.
        if !scope.permit.allows(&topic.name, is_channel) {
            self.subscriber.end(refused(&topic.name));
        }
        Ok(())
    }
}

/// Returns the key of a pattern in the table: no name begins with a longer one.
fn start_of(pattern: &Pattern) -> &[u8] {
    let start = pattern.literal_start().as_bytes();
    &start[..start.len().min(TOPIC_NAME_BYTES_MAX)]
}

impl Listeners {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds a subscription that listens to a name.
    pub(crate) fn add_named(&mut self, name: TopicName, listener: Listener) -> Result<Place> {
        if let Some(channel) = self.channels.get(&name).filter(|_| listener.subscriber.scope.is_channel) {
            listener.joins_topic(channel, true)?;
        }
        let number = self.number();
        self.named.entry(name.clone()).or_default().push(number, listener);
        Ok(Place::Name(name, number))
    }

    /// Adds a subscription that listens to a pattern. Returns the number of channels that were compared with it, too.
    pub(crate) fn add_pattern(&mut self, pattern: Pattern, listener: Listener) -> Result<(Place, usize)> {
        let start = pattern.literal_start();
        let names = self.channel_names.range::<str, _>((Bound::Included(start), Bound::Unbounded));
        let mut compared = 0;
        for name in names.take_while(|name| name.as_str().starts_with(start)) {
            compared += 1;
            if let Some(channel) = self.channels.get(name).filter(|_| pattern.matches(name)) {
                listener.joins_topic(channel, true)?;
            }
        }
        let number = self.number();
        self.patterns.entry(start_of(&pattern)).push(number, (pattern.clone(), listener));
        Ok((Place::Pattern(pattern, number), compared))
    }

    /// Removes a subscription without a visit of each other one: a client may have thousands of them, next to those of
    /// many clients.
    pub(crate) fn remove(&mut self, place: &Place) {
        match place {
            Place::Topic => {}
            Place::Name(name, number) => {
                if let Some(listeners) = self.named.get_mut(name) {
                    listeners.remove(*number);
                    if listeners.is_empty() {
                        self.named.remove(name);
                    }
                }
            }
            Place::Pattern(pattern, number) => self.patterns.change(start_of(pattern), |listeners| {
                listeners.remove(*number);
                listeners.is_empty()
            }),
        }
    }

    /// Returns the listeners of a name, in no order.
    fn matching<'a>(&'a self, name: &'a TopicName) -> impl Iterator<Item = &'a Listener> {
        let named = self.named.get(name).into_iter().flat_map(Ordered::values);
        named.chain(self.matching_patterns(name).map(|(_, listener)| listener))
    }

    fn matching_patterns<'a>(&'a self, name: &'a TopicName) -> impl Iterator<Item = (u64, &'a Listener)> {
        let patterns = self.patterns.of(name.as_str().as_bytes()).flat_map(Ordered::numbered);
        patterns
            .filter(move |(_, (pattern, _))| pattern.matches(name))
            .map(|(number, (_, listener))| (number, listener))
    }

    /// Returns the listeners of a name, and then those of patterns, each in the order in which they came.
    fn in_order<'a>(&'a self, name: &'a TopicName) -> impl Iterator<Item = &'a Listener> {
        let mut patterns: Vec<(u64, &Listener)> = self.matching_patterns(name).collect();
        patterns.sort_unstable_by_key(|(number, _)| *number);
        let named = self.named.get(name).into_iter().flat_map(Ordered::values);
        named.chain(patterns.into_iter().map(|(_, listener)| listener))
    }

    /// Returns `true` if a subscription receives records published to this name, if it has no topic.
    pub(crate) fn has_listener(&self, name: &TopicName) -> bool {
        self.matching(name).any(Listener::is_of_channels)
    }

    /// Returns `true` if a subscription that may read this channel receives records published to it.
    pub(crate) fn has_reader(&self, name: &TopicName) -> bool {
        let may_read = |listener: &Listener| listener.subscriber.scope.permit.allows(name, true);
        self.matching(name).any(|listener| listener.is_of_channels() && may_read(listener))
    }

    /// Returns different patterns of subscriptions, as other sites of a mesh are told them, until there are more than
    /// `max`.
    pub(crate) fn of_patterns(&self, max: usize) -> BTreeSet<SiteListener> {
        let of = |(pattern, listener): &(Pattern, Listener)| {
            SiteListener::new(ListenedTopics::of(pattern)?, listener.group.as_deref()).ok()
        };
        let mut found = BTreeSet::new();
        for listener in self.patterns.values().flat_map(Ordered::values).filter_map(of) {
            found.insert(listener);
            if found.len() > max {
                break;
            }
        }
        found
    }

    /// Returns names that subscriptions listen to as channels, at most `max`.
    pub(crate) fn of_channels(&self, max: usize) -> HashSet<TopicName> {
        let is_channel = |listeners: &Ordered<Listener>| listeners.values().any(Listener::is_of_channels);
        let names = self.named.iter().filter(|(name, listeners)| !name.is_hidden() && is_channel(listeners));
        names.map(|(name, _)| name.clone()).take(max).collect()
    }

    /// Adds all listeners of the name of a new topic to it, before any client can publish to it.
    pub(crate) fn join_topic(&mut self, topic: &Topic) -> Result<()> {
        self.in_order(&topic.name).try_for_each(|listener| listener.joins_topic(topic, false))?;
        if let Some(listeners) = self.named.get_mut(&topic.name) {
            // A subscription that waited for the topic has it now, and ends with it.
            listeners.retain(|listener| listener.subscriber.scope.is_channel);
            if listeners.is_empty() {
                self.named.remove(&topic.name);
            }
        }
        Ok(())
    }

    /// Returns the channel of a name without a topic; `None` if no subscription listens to it. `admit` returns the id
    /// of a new channel and the settings that it starts from.
    pub(crate) fn channel(
        &mut self,
        name: &TopicName,
        budget: &LogBudget,
        admit: impl FnOnce() -> Result<(TopicId, TopicSettings)>,
        epoch: Epoch,
    ) -> Result<Option<Arc<Topic>>> {
        if let Some(channel) = self.channels.get(name) {
            return Ok(Some(channel.clone()));
        }
        if !self.has_listener(name) {
            return Ok(None);
        }
        if self.channels.len() >= CHANNELS_MAX {
            self.close_unnamed(budget);
        }
        if self.channels.len() >= CHANNELS_MAX {
            self.refused.add(1);
            return Err(Error::busy(format!(
                "{CHANNELS_MAX} channels without a topic are in use, which is the limit: create topics for those that \
                 are used often, or publish to fewer names"
            )));
        }
        let (id, defaults) = admit()?;
        let settings = TopicSettings {
            partitions: 1,
            storage: Storage::Memory,
            retention_bytes: CHANNEL_BYTES,
            retention_ms: CHANNEL_MS,
            mesh: MeshMode::Off,
            ..defaults
        };
        let channel = Topic::in_memory(name.clone(), id, settings, epoch);
        for listener in self.in_order(name).filter(|listener| listener.is_of_channels()) {
            listener.joins_topic(&channel, true)?;
        }
        self.channels.insert(name.clone(), channel.clone());
        self.channel_names.insert(name.clone());
        Ok(Some(channel))
    }

    pub(crate) fn channel_count(&self) -> usize {
        self.channels.len()
    }

    pub(crate) fn channels(&self) -> Vec<Arc<Topic>> {
        self.channels.values().cloned().collect()
    }

    /// Removes a channel. Subscribers that have not read all of its log receive a gap.
    pub(crate) fn close(&mut self, budget: &LogBudget, name: &TopicName) {
        self.channel_names.remove(name);
        for cell in self.channels.remove(name).iter().flat_map(|channel| channel.partitions()) {
            let end = cell.extent().end;
            let (members, freed) = cell.delete();
            budget.release(freed);
            members.members().for_each(|member| member.handle.close_source(member.source, end));
        }
    }

    /// Removes the channels that only patterns listen to: each is created again with the next message to its name.
    fn close_unnamed(&mut self, budget: &LogBudget) {
        let is_named = |name: &TopicName| self.named.contains_key(name);
        let unnamed: Vec<TopicName> = self.channels.keys().filter(|name| !is_named(name)).cloned().collect();
        unnamed.iter().for_each(|name| self.close(budget, name));
    }

    /// Removes the channel of a partition if its last listener has left.
    pub(crate) fn close_unused(&mut self, budget: &LogBudget, cell: &Arc<PartitionCell>) {
        let channel = self.channels.get(&cell.topic);
        let is_same = channel.is_some_and(|channel| channel.partitions().iter().any(|own| Arc::ptr_eq(own, cell)));
        if is_same && cell.extent().subscribers == 0 {
            self.close(budget, &cell.topic);
        }
    }

    pub(crate) fn counts(&self) -> ListenerCounts {
        let channels = self.channels.len();
        let named = self.named.len();
        let refused = self.refused.get();
        ListenerCounts { channels: channels as u64, named: named as u64, refused }
    }
}

/// Counts of the listeners at a moment.
pub(crate) struct ListenerCounts {
    channels: u64,
    named: u64,
    /// Messages that were refused because the maximum of channels was reached.
    refused: u64,
}

impl ListenerCounts {
    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        out.gauge("thalweg_channels", "Names without a topic that messages are published to", self.channels)?;
        out.gauge("thalweg_channels_max", "Maximum of thalweg_channels", CHANNELS_MAX as u64)?;
        out.gauge("thalweg_listened_names", "Names that subscriptions wait for, or listen to as channels", self.named)?;
        out.counter(
            "thalweg_channels_refused",
            "Messages refused because the maximum of channels was reached",
            self.refused,
        )
    }
}
