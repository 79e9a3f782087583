//! The log of durable caches is kept short: when it is much longer than what the caches have, all of that is written
//! once more, behind it, and what was before goes.
//!
//! Shard by shard, some entries at a time, under the lock of their shard, while others change what they like: an entry
//! that is dumped is what it is at that place of the log. A broker that ends meanwhile finds the log as it was, and a
//! part of a dump that says nothing new.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::Result;
use engine::cache::effects::Effect;
use engine::cache::record::CacheNumber;
use engine::cache::{Cursor, Shard};

use super::{Cache, CacheLog, Durable, SCAN_PLACES};
use crate::broker::Broker;
use crate::timers::now_ms;

/// A log that is shorter stays as it is.
const LOG_BYTES_MIN: u64 = 16 << 20;
/// Beyond what the entries take, as often.
const LOG_TIMES_MAX: u64 = 2;
/// What is dumped under one lock, and what of it may wait for the disk.
const PIECE_BYTES: usize = 256 << 10;
const AHEAD_BYTES: usize = 4 << 20;
/// How long nobody tries again after a dump that failed.
const PAUSE: Duration = Duration::from_secs(10);

impl Broker {
    /// Begins a dump where the log is too long, in the background.
    pub(super) fn dump_if_long(self: &Arc<Self>) {
        let Some(log) = self.caches().log.get() else {
            return;
        };
        // Before that the caches are not all there, and what they have is in the log alone.
        if !self.caches().is_restored.load(Ordering::Acquire) || self.caches().refused.get().is_some() {
            return;
        }
        let durable = self.durable_caches();
        let entries: u64 = durable.iter().map(|cache| cache.budget.taken()).sum();
        let kept = entries.max(log.kept.load(Ordering::Relaxed));
        let max = (kept * LOG_TIMES_MAX).max(LOG_BYTES_MIN);
        if log.bytes.load(Ordering::Relaxed) <= max || log.is_dumping.swap(true, Ordering::AcqRel) {
            return;
        }
        let (broker, log) = (Arc::downgrade(self), log.clone());
        tokio::spawn(async move {
            let Some(broker) = broker.upgrade() else {
                return;
            };
            if let Err(error) = broker.dump_caches(&log).await {
                tracing::warn!(%error, "the log of durable caches cannot be made shorter now");
                drop(broker);
                tokio::time::sleep(PAUSE).await;
            }
            log.is_dumping.store(false, Ordering::Release);
        });
    }

    fn durable_caches(&self) -> Vec<Arc<Cache>> {
        let mut caches = self.caches().all();
        caches.retain(|cache| cache.durable.is_some());
        caches
    }

    /// Writes all that durable caches have, and lets go of what is before.
    pub(super) async fn dump_caches(&self, log: &Arc<CacheLog>) -> Result<()> {
        log.admit()?;
        let (begin, bytes) = log.begin_dump();
        for cache in self.durable_caches() {
            if self.dump_definition(&cache) {
                cache.dump().await?;
            }
        }
        log.settled().lasts().await?;
        log.cut(begin, bytes).await?;
        log.kept.store(log.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    /// Whether the cache is there: none is deleted meanwhile.
    fn dump_definition(&self, cache: &Cache) -> bool {
        let by_name = self.caches().by_name.read();
        let is_there = by_name.get(cache.name.as_str()).is_some_and(|there| there.id == cache.id);
        if let Some(Durable { log, number }) = cache.durable.as_ref().filter(|_| is_there) {
            log.append_cache(*number, Some(&cache.definition()));
        }
        is_there
    }
}

impl Cache {
    /// Between two steps, so that no answer comes before what it answers. How many bytes they were.
    fn dump_answers(&self, log: &CacheLog, number: CacheNumber) -> usize {
        let _between = self.lock_all();
        let mut answers = Vec::new();
        for (operation, answer) in self.operations.lock().iter() {
            Effect::Answered { operation, answer }.encode(&mut answers);
        }
        if !answers.is_empty() {
            log.append(&[(number, &answers)]);
        }
        answers.len()
    }

    async fn dump(&self) -> Result<()> {
        let Some(Durable { log, number }) = &self.durable else {
            return Ok(());
        };
        let mut ahead = self.dump_answers(log, *number);
        for shard in &self.shards {
            let mut from = Some(Cursor::default());
            while let Some(cursor) = from {
                let mut piece = Vec::new();
                {
                    let shard = shard.0.lock();
                    from = shard.scan(cursor, SCAN_PLACES, now_ms(), |found| {
                        Shard::dump(found, &mut piece);
                        piece.len() < PIECE_BYTES
                    });
                    if !piece.is_empty() {
                        log.append(&[(*number, &piece)]);
                    }
                }
                ahead += piece.len();
                // A part of a dump says nothing new.
                log.admit()?;
                if ahead >= AHEAD_BYTES {
                    log.settled().lasts().await?;
                    ahead = 0;
                }
                tokio::task::yield_now().await;
            }
        }
        log.check()
    }
}
