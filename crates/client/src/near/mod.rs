//! The near cache: a bounded copy, in this process, of what was asked for, which the cache's watch keeps right.

mod kept;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use engine::cache::{Added, Stored, WatchFrom};
use engine::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use wire::caches::Value;
use wire::{CacheRequest, CacheResponse};

use crate::backoff::Backoff;
use crate::cache_calls::{CacheCalls, unexpected_of_caches};
use kept::{CHANGES_MAX, Kept, Look, Mark, Now};

pub(crate) use kept::News;

/// The least that is asked of a near cache: the watch is asked four times in this.
const STALE_MIN: Duration = Duration::from_millis(100);
/// How long one request for changes waits, at most.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// What a near cache may hold, and how old that may be.
#[derive(Clone, Debug)]
pub struct NearSettings {
    /// What it may hold: keys, values, and about 85 bytes an entry (110 where it expires). When it is full, what is
    /// asked for least goes (S3-FIFO). An entry of more than an eighth of it is not kept.
    pub bytes_max: u64,
    /// Only keys that begin so are kept and watched; the broker is asked for all others.
    pub prefix: Bytes,
    /// The watch has to have told all that had changed so long ago; else the broker is asked. 100 ms at least. A
    /// quarter of it is how often the broker is asked for changes while there are none.
    pub stale_max: Duration,
}

impl Default for NearSettings {
    fn default() -> Self {
        Self { bytes_max: 64 << 20, prefix: Bytes::new(), stale_max: Duration::from_secs(5) }
    }
}

/// What a near cache did so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NearStats {
    /// Gets that were answered from here, also that there is nothing.
    pub hits: u64,
    /// Gets that found nothing here.
    pub misses: u64,
    /// Those of them that waited for the answer to another.
    pub joined: u64,
    /// Gets that the broker was asked for because the watch was not heard of.
    pub bypassed: u64,
    /// Entries that went or were replaced because something else is there, or may be.
    pub invalidations: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// How often all went because the watch could not go on from where it was.
    pub resets: u64,
    pub entries: u64,
    /// What all entries take, with what is needed to find them.
    pub bytes: u64,
    /// Whether gets are answered from here now.
    pub is_live: bool,
}

pub(crate) struct Near {
    /// The calls of the broker.
    calls: CacheCalls,
    settings: NearSettings,
    state: Arc<Mutex<State>>,
    /// The task that watches. It begins with the first get.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    kept: Kept,
    /// What the broker is asked for now: as many at most as there are callers who wait.
    asked: HashMap<Bytes, Asked>,
}

/// An answer that others may wait for as long as nothing is heard of its key.
struct Asked {
    mark: Mark,
    answer: WeakShared<Answer>,
}

type Answer = BoxFuture<'static, Result<Option<Value>>>;

impl Near {
    pub(crate) fn new(calls: CacheCalls, settings: NearSettings) -> Self {
        let settings = NearSettings { stale_max: settings.stale_max.max(STALE_MIN), ..settings };
        let state = State { kept: Kept::new(&settings), asked: HashMap::new() };
        Self { calls, settings, state: Arc::new(Mutex::new(state)), watcher: Mutex::default() }
    }

    pub(crate) fn stats(&self) -> NearStats {
        self.state.lock().kept.stats(Instant::now())
    }

    pub(crate) async fn get(&self, key: Bytes) -> Result<Option<Value>> {
        let asked = {
            let mut state = self.state.lock();
            match state.kept.look(&key, now()) {
                Look::Hit(value) => return Ok(value),
                Look::Miss(mark) => Some(self.ask(&mut state, &key, mark)),
                Look::Past => None,
            }
        };
        if let Some(answer) = asked {
            return answer.await;
        }
        self.watch();
        let answer = self.calls.get(key.clone()).await?;
        self.state.lock().kept.answered(&key, None, answer.as_ref(), now());
        Ok(answer)
    }

