//! `HELP` of the commands with subcommands, in the form of Redis.

use super::args::is;
use crate::redis::command::Command;
use crate::redis::writer::Writer;

/// Subcommands with their descriptions.
type Lines = &'static [(&'static str, &'static str)];

const HELP: &[(&str, Lines)] = &[
    (
        "ACL",
        &[
            ("CAT [<category>]", "List the commands of a category, or all categories."),
            ("DELUSER <username> [<username> ...]", "Delete users with their rules."),
            ("DRYRUN <username> <command> [<arg> ...]", "Return whether a user may run a command, without running it."),
            ("GETUSER <username>", "Return the rules of a user."),
            ("GENPASS [<bits>]", "Return a random password of 256 bits, or of this size."),
            ("LIST", "Return the rules of all users."),
            ("LOAD", "Always an error: there is no file of users."),
            ("LOG [<count> | RESET]", "Return, or forget, refused commands and logins."),
            ("SAVE", "Always an error: users are saved when they change."),
            ("SETUSER <username> <attribute> [<attribute> ...]", "Create or change a user."),
            ("USERS", "Return the names of all users."),
            ("WHOAMI", "Return the user of this connection."),
        ],
    ),
    (
        "CLIENT",
        &[
            ("CACHING (YES|NO)", "Always an error: nothing is tracked."),
            ("GETNAME", "Return the name of this connection."),
            ("GETREDIR", "Return -1: nothing is tracked."),
            ("ID", "Return the id of this connection."),
            ("INFO", "Return the line of this connection in CLIENT LIST."),
            ("KILL <ip:port>", "Close the connection of this address."),
            (
                "KILL <option> <value> [<option> <value> [...]]",
                "Close the connections that match all of ADDR, LADDR, ID, TYPE, USER and SKIPME (YES|NO).",
            ),
            ("LIST [TYPE (NORMAL|MASTER|REPLICA|PUBSUB)] [ID <id> [...]]", "Return a line for each connection."),
            ("NO-EVICT (ON|OFF)", "Mark this connection. No connection is ever evicted."),
            (
                "PAUSE <timeout> [WRITE|ALL]",
                "Make clients, or only their writes, wait for this number of milliseconds.",
            ),
            ("REPLY (ON|OFF|SKIP)", "Choose which requests are answered."),
            ("SETINFO (LIB-NAME|LIB-VER) <value>", "Set the name or version of the library of this connection."),
            ("SETNAME <name>", "Set the name of this connection."),
            ("TRACKING OFF", "Do nothing: nothing is tracked."),
            ("TRACKINGINFO", "Return how this connection tracks keys: it does not."),
            ("UNBLOCK <clientid> [TIMEOUT|ERROR]", "End the wait of a blocked connection."),
            ("UNPAUSE", "End the pause of clients."),
        ],
    ),
    (
        "COMMAND",
        &[
            ("(no subcommand)", "Return a description of all commands."),
            ("COUNT", "Return the number of commands."),
            ("DOCS [<command-name> [...]]", "Return the documentation of commands."),
            ("GETKEYS <full-command>", "Return the keys of a command."),
            ("INFO [<command-name> [...]]", "Return a description of commands."),
            ("LIST [FILTERBY (PATTERN <pattern>|ACLCAT <category>|MODULE <name>)]", "Return the names of commands."),
        ],
    ),
    (
        "CONFIG",
        &[
            ("GET <pattern> [<pattern> [...]]", "Return parameters whose names match, with their values."),
            ("RESETSTAT", "Reset the counters of INFO."),
            ("REWRITE", "Always an error: settings are the broker's, see `thalweg config show`."),
            ("SET <directive> <value> [<directive> <value> [...]]", "Set parameters."),
        ],
    ),
    (
        "FUNCTION",
        &[
            ("DELETE <library-name>", "Delete a library."),
            ("DUMP", "Return all libraries as a payload for RESTORE."),
            ("FLUSH [ASYNC|SYNC]", "Delete all libraries."),
            ("KILL", "End the function that has run for the longest time, if it has changed nothing."),
            ("LIST [LIBRARYNAME <pattern>] [WITHCODE]", "Return the libraries with their functions."),
            ("LOAD [REPLACE] <code>", "Create a library, whose code registers functions."),
            ("RESTORE <payload> [FLUSH|APPEND|REPLACE]", "Create the libraries of a payload of DUMP, also of Redis."),
            ("STATS", "Return the script that has run for the longest time, and the number of functions."),
        ],
    ),
    (
        "LATENCY",
        &[
            ("DOCTOR", "Return a report in plain text."),
            ("GRAPH <event>", "Always an error: events are not sampled, see SLOWLOG and HISTOGRAM."),
            ("HISTOGRAM [<command> [...]]", "Return how long commands took, as cumulative counts."),
            ("HISTORY <event>", "Return samples of an event: none."),
            ("LATEST", "Return the latest samples of all events: none."),
            ("RESET [<event> [...]]", "Delete samples, and return the number of affected events: 0."),
        ],
    ),
    (
        "MEMORY",
        &[
            ("DOCTOR", "Return a report in plain text."),
            ("MALLOC-STATS", "Return statistics of the allocator: none."),
            ("PURGE", "Do nothing: the allocator returns memory by itself."),
            ("STATS", "Return how the memory of the broker is used."),
            ("USAGE <key> [SAMPLES <count>]", "Return the memory in bytes that a key and its value use."),
        ],
    ),
    ("MODULE", &[("LIST", "Return all loaded modules: none.")]),
    (
        "OBJECT",
        &[
            ("ENCODING <key>", "Return the encoding that Redis would use for the value of a key."),
            ("FREQ <key>", "Return the logarithm of how often a key was used, in a cache that evicts by use."),
            ("IDLETIME <key>", "Return the seconds since the last use of a key."),
            ("REFCOUNT <key>", "Return 1."),
        ],
    ),
    (
        "PUBSUB",
        &[
            ("CHANNELS [<pattern>]", "Return the channels with subscribers."),
            ("NUMPAT", "Return the number of patterns with subscribers."),
            ("NUMSUB [<channel> [...]]", "Return the number of subscribers of each channel."),
            ("SHARDCHANNELS [<pattern>]", "Return the shard channels with subscribers."),
            ("SHARDNUMSUB [<shardchannel> [...]]", "Return the number of subscribers of each shard channel."),
        ],
    ),
    (
        "SCRIPT",
        &[
            ("DEBUG (YES|SYNC|NO)", "Always an error but for NO: scripts cannot be debugged here."),
            ("EXISTS <sha1> [<sha1> [...]]", "Return for each whether the script may be called."),
            ("FLUSH [ASYNC|SYNC]", "Forget all scripts."),
            ("KILL", "End the script that has run for the longest time, if it has changed nothing."),
            ("LOAD <script>", "Keep a script, so that it may be called by its SHA-1."),
        ],
    ),
    (
        "SLOWLOG",
        &[
            ("GET [<count>]", "Return the newest entries: id, time, microseconds, arguments, address, name."),
            ("LEN", "Return the number of entries."),
            ("RESET", "Remove all entries."),
        ],
    ),
    (
        "XGROUP",
        &[
            ("CREATE <key> <groupname> <id|$> [MKSTREAM] [ENTRIESREAD <n>]", "Create a group."),
            ("CREATECONSUMER <key> <groupname> <consumer>", "Create a consumer of a group."),
            ("DELCONSUMER <key> <groupname> <consumer>", "Remove a consumer with its unacknowledged entries."),
            ("DESTROY <key> <groupname>", "Remove a group."),
            ("SETID <key> <groupname> <id|$> [ENTRIESREAD <n>]", "Set the id after which a group continues."),
        ],
    ),
    (
        "XINFO",
        &[
            ("CONSUMERS <key> <groupname>", "Return the consumers of a group."),
            ("GROUPS <key>", "Return the groups of a stream."),
            ("STREAM <key> [FULL [COUNT <count>]]", "Return a description of a stream."),
        ],
    ),
];

