//! Further stripes for a step that has already begun, as a script may name a key only while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use engine::cache::Key;
use engine::{Error, Result};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::super::cache::{Cache, Locked, LockedStripes};
use super::super::log::Kept;

/// Maximum duration of a wait for stripes that are locked out of order. It ends a deadlock with another such step.
const JOIN_MAX: Duration = Duration::from_millis(5);

/// Maximum duration of a wait for a stripe that a long step holds.
const HELD_MAX: Duration = Duration::from_millis(100);
/// Maximum duration of a wait of a caller that is refused otherwise.
const FREE_MAX: Duration = Duration::from_millis(2);
/// Maximum number of times that locking several stripes begins from the first one again.
const RESTARTS_MAX: usize = 8;
/// Time after which a task tries again to lock what a long step holds.
const LATER: Duration = Duration::from_millis(10);
/// Time after which a waiter checks again whether a long step holds the stripe.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// Wait for keys that a long step holds. It ends when it is dropped.
#[must_use]
pub struct Awaited {
    cache: Arc<Cache>,
    stripes: u64,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        for count in self.cache.awaited_in(self.stripes) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Cache {
    /// Returns `true` if a long step holds the stripe of this key.
    pub fn is_held(&self, key: &[u8]) -> bool {
        let held = self.held.load(Ordering::SeqCst);
        held != 0 && held & bit(self.stripe_of(self.key(key))) != 0
    }

    /// Returns `true` if a long step holds any stripe.
    pub fn is_any_held(&self) -> bool {
        self.held.load(Ordering::Acquire) != 0
    }

    /// Announces that a caller waits, without its thread, for these keys, or for all keys, which a long step holds.
    pub fn await_keys<'k>(self: &Arc<Self>, keys: Option<impl IntoIterator<Item = &'k [u8]>>) -> Awaited {
        let stripes = match keys {
            Some(keys) => keys.into_iter().fold(0, |bits, key| bits | bit(self.stripe_of(self.key(key)))),
            None => u64::MAX,
        };
        for count in self.awaited_in(stripes) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Awaited { cache: self.clone(), stripes }
    }

    /// Returns `true` if callers have announced that they wait for one of these stripes, given as bits. The next long
    /// step lets them pass: otherwise, steps that wait for the locks with their threads are always first.
    pub fn is_awaited(&self, stripes: u64) -> bool {
        self.awaited_in(stripes).any(|count| count.load(Ordering::SeqCst) != 0)
    }

    fn awaited_in(&self, stripes: u64) -> impl Iterator<Item = &AtomicUsize> {
        self.awaited.iter().enumerate().filter(move |(number, _)| stripes & bit(*number) != 0).map(|(_, count)| count)
    }

    /// Refuses to use all stripes while a long step holds one: the thread of the caller must not wait for it.
    pub(in crate::caches) fn check_free(&self) -> Result<()> {
        let held = self.held.load(Ordering::Acquire);
        let until = Instant::now() + FREE_MAX;
        // Most long steps are short.
        let is_free = |number: usize| self.stripes[number].0.try_lock_until(until).is_some();
        if held == 0 || (0..self.stripes.len()).filter(|number| held & bit(*number) != 0).all(is_free) {
            return Ok(());
        }
        Err(self.busy())
    }

    /// Returns the error for a caller that would have to wait for a long step.
    fn busy(&self) -> Error {
        Error::busy(format!("a script of a Redis client holds keys of the cache '{}': try again", self.name))
    }

    /// Locks the stripe of a key. Fails if a long step holds it and does not release it soon.
    pub(in crate::caches) fn free_stripe(&self, key: Key<'_>) -> Result<MutexGuard<'_, Kept>> {
        self.free_stripe_at(self.stripe_of(key))
    }

    /// Locks the stripe with this number as [`Cache::free_stripe`] does.
    pub(in crate::caches) fn free_stripe_at(&self, number: usize) -> Result<MutexGuard<'_, Kept>> {
        loop {
            if let Some(mut stripe) = self.stripes[number].0.try_lock_for(FREE_MAX) {
                self.changes.begin(&mut stripe);
                return Ok(stripe);
            }
            if self.held.load(Ordering::Acquire) & bit(number) != 0 {
                return Err(self.busy());
            }
        }
    }

