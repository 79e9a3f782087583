//! Sorted sets: members in the order of their scores.

use engine::cache::structures::{Edit, Kind, Score, Sorted};

use super::args::{float, is, parse_from, timeout_ms};
use super::combine;
use super::ranges;
use super::sets::{Pick, count_of, counted, parse_count, pick};
use crate::redis::command::{Block, Command, Keys, ONE, Step, change, part, read, write};
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::writer::Writer;

const COUNTED: Keys = Keys::Counted { at: 1, is_first_too: false };
const COUNTED_SECOND: Keys = Keys::Counted { at: 2, is_first_too: false };
const COUNTED_STORE: Keys = Keys::Counted { at: 2, is_first_too: true };
const BEFORE_TIME: Keys = Keys::Range(1, -2, 1);

pub(super) const COMMANDS: &[Command] = &[
    write("ZADD", -4, ONE, zadd, ("1.2.0", "Adds members, or changes their scores")),
    write("ZINCRBY", 4, ONE, zincrby, ("1.2.0", "Adds to the score of a member")),
    write("ZREM", -3, ONE, zrem, ("1.2.0", "Removes members")),
    read("ZCARD", 2, ONE, zcard, ("1.2.0", "Returns the number of members")),
    read("ZSCORE", 3, ONE, zscore, ("1.2.0", "Returns the score of a member")),
    read("ZMSCORE", -3, ONE, zmscore, ("6.2.0", "Returns the scores of several members")),
    read("ZRANK", 3, ONE, zrank, ("2.0.0", "Returns the rank of a member")),
    read("ZREVRANK", 3, ONE, zrevrank, ("2.0.0", "Returns the rank of a member, counted from the highest score")),
    read("ZCOUNT", 4, ONE, ranges::zcount, ("2.0.0", "Counts the members of a range of scores")),
    read("ZLEXCOUNT", 4, ONE, ranges::zlexcount, ("2.8.9", "Counts the members of a range of names")),
    read("ZRANGE", -4, ONE, ranges::zrange, ("1.2.0", "Returns the members of a range of ranks, scores or names")),
    write("ZRANGESTORE", -5, Keys::Range(1, 2, 1), ranges::zrangestore, ("6.2.0", "Stores the members of a range")),
    read(
        "ZREVRANGE",
        -4,
        ONE,
        ranges::zrevrange,
        ("1.2.0", "Returns the members of a range of ranks in reverse order"),
    ),
    read("ZRANGEBYSCORE", -4, ONE, ranges::zrangebyscore, ("1.0.5", "Returns the members of a range of scores")),
    read(
        "ZREVRANGEBYSCORE",
        -4,
        ONE,
        ranges::zrevrangebyscore,
        ("2.2.0", "Returns the members of a range of scores in reverse order"),
    ),
    read("ZRANGEBYLEX", -4, ONE, ranges::zrangebylex, ("2.8.9", "Returns the members of a range of names")),
    read(
        "ZREVRANGEBYLEX",
        -4,
        ONE,
        ranges::zrevrangebylex,
        ("2.8.9", "Returns the members of a range of names in reverse order"),
    ),
    write("ZREMRANGEBYRANK", 4, ONE, ranges::zremrangebyrank, ("2.0.0", "Removes the members of a range of ranks")),
    write("ZREMRANGEBYSCORE", 4, ONE, ranges::zremrangebyscore, ("1.2.0", "Removes the members of a range of scores")),
    write("ZREMRANGEBYLEX", 4, ONE, ranges::zremrangebylex, ("2.8.9", "Removes the members of a range of names")),
    write("ZPOPMIN", -2, ONE, zpopmin, ("5.0.0", "Removes and returns the members with the lowest scores")),
    write("ZPOPMAX", -2, ONE, zpopmax, ("5.0.0", "Removes and returns the members with the highest scores")),
    write("ZMPOP", -4, COUNTED, zmpop, ("7.0.0", "Removes and returns members of the first non-empty sorted set")),
    write("BZPOPMIN", -3, BEFORE_TIME, bzpopmin, ("5.0.0", "ZPOPMIN, blocks until there is a member")),
    write("BZPOPMAX", -3, BEFORE_TIME, bzpopmax, ("5.0.0", "ZPOPMAX, blocks until there is a member")),
    write("BZMPOP", -5, COUNTED_SECOND, bzmpop, ("7.0.0", "ZMPOP, blocks until there is a member")),
    read("ZRANDMEMBER", -2, ONE, zrandmember, ("6.2.0", "Returns random members")),
    read("ZUNION", -3, COUNTED, combine::zunion, ("6.2.0", "Returns the union of sorted sets")),
    read("ZINTER", -3, COUNTED, combine::zinter, ("6.2.0", "Returns the intersection of sorted sets")),
    read(
        "ZDIFF",
        -3,
        COUNTED,
        combine::zdiff,
        ("6.2.0", "Returns the difference between the first sorted set and the others"),
    ),
    read(
        "ZINTERCARD",
        -3,
        COUNTED,
        combine::zintercard,
        ("7.0.0", "Returns the number of members of the intersection of sorted sets"),
    ),
    write("ZUNIONSTORE", -4, COUNTED_STORE, combine::zunionstore, ("2.0.0", "Stores the union of sorted sets")),
    write("ZINTERSTORE", -4, COUNTED_STORE, combine::zinterstore, ("2.0.0", "Stores the intersection of sorted sets")),
    write(
        "ZDIFFSTORE",
        -4,
        COUNTED_STORE,
        combine::zdiffstore,
        ("6.2.0", "Stores the difference between the first sorted set and the others"),
    ),
];

