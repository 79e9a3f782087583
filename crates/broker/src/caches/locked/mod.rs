//! Stripes of a cache that are locked together: all changes made through them are one step for everyone else.

mod join;
mod noted;
mod streams;
mod swap;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use engine::cache::effects::Effect;
use engine::cache::operations::{OperationAnswer, OperationId};
use engine::cache::structures::{Edit, Kind, Part};
use engine::cache::{
    Added, Condition, Cursor, Expires, Found, Key, Owned, ScanCursor, Stored, Stripe, Value, check_size,
};
use engine::{ErrorKind, Result};
use smallvec::SmallVec;

use super::cache::{Cache, Durable, Finished, Locked};
use super::calls::SCAN_PLACES;
use super::log::Kept;
use super::notes::What;
use crate::clock::StepTime;
use crate::commit::Commit;

pub use join::Awaited;
pub use streams::{Keyed, StreamMark};

/// Divisor of the budget: at most this part of it is freed for one step.
const ROOM_PART: u64 = 8;
/// Maximum number of bytes that an entry takes in addition to its key and value.
const KEY_ROOM_BYTES: u64 = 128;

/// A value that was copied out of a cache as a whole.
#[derive(Clone, Debug)]
pub struct Taken {
    pub value: Owned,
    pub expires_ms: Option<u64>,
}

impl Cache {
    /// Locks the stripes of these keys.
    pub fn lock<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 8]> = keys.into_iter().map(|key| self.stripe_of(self.key(key))).collect();
        if numbers.len() > 1 {
            numbers.sort_unstable();
            numbers.dedup();
        }
        self.lock_stripes(numbers.iter().copied())
    }

    /// Locks the stripe of a key.
    pub fn lock_one(&self, key: &[u8]) -> Locked<'_> {
        let number = self.stripe_of(self.key(key));
        let mut stripes = SmallVec::new();
        stripes.push((number, self.stripes[number].0.lock()));
        Locked::new(self, stripes)
    }

    pub fn lock_all(&self) -> Locked<'_> {
        self.lock_stripes(0..self.stripes.len())
    }

    /// Evicts entries until there is room for `bytes` more, if the policy allows: before a step that is not retried.
    /// Frees at most an eighth of the budget.
    pub fn make_room(&self, bytes: u64) {
        let missing = bytes.min(self.budget.max() / ROOM_PART).saturating_sub(self.budget.free());
        if missing > 0 {
            self.shed(missing);
        }
    }

    /// Frees `bytes` bytes of the cache, by evicting entries if the policy allows.
    pub fn shed(&self, bytes: u64) {
        let mut missing = bytes;
        // Begins with another stripe each time.
        let from = self.shed_from.fetch_add(1, Ordering::Relaxed);
        for at in 0..self.stripes.len() {
            // A stripe that a long step holds is passed over.
            let Some(mut stripe) = self.spare_stripe((from.wrapping_add(at)) % self.stripes.len()) else {
                continue;
            };
            missing = missing.saturating_sub(stripe.shed(missing));
            self.follow(&mut stripe);
            if missing == 0 {
                return;
            }
        }
    }
}

