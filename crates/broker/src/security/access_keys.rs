//! Access keys: creation, deletion, and the secrets with which signatures are verified.

use std::sync::Arc;

use engine::security::{AccessKey, AccessKeyId, AccessSecret, Account, RoleName, SecurityRecord, UserName};
use engine::{Error, ErrorKind, Result};

use zeroize::Zeroizing;

use super::identity::Proof;
use super::{Identity, Security};
use crate::logins::LoginSource;

/// Name with which the key of the site in a mesh is sealed. No access key has a name with a space.
const SITE_KEY: &str = "key of the site";

/// An access key with its secret, to verify a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKey {
    pub id: AccessKeyId,
    pub user: UserName,
    /// Account whose queues its clients use; `None` for the default of the door.
    pub account: Option<Account>,
    pub secret: AccessSecret,
    expires_ms: Option<u64>,
}

impl Security {
    /// Returns an access key with its secret; `None` if the broker has none of this name, or it has expired.
    pub fn signing_key(&self, id: &str) -> Result<Option<SigningKey>> {
        let Ok(id) = id.parse::<AccessKeyId>() else { return Ok(None) };
        let key = self.permissions.read().access_keys.get(id.as_str()).cloned();
        let Some(key) = key.filter(|key| !key.is_expired(self.core.now_ms())) else { return Ok(None) };
        let secret = AccessSecret::parse(&self.seal.unseal(id.as_str(), &key.sealed)?)?;
        Ok(Some(SigningKey { id, user: key.user, account: key.account, secret, expires_ms: key.expires_ms }))
    }

    /// Returns the identity of a client that has signed with an access key. It has these roles in addition to those of
    /// its user.
    pub fn identity_of_key(self: &Arc<Self>, key: SigningKey, roles: Vec<RoleName>, source: LoginSource) -> Identity {
        self.record_login(source, key.user.as_str(), None);
        if let Some(expires_ms) = key.expires_ms {
            self.outdate_at(expires_ms);
        }
        self.identity_of(key.user, roles, &source.host()).proved_by(Proof::AccessKey(key.id))
    }

    /// Returns the accounts of a user's access keys.
    pub fn accounts_of(&self, user: &UserName) -> Vec<Option<Account>> {
        let tables = self.permissions.read();
        tables.access_keys.iter().filter(|(_, key)| key.user == *user).map(|(_, key)| key.account.clone()).collect()
    }

    /// Returns all access keys in the order of their names.
    pub async fn access_keys(&self) -> Result<Vec<(AccessKeyId, AccessKey)>> {
        self.open().await?;
        Ok(self.permissions.read().access_keys.iter().map(|(id, key)| (id.clone(), key.clone())).collect())
    }

    /// Stores a new access key with its secret, which is sealed. Fails if there is one of this name.
    pub async fn put_access_key(
        self: &Arc<Self>,
        id: AccessKeyId,
        secret: AccessSecret,
        user: UserName,
        account: Option<Account>,
        expires_ms: Option<u64>,
    ) -> Result<()> {
        let name = format!("{id} of {user}");
        let act = async {
            user.check_not_reserved()?;
            self.open().await?;
            let created_ms = self.core.now_ms();
            let security = self.clone();
            let name = id.clone();
            let sealing = tokio::task::spawn_blocking(move || security.seal_new(name.as_str(), secret.reveal()));
            let sealed = sealing.await.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Internal, format!("a secret could not be sealed: {error}")))
            })?;
            let key = AccessKey { user, account, created_ms, expires_ms, sealed };
            if key.is_expired(created_ms) {
                return Err(Error::invalid("the access key would have expired already"));
            }
            self.change(|tables, _| {
                if tables.access_keys.get(id.as_str()).is_some() {
                    let message = format!("there is an access key {id}: delete it first, or choose another name");
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
                tables.access_keys.check_room()?;
                Ok((vec![SecurityRecord::AccessKey { id, key: Some(key) }], ()))
            })
            .await
        };
        self.core.audited("create access key", &name, act).await
    }

    /// Seals a secret, with a new key if the data directory has none.
    fn seal_new(&self, name: &str, secret: &str) -> Result<Box<[u8]>> {
        if !self.seal.open(&self.core)? {
            let others = self.permissions.read().access_keys.len();
            if others > 0 {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "the file seal.key of the data directory is missing, with which the secrets of {others} access \
                         keys are sealed: restore it, or delete these keys first"
                    ),
                ));
            }
            self.seal.create(&self.core)?;
        }
        self.seal.seal(name, secret)
    }

    /// Seals the key of this broker's site in a mesh, so that it can be stored with other data.
    pub async fn seal_site_key(self: &Arc<Self>, key: Zeroizing<String>) -> Result<Box<[u8]>> {
        let security = self.clone();
        let sealing = tokio::task::spawn_blocking(move || security.seal_new(SITE_KEY, &key));
        sealing.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("the key of the site could not be sealed: {error}")))
        })
    }

    /// Returns the key that [`Security::seal_site_key`] has sealed. It may read a file.
    pub fn unseal_site_key(&self, sealed: &[u8]) -> Result<Zeroizing<String>> {
        self.seal.open(&self.core)?;
        self.seal.unseal(SITE_KEY, sealed)
    }

    /// Deletes an access key. The next request that is signed with it is refused, and those that wait end.
    pub async fn delete_access_key(self: &Arc<Self>, id: AccessKeyId) -> Result<()> {
        let name = id.clone();
        let act = async {
            self.change(|tables, _| {
                if tables.access_keys.get(id.as_str()).is_none() {
                    return Err(Error::not_found(format!("there is no access key {id}; see thalweg key list")));
                }
                Ok((vec![SecurityRecord::AccessKey { id, key: None }], ()))
            })
            .await
        };
        self.core.audited("delete access key", name.as_str(), act).await
    }
}
