//! Users, tokens, access keys, quotas, roles, tenants and access control lists on the wire. Passwords and tokens are
//! never sent: the client derives from them what the broker stores. The secret of an access key is sent, since the
//! broker verifies signatures with it.

use core::net::IpAddr;

use bytes::{Buf, BufMut, BytesMut};
use engine::security::{
    AccessKeyId, AccessSecret, Account, Acl, AclFilter, Credential, Match, Mechanism, Operation, Pattern, PatternKind,
    Principal, QuotaEntity, QuotaKind, QuotaSubject, ResourceKind, RoleName, TenantName, TokenHash, TokenId, UserName,
    Which,
};
use engine::{Error, Result};

use crate::field::{Fields, get_code, non_empty, put_list, put_option, put_str};
use crate::kind::{request, response};

/// Code in a filter that matches any value.
const ANY: u8 = 0;

/// Action of a request of the kind [`request::SECURITY`]: the first byte of its body, and of that of its answer.
#[derive(Clone, Copy)]
#[repr(u8)]
enum SecurityAction {
    PutToken = 1,
    DeleteToken = 2,
    ListTokens = 3,
    PutAccessKey = 4,
    DeleteAccessKey = 5,
    ListAccessKeys = 6,
    ChangeQuotas = 7,
    ListQuotas = 8,
    PutOwnToken = 9,
    SetTenant = 10,
    ListTenants = 11,
}

impl SecurityAction {
    fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::PutToken,
            Self::DeleteToken,
            Self::ListTokens,
            Self::PutAccessKey,
            Self::DeleteAccessKey,
            Self::ListAccessKeys,
            Self::ChangeQuotas,
            Self::ListQuotas,
            Self::PutOwnToken,
            Self::SetTenant,
            Self::ListTenants,
        ];
        all.into_iter().find(|action| *action as u8 == code)
    }
}

/// Expiry time of a token or an access key that does not expire.
const NEVER_MS: u64 = u64::MAX;

/// Kinds of the parts of a quota's entity.
const NONE: u8 = 0;
const ONE: u8 = 1;
const EACH: u8 = 2;
const ROLE: u8 = 3;
const TENANT: u8 = 4;

/// Request about users, tokens, quotas, roles and access control entries.
#[derive(Clone, Debug, PartialEq)]
pub enum SecurityRequest {
    /// Creates a user, or replaces the credentials for the same mechanisms.
    PutUser {
        /// Name of the user.
        user: UserName,
        /// Credentials, at least one.
        credentials: Vec<Credential>,
    },
    /// Deletes credentials of a user; all credentials if `mechanisms` is empty.
    DeleteUser {
        /// Name of the user.
        user: UserName,
        /// Mechanisms whose credentials are deleted.
        mechanisms: Vec<Mechanism>,
    },
    /// Lists all users.
    ListUsers,
    /// Creates access control entries.
    CreateAcls(Vec<Acl>),
    /// Deletes all entries that match the filter.
    DeleteAcls(AclFilter),
    /// Lists all entries that match the filter.
    ListAcls(AclFilter),
    /// Gives a user a role, or takes it away.
    SetMember {
        /// Name of the user, who does not have to exist.
        user: UserName,
        /// Name of the role.
        role: RoleName,
        /// `true` if the user has the role from now on.
        is_present: bool,
    },
    /// Lists the members of all roles.
    ListMembers,
    /// Creates a token.
    PutToken {
        /// Id of the token, which must be new.
        id: TokenId,
        /// Hash of its secret.
        hash: TokenHash,
        /// User as whom its clients log in, who does not have to exist.
        user: UserName,
        /// Roles that its clients have in addition to those of the user.
        roles: Vec<RoleName>,
        /// Time in ms since 1970 from which it is not accepted; `None` if it does not expire.
        expires_ms: Option<u64>,
    },
    /// Creates a token of the user that the client has logged in as, with a password.
    PutOwnToken {
        /// Id of the token, which must be new.
        id: TokenId,
        /// Hash of its secret.
        hash: TokenHash,
        /// Time in ms since 1970 from which it is not accepted.
        expires_ms: u64,
    },
    /// Deletes a token.
    DeleteToken(TokenId),
    /// Lists the tokens that the client may see.
    ListTokens,
    /// Creates an access key.
    PutAccessKey {
        /// Name of the key, which must be new.
        id: AccessKeyId,
        /// Secret with which its clients sign.
        secret: AccessSecret,
        /// User on whose behalf its clients act, who does not have to exist.
        user: UserName,
        /// Account whose queues its clients use; `None` for the default of the SQS door.
        account: Option<Account>,
        /// Time in ms since 1970 from which it is not accepted; `None` if it does not expire.
        expires_ms: Option<u64>,
    },
    /// Deletes an access key.
    DeleteAccessKey(AccessKeyId),
    /// Lists all access keys.
    ListAccessKeys,
    /// Sets or deletes quotas, all together or none of them.
    ChangeQuotas(Vec<QuotaChange>),
    /// Lists all quotas.
    ListQuotas,
    /// Puts a user into a tenant, or takes it out of the one that it has.
    SetTenant {
        /// Name of the user, who does not have to exist.
        user: UserName,
        /// Name of the tenant; `None` for none.
        tenant: Option<TenantName>,
    },
    /// Lists the users that have a tenant.
    ListTenants,
}

