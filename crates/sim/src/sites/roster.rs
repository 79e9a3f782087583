//! Sites that exist, as one structure that all simulated sites share.
//!
//! Differences between the sites are computed: when two of them have a link, and when one of them notices that another
//! has ended, are numbers of the seed and of the pair. So a list of sites per site takes no memory.

use std::collections::BTreeSet;

use consensus::Time;
use engine::TopicName;
use engine::mesh::{DIRECTORY_REPLICAS, SiteHashes, SiteName};

use super::MS;

pub(super) type Id = u32;
pub(super) type Topic = u32;
/// Owners of a topic as one site knows them, the one with the highest rank first.
pub(super) type Owners = Vec<Id>;

/// Times in ms of a link that is made, of a removal that is spread, and of a crash that is noticed.
const LINK_MS: (u64, u64) = (50, 500);
const LEAVE_MS: (u64, u64) = (50, 2000);
const CRASH_MS: (u64, u64) = (5000, 12_000);
/// Maximum time after which all sites know of a site that started, and of one that left.
pub(super) const LEARN_MAX: Time = LEAVE_MS.1 * MS;
/// Maximum time after which all sites have a link to a started one.
pub(super) const LINK_MAX: Time = LINK_MS.1 * MS;
/// Maximum time after which all sites have noticed a crash.
pub(super) const CRASH_MAX: Time = CRASH_MS.1 * MS;
/// Sites with the highest ranks that are kept for each topic, of which the first ones that live own it.
const RANKED: usize = 256;

/// End of a run of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Site was removed from the mesh: the others spread it.
    Left,
    /// Links time out.
    Crashed,
}

#[derive(Clone, Copy, Debug)]
struct Presence {
    is_up: bool,
    is_founder: bool,
    /// Number of starts.
    start: u32,
    started: Time,
    /// End of the latest run that has ended, with the number of its start.
    ended: Option<(Time, End, u32)>,
}

pub(super) struct Roster {
    seed: u64,
    names: Vec<SiteName>,
    topics: Vec<TopicName>,
    ranked: Vec<Vec<Id>>,
    presence: Vec<Presence>,
    /// Pairs of sites whose link has timed out because it is cut.
    unlinked: BTreeSet<(Id, Id)>,
    /// Computations of owners that had to rank all sites.
    pub full_rankings: u64,
}

