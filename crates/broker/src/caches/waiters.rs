//! Clients that wait until a key has a value, in the order of arrival. `A` is what is tried again for a client.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use engine::cache::structures::Kind;
use engine::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::commit::Commit;

/// Maximum number of keys that all waiters of a cache wait for together, each counted once for each waiter.
const WAITED_KEYS_MAX: usize = 1 << 20;

/// Waiters of each key, in their order.
type ByKey<A> = HashMap<Box<[u8]>, VecDeque<Arc<Waiting<A>>>>;

struct Queues<A> {
    /// Waiters by the kind of value that they wait for: a value of another kind does not visit them.
    by_kind: HashMap<Option<Kind>, ByKey<A>>,
    /// Number of places in all queues: at most [`WAITED_KEYS_MAX`].
    places: usize,
}

/// Waiters for keys of one cache. Each connection waits at most once, so the number of connections bounds them.
pub(super) struct Waiters<A> {
    queues: Mutex<Queues<A>>,
    /// Number of waiters. It is changed under the locks of the stripes of their keys, so that holders of those see it.
    count: AtomicUsize,
}

/// A waiting client.
pub struct Waiting<A> {
    /// Keys that the client waits for and that its attempt may access, without duplicates.
    keys: Vec<Box<[u8]>>,
    /// Further keys that its attempt may access.
    others: Vec<Box<[u8]>>,
    /// Kind of the values that the client waits for; `None` if it only waits for the end of the cache.
    kind: Option<Kind>,
    /// State of the wait. This lock is taken after the locks of stripes.
    state: Mutex<State<A>>,
    is_answered: Notify,
}

enum State<A> {
    Waiting(A),
    /// The answer, with the commit of the changes that it contains.
    Answered(Bytes, Commit),
    Over,
}

impl<A> Default for Waiters<A> {
    fn default() -> Self {
        let queues = Queues { by_kind: HashMap::new(), places: 0 };
        Self { queues: Mutex::new(queues), count: AtomicUsize::new(0) }
    }
}

