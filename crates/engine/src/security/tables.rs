//! The tables of users, tokens, access keys, permissions, tenants and secrets.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AccessKeys, Acls, BuiltInRole, Members, Quotas, RoleName, SecurityRecord, Tenants, Token, TokenId, Tokens,
    UserName, Users,
};
use crate::error::{Error, Result};

/// Maximum number of roles that an error lists, in addition to those that are built in.
const ROLES_LISTED_MAX: usize = 20;

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

    /// Checks that a role exists: it is built in, or has access control entries or quotas. A misspelled one would give
    /// its members nothing, and nothing would say so.
    pub fn check_role(&self, role: &RoleName) -> Result<()> {
        let is_known =
            role.built_in().is_some() || self.acls.has_role(role) || self.quotas.roles().any(|of| of == role);
        if is_known {
            return Ok(());
        }
        let own: BTreeSet<&str> = self.acls.roles().chain(self.quotas.roles()).map(RoleName::as_str).collect();
        let own_count = own.len();
        let mut names: Vec<&str> = BuiltInRole::ALL.into_iter().map(BuiltInRole::name).collect();
        names.extend(own.into_iter().take(ROLES_LISTED_MAX));
        let mut known = names.join(", ");
        if own_count > ROLES_LISTED_MAX {
            known.push_str(&format!(" and {} others", own_count - ROLES_LISTED_MAX));
        }
        Err(Error::not_found(format!(
            "there is no role '{role}': choose one of {known}, or first give Role:{role} permissions (thalweg acl add)"
        )))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::security::{Acl, Operation, Pattern, PatternKind, Principal, QuotaEntity, QuotaKind, QuotaSubject};
    use crate::security::{ResourceKind, TenantName};

    #[test]
    fn a_role_exists_if_it_is_built_in_or_has_entries_or_quotas() {
        let mut tables = Tables::new(Users::new(vec![1]));
        let role = |name: &str| RoleName::parse(name).expect("a name");
        let refused = tables.check_role(&role("auditor")).expect_err("nothing is of it");
        assert_eq!(refused.kind, ErrorKind::NotFound);
        assert!(refused.message.contains("admin, operator, publisher, consumer, monitor, or first"), "{refused}");
        let acl = Acl {
            pattern: Pattern { kind: ResourceKind::Topic, name: "t".into(), matching: PatternKind::Literal },
            principal: Principal::Role(role("auditors")),
            host: "*".into(),
            operation: Operation::Read,
            is_allowed: true,
        };
        tables.acls.insert(acl.clone());
        let of = |subject| QuotaEntity { subject: Some(subject), ..QuotaEntity::default() };
        tables.quotas.set(of(QuotaSubject::Role(role("guests"))), QuotaKind::Requests, 1.0);
        let tenant = TenantName::parse("acme").expect("a name");
        tables.quotas.set(of(QuotaSubject::Tenant(tenant)), QuotaKind::Requests, 1.0);
        for known in ["admin", "monitor", "auditors", "guests"] {
            assert_eq!(tables.check_role(&role(known)), Ok(()), "{known}");
        }
        let refused = tables.check_role(&role("auditor")).expect_err("it is misspelled");
        assert!(refused.message.contains("monitor, auditors, guests, or first"), "{refused}");
        tables.acls.remove(&acl);
        assert!(tables.check_role(&role("auditors")).is_err(), "its last entry was deleted");
        for number in 0..30 {
            tables.acls.insert(Acl { principal: Principal::Role(role(&format!("r{number:02}"))), ..acl.clone() });
        }
        let refused = tables.check_role(&role("x")).expect_err("nothing is of it");
        assert!(refused.message.contains("r18 and 11 others"), "{refused}");
    }
}
