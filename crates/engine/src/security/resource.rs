//! Resources and operations on them: what an access control entry is about.

use super::TenantName;
use crate::error::{Error, Result};
use crate::glob;
use crate::ids::is_internal;

/// Pattern that stands for any name.
pub(super) const ALL: &str = "*";

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
        /// Topic, by its name. The streams of Redis are topics.
        Topic = 1, "topic";
        Group = 2, "group";
        /// The broker as a whole; its name is [`Resource::CLUSTER_NAME`].
        Cluster = 3, "cluster";
        /// Transactions of a producer, by their transactional id.
        Transaction = 4, "transaction";
        /// Queue, by its name: those of SQS and the subscriptions of Pub/Sub, too.
        Queue = 5, "queue";
        /// Entry of a cache, by the name of the cache, a slash and the key.
        Cache = 6, "cache";
        /// Channel of Redis, which is not a topic.
        Channel = 7, "channel";
        /// Schema of Pub/Sub.
        Schema = 8, "schema";
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

/// Set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations(u16);

impl Operations {
    pub const NONE: Self = Self(0);
    pub const EVERY: Self = Self(u16::MAX);

    pub const fn new(operations: &[Operation]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < operations.len() {
            bits |= 1 << operations[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    pub fn contains(self, operation: Operation) -> bool {
        self.0 & 1 << operation as u16 != 0
    }

    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the operations that permission for these includes.
    pub fn implied(self) -> Self {
        let implies_describe = Self::new(&[Operation::Read, Operation::Write, Operation::Delete, Operation::Alter]);
        let mut all = self;
        if self.contains(Operation::All) {
            return Self::EVERY;
        }
        if self.0 & implies_describe.0 != 0 {
            all = all.with(Self::new(&[Operation::Describe]));
        }
        if self.contains(Operation::AlterConfigs) {
            all = all.with(Self::new(&[Operation::DescribeConfigs]));
        }
        all
    }
}

/// Resource that an operation acts on, or all resources whose names have a common beginning. The name has any bytes:
/// those of a cache end with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    pub kind: ResourceKind,
    pub name: &'a [u8],
    /// `true` for all resources whose names begin with `name`.
    is_prefix: bool,
    /// `true` if only an entry with exactly this name allows anything.
    is_by_name: bool,
}

impl<'a> Resource<'a> {
    /// Name of the only resource of its kind.
    pub const CLUSTER_NAME: &'static str = "cluster";
    pub const CLUSTER: Resource<'static> = Resource {
        kind: ResourceKind::Cluster,
        name: Self::CLUSTER_NAME.as_bytes(),
        is_prefix: false,
        is_by_name: false,
    };

    pub fn new(kind: ResourceKind, name: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { kind, name: name.as_ref(), is_prefix: false, is_by_name: false }
    }

    /// Returns all resources of a kind whose names begin with `prefix`. An operation on them is allowed if it is
    /// allowed on each name that there may be.
    pub fn all(kind: ResourceKind, prefix: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { kind, name: prefix.as_ref(), is_prefix: true, is_by_name: false }
    }

    /// Returns the resource as one on which only an entry with exactly its name allows anything: neither `*`, a prefix
    /// or a glob pattern, nor a built-in role.
    pub fn by_name(self) -> Self {
        Self { is_by_name: true, ..self }
    }

    pub(super) fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    pub fn topic(name: &'a str) -> Self {
        Self::new(ResourceKind::Topic, name)
    }

    pub fn group(name: &'a str) -> Self {
        Self::new(ResourceKind::Group, name)
    }

    pub fn transaction(name: &'a str) -> Self {
        Self::new(ResourceKind::Transaction, name)
    }

    pub fn queue(name: &'a str) -> Self {
        Self::new(ResourceKind::Queue, name)
    }

    /// Returns `true` if clients of a tenant may use the resource, or all resources with its prefix, as far as their
    /// permissions allow: if each name is the tenant's. The cluster is that of all tenants, so what is allowed on it,
    /// such as to create any topic or to list users, is not theirs.
    pub fn is_within(&self, tenant: &TenantName) -> bool {
        self.kind != ResourceKind::Cluster && tenant.owns(self.name)
    }

    /// Returns `true` if an entry that allows has to name the resource literally. So is a topic in which the broker
    /// keeps state: a user who may read all topics cannot read the state of others.
    pub(super) fn is_by_name(&self) -> bool {
        let is_internal = || std::str::from_utf8(self.name).is_ok_and(is_internal);
        self.is_by_name || self.kind == ResourceKind::Topic && !self.is_prefix && is_internal()
    }
}

/// Interpretation of the name in an access control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PatternKind {
    /// One name, or all (`*`).
    Literal = 0,
    /// All names that begin with this one.
    Prefix = 1,
    /// All names that match this glob pattern: see [`glob::matches`].
    Glob = 2,
}

