//! Listeners of sites: patterns, and members of queue groups.
//!
//! The directory has the readers of each topic. It cannot answer which sites wait for topics that they do not have,
//! nor which one of several sites gets the records of a queue group. So each site tells all others the patterns of its
//! subscriptions and the queue groups of its topics, which are few.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::directory::{fnv1a, mix, site_hash, topic_hash};
use super::site::SiteName;
use crate::error::{Error, Result};
use crate::glob;
use crate::ids::TopicName;
use crate::limits::{GROUP_NAME_BYTES_MAX, TOPIC_NAME_BYTES_MAX};
use crate::pattern::{Pattern, wildcard_matches};

/// Maximum number of listeners that a site tells other sites.
pub const LISTENERS_PER_SITE_MAX: usize = 1024;
/// Maximum number of listeners of other sites that a site keeps.
pub const LISTENERS_MAX: usize = 100_000;
/// Maximum number of queue groups of a topic that are chosen for a site by name.
pub const GROUPS_PER_TOPIC_MAX: usize = 64;

/// Topics that clients of a site listen to, as members of a queue group or each for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteListener {
    pub topics: ListenedTopics,
    pub group: Option<Box<str>>,
}

/// Topics of a listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenedTopics {
    Name(TopicName),
    /// Pattern of [`Pattern::Wildcard`].
    Wildcard(Box<str>),
    /// Glob pattern, as Redis reads it.
    Glob(Box<str>),
}

impl ListenedTopics {
    /// Returns the topics of a name or of a pattern with `*` and `>`.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match Pattern::parse(text)? {
            Pattern::Topic(name) => Self::Name(name),
            other => Self::Wildcard(other.as_str().into()),
        })
    }

    /// Returns the topics that a glob pattern matches.
    pub fn glob(text: &str) -> Result<Self> {
        if text.len() > TOPIC_NAME_BYTES_MAX {
            return Err(Error::invalid(format!("a pattern has at most {TOPIC_NAME_BYTES_MAX} bytes here")));
        }
        Ok(Self::Glob(text.into()))
    }

    /// Returns the topics of a pattern, or more; `None` if other sites cannot be told which those are.
    pub fn of(pattern: &Pattern) -> Option<Self> {
        match pattern {
            Pattern::Topic(name) => Some(Self::Name(name.clone())),
            Pattern::Wildcard(text) => Some(Self::Wildcard(text.clone())),
            Pattern::Rule(rule) => Self::glob(rule.glob()?).ok(),
        }
    }

    fn contains(&self, topic: &TopicName) -> bool {
        match self {
            Self::Name(name) => name == topic,
            Self::Wildcard(pattern) => wildcard_matches(pattern, topic.as_str()),
            Self::Glob(pattern) => glob::matches(pattern.as_bytes(), topic.as_str().as_bytes()),
        }
    }
}

impl SiteListener {
    pub fn new(topics: ListenedTopics, group: Option<&str>) -> Result<Self> {
        if group.is_some_and(|group| group.is_empty() || group.len() > GROUP_NAME_BYTES_MAX) {
            return Err(Error::invalid(format!("the name of a queue group has 1 to {GROUP_NAME_BYTES_MAX} bytes")));
        }
        Ok(Self { topics, group: group.map(Into::into) })
    }
}

/// Queue groups of a site that get a record. Its other subscribers always do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Groups {
    #[default]
    All,
    /// Groups with these names, in the order of the names.
    These(Arc<[Box<str>]>),
}

impl Groups {
    /// Returns these groups, or all if there are more than [`GROUPS_PER_TOPIC_MAX`]. The names have to be in order.
    pub fn named(names: Vec<Box<str>>) -> Self {
        if names.len() > GROUPS_PER_TOPIC_MAX { Self::All } else { Self::These(names.into()) }
    }

    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.binary_search_by(|known| (**known).cmp(name)).is_ok(),
        }
    }

    /// Returns `true` if no group gets the record.
    pub fn are_none(&self) -> bool {
        matches!(self, Self::These(names) if names.is_empty())
    }
}

/// Queue groups that have members at this site, by topic.
pub type OwnGroups = HashMap<TopicName, BTreeSet<Box<str>>>;

/// Listeners of this site and of all others.
#[derive(Debug, Default)]
pub struct Listeners {
    own: BTreeSet<SiteListener>,
    own_groups: OwnGroups,
    sites: BTreeMap<SiteName, Heard>,
    /// Number of listeners in `sites`.
    count: usize,
}

/// Listeners of another site.
#[derive(Debug, Default)]
struct Heard {
    all: BTreeSet<SiteListener>,
    patterns: Vec<SiteListener>,
    /// Queue groups of topics that are listened to by name.
    groups: HashMap<TopicName, Vec<Box<str>>, foldhash::fast::RandomState>,
}

impl Heard {
    fn new(listeners: Vec<SiteListener>) -> Self {
        let mut heard = Self { all: listeners.into_iter().collect(), ..Self::default() };
        for listener in &heard.all {
            match listener {
                SiteListener { topics: ListenedTopics::Name(name), group: Some(group) } => {
                    heard.groups.entry(name.clone()).or_default().push(group.clone());
                }
                // The directory has the plain readers of a topic.
                SiteListener { topics: ListenedTopics::Name(_), group: None } => {}
                pattern => heard.patterns.push(pattern.clone()),
            }
        }
        heard
    }

    /// Calls `hear` with the group of each listener of a topic.
    fn each_of<'h>(&'h self, topic: &TopicName, mut hear: impl FnMut(Option<&'h str>)) {
        self.groups.get(topic).into_iter().flatten().for_each(|group| hear(Some(group)));
        let patterns = self.patterns.iter().filter(|listener| listener.topics.contains(topic));
        patterns.for_each(|listener| hear(listener.group.as_deref()));
    }
}

