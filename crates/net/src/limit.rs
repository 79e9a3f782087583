//! Permits: what is not held cannot be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many connections may be open at once.
pub struct ConnectionLimit {
    max: usize,
    open: AtomicUsize,
    refused: AtomicU64,
}

impl ConnectionLimit {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// A permit for one connection, or `None` at the limit.
    pub fn acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let taken =
            self.open.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |open| (open < self.max).then_some(open + 1));
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(ConnectionPermit { limit: self.clone() })
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub fn max(&self) -> usize {
        self.max
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// The right to one open connection, given back when it is dropped.
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_limit_and_a_dropped_permit_comes_back() {
        let limit = ConnectionLimit::new(2);
        let first = limit.acquire();
        let second = limit.acquire();
        assert!(first.is_some() && second.is_some());
        assert!(limit.acquire().is_none());
        assert_eq!((limit.open(), limit.refused()), (2, 1));
        drop(first);
        assert!(limit.acquire().is_some());
    }
}
