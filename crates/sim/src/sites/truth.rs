//! Knowledge of an observer of all sites: who reads which topic, and since when.

use std::collections::BTreeMap;

use consensus::Time;
use engine::mesh::SiteName;

use super::roster::{End, Id, Roster, Topic};

/// Reading of a topic at a site.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Time since which clients of the live site read; `None` if they do not.
    pub since: Option<Time>,
    /// Time at which they last stopped.
    pub until: Option<Time>,
    /// End of the site, if they stopped because of that.
    pub end: Option<End>,
}

/// Times for which changes do not count: those of readers and of the list of sites, and crashes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Within {
    pub changed: Time,
    pub crashed: Time,
}

/// Sites by topic that read it or have read it.
pub(super) struct Truth {
    topics: Vec<BTreeMap<Id, Reading>>,
}

/// Differences between the sites that a publisher used and those that read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Sites that have read for long and were not used.
    pub missing: u64,
    /// Sites that live, stopped reading long ago and were used.
    pub wrong: u64,
    /// Sites that ended long ago and were used.
    pub ended: u64,
    /// Sites that ended a short time ago and were used.
    pub ending: u64,
    /// One of these sites.
    pub example: Option<Id>,
}

impl Truth {
    pub fn new(topics: usize) -> Self {
        Self { topics: (0..topics).map(|_| BTreeMap::new()).collect() }
    }

    pub fn begin(&mut self, topic: Topic, site: Id, now: Time) {
        let reading = self.topics[topic as usize].entry(site).or_default();
        reading.since = reading.since.or(Some(now));
    }

    pub fn end(&mut self, topic: Topic, site: Id, end: Option<End>, now: Time) {
        if let Some(reading) = self.topics[topic as usize].get_mut(&site).filter(|reading| reading.since.is_some()) {
            *reading = Reading { since: None, until: Some(now), end };
        }
    }

    /// Returns the sites that read a topic now.
    pub fn readers(&self, topic: Topic) -> impl Iterator<Item = (Id, Time)> + '_ {
        self.topics[topic as usize].iter().filter_map(|(site, reading)| Some((*site, reading.since?)))
    }

    pub fn of(&self, topic: Topic, site: Id) -> Reading {
        self.topics[topic as usize].get(&site).copied().unwrap_or_default()
    }

    /// Compares the sites that `publisher` used for a topic with those that read it: changes within `within` do not
    /// count.
    pub fn compare(
        &self,
        roster: &Roster,
        (publisher, topic): (Id, Topic),
        used: &[SiteName],
        within: Within,
        now: Time,
    ) -> Differences {
        let mut found = Differences::default();
        for (site, since) in self.readers(topic).filter(|(site, _)| *site != publisher) {
            if now - since > within.changed && used.binary_search(roster.name(site)).is_err() {
                found.missing += 1;
                found.example = Some(site);
            }
        }
        for name in used {
            let site = roster.id(name);
            let Reading { since: None, until, end } = self.of(topic, site) else { continue };
            let within = if end == Some(End::Crashed) { within.crashed } else { within.changed };
            let is_old = until.is_none_or(|until| now - until > within);
            match end {
                None if is_old => found.wrong += 1,
                None => continue,
                Some(_) if is_old => found.ended += 1,
                Some(_) => {
                    found.ending += 1;
                    continue;
                }
            }
            found.example = Some(site);
        }
        found
    }
}
