//! Contents of a near cache, and the times when they may be used: a state machine without a clock or a socket.
//!
//! News of a key arrives in three ways: from the watch's changes, from the answers to gets, and from the answers to
//! this client's own changes. These arrive over several connections, in any order. Two rules keep the contents correct:
//! an entry is replaced or dropped by everything that may be newer, and an answer is kept only if nothing was learned
//! about its key since the request ([`Mark`]). In doubt an entry is dropped, which costs one more request to the
//! broker.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::cache::{
    Budget, Change, ChangeKind, Condition, Eviction, Expires, Found, Key, Stripe, StripeSettings, WatchFrom, Watched,
};
use wire::caches::Value;

use super::{NearSettings, NearStats};

/// Maximum number of changes in one answer to a watch.
pub(super) const CHANGES_MAX: u32 = 1000;
/// Size below which an answer to a watch was complete. Brokers end an answer at 1 MiB of changes, where each change
/// counts up to a hundred bytes more than its key and value.
const SHORT_BYTES_MAX: usize = 512 << 10;
/// Number of counters of news. If two keys share a counter, some answers are not kept, but no wrong entry results.
const MARKS: usize = 4096;
/// An entry takes at most 1/`ENTRY_PART` of all bytes, so that no entry displaces all others.
const ENTRY_PART: u64 = 8;
/// Memory is allocated in blocks of 1/`BLOCK_PART` of all bytes.
const BLOCK_PART: u64 = 16;
const BLOCK_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of expired entries that one call removes.
const EXPIRE_MAX: usize = 256;
/// Bytes before each value: `1` if the key has a value and `0` otherwise (u8), and its version (u64).
const HEADER_BYTES: usize = 9;
/// Version of a key that did not exist when it was requested: no change is known to be newer than that.
const NO_VERSION: u64 = 0;

/// Current time by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub at: Instant,
    /// Milliseconds since 1970.
    pub ms: u64,
}

/// Count of the news about a key, and some other keys, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

/// Result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    Hit(Option<Value>),
    /// The broker has to be queried, and its answer may be kept under this mark.
    Miss(Mark),
    /// The broker has to be queried, and nothing is known or usable about this key now.
    Past,
}

/// Content of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News<'a> {
    Value {
        value: &'a [u8],
        expires_ms: Option<u64>,
    },
    Gone,
    /// Another value that is not known here.
    Unseen,
}

/// Latest known state of an entry.
struct Known {
    version: u64,
    has_value: bool,
}

pub(super) struct Kept {
    stripe: Stripe,
    hasher: foldhash::quality::RandomState,
    prefix: Bytes,
    entry_bytes_max: u64,
    stale_max: Duration,
    /// Counters of the news about keys, by hash.
    marks: Box<[u64]>,
    /// Time up to which all changes are known; `None` while the watch is cut.
    known_at: Option<Instant>,
    stats: NearStats,
}

impl Kept {
    pub(super) fn new(settings: &NearSettings) -> Self {
        let stripe = StripeSettings {
            eviction: Eviction::S3Fifo,
            budget: Arc::new(Budget::new(settings.bytes_max, None)),
            block: (settings.bytes_max / BLOCK_PART).clamp(1, BLOCK_BYTES_MAX),
            version: 0,
            // No caller reads the last use of an entry.
            now_ms: 0,
        };
        Self {
            stripe: Stripe::new(stripe),
            hasher: foldhash::quality::RandomState::default(),
            prefix: settings.prefix.clone(),
            entry_bytes_max: settings.bytes_max / ENTRY_PART,
            stale_max: settings.stale_max,
            marks: vec![0; MARKS].into(),
            known_at: None,
            stats: NearStats::default(),
        }
    }

    pub(super) fn look(&mut self, key: &[u8], now: Now) -> Look {
        if !key.starts_with(&self.prefix) {
            return Look::Past;
        }
        if !self.is_live(now.at) {
            self.stats.bypassed += 1;
            return Look::Past;
        }
        let key = key_of(&self.hasher, key);
        match self.stripe.get(key, || now.ms) {
            Some(found) => {
                self.stats.hits += 1;
                Look::Hit(value_of(found))
            }
            None => {
                self.stats.misses += 1;
                Look::Miss(Mark(*self.mark(key)))
            }
        }
    }

    /// Counts a get that waits for the answer to another.
    pub(super) fn joined(&mut self) {
        self.stats.joined += 1;
    }

    /// Processes the broker's answer to a get, with the mark of its miss, if it was one.
    pub(super) fn answered(&mut self, key: &[u8], mark: Option<Mark>, answer: Option<&Value>, now: Now) {
        let key = key_of(&self.hasher, key);
        let is_latest = mark == Some(Mark(*self.mark(key)));
        // Answers to concurrent requests may be older.
        *self.mark(key) += 1;
        match (self.known(key, now), answer) {
            (Some(known), Some(value)) if known.version >= value.version => {}
            // The key may have been written and deleted again since the known version. A later report of that write
            // must not revive its value.
            (Some(known), None) if !known.has_value => self.keep(key, NO_VERSION, News::Gone, now),
            (Some(_), _) => self.let_go(key, now),
            (None, Some(Value { value, version, expires_ms })) if is_latest => {
                self.keep(key, *version, News::Value { value, expires_ms: *expires_ms }, now);
            }
            (None, None) if is_latest => self.keep(key, NO_VERSION, News::Gone, now),
            (None, _) => {}
        }
    }

