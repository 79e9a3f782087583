//! Certificates of a cluster: its authority, and one for each node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use consensus::NodeId;
use engine::{Error, ErrorKind, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::seconds;

const DAY: Duration = Duration::from_secs(86_400);
/// Validity of the authority's certificate.
const AUTHORITY_LIFE: Duration = Duration::from_secs(3652 * DAY.as_secs());
/// Validity of a node's certificate.
pub(super) const NODE_CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * DAY.as_secs());
/// Time before its creation from which a certificate is valid: clocks of nodes differ.
const CLOCK_DIFFERENCE: Duration = DAY;

/// Authority of a cluster: its certificate and its key.
pub(crate) struct Authority {
    pub certificate: CertificateDer<'static>,
    key: KeyPair,
    /// Name in its certificate, which follows from the cluster's number.
    name: DistinguishedName,
}

/// Certificate of a node, with its key.
pub(crate) struct Leaf {
    pub certificate: CertificateDer<'static>,
    key: KeyPair,
    pub expires_at: SystemTime,
}

/// Returns the name in the certificate of a node. It is no name of a host: nodes move, and keep their numbers.
pub(crate) fn node_name(cluster: u128, node: NodeId) -> String {
    format!("node-{node}.{cluster:032x}.thalweg")
}

/// Returns the fingerprint of a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
    bytes
}

impl Authority {
    pub fn generate(cluster: u128, now: SystemTime) -> Result<Self> {
        let name = authority_name(cluster);
        let mut params = params(&name, now, AUTHORITY_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.der().clone();
        Ok(Self { certificate, key, name })
    }

    pub fn from_pem(cluster: u128, certificate: &[u8], key: &str) -> Result<Self> {
        Self::of(cluster, certificate_of_pem(certificate)?, KeyPair::from_pem(key).map_err(unreadable_key)?)
    }

    /// Returns the authority with a certificate and a key that another node has sent.
    pub fn from_der(cluster: u128, certificate: &[u8], key: &[u8]) -> Result<Self> {
        let key = PrivatePkcs8KeyDer::from(key.to_vec());
        Self::of(cluster, CertificateDer::from(certificate.to_vec()), KeyPair::try_from(&key).map_err(unreadable_key)?)
    }

    fn of(cluster: u128, certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self> {
        expect_key_of(&certificate, &key)?;
        Ok(Self { certificate, key, name: authority_name(cluster) })
    }

    /// Issues a certificate for a node. It keeps the key of the one `before`.
    pub fn issue(&self, cluster: u128, node: NodeId, before: Option<&Leaf>, now: SystemTime) -> Result<Leaf> {
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, node_name(cluster, node));
        let mut params = params(&name, now, NODE_CERTIFICATE_LIFE);
        let host = node_name(cluster, node).try_into().map_err(failed)?;
        params.subject_alt_names = vec![rcgen::SanType::DnsName(host)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A node is a server for some connections and a client for others.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = match before {
            Some(leaf) => KeyPair::try_from(leaf.key.serialized_der()).map_err(unreadable_key)?,
            None => KeyPair::generate().map_err(failed)?,
        };
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name = self.name.clone();
        let certificate = params.signed_by(&key, &Issuer::from_params(&issuer, &self.key)).map_err(failed)?;
        Leaf::of(certificate.der().clone(), key)
    }

    pub fn to_pem(&self) -> String {
        pem_of(&self.certificate)
    }

    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Returns the private key, in PKCS 8.
    pub fn key_der(&self) -> &[u8] {
        self.key.serialized_der()
    }
}

impl Leaf {
    pub fn from_pem(certificate: &[u8], key: &str) -> Result<Self> {
        Self::of(certificate_of_pem(certificate)?, KeyPair::from_pem(key).map_err(unreadable_key)?)
    }

    fn of(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self> {
        expect_key_of(&certificate, &key)?;
        let expires = parsed(&certificate)?.validity().not_after.timestamp();
        let expires_at = UNIX_EPOCH + Duration::from_secs(u64::try_from(expires).unwrap_or_default());
        Ok(Self { certificate, key, expires_at })
    }

    pub fn to_pem(&self) -> String {
        pem_of(&self.certificate)
    }

    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }
}

fn authority_name(cluster: u128) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("Thalweg cluster {cluster:032x}"));
    name
}

fn params(name: &DistinguishedName, now: SystemTime, life: Duration) -> CertificateParams {
    let at = |time: SystemTime| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds(time));
    let mut params = CertificateParams::default();
    params.distinguished_name = name.clone();
    params.not_before = at(now - CLOCK_DIFFERENCE);
    params.not_after = at(now + life);
    params
}

fn certificate_of_pem(pem: &[u8]) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem).map_err(|error| Error::invalid(format!("it has no certificate: {error}")))
}

fn pem_of(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for at in (0..text.len()).step_by(64) {
        pem += &text[at..text.len().min(at + 64)];
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> Result<X509Certificate<'c>> {
    let (_rest, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| Error::invalid(format!("the certificate cannot be read: {error}")))?;
    Ok(parsed)
}

fn expect_key_of(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<()> {
    if parsed(certificate)?.public_key().subject_public_key.data != key.public_key_raw() {
        return Err(Error::invalid("the key does not belong to the certificate"));
    }
    Ok(())
}

fn unreadable_key(error: rcgen::Error) -> Error {
    Error::invalid(format!("the key cannot be read: {error}"))
}

fn failed(error: rcgen::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("a certificate cannot be issued: {error}"))
}
