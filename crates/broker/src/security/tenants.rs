//! Tenants of users.

use std::sync::Arc;

use engine::security::{SecurityRecord, TenantName, UserName};
use engine::{Error, Result};

use super::{Identity, Security};

impl Security {
    /// Returns users with their tenants, in the order of the users' names.
    pub async fn tenants(&self) -> Result<Vec<(UserName, TenantName)>> {
        self.open().await?;
        let tables = self.permissions.read();
        Ok(tables.tenants.iter().map(|(user, tenant)| (user.clone(), tenant.clone())).collect())
    }

    /// Returns the tenant of a user.
    pub fn tenant_of(&self, user: &str) -> Option<TenantName> {
        self.permissions.read().tenants.of_user(user).cloned()
    }

    /// Returns the error of a client of a tenant for a list of what is not the tenant's. It is counted and recorded as
    /// a refusal.
    pub fn refuse(&self, identity: &Identity, what: &str) -> Error {
        self.denied(identity, format_args!("{what}"), identity.tenant())
    }

    /// Puts a user into a tenant, also one that has been in another. The connections of the user end, as with a
    /// replaced password. The user does not have to exist, as a client may also log in with a credential of another
    /// issuer.
    pub async fn assign_tenant(self: &Arc<Self>, user: UserName, tenant: TenantName) -> Result<()> {
        let name = format!("{tenant} {user}");
        let act = async {
            user.check_not_reserved()?;
            self.change(|tables, _| {
                if tables.tenants.of_user(user.as_str()) == Some(&tenant) {
                    return Ok((Vec::new(), ()));
                }
                tables.tenants.check_room(&user)?;
                Ok((vec![SecurityRecord::Tenant { user, tenant: Some(tenant) }], ()))
            })
            .await
        };
        self.core.audited("assign tenant", &name, act).await
    }

    /// Takes a user out of its tenant. The connections of the user end: from then on no prefix limits it.
    pub async fn unassign_tenant(self: &Arc<Self>, user: UserName) -> Result<()> {
        let name = user.clone();
        let act = async {
            self.change(|tables, _| {
                if tables.tenants.of_user(user.as_str()).is_none() {
                    return Err(Error::not_found(format!("user {user} has no tenant; see thalweg tenant list")));
                }
                Ok((vec![SecurityRecord::Tenant { user, tenant: None }], ()))
            })
            .await
        };
        self.core.audited("unassign tenant", name.as_str(), act).await
    }
}
