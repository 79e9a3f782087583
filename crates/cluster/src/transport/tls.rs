//! TLS between nodes: version 1.3, and nobody but the cluster's own authority is trusted.

use std::sync::Arc;

use engine::{Error, ErrorKind, Result};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use consensus::NodeId;

use crate::identity::{Identity, fingerprint, node_name};

/// Application protocol: a client of another protocol fails in the handshake.
const ALPN: &[u8] = b"thalweg-cluster";

/// TLS of a node, for both directions.
pub(super) struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

impl Tls {
    /// Sessions are not resumed: a resumed one would keep the certificate of before, and nodes connect rarely.
    pub fn new(identity: &Identity) -> Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(identity.authority().certificate.clone()).map_err(failed)?;
        let roots = Arc::new(roots);
        let (chain, key) = identity.presented();

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(failed)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();

        // Without a certificate a program can only ask to join.
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).allow_unauthenticated();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_client_cert_verifier(clients.build().map_err(failed)?)
            .with_single_cert(chain, key)
            .map_err(failed)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Returns the TLS of a program that wants to join: it trusts the authority with this fingerprint.
pub(crate) fn joiner(fingerprint: [u8; 32]) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { fingerprint, provider }))
        .with_no_client_auth();
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Arc::new(client))
}

/// Returns the name by which a connection to a node is verified.
pub(super) fn name_of(cluster: u128, node: NodeId) -> Result<ServerName<'static>> {
    ServerName::try_from(node_name(cluster, node)).map_err(failed)
}

/// Returns `true` if a certificate is that of a node. The handshake has checked the rest of it.
pub(super) fn is_of_node(certificate: &CertificateDer<'_>, cluster: u128, node: NodeId) -> bool {
    let Ok(name) = name_of(cluster, node) else { return false };
    ParsedCertificate::try_from(certificate).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

fn failed(error: impl std::error::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("TLS between nodes cannot be set up: {error}"))
}

/// Trusts the nodes of the cluster whose authority has a fingerprint. Which of them answers does not matter.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = intermediates.iter().find(|sent| fingerprint(sent) == self.fingerprint);
        let authority = authority.ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("nodes speak TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