/// Change of one quota of a broker.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaChange {
    /// Clients that the quota limits.
    pub entity: QuotaEntity,
    /// Rate or count that it limits.
    pub kind: QuotaKind,
    /// Maximum, per second if it is a rate; `None` deletes the quota.
    pub value: Option<f64>,
}

/// Answer about users, tokens, quotas, roles and access control entries.
#[derive(Clone, Debug, PartialEq)]
pub enum SecurityResponse {
    /// Answers [`SecurityRequest::PutUser`].
    UserPut,
    /// Answers [`SecurityRequest::DeleteUser`].
    UserDeleted,
    /// Answers [`SecurityRequest::ListUsers`].
    Users(Vec<UserInfo>),
    /// Answers [`SecurityRequest::CreateAcls`].
    AclsCreated,
    /// Entries that were deleted.
    AclsDeleted(Vec<Acl>),
    /// Answers [`SecurityRequest::ListAcls`].
    Acls(Vec<Acl>),
    /// Answers [`SecurityRequest::SetMember`].
    MemberSet,
    /// Users in the order of their names, each with its roles.
    Members(Vec<(UserName, Vec<RoleName>)>),
    /// Answers [`SecurityRequest::PutToken`].
    TokenPut,
    /// User of the created token; answers [`SecurityRequest::PutOwnToken`].
    OwnTokenPut(UserName),
    /// Answers [`SecurityRequest::DeleteToken`].
    TokenDeleted,
    /// Answers [`SecurityRequest::ListTokens`], in the order of their ids.
    Tokens(Vec<TokenInfo>),
    /// Answers [`SecurityRequest::PutAccessKey`].
    AccessKeyPut,
    /// Answers [`SecurityRequest::DeleteAccessKey`].
    AccessKeyDeleted,
    /// Answers [`SecurityRequest::ListAccessKeys`], in the order of their names.
    AccessKeys(Vec<AccessKeyInfo>),
    /// Answers [`SecurityRequest::ChangeQuotas`].
    QuotasChanged,
    /// Entities in their order, each with its quotas.
    Quotas(Vec<(QuotaEntity, Vec<(QuotaKind, f64)>)>),
    /// Answers [`SecurityRequest::SetTenant`].
    TenantSet,
    /// Users in the order of their names, each with its tenant.
    Tenants(Vec<(UserName, TenantName)>),
}

