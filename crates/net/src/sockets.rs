//! Sockets of a service that are bound once. The service may open and close over them any number of times: connections
//! that arrive in between wait in the queue of the kernel.

use std::io;
use std::net::{SocketAddr, TcpListener};

use crate::{Drain, Workers};
use futures_util::future::join_all;

use crate::accept::{Acceptor, Acceptors, BoundUnix, bind_tcp};
use crate::listen::{Listener, UnixSocket};
use crate::quic::{QuicSocket, Windows};

/// Maximum number of attempts to find a port that is free for both TCP and UDP, if the port is 0.
const FREE_PORT_TRIES_MAX: usize = 10;

/// Addresses of a service.
#[derive(Clone, Debug)]
pub struct Ports {
    /// TCP address. Port 0 selects a free port.
    pub address: SocketAddr,
    /// Unix socket, if there is one.
    pub unix: Option<UnixSocket>,
    /// Number of UDP sockets for QUIC, all with the same port number as TCP. The kernel distributes connections over
    /// them.
    pub quic_sockets: usize,
}

impl From<SocketAddr> for Ports {
    fn from(address: SocketAddr) -> Self {
        Self { address, unix: None, quic_sockets: 0 }
    }
}

/// Bound sockets of a service. Each acceptor or listener that they give out has a duplicate of the socket: dropping it
/// leaves the socket and its queue. The file of the Unix socket is removed when this value and all acceptors at it are
/// dropped.
pub struct Sockets {
    address: SocketAddr,
    tcp: TcpListener,
    unix: Option<BoundUnix>,
    quic: Vec<QuicSocket>,
}

impl Sockets {
    /// Binds all sockets, or none.
    pub fn bind(ports: &Ports) -> io::Result<Self> {
        let unix = ports.unix.as_ref().map(UnixSocket::bind).transpose()?;
        let mut tries = 1;
        loop {
            match bind_ports(ports) {
                // A port that is free for TCP may be taken for UDP. In that case another port is tried.
                Err(error)
                    if ports.address.port() == 0
                        && error.kind() == io::ErrorKind::AddrInUse
                        && tries < FREE_PORT_TRIES_MAX =>
                {
                    tries += 1;
                }
                bound => {
                    let (tcp, quic) = bound?;
                    return Ok(Self { address: tcp.local_addr()?, tcp, unix, quic });
                }
            }
        }
    }

    /// Returns the bound TCP address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns an acceptor at the TCP socket and at the Unix socket. It belongs to the current runtime.
    pub fn acceptors(&self) -> io::Result<Acceptors> {
        let tcp = Acceptors::from(Acceptor::over(self.tcp.try_clone()?)?);
        match &self.unix {
            Some(unix) => Ok(tcp.with_unix(unix.acceptor()?)),
            None => Ok(tcp),
        }
    }

    /// Returns a listener at the TCP socket, without TLS. It belongs to the current runtime.
    pub fn tcp(&self) -> io::Result<Listener> {
        Ok(Acceptor::over(self.tcp.try_clone()?)?.into())
    }

    /// Returns a listener at the Unix socket, if there is one. It belongs to the current runtime.
    pub fn unix(&self) -> io::Result<Option<Listener>> {
        self.unix.as_ref().map(|unix| unix.acceptor().map(Listener::from)).transpose()
    }

    /// Returns a listener with an endpoint over each UDP socket, each a task of one worker; `None` if there are no such
    /// sockets. From now on, endpoints of an earlier listener receive nothing.
    pub fn quic(
        &self,
        config: quinn::ServerConfig,
        windows: Windows,
        workers: &Workers,
    ) -> io::Result<Option<Listener>> {
        let has_quic = !self.quic.is_empty();
        has_quic.then(|| Listener::quic_over(&self.quic, config, windows, workers)).transpose()
    }

    /// Refuses QUIC clients until the drain begins, for a process that cannot serve them now: otherwise they would wait
    /// for the timeout of their handshake. The next listener takes over at any time.
    pub async fn refuse_quic(&self, config: quinn::ServerConfig, mut drain: Drain) -> io::Result<()> {
        let endpoint = |socket: &QuicSocket| socket.endpoint(config.clone());
        let endpoints = self.quic.iter().map(endpoint).collect::<io::Result<Vec<_>>>()?;
        let refuse = async |endpoint: &quinn::Endpoint| {
            while let Some(incoming) = endpoint.accept().await {
                incoming.refuse();
            }
        };
        let _begun = drain.or_begun(join_all(endpoints.iter().map(refuse))).await;
        Ok(())
    }
}

fn bind_ports(ports: &Ports) -> io::Result<(TcpListener, Vec<QuicSocket>)> {
    let tcp = bind_tcp(ports.address)?;
    let quic = QuicSocket::bind(tcp.local_addr()?, ports.quic_sockets)?;
    Ok((tcp, quic))
}
