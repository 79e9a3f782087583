//! Caches: named, made when they are first used, each a view that many threads share.
//!
//! A cache is cut into shards by the hash of the key ([`engine::cache::Shard`]), each behind a lock that is held for
//! one change. What is watched is also written down in the order in which it came (`watch.rs`). What changes in a
//! durable cache goes into a log (`log.rs`), which is dumped anew when it is long (`dump.rs`) and read at the start
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
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use engine::cache::operations::Operations;
use engine::cache::record::{CACHES_TOPIC, CacheDefinition, CacheNumber};
use engine::cache::{
    Added, Budget, CACHES_MAX, CacheName, CacheSettings, CacheStatus, Condition, Cursor, Eviction, Expires, Found, Key,
    ScanCursor, Shard, ShardSettings, ShardStats, Stored, TTL_MS_MAX, Ttl,
};
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings, nearest};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::broker::Broker;
use crate::metrics::Exposition;
use crate::peers::Created;
use crate::timers::now_ms;
use crate::topics::Topic;
pub use locked::{Finished, Keyed, Locked, StreamMark, Taken};
pub use log::CacheCommit;
use log::{CacheLog, Kept};
use wait::Waiters;
pub use wait::{Attempt, Waiting};
use watch::Changes;

/// Shards of a cache. Two threads meet at one of them seldom.
const SHARDS: usize = 64;
/// How often entries are removed whose time has come.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);
/// Entries that are removed at once, before others have their turn at a shard.
const EXPIRE_MAX: usize = 256;
/// Places that are looked at in one go for a scan, before others have their turn.
const SCAN_PLACES: u32 = 1024;
/// What a shard takes of the budget at once, at most.
const BLOCK_BYTES_MAX: u64 = 64 << 10;
const BLOCK_BYTES_MIN: u64 = 256;
/// 2020-01-01 in milliseconds since 1970, the time of version 0.
const VERSION_EPOCH_MS: u64 = 1_577_836_800_000;
/// Versions of a millisecond: more than one shard makes changes in it, so that the clock stays ahead.
const VERSIONS_PER_MS: u64 = 1 << 13;

pub struct Caches {
    by_name: RwLock<HashMap<CacheName, Arc<Cache>>>,
    /// The same caches by their numbers.
    by_id: RwLock<HashMap<u64, Arc<Cache>>>,
    budget: Arc<Budget>,
    hasher: foldhash::quality::RandomState,
    /// What is written down for watchers, of all caches together.
    watched_bytes: Arc<AtomicUsize>,
    /// Where the newest cache began to count its changes.
    origin: Mutex<u64>,
    broker: OnceLock<Weak<Broker>>,
    /// Settings of caches whose names belong to a door, whichever door uses such a name first.
    reserved: RwLock<HashMap<String, CacheSettings>>,
    /// What durable caches are kept in, once there is one.
    log: OnceLock<Arc<CacheLog>>,
    /// What the log has is in the caches.
    is_restored: AtomicBool,
    /// Why durable caches are not served, where their log is damaged, and those of them that are known by name.
    refused: OnceLock<(Error, HashSet<CacheName>)>,
    restored_entries: AtomicU64,
}

pub struct Cache {
    /// No other cache ever has it, of this name or another.
    id: u64,
    name: CacheName,
    settings: CacheSettings,
    /// Whose cache it is.
    broker: Weak<Broker>,
    budget: Arc<Budget>,
    hasher: foldhash::quality::RandomState,
    shards: Box<[Padded]>,
    changes: Changes,
    waiters: Waiters,
    is_deleted: AtomicBool,
    /// Where the next look for what may go begins.
    shed_from: AtomicUsize,
    durable: Option<Durable>,
    /// Taken after the locks of shards.
    operations: Mutex<Operations>,
}

/// Where a durable cache is kept.
struct Durable {
    log: Arc<CacheLog>,
    number: CacheNumber,
}

/// A shard that shares no line of the processor's cache with its neighbour.
#[repr(align(128))]
struct Padded(Mutex<Kept>);

