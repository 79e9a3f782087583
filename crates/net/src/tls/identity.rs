//! A certificate chain with its key: from PEM files, or made on the spot for development.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Identity {
    /// The certificate itself first, then those that vouch for it.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    pub fn from_pem(certificate: &Path, key: &Path) -> io::Result<Self> {
        let chain = read_certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| io::Error::other(format!("{}: {error}", key.display())))?;
        Ok(Self { chain, key })
    }

    /// A new certificate that nobody vouches for, valid for these names.
    pub fn self_signed(names: Vec<String>) -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
        Ok(Self { chain: vec![made.cert.der().clone()], key })
    }

    /// The TLS settings of a server that has this identity and never another.
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

    /// The same, ready to sign. Refused where the key is not that of the certificate.
    pub(super) fn certified(&self) -> Result<CertifiedKey, rustls::Error> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &provider())
    }
}

/// The one crypto provider.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// All certificates of a PEM file, of which there is at least one.
pub(super) fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    if certificates.is_empty() {
        return Err(io::Error::other(format!("{}: no certificate in it", path.display())));
    }
    Ok(certificates)
}
