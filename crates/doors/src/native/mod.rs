//! The native door: QUIC and TCP on the same port number, with the same frames over both.

mod access;
mod caches;
mod codec;
mod connection;
mod errors;
mod groups;
mod login;
mod map;
mod queues;
mod room;
mod security;
mod tenants;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use net::quic::{self, Windows};
use net::service::Timeouts;
use net::telemetry::Telemetry;
use net::tls::Tls;
use net::{Address, Connections, Listener, Plaintext, Server, Service, ServiceSettings, Shutdown, UnixSocket, Workers};
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES};

pub(crate) use access::permissions;
use codec::NativeProtocol;
use connection::NativeHandler;

/// Maximum number of attempts to find a port that is free for both TCP and UDP, if the port is 0.
const FREE_PORT_TRIES_MAX: usize = 10;
/// Maximum number of requests of one stream that wait for their responses, such as fetches and receives.
const REQUESTS_PER_CONNECTION_MAX: usize = 1024;
/// Maximum number of outgoing bytes queued for one connection before its subscriptions pause.
const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes of incomplete frames, over all connections together.
const FRAMES_BYTES_MAX: u64 = 1 << 30;
/// Write timeout: a peer that reads none of its queued bytes for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Request timeout, longer than any wait of the broker itself. A request that takes longer is cancelled.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Settings of the native door.
pub struct Settings {
    pub address: SocketAddr,
    /// Unix socket on which the door listens as well.
    pub unix: Option<UnixSocket>,
    /// Maximum duration of the handshake and the hello of a connection.
    pub hello_timeout: Duration,
    /// `true` if peers on other machines may connect without TLS.
    pub allow_plain: bool,
    pub is_login_required: bool,
    /// Number of QUIC endpoints that share the port; each endpoint is one task.
    pub quic_endpoints: usize,
    pub windows: Windows,
}

/// Running service of the native protocol.
pub struct Native {
    pub server: Server,
    pub telemetry: Arc<Telemetry>,
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        let Opening { broker, workers, connections, shutdown, tls } = opening;
        Box::pin(async move {
            let native =
                Native::start(broker, self.hello_timeout, self.is_login_required, workers, connections, shutdown);
            let address = native.listen(&self, tls, workers)?;
            Ok(Opened { address, telemetry: Some(native.telemetry) })
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
        let service = Service::new(
            NativeProtocol { doors: broker.doors().clone() },
            NativeHandler { broker, is_login_required },
            settings,
        );
        let telemetry = service.telemetry.clone();
        Self { server: Server::start(service, workers, connections, shutdown), telemetry }
    }

    /// Opens the Unix socket, if there is one, and the port for TCP and for QUIC. Returns the bound address.
    pub fn listen(&self, settings: &Settings, tls: &Tls, workers: &Workers) -> io::Result<SocketAddr> {
        let unix = settings.unix.as_ref().map(UnixSocket::bind).transpose()?;
        let tls = tls.server_config(&[wire::negotiate::ALPN])?;
        let quic = quic::server_config(tls.clone())?;
        let mut tries = 1;
        let (address, tcp, quic) = loop {
            match bind(settings, &quic, workers) {
                // A port that is free for TCP may be taken for UDP. In that case another port is tried.
                Err(error)
                    if settings.address.port() == 0
                        && error.kind() == io::ErrorKind::AddrInUse
                        && tries < FREE_PORT_TRIES_MAX =>
                {
                    tries += 1;
                }
                bound => break bound?,
            }
        };
        let plaintext = if settings.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback };
        self.server.listen(tcp.with_tls(tls, plaintext))?;
        self.server.listen(quic)?;
        if let Some(unix) = unix {
            self.server.listen(unix.into())?;
        }
        Ok(address)
    }
}

fn bind(
    settings: &Settings,
    config: &quinn::ServerConfig,
    workers: &Workers,
) -> io::Result<(SocketAddr, Listener, Listener)> {
    let tcp = Listener::tcp(settings.address)?;
    let Address::Tcp(address) = tcp.address()? else {
        return Err(io::Error::other("the listener has no TCP address"));
    };
    let quic = Listener::quic(address, config.clone(), settings.windows, settings.quic_endpoints, workers)?;
    Ok((address, tcp, quic))
}
