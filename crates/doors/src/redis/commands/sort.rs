//! Sorting of the items of a list, a set or a sorted set.

use std::borrow::Cow;
use std::cmp::Ordering;

use broker::LockedCache;
use engine::cache::Value;
use engine::cache::structures::{End, Hash, List, Part, Structure};
use smallvec::SmallVec;

use super::args::{after, is, parse_int, pattern, weight};
use super::keys::store;
use crate::redis::command::{Command, Keys, Step, read, write};
use crate::redis::errors::{Done, Fail, SYNTAX, WRONG_TYPE};
use crate::redis::writer::ANSWER_BYTES_MAX;

pub(super) const COMMANDS: &[Command] = &[
    write(
        "SORT",
        -2,
        Keys::All,
        sort,
        ("1.0.0", "Sorts the items of a list, a set or a sorted set, and returns or stores them"),
    ),
    read("SORT_RO", -2, Keys::All, sort_ro, ("7.0.0", "Returns the items of a list, a set or a sorted set in order")),
];

/// Maximum number of values that are looked up for one reply.
const FOUND_MAX: usize = 1 << 20;
/// Maximum number of sorted items, each counted once per lookup: sorting is one step, during which others wait.
const SORTED_MAX: u64 = 1 << 18;

fn check_bytes(bytes: usize) -> Done {
    if bytes > ANSWER_BYTES_MAX {
        Err(Fail::new(format!("ERR the items to sort have more than {ANSWER_BYTES_MAX} bytes")))
    } else {
        Ok(())
    }
}

#[derive(Default)]
struct Options<'a> {
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    limit: Option<(i64, i64)>,
    is_descending: bool,
    is_text: bool,
    to: Option<&'a [u8]>,
}

fn options<'a>(args: &[&'a [u8]], may_store: bool) -> Done<Options<'a>> {
    let mut options = Options::default();
    let mut at = 2;
    while let Some(word) = args.get(at) {
        match word {
            word if is(word, "ASC") => options.is_descending = false,
            word if is(word, "DESC") => options.is_descending = true,
            word if is(word, "ALPHA") => options.is_text = true,
            word if is(word, "LIMIT") && at + 2 < args.len() => {
                options.limit = Some((parse_int(args[at + 1])?, parse_int(args[at + 2])?));
                at += 2;
            }
            word if is(word, "BY") => options.by = Some(pattern(after(args, &mut at)?)?),
            word if is(word, "GET") => options.get.push(pattern(after(args, &mut at)?)?),
            word if is(word, "STORE") && may_store => options.to = Some(after(args, &mut at)?),
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(options)
}

/// Returns the keys that are known before any lookup: the sorted one, and the destination.
pub(in crate::redis) fn keys<'a>(args: &[&'a [u8]]) -> SmallVec<[&'a [u8]; 4]> {
    let mut keys = SmallVec::from_slice(&args[1..2]);
    let mut at = 2;
    while let Some(word) = args.get(at) {
        at += match word {
            word if is(word, "LIMIT") => 2,
            word if is(word, "BY") || is(word, "GET") => 1,
            word if is(word, "STORE") && at + 1 < args.len() && is(args[0], "SORT") => {
                keys.truncate(1);
                keys.push(args[at + 1]);
                1
            }
            _ => 0,
        };
        at += 1;
    }
    keys
}

/// Returns `true` if the command reads other keys, which patterns name.
pub(in crate::redis) fn reads_others(args: &[&[u8]]) -> bool {
    args.windows(2)
        .skip(1)
        .any(|pair| (is(pair[0], "BY") && pair[1].contains(&b'*')) || (is(pair[0], "GET") && pair[1] != b"#"))
}

fn sort(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    run(step, args[1], &options(args, true)?)
}

fn sort_ro(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    run(step, args[1], &options(args, false)?)
}

fn run(step: &mut Step<'_, '_>, key: &[u8], options: &Options<'_>) -> Done {
    let length = items_of(step.db, key)?;
    let looked_up = options.get.len() + usize::from(options.by.is_some_and(|by| by.contains(&b'*')));
    step.admits_up_to((length as u64).saturating_mul(1 + looked_up as u64), SORTED_MAX, "items and values")?;
    // The key was looked up before.
    let cause = step.db.cause();
    step.db.hide_misses();
    let (items, is_set) = items(step.db, key)?;
    step.db.set_cause(cause);
    // A pattern without a star is the same for all items, so they are not sorted. A set that is stored is still sorted.
    let is_unsorted = options.by.is_some_and(|by| !by.contains(&b'*'));
    let is_text = options.is_text || is_unsorted;
    let mut sorted = if is_unsorted && !(is_set && options.to.is_some()) {
        items
    } else {
        in_order(step.db, items, options, is_text, is_unsorted)?
    };
    // A list or a sorted set can be reversed; a set has no order.
    if is_unsorted && !is_set && options.is_descending {
        sorted.reverse();
    }
    let sorted = sorted;
    let length = sorted.len() as i64;
    let (offset, count) = options.limit.unwrap_or((0, -1));
    let start = offset.clamp(0, length);
    let end = if count < 0 { length } else { start.saturating_add(count).min(length) };
    let chosen = &sorted[start as usize..end as usize];
    if chosen.len().saturating_mul(options.get.len()) > FOUND_MAX {
        return Err(Fail::new(format!("ERR BY and GET look up at most {FOUND_MAX} values")));
    }
    let mut bytes = 0;
    let mut found: Vec<Option<Vec<u8>>> = Vec::new();
    for item in chosen {
        if options.get.is_empty() {
            found.push(Some(item.clone()))
        } else {
            options.get.iter().for_each(|pattern| found.push(look_up(step.db, pattern, item)))
        }
        let new = found.iter().rev().take(options.get.len().max(1));
        bytes += new.map(|found| found.as_ref().map_or(0, Vec::len)).sum::<usize>();
        check_bytes(bytes)?;
    }
    let Some(to) = options.to else {
        step.out.array(found.len());
        found.iter().for_each(|item| step.out.maybe(item.as_deref()));
        return Ok(());
    };
    let mut list = List::default();
    found.iter().for_each(|item| list.push(End::Back, item.as_deref().unwrap_or_default()));
    let length = list.len();
    store(step, to, Structure::List(list))?;
    step.out.len(length);
    Ok(())
}

