//! Queues: sending, receiving under leases, and administration.

mod worker;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::{Error, ErrorKind, Offset, PartitionId, Result, Start};
use futures_util::{StreamExt, stream};
use wire::queues::{
    LeaseAnswer, Named, NewQueue, OutMessage, PeekedMessage, QueueInfo, ReceivedMessage, RedriveInfo, Sent,
};
use wire::{QueueRequest, QueueResponse, Request, Response};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::link::unexpected;
use crate::session::Session;

pub use worker::{Outcome, WorkReport, Worker};

/// Queues per list request.
const LIST_COUNT: u32 = 500;
/// Maximum number of messages per send request.
const SEND_COUNT_MAX: usize = 500;
const SEND_BYTES_MAX: usize = 1 << 20;
/// Maximum number of send requests in flight.
const SENDS_IN_FLIGHT_MAX: usize = 16;

/// Handle of a queue on a broker: a view of a topic whose messages are delivered to one receiver each.
///
/// ```no_run
/// # async fn example(client: thalweg_client::Client) -> Result<(), thalweg_client::Error> {
/// use thalweg_client::{NewQueue, OutMessage, Receive};
///
/// client.create_queue(NewQueue::new("jobs")).await?;
/// let jobs = client.queue("jobs");
/// jobs.send(OutMessage::new("one coffee")).await?;
/// for received in jobs.receive(&Receive::default()).await?.messages {
///     println!("{}", String::from_utf8_lossy(&received.message.body));
///     jobs.ack(&[received.receipt]).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Queue {
    session: Arc<Session>,
    name: Arc<str>,
}

/// Limits of one [`Queue::receive`]: the number of messages, their bytes, their lease and the wait.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Maximum number of messages, 10 by default.
    pub count_max: u32,
    /// Maximum bytes of the messages, 1 MiB by default. The first message may exceed it.
    pub bytes_max: u32,
    /// Duration of the leases; `None`, the default, selects the queue's setting.
    pub lease: Option<Duration>,
    /// Maximum wait for the first message; zero by default, which returns immediately.
    pub wait: Duration,
    /// `true` if the leases outlive this client's connection. Otherwise, the end of the connection returns the messages
    /// immediately.
    pub outlives_connection: bool,
}

impl Default for Receive {
    fn default() -> Self {
        Self { count_max: 10, bytes_max: 1 << 20, lease: None, wait: Duration::ZERO, outlives_connection: false }
    }
}

/// Messages that this client has leased.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Received {
    /// Duration of the leases, from the receipt of each message on.
    pub lease: Duration,
    /// The leased messages, each with the receipt that [`Queue::ack`] and [`Queue::nack`] take. Empty if none arrived
    /// in time.
    pub messages: Vec<ReceivedMessage>,
}

impl Client {
    /// Returns a handle of the queue `name`, which need not exist.
    pub fn queue(&self, name: &str) -> Queue {
        Queue { session: self.session.clone(), name: name.into() }
    }