/// Token of a broker, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Id of the token.
    pub id: TokenId,
    /// User as whom its clients log in.
    pub user: UserName,
    /// Roles that its clients have in addition to those of the user.
    pub roles: Vec<RoleName>,
    /// Time of creation in ms since 1970.
    pub created_ms: u64,
    /// Time in ms since 1970 from which it is not accepted; `None` if it does not expire.
    pub expires_ms: Option<u64>,
}

/// Access key of a broker, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessKeyInfo {
    /// Name of the key.
    pub id: AccessKeyId,
    /// User on whose behalf its clients act.
    pub user: UserName,
    /// Account whose queues its clients use; `None` for the default of the SQS door.
    pub account: Option<Account>,
    /// Time of creation in ms since 1970.
    pub created_ms: u64,
    /// Time in ms since 1970 from which it is not accepted; `None` if it does not expire.
    pub expires_ms: Option<u64>,
}

/// User of a broker, without passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserInfo {
    /// Name of the user.
    pub name: UserName,
    /// Mechanisms for which the user has credentials, each with its number of iterations.
    pub mechanisms: Vec<(Mechanism, u32)>,
    /// `true` if the configuration contains the user; requests cannot change such a user.
    pub is_configured: bool,
    /// `true` if the user may do everything.
    pub is_super: bool,
}

