//! Users and their credentials, and the authentication of clients.

use std::collections::BTreeMap;

use super::by_user::next_user;
use super::scram::{ClientFirst, Credential, Exchange, Mechanism, wrong_password};
use super::{UserName, denied};
use crate::error::{Error, Result};
use crate::limits::USERS_MAX;

/// Credentials of one user, one for each mechanism that the user has a password for.
pub type User = BTreeMap<Mechanism, Credential>;

/// Name of a user whose password was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated(pub UserName);

/// Table of all users. Invariant: each user has at least one credential.
#[derive(Clone, Debug)]
pub struct Users {
    users: BTreeMap<UserName, User>,
    /// Secret from which the credentials of unknown users are derived.
    secret: Vec<u8>,
}

impl Users {
    /// Creates an empty table. The secret has to be random and kept private.
    pub fn new(secret: Vec<u8>) -> Self {
        Self { users: BTreeMap::new(), secret }
    }

    /// Checks that there is room for one more credential of this user.
    pub fn check_room(&self, user: &UserName) -> Result<()> {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(user) {
            return Err(Error::busy(format!("this broker has {USERS_MAX} users; delete some first")));
        }
        Ok(())
    }

    pub fn put(&mut self, user: UserName, credential: Credential) {
        self.users.entry(user).or_default().insert(credential.mechanism(), credential);
    }

    /// Removes a credential, and the user with the last one. Returns `true` if the credential existed.
    pub fn remove(&mut self, user: &UserName, mechanism: Mechanism) -> bool {
        let Some(credentials) = self.users.get_mut(user) else {
            return false;
        };
        let existed = credentials.remove(&mechanism).is_some();
        if credentials.is_empty() {
            self.users.remove(user);
        }
        existed
    }

    pub fn get(&self, user: &str) -> Option<&User> {
        self.users.get(user)
    }

    pub(super) fn next_user(&self, after: &str) -> Option<&UserName> {
        next_user(&self.users, after)
    }

    /// Returns all users in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&UserName, &User)> {
        self.users.iter()
    }

    /// Starts an exchange with this mechanism, also for an unknown user.
    pub fn challenge(&self, mechanism: Mechanism, first: ClientFirst, nonce: &str) -> (Exchange, Vec<u8>) {
        let known = self.get(first.user.as_str()).and_then(|user| user.get(&mechanism)).cloned();
        let is_known = known.is_some();
        let credential = known.unwrap_or_else(|| Credential::decoy(mechanism, first.user.as_str(), &self.secret));
        first.challenge(credential, is_known, nonce)
    }

    /// Returns the credential to verify a password of this user against. For an unknown user it is one that no password
    /// matches. Hashing a password takes milliseconds, so the caller has to verify it where it delays no other work.
    pub fn credential_of(&self, user: &UserName) -> Credential {
        let known = self.users.get(user).and_then(|user| user.values().next_back()).cloned();
        known.unwrap_or_else(|| Credential::decoy(Mechanism::Sha512, user.as_str(), &self.secret))
    }
}

impl Credential {
    /// Authenticates a user who has this password.
    pub fn admit(&self, user: UserName, password: &str) -> Result<Authenticated> {
        if self.fits(password) { Ok(Authenticated(user)) } else { Err(wrong_password()) }
    }
}

/// Returns the name and the password in a message of SASL's mechanism PLAIN (RFC 4616).
pub fn parse_plain(message: &[u8]) -> Result<(UserName, &str)> {
    let text = std::str::from_utf8(message)
        .map_err(|error| Error::malformed(format!("the message of PLAIN is not UTF-8: {error}")))?;
    let mut fields = text.split('\0');
    let (Some(acts_for), Some(user), Some(password), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(Error::malformed("the message of PLAIN must have three fields, separated by zero bytes"));
    };
    let user = UserName::parse(user)?;
    if !acts_for.is_empty() && acts_for != user.as_str() {
        return Err(denied("logging in for another user is not supported"));
    }
    if password.is_empty() {
        return Err(wrong_password());
    }
    Ok((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn credential(mechanism: Mechanism, password: &str) -> Credential {
        Credential::of_password(mechanism, password, vec![3; 16], 4096).expect("a credential")
    }

    fn name(name: &str) -> UserName {
        UserName::parse(name).expect("a name")
    }

    #[test]
    fn a_user_exists_while_they_have_a_credential() {
        let mut users = Users::new(vec![1]);
        for mechanism in Mechanism::ALL {
            users.put(name("ann"), credential(mechanism, "pencil"));
        }
        assert_eq!(users.iter().map(|(_, user)| user.len()).collect::<Vec<_>>(), [2]);
        assert!(users.remove(&name("ann"), Mechanism::Sha256) && !users.remove(&name("ann"), Mechanism::Sha256));
        assert!(users.credential_of(&name("ann")).admit(name("ann"), "pencil").is_ok());
        assert!(users.remove(&name("ann"), Mechanism::Sha512) && users.get("ann").is_none());
        let refused = users.credential_of(&name("ann")).admit(name("ann"), "pencil").expect_err("she is gone");
        assert_eq!(refused.kind, ErrorKind::Denied);
    }

    #[test]
    fn a_plain_message_is_read_or_refused() {
        let read = |text: &str| parse_plain(text.as_bytes()).map(|(user, _)| user.to_string()).map_err(|e| e.kind);
        for (text, wanted) in [
            ("\0ann\0pencil", Ok("ann".to_owned())),
            ("ann\0ann\0pencil", Ok("ann".to_owned())),
            ("bob\0ann\0pencil", Err(ErrorKind::Denied)),
            ("\0ann\0", Err(ErrorKind::Denied)),
            ("\0\0pencil", Err(ErrorKind::Invalid)),
            ("ann\0pencil", Err(ErrorKind::Malformed)),
            ("\0ann\0pen\0cil", Err(ErrorKind::Malformed)),
            ("", Err(ErrorKind::Malformed)),
        ] {
            assert_eq!(read(text), wanted, "{text:?}");
        }
    }
}
