//! State of a view that is restored from its log.

use std::sync::atomic::{AtomicBool, Ordering};

use engine::Result;
use tokio::sync::{Mutex, MutexGuard};

/// `true` once a view has been restored from its log. The first call that needs the view restores it, and so does the
/// first one after the view was forgotten.
#[derive(Default)]
pub(crate) struct Restored {
    is_done: AtomicBool,
    /// Held while the view is restored or forgotten.
    turn: Mutex<()>,
}

/// Right to forget a view. No call restores it in the meantime.
pub(crate) struct Forgetting<'r> {
    restored: &'r Restored,
    _turn: MutexGuard<'r, ()>,
}

impl Restored {
    /// Returns the state of a view that has to be restored if it has a log.
    pub(crate) fn unless(has_log: bool) -> Self {
        Self { is_done: AtomicBool::new(!has_log), turn: Mutex::default() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Restores the view, unless that was done. A failed attempt is repeated by the next call.
    pub(crate) async fn ensure<F: Future<Output = Result<()>>>(&self, restore: impl FnOnce() -> F) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if !self.is_done() {
            restore().await?;
            self.is_done.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) async fn forgetting(&self) -> Forgetting<'_> {
        Forgetting { restored: self, _turn: self.turn.lock().await }
    }
}

impl Forgetting<'_> {
    /// Makes the next call restore the view. The caller holds the lock of the view's table, and then empties the table.
    /// Callers that add to the table check [`Restored::is_done`] behind the same lock.
    pub(crate) fn begin(&self) {
        self.restored.is_done.store(false, Ordering::Release);
    }
}
