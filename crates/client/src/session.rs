//! The session with a broker: the pools of connections that all parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use engine::Result;
use tokio::time::Instant;
use wire::{Cluster, Request, Response};

use crate::backoff::Backoff;
use crate::connection::Shape;
use crate::dialer::Dialer;
use crate::operations::Operations;
use crate::pool::Pool;
use crate::repeat::may_repeat;
use crate::settings::ClientSettings;

/// Maximum duration of a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections to one broker, grouped by their use, so that a large value or a slow reader blocks no publisher.
/// Publishers, subscriptions, consumers, queues and caches hold the session, and never the client that opened them.
pub(crate) struct Session {
    dialer: Arc<Dialer>,
    /// Connections for publishing. The first one also carries all requests that have no pool.
    pub publish: Pool,
    pub events: Pool,
    pub caches: Pool,
    /// Cache operations that the broker executes once.
    pub operations: Operations,
}

/// Connection for a request.
#[derive(Clone, Copy)]
enum Use {
    /// The first connection for publishing.
    Control,
    Caches,
}

impl Session {
    /// Creates a session that connects with its first request.
    pub(crate) fn new(dialer: Arc<Dialer>) -> Arc<Self> {
        let settings = &dialer.settings;
        let events = Shape {
            streams: 0,
            connection_receive: settings.event_conn_recv_window,
            stream_receive: settings.event_stream_recv_window,
        };
        let publish = Shape { streams: settings.pub_streams_per_conn.max(1), ..events };
        let caches = Shape {
            streams: settings.cache_streams_per_conn.max(1),
            connection_receive: settings.cache_conn_recv_window,
            stream_receive: settings.cache_stream_recv_window,
        };
        Arc::new(Self {
            publish: Pool::new(dialer.clone(), settings.pub_conn_pool, publish),
            events: Pool::new(dialer.clone(), settings.event_conn_pool, events),
            caches: Pool::new(dialer.clone(), settings.cache_conn_pool, caches),
            operations: Operations::new(settings.cache_conn_pool),
            dialer,
        })
    }

    /// Creates a session with the same broker over separate connections.
    pub(crate) fn sibling(&self) -> Arc<Self> {
        Self::new(self.dialer.clone())
    }

    /// Closes all connections and waits up to one second for the broker to take note.
    pub(crate) async fn close(&self) {
        let close = async {
            self.publish.close().await;
            self.events.close().await;
            self.caches.close().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!("the broker did not acknowledge the close in time");
        }
    }

    pub(crate) fn settings(&self) -> &ClientSettings {
        &self.dialer.settings
    }

    /// Sends a request over the control connection and waits for its answer.
    pub(crate) async fn call(&self, request: &Request) -> Result<Response> {
        self.call_within(request, self.settings().request_timeout).await
    }

    /// Sends a request that the broker may answer late, and waits up to `timeout` once a connection exists.
    pub(crate) async fn call_within(&self, request: &Request, timeout: Duration) -> Result<Response> {
        self.repeat(Use::Control, request, timeout).await
    }

    /// Sends a request over a stream of the caches, so that a large value blocks no publisher.
    pub(crate) async fn call_caches(&self, request: &Request) -> Result<Response> {
        self.repeat(Use::Caches, request, self.settings().request_timeout).await
    }

    /// Sends a request and waits for its answer. In a cluster it is sent again, to the node that leads then, if the
    /// connection breaks and that is safe; within the same time.
    async fn repeat(&self, way: Use, request: &Request, timeout: Duration) -> Result<Response> {
        let mut begin = None;
        let mut backoff = Backoff::new();
        loop {
            let link = match way {
                Use::Control => self.publish.connection(0).await?.control.clone(),
                Use::Caches => self.caches.link(self.caches.next_turn()).await?,
            };
            let begin = *begin.get_or_insert_with(Instant::now);
            let error = match link.request(request, timeout.saturating_sub(begin.elapsed())).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let wait = backoff.next();
            let is_lasting = !self.dialer.book.is_of_cluster() || !may_repeat(request, &error);
            if is_lasting || begin.elapsed() + wait >= timeout {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns the cluster, as its leader has described it last.
    pub(crate) fn cluster(&self) -> Option<Cluster> {
        self.dialer.book.cluster()
    }

    /// Returns the address of the control connection.
    #[cfg(test)]
    pub(crate) fn dialed(&self) -> crate::address::Address {
        self.publish.opened(0).expect("it is connected").address.clone()
    }

    /// Returns `true` if several nodes may answer.
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.dialer.book.is_of_cluster()
    }
}
