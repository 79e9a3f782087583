//! Records of the topic `_security`: the newest value of each key is valid, null deletes the key.
//!
//! All integers are big-endian; a text or a byte string is its length (2 bytes) and its bytes. Texts are UTF-8.
//!
//! | key | version (u16) | then |
//! |---|---|---|
//! | a credential | 1 | user (text), mechanism (u8) |
//! | an access control entry | 2 | kind of resource (u8), its name (text), kind of the pattern (u8), |
//! | | | principal (text), host (text), operation (u8), whether it is allowed (u8) |
//! | a secret of the broker | 3 | its name (text) |
//! | a member of a role | 4 | user (text), role (text) |
//! | a token | 5 | its id (8 bytes, as a byte string) |
//! | an access key | 6 | its id (text) |
//! | a quota | 7 | kind of the subject (u8: 0 none, 1 user, 2 each user, 3 role, 4 tenant), its name (text), |
//! | | | kind of the client id (u8: 0 none, 1 one, 2 each), the client id (text), |
//! | | | kind of the address (u8: 0 none, 1 one, 2 each), the address (text), kind of the quota (u8) |
//! | the tenant of a user | 8 | user (text) |
//!
//! | value | version (u16) | then |
//! |---|---|---|
//! | a credential | 1 | iterations (u32), salt, stored key, server key |
//! | an access control entry | 1 | nothing |
//! | a member of a role | 1 | nothing |
//! | a secret of the broker | 1 | its bytes |
//! | a token | 1 | user (text), time of creation (u64), expiry time (u64; the maximum if it does not expire), |
//! | | | hash (byte string), number of roles (u16), each role (text) |
//! | an access key | 1 | user (text), account (text, empty for the default), time of creation (u64), expiry time |
//! | | | (u64, as for a token), sealed secret (byte string) |
//! | a token of a user's own | 2 | the fields of version 1 |
//! | the tenant of a user | 1 | tenant (text) |
//! | a quota | 1 | rate per second, or count (f64, as the bits of a u64) |
//!
//! Times are in ms since 1970.

use bytes::BufMut;

use super::{
    AccessKey, AccessKeyId, Account, Acl, Credential, Mechanism, Operation, Pattern, PatternKind, Principal,
    QuotaEntity, QuotaKind, QuotaSubject, ResourceKind, RoleName, TenantName, Token, TokenId, UserName, Which,
};
use crate::error::{Error, Result};
use crate::fields::{Fields, put_bytes, put_text, unknown_version};

const KEY_CREDENTIAL: u16 = 1;
const KEY_ACL: u16 = 2;
const KEY_SECRET: u16 = 3;
const KEY_MEMBER: u16 = 4;
const KEY_TOKEN: u16 = 5;
const KEY_ACCESS_KEY: u16 = 6;
const KEY_QUOTA: u16 = 7;
const KEY_TENANT: u16 = 8;
const VALUE_VERSION: u16 = 1;
/// Version of the value of a token that its user has created: a broker that does not know it refuses the record, as it
/// would not end the token with the password.
const OWN_TOKEN_VERSION: u16 = 2;
/// Expiry time of a token or an access key that does not expire.
const NEVER_MS: u64 = u64::MAX;
/// Kinds of the parts of a quota's entity.
const NONE: u8 = 0;
const ONE: u8 = 1;
const EACH: u8 = 2;
const ROLE: u8 = 3;
const TENANT: u8 = 4;

/// Record of the topic, which adds an entry of a table or removes it.
#[derive(Clone, Debug, PartialEq)]
pub enum SecurityRecord {
    Credential { user: UserName, mechanism: Mechanism, credential: Option<Credential> },
    Acl { acl: Acl, is_present: bool },
    Secret { name: String, value: Option<Vec<u8>> },
    Member { user: UserName, role: RoleName, is_present: bool },
    Token { id: TokenId, token: Option<Token> },
    AccessKey { id: AccessKeyId, key: Option<AccessKey> },
    Quota { entity: QuotaEntity, kind: QuotaKind, value: Option<f64> },
    Tenant { user: UserName, tenant: Option<TenantName> },
}

