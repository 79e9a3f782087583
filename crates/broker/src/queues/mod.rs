//! Queue operations: sending messages to their topics, and leasing, acknowledging and returning them.
//!
//! A queue over a partition is a view that lives behind the partition's lock, as the subscribers do: an appended record
//! is available to it in the same moment. A waiting receiver is woken by the append, or by the lease or delay that ends
//! first. One of the waiting receivers watches that time for all of them.

mod acquire;
mod dead;
mod definitions;
mod documents;
mod near;
mod receipt;
mod receive;
mod renewal;
mod send;
mod snapshots;
mod status;
mod view;

#[cfg(test)]
mod acquire_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transaction_tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use engine::queue::{QueueDefinition, QueueId, QueueName, QueueSettings};
use engine::{Error, Isolation, Result, TopicId, TopicName, nearest};
use parking_lot::RwLock;
use tokio::sync::{Notify, OnceCell};

use crate::broker::Broker;
use crate::metrics::Counter;
use crate::timers::now_ms;
use crate::topics::Topic;
use documents::Documents;

pub use acquire::{AcquireFrom, AcquireLimits, Acquired, QueuePosition, Settlement};
pub use dead::{Redrive, RedriveId, RedriveState};
pub use definitions::{NewQueue, QueueStart};
pub use receive::{RECEIVE_MAX, Receipt, Receive, Received};
pub use send::{OutMessage, SEND_MAX, Sent};
pub use status::{PEEK_MAX, Peeked, QueueCounts, SeekTo};
pub(crate) use view::{LogEnds, QueueView};

/// Maximum number of queues of one broker.
pub const QUEUES_MAX: usize = 65_536;

/// Maximum time that a woken receiver may take to check the queue, before others are woken instead.
const IDLE_MS_MAX: u64 = 1000;

/// All queues, and the documents that the doors define in addition to them.
pub(crate) struct Queues {
    by_name: RwLock<HashMap<QueueName, Arc<QueueCell>, foldhash::fast::RandomState>>,
    near: near::Near,
    documents: RwLock<Documents>,
    /// Set once all queues were read from their topic.
    is_restored: OnceCell<()>,
    /// Held during the creation, change or deletion of a queue or a document.
    control: tokio::sync::Mutex<()>,
    /// Key with which receipts are sealed; set together with `is_restored`.
    receipt_key: OnceCell<receipt::ReceiptKey>,
    redrives: dead::Redrives,
    pub(crate) counts: QueueEvents,
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

/// A queue, with its waiting receivers.
pub(crate) struct QueueCell {
    pub(crate) id: QueueId,
    /// Name of the topic, which never changes while the queue exists.
    topic: TopicName,
    topic_id: TopicId,
    owns_topic: bool,
    /// `true` if the queue belongs to a share group.
    is_internal: bool,
    /// `true` if its topic received records that the queue has not examined yet: they may belong to a transaction.
    has_unseen: AtomicBool,
    definition: RwLock<Arc<QueueDefinition>>,
    /// Notified when a message may be available.
    news: Notify,
    /// Time since which a waiting receiver has been due to check the queue, ms since 1970; 0 if one has checked since.
    unseen_ms: AtomicU64,
    waiting: AtomicUsize,
    /// `true` if one of the waiting receivers wakes up when a lease or a delay ends.
    has_timekeeper: AtomicBool,
    /// Time at which the timekeeper wakes up, ms since 1970; `u64::MAX` if no time is known.
    keeper_due_ms: AtomicU64,
    /// Notified when a lease or delay may end earlier than the timekeeper knows.
    earlier: Notify,
    /// Notified when messages were returned: wakes all receivers that wait for messages of some partitions only.
    returned: Notify,
    /// Counter that rotates the partition which is examined first.
    turn: AtomicU32,
    is_deleted: AtomicBool,
}

impl QueueCell {
    fn new(definition: QueueDefinition) -> Arc<Self> {
        Arc::new(Self {
            id: definition.id,
            topic: definition.topic.clone(),
            topic_id: definition.topic_id,
            owns_topic: definition.owns_topic,
            is_internal: definition.name.is_internal(),
            has_unseen: AtomicBool::new(false),
            definition: RwLock::new(Arc::new(definition)),
            news: Notify::new(),
            unseen_ms: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            has_timekeeper: AtomicBool::new(false),
            keeper_due_ms: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
            returned: Notify::new(),
            turn: AtomicU32::new(0),
            is_deleted: AtomicBool::new(false),
        })
    }

    /// Returns which records are messages of a queue with these settings. Members of a share group specify their
    /// isolation level with each call.
    fn isolation(&self, settings: &QueueSettings) -> Isolation {
        if self.is_internal { Isolation::Uncommitted } else { settings.isolation }
    }

