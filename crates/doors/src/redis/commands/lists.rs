//! Lists, and the clients that block on their next item.

use engine::cache::structures::{End, Kind, List, place, span};

use super::args::{after, is, parse_from, parse_int, timeout_ms};
use super::sets::{count_of, counted};
use crate::redis::command::{
    Block, Command, Keys, ONE, Step, TWO, bytes_in, change, check_kind, part, read, write, wrong_arity,
};
use crate::redis::errors::{Done, Fail, NO_SUCH_KEY, OUT_OF_RANGE, SYNTAX};
use crate::redis::events::operations;

const COUNTED: Keys = Keys::Counted { at: 1, is_first_too: false };
const COUNTED_SECOND: Keys = Keys::Counted { at: 2, is_first_too: false };
/// All arguments except the last one, which is a timeout.
const BEFORE_TIME: Keys = Keys::Range(1, -2, 1);

pub(super) const COMMANDS: &[Command] = &[
    write("LPUSH", -3, ONE, lpush, ("1.0.0", "Inserts items at the head of a list")),
    write("RPUSH", -3, ONE, rpush, ("1.0.0", "Appends items to a list")),
    write("LPUSHX", -3, ONE, lpushx, ("2.2.0", "Inserts items at the head of an existing list")),
    write("RPUSHX", -3, ONE, rpushx, ("2.2.0", "Appends items to an existing list")),
    write("LPOP", -2, ONE, lpop, ("1.0.0", "Removes and returns the first items of a list")),
    write("RPOP", -2, ONE, rpop, ("1.0.0", "Removes and returns the last items of a list")),
    read("LLEN", 2, ONE, llen, ("1.0.0", "Returns the length of a list")),
    read("LRANGE", 4, ONE, lrange, ("1.0.0", "Returns the items of a range of positions")),
    read("LINDEX", 3, ONE, lindex, ("1.0.0", "Returns the item at a position")),
    write("LSET", 4, ONE, lset, ("1.0.0", "Sets the item at a position")),
    write("LINSERT", 5, ONE, linsert, ("2.2.0", "Inserts an item before or after another one")),
    write("LREM", 4, ONE, lrem, ("1.0.0", "Removes items that are equal to a value")),
    write("LTRIM", 4, ONE, ltrim, ("1.0.0", "Removes all items outside of a range of positions")),
    read("LPOS", -3, ONE, lpos, ("6.0.6", "Returns the positions of items that are equal to a value")),
    write("RPOPLPUSH", 3, TWO, rpoplpush, ("1.2.0", "Moves the last item to the head of another list")),
    write("LMOVE", 5, TWO, lmove, ("6.2.0", "Moves an item from one end of a list to an end of another")),
    write("LMPOP", -4, COUNTED, lmpop, ("7.0.0", "Removes and returns items of the first non-empty list")),
    write("BLPOP", -3, BEFORE_TIME, blpop, ("2.0.0", "Removes and returns the first item of a list, or blocks")),
    write("BRPOP", -3, BEFORE_TIME, brpop, ("2.0.0", "Removes and returns the last item of a list, or blocks")),
    write("BRPOPLPUSH", 4, TWO, brpoplpush, ("2.2.0", "RPOPLPUSH, blocks until there is an item")),
    write("BLMOVE", 6, TWO, blmove, ("6.2.0", "LMOVE, blocks until there is an item")),
    write("BLMPOP", -5, COUNTED_SECOND, blmpop, ("7.0.0", "LMPOP, blocks until there is an item")),
];

fn push(step: &mut Step<'_, '_>, args: &[&[u8]], end: End, is_made: bool) -> Done {
    let items = &args[2..];
    if !is_made && !check_kind(step.db, args[1], Kind::List)? {
        step.out.int(0);
        return Ok(());
    }
    let length = change::<List, _>(step.db, args[1], (items.len(), bytes_in(items)), |list| {
        items.iter().for_each(|item| list.push(end, item));
        (true, list.len())
    })?;
    step.out.len(length);
    Ok(())
}

