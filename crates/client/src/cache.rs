//! Caches: the latest value of each key, and a watch of its changes.

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

/// Caches per list request and entries per scan request.
const LIST_COUNT: u32 = 500;
/// Maximum wait of one watch request.
const WATCH_WAIT: Duration = Duration::from_secs(20);
const CHANGES_MAX: u32 = 1000;

/// Handle of a cache on a broker.
///
/// ```no_run
/// # async fn example(client: thalweg_client::Client) -> Result<(), thalweg_client::Error> {
/// use thalweg_client::{Condition, Stored, Ttl};
///
/// let sessions = client.cache("sessions");
/// sessions.put("alice", "cart: 1 coffee").await?;
/// if let Some(found) = sessions.get("alice").await? {
///     // Only if no other client has changed it in the meantime.
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

/// Watch of a cache: first the existing entries, then every change.
pub struct CacheWatch {
    calls: CacheCalls,
    prefix: Bytes,
    from: WatchFrom,
}

/// Changes that a watch reports together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Changes in their order; the existing entries of a snapshot are puts.
    pub changes: Vec<Change>,
    /// `true` if the watch could not resume at its position, and a new snapshot begins with these changes: an entry
    /// that was known before and does not occur in it no longer exists.
    pub is_reset: bool,
    /// `true` once the snapshot is complete.
    pub is_caught_up: bool,
}

impl Client {
    /// Returns a handle of the cache `name`. The first use creates the cache if it does not exist.
    pub fn cache(&self, name: &str) -> Cache {
        Cache { calls: CacheCalls::new(self.session.clone(), name), near: None }
    }

