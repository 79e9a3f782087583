//! A part of a cache: a table of entries, and every change of one of them.

mod checks;
mod number;
mod replay;
mod scan;
mod streams;

use std::sync::Arc;

use hashbrown::HashTable;

use super::Eviction;
use super::budget::{Budget, Share};
use super::effects::{Effect, Effects};
use super::evict::{Order, State};
use super::expiry::Expiry;
use super::gone::Gone;
use super::slab::{NONE, Slab};
use super::structures::{Edit, Kind, Part, Structure};
use super::uses::{Clock, Used, Uses};
use crate::error::{Error, Result};
use crate::ids::TopicId;

use checks::{check_structure, full, wrong_kind};

pub use checks::check_size;
pub use number::{parse_number, write_number};

/// What an entry takes beside its key and value: its slot, its place in the table (which is half full at the least),
/// and what the allocator adds.
const ENTRY_BYTES: u64 = size_of::<Slot>() as u64 + 10 + 8;
/// What one takes more that expires.
const TIMER_BYTES: u64 = 24;

/// Slots that an empty shard keeps.
const KEPT_SLOTS_MAX: u32 = 1024;

/// A key with its hash, which says the shard and the place in it.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub hash: u64,
    pub bytes: &'a [u8],
}

impl Key<'_> {
    /// The upper half of the hash: the lower one chose the shard.
    pub fn mark(&self) -> u32 {
        (self.hash >> 32) as u32
    }
}

/// An entry as its reader sees it.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub key: &'a [u8],
    pub value: Value<'a>,
    /// Differs after each change of the value, and grows.
    pub version: u64,
    /// When it expires, in ms since 1970.
    pub expires_ms: Option<u64>,
    /// When it was last used, and how often.
    pub uses: Uses,
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Bytes(&'a [u8]),
    Structure(&'a Structure),
}

impl<'a> Value<'a> {
    pub fn kind(self) -> Kind {
        match self {
            Self::Bytes(_) => Kind::Bytes,
            Self::Structure(structure) => structure.kind(),
        }
    }

    /// The bytes, if that is what it is.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Structure(structure) => Err(wrong_kind(structure.kind(), Kind::Bytes)),
        }
    }
}

/// A value on its own.
#[derive(Clone, Debug)]
pub enum Owned {
    Bytes(Box<[u8]>),
    Structure(Box<Structure>),
}

/// When an entry shall expire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expires {
    #[default]
    Never,
    /// Ms since 1970.
    At(u64),
    /// As it was; never where there was none.
    Kept,
}

/// On what a change depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Always,
    IfAbsent,
    IfPresent,
    /// If the entry is there in this version.
    IfVersion(u64),
}

/// What became of a put or a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is done. The number of the change, which is the version of what was put; and the version that was there
    /// before.
    Done { version: u64, previous: Option<u64> },
    /// The condition does not hold. The version that is there.
    Unmet { current: Option<u64> },
}

/// What became of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    pub value: i64,
    pub version: u64,
    /// When it expires, as before.
    pub expires_ms: Option<u64>,
}

/// An entry that went without being asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub key: Box<[u8]>,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Expired,
    Evicted,
}

/// Where a scan goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    pub entries: u64,
    /// What all entries take, with what is needed to find them.
    pub bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub evicted: u64,
}

#[derive(Clone, Debug)]
pub struct ShardSettings {
    pub eviction: Eviction,
    pub budget: Arc<Budget>,
    /// Bytes that are taken from the budget at once.
    pub block: u64,
    /// Changes are counted from here. No earlier shard of the same keys has come so far.
    pub version: u64,
    /// When it is created, in ms since 1970. [`Shard::expire`] moves its clock on.
    pub now_ms: u64,
}

/// An entry. A free slot has no key.
#[derive(Default)]
pub(super) struct Slot {
    /// The key, and behind it the value; or the number of a structure (u32) and what it takes (u64).
    block: Box<[u8]>,
    version: u64,
    /// Neighbours in the queue that it waits in.
    pub(super) older: u32,
    pub(super) newer: u32,
    pub(super) hash: u32,
    /// Its time in the wheel, counted from 1: what is 0 never expires.
    timer: u32,
    used: Used,
    key_bytes: u16,
    kind: Kind,
    pub(super) state: State,
}

