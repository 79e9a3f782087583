//! Push delivery: each push subscription is a task that receives its messages and posts them to an endpoint.

mod endpoint;
mod http;
mod pace;
mod request;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use broker::metrics::{Counter, Exposition, Histogram};
use broker::{Clock, Doors};
use bytes::Bytes;
use engine::ErrorKind;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::StatusCode;
use parking_lot::Mutex;
use rustls::RootCertStore;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

pub use endpoint::{Allow, Endpoint, NoAllow, NoEndpoint};
pub use request::Wrapper;
pub use token::{Oidc, SigningKey};

use http::Http;
use pace::Pace;

/// Maximum number of concurrent requests of all push subscriptions. Further ones wait, within their deadline.
const REQUESTS_MAX: usize = 1024;
/// Maximum memory of messages in these requests, in KiB.
const REQUESTS_KIB_MAX: u32 = 64 << 10;
/// Factor for the memory of a wrapped message: its data in base64, which exists twice while it is encoded.
const KIB_PER_KIB: usize = 4;
/// Time before the expiry of a token at which a new one is issued.
const TOKEN_RESERVE_S: u64 = 300;

/// Operations of a subscription's queue that its push task uses.
pub trait Source: Send + Sync + 'static {
    type Receipt: Send + 'static;

    /// Waits for at least one message for a limited time, after which the result may be empty. The leases last for the
    /// subscription's deadline plus some seconds.
    fn receive(&self, max: usize) -> impl Future<Output = engine::Result<Vec<Received<Self::Receipt>>>> + Send;
    fn ack(&self, receipt: Self::Receipt) -> impl Future<Output = engine::Result<()>> + Send;
    /// Returns a message to the queue; its redelivery follows the subscription's retry policy.
    fn nack(&self, receipt: Self::Receipt) -> impl Future<Output = engine::Result<()>> + Send;
    /// Returns `true` if messages may be pushed: who set the endpoint may still read them. While this is `false`,
    /// [`receive`](Self::receive) returns none.
    fn may_push(&self) -> impl Future<Output = bool> + Send;
}

/// Leased message.
pub struct Received<R> {
    pub receipt: R,
    pub message: Message,
}

/// Message as sent to endpoints.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    /// Time of publication, in milliseconds since 1970.
    pub published_ms: u64,
    pub data: Bytes,
    pub attributes: Vec<(String, String)>,
    /// Ordering key; empty for messages without one.
    pub ordering_key: String,
    /// Delivery attempt; only for subscriptions with a dead letter policy.
    pub attempt: Option<u32>,
}

/// Push settings of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `projects/P/subscriptions/S`
    pub subscription: String,
    pub endpoint: Endpoint,
    pub wrapper: Wrapper,
    pub oidc: Option<Oidc>,
    /// Time that the endpoint has for its response: the ack deadline.
    pub deadline: Duration,
}

/// Outcome of one push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Acked,
    /// The endpoint responded with another status.
    Refused,
    /// No connection, or no valid HTTP response.
    Failed,
    TimedOut,
    /// The operator does not allow the address, or who set it may not read the messages any more.
    Denied,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Acked, Self::Refused, Self::Failed, Self::TimedOut, Self::Denied];

    fn name(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Denied => "denied",
        }
    }
}

/// State that all push subscriptions share.
pub struct Pusher {
    clock: Clock,
    http: Http,
    /// Set before the first subscription with tokens is started.
    key: OnceLock<SigningKey>,
    requests: Semaphore,
    kib: Semaphore,
    stats: Stats,
}

#[derive(Default)]
struct Stats {
    subscriptions: AtomicUsize,
    /// Subscriptions whose owners may not read them.
    paused: AtomicUsize,
    in_flight: AtomicUsize,
    outcomes: [Counter; Outcome::ALL.len()],
    pauses: Counter,
    seconds: Histogram,
}

/// Running push subscription. Dropping it stops the task; the leases that it holds expire.
pub struct PushTask(JoinHandle<()>);

