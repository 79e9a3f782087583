//! The native door: QUIC and TCP on the same port number, with the same frames over both.

mod access;
mod backups;
mod caches;
mod cluster;
mod codec;
mod connection;
mod connections;
mod errors;
mod groups;
mod login;
mod map;
mod mesh;
mod queues;
mod room;
mod nodes;
mod security;
mod tenants;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use net::quic::{self, Windows};
use net::service::Timeouts;
use net::telemetry::Telemetry;
use net::tls::Tls;
use net::{Connections, Forward, Gate, Plaintext, Server, Service, ServiceSettings, Shutdown, Sockets, Workers};
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES};

pub(crate) use access::permissions;
use codec::NativeProtocol;
use connection::NativeHandler;

/// Maximum number of requests of one stream that wait for their responses, such as fetches and receives.
const REQUESTS_PER_CONNECTION_MAX: usize = 1024;
/// Maximum number of outgoing bytes queued for one connection before its subscriptions pause.
const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes of incomplete frames, over all connections together.
const FRAMES_BYTES_MAX: u64 = 192 << 20;
/// Write timeout: a peer that reads none of its queued bytes for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Request timeout, longer than any wait of the broker itself. A request that takes longer is cancelled.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Settings of the native door.
pub struct Settings {
    /// Maximum duration of the handshake and the hello of a connection.
    pub hello_timeout: Duration,
    /// `true` if peers on other machines may connect without TLS.
    pub allow_plain: bool,
    pub is_login_required: bool,
    /// Windows of a QUIC connection.
    pub windows: Windows,
}

/// Running service of the native protocol.
pub struct Native {
    pub server: Server,
    pub telemetry: Arc<Telemetry>,
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        let Opening { broker, workers, sockets, connections, shutdown, tls, gate } = opening;
        Box::pin(async move {
            let native =
                Native::start(broker, self.hello_timeout, self.is_login_required, workers, connections, shutdown, gate);
            let forward = native.listen(&self, sockets, tls, workers)?;
            Ok(Opened { address: sockets.address(), telemetry: Some(native.telemetry), forward })
        })
    }
}

impl Native {
    /// Starts the service on all workers. It has no listener yet; see [`Native::listen`].
    pub fn start(
        broker: Arc<Broker>,
        hello_timeout: Duration,
        is_login_required: bool,
        workers: &Arc<Workers>,
        connections: Arc<Connections>,
        shutdown: &Shutdown,
        gate: Option<Arc<dyn Gate>>,
    ) -> Self {
        let settings = ServiceSettings {
            requests_per_connection_max: REQUESTS_PER_CONNECTION_MAX,
            frame_bytes_max: HEADER_BYTES + BODY_BYTES_MAX,
            memory_bytes_max: FRAMES_BYTES_MAX,
            outbox_bytes_max: OUTBOX_BYTES_MAX,
            timeouts: Timeouts {
                handshake: hello_timeout,
                first_frame: hello_timeout,
                write: WRITE_TIMEOUT,
                // A subscriber may neither send nor receive anything for days.
                idle: None,
                handler: REQUEST_TIMEOUT,
                ..Timeouts::default()
            },
            ..ServiceSettings::default()
        };
        let protocol = NativeProtocol { doors: broker.doors().clone(), answers: broker.answers().clone() };
        let handler = NativeHandler { broker, is_login_required };
        let service = Service::new(protocol, handler, settings).with_gate(gate);
        let telemetry = service.telemetry.clone();
        Self { server: Server::start(service, workers, connections, shutdown), telemetry }
    }

    /// Serves at all sockets: TCP, QUIC, and the Unix socket if there is one. Returns the function that serves
    /// forwarded connections.
    pub fn listen(&self, settings: &Settings, sockets: &Sockets, tls: &Tls, workers: &Workers) -> io::Result<Forward> {
        let tls = tls.server_config(&[wire::negotiate::ALPN])?;
        let plaintext = if settings.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback };
        if let Some(quic) = sockets.quic(quic::server_config(tls.clone())?, settings.windows, workers)? {
            self.server.listen(quic)?;
        }
        self.server.serve_at(sockets, tls, plaintext)
    }
}
