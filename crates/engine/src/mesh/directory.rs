//! One-hop directory: which sites want the records of a topic.
//!
//! Each topic has [`DIRECTORY_REPLICAS`] *owners*, which every site computes from the list of sites. A site with
//! subscribers of a topic advertises it to the owners, and a site that publishes to it looks it up there, and watches
//! it: an owner pushes each change to the watchers. [`Directory`] is the part of the directory that one site owns, and
//! [`Interest`] keeps what one site advertises.
//!
//! The state is soft: an advertisement expires unless it is renewed, so that an error of a peer, or another opinion
//! about the list of sites, is corrected within [`ADVERTISE_TTL_MS`]. Times in ms are those of one clock that never
//! goes back.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use super::site::SiteName;
use crate::error::{Error, Result};
use crate::ids::TopicName;

#[path = "directory_interest.rs"]
mod interest;

pub use interest::{Advertised, Announcement, AnnouncementKind, INTEREST_TOPICS_PER_CALL_MAX, Interest};

/// Number of sites that own the entries of a topic.
pub const DIRECTORY_REPLICAS: usize = 3;
/// Time in ms for which a site advertises a topic. It renews the advertisement after half of this time.
pub const ADVERTISE_TTL_MS: u64 = 120_000;
/// Maximum time in ms for which an advertisement is kept without being renewed.
pub const ADVERTISE_TTL_MS_MAX: u64 = 3_600_000;
/// Maximum number of topics that one site advertises to another one.
pub const ADVERTISEMENTS_PER_SITE_MAX: usize = 100_000;
/// Maximum number of advertisements in the part of one site. One takes about 300 bytes.
pub const ADVERTISEMENTS_MAX: usize = 1_000_000;
/// Maximum number of sites that watch one topic: each change of it is sent to all of them.
pub const WATCHERS_PER_TOPIC_MAX: usize = 10_000;
/// Maximum number of topics that one site watches at another one.
pub const WATCHES_PER_SITE_MAX: usize = 100_000;
/// Maximum number of watches in the part of one site. One takes about 300 bytes.
pub const WATCHES_MAX: usize = 1_000_000;

const _: () = assert!(ADVERTISE_TTL_MS <= ADVERTISE_TTL_MS_MAX);
const _: () =
    assert!(crate::limits::TOPICS_MAX <= ADVERTISEMENTS_PER_SITE_MAX, "a broker may advertise all its topics");
const _: () = assert!(super::members::SITES_MAX <= WATCHERS_PER_TOPIC_MAX, "every site may watch a topic");

/// Owners of a topic, the one with the highest rank first.
pub type Owners = SmallVec<[SiteName; DIRECTORY_REPLICAS]>;

/// Sites that have to receive the current sites of a topic, since these have changed.
pub type Watchers = Vec<SiteName>;

/// Returns the owners of a topic: the [`DIRECTORY_REPLICAS`] sites with the highest ranks, or all if there are fewer.
///
/// This is rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): if a
/// site joins or leaves, only topics that it owns get another owner. Ranks are equal on all platforms and must never
/// change: sites with different versions have to agree. Of equal ranks, the lower name comes first.
pub fn owners<'a>(topic: &TopicName, sites: impl IntoIterator<Item = &'a SiteName>) -> Owners {
    let topic = topic_hash(topic);
    let ranked = sites.into_iter().map(|site| (rank(topic, site_hash(site)), site));
    highest(ranked).into_iter().map(|(_, site)| site.clone()).collect()
}

/// Sites with their hashes, to rank them for many topics: [`owners`] hashes the name of every site for each topic.
#[derive(Clone, Debug, Default)]
pub struct SiteHashes {
    sites: Vec<(u64, SiteName)>,
}

impl SiteHashes {
    /// Hashes the names of sites, each of which is given once.
    pub fn new(sites: impl IntoIterator<Item = SiteName>) -> Self {
        Self { sites: sites.into_iter().map(|site| (site_hash(&site), site)).collect() }
    }

