//! Caches: the latest value of each key, and what changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::cache::{
    Added, CacheSettings, CacheStatus, Change, Condition, KEY_BYTES_MAX, ScanCursor, Stored, Ttl, VALUE_BYTES_MAX,
    WatchFrom,
};
use engine::{Error, ErrorKind, Result};
use wire::caches::{Entry, Value};
use wire::{CacheRequest, CacheResponse};

use crate::backoff::Backoff;
use crate::cache_calls::{CacheCalls, call, unexpected_of_caches};
use crate::client::Client;
use crate::near::{Near, NearSettings, NearStats, News};
use crate::pool::is_transient;

/// Caches in one answer, and entries of a scan.
const LIST_COUNT: u32 = 500;
/// How long one request for changes waits.
const WATCH_WAIT: Duration = Duration::from_secs(20);
const CHANGES_MAX: u32 = 1000;

/// A cache of a broker.
///
/// ```no_run
/// # async fn example(client: client::Client) -> Result<(), client::Error> {
/// use client::{Condition, Stored, Ttl};
///
/// let sessions = client.cache("sessions");
/// sessions.put("alice", "cart: 1 coffee").await?;
/// if let Some(found) = sessions.get("alice").await? {
///     // Only if nobody else has changed it meanwhile.
///     let condition = Condition::IfVersion(found.version);
///     let stored = sessions.put_with("alice", "cart: empty", Ttl::For(60_000), condition).await?;
///     assert!(matches!(stored, Stored::Done { .. }));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cache {
    calls: CacheCalls,
    near: Option<Arc<Near>>,
}

/// What is there, then what changes.
pub struct CacheWatch {
    calls: CacheCalls,
    prefix: Bytes,
    from: WatchFrom,
}

/// What a watcher hears together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    pub changes: Vec<Change>,
    /// All that is there is told from here on: what is known beside that is gone.
    pub is_reset: bool,
    /// All that was there at the beginning is told.
    pub is_caught_up: bool,
}

impl Client {
    /// A cache of this name, which is made with the first use where it is not there.
    pub fn cache(&self, name: &str) -> Cache {
        Cache { calls: CacheCalls::new(self.session.clone(), name), near: None }
    }

    /// Creates a cache. One that is there already with the same settings is fine.
    pub async fn create_cache(&self, name: &str, settings: CacheSettings) -> Result<CacheStatus> {
        match call(&self.session, CacheRequest::Create { cache: name.to_owned(), settings }).await? {
            CacheResponse::Created(open) => Ok(open.status),
            other => Err(unexpected_of_caches(other)),
        }
    }

    pub async fn delete_cache(&self, name: &str) -> Result<()> {
        match call(&self.session, CacheRequest::Delete { cache: name.to_owned() }).await? {
            CacheResponse::Deleted => Ok(()),
            other => Err(unexpected_of_caches(other)),
        }
    }