/// Returns `true` if the word requests help and the command has it.
pub(in crate::redis) fn is_for(command: &Command, word: &[u8]) -> bool {
    is(word, "HELP") && HELP.iter().any(|(name, _)| *name == command.name)
}

/// Returns the lines of the reply to `HELP`; `None` for other subcommands.
pub(in crate::redis) fn of(command: &Command, args: &[&[u8]]) -> Option<Vec<String>> {
    let [_, word] = args else {
        return None;
    };
    if !is(word, "HELP") {
        return None;
    }
    let (name, rows) = HELP.iter().find(|(name, _)| *name == command.name)?;
    let mut lines = vec![format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")];
    for (usage, what) in rows.iter().chain(&[("HELP", "Return this text.")]) {
        lines.extend([(*usage).to_owned(), format!("    {what}")]);
    }
    Some(lines)
}

pub(in crate::redis) fn write(writer: &mut Writer, lines: &[String]) {
    writer.array(lines.len());
    lines.iter().for_each(|line| writer.simple(line));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::commands::{all, find};

    #[test]
    fn every_part_of_every_command_has_help() {
        for command in all().into_iter().filter(|command| !command.parts.is_empty() && command.name != "CLUSTER") {
            let lines = of(command, &[command.name.as_bytes(), b"help"]).unwrap_or_else(|| panic!("{}", command.name));
            let is_refused = |part: &str| ["LOAD", "LOADEX", "UNLOAD", "RESTORE", "DUMP", "DEBUG"].contains(&part);
            for (part, _) in command.parts.iter().filter(|(part, _)| !is_refused(part)) {
                let is_listed = |line: &String| line.split([' ', '[']).next() == Some(part);
                assert!(lines.iter().any(is_listed), "{} {part}: {lines:?}", command.name);
            }
        }
        assert_eq!(of(find(b"OBJECT").expect("a command"), &[b"object", b"freq"]), None);
        assert_eq!(of(find(b"GET").expect("a command"), &[b"get", b"help"]), None);
    }
}
