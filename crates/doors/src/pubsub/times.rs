//! Durations and timestamps of Google's messages, in milliseconds.

use prost_types::{Duration, Timestamp};

pub(super) const SECOND_MS: u64 = 1000;
pub(super) const MINUTE_MS: u64 = 60 * SECOND_MS;
pub(super) const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

/// Maximum of a duration by its definition, about 10,000 years.
const DURATION_S_MAX: i64 = 315_576_000_000;

/// Bounds of a duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub min_ms: u64,
    pub max_ms: u64,
}

impl Bounds {
    pub fn has(self, ms: u64) -> bool {
        (self.min_ms..=self.max_ms).contains(&ms)
    }
}

/// Converts a duration; `None` if it is negative or invalid: JSON cannot express that.
pub(super) fn duration_ms(duration: &Duration) -> Option<u64> {
    let is_valid = (0..=DURATION_S_MAX).contains(&duration.seconds) && (0..1_000_000_000).contains(&duration.nanos);
    is_valid.then(|| duration.seconds as u64 * SECOND_MS + duration.nanos as u64 / 1_000_000)
}

pub(super) fn duration(ms: u64) -> Duration {
    Duration { seconds: (ms / SECOND_MS) as i64, nanos: (ms % SECOND_MS) as i32 * 1_000_000 }
}

/// Formats a duration as in JSON.
pub(super) fn shown(ms: u64) -> String {
    match ms % SECOND_MS {
        0 => format!("{}s", ms / SECOND_MS),
        rest => format!("{}.{rest:03}s", ms / SECOND_MS),
    }
}

pub(super) fn timestamp(ms: u64) -> Timestamp {
    Timestamp { seconds: (ms / SECOND_MS) as i64, nanos: (ms % SECOND_MS) as i32 * 1_000_000 }
}

/// Converts a timestamp to milliseconds since 1970; `None` if it is out of the valid range.
pub(super) fn timestamp_ms(timestamp: &Timestamp) -> Option<i64> {
    let is_valid = (-62_135_596_800..=253_402_300_799).contains(&timestamp.seconds)
        && (0..1_000_000_000).contains(&timestamp.nanos);
    is_valid.then(|| timestamp.seconds * 1000 + i64::from(timestamp.nanos) / 1_000_000)
}
