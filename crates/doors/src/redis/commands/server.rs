//! The server: what it can do, how it is set up and how it does.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::CacheCommit;
use futures_util::FutureExt;
use net::service::{Reply, once};

use super::args::{is, matches, parse_float};
use super::session::{now, ok, written};
use super::{Command, Does, Keys, Named, Step, find, own, read};
use crate::redis::VERSION;
use crate::redis::codec::Answer;
use crate::redis::connection::{DATABASES, Door, Later, Session};
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::writer::Writer;

/// How long `DEBUG SLEEP` holds its connection up.
const SLEEP_MAX_S: f64 = 60.0;

pub(super) const COMMANDS: &[Command] = &[
    own("COMMAND", -1, command, ("2.8.13", "What commands there are")).of(&[
        ("COUNT", 2),
        ("LIST", 2),
        ("INFO", -2),
        ("DOCS", -2),
        ("GETKEYS", -3),
    ]),
    own("CONFIG", -2, config, ("2.0.0", "How the server is set up")).of(&[
        ("GET", -3),
        ("SET", -4),
        ("RESETSTAT", 2),
        ("REWRITE", 2),
    ]),
    own("INFO", -1, info, ("1.0.0", "How the server does")),
    own("FLUSHALL", -1, flushall, ("1.0.0", "Removes all keys of all databases")),
    own("TIME", 1, time, ("2.6.0", "The time of the server")),
    own("WAIT", 3, wait, ("3.0.0", "How many replicas have what was written: there are none")),
    own("ROLE", 1, role, ("2.8.12", "What the server is among others")),
    own("ACL", -2, acl, ("6.0.0", "Who the client is")),
    own("DEBUG", -2, debug, ("1.0.0", "For tests of clients")),
    read("MEMORY", -2, Keys::Range(2, 2, 1), memory, ("4.0.0", "What a key takes")).of(&[("USAGE", -3)]),
];

fn flushall(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    if let Err(fail) = super::scan::check_flush(args) {
        return session.fail(&fail);
    }
    let mut flushed = CacheCommit::default();
    for number in 0..DATABASES {
        let name = format!("db{number}");
        // Those that are not there have nothing to lose.
        if door.broker.describe_cache(&name).is_err() && !door.broker.has_unlisted_streams(&name) {
            continue;
        }
        match session.database_of(&door.broker, number) {
            Ok(cache) => flushed = flushed.and(cache.flush().1),
            Err(fail) => return session.fail(&fail),
        }
    }
    session.settled(Answer::Fixed(b"+OK\r\n"), flushed)
}

fn time(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let mut writer = session.writer();
    writer.array(2);
    writer.bulk((now_us / 1_000_000).to_string().as_bytes());
    writer.bulk((now_us % 1_000_000).to_string().as_bytes());
    now(writer)
}

fn wait(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        super::args::parse_int(args[1])?;
        super::args::parse_from(args[2], 0, "ERR timeout is not an integer or out of range")?;
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

fn acl(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    if !is(args[1], "WHOAMI") || args.len() != 2 {
        return session
            .fail(&Fail::new("ERR users are kept by the broker, not by this protocol: see `thalweg user --help`"));
    }
    written(session, |writer| {
        writer.bulk(session.client.about.lock().user.as_bytes());
        Ok(())
    })
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
        // It says something of Redis's own insides, which are not here: nothing changes.
        [word, _] if is(word, "SET-ACTIVE-EXPIRE") || is(word, "JMAP") => ok(),
        _ => session.fail(&Fail::new("ERR DEBUG subcommand not supported; there is SLEEP")),
    }
}

fn memory(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    match args[3..] {
        [] => {}
        [word, count] if is(word, "SAMPLES") => drop(super::args::parse_int(count)?),
        _ => return Err(SYNTAX),
    }
    match step.db.bytes_of(args[2]) {
        Some(bytes) => step.out.int(bytes as i64),
        None => step.out.null(),
    }
    Ok(())
}

fn config(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match &args[1..] {
        [word, patterns @ ..] if is(word, "GET") && !patterns.is_empty() => written(session, |writer| {
            let settings = settings(door);
            let is_wanted =
                |name: &str| patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
            let found: Vec<_> = settings.iter().filter(|(name, _)| is_wanted(name)).collect();
            writer.map(found.len());
            for (name, value) in found {
                writer.bulk(name.as_bytes());
                writer.bulk(value.as_bytes());
            }
            Ok(())
        }),
        [word, ..] if is(word, "SET") || is(word, "RESETSTAT") || is(word, "REWRITE") => session.fail(&Fail::new(
            "ERR settings are the broker's: see `thalweg config show`, and `thalweg cache create` for those of a cache",
        )),
        _ => session.fail(&SYNTAX),
    }
}

/// What clients ask for, in Redis's words.
fn settings(door: &Door) -> Vec<(&'static str, String)> {
    let of = |name: &str| door.broker.describe_cache(name).ok();
    let (bytes_max, eviction) = match of("db0") {
        Some(status) => (status.bytes_max, status.settings.eviction),
        None => (door.broker.cache_bytes_max(), engine::cache::Eviction::None),
    };
    let policy = match eviction {
        engine::cache::Eviction::None => "noeviction",
        engine::cache::Eviction::S3Fifo => "allkeys-lfu",
        engine::cache::Eviction::TtlFirst => "volatile-ttl",
    };
    vec![
        ("appendonly", "no".into()),
        ("bind", "*".into()),
        ("databases", DATABASES.to_string()),
        ("lfu-log-factor", "10".into()),
        ("list-max-listpack-size", "-2".into()),
        ("maxmemory", bytes_max.to_string()),
        ("maxmemory-policy", policy.into()),
        ("notify-keyspace-events", String::new()),
        ("port", door.port.to_string()),
        ("proto-max-bulk-len", engine::cache::VALUE_BYTES_MAX.to_string()),
        ("requirepass", String::new()),
        ("save", String::new()),
        ("tcp-keepalive", "300".into()),
        ("timeout", "0".into()),
    ]
}