impl SecurityRequest {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::PutUser { .. } => request::USER_PUT,
            Self::DeleteUser { .. } => request::USER_DELETE,
            Self::ListUsers => request::USER_LIST,
            Self::CreateAcls(_) => request::ACL_CREATE,
            Self::DeleteAcls(_) => request::ACL_DELETE,
            Self::ListAcls(_) => request::ACL_LIST,
            Self::SetMember { .. } => request::MEMBER_SET,
            Self::ListMembers => request::MEMBER_LIST,
            Self::PutToken { .. }
            | Self::PutOwnToken { .. }
            | Self::DeleteToken(_)
            | Self::ListTokens
            | Self::PutAccessKey { .. }
            | Self::DeleteAccessKey(_)
            | Self::ListAccessKeys
            | Self::ChangeQuotas(_)
            | Self::ListQuotas
            | Self::SetTenant { .. }
            | Self::ListTenants => request::SECURITY,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::PutUser { user, credentials } => {
                put_str(b, user.as_str());
                put_list(b, credentials, put_credential);
            }
            Self::DeleteUser { user, mechanisms } => {
                put_str(b, user.as_str());
                put_list(b, mechanisms, |b, mechanism| b.put_u8(*mechanism as u8));
            }
            Self::ListUsers | Self::ListMembers => {}
            Self::ListTokens => b.put_u8(SecurityAction::ListTokens as u8),
            Self::ChangeQuotas(changes) => {
                b.put_u8(SecurityAction::ChangeQuotas as u8);
                put_list(b, changes, |b, QuotaChange { entity, kind, value }| {
                    put_entity(b, entity);
                    b.put_u8(*kind as u8);
                    put_option(b, value.as_ref(), |b, value| b.put_f64(*value));
                });
            }
            Self::ListQuotas => b.put_u8(SecurityAction::ListQuotas as u8),
            Self::SetTenant { user, tenant } => {
                b.put_u8(SecurityAction::SetTenant as u8);
                put_str(b, user.as_str());
                put_str(b, tenant.as_ref().map_or("", TenantName::as_str));
            }
            Self::ListTenants => b.put_u8(SecurityAction::ListTenants as u8),
            Self::PutToken { id, hash, user, roles, expires_ms } => {
                b.put_u8(SecurityAction::PutToken as u8);
                b.put_slice(id.as_bytes());
                b.put_slice(hash);
                put_str(b, user.as_str());
                put_list(b, roles, |b, role| put_str(b, role.as_str()));
                b.put_u64(expires_ms.unwrap_or(NEVER_MS));
            }
            Self::PutOwnToken { id, hash, expires_ms } => {
                b.put_u8(SecurityAction::PutOwnToken as u8);
                b.put_slice(id.as_bytes());
                b.put_slice(hash);
                b.put_u64(*expires_ms);
            }
            Self::DeleteToken(id) => {
                b.put_u8(SecurityAction::DeleteToken as u8);
                b.put_slice(id.as_bytes());
            }
            Self::ListAccessKeys => b.put_u8(SecurityAction::ListAccessKeys as u8),
            Self::PutAccessKey { id, secret, user, account, expires_ms } => {
                b.put_u8(SecurityAction::PutAccessKey as u8);
                put_str(b, id.as_str());
                put_str(b, secret.reveal());
                put_str(b, user.as_str());
                put_account(b, account.as_ref());
                b.put_u64(expires_ms.unwrap_or(NEVER_MS));
            }
            Self::DeleteAccessKey(id) => {
                b.put_u8(SecurityAction::DeleteAccessKey as u8);
                put_str(b, id.as_str());
            }
            Self::SetMember { user, role, is_present } => {
                put_str(b, user.as_str());
                put_str(b, role.as_str());
                b.put_u8(u8::from(*is_present));
            }
            Self::CreateAcls(acls) => put_list(b, acls, put_acl),
            Self::DeleteAcls(filter) | Self::ListAcls(filter) => put_filter(b, filter),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            request::USER_PUT => {
                Self::PutUser { user: get_user(f)?, credentials: f.list(CREDENTIAL_BYTES_MIN, get_credential)? }
            }
            request::USER_DELETE => Self::DeleteUser { user: get_user(f)?, mechanisms: f.list(1, get_mechanism)? },
            request::USER_LIST => Self::ListUsers,
            request::ACL_CREATE => Self::CreateAcls(f.list(ACL_BYTES_MIN, get_acl)?),
            request::ACL_DELETE => Self::DeleteAcls(get_filter(f)?),
            request::MEMBER_SET => Self::SetMember { user: get_user(f)?, role: get_role(f)?, is_present: f.bool()? },
            request::MEMBER_LIST => Self::ListMembers,
            request::SECURITY => match get_action(f)? {
                SecurityAction::PutToken => Self::PutToken {
                    id: get_id(f)?,
                    hash: get_array(f)?,
                    user: get_user(f)?,
                    roles: f.list(3, get_role)?,
                    expires_ms: get_expiry(f)?,
                },
                SecurityAction::DeleteToken => Self::DeleteToken(get_id(f)?),
                SecurityAction::ListTokens => Self::ListTokens,
                SecurityAction::PutAccessKey => Self::PutAccessKey {
                    id: f.str()?.parse()?,
                    secret: AccessSecret::parse(&f.str()?)?,
                    user: get_user(f)?,
                    account: get_account(f)?,
                    expires_ms: get_expiry(f)?,
                },
                SecurityAction::DeleteAccessKey => Self::DeleteAccessKey(f.str()?.parse()?),
                SecurityAction::ListAccessKeys => Self::ListAccessKeys,
                SecurityAction::ChangeQuotas => Self::ChangeQuotas(f.list(ENTITY_BYTES_MIN + 2, get_change)?),
                SecurityAction::ListQuotas => Self::ListQuotas,
                SecurityAction::SetTenant => Self::SetTenant {
                    user: get_user(f)?,
                    tenant: non_empty(f.str()?).map(|tenant| tenant.parse()).transpose()?,
                },
                SecurityAction::ListTenants => Self::ListTenants,
                SecurityAction::PutOwnToken => {
                    Self::PutOwnToken { id: get_id(f)?, hash: get_array(f)?, expires_ms: f.u64()? }
                }
            },
            _ => Self::ListAcls(get_filter(f)?),
        })
    }
}