    pub(crate) fn definition(&self) -> Arc<QueueDefinition> {
        self.definition.read().clone()
    }

    pub(crate) fn is_over(&self, topic: &TopicName) -> bool {
        self.definition.read().topic == *topic
    }

    /// Returns `true` if a receiver waits for a message.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes one waiting receiver, since a message may be available. A receiver that takes messages wakes the next one.
    pub(crate) fn wake(&self) {
        if self.is_awaited() {
            self.wake_one();
        }
    }

    fn wake_one(&self) {
        if self.unseen_ms.load(Ordering::SeqCst) == 0 {
            self.unseen_ms.store(now_ms(), Ordering::SeqCst);
        }
        self.news.notify_one();
    }

    /// Wakes all waiting receivers if the woken one does not check the queue, or the timekeeper does not keep the time:
    /// its client may no longer read answers.
    fn wake_for_idle(&self, now_ms: u64) {
        let is_late = |at_ms: u64| at_ms != 0 && at_ms.saturating_add(IDLE_MS_MAX) <= now_ms;
        let (unseen_ms, due_ms) = (&self.unseen_ms, &self.keeper_due_ms);
        if self.is_awaited() && [unseen_ms, due_ms].iter().any(|at_ms| is_late(at_ms.load(Ordering::SeqCst))) {
            self.news.notify_waiters();
        }
    }

    /// Wakes one waiting receiver and the timekeeper, since a lease or delay may end earlier than the timekeeper knows.
    fn wake_for_change(&self) {
        if self.is_awaited() {
            self.earlier.notify_one();
            self.wake_one();
        }
    }

    fn wake_all(&self) {
        self.news.notify_waiters();
        self.returned.notify_waiters();
        self.earlier.notify_one();
    }

    fn check_there(&self) -> Result<()> {
        match self.is_deleted.load(Ordering::Acquire) {
            true => Err(Error::not_found(format!("queue {} was deleted", self.definition().name))),
            false => Ok(()),
        }
    }
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            by_name: RwLock::default(),
            near: near::Near::default(),
            documents: RwLock::default(),
            is_restored: OnceCell::new(),
            control: tokio::sync::Mutex::default(),
            receipt_key: OnceCell::new(),
            redrives: dead::Redrives::default(),
            counts: QueueEvents::default(),
        }
    }
}

impl Queues {
    /// Returns the error for a queue that does not exist, with the nearest name that does.
    fn no_such_queue(&self, name: &str) -> Error {
        let queues = self.by_name.read();
        let names = queues.keys().filter(|name| !name.is_internal()).map(QueueName::as_str);
        match nearest(name, names) {
            Some(nearest) => Error::not_found(format!(
                "there is no queue {name}; did you mean {nearest}? Otherwise create it, or list the existing queues"
            )),
            None => Error::not_found(format!("there is no queue {name}; create it, or list the existing queues")),
        }
    }
}

/// Refuses names that are reserved for internal queues, as if no such queue existed.
fn check_users(name: &str) -> Result<()> {
    match QueueName::is_internal_name(name) {
        true => Err(Error::not_found(format!("there is no queue {name}; create it, or list the existing queues"))),
        false => Ok(()),
    }
}

impl Broker {
    /// Wakes the other waiting receivers of each queue whose woken receiver does not check it.
    pub(crate) fn wake_receivers(&self, now_ms: u64) {
        self.queues_there().by_name.read().values().for_each(|cell| cell.wake_for_idle(now_ms));
    }

    /// Examines the records that were undecided when they arrived, so that queues do not count records that are no
    /// messages.
    pub(crate) async fn look_at_queues(&self) {
        let has_unseen = |cell: &&Arc<QueueCell>| cell.has_unseen.load(Ordering::Relaxed);
        let cells: Vec<_> = self.queues_there().by_name.read().values().filter(has_unseen).cloned().collect();
        for cell in cells {
            cell.has_unseen.store(false, Ordering::Relaxed);
            let Ok(topic) = self.topic(cell.topic.as_str()) else {
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

    /// Returns the queue of a name, with its topic. Internal queues of the broker are not found.
    async fn queue_cell(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        let bound = self.bound_queue(name).await?;
        Ok((bound.cell.clone(), bound.topic.clone()))
    }

    async fn any_queue_cell(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        if !self.has_restored_queues() {
            Box::pin(self.restored_queues()).await?;
        }
        let found = self.queues_there().by_name.read().get(name).cloned();
        let cell = found.ok_or_else(|| self.queues_there().no_such_queue(name))?;
        let topic = self.topic(cell.topic.as_str())?;
        if topic.id == cell.topic_id { Ok((cell, topic)) } else { Box::pin(self.renewed_queue(name)).await }
    }
}
