//! Certificate authority for tests, and TLS clients that trust it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use net::tls::{Fingerprint, IdentitySource, NamedIdentity};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;

/// Issuer of certificates.
pub struct Authority {
    pub pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate with its key.
pub struct Made {
    pub certificate: String,
    pub key: String,
    pub der: CertificateDer<'static>,
    key_der: Vec<u8>,
    serial: u64,
}

impl Made {
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.der)
    }
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        Self { pem: made.pem(), certificate: made.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for these host names with a common name, valid until this year.
    pub fn issue(&self, common: &str, hosts: &[&str], until: i32) -> Made {
        self.issue_until(common, hosts, date_time_ymd(until, 1, 1).into())
    }

    pub fn issue_until(&self, common: &str, hosts: &[&str], until: SystemTime) -> Made {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common);
        let host = |host: &&str| SanType::DnsName((*host).try_into().expect("a name"));
        params.subject_alt_names = hosts.iter().map(host).collect();
        params.not_after = until.into();
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().expect("a key");
        let made = params.signed_by(&key, &self.issuer).expect("a certificate");
        Made {
            certificate: made.pem(),
            key: key.serialize_pem(),
            der: made.der().clone(),
            key_der: key.serialize_der(),
            serial,
        }
    }

    /// Returns a revocation list with these certificates, in PEM form.
    pub fn revoke(&self, revoked_certs: &[&Made]) -> String {
        let revoked = |made: &&Made| RevokedCertParams {
            serial_number: made.serial.into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).expect("a list").pem().expect("text")
    }

    pub fn server(&self, host: &str) -> Made {
        self.issue(host, &[host], 2100)
    }

    /// Creates a client that trusts this authority and presents the given certificate.
    pub fn client(&self, alpn: &[&[u8]], own: Option<&Made>) -> Arc<ClientConfig> {
        self.client_of(rustls::ALL_VERSIONS, alpn, own)
    }

    pub fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&[u8]],
        own: Option<&Made>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let builder = builder.expect("versions").with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::try_from(own.key_der.clone()).expect("a key");
                builder.with_client_auth_cert(vec![own.der.clone()], key).expect("a client's certificate")
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }
}

/// Folder for the files of identities.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        // Written to another file and renamed, as tools that renew certificates do.
        let path = self.path(name);
        let partial = self.path("partial");
        std::fs::write(&partial, text).expect("written");
        std::fs::rename(partial, &path).expect("moved");
        path
    }

    pub fn put(&self, name: &str, made: &Made) {
        self.write(&format!("{name}.crt"), &made.certificate);
        self.write(&format!("{name}.key"), &made.key);
    }

    pub fn source(&self, name: &str) -> IdentitySource {
        let file = |ending: &str| self.path(&format!("{name}.{ending}"));
        IdentitySource::Files { certificate: file("crt"), key: file("key") }
    }

    /// Writes an identity to files. It serves the names in its certificate.
    pub fn identity(&self, name: &str, made: &Made) -> NamedIdentity {
        self.put(name, made);
        NamedIdentity { source: self.source(name), names: Vec::new() }
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }
}
