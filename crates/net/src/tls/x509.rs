//! Contents of a certificate: its names and its validity.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Version};

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
    /// Subject as RFC 2253 writes it, with the attribute names of Java and OpenSSL.
    pub subject: String,
    /// First common name of its subject.
    pub common_name: Option<String>,
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
        let common: Vec<String> = certificate.subject().iter_common_name().map(text_of).collect();
        if names.is_empty() {
            names.extend(common.iter().cloned());
        }
        let validity = certificate.validity();
        let constraints = certificate.basic_constraints().map_err(io::Error::other)?;
        Ok(Self {
            hosts,
            addresses,
            is_issuer: constraints.is_some_and(|constraints| constraints.value.ca),
            names,
            subject: subject_of(&certificate),
            common_name: common.into_iter().next(),
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

/// Returns `true` for a certificate without extensions, which older tools issue, and TLS here does not accept.
pub(super) fn is_version_1(der: &[u8]) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| certificate.version() == X509Version::V1)
}

/// Attribute types that have a short name in RFC 2253, section 2.3.
const SHORT_NAMES: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// Returns the subject of a certificate: its parts from the last to the first, separated by commas.
fn subject_of(certificate: &X509Certificate<'_>) -> String {
    let parts: Vec<_> = certificate.subject().iter_rdn().collect();
    let of_part = |part: &RelativeDistinguishedName<'_>| {
        let attributes = part.iter().map(|attribute| {
            let oid = attribute.attr_type().to_id_string();
            let name = SHORT_NAMES.iter().find(|(known, _)| *known == oid).map_or(&*oid, |(_, name)| name);
            match attribute.as_str() {
                Ok(text) => format!("{name}={}", escaped(text)),
                Err(_other_alphabet) => format!("{name}={}", text_of(attribute)),
            }
        });
        attributes.collect::<Vec<_>>().join("+")
    };
    parts.into_iter().rev().map(of_part).collect::<Vec<_>>().join(",")
}

/// Returns the value of an attribute. If it is in an alphabet that is not read here, it is written in hexadecimal
/// digits (RFC 2253, section 2.4), so that different values stay different.
fn text_of(attribute: &AttributeTypeAndValue<'_>) -> String {
    match attribute.as_str() {
        Ok(text) => text.to_owned(),
        Err(_other_alphabet) => {
            attribute.as_slice().iter().fold("#".to_owned(), |text, byte| text + &format!("{byte:02x}"))
        }
    }
}

/// Writes a value with backslashes before the characters that have a meaning in a subject (RFC 2253, section 2.4).
fn escaped(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut written = String::new();
    for (at, char) in value.chars().enumerate() {
        let is_special = matches!(char, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || at == 0 && matches!(char, '#' | ' ')
            || at == last && char == ' ';
        if is_special {
            written.push('\\');
        }
        written.push(char);
    }
    written
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
    fn a_subject_is_written_from_its_last_part_to_its_first() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (part, value) in [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Acme, Inc."),
            (DnType::OrganizationalUnitName, "#1 "),
            (DnType::CommonName, "billing"),
        ] {
            params.distinguished_name.push(part, value);
        }
        let key = KeyPair::generate().expect("a key");
        let facts = Facts::read(params.self_signed(&key).expect("a certificate").der()).expect("a certificate");
        assert_eq!(facts.subject, "CN=billing,OU=\\#1\\ ,O=Acme\\, Inc.,C=DE");
        assert_eq!(facts.common_name.as_deref(), Some("billing"));
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
