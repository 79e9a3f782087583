//! Refusals of new connections.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::Error;

use crate::doors::Door;
use crate::metrics::{Counter, Exposition};

/// Maximum time for which a connection over its quota stays open; Kafka's (`maxThrottleTimeMs` in `SocketServer`).
pub(super) const REFUSED_MAX: Duration = Duration::from_secs(1);

/// Refusal of a new connection. A door that can sends the error before it closes the connection.
#[derive(Clone, Debug)]
pub struct Unwelcome {
    pub closes_after: Duration,
    pub error: Error,
}

impl From<Error> for Unwelcome {
    fn from(error: Error) -> Self {
        Self { closes_after: REFUSED_MAX, error }
    }
}

/// Refusals of connections by the quotas of their addresses.
#[derive(Default)]
pub(super) struct UnwelcomeCounts {
    by_door: [Counter; Door::ALL.len()],
    /// Second since 1970 in which one was last logged.
    logged_s: AtomicU64,
}

impl UnwelcomeCounts {
    /// Counts a refusal. Returns `true` if it is to be logged: one per second is.
    pub(super) fn add(&self, door: Door, now_ms: u64) -> bool {
        self.by_door[door as usize].add(1);
        let now_s = now_ms / 1000;
        self.logged_s.swap(now_s, Ordering::Relaxed) != now_s
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let rows: Vec<_> =
            Door::ALL.iter().zip(&self.by_door).map(|(door, count)| (door.key().to_owned(), count.get())).collect();
        let help = "New connections refused because of a quota of their address";
        out.counters("thalweg_quota_connections_refused", help, "door", &rows)
    }
}
