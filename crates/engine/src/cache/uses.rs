//! Last use and use frequency of entries, for `OBJECT IDLETIME` and `OBJECT FREQ` of Redis.
//!
//! Both are in four bytes of a slot, as in Redis: the second of the last use, and a counter that grows with the
//! logarithm of the uses and decreases by one for each minute without any.

/// Mask for the seconds of a last use: they wrap after 194 days.
const SECONDS: u32 = 0x00ff_ffff;
/// Counter of a new entry, so that it is not among the least used entries (Redis: `LFU_INIT_VAL`).
const FIRST: u8 = 5;
/// Factor that slows the counter: it grows with the probability 1 / (`LOG_FACTOR` * steps above the initial value + 1)
/// (Redis: `lfu-log-factor`).
const LOG_FACTOR: u32 = 10;
/// Seconds without a use after which the counter decreases by one (Redis: `lfu-decay-time`, in minutes).
const DECAY_S: u32 = 60;
/// Limit for a last use in the future, in seconds. Up to this limit the entry was just used: the clock was set back
/// since.
const AHEAD_S: u32 = 3600;

/// Last use of an entry: its second, shifted by eight bits, and the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used(u32);

/// Uses of an entry, relative to the clock of its stripe.
#[derive(Clone, Copy, Debug)]
pub struct Uses {
    used: Used,
    second: u32,
}

impl Uses {
    /// Returns the number of seconds since the last use.
    pub fn idle_s(self) -> u32 {
        self.used.idle_at(self.second)
    }

    /// Returns the logarithm of the number of recent uses, from 0 to 255.
    pub fn frequency(self) -> u8 {
        self.used.frequency_at(self.second)
    }
}

impl Used {
    fn new(second: u32, count: u8) -> Self {
        Self(second << 8 | u32::from(count))
    }

    fn idle_at(self, second: u32) -> u32 {
        let idle = second.wrapping_sub(self.0 >> 8) & SECONDS;
        if idle > SECONDS - AHEAD_S { 0 } else { idle }
    }

    fn frequency_at(self, second: u32) -> u8 {
        let minutes = self.idle_at(second) / DECAY_S;
        (self.0 as u8).saturating_sub(u8::try_from(minutes).unwrap_or(u8::MAX))
    }
}

fn second_of(ms: u64) -> u32 {
    (ms / 1000) as u32 & SECONDS
}

/// Clock of a stripe, which its owner moves, and the state of its random numbers.
pub(super) struct Clock {
    second: u32,
    random: u32,
}

impl Clock {
    pub(super) fn new(now_ms: u64) -> Self {
        // The state of Xorshift must not be zero.
        Self { second: second_of(now_ms), random: now_ms as u32 | 1 }
    }

    pub(super) fn tick(&mut self, now_ms: u64) {
        self.second = second_of(now_ms);
    }

    pub(super) fn uses(&self, used: Used) -> Uses {
        Uses { used, second: self.second }
    }

    pub(super) fn first_use(&self) -> Used {
        Used::new(self.second, FIRST)
    }

    #[inline]
    pub(super) fn touch(&mut self, used: &mut Used) {
        let count = used.frequency_at(self.second);
        let is_counted = count < u8::MAX && {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 17;
            self.random ^= self.random << 5;
            let above = u32::from(count.saturating_sub(FIRST));
            self.random <= u32::MAX / (above * LOG_FACTOR + 1)
        };
        *used = Used::new(self.second, count + u8::from(is_counted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 3_600_000;

    fn at(clock: &mut Clock, used: Used, now_ms: u64) -> Uses {
        clock.tick(now_ms);
        clock.uses(used)
    }

    #[test]
    fn idle_time_is_counted_from_the_last_use_and_survives_the_wrap() {
        let mut clock = Clock::new(5_000);
        let mut used = clock.first_use();
        assert_eq!(at(&mut clock, used, 5_000).idle_s(), 0);
        assert_eq!(at(&mut clock, used, 65_999).idle_s(), 60);
        clock.tick(100 * DAY_MS);
        clock.touch(&mut used);
        assert_eq!(at(&mut clock, used, 100 * DAY_MS + 7_000).idle_s(), 7);
        // 2^24 seconds are 194 days.
        clock.tick(194 * DAY_MS);
        clock.touch(&mut used);
        assert_eq!(at(&mut clock, used, 195 * DAY_MS).idle_s(), 86_400);
        // After the clock was set back, a recent use must not look old.
        assert_eq!(at(&mut clock, used, 194 * DAY_MS - 1_000).idle_s(), 0);
    }

    /// Redis documents for `lfu-log-factor 10`: 100 hits yield a counter of about 10, a million yield 255.
    #[test]
    fn frequency_grows_with_the_logarithm_of_uses_and_falls_by_the_minute() {
        let begin_ms = 1_700_000_000_000;
        let mut clock = Clock::new(begin_ms);
        let mut used = clock.first_use();
        assert_eq!(clock.uses(used).frequency(), FIRST);
        clock.touch(&mut used);
        assert_eq!(clock.uses(used).frequency(), FIRST + 1, "the first use counts always");
        (1..100).for_each(|_| clock.touch(&mut used));
        assert!((7..=16).contains(&clock.uses(used).frequency()), "{used:?}");
        (100..1_000_000).for_each(|_| clock.touch(&mut used));
        let many = clock.uses(used).frequency();
        assert!(many > 200, "{used:?}");
        assert_eq!(at(&mut clock, used, begin_ms + 185_000).frequency(), many - 3);
        assert_eq!(at(&mut clock, used, begin_ms + 60_000_000).frequency(), 0);
    }
}
