//! Unions, intersections and differences of sets and sorted sets. Members of plain sets have the score 1.
//!
//! The inputs are shared with the database until one of the two changes, so that large inputs can be combined in
//! slices, without locks, and as they were at one moment.

use engine::cache::Value;
use engine::cache::structures::{Kind, Part, Score, Set, Sorted, Structure};

use super::args::{is, parse_float};
use super::keys::store;
use super::sets::Split;
use super::sorted::{begin_pairs, write_pair};
use super::work::{Pace, Sliced, at_once};
use crate::redis::command::{Step, part};
use crate::redis::errors::{Done, Fail, SYNTAX, WRONG_TYPE};
use crate::redis::writer::{ANSWER_BYTES_MAX, Writer};

/// Approximate memory of a member of a result in addition to its bytes.
const MEMBER_BYTES: usize = 96;

/// Combination of the scores of a member of several inputs.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // The sum of opposite infinities is not a number, and is replaced by 0.
            Self::Sum if (a + b).is_nan() => 0.0,
            Self::Sum => a + b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

/// Operation on the members of several inputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
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

/// Returns the keys whose number is in the argument at `at`, and the arguments after them.
fn keys_of<'a, 'b>(args: &'b [&'a [u8]], at: usize, name: &str) -> Done<Split<'a, 'b>> {
    let count = super::args::parse_int(args[at])?;
    if count < 1 {
        return Err(Fail::new(format!("ERR at least 1 input key is needed for '{name}' command")));
    }
    let rest = &args[at + 1..];
    usize::try_from(count).ok().and_then(|count| rest.split_at_checked(count)).ok_or(SYNTAX)
}

/// Value of a key as it is at this moment.
enum Input {
    Nothing,
    Set(Set),
    Sorted(Sorted),
}

impl Input {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Set(set) => set.len(),
            Self::Sorted(sorted) => sorted.len(),
        }
    }

    fn at(&self, place: usize) -> Option<(&[u8], f64)> {
        match self {
            Self::Nothing => None,
            Self::Set(set) => set.at(place).map(|member| (member, 1.0)),
            Self::Sorted(sorted) => sorted.at(place).map(|(member, score)| (member, score.get())),
        }
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            Self::Nothing => None,
            Self::Set(set) => set.contains(member).then_some(1.0),
            Self::Sorted(sorted) => sorted.score(member).map(Score::get),
        }
    }
}

/// Use of the result.
pub(super) enum Then {
    Members,
    Pairs,
    /// Number of members, but no more than this.
    Count(usize),
    Keep(Box<[u8]>),
}

/// Inputs of an operation, its options, and the use of its result.
pub(in crate::redis) struct Combination {
    inputs: Vec<Input>,
    weights: Vec<f64>,
    aggregate: Aggregate,
    how: How,
    /// `true` if the result has scores.
    is_sorted: bool,
    then: Then,
}

/// Result while it is built.
enum Growing {
    Set(Set),
    Sorted(Sorted),
}

impl Growing {
    fn len(&self) -> usize {
        match self {
            Self::Set(set) => set.len(),
            Self::Sorted(sorted) => sorted.len(),
        }
    }

    fn put(&mut self, member: &[u8], score: f64) -> bool {
        match self {
            Self::Set(set) => set.add(member),
            Self::Sorted(sorted) => sorted.set(member, Score::new(score).unwrap_or_default()).is_none(),
        }
    }

    fn remove(&mut self, member: &[u8]) {
        match self {
            Self::Set(set) => drop(set.remove(member)),
            Self::Sorted(sorted) => drop(sorted.remove(member)),
        }
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            Self::Set(set) => set.contains(member).then_some(1.0),
            Self::Sorted(sorted) => sorted.score(member).map(Score::get),
        }
    }
}

fn weigh(score: f64, weight: f64) -> f64 {
    let weighed = score * weight;
    if weighed.is_nan() { 0.0 } else { weighed }
}

impl Combination {
    /// Returns the number of visited members: each once for each key in which it is looked up.
    pub(in crate::redis) fn units(&self) -> u64 {
        let keys = self.inputs.len() as u64;
        let all = self.inputs.iter().fold(0u64, |all, input| all.saturating_add(input.len() as u64));
        let each_of = |length: Option<usize>| (length.unwrap_or_default() as u64).saturating_mul(keys);
        keys + match self.how {
            How::Union => all,
            How::Inter => each_of(self.inputs.iter().map(Input::len).min()),
            How::Diff => all.min(each_of(self.inputs.first().map(Input::len))),
        }
    }

