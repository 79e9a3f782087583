//! Stripe of a cache: a table of entries, and all operations that change an entry.

mod overwrite;
mod replay;
mod streams;
mod swap;

use hashbrown::HashTable;

use super::budget::Share;
use super::effects::{Effect, Effects};
use super::entry::{
    Added, Condition, Cursor, Expires, Found, Key, Owned, Removed, Stored, StripeSettings, StripeStats, Value, Why,
    wrong_kind,
};
use super::evict::{Order, State};
use super::expiry::Expiry;
use super::gone::Gone;
use super::number::{parse_number, write_number};
use super::slab::{NONE, Slab};
use super::structures::{Edit, Kind, Part, Structure};
use super::uses::{Clock, Used};
use super::{Eviction, KEY_BYTES_MAX, STRUCTURE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::{Error, Result};
use crate::ids::TopicId;

/// Overhead of an entry in bytes, in addition to its key and value: its slot, its place in the table (which is at least
/// half full), and the overhead of the allocator.
const ENTRY_BYTES: u64 = size_of::<Slot>() as u64 + 10 + 8;
/// Additional overhead of an entry that expires, in bytes.
const TIMER_BYTES: u64 = 24;

/// Maximum number of slots that an empty stripe keeps.
const KEPT_SLOTS_MAX: u32 = 1024;

/// Slot of an entry. A free slot has no key.
#[derive(Default)]
pub(super) struct Slot {
    /// The key, followed by the value or, for a structure, by its number (u32) and its size in bytes (u64).
    block: Box<[u8]>,
    version: u64,
    /// Neighbours in the eviction queue of the entry.
    pub(super) older: u32,
    pub(super) newer: u32,
    pub(super) hash: u32,
    /// Number of the timer in the wheel, counted from 1. An entry with 0 never expires.
    timer: u32,
    used: Used,
    key_bytes: u16,
    kind: Kind,
    pub(super) state: State,
}

const _: () =
    assert!(size_of::<Slot>() <= 48, "the slots of a million entries take at most 48 MB in addition to their blocks");

impl Slot {
    fn key(&self) -> &[u8] {
        &self.block[..usize::from(self.key_bytes)]
    }

    fn value(&self) -> &[u8] {
        &self.block[usize::from(self.key_bytes)..]
    }

    fn value_mut(&mut self) -> &mut [u8] {
        &mut self.block[usize::from(self.key_bytes)..]
    }

    pub(super) fn bytes(&self) -> u64 {
        let structure = self.structure().map_or(0, |(_, bytes)| bytes);
        self.block.len() as u64 + structure + ENTRY_BYTES + if self.timer == 0 { 0 } else { TIMER_BYTES }
    }

    /// Returns the number of the structure and its size in bytes.
    fn structure(&self) -> Option<(u32, u64)> {
        if self.kind == Kind::Bytes {
            return None;
        }
        let (number, bytes) = self.value().split_at_checked(4)?;
        Some((u32::from_le_bytes(number.try_into().ok()?), u64::from_le_bytes(bytes.try_into().ok()?)))
    }
}

/// Entries by key. The owner of the stripe provides the lock.
pub struct Stripe {
    table: HashTable<u32>,
    slots: Slab<Slot>,
    structures: Slab<Option<Box<Structure>>>,
    expiry: Expiry,
    order: Order,
    share: Share,
    eviction: Eviction,
    /// Number of the last change.
    version: u64,
    /// Version of the entries that have a lower one in their slots: that of the last swap.
    floor: u64,
    gone: Gone,
    stats: StripeStats,
    /// Clock for the uses of entries.
    clock: Clock,
    /// Entries that expired or were evicted, if they are collected.
    removed: Option<Vec<Removed>>,
    /// Number of entries that are keys of streams.
    streams: u32,
    /// Streams whose keys were removed.
    lost: Vec<TopicId>,
    /// Effects of changes, if they are recorded.
    effects: Option<Box<Effects>>,
    /// `true` in a replay, whose changes had room before, and while a stream is inserted: no room is needed or made.
    is_replaying: bool,
}

impl Stripe {
    pub fn new(settings: StripeSettings) -> Self {
        Self {
            table: HashTable::new(),
            slots: Slab::default(),
            structures: Slab::default(),
            expiry: Expiry::default(),
            order: Order::default(),
            share: Share::new(settings.budget, settings.block),
            eviction: settings.eviction,
            version: settings.version,
            floor: 0,
            gone: Gone::default(),
            stats: StripeStats::default(),
            clock: Clock::new(settings.now_ms),
            removed: None,
            streams: 0,
            lost: Vec::new(),
            effects: None,
            is_replaying: false,
        }
    }

    /// Returns the entry of a key, and counts a hit or a miss. The clock is read only if the entry has an expiry time.
    pub fn get(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<Found<'_>> {
        let Some(at) = self.find(key, now_ms) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.touch(at);
        Some(self.found(at))
    }

    /// Returns the entry of a key without counting a hit or a miss, and without recording a use.
    pub fn peek(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<Found<'_>> {
        let at = self.find(key, now_ms)?;
        Some(self.found(at))
    }

    pub fn put(
        &mut self,
        key: Key<'_>,
        value: &[u8],
        expires: Expires,
        condition: Condition,
        now_ms: impl Fn() -> u64,
    ) -> Result<Stored> {
        check_size(key.bytes, value.len())?;
        let existing = self.find(key, &now_ms);
        let current = existing.map(|at| self.version_of(&self.slots[at]));
        if !condition.holds(current) {
            return Ok(Stored::Unmet { current });
        }
        let timer_bytes = if matches!(expires, Expires::At(_)) { TIMER_BYTES } else { 0 };
        let at = match existing {
            Some(at) => self.replace(key, at, value, timer_bytes, &now_ms)?,
            None => self.insert(key, Kind::Bytes, value, timer_bytes)?,
        };
        match expires {
            Expires::Never => self.set_timer(at, None, 0),
            Expires::At(at_ms) => self.set_timer(at, Some(at_ms), now_ms()),
            Expires::Kept => {}
        }
        let version = self.changed(at);
        self.record_put(at);
        Ok(Stored::Done { version, previous: current })
    }

    pub fn delete(&mut self, key: Key<'_>, condition: Condition, now_ms: impl FnOnce() -> u64) -> Stored {
        let existing = self.find(key, now_ms);
        let current = existing.map(|at| self.version_of(&self.slots[at]));
        if !condition.holds(current) {
            return Stored::Unmet { current };
        }
        if let Some(at) = existing {
            self.remove(at);
        }
        self.version += 1;
        if current.is_some() {
            self.record_effect(key.mark(), &Effect::Deleted { key: key.bytes, version: self.version });
        }
        Stored::Done { version: self.version, previous: current }
    }

    /// Adds to a value that is an integer in decimal digits. A missing key has the value 0. Fails if the value is not
    /// such an integer, or if the sum overflows.
    pub fn add(&mut self, key: Key<'_>, delta: i64, now_ms: impl Fn() -> u64) -> Result<Added> {
        check_size(key.bytes, 0)?;
        let existing = self.find(key, &now_ms);
        let before = match existing {
            Some(at) => parse_number(self.found(at).value.bytes()?)
                .ok_or_else(|| Error::invalid("value is not an integer or out of range"))?,
            None => 0,
        };
        let value = before.checked_add(delta).ok_or_else(|| Error::invalid("increment or decrement would overflow"))?;
        let mut digits = [0; 20];
        let text = write_number(value, &mut digits);
        let at = match existing {
            Some(at) => self.replace(key, at, text, 0, &now_ms)?,
            None => self.insert(key, Kind::Bytes, text, 0)?,
        };
        let version = self.changed(at);
        self.record_put(at);
        Ok(Added { value, version, expires_ms: self.found(at).expires_ms })
    }

    /// Changes a structure with `change`, which returns `true` if it changed anything, and a result. Creates a missing
    /// structure and removes an empty one. `room` is the number of bytes by which the structure may grow. Fails if the
    /// value is of another kind, if the structure would become too large, or if a cache without eviction is full.
    pub fn change<T: Part, R>(
        &mut self,
        key: Key<'_>,
        room: u64,
        now_ms: impl Fn() -> u64,
        change: impl FnOnce(&mut Edit<'_, T>) -> (bool, R),
    ) -> Result<R> {
        check_size(key.bytes, 0)?;
        let existing = self.find(key, &now_ms);
        let mut edits = self.effects.is_some().then(Vec::new);
        let kind = existing.map_or(T::KIND, |at| self.slots[at].kind);
        if kind != T::KIND {
            return Err(wrong_kind(kind, T::KIND));
        }
        if room > 0 && !self.has_room(room) && self.eviction == Eviction::None {
            return Err(full());
        }
        let Some(at) = existing else {
            let mut new = T::default();
            let (is_changed, result) = change(&mut Edit::new(&mut new, edits.as_mut()));
            if is_changed {
                self.insert_structure(key, new.into_structure())?;
                self.record_edits(key, T::KIND, true, edits);
            }
            return Ok(result);
        };
        let before = self.slots[at].bytes();
        let number = self.slots[at].structure().map_or(NONE, |(number, _)| number);
        check_structure(self.structures[number].as_ref().map_or(0, |it| it.bytes()), room)?;
        let structure = self.structures[number].as_deref_mut().and_then(T::of_mut);
        let structure = structure.expect("invariant: a slot has the kind of its structure");
        let (is_changed, result) = change(&mut Edit::new(structure, edits.as_mut()));
        if is_changed {
            let (bytes, is_empty) =
                self.structures[number].as_ref().map_or((0, true), |it| (it.bytes(), it.is_empty()));
            self.slots[at].value_mut()[4..].copy_from_slice(&bytes.to_le_bytes());
            self.resized(at, before);
            self.touch(at);
            self.changed(at);
            self.record_edits(key, T::KIND, false, edits);
            if is_empty {
                self.remove(at);
            }
            // The structure has grown already; other entries are evicted for it, if the policy allows.
            while self.eviction != Eviction::None && !self.has_room(1) && self.evict_one() {}
        }
        Ok(result)
    }

    /// Puts a whole value, which replaces any existing one. An empty structure removes the key.
    pub fn put_owned(
        &mut self,
        key: Key<'_>,
        value: Owned,
        expires_ms: Option<u64>,
        now_ms: impl Fn() -> u64,
    ) -> Result<()> {
        let structure = match value {
            Owned::Bytes(bytes) => {
                let expires = expires_ms.map_or(Expires::Never, Expires::At);
                return self.put(key, &bytes, expires, Condition::Always, now_ms).map(drop);
            }
            Owned::Structure(structure) => structure,
        };
        check_size(key.bytes, 0)?;
        check_structure(0, structure.bytes())?;
        if self.eviction == Eviction::None && !self.has_room(structure.bytes() + key.bytes.len() as u64) {
            return Err(full());
        }
        self.delete(key, Condition::Always, &now_ms);
        if !structure.is_empty() {
            let kind = structure.kind();
            let edits = self.effects.is_some().then(|| structure.dumped());
            let at = self.insert_structure(key, *structure)?;
            self.record_edits(key, kind, true, edits);
            if expires_ms.is_some() {
                self.set_timer(at, expires_ms, now_ms());
                self.record_effect(key.mark(), &Effect::Expires { key: key.bytes, expires_ms });
            }
        }
        Ok(())
    }

    /// Refuses a key whose value may not grow by `bytes`, regardless of the free room.
    pub fn check_growth(&mut self, key: Key<'_>, bytes: u64, now_ms: impl FnOnce() -> u64) -> Result<()> {
        check_size(key.bytes, 0)?;
        let structure = self.find(key, now_ms).and_then(|at| self.slots[at].structure());
        check_structure(structure.map_or(0, |(_, bytes)| bytes), bytes)
    }

    /// Makes room for `bytes` more and the overhead of an entry. Evicts other entries, if the policy allows.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.make_room(bytes + ENTRY_BYTES + TIMER_BYTES)
    }

    /// Returns the size of an entry in bytes, including its overhead.
    pub fn bytes_of(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<u64> {
        let at = self.find(key, now_ms)?;
        Some(self.slots[at].bytes())
    }

    /// Returns a number that changes when the key loses its entry, or another key with the same counter does.
    pub fn gone(&mut self, key: Key<'_>) -> u32 {
        self.gone.count(key.mark())
    }

    /// Returns the number of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Sets the expiry time of an entry, whose value and version stay. Returns `true` if the key has an entry.
    pub fn set_expiry(&mut self, key: Key<'_>, expires_ms: Option<u64>, now_ms: impl Fn() -> u64) -> bool {
        let Some(at) = self.find(key, &now_ms) else {
            return false;
        };
        self.clock.touch(&mut self.slots[at].used);
        self.set_timer(at, expires_ms, expires_ms.map_or(0, |_| now_ms()));
        self.record_effect(key.mark(), &Effect::Expires { key: key.bytes, expires_ms });
        true
    }

    /// Removes up to `max` expired entries. Returns `true` if there may be more.
    pub fn expire(&mut self, now_ms: u64, max: usize) -> bool {
        self.clock.tick(now_ms);
        for _ in 0..max {
            match self.expiry.due(now_ms) {
                Some(at) => self.expire_one(at),
                None => return false,
            }
        }
        true
    }

    /// Evicts the entry that is first in the order of the policy. Returns `true` if an entry was evicted.
    pub fn evict_one(&mut self) -> bool {
        let first = match self.eviction {
            Eviction::None => None,
            Eviction::S3Fifo => self.order.evict(&mut self.slots),
            Eviction::TtlFirst => {
                let first = self.expiry.first().filter(|at| self.slots[*at].kind != Kind::Stream);
                first.or_else(|| self.order.evict(&mut self.slots))
            }
        };
        let Some(at) = first else {
            return false;
        };
        self.record_removal(at, Why::Evicted);
        let slot = &self.slots[at];
        if let Some(effects) = &mut self.effects {
            effects.push(slot.hash, &Effect::Deleted { key: slot.key(), version: self.version });
        }
        self.remove(at);
        self.stats.evicted += 1;
        true
    }

    /// Releases bytes to the budget for other stripes, and returns their number: first the spare bytes, then those of
    /// entries that are evicted until `bytes` are released.
    pub fn shed(&mut self, bytes: u64) -> u64 {
        let mut shed = self.share.give_spare();
        while shed < bytes && self.evict_one() {
            shed += self.share.give_spare();
        }
        shed
    }

    /// Removes all entries.
    pub fn flush(&mut self) {
        for at in &self.table {
            self.gone.note(self.slots[*at].hash);
            self.lost.extend(self.stream_at(*at));
        }
        self.table = HashTable::new();
        self.slots.clear();
        self.structures.clear();
        self.expiry.clear();
        self.order.clear();
        self.streams = 0;
        self.share.use_less(self.share.used());
    }

    pub fn stats(&self) -> StripeStats {
        StripeStats { entries: self.table.len() as u64, bytes: self.share.used(), ..self.stats }
    }

    /// Returns the number of entries that expire, and the sum of their expiry times in ms since 1970.
    pub fn expiring(&self) -> (u64, u128) {
        self.expiry.sum()
    }

    /// Starts or stops collecting expired and evicted entries for [`Stripe::take_removed`].
    pub fn record_removed(&mut self, is_wanted: bool) {
        self.removed = is_wanted.then(|| self.removed.take().unwrap_or_default());
    }

    /// Returns `true` if expired and evicted entries are collected.
    pub fn records_removed(&self) -> bool {
        self.removed.is_some()
    }

    pub fn take_removed(&mut self) -> Vec<Removed> {
        self.removed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the slot of a key. An expired entry is removed and not returned.
    fn find(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<u32> {
        let mark = key.mark();
        let slots = &self.slots;
        let is_key = |at: &u32| slots[*at].hash == mark && slots[*at].key() == key.bytes;
        let at = *self.table.find(table_hash(mark), is_key)?;
        match self.expires_ms(&self.slots[at]) {
            Some(expires_ms) if expires_ms <= now_ms() => {
                self.expire_one(at);
                None
            }
            _ => Some(at),
        }
    }

    /// Records a use of an entry.
    fn touch(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        Order::touch(slot);
        self.clock.touch(&mut slot.used);
    }

    /// Inserts a new entry, and makes room for `room` more bytes.
    fn insert(&mut self, key: Key<'_>, kind: Kind, value: &[u8], room: u64) -> Result<u32> {
        let slot = Slot {
            block: block(key, value),
            older: NONE,
            newer: NONE,
            hash: key.mark(),
            key_bytes: key.bytes.len() as u16,
            kind,
            used: self.clock.first_use(),
            state: State::NEW,
            ..Slot::default()
        };
        let bytes = slot.bytes();
        self.make_room(bytes + room)?;
        self.share.use_more(bytes);
        let at = self.slots.insert(slot);
        let hash_of = |at: &u32| table_hash(self.slots[*at].hash);
        self.table.insert_unique(table_hash(key.mark()), at, hash_of);
        if self.eviction != Eviction::None && kind != Kind::Stream {
            self.order.insert(&mut self.slots, at);
        }
        Ok(at)
    }

    /// Replaces the value of an entry. Returns its slot, which may have changed.
    fn replace(&mut self, key: Key<'_>, at: u32, value: &[u8], room: u64, now_ms: impl Fn() -> u64) -> Result<u32> {
        self.touch(at);
        let slot = &self.slots[at];
        let is_as_long = slot.value().len() == value.len();
        let before = slot.bytes();
        let more = (value.len() as u64).saturating_sub(slot.value().len() as u64);
        let room = if slot.timer == 0 { room } else { 0 };
        if slot.kind != Kind::Bytes {
            return self.replace_structure(key, at, value, room, now_ms);
        }
        if self.has_room(more + room) {
            let slot = &mut self.slots[at];
            if is_as_long {
                slot.value_mut().copy_from_slice(value);
            } else {
                slot.block = block(key, value);
                self.resized(at, before);
            }
            return Ok(at);
        }
        if self.eviction == Eviction::None {
            return Err(full());
        }
        // Removed and inserted as a new one, so that the entry is not evicted to make room for its own value.
        let expires_ms = self.found(at).expires_ms;
        self.remove(at);
        self.insert_again(key, value, expires_ms, now_ms)
    }

    /// Replaces a structure with bytes.
    fn replace_structure(
        &mut self,
        key: Key<'_>,
        at: u32,
        value: &[u8],
        room: u64,
        now_ms: impl Fn() -> u64,
    ) -> Result<u32> {
        if !self.has_room((key.bytes.len() + value.len()) as u64 + room) && self.eviction == Eviction::None {
            return Err(full());
        }
        let expires_ms = self.found(at).expires_ms;
        self.remove(at);
        self.insert_again(key, value, expires_ms, now_ms)
    }

    /// Inserts a removed entry again with its new value. Without room it stays removed, like an evicted one.
    fn insert_again(
        &mut self,
        key: Key<'_>,
        value: &[u8],
        expires_ms: Option<u64>,
        now_ms: impl Fn() -> u64,
    ) -> Result<u32> {
        let at = self.insert(key, Kind::Bytes, value, TIMER_BYTES).inspect_err(|_| {
            if let Some(removed) = &mut self.removed {
                removed.push(Removed { key: key.bytes.into(), why: Why::Evicted });
            }
            self.record_effect(key.mark(), &Effect::Deleted { key: key.bytes, version: self.version });
        })?;
        if expires_ms.is_some() {
            self.set_timer(at, expires_ms, now_ms());
        }
        Ok(at)
    }

    fn resized(&mut self, at: u32, before: u64) {
        let slot = &self.slots[at];
        self.share.use_more(slot.bytes().saturating_sub(before));
        self.share.use_less(before.saturating_sub(slot.bytes()));
        self.order.resize(slot, before);
    }

    fn has_room(&mut self, bytes: u64) -> bool {
        self.share.has_room(bytes) || self.is_replaying
    }

    fn make_room(&mut self, bytes: u64) -> Result<()> {
        while !self.has_room(bytes) {
            if !self.evict_one() {
                return Err(full());
            }
        }
        Ok(())
    }

    fn set_timer(&mut self, at: u32, expires_ms: Option<u64>, now_ms: u64) {
        let before = self.slots[at].bytes();
        let timer = self.slots[at].timer;
        match (timer, expires_ms) {
            (0, None) => return,
            (0, Some(at_ms)) => self.slots[at].timer = self.expiry.set(at, at_ms, now_ms) + 1,
            (timer, Some(at_ms)) => self.expiry.change(timer - 1, at_ms),
            (timer, None) => {
                self.expiry.drop_timer(timer - 1);
                self.slots[at].timer = 0;
            }
        }
        self.resized(at, before);
    }

    fn expire_one(&mut self, at: u32) {
        self.record_removal(at, Why::Expired);
        self.remove(at);
        self.stats.expired += 1;
    }

    fn record_removal(&mut self, at: u32, why: Why) {
        if let Some(removed) = &mut self.removed {
            removed.push(Removed { key: self.slots[at].key().into(), why });
        }
    }

    fn remove(&mut self, at: u32) {
        self.order.remove(&mut self.slots, at);
        let slot = self.slots.remove(at);
        self.gone.note(slot.hash);
        self.share.use_less(slot.bytes());
        if let Some((number, _)) = slot.structure()
            && let Some(Structure::Stream(topic)) = self.structures.remove(number).as_deref()
        {
            self.lost.push(*topic);
            self.streams -= 1;
        }
        if slot.timer != 0 {
            self.expiry.drop_timer(slot.timer - 1);
        }
        if let Ok(entry) = self.table.find_entry(table_hash(slot.hash), |other| *other == at) {
            entry.remove();
        }
        if self.table.is_empty() && self.slots.end() > KEPT_SLOTS_MAX {
            self.table = HashTable::new();
            self.slots.clear();
            self.structures.clear();
            self.expiry.clear();
        }
    }

    fn insert_structure(&mut self, key: Key<'_>, structure: Structure) -> Result<u32> {
        let kind = structure.kind();
        let bytes = structure.bytes();
        let number = self.structures.insert(Some(Box::new(structure)));
        let mut value = [0; 12];
        value[..4].copy_from_slice(&number.to_le_bytes());
        value[4..].copy_from_slice(&bytes.to_le_bytes());
        let at = self.insert(key, kind, &value, TIMER_BYTES).inspect_err(|_| drop(self.structures.remove(number)))?;
        self.streams += u32::from(kind == Kind::Stream);
        self.changed(at);
        Ok(at)
    }

    fn changed(&mut self, at: u32) -> u64 {
        self.version += 1;
        self.slots[at].version = self.version;
        self.version
    }

    fn found(&self, at: u32) -> Found<'_> {
        let slot = &self.slots[at];
        let structure = slot.structure().and_then(|(number, _)| self.structures[number].as_deref());
        let value = structure.map_or(Value::Bytes(slot.value()), Value::Structure);
        Found {
            key: slot.key(),
            value,
            version: self.version_of(slot),
            expires_ms: self.expires_ms(slot),
            uses: self.clock.uses(slot.used),
        }
    }

    fn version_of(&self, slot: &Slot) -> u64 {
        slot.version.max(self.floor)
    }

    fn expires_ms(&self, slot: &Slot) -> Option<u64> {
        (slot.timer != 0).then(|| self.expiry.at_ms(slot.timer - 1))
    }

    /// Returns the first key at or after slot `number` modulo the number of slots whose entry has not expired.
    pub fn any_key(&self, number: u64, now_ms: u64) -> Option<&[u8]> {
        let end = u64::from(self.slots.end());
        (0..end).map(|step| ((number + step) % end) as u32).find_map(|at| {
            let slot = &self.slots[at];
            let is_present =
                slot.state.is_taken() && self.expires_ms(slot).is_none_or(|expires_ms| expires_ms > now_ms);
            is_present.then(|| slot.key())
        })
    }

    /// Calls `each` for entries from a position on, in no particular order. An entry that exists during the whole scan
    /// is visited exactly once. A call checks at most `places_max` slots, and ends early if `each` returns `false`.
    /// Returns the position from which to continue, or `None` at the end.
    pub fn scan(
        &self,
        from: Cursor,
        places_max: u32,
        now_ms: u64,
        mut each: impl FnMut(Found<'_>) -> bool,
    ) -> Option<Cursor> {
        let end = self.slots.end();
        let until = from.0.saturating_add(places_max).min(end);
        for at in from.0..until {
            let slot = &self.slots[at];
            let is_present =
                slot.state.is_taken() && self.expires_ms(slot).is_none_or(|expires_ms| expires_ms > now_ms);
            if is_present && !each(self.found(at)) {
                return Some(Cursor(at + 1));
            }
        }
        (until < end).then_some(Cursor(until))
    }

    /// Returns the number of slots that a whole scan checks.
    pub fn places(&self) -> u32 {
        self.slots.end()
    }
}

fn block(key: Key<'_>, value: &[u8]) -> Box<[u8]> {
    let mut block = Vec::with_capacity(key.bytes.len() + value.len());
    block.extend_from_slice(key.bytes);
    block.extend_from_slice(value);
    block.into_boxed_slice()
}

/// Returns the hash for the table, which needs upper bits as well mixed as the lower ones.
fn table_hash(mark: u32) -> u64 {
    u64::from(mark).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Refuses a key of more than [`KEY_BYTES_MAX`] bytes and a value of more than [`VALUE_BYTES_MAX`] bytes.
pub fn check_size(key: &[u8], value_bytes: usize) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::too_large(format!("a key has at most {KEY_BYTES_MAX} bytes, not {}", key.len())));
    }
    if value_bytes > VALUE_BYTES_MAX {
        return Err(Error::too_large(format!("a value has at most {VALUE_BYTES_MAX} bytes, not {value_bytes}")));
    }
    Ok(())
}

/// Refuses a structure that would grow beyond [`STRUCTURE_BYTES_MAX`]. With `room` 0, a structure that only loses
/// parts, any size is allowed.
fn check_structure(bytes: u64, room: u64) -> Result<()> {
    if room > 0 && bytes + room > STRUCTURE_BYTES_MAX {
        return Err(Error::too_large(format!(
            "a value with elements uses at most {STRUCTURE_BYTES_MAX} bytes, not {}",
            bytes + room
        )));
    }
    Ok(())
}

fn full() -> Error {
    Error::busy("the cache is full: raise its bytes_max, delete entries, or choose an eviction policy")
}
