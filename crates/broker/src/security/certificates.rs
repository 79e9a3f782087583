//! Logins with client certificates, which the handshake of TLS has verified.

use std::sync::Arc;

use engine::Result;

use super::identity::{CertificateCheck, ClientCertificate, Proof};
use super::{Identity, Security};
use crate::logins::LoginSource;

impl Security {
    /// Sets the check of the certificates of clients that are connected. It is used after each change of permissions,
    /// and after [`Security::outdate`]. Until it is set, a certificate is valid until it expires.
    pub fn set_certificate_check(&self, check: Box<CertificateCheck>) {
        // A second check is ignored: there is one TLS per process.
        drop(self.certificate_check.set(check.into()));
    }

    /// Logs a client in that has this certificate. Fails if no rule names its user, which is logged.
    pub fn log_in_with_certificate(
        self: &Arc<Self>,
        certificate: ClientCertificate,
        source: LoginSource,
    ) -> Result<Identity> {
        let ClientCertificate { subject, name, expires_ms, .. } = &certificate;
        let user = self.core.settings().security.certificate_names.user_of(subject, name.as_deref());
        let user = self.count(user).inspect_err(|error| {
            tracing::info!(door = %source.door, address = %source, subject, %error, "refused a client's certificate");
        })?;
        self.outdate_at(*expires_ms);
        let proof = Proof::Certificate(Arc::new(certificate), self.certificate_check.get().cloned());
        Ok(Identity::with_proof(user, [], &source.host(), proof))
    }

    /// Makes all decisions again: credentials outside of the broker's tables have changed.
    pub fn outdate(&self) {
        self.permissions.change(|_| ());
        self.end_refused();
    }
}