impl SecurityResponse {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::UserPut => response::USER_PUT,
            Self::UserDeleted => response::USER_DELETED,
            Self::Users(_) => response::USERS,
            Self::AclsCreated => response::ACLS_CREATED,
            Self::AclsDeleted(_) => response::ACLS_DELETED,
            Self::Acls(_) => response::ACLS,
            Self::MemberSet => response::MEMBER_SET,
            Self::Members(_) => response::MEMBERS,
            Self::TokenPut
            | Self::OwnTokenPut(_)
            | Self::TokenDeleted
            | Self::Tokens(_)
            | Self::AccessKeyPut
            | Self::AccessKeyDeleted
            | Self::AccessKeys(_)
            | Self::QuotasChanged
            | Self::Quotas(_)
            | Self::TenantSet
            | Self::Tenants(_) => response::SECURITY,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::UserPut | Self::UserDeleted | Self::AclsCreated | Self::MemberSet => {}
            Self::TokenPut => b.put_u8(SecurityAction::PutToken as u8),
            Self::OwnTokenPut(user) => {
                b.put_u8(SecurityAction::PutOwnToken as u8);
                put_str(b, user.as_str());
            }
            Self::TokenDeleted => b.put_u8(SecurityAction::DeleteToken as u8),
            Self::Tokens(tokens) => {
                b.put_u8(SecurityAction::ListTokens as u8);
                put_list(b, tokens, put_token);
            }
            Self::AccessKeyPut => b.put_u8(SecurityAction::PutAccessKey as u8),
            Self::AccessKeyDeleted => b.put_u8(SecurityAction::DeleteAccessKey as u8),
            Self::AccessKeys(keys) => {
                b.put_u8(SecurityAction::ListAccessKeys as u8);
                put_list(b, keys, put_access_key);
            }
            Self::TenantSet => b.put_u8(SecurityAction::SetTenant as u8),
            Self::Tenants(tenants) => {
                b.put_u8(SecurityAction::ListTenants as u8);
                put_list(b, tenants, |b, (user, tenant)| {
                    put_str(b, user.as_str());
                    put_str(b, tenant.as_str());
                });
            }
            Self::QuotasChanged => b.put_u8(SecurityAction::ChangeQuotas as u8),
            Self::Quotas(quotas) => {
                b.put_u8(SecurityAction::ListQuotas as u8);
                put_list(b, quotas, |b, (entity, values)| {
                    put_entity(b, entity);
                    put_list(b, values, |b, (kind, value)| {
                        b.put_u8(*kind as u8);
                        b.put_f64(*value);
                    });
                });
            }
            Self::Members(members) => put_list(b, members, |b, (user, roles)| {
                put_str(b, user.as_str());
                put_list(b, roles, |b, role| put_str(b, role.as_str()));
            }),
            Self::Users(users) => put_list(b, users, |b, user| {
                put_str(b, user.name.as_str());
                b.put_u8(u8::from(user.is_configured));
                b.put_u8(u8::from(user.is_super));
                put_list(b, &user.mechanisms, |b, (mechanism, iterations)| {
                    b.put_u8(*mechanism as u8);
                    b.put_u32(*iterations);
                });
            }),
            Self::AclsDeleted(acls) | Self::Acls(acls) => put_list(b, acls, put_acl),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            response::USER_PUT => Self::UserPut,
            response::USER_DELETED => Self::UserDeleted,
            response::USERS => Self::Users(f.list(8, |f| {
                let name = get_user(f)?;
                let is_configured = f.bool()?;
                let is_super = f.bool()?;
                let mechanisms = f.list(5, |f| Ok((get_mechanism(f)?, f.u32()?)))?;
                Ok(UserInfo { name, mechanisms, is_configured, is_super })
            })?),
            response::ACLS_CREATED => Self::AclsCreated,
            response::MEMBER_SET => Self::MemberSet,
            response::MEMBERS => Self::Members(f.list(4, |f| Ok((get_user(f)?, f.list(3, get_role)?)))?),
            response::SECURITY => match get_action(f)? {
                SecurityAction::PutToken => Self::TokenPut,
                SecurityAction::DeleteToken => Self::TokenDeleted,
                SecurityAction::ListTokens => Self::Tokens(f.list(TOKEN_BYTES_MIN, get_token)?),
                SecurityAction::PutOwnToken => Self::OwnTokenPut(get_user(f)?),
                SecurityAction::PutAccessKey => Self::AccessKeyPut,
                SecurityAction::DeleteAccessKey => Self::AccessKeyDeleted,
                SecurityAction::ListAccessKeys => Self::AccessKeys(f.list(ACCESS_KEY_BYTES_MIN, get_access_key)?),
                SecurityAction::ChangeQuotas => Self::QuotasChanged,
                SecurityAction::SetTenant => Self::TenantSet,
                SecurityAction::ListTenants => {
                    Self::Tenants(f.list(TENANT_BYTES_MIN, |f| Ok((get_user(f)?, f.str()?.parse()?)))?)
                }
                SecurityAction::ListQuotas => Self::Quotas(f.list(ENTITY_BYTES_MIN + 4, |f| {
                    Ok((get_entity(f)?, f.list(9, |f| Ok((get_kind(f)?, get_value(f)?)))?))
                })?),
            },
            response::ACLS_DELETED => Self::AclsDeleted(f.list(ACL_BYTES_MIN, get_acl)?),
            _ => Self::Acls(f.list(ACL_BYTES_MIN, get_acl)?),
        })
    }
}

