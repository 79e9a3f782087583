//! Times at which logins expire.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Times are rounded up to a multiple of this, so that they are few however many clients log in.
const ROUNDED_TO_MS: u64 = 250;
/// Maximum time of one wait, as the clock may be set meanwhile.
const WAIT_MAX_MS: u64 = 60_000;

/// Times in ms since 1970 at which the credential of a client that has logged in expires. There is at most one for each
/// token.
#[derive(Default)]
pub(super) struct Expiries {
    times: Mutex<BTreeSet<u64>>,
    /// Notified when an earlier time is added.
    earlier: Notify,
}

impl Expiries {
    /// Adds a time. Returns `true` if there was none: then a task has to wait for it.
    pub(super) fn add(&self, at_ms: u64) -> bool {
        let at_ms = at_ms.div_ceil(ROUNDED_TO_MS).saturating_mul(ROUNDED_TO_MS);
        let mut times = self.times.lock();
        let first = times.first().copied();
        times.insert(at_ms);
        if first.is_some_and(|first| at_ms < first) {
            self.earlier.notify_one();
        }
        first.is_none()
    }

    /// Removes the times that have passed. Returns `true` if there were any, and how long to wait for the next; `None`
    /// if there is none.
    pub(super) fn take_due(&self, now_ms: u64) -> (bool, Option<Duration>) {
        let mut times = self.times.lock();
        let later = times.split_off(&(now_ms + 1));
        let is_due = !std::mem::replace(&mut *times, later).is_empty();
        let wait = times.first().map(|first| Duration::from_millis((first - now_ms).min(WAIT_MAX_MS)));
        (is_due, wait)
    }

    /// Waits for this time, or until an earlier time is added.
    pub(super) async fn wait(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.earlier.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_due_once_and_not_early() {
        let expiries = Expiries::default();
        assert!(expiries.add(10_001) && !expiries.add(10_200) && !expiries.add(5000));
        assert_eq!(expiries.take_due(4999), (false, Some(Duration::from_millis(1))));
        assert_eq!(expiries.take_due(5000), (true, Some(Duration::from_millis(5250))));
        assert_eq!(expiries.take_due(10_249), (false, Some(Duration::from_millis(1))));
        assert_eq!(expiries.take_due(10_250), (true, None));
        assert!(expiries.add(u64::MAX), "a task is needed again");
        assert_eq!(expiries.take_due(0), (false, Some(Duration::from_millis(WAIT_MAX_MS))));
    }
}
