//! Accepting TCP connections, whatever the system answers.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;
/// A connection that is silent for so long is asked for a sign of life, and then so often.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
/// How long to wait when the system has no descriptors or no memory left.
const BACK_OFF: Duration = Duration::from_millis(50);

/// A listening socket whose accept loop ends only with the process.
pub struct Acceptor {
    listener: TcpListener,
    /// Held so that, with no descriptor left, a connection can still be accepted and closed.
    reserve: Option<File>,
    stats: &'static AcceptStats,
}

/// Counts of all listeners of the process.
#[derive(Default)]
pub struct AcceptStats {
    /// Connections that the system handed over.
    pub accepted: AtomicU64,
    /// Times that the system failed to hand one over.
    pub failed: AtomicU64,
    /// Connections that were closed at once because no descriptor was left for them.
    pub shed: AtomicU64,
}

static STATS: AcceptStats =
    AcceptStats { accepted: AtomicU64::new(0), failed: AtomicU64::new(0), shed: AtomicU64::new(0) };

/// The counts of all listeners.
pub fn stats() -> &'static AcceptStats {
    &STATS
}

impl Acceptor {
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self { listener: TcpListener::from_std(socket.into())?, reserve: open_reserve(), stats: &STATS })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. An error of the system is waited out, logged and counted, never returned:
    /// with no descriptor left, connections are closed rather than left to hang.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    self.stats.accepted.fetch_add(1, Ordering::Relaxed);
                    // A peer that vanished without a word is found out.
                    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
                    let set = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    if let Err(error) = set.and_then(|()| stream.set_nodelay(true)) {
                        tracing::debug!(%peer, %error, "connection went away while it was accepted");
                        continue;
                    }
                    return (stream, peer);
                }
                Err(error) => self.wait_out(error).await,
            }
        }
    }

    async fn wait_out(&mut self, error: io::Error) {
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
        match error.kind() {
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {
                tracing::debug!(%error, "connection went away before it was accepted");
            }
            _ => {
                tracing::warn!(%error, "cannot accept connections; raise `ulimit -n` if descriptors ran out");
                if self.reserve.take().is_some() {
                    if let Ok((stream, _)) = self.listener.accept().await {
                        drop(stream);
                        self.stats.shed.fetch_add(1, Ordering::Relaxed);
                    }
                    self.reserve = open_reserve();
                }
                tokio::time::sleep(BACK_OFF).await;
                if self.reserve.is_none() {
                    self.reserve = open_reserve();
                }
            }
        }
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}
