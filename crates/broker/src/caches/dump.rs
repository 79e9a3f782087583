//! Dumps of the log of durable caches, which keep it short. When the log is much longer than the contents of the
//! caches, all contents are appended to it again, and the records before them are deleted.
//!
//! A dump proceeds stripe by stripe, some entries at a time under the lock of their stripe, while other callers change
//! any entries: a dumped entry has its state at that place of the log. If the broker ends during a dump, the log is
//! intact, and the part of the dump repeats states that it already contains.
//!
//! Two caches may exchange their contents during a dump. So all caches are defined first, and then each of the contents
//! is dumped as one of the cache that has it at that place of the log: a replay of the exchange moves what was dumped
//! before it, too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::Result;
use engine::cache::effects::Effect;
use engine::cache::{Cursor, Stripe};

use super::Caches;
use super::cache::{Cache, Durable};
use super::calls::SCAN_PLACES;
use super::log::CacheLog;

/// Size in bytes below which a log is not dumped.
const LOG_BYTES_MIN: u64 = 16 << 20;
/// Multiple of the bytes of the entries above which the log is dumped.
const LOG_TIMES_MAX: u64 = 2;
/// Maximum number of bytes that are dumped under one lock. At most [`AHEAD_BYTES`] of a dump are pending for the disk.
const PIECE_BYTES: usize = 256 << 10;
const AHEAD_BYTES: usize = 4 << 20;
/// Pause after a failed dump before another one is tried.
const PAUSE: Duration = Duration::from_secs(10);

impl Caches {
    /// Starts a dump in the background if the log is too long.
    pub(super) fn dump_if_long(self: &Arc<Self>) {
        let Some(log) = self.log.read().clone() else {
            return;
        };
        // Before that the caches are incomplete, and the rest of their contents is in the log only.
        if !self.restored.is_done() || self.refused.read().is_some() {
            return;
        }
        let durable = self.durable();
        let entries: u64 = durable.iter().map(|cache| cache.budget.taken()).sum();
        let kept = entries.max(log.kept.load(Ordering::Relaxed));
        let max = (kept * LOG_TIMES_MAX).max(LOG_BYTES_MIN);
        if log.bytes.load(Ordering::Relaxed) <= max || log.is_dumping.swap(true, Ordering::AcqRel) {
            return;
        }
        let caches = Arc::downgrade(self);
        tokio::spawn(async move {
            let Some(caches) = caches.upgrade() else {
                return;
            };
            if let Err(error) = caches.dump(&log).await {
                tracing::warn!(%error, "cannot truncate the log of durable caches; retrying");
                drop(caches);
                tokio::time::sleep(PAUSE).await;
            }
            log.is_dumping.store(false, Ordering::Release);
        });
    }

    fn durable(&self) -> Vec<Arc<Cache>> {
        let mut caches = self.all();
        caches.retain(|cache| cache.durable.is_some());
        caches
    }

