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
pub(super) struct Streams(Mutex<HashMap<String, Arc<Siblings>>>);

/// Streams of one queue.
#[derive(Default)]
struct Siblings {
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Stream that holds each outstanding message, so that an acknowledgement does not ask all streams.
    holders: Mutex<HashMap<Receipt, Arc<Stream>>>,
}

impl Siblings {
    fn hold(&self, stream: &Arc<Stream>, deliveries: &[Delivery], lease: Duration) {
        let receipts = deliveries.iter().map(|delivery| (delivery.received.receipt, stream.clone()));
        self.holders.lock().extend(receipts);
        stream.hold(deliveries, lease);
    }

    /// Removes messages that a stream does not hold any more.
    fn release<'r>(&self, receipts: impl IntoIterator<Item = &'r Receipt>) {
        let mut holders = self.holders.lock();
        receipts.into_iter().for_each(|receipt| drop(holders.remove(receipt)));
    }
}

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
    fn of(&self, queue: &str) -> Option<Arc<Siblings>> {
        self.0.lock().get(queue).cloned()
    }

    fn add(&self, queue: &str, stream: &Arc<Stream>) -> Arc<Siblings> {
        let mut all = self.0.lock();
        let siblings = all.entry(queue.to_owned()).or_default();
        siblings.streams.lock().push(stream.clone());
        siblings.clone()
    }

    fn remove(&self, queue: &str, stream: &Arc<Stream>) {
        let mut all = self.0.lock();
        let Some(siblings) = all.get(queue).cloned() else {
            return;
        };
        let mut streams = siblings.streams.lock();
        streams.retain(|other| !Arc::ptr_eq(other, stream));
        if streams.is_empty() {
            all.remove(queue);
        }
        drop((streams, all));
        siblings.release(stream.held.lock().messages.keys());
    }

    pub fn count(&self) -> usize {
        self.0.lock().values().map(|siblings| siblings.streams.lock().len()).sum()
    }

    pub fn is_open(&self, queue: &str) -> bool {
        self.0.lock().contains_key(queue)
    }

    /// Removes messages that clients no longer hold.
    pub fn forget(&self, queue: &str, receipts: &[Receipt]) {
        let Some(siblings) = self.of(queue) else {
            return;
        };
        let released: Vec<(Receipt, Arc<Stream>)> = {
            let mut holders = siblings.holders.lock();
            receipts.iter().filter_map(|receipt| Some((*receipt, holders.remove(receipt)?))).collect()
        };
        for (receipt, stream) in released {
            stream.held.lock().forget(&receipt);
            stream.freed.notify_one();
        }
    }

    /// Extends the leases of messages by these milliseconds from now.
    pub fn extend(&self, queue: &str, leases: &[(Receipt, u64)]) {
        let Some(siblings) = self.of(queue) else {
            return;
        };
        let now = Instant::now();
        let held: Vec<(Receipt, u64, Arc<Stream>)> = {
            let holders = siblings.holders.lock();
            leases.iter().filter_map(|(receipt, ms)| Some((*receipt, *ms, holders.get(receipt)?.clone()))).collect()
        };
        for (receipt, ms, stream) in held {
            if let Some((_, until)) = stream.held.lock().messages.get_mut(&receipt) {
                *until = now + Duration::from_millis(ms);
            }
        }
    }

    /// Ends the streams of a deleted queue.
    pub fn end(&self, queue: &str) {
        let Some(siblings) = self.of(queue) else {
            return;
        };
        for stream in &*siblings.streams.lock() {
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
    async fn room(&self, siblings: &Siblings) -> Result<(usize, usize)> {
        loop {
            siblings.release(&self.forget_expired());
            let next = {
                let held = self.held.lock();
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

    /// Forgets messages whose lease has expired, if the client has no room. Returns them.
    fn forget_expired(&self) -> Vec<Receipt> {
        let mut held = self.held.lock();
        if held.messages.len() < self.messages_max && held.bytes < self.bytes_max {
            return Vec::new();
        }
        let now = Instant::now();
        let expired = held.messages.iter().filter(|(_, (_, until))| *until <= now);
        let expired: Vec<Receipt> = expired.map(|(receipt, _)| *receipt).collect();
        expired.iter().for_each(|receipt| held.forget(receipt));
        expired
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
    siblings: Arc<Siblings>,
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
        siblings: ask.door.streams.add(queue.name.as_str(), &stream),
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
            let (max, bytes_max) = self.stream.room(&self.siblings).await?;
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
            self.siblings.hold(&self.stream, &deliveries, Duration::from_millis(lease_ms));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Arc<Stream> {
        let request = StreamingPullRequest {
            max_outstanding_messages: 2,
            stream_ack_deadline_seconds: 10,
            ..StreamingPullRequest::default()
        };
        Stream::open(&request).expect("a stream")
    }

    fn receipt(lease: u64) -> Receipt {
        Receipt { partition: 0, offset: lease, lease }
    }

    /// Makes a stream hold messages of no bytes.
    fn hold(siblings: &Siblings, stream: &Arc<Stream>, leases: std::ops::Range<u64>, until: Instant) {
        for lease in leases {
            siblings.holders.lock().insert(receipt(lease), stream.clone());
            stream.held.lock().messages.insert(receipt(lease), (0, until));
        }
    }

    fn held(stream: &Stream) -> usize {
        stream.held.lock().messages.len()
    }

    /// An acknowledgement reaches the stream that holds its message, and touches no other.
    #[tokio::test(start_paused = true)]
    async fn an_acknowledgement_is_of_one_stream() {
        let streams = Streams::default();
        let [a, b] = [stream(), stream()];
        let siblings = streams.add("q", &a);
        assert!(Arc::ptr_eq(&siblings, &streams.add("q", &b)));
        let until = Instant::now() + Duration::from_secs(10);
        hold(&siblings, &a, 0..2, until);
        hold(&siblings, &b, 2..4, until);
        // Were another stream asked, this would wait for its messages forever.
        let others = b.held.lock();
        streams.forget("q", &[receipt(0), receipt(9)]);
        streams.extend("q", &[(receipt(1), 20_000), (receipt(9), 20_000)]);
        drop(others);
        streams.forget("other", &[receipt(1)]);
        assert_eq!((held(&a), held(&b), siblings.holders.lock().len()), (1, 2, 3));
        assert_eq!(a.room(&siblings).await, Ok((1, HELD_BYTES_MAX)));
        // An expired lease frees room, and the message has no holder any more; the extended one is still held.
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(b.room(&siblings).await, Ok((2, HELD_BYTES_MAX)));
        assert_eq!((held(&a), held(&b), siblings.holders.lock().len()), (1, 0, 1));
        streams.remove("q", &a);
        assert_eq!((siblings.holders.lock().len(), streams.is_open("q"), streams.count()), (0, true, 1));
        streams.remove("q", &b);
        assert!(!streams.is_open("q"));
    }
}
