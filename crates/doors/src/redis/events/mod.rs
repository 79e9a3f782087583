//! Keyspace events: messages about changed keys, on the channels `__keyspace@<database>__:<key>` and
//! `__keyevent@<database>__:<event>`.
//!
//! The thread that changes a key writes its events to the subscribed connections, under the lock of the key, so that
//! the events of a key are in the order of its changes. No other door sees these channels: each key would need a topic.

mod flags;
mod index;
mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use broker::metrics::Exposition;
use broker::{Answers, Broker, Identity, Note, Security, Wanted};
use bytes::Bytes;
use engine::cache::CacheName;
use engine::glob::{Glob, GlobSet, literal_start};
use engine::security::TenantName;
use parking_lot::{Mutex, RwLock};

use super::channels::Selector;
use super::clients::Client;
use super::errors::{Done, Fail};
use super::names::{database_of, prefix};
use super::receiver::Receiver;
use super::writer::Writer;
use flags::{Class, Flags};
use index::{Found, Index, SETS_MAX, Subscriptions, TOKENS_MAX, TooMuchWork};
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
    /// [`Flags`] as a number. Changed under the lock of the subscriptions.
    flags: AtomicU16,
    security: Arc<Security>,
    answers: Answers,
    /// Subscriptions by the prefixes of their tenants: the changes of others cost them nothing.
    subscriptions: RwLock<HashMap<String, Index<Subscription>>>,
    /// Messages written to connections.
    messages: AtomicU64,
    slow: AtomicU64,
    /// Steps of finding the subscriptions of channels.
    steps: AtomicU64,
    /// Patterns that were refused because finding their subscriptions would take too much work.
    refused: AtomicU64,
}

/// A subscription whose channel or pattern may match those of events.
struct Subscription {
    receiver: Arc<Receiver>,
    /// `true` once nothing more may be written. Locked during each message.
    is_over: Mutex<bool>,
}

