//! Keyspace events: messages about changed keys, on the channels `__keyspace@<database>__:<key>` and
//! `__keyevent@<database>__:<event>`.
//!
//! The thread that changes a key writes its events to the subscribed connections, under the lock of the key, so that
//! the events of a key are in the order of its changes. No other door sees these channels: each key would need a topic.

mod flags;
mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use broker::metrics::Exposition;
use broker::{Answers, Broker, Identity, Note, Security, Wanted};
use bytes::Bytes;
use engine::cache::CacheName;
use engine::glob::literal_start;
use engine::security::TenantName;
use parking_lot::{Mutex, RwLock};

use super::channels::Selector;
use super::clients::Client;
use super::names::{channel_name, database_of, prefix};
use super::receiver::Receiver;
use super::writer::Writer;
use flags::{Class, Flags};
pub(super) use table::{operation, operations};

/// First bytes of the names of all channels of events.
const FIRST: &[u8] = b"__key";
/// Error of Redis for an unknown letter.
const WRONG_FLAGS: &str = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";

/// Checks the letters of published classes of events. Fails with the error of Redis.
pub fn check_flags(text: &str) -> Result<(), &'static str> {
    Flags::parse(text).map(drop).ok_or(WRONG_FLAGS)
}

/// Published events, and the subscriptions that may receive them.
pub(super) struct Events {
    /// [`Flags`] as a number.
    flags: AtomicU16,
    security: Arc<Security>,
    answers: Answers,
    /// Subscriptions by the prefixes of their tenants: the changes of others cost them nothing.
    subscriptions: RwLock<HashMap<String, Vec<Arc<Subscription>>>>,
    /// Messages written to connections.
    messages: AtomicU64,
    slow: AtomicU64,
}

/// A subscription whose channel or pattern may match those of events.
struct Subscription {
    selector: Selector,
    tenant: Option<TenantName>,
    receiver: Arc<Receiver>,
    /// `true` once nothing more may be written. Locked during each message.
    is_over: Mutex<bool>,
}

/// Registration of a subscription. Dropping it ends the delivery of events.
pub(super) struct Registration {
    events: Arc<Events>,
    subscription: Arc<Subscription>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        *self.subscription.is_over.lock() = true;
        let mut subscriptions = self.events.subscriptions.write();
        let of_tenant = prefix(self.subscription.tenant.as_ref());
        if let Some(all) = subscriptions.get_mut(of_tenant) {
            all.retain(|subscription| !Arc::ptr_eq(subscription, &self.subscription));
            if all.is_empty() {
                subscriptions.remove(of_tenant);
            }
        }
    }
}

impl Registration {
    /// Returns the receiver, which is confirmed once the confirmation of the subscription is written.
    pub(super) fn receiver(&self) -> Arc<Receiver> {
        self.subscription.receiver.clone()
    }
}

impl Events {
    pub(super) fn new(broker: &Broker) -> Self {
        Self {
            flags: AtomicU16::new(0),
            security: broker.security.clone(),
            answers: broker.answers().clone(),
            subscriptions: RwLock::default(),
            messages: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        }
    }