/// Options of ZADD: which members it changes, and its reply.
#[derive(Clone, Copy, Default)]
pub(super) struct AddOptions {
    pub(super) is_new_only: bool,
    pub(super) is_existing_only: bool,
    is_greater_only: bool,
    is_less_only: bool,
    pub(super) counts_changed: bool,
    is_increment: bool,
}

/// Parses the options. Returns them and the position of the first score.
fn add_options(args: &[&[u8]]) -> Done<(AddOptions, usize)> {
    let mut options = AddOptions::default();
    let mut at = 2;
    while let Some(word) = args.get(at) {
        match word {
            word if is(word, "NX") => options.is_new_only = true,
            word if is(word, "XX") => options.is_existing_only = true,
            word if is(word, "GT") => options.is_greater_only = true,
            word if is(word, "LT") => options.is_less_only = true,
            word if is(word, "CH") => options.counts_changed = true,
            word if is(word, "INCR") => options.is_increment = true,
            _ => break,
        }
        at += 1;
    }
    let pairs = args.len() - at;
    if pairs == 0 || !pairs.is_multiple_of(2) {
        return Err(SYNTAX);
    }
    if options.is_new_only && options.is_existing_only {
        return Err(Fail::new("ERR XX and NX options at the same time are not compatible"));
    }
    let compares = [options.is_greater_only, options.is_less_only, options.is_new_only];
    if compares.iter().filter(|is_set| **is_set).count() > 1 {
        return Err(Fail::new("ERR GT, LT, and/or NX options at the same time are not compatible"));
    }
    if options.is_increment && pairs > 2 {
        return Err(Fail::new("ERR INCR option supports a single increment-element pair"));
    }
    Ok((options, at))
}

#[derive(Default)]
pub(super) struct Added {
    pub(super) new: usize,
    pub(super) changed: usize,
    /// Score of the last member, unless that was left unchanged.
    score: Option<Score>,
    is_nan: bool,
}

impl AddOptions {
    fn add(self, sorted: &mut Edit<'_, Sorted>, member: &[u8], score: f64, added: &mut Added) {
        let before = sorted.score(member);
        added.score = None;
        let is_left = match before {
            None => self.is_existing_only,
            Some(_) => self.is_new_only,
        };
        if is_left {
            return;
        }
        let wanted = if self.is_increment { before.map_or(0.0, Score::get) + score } else { score };
        let Some(wanted) = Score::new(wanted) else {
            added.is_nan = true;
            return;
        };
        let is_refused = before
            .is_some_and(|before| self.is_greater_only && wanted <= before || self.is_less_only && wanted >= before);
        if is_refused {
            return;
        }
        added.score = Some(wanted);
        if before != Some(wanted) {
            sorted.set(member, wanted);
            added.new += usize::from(before.is_none());
            added.changed += 1;
        }
    }
}

