//! Calls of a cache that concern one key, or all of them: each is one change under the lock of one stripe. The thread
//! of the caller serves others, too: a call fails with `busy` rather than wait for a long step that holds the stripe.

use std::time::Duration;

use engine::cache::{Added, CacheStatus, Condition, Cursor, Expires, Found, Key, ScanCursor, Stored, StripeStats, Ttl};
use engine::{ErrorKind, Result};
use parking_lot::Mutex;

use super::cache::Cache;
use super::log::Kept;
use super::notes::{Cause, Note, What};
use crate::commit::Commit;

/// Maximum number of entries that are removed in one pass, before other tasks have their turn at a stripe.
const EXPIRE_MAX: usize = 256;
/// Maximum duration of a wait for a stripe in which entries have expired.
const EXPIRE_WAIT: Duration = Duration::from_millis(1);
/// Number of places that one pass of a scan examines, before other tasks have their turn.
pub(super) const SCAN_PLACES: u32 = 1024;

impl Cache {
    /// Returns the result of `read` for the value of a key, and counts as a use of the key. The stripe stays locked
    /// during `read`.
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(Option<Found<'_>>) -> R) -> Result<R> {
        let key = self.key(key);
        Ok(read(self.free_stripe(key)?.get(key, || self.now_ms())))
    }

