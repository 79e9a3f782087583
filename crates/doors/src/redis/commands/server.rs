//! Commands about the server: its commands, its settings and its state.

use std::time::Duration;

use broker::{Cache, Commit};
use engine::security::Operation;
use futures_util::FutureExt;
use net::service::{Reply, once};

use super::args::{is, matcher, parse_float};
use super::find;
use super::session::{now, ok, written};
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Does, Keys, Named, own};
use crate::redis::connection::{DATABASES, Session};
use crate::redis::door::Door;
use crate::redis::errors::{Fail, SYNTAX};
use crate::redis::later::Later;
use crate::redis::names::{all_databases, cache_name};
use crate::redis::scripts::BUSY;
use crate::redis::writer::Writer;

/// Maximum duration of `DEBUG SLEEP`, during which its connection is blocked.
const SLEEP_MAX_S: f64 = 60.0;

pub(super) const COMMANDS: &[Command] = &[
    own("COMMAND", -1, Needs::Nothing, command, ("2.8.13", "Returns the supported commands")).of(&[
        ("COUNT", 2),
        ("LIST", -2),
        ("INFO", -2),
        ("DOCS", -2),
        ("GETKEYS", -4),
    ]),
    super::config::COMMAND,
    super::info::COMMAND,
    own(
        "FLUSHALL",
        -1,
        Needs::AllDatabases(&[Operation::Delete]),
        flushall,
        ("1.0.0", "Removes all keys of all databases"),
    ),
    super::swap::COMMAND,
    own("TIME", 1, Needs::Nothing, time, ("2.6.0", "Returns the time of the server")),
    own("WAIT", 3, Needs::Nothing, wait, ("3.0.0", "Returns the number of replicas with all writes: always 0")),
    own(
        "ROLE",
        1,
        Needs::Cluster(Operation::Describe),
        role,
        ("2.8.12", "Returns the replication role of the server: always master"),
    ),
    super::acl::COMMAND,
    own("DEBUG", -2, Needs::Cluster(Operation::Alter), debug, ("1.0.0", "Sleeps, for tests of clients")),
];

fn flushall(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    if let Err(fail) = super::scan::check_flush(args) {
        return session.fail(&fail);
    }
    // A thread must not wait for a script that holds keys of any database.
    let is_any =
        |cache: &Cache| (0..DATABASES).any(|number| cache.name().as_str() == cache_name(session.tenant(), number));
    if find(args[0]).is_some_and(|command| door.scripts.refuses(command, args, is_any)) {
        return session.fail(&BUSY);
    }
    let mut flushed = Commit::done();
    for number in 0..DATABASES {
        let name = cache_name(session.tenant(), number);
        // A database that does not exist has nothing to flush.
        if door.broker.caches.describe(&name).is_err() && !door.broker.streams.has_unlisted(&name) {
            continue;
        }
        match session.database_of(&door.broker, number) {
            Ok(cache) => match cache.flush() {
                Ok((_, commit)) => flushed = flushed.and(commit),
                Err(error) => return session.fail(&error.into()),
            },
            Err(fail) => return session.fail(&fail),
        }
    }
    door.broker.record_act("flush cache", &all_databases(session.tenant()), None);
    session.settled(Answer::Fixed(b"+OK\r\n"), flushed)
}

fn time(door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    let now_us = door.broker.settings().clock.now_us();
    let mut writer = session.writer();
    writer.array(2);
    writer.bulk((now_us / 1_000_000).to_string().as_bytes());
    writer.bulk((now_us % 1_000_000).to_string().as_bytes());
    now(writer)
}

fn wait(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        super::args::parse_int(args[1])?;
        let timeout = engine::cache::parse_number(args[2]);
        let timeout = timeout.ok_or(Fail::new("ERR timeout is not an integer or out of range"))?;
        if timeout < 0 {
            return Err(Fail::new("ERR timeout is negative"));
        }
        writer.int(0);
        Ok(())
    })
}

fn role(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    writer.array(3);
    writer.bulk(b"master");
    writer.int(0);
    writer.array(0);
    now(writer)
}

fn debug(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match args[1..] {
        [word, seconds] if is(word, "SLEEP") => {
            let Some(seconds) = parse_float(seconds).filter(|seconds| (0.0..=SLEEP_MAX_S).contains(seconds)) else {
                return session.fail(&Fail::new(format!("ERR it sleeps for 0 to {SLEEP_MAX_S} seconds")));
            };
            let sleep = async move {
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                Answer::Fixed(b"+OK\r\n")
            };
            Reply::Alone(once(sleep.boxed_local()))
        }
        // Settings of internals of Redis that do not exist here: nothing changes.
        [word, _] if is(word, "SET-ACTIVE-EXPIRE") || is(word, "JMAP") => ok(),
        _ => session.fail(&Fail::new("ERR DEBUG subcommand not supported; there is SLEEP")),
    }
}

