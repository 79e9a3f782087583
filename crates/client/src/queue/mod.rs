//! Queues: sending to them, receiving from them under leases, and looking after them.

mod worker;

use std::sync::Arc;
use std::time::Duration;

use engine::{Error, Offset, PartitionId, Result, Start};
use futures_util::{StreamExt, stream};
use wire::queues::{
    LeaseAnswer, Named, NewQueue, OutMessage, PeekedMessage, QueueInfo, ReceivedMessage, RedriveInfo, Sent,
};
use wire::{QueueRequest, QueueResponse, Request, Response};

use crate::client::Client;
use crate::link::unexpected;
use crate::session::Session;

pub use worker::{Outcome, WorkReport, Worker};

/// Queues in one answer.
const LIST_COUNT: u32 = 500;
/// What is sent together, at most.
const SEND_COUNT_MAX: usize = 500;
const SEND_BYTES_MAX: usize = 1 << 20;
/// Requests with messages that are on the way at a time.
const SENDS_IN_FLIGHT_MAX: usize = 16;

/// A queue of a broker: a view of a topic whose messages go to one receiver each.
///
/// ```no_run
/// # async fn example(client: client::Client) -> Result<(), client::Error> {
/// use client::{NewQueue, OutMessage, Receive};
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

/// How much a receiver wants, and how long it waits for the first.
#[derive(Clone, Debug)]
pub struct Receive {
    pub count_max: u32,
    /// Beyond the first message.
    pub bytes_max: u32,
    /// How long the receiver has the messages; as the queue is set where that is not said.
    pub lease: Option<Duration>,
    pub wait: Duration,
    /// Without it the messages go back at once when this client's connection ends; with it, when their lease does.
    pub outlives_connection: bool,
}

impl Default for Receive {
    fn default() -> Self {
        Self { count_max: 10, bytes_max: 1 << 20, lease: None, wait: Duration::ZERO, outlives_connection: false }
    }
}

/// What a receiver has now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Received {
    /// From the receipt of each message on.
    pub lease: Duration,
    pub messages: Vec<ReceivedMessage>,
}

impl Client {
    /// A queue of this name, which may be there or not.
    pub fn queue(&self, name: &str) -> Queue {
        Queue { session: self.session.clone(), name: name.into() }
    }

