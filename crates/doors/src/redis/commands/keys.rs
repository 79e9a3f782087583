//! Keys with any kind of value: their existence, expiry, names and copies.

use engine::cache::structures::{Sorted, Structure};
use engine::cache::{Eviction, Owned, Value};

use super::args::{is, parse_int, parse_small};
use crate::redis::command::{Command, EACH, Keys, ONE, Step, TWO, read, write};
use crate::redis::connection::DATABASES;
use crate::redis::errors::{Done, Fail, NO_SUCH_KEY, SYNTAX};

pub(super) const COMMANDS: &[Command] = &[
    write("DEL", -2, EACH, del, ("1.0.0", "Deletes keys")),
    write("UNLINK", -2, EACH, del, ("4.0.0", "Deletes keys")),
    read("EXISTS", -2, EACH, exists, ("1.0.0", "Counts the keys that exist")),
    read("TOUCH", -2, EACH, touch, ("3.2.1", "Marks keys as used, so that they are evicted later")),
    read("TYPE", 2, ONE, kind, ("1.0.0", "Returns the type of a value")),
    write("EXPIRE", -3, ONE, expire, ("1.0.0", "Sets the time to live of a key in seconds")),
    write("PEXPIRE", -3, ONE, pexpire, ("2.6.0", "Sets the time to live of a key in milliseconds")),
    write("EXPIREAT", -3, ONE, expireat, ("1.2.0", "Sets the expiry of a key in seconds since 1970")),
    write("PEXPIREAT", -3, ONE, pexpireat, ("2.6.0", "Sets the expiry of a key in milliseconds since 1970")),
    read("TTL", 2, ONE, ttl, ("1.0.0", "Returns the time to live of a key in seconds")),
    read("PTTL", 2, ONE, pttl, ("2.6.0", "Returns the time to live of a key in milliseconds")),
    read("EXPIRETIME", 2, ONE, expiretime, ("7.0.0", "Returns the expiry of a key in seconds since 1970")),
    read("PEXPIRETIME", 2, ONE, pexpiretime, ("7.0.0", "Returns the expiry of a key in milliseconds since 1970")),
    write("PERSIST", 2, ONE, persist, ("2.2.0", "Removes the expiry of a key")),
    write("RENAME", 3, TWO, rename, ("1.0.0", "Renames a key")),
    write("RENAMENX", 3, TWO, renamenx, ("1.0.0", "Renames a key if the new name is not in use")),
    write("COPY", -3, TWO, copy, ("6.2.0", "Copies a value to another key, also of another database")),
    write("MOVE", 3, ONE, move_, ("1.0.0", "Moves a key to another database")),
    read(
        "OBJECT",
        -2,
        Keys::Range(2, 2, 1),
        object,
        ("2.2.3", "Returns the encoding of a value in Redis, and its last use"),
    )
    .of(&[("ENCODING", 3), ("REFCOUNT", 3), ("IDLETIME", 3), ("FREQ", 3), ("HELP", 2)]),
];

/// Form in which a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Seconds,
    Ms,
    AtSeconds,
    AtMs,
}

impl Until {
    pub(super) fn of(word: &[u8]) -> Option<Self> {
        let words = [("EX", Self::Seconds), ("PX", Self::Ms), ("EXAT", Self::AtSeconds), ("PXAT", Self::AtMs)];
        words.into_iter().find(|(name, _)| is(word, name)).map(|(_, until)| until)
    }

    /// Returns the time in ms since 1970; `None` if it is too large.
    fn at_ms(self, time: i64, now_ms: u64) -> Option<i64> {
        let ms = match self {
            Self::Seconds | Self::AtSeconds => time.checked_mul(1000)?,
            Self::Ms | Self::AtMs => time,
        };
        match self {
            Self::Seconds | Self::Ms => ms.checked_add(now_ms as i64),
            Self::AtSeconds | Self::AtMs => Some(ms),
        }
    }
}

fn invalid_time(name: &str) -> Fail {
    Fail::new(format!("ERR invalid expire time in '{name}' command"))
}

/// Returns the expiry, in ms since 1970, of a value that is set with a lifetime.
pub(super) fn expires_at(until: Until, time: &[u8], now_ms: u64, name: &str) -> Done<u64> {
    let time = parse_int(time)?;
    let at_ms = until.at_ms(time, now_ms).filter(|_| time > 0);
    at_ms.and_then(|at_ms| u64::try_from(at_ms).ok()).ok_or_else(|| invalid_time(name))
}

fn del(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = args[1..].iter().filter(|key| step.db.delete(key)).count();
    step.out.len(count);
    Ok(())
}

fn exists(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = args[1..].iter().filter(|key| step.db.peek(key).is_some()).count();
    step.out.len(count);
    Ok(())
}

fn touch(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = args[1..].iter().filter(|key| step.db.get(key).is_some()).count();
    step.out.len(count);
    Ok(())
}

