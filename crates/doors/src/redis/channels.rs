//! Channels: a message reaches the subscribers of all doors, through the topic of the channel's name if it exists.
//! Subscribing creates nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use broker::metrics::Exposition;
use broker::{Answers, Broker, Direct, Held, Hold, Origin, Permit, Subscribe, Subscription, SubscriptionHandle};
use bytes::Bytes;
use engine::glob::Glob;
use engine::security::TenantName;
use engine::streams::ID_HEADER;
use engine::{
    Delivery, ErrorKind, Missing, Overflow, PartitionId, Pattern, RecordView, Result, Rule, SourceId, Start, TopicName,
};
use net::service::Reply;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::clients::Client;
use super::codec::{Answer, Follow};
use super::events::Registration;
use super::later::{Later, before};
use super::names::{Tenant, channel_name, channel_of, channel_of_topic, prefix, topic_glob, topic_of};
use super::receiver::Receiver;
use super::writer::Writer;
use crate::fields;

/// Maximum number of batches queued for a slow subscriber. Beyond it the subscriber is disconnected, as in Redis.
const QUEUE_BATCHES_MAX: usize = 16_384;

/// Bytes that may be queued for one connection without being charged: a connection itself costs more.
const FREE_BYTES: usize = 16 << 10;
/// Maximum time that a connection waits for memory for its unread messages.
const ROOM_WAIT: Duration = Duration::from_secs(10);

/// Subscribers of all connections of this door.
#[derive(Default)]
pub(super) struct Channels {
    state: Mutex<State>,
    /// Number of connections that were closed because they did not read their messages.
    slow: AtomicU64,
}

#[derive(Default)]
struct State {
    channels: BTreeMap<Vec<u8>, usize>,
    patterns: BTreeMap<Vec<u8>, usize>,
}

/// Subscriptions of one connection. Dropping it ends all of them.
#[derive(Default)]
pub(super) struct Subscribed {
    pub(super) channels: BTreeMap<Vec<u8>, ChannelSubscription>,
    pub(super) patterns: BTreeMap<Vec<u8>, ChannelSubscription>,
}

/// Subscription to a channel or a pattern. Dropping it ends the subscription.
pub(super) struct ChannelSubscription {
    handle: SubscriptionHandle,
    receiver: Arc<ChannelReceiver>,
    /// Delivery of keyspace events, if the subscription may match their channels.
    pub(super) events: Option<Registration>,
}

/// A subscription whose messages are not delivered yet.
pub(super) struct Ready {
    broker: Arc<Broker>,
    subscription: Subscription,
    counted: Counted,
}

impl Ready {
    /// Returns the number of names that the pattern was compared with while no other task of the thread ran.
    pub(super) fn compared(&self) -> usize {
        self.subscription.compared()
    }

    /// Starts the delivery.
    fn begin(self) {
        let Self { broker, subscription, counted } = self;
        let lane = subscription.lane;
        let drain = drain(subscription, counted);
        tokio::spawn(async move {
            if let Err(error) = broker.run_on_lane(lane, drain).await {
                tracing::debug!(%error, "cannot subscribe to a channel");
            }
        });
    }
}

/// Subscription in the numbers of subscribers, until it is dropped.
struct Counted {
    channels: Arc<Channels>,
    receiver: Arc<ChannelReceiver>,
}

impl Counted {
    fn new(channels: &Arc<Channels>, receiver: Arc<ChannelReceiver>) -> Self {
        channels.count(&receiver, true);
        Self { channels: channels.clone(), receiver }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.channels.count(&self.receiver, false);
    }
}

/// Subscriptions and monitors whose confirmations are not written yet. Dropping it when they are begins to write their
/// messages: a client receives the reply to its request first, also if that reply waits for a disk.
#[derive(Default)]
pub(super) struct Unconfirmed {
    receivers: Vec<Arc<Receiver>>,
    ready: Vec<Ready>,
}

impl fmt::Debug for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unconfirmed").field(&self.receivers.len()).field(&self.ready.len()).finish()
    }
}

impl Unconfirmed {
    /// Adds a receiver, whose messages are queued until then.
    pub(super) fn add(&mut self, receiver: Arc<Receiver>) {
        self.receivers.push(receiver);
    }

