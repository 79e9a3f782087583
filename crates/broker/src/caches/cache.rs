//! A cache, its stripes, and the part of it that one step has locked.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use engine::cache::operations::{OperationAnswer, OperationId, Operations};
use engine::cache::record::{CacheDefinition, CacheNumber};
use engine::cache::{
    Budget, CacheName, CacheSettings, Eviction, Expires, Key, Stripe, StripeSettings, TTL_MS_MAX, Ttl,
};
use engine::{Error, Offset, Result};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::changes::Changes;
use super::grown::Grown;
use super::log::{CacheLog, Kept};
use super::notes::{Cause, Note, Notes};
use super::waiters::Waiters;
use crate::clock::{Clock, StepTime};
use crate::commit::Commit;
use crate::streams::Streams;

/// Number of stripes of a cache. Two threads rarely meet at one of them.
const STRIPES: usize = 64;
/// Maximum number of bytes that a stripe takes of the budget in one step.
const BLOCK_BYTES_MAX: u64 = 64 << 10;
const BLOCK_BYTES_MIN: u64 = 256;

/// Takes the value of a key for a waiting client and returns its answer; `None` if there is nothing to take yet.
pub type Attempt = Box<dyn FnMut(&mut Locked<'_>, &[u8]) -> Option<Bytes> + Send>;

/// A named view in memory that many threads share.
pub struct Cache {
    /// Number of the cache, which no other cache ever has, whatever its name.
    pub(super) id: u64,
    pub(super) name: CacheName,
    pub(super) settings: CacheSettings,
    pub(super) clock: Clock,
    pub(super) streams: Arc<Streams>,
    pub(super) budget: Arc<Budget>,
    pub(super) hasher: foldhash::quality::RandomState,
    pub(super) stripes: Box<[Padded]>,
    /// Bit for each stripe that a long step holds ([`Locked::announce`]).
    pub(super) held: AtomicU64,
    /// For each stripe, the number of callers that wait for it while a long step holds it ([`Cache::await_keys`]).
    pub(super) awaited: [AtomicUsize; STRIPES],
    /// `true` if clients wait for keys that could not be served while a long step held stripes ([`Cache::serve`]).
    pub(super) has_unserved: AtomicBool,
    pub(super) changes: Changes,
    pub(super) waiters: Waiters<Attempt>,
    pub(super) is_deleted: AtomicBool,
    /// Stripe from which the next search for entries to evict begins.
    pub(super) shed_from: AtomicUsize,
    pub(super) durable: Option<Durable>,
    /// Operations that were answered. This lock is taken after the locks of stripes.
    pub(super) operations: Mutex<Operations>,
}

/// Log of a durable cache, and the number of the cache in it.
pub(super) struct Durable {
    pub(super) log: Arc<CacheLog>,
    pub(super) number: CacheNumber,
}

// `Cache::held` has a bit for each.
const _: () = assert!(STRIPES == u64::BITS as usize);

/// A stripe that shares no line of the processor's cache with its neighbour.
#[repr(align(128))]
pub(super) struct Padded(pub(super) Mutex<Kept>);

/// Parts that all caches of a broker share.
pub(super) struct Common {
    pub(super) clock: Clock,
    pub(super) streams: Arc<Streams>,
    pub(super) budget: Arc<Budget>,
    pub(super) hasher: foldhash::quality::RandomState,
    /// Bytes of recorded changes for watchers, of all caches together.
    pub(super) watched_bytes: Arc<AtomicUsize>,
    pub(super) notes: Arc<Notes>,
}

/// Locked stripes, each with its number.
pub(super) type LockedStripes<'c> = SmallVec<[(usize, MutexGuard<'c, Kept>); 1]>;

