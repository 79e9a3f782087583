//! Access control lists: permissions of users and roles on resources, by host.
//!
//! An entry allows or denies. An entry that denies takes precedence; without one that allows, nothing is allowed. Some
//! operations imply others: a user who may read a topic may also describe it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::resource::{ALL, Cover, Operations, cover, covers};
use super::{Operation, Pattern, PatternKind, Resource, ResourceKind, RoleName, UserName};
use crate::error::{Error, Result};
use crate::limits::{ACL_NAME_BYTES_MAX, ACLS_BYTES_MAX, ACLS_MAX};

/// Principal of an access control entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    Everyone,
    User(UserName),
    /// All members of a role.
    Role(RoleName),
}

impl Principal {
    const USER: &'static str = "User:";
    const ROLE: &'static str = "Role:";

    /// Parses `User:name`, `Role:name`, or `User:*` for everyone.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(role) = text.strip_prefix(Self::ROLE) {
            return Ok(Self::Role(RoleName::parse(role)?));
        }
        match text.strip_prefix(Self::USER) {
            Some(ALL) => Ok(Self::Everyone),
            Some(name) => Ok(Self::User(UserName::parse(name)?)),
            None => Err(Error::invalid(format!("a principal is User:NAME, Role:NAME or User:*, not '{text}'"))),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => write!(f, "{}{ALL}", Self::USER),
            Self::User(name) => write!(f, "{}{name}", Self::USER),
            Self::Role(name) => write!(f, "{}{name}", Self::ROLE),
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

/// Writes a sentence such as `User:ann may read topic orders`.
impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, principal, host, operation, is_allowed } = self;
        let may = if *is_allowed { "may" } else { "may not" };
        write!(f, "{principal} {may} {} {} {}", operation.name(), pattern.kind.name(), pattern.name)?;
        if pattern.matching != PatternKind::Literal {
            write!(f, " ({})", pattern.matching.name())?;
        }
        if host == Self::ANY_HOST { Ok(()) } else { write!(f, " from {host}") }
    }
}

impl Acl {
    const ANY_HOST: &str = "*";

    pub fn validate(&self) -> Result<()> {
        for (what, name) in [("the name of a resource", &self.pattern.name), ("a host", &self.host)] {
            if name.is_empty() || name.len() > ACL_NAME_BYTES_MAX || name.chars().any(char::is_control) {
                return Err(Error::invalid(format!(
                    "{what} has 1 to {ACL_NAME_BYTES_MAX} bytes and no control characters"
                )));
            }
        }
        if self.pattern.kind == ResourceKind::Cluster
            && (self.pattern.matching != PatternKind::Literal || self.pattern.name != Resource::CLUSTER_NAME)
        {
            return Err(Error::invalid(format!("the name of the cluster is {}", Resource::CLUSTER_NAME)));
        }
        if matches!(&self.principal, Principal::User(name) if name.as_str() == ALL) {
            return Err(Error::invalid(format!(
                "'{ALL}' is not the name of a user in an entry: for everyone, write the principal User:{ALL}"
            )));
        }
        if let Principal::Role(role) = &self.principal
            && role.built_in().is_some()
        {
            return Err(Error::invalid(format!(
                "the role {role} is built in, so its permissions cannot be changed: use another name"
            )));
        }
        Ok(())
    }

    /// Returns the size of its texts.
    fn bytes(&self) -> usize {
        let principal = match &self.principal {
            Principal::Everyone => 0,
            Principal::User(name) => name.as_str().len(),
            Principal::Role(name) => name.as_str().len(),
        };
        self.pattern.name.len() + self.host.len() + principal
    }
}

/// Interpretation of the name in a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Match {
    /// Entries with this name, however it is interpreted.
    Any = 1,
    /// Entries that apply to this resource.
    Covering = 2,
    /// Entries with this literal name.
    Literal = 3,
    /// Entries with this prefix.
    Prefix = 4,
    /// Entries with this glob pattern.
    Glob = 5,
}