fn info(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let wanted = |section: &str| {
        let is_all = |arg: &&[u8]| is(arg, "all") || is(arg, "default") || is(arg, "everything") || is(arg, section);
        args.len() == 1 || args[1..].iter().any(is_all)
    };
    let mut text = String::new();
    for (section, lines) in sections(door) {
        if wanted(section) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            text.push_str(&format!("# {section}\r\n"));
            lines.iter().for_each(|line| text.push_str(&format!("{line}\r\n")));
        }
    }
    written(session, |writer| {
        writer.verbatim(&text);
        Ok(())
    })
}

fn sections(door: &Door) -> Vec<(&'static str, Vec<String>)> {
    let up_s = door.began.elapsed().as_secs();
    let clients = door.clients.all();
    let blocked = clients.iter().filter(|client| client.is_blocked()).count();
    let databases: Vec<_> = (0..DATABASES)
        .filter_map(|number| Some((number, door.broker.describe_cache(&format!("db{number}")).ok()?)))
        .collect();
    let sum =
        |of: fn(&engine::cache::ShardStats) -> u64| databases.iter().map(|(_, cache)| of(&cache.stats)).sum::<u64>();
    let used = door.broker.cache_bytes();
    let line = |name: &str, value: &dyn std::fmt::Display| format!("{name}:{value}");
    vec![
        (
            "Server",
            vec![
                line("redis_version", &VERSION),
                line("redis_mode", &"standalone"),
                line("server_name", &"thalweg"),
                line("thalweg_version", &env!("CARGO_PKG_VERSION")),
                line("os", &std::env::consts::OS),
                line("arch_bits", &usize::BITS),
                line("process_id", &std::process::id()),
                line("tcp_port", &door.port),
                line("uptime_in_seconds", &up_s),
                line("uptime_in_days", &(up_s / 86_400)),
            ],
        ),
        ("Clients", vec![line("connected_clients", &clients.len()), line("blocked_clients", &blocked)]),
        (
            "Memory",
            vec![
                line("used_memory", &used),
                line("used_memory_human", &format!("{:.2}M", used as f64 / f64::from(1 << 20))),
                line("maxmemory", &door.broker.cache_bytes_max()),
                line("maxmemory_policy", &"noeviction"),
            ],
        ),
        ("Persistence", vec![line("loading", &0), line("rdb_bgsave_in_progress", &0), line("aof_enabled", &0)]),
        (
            "Stats",
            vec![
                line("keyspace_hits", &sum(|stats| stats.hits)),
                line("keyspace_misses", &sum(|stats| stats.misses)),
                line("expired_keys", &sum(|stats| stats.expired)),
                line("evicted_keys", &sum(|stats| stats.evicted)),
            ],
        ),
        ("Replication", vec![line("role", &"master"), line("connected_slaves", &0)]),
        ("Cluster", vec![line("cluster_enabled", &0)]),
        ("Keyspace", {
            let used = databases.iter().filter(|(_, cache)| cache.stats.entries > 0);
            used.map(|(number, cache)| format!("db{number}:keys={},expires=0,avg_ttl=0", cache.stats.entries)).collect()
        }),
    ]
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
        (b"LIST", []) => written(session, |writer| {
            let all = super::all();
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
                    None => writer.null_array(),
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
            let command = find(name).filter(|command| command.takes(args.len() - 2));
            let command = command.ok_or(Fail::new("ERR Invalid command specified"))?;
            match command.keys(&args[2..]) {
                Named::These(keys) if !keys.is_empty() => {
                    writer.array(keys.len());
                    keys.iter().for_each(|key| writer.bulk(key));
                    Ok(())
                }
                _ => Err(Fail::new("ERR The command has no key arguments")),
            }
        }),
        _ => session.fail(&SYNTAX),
    }
}

fn found(names: &[&[u8]]) -> Vec<Option<&'static Command>> {
    names.iter().map(|name| find(name)).collect()
}

fn write_command(writer: &mut Writer, command: &Command) {
    let (first, last, step) = match command.keys {
        Keys::Range(first, last, step) => (i64::from(first), i64::from(last), i64::from(step)),
        Keys::Counted { is_first_too: true, .. } => (1, 1, 1),
        Keys::None | Keys::Counted { .. } | Keys::Streams | Keys::All => (0, 0, 0),
    };
    let movable = matches!(command.keys, Keys::Counted { .. } | Keys::Streams);
    let mut flags = match command.does {
        Does::Data(_) | Does::Stream(_) if command.is_write => vec!["write", "denyoom"],
        Does::Data(_) | Does::Stream(_) => vec!["readonly"],
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
    let kind = if command.is_write { "@write" } else { "@read" };
    writer.set(2);
    writer.simple(&format!("@{}", command.group));
    writer.simple(kind);
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
