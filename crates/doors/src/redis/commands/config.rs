//! `CONFIG`: parameters of Redis. Some are settings of the broker, some take effect here, and those that tune internals
//! of Redis are stored without effect.

use std::collections::{BTreeMap, BTreeSet};

use engine::cache::parse_number;
use net::service::Reply;
use parking_lot::Mutex;

use super::args::{is, matcher};
use super::info::{keyspace_counts, policy};
use super::session::{ok, written};
use crate::redis::access::{Needs, of_config};
use crate::redis::codec::Answer;
use crate::redis::command::{self, Command, own};
use crate::redis::connection::{DATABASES, Session};
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::events;
use crate::redis::later::Later;
use crate::redis::stats::SLOW_MAX;

pub(super) const COMMAND: Command =
    own("CONFIG", -2, Needs::OfPart(of_config), config, ("2.0.0", "Returns and sets parameters of the server")).of(&[
        ("GET", -3),
        ("RESETSTAT", 2),
        ("REWRITE", 2),
        ("SET", -4),
    ]);

/// Maximum number of patterns of `CONFIG GET`, each of which is compared with the name of each parameter.
const PATTERNS_MAX: usize = 64;
/// Maximum size of the value of a parameter without effect.
const VALUE_BYTES_MAX: usize = 1024;

/// Type of a parameter.
#[derive(Clone, Copy)]
enum Kind {
    /// A number between a minimum and a maximum.
    Int(i64, i64),
    Bool,
    /// A number of bytes, with its minimum.
    Memory(i64),
    Text,
    OneOf(&'static [&'static str]),
    /// Limits of buffers: a class of clients and three numbers, for each class that is set.
    Buffers,
}

use Kind::{Bool, Buffers, Int, Memory, OneOf, Text};

/// Largest `int` of Redis. [`I64`] is its largest `long`.
const I32: i64 = i32::MAX as i64;
const I64: i64 = i64::MAX;

