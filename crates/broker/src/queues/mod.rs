//! Queue operations: sending messages to their topics, and leasing, acknowledging and returning them.
//!
//! A queue over a partition is a view that lives behind the partition's lock, as the subscribers do: an appended record
//! is available to it in the same moment. A waiting receiver is woken by the append, or by the lease or delay that ends
//! first. One of the waiting receivers watches that time for all of them.

mod acquire;
mod bind;
mod dead;
mod definitions;
mod document_table;
mod documents;
mod near;
mod notes;
mod receipt;
mod receipt_key;
mod receive;
mod redrives;
mod restore;
mod send;
mod snapshots;
mod status;
mod traced;

#[cfg(test)]
mod acquire_tests;
#[cfg(test)]
mod examined_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transaction_tests;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::queue::{QueueName, QueueRecord};
use engine::{Error, Result};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::OnceCell;

use self::document_table::DocumentTable;
use crate::core::Core;
use crate::metrics::Counter;
use crate::restored::Restored;
use crate::state_log::StateLog;
use crate::tenant_quotas::ByTenant;
use crate::topic::Topic;
use crate::view::QueueCell;

pub use acquire::{AcquireFrom, AcquireLimits, Acquired, QueuePosition, Settlement};
pub use definitions::{NewQueue, QueueStart};
pub use receive::{RECEIVE_MAX, Receive};
pub use redrives::{Redrive, RedriveId, RedriveState};
pub use send::{OutMessage, SEND_MAX, SendAnswers, Sent};
pub use status::{PEEK_MAX, Peeked, QueueCounts, SeekTo};

/// Definitions of queues, the state of their messages, and documents.
const QUEUES: StateLog<QueueRecord> = StateLog::new();
/// Maximum number of queues of one broker.
pub const QUEUES_MAX: usize = 65_536;
/// Maximum number of partitions of all queues, each counted for each queue over its topic. A queue takes about 800
/// bytes for each of its partitions.
const QUEUE_PARTITIONS_MAX: usize = 262_144;

/// Queues in the order of their names, in which they are listed page by page. A call finds its queue in [`near`] first.
type ByName = BTreeMap<QueueName, Arc<QueueCell>>;

/// All queues, counted by the tenants of their names.
#[derive(Default)]
struct QueueTable {
    all: ByName,
    by_tenant: ByTenant,
}

impl Deref for QueueTable {
    type Target = ByName;

    fn deref(&self) -> &ByName {
        &self.all
    }
}

impl QueueTable {
    fn insert(&mut self, name: QueueName, cell: Arc<QueueCell>) {
        if !self.all.contains_key(&name) {
            self.by_tenant.add(name.as_str());
        }
        self.all.insert(name, cell);
    }

    fn remove(&mut self, name: &str) -> Option<Arc<QueueCell>> {
        let cell = self.all.remove(name)?;
        self.by_tenant.remove(name);
        Some(cell)
    }
}

/// All queues, and the documents that are in their log.
pub struct Queues {
    pub(crate) core: Arc<Core>,
    by_name: RwLock<QueueTable>,
    /// Number of views of all queues: each has one of each partition of its topic.
    views: Arc<AtomicUsize>,
    near: near::Near,
    pub(crate) documents: RwLock<DocumentTable>,
    /// Done once all queues have been read from their topic.
    restored: Restored,
    /// Held during the creation, change or deletion of a queue or a document.
    control: Arc<tokio::sync::Mutex<()>>,
    /// Key with which receipts are sealed; set before the first queue exists.
    receipt_key: OnceCell<receipt_key::ReceiptKey>,
    redrives: redrives::Redrives,
    pub(crate) events: QueueEvents,
}

/// Counters of message events, over all queues.
#[derive(Default)]
pub(crate) struct QueueEvents {
    pub(crate) sent: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) received: Counter,
    pub(crate) acked: Counter,
    pub(crate) returned: Counter,
    pub(crate) dead: Counter,
    pub(crate) refused: Counter,
}

impl Queues {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            by_name: RwLock::default(),
            views: Arc::default(),
            near: near::Near::default(),
            documents: RwLock::default(),
            restored: Restored::default(),
            control: Arc::default(),
            receipt_key: OnceCell::new(),
            redrives: redrives::Redrives::default(),
            events: QueueEvents::default(),
        }
    }
}

impl Queues {
    /// Returns the error for a queue that was not found: it does not exist, or the queues were forgotten since the
    /// caller waited for them.
    fn no_such_queue(&self, name: &str) -> Error {
        let queues = self.by_name.read();
        if !self.has_restored() || queues.contains_key(name) {
            return Error::busy(format!("queue '{name}' is being restored: try again"));
        }
        let names = queues.keys().filter(|name| !name.is_internal()).map(QueueName::as_str);
        match self.core.suggestions.nearest(self.core.now_ms(), name, names) {
            Some(nearest) => Error::not_found(format!(
                "there is no queue {name}; did you mean {nearest}? Otherwise create it, or list the existing queues"
            )),
            None => Error::not_found(format!("there is no queue {name}; create it, or list the existing queues")),
        }
    }
}

/// Refuses names that are reserved for internal queues, as if no such queue existed.
fn check_users(name: &str) -> Result<()> {
    if QueueName::is_internal_name(name) {
        Err(Error::not_found(format!("there is no queue {name}; create it, or list the existing queues")))
    } else {
        Ok(())
    }
}

impl Queues {
    /// Wakes the other waiting receivers of each queue whose woken receiver does not check it.
    pub(crate) fn wake_receivers(&self, now_ms: u64) {
        self.by_name.read().values().for_each(|cell| cell.wake_for_idle(now_ms));
    }

    /// Examines the records that were undecided when they arrived, so that queues do not count records that are no
    /// messages.
    pub(crate) async fn look_through_all(&self) {
        let has_unseen = |cell: &&Arc<QueueCell>| cell.has_unseen.load(Ordering::Relaxed);
        let cells: Vec<_> = self.by_name.read().values().filter(has_unseen).cloned().collect();
        for cell in cells {
            cell.has_unseen.store(false, Ordering::Relaxed);
            let Some(topic) = self.core.existing_topic(cell.topic.as_str()) else {
                continue;
            };
            for partition in topic.partitions() {
                // The error is only logged: receivers try again and receive it.
                if let Err(error) = self.look_through(&cell, partition).await {
                    let queue = cell.definition().name.clone();
                    tracing::debug!(%queue, partition = partition.id, %error, "messages cannot be read");
                }
            }
        }
    }

    /// Returns all queues, once they are restored.
    async fn table(&self) -> Result<RwLockReadGuard<'_, QueueTable>> {
        loop {
            self.restored().await?;
            let table = self.by_name.read();
            // They may have been forgotten in between.
            if self.has_restored() {
                return Ok(table);
            }
        }
    }

    /// Returns the queue of a name, with its topic. Internal queues of the broker are not found.
    async fn cell(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        let bound = self.bound(name).await?;
        Ok((bound.cell.clone(), bound.topic.clone()))
    }

    async fn any_cell(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        if !self.has_restored() {
            Box::pin(self.restored()).await?;
        }
        let found = self.by_name.read().get(name).cloned();
        let cell = found.ok_or_else(|| self.no_such_queue(name))?;
        let topic = self.core.topic(cell.topic.as_str())?;
        if topic.id == cell.topic_id { Ok((cell, topic)) } else { Box::pin(self.renewed(name)).await }
    }
}
