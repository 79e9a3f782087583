//! Caches: named views in memory that many threads share, each created on first use.
//!
//! A cache is divided into stripes by the hash of the key ([`engine::cache::Stripe`]), each behind a lock that is held
//! for one change. Changes of a watched cache are also recorded in their order (`changes.rs`). Changes of a durable
//! cache are appended to a log (`log.rs`), which is dumped again when it is long (`dump.rs`) and read on startup
//! (`restore.rs`). Read the modules from the top: each uses only those above it.

mod grown;
mod notes;
mod waiters;
mod log;
mod changes;
mod cache;
mod locked;
mod calls;
mod once;
mod wait;
mod watch;
mod restore;
mod dump;

#[cfg(test)]
mod durable_tests;
#[cfg(test)]
mod full_tests;
#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod notes_tests;
#[cfg(test)]
mod swap_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wait_tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::cache::record::CACHES_TOPIC;
use engine::cache::{Budget, CACHES_MAX, CacheName, CacheSettings, CacheStatus, StripeStats, TTL_MS_MAX};
use engine::security::{QuotaKind, TenantName};
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings};
use parking_lot::{Mutex, RwLock};

use crate::commit::Commit;
use crate::core::Core;
use crate::metrics::Exposition;
use crate::peers::Created;
use crate::restored::Restored;
use crate::streams::{Listing, Streams};
use crate::topic::Topic;
pub use cache::{Attempt, Cache, Finished, Locked};
use cache::{Common, Durable};
pub use locked::{Awaited, Keyed, StreamMark, Taken};
use log::CacheLog;
pub use notes::{Cause, Note, NoteListener, Wanted, What};

/// A client that waits for a key.
pub type Waiting = waiters::Waiting<Attempt>;

/// Interval at which expired entries are removed.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);
/// 2020-01-01 in milliseconds since 1970, the time of version 0.
const VERSION_EPOCH_MS: u64 = 1_577_836_800_000;
/// Number of versions per millisecond. Several stripes make changes within one, and the clock has to stay ahead.
const VERSIONS_PER_MS: u64 = 1 << 13;

pub struct Caches {
    core: Arc<Core>,
    streams: Arc<Streams>,
    by_name: RwLock<HashMap<CacheName, Arc<Cache>>>,
    /// The caches of `by_name`, by their numbers.
    by_id: RwLock<HashMap<u64, Arc<Cache>>>,
    common: Common,
    /// Version from which the newest cache counts its changes.
    origin: Mutex<u64>,
    /// Settings of caches whose names belong to a door, applied whichever door uses such a name first.
    reserved: RwLock<HashMap<String, CacheSettings>>,
    /// Log of the durable caches, once one exists.
    log: RwLock<Option<Arc<CacheLog>>>,
    /// Held while the log is dumped, or given up with the caches.
    dumping: tokio::sync::Mutex<()>,
    /// Done once the contents of the log are in the caches.
    restored: Restored,
    /// Reason why durable caches are not served if their log is damaged, and the names of those that are known.
    refused: RwLock<Option<(Error, HashSet<CacheName>)>>,
    restored_entries: AtomicU64,
}

impl Caches {
    /// Creates the caches of a broker. `has_log` is `true` if durable caches have to be restored.
    pub(crate) fn new(core: Arc<Core>, streams: Arc<Streams>, has_log: bool) -> Self {
        let common = Common {
            clock: core.settings().clock,
            streams: streams.clone(),
            budget: Arc::new(Budget::new(core.settings().cache_bytes_max, None)),
            hasher: foldhash::quality::RandomState::default(),
            watched_bytes: Arc::default(),
            notes: Arc::default(),
        };
        Self {
            core,
            streams,
            by_name: RwLock::default(),
            by_id: RwLock::default(),
            common,
            origin: Mutex::new(0),
            reserved: RwLock::default(),
            log: RwLock::default(),
            dumping: tokio::sync::Mutex::default(),
            restored: Restored::unless(has_log),
            refused: RwLock::default(),
            restored_entries: AtomicU64::new(0),
        }
    }