impl PatternKind {
    pub const ALL: [Self; 3] = [Self::Literal, Self::Prefix, Self::Glob];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Literal => "literal",
            Self::Prefix => "prefix",
            Self::Glob => "glob",
        }
    }
}

/// Resources of an access control entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern {
    pub kind: ResourceKind,
    pub name: String,
    pub matching: PatternKind,
}

impl Pattern {
    pub fn covers(&self, resource: &Resource<'_>) -> bool {
        self.kind == resource.kind && covers(self.matching, self.name.as_bytes(), resource.name)
    }

    /// Returns `true` if every resource of the other pattern matches this one, as far as that is decided: of a glob
    /// pattern it is known only of the same one, and of `*`.
    pub(super) fn covers_all_of(&self, other: &Self) -> bool {
        let is_all = self.name == ALL && self.matching != PatternKind::Prefix;
        self.kind == other.kind
            && match (self.matching, other.matching) {
                _ if is_all || self == other => true,
                (PatternKind::Prefix, PatternKind::Literal) if other.name == ALL => false,
                (PatternKind::Prefix, PatternKind::Literal | PatternKind::Prefix) => other.name.starts_with(&self.name),
                _ => false,
            }
    }
}

/// Part of a resource that a pattern covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    Nothing,
    /// Some of the names with a common beginning, or of a glob pattern possibly none of them.
    Part,
    Whole,
}

/// Returns the part of a resource that a pattern covers.
pub(super) fn cover(matching: PatternKind, pattern: &[u8], resource: &Resource<'_>) -> Cover {
    let name = resource.name;
    if !resource.is_prefix {
        return if covers(matching, pattern, name) { Cover::Whole } else { Cover::Nothing };
    }
    let (start, is_whole) = match matching {
        PatternKind::Literal if pattern == ALL.as_bytes() => return Cover::Whole,
        PatternKind::Literal => (pattern, false),
        PatternKind::Prefix => (pattern, true),
        // The last star takes whatever follows the common beginning.
        PatternKind::Glob if glob::ends_with_star(pattern) && glob::matches(pattern, name) => return Cover::Whole,
        PatternKind::Glob => {
            let start = glob::literal_start(pattern);
            (start, &pattern[start.len()..] == ALL.as_bytes())
        }
    };
    match is_whole && name.starts_with(start) {
        true => Cover::Whole,
        // A longer name has only some of those that a shorter one begins, and a glob pattern may match on.
        false if start.starts_with(name) => Cover::Part,
        false if matching == PatternKind::Glob && name.starts_with(start) => Cover::Part,
        false => Cover::Nothing,
    }
}

/// Returns `true` if a pattern covers the name of a resource.
pub(super) fn covers(matching: PatternKind, pattern: &[u8], name: &[u8]) -> bool {
    match matching {
        PatternKind::Literal => pattern == name || pattern == ALL.as_bytes(),
        PatternKind::Prefix => name.starts_with(pattern),
        PatternKind::Glob => glob::matches(pattern, name),
    }
}
