//! Contents of a certificate: its names and its validity.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Contents of a certificate.
#[derive(Debug)]
pub(super) struct Facts {
    /// Hosts that it is valid for, in lower case; one may begin with `*.`.
    pub hosts: Vec<String>,
    /// Addresses that it is valid for.
    pub addresses: Vec<IpAddr>,
    /// `true` if it is marked as a certificate of an issuer.
    pub is_issuer: bool,
    /// Names of its subject: its hosts, URIs and e-mail addresses or, if it has none of these, its common name.
    pub names: Vec<String>,
    /// Limits of its validity in seconds since 1970, both inclusive.
    not_before: i64,
    not_after: i64,
}

impl Facts {
    pub fn read(der: &[u8]) -> io::Result<Self> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(io::Error::other)?;
        let mut hosts = Vec::new();
        let mut addresses = Vec::new();
        let mut names = Vec::new();
        if let Some(extension) = certificate.subject_alternative_name().map_err(io::Error::other)? {
            for name in &extension.value.general_names {
                match name {
                    GeneralName::DNSName(host) => hosts.push(host.to_ascii_lowercase()),
                    GeneralName::URI(name) | GeneralName::RFC822Name(name) => names.push((*name).to_owned()),
                    GeneralName::IPAddress(address) => addresses.extend(ip_address(address)),
                    _ => {}
                }
            }
        }
        names.extend(hosts.iter().cloned());
        if names.is_empty() {
            let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
            names.extend(common.map(str::to_owned));
        }
        let validity = certificate.validity();
        let constraints = certificate.basic_constraints().map_err(io::Error::other)?;
        Ok(Self {
            hosts,
            addresses,
            is_issuer: constraints.is_some_and(|constraints| constraints.value.ca),
            names,
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        })
    }

    /// Returns the last moment at which it is valid.
    pub fn expires_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(u64::try_from(self.not_after).unwrap_or_default())
    }

    /// Fails if the certificate is not valid at this time, so that clients would refuse it.
    pub fn expect_valid(&self, now: SystemTime) -> io::Result<()> {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let days = |from: i64, to: i64| to.saturating_sub(from) / 86_400;
        if now > self.not_after {
            let ago = days(self.not_after, now);
            return Err(io::Error::other(format!("the certificate expired {ago} days ago; renew it")));
        }
        if now < self.not_before {
            let ahead = days(now, self.not_before);
            return Err(io::Error::other(format!(
                "the certificate becomes valid in {ahead} days: check the clock of this machine"
            )));
        }
        Ok(())
    }
}

/// Parses an address of four or sixteen bytes.
fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn made(names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "common");
        params.subject_alt_names = names;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2030, 1, 1);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_common_name_counts_only_without_alternative_names() {
        let uri = || SanType::URI("spiffe://a/b".try_into().expect("text"));
        let mail = || SanType::Rfc822Name("a@b.example".try_into().expect("text"));
        let dns = || SanType::DnsName("Node.Example".try_into().expect("text"));
        let facts = Facts::read(&made(vec![uri(), mail(), dns()])).expect("a certificate");
        assert_eq!(facts.names, ["spiffe://a/b", "a@b.example", "node.example"]);
        assert_eq!(facts.hosts, ["node.example"]);
        let facts = Facts::read(&made(vec![])).expect("a certificate");
        assert_eq!((facts.names, facts.hosts), (vec!["common".to_owned()], vec![]));
    }

    #[test]
    fn a_certificate_is_valid_between_its_two_dates() {
        let facts = Facts::read(&made(vec![])).expect("a certificate");
        let at = |seconds| facts.expect_valid(UNIX_EPOCH + Duration::from_secs(seconds)).map_err(|e| e.to_string());
        let begin = 1_577_836_800;
        let end = 1_893_456_000;
        assert_eq!((at(begin), at(end)), (Ok(()), Ok(())));
        assert!(at(begin - 1).is_err_and(|why| why.contains("becomes valid")));
        assert!(at(end + 86_400).is_err_and(|why| why.contains("expired 1 days ago")));
        assert_eq!(facts.expires_at(), UNIX_EPOCH + Duration::from_secs(end));
    }

    proptest! {
        #[test]
        fn damaged_certificates_are_refused_or_read_but_never_panic(at in 0usize..400, byte: u8, cut in 0usize..400) {
            let mut der = made(vec![SanType::DnsName("a.example".try_into().expect("text"))]);
            let at = at % der.len();
            der[at] = byte;
            der.truncate(der.len() - cut % der.len());
            if let Ok(facts) = Facts::read(&der) {
                prop_assert!(facts.names.len() <= der.len());
            }
        }
    }
}
