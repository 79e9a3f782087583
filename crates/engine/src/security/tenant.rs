//! Tenants: prefixes of names, which divide a broker among clients that must not see each other.
//!
//! A client of a tenant writes short names, and a door adds the prefix: `orders` is the topic `acme.orders` of the
//! broker for a client of the tenant `acme`. The broker's decision about permissions refuses such a client every name
//! that does not have the prefix, so that a door that adds none shows nothing of another tenant.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::UserName;
use super::by_user::next_user;
use crate::error::{Error, Result};
use crate::ids::is_inbox;
use crate::limits::{TENANT_NAME_BYTES_MAX, TENANT_USERS_MAX};

/// Beginning of the name of a tenant that is a Google project.
const PROJECT: &str = "project:";
/// Beginning of the broker's names in a Google project.
const PROJECT_PREFIX: &str = "_project.";
/// Separates the name of a tenant from the names in it.
const DOT: char = '.';

/// Name of a tenant. It has one of two forms, each of 1 to 63 characters:
///
/// - `acme`: letters, digits, `_` and `-`, and no `_` at the beginning, which is reserved for the broker's own names.
///   Names in it begin with `acme.`. The account `111122223333` of SQS is such a tenant: its queues have the names
///   `111122223333.REGION.NAME` in the broker.
/// - `project:shop`: letters, digits and `-` after the colon. Names in it begin with `_project.shop.`, as those in the
///   Google project `shop` do for clients without a tenant.
///
/// No prefix is the beginning of another, as each name is followed by a dot and has none.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantName {
    name: Arc<str>,
    prefix: Arc<str>,
}

impl TenantName {
    pub fn parse(name: &str) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let (start, id, has_underscores) = match name.strip_prefix(PROJECT) {
            Some(id) => (PROJECT_PREFIX, id, false),
            None => ("", name, true),
        };
        let is_valid = id.bytes().all(|byte| is_plain(byte) || has_underscores && byte == b'_');
        if !is_valid || id.is_empty() || name.len() > TENANT_NAME_BYTES_MAX || id.starts_with('_') {
            return Err(Error::invalid(format!(
                "'{name}' is not the name of a tenant: use 1 to {TENANT_NAME_BYTES_MAX} letters, digits, '_' and '-', \
                 with no '_' at the beginning, or {PROJECT} and letters, digits and '-' for a Google project"
            )));
        }
        Ok(Self { name: Arc::from(name), prefix: Arc::from(format!("{start}{id}{DOT}")) })
    }

    /// Returns the tenant that a resource of the broker with this name belongs to; `None` if its name has no prefix of
    /// a tenant. Whether the broker has clients of that tenant is another question.
    pub fn of_inner(inner: &str) -> Option<Self> {
        let (id, _) = inner.strip_prefix(PROJECT_PREFIX).unwrap_or(inner).split_once(DOT)?;
        let is_project = inner.starts_with(PROJECT_PREFIX);
        if is_project { Self::parse(&format!("{PROJECT}{id}")).ok() } else { Self::parse(id).ok() }
    }

    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the prefix of all names of the tenant in the broker. It ends with a dot.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name without `project:`: the id of the Google project that is the tenant's.
    pub fn id(&self) -> &str {
        self.name.strip_prefix(PROJECT).unwrap_or(&self.name)
    }

    /// Returns `true` if it is a Google project.
    pub fn is_project(&self) -> bool {
        self.name.starts_with(PROJECT)
    }

    /// Returns the broker's name of a resource that a client of the tenant calls `name`. Two kinds of names stay as
    /// they are: the empty one, which stands for none in several protocols, and those of inboxes, which cannot be
    /// guessed and belong to no tenant.
    pub fn inner(&self, name: &str) -> String {
        if name.is_empty() || is_inbox(name) {
            return name.to_owned();
        }
        format!("{}{name}", self.prefix)
    }

    /// Returns the name that clients of the tenant use for a resource of the broker; `None` if it is not the tenant's.
    pub fn outer<'n>(&self, inner: &'n str) -> Option<&'n str> {
        inner.strip_prefix(&*self.prefix).filter(|name| !name.is_empty())
    }

    /// Returns `true` if a resource of the broker with this name, or with any name that begins with it, is the
    /// tenant's.
    pub fn owns(&self, inner: impl AsRef<[u8]>) -> bool {
        inner.as_ref().starts_with(self.prefix.as_bytes())
    }
}

impl FromStr for TenantName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.name)
    }
}

/// Tenants of users. A user who is not listed has none, and is limited by no prefix.
#[derive(Clone, Debug, Default)]
pub struct Tenants(BTreeMap<UserName, TenantName>);

impl Tenants {
    /// Checks that there is room for the tenant of one more user.
    pub fn check_room(&self, user: &UserName) -> Result<()> {
        if self.0.len() >= TENANT_USERS_MAX && !self.0.contains_key(user) {
            return Err(Error::busy(format!(
                "limit of users with a tenant reached ({TENANT_USERS_MAX}): unassign one first, see thalweg tenant list"
            )));
        }
        Ok(())
    }

    /// Returns the tenant of a user.
    pub fn of_user(&self, user: &str) -> Option<&TenantName> {
        self.0.get(user)
    }

    pub(super) fn next_user(&self, after: &str) -> Option<&UserName> {
        next_user(&self.0, after)
    }