    /// Returns the version from which a new cache counts its changes: higher than that of any cache so far, also before
    /// a restart.
    fn next_origin(&self) -> u64 {
        let mut origin = self.origin.lock();
        *origin = origin_at(self.core.now_ms()).max(*origin + VERSIONS_PER_MS);
        *origin
    }

    /// Returns the version from which a new cache counts its changes, also higher than `given`, which was assigned
    /// already.
    fn origin_after(&self, given: u64) -> u64 {
        self.note_given(given);
        self.next_origin()
    }

    fn note_given(&self, given: u64) {
        let mut origin = self.origin.lock();
        *origin = given.max(*origin);
    }

    /// Refuses a cache whose entries are in a damaged log: a new one with its name would appear to be empty.
    fn check_served(&self, name: &str, is_durable: bool) -> Result<()> {
        match &*self.refused.read() {
            Some((error, names)) if is_durable || names.contains(name) => Err(error.clone().map_message(|why| {
                format!("cache '{name}' is not served: the log of durable caches is damaged. {why}")
            })),
            _ => Ok(()),
        }
    }

    /// Passes notes about changes of keys to this listener from now on, or to no listener if nothing is wanted. Each
    /// call replaces the listener of the last one.
    pub fn note(&self, wanted: Wanted, listener: Option<Arc<dyn NoteListener>>) {
        // Each stripe follows when it is locked next.
        self.common.notes.want(wanted, listener);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Cache>> {
        self.by_name.read().values().cloned().collect()
    }
}

/// Returns the first version that is assigned at this time. Versions stay below 2^53 until 2054, so that programs whose
/// numbers are doubles (JavaScript, jq) read them exactly.
fn origin_at(now_ms: u64) -> u64 {
    now_ms.saturating_sub(VERSION_EPOCH_MS) * VERSIONS_PER_MS
}

impl Caches {
    /// Returns the cache of a name. A missing one is created if the broker creates topics automatically.
    pub fn open(&self, name: &str) -> Result<Arc<Cache>> {
        match self.find(name) {
            Err(refused) if refused.kind == ErrorKind::Corrupt => Err(refused),
            Err(_) => {
                let reserved = self.reserved.read().get(name).copied();
                self.open_with(name, reserved.unwrap_or_default())
            }
            found => found,
        }
    }

    /// Sets the settings with which the cache of a name is created on first use, whichever door uses it. Doors call
    /// this for the few names that belong to them.
    pub fn reserve(&self, name: String, settings: CacheSettings) {
        self.reserved.write().insert(name, settings);
    }

    /// Returns the cache of a name. A missing one is created with these settings, under the condition of
    /// [`open`](Self::open).
    pub fn open_with(&self, name: &str, settings: CacheSettings) -> Result<Arc<Cache>> {
        if let Some(cache) = self.by_name.read().get(name) {
            return Ok(cache.clone());
        }
        let name = CacheName::parse(name)?;
        if !self.core.settings().auto_create_topics {
            return Err(no_such_cache(name.as_str()));
        }
        let made = self.make(name.clone(), settings);
        self.core.record_act("create cache", name.as_str(), made.as_ref().err());
        made
    }

    /// Returns the cache of a number, as long as it exists.
    pub fn by_id(&self, id: u64) -> Result<Arc<Cache>> {
        let cache = self.by_id.read().get(&id).cloned();
        if cache.is_none() {
            self.check_restored()?;
        }
        cache.ok_or_else(|| {
            Error::not_found(format!("the cache with the number {id} was deleted: open the cache again by its name"))
        })
    }

    /// Creates a cache. An existing one with the same settings is returned as well; with other settings it is an error.
    /// Use [`Cache::settled`] to wait until the cache is durable.
    pub fn create(&self, name: &str, settings: CacheSettings) -> Result<Arc<Cache>> {
        let created = self.make_with(name, settings);
        self.core.record_act("create cache", name, created.as_ref().err());
        created
    }