fn command(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let word = args.get(1).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    match (word.as_slice(), args.get(2..).unwrap_or_default()) {
        (b"", _) => written(session, |writer| {
            let all = super::all();
            writer.array(all.len());
            all.iter().for_each(|command| write_command(writer, command));
            Ok(())
        }),
        (b"COUNT", []) => written(session, |writer| {
            writer.len(super::all().len());
            Ok(())
        }),
        (b"LIST", filter) => written(session, |writer| {
            let mut all = super::all();
            let group = |command: &Command| command.group.replace('-', "");
            match filter {
                [] => {}
                [by, kind, pattern] if is(by, "FILTERBY") && is(kind, "PATTERN") => {
                    let mut matcher = matcher(&pattern.to_ascii_uppercase())?;
                    all.retain(|command| matcher.matches(command.name.as_bytes()));
                }
                [by, kind, category] if is(by, "FILTERBY") && is(kind, "ACLCAT") => {
                    let is_in = |category: &[u8], command: &Command| {
                        let group = group(command);
                        is(category, &group)
                            || is(category, group.trim_end_matches('s'))
                            || is(category, access(command))
                    };
                    all.retain(|command| is_in(category, command));
                }
                [by, kind, _] if is(by, "FILTERBY") && is(kind, "MODULE") => all.clear(),
                _ => return Err(SYNTAX),
            }
            writer.array(all.len());
            all.iter().for_each(|command| writer.bulk(command.name.to_ascii_lowercase().as_bytes()));
            Ok(())
        }),
        (b"INFO", names) => written(session, |writer| {
            let named = if names.is_empty() { super::all().into_iter().map(Some).collect() } else { found(names) };
            writer.array(named.len());
            for command in named {
                match command {
                    Some(command) => write_command(writer, command),
                    None => writer.null(),
                }
            }
            Ok(())
        }),
        (b"DOCS", names) => written(session, |writer| {
            let named = if names.is_empty() { super::all() } else { found(names).into_iter().flatten().collect() };
            writer.map(named.len());
            named.iter().for_each(|command| write_docs(writer, command));
            Ok(())
        }),
        (b"GETKEYS", [name, ..]) => written(session, |writer| {
            let command = find(name).ok_or(Fail::new("ERR Invalid command specified"))?;
            let is_sort = matches!(command.name, "SORT" | "SORT_RO");
            if !is_sort && matches!(command.keys, Keys::None | Keys::All) {
                return Err(Fail::new("ERR The command has no key arguments"));
            }
            if !command.takes(args.len() - 2) {
                return Err(Fail::new("ERR Invalid number of arguments specified for command"));
            }
            let keys = match command.keys(&args[2..]) {
                _ if is_sort => super::sort::keys(&args[2..]),
                Named::These(keys) => keys,
                Named::All => Default::default(),
            };
            // The number of keys is invalid, or larger than the number of arguments after it.
            let is_miscounted = match command.keys {
                Keys::Counted { is_first_too, .. } => keys.len() == usize::from(is_first_too),
                _ => false,
            };
            if keys.is_empty() || is_miscounted {
                let is_of_part = matches!(command.keys, Keys::Range(2, ..));
                let wrong = if is_of_part {
                    "The command has no key arguments"
                } else {
                    "Invalid arguments specified for command"
                };
                return Err(Fail::new(format!("ERR {wrong}")));
            }
            writer.array(keys.len());
            keys.iter().for_each(|key| writer.bulk(key));
            Ok(())
        }),
        _ => session.fail(&SYNTAX),
    }
}

/// Returns the command category for reading or writing.
fn access(command: &Command) -> &'static str {
    if command.is_write { "write" } else { "read" }
}

fn found(names: &[&[u8]]) -> Vec<Option<&'static Command>> {
    names.iter().map(|name| find(name)).collect()
}

fn write_command(writer: &mut Writer, command: &Command) {
    let (first, last, step) = match command.keys {
        Keys::Range(first, last, step) => (i64::from(first), i64::from(last), i64::from(step)),
        Keys::Counted { is_first_too: true, .. } | Keys::FirstAndStored => (1, 1, 1),
        Keys::None | Keys::Counted { .. } | Keys::Streams | Keys::All => (0, 0, 0),
    };
    let movable = matches!(command.keys, Keys::Counted { .. } | Keys::Streams | Keys::FirstAndStored);
    let mut flags = match command.does {
        Does::Data(_) | Does::Stream(_) if command.is_write => vec!["write", "denyoom"],
        Does::Data(_) | Does::Stream(_) => vec!["readonly"],
        // As in Redis 7.0.
        Does::Script(_) if command.may_write() => vec!["noscript", "stale", "skip_monitor", "no_mandatory_keys"],
        Does::Script(_) => vec!["readonly", "noscript", "stale", "skip_monitor", "no_mandatory_keys"],
        Does::Own(_) if command.is_write => vec!["write", "fast"],
        Does::Own(_) => vec!["loading", "stale"],
    };
    if movable {
        flags.push("movablekeys");
    }
    writer.array(10);
    writer.bulk(command.name.to_ascii_lowercase().as_bytes());
    writer.int(i64::from(command.arity));
    writer.set(flags.len());
    flags.iter().for_each(|flag| writer.simple(flag));
    [first, last, step].iter().for_each(|number| writer.int(*number));
    writer.set(2);
    writer.simple(&format!("@{}", command.group));
    writer.simple(&format!("@{}", access(command)));
    // No hints, no specifications of keys, no subcommands.
    (0..3).for_each(|_| writer.array(0));
}

fn write_docs(writer: &mut Writer, command: &Command) {
    writer.bulk(command.name.to_ascii_lowercase().as_bytes());
    writer.map(3);
    for (name, value) in [("summary", command.summary), ("since", command.since), ("group", command.group)] {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
}