/// Returns the number at the end of a name.
fn number_of(name: &str) -> u32 {
    name.bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

impl Roster {
    /// Creates `sites` names, of which the first `live` sites are up and linked, and `topics` topics.
    pub fn new(seed: u64, sites: usize, live: usize, topics: usize) -> Self {
        let name = |at: usize| SiteName::parse(&format!("site-{at:06}")).expect("invariant: a valid name");
        let names: Vec<SiteName> = (0..sites).map(name).collect();
        let topic = |at: usize| TopicName::parse(&format!("topic-{at:06}")).expect("invariant: a valid name");
        let topics: Vec<TopicName> = (0..topics).map(topic).collect();
        let hashes = SiteHashes::new(names.iter().cloned());
        let ids = |places: Vec<usize>| places.into_iter().map(|place| place as Id).collect();
        let ranked = topics.iter().map(|topic| ids(hashes.ranked(topic, RANKED))).collect();
        let presence = |at| Presence { is_up: at < live, is_founder: at < live, start: 0, started: 0, ended: None };
        Self {
            seed,
            names,
            topics,
            ranked,
            presence: (0..sites).map(presence).collect(),
            unlinked: BTreeSet::new(),
            full_rankings: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    pub fn name(&self, site: Id) -> &SiteName {
        &self.names[site as usize]
    }

    /// Returns the number of a site, which its name ends with.
    pub fn id(&self, name: &SiteName) -> Id {
        number_of(name.as_str())
    }

    pub fn topic(&self, topic: Topic) -> &TopicName {
        &self.topics[topic as usize]
    }

    /// Returns the number of a topic, which its name ends with.
    pub fn topic_id(&self, name: &TopicName) -> Topic {
        number_of(name.as_str())
    }

    /// Returns the first `count` sites by their ranks for a topic, whether they live or not.
    pub fn first(&self, topic: Topic, count: usize) -> &[Id] {
        let ranked = &self.ranked[topic as usize];
        &ranked[..count.min(ranked.len())]
    }

    pub fn is_up(&self, site: Id) -> bool {
        self.presence[site as usize].is_up
    }

    /// Returns `true` for a site that was up at first.
    pub fn is_founder(&self, site: Id) -> bool {
        self.presence[site as usize].is_founder
    }

    pub fn start_of(&self, site: Id) -> u32 {
        self.presence[site as usize].start
    }

    pub fn started(&self, site: Id) -> Time {
        self.presence[site as usize].started
    }

    pub fn note_start(&mut self, site: Id, now: Time) {
        let presence = &mut self.presence[site as usize];
        *presence = Presence { is_up: true, start: presence.start + 1, started: now, ..*presence };
    }

    pub fn note_end(&mut self, site: Id, end: End, now: Time) {
        let presence = &mut self.presence[site as usize];
        *presence = Presence { is_up: false, ended: Some((now, end, presence.start)), ..*presence };
    }

    /// Sets whether the link between two sites has timed out.
    pub fn set_unlinked(&mut self, pair: (Id, Id), is_unlinked: bool) {
        for pair in [pair, (pair.1, pair.0)] {
            if is_unlinked {
                self.unlinked.insert(pair);
            } else {
                self.unlinked.remove(&pair);
            }
        }
    }

    pub fn unlinked(&self) -> Vec<(Id, Id)> {
        self.unlinked.iter().copied().filter(|(from, to)| from < to).collect()
    }

    fn number(&self, parts: [u64; 3]) -> u64 {
        crate::violation::digest_after(self.seed ^ 0x6d65_7368, parts)
    }

    fn between(&self, (least, most): (u64, u64), parts: [u64; 3]) -> Time {
        (least + ((u128::from(self.number(parts)) * u128::from(most - least + 1)) >> 64) as u64) * MS
    }

    /// Returns the one-way delay between two sites.
    pub fn delay(&self, from: Id, to: Id, (least, most): (u64, u64)) -> Time {
        let (low, high) = (from.min(to), from.max(to));
        // In steps of 1/16 ms.
        self.between((16 * least, 16 * most), [1, low.into(), high.into()]) / 16
    }

    /// Returns the time at which two sites that are up have a link.
    pub fn links_at(&self, site: Id, of: Id) -> Time {
        let (low, high) = (site.min(of), site.max(of));
        let (a, b) = (self.presence[low as usize], self.presence[high as usize]);
        let begin = a.started.max(b.started);
        if begin == 0 {
            return 0;
        }
        let pair = u64::from(low) << 32 | u64::from(high);
        begin + self.between(LINK_MS, [2, pair, u64::from(a.start) << 32 ^ u64::from(b.start)])
    }

    /// Returns the time at which a site notices the end of another one.
    pub fn notices_at(&self, site: Id, of: Id) -> Option<Time> {
        let (at, end, start) = self.presence[of as usize].ended?;
        let span = if end == End::Left { LEAVE_MS } else { CRASH_MS };
        Some(at + self.between(span, [3, u64::from(site) << 32 | u64::from(of), start.into()]))
    }

    /// Returns `true` if a site can reach another one, as far as it knows.
    pub fn sees(&self, site: Id, of: Id, now: Time) -> bool {
        if site == of {
            return true;
        }
        if !self.unlinked.is_empty() && self.unlinked.contains(&(site, of)) {
            return false;
        }
        let other = &self.presence[of as usize];
        if other.is_up && now >= self.links_at(site, of) {
            return true;
        }
        // Links to the run before are not known to have ended.
        other.ended.is_some_and(|(at, ..)| self.started(site) < at)
            && self.notices_at(site, of).is_some_and(|at| now < at)
    }

    /// Returns `true` if a site has another one in its list of members.
    pub fn knows(&self, site: Id, of: Id, now: Time) -> bool {
        let other = &self.presence[of as usize];
        let is_removed = !other.is_up && other.ended.is_some_and(|(_, end, _)| end == End::Left);
        let was_member = other.ended.is_some() || other.is_founder;
        (was_member && !is_removed) || self.sees(site, of, now)
    }

    /// Returns the owners of a topic as a site knows them: those that `engine::mesh::owners` returns for all sites that
    /// it can reach.
    pub fn owners(&mut self, site: Id, topic: Topic, now: Time) -> Owners {
        let ranked = self.ranked[topic as usize].iter().copied();
        let owners: Owners = ranked.filter(|of| self.sees(site, *of, now)).take(DIRECTORY_REPLICAS).collect();
        if owners.len() == DIRECTORY_REPLICAS || self.len() <= RANKED {
            return owners;
        }
        // A site that has just started has few links: it ranks the sites that it can reach.
        let reachable = self.reachable(site, now);
        let owners = engine::mesh::owners(self.topic(topic), &reachable).iter().map(|name| self.id(name)).collect();
        self.full_rankings += 1;
        owners
    }

    /// Returns all sites that a site can reach, with itself, in the order of their names.
    pub fn reachable(&self, site: Id, now: Time) -> Vec<SiteName> {
        (0..self.len() as Id).filter(|of| self.sees(site, *of, now)).map(|of| self.name(of).clone()).collect()
    }
}
