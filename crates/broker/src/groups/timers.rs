//! The timers of all groups: sessions that end, offsets that expire, and topics that change.

use std::sync::Weak;
use std::time::Duration;

use engine::groups::{Group, GroupName, Reason};

use super::{Groups, Outcome, no_such_group};

/// Minimum interval between checks of the timeouts.
const TICK: Duration = Duration::from_millis(10);
/// Interval at which groups without members are checked for expired offsets.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

impl Groups {
    /// Removes members that are silent or do not release partitions in time, and updates groups whose topics have
    /// changed.
    async fn tick(&self) {
        let coordinator = &self.table;
        let (expired, is_due) = coordinator.shares.expire(self.topics(), coordinator.now()).await;
        coordinator.counts.expired_members.add(expired);
        if is_due {
            coordinator.planning.due.notify_one();
        }
        for cell in coordinator.cells() {
            let now = coordinator.now();
            let is_due = {
                let group = &cell.state.lock().group;
                group.is_outdated(&self.topics()) || group.next_deadline_ms().is_some_and(|at| at <= now.steady_ms)
            };
            if !is_due {
                continue;
            }
            let changed = self.change(&cell, false, |group| {
                group.refresh(&self.topics());
                group.expire(now)
            });
            let result = match changed.await {
                Ok(expired) => {
                    for member in &expired {
                        tracing::info!(group = %cell.name, %member, "a member was removed from its consumer group");
                    }
                    coordinator.counts.expired_members.add(expired.len() as u64);
                    coordinator.recount(&cell);
                    self.save(&cell, false).await
                }
                Err(refused) => Err(refused),
            };
            note_failure(&cell.name, result);
            // Every group may have to look at a topic.
            tokio::task::yield_now().await;
        }
    }

    /// Deletes groups that have had no members for longer than the retention of offsets.
    async fn expire(&self) {
        let coordinator = &self.table;
        let retention_ms = match self.core.settings().offsets_retention.as_millis() as u64 {
            0 => u64::MAX,
            retention_ms => retention_ms,
        };
        for cell in coordinator.cells() {
            let now = coordinator.now();
            let is_expired = |group: &Group| group.is_expired(retention_ms, now);
            if !is_expired(&cell.state.lock().group) {
                continue;
            }
            let removed =
                self.remove(&cell, |group| if is_expired(group) { Ok(()) } else { Err(no_such_group(&cell.name)) });
            let removed = removed.await;
            if removed.is_ok() {
                tracing::info!(group = %cell.name, "a consumer group without members was removed with its offsets");
            }
            note_failure(&cell.name, removed);
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let now = self.table.now().steady_ms;
        let deadlines = self.table.cells();
        let deadlines = deadlines.iter().filter_map(|cell| cell.state.lock().group.next_deadline_ms());
        let next = deadlines.chain(self.table.shares.next_deadline_ms()).min()?;
        Some(Duration::from_millis(next.saturating_sub(now)))
    }
}

/// Logs a failure of a timer, which tries again later. A deleted group is not a failure. Returns `false` for a failure.
pub(super) fn note_failure(group: &GroupName, result: Outcome) -> bool {
    match result {
        Err(refused) if refused.reason != Reason::NoSuchGroup => {
            tracing::warn!(%group, error = %refused.error, "a consumer group could not be saved");
            false
        }
        _ => true,
    }
}

/// Runs the timers of all groups for as long as the broker exists.
pub(crate) async fn keep_time(groups: Weak<Groups>) {
    let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
    let mut is_expiry_due = false;
    while let Some(groups) = groups.upgrade() {
        let changed = groups.table.changed.clone();
        let catalog = groups.core.changed_topics.notify.clone();
        let mut wait = EXPIRY_INTERVAL;
        // Until groups are restored, when clients can connect, no session ends.
        if groups.table.restored.is_done() {
            if is_expiry_due {
                groups.expire().await;
            }
            groups.tick().await;
            wait = groups.next_deadline().unwrap_or(EXPIRY_INTERVAL).min(EXPIRY_INTERVAL);
        }
        // The broker may be dropped in the meantime.
        drop(groups);
        tokio::time::sleep(TICK).await;
        is_expiry_due = tokio::select! {
            () = tokio::time::sleep(wait) => false,
            () = changed.notified() => false,
            () = catalog.notified() => false,
            _ = expiry.tick() => true,
        };
    }
}