    /// Locks the stripe of a key as [`Cache::free_stripe`] does, for a step.
    pub(in crate::caches) fn lock_one_or_busy(&self, key: &[u8]) -> Result<Locked<'_>> {
        let key = self.key(key);
        let mut stripes = SmallVec::new();
        stripes.push((self.stripe_of(key), self.free_stripe(key)?));
        Ok(Locked::new(self, stripes))
    }

    /// Locks all stripes. Fails if a long step holds one of them and does not release it soon.
    pub(in crate::caches) fn lock_all_or_busy(&self) -> Result<Locked<'_>> {
        self.check_free()?;
        self.lock_if_free(None::<std::iter::Empty<&[u8]>>).ok_or_else(|| self.busy())
    }

    /// Locks a stripe for an optional change. Returns `None` if a long step holds it, or another one for more than a
    /// moment.
    pub(in crate::caches) fn spare_stripe(&self, number: usize) -> Option<MutexGuard<'_, Kept>> {
        let stripe = &self.stripes[number].0;
        let mut locked = if self.held.load(Ordering::Acquire) & bit(number) != 0 {
            stripe.try_lock()?
        } else {
            stripe.try_lock_for(CHECK_EVERY)?
        };
        self.changes.begin(&mut locked);
        Some(locked)
    }

    /// Locks a stripe. While a long step holds it, this task waits and its thread does not.
    pub(in crate::caches) async fn stripe_later(&self, number: usize) -> MutexGuard<'_, Kept> {
        loop {
            if let Some(stripe) = self.stripes[number].0.try_lock_for(CHECK_EVERY) {
                return stripe;
            }
            tokio::time::sleep(LATER).await;
        }
    }

    /// Locks all stripes. While a long step holds one, this task waits and its thread does not.
    pub(in crate::caches) async fn lock_all_later(&self) -> Locked<'_> {
        loop {
            if let Some(locked) = self.lock_if_free(None::<std::iter::Empty<&[u8]>>) {
                return locked;
            }
            tokio::time::sleep(LATER).await;
        }
    }

    /// Locks one stripe after the other, without those that a long step holds: their numbers are missing from
    /// statistics until it ends.
    pub(in crate::caches) fn free_stripes(&self) -> impl Iterator<Item = MutexGuard<'_, Kept>> {
        self.stripes.iter().enumerate().filter_map(|(number, stripe)| {
            loop {
                if let Some(stripe) = stripe.0.try_lock_for(CHECK_EVERY) {
                    return Some(stripe);
                }
                if self.held.load(Ordering::Acquire) & bit(number) != 0 {
                    return None;
                }
            }
        })
    }

    /// Locks stripes in the order of their numbers, as every caller does that locks more than one. While a long step
    /// holds one, this thread waits for that alone, and holds none of the others: nobody would know for how long.
    pub(super) fn lock_stripes(&self, numbers: impl Iterator<Item = usize> + Clone) -> Locked<'_> {
        for _ in 0..RESTARTS_MAX {
            match self.lock_in_order(numbers.clone()) {
                Ok(stripes) => return Locked::new(self, stripes),
                Err(held) => drop(self.stripes[held].0.lock()),
            }
        }
        // Other long steps must not keep it from ever having all. So it becomes one of them: those that it has are held
        // while it waits for the next one.
        let mut locked = Locked::new(self, LockedStripes::new());
        for number in numbers {
            locked.announce();
            let mut stripe = self.stripes[number].0.lock();
            self.changes.begin(&mut stripe);
            locked.stripes.push((number, stripe));
        }
        locked
    }

    /// Locks stripes in this order. Returns the number of one that a long step holds, with nothing locked.
    fn lock_in_order(&self, numbers: impl Iterator<Item = usize>) -> std::result::Result<LockedStripes<'_>, usize> {
        let mut stripes = LockedStripes::new();
        for number in numbers {
            let stripe = &self.stripes[number].0;
            let locked = loop {
                if let Some(locked) = stripe.try_lock() {
                    break locked;
                }
                // With nothing locked, this thread may wait for as long as it takes.
                if stripes.is_empty() {
                    break stripe.lock();
                }
                if let Some(locked) = stripe.try_lock_for(CHECK_EVERY) {
                    break locked;
                }
                if self.held.load(Ordering::Acquire) & bit(number) != 0 {
                    return Err(number);
                }
            };
            stripes.push((number, locked));
        }
        Ok(stripes)
    }

    /// Locks the stripes of these keys as [`Cache::lock`] does, or all stripes without keys. Returns `None`, with
    /// nothing locked, if a long step does not release one soon: this thread must not wait for it.
    pub fn lock_unless_held<'k>(&self, keys: Option<impl IntoIterator<Item = &'k [u8]>>) -> Option<Locked<'_>> {
        self.lock_within(HELD_MAX, keys)
    }

    /// Locks stripes as [`Cache::lock_unless_held`] does, and does not wait for a long step at all.
    pub fn lock_if_free<'k>(&self, keys: Option<impl IntoIterator<Item = &'k [u8]>>) -> Option<Locked<'_>> {
        self.lock_within(Duration::ZERO, keys)
    }

    /// Locks stripes, and waits this long for each that a long step holds.
    fn lock_within<'k>(
        &self,
        held_max: Duration,
        keys: Option<impl IntoIterator<Item = &'k [u8]>>,
    ) -> Option<Locked<'_>> {
        let mut numbers: SmallVec<[usize; 8]> = match keys {
            Some(keys) => keys.into_iter().map(|key| self.stripe_of(self.key(key))).collect(),
            None => (0..self.stripes.len()).collect(),
        };
        if numbers.len() > 1 {
            numbers.sort_unstable();
            numbers.dedup();
        }
        let mut stripes = SmallVec::new();
        for number in numbers {
            let stripe = &self.stripes[number].0;
            let locked = match stripe.try_lock() {
                Some(locked) => locked,
                None => {
                    // In one piece: a wait that begins again loses its place in the queue.
                    let mut until = Instant::now() + held_max.max(CHECK_EVERY);
                    loop {
                        if let Some(locked) = stripe.try_lock_until(until) {
                            break locked;
                        }
                        if self.held.load(Ordering::Acquire) & bit(number) != 0 {
                            return None;
                        }
                        until += CHECK_EVERY;
                    }
                }
            };
            stripes.push((number, locked));
        }
        Some(Locked::new(self, stripes))
    }
}

