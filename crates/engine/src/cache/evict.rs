//! Choice of the entry to evict if there is no room: S3-FIFO (Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023).
//!
//! New entries wait in a small queue. Entries that are used at least twice there move to the main queue. All others are
//! evicted, and only their hashes are remembered for a while: a key that returns in this time enters the main queue
//! directly. In the main queue, an entry gets another round for each use, three at most.

use super::slab::{NONE, Slab};
use super::stripe::Slot;

const HEAT_MAX: u8 = 3;
/// Number of uses after which an entry of the small queue moves to the main queue instead of being evicted.
const HEAT_KEPT: u8 = 2;
/// Divisor for the share of the small queue: one tenth of all bytes.
const SMALL_PART: u64 = 10;

/// Queue of an entry, as recorded in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Queue {
    /// No queue: the entry is never evicted.
    #[default]
    None,
    Small,
    Main,
}

/// Use count of an entry, its queue, and a flag for an occupied slot, in one byte: a slot has no room for three fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State(u8);

impl State {
    const HEAT: u8 = 0b11;
    const QUEUE: u8 = 0b1100;
    const TAKEN: u8 = 0b1_0000;

    /// State of a new entry, which is in no queue.
    pub(super) const NEW: Self = Self(Self::TAKEN);

    pub(super) fn is_taken(self) -> bool {
        self.0 & Self::TAKEN != 0
    }

    fn heat(self) -> u8 {
        self.0 & Self::HEAT
    }

    fn set_heat(&mut self, heat: u8) {
        self.0 = self.0 & !Self::HEAT | heat & Self::HEAT;
    }

    fn queue(self) -> Queue {
        match self.0 & Self::QUEUE {
            0 => Queue::None,
            0b100 => Queue::Small,
            _ => Queue::Main,
        }
    }

    fn set_queue(&mut self, queue: Queue) {
        let bits = match queue {
            Queue::None => 0,
            Queue::Small => 0b100,
            Queue::Main => 0b1000,
        };
        self.0 = self.0 & !Self::QUEUE | bits;
    }
}

/// Order in which the entries of a stripe are evicted.
#[derive(Default)]
pub(super) struct Order {
    small: Ends,
    main: Ends,
    ghosts: Ghosts,
}

#[derive(Default)]
struct Ends {
    /// The oldest entry, which is evicted next, and the newest one.
    ends: Option<(u32, u32)>,
    bytes: u64,
    count: u32,
}

impl Order {
    /// Adds a new entry.
    pub(super) fn insert(&mut self, slots: &mut Slab<Slot>, at: u32) {
        let queue = if self.ghosts.take(slots[at].hash) { Queue::Main } else { Queue::Small };
        slots[at].state.set_heat(0);
        self.push(slots, at, queue);
    }

    /// Records a use of an entry.
    pub(super) fn touch(slot: &mut Slot) {
        slot.state.set_heat((slot.state.heat() + 1).min(HEAT_MAX));
    }

    pub(super) fn remove(&mut self, slots: &mut Slab<Slot>, at: u32) {
        let Slot { older, newer, state, .. } = slots[at];
        let bytes = slots[at].bytes();
        let Some(of_queue) = self.queue(state.queue()) else {
            return;
        };
        of_queue.bytes -= bytes;
        of_queue.count -= 1;
        of_queue.ends = of_queue.ends.and_then(|(first, last)| match (first == at, last == at) {
            (true, true) => None,
            (true, false) => Some((newer, last)),
            (false, true) => Some((first, older)),
            (false, false) => Some((first, last)),
        });
        if older != NONE {
            slots[older].newer = newer;
        }
        if newer != NONE {
            slots[newer].older = older;
        }
        slots[at].state.set_queue(Queue::None);
    }

    /// Records that the size of an entry has changed from `before` bytes.
    pub(super) fn resize(&mut self, slot: &Slot, before: u64) {
        if let Some(queue) = self.queue(slot.state.queue()) {
            queue.bytes = queue.bytes + slot.bytes() - before;
        }
    }

