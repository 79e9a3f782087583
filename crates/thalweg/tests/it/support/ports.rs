//! Ports that a process keeps across its restarts.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// First port. The system assigns only higher ones by itself, so no client gets the port of a broker that restarts.
const FIRST: u16 = 14_000;
/// Ports from [`FIRST`]. Those above are for the nodes of `thalweg cluster demo`.
const COUNT: u16 = 6_000;

/// Returns the first of this many consecutive ports of the loopback address that are free for TCP and UDP. No other
/// test of this process gets them.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run side by side begin at different ports.
    let of_process = (std::process::id() % 60) as u16 * 100;
    loop {
        let at = NEXT.fetch_add(count, Ordering::Relaxed);
        assert!(at < COUNT, "the tests use all ports");
        let port = FIRST + (of_process + at) % COUNT;
        let is_free = |port| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        };
        if (port..port + count).all(is_free) {
            return port;
        }
    }
}
