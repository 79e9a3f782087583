//! Interest of a site: the topics whose records it wants, and what it has announced to their owners.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use super::{ADVERTISE_TTL_MS, DIRECTORY_REPLICAS, highest, rank, site_hash, topic_hash};
use crate::ids::TopicName;
use crate::mesh::SiteName;

/// Maximum number of topics for which one call of [`Interest::due`] returns announcements.
pub const INTEREST_TOPICS_PER_CALL_MAX: usize = 1024;

/// Time in ms after which an advertisement is renewed: one may be lost without effect.
const RENEW_MS: u64 = ADVERTISE_TTL_MS / 2;

/// Message to an owner of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub to: SiteName,
    /// Number of the arrival of that site. It grows each time the site is told everything again.
    pub arrival: u64,
    pub topic: TopicName,
    pub kind: AnnouncementKind,
}

/// Kind of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnouncementKind {
    /// Site wants the records of the topic for the next `ttl_ms`.
    Advertise { ttl_ms: u64 },
    /// Site does not want them any more.
    Withdraw,
}

/// End of the advertisements that a site receives again after its arrival. What this site has advertised to it before,
/// and not again, it has withdrawn: the site may not have received that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    pub to: SiteName,
    pub arrival: u64,
    /// Number of the topics that are advertised since the arrival.
    pub topics: usize,
}

/// Topics whose records this site wants.
///
/// The caller sends what [`Interest::due`] returns, and may lose it: an advertisement is renewed after half of its time
/// to live, and one that was not withdrawn expires.
///
/// The caller bounds the number of topics, by that of the topics of the broker.
#[derive(Debug, Default)]
pub struct Interest {
    topics: HashMap<TopicName, Topic, foldhash::fast::RandomState>,
    /// Topics that have a time at which they are due, with that time.
    due: BTreeSet<(u64, TopicName)>,
    wanted_count: usize,
    /// List of sites of the last call, as it was given.
    list: Vec<SiteName>,
    /// Sites of that list in the order of their names.
    sites: Vec<Site>,
    /// Number of arrivals of sites.
    arrivals: u64,
    /// Time in ms of the latest advertisement to each site, unless it was longer ago than the time to live.
    advertised_ms: HashMap<SiteName, u64, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct Site {
    name: SiteName,
    hash: u64,
    /// Number of its arrival. It changes if the site leaves and returns: its directory may be empty then.
    arrival: u64,
    /// Time in ms at which all topics were due at the site again; `None` once they are advertised, or if it had not
    /// been told anything that may have to be withdrawn.
    repeats_ms: Option<u64>,
}

impl Site {
    fn announcement(&self, topic: &TopicName, kind: AnnouncementKind) -> Announcement {
        Announcement { to: self.name.clone(), arrival: self.arrival, topic: topic.clone(), kind }
    }
}

#[derive(Debug, Default)]
struct Topic {
    is_wanted: bool,
    /// Sites at which an advertisement of this site may not have expired yet.
    told: SmallVec<[Told; DIRECTORY_REPLICAS]>,
    /// Time in `due`.
    due_ms: Option<u64>,
}

/// Advertisement that was sent to a site.
#[derive(Debug)]
struct Told {
    site: SiteName,
    arrival: u64,
    sent_ms: u64,
}

impl Told {
    /// Returns `true` if it was sent since the arrival of a site.
    fn is_at(&self, site: &Site) -> bool {
        self.arrival == site.arrival && self.site == site.name
    }

    fn expires_ms(&self) -> u64 {
        self.sent_ms.saturating_add(ADVERTISE_TTL_MS)
    }

    fn renews_ms(&self) -> u64 {
        self.sent_ms.saturating_add(RENEW_MS)
    }
}

impl Interest {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether this site wants the records of a topic. A change is announced by the next call of
    /// [`Interest::due`], unless it is undone before.
    pub fn set(&mut self, topic: &TopicName, is_wanted: bool, now_ms: u64) {
        if self.is_wanted(topic) == is_wanted {
            return;
        }
        self.topics.entry(topic.clone()).or_default().is_wanted = is_wanted;
        self.wanted_count = if is_wanted { self.wanted_count + 1 } else { self.wanted_count - 1 };
        // One that is due already stays in its place among the advertisements that a site is sent again.
        let due_ms = self.topics.get(topic).and_then(|topic| topic.due_ms);
        self.schedule(topic, Some(due_ms.map_or(now_ms, |due_ms| due_ms.min(now_ms))));
    }

