//! Values as payloads that can be moved to another server, also to and from Redis.

use engine::cache::{Owned, Value};

use super::args::{is, parse_int};
use crate::redis::command::{Command, ONE, Step, read, write};
use crate::redis::errors::{Done, Fail, SYNTAX, fixed};
use crate::redis::rdb::{self, Bad, PAYLOAD_BYTES_MAX};

pub(super) const COMMANDS: &[Command] = &[
    read("DUMP", 2, ONE, dump, ("2.6.0", "Returns a value as a payload for RESTORE")),
    write("RESTORE", -4, ONE, restore, ("2.6.0", "Creates a key from a payload of DUMP, also of Redis")),
];

/// Maximum number of parts of a value that is written or read, which is one step, during which others wait.
const PARTS_MAX: u64 = 1 << 18;

fn dump(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let parts = match step.db.get(args[1]).map(|found| found.value) {
        None => {
            step.out.null();
            return Ok(());
        }
        Some(Value::Bytes(_)) => 1,
        Some(Value::Structure(structure)) => structure.len() as u64,
    };
    step.admits_up_to(parts, PARTS_MAX, "items, fields and members")?;
    let payload = step.db.get(args[1]).map(|found| (found.value.kind(), rdb::payload(found.value)));
    match payload {
        Some((_, Some(payload))) => step.out.bulk(&payload),
        Some((engine::cache::structures::Kind::Stream, None)) => {
            return Err(fixed(
                "ERR a stream is a topic and has no payload: read it with XRANGE, add entries with XADD",
            ));
        }
        Some((_, None)) => {
            return Err(Fail::new(format!(
                "ERR the value has more than {PAYLOAD_BYTES_MAX} bytes, and no RESTORE would accept its payload: read \
                 it in parts"
            )));
        }
        None => step.out.null(),
    }
    Ok(())
}

/// Options of RESTORE.
#[derive(Default)]
struct Options {
    is_replacement: bool,
    /// `true` if the time to live is a time since 1970.
    is_absolute: bool,
}

fn options(args: &[&[u8]]) -> Done<Options> {
    let mut options = Options::default();
    let (mut has_idle_time, mut has_frequency) = (false, false);
    let mut at = 0;
    while let Some(word) = args.get(at) {
        let next = args.get(at + 1);
        match (word, next) {
            (word, _) if is(word, "REPLACE") => options.is_replacement = true,
            (word, _) if is(word, "ABSTTL") => options.is_absolute = true,
            // Both are about the eviction of Redis, and have no effect here.
            (word, Some(seconds)) if is(word, "IDLETIME") && !has_frequency => {
                if parse_int(seconds)? < 0 {
                    return Err(fixed("ERR Invalid IDLETIME value, must be >= 0"));
                }
                has_idle_time = true;
                at += 1;
            }
            (word, Some(frequency)) if is(word, "FREQ") && !has_idle_time => {
                if !(0..=255).contains(&parse_int(frequency)?) {
                    return Err(fixed("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
                has_frequency = true;
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(options)
}

fn fail(bad: Bad) -> Fail {
    match bad {
        Bad::Footer => fixed("ERR DUMP payload version or checksum are wrong"),
        Bad::Format => fixed("ERR Bad data format"),
        Bad::Type(kind) => Fail::new(format!(
            "ERR Bad data format: values of the type {kind} of RDB are not supported. Streams, values of modules and \
             hashes whose fields expire cannot be restored"
        )),
        Bad::TooLarge => fixed("ERR Bad data format: the value takes too much memory: restore it in parts"),
    }
}

fn restore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let options = options(&args[4..])?;
    let key = args[1];
    let exists = step.db.peek(key).is_some();
    if exists && !options.is_replacement {
        return Err(fixed("BUSYKEY Target key name already exists."));
    }
    let ttl_ms = parse_int(args[2])?;
    let ttl_ms = u64::try_from(ttl_ms).or(Err(fixed("ERR Invalid TTL value, must be >= 0")))?;
    let value = rdb::value(args[3]).map_err(fail)?;
    let parts = match &value {
        Owned::Bytes(_) => 1,
        Owned::Structure(structure) => structure.len() as u64,
    };
    step.admits_up_to(parts, PARTS_MAX, "items, fields and members")?;
    let now_ms = step.db.now_ms();
    let expires_ms = match ttl_ms {
        0 => None,
        at_ms if options.is_absolute => Some(at_ms),
        ttl_ms => Some(now_ms.saturating_add(ttl_ms)),
    };
    if expires_ms.is_some_and(|at_ms| at_ms <= now_ms) {
        step.db.delete(key);
    } else {
        step.db.put_owned(key, value, expires_ms)?;
    }
    step.out.ok();
    Ok(())
}
