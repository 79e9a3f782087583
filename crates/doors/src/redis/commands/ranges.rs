//! Ranges of a sorted set: by rank, by score, and by name among members with equal scores.

use engine::cache::structures::{Bound, LexBound, Score, Sorted, Structure, span};

use super::args::{is, loose_float, parse_int};
use super::keys::store;
use super::sorted::Members;
use crate::redis::command::{Step, change, part};
use crate::redis::errors::{Done, Fail, SYNTAX};

/// Kind of a range, and its ends.
#[derive(Clone, Copy)]
enum Range<'a> {
    Ranks(i64, i64),
    Scores(Bound, Bound),
    Names(LexBound<'a>, LexBound<'a>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Name,
}

fn score_bound(arg: &[u8]) -> Done<Bound> {
    let (is_exclusive, number) = match arg {
        [b'(', number @ ..] => (true, number),
        number => (false, number),
    };
    let score = loose_float(number).and_then(Score::new).ok_or(Fail::new("ERR min or max is not a float"))?;
    Ok(Bound { score, is_exclusive })
}

fn name_bound(arg: &[u8]) -> Done<LexBound<'_>> {
    match arg {
        b"-" => Ok(LexBound::First),
        b"+" => Ok(LexBound::Last),
        [b'[', name @ ..] => Ok(LexBound::Inclusive(name)),
        [b'(', name @ ..] => Ok(LexBound::Exclusive(name)),
        _ => Err(Fail::new("ERR min or max not valid string range item")),
    }
}

impl<'a> Range<'a> {
    fn parse(by: By, ends: [&'a [u8]; 2]) -> Done<Self> {
        let [first, last] = ends;
        Ok(match by {
            By::Rank => Self::Ranks(parse_int(first)?, parse_int(last)?),
            By::Score => Self::Scores(score_bound(first)?, score_bound(last)?),
            By::Name => Self::Names(name_bound(first)?, name_bound(last)?),
        })
    }

    fn ranks(self, sorted: &Sorted, is_backwards: bool) -> std::ops::Range<usize> {
        match self {
            Self::Ranks(start, stop) => {
                let range = span(start, stop, sorted.len());
                if is_backwards { sorted.len() - range.end..sorted.len() - range.start } else { range }
            }
            Self::Scores(min, max) => sorted.ranks(min, max),
            Self::Names(min, max) => sorted.lex_ranks(min, max),
        }
    }
}

struct Options {
    by: By,
    is_backwards: bool,
    limit: Option<(i64, i64)>,
    has_scores: bool,
}

impl Options {
    fn new(by: By, is_backwards: bool) -> Self {
        Self { by, is_backwards, limit: None, has_scores: false }
    }