impl SecurityRecord {
    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        match self {
            Self::Credential { user, mechanism, .. } => {
                key.put_u16(KEY_CREDENTIAL);
                put_text(&mut key, user.as_str());
                key.put_u8(*mechanism as u8);
            }
            Self::Acl { acl, .. } => {
                key.put_u16(KEY_ACL);
                put_acl(&mut key, acl);
            }
            Self::Secret { name, .. } => {
                key.put_u16(KEY_SECRET);
                put_text(&mut key, name);
            }
            Self::Member { user, role, .. } => {
                key.put_u16(KEY_MEMBER);
                put_text(&mut key, user.as_str());
                put_text(&mut key, role.as_str());
            }
            Self::Token { id, .. } => {
                key.put_u16(KEY_TOKEN);
                put_bytes(&mut key, id.as_bytes());
            }
            Self::AccessKey { id, .. } => {
                key.put_u16(KEY_ACCESS_KEY);
                put_text(&mut key, id.as_str());
            }
            Self::Quota { entity, kind, .. } => {
                key.put_u16(KEY_QUOTA);
                put_entity(&mut key, entity);
                key.put_u8(*kind as u8);
            }
            Self::Tenant { user, .. } => {
                key.put_u16(KEY_TENANT);
                put_text(&mut key, user.as_str());
            }
        }
        key
    }

    pub fn value(&self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let is_own = matches!(self, Self::Token { token: Some(Token { is_own: true, .. }), .. });
        value.put_u16(if is_own { OWN_TOKEN_VERSION } else { VALUE_VERSION });
        match self {
            Self::Credential { credential, .. } => {
                let credential = credential.as_ref()?;
                value.put_u32(credential.iterations());
                [credential.salt(), credential.stored_key(), credential.server_key()]
                    .iter()
                    .for_each(|part| put_bytes(&mut value, part));
            }
            Self::Acl { is_present, .. } | Self::Member { is_present, .. } => {
                if !is_present {
                    return None;
                }
            }
            Self::Secret { value: secret, .. } => put_bytes(&mut value, secret.as_ref()?),
            Self::Token { token, .. } => put_token(&mut value, token.as_ref()?),
            Self::AccessKey { key, .. } => put_access_key(&mut value, key.as_ref()?),
            Self::Tenant { tenant, .. } => put_text(&mut value, tenant.as_ref()?.as_str()),
            Self::Quota { value: rate, .. } => value.put_u64((*rate)?.to_bits()),
        }
        Some(value)
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        let mut key = Fields(key);
        let mut value = value.map(Fields);
        let kind = key.u16()?;
        let version = value.as_mut().map_or(Ok(VALUE_VERSION), Fields::u16)?;
        let is_own_token = kind == KEY_TOKEN && version == OWN_TOKEN_VERSION;
        if version != VALUE_VERSION && !is_own_token {
            return Err(unknown_version("value", version));
        }
        let record = match kind {
            KEY_CREDENTIAL => {
                let user = UserName::parse(key.text()?)?;
                let mechanism = key.code(Mechanism::from_code)?;
                let credential = value.as_mut().map(|value| value.credential(mechanism)).transpose()?;
                Self::Credential { user, mechanism, credential }
            }
            KEY_ACL => Self::Acl { acl: key.acl()?, is_present: value.is_some() },
            KEY_SECRET => {
                let name = key.text()?.to_owned();
                let value = value.as_mut().map(|value| value.bytes().map(<[u8]>::to_vec)).transpose()?;
                Self::Secret { name, value }
            }
            KEY_MEMBER => Self::Member {
                user: UserName::parse(key.text()?)?,
                role: RoleName::parse(key.text()?)?,
                is_present: value.is_some(),
            },
            KEY_TOKEN => {
                let id = TokenId::of_bytes(array(key.bytes()?)?);
                Self::Token { id, token: value.as_mut().map(|value| value.token(is_own_token)).transpose()? }
            }
            KEY_ACCESS_KEY => {
                let id = key.text()?.parse()?;
                Self::AccessKey { id, key: value.as_mut().map(Fields::access_key).transpose()? }
            }
            KEY_QUOTA => {
                let entity = key.entity()?;
                let kind = key.code(QuotaKind::from_code)?;
                let value = value.as_mut().map(|value| value.u64().map(f64::from_bits)).transpose()?;
                value.map_or(Ok(()), |value| entity.validate_value(kind, value))?;
                Self::Quota { entity, kind, value }
            }
            KEY_TENANT => {
                let user = UserName::parse(key.text()?)?;
                let tenant = value.as_mut().map(|value| TenantName::parse(value.text()?)).transpose()?;
                Self::Tenant { user, tenant }
            }
            other => return Err(unknown_version("key", other)),
        };
        key.end()?;
        value.map_or(Ok(()), Fields::end)?;
        Ok(record)
    }
}

