//! Table with a maximum number of entries, from which the least recently used one is evicted.
//!
//! Entries are in one vector without holes. Each has the numbers of its neighbours in the order of use, and a hash
//! table has their places, so that every operation on one entry takes the same time for any number of entries.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

/// Maximum of the maximum number of entries of a table.
pub(super) const LRU_ENTRIES_LIMIT: usize = 1 << 20;

/// Number that is not a place.
const NONE: u32 = u32::MAX;
const _: () = assert!(LRU_ENTRIES_LIMIT < NONE as usize);

/// Table of `K` to `V` that evicts its least recently used entry if it is full.
///
/// A *place* is the number of an entry. It is valid until the next insertion or removal.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    slots: Vec<Slot<K, V>>,
    /// Places by the hashes of their keys.
    table: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
    newest: u32,
    oldest: u32,
    entries_max: usize,
}

#[derive(Debug)]
struct Slot<K, V> {
    key: K,
    value: V,
    newer: u32,
    older: u32,
}

impl<K: Hash + Eq, V> Lru<K, V> {
    /// Bytes of an entry, without what its key and value refer to and without its share of the hash table.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot<K, V>>();

    /// Creates a table for `entries_max` entries, which is clamped to 1 to [`LRU_ENTRIES_LIMIT`].
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            table: HashTable::new(),
            hasher: foldhash::fast::RandomState::default(),
            newest: NONE,
            oldest: NONE,
            entries_max: entries_max.clamp(1, LRU_ENTRIES_LIMIT),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |at| self.slots[*at as usize].key == *key).copied()
    }

    pub(super) fn value_mut(&mut self, at: u32) -> &mut V {
        &mut self.slots[at as usize].value
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().map(|slot| (&slot.key, &slot.value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().map(|slot| &mut slot.value)
    }

    /// Makes an entry the most recently used one.
    pub(super) fn touch(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    /// Inserts a key that the table does not have, as the most recently used one, and evicts another one if the table
    /// is full.
    pub(super) fn insert(&mut self, key: K, value: V) -> u32 {
        if self.slots.len() >= self.entries_max {
            self.remove_at(self.oldest);
        }
        if self.slots.len() == self.slots.capacity() {
            // Capacity doubles, as with `push`, but not beyond the maximum.
            let more = self.slots.len().max(8).min(self.entries_max - self.slots.len());
            self.slots.reserve_exact(more);
        }
        let at = self.slots.len() as u32;
        let hash = self.hasher.hash_one(&key);
        self.slots.push(Slot { key, value, newer: NONE, older: NONE });
        let Self { slots, table, hasher, .. } = self;
        table.insert_unique(hash, at, |at| hasher.hash_one(&slots[*at as usize].key));
        self.link_newest(at);
        at
    }

    /// Removes the entries for which `is_kept` returns `false`, and returns their number.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&V) -> bool) -> usize {
        let before = self.slots.len();
        // The last entry takes the place of a removed one. From the end on, that entry was checked before.
        for at in (0..before).rev().filter_map(|at| u32::try_from(at).ok()) {
            if !is_kept(&self.slots[at as usize].value) {
                self.remove_at(at);
            }
        }
        before - self.slots.len()
    }

    /// Returns the bytes allocated for entries and places, without what keys and values refer to.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.slots.capacity() * Self::SLOT_BYTES + self.table.allocation_size()
    }

    fn remove_at(&mut self, at: u32) {
        self.unlink(at);
        self.forget_place(at);
        self.slots.swap_remove(at as usize);
        let last = self.slots.len() as u32;
        if last == at {
            return;
        }
        // The last entry has moved to `at`.
        let Slot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = at,
            newer => self.slots[newer as usize].older = at,
        }
        match older {
            NONE => self.oldest = at,
            older => self.slots[older as usize].newer = at,
        }
        let hash = self.hasher.hash_one(&self.slots[at as usize].key);
        if let Some(place) = self.table.find_mut(hash, |place| *place == last) {
            *place = at;
        }
    }

    fn forget_place(&mut self, at: u32) {
        let hash = self.hasher.hash_one(&self.slots[at as usize].key);
        if let Ok(found) = self.table.find_entry(hash, |place| *place == at) {
            found.remove();
        }
    }

    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        let slot = &mut self.slots[at as usize];
        slot.newer = NONE;
        slot.older = before;
        match before {
            NONE => self.oldest = at,
            before => self.slots[before as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Slot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is a vector in the order of use, the oldest entry first.
        #[test]
        fn a_table_is_a_list_in_the_order_of_use(
            entries_max in 1usize..12, steps in prop::collection::vec((0u8..9, 0u8..20, any::<u16>()), 1..300)
        ) {
            let mut table = Lru::new(entries_max);
            let mut model: Vec<(u8, u16)> = Vec::new();
            for (step, key, value) in steps {
                let known = model.iter().position(|(other, _)| *other == key);
                prop_assert_eq!(table.find(&key).is_some(), known.is_some());
                match (step, table.find(&key), known) {
                    (0..5, None, _) => {
                        table.insert(key, value);
                        if model.len() == entries_max {
                            model.remove(0);
                        }
                        model.push((key, value));
                    }
                    (0..5, Some(at), Some(known)) => {
                        table.touch(at);
                        *table.value_mut(at) = value;
                        model.remove(known);
                        model.push((key, value));
                    }
                    (5..7, ..) => {
                        let before = model.len();
                        model.retain(|(_, one)| one % 3 != 0);
                        prop_assert_eq!(table.retain(|one| one % 3 != 0), before - model.len());
                    }
                    _ => {}
                }
                let mut at = table.oldest;
                for (key, value) in &model {
                    let slot = &table.slots[at as usize];
                    prop_assert_eq!((slot.key, slot.value), (*key, *value));
                    at = slot.newer;
                }
                prop_assert_eq!((at, table.len(), table.table.len()), (NONE, model.len(), model.len()));
                prop_assert!(table.slots.capacity() <= entries_max.max(8));
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_the_maximum_of_entries() {
        let mut table = Lru::new(1000);
        for key in 0u32..50_000 {
            table.insert(key, ());
        }
        assert_eq!((table.len(), table.slots.capacity()), (1000, 1000));
        assert!(table.table.allocation_size() <= 4096 * 5 + 64, "{}", table.table.allocation_size());
    }
}