/// Registration of a subscription. Dropping it ends the delivery of events.
pub(super) struct Registration {
    events: Arc<Events>,
    subscription: Arc<Subscription>,
    tenant: Option<TenantName>,
    selector: Selector,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        *self.subscription.is_over.lock() = true;
        let of_tenant = prefix(self.tenant.as_ref());
        let mut subscriptions = self.events.subscriptions.write();
        if let Some(index) = subscriptions.get_mut(of_tenant) {
            index.remove(&self.selector, self.number);
            if index.len() == 0 {
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
            steps: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Sets the published classes of events. Fails with the error of Redis if a letter is unknown, or if the patterns
    /// of the subscriptions of a tenant would take too much work.
    pub(super) fn set(&self, text: &str) -> Result<(), String> {
        let flags = Flags::parse(text).ok_or(WRONG_FLAGS)?;
        let mut subscriptions = self.subscriptions.write();
        if !flags.publishes() {
            subscriptions.values_mut().for_each(Index::close);
        } else if let Some((of_tenant, _)) = subscriptions.iter_mut().find_map(|(of_tenant, index)| {
            let refused = index.open().err()?;
            Some((of_tenant.clone(), refused))
        }) {
            // All of them are open if events were published before, and none was refused.
            subscriptions.values_mut().for_each(Index::close);
            let whose = if of_tenant.is_empty() { "without a tenant".to_owned() } else { format!("of {of_tenant}") };
            return Err(format!("{}: disconnect some clients {whose} first", too_much_work()));
        }
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

    /// Registers a subscription, if its channel or pattern may match a channel of events. Fails if finding it would
    /// take too much work for each change of a key, together with the others of its tenant.
    pub(super) fn register(
        self: &Arc<Self>,
        client: &Arc<Client>,
        identity: &Arc<Identity>,
        tenant: Option<&TenantName>,
        selector: &Selector,
    ) -> Done<Option<Registration>> {
        let may_match = match selector {
            Selector::Channel(name) => name.starts_with(FIRST),
            Selector::Pattern(glob) => {
                let literal = literal_start(glob.pattern());
                literal.starts_with(FIRST) || FIRST.starts_with(literal)
            }
        };
        if !may_match {
            return Ok(None);
        }
        let receiver = Arc::new(Receiver::new(client.clone(), identity.clone()));
        let subscription = Arc::new(Subscription { receiver, is_over: Mutex::new(false) });
        let mut subscriptions = self.subscriptions.write();
        let index = subscriptions.entry(prefix(tenant).to_owned()).or_default();
        let opened = if self.flags().publishes() { index.open() } else { Ok(()) };
        let added = opened.and_then(|()| index.add(selector, subscription.clone()));
        let is_empty = index.len() == 0;
        let number = added.map_err(|TooMuchWork| {
            if is_empty {
                subscriptions.remove(prefix(tenant));
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            Fail::new(format!(
                "ERR {}: unsubscribe from some, or subscribe to channels, or to patterns whose only special character \
                 is a star at their end",
                too_much_work()
            ))
        })?;
        let (events, tenant, selector) = (self.clone(), tenant.cloned(), selector.clone());
        Ok(Some(Registration { events, subscription, tenant, selector, number }))
    }

    /// Returns the subscriptions of a channel of a database. The lock of all subscriptions is not held while patterns
    /// are compared.
    fn find(&self, (of_tenant, number): (&str, usize), kind: &[u8], name: &[u8]) -> Audience {
        let channel = [kind, number.to_string().as_bytes(), b"__:", name].concat();
        let candidates = self.subscriptions.read().get(of_tenant).map(|index| index.candidates(&channel));
        let found = candidates.map(|candidates| candidates.compare(&channel));
        self.steps.fetch_add(found.as_ref().map_or(0, |found| found.steps as u64), Ordering::Relaxed);
        let full = [of_tenant.as_bytes(), &channel].concat();
        Audience { channel, full, found }
    }

    /// Publishes one message to the subscriptions of a channel. Those to the same channel or pattern share its bytes.
    fn publish(&self, to: &Audience, message: &[u8], written_to: &mut WrittenTo) {
        let Some(found) = &to.found else {
            return;
        };
        if let Some(subscriptions) = &found.of_channel {
            self.send((to, None, message), subscriptions, written_to);
        }
        for pattern in &found.patterns {
            self.send((to, Some(&pattern.glob), message), &pattern.subscriptions(), written_to);
        }
    }

    fn send(
        &self,
        (to, pattern, message): (&Audience, Option<&Glob>, &[u8]),
        subscriptions: &Subscriptions<Subscription>,
        written_to: &mut WrittenTo,
    ) {
        // By the protocol of the receiver.
        let mut written: [Option<Bytes>; 2] = [const { None }; 2];
        for subscription in subscriptions.values() {
            let receiver = &subscription.receiver;
            if !receiver.may_read(&self.security, &to.full) {
                continue;
            }
            let client = &receiver.client;
            let is_resp3 = client.about.lock().is_resp3;
            let bytes = written[usize::from(is_resp3)].get_or_insert_with(|| {
                let bytes = to.message(is_resp3, pattern, message);
                self.answers.overdraw(client.ip, bytes.len()).charge(bytes)
            });
            let is_over = subscription.is_over.lock();
            if *is_over {
                continue;
            }
            self.messages.fetch_add(1, Ordering::Relaxed);
            if receiver.has_no_room(&self.answers) || !receiver.queue(bytes.clone()) {
                tracing::info!(client = client.address, "closed a connection that reads its keyspace events slowly");
                self.slow.fetch_add(1, Ordering::Relaxed);
                client.outbox.close();
            }
            written_to.entry(client.id).or_insert_with(|| client.clone());
        }
    }

    /// Publishes the events of changes. The keys are locked.
    pub(super) fn listen(&self, cache: &CacheName, notes: &[Note]) {
        let flags = self.flags();
        if !flags.publishes() {
            return;
        }
        let is_subscribed = |of_tenant: &str| self.subscriptions.read().contains_key(of_tenant);
        let Some(database) = database_of(cache).filter(|(of_tenant, _)| is_subscribed(of_tenant)) else {
            return;
        };
        let mut written_to = WrittenTo::new();
        let mut of_event: HashMap<&str, Audience> = HashMap::new();
        for note in notes {
            let mut of_key: Option<Audience> = None;
            table::each_event(note, |class, event| {
                if !flags.has(class) {
                    return;
                }
                if flags.is_by_key() {
                    let to = of_key.get_or_insert_with(|| self.find(database, b"__keyspace@", &note.key));
                    self.publish(to, event.as_bytes(), &mut written_to);
                }
                if flags.is_by_event() {
                    let find = || self.find(database, b"__keyevent@", event.as_bytes());
                    self.publish(of_event.entry(event).or_insert_with(find), &note.key, &mut written_to);
                }
            });
        }
        written_to.values().for_each(|client| client.outbox.flush());
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let (count, tokens, sets) = {
            let subscriptions = self.subscriptions.read();
            let largest = |of: fn(&Index<Subscription>) -> usize| subscriptions.values().map(of).max().unwrap_or(0);
            let count = subscriptions.values().map(Index::len).sum::<usize>();
            (count as u64, largest(Index::tokens) as u64, largest(Index::sets) as u64)
        };
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        out.gauge("thalweg_redis_event_subscriptions", "Subscriptions that may receive keyspace events", count)?;
        out.gauge(
            "thalweg_redis_event_pattern_tokens",
            "Tokens of the patterns with one star that are compared with keyspace events, of the tenant with most",
            tokens,
        )?;
        out.gauge(
            "thalweg_redis_event_pattern_sets",
            "Sets of patterns with several stars that are compared with keyspace events, of the tenant with most",
            sets,
        )?;
        out.counter(
            "thalweg_redis_event_pattern_steps",
            "Lookups, compared tokens and read bytes of finding the subscribers of keyspace events",
            get(&self.steps),
        )?;
        out.counter(
            "thalweg_redis_event_patterns_refused",
            "Subscriptions refused because finding the subscribers of keyspace events would take too much work",
            get(&self.refused),
        )?;
        out.counter(
            "thalweg_redis_event_messages",
            "Messages about keyspace events to subscribers",
            get(&self.messages),
        )?;
        out.counter(
            "thalweg_redis_slow_event_subscribers",
            "Connections closed because they did not read their keyspace events",
            get(&self.slow),
        )
    }
}

/// Returns the limit that patterns have reached.
fn too_much_work() -> String {
    let states_max = SETS_MAX * GlobSet::STATES_MAX;
    format!(
        "the patterns that may match keyspace events take too much work for each change of a key (at most {TOKENS_MAX} \
         characters of patterns with one star, and {states_max} of those with several, for all clients of a tenant)"
    )
}

/// Clients to which messages were written that are not flushed, by their numbers.
type WrittenTo = HashMap<u64, Arc<Client>>;

/// Subscriptions of a channel.
struct Audience {
    channel: Vec<u8>,
    /// Name of the channel with the prefix of the tenant, as access control has it.
    full: Vec<u8>,
    found: Option<Found<Subscription>>,
}

impl Audience {
    /// Returns a message to the subscriptions of the channel, or of a pattern that matches it.
    fn message(&self, is_resp3: bool, pattern: Option<&Glob>, message: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new(is_resp3);
        match pattern {
            None => {
                writer.push(3);
                writer.bulk(b"message");
            }
            Some(pattern) => {
                writer.push(4);
                writer.bulk(b"pmessage");
                writer.bulk(pattern.pattern());
            }
        }
        writer.bulk(&self.channel);
        writer.bulk(message);
        writer.bytes
    }
}
