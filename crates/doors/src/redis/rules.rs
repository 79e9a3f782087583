//! Rules of Redis's `ACL SETUSER`, and their translation into access control entries and back.
//!
//! Keys are entries of the caches `db0` to `db15`, so each pattern of keys is two glob patterns. Commands are known in
//! four sets, as the broker decides about reading, writing, channels and the cluster: a rule that would need another
//! distinction is refused. Texts of errors are those of redis-server 7.0.15.

use std::collections::{BTreeMap, BTreeSet};

use engine::limits::ACL_NAME_BYTES_MAX;
use engine::security::{Acl, Operation, Pattern, PatternKind, Principal, Resource, ResourceKind, UserName};

use super::access::Needs;
use super::categories::commands_of;
use super::command::{Command, Keys};
use super::commands;

/// Maximum number of patterns of keys and of channels of one user.
const PATTERNS_MAX: usize = 256;
/// Beginnings of the names of all keys: those of the databases 0 to 9, and 10 to 15.
const DATABASES: [&str; 2] = ["db[0-9]/", "db1[0-5]/"];
const ANY: &str = "*";
const SETS: &str = "The broker knows commands in sets: +@all, +@read, +@write, +@pubsub and +@admin, each as a whole";

/// Set of commands about which the broker decides together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    Read,
    Write,
    PubSub,
    Admin,
}

impl Set {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::PubSub, Self::Admin];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::PubSub => "pubsub",
            Self::Admin => "admin",
        }
    }
}

/// Set to which a command belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// None: the command is about its own connection, and always allowed.
    Free,
    Of(Set),
    /// None that a rule gives: the command is about topics, which other doors share.
    Never,
}

fn member_of(command: &Command, part: &str) -> Member {
    let needs = match command.needs {
        Needs::OfPart(of) => of(part.to_ascii_uppercase().as_bytes()),
        needs => needs,
    };
    match needs {
        Needs::Nothing | Needs::OfPart(_) => Member::Free,
        Needs::AllDatabases(_) | Needs::Streams(_) => Member::Never,
        // FLUSHDB deletes streams, too.
        Needs::Keys if command.is_write && command.keys == Keys::All && command.name != "SORT" => Member::Never,
        Needs::Keys => Member::Of(if command.is_write { Set::Write } else { Set::Read }),
        Needs::Channels(_) => Member::Of(Set::PubSub),
        Needs::View | Needs::Kill | Needs::Functions | Needs::Cluster(_) => Member::Of(Set::Admin),
    }
}

/// Returns a command or subcommand by its name, such as `client|list`.
fn named(name: &str) -> Option<Vec<(String, Member)>> {
    let (container, part) = name.split_once('|').map_or((name, None), |(container, part)| (container, Some(part)));
    let command = commands::find(container.as_bytes())?;
    let of = |part: &str| (name.to_ascii_lowercase(), member_of(command, part));
    match part {
        None if command.parts.is_empty() => Some(vec![of("")]),
        None => Some(command.parts.iter().map(|(part, _)| of(part)).collect()),
        Some(part) => {
            let is_known = command.parts.iter().any(|(known, _)| known.eq_ignore_ascii_case(part));
            (is_known || part.eq_ignore_ascii_case("help")).then(|| vec![of(part)])
        }
    }
}

/// Access to the keys of a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Access {
    reads: bool,
    writes: bool,
}

/// Rules of a user, without passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Patterns of keys in the order in which they were given.
    keys: Vec<(String, Access)>,
    channels: Vec<String>,
    sets: BTreeSet<Set>,
}

fn syntax() -> String {
    "Syntax error".to_owned()
}

/// Checks that an entry can have a pattern as its name.
fn check_pattern(pattern: &str, before: usize) -> Result<(), String> {
    if pattern.contains([' ', '\0']) {
        return Err(syntax());
    }
    if pattern.chars().any(char::is_control) || before + pattern.len() > ACL_NAME_BYTES_MAX {
        let max = ACL_NAME_BYTES_MAX - before;
        return Err(format!("A pattern has at most {max} bytes, no control characters, and is UTF-8"));
    }
    Ok(())
}

impl Rules {
    /// Returns the rules of a user who may do everything.
    pub(super) fn everything() -> Self {
        Self {
            keys: vec![(ANY.to_owned(), Access { reads: true, writes: true })],
            channels: vec![ANY.to_owned()],
            sets: Set::ALL.into(),
        }
    }