    /// Returns users with their tenants, in the order of the users' names.
    pub fn iter(&self) -> impl Iterator<Item = (&UserName, &TenantName)> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, user: UserName, tenant: TenantName) {
        self.0.insert(user, tenant);
    }

    pub(super) fn remove(&mut self, user: &UserName) {
        self.0.remove(user);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::security::{Resource, ResourceKind};

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).expect(name)
    }

    #[test]
    fn names_of_tenants_are_valid_beginnings_of_names_and_never_reserved_ones() {
        let long = "x".repeat(TENANT_NAME_BYTES_MAX);
        for (name, prefix, id) in [
            ("acme", "acme.", "acme"),
            ("a_b-C9", "a_b-C9.", "a_b-C9"),
            ("111122223333", "111122223333.", "111122223333"),
            ("project:shop-7", "_project.shop-7.", "shop-7"),
            (&long, &format!("{long}."), &long),
        ] {
            let tenant = tenant(name);
            assert_eq!((tenant.as_str(), tenant.prefix(), tenant.id()), (name, prefix, id));
            assert!(crate::TopicName::parse(&tenant.inner("orders")).is_ok(), "{name}");
        }
        let too_long = format!("{long}x");
        for wrong in [
            "",
            "a.b",
            "_a",
            "_project",
            "_queues",
            "a:b",
            "project:",
            "project:a_b",
            "project:_a",
            "a b",
            "ä",
            &too_long,
        ] {
            assert!(TenantName::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_gets_the_prefix_and_loses_it_again() {
        let acme = tenant("acme");
        for name in ["orders", "orders.eu", "acme.orders", "*", "_offsets", "with space", "ö"] {
            let inner = acme.inner(name);
            assert_eq!(inner, format!("acme.{name}"));
            assert_eq!(acme.outer(&inner), Some(name));
            assert!(acme.owns(&inner));
        }
        assert_eq!((acme.inner(""), acme.inner("_inbox.x")), (String::new(), "_inbox.x".into()));
        for other in ["", "acme", "acme.", "acmes.orders", "orders", "ACME.orders", "_inbox.x", "_project.acme.orders"]
        {
            assert_eq!(acme.outer(other), None, "{other}");
            assert_eq!(acme.owns(other), other == "acme.", "{other}");
        }
    }

    #[test]
    fn a_full_table_takes_no_other_user() {
        let mut tenants = Tenants::default();
        let user = |number: usize| UserName::parse(&format!("u{number}")).expect("a name");
        for number in 0..TENANT_USERS_MAX {
            assert!(tenants.check_room(&user(number)).is_ok());
            tenants.insert(user(number), tenant("acme"));
        }
        let refused = tenants.check_room(&user(TENANT_USERS_MAX)).expect_err("full");
        assert_eq!(refused.kind, crate::ErrorKind::Busy);
        assert!(tenants.check_room(&user(0)).is_ok(), "it replaces the one before");
        tenants.remove(&user(0));
        assert!(tenants.of_user("u0").is_none() && tenants.check_room(&user(TENANT_USERS_MAX)).is_ok());
    }

    proptest! {
        /// Compares with a rule that knows no prefixes: the first parts of the name are those of the tenant.
        #[test]
        fn a_resource_is_within_a_tenant_if_its_first_parts_name_it(
            tenant in "(project:)?(a|b|aa|a-|A|project)",
            kind in select(ResourceKind::ALL),
            name in "(_project\\.)?(a|b|aa|a-|A|project|_queues)?[./]?(a|b|aa|\\*|_offsets)?[./]?[ab]{0,2}",
            is_prefix in any::<bool>(),
        ) {
            let tenant = TenantName::parse(&tenant).expect("a name");
            let resource = if is_prefix { Resource::all(kind, &name) } else { Resource::new(kind, &name) };
            let wanted: Vec<&str> = match tenant.as_str().split_once(':') {
                Some((_, id)) => vec!["_project", id],
                None => vec![tenant.as_str()],
            };
            let parts: Vec<&str> = name.split('.').collect();
            let is_theirs = parts.len() > wanted.len() && parts.starts_with(&wanted);
            prop_assert_eq!(resource.is_within(&tenant), is_theirs && kind != ResourceKind::Cluster);
            let outer = tenant.outer(&name).map(|outer| tenant.inner(outer));
            prop_assert!(outer.is_none() || outer == Some(name));
        }
    }

    #[test]
    fn names_without_a_prefix_belong_to_no_tenant() {
        for name in ["", "orders", "_queues", "_inbox.x", "_project", "_project.shop", "a b.x", ".x"] {
            assert_eq!(TenantName::of_inner(name), None, "{name}");
        }
    }

    #[test]
    fn no_name_is_that_of_two_tenants() {
        let tenants = ["a", "aa", "a-", "A", "project:a", "project:aa", "project", "111122223333"].map(tenant);
        for owner in &tenants {
            for name in ["x", "a.x", "aa.x", "project.a.x"] {
                let owners: Vec<_> = tenants.iter().filter(|tenant| tenant.owns(owner.inner(name))).collect();
                assert_eq!(owners, [owner], "{name}");
                assert_eq!(TenantName::of_inner(&owner.inner(name)).as_ref(), Some(owner), "{name}");
            }
        }
    }
}
