//! Sorted sets out of several others, or out of sets, whose members all count as 1.

use engine::cache::Value;
use engine::cache::structures::{Kind, Part, Score, Set, Sorted, Structure};

use super::Step;
use super::args::{is, parse_float};
use super::keys::store;
use super::sets::Split;
use super::sorted::{Members, write_pairs};
use crate::redis::errors::{Done, Fail, SYNTAX, WRONG_TYPE};

/// What becomes of the scores of one member in several of them.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // Infinities that are opposite are nothing together.
            Self::Sum if (a + b).is_nan() => 0.0,
            Self::Sum => a + b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Union,
    Inter,
    Diff,
}

struct Options {
    weights: Vec<f64>,
    aggregate: Aggregate,
    has_scores: bool,
}

fn options(args: &[&[u8]], count: usize, how: How, is_stored: bool) -> Done<Options> {
    let mut options = Options { weights: vec![1.0; count], aggregate: Aggregate::Sum, has_scores: false };
    let mut at = 0;
    while let Some(word) = args.get(at) {
        let rest = &args[at + 1..];
        if is(word, "WEIGHTS") && rest.len() >= count && how != How::Diff {
            for (weight, arg) in options.weights.iter_mut().zip(rest) {
                *weight = parse_float(arg).ok_or(Fail::new("ERR weight value is not a float"))?;
            }
            at += count;
        } else if is(word, "AGGREGATE") && !rest.is_empty() && how != How::Diff {
            options.aggregate = match rest[0] {
                word if is(word, "SUM") => Aggregate::Sum,
                word if is(word, "MIN") => Aggregate::Min,
                word if is(word, "MAX") => Aggregate::Max,
                _ => return Err(SYNTAX),
            };
            at += 1;
        } else if is(word, "WITHSCORES") && !is_stored {
            options.has_scores = true;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

/// The keys that are counted by an argument, and what follows them.
fn keys_of<'a, 'b>(args: &'b [&'a [u8]], at: usize, name: &str) -> Done<Split<'a, 'b>> {
    let count = super::args::parse_int(args[at])?;
    if count < 1 {
        return Err(Fail::new(format!("ERR at least 1 input key is needed for '{name}' command")));
    }
    let rest = &args[at + 1..];
    usize::try_from(count).ok().and_then(|count| rest.split_at_checked(count)).ok_or(SYNTAX)
}

/// Members with their scores.
type Input = Vec<(Vec<u8>, f64)>;

/// The members of a sorted set, or of a set.
fn members_of(step: &mut Step<'_, '_>, key: &[u8]) -> Done<Input> {
    let Some(found) = step.db.get(key) else {
        return Ok(Vec::new());
    };
    let Value::Structure(structure) = found.value else {
        return Err(WRONG_TYPE);
    };
    if let Some(sorted) = Sorted::of(structure) {
        return Ok(sorted.range(0..sorted.len()).map(|(member, score)| (member.to_vec(), score.get())).collect());
    }
    let set = Set::of(structure).ok_or(WRONG_TYPE)?;
    Ok(set.iter().map(|member| (member.to_vec(), 1.0)).collect())
}

/// All inputs are looked at before the options are.
fn check_kinds(step: &mut Step<'_, '_>, keys: &[&[u8]]) -> Done {
    for key in keys {
        match step.db.get(key).map(|found| found.value.kind()) {
            None | Some(Kind::Set | Kind::Sorted) => {}
            Some(_) => return Err(WRONG_TYPE),
        }
    }
    Ok(())
}

/// One after the other, so that no more than one of them is copied, however many there are.
fn combined(step: &mut Step<'_, '_>, keys: &[&[u8]], options: &Options, how: How) -> Done<Sorted> {
    let weigh = |score: f64, weight: f64| if (score * weight).is_nan() { 0.0 } else { score * weight };
    let score_of = |number: f64| Score::new(number).unwrap_or_default();
    let mut result = Sorted::default();
    for (at, (key, weight)) in keys.iter().zip(&options.weights).enumerate() {
        let members = members_of(step, key)?;
        match how {
            _ if at == 0 => {
                for (member, score) in members {
                    result.set(&member, score_of(weigh(score, *weight)));
                }
            }
            How::Diff => members.iter().for_each(|(member, _)| {
                result.remove(member);
            }),
            How::Union => {
                for (member, score) in members {
                    let score = weigh(score, *weight);
                    let before = result.score(&member).map(Score::get);
                    let now = before.map_or(score, |before| options.aggregate.of(before, score));
                    result.set(&member, score_of(now));
                }
            }
            How::Inter => {
                let mut both = Sorted::default();
                for (member, score) in members {
                    if let Some(before) = result.score(&member) {
                        let now = options.aggregate.of(before.get(), weigh(score, *weight));
                        both.set(&member, score_of(now));
                    }
                }
                result = both;
            }
        }
    }
    Ok(result)
}

fn answer(step: &mut Step<'_, '_>, args: &[&[u8]], how: How, name: &str) -> Done {
    let (keys, rest) = keys_of(args, 1, name)?;
    check_kinds(step, keys)?;
    let options = options(rest, keys.len(), how, false)?;
    let sorted = combined(step, keys, &options, how)?;
    if options.has_scores {
        let members: Members = sorted.range(0..sorted.len()).map(|(member, score)| (member.to_vec(), score)).collect();
        write_pairs(step.out, &members);
    } else {
        step.out.array(sorted.len());
        sorted.range(0..sorted.len()).for_each(|(member, _)| step.out.bulk(member));
    }
    Ok(())
}

fn keep(step: &mut Step<'_, '_>, args: &[&[u8]], how: How, name: &str) -> Done {
    let (keys, rest) = keys_of(args, 2, name)?;
    check_kinds(step, keys)?;
    let options = options(rest, keys.len(), how, true)?;
    let sorted = combined(step, keys, &options, how)?;
    let length = sorted.len();
    store(step, args[1], Structure::Sorted(sorted))?;
    step.out.len(length);
    Ok(())
}

pub(super) fn zunion(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    answer(step, args, How::Union, "zunion")
}

pub(super) fn zinter(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    answer(step, args, How::Inter, "zinter")
}

pub(super) fn zdiff(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    answer(step, args, How::Diff, "zdiff")
}

pub(super) fn zunionstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    keep(step, args, How::Union, "zunionstore")
}

pub(super) fn zinterstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    keep(step, args, How::Inter, "zinterstore")
}

pub(super) fn zdiffstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    keep(step, args, How::Diff, "zdiffstore")
}

pub(super) fn zintercard(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let (keys, rest) = keys_of(args, 1, "zintercard")?;
    check_kinds(step, keys)?;
    let limit = super::sets::limit(rest)?;
    let options = options(&[], keys.len(), How::Inter, true)?;
    let length = combined(step, keys, &options, How::Inter)?.len();
    step.out.len(length.min(limit));
    Ok(())
}
