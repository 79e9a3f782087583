//! Use of keys by each command, by which its permissions are checked, and the rows of the reference.

use broker::Door;
use engine::security::{Operation, ResourceKind};

use super::access::Needs;
use super::command::{Command, Keys};
use super::commands;
use super::connection::BEFORE_LOGIN;
use crate::permissions::{Call, Need, Table};

/// Commands that read all their keys and write only the first.
const READING_OTHERS: [&str; 10] = [
    "BITOP",
    "GEOSEARCHSTORE",
    "PFMERGE",
    "SDIFFSTORE",
    "SINTERSTORE",
    "SUNIONSTORE",
    "ZDIFFSTORE",
    "ZINTERSTORE",
    "ZRANGESTORE",
    "ZUNIONSTORE",
];

/// Commands that return a part of what they change, besides those that return what they remove.
const SHOWING: [&str; 11] = [
    "PFDEBUG",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "INCRBYFLOAT",
    "HINCRBY",
    "HINCRBYFLOAT",
    "ZINCRBY",
    "BITFIELD",
    "SETBIT",
];

/// Part of a reply that shows the values that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    Nothing,
    Always,
    /// The values, if an argument from this position on is this word.
    With(&'static str, usize),
    /// Something about the first key.
    First,
}

impl Command {
    /// Returns `true` if the command gives a key another name or database, or copies it.
    pub(super) fn is_transfer(&self) -> bool {
        matches!(self.name, "COPY" | "RENAME" | "RENAMENX" | "MOVE")
    }

    /// Returns `true` if the command writes only its first key and reads the others.
    fn reads_others(&self) -> bool {
        READING_OTHERS.contains(&self.name)
    }

    /// Returns `true` if a command that writes also writes its key number `at`, counted from 0. It reads the others.
    pub(super) fn writes_key(&self, at: usize) -> bool {
        match self.keys {
            Keys::FirstAndStored => at > 0,
            _ => at == 0 || !self.reads_others(),
        }
    }

    /// Returns what the reply shows of the values that the command writes.
    pub(super) fn shows(&self) -> Shows {
        match self.name {
            "SET" => Shows::With("GET", 3),
            "ZADD" => Shows::With("INCR", 2),
            // Moving a member tells whether the first set has it.
            "SMOVE" => Shows::First,
            name if SHOWING.contains(&name) || self.always_returns_changed_data() => Shows::Always,
            _ => Shows::Nothing,
        }
    }

    /// Returns the permissions that the command or one of its subcommands requires.
    fn shown(&self, part: Option<&str>) -> Vec<Need> {
        let args: Vec<&[u8]> = [Some(self.name), part].into_iter().flatten().map(str::as_bytes).collect();
        // A reply of HELP needs no key.
        if part == Some("HELP") && matches!(self.needs, Needs::Keys | Needs::Streams(_)) {
            return Vec::new();
        }
        match self.needs(&args) {
            Needs::Nothing | Needs::OfPart(_) => Vec::new(),
            Needs::View => vec![Need::cluster(Operation::Describe)],
            Needs::Cluster(operation) => vec![Need::cluster(operation)],
            Needs::Kill | Needs::Functions => vec![Need::cluster(Operation::Alter)],
            Needs::AllDatabases(operations) => {
                let on_keys = |operation: &Operation| Need::new(*operation, ResourceKind::Cache, ALL_KEYS_OF_EACH);
                let topics = Need::new(Operation::Delete, ResourceKind::Topic, "every topic");
                let is_deleting = operations.contains(&Operation::Delete);
                operations.iter().map(on_keys).chain(is_deleting.then_some(topics)).collect()
            }
            Needs::Channels(operation) => self.shown_channels(operation),
            Needs::Streams(operation) => self.shown_streams(operation, part),
            Needs::Keys if matches!(self.keys, Keys::All) => self.shown_whole(),
            Needs::Keys if self.is_transfer() => self.shown_transfer(),
            Needs::Keys => self.shown_keys(),
        }
    }

    fn shown_keys(&self) -> Vec<Need> {
        let key = |operation, of| Need::new(operation, ResourceKind::Cache, of);
        if !self.is_write {
            return vec![key(Operation::Read, EACH_KEY)];
        }
        if self.keys == Keys::FirstAndStored {
            let stored = key(Operation::Write, "the destination").when("with `STORE` or `STOREDIST`");
            return vec![key(Operation::Read, "the key"), stored];
        }
        if self.reads_others() {
            return vec![key(Operation::Write, "the destination"), key(Operation::Read, "each other key")];
        }
        let mut needs = vec![key(Operation::Write, EACH_KEY)];
        needs.extend(match self.shows() {
            Shows::Nothing => None,
            Shows::Always => Some(key(Operation::Read, EACH_KEY)),
            Shows::With("GET", _) => Some(key(Operation::Read, EACH_KEY).when("with `GET`")),
            Shows::With(..) => Some(key(Operation::Read, EACH_KEY).when("with `INCR`")),
            Shows::First => Some(key(Operation::Read, "the first key")),
        });
        needs
    }

