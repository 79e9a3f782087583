//! Access control lists: permissions of users on topics, groups and transactions, by host.
//!
//! An entry allows or denies. An entry that denies takes precedence; without one that allows, nothing is allowed. Some
//! operations imply others: a user who may read a topic may also describe it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::UserName;
use crate::error::{Error, Result};
use crate::ids::is_internal;
use crate::limits::{ACL_NAME_BYTES_MAX, ACLS_MAX};

/// Wildcard that stands for any name.
const ALL: &str = "*";

macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $what:literal, {
        $($(#[$note:meta])* $variant:ident = $code:literal, $name:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$note])* $variant = $code,)*
        }

        impl $type {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| *known as u8 == code)
            }

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl std::str::FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::ALL.iter().copied().find(|known| known.name() == text).ok_or_else(|| {
                    let names: Vec<&str> = Self::ALL.iter().map(|known| known.name()).collect();
                    Error::invalid(format!("{} is one of {}, not '{text}'", $what, names.join(", ")))
                })
            }
        }
    };
}

named! {
    /// Type of a resource.
    ResourceKind, "a resource", {
        Topic = 1, "topic";
        Group = 2, "group";
        /// The broker as a whole; its name is [`Resource::CLUSTER_NAME`].
        Cluster = 3, "cluster";
        /// Transactions of a producer, by their transactional id.
        Transaction = 4, "transaction";
    }
}

named! {
    /// Operation on a resource.
    Operation, "an operation", {
        All = 1, "all";
        Read = 2, "read";
        Write = 3, "write";
        Create = 4, "create";
        Delete = 5, "delete";
        Alter = 6, "alter";
        Describe = 7, "describe";
        DescribeConfigs = 8, "describe_configs";
        AlterConfigs = 9, "alter_configs";
        ClusterAction = 10, "cluster_action";
        IdempotentWrite = 11, "idempotent_write";
    }
}

impl Operation {
    /// Returns `true` if permission for this operation includes the wanted one.
    fn implies(self, wanted: Self) -> bool {
        match wanted {
            _ if self == wanted || self == Self::All => true,
            Self::Describe => matches!(self, Self::Read | Self::Write | Self::Delete | Self::Alter),
            Self::DescribeConfigs => self == Self::AlterConfigs,
            _ => false,
        }
    }
}

/// Resource that an operation acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    pub kind: ResourceKind,
    pub name: &'a str,
}

impl<'a> Resource<'a> {
    /// Name of the only resource of its kind.
    pub const CLUSTER_NAME: &'static str = "cluster";
    pub const CLUSTER: Resource<'static> = Resource { kind: ResourceKind::Cluster, name: Self::CLUSTER_NAME };

    pub fn topic(name: &'a str) -> Self {
        Self { kind: ResourceKind::Topic, name }
    }

    pub fn group(name: &'a str) -> Self {
        Self { kind: ResourceKind::Group, name }
    }

    pub fn transaction(name: &'a str) -> Self {
        Self { kind: ResourceKind::Transaction, name }
    }
}

/// Resources of an access control entry: one name, all (`*`), or all names with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern {
    pub kind: ResourceKind,
    pub name: String,
    pub is_prefix: bool,
}

impl Pattern {
    pub fn covers(&self, resource: &Resource<'_>) -> bool {
        self.kind == resource.kind
            && if self.is_prefix {
                resource.name.starts_with(&self.name)
            } else {
                self.name == resource.name || self.name == ALL
            }
    }

    /// Returns `true` if an entry that allows may apply to a resource that it covers. A topic of the broker itself has
    /// to be named literally, so that a user who may read all topics cannot read the state that the broker keeps in
    /// them.
    fn may_open(&self, resource: &Resource<'_>) -> bool {
        let is_named = !self.is_prefix && self.name == resource.name;
        is_named || resource.kind != ResourceKind::Topic || !is_internal(resource.name)
    }

    /// Returns `true` if every resource of the other pattern matches this one.
    fn covers_all_of(&self, other: &Self) -> bool {
        self.kind == other.kind
            && match (self.is_prefix, other.is_prefix) {
                (false, _) if self.name == ALL => true,
                (true, false) if other.name == ALL => false,
                (true, _) => other.name.starts_with(&self.name),
                (false, is_prefix) => !is_prefix && self.name == other.name,
            }
    }
}

/// Principal of an access control entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    Everyone,
    User(UserName),
}

impl Principal {
    const PREFIX: &'static str = "User:";

    /// Parses `User:name`, or `User:*` for everyone.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix(Self::PREFIX) {
            Some(ALL) => Ok(Self::Everyone),
            Some(name) => Ok(Self::User(UserName::parse(name)?)),
            None => Err(Error::invalid(format!("a principal is User:NAME or User:*, not '{text}'"))),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => write!(f, "{}{ALL}", Self::PREFIX),
            Self::User(name) => write!(f, "{}{name}", Self::PREFIX),
        }
    }
}

/// Access control entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Acl {
    pub pattern: Pattern,
    pub principal: Principal,
    /// Address of the principal's host as text, or `*`.
    pub host: String,
    pub operation: Operation,
    pub is_allowed: bool,
}

impl Acl {
    pub fn validate(&self) -> Result<()> {
        for (what, name) in [("the name of a resource", &self.pattern.name), ("a host", &self.host)] {
            if name.is_empty() || name.len() > ACL_NAME_BYTES_MAX || name.chars().any(char::is_control) {
                return Err(Error::invalid(format!(
                    "{what} has 1 to {ACL_NAME_BYTES_MAX} bytes and no control characters"
                )));
            }
        }
        if self.pattern.kind == ResourceKind::Cluster
            && (self.pattern.is_prefix || self.pattern.name != Resource::CLUSTER_NAME)
        {
            return Err(Error::invalid(format!("the name of the cluster is {}", Resource::CLUSTER_NAME)));
        }
        Ok(())
    }