impl Match {
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Any, Self::Covering, Self::Literal, Self::Prefix, Self::Glob];
        all.into_iter().find(|known| *known as u8 == code)
    }

    /// Returns the only kind of pattern that is wanted, if it is only one.
    fn only(self) -> Option<PatternKind> {
        match self {
            Self::Any | Self::Covering => None,
            Self::Literal => Some(PatternKind::Literal),
            Self::Prefix => Some(PatternKind::Prefix),
            Self::Glob => Some(PatternKind::Glob),
        }
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
    /// Returns a filter that matches the entries with exactly this pattern.
    pub fn of_pattern(pattern: Pattern) -> Self {
        let matching = match pattern.matching {
            PatternKind::Literal => Match::Literal,
            PatternKind::Prefix => Match::Prefix,
            PatternKind::Glob => Match::Glob,
        };
        Self { kind: Some(pattern.kind), name: Some(pattern.name), matching, ..Self::default() }
    }

    /// Returns a filter that matches the entries of a principal.
    pub fn of_principal(principal: Principal) -> Self {
        Self { principal: Some(principal), ..Self::default() }
    }

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
        match (self.matching, &self.name) {
            (Match::Covering, None) => true,
            (Match::Covering, Some(name)) => pattern.covers(&Resource::new(pattern.kind, name)),
            (matching, name) => {
                matching.only().is_none_or(|only| only == pattern.matching)
                    && name.as_ref().is_none_or(|name| *name == pattern.name)
            }
        }
    }

    /// Returns `true` if the filter matches an entry whose principal and pattern it matches.
    fn means_rest_of(&self, entry: &Entry) -> bool {
        self.host.as_ref().is_none_or(|host| *host == entry.host)
            && self.operation.is_none_or(|operation| operation == entry.operation)
            && self.is_allowed.is_none_or(|is_allowed| is_allowed == entry.is_allowed)
    }
}

/// Operations that entries allow and deny.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    allowed: Operations,
    denied: Operations,
}

impl Verdict {
    fn add(&mut self, other: Self) {
        self.allowed = self.allowed.with(other.allowed);
        self.denied = self.denied.with(other.denied);
    }

    /// Returns the part of a verdict that counts for a resource of which a pattern covers this much: an entry that
    /// allows has to cover all of it.
    fn for_cover(self, cover: Cover) -> Self {
        match cover {
            Cover::Nothing => Self::default(),
            Cover::Part => Self { allowed: Operations::NONE, ..self },
            Cover::Whole => self,
        }
    }

    fn allows(self, operation: Operation) -> bool {
        self.allowed.contains(operation) && !self.denied.contains(operation)
    }
}

/// Part of an entry that follows its principal and its pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    host: String,
    operation: Operation,
    is_allowed: bool,
}

impl Entry {
    /// Returns what the entry says to a client at a host. An entry denies only the operation that it names, or all.
    fn verdict(&self, host: &str) -> Verdict {
        let operations = Operations::new(&[self.operation]);
        match self.host == ALL || self.host == host {
            false => Verdict::default(),
            true if self.is_allowed => Verdict { allowed: operations.implied(), denied: Operations::NONE },
            true if self.operation == Operation::All => {
                Verdict { allowed: Operations::NONE, denied: Operations::EVERY }
            }
            true => Verdict { allowed: Operations::NONE, denied: operations },
        }
    }
}

/// Entries of one principal for one kind of resource. A name is found without looking at the others, except for glob
/// patterns.
#[derive(Clone, Debug, Default)]
struct Names {
    by_pattern: [HashMap<Box<[u8]>, BTreeSet<Entry>, foldhash::fast::RandomState>; PatternKind::ALL.len()],
    /// Lengths of the prefixes, and how many prefixes have each.
    prefix_lengths: BTreeMap<usize, usize>,
}

impl Names {
    fn of(&self, matching: PatternKind) -> &HashMap<Box<[u8]>, BTreeSet<Entry>, foldhash::fast::RandomState> {
        &self.by_pattern[matching as usize]
    }

    fn insert(&mut self, matching: PatternKind, name: &[u8], entry: Entry) -> bool {
        let entries = self.by_pattern[matching as usize].entry(name.into()).or_default();
        if entries.is_empty() && matching == PatternKind::Prefix {
            *self.prefix_lengths.entry(name.len()).or_default() += 1;
        }
        entries.insert(entry)
    }

