//! Subscriber cache: the sites that want what is published to a topic, for the topics to which this site publishes.
//!
//! A publisher looks its topic up here for each batch. The directory is queried once per topic and time to live,
//! whatever the rate of the publishers:
//!
//! - A *miss* has one query; further callers wait for its answer (single flight).
//! - An *expired* entry is still used, for at most `max_stale_ms`, while one query refreshes it.
//! - A topic without any site is an entry, too.
//! - A query does not begin within `min_discovery_interval_ms` of the one before. A caller that has nothing to use then
//!   is told when to look up again, so the interval delays records, but drops none.
//!
//! The caller queries the directory, and has the waiters look up again once an answer was stored or the query failed.
//! Times in ms are those of one clock that never goes back.
//!
//! An entry takes [`CACHE_ENTRY_BYTES`], the bytes of the topic's name, and 16 bytes for each site, in addition to the
//! names of the sites if they are not shared. There are at most `entries_max` entries, and no other memory.

use std::str::FromStr;
use std::sync::Arc;

use super::cache_lru::Lru;
use super::site::SiteName;
use super::status::CacheStats;
use crate::error::{Error, Result};
use crate::ids::TopicName;

/// Time in ms for which an entry is fresh, by default.
pub const CACHE_TTL_MS: u64 = 5000;
/// Minimum time in ms between the beginnings of two queries for one topic, by default.
pub const MIN_DISCOVERY_INTERVAL_MS: u64 = 2000;
/// Time in ms for which an expired entry is used, by default.
pub const CACHE_STALE_MS_MAX: u64 = 60_000;
/// Time in ms after which a query without answer counts as failed, by default. It bounds how long waiters are blocked
/// by a caller that was cancelled.
pub const QUERY_TIMEOUT_MS: u64 = 5000;
/// Number of topics in a cache, by default.
pub const CACHE_ENTRIES_MAX: usize = 1000;
/// Maximum factor by which the time to live of an adaptive entry grows.
pub const ADAPTIVE_TTL_FACTOR_MAX: u64 = 6;
/// Minimum number of lookups per time to live for which the time to live of an adaptive entry grows.
pub const ADAPTIVE_LOOKUPS_MIN: u64 = 2;
/// Maximum bytes of an entry, without the names and the list of its sites.
pub const CACHE_ENTRY_BYTES: usize = 160;

/// Sites in the order of their names.
pub type Sites = Arc<[SiteName]>;

/// Settings of discovery for a kind of workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscoveryPreset {
    /// Changes are noticed early, at the cost of more queries.
    LowLatency,
    /// Few queries, for subscribers that seldom change.
    HighThroughput,
    /// Subscribers that come and go.
    #[default]
    Dynamic,
}

impl DiscoveryPreset {
    pub const ALL: [Self; 3] = [Self::LowLatency, Self::HighThroughput, Self::Dynamic];

    pub fn name(self) -> &'static str {
        match self {
            Self::LowLatency => "low-latency",
            Self::HighThroughput => "high-throughput",
            Self::Dynamic => "dynamic",
        }
    }
}

impl FromStr for DiscoveryPreset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|preset| preset.name() == text);
        known.ok_or_else(|| {
            Error::invalid(format!("a preset of discovery is low-latency, high-throughput or dynamic, not '{text}'"))
        })
    }
}

/// Settings of a subscriber cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Time in ms for which an entry is fresh. 0 switches the cache off: each lookup is a miss with its own query.
    pub ttl_ms: u64,
    /// Minimum time in ms between the beginnings of two queries for one topic.
    pub min_discovery_interval_ms: u64,
    /// Time in ms for which an expired entry is used.
    pub max_stale_ms: u64,
    /// Time in ms after which a query without answer counts as failed.
    pub query_timeout_ms: u64,
    /// Maximum number of topics, clamped to 1 to 1,048,576. If there are more, the least recently used one is evicted.
    pub entries_max: usize,
    /// `true` if the time to live of an entry grows, by doubling to [`ADAPTIVE_TTL_FACTOR_MAX`] times `ttl_ms`, while
    /// its queries return the same sites and it is looked up [`ADAPTIVE_LOOKUPS_MIN`] times per time to live.
    pub is_adaptive: bool,
}