    pub async fn describe_cache(&self, name: &str) -> Result<CacheStatus> {
        match call(&self.session, CacheRequest::Describe { cache: name.to_owned() }).await? {
            CacheResponse::Described(status) => Ok(status),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// All caches, in the order of their names.
    pub async fn list_caches(&self) -> Result<Vec<CacheStatus>> {
        let mut found: Vec<CacheStatus> = Vec::new();
        loop {
            let after = found.last().map_or(String::new(), |cache| cache.name.to_string());
            match call(&self.session, CacheRequest::List { after, count_max: LIST_COUNT }).await? {
                CacheResponse::Caches { caches, is_last } => {
                    found.extend(caches);
                    if is_last {
                        return Ok(found);
                    }
                }
                other => return Err(unexpected_of_caches(other)),
            }
        }
    }
}

impl Cache {
    pub fn name(&self) -> &str {
        self.calls.name()
    }

    /// The same cache with a copy near by: what is asked for stays in this process, in so many bytes, and is asked of
    /// the broker once as long as it does not change. All clones of what is returned share it; other handles of the
    /// cache, of this client too, know nothing of it.
    ///
    /// A get is never answered with less than what this handle was answered before, or has put: of each key the
    /// versions that are seen only grow. What others change is seen as soon as the cache's watch tells it, and never
    /// later than [`NearSettings::stale_max`]: when the watch was not heard of for so long, or its connection is lost,
    /// the broker is asked for everything until it is back. When it cannot go on from where it was, all that was kept
    /// goes. Entries expire when their time comes by this machine's clock. A [`Cache::touch`] by others is not told:
    /// an entry whose time was shortened that way stays until the broker has removed it.
    ///
    /// Of one key that many ask for at once the broker is asked once. That there is nothing is kept, too. Everything
    /// but gets goes to the broker. The watch brings every change of the keys that begin with
    /// [`NearSettings::prefix`] here, with its value: it pays off where much more is read than written. It begins with
    /// the first get.
    ///
    /// ```no_run
    /// # async fn example(client: client::Client) -> Result<(), client::Error> {
    /// use client::NearSettings;
    ///
    /// let prices = client.cache("prices").near(NearSettings { bytes_max: 16 << 20, ..NearSettings::default() });
    /// let first = prices.get("coffee").await?;
    /// // From memory, unless somebody has changed it meanwhile.
    /// let again = prices.get("coffee").await?;
    /// let stats = prices.near_stats().unwrap_or_default();
    /// println!("{} of {} gets needed no broker", stats.hits, stats.hits + stats.misses + stats.bypassed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn near(&self, settings: NearSettings) -> Self {
        Self { near: Some(Arc::new(Near::new(self.calls.clone(), settings))), calls: self.calls.clone() }
    }

    /// What became of gets near by, where that was asked for ([`Cache::near`]).
    pub fn near_stats(&self) -> Option<NearStats> {
        self.near.as_ref().map(|near| near.stats())
    }

    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>> {
        let key = key.into();
        check_key(&key)?;
        match &self.near {
            Some(near) => near.get(key).await,
            None => self.calls.get(key).await,
        }
    }

    /// The value of each key, in their order.
    pub async fn multi_get(&self, keys: impl IntoIterator<Item = impl Into<Bytes>>) -> Result<Vec<Option<Value>>> {
        let keys: Vec<Bytes> = keys.into_iter().map(Into::into).collect();
        keys.iter().try_for_each(check_key)?;
        match &self.near {
            Some(near) => near.multi_get(keys).await,
            None => self.calls.multi_get(keys).await,
        }
    }

    /// Puts a value, for as long as the cache keeps what is put. Its version.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<u64> {
        match self.put_with(key, value, Ttl::Default, Condition::Always).await? {
            Stored::Done { version, .. } => Ok(version),
            Stored::Unmet { .. } => Err(Error::new(ErrorKind::Internal, "a put without a condition was not done")),
        }
    }

