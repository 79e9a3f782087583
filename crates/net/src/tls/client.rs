//! Identity of a client by its certificate, and its admission.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::identity::{provider, read_certificates, read_revocations};
use super::x509::Facts;

/// Admission of clients by their certificates.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    /// PEM file of the certificates that issue client certificates.
    pub roots: PathBuf,
    /// `true` if clients without a certificate are refused. Clients with an invalid certificate always are.
    pub is_required: bool,
    /// Names of which a client needs one, unless it has one of the fingerprints. If both lists are empty, every client
    /// with a certificate from the roots is admitted. Host names are in lower case.
    pub names: Vec<String>,
    /// Fingerprints of which a client needs one, unless it has one of the names.
    pub fingerprints: Vec<Fingerprint>,
    /// PEM file of the revocation lists of the issuers. A certificate whose issuer has no list in it is accepted.
    pub revoked: Option<PathBuf>,
}

/// SHA-256 of a certificate. Its text form has 64 hexadecimal digits, with or without colons between them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of a certificate in DER form.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let sha256 = suite.tls13().map(|suite| suite.common.hash_provider.hash(certificate));
        let mut digest = [0; 32];
        digest.copy_from_slice(sha256.expect("invariant: this is a suite of TLS 1.3").as_ref());
        Self(digest)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error for a text that is not a valid fingerprint.
#[derive(Debug, PartialEq, Eq)]
pub struct NoFingerprint;

impl fmt::Display for NoFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fingerprint is the SHA-256 of a certificate: 64 hexadecimal digits")
    }
}

impl std::error::Error for NoFingerprint {}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let mut digits = text.chars().filter(|c| *c != ':').map(|c| c.to_digit(16));
        let mut digest = [0; 32];
        for byte in &mut digest {
            let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else {
                return Err(NoFingerprint);
            };
            *byte = (high << 4 | low) as u8;
        }
        if digits.next().is_some() { Err(NoFingerprint) } else { Ok(Self(digest)) }
    }
}

/// Identity that a client has proved by a certificate, which was checked in the handshake.
#[derive(Clone)]
pub struct PeerIdentity {
    /// Host names in lower case, URIs and e-mail addresses of the certificate or, if it has none of these, its common
    /// name.
    pub names: Vec<String>,
    /// Fingerprint of the client's certificate.
    pub fingerprint: Fingerprint,
    /// Subject of the certificate (RFC 2253); empty if it cannot be read.
    pub subject: String,
    /// Common name of the subject.
    pub common_name: Option<String>,
    /// Last moment at which the certificate and those between it and its root are valid.
    pub expires_at: SystemTime,
    /// Chain that the client presented, in DER form.
    pub chain: Arc<[Box<[u8]>]>,
    /// For the owner's use: when it last found that the client is admitted. Copies share it.
    pub accepted_in: Arc<AtomicU64>,
}

/// Writes the subject and the fingerprint.
impl fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.subject, self.fingerprint)
    }
}

impl PeerIdentity {
    /// Returns the identity for the result of `peer_certificates` after the handshake; `None` for a client without a
    /// certificate.
    pub fn of_certificates(chain: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        let chain = chain?;
        let certificate = chain.first()?;
        let facts = Facts::read(certificate).inspect_err(|error| {
            tracing::warn!(%error, "cannot read the names in a client's certificate");
        });
        let facts = facts.ok();
        let of_others = chain[1..].iter().filter_map(|issuer| Some(Facts::read(issuer).ok()?.expires_at()));
        let of_own = facts.as_ref().map_or(SystemTime::UNIX_EPOCH, Facts::expires_at);
        let expires_at = of_others.fold(of_own, SystemTime::min);
        let (names, subject, common_name) =
            facts.map_or_else(Default::default, |facts| (facts.names, facts.subject, facts.common_name));
        Some(Self {
            names,
            fingerprint: Fingerprint::of(certificate),
            subject,
            common_name,
            expires_at,
            chain: chain.iter().map(|certificate| certificate.as_ref().into()).collect(),
            accepted_in: Arc::default(),
        })
    }

    /// Returns the identity of the client of a QUIC connection.
    pub fn of_quic(connection: &quinn::Connection) -> Option<Self> {
        let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        Self::of_certificates(Some(&chain))
    }
}

/// Check of clients against the files as they were at one time.
#[derive(Clone, Debug)]
pub(super) struct ClientCheck {
    roots: Vec<CertificateDer<'static>>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    chains: Arc<dyn ClientCertVerifier>,
    allowed: Arc<ClientAuth>,
    /// Second since 1970 in which a refusal by the lists was last logged: at most one line a second is.
    logged_s: Arc<AtomicU64>,
}

