//! Passwords that a client sends as they are, to be set for a user.

use std::sync::Arc;

use engine::security::{Credential, ITERATIONS_DEFAULT, Mechanism, Password, UserName};
use engine::{Error, ErrorKind, Result};

use super::{SALT_BYTES, Security, random};

impl Security {
    /// Returns cryptographically secure random bytes.
    pub fn random_bytes(&self, bytes: usize) -> Result<Vec<u8>> {
        random(bytes)
    }

    /// Sets the password of a user for all mechanisms. It is hashed on a thread that serves no connection.
    pub async fn put_password(self: &Arc<Self>, user: UserName, password: Password) -> Result<()> {
        self.write_password(user, password, false).await
    }

    /// Creates a user with a password for all mechanisms. Fails with `AlreadyExists` if the user has a password, a
    /// token or an access key: the caller would otherwise replace a password that others use. Roles and entries of the
    /// name may exist before the user.
    pub async fn create_user(self: &Arc<Self>, user: UserName, password: Password) -> Result<()> {
        self.write_password(user, password, true).await
    }

    async fn write_password(self: &Arc<Self>, user: UserName, password: Password, is_new: bool) -> Result<()> {
        let salts: Vec<Vec<u8>> = Mechanism::ALL.iter().map(|_| random(SALT_BYTES)).collect::<Result<_>>()?;
        let hash = move || -> Result<Vec<Credential>> {
            let each = Mechanism::ALL.into_iter().zip(salts);
            each.map(|(mechanism, salt)| {
                Credential::of_password(mechanism, password.reveal(), salt, ITERATIONS_DEFAULT)
            })
            .collect()
        };
        let credentials = hashed(hash).await??;
        let credentials = credentials.into_iter().map(|credential| (user.clone(), credential)).collect();
        self.write_credentials(credentials, is_new).await
    }

    /// Returns `true` if a user has this password. It is not a login: nothing is counted, and nothing waits.
    pub async fn has_password(&self, user: &UserName, password: Password) -> Result<bool> {
        self.open().await?;
        let credential = self.permissions.read().users.credential_of(user);
        let user = user.clone();
        hashed(move || credential.admit(user, password.reveal()).is_ok()).await
    }
}

async fn hashed<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, format!("a password could not be hashed: {error}")))
}