/// Returns the bit of a stripe.
fn bit(number: usize) -> u64 {
    1 << number
}

impl Locked<'_> {
    /// Announces that this step may take any time, so that threads which serve other clients do not wait for its
    /// stripes.
    pub fn announce(&mut self) {
        let bits = self.bits();
        self.announced = Some(bits);
        self.cache.held.fetch_or(bits, Ordering::AcqRel);
    }

    /// Returns a bit for each stripe that is locked.
    pub fn bits(&self) -> u64 {
        self.stripes.iter().fold(0, |bits, (number, _)| bits | bit(*number))
    }

    /// Withdraws the announcement, before the stripes are released.
    pub(super) fn withdraw(&mut self) {
        if let Some(bits) = self.announced.take() {
            self.cache.held.fetch_and(!bits, Ordering::SeqCst);
        }
    }

    /// Returns `true` if the stripe of a key is locked.
    pub fn holds(&self, key: &[u8]) -> bool {
        self.place(self.cache.stripe_of(self.cache.key(key))).is_ok()
    }

    /// Returns `true` if all stripes are locked.
    pub fn holds_all(&self) -> bool {
        self.stripes.len() == self.cache.stripes.len()
    }

    /// Locks the stripe of another key, too. Returns `false` if other steps hold it for too long: then waiting might be
    /// a deadlock.
    pub fn join(&mut self, key: &[u8]) -> bool {
        self.join_stripe(self.cache.stripe_of(self.cache.key(key)), Instant::now() + JOIN_MAX)
    }

    /// Locks all other stripes, too. Returns `false` if other steps hold one for too long. Stripes that were locked
    /// until then remain locked.
    pub fn join_all(&mut self) -> bool {
        let until = Instant::now() + JOIN_MAX;
        (0..self.cache.stripes.len()).all(|number| self.join_stripe(number, until))
    }

    fn join_stripe(&mut self, number: usize, until: Instant) -> bool {
        let Err(at) = self.place(number) else {
            return true;
        };
        match self.cache.stripes[number].0.try_lock_until(until) {
            Some(mut stripe) => {
                self.cache.changes.begin(&mut stripe);
                self.stripes.insert(at, (number, stripe));
                // Notes may be wanted since this step began: others see the new stripe as unlocked until now.
                if self.notes.is_none() && self.cache.changes.notes.are_wanted() {
                    self.notes = Some(Vec::new());
                }
                if let Some(bits) = &mut self.announced {
                    *bits |= bit(number);
                    self.cache.held.fetch_or(bit(number), Ordering::AcqRel);
                }
                true
            }
            None => false,
        }
    }

    /// Returns the position of a locked stripe, or the one at which it would be.
    fn place(&self, number: usize) -> std::result::Result<usize, usize> {
        self.stripes.binary_search_by_key(&number, |(number, _)| *number)
    }
}
