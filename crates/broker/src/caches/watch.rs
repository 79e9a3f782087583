//! Watchers of a cache: they read its recorded changes, or its entries if they are too far behind.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::cache::{Change, ChangeKind, ScanCursor, WatchFrom, Watched};
use engine::{Error, Result};
use tokio::time::Instant;

use super::cache::Cache;
use super::changes::{bytes_of, found_change};

/// Minimum time between two looks of a watcher that is woken for changes of other keys.
const IN_VAIN_PAUSE: Duration = Duration::from_millis(5);

impl Cache {
    /// Returns changes of keys that begin with `prefix`, up to the limits. If no such change is recorded, waits for
    /// one.
    pub async fn watch(
        &self,
        prefix: &[u8],
        from: WatchFrom,
        count_max: usize,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<Watched> {
        let deadline = Instant::now() + wait;
        let mut from = from;
        let mut woken: Option<Instant> = None;
        loop {
            let news = self.changes.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let watched = self.look(prefix, from, count_max, bytes_max)?;
            // Changes of other keys are skipped without an answer.
            let is_news = !watched.changes.is_empty() || watched.is_reset || !matches!(from, WatchFrom::Changes { .. });
            from = watched.next;
            if is_news || tokio::time::timeout_at(deadline, news).await.is_err() {
                // Watchers must not see a change that a crash could undo.
                self.settled().wait().await?;
                return Ok(watched);
            }
            if let Some(woken) = woken {
                // It is woken for each change of the cache, and the last one was of another key.
                tokio::time::sleep_until(deadline.min(woken + IN_VAIN_PAUSE)).await;
            }
            woken = Some(Instant::now());
        }
    }

    fn look(&self, prefix: &[u8], from: WatchFrom, count_max: usize, bytes_max: usize) -> Result<Watched> {
        let mut from = from;
        let mut is_reset = false;
        let mut log = self.changes.log.lock();
        if log.is_over {
            return Err(Error::not_found(format!("cache '{}' was deleted", self.name())));
        }
        log.watched = Some(Instant::now());
        let end = log.start + log.changes.len() as u64;
        if let WatchFrom::Changes { position } | WatchFrom::Scan { position, .. } = from
            && (position < log.start || position > end || !self.changes.is_watched())
        {
            from = WatchFrom::Snapshot;
            is_reset = true;
        }
        let mut batch = Batch { changes: Vec::new(), count_max: count_max.max(1), bytes_max, bytes: 0 };
        let next = match from {
            WatchFrom::Changes { mut position } => {
                while position < end && batch.has_room() {
                    let change = &log.changes[(position - log.start) as usize];
                    if change.key.starts_with(prefix) || change.kind == ChangeKind::Flushed {
                        batch.add(Change::clone(change));
                    }
                    position += 1;
                }
                WatchFrom::Changes { position }
            }
            WatchFrom::Scan { cursor, position } => {
                drop(log);
                self.scan_some(prefix, cursor, position, &mut batch)?
            }
            WatchFrom::Snapshot => {
                drop(log);
                let position = self.follow_from_here()?;
                self.scan_some(prefix, ScanCursor::default(), position, &mut batch)?
            }
        };
        Ok(Watched { changes: batch.changes, next, is_reset })
    }

    /// Starts to record changes. Returns the position of the first. Fails if a long step holds keys.
    fn follow_from_here(&self) -> Result<u64> {
        self.check_free()?;
        let switch = self.changes.switch.lock();
        let is_watched = self.changes.is_watched();
        drop(switch);
        if !is_watched {
            // The holder of a stripe may wait for the switch, so all stripes are locked before it.
            let mut locked = self.lock_all_or_busy()?;
            let _switch = self.changes.switch.lock();
            self.changes.is_watched.store(true, Ordering::Relaxed);
            locked.record_removed(true);
        }
        let log = self.changes.log.lock();
        Ok(log.start + log.changes.len() as u64)
    }

    /// Stops recording once no watcher has read the changes for [`AWAY_MAX`].
    pub(super) fn forget_unwatched(&self) {
        if !self.changes.is_watched() || !self.changes.log.lock().is_unwatched() {
            return;
        }
        // While a long step holds a stripe, its changes are still recorded.
        let Some(mut locked) = self.lock_if_free(None::<std::iter::Empty<&[u8]>>) else {
            return;
        };
        let _switch = self.changes.switch.lock();
        if self.changes.log.lock().forget_unwatched(&self.changes.total_bytes) {
            self.changes.is_watched.store(false, Ordering::Relaxed);
            locked.record_removed(self.changes.notes.are_wanted());
        }
    }

    /// Reads entries into the batch until it is full, the next stripe is held by a long step, or there are no more.
    /// Fails if that step is the reason why there are none.
    fn scan_some(&self, prefix: &[u8], from: ScanCursor, position: u64, batch: &mut Batch) -> Result<WatchFrom> {
        let mut cursor = Some(from);
        while let Some(from) = cursor {
            if !batch.has_room() {
                return Ok(WatchFrom::Scan { cursor: from, position });
            }
            let scanned = self.scan(prefix, from, |found| {
                batch.add(found_change(found));
                batch.has_room()
            });
            cursor = match scanned {
                Err(_) if !batch.changes.is_empty() => return Ok(WatchFrom::Scan { cursor: from, position }),
                scanned => scanned?,
            };
        }
        Ok(WatchFrom::Changes { position })
    }
}

/// An answer with its limits.
struct Batch {
    changes: Vec<Change>,
    count_max: usize,
    bytes_max: usize,
    bytes: usize,
}

impl Batch {
    fn has_room(&self) -> bool {
        self.changes.len() < self.count_max && self.bytes < self.bytes_max
    }

    fn add(&mut self, change: Change) {
        self.bytes += bytes_of(&change);
        self.changes.push(change);
    }
}