    /// Returns the entry to evict next, after removing it from its queue.
    pub(super) fn evict(&mut self, slots: &mut Slab<Slot>) -> Option<u32> {
        loop {
            let is_small =
                self.main.ends.is_none() || self.small.bytes * SMALL_PART > self.small.bytes + self.main.bytes;
            let (at, _) = if is_small { self.small.ends } else { self.main.ends }?;
            self.remove(slots, at);
            let heat = slots[at].state.heat();
            if is_small && heat < HEAT_KEPT {
                self.ghosts.insert(slots[at].hash, self.main.count + self.small.count);
                return Some(at);
            }
            if !is_small && heat == 0 {
                return Some(at);
            }
            slots[at].state.set_heat(if is_small { 0 } else { heat - 1 });
            self.push(slots, at, Queue::Main);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn push(&mut self, slots: &mut Slab<Slot>, at: u32, queue: Queue) {
        let bytes = slots[at].bytes();
        let of_queue = if queue == Queue::Main { &mut self.main } else { &mut self.small };
        let (first, last) = of_queue.ends.unwrap_or((at, NONE));
        of_queue.ends = Some((first, at));
        of_queue.bytes += bytes;
        of_queue.count += 1;
        if last != NONE {
            slots[last].newer = at;
        }
        let slot = &mut slots[at];
        slot.older = last;
        slot.newer = NONE;
        slot.state.set_queue(queue);
    }

    fn queue(&mut self, queue: Queue) -> Option<&mut Ends> {
        match queue {
            Queue::None => None,
            Queue::Small => Some(&mut self.small),
            Queue::Main => Some(&mut self.main),
        }
    }
}

/// Number of entries per bucket of hashes.
const WAYS: usize = 4;

/// Hashes of the entries last evicted from the small queue: about as many as there are entries, fewer after collisions.
#[derive(Default)]
struct Ghosts {
    /// Buckets, a power of two in number. Each hash is stored with its number, counted from 1; 0 marks a free place.
    buckets: Vec<[(u32, u32); WAYS]>,
    number: u32,
    /// Number of most recent hashes that are still valid.
    kept: u32,
}

impl Ghosts {
    fn insert(&mut self, hash: u32, kept: u32) {
        self.kept = kept;
        let wanted = (kept as usize / WAYS + 1).next_power_of_two();
        if self.buckets.len() < wanted {
            let old = std::mem::replace(&mut self.buckets, vec![[(0, 0); WAYS]; wanted]);
            old.into_iter()
                .flatten()
                .filter(|(_, number)| *number != 0)
                .for_each(|(hash, number)| self.put(hash, number));
        }
        self.number = self.number.wrapping_add(1).max(1);
        self.put(hash, self.number);
    }

    /// Removes a hash. Returns `true` if it was present and still valid.
    fn take(&mut self, hash: u32) -> bool {
        let number = self.number;
        let kept = self.kept;
        let Some(bucket) = self.bucket(hash) else {
            return false;
        };
        let found = bucket.iter_mut().find(|ghost| ghost.1 != 0 && ghost.0 == hash);
        let age = found.map(|ghost| number.wrapping_sub(std::mem::take(&mut ghost.1)));
        age.is_some_and(|age| age < kept)
    }

    fn put(&mut self, hash: u32, number: u32) {
        let newest = self.number;
        let oldest = self.bucket(hash).and_then(|bucket| {
            bucket
                .iter_mut()
                .max_by_key(|(_, number)| if *number == 0 { u32::MAX } else { newest.wrapping_sub(*number) })
        });
        if let Some(ghost) = oldest {
            *ghost = (hash, number);
        }
    }

    fn bucket(&mut self, hash: u32) -> Option<&mut [(u32, u32); WAYS]> {
        let mask = self.buckets.len().wrapping_sub(1);
        self.buckets.get_mut(hash as usize & mask)
    }
}
