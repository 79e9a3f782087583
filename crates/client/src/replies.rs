//! Replies: the requests of a client that wait for one, and the inbox where they all arrive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Record;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::AbortHandle;

/// The requests of one client that wait for their replies, all at one inbox.
#[derive(Default)]
pub(crate) struct Replies {
    /// The name of the inbox, which the first request opens.
    pub inbox: OnceCell<String>,
    waiting: Arc<Waiting>,
    ids: AtomicU64,
    /// Reads the inbox for as long as the client lives.
    task: Mutex<Option<AbortHandle>>,
}

/// Requests that wait for a reply, by their number.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<u64, oneshot::Sender<Record>>>);

impl Replies {
    /// Numbers a request and waits for its reply from now on, until [`Replies::give_up`].
    pub(crate) fn begin(&self) -> (u64, oneshot::Receiver<Record>) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.0.lock().insert(id, sender);
        (id, answer)
    }

    pub(crate) fn give_up(&self, id: u64) {
        self.waiting.0.lock().remove(&id);
    }

    /// For the task that reads the inbox. It does not keep the client alive.
    pub(crate) fn waiting(&self) -> Arc<Waiting> {
        self.waiting.clone()
    }

    /// Ends this task when the client ends.
    pub(crate) fn own_task(&self, task: AbortHandle) {
        *self.task.lock() = Some(task);
    }
}

impl Waiting {
    /// Passes a reply to the request of this number, if that still waits.
    pub(crate) fn arrived(&self, id: u64, reply: Record) {
        let waiter = self.0.lock().remove(&id);
        if let Some(waiter) = waiter {
            // One that gave up does not need it any more.
            drop(waiter.send(reply));
        }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}
