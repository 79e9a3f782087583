//! Strings, including those that are numbers.

use engine::cache::structures::Kind;
use engine::cache::{Condition, Expires, VALUE_BYTES_MAX};

use super::args::{after, is, parse_int};
use super::keys::{Until, expires_at};
use crate::redis::command::{Command, EACH, Keys, ONE, Step, TWO, check_kind, read, string, write, wrong_arity};
use crate::redis::errors::{Done, Fail, NOT_FLOAT, SYNTAX, TOO_LONG, fixed};
use crate::redis::events::operations;
use crate::redis::long_double::LongDouble;

/// Maximum product of the lengths of the two strings of LCS, which needs a number for each pair of their bytes.
const LCS_CELLS_MAX: usize = 16 << 20;
/// Number of cells of LCS that cost as much as one visited member.
const LCS_CELLS_COUNTED: u64 = 64;

pub(super) const COMMANDS: &[Command] = &[
    write("SET", -3, ONE, set, ("1.0.0", "Sets a string, with optional conditions and expiry")),
    write("SETNX", 3, ONE, setnx, ("1.0.0", "Sets a string if the key does not exist")),
    write("SETEX", 4, ONE, setex, ("2.0.0", "Sets a string with a time to live in seconds")),
    write("PSETEX", 4, ONE, psetex, ("2.6.0", "Sets a string with a time to live in milliseconds")),
    read("GET", 2, ONE, get, ("1.0.0", "Returns a string")),
    write("GETSET", 3, ONE, getset, ("1.0.0", "Sets a string and returns the previous one")),
    write("GETDEL", 2, ONE, getdel, ("6.2.0", "Returns a string and deletes it")),
    write("GETEX", -2, ONE, getex, ("6.2.0", "Returns a string and sets its expiry")),
    read("MGET", -2, EACH, mget, ("1.0.0", "Returns several strings")),
    write("MSET", -3, Keys::Range(1, -1, 2), mset, ("1.0.1", "Sets several strings in one step")),
    write("MSETNX", -3, Keys::Range(1, -1, 2), msetnx, ("1.0.1", "Sets several strings if none of the keys exists")),
    write("APPEND", 3, ONE, append, ("2.0.0", "Appends to a string")),
    read("STRLEN", 2, ONE, strlen, ("2.2.0", "Returns the length of a string")),
    write("INCR", 2, ONE, incr, ("1.0.0", "Adds one to a number")),
    write("DECR", 2, ONE, decr, ("1.0.0", "Subtracts one from a number")),
    write("INCRBY", 3, ONE, incrby, ("1.0.0", "Adds to a number")),
    write("DECRBY", 3, ONE, decrby, ("1.0.0", "Subtracts from a number")),
    write("INCRBYFLOAT", 3, ONE, incrbyfloat, ("2.6.0", "Adds a decimal number to a number")),
    write("SETRANGE", 4, ONE, setrange, ("2.2.0", "Overwrites a part of a string")),
    read("GETRANGE", 4, ONE, getrange, ("2.4.0", "Returns a part of a string")),
    read("SUBSTR", 4, ONE, getrange, ("1.0.0", "Returns a part of a string: the older name of GETRANGE")),
    read("LCS", -3, TWO, lcs, ("7.0.0", "Returns the longest common subsequence of two strings")),
];

pub(super) const OVERFLOW: Fail = fixed("ERR increment or decrement would overflow");

fn put(step: &mut Step<'_, '_>, key: &[u8], value: &[u8], expires: Expires) -> Done {
    step.db.put(key, value, expires, Condition::Always)?;
    Ok(())
}

fn get(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let found = string(step.db, args[1])?;
    step.out.maybe(found);
    Ok(())
}

#[derive(Default)]
struct SetOptions<'a> {
    condition: Condition,
    until: Option<(Until, &'a [u8])>,
    is_kept: bool,
    is_get: bool,
}

