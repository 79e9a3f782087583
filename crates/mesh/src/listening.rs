//! Listeners: the patterns and the queue groups of this site and of the others.
//!
//! Each site tells all others its listeners when they have changed, and again from time to time: a frame may be lost.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use broker::{Broker, LiveTopic};
use engine::TopicName;
use engine::mesh::{
    ChangedListeners, Groups, LISTENERS_PER_SITE_MAX, ListenedTopics, Listeners, OwnGroups, SiteListener, SiteName,
};

use crate::frame::Frame;
use crate::live::Outgoing;
use crate::running::{Path, Running};

/// Shortest interval in ms between two lists of listeners that a site tells.
const TELL_PAUSE_MS: u64 = 100;
/// Time in ms after which all sites are told the listeners again.
const TELL_AGAIN_MS: u64 = 60_000;
/// Maximum topics that this site remembers to have refused. If it refuses more, the other sites try all of them again.
const REFUSED_MAX: usize = 4096;

/// Known listeners of all sites.
///
/// Locked after the forwards of a topic, and before the links. The live topics are never locked while it is.
#[derive(Default)]
pub(crate) struct Listening {
    listeners: Listeners,
    /// Generation of the list of this site.
    generation: u64,
    /// `true` if the other sites have to be told the list.
    is_untold: bool,
    /// Time at which they were last told.
    told_ms: u64,
    /// Topics whose streams this site has stopped.
    refused_here: HashSet<TopicName>,
    /// Generations of the lists of other sites.
    heard: HashMap<SiteName, u64>,
    /// Topics that other sites do not take, although listeners match them.
    refused: HashMap<SiteName, HashSet<TopicName>>,
    /// Number that changes with the listeners, the refusals and the paths to sites.
    version: u64,
}

impl Running {
    /// Tells the other sites the listeners of this site if they have changed. Returns `true` if the queue groups of its
    /// topics are among them, and `false` if there are too many.
    pub(crate) fn follow_listeners(self: &Arc<Self>, broker: &Broker, live: &[LiveTopic]) -> bool {
        let patterns = broker.listened_patterns(LISTENERS_PER_SITE_MAX).into_iter().collect();
        let with_groups = live.iter().filter(|topic| !topic.groups.is_empty());
        let groups: OwnGroups = with_groups.map(|topic| (topic.name.clone(), topic.groups.clone())).collect();
        let now_ms = self.clock_ms();
        // Not under the lock, which the paths of records take: each topic is a look at the broker's table.
        let mut taken: Vec<TopicName> = self.listening.lock().refused_here.iter().cloned().collect();
        taken.retain(|topic| broker.takes_from_sites(topic));
        let mut listening = self.listening.lock();
        let had_too_many = listening.listeners.has_too_many();
        let (has_news, changed) = listening.listeners.set_own(patterns, groups);
        let has_too_many = listening.listeners.has_too_many();
        if has_too_many && !had_too_many {
            tracing::warn!(
                "clients of this site have more than {LISTENERS_PER_SITE_MAX} patterns and queue groups: it takes the \
                 records of all live topics, and its queue groups get them, too, if groups of other sites do"
            );
        }
        let takes_more = taken.iter().filter(|topic| listening.refused_here.remove(*topic)).count() > 0;
        listening.is_untold |= has_news || takes_more;
        let since_ms = now_ms.saturating_sub(listening.told_ms);
        if (listening.is_untold && since_ms >= TELL_PAUSE_MS) || since_ms >= TELL_AGAIN_MS {
            if listening.is_untold {
                listening.generation = self.next_run();
            }
            listening.is_untold = false;
            listening.told_ms = now_ms;
            drop(listening);
            let others = self.reachable();
            others.iter().filter(|site| *site != self.site()).for_each(|site| self.tell_listeners(site));
        } else {
            drop(listening);
        }
        let concerned = self.concerned(&changed, &HashSet::new());
        for outgoing in &concerned {
            let at = live.binary_search_by(|topic| topic.name.cmp(&outgoing.topic));
            outgoing.note_own_groups(broker, at.map(|at| live[at].groups.clone()).unwrap_or_default());
        }
        self.follow_all_of(&concerned);
        !has_too_many
    }

    /// Tells a site the listeners of this one, if it has had any.
    pub(crate) fn tell_listeners(&self, site: &SiteName) {
        let listening = self.listening.lock();
        let generation = listening.generation;
        let listeners = if listening.listeners.has_too_many() {
            vec![SiteListener { topics: ListenedTopics::Wildcard(">".into()), group: None }]
        } else {
            listening.listeners.own()
        };
        drop(listening);
        if generation != 0 {
            self.send_to(site, Frame::Listening { generation, listeners });
        }
    }

