//! Targets of groups with many members, topics and patterns: they are renewed on threads that serve no connection.

use std::sync::Weak;
use std::time::Duration;

use engine::groups::{GroupName, Plan, Planned, ShareGroup};
use engine::{Error, ErrorKind, Result};
use tokio::task::{spawn_blocking, yield_now};

use super::catalog::Topics;
use super::{Cell, Groups, Outcome};

/// Minimum interval between two passes over the groups that are due.
const TICK: Duration = Duration::from_millis(10);
/// Time after a pass in which a group could not be renewed.
const RETRY: Duration = Duration::from_secs(1);
/// Time after which it is checked whether the broker still exists.
const IDLE: Duration = Duration::from_secs(60);
/// Attempts to renew a group before a request is answered; the changes of other members can make a plan void.
const ATTEMPTS: usize = 3;

impl Groups {
    /// Returns the topics as they are now, for one change of a group.
    pub(super) fn topics(&self) -> Topics<'_> {
        Topics { core: &self.core, permissions: self.security.generation() }
    }

    /// Runs a plan. The group is not locked in the meantime.
    async fn run(&self, plan: Plan) -> Result<Planned> {
        // The semaphore is never closed.
        let turn = self.table.planning.turns.clone().acquire_owned().await.ok();
        let core = self.core.clone();
        let permissions = self.security.generation();
        let planned = spawn_blocking(move || {
            // The turn ends with the plan, even if nobody waits for it any more.
            let _turn = turn;
            plan.run(&Topics { core: &core, permissions })
        });
        planned.await.map_err(|error| {
            let message = format!("the partitions of a group could not be assigned ({error}): join again");
            Error::new(ErrorKind::ShuttingDown, message)
        })
    }

    /// Renews the targets of a group if they are due. A request that was made before this is included.
    pub(super) async fn settle(&self, cell: &Cell) -> Outcome {
        let changes = {
            let group = &cell.state.lock().group;
            if !group.is_due() {
                return Ok(());
            }
            group.changes()
        };
        let _turn = cell.planning.lock().await;
        // Those that wait for their turn are served by the plan of the first of them.
        let plan = {
            let group = &cell.state.lock().group;
            if group.is_due_since(changes) { group.plan() } else { None }
        };
        let Some(plan) = plan else {
            return Ok(());
        };
        let mut planned = self.run(plan).await?;
        // What the group no longer needs is dropped without its lock.
        self.change(cell, false, |group| group.apply(&mut planned)).await
    }

    /// Renews the targets of a group whose subscriptions were never compared with the topics, since it was restored.
    pub(super) async fn resolve(&self, cell: &Cell) -> Outcome {
        for _ in 0..ATTEMPTS {
            if cell.state.lock().group.is_resolved() {
                break;
            }
            self.settle(cell).await?;
        }
        Ok(())
    }

    /// Renews the targets of a share group if they are due.
    pub(super) async fn settle_share_group(&self, name: &GroupName) -> Outcome {
        let shares = &self.table.shares;
        let changes = shares.groups.lock().get(name).filter(|group| group.is_due()).map(ShareGroup::changes);
        let Some(changes) = changes else {
            return Ok(());
        };
        let _turn = shares.planning.lock().await;
        let plan = {
            let groups = shares.groups.lock();
            groups.get(name).filter(|group| group.is_due_since(changes)).and_then(ShareGroup::plan)
        };
        let Some(plan) = plan else {
            return Ok(());
        };
        let mut planned = self.run(plan).await?;
        // A group that has left the table and returned has nothing of this plan: that is void then.
        if let Some(group) = shares.groups.lock().get_mut(name) {
            group.apply(&mut planned);
        }
        Ok(())
    }

    /// Renews the targets of all groups that are due. Returns `false` if one could not be renewed.
    async fn settle_all(&self) -> bool {
        let mut is_done = true;
        for cell in self.table.cells() {
            if cell.state.lock().group.is_due() {
                is_done &= super::timers::note_failure(&cell.name, self.settle(&cell).await);
                yield_now().await;
            }
        }
        for name in self.table.shares.due() {
            is_done &= super::timers::note_failure(&name, self.settle_share_group(&name).await);
            yield_now().await;
        }
        is_done
    }

    fn has_due(&self) -> bool {
        self.table.cells().iter().any(|cell| cell.state.lock().group.is_due()) || !self.table.shares.due().is_empty()
    }
}

/// Renews targets for as long as the broker exists.
pub(crate) async fn keep_targets(groups: Weak<Groups>) {
    let Some(due) = groups.upgrade().map(|groups| groups.table.planning.due.clone()) else {
        return;
    };
    loop {
        // It also ends some time after the broker is dropped.
        tokio::time::timeout(IDLE, due.notified()).await.unwrap_or_default();
        loop {
            let Some(groups) = groups.upgrade() else {
                return;
            };
            let is_done = groups.settle_all().await;
            if !groups.has_due() {
                break;
            }
            // The broker may be dropped in the meantime.
            drop(groups);
            tokio::time::sleep(if is_done { TICK } else { RETRY }).await;
        }
    }
}