fn set_options<'a>(args: &[&'a [u8]]) -> Done<SetOptions<'a>> {
    let mut options = SetOptions::default();
    let mut at = 3;
    while let Some(arg) = args.get(at) {
        let is_free = options.condition == Condition::Always;
        if is(arg, "NX") && (is_free || options.condition == Condition::IfAbsent) {
            options.condition = Condition::IfAbsent;
        } else if is(arg, "XX") && (is_free || options.condition == Condition::IfPresent) {
            options.condition = Condition::IfPresent;
        } else if is(arg, "GET") {
            options.is_get = true;
        } else if is(arg, "KEEPTTL") && options.until.is_none() {
            options.is_kept = true;
        } else if let Some(until) = Until::of(arg)
            && options.until.is_none()
            && !options.is_kept
        {
            options.until = Some((until, after(args, &mut at)?));
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

fn set(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let key = args[1];
    let value = args[2];
    if args.len() == 3 {
        put(step, key, value, Expires::Never)?;
        step.out.ok();
        return Ok(());
    }
    let options = set_options(args)?;
    let expires = match options.until {
        Some((until, time)) => Expires::At(expires_at(until, time, step.db.now_ms(), "set")?),
        None if options.is_kept => Expires::Kept,
        None => Expires::Never,
    };
    if options.is_get {
        let before = string(step.db, key)?;
        step.out.maybe(before);
    }
    let stored = match expires {
        // The expiry is already in the past.
        Expires::At(at_ms) if at_ms <= step.db.now_ms() => {
            let is_met = match options.condition {
                Condition::IfAbsent => step.db.kind(key).is_none(),
                Condition::IfPresent => step.db.kind(key).is_some(),
                _ => true,
            };
            if is_met {
                let exists = step.db.unnoted(|db| db.delete(key));
                step.db.report(key, if exists { operations::SET_PAST } else { operations::SET_NEW_PAST });
            }
            is_met
        }
        _ => {
            let stored = step.db.put(key, value, expires, options.condition)?;
            matches!(stored, engine::cache::Stored::Done { .. })
        }
    };
    match (options.is_get, stored) {
        (true, _) => {}
        (false, true) => step.out.ok(),
        (false, false) => step.out.null(),
    }
    Ok(())
}

fn setnx(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let stored = step.db.put(args[1], args[2], Expires::Never, Condition::IfAbsent)?;
    step.out.flag(matches!(stored, engine::cache::Stored::Done { .. }));
    Ok(())
}

fn setex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    set_for(step, args, Until::Seconds, "setex")
}

fn psetex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    set_for(step, args, Until::Ms, "psetex")
}

fn set_for(step: &mut Step<'_, '_>, args: &[&[u8]], until: Until, name: &str) -> Done {
    let at_ms = expires_at(until, args[2], step.db.now_ms(), name)?;
    put(step, args[1], args[3], Expires::At(at_ms))?;
    step.out.ok();
    Ok(())
}

fn getset(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    get(step, args)?;
    put(step, args[1], args[2], Expires::Never)
}

fn getdel(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    get(step, args)?;
    step.db.delete(args[1]);
    Ok(())
}

fn getex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let until = match args[2..] {
        [] => None,
        [option] if is(option, "PERSIST") => Some(None),
        [option, time] => Some(Some((Until::of(option).ok_or(SYNTAX)?, time))),
        _ => return Err(SYNTAX),
    };
    if string(step.db, args[1])?.is_none() {
        step.out.null();
        return Ok(());
    }
    let expires_ms = match until {
        Some(Some((until, time))) => Some(Some(expires_at(until, time, step.db.now_ms(), "getex")?)),
        Some(None) => Some(None),
        None => None,
    };
    get(step, args)?;
    match expires_ms {
        Some(Some(at_ms)) if at_ms <= step.db.now_ms() => drop(step.db.delete(args[1])),
        Some(expires_ms) => drop(step.db.set_expiry(args[1], expires_ms)),
        None => {}
    }
    Ok(())
}

fn mget(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    step.out.array(args.len() - 1);
    for key in &args[1..] {
        // A key that is not a string counts as missing.
        let found = string(step.db, key).unwrap_or_default();
        step.out.maybe(found);
    }
    Ok(())
}

fn mset(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    mset_all(step, args, "mset")?;
    step.out.ok();
    Ok(())
}

fn msetnx(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity("msetnx"));
    }
    let any_exists = args[1..].chunks_exact(2).any(|pair| step.db.peek(pair[0]).is_some());
    if !any_exists {
        mset_all(step, args, "msetnx")?;
    }
    step.out.flag(!any_exists);
    Ok(())
}

fn mset_all(step: &mut Step<'_, '_>, args: &[&[u8]], name: &str) -> Done {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity(name));
    }
    // All keys are set, or none.
    step.db.reserve_all(args[1..].chunks_exact(2).map(|pair| (pair[0], pair[1].len())))?;
    args[1..].chunks_exact(2).try_for_each(|pair| put(step, pair[0], pair[1], Expires::Never))
}

fn append(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let before = string(step.db, args[1])?.unwrap_or_default();
    if before.len() + args[2].len() > VALUE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let length = before.len();
    step.db.overwrite(args[1], length, args[2])?;
    step.out.len(length + args[2].len());
    Ok(())
}

fn strlen(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = string(step.db, args[1])?.map_or(0, <[u8]>::len);
    step.out.len(length);
    Ok(())
}

fn incr(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    add(step, args[1], 1)
}

fn decr(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    add(step, args[1], -1)
}

fn incrby(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    add(step, args[1], parse_int(args[2])?)
}

fn decrby(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let delta = parse_int(args[2])?.checked_neg().ok_or(Fail::new("ERR decrement would overflow"))?;
    add(step, args[1], delta)
}

fn add(step: &mut Step<'_, '_>, key: &[u8], delta: i64) -> Done {
    let added = step.db.add(key, delta);
    let number = added.or_else(|error| check_kind(step.db, key, Kind::Bytes).and(Err(error.into())))?;
    step.out.int(number);
    Ok(())
}

fn incrbyfloat(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let before = match string(step.db, args[1])? {
        Some(text) => LongDouble::parse(text).ok_or(NOT_FLOAT)?,
        None => LongDouble::zero(),
    };
    let sum = before.plus(LongDouble::parse(args[2]).ok_or(NOT_FLOAT)?);
    let text = sum.ok_or(Fail::new("ERR increment would produce NaN or Infinity"))?.to_string();
    put(step, args[1], text.as_bytes(), Expires::Kept)?;
    step.out.bulk(text.as_bytes());
    Ok(())
}