const _: () = assert!(size_of::<Slot>() <= 48, "a million entries take 48 MB beside what they are");

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

    /// The number of the structure, and what it takes.
    fn structure(&self) -> Option<(u32, u64)> {
        if self.kind == Kind::Bytes {
            return None;
        }
        let (number, bytes) = self.value().split_at_checked(4)?;
        Some((u32::from_le_bytes(number.try_into().ok()?), u64::from_le_bytes(bytes.try_into().ok()?)))
    }
}

/// Entries by key. Its owner has the lock.
pub struct Shard {
    table: HashTable<u32>,
    slots: Slab<Slot>,
    structures: Slab<Option<Box<Structure>>>,
    expiry: Expiry,
    order: Order,
    share: Share,
    eviction: Eviction,
    /// The last change.
    version: u64,
    gone: Gone,
    stats: ShardStats,
    /// For the uses of entries.
    clock: Clock,
    /// What went by itself, while somebody wants to know.
    removed: Option<Vec<Removed>>,
    /// Streams whose keys were removed.
    lost: Vec<TopicId>,
    /// What changed, while somebody keeps it.
    effects: Option<Box<Effects>>,
    /// What was is done again: there was room for it then, and nobody made room.
    is_replaying: bool,
}

impl Shard {
    pub fn new(settings: ShardSettings) -> Self {
        Self {
            table: HashTable::new(),
            slots: Slab::default(),
            structures: Slab::default(),
            expiry: Expiry::default(),
            order: Order::default(),
            share: Share::new(settings.budget, settings.block),
            eviction: settings.eviction,
            version: settings.version,
            gone: Gone::default(),
            stats: ShardStats::default(),
            clock: Clock::new(settings.now_ms),
            removed: None,
            lost: Vec::new(),
            effects: None,
            is_replaying: false,
        }
    }

    /// The value of a key, which counts as a hit or a miss. The clock is asked only where the entry has a time.
    pub fn get(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<Found<'_>> {
        let Some(at) = self.find(key, now_ms) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.touch(at);
        Some(self.found(at))
    }

