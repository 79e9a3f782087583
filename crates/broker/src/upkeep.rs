//! The periodic work of a broker on all topics: retention, stored bytes of tenants, records that queues have not
//! examined, and expired snapshots.

use std::sync::Weak;
use std::time::Duration;

use crate::queues::Queues;

/// Time between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Applies retention by time for as long as the broker exists.
pub async fn sweep_retention(queues: Weak<Queues>) {
    // A broker that is opened only to be closed again does not wait for a first sweep.
    let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        let Some(trimmed) = queues.upgrade() else {
            return;
        };
        let now_ms = trimmed.core.now_ms();
        trimmed.wake_receivers(now_ms);
        // Topics in a database are read from its file. The broker may end in the meantime.
        if let Err(error) = tokio::task::spawn_blocking(move || trimmed.trim_all(now_ms)).await {
            tracing::error!(%error, "retention could not be applied");
        }
        if let Some(queues) = queues.upgrade() {
            queues.look_through_all().await;
            if let Err(error) = queues.expire_snapshots(queues.core.now_ms()).await {
                tracing::warn!(%error, "snapshots of queues could not be checked");
            }
        }
    }
}

impl Queues {
    /// Removes what retention no longer covers, and what all queues over a topic have acknowledged. Records that
    /// queues may still need stay until the queues are restored.
    pub(crate) fn trim_all(&self, now_ms: u64) {
        self.core.trim_logs(now_ms, self.are_known(), self.has_restored());
        self.core.measure_tenants();
        self.core.backups().end_idle();
    }
}
