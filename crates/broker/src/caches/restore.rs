//! Restore of durable caches on startup: the contents of their log are applied again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::cache::CacheName;
use engine::cache::effects::{self, Effect};
use engine::cache::record::{CACHES_TOPIC, CacheNumber, CacheRecord, StepPart};
use engine::{Error, ErrorKind, RecordBatch, RecordView, Result};
use tokio::time::Instant;

use super::Caches;
use super::cache::{Cache, Durable};
use super::log::{CacheLog, RECORD_BYTES};

/// Interval at which a long restore reports its progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Number of records that are read between two checks of the clock and of expired entries.
const LOOK_EVERY: u64 = 4096;
/// Time after its expiry until which the restore keeps an entry: the records in between were written with the clocks of
/// several threads.
const EXPIRE_LATE_MS: u64 = 60_000;

impl Caches {
    /// Restores the durable caches, unless that was done. No cache can be created before this has finished.
    pub async fn restore(&self) -> Result<()> {
        self.restored.ensure(|| self.read_log()).await
    }

    async fn read_log(&self) -> Result<()> {
        let Some(topic) = self.core.existing_topic(CACHES_TOPIC) else {
            return Ok(());
        };
        // Changes of caches that were forgotten may still be on their way to the disk.
        topic.partition(0)?.settled()?.wait().await?;
        let log = self.open_cache_log(topic)?;
        let mut restore = Restore::new(self, log.topic.partitions()[0].extent().bytes);
        let read = self.core.read_records(&log.topic, |_, view, batch| restore.record(&log, view, batch)).await;
        if let Err(error) = read {
            if error.kind != ErrorKind::Corrupt {
                return Err(error);
            }
            // The owners of the unreadable changes are unknown: no durable cache is known to be complete.
            let names: HashSet<CacheName> = restore.by_number.values().map(|cache| cache.name.clone()).collect();
            tracing::error!(%error, caches = ?names, "durable caches are not served: their log is damaged");
            *self.refused.write() = Some((error, names));
            return Ok(());
        }
        let bytes = restore.bytes;
        let entries = restore.finish();
        log.bytes.store(bytes, Ordering::Relaxed);
        self.restored_entries.store(entries, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets the durable caches: [`Caches::restore`] reads them from their log again. A caller that has one must open
    /// it again by its name. Returns their numbers.
    pub(crate) async fn forget(&self) -> HashSet<u64> {
        let forgetting = self.restored.forgetting().await;
        // A dump deletes the records that it replaces.
        let _dumping = self.dumping.lock().await;
        let gone: Vec<Arc<Cache>> = {
            let mut by_name = self.by_name.write();
            forgetting.begin();
            if let Some(log) = self.log.write().take() {
                log.close();
            }
            *self.refused.write() = None;
            by_name.extract_if(|_, cache| cache.durable.is_some()).map(|(_, cache)| cache).collect()
        };
        for cache in &gone {
            self.by_id.write().remove(&cache.id);
            // A change that was admitted is in the log, or fails, once the lock of its stripe was taken here.
            for at in 0..cache.stripes.len() {
                drop(cache.stripe_later(at).await);
            }
            cache.end();
        }
        gone.iter().map(|cache| cache.id).collect()
    }
}

/// Caches as far as the log has been read.
struct Restore<'c> {
    caches: &'c Caches,
    by_number: HashMap<CacheNumber, Arc<Cache>, foldhash::fast::RandomState>,
    /// Steps that are incomplete so far, with the parts that were read.
    parts: HashMap<u64, Vec<(CacheNumber, Vec<u8>)>>,
    records: u64,
    /// Bytes read so far, of about `bytes_max`.
    bytes: u64,
    bytes_max: u64,
    told: Instant,
}

impl<'c> Restore<'c> {
    fn new(caches: &'c Caches, bytes_max: u64) -> Self {
        Self {
            caches,
            by_number: HashMap::default(),
            parts: HashMap::new(),
            records: 0,
            bytes: 0,
            bytes_max,
            told: Instant::now(),
        }
    }

    fn record(&mut self, log: &Arc<CacheLog>, view: &RecordView<'_>, batch: &RecordBatch) -> Result<()> {
        let now_ms = view.timestamp_ms as u64;
        match CacheRecord::decode(view.key.unwrap_or_default(), view.value)? {
            CacheRecord::Cache { cache, definition: None } => drop(self.by_number.remove(&cache)),
            CacheRecord::Cache { cache: number, definition: Some(definition) } => {
                let durable = Durable { log: log.clone(), number };
                self.by_number.entry(number).or_insert_with(|| {
                    let id = self.caches.next_origin();
                    let cache =
                        Cache::new(id, definition.name, definition.settings, &self.caches.common, Some(durable));
                    cache.stripes.iter().for_each(|stripe| stripe.0.lock().begin_replay(true));
                    Arc::new(cache)
                });
            }
            CacheRecord::Step { cache, part: None, effects } => self.step(cache, effects, now_ms)?,
            CacheRecord::Step { cache, part: Some(part), effects } => self.part(cache, part, effects, now_ms)?,
        }
        if view.offset == batch.base_offset() {
            self.bytes += batch.len() as u64 + RECORD_BYTES;
        }
        self.look(now_ms);
        Ok(())
    }