    fn make_with(&self, name: &str, settings: CacheSettings) -> Result<Arc<Cache>> {
        let name = CacheName::parse(name)?;
        check_settings(&settings)?;
        let cache = self.make(name, settings)?;
        if cache.settings != settings {
            let message = format!("cache '{}' already exists with other settings", cache.name);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        Ok(cache)
    }

    /// Returns the cache of a name, if it exists.
    pub fn find(&self, name: &str) -> Result<Arc<Cache>> {
        let found = self.by_name.read().get(name).cloned();
        if found.is_none() {
            // If not even the names could be read, any name may have been a cache.
            let is_unknown = self.refused.read().as_ref().is_some_and(|(_, names)| names.is_empty());
            self.check_served(name, is_unknown)?;
        }
        found.ok_or_else(|| self.missing_cache(name))
    }

    pub fn delete(&self, name: &str) -> Result<Commit> {
        let deleted = self.remove(name);
        self.core.record_act("delete cache", name, deleted.as_ref().err());
        deleted
    }

    fn remove(&self, name: &str) -> Result<Commit> {
        let found = self.by_name.read().get(name).cloned();
        if found.is_none() {
            self.check_restored()?;
        }
        let cache = found.ok_or_else(|| no_such_cache(name))?;
        // Locked before the names, so that no other client waits for those while a script holds keys.
        let mut locked = cache.lock_all_or_busy()?;
        let mut by_name = self.by_name.write();
        // Another client may have deleted it in the meantime.
        by_name.get(name).filter(|current| current.id == cache.id).ok_or_else(|| no_such_cache(name))?.admit()?;
        by_name.remove(name);
        if let Some(Durable { log, number }) = &cache.durable {
            log.append_cache(*number, None);
        }
        // A cache that is created again with this name continues to count from here.
        self.note_given(locked.newest());
        drop(by_name);
        self.by_id.write().remove(&cache.id);
        // Holders of the cache find it empty.
        cache.is_deleted.store(true, Ordering::Relaxed);
        locked.flush();
        let flushed = locked.finish().commit;
        cache.end();
        Ok(cache.settled().and(flushed))
    }

    pub fn describe(&self, name: &str) -> Result<CacheStatus> {
        let cache = self.by_name.read().get(name).cloned();
        cache.map(|cache| cache.status()).ok_or_else(|| self.missing_cache(name))
    }

    /// Fails while durable caches are being restored: a cache that is not found may be one of them.
    fn check_restored(&self) -> Result<()> {
        if self.restored.is_done() {
            return Ok(());
        }
        Err(Error::busy("the broker is still restoring its durable caches: try again"))
    }

    /// Returns the error for a cache that does not exist, with the nearest name that does.
    fn missing_cache(&self, name: &str) -> Error {
        if let Err(restoring) = self.check_restored() {
            return restoring;
        }
        let by_name = self.by_name.read();
        let names = by_name.keys().map(CacheName::as_str);
        match self.core.suggestions.nearest(self.core.now_ms(), name, names) {
            Some(nearest) => Error::not_found(format!("no cache '{name}'; did you mean '{nearest}'?")),
            None => no_such_cache(name),
        }
    }

    /// Returns the caches after this name, in the order of their names; the second value is `true` if they are the
    /// last.
    pub fn list(&self, after: &str, count_max: usize, is_shown: impl Fn(&str) -> bool) -> (Vec<CacheStatus>, bool) {
        let mut caches = self.all();
        caches.retain(|cache| cache.name.as_str() > after && is_shown(cache.name.as_str()));
        caches.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let is_last = caches.len() <= count_max;
        (caches.iter().take(count_max).map(|cache| cache.status()).collect(), is_last)
    }

    /// Returns the commit of all changes to all caches so far.
    pub fn settled(&self) -> Commit {
        self.log.read().as_ref().map_or_else(Commit::done, |log| log.settled())
    }

    /// Returns `true` if so much of what caches changed waits for the disk that a client that changes more has to wait
    /// for it first.
    pub fn are_late(&self) -> bool {
        self.log.read().as_ref().is_some_and(|log| log.is_late())
    }

    /// Returns the bytes that all caches have taken together.
    pub fn bytes(&self) -> u64 {
        self.common.budget.taken()
    }

    pub fn bytes_max(&self) -> u64 {
        self.common.budget.max()
    }

    fn make(&self, name: CacheName, settings: CacheSettings) -> Result<Arc<Cache>> {
        let caches = self;
        let mut by_name = caches.by_name.write();
        if let Some(cache) = by_name.get(name.as_str()) {
            return Ok(cache.clone());
        }
        if by_name.len() == CACHES_MAX {
            return Err(Error::busy(format!("cache limit reached ({CACHES_MAX}): delete one first")));
        }
        caches.check_restored()?;
        caches.check_served(name.as_str(), settings.is_durable)?;
        // There are few caches, so their names are counted.
        let count = |tenant: &TenantName| by_name.keys().filter(|name| tenant.owns(name.as_str())).count();
        self.core.tenant_quotas().admit(QuotaKind::Caches, name.as_str(), count)?;
        self.core.peers().admit(Created::Cache)?;
        let id = caches.next_origin();
        let durable = if settings.is_durable { Some(Durable { log: self.log()?, number: id }) } else { None };
        let cache = Arc::new(Cache::new(id, name.clone(), settings, &caches.common, durable));
        if let Some(Durable { log, number }) = &cache.durable {
            log.admit()?;
            log.append_cache(*number, Some(&cache.definition()));
            log.check()?;
            cache.keep_effects();
        }
        // No caller can use the cache before its streams are listed.
        self.list_streams(&cache);
        by_name.insert(name, cache.clone());
        caches.by_id.write().insert(cache.id, cache.clone());
        Ok(cache)
    }

    /// Returns the log of durable caches, which is created with the first of them.
    fn log(&self) -> Result<Arc<CacheLog>> {
        let caches = self;
        if let Some(log) = caches.log.read().as_ref() {
            log.check()?;
            return Ok(log.clone());
        }
        if self.core.store().is_none() {
            return Err(Error::invalid("a durable cache needs a data directory; start the broker with --data DIR"));
        }
        let settings = TopicSettings {
            partitions: 1,
            retention_bytes: 0,
            retention_ms: 0,
            storage: Storage::Disk,
            ..TopicSettings::default()
        };
        // No record of the topic is durable before the topic is, so there is no need to wait for it.
        let (topic, _) = self.core.create(TopicName::parse(CACHES_TOPIC)?, settings)?;
        self.open_cache_log(topic)
    }

    fn open_cache_log(&self, topic: Arc<Topic>) -> Result<Arc<CacheLog>> {
        let caches = self;
        let log = Arc::new(CacheLog::new(self.core.clone(), topic, caches.next_origin())?);
        Ok(caches.log.write().get_or_insert(log).clone())
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let (all, _) = self.list("", CACHES_MAX, |_| true);
        let rows = |value: fn(&StripeStats) -> u64| -> Vec<(String, u64)> {
            all.iter().map(|cache| (cache.name.to_string(), value(&cache.stats))).collect()
        };
        let budget = &self.common.budget;
        out.gauge("thalweg_caches", "Caches", all.len() as u64)?;
        out.gauge("thalweg_cache_memory_bytes", "Bytes of all caches", budget.taken())?;
        out.gauge(
            "thalweg_cache_memory_bytes_max",
            "Maximum of thalweg_cache_memory_bytes: cache_memory_max",
            budget.max(),
        )?;
        let watched = self.common.watched_bytes.load(Ordering::Relaxed);
        out.gauge("thalweg_cache_watch_bytes", "Bytes of changes retained for watchers", watched as u64)?;
        let log = self.log.read().clone();
        let restored = self.restored_entries.load(Ordering::Relaxed);
        let of_log =
            |value: fn(&CacheLog) -> &AtomicU64| log.as_ref().map_or(0, |log| value(log).load(Ordering::Relaxed));
        out.gauge("thalweg_cache_log_bytes", "Bytes of the log of durable caches", of_log(|log| &log.bytes))?;
        out.counter("thalweg_cache_log_dumps", "Truncations of the log of durable caches", of_log(|log| &log.dumps))?;
        out.gauge("thalweg_cache_restored_entries", "Entries of durable caches restored on startup", restored)?;
        let waiting: Vec<_> = self.all().iter().map(|cache| (cache.name.to_string(), cache.waiting() as u64)).collect();
        out.gauges("thalweg_cache_waiting", "Clients blocked on a key of a cache", "cache", &waiting)?;
        out.gauges("thalweg_cache_entries", "Entries of a cache", "cache", &rows(|stats| stats.entries))?;
        out.gauges("thalweg_cache_bytes", "Bytes of a cache", "cache", &rows(|stats| stats.bytes))?;
        out.counters("thalweg_cache_hits", "Gets that found an entry", "cache", &rows(|stats| stats.hits))?;
        out.counters("thalweg_cache_misses", "Gets that found no entry", "cache", &rows(|stats| stats.misses))?;
        out.counters("thalweg_cache_expired", "Expired entries", "cache", &rows(|stats| stats.expired))?;
        out.counters("thalweg_cache_evicted", "Evicted entries", "cache", &rows(|stats| stats.evicted))
    }
}

impl Caches {
    /// Lists the streams of all caches that exist, once what was known of streams before the start is restored.
    pub(crate) fn list_all_streams(&self) {
        self.all().iter().for_each(|cache| self.list_streams(cache));
    }

