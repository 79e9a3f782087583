//! Caches: named views in memory that many threads share, each created on first use.
//!
//! A cache is divided into stripes by the hash of the key ([`engine::cache::Stripe`]), each behind a lock that is held
//! for one change. Changes of a watched cache are also recorded in their order (`watch.rs`). Changes of a durable cache
//! are appended to a log (`log.rs`), which is dumped again when it is long (`dump.rs`) and read on startup
//! (`restore.rs`).

mod dump;
mod locked;
mod log;
mod once;
mod restore;
mod wait;
mod watch;

#[cfg(test)]
mod durable_tests;
#[cfg(test)]
mod full_tests;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::cache::operations::Operations;
use engine::cache::record::{CACHES_TOPIC, CacheDefinition, CacheNumber};
use engine::cache::{
    Added, Budget, CACHES_MAX, CacheName, CacheSettings, CacheStatus, Condition, Cursor, Eviction, Expires, Found, Key,
    ScanCursor, Stored, Stripe, StripeSettings, StripeStats, TTL_MS_MAX, Ttl,
};
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings, nearest};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::clock::Clock;
use crate::commit::Commit;
use crate::core::Core;
use crate::metrics::Exposition;
use crate::peers::Created;
use crate::restored::Restored;
use crate::streams::{Listing, Streams};
use crate::topic::Topic;
pub use locked::{Finished, Keyed, Locked, StreamMark, Taken};
use log::{CacheLog, Kept};
use wait::Waiters;
pub use wait::{Attempt, Waiting};
use watch::Changes;

/// Number of stripes of a cache. Two threads rarely meet at one of them.
const STRIPES: usize = 64;
/// Interval at which expired entries are removed.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of entries that are removed in one pass, before other tasks have their turn at a stripe.
const EXPIRE_MAX: usize = 256;
/// Number of places that one pass of a scan examines, before other tasks have their turn.
const SCAN_PLACES: u32 = 1024;
/// Maximum number of bytes that a stripe takes of the budget in one step.
const BLOCK_BYTES_MAX: u64 = 64 << 10;
const BLOCK_BYTES_MIN: u64 = 256;
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
    budget: Arc<Budget>,
    hasher: foldhash::quality::RandomState,
    /// Bytes of recorded changes for watchers, of all caches together.
    watched_bytes: Arc<AtomicUsize>,
    /// Version from which the newest cache counts its changes.
    origin: Mutex<u64>,
    /// Settings of caches whose names belong to a door, applied whichever door uses such a name first.
    reserved: RwLock<HashMap<String, CacheSettings>>,
    /// Log of the durable caches, once one exists.
    log: RwLock<Option<Arc<CacheLog>>>,
    /// Held while the log is dumped, or given up with the caches.
    dumping: tokio::sync::Mutex<()>,
    /// Whether the contents of the log are in the caches.
    restored: Restored,
    /// Reason why durable caches are not served if their log is damaged, and the names of those that are known.
    refused: RwLock<Option<(Error, HashSet<CacheName>)>>,
    restored_entries: AtomicU64,
}

pub struct Cache {
    /// Number of the cache, which no other cache ever has, whatever its name.
    id: u64,
    name: CacheName,
    settings: CacheSettings,
    clock: Clock,
    streams: Arc<Streams>,
    budget: Arc<Budget>,
    hasher: foldhash::quality::RandomState,
    stripes: Box<[Padded]>,
    changes: Changes,
    waiters: Waiters,
    is_deleted: AtomicBool,
    /// Stripe from which the next search for entries to evict begins.
    shed_from: AtomicUsize,
    durable: Option<Durable>,
    /// Operations that were answered. This lock is taken after the locks of stripes.
    operations: Mutex<Operations>,
}

/// Log of a durable cache, and the number of the cache in it.
struct Durable {
    log: Arc<CacheLog>,
    number: CacheNumber,
}

/// A stripe that shares no line of the processor's cache with its neighbour.
#[repr(align(128))]
struct Padded(Mutex<Kept>);