    pub fn is_wanted(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.is_wanted)
    }

    /// Returns the number of wanted topics.
    pub fn len(&self) -> usize {
        self.wanted_count
    }

    pub fn is_empty(&self) -> bool {
        self.wanted_count == 0
    }

    /// Returns the wanted topics in the order of their names.
    pub fn topics(&self) -> Vec<TopicName> {
        let wanted = self.topics.iter().filter(|(_, topic)| topic.is_wanted);
        let mut topics: Vec<TopicName> = wanted.map(|(name, _)| name.clone()).collect();
        topics.sort_unstable();
        topics
    }

    /// Returns the time in ms at which [`Interest::due`] has to be called, if the list of sites does not change; `None`
    /// if there is nothing to announce.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Returns the announcements that have to be sent now. `sites` has all live sites, also this one: an announcement
    /// to itself changes its own directory.
    ///
    /// - New interest is announced to the owners immediately, and again after half of its time to live.
    /// - If the list of sites has changed, owners that have not received an advertisement get one. A site that has left
    ///   and returned counts as one that has not.
    /// - Lost interest is withdrawn from each site at which an advertisement has not expired; from a site that is not
    ///   live, once it has returned.
    ///
    /// One call returns at most those of [`INTEREST_TOPICS_PER_CALL_MAX`] topics. If more are due,
    /// [`Interest::next_due_ms`] is not later than now.
    pub fn due(&mut self, sites: &[SiteName], now_ms: u64) -> Vec<Announcement> {
        if self.list != sites {
            self.set_sites(sites, now_ms);
            self.schedule_all(now_ms);
        }
        let mut announcements = Vec::new();
        for _ in 0..INTEREST_TOPICS_PER_CALL_MAX {
            if self.next_due_ms().is_none_or(|due_ms| due_ms > now_ms) {
                break;
            }
            let Some((_, topic)) = self.due.pop_first() else {
                break;
            };
            self.announce(&topic, now_ms, &mut announcements);
        }
        for Announcement { to, kind, .. } in &announcements {
            if matches!(kind, AnnouncementKind::Advertise { .. }) {
                self.advertised_ms.insert(to.clone(), now_ms);
            }
        }
        announcements
    }

    /// Returns the sites that have been sent all advertisements again since their arrival, each once. It has to be sent
    /// after what [`Interest::due`] has returned. A site that had not been told anything before is not among them.
    pub fn advertised(&mut self) -> Vec<Advertised> {
        let due_ms = self.next_due_ms();
        let mut advertised = Vec::new();
        for site in &mut self.sites {
            let is_done = |repeats_ms: &mut u64| due_ms.is_none_or(|due_ms| due_ms > *repeats_ms);
            if site.repeats_ms.take_if(is_done).is_some() {
                let has_current = |topic: &&Topic| topic.told.iter().any(|told| told.is_at(site));
                let topics = self.topics.values().filter(has_current).count();
                advertised.push(Advertised { to: site.name.clone(), arrival: site.arrival, topics });
            }
        }
        advertised
    }

    /// Records that a site may have lost its directory although it stayed in the list, as after a restart: it receives
    /// all advertisements again.
    pub fn reset_site(&mut self, site: &SiteName, now_ms: u64) {
        if let Ok(at) = self.sites.binary_search_by(|known| known.name.cmp(site)) {
            self.arrivals += 1;
            self.sites[at].arrival = self.arrivals;
            self.sites[at].repeats_ms = self.repeats_ms(site, now_ms);
            self.schedule_all(now_ms);
        }
    }

    /// Returns now if a site may have an advertisement from before.
    fn repeats_ms(&self, site: &SiteName, now_ms: u64) -> Option<u64> {
        let may_have = |at_ms: &u64| at_ms.saturating_add(ADVERTISE_TTL_MS) > now_ms;
        self.advertised_ms.get(site).is_some_and(may_have).then_some(now_ms)
    }

