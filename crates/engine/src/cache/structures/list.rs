//! List: access to its ends is cheap, a change in its middle moves items.

use std::collections::VecDeque;
use std::ops::Range;

use super::PART_BYTES;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    items: VecDeque<Box<[u8]>>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Front,
    Back,
}

impl List {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes + PART_BYTES * self.items.len() as u64
    }

    pub fn get(&self, place: usize) -> Option<&[u8]> {
        self.items.get(place).map(|item| &**item)
    }

    pub fn range(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.items.range(range).map(|item| &**item)
    }

    pub fn push(&mut self, end: End, item: &[u8]) {
        self.bytes += item.len() as u64;
        match end {
            End::Front => self.items.push_front(item.into()),
            End::Back => self.items.push_back(item.into()),
        }
    }

    pub fn pop(&mut self, end: End) -> Option<Box<[u8]>> {
        let item = match end {
            End::Front => self.items.pop_front(),
            End::Back => self.items.pop_back(),
        }?;
        self.bytes -= item.len() as u64;
        self.shrink();
        Some(item)
    }

    /// Replaces the item at a place. A place outside the list is ignored.
    pub fn set(&mut self, place: usize, item: &[u8]) {
        if let Some(current) = self.items.get_mut(place) {
            self.bytes = self.bytes + item.len() as u64 - current.len() as u64;
            *current = item.into();
        }
    }

    /// Inserts an item before the item at this place, or at the end.
    pub fn insert(&mut self, place: usize, item: &[u8]) {
        self.bytes += item.len() as u64;
        self.items.insert(place.min(self.items.len()), item.into());
    }

    /// Returns the place of the first item that equals `item`.
    pub fn position(&self, item: &[u8]) -> Option<usize> {
        self.items.iter().position(|stored| **stored == *item)
    }

    /// Removes all items outside these places.
    pub fn keep(&mut self, range: Range<usize>) {
        self.items.truncate(range.end);
        drop(self.items.drain(..range.start.min(self.items.len())));
        self.bytes = self.items.iter().map(|item| item.len() as u64).sum();
        self.shrink();
    }

    /// Removes up to `max` items that equal `item`, starting from the front or the back, or all of them if `max` is 0.
    /// Returns their number.
    pub fn remove(&mut self, item: &[u8], from: End, max: usize) -> usize {
        let max = if max == 0 { usize::MAX } else { max };
        let places = (0..self.items.len()).filter(|place| *self.items[*place] == *item);
        let gone: Vec<usize> = match from {
            End::Front => places.take(max).collect(),
            End::Back => places.rev().take(max).collect(),
        };
        if !gone.is_empty() {
            let mut place = 0;
            let is_gone = |place| gone.binary_search(&place).is_ok();
            let is_gone_from_back = |place: usize| gone.binary_search_by(|removed| place.cmp(removed)).is_ok();
            self.items.retain(|_| {
                place += 1;
                match from {
                    End::Front => !is_gone(place - 1),
                    End::Back => !is_gone_from_back(place - 1),
                }
            });
            self.bytes -= (gone.len() * item.len()) as u64;
            self.shrink();
        }
        gone.len()
    }

    /// Releases most of the memory of a list that was longer before.
    fn shrink(&mut self) {
        if self.items.capacity() > 64 && self.items.len() < self.items.capacity() / 8 {
            self.items.shrink_to(self.items.len() * 2);
        }
    }
}