impl Caches {
    /// Creates the caches of a broker. `has_log` is `true` if durable caches have to be restored.
    pub(crate) fn new(core: Arc<Core>, streams: Arc<Streams>, has_log: bool) -> Self {
        let bytes_max = core.settings().cache_bytes_max;
        Self {
            core,
            streams,
            by_name: RwLock::default(),
            by_id: RwLock::default(),
            budget: Arc::new(Budget::new(bytes_max, None)),
            hasher: foldhash::quality::RandomState::default(),
            watched_bytes: Arc::default(),
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
        self.make(name, settings)
    }

    /// Returns the cache of a number, as long as it exists.
    pub fn by_id(&self, id: u64) -> Result<Arc<Cache>> {
        let cache = self.by_id.read().get(&id).cloned();
        cache.ok_or_else(|| {
            Error::not_found(format!("the cache with the number {id} was deleted: open the cache again by its name"))
        })
    }

    /// Creates a cache. An existing one with the same settings is returned as well; with other settings it is an error.
    /// Use [`Cache::settled`] to wait until the cache is durable.
    pub fn create(&self, name: &str, settings: CacheSettings) -> Result<Arc<Cache>> {
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
        let mut by_name = self.by_name.write();
        by_name.get(name).ok_or_else(|| no_such_cache(name))?.admit()?;
        let cache = by_name.remove(name).ok_or_else(|| no_such_cache(name))?;
        if let Some(Durable { log, number }) = &cache.durable {
            log.append_cache(*number, None);
        }
        // A cache that is created again with this name continues to count from here.
        let newest = cache.stripes.iter().map(|stripe| stripe.0.lock().version()).max();
        self.note_given(newest.unwrap_or_default());
        drop(by_name);
        self.by_id.write().remove(&cache.id);
        // Holders of the cache find it empty.
        cache.is_deleted.store(true, Ordering::Relaxed);
        let (_, flushed) = cache.flush();
        cache.end();
        Ok(cache.settled().and(flushed))
    }

    pub fn describe(&self, name: &str) -> Result<CacheStatus> {
        let cache = self.by_name.read().get(name).cloned();
        cache.map(|cache| cache.status()).ok_or_else(|| self.missing_cache(name))
    }

    /// Returns the error for a cache that does not exist, with the nearest name that does.
    fn missing_cache(&self, name: &str) -> Error {
        let by_name = self.by_name.read();
        match nearest(name, by_name.keys().map(CacheName::as_str)) {
            Some(nearest) => Error::not_found(format!("no cache '{name}'; did you mean '{nearest}'?")),
            None => no_such_cache(name),
        }
    }

    /// Returns the caches after this name, in the order of their names; the second value is `true` if they are the
    /// last.
    pub fn list(&self, after: &str, count_max: usize) -> (Vec<CacheStatus>, bool) {
        let mut caches = self.all();
        caches.retain(|cache| cache.name.as_str() > after);
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
        self.budget.taken()
    }

    pub fn bytes_max(&self) -> u64 {
        self.budget.max()
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
        if !caches.restored.is_done() {
            return Err(Error::busy("the broker is still restoring its durable caches: try again"));
        }
        caches.check_served(name.as_str(), settings.is_durable)?;
        self.core.peers().admit(Created::Cache)?;
        let id = caches.next_origin();
        let durable = if settings.is_durable { Some(Durable { log: self.log()?, number: id }) } else { None };
        let cache = Arc::new(Cache::new(id, name.clone(), settings, caches, durable));
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
        let (all, _) = self.list("", CACHES_MAX);
        let rows = |value: fn(&StripeStats) -> u64| -> Vec<(String, u64)> {
            all.iter().map(|cache| (cache.name.to_string(), value(&cache.stats))).collect()
        };
        let budget = &self.budget;
        out.gauge("thalweg_caches", "Caches", all.len() as u64)?;
        out.gauge("thalweg_cache_memory_bytes", "Bytes of all caches", budget.taken())?;
        out.gauge(
            "thalweg_cache_memory_bytes_max",
            "Maximum of thalweg_cache_memory_bytes: cache_memory_max",
            budget.max(),
        )?;
        let watched = self.watched_bytes.load(Ordering::Relaxed);
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

impl Cache {
    fn new(id: u64, name: CacheName, settings: CacheSettings, caches: &Caches, durable: Option<Durable>) -> Self {
        let bytes_max = settings.bytes_max.unwrap_or(u64::MAX);
        let budget = Arc::new(Budget::new(bytes_max, Some(caches.budget.clone())));
        let block = (budget.max() / (16 * STRIPES as u64)).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let eviction = settings.eviction;
        let clock = caches.core.settings().clock;
        let now_ms = clock.now_ms();
        let stripe = || StripeSettings { eviction, budget: budget.clone(), block, version: id, now_ms };
        Self {
            id,
            stripes: (0..STRIPES).map(|_| Padded(Mutex::new(Kept::new(Stripe::new(stripe()))))).collect(),
            name,
            settings,
            clock,
            streams: caches.streams.clone(),
            hasher: caches.hasher.clone(),
            changes: Changes::new(id, caches.watched_bytes.clone()),
            waiters: Waiters::default(),
            is_deleted: AtomicBool::new(false),
            shed_from: AtomicUsize::new(0),
            budget,
            durable,
            operations: Mutex::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Marks the cache as one that must be opened again. Its watchers, and the clients that wait for a key, are
    /// notified of its end.
    fn end(&self) {
        self.is_deleted.store(true, Ordering::Relaxed);
        self.changes.end();
        self.waiters.end();
    }

    fn definition(&self) -> CacheDefinition {
        CacheDefinition { name: self.name.clone(), settings: self.settings }
    }

    /// Makes the stripes report the effects of their changes from now on, so that they can be logged.
    fn keep_effects(&self) {
        self.stripes.iter().for_each(|stripe| stripe.0.lock().tell_effects(true));
    }

    /// Returns the commit of all changes to this key so far. A client must not see them before it is reached. In
    /// memory, it is reached immediately.
    pub fn commit_of(&self, key: &[u8]) -> Commit {
        let Some(Durable { log, .. }) = &self.durable else {
            return Commit::done();
        };
        let key = self.key(key);
        let unsettled = self.stripe(key).unsettled(log, Some(key.mark()));
        unsettled.map_or_else(Commit::done, |offset| log.commit_of(offset))
    }

    /// Returns the commit of all changes to all keys so far.
    pub fn settled(&self) -> Commit {
        self.durable.as_ref().map_or_else(Commit::done, |durable| durable.log.settled())
    }

    /// Refuses a change that could not be logged: of a durable cache on a full disk, for example. It is called before
    /// the change.
    pub fn admit(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), |durable| durable.log.admit())
    }

    /// Passes the changes of a stripe to the watchers, the log and the streams before its lock is released.
    fn follow(&self, stripe: &mut Kept) {
        self.changes.follow(stripe);
        if let Some(Durable { log, number }) = &self.durable {
            stripe.write(log, *number);
        }
        self.drop_streams(stripe);
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed)
    }

    pub fn name(&self) -> &CacheName {
        &self.name
    }

    /// Returns the result of `read` for the value of a key, and counts as a use of the key. The stripe stays locked
    /// during `read`.
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(Option<Found<'_>>) -> R) -> R {
        let key = self.key(key);
        read(self.stripe(key).get(key, || self.now_ms()))
    }

    /// Returns the result of `read` for the value of a key, without counting as a use.
    pub fn peek<R>(&self, key: &[u8], read: impl FnOnce(Option<Found<'_>>) -> R) -> R {
        let key = self.key(key);
        read(self.stripe(key).peek(key, || self.now_ms()))
    }

    pub fn put(&self, key: &[u8], value: &[u8], ttl: Ttl, condition: Condition) -> Result<Stored> {
        let expires = self.expires(ttl)?;
        self.change(key, value.len(), |stripe, key| {
            let stored = stripe.put(key, value, expires, condition, || self.now_ms())?;
            if let Stored::Done { .. } = stored {
                self.changes.note(stripe, key);
            }
            Ok(stored)
        })
    }

    pub fn delete(&self, key: &[u8], condition: Condition) -> Stored {
        let key = self.key(key);
        let mut stripe = self.stripe(key);
        let stored = stripe.delete(key, condition, || self.now_ms());
        if let Stored::Done { version, previous: Some(_) } = stored {
            self.changes.note_deleted(&mut stripe, key, version);
        }
        self.follow(&mut stripe);
        stored
    }

    /// Adds to a counter, which is a number in decimal digits. A missing counter begins with 0.
    pub fn add(&self, key: &[u8], delta: i64, ttl: Ttl) -> Result<Added> {
        let expires = self.expires(ttl)?;
        self.change(key, 20, |stripe, key| {
            let is_new = stripe.peek(key, || self.now_ms()).is_none();
            let mut added = stripe.add(key, delta, || self.now_ms())?;
            // The expiry time belongs to the counter, not to a single step.
            if let (true, Expires::At(at_ms)) = (is_new, expires) {
                stripe.set_expiry(key, Some(at_ms), || self.now_ms());
                added.expires_ms = Some(at_ms);
            }
            self.changes.note(stripe, key);
            Ok(added)
        })
    }

    /// Changes the expiry time of an entry. Returns `true` if the entry exists.
    pub fn touch(&self, key: &[u8], ttl: Ttl) -> Result<bool> {
        let expires_ms = match self.expires(ttl)? {
            Expires::At(at_ms) => Some(at_ms),
            Expires::Never => None,
            Expires::Kept => return Ok(self.peek(key, |found| found.is_some())),
        };
        self.admit()?;
        let key = self.key(key);
        let mut stripe = self.stripe(key);
        let is_there = stripe.set_expiry(key, expires_ms, || self.now_ms());
        self.follow(&mut stripe);
        Ok(is_there)
    }

    /// Calls `each` for entries whose keys begin with `prefix`, from a cursor on, until it returns `false`. An entry
    /// that exists during the whole scan is found exactly once. Returns the cursor to continue from, or `None` at the
    /// end.
    pub fn scan(&self, prefix: &[u8], from: ScanCursor, mut each: impl FnMut(Found<'_>) -> bool) -> Option<ScanCursor> {
        let at = from.0 >> 32;
        let place = from.0 as u32;
        let stripe = self.stripes.get(at as usize)?.0.lock();
        let next = stripe
            .scan(Cursor(place), SCAN_PLACES, self.now_ms(), |found| !found.key.starts_with(prefix) || each(found));
        match next {
            Some(Cursor(place)) => Some(ScanCursor(at << 32 | u64::from(place))),
            None => (at + 1 < self.stripes.len() as u64).then_some(ScanCursor((at + 1) << 32)),
        }
    }

    /// Removes all entries. Returns their number, and the commit of their removal.
    pub fn flush(&self) -> (u64, Commit) {
        // Under the locks of all stripes, so that watchers also see later puts after the flush.
        let mut locked = self.lock_all();
        let entries = locked.len();
        locked.flush();
        (entries, locked.finish().commit)
    }

    /// Returns the eviction policy of the cache.
    pub fn eviction(&self) -> Eviction {
        self.settings.eviction
    }

    /// Returns the number of entries that expire, and their mean remaining time in ms.
    pub fn expiring(&self) -> (u64, u64) {
        let of_stripes = self.stripes.iter().map(|stripe| stripe.0.lock().expiring());
        let (count, sum_ms) = of_stripes.fold((0, 0), |(count, sum), (more, ms)| (count + more, sum + ms));
        let mean_ms = sum_ms.checked_div(u128::from(count)).unwrap_or_default() as u64;
        (count, if count == 0 { 0 } else { mean_ms.saturating_sub(self.now_ms()) })
    }

    pub fn status(&self) -> CacheStatus {
        let stats =
            self.stripes.iter().map(|stripe| stripe.0.lock().stats()).fold(StripeStats::default(), |all, one| {
                StripeStats {
                    entries: all.entries + one.entries,
                    bytes: all.bytes + one.bytes,
                    hits: all.hits + one.hits,
                    misses: all.misses + one.misses,
                    expired: all.expired + one.expired,
                    evicted: all.evicted + one.evicted,
                }
            });
        CacheStatus { name: self.name.clone(), settings: self.settings, bytes_max: self.budget.max(), stats }
    }

    /// Makes one change in the stripe of a key. If the stripe has no room, other stripes free some and the change is
    /// retried once.
    fn change<R>(
        &self,
        key: &[u8],
        value_bytes: usize,
        change: impl Fn(&mut Stripe, Key<'_>) -> Result<R>,
    ) -> Result<R> {
        self.admit()?;
        let key = self.key(key);
        let mut stripe = self.stripe(key);
        let changed = match change(&mut stripe, key) {
            Err(error) if error.kind == ErrorKind::Busy => {
                self.follow(&mut stripe);
                drop(stripe);
                self.shed_for(key, value_bytes);
                stripe = self.stripe(key);
                change(&mut stripe, key)
            }
            changed => changed,
        };
        self.follow(&mut stripe);
        changed.map_err(|error| match error.kind {
            ErrorKind::Busy => error.map_message(|why| format!("cache '{}': {why}", self.name)),
            _ => error,
        })
    }

    /// Makes other stripes free the memory that this entry may need.
    fn shed_for(&self, key: Key<'_>, value_bytes: usize) {
        let mut missing = (key.bytes.len() + value_bytes) as u64 + 256;
        let first = key.hash as usize % self.stripes.len();
        for at in 1..self.stripes.len() {
            let mut stripe = self.stripes[(first + at) % self.stripes.len()].0.lock();
            missing = missing.saturating_sub(stripe.shed(missing));
            self.follow(&mut stripe);
            if missing == 0 {
                return;
            }
        }
    }

    /// Removes expired entries. Other tasks of this thread have their turns in between.
    async fn expire(&self, now_ms: u64) {
        for stripe in &self.stripes {
            while self.expire_some(&stripe.0, now_ms) {
                tokio::task::yield_now().await;
            }
        }
        self.forget_unwatched();
    }

    /// Removes up to [`EXPIRE_MAX`] expired entries of a stripe. Returns `true` if there may be more.
    fn expire_some(&self, stripe: &Mutex<Kept>, now_ms: u64) -> bool {
        let mut stripe = stripe.lock();
        let is_more = stripe.expire(now_ms, EXPIRE_MAX);
        self.follow(&mut stripe);
        is_more
    }

    fn expires(&self, ttl: Ttl) -> Result<Expires> {
        let after = |ms: u64| match ms {
            0 => Err(Error::invalid("a time to live is at least 1 ms; to remove the entry, delete it")),
            1..=TTL_MS_MAX => Ok(Expires::At(self.now_ms() + ms)),
            _ => Err(Error::invalid(format!("a time to live is at most {TTL_MS_MAX} ms, or unlimited"))),
        };
        match ttl {
            Ttl::Default => self.settings.ttl_ms.map_or(Ok(Expires::Never), after),
            Ttl::Never => Ok(Expires::Never),
            Ttl::For(ms) => after(ms),
            Ttl::Until(ms) => Ok(Expires::At(ms)),
            Ttl::Kept => Ok(Expires::Kept),
        }
    }

    fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(bytes);
        Key { hash: hasher.finish(), bytes }
    }

    fn stripe(&self, key: Key<'_>) -> MutexGuard<'_, Kept> {
        self.stripes[self.stripe_of(key)].0.lock()
    }

    fn stripe_of(&self, key: Key<'_>) -> usize {
        key.hash as usize % self.stripes.len()
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
        for (id, place) in self.streams.take_unlisted(cache.name.as_str()) {
            if self.core.topic_by_id(id).is_err() {
                continue;
            }
            self.streams.list(id, cache.id, place.key.clone());
            let mut locked = cache.lock_one(&place.key);
            if !locked.list_stream(&place.key, id, place.expires_ms) {
                drop(locked);
                cache.finish_later(Commit::all(self.streams.delete(id)));
            }
        }
    }

    /// Removes the entries of streams whose topics were deleted. The caller holds no lock of a cache.
    pub(crate) fn unlist_deleted_streams(&self) {
        for (id, Listing { cache, key }) in self.streams.take_deleted() {
            if let Ok(cache) = self.by_id(cache) {
                cache.lock_one(&key).take_stream(&key, id);
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