    /// Collects the parts of a step, and applies them when the last one has been read.
    fn part(&mut self, cache: CacheNumber, part: StepPart, effects: &[u8], now_ms: u64) -> Result<()> {
        let parts = self.parts.entry(part.step).or_default();
        match parts.last_mut() {
            Some((of, before)) if *of == cache => before.extend_from_slice(effects),
            _ => parts.push((cache, effects.to_vec())),
        }
        if part.is_last {
            for (cache, effects) in self.parts.remove(&part.step).unwrap_or_default() {
                self.step(cache, &effects, now_ms)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, number: CacheNumber, effects: &[u8], now_ms: u64) -> Result<()> {
        effects::decode(effects, |effect| {
            if let Effect::Swapped { with, version } = effect {
                return self.swap([number, with], version, now_ms);
            }
            // The cache was deleted later, or a dump later in the log defines it again with all its contents.
            let Some(cache) = self.by_number.get(&number) else {
                return Ok(());
            };
            match effect {
                Effect::Flushed => cache.stripes.iter().for_each(|stripe| stripe.0.lock().flush()),
                Effect::Answered { operation, answer } => cache.operations.lock().remember(operation, answer),
                _ => {
                    let key = cache.key(effect.key().unwrap_or_default());
                    cache.stripes[cache.stripe_of(key)].0.lock().replay(key, &effect, now_ms)?;
                }
            }
            Ok(())
        })
    }

    /// Exchanges the contents of two caches. One that is unknown was defined before the beginning of the log: a dump
    /// that was in progress defines it again later, and after that repeats the contents of both.
    fn swap(&self, numbers: [CacheNumber; 2], version: u64, now_ms: u64) -> Result<()> {
        match numbers.map(|number| self.by_number.get(&number)) {
            [Some(one), Some(other)] if one.id == other.id => {
                Err(Error::malformed("a cache exchanges its contents with itself"))
            }
            [Some(one), Some(other)] => {
                let stripes = one.stripes.iter().zip(&other.stripes);
                stripes.for_each(|(one, other)| one.0.lock().swap(&mut other.0.lock(), version, now_ms));
                Ok(())
            }
            [Some(known), None] | [None, Some(known)] => {
                known.stripes.iter().for_each(|stripe| {
                    let mut stripe = stripe.0.lock();
                    stripe.flush();
                    stripe.count_from(version);
                });
                Ok(())
            }
            [None, None] => Ok(()),
        }
    }

    /// Removes expired entries and reports the progress from time to time.
    fn look(&mut self, now_ms: u64) {
        self.records += 1;
        if self.records.is_multiple_of(LOOK_EVERY) {
            // Entries that expired long ago should take no memory.
            self.expire(now_ms.saturating_sub(EXPIRE_LATE_MS));
            if self.told.elapsed() >= PROGRESS_EVERY {
                self.told = Instant::now();
                let bytes = self.bytes;
                let bytes_max = self.bytes_max;
                let records = self.records;
                tracing::info!(bytes, bytes_max, records, "durable caches are being restored");
            }
        }
    }

    fn expire(&self, now_ms: u64) {
        let stripes = self.by_number.values().flat_map(|cache| &cache.stripes);
        for stripe in stripes {
            stripe.0.lock().expire(now_ms, usize::MAX);
        }
    }

    /// Makes the restored caches available to all callers. Returns the number of their entries.
    fn finish(self) -> u64 {
        self.expire(self.caches.core.now_ms());
        let stripes = || self.by_number.values().flat_map(|cache| &cache.stripes);
        // A key may be in another stripe than before the restart, so all stripes continue to count from the newest
        // change.
        let newest = stripes().map(|stripe| stripe.0.lock().version()).max().unwrap_or_default();
        let numbers = self.by_number.keys().copied().max().unwrap_or_default();
        let origin = self.caches.origin_after(newest.max(numbers));
        let mut entries = 0;
        for stripe in stripes() {
            let mut stripe = stripe.0.lock();
            stripe.begin_replay(false);
            stripe.count_from(origin);
            stripe.record_effects(true);
            entries += stripe.stats().entries;
        }
        // No caller can use a cache before its streams are listed.
        self.by_number.values().for_each(|cache| self.caches.list_streams(cache));
        let mut by_name = self.caches.by_name.write();
        for cache in self.by_number.into_values() {
            self.caches.by_id.write().insert(cache.id, cache.clone());
            by_name.insert(cache.name.clone(), cache);
        }
        entries
    }
}
