//! Timer wheel: many deadlines, of which few are ever reached, each set and moved in a few nanoseconds.
//!
//! The wheel does not read a clock: time is a tick that the caller counts. It has two rings of 128 slots; the inner one
//! moves by one tick, the outer one by one turn of the inner. An entry that is due beyond both waits in the last slot
//! of the outer ring and is placed again when its turn comes.

/// Number of slots per ring; the occupied slots of a ring are the bits of one `u128`.
const SLOTS: u64 = 128;
/// Index that means no entry.
const NONE: u32 = u32::MAX;
/// Slot number of entries that are in no slot: they keep their key and will not fire.
const PARKED: u16 = 2 * SLOTS as u16;

/// Identifier of an entry until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u32);

struct Entry<T> {
    /// Value; `None` while the place is free.
    value: Option<T>,
    due: u64,
    slot: u16,
    previous: u32,
    /// Next entry of the slot, or next free place.
    next: u32,
}

/// Timer wheel with entries of type `T`.
pub struct Wheel<T> {
    entries: Vec<Entry<T>>,
    /// First free place.
    free: u32,
    /// First entry of each slot: the inner ring, then the outer one.
    heads: Box<[u32]>,
    inner: u128,
    outer: u128,
    /// Tick up to which all due entries have fired.
    now: u64,
    count: usize,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        let heads = vec![NONE; 2 * SLOTS as usize].into_boxed_slice();
        Self { entries: Vec::new(), free: NONE, heads, inner: 0, outer: 0, now: 0, count: 0 }
    }
}