impl<'c> Locked<'c> {
    pub fn cache(&self) -> &'c Cache {
        self.cache
    }

    /// Returns the time of this step, in ms since 1970.
    pub fn now_ms(&self) -> u64 {
        self.time.now_ms()
    }

    /// Returns the highest version of a change in the locked stripes.
    pub(super) fn newest(&self) -> u64 {
        self.stripes.iter().map(|(_, stripe)| stripe.version()).max().unwrap_or_default()
    }

    /// Makes the locked stripes keep entries that expire or are evicted for watchers, or no longer.
    pub(super) fn record_removed(&mut self, is_recorded: bool) {
        self.stripes.iter_mut().for_each(|(_, stripe)| stripe.record_removed(is_recorded));
    }

    /// Returns `true` if anything was changed.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Returns the bytes of the changes so far that will be logged as one step; 0 without a log.
    pub fn unlogged_bytes(&self) -> usize {
        if self.cache.durable.is_none() {
            return 0;
        }
        let earlier = self.earlier.iter().flat_map(|swapped| &swapped.steps).map(|(_, effects)| effects.len());
        self.stripes.iter().map(|(_, stripe)| stripe.effects_bytes()).chain(earlier).sum()
    }

    /// Releases the locks. All changes become one step.
    pub fn finish(mut self) -> Finished {
        write(std::slice::from_mut(&mut self));
        self.finished()
    }

    /// Releases the locks of several caches. All changes of all caches become one step.
    pub fn finish_all(mut all: Vec<Self>) -> Vec<Finished> {
        write(&mut all);
        all.iter_mut().map(Self::finished).collect()
    }

    /// Returns the work that is left after the changes have been logged.
    fn finished(&mut self) -> Finished {
        self.tell_notes();
        let mut grown = self.grown.take();
        if self.announced.is_some() {
            self.withdraw();
            // Clients could not be served with what this step held.
            grown.extend(self.cache.take_unserved());
        }
        self.drop_streams();
        let later = std::mem::take(&mut self.later);
        let Some(Durable { log, .. }) = &self.cache.durable else {
            return Finished { grown, commit: later };
        };
        if self.is_read.get() {
            let unsettled = self.stripes.iter_mut().filter_map(|(_, stripe)| stripe.unsettled(log, None));
            self.read = self.read.max(unsettled.max());
        }
        let commit = self.read.map_or_else(Commit::done, |offset| log.commit_of(offset));
        Finished { grown, commit: commit.and(later) }
    }

    /// Notes that a key was read: its changes have to be durable before the answer.
    fn note_read(&mut self, key: &[u8]) {
        if let Some(Durable { log, .. }) = &self.cache.durable {
            let (stripe, key, _) = self.stripe(key);
            let unsettled = stripe.unsettled(log, Some(key.mark()));
            self.read = self.read.max(unsettled);
        }
    }

    /// Returns the entry of a key, and counts as a use of the key.
    pub fn get(&mut self, key: &[u8]) -> Option<Found<'_>> {
        self.note_read(key);
        self.note_missed(key);
        let (stripe, key, time) = self.stripe(key);
        stripe.get(key, || time.now_ms())
    }

    /// Returns the entry of a key, without counting as a use.
    pub fn peek(&mut self, key: &[u8]) -> Option<Found<'_>> {
        self.note_read(key);
        self.note_missed(key);
        let (stripe, key, time) = self.stripe(key);
        stripe.peek(key, || time.now_ms())
    }

    /// Returns a number that changes whenever a value of the key is removed.
    pub fn gone(&mut self, key: &[u8]) -> u32 {
        let (stripe, key, _) = self.stripe(key);
        stripe.gone(key)
    }

    pub fn put(&mut self, key: &[u8], value: &[u8], expires: Expires, condition: Condition) -> Result<Stored> {
        let stored =
            self.change_stripe(key, |stripe, key, now_ms| stripe.put(key, value, expires, condition, now_ms))?;
        if let Stored::Done { previous, .. } = stored {
            let expires = matches!(expires, Expires::At(_));
            self.note(key, What::Put { is_new: previous.is_none(), expires });
        }
        Ok(stored)
    }

    /// Overwrites bytes of a value from position `at` on, and keeps its expiry time. A value that ends before `at` is
    /// extended with zeros; that of a missing key is empty.
    pub fn overwrite(&mut self, key: &[u8], at: usize, bytes: &[u8]) -> Result<()> {
        let stored = self.change_stripe(key, |stripe, key, now_ms| stripe.overwrite(key, at, bytes, now_ms))?;
        if let Stored::Done { previous, .. } = stored {
            self.note(key, What::Put { is_new: previous.is_none(), expires: false });
        }
        Ok(())
    }

    /// Deletes an entry. Returns `true` if it existed.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        matches!(self.delete_if(key, Condition::IfPresent), Stored::Done { .. })
    }

    pub fn delete_if(&mut self, key: &[u8], condition: Condition) -> Stored {
        self.note_read(key);
        let cache = self.cache;
        let (stripe, key, time) = self.stripe(key);
        let stored = stripe.delete(key, condition, || time.now_ms());
        match stored {
            Stored::Done { version, previous: Some(_) } => {
                cache.changes.note_deleted(stripe, key, version);
                self.is_changed = true;
            }
            _ => cache.changes.follow(stripe),
        }
        if let Stored::Done { previous: Some(_), .. } = stored {
            self.note(key.bytes, What::Deleted);
        }
        stored
    }

    /// Adds to a counter. Returns its new value.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64> {
        self.add_for(key, delta, Expires::Kept).map(|added| added.value)
    }

    /// Adds to a counter. If the counter is new, also sets its expiry time.
    pub fn add_for(&mut self, key: &[u8], delta: i64, expires: Expires) -> Result<Added> {
        let is_new = self.is_noted_new(key);
        let added = self.change_stripe(key, |stripe, key, now_ms| {
            let is_new = matches!(expires, Expires::At(_)) && stripe.peek(key, now_ms).is_none();
            let mut added = stripe.add(key, delta, now_ms)?;
            // The expiry time belongs to the counter, not to a single step.
            if let (true, Expires::At(at_ms)) = (is_new, expires) {
                stripe.set_expiry(key, Some(at_ms), now_ms);
                added.expires_ms = Some(at_ms);
            }
            Ok(added)
        })?;
        self.note(key, What::Put { is_new, expires: false });
        Ok(added)
    }

    /// Records the answer to an operation in the step, for the case that the operation is sent again.
    pub(super) fn answer(&mut self, operation: OperationId, answer: OperationAnswer) {
        self.answered = Some((operation, answer));
    }

    /// Changes the expiry time of an entry. Returns `true` if the entry exists.
    pub fn set_expiry(&mut self, key: &[u8], expires_ms: Option<u64>) -> bool {
        self.note_read(key);
        let had_expiry = self.notes.is_some() && self.look(key).is_some_and(|found| found.expires_ms.is_some());
        let cache = self.cache;
        let (stripe, key, time) = self.stripe(key);
        let exists = stripe.set_expiry(key, expires_ms, || time.now_ms());
        cache.changes.follow(stripe);
        self.is_changed |= exists;
        self.note_stream_expiry(key.bytes, expires_ms);
        match expires_ms {
            Some(_) if exists => self.note(key.bytes, What::Expires),
            None if had_expiry => self.note(key.bytes, What::Persists),
            _ => {}
        }
        exists
    }

    /// Changes a structure. A missing one is created, and an empty one is removed. `change` returns `true` if it
    /// changed anything. The structure may grow by `room` bytes.
    pub fn change<T: Part, R>(
        &mut self,
        key: &[u8],
        room: u64,
        change: impl FnOnce(&mut Edit<'_, T>) -> (bool, R),
    ) -> Result<R> {
        self.note_read(key);
        let is_new = self.is_noted_new(key);
        let cache = self.cache;
        let (stripe, place, time) = self.stripe(key);
        let mut is_changed = false;
        let changed = stripe.change(
            place,
            room,
            || time.now_ms(),
            |part: &mut Edit<'_, T>| {
                let (is_new, result) = change(part);
                is_changed = is_new;
                (is_new, result)
            },
        );
        is_changed &= changed.is_ok();
        if is_changed {
            match stripe.peek(place, || time.now_ms()) {
                Some(_) => cache.changes.note(stripe, place),
                None => {
                    let version = stripe.version();
                    cache.changes.note_deleted(stripe, place, version);
                }
            }
        } else {
            cache.changes.follow(stripe);
        }
        self.is_changed |= is_changed;
        if is_changed && matches!(T::KIND, Kind::List | Kind::Sorted) {
            self.note_grown(key, T::KIND);
        }
        if self.notes.is_some() && changed.is_ok() {
            self.note_change(key, is_new, is_changed);
        }
        self.named(changed)
    }

    /// Replaces the value of a key, whatever it was. A structure without parts removes the entry.
    pub fn put_owned(&mut self, key: &[u8], value: Owned, expires_ms: Option<u64>) -> Result<()> {
        let is_new = self.is_noted_new(key);
        let cache = self.cache;
        let (stripe, place, time) = self.stripe(key);
        let put = stripe.put_owned(place, value, expires_ms, || time.now_ms());
        let kind = stripe.peek(place, || time.now_ms()).map(|found| found.value.kind());
        match kind {
            Some(_) => cache.changes.note(stripe, place),
            None => {
                let version = stripe.version();
                cache.changes.note_deleted(stripe, place, version);
            }
        }
        self.is_changed |= put.is_ok();
        if let Some(kind) = kind {
            self.note_grown(key, kind);
        }
        if self.notes.is_some() {
            match (self.look(key).is_some(), &put) {
                (true, Ok(())) => self.note(key, What::Put { is_new, expires: expires_ms.is_some() }),
                // Without room, the value that was to be replaced is removed.
                (false, _) if !is_new => self.note(key, What::Deleted),
                _ => {}
            }
        }
        self.named(put)
    }

    /// Returns the bytes that an entry takes.
    pub fn bytes_of(&mut self, key: &[u8]) -> Option<u64> {
        self.note_read(key);
        let (stripe, key, time) = self.stripe(key);
        stripe.bytes_of(key, || time.now_ms())
    }

    /// Returns a copy of the value of a key.
    pub fn copy(&mut self, key: &[u8]) -> Option<Taken> {
        let found = self.peek(key)?;
        let value = match found.value {
            Value::Bytes(bytes) => Owned::Bytes(bytes.into()),
            Value::Structure(structure) => Owned::Structure(Box::new(structure.clone())),
        };
        Some(Taken { value, expires_ms: found.expires_ms })
    }

    /// Reserves memory for a key to grow by `bytes`, so that the following change does not stop halfway.
    pub fn reserve(&mut self, key: &[u8], bytes: u64) -> Result<()> {
        let (stripe, place, time) = self.stripe(key);
        stripe.check_growth(place, bytes, || time.now_ms())?;
        self.reserve_beside(key, bytes)
    }

    /// Reserves memory for values of several keys, each with its number of bytes. Fails before any of them is put.
    pub fn reserve_all<'k>(&mut self, keys: impl IntoIterator<Item = (&'k [u8], usize)>) -> Result<()> {
        let mut by_stripe: BTreeMap<usize, (&[u8], u64)> = BTreeMap::new();
        for (key, value_bytes) in keys {
            check_size(key, value_bytes)?;
            let stripe = self.cache.stripe_of(self.cache.key(key));
            by_stripe.entry(stripe).or_insert((key, 0)).1 += (key.len() + value_bytes) as u64 + KEY_ROOM_BYTES;
        }
        by_stripe.into_values().try_for_each(|(key, bytes)| self.reserve_beside(key, bytes))
    }

    /// Reserves memory in the stripe of a key.
    fn reserve_beside(&mut self, key: &[u8], bytes: u64) -> Result<()> {
        let (stripe, ..) = self.stripe(key);
        let reserved = stripe.reserve(bytes);
        self.cache.changes.follow(self.stripe(key).0);
        self.named(reserved)
    }

    /// Calls `each` for entries from a cursor on, until it returns `false`. Returns the cursor to continue from, or
    /// `None` at the end. All stripes have to be locked.
    pub fn scan(&self, from: ScanCursor, mut each: impl FnMut(Found<'_>) -> bool) -> Option<ScanCursor> {
        self.is_read.set(true);
        let at = from.0 >> 32;
        let place = from.0 as u32;
        let (_, stripe) = self.stripes.get(at as usize)?;
        match stripe.scan(Cursor(place), SCAN_PLACES, self.now_ms(), &mut each) {
            Some(Cursor(place)) => Some(ScanCursor(at << 32 | u64::from(place))),
            None => (at + 1 < self.stripes.len() as u64).then_some(ScanCursor((at + 1) << 32)),
        }
    }

    /// Returns an existing key: a different one for each number, with about equal probability if there are many keys.
    /// All stripes have to be locked.
    pub fn any_key(&self, number: u64) -> Option<&[u8]> {
        self.is_read.set(true);
        let entries = |stripe: &Stripe| stripe.stats().entries;
        let all: u64 = self.stripes.iter().map(|(_, stripe)| entries(stripe)).sum();
        let mut left = number.checked_rem(all)?;
        let first = self.stripes.iter().position(|(_, stripe)| {
            let is_here = left < entries(stripe);
            left = left.saturating_sub(if is_here { 0 } else { entries(stripe) });
            is_here
        })?;
        let (before, from) = self.stripes.split_at(first);
        from.iter().chain(before).find_map(|(_, stripe)| stripe.any_key(number >> 16, self.now_ms()))
    }

    /// Returns the number of entries, of which some may have expired. All stripes have to be locked.
    pub fn len(&self) -> u64 {
        self.is_read.set(true);
        self.stripes.iter().map(|(_, stripe)| stripe.stats().entries).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all entries. All stripes have to be locked.
    pub fn flush(&mut self) {
        for (_, stripe) in &mut self.stripes {
            self.cache.changes.follow(stripe);
            stripe.flush();
            // The effects of earlier changes are obsolete with the entries.
            drop(stripe.take_effects());
        }
        self.cache.changes.note_flush();
        self.note(b"", What::Flushed);
        self.is_changed = true;
        self.is_flushed = true;
    }

    fn change_stripe<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Stripe, Key<'_>, &dyn Fn() -> u64) -> Result<R>,
    ) -> Result<R> {
        self.note_read(key);
        let cache = self.cache;
        let (stripe, key, time) = self.stripe(key);
        let changed = change(stripe, key, &|| time.now_ms());
        match &changed {
            Ok(_) => cache.changes.note(stripe, key),
            Err(_) => cache.changes.follow(stripe),
        }
        self.is_changed |= changed.is_ok();
        self.named(changed)
    }

    /// Notes that a key has more of this kind, if a client waits for that.
    fn note_grown(&mut self, key: &[u8], kind: Kind) {
        if self.cache.waiters.awaits(key, kind) {
            self.grown.add(key);
        }
    }

    fn named<R>(&self, result: Result<R>) -> Result<R> {
        result.map_err(|error| match error.kind {
            ErrorKind::Busy => error.map_message(|why| format!("cache '{}': {why}", self.cache.name)),
            _ => error,
        })
    }

    fn stripe<'s, 'k>(&'s mut self, key: &'k [u8]) -> (&'s mut Kept, Key<'k>, &'s StepTime) {
        let key = self.cache.key(key);
        let number = self.cache.stripe_of(key);
        let at = match &self.stripes[..] {
            [_] => Ok(0),
            // All stripes are locked.
            stripes if stripes.len() == self.cache.stripes.len() => Ok(number),
            stripes => stripes.binary_search_by_key(&number, |(number, _)| *number),
        };
        let at = at.expect("invariant: the stripe of a key is locked that is asked for");
        debug_assert_eq!(self.stripes[at].0, number);
        (&mut self.stripes[at].1, key, &self.time)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.withdraw();
        self.tell_notes();
        write(std::slice::from_mut(self));
        self.drop_streams();
        // No caller waits for it.
        self.cache.finish_later(std::mem::take(&mut self.later));
    }
}