    /// Creates a cache. Succeeds if the cache already exists with the same settings.
    pub async fn create_cache(&self, name: &str, settings: CacheSettings) -> Result<CacheStatus> {
        match call(&self.session, CacheRequest::Create { cache: name.to_owned(), settings }).await? {
            CacheResponse::Created(open) => Ok(open.status),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Deletes a cache with all its entries.
    pub async fn delete_cache(&self, name: &str) -> Result<()> {
        match call(&self.session, CacheRequest::Delete { cache: name.to_owned() }).await? {
            CacheResponse::Deleted => Ok(()),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Returns the settings and counters of a cache.
    pub async fn describe_cache(&self, name: &str) -> Result<CacheStatus> {
        match call(&self.session, CacheRequest::Describe { cache: name.to_owned() }).await? {
            CacheResponse::Described(status) => Ok(status),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Returns all caches in the order of their names.
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
    /// Returns the name of the cache.
    pub fn name(&self) -> &str {
        self.calls.name()
    }

    /// Returns a handle of this cache with a near cache, which keeps a copy of the read entries in this process,
    /// limited to [`NearSettings::bytes_max`]. An entry is read from the broker once for as long as it does not change.
    /// All clones of the returned handle share the near cache; other handles of the cache, even those of this client,
    /// do not use it.
    ///
    /// A get never returns an older value than this handle has already returned or put: the versions seen of each key
    /// only grow. Changes by other clients become visible as soon as the cache's watch reports them, and never later
    /// than [`NearSettings::stale_max`]: if the watch has been silent for that long, or its connection is lost, all
    /// gets go to the broker until the watch is back. If the watch cannot resume at its position, all kept entries are
    /// dropped. Entries expire by this machine's clock. The watch does not report a [`Cache::touch`] by other clients:
    /// an entry whose time to live was shortened that way stays until the broker has removed it.
    ///
    /// Concurrent gets of one key cause one request to the broker. The absence of an entry is kept, too. All operations
    /// except gets go to the broker. The watch transfers every change of the keys that begin with
    /// [`NearSettings::prefix`], with its value, so a near cache pays off if reads are much more frequent than writes.
    /// The watch begins with the first get.
    ///
    /// ```no_run
    /// # async fn example(client: thalweg_client::Client) -> Result<(), thalweg_client::Error> {
    /// use thalweg_client::NearSettings;
    ///
    /// let prices = client.cache("prices").near(NearSettings { bytes_max: 16 << 20, ..NearSettings::default() });
    /// let first = prices.get("coffee").await?;
    /// // From memory, unless another client has changed it in the meantime.
    /// let again = prices.get("coffee").await?;
    /// let stats = prices.near_stats().unwrap_or_default();
    /// println!("{} of {} gets needed no broker", stats.hits, stats.hits + stats.misses + stats.bypassed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn near(&self, settings: NearSettings) -> Self {
        Self { near: Some(Arc::new(Near::new(self.calls.clone(), settings))), calls: self.calls.clone() }
    }

    /// Returns the counters of the near cache; `None` for a handle that was not returned by [`Cache::near`].
    pub fn near_stats(&self) -> Option<NearStats> {
        self.near.as_ref().map(|near| near.stats())
    }

    /// Returns the entry of a key, or `None` if the key has no entry.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>> {
        let key = key.into();
        check_key(&key)?;
        match &self.near {
            Some(near) => near.get(key).await,
            None => self.calls.get(key).await,
        }
    }

    /// Returns the entry of each key, in the order of the keys.
    pub async fn multi_get(&self, keys: impl IntoIterator<Item = impl Into<Bytes>>) -> Result<Vec<Option<Value>>> {
        let keys: Vec<Bytes> = keys.into_iter().map(Into::into).collect();
        keys.iter().try_for_each(check_key)?;
        match &self.near {
            Some(near) => near.multi_get(keys).await,
            None => self.calls.multi_get(keys).await,
        }
    }

    /// Stores a value with the cache's default time to live. Returns its version.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<u64> {
        match self.put_with(key, value, Ttl::Default, Condition::Always).await? {
            Stored::Done { version, .. } => Ok(version),
            Stored::Unmet { .. } => Err(Error::new(ErrorKind::Internal, "a put without a condition was refused")),
        }
    }

    /// Stores a value with this time to live if the condition is met; [`Stored`] reports the outcome.
    pub async fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
        condition: Condition,
    ) -> Result<Stored> {
        let key = key.into();
        let value = value.into();
        check_key(&key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::too_large(format!(
                "a value of {} bytes is too large: at most {VALUE_BYTES_MAX} are allowed",
                value.len()
            )));
        }
        let put = |cache, operation| {
            let key = key.clone();
            let value = value.clone();
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

    /// Deletes an entry. Returns `true` if it existed.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<bool> {
        let stored = self.delete_if(key, Condition::Always).await?;
        Ok(matches!(stored, Stored::Done { previous: Some(_), .. }))
    }

    /// Deletes an entry if the condition is met; [`Stored`] reports the outcome.
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

    /// Adds `delta` to a counter. A counter that does not exist starts at 0, with the time to live `ttl`.
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

    /// Changes the time to live of an entry. Returns `true` if the entry exists.
    pub async fn touch(&self, key: impl Into<Bytes>, ttl: Ttl) -> Result<bool> {
        let key = key.into();
        check_key(&key)?;
        let touched = self.calls.call(|cache| CacheRequest::Touch { cache, ttl, key: key.clone() }).await;
        if let Some(near) = &self.near {
            near.forget(&key);
        }
        match touched? {
            CacheResponse::Touched(exists) => Ok(exists),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Returns some entries whose keys begin with `prefix`, and the cursor for the next call; `None` at the end. An
    /// entry that exists during the whole scan is returned once.
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

    /// Watches the keys that begin with `prefix`: reports all existing entries, then all changes.
    pub fn watch(&self, prefix: impl Into<Bytes>) -> CacheWatch {
        self.watch_from(prefix, WatchFrom::Snapshot)
    }

    /// Watches the keys that begin with `prefix` from the position of another watch on ([`CacheWatch::position`]).
    pub fn watch_from(&self, prefix: impl Into<Bytes>, from: WatchFrom) -> CacheWatch {
        CacheWatch { calls: self.calls.clone(), prefix: prefix.into(), from }
    }

    /// Removes all entries. Returns their number.
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
    /// Returns the next changes. Resumes at its position after a broken connection.
    pub async fn next(&mut self) -> Result<Changes> {
        let mut backoff = Backoff::new();
        loop {
            let from = self.from;
            let prefix = self.prefix.clone();
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

    /// Returns the current position, at which another watch can resume ([`Cache::watch_from`]).
    pub fn position(&self) -> WatchFrom {
        self.from
    }
}

fn check_key(key: &Bytes) -> Result<()> {
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(()),
        length => {
            Err(Error::too_large(format!("a key of {length} bytes is too long: at most {KEY_BYTES_MAX} are allowed")))
        }
    }
}

/// Returns the client's knowledge of an entry after a put. Relative times to live run by the broker's clock, so that
/// their end is unknown here.
fn put_news(value: &[u8], ttl: Ttl) -> News<'_> {
    match ttl {
        Ttl::Never => News::Value { value, expires_ms: None },
        Ttl::Until(at_ms) => News::Value { value, expires_ms: Some(at_ms) },
        Ttl::Default | Ttl::For(_) | Ttl::Kept => News::Unseen,
    }
}
