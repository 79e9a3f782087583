//! The client of a request, the node that it talks to, and the reason for which a batch of it is refused.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Door, Identity, Usage};
use engine::security::TenantName;
use engine::{DraftBatch, Error, ErrorKind, TopicId, TopicName};
use tokio::sync::Notify;

use super::cluster::Cluster;
use super::errors::{self, Code};
use super::messages::Uuid;
use super::share::ShareConnection;

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
    /// Delay of the connection by quotas.
    pub mute: Rc<Mute>,
    /// Time in ms that the client is asked to wait, because a limit has refused a part of its request.
    pub wait_ms: Cell<i32>,
}

/// Maximum time in ms that a client is asked to wait for a limit that has refused a part of its request: it sends
/// nothing else on the connection until then.
const WAIT_MS_MAX: i32 = 1000;

/// Delay of a connection that exceeds a quota: the response is sent first, and then nothing is read for this time
/// (KIP-219).
#[derive(Default)]
pub(super) struct Mute(RefCell<Option<Muted>>);

/// Delay that has not begun yet.
pub(super) struct Muted {
    pub delay: Duration,
    /// Client id that exceeded its quota.
    pub client: String,
    /// Use of the broker with which the client is charged.
    pub usage: Usage,
}

impl Mute {
    /// Returns the delay, which begins now.
    pub(super) fn take(&self) -> Option<Muted> {
        self.0.take()
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.borrow().is_some()
    }

    fn extend(&self, delay: Duration, client: &str, usage: Usage) {
        if delay.is_zero() {
            return;
        }
        let mut current = self.0.borrow_mut();
        let previous = current.as_ref().map_or((Duration::ZERO, Usage::default()), |it| (it.delay, it.usage));
        *current =
            Some(Muted { delay: delay.max(previous.0), client: client.to_owned(), usage: usage.and(previous.1) });
    }
}

/// Returns a delay as clients are told: at least 1 ms, unless there is none.
pub(super) fn millis(delay: Duration) -> i32 {
    i32::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

impl Caller {
    /// Returns the nodes of the cluster, for a response to the client.
    pub(super) fn cluster(&self, broker: &Broker) -> Cluster {
        Cluster::of(broker, &self.advertised)
    }

    /// Asks the client to wait if a limit has refused a part of its request.
    pub(super) fn note_wait(&self, error: &Error) {
        if error.is_throttled() {
            let wait_ms = i32::try_from(error.retry_after_ms).unwrap_or(i32::MAX).min(WAIT_MS_MAX);
            self.wait_ms.set(self.wait_ms.get().max(wait_ms));
        }
    }

    /// Returns the tenant of the client. Its requests have the names of the broker already.
    pub(super) fn tenant(&self) -> Option<&TenantName> {
        self.identity.tenant()
    }

    /// Returns the topic with this id; `None` if there is none, or if it is not the tenant's.
    pub(super) fn topic_by_id(&self, broker: &Broker, id: Uuid) -> Option<TopicName> {
        let found = broker.topic_by_id(TopicId::from_bytes(id.0.to_be_bytes())).ok()?;
        self.tenant().is_none_or(|tenant| tenant.owns(found.as_str())).then_some(found)
    }

    /// Charges the client's quotas. Returns the time for which the connection is not read after the response.
    pub(super) fn charge(&self, broker: &Broker, usage: Usage) -> Duration {
        let delay = broker.security.charge(Door::Kafka, &self.identity, Some(&self.client), usage);
        self.mute.extend(delay, &self.client, usage);
        delay
    }

    /// Returns the time for which the client is in debt for this use, without a charge. The connection is not read for
    /// that time after the response.
    pub(super) fn debt(&self, broker: &Broker, usage: Usage) -> Duration {
        let debt = broker.security.debt(&self.identity, Some(&self.client), usage);
        self.mute.extend(debt, &self.client, usage);
        debt
    }

    /// Returns the maximum number of bytes that the client may fetch at once: what its quota saves. Kafka has the same
    /// limit (`getMaxValueInQuotaWindow`), for its longer window.
    pub(super) fn fetch_bytes_max(&self, broker: &Broker) -> usize {
        broker.security.bytes_out_saved(&self.identity, Some(&self.client))
    }
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
    /// Time in ms that the client should wait before it sends more; 0 for none.
    pub throttle_ms: i32,
}

impl Refusal {
    pub(super) fn new(code: Code, message: String) -> Self {
        Self { code, message, records: Vec::new(), throttle_ms: 0 }
    }

    /// Returns a refusal for a missing permission.
    pub(super) fn denied(code: Code, what: &str) -> Self {
        Self::new(code, format!("this user is not authorized to write to {what}"))
    }

    /// Returns the refusal of a batch for this error.
    pub(super) fn of_batch(error: Error) -> Self {
        let throttle_ms =
            if error.is_throttled() { i32::try_from(error.retry_after_ms).unwrap_or(i32::MAX) } else { 0 };
        Self { throttle_ms, ..Self::new(errors::of_produce(&error), error.message) }
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
