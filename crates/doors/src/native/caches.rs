//! Maps cache requests to calls of the broker.

use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Cache, Commit, Identity};
use bytes::Bytes;
use engine::cache::{Found, ScanCursor, VALUE_BYTES_MAX};
use engine::security::ResourceKind;
use engine::{Error, Result};
use wire::caches::{Entry, OpenCache, Value};
use wire::{CacheRequest, CacheResponse, Response};

/// Maximum number of caches in one response to a list.
const LIST_COUNT_MAX: u32 = 1000;
/// Maximum number of keys in one request.
const KEYS_MAX: usize = 10_000;
/// Limits of one response: entries or changes, and bytes. The entry that reaches the limit in bytes is still included.
const ENTRIES_MAX: u32 = 10_000;
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum time that a watch waits for a change.
const WAIT_MAX: Duration = Duration::from_secs(60);

const _: () = assert!(ANSWER_BYTES_MAX + VALUE_BYTES_MAX < wire::frame::BODY_BYTES_MAX);

/// Executes a request. Returns the response and the commit after which the response is durable.
pub(super) fn answer(
    broker: &Broker,
    identity: &Identity,
    recent: &mut Recent,
    request: CacheRequest,
) -> Result<(Response, Commit)> {
    let (response, commit) = match request {
        CacheRequest::Create { .. }
        | CacheRequest::Open { .. }
        | CacheRequest::Delete { .. }
        | CacheRequest::Describe { .. }
        | CacheRequest::List { .. } => of_caches(broker, identity, request)?,
        CacheRequest::Get { cache, key } => {
            let cache = recent.cache(broker, cache)?;
            (CacheResponse::Got(cache.get(&key, |found| found.map(value).transpose())??), cache.commit_of(&key))
        }
        CacheRequest::MultiGet { cache, keys } => {
            let cache = recent.cache(broker, cache)?;
            (multi_get(cache, &keys)?, cache.settled())
        }
        CacheRequest::Put { cache, condition, ttl, operation, key, value } => {
            let cache = recent.cache(broker, cache)?;
            let stored = match operation {
                Some(operation) => cache.put_once(&key, &value, ttl, condition, operation)?,
                None => cache.put(&key, &value, ttl, condition)?,
            };
            (CacheResponse::Put(stored), cache.commit_of(&key))
        }
        CacheRequest::Remove { cache, condition, operation, key } => {
            let cache = recent.cache(broker, cache)?;
            let stored = match operation {
                Some(operation) => cache.delete_once(&key, condition, operation)?,
                None => cache.delete(&key, condition)?,
            };
            (CacheResponse::Removed(stored), cache.commit_of(&key))
        }
        CacheRequest::Add { cache, delta, ttl, operation, key } => {
            let cache = recent.cache(broker, cache)?;
            let added = match operation {
                Some(operation) => cache.add_once(&key, delta, ttl, operation)?,
                None => cache.add(&key, delta, ttl)?,
            };
            (CacheResponse::Added(added), cache.commit_of(&key))
        }
        CacheRequest::Touch { cache, ttl, key } => {
            let cache = recent.cache(broker, cache)?;
            (CacheResponse::Touched(cache.touch(&key, ttl)?), cache.commit_of(&key))
        }
        CacheRequest::Scan { cache, from, count_max, with_values, prefix } => {
            let cache = recent.cache(broker, cache)?;
            (scan(cache, from, count_max, with_values, &prefix)?, cache.settled())
        }
        CacheRequest::Flush { cache } => {
            let cache = recent.cache(broker, cache)?;
            let (entries, flushed) = cache.flush()?;
            broker.record_act("flush cache", cache.name().as_str(), None);
            (CacheResponse::Flushed(entries), cache.settled().and(flushed))
        }
        CacheRequest::Watch { .. } => unreachable!("invariant: a watch waits, and `watch` answers it"),
    };
    Ok((Response::Cache(response), commit))
}

