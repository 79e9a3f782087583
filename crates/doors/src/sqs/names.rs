//! Names of queues at other doors, which a client's tenant is part of.

use engine::security::{Account, TenantName};

use super::address::{Home, Place};
use super::map::{RequestContext, Sqs};

/// Mapping between the queues of a client and the names of the broker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'n> {
    /// Account and region whose queues have names without a prefix.
    pub default: &'n Home,
    /// Tenant of the client.
    pub tenant: Option<&'n TenantName>,
}

impl Sqs {
    /// Returns the names that a client uses.
    pub fn names<'n>(&'n self, context: &'n RequestContext<'_>) -> Names<'n> {
        Names { default: &self.default, tenant: context.identity.tenant() }
    }
}

/// Returns the account that a tenant is, if it is one: its name is the id of the account.
pub(super) fn account_of(tenant: &TenantName) -> Option<&str> {
    Some(tenant.as_str()).filter(|name| Account::is_valid(name))
}

impl Names<'_> {
    fn is_account(&self) -> bool {
        self.tenant.is_some_and(|tenant| account_of(tenant).is_some())
    }

    /// Returns the prefix of the names of all queues in an account and a region. A tenant that is an account has the
    /// prefix that its queues have for every client, also in the default account; the names of other tenants get
    /// theirs in addition.
    pub fn prefix(&self, home: &Home) -> String {
        match self.tenant {
            _ if self.is_account() => home.full_prefix(),
            Some(tenant) => format!("{}{}", tenant.prefix(), home.prefix(self.default)),
            None => home.prefix(self.default),
        }
    }

    /// Returns the name of a queue in the broker.
    pub fn inner(&self, place: &Place) -> String {
        format!("{}{}", self.prefix(&place.home), place.name)
    }

    /// Returns the queue that has this name in the broker; `None` if SQS cannot name it, or it is not of the tenant.
    pub fn outer(&self, inner: &str) -> Option<Place> {
        match self.tenant {
            Some(tenant) if self.is_account() => Place::of_full(inner).filter(|_| tenant.owns(inner)),
            Some(tenant) => Place::of_known(tenant.outer(inner)?, self.default),
            None => Place::of_known(inner, self.default),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(account: &str, region: &str) -> Home {
        Home { account: account.into(), region: region.into() }
    }

    #[test]
    fn each_queue_has_a_name_in_each_tenant_which_leads_back() {
        let default = home("000000000000", "us-east-1");
        let other = home("111122223333", "eu-west-1");
        for (tenant, of_default, of_other) in [
            (None, "q", "111122223333.eu-west-1.q"),
            (Some("acme"), "acme.q", "acme.111122223333.eu-west-1.q"),
            (Some("project:shop"), "_project.shop.q", "_project.shop.111122223333.eu-west-1.q"),
            (Some("000000000000"), "000000000000.us-east-1.q", "111122223333.eu-west-1.q"),
            (Some("111122223333"), "000000000000.us-east-1.q", "111122223333.eu-west-1.q"),
        ] {
            let tenant = tenant.map(|tenant| TenantName::parse(tenant).expect("a name"));
            let names = Names { default: &default, tenant: tenant.as_ref() };
            for (home, inner) in [(&default, of_default), (&other, of_other)] {
                let place = Place::new(home, "q");
                assert_eq!(names.inner(&place), inner);
                let is_theirs = tenant.as_ref().is_none_or(|tenant| tenant.owns(inner));
                assert_eq!(names.outer(inner), Some(place).filter(|_| is_theirs), "{tenant:?}");
            }
        }
    }
}