    /// Returns the key of the result, if it is stored.
    pub(in crate::redis) fn kept(&self) -> Option<&[u8]> {
        match &self.then {
            Then::Keep(key) => Some(key),
            Then::Members | Then::Pairs | Then::Count(_) => None,
        }
    }

    pub(in crate::redis) async fn result(&self, pace: &mut Pace) -> Done<Structure> {
        let mut result = if self.is_sorted { Growing::Sorted(Sorted::default()) } else { Growing::Set(Set::default()) };
        match self.how {
            How::Union => self.union(&mut result, pace).await?,
            How::Inter => self.inter(&mut result, pace).await?,
            How::Diff => self.diff(&mut result, pace).await?,
        }
        Ok(match result {
            Growing::Set(set) => Structure::Set(set),
            Growing::Sorted(sorted) => Structure::Sorted(sorted),
        })
    }

    async fn union(&self, result: &mut Growing, pace: &mut Pace) -> Done {
        let mut room = ANSWER_BYTES_MAX;
        for (input, weight) in self.inputs.iter().zip(&self.weights) {
            pace.spend(1).await;
            for (member, score) in (0..input.len()).filter_map(|place| input.at(place)) {
                pace.spend(1).await;
                let score = weigh(score, *weight);
                let before = if self.is_sorted { result.score(member) } else { None };
                let now = before.map_or(score, |before| self.aggregate.of(before, score));
                if result.put(member, now) {
                    take_room(&mut room, member)?;
                }
            }
        }
        Ok(())
    }

