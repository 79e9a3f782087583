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

use super::channels::Heard;
use super::clients::Client;
use super::mouth::Mouth;
use super::names::{channel_name, database_of, prefix};
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
    ears: RwLock<HashMap<String, Vec<Arc<Ear>>>>,
    /// Messages written to connections.
    messages: AtomicU64,
    slow: AtomicU64,
}

/// A subscription whose channel or pattern may match those of events.
struct Ear {
    heard: Heard,
    tenant: Option<TenantName>,
    mouth: Arc<Mouth>,
    /// `true` once nothing more may be written. Locked during each message.
    is_over: Mutex<bool>,
}

/// Registration of a subscription. Dropping it ends the delivery of events.
pub(super) struct Registered {
    events: Arc<Events>,
    ear: Arc<Ear>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        *self.ear.is_over.lock() = true;
        let mut ears = self.events.ears.write();
        let of_tenant = prefix(self.ear.tenant.as_ref());
        if let Some(all) = ears.get_mut(of_tenant) {
            all.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
            if all.is_empty() {
                ears.remove(of_tenant);
            }
        }
    }
}

impl Registered {
    /// Returns the destination, which is opened once the confirmation of the subscription is written.
    pub(super) fn mouth(&self) -> Arc<Mouth> {
        self.ear.mouth.clone()
    }
}

impl Events {
    pub(super) fn new(broker: &Broker) -> Self {
        Self {
            flags: AtomicU16::new(0),
            security: broker.security.clone(),
            answers: broker.answers().clone(),
            ears: RwLock::default(),
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
        heard: &Heard,
    ) -> Option<Registered> {
        let may_match = match heard {
            Heard::Channel(name) => name.starts_with(FIRST),
            Heard::Pattern(glob) => {
                let literal = literal_start(glob.pattern());
                literal.starts_with(FIRST) || FIRST.starts_with(literal)
            }
        };
        if !may_match {
            return None;
        }
        let mouth = Arc::new(Mouth::new(client.clone(), identity.clone()));
        let ear = Ear { heard: heard.clone(), tenant: tenant.cloned(), mouth, is_over: Mutex::new(false) };
        let ear = Arc::new(ear);
        self.ears.write().entry(prefix(tenant).to_owned()).or_default().push(ear.clone());
        Some(Registered { events: self.clone(), ear })
    }

    /// Publishes one message to the subscriptions of a database. They share its bytes.
    fn publish(&self, (of_tenant, number): (&str, usize), kind: &[u8], name: &[u8], message: &[u8]) {
        let ears = self.ears.read();
        let Some(ears) = ears.get(of_tenant) else {
            return;
        };
        let channel = [kind, number.to_string().as_bytes(), b"__:", name].concat();
        for ear in ears {
            if ear.hears(&channel) {
                self.say(ear, &channel, message);
            }
        }
    }

    fn say(&self, ear: &Ear, channel: &[u8], message: &[u8]) {
        let full = channel_name(ear.tenant.as_ref(), channel);
        if !ear.mouth.may_read(&self.security, &full) {
            return;
        }
        let client = &ear.mouth.client;
        let mut writer = Writer::new(client.about.lock().is_resp3);
        match &ear.heard {
            Heard::Channel(_) => {
                writer.push(3);
                writer.bulk(b"message");
            }
            Heard::Pattern(pattern) => {
                writer.push(4);
                writer.bulk(b"pmessage");
                writer.bulk(pattern.pattern());
            }
        }
        writer.bulk(channel);
        writer.bulk(message);
        let is_over = ear.is_over.lock();
        if *is_over {
            return;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        let has_no_room = !client.outbox.is_empty() && self.answers.is_full(client.ip);
        let bytes: Bytes = self.answers.overdraw(client.ip, writer.bytes.len()).charge(writer.bytes);
        if has_no_room || !ear.mouth.say(bytes) {
            tracing::info!(client = client.address, "closed a connection that reads its keyspace events slowly");
            self.slow.fetch_add(1, Ordering::Relaxed);
            client.outbox.close();
        }
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let ears = self.ears.read().values().map(Vec::len).sum::<usize>() as u64;
        out.gauge("thalweg_redis_event_subscriptions", "Subscriptions that may receive keyspace events", ears)?;
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

impl Ear {
    fn hears(&self, channel: &[u8]) -> bool {
        match &self.heard {
            Heard::Channel(name) => name == channel,
            Heard::Pattern(glob) => glob.matches(channel),
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
        let Some(database) = database_of(cache).filter(|(of_tenant, _)| self.ears.read().contains_key(*of_tenant))
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
