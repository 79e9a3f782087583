//! Where connections come from: one kind of listener for TCP, TLS, Unix sockets and QUIC.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use crate::Shards;
use crate::accept::{Acceptor, UnixAcceptor};
use crate::quic::{self, Windows};

/// Who may speak without TLS. Where a listener has a certificate, the first byte tells which it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plaintext {
    Refused,
    /// Peers on this machine.
    #[default]
    FromLoopback,
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

/// A bound address that connections come to.
pub struct Listener(pub(crate) Kind);

pub(crate) enum Kind {
    Tcp { acceptor: Acceptor, tls: Option<TlsOffer> },
    Unix(UnixAcceptor),
    Quic { endpoints: Vec<quinn::Endpoint>, config: quinn::ServerConfig, windows: Windows },
}

/// How TLS is spoken on a listener for TCP.
#[derive(Clone)]
pub(crate) struct TlsOffer {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) plaintext: Plaintext,
}

/// Where a listener is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
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
    /// Plain TCP. Port 0 takes a free one.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Self(Kind::Tcp { acceptor: Acceptor::bind(address)?, tls: None }))
    }

    /// TLS on a listener for TCP, and without it for whom `plaintext` says.
    pub fn with_tls(self, config: Arc<ServerConfig>, plaintext: Plaintext) -> Self {
        match self.0 {
            Kind::Tcp { acceptor, .. } => {
                let tls = Some(TlsOffer { acceptor: TlsAcceptor::from(config), plaintext });
                Self(Kind::Tcp { acceptor, tls })
            }
            other => Self(other),
        }
    }

    /// A Unix socket that only this user may connect to. A socket that nobody listens on any more is replaced.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Self::unix_for(path, 0o600)
    }

    /// A Unix socket with the permissions `mode`.
    pub fn unix_for(path: &Path, mode: u32) -> io::Result<Self> {
        Ok(Self(Kind::Unix(UnixAcceptor::bind(path, mode)?)))
    }

    /// QUIC, by so many endpoints side by side, each a task of one shard; the kernel spreads connections over them.
    pub fn quic(
        address: SocketAddr,
        config: quinn::ServerConfig,
        windows: Windows,
        endpoints: usize,
        shards: &Shards,
    ) -> io::Result<Self> {
        let mut bound: Vec<quinn::Endpoint> = Vec::new();
        for i in 0..endpoints.max(1) {
            let _runtime = shards.handle(i).enter();
            // A free port is found once; the others share it.
            let address = bound.first().map_or(Ok(address), quinn::Endpoint::local_addr)?;
            bound.push(quic::bind_server(address, config.clone(), endpoints > 1)?);
        }
        Ok(Self(Kind::Quic { endpoints: bound, config, windows }))
    }

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
