//! Values that are copied in parts, by the commands of their type: large ones, and streams.

use std::collections::HashMap;

use redis::{Cmd, Pipeline, Value, cmd, from_redis_value};

use super::{Import, Server};
use crate::output::{FAILED, Failure, Result};

/// Number of parts of a value that are copied together.
const TOGETHER: usize = 1000;
/// Number of bytes of a string that are copied together.
const STRING_BYTES: usize = 1 << 20;
/// Beginning of the key that a value has in the target until it is complete. The number of the process follows, so that
/// imports do not share it.
const UNFINISHED: &str = "thalweg-cache-import:unfinished:";
/// Id before that of every entry.
const FIRST_ID: &str = "0-0";

fn unfinished() -> String {
    format!("{UNFINISHED}{}", std::process::id())
}

/// Where a value is copied from.
pub(super) struct From<'a> {
    pub(super) database: u64,
    pub(super) key: &'a [u8],
    /// Time when it expires, in ms since 1970.
    pub(super) expires_ms: Option<u64>,
}

/// Reason why a value is not copied.
enum Stop {
    /// The import goes on with the next key.
    Key(String),
    Import(Failure),
}

impl std::convert::From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Import(failure)
    }
}

type Part<T = ()> = std::result::Result<T, Stop>;

/// Copies a value in parts. It has another name until it is complete.
pub(super) fn value(import: &mut Import, source: &mut Server, from: &From<'_>) -> Result {
    let kind: String = source.run(cmd("TYPE").arg(from.key))?;
    import.target.select(from.database)?;
    import.target.run::<()>(cmd("DEL").arg(unfinished()))?;
    let copied = match kind.as_str() {
        "string" => string(import, source, from.key),
        "list" => list(import, source, from.key),
        "set" | "hash" | "zset" => scanned(import, source, from.key, &kind),
        "none" => {
            import.report.gone += 1;
            return Ok(());
        }
        kind => Err(Stop::Key(format!("values of the type {kind} cannot be copied"))),
    };
    let compared = copied.and_then(|()| compare_sizes(import, source, from.key, &kind));
    let done = compared.and_then(|()| finish(import, from));
    let outcome = settle(import, from, done);
    import.target.run::<()>(cmd("DEL").arg(unfinished()))?;
    outcome
}

/// Compares the size of a complete value with that of the source, which may have changed meanwhile.
fn compare_sizes(import: &mut Import, source: &mut Server, key: &[u8], kind: &str) -> Part {
    let size = match kind {
        "string" => "STRLEN",
        "list" => "LLEN",
        "set" => "SCARD",
        "hash" => "HLEN",
        _ => "ZCARD",
    };
    let before: Value = source.run(cmd(size).arg(key))?;
    if write(&mut import.target, cmd(size).arg(unfinished()))? == before { Ok(()) } else { Err(changed()) }
}

fn settle(import: &mut Import, from: &From<'_>, done: Part) -> Result {
    match done {
        Ok(()) => Ok(()),
        Err(Stop::Key(why)) => {
            import.report.fail(from.database, from.key, why);
            Ok(())
        }
        Err(Stop::Import(failure)) => Err(failure),
    }
}

/// Gives a complete value its key.
fn finish(import: &mut Import, from: &From<'_>) -> Part {
    if let Some(expires_ms) = from.expires_ms {
        write(&mut import.target, cmd("PEXPIREAT").arg(unfinished()).arg(expires_ms))?;
    }
    let rename = if import.replaces { "RENAME" } else { "RENAMENX" };
    match write(&mut import.target, cmd(rename).arg(unfinished()).arg(from.key))? {
        Value::Int(0) => import.report.kept += 1,
        _ => {
            import.report.copied += 1;
            import.report.verified += u64::from(import.verifies);
        }
    }
    Ok(())
}

