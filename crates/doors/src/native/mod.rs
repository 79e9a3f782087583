//! The native door: QUIC and TCP on one port number, the same frames over both.

mod codec;
mod connection;
mod errors;
mod map;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::Broker;
use net::quic::{self, Windows};
use net::shards::Place;
use net::tls::Identity;
use net::{Acceptor, ConnectionPermit, Connections, Drain, Shards};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use connection::Connection;

/// How often another port is tried where any free one will do.
const FREE_PORT_TRIES_MAX: usize = 10;
/// The first byte of a TLS handshake; a hello of this protocol begins with another.
const TLS_HANDSHAKE: u8 = 0x16;

/// How the door is set up.
pub struct Settings {
    pub address: SocketAddr,
    /// How long a connection may take for its handshake and its hello.
    pub hello_timeout: Duration,
    /// Whether a peer that is not on this machine may speak without TLS.
    pub allow_plain: bool,
    /// QUIC endpoints side by side on the port; each is one task.
    pub quic_endpoints: usize,
    pub windows: Windows,
}

/// What all connections of the door share.
pub struct Native {
    broker: Arc<Broker>,
    hello_timeout: Duration,
    allow_plain: bool,
    connection_ids: AtomicU64,
}

impl Native {
    pub fn new(broker: Arc<Broker>, hello_timeout: Duration, allow_plain: bool) -> Arc<Self> {
        Arc::new(Self { broker, hello_timeout, allow_plain, connection_ids: AtomicU64::new(1) })
    }

    fn next_connection_id(&self) -> u64 {
        self.connection_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Serves one byte stream that is neither a socket nor QUIC: a pipe in memory, for a program that
    /// has the broker inside.
    pub async fn serve_pipe(self: Arc<Self>, pipe: impl AsyncRead + AsyncWrite + Send + Unpin, drain: Drain) {
        let (input, output) = tokio::io::split(pipe);
        Connection::new(self, None, None).serve_stream(input, output, drain).await;
    }
}

/// Opens the door. It serves until the drain begins. The address is the bound one.
pub async fn open(
    settings: &Settings,
    broker: Arc<Broker>,
    identity: &Identity,
    connections: Arc<Connections>,
    shards: &Arc<Shards>,
    drain: Drain,
) -> io::Result<SocketAddr> {
    let native = Native::new(broker, settings.hello_timeout, settings.allow_plain);
    let tls = identity.server_config(&[wire::negotiate::ALPN])?;
    let config = quic::server_config(tls.clone())?;
    let mut tries = 1;
    let (acceptor, endpoints) = loop {
        match bind(settings, &config, shards) {
            // A port that is free for TCP may be taken for UDP: then another one will do.
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
    let address = acceptor.local_addr()?;
    for (i, endpoint) in endpoints.into_iter().enumerate() {
        let (native, connections, drain) = (native.clone(), connections.clone(), drain.clone());
        let shard = i % shards.len();
        shards.handle(shard).spawn(accept_quic(
            endpoint,
            config.clone(),
            settings.windows,
            native,
            connections,
            shard,
            drain,
        ));
    }
    tokio::spawn(accept_tcp(acceptor, TlsAcceptor::from(tls), native, connections, shards.clone(), drain));
    Ok(address)
}

/// Binds the port for TCP and for QUIC, whose endpoints live on the shards in turn.
fn bind(
    settings: &Settings,
    config: &quinn::ServerConfig,
    shards: &Shards,
) -> io::Result<(Acceptor, Vec<quinn::Endpoint>)> {
    let acceptor = Acceptor::bind(settings.address)?;
    let address = acceptor.local_addr()?;
    let is_shared = settings.quic_endpoints > 1;
    let endpoints = (0..settings.quic_endpoints).map(|i| {
        let _runtime = shards.handle(i % shards.len()).enter();
        quic::bind_server(address, config.clone(), is_shared)
    });
    let endpoints = endpoints.collect::<io::Result<_>>()?;
    Ok((acceptor, endpoints))
}

async fn accept_tcp(
    mut acceptor: Acceptor,
    tls: TlsAcceptor,
    native: Arc<Native>,
    connections: Arc<Connections>,
    shards: Arc<Shards>,
    mut drain: Drain,
) {
    loop {
        let (socket, peer) = tokio::select! {
            accepted = acceptor.accept() => accepted,
            () = drain.begun() => return,
        };
        let permit = match connections.admit(Some(peer.ip())) {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!(%peer, "refused a connection: {refused}");
                continue;
            }
        };
        let place = shards.place();
        // The socket moves to the runtime of its shard.
        let socket = match socket.into_std() {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%peer, %error, "connection lost while it was placed");
                continue;
            }
        };
        let handle = shards.handle(place.shard).clone();
        let (native, tls, drain) = (native.clone(), tls.clone(), drain.clone());
        handle.spawn(async move {
            match TcpStream::from_std(socket) {
                Ok(socket) => serve_tcp(socket, peer, tls, native, permit, place, drain).await,
                Err(error) => tracing::warn!(%peer, %error, "cannot place a connection"),
            }
        });
    }
}

