//! Caches over HTTP: an entry is a resource, its version an `ETag`, a condition `If-Match` or `If-None-Match`.

use std::sync::Arc;

use axum::extract::{Extension, FromRequestParts, Path, Request, State};
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use broker::{Cache, Identity};
use bytes::Bytes;
use engine::cache::{CacheSettings, CacheStatus, Condition, Eviction, ScanCursor, Stored, Ttl};
use engine::security::ResourceKind;
use engine::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Http;
use super::codec::{self, Encoding, Query, Topic};
use super::errors::{Failure, Result};
use super::names::Names;

/// Maximum bytes of keys and values in one response. The entry that reaches the limit is still included.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum number of scan steps in one request, each of which visits about a thousand positions.
pub(super) const SCAN_STEPS_MAX: usize = 128;
/// Response header with the expiry of an entry, in milliseconds since 1970.
const EXPIRES: &str = "thalweg-expires-ms";

pub(super) async fn list(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["after", "max"])?;
    let after = names.beginning(query.text("after").unwrap_or_default());
    let is_shown = |cache: &str| http.broker.is_shown(&identity, ResourceKind::Cache, cache);
    let (caches, is_last) = http.broker.caches.list(&after, query.list_count()?, is_shown);
    let caches: Vec<Value> = caches.iter().map(|cache| shown(cache, &names)).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "caches": caches, "is_last": is_last })))
}

/// Settings of a new cache; omitted ones have their default.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheIn {
    bytes_max: Option<u64>,
    eviction: Option<String>,
    ttl_ms: Option<u64>,
    #[serde(default)]
    is_durable: bool,
}

pub(super) async fn create(
    State(http): State<Arc<Http>>,
    Topic(cache): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let CacheIn { bytes_max, eviction, ttl_ms, is_durable } =
        codec::optional_json(&http.bodies, request).await?.unwrap_or_default();
    let eviction = eviction.as_deref().map(Eviction::parse).transpose()?.unwrap_or_default();
    let settings = CacheSettings { bytes_max, eviction, ttl_ms, is_durable };
    let existed = http.broker.caches.describe(&cache).is_ok();
    let made = http.broker.caches.create(&cache, settings)?;
    made.settled().wait().await?;
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok(codec::json(status, &shown(&made.status(), &names)))
}

pub(super) async fn describe(
    State(http): State<Arc<Http>>,
    Topic(cache): Topic,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    Ok(codec::json(StatusCode::OK, &shown(&http.broker.caches.describe(&cache)?, &names)))
}

pub(super) async fn delete(State(http): State<Arc<Http>>, Topic(cache): Topic, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.caches.delete(&cache)?.wait().await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(status: &CacheStatus, names: &Names) -> Value {
    let settings = &status.settings;
    let stats = &status.stats;
    json!({
        "cache": names.outer(status.name.as_str()),
        "settings": {
            "bytes_max": settings.bytes_max,
            "eviction": settings.eviction.name(),
            "ttl_ms": settings.ttl_ms,
            "is_durable": settings.is_durable,
        },
        "entries": stats.entries,
        "bytes": stats.bytes,
        "hits": stats.hits,
        "misses": stats.misses,
        "expired": stats.expired,
        "evicted": stats.evicted,
    })
}

/// Entry in the path of a request.
pub(super) struct Entry {
    /// Name of the cache in the broker.
    cache: String,
    key: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Entry {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Path::<(String, String)>::from_request_parts(parts, state).await {
            Ok(Path((cache, key))) => {
                let cache = Names::from_request_parts(parts, state).await?.inner(&cache);
                Ok(Self { cache, key })
            }
            Err(rejection) => Err(Error::invalid(format!("the entry in the path: {rejection}")).into()),
        }
    }
}

/// Entry in a list.
#[derive(Serialize)]
struct EntryOut {
    key: String,
    value: String,
    encoding: Encoding,
    version: u64,
    expires_ms: Option<u64>,
}

pub(super) async fn entries(State(http): State<Arc<Http>>, Topic(cache): Topic, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["prefix", "cursor", "max"])?;
    let prefix = query.text("prefix").unwrap_or_default();
    let count_max = query.list_count()?;
    let mut next = Some(ScanCursor(query.get("cursor")?.unwrap_or_default()));
    let cache = http.broker.caches.find(&cache)?;
    let mut entries = Vec::new();
    let mut bytes = 0;
    // A step reads one stripe. Most responses take many steps, and no request holds its thread for long.
    for _ in 0..SCAN_STEPS_MAX {
        let Some(from) = next.filter(|_| entries.len() < count_max && bytes < ANSWER_BYTES_MAX) else {
            break;
        };
        next = cache.scan(prefix.as_bytes(), from, |found| {
            // An entry with parts (a list, a hash, a set) is listed without its contents.
            let value = found.value.bytes().unwrap_or_default();
            let encoding = Encoding::of([found.key, value].into_iter());
            bytes += found.key.len() + value.len();
            entries.push(EntryOut {
                key: encoding.encode(found.key).into_owned(),
                value: encoding.encode(value).into_owned(),
                encoding,
                version: found.version,
                expires_ms: found.expires_ms,
            });
            entries.len() < count_max && bytes < ANSWER_BYTES_MAX
        })?;
    }
    cache.settled().wait().await?;
    // The cursor is a string: it has 64 bits, which a double cannot represent.
    let cursor = next.map(|next| next.0.to_string());
    Ok(codec::json(StatusCode::OK, &json!({ "entries": entries, "cursor": cursor })))
}

