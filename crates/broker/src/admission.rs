//! What the logs in memory may hold together: nothing is appended without a permit for its bytes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget of all logs in memory. Every append there writes to it, so it has a cache line of its own: what is only
/// read need not be fetched anew for that.
#[derive(Debug)]
#[repr(align(128))]
pub struct LogBudget {
    max: usize,
    used: AtomicUsize,
}

impl LogBudget {
    pub fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub fn max(&self) -> usize {
        self.max
    }

    /// A permit for bytes that a log is about to hold.
    pub fn acquire(&self, bytes: usize) -> Option<LogPermit<'_>> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(LogPermit { budget: self, bytes })
    }

    /// Bytes that a log no longer holds.
    pub fn release(&self, bytes: usize) {
        // What threads share costs as much as an allocation, and most often there is nothing to give back.
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// The right to put bytes into a log, given back unless they were put there.
pub struct LogPermit<'a> {
    budget: &'a LogBudget,
    bytes: usize,
}

impl LogPermit<'_> {
    /// The bytes are in the log now; whoever trims it releases them.
    pub fn spend(mut self) {
        self.bytes = 0;
    }
}

impl Drop for LogPermit<'_> {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spent_bytes_stay_and_unspent_ones_come_back() {
        let budget = LogBudget::new(10);
        assert!(budget.acquire(11).is_none());
        drop(budget.acquire(10));
        assert_eq!(budget.used(), 0);
        budget.acquire(6).expect("fits").spend();
        assert!(budget.acquire(5).is_none());
        budget.release(6);
        assert!(budget.acquire(10).is_some());
    }
}