impl Caches {
    /// `is_restored`: there is nothing to be restored.
    pub(crate) fn new(bytes_max: u64, is_restored: bool) -> Self {
        Self {
            by_name: RwLock::default(),
            by_id: RwLock::default(),
            budget: Arc::new(Budget::new(bytes_max, None)),
            hasher: foldhash::quality::RandomState::default(),
            watched_bytes: Arc::default(),
            origin: Mutex::new(0),
            broker: OnceLock::new(),
            reserved: RwLock::default(),
            log: OnceLock::new(),
            is_restored: AtomicBool::new(is_restored),
            refused: OnceLock::new(),
            restored_entries: AtomicU64::new(0),
        }
    }

    /// Whose caches these are.
    pub(crate) fn belong_to(&self, broker: Weak<Broker>) {
        // There is one broker, which says so once.
        self.broker.set(broker).unwrap_or_default();
    }

    /// Where a new cache begins to count its changes: none of the same name has come so far, also before a restart.
    fn next_origin(&self) -> u64 {
        let mut origin = self.origin.lock();
        *origin = origin_at(now_ms()).max(*origin + VERSIONS_PER_MS);
        *origin
    }

    /// The same, beyond a number that was given already.
    fn origin_after(&self, given: u64) -> u64 {
        self.note_given(given);
        self.next_origin()
    }

    fn note_given(&self, given: u64) {
        let mut origin = self.origin.lock();
        *origin = given.max(*origin);
    }

