//! Memory budget of all logs in memory: an append needs a permit for its bytes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory budget of all logs in memory. Every append to memory writes to it, so it has its own cache lines: read-only
/// data next to it need not be fetched again each time.
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

    /// Returns a permit for bytes that a log is about to hold; `None` if they exceed the budget.
    pub fn acquire(&self, bytes: usize) -> Option<LogPermit<'_>> {
        // A durable log takes nothing, also while the logs in memory exceed the budget.
        if bytes == 0 {
            return Some(LogPermit { budget: self, bytes });
        }
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(LogPermit { budget: self, bytes })
    }

    /// Releases bytes that a log no longer holds.
    pub fn release(&self, bytes: usize) {
        // A write to shared memory costs as much as an allocation, and there is seldom anything to release.
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Permit to add bytes to a log. The bytes are released when it is dropped, unless they were spent.
pub struct LogPermit<'a> {
    budget: &'a LogBudget,
    bytes: usize,
}

impl LogPermit<'_> {
    /// Marks the bytes as held by the log; trimming the log releases them.
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
