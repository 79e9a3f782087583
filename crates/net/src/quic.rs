//! QUIC endpoints, with transport settings for this machine's loopback interface and for a network.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AckFrequencyConfig, AsyncUdpSocket, EndpointConfig, IdleTimeout, Runtime, ServerConfig, TokioRuntime,
    TransportConfig, UdpPoller, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};

/// Requested size of socket buffers; the kernel may grant less.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Size of packets on loopback in bytes. Ten of them are sent in one segmented send, which must stay below 65,508
/// bytes.
pub const LOOPBACK_MTU: u16 = 6500;
/// Bytes that may be in flight on loopback before the first acknowledgement. The default first window is less than two
/// of these packets: a connection that lost its first packet could then send nothing to repair the loss, and would hang
/// in its handshake.
const LOOPBACK_FIRST_WINDOW: u64 = 32 * LOOPBACK_MTU as u64;
const SEGMENTS_PER_SEND: usize = 10;
const _: () = assert!(LOOPBACK_MTU as usize * SEGMENTS_PER_SEND < 65_508);
/// Silence after which a peer is considered gone, and the interval of keep-alive packets.
const IDLE_TIMEOUT: Duration = Duration::from_secs(6);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Number of packets that one acknowledgement covers, and its maximum delay.
const ACK_THRESHOLD: u32 = 20;
const ACK_DELAY: Duration = Duration::from_millis(2);

/// Limits of one connection, in bytes and streams.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Maximum bytes in flight from the peer on the connection.
    pub connection_receive: u64,
    /// Maximum bytes in flight from the peer on one stream.
    pub stream_receive: u64,
    /// Maximum unacknowledged bytes to the peer.
    pub send: u64,
    /// Maximum number of open bidirectional streams of the peer.
    pub bidirectional_streams: u32,
    /// Maximum number of open unidirectional streams of the peer.
    pub unidirectional_streams: u32,
}

/// Returns the transport settings of a connection to a peer with this address.
pub fn transport(windows: Windows, peer: SocketAddr) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let bytes = |n: u64| VarInt::from_u64(n).unwrap_or(VarInt::MAX);
    transport
        .receive_window(bytes(windows.connection_receive))
        .stream_receive_window(bytes(windows.stream_receive))
        .send_window(windows.send)
        .max_concurrent_bidi_streams(windows.bidirectional_streams.into())
        .max_concurrent_uni_streams(windows.unidirectional_streams.into())
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(KEEP_ALIVE));
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(ACK_THRESHOLD.into()).max_ack_delay(Some(ACK_DELAY));
    transport.ack_frequency_config(Some(acks));
    if peer.ip().to_canonical().is_loopback() {
        // No link on the path has a smaller limit, and a burst that overflows a buffer must not be mistaken for a black
        // hole: the size is fixed and not probed.
        transport.initial_mtu(LOOPBACK_MTU).min_mtu(LOOPBACK_MTU).mtu_discovery_config(None);
        let mut congestion = quinn::congestion::CubicConfig::default();
        congestion.initial_window(LOOPBACK_FIRST_WINDOW);
        transport.congestion_controller_factory(Arc::new(congestion));
    }
    Arc::new(transport)
}

/// Binds a server's endpoint. Must be called on the runtime that will drive it. With `is_shared`, other endpoints may
/// bind the same address and the kernel distributes connections over them.
pub fn bind_server(address: SocketAddr, config: ServerConfig, is_shared: bool) -> io::Result<quinn::Endpoint> {
    let socket = bind_socket(address, is_shared)?;
    quinn::Endpoint::new(endpoint_config()?, Some(config), socket, Arc::new(quinn::TokioRuntime))
}

/// Creates the settings of a QUIC server from those of TLS.
pub fn server_config(tls: Arc<rustls::ServerConfig>) -> io::Result<ServerConfig> {
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    Ok(ServerConfig::with_crypto(Arc::new(crypto)))
}

/// Creates the settings of an endpoint, which are the same for servers and clients.
pub fn endpoint_config() -> io::Result<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(LOOPBACK_MTU + 50).map_err(io::Error::other)?;
    Ok(config)
}

/// Binds a UDP socket with large buffers. With `is_shared`, other sockets may bind the same address.
pub fn bind_socket(address: SocketAddr, is_shared: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if is_shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    // The kernel reports twice the granted size.
    let granted = socket.recv_buffer_size()? / 2;
    if granted < SOCKET_BUFFER_BYTES {
        tracing::debug!(
            asked = SOCKET_BUFFER_BYTES,
            granted,
            "the kernel grants a smaller UDP buffer; raise net.core.rmem_max and net.core.wmem_max for heavy QUIC load"
        );
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Bound UDP socket of a server, over which one endpoint after the other serves.
pub(crate) struct QuicSocket {
    socket: UdpSocket,
    /// Endpoint that receives.
    current: Mutex<Option<Arc<OneEndpoint>>>,
}

impl QuicSocket {
    /// Binds this number of sockets at one address; the kernel distributes connections over them.
    pub(crate) fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<Self>> {
        let mut bound: Vec<Self> = Vec::new();
        for _ in 0..count {
            // The first socket finds a free port; the others share it.
            let address = bound.first().map_or(Ok(address), |first| first.socket.local_addr())?;
            bound.push(Self { socket: bind_socket(address, count > 1)?, current: Mutex::default() });
        }
        Ok(bound)
    }

    /// Creates an endpoint, which receives everything from now on. Must be called on the runtime that will drive it.
    ///
    /// Connections of an earlier endpoint may need some time until they have ended, and its task as long. It receives
    /// nothing any more: it would take packets of the new endpoint's clients.
    pub(crate) fn endpoint(&self, config: ServerConfig) -> io::Result<quinn::Endpoint> {
        let runtime = Arc::new(TokioRuntime);
        let inner = runtime.wrap_udp_socket(self.socket.try_clone()?)?;
        let socket = Arc::new(OneEndpoint { inner, is_replaced: AtomicBool::new(false) });
        if let Some(earlier) = self.current.lock().replace(socket.clone()) {
            earlier.is_replaced.store(true, Ordering::Relaxed);
        }
        quinn::Endpoint::new_with_abstract_socket(endpoint_config()?, Some(config), socket, runtime)
    }
}

/// UDP socket from the point of view of one endpoint, which receives until the next one does.
#[derive(Debug)]
struct OneEndpoint {
    inner: Arc<dyn AsyncUdpSocket>,
    is_replaced: AtomicBool,
}

impl AsyncUdpSocket for OneEndpoint {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.is_replaced.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