    /// Returns the places of the `count` sites with the highest ranks for a topic, in the order of [`owners`]. The
    /// owners among any part of the sites are the first ones of this list that belong to the part.
    pub fn ranked(&self, topic: &TopicName, count: usize) -> Vec<usize> {
        let topic = topic_hash(topic);
        let mut highest: Vec<(u64, usize)> = Vec::with_capacity(count.min(self.sites.len()));
        for (place, (hash, site)) in self.sites.iter().enumerate() {
            let rank = rank(topic, *hash);
            if highest.len() == count && highest.last().is_none_or(|(lowest, _)| *lowest > rank) {
                continue;
            }
            let is_before = |(other, at): &(u64, usize)| *other > rank || (*other == rank && self.sites[*at].1 < *site);
            highest.insert(highest.partition_point(is_before), (rank, place));
            highest.truncate(count);
        }
        highest.into_iter().map(|(_, place)| place).collect()
    }
}

/// Returns the sites with the highest ranks, each once. Of equal ranks, the lower site comes first.
fn highest<S: Ord + Copy>(ranked: impl Iterator<Item = (u64, S)>) -> SmallVec<[(u64, S); DIRECTORY_REPLICAS]> {
    let mut highest = SmallVec::<[(u64, S); DIRECTORY_REPLICAS]>::new();
    for (rank, site) in ranked {
        let is_before = |other: &&(u64, S)| other.0 > rank || (other.0 == rank && other.1 <= site);
        let at = highest.iter().take_while(is_before).count();
        let is_known = at > 0 && highest[at - 1].1 == site;
        if at < DIRECTORY_REPLICAS && !is_known {
            highest.truncate(DIRECTORY_REPLICAS - 1);
            highest.insert(at, (rank, site));
        }
    }
    highest
}

pub(super) fn topic_hash(topic: &TopicName) -> u64 {
    mix(fnv1a(FNV_OFFSET, topic.as_str().as_bytes()))
}

/// Returns the hash of a site. The zero byte distinguishes it from that of a topic with the same name.
pub(super) fn site_hash(site: &SiteName) -> u64 {
    mix(fnv1a(fnv1a(FNV_OFFSET, &[0]), site.as_str().as_bytes()))
}

fn rank(topic_hash: u64, site_hash: u64) -> u64 {
    mix(topic_hash ^ site_hash)
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns the 64-bit FNV-1a hash (Fowler, Noll and Vo; RFC 9923) of bytes that follow those of `hash`.
pub(super) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

/// Returns the bits of a hash, mixed by the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", OOPSLA 2014; its variant 13 by Stafford). The high bits of FNV-1a alone depend too
/// little on the last bytes.
pub(super) fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Part of the directory that one site owns: advertisements and watches of all sites, also of its own.
#[derive(Debug, Default)]
pub struct Directory {
    advertisements: Entries,
    watches: Entries,
    limits: Limits,
}

/// Limits of a directory; tests have lower ones.
#[derive(Debug)]
struct Limits {
    advertisements_per_site: usize,
    advertisements: usize,
    watchers_per_topic: usize,
    watches_per_site: usize,
    watches: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            advertisements_per_site: ADVERTISEMENTS_PER_SITE_MAX,
            advertisements: ADVERTISEMENTS_MAX,
            watchers_per_topic: WATCHERS_PER_TOPIC_MAX,
            watches_per_site: WATCHES_PER_SITE_MAX,
            watches: WATCHES_MAX,
        }
    }
}