const CREDENTIAL_BYTES_MIN: usize = 11;
const ACL_BYTES_MIN: usize = 10;
const TOKEN_BYTES_MIN: usize = 31;
const ACCESS_KEY_BYTES_MIN: usize = 24;
const ENTITY_BYTES_MIN: usize = 9;
const TENANT_BYTES_MIN: usize = 6;

fn get_user<B: Buf>(f: &mut Fields<B>) -> Result<UserName> {
    UserName::parse(&f.str()?)
}

fn get_role<B: Buf>(f: &mut Fields<B>) -> Result<RoleName> {
    RoleName::parse(&f.str()?)
}

fn get_array<B: Buf, const N: usize>(f: &mut Fields<B>) -> Result<[u8; N]> {
    let mut array = [0; N];
    f.bytes(N)?.copy_to_slice(&mut array);
    Ok(array)
}

fn get_id<B: Buf>(f: &mut Fields<B>) -> Result<TokenId> {
    Ok(TokenId::of_bytes(get_array(f)?))
}

fn get_action<B: Buf>(f: &mut Fields<B>) -> Result<SecurityAction> {
    get_code(f, "action", SecurityAction::from_code)
}

fn put_token(b: &mut BytesMut, token: &TokenInfo) {
    b.put_slice(token.id.as_bytes());
    put_str(b, token.user.as_str());
    put_list(b, &token.roles, |b, role| put_str(b, role.as_str()));
    b.put_u64(token.created_ms);
    b.put_u64(token.expires_ms.unwrap_or(NEVER_MS));
}

fn get_token<B: Buf>(f: &mut Fields<B>) -> Result<TokenInfo> {
    Ok(TokenInfo {
        id: get_id(f)?,
        user: get_user(f)?,
        roles: f.list(3, get_role)?,
        created_ms: f.u64()?,
        expires_ms: get_expiry(f)?,
    })
}

/// Appends an account. An empty text is none.
fn put_account(b: &mut BytesMut, account: Option<&Account>) {
    put_str(b, account.map_or("", Account::as_str));
}

fn get_account<B: Buf>(f: &mut Fields<B>) -> Result<Option<Account>> {
    non_empty(f.str()?).map(|account| account.parse()).transpose()
}

fn put_access_key(b: &mut BytesMut, key: &AccessKeyInfo) {
    put_str(b, key.id.as_str());
    put_str(b, key.user.as_str());
    put_account(b, key.account.as_ref());
    b.put_u64(key.created_ms);
    b.put_u64(key.expires_ms.unwrap_or(NEVER_MS));
}

