//! Replies: the pending requests of a client, and the inbox where their replies arrive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Record;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::AbortHandle;

/// Pending requests of one client, whose replies arrive at one inbox.
#[derive(Default)]
pub(crate) struct Replies {
    /// Name of the inbox, which the first request opens.
    pub inbox: OnceCell<String>,
    waiting: Arc<Waiting>,
    ids: AtomicU64,
    /// Task that reads the inbox for as long as the client lives.
    task: Mutex<Option<AbortHandle>>,
}

/// Requests that wait for a reply, by their number.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<u64, oneshot::Sender<Record>>>);

impl Replies {
    /// Assigns a number to a request and waits for its reply from now on, until [`Replies::give_up`].
    pub(crate) fn begin(&self) -> (u64, oneshot::Receiver<Record>) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.0.lock().insert(id, sender);
        (id, answer)
    }

    pub(crate) fn give_up(&self, id: u64) {
        self.waiting.0.lock().remove(&id);
    }

    /// Returns the pending requests for the task that reads the inbox. The task does not keep the client alive.
    pub(crate) fn waiting(&self) -> Arc<Waiting> {
        self.waiting.clone()
    }

    /// Makes this task end when the client ends.
    pub(crate) fn own_task(&self, task: AbortHandle) {
        *self.task.lock() = Some(task);
    }
}

impl Waiting {
    /// Passes a reply to the request with this number, if it still waits.
    pub(crate) fn arrived(&self, id: u64, reply: Record) {
        let waiter = self.0.lock().remove(&id);
        if let Some(waiter) = waiter {
            // A caller that has given up does not need the reply any more.
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
