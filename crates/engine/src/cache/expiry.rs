//! Timer wheel for the expiry of entries. Setting, changing and dropping a timer costs the same for any number of
//! timers.
//!
//! The wheel only finds the entries that may be removed now. The expiry time of an entry, exact to the millisecond,
//! decides whether the entry has expired.

use super::slab::{NONE, Slab};

/// Length of a tick, the unit of the innermost ring, in ms.
const TICK_MS: u64 = 16;
const RING: u64 = 64;
/// Number of rings. Each turns once while the next one moves by one place: 1 s, 65 s, 70 min, 3 days. Later timers wait
/// in the last place of the last ring and are placed again when its turn comes.
const RINGS: usize = 4;

/// Timers of the entries of a stripe that expire.
pub(super) struct Expiry {
    timers: Slab<Timer>,
    /// First timer of each place, the innermost ring first. Allocated with the first timer.
    heads: Box<[u32]>,
    /// Bit set per ring of the places that have timers.
    occupied: [u64; RINGS],
    /// First tick that is not finished: all timers that were due before it have been returned.
    tick: u64,
    count: u32,
    /// Sum of all expiry times, in ms.
    sum_ms: u128,
}

#[derive(Default)]
struct Timer {
    at_ms: u64,
    entry: u32,
    previous: u32,
    next: u32,
    place: u16,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { timers: Slab::default(), heads: Box::default(), occupied: [0; RINGS], tick: 0, count: 0, sum_ms: 0 }
    }
}

impl Expiry {
    /// Sets a timer for an entry and returns its number.
    pub(super) fn set(&mut self, entry: u32, at_ms: u64, now_ms: u64) -> u32 {
        if self.heads.is_empty() {
            self.heads = no_heads();
        }
        if self.count == 0 {
            self.tick = now_ms / TICK_MS;
        }
        let timer = self.timers.insert(Timer { at_ms, entry, previous: NONE, next: NONE, place: 0 });
        self.count += 1;
        self.sum_ms += u128::from(at_ms);
        self.link(timer);
        timer
    }

    pub(super) fn at_ms(&self, timer: u32) -> u64 {
        self.timers[timer].at_ms
    }

    pub(super) fn change(&mut self, timer: u32, at_ms: u64) {
        self.unlink(timer);
        let before_ms = std::mem::replace(&mut self.timers[timer].at_ms, at_ms);
        self.sum_ms = self.sum_ms - u128::from(before_ms) + u128::from(at_ms);
        self.link(timer);
    }

    pub(super) fn drop_timer(&mut self, timer: u32) {
        self.unlink(timer);
        let dropped = self.timers.remove(timer);
        self.count -= 1;
        self.sum_ms -= u128::from(dropped.at_ms);
    }

    /// Returns the number of timers and the sum of their times in ms.
    pub(super) fn sum(&self) -> (u64, u128) {
        (u64::from(self.count), self.sum_ms)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns an expired entry, if there is one, at most one tick late. The entry is returned again until its timer is
    /// dropped.
    pub(super) fn due(&mut self, now_ms: u64) -> Option<u32> {
        let now = now_ms / TICK_MS;
        if now + RING < self.tick {
            self.turn_back(now);
        }
        while self.count > 0 && self.tick < now {
            let head = self.heads[place_in(self.tick, 0) as usize];
            if head != NONE {
                return Some(self.timers[head].entry);
            }
            self.tick = self.next_occupied().min(now);
            self.turn();
        }
        None
    }

    /// Returns an entry of the earliest occupied place: its expiry time is about the nearest of all.
    pub(super) fn first(&self) -> Option<u32> {
        (0..RINGS).find_map(|ring| {
            // The place of the current tick in an outer ring holds timers of the next turn.
            let at = place_in(self.tick, ring) + u64::from(ring > 0);
            let ahead = self.occupied[ring].rotate_right(at as u32);
            let place = (ahead != 0).then(|| (at + u64::from(ahead.trailing_zeros())) % RING)?;
            Some(self.timers[self.heads[ring * RING as usize + place as usize]].entry)
        })
    }

    /// Returns the next tick at which a place with timers begins.
    fn next_occupied(&self) -> u64 {
        let of_ring = |ring: usize| {
            let span = RING.pow(ring as u32);
            // The place of the current tick is finished: its timers belong to the next turn.
            let turn = self.tick / span + 1;
            let ahead = self.occupied[ring].rotate_right((turn % RING) as u32);
            (ahead != 0).then(|| (turn + u64::from(ahead.trailing_zeros())) * span)
        };
        (0..RINGS).filter_map(of_ring).min().unwrap_or(u64::MAX)
    }

    /// Moves the timers of the outer rings whose time begins with this tick to the inner rings.
    fn turn(&mut self) {
        for ring in (1..RINGS).rev() {
            if self.tick.is_multiple_of(RING.pow(ring as u32)) {
                let place = ring * RING as usize + place_in(self.tick, ring) as usize;
                self.occupied[ring] &= !(1 << (place as u64 % RING));
                let head = std::mem::replace(&mut self.heads[place], NONE);
                self.link_all(head);
            }
        }
    }

    /// Sets the wheel back after the clock was set back: due timers are placed again for the time that repeats.
    fn turn_back(&mut self, tick: u64) {
        let heads = std::mem::replace(&mut self.heads, no_heads());
        self.tick = tick;
        self.occupied = [0; RINGS];
        heads.into_iter().for_each(|head| self.link_all(head));
    }

    fn link_all(&mut self, mut timer: u32) {
        while timer != NONE {
            let next = self.timers[timer].next;
            self.link(timer);
            timer = next;
        }
    }

    fn link(&mut self, timer: u32) {
        let due = (self.timers[timer].at_ms / TICK_MS).max(self.tick);
        let wait = due - self.tick;
        let ring = (0..RINGS - 1).find(|ring| wait < RING.pow(*ring as u32 + 1)).unwrap_or(RINGS - 1);
        let due = due.min(self.tick + (RING - 1) * RING.pow(ring as u32));
        let place = (ring as u64 * RING + place_in(due, ring)) as usize;
        let head = std::mem::replace(&mut self.heads[place], timer);
        if head != NONE {
            self.timers[head].previous = timer;
        }
        let linked = &mut self.timers[timer];
        linked.previous = NONE;
        linked.next = head;
        linked.place = place as u16;
        self.occupied[ring] |= 1 << (place as u64 % RING);
    }

    fn unlink(&mut self, timer: u32) {
        let Timer { previous, next, place, .. } = self.timers[timer];
        if next != NONE {
            self.timers[next].previous = previous;
        }
        if previous != NONE {
            self.timers[previous].next = next;
            return;
        }
        self.heads[place as usize] = next;
        if next == NONE {
            self.occupied[place as usize / RING as usize] &= !(1 << (u64::from(place) % RING));
        }
    }
}

fn no_heads() -> Box<[u32]> {
    vec![NONE; RINGS * RING as usize].into()
}

/// Returns the place of a ring that contains a tick.
fn place_in(tick: u64, ring: usize) -> u64 {
    tick / RING.pow(ring as u32) % RING
}