fn put_acl(out: &mut Vec<u8>, acl: &Acl) {
    out.put_u8(acl.pattern.kind as u8);
    put_text(out, &acl.pattern.name);
    out.put_u8(acl.pattern.matching as u8);
    put_text(out, &acl.principal.to_string());
    put_text(out, &acl.host);
    out.put_u8(acl.operation as u8);
    out.put_u8(u8::from(acl.is_allowed));
}

fn put_token(out: &mut Vec<u8>, token: &Token) {
    put_text(out, token.user.as_str());
    out.put_u64(token.created_ms);
    out.put_u64(token.expires_ms.unwrap_or(NEVER_MS));
    put_bytes(out, &token.hash);
    out.put_u16(token.roles.len() as u16);
    token.roles.iter().for_each(|role| put_text(out, role.as_str()));
}

fn put_access_key(out: &mut Vec<u8>, key: &AccessKey) {
    put_text(out, key.user.as_str());
    put_text(out, key.account.as_ref().map_or("", Account::as_str));
    out.put_u64(key.created_ms);
    out.put_u64(key.expires_ms.unwrap_or(NEVER_MS));
    put_bytes(out, &key.sealed);
}

fn put_entity(out: &mut Vec<u8>, entity: &QuotaEntity) {
    let (kind, name) = match &entity.subject {
        None => (NONE, ""),
        Some(QuotaSubject::User(user)) => (ONE, user.as_str()),
        Some(QuotaSubject::EachUser) => (EACH, ""),
        Some(QuotaSubject::Role(role)) => (ROLE, role.as_str()),
        Some(QuotaSubject::Tenant(tenant)) => (TENANT, tenant.as_str()),
    };
    out.put_u8(kind);
    put_text(out, name);
    let address = entity.address.as_ref().map(|address| match address {
        Which::One(address) => Which::One(address.to_string().into_boxed_str()),
        Which::Default => Which::Default,
    });
    for part in [&entity.client, &address] {
        let (kind, name) = match part {
            None => (NONE, ""),
            Some(Which::One(name)) => (ONE, &**name),
            Some(Which::Default) => (EACH, ""),
        };
        out.put_u8(kind);
        put_text(out, name);
    }
}

/// Returns the bytes if they are of the right length.
fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    <[u8; N]>::try_from(bytes).map_err(|_wrong_length| Error::malformed(format!("{} bytes are not {N}", bytes.len())))
}

