//! Translation between IAM policies and the access control entries of one resource, in both directions.
//!
//! A role is a set of operations on the resource, and a member is a principal. What an entry cannot express is refused.
//! Roles and members are those of <https://cloud.google.com/pubsub/docs/access-control> and
//! <https://cloud.google.com/iam/docs/principal-identifiers>.

use std::collections::{BTreeMap, BTreeSet};

use engine::security::{Acl, Operation, Pattern, Principal, RoleName, UserName};

use super::errors::{Failure, Result};
use super::names::Kind;
use super::proto::iam::{Binding, Policy};

/// Maximum number of members of all bindings together; Google's limit
/// (<https://cloud.google.com/iam/quotas>).
const MEMBERS_MAX: usize = 1500;
/// Host of the entries of a policy: any.
const ANY_HOST: &str = "*";
const EVERYONE: &str = "allUsers";
const EVERY_USER: &str = "allAuthenticatedUsers";
/// Versions of policies. Version 3 may have conditions.
const VERSIONS: [i32; 3] = [0, 1, 3];
/// Version of a policy that is made of entries.
const VERSION: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Admin,
    Editor,
    Publisher,
    Subscriber,
    Viewer,
}

impl Role {
    const ALL: [Self; 5] = [Self::Admin, Self::Editor, Self::Publisher, Self::Subscriber, Self::Viewer];

    fn name(self) -> &'static str {
        match self {
            Self::Admin => "roles/pubsub.admin",
            Self::Editor => "roles/pubsub.editor",
            Self::Publisher => "roles/pubsub.publisher",
            Self::Subscriber => "roles/pubsub.subscriber",
            Self::Viewer => "roles/pubsub.viewer",
        }
    }

    /// Parses the name of a role: one of Pub/Sub, or a basic one, which has the same permissions on a resource.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "roles/owner" => Some(Self::Admin),
            "roles/editor" => Some(Self::Editor),
            "roles/viewer" => Some(Self::Viewer),
            text => Self::ALL.into_iter().find(|role| role.name() == text),
        }
    }

    /// Returns the operations that it allows on a resource of a kind; none if it is not for that kind.
    fn operations(self, kind: Kind) -> &'static [Operation] {
        use Operation::{All, Alter, AlterConfigs, Create, Delete, Describe, Read, Write};
        match (self, kind) {
            (Self::Admin, _) => &[All],
            (Self::Editor, Kind::Topic) => &[Read, Write, Create, Delete, Alter, AlterConfigs],
            (Self::Editor, Kind::Subscription | Kind::Snapshot | Kind::Schema) => &[Read, Create, Delete, Alter],
            (Self::Publisher, Kind::Topic) => &[Write],
            (Self::Subscriber, Kind::Topic | Kind::Subscription | Kind::Snapshot) => &[Read],
            (Self::Viewer, _) => &[Describe],
            (Self::Publisher, _) | (Self::Subscriber, Kind::Schema) => &[],
        }
    }

    fn of_binding(kind: Kind, text: &str) -> Result<Self> {
        let role = Self::parse(text).filter(|role| !role.operations(kind).is_empty());
        role.ok_or_else(|| {
            let names = Self::ALL.into_iter().filter(|role| !role.operations(kind).is_empty()).map(Self::name);
            let names = names.collect::<Vec<_>>().join(", ");
            Failure::invalid(format!("Role {text} is not supported for this resource: its roles are {names}."))
        })
    }
}

/// Resource with a policy.
pub(super) struct Granted {
    pub kind: Kind,
    /// Pattern of its entries: its literal name.
    pub pattern: Pattern,
    /// `true` if no client can use the broker without a login.
    pub is_login_required: bool,
}

impl Granted {
    /// Returns the entries of a policy. Fails if they would not mean what the policy says.
    pub fn entries(&self, policy: &Policy) -> Result<BTreeSet<Acl>> {
        if !VERSIONS.contains(&policy.version) {
            return Err(Failure::invalid(format!("Policy version {} is invalid: use 1, or 3.", policy.version)));
        }
        if !policy.audit_configs.is_empty() {
            return Err(Failure::invalid("Audit configurations are not supported: remove auditConfigs."));
        }
        if policy.bindings.iter().map(|binding| binding.members.len()).sum::<usize>() > MEMBERS_MAX {
            return Err(Failure::invalid(format!("A policy has at most {MEMBERS_MAX} members.")));
        }
        let mut entries = BTreeSet::new();
        for binding in &policy.bindings {
            let role = Role::of_binding(self.kind, &binding.role)?;
            if binding.condition.is_some() {
                let role = &binding.role;
                let message = format!("Conditions are not supported: remove that of the binding for {role}.");
                return Err(Failure::invalid(message));
            }
            for member in &binding.members {
                let principal = self.principal(member)?;
                let operations = role.operations(self.kind).iter();
                entries.extend(operations.map(|operation| self.entry(principal.clone(), *operation)));
            }
        }
        Ok(entries)
    }

