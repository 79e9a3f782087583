//! Sets: members without an order.

use engine::cache::structures::Set;

use super::args::{after, is, parse_from, parse_int};
use super::combine::{How, Then, of_sets};
use crate::redis::command::{
    Command, EACH, Keys, ONE, Step, TWO, bytes_in, change, check_kind, part, random, read, write,
};
use crate::redis::errors::{Done, Fail, SYNTAX};

pub(super) const COMMANDS: &[Command] = &[
    write("SADD", -3, ONE, sadd, ("1.0.0", "Adds members to a set")),
    write("SREM", -3, ONE, srem, ("1.0.0", "Removes members of a set")),
    read("SISMEMBER", 3, ONE, sismember, ("1.0.0", "Returns whether a set has a member")),
    read("SMISMEMBER", -3, ONE, smismember, ("6.2.0", "Returns for each member whether a set has it")),
    read("SMEMBERS", 2, ONE, smembers, ("1.0.0", "Returns all members of a set")),
    read("SCARD", 2, ONE, scard, ("1.0.0", "Returns the number of members of a set")),
    write("SPOP", -2, ONE, spop, ("1.0.0", "Removes and returns random members of a set")),
    read("SRANDMEMBER", -2, ONE, srandmember, ("1.0.0", "Returns random members of a set")),
    write("SMOVE", 4, TWO, smove, ("1.0.0", "Moves a member to another set")),
    read("SINTER", -2, EACH, sinter, ("1.0.0", "Returns the intersection of sets")),
    read("SUNION", -2, EACH, sunion, ("1.0.0", "Returns the union of sets")),
    read("SDIFF", -2, EACH, sdiff, ("1.0.0", "Returns the difference between the first set and the others")),
    write("SINTERSTORE", -3, EACH, sinterstore, ("1.0.0", "Stores the intersection of sets")),
    write("SUNIONSTORE", -3, EACH, sunionstore, ("1.0.0", "Stores the union of sets")),
    write("SDIFFSTORE", -3, EACH, sdiffstore, ("1.0.0", "Stores the difference between the first set and the others")),
    read(
        "SINTERCARD",
        -3,
        Keys::Counted { at: 1, is_first_too: false },
        sintercard,
        ("7.0.0", "Returns the number of members of the intersection of sets"),
    ),
];

/// Maximum number of random members or fields in a reply that may repeat them.
const RANDOM_MAX: u64 = 1 << 20;

fn sadd(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let members = &args[2..];
    let new = change::<Set, _>(step.db, args[1], (members.len(), bytes_in(members)), |set| {
        let new = members.iter().filter(|member| set.add(member)).count();
        (new > 0, new)
    })?;
    step.out.len(new);
    Ok(())
}

fn srem(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let gone = change::<Set, _>(step.db, args[1], (0, 0), |set| {
        let gone = args[2..].iter().filter(|member| set.remove(member)).count();
        (gone > 0, gone)
    })?;
    step.out.len(gone);
    Ok(())
}

fn sismember(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let is_member = part::<Set>(step.db, args[1])?.is_some_and(|set| set.contains(args[2]));
    step.out.flag(is_member);
    Ok(())
}

fn smismember(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let set = part::<Set>(step.db, args[1])?;
    step.out.array(args.len() - 2);
    args[2..].iter().for_each(|member| step.out.flag(set.is_some_and(|set| set.contains(member))));
    Ok(())
}

fn smembers(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let set = part::<Set>(step.db, args[1])?;
    step.out.set(set.map_or(0, Set::len));
    set.iter().flat_map(|set| set.iter()).for_each(|member| step.out.bulk(member));
    Ok(())
}

fn scard(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let length = part::<Set>(step.db, args[1])?.map_or(0, Set::len);
    step.out.len(length);
    Ok(())
}

/// Parses the number of random members.
pub(super) fn parse_count(arg: &[u8]) -> Done<i64> {
    match parse_int(arg)? {
        i64::MIN => {
            Err(Fail::new("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807"))
        }
        count => Ok(count),
    }
}

/// Randomly chosen positions.
pub(super) enum Pick {
    /// A single position, if there is any.
    One(Option<usize>),
    Some(Vec<usize>),
}

/// Chooses one position without a count, that many different ones with a positive count, or that many with repetitions
/// with a negative count.
pub(super) fn pick(length: usize, count: Option<i64>) -> Done<Pick> {
    let any = || (random() % length.max(1) as u64) as usize;
    let Some(count) = count else {
        return Ok(Pick::One((length > 0).then(any)));
    };
    if length == 0 {
        return Ok(Pick::Some(Vec::new()));
    }
    if count < 0 {
        let count = count.unsigned_abs();
        if count > RANDOM_MAX {
            return Err(Fail::new(format!(
                "ERR value is out of range, at most {RANDOM_MAX} random members are returned"
            )));
        }
        return Ok(Pick::Some((0..count).map(|_| any()).collect()));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count < length / 4 {
        let mut chosen = std::collections::HashSet::with_capacity(count);
        while chosen.len() < count {
            chosen.insert(any());
        }
        return Ok(Pick::Some(chosen.into_iter().collect()));
    }
    let mut places: Vec<usize> = (0..length).collect();
    if count < length {
        for at in 0..count {
            let other = at + (random() % (length - at) as u64) as usize;
            places.swap(at, other);
        }
        places.truncate(count);
    }
    Ok(Pick::Some(places))
}

fn spop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let wrong = "ERR value is out of range, must be positive";
    let count = match args[2..] {
        [] => None,
        [count] => Some(parse_from(count, 0, wrong)?),
        _ => return Err(SYNTAX),
    };
    let length = part::<Set>(step.db, args[1])?.map_or(0, Set::len);
    let picked = pick(length, count)?;
    let places = match &picked {
        Pick::One(place) => place.iter().copied().collect(),
        Pick::Some(places) => places.clone(),
    };
    let members = change::<Set, _>(step.db, args[1], (0, 0), |set| {
        let members: Vec<Vec<u8>> = places.iter().filter_map(|place| set.at(*place)).map(<[u8]>::to_vec).collect();
        let gone = members.iter().filter(|member| set.remove(member)).count();
        (gone > 0, members)
    })?;
    match picked {
        Pick::One(_) => step.out.maybe(members.first().map(|member| &**member)),
        Pick::Some(_) => {
            step.out.set(members.len());
            members.iter().for_each(|member| step.out.bulk(member));
        }
    }
    Ok(())
}

