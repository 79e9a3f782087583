//! The client of a request, the node that it talks to, and the reason for which a batch of it is refused.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use broker::Identity;
use engine::{DraftBatch, Error, ErrorKind};
use tokio::sync::Notify;

use super::errors::{self, Code};
use super::share::ShareConnection;

/// Id of the only node that clients see.
pub(super) const NODE_ID: i32 = 1;
/// Epoch of every leader; leaders never change.
pub(super) const LEADER_EPOCH: i32 = 0;

/// Client on whose behalf a request is handled.
pub(super) struct Caller {
    /// Name that the client sends in its requests.
    pub client: String,
    /// On whose behalf the client acts.
    pub identity: Arc<Identity>,
    /// Address at which the client reaches this broker.
    pub advertised: (String, u16),
    /// Version of the API in the client's request.
    pub version: i16,
    /// State of the shutdown; once it has begun, no request waits for other clients.
    pub leaving: Rc<Leaving>,
    /// Share sessions of the connection.
    pub shares: Rc<ShareConnection>,
}

/// Signal that the broker is shutting down.
#[derive(Default)]
pub(super) struct Leaving {
    is_so: Cell<bool>,
    news: Notify,
}

impl Leaving {
    pub(super) fn begin(&self) {
        self.is_so.set(true);
        self.news.notify_waiters();
    }

    pub(super) async fn begun(&self) {
        let news = self.news.notified();
        if !self.is_so.get() {
            news.await;
        }
    }
}

/// Reason for a refusal.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub code: Code,
    pub message: String,
    /// Indexes, within the batch, of the records that caused the refusal.
    pub records: Vec<u32>,
}

impl Refusal {
    pub(super) fn new(code: Code, message: String) -> Self {
        Self { code, message, records: Vec::new() }
    }

    /// Returns a refusal for a missing permission.
    pub(super) fn denied(code: Code, what: &str) -> Self {
        Self::new(code, format!("this user is not authorized to write to {what}"))
    }

    /// Returns the refusal of a batch for this error.
    pub(super) fn of_batch(error: Error) -> Self {
        Self::new(errors::of_produce(&error), error.message)
    }

    /// Returns the refusal of a batch that had to wait. The records are decompressed to name those without a key, which
    /// is done on a thread that serves no connection.
    pub(super) async fn after_wait(error: Error, topic: &Arc<str>, sent: Option<DraftBatch>) -> Self {
        let Some(sent) = sent.filter(|_| error.kind == ErrorKind::Invalid) else {
            return Self::of_batch(error);
        };
        let refusal = Self::of_batch(error);
        let topic = topic.clone();
        let plain = refusal.clone();
        let named = tokio::task::spawn_blocking(move || refusal.for_want_of_keys(&topic, &sent));
        named.await.unwrap_or(plain)
    }

    /// Adds the records without a key to the refusal of a batch for a topic that requires a key in each record, so that
    /// the client knows which of its records to correct.
    pub(super) fn for_want_of_keys(self, topic: &str, batch: &DraftBatch) -> Self {
        let Some(records) = batch.without_keys().ok().filter(|records| !records.is_empty()) else {
            return self;
        };
        let without = records.len();
        let all = batch.count();
        let message = format!(
            "{without} of the {all} records of this batch have no key, but topic {topic} is compacted: give each \
             record a key"
        );
        Self { message, records, ..self }
    }
}
