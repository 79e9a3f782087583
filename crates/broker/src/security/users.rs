//! Users: their passwords, and what ends with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::security::{Credential, Mechanism, SecurityRecord, Tables, UserName};
use engine::{Error, ErrorKind, Result};

use super::{Security, UserStatus, listed};

impl Security {
    fn check_changeable(&self, user: &UserName) -> Result<()> {
        if self.configured.contains(user) {
            return Err(Error::invalid(format!("user {user} is in the configuration: change it there (key users)")));
        }
        Ok(())
    }

    /// Returns all users, ordered by name.
    pub async fn users(&self) -> Result<Vec<UserStatus>> {
        self.open().await?;
        let security = self;
        let tables = security.permissions.read();
        let status = |(name, credentials): (&UserName, &BTreeMap<Mechanism, Credential>)| UserStatus {
            name: name.clone(),
            mechanisms: credentials.iter().map(|(mechanism, kept)| (*mechanism, kept.iterations())).collect(),
            is_configured: security.configured.contains(name),
            is_super: security.super_users.contains(name),
        };
        Ok(tables.users.iter().map(status).collect())
    }

    /// Sets credentials of users and replaces those that they have for the same mechanisms. Tokens that these users
    /// have created for themselves are deleted: they were created with the old password. The change is atomic, and
    /// durable when this completes.
    pub async fn put_credentials(self: &Arc<Self>, credentials: Vec<(UserName, Credential)>) -> Result<()> {
        self.write_credentials(credentials, false).await
    }

    /// Sets credentials of users. `are_new`: none of the users may have a credential, of any kind, before.
    pub(super) async fn write_credentials(
        self: &Arc<Self>,
        credentials: Vec<(UserName, Credential)>,
        are_new: bool,
    ) -> Result<()> {
        let users =
            listed(credentials.iter().map(|(user, credential)| format!("{user} {}", credential.mechanism().name())));
        let act = async {
            self.change(|tables, security| {
                for (user, _) in &credentials {
                    user.check_not_reserved()?;
                    if are_new && tables.user(user).has_credential() {
                        return Err(Error::new(
                            ErrorKind::AlreadyExists,
                            format!(
                                "user {user} exists already: choose another name, or set the password of that user"
                            ),
                        ));
                    }
                    security.check_changeable(user)?;
                    tables.users.check_room(user)?;
                }
                let users: BTreeSet<&UserName> = credentials.iter().map(|(user, _)| user).collect();
                let tokens = users.into_iter().flat_map(|user| tables.own_tokens(user).map(|(id, _)| id));
                let tokens = tokens.map(|id| SecurityRecord::Token { id, token: None }).collect::<Vec<_>>();
                let record = |(user, credential): (UserName, Credential)| SecurityRecord::Credential {
                    user,
                    mechanism: credential.mechanism(),
                    credential: Some(credential),
                };
                Ok((credentials.into_iter().map(record).chain(tokens).collect(), ()))
            })
            .await
        };
        self.core.audited("set password", &users, act).await
    }

    /// Deletes a user with all passwords, tokens and access keys. Entries and roles of that name stay.
    pub async fn delete_user(self: &Arc<Self>, user: UserName) -> Result<()> {
        let name = user.clone();
        let act = async {
            self.change(|tables, security| {
                security.check_changeable(&user)?;
                let mechanisms = tables.users.get(user.as_str()).into_iter().flat_map(BTreeMap::keys);
                let passwords = mechanisms.map(|mechanism| SecurityRecord::Credential {
                    user: user.clone(),
                    mechanism: *mechanism,
                    credential: None,
                });
                let gone: Vec<SecurityRecord> =
                    passwords.chain(without_password(tables, |owner| *owner == user)).collect();
                if gone.is_empty() {
                    return Err(Error::not_found(format!(
                        "there is no user '{user}' with a password, a token or an access key"
                    )));
                }
                Ok((gone, ()))
            })
            .await
        };
        self.core.audited("delete user", name.as_str(), act).await
    }

    /// Deletes credentials of users; a user without any is deleted, with the tokens and access keys of that user.
    /// Connected clients are disconnected at their next request: see [`is_valid`](Self::is_valid).
    pub async fn delete_credentials(self: &Arc<Self>, credentials: Vec<(UserName, Mechanism)>) -> Result<()> {
        let users = listed(credentials.iter().map(|(user, mechanism)| format!("{user} {}", mechanism.name())));
        let act = async {
            let credentials: BTreeSet<(UserName, Mechanism)> = credentials.into_iter().collect();
            self.change(|tables, security| {
                for (user, mechanism) in &credentials {
                    security.check_changeable(user)?;
                    if tables.users.get(user.as_str()).is_none_or(|user| !user.contains_key(mechanism)) {
                        return Err(Error::not_found(format!("user {user} has no password for {}", mechanism.name())));
                    }
                }
                let mut left: BTreeMap<&UserName, usize> = BTreeMap::new();
                for (user, _) in &credentials {
                    let has = || tables.users.get(user.as_str()).map_or(0, BTreeMap::len);
                    *left.entry(user).or_insert_with(has) -= 1;
                }
                let others = without_password(tables, |owner| left.get(owner) == Some(&0));
                let gone = |(user, mechanism)| SecurityRecord::Credential { user, mechanism, credential: None };
                Ok((credentials.into_iter().map(gone).chain(others).collect(), ()))
            })
            .await
        };
        self.core.audited("delete password", &users, act).await
    }
}

/// Returns the records that delete the tokens and access keys of users.
fn without_password(tables: &Tables, is_gone: impl Fn(&UserName) -> bool) -> Vec<SecurityRecord> {
    let Tables { tokens, access_keys, .. } = tables;
    let tokens = tokens.iter().filter(|(_, token)| is_gone(&token.user));
    let keys = access_keys.iter().filter(|(_, key)| is_gone(&key.user));
    let tokens = tokens.map(|(id, _)| SecurityRecord::Token { id: *id, token: None });
    let keys = keys.map(|(id, _)| SecurityRecord::AccessKey { id: id.clone(), key: None });
    tokens.chain(keys).collect()
}