    fn set_sites(&mut self, list: &[SiteName], now_ms: u64) {
        self.advertised_ms.retain(|_, at_ms| at_ms.saturating_add(ADVERTISE_TTL_MS) > now_ms);
        self.list = list.to_vec();
        let mut names = list.to_vec();
        names.sort_unstable();
        names.dedup();
        let before = std::mem::take(&mut self.sites);
        for name in names {
            let known = before.binary_search_by(|known| known.name.cmp(&name));
            self.arrivals += u64::from(known.is_err());
            let (arrival, repeats_ms) = match known {
                Ok(at) => (before[at].arrival, before[at].repeats_ms),
                Err(_) => (self.arrivals, self.repeats_ms(&name, now_ms)),
            };
            self.sites.push(Site { hash: site_hash(&name), name, arrival, repeats_ms });
        }
    }

    /// Announces a topic that was removed from `due`, and sets the time at which it is due again.
    fn announce(&mut self, name: &TopicName, now_ms: u64, announcements: &mut Vec<Announcement>) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        topic.due_ms = None;
        topic.told.retain(|told| told.expires_ms() > now_ms);
        let due_ms = if topic.is_wanted {
            topic.advertise(name, &self.sites, now_ms, announcements)
        } else {
            topic.withdraw(name, &self.sites, announcements)
        };
        if !topic.is_wanted && topic.told.is_empty() {
            self.topics.remove(name);
        }
        self.schedule(name, due_ms);
    }

    /// Sets the time at which a topic is due.
    fn schedule(&mut self, name: &TopicName, due_ms: Option<u64>) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if let Some(before_ms) = std::mem::replace(&mut topic.due_ms, due_ms) {
            self.due.remove(&(before_ms, name.clone()));
        }
        self.due.extend(due_ms.map(|due_ms| (due_ms, name.clone())));
    }

    fn schedule_all(&mut self, now_ms: u64) {
        self.due = self.topics.keys().map(|name| (now_ms, name.clone())).collect();
        self.topics.values_mut().for_each(|topic| topic.due_ms = Some(now_ms));
        // A site that has not been sent all of them yet is sent the rest at this time, too.
        self.sites.iter_mut().filter_map(|site| site.repeats_ms.as_mut()).for_each(|repeats_ms| *repeats_ms = now_ms);
    }
}

impl Topic {
    /// Advertises the topic to the owners that have no advertisement, or an old one. Returns the time of the next
    /// renewal.
    fn advertise(
        &mut self,
        name: &TopicName,
        sites: &[Site],
        now_ms: u64,
        announcements: &mut Vec<Announcement>,
    ) -> Option<u64> {
        let hash = topic_hash(name);
        let mut renews_ms: Option<u64> = None;
        // Sites are in the order of their names, so equal ranks are ordered as in `owners`.
        for (_, at) in highest(sites.iter().enumerate().map(|(at, site)| (rank(hash, site.hash), at))) {
            let owner = &sites[at];
            let is_current = |told: &&Told| told.arrival == owner.arrival && told.renews_ms() > now_ms;
            let known = self.told.iter().find(|told| told.site == owner.name).filter(is_current);
            let sent_ms = known.map(|told| told.sent_ms).unwrap_or_else(|| {
                self.told.retain(|told| told.site != owner.name);
                self.told.push(Told { site: owner.name.clone(), arrival: owner.arrival, sent_ms: now_ms });
                let kind = AnnouncementKind::Advertise { ttl_ms: ADVERTISE_TTL_MS };
                announcements.push(owner.announcement(name, kind));
                now_ms
            });
            let owner_renews_ms = sent_ms.saturating_add(RENEW_MS);
            renews_ms = Some(renews_ms.map_or(owner_renews_ms, |before_ms| before_ms.min(owner_renews_ms)));
        }
        renews_ms
    }

    /// Withdraws the topic from all live sites. Returns the time at which the first advertisement of the others
    /// expires.
    fn withdraw(&mut self, name: &TopicName, sites: &[Site], announcements: &mut Vec<Announcement>) -> Option<u64> {
        self.told.retain(|told| {
            let live = sites.binary_search_by(|site| site.name.cmp(&told.site));
            announcements.extend(live.map(|at| sites[at].announcement(name, AnnouncementKind::Withdraw)));
            live.is_err()
        });
        self.told.iter().map(Told::expires_ms).min()
    }
}

#[cfg(test)]
#[path = "directory_interest_tests.rs"]
mod tests;