    /// Parses rules as [`Rules`] displays them.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Self::default();
        text.split_ascii_whitespace().try_for_each(|rule| rules.apply(rule))?;
        Ok(rules)
    }

    /// Applies one rule. Fails with the reason if there is no such rule, or if entries cannot express it.
    pub(super) fn apply(&mut self, rule: &str) -> Result<(), String> {
        let lower = rule.to_ascii_lowercase();
        match lower.as_str() {
            "allkeys" => self.add_keys(ANY, Access { reads: true, writes: true }),
            "resetkeys" => {
                self.keys.clear();
                Ok(())
            }
            "allchannels" => self.add_channel(ANY),
            "resetchannels" => {
                self.channels.clear();
                Ok(())
            }
            "allcommands" => self.add_commands("@all"),
            "nocommands" => self.remove_commands("@all"),
            "clearselectors" => Ok(()),
            _ => match rule.split_at_checked(1) {
                Some(("~", pattern)) => self.add_keys(pattern, Access { reads: true, writes: true }),
                Some(("%", rest)) => {
                    let (flags, pattern) = rest.split_once('~').ok_or_else(syntax)?;
                    let has = |flag: char| flags.contains([flag, flag.to_ascii_lowercase()]);
                    let access = Access { reads: has('R'), writes: has('W') };
                    if flags.is_empty() || !flags.chars().all(|flag| "RWrw".contains(flag)) {
                        return Err(syntax());
                    }
                    self.add_keys(pattern, access)
                }
                Some(("&", pattern)) => self.add_channel(pattern),
                Some(("+", commands)) => self.add_commands(commands),
                Some(("-", commands)) => self.remove_commands(commands),
                Some(("(", _)) => Err("Selectors are not supported: give the user more patterns instead".to_owned()),
                _ => Err(syntax()),
            },
        }
    }

    fn add_keys(&mut self, pattern: &str, access: Access) -> Result<(), String> {
        check_pattern(pattern, DATABASES[1].len())?;
        let whole = Access { reads: true, writes: true };
        let is_any = |(known, access): &(String, Access)| known == ANY && *access == whole;
        if pattern == ANY && access == whole {
            self.keys = vec![(ANY.to_owned(), whole)];
            return Ok(());
        }
        if self.keys.iter().any(is_any) {
            return Err("Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have \
                        any effect. Try 'resetkeys' to start with an empty list of patterns"
                .to_owned());
        }
        let is_full = self.keys.len() == PATTERNS_MAX;
        match self.keys.iter_mut().find(|(known, _)| known == pattern) {
            Some((_, known)) => {
                known.reads |= access.reads;
                known.writes |= access.writes;
            }
            None if is_full => return Err(too_many("keys")),
            None => self.keys.push((pattern.to_owned(), access)),
        }
        if self.keys.iter().any(is_any) {
            self.keys.retain(is_any);
        }
        Ok(())
    }

    fn add_channel(&mut self, pattern: &str) -> Result<(), String> {
        check_pattern(pattern, 0)?;
        if pattern.is_empty() {
            return Err("A pattern of channels is not empty".to_owned());
        }
        if pattern == ANY {
            self.channels = vec![ANY.to_owned()];
            return Ok(());
        }
        if self.channels.iter().any(|known| known == ANY) {
            return Err("Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not \
                        have any effect. Try 'resetchannels' to start with an empty list of channels"
                .to_owned());
        }
        if self.channels.iter().any(|known| known == pattern) {
            return Ok(());
        }
        if self.channels.len() == PATTERNS_MAX {
            return Err(too_many("channels"));
        }
        self.channels.push(pattern.to_owned());
        Ok(())
    }

    /// Returns `true` if the rules allow a command of this set.
    fn allows(&self, member: Member) -> bool {
        match member {
            Member::Free => true,
            Member::Of(set) => self.sets.contains(&set),
            Member::Never => false,
        }
    }

    fn add_commands(&mut self, name: &str) -> Result<(), String> {
        if let Some(sets) = sets_of(name) {
            self.sets.extend(sets);
            return Ok(());
        }
        let commands = commands_named(name)?;
        match commands.iter().find(|(_, member)| !self.allows(*member)) {
            Some((command, Member::Never)) => Err(format!(
                "'{command}' is about streams, which are topics of all doors: see thalweg acl add USER .. topic"
            )),
            Some((command, _)) => Err(format!("'{command}' cannot be allowed by itself. {SETS}")),
            None => Ok(()),
        }
    }

    fn remove_commands(&mut self, name: &str) -> Result<(), String> {
        if let Some(sets) = sets_of(name) {
            self.sets.retain(|set| !sets.contains(set));
            return Ok(());
        }
        let commands = commands_named(name)?;
        match commands.iter().find(|(_, member)| self.allows(*member)) {
            Some((command, Member::Free)) => Err(format!("'{command}' is about its connection, and always allowed")),
            Some((command, _)) => Err(format!("'{command}' cannot be refused by itself. {SETS}")),
            None => Ok(()),
        }
    }

    /// Checks rules that are complete.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.sets.contains(&Set::Write) && !self.sets.contains(&Set::Read) {
            return Err(
                "commands that write also return data: allow +@read as well, and give patterns as %W~ if their \
                        keys must not be read"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the entries of a principal with these rules.
    pub(super) fn entries(&self, principal: &Principal) -> BTreeSet<Acl> {
        let mut entries = BTreeSet::new();
        let mut add = |kind, name: String, matching, operation| {
            let pattern = Pattern { kind, name, matching };
            let host = ANY.to_owned();
            entries.insert(Acl { pattern, principal: principal.clone(), host, operation, is_allowed: true });
        };
        for (pattern, access) in &self.keys {
            for database in DATABASES {
                let name = || format!("{database}{pattern}");
                if access.reads && self.sets.contains(&Set::Read) {
                    add(ResourceKind::Cache, name(), PatternKind::Glob, Operation::Read);
                }
                if access.writes && self.sets.contains(&Set::Write) {
                    add(ResourceKind::Cache, name(), PatternKind::Glob, Operation::Write);
                }
            }
        }
        if self.sets.contains(&Set::PubSub) {
            for channel in &self.channels {
                // The literal star is any channel, also one without a name.
                let matching = if channel == ANY { PatternKind::Literal } else { PatternKind::Glob };
                for operation in [Operation::Read, Operation::Write] {
                    add(ResourceKind::Channel, channel.clone(), matching, operation);
                }
            }
        }
        if self.sets.contains(&Set::Admin) {
            for operation in [Operation::Alter, Operation::AlterConfigs] {
                add(ResourceKind::Cluster, Resource::CLUSTER_NAME.to_owned(), PatternKind::Literal, operation);
            }
        }
        entries
    }

    /// Returns the rules that say what entries of a principal say, as far as rules can.
    pub(super) fn of(principal: &Principal, entries: &BTreeSet<Acl>) -> Self {
        let has = |kind, name: String, matching, operation| {
            let pattern = Pattern { kind, name, matching };
            let host = ANY.to_owned();
            entries.contains(&Acl { pattern, principal: principal.clone(), host, operation, is_allowed: true })
        };
        let mut rules = Self::default();
        let mut keys: BTreeMap<&str, Access> = BTreeMap::new();
        for acl in entries {
            let Pattern { kind, name, matching } = &acl.pattern;
            if (*kind, *matching) == (ResourceKind::Cache, PatternKind::Glob)
                && let Some(pattern) = name.strip_prefix(DATABASES[0])
                && check_pattern(pattern, DATABASES[1].len()).is_ok()
            {
                let has_all = |operation| {
                    DATABASES.iter().all(|start| has(*kind, format!("{start}{pattern}"), *matching, operation))
                };
                keys.insert(pattern, Access { reads: has_all(Operation::Read), writes: has_all(Operation::Write) });
            }
            let of_channels = if name == ANY { PatternKind::Literal } else { PatternKind::Glob };
            let has_both =
                || [Operation::Read, Operation::Write].iter().all(|one| has(*kind, name.clone(), *matching, *one));
            if (*kind, *matching) == (ResourceKind::Channel, of_channels)
                && check_pattern(name, 0).is_ok()
                && !rules.channels.contains(name)
                && has_both()
            {
                rules.channels.push(name.clone());
            }
        }
        if rules.channels.iter().any(|channel| channel == ANY) {
            rules.channels = vec![ANY.to_owned()];
        }
        keys.retain(|_, access| access.reads || access.writes);
        if keys.get(ANY) == Some(&Access { reads: true, writes: true }) {
            keys.retain(|pattern, _| *pattern == ANY);
        }
        if !keys.is_empty() {
            rules.sets.insert(Set::Read);
        }
        if keys.values().any(|access| access.writes) {
            rules.sets.insert(Set::Write);
        }
        if !rules.channels.is_empty() {
            rules.sets.insert(Set::PubSub);
        }
        let is_admin = [Operation::Alter, Operation::AlterConfigs].iter().all(|operation| {
            has(ResourceKind::Cluster, Resource::CLUSTER_NAME.to_owned(), PatternKind::Literal, *operation)
        });
        if is_admin {
            rules.sets.insert(Set::Admin);
        }
        rules.keys = keys.into_iter().map(|(pattern, access)| (pattern.to_owned(), access)).collect();
        rules
    }

    /// Returns the rules of a principal with these entries: those that were written if they still say the same.
    pub(super) fn effective(principal: &Principal, entries: &BTreeSet<Acl>, written: Option<&str>) -> Self {
        let said = Self::of(principal, entries);
        let shown = said.entries(principal);
        let written = written.and_then(|text| Self::parse(text).ok());
        written.filter(|written| written.entries(principal) == shown).unwrap_or(said)
    }

    pub(super) fn keys(&self) -> String {
        let text = |(pattern, access): &(String, Access)| match (access.reads, access.writes) {
            (true, false) => format!("%R~{pattern}"),
            (false, true) => format!("%W~{pattern}"),
            _ => format!("~{pattern}"),
        };
        self.keys.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn channels(&self) -> String {
        self.channels.iter().map(|channel| format!("&{channel}")).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn commands(&self) -> String {
        if self.sets.len() == Set::ALL.len() {
            return "+@all".to_owned();
        }
        self.sets.iter().fold("-@all".to_owned(), |text, set| format!("{text} +@{}", set.name()))
    }

    /// Returns the rules in one line, as `ACL LIST` shows them.
    pub(super) fn line(&self) -> String {
        let is_any = self.channels.first().is_some_and(|channel| channel == ANY);
        let channels = if is_any { self.channels() } else { format!("resetchannels {}", self.channels()) };
        let parts = [self.keys(), channels.trim_end().to_owned(), self.commands()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

fn too_many(of: &str) -> String {
    format!("A user has at most {PATTERNS_MAX} patterns of {of}: remove some first")
}

/// Returns the sets that a name stands for; `None` if it is that of other commands.
fn sets_of(name: &str) -> Option<Vec<Set>> {
    let category = name.strip_prefix('@')?;
    if category.eq_ignore_ascii_case("all") {
        return Some(Set::ALL.to_vec());
    }
    Set::ALL.into_iter().find(|set| set.name().eq_ignore_ascii_case(category)).map(|set| vec![set])
}

/// Returns the commands of a category or with a name, each with its set.
fn commands_named(name: &str) -> Result<Vec<(String, Member)>, String> {
    let unknown = || "Unknown command or category name in ACL".to_owned();
    match name.strip_prefix('@') {
        None => named(name).ok_or_else(unknown),
        Some(category) => Ok(commands_of(category).ok_or_else(unknown)?.filter_map(named).flatten().collect()),
    }
}

/// Applies rules as `ACL SETUSER` does, each that is valid, and checks that they survive being displayed and being
/// entries. Returns the number of rules that are valid; panics if one changes its meaning. For fuzzing.
pub fn check_rules(text: &str) -> usize {
    let ann = Principal::User(UserName::parse("ann").expect("invariant: it is a name"));
    let mut rules = Rules::default();
    let valid = text.split_ascii_whitespace().filter(|rule| rules.apply(rule).is_ok()).count();
    assert_eq!(Rules::parse(&rules.line()).as_ref(), Ok(&rules), "{}", rules.line());
    let entries = rules.entries(&ann);
    assert!(entries.iter().all(|acl| acl.validate().is_ok()), "entries are valid");
    if rules.check().is_ok() {
        assert_eq!(Rules::effective(&ann, &entries, Some(&rules.line())), rules);
        let shown = Rules::of(&ann, &entries);
        assert_eq!(shown.entries(&ann), entries, "{}", shown.line());
        assert_eq!(shown.check(), Ok(()));
    }
    valid
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