    /// Sets the published classes of events. Fails with the error of Redis if a letter is unknown.
    pub(super) fn set(&self, text: &str) -> Result<(), &'static str> {
        let flags = Flags::parse(text).ok_or(WRONG_FLAGS)?;
        self.flags.store(flags.number(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the notes from which the events are made.
    pub(super) fn wanted(&self) -> Wanted {
        match self.flags() {
            flags if !flags.publishes() => Wanted::Nothing,
            flags if flags.has(Class::Missed) => Wanted::Misses,
            _ => Wanted::Changes,
        }
    }

    fn flags(&self) -> Flags {
        Flags::of_number(self.flags.load(Ordering::Relaxed))
    }

    /// Returns the published classes as `CONFIG GET` shows them.
    pub(super) fn text(&self) -> String {
        self.flags().text()
    }

    /// Registers a subscription, if its channel or pattern may match a channel of events.
    pub(super) fn register(
        self: &Arc<Self>,
        client: &Arc<Client>,
        identity: &Arc<Identity>,
        tenant: Option<&TenantName>,
        selector: &Selector,
    ) -> Option<Registration> {
        let may_match = match selector {
            Selector::Channel(name) => name.starts_with(FIRST),
            Selector::Pattern(glob) => {
                let literal = literal_start(glob.pattern());
                literal.starts_with(FIRST) || FIRST.starts_with(literal)
            }
        };
        if !may_match {
            return None;
        }
        let receiver = Arc::new(Receiver::new(client.clone(), identity.clone()));
        let subscription =
            Subscription { selector: selector.clone(), tenant: tenant.cloned(), receiver, is_over: Mutex::new(false) };
        let subscription = Arc::new(subscription);
        self.subscriptions.write().entry(prefix(tenant).to_owned()).or_default().push(subscription.clone());
        Some(Registration { events: self.clone(), subscription })
    }

    /// Publishes one message to the subscriptions of a database. They share its bytes.
    fn publish(&self, (of_tenant, number): (&str, usize), kind: &[u8], name: &[u8], message: &[u8]) {
        let subscriptions = self.subscriptions.read();
        let Some(subscriptions) = subscriptions.get(of_tenant) else {
            return;
        };
        let channel = [kind, number.to_string().as_bytes(), b"__:", name].concat();
        for subscription in subscriptions {
            if subscription.matches(&channel) {
                self.send(subscription, &channel, message);
            }
        }
    }

    fn send(&self, subscription: &Subscription, channel: &[u8], message: &[u8]) {
        let full = channel_name(subscription.tenant.as_ref(), channel);
        if !subscription.receiver.may_read(&self.security, &full) {
            return;
        }
        let client = &subscription.receiver.client;
        let mut writer = Writer::new(client.about.lock().is_resp3);
        match &subscription.selector {
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
        writer.bulk(channel);
        writer.bulk(message);
        let is_over = subscription.is_over.lock();
        if *is_over {
            return;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        let has_no_room = !client.outbox.is_empty() && self.answers.is_full(client.ip);
        let bytes: Bytes = self.answers.overdraw(client.ip, writer.bytes.len()).charge(writer.bytes);
        if has_no_room || !subscription.receiver.send(bytes) {
            tracing::info!(client = client.address, "closed a connection that reads its keyspace events slowly");
            self.slow.fetch_add(1, Ordering::Relaxed);
            client.outbox.close();
        }
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let subscriptions = self.subscriptions.read().values().map(Vec::len).sum::<usize>() as u64;
        out.gauge(
            "thalweg_redis_event_subscriptions",
            "Subscriptions that may receive keyspace events",
            subscriptions,
        )?;
        let messages = self.messages.load(Ordering::Relaxed);
        out.counter("thalweg_redis_event_messages", "Messages about keyspace events to subscribers", messages)?;
        let slow = self.slow.load(Ordering::Relaxed);
        out.counter(
            "thalweg_redis_slow_event_subscribers",
            "Connections closed because they did not read their keyspace events",
            slow,
        )
    }
}

impl Subscription {
    fn matches(&self, channel: &[u8]) -> bool {
        match &self.selector {
            Selector::Channel(name) => name == channel,
            Selector::Pattern(glob) => glob.matches(channel),
        }
    }
}

impl Events {
    /// Publishes the events of changes. The keys are locked.
    pub(super) fn listen(&self, cache: &CacheName, notes: &[Note]) {
        let flags = self.flags();
        if !flags.publishes() {
            return;
        }
        let Some(database) =
            database_of(cache).filter(|(of_tenant, _)| self.subscriptions.read().contains_key(*of_tenant))
        else {
            return;
        };
        for note in notes {
            table::each_event(note, |class, event| {
                if !flags.has(class) {
                    return;
                }
                if flags.is_by_key() {
                    self.publish(database, b"__keyspace@", &note.key, event.as_bytes());
                }
                if flags.is_by_event() {
                    self.publish(database, b"__keyevent@", event.as_bytes(), &note.key);
                }
            });
        }
    }
}
