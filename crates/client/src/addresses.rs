//! Addresses of a broker: one, or those of several nodes of a cluster.

use std::fmt;

use engine::{Error, Result};

use crate::address::Address;

/// Maximum number of addresses in a list.
const ADDRESSES_MAX: usize = 64;

/// One or more addresses that lead to the same broker: those of the nodes of its cluster. A client tries them in turn.
#[derive(Clone, Debug)]
pub struct Addresses(Vec<Address>);

impl Addresses {
    /// Parses addresses that are separated by commas: `a:7400,b:7400`. An address without a scheme has that of the one
    /// before it. A Unix socket is an address by itself, as its path may contain commas.
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with("unix:") || !text.contains(',') {
            return Address::parse(text).map(Self::from);
        }
        let mut addresses: Vec<Address> = Vec::new();
        let mut scheme = "";
        for part in text.split(',').map(str::trim) {
            let address = match part.split_once("://") {
                _ if part.is_empty() => {
                    return Err(Error::invalid(format!("one of the addresses '{text}' is empty: remove a comma")));
                }
                _ if part.starts_with("unix:") => {
                    return Err(Error::invalid(format!(
                        "addresses '{text}': a Unix socket leads to one node, so name it alone"
                    )));
                }
                Some((own, _)) => {
                    scheme = own;
                    Address::parse(part)?
                }
                None if scheme.is_empty() => Address::parse(part)?,
                None => Address::parse(&format!("{scheme}://{part}"))?,
            };
            if !addresses.iter().any(|known| known.is_same(&address)) {
                addresses.push(address);
            }
        }
        match addresses.len() {
            0..=ADDRESSES_MAX => Ok(Self(addresses)),
            count => Err(Error::invalid(format!("a list has at most {ADDRESSES_MAX} addresses, not {count}"))),
        }
    }

    /// Returns the addresses in their order: at least one.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.0.iter()
    }

    /// Returns `true` if the other list names the broker of every address of this one, whatever the transports.
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.0.iter().all(|one| other.0.iter().any(|other| one.is_same_broker(other)))
    }

    pub(crate) fn into_vec(self) -> Vec<Address> {
        self.0
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, address) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            write!(f, "{address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_separated_by_commas_and_share_a_scheme() {
        for (text, expected) in [
            ("a", "quic://a:7400"),
            ("a:7401,b:7401, c:7401", "quic://a:7401,quic://b:7401,quic://c:7401"),
            ("tls://a,b:1,quic://a,b", "tls://a:7400,tls://b:1,quic://a:7400,quic://b:7400"),
            ("tcp://[::1]:1,[::2]:2", "tcp://[::1]:1,tcp://[::2]:2"),
            ("a:1,a:1,quic://A:1", "quic://a:1"),
            ("unix:/run/a,b.sock", "unix:/run/a,b.sock"),
        ] {
            assert_eq!(Addresses::parse(text).map(|a| a.to_string()), Ok(expected.to_owned()));
        }
        let many: Vec<String> = (0..=ADDRESSES_MAX).map(|at| format!("a:{}", at + 1)).collect();
        for bad in ["", ",", "a,", "a,,b", "a,unix:/run/b.sock", "a,http://b", "a,b:99999", &many.join(",")] {
            assert!(Addresses::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_with_another_broker_is_no_part_of_a_list() {
        let list = |text| Addresses::parse(text).expect("valid");
        assert!(list("tls://b").is_part_of(&list("a,b")) && list("b,a").is_part_of(&list("a,b")));
        assert!(!list("a,b").is_part_of(&list("tls://b")) && !list("b:1").is_part_of(&list("a,b")));
    }
}