impl CacheSettings {
    pub fn preset(preset: DiscoveryPreset) -> Self {
        let (ttl_ms, min_discovery_interval_ms) = match preset {
            DiscoveryPreset::LowLatency => (2000, 1000),
            DiscoveryPreset::HighThroughput => (30_000, 10_000),
            DiscoveryPreset::Dynamic => (CACHE_TTL_MS, MIN_DISCOVERY_INTERVAL_MS),
        };
        Self {
            ttl_ms,
            min_discovery_interval_ms,
            max_stale_ms: CACHE_STALE_MS_MAX,
            query_timeout_ms: QUERY_TIMEOUT_MS,
            entries_max: CACHE_ENTRIES_MAX,
            is_adaptive: false,
        }
    }

    /// Returns `true` if nothing is cached.
    pub fn is_off(&self) -> bool {
        self.ttl_ms == 0
    }
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self::preset(DiscoveryPreset::default())
    }
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Fresh sites, maybe none.
    Hit(Sites),
    /// Sites of an expired entry, to be used.
    Stale {
        sites: Sites,
        /// `true` if the caller has to query the directory. The query has begun: the caller stores its answer, or
        /// reports its failure.
        is_refresh_due: bool,
    },
    /// No sites are known: the caller waits for an answer.
    Miss {
        /// `true` if the caller has to query the directory. The query has begun: the caller stores its answer, or
        /// reports its failure.
        is_query_due: bool,
        /// Time in ms at which the caller looks up again if no answer was stored before.
        retry_at_ms: u64,
    },
}

/// Sites by topic, with the latest query for each.
#[derive(Debug)]
pub struct SubscriberCache {
    settings: CacheSettings,
    entries: Lru<TopicName, Entry>,
    /// Counters; the size of the table is counted when they are read.
    stats: CacheStats,
}

#[derive(Debug, Default)]
struct Entry {
    known: Option<Known>,
    query: Query,
}

/// Sites that the directory returned or pushed.
#[derive(Debug)]
struct Known {
    sites: Sites,
    stored_ms: u64,
    /// Time in ms after `stored_ms` for which the sites are fresh.
    ttl_ms: u64,
    /// Number of lookups since `counted_ms`: since these sites were answered, or others were known.
    lookups: u32,
    counted_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    Fresh,
    Stale,
    Unusable,
}

/// Latest query for a topic. It is kept apart from the sites: an invalidation removes them, but not the limit.
#[derive(Debug, Default)]
struct Query {
    begun_ms: Option<u64>,
    /// `true` until an answer is stored or the query fails. It has no meaning after the timeout.
    is_outstanding: bool,
    /// `true` if the sites were changed or invalidated while the query was outstanding: its answer may be older.
    is_overtaken: bool,
}

impl Known {
    /// Replaces the sites of an entry, and returns them. Equal sites stay in the memory that they have.
    fn replace(known: &mut Option<Self>, sites: Vec<SiteName>, ttl_ms: u64, now_ms: u64) -> Sites {
        let same = known.take().map(|known| known.sites).filter(|before| before[..] == sites[..]);
        let sites = same.unwrap_or_else(|| sites.into());
        *known = Some(Self { sites: sites.clone(), stored_ms: now_ms, ttl_ms, lookups: 0, counted_ms: now_ms });
        sites
    }

    fn freshness(&self, settings: &CacheSettings, now_ms: u64) -> Freshness {
        let age_ms = now_ms.saturating_sub(self.stored_ms);
        if age_ms < self.ttl_ms {
            return Freshness::Fresh;
        }
        if age_ms - self.ttl_ms < settings.max_stale_ms { Freshness::Stale } else { Freshness::Unusable }
    }

    /// Returns the time to live after a query that began at `begun_ms` and returned the same sites.
    fn next_ttl_ms(&self, settings: &CacheSettings, begun_ms: u64) -> u64 {
        let elapsed_ms = begun_ms.saturating_sub(self.counted_ms).max(self.ttl_ms);
        let per_ttl = u64::from(self.lookups).saturating_mul(self.ttl_ms);
        let is_busy = per_ttl >= elapsed_ms.saturating_mul(ADAPTIVE_LOOKUPS_MIN);
        let next_ms = if is_busy { self.ttl_ms.saturating_mul(2) } else { self.ttl_ms };
        next_ms.clamp(settings.ttl_ms, settings.ttl_ms.saturating_mul(ADAPTIVE_TTL_FACTOR_MAX))
    }
}

impl Query {
    /// Returns `true` if a query begins now, which the caller has to send.
    fn claim(&mut self, settings: &CacheSettings, stats: &mut CacheStats, now_ms: u64) -> bool {
        if self.is_limited(settings, now_ms) {
            stats.rate_limited += 1;
            return false;
        }
        if self.is_waited_for(settings, now_ms) {
            return false;
        }
        *self = Self { begun_ms: Some(now_ms), is_outstanding: true, is_overtaken: false };
        true
    }

