//! TLS of listeners: certificates by host name, client certificates, and new files without a restart.
//!
//! One [`Tls`] serves any number of listeners, over TCP and QUIC. Each handshake uses the contents of the files as of
//! the last reload, so a reload affects every later handshake and no open connection.

mod client;
mod files;
mod identity;
mod sessions;
pub mod trust;
mod x509;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

pub(crate) use client::log_refused;
pub use client::{ClientAuth, Fingerprint, NoFingerprint, PeerIdentity};
pub use identity::Identity;

use crate::Drain;
use crate::names::Names;
use client::ClientCheck;
use files::Stamp;

use sessions::Sessions;
use x509::Facts;

/// Settings of TLS.
pub struct TlsSettings {
    /// Identities, at least one. The first one also serves clients that request an unknown name or none.
    pub identities: Vec<NamedIdentity>,
    /// `true` if clients that request an unknown name, or none, are refused instead.
    pub refuse_unknown_names: bool,
    /// Admission of clients by certificate; `None` if clients need none.
    pub client_auth: Option<ClientAuth>,
}

/// Identity with the host names that it serves.
pub struct NamedIdentity {
    /// Source of the identity.
    pub source: IdentitySource,
    /// Host names, including `*.domain`. If empty, the names in the certificate apply.
    pub names: Vec<String>,
}

/// Source of an identity.
pub enum IdentitySource {
    /// PEM files, which may be replaced at any time.
    Files {
        /// File with the certificate chain.
        certificate: PathBuf,
        /// File with the private key.
        key: PathBuf,
    },
    /// Identity that never changes.
    Fixed(Identity),
}

impl From<IdentitySource> for TlsSettings {
    /// Creates settings with one identity for every name, and no client certificates.
    fn from(source: IdentitySource) -> Self {
        let identities = vec![NamedIdentity { source, names: Vec::new() }];
        Self { identities, refuse_unknown_names: false, client_auth: None }
    }
}

impl TlsSettings {
    /// Returns the files whose change causes a reload.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let of_identities = self.identities.iter().flat_map(|identity| match &identity.source {
            IdentitySource::Files { certificate, key } => vec![certificate.as_path(), key.as_path()],
            IdentitySource::Fixed(_) => Vec::new(),
        });
        let of_clients = self.client_auth.iter().flat_map(|auth| [Some(auth.roots.as_path()), auth.revoked.as_deref()]);
        of_identities.chain(of_clients.flatten())
    }
}

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reloaded {
    /// New handshakes use the new contents of the files.
    Changed,
    /// The contents of the files have not changed.
    Same,
}

/// Active certificates, and the source of new ones.
pub struct Tls {
    settings: TlsSettings,
    client_auth: Option<Arc<ClientAuth>>,
    current: Arc<Current>,
    seen: Mutex<Seen>,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    /// Called after other clients are admitted than before.
    clients_observer: Mutex<Option<Observer>>,
}

type Observer = Arc<dyn Fn() + Send + Sync>;

/// State of the files when they were last read. Locked for the whole of a reload, so that only one runs at a time.
struct Seen {
    stamps: Vec<Option<Stamp>>,
    /// Reason why they could not be used.
    error: Option<String>,
}

impl Tls {
    /// Reads all files. Fails if a certificate cannot be used, for instance because it has expired.
    pub fn new(settings: TlsSettings) -> io::Result<Arc<Self>> {
        let client_auth = settings.client_auth.clone().map(Arc::new);
        let stamps = files::stamps(settings.files());
        let loaded = Loaded::load(&settings, client_auth.as_ref())?;
        let current = Current {
            loaded: RwLock::new(Arc::new(loaded)),
            clients_generation: Arc::default(),
            has_client_auth: client_auth.is_some(),
            is_client_auth_required: client_auth.as_ref().is_some_and(|auth| auth.is_required),
            algorithms: identity::provider().signature_verification_algorithms,
        };
        Ok(Arc::new(Self {
            settings,
            client_auth,
            current: Arc::new(current),
            seen: Mutex::new(Seen { stamps, error: None }),
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
            clients_observer: Mutex::default(),
        }))
    }

