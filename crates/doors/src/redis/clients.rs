//! Registry of all connections of this door, with the state that other connections may see.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use broker::Waiting;
use broker::metrics::Exposition;
use engine::security::TenantName;
use net::Outbox;
use parking_lot::Mutex;

use super::commands;
use super::commands::session::DEFAULT_USER;

#[derive(Default)]
pub(super) struct Clients {
    /// Clients by connection id.
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Number of bytes of the incomplete request of each connection, until the connection is registered with it.
    unread: Mutex<HashMap<u64, Arc<AtomicUsize>>>,
}

pub(super) struct Client {
    pub(super) id: u64,
    pub(super) address: String,
    /// Address that is charged for the memory of replies; `None` for some clients on this machine.
    pub(super) ip: Option<IpAddr>,
    pub(super) local: String,
    pub(super) about: Mutex<About>,
    pub(super) database: AtomicUsize,
    /// Wait of the blocking command that is running.
    pub(super) waiting: Mutex<Option<Weak<Waiting>>>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) since_ms: u64,
    /// Time of the last request, in seconds since the door opened, and the number of its command.
    pub(super) active_s: AtomicU64,
    pub(super) command: AtomicU32,
    /// Number of bytes of the incomplete request.
    pub(super) unread: Arc<AtomicUsize>,
    /// Upper bound of the bytes of messages in the outbox that no command has requested.
    pub(super) messages: AtomicUsize,
    /// Number of bytes of the arguments of a blocking or long command.
    pub(super) args_bytes: AtomicUsize,
}

/// Command number of a client that has not sent a command yet.
pub(super) const NO_COMMAND: u32 = u32::MAX;
/// Fixed memory of a connection.
const CONNECTION_BYTES: usize = size_of::<super::connection::Session>() + size_of::<Client>() + size_of::<Outbox>();

/// Context of a command that shows connections: its client, the time, and the sizes of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) id: u64,
    pub(super) now_ms: u64,
    /// Time in seconds since the door opened.
    pub(super) up_s: u64,
    pub(super) request_bytes: usize,
    pub(super) args_bytes: usize,
}

/// Properties that a client set for itself, and its protocol state.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) name: String,
    pub(super) library: String,
    pub(super) library_version: String,
    pub(super) user: String,
    pub(super) is_resp3: bool,
    pub(super) channels: usize,
    pub(super) patterns: usize,
    pub(super) shard_channels: usize,
    /// Number of commands in the transaction that has begun, and their bytes.
    pub(super) queued: Option<usize>,
    pub(super) queued_bytes: usize,
    pub(super) is_evicted_never: bool,
    /// `true` if the client monitors all commands.
    pub(super) is_monitoring: bool,
    /// Tracking, while it is on.
    pub(super) tracking: Option<TrackingInfo>,
    /// Tenant whose names the client uses.
    pub(super) tenant: Option<TenantName>,
}

/// Tracking of a client as `CLIENT LIST` shows it.
#[derive(Clone, Debug)]
pub(super) struct TrackingInfo {
    pub(super) is_broadcast: bool,
    pub(super) redirect: u64,
    /// `true` if the connection that should receive the invalidations has closed.
    pub(super) is_broken: Arc<AtomicBool>,
}

impl Default for About {
    fn default() -> Self {
        Self {
            name: String::new(),
            library: String::new(),
            library_version: String::new(),
            user: DEFAULT_USER.to_owned(),
            is_resp3: false,
            channels: 0,
            patterns: 0,
            shard_channels: 0,
            queued: None,
            queued_bytes: 0,
            is_evicted_never: false,
            is_monitoring: false,
            tracking: None,
            tenant: None,
        }
    }
}

/// Arguments of a command that has not ended. They count for the memory of its client until this is dropped.
pub(super) struct HeldArgs {
    client: Arc<Client>,
    bytes: usize,
}

impl HeldArgs {
    pub(super) fn new(client: &Arc<Client>, bytes: usize) -> Self {
        client.args_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { client: client.clone(), bytes }
    }
}

