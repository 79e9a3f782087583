//! Roles: names for sets of permissions that are given to users together.
//!
//! The access control entries of a role have it as their principal. A few roles are built in, and their permissions
//! cannot be changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::UserName;
use super::by_user::next_user;
use super::resource::{Operation, Operations, ResourceKind};
use crate::error::{Error, Result};
use crate::limits::{ROLE_MEMBERS_MAX, USER_NAME_BYTES_MAX};

/// Name of a role: 1 to 255 bytes without control characters and commas.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoleName(Arc<str>);

impl RoleName {
    pub fn parse(name: &str) -> Result<Self> {
        let is_wrong = |char: char| char.is_control() || char == ',';
        if name.is_empty() || name.len() > USER_NAME_BYTES_MAX || name.chars().any(is_wrong) {
            return Err(Error::invalid(format!(
                "the name of a role has 1 to {USER_NAME_BYTES_MAX} bytes, no commas and no control characters"
            )));
        }
        Ok(Self(Arc::from(name)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the built-in role of this name, if there is one.
    pub fn built_in(&self) -> Option<BuiltInRole> {
        BuiltInRole::ALL.into_iter().find(|role| role.name() == self.as_str())
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Role whose permissions are part of the broker. They cover all resources of a kind, except the broker's own topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltInRole {
    /// Everything.
    Admin,
    /// Creates, alters and deletes, but reads and writes no data and gives no permissions.
    Operator,
    /// Writes, and creates the topics that it writes to.
    Publisher,
    /// Reads, as a member of groups and from queues.
    Consumer,
    /// Describes everything, and reads metrics.
    Monitor,
}

impl BuiltInRole {
    pub const ALL: [Self; 5] = [Self::Admin, Self::Operator, Self::Publisher, Self::Consumer, Self::Monitor];

    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Publisher => "publisher",
            Self::Consumer => "consumer",
            Self::Monitor => "monitor",
        }
    }

    /// Returns the operations that the role allows on all resources of a kind.
    pub fn operations(self, kind: ResourceKind) -> Operations {
        use Operation::{Alter, AlterConfigs, Create, Delete, Describe, DescribeConfigs, IdempotentWrite, Read, Write};
        use ResourceKind::{Cache, Channel, Cluster, Group, Queue, Schema, Topic, Transaction};
        let operations: &[Operation] = match (self, kind) {
            (Self::Admin, _) => &[Operation::All],
            (Self::Operator, Cluster) => &[Create, Describe, DescribeConfigs, AlterConfigs],
            (Self::Operator, _) => &[Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs],
            (Self::Publisher, Topic) => &[Write, Create, Describe],
            (Self::Publisher, Queue | Cache | Channel | Transaction) => &[Write, Describe],
            (Self::Publisher, Cluster) => &[IdempotentWrite],
            (Self::Publisher, Schema) => &[Read, Describe],
            (Self::Consumer, Topic | Group | Queue | Cache | Channel | Schema) => &[Read, Describe],
            (Self::Monitor, _) => &[Describe, DescribeConfigs],
            (Self::Publisher, Group) | (Self::Consumer, Cluster | Transaction) => &[],
        };
        Operations::new(operations).implied()
    }
}

/// Roles of users.
#[derive(Clone, Debug, Default)]
pub struct Members {
    by_user: BTreeMap<UserName, BTreeSet<RoleName>>,
    count: usize,
}

impl Members {
    pub fn contains(&self, user: &UserName, role: &RoleName) -> bool {
        self.by_user.get(user).is_some_and(|roles| roles.contains(role))
    }

    /// Checks that there is room for `more` members of roles.
    pub fn check_room(&self, more: usize) -> Result<()> {
        if self.count + more > ROLE_MEMBERS_MAX {
            return Err(Error::busy(format!(
                "the roles of this broker have {ROLE_MEMBERS_MAX} members, which is the limit; remove some first"
            )));
        }
        Ok(())
    }

    pub fn insert(&mut self, user: UserName, role: RoleName) {
        self.count += usize::from(self.by_user.entry(user).or_default().insert(role));
    }

    pub fn remove(&mut self, user: &UserName, role: &RoleName) {
        let Some(roles) = self.by_user.get_mut(user) else { return };
        self.count -= usize::from(roles.remove(role));
        if roles.is_empty() {
            self.by_user.remove(user);
        }
    }

    /// Returns the roles of a user, in the order of their names.
    pub fn roles_of(&self, user: &UserName) -> impl Iterator<Item = &RoleName> {
        self.by_user.get(user).into_iter().flatten()
    }

    pub(super) fn next_user(&self, after: &str) -> Option<&UserName> {
        next_user(&self.by_user, after)
    }

    /// Returns the users after this name with their roles, in the order of the users' names.
    pub fn after(&self, user: &str) -> impl Iterator<Item = (&UserName, &BTreeSet<RoleName>)> {
        self.by_user.range::<str, _>((Bound::Excluded(user), Bound::Unbounded))
    }

    /// Returns users with their roles, in the order of the users' names.
    pub fn iter(&self) -> impl Iterator<Item = (&UserName, &BTreeSet<RoleName>)> {
        self.by_user.iter()
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_roles_do_what_their_names_say() {
        let may = |role: BuiltInRole, kind, operation| role.operations(kind).contains(operation);
        for kind in ResourceKind::ALL {
            assert!(Operation::ALL.iter().all(|operation| may(BuiltInRole::Admin, *kind, *operation)), "{kind:?}");
            for role in [BuiltInRole::Operator, BuiltInRole::Monitor] {
                assert!(!may(role, *kind, Operation::Read) && !may(role, *kind, Operation::Write), "{role:?} {kind:?}");
                assert!(may(role, *kind, Operation::Describe), "{role:?} {kind:?}");
            }
            assert!(!may(BuiltInRole::Publisher, *kind, Operation::Delete), "{kind:?}");
            assert!(!may(BuiltInRole::Consumer, *kind, Operation::Write), "{kind:?}");
        }
        assert!(!may(BuiltInRole::Operator, ResourceKind::Cluster, Operation::Alter), "it gives no permissions");
    }

    #[test]
    fn a_member_is_counted_once_and_removed_with_its_last_role() {
        let user = UserName::parse("ann").expect("a name");
        let role = |name| RoleName::parse(name).expect("a name");
        let mut members = Members::default();
        for name in ["b", "a", "b"] {
            members.insert(user.clone(), role(name));
        }
        assert_eq!((members.len(), members.roles_of(&user).count()), (2, 2));
        assert!(members.check_room(ROLE_MEMBERS_MAX - 2).is_ok() && members.check_room(ROLE_MEMBERS_MAX).is_err());
        for name in ["a", "b", "b"] {
            members.remove(&user, &role(name));
        }
        assert!(members.is_empty() && members.iter().next().is_none());
        assert!(RoleName::parse("a,b").is_err() && RoleName::parse("").is_err());
    }
}
