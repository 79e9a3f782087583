//! Limits on the bytes that a cache may hold, and on the bytes of all caches together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Byte limit from which stripes reserve in blocks, so that they seldom contend for its counter. A nested budget also
/// reserves from the budget that contains it.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    taken: AtomicU64,
    within: Option<Arc<Budget>>,
}

impl Budget {
    pub fn new(max: u64, within: Option<Arc<Budget>>) -> Self {
        Self { max, taken: AtomicU64::new(0), within }
    }

    pub fn max(&self) -> u64 {
        self.within.as_ref().map_or(self.max, |within| within.max().min(self.max))
    }

    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that may still be reserved.
    pub fn free(&self) -> u64 {
        let free = self.max.saturating_sub(self.taken());
        self.within.as_ref().map_or(free, |within| within.free().min(free))
    }

    fn take(&self, bytes: u64) -> bool {
        let enough = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= self.max);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_err() {
            return false;
        }
        let is_within = self.within.as_ref().is_none_or(|within| within.take(bytes));
        if !is_within {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_within
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(within) = &self.within {
            within.give_back(bytes);
        }
    }
}

/// Bytes that one stripe has reserved from its budget, and the part of them that is in use.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    /// Bytes that are reserved per step, and the reserve that is kept beyond the bytes in use.
    block: u64,
    taken: u64,
    used: u64,
}

impl Share {
    pub(super) fn new(budget: Arc<Budget>, block: u64) -> Self {
        Self { budget, block, taken: 0, used: 0 }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns `true` if there is room for `bytes` more, after reserving from the budget as needed.
    pub(super) fn has_room(&mut self, bytes: u64) -> bool {
        let missing = (self.used + bytes).saturating_sub(self.taken);
        if missing == 0 || bytes == 0 {
            return true;
        }
        // If no whole block is left, the exact number of missing bytes may still be free.
        let got = [missing.next_multiple_of(self.block), missing].into_iter().find(|bytes| self.budget.take(*bytes));
        self.taken += got.unwrap_or_default();
        got.is_some()
    }

    /// Adds bytes to those in use, even if there was no room for them.
    pub(super) fn use_more(&mut self, bytes: u64) {
        self.used += bytes;
    }

    pub(super) fn give_spare(&mut self) -> u64 {
        let spare = self.taken.saturating_sub(self.used);
        self.taken -= spare;
        self.budget.give_back(spare);
        spare
    }

    /// Exchanges the bytes with those of another stripe. Both budgets are within the same one, so the sum of all bytes
    /// does not change.
    pub(super) fn swap(&mut self, other: &mut Self) {
        for (to, more, less) in [(&self.budget, other.taken, self.taken), (&other.budget, self.taken, other.taken)] {
            to.taken.fetch_add(more, Ordering::Relaxed);
            to.taken.fetch_sub(less, Ordering::Relaxed);
        }
        std::mem::swap(&mut self.taken, &mut other.taken);
        std::mem::swap(&mut self.used, &mut other.used);
    }

    pub(super) fn use_less(&mut self, bytes: u64) {
        self.used -= bytes;
        let spare = self.taken.saturating_sub(self.used);
        if spare >= 2 * self.block {
            let back = spare - self.block;
            self.taken -= back;
            self.budget.give_back(back);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.taken);
    }
}