fn zadd(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let (options, at) = add_options(args)?;
    let mut pairs = Vec::with_capacity((args.len() - at) / 2);
    for pair in args[at..].chunks_exact(2) {
        pairs.push((float(pair[0])?, pair[1]));
    }
    let added = add(step, args[1], options, &pairs)?;
    if options.is_increment {
        match added.score {
            Some(score) => step.out.double(score.get()),
            None => step.out.null(),
        }
    } else {
        step.out.len(if options.counts_changed { added.changed } else { added.new });
    }
    Ok(())
}

pub(super) fn add(step: &mut Step<'_, '_>, key: &[u8], options: AddOptions, pairs: &[(f64, &[u8])]) -> Done<Added> {
    let bytes = pairs.iter().map(|(_, member)| member.len()).sum();
    let added = change::<Sorted, _>(step.db, key, (pairs.len(), bytes), |sorted| {
        let mut added = Added::default();
        for (score, member) in pairs {
            options.add(sorted, member, *score, &mut added);
            if added.is_nan {
                break;
            }
        }
        (added.changed > 0, added)
    })?;
    if added.is_nan {
        return Err(Fail::new("ERR resulting score is not a number (NaN)"));
    }
    Ok(added)
}

fn zincrby(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let options = AddOptions { is_increment: true, ..AddOptions::default() };
    let added = add(step, args[1], options, &[(float(args[2])?, args[3])])?;
    step.out.double(added.score.map_or(0.0, Score::get));
    Ok(())
}

fn zrem(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let gone = change::<Sorted, _>(step.db, args[1], (0, 0), |sorted| {
        let gone = args[2..].iter().filter(|member| sorted.remove(member).is_some()).count();
        (gone > 0, gone)
    })?;
    step.out.len(gone);
    Ok(())
}

fn zcard(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = part::<Sorted>(step.db, args[1])?.map_or(0, Sorted::len);
    step.out.len(length);
    Ok(())
}

fn write_score(out: &mut Writer, score: Option<Score>) {
    match score {
        Some(score) => out.double(score.get()),
        None => out.null(),
    }
}

fn zscore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let score = part::<Sorted>(step.db, args[1])?.and_then(|sorted| sorted.score(args[2]));
    write_score(step.out, score);
    Ok(())
}

fn zmscore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let sorted = part::<Sorted>(step.db, args[1])?;
    step.out.array(args.len() - 2);
    args[2..].iter().for_each(|member| write_score(step.out, sorted.and_then(|sorted| sorted.score(member))));
    Ok(())
}

fn zrank(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    rank(step, args, false)
}

fn zrevrank(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    rank(step, args, true)
}

fn rank(step: &mut Step<'_, '_>, args: &[&[u8]], is_backwards: bool) -> Done {
    let sorted = part::<Sorted>(step.db, args[1])?;
    match sorted.and_then(|sorted| Some((sorted.rank(args[2])?, sorted.len()))) {
        Some((rank, length)) => step.out.len(if is_backwards { length - 1 - rank } else { rank }),
        None => step.out.null(),
    }
    Ok(())
}

pub(super) type Members = Vec<(Vec<u8>, Score)>;

fn pop_some(step: &mut Step<'_, '_>, key: &[u8], is_max: bool, count: usize) -> Done<Members> {
    step.set_operation(if is_max { "ZPOPMAX" } else { "ZPOPMIN" });
    change::<Sorted, _>(step.db, key, (0, 0), |sorted| {
        let length = sorted.len();
        let count = count.min(sorted.len());
        let range = if is_max { length - count..length } else { 0..count };
        let mut members: Members = sorted.range(range).map(|(member, score)| (member.to_vec(), score)).collect();
        if is_max {
            members.reverse();
        }
        for (member, _) in &members {
            sorted.remove(member);
        }
        (!members.is_empty(), members)
    })
}

fn zpopmin(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop(step, args, false)
}

fn zpopmax(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop(step, args, true)
}

fn pop(step: &mut Step<'_, '_>, args: &[&[u8]], is_max: bool) -> Done {
    let count = match args[2..] {
        [] => None,
        [count] => Some(parse_from(count, 0, "ERR value is out of range, must be positive")?),
        _ => return Err(SYNTAX),
    };
    let members = pop_some(step, args[1], is_max, count.map_or(1, |count| count as usize))?;
    // Pairs are nested only if a count was given.
    if count.is_some() {
        write_pairs(step.out, &members);
        return Ok(());
    }
    step.out.array(members.len() * 2);
    for (member, score) in &members {
        step.out.bulk(member);
        step.out.double(score.get());
    }
    Ok(())
}