/// Locked stripes of some keys, or all stripes. A key of another stripe must not be accessed.
pub struct Locked<'c> {
    pub(super) cache: &'c Cache,
    /// Locked stripes in the order of their numbers.
    pub(super) stripes: LockedStripes<'c>,
    /// Time of the step, set on first use: the whole step has the same time.
    pub(super) time: StepTime,
    pub(super) is_changed: bool,
    /// Keys that clients wait for and that may have more now.
    pub(super) grown: Grown,
    /// `true` if all entries were removed, before the other changes of the step since the last exchange.
    pub(super) is_flushed: bool,
    /// Exchanges with other caches that are not logged yet. They precede the other changes of the step. Of the two
    /// caches, one has the exchange.
    pub(super) earlier: Vec<Swapped>,
    /// `true` if the contents were exchanged with those of another cache.
    pub(super) is_swapped: bool,
    /// Offset of the last record with a change that this step has read or made.
    pub(super) read: Option<Offset>,
    /// `true` if any key may have been read.
    pub(super) is_read: Cell<bool>,
    pub(super) answered: Option<(OperationId, OperationAnswer)>,
    /// Changes of streams that have to be durable with the step.
    pub(super) later: Commit,
    /// Bit for each stripe, if they are announced as held by a long step.
    pub(super) announced: Option<u64>,
    /// Notes of this step, if any are wanted.
    pub(super) notes: Option<Vec<Note>>,
    /// Cause of the following changes.
    pub(super) cause: Cause,
    /// `true` if no notes are taken of missing keys until the cause is set again.
    pub(super) hides_misses: bool,
}

/// Changes of a step that precede an exchange of the contents of two durable caches, and the exchange as the last one.
pub(super) struct Swapped {
    /// Version that the exchange gave to all entries: a later exchange of one of the caches has a higher one.
    pub(super) version: u64,
    /// Effects, each with the number of its cache, in their order.
    pub(super) steps: [(CacheNumber, Vec<u8>); 2],
}

/// Work that a step leaves for the time after its locks are released.
#[must_use]
#[derive(Default)]
pub struct Finished {
    /// Keys that may have more now, for the clients that wait for them ([`Cache::serve`]).
    pub grown: Vec<Box<[u8]>>,
    /// Commit of the changes that were made and read.
    pub commit: Commit,
}