impl Directory {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or renews a site of a topic for `ttl_ms`, which is clamped to 1 to [`ADVERTISE_TTL_MS_MAX`]. Returns the
    /// watchers that have to be notified, which is none if the topic had the site already.
    ///
    /// `epoch` is a number that grows with each start of the site, and each time it advertises everything again. An
    /// advertisement of an earlier epoch is ignored.
    /// Fails with `busy` if a new one exceeds a limit; renewals never fail.
    pub fn advertise(
        &mut self,
        topic: &TopicName,
        site: &SiteName,
        epoch: u64,
        ttl_ms: u64,
        now_ms: u64,
    ) -> Result<Watchers> {
        let known = self.advertisements.find(topic, site);
        let is_present = known.is_some_and(|entry| entry.until_ms > now_ms);
        if is_present && known.is_some_and(|entry| entry.epoch > epoch) {
            return Ok(Watchers::new());
        }
        if known.is_none() {
            self.check_advertisements(site)?;
        }
        let until_ms = now_ms.saturating_add(ttl_ms.clamp(1, ADVERTISE_TTL_MS_MAX));
        self.advertisements.set(topic, site, epoch, until_ms);
        Ok(if is_present { Watchers::new() } else { self.watchers(topic) })
    }

    /// Removes a site of a topic, unless the site has advertised it in a later epoch. Returns the watchers that have to
    /// be notified.
    pub fn withdraw(&mut self, topic: &TopicName, site: &SiteName, epoch: u64) -> Watchers {
        let is_current = self.advertisements.find(topic, site).is_some_and(|entry| entry.epoch <= epoch);
        if is_current && self.advertisements.remove(topic, site) {
            return self.watchers(topic);
        }
        Watchers::new()
    }

    /// Removes the advertisements of a site that are of an earlier epoch than one in which it has advertised all of its
    /// topics again, which are `count`. Returns each topic that has lost the site and that is watched, with the
    /// watchers that have to be notified, in the order of the topics.
    ///
    /// If the directory does not have exactly `count` topics of the epoch, some were lost or refused, and nothing is
    /// removed: the advertisements of earlier epochs expire.
    pub fn complete(&mut self, site: &SiteName, epoch: u64, count: usize) -> Vec<(TopicName, Watchers)> {
        let topics = self.advertisements.sites.get(site).into_iter().flatten();
        let epochs = topics.filter_map(|topic| Some((topic, self.advertisements.find(topic, site)?.epoch)));
        let (mut current, mut earlier) = (0, BTreeSet::new());
        for (topic, of) in epochs {
            match of.cmp(&epoch) {
                Ordering::Less => _ = earlier.insert(topic.clone()),
                Ordering::Equal => current += 1,
                Ordering::Greater => {}
            }
        }
        if current != count {
            return Vec::new();
        }
        for topic in &earlier {
            self.advertisements.remove(topic, site);
        }
        self.with_watchers(earlier)
    }

    /// Returns the sites of a topic in the order of their names.
    pub fn lookup(&self, topic: &TopicName, now_ms: u64) -> Vec<SiteName> {
        let entries = self.advertisements.of_topic(topic).iter();
        entries.filter(|entry| entry.until_ms > now_ms).map(|entry| entry.site.clone()).collect()
    }

    /// Notifies a site of the changes of a topic until a time in ms. Each call replaces the one before of that site
    /// and topic. The caller bounds the time, and the site watches again before it. Fails with `busy` if a new watch
    /// exceeds a limit.
    pub fn watch(&mut self, topic: &TopicName, site: &SiteName, until_ms: u64) -> Result<()> {
        if self.watches.find(topic, site).is_none() {
            self.check_watches(topic, site)?;
        }
        self.watches.set(topic, site, 0, until_ms);
        Ok(())
    }

    /// Ends the notifications of a site about a topic. Returns `false` if the site does not watch it.
    pub fn unwatch(&mut self, topic: &TopicName, site: &SiteName) -> bool {
        self.watches.remove(topic, site)
    }

    /// Removes all entries of a site that has left. Returns each topic that it had advertised and that is watched, with
    /// the watchers that have to be notified, in the order of the topics.
    pub fn forget_site(&mut self, site: &SiteName) -> Vec<(TopicName, Watchers)> {
        self.watches.remove_site(site);
        let topics = self.advertisements.remove_site(site);
        self.with_watchers(topics)
    }