    /// Records that a key has reached at least this version.
    pub(super) fn learn(&mut self, key: &[u8], version: u64, news: News<'_>, now: Now) {
        let key = key_of(&self.hasher, key);
        *self.mark(key) += 1;
        match self.known(key, now) {
            Some(known) if known.version == NO_VERSION => self.let_go(key, now),
            Some(known) if known.version < version => {
                self.stats.invalidations += 1;
                self.keep(key, version, news, now);
            }
            _ => {}
        }
    }

    /// Records that the current state of a key is unknown.
    pub(super) fn forget(&mut self, key: &[u8], now: Now) {
        let key = key_of(&self.hasher, key);
        *self.mark(key) += 1;
        self.let_go(key, now);
    }

    /// Records that the current state of all keys is unknown.
    pub(super) fn clear(&mut self) {
        self.stats.invalidations += self.stripe.stats().entries;
        self.stripe.flush();
        self.marks.iter_mut().for_each(|mark| *mark += 1);
    }

    /// Processes the watch's answer to a request from this time and position. Returns the next position: at the
    /// beginning the cache is empty, so the existing entries are skipped and the watch continues with changes.
    pub(super) fn told(&mut self, asked_at: Instant, from: WatchFrom, watched: &Watched, now: Now) -> WatchFrom {
        let is_new = watched.is_reset || !matches!(from, WatchFrom::Changes { .. });
        if is_new {
            self.stats.resets += u64::from(watched.is_reset);
            self.clear();
        } else {
            watched.changes.iter().for_each(|change| self.change(change, now));
        }
        if is_new || is_short(&watched.changes) {
            self.known_at = Some(asked_at);
        }
        self.stripe.expire(now.ms, EXPIRE_MAX);
        match watched.next {
            WatchFrom::Scan { position, .. } | WatchFrom::Changes { position } => WatchFrom::Changes { position },
            WatchFrom::Snapshot => WatchFrom::Snapshot,
        }
    }

    /// Records that the watch is interrupted. The kept entries are correct again if the watch resumes at its position.
    pub(super) fn cut(&mut self) {
        self.known_at = None;
    }

    pub(super) fn stats(&self, at: Instant) -> NearStats {
        let stripe = self.stripe.stats();
        NearStats {
            evictions: stripe.evicted,
            entries: stripe.entries,
            bytes: stripe.bytes,
            is_live: self.is_live(at),
            ..self.stats
        }
    }

    /// Returns `true` if the kept entries may be used.
    pub(super) fn is_live(&self, at: Instant) -> bool {
        self.known_at.is_some_and(|known_at| at.saturating_duration_since(known_at) <= self.stale_max)
    }

    fn change(&mut self, change: &Change, now: Now) {
        let news = match &change.kind {
            ChangeKind::Put(value) => News::Value { value, expires_ms: change.expires_ms },
            ChangeKind::Deleted => News::Gone,
            ChangeKind::Changed(_) => News::Unseen,
            // These changes have no version to compare.
            ChangeKind::Expired | ChangeKind::Evicted => return self.forget(&change.key, now),
            ChangeKind::Flushed => return self.clear(),
        };
        self.learn(&change.key, change.version, news, now);
    }

    fn mark(&mut self, key: Key<'_>) -> &mut u64 {
        &mut self.marks[key.hash as usize % MARKS]
    }

    fn known(&mut self, key: Key<'_>, now: Now) -> Option<Known> {
        let (has_value, version, _) = parts(self.stripe.peek(key, || now.ms)?)?;
        Some(Known { version, has_value })
    }

    fn keep(&mut self, key: Key<'_>, version: u64, news: News<'_>, now: Now) {
        let (has_value, value, expires) = match news {
            News::Value { value, expires_ms } => (true, value, expires_ms.map_or(Expires::Never, Expires::At)),
            News::Gone => (false, &[][..], Expires::Never),
            News::Unseen => return self.remove(key, now),
        };
        let bytes = HEADER_BYTES + value.len();
        if (key.bytes.len() + bytes) as u64 > self.entry_bytes_max {
            return self.remove(key, now);
        }
        let mut block = Vec::with_capacity(bytes);
        block.push(u8::from(has_value));
        block.extend_from_slice(&version.to_le_bytes());
        block.extend_from_slice(value);
        if self.stripe.put(key, &block, expires, Condition::Always, || now.ms).is_err() {
            self.remove(key, now);
        }
    }

    fn let_go(&mut self, key: Key<'_>, now: Now) {
        if self.known(key, now).is_some() {
            self.stats.invalidations += 1;
            self.remove(key, now);
        }
    }

    fn remove(&mut self, key: Key<'_>, now: Now) {
        self.stripe.delete(key, Condition::Always, || now.ms);
    }
}

fn key_of<'a>(hasher: &foldhash::quality::RandomState, bytes: &'a [u8]) -> Key<'a> {
    Key { hash: hasher.hash_one(bytes), bytes }
}

/// Returns whether the key has a value, its version, and the value.
fn parts(found: Found<'_>) -> Option<(bool, u64, &[u8])> {
    let (has_value, rest) = found.value.bytes().ok()?.split_first()?;
    let (version, value) = rest.split_first_chunk()?;
    Some((*has_value != 0, u64::from_le_bytes(*version), value))
}

fn value_of(found: Found<'_>) -> Option<Value> {
    let (has_value, version, value) = parts(found)?;
    has_value.then(|| Value { value: Bytes::copy_from_slice(value), version, expires_ms: found.expires_ms })
}

/// Returns `true` if the answer has room left, and so contains all changes.
fn is_short(changes: &[Change]) -> bool {
    let bytes_of = |change: &Change| match &change.kind {
        ChangeKind::Put(value) => change.key.len() + value.len(),
        _ => change.key.len(),
    };
    changes.len() < CHANGES_MAX as usize && changes.iter().map(bytes_of).sum::<usize>() < SHORT_BYTES_MAX
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
