//! Changes of a cache for its watchers, recorded in their order while there are watchers, and for a while afterwards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::cache::{Change, ChangeKind, Found, Key, Value, Why};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::log::Kept;
use super::notes::{Note, Notes};

/// Maximum number of recorded changes of a cache, which also have at most [`CHANGES_BYTES_MAX`] bytes. A watcher
/// further behind has to begin with a new snapshot.
const CHANGES_MAX: usize = 65_536;
const CHANGES_BYTES_MAX: usize = 16 << 20;
/// Maximum number of bytes of the recorded changes of all caches: a cache that exceeds it drops its own oldest changes.
const CHANGES_TOTAL_BYTES_MAX: usize = 256 << 20;
/// Bytes that a change takes in addition to its key and value.
const CHANGE_BYTES: usize = 96;
/// Maximum absence after which a watcher still finds all changes in between.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// Recorded changes of a cache.
pub(super) struct Changes {
    /// `true` if changes are recorded: checked under the lock of a stripe, before each change.
    pub(super) is_watched: AtomicBool,
    /// Held while `is_watched` changes. It is taken before the lock of a stripe, and the lock of `log` after that.
    pub(super) switch: Mutex<()>,
    pub(super) log: Mutex<Log>,
    pub(super) news: Notify,
    /// Bytes of the recorded changes of all caches.
    pub(super) total_bytes: Arc<AtomicUsize>,
    /// Notes of all caches.
    pub(super) notes: Arc<Notes>,
}

pub(super) struct Log {
    pub(super) changes: VecDeque<Arc<Change>>,
    /// Position of the first change in `changes`.
    pub(super) start: u64,
    pub(super) bytes: usize,
    /// Time at which a watcher last read the changes.
    pub(super) watched: Option<Instant>,
    pub(super) is_over: bool,
}

impl Changes {
    /// Creates an empty record that begins at `position`, which no watcher of an earlier cache of this name has
    /// reached.
    pub(super) fn new(position: u64, total_bytes: Arc<AtomicUsize>, notes: Arc<Notes>) -> Self {
        let log = Log { changes: VecDeque::new(), start: position, bytes: 0, watched: None, is_over: false };
        Self {
            is_watched: AtomicBool::new(false),
            switch: Mutex::default(),
            log: Mutex::new(log),
            news: Notify::new(),
            total_bytes,
            notes,
        }
    }

    /// Records the new value of a key, also if it has expired since: a watcher sees each value before its end. Expired
    /// and evicted entries are recorded first, since one of them may be the key's previous value.
    pub(super) fn note(&self, stripe: &mut Kept, key: Key<'_>) {
        self.follow(stripe);
        if self.is_watched()
            && let Some(found) = stripe.peek(key, || 0)
        {
            self.push(found_change(found));
        }
    }

    /// Records the deletion of a key.
    pub(super) fn note_deleted(&self, stripe: &mut Kept, key: Key<'_>, version: u64) {
        self.follow(stripe);
        self.note_gone(key.bytes, version, ChangeKind::Deleted);
    }

    pub(super) fn note_flush(&self) {
        self.note_gone(b"", 0, ChangeKind::Flushed);
    }

    fn note_gone(&self, key: &[u8], version: u64, kind: ChangeKind) {
        if self.is_watched() {
            self.push(Change { key: Bytes::copy_from_slice(key), kind, version, expires_ms: None });
        }
    }

    /// Makes a stripe, which has just been locked, collect removed entries if notes of them are wanted: none is removed
    /// unseen after that.
    #[inline]
    pub(super) fn begin(&self, stripe: &mut Kept) {
        if self.notes.are_wanted() {
            stripe.record_removed(true);
        }
    }

    /// Records the entries of a stripe that expired or were evicted since the last call, and takes notes of them.
    pub(super) fn follow(&self, stripe: &mut Kept) {
        let is_watched = self.is_watched();
        let is_noted = self.notes.are_wanted();
        if stripe.records_removed() != (is_watched || is_noted) {
            stripe.record_removed(is_watched || is_noted);
        }
        if !is_watched && !is_noted {
            return;
        }
        for removed in stripe.take_removed() {
            if is_noted {
                stripe.notes.push(Note::of_removed(&removed));
            }
            if !is_watched {
                continue;
            }
            let kind = match removed.why {
                Why::Expired => ChangeKind::Expired,
                Why::Evicted => ChangeKind::Evicted,
            };
            self.push(Change { key: removed.key.into(), kind, version: 0, expires_ms: None });
        }
    }

    /// Ends the record, so that every watcher begins with a new snapshot: all entries are others now.
    pub(super) fn reset(&self) {
        self.log.lock().skip_all(&self.total_bytes);
        self.news.notify_waiters();
    }

    /// Notifies the watchers that the cache was deleted.
    pub(super) fn end(&self) {
        self.log.lock().is_over = true;
        self.news.notify_waiters();
    }

    pub(super) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    fn push(&self, change: Change) {
        let mut log = self.log.lock();
        let bytes = bytes_of(&change);
        log.bytes += bytes;
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        log.changes.push_back(Arc::new(change));
        while log.changes.len() > CHANGES_MAX
            || log.bytes > CHANGES_BYTES_MAX
            || self.total_bytes.load(Ordering::Relaxed) > CHANGES_TOTAL_BYTES_MAX
        {
            let Some(change) = log.changes.pop_front() else {
                break;
            };
            let bytes = bytes_of(&change);
            log.bytes -= bytes;
            log.start += 1;
            self.total_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        drop(log);
        self.news.notify_waiters();
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.total_bytes.fetch_sub(self.log.get_mut().bytes, Ordering::Relaxed);
    }
}

/// Returns the bytes that a recorded change takes.
pub(super) fn bytes_of(change: &Change) -> usize {
    let value = if let ChangeKind::Put(value) = &change.kind { value.len() } else { 0 };
    CHANGE_BYTES + change.key.len() + value
}

impl Log {
    /// Returns `true` if no watcher has read the changes for [`AWAY_MAX`].
    pub(super) fn is_unwatched(&self) -> bool {
        self.watched.is_none_or(|at| at.elapsed() >= AWAY_MAX)
    }

    pub(super) fn forget_unwatched(&mut self, total_bytes: &AtomicUsize) -> bool {
        if !self.is_unwatched() {
            return false;
        }
        self.skip_all(total_bytes);
        true
    }

    /// Drops all changes. No watcher can continue from here: one change is skipped, so that the gap is detected.
    fn skip_all(&mut self, total_bytes: &AtomicUsize) {
        self.start += self.changes.len() as u64 + 1;
        total_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.changes = VecDeque::new();
        self.bytes = 0;
    }
}

/// Returns the change that an entry stands for.
pub(super) fn found_change(found: Found<'_>) -> Change {
    Change {
        key: Bytes::copy_from_slice(found.key),
        kind: match found.value {
            Value::Bytes(value) => ChangeKind::Put(Bytes::copy_from_slice(value)),
            Value::Structure(structure) => ChangeKind::Changed(structure.kind()),
        },
        version: found.version,
        expires_ms: found.expires_ms,
    }
}