impl Drop for PushTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Increment of a gauge that is undone when this is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(gauge: &'a AtomicUsize) -> Self {
        gauge.fetch_add(1, Ordering::Relaxed);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pusher {
    /// Creates a pusher that trusts these root certificates; `None`: those of the system. Nothing is pushed to `doors`.
    pub fn new(allow: Allow, roots: Option<RootCertStore>, doors: Arc<Doors>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            http: Http::new(allow, roots, doors),
            key: OnceLock::new(),
            requests: Semaphore::new(REQUESTS_MAX),
            kib: Semaphore::new(REQUESTS_KIB_MAX as usize),
            stats: Stats::default(),
        })
    }

    /// Refuses an endpoint that is not allowed, if that is known without resolving its name.
    pub fn check(&self, endpoint: &Endpoint) -> Result<(), String> {
        self.http.check(endpoint)
    }

    pub fn key(&self) -> Option<&SigningKey> {
        self.key.get()
    }

    /// Sets the signing key unless it is already set, and returns the effective key.
    pub fn set_key(&self, key: SigningKey) -> &SigningKey {
        self.key.get_or_init(|| key)
    }

    /// Counts a subscription that is paused because its owner may not read it, or that no longer is.
    pub fn note_paused(&self, is_paused: bool) {
        let paused = &self.stats.paused;
        if is_paused {
            paused.fetch_add(1, Ordering::Relaxed)
        } else {
            paused.fetch_sub(1, Ordering::Relaxed)
        };
    }

    pub fn start<S: Source>(self: &Arc<Self>, target: Target, source: S) -> PushTask {
        let task = Task { pusher: self.clone(), target, source: Arc::new(source), token: Mutex::default() };
        PushTask(tokio::spawn(Arc::new(task).run()))
    }

    pub fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let stats = &self.stats;
        let load = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed) as u64;
        let outcomes: Vec<(String, u64)> =
            Outcome::ALL.iter().map(|o| (o.name().to_owned(), stats.outcomes[*o as usize].get())).collect();
        out.counters("thalweg_pubsub_pushes", "Messages pushed to endpoints", "result", &outcomes)?;
        out.gauge("thalweg_pubsub_push_subscriptions", "Push subscriptions served", load(&stats.subscriptions))?;
        let help = "Push subscriptions that wait until the user who set their endpoint may read them again";
        out.gauge("thalweg_pubsub_push_paused", help, load(&stats.paused))?;
        out.gauge("thalweg_pubsub_pushes_in_flight", "Pushes not answered yet", load(&stats.in_flight))?;
        out.counter("thalweg_pubsub_push_pauses", "Pauses for endpoints that fail", stats.pauses.get())?;
        out.counter("thalweg_pubsub_push_connections", "Connections opened to endpoints", self.http.opened.get())?;
        out.histogram("thalweg_pubsub_push_seconds", "Time from a push to its response", &stats.seconds)
    }
}

struct Task<S> {
    pusher: Arc<Pusher>,
    target: Target,
    source: Arc<S>,
    /// Newest token, and its expiry in seconds since 1970.
    token: Mutex<Option<(String, u64)>>,
}

type Receiving<R> = Pin<Box<dyn Future<Output = engine::Result<Vec<Received<R>>>> + Send>>;

