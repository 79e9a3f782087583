//! Identity of a site: its key, and TLS in which both sides of a link prove theirs.
//!
//! The certificate is only a wrapper of the key: it is generated at each start and never expires. The handshake proves
//! that the peer has the key of its certificate; whether this key is that of a member is decided after it.

use std::io;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use engine::mesh::{SiteKey, SiteName};
use engine::{Error, ErrorKind, Result};
use net::quic::server_config;
use net::tls::trust::{Trust, client_config};
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use rustls::DistinguishedName;
use rustls::client::Resumption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, ServerConfig, SignatureScheme};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use zeroize::Zeroizing;

use crate::frame::ALPN;

/// Name of every site in its certificate. It is not checked: a site is recognized by its key.
pub(crate) const SERVER_NAME: &str = "site.thalweg";

/// Identity of this site.
pub(crate) struct Identity {
    pub site: SiteName,
    pub key: SiteKey,
    certificate: CertificateDer<'static>,
    pair: KeyPair,
}

impl Identity {
    /// Generates a key.
    pub fn generate(site: SiteName) -> Result<Self> {
        Self::of(site, KeyPair::generate().map_err(failed)?)
    }

    /// Restores an identity from its secret.
    pub fn from_secret(site: SiteName, pem: &str) -> Result<Self> {
        Self::of(site, KeyPair::from_pem(pem).map_err(failed)?)
    }

    fn of(site: SiteName, pair: KeyPair) -> Result<Self> {
        let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).map_err(failed)?;
        let certificate = params.self_signed(&pair).map_err(failed)?.der().clone();
        let key = key_of(&pair.subject_public_key_info());
        Ok(Self { site, key, certificate, pair })
    }

    /// Returns the private key as PEM.
    pub fn secret(&self) -> Zeroizing<String> {
        Zeroizing::new(self.pair.serialize_pem())
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pair.serialize_der()))
    }

    /// Returns the settings of QUIC for links that other sites dial.
    pub fn server(&self) -> io::Result<quinn::ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::new(AnyKey(provider)))
            .with_single_cert(vec![self.certificate.clone()], self.private())
            .map_err(io::Error::other)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would not prove the key again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        server_config(Arc::new(config))
    }

    /// Returns the settings of TLS for links that this site dials.
    pub fn client(&self) -> io::Result<Arc<QuicClientConfig>> {
        let identity = net::tls::Identity { chain: vec![self.certificate.clone()], key: self.private() };
        let mut config = client_config(Trust::Anyone, &[ALPN], Some(identity))?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(QuicClientConfig::try_from(config).map_err(io::Error::other)?))
    }
}

/// Returns the key that a peer has proved in the handshake.
pub(crate) fn key_of_peer(connection: &quinn::Connection) -> Option<SiteKey> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let (_rest, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
    Some(key_of(certificate.public_key().raw))
}

fn key_of(public_key_info: &[u8]) -> SiteKey {
    let mut key = [0; 32];
    key.copy_from_slice(digest(&SHA256, public_key_info).as_ref());
    SiteKey::new(key)
}

/// Returns random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the system has no random numbers: {error}")))?;
    Ok(bytes)
}

fn failed(error: rcgen::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("the key of the site cannot be used: {error}"))
}

/// Accepts the certificate of any client that has its key.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("sites speak TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_restored_from_its_secret() {
        let name = SiteName::parse("berlin").expect("a name");
        let identity = Identity::generate(name.clone()).expect("generated");
        let restored = Identity::from_secret(name.clone(), &identity.secret()).expect("restored");
        assert_eq!(restored.key, identity.key);
        let (_rest, certificate) = X509Certificate::from_der(&restored.certificate).expect("a certificate");
        assert_eq!(key_of(certificate.public_key().raw), identity.key, "as its peers compute it");
        assert_ne!(Identity::generate(name).expect("generated").key, identity.key);
    }
}
