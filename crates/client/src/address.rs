//! Where a broker is and how to reach it: `quic://host:port`, `tcp://`, `tls://`, or a pipe in memory.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use engine::{Error, ErrorKind, Result};
use tokio::io::DuplexStream;

/// Makes a new connection to a broker in the same process each time it is called.
pub type Pipes = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// The port where none is named.
const DEFAULT_PORT: u16 = 7400;

#[derive(Clone)]
#[non_exhaustive]
pub enum Address {
    /// QUIC: several independent streams, always TLS.
    Quic {
        host: String,
        port: u16,
    },
    /// TCP without TLS. A broker takes this from its own machine only, unless told otherwise.
    Tcp {
        host: String,
        port: u16,
    },
    /// TCP with TLS.
    Tls {
        host: String,
        port: u16,
    },
    Pipe(Pipes),
}

impl Address {
    /// Reads `[scheme://]host[:port]`. Without a scheme it is QUIC.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("quic", text));
        let (host, port) = match rest.rsplit_once(':') {
            // A bare IPv6 address has colons too, but then more than one.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let wrong =
                    || Error::invalid(format!("address '{text}': a port is a number up to 65535, not '{port}'"));
                let port = port.parse().ok().ok_or_else(wrong)?;
                (host, port)
            }
            _ => (rest, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(Error::invalid(format!("address '{text}' names no host")));
        }
        match scheme {
            "quic" => Ok(Self::Quic { host, port }),
            "tcp" => Ok(Self::Tcp { host, port }),
            "tls" => Ok(Self::Tls { host, port }),
            other => Err(Error::invalid(format!("address '{text}': '{other}' is none of quic, tcp, tls"))),
        }
    }

    /// The host's name, which a certificate has to carry.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Quic { host, .. } | Self::Tcp { host, .. } | Self::Tls { host, .. } => host,
            Self::Pipe(_) => "localhost",
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Quic { port, .. } | Self::Tcp { port, .. } | Self::Tls { port, .. } => *port,
            Self::Pipe(_) => 0,
        }
    }

    /// The first address that the name resolves to, IPv4 before IPv6.
    pub(crate) async fn resolve(&self) -> Result<SocketAddr> {
        let (host, port) = match self {
            Self::Quic { host, port } | Self::Tcp { host, port } | Self::Tls { host, port } => (host, *port),
            Self::Pipe(_) => return Err(Error::invalid("a pipe has no network address")),
        };
        let lookup = tokio::net::lookup_host((host.as_str(), port)).await;
        let mut found: Vec<SocketAddr> =
            lookup.map_err(|e| Error::new(ErrorKind::Disconnected, format!("cannot resolve '{host}': {e}")))?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.first().copied().ok_or_else(|| Error::not_found(format!("'{host}' has no address")))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self {
            Self::Quic { .. } => "quic",
            Self::Tcp { .. } => "tcp",
            Self::Tls { .. } => "tls",
            Self::Pipe(_) => return f.write_str("pipe in this process"),
        };
        let (host, port) = (self.host(), self.port());
        // As it is written: the colons of an IPv6 address are none before a port.
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}"),
            false => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_and_a_port() {
        for (text, expected) in [
            ("127.0.0.1:7000", "quic://127.0.0.1:7000"),
            ("tcp://localhost", "tcp://localhost:7400"),
            ("tls://example.org:1", "tls://example.org:1"),
            ("[::1]:9", "quic://[::1]:9"),
            ("::1", "quic://[::1]:7400"),
        ] {
            assert_eq!(Address::parse(text).map(|a| a.to_string()), Ok(expected.to_owned()));
        }
        for bad in ["http://x", "tcp://", ":1", "x:99999"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