impl Drop for HeldArgs {
    fn drop(&mut self) {
        self.client.args_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Clients {
    pub(super) fn add(&self, client: Arc<Client>) {
        self.by_id.lock().insert(client.id, client);
    }

    pub(super) fn remove(&self, id: u64) {
        self.by_id.lock().remove(&id);
        self.unread.lock().remove(&id);
    }

    /// Returns the counter in which the decoder of a connection keeps the size of its incomplete request.
    pub(super) fn unread(&self, id: u64) -> Arc<AtomicUsize> {
        self.unread.lock().entry(id).or_default().clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<Client>> {
        self.by_id.lock().values().cloned().collect()
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.by_id.lock().get(&id).cloned()
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let all = self.all();
        let blocked = all.iter().filter(|client| client.is_blocked()).count();
        out.gauge("thalweg_redis_clients", "Connections of Redis clients", all.len() as u64)?;
        out.gauge(
            "thalweg_redis_blocked_clients",
            "Connections of Redis clients blocked on a key or a stream",
            blocked as u64,
        )
    }
}

impl Client {
    /// Returns a client whose messages are never written.
    #[cfg(test)]
    pub(super) fn of_test(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            address: "127.0.0.1:1".to_owned(),
            ip: None,
            local: String::new(),
            about: Mutex::default(),
            database: AtomicUsize::new(0),
            waiting: Mutex::default(),
            outbox: Arc::new(Outbox::to_writer(1 << 20)),
            since_ms: 0,
            active_s: AtomicU64::new(0),
            command: AtomicU32::new(NO_COMMAND),
            unread: Arc::default(),
            messages: AtomicUsize::new(0),
            args_bytes: AtomicUsize::new(0),
        })
    }

    /// Notes the command that the client runs now.
    #[inline]
    pub(super) fn note(&self, number: usize, up_s: u64) {
        self.command.store(number as u32, Ordering::Relaxed);
        self.active_s.store(up_s, Ordering::Relaxed);
    }

    pub(super) fn select(&self, database: usize) {
        self.database.store(database, Ordering::Relaxed);
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.waiting().is_some_and(|waiting| !waiting.is_over())
    }

    pub(super) fn waiting(&self) -> Option<Arc<Waiting>> {
        self.waiting.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Formats a line of `CLIENT LIST`: the fields of Redis 7.0 in their order, and those that 7.2 has for libraries. A
    /// connection has no buffers between its requests, so the fields for such buffers are 0.
    pub(super) fn line(&self, asking: Asking) -> String {
        let about = self.about.lock().clone();
        let (request_bytes, args_bytes) = if asking.id == self.id {
            (asking.request_bytes, asking.args_bytes)
        } else {
            (0, self.args_bytes.load(Ordering::Relaxed))
        };
        let age_s = asking.now_ms.saturating_sub(self.since_ms) / 1000;
        let idle_s = asking.up_s.saturating_sub(self.active_s.load(Ordering::Relaxed));
        let query_bytes = self.unread.load(Ordering::Relaxed) + request_bytes;
        let chunks = self.outbox.chunks();
        let waiting = self.outbox.waiting();
        let all_bytes = self.bytes() + if asking.id == self.id { request_bytes + args_bytes } else { 0 };
        let command = self.command.load(Ordering::Relaxed) as usize;
        let mut line = String::new();
        let written = writeln!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={age_s} idle={idle_s} flags={} db={} sub={} psub={} ssub={} \
             multi={} qbuf={query_bytes} qbuf-free=0 argv-mem={args_bytes} multi-mem={} rbs=0 rbp=0 obl=0 \
             oll={chunks} omem={waiting} tot-mem={all_bytes} events={} cmd={} user={} redir={} resp={} lib-name={} \
             lib-ver={}",
            self.id,
            self.address,
            self.local,
            about.name,
            self.flags(&about),
            self.database.load(Ordering::Relaxed),
            about.channels,
            about.patterns,
            about.shard_channels,
            about.queued.map_or(-1, |count| count as i64),
            about.queued_bytes,
            if waiting == 0 { "r" } else { "rw" },
            commands::names().get(command).map_or("NULL", String::as_str),
            about.user,
            about.tracking.as_ref().map_or(-1, |tracking| tracking.redirect as i64),
            if about.is_resp3 { 3 } else { 2 },
            about.library,
            about.library_version,
        );
        debug_assert!(written.is_ok(), "a string takes all that is written to it");
        line
    }

    /// Returns the memory of the connection in bytes: its state, its names, and all pending data.
    pub(super) fn bytes(&self) -> usize {
        let about = self.about.lock();
        let texts = about.name.len() + about.library.len() + about.library_version.len() + about.user.len();
        let waiting = self.unread.load(Ordering::Relaxed) + self.args_bytes.load(Ordering::Relaxed);
        CONNECTION_BYTES + texts + waiting + about.queued_bytes + self.outbox.waiting()
    }

    /// Returns the flags in the order of Redis.
    fn flags(&self, about: &About) -> String {
        let is_subscribed = about.channels + about.patterns + about.shard_channels > 0;
        let all = [
            ('O', about.is_monitoring),
            ('P', is_subscribed),
            ('x', about.queued.is_some()),
            ('b', self.is_blocked()),
            ('t', about.tracking.is_some()),
            ('R', about.tracking.as_ref().is_some_and(|it| it.is_broken.load(Ordering::Relaxed))),
            ('B', about.tracking.as_ref().is_some_and(|it| it.is_broadcast)),
            ('e', about.is_evicted_never),
        ];
        let flags: String = all.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| *flag).collect();
        if flags.is_empty() { "N".to_owned() } else { flags }
    }

    /// Returns the number of all its subscriptions.
    pub(super) fn channels(&self) -> usize {
        let about = self.about.lock();
        about.channels + about.patterns + about.shard_channels
    }
}
