//! Address of a broker: `quic://host:port`, `tcp://host:port`, `tls://host:port`, `unix:PATH`, or a pipe in memory.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use engine::{Error, ErrorKind, Result};
use tokio::io::DuplexStream;

/// Function that creates a new connection to a broker in the same process each time it is called.
pub type Pipes = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// Default port.
const DEFAULT_PORT: u16 = 7400;

/// Address of a broker together with its transport.
#[derive(Clone)]
#[non_exhaustive]
pub enum Address {
    /// QUIC: several independent streams, always TLS.
    Quic {
        /// Host name or IP address, without brackets. The certificate must be valid for it.
        host: String,
        /// UDP port.
        port: u16,
    },
    /// TCP without TLS. By default, a broker accepts it only from its own machine.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// TCP with TLS.
    Tls {
        /// Host name or IP address, without brackets. The certificate must be valid for it.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// Unix socket of a broker on this machine.
    Unix {
        /// Path of the socket file.
        path: PathBuf,
    },
    /// Connections in memory to a broker in the same process.
    Pipe(Pipes),
}

impl Address {
    /// Parses `[scheme://]host[:port]` or `unix:PATH`. The default scheme is QUIC, the default port 7400.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(Error::invalid(format!("address '{text}' names no path: write unix:/run/thalweg.sock"))),
                path => Ok(Self::Unix { path: path.into() }),
            };
        }
        if text.contains(',') {
            return Err(Error::invalid(format!("'{text}' is a list of addresses, and here only one is possible")));
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("quic", text));
        let (host, port) = match rest.rsplit_once(':') {
            // A bare IPv6 address contains colons too, but more than one.
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
            other => Err(Error::invalid(format!("address '{text}': '{other}' is not quic, tcp, tls or unix"))),
        }
    }

    /// Host name that the certificate must be valid for.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Quic { host, .. } | Self::Tcp { host, .. } | Self::Tls { host, .. } => host,
            Self::Unix { .. } | Self::Pipe(_) => "localhost",
        }
    }

    /// Returns the port of a broker on this machine; `None` if the address is that of another machine, or has no port.
    pub fn local_port(&self) -> Option<u16> {
        match self {
            Self::Unix { .. } | Self::Pipe(_) => None,
            other => is_local(other.host()).then(|| self.port()),
        }
    }

    /// Returns `true` if both addresses have the same host and port, whatever their transports, or the same path.
    pub fn is_same_broker(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pipe(one), Self::Pipe(other)) => Arc::ptr_eq(one, other),
            (Self::Unix { path: one }, Self::Unix { path: other }) => one == other,
            (Self::Pipe(_) | Self::Unix { .. }, _) | (_, Self::Pipe(_) | Self::Unix { .. }) => false,
            _ => self.host().eq_ignore_ascii_case(other.host()) && self.port() == other.port(),
        }
    }

    /// Returns `true` if both addresses have the same transport, host and port, or the same path.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.is_same_broker(other)
    }

    /// Returns the address of another node of the cluster, whose native door a node at this address has named. It has
    /// the same transport and is no less safe: a client that sends nothing without TLS to another machine does not
    /// begin to, and one that checks the certificate of another machine does not end at its own, where any certificate
    /// is accepted. Returns `None` if there is no such address.
    pub(crate) fn of_node(&self, host: &str, port: u16) -> Option<Self> {
        let host = host.to_owned();
        match self {
            _ if host.is_empty() || is_local(&host) && !is_local(self.host()) => None,
            Self::Tcp { host: used, .. } if is_local(used) && !is_local(&host) => None,
            Self::Quic { .. } => Some(Self::Quic { host, port }),
            Self::Tcp { .. } => Some(Self::Tcp { host, port }),
            Self::Tls { .. } => Some(Self::Tls { host, port }),
            Self::Unix { .. } | Self::Pipe(_) => None,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Quic { port, .. } | Self::Tcp { port, .. } | Self::Tls { port, .. } => *port,
            Self::Unix { .. } | Self::Pipe(_) => 0,
        }
    }

    /// Returns the first address that the name resolves to, preferring IPv4.
    pub(crate) async fn resolve(&self) -> Result<SocketAddr> {
        let (host, port) = match self {
            Self::Quic { host, port } | Self::Tcp { host, port } | Self::Tls { host, port } => (host, *port),
            Self::Unix { .. } | Self::Pipe(_) => {
                return Err(Error::invalid("a Unix socket and a pipe have no network address"));
            }
        };
        let lookup = tokio::net::lookup_host((host.as_str(), port)).await;
        let mut found: Vec<SocketAddr> =
            lookup.map_err(|e| Error::new(ErrorKind::Disconnected, format!("cannot resolve '{host}': {e}")))?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.first().copied().ok_or_else(|| Error::not_found(format!("'{host}' has no address")))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns `true` if the host is this machine's loopback interface.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self {
            Self::Quic { .. } => "quic",
            Self::Tcp { .. } => "tcp",
            Self::Tls { .. } => "tls",
            Self::Unix { path } => return write!(f, "unix:{}", path.display()),
            Self::Pipe(_) => return f.write_str("pipe in this process"),
        };
        let host = self.host();
        let port = self.port();
        // Brackets keep the colons of an IPv6 address apart from the colon before the port.
        if host.contains(':') { write!(f, "{scheme}://[{host}]:{port}") } else { write!(f, "{scheme}://{host}:{port}") }
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
            ("unix:/run/a b.sock", "unix:/run/a b.sock"),
            ("unix:///run/a.sock", "unix:/run/a.sock"),
            ("unix:a.sock", "unix:a.sock"),
        ] {
            assert_eq!(Address::parse(text).map(|a| a.to_string()), Ok(expected.to_owned()));
        }
        for bad in ["http://x", "tcp://", ":1", "x:99999", "a,b", "unix:", "unix://"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
