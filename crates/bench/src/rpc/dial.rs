//! Connections of a load.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use net::quic;
use net::tls::trust;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{RecvStream, SendStream};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::Join;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ALPN;
use super::server::WINDOWS;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Address to which a load connects.
#[derive(Clone, Debug)]
pub enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Tls(Secure),
    Quic(Secure),
}

#[derive(Clone, Debug)]
pub struct Secure {
    pub address: SocketAddr,
    /// Name that the certificate has to contain.
    pub name: String,
    pub trust: Trust,
}

#[derive(Clone, Debug)]
pub enum Trust {
    /// Any certificate: for certificates that were generated.
    Anyone,
    /// Certificates that an authority in a PEM file has signed.
    File(PathBuf),
}

impl Target {
    /// Returns the name of the transport, for reports.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "unix",
            Self::Tls(_) => "tls",
            Self::Quic(_) => "quic",
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => path.display().to_string(),
            Self::Tls(secure) | Self::Quic(secure) => secure.address.to_string(),
        }
    }
}

/// Open connection.
pub(super) enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    Quic(Quic),
}

/// Stream of a QUIC connection with a dedicated socket.
pub(super) struct Quic {
    pub stream: Join<RecvStream, SendStream>,
    pub connection: quinn::Connection,
    pub endpoint: quinn::Endpoint,
}

/// State that all connections to a target share.
pub(super) struct Dialer {
    target: Target,
    tls: Option<Arc<ClientConfig>>,
}

impl Dialer {
    pub(super) fn new(target: Target) -> io::Result<Self> {
        let tls = match &target {
            Target::Tcp(_) | Target::Unix(_) => None,
            Target::Tls(secure) => Some(client_config(&secure.trust, &[])?),
            Target::Quic(secure) => Some(client_config(&secure.trust, &[ALPN])?),
        };
        Ok(Self { target, tls: tls.map(Arc::new) })
    }

    pub(super) async fn connect(&self) -> io::Result<Link> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect_now()).await;
        connected.map_err(|elapsed| io::Error::new(io::ErrorKind::TimedOut, elapsed)).flatten().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot connect to {}: {error}", self.target.place()))
        })
    }

    async fn connect_now(&self) -> io::Result<Link> {
        Ok(match (&self.target, &self.tls) {
            (Target::Unix(path), _) => Link::Unix(UnixStream::connect(path).await?),
            (Target::Tls(secure), Some(tls)) => {
                let name = ServerName::try_from(secure.name.clone()).map_err(io::Error::other)?;
                let socket = tcp(secure.address).await?;
                Link::Tls(Box::new(TlsConnector::from(tls.clone()).connect(name, socket).await?))
            }
            (Target::Quic(secure), Some(tls)) => Link::Quic(connect_quic(secure, tls.clone()).await?),
            (Target::Tcp(address), _) => Link::Tcp(tcp(*address).await?),
            (Target::Tls(_) | Target::Quic(_), None) => return Err(io::Error::other("no settings for TLS")),
        })
    }
}

async fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

async fn connect_quic(secure: &Secure, tls: Arc<ClientConfig>) -> io::Result<Quic> {
    let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(quic::transport(WINDOWS, secure.address));
    // If the peer is on this machine, packets are larger than those that another machine can receive.
    let local = match (secure.address.is_ipv6(), secure.address.ip().is_loopback()) {
        (false, true) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        (false, false) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (true, true) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        (true, false) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = quic::bind_socket(SocketAddr::new(local, 0), false)?;
    let endpoint = quinn::Endpoint::new(quic::endpoint_config()?, None, socket, Arc::new(quinn::TokioRuntime))?;
    let connecting = endpoint.connect_with(config, secure.address, &secure.name).map_err(io::Error::other)?;
    let connection = connecting.await?;
    let (send, receive) = connection.open_bi().await?;
    Ok(Quic { stream: tokio::io::join(receive, send), connection, endpoint })
}

fn client_config(trust: &Trust, alpn: &[&[u8]]) -> io::Result<ClientConfig> {
    let trust = match trust {
        Trust::Anyone => trust::Trust::Anyone,
        Trust::File(path) => trust::Trust::Roots(trust::Roots::of_file(path)?),
    };
    trust::client_config(trust, alpn, None)
}
