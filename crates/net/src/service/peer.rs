//! The peer of a connection.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::{OpenConnection, UnixPeer};

/// Properties of a connection that are known when it opens.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Number of the connection, unique in the process.
    pub id: u64,
    /// Entry of the connection in the table of open ones.
    pub entry: Arc<OpenConnection>,
    /// Transport of the connection.
    pub transport: Transport,
    /// Address of the peer; `None` for a Unix socket or a pipe, which come from this machine.
    pub address: Option<SocketAddr>,
    /// Local address that a TCP peer has connected to.
    pub local: Option<SocketAddr>,
    /// Worker that serves the connection.
    pub worker: usize,
    /// Certificate chain that the peer presented, as it was sent.
    pub certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
    /// Process at the other end, if the connection is one of a Unix socket.
    pub process: Option<UnixPeer>,
    /// QUIC connection, for protocols that open their own streams.
    pub quic: Option<quinn::Connection>,
    /// `true` if the peer has identified itself to the handler's satisfaction. A protocol may apply tighter limits to
    /// other peers.
    pub is_known: Cell<bool>,
    /// `true` while the peer still has to log in, for the same purpose.
    pub owes_login: Cell<bool>,
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// TCP without TLS.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// Unix socket.
    Unix,
    /// QUIC, which includes TLS.
    Quic,
    /// Stream in memory.
    Pipe,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("this machine"),
        }
    }
}
