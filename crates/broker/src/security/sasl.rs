//! Logins by SASL (RFC 4422): PLAIN (RFC 4616) and SCRAM (RFC 5802), for every protocol that carries its messages.

use bytes::Bytes;
use engine::security::{Exchange, Mechanism, UserName, parse_plain};
use engine::{Error, ErrorKind, Result};

use super::Security;
use crate::logins::LoginSource;

const PLAIN: &str = "PLAIN";

/// A login that has begun and waits for the next message of the client.
pub struct Sasl(Awaits);

enum Awaits {
    Plain,
    ClientFirst(Mechanism),
    /// The SCRAM challenge was sent.
    ClientLast(Box<Exchange>),
}

/// Login after a message of the client, with the answer to it.
pub enum SaslStep {
    Challenged(Sasl, Bytes),
    Done(UserName, Bytes),
}

impl Sasl {
    /// Names of the mechanisms, as they are registered.
    pub const MECHANISMS: [&str; 3] = [PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512"];

    /// Begins a login; returns `None` if the mechanism is unknown.
    pub fn begin(mechanism: &str) -> Option<Self> {
        if mechanism == PLAIN {
            return Some(Self(Awaits::Plain));
        }
        let mechanism = Mechanism::ALL.into_iter().find(|known| known.name() == mechanism)?;
        Some(Self(Awaits::ClientFirst(mechanism)))
    }

    /// Handles one message of the client. A wrong one ends the login: it is counted, logged, and answered after a
    /// pause.
    pub async fn advance(self, security: &Security, source: LoginSource, message: &[u8]) -> Result<SaslStep> {
        match self.0 {
            Awaits::Plain => {
                let (user, password) = match parse_plain(message) {
                    Ok(parsed) => parsed,
                    Err(error) => security.end_login(source, "", Err(error)).await?,
                };
                let user = security.authenticate(user, password.to_owned(), source).await?;
                Ok(SaslStep::Done(user, Bytes::new()))
            }
            Awaits::ClientFirst(mechanism) => match security.begin_scram(mechanism, message).await {
                Ok((exchange, challenge)) => {
                    Ok(SaslStep::Challenged(Self(Awaits::ClientLast(Box::new(exchange))), challenge.into()))
                }
                Err(error) => security.end_login(source, "", Err(error)).await,
            },
            Awaits::ClientLast(exchange) => {
                let (user, proof) = security.finish_scram(*exchange, message, source).await?;
                Ok(SaslStep::Done(user, proof.into()))
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
        assert_eq!(Sasl::MECHANISMS[1..], known);
        assert!(Sasl::begin("plain").is_none() && Sasl::begin("").is_none());
    }
}