/// Runs a command whose error concerns only one key.
fn write(target: &mut Server, command: &Cmd) -> Part<Value> {
    let mut pipeline = Pipeline::new();
    pipeline.add_command(command.clone());
    let reply = target.each(&pipeline)?.pop();
    match reply {
        Some(Value::ServerError(error)) => Err(Stop::Key(error.to_string())),
        Some(reply) => Ok(reply),
        None => Err(Stop::Import(Failure::new(FAILED, format!("{} sent no reply", target.address)))),
    }
}

fn changed() -> Stop {
    Stop::Key("the value changed at the source while it was copied: import it again".to_owned())
}

fn differs() -> Stop {
    Stop::Key("the target has another value than the source".to_owned())
}

fn parsed<T: redis::FromRedisValue>(value: Value) -> Part<T> {
    from_redis_value(value).map_err(|error| Stop::Key(format!("a reply has another form than expected: {error}")))
}

fn string(import: &mut Import, source: &mut Server, key: &[u8]) -> Part {
    let mut at = 0;
    loop {
        let part: Vec<u8> = source.run(cmd("GETRANGE").arg(key).arg(at).arg(at + STRING_BYTES - 1))?;
        if part.is_empty() && at > 0 {
            return Ok(());
        }
        write(&mut import.target, cmd("APPEND").arg(unfinished()).arg(&part[..]))?;
        if import.verifies {
            let range = cmd("GETRANGE").arg(unfinished()).arg(at).arg(at + STRING_BYTES - 1).clone();
            if write(&mut import.target, &range)? != Value::BulkString(part.clone()) {
                return Err(differs());
            }
        }
        at += part.len();
        if part.len() < STRING_BYTES {
            return Ok(());
        }
    }
}

fn list(import: &mut Import, source: &mut Server, key: &[u8]) -> Part {
    let mut at = 0;
    loop {
        let range = |of: &[u8]| cmd("LRANGE").arg(of).arg(at).arg(at + TOGETHER - 1).clone();
        let items: Vec<Vec<u8>> = source.run(&range(key))?;
        if items.is_empty() {
            return Ok(());
        }
        write(&mut import.target, cmd("RPUSH").arg(unfinished()).arg(&items))?;
        if import.verifies {
            let found: Vec<Vec<u8>> = parsed(write(&mut import.target, &range(unfinished().as_bytes()))?)?;
            if found != items {
                return Err(differs());
            }
        }
        at += items.len();
    }
}

