//! `CONFIG`: what clients and tools ask for and set, in the words of Redis. Some parameters are the broker's own
//! settings, some have an effect here, and those that tune what Redis has inside are kept, and change nothing.

use std::collections::{BTreeMap, BTreeSet};

use engine::cache::parse_number;
use net::service::Reply;
use parking_lot::Mutex;

use super::args::{is, matches};
use super::info::{keyspace_counts, policy};
use super::session::{ok, written};
use super::{Command, own};
use crate::redis::codec::Answer;
use crate::redis::connection::{DATABASES, Door, Later, Session};
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::stats::SLOW_MAX;

pub(super) const COMMAND: Command = own("CONFIG", -2, config, ("2.0.0", "How the server is set up")).of(&[
    ("GET", -3),
    ("RESETSTAT", 2),
    ("REWRITE", 2),
    ("SET", -4),
]);

/// A value of a parameter that changes nothing.
const VALUE_BYTES_MAX: usize = 1024;

/// What a parameter may be.
#[derive(Clone, Copy)]
enum Kind {
    Int,
    Bool,
    Memory,
    Text,
    OneOf(&'static [&'static str]),
}

use Kind::{Bool, Int, Memory, OneOf, Text};

/// Parameters that tune what Redis has inside, and this broker has not: name, kind and what Redis begins with. They are
/// accepted, as tools set them before they start, and answered as they were set.
const TUNING: &[(&str, Kind, &str)] = &[
    ("acl-pubsub-default", OneOf(&["allchannels", "resetchannels"]), "resetchannels"),
    ("acllog-max-len", Int, "128"),
    ("active-defrag-cycle-max", Int, "25"),
    ("active-defrag-cycle-min", Int, "1"),
    ("active-defrag-ignore-bytes", Memory, "104857600"),
    ("active-defrag-max-scan-fields", Int, "1000"),
    ("active-defrag-threshold-lower", Int, "10"),
    ("active-defrag-threshold-upper", Int, "100"),
    ("active-expire-effort", Int, "1"),
    ("activedefrag", Bool, "no"),
    ("activerehashing", Bool, "yes"),
    ("aof-disable-auto-gc", Bool, "no"),
    ("aof-load-truncated", Bool, "yes"),
    ("aof-rewrite-incremental-fsync", Bool, "yes"),
    ("aof-timestamp-enabled", Bool, "no"),
    ("aof-use-rdb-preamble", Bool, "yes"),
    ("appendfsync", OneOf(&["everysec", "always", "no"]), "everysec"),
    ("auto-aof-rewrite-min-size", Memory, "67108864"),
    ("auto-aof-rewrite-percentage", Int, "100"),
    ("busy-reply-threshold", Int, "5000"),
    ("client-output-buffer-limit", Text, "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
    ("client-query-buffer-limit", Memory, "1073741824"),
    ("cluster-allow-pubsubshard-when-down", Bool, "yes"),
    ("cluster-allow-reads-when-down", Bool, "no"),
    ("cluster-allow-replica-migration", Bool, "yes"),
    ("cluster-link-sendbuf-limit", Memory, "0"),
    ("cluster-migration-barrier", Int, "1"),
    ("cluster-node-timeout", Int, "15000"),
    ("cluster-replica-no-failover", Bool, "no"),
    ("cluster-replica-validity-factor", Int, "10"),
    ("cluster-require-full-coverage", Bool, "yes"),
    ("crash-log-enabled", Bool, "yes"),
    ("crash-memcheck-enabled", Bool, "yes"),
    ("dynamic-hz", Bool, "yes"),
    ("hash-max-listpack-entries", Int, "512"),
    ("hash-max-listpack-value", Memory, "64"),
    ("hash-max-ziplist-entries", Int, "512"),
    ("hash-max-ziplist-value", Memory, "64"),
    ("hll-sparse-max-bytes", Memory, "3000"),
    ("hz", Int, "10"),
    ("jemalloc-bg-thread", Bool, "yes"),
    ("latency-monitor-threshold", Int, "0"),
    ("latency-tracking", Bool, "yes"),
    ("latency-tracking-info-percentiles", Text, "50 99 99.9"),
    ("lazyfree-lazy-eviction", Bool, "no"),
    ("lazyfree-lazy-expire", Bool, "no"),
    ("lazyfree-lazy-server-del", Bool, "no"),
    ("lazyfree-lazy-user-del", Bool, "no"),
    ("lazyfree-lazy-user-flush", Bool, "no"),
    ("lfu-decay-time", Int, "1"),
    ("lfu-log-factor", Int, "10"),
    ("list-compress-depth", Int, "0"),
    ("list-max-listpack-size", Int, "-2"),
    ("list-max-ziplist-size", Int, "-2"),
    ("loglevel", OneOf(&["debug", "verbose", "notice", "warning"]), "notice"),
    ("lua-time-limit", Int, "5000"),
    ("maxmemory-clients", Text, "0"),
    ("maxmemory-eviction-tenacity", Int, "10"),
    ("maxmemory-samples", Int, "5"),
    ("min-replicas-max-lag", Int, "10"),
    ("min-replicas-to-write", Int, "0"),
    ("min-slaves-max-lag", Int, "10"),
    ("min-slaves-to-write", Int, "0"),
    ("no-appendfsync-on-rewrite", Bool, "no"),
    ("oom-score-adj", OneOf(&["no", "yes", "relative", "absolute"]), "no"),
    ("oom-score-adj-values", Text, "0 200 800"),
    ("proc-title-template", Text, "{title} {listen-addr} {server-mode}"),
    ("propagation-error-behavior", OneOf(&["ignore", "panic", "panic-on-replicas"]), "ignore"),
    ("rdb-del-sync-files", Bool, "no"),
    ("rdb-save-incremental-fsync", Bool, "yes"),
    ("rdbcompression", Bool, "yes"),
    ("repl-backlog-size", Memory, "1048576"),
    ("repl-backlog-ttl", Int, "3600"),
    ("repl-disable-tcp-nodelay", Bool, "no"),
    ("repl-diskless-load", OneOf(&["disabled", "on-empty-db", "swapdb"]), "disabled"),
    ("repl-diskless-sync", Bool, "yes"),
    ("repl-diskless-sync-delay", Int, "5"),
    ("repl-diskless-sync-max-replicas", Int, "0"),
    ("repl-ping-replica-period", Int, "10"),
    ("repl-ping-slave-period", Int, "10"),
    ("repl-timeout", Int, "60"),
    ("replica-lazy-flush", Bool, "no"),
    ("replica-priority", Int, "100"),
    ("replica-read-only", Bool, "yes"),
    ("replica-serve-stale-data", Bool, "yes"),
    ("sanitize-dump-payload", OneOf(&["no", "yes", "clients"]), "no"),
    ("set-max-intset-entries", Int, "512"),
    ("shutdown-timeout", Int, "10"),
    ("slave-lazy-flush", Bool, "no"),
    ("slave-priority", Int, "100"),
    ("slave-read-only", Bool, "yes"),
    ("slave-serve-stale-data", Bool, "yes"),
    ("stop-writes-on-bgsave-error", Bool, "yes"),
    ("stream-node-max-bytes", Memory, "4096"),
    ("stream-node-max-entries", Int, "100"),
    ("tcp-keepalive", Int, "300"),
    ("timeout", Int, "0"),
    ("tracking-table-max-keys", Int, "1000000"),
    ("zset-max-listpack-entries", Int, "128"),
    ("zset-max-listpack-value", Memory, "64"),
    ("zset-max-ziplist-entries", Int, "128"),
    ("zset-max-ziplist-value", Memory, "64"),
];

/// Parameters that Redis itself does not change while it runs.
const FIXED: &[&str] = &[
    "aclfile",
    "always-show-logo",
    "appenddirname",
    "appendfilename",
    "cluster-config-file",
    "cluster-enabled",
    "cluster-port",
    "daemonize",
    "databases",
    "disable-thp",
    "enable-debug-command",
    "enable-module-command",
    "enable-protected-configs",
    "io-threads",
    "io-threads-do-reads",
    "logfile",
    "pidfile",
    "rdbchecksum",
    "replicaof",
    "set-proc-title",
    "slaveof",
    "supervised",
    "syslog-enabled",
    "syslog-facility",
    "syslog-ident",
    "tcp-backlog",
    "unixsocket",
    "unixsocketperm",
];

const SLOW_FROM: &str = "slowlog-log-slower-than";
const SLOW_LENGTH: &str = "slowlog-max-len";

/// What clients have set, and was not there before.
#[derive(Default)]
pub(in crate::redis) struct Settings {
    set: Mutex<BTreeMap<&'static str, String>>,
    warned: Mutex<BTreeSet<&'static str>>,
}

fn config(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match args[1].to_ascii_uppercase().as_slice() {
        b"GET" => written(session, |writer| {
            let is_wanted =
                |name: &str| args[2..].iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
            let found: Vec<_> = all(door).into_iter().filter(|(name, _)| is_wanted(name)).collect();
            writer.map(found.len());
            for (name, value) in found {
                writer.bulk(name.as_bytes());
                writer.bulk(value.as_bytes());
            }
            Ok(())
        }),
        b"SET" => match set(door, &args[2..]) {
            Ok(()) => ok(),
            Err(fail) => session.fail(&fail),
        },
        b"RESETSTAT" => {
            door.stats.reset(keyspace_counts(door), door.connections.refused());
            ok()
        }
        _ => session.fail(&Fail::new(
            "ERR The server is running without a config file: settings are the broker's, see `thalweg config show`",
        )),
    }
}

/// All parameters with their values.
fn all(door: &Door) -> BTreeMap<&'static str, String> {
    let mut all: BTreeMap<_, _> = TUNING.iter().map(|(name, _, value)| (*name, (*value).to_owned())).collect();
    all.extend(door.settings.set.lock().iter().map(|(name, value)| (*name, value.clone())));
    let (slow_from_us, slow_max) = door.stats.slow_limits();
    all.extend([(SLOW_FROM, slow_from_us.to_string()), (SLOW_LENGTH, slow_max.to_string())]);
    all.extend(owned(door));
    all.extend([("databases", DATABASES.to_string()), ("cluster-enabled", "no".to_owned())]);
    all
}