fn get_access_key<B: Buf>(f: &mut Fields<B>) -> Result<AccessKeyInfo> {
    Ok(AccessKeyInfo {
        id: f.str()?.parse()?,
        user: get_user(f)?,
        account: get_account(f)?,
        created_ms: f.u64()?,
        expires_ms: get_expiry(f)?,
    })
}

fn get_expiry<B: Buf>(f: &mut Fields<B>) -> Result<Option<u64>> {
    Ok(Some(f.u64()?).filter(|at| *at != NEVER_MS))
}

fn put_entity(b: &mut BytesMut, entity: &QuotaEntity) {
    let (kind, name) = match &entity.subject {
        None => (NONE, ""),
        Some(QuotaSubject::User(user)) => (ONE, user.as_str()),
        Some(QuotaSubject::EachUser) => (EACH, ""),
        Some(QuotaSubject::Role(role)) => (ROLE, role.as_str()),
        Some(QuotaSubject::Tenant(tenant)) => (TENANT, tenant.as_str()),
    };
    b.put_u8(kind);
    put_str(b, name);
    let address = entity.address.as_ref().map(|address| match address {
        Which::One(address) => Which::One(address.to_canonical().to_string().into_boxed_str()),
        Which::Default => Which::Default,
    });
    for part in [&entity.client, &address] {
        let (kind, name) = match part {
            None => (NONE, ""),
            Some(Which::One(name)) => (ONE, &**name),
            Some(Which::Default) => (EACH, ""),
        };
        b.put_u8(kind);
        put_str(b, name);
    }
}

fn get_entity<B: Buf>(f: &mut Fields<B>) -> Result<QuotaEntity> {
    let subject = match (f.u8()?, &*f.str()?) {
        (NONE, "") => None,
        (ONE, name) => Some(QuotaSubject::User(UserName::parse(name)?)),
        (EACH, "") => Some(QuotaSubject::EachUser),
        (ROLE, name) => Some(QuotaSubject::Role(RoleName::parse(name)?)),
        (TENANT, name) => Some(QuotaSubject::Tenant(TenantName::parse(name)?)),
        (code, _) => return Err(Error::malformed(format!("unknown subject {code} of a quota"))),
    };
    let client = get_which(f)?.map(|client| match client {
        Which::One(client) => Which::One(client.into_boxed_str()),
        Which::Default => Which::Default,
    });
    let address = match get_which(f)? {
        None => None,
        Some(Which::Default) => Some(Which::Default),
        Some(Which::One(text)) => Some(Which::One(parse_address(&text)?)),
    };
    let entity = QuotaEntity { subject, client, address };
    entity.validate()?;
    Ok(entity)
}

/// Parses an address in the one text that the encoding writes, so that equal entities have equal bytes.
fn parse_address(text: &str) -> Result<IpAddr> {
    let wrong = |error| Error::invalid(format!("'{text}' is not an address: {error}"));
    let address = text.parse::<IpAddr>().map_err(wrong)?.to_canonical();
    let canonical = address.to_string();
    if canonical != text {
        return Err(Error::invalid(format!("the address '{text}' is not in its shortest form: send '{canonical}'")));
    }
    Ok(address)
}

fn get_which<B: Buf>(f: &mut Fields<B>) -> Result<Option<Which<String>>> {
    match (f.u8()?, f.str()?) {
        (NONE, name) if name.is_empty() => Ok(None),
        (ONE, name) => Ok(Some(Which::One(name))),
        (EACH, name) if name.is_empty() => Ok(Some(Which::Default)),
        (code, _) => Err(Error::malformed(format!("unknown part {code} of a quota"))),
    }
}

fn get_kind<B: Buf>(f: &mut Fields<B>) -> Result<QuotaKind> {
    get_code(f, "kind of quota", QuotaKind::from_code)
}

fn get_value<B: Buf>(f: &mut Fields<B>) -> Result<f64> {
    Ok(f64::from_bits(f.u64()?))
}