    fn remove(&mut self, matching: PatternKind, name: &[u8], entry: &Entry) -> bool {
        let of_kind = &mut self.by_pattern[matching as usize];
        let Some(entries) = of_kind.get_mut(name) else {
            return false;
        };
        let existed = entries.remove(entry);
        if entries.is_empty() {
            of_kind.remove(name);
            if matching == PatternKind::Prefix
                && let Some(count) = self.prefix_lengths.get_mut(&name.len())
            {
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&name.len());
                }
            }
        }
        existed
    }

    /// Returns the number of patterns.
    fn len(&self) -> usize {
        self.by_pattern.iter().map(HashMap::len).sum()
    }

    /// Returns the entries that cover a resource, each with `true` if its pattern names the resource literally.
    fn covering<'n>(&'n self, name: &'n [u8]) -> impl Iterator<Item = (&'n Entry, bool)> {
        let is_named = move |matching, pattern: &[u8]| matching == PatternKind::Literal && pattern == name;
        self.covering_patterns(name).map(move |(matching, pattern, entry)| (entry, is_named(matching, pattern)))
    }

    /// Returns the entries that cover a resource, with their patterns.
    fn covering_patterns<'n>(&'n self, name: &'n [u8]) -> impl Iterator<Item = (PatternKind, &'n [u8], &'n Entry)> {
        let literal = self.of(PatternKind::Literal);
        let prefixes = self.of(PatternKind::Prefix);
        let named = literal.get_key_value(name);
        let of_all = literal.get_key_value(ALL.as_bytes()).filter(|_| name != ALL.as_bytes());
        let of_prefixes = self
            .prefix_lengths
            .range(..=name.len())
            .filter_map(|(length, _)| prefixes.get_key_value(name.get(..*length)?));
        let of_globs = self.of(PatternKind::Glob).iter().filter(|(glob, _)| covers(PatternKind::Glob, glob, name));
        let literals = named.into_iter().chain(of_all).map(|found| (PatternKind::Literal, found));
        let others = of_prefixes.map(|found| (PatternKind::Prefix, found));
        let patterns = literals.chain(others).chain(of_globs.map(|found| (PatternKind::Glob, found)));
        patterns
            .flat_map(|(matching, (pattern, entries))| entries.iter().map(move |entry| (matching, &**pattern, entry)))
    }

    /// Returns the entries whose patterns a filter may match: those with its name if it has one, so that the others are
    /// not visited.
    fn candidates<'n>(
        &'n self,
        filter: &'n AclFilter,
    ) -> Box<dyn Iterator<Item = (PatternKind, &'n [u8], &'n Entry)> + 'n> {
        let Some(name) = filter.name.as_deref().map(str::as_bytes) else {
            let only = filter.matching.only();
            return Box::new(self.iter().filter(move |(matching, ..)| only.is_none_or(|only| only == *matching)));
        };
        if filter.matching == Match::Covering {
            return Box::new(self.covering_patterns(name));
        }
        let kinds = PatternKind::ALL.into_iter();
        let wanted = kinds.filter(|matching| filter.matching.only().is_none_or(|only| only == *matching));
        Box::new(wanted.flat_map(move |matching| {
            let named = self.of(matching).get_key_value(name).into_iter();
            named.flat_map(move |(name, entries)| entries.iter().map(move |entry| (matching, &**name, entry)))
        }))
    }

    fn iter(&self) -> impl Iterator<Item = (PatternKind, &[u8], &Entry)> {
        PatternKind::ALL.into_iter().flat_map(move |matching| {
            self.of(matching)
                .iter()
                .flat_map(move |(name, entries)| entries.iter().map(move |entry| (matching, &**name, entry)))
        })
    }
}

/// Verdicts of the entries of one client for one kind of resource, if they are few: a decision looks at all of them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Verdict for every resource, except that the broker's own topics are not allowed by it.
    of_all: Verdict,
    patterns: Vec<(PatternKind, Box<[u8]>, Verdict)>,
}

impl Rules {
    /// Maximum number of patterns.
    const PATTERNS_MAX: usize = 16;

    fn add(&mut self, matching: PatternKind, name: &[u8], entry: &Entry, host: &str) {
        let said = entry.verdict(host);
        if matching == PatternKind::Literal && name == ALL.as_bytes() {
            return self.of_all.add(said);
        }
        match self.patterns.iter_mut().find(|(kind, pattern, _)| *kind == matching && **pattern == *name) {
            Some((.., verdict)) => verdict.add(said),
            None => self.patterns.push((matching, name.into(), said)),
        }
    }

