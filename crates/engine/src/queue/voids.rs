//! Offsets ahead of a queue's cursor that hold no message: markers of transactions, records of aborted transactions and
//! those that a filter excludes, and holes that compaction left.

use std::collections::VecDeque;
use std::ops::Range;

use crate::ids::Offset;

/// Maximum number of ranges that one queue keeps in one partition. At the limit it reads no further ahead until its
/// cursor has passed some.
const RANGES_MAX: usize = 65_536;

/// Ranges of offsets without a message.
///
/// Invariant: the ranges are in ascending order, none is empty, and no two touch.
#[derive(Debug, Default)]
pub(super) struct Voids {
    ranges: VecDeque<Range<Offset>>,
    /// Number of offsets in all ranges.
    count: u64,
}

impl Voids {
    /// Returns the number of offsets that hold no message.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of ranges.
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.ranges.len() >= RANGES_MAX
    }

    pub(super) fn has(&self, offset: Offset) -> bool {
        let at = self.ranges.partition_point(|range| range.end <= offset);
        self.ranges.get(at).is_some_and(|range| range.start <= offset)
    }

    /// Adds a range. Its overlap with earlier ranges is ignored.
    pub(super) fn push(&mut self, range: Range<Offset>) {
        let start = self.ranges.back().map_or(range.start, |last| range.start.max(last.end));
        if start >= range.end {
            return;
        }
        self.count += range.end - start;
        match self.ranges.back_mut().filter(|last| last.end == start) {
            Some(last) => last.end = range.end,
            None => self.ranges.push_back(start..range.end),
        }
    }

    /// Returns the first offset from `at` on that may hold a message, and forgets the ranges before it.
    pub(super) fn skip(&mut self, mut at: Offset) -> Offset {
        while let Some(passed) = self.ranges.pop_front_if(|range| range.start <= at) {
            self.count -= passed.end - passed.start;
            at = at.max(passed.end);
        }
        at
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged_and_passed_ones_are_forgotten() {
        let mut voids = Voids::default();
        for range in [3..5, 5..6, 4..6, 7..7, 9..12, 20..21] {
            voids.push(range);
        }
        assert_eq!((voids.ranges.len(), voids.count()), (3, 7));
        assert_eq!(voids.skip(2), 2);
        assert_eq!(voids.skip(3), 6);
        assert_eq!(voids.skip(10), 12, "from within a range");
        assert_eq!((voids.skip(13), voids.count()), (13, 1));
        assert_eq!((voids.skip(30), voids.count()), (30, 0));
    }

    #[test]
    fn it_says_when_it_has_as_many_ranges_as_it_keeps() {
        let mut voids = Voids::default();
        (0..RANGES_MAX as u64).for_each(|i| voids.push(2 * i..2 * i + 1));
        assert!(voids.is_full());
        assert_eq!(voids.skip(0), 1);
        assert!(!voids.is_full());
    }
}
