//! Estimates of the number of different members, in a few kilobytes for any number of them.

mod sketch;

use engine::cache::{Condition, Expires};
use engine::security::Operation;
use net::service::Reply;

use self::sketch::{Corrupt, Registers, Sketch, is_sketch};
use super::session::ok;
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, EACH, Keys, ONE, Step, own, read, shown, string, write};
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, fixed};
use crate::redis::later::Later;

pub(super) const COMMANDS: &[Command] = &[
    write("PFADD", -2, ONE, pfadd, ("2.8.9", "Adds members to a HyperLogLog")),
    read("PFCOUNT", -2, EACH, pfcount, ("2.8.9", "Returns the approximate number of members of HyperLogLogs")),
    write("PFMERGE", -2, EACH, pfmerge, ("2.8.9", "Stores the union of HyperLogLogs")),
    write("PFDEBUG", 3, Keys::Range(2, 2, 1), pfdebug, ("2.8.9", "Shows the registers of a HyperLogLog")),
    own(
        "PFSELFTEST",
        1,
        Needs::Cluster(Operation::Describe),
        pfselftest,
        ("2.8.9", "Checks the registers and estimates of HyperLogLogs"),
    ),
];

/// Maximum number of keys of a command. Each takes about 20 us, during which others wait.
const KEYS_MAX: u64 = 1024;
const NO_SKETCH: Fail = fixed("WRONGTYPE Key is not a valid HyperLogLog string value.");

impl From<Corrupt> for Fail {
    fn from(_: Corrupt) -> Self {
        fixed("INVALIDOBJ Corrupted HLL object detected")
    }
}

/// Returns the bytes of a sketch, if the key exists.
fn sketch<'s>(step: &'s mut Step<'_, '_>, key: &[u8]) -> Done<Option<&'s [u8]>> {
    match string(step.db, key)? {
        Some(bytes) if !is_sketch(bytes) => Err(NO_SKETCH),
        bytes => Ok(bytes),
    }
}

fn put(step: &mut Step<'_, '_>, key: &[u8], mut sketch: Sketch) -> Done {
    sketch.mark_stale();
    step.db.put(key, sketch.bytes(), Expires::Kept, Condition::Always)?;
    Ok(())
}

fn pfadd(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let existing = sketch(step, args[1])?.map(Sketch::of);
    let mut is_changed = existing.is_none();
    let mut sketch = existing.unwrap_or_else(Sketch::empty);
    for member in &args[2..] {
        is_changed |= sketch.add(member)?;
    }
    if is_changed {
        put(step, args[1], sketch)?;
    }
    step.out.flag(is_changed);
    Ok(())
}

/// Merges the sketches of all keys. Returns their registers, and `true` if one of the sketches is dense.
fn merged(step: &mut Step<'_, '_>, keys: &[&[u8]]) -> Done<(Registers, bool)> {
    let mut registers = Registers::empty();
    let mut is_dense = false;
    for key in keys {
        if let Some(bytes) = sketch(step, key)? {
            registers.merge(bytes)?;
            is_dense |= sketch::is_dense(bytes);
        }
    }
    Ok((registers, is_dense))
}

fn pfcount(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let keys = &args[1..];
    step.admits_up_to(keys.len() as u64, KEYS_MAX, "HyperLogLogs")?;
    let (registers, _) = merged(step, keys)?;
    step.out.int(registers.count() as i64);
    Ok(())
}

fn pfmerge(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let keys = &args[1..];
    step.admits_up_to(keys.len() as u64, KEYS_MAX, "HyperLogLogs")?;
    let (registers, is_dense) = merged(step, keys)?;
    step.db.hide_misses();
    let mut into = sketch(step, args[1])?.map_or_else(Sketch::empty, Sketch::of);
    if is_dense {
        into.densify()?;
    }
    into.raise_all(&registers)?;
    put(step, args[1], into)?;
    step.out.ok();
    Ok(())
}

/// Shows the form of a sketch (`pfdebugCommand` in `src/hyperloglog.c` of Redis).
fn pfdebug(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let bytes = sketch(step, args[2])?.ok_or(fixed("ERR The specified key does not exist"))?;
    let mut sketch = Sketch::of(bytes);
    let word = args[1].to_ascii_uppercase();
    let was_dense = sketch.is_dense();
    match &*word {
        b"GETREG" | b"TODENSE" => {
            sketch.densify()?;
            let mut registers = Registers::empty();
            registers.merge(sketch.bytes())?;
            if !was_dense {
                put(step, args[2], sketch)?;
            }
            if word == b"TODENSE" {
                step.out.flag(!was_dense);
                return Ok(());
            }
            step.out.array(registers.iter().len());
            registers.iter().for_each(|register| step.out.int(register.into()));
        }
        b"DECODE" if was_dense => return Err(fixed("ERR HLL encoding is not sparse")),
        b"DECODE" => step.out.bulk(sketch::decoded(sketch.bytes()).as_bytes()),
        b"ENCODING" => step.out.simple(if was_dense { "dense" } else { "sparse" }),
        _ => return Err(Fail::of_bytes([b"ERR Unknown PFDEBUG subcommand '", shown(args[1]), b"'"].concat())),
    }
    Ok(())
}

fn pfselftest(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    match sketch::self_test() {
        Ok(()) => ok(),
        Err(why) => session.fail(&Fail::new(format!("TESTFAILED {why}"))),
    }
}
