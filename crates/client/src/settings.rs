//! What a client is set to. The defaults are those of the `balanced` profile.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::Error;

#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Connections for publishing.
    pub pub_conn_pool: usize,
    /// Publish streams of each of them. Over TCP a connection is one stream.
    pub pub_streams_per_conn: usize,
    /// Connections for subscriptions.
    pub event_conn_pool: usize,
    /// Connections for caches.
    pub cache_conn_pool: usize,
    /// Streams of each of them. Over TCP a connection is one stream.
    pub cache_streams_per_conn: usize,
    /// Bytes that one connection may have on the way to this client.
    pub event_conn_recv_window: u64,
    /// Bytes that one subscription may have on the way: also its credit.
    pub event_stream_recv_window: u64,
    /// Bytes of answers that one connection for caches may have on the way to this client.
    pub cache_conn_recv_window: u64,
    /// Those that one stream of it may have.
    pub cache_stream_recv_window: u64,
    /// Bytes that one connection may have on the way to the broker.
    pub event_send_window: u64,
    /// Records that a publisher gathers are sent when they reach this size, or when nothing is left to do.
    pub publish_chunk_bytes: usize,
    /// Batches of one publisher that may wait for their acknowledgement.
    pub publishes_in_flight_max: usize,
    pub connect_timeout: Duration,
    /// How long a request may take, with all its tries.
    pub request_timeout: Duration,
    /// Certificates to trust, PEM. `None` trusts the system's, and on this machine's own loopback any.
    pub ca_file: Option<PathBuf>,
    /// How this client calls itself to the broker.
    pub name: String,
    /// Receives word of connections that break and are made again.
    pub observer: Option<LinkObserver>,
}

/// What became of the connections to a broker.
#[derive(Clone, Copy, Debug)]
pub enum LinkChange<'a> {
    /// A connection broke, and the first attempt to make it again failed: why. More attempts follow.
    Lost(&'a Error),
    /// A connection was made again after that.
    Restored,
}

/// A function that is called once when connections are lost and once when they are restored. It is called by the task
/// that connects: it should only pass the word on.
#[derive(Clone)]
pub struct LinkObserver(Arc<dyn Fn(LinkChange<'_>) + Send + Sync>);

impl LinkObserver {
    pub fn new(observe: impl Fn(LinkChange<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn call(&self, change: LinkChange<'_>) {
        (self.0)(change);
    }
}

impl fmt::Debug for LinkObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkObserver")
    }
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            pub_conn_pool: 4,
            pub_streams_per_conn: 2,
            event_conn_pool: 8,
            cache_conn_pool: 8,
            cache_streams_per_conn: 4,
            event_conn_recv_window: 256 << 20,
            event_stream_recv_window: 64 << 20,
            cache_conn_recv_window: 256 << 20,
            cache_stream_recv_window: 64 << 20,
            event_send_window: 256 << 20,
            publish_chunk_bytes: 16_384,
            publishes_in_flight_max: 256,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            ca_file: None,
            name: "rust".to_owned(),
            observer: None,
        }
    }
}