impl<A> Waiters<A> {
    pub(super) fn is_waited_for(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if a client waits for a value of this kind at this key.
    pub(super) fn awaits(&self, key: &[u8], kind: Kind) -> bool {
        self.is_waited_for()
            && self.queues.lock().by_kind.get(&Some(kind)).is_some_and(|by_key| by_key.contains_key(key))
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the waiters for a value of this kind at a key, in their order.
    pub(super) fn of(&self, key: &[u8], kind: Kind) -> Vec<Arc<Waiting<A>>> {
        let queues = self.queues.lock();
        let queue = queues.by_kind.get(&Some(kind)).and_then(|by_key| by_key.get(key));
        queue.map(|queue| queue.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns a waiter for a value of any kind at a key.
    pub(super) fn any_of(&self, key: &[u8]) -> Option<Arc<Waiting<A>>> {
        let queues = self.queues.lock();
        let mut of_key = queues.by_kind.iter().filter(|(kind, _)| kind.is_some()).filter_map(|(_, keys)| keys.get(key));
        of_key.find_map(VecDeque::front).cloned()
    }

    /// Returns all keys at which a value is waited for. A key at which clients wait for several kinds is repeated.
    pub(super) fn keys(&self) -> Vec<Box<[u8]>> {
        let queues = self.queues.lock();
        let waited = queues.by_kind.iter().filter(|(kind, _)| kind.is_some());
        waited.flat_map(|(_, by_key)| by_key.keys().cloned()).collect()
    }

    pub(super) fn add(&self, waiting: &Arc<Waiting<A>>) -> Result<()> {
        let mut queues = self.queues.lock();
        let places = queues.places + waiting.keys.len();
        if places > WAITED_KEYS_MAX {
            let message = format!(
                "blocked clients of this cache wait for {} keys, at most {WAITED_KEYS_MAX} are allowed: wait for \
                 fewer keys, or try again later",
                queues.places
            );
            return Err(Error::throttled(message, 0));
        }
        queues.places = places;
        self.count.fetch_add(1, Ordering::Relaxed);
        let by_key = queues.by_kind.entry(waiting.kind).or_default();
        for key in &waiting.keys {
            by_key.entry(key.clone()).or_default().push_back(waiting.clone());
        }
        Ok(())
    }

    /// Ends all waits, since no key of a deleted cache gets a value any more.
    pub(super) fn end(&self) {
        let all: Vec<Arc<Waiting<A>>> = {
            let queues = self.queues.lock();
            queues.by_kind.values().flat_map(HashMap::values).flatten().cloned().collect()
        };
        for waiting in all {
            waiting.give_up();
        }
    }

    pub(super) fn remove(&self, waiting: &Arc<Waiting<A>>) {
        let mut queues = self.queues.lock();
        let Some(by_key) = queues.by_kind.get_mut(&waiting.kind) else {
            return;
        };
        let mut removed = 0;
        for key in &waiting.keys {
            let Some(queue) = by_key.get_mut(key) else {
                continue;
            };
            // The waiter that is served was usually the first.
            if let Some(at) = queue.iter().position(|other| Arc::ptr_eq(other, waiting)) {
                queue.remove(at);
                removed += 1;
            }
            if queue.is_empty() {
                by_key.remove(key);
            }
        }
        queues.places -= removed;
        self.count.fetch_sub(usize::from(removed > 0), Ordering::Relaxed);
    }
}

impl<A> Waiting<A> {
    /// Creates a wait for a value of this kind at one of these keys. The attempt may access the others, too.
    pub(super) fn new(kind: Option<Kind>, keys: &[&[u8]], others: &[&[u8]], attempt: A) -> Arc<Self> {
        let mut keys: Vec<Box<[u8]>> = keys.iter().map(|key| (*key).into()).collect();
        keys.sort_unstable();
        keys.dedup();
        let others = others.iter().map(|key| (*key).into()).collect();
        Arc::new(Self { keys, others, kind, state: Mutex::new(State::Waiting(attempt)), is_answered: Notify::new() })
    }

    /// Returns when there is an answer, or the wait has ended.
    pub async fn answered(&self) {
        self.is_answered.notified().await;
    }

    pub fn is_over(&self) -> bool {
        !matches!(*self.state.lock(), State::Waiting(_))
    }

    /// Sets the answer, unless there is one. Returns `true` if it was set.
    pub fn answer(&self, answer: impl Into<Bytes>) -> bool {
        let mut state = self.state.lock();
        let is_waiting = matches!(*state, State::Waiting(_));
        if is_waiting {
            *state = State::Answered(answer.into(), Commit::done());
            self.is_answered.notify_one();
        }
        is_waiting
    }

    /// Ends the wait as if it had timed out. Returns `true` if the client was still waiting.
    pub fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        let is_waiting = matches!(*state, State::Waiting(_));
        if is_waiting {
            *state = State::Over;
            self.is_answered.notify_one();
        }
        is_waiting
    }

    /// Ends the wait. Returns the answer, if there already is one, and the commit before which it must not be sent.
    pub(super) fn stop(&self) -> Option<(Bytes, Commit)> {
        match std::mem::replace(&mut *self.state.lock(), State::Over) {
            State::Answered(answer, commit) => Some((answer, commit)),
            State::Waiting(_) | State::Over => None,
        }
    }

    /// Returns the keys that an attempt may access.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().chain(&self.others).map(|key| &**key)
    }

    /// Tries again, unless the wait has ended: `run` gets what is to be tried, and returns the answer with the commit
    /// before which it must not be sent. Returns `true` if there is an answer now.
    pub(super) fn try_again(&self, run: impl FnOnce(Option<&mut A>) -> (Option<Bytes>, Commit)) -> bool {
        let mut state = self.state.lock();
        let tried = if let State::Waiting(tried) = &mut *state { Some(tried) } else { None };
        let (answer, commit) = run(tried);
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            *state = State::Answered(answer, commit);
        }
        is_answered
    }

    /// Notifies the client of its answer.
    pub(super) fn notify(&self) {
        self.is_answered.notify_one();
    }
}