    fn entry(&self, principal: Principal, operation: Operation) -> Acl {
        Acl { pattern: self.pattern.clone(), principal, host: ANY_HOST.to_owned(), operation, is_allowed: true }
    }

    fn principal(&self, member: &str) -> Result<Principal> {
        let wrong = |why: &str| Failure::invalid(format!("Member {member} {why}"));
        match member.split_once(':') {
            None if member == EVERYONE => Ok(Principal::Everyone),
            None if member == EVERY_USER && self.is_login_required => Ok(Principal::Everyone),
            None if member == EVERY_USER => {
                Err(wrong("would include clients without a login: set auth = required, or name allUsers."))
            }
            // Such an entry would be that of everyone.
            Some((_, name)) if name.contains('*') => Err(wrong("names no one: wildcards are not supported.")),
            Some(("user" | "serviceAccount", name)) => UserName::parse(name)
                .map(Principal::User)
                .map_err(|error| wrong(&format!("is not valid: {}.", error.message))),
            Some(("group", name)) => RoleName::parse(name)
                .map(Principal::Role)
                .map_err(|error| wrong(&format!("is not valid: {}.", error.message))),
            _ => Err(wrong(
                "is not supported: members are user:NAME, serviceAccount:NAME, group:ROLE, allUsers and \
                 allAuthenticatedUsers.",
            )),
        }
    }

    /// Returns the bindings that say what entries of the resource say, as far as bindings can: none for an entry that
    /// denies, is for one host only, or allows an operation that no role consists of.
    fn bindings(&self, entries: &BTreeSet<Acl>) -> Vec<Binding> {
        let mut allowed: BTreeMap<&Principal, BTreeSet<Operation>> = BTreeMap::new();
        for acl in entries.iter().filter(|acl| acl.is_allowed && acl.host == ANY_HOST && acl.pattern == self.pattern) {
            allowed.entry(&acl.principal).or_default().insert(acl.operation);
        }
        let mut members: BTreeMap<Role, Vec<String>> = BTreeMap::new();
        for (principal, mut operations) in allowed {
            // A role with many operations comes before those with one of them.
            for role in Role::ALL {
                let of_role = role.operations(self.kind);
                if !of_role.is_empty() && of_role.iter().all(|operation| operations.contains(operation)) {
                    operations.retain(|operation| !of_role.contains(operation));
                    members.entry(role).or_default().push(member_of(principal));
                }
            }
        }
        let binding = |(role, members): (Role, _)| Binding { role: role.name().to_owned(), members, condition: None };
        members.into_iter().map(binding).collect()
    }

    /// Returns the entries that a policy can express, of those of the resource.
    pub fn shown(&self, entries: &BTreeSet<Acl>) -> BTreeSet<Acl> {
        let bindings = self.bindings(entries);
        let of_binding = |binding: &Binding| {
            let operations = Role::parse(&binding.role).map_or(&[][..], |role| role.operations(self.kind));
            let members = binding.members.iter().filter_map(|member| self.principal(member).ok()).collect::<Vec<_>>();
            members.into_iter().flat_map(move |member| operations.iter().map(move |of| self.entry(member.clone(), *of)))
        };
        bindings.iter().flat_map(of_binding).collect()
    }

    /// Returns the policy of a resource with these entries: the one that was written if it still says the same.
    pub fn policy(&self, entries: &BTreeSet<Acl>, written: Option<Policy>) -> Policy {
        let says_the_same = |written: &Policy| self.entries(written).is_ok_and(|said| said == self.shown(entries));
        written.filter(says_the_same).unwrap_or_else(|| {
            let bindings = self.bindings(entries);
            let version = if bindings.is_empty() { 0 } else { VERSION };
            Policy { version, bindings, ..Policy::default() }
        })
    }
}

fn member_of(principal: &Principal) -> String {
    match principal {
        Principal::Everyone => EVERYONE.to_owned(),
        Principal::User(name) => format!("user:{name}"),
        Principal::Role(name) => format!("group:{name}"),
    }
}

#[cfg(test)]
#[path = "grants_tests.rs"]
mod tests;