    fn is_from(&self, host: &str) -> bool {
        self.host == ALL || self.host == host
    }

    /// Returns `true` if the entry denies this. It denies only the operation that it names, or all.
    fn denies(&self, host: &str, operation: Operation) -> bool {
        !self.is_allowed && self.is_from(host) && (self.operation == operation || self.operation == Operation::All)
    }

    fn allows(&self, host: &str, operation: Operation) -> bool {
        self.is_allowed && self.is_from(host) && self.operation.implies(operation)
    }
}

/// Interpretation of the name in a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Match {
    /// Entries with this name, whether literal or a prefix.
    Any = 1,
    /// Entries that apply to this resource.
    Covering = 2,
    /// Entries with this literal name.
    Literal = 3,
    /// Entries with this prefix.
    Prefix = 4,
}

impl Match {
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Any, Self::Covering, Self::Literal, Self::Prefix].into_iter().find(|known| *known as u8 == code)
    }
}

/// Filter of access control entries. `None` matches any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclFilter {
    pub kind: Option<ResourceKind>,
    pub name: Option<String>,
    pub matching: Match,
    pub principal: Option<Principal>,
    pub host: Option<String>,
    pub operation: Option<Operation>,
    pub is_allowed: Option<bool>,
}

impl Default for AclFilter {
    /// Returns a filter that matches all entries.
    fn default() -> Self {
        Self {
            kind: None,
            name: None,
            matching: Match::Any,
            principal: None,
            host: None,
            operation: None,
            is_allowed: None,
        }
    }
}

impl AclFilter {
    pub fn means(&self, acl: &Acl) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, value: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == value)
        }
        is(&self.kind, &acl.pattern.kind)
            && self.means_name_of(&acl.pattern)
            && is(&self.principal, &acl.principal)
            && is(&self.host, &acl.host)
            && is(&self.operation, &acl.operation)
            && is(&self.is_allowed, &acl.is_allowed)
    }

    fn means_name_of(&self, pattern: &Pattern) -> bool {
        let is_named = |name: &String| *name == pattern.name;
        match (self.matching, &self.name) {
            (Match::Any, name) => name.as_ref().is_none_or(is_named),
            (Match::Literal, name) => !pattern.is_prefix && name.as_ref().is_none_or(is_named),
            (Match::Prefix, name) => pattern.is_prefix && name.as_ref().is_none_or(is_named),
            (Match::Covering, None) => true,
            (Match::Covering, Some(name)) => pattern.covers(&Resource { kind: pattern.kind, name }),
        }
    }
}

/// Table of all entries, by principal.
#[derive(Debug, Default)]
pub struct Acls {
    by_principal: BTreeMap<Principal, BTreeSet<Acl>>,
    count: usize,
}

impl Acls {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Checks that there is room for `more` entries.
    pub fn check_room(&self, more: usize) -> Result<()> {
        if self.count + more > ACLS_MAX {
            return Err(Error::busy(format!(
                "this broker has {ACLS_MAX} access control entries, which is the limit; delete some first"
            )));
        }
        Ok(())
    }

    pub fn contains(&self, acl: &Acl) -> bool {
        self.by_principal.get(&acl.principal).is_some_and(|acls| acls.contains(acl))
    }

    pub fn insert(&mut self, acl: Acl) {
        self.count += usize::from(self.by_principal.entry(acl.principal.clone()).or_default().insert(acl));
    }

    pub fn remove(&mut self, acl: &Acl) {
        if let Some(acls) = self.by_principal.get_mut(&acl.principal) {
            self.count -= usize::from(acls.remove(acl));
            if acls.is_empty() {
                self.by_principal.remove(&acl.principal);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Acl> {
        self.by_principal.values().flatten()
    }

    pub fn found(&self, filter: &AclFilter) -> Vec<Acl> {
        self.iter().filter(|acl| filter.means(acl)).cloned().collect()
    }

    /// Returns `true` if a user at a host may perform this operation.
    pub fn allow(&self, user: &UserName, host: &str, operation: Operation, resource: &Resource<'_>) -> bool {
        let mut is_allowed = false;
        for acl in self.of(user).filter(|acl| acl.pattern.covers(resource)) {
            if acl.denies(host, operation) {
                return false;
            }
            is_allowed |= acl.allows(host, operation) && acl.pattern.may_open(resource);
        }
        is_allowed
    }

    /// Returns `true` if there may be a resource of this kind on which a user at a host may perform this operation: an
    /// entry allows it that no other entry denies as a whole.
    pub fn allow_any(&self, user: &UserName, host: &str, operation: Operation, kind: ResourceKind) -> bool {
        let of_kind = || self.of(user).filter(|acl| acl.pattern.kind == kind);
        let denied: Vec<&Pattern> =
            of_kind().filter(|acl| acl.denies(host, operation)).map(|acl| &acl.pattern).collect();
        of_kind()
            .filter(|acl| acl.allows(host, operation))
            .any(|acl| !denied.iter().any(|denied| denied.covers_all_of(&acl.pattern)))
    }

    fn of(&self, user: &UserName) -> impl Iterator<Item = &Acl> {
        let [own, everyone] = [Principal::User(user.clone()), Principal::Everyone];
        let of = |principal: &Principal| self.by_principal.get(principal).into_iter().flatten();
        of(&own).chain(of(&everyone))
    }
}

#[cfg(test)]
#[path = "acl_tests.rs"]
mod tests;