    /// Adds a subscription, whose messages the broker queues until then.
    pub(super) fn add_ready(&mut self, ready: Ready) {
        self.ready.push(ready);
    }

    /// Adds those of another reply, which is part of the same one.
    pub(super) fn append(&mut self, mut other: Self) {
        self.receivers.append(&mut other.receivers);
        self.ready.append(&mut other.ready);
    }

    fn is_empty(&self) -> bool {
        self.receivers.is_empty() && self.ready.is_empty()
    }

    /// Returns the reply with which the subscriptions are confirmed.
    pub(super) fn confirmed_by(self, reply: Reply<Answer, Later>) -> Reply<Answer, Later> {
        if self.is_empty() { reply } else { before(reply, Follow::Subscribed(self)) }
    }
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        let (receivers, ready) = (std::mem::take(&mut self.receivers), std::mem::take(&mut self.ready));
        // A task that this thread spawns runs after the turn, which writes the confirmations. Without a runtime, the
        // server has ended.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                receivers.iter().for_each(|receiver| receiver.confirm());
                ready.into_iter().for_each(Ready::begin);
            });
        }
    }
}

/// Connection that receives the messages of one subscription.
struct ChannelReceiver {
    client: Arc<Client>,
    answers: Answers,
    selector: Selector,
    /// Tenant whose names the client uses.
    tenant: Option<TenantName>,
    /// `true` once the confirmation is written and the delivery has begun. From then on publishers write to the
    /// connection directly.
    is_open: AtomicBool,
    /// `true` once nothing more may be written. Locked during each write.
    is_over: Mutex<bool>,
}

impl ChannelReceiver {
    /// Writes messages and returns `true` while the connection exists. The messages use the memory in `held`; without
    /// it, they are charged even if the budget is full.
    fn send(
        &self,
        deliveries: &mut Vec<Delivery>,
        topic_of: &dyn Fn(SourceId) -> TopicName,
        held: Option<Held>,
    ) -> bool {
        let mut writer = Writer::new(self.client.about.lock().is_resp3);
        deliveries.drain(..).for_each(|delivery| self.write(&mut writer, delivery, topic_of));
        let is_over = self.is_over.lock();
        !*is_over && self.client.outbox.push([self.charged(writer.bytes, held)])
    }

    /// Writes the messages of a delivery.
    fn write(&self, writer: &mut Writer, delivery: Delivery, topic_of: &dyn Fn(SourceId) -> TopicName) {
        // Gaps are not reported: a subscriber of a channel receives only what is delivered.
        let Delivery::Batch { source, batch } = delivery else {
            return;
        };
        let Ok(records) = batch.records() else {
            tracing::warn!("a channel does not receive a batch that cannot be decoded");
            return;
        };
        let name = match &self.selector {
            Selector::Channel(channel) => Some(channel.clone()),
            Selector::Pattern(_) => channel_of_topic(self.tenant.as_ref(), topic_of(source).as_str()),
        };
        let Some(name) = name else {
            return;
        };
        for record in records.iter().flatten() {
            match &self.selector {
                Selector::Channel(_) => {
                    writer.push(3);
                    writer.bulk(b"message");
                }
                Selector::Pattern(pattern) => {
                    writer.push(4);
                    writer.bulk(b"pmessage");
                    writer.bulk(pattern.pattern());
                }
            }
            writer.bulk(&name);
            match record.value {
                Some(value) => writer.bulk(value),
                None => writer.bulk(&value_of_headers(&record)),
            }
        }
    }

    fn charged(&self, mut bytes: Vec<u8>, held: Option<Held>) -> Bytes {
        let mut held = match held {
            Some(held) => held,
            None if self.is_free(bytes.len()) => return bytes.into(),
            None => self.answers.overdraw(self.client.ip, bytes.len()),
        };
        bytes.shrink_to_fit();
        held.overdraw(bytes.len().saturating_sub(held.bytes()));
        held.shrink(bytes.len());
        held.charge(bytes)
    }

    fn is_free(&self, bytes: usize) -> bool {
        self.client.outbox.waiting() + bytes <= FREE_BYTES
    }
}

/// Delivery by the publisher's thread, which writes to the connection directly.
struct DirectDelivery(Arc<ChannelReceiver>);

