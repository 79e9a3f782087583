//! Client side of TLS: the servers that a client trusts.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::identity::{Identity, provider, read_certificates};
use super::x509::{Facts, is_version_1};

/// Servers that a client trusts.
pub enum Trust {
    /// Any server with a certificate: for a server on this machine, whose traffic never leaves it, and for tests.
    Anyone,
    /// Servers whose certificates come from these roots.
    Roots(Roots),
}

/// Certificates that a client trusts: those of issuers, and those of servers.
pub struct Roots {
    issuers: RootCertStore,
    /// Certificates of servers that are trusted without an issuer. `openssl req -x509` marks a server's own certificate
    /// as that of an issuer, which the verification of a chain refuses.
    exact: Vec<CertificateDer<'static>>,
    refusal: Refusal,
}

impl From<RootCertStore> for Roots {
    fn from(issuers: RootCertStore) -> Self {
        Self { issuers, exact: Vec::new(), refusal: Refusal::default() }
    }
}

impl Roots {
    /// Reads the certificates of a PEM file.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let wrap = |error: &dyn std::error::Error| io::Error::other(format!("{}: {error}", path.display()));
        let mut issuers = RootCertStore::empty();
        let exact = read_certificates(path)?;
        for certificate in &exact {
            issuers.add(certificate.clone()).map_err(|error| wrap(&error))?;
        }
        Ok(Self { issuers, exact, refusal: Refusal::default() })
    }

    /// Returns the place that receives the reason of a refusal, once these roots are in use.
    pub fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }
}

/// Reason why the certificate of the last server was refused. QUIC reports TLS errors only as text.
#[derive(Clone, Debug, Default)]
pub struct Refusal(Arc<Mutex<Option<Fault>>>);

impl Refusal {
    /// Returns the fault of a certificate, if one was refused since the last call.
    pub fn take(&self) -> Option<Fault> {
        self.0.lock().take()
    }
}

/// Fault of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The certificate is not signed by a trusted issuer.
    UnknownIssuer,
    /// The certificate is for other hosts.
    OtherHost {
        /// Host that the client wanted to reach.
        asked: String,
        /// Hosts and addresses in the certificate.
        names: Vec<String>,
    },
    /// The certificate is not valid at this time, for this reason.
    Time(String),
    /// Any other fault.
    Other(String),
}

impl Fault {
    fn of(error: &rustls::Error, certificate: &CertificateDer<'_>, server: &ServerName<'_>, now: UnixTime) -> Self {
        use rustls::CertificateError as E;
        let rustls::Error::InvalidCertificate(error) = error else {
            return Self::Other(error.to_string());
        };
        let facts = Facts::read(certificate);
        match error {
            E::UnknownIssuer => Self::UnknownIssuer,
            E::NotValidForName | E::NotValidForNameContext { .. } => {
                let names = facts.map(|facts| {
                    let addresses = facts.addresses.iter().map(ToString::to_string);
                    facts.hosts.iter().cloned().chain(addresses).collect()
                });
                Self::OtherHost { asked: server.to_str().into_owned(), names: names.unwrap_or_default() }
            }
            E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. } => {
                let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
                let why = facts.and_then(|facts| facts.expect_valid(now)).err();
                Self::Time(why.map_or_else(|| error.to_string(), |why| why.to_string()))
            }
            // An issuer's certificate is refused before its own issuer is looked up.
            E::Other(_) if facts.is_ok_and(|facts| facts.is_issuer) => Self::UnknownIssuer,
            error => Self::Other(error.to_string()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownIssuer => {
                f.write_str("the server's certificate is self-signed, or signed by an issuer that is not trusted")
            }
            Self::OtherHost { asked, names } if names.is_empty() => {
                write!(
                    f,
                    "the server's certificate names no host, so it is not valid for {asked}: it needs a subjectAltName"
                )
            }
            Self::OtherHost { asked, names } => {
                write!(f, "the server's certificate is for {}, not for {asked}", names.join(", "))
            }
            Self::Time(why) | Self::Other(why) => write!(f, "the server's certificate cannot be used: {why}"),
        }
    }
}

/// Returns the TLS settings of a client.
pub fn client_config(trust: Trust, alpn: &[&[u8]], identity: Option<Identity>) -> io::Result<ClientConfig> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous();
    let builder = match trust {
        Trust::Anyone => builder.with_custom_certificate_verifier(Arc::new(Anyone(provider))),
        Trust::Roots(Roots { issuers, exact, refusal }) => {
            let chains = WebPkiServerVerifier::builder_with_provider(issuers.into(), provider).build();
            let chains = chains.map_err(io::Error::other)?;
            builder.with_custom_certificate_verifier(Arc::new(Trusted { chains, exact, refusal }))
        }
    };
    let mut config = match identity {
        Some(Identity { chain, .. }) if chain.first().is_some_and(|certificate| is_version_1(certificate)) => {
            return Err(io::Error::other(
                "the certificate of this client has version 1: issue it with an extension, for version 3",
            ));
        }
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key).map_err(io::Error::other)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// Trusts certificates in a list, and those of servers with a trusted issuer.
#[derive(Debug)]
struct Trusted {
    chains: Arc<WebPkiServerVerifier>,
    exact: Vec<CertificateDer<'static>>,
    refusal: Refusal,
}

impl Trusted {
    /// Checks a certificate of the list. It needs no issuer, but its name and its dates are checked as usual.
    fn check_exact(
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let encoding = rustls::Error::from(rustls::CertificateError::BadEncoding);
        let Ok(facts) = Facts::read(certificate) else {
            return Err(encoding);
        };
        if let Err(error) = facts.expect_valid(UNIX_EPOCH + Duration::from_secs(now.as_secs())) {
            tracing::debug!(%error, "a trusted certificate is not valid at this time");
            return Err(rustls::CertificateError::Expired.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let checked = if self.exact.iter().any(|trusted| trusted == end_entity) {
            Self::check_exact(end_entity, server_name, now).map(|()| ServerCertVerified::assertion())
        } else {
            self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        checked.inspect_err(|error| {
            *self.refusal.0.lock() = Some(Fault::of(error, end_entity, server_name, now));
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Trusts any certificate, but checks that signatures match its key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
