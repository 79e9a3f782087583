//! Turns to join many partitions, and to leave them.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use crate::metrics::Exposition;

/// Maximum partitions of a broker for which a pattern joins its topics in one step, and of a subscriber that leaves
/// them so.
pub(crate) const JOINED_AT_ONCE: usize = 512;

/// Turns to join many partitions: one subscription at a time, so that other tasks of a thread wait for one slice,
/// however many clients subscribe. Further subscriptions wait in order of arrival, each with a request of its client.
pub(crate) struct Joining {
    pub(crate) turns: Semaphore,
    /// Turn of the subscriber that leaves its partitions.
    pub(crate) leaving: Semaphore,
    /// Subscriptions that join partitions or wait for their turn.
    pending: AtomicUsize,
}

impl Default for Joining {
    fn default() -> Self {
        Self { turns: Semaphore::new(1), leaving: Semaphore::new(1), pending: AtomicUsize::new(0) }
    }
}

impl Joining {
    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        out.gauge(
            "thalweg_subscriptions_joining",
            "Subscriptions of patterns that are joining many topics, or wait for their turn",
            self.pending.load(Ordering::Relaxed) as u64,
        )
    }
}

/// Counts a subscription that joins partitions or waits for its turn.
pub(crate) struct Pending<'b>(&'b Joining);

impl<'b> Pending<'b> {
    pub(crate) fn count(joining: &'b Joining) -> Self {
        joining.pending.fetch_add(1, Ordering::Relaxed);
        Self(joining)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