    pub async fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
        condition: Condition,
    ) -> Result<Stored> {
        let (key, value) = (key.into(), value.into());
        check_key(&key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::too_large(format!("a value of {} bytes; at most {VALUE_BYTES_MAX}", value.len())));
        }
        let put = |cache, operation| {
            let (key, value) = (key.clone(), value.clone());
            CacheRequest::Put { cache, condition, ttl, operation, key, value }
        };
        let stored = self.calls.call_once(condition != Condition::Always, put).await.and_then(|answer| match answer {
            CacheResponse::Put(stored) => Ok(stored),
            other => Err(unexpected_of_caches(other)),
        });
        if let Some(near) = &self.near {
            near.stored(&key, &stored, put_news(&value, ttl));
        }
        stored
    }

    /// Whether there was an entry.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<bool> {
        let stored = self.delete_if(key, Condition::Always).await?;
        Ok(matches!(stored, Stored::Done { previous: Some(_), .. }))
    }

    pub async fn delete_if(&self, key: impl Into<Bytes>, condition: Condition) -> Result<Stored> {
        let key = key.into();
        check_key(&key)?;
        let remove = |cache, operation| CacheRequest::Remove { cache, condition, operation, key: key.clone() };
        let stored =
            self.calls.call_once(condition != Condition::Always, remove).await.and_then(|answer| match answer {
                CacheResponse::Removed(stored) => Ok(stored),
                other => Err(unexpected_of_caches(other)),
            });
        if let Some(near) = &self.near {
            near.stored(&key, &stored, News::Gone);
        }
        stored
    }

    /// Adds to a counter; one that is not there begins with 0, and is kept for this long.
    pub async fn add(&self, key: impl Into<Bytes>, delta: i64, ttl: Ttl) -> Result<Added> {
        let key = key.into();
        check_key(&key)?;
        let add = |cache, operation| CacheRequest::Add { cache, delta, ttl, operation, key: key.clone() };
        let added = self.calls.call_once(true, add).await.and_then(|answer| match answer {
            CacheResponse::Added(added) => Ok(added),
            other => Err(unexpected_of_caches(other)),
        });
        if let Some(near) = &self.near {
            near.added(&key, &added);
        }
        added
    }

    /// Keeps an entry for another time. Whether there is one.
    pub async fn touch(&self, key: impl Into<Bytes>, ttl: Ttl) -> Result<bool> {
        let key = key.into();
        check_key(&key)?;
        let touched = self.calls.call(|cache| CacheRequest::Touch { cache, ttl, key: key.clone() }).await;
        if let Some(near) = &self.near {
            near.forget(&key);
        }
        match touched? {
            CacheResponse::Touched(is_there) => Ok(is_there),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Some entries whose keys begin so, from a place on, and where to go on: each that is there all the time comes
    /// once.
    pub async fn scan(
        &self,
        prefix: impl Into<Bytes>,
        from: ScanCursor,
        with_values: bool,
    ) -> Result<(Vec<Entry>, Option<ScanCursor>)> {
        let prefix = prefix.into();
        let scan =
            |cache| CacheRequest::Scan { cache, from, count_max: LIST_COUNT, with_values, prefix: prefix.clone() };
        match self.calls.call(scan).await? {
            CacheResponse::Scanned { entries, next } => Ok((entries, next)),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// All that is there for keys that begin so, then all that changes.
    pub fn watch(&self, prefix: impl Into<Bytes>) -> CacheWatch {
        self.watch_from(prefix, WatchFrom::Snapshot)
    }

    /// The same from where another watch was ([`CacheWatch::position`]).
    pub fn watch_from(&self, prefix: impl Into<Bytes>, from: WatchFrom) -> CacheWatch {
        CacheWatch { calls: self.calls.clone(), prefix: prefix.into(), from }
    }

    /// Removes all entries. How many there were.
    pub async fn flush(&self) -> Result<u64> {
        let flushed = self.calls.call(|cache| CacheRequest::Flush { cache }).await;
        if let Some(near) = &self.near {
            near.clear();
        }
        match flushed? {
            CacheResponse::Flushed(count) => Ok(count),
            other => Err(unexpected_of_caches(other)),
        }
    }
}

impl CacheWatch {
    /// What comes next. Over a connection that breaks it goes on where it was.
    pub async fn next(&mut self) -> Result<Changes> {
        let mut backoff = Backoff::new();
        loop {
            let (from, prefix) = (self.from, self.prefix.clone());
            let wait_ms = WATCH_WAIT.as_millis() as u32;
            let watch =
                |cache| CacheRequest::Watch { cache, from, count_max: CHANGES_MAX, wait_ms, prefix: prefix.clone() };
            match self.calls.call(watch).await {
                Ok(CacheResponse::Watched(watched)) => {
                    let was_scanning = !matches!(from, WatchFrom::Changes { .. });
                    let is_caught_up = matches!(watched.next, WatchFrom::Changes { .. });
                    self.from = watched.next;
                    if !watched.changes.is_empty() || watched.is_reset || was_scanning && is_caught_up {
                        return Ok(Changes { changes: watched.changes, is_reset: watched.is_reset, is_caught_up });
                    }
                }
                Ok(other) => return Err(unexpected_of_caches(other)),
                Err(error) if is_transient(&error) => tokio::time::sleep(backoff.next()).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is: another watch may go on from there.
    pub fn position(&self) -> WatchFrom {
        self.from
    }
}

fn check_key(key: &Bytes) -> Result<()> {
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(()),
        length => Err(Error::too_large(format!("a key of {length} bytes; at most {KEY_BYTES_MAX}"))),
    }
}

/// What is there after a put, as far as the client knows: times from now on are counted by the broker's clock.
fn put_news(value: &[u8], ttl: Ttl) -> News<'_> {
    match ttl {
        Ttl::Never => News::Value { value, expires_ms: None },
        Ttl::Until(at_ms) => News::Value { value, expires_ms: Some(at_ms) },
        Ttl::Default | Ttl::For(_) | Ttl::Kept => News::Unseen,
    }
}
