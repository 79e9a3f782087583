//! All connections of this door, as others of them see each.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use broker::Waiting;
use broker::metrics::Exposition;
use net::Outbox;
use parking_lot::Mutex;

#[derive(Default)]
pub(super) struct Clients {
    /// As many as there are connections.
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
}

pub(super) struct Client {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) local: String,
    pub(super) about: Mutex<About>,
    pub(super) database: AtomicUsize,
    /// What it waits for.
    pub(super) waiting: Mutex<Option<Weak<Waiting>>>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) since_ms: u64,
}

/// What a client said of itself, and how it speaks.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) name: String,
    pub(super) library: String,
    pub(super) library_version: String,
    pub(super) user: String,
    pub(super) is_resp3: bool,
    pub(super) channels: usize,
    pub(super) patterns: usize,
    /// Commands of a transaction that is begun.
    pub(super) queued: Option<usize>,
}

impl Clients {
    pub(super) fn add(&self, client: Arc<Client>) {
        self.by_id.lock().insert(client.id, client);
    }

    pub(super) fn remove(&self, id: u64) {
        self.by_id.lock().remove(&id);
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
        out.gauge("thalweg_redis_clients", "Connections of Redis's clients", all.len() as u64)?;
        out.gauge("thalweg_redis_blocked_clients", "Those of them that wait for a key", blocked as u64)
    }
}

impl Client {
    pub(super) fn is_blocked(&self) -> bool {
        self.waiting().is_some_and(|waiting| !waiting.is_over())
    }

    pub(super) fn waiting(&self) -> Option<Arc<Waiting>> {
        self.waiting.lock().as_ref().and_then(Weak::upgrade)
    }

    /// A line of `CLIENT LIST`.
    pub(super) fn line(&self, now_ms: u64) -> String {
        let about = self.about.lock().clone();
        let flags = match (self.is_blocked(), about.queued, about.channels + about.patterns) {
            (true, ..) => "b",
            (_, Some(_), _) => "x",
            (_, _, 1..) => "P",
            _ => "N",
        };
        let multi = about.queued.map_or(-1, |count| count as i64);
        let (id, age_s) = (self.id, now_ms.saturating_sub(self.since_ms) / 1000);
        let mut line = String::new();
        let written = writeln!(
            line,
            "id={id} addr={} laddr={} fd=-1 name={} age={age_s} idle=0 flags={flags} db={} sub={} psub={} ssub=0 \
             multi={multi} resp={} user={} lib-name={} lib-ver={}",
            self.address,
            self.local,
            about.name,
            self.database.load(Ordering::Relaxed),
            about.channels,
            about.patterns,
            if about.is_resp3 { 3 } else { 2 },
            about.user,
            about.library,
            about.library_version,
        );
        debug_assert!(written.is_ok(), "a string takes all that is written to it");
        line
    }
}