impl<T> Wheel<T> {
    /// Adds an entry, which fires once the wheel is advanced to `due`, but not before the next tick.
    pub fn insert(&mut self, due: u64, value: T) -> Key {
        let entry = Entry { value: Some(value), due, slot: PARKED, previous: NONE, next: NONE };
        let at = if self.free == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
            at
        };
        self.count += 1;
        self.link(at, self.now + 1);
        Key(at)
    }

    /// Moves an entry to another tick, whether it has fired or not.
    pub fn set(&mut self, key: Key, due: u64) {
        self.unlink(key.0);
        self.entries[key.0 as usize].due = due;
        self.link(key.0, self.now + 1);
    }

    /// Returns the value of an entry.
    pub fn value_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries[key.0 as usize].value.as_mut()
    }

    /// Removes an entry and returns its value. The key may be used again for a later entry.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.unlink(key.0);
        let entry = &mut self.entries[key.0 as usize];
        let value = entry.value.take()?;
        entry.next = self.free;
        self.free = key.0;
        self.count -= 1;
        if self.count == 0 {
            self.entries = Vec::new();
            self.free = NONE;
        }
        Some(value)
    }

    /// Returns the values of all entries, including those that have fired.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// Returns the number of entries, including those that have fired.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the first tick at which an entry may fire. An early wake-up is possible, a late one is not.
    pub fn next_due(&self) -> Option<u64> {
        let ahead = |ring: u128, at: u64| {
            let turned = ring.rotate_right((at % SLOTS) as u32);
            (ring != 0).then(|| u64::from(turned.trailing_zeros()))
        };
        let inner = ahead(self.inner, self.now + 1).map(|slots| self.now + 1 + slots);
        // A slot of the outer ring is distributed when the inner ring begins its turn.
        let turn = self.now / SLOTS + 1;
        let outer = ahead(self.outer, turn).map(|turns| (turn + turns) * SLOTS);
        match (inner, outer) {
            (Some(inner), Some(outer)) => Some(inner.min(outer)),
            (one, other) => one.or(other),
        }
    }

    /// Advances the wheel to this tick and calls `fire` for every due entry. Each entry keeps its key, and its owner
    /// sets or removes it later.
    pub fn advance(&mut self, now: u64, mut fire: impl FnMut(&T)) {
        while self.now < now {
            // Ticks at which nothing can happen are skipped.
            self.now = self.next_due().map_or(now, |due| due.min(now));
            if self.now.is_multiple_of(SLOTS) {
                let slot = SLOTS + (self.now / SLOTS) % SLOTS;
                self.empty(slot as u16, |wheel, at| wheel.link(at, wheel.now));
            }
            let slot = (self.now % SLOTS) as u16;
            self.empty(slot, |wheel, at| {
                if let Some(value) = &wheel.entries[at as usize].value {
                    fire(value);
                }
            });
        }
    }

    /// Removes every entry from a slot.
    fn empty(&mut self, slot: u16, mut each: impl FnMut(&mut Self, u32)) {
        let mut at = std::mem::replace(&mut self.heads[slot as usize], NONE);
        self.mark(slot, false);
        while at != NONE {
            let entry = &mut self.entries[at as usize];
            let next = std::mem::replace(&mut entry.next, NONE);
            entry.previous = NONE;
            entry.slot = PARKED;
            each(self, at);
            at = next;
        }
    }

    /// Links an entry into the slot of its deadline. A deadline before `earliest`, the first tick that has not fired,
    /// is moved there.
    fn link(&mut self, at: u32, earliest: u64) {
        let due = self.entries[at as usize].due.max(earliest);
        let turns = due / SLOTS - self.now / SLOTS;
        let slot = match turns {
            0 => due % SLOTS,
            1..SLOTS => SLOTS + (due / SLOTS) % SLOTS,
            _ => SLOTS + (self.now / SLOTS + SLOTS - 1) % SLOTS,
        } as u16;
        let head = std::mem::replace(&mut self.heads[slot as usize], at);
        if head != NONE {
            self.entries[head as usize].previous = at;
        }
        let entry = &mut self.entries[at as usize];
        entry.slot = slot;
        entry.previous = NONE;
        entry.next = head;
        self.mark(slot, true);
    }

    fn unlink(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        let slot = entry.slot;
        let previous = entry.previous;
        let next = entry.next;
        if slot == PARKED {
            return;
        }
        entry.slot = PARKED;
        entry.previous = NONE;
        entry.next = NONE;
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous == NONE {
            self.heads[slot as usize] = next;
            self.mark(slot, next != NONE);
        } else {
            self.entries[previous as usize].next = next;
        }
    }

    fn mark(&mut self, slot: u16, is_occupied: bool) {
        let (ring, bit) = match slot.checked_sub(SLOTS as u16) {
            None => (&mut self.inner, slot),
            Some(bit) => (&mut self.outer, bit),
        };
        *ring = *ring & !(1 << bit) | u128::from(is_occupied) << bit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn fired(wheel: &mut Wheel<u32>, now: u64) -> Vec<u32> {
        let mut fired = Vec::new();
        wheel.advance(now, |value| fired.push(*value));
        fired.sort_unstable();
        fired
    }

    #[test]
    fn fires_at_its_tick_and_not_before() {
        let mut wheel = Wheel::default();
        for due in [1, 127, 128, 129, 16_383, 16_384, 16_385, 100_000] {
            wheel.insert(due, due as u32);
        }
        for due in [1, 127, 128, 129, 16_383, 16_384, 16_385, 100_000] {
            assert_eq!(fired(&mut wheel, due - 1), [] as [u32; 0], "before {due}");
            assert_eq!(fired(&mut wheel, due), [due as u32], "at {due}");
        }
        assert_eq!(wheel.next_due(), None);
    }

    #[test]
    fn an_entry_that_is_overdue_fires_at_the_next_tick_also_where_a_ring_begins_its_turn() {
        for now in [0, 5, 127, 128, 256] {
            let mut wheel = Wheel::default();
            wheel.advance(now, |_| {});
            wheel.insert(now, 7);
            assert_eq!(wheel.next_due(), Some(if (now + 1) % SLOTS == 0 { now + 1 } else { wheel.now + 1 }));
            assert_eq!(fired(&mut wheel, now + 1), [7]);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Set(usize, u64),
        Remove(usize),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let delay = prop_oneof![0..4u64, 0..300u64, 0..40_000u64];
        prop_oneof![
            delay.clone().prop_map(Step::Insert),
            (any::<usize>(), delay.clone()).prop_map(|(which, delay)| Step::Set(which, delay)),
            any::<usize>().prop_map(Step::Remove),
            delay.prop_map(Step::Advance),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        /// Against a map that is searched completely: the same entries fire, none early, none late.
        #[test]
        fn behaves_as_a_list_of_deadlines(steps in proptest::collection::vec(step(), 1..60)) {
            let mut wheel = Wheel::default();
            let mut model = HashMap::<u32, u64>::new();
            let mut keys = HashMap::new();
            let mut now = 0;
            let mut next = 0;
            let pick = |keys: &HashMap<u32, Key>, which: usize| {
                let mut all: Vec<_> = keys.keys().copied().collect();
                all.sort_unstable();
                (!all.is_empty()).then(|| all[which % all.len()])
            };
            for step in steps {
                match step {
                    Step::Insert(delay) => {
                        keys.insert(next, wheel.insert(now + delay, next));
                        model.insert(next, (now + delay).max(now + 1));
                        next += 1;
                    }
                    Step::Set(which, delay) => if let Some(value) = pick(&keys, which) {
                        wheel.set(keys[&value], now + delay);
                        model.insert(value, (now + delay).max(now + 1));
                    },
                    Step::Remove(which) => if let Some(value) = pick(&keys, which) {
                        prop_assert_eq!(keys.remove(&value).and_then(|key| wheel.remove(key)), Some(value));
                        model.remove(&value);
                    },
                    Step::Advance(ticks) => {
                        let soonest = model.values().min().copied();
                        match (wheel.next_due(), soonest) {
                            (due, None) => prop_assert_eq!(due, None),
                            (due, Some(soonest)) => prop_assert!(due.is_some_and(|due| now < due && due <= soonest)),
                        }
                        now += ticks;
                        let is_due = |(value, due): (&u32, &u64)| (*due <= now).then_some(*value);
                        let mut expected: Vec<_> = model.iter().filter_map(is_due).collect();
                        expected.sort_unstable();
                        model.retain(|_, due| *due > now);
                        prop_assert_eq!(fired(&mut wheel, now), expected);
                    }
                }
                prop_assert_eq!(wheel.len(), keys.len());
            }
        }
    }
}