/// Logs the changes that are not logged yet, as one step.
#[inline]
fn write(all: &mut [Locked<'_>]) {
    if all.iter().any(|locked| locked.cache.durable.is_some()) {
        write_step(all);
    }
}

fn write_step(all: &mut [Locked<'_>]) {
    let mut steps: SmallVec<[(u64, Vec<u8>); 1]> = SmallVec::new();
    let mut marks: SmallVec<[(usize, usize, Vec<u32>); 2]> = SmallVec::new();
    let mut log = None;
    swap::write_earlier(all, &mut steps, &mut log);
    for (of, locked) in all.iter_mut().enumerate() {
        let Some(durable) = &locked.cache.durable else {
            continue;
        };
        let mut bytes = Vec::new();
        if locked.is_flushed {
            Effect::Flushed.encode(&mut bytes);
        }
        for (at, (_, stripe)) in locked.stripes.iter_mut().enumerate() {
            if let Some(effects) = stripe.take_effects() {
                if bytes.is_empty() {
                    bytes = effects.bytes
                } else {
                    bytes.extend_from_slice(&effects.bytes)
                }
                marks.push((of, at, effects.marks));
            }
        }
        if !bytes.is_empty() {
            if let Some((operation, answer)) = locked.answered.take() {
                Effect::Answered { operation, answer }.encode(&mut bytes);
            }
            steps.push((durable.number, bytes));
            log = Some(durable.log.clone());
        }
    }
    let Some(log) = log else {
        return;
    };
    let effects: SmallVec<[(u64, &[u8]); 1]> = steps.iter().map(|(cache, effects)| (*cache, &effects[..])).collect();
    let offset = log.append(&effects);
    for (of, at, marks) in marks {
        all[of].stripes[at].1.note(&log, offset, &marks);
        all[of].read = Some(offset);
    }
    for locked in all.iter_mut().filter(|locked| locked.is_flushed || locked.is_swapped) {
        locked.is_flushed = false;
        locked.is_swapped = false;
        locked.stripes.iter_mut().for_each(|(_, stripe)| stripe.note_all(offset));
        locked.read = Some(offset);
    }
}
