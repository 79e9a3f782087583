//! Endpoints of pushes, and the operator's rules for allowed endpoints.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use broker::{Door, Doors};
use hyper::Uri;
use hyper::http::uri::Scheme;
use net::http::IpNetwork;

/// Maximum length of a URL.
const URL_BYTES_MAX: usize = 8192;
/// Maximum number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// `http` or `https` URL of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// URL as it was written.
    pub url: String,
    pub is_secure: bool,
    /// Host name, or address without brackets.
    pub host: String,
    pub port: u16,
    /// Host and port as in the `Host` header.
    pub authority: String,
    pub path: String,
}

/// Error for a text that is not a valid endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct NoEndpoint(String);

impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Invalid push endpoint given (endpoint={}). Refer to https://cloud.google.com/pubsub/subscriber#create for \
             more information.",
            self.0
        )
    }
}

impl std::error::Error for NoEndpoint {}

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let wrong = || NoEndpoint(text.chars().take(256).collect());
        if text.len() > URL_BYTES_MAX {
            return Err(wrong());
        }
        // tidy: the message contains the text, which shows the error
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        // A user name and a password before the host would be ignored, so they are refused.
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            url: text.to_owned(),
            is_secure,
            host,
            port: authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }
}

/// Addresses to which messages may be pushed. As text: networks, addresses and names, separated by commas; a name may
/// begin with `*.`, which stands for one or more labels.
///
/// A network allows its addresses for any name that resolves to them. A name allows only public addresses, so that the
/// owner of the name cannot direct the broker into its internal network.
#[derive(Clone, Debug, Default)]
pub struct Allow {
    networks: Vec<IpNetwork>,
    names: Vec<String>,
}

/// Error for a text that is not a list of addresses.
#[derive(Debug, PartialEq, Eq)]
pub struct NoAllow(String);

impl fmt::Display for NoAllow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not an address, a network such as 10.0.0.0/8 or a name such as *.example.com", self.0)
    }
}

impl std::error::Error for NoAllow {}

impl FromStr for Allow {
    type Err = NoAllow;

    fn from_str(text: &str) -> Result<Self, NoAllow> {
        let mut allow = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if let Ok(network) = part.parse() {
                allow.networks.push(network);
                continue;
            }
            let name = part.strip_prefix("*.").unwrap_or(part);
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
                && name.split('.').all(|label| !label.is_empty())
                && name.bytes().any(|byte| byte.is_ascii_alphabetic());
            if !is_name {
                return Err(NoAllow(part.to_owned()));
            }
            allow.names.push(part.to_ascii_lowercase());
        }
        Ok(allow)
    }
}

impl Allow {
    fn allows(&self, host: &str, address: IpAddr) -> bool {
        if self.networks.iter().any(|network| network.contains(address)) {
            return true;
        }
        let matches = |name: &String| match name.strip_prefix('*') {
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => host == name,
        };
        self.names.iter().any(matches) && is_public(address)
    }

    /// Refuses an endpoint without an allowed address, if its addresses are known without a resolver: an address, or a
    /// name that always stands for this machine (RFC 6761, 6.3).
    pub(super) fn check(&self, endpoint: &Endpoint) -> Result<(), String> {
        let host = endpoint.host.as_str();
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) if host == "localhost" || host.ends_with(".localhost") => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            Err(_) => return Ok(()),
        };
        if addresses.into_iter().any(|address| self.allows(host, address)) { Ok(()) } else { Err(not_allowed(host)) }
    }

    /// Resolves an endpoint to the addresses that may be connected to, at least one. Addresses of this broker's own
    /// doors are excluded even if they are allowed: a message would be a command there.
    pub(super) async fn resolve(&self, endpoint: &Endpoint, doors: &Doors) -> io::Result<Vec<SocketAddr>> {
        let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await?;
        self.choose(endpoint, doors, found)
    }

    fn choose(
        &self,
        endpoint: &Endpoint,
        doors: &Doors,
        found: impl Iterator<Item = SocketAddr>,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut allowed = Vec::new();
        let mut refused = None;
        for address in found.take(64) {
            if is_own(doors, address) {
                refused = Some(format!("{address} is a port of this broker: messages cannot be pushed to it"));
            } else if self.allows(&endpoint.host, address.ip()) {
                allowed.push(address);
            } else {
                refused = Some(not_allowed(&address.ip().to_string()));
            }
        }
        allowed.truncate(ADDRESSES_MAX);
        match (allowed.is_empty(), refused) {
            (false, _) => Ok(allowed),
            (true, Some(message)) => Err(io::Error::new(io::ErrorKind::PermissionDenied, message)),
            (true, None) => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        }
    }
}

fn not_allowed(address: &str) -> String {
    format!("{address} is not in pubsub_push_allow: add it to the configuration of the broker")
}

/// Returns `true` if a connection to this address would reach the broker itself.
fn is_own(doors: &Doors, address: SocketAddr) -> bool {
    let has_port = |door| doors.address(door).is_some_and(|door| door.port() == address.port());
    Door::ALL.into_iter().any(has_port) && is_of_this_machine(address.ip())
}

/// Returns `true` if this machine has the address: only its own addresses can be bound.
fn is_of_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

