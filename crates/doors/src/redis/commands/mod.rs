//! Table of all commands: their names, their keys, and the functions that run them.

pub(super) mod acl;
pub(super) mod args;
mod bits;
pub(super) mod combine;
pub(super) mod config;
mod dump;
mod functions;
pub(super) mod geo;
mod hashes;
pub(super) mod help;
mod hyperloglog;
mod info;
pub(super) mod keys;
mod lists;
#[cfg(test)]
mod page_tests;
mod pubsub;
mod ranges;
pub(super) mod scan;
pub(super) mod scripting;
mod server;
pub(super) mod session;
pub(super) mod sets;
pub(super) mod sort;
mod sorted;
pub(super) mod streams;
mod strings;
pub(super) mod swap;
pub(super) mod tools;
pub(super) mod tracking;
pub(super) mod transactions;
pub(super) mod work;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::command::{Command, SHOWN_BYTES_MAX, shown};
use super::errors::Fail;

/// Commands, in the groups of Redis. [`MORE`] has the others.
const TABLES: [(&str, &[Command]); 16] = [
    ("string", strings::COMMANDS),
    ("bitmap", bits::COMMANDS),
    ("generic", keys::COMMANDS),
    ("generic", dump::COMMANDS),
    ("generic", scan::COMMANDS),
    ("generic", sort::COMMANDS),
    ("hash", hashes::COMMANDS),
    ("list", lists::COMMANDS),
    ("set", sets::COMMANDS),
    ("sorted-set", sorted::COMMANDS),
    ("geo", geo::COMMANDS),
    ("hyperloglog", hyperloglog::COMMANDS),
    ("stream", streams::COMMANDS),
    ("transactions", transactions::COMMANDS),
    ("pubsub", pubsub::COMMANDS),
    ("connection", session::COMMANDS),
];

/// Further commands, in the groups of Redis.
const MORE: [(&str, &[Command]); 5] = [
    ("server", server::COMMANDS),
    ("server", tools::SERVER),
    ("scripting", scripting::COMMANDS),
    ("scripting", functions::COMMANDS),
    ("cluster", tools::CLUSTER),
];

static BY_NAME: LazyLock<HashMap<u128, Command, foldhash::fast::FixedState>> = LazyLock::new(|| {
    let rows = TABLES.iter().chain(&MORE);
    let grouped = rows.flat_map(|(group, table)| table.iter().map(move |row| Command { group, ..*row }));
    let mut next = 0;
    let numbered = |command: Command| {
        let number = next;
        next += 1 + command.parts.len() as u16;
        (number_of(command.name.as_bytes()), Command { number, ..command })
    };
    grouped.map(numbered).collect()
});

/// Names by number: `get`, `config|set`.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut names: Vec<(u16, String)> = Vec::new();
    for command in BY_NAME.values() {
        let name = command.name.to_ascii_lowercase();
        let parts = command.parts.iter().zip(command.number + 1..);
        names.extend(parts.map(|((part, _), number)| (number, format!("{name}|{}", part.to_ascii_lowercase()))));
        names.push((command.number, name));
    }
    names.sort_unstable();
    names.into_iter().map(|(_, name)| name).collect()
});

pub(super) fn names() -> &'static [String] {
    &NAMES
}

pub(super) fn name_of(number: usize) -> &'static str {
    NAMES.get(number).map_or("", String::as_str)
}

/// Number of bytes of a name that its number holds.
const NUMBERED_BYTES: usize = size_of::<u128>();

/// Returns a name in upper case as a number. That of a longer name has its first bytes and its length.
fn number_of(name: &[u8]) -> u128 {
    let (first, more) = name.split_at(name.len().min(NUMBERED_BYTES));
    let mut upper = [0; NUMBERED_BYTES];
    upper[..first.len()].copy_from_slice(first);
    upper.make_ascii_uppercase();
    u128::from_le_bytes(upper) ^ more.len() as u128
}

/// Returns the command with this name, in upper or lower case.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    BY_NAME.get(&number_of(name)).filter(|command| {
        command.name.len() == name.len()
            && (name.len() <= NUMBERED_BYTES || command.name.as_bytes().eq_ignore_ascii_case(name))
    })
}

/// Returns all commands, sorted by name.
pub(super) fn all() -> Vec<&'static Command> {
    let mut all: Vec<_> = BY_NAME.values().collect();
    all.sort_unstable_by_key(|command| command.name);
    all
}

/// Returns the error for a command that this door does not have.
pub(super) fn unknown(args: &[&[u8]]) -> Fail {
    let mut rest = Vec::new();
    for arg in &args[1..] {
        if rest.len() >= SHOWN_BYTES_MAX {
            break;
        }
        let arg = shown(arg);
        rest = [&rest, &b"'"[..], &arg[..arg.len().min(SHOWN_BYTES_MAX - rest.len())], b"' "].concat();
    }
    let name = shown(args[0]);
    Fail::of_bytes([b"ERR unknown command '", name, b"', with args beginning with: ", &rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::command::Named;

    #[test]
    fn every_command_is_found_by_its_name_and_is_listed_once() {
        let rows: usize = TABLES.iter().chain(&MORE).map(|(_, table)| table.len()).sum();
        assert_eq!(all().len(), rows);
        let config = find(b"CONFIG").expect("a command");
        assert_eq!(name_of(config.number_of(&[b"config", b"Set", b"a", b"b"])), "config|set");
        assert_eq!(name_of(config.number_of(&[b"config", b"nosuch"])), "config");
        for command in all() {
            assert_eq!(command.name, command.name.to_ascii_uppercase());
            assert_eq!(find(command.name.to_ascii_lowercase().as_bytes()).map(|found| found.name), Some(command.name));
            assert!(!command.summary.is_empty() && !command.since.is_empty() && !command.group.is_empty());
        }
        assert!(find(b"").is_none() && find(b"GET\0").is_none() && find(&[b'A'; 100]).is_none());
    }

    #[test]
    fn keys_are_told_from_other_arguments() {
        let keys = |words: &str| {
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            match find(args[0]).expect("a command").keys(&args) {
                Named::All => vec!["all".to_owned()],
                Named::These(keys) => keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect(),
            }
        };
        assert_eq!(keys("get a"), ["a"]);
        assert_eq!(keys("mset a 1 b 2"), ["a", "b"]);
        assert_eq!(keys("blpop a b 0"), ["a", "b"]);
        assert_eq!(keys("zunionstore to 2 a b weights 1 2"), ["to", "a", "b"]);
        assert_eq!(keys("lmpop 2 a b left"), ["a", "b"]);
        assert_eq!(keys("lmpop x a b left"), Vec::<String>::new());
        // `COMMAND GETKEYS` of redis-server 7.0 returns none if there are fewer keys than the number.
        assert_eq!(keys("sintercard 99999999999 a"), Vec::<String>::new());
        assert_eq!(keys("lmpop 01.5 a left"), ["a"]);
        assert_eq!(keys("ping"), Vec::<String>::new());
        assert_eq!(keys("keys *"), ["all"]);
        assert_eq!(keys("xreadgroup group streams c streams a >"), ["a"]);
        // `georadiusGetKeys` in Redis's `db.c`: the last key counts.
        assert_eq!(keys("georadius a 1 1 1 km asc"), ["a"]);
        assert_eq!(keys("georadius a 1 1 1 km store b storedist c"), ["a", "c"]);
        assert_eq!(keys("georadiusbymember a store 1 km store"), ["a"]);
    }
}
