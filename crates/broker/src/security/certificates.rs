//! Logins with client certificates, which the handshake of TLS has verified.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Error, ErrorKind, Result};

use super::identity::{CertificateCheck, ClientCertificate, Proof};
use super::{Identity, Security};
use crate::logins::LoginSource;

impl Security {
    /// Sets the check of the certificates of clients that are connected, which follows each
    /// [`Security::certificates_changed`]. Without one, a certificate is valid until it expires.
    pub fn set_certificate_check(&self, check: Box<CertificateCheck>) {
        // A second check is ignored: there is one TLS per process.
        drop(self.certificates.check.set(check));
    }

    /// Logs a client in that has this certificate. Fails if no rule names its user.
    pub fn log_in_with_certificate(
        self: &Arc<Self>,
        certificate: ClientCertificate,
        source: LoginSource,
    ) -> Result<Identity> {
        let ClientCertificate { subject, name, expires_ms, .. } = &certificate;
        let user = self.core.settings().security.certificate_names.user_of(subject, name.as_deref());
        // A connection may be older than the end of its certificate.
        let is_expired = *expires_ms <= self.core.now_ms();
        let user = if is_expired { Err(denied("the client's certificate has expired")) } else { user };
        let user = user.and_then(|user| user.check_not_reserved().map(|()| user));
        let user = self.count(user).inspect_err(|error| {
            if self.may_log_refusal() {
                let door = source.door;
                tracing::info!(%door, address = %source, subject, %error, "refused a client's certificate");
                self.record_login(source, subject, Some(error));
            }
        })?;
        self.record_login(source, user.as_str(), None);
        self.outdate_at(*expires_ms);
        let proof = Proof::Certificate(Arc::new(certificate), self.certificates.clone());
        Ok(self.identity_of(user, [], &source.host()).proved_by(proof))
    }

    /// Checks the certificates of connected clients again: other ones are accepted than before.
    pub fn certificates_changed(self: &Arc<Self>) {
        self.certificates.generation.fetch_add(1, Ordering::Release);
        self.outdate();
    }

    /// Makes all decisions again: credentials outside of the broker's tables have changed.
    pub(super) fn outdate(self: &Arc<Self>) {
        self.permissions.outdate();
        self.end_refused();
    }
}

fn denied(message: &str) -> Error {
    Error::new(ErrorKind::Denied, message)
}