/// Executes a request about whole caches, such as create, open and list.
fn of_caches(broker: &Broker, identity: &Identity, request: CacheRequest) -> Result<(CacheResponse, Commit)> {
    Ok(match request {
        CacheRequest::Create { cache, settings } => {
            let cache = broker.caches.create(&cache, settings)?;
            (CacheResponse::Created(open(&cache)), cache.settled())
        }
        CacheRequest::Open { cache } => {
            let cache = broker.caches.open(&cache)?;
            (CacheResponse::Opened(open(&cache)), cache.settled())
        }
        CacheRequest::Delete { cache } => (CacheResponse::Deleted, broker.caches.delete(&cache)?),
        CacheRequest::List { after, count_max } => {
            let is_shown = |cache: &str| broker.is_shown(identity, ResourceKind::Cache, cache);
            let (caches, is_last) = broker.caches.list(&after, count_max.clamp(1, LIST_COUNT_MAX) as usize, is_shown);
            (CacheResponse::Caches { caches, is_last }, Commit::done())
        }
        CacheRequest::Describe { cache } => (CacheResponse::Described(broker.caches.describe(&cache)?), Commit::done()),
        _ => unreachable!("invariant: `answer` executes the requests for entries"),
    })
}

/// Waits for changes of a cache, for at most [`WAIT_MAX`].
pub(super) async fn watch(broker: Arc<Broker>, request: CacheRequest) -> Result<Response> {
    let CacheRequest::Watch { cache, from, count_max, wait_ms, prefix } = request else {
        unreachable!("invariant: `answer` executes all other requests");
    };
    let cache = broker.caches.by_id(cache)?;
    let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
    let count_max = count_max.clamp(1, ENTRIES_MAX) as usize;
    let watched = cache.watch(&prefix, from, count_max, ANSWER_BYTES_MAX, wait).await?;
    Ok(Response::Cache(CacheResponse::Watched(watched)))
}

/// Cache that the stream used last. Most requests of a stream use the same cache.
#[derive(Default)]
pub(super) struct Recent(Option<Arc<Cache>>);

impl Recent {
    fn cache(&mut self, broker: &Broker, id: u64) -> Result<&Cache> {
        let recent = self.0.take().filter(|cache| cache.id() == id && !cache.is_deleted());
        let cache = match recent {
            Some(cache) => cache,
            None => broker.caches.by_id(id)?,
        };
        Ok(self.0.insert(cache))
    }
}

fn open(cache: &Cache) -> OpenCache {
    OpenCache { cache: cache.id(), status: cache.status() }
}

fn value(found: Found<'_>) -> Result<Value> {
    let value = Bytes::copy_from_slice(found.value.bytes()?);
    Ok(Value { value, version: found.version, expires_ms: found.expires_ms })
}

fn multi_get(cache: &Cache, keys: &[Bytes]) -> Result<CacheResponse> {
    if keys.len() > KEYS_MAX {
        return Err(Error::too_large(format!("a request has at most {KEYS_MAX} keys, not {}", keys.len())));
    }
    let mut bytes = 0;
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let value = cache.get(key, |found| found.map(value).transpose())??;
        let more = value.as_ref().map_or(0, |value| value.value.len());
        // A larger value is returned only if it is the only value of the response.
        if bytes > 0 && more > 0 && bytes + more > ANSWER_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the values of {} keys have more than {ANSWER_BYTES_MAX} bytes: request fewer at a time",
                keys.len()
            )));
        }
        bytes += more;
        values.push(value);
    }
    Ok(CacheResponse::MultiGot(values))
}

fn scan(cache: &Cache, from: ScanCursor, count_max: u32, with_values: bool, prefix: &[u8]) -> Result<CacheResponse> {
    let count_max = count_max.clamp(1, ENTRIES_MAX) as usize;
    let mut entries = Vec::new();
    let mut bytes = 0;
    let next = cache.scan(prefix, from, |found| {
        // A value that is not a string of bytes is shown as empty.
        let shown = if with_values { found.value.bytes().unwrap_or_default() } else { &[] };
        bytes += found.key.len() + shown.len();
        let value = Bytes::copy_from_slice(shown);
        let value = Value { value, version: found.version, expires_ms: found.expires_ms };
        entries.push(Entry { key: Bytes::copy_from_slice(found.key), value });
        entries.len() < count_max && bytes < ANSWER_BYTES_MAX
    })?;
    Ok(CacheResponse::Scanned { entries, next })
}