    pub(crate) async fn multi_get(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Value>>> {
        let (mut values, mut missing) = (Vec::with_capacity(keys.len()), Vec::new());
        {
            let mut state = self.state.lock();
            for (at, key) in keys.iter().enumerate() {
                let (value, mark) = match state.kept.look(key, now()) {
                    Look::Hit(value) => {
                        values.push(value);
                        continue;
                    }
                    Look::Miss(mark) => (None, Some(mark)),
                    Look::Past => (None, None),
                };
                values.push(value);
                missing.push((at, mark));
            }
        }
        if missing.iter().any(|(_, mark)| mark.is_none()) {
            self.watch();
        }
        if missing.is_empty() {
            return Ok(values);
        }
        let answers = self.calls.multi_get(missing.iter().map(|(at, _)| keys[*at].clone()).collect()).await?;
        if answers.len() != missing.len() {
            return Err(Error::malformed("the broker did not answer for each key"));
        }
        let mut state = self.state.lock();
        for ((at, mark), answer) in missing.into_iter().zip(answers) {
            state.kept.answered(&keys[at], mark, answer.as_ref(), now());
            values[at] = answer;
        }
        Ok(values)
    }

    /// This client's own put or deletion is over, and this is there if it was done.
    pub(crate) fn stored(&self, key: &[u8], stored: &Result<Stored>, news: News<'_>) {
        let kept = &mut self.state.lock().kept;
        match stored {
            Ok(Stored::Done { version, .. }) => kept.learn(key, *version, news, now()),
            Ok(Stored::Unmet { current: Some(version) }) => kept.learn(key, *version, News::Unseen, now()),
            Ok(Stored::Unmet { current: None }) | Err(_) => kept.forget(key, now()),
        }
    }

    pub(crate) fn added(&self, key: &[u8], added: &Result<Added>) {
        let kept = &mut self.state.lock().kept;
        match added {
            Ok(Added { value, version, expires_ms }) => {
                let digits = value.to_string();
                let news = News::Value { value: digits.as_bytes(), expires_ms: *expires_ms };
                kept.learn(key, *version, news, now());
            }
            Err(_) => kept.forget(key, now()),
        }
    }

    pub(crate) fn forget(&self, key: &[u8]) {
        self.state.lock().kept.forget(key, now());
    }

    pub(crate) fn clear(&self) {
        self.state.lock().kept.clear();
    }

    /// The answer to a get that is on the way, or a new one.
    fn ask(&self, state: &mut State, key: &Bytes, mark: Mark) -> Shared<Answer> {
        let asked = state.asked.get(key).filter(|asked| asked.mark == mark).and_then(|asked| asked.answer.upgrade());
        if let Some(answer) = asked {
            state.kept.joined();
            return answer;
        }
        let (calls, question) = (self.calls.clone(), Question { state: self.state.clone(), key: key.clone(), mark });
        let answer: Answer = Box::pin(async move {
            let answer = calls.get(question.key.clone()).await?;
            question.state.lock().kept.answered(&question.key, Some(mark), answer.as_ref(), now());
            Ok(answer)
        });
        let answer = answer.shared();
        if let Some(weak) = answer.downgrade() {
            state.asked.insert(key.clone(), Asked { mark, answer: weak });
        }
        answer
    }

    /// Sees to it that somebody watches: at the beginning, and where the runtime of the one who did is gone.
    fn watch(&self) {
        let mut watcher = self.watcher.lock();
        if watcher.as_ref().is_none_or(JoinHandle::is_finished) {
            *watcher = Some(tokio::spawn(watch(self.calls.clone(), self.settings.clone(), self.state.clone())));
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.get_mut() {
            watcher.abort();
        }
    }
}

/// A get on the way. When it is answered, or nobody waits for it any more, nobody can join it.
struct Question {
    state: Arc<Mutex<State>>,
    key: Bytes,
    mark: Mark,
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if state.asked.get(&self.key).is_some_and(|asked| asked.mark == self.mark) {
            state.asked.remove(&self.key);
        }
    }
}

/// Has the broker tell what changes, for as long as it lives. While that fails nothing is answered from here.
async fn watch(calls: CacheCalls, settings: NearSettings, state: Arc<Mutex<State>>) {
    let (mut from, mut backoff) = (WatchFrom::Snapshot, Backoff::new());
    let wait = (settings.stale_max / 4).min(calls.timeout() / 2).min(WAIT_MAX);
    loop {
        // What is there at the beginning is of no use: a place to go on from is.
        let (count_max, prefix) = match from {
            WatchFrom::Changes { .. } => (CHANGES_MAX, settings.prefix.clone()),
            WatchFrom::Snapshot | WatchFrom::Scan { .. } => (1, Bytes::new()),
        };
        let asked_at = Instant::now();
        // Where nobody knows whether there is news, that there is none is news.
        let wait_ms = if state.lock().kept.is_live(asked_at) { wait.as_millis() as u32 } else { 0 };
        let request = |cache| CacheRequest::Watch { cache, from, count_max, wait_ms, prefix: prefix.clone() };
        // A connection that is silent is not waited for as long as another request would.
        let answer = match tokio::time::timeout(wait.saturating_add(settings.stale_max), calls.call(request)).await {
            Ok(Ok(CacheResponse::Watched(watched))) => Ok(watched),
            Ok(Ok(other)) => Err(unexpected_of_caches(other)),
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(Error::new(ErrorKind::Timeout, format!("the watch is silent: {elapsed}"))),
        };
        match answer {
            Ok(watched) => {
                from = state.lock().kept.told(asked_at, from, &watched, now());
                backoff = Backoff::new();
            }
            Err(error) => {
                state.lock().kept.cut();
                tracing::debug!(%error, cache = calls.name(), "the watch of a near cache is cut");
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { at: Instant::now(), ms: since.as_millis() as u64 }
}