fn lpush(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    push(step, args, End::Front, true)
}

fn rpush(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    push(step, args, End::Back, true)
}

fn lpushx(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    push(step, args, End::Front, false)
}

fn rpushx(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    push(step, args, End::Back, false)
}

/// Returns the operation of taking an item from an end, whatever the command is.
fn pop_of(end: End) -> &'static str {
    if end == End::Front { "LPOP" } else { "RPOP" }
}

fn pop_one(step: &mut Step<'_, '_>, key: &[u8], end: End) -> Done<Option<Box<[u8]>>> {
    step.set_operation(pop_of(end));
    change::<List, _>(step.db, key, (0, 0), |list| {
        let item = list.pop(end);
        (item.is_some(), item)
    })
}

fn pop_some(step: &mut Step<'_, '_>, key: &[u8], end: End, max: usize) -> Done<Vec<Box<[u8]>>> {
    step.set_operation(pop_of(end));
    change::<List, _>(step.db, key, (0, 0), |list| {
        let items: Vec<_> = (0..max.min(list.len())).filter_map(|_| list.pop(end)).collect();
        (!items.is_empty(), items)
    })
}

fn pop(step: &mut Step<'_, '_>, args: &[&[u8]], end: End, name: &str) -> Done {
    let count = match args[2..] {
        [] => None,
        [count] => Some(parse_from(count, 0, "ERR value is out of range, must be positive")?),
        _ => return Err(wrong_arity(name)),
    };
    let Some(count) = count else {
        let item = pop_one(step, args[1], end)?;
        step.out.maybe(item.as_deref());
        return Ok(());
    };
    if !check_kind(step.db, args[1], Kind::List)? {
        step.out.null_array();
        return Ok(());
    }
    let items = pop_some(step, args[1], end, usize::try_from(count).unwrap_or(usize::MAX))?;
    step.out.array(items.len());
    items.iter().for_each(|item| step.out.bulk(item));
    Ok(())
}

fn lpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop(step, args, End::Front, "lpop")
}

fn rpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop(step, args, End::Back, "rpop")
}

fn llen(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = part::<List>(step.db, args[1])?.map_or(0, List::len);
    step.out.len(length);
    Ok(())
}

fn lrange(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let start = parse_int(args[2])?;
    let stop = parse_int(args[3])?;
    let Some(list) = part::<List>(step.db, args[1])? else {
        step.out.array(0);
        return Ok(());
    };
    let items = list.range(span(start, stop, list.len()));
    step.out.array(items.len());
    items.for_each(|item| step.out.bulk(item));
    Ok(())
}

fn lindex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let Some(list) = part::<List>(step.db, args[1])? else {
        step.out.null();
        return Ok(());
    };
    let index = parse_int(args[2])?;
    step.out.maybe(place(index, list.len()).and_then(|place| list.get(place)));
    Ok(())
}

fn lset(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = part::<List>(step.db, args[1])?.ok_or(NO_SUCH_KEY)?.len();
    let at = place(parse_int(args[2])?, length).ok_or(OUT_OF_RANGE)?;
    change::<List, _>(step.db, args[1], (0, args[3].len()), |list| (true, list.set(at, args[3])))?;
    step.out.ok();
    Ok(())
}

fn linsert(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let behind = match args[2] {
        word if is(word, "BEFORE") => 0,
        word if is(word, "AFTER") => 1,
        _ => return Err(SYNTAX),
    };
    if !check_kind(step.db, args[1], Kind::List)? {
        step.out.int(0);
        return Ok(());
    }
    let length = change::<List, _>(step.db, args[1], (1, args[4].len()), |list| match list.position(args[3]) {
        Some(at) => {
            list.insert(at + behind, args[4]);
            (true, list.len() as i64)
        }
        None => (false, -1),
    })?;
    step.out.int(length);
    Ok(())
}