pub(super) async fn flush(State(http): State<Arc<Http>>, Topic(cache): Topic, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let cache = http.broker.caches.find(&cache)?;
    let (removed, flushed) = cache.flush()?;
    http.broker.record_act("flush cache", cache.name().as_str(), None);
    cache.settled().and(flushed).wait().await?;
    Ok(codec::json(StatusCode::OK, &json!({ "removed": removed })))
}

/// Returns the value as the body, for any HTTP client.
pub(super) async fn get(State(http): State<Arc<Http>>, Entry { cache, key }: Entry, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let cache = http.broker.caches.find(&cache)?;
    let found = cache.get(key.as_bytes(), |found| {
        let read = |found: engine::cache::Found<'_>| {
            Ok::<_, Error>((Bytes::copy_from_slice(found.value.bytes()?), found.version, found.expires_ms))
        };
        found.map(read).transpose()
    })??;
    cache.commit_of(key.as_bytes()).wait().await?;
    let (value, version, expires_ms) = found.ok_or_else(|| no_entry(&cache, &key))?;
    let mut response = codec::bytes(StatusCode::OK, "application/octet-stream", value);
    let headers = response.headers_mut();
    headers.insert(ETAG, etag(version));
    if let Some(expires_ms) = expires_ms {
        headers.insert(EXPIRES, HeaderValue::from(expires_ms));
    }
    Ok(response)
}

pub(super) async fn put(
    State(http): State<Arc<Http>>,
    Entry { cache, key }: Entry,
    request: Request,
) -> Result<Response> {
    let query = Query::parse(request.uri(), &["ttl_ms"])?;
    let ttl = query.get("ttl_ms")?.map_or(Ttl::Default, Ttl::For);
    let condition = condition(request.headers())?;
    let body = codec::read_body(request.into_body(), &http.bodies).await?;
    let cache = http.broker.caches.open(&cache)?;
    let stored = cache.put(key.as_bytes(), &body.bytes, ttl, condition)?;
    cache.commit_of(key.as_bytes()).wait().await?;
    match stored {
        Stored::Done { version, previous } => {
            let status = if previous.is_some() { StatusCode::OK } else { StatusCode::CREATED };
            let mut response = codec::json(status, &json!({ "version": version, "previous": previous }));
            response.headers_mut().insert(ETAG, etag(version));
            Ok(response)
        }
        Stored::Unmet { current } => Err(unmet(&key, current)),
    }
}

pub(super) async fn remove(
    State(http): State<Arc<Http>>,
    Entry { cache, key }: Entry,
    request: Request,
) -> Result<StatusCode> {
    Query::parse(request.uri(), &[])?;
    let condition = condition(request.headers())?;
    let cache = http.broker.caches.find(&cache)?;
    let stored = cache.delete(key.as_bytes(), condition)?;
    cache.commit_of(key.as_bytes()).wait().await?;
    match stored {
        Stored::Done { previous: Some(_), .. } => Ok(StatusCode::NO_CONTENT),
        Stored::Done { previous: None, .. } => Err(no_entry(&cache, &key).into()),
        Stored::Unmet { current } => Err(unmet(&key, current)),
    }
}

/// Body of an addition to a counter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddIn {
    #[serde(default = "one")]
    delta: i64,
    ttl_ms: Option<u64>,
}

impl Default for AddIn {
    fn default() -> Self {
        Self { delta: one(), ttl_ms: None }
    }
}

fn one() -> i64 {
    1
}

pub(super) async fn add(
    State(http): State<Arc<Http>>,
    Entry { cache, key }: Entry,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let AddIn { delta, ttl_ms } = codec::optional_json(&http.bodies, request).await?.unwrap_or_default();
    let cache = http.broker.caches.open(&cache)?;
    let added = cache.add(key.as_bytes(), delta, ttl_ms.map_or(Ttl::Default, Ttl::For))?;
    cache.commit_of(key.as_bytes()).wait().await?;
    // The value is a string, like all values: a counter may have 64 bits.
    Ok(codec::json(StatusCode::OK, &json!({ "value": added.value.to_string(), "version": added.version })))
}

/// Returns the condition: `If-None-Match: *` is "if absent", `If-Match: *` is "if present", and `If-Match: "7"` is "if
/// in version 7" (RFC 9110, 13.1).
fn condition(headers: &HeaderMap) -> Result<Condition> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default().trim());
    match (text(IF_MATCH), text(IF_NONE_MATCH)) {
        (None, None) => Ok(Condition::Always),
        (None, Some("*")) => Ok(Condition::IfAbsent),
        (Some("*"), None) => Ok(Condition::IfPresent),
        (Some(version), None) => Ok(Condition::IfVersion(
            codec::parse("if-match", version.trim_matches('"')).map_err(|failure: Failure| {
                Error::invalid(format!("{}; write the ETag of an entry, or *", failure.error.message))
            })?,
        )),
        _ => Err(Error::invalid("a condition is if-match: \"VERSION\", if-match: * or if-none-match: *").into()),
    }
}

fn etag(version: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{version}\"")).expect("invariant: digits are a header")
}

fn no_entry(cache: &Cache, key: &str) -> Error {
    Error::not_found(format!("cache '{}' has no entry '{key}'", cache.name()))
}

fn unmet(key: &str, current: Option<u64>) -> Failure {
    let message = match current {
        Some(version) => format!("entry '{key}' is in version {version}: nothing was changed"),
        None => format!("there is no entry '{key}': nothing was changed"),
    };
    Failure::with_status(Error::new(ErrorKind::AlreadyExists, message), StatusCode::PRECONDITION_FAILED)
}
