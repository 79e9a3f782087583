//! Subscribers and queues that have something new, collected over many publishes.

use std::sync::Arc;

use crate::subscriber::Subscriber;
use crate::view::QueueCell;

/// Subscribers that have new batches. A door collects them over all publishes of one read and then flushes, so that a
/// subscriber is woken, or written to, once and not for each batch.
#[derive(Default)]
pub struct Wakes {
    subscribers: Vec<Arc<Subscriber>>,
    queues: Vec<Arc<QueueCell>>,
    /// Publishes since the last flush.
    pub(crate) publishes: usize,
}

impl Wakes {
    pub(crate) fn add(&mut self, subscriber: &Arc<Subscriber>) {
        self.subscribers.push(subscriber.clone());
    }

    /// Adds a queue that has new messages, if a client waits for it.
    pub(crate) fn add_queue(&mut self, queue: &Arc<QueueCell>) {
        if queue.is_awaited() {
            self.queues.push(queue.clone());
        }
    }

    /// Wakes every subscriber and queue that has new batches. Dropping the value does this too.
    pub fn flush(&mut self) {
        self.publishes = 0;
        if self.queues.is_empty() && self.subscribers.is_empty() {
            return;
        }
        self.queues.drain(..).for_each(|queue| queue.wake());
        for subscriber in &self.subscribers {
            subscriber.wake();
        }
        for subscriber in self.subscribers.drain(..) {
            subscriber.flush();
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.flush();
    }
}
