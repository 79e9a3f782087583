//! Worker of a queue: receives messages, extends their leases while they are processed, and reports each outcome.

use std::future::Future;
use std::time::Duration;

use engine::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};
use wire::queues::{LeaseAnswer, ReceivedMessage};

use super::{Queue, Receive};
use crate::backoff::Backoff;
use crate::pool::is_transient;

/// Maximum wait of one receive request.
const WAIT: Duration = Duration::from_secs(20);

/// Outcome of processing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The message was processed and is acknowledged.
    Done,
    /// The message is returned for another attempt.
    Return {
        /// Delay before the message is delivered again; `None` selects the queue's setting.
        delay: Option<Duration>,
    },
}

impl<E: std::fmt::Display> From<std::result::Result<(), E>> for Outcome {
    fn from(result: std::result::Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => {
                tracing::warn!(%error, "a message returns to its queue");
                Self::Return { delay: None }
            }
        }
    }
}

/// Counters of a finished worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// Number of acknowledged messages.
    pub done: u64,
    /// Number of messages that were returned to the queue.
    pub returned: u64,
    /// Number of messages that were processed but could not be settled with the broker; they may be redelivered.
    pub lost: u64,
}

/// Processes the messages of a queue over a separate connection. The worker extends leases at half their time while a
/// message is processed; when the worker ends or fails, its unsettled messages return to the queue immediately.
///
/// ```no_run
/// # async fn example(client: thalweg_client::Client) -> Result<(), thalweg_client::Error> {
/// let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
/// let worker = client.queue("jobs").worker().in_flight_max(4);
/// worker
///     .run(
///         async |received| {
///             println!("{}", String::from_utf8_lossy(&received.message.body));
///             Ok::<(), String>(())
///         },
///         stop,
///     )
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing until it runs"]
pub struct Worker {
    queue: Queue,
    in_flight_max: usize,
    lease: Option<Duration>,
}

impl Worker {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, in_flight_max: 10, lease: None }
    }

    /// Sets the maximum number of messages that are processed concurrently, at least 1; 10 by default.
    pub fn in_flight_max(self, in_flight_max: usize) -> Self {
        Self { in_flight_max: in_flight_max.max(1), ..self }
    }

    /// Sets the duration of the leases, which the worker extends at half their time; by default the queue's setting. If
    /// the worker vanishes without closing its connection, its messages are redelivered at the latest after this time.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Calls `handler` with each message until `stop` completes, then finishes the messages in progress. Retries while
    /// the broker is unavailable; returns an error only if a retry cannot succeed.
    pub async fn run<T: Into<Outcome>>(
        self,
        handler: impl AsyncFn(ReceivedMessage) -> T,
        stop: impl Future<Output = ()>,
    ) -> Result<WorkReport> {
        let queue = self.queue.sibling();
        let lease = match self.lease {
            Some(lease) => lease,
            None => lease_of(&queue).await?,
        };
        if lease.is_zero() {
            return Err(Error::invalid("a worker needs a lease: the queue has no default, so set one"));
        }
        let report = work(&queue, lease, self.in_flight_max, handler, stop).await;
        // Closing the connection returns all unsettled messages.
        queue.session.close().await;
        report
    }
}

async fn lease_of(queue: &Queue) -> Result<Duration> {
    let info = queue.describe().await?;
    let lease_ms = info.settings.iter().find(|(name, _)| name == "lease_ms").and_then(|(_, ms)| ms.parse().ok());
    lease_ms
        .map(Duration::from_millis)
        .ok_or_else(|| Error::malformed("the broker did not return the lease of the queue"))
}

