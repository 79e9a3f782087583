//! Certificates: from PEM files, or made on the spot for development.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate chain and its key.
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    pub fn from_pem(certificate: &Path, key: &Path) -> io::Result<Self> {
        let wrap = |path: &Path, error| io::Error::other(format!("{}: {error}", path.display()));
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrap(certificate, error))?;
        if chain.is_empty() {
            return Err(io::Error::other(format!("{}: no certificate in it", certificate.display())));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| wrap(key, error))?;
        Ok(Self { chain, key })
    }

    /// A new certificate that nobody vouches for, valid for these names.
    pub fn self_signed(names: Vec<String>) -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
        Ok(Self { chain: vec![made.cert.der().clone()], key })
    }

    /// The TLS settings of a server with this identity.
    pub fn server_config(&self, alpn: &[&[u8]]) -> io::Result<Arc<rustls::ServerConfig>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(io::Error::other)?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}