    /// Returns `true` if the client may perform this operation on a resource of the kind.
    pub fn allow(&self, operation: Operation, resource: &Resource<'_>) -> bool {
        let is_by_name = resource.is_by_name();
        let mut verdict = self.of_all;
        if is_by_name {
            verdict.allowed = Operations::NONE;
        }
        for (matching, pattern, said) in &self.patterns {
            let mut said = said.for_cover(cover(*matching, pattern, resource));
            if is_by_name && *matching != PatternKind::Literal {
                said.allowed = Operations::NONE;
            }
            verdict.add(said);
        }
        verdict.allows(operation)
    }
}

/// Table of all entries.
#[derive(Clone, Debug, Default)]
pub struct Acls {
    by_principal: HashMap<Principal, BTreeMap<ResourceKind, Names>, foldhash::fast::RandomState>,
    /// Principals of the table in their order, for lists of them.
    principals: BTreeSet<Principal>,
    count: usize,
    /// Size of the texts of all entries.
    bytes: usize,
}

impl Acls {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Checks that there is room for these entries, which are not in the table.
    pub fn check_room<'a>(&self, fresh: impl IntoIterator<Item = &'a Acl>) -> Result<()> {
        let (count, bytes) =
            fresh.into_iter().fold((self.count, self.bytes), |(count, bytes), acl| (count + 1, bytes + acl.bytes()));
        if count > ACLS_MAX || bytes > ACLS_BYTES_MAX {
            return Err(Error::busy(format!(
                "this broker has {} access control entries with {} bytes of names; the limit is {ACLS_MAX} and \
                 {ACLS_BYTES_MAX}; delete some first",
                self.count, self.bytes
            )));
        }
        Ok(())
    }

    /// Returns `true` if a user has entries by name.
    pub(super) fn has_user(&self, user: &UserName) -> bool {
        self.by_principal.contains_key(&Principal::User(user.clone()))
    }

    pub(super) fn next_user(&self, after: &str) -> Option<&UserName> {
        let after = Principal::User(UserName(Arc::from(after)));
        match self.principals.range((Bound::Excluded(after), Bound::Unbounded)).next() {
            Some(Principal::User(user)) => Some(user),
            Some(Principal::Everyone | Principal::Role(_)) | None => None,
        }
    }

    /// Returns the roles that have entries, in no order.
    pub fn roles(&self) -> impl Iterator<Item = &RoleName> {
        self.by_principal.keys().filter_map(|principal| match principal {
            Principal::Role(role) => Some(role),
            Principal::Everyone | Principal::User(_) => None,
        })
    }

    /// Returns `true` if a role has entries.
    pub fn has_role(&self, role: &RoleName) -> bool {
        self.by_principal.contains_key(&Principal::Role(role.clone()))
    }

    pub fn contains(&self, acl: &Acl) -> bool {
        let Pattern { kind, name, matching } = &acl.pattern;
        let names = self.by_principal.get(&acl.principal).and_then(|kinds| kinds.get(kind));
        let entries = names.and_then(|names| names.of(*matching).get(name.as_bytes()));
        entries.is_some_and(|entries| entries.contains(&entry_of(acl)))
    }

    pub fn insert(&mut self, acl: Acl) {
        let Pattern { kind, name, matching } = &acl.pattern;
        if !self.by_principal.contains_key(&acl.principal) {
            self.principals.insert(acl.principal.clone());
        }
        let names = self.by_principal.entry(acl.principal.clone()).or_default().entry(*kind).or_default();
        if names.insert(*matching, name.as_bytes(), entry_of(&acl)) {
            self.count += 1;
            self.bytes += acl.bytes();
        }
    }

    pub fn remove(&mut self, acl: &Acl) {
        let Pattern { kind, name, matching } = &acl.pattern;
        let Some(kinds) = self.by_principal.get_mut(&acl.principal) else { return };
        let Some(names) = kinds.get_mut(kind) else { return };
        if names.remove(*matching, name.as_bytes(), &entry_of(acl)) {
            self.count -= 1;
            self.bytes -= acl.bytes();
        }
        if names.len() == 0 {
            kinds.remove(kind);
        }
        if kinds.is_empty() {
            self.by_principal.remove(&acl.principal);
            self.principals.remove(&acl.principal);
        }
    }

    /// Returns the entries that a filter matches, in their order. Only entries of its principal, its kind and its name
    /// are visited, and only those that match are copied.
    pub fn found(&self, filter: &AclFilter) -> Vec<Acl> {
        let matching = self.candidates(filter).filter(|(.., (_, _, entry))| filter.means_rest_of(entry));
        let mut found: Vec<Acl> = matching.map(|(principal, kind, parts)| acl_of(principal, kind, parts)).collect();
        found.sort_unstable();
        found
    }

    /// Returns the first `count_max` entries after this one that match a filter and are wanted, and `true` if no other
    /// follows. They are in the order of their principals, then of their kinds, the interpretations of their names, and
    /// their names. Entries of principals and kinds before that of `after` are not visited.
    pub fn page(
        &self,
        filter: &AclFilter,
        after: Option<&Acl>,
        count_max: usize,
        is_wanted: impl Fn(&Acl) -> bool,
    ) -> (Vec<Acl>, bool) {
        let key = after.map(|acl| (&acl.principal, acl.pattern.kind));
        let rest = after.map(|acl| (acl.pattern.matching, acl.pattern.name.as_bytes(), entry_of(acl)));
        let start = key.map_or(Bound::Unbounded, |(principal, _)| Bound::Included(principal));
        let principals = self.principals.range::<Principal, _>((start, Bound::Unbounded));
        let one = filter.principal.as_ref();
        let one = one.filter(|wanted| key.is_none_or(|(principal, _)| *wanted >= principal));
        let principals: Box<dyn Iterator<Item = &Principal>> = match &filter.principal {
            Some(_) => Box::new(one.into_iter()),
            None => Box::new(principals),
        };
        let mut found = Vec::new();
        for (principal, kinds) in principals.filter_map(|of| self.by_principal.get_key_value(of)) {
            for (kind, names) in kinds.iter().filter(|(kind, _)| filter.kind.is_none_or(|wanted| wanted == **kind)) {
                let order = key.map_or(Ordering::Greater, |key| (principal, *kind).cmp(&key));
                if order == Ordering::Less {
                    continue;
                }
                let follows = |(matching, name, entry): &(PatternKind, &[u8], &Entry)| {
                    let rest = rest.as_ref().filter(|_| order == Ordering::Equal);
                    rest.is_none_or(|(m, n, e)| (*matching, *name, *entry) > (*m, *n, e))
                };
                let candidates = names.candidates(filter).filter(|(.., entry)| filter.means_rest_of(entry));
                let mut group: Vec<_> = candidates.filter(follows).collect();
                group.sort_unstable();
                found.extend(
                    group
                        .into_iter()
                        .map(|parts| acl_of(principal, *kind, parts))
                        .filter(&is_wanted)
                        .take((count_max + 1).saturating_sub(found.len())),
                );
                if found.len() > count_max {
                    found.truncate(count_max);
                    return (found, false);
                }
            }
        }
        (found, true)
    }

    /// Returns the entries whose principals and patterns a filter matches.
    fn candidates<'t>(&'t self, filter: &'t AclFilter) -> impl Iterator<Item = Candidate<'t>> {
        let one = filter.principal.as_ref().and_then(|principal| self.by_principal.get_key_value(principal));
        let all = filter.principal.is_none().then(|| self.by_principal.iter());
        let of_kind = |kind: &ResourceKind| filter.kind.is_none_or(|wanted| wanted == *kind);
        one.into_iter()
            .chain(all.into_iter().flatten())
            .flat_map(|(principal, kinds)| kinds.iter().map(move |(kind, names)| (principal, *kind, names)))
            .filter(move |(_, kind, _)| of_kind(kind))
            .flat_map(|(principal, kind, names)| names.candidates(filter).map(move |parts| (principal, kind, parts)))
    }

    /// Returns `true` if a client with these principals at a host may perform this operation. For all names with a
    /// common beginning, this looks at every entry of the principals for the kind of resource.
    pub fn allow<'p>(
        &self,
        principals: impl IntoIterator<Item = &'p Principal>,
        host: &str,
        operation: Operation,
        resource: &Resource<'_>,
    ) -> bool {
        let is_by_name = resource.is_by_name();
        let mut verdict = Verdict::default();
        for principal in principals {
            if let Principal::Role(role) = principal
                && let Some(role) = role.built_in()
                && !is_by_name
            {
                verdict.allowed = verdict.allowed.with(role.operations(resource.kind));
            }
            let Some(names) = self.by_principal.get(principal).and_then(|kinds| kinds.get(&resource.kind)) else {
                continue;
            };
            if resource.is_prefix() {
                for (matching, name, entry) in names.iter() {
                    verdict.add(entry.verdict(host).for_cover(cover(matching, name, resource)));
                }
                continue;
            }
            for (entry, is_named) in names.covering(resource.name) {
                let mut said = entry.verdict(host);
                if is_by_name && !is_named {
                    said.allowed = Operations::NONE;
                }
                verdict.add(said);
            }
        }
        verdict.allows(operation)
    }

    /// Returns what the entries say to a client with these principals at a host about a kind of resource; `None` if
    /// they have many patterns, so that [`Acls::allow`] is faster.
    pub fn rules<'p>(
        &self,
        principals: impl IntoIterator<Item = &'p Principal>,
        host: &str,
        kind: ResourceKind,
    ) -> Option<Rules> {
        let mut rules = Rules::default();
        for principal in principals {
            if let Principal::Role(role) = principal
                && let Some(role) = role.built_in()
            {
                rules.of_all.allowed = rules.of_all.allowed.with(role.operations(kind));
            }
            let names = self.by_principal.get(principal).and_then(|kinds| kinds.get(&kind));
            if names.is_some_and(|names| names.len() > Rules::PATTERNS_MAX) {
                return None;
            }
            for (matching, name, entry) in names.into_iter().flat_map(Names::iter) {
                rules.add(matching, name, entry, host);
            }
        }
        (rules.patterns.len() <= Rules::PATTERNS_MAX).then_some(rules)
    }

    /// Returns `true` if there may be a resource of this kind on which a client with these principals at a host may
    /// perform this operation: an entry allows it that no other entry denies as a whole.
    pub fn allow_any<'p>(
        &self,
        principals: impl IntoIterator<Item = &'p Principal>,
        host: &str,
        operation: Operation,
        kind: ResourceKind,
    ) -> bool {
        let mut allowed = Vec::new();
        let mut denied = Vec::new();
        for principal in principals {
            if let Principal::Role(role) = principal
                && role.built_in().is_some_and(|role| role.operations(kind).contains(operation))
            {
                allowed.push(Pattern { kind, name: ALL.to_owned(), matching: PatternKind::Literal });
            }
            let names = self.by_principal.get(principal).and_then(|kinds| kinds.get(&kind));
            for (matching, name, entry) in names.into_iter().flat_map(Names::iter) {
                let verdict = entry.verdict(host);
                let pattern = || Pattern { kind, name: text(name), matching };
                if verdict.allowed.contains(operation) {
                    allowed.push(pattern());
                }
                if verdict.denied.contains(operation) {
                    denied.push(pattern());
                }
            }
        }
        allowed.iter().any(|allowed| !denied.iter().any(|denied| denied.covers_all_of(allowed)))
    }
}

/// Entry of the table with its principal, the kind of its resource, and its pattern.
type Candidate<'t> = (&'t Principal, ResourceKind, (PatternKind, &'t [u8], &'t Entry));

fn entry_of(acl: &Acl) -> Entry {
    Entry { host: acl.host.clone(), operation: acl.operation, is_allowed: acl.is_allowed }
}

fn acl_of(principal: &Principal, kind: ResourceKind, (matching, name, entry): (PatternKind, &[u8], &Entry)) -> Acl {
    let Entry { host, operation, is_allowed } = entry.clone();
    Acl {
        pattern: Pattern { kind, name: text(name), matching },
        principal: principal.clone(),
        host,
        operation,
        is_allowed,
    }
}

/// Returns the name of a pattern, which was a text when it was added.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
#[path = "acl_tests.rs"]
mod tests;
