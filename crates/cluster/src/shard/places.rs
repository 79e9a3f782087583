//! Places of saves in the journal, so that a checkpoint keeps those that are still needed, and no more.

use std::collections::VecDeque;
use std::sync::Weak;

use engine::Error;
use storage::{Origin, Owner};

use super::Shard;

/// Positions of the journal before the rows of saves, by the numbers of the saves in ascending order. An entry holds
/// for all numbers after the entry before it. A save without an entry is in no finished block: it is after the
/// journal's own origin.
#[derive(Debug, Default)]
pub(super) struct Places(VecDeque<(u64, Origin)>);

impl Places {
    /// Creates the list of a journal that was read: what its saves left unsettled is that of save 0, after this origin.
    pub fn read(origin: Option<Origin>) -> Self {
        Self(origin.map(|origin| (0, origin)).into_iter().collect())
    }

    /// Notes that the rows of all saves up to a number begin in a block after `origin`, or in one before it.
    pub fn note(&mut self, number: u64, origin: Origin) {
        if self.0.back().is_none_or(|(last, _)| *last < number) {
            self.0.push_back((number, origin));
        }
    }

    /// Returns the position before all saves but those up to a number, which it forgets. Returns `None` if no other one
    /// is in a finished block.
    pub fn need_after(&mut self, settled: Option<u64>) -> Option<Origin> {
        while self.0.pop_front_if(|(last, _)| Some(*last) <= settled).is_some() {}
        self.0.front().map(|(_, origin)| *origin)
    }
}

/// Owner of saves: they are on disk.
pub(super) struct Saver(pub Weak<Shard>);

impl Owner for Saver {
    fn committed(&self, mark: u64) {
        if let Some(shard) = self.0.upgrade() {
            shard.note_place(mark);
            shard.step(|machine, _| machine.saved(mark));
        }
    }

    fn failed(&self, error: &Error) {
        if let Some(shard) = self.0.upgrade() {
            shard.fail(error.clone());
        }
    }
}

/// Owner of rows, which may be in an earlier block than their save. Only their place matters: their save has the
/// outcome.
pub(super) struct Placer(pub Weak<Shard>);

impl Owner for Placer {
    fn committed(&self, mark: u64) {
        if let Some(shard) = self.0.upgrade() {
            shard.note_place(mark);
        }
    }

    fn failed(&self, _error: &Error) {}
}

impl Shard {
    /// Notes that rows of all saves up to this number are in a block. The journal notifies the owners of a block before
    /// its origin moves past that block.
    fn note_place(&self, number: u64) {
        let origin = self.journal.origin();
        self.places.lock().note(number, origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> Origin {
        Origin { position, ..Origin::default() }
    }

    #[test]
    fn a_save_is_after_the_first_block_with_a_row_of_it() {
        let mut places = Places::read(Some(at(10)));
        // A block with saves 1 to 3 and rows of save 4, whose rest is in the block after it.
        places.note(4, at(20));
        places.note(3, at(20));
        places.note(4, at(30));
        places.note(5, at(40));
        assert_eq!(places.need_after(None), Some(at(10)));
        assert_eq!(places.need_after(Some(0)), Some(at(20)));
        assert_eq!(places.need_after(Some(3)), Some(at(20)));
        assert_eq!(places.need_after(Some(4)), Some(at(40)));
        assert_eq!(places.need_after(Some(5)), None);
    }
}
