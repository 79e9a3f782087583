//! Commands that visit all keys of a database, or all parts of one key, in steps.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use broker::{Cache, Commit};
use engine::cache::ScanCursor;
use engine::cache::structures::{Hash, Part, Set, Sorted};

use super::args::{Selection, after, is, parse_int};
use super::keys::is_packed;
use super::work::{Pace, Sliced};
use crate::redis::command::{Command, Keys, Named, ONE, Step, part, random, read, write};
use crate::redis::databases::lock_or_busy;
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::writer::{Writer, write_double};

/// Default number of keys or parts that one command visits.
const COUNT: usize = 10;
/// Maximum number of keys or parts that one command visits.
const COUNT_MAX: usize = 10_000;
/// Maximum number of parts that are returned in a single reply.
const FEW: usize = 128;
/// Maximum number of bytes of names that are compared with a pattern before other clients of the thread are served, if
/// they are more than one name.
const NAMES_BYTES_MAX: usize = 1 << 20;
/// Number of bytes of names that cost as much as a visit of a key.
const UNIT_BYTES: usize = 256;
/// Maximum number of steps of a scan in one command, before other commands use the database.
const STEPS_MAX: usize = 64;

pub(super) const COMMANDS: &[Command] = &[
    read("SCAN", -2, Keys::All, scan, ("2.8.0", "Returns some of the keys, and a cursor for the next")),
    read("HSCAN", -3, ONE, hscan, ("2.8.0", "Returns some of the fields of a hash, and a cursor for the next")),
    read("SSCAN", -3, ONE, sscan, ("2.8.0", "Returns some of the members of a set, and a cursor for the next")),
    read("ZSCAN", -3, ONE, zscan, ("2.8.0", "Returns some of the members of a sorted set, and a cursor for the next")),
    read("KEYS", 2, Keys::All, keys, ("1.0.0", "Returns all keys that match a pattern")),
    read("RANDOMKEY", 1, Keys::All, randomkey, ("1.0.0", "Returns a random key")),
    read("DBSIZE", 1, Keys::All, dbsize, ("1.0.0", "Returns the number of keys")),
    write("FLUSHDB", -1, Keys::All, flushdb, ("1.0.0", "Removes all keys of a database")),
];

struct Options<'a> {
    cursor: u64,
    selection: Selection,
    count: usize,
    kind: Option<&'a [u8]>,
}

