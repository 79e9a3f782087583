//! Turns of plans that renew the targets of groups.

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};

/// Maximum number of plans that run at the same time, of all groups.
const PLANS_AT_ONCE: usize = 2;

/// Turns of plans.
pub(super) struct Planning {
    pub(super) turns: Arc<Semaphore>,
    /// Notified when a group has become due.
    pub(super) due: Arc<Notify>,
}

impl Default for Planning {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(PLANS_AT_ONCE)), due: Arc::default() }
    }
}