    /// Removes expired entries. Returns each topic that has lost a site and that is watched, with the watchers that
    /// have to be notified, in the order of the topics. A watcher whose watch has expired is not among them.
    pub fn sweep(&mut self, now_ms: u64) -> Vec<(TopicName, Watchers)> {
        self.watches.expire(now_ms);
        let topics = self.advertisements.expire(now_ms);
        self.with_watchers(topics)
    }

    /// Returns the time in ms at which [`Directory::sweep`] has to be called; `None` if nothing can expire.
    pub fn next_due_ms(&self) -> Option<u64> {
        let first = |entries: &Entries| entries.due.first().map(|(due_ms, ..)| *due_ms);
        first(&self.advertisements).into_iter().chain(first(&self.watches)).min()
    }

    /// Returns the number of advertisements, with those that have expired since the last sweep.
    pub fn len(&self) -> usize {
        self.advertisements.len()
    }

    pub fn is_empty(&self) -> bool {
        self.advertisements.len() == 0
    }

    /// Returns the number of watches, with those that have expired since the last sweep.
    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    fn watchers(&self, topic: &TopicName) -> Watchers {
        self.watches.of_topic(topic).iter().map(|entry| entry.site.clone()).collect()
    }

    fn with_watchers(&self, topics: BTreeSet<TopicName>) -> Vec<(TopicName, Watchers)> {
        let watched = topics.into_iter().map(|topic| (self.watchers(&topic), topic));
        watched.filter(|(watchers, _)| !watchers.is_empty()).map(|(watchers, topic)| (topic, watchers)).collect()
    }

    fn check_advertisements(&self, site: &SiteName) -> Result<()> {
        let Limits { advertisements_per_site, advertisements, .. } = self.limits;
        if self.advertisements.of_site(site) >= advertisements_per_site {
            return Err(Error::busy(format!(
                "limit of the topics that site {site} advertises to one site reached ({advertisements_per_site}): \
                 subscribe to fewer topics of the mesh at site {site}"
            )));
        }
        if self.len() >= advertisements {
            return Err(Error::busy(format!(
                "limit of the advertisements at one site reached ({advertisements}): add sites, which share them, or \
                 subscribe to fewer topics of the mesh"
            )));
        }
        Ok(())
    }

    fn check_watches(&self, topic: &TopicName, site: &SiteName) -> Result<()> {
        let Limits { watchers_per_topic, watches_per_site, watches, .. } = self.limits;
        if self.watches.of_topic(topic).len() >= watchers_per_topic {
            return Err(Error::busy(format!(
                "limit of the watchers of topic {topic} reached ({watchers_per_topic}): look the topic up periodically \
                 instead"
            )));
        }
        if self.watches.of_site(site) >= watches_per_site {
            return Err(Error::busy(format!(
                "limit of the topics that site {site} watches at one site reached ({watches_per_site}): end a watch, \
                 or look topics up periodically instead"
            )));
        }
        if self.watch_count() >= watches {
            return Err(Error::busy(format!(
                "limit of the watches at one site reached ({watches}): add sites, which share them, or look topics up \
                 periodically instead"
            )));
        }
        Ok(())
    }
}

/// Entries by topic and site that expire.
///
/// Invariant: `topics`, `sites` and `due` have the same pairs of topic and site, and `len` is their number.
#[derive(Debug, Default)]
struct Entries {
    /// Entries of each topic in the order of their sites.
    topics: HashMap<TopicName, SmallVec<[Entry; 1]>, foldhash::fast::RandomState>,
    /// Topics of each site.
    sites: HashMap<SiteName, BTreeSet<TopicName>, foldhash::fast::RandomState>,
    /// Time at which each entry is checked for its expiry, its `due_ms`.
    due: BTreeSet<(u64, TopicName, SiteName)>,
    len: usize,
}

#[derive(Debug)]
struct Entry {
    site: SiteName,
    epoch: u64,
    /// Time in ms from which on the entry has expired.
    until_ms: u64,
    /// At most `until_ms`: a renewal leaves it, so that it costs nothing but a search.
    due_ms: u64,
}