async fn work<T: Into<Outcome>>(
    queue: &Queue,
    lease: Duration,
    in_flight_max: usize,
    handler: impl AsyncFn(ReceivedMessage) -> T,
    stop: impl Future<Output = ()>,
) -> Result<WorkReport> {
    let mut report = WorkReport::default();
    let mut failure = None;
    let mut running = FuturesUnordered::new();
    let mut returning = FuturesUnordered::new();
    let mut receiving = None;
    let mut is_stopping = false;
    tokio::pin!(stop);
    while !is_stopping || !running.is_empty() {
        let room = in_flight_max - running.len();
        if receiving.is_none() && !is_stopping && room > 0 {
            receiving = Some(Box::pin(receive(queue, lease, room)));
        }
        let received: OptionFuture<_> = receiving.as_mut().into();
        tokio::select! {
            () = &mut stop, if !is_stopping => is_stopping = true,
            Some(settled) = running.next() => match settled {
                Some(Outcome::Done) => report.done += 1,
                Some(Outcome::Return { .. }) => report.returned += 1,
                None => report.lost += 1,
            },
            Some(()) = returning.next() => {}
            Some(received) = received => {
                receiving = None;
                match received {
                    // The connection stays open until the messages in progress are finished, and would keep these
                    // leases for as long.
                    Ok(messages) if is_stopping => returning.push(nack_all(queue, messages)),
                    Ok(messages) => running.extend(messages.into_iter().map(|m| handle(queue, lease, &handler, m))),
                    Err(error) => {
                        is_stopping = true;
                        failure = Some(error);
                    }
                }
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

/// Receives the next messages, and retries for as long as necessary.
async fn receive(queue: &Queue, lease: Duration, room: usize) -> Result<Vec<ReceivedMessage>> {
    let mut backoff = Backoff::new();
    let count_max = u32::try_from(room).unwrap_or(u32::MAX);
    let wanted = Receive { count_max, lease: Some(lease), wait: WAIT, ..Receive::default() };
    loop {
        match queue.receive(&wanted).await {
            Ok(received) if received.messages.is_empty() => {}
            Ok(received) => return Ok(received.messages),
            Err(error) if is_transient(&error) => {
                tracing::debug!(queue = queue.name(), %error, "a receive failed; retrying");
                sleep(backoff.next()).await;
            }
            Err(error) if error.kind == ErrorKind::TooLarge => {
                tracing::warn!(queue = queue.name(), %error, "skipping a message that does not fit into a response");
                sleep(backoff.next()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns messages that arrived while the worker was stopping, so that others receive them immediately. If that fails,
/// they return with the end of the connection.
async fn nack_all(queue: &Queue, messages: Vec<ReceivedMessage>) {
    let leases: Vec<_> = messages.into_iter().map(|message| (message.receipt, Some(Duration::ZERO))).collect();
    if let Err(error) = queue.nack(&leases).await {
        tracing::debug!(
            queue = queue.name(),
            %error,
            "messages received while stopping return to the queue when the connection closes"
        );
    }
}

/// Processes one message and settles it with the broker. Returns `None` if the broker did not accept the outcome.
async fn handle<T: Into<Outcome>>(
    queue: &Queue,
    lease: Duration,
    handler: &impl AsyncFn(ReceivedMessage) -> T,
    received: ReceivedMessage,
) -> Option<Outcome> {
    let id = received.message.id.clone();
    let receipt = received.receipt.clone();
    let outcome = tokio::select! {
        outcome = handler(received) => outcome.into(),
        () = keep(queue, lease, &id, &receipt) => unreachable!("invariant: it goes on until it is dropped"),
    };
    let begin = Instant::now();
    let mut backoff = Backoff::new();
    loop {
        let answers = match outcome {
            Outcome::Done => queue.ack(std::slice::from_ref(&receipt)).await,
            Outcome::Return { delay } => queue.nack(&[(receipt.clone(), delay)]).await,
        };
        match answers.map(|answers| answers[0].refusal()) {
            Ok(None) => return Some(outcome),
            Ok(Some(why)) => {
                tracing::warn!(queue = queue.name(), id, why, "a processed message may be redelivered");
                return None;
            }
            Err(error) if is_transient(&error) && begin.elapsed() < lease => sleep(backoff.next()).await,
            Err(error) => {
                tracing::warn!(queue = queue.name(), id, %error, "a processed message may be redelivered");
                return None;
            }
        }
    }
}

/// Extends a lease at half its time until it is dropped.
async fn keep(queue: &Queue, lease: Duration, id: &str, receipt: &str) {
    loop {
        sleep(lease / 2).await;
        let mut backoff = Backoff::new();
        loop {
            match queue.extend(&[(receipt.to_owned(), lease)]).await {
                Ok(answers) if answers == [LeaseAnswer::Done] => break,
                Ok(answers) => {
                    let why = answers[0].refusal();
                    tracing::warn!(queue = queue.name(), id, why, "the lease of a message in progress was lost");
                    return std::future::pending().await;
                }
                Err(error) if is_transient(&error) => sleep(backoff.next()).await,
                Err(error) => {
                    tracing::warn!(queue = queue.name(), id, %error, "a lease could not be extended");
                    break;
                }
            }
        }
    }
}