fn get_change<B: Buf>(f: &mut Fields<B>) -> Result<QuotaChange> {
    let entity = get_entity(f)?;
    let kind = get_kind(f)?;
    let value = if f.bool()? { Some(get_value(f)?) } else { None };
    value.map_or(Ok(()), |value| entity.validate_value(kind, value))?;
    Ok(QuotaChange { entity, kind, value })
}

fn get_mechanism<B: Buf>(f: &mut Fields<B>) -> Result<Mechanism> {
    get_code(f, "mechanism", Mechanism::from_code)
}

fn put_bytes(b: &mut BytesMut, bytes: &[u8]) {
    b.put_u16(bytes.len() as u16);
    b.put_slice(bytes);
}

fn put_credential(b: &mut BytesMut, credential: &Credential) {
    b.put_u8(credential.mechanism() as u8);
    b.put_u32(credential.iterations());
    put_bytes(b, credential.salt());
    put_bytes(b, credential.stored_key());
    put_bytes(b, credential.server_key());
}

fn get_credential<B: Buf>(f: &mut Fields<B>) -> Result<Credential> {
    let mechanism = get_mechanism(f)?;
    let iterations = f.u32()?;
    let mut part = || {
        let length = usize::from(f.u16()?);
        Ok::<_, Error>(f.bytes(length)?.to_vec())
    };
    Credential::of_keys(mechanism, iterations, part()?, part()?, part()?)
}

fn put_acl(b: &mut BytesMut, acl: &Acl) {
    b.put_u8(acl.pattern.kind as u8);
    put_str(b, &acl.pattern.name);
    b.put_u8(acl.pattern.matching as u8);
    put_str(b, &acl.principal.to_string());
    put_str(b, &acl.host);
    b.put_u8(acl.operation as u8);
    b.put_u8(u8::from(acl.is_allowed));
}

fn get_acl<B: Buf>(f: &mut Fields<B>) -> Result<Acl> {
    let kind = get_code(f, "kind of resource", ResourceKind::from_code)?;
    let name = f.str()?;
    let pattern = Pattern { kind, name, matching: get_code(f, "kind of pattern", PatternKind::from_code)? };
    Ok(Acl {
        pattern,
        principal: Principal::parse(&f.str()?)?,
        host: f.str()?,
        operation: get_code(f, "operation", Operation::from_code)?,
        is_allowed: f.bool()?,
    })
}

/// Appends a filter. An empty text matches any, and so does code 0; neither is a valid value.
fn put_filter(b: &mut BytesMut, filter: &AclFilter) {
    b.put_u8(filter.kind.map_or(ANY, |kind| kind as u8));
    put_str(b, filter.name.as_deref().unwrap_or_default());
    b.put_u8(filter.matching as u8);
    put_str(b, &filter.principal.as_ref().map_or(String::new(), ToString::to_string));
    put_str(b, filter.host.as_deref().unwrap_or_default());
    b.put_u8(filter.operation.map_or(ANY, |operation| operation as u8));
    b.put_u8(filter.is_allowed.map_or(ANY, |is_allowed| 1 + u8::from(is_allowed)));
}

fn get_filter<B: Buf>(f: &mut Fields<B>) -> Result<AclFilter> {
    fn or_any<T>(from_code: impl Fn(u8) -> Option<T>) -> impl Fn(u8) -> Option<Option<T>> {
        move |code| if code == ANY { Some(None) } else { from_code(code).map(Some) }
    }
    let is_allowed = |code| [false, true].get(usize::from(code) - 1).copied();
    Ok(AclFilter {
        kind: get_code(f, "kind of resource", or_any(ResourceKind::from_code))?,
        name: non_empty(f.str()?),
        matching: get_code(f, "way to match a name", Match::from_code)?,
        principal: non_empty(f.str()?).as_deref().map(Principal::parse).transpose()?,
        host: non_empty(f.str()?),
        operation: get_code(f, "operation", or_any(Operation::from_code))?,
        is_allowed: get_code(f, "permission", or_any(is_allowed))?,
    })
}