    /// Intersects the inputs: finds each member of the smallest one in all others.
    async fn inter(&self, result: &mut Growing, pace: &mut Pace) -> Done {
        let mut room = ANSWER_BYTES_MAX;
        let max = if let Then::Count(max) = self.then { max } else { usize::MAX };
        let Some(smallest) = self.inputs.iter().min_by_key(|input| input.len()) else {
            return Ok(());
        };
        for (member, _) in (0..smallest.len()).filter_map(|place| smallest.at(place)) {
            let mut both = None;
            let mut is_in_all = true;
            for (input, weight) in self.inputs.iter().zip(&self.weights) {
                pace.spend(1).await;
                let Some(score) = input.score(member) else {
                    is_in_all = false;
                    break;
                };
                let score = weigh(score, *weight);
                both = Some(both.map_or(score, |before| self.aggregate.of(before, score)));
            }
            if let Some(score) = both.filter(|_| is_in_all)
                && result.put(member, score)
            {
                take_room(&mut room, member)?;
                if result.len() >= max {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn diff(&self, result: &mut Growing, pace: &mut Pace) -> Done {
        let mut room = ANSWER_BYTES_MAX;
        let (Some(first), Some(weight)) = (self.inputs.first(), self.weights.first()) else {
            return Ok(());
        };
        let others = &self.inputs[1..];
        let in_all: usize = others.iter().map(Input::len).sum();
        // Chooses the cheaper way: look up each member of the first in all others, or the other way round.
        let is_by_first = first.len().saturating_mul(others.len()) <= in_all;
        for (member, score) in (0..first.len()).filter_map(|place| first.at(place)) {
            pace.spend(1).await;
            let mut is_elsewhere = false;
            for other in others.iter().take(if is_by_first { others.len() } else { 0 }) {
                pace.spend(1).await;
                is_elsewhere = other.score(member).is_some();
                if is_elsewhere {
                    break;
                }
            }
            if !is_elsewhere && result.put(member, weigh(score, *weight)) {
                take_room(&mut room, member)?;
            }
        }
        for other in others.iter().filter(|_| !is_by_first) {
            pace.spend(1).await;
            for (member, _) in (0..other.len()).filter_map(|place| other.at(place)) {
                pace.spend(1).await;
                result.remove(member);
            }
        }
        Ok(())
    }

    /// Writes the reply for the result.
    pub(in crate::redis) async fn write(&self, result: &Structure, out: &mut Writer, pace: &mut Pace) {
        match (&self.then, result) {
            (Then::Keep(_), result) => out.len(result.len()),
            (Then::Count(max), result) => out.len(result.len().min(*max)),
            (_, Structure::Set(set)) => {
                out.set(set.len());
                for member in set.iter() {
                    pace.spend(1).await;
                    out.bulk(member);
                }
            }
            (Then::Pairs, Structure::Sorted(sorted)) => {
                begin_pairs(out, sorted.len());
                for (member, score) in sorted.range(0..sorted.len()) {
                    pace.spend(1).await;
                    write_pair(out, member, score);
                }
            }
            (Then::Members, Structure::Sorted(sorted)) => {
                out.array(sorted.len());
                for (member, _) in sorted.range(0..sorted.len()) {
                    pace.spend(1).await;
                    out.bulk(member);
                }
            }
            (Then::Members | Then::Pairs, _) => out.len(result.len()),
        }
    }

    /// Combines small inputs in this step, and leaves large ones to slices.
    fn serve(self, step: &mut Step<'_, '_>) -> Done {
        if !step.admits(self.units(), "members")? {
            step.sliced = Some(Box::new(Sliced::Combine(self)));
            return Ok(());
        }
        let mut pace = Pace::at_once();
        let result = at_once(self.result(&mut pace))?;
        if let Some(key) = self.kept() {
            store(step, key, result.clone())?;
        }
        at_once(self.write(&result, step.out, &mut pace));
        Ok(())
    }
}

/// Reserves memory for a member. Fails if the result becomes larger than a reply may be.
pub(super) fn take_room(room: &mut usize, member: &[u8]) -> Done {
    let left = room.checked_sub(member.len() + MEMBER_BYTES);
    *room = left.ok_or_else(|| {
        Fail::new(format!("ERR the result has more than {ANSWER_BYTES_MAX} bytes: combine fewer keys at a time"))
    })?;
    Ok(())
}

/// Combines sets. All keys are checked first, so that a key that is not a set is refused in any position.
pub(super) fn of_sets(step: &mut Step<'_, '_>, keys: &[&[u8]], how: How, then: Then) -> Done {
    let mut inputs = Vec::with_capacity(keys.len());
    for key in keys {
        let set = part::<Set>(step.db, key)?;
        inputs.push(set.map_or(Input::Nothing, |set| Input::Set(set.clone())));
    }
    let weights = vec![1.0; keys.len()];
    Combination { inputs, weights, aggregate: Aggregate::Min, how, is_sorted: false, then }.serve(step)
}

/// Returns the value of a key, if it is a set or a sorted set.
fn input_of(step: &mut Step<'_, '_>, key: &[u8]) -> Done<Input> {
    let Some(found) = step.db.get(key) else {
        return Ok(Input::Nothing);
    };
    let Value::Structure(structure) = found.value else {
        return Err(WRONG_TYPE);
    };
    match (Sorted::of(structure), Set::of(structure)) {
        (Some(sorted), _) => Ok(Input::Sorted(sorted.clone())),
        (_, Some(set)) => Ok(Input::Set(set.clone())),
        _ => Err(WRONG_TYPE),
    }
}

/// Checks all inputs before the options.
fn check_kinds(step: &mut Step<'_, '_>, keys: &[&[u8]]) -> Done {
    for key in keys {
        match step.db.peek(key).map(|found| found.value.kind()) {
            None | Some(Kind::Set | Kind::Sorted) => {}
            Some(_) => return Err(WRONG_TYPE),
        }
    }
    step.db.hide_misses();
    Ok(())
}

fn combine(step: &mut Step<'_, '_>, keys: &[&[u8]], options: Options, how: How, then: Then) -> Done {
    let inputs = keys.iter().map(|key| input_of(step, key)).collect::<Done<Vec<_>>>()?;
    let Options { weights, aggregate, .. } = options;
    Combination { inputs, weights, aggregate, how, is_sorted: true, then }.serve(step)
}

fn answer(step: &mut Step<'_, '_>, args: &[&[u8]], how: How, name: &str) -> Done {
    let (keys, rest) = keys_of(args, 1, name)?;
    check_kinds(step, keys)?;
    let options = options(rest, keys.len(), how, false)?;
    let then = if options.has_scores { Then::Pairs } else { Then::Members };
    combine(step, keys, options, how, then)
}

fn keep(step: &mut Step<'_, '_>, args: &[&[u8]], how: How, name: &str) -> Done {
    let (keys, rest) = keys_of(args, 2, name)?;
    check_kinds(step, keys)?;
    let options = options(rest, keys.len(), how, true)?;
    combine(step, keys, options, how, Then::Keep(args[1].into()))
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
    combine(step, keys, options, How::Inter, Then::Count(limit))
}