fn lrem(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = parse_int(args[2])?;
    let (from, max) = if count < 0 { (End::Back, count.unsigned_abs()) } else { (End::Front, count as u64) };
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let gone = change::<List, _>(step.db, args[1], (0, 0), |list| {
        let gone = list.remove(args[3], from, max);
        (gone > 0, gone)
    })?;
    step.out.len(gone);
    Ok(())
}

fn ltrim(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let start = parse_int(args[2])?;
    let stop = parse_int(args[3])?;
    change::<List, _>(step.db, args[1], (0, 0), |list| {
        let range = span(start, stop, list.len());
        let is_changed = range != (0..list.len());
        if is_changed {
            list.keep(range);
        }
        (is_changed, ())
    })?;
    step.out.ok();
    Ok(())
}

/// Arguments of LPOS: rank of the first match, direction, number of matches, and number of compared items.
struct Positions {
    rank: usize,
    is_backwards: bool,
    count: Option<usize>,
    max: usize,
}

fn positions(args: &[&[u8]]) -> Done<Positions> {
    let mut wanted = Positions { rank: 1, is_backwards: false, count: None, max: 0 };
    let mut at = 3;
    while let Some(word) = args.get(at) {
        let value = after(args, &mut at)?;
        if is(word, "RANK") {
            let rank = parse_int(value)?;
            if rank == 0 {
                return Err(Fail::new(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                     negative to start from the end of the list",
                ));
            }
            wanted.rank = rank.unsigned_abs() as usize;
            wanted.is_backwards = rank < 0;
        } else if is(word, "COUNT") {
            wanted.count = Some(parse_from(value, 0, "ERR COUNT can't be negative")? as usize);
        } else if is(word, "MAXLEN") {
            wanted.max = parse_from(value, 0, "ERR MAXLEN can't be negative")? as usize;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    Ok(wanted)
}

fn lpos(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let wanted = positions(args)?;
    let mut found = Vec::new();
    if let Some(list) = part::<List>(step.db, args[1])? {
        let looked = if wanted.max == 0 { list.len() } else { wanted.max.min(list.len()) };
        let range = if wanted.is_backwards { list.len() - looked..list.len() } else { 0..looked };
        let is_equal = |place: &usize| list.get(*place) == Some(args[2]);
        let count = match wanted.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count,
        };
        found = if wanted.is_backwards {
            range.rev().filter(is_equal).skip(wanted.rank - 1).take(count).collect()
        } else {
            range.filter(is_equal).skip(wanted.rank - 1).take(count).collect()
        };
    }
    match wanted.count {
        Some(_) => {
            step.out.array(found.len());
            found.iter().for_each(|place| step.out.len(*place));
        }
        None => match found.first() {
            Some(place) => step.out.len(*place),
            None => step.out.null(),
        },
    }
    Ok(())
}

fn end(word: &[u8]) -> Done<End> {
    match word {
        word if is(word, "LEFT") => Ok(End::Front),
        word if is(word, "RIGHT") => Ok(End::Back),
        _ => Err(SYNTAX),
    }
}

/// Moves an item. Returns `true` if there was one.
fn move_one(step: &mut Step<'_, '_>, keys: [&[u8]; 2], ends: [End; 2]) -> Done<bool> {
    let [from, to] = keys;
    let Some(list) = part::<List>(step.db, from)? else {
        return Ok(false);
    };
    let item = match ends[0] {
        End::Front => list.get(0),
        End::Back => list.get(list.len() - 1),
    };
    let bytes = item.map_or(0, <[u8]>::len);
    check_kind(step.db, to, Kind::List)?;
    // The item is not taken before there is memory for it.
    step.db.reserve(to, (to.len() + bytes) as u64 + 512)?;
    if from == to {
        step.set_operation(operations::MOVES[usize::from(ends[0] == End::Back)][usize::from(ends[1] == End::Back)]);
        let item = change::<List, _>(step.db, from, (0, 0), |list| {
            let item = list.pop(ends[0]);
            if let Some(item) = &item {
                list.push(ends[1], item);
            }
            (item.is_some(), item)
        })?;
        item.iter().for_each(|item| step.out.bulk(item));
        return Ok(item.is_some());
    }
    // The eviction that freed memory may have removed the list itself.
    let Some(item) = pop_one(step, from, ends[0])? else {
        return Ok(false);
    };
    step.set_operation(if ends[1] == End::Front { "LPUSH" } else { "RPUSH" });
    change::<List, _>(step.db, to, (1, bytes), |list| (true, list.push(ends[1], &item)))?;
    step.out.bulk(&item);
    Ok(true)
}

fn move_or_null(step: &mut Step<'_, '_>, args: &[&[u8]], ends: [End; 2]) -> Done {
    if !move_one(step, [args[1], args[2]], ends)? {
        step.out.null();
    }
    Ok(())
}

fn rpoplpush(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    move_or_null(step, args, [End::Back, End::Front])
}

fn lmove(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    move_or_null(step, args, [end(args[3])?, end(args[4])?])
}

fn move_or_wait(step: &mut Step<'_, '_>, args: &[&[u8]], ends: [End; 2], timeout: &[u8]) -> Done {
    let timeout_ms = timeout_ms(timeout)?;
    if step.skips(args[1]) || !move_one(step, [args[1], args[2]], ends)? {
        step.block = Some(Block { timeout_ms, is_null_array: false, kind: Kind::List, sources: 1 });
    }
    Ok(())
}

fn brpoplpush(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    move_or_wait(step, args, [End::Back, End::Front], args[3])
}

fn blmove(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    move_or_wait(step, args, [end(args[3])?, end(args[4])?], args[5])
}

fn pop_or_wait(step: &mut Step<'_, '_>, args: &[&[u8]], end: End) -> Done {
    let timeout_ms = timeout_ms(args[args.len() - 1])?;
    let keys = &args[1..args.len() - 1];
    for key in keys {
        if step.skips(key) {
            continue;
        }
        if let Some(item) = pop_one(step, key, end)? {
            step.out.array(2);
            step.out.bulk(key);
            step.out.bulk(&item);
            return Ok(());
        }
    }
    step.block = Some(Block { timeout_ms, is_null_array: true, kind: Kind::List, sources: keys.len() });
    Ok(())
}

fn blpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_or_wait(step, args, End::Front)
}

