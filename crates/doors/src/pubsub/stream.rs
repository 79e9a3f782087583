//! Streaming pull: delivery of messages while the client has room for more, and handling of its acknowledgements.
//!
//! A client may acknowledge on its stream or by a separate call, so streams are indexed by their queue: see
//! [`Streams`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use broker::{Acting, FREE_BYTES, Hold, Holding, Identity, Receipt, Receive, Usage};
use engine::queue::QueueDefinition;
use engine::security::Operation;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::access::{self, Need};
use super::codec::{self, Encoded, Messages, STREAM_MESSAGES_MAX};
use super::errors::{Code, Failure, Result};
use super::map::{Ask, Door};
use super::names::{Kind, Name};
use super::proto::streaming_pull_response::{
    AcknowledgeConfirmation, ModifyAckDeadlineConfirmation, SubscriptionProperties,
};
use super::proto::{StreamingPullRequest, StreamingPullResponse};
use super::pull::{Outcome, ROOM_WAIT, Settlement, answer_bytes_max, given, holds, is_pushed};
use super::subscriptions::{ACK_DEADLINE_S_MAX, ACK_DEADLINE_S_MIN, missing};
use super::times::SECOND_MS;
use super::transforms::Delivery;
use crate::permissions;

pub(super) const PATH: &str = "/google.pubsub.v1.Subscriber/StreamingPull";
/// Operation on the subscription that a stream requires.
const OPERATION: Operation = Operation::Read;
/// Permissions that a stream requires.
pub(super) const NEEDS: [permissions::Need; 2] = [access::subscription(OPERATION), access::its_topic(OPERATION)];
/// Maximum number and bytes of messages in one response.
const TOGETHER_MAX: usize = 1000;
const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// Maximum number and bytes of outstanding messages of a stream, whatever limits its client sets.
const HELD_MAX: usize = 100_000;
const HELD_BYTES_MAX: usize = 1 << 30;
/// Interval of heartbeats on an otherwise idle stream to clients that request them.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// Wait of a stream before it retries because the queue of waiters for memory was full.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Lowest protocol version of clients that expect heartbeats.
const HEARTBEAT_VERSION: i64 = 1;
/// Remaining lease of the client's messages when its stream ends: it may be about to acknowledge some of them.
const GRACE_MS: u64 = 1_000;

/// Open streams of each queue.
#[derive(Default)]
pub(super) struct Streams(Mutex<HashMap<String, Vec<Arc<Stream>>>>);

/// Outstanding messages of a stream.
struct Stream {
    messages_max: usize,
    bytes_max: usize,
    held: Mutex<Held>,
    /// Notified when there is room again, or when the stream has to end.
    freed: Notify,
    is_over: AtomicBool,
    /// Duration of the client's leases, ms.
    lease_ms: AtomicU64,
}

#[derive(Default)]
struct Held {
    /// Size of each message, and the time at which its lease expires.
    messages: HashMap<Receipt, (usize, Instant)>,
    bytes: usize,
}

impl Held {
    fn forget(&mut self, receipt: &Receipt) {
        self.bytes -= self.messages.remove(receipt).map_or(0, |(bytes, _)| bytes);
    }
}

impl Streams {
    fn of(&self, queue: &str) -> Vec<Arc<Stream>> {
        self.0.lock().get(queue).cloned().unwrap_or_default()
    }

    fn add(&self, queue: &str, stream: &Arc<Stream>) {
        self.0.lock().entry(queue.to_owned()).or_default().push(stream.clone());
    }

    fn remove(&self, queue: &str, stream: &Arc<Stream>) {
        let mut all = self.0.lock();
        if let Some(streams) = all.get_mut(queue) {
            streams.retain(|other| !Arc::ptr_eq(other, stream));
            if streams.is_empty() {
                all.remove(queue);
            }
        }
    }

    pub fn count(&self) -> usize {
        self.0.lock().values().map(Vec::len).sum()
    }

    pub fn is_open(&self, queue: &str) -> bool {
        self.0.lock().contains_key(queue)
    }

    /// Removes messages that clients no longer hold.
    pub fn forget(&self, queue: &str, receipts: &[Receipt]) {
        for stream in self.of(queue) {
            let mut held = stream.held.lock();
            let before = held.messages.len();
            receipts.iter().for_each(|receipt| held.forget(receipt));
            if held.messages.len() < before {
                stream.freed.notify_one();
            }
        }
    }

    /// Extends the leases of messages by these milliseconds from now.
    pub fn extend(&self, queue: &str, leases: &[(Receipt, u64)]) {
        let now = Instant::now();
        for stream in self.of(queue) {
            let mut held = stream.held.lock();
            for (receipt, ms) in leases {
                if let Some((_, until)) = held.messages.get_mut(receipt) {
                    *until = now + Duration::from_millis(*ms);
                }
            }
        }
    }