    pub(crate) fn on_listening(self: &Arc<Self>, from: &SiteName, generation: u64, listeners: Vec<SiteListener>) {
        // A hub may relay a frame of a site that was just removed, or lie.
        if from == self.site() || self.members.lock().get(from).is_none() {
            return;
        }
        let mut listening = self.listening.lock();
        let before = listening.heard.get(from).copied().unwrap_or_default();
        if generation < before {
            // It came on another path than the newer one.
            return;
        }
        listening.heard.insert(from.clone(), generation);
        let changed = listening.listeners.set(from, listeners);
        let refused = listening.refused.entry(from.clone()).or_default();
        let again: HashSet<TopicName> = match &changed {
            Ok(changed) if changed.is_empty() && generation > before => std::mem::take(refused),
            Ok(changed) => refused.extract_if(|topic| changed.concerns(topic)).collect(),
            Err(_) => HashSet::new(),
        };
        listening.version += 1;
        drop(listening);
        match changed {
            Ok(changed) => self.follow_changed(&changed, &again),
            Err(error) => {
                tracing::warn!(site = %from, %error, "the listeners of a site are not known here");
                self.follow_all();
            }
        }
    }

    /// Forgets the listeners of a site that was removed, or could not be reached for long.
    pub(crate) fn forget_listeners_of(self: &Arc<Self>, site: &SiteName) {
        let mut listening = self.listening.lock();
        listening.heard.remove(site);
        listening.refused.remove(site);
        listening.version += 1;
        let changed = listening.listeners.forget(site);
        drop(listening);
        self.follow_changed(&changed, &HashSet::new());
    }

    /// Notes that this site has stopped the stream of a topic, so that it tells when it takes the topic.
    pub(crate) fn note_refusal(&self, topic: &TopicName) {
        let mut listening = self.listening.lock();
        if listening.refused_here.len() >= REFUSED_MAX {
            listening.refused_here.clear();
            listening.is_untold = true;
        }
        listening.refused_here.insert(topic.clone());
    }

    /// Notes that a site does not take a topic, until it tells otherwise.
    pub(crate) fn note_refused(self: &Arc<Self>, outgoing: &Arc<Outgoing>, site: &SiteName) {
        let mut listening = self.listening.lock();
        listening.refused.entry(site.clone()).or_default().insert(outgoing.topic.clone());
        listening.version += 1;
        drop(listening);
        // Another site may have members of its queue groups.
        self.follow_receivers(outgoing);
    }

    /// Forgets which sites do not take topics that are no longer live here.
    pub(crate) fn forget_refused(&self, topics: &[TopicName]) {
        if topics.is_empty() {
            return;
        }
        for refused in self.listening.lock().refused.values_mut() {
            refused.retain(|topic| !topics.contains(topic));
        }
    }

    /// Finds the receivers of all topics again, as sites are reached on other paths.
    pub(crate) fn paths_have_changed(self: &Arc<Self>) {
        self.listening.lock().version += 1;
        self.follow_all();
    }

    /// Returns a number that changes when the receivers of topics may be others.
    pub(crate) fn listening_version(&self) -> u64 {
        self.listening.lock().version
    }

    /// Returns the sites that get a topic, with the queue groups that are served there: `readers`, by the directory,
    /// and those with listeners.
    pub(crate) fn receivers_of(&self, topic: &TopicName, readers: &[SiteName]) -> BTreeMap<SiteName, Groups> {
        let listening = self.listening.lock();
        let has_refused = |site: &SiteName| listening.refused.get(site).is_some_and(|topics| topics.contains(topic));
        let distance = |site: &SiteName| match self.path(site)? {
            _ if has_refused(site) => None,
            Path::Direct(_) => Some(0),
            Path::Relayed(_) => Some(1),
        };
        let mut receivers = listening.listeners.receivers(topic, readers, distance);
        receivers.retain(|site, _| readers.contains(site) || !has_refused(site));
        receivers
    }

    /// Returns the queue groups of this site that get records of another one, which has chosen these.
    pub(crate) fn groups_here(&self, chosen: &Groups) -> Groups {
        if self.listening.lock().listeners.has_too_many() { Groups::All } else { chosen.clone() }
    }

    /// Returns the number of listeners of other sites.
    pub(crate) fn listeners(&self) -> u64 {
        self.listening.lock().listeners.len() as u64
    }

    fn follow_changed(self: &Arc<Self>, changed: &ChangedListeners, again: &HashSet<TopicName>) {
        self.follow_all_of(&self.concerned(changed, again));
    }

    /// Returns the topics whose receivers may be others after a change.
    fn concerned(&self, changed: &ChangedListeners, again: &HashSet<TopicName>) -> Vec<Arc<Outgoing>> {
        if changed.is_empty() && again.is_empty() {
            return Vec::new();
        }
        self.listening.lock().version += 1;
        let outgoing = self.outgoing.lock();
        let is_concerned = |of: &&Arc<Outgoing>| again.contains(&of.topic) || changed.concerns(&of.topic);
        outgoing.values().filter(is_concerned).cloned().collect()
    }

    fn follow_all_of(self: &Arc<Self>, concerned: &[Arc<Outgoing>]) {
        concerned.iter().for_each(|outgoing| self.follow_receivers(outgoing));
    }

    fn follow_all(self: &Arc<Self>) {
        let all: Vec<Arc<Outgoing>> = self.outgoing.lock().values().cloned().collect();
        all.iter().for_each(|outgoing| self.follow_receivers(outgoing));
    }
}
