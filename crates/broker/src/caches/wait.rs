//! Clients that wait until a key has a value: each is tried again as soon as it may have one, in the order of arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Cache, Locked};
use crate::commit::Commit;

/// Takes the value of a key for a waiting client and returns its answer; `None` if there is nothing to take yet.
pub type Attempt = Box<dyn FnMut(&mut Locked<'_>, &[u8]) -> Option<Vec<u8>> + Send>;

/// Maximum number of keys that all waiters of a cache wait for together, each counted once for each waiter.
const WAITED_KEYS_MAX: usize = 1 << 20;

/// Waiters of each key, in their order.
#[derive(Default)]
struct Queues {
    by_key: HashMap<Box<[u8]>, VecDeque<Arc<Waiting>>>,
    /// Number of places in all queues: at most [`WAITED_KEYS_MAX`].
    places: usize,
}

/// Waiters for keys of one cache. Each connection waits at most once, so the number of connections bounds them.
#[derive(Default)]
pub(super) struct Waiters {
    queues: Mutex<Queues>,
    /// Number of waiters. It is changed under the locks of the stripes of their keys, so that holders of those see it.
    count: AtomicUsize,
}

/// A waiting client.
pub struct Waiting {
    /// Keys that the client waits for and that its attempt may access, without duplicates.
    keys: Vec<Box<[u8]>>,
    /// State of the wait. This lock is taken after the locks of stripes.
    state: Mutex<State>,
    is_answered: Notify,
}

enum State {
    Waiting(Attempt),
    /// The answer, with the commit of the changes that it contains.
    Answered(Vec<u8>, Commit),
    Over,
}

impl Waiters {
    pub(super) fn is_waited_for(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn awaits(&self, key: &[u8]) -> bool {
        self.is_waited_for() && self.queues.lock().by_key.contains_key(key)
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the waiters for a key, in their order.
    fn of(&self, key: &[u8]) -> Vec<Arc<Waiting>> {
        self.queues.lock().by_key.get(key).map(|queue| queue.iter().cloned().collect()).unwrap_or_default()
    }

    fn add(&self, waiting: &Arc<Waiting>) -> Result<()> {
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
        for key in &waiting.keys {
            queues.by_key.entry(key.clone()).or_default().push_back(waiting.clone());
        }
        Ok(())
    }

    /// Ends all waits, since no key of a deleted cache gets a value any more.
    pub(super) fn end(&self) {
        let all: Vec<Arc<Waiting>> = self.queues.lock().by_key.values().flatten().cloned().collect();
        for waiting in all {
            waiting.give_up();
        }
    }

    fn remove(&self, waiting: &Arc<Waiting>) {
        let mut queues = self.queues.lock();
        let mut removed = 0;
        for key in &waiting.keys {
            let Some(queue) = queues.by_key.get_mut(key) else {
                continue;
            };
            // The waiter that is served was usually the first.
            if let Some(at) = queue.iter().position(|other| Arc::ptr_eq(other, waiting)) {
                queue.remove(at);
                removed += 1;
            }
            if queue.is_empty() {
                queues.by_key.remove(key);
            }
        }
        queues.places -= removed;
        self.count.fetch_sub(usize::from(removed > 0), Ordering::Relaxed);
    }
}

impl Locked<'_> {
    /// Starts to wait for these keys, whose stripes are locked: no later change of them is missed. Fails with `busy` if
    /// the waiters of the cache wait for too many keys.
    pub fn wait(&self, keys: &[&[u8]], attempt: Attempt) -> Result<Arc<Waiting>> {
        let mut keys: Vec<Box<[u8]>> = keys.iter().map(|key| (*key).into()).collect();
        keys.sort_unstable();
        keys.dedup();
        let state = Mutex::new(State::Waiting(attempt));
        let waiting = Arc::new(Waiting { keys, state, is_answered: Notify::new() });
        self.cache().waiters.add(&waiting)?;
        if self.cache().is_deleted() {
            waiting.give_up();
        }
        Ok(waiting)
    }
}

impl Cache {
    /// Retries the waiters for keys that have grown, and those for keys that grow as a result.
    pub fn serve(&self, grown: Vec<Box<[u8]>>) {
        let mut grown = VecDeque::from(grown);
        while let Some(key) = grown.pop_front() {
            for waiting in self.waiters.of(&key) {
                let all = waiting.keys.iter().map(|key| &**key);
                let mut locked = self.lock(all);
                if locked.peek(&key).is_none() {
                    break;
                }
                let (is_answered, more) = waiting.try_again(locked, &key);
                grown.extend(more);
                if is_answered {
                    self.waiters.remove(&waiting);
                    waiting.is_answered.notify_one();
                }
            }
        }
    }

    /// Returns the number of clients that wait for a key of this cache.
    pub fn waiting(&self) -> usize {
        self.waiters.count()
    }

    /// Ends a wait. Returns the answer, if there already is one, and the commit before which it must not be sent.
    pub fn stop_waiting(&self, waiting: &Arc<Waiting>) -> Option<(Vec<u8>, Commit)> {
        let state = std::mem::replace(&mut *waiting.state.lock(), State::Over);
        self.waiters.remove(waiting);
        match state {
            State::Answered(answer, commit) => Some((answer, commit)),
            State::Waiting(_) | State::Over => None,
        }
    }
}

impl Waiting {
    /// Returns when there is an answer, or the wait has ended.
    pub async fn answered(&self) {
        self.is_answered.notified().await;
    }

    pub fn is_over(&self) -> bool {
        !matches!(*self.state.lock(), State::Waiting(_))
    }

    /// Sets the answer, unless there is one. Returns `true` if it was set.
    pub fn answer(&self, answer: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        let is_waiting = matches!(*state, State::Waiting(_));
        if is_waiting {
            *state = State::Answered(answer, Commit::done());
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

    /// Retries the attempt. Returns `true` if it has an answer now, and the keys that may have more as a result.
    fn try_again(&self, mut locked: Locked<'_>, key: &[u8]) -> (bool, Vec<Box<[u8]>>) {
        let mut state = self.state.lock();
        let answer = match &mut *state {
            State::Waiting(attempt) => attempt(&mut locked, key),
            State::Answered(..) | State::Over => None,
        };
        let finished = locked.finish();
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            *state = State::Answered(answer, finished.commit);
        }
        (is_answered, finished.grown)
    }
}
