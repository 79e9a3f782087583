//! Listeners: one type for TCP, TLS, Unix sockets and QUIC.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use crate::Workers;
use crate::accept::{Acceptor, BoundUnix, UnixAcceptor};
use crate::quic::{QuicSocket, Windows};

/// Peers that may connect without TLS. If a listener has a certificate, the first byte distinguishes TLS from
/// plaintext.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plaintext {
    /// No peer: every connection must use TLS.
    Refused,
    /// Peers on this machine.
    #[default]
    FromLoopback,
    /// All peers.
    FromAnywhere,
}

impl Plaintext {
    pub(crate) fn is_allowed(self, peer: IpAddr) -> bool {
        match self {
            Self::Refused => false,
            Self::FromLoopback => peer.to_canonical().is_loopback(),
            Self::FromAnywhere => true,
        }
    }
}

/// Bound address that accepts connections.
pub struct Listener(pub(crate) Kind);

pub(crate) enum Kind {
    Tcp { acceptor: Acceptor, tls: Option<TlsOffer> },
    Unix(UnixAcceptor),
    Quic { endpoints: Vec<quinn::Endpoint>, config: quinn::ServerConfig, windows: Windows },
}

/// Unix socket of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Path of the socket file.
    pub path: PathBuf,
    /// Permissions of the socket file: a process that may write to it may connect.
    pub mode: u32,
}

impl UnixSocket {
    /// Binds the socket. A stale socket file, which no process listens on, is replaced. The error names the path.
    pub(crate) fn bind(&self) -> io::Result<BoundUnix> {
        BoundUnix::bind(&self.path, self.mode)
            .map_err(|error| io::Error::other(format!("the Unix socket {}: {error}", self.path.display())))
    }
}

impl From<Acceptor> for Listener {
    fn from(acceptor: Acceptor) -> Self {
        Self(Kind::Tcp { acceptor, tls: None })
    }
}

impl From<UnixAcceptor> for Listener {
    fn from(acceptor: UnixAcceptor) -> Self {
        Self(Kind::Unix(acceptor))
    }
}

/// TLS settings of a TCP listener.
#[derive(Clone)]
pub(crate) struct TlsOffer {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) plaintext: Plaintext,
}

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// TCP address, with or without TLS.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// UDP address of a QUIC listener.
    Quic(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Quic(address) => write!(f, "quic://{address}"),
        }
    }
}

impl Listener {
    /// Binds a TCP listener without TLS. Port 0 selects a free port.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Acceptor::bind(address)?.into())
    }

    /// Adds TLS to a TCP listener; peers that `plaintext` allows may still connect without it. Other listeners are
    /// returned unchanged.
    pub fn with_tls(self, config: Arc<ServerConfig>, plaintext: Plaintext) -> Self {
        match self.0 {
            Kind::Tcp { acceptor, .. } => {
                let tls = Some(TlsOffer { acceptor: TlsAcceptor::from(config), plaintext });
                Self(Kind::Tcp { acceptor, tls })
            }
            other => Self(other),
        }
    }

    /// Binds a Unix socket that only this user may connect to. A stale socket file, which no process listens on, is
    /// replaced.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Self::unix_for(path, 0o600)
    }

    /// Binds a Unix socket with the permissions `mode`. A stale socket file is replaced.
    pub fn unix_for(path: &Path, mode: u32) -> io::Result<Self> {
        Ok(Self(Kind::Unix(UnixAcceptor::bind(path, mode)?)))
    }

    /// Binds a QUIC listener with several endpoints on the same port, each a task of one worker; the kernel distributes
    /// connections over them.
    pub fn quic(
        address: SocketAddr,
        config: quinn::ServerConfig,
        windows: Windows,
        endpoints: usize,
        workers: &Workers,
    ) -> io::Result<Self> {
        Self::quic_over(&QuicSocket::bind(address, endpoints.max(1))?, config, windows, workers)
    }

    /// Creates an endpoint over each of these sockets, each a task of one worker.
    pub(crate) fn quic_over(
        sockets: &[QuicSocket],
        config: quinn::ServerConfig,
        windows: Windows,
        workers: &Workers,
    ) -> io::Result<Self> {
        let endpoint = |(i, socket): (usize, &QuicSocket)| {
            let _runtime = workers.handle(i).enter();
            socket.endpoint(config.clone())
        };
        let endpoints = sockets.iter().enumerate().map(endpoint).collect::<io::Result<_>>()?;
        Ok(Self(Kind::Quic { endpoints, config, windows }))
    }

    /// Returns the bound address, with the actual port if port 0 was requested.
    pub fn address(&self) -> io::Result<Address> {
        match &self.0 {
            Kind::Tcp { acceptor, .. } => Ok(Address::Tcp(acceptor.local_addr()?)),
            Kind::Unix(socket) => Ok(Address::Unix(socket.path().to_owned())),
            Kind::Quic { endpoints, .. } => {
                let first = endpoints.first().ok_or_else(|| io::Error::other("no endpoint"))?;
                Ok(Address::Quic(first.local_addr()?))
            }
        }
    }
}
