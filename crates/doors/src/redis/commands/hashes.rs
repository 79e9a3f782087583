//! Hashes: fields with values.

use engine::cache::structures::Hash;

use super::args::{is, parse_int};
use super::sets::{Pick, parse_count, pick};
use super::strings::OVERFLOW;
use crate::redis::command::{Command, ONE, Step, bytes_in, change, part, read, write, wrong_arity};
use crate::redis::errors::{Done, Fail, NOT_FLOAT, SYNTAX};
use crate::redis::long_double::LongDouble;

pub(super) const COMMANDS: &[Command] = &[
    write("HSET", -4, ONE, hset, ("2.0.0", "Sets fields of a hash")),
    write("HMSET", -4, ONE, hmset, ("2.0.0", "Sets fields of a hash: the older name of HSET")),
    write("HSETNX", 4, ONE, hsetnx, ("2.0.0", "Sets a field of a hash if it does not exist")),
    read("HGET", 3, ONE, hget, ("2.0.0", "Returns the value of a field")),
    read("HMGET", -3, ONE, hmget, ("2.0.0", "Returns the values of several fields")),
    read("HGETALL", 2, ONE, hgetall, ("2.0.0", "Returns all fields with their values")),
    read("HKEYS", 2, ONE, hkeys, ("2.0.0", "Returns all fields")),
    read("HVALS", 2, ONE, hvals, ("2.0.0", "Returns the values of all fields")),
    read("HLEN", 2, ONE, hlen, ("2.0.0", "Returns the number of fields")),
    read("HSTRLEN", 3, ONE, hstrlen, ("3.2.0", "Returns the length of a value")),
    read("HEXISTS", 3, ONE, hexists, ("2.0.0", "Returns whether a field exists")),
    write("HDEL", -3, ONE, hdel, ("2.0.0", "Deletes fields")),
    write("HINCRBY", 4, ONE, hincrby, ("2.0.0", "Adds an integer to the value of a field")),
    write("HINCRBYFLOAT", 4, ONE, hincrbyfloat, ("2.6.0", "Adds a decimal number to the value of a field")),
    read("HRANDFIELD", -2, ONE, hrandfield, ("6.2.0", "Returns random fields")),
];

fn set_all(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done<usize> {
    let pairs = &args[2..];
    change::<Hash, _>(step.db, args[1], (pairs.len() / 2, bytes_in(pairs)), |hash| {
        let new = pairs.chunks_exact(2).filter(|pair| hash.set(pair[0], pair[1])).count();
        (true, new)
    })
}

fn hset(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_arity("hset"));
    }
    let new = set_all(step, args)?;
    step.out.len(new);
    Ok(())
}

fn hmset(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_arity("hmset"));
    }
    set_all(step, args)?;
    step.out.ok();
    Ok(())
}

fn hsetnx(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let is_new = change::<Hash, _>(step.db, args[1], (1, bytes_in(&args[2..])), |hash| {
        let is_new = hash.get(args[2]).is_none() && hash.set(args[2], args[3]);
        (is_new, is_new)
    })?;
    step.out.flag(is_new);
    Ok(())
}

fn get<'s>(step: &'s mut Step<'_, '_>, key: &[u8], field: &[u8]) -> Done<Option<&'s [u8]>> {
    Ok(part::<Hash>(step.db, key)?.and_then(|hash| hash.get(field)))
}

fn hget(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let value = part::<Hash>(step.db, args[1])?.and_then(|hash| hash.get(args[2]));
    step.out.maybe(value);
    Ok(())
}

fn hmget(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let hash = part::<Hash>(step.db, args[1])?;
    step.out.array(args.len() - 2);
    args[2..].iter().for_each(|field| step.out.maybe(hash.and_then(|hash| hash.get(field))));
    Ok(())
}

fn hgetall(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let hash = part::<Hash>(step.db, args[1])?;
    step.out.map(hash.map_or(0, Hash::len));
    for (field, value) in hash.iter().flat_map(|hash| hash.iter()) {
        step.out.bulk(field);
        step.out.bulk(value);
    }
    Ok(())
}