/// Parses the options of a scan whose cursor is the argument at `cursor_at`.
fn options<'a>(args: &[&'a [u8]], cursor_at: usize, has_kind: bool) -> Done<Options<'a>> {
    let mut options = Options { cursor: cursor(args[cursor_at])?, selection: Selection::All, count: COUNT, kind: None };
    let mut at = cursor_at + 1;
    while let Some(arg) = args.get(at) {
        match arg {
            arg if is(arg, "MATCH") => options.selection = Selection::new(after(args, &mut at)?)?,
            arg if is(arg, "TYPE") && has_kind => options.kind = Some(after(args, &mut at)?),
            arg if is(arg, "COUNT") => {
                let count = parse_int(after(args, &mut at)?)?;
                options.count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(SYNTAX)?.min(COUNT_MAX);
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(options)
}

fn cursor(arg: &[u8]) -> Done<u64> {
    let (is_negative, digits) = match arg {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    // The cursor is parsed as in C: an empty one is 0, and a negative one counts from the end.
    let number = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    let number = number.and_then(|digits| if digits.is_empty() { Some(0u64) } else { digits.parse().ok() });
    let number = number.ok_or(Fail::new("ERR invalid cursor"))?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// Returns `true` if the key exists. Checks the cursor first; if the key does not exist, other arguments are not
/// checked.
fn check<T: Part>(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done<bool> {
    cursor(args[2])?;
    let exists = part::<T>(step.db, args[1])?.is_some();
    if !exists {
        let begin = step.out.bytes.len();
        answer(step, begin, 0, 0);
    }
    Ok(exists)
}

fn scan(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let mut options = options(args, 1, true)?;
    let mut next = Some(ScanCursor(options.cursor));
    let mut looked = 0;
    let mut bytes = 0;
    let mut count = 0;
    let begin = step.out.bytes.len();
    for _ in 0..STEPS_MAX {
        let Some(cursor) = next else {
            break;
        };
        next = step.db.scan(cursor, |found| {
            looked += 1;
            bytes += found.key.len();
            let is_kind = options.kind.is_none_or(|kind| is(kind, found.value.kind().name()));
            if is_kind && options.selection.has(found.key) {
                step.out.bulk(found.key);
                count += 1;
            }
            looked < options.count && bytes < NAMES_BYTES_MAX
        });
        if looked >= options.count || bytes >= NAMES_BYTES_MAX {
            break;
        }
    }
    step.out.begin_with(begin, |out| {
        out.array(2);
        out.bulk(next.map_or(0, |next| next.0).to_string().as_bytes());
        out.array(count);
    });
    Ok(())
}

/// Walks from the last position to the first. If parts are removed in the meantime, the remaining ones keep their
/// position or move to one that was not visited yet. A small number of parts is returned in a single reply, unless
/// their names are long: a name that would exceed [`NAMES_BYTES_MAX`] is left for the next command.
fn walk<'s>(
    length: usize,
    options: &mut Options<'_>,
    mut each: impl FnMut(usize) -> Option<&'s [u8]>,
    mut take: impl FnMut(usize),
) -> u64 {
    let start = if options.cursor == 0 { length } else { (options.cursor as usize).min(length) };
    // A few parts are not worth a second command.
    let end = if length <= FEW { 0 } else { start.saturating_sub(options.count) };
    let mut bytes = 0;
    for place in (end..start).rev() {
        let Some(name) = each(place) else {
            continue;
        };
        if bytes > 0 && bytes + name.len() > NAMES_BYTES_MAX {
            return place as u64 + 1;
        }
        bytes += name.len();
        if options.selection.has(name) {
            take(place);
        }
    }
    end as u64
}

fn answer(step: &mut Step<'_, '_>, begin: usize, next: u64, count: usize) {
    step.out.begin_with(begin, |out| {
        out.array(2);
        out.bulk(next.to_string().as_bytes());
        out.array(count);
    });
}

fn hscan(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    if !check::<Hash>(step, args)? {
        return Ok(());
    }
    let mut options = options(args, 2, false)?;
    let begin = step.out.bytes.len();
    let mut count = 0;
    let mut next = 0;
    if let Some(hash) = part::<Hash>(step.db, args[1])? {
        next = walk(
            hash.len(),
            &mut options,
            |place| hash.at(place).map(|(field, _)| field),
            |place| {
                if let Some((field, value)) = hash.at(place) {
                    step.out.bulk(field);
                    step.out.bulk(value);
                    count += 2;
                }
            },
        );
    }
    answer(step, begin, next, count);
    Ok(())
}

fn sscan(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    if !check::<Set>(step, args)? {
        return Ok(());
    }
    let mut options = options(args, 2, false)?;
    let begin = step.out.bytes.len();
    let mut count = 0;
    let mut next = 0;
    if let Some(set) = part::<Set>(step.db, args[1])? {
        next = walk(
            set.len(),
            &mut options,
            |place| set.at(place),
            |place| {
                if let Some(member) = set.at(place) {
                    step.out.bulk(member);
                    count += 1;
                }
            },
        );
    }
    answer(step, begin, next, count);
    Ok(())
}

/// Formats a score in a small set as Redis does here: a whole number with all its digits.
fn scanned(score: f64, is_packed: bool) -> String {
    let is_whole = score.trunc() == score && score.abs() <= (i64::MAX / 2) as f64;
    if is_packed && is_whole { format!("{score:.0}") } else { write_double(score) }
}

fn zscan(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    if !check::<Sorted>(step, args)? {
        return Ok(());
    }
    let mut options = options(args, 2, false)?;
    let begin = step.out.bytes.len();
    let mut count = 0;
    let mut next = 0;
    if let Some(sorted) = part::<Sorted>(step.db, args[1])? {
        let is_packed = is_packed(sorted);
        next = walk(
            sorted.len(),
            &mut options,
            |place| sorted.at(place).map(|(member, _)| member),
            |place| {
                if let Some((member, score)) = sorted.at(place) {
                    step.out.bulk(member);
                    step.out.bulk(scanned(score.get(), is_packed).as_bytes());
                    count += 2;
                }
            },
        );
    }
    answer(step, begin, next, count);
    Ok(())
}

fn keys(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let mut selection = Selection::new(args[1])?;
    if !step.admits(step.db.len(), "keys")? {
        step.sliced = Some(Box::new(Sliced::Keys(args[1].into())));
        return Ok(());
    }
    let mut next = Some(ScanCursor::default());
    let mut count = 0;
    let mut names_bytes = 0;
    let begin = step.out.bytes.len();
    while let Some(cursor) = next {
        let mut bytes = 0;
        next = step.db.scan(cursor, |found| {
            bytes += found.key.len();
            if selection.has(found.key) {
                step.out.bulk(found.key);
                count += 1;
            }
            bytes < NAMES_BYTES_MAX
        });
        names_bytes += bytes;
        if names_bytes > NAMES_BYTES_MAX {
            // Slices begin again, with a reply of their own.
            if step.may_slice {
                step.sliced = Some(Box::new(Sliced::Keys(args[1].into())));
                return Ok(());
            }
            step.admits((bytes / UNIT_BYTES) as u64, "keys")?;
        }
    }
    step.out.begin_with(begin, |out| out.array(count));
    Ok(())
}

/// Runs `KEYS` in slices. Each key is returned at most once, and a key that exists all the time is returned.
pub(in crate::redis) async fn keys_in_slices(cache: &Cache, pattern: &[u8], out: &mut Writer) -> Done<Commit> {
    let mut commit = Commit::done();
    let mut next = Some(ScanCursor::default());
    let mut count = 0;
    let mut pace = Pace::sliced();
    let mut selection = Selection::new(pattern)?;
    // A key that is deleted and set again in the meantime is visited twice.
    let mut known: HashSet<u128> = HashSet::new();
    let hashers = [RandomState::new(), RandomState::new()];
    let begin = out.bytes.len();
    while let Some(cursor) = next {
        let locked = lock_or_busy(cache, &Named::All)?;
        let mut looked = 0;
        let mut bytes = 0;
        next = locked.scan(cursor, |found| {
            looked += 1;
            bytes += found.key.len();
            if selection.has(found.key) {
                let [high, low] = hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(found.key)));
                if known.insert(high << 64 | low) {
                    out.bulk(found.key);
                    count += 1;
                }
            }
            bytes < NAMES_BYTES_MAX
        });
        commit = commit.and(locked.finish().commit);
        if out.is_too_large {
            break;
        }
        pace.spend(looked + 1 + (bytes / UNIT_BYTES) as u64).await;
    }
    out.begin_with(begin, |out| out.array(count));
    Ok(commit)
}

fn randomkey(step: &mut Step<'_, '_>, _args: &[&[u8]]) -> Done {
    step.out.maybe(step.db.any_key(random()));
    Ok(())
}

fn dbsize(step: &mut Step<'_, '_>, _args: &[&[u8]]) -> Done {
    let entries = step.db.len();
    step.out.int(entries as i64);
    Ok(())
}

fn flushdb(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    check_flush(args)?;
    step.db.flush();
    step.out.ok();
    Ok(())
}

/// Checks the options of `FLUSHALL` and `FLUSHDB`, which may be `ASYNC` or `SYNC`.
pub(super) fn check_flush(args: &[&[u8]]) -> Done {
    match args[1..] {
        [] => Ok(()),
        [how] if is(how, "ASYNC") || is(how, "SYNC") => Ok(()),
        _ => Err(SYNTAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the places that one command takes of names with these lengths, and the next cursor.
    fn walked(lengths: &[usize], cursor: u64, count: usize) -> (Vec<usize>, u64) {
        let names: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'a'; *length]).collect();
        let selection = Selection::new(b"a*").expect("a short pattern");
        let mut options = Options { cursor, selection, count, kind: None };
        let mut taken = Vec::new();
        let next =
            walk(names.len(), &mut options, |place| names.get(place).map(Vec::as_slice), |place| taken.push(place));
        (taken, next)
    }

    #[test]
    fn one_command_visits_a_megabyte_of_names_or_one_longer_name() {
        const HALF: usize = NAMES_BYTES_MAX / 2;
        assert_eq!(walked(&[HALF, HALF], 0, 10), (vec![1, 0], 0));
        assert_eq!(walked(&[1, HALF, HALF], 0, 10), (vec![2, 1], 1));
        assert_eq!(walked(&[1, HALF, HALF], 1, 10), (vec![0], 0));
        assert_eq!(walked(&[1, 8 << 20, 1], 0, 10), (vec![2], 2));
        assert_eq!(walked(&[1, 8 << 20, 1], 2, 10), (vec![1], 1));
        // Short names end with the count, and few of them are visited together.
        assert_eq!(walked(&[1; 3], 0, 1), (vec![2, 1, 0], 0));
        assert_eq!(walked(&[1; 200], 0, 3), (vec![199, 198, 197], 197));
    }
}
