//! Calls to the broker about one cache: opening it, addressing it by its number, and repeating operations that the
//! broker executes once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::cache::operations::OperationId;
use engine::{Error, ErrorKind, Result};
use wire::caches::{OpenCache, Value};
use wire::{CacheRequest, CacheResponse, Request, Response};

use crate::backoff::Backoff;
use crate::link::unexpected;
use crate::session::Session;

/// Number of a cache that is not open yet.
const NOT_OPEN: u64 = 0;

/// Calls to the broker for a [`Cache`](crate::Cache) and for its near cache. Clones share the cache's number.
#[derive(Clone)]
pub(crate) struct CacheCalls {
    session: Arc<Session>,
    name: Arc<str>,
    /// Number by which the broker identifies the cache.
    id: Arc<AtomicU64>,
}

impl CacheCalls {
    /// Creates the calls for the cache `name`, which the first call opens.
    pub(crate) fn new(session: Arc<Session>, name: &str) -> Self {
        Self { session, name: name.into(), id: Arc::new(AtomicU64::new(NOT_OPEN)) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Maximum duration of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.session.settings().request_timeout
    }

    /// Returns the broker's entry of a key.
    pub(crate) async fn get(&self, key: Bytes) -> Result<Option<Value>> {
        match self.call(|cache| CacheRequest::Get { cache, key: key.clone() }).await? {
            CacheResponse::Got(value) => Ok(value),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Returns the broker's entry of each key, in the order of the keys.
    pub(crate) async fn multi_get(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Value>>> {
        match self.call(|cache| CacheRequest::MultiGet { cache, keys: keys.clone() }).await? {
            CacheResponse::MultiGot(values) => Ok(values),
            other => Err(unexpected_of_caches(other)),
        }
    }

    /// Calls the broker, and repeats the call after a broken connection if `is_numbered`, that is if the result depends
    /// on the contents of the cache: the broker identifies the operation by its number and executes it once.
    pub(crate) async fn call_once(
        &self,
        is_numbered: bool,
        request: impl Fn(u64, Option<OperationId>) -> CacheRequest,
    ) -> Result<CacheResponse> {
        if !is_numbered {
            return self.call(|cache| request(cache, None)).await;
        }
        let operation = self.session.operations.begin().await;
        let deadline = tokio::time::Instant::now() + self.session.settings().request_timeout;
        let mut backoff = Backoff::new();
        loop {
            match self.call(|cache| request(cache, Some(operation.id))).await {
                Err(error) if matches!(error.kind, ErrorKind::Disconnected | ErrorKind::ShuttingDown) => {
                    let wait = backoff.next();
                    if tokio::time::Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    tokio::time::sleep(wait).await;
                }
                answer => return answer,
            }
        }
    }

    /// Calls the broker with the number of the cache. The number changes when the broker is restarted or the cache is
    /// created again.
    pub(crate) async fn call(&self, request: impl Fn(u64) -> CacheRequest) -> Result<CacheResponse> {
        let known = self.id.load(Ordering::Relaxed);
        if known != NOT_OPEN {
            match call(&self.session, request(known)).await {
                Err(error) if error.kind == ErrorKind::NotFound => {}
                answer => return answer,
            }
        }
        let opened = call(&self.session, CacheRequest::Open { cache: self.name.to_string() }).await?;
        let CacheResponse::Opened(OpenCache { cache, .. }) = opened else {
            return Err(unexpected_of_caches(opened));
        };
        self.id.store(cache, Ordering::Relaxed);
        call(&self.session, request(cache)).await
    }
}

/// Calls the broker with a request about caches. These use separate streams, so that a large value blocks no publisher.
pub(crate) async fn call(session: &Session, request: CacheRequest) -> Result<CacheResponse> {
    match session.call_caches(&Request::Cache(request)).await? {
        Response::Cache(response) => Ok(response),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn unexpected_of_caches(response: CacheResponse) -> Error {
    unexpected(&Response::Cache(response))
}
