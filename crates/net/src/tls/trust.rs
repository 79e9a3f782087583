//! The other side of TLS: whom a client believes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Whom a client believes.
pub enum Trust {
    /// Whoever shows a certificate: for a server on this machine, whose bytes never leave it, and for tests.
    Anyone,
    /// Whom these vouch for.
    Roots(RootCertStore),
}

/// The certificates of a PEM file, to be believed.
pub fn roots_of(path: &Path) -> io::Result<RootCertStore> {
    let wrap = |error: &dyn std::error::Error| io::Error::other(format!("{}: {error}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrap(&error))? {
        roots.add(certificate.map_err(|error| wrap(&error))?).map_err(|error| wrap(&error))?;
    }
    if roots.is_empty() {
        return Err(io::Error::other(format!("{}: no certificate in it", path.display())));
    }
    Ok(roots)
}

/// The TLS settings of a client.
pub fn client_config(trust: Trust, alpn: &[&[u8]]) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match trust {
        Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider))),
        Trust::Roots(roots) => builder.with_root_certificates(roots),
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// Believes any certificate, but not a signature that is not of its key.
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