/// Returns `true` if an address is public, and not reserved for a machine, a private network or a special purpose.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let is_shared = a == 100 && (64..128).contains(&b);
            let is_protocol = a == 192 && b == 0 && c == 0;
            let is_benchmark = a == 198 && (18..20).contains(&b);
            !(a == 0
                || a >= 224
                || v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_documentation()
                || is_shared
                || is_protocol
                || is_benchmark)
        }
        // Only global unicast, without documentation addresses and those that embed an IPv4 address.
        IpAddr::V6(v6) => match v6.segments() {
            [0x2002, ..] | [0x2001, 0, ..] | [0x2001, 0x0db8, ..] => false,
            [first, ..] => first & 0xe000 == 0x2000,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_and_others_refused() {
        let endpoint: Endpoint = "https://Example.com/a/b?c=d".parse().expect("a URL");
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.is_secure), ("example.com", 443, true));
        assert_eq!((endpoint.authority.as_str(), endpoint.path.as_str()), ("Example.com", "/a/b?c=d"));
        let endpoint: Endpoint = "http://[::1]:8080".parse().expect("a URL");
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()), ("::1", 8080, "/"));
        for wrong in ["", "/push", "example.com", "ftp://a/", "http://user:pw@a/", "http://", "http://a b/"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
        assert!(format!("http://a/{}", "x".repeat(URL_BYTES_MAX)).parse::<Endpoint>().is_err());
    }

    #[test]
    fn a_name_never_leads_to_an_address_that_only_a_network_allows() {
        let allow: Allow = "10.1.0.0/16, ::1, *.example.com, hooks.test".parse().expect("a list");
        let cases = [
            ("anything", "10.1.2.3", true),
            ("anything", "10.2.0.1", false),
            ("anything", "::ffff:10.1.2.3", true),
            ("anything", "::1", true),
            ("anything", "93.184.216.34", false),
            ("a.example.com", "93.184.216.34", true),
            ("a.b.example.com", "93.184.216.34", true),
            ("example.com", "93.184.216.34", false),
            ("badexample.com", "93.184.216.34", false),
            ("hooks.test", "2606:2800:220:1::1", true),
            ("a.example.com", "10.1.2.3", true),
            ("a.example.com", "127.0.0.1", false),
            ("a.example.com", "::ffff:127.0.0.1", false),
            ("a.example.com", "169.254.169.254", false),
            ("a.example.com", "192.168.1.1", false),
            ("a.example.com", "100.64.0.1", false),
            ("a.example.com", "0.0.0.0", false),
            ("a.example.com", "255.255.255.255", false),
            ("a.example.com", "fd00::1", false),
            ("a.example.com", "fe80::1", false),
            ("a.example.com", "ff02::1", false),
            ("a.example.com", "2002:7f00:1::1", false),
            ("a.example.com", "64:ff9b::7f00:1", false),
        ];
        for (host, address, is_allowed) in cases {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(allow.allows(host, address), is_allowed, "{host} {address}");
        }
        for wrong in ["10.0.0.0/40", "*", "a..b", "http://a", "1.2.3", "*.*.a"] {
            assert!(wrong.parse::<Allow>().is_err(), "{wrong}");
        }
        let nothing: Allow = "".parse().expect("an empty list");
        assert!(!nothing.allows("localhost", [127, 0, 0, 1].into()));
    }

    #[test]
    fn of_the_addresses_of_a_name_only_those_that_are_allowed_are_connected_to() {
        let allow: Allow = "10.0.0.0/8,a.example.com".parse().expect("a list");
        let endpoint: Endpoint = "http://a.example.com/".parse().expect("a URL");
        let of = |ips: &[&str]| -> Vec<SocketAddr> {
            ips.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), 80)).collect()
        };
        let mixed = of(&["127.0.0.1", "10.0.0.1", "169.254.169.254"]);
        let doors = Doors::default();
        assert_eq!(allow.choose(&endpoint, &doors, mixed.into_iter()).expect("one is allowed"), of(&["10.0.0.1"]));
        let refused = allow.choose(&endpoint, &doors, of(&["127.0.0.1"]).into_iter()).expect_err("none is allowed");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("127.0.0.1 is not in pubsub_push_allow"), "{refused}");
        assert!(allow.choose(&endpoint, &doors, std::iter::empty()).is_err());
    }

    #[test]
    fn addresses_are_checked_before_anything_is_pushed_and_names_then() {
        let check = |allow: &str, host: &str| {
            let allow: Allow = allow.parse().expect("a list");
            allow.check(&format!("http://{host}:1/").parse().expect("a URL"))
        };
        for host in ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "LOCALHOST", "a.localhost", "10.0.0.1"] {
            let refused = check("*.example.com,*.localhost,localhost", host).expect_err("not allowed");
            assert!(refused.contains("is not in pubsub_push_allow"), "{refused}");
            assert_eq!(check("127.0.0.0/8,::1,10.0.0.0/8", host), Ok(()), "{host}");
        }
        assert_eq!(check("::1", "localhost"), Ok(()), "one of its addresses is enough");
        assert_eq!(check("", "a.example.com"), Ok(()), "its addresses may change");
    }

    #[test]
    fn nothing_is_pushed_to_the_broker_itself_regardless_of_the_allow_list() {
        let allow: Allow = "0.0.0.0/0, ::/0".parse().expect("a list");
        let endpoint: Endpoint = "http://anything.example/".parse().expect("a URL");
        let doors = Doors::default();
        doors.opened(Door::Redis, ([0, 0, 0, 0], 6379).into());
        let chosen = |address: &str| {
            let address: SocketAddr = address.parse().expect("an address");
            allow.choose(&endpoint, &doors, std::iter::once(address))
        };
        let own =
            ["127.0.0.1:6379", "127.1.2.3:6379", "0.0.0.0:6379", "[::1]:6379", "[::]:6379", "[::ffff:127.0.0.1]:6379"];
        for address in own {
            let refused = chosen(address).expect_err(address);
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            assert!(refused.to_string().contains("is a port of this broker"), "{refused}");
        }
        for other in ["127.0.0.1:6380", "192.0.2.1:6379"] {
            assert!(chosen(other).is_ok(), "{other}");
        }
    }
}
