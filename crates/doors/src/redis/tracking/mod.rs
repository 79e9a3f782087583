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
use engine::cache::CacheName;
use engine::security::{Operation, Resource, ResourceKind, TenantName};
use parking_lot::{Mutex, RwLock};

use super::clients::{Client, Clients};
use super::command::random;
use super::names::{Tenant, prefix};
use table::{Readers, Table, scoped};
pub(super) use tracked::{Options, Replying, Tracked};

/// Default of `tracking-table-max-keys`, as in Redis.
const KEYS_MAX: usize = 1_000_000;

/// Tracking clients, and the keys that they have read.
pub(super) struct Tracking {
    clients: Arc<Clients>,
    security: Arc<Security>,
    /// Tracking clients by their connections. This lock is taken before that of the table.
    by_id: RwLock<HashMap<u64, Arc<Tracked>>>,
    /// `true` while any client is tracking.
    is_on: AtomicBool,
    table: Mutex<Table>,
    /// Maximum number of remembered keys; 0 is no limit.
    keys_max: AtomicUsize,
    invalidations: AtomicU64,
    evicted: AtomicU64,
}

impl Tracking {
    pub(super) fn new(broker: &Broker, clients: Arc<Clients>) -> Self {
        Self {
            clients,
            security: broker.security.clone(),
            by_id: RwLock::default(),
            is_on: AtomicBool::new(false),
            table: Mutex::default(),
            keys_max: AtomicUsize::new(KEYS_MAX),
            invalidations: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sets `tracking-table-max-keys`.
    pub(super) fn set_keys_max(&self, max: usize) {
        self.keys_max.store(max, Ordering::Relaxed);
        self.evict();
    }

    /// Starts to track for a client, or continues with other options.
    pub(super) fn begin(
        &self,
        client: &Arc<Client>,
        identity: Arc<Identity>,
        tenant: Option<&TenantName>,
        options: Options,
    ) -> Arc<Tracked> {
        let tracked = Tracked::begin(options, client, identity, tenant.cloned(), &self.clients);
        let mut by_id = self.by_id.write();
        if let Some(before) = by_id.insert(client.id, tracked.clone()) {
            before.end();
        }
        self.is_on.store(true, Ordering::Relaxed);
        tracked
    }

    /// Ends the tracking of a client. The keys that it has read are forgotten when they change, as in Redis, or with
    /// the last tracking client.
    pub(super) fn end(&self, client: u64) {
        let mut by_id = self.by_id.write();
        if let Some(tracked) = by_id.remove(&client) {
            tracked.end();
        }
        if by_id.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
            *self.table.lock() = Table::default();
        }
    }

    /// Remembers the keys that a client is about to read.
    pub(super) fn remember<'k>(&self, tracked: &Tracked, keys: impl IntoIterator<Item = &'k [u8]>) {
        let prefix = prefix(tracked.tenant.as_ref());
        {
            let mut table = self.table.lock();
            keys.into_iter().for_each(|key| table.add(&scoped(prefix, key), tracked.client.id));
        }
        self.evict();
    }

    /// Invalidates keys until there are no more than the maximum.
    fn evict(&self) {
        let max = self.keys_max.load(Ordering::Relaxed);
        if max == 0 {
            return;
        }
        let evict_one = || {
            let mut table = self.table.lock();
            if table.len() > max { table.evict(random()) } else { None }
        };
        while let Some((key, readers)) = evict_one() {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            let own = key.iter().position(|byte| *byte == 0).map_or(&key[..], |at| &key[at + 1..]);
            self.invalidate(own, &readers, 0);
        }
    }

    /// Tells the readers of a key that its value has changed.
    fn invalidate(&self, key: &[u8], readers: &Readers, changed_by: u64) {
        if readers.is_empty() {
            return;
        }
        let by_id = self.by_id.read();
        for tracked in readers.iter().filter_map(|id| by_id.get(id)) {
            let is_skipped = tracked.options.skips_own && tracked.client.id == changed_by;
            if !tracked.options.is_broadcast && !is_skipped {
                self.invalidations.fetch_add(1, Ordering::Relaxed);
                tracked.invalidate(Some(key));
            }
        }
    }