    /// Returns the TLS settings of one listener, over TCP or QUIC, for these application protocols.
    pub fn server_config(&self, alpn: &[&[u8]]) -> io::Result<Arc<rustls::ServerConfig>> {
        let builder = rustls::ServerConfig::builder_with_provider(identity::provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = if self.current.has_client_auth {
            builder.with_client_cert_verifier(self.current.clone())
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_cert_resolver(self.current.clone());
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config.session_storage = Sessions::new(self.current.clients_generation.clone());
        Ok(Arc::new(config))
    }

    /// Reads the files again, all or nothing: if one cannot be used, the previous certificates stay active, and the
    /// error is logged and counted.
    pub fn reload(&self) -> io::Result<Reloaded> {
        self.reload_seen(&mut self.seen.lock())
    }

    fn reload_seen(&self, seen: &mut Seen) -> io::Result<Reloaded> {
        // Taken before the files are read: a concurrent write is detected the next time.
        seen.stamps = files::stamps(self.settings.files());
        let loaded = match Loaded::load(&self.settings, self.client_auth.as_ref()) {
            Ok(loaded) => loaded,
            Err(error) => {
                self.failed_reloads.fetch_add(1, Ordering::Relaxed);
                let why = error.to_string();
                if seen.error.as_ref() != Some(&why) {
                    tracing::error!(%error, "certificates were not reloaded; the previous ones stay active");
                }
                seen.error = Some(why);
                // A damaged certificate of the broker must not keep revoked clients in.
                self.reload_clients();
                return Err(error);
            }
        };
        seen.error = None;
        let before = self.current.loaded.read().clone();
        if before.is_same(&loaded) {
            return Ok(Reloaded::Same);
        }
        let expires_in_days =
            loaded.expires_at.duration_since(SystemTime::now()).map_or(0, |left| left.as_secs() / 86_400);
        self.activate(&before, loaded);
        self.reloads.fetch_add(1, Ordering::Relaxed);
        tracing::info!(expires_in_days, "certificates were reloaded");
        Ok(Reloaded::Changed)
    }

    /// Admits clients by the present roots and revocation lists, beside the server certificates of before.
    fn reload_clients(&self) {
        let before = self.current.loaded.read().clone();
        let clients = self.client_auth.as_ref().map(ClientCheck::load);
        if let Some(Ok(clients)) = clients
            && before.clients.as_ref().is_none_or(|before| !before.is_same(&clients))
        {
            self.activate(&before, Loaded { clients: Some(clients), ..Loaded::clone(&before) });
        }
    }

    fn activate(&self, before: &Loaded, loaded: Loaded) {
        let is_same_check = match (&before.clients, &loaded.clients) {
            (Some(before), Some(now)) => before.is_same(now),
            _ => true,
        };
        *self.current.loaded.write() = Arc::new(loaded);
        if !is_same_check {
            self.current.clients_generation.fetch_add(1, Ordering::AcqRel);
            let observer = self.clients_observer.lock().clone();
            if let Some(observer) = observer {
                observer();
            }
        }
    }

    /// Checks the files at this interval until the drain begins, and reloads them if they have changed. Unusable files
    /// are read again each time.
    pub async fn watch(self: Arc<Self>, interval: Duration, mut drain: Drain) {
        if self.settings.files().next().is_none() {
            return;
        }
        while drain.or_begun(tokio::time::sleep(interval)).await.is_some() {
            let tls = self.clone();
            let looked = tokio::task::spawn_blocking(move || tls.reload_if_changed()).await;
            if let Err(error) = looked {
                tracing::error!(%error, "cannot check for new certificates");
            }
        }
    }

    fn reload_if_changed(&self) {
        let mut seen = self.seen.lock();
        if seen.error.is_none() && seen.stamps == files::stamps(self.settings.files()) {
            return;
        }
        if let Err(error) = self.reload_seen(&mut seen) {
            tracing::debug!(%error, "cannot use the certificates");
        }
    }

    /// Sets the function that is called whenever other clients are admitted than before, so that connected ones can be
    /// checked again. It replaces the previous function.
    pub fn observe_clients(&self, observer: impl Fn() + Send + Sync + 'static) {
        *self.clients_observer.lock() = Some(Arc::new(observer));
    }

    /// Returns `true` if a client with this chain of certificates, in DER form, would be admitted now.
    pub fn admits<'c>(&self, chain: impl IntoIterator<Item = &'c [u8]>) -> bool {
        let loaded = self.current.loaded.read().clone();
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        match (&loaded.clients, &chain[..]) {
            (Some(clients), [certificate, others @ ..]) => clients.check(certificate, others, UnixTime::now()).is_ok(),
            _ => false,
        }
    }

    /// Returns the number of times that new certificates became active.
    pub fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// Returns the number of times that the files could not be used.
    pub fn failed_reloads(&self) -> u64 {
        self.failed_reloads.load(Ordering::Relaxed)
    }

    /// Returns the earliest expiry of the active server certificates.
    pub fn expires_at(&self) -> SystemTime {
        self.current.loaded.read().expires_at
    }
}

/// State that handshakes use.
#[derive(Debug)]
struct Current {
    loaded: RwLock<Arc<Loaded>>,
    /// Generation of the client roots, which grows when clients are checked against other roots.
    clients_generation: Arc<AtomicU64>,
    has_client_auth: bool,
    is_client_auth_required: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Contents of the files at one time.
#[derive(Clone, Debug)]
struct Loaded {
    keys: Vec<Arc<CertifiedKey>>,
    names: Names,
    /// Index of the key for any other name.
    default: Option<usize>,
    clients: Option<ClientCheck>,
    expires_at: SystemTime,
}

impl Loaded {
    fn load(settings: &TlsSettings, client_auth: Option<&Arc<ClientAuth>>) -> io::Result<Self> {
        let now = SystemTime::now();
        let mut loaded = Self {
            keys: Vec::new(),
            names: Names::default(),
            default: (!settings.refuse_unknown_names).then_some(0),
            clients: client_auth.map(ClientCheck::load).transpose()?,
            expires_at: SystemTime::UNIX_EPOCH,
        };
        for (i, NamedIdentity { source, names }) in settings.identities.iter().enumerate() {
            let (key, facts) = source.load(now)?;
            for name in if names.is_empty() { &facts.hosts } else { names } {
                loaded.names.add(name, i);
            }
            loaded.keys.push(Arc::new(key));
            let expires_at = facts.expires_at();
            loaded.expires_at = if i == 0 { expires_at } else { loaded.expires_at.min(expires_at) };
        }
        if loaded.keys.is_empty() {
            return Err(io::Error::other("TLS needs a certificate"));
        }
        if loaded.default.is_none() && loaded.names.is_empty() {
            return Err(io::Error::other("no certificate has a name, and clients that name no host are refused"));
        }
        Ok(loaded)
    }

