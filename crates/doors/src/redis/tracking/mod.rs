//! Tracking (`CLIENT TRACKING`): clients that cache what they read are told which of their keys were changed.
//!
//! A key is remembered before it is read, and its invalidation is written after the reply: whenever another client
//! changes the key in between, the reader receives the reply first and then the invalidation.

mod table;
mod tracked;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use broker::metrics::Exposition;
use broker::{Broker, Identity, Note, Security, What};
use engine::cache::{CacheName, KEY_BYTES_MAX};
use engine::prefixes::PrefixMap;
use engine::security::{Operation, Resource, ResourceKind, TenantName};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::clients::{Client, Clients};
use super::command::random;
use super::errors::{Done, Fail};
use super::names::{Tenant, database_of, prefix};
use table::{Readers, Table};
use tracked::Delivery;
pub(super) use tracked::{Options, Replying, Tracked};

/// Default of `tracking-table-max-keys`, as in Redis.
const KEYS_MAX: usize = 1_000_000;
/// Maximum memory of the keys of one tenant.
const TABLE_BYTES_MAX: usize = 256 << 20;
/// Maximum memory of the keys of all tenants together. Beyond it, the tenant with the most memory loses keys.
const TABLES_BYTES_MAX: usize = 512 << 20;
/// Maximum memory of the prefixes of all clients.
const PREFIXES_BYTES_MAX: usize = 64 << 20;
/// Maximum number of keys of a table that is freed where it is taken. Freeing more takes a while.
const FREED_KEYS_MAX: usize = 1024;
/// Number of keys that a command with many remembers before other commands have their turn at the table.
const KEYS_AT_ONCE: usize = 256;

/// Tracking clients, and the keys that they have read.
pub(super) struct Tracking {
    security: Arc<Security>,
    /// Tracking clients by the prefixes of their tenants. This lock is taken before those of a group.
    groups: RwLock<HashMap<String, Arc<Group>>>,
    /// `true` while any client is tracking.
    is_on: AtomicBool,
    /// Maximum number of remembered keys of one tenant; 0 is no limit.
    keys_max: AtomicUsize,
    /// Memory of the tables of all groups.
    bytes: AtomicUsize,
    /// Memory of the prefixes of all clients.
    prefix_bytes: AtomicUsize,
    invalidations: AtomicU64,
    evicted: AtomicU64,
    delivery: Arc<Delivery>,
    /// Runtime whose threads for blocking work free large tables.
    runtime: Handle,
}

/// Tracking clients of one tenant: the changes of others cost them nothing.
#[derive(Default)]
pub(super) struct Group {
    /// This lock is taken before that of the table.
    members: RwLock<Members>,
    table: Mutex<Table>,
    /// Memory of the table.
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Members {
    by_id: HashMap<u64, Arc<Tracked>>,
    /// Clients that track all keys with certain prefixes, read or not, by these prefixes. Those of a prefix are in the
    /// order of their numbers.
    broadcasts: PrefixMap<SmallVec<[Arc<Tracked>; 2]>>,
}

impl Members {
    /// Adds the prefixes of a client.
    fn add_prefixes(&mut self, tracked: &Arc<Tracked>) {
        for prefix in &tracked.options().prefixes {
            let clients = self.broadcasts.entry(prefix);
            if let Err(at) = clients.binary_search_by_key(&tracked.client.id, |it| it.client.id) {
                clients.insert(at, tracked.clone());
            }
        }
    }

    fn remove_prefixes(&mut self, tracked: &Arc<Tracked>) {
        for prefix in &tracked.options().prefixes {
            self.broadcasts.change(prefix, |clients| {
                if let Ok(at) = clients.binary_search_by_key(&tracked.client.id, |it| it.client.id) {
                    clients.remove(at);
                }
                clients.is_empty()
            });
        }
    }