    /// Creates a queue. One that is there already with the same settings is fine.
    pub async fn create_queue(&self, new: NewQueue) -> Result<QueueInfo> {
        match call(&self.session, QueueRequest::Create(new)).await? {
            QueueResponse::Created(info) => Ok(info),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// All queues whose names begin so, in the order of their names, without their notes.
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

    /// Stops a move of messages that runs.
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
    pub fn name(&self) -> &str {
        &self.name
    }

    fn named(&self) -> String {
        self.name.to_string()
    }

    async fn ask(&self, request: QueueRequest) -> Result<QueueResponse> {
        call(&self.session, request).await
    }

    /// Changes settings, and leaves those that are not named.
    pub async fn alter(&self, settings: Named) -> Result<QueueInfo> {
        match self.ask(QueueRequest::Alter { queue: self.named(), settings }).await? {
            QueueResponse::Altered(info) => Ok(info),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Deletes the queue, with its messages if its topic came with it.
    pub async fn delete(&self) -> Result<()> {
        match self.ask(QueueRequest::Delete { queue: self.named() }).await? {
            QueueResponse::Deleted => Ok(()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Its settings, and how many messages it has of each kind.
    pub async fn describe(&self) -> Result<QueueInfo> {
        match self.ask(QueueRequest::Describe { queue: self.named() }).await? {
            QueueResponse::Described(info) => Ok(info),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Sends a message. It lasts, where its topic does, when this is over.
    pub async fn send(&self, message: OutMessage) -> Result<Sent> {
        self.send_together(vec![message], false).await.into_iter().next().unwrap_or_else(|| Err(too_few_answers()))
    }

    /// Sends many messages, in their order and many on the way at a time. Each has an answer of its own.
    pub async fn send_many(&self, messages: Vec<OutMessage>) -> Vec<Result<Sent>> {
        self.send_parcels(messages, false).await
    }

    /// Sends messages that were elsewhere before, with what their headers say about that: `thalweg.id`,
    /// `thalweg.sent`, `thalweg.attempts` and the like.
    pub async fn send_moved(&self, messages: Vec<OutMessage>) -> Vec<Result<Sent>> {
        self.send_parcels(messages, true).await
    }

    async fn send_parcels(&self, messages: Vec<OutMessage>, is_move: bool) -> Vec<Result<Sent>> {
        let parcels = stream::iter(parcels(messages)).map(|parcel| self.send_together(parcel, is_move));
        parcels.buffered(SENDS_IN_FLIGHT_MAX).concat().await
    }

    /// One request, and an answer for each of its messages.
    async fn send_together(&self, messages: Vec<OutMessage>, is_move: bool) -> Vec<Result<Sent>> {
        let count = messages.len();
        match self.ask(QueueRequest::Send { queue: self.named(), is_move, messages }).await {
            Ok(QueueResponse::Sent(sent)) if sent.len() == count => sent,
            Ok(other) => vec![Err(unexpected_of_queues(other)); count],
            Err(error) => vec![Err(error); count],
        }
    }

    /// Leases messages. Where there are none it waits for the first, as long as it may.
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

    /// Messages are done with: none of them comes again.
    pub async fn ack(&self, receipts: &[String]) -> Result<Vec<LeaseAnswer>> {
        match self.ask(QueueRequest::Ack { queue: self.named(), receipts: receipts.to_vec() }).await? {
            QueueResponse::Acked(answers) => counted(answers, receipts.len()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Messages go back, for others after a delay: as the queue is set where none is named.
    pub async fn nack(&self, leases: &[(String, Option<Duration>)]) -> Result<Vec<LeaseAnswer>> {
        let named = leases.iter().map(|(receipt, delay)| (receipt.clone(), delay.map(millis))).collect();
        match self.ask(QueueRequest::Nack { queue: self.named(), leases: named }).await? {
            QueueResponse::Nacked(answers) => counted(answers, leases.len()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Leases end so long from now.
    pub async fn extend(&self, leases: &[(String, Duration)]) -> Result<Vec<LeaseAnswer>> {
        let named = leases.iter().map(|(receipt, lease)| (receipt.clone(), millis(*lease))).collect();
        match self.ask(QueueRequest::Extend { queue: self.named(), leases: named }).await? {
            QueueResponse::Extended(answers) => counted(answers, leases.len()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Messages that are not done with, after one of them, as they are; nobody has them for it. There is nothing more
    /// once none comes.
    pub async fn peek(&self, after: Option<(PartitionId, Offset)>, count_max: u32) -> Result<Vec<PeekedMessage>> {
        match self.ask(QueueRequest::Peek { queue: self.named(), after, count_max }).await? {
            QueueResponse::Peeked(messages) => Ok(messages),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// All messages are done with, those that somebody has, too. Returns how many there were.
    pub async fn purge(&self) -> Result<u64> {
        match self.ask(QueueRequest::Purge { queue: self.named() }).await? {
            QueueResponse::Purged(count) => Ok(count),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// The queue goes on elsewhere in its topic: at the earliest record, at a time, or live, at its end.
    pub async fn seek(&self, to: Start) -> Result<()> {
        match self.ask(QueueRequest::Seek { queue: self.named(), to }).await? {
            QueueResponse::Sought => Ok(()),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Its messages go to another queue, or each to where it came from, so many a second.
    pub async fn start_redrive(&self, to: Option<&str>, rate: Option<u32>) -> Result<u64> {
        let request = QueueRequest::StartRedrive { queue: self.named(), to: to.map(str::to_owned), rate };
        match self.ask(request).await? {
            QueueResponse::RedriveStarted(redrive) => Ok(redrive),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Its moves of messages, the newest first.
    pub async fn redrives(&self) -> Result<Vec<RedriveInfo>> {
        match self.ask(QueueRequest::ListRedrives { queue: self.named() }).await? {
            QueueResponse::Redrives(redrives) => Ok(redrives),
            other => Err(unexpected_of_queues(other)),
        }
    }

    /// Begins to work through its messages.
    pub fn worker(&self) -> Worker {
        Worker::new(self.clone())
    }

    /// The same queue over a connection of its own.
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

fn too_few_answers() -> Error {
    Error::malformed("the broker did not answer for each of them")
}

/// Messages that are sent together.
fn parcels(messages: Vec<OutMessage>) -> Vec<Vec<OutMessage>> {
    let mut parcels: Vec<Vec<OutMessage>> = Vec::new();
    let mut bytes = 0;
    for message in messages {
        let len = message.wire_bytes();
        match parcels.last_mut() {
            Some(last) if last.len() < SEND_COUNT_MAX && bytes + len <= SEND_BYTES_MAX => {
                bytes += len;
                last.push(message);
            }
            _ => {
                bytes = len;
                parcels.push(vec![message]);
            }
        }
    }
    parcels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_together_is_bounded_and_keeps_its_order() {
        let sizes = [10, SEND_BYTES_MAX + 1, 10, 10, SEND_BYTES_MAX / 2, SEND_BYTES_MAX / 2];
        let mut messages: Vec<_> = sizes.iter().map(|len| OutMessage::new(vec![0; *len])).collect();
        messages.extend((0..2 * SEND_COUNT_MAX).map(|_| OutMessage::new("x")));
        let parcels = parcels(messages.clone());
        let shape: Vec<usize> = parcels.iter().map(Vec::len).collect();
        assert_eq!(shape, [1, 1, 3, SEND_COUNT_MAX, SEND_COUNT_MAX, 1]);
        assert_eq!(parcels.concat(), messages);
    }
}