    /// Lists the streams of a cache that existed before the start. A key that has another value got it later, so its
    /// stream is deleted.
    fn list_streams(&self, cache: &Cache) {
        if !self.streams.has_unlisted(cache.name.as_str()) {
            return;
        }
        // With all stripes, so that the entries are not exchanged with those of another cache halfway.
        let mut locked = cache.lock_all();
        let mut lost = Vec::new();
        for (id, place) in self.streams.take_unlisted(cache.name.as_str()) {
            if self.core.topic_by_id(id).is_err() {
                continue;
            }
            self.streams.list(id, cache.id, place.key.clone());
            if !locked.list_stream(&place.key, id, place.expires_ms) {
                lost.push(id);
            }
        }
        drop(locked);
        for id in lost {
            cache.finish_later(Commit::all(self.streams.delete(id)));
        }
    }

    /// Removes the entries of streams whose topics were deleted. The caller holds no lock of a cache.
    pub(crate) fn unlist_deleted_streams(&self) {
        for (id, Listing { cache, key }) in self.streams.take_deleted() {
            let Ok(of) = self.by_id(cache) else {
                continue;
            };
            match of.lock_if_free(Some([&*key])) {
                Some(mut locked) => locked.take_stream(&key, id),
                // A command that finds the key sees that its topic was deleted.
                None => self.streams.note_deleted(id, Listing { cache, key }),
            }
        }
    }
}

/// Removes expired entries for as long as the broker lives.
pub(crate) async fn keep_time(caches: Weak<Caches>) {
    let mut interval = tokio::time::interval(EXPIRE_EVERY);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(caches) = caches.upgrade() else {
            return;
        };
        caches.unlist_deleted_streams();
        for cache in caches.all() {
            // Expired entries are never returned, whether they are removed or not, but their removal has to be logged.
            if cache.admit().is_err() {
                continue;
            }
            cache.expire(caches.core.now_ms()).await;
            // Clients that a long step has kept from being served, if it ended without serving them.
            cache.serve(Vec::new());
            tokio::task::yield_now().await;
        }
        caches.dump_if_long();
    }
}

fn check_settings(settings: &CacheSettings) -> Result<()> {
    if settings.bytes_max == Some(0) {
        return Err(Error::invalid("bytes_max of a cache is at least 1"));
    }
    if settings.ttl_ms.is_some_and(|ms| ms == 0 || ms > TTL_MS_MAX) {
        return Err(Error::invalid(format!("the time to live of a cache is 1 to {TTL_MS_MAX} ms, or unlimited")));
    }
    Ok(())
}

fn no_such_cache(name: &str) -> Error {
    Error::not_found(format!("no cache '{name}'"))
}
