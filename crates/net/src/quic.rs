//! QUIC endpoints, with what their transport needs on this machine's loopback and across a network.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::{AckFrequencyConfig, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};

/// Socket buffers that are asked for; the kernel may grant less.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Packets on loopback. Ten of them go out in one segmented send, which must stay below 65,508 bytes.
pub const LOOPBACK_MTU: u16 = 6500;
/// Bytes that may be on the way on loopback before the first acknowledgement. The usual first window is
/// less than two of these packets: a connection that lost its first one could then send nothing that
/// repairs it, and hung in its handshake.
const LOOPBACK_FIRST_WINDOW: u64 = 32 * LOOPBACK_MTU as u64;
const SEGMENTS_PER_SEND: usize = 10;
const _: () = assert!(LOOPBACK_MTU as usize * SEGMENTS_PER_SEND < 65_508);
/// A peer that says nothing for this long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(6);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Packets that one acknowledgement covers, and how long it may wait.
const ACK_THRESHOLD: u32 = 20;
const ACK_DELAY: Duration = Duration::from_millis(2);

/// The bounds of one connection, in bytes and streams.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub connection_receive: u64,
    pub stream_receive: u64,
    pub send: u64,
    pub bidirectional_streams: u32,
    pub unidirectional_streams: u32,
}

/// The settings of a connection to a peer at this address.
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
        // Nothing on the way can carry less, and a burst that overflows a buffer must not be taken for
        // a black hole: the size is fixed and not probed for.
        transport.initial_mtu(LOOPBACK_MTU).min_mtu(LOOPBACK_MTU).mtu_discovery_config(None);
        let mut congestion = quinn::congestion::CubicConfig::default();
        congestion.initial_window(LOOPBACK_FIRST_WINDOW);
        transport.congestion_controller_factory(Arc::new(congestion));
    }
    Arc::new(transport)
}

/// A server's endpoint. To be called on the runtime that shall drive it. With `is_shared`, other
/// endpoints may bind the same address and the kernel spreads connections over them.
pub fn bind_server(address: SocketAddr, config: ServerConfig, is_shared: bool) -> io::Result<quinn::Endpoint> {
    let socket = bind_socket(address, is_shared)?;
    quinn::Endpoint::new(endpoint_config()?, Some(config), socket, Arc::new(quinn::TokioRuntime))
}

/// The crypto settings of a QUIC server.
pub fn server_config(tls: Arc<rustls::ServerConfig>) -> io::Result<ServerConfig> {
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    Ok(ServerConfig::with_crypto(Arc::new(crypto)))
}

/// The endpoint's own settings, the same for servers and clients.
pub fn endpoint_config() -> io::Result<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(LOOPBACK_MTU + 50).map_err(io::Error::other)?;
    Ok(config)
}

/// A UDP socket with large buffers.
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
    // The kernel reports twice what it grants.
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