    /// Ends the streams of a deleted queue.
    pub fn end(&self, queue: &str) {
        for stream in self.of(queue) {
            stream.is_over.store(true, Ordering::Release);
            stream.freed.notify_one();
        }
    }
}

impl Stream {
    fn open(request: &StreamingPullRequest) -> Result<Arc<Self>> {
        let limit =
            |given: i64, most: usize| usize::try_from(given).ok().filter(|n| *n > 0).map_or(most, |n| n.min(most));
        Ok(Arc::new(Self {
            messages_max: limit(request.max_outstanding_messages, HELD_MAX),
            bytes_max: limit(request.max_outstanding_bytes, HELD_BYTES_MAX),
            held: Mutex::default(),
            freed: Notify::new(),
            is_over: AtomicBool::new(false),
            lease_ms: AtomicU64::new(deadline_ms(request.stream_ack_deadline_seconds)?),
        }))
    }

    /// Returns the number and bytes of messages that the client has room for; waits until both are positive. An expired
    /// lease frees room, too.
    async fn room(&self) -> Result<(usize, usize)> {
        loop {
            let next = {
                let mut held = self.held.lock();
                if held.messages.len() >= self.messages_max || held.bytes >= self.bytes_max {
                    let now = Instant::now();
                    let over: Vec<Receipt> =
                        held.messages.iter().filter(|(_, (_, until))| *until <= now).map(|(r, _)| *r).collect();
                    over.iter().for_each(|receipt| held.forget(receipt));
                }
                let room = self.messages_max.saturating_sub(held.messages.len());
                let bytes = self.bytes_max.saturating_sub(held.bytes);
                if room > 0 && bytes > 0 {
                    return Ok((room, bytes));
                }
                held.messages.values().map(|(_, until)| *until).min()
            };
            if self.is_over.load(Ordering::Acquire) {
                return Err(missing());
            }
            let until = next.unwrap_or_else(|| Instant::now() + HEARTBEAT);
            drop(tokio::time::timeout_at(until, self.freed.notified()).await);
        }
    }

    fn hold(&self, deliveries: &[Delivery], lease: Duration) {
        let until = Instant::now() + lease;
        let mut held = self.held.lock();
        for Delivery { received, message } in deliveries {
            let bytes = message.data.len();
            held.bytes += bytes;
            held.messages.insert(received.receipt, (bytes, until));
        }
    }
}

fn deadline_ms(seconds: i32) -> Result<u64> {
    if (ACK_DEADLINE_S_MIN..=ACK_DEADLINE_S_MAX).contains(&seconds) {
        Ok(seconds as u64 * SECOND_MS)
    } else {
        Err(Failure::invalid("stream_ack_deadline_seconds must be between 10 and 600 seconds"))
    }
}

/// State that both halves of a stream share.
struct Dialogue {
    door: Arc<Door>,
    identity: Arc<Identity>,
    queue: Arc<QueueDefinition>,
    stream: Arc<Stream>,
    address: IpAddr,
    answers: mpsc::Sender<Result<Encoded>>,
    hears_heartbeats: bool,
    /// Count of the stream for the quotas of its client.
    _hold: Hold,
}

/// Opens a stream with its first request. Its responses are read from the channel.
pub(super) async fn open(ask: Ask, mut messages: Messages) -> Result<mpsc::Receiver<Result<Encoded>>> {
    let first = next(&mut messages).await?.unwrap_or_default();
    if first.subscription.is_empty() {
        return Err(Failure::invalid("first message must set subscription"));
    }
    if first.stream_ack_deadline_seconds == 0 {
        return Err(Failure::invalid("first message must set stream_ack_deadline_seconds"));
    }
    let stream = Stream::open(&first)?;
    let name = Name::parse(Kind::Subscription, &first.subscription)?;
    access::authorize(&ask, &[Need::on(OPERATION, &first.subscription)]).await?;
    let (answers, receiver) = mpsc::channel(STREAM_MESSAGES_MAX);
    let Some(queue) = ask.door.queue_to_pull(&name).await? else {
        // No message will ever arrive; the stream stays open, as with Google's service.
        tokio::spawn(async move {
            let mut drain = ask.drain.clone();
            tokio::select! { () = answers.closed() => {} () = drain.begun() => {} }
        });
        return Ok(receiver);
    };
    if is_pushed(&ask.door, &queue)? {
        let message = format!("Subscription is a push subscription: (resource={})", name.id);
        return Err(Failure::precondition(message));
    }
    let hold = ask.door.broker.security.hold(broker::Door::Pubsub, &ask.identity, Holding::Subscription)?;
    let dialogue = Dialogue {
        door: ask.door.clone(),
        identity: ask.identity.clone(),
        queue,
        stream,
        address: ask.address,
        answers,
        hears_heartbeats: first.protocol_version >= HEARTBEAT_VERSION,
        _hold: hold,
    };
    let user = ask.identity.user().clone();
    let client = Acting { door: broker::Door::Pubsub, address: Some(ask.address), user };
    tokio::spawn(broker::for_client(client, dialogue.run(first, messages, ask)));
    Ok(receiver)
}

