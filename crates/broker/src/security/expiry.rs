//! Times at which logins expire.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Times are rounded up to a multiple of this, so that they are few however many clients log in.
const ROUNDED_TO_MS: u64 = 250;
/// Maximum time of one wait, as the clock may be set meanwhile.
const WAIT_MAX_MS: u64 = 60_000;

/// Maximum number of times. While there are more, they are not kept one by one: some time is due each second.
const TIMES_MAX: usize = 16_384;
const EACH_SECOND: Duration = Duration::from_secs(1);

/// Times in ms since 1970 at which the credential of a client that has logged in expires.
#[derive(Default)]
pub(super) struct Expiries {
    times: Mutex<Times>,
    /// Notified when an earlier time is added.
    earlier: Notify,
}

#[derive(Default)]
struct Times {
    kept: BTreeSet<u64>,
    /// The latest of the times that are not kept.
    others: Option<u64>,
}

impl Expiries {
    /// Adds a time. Returns `true` if there was none: then a task has to wait for it.
    pub(super) fn add(&self, at_ms: u64) -> bool {
        let at_ms = at_ms.div_ceil(ROUNDED_TO_MS).saturating_mul(ROUNDED_TO_MS);
        let Times { kept, others } = &mut *self.times.lock();
        let was_empty = kept.is_empty() && others.is_none();
        let is_earlier = kept.first().is_some_and(|first| at_ms < *first);
        if kept.len() < TIMES_MAX || kept.contains(&at_ms) {
            kept.insert(at_ms);
        } else {
            *others = (*others).max(Some(at_ms));
        }
        if is_earlier || others.is_some() {
            self.earlier.notify_one();
        }
        was_empty
    }

    /// Removes the times that have passed. Returns `true` if there may have been any, and how long to wait for the
    /// next; `None` if there is none.
    pub(super) fn take_due(&self, now_ms: u64) -> (bool, Option<Duration>) {
        let Times { kept, others } = &mut *self.times.lock();
        let later = kept.split_off(&now_ms.saturating_add(1));
        let is_due = !std::mem::replace(kept, later).is_empty() || others.is_some();
        *others = others.filter(|last| *last > now_ms);
        let wait = kept.first().map(|first| Duration::from_millis((first - now_ms).min(WAIT_MAX_MS)));
        let wait = if others.is_some() { Some(wait.unwrap_or(EACH_SECOND).min(EACH_SECOND)) } else { wait };
        (is_due, wait)
    }

    /// Returns the number of times that are kept.
    pub(super) fn len(&self) -> usize {
        self.times.lock().kept.len()
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

    #[test]
    fn times_beyond_the_limit_are_due_each_second() {
        let expiries = Expiries::default();
        for at in 1..=TIMES_MAX as u64 {
            expiries.add(1_000_000 + at * ROUNDED_TO_MS);
        }
        assert!(!expiries.take_due(0).0);
        expiries.add(5000);
        assert_eq!(expiries.len(), TIMES_MAX);
        for now_ms in [1000, 2000, 4999] {
            assert_eq!(expiries.take_due(now_ms), (true, Some(EACH_SECOND)), "{now_ms}");
        }
        assert_eq!(expiries.take_due(5000), (true, Some(Duration::from_millis(WAIT_MAX_MS))));
        assert!(!expiries.take_due(5001).0);
    }
}