/// Writes members with their scores: as pairs in RESP3, as a flat array in RESP2.
pub(super) fn write_pairs(out: &mut Writer, members: &Members) {
    begin_pairs(out, members.len());
    members.iter().for_each(|(member, score)| write_pair(out, member, *score));
}

pub(super) fn begin_pairs(out: &mut Writer, count: usize) {
    out.array(if out.is_resp3 { count } else { count * 2 });
}

pub(super) fn write_pair(out: &mut Writer, member: &[u8], score: Score) {
    if out.is_resp3 {
        out.array(2);
    }
    out.bulk(member);
    out.double(score.get());
}

fn pop_or_wait(step: &mut Step<'_, '_>, args: &[&[u8]], is_max: bool) -> Done {
    let timeout_ms = timeout_ms(args[args.len() - 1])?;
    let keys = &args[1..args.len() - 1];
    for key in keys {
        if step.skips(key) {
            continue;
        }
        if let [(member, score)] = &pop_some(step, key, is_max, 1)?[..] {
            step.out.array(3);
            step.out.bulk(key);
            step.out.bulk(member);
            step.out.double(score.get());
            return Ok(());
        }
    }
    step.block = Some(Block { timeout_ms, is_null_array: true, kind: Kind::Sorted, sources: keys.len() });
    Ok(())
}

fn bzpopmin(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_or_wait(step, args, false)
}

fn bzpopmax(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_or_wait(step, args, true)
}

fn pop_first(step: &mut Step<'_, '_>, args: &[&[u8]], timeout: Option<&[u8]>) -> Done {
    let (keys, rest) = counted(args, if timeout.is_some() { 2 } else { 1 })?;
    let is_max = |word: &[u8]| match word {
        word if is(word, "MIN") => Ok(false),
        word if is(word, "MAX") => Ok(true),
        _ => Err(SYNTAX),
    };
    let (from, options) = rest.split_first().ok_or(SYNTAX)?;
    let is_max = is_max(from)?;
    let count = count_of(options)?;
    let timeout_ms = timeout.map(timeout_ms).transpose()?;
    for key in keys {
        if step.skips(key) {
            continue;
        }
        let members = pop_some(step, key, is_max, count)?;
        if !members.is_empty() {
            step.out.array(2);
            step.out.bulk(key);
            step.out.array(members.len());
            for (member, score) in &members {
                step.out.array(2);
                step.out.bulk(member);
                step.out.double(score.get());
            }
            return Ok(());
        }
    }
    match timeout_ms {
        Some(timeout_ms) => {
            step.block = Some(Block { timeout_ms, is_null_array: true, kind: Kind::Sorted, sources: keys.len() });
        }
        None => step.out.null_array(),
    }
    Ok(())
}

fn zmpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_first(step, args, None)
}

fn bzmpop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    pop_first(step, args, Some(args[1]))
}

fn zrandmember(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = args.get(2).map(|count| parse_count(count)).transpose()?;
    let has_scores = match args.get(3..) {
        None | Some([]) => false,
        Some([word]) if is(word, "WITHSCORES") => true,
        Some(_) => return Err(SYNTAX),
    };
    let is_too_many = |count: i64| has_scores && count.unsigned_abs() > i64::MAX as u64 / 2;
    if count.is_some_and(is_too_many) {
        return Err(Fail::new("ERR value is out of range"));
    }
    let sorted = part::<Sorted>(step.db, args[1])?;
    let places = match pick(sorted.map_or(0, Sorted::len), count)? {
        Pick::One(place) => {
            step.out.maybe(place.and_then(|place| sorted?.at(place)).map(|(member, _)| member));
            return Ok(());
        }
        Pick::Some(places) => places,
    };
    let members: Vec<_> = places.iter().filter_map(|place| sorted?.at(*place)).collect();
    if has_scores {
        let owned: Members = members.iter().map(|(member, score)| (member.to_vec(), *score)).collect();
        write_pairs(step.out, &owned);
    } else {
        step.out.array(members.len());
        members.iter().for_each(|(member, _)| step.out.bulk(member));
    }
    Ok(())
}