    /// The same without counting, and without making the entry stay longer.
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
        let there = self.find(key, &now_ms);
        let current = there.map(|at| self.slots[at].version);
        if !condition.holds(current) {
            return Ok(Stored::Unmet { current });
        }
        let timer_bytes = if matches!(expires, Expires::At(_)) { TIMER_BYTES } else { 0 };
        let at = match there {
            Some(at) => self.replace(key, at, value, timer_bytes, &now_ms)?,
            None => self.insert(key, Kind::Bytes, value, timer_bytes)?,
        };
        match expires {
            Expires::Never => self.set_timer(at, None, 0),
            Expires::At(at_ms) => self.set_timer(at, Some(at_ms), now_ms()),
            Expires::Kept => {}
        }
        let version = self.changed(at);
        self.tell_put(at);
        Ok(Stored::Done { version, previous: current })
    }

    pub fn delete(&mut self, key: Key<'_>, condition: Condition, now_ms: impl FnOnce() -> u64) -> Stored {
        let there = self.find(key, now_ms);
        let current = there.map(|at| self.slots[at].version);
        if !condition.holds(current) {
            return Stored::Unmet { current };
        }
        if let Some(at) = there {
            self.remove(at);
        }
        self.version += 1;
        if current.is_some() {
            self.tell_effect(key.mark(), &Effect::Deleted { key: key.bytes, version: self.version });
        }
        Stored::Done { version: self.version, previous: current }
    }

    /// Adds to a number that is written in decimal digits; what is not there is 0.
    pub fn add(&mut self, key: Key<'_>, delta: i64, now_ms: impl Fn() -> u64) -> Result<Added> {
        check_size(key.bytes, 0)?;
        let there = self.find(key, &now_ms);
        let before = match there {
            Some(at) => parse_number(self.found(at).value.bytes()?)
                .ok_or_else(|| Error::invalid("value is not an integer or out of range"))?,
            None => 0,
        };
        let value = before.checked_add(delta).ok_or_else(|| Error::invalid("increment or decrement would overflow"))?;
        let mut digits = [0; 20];
        let text = write_number(value, &mut digits);
        let at = match there {
            Some(at) => self.replace(key, at, text, 0, &now_ms)?,
            None => self.insert(key, Kind::Bytes, text, 0)?,
        };
        let version = self.changed(at);
        self.tell_put(at);
        Ok(Added { value, version, expires_ms: self.found(at).expires_ms })
    }

    /// Changes a structure, which is made where there is none, and goes where nothing is left of it. `change` says
    /// whether it changed anything; there is room for so many bytes more.
    pub fn change<T: Part, R>(
        &mut self,
        key: Key<'_>,
        room: u64,
        now_ms: impl Fn() -> u64,
        change: impl FnOnce(&mut Edit<'_, T>) -> (bool, R),
    ) -> Result<R> {
        check_size(key.bytes, 0)?;
        let there = self.find(key, &now_ms);
        let mut edits = self.effects.is_some().then(Vec::new);
        let kind = there.map_or(T::KIND, |at| self.slots[at].kind);
        if kind != T::KIND {
            return Err(wrong_kind(kind, T::KIND));
        }
        if room > 0 && !self.has_room(room) && self.eviction == Eviction::None {
            return Err(full());
        }
        let Some(at) = there else {
            let mut new = T::default();
            let (is_changed, result) = change(&mut Edit::new(&mut new, edits.as_mut()));
            if is_changed {
                self.insert_structure(key, new.into_structure())?;
                self.tell_edits(key, T::KIND, true, edits);
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
            self.tell_edits(key, T::KIND, false, edits);
            if is_empty {
                self.remove(at);
            }
            // What it grew by is there now; others go for it, where they may.
            while self.eviction != Eviction::None && !self.has_room(1) && self.evict_one() {}
        }
        Ok(result)
    }

    /// Puts a value whole, whatever was there. One without parts removes what was there.
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
            self.tell_edits(key, kind, true, edits);
            if expires_ms.is_some() {
                self.set_timer(at, expires_ms, now_ms());
                self.tell_effect(key.mark(), &Effect::Expires { key: key.bytes, expires_ms });
            }
        }
        Ok(())
    }

    /// Refuses a key whose value may not grow by so much, whatever room there is.
    pub fn check_growth(&mut self, key: Key<'_>, bytes: u64, now_ms: impl FnOnce() -> u64) -> Result<()> {
        check_size(key.bytes, 0)?;
        let structure = self.find(key, now_ms).and_then(|at| self.slots[at].structure());
        check_structure(structure.map_or(0, |(_, bytes)| bytes), bytes)
    }

    /// Sees to it that there is room for so many bytes more, by others that go where they may.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.make_room(bytes + ENTRY_BYTES + TIMER_BYTES)
    }

    /// What an entry takes.
    pub fn bytes_of(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<u64> {
        let at = self.find(key, now_ms)?;
        Some(self.slots[at].bytes())
    }

    /// A number that is another one once the key has had something that went.
    pub fn gone(&mut self, key: Key<'_>) -> u32 {
        self.gone.count(key.mark())
    }

    /// The last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Another time for an entry. Whether there is one. Its version stays: its value does.
    pub fn set_expiry(&mut self, key: Key<'_>, expires_ms: Option<u64>, now_ms: impl Fn() -> u64) -> bool {
        let Some(at) = self.find(key, &now_ms) else {
            return false;
        };
        self.clock.touch(&mut self.slots[at].used);
        self.set_timer(at, expires_ms, expires_ms.map_or(0, |_| now_ms()));
        self.tell_effect(key.mark(), &Effect::Expires { key: key.bytes, expires_ms });
        true
    }

    /// Removes entries whose time has come, so many at most. Whether there may be more.
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

    /// Makes room for others by removing the entry that goes first here. Whether there was one.
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
        self.tell(at, Why::Evicted);
        let slot = &self.slots[at];
        if let Some(effects) = &mut self.effects {
            effects.push(slot.hash, &Effect::Deleted { key: slot.key(), version: self.version });
        }
        self.remove(at);
        self.stats.evicted += 1;
        true
    }

    /// Gives bytes back that others may take: what is spare, and as far as need be of entries that go for it.
    pub fn shed(&mut self, bytes: u64) -> u64 {
        let mut shed = self.share.give_spare();
        while shed < bytes && self.evict_one() {
            shed += self.share.give_spare();
        }
        shed
    }

    /// Removes everything.
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
        self.share.use_less(self.share.used());
    }

    pub fn stats(&self) -> ShardStats {
        ShardStats { entries: self.table.len() as u64, bytes: self.share.used(), ..self.stats }
    }

    /// How many entries expire, and the sum of their times in ms since 1970.
    pub fn expiring(&self) -> (u64, u128) {
        self.expiry.sum()
    }

    /// From now on, or no longer, entries that go by themselves are kept for [`Shard::take_removed`].
    pub fn tell_removed(&mut self, is_wanted: bool) {
        self.removed = is_wanted.then(Vec::new);
    }

    pub fn take_removed(&mut self) -> Vec<Removed> {
        self.removed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The slot of a key, unless its time has come.
    fn find(&mut self, key: Key<'_>, now_ms: impl FnOnce() -> u64) -> Option<u32> {
        let mark = key.mark();
        let slots = &self.slots;
        let is_it = |at: &u32| slots[*at].hash == mark && slots[*at].key() == key.bytes;
        let at = *self.table.find(table_hash(mark), is_it)?;
        match self.expires_ms(&self.slots[at]) {
            Some(expires_ms) if expires_ms <= now_ms() => {
                self.expire_one(at);
                None
            }
            _ => Some(at),
        }
    }

    /// An entry was used.
    fn touch(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        Order::touch(slot);
        self.clock.touch(&mut slot.used);
    }

    /// A new entry. There will be room for so many bytes more.
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

    /// Another value for an entry, which may be in another slot afterwards.
    fn replace(&mut self, key: Key<'_>, at: u32, value: &[u8], room: u64, now_ms: impl Fn() -> u64) -> Result<u32> {
        self.touch(at);
        let slot = &self.slots[at];
        let (is_as_long, before) = (slot.value().len() == value.len(), slot.bytes());
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
        // Others make room for it, as for a new one: it is not to be among them.
        let expires_ms = self.found(at).expires_ms;
        self.remove(at);
        self.insert_again(key, value, expires_ms, now_ms)
    }

    /// Bytes where a structure was.
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

    /// Another value for an entry that was taken out for it, and goes where there is no room.
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
            self.tell_effect(key.mark(), &Effect::Deleted { key: key.bytes, version: self.version });
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
        self.tell(at, Why::Expired);
        self.remove(at);
        self.stats.expired += 1;
    }

    fn tell(&mut self, at: u32, why: Why) {
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
        let (kind, bytes) = (structure.kind(), structure.bytes());
        let number = self.structures.insert(Some(Box::new(structure)));
        let mut value = [0; 12];
        value[..4].copy_from_slice(&number.to_le_bytes());
        value[4..].copy_from_slice(&bytes.to_le_bytes());
        let at = self.insert(key, kind, &value, TIMER_BYTES).inspect_err(|_| drop(self.structures.remove(number)))?;
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
            version: slot.version,
            expires_ms: self.expires_ms(slot),
            uses: self.clock.uses(slot.used),
        }
    }

    fn expires_ms(&self, slot: &Slot) -> Option<u64> {
        (slot.timer != 0).then(|| self.expiry.at_ms(slot.timer - 1))
    }
}

impl Condition {
    fn holds(self, current: Option<u64>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => current.is_none(),
            Self::IfPresent => current.is_some(),
            Self::IfVersion(version) => current == Some(version),
        }
    }
}

fn block(key: Key<'_>, value: &[u8]) -> Box<[u8]> {
    let mut block = Vec::with_capacity(key.bytes.len() + value.len());
    block.extend_from_slice(key.bytes);
    block.extend_from_slice(value);
    block.into_boxed_slice()
}

/// The table wants its upper bits as mixed as its lower ones.
fn table_hash(mark: u32) -> u64 {
    u64::from(mark).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