impl Direct for DirectDelivery {
    fn has_room(&self) -> bool {
        let ChannelReceiver { client, answers, is_open, .. } = &*self.0;
        // Without memory, messages wait in the queue.
        is_open.load(Ordering::Acquire) && client.outbox.has_room() && !answers.is_full(client.ip)
    }

    fn deliver(&self, deliveries: &mut Vec<Delivery>, source: &dyn Fn(SourceId) -> (TopicName, PartitionId)) {
        self.0.send(deliveries, &|id| source(id).0, None);
    }

    fn flush(&self) {
        self.0.client.outbox.flush();
    }
}

/// Channel or pattern of a subscription.
#[derive(Clone)]
pub(super) enum Selector {
    Channel(Vec<u8>),
    Pattern(Arc<Glob>),
}

impl Subscribed {
    pub(super) fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }
}

impl Drop for ChannelSubscription {
    fn drop(&mut self) {
        *self.receiver.is_over.lock() = true;
        self.handle.close();
    }
}

impl Channels {
    /// Creates a subscription that is ready to receive. Waits only if a pattern matches many topics.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        broker: &Arc<Broker>,
        client: &Arc<Client>,
        origin: Origin,
        permit: Permit,
        hold: Hold,
        (tenant, selector): (Option<TenantName>, Selector),
    ) -> Result<(ChannelSubscription, Ready)> {
        let pattern = match &selector {
            Selector::Channel(channel) => Pattern::Topic(topic_of(tenant.as_ref(), channel)?),
            Selector::Pattern(glob) => {
                let text = String::from_utf8_lossy(&channel_name(tenant.as_ref(), glob.pattern())).into_owned();
                let topics = topic_glob(tenant.as_ref(), glob.pattern());
                let glob = glob.clone();
                let of = tenant.clone();
                let takes = move |topic: &TopicName| {
                    channel_of_topic(of.as_ref(), topic.as_str()).is_some_and(|name| glob.matches(&name))
                };
                Pattern::Rule(Rule::new(&text, "redis", takes).with_glob(&topics))
            }
        };
        let is_open = AtomicBool::new(false);
        let is_over = Mutex::new(false);
        let client = client.clone();
        let answers = broker.answers().clone();
        let receiver = Arc::new(ChannelReceiver { client, answers, selector, tenant, is_open, is_over });
        let subscription = broker.subscribe(Subscribe {
            pattern,
            partition: None,
            start: Start::Live,
            overflow: Overflow::DisconnectSlow,
            queue_batches: Some(QUEUE_BATCHES_MAX),
            group: None,
            credit: u64::MAX,
            missing: Missing::Wait,
            is_channel: true,
            permit,
            origin,
            hold: Some(hold),
            direct: Some(Box::new(DirectDelivery(receiver.clone()))),
        });
        let subscription = subscription.await?;
        let subscribed =
            ChannelSubscription { handle: subscription.handle(), receiver: receiver.clone(), events: None };
        Ok((subscribed, Ready { broker: broker.clone(), subscription, counted: Counted::new(self, receiver) }))
    }

    fn count(&self, receiver: &ChannelReceiver, is_more: bool) {
        let mut state = self.state.lock();
        let name: &[u8] = match &receiver.selector {
            Selector::Channel(name) => name,
            Selector::Pattern(glob) => glob.pattern(),
        };
        let name = channel_name(receiver.tenant.as_ref(), name);
        let counted = |count: usize| if is_more { count + 1 } else { count - 1 };
        match &receiver.selector {
            Selector::Channel(_) => {
                let count = state.channels.entry(name.clone()).or_default();
                *count = counted(*count);
                if *count == 0 {
                    state.channels.remove(&name);
                }
            }
            Selector::Pattern(_) => {
                let count = state.patterns.entry(name.clone()).or_default();
                *count = counted(*count);
                if *count == 0 {
                    state.patterns.remove(&name);
                }
            }
        }
    }

    /// Returns the first channels of a tenant with subscribers whose broker's names are after this one, in the order of
    /// these names. Few at a time, because publishers wait in the meantime.
    pub(super) fn page(&self, tenant: Tenant<'_>, after: Option<&[u8]>) -> Vec<Vec<u8>> {
        page(&self.state.lock().channels, tenant, after)
    }

    /// Returns the number of channels of all tenants.
    pub(super) fn len(&self) -> usize {
        self.state.lock().channels.len()
    }

    pub(super) fn subscribers(&self, tenant: Tenant<'_>, channel: &[u8]) -> usize {
        self.state.lock().channels.get(&channel_name(tenant, channel)).copied().unwrap_or_default()
    }

    pub(super) fn patterns(&self, tenant: Tenant<'_>) -> usize {
        let state = self.state.lock();
        match tenant {
            None => state.patterns.len(),
            Some(_) => of_tenant(&state.patterns, tenant, None).count(),
        }
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let (channels, patterns) = {
            let state = self.state.lock();
            (state.channels.len(), state.patterns.len())
        };
        out.gauge("thalweg_redis_channels", "Channels that Redis clients subscribe to", channels as u64)?;
        out.gauge("thalweg_redis_patterns", "Patterns of channels that Redis clients subscribe to", patterns as u64)?;
        let slow = self.slow.load(Ordering::Relaxed);
        out.counter(
            "thalweg_redis_slow_subscribers",
            "Connections closed because they did not read their channels",
            slow,
        )
    }
}