impl Entries {
    fn len(&self) -> usize {
        self.len
    }

    fn of_topic(&self, topic: &TopicName) -> &[Entry] {
        self.topics.get(topic).map_or(&[], |entries| entries)
    }

    /// Returns the number of topics of a site.
    fn of_site(&self, site: &SiteName) -> usize {
        self.sites.get(site).map_or(0, BTreeSet::len)
    }

    fn find(&self, topic: &TopicName, site: &SiteName) -> Option<&Entry> {
        let entries = self.of_topic(topic);
        entries.binary_search_by(|entry| entry.site.cmp(site)).ok().map(|at| &entries[at])
    }

    /// Adds or replaces an entry.
    fn set(&mut self, topic: &TopicName, site: &SiteName, epoch: u64, until_ms: u64) {
        // Names that arrive in messages each have their own memory: those of known entries are used again.
        let topic = self.topics.get_key_value(topic).map_or(topic, |(known, _)| known).clone();
        let site = self.sites.get_key_value(site).map_or(site, |(known, _)| known).clone();
        let entries = self.topics.entry(topic.clone()).or_default();
        match entries.binary_search_by(|entry| entry.site.cmp(&site)) {
            Ok(at) => {
                let entry = &mut entries[at];
                entry.epoch = epoch;
                entry.until_ms = until_ms;
                if until_ms < entry.due_ms {
                    let due_ms = std::mem::replace(&mut entry.due_ms, until_ms);
                    self.due.remove(&(due_ms, topic.clone(), site.clone()));
                    self.due.insert((until_ms, topic, site));
                }
            }
            Err(at) => {
                entries.insert(at, Entry { site: site.clone(), epoch, until_ms, due_ms: until_ms });
                self.len += 1;
                self.sites.entry(site.clone()).or_default().insert(topic.clone());
                self.due.insert((until_ms, topic, site));
            }
        }
    }

    fn remove(&mut self, topic: &TopicName, site: &SiteName) -> bool {
        let Some(entries) = self.topics.get_mut(topic) else {
            return false;
        };
        let Ok(at) = entries.binary_search_by(|entry| entry.site.cmp(site)) else {
            return false;
        };
        let Entry { site, due_ms, .. } = entries.remove(at);
        if entries.is_empty() {
            self.topics.remove(topic);
        }
        if let Some(topics) = self.sites.get_mut(&site) {
            topics.remove(topic);
            if topics.is_empty() {
                self.sites.remove(&site);
            }
        }
        self.due.remove(&(due_ms, topic.clone(), site));
        self.len -= 1;
        true
    }

    /// Removes the entries of a site, and returns their topics.
    fn remove_site(&mut self, site: &SiteName) -> BTreeSet<TopicName> {
        let topics = self.sites.remove(site).unwrap_or_default();
        for topic in &topics {
            self.remove(topic, site);
        }
        topics
    }

    /// Removes the expired entries, and returns their topics.
    fn expire(&mut self, now_ms: u64) -> BTreeSet<TopicName> {
        let mut expired = BTreeSet::new();
        while self.due.first().is_some_and(|(due_ms, ..)| *due_ms <= now_ms)
            && let Some((_, topic, site)) = self.due.pop_first()
        {
            if let Some(until_ms) = self.put_off(&topic, &site, now_ms) {
                self.due.insert((until_ms, topic, site));
            } else {
                self.remove(&topic, &site);
                expired.insert(topic);
            }
        }
        expired
    }

    /// Moves the check of an entry that was renewed to its new time, and returns that; `None` if the entry has expired.
    fn put_off(&mut self, topic: &TopicName, site: &SiteName, now_ms: u64) -> Option<u64> {
        let entries = self.topics.get_mut(topic)?;
        let at = entries.binary_search_by(|entry| entry.site.cmp(site)).ok()?;
        let entry = Some(&mut entries[at]).filter(|entry| entry.until_ms > now_ms)?;
        entry.due_ms = entry.until_ms;
        Some(entry.until_ms)
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
