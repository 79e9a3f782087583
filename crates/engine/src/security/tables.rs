//! The tables of users, tokens, access keys, permissions, tenants and secrets.

use std::collections::BTreeMap;

use super::{AccessKeys, Acls, Members, Quotas, SecurityRecord, Tenants, Token, TokenId, Tokens, UserName, Users};

/// Secrets of the broker by name.
pub type Secrets = BTreeMap<String, Vec<u8>>;

/// State of the topic [`SECURITY_TOPIC`](super::SECURITY_TOPIC): a fold over its records.
#[derive(Clone, Debug)]
pub struct Tables {
    pub users: Users,
    pub tokens: Tokens,
    pub access_keys: AccessKeys,
    pub acls: Acls,
    pub members: Members,
    pub tenants: Tenants,
    pub secrets: Secrets,
    pub quotas: Quotas,
}

impl Tables {
    /// Creates tables with these users.
    pub fn new(users: Users) -> Self {
        Self {
            users,
            tokens: Tokens::default(),
            access_keys: AccessKeys::default(),
            acls: Acls::default(),
            members: Members::default(),
            tenants: Tenants::default(),
            secrets: Secrets::new(),
            quotas: Quotas::default(),
        }
    }

    /// Returns `true` if clients may log in with a token, and stay logged in, at this time in ms since 1970.
    pub fn accept(&self, token: &Token, now_ms: u64) -> bool {
        !token.is_expired(now_ms) && (!token.is_own || self.users.get(token.user.as_str()).is_some())
    }

    /// Returns the tokens that a user has created.
    pub fn own_tokens(&self, user: &UserName) -> impl Iterator<Item = (TokenId, &Token)> {
        self.tokens.iter().filter(move |(_, token)| token.is_own && token.user == *user).map(|(id, token)| (*id, token))
    }

    pub fn apply(&mut self, record: SecurityRecord) {
        match record {
            SecurityRecord::Credential { user, credential: Some(credential), .. } => self.users.put(user, credential),
            SecurityRecord::Credential { user, mechanism, credential: None } => {
                self.users.remove(&user, mechanism);
            }
            SecurityRecord::Token { id, token: Some(token) } => self.tokens.put(id, token),
            SecurityRecord::Token { id, token: None } => self.tokens.remove(&id),
            SecurityRecord::AccessKey { id, key: Some(key) } => self.access_keys.put(id, key),
            SecurityRecord::AccessKey { id, key: None } => self.access_keys.remove(&id),
            SecurityRecord::Acl { acl, is_present: true } => self.acls.insert(acl),
            SecurityRecord::Acl { acl, is_present: false } => self.acls.remove(&acl),
            SecurityRecord::Member { user, role, is_present: true } => self.members.insert(user, role),
            SecurityRecord::Member { user, role, is_present: false } => self.members.remove(&user, &role),
            SecurityRecord::Tenant { user, tenant: Some(tenant) } => self.tenants.insert(user, tenant),
            SecurityRecord::Tenant { user, tenant: None } => self.tenants.remove(&user),
            SecurityRecord::Quota { entity, kind, value: Some(value) } => self.quotas.set(entity, kind, value),
            SecurityRecord::Quota { entity, kind, value: None } => self.quotas.remove(&entity, kind),
            SecurityRecord::Secret { name, value: Some(value) } => drop(self.secrets.insert(name, value)),
            SecurityRecord::Secret { name, value: None } => drop(self.secrets.remove(&name)),
        }
    }
}
