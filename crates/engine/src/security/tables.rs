//! The tables of users, tokens, access keys, permissions, tenants and secrets.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AccessKeys, Acls, BuiltInRole, Mechanism, Members, Quotas, RoleName, SecurityRecord, TenantName, Tenants, Token,
    TokenId, Tokens, UserName, Users,
};
use crate::error::{Error, Result};

/// Maximum number of roles that an error lists, in addition to those that are built in.
const ROLES_LISTED_MAX: usize = 20;

/// Secrets of the broker by name.
pub type Secrets = BTreeMap<String, Vec<u8>>;

/// Everything that the tables have of a user, who may log in with a certificate or a token of an issuer alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownUser {
    /// Mechanisms for which the user has a password.
    pub mechanisms: Vec<Mechanism>,
    /// Number of tokens that log clients in as the user, expired ones included.
    pub tokens: usize,
    pub access_keys: usize,
    pub roles: Vec<RoleName>,
    /// `true` if access control entries name the user.
    pub has_entries: bool,
    pub tenant: Option<TenantName>,
}

impl KnownUser {
    /// Returns `true` if the broker keeps a credential of the user.
    pub fn has_credential(&self) -> bool {
        !self.mechanisms.is_empty() || self.tokens > 0 || self.access_keys > 0
    }
}

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
        self.tokens.of_user(user).filter(|(_, token)| token.is_own).map(|(id, token)| (*id, token))
    }

    /// Returns the first name after this one of all users of whom the tables have something.
    pub fn next_user(&self, after: &str) -> Option<&UserName> {
        let Self { users, tokens, access_keys, acls, members, tenants, secrets: _, quotas: _ } = self;
        let next = [
            users.next_user(after),
            tokens.next_user(after),
            access_keys.next_user(after),
            acls.next_user(after),
            members.next_user(after),
            tenants.next_user(after),
        ];
        next.into_iter().flatten().min()
    }

    /// Returns everything that the tables have of a user.
    pub fn user(&self, name: &UserName) -> KnownUser {
        KnownUser {
            mechanisms: self.users.get(name.as_str()).into_iter().flat_map(BTreeMap::keys).copied().collect(),
            tokens: self.tokens.count_of(name.as_str()),
            access_keys: self.access_keys.count_of(name.as_str()),
            roles: self.members.roles_of(name).cloned().collect(),
            has_entries: self.acls.has_user(name),
            tenant: self.tenants.of_user(name.as_str()).cloned(),
        }
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
    use crate::security::{
        AccessKey, AccessKeyId, Acl, Credential, Operation, Pattern, PatternKind, Principal, QuotaEntity, QuotaKind,
        QuotaSubject, ResourceKind,
    };

    #[test]
    fn a_user_is_known_by_any_of_a_password_a_token_a_key_an_entry_a_role_and_a_tenant() {
        let mut tables = Tables::new(Users::new(vec![1]));
        let name = |name: &str| UserName::parse(name).expect("a name");
        let credential = Credential::of_password(Mechanism::Sha256, "pencil", vec![3; 16], 4096).expect("a credential");
        let token = |user: &str| Token {
            user: name(user),
            roles: Vec::new(),
            created_ms: 1,
            expires_ms: None,
            hash: [0; 32],
            is_own: false,
        };
        let key = AccessKey { user: name("c"), account: None, created_ms: 1, expires_ms: None, sealed: Box::default() };
        let key_id: AccessKeyId = "AKIAEXAMPLE".parse().expect("an id");
        let acl = |principal| Acl {
            pattern: Pattern { kind: ResourceKind::Topic, name: "t".into(), matching: PatternKind::Literal },
            principal,
            host: "*".into(),
            operation: Operation::Read,
            is_allowed: true,
        };
        let [first, second] = [1, 2].map(|id| TokenId::of_bytes([id; 8]));
        let (role, tenant) = (RoleName::parse("admin").expect("a name"), TenantName::parse("acme").expect("a name"));
        let of_acl = |principal, is_present| SecurityRecord::Acl { acl: acl(principal), is_present };
        let of_token = |id, user: Option<&str>| SecurityRecord::Token { id, token: user.map(token) };
        for record in [
            SecurityRecord::Credential { user: name("f"), mechanism: Mechanism::Sha256, credential: Some(credential) },
            of_token(first, Some("x")),
            of_token(first, Some("b")),
            of_token(second, Some("b")),
            SecurityRecord::AccessKey { id: key_id.clone(), key: Some(key) },
            of_acl(Principal::User(name("d")), true),
            of_acl(Principal::Everyone, true),
            of_acl(Principal::Role(role.clone()), true),
            SecurityRecord::Member { user: name("a"), role: role.clone(), is_present: true },
            SecurityRecord::Member { user: name("f"), role: role.clone(), is_present: true },
            SecurityRecord::Tenant { user: name("e"), tenant: Some(tenant.clone()) },
        ] {
            tables.apply(record);
        }
        let known = |tables: &Tables| {
            let next = |user: &UserName| tables.next_user(user.as_str()).cloned();
            let all: Vec<String> =
                std::iter::successors(tables.next_user("").cloned(), next).map(|user| user.to_string()).collect();
            all.concat()
        };
        assert_eq!(known(&tables), "abcdef");
        let nothing = KnownUser::default;
        assert_eq!(tables.user(&name("a")), KnownUser { roles: vec![role.clone()], ..nothing() });
        assert_eq!(tables.user(&name("b")), KnownUser { tokens: 2, ..nothing() });
        assert_eq!(tables.user(&name("c")), KnownUser { access_keys: 1, ..nothing() });
        assert_eq!(tables.user(&name("d")), KnownUser { has_entries: true, ..nothing() });
        assert_eq!(tables.user(&name("e")), KnownUser { tenant: Some(tenant), ..nothing() });
        let with_password = KnownUser { mechanisms: vec![Mechanism::Sha256], roles: vec![role.clone()], ..nothing() };
        assert_eq!(tables.user(&name("f")), with_password);
        assert_eq!(tables.user(&name("x")), nothing(), "the token was replaced by one of another user");
        for record in [
            of_token(first, None),
            SecurityRecord::AccessKey { id: key_id, key: None },
            of_acl(Principal::User(name("d")), false),
            SecurityRecord::Member { user: name("a"), role, is_present: false },
            SecurityRecord::Tenant { user: name("e"), tenant: None },
        ] {
            tables.apply(record);
        }
        assert_eq!(known(&tables), "bf", "b has a second token");
        tables.apply(of_token(second, None));
        assert_eq!(known(&tables), "f");
    }

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