/// What is the broker's to say, by its own keys.
fn owned(door: &Door) -> [(&'static str, String); 11] {
    let of_first = door.broker.find_cache("db0").map(|cache| cache.status().bytes_max);
    let bytes_max = of_first.unwrap_or(door.broker.cache_bytes_max());
    let is_durable = if door.is_durable { "yes" } else { "no" };
    [
        ("appendonly", is_durable.to_owned()),
        ("bind", "*".to_owned()),
        ("masterauth", String::new()),
        ("maxclients", door.connections.max().to_string()),
        ("maxmemory", bytes_max.to_string()),
        ("maxmemory-policy", policy(door).to_owned()),
        ("notify-keyspace-events", String::new()),
        ("port", door.port.to_string()),
        ("proto-max-bulk-len", engine::cache::VALUE_BYTES_MAX.to_string()),
        ("requirepass", String::new()),
        ("save", String::new()),
    ]
}

/// Why such a parameter is not set by clients, and what to do instead.
fn instead(name: &str) -> &'static str {
    match name {
        "appendonly" | "save" => "durability is a setting of the broker: start it with redis_durable",
        "maxmemory" => "memory is a setting of the broker: cache_memory_max, or the size of a cache that is created",
        "maxmemory-policy" => "create the cache with an eviction: `thalweg cache create db0 --eviction s3-fifo`",
        "notify-keyspace-events" => "keyspace events are not published: watch a cache over the native protocol",
        "requirepass" | "masterauth" => "users are the broker's: see `thalweg user --help`",
        _ => "it is a setting of the broker: see `thalweg config show`",
    }
}