fn brpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_or_wait(step, args, End::Back)
}

/// Pops items from the first list that has any; the arguments give the end and the count. If all lists are empty and a
/// timeout is given, the command blocks.
fn pop_first(step: &mut Step<'_, '_>, args: &[&[u8]], timeout: Option<&[u8]>) -> Done {
    let (keys, rest) = counted(args, if timeout.is_some() { 2 } else { 1 })?;
    let (from, options) = rest.split_first().ok_or(SYNTAX)?;
    let from = end(from)?;
    let count = count_of(options)?;
    let timeout_ms = timeout.map(timeout_ms).transpose()?;
    for key in keys {
        if step.skips(key) {
            continue;
        }
        let items = pop_some(step, key, from, count)?;
        if !items.is_empty() {
            step.out.array(2);
            step.out.bulk(key);
            step.out.array(items.len());
            items.iter().for_each(|item| step.out.bulk(item));
            return Ok(());
        }
    }
    match timeout_ms {
        Some(timeout_ms) => {
            step.block = Some(Block { timeout_ms, is_null_array: true, kind: Kind::List, sources: keys.len() });
        }
        None => step.out.null_array(),
    }
    Ok(())
}

fn lmpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_first(step, args, None)
}

fn blmpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_first(step, args, Some(args[1]))
}