    /// Returns `true` if the query began less than the minimum interval ago.
    fn is_limited(&self, settings: &CacheSettings, now_ms: u64) -> bool {
        self.begun_ms.is_some_and(|begun_ms| now_ms.saturating_sub(begun_ms) < settings.min_discovery_interval_ms)
    }

    /// Returns `true` if the query may still be answered.
    fn is_waited_for(&self, settings: &CacheSettings, now_ms: u64) -> bool {
        let is_early = |begun_ms: u64| now_ms.saturating_sub(begun_ms) < settings.query_timeout_ms;
        self.is_outstanding && self.begun_ms.is_some_and(is_early)
    }

    /// Returns the time at which another query may begin if this one is not answered.
    fn retry_at_ms(&self, settings: &CacheSettings) -> u64 {
        let timeout_ms = if self.is_outstanding { settings.query_timeout_ms } else { 0 };
        let begun_ms = self.begun_ms.unwrap_or_default();
        begun_ms.saturating_add(timeout_ms.max(settings.min_discovery_interval_ms))
    }
}

impl SubscriberCache {
    pub fn new(settings: CacheSettings) -> Self {
        Self { settings, entries: Lru::new(settings.entries_max), stats: CacheStats::default() }
    }

    pub fn settings(&self) -> &CacheSettings {
        &self.settings
    }

    /// Returns the sites that want what is published to a topic, and whether the caller has to query the directory: of
    /// all callers exactly one has to, until the query times out.
    pub fn lookup(&mut self, topic: &TopicName, now_ms: u64) -> Lookup {
        let settings = self.settings;
        if settings.is_off() {
            self.stats.misses += 1;
            return Lookup::Miss { is_query_due: true, retry_at_ms: now_ms.saturating_add(settings.query_timeout_ms) };
        }
        let at = self.find_or_insert(topic);
        self.entries.touch(at);
        let Entry { known, query } = self.entries.value_mut(at);
        let usable = known.as_mut().map(|known| (known.freshness(&settings, now_ms), known));
        let Some((freshness, known)) = usable.filter(|(freshness, _)| *freshness != Freshness::Unusable) else {
            self.stats.misses += 1;
            let is_query_due = query.claim(&settings, &mut self.stats, now_ms);
            return Lookup::Miss { is_query_due, retry_at_ms: query.retry_at_ms(&settings) };
        };
        self.stats.hits += 1;
        known.lookups = known.lookups.saturating_add(1);
        let sites = known.sites.clone();
        if freshness == Freshness::Fresh {
            return Lookup::Hit(sites);
        }
        Lookup::Stale { sites, is_refresh_due: query.claim(&settings, &mut self.stats, now_ms) }
    }

    /// Begins a query that no lookup requires, such as one before an entry expires. Returns `false` if the caller must
    /// not send it: one is outstanding, or began less than the minimum interval ago.
    ///
    /// A lookup that returns `true` for its query has begun it already.
    pub fn begin(&mut self, topic: &TopicName, now_ms: u64) -> bool {
        if self.settings.is_off() {
            return true;
        }
        let at = self.find_or_insert(topic);
        self.entries.value_mut(at).query.claim(&self.settings, &mut self.stats, now_ms)
    }

    /// Stores the answer to a query, and returns its sites as lookups will. No sites are an answer, too.
    ///
    /// If sites of the topic were pushed or invalidated after the query began, the answer may be older than that. The
    /// sites of both are used then, as an expired entry: a record for a site without subscribers costs a transfer, but
    /// one that is not sent is lost.
    pub fn store(&mut self, topic: &TopicName, sites: Vec<SiteName>, now_ms: u64) -> Sites {
        let settings = self.settings;
        let mut sites = in_order(sites);
        if settings.is_off() {
            return sites.into();
        }
        self.stats.stores += 1;
        let at = self.find_or_insert(topic);
        let Entry { known, query } = self.entries.value_mut(at);
        let begun_ms = query.begun_ms.unwrap_or(now_ms);
        let is_overtaken = query.is_overtaken;
        query.is_outstanding = false;
        query.is_overtaken = false;
        let is_same = known.as_ref().is_some_and(|known| known.sites[..] == sites[..]);
        let ttl_ms = match known {
            _ if is_overtaken && !is_same => 0,
            Some(known) if is_same && settings.is_adaptive => known.next_ttl_ms(&settings, begun_ms),
            _ => settings.ttl_ms,
        };
        if let Some(pushed) = known.as_ref().filter(|_| is_overtaken && !is_same) {
            sites.extend(pushed.sites.iter().cloned());
            sites = in_order(sites);
        }
        Known::replace(known, sites, ttl_ms, now_ms)
    }

