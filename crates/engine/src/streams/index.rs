//! Index from ids to offsets: marks at some entries, from which the others are counted.

use std::collections::VecDeque;

use super::EntryId;
use crate::ids::Offset;

/// Initial number of entries from one mark to the next.
const SPACING_MIN: u64 = 64;
/// Maximum number of marks of one stream. Beyond that every other mark is removed, and their distance doubles.
const MARKS_MAX: usize = 1 << 16;

/// Position from which entries can be read in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub offset: Offset,
    /// Id of the entry before it, on which the ids of the following entries depend.
    pub prev: EntryId,
    /// Number of entries before it, of all that were counted.
    pub before: u64,
}

/// Index of one stream. Invariants: the first mark is at the start of the stream; marks ascend by offset, and neither
/// `prev` nor `before` decreases from one mark to the next.
#[derive(Clone, Debug)]
pub struct Index {
    marks: VecDeque<Mark>,
    spacing: u64,
    /// Offset before which all records are counted.
    next: Offset,
    last: EntryId,
    newest: EntryId,
    count: u64,
}

impl Index {
    /// Creates the index of a stream that begins at an offset, after an entry with the id `prev`.
    pub fn new(start: Offset, prev: EntryId) -> Self {
        let marks = VecDeque::from([Mark { offset: start, prev, before: 0 }]);
        Self { marks, spacing: SPACING_MIN, next: start, last: prev, newest: prev, count: 0 }
    }

    pub fn start(&self) -> Offset {
        self.first().offset
    }

    /// Returns the offset of the first record that is not counted yet.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Returns the id that the next id has to exceed.
    pub fn last(&self) -> EntryId {
        self.last
    }

    /// Returns the number of entries from the start on.
    pub fn len(&self) -> u64 {
        self.count - self.first().before
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry after all others.
    pub fn push(&mut self, offset: Offset, id: EntryId) {
        let newest = self.marks.back().expect("invariant: there is a first mark");
        if self.count - newest.before >= self.spacing {
            self.marks.push_back(Mark { offset, prev: self.last, before: self.count });
            if self.marks.len() > MARKS_MAX {
                self.thin();
            }
        }
        self.last = id;
        self.newest = id;
        self.count += 1;
        self.next = offset + 1;
    }

    /// Notes that there are no more entries before this offset.
    pub fn reach(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// Sets the id that the next ids have to exceed. It must not be below the id of any entry: see [`Index::newest`].
    pub fn set_last(&mut self, last: EntryId) {
        self.last = last;
        if self.marks.len() == 1 && self.is_empty() {
            self.marks[0].prev = last;
        }
    }

    /// Returns the largest id of an entry from the start on, deleted ones included; 0-0 if there is no entry.
    pub fn newest(&self) -> EntryId {
        if self.is_empty() { EntryId::ZERO } else { self.newest }
    }

    /// Moves the start of the stream to a later offset, with `gone` entries between the old and the new start.
    pub fn begin_at(&mut self, start: Offset, gone: u64, prev: EntryId) {
        let before = self.first().before + gone;
        while self.marks.front().is_some_and(|mark| mark.offset <= start) {
            self.marks.pop_front();
        }
        self.marks.push_front(Mark { offset: start, prev, before });
        self.next = self.next.max(start);
        self.count = self.count.max(before);
    }

    /// Returns the number of marks.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    pub fn first(&self) -> Mark {
        *self.marks.front().expect("invariant: there is a first mark")
    }

    /// Returns the last mark before which no entry has this id or a larger one.
    pub fn mark_before(&self, id: EntryId) -> Mark {
        let at = self.marks.partition_point(|mark| mark.prev < id);
        self.marks[at.saturating_sub(1)]
    }

    /// Returns the first mark at or after an offset.
    pub fn mark_from(&self, offset: Offset) -> Option<Mark> {
        let at = self.marks.partition_point(|mark| mark.offset < offset);
        self.marks.get(at).copied()
    }

    /// Returns the mark before another one.
    pub fn mark_behind(&self, mark: Mark) -> Option<Mark> {
        let at = self.marks.partition_point(|other| other.offset < mark.offset);
        at.checked_sub(1).map(|at| self.marks[at])
    }

    /// Returns the last mark with at most `entries` entries between the start and it.
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
