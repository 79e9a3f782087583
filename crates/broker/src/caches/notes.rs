//! Notes about changes of keys, for one listener: a door that publishes them as events. They are taken under the locks
//! of the changed stripes, so that those of a key are in the order of its changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use engine::cache::{CacheName, Removed, Why};
use parking_lot::RwLock;

/// Operation that changed a key, in the words of the door that requested it, and the connection of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Name of the operation; empty if the door names none.
    pub operation: &'static str,
    /// Number of the connection; 0 if no connection caused the change.
    pub client: u64,
}

/// One change of a key, or a lookup that found nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub key: Box<[u8]>,
    pub what: What,
    pub cause: Cause,
}

/// Kind of a [`Note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The key has another value as a whole.
    Put {
        is_new: bool,
        /// `true` if the change set an expiry time.
        expires: bool,
    },
    /// Parts of a list, hash, set or sorted set were changed.
    Changed {
        is_new: bool,
    },
    /// An operation found a structure, and left it as it was.
    Kept,
    Deleted,
    /// The key has an expiry time from now on.
    Expires,
    /// The key has no expiry time any more.
    Persists,
    Expired,
    Evicted,
    /// A lookup found no value.
    Missed,
    /// All keys were removed, or exchanged with those of another cache; the note has no key.
    Flushed,
    /// A change that the door reports: the operation of the cause says which.
    Reported,
}

/// Listener of the notes. It is called under the locks of stripes, and must not use a cache.
pub trait NoteListener: Send + Sync {
    fn listen(&self, cache: &CacheName, notes: &[Note]);
}

/// Notes that a listener wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    Changes,
    /// Lookups that found nothing, too.
    Misses,
}

/// Switch of the notes, and their listener. All caches of a broker share it.
#[derive(Default)]
pub(super) struct Notes {
    /// A [`Wanted`] as a number: relaxed reads of it are all that notes cost while nothing is wanted.
    wanted: AtomicU8,
    listener: RwLock<Option<Arc<dyn NoteListener>>>,
}

impl Notes {
    pub(super) fn want(&self, wanted: Wanted, listener: Option<Arc<dyn NoteListener>>) {
        *self.listener.write() = listener;
        let number = match wanted {
            Wanted::Nothing => 0,
            Wanted::Changes => 1,
            Wanted::Misses => 2,
        };
        self.wanted.store(number, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    pub(super) fn are_misses_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) == 2
    }

    /// Passes notes to the listener. The stripes of their keys are locked.
    pub(super) fn tell(&self, cache: &CacheName, notes: &[Note]) {
        if notes.is_empty() {
            return;
        }
        let listener = self.listener.read().clone();
        if let Some(listener) = listener {
            listener.listen(cache, notes);
        }
    }
}

impl Note {
    pub(super) fn of_removed(removed: &Removed) -> Self {
        let what = match removed.why {
            Why::Expired => What::Expired,
            Why::Evicted => What::Evicted,
        };
        Self { key: removed.key.clone(), what, cause: Cause::default() }
    }
}