fn srandmember(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let count = match args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(SYNTAX),
    };
    let set = part::<Set>(step.db, args[1])?;
    match pick(set.map_or(0, Set::len), count)? {
        Pick::One(place) => step.out.maybe(place.and_then(|place| set?.at(place))),
        Pick::Some(places) => {
            step.out.array(places.len());
            places.iter().filter_map(|place| set?.at(*place)).for_each(|member| step.out.bulk(member));
        }
    }
    Ok(())
}

fn smove(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let from = args[1];
    let to = args[2];
    let member = args[3];
    let is_member = match part::<Set>(step.db, from)? {
        Some(set) => set.contains(member),
        None => {
            step.out.flag(false);
            return Ok(());
        }
    };
    check_kind(step.db, to, engine::cache::structures::Kind::Set)?;
    if is_member && from != to {
        step.db.reserve(to, (to.len() + member.len()) as u64 + 512)?;
        step.set_operation("SREM");
        // The eviction that freed memory may have removed the set itself.
        let is_taken = change::<Set, _>(step.db, from, (0, 0), |set| {
            let is_taken = set.remove(member);
            (is_taken, is_taken)
        })?;
        if !is_taken {
            step.out.flag(false);
            return Ok(());
        }
        step.set_operation("SADD");
        change::<Set, _>(step.db, to, (1, member.len()), |set| {
            let is_new = set.add(member);
            (is_new, ())
        })?;
    }
    step.out.flag(is_member);
    Ok(())
}

fn answer(step: &mut Step<'_, '_>, keys: &[&[u8]], how: How) -> Done {
    of_sets(step, keys, how, Then::Members)
}

fn keep(step: &mut Step<'_, '_>, args: &[&[u8]], how: How) -> Done {
    of_sets(step, &args[2..], how, Then::Keep(args[1].into()))
}

fn sinter(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    answer(step, &args[1..], How::Inter)
}

fn sunion(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    answer(step, &args[1..], How::Union)
}

fn sdiff(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    answer(step, &args[1..], How::Diff)
}

fn sinterstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    keep(step, args, How::Inter)
}

fn sunionstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    keep(step, args, How::Union)
}

fn sdiffstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    keep(step, args, How::Diff)
}

/// Keys, and the arguments after them.
pub(in crate::redis) type Split<'a, 'b> = (&'b [&'a [u8]], &'b [&'a [u8]]);

/// Returns the keys whose number is in the argument at `at`, and the arguments after them.
pub(super) fn counted<'a, 'b>(args: &'b [&'a [u8]], at: usize) -> Done<Split<'a, 'b>> {
    let count = parse_from(args[at], 1, "ERR numkeys should be greater than 0")?;
    let rest = &args[at + 1..];
    match usize::try_from(count).ok().and_then(|count| rest.split_at_checked(count)) {
        Some(split) => Ok(split),
        None => Err(SYNTAX),
    }
}

/// Returns the value of the option COUNT; 1 by default.
pub(super) fn count_of(options: &[&[u8]]) -> Done<usize> {
    let mut count = None;
    let mut at = 0;
    while let Some(word) = options.get(at) {
        if !is(word, "COUNT") || count.is_some() {
            return Err(SYNTAX);
        }
        count = Some(parse_from(after(options, &mut at)?, 1, "ERR count should be greater than 0")?);
        at += 1;
    }
    Ok(usize::try_from(count.unwrap_or(1)).unwrap_or(usize::MAX))
}

/// Returns the value of the option LIMIT, the maximum count.
pub(super) fn limit(options: &[&[u8]]) -> Done<usize> {
    let mut limit = 0;
    let mut at = 0;
    while let Some(word) = options.get(at) {
        if !is(word, "LIMIT") {
            return Err(SYNTAX);
        }
        limit = parse_from(after(options, &mut at)?, 0, "ERR LIMIT can't be negative")?;
        at += 1;
    }
    Ok(if limit == 0 { usize::MAX } else { usize::try_from(limit).unwrap_or(usize::MAX) })
}

fn sintercard(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let too_many = || Err(Fail::new("ERR Number of keys can't be greater than number of args"));
    let (keys, options) = match counted(args, 1) {
        Err(fail) if fail == SYNTAX => too_many()?,
        counted => counted?,
    };
    let limit = limit(options)?;
    of_sets(step, keys, How::Inter, Then::Count(limit))
}