    /// Appends the contents of all durable caches to the log, and deletes the records before them.
    pub(super) async fn dump(&self, log: &Arc<CacheLog>) -> Result<()> {
        let _dumping = self.dumping.lock().await;
        log.admit()?;
        let (begin, bytes) = log.begin_dump();
        let mut ahead = 0;
        for cache in self.durable() {
            if self.dump_definition(&cache) {
                ahead += cache.dump_answers(log).await;
            }
        }
        for contents in self.contents(log).await {
            self.dump_contents(log, contents, &mut ahead).await?;
        }
        log.check()?;
        log.settled().wait().await?;
        // Of a log that was given up, not all was dumped.
        log.check()?;
        log.cut(begin, bytes).await?;
        log.kept.store(log.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    /// Logs the definition of a cache again. Returns `true` if the cache exists. It cannot be deleted concurrently.
    fn dump_definition(&self, cache: &Cache) -> bool {
        let by_name = self.by_name.read();
        let exists = by_name.get(cache.name.as_str()).is_some_and(|current| current.id == cache.id);
        if let Some(Durable { log, number }) = cache.durable.as_ref().filter(|_| exists) {
            log.append_cache(*number, Some(&cache.definition()));
        }
        exists
    }

    /// Returns the numbers of the contents of all durable caches, as they are between two exchanges.
    pub(super) async fn contents(&self, log: &CacheLog) -> Vec<u64> {
        loop {
            let swaps = log.swaps.load(Ordering::SeqCst);
            let mut all = Vec::new();
            for cache in self.durable() {
                all.push(cache.stripe_later(0).await.contents);
            }
            if log.swaps.load(Ordering::SeqCst) == swaps {
                return all;
            }
        }
    }

    /// Returns the cache that has these contents now; `None` if that was deleted.
    async fn home_of(&self, log: &CacheLog, contents: u64) -> Option<Arc<Cache>> {
        loop {
            let swaps = log.swaps.load(Ordering::SeqCst);
            for cache in self.durable() {
                let found = cache.stripe_later(0).await.contents;
                if found == contents {
                    return Some(cache);
                }
            }
            if log.swaps.load(Ordering::SeqCst) == swaps {
                return None;
            }
        }
    }

    /// Dumps contents, whichever caches have them in the meantime. `ahead` is the number of dumped bytes that may be
    /// pending for the disk.
    pub(super) async fn dump_contents(&self, log: &CacheLog, contents: u64, ahead: &mut usize) -> Result<()> {
        let Some(mut home) = self.home_of(log, contents).await else {
            return Ok(());
        };
        for at in 0..home.stripes.len() {
            let mut from = Some(Cursor::default());
            while let Some(cursor) = from {
                match home.dump_piece(log, contents, (at, cursor)).await {
                    Some((next, bytes)) => {
                        from = next;
                        *ahead += bytes;
                    }
                    // They keep their places in the stripes of the other cache.
                    None => match self.home_of(log, contents).await {
                        Some(new) => home = new,
                        None => return Ok(()),
                    },
                }
                // An incomplete dump repeats states that the log already contains.
                log.admit()?;
                if *ahead >= AHEAD_BYTES {
                    log.settled().wait().await?;
                    *ahead = 0;
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }
}

impl Cache {
    /// Logs the answers to operations again, between two steps, so that no answer precedes its change. Returns their
    /// bytes.
    async fn dump_answers(&self, log: &CacheLog) -> usize {
        let Some(Durable { number, .. }) = &self.durable else {
            return 0;
        };
        // Answers from here on are logged after the beginning of the dump. Scripts could delay the locks for ever.
        if self.operations.lock().is_empty() {
            return 0;
        }
        let _between = self.lock_all_later().await;
        let mut answers = Vec::new();
        for (operation, answer) in self.operations.lock().iter() {
            Effect::Answered { operation, answer }.encode(&mut answers);
        }
        if !answers.is_empty() {
            log.append(&[(*number, &answers)]);
        }
        answers.len()
    }

    /// Logs some entries of a stripe again, from a cursor on. Returns the cursor of the next ones and the dumped bytes;
    /// `None` if the cache has other contents now.
    async fn dump_piece(
        &self,
        log: &CacheLog,
        contents: u64,
        (at, cursor): (usize, Cursor),
    ) -> Option<(Option<Cursor>, usize)> {
        let Durable { number, .. } = self.durable.as_ref()?;
        let mut piece = Vec::new();
        let stripe = self.stripe_later(at).await;
        if stripe.contents != contents {
            return None;
        }
        let next = stripe.scan(cursor, SCAN_PLACES, self.now_ms(), |found| {
            Stripe::dump(found, &mut piece);
            piece.len() < PIECE_BYTES
        });
        if !piece.is_empty() {
            log.append(&[(*number, &piece)]);
        }
        Some((next, piece.len()))
    }
}
