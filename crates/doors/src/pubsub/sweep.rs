//! Periodic deletion of expired subscriptions and snapshots.

use std::sync::Weak;
use std::time::Duration;

use net::Drain;

use super::errors::Result;
use super::map::Door;
use super::names::Kind;
use super::snapshots;
use super::subscriptions::is_own;
use super::times::duration_ms;

/// Interval of the sweeps. The shortest lifetime is an hour.
const EVERY: Duration = Duration::from_secs(600);

pub(super) async fn run(door: Weak<Door>, mut drain: Drain) {
    let Some(started_ms) = door.upgrade().map(|door| door.broker.now_ms()) else {
        return;
    };
    while drain.or_begun(tokio::time::sleep(EVERY)).await.is_some() {
        let Some(door) = door.upgrade() else {
            return;
        };
        if let Some(Err(failure)) = drain.or_begun(sweep(&door, started_ms)).await {
            tracing::warn!(%failure, "cannot delete expired subscriptions; retrying");
        }
    }
}

async fn sweep(door: &Door, started_ms: u64) -> Result<()> {
    snapshots::sweep(door).await?;
    let (queues, _) = door.broker.queues.list("", "", usize::MAX, |_| true).await?;
    door.forget_others(&queues.iter().map(|queue| queue.id).collect());
    for queue in queues {
        // A queue of another door has no expiration policy.
        if !is_own(&queue) || door.streams.is_open(queue.name.as_str()) {
            continue;
        }
        let policy = door.subscription_of(&queue)?.expiration_policy;
        let Some(life_ms) = policy.and_then(|policy| policy.ttl).as_ref().and_then(duration_ms) else {
            continue;
        };
        let used_ms = door.active_ms(&queue).max(queue.altered_ms).max(started_ms);
        if used_ms.saturating_add(life_ms) < door.broker.now_ms() {
            let name = door.names.outer(Kind::Subscription, queue.name.as_str());
            tracing::info!(subscription = %name, "deleting a subscription that was not used for its time to live");
            door.remove_subscription(&name).await?;
        }
    }
    Ok(())
}