    /// Refuses a cache whose entries are in a log that is damaged: a new one of its name would seem to be empty.
    fn check_served(&self, name: &str, is_durable: bool) -> Result<()> {
        match self.refused.get() {
            Some((error, names)) if is_durable || names.contains(name) => Err(Error {
                message: format!(
                    "cache '{name}' is not served: the log of durable caches is damaged. {}",
                    error.message
                ),
                ..error.clone()
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Cache>> {
        self.by_name.read().values().cloned().collect()
    }
}

/// The first version that is given at this time. Versions stay below 2^53 until 2054, so that programs whose numbers
/// are doubles (JavaScript, jq) read them exactly.
fn origin_at(now_ms: u64) -> u64 {
    now_ms.saturating_sub(VERSION_EPOCH_MS) * VERSIONS_PER_MS
}

impl Broker {
    /// The cache of a name. It is made if it is not there, where topics are.
    pub fn cache(&self, name: &str) -> Result<Arc<Cache>> {
        match self.find_cache(name) {
            Err(refused) if refused.kind == ErrorKind::Corrupt => Err(refused),
            Err(_) => {
                let reserved = self.caches().reserved.read().get(name).copied();
                self.cache_or(name, reserved.unwrap_or_default())
            }
            found => found,
        }
    }

    /// Sets how the cache of a name is made when it is first used, whichever door uses it. A door says so of the few
    /// names that are its own.
    pub fn reserve_cache(&self, name: String, settings: CacheSettings) {
        self.caches().reserved.write().insert(name, settings);
    }

    /// The same, made with these settings.
    pub fn cache_or(&self, name: &str, settings: CacheSettings) -> Result<Arc<Cache>> {
        if let Some(cache) = self.caches().by_name.read().get(name) {
            return Ok(cache.clone());
        }
        let name = CacheName::parse(name)?;
        if !self.settings().auto_create_topics {
            return Err(no_such_cache(name.as_str()));
        }
        self.make_cache(name, settings)
    }

    /// The cache of a number, as long as it is there.
    pub fn cache_of(&self, id: u64) -> Result<Arc<Cache>> {
        let cache = self.caches().by_id.read().get(&id).cloned();
        cache.ok_or_else(|| {
            Error::not_found(format!(
                "there is no cache with the number {id} any more: open the cache again by its name"
            ))
        })
    }

    /// A new cache; one that is there with these settings is as good. It lasts as [`Cache::settled`] says.
    pub fn create_cache(&self, name: &str, settings: CacheSettings) -> Result<Arc<Cache>> {
        let name = CacheName::parse(name)?;
        check_settings(&settings)?;
        let cache = self.make_cache(name, settings)?;
        if cache.settings != settings {
            let message = format!("cache '{}' already exists with other settings", cache.name);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        Ok(cache)
    }

    /// The cache of a name, if it exists.
    pub fn find_cache(&self, name: &str) -> Result<Arc<Cache>> {
        let found = self.caches().by_name.read().get(name).cloned();
        if found.is_none() {
            // Where not even names could be read it may have been any.
            let is_unknown = self.caches().refused.get().is_some_and(|(_, names)| names.is_empty());
            self.caches().check_served(name, is_unknown)?;
        }
        found.ok_or_else(|| self.missing_cache(name))
    }

    pub fn delete_cache(&self, name: &str) -> Result<CacheCommit> {
        let mut by_name = self.caches().by_name.write();
        by_name.get(name).ok_or_else(|| no_such_cache(name))?.admit()?;
        let cache = by_name.remove(name).ok_or_else(|| no_such_cache(name))?;
        if let Some(Durable { log, number }) = &cache.durable {
            log.append_cache(*number, None);
        }
        // One that is created again under this name counts on.
        let newest = cache.shards.iter().map(|shard| shard.0.lock().version()).max();
        self.caches().note_given(newest.unwrap_or_default());
        drop(by_name);
        self.caches().by_id.write().remove(&cache.id);
        // Whoever still has it finds it empty, and who watches it or waits for a key that it ended.
        cache.is_deleted.store(true, Ordering::Relaxed);
        let (_, flushed) = cache.flush();
        cache.changes.end();
        cache.waiters.end();
        Ok(cache.settled().and(flushed))
    }

    pub fn describe_cache(&self, name: &str) -> Result<CacheStatus> {
        let cache = self.caches().by_name.read().get(name).cloned();
        cache.map(|cache| cache.status()).ok_or_else(|| self.missing_cache(name))
    }

    /// The error of a cache that does not exist, with the nearest name that does.
    fn missing_cache(&self, name: &str) -> Error {
        let by_name = self.caches().by_name.read();
        match nearest(name, by_name.keys().map(CacheName::as_str)) {
            Some(nearest) => Error::not_found(format!("no cache '{name}'; did you mean '{nearest}'?")),
            None => no_such_cache(name),
        }
    }

    /// Caches in the order of their names, after this one; and whether they are the last.
    pub fn list_caches(&self, after: &str, count_max: usize) -> (Vec<CacheStatus>, bool) {
        let mut caches = self.caches().all();
        caches.retain(|cache| cache.name.as_str() > after);
        caches.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let is_last = caches.len() <= count_max;
        (caches.iter().take(count_max).map(|cache| cache.status()).collect(), is_last)
    }

    /// When all lasts that was done to caches so far.
    pub fn settled_caches(&self) -> CacheCommit {
        self.caches().log.get().map_or_else(CacheCommit::default, CacheLog::settled)
    }

    /// Bytes that caches have taken together, and that they may take.
    pub fn cache_bytes(&self) -> u64 {
        self.caches().budget.taken()
    }

    pub fn cache_bytes_max(&self) -> u64 {
        self.caches().budget.max()
    }

    fn make_cache(&self, name: CacheName, settings: CacheSettings) -> Result<Arc<Cache>> {
        let caches = self.caches();
        let mut by_name = caches.by_name.write();
        if let Some(cache) = by_name.get(name.as_str()) {
            return Ok(cache.clone());
        }
        if by_name.len() == CACHES_MAX {
            return Err(Error::busy(format!("cache limit reached ({CACHES_MAX}): delete one first")));
        }
        if !caches.is_restored.load(Ordering::Acquire) {
            return Err(Error::busy("the broker has just started and is still restoring its durable caches"));
        }
        caches.check_served(name.as_str(), settings.is_durable)?;
        self.peers().admit(Created::Cache)?;
        let id = caches.next_origin();
        let durable = match settings.is_durable {
            true => Some(Durable { log: self.cache_log()?, number: id }),
            false => None,
        };
        let cache = Arc::new(Cache::new(id, name.clone(), settings, caches, durable));
        if let Some(Durable { log, number }) = &cache.durable {
            log.admit()?;
            log.append_cache(*number, Some(&cache.definition()));
            log.check()?;
            cache.keep_effects();
        }
        // Nobody uses it before its streams are there.
        cache.list_streams();
        by_name.insert(name, cache.clone());
        caches.by_id.write().insert(cache.id, cache.clone());
        Ok(cache)
    }

    /// The log of durable caches, which is made with the first of them.
    fn cache_log(&self) -> Result<Arc<CacheLog>> {
        let caches = self.caches();
        if let Some(log) = caches.log.get() {
            log.check()?;
            return Ok(log.clone());
        }
        if self.store().is_none() {
            return Err(Error::invalid("a durable cache needs a data directory; start the broker with --data DIR"));
        }
        let settings = TopicSettings {
            partitions: 1,
            retention_bytes: 0,
            retention_ms: 0,
            storage: Storage::Disk,
            ..TopicSettings::default()
        };
        // No record of it lasts before it does: nobody has to wait.
        let (topic, _) = self.create(TopicName::parse(CACHES_TOPIC)?, settings)?;
        self.open_cache_log(topic)
    }

    fn open_cache_log(&self, topic: Arc<Topic>) -> Result<Arc<CacheLog>> {
        let caches = self.caches();
        let broker = caches.broker.get().cloned().unwrap_or_default();
        let log = Arc::new(CacheLog::new(broker, topic, caches.next_origin())?);
        Ok(caches.log.get_or_init(|| log).clone())
    }

    pub(crate) fn expose_caches(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let (all, _) = self.list_caches("", CACHES_MAX);
        let rows = |value: fn(&ShardStats) -> u64| -> Vec<(String, u64)> {
            all.iter().map(|cache| (cache.name.to_string(), value(&cache.stats))).collect()
        };
        let budget = &self.caches().budget;
        out.gauge("thalweg_caches", "Caches", all.len() as u64)?;
        out.gauge("thalweg_cache_memory_bytes", "Bytes of all caches", budget.taken())?;
        out.gauge(
            "thalweg_cache_memory_bytes_max",
            "Maximum of thalweg_cache_memory_bytes: cache_memory_max",
            budget.max(),
        )?;
        let watched = self.caches().watched_bytes.load(Ordering::Relaxed);
        out.gauge("thalweg_cache_watch_bytes", "Bytes of changes retained for watchers", watched as u64)?;
        let (log, restored) = (self.caches().log.get(), self.caches().restored_entries.load(Ordering::Relaxed));
        let of_log = |value: fn(&CacheLog) -> &AtomicU64| log.map_or(0, |log| value(log).load(Ordering::Relaxed));
        out.gauge("thalweg_cache_log_bytes", "Bytes of the log of durable caches", of_log(|log| &log.bytes))?;
        out.counter("thalweg_cache_log_dumps", "Truncations of the log of durable caches", of_log(|log| &log.dumps))?;
        out.gauge("thalweg_cache_restored_entries", "Entries of durable caches restored on startup", restored)?;
        let waiting: Vec<_> =
            self.caches().all().iter().map(|cache| (cache.name.to_string(), cache.waiting() as u64)).collect();
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
        let block = (budget.max() / (16 * SHARDS as u64)).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let (eviction, now_ms) = (settings.eviction, now_ms());
        let shard = || ShardSettings { eviction, budget: budget.clone(), block, version: id, now_ms };
        Self {
            id,
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(Kept::new(Shard::new(shard()))))).collect(),
            name,
            settings,
            broker: caches.broker.get().cloned().unwrap_or_default(),
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

    fn definition(&self) -> CacheDefinition {
        CacheDefinition { name: self.name.clone(), settings: self.settings }
    }

    /// From now on what changes is written down.
    fn keep_effects(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().tell_effects(true));
    }

    /// When all lasts that was done to this key so far, as whoever was told of it has to know: of a cache in memory it
    /// does at once.
    #[must_use]
    pub fn commit_of(&self, key: &[u8]) -> CacheCommit {
        let Some(Durable { log, .. }) = &self.durable else {
            return CacheCommit::default();
        };
        let key = self.key(key);
        let unsettled = self.shard(key).unsettled(log, Some(key.mark()));
        unsettled.map_or_else(CacheCommit::default, |offset| log.commit_of(offset))
    }

    /// When all lasts that was done so far, to whatever key.
    #[must_use]
    pub fn settled(&self) -> CacheCommit {
        self.durable.as_ref().map_or_else(CacheCommit::default, |durable| durable.log.settled())
    }

    /// Refuses where a change could not be written: of a durable cache on a full disk, for example. It is asked before
    /// a change.
    pub fn admit(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), |durable| durable.log.admit())
    }

    /// What changed in a shard is told to those who have to know, before its lock is free.
    fn follow(&self, shard: &mut Kept) {
        self.changes.follow(shard);
        if let Some(Durable { log, number }) = &self.durable {
            shard.write(log, *number);
        }
        self.drop_streams(shard);
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

    /// What `read` makes of the value of a key, while its shard waits.
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(Option<Found<'_>>) -> R) -> R {
        let key = self.key(key);
        read(self.shard(key).get(key, now_ms))
    }

    /// The same, without counting as use.
    pub fn peek<R>(&self, key: &[u8], read: impl FnOnce(Option<Found<'_>>) -> R) -> R {
        let key = self.key(key);
        read(self.shard(key).peek(key, now_ms))
    }

    pub fn put(&self, key: &[u8], value: &[u8], ttl: Ttl, condition: Condition) -> Result<Stored> {
        let expires = self.expires(ttl)?;
        self.change(key, value.len(), |shard, key| {
            let stored = shard.put(key, value, expires, condition, now_ms)?;
            if let Stored::Done { .. } = stored {
                self.changes.note(shard, key);
            }
            Ok(stored)
        })
    }

    pub fn delete(&self, key: &[u8], condition: Condition) -> Stored {
        let key = self.key(key);
        let mut shard = self.shard(key);
        let stored = shard.delete(key, condition, now_ms);
        if let Stored::Done { version, previous: Some(_) } = stored {
            self.changes.note_deleted(&mut shard, key, version);
        }
        self.follow(&mut shard);
        stored
    }

    /// Adds to a counter, which is a number in decimal digits; one that is not there begins with 0.
    pub fn add(&self, key: &[u8], delta: i64, ttl: Ttl) -> Result<Added> {
        let expires = self.expires(ttl)?;
        self.change(key, 20, |shard, key| {
            let is_new = shard.peek(key, now_ms).is_none();
            let mut added = shard.add(key, delta, now_ms)?;
            // The time is that of the counter, not of one step.
            if let (true, Expires::At(at_ms)) = (is_new, expires) {
                shard.set_expiry(key, Some(at_ms), now_ms);
                added.expires_ms = Some(at_ms);
            }
            self.changes.note(shard, key);
            Ok(added)
        })
    }

    /// Another time for an entry. Whether there is one.
    pub fn touch(&self, key: &[u8], ttl: Ttl) -> Result<bool> {
        let expires_ms = match self.expires(ttl)? {
            Expires::At(at_ms) => Some(at_ms),
            Expires::Never => None,
            Expires::Kept => return Ok(self.peek(key, |found| found.is_some())),
        };
        self.admit()?;
        let key = self.key(key);
        let mut shard = self.shard(key);
        let is_there = shard.set_expiry(key, expires_ms, now_ms);
        self.follow(&mut shard);
        Ok(is_there)
    }

    /// Entries whose keys begin so, from a place on: each that is there all the time comes once. `each` says when it
    /// has enough. Where to go on, until all were seen.
    pub fn scan(&self, prefix: &[u8], from: ScanCursor, mut each: impl FnMut(Found<'_>) -> bool) -> Option<ScanCursor> {
        let (at, place) = (from.0 >> 32, from.0 as u32);
        let shard = self.shards.get(at as usize)?.0.lock();
        let next =
            shard.scan(Cursor(place), SCAN_PLACES, now_ms(), |found| !found.key.starts_with(prefix) || each(found));
        match next {
            Some(Cursor(place)) => Some(ScanCursor(at << 32 | u64::from(place))),
            None => (at + 1 < self.shards.len() as u64).then_some(ScanCursor((at + 1) << 32)),
        }
    }

    /// Removes all entries. How many there were, and when they are removed for good.
    pub fn flush(&self) -> (u64, CacheCommit) {
        // All at once: what is put after it comes after it also for those who watch.
        let mut locked = self.lock_all();
        let entries = locked.len();
        locked.flush();
        (entries, locked.finish().commit)
    }

    /// What happens when it is full.
    pub fn eviction(&self) -> Eviction {
        self.settings.eviction
    }

    /// How many entries expire, and in how many ms as a rule.
    pub fn expiring(&self) -> (u64, u64) {
        let of_shards = self.shards.iter().map(|shard| shard.0.lock().expiring());
        let (count, sum_ms) = of_shards.fold((0, 0), |(count, sum), (more, ms)| (count + more, sum + ms));
        let mean_ms = sum_ms.checked_div(u128::from(count)).unwrap_or_default() as u64;
        (count, if count == 0 { 0 } else { mean_ms.saturating_sub(now_ms()) })
    }

    pub fn status(&self) -> CacheStatus {
        let stats =
            self.shards.iter().map(|shard| shard.0.lock().stats()).fold(ShardStats::default(), |all, one| ShardStats {
                entries: all.entries + one.entries,
                bytes: all.bytes + one.bytes,
                hits: all.hits + one.hits,
                misses: all.misses + one.misses,
                expired: all.expired + one.expired,
                evicted: all.evicted + one.evicted,
            });
        CacheStatus { name: self.name.clone(), settings: self.settings, bytes_max: self.budget.max(), stats }
    }

    /// One change in the shard of a key. Where it has no room others give some, and it is tried once more.
    fn change<R>(
        &self,
        key: &[u8],
        value_bytes: usize,
        change: impl Fn(&mut Shard, Key<'_>) -> Result<R>,
    ) -> Result<R> {
        self.admit()?;
        let key = self.key(key);
        let mut shard = self.shard(key);
        let changed = match change(&mut shard, key) {
            Err(error) if error.kind == ErrorKind::Busy => {
                self.follow(&mut shard);
                drop(shard);
                self.shed_for(key, value_bytes);
                shard = self.shard(key);
                change(&mut shard, key)
            }
            changed => changed,
        };
        self.follow(&mut shard);
        changed.map_err(|error| match error.kind {
            ErrorKind::Busy => Error { message: format!("cache '{}': {}", self.name, error.message), ..error },
            _ => error,
        })
    }

    /// Has other shards give up what this entry may need.
    fn shed_for(&self, key: Key<'_>, value_bytes: usize) {
        let mut missing = (key.bytes.len() + value_bytes) as u64 + 256;
        let first = key.hash as usize % self.shards.len();
        for at in 1..self.shards.len() {
            let mut shard = self.shards[(first + at) % self.shards.len()].0.lock();
            missing = missing.saturating_sub(shard.shed(missing));
            self.follow(&mut shard);
            if missing == 0 {
                return;
            }
        }
    }

    /// Removes entries whose time has come. Others of this thread have their turns in between.
    async fn expire(&self, now_ms: u64) {
        for shard in &self.shards {
            while self.expire_some(&shard.0, now_ms) {
                tokio::task::yield_now().await;
            }
        }
        self.forget_unwatched();
    }

    /// Whether there may be more.
    fn expire_some(&self, shard: &Mutex<Kept>, now_ms: u64) -> bool {
        let mut shard = shard.lock();
        let is_more = shard.expire(now_ms, EXPIRE_MAX);
        self.follow(&mut shard);
        is_more
    }

    fn expires(&self, ttl: Ttl) -> Result<Expires> {
        let after = |ms: u64| match ms {
            0 => Err(Error::invalid("a time to live is at least 1 ms; to remove the entry, delete it")),
            1..=TTL_MS_MAX => Ok(Expires::At(now_ms() + ms)),
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

    fn shard(&self, key: Key<'_>) -> MutexGuard<'_, Kept> {
        self.shards[self.shard_of(key)].0.lock()
    }

    fn shard_of(&self, key: Key<'_>) -> usize {
        key.hash as usize % self.shards.len()
    }
}

/// Removes what expires, for as long as the broker lives.
pub(crate) async fn keep_time(broker: Weak<Broker>) {
    let mut interval = tokio::time::interval(EXPIRE_EVERY);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(broker) = broker.upgrade() else {
            return;
        };
        broker.unlist_deleted_streams();
        for cache in broker.caches().all() {
            // What has expired is not found, whether it is removed or not; removing it is written down.
            if cache.admit().is_err() {
                continue;
            }
            cache.expire(now_ms()).await;
            tokio::task::yield_now().await;
        }
        broker.dump_if_long();
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