    /// Returns the clients that track all keys with a prefix of this key.
    fn broadcasts_of(&self, key: &[u8]) -> impl Iterator<Item = &Arc<Tracked>> {
        self.broadcasts.of(key).flatten()
    }
}

impl Tracking {
    pub(super) fn new(broker: &Broker, clients: Arc<Clients>) -> Self {
        let delivery = Delivery { clients, answers: broker.answers().clone(), slow: AtomicU64::new(0) };
        Self {
            security: broker.security.clone(),
            groups: RwLock::default(),
            is_on: AtomicBool::new(false),
            keys_max: AtomicUsize::new(KEYS_MAX),
            bytes: AtomicUsize::new(0),
            prefix_bytes: AtomicUsize::new(0),
            invalidations: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            delivery: Arc::new(delivery),
            runtime: Handle::current(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sets `tracking-table-max-keys`.
    pub(super) fn set_keys_max(&self, max: usize) {
        self.keys_max.store(max, Ordering::Relaxed);
        self.all_groups().iter().for_each(|group| self.evict(group));
    }

    fn all_groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }

    /// Starts to track for a client.
    pub(super) fn begin(
        &self,
        client: &Arc<Client>,
        identity: Arc<Identity>,
        tenant: Option<&TenantName>,
        options: Options,
    ) -> Arc<Tracked> {
        let mut groups = self.groups.write();
        let group = groups.entry(prefix(tenant).to_owned()).or_default().clone();
        let tracked = Tracked::begin(options, client, identity, tenant.cloned(), group.clone(), &self.delivery);
        let mut members = group.members.write();
        members.by_id.insert(client.id, tracked.clone());
        members.add_prefixes(&tracked);
        self.is_on.store(true, Ordering::Relaxed);
        tracked
    }

    /// Continues the tracking of a client with other options. What is queued for it remains queued.
    pub(super) fn set(&self, tracked: &Arc<Tracked>, options: Options) {
        let mut members = tracked.group.members.write();
        members.remove_prefixes(tracked);
        tracked.set(options);
        members.add_prefixes(tracked);
    }

    /// Ends the tracking of a client. The keys that it has read are forgotten when they change, as in Redis, or with
    /// the last tracking client of the tenant.
    pub(super) fn end(&self, tracked: &Arc<Tracked>) {
        tracked.end();
        self.prefix_bytes.fetch_sub(tracked.options().prefix_bytes(), Ordering::Relaxed);
        let mut groups = self.groups.write();
        let mut members = tracked.group.members.write();
        members.by_id.remove(&tracked.client.id);
        members.remove_prefixes(tracked);
        let forgotten = members.by_id.is_empty().then(|| {
            groups.remove(prefix(tracked.tenant.as_ref()));
            self.change(&tracked.group, std::mem::take)
        });
        self.is_on.store(!groups.is_empty(), Ordering::Relaxed);
        drop((members, groups));
        forgotten.into_iter().for_each(|table| self.free(table));
    }

    /// Frees a table whose keys are forgotten. A large one is freed on another thread: this one may hold the locks of
    /// keys, and serves other connections.
    fn free(&self, table: Table) {
        if table.len() > FREED_KEYS_MAX {
            drop(self.runtime.spawn_blocking(move || drop(table)));
        }
    }

    /// Takes memory for the prefixes of a client, in place of those before. Fails if those of all clients take too
    /// much.
    pub(super) fn take_prefixes(&self, before: Option<&Options>, options: &Options) -> Done {
        let before = before.map_or(0, Options::prefix_bytes);
        let after = options.prefix_bytes();
        let take = |all: usize| Some(all - before + after).filter(|all| after <= before || *all <= PREFIXES_BYTES_MAX);
        if self.prefix_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(Fail::new(format!(
                "ERR the prefixes that all clients track take {PREFIXES_BYTES_MAX} bytes: track fewer, or try again \
                 later"
            )));
        }
        Ok(())
    }

    /// Changes the table of a group, and counts its memory.
    fn change<R>(&self, group: &Group, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = group.table.lock();
        let before = table.bytes();
        let result = change(&mut table);
        let now = table.bytes();
        group.bytes.store(now, Ordering::Relaxed);
        match now.checked_sub(before) {
            Some(more) => self.bytes.fetch_add(more, Ordering::Relaxed),
            None => self.bytes.fetch_sub(before - now, Ordering::Relaxed),
        };
        result
    }

    /// Remembers the keys that a client is about to read. Keys that are too long have no values.
    pub(super) fn remember<'k>(&self, tracked: &Tracked, keys: impl IntoIterator<Item = &'k [u8]>) {
        let group = &*tracked.group;
        let mut keys = keys.into_iter().filter(|key| key.len() <= KEY_BYTES_MAX).peekable();
        while keys.peek().is_some() {
            {
                let members = group.members.read();
                self.change(group, |table| {
                    for key in keys.by_ref().take(KEYS_AT_ONCE) {
                        table.add(key, tracked.client.id, |id| members.by_id.contains_key(&id));
                    }
                });
            }
            self.evict(group);
        }
    }

    /// Invalidates keys of a group until no more than the maximum remain, in number and in bytes, then keys of the
    /// largest groups until all groups together have no more than theirs.
    fn evict(&self, group: &Group) {
        let max = match self.keys_max.load(Ordering::Relaxed) {
            0 => usize::MAX,
            max => max,
        };
        while self.evict_one(group, |table| table.len() > max || table.bytes() > TABLE_BYTES_MAX) {}
        while self.bytes.load(Ordering::Relaxed) > TABLES_BYTES_MAX {
            let largest = self.all_groups().into_iter().max_by_key(|group| group.bytes.load(Ordering::Relaxed));
            if !largest.is_some_and(|largest| self.evict_one(&largest, |_| true)) {
                return;
            }
        }
    }

