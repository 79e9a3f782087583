//! Clocks of nodes.

use consensus::Time;

/// Clock of a node, whose rate differs from the true one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Time,
    /// Rate in parts of a thousand.
    rate: u64,
}

impl Clock {
    pub fn new(origin: Time, rate: u64) -> Self {
        Self { origin, rate }
    }

    pub fn at(self, now: Time) -> Time {
        self.origin + now / 1000 * self.rate + now % 1000 * self.rate / 1000
    }

    /// Returns how long a span of this clock takes.
    pub fn span(self, span: Time) -> Time {
        span * 1000 / self.rate
    }
}