    /// Returns the permissions of a command on all keys of a database, or on keys that it finds by patterns.
    fn shown_whole(&self) -> Vec<Need> {
        let all = |operation| Need::new(operation, ResourceKind::Cache, ALL_KEYS);
        match self.name {
            "SORT" | "SORT_RO" => {
                let mut needs = vec![Need::new(Operation::Read, ResourceKind::Cache, "the key")];
                if self.is_write {
                    let to = Need::new(Operation::Write, ResourceKind::Cache, "the destination");
                    needs.push(to.when("with `STORE`"));
                }
                needs.push(all(Operation::Read).when("with `BY` or `GET` of other keys"));
                needs
            }
            _ if self.is_write => {
                vec![all(Operation::Delete), Need::new(Operation::Delete, ResourceKind::Topic, "every topic")]
            }
            _ => vec![all(Operation::Describe)],
        }
    }

    fn shown_transfer(&self) -> Vec<Need> {
        let key = |operation, of| Need::new(operation, ResourceKind::Cache, of);
        let topic = |operation, of| Need::new(operation, ResourceKind::Topic, of);
        let mut needs = vec![key(Operation::Read, "the key")];
        if self.name != "COPY" {
            needs.push(key(Operation::Write, "the key"));
        }
        needs.push(key(Operation::Write, "the new key"));
        needs.push(topic(Operation::Read, "the stream").when(IF_STREAM));
        if self.name != "COPY" {
            needs.push(topic(Operation::Delete, "the stream").when(IF_STREAM));
        }
        needs.push(topic(Operation::Write, "the new stream").when(IF_STREAM));
        needs.push(topic(Operation::Create, "the new stream").when("if the key is a stream and the new one is not"));
        needs
    }

    fn shown_streams(&self, operation: Operation, part: Option<&str>) -> Vec<Need> {
        let topic = |operation| Need::new(operation, ResourceKind::Topic, "each stream");
        let mut needs = vec![topic(operation)];
        if self.name == "XADD" {
            needs.push(topic(Operation::Delete).when("with `MAXLEN` or `MINID`"));
        }
        needs.extend(match (self.name, part) {
            ("XADD", _) => Some(topic(Operation::Create).when("if it does not exist, without `NOMKSTREAM`")),
            ("XGROUP", Some("CREATE")) => Some(topic(Operation::Create).when("if it does not exist, with `MKSTREAM`")),
            _ => None,
        });
        needs
    }

    fn shown_channels(&self, operation: Operation) -> Vec<Need> {
        let of = if operation == Operation::Write { "the channel" } else { "each channel" };
        let mut needs = vec![Need::new(operation, ResourceKind::Channel, of)];
        if self.joins_topics() {
            let topic = Need::new(operation, ResourceKind::Topic, "the topic with the name of the channel");
            needs.push(topic.when("if there is one"));
        }
        needs
    }

    /// Returns `true` if the command uses topics that have the names of its channels. A shard channel has no topic, and
    /// each topic that a pattern matches is checked when it is joined.
    pub(super) fn joins_topics(&self) -> bool {
        matches!(self.name, "PUBLISH" | "SUBSCRIBE")
    }

    fn note(&self, part: Option<&str>) -> &'static str {
        match (self.name, part) {
            ("EXEC", _) => "Each queued command is checked when it is queued, and again when it runs.",
            ("EVAL" | "EVAL_RO" | "EVALSHA" | "EVALSHA_RO" | "FCALL" | "FCALL_RO", _) => {
                "Each command of the script is checked when it runs."
            }
            ("SCRIPT" | "FUNCTION", Some("KILL")) => {
                "A user of a tenant needs nothing, and ends scripts of the tenant alone."
            }
            ("FUNCTION", Some("DELETE" | "FLUSH" | "LOAD" | "RESTORE")) => {
                "A user of a tenant needs what `FLUSHALL` needs instead."
            }
            ("FUNCTION", Some("DUMP" | "LIST" | "STATS")) => {
                "A user of a tenant needs nothing, and sees those of the tenant alone."
            }
            ("PSUBSCRIBE", _) => "A pattern joins only channels and topics that the user may read.",
            ("ACL", Some("LOG")) => "`RESET` needs `alter` on the cluster.",
            _ => "",
        }
    }
}

const EACH_KEY: &str = "each key";
const ALL_KEYS: &str = "all keys of the database";
const ALL_KEYS_OF_EACH: &str = "all keys of each database";
const IF_STREAM: &str = "if the key is a stream";

/// Returns the permissions that each command and subcommand requires.
pub(crate) fn permissions() -> Table {
    let mut calls = Vec::new();
    for command in commands::all() {
        let call = |name: String, part| {
            let call = Call::new(name, command.shown(part)).note(command.note(part));
            call.open(BEFORE_LOGIN.contains(&command.name))
        };
        if command.takes(1) || command.parts.is_empty() {
            calls.push(call(command.name.to_owned(), None));
        }
        calls.extend(command.parts.iter().map(|(part, _)| call(format!("{} {part}", command.name), Some(part))));
    }
    let about = "A refused command has the error `NOPERM`. A key is an entry of the cache of its database: the key \
                 `user:1` of the database 0 is the entry `db0/user:1`. If a topic has the name of a key, reading the \
                 key needs `describe` on the topic as well, and writing it `delete`.";
    Table { door: Door::Redis, about, calls }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_commands_that_write() {
        for name in READING_OTHERS.iter().chain(&SHOWING) {
            assert!(commands::find(name.as_bytes()).is_some_and(|command| command.is_write), "{name}");
        }
    }
}