fn hkeys(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let hash = part::<Hash>(step.db, args[1])?;
    step.out.array(hash.map_or(0, Hash::len));
    hash.iter().flat_map(|hash| hash.iter()).for_each(|(field, _)| step.out.bulk(field));
    Ok(())
}

fn hvals(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let hash = part::<Hash>(step.db, args[1])?;
    step.out.array(hash.map_or(0, Hash::len));
    hash.iter().flat_map(|hash| hash.iter()).for_each(|(_, value)| step.out.bulk(value));
    Ok(())
}

fn hlen(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = part::<Hash>(step.db, args[1])?.map_or(0, Hash::len);
    step.out.len(length);
    Ok(())
}

fn hstrlen(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = get(step, args[1], args[2])?.map_or(0, <[u8]>::len);
    step.out.len(length);
    Ok(())
}

fn hexists(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let exists = get(step, args[1], args[2])?.is_some();
    step.out.flag(exists);
    Ok(())
}

fn hdel(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let gone = change::<Hash, _>(step.db, args[1], (0, 0), |hash| {
        let gone = args[2..].iter().filter(|field| hash.remove(field).is_some()).count();
        (gone > 0, gone)
    })?;
    step.out.len(gone);
    Ok(())
}

fn hincrby(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let delta = parse_int(args[3])?;
    let before = match get(step, args[1], args[2])? {
        Some(text) => parse_int(text).or(Err(Fail::new("ERR hash value is not an integer")))?,
        None => 0,
    };
    let sum = before.checked_add(delta).ok_or(OVERFLOW)?;
    set_one(step, args, sum.to_string().as_bytes())?;
    step.out.int(sum);
    Ok(())
}

fn hincrbyfloat(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let delta = LongDouble::parse(args[3]).ok_or(NOT_FLOAT)?;
    if !delta.is_finite() {
        return Err(Fail::new("ERR value is NaN or Infinity"));
    }
    let before = match get(step, args[1], args[2])? {
        Some(text) => LongDouble::parse(text).ok_or(Fail::new("ERR hash value is not a float"))?,
        None => LongDouble::zero(),
    };
    let sum = before.plus(delta).ok_or(Fail::new("ERR increment would produce NaN or Infinity"))?;
    let text = sum.to_string();
    set_one(step, args, text.as_bytes())?;
    step.out.bulk(text.as_bytes());
    Ok(())
}

fn set_one(step: &mut Step<'_, '_>, args: &[&[u8]], value: &[u8]) -> Done {
    let room = (1, args[2].len() + value.len());
    change::<Hash, _>(step.db, args[1], room, |hash| {
        hash.set(args[2], value);
        (true, ())
    })
}

fn hrandfield(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = args.get(2).map(|count| parse_count(count)).transpose()?;
    let has_values = match args.get(3..) {
        None | Some([]) => false,
        Some([word]) if is(word, "WITHVALUES") => true,
        Some(_) => return Err(SYNTAX),
    };
    if has_values && count.is_some_and(|count| count.unsigned_abs() > i64::MAX as u64 / 2) {
        return Err(Fail::new("ERR value is out of range"));
    }
    let hash = part::<Hash>(step.db, args[1])?;
    let length = hash.map_or(0, Hash::len);
    let places = match pick(length, count)? {
        Pick::One(place) => {
            step.out.maybe(place.and_then(|place| hash?.at(place)).map(|(field, _)| field));
            return Ok(());
        }
        Pick::Some(places) => places,
    };
    let is_paired = has_values && step.out.is_resp3;
    step.out.array(if has_values && !is_paired { places.len() * 2 } else { places.len() });
    for (field, value) in places.iter().filter_map(|place| hash?.at(*place)) {
        if is_paired {
            step.out.array(2);
        }
        step.out.bulk(field);
        if has_values {
            step.out.bulk(value);
        }
    }
    Ok(())
}