    /// Returns `true` if both have the same certificates and admit the same clients.
    fn is_same(&self, other: &Self) -> bool {
        let chains = |loaded: &Self| loaded.keys.iter().map(|key| key.cert.clone()).collect::<Vec<_>>();
        let is_same_check = match (&self.clients, &other.clients) {
            (Some(a), Some(b)) => a.is_same(b),
            _ => true,
        };
        is_same_check && chains(self) == chains(other)
    }
}

impl IdentitySource {
    /// Reads and checks the identity. Errors contain the names of the files.
    fn load(&self, now: SystemTime) -> io::Result<(CertifiedKey, Facts)> {
        let checked = |identity: &Identity| {
            let key = identity.certified().map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => io::Error::other("the key does not belong to the certificate"),
                error => io::Error::other(error),
            })?;
            let certificate = identity.chain.first().ok_or_else(|| io::Error::other("no certificate in the chain"))?;
            let facts = Facts::read(certificate)?;
            facts.expect_valid(now)?;
            Ok((key, facts))
        };
        match self {
            Self::Fixed(identity) => checked(identity),
            Self::Files { certificate, key } => {
                checked(&Identity::from_pem(certificate, key)?).map_err(|error: io::Error| {
                    io::Error::other(format!("{} with {}: {error}", certificate.display(), key.display()))
                })
            }
        }
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let loaded = self.loaded.read();
        let named = hello.server_name().and_then(|name| loaded.names.find(name));
        named.or(loaded.default).map(|key| loaded.keys[key].clone())
    }
}

impl ClientCertVerifier for Current {
    fn client_auth_mandatory(&self) -> bool {
        self.is_client_auth_required
    }

    /// Returns no hints: they could not change with the roots. Without them, a client presents any certificate that it
    /// has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let loaded = self.loaded.read().clone();
        match &loaded.clients {
            Some(clients) => clients.check(certificate, intermediates, now)?,
            None => return Err(rustls::CertificateError::UnknownIssuer.into()),
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