    /// Invalidates one key of a group, if its table is too large. Returns `false` if it is not, or has no key.
    fn evict_one(&self, group: &Group, is_too_large: impl FnOnce(&Table) -> bool) -> bool {
        let evict = |table: &mut Table| if is_too_large(table) { table.evict(random()) } else { None };
        let Some((key, readers)) = self.change(group, evict) else {
            return false;
        };
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.invalidate(group, &key, &readers, 0);
        true
    }

    /// Tells the readers of a key that its value has changed.
    fn invalidate(&self, group: &Group, key: &[u8], readers: &Readers, changed_by: u64) {
        if readers.is_empty() {
            return;
        }
        let members = group.members.read();
        for tracked in readers.iter().filter_map(|id| members.by_id.get(id)) {
            let options = tracked.options();
            let is_skipped = options.skips_own && tracked.client.id == changed_by;
            if !options.is_broadcast && !is_skipped {
                self.invalidations.fetch_add(1, Ordering::Relaxed);
                tracked.invalidate(Some(key));
            }
        }
    }

    /// Invalidates the changed keys of a database.
    pub(super) fn listen(&self, cache: &CacheName, notes: &[Note]) {
        let Some((of_tenant, _)) = database_of(cache) else {
            return;
        };
        let Some(group) = self.groups.read().get(of_tenant).cloned() else {
            return;
        };
        for note in notes {
            if note.what == What::Flushed {
                self.flush(&group);
            } else if is_change(note) {
                let readers = self.change(&group, |table| table.take(&note.key));
                self.invalidate(&group, &note.key, &readers, note.cause.client);
                self.broadcast(&group, cache, note);
            }
        }
    }

    /// Invalidates a key for the clients that track all keys with a prefix of it.
    fn broadcast(&self, group: &Group, cache: &CacheName, note: &Note) {
        let members = group.members.read();
        let mut name = None;
        for tracked in members.broadcasts_of(&note.key) {
            let options = tracked.options();
            if options.skips_own && tracked.client.id == note.cause.client {
                continue;
            }
            // The client has not necessarily read the key, so its name is told only to those that may.
            let identity = tracked.identity();
            let name = name.get_or_insert_with(|| [cache.as_str().as_bytes(), b"/", &note.key].concat());
            let may = || self.security.allows(&identity, Operation::Read, &Resource::new(ResourceKind::Cache, name));
            if self.security.is_unlimited(&identity) || may() {
                self.invalidations.fetch_add(1, Ordering::Relaxed);
                tracked.invalidate(Some(&note.key));
            }
        }
    }

    /// Invalidates all keys of a tenant: as in Redis, those of all databases.
    fn flush(&self, group: &Group) {
        self.free(self.change(group, std::mem::take));
        for tracked in group.members.read().by_id.values() {
            self.invalidations.fetch_add(1, Ordering::Relaxed);
            tracked.invalidate(None);
        }
    }

    /// Returns the numbers of tracking clients, remembered keys, and their readers.
    pub(super) fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for group in self.all_groups() {
            counts[0] += group.members.read().by_id.len();
            let table = group.table.lock();
            counts[1] += table.len();
            counts[2] += table.readers();
        }
        counts
    }

    /// Returns the number of prefixes of all clients together, as `INFO` shows it.
    pub(super) fn prefixes(&self) -> usize {
        self.all_groups().iter().map(|group| group.members.read().broadcasts.len()).sum()
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let [clients, keys, _] = self.counts();
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        out.gauge("thalweg_redis_tracking_clients", "Redis clients that track keys", clients as u64)?;
        out.gauge("thalweg_redis_tracked_keys", "Keys that tracking clients have read", keys as u64)?;
        let max = self.keys_max.load(Ordering::Relaxed) as u64;
        out.gauge("thalweg_redis_tracked_keys_max", "Maximum of tracked keys of each tenant; 0 is no limit", max)?;
        let bytes = self.bytes.load(Ordering::Relaxed) as u64;
        out.gauge("thalweg_redis_tracked_key_bytes", "Memory of the keys that tracking clients have read", bytes)?;
        out.counter("thalweg_redis_invalidations", "Invalidations for tracking clients", get(&self.invalidations))?;
        out.counter(
            "thalweg_redis_tracked_keys_evicted",
            "Keys invalidated because too many were tracked",
            get(&self.evicted),
        )?;
        out.counter(
            "thalweg_redis_slow_tracking_clients",
            "Connections closed because they did not read their invalidations",
            get(&self.delivery.slow),
        )
    }
}

