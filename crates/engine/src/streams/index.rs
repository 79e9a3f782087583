//! Which offsets the ids of a stream are at: marks at some entries, from which the others are counted.

use std::collections::VecDeque;

use super::EntryId;
use crate::ids::Offset;

/// Entries from one mark to the next, at first.
const SPACING_MIN: u64 = 64;
/// Marks of one stream. Beyond that every other one goes, and the distance between them doubles.
const MARKS_MAX: usize = 1 << 16;

/// A place from which entries are read in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub offset: Offset,
    /// Of the entry before it: the ids of what follows depend on it.
    pub prev: EntryId,
    /// Entries before it, of all that were counted.
    pub before: u64,
}

/// Invariants: the first mark is where the stream begins; marks grow in offset, and neither `prev` nor `before` falls
/// from one to the next.
#[derive(Clone, Debug)]
pub struct Index {
    marks: VecDeque<Mark>,
    spacing: u64,
    /// All records before it are counted.
    next: Offset,
    last: EntryId,
    newest: EntryId,
    count: u64,
}

impl Index {
    /// Of a stream that begins at an offset, behind an entry with this id.
    pub fn new(start: Offset, prev: EntryId) -> Self {
        let marks = VecDeque::from([Mark { offset: start, prev, before: 0 }]);
        Self { marks, spacing: SPACING_MIN, next: start, last: prev, newest: prev, count: 0 }
    }

    pub fn start(&self) -> Offset {
        self.first().offset
    }

    /// Where what is not counted yet begins.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The next id is larger than this one.
    pub fn last(&self) -> EntryId {
        self.last
    }

    /// Entries from the start on.
    pub fn len(&self) -> u64 {
        self.count - self.first().before
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Another entry, behind all others.
    pub fn push(&mut self, offset: Offset, id: EntryId) {
        let newest = self.marks.back().expect("invariant: there is a first mark");
        if self.count - newest.before >= self.spacing {
            self.marks.push_back(Mark { offset, prev: self.last, before: self.count });
            if self.marks.len() > MARKS_MAX {
                self.thin();
            }
        }
        (self.last, self.newest) = (id, id);
        self.count += 1;
        self.next = offset + 1;
    }

    /// There are no more entries before this offset.
    pub fn reach(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// Ids from here on are larger than this one, which is not below that of any entry: see [`Index::newest`].
    pub fn set_last(&mut self, last: EntryId) {
        self.last = last;
        if self.marks.len() == 1 && self.is_empty() {
            self.marks[0].prev = last;
        }
    }

    /// The largest id of an entry from the start on, those among them that were deleted; 0-0 where there is none.
    pub fn newest(&self) -> EntryId {
        if self.is_empty() { EntryId::ZERO } else { self.newest }
    }

    /// The stream begins at a later offset, before which there are so many entries of those from the start on.
    pub fn begin_at(&mut self, start: Offset, gone: u64, prev: EntryId) {
        let before = self.first().before + gone;
        while self.marks.front().is_some_and(|mark| mark.offset <= start) {
            self.marks.pop_front();
        }
        self.marks.push_front(Mark { offset: start, prev, before });
        self.next = self.next.max(start);
        self.count = self.count.max(before);
    }

    /// How many there are.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    pub fn first(&self) -> Mark {
        *self.marks.front().expect("invariant: there is a first mark")
    }

    /// The last mark before which no entry has this id or a larger one.
    pub fn mark_before(&self, id: EntryId) -> Mark {
        let at = self.marks.partition_point(|mark| mark.prev < id);
        self.marks[at.saturating_sub(1)]
    }

    /// The first mark from an offset on.
    pub fn mark_from(&self, offset: Offset) -> Option<Mark> {
        let at = self.marks.partition_point(|mark| mark.offset < offset);
        self.marks.get(at).copied()
    }

    /// The mark before another one.
    pub fn mark_behind(&self, mark: Mark) -> Option<Mark> {
        let at = self.marks.partition_point(|other| other.offset < mark.offset);
        at.checked_sub(1).map(|at| self.marks[at])
    }

    /// The last mark with at most so many entries between the start and it.
    pub fn mark_after(&self, entries: u64) -> Mark {
        let before = self.first().before + entries;
        let at = self.marks.partition_point(|mark| mark.before <= before);
        self.marks[at.saturating_sub(1)]
    }

    fn thin(&mut self) {
        self.spacing *= 2;
        let mut number = 0;
        self.marks.retain(|_| {
            number += 1;
            number % 2 == 1
        });
    }
}
