//! Users, tokens, access keys, quotas, roles and access control lists of a broker.

use engine::security::{
    AccessKeyId, AccessSecret, Account, Acl, AclFilter, Credential, Mechanism, QuotaEntity, QuotaKind, RoleName,
    TenantName, TokenHash, TokenId, UserName,
};
use engine::{Error, Result};
use wire::security::{AccessKeyInfo, QuotaChange, SecurityRequest, SecurityResponse, TokenInfo, UserInfo};
use wire::{Request, Response};

use crate::client::Client;
use crate::link::unexpected;

impl Client {
    /// Sets these credentials of a user. They replace existing credentials for the same mechanisms.
    pub async fn put_user(&self, user: UserName, credentials: Vec<Credential>) -> Result<()> {
        match self.security(SecurityRequest::PutUser { user, credentials }).await? {
            SecurityResponse::UserPut => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Deletes a user's credentials for these mechanisms, or all if `mechanisms` is empty. Existing connections of the
    /// user stay open.
    pub async fn delete_user(&self, user: UserName, mechanisms: Vec<Mechanism>) -> Result<()> {
        match self.security(SecurityRequest::DeleteUser { user, mechanisms }).await? {
            SecurityResponse::UserDeleted => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns all users in the order of their names.
    pub async fn list_users(&self) -> Result<Vec<UserInfo>> {
        match self.security(SecurityRequest::ListUsers).await? {
            SecurityResponse::Users(users) => Ok(users),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Adds entries to the access control list. Existing entries stay as they are.
    pub async fn create_acls(&self, acls: Vec<Acl>) -> Result<()> {
        match self.security(SecurityRequest::CreateAcls(acls)).await? {
            SecurityResponse::AclsCreated => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Deletes all entries of the access control list that match the filter, and returns them.
    pub async fn delete_acls(&self, filter: AclFilter) -> Result<Vec<Acl>> {
        match self.security(SecurityRequest::DeleteAcls(filter)).await? {
            SecurityResponse::AclsDeleted(acls) => Ok(acls),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns all entries of the access control list that match the filter.
    pub async fn list_acls(&self, filter: AclFilter) -> Result<Vec<Acl>> {
        match self.security(SecurityRequest::ListAcls(filter)).await? {
            SecurityResponse::Acls(acls) => Ok(acls),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Gives a user a role, or takes it away. The user does not have to exist.
    pub async fn set_member(&self, user: UserName, role: RoleName, is_present: bool) -> Result<()> {
        match self.security(SecurityRequest::SetMember { user, role, is_present }).await? {
            SecurityResponse::MemberSet => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns the members of all roles: users in the order of their names, each with its roles.
    pub async fn list_members(&self) -> Result<Vec<(UserName, Vec<RoleName>)>> {
        match self.security(SecurityRequest::ListMembers).await? {
            SecurityResponse::Members(members) => Ok(members),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Puts a user into a tenant, or takes it out of the one that it has. The user does not have to exist. Its
    /// connections end. In a tenant, its clients use only names that are the tenant's, and the broker adds the prefix
    /// of the tenant to them.
    pub async fn set_tenant(&self, user: UserName, tenant: Option<TenantName>) -> Result<()> {
        match self.security(SecurityRequest::SetTenant { user, tenant }).await? {
            SecurityResponse::TenantSet => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns the users that have a tenant, in the order of their names.
    pub async fn list_tenants(&self) -> Result<Vec<(UserName, TenantName)>> {
        match self.security(SecurityRequest::ListTenants).await? {
            SecurityResponse::Tenants(tenants) => Ok(tenants),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Creates a token with which clients log in as a user, who does not have to exist. `id` and `hash` are those of a
    /// [`TokenText`](engine::security::TokenText), which is not sent. Clients have these roles in addition to those of
    /// the user, until `expires_ms` in ms since 1970.
    pub async fn put_token(
        &self,
        id: TokenId,
        hash: TokenHash,
        user: UserName,
        roles: Vec<RoleName>,
        expires_ms: Option<u64>,
    ) -> Result<()> {
        match self.security(SecurityRequest::PutToken { id, hash, user, roles, expires_ms }).await? {
            SecurityResponse::TokenPut => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Creates a token of the user that this client has logged in as, which needs a password, and returns that user.
    /// Its clients may do what the user may do, until `expires_ms` in ms since 1970, at most 90 days from now. It ends
    /// when the password of the user changes.
    pub async fn put_own_token(&self, id: TokenId, hash: TokenHash, expires_ms: u64) -> Result<UserName> {
        match self.security(SecurityRequest::PutOwnToken { id, hash, expires_ms }).await? {
            SecurityResponse::OwnTokenPut(user) => Ok(user),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Deletes a token. Clients that have logged in with it may do nothing from then on. A client that may not alter
    /// the cluster deletes tokens that its user has created, and the one with which it has logged in.
    pub async fn delete_token(&self, id: TokenId) -> Result<()> {
        match self.security(SecurityRequest::DeleteToken(id)).await? {
            SecurityResponse::TokenDeleted => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns the tokens that this client may see, without their secrets: those of its user, or all if it may
    /// describe the cluster.
    pub async fn list_tokens(&self) -> Result<Vec<TokenInfo>> {
        match self.security(SecurityRequest::ListTokens).await? {
            SecurityResponse::Tokens(tokens) => Ok(tokens),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Creates an access key, with which clients sign requests at the SQS door on behalf of a user. The user does not
    /// have to exist. Its queues are those of the account, or of the default of the door. It is not accepted from
    /// `expires_ms` in ms since 1970 on. The broker stores the secret sealed; it is sent only over TLS, or to a broker
    /// on this machine.
    pub async fn put_access_key(
        &self,
        id: AccessKeyId,
        secret: AccessSecret,
        user: UserName,
        account: Option<Account>,
        expires_ms: Option<u64>,
    ) -> Result<()> {
        if !self.session.publish.connection(0).await?.is_private {
            return Err(Error::invalid("a secret is sent to another machine only over TLS: use quic:// or tls://"));
        }
        match self.security(SecurityRequest::PutAccessKey { id, secret, user, account, expires_ms }).await? {
            SecurityResponse::AccessKeyPut => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Deletes an access key. The next request that is signed with it is refused.
    pub async fn delete_access_key(&self, id: AccessKeyId) -> Result<()> {
        match self.security(SecurityRequest::DeleteAccessKey(id)).await? {
            SecurityResponse::AccessKeyDeleted => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns all access keys in the order of their names, without their secrets.
    pub async fn list_access_keys(&self) -> Result<Vec<AccessKeyInfo>> {
        match self.security(SecurityRequest::ListAccessKeys).await? {
            SecurityResponse::AccessKeys(keys) => Ok(keys),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Sets and deletes quotas, all together or none of them.
    pub async fn change_quotas(&self, changes: Vec<QuotaChange>) -> Result<()> {
        match self.security(SecurityRequest::ChangeQuotas(changes)).await? {
            SecurityResponse::QuotasChanged => Ok(()),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    /// Returns all entities that have quotas, each with its rates per second.
    pub async fn list_quotas(&self) -> Result<Vec<(QuotaEntity, Vec<(QuotaKind, f64)>)>> {
        match self.security(SecurityRequest::ListQuotas).await? {
            SecurityResponse::Quotas(quotas) => Ok(quotas),
            other => Err(unexpected(&Response::Security(other))),
        }
    }

    async fn security(&self, request: SecurityRequest) -> Result<SecurityResponse> {
        match self.session.call(&Request::Security(request)).await? {
            Response::Security(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}
