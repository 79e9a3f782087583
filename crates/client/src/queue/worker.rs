//! A worker: receives messages of a queue, keeps them while they are worked on, and says what came of each.

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

/// How long one receive waits for messages.
const WAIT: Duration = Duration::from_secs(20);

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done with.
    Done,
    /// Somebody is to try again, after a delay: as the queue is set where none is named.
    Return { delay: Option<Duration> },
}

impl<E: std::fmt::Display> From<std::result::Result<(), E>> for Outcome {
    fn from(result: std::result::Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => {
                tracing::warn!(%error, "a message goes back to its queue");
                Self::Return { delay: None }
            }
        }
    }
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkReport {
    pub done: u64,
    pub returned: u64,
    /// Worked on, but the broker could not be told: they come again.
    pub lost: u64,
}

/// Works through a queue over a connection of its own. Leases are extended at half their time for as long as a message
/// is worked on; when the worker ends or dies, what it has not answered goes back at once.
///
/// ```no_run
/// # async fn example(client: client::Client) -> Result<(), client::Error> {
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

    /// Messages that are worked on side by side, at least 1.
    pub fn in_flight_max(self, in_flight_max: usize) -> Self {
        Self { in_flight_max: in_flight_max.max(1), ..self }
    }

    /// How long the broker waits for a sign of life, instead of what the queue says.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Hands each message to `handler`, until `stop` is over: then what was begun is finished. A broker that is gone
    /// for a while is waited for; an error is one that would not go away.
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
            return Err(Error::invalid("a worker needs a lease: the queue gives none, so name one"));
        }
        let report = work(&queue, lease, self.in_flight_max, handler, stop).await;
        // With it goes back what it has not answered.
        queue.session.close().await;
        report
    }
}

async fn lease_of(queue: &Queue) -> Result<Duration> {
    let info = queue.describe().await?;
    let lease_ms = info.settings.iter().find(|(name, _)| name == "lease_ms").and_then(|(_, ms)| ms.parse().ok());
    lease_ms.map(Duration::from_millis).ok_or_else(|| Error::malformed("the queue does not say how long its lease is"))
}

async fn work<T: Into<Outcome>>(
    queue: &Queue,
    lease: Duration,
    in_flight_max: usize,
    handler: impl AsyncFn(ReceivedMessage) -> T,
    stop: impl Future<Output = ()>,
) -> Result<WorkReport> {
    let (mut report, mut failure) = (WorkReport::default(), None);
    let (mut running, mut returning) = (FuturesUnordered::new(), FuturesUnordered::new());
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
                    // The connection lasts for as long as what was begun, and so would their leases.
                    Ok(messages) if is_stopping => returning.push(give_back(queue, messages)),
                    Ok(messages) => running.extend(messages.into_iter().map(|m| handle(queue, lease, &handler, m))),
                    Err(error) => (is_stopping, failure) = (true, Some(error)),
                }
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

/// The next messages, whatever that takes.
async fn receive(queue: &Queue, lease: Duration, room: usize) -> Result<Vec<ReceivedMessage>> {
    let mut backoff = Backoff::new();
    let count_max = u32::try_from(room).unwrap_or(u32::MAX);
    let wanted = Receive { count_max, lease: Some(lease), wait: WAIT, ..Receive::default() };
    loop {
        match queue.receive(&wanted).await {
            Ok(received) if received.messages.is_empty() => {}
            Ok(received) => return Ok(received.messages),
            Err(error) if is_transient(&error) => {
                tracing::debug!(queue = queue.name(), %error, "receives again");
                sleep(backoff.next()).await;
            }
            Err(error) if error.kind == ErrorKind::TooLarge => {
                tracing::warn!(queue = queue.name(), %error, "goes on behind a message that no answer holds");
                sleep(backoff.next()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What came to a worker that stops is for others at once. If they cannot be given back, they go with the connection.
async fn give_back(queue: &Queue, messages: Vec<ReceivedMessage>) {
    let leases: Vec<_> = messages.into_iter().map(|message| (message.receipt, Some(Duration::ZERO))).collect();
    if let Err(error) = queue.nack(&leases).await {
        tracing::debug!(queue = queue.name(), %error, "what came while it stopped goes back with the connection");
    }
}

/// Works on one message and says what came of it; `None` where the broker did not hear of that.
async fn handle<T: Into<Outcome>>(
    queue: &Queue,
    lease: Duration,
    handler: &impl AsyncFn(ReceivedMessage) -> T,
    received: ReceivedMessage,
) -> Option<Outcome> {
    let (id, receipt) = (received.message.id.clone(), received.receipt.clone());
    let outcome = tokio::select! {
        outcome = handler(received) => outcome.into(),
        () = keep(queue, lease, &id, &receipt) => unreachable!("invariant: it goes on until it is dropped"),
    };
    let (begin, mut backoff) = (Instant::now(), Backoff::new());
    loop {
        let answers = match outcome {
            Outcome::Done => queue.ack(std::slice::from_ref(&receipt)).await,
            Outcome::Return { delay } => queue.nack(&[(receipt.clone(), delay)]).await,
        };
        match answers.map(|answers| answers[0].refusal()) {
            Ok(None) => return Some(outcome),
            Ok(Some(why)) => {
                tracing::warn!(queue = queue.name(), id, why, "a message that was worked on may come again");
                return None;
            }
            Err(error) if is_transient(&error) && begin.elapsed() < lease => sleep(backoff.next()).await,
            Err(error) => {
                tracing::warn!(queue = queue.name(), id, %error, "a message that was worked on may come again");
                return None;
            }
        }
    }
}

/// Extends a lease at half its time, for ever.
async fn keep(queue: &Queue, lease: Duration, id: &str, receipt: &str) {
    loop {
        sleep(lease / 2).await;
        let mut backoff = Backoff::new();
        loop {
            match queue.extend(&[(receipt.to_owned(), lease)]).await {
                Ok(answers) if answers == [LeaseAnswer::Done] => break,
                Ok(answers) => {
                    let why = answers[0].refusal();
                    tracing::warn!(queue = queue.name(), id, why, "a message that is worked on is not kept any more");
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