impl Fields<'_> {
    fn token(&mut self, is_own: bool) -> Result<Token> {
        let user = UserName::parse(self.text()?)?;
        let created_ms = self.u64()?;
        let expires_ms = Some(self.u64()?).filter(|at| *at != NEVER_MS);
        let hash = array(self.bytes()?)?;
        let count = self.u16()?;
        let roles = (0..count).map(|_| RoleName::parse(self.text()?)).collect::<Result<_>>()?;
        let token = Token { user, roles, created_ms, expires_ms, hash, is_own };
        token.validate()?;
        Ok(token)
    }

    fn access_key(&mut self) -> Result<AccessKey> {
        Ok(AccessKey {
            user: UserName::parse(self.text()?)?,
            account: Some(self.text()?).filter(|account| !account.is_empty()).map(str::parse).transpose()?,
            created_ms: self.u64()?,
            expires_ms: Some(self.u64()?).filter(|at| *at != NEVER_MS),
            sealed: self.bytes()?.into(),
        })
    }

    fn entity(&mut self) -> Result<QuotaEntity> {
        let subject = match (self.u8()?, self.text()?) {
            (NONE, "") => None,
            (ONE, name) => Some(QuotaSubject::User(UserName::parse(name)?)),
            (EACH, "") => Some(QuotaSubject::EachUser),
            (ROLE, name) => Some(QuotaSubject::Role(RoleName::parse(name)?)),
            (TENANT, name) => Some(QuotaSubject::Tenant(TenantName::parse(name)?)),
            (code, _) => return Err(Error::malformed(format!("unknown subject {code} of a quota"))),
        };
        let client = self.which()?.map(|client| match client {
            Which::One(client) => Which::One(client.into()),
            Which::Default => Which::Default,
        });
        let address = match self.which()? {
            None => None,
            Some(Which::Default) => Some(Which::Default),
            Some(Which::One(text)) => {
                let address = text.parse().map_err(|error| Error::malformed(format!("address '{text}': {error}")))?;
                Some(Which::One(address))
            }
        };
        let entity = QuotaEntity { subject, client, address };
        entity.validate()?;
        Ok(entity)
    }

    fn which(&mut self) -> Result<Option<Which<&str>>> {
        match (self.u8()?, self.text()?) {
            (NONE, "") => Ok(None),
            (ONE, name) => Ok(Some(Which::One(name))),
            (EACH, "") => Ok(Some(Which::Default)),
            (code, _) => Err(Error::malformed(format!("unknown part {code} of a quota"))),
        }
    }

    fn credential(&mut self, mechanism: Mechanism) -> Result<Credential> {
        let iterations = self.u32()?;
        let mut part = || self.bytes().map(<[u8]>::to_vec);
        Credential::of_keys(mechanism, iterations, part()?, part()?, part()?)
    }

    fn acl(&mut self) -> Result<Acl> {
        let kind = self.code(ResourceKind::from_code)?;
        let name = self.text()?.to_owned();
        let pattern = Pattern { kind, name, matching: self.code(PatternKind::from_code)? };
        let acl = Acl {
            pattern,
            principal: Principal::parse(self.text()?)?,
            host: self.text()?.to_owned(),
            operation: self.code(Operation::from_code)?,
            is_allowed: self.flag()?,
        };
        acl.validate()?;
        Ok(acl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::security::{Tables, Users};

    fn records() -> Vec<SecurityRecord> {
        let user = UserName::parse("ann").expect("a name");
        let of = |mechanism, credential| SecurityRecord::Credential { user: user.clone(), mechanism, credential };
        let mut records = Vec::new();
        for mechanism in Mechanism::ALL {
            let credential = Credential::of_password(mechanism, "pencil", vec![9; 20], 4096).expect("a credential");
            records.push(of(mechanism, Some(credential)));
        }
        records.push(of(Mechanism::Sha256, None));
        let acl = Acl {
            pattern: Pattern { kind: ResourceKind::Group, name: "billing".into(), matching: PatternKind::Prefix },
            principal: Principal::User(user.clone()),
            host: "*".into(),
            operation: Operation::AlterConfigs,
            is_allowed: false,
        };
        records.push(SecurityRecord::Acl { acl: acl.clone(), is_present: true });
        let of_everyone = Acl { principal: Principal::Everyone, ..acl.clone() };
        records.push(SecurityRecord::Acl { acl: of_everyone, is_present: false });
        let role = RoleName::parse("auditors").expect("a name");
        let glob = Pattern { kind: ResourceKind::Cache, name: "db*/u?".into(), matching: PatternKind::Glob };
        let of_role = Acl { pattern: glob, principal: Principal::Role(role.clone()), ..acl.clone() };
        records.push(SecurityRecord::Acl { acl: of_role, is_present: true });
        for is_present in [true, false] {
            records.push(SecurityRecord::Member { user: user.clone(), role: role.clone(), is_present });
        }
        let key = AccessKey {
            user: user.clone(),
            account: Some("111122223333".parse().expect("an account")),
            created_ms: 5,
            expires_ms: None,
            sealed: vec![8; 60].into(),
        };
        let other = AccessKey { account: None, expires_ms: Some(9), ..key.clone() };
        for (id, key) in [("AKIA1", Some(key)), ("k_2", Some(other)), ("AKIA1", None)] {
            records.push(SecurityRecord::AccessKey { id: id.parse().expect("an id"), key });
        }
        let token = Token { user, roles: vec![role], created_ms: 5, expires_ms: Some(9), hash: [7; 32], is_own: false };
        let endless = Token { roles: Vec::new(), expires_ms: None, ..token.clone() };
        let own = Token { roles: Vec::new(), is_own: true, ..token.clone() };
        for (id, token) in [(1, Some(token)), (2, Some(endless)), (3, Some(own)), (1, None)] {
            records.push(SecurityRecord::Token { id: TokenId::of_bytes([id; 8]), token });
        }
        let role = RoleName::parse("auditors").expect("a name");
        let subjects = [None, Some(QuotaSubject::EachUser), Some(QuotaSubject::Role(role))];
        for (subject, client) in subjects.into_iter().zip([Some(Which::One("app".into())), None, Some(Which::Default)])
        {
            let entity = QuotaEntity { subject, client, address: None };
            for value in [Some(1.5), Some(2.0)] {
                records.push(SecurityRecord::Quota { entity: entity.clone(), kind: QuotaKind::Requests, value });
            }
        }
        let tenant = Some(QuotaSubject::Tenant(TenantName::parse("acme").expect("a name")));
        let entity = QuotaEntity { subject: tenant, ..QuotaEntity::default() };
        for value in [Some(3.0), None] {
            records.push(SecurityRecord::Quota { entity: entity.clone(), kind: QuotaKind::Topics, value });
        }
        let ip = "10.0.0.1".parse().expect("an address");
        for address in [Which::One(ip), Which::Default] {
            let entity = QuotaEntity { address: Some(address), ..QuotaEntity::default() };
            for value in [Some(7.0), None] {
                records.push(SecurityRecord::Quota { entity: entity.clone(), kind: QuotaKind::Connections, value });
            }
        }
        for (user, tenant) in [("ann", Some("acme")), ("bob", Some("project:shop")), ("ann", None)] {
            let tenant = tenant.map(|tenant| TenantName::parse(tenant).expect("a name"));
            records.push(SecurityRecord::Tenant { user: UserName::parse(user).expect("a name"), tenant });
        }
        let secret = |name: &str, value| SecurityRecord::Secret { name: name.into(), value };
        records.extend([secret("a", Some(vec![1])), secret("b", Some(vec![2; 200])), secret("a", None)]);
        records
    }

    #[test]
    fn records_are_read_as_they_were_written_or_not_at_all() {
        for record in records() {
            let key = record.key();
            let value = record.value();
            assert_eq!(SecurityRecord::decode(&key, value.as_deref()), Ok(record));
            for cut in 0..key.len() {
                assert!(SecurityRecord::decode(&key[..cut], value.as_deref()).is_err());
            }
            for value in value.iter() {
                assert!((0..value.len()).all(|cut| SecurityRecord::decode(&key, Some(&value[..cut])).is_err()));
                assert!(SecurityRecord::decode(&key, Some(&[&value[..], &[0]].concat())).is_err());
            }
        }
        let member = SecurityRecord::Member {
            user: UserName::parse("ann").expect("a name"),
            role: RoleName::parse("auditors").expect("a name"),
            is_present: true,
        };
        let later = SecurityRecord::decode(&member.key(), Some(&[0, 2]));
        assert!(later.is_err_and(|error| error.kind == ErrorKind::Unsupported));
        assert!(SecurityRecord::decode(&[0, 9], None).is_err_and(|error| error.kind == ErrorKind::Unsupported));
    }

    #[test]
    fn tables_contain_the_newest_records() {
        let mut tables = Tables::new(Users::new(vec![1]));
        records().into_iter().for_each(|record| tables.apply(record));
        let ann = tables.users.get("ann").expect("she is there");
        assert_eq!(ann.keys().copied().collect::<Vec<_>>(), [Mechanism::Sha512]);
        assert_eq!(tables.acls.len(), 2);
        assert!(tables.members.is_empty());
        let tenants: Vec<_> = tables.tenants.iter().map(|(user, tenant)| (user.as_str(), tenant.as_str())).collect();
        assert_eq!(tenants, [("bob", "project:shop")]);
        assert_eq!(tables.tokens.iter().map(|(id, _)| id.as_bytes()[0]).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(tables.access_keys.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["k_2"]);
        assert_eq!(tables.quotas.len(), 3);
        assert!(tables.quotas.iter().all(|(_, values)| values == [(QuotaKind::Requests, 2.0)]));
        assert_eq!(tables.secrets.into_iter().collect::<Vec<_>>(), [("b".to_owned(), vec![2; 200])]);
    }
}
