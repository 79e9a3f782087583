//! QUIC endpoints of a site: the one at which other sites reach it, which also dials, and one per address family to
//! dial from if that one cannot.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use net::quic::{Windows, bind_server, bind_socket, endpoint_config, transport};
use parking_lot::Mutex;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, TokioRuntime, VarInt};

use crate::identity::{Identity, SERVER_NAME};

/// Limits of a connection until its peer is known: it can send its first frame, and nothing else.
const STRANGER: Windows = Windows {
    connection_receive: 128 << 10,
    stream_receive: STREAM_RECEIVE,
    send: 32 << 20,
    bidirectional_streams: 1,
    unidirectional_streams: 0,
};
/// Limits of a link. A topic whose records are not taken fills the window of its stream, and the link has room for
/// those of many such topics.
const LINK: Windows = Windows { connection_receive: 256 << 20, unidirectional_streams: 4096, ..STRANGER };
const STREAM_RECEIVE: u64 = 2 << 20;

/// Lets the peer of a connection use it as a link.
pub(crate) fn admit(connection: &quinn::Connection) {
    connection.set_max_concurrent_uni_streams(LINK.unidirectional_streams.into());
    connection.set_receive_window(VarInt::from_u64(LINK.connection_receive).unwrap_or(VarInt::MAX));
}

pub(crate) struct Endpoints {
    listening: Option<Endpoint>,
    dialing: Mutex<Vec<Endpoint>>,
    client: Arc<QuicClientConfig>,
}

impl Endpoints {
    /// Binds the address at which other sites reach this one, if there is one.
    pub fn bind(identity: &Identity, listen: Option<SocketAddr>) -> io::Result<Self> {
        let listening = listen.map(|address| {
            let mut config = identity.server()?;
            config.transport_config(transport(STRANGER, address));
            bind_server(address, config, false)
        });
        let listening = listening.transpose().map_err(|error| {
            let at = listen.map(|address| address.to_string()).unwrap_or_default();
            io::Error::new(error.kind(), format!("mesh = {at}: {error}"))
        })?;
        Ok(Self { listening, dialing: Mutex::default(), client: identity.client()? })
    }

    /// Returns the address at which links are accepted; `None` if this site only dials out.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listening.as_ref().and_then(|endpoint| endpoint.local_addr().ok())
    }

    /// Waits for a site that dials. Never completes if this site only dials out.
    pub async fn accept(&self) -> Option<quinn::Incoming> {
        match &self.listening {
            Some(endpoint) => endpoint.accept().await,
            None => std::future::pending().await,
        }
    }

    /// Begins a connection to a site.
    pub fn dial(&self, peer: SocketAddr) -> io::Result<quinn::Connecting> {
        let mut config = ClientConfig::new(self.client.clone());
        config.transport_config(transport(LINK, peer));
        self.of_family(peer)?.connect_with(config, peer, SERVER_NAME).map_err(io::Error::other)
    }

    /// Returns an endpoint that can send to an address.
    fn of_family(&self, peer: SocketAddr) -> io::Result<Endpoint> {
        let reaches = |endpoint: &&Endpoint| {
            endpoint.local_addr().is_ok_and(|own| {
                let is_local = own.ip().is_loopback() && !peer.ip().is_loopback();
                own.is_ipv4() == peer.is_ipv4() && !is_local
            })
        };
        let mut dialing = self.dialing.lock();
        if let Some(endpoint) = self.listening.iter().chain(dialing.iter()).find(reaches) {
            return Ok(endpoint.clone());
        }
        let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = bind_socket(SocketAddr::new(any, 0), false)?;
        let endpoint = Endpoint::new(endpoint_config()?, None, socket, Arc::new(TokioRuntime))?;
        dialing.push(endpoint.clone());
        Ok(endpoint)
    }

    /// Ends all links.
    pub fn close(&self, code: u32, reason: &str) {
        for endpoint in self.listening.iter().chain(self.dialing.lock().iter()) {
            endpoint.close(code.into(), reason.as_bytes());
        }
    }
}