/// Returns `true` if a note is about another value of its key, as Redis sees it.
fn is_change(note: &Note) -> bool {
    match note.what {
        What::Missed | What::Flushed => false,
        // It changes the encoding of a sketch, which has the same value as before.
        What::Put { .. } if note.cause.operation == "PFDEBUG" => false,
        What::Kept => note.cause.operation == "LTRIM",
        // Redis does not count changes of groups as changes of the key.
        What::Reported => !note.cause.operation.starts_with("xgroup") && note.cause.operation != "xsetid",
        _ => true,
    }
}

/// Returns `true` if two tenants are the same.
pub(super) fn is_same_tenant(client: &Client, tenant: Tenant<'_>) -> bool {
    client.about.lock().tenant.as_ref() == tenant
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use broker::Settings;

    use super::*;

    #[test]
    fn a_large_table_is_not_freed_by_the_thread_that_flushes_it() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(1).enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
        let tracking = Tracking::new(&broker, Arc::default());
        // The only thread for blocking work is busy.
        let (free, is_free) = mpsc::channel::<()>();
        let busy = runtime.spawn_blocking(move || is_free.recv());
        let group = Group::default();
        let key = Arc::downgrade(&tracking.change(&group, |table| {
            (0..=FREED_KEYS_MAX).for_each(|key| table.add(&key.to_le_bytes(), 1, |_| true));
            table.any_key().expect("a key")
        }));
        tracking.flush(&group);
        assert_eq!((group.table.lock().len(), tracking.bytes.load(Ordering::Relaxed)), (0, 0));
        assert!(key.upgrade().is_some());
        free.send(()).expect("it waits");
        runtime.block_on(busy).expect("it has ended").expect("received");
        // The thread does one after the other.
        runtime.block_on(runtime.spawn_blocking(|| ())).expect("it has run");
        assert!(key.upgrade().is_none());
    }

    #[tokio::test]
    async fn a_changed_key_is_compared_with_no_client_of_other_prefixes() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
        let tracking = Tracking::new(&broker, Arc::default());
        let options = |prefixes: &[&str]| Options {
            is_broadcast: true,
            prefixes: prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect(),
            ..Options::default()
        };
        let begin = |id: u64, options: Options| {
            tracking.begin(&Client::of_test(id), Arc::new(Identity::anonymous("host")), None, options)
        };
        let many: Vec<_> = (1..=1000)
            .map(|id| {
                let prefixes: Vec<String> = (0..20).map(|number| format!("user:{id}:{number}:")).collect();
                begin(id, options(&prefixes.iter().map(String::as_str).collect::<Vec<_>>()))
            })
            .collect();
        let all = begin(2000, options(&[""]));
        let of_users = begin(2001, options(&["user:", "item:"]));
        let found = |key: &str| {
            let members = all.group.members.read();
            let ids = members.broadcasts_of(key.as_bytes()).map(|it| it.client.id).collect::<Vec<_>>();
            (ids, members.broadcasts.nodes_of(key.as_bytes()))
        };
        // One path, whatever the number of clients is.
        assert_eq!(found("user:7:1:name"), (vec![2000, 2001, 7], 6));
        assert_eq!((found("item:1").0, found("user").0), (vec![2000, 2001], vec![2000]));
        assert_eq!(tracking.prefixes(), 20_003);
        // Other prefixes of a client replace those before.
        tracking.set(&of_users, options(&["user:7:1:", "shop:"]));
        assert_eq!((found("user:7:1:name").0, found("item:1").0), (vec![2000, 7, 2001], vec![2000]));
        many.iter().chain([&of_users]).for_each(|tracked| tracking.end(tracked));
        assert_eq!((found("user:7:1:name"), tracking.prefixes()), ((vec![2000], 1), 1));
    }

    #[tokio::test]
    async fn the_prefixes_of_all_clients_are_bounded_together() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
        let tracking = Tracking::new(&broker, Arc::default());
        let of = |count: usize| Options {
            prefixes: (0..count).map(|number| format!("{number:04}{}", "x".repeat(1000)).into_bytes()).collect(),
            ..Options::default()
        };
        let (many, few) = (of(1000), of(10));
        let taken = (0..).take_while(|_| tracking.take_prefixes(None, &many).is_ok()).count();
        assert_eq!(taken, PREFIXES_BYTES_MAX / many.prefix_bytes());
        assert!(tracking.take_prefixes(Some(&few), &many).is_err());
        // Fewer are possible, and leave room.
        assert!(tracking.take_prefixes(Some(&many), &few).is_ok());
        assert!(tracking.take_prefixes(None, &of(900)).is_ok());
    }
}
