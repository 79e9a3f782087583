//! Sorted set: members with scores, ordered by score, and by their bytes if the scores are equal.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexMap;

use super::{INDEX_BYTES, PART_BYTES};

/// Maximum number of members of one run. A longer run is split, so that an insertion moves at most this many members.
const RUN_MAX: usize = 256;

/// Score of a member: any number except NaN. Negative zero becomes zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score(f64);

impl Score {
    pub fn new(score: f64) -> Option<Self> {
        // Adding 0 turns -0 into 0.
        (!score.is_nan()).then_some(Self(score + 0.0))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// End of a range of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub score: Score,
    pub is_exclusive: bool,
}

/// End of a range of members whose scores are all equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    First,
    Last,
    Inclusive(&'a [u8]),
    Exclusive(&'a [u8]),
}

type Entry = (Score, Arc<[u8]>);

/// Members with scores. A clone costs the same for any size: it shares the members until one of the two changes.
#[derive(Clone, Debug, Default)]
pub struct Sorted {
    scores: Arc<IndexMap<Arc<[u8]>, Score, foldhash::fast::RandomState>>,
    /// All members in their order, in runs that are never empty.
    runs: Arc<Vec<Vec<Entry>>>,
    bytes: u64,
}

impl Sorted {
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        // The bytes of a member are stored once, with two reference counts, and two pointers refer to them.
        self.bytes + (2 * PART_BYTES + 2 * INDEX_BYTES) * self.scores.len() as u64
    }

    pub fn score(&self, member: &[u8]) -> Option<Score> {
        self.scores.get(member).copied()
    }

    /// Returns the member at a place, in no particular order. Removing a member changes no place below it.
    pub fn at(&self, place: usize) -> Option<(&[u8], Score)> {
        self.scores.get_index(place).map(|(member, score)| (&**member, *score))
    }

    /// Returns the members with these ranks, in their order.
    pub fn range(&self, ranks: Range<usize>) -> impl Iterator<Item = (&[u8], Score)> {
        let (mut run, mut at) = self.place_of(ranks.start);
        (0..ranks.len()).map_while(move |_| {
            if at == self.runs.get(run)?.len() {
                run += 1;
                at = 0;
            }
            let (score, member) = self.runs.get(run)?.get(at)?;
            at += 1;
            Some((&**member, *score))
        })
    }

    /// Returns the number of members before this one.
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.count_before(|entry| (entry.0, &*entry.1) < (score, member)))
    }

    /// Returns the ranks of the members whose scores are in a range.
    pub fn ranks(&self, min: Bound, max: Bound) -> Range<usize> {
        let below = |entry: &Entry| entry.0 < min.score || min.is_exclusive && entry.0 == min.score;
        let not_above = |entry: &Entry| entry.0 < max.score || !max.is_exclusive && entry.0 == max.score;
        let start = self.count_before(below);
        let end = self.count_before(not_above);
        start..end.max(start)
    }

    /// Returns the ranks of the members between two bounds, provided that all scores are equal.
    pub fn lex_ranks(&self, min: LexBound<'_>, max: LexBound<'_>) -> Range<usize> {
        let start = match min {
            LexBound::First => 0,
            LexBound::Last => self.len(),
            LexBound::Inclusive(member) => self.count_before(|entry| &*entry.1 < member),
            LexBound::Exclusive(member) => self.count_before(|entry| &*entry.1 <= member),
        };
        let end = match max {
            LexBound::First => 0,
            LexBound::Last => self.len(),
            LexBound::Inclusive(member) => self.count_before(|entry| &*entry.1 <= member),
            LexBound::Exclusive(member) => self.count_before(|entry| &*entry.1 < member),
        };
        start..end.max(start)
    }

    /// Sets the score of a member. Returns the previous score.
    pub fn set(&mut self, member: &[u8], score: Score) -> Option<Score> {
        let Some((at, before)) = self.scores.get_full(member).map(|(at, _, before)| (at, *before)) else {
            let member: Arc<[u8]> = member.into();
            self.bytes += member.len() as u64;
            Arc::make_mut(&mut self.scores).insert(member.clone(), score);
            self.insert((score, member));
            return None;
        };
        if before != score {
            Arc::make_mut(&mut self.scores)[at] = score;
        }
        if before != score
            && let Some((_, member)) = self.take(before, member)
        {
            self.insert((score, member));
        }
        Some(before)
    }

    /// Removes a member. Returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<Score> {
        let at = self.scores.get_index_of(member)?;
        let (_, score) = Arc::make_mut(&mut self.scores).swap_remove_index(at)?;
        self.take(score, member);
        self.bytes -= member.len() as u64;
        Some(score)
    }

    fn insert(&mut self, entry: Entry) {
        let run = self.runs.partition_point(|run| run.last().is_some_and(|last| *last < entry));
        // An entry after all others belongs in the last run.
        let run = run.min(self.runs.len().saturating_sub(1));
        let runs = Arc::make_mut(&mut self.runs);
        let Some(entries) = runs.get_mut(run) else {
            runs.push(vec![entry]);
            return;
        };
        let at = entries.partition_point(|other| *other < entry);
        entries.insert(at, entry);
        if entries.len() > RUN_MAX {
            let rest = entries.split_off(entries.len() / 2);
            runs.insert(run + 1, rest);
        }
    }

    fn take(&mut self, score: Score, member: &[u8]) -> Option<Entry> {
        let is_before = |entry: &Entry| (entry.0, &*entry.1) < (score, member);
        let run = self.runs.partition_point(|run| run.last().is_some_and(is_before));
        let runs = Arc::make_mut(&mut self.runs);
        let entries = runs.get_mut(run)?;
        let at = entries.partition_point(is_before);
        let entry = (at < entries.len()).then(|| entries.remove(at));
        if entries.is_empty() {
            runs.remove(run);
        }
        entry
    }

    fn count_before(&self, is_before: impl Fn(&Entry) -> bool) -> usize {
        let run = self.runs.partition_point(|run| run.last().is_some_and(&is_before));
        let whole: usize = self.runs[..run].iter().map(Vec::len).sum();
        whole + self.runs.get(run).map_or(0, |run| run.partition_point(&is_before))
    }

    fn place_of(&self, rank: usize) -> (usize, usize) {
        let mut left = rank;
        for (at, run) in self.runs.iter().enumerate() {
            if left < run.len() {
                return (at, left);
            }
            left -= run.len();
        }
        (self.runs.len(), 0)
    }
}
