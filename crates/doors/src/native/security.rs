//! Maps requests about users, tokens, access keys, quotas, roles and access control lists to calls of the broker.

use std::sync::Arc;

use broker::{Broker, Identity, UserStatus};
use engine::security::{AccessKey, AccessKeyId, Token, TokenId};
use engine::{Error, Result};
use wire::Response;
use wire::security::{AccessKeyInfo, QuotaChange, SecurityRequest, SecurityResponse, TokenInfo, UserInfo};

pub(super) async fn answer(broker: &Arc<Broker>, identity: &Identity, request: SecurityRequest) -> Result<Response> {
    let answer = match request {
        SecurityRequest::PutUser { user, credentials } => {
            if credentials.is_empty() {
                return Err(Error::invalid("a user needs a password for at least one mechanism"));
            }
            let of_user = credentials.into_iter().map(|credential| (user.clone(), credential));
            broker.security.put_credentials(of_user.collect()).await?;
            SecurityResponse::UserPut
        }
        SecurityRequest::DeleteUser { user, mechanisms } => {
            if mechanisms.is_empty() {
                broker.security.delete_user(user).await?;
            } else {
                let of_user = mechanisms.into_iter().map(|mechanism| (user.clone(), mechanism));
                broker.security.delete_credentials(of_user.collect()).await?;
            }
            SecurityResponse::UserDeleted
        }
        SecurityRequest::ListUsers => {
            SecurityResponse::Users(broker.security.users().await?.into_iter().map(info).collect())
        }
        SecurityRequest::CreateAcls(acls) => {
            broker.security.create_acls(acls).await?;
            SecurityResponse::AclsCreated
        }
        SecurityRequest::DeleteAcls(filter) => {
            let gone = broker.security.delete_acls(vec![filter], |_| true).await?;
            SecurityResponse::AclsDeleted(gone.into_iter().flatten().collect())
        }
        SecurityRequest::SetMember { user, role, is_present } => {
            broker.security.set_member(user, role, is_present).await?;
            SecurityResponse::MemberSet
        }
        SecurityRequest::ListMembers => SecurityResponse::Members(broker.security.members().await?),
        SecurityRequest::PutToken { id, hash, user, roles, expires_ms } => {
            let token = Token { user, roles, created_ms: 0, expires_ms, hash, is_own: false };
            broker.security.put_token(id, token).await?;
            SecurityResponse::TokenPut
        }
        SecurityRequest::PutOwnToken { id, hash, expires_ms } => {
            SecurityResponse::OwnTokenPut(broker.security.put_own_token(identity, id, hash, expires_ms).await?)
        }
        SecurityRequest::DeleteToken(id) => {
            broker.security.delete_token(id).await?;
            SecurityResponse::TokenDeleted
        }
        SecurityRequest::ListTokens => {
            SecurityResponse::Tokens(broker.security.tokens(identity).await?.into_iter().map(token_info).collect())
        }
        SecurityRequest::PutAccessKey { id, secret, user, account, expires_ms } => {
            broker.security.put_access_key(id, secret, user, account, expires_ms).await?;
            SecurityResponse::AccessKeyPut
        }
        SecurityRequest::DeleteAccessKey(id) => {
            broker.security.delete_access_key(id).await?;
            SecurityResponse::AccessKeyDeleted
        }
        SecurityRequest::ListAccessKeys => {
            let keys = broker.security.access_keys().await?;
            SecurityResponse::AccessKeys(keys.into_iter().map(access_key_info).collect())
        }
        SecurityRequest::ChangeQuotas(changes) => {
            let change = |QuotaChange { entity, kind, value }| (entity, kind, value);
            broker.security.change_quotas(changes.into_iter().map(change).collect()).await?;
            SecurityResponse::QuotasChanged
        }
        SecurityRequest::ListQuotas => SecurityResponse::Quotas(broker.security.quotas().await?),
        SecurityRequest::SetTenant { user, tenant } => {
            match tenant {
                Some(tenant) => broker.security.assign_tenant(user, tenant).await?,
                None => broker.security.unassign_tenant(user).await?,
            }
            SecurityResponse::TenantSet
        }
        SecurityRequest::ListTenants => SecurityResponse::Tenants(broker.security.tenants().await?),
        SecurityRequest::ListAcls(filter) => SecurityResponse::Acls(broker.security.acls(&filter).await?),
    };
    Ok(Response::Security(answer))
}

fn token_info((id, token): (TokenId, Token)) -> TokenInfo {
    let Token { user, roles, created_ms, expires_ms, hash: _, is_own: _ } = token;
    TokenInfo { id, user, roles, created_ms, expires_ms }
}

fn access_key_info((id, key): (AccessKeyId, AccessKey)) -> AccessKeyInfo {
    let AccessKey { user, account, created_ms, expires_ms, sealed: _ } = key;
    AccessKeyInfo { id, user, account, created_ms, expires_ms }
}

fn info(user: UserStatus) -> UserInfo {
    let UserStatus { name, mechanisms, is_configured, is_super } = user;
    UserInfo { name, mechanisms, is_configured, is_super }
}