/// Copies a set, hash or sorted set by its scan. Those that do not change while they are scanned are copied whole.
fn scanned(import: &mut Import, source: &mut Server, key: &[u8], kind: &str) -> Part {
    let (scan, add) = match kind {
        "set" => ("SSCAN", "SADD"),
        "hash" => ("HSCAN", "HSET"),
        _ => ("ZSCAN", "ZADD"),
    };
    let mut cursor = "0".to_owned();
    loop {
        let (next, parts): (String, Vec<Vec<u8>>) =
            source.run(cmd(scan).arg(key).arg(&cursor).arg("COUNT").arg(TOGETHER))?;
        if !parts.is_empty() {
            let mut command = cmd(add);
            command.arg(unfinished());
            if kind == "hash" {
                refuse_expiring(source, key, &parts)?;
            }
            if kind == "zset" {
                // A scan has members before their scores, `ZADD` the other way round.
                for pair in parts.chunks_exact(2) {
                    command.arg(&pair[1]).arg(&pair[0]);
                }
            } else {
                command.arg(&parts);
            }
            write(&mut import.target, &command)?;
            if import.verifies {
                compare(&mut import.target, kind, &parts)?;
            }
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Refuses a hash of which some of these fields expire, as Redis 7.4 allows.
fn refuse_expiring(source: &mut Server, key: &[u8], parts: &[Vec<u8>]) -> Part {
    let fields: Vec<&Vec<u8>> = parts.iter().step_by(2).collect();
    let mut pipeline = Pipeline::new();
    pipeline.cmd("HPTTL").arg(key).arg("FIELDS").arg(fields.len()).arg(fields);
    match source.each(&pipeline)?.pop() {
        Some(Value::Array(times)) if times.iter().any(|time| matches!(time, Value::Int(0..))) => {
            Err(Stop::Key("it is a hash whose fields expire".to_owned()))
        }
        // Older servers do not know the command.
        _ => Ok(()),
    }
}

/// Compares members, fields with their values, or members with their scores with those of the target.
fn compare(target: &mut Server, kind: &str, parts: &[Vec<u8>]) -> Part {
    let is_equal = match kind {
        "set" => {
            let found: Vec<i64> = parsed(write(target, cmd("SMISMEMBER").arg(unfinished()).arg(parts))?)?;
            found.iter().all(|is_member| *is_member == 1)
        }
        "hash" => {
            let fields: Vec<&Vec<u8>> = parts.iter().step_by(2).collect();
            let found: Vec<Vec<u8>> = parsed(write(target, cmd("HMGET").arg(unfinished()).arg(fields))?)?;
            found.iter().eq(parts.iter().skip(1).step_by(2))
        }
        _ => {
            let members: Vec<&Vec<u8>> = parts.iter().step_by(2).collect();
            let found: Vec<f64> = parsed(write(target, cmd("ZMSCORE").arg(unfinished()).arg(members))?)?;
            let number = |text: &Vec<u8>| std::str::from_utf8(text).ok()?.parse::<f64>().ok();
            found.iter().map(|score| Some(*score)).eq(parts.iter().skip(1).step_by(2).map(number))
        }
    };
    if is_equal { Ok(()) } else { Err(differs()) }
}

/// Copies a stream: its entries with their ids, its numbers, its groups, and their consumers with pending entries.
pub(super) fn stream(import: &mut Import, source: &mut Server, database: u64, key: &[u8]) -> Result {
    import.target.select(database)?;
    let from = From { database, key, expires_ms: None };
    let copied = stream_parts(import, source, key);
    settle(import, &from, copied)
}

fn stream_parts(import: &mut Import, source: &mut Server, key: &[u8]) -> Part {
    let exists = write(&mut import.target, cmd("EXISTS").arg(key))?;
    if exists != Value::Int(0) && !import.replaces {
        let length = cmd("XLEN").arg(key).clone();
        if write(&mut import.target, &length)? == source.run(&length)? {
            import.report.equal += 1;
        } else {
            import.report.kept += 1;
        }
        return Ok(());
    }
    let about: HashMap<String, Value> = source.run(cmd("XINFO").arg("STREAM").arg(key))?;
    let groups: Vec<HashMap<String, Value>> = source.run(cmd("XINFO").arg("GROUPS").arg(key))?;
    write(&mut import.target, cmd("DEL").arg(key))?;
    let last: String = named(&about, "last-generated-id").unwrap_or_else(|| "+".to_owned());
    entries(import, source, key, &last)?;
    numbers(import, key, &about)?;
    for group in groups {
        copy_group(import, source, key, group)?;
    }
    let ttl_ms: i64 = source.run(cmd("PTTL").arg(key))?;
    if ttl_ms >= 0 {
        write(&mut import.target, cmd("PEXPIRE").arg(key).arg(ttl_ms.max(1)))?;
    }
    import.report.copied += 1;
    import.report.verified += u64::from(import.verifies);
    Ok(())
}

/// Copies the entries up to an id: those that are added meanwhile would come after the last id that was read.
fn entries(import: &mut Import, source: &mut Server, key: &[u8], until: &str) -> Part {
    type Entry = (String, Vec<Vec<u8>>);
    let mut start = "-".to_owned();
    loop {
        let range = cmd("XRANGE").arg(key).arg(&start).arg(until).arg("COUNT").arg(TOGETHER).clone();
        let entries: Vec<Entry> = source.run(&range)?;
        let Some((last, _)) = entries.last() else { return Ok(()) };
        let mut pipeline = Pipeline::new();
        for (id, fields) in &entries {
            pipeline.cmd("XADD").arg(key).arg(id).arg(fields);
        }
        for reply in import.target.each(&pipeline)? {
            if let Value::ServerError(error) = reply {
                return Err(Stop::Key(error.to_string()));
            }
        }
        if import.verifies {
            let found: Vec<Entry> = parsed(write(&mut import.target, &range)?)?;
            if found != entries {
                return Err(differs());
            }
        }
        start = format!("({last}");
    }
}

/// Returns a value that Redis gives with a name; `None` if this version has no such name.
fn named<T: redis::FromRedisValue>(about: &HashMap<String, Value>, name: &str) -> Option<T> {
    about.get(name).cloned().and_then(|value| from_redis_value(value).ok())
}

/// Sets the last id, and the numbers that Redis has since 7.0.
fn numbers(import: &mut Import, key: &[u8], about: &HashMap<String, Value>) -> Part {
    let last: String = named(about, "last-generated-id").unwrap_or_else(|| FIRST_ID.to_owned());
    if last == FIRST_ID {
        return Ok(());
    }
    if named(about, "length") == Some(0) {
        // An empty stream with a last id is one whose entries were deleted.
        write(&mut import.target, cmd("XADD").arg(key).arg("MAXLEN").arg(0).arg(&last).arg("x").arg("y"))?;
    }
    let mut set = cmd("XSETID");
    set.arg(key).arg(&last);
    let added: Option<u64> = named(about, "entries-added");
    let deleted: Option<String> = named(about, "max-deleted-entry-id");
    if let (Some(added), Some(deleted)) = (added, deleted) {
        set.arg("ENTRIESADDED").arg(added).arg("MAXDELETEDID").arg(deleted);
    }
    write(&mut import.target, &set).map(drop)
}

fn copy_group(import: &mut Import, source: &mut Server, key: &[u8], group: HashMap<String, Value>) -> Part {
    let unnamed = || Stop::Key("a group of the stream has no name".to_owned());
    let name: Vec<u8> = named(&group, "name").ok_or_else(unnamed)?;
    let last: String = named(&group, "last-delivered-id").unwrap_or_else(|| FIRST_ID.to_owned());
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(key).arg(&name).arg(last).arg("MKSTREAM");
    if let Some(read) = named::<u64>(&group, "entries-read") {
        create.arg("ENTRIESREAD").arg(read);
    }
    write(&mut import.target, &create)?;
    let consumers: Vec<HashMap<String, Value>> = source.run(cmd("XINFO").arg("CONSUMERS").arg(key).arg(&name))?;
    for consumer in consumers {
        let consumer: Vec<u8> = named(&consumer, "name").ok_or_else(unnamed)?;
        write(&mut import.target, cmd("XGROUP").arg("CREATECONSUMER").arg(key).arg(&name).arg(&consumer))?;
        pending(import, source, key, (&name, &consumer))?;
    }
    Ok(())
}

/// Copies the pending entries of a consumer, with the times and numbers of their deliveries.
fn pending(import: &mut Import, source: &mut Server, key: &[u8], (group, consumer): (&[u8], &[u8])) -> Part {
    type Pending = (String, Vec<u8>, u64, u64);
    let mut start = "-".to_owned();
    loop {
        let page = cmd("XPENDING").arg(key).arg(group).arg(&start).arg("+").arg(TOGETHER).arg(consumer).clone();
        let pending: Vec<Pending> = source.run(&page)?;
        let Some((last, ..)) = pending.last() else { return Ok(()) };
        let mut pipeline = Pipeline::new();
        for (id, _, idle_ms, deliveries) in &pending {
            let claim = pipeline.cmd("XCLAIM").arg(key).arg(group).arg(consumer).arg(0).arg(id);
            claim.arg("IDLE").arg(idle_ms).arg("RETRYCOUNT").arg(deliveries).arg("FORCE").arg("JUSTID");
        }
        for reply in import.target.each(&pipeline)? {
            if let Value::ServerError(error) = reply {
                return Err(Stop::Key(error.to_string()));
            }
        }
        start = format!("({last}");
    }
}