fn kind(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let name = step.db.peek(args[1]).map_or("none", |found| found.value.kind().name());
    step.out.simple(name);
    Ok(())
}

fn expire(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    expire_at(step, args, Until::Seconds, "expire")
}

fn pexpire(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    expire_at(step, args, Until::Ms, "pexpire")
}

fn expireat(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    expire_at(step, args, Until::AtSeconds, "expireat")
}

fn pexpireat(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    expire_at(step, args, Until::AtMs, "pexpireat")
}

/// Conditions of an expiry change.
#[derive(Default)]
struct If {
    is_none: bool,
    is_some: bool,
    is_later: bool,
    is_earlier: bool,
}

fn conditions(args: &[&[u8]]) -> Done<If> {
    let mut wanted = If::default();
    for arg in args {
        match arg {
            arg if is(arg, "NX") => wanted.is_none = true,
            arg if is(arg, "XX") => wanted.is_some = true,
            arg if is(arg, "GT") => wanted.is_later = true,
            arg if is(arg, "LT") => wanted.is_earlier = true,
            arg => return Err(Fail::new(format!("ERR Unsupported option {}", arg.escape_ascii()))),
        }
    }
    if wanted.is_none && (wanted.is_some || wanted.is_later || wanted.is_earlier) {
        return Err(Fail::new("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if wanted.is_later && wanted.is_earlier {
        return Err(Fail::new("ERR GT and LT options at the same time are not compatible"));
    }
    Ok(wanted)
}

fn expire_at(step: &mut Step<'_, '_>, args: &[&[u8]], until: Until, name: &str) -> Done {
    let wanted = conditions(&args[3..])?;
    let key = args[1];
    let time = parse_int(args[2])?;
    let now_ms = step.db.now_ms();
    let at_ms = until.at_ms(time, now_ms).ok_or_else(|| invalid_time(name))?;
    let is_set = match step.db.peek(key).map(|found| found.expires_ms) {
        None => false,
        Some(None) if wanted.is_some || wanted.is_later => false,
        Some(Some(_)) if wanted.is_none => false,
        Some(Some(before)) if wanted.is_later && at_ms <= before as i64 => false,
        Some(Some(before)) if wanted.is_earlier && at_ms >= before as i64 => false,
        Some(_) if at_ms <= now_ms as i64 => step.db.delete(key),
        Some(_) => step.db.set_expiry(key, Some(at_ms as u64)),
    };
    step.out.flag(is_set);
    Ok(())
}

/// Writes a time of a key as a number of ms; -1 if the key does not expire, and -2 if it does not exist.
fn write_time(step: &mut Step<'_, '_>, key: &[u8], time: impl FnOnce(u64, u64) -> u64) -> Done {
    let now_ms = step.db.now_ms();
    let number = match step.db.peek(key).map(|found| found.expires_ms) {
        None => -2,
        Some(None) => -1,
        Some(Some(expires_ms)) => time(expires_ms, now_ms) as i64,
    };
    step.out.int(number);
    Ok(())
}

fn ttl(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    write_time(step, args[1], |at_ms, now_ms| (at_ms - now_ms + 500) / 1000)
}

fn pttl(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    write_time(step, args[1], |at_ms, now_ms| at_ms - now_ms)
}

fn expiretime(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    write_time(step, args[1], |at_ms, _| (at_ms + 500) / 1000)
}

fn pexpiretime(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    write_time(step, args[1], |at_ms, _| at_ms)
}

fn persist(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let expires = step.db.peek(args[1]).is_some_and(|found| found.expires_ms.is_some());
    let is_set = expires && step.db.set_expiry(args[1], None);
    step.out.flag(is_set);
    Ok(())
}

fn rename(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let taken = step.db.copy(args[1]).ok_or(NO_SUCH_KEY)?;
    if args[1] != args[2] {
        step.db.put_owned(args[2], taken.value, taken.expires_ms)?;
        step.db.delete(args[1]);
    }
    step.out.ok();
    Ok(())
}

fn renamenx(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let taken = step.db.copy(args[1]).ok_or(NO_SUCH_KEY)?;
    let is_free = step.db.peek(args[2]).is_none();
    if is_free {
        step.db.put_owned(args[2], taken.value, taken.expires_ms)?;
        step.db.delete(args[1]);
    }
    step.out.flag(is_free);
    Ok(())
}

/// Returns the database that a command names in addition to the selected one.
pub(in crate::redis) fn other_database(args: &[&[u8]]) -> Option<usize> {
    let number = match args[0] {
        name if is(name, "MOVE") => args.get(2)?,
        name if is(name, "COPY") => {
            let at = args.iter().skip(3).position(|arg| is(arg, "DB"))?;
            args.get(at + 4)?
        }
        _ => return None,
    };
    super::args::parse_usize(number).filter(|number| *number < DATABASES)
}

pub(super) fn database(number: &[u8]) -> Done<usize> {
    let number = parse_small(number)?;
    usize::try_from(number).ok().filter(|number| *number < DATABASES).ok_or(Fail::new("ERR DB index is out of range"))
}

/// Returns `true` if a copy replaces an existing key.
pub(super) fn copy_replaces(args: &[&[u8]]) -> Done<bool> {
    let mut is_replaced = false;
    let mut at = 3;
    while let Some(arg) = args.get(at) {
        if is(arg, "REPLACE") {
            is_replaced = true;
        } else if is(arg, "DB") && at + 1 < args.len() {
            at += 1;
            database(args[at])?;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    Ok(is_replaced)
}

fn copy(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let is_replaced = copy_replaces(args)?;
    if step.other.is_none() && args[1] == args[2] {
        return Err(Fail::new("ERR source and destination objects are the same"));
    }
    let taken = step.db.copy(args[1]);
    let to = step.other.as_deref_mut().unwrap_or(step.db);
    let is_copied = match taken {
        Some(taken) if is_replaced || to.kind(args[2]).is_none() => {
            to.put_owned(args[2], taken.value, taken.expires_ms)?;
            true
        }
        _ => false,
    };
    step.out.flag(is_copied);
    Ok(())
}

fn move_(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    database(args[2])?;
    let Some(other) = step.other.as_deref_mut() else {
        return Err(Fail::new("ERR source and destination objects are the same"));
    };
    let is_moved = match step.db.copy(args[1]) {
        Some(taken) if other.peek(args[1]).is_none() => {
            other.put_owned(args[1], taken.value, taken.expires_ms)?;
            step.db.delete(args[1])
        }
        _ => false,
    };
    step.out.flag(is_moved);
    Ok(())
}

/// Limits up to which Redis keeps a structure in one piece.
const PACKED_MAX: usize = 128;
const PACKED_BYTES_MAX: usize = 64;
const INTS_MAX: usize = 512;
/// Maximum size of a string that Redis keeps in one piece with its header.
const EMBEDDED_BYTES_MAX: usize = 44;

fn encoding(value: Value<'_>) -> &'static str {
    let is_short = |part: &[u8]| part.len() <= PACKED_BYTES_MAX;
    match value {
        Value::Bytes(bytes) if engine::cache::parse_number(bytes).is_some() => "int",
        Value::Bytes(bytes) if bytes.len() <= EMBEDDED_BYTES_MAX => "embstr",
        Value::Bytes(_) => "raw",
        Value::Structure(structure) => match structure {
            Structure::List(_) => "quicklist",
            Structure::Hash(hash) => {
                let is_packed = hash.len() <= PACKED_MAX && hash.iter().all(|(a, b)| is_short(a) && is_short(b));
                if is_packed { "listpack" } else { "hashtable" }
            }
            Structure::Set(set) => {
                let is_int = |member: &[u8]| engine::cache::parse_number(member).is_some();
                if set.len() <= INTS_MAX && set.iter().all(is_int) { "intset" } else { "hashtable" }
            }
            Structure::Stream(_) => "stream",
            Structure::Sorted(sorted) => {
                if is_packed(sorted) {
                    "listpack"
                } else {
                    "skiplist"
                }
            }
        },
    }
}

/// Returns `true` if Redis would keep the sorted set as a list of members and scores.
pub(super) fn is_packed(sorted: &Sorted) -> bool {
    sorted.len() <= PACKED_MAX && sorted.range(0..sorted.len()).all(|(member, _)| member.len() <= PACKED_BYTES_MAX)
}

fn other_policy(what: &str) -> Fail {
    let note =
        "Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";
    Fail::new(format!("ERR {what} {note}"))
}

fn object(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let word = args[1];
    let eviction = step.db.cache().eviction();
    let Some(found) = step.db.peek(args[2]) else {
        step.out.null();
        return Ok(());
    };
    if is(word, "ENCODING") {
        step.out.bulk(encoding(found.value).as_bytes());
    } else if is(word, "REFCOUNT") {
        step.out.int(1);
    } else if is(word, "IDLETIME") {
        // As in Redis, each value is reported only under an eviction policy that uses it.
        if eviction == Eviction::S3Fifo {
            return Err(other_policy("An LFU maxmemory policy is selected, idle time not tracked."));
        }
        step.out.int(i64::from(found.uses.idle_s()));
    } else {
        if eviction != Eviction::S3Fifo {
            return Err(other_policy("An LFU maxmemory policy is not selected, access frequency not tracked."));
        }
        step.out.int(i64::from(found.uses.frequency()));
    }
    Ok(())
}

/// Replaces the value of a key by a structure; deletes the key if the structure is empty.
pub(in crate::redis) fn store(step: &mut Step<'_, '_>, key: &[u8], structure: Structure) -> Done {
    if structure.is_empty() {
        step.db.delete(key);
    } else {
        step.db.put_owned(key, Owned::Structure(Box::new(structure)), None)?;
    }
    Ok(())
}