fn setrange(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let key = args[1];
    let part = args[3];
    let offset = parse_int(args[2])?;
    let offset = usize::try_from(offset).or(Err(Fail::new("ERR offset is out of range")))?;
    let before = string(step.db, key)?.unwrap_or_default();
    if part.is_empty() {
        step.out.len(before.len());
        return Ok(());
    }
    if offset.saturating_add(part.len()) > VALUE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let length = before.len().max(offset + part.len());
    step.db.overwrite(key, offset, part)?;
    step.out.len(length);
    Ok(())
}

fn getrange(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let start = parse_int(args[2])?;
    let stop = parse_int(args[3])?;
    let value = string(step.db, args[1])?.unwrap_or_default();
    let span = match (start, stop) {
        // A reversed range of two negative indexes is empty, even if both would be clipped to the same index.
        (start, stop) if start < 0 && stop < 0 && start > stop => 0..0,
        _ => engine::cache::structures::span(start, stop.max(-(value.len() as i64)), value.len()),
    };
    step.out.bulk(&value[span]);
    Ok(())
}

#[derive(Default)]
struct LcsOptions {
    is_length: bool,
    is_indexes: bool,
    is_with_lengths: bool,
    length_min: usize,
}

fn lcs(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    // As in Redis, both keys are looked up before one is refused.
    let are_strings = [args[1], args[2]].map(|key| string(step.db, key).is_ok());
    if are_strings.contains(&false) {
        return Err(Fail::new("ERR The specified keys must contain string values"));
    }
    let mut options = LcsOptions::default();
    let mut at = 3;
    while let Some(arg) = args.get(at) {
        match arg {
            arg if is(arg, "IDX") => options.is_indexes = true,
            arg if is(arg, "LEN") => options.is_length = true,
            arg if is(arg, "WITHMATCHLEN") => options.is_with_lengths = true,
            arg if is(arg, "MINMATCHLEN") => {
                options.length_min = usize::try_from(parse_int(after(args, &mut at)?)?).unwrap_or_default();
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    if options.is_length && options.is_indexes {
        return Err(Fail::new("ERR If you want both the length and indexes, please just use IDX."));
    }
    step.db.hide_misses();
    let a = string(step.db, args[1])?.unwrap_or_default().to_vec();
    let b = string(step.db, args[2])?.unwrap_or_default();
    if (a.len() + 1).saturating_mul(b.len() + 1) > LCS_CELLS_MAX {
        return Err(Fail::new(format!(
            "ERR the strings are too long: their lengths multiplied are at most {LCS_CELLS_MAX}"
        )));
    }
    let b = b.to_vec();
    step.admits_up_to((a.len() * b.len()) as u64 / LCS_CELLS_COUNTED, u64::MAX, "cells")?;
    let (common, ranges) = longest_common(&a, &b);
    if options.is_length {
        step.out.len(common.len());
    } else if options.is_indexes {
        write_ranges(step, &ranges, common.len(), &options);
    } else {
        step.out.bulk(&common);
    }
    Ok(())
}

/// A common run of bytes: its first and last position in each string.
type Match = ((usize, usize), (usize, usize));

/// Returns the longest common subsequence and its positions, starting from the end.
fn longest_common(a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Match>) {
    let width = b.len() + 1;
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            lengths[i * width + j] = if a[i - 1] == b[j - 1] {
                lengths[(i - 1) * width + j - 1] + 1
            } else {
                lengths[(i - 1) * width + j].max(lengths[i * width + j - 1])
            };
        }
    }
    let mut i = a.len();
    let mut j = b.len();
    let mut common: Vec<u8> = Vec::new();
    let mut ranges: Vec<Match> = Vec::new();
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            common.push(a[i - 1]);
            match ranges.last_mut() {
                Some((in_a, in_b)) if in_a.0 == i && in_b.0 == j => {
                    in_a.0 = i - 1;
                    in_b.0 = j - 1;
                }
                _ => ranges.push(((i - 1, i - 1), (j - 1, j - 1))),
            }
            i -= 1;
            j -= 1;
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    common.reverse();
    (common, ranges)
}

fn write_ranges(step: &mut Step<'_, '_>, ranges: &[Match], length: usize, options: &LcsOptions) {
    let long: Vec<_> = ranges.iter().filter(|(in_a, _)| in_a.1 - in_a.0 + 1 >= options.length_min).collect();
    step.out.map(2);
    step.out.bulk(b"matches");
    step.out.array(long.len());
    for (in_a, in_b) in long {
        step.out.array(2 + usize::from(options.is_with_lengths));
        for (first, last) in [in_a, in_b] {
            step.out.array(2);
            step.out.len(*first);
            step.out.len(*last);
        }
        if options.is_with_lengths {
            step.out.len(in_a.1 - in_a.0 + 1);
        }
    }
    step.out.bulk(b"len");
    step.out.len(length);
}