    /// Records that a query failed. An expired entry is still used, and the next query may begin after the minimum
    /// interval.
    pub fn fail(&mut self, topic: &TopicName) {
        if let Some(at) = self.entries.find(topic) {
            let query = &mut self.entries.value_mut(at).query;
            query.is_outstanding = false;
            query.is_overtaken = false;
        }
    }

    /// Stores the sites that the directory pushed after a change. Returns `false` if the cache does not have the topic,
    /// which it does not add: nothing is published to it any more.
    pub fn changed(&mut self, topic: &TopicName, sites: Vec<SiteName>, now_ms: u64) -> bool {
        let Some(at) = self.entries.find(topic) else {
            return false;
        };
        let sites = in_order(sites);
        let Entry { known, query } = self.entries.value_mut(at);
        query.is_overtaken = query.is_outstanding;
        if let Some(same) = known.as_mut().filter(|known| known.sites[..] == sites[..]) {
            // The first answer of a query is pushed, too. It must not hide that the topic is busy.
            same.stored_ms = now_ms;
            same.ttl_ms = same.ttl_ms.max(self.settings.ttl_ms);
            return true;
        }
        Known::replace(known, sites, self.settings.ttl_ms, now_ms);
        true
    }

    /// Removes the sites of a topic. The minimum interval between its queries is still observed. Returns `false` if no
    /// sites were known.
    pub fn invalidate(&mut self, topic: &TopicName) -> bool {
        self.entries.find(topic).is_some_and(|at| self.entries.value_mut(at).invalidate())
    }

    /// Removes the sites of all topics, and returns the number of these topics.
    pub fn invalidate_all(&mut self) -> usize {
        self.entries.values_mut().map(Entry::invalidate).filter(|was_known| *was_known).count()
    }

    /// Removes the topics whose sites may not be used any more, unless a query is outstanding or recent. Returns their
    /// number. It checks all topics.
    pub fn sweep(&mut self, now_ms: u64) -> usize {
        let settings = &self.settings;
        self.entries.retain(|entry| {
            let freshness = entry.known.as_ref().map(|known| known.freshness(settings, now_ms));
            let is_usable = freshness.is_some_and(|freshness| freshness != Freshness::Unusable);
            is_usable || entry.query.is_limited(settings, now_ms) || entry.query.is_waited_for(settings, now_ms)
        })
    }

    /// Returns the statistics. A lookup that returned sites is a hit, also if they had expired. The size of the table
    /// is the number of topics with known sites, and takes a pass over all topics.
    pub fn stats(&self) -> CacheStats {
        let known = self.entries.iter().filter(|(_, entry)| entry.known.is_some()).count();
        CacheStats { table_size: known as u64, ..self.stats }
    }

    /// Returns the number of topics, with those that have only a recent query.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// Returns the bytes that the cache has allocated. Names of sites that entries share are counted in each.
    pub fn allocated_bytes(&self) -> usize {
        let of_sites = |sites: &Sites| {
            let names: usize = sites.iter().map(|site| shared_bytes(site.as_str().len())).sum();
            shared_bytes(size_of_val(&sites[..])) + names
        };
        let of_entry = |(topic, entry): (&TopicName, &Entry)| {
            shared_bytes(topic.as_str().len()) + entry.known.as_ref().map_or(0, |known| of_sites(&known.sites))
        };
        self.entries.allocated_bytes() + self.entries.iter().map(of_entry).sum::<usize>()
    }

    fn find_or_insert(&mut self, topic: &TopicName) -> u32 {
        let found = self.entries.find(topic);
        found.unwrap_or_else(|| self.entries.insert(topic.clone(), Entry::default()))
    }
}

impl Entry {
    fn invalidate(&mut self) -> bool {
        self.query.is_overtaken = self.query.is_outstanding;
        self.known.take().is_some()
    }
}

/// Returns sites in the order of their names, each once.
fn in_order(mut sites: Vec<SiteName>) -> Vec<SiteName> {
    sites.sort_unstable();
    sites.dedup();
    sites
}

/// Returns the bytes that an `Arc` allocates for a value of `bytes`: two counters, and padding.
pub(super) fn shared_bytes(bytes: usize) -> usize {
    (2 * size_of::<usize>() + bytes).next_multiple_of(size_of::<usize>())
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
