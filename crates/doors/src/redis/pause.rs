//! `CLIENT PAUSE`: for some time no commands, or no writing commands, are executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use broker::Clock;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Pause {
    /// End of the pause in ms since 1970; 0 if there was none.
    until_ms: AtomicU64,
    /// `true` if all commands wait, not only those that write.
    is_all: AtomicBool,
    changed: Notify,
    clock: Clock,
}

impl Pause {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Pauses clients. A pause that is active is neither shortened nor weakened, as in Redis.
    pub(super) fn begin(&self, until_ms: u64, is_all: bool) {
        if !self.is_on() {
            self.until_ms.store(0, Ordering::Release);
            self.is_all.store(false, Ordering::Release);
        }
        self.is_all.fetch_or(is_all, Ordering::AcqRel);
        self.until_ms.fetch_max(until_ms, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    pub(super) fn end(&self) {
        self.until_ms.store(0, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Returns `true` if a command has to wait. Calls `is_write` only during a pause for writes.
    #[inline]
    pub(super) fn holds(&self, is_write: impl FnOnce() -> bool) -> bool {
        self.until_ms.load(Ordering::Relaxed) != 0
            && self.is_on()
            && (self.is_all.load(Ordering::Acquire) || is_write())
    }

    fn is_on(&self) -> bool {
        self.clock.now_ms() < self.until_ms.load(Ordering::Acquire)
    }

    /// Waits for the end of the pause.
    pub(super) async fn over(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let left_ms = self.until_ms.load(Ordering::Acquire).saturating_sub(self.clock.now_ms());
            if left_ms == 0 {
                return;
            }
            // Both the timeout and a change of the pause lead to another check.
            drop(tokio::time::timeout(Duration::from_millis(left_ms), changed).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_of_writes_or_of_all_and_never_made_weaker() {
        let pause = Pause::default();
        assert!(!pause.holds(|| true));
        let far = Clock::SYSTEM.now_ms() + 1_000_000;
        pause.begin(far, false);
        assert!(pause.holds(|| true) && !pause.holds(|| false));
        pause.begin(far - 10, true);
        assert!(pause.holds(|| false));
        pause.begin(Clock::SYSTEM.now_ms() + 1, false);
        assert!(pause.holds(|| false));
        pause.end();
        assert!(!pause.holds(|| true));
        pause.begin(far, false);
        assert!(!pause.holds(|| false), "one that is over says nothing of the next");
    }
}