    /// Parses the options after the ends of the range. The older commands accept fewer of them.
    fn parse(mut self, args: &[&[u8]], is_new: bool, is_stored: bool) -> Done<Self> {
        let mut at = 0;
        while let Some(word) = args.get(at) {
            match word {
                word if is(word, "WITHSCORES") && !is_stored => self.has_scores = true,
                word if is(word, "LIMIT") && at + 2 < args.len() => {
                    self.limit = Some((parse_int(args[at + 1])?, parse_int(args[at + 2])?));
                    at += 2;
                }
                word if is(word, "BYSCORE") && is_new => self.by = By::Score,
                word if is(word, "BYLEX") && is_new => self.by = By::Name,
                word if is(word, "REV") && is_new => self.is_backwards = true,
                _ => return Err(SYNTAX),
            }
            at += 1;
        }
        if self.limit.is_some_and(|(_, count)| count != -1) && self.by == By::Rank {
            return Err(Fail::new(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if self.has_scores && self.by == By::Name {
            return Err(Fail::new("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        Ok(self)
    }

    /// Returns the members of a range in the requested order.
    fn members(&self, step: &mut Step<'_, '_>, key: &[u8], ends: [&[u8]; 2]) -> Done<Members> {
        // In reverse order, the higher end comes first.
        let [first, last] = ends;
        let is_swapped = self.is_backwards && self.by != By::Rank;
        let range = Range::parse(self.by, if is_swapped { [last, first] } else { [first, last] })?;
        let Some(sorted) = part::<Sorted>(step.db, key)? else {
            return Ok(Vec::new());
        };
        let ranks = range.ranks(sorted, self.is_backwards);
        let limit = self.limit.filter(|_| self.by != By::Rank);
        let (offset, count) = limit.unwrap_or((0, -1));
        let length = ranks.len() as i64;
        if offset < 0 {
            return Ok(Vec::new());
        }
        let skipped = offset.min(length);
        let taken = if count < 0 { length - skipped } else { count.min(length - skipped) };
        let ranks = if self.is_backwards {
            ranks.end - (skipped + taken) as usize..ranks.end - skipped as usize
        } else {
            ranks.start + skipped as usize..ranks.start + (skipped + taken) as usize
        };
        let mut members: Members = sorted.range(ranks).map(|(member, score)| (member.to_vec(), score)).collect();
        if self.is_backwards {
            members.reverse();
        }
        Ok(members)
    }

    fn answer(&self, step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
        let members = self.members(step, args[1], [args[2], args[3]])?;
        if self.has_scores {
            super::sorted::write_pairs(step.out, &members);
        } else {
            step.out.array(members.len());
            members.iter().for_each(|(member, _)| step.out.bulk(member));
        }
        Ok(())
    }
}

pub(super) fn zrange(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    Options::new(By::Rank, false).parse(&args[4..], true, false)?.answer(step, args)
}

pub(super) fn zrevrange(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    Options::new(By::Rank, true).parse(&args[4..], false, false)?.answer(step, args)
}

pub(super) fn zrangebyscore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    Options::new(By::Score, false).parse(&args[4..], false, false)?.answer(step, args)
}

pub(super) fn zrevrangebyscore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    Options::new(By::Score, true).parse(&args[4..], false, false)?.answer(step, args)
}

pub(super) fn zrangebylex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    Options::new(By::Name, false).parse(&args[4..], false, false)?.answer(step, args)
}

pub(super) fn zrevrangebylex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    Options::new(By::Name, true).parse(&args[4..], false, false)?.answer(step, args)
}

pub(super) fn zrangestore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let options = Options::new(By::Rank, false).parse(&args[5..], true, true)?;
    let members = options.members(step, args[2], [args[3], args[4]])?;
    let mut sorted = Sorted::default();
    for (member, score) in &members {
        sorted.set(member, *score);
    }
    let length = sorted.len();
    store(step, args[1], Structure::Sorted(sorted))?;
    step.out.len(length);
    Ok(())
}

fn count(step: &mut Step<'_, '_>, args: &[&[u8]], by: By) -> Done {
    let range = Range::parse(by, [args[2], args[3]])?;
    let count = part::<Sorted>(step.db, args[1])?.map_or(0, |sorted| range.ranks(sorted, false).len());
    step.out.len(count);
    Ok(())
}

pub(super) fn zcount(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    count(step, args, By::Score)
}

pub(super) fn zlexcount(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    count(step, args, By::Name)
}

fn remove(step: &mut Step<'_, '_>, args: &[&[u8]], by: By) -> Done {
    let range = Range::parse(by, [args[2], args[3]])?;
    let gone = change::<Sorted, _>(step.db, args[1], (0, 0), |sorted| {
        let members: Vec<Vec<u8>> =
            sorted.range(range.ranks(sorted, false)).map(|(member, _)| member.to_vec()).collect();
        for member in &members {
            sorted.remove(member);
        }
        (!members.is_empty(), members.len())
    })?;
    step.out.len(gone);
    Ok(())
}

pub(super) fn zremrangebyrank(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    remove(step, args, By::Rank)
}

pub(super) fn zremrangebyscore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    remove(step, args, By::Score)
}

pub(super) fn zremrangebylex(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    remove(step, args, By::Name)
}