impl ClientCheck {
    pub fn load(auth: &Arc<ClientAuth>) -> io::Result<Self> {
        let wrap = |error: &dyn fmt::Display| io::Error::other(format!("{}: {error}", auth.roots.display()));
        let roots = read_certificates(&auth.roots)?;
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(|error| wrap(&error))?;
        }
        let revoked = auth.revoked.as_deref().map_or(Ok(Vec::new()), read_revocations)?;
        let chains = WebPkiClientVerifier::builder_with_provider(store.into(), provider());
        let chains = chains.with_crls(revoked.clone()).allow_unknown_revocation_status();
        let chains = chains.build().map_err(|error| wrap(&error))?;
        Ok(Self { roots, revoked, chains, allowed: auth.clone(), logged_s: Arc::default() })
    }

    /// Returns `true` if both admit the same clients.
    pub fn is_same(&self, other: &Self) -> bool {
        self.roots == other.roots && self.revoked == other.revoked
    }

    pub fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        self.chains.verify_client_cert(certificate, intermediates, now)?;
        let ClientAuth { names, fingerprints, .. } = &*self.allowed;
        if names.is_empty() && fingerprints.is_empty() {
            return Ok(());
        }
        let client = PeerIdentity::of_certificates(Some(std::slice::from_ref(certificate)));
        match client {
            Some(client)
                if fingerprints.contains(&client.fingerprint)
                    || client.names.iter().any(|name| names.contains(name)) =>
            {
                Ok(())
            }
            _ => {
                if self.logged_s.swap(now.as_secs(), Ordering::Relaxed) != now.as_secs() {
                    tracing::warn!(?client, "refused a client whose certificate is valid but not on the list");
                }
                Err(rustls::CertificateError::ApplicationVerificationFailure.into())
            }
        }
    }
}

/// Logs a handshake that failed because of the client's certificate, with the address of the client. Other failures are
/// not logged here.
pub(crate) fn log_refused(peer: SocketAddr, error: &(dyn Error + 'static)) {
    static LOGGED_S: AtomicU64 = AtomicU64::new(0);
    let Some(why) = refused_certificate(error) else { return };
    let now_s = UnixTime::now().as_secs();
    if LOGGED_S.swap(now_s, Ordering::Relaxed) == now_s {
        return;
    }
    let hint = if why.contains("UnsupportedCertVersion") {
        "; it has version 1: issue it with an extension, for version 3"
    } else if why.contains("ApplicationVerificationFailure") {
        "; it is valid, but not in the list of admitted certificates"
    } else {
        ""
    };
    tracing::info!(%peer, "refused a client's certificate: {why}{hint}");
}

/// Returns why a client's certificate was refused; `None` if a handshake failed for another reason. The error of TLS is
/// that of its socket, and QUIC has only its text.
fn refused_certificate(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(quinn::ConnectionError::TransportError(error)) = error.downcast_ref() {
        let is_about = ["invalid peer certificate", "peer sent no certificates"];
        return is_about.iter().any(|begin| error.reason.starts_with(begin)).then(|| error.reason.clone());
    }
    let cause = error.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    let is_about = matches!(cause, rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented);
    is_about.then(|| cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refused_certificates_are_logged_as_such() {
        let of_tls = |error: rustls::Error| refused_certificate(&io::Error::other(error));
        let expired = of_tls(rustls::CertificateError::Expired.into());
        assert!(expired.is_some_and(|why| why.starts_with("invalid peer certificate")));
        assert!(of_tls(rustls::Error::NoCertificatesPresented).is_some_and(|why| why == "peer sent no certificates"));
        assert_eq!(of_tls(rustls::Error::DecryptError), None);
        assert_eq!(refused_certificate(&io::Error::other("reset")), None);
        assert_eq!(refused_certificate(&quinn::ConnectionError::TimedOut), None);
    }

    #[test]
    fn a_fingerprint_reads_as_tools_write_it() {
        let print = Fingerprint::of(&CertificateDer::from(b"abc".to_vec()));
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(print.to_string(), text);
        let with_colons: Vec<String> = text.as_bytes().chunks(2).map(|c| String::from_utf8_lossy(c).into()).collect();
        assert_eq!(with_colons.join(":").to_uppercase().parse(), Ok(print));
        for wrong in ["", "ba78", &text[1..], &format!("{text}00"), &text.replace('a', "g")] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(NoFingerprint), "{wrong}");
        }
    }
}