impl<S: Source> Task<S> {
    async fn run(self: Arc<Self>) {
        let _counted = Counted::new(&self.pusher.stats.subscriptions);
        let began = Instant::now();
        let now_ms = || began.elapsed().as_millis() as u64;
        let mut pace = Pace::default();
        let mut pushes = FuturesUnordered::new();
        // Never dropped before it completes: its messages would only be redelivered after their leases expire.
        let mut receiving: Option<Receiving<S::Receipt>> = None;
        loop {
            let room = pace.room(pushes.len(), now_ms());
            if receiving.is_none() && room > 0 {
                let source = self.source.clone();
                receiving = Some(Box::pin(async move { source.receive(room).await }));
            }
            let paused_ms = pace.paused_ms(now_ms());
            tokio::select! {
                Some((outcome, took)) = pushes.next() => match outcome {
                    Outcome::Acked => pace.succeeded(took),
                    _ => self.note_failure(&mut pace, now_ms()),
                },
                received = async { receiving.as_mut().expect("invariant: there is one").await },
                    if receiving.is_some() =>
                {
                    receiving = None;
                    match received {
                        Ok(messages) => pushes.extend(messages.into_iter().map(|message| self.push(message))),
                        Err(error) if error.kind == ErrorKind::NotFound => break,
                        Err(error) => {
                            tracing::warn!(
                                %error,
                                subscription = %self.target.subscription,
                                "cannot receive messages to push"
                            );
                            self.note_failure(&mut pace, now_ms());
                        }
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(paused_ms.unwrap_or(0))), if paused_ms.is_some() => {}
            }
        }
    }

    fn note_failure(&self, pace: &mut Pace, now_ms: u64) {
        let was_paused = pace.paused_ms(now_ms).is_some();
        pace.failed(now_ms);
        if !was_paused {
            self.pusher.stats.pauses.add(1);
        }
    }

    /// Posts a message and settles it in its queue according to the outcome.
    async fn push(&self, received: Received<S::Receipt>) -> (Outcome, Duration) {
        let stats = &self.pusher.stats;
        let _counted = Counted::new(&stats.in_flight);
        let began = Instant::now();
        let post =
            async { if self.source.may_push().await { self.post(&received.message).await } else { Err(no_reader()) } };
        let outcome = match tokio::time::timeout(self.target.deadline, post).await {
            Err(_) => Outcome::TimedOut,
            Ok(Ok(status)) if is_success(status) => Outcome::Acked,
            Ok(Ok(status)) => {
                tracing::debug!(%status, endpoint = %self.target.endpoint.url, "a push endpoint refused a message");
                Outcome::Refused
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!(%error, endpoint = %self.target.endpoint.url, "a push is not allowed");
                Outcome::Denied
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, endpoint = %self.target.endpoint.url, "a push failed");
                Outcome::Failed
            }
        };
        let took = began.elapsed();
        stats.seconds.record(took);
        let told = match outcome {
            Outcome::Acked => self.source.ack(received.receipt).await,
            _ => self.source.nack(received.receipt).await,
        };
        if let Err(error) = told {
            // It is redelivered when its lease expires.
            tracing::debug!(%error, subscription = %self.target.subscription, "cannot settle a pushed message");
        }
        // Counted after the acknowledgement, so that a message counted as acknowledged is not redelivered after a
        // crash.
        stats.outcomes[outcome as usize].add(1);
        (outcome, took)
    }

    async fn post(&self, message: &Message) -> io::Result<StatusCode> {
        let pusher = &self.pusher;
        let kib = (KIB_PER_KIB * message.data.len()).div_ceil(1024) as u32 + 1;
        let _request = pusher.requests.acquire().await.map_err(io::Error::other)?;
        let _kib = pusher.kib.acquire_many(kib.min(REQUESTS_KIB_MAX)).await.map_err(io::Error::other)?;
        let Target { endpoint, wrapper, subscription, .. } = &self.target;
        let token = self.token()?;
        let request = request::request(endpoint, *wrapper, subscription, message, token.as_deref())?;
        pusher.http.send(endpoint, request).await
    }

    /// Returns a token that remains valid for a while; `None` if the subscription uses no tokens.
    fn token(&self) -> io::Result<Option<String>> {
        let Some(Oidc { service_account_email, audience }) = &self.target.oidc else {
            return Ok(None);
        };
        let now_s = self.pusher.clock.now_ms() / 1000;
        let mut newest = self.token.lock();
        match &*newest {
            Some((token, ends_s)) if now_s + TOKEN_RESERVE_S < *ends_s => Ok(Some(token.clone())),
            _ => {
                let audience = audience.as_ref().unwrap_or(&self.target.endpoint.url);
                let key = self.pusher.key.get().ok_or_else(|| io::Error::other("there is no key to sign with"))?;
                let token = key.sign(service_account_email, audience, now_s)?;
                *newest = Some((token.clone(), now_s + token::LIFETIME_S));
                Ok(Some(token))
            }
        }
    }
}

fn no_reader() -> io::Error {
    let message = "the user who set the endpoint may not read the subscription any more";
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// Returns `true` if the status counts as an acknowledgement, as at Google's service.
fn is_success(status: StatusCode) -> bool {
    matches!(status.as_u16(), 102 | 200 | 201 | 202 | 204)
}