/// Parameters that tune internals of Redis, which do not exist in this broker: name, type and default value. They are
/// accepted because tools set them before they start, and they are returned as they were set.
const TUNING: &[(&str, Kind, &str)] = &[
    ("acl-pubsub-default", OneOf(&["allchannels", "resetchannels"]), "resetchannels"),
    ("acllog-max-len", Int(0, I64), "128"),
    ("active-defrag-cycle-max", Int(1, 99), "25"),
    ("active-defrag-cycle-min", Int(1, 99), "1"),
    ("active-defrag-ignore-bytes", Memory(1), "104857600"),
    ("active-defrag-max-scan-fields", Int(1, I64), "1000"),
    ("active-defrag-threshold-lower", Int(0, 1000), "10"),
    ("active-defrag-threshold-upper", Int(0, 1000), "100"),
    ("active-expire-effort", Int(1, 10), "1"),
    ("activedefrag", Bool, "no"),
    ("activerehashing", Bool, "yes"),
    ("aof-disable-auto-gc", Bool, "no"),
    ("aof-load-truncated", Bool, "yes"),
    ("aof-rewrite-incremental-fsync", Bool, "yes"),
    ("aof-timestamp-enabled", Bool, "no"),
    ("aof-use-rdb-preamble", Bool, "yes"),
    ("appendfsync", OneOf(&["everysec", "always", "no"]), "everysec"),
    ("auto-aof-rewrite-min-size", Memory(0), "67108864"),
    ("auto-aof-rewrite-percentage", Int(0, I32), "100"),
    ("busy-reply-threshold", Int(0, I64), "5000"),
    ("client-output-buffer-limit", Buffers, "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
    ("client-query-buffer-limit", Memory(1 << 20), "1073741824"),
    ("cluster-allow-pubsubshard-when-down", Bool, "yes"),
    ("cluster-allow-reads-when-down", Bool, "no"),
    ("cluster-allow-replica-migration", Bool, "yes"),
    ("cluster-link-sendbuf-limit", Memory(0), "0"),
    ("cluster-migration-barrier", Int(0, I32), "1"),
    ("cluster-node-timeout", Int(0, I64), "15000"),
    ("cluster-replica-no-failover", Bool, "no"),
    ("cluster-replica-validity-factor", Int(0, I32), "10"),
    ("cluster-require-full-coverage", Bool, "yes"),
    ("crash-log-enabled", Bool, "yes"),
    ("crash-memcheck-enabled", Bool, "yes"),
    ("dynamic-hz", Bool, "yes"),
    ("hash-max-listpack-entries", Int(0, I64), "512"),
    ("hash-max-listpack-value", Memory(0), "64"),
    ("hll-sparse-max-bytes", Memory(0), "3000"),
    ("hz", Int(0, I32), "10"),
    ("jemalloc-bg-thread", Bool, "yes"),
    ("latency-monitor-threshold", Int(0, I64), "0"),
    ("latency-tracking", Bool, "yes"),
    ("latency-tracking-info-percentiles", Text, "50 99 99.9"),
    ("lazyfree-lazy-eviction", Bool, "no"),
    ("lazyfree-lazy-expire", Bool, "no"),
    ("lazyfree-lazy-server-del", Bool, "no"),
    ("lazyfree-lazy-user-del", Bool, "no"),
    ("lazyfree-lazy-user-flush", Bool, "no"),
    ("lfu-decay-time", Int(0, I32), "1"),
    ("lfu-log-factor", Int(0, I32), "10"),
    ("list-compress-depth", Int(0, I32), "0"),
    ("list-max-listpack-size", Int(i32::MIN as i64, I32), "-2"),
    ("loglevel", OneOf(&["debug", "verbose", "notice", "warning"]), "notice"),
    ("maxmemory-clients", Text, "0"),
    ("maxmemory-eviction-tenacity", Int(0, 100), "10"),
    ("maxmemory-samples", Int(1, I32), "5"),
    ("min-replicas-max-lag", Int(0, I32), "10"),
    ("min-replicas-to-write", Int(0, I32), "0"),
    ("no-appendfsync-on-rewrite", Bool, "no"),
    ("oom-score-adj", OneOf(&["no", "yes", "relative", "absolute"]), "no"),
    ("oom-score-adj-values", Text, "0 200 800"),
    ("proc-title-template", Text, "{title} {listen-addr} {server-mode}"),
    ("propagation-error-behavior", OneOf(&["ignore", "panic", "panic-on-replicas"]), "ignore"),
    ("rdb-del-sync-files", Bool, "no"),
    ("rdb-save-incremental-fsync", Bool, "yes"),
    ("rdbcompression", Bool, "yes"),
    ("repl-backlog-size", Memory(1), "1048576"),
    ("repl-backlog-ttl", Int(0, I64), "3600"),
    ("repl-disable-tcp-nodelay", Bool, "no"),
    ("repl-diskless-load", OneOf(&["disabled", "on-empty-db", "swapdb"]), "disabled"),
    ("repl-diskless-sync", Bool, "yes"),
    ("repl-diskless-sync-delay", Int(0, I32), "5"),
    ("repl-diskless-sync-max-replicas", Int(0, I32), "0"),
    ("repl-ping-replica-period", Int(1, I32), "10"),
    ("repl-timeout", Int(1, I32), "60"),
    ("replica-lazy-flush", Bool, "no"),
    ("replica-priority", Int(0, I32), "100"),
    ("replica-read-only", Bool, "yes"),
    ("replica-serve-stale-data", Bool, "yes"),
    ("sanitize-dump-payload", OneOf(&["no", "yes", "clients"]), "no"),
    ("set-max-intset-entries", Int(0, I64), "512"),
    ("shutdown-timeout", Int(0, I32), "10"),
    ("stop-writes-on-bgsave-error", Bool, "yes"),
    ("stream-node-max-bytes", Memory(0), "4096"),
    ("stream-node-max-entries", Int(0, I64), "100"),
    ("tcp-keepalive", Int(0, I32), "300"),
    ("timeout", Int(0, I32), "0"),
    ("tracking-table-max-keys", Int(0, I64), "1000000"),
    ("zset-max-listpack-entries", Int(0, I64), "128"),
    ("zset-max-listpack-value", Memory(0), "64"),
];

/// Older names of parameters, and their current names.
const ALIASES: &[(&str, &str)] = &[
    ("hash-max-ziplist-entries", "hash-max-listpack-entries"),
    ("hash-max-ziplist-value", "hash-max-listpack-value"),
    ("list-max-ziplist-size", "list-max-listpack-size"),
    ("lua-time-limit", "busy-reply-threshold"),
    ("min-slaves-max-lag", "min-replicas-max-lag"),
    ("min-slaves-to-write", "min-replicas-to-write"),
    ("repl-ping-slave-period", "repl-ping-replica-period"),
    ("slave-lazy-flush", "replica-lazy-flush"),
    ("slave-priority", "replica-priority"),
    ("slave-read-only", "replica-read-only"),
    ("slave-serve-stale-data", "replica-serve-stale-data"),
    ("zset-max-ziplist-entries", "zset-max-listpack-entries"),
    ("zset-max-ziplist-value", "zset-max-listpack-value"),
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

/// Parameter of scripts, which takes effect.
const BUSY: &str = "busy-reply-threshold";
/// Parameter of latency events, which takes effect.
const SAMPLED: &str = "latency-monitor-threshold";
/// Parameter of tracking, which takes effect.
const TRACKED: &str = "tracking-table-max-keys";
/// Parameter of keyspace events, which takes effect.
const EVENTS: &str = "notify-keyspace-events";
const SLOW_FROM: &str = "slowlog-log-slower-than";
const SLOW_LENGTH: &str = "slowlog-max-len";

/// Parameters that clients have set to other values than the defaults.
#[derive(Default)]
pub(in crate::redis) struct Settings {
    set: Mutex<BTreeMap<&'static str, String>>,
    warned: Mutex<BTreeSet<&'static str>>,
}

fn config(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match args[1].to_ascii_uppercase().as_slice() {
        b"GET" => written(session, |writer| {
            if args.len() - 2 > PATTERNS_MAX {
                return Err(Fail::new(format!(
                    "ERR CONFIG GET takes at most {PATTERNS_MAX} patterns: use several commands, or *"
                )));
            }
            let patterns = args[2..].iter().map(|pattern| matcher(&pattern.to_ascii_lowercase()));
            let mut patterns = patterns.collect::<Done<Vec<_>>>()?;
            let mut is_wanted = |name: &str| patterns.iter_mut().any(|pattern| pattern.matches(name.as_bytes()));
            let found: Vec<_> = all(door).into_iter().filter(|(name, _)| is_wanted(name)).collect();
            writer.map(found.len());
            for (name, value) in found {
                writer.bulk(name.as_bytes());
                writer.bulk(value.as_bytes());
            }
            Ok(())
        }),
        b"SET" => match set(door, &args[2..]) {
            Ok(()) => {
                for parameter in args[2..].iter().step_by(2) {
                    door.broker.record_act("set parameter", &String::from_utf8_lossy(parameter), None);
                }
                ok()
            }
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

/// Returns all parameters with their values.
fn all(door: &Door) -> BTreeMap<&'static str, String> {
    let mut all: BTreeMap<_, _> = TUNING.iter().map(|(name, _, value)| (*name, (*value).to_owned())).collect();
    all.extend(door.settings.set.lock().iter().map(|(name, value)| (*name, value.clone())));
    for (alias, name) in ALIASES {
        all.extend(all.get(name).cloned().map(|value| (*alias, value)));
    }
    let (slow_from_us, slow_max) = door.stats.slow_limits();
    all.extend([(SLOW_FROM, slow_from_us.to_string()), (SLOW_LENGTH, slow_max.to_string())]);
    all.extend(owned(door));
    all.insert(EVENTS, door.notices.events.text());
    all.extend([("databases", DATABASES.to_string()), ("cluster-enabled", "no".to_owned())]);
    all
}

/// Returns the parameters that mirror settings of the broker.
fn owned(door: &Door) -> [(&'static str, String); 10] {
    let of_first = door.broker.caches.find("db0").map(|cache| cache.status().bytes_max);
    let bytes_max = of_first.unwrap_or(door.broker.caches.bytes_max());
    let is_durable = if door.is_durable { "yes" } else { "no" };
    [
        ("appendonly", is_durable.to_owned()),
        ("bind", "*".to_owned()),
        ("masterauth", String::new()),
        ("maxclients", door.connections.max().to_string()),
        ("maxmemory", bytes_max.to_string()),
        ("maxmemory-policy", policy(door).to_owned()),
        ("port", door.port.to_string()),
        ("proto-max-bulk-len", engine::cache::VALUE_BYTES_MAX.to_string()),
        ("requirepass", String::new()),
        ("save", String::new()),
    ]
}

/// Returns the frequency of the background tasks of Redis, per second, as it was set.
pub(super) fn frequency(door: &Door) -> String {
    all(door).remove("hz").unwrap_or_default()
}

/// Returns the alternative to a parameter that clients cannot set.
fn instead(name: &str) -> &'static str {
    match name {
        "appendonly" | "save" => "durability is a setting of the broker: start it with redis_durable",
        "maxmemory" => "memory is a setting of the broker: cache_memory_max, or the size of a cache that is created",
        "maxmemory-policy" => "create the cache with an eviction: `thalweg cache create db0 --eviction s3-fifo`",
        "requirepass" | "masterauth" => "users are the broker's: see `thalweg user --help`",
        _ => "it is a setting of the broker: see `thalweg config show`",
    }
}

fn refused(name: &[u8], why: &str) -> Fail {
    let why = format!("') - {why}");
    Fail::of_bytes([b"ERR CONFIG SET failed (possibly related to argument '", name, why.as_bytes()].concat())
}

/// Effect of setting one parameter.
enum Change {
    /// The parameter already has this value.
    Nothing,
    SlowFrom(i64),
    SlowLength(usize),
    /// Letters of the published classes of keyspace events.
    Events(String),
    Keep(&'static str, String),
}

/// Sets all parameters or none.
fn set(door: &Door, args: &[&[u8]]) -> Done {
    if !args.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    let mut changes = Vec::new();
    let mut seen = BTreeSet::new();
    for pair in args.chunks_exact(2) {
        let name = pair[0].to_ascii_lowercase();
        changes.push(change(door, &name, pair[0], pair[1])?);
        if !seen.insert(name) {
            return Err(refused(pair[0], "duplicate parameter"));
        }
    }
    // Of all changes, only that of events may still fail.
    changes.sort_by_key(|change| !matches!(change, Change::Events(_)));
    for change in changes {
        match change {
            Change::Nothing => {}
            Change::SlowFrom(us) => door.stats.set_slow_from_us(us),
            Change::SlowLength(max) => door.stats.set_slow_max(max),
            Change::Events(flags) => {
                door.notices.events.set(&flags).map_err(|why| refused(EVENTS.as_bytes(), &why))?;
                door.notices.update(&door.broker.caches);
            }
            Change::Keep(BUSY, value) => {
                door.scripts.set_busy_ms(value.parse().unwrap_or_default());
                door.settings.set.lock().insert(BUSY, value);
            }
            Change::Keep(SAMPLED, value) => {
                door.stats.latencies.set_threshold_ms(value.parse().unwrap_or_default());
                door.settings.set.lock().insert(SAMPLED, value);
            }
            Change::Keep(TRACKED, value) => {
                door.notices.tracking.set_keys_max(value.parse().unwrap_or(usize::MAX));
                door.settings.set.lock().insert(TRACKED, value);
            }
            Change::Keep(name, value) => {
                if door.settings.warned.lock().insert(name) {
                    tracing::warn!(name, value, "a client has set a parameter of Redis that has no effect");
                }
                let value = if name == "hz" { hz(&value) } else { value };
                door.settings.set.lock().insert(name, value);
            }
        }
    }
    Ok(())
}

/// Clamps a frequency as Redis does, which accepts any number.
fn hz(value: &str) -> String {
    value.parse::<i64>().unwrap_or_default().clamp(1, 500).to_string()
}

/// Returns the change of one parameter. An error about the value names the parameter as Redis does; other errors name
/// it as the client wrote it.
fn change(door: &Door, name: &[u8], shown: &[u8], value: &[u8]) -> Done<Change> {
    let text = String::from_utf8_lossy(value).into_owned();
    let is_named = |known: &str| known.as_bytes() == name;
    if is_named(SLOW_FROM) {
        return Ok(Change::SlowFrom(int(name, value, -1, i64::MAX)?));
    }
    if is_named(SLOW_LENGTH) {
        let max = int(name, value, 0, SLOW_MAX as i64)?;
        return Ok(Change::SlowLength(usize::try_from(max).unwrap_or_default()));
    }
    if is_named(EVENTS) {
        return match events::check_flags(&text) {
            Ok(()) => Ok(Change::Events(text)),
            Err(why) => Err(refused(name, why)),
        };
    }
    let newer = ALIASES.iter().find(|(alias, _)| is_named(alias)).map(|(_, name)| *name);
    if let Some((known, kind, first)) =
        TUNING.iter().find(|(known, ..)| newer.map_or(is_named(known), |it| it == *known))
    {
        let before = door.settings.set.lock().get(known).cloned().unwrap_or_else(|| (*first).to_owned());
        return check(*kind, value, &before).map(|set| Change::Keep(known, set)).map_err(|why| refused(name, &why));
    }
    if let Some((name, now)) = owned(door).into_iter().find(|(known, _)| is_named(known)) {
        let is_same = now == text || name == "maxmemory" && memory(value).is_some_and(|bytes| bytes.to_string() == now);
        return if is_same { Ok(Change::Nothing) } else { Err(refused(shown, instead(name))) };
    }
    if FIXED.iter().any(|known| is_named(known)) {
        return Err(refused(shown, "can't set immutable config"));
    }
    let begin = b"ERR Unknown option or number of arguments for CONFIG SET - '";
    Err(Fail::of_bytes([begin, command::shown(shown), b"'"].concat()))
}

fn int(name: &[u8], value: &[u8], min: i64, max: i64) -> Done<i64> {
    let number = parse_number(value).ok_or_else(|| refused(name, "argument couldn't be parsed into an integer"))?;
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(refused(name, &format!("argument must be between {min} and {max} inclusive")))
    }
}

/// Returns a value as Redis shows it after it is set, or the reason why it is refused.
fn check(kind: Kind, value: &[u8], before: &str) -> Result<String, String> {
    let text = String::from_utf8_lossy(value).into_owned();
    let within = |number: i64, min, max| {
        if (min..=max).contains(&number) {
            Ok(number.to_string())
        } else {
            Err(format!("argument must be between {min} and {max} inclusive"))
        }
    };
    match kind {
        _ if value.len() > VALUE_BYTES_MAX => Err(format!("argument has more than {VALUE_BYTES_MAX} bytes")),
        Int(min, max) => {
            let number = parse_number(value).ok_or("argument couldn't be parsed into an integer")?;
            within(number, min, max)
        }
        Bool if is(value, "yes") || is(value, "no") => Ok(text.to_ascii_lowercase()),
        Bool => Err("argument must be 'yes' or 'no'".to_owned()),
        Memory(min) => {
            let bytes = memory(value).ok_or("argument must be a memory value")?;
            // A negative number is never allowed.
            within(i64::try_from(bytes).unwrap_or(-1), min, I64)
        }
        OneOf(words) => {
            let known = words.iter().find(|word| text.eq_ignore_ascii_case(word));
            let why = || format!("argument(s) must be one of the following: {}", words.join(", "));
            known.map(|word| (*word).to_owned()).ok_or_else(why)
        }
        Buffers => buffer_limits(before, &text).map_err(str::to_owned),
        Text => Ok(text),
    }
}

/// Returns the limits of buffers with those of the given classes replaced.
fn buffer_limits(before: &str, text: &str) -> Result<String, &'static str> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.");
    }
    let mut limits: Vec<String> = before.split(' ').map(str::to_owned).collect();
    for set in words.chunks_exact(4) {
        let class = set[0].to_ascii_lowercase().replace("replica", "slave");
        let at =
            limits.iter().position(|word| *word == class).filter(|_| class.starts_with(|it: char| it.is_alphabetic()));
        let at = at.ok_or("Invalid client class specified in buffer limit configuration.")?;
        let wrong = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
        for (place, bytes) in set[1..3].iter().enumerate() {
            limits[at + 1 + place] = memory(bytes.as_bytes()).ok_or(wrong)?.to_string();
        }
        limits[at + 3] = set[3].parse::<u32>().ok().ok_or(wrong)?.to_string();
    }
    Ok(limits.join(" "))
}

/// Parses a number of bytes such as `100mb`, as Redis does.
fn memory(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    // A number that is too large becomes the largest possible one.
    let number = std::str::from_utf8(number).ok()?.parse::<u128>().ok()?;
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
    Some(u64::try_from(number.saturating_mul(factor)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_known_once_and_their_defaults_are_allowed() {
        let known = TUNING.iter().map(|(name, ..)| *name);
        let names: BTreeSet<_> =
            known.chain(FIXED.iter().copied()).chain(ALIASES.iter().map(|(alias, _)| *alias)).collect();
        assert_eq!(names.len(), TUNING.len() + FIXED.len() + ALIASES.len());
        for (name, kind, value) in TUNING {
            assert_eq!(check(*kind, value.as_bytes(), value), Ok((*value).to_owned()), "{name}");
        }
        for (alias, name) in ALIASES {
            assert!(TUNING.iter().any(|(known, ..)| known == name), "{alias}");
        }
    }

    /// Errors of redis-server 7.0.
    #[test]
    fn wrong_values_are_refused_in_the_words_of_redis() {
        let said = |kind, value: &str| check(kind, value.as_bytes(), "").expect_err("refused");
        assert_eq!(said(Int(0, 9), "abc"), "argument couldn't be parsed into an integer");
        assert_eq!(said(Int(1, 9), "0"), "argument must be between 1 and 9 inclusive");
        assert_eq!(said(Int(0, I32), "-1"), "argument must be between 0 and 2147483647 inclusive");
        assert_eq!(said(Bool, "foo"), "argument must be 'yes' or 'no'");
        assert_eq!(said(Memory(0), "5x"), "argument must be a memory value");
        assert_eq!(said(Memory(0), "-5"), "argument must be a memory value");
        let range = "argument must be between 1 and 9223372036854775807 inclusive";
        assert_eq!(said(Memory(1), "0"), range);
        assert_eq!(said(Memory(1), "99999999999999999999"), range);
        assert_eq!(said(OneOf(&["a", "b"]), "c"), "argument(s) must be one of the following: a, b");
        assert_eq!((memory(b"100mb"), memory(b"1k"), memory(b"7")), (Some(100 << 20), Some(1000), Some(7)));
    }

    /// Values as redis-server 7.0 shows them with `CONFIG GET`.
    #[test]
    fn values_are_shown_as_redis_keeps_them() {
        let shown = |kind, value: &str| check(kind, value.as_bytes(), "").expect("allowed");
        assert_eq!(shown(Memory(0), "4kb"), "4096");
        assert_eq!(shown(Bool, "YES"), "yes");
        assert_eq!(shown(OneOf(&["notice", "debug"]), "DEBUG"), "debug");
        assert_eq!((hz("0"), hz("501"), hz("20")), ("1".to_owned(), "500".to_owned(), "20".to_owned()));
    }

    /// `config.c` of Redis 7.0, `setConfigOutputBufferLimitOption`: four words for each class, others are unchanged.
    #[test]
    fn limits_of_buffers_are_set_for_each_class() {
        let before = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        let set = |value: &str| check(Buffers, value.as_bytes(), before);
        assert_eq!(
            set("pubsub 1mb 512kb 10 replica 0 0 0"),
            Ok("normal 0 0 0 slave 0 0 0 pubsub 1048576 524288 10".to_owned())
        );
        let class = "Invalid client class specified in buffer limit configuration.";
        let numbers = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
        for (value, why) in [
            ("normal 0 0", "Wrong number of arguments in buffer limit configuration."),
            ("", "Wrong number of arguments in buffer limit configuration."),
            ("foo 0 0 0", class),
            ("0 0 0 0", class),
            ("normal x 0 0", numbers),
            ("normal 0 0 -1", numbers),
        ] {
            assert_eq!(set(value), Err(why.to_owned()), "{value:?}");
        }
    }
}