async fn next(messages: &mut Messages) -> Result<Option<StreamingPullRequest>> {
    let message = messages.next().await?;
    messages.let_go();
    message.map(codec::decode).transpose()
}

impl Dialogue {
    async fn run(self, first: StreamingPullRequest, messages: Messages, ask: Ask) {
        let name = self.queue.name.as_str();
        self.door.streams.add(name, &self.stream);
        let mut drain = ask.drain;
        let deadline = async {
            match ask.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = self.listen(first, messages) => end,
            end = self.give() => end,
            () = self.answers.closed() => Ok(()),
            () = drain.begun() => Err(Failure::new(Code::Unavailable, "the broker is shutting down")),
            () = deadline => Err(Failure::new(Code::DeadlineExceeded, "the deadline of the stream has passed")),
        };
        self.door.streams.remove(name, &self.stream);
        self.door.is_active(&self.queue);
        if let Err(failure) = end {
            // The receiver may already be closed.
            drop(self.answers.try_send(Err(failure)));
        }
        tokio::select! {
            () = self.leave() => {}
            () = drain.aborted() => {}
        }
    }

    /// Shortens the leases of unacknowledged messages, so that they are redelivered soon.
    async fn leave(&self) {
        let now = Instant::now();
        let soon = |until: Instant| until.saturating_duration_since(now) > Duration::from_millis(GRACE_MS);
        let left: Vec<(Receipt, u64)> = {
            let held = self.stream.held.lock();
            held.messages.iter().filter(|(_, (_, until))| soon(*until)).map(|(r, _)| (*r, GRACE_MS)).collect()
        };
        if left.is_empty() {
            return;
        }
        if let Err(error) = self.door.broker.queues.extend(self.queue.name.as_str(), &left).await {
            tracing::debug!(queue = %self.queue.name, %error, "cannot release the messages of a closed stream");
        }
    }

    /// Processes the client's requests until it closes its half of the stream.
    async fn listen(&self, first: StreamingPullRequest, mut messages: Messages) -> Result<()> {
        self.send(StreamingPullResponse::default()).await;
        self.hear(&first).await?;
        while let Some(request) = next(&mut messages).await? {
            if !request.subscription.is_empty() {
                return Err(Failure::invalid("subscription may only be set in first message"));
            }
            if request.max_outstanding_messages != 0 || request.max_outstanding_bytes != 0 {
                return Err(Failure::invalid("flow control settings may only be set in first message"));
            }
            if request.stream_ack_deadline_seconds != 0 {
                self.stream.lease_ms.store(deadline_ms(request.stream_ack_deadline_seconds)?, Ordering::Relaxed);
            }
            self.hear(&request).await?;
        }
        Ok(())
    }

    /// Checks that the client may still read the subscription.
    async fn authorize(&self) -> Result<()> {
        let queue = self.queue.name.as_str();
        Ok(self.door.broker.authorize_queue(&self.identity, OPERATION, queue).await?)
    }

