//! Who is at the other end of a connection.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;

/// What is known of a connection when it opens.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Unlike that of any other connection of the process.
    pub id: u64,
    pub transport: Transport,
    /// Where it comes from; a Unix socket or a pipe comes from this machine.
    pub address: Option<SocketAddr>,
    /// The address of this end, as a peer over TCP reached it.
    pub local: Option<SocketAddr>,
    /// The shard that it lives on.
    pub shard: usize,
    /// The certificate that it showed, as it was sent, with those that vouch for it.
    pub certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
    /// The QUIC connection, for protocols that open streams of their own.
    pub quic: Option<quinn::Connection>,
    /// Whether the peer has said who it is, in a way that satisfies the handler. A protocol may hold those who
    /// have not to tighter limits.
    pub is_known: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    Unix,
    Quic,
    /// A stream in memory.
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