/// Returns the number of items.
fn items_of(db: &mut LockedCache<'_>, key: &[u8]) -> Done<usize> {
    match db.peek(key).map(|found| found.value) {
        None => Ok(0),
        Some(Value::Structure(structure)) => Ok(structure.len()),
        Some(Value::Bytes(_)) => Err(WRONG_TYPE),
    }
}

/// Returns all items, and `true` if they have no order.
fn items(db: &mut LockedCache<'_>, key: &[u8]) -> Done<(Vec<Vec<u8>>, bool)> {
    let Some(found) = db.get(key) else {
        return Ok((Vec::new(), false));
    };
    let Value::Structure(structure) = found.value else {
        return Err(WRONG_TYPE);
    };
    match structure {
        Structure::List(list) => Ok((list.range(0..list.len()).map(<[u8]>::to_vec).collect(), false)),
        Structure::Set(set) => Ok((set.iter().map(<[u8]>::to_vec).collect(), true)),
        Structure::Sorted(sorted) => {
            Ok((sorted.range(0..sorted.len()).map(|(item, _)| item.to_vec()).collect(), false))
        }
        Structure::Hash(_) | Structure::Stream(_) => Err(WRONG_TYPE),
    }
}

/// Sort key of an item.
enum Weight {
    Number(f64),
    Text(Option<Vec<u8>>),
}

fn in_order(
    db: &mut LockedCache<'_>,
    items: Vec<Vec<u8>>,
    options: &Options<'_>,
    is_text: bool,
    is_unsorted: bool,
) -> Done<Vec<Vec<u8>>> {
    let mut weighed = Vec::with_capacity(items.len());
    let mut bytes = 0;
    let mut has_others = false;
    for item in items {
        let text = match options.by.filter(|_| !is_unsorted) {
            Some(by) => look_up(db, by, &item).map(Cow::Owned),
            None => Some(Cow::Borrowed(&*item)),
        };
        bytes += text.as_ref().map_or(0, |text| text.len());
        check_bytes(bytes)?;
        let weight = if is_text {
            Weight::Text(text.map(Cow::into_owned))
        } else {
            let number = text.map_or(Some(0.0), |text| weight(&text));
            has_others |= number.is_none();
            Weight::Number(number.unwrap_or_default())
        };
        weighed.push((weight, item));
    }
    // As in Redis, all keys are looked up before the command is refused.
    if has_others {
        return Err(Fail::new("ERR One or more scores can't be converted into double"));
    }
    weighed.sort_by(|(a, one), (b, other)| {
        let order = match (a, b) {
            (Weight::Number(a), Weight::Number(b)) => a.total_cmp(b),
            (Weight::Text(a), Weight::Text(b)) => a.cmp(b),
            _ => Ordering::Equal,
        };
        // Ties are broken by the items themselves, so that the order is deterministic.
        let order =
            if options.by.is_some() && order != Ordering::Equal { order } else { order.then_with(|| one.cmp(other)) };
        if options.is_descending { order.reverse() } else { order }
    });
    Ok(weighed.into_iter().map(|(_, item)| item).collect())
}

/// Returns the value that a pattern leads to: the item itself, the string of a key, or a field of a hash.
fn look_up(db: &mut LockedCache<'_>, pattern: &[u8], item: &[u8]) -> Option<Vec<u8>> {
    if pattern == b"#" {
        return Some(item.to_vec());
    }
    let star = pattern.iter().position(|byte| *byte == b'*')?;
    let arrow = pattern.windows(2).skip(star).position(|two| two == b"->").map(|at| at + star);
    // An arrow with nothing after it is a part of the key.
    let arrow = arrow.filter(|at| at + 2 < pattern.len());
    let end = arrow.unwrap_or(pattern.len());
    let key = [&pattern[..star], item, &pattern[star + 1..end]].concat();
    let found = db.peek(&key)?;
    match (arrow, found.value) {
        (None, Value::Bytes(bytes)) => Some(bytes.to_vec()),
        (Some(arrow), Value::Structure(structure)) => {
            Hash::of(structure)?.get(&pattern[arrow + 2..]).map(<[u8]>::to_vec)
        }
        _ => None,
    }
}
