//! Limits of the bytes per second between this site and another one.
//!
//! Records that exceed a limit wait in the log of their topic at the site that publishes them: a forward or a copy that
//! sends them waits, or a stream is not read, so that its window stops the sender. Nothing is dropped, and no other
//! site waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::security::charged_until;
use parking_lot::Mutex;

/// Token bucket of the bytes in one direction. It holds those of a second.
pub(crate) struct Limit {
    /// Bytes per second; 0 for no limit.
    rate: u64,
    began: Instant,
    /// Time in ns since `began` until which the bucket is in debt.
    until_ns: Mutex<u64>,
    /// Time in ns for which records have waited.
    waited_ns: AtomicU64,
}

impl Limit {
    pub fn new(rate: u64) -> Self {
        Self { rate, began: Instant::now(), until_ns: Mutex::new(0), waited_ns: AtomicU64::new(0) }
    }

    /// Takes bytes, and waits until the bucket has no debt.
    pub async fn take(&self, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let debt = self.charge(self.now_ns(), bytes);
        if !debt.is_zero() {
            tokio::time::sleep(debt).await;
            self.waited_ns.fetch_add(u64::try_from(debt.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Returns the time for which records have waited, in ms.
    pub fn waited_ms(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed) / 1_000_000
    }

    fn charge(&self, now_ns: u64, bytes: u64) -> Duration {
        let mut until_ns = self.until_ns.lock();
        *until_ns = charged_until(*until_ns, now_ns, bytes, self.rate as f64);
        Duration::from_nanos(until_ns.saturating_sub(now_ns))
    }

    fn now_ns(&self) -> u64 {
        // The bucket is full when it is new.
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_the_rate_is_free_and_what_follows_waits() {
        let limit = Limit::new(1000);
        let second_ns = 1_000_000_000;
        assert_eq!(limit.charge(second_ns, 1000), Duration::ZERO);
        assert_eq!(limit.charge(second_ns, 500), Duration::from_millis(500));
        assert_eq!(limit.charge(second_ns * 2, 100), Duration::ZERO, "half a second was paid off");
        assert_eq!(limit.charge(second_ns * 2, 1000), Duration::from_millis(600));
        assert_eq!(limit.charge(second_ns * 60, 1000), Duration::ZERO, "it holds no more than a second");
        assert_eq!(limit.charge(second_ns * 60, 1000), Duration::from_secs(1));
    }

    #[tokio::test]
    async fn without_a_limit_nothing_waits() {
        let limit = Limit::new(0);
        limit.take(u64::MAX).await;
        assert_eq!(limit.waited_ms(), 0);
    }
}
