//! Who waits until a key has something: each tries again, in the order in which they came, as soon as it may have.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Cache, CacheCommit, Locked};

/// Takes what a key has for one who waits, and returns its answer; `None` where there is nothing yet.
pub type Attempt = Box<dyn FnMut(&mut Locked<'_>, &[u8]) -> Option<Vec<u8>> + Send>;

/// Keys that all waiters of a cache wait for together, each counted once for each waiter.
const WAITED_KEYS_MAX: usize = 1 << 20;

/// The waiters of each key, in their order.
#[derive(Default)]
struct Queues {
    by_key: HashMap<Box<[u8]>, VecDeque<Arc<Waiting>>>,
    /// Places in all queues: at most [`WAITED_KEYS_MAX`].
    places: usize,
}

/// Those who wait for keys of one cache: one for each connection at most, so there are no more of them than those.
#[derive(Default)]
pub(super) struct Waiters {
    queues: Mutex<Queues>,
    /// Changed under the lock of the shards of its keys, so that who holds those sees it.
    count: AtomicUsize,
}

/// One who waits.
pub struct Waiting {
    /// What it waits for, and its attempt may touch: each once.
    keys: Vec<Box<[u8]>>,
    /// Taken after the locks of shards.
    state: Mutex<State>,
    is_answered: Notify,
}

enum State {
    Waiting(Attempt),
    /// With when it lasts what the answer says.
    Answered(Vec<u8>, CacheCommit),
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

    /// Those who wait for a key, in their order.
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

    /// Nothing comes to any key any more.
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
            // The one who is served was first, as a rule.
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
    /// Begins to wait for these keys, whose shards are locked: nothing that comes to them from here on is missed.
    /// Fails with `busy` when the waiters of the cache wait for too many keys.
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
    /// Those who wait for what has grown try again, with what that lets grow in turn.
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

    /// Who waits for a key of this cache.
    pub fn waiting(&self) -> usize {
        self.waiters.count()
    }

    /// Waits no longer. The answer, if there was one already, and when it may be given.
    pub fn stop_waiting(&self, waiting: &Arc<Waiting>) -> Option<(Vec<u8>, CacheCommit)> {
        let state = std::mem::replace(&mut *waiting.state.lock(), State::Over);
        self.waiters.remove(waiting);
        match state {
            State::Answered(answer, commit) => Some((answer, commit)),
            State::Waiting(_) | State::Over => None,
        }
    }
}

impl Waiting {
    /// Until there is an answer.
    pub async fn answered(&self) {
        self.is_answered.notified().await;
    }

    pub fn is_over(&self) -> bool {
        !matches!(*self.state.lock(), State::Waiting(_))
    }

    /// Has this be its answer, unless it has one. Whether it has.
    pub fn answer(&self, answer: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        let is_waiting = matches!(*state, State::Waiting(_));
        if is_waiting {
            *state = State::Answered(answer, CacheCommit::default());
            self.is_answered.notify_one();
        }
        is_waiting
    }

    /// Has it be as if its time were over. Whether it waited.
    pub fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        let is_waiting = matches!(*state, State::Waiting(_));
        if is_waiting {
            *state = State::Over;
            self.is_answered.notify_one();
        }
        is_waiting
    }

    /// Whether it has an answer now, and the keys that may have more by that.
    fn try_again(&self, mut locked: Locked<'_>, key: &[u8]) -> (bool, Vec<Box<[u8]>>) {
        let mut state = self.state.lock();
        let answer = match &mut *state {
            State::Waiting(attempt) => attempt(&mut locked, key),
            State::Answered(..) | State::Over => None,
        };
        let (finished, is_answered) = (locked.finish(), answer.is_some());
        if let Some(answer) = answer {
            *state = State::Answered(answer, finished.commit);
        }
        (is_answered, finished.grown)
    }
}