/// Listeners that have come or gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChangedListeners(Vec<SiteListener>);

impl ChangedListeners {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if the sites that get a topic may be others now.
    pub fn concerns(&self, topic: &TopicName) -> bool {
        self.0.iter().any(|listener| listener.topics.contains(topic))
    }
}

impl Listeners {
    /// Sets the patterns of this site and the queue groups of its topics. Returns `true` if other sites have to be
    /// told, and the topics whose receivers may be others now. A group of a pattern is not told for the topics of the
    /// pattern.
    pub fn set_own(&mut self, patterns: Vec<SiteListener>, groups: OwnGroups) -> (bool, ChangedListeners) {
        let mut own: BTreeSet<SiteListener> = patterns.into_iter().collect();
        let of_group: Vec<SiteListener> = own.iter().filter(|pattern| pattern.group.is_some()).cloned().collect();
        for (topic, names) in &groups {
            for name in names {
                let is_same = |pattern: &&SiteListener| pattern.group.as_deref() == Some(name);
                if !of_group.iter().filter(is_same).any(|pattern| pattern.topics.contains(topic)) {
                    let topics = ListenedTopics::Name(topic.clone());
                    own.insert(SiteListener { topics, group: Some(name.clone()) });
                }
            }
        }
        let of = |topic: &TopicName, groups: &OwnGroups| groups.get(topic).cloned().unwrap_or_default();
        let topics: BTreeSet<&TopicName> = groups.keys().chain(self.own_groups.keys()).collect();
        let others = topics.into_iter().filter(|topic| of(topic, &groups) != of(topic, &self.own_groups));
        let changed = others.map(|topic| SiteListener { topics: ListenedTopics::Name(topic.clone()), group: None });
        let changed = ChangedListeners(changed.collect());
        let has_news = own != self.own;
        self.own = own;
        self.own_groups = groups;
        (has_news, changed)
    }

    /// Returns the listeners of this site that other sites are told, in their order.
    pub fn own(&self) -> Vec<SiteListener> {
        self.own.iter().cloned().collect()
    }

    /// Returns `true` if this site has more listeners than other sites keep.
    pub fn has_too_many(&self) -> bool {
        self.own.len() > LISTENERS_PER_SITE_MAX
    }

    /// Sets the listeners of another site. Fails if there are too many; those that it had are forgotten.
    pub fn set(&mut self, site: &SiteName, listeners: Vec<SiteListener>) -> Result<ChangedListeners> {
        let before = self.sites.remove(site).unwrap_or_default();
        self.count -= before.all.len();
        let now = Heard::new(listeners);
        let has_room = now.all.len() <= LISTENERS_PER_SITE_MAX && self.count + now.all.len() <= LISTENERS_MAX;
        if !has_room {
            return Err(Error::busy(format!(
                "{site} has {} listeners: a site keeps at most {LISTENERS_PER_SITE_MAX} of another one, and \
                 {LISTENERS_MAX} of all",
                now.all.len()
            )));
        }
        let changed = ChangedListeners(before.all.symmetric_difference(&now.all).cloned().collect());
        self.count += now.all.len();
        if !now.all.is_empty() {
            self.sites.insert(site.clone(), now);
        }
        Ok(changed)
    }

    /// Forgets the listeners of a site.
    pub fn forget(&mut self, site: &SiteName) -> ChangedListeners {
        let before = self.sites.remove(site).unwrap_or_default();
        self.count -= before.all.len();
        ChangedListeners(before.all.into_iter().collect())
    }

    /// Returns the number of listeners of other sites.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the other sites that get the records that clients of this site publish to a topic, each with the queue
    /// groups for which it was chosen: those that have `readers`, by the directory, and those that have listeners.
    ///
    /// A group with members at this site gets its records here. Otherwise one other site is chosen for it, the one at
    /// the least `distance`; sites without one cannot be reached. Of several at the same distance, each topic and group
    /// prefers another.
    pub fn receivers(
        &self,
        topic: &TopicName,
        readers: &[SiteName],
        distance: impl Fn(&SiteName) -> Option<u32>,
    ) -> BTreeMap<SiteName, Groups> {
        let mut receivers: BTreeMap<&SiteName, BTreeSet<&str>> =
            readers.iter().map(|site| (site, BTreeSet::new())).collect();
        let mut chosen: BTreeMap<&str, (u32, u64, &SiteName)> = BTreeMap::new();
        let own = self.own_groups.get(topic);
        for (site, heard) in &self.sites {
            let mut groups = BTreeSet::new();
            heard.each_of(topic, |group| match group {
                Some(group) => drop(groups.insert(group)),
                None => drop(receivers.entry(site).or_default()),
            });
            groups.retain(|group| own.is_none_or(|own| !own.contains(*group)));
            let Some(distance) = (!groups.is_empty()).then(|| distance(site)).flatten() else { continue };
            for group in groups {
                let rank = mix(fnv1a(topic_hash(topic), group.as_bytes()) ^ site_hash(site));
                let candidate = (distance, rank, site);
                chosen.entry(group).and_modify(|best| *best = (*best).min(candidate)).or_insert(candidate);
            }
        }
        for (group, (_, _, site)) in chosen {
            receivers.entry(site).or_default().insert(group);
        }
        let named = |groups: BTreeSet<&str>| Groups::named(groups.into_iter().map(Into::into).collect());
        receivers.into_iter().map(|(site, groups)| (site.clone(), named(groups))).collect()
    }
}

#[cfg(test)]
#[path = "listeners_tests.rs"]
mod tests;