    async fn hear(&self, request: &StreamingPullRequest) -> Result<()> {
        let deadlines = &request.modify_deadline_seconds;
        if request.modify_deadline_ack_ids.len() != deadlines.len() {
            return Err(Failure::invalid("ack IDs and deadlines must have the same size"));
        }
        if request.ack_ids.is_empty() && deadlines.is_empty() {
            if self.hears_heartbeats {
                self.send(StreamingPullResponse::default()).await;
            }
            return Ok(());
        }
        let usage = Usage { requests: 1, bytes_in: request.encoded_len() as u64, bytes_out: 0 };
        let delay = self.door.broker.security.charge(broker::Door::Pubsub, &self.identity, None, usage);
        self.authorize().await?;
        let done: Vec<(String, Settlement)> =
            request.ack_ids.iter().map(|ack_id| (ack_id.clone(), Settlement::Done)).collect();
        let modified = request.modify_deadline_ack_ids.iter().zip(deadlines);
        let modified = modified.map(|(ack_id, seconds)| Ok((ack_id.clone(), holds(*seconds)?)));
        let modified: Vec<(String, Settlement)> = modified.collect::<Result<_>>()?;
        let of_done = self.door.settle(&self.queue, &done).await?;
        let of_modified = self.door.settle(&self.queue, &modified).await?;
        if self.queue.settings.is_strict {
            self.send(StreamingPullResponse {
                acknowledge_confirmation: (!done.is_empty()).then(|| confirm_done(of_done)),
                modify_ack_deadline_confirmation: (!modified.is_empty()).then(|| confirm_modified(of_modified)),
                ..StreamingPullResponse::default()
            })
            .await;
        }
        // The next message is read once the quotas have paid for this one.
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// Delivers messages while the client has room for them.
    async fn give(&self) -> Result<()> {
        loop {
            let (max, bytes_max) = self.stream.room().await?;
            // If the receiver is closed, the other half ends the stream.
            let Ok(place) = self.answers.reserve().await else {
                return Ok(());
            };
            let memory = self.door.broker.answers();
            if memory.wait_for_turn(Some(self.address), ROOM_WAIT).await.is_err() {
                // The queue of waiters is full, so that this stream cannot wait in it and retries a little later.
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            let lease_ms = self.stream.lease_ms.load(Ordering::Relaxed);
            let receive = Receive {
                max: max.min(TOGETHER_MAX),
                bytes_max: bytes_max.min(TOGETHER_BYTES_MAX),
                lease_ms: Some(lease_ms),
                wait: HEARTBEAT,
            };
            self.authorize().await?;
            let received = self.door.receive(&self.queue, &receive);
            let received = self.door.broker.security.while_permitted(|| self.authorize(), received);
            let deliveries = match received.await? {
                Ok(deliveries) => deliveries,
                Err(error) if error.kind == engine::ErrorKind::NotFound => return Err(missing()),
                Err(error) => return Err(error.into()),
            };
            // The permission may have ended while no message came.
            if let Err(refusal) = self.authorize().await {
                self.put_back(deliveries).await?;
                return Err(refusal);
            }
            if deliveries.is_empty() && !self.hears_heartbeats {
                continue;
            }
            let held = match answer_bytes_max(&deliveries) {
                ..=FREE_BYTES => None,
                bytes => match memory.take(Some(self.address), bytes, ROOM_WAIT).await {
                    Ok(held) => Some(held),
                    Err(error) if error.kind == engine::ErrorKind::Busy => {
                        self.put_back(deliveries).await?;
                        tokio::time::sleep(LOOK_AGAIN).await;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            self.stream.hold(&deliveries, Duration::from_millis(lease_ms));
            let messages = deliveries.into_iter().map(|delivery| given(&self.door, &self.queue, delivery));
            let received_messages = messages.collect::<Result<_>>()?;
            let answer = StreamingPullResponse { received_messages, ..StreamingPullResponse::default() };
            let answer = self.with_properties(answer);
            let bytes_out = answer.encoded_len();
            let encoded = memory.work(bytes_out, || Encoded::charged(&answer, held)).await;
            place.send(Ok(encoded));
            self.pay(bytes_out).await;
        }
    }

    /// Charges a response to the quotas of the client, and waits until it is no longer in debt.
    async fn pay(&self, bytes_out: usize) {
        let usage = Usage::response(bytes_out);
        let security = &self.door.broker.security;
        if !security.charge(broker::Door::Pubsub, &self.identity, None, usage).is_zero() {
            security.clone().repaid(self.identity.clone(), usage).await;
        }
    }

    async fn put_back(&self, deliveries: Vec<Delivery>) -> Result<()> {
        let received = deliveries.into_iter().map(|delivery| delivery.received).collect();
        Ok(self.door.broker.queues.untake(self.queue.name.as_str(), received).await?)
    }

    async fn send(&self, answer: StreamingPullResponse) {
        // A closed receiver is noticed elsewhere.
        drop(self.answers.send(Ok(Encoded::new(&self.with_properties(answer)))).await);
    }

    /// Adds the properties of the subscription; clients use those of the last response.
    fn with_properties(&self, answer: StreamingPullResponse) -> StreamingPullResponse {
        let settings = &self.queue.settings;
        let properties = SubscriptionProperties {
            exactly_once_delivery_enabled: settings.is_strict,
            message_ordering_enabled: settings.order == engine::queue::Order::Groups,
        };
        StreamingPullResponse { subscription_properties: Some(properties), ..answer }
    }
}

fn confirm_done(outcome: Outcome) -> AcknowledgeConfirmation {
    AcknowledgeConfirmation {
        ack_ids: outcome.good,
        invalid_ack_ids: outcome.bad,
        ..AcknowledgeConfirmation::default()
    }
}

fn confirm_modified(outcome: Outcome) -> ModifyAckDeadlineConfirmation {
    ModifyAckDeadlineConfirmation {
        ack_ids: outcome.good,
        invalid_ack_ids: outcome.bad,
        ..ModifyAckDeadlineConfirmation::default()
    }
}