impl Cache {
    pub(super) fn new(
        id: u64,
        name: CacheName,
        settings: CacheSettings,
        common: &Common,
        durable: Option<Durable>,
    ) -> Self {
        let bytes_max = settings.bytes_max.unwrap_or(u64::MAX);
        let budget = Arc::new(Budget::new(bytes_max, Some(common.budget.clone())));
        let block = (budget.max() / (16 * STRIPES as u64)).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let eviction = settings.eviction;
        let clock = common.clock;
        let now_ms = clock.now_ms();
        let stripe = || StripeSettings { eviction, budget: budget.clone(), block, version: id, now_ms };
        Self {
            id,
            stripes: (0..STRIPES).map(|_| Padded(Mutex::new(Kept::new(Stripe::new(stripe()), id)))).collect(),
            held: AtomicU64::new(0),
            awaited: [const { AtomicUsize::new(0) }; STRIPES],
            has_unserved: AtomicBool::new(false),
            name,
            settings,
            clock,
            streams: common.streams.clone(),
            hasher: common.hasher.clone(),
            changes: Changes::new(id, common.watched_bytes.clone(), common.notes.clone()),
            waiters: Waiters::default(),
            is_deleted: AtomicBool::new(false),
            shed_from: AtomicUsize::new(0),
            budget,
            durable,
            operations: Mutex::default(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Marks the cache as one that must be opened again. Its watchers, and the clients that wait for a key, are
    /// notified of its end.
    pub(super) fn end(&self) {
        self.is_deleted.store(true, Ordering::Relaxed);
        self.changes.end();
        self.waiters.end();
    }

    pub(super) fn definition(&self) -> CacheDefinition {
        CacheDefinition { name: self.name.clone(), settings: self.settings }
    }

    /// Makes the stripes report the effects of their changes from now on, so that they can be logged.
    pub(super) fn keep_effects(&self) {
        self.stripes.iter().for_each(|stripe| stripe.0.lock().record_effects(true));
    }

    /// Returns the commit of all changes to this key so far. A client must not see them before it is reached. In
    /// memory, it is reached immediately.
    pub fn commit_of(&self, key: &[u8]) -> Commit {
        let Some(Durable { log, .. }) = &self.durable else {
            return Commit::done();
        };
        let key = self.key(key);
        // If a long step holds the stripe, all changes so far are waited for instead.
        let Some(mut stripe) = self.spare_stripe(self.stripe_of(key)) else {
            return log.settled();
        };
        stripe.unsettled(log, Some(key.mark())).map_or_else(Commit::done, |offset| log.commit_of(offset))
    }

    /// Returns the commit of all changes to all keys so far.
    pub fn settled(&self) -> Commit {
        self.durable.as_ref().map_or_else(Commit::done, |durable| durable.log.settled())
    }

    /// Refuses a change that could not be logged: of a durable cache on a full disk, for example. It is called before
    /// the change.
    pub fn admit(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), |durable| durable.log.admit())
    }

    /// Passes the changes of a stripe to the watchers, the log and the streams before its lock is released.
    pub(super) fn follow(&self, stripe: &mut Kept) {
        self.changes.follow(stripe);
        if !stripe.notes.is_empty() {
            self.changes.notes.tell(&self.name, &std::mem::take(&mut stripe.notes));
        }
        if let Some(Durable { log, number }) = &self.durable {
            stripe.write(log, *number);
        }
        self.drop_streams(stripe);
    }

    /// Returns the keys that may have more for waiters, if some could not be served while a long step held stripes:
    /// all that are waited for, so that no list of them has to be kept.
    pub(super) fn take_unserved(&self) -> Vec<Box<[u8]>> {
        let has_unserved = self.has_unserved.load(Ordering::SeqCst) && self.has_unserved.swap(false, Ordering::SeqCst);
        if has_unserved { self.waiters.keys() } else { Vec::new() }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed)
    }

    pub fn name(&self) -> &CacheName {
        &self.name
    }

    /// Returns the eviction policy of the cache.
    pub fn eviction(&self) -> Eviction {
        self.settings.eviction
    }

    pub(super) fn expires(&self, ttl: Ttl) -> Result<Expires> {
        let after = |ms: u64| match ms {
            0 => Err(Error::invalid("a time to live is at least 1 ms; to remove the entry, delete it")),
            1..=TTL_MS_MAX => Ok(Expires::At(self.now_ms() + ms)),
            _ => Err(Error::invalid(format!("a time to live is at most {TTL_MS_MAX} ms, or unlimited"))),
        };
        match ttl {
            Ttl::Default => self.settings.ttl_ms.map_or(Ok(Expires::Never), after),
            Ttl::Never => Ok(Expires::Never),
            Ttl::For(ms) => after(ms),
            Ttl::Until(ms) => Ok(Expires::At(ms)),
            Ttl::Kept => Ok(Expires::Kept),
        }
    }

    pub(super) fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(bytes);
        Key { hash: hasher.finish(), bytes }
    }

    pub(super) fn stripe_of(&self, key: Key<'_>) -> usize {
        key.hash as usize % self.stripes.len()
    }
}

impl<'c> Locked<'c> {
    pub(super) fn new(cache: &'c Cache, mut stripes: LockedStripes<'c>) -> Self {
        let is_noted = cache.changes.notes.are_wanted();
        if is_noted {
            stripes.iter_mut().for_each(|(_, stripe)| cache.changes.begin(stripe));
        }
        Self {
            cache,
            stripes,
            time: StepTime::new(cache.clock),
            is_changed: false,
            grown: Grown::new(),
            is_flushed: false,
            earlier: Vec::new(),
            is_swapped: false,
            read: None,
            is_read: Cell::new(false),
            answered: None,
            later: Commit::done(),
            announced: None,
            notes: is_noted.then(Vec::new),
            cause: Cause::default(),
            hides_misses: false,
        }
    }
}