    /// Returns the result of `read` for the value of a key, without counting as a use.
    pub fn peek<R>(&self, key: &[u8], read: impl FnOnce(Option<Found<'_>>) -> R) -> Result<R> {
        let key = self.key(key);
        Ok(read(self.free_stripe(key)?.peek(key, || self.now_ms())))
    }

    pub fn put(&self, key: &[u8], value: &[u8], ttl: Ttl, condition: Condition) -> Result<Stored> {
        let expires = self.expires(ttl)?;
        self.change(key, value.len(), |stripe, key| {
            let stored = stripe.put(key, value, expires, condition, || self.now_ms())?;
            if let Stored::Done { previous, .. } = stored {
                self.changes.note(stripe, key);
                let expires = matches!(expires, Expires::At(_));
                self.note(stripe, key, What::Put { is_new: previous.is_none(), expires });
            }
            Ok(stored)
        })
    }

    pub fn delete(&self, key: &[u8], condition: Condition) -> Result<Stored> {
        self.admit()?;
        let key = self.key(key);
        let mut stripe = self.free_stripe(key)?;
        let stored = stripe.delete(key, condition, || self.now_ms());
        if let Stored::Done { version, previous: Some(_) } = stored {
            self.changes.note_deleted(&mut stripe, key, version);
            self.note(&mut stripe, key, What::Deleted);
        }
        self.follow(&mut stripe);
        Ok(stored)
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
            self.note(stripe, key, What::Put { is_new, expires: false });
            Ok(added)
        })
    }

    /// Changes the expiry time of an entry. Returns `true` if the entry exists.
    pub fn touch(&self, key: &[u8], ttl: Ttl) -> Result<bool> {
        let expires_ms = match self.expires(ttl)? {
            Expires::At(at_ms) => Some(at_ms),
            Expires::Never => None,
            Expires::Kept => return self.peek(key, |found| found.is_some()),
        };
        self.admit()?;
        let key = self.key(key);
        let mut stripe = self.free_stripe(key)?;
        let had_expiry =
            self.is_noted() && stripe.peek(key, || self.now_ms()).is_some_and(|found| found.expires_ms.is_some());
        let exists = stripe.set_expiry(key, expires_ms, || self.now_ms());
        self.changes.follow(&mut stripe);
        match expires_ms {
            Some(_) if exists => self.note(&mut stripe, key, What::Expires),
            None if had_expiry => self.note(&mut stripe, key, What::Persists),
            _ => {}
        }
        self.follow(&mut stripe);
        Ok(exists)
    }

    /// Calls `each` for entries whose keys begin with `prefix`, from a cursor on, until it returns `false`. An entry
    /// that exists during the whole scan is found exactly once. Returns the cursor to continue from, or `None` at the
    /// end.
    pub fn scan(
        &self,
        prefix: &[u8],
        from: ScanCursor,
        mut each: impl FnMut(Found<'_>) -> bool,
    ) -> Result<Option<ScanCursor>> {
        let at = from.0 >> 32;
        let place = from.0 as u32;
        if at >= self.stripes.len() as u64 {
            return Ok(None);
        }
        let next = self
            .free_stripe_at(at as usize)?
            .scan(Cursor(place), SCAN_PLACES, self.now_ms(), |found| !found.key.starts_with(prefix) || each(found));
        Ok(match next {
            Some(Cursor(place)) => Some(ScanCursor(at << 32 | u64::from(place))),
            None => (at + 1 < self.stripes.len() as u64).then_some(ScanCursor((at + 1) << 32)),
        })
    }

    /// Removes all entries. Returns their number, and the commit of their removal.
    pub fn flush(&self) -> Result<(u64, Commit)> {
        self.admit()?;
        // Under the locks of all stripes, so that watchers also see later puts after the flush.
        let mut locked = self.lock_all_or_busy()?;
        let entries = locked.len();
        locked.flush();
        Ok((entries, locked.finish().commit))
    }

    /// Returns the number of entries that expire, and their mean remaining time in ms.
    pub fn expiring(&self) -> (u64, u64) {
        let of_stripes = self.free_stripes().map(|stripe| stripe.expiring());
        let (count, sum_ms) = of_stripes.fold((0, 0), |(count, sum), (more, ms)| (count + more, sum + ms));
        let mean_ms = sum_ms.checked_div(u128::from(count)).unwrap_or_default() as u64;
        (count, if count == 0 { 0 } else { mean_ms.saturating_sub(self.now_ms()) })
    }

    pub fn status(&self) -> CacheStatus {
        let stats =
            self.free_stripes().map(|stripe| stripe.stats()).fold(StripeStats::default(), |all, one| StripeStats {
                entries: all.entries + one.entries,
                bytes: all.bytes + one.bytes,
                hits: all.hits + one.hits,
                misses: all.misses + one.misses,
                expired: all.expired + one.expired,
                evicted: all.evicted + one.evicted,
            });
        CacheStatus { name: self.name.clone(), settings: self.settings, bytes_max: self.budget.max(), stats }
    }

    /// Makes one change in the stripe of a key. If the stripe has no room, other stripes free some and the change is
    /// retried once.
    pub(super) fn change<R>(
        &self,
        key: &[u8],
        value_bytes: usize,
        change: impl Fn(&mut Kept, Key<'_>) -> Result<R>,
    ) -> Result<R> {
        self.admit()?;
        let key = self.key(key);
        let mut stripe = self.free_stripe(key)?;
        let changed = match change(&mut stripe, key) {
            Err(error) if error.kind == ErrorKind::Busy => {
                self.follow(&mut stripe);
                drop(stripe);
                self.shed_for(key, value_bytes);
                stripe = self.free_stripe(key)?;
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

    /// Takes a note of a change of a key, which [`Cache::follow`] passes on.
    fn note(&self, stripe: &mut Kept, key: Key<'_>, what: What) {
        if self.changes.notes.are_wanted() {
            stripe.notes.push(Note { key: key.bytes.into(), what, cause: Cause::default() });
        }
    }

    /// Makes other stripes free the memory that this entry may need.
    pub(super) fn shed_for(&self, key: Key<'_>, value_bytes: usize) {
        let mut missing = (key.bytes.len() + value_bytes) as u64 + 256;
        let first = key.hash as usize % self.stripes.len();
        for at in 1..self.stripes.len() {
            // A stripe that a long step holds is passed over.
            let Some(mut stripe) = self.spare_stripe((first + at) % self.stripes.len()) else {
                continue;
            };
            missing = missing.saturating_sub(stripe.shed(missing));
            self.follow(&mut stripe);
            if missing == 0 {
                return;
            }
        }
    }

    /// Removes expired entries. Other tasks of this thread have their turns in between.
    pub(super) async fn expire(&self, now_ms: u64) {
        for stripe in &self.stripes {
            while self.expire_some(&stripe.0, now_ms) {
                tokio::task::yield_now().await;
            }
        }
        self.forget_unwatched();
    }

    /// Removes up to [`EXPIRE_MAX`] expired entries of a stripe. Returns `true` if there may be more.
    pub(super) fn expire_some(&self, stripe: &Mutex<Kept>, now_ms: u64) -> bool {
        // What a long step holds expires later.
        let Some(mut stripe) = stripe.try_lock_for(EXPIRE_WAIT) else {
            return false;
        };
        self.changes.begin(&mut stripe);
        let is_more = stripe.expire(now_ms, EXPIRE_MAX);
        self.follow(&mut stripe);
        is_more
    }
}
