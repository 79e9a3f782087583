//! A queue, as its partitions and its waiters know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use engine::queue::{QueueDefinition, QueueId, QueueSettings};
use engine::{Error, Isolation, Result, TopicId, TopicName};
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::clock::Clock;

/// Maximum time that a woken receiver may take to check the queue, before others are woken instead.
const IDLE_MS_MAX: u64 = 1000;

/// A queue, with its waiting receivers.
pub(crate) struct QueueCell {
    clock: Clock,
    pub(crate) id: QueueId,
    /// Name of the topic, which never changes while the queue exists.
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) owns_topic: bool,
    /// `true` if the queue belongs to a share group.
    pub(crate) is_internal: bool,
    /// `true` if its topic received records that the queue has not examined yet: they may belong to a transaction.
    pub(crate) has_unseen: AtomicBool,
    pub(crate) definition: RwLock<Arc<QueueDefinition>>,
    /// Notified when a message may be available.
    pub(crate) news: Notify,
    /// Time since which a waiting receiver has been due to check the queue, ms since 1970; 0 if one has checked since.
    pub(crate) unseen_ms: AtomicU64,
    pub(crate) waiting: AtomicUsize,
    /// `true` if one of the waiting receivers wakes up when a lease or a delay ends.
    pub(crate) has_timekeeper: AtomicBool,
    /// Time at which the timekeeper wakes up, ms since 1970; `u64::MAX` if no time is known.
    pub(crate) keeper_due_ms: AtomicU64,
    /// Notified when a lease or delay may end earlier than the timekeeper knows.
    pub(crate) earlier: Notify,
    /// Notified when messages were returned: wakes all receivers that wait for messages of some partitions only.
    pub(crate) returned: Notify,
    /// Counter that rotates the partition which is examined first.
    pub(crate) turn: AtomicU32,
    pub(crate) is_deleted: AtomicBool,
    /// Number of views of all queues.
    pub(super) views: Arc<AtomicUsize>,
}

impl QueueCell {
    /// Creates a queue, whose views are counted in `views`.
    pub(crate) fn new(definition: QueueDefinition, clock: Clock, views: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            id: definition.id,
            topic: definition.topic.clone(),
            topic_id: definition.topic_id,
            owns_topic: definition.owns_topic,
            is_internal: definition.name.is_internal(),
            clock,
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
            views: views.clone(),
        })
    }

    /// Returns which records are messages of a queue with these settings. Members of a share group specify their
    /// isolation level with each call.
    pub(crate) fn isolation(&self, settings: &QueueSettings) -> Isolation {
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

    pub(crate) fn wake_one(&self) {
        if self.unseen_ms.load(Ordering::SeqCst) == 0 {
            self.unseen_ms.store(self.clock.now_ms(), Ordering::SeqCst);
        }
        self.news.notify_one();
    }

    /// Wakes all waiting receivers if the woken one does not check the queue, or the timekeeper does not keep the time:
    /// its client may no longer read answers.
    pub(crate) fn wake_for_idle(&self, now_ms: u64) {
        let is_late = |at_ms: u64| at_ms != 0 && at_ms.saturating_add(IDLE_MS_MAX) <= now_ms;
        let unseen_ms = &self.unseen_ms;
        let due_ms = &self.keeper_due_ms;
        if self.is_awaited() && [unseen_ms, due_ms].iter().any(|at_ms| is_late(at_ms.load(Ordering::SeqCst))) {
            self.news.notify_waiters();
        }
    }

    /// Wakes one waiting receiver and the timekeeper, since a lease or delay may end earlier than the timekeeper knows.
    pub(crate) fn wake_for_change(&self) {
        if self.is_awaited() {
            self.earlier.notify_one();
            self.wake_one();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.news.notify_waiters();
        self.returned.notify_waiters();
        self.earlier.notify_one();
    }

    pub(crate) fn check_exists(&self) -> Result<()> {
        if self.is_deleted.load(Ordering::Acquire) {
            Err(Error::not_found(format!("queue {} was deleted", self.definition().name)))
        } else {
            Ok(())
        }
    }
}
