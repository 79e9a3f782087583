//! Probe of an address where QUIC does not answer: QUIC alone detects that only by a timeout.

use std::io::{self, ErrorKind as IoErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, UdpSocket};

/// Delay before the first probe. A handshake on one machine takes less, and so causes no probe.
const FIRST_PROBE: Duration = Duration::from_millis(10);
/// Time without any answer after which TCP is tried as well.
const TCP_PROBE: Duration = Duration::from_millis(250);
/// Minimum time that QUIC still has after TCP was refused: the QUIC handshake may take as long again.
const GRACE: Duration = Duration::from_millis(20);
/// Datagram that is not a QUIC packet, so that a QUIC endpoint discards it.
const PROBE_PACKET: [u8; 1] = [0];

/// Result of a probe.
pub(crate) enum Found {
    /// The port has no listener, neither for QUIC nor for TCP.
    Nothing,
    /// UDP is refused on the port, and TCP is accepted.
    TcpAlone(TcpStream),
    /// TCP is accepted, and UDP does not answer.
    Tcp(TcpStream),
}

/// Returns `true` if the port is on this machine's loopback interface and no program has bound it for UDP. The kernel
/// reports that when a packet is sent.
pub(crate) fn is_free_here(peer: SocketAddr) -> bool {
    let refusal = || {
        let socket = std::net::UdpSocket::bind(any_of(peer))?;
        socket.connect(peer)?;
        socket.set_nonblocking(true)?;
        socket.send(&PROBE_PACKET)?;
        socket.recv(&mut [0]).map(drop)
    };
    peer.ip().is_loopback() && refusal().is_err_and(|error: io::Error| error.kind() == IoErrorKind::ConnectionRefused)
}

/// Probes TCP on a port that refuses UDP.
pub(crate) async fn look_at_tcp(peer: SocketAddr) -> Found {
    match TcpStream::connect(peer).await {
        Ok(socket) => Found::TcpAlone(socket),
        Err(_) => Found::Nothing,
    }
}

/// Probes the port while QUIC does not answer. Does not return if the result is inconclusive.
pub(crate) async fn look(peer: SocketAddr) -> Found {
    let begin = Instant::now();
    tokio::time::sleep(FIRST_PROBE).await;
    let is_refused = tokio::time::timeout(TCP_PROBE.saturating_sub(begin.elapsed()), is_udp_refused(peer)).await;
    let is_udp_refused = is_refused.unwrap_or(false);
    let asked = Instant::now();
    match TcpStream::connect(peer).await {
        Ok(socket) if is_udp_refused => Found::TcpAlone(socket),
        Ok(socket) => Found::Tcp(socket),
        Err(error) if error.kind() == IoErrorKind::ConnectionRefused => {
            if !is_udp_refused {
                // Only UDP may be let through, by a firewall or from a container.
                tokio::time::sleep(GRACE.max(asked.elapsed() * 2)).await;
            }
            Found::Nothing
        }
        // The result is unknown: QUIC has all the remaining time.
        Err(_) => std::future::pending().await,
    }
}

/// Returns `true` if the peer's system reports that the UDP port is unused. Does not return otherwise.
async fn is_udp_refused(peer: SocketAddr) -> bool {
    match refusal(peer).await {
        Err(error) if error.kind() == IoErrorKind::ConnectionRefused => true,
        // An answer that is not QUIC, or a system that does not report refusals.
        Ok(()) | Err(_) => std::future::pending().await,
    }
}

async fn refusal(peer: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(any_of(peer)).await?;
    socket.connect(peer).await?;
    socket.send(&PROBE_PACKET).await?;
    socket.recv(&mut [0]).await.map(drop)
}

/// Returns the wildcard address of the peer's address family, with any port.
fn any_of(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a port of this machine that is free for TCP and for UDP.
    fn free() -> SocketAddr {
        loop {
            let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
            let address = tcp.local_addr().expect("an address");
            if std::net::UdpSocket::bind(address).is_ok() {
                return address;
            }
        }
    }

    #[tokio::test]
    async fn a_port_that_nothing_has_is_found_at_once() {
        let begin = Instant::now();
        assert!(is_free_here(free()));
        assert!(matches!(look_at_tcp(free()).await, Found::Nothing));
        assert!(matches!(look(free()).await, Found::Nothing));
        assert!(begin.elapsed() < TCP_PROBE, "took {:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn a_port_of_tcp_alone_is_told_from_one_of_both() {
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = tcp.local_addr().expect("an address");
        assert!(matches!(look(address).await, Found::TcpAlone(_)));
        let _udp = UdpSocket::bind(address).await.expect("bound");
        assert!(matches!(look(address).await, Found::Tcp(_)));
    }

    #[tokio::test]
    async fn a_port_of_udp_alone_has_its_time_before_it_counts_as_nothing() {
        let udp = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        assert!(!is_free_here(udp.local_addr().expect("an address")));
        let begin = Instant::now();
        assert!(matches!(look(udp.local_addr().expect("an address")).await, Found::Nothing));
        assert!(begin.elapsed() >= TCP_PROBE);
    }
}
