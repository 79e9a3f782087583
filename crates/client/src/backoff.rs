//! Backoff between attempts: pauses grow, and are random so that clients do not retry in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const MAX: Duration = Duration::from_secs(2);

/// Backoff with full jitter: each pause is drawn between zero and a bound that doubles.
pub(crate) struct Backoff {
    bound: Duration,
    random: RandomState,
    tries: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { bound: FIRST, random: RandomState::new(), tries: 0 }
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.tries += 1;
        // A hasher has random keys, which is enough randomness here.
        let draw = self.random.hash_one(self.tries) as f64 / u64::MAX as f64;
        let wait = self.bound.mul_f64(draw);
        self.bound = (self.bound * 2).min(MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..100).map(|_| backoff.next()).collect();
        assert!(waits[0] <= FIRST && waits.iter().all(|wait| *wait <= MAX));
        assert!(waits[20..].iter().max() > Some(&(MAX / 2)));
        assert_ne!(waits[50], waits[51]);
    }
}
