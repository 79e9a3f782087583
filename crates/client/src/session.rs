//! The session with a broker: the pools of connections that all parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use engine::Result;
use wire::{Request, Response};

use crate::connection::{Connection, Dialer, Shape};
use crate::operations::Operations;
use crate::pool::Pool;
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
        self.control().await?.control.request(request, timeout).await
    }

    /// Returns the connection for all requests that have no pool.
    async fn control(&self) -> Result<Arc<Connection>> {
        self.publish.connection(0).await
    }
}
