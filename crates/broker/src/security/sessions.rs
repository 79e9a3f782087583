//! Sessions of browsers: a login that a cookie continues, because a browser cannot log in with each request without
//! keeping the password.
//!
//! They are in memory: a restart of the broker, and in a cluster a new leader, ends them. A token that is stored would
//! survive that. But it would need a write for each login and each logout, could not end by being idle, and users who
//! log in with a token or over an issuer could have none.

use std::sync::Arc;

use engine::Result;

use super::session_table::{SessionEnd, SessionLogin, SessionSecret, hash_of};
use super::{Identity, Security};
use crate::acting;
use crate::logins::LoginSource;

impl Security {
    /// Opens a session that continues the login of a client, and returns its secret. It ends with that login, when it
    /// is idle or too old, and with [`Security::end_session`].
    pub fn open_session(self: &Arc<Self>, identity: &Identity) -> Result<SessionSecret> {
        let secret = SessionSecret::generate()?;
        let hash = hash_of(secret.reveal()).expect("invariant: a generated secret has the form of one");
        let login = SessionLogin {
            user: identity.user().clone(),
            roles: identity.roles().into(),
            tenant: identity.tenant().cloned(),
            proof: identity.proof().clone(),
        };
        let (session, has_cut) = self.sessions.open(hash, login, self.core.now_ms());
        self.outdate_at(session.ends_ms());
        if has_cut {
            self.outdate();
        }
        acting::act_as(identity.user());
        self.core.record_act("open session", identity.user().as_str(), None);
        Ok(secret)
    }

    /// Returns the identity of a client that sent the secret of a session; `None` if the session has ended.
    pub fn log_in_with_session(&self, secret: &str, source: LoginSource) -> Option<Identity> {
        let hash = hash_of(secret)?;
        let (login, used) = self.sessions.begin(&hash, self.core.settings().clock)?;
        let SessionLogin { user, roles, tenant, proof } = login;
        let identity = Identity::new(user, roles, &source.host()).proved_by(proof).within(tenant).in_session(used);
        if self.is_valid(&identity) {
            return Some(identity);
        }
        self.sessions.end(&hash, SessionEnd::Revoked);
        None
    }

    /// Ends a session because its user has logged out. Its streams end, too.
    pub fn end_session(self: &Arc<Self>, secret: &str) {
        self.end(secret, SessionEnd::Logout);
    }

    /// Ends a session because its browser has logged in again. Its streams end, too.
    pub fn replace_session(self: &Arc<Self>, secret: &str) {
        self.end(secret, SessionEnd::Replaced);
    }

    fn end(self: &Arc<Self>, secret: &str, end: SessionEnd) {
        let Some((user, is_in_use)) = hash_of(secret).and_then(|hash| self.sessions.end(&hash, end)) else {
            return;
        };
        if is_in_use {
            self.outdate();
        }
        acting::act_as(&user);
        self.core.record_act("end session", user.as_str(), None);
    }
}