    /// Invalidates the changed keys of a database.
    pub(super) fn listen(&self, cache: &CacheName, notes: &[Note]) {
        let Some(of_tenant) = tenant_prefix(cache) else {
            return;
        };
        let broadcasts: Vec<Arc<Tracked>> = {
            let by_id = self.by_id.read();
            let all = by_id.values().filter(|it| it.options.is_broadcast && prefix(it.tenant.as_ref()) == of_tenant);
            all.cloned().collect()
        };
        for note in notes {
            if note.what == What::Flushed {
                self.flush(of_tenant);
            } else if is_change(note) {
                let readers = self.table.lock().take(&scoped(of_tenant, &note.key));
                self.invalidate(&note.key, &readers, note.cause.client);
                broadcasts.iter().for_each(|tracked| self.broadcast(tracked, cache, note));
            }
        }
    }

    fn broadcast(&self, tracked: &Tracked, cache: &CacheName, note: &Note) {
        let Options { prefixes, skips_own, .. } = &tracked.options;
        let is_skipped = *skips_own && tracked.client.id == note.cause.client;
        if is_skipped || !prefixes.iter().any(|prefix| note.key.starts_with(prefix)) {
            return;
        }
        // The client has not necessarily read the key, so its name is told only to those that may.
        let name = [cache.as_str().as_bytes(), b"/", &note.key].concat();
        let may =
            || self.security.allows(&tracked.identity, Operation::Read, &Resource::new(ResourceKind::Cache, &name));
        if self.security.is_unlimited(&tracked.identity) || may() {
            self.invalidations.fetch_add(1, Ordering::Relaxed);
            tracked.invalidate(Some(&note.key));
        }
    }

    /// Invalidates all keys of a tenant: as in Redis, those of all databases.
    fn flush(&self, of_tenant: &str) {
        self.table.lock().clear(of_tenant);
        let by_id = self.by_id.read();
        for tracked in by_id.values().filter(|it| prefix(it.tenant.as_ref()) == of_tenant) {
            self.invalidations.fetch_add(1, Ordering::Relaxed);
            tracked.invalidate(None);
        }
    }

    /// Returns the numbers of tracking clients, remembered keys, their readers, and prefixes, as `INFO` shows them.
    pub(super) fn counts(&self) -> [usize; 4] {
        let (clients, prefixes) = {
            let by_id = self.by_id.read();
            let mut prefixes: Vec<&[u8]> =
                by_id.values().flat_map(|it| &it.options.prefixes).map(Vec::as_slice).collect();
            prefixes.sort_unstable();
            prefixes.dedup();
            (by_id.len(), prefixes.len())
        };
        let table = self.table.lock();
        [clients, table.len(), table.readers(), prefixes]
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let [clients, keys, ..] = self.counts();
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        out.gauge("thalweg_redis_tracking_clients", "Redis clients that track keys", clients as u64)?;
        out.gauge("thalweg_redis_tracked_keys", "Keys that tracking clients have read", keys as u64)?;
        let max = self.keys_max.load(Ordering::Relaxed) as u64;
        out.gauge("thalweg_redis_tracked_keys_max", "Maximum of thalweg_redis_tracked_keys; 0 is no limit", max)?;
        out.counter("thalweg_redis_invalidations", "Invalidations for tracking clients", get(&self.invalidations))?;
        out.counter(
            "thalweg_redis_tracked_keys_evicted",
            "Keys invalidated because too many were tracked",
            get(&self.evicted),
        )
    }
}

/// Returns the prefix of the tenant that has this database; `None` if the cache is no database.
fn tenant_prefix(cache: &CacheName) -> Option<&str> {
    let name = cache.as_str();
    let name = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    name.strip_suffix("db").filter(|_| name.len() < cache.as_str().len())
}

/// Returns `true` if a note is about another value of its key, as Redis sees it.
fn is_change(note: &Note) -> bool {
    match note.what {
        What::Missed | What::Flushed => false,
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