async fn serve_tcp(
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    native: Arc<Native>,
    _permit: ConnectionPermit,
    place: Place,
    mut drain: Drain,
) {
    let mut first = [0];
    match drain.or_begun(tokio::time::timeout(native.hello_timeout, socket.peek(&mut first))).await {
        Some(Ok(Ok(1))) => {}
        _ => return,
    }
    let connection = Connection::new(native.clone(), Some(place.shard), None);
    if first[0] != TLS_HANDSHAKE {
        if peer.ip().to_canonical().is_loopback() || native.allow_plain {
            connection.serve_socket(socket, drain).await;
        } else {
            tracing::warn!(%peer, "refused a connection without TLS from another machine");
        }
        return;
    }
    // Boxed: a connection without TLS does not pay for the state of one with it.
    Box::pin(serve_tls(socket, peer, tls, native, connection, drain)).await;
}

async fn serve_tls(
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    native: Arc<Native>,
    connection: Arc<Connection>,
    mut drain: Drain,
) {
    match drain.or_begun(tokio::time::timeout(native.hello_timeout, tls.accept(socket))).await {
        Some(Ok(Ok(stream))) => {
            let (input, output) = tokio::io::split(stream);
            connection.serve_stream(input, output, drain).await;
        }
        Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Some(Err(_)) => tracing::debug!(%peer, "TLS handshake took too long"),
        None => tracing::debug!(%peer, "TLS handshake not finished before the shutdown"),
    }
}

async fn accept_quic(
    endpoint: quinn::Endpoint,
    config: quinn::ServerConfig,
    windows: Windows,
    native: Arc<Native>,
    connections: Arc<Connections>,
    shard: usize,
    mut drain: Drain,
) {
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = drain.begun() => None,
        };
        let Some(incoming) = incoming else {
            break;
        };
        let peer = incoming.remote_address();
        let permit = match connections.admit(Some(peer.ip())) {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!(%peer, "refused a connection: {refused}");
                incoming.refuse();
                continue;
            }
        };
        let mut config = config.clone();
        config.transport_config(quic::transport(windows, peer));
        let (native, mut drain) = (native.clone(), drain.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let handshake = async { incoming.accept_with(Arc::new(config))?.await };
            match drain.or_begun(tokio::time::timeout(native.hello_timeout, handshake)).await {
                Some(Ok(Ok(quic))) => Connection::new(native, Some(shard), Some(quic)).serve_quic(drain).await,
                Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "QUIC handshake failed"),
                Some(Err(_)) => tracing::debug!(%peer, "QUIC handshake took too long"),
                None => tracing::debug!(%peer, "QUIC handshake not finished before the shutdown"),
            }
        });
    }
    endpoint.wait_idle().await;
}
