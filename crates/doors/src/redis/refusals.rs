//! Log of refused commands and logins, which `ACL LOG` shows.
//!
//! The log is a bounded ring: a new entry displaces the oldest one. Equal refusals within a minute are one entry, as in
//! Redis, so that a client that repeats itself displaces nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::metrics::Exposition;
use parking_lot::Mutex;

/// Maximum number of entries; the default of Redis's `acllog-max-len`.
pub(super) const ENTRIES_MAX: usize = 128;
/// Time within which equal refusals are one entry (`ACL_LOG_GROUPING_MAX_TIME_DELTA` in Redis's `acl.c`).
const GROUPED_MS: u64 = 60_000;
/// Maximum number of bytes that are kept of a key, a channel or a name.
const OBJECT_BYTES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Auth,
    Command,
    Key,
    Channel,
}

impl Reason {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Command => "command",
            Self::Key => "key",
            Self::Channel => "channel",
        }
    }
}

/// Where a refused command was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    TopLevel,
    Transaction,
    Script,
}

impl Context {
    /// Returns the name that `ACL LOG` of Redis shows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TopLevel => "toplevel",
            Self::Transaction => "multi",
            Self::Script => "lua",
        }
    }
}

/// A refused command, key or channel, and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) context: Context,
    /// Key, channel or command.
    pub(super) object: Vec<u8>,
    pub(super) user: String,
}

impl Refusal {
    pub(super) fn new(reason: Reason, context: Context, object: &[u8], user: &str) -> Self {
        let object = object[..object.len().min(OBJECT_BYTES_MAX)].to_vec();
        let user = user[..user.floor_char_boundary(OBJECT_BYTES_MAX)].to_owned();
        Self { reason, context, object, user }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) refusal: Refusal,
    pub(super) count: u64,
    /// Time of the newest of them, in ms since 1970.
    pub(super) at_ms: u64,
    /// Line of `CLIENT LIST` about the client of the newest of them.
    pub(super) client: String,
}

/// Ring of refusals, newest first.
#[derive(Default)]
pub(super) struct Refusals {
    entries: Mutex<VecDeque<Entry>>,
    displaced: AtomicU64,
}

impl Refusals {
    /// Adds a refusal. `client` describes its client.
    pub(super) fn add(&self, refusal: Refusal, now_ms: u64, client: String) {
        let mut entries = self.entries.lock();
        let is_same = |entry: &Entry| entry.refusal == refusal && now_ms.saturating_sub(entry.at_ms) <= GROUPED_MS;
        let previous = entries.iter().position(is_same).and_then(|at| entries.remove(at));
        let count = previous.map_or(0, |entry| entry.count) + 1;
        entries.push_front(Entry { refusal, count, at_ms: now_ms, client });
        if entries.len() > ENTRIES_MAX {
            entries.truncate(ENTRIES_MAX);
            self.displaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns at most `count` entries, newest first.
    pub(super) fn newest(&self, count: usize) -> Vec<Entry> {
        self.entries.lock().iter().take(count).cloned().collect()
    }

    pub(super) fn forget(&self) {
        self.entries.lock().clear();
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let count = self.entries.lock().len() as u64;
        out.gauge("thalweg_redis_acl_log_entries", "Entries of ACL LOG", count)?;
        let displaced = self.displaced.load(Ordering::Relaxed);
        out.counter("thalweg_redis_acl_log_displaced", "Entries of ACL LOG that newer ones displaced", displaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_refusals_are_one_entry_for_a_minute_and_the_oldest_is_displaced() {
        let log = Refusals::default();
        let refusal = |key: &str| Refusal::new(Reason::Key, Context::TopLevel, key.as_bytes(), "ann");
        log.add(refusal("a"), 0, "first".into());
        log.add(refusal("b"), 10, String::new());
        log.add(refusal("a"), GROUPED_MS, "second".into());
        let counts = |log: &Refusals| log.newest(9).iter().map(|entry| entry.count).collect::<Vec<_>>();
        assert_eq!(counts(&log), [2, 1]);
        assert_eq!(log.newest(1)[0].client, "second");
        log.add(refusal("a"), 2 * GROUPED_MS + 1, String::new());
        assert_eq!(counts(&log), [1, 2, 1]);
        (0..ENTRIES_MAX + 5).for_each(|at| log.add(refusal(&at.to_string()), 200_000, String::new()));
        assert_eq!(log.newest(usize::MAX).len(), ENTRIES_MAX);
        assert_eq!(log.displaced.load(Ordering::Relaxed), 8);
        let long = Refusal::new(Reason::Auth, Context::TopLevel, &[b'x'; 1000], &"\u{e4}".repeat(500));
        assert!(long.object.len() <= OBJECT_BYTES_MAX && long.user.len() <= OBJECT_BYTES_MAX);
        log.forget();
        assert!(log.newest(9).is_empty());
    }
}