fn refused(name: &[u8], why: &str) -> Fail {
    let why = format!("') - {why}");
    Fail::of_bytes([b"ERR CONFIG SET failed (possibly related to argument '", name, why.as_bytes()].concat())
}

/// What is to be done for one parameter.
enum Change {
    /// It is so already.
    Nothing,
    SlowFrom(i64),
    SlowLength(usize),
    Keep(&'static str, String),
}

/// Sets all or none.
fn set(door: &Door, args: &[&[u8]]) -> Done {
    if !args.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    let (mut changes, mut seen) = (Vec::new(), BTreeSet::new());
    for pair in args.chunks_exact(2) {
        let name = pair[0].to_ascii_lowercase();
        changes.push(change(door, &name, pair[0], pair[1])?);
        if !seen.insert(name) {
            return Err(refused(pair[0], "duplicate parameter"));
        }
    }
    for change in changes {
        match change {
            Change::Nothing => {}
            Change::SlowFrom(us) => door.stats.set_slow_from_us(us),
            Change::SlowLength(max) => door.stats.set_slow_max(max),
            Change::Keep(name, value) => {
                if door.settings.warned.lock().insert(name) {
                    tracing::warn!(name, value, "a client has set a parameter of Redis that changes nothing here");
                }
                door.settings.set.lock().insert(name, value);
            }
        }
    }
    Ok(())
}

/// Where a value is wrong the parameter is named as Redis has it, elsewhere as the client wrote it.
fn change(door: &Door, name: &[u8], shown: &[u8], value: &[u8]) -> Done<Change> {
    let text = String::from_utf8_lossy(value).into_owned();
    let is_it = |known: &str| known.as_bytes() == name;
    if is_it(SLOW_FROM) {
        return Ok(Change::SlowFrom(int(name, value, -1, i64::MAX)?));
    }
    if is_it(SLOW_LENGTH) {
        let max = int(name, value, 0, SLOW_MAX as i64)?;
        return Ok(Change::SlowLength(usize::try_from(max).unwrap_or_default()));
    }
    if let Some((known, kind, _)) = TUNING.iter().find(|(known, ..)| is_it(known)) {
        return check(name, *kind, value, &text).map(|()| Change::Keep(known, text));
    }
    if let Some((name, now)) = owned(door).into_iter().find(|(known, _)| is_it(known)) {
        let is_same = now == text || name == "maxmemory" && memory(value).is_some_and(|bytes| bytes.to_string() == now);
        return if is_same { Ok(Change::Nothing) } else { Err(refused(shown, instead(name))) };
    }
    if FIXED.iter().any(|known| is_it(known)) {
        return Err(refused(shown, "can't set immutable config"));
    }
    let begin = b"ERR Unknown option or number of arguments for CONFIG SET - '";
    Err(Fail::of_bytes([begin, super::shown(shown), b"'"].concat()))
}

fn int(name: &[u8], value: &[u8], min: i64, max: i64) -> Done<i64> {
    let number = parse_number(value).ok_or_else(|| refused(name, "argument couldn't be parsed into an integer"))?;
    match (min..=max).contains(&number) {
        true => Ok(number),
        false => Err(refused(name, &format!("argument must be between {min} and {max} inclusive"))),
    }
}

fn check(name: &[u8], kind: Kind, value: &[u8], text: &str) -> Done {
    let why = match kind {
        _ if value.len() > VALUE_BYTES_MAX => format!("argument has more than {VALUE_BYTES_MAX} bytes"),
        Int if parse_number(value).is_none() => "argument couldn't be parsed into an integer".to_owned(),
        Bool if !is(value, "yes") && !is(value, "no") => "argument must be 'yes' or 'no'".to_owned(),
        Memory if memory(value).is_none() => "argument must be a memory value".to_owned(),
        OneOf(words) if !words.iter().any(|word| text.eq_ignore_ascii_case(word)) => {
            format!("argument(s) must be one of the following: {}", words.join(", "))
        }
        Int | Bool | Memory | Text | OneOf(_) => return Ok(()),
    };
    Err(refused(name, &why))
}

/// `100mb`: a number of bytes, as Redis reads it.
fn memory(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    let number: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_known_once_and_their_defaults_are_allowed() {
        let names: BTreeSet<_> = TUNING.iter().map(|(name, ..)| *name).chain(FIXED.iter().copied()).collect();
        assert_eq!(names.len(), TUNING.len() + FIXED.len());
        for (name, kind, value) in TUNING {
            assert_eq!(check(name.as_bytes(), *kind, value.as_bytes(), value), Ok(()), "{name}");
        }
    }

    /// As redis-server 7.0 answers.
    #[test]
    fn wrong_values_are_refused_in_the_words_of_redis() {
        let said = |kind, value: &str| {
            let fail = check(b"p", kind, value.as_bytes(), value).expect_err("refused");
            String::from_utf8(fail.text.into_owned()).expect("a text")
        };
        let begin = "ERR CONFIG SET failed (possibly related to argument 'p') - argument";
        assert_eq!(said(Int, "abc"), format!("{begin} couldn't be parsed into an integer"));
        assert_eq!(said(Bool, "foo"), format!("{begin} must be 'yes' or 'no'"));
        assert_eq!(said(Memory, "5x"), format!("{begin} must be a memory value"));
        assert_eq!(said(OneOf(&["a", "b"]), "c"), format!("{begin}(s) must be one of the following: a, b"));
        assert_eq!((memory(b"100mb"), memory(b"1k"), memory(b"7")), (Some(100 << 20), Some(1000), Some(7)));
    }
}