/// Writes the messages of a subscription to its connection until it ends.
async fn drain(mut subscription: Subscription, counted: Counted) {
    let Counted { channels, receiver } = &counted;
    let handle = subscription.handle();
    let outbox = &receiver.client.outbox;
    receiver.is_open.store(true, Ordering::Release);
    let mut deliveries = Vec::new();
    loop {
        outbox.room().await;
        let room = match subscription.next(&mut deliveries).await {
            Ok(()) => room_for(receiver, &deliveries).await,
            Err(error) => Err(error),
        };
        match room {
            Ok(held) => {
                if !receiver.send(&mut deliveries, &|source| handle.source(source).0, held) {
                    break;
                }
                outbox.flush();
            }
            Err(error) => {
                // The connection is closed because that is the only way to tell the client that its subscription
                // ended.
                if !*receiver.is_over.lock() {
                    tracing::info!(client = receiver.client.address, %error, "closed a subscribed connection");
                    let is_slow = matches!(error.kind, ErrorKind::SlowSubscriber | ErrorKind::Busy);
                    channels.slow.fetch_add(u64::from(is_slow), Ordering::Relaxed);
                    outbox.close();
                }
                break;
            }
        }
    }
    drop((subscription, counted));
}

/// Maximum number of channels of a page.
const PAGE: usize = 256;

/// Returns the broker's names of a tenant that are after this one, or all of them.
fn of_tenant<'n, V>(
    names: &'n BTreeMap<Vec<u8>, V>,
    tenant: Tenant<'_>,
    after: Option<&[u8]>,
) -> impl Iterator<Item = &'n Vec<u8>> {
    let from = match after {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(prefix(tenant).as_bytes()),
    };
    let names = names.range::<[u8], _>((from, Bound::Unbounded)).map(|(name, _)| name);
    names.take_while(move |name| channel_of(tenant, name).is_some())
}

/// Returns the first names of a tenant that are after this one.
pub(super) fn page<V>(names: &BTreeMap<Vec<u8>, V>, tenant: Tenant<'_>, after: Option<&[u8]>) -> Vec<Vec<u8>> {
    of_tenant(names, tenant, after).take(PAGE).cloned().collect()
}

/// Reserves memory for the next messages, if they need any. Fails if no memory becomes free in time, because this
/// connection or others of its address do not read.
async fn room_for(receiver: &ChannelReceiver, deliveries: &[Delivery]) -> Result<Option<Held>> {
    let of = |delivery: &Delivery| match delivery {
        Delivery::Batch { batch, .. } => batch.len().max(batch.expansion_bytes_max()),
        Delivery::Gap { .. } => 0,
    };
    let bytes = deliveries.iter().map(of).sum();
    if receiver.is_free(bytes) {
        return Ok(None);
    }
    receiver.answers.take(receiver.client.ip, bytes, ROOM_WAIT).await.map(Some)
}

/// Returns the message for a record without a value: its headers, if it has any.
fn value_of_headers(record: &RecordView<'_>) -> Vec<u8> {
    let mut headers = record.headers().filter(|(name, _)| *name != ID_HEADER.as_bytes()).peekable();
    if headers.peek().is_none() { Vec::new() } else { fields::to_json(headers).into_bytes() }
}
