//! Certificate chain with its key: from PEM files, or generated for development.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Certificate chain and its private key.
#[derive(Debug)]
pub struct Identity {
    /// Server certificate first, then its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// Private key of the first certificate.
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads an identity from a PEM file with the chain and one with the key.
    pub fn from_pem(certificate: &Path, key: &Path) -> io::Result<Self> {
        let chain = read_certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| io::Error::other(format!("{}: {error}", key.display())))?;
        Ok(Self { chain, key })
    }

    /// Generates a self-signed certificate for these names.
    pub fn self_signed(names: Vec<String>) -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
        Ok(Self { chain: vec![made.cert.der().clone()], key })
    }

    /// Returns the TLS settings of a server that always has this identity.
    pub fn server_config(&self, alpn: &[&[u8]]) -> io::Result<Arc<rustls::ServerConfig>> {
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(io::Error::other)?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// Returns the identity in the form for signing. Fails if the key does not belong to the certificate.
    pub(super) fn certified(&self) -> Result<CertifiedKey, rustls::Error> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &provider())
    }
}

/// Returns the crypto provider that all TLS of the process uses.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Reads all certificates of a PEM file. Fails if there is none.
pub(super) fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    if certificates.is_empty() {
        return Err(io::Error::other(format!("{}: no certificate in it", path.display())));
    }
    Ok(certificates)
}

/// Reads all revocation lists of a PEM file. Fails if there is none: a damaged file must not let revoked clients in.
pub(super) fn read_revocations(path: &Path) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    let lists = CertificateRevocationListDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    if lists.is_empty() {
        return Err(io::Error::other(format!("{}: no revocation list in it", path.display())));
    }
    Ok(lists)
}
