//! Client address behind proxies, as far as the proxies are trusted.
//!
//! A header is only as trustworthy as the last host that wrote to it: a client may send it too, and a proxy appends its
//! element at the end. So the elements are read from the end, for as long as their authors are trusted.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::HeaderMap;
use hyper::header::{FORWARDED, HeaderName};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Maximum number of proxies in a row that are followed.
const HOPS_MAX: usize = 32;

/// Addresses with a common prefix: `10.0.0.0/8`, `fd00::/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u8,
}

/// Error for a text that is not a valid network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoNetwork(String);

impl fmt::Display for NoNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is neither an address nor a network such as 10.0.0.0/8", self.0)
    }
}

impl std::error::Error for NoNetwork {}

impl FromStr for IpNetwork {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let wrong = || NoNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        // tidy: the parser's error adds nothing to the text
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        // tidy: the parser's error adds nothing to the text
        let bits = bits.map(u8::from_str).transpose().map_err(|_| wrong())?.unwrap_or(bits_max);
        if bits > bits_max { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

impl IpNetwork {
    /// Returns `true` if the address belongs to the network. An IPv4-mapped IPv6 address is treated as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - u32::from(self.bits);
                (own.to_bits() ^ other.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128 - u32::from(self.bits);
                (own.to_bits() ^ other.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Client that made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub address: IpAddr,
    /// `true` if the client used TLS to its first trusted proxy; `None` if no header tells.
    pub is_secure: Option<bool>,
}

/// Returns `true` if a proxy has sent a request for another client, or seems to have done so.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    [FORWARDED, X_FORWARDED_FOR].iter().any(|name| headers.contains_key(name))
}

/// Returns `true` if the address belongs to one of the proxies.
pub(super) fn is_trusted(address: IpAddr, proxies: &[IpNetwork]) -> bool {
    proxies.iter().any(|network| network.contains(address))
}

/// Returns the client of a request that arrived from this peer. Without a trusted proxy it is the peer.
pub(super) fn origin(peer: IpAddr, headers: &HeaderMap, proxies: &[IpNetwork]) -> Origin {
    let is_trusted = |address| is_trusted(address, proxies);
    let peer = peer.to_canonical();
    let unknown = Origin { address: peer, is_secure: None };
    if !is_trusted(peer) {
        return unknown;
    }
    let walk = |hops: Vec<Hop>| {
        let mut origin = unknown;
        for hop in hops {
            let Some(address) = hop.address else {
                break;
            };
            origin = Origin { address, is_secure: hop.is_secure };
            if !is_trusted(address) {
                break;
            }
        }
        origin
    };
    match (headers.contains_key(FORWARDED), headers.contains_key(X_FORWARDED_FOR)) {
        (false, false) => Origin { is_secure: protos(headers).first().copied().flatten(), ..unknown },
        (true, false) => walk(forwarded(headers)),
        (false, true) => walk(x_forwarded(headers)),
        (true, true) => {
            // A proxy maintains one of the two headers and passes the other on as the client wrote it.
            let one = walk(forwarded(headers));
            let other = walk(x_forwarded(headers));
            if one.address == other.address { one } else { unknown }
        }
    }
}

/// Statement of one proxy about the host that it forwards for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hop {
    /// Address of the host; `None` if it is missing or hidden.
    address: Option<IpAddr>,
    is_secure: Option<bool>,
}

/// Returns the elements of a list, from the end, over all headers with this name.
///
/// They are split at every comma. That ignores quotes, but in return a quote that a client has left open cannot swallow
/// the element of a proxy after it.
fn from_the_end<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines: Vec<_> = headers.get_all(name).iter().collect();
    let elements = lines.into_iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    elements.map(|element| std::str::from_utf8(element).unwrap_or_default().trim()).take(HOPS_MAX)
}

/// Returns the elements of the header `Forwarded`, from the end.
fn forwarded(headers: &HeaderMap) -> Vec<Hop> {
    from_the_end(headers, &FORWARDED).map(element).collect()
}

/// Parses `for=192.0.2.1;proto=https;by="[::1]:80"`. A parameter that occurs twice is ignored.
fn element(text: &str) -> Hop {
    let mut found: [Option<Option<String>>; 2] = [None, None];
    for pair in text.split(';') {
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        let known = ["for", "proto"].iter().position(|known| name.trim().eq_ignore_ascii_case(known));
        if let Some(known) = known {
            let is_again = found[known].is_some();
            found[known] = Some(unquote(value.trim()).filter(|_| !is_again));
        }
    }
    let [address, proto] = found.map(Option::flatten);
    Hop { address: address.as_deref().and_then(node), is_secure: proto.as_deref().and_then(is_secure) }
}

/// Returns a token unchanged, or the contents of a quoted string. Returns `None` if the quotes do not match.
fn unquote(text: &str) -> Option<String> {
    let Some(inner) = text.strip_prefix('"') else {
        return (!text.contains('"')).then(|| text.to_owned());
    };
    let mut value = String::new();
    let mut chars = inner.chars();
    loop {
        match chars.next()? {
            '"' => return chars.as_str().is_empty().then_some(value),
            '\\' => value.push(chars.next()?),
            other => value.push(other),
        }
    }
}

/// Parses an address with or without a port. IPv6 is in brackets, or bare as many proxies write it.
fn node(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            let address = host.parse::<std::net::Ipv6Addr>().ok()?;
            (IpAddr::from(address), if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => {
            let (host, port) = text.split_once(':')?;
            (IpAddr::from(host.parse::<std::net::Ipv4Addr>().ok()?), Some(port))
        }
    };
    // A port may also be obfuscated: a word that begins with an underscore.
    let is_port = |port: &str| port.starts_with('_') || port.parse::<u16>().is_ok();
    port.is_none_or(is_port).then_some(host.to_canonical())
}

fn is_secure(proto: &str) -> Option<bool> {
    match proto.to_ascii_lowercase().as_str() {
        "https" | "wss" => Some(true),
        "http" | "ws" => Some(false),
        _ => None,
    }
}

/// Returns the elements of `X-Forwarded-For` with those of `X-Forwarded-Proto`, from the end. If there are fewer of the
/// second, its first element applies to all remaining addresses.
fn x_forwarded(headers: &HeaderMap) -> Vec<Hop> {
    let protos = protos(headers);
    let hop = |(i, text): (usize, &str)| Hop {
        address: node(text),
        is_secure: protos.get(i).or(protos.last()).copied().flatten(),
    };
    from_the_end(headers, &X_FORWARDED_FOR).enumerate().map(hop).collect()
}

fn protos(headers: &HeaderMap) -> Vec<Option<bool>> {
    from_the_end(headers, &X_FORWARDED_PROTO).map(is_secure).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn of(peer: &str, headers: &[(&'static str, &str)]) -> (String, Option<bool>) {
        let proxies = ["10.0.0.0/8", "fd00::/8", "127.0.0.1"].map(|network| network.parse().expect("a network"));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header"));
        }
        let Origin { address, is_secure } = origin(ip(peer), &map, &proxies);
        (address.to_string(), is_secure)
    }

    /// Peer, headers, and the expected client with its scheme.
    type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], &'a str, Option<bool>);

    #[test]
    fn only_trusted_proxies_are_believed() {
        let fwd = "forwarded";
        let xff = "x-forwarded-for";
        let proto = "x-forwarded-proto";
        let cases: [Case<'_>; 21] = [
            ("192.0.2.9", &[(xff, "1.1.1.1"), (proto, "https")], "192.0.2.9", None),
            ("192.0.2.9", &[(fwd, "for=1.1.1.1;proto=https")], "192.0.2.9", None),
            ("10.1.1.1", &[], "10.1.1.1", None),
            ("10.1.1.1", &[(proto, "https")], "10.1.1.1", Some(true)),
            ("::ffff:10.1.1.1", &[(xff, "192.0.2.1")], "192.0.2.1", None),
            // The client wrote all but the last.
            ("10.1.1.1", &[(xff, "1.1.1.1, 192.0.2.1"), (proto, "http")], "192.0.2.1", Some(false)),
            ("10.1.1.1", &[(xff, "1.1.1.1"), (xff, "192.0.2.1")], "192.0.2.1", None),
            ("10.1.1.1", &[(xff, "1.1.1.1, 192.0.2.1, 10.2.2.2")], "192.0.2.1", None),
            ("10.1.1.1", &[(xff, "10.3.3.3, 10.2.2.2")], "10.3.3.3", None),
            ("10.1.1.1", &[(xff, "1.1.1.1, what, 10.2.2.2")], "10.2.2.2", None),
            ("10.1.1.1", &[(xff, "")], "10.1.1.1", None),
            ("10.1.1.1", &[(xff, "192.0.2.1:4711")], "192.0.2.1", None),
            ("10.1.1.1", &[(xff, "2001:db8::1"), (proto, "https")], "2001:db8::1", Some(true)),
            ("fd00::1", &[(fwd, "For=\"[2001:db8::1]:4711\";Proto=HTTPS;by=x")], "2001:db8::1", Some(true)),
            ("fd00::1", &[(fwd, "for=\"[2001:db8::1]:_hidden\"")], "2001:db8::1", None),
            ("10.1.1.1", &[(fwd, "for=1.1.1.1, for=192.0.2.1;proto=http, for=10.2.2.2")], "192.0.2.1", Some(false)),
            ("10.1.1.1", &[(fwd, "for=1.1.1.1, for=_secret, for=10.2.2.2")], "10.2.2.2", None),
            ("10.1.1.1", &[(fwd, "for=1.1.1.1;for=192.0.2.1")], "10.1.1.1", None),
            // A quote that the client has left open does not swallow the element of a proxy.
            ("10.1.1.1", &[(fwd, "for=\"1.1.1.1, for=192.0.2.1")], "192.0.2.1", None),
            // Two headers that disagree: one of them is the client's.
            ("10.1.1.1", &[(fwd, "for=1.1.1.1"), (xff, "192.0.2.1")], "10.1.1.1", None),
            ("10.1.1.1", &[(fwd, "for=192.0.2.1;proto=https"), (xff, "192.0.2.1")], "192.0.2.1", Some(true)),
        ];
        for (peer, headers, address, is_secure) in cases {
            assert_eq!(of(peer, headers), (address.to_owned(), is_secure), "{peer} {headers:?}");
        }
    }

    #[test]
    fn a_network_is_an_address_and_a_number_of_bits() {
        let has = |network: &str, address: &str| network.parse::<IpNetwork>().expect(network).contains(ip(address));
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "203.0.113.1") && !has("0.0.0.0/0", "::1"));
        assert!(has("::/0", "2001:db8::1") && has("fd00::/9", "fd7f::1") && !has("fd00::/9", "fd80::1"));
        assert!(has("192.0.2.1", "::ffff:192.0.2.1") && !has("192.0.2.1", "192.0.2.2"));
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "host"] {
            assert_eq!(wrong.parse::<IpNetwork>(), Err(NoNetwork(wrong.to_owned())));
        }
    }

    fn addresses() -> impl Strategy<Value = IpAddr> {
        prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
            .prop_map(|address| address.to_canonical())
    }

    proptest! {
        #[test]
        fn an_element_reads_as_it_was_written(address in addresses(), port: Option<u16>, secure: bool, quoted: bool) {
            let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
            let host = port.map_or(host.clone(), |port| format!("{host}:{port}"));
            // A token has neither brackets nor colons.
            let host = if quoted || host.contains(':') { format!("\"{host}\"") } else { host };
            let proto = if secure { "https" } else { "http" };
            let hop = element(&format!("proto={proto} ; for={host};by=_x"));
            prop_assert_eq!(hop, Hop { address: Some(address), is_secure: Some(secure) });
        }

        /// Whatever a client sends, the element of the proxy after it decides.
        #[test]
        fn nothing_before_the_last_word_changes_it(
            forged in "[ -~\u{80}-\u{ff}]{0,80}",
            is_one_line: bool,
            is_standard: bool,
        ) {
            let (name, word) = if is_standard {
                (FORWARDED, "for=192.0.2.7;proto=https")
            } else {
                (X_FORWARDED_FOR, "192.0.2.7")
            };
            // One byte per character: non-ASCII bytes in a header are not UTF-8 either.
            let mut forged: Vec<u8> = forged.chars().map(|c| c as u8).filter(|byte| *byte != 0x7f).collect();
            let mut headers = HeaderMap::new();
            if is_one_line {
                forged.extend_from_slice(format!(", {word}").as_bytes());
                headers.append(name, forged.as_slice().try_into().expect("a header"));
            } else {
                headers.append(&name, forged.as_slice().try_into().expect("a header"));
                headers.append(&name, word.parse().expect("a header"));
            }
            let client = origin(ip("10.1.1.1"), &headers, &["10.0.0.0/8".parse().expect("a network")]);
            prop_assert_eq!(client.address, ip("192.0.2.7"));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = hyper::header::HeaderValue::from_bytes(&bytes) {
                headers.append(FORWARDED, value.clone());
                prop_assert!(forwarded(&headers).len() <= HOPS_MAX);
                headers.append(X_FORWARDED_FOR, value);
                prop_assert!(x_forwarded(&headers).len() <= HOPS_MAX);
                origin(ip("10.1.1.1"), &headers, &["10.0.0.0/8".parse().expect("a network")]);
            }
        }
    }
}
