//! Keyspace events: messages about changed keys, on the channels `__keyspace@<database>__:<key>` and
//! `__keyevent@<database>__:<event>`.
//!
//! The thread that changes a key writes its events to the subscribed connections, under the lock of the key, so that
//! the events of a key are in the order of its changes. Patterns that would take too long to compare there are compared
//! by another thread ([`backlog`]), in the same order. No other door sees these channels: each key would need a topic.

mod backlog;
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
use tokio::runtime::Handle;

use super::channels::Selector;
use super::clients::Client;
use super::errors::{Done, Fail};
use super::names::{database_of, prefix};
use super::receiver::Receiver;
use super::writer::Writer;
use backlog::{Added, Backlog, Changes};
use flags::{Class, Flags};
use index::{Found, Index, Part, SETS_MAX, Subscriptions, TOKENS_MAX, TooMuchWork};
pub(super) use table::{operation, operations};

/// First bytes of the names of all channels of events.
const FIRST: &[u8] = b"__key";
/// Error of Redis for an unknown letter.
const WRONG_FLAGS: &str = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";

/// Maximum number of steps of comparing patterns under the locks of keys: enough for one key of 64 KiB.
const STEPS_NOW_MAX: usize = 1 << 21;
/// Number of bytes of a channel without its key.
const CHANNEL_BYTES: usize = 32;

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
    /// Number of the first subscription of the next tenant, so that none of a tenant has the number of an earlier one.
    first: AtomicU64,
    backlog: Backlog,
    /// Runtime whose threads for blocking work publish the events of the backlog.
    runtime: Handle,
    /// Messages written to connections.
    messages: AtomicU64,
    slow: AtomicU64,
    /// Connections that were closed because too many changes waited to be compared with their patterns.
    behind: AtomicU64,
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
                self.events.forget(&mut subscriptions, of_tenant);
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
            first: AtomicU64::new(0),
            backlog: Backlog::default(),
            runtime: Handle::current(),
            messages: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            behind: AtomicU64::new(0),
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
        let index = subscriptions.entry(prefix(tenant).to_owned());
        let index = index.or_insert_with(|| Index::new(self.first.load(Ordering::Relaxed)));
        let opened = if self.flags().publishes() { index.open() } else { Ok(()) };
        let added = opened.and_then(|()| index.add(selector, subscription.clone()));
        let is_empty = index.len() == 0;
        let number = added.map_err(|TooMuchWork| {
            if is_empty {
                self.forget(&mut subscriptions, prefix(tenant));
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

    /// Removes the index of a tenant, of which no subscription is left, and the changes that wait for it.
    fn forget(&self, subscriptions: &mut HashMap<String, Index<Subscription>>, of_tenant: &str) {
        if let Some(index) = subscriptions.remove(of_tenant) {
            self.first.fetch_max(index.next(), Ordering::Relaxed);
        }
        self.backlog.forget(of_tenant);
    }

    /// Returns the subscriptions of a channel of a database. The lock of all subscriptions is not held while patterns
    /// are compared.
    fn find(&self, (of_tenant, number): (&str, usize), part: Part, kind: &[u8], name: &[u8]) -> Audience {
        let channel = [kind, number.to_string().as_bytes(), b"__:", name].concat();
        let candidates = self.subscriptions.read().get(of_tenant).map(|index| index.candidates(&channel, part));
        let found = candidates.map(|candidates| candidates.compare(&channel));
        self.steps.fetch_add(found.as_ref().map_or(0, |found| found.steps as u64), Ordering::Relaxed);
        let full = [of_tenant.as_bytes(), &channel].concat();
        Audience { channel, full, found }
    }

    /// Publishes one message to the subscriptions of a channel with numbers before this one. Those to the same channel
    /// or pattern share its bytes.
    fn publish(&self, to: &Audience, before: u64, message: &[u8], written_to: &mut WrittenTo) {
        let Some(found) = &to.found else {
            return;
        };
        if let Some(subscriptions) = &found.of_channel {
            self.send((to, None, message), subscriptions, before, written_to);
        }
        for pattern in &found.patterns {
            self.send((to, Some(&pattern.glob), message), &pattern.subscriptions(), before, written_to);
        }
    }

    fn send(
        &self,
        (to, pattern, message): (&Audience, Option<&Glob>, &[u8]),
        subscriptions: &Subscriptions<Subscription>,
        before: u64,
        written_to: &mut WrittenTo,
    ) {
        // By the protocol of the receiver.
        let mut written: [Option<Bytes>; 2] = [const { None }; 2];
        for (_, subscription) in subscriptions.range(..before) {
            let receiver = &subscription.receiver;
            let client = &receiver.client;
            // One that is closed has more subscriptions.
            if client.outbox.is_closed() || !receiver.may_read(&self.security, &to.full) {
                continue;
            }
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
    pub(super) fn listen(self: &Arc<Self>, cache: &CacheName, notes: &[Note]) {
        let flags = self.flags();
        if !flags.publishes() {
            return;
        }
        if let Some(database) = database_of(cache)
            && let Some(part) = self.part_now(database, flags, notes)
        {
            self.publish_all(database, (flags, part, u64::MAX), notes);
        }
    }

    /// Returns the subscriptions that receive the events of changes now, if there are any. The backlog has the changes
    /// for the others.
    fn part_now(self: &Arc<Self>, (of_tenant, number): (&str, usize), flags: Flags, notes: &[Note]) -> Option<Part> {
        let subscriptions = self.subscriptions.read();
        let index = subscriptions.get(of_tenant)?;
        if index.steps_max(1) == 0 {
            return Some(Part::All);
        }
        let of_event = if flags.is_by_event() { index.steps_max(CHANNEL_BYTES) } else { 0 };
        let of_keys = if flags.is_by_key() { notes } else { &[] };
        let of_keys = of_keys.iter().map(|note| index.steps_max(CHANNEL_BYTES + note.key.len()));
        let steps = of_keys.fold(of_event, usize::saturating_add);
        if steps <= STEPS_NOW_MAX && !self.backlog.is_behind(of_tenant) {
            return Some(Part::All);
        }
        let notes = notes.iter().cloned().collect();
        let changes = Changes { database: number, flags, before: index.next(), notes, steps };
        match self.backlog.add(of_tenant, changes) {
            Added::Queued => {}
            Added::First => {
                let events = self.clone();
                drop(self.runtime.spawn_blocking(move || events.drain()));
            }
            Added::TooMany => {
                self.close_compared(index);
                self.backlog.forget(of_tenant);
            }
        }
        Some(Part::LookedUp)
    }

    /// Publishes the events of the backlog until it is empty.
    fn drain(&self) {
        while let Some((of_tenant, Changes { database, flags, before, mut notes, .. })) = self.backlog.next() {
            self.publish_all((&of_tenant, database), (flags, Part::Compared, before), notes.make_contiguous());
        }
    }

    /// Disconnects the clients whose patterns are compared with channels.
    fn close_compared(&self, index: &Index<Subscription>) {
        for subscription in index.compared() {
            let client = &subscription.receiver.client;
            if !std::mem::replace(&mut *subscription.is_over.lock(), true) {
                tracing::info!(client = client.address, "closed a connection whose patterns of events take too long");
                self.behind.fetch_add(1, Ordering::Relaxed);
                client.outbox.close();
            }
        }
    }

    /// Publishes the events of changes to the subscriptions of this part with numbers before this one.
    fn publish_all(&self, database: (&str, usize), (flags, part, before): (Flags, Part, u64), notes: &[Note]) {
        let mut written_to = WrittenTo::new();
        let mut of_event: HashMap<&str, Audience> = HashMap::new();
        for note in notes {
            let mut of_key: Option<Audience> = None;
            table::each_event(note, |class, event| {
                if !flags.has(class) {
                    return;
                }
                if flags.is_by_key() {
                    let to = of_key.get_or_insert_with(|| self.find(database, part, b"__keyspace@", &note.key));
                    self.publish(to, before, event.as_bytes(), &mut written_to);
                }
                if flags.is_by_event() {
                    let find = || self.find(database, part, b"__keyevent@", event.as_bytes());
                    self.publish(of_event.entry(event).or_insert_with(find), before, &note.key, &mut written_to);
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
        out.gauge(
            "thalweg_redis_event_backlog_bytes",
            "Changes of keys that wait to be compared with patterns of keyspace events",
            self.backlog.bytes() as u64,
        )?;
        out.counter(
            "thalweg_redis_event_subscribers_behind",
            "Connections closed because too many changes waited to be compared with their patterns",
            get(&self.behind),
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use broker::{Cause, Settings, What};
    use engine::cache::KEY_BYTES_MAX;
    use tokio::runtime::Runtime;

    use super::*;

    /// Returns a runtime with one thread for blocking work, and published events.
    fn started() -> (Runtime, Arc<Events>) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(1).enable_all().build().expect("a runtime");
        let entered = runtime.enter();
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
        let events = Arc::new(Events::new(&broker));
        events.set("KA").expect("flags");
        drop(entered);
        (runtime, events)
    }

    /// Returns changes of as many keys, which are as long as possible.
    fn long_keys(count: usize) -> Vec<Note> {
        let note = |number: usize| Note {
            key: format!("{number:0KEY_BYTES_MAX$}").into_bytes().into(),
            what: What::Deleted,
            cause: Cause { operation: "del", client: 0 },
        };
        (0..count).map(note).collect()
    }

    #[test]
    fn changes_that_take_long_to_compare_are_compared_by_another_thread_in_their_order() {
        let (runtime, events) = started();
        let identity = Arc::new(Identity::anonymous("host"));
        let subscribe = |id: u64, selector: &Selector| {
            let client = Client::of_test(id);
            let registration = events.register(&client, &identity, None, selector).expect("room").expect("events");
            registration.receiver().confirm();
            (client, registration)
        };
        let pattern = |text: &str| Selector::Pattern(Arc::new(Glob::new(text.as_bytes())));
        let (looked_up, _registered) = subscribe(1, &pattern("__keyspace@0__:*"));
        let (compared, _registered) = subscribe(2, &pattern("__key*@*__:*1"));
        // The only thread for blocking work is busy.
        let (free, is_free) = mpsc::channel::<()>();
        let busy = runtime.spawn_blocking(move || is_free.recv());
        let cache = CacheName::parse("db0").expect("a name");
        let few = long_keys(3);
        let waiting = || (looked_up.outbox.waiting(), compared.outbox.waiting());
        events.listen(&cache, &few);
        assert!(waiting().0 > 3 * KEY_BYTES_MAX && waiting().1 > KEY_BYTES_MAX, "{:?}", waiting());
        let before = waiting();
        events.listen(&cache, &long_keys(40));
        assert!(waiting().0 > 43 * KEY_BYTES_MAX && waiting().1 == before.1, "{:?}", waiting());
        assert!(events.backlog.bytes() > 40 * KEY_BYTES_MAX);
        // What follows must not come before, and a later subscriber receives only what follows.
        events.listen(&cache, &few);
        let (late, _registered) = subscribe(3, &pattern("__key*@*__:*1"));
        assert_eq!(waiting().1, before.1);
        free.send(()).expect("it waits");
        runtime.block_on(busy).expect("it has ended").expect("received");
        // The thread does one after the other.
        runtime.block_on(runtime.spawn_blocking(|| ())).expect("it has run");
        // Of 40 keys, those that end with 1 are four.
        assert_eq!((waiting().1, late.outbox.waiting(), events.backlog.bytes()), (before.1 * 6, 0, 0));
        events.listen(&cache, &few);
        assert_eq!((waiting().1, late.outbox.waiting()), (before.1 * 7, before.1));
    }

    #[test]
    fn clients_whose_patterns_are_too_far_behind_are_disconnected() {
        let (runtime, events) = started();
        let identity = Arc::new(Identity::anonymous("host"));
        let (looked_up, compared) = (Client::of_test(1), Client::of_test(2));
        let selectors =
            [Selector::Channel(b"__keyspace@0__:k".to_vec()), Selector::Pattern(Arc::new(Glob::new(b"*:k*?")))];
        let registered: Vec<_> = [&looked_up, &compared]
            .into_iter()
            .zip(&selectors)
            .map(|(client, selector)| {
                events.register(client, &identity, None, selector).expect("room").expect("events")
            })
            .collect();
        let (free, is_free) = mpsc::channel::<()>();
        let busy = runtime.spawn_blocking(move || is_free.recv());
        let cache = CacheName::parse("db0").expect("a name");
        let notes = long_keys(100);
        let count = (0..100).take_while(|_| {
            events.listen(&cache, &notes);
            !compared.outbox.is_closed()
        });
        let count = count.count();
        assert!(count > 5, "{count}");
        assert_eq!((looked_up.outbox.is_closed(), events.backlog.bytes()), (false, 0));
        assert_eq!(events.behind.load(Ordering::Relaxed), 1);
        free.send(()).expect("it waits");
        runtime.block_on(busy).expect("it has ended").expect("received");
        drop(registered);
    }
}
