//! Logins by SASL (RFC 4422): PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628), for every protocol that
//! carries its messages.

use std::sync::Arc;

use bytes::Bytes;
use engine::security::{Bearer, Exchange, Mechanism, parse_plain};
use engine::{Error, ErrorKind, Result};

use super::{ADMIN_MECHANISM, Identity, Security};
use crate::logins::LoginSource;

const PLAIN: &str = "PLAIN";
const BEARER: &str = "OAUTHBEARER";

/// A login that has begun and waits for the next message of the client.
pub struct Sasl(Awaits);

enum Awaits {
    Plain,
    Bearer,
    ClientFirst(Whose, Mechanism),
    /// The SCRAM challenge was sent.
    ClientLast(Whose, Box<Exchange>),
}

/// Secret that a client has to know.
#[derive(Clone, Copy)]
enum Whose {
    /// Password of the user that the client names.
    User,
    /// Token of the administrator.
    Administrator,
}

/// Login after a message of the client, with the answer to it.
pub enum SaslStep {
    Challenged(Sasl, Bytes),
    Done(Arc<Identity>, Bytes),
}

impl Sasl {
    /// Names of the mechanisms, as they are registered.
    pub const MECHANISMS: [&str; 4] = [PLAIN, BEARER, "SCRAM-SHA-256", "SCRAM-SHA-512"];

    /// Begins a login; returns `None` if the mechanism is unknown.
    pub fn begin(mechanism: &str) -> Option<Self> {
        match mechanism {
            PLAIN => return Some(Self(Awaits::Plain)),
            BEARER => return Some(Self(Awaits::Bearer)),
            _ => {}
        }
        let mechanism = Mechanism::ALL.into_iter().find(|known| known.name() == mechanism)?;
        Some(Self(Awaits::ClientFirst(Whose::User, mechanism)))
    }

    /// Begins the login of a program of the broker's own user: SCRAM with the administrator's token as the password, so
    /// that no other program on the port of the broker can learn it.
    pub fn begin_administrator() -> Self {
        Self(Awaits::ClientFirst(Whose::Administrator, ADMIN_MECHANISM))
    }

    /// Handles one message of the client. A wrong one ends the login: it is counted, logged, and answered after a
    /// pause.
    pub async fn advance(self, security: &Arc<Security>, source: LoginSource, message: &[u8]) -> Result<SaslStep> {
        match self.0 {
            Awaits::Plain => {
                let (user, password) = match parse_plain(message) {
                    Ok(parsed) => parsed,
                    Err(error) => security.end_login(source, "", Err(error)).await?,
                };
                let identity = security.log_in(user, password.into(), source).await?;
                Ok(SaslStep::Done(Arc::new(identity), Bytes::new()))
            }
            Awaits::Bearer => {
                let Bearer { acts_for, token } = match Bearer::parse(message) {
                    Ok(parsed) => parsed,
                    Err(error) => security.end_login(source, "", Err(error)).await?,
                };
                let identity = security.log_in_with_token(token, acts_for.as_ref(), source).await?;
                Ok(SaslStep::Done(Arc::new(identity), Bytes::new()))
            }
            Awaits::ClientFirst(whose, mechanism) => {
                let begun = match whose {
                    Whose::User => security.begin_scram(mechanism, message).await,
                    Whose::Administrator => security.begin_administrator(message)?,
                };
                match begun {
                    Ok((exchange, challenge)) => {
                        let awaits = Awaits::ClientLast(whose, Box::new(exchange));
                        Ok(SaslStep::Challenged(Self(awaits), challenge.into()))
                    }
                    Err(error) => security.end_login(source, "", Err(error)).await,
                }
            }
            Awaits::ClientLast(whose, exchange) => {
                let credential = exchange.credential().clone();
                let (user, proof) = security.finish_scram(*exchange, message, source).await?;
                let identity = match whose {
                    Whose::User => security.identity_with_password(user, &source.host(), &credential),
                    Whose::Administrator => Identity::administrator(&source.host()),
                };
                Ok(SaslStep::Done(Arc::new(identity), proof.into()))
            }
        }
    }
}

/// Returns the error for a mechanism that is unknown.
pub fn unknown_mechanism(mechanism: &str) -> Error {
    let known = Sasl::MECHANISMS.join(", ");
    Error::new(ErrorKind::Unsupported, format!("the mechanism '{mechanism}' is unknown; this broker has {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_mechanism_begins_a_login() {
        assert!(Sasl::MECHANISMS.into_iter().all(|name| Sasl::begin(name).is_some()));
        let known: Vec<&str> = Mechanism::ALL.into_iter().map(Mechanism::name).collect();
        assert_eq!(Sasl::MECHANISMS[2..], known);
        assert!(Sasl::begin("plain").is_none() && Sasl::begin("").is_none());
    }
}
