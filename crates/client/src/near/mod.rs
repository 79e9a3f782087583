//! Near cache: a bounded copy, in this process, of the requested entries, which the cache's watch keeps current.

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

/// Minimum of [`NearSettings::stale_max`]. The watch sends four requests within `stale_max`.
const STALE_MIN: Duration = Duration::from_millis(100);
/// Maximum wait of one request for changes.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Settings of a near cache: its memory, its keys, and the maximum age of its entries.
#[derive(Clone, Debug)]
pub struct NearSettings {
    /// Maximum bytes, 64 MiB by default: keys, values, and about 85 bytes per entry (110 with an expiry). A full near
    /// cache evicts the least requested entries (S3-FIFO). An entry larger than an eighth of it is not kept.
    pub bytes_max: u64,
    /// Prefix of the keys that are kept and watched; requests for other keys go to the broker. Empty by default, which
    /// includes all keys.
    pub prefix: Bytes,
    /// Maximum age of the watch's last report, at least 100 ms, 5 s by default. If it is older, gets go to the broker.
    /// While there are no changes, the watch requests them four times within this period.
    pub stale_max: Duration,
}

impl Default for NearSettings {
    fn default() -> Self {
        Self { bytes_max: 64 << 20, prefix: Bytes::new(), stale_max: Duration::from_secs(5) }
    }
}

/// Counters of a near cache and its current contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NearStats {
    /// Gets that were answered from the near cache, including the absence of a key.
    pub hits: u64,
    /// Gets of keys about which the near cache had no information.
    pub misses: u64,
    /// Misses that waited for the answer to another get of the same key.
    pub joined: u64,
    /// Gets that were sent to the broker because the watch was silent.
    pub bypassed: u64,
    /// Entries that were dropped or replaced because the key has, or may have, another value.
    pub invalidations: u64,
    /// Entries that were evicted to make room for others.
    pub evictions: u64,
    /// Number of times that all entries were dropped because the watch could not resume at its position.
    pub resets: u64,
    /// Number of entries that are kept now.
    pub entries: u64,
    /// Bytes of all entries, including their index.
    pub bytes: u64,
    /// `true` if gets are currently answered from the near cache.
    pub is_live: bool,
}

pub(crate) struct Near {
    /// Calls to the broker.
    calls: CacheCalls,
    settings: NearSettings,
    state: Arc<Mutex<State>>,
    /// Task that watches the cache. It starts with the first get.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    kept: Kept,
    /// Requests to the broker in flight: at most one per waiting caller.
    asked: HashMap<Bytes, Asked>,
}

/// Answer that others can wait for too, as long as there is no news of its key.
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
        let mut values = Vec::with_capacity(keys.len());
        let mut missing = Vec::new();
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

    /// Processes the end of this client's own put or deletion; `news` is the new state if it succeeded.
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

    /// Returns the answer to a get that is in flight, or starts a new one.
    fn ask(&self, state: &mut State, key: &Bytes, mark: Mark) -> Shared<Answer> {
        let asked = state.asked.get(key).filter(|asked| asked.mark == mark).and_then(|asked| asked.answer.upgrade());
        if let Some(answer) = asked {
            state.kept.joined();
            return answer;
        }
        let calls = self.calls.clone();
        let question = Question { state: self.state.clone(), key: key.clone(), mark };
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

    /// Starts the watch if it is not running: at first use, and if the runtime of the previous one has ended.
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

/// Get in flight. When it is answered or its last waiter has gone, others cannot join it any more.
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

/// Watches the cache for as long as the task lives. While the watch fails, nothing is answered from the near cache.
async fn watch(calls: CacheCalls, settings: NearSettings, state: Arc<Mutex<State>>) {
    let mut from = WatchFrom::Snapshot;
    let mut backoff = Backoff::new();
    let wait = (settings.stale_max / 4).min(calls.timeout() / 2).min(WAIT_MAX);
    loop {
        // The existing entries are of no use at the beginning; the position to resume at is.
        let (count_max, prefix) = match from {
            WatchFrom::Changes { .. } => (CHANGES_MAX, settings.prefix.clone()),
            WatchFrom::Snapshot | WatchFrom::Scan { .. } => (1, Bytes::new()),
        };
        let asked_at = Instant::now();
        // If it is unknown whether there are changes, an immediate empty answer is informative.
        let wait_ms = if state.lock().kept.is_live(asked_at) { wait.as_millis() as u32 } else { 0 };
        let request = |cache| CacheRequest::Watch { cache, from, count_max, wait_ms, prefix: prefix.clone() };
        // A silent connection is abandoned earlier than it would be for other requests.
        let answer = match tokio::time::timeout(wait.saturating_add(settings.stale_max), calls.call(request)).await {
            Ok(Ok(CacheResponse::Watched(watched))) => Ok(watched),
            Ok(Ok(other)) => Err(unexpected_of_caches(other)),
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(Error::new(ErrorKind::Timeout, format!("the watch received no response: {elapsed}"))),
        };
        match answer {
            Ok(watched) => {
                from = state.lock().kept.told(asked_at, from, &watched, now());
                backoff = Backoff::new();
            }
            Err(error) => {
                state.lock().kept.cut();
                tracing::debug!(%error, cache = calls.name(), "the watch of a near cache was interrupted");
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { at: Instant::now(), ms: since.as_millis() as u64 }
}