    /// Creates a queue. Succeeds if the queue already exists with the same settings.
    pub async fn create_queue(&self, new: NewQueue) -> Result<QueueInfo> {
        match call(&self.session, QueueRequest::Create(new)).await? {
            QueueResponse::Created(info) => Ok(info),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Returns all queues whose names begin with `prefix`, in the order of their names, without their notes.
    pub async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueInfo>> {
        let mut found: Vec<QueueInfo> = Vec::new();
        loop {
            let after = found.last().map_or(String::new(), |queue| queue.queue.clone());
            let request = QueueRequest::List { prefix: prefix.to_owned(), after, count_max: LIST_COUNT };
            match call(&self.session, request).await? {
                QueueResponse::Queues { queues, is_last } => {
                    found.extend(queues);
                    if is_last {
                        return Ok(found);
                    }
                }
                other => return Err(unexpected_of_queues(other)),
            }
        }
    }

    /// Stops a running redrive. Returns its progress.
    pub async fn cancel_redrive(&self, redrive: u64) -> Result<RedriveInfo> {
        match call(&self.session, QueueRequest::CancelRedrive { redrive }).await? {
            QueueResponse::RedriveCancelled(redrive) => Ok(redrive),
            other => Err(unexpected_of_queues(other)),
        }
    }
}

async fn call(session: &Session, request: QueueRequest) -> Result<QueueResponse> {
    match session.call(&Request::Queue(request)).await? {
        Response::Queue(response) => Ok(response),
        other => Err(unexpected(&other)),
    }
}

fn unexpected_of_queues(response: QueueResponse) -> Error {
    unexpected(&Response::Queue(response))
}

impl Queue {
    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn named(&self) -> String {
        self.name.to_string()
    }

    async fn ask(&self, request: QueueRequest) -> Result<QueueResponse> {
        call(&self.session, request).await
    }

    /// Changes settings of the queue. Settings that are not named keep their values.
    pub async fn alter(&self, settings: Named) -> Result<QueueInfo> {
        match self.ask(QueueRequest::Alter { queue: self.named(), settings }).await? {
            QueueResponse::Altered(info) => Ok(info),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Deletes the queue, with its messages if the queue owns its topic.
    pub async fn delete(&self) -> Result<()> {
        match self.ask(QueueRequest::Delete { queue: self.named() }).await? {
            QueueResponse::Deleted => Ok(()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Returns the settings of the queue, and its number of messages in each phase.
    pub async fn describe(&self) -> Result<QueueInfo> {
        match self.ask(QueueRequest::Describe { queue: self.named() }).await? {
            QueueResponse::Described(info) => Ok(info),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Sends a message. On return it is durable, if the queue's topic is.
    pub async fn send(&self, message: OutMessage) -> Result<Sent> {
        self.send_in_requests(vec![message], false).await.into_iter().next().unwrap_or_else(|| Err(too_few_answers()))
    }

    /// Sends many messages in their order, with several requests in flight. Returns one result per message.
    pub async fn send_many(&self, messages: Vec<OutMessage>) -> Vec<Result<Sent>> {
        self.send_in_requests(messages, false).await
    }

    /// Sends messages that were moved from another queue. Their headers keep the history of each message: `thalweg.id`,
    /// `thalweg.sent`, `thalweg.attempts` and others.
    pub async fn send_moved(&self, messages: Vec<OutMessage>) -> Vec<Result<Sent>> {
        self.send_in_requests(messages, true).await
    }

    /// Sends messages. Those that a node refuses because it does not lead any more are sent again, in their order.
    async fn send_in_requests(&self, messages: Vec<OutMessage>, is_move: bool) -> Vec<Result<Sent>> {
        if !self.session.is_of_cluster() {
            return self.send_once(messages, is_move).await;
        }
        let begin = Instant::now();
        let mut backoff = Backoff::new();
        let mut results = self.send_once(messages.clone(), is_move).await;
        loop {
            let refused: Vec<usize> = (0..results.len()).filter(|at| is_refused(&results[*at])).collect();
            let wait = backoff.next();
            if refused.is_empty() || begin.elapsed() + wait >= self.session.settings().request_timeout {
                return results;
            }
            tokio::time::sleep(wait).await;
            let again = refused.iter().filter_map(|at| messages.get(*at).cloned()).collect();
            for (at, result) in refused.into_iter().zip(self.send_once(again, is_move).await) {
                results[at] = result;
            }
        }
    }

    /// Sends messages in several requests. After a refusal by a node that does not lead any more no further request is
    /// sent, so that no message overtakes another.
    async fn send_once(&self, messages: Vec<OutMessage>, is_move: bool) -> Vec<Result<Sent>> {
        let refusal = OnceLock::new();
        let requests = stream::iter(batches(messages)).map(async |batch| {
            if let Some(error) = refusal.get() {
                return vec![Err(Error::clone(error)); batch.len()];
            }
            let results = self.send_together(batch, is_move).await;
            if let Some(Err(error)) = results.iter().find(|result| is_refused(result)) {
                refusal.get_or_init(|| error.clone());
            }
            results
        });
        requests.buffered(SENDS_IN_FLIGHT_MAX).concat().await
    }

    /// Sends one request, and returns one result per message.
    async fn send_together(&self, messages: Vec<OutMessage>, is_move: bool) -> Vec<Result<Sent>> {
        let count = messages.len();
        match self.ask(QueueRequest::Send { queue: self.named(), is_move, messages }).await {
            Ok(QueueResponse::Sent(sent)) if sent.len() == count => sent,
            Ok(other) => vec![Err(unexpected_of_queues(other)); count],
            Err(error) => vec![Err(error); count],
        }
    }

    /// Leases messages. If the queue has none, waits for the first up to [`Receive::wait`].
    pub async fn receive(&self, receive: &Receive) -> Result<Received> {
        let Receive { count_max, bytes_max, lease, wait, outlives_connection } = *receive;
        let request = Request::Queue(QueueRequest::Receive(wire::queues::Receive {
            queue: self.named(),
            count_max,
            bytes_max,
            lease_ms: lease.map(millis),
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            outlives_connection,
        }));
        let timeout = self.session.settings().request_timeout.saturating_add(wait);
        match self.session.call_within(&request, timeout).await? {
            Response::Queue(QueueResponse::Received { lease_ms, messages }) => {
                Ok(Received { lease: Duration::from_millis(lease_ms), messages })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Acknowledges messages, which are not redelivered then. Returns one answer per receipt.
    pub async fn ack(&self, receipts: &[String]) -> Result<Vec<LeaseAnswer>> {
        match self.ask(QueueRequest::Ack { queue: self.named(), receipts: receipts.to_vec() }).await? {
            QueueResponse::Acked(answers) => counted(answers, receipts.len()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Returns messages to the queue. Other receivers get them after the given delay; `None` selects the queue's
    /// setting.
    pub async fn nack(&self, leases: &[(String, Option<Duration>)]) -> Result<Vec<LeaseAnswer>> {
        let named = leases.iter().map(|(receipt, delay)| (receipt.clone(), delay.map(millis))).collect();
        match self.ask(QueueRequest::Nack { queue: self.named(), leases: named }).await? {
            QueueResponse::Nacked(answers) => counted(answers, leases.len()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Extends leases: each then ends after the given duration from now.
    pub async fn extend(&self, leases: &[(String, Duration)]) -> Result<Vec<LeaseAnswer>> {
        let named = leases.iter().map(|(receipt, lease)| (receipt.clone(), millis(*lease))).collect();
        match self.ask(QueueRequest::Extend { queue: self.named(), leases: named }).await? {
            QueueResponse::Extended(answers) => counted(answers, leases.len()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Returns unacknowledged messages after a position, without leasing them. An empty result means that there are no
    /// more.
    pub async fn peek(&self, after: Option<(PartitionId, Offset)>, count_max: u32) -> Result<Vec<PeekedMessage>> {
        match self.ask(QueueRequest::Peek { queue: self.named(), after, count_max }).await? {
            QueueResponse::Peeked(messages) => Ok(messages),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Acknowledges all messages, including leased ones. Returns their number.
    pub async fn purge(&self) -> Result<u64> {
        match self.ask(QueueRequest::Purge { queue: self.named() }).await? {
            QueueResponse::Purged(count) => Ok(count),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Moves the queue to another position of its topic: to the earliest record, to a time, or to the end (live).
    pub async fn seek(&self, to: Start) -> Result<()> {
        match self.ask(QueueRequest::Seek { queue: self.named(), to }).await? {
            QueueResponse::Sought => Ok(()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Starts a redrive: moves the messages to another queue, or each to the queue that it came from, with up to `rate`
    /// messages per second (`None` for no limit). Returns the number of the redrive.
    pub async fn start_redrive(&self, to: Option<&str>, rate: Option<u32>) -> Result<u64> {
        let request = QueueRequest::StartRedrive { queue: self.named(), to: to.map(str::to_owned), rate };
        match self.ask(request).await? {
            QueueResponse::RedriveStarted(redrive) => Ok(redrive),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Returns the redrives of this queue, newest first.
    pub async fn redrives(&self) -> Result<Vec<RedriveInfo>> {
        match self.ask(QueueRequest::ListRedrives { queue: self.named() }).await? {
            QueueResponse::Redrives(redrives) => Ok(redrives),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Starts building a worker, which processes the messages of this queue.
    pub fn worker(&self) -> Worker {
        Worker::new(self.clone())
    }

    /// Returns a handle of this queue over a separate connection.
    fn sibling(&self) -> Self {
        Self { session: self.session.sibling(), name: self.name.clone() }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn counted(answers: Vec<LeaseAnswer>, count: usize) -> Result<Vec<LeaseAnswer>> {
    if answers.len() == count { Ok(answers) } else { Err(too_few_answers()) }
}

/// Returns `true` if a message was not taken because the node does not lead any more.
fn is_refused(result: &Result<Sent>) -> bool {
    result.as_ref().is_err_and(|error| error.kind == ErrorKind::NotLeader)
}

fn too_few_answers() -> Error {
    Error::malformed("the broker did not answer for each message")
}

/// Groups messages into requests.
fn batches(messages: Vec<OutMessage>) -> Vec<Vec<OutMessage>> {
    let mut batches: Vec<Vec<OutMessage>> = Vec::new();
    let mut bytes = 0;
    for message in messages {
        let len = message.wire_bytes();
        match batches.last_mut() {
            Some(last) if last.len() < SEND_COUNT_MAX && bytes + len <= SEND_BYTES_MAX => {
                bytes += len;
                last.push(message);
            }
            _ => {
                bytes = len;
                batches.push(vec![message]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_sent_together_are_bounded_and_keep_their_order() {
        let sizes = [10, SEND_BYTES_MAX + 1, 10, 10, SEND_BYTES_MAX / 2, SEND_BYTES_MAX / 2];
        let mut messages: Vec<_> = sizes.iter().map(|len| OutMessage::new(vec![0; *len])).collect();
        messages.extend((0..2 * SEND_COUNT_MAX).map(|_| OutMessage::new("x")));
        let batches = batches(messages.clone());
        let shape: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(shape, [1, 1, 3, SEND_COUNT_MAX, SEND_COUNT_MAX, 1]);
        assert_eq!(batches.concat(), messages);
    }
}
