//! Set: members, in no particular order.

use std::sync::Arc;

use indexmap::IndexSet;

use super::{INDEX_BYTES, PART_BYTES};

/// Set of members. A clone costs the same for any size: it shares the members until one of the two changes.
#[derive(Clone, Debug, Default)]
pub struct Set {
    members: Arc<IndexSet<Box<[u8]>, foldhash::fast::RandomState>>,
    bytes: u64,
}

impl Set {
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes + (PART_BYTES + INDEX_BYTES) * self.members.len() as u64
    }

    pub fn contains(&self, member: &[u8]) -> bool {
        self.members.contains(member)
    }

    /// Returns the member at a place. Removing a member changes no place below it.
    pub fn at(&self, place: usize) -> Option<&[u8]> {
        self.members.get_index(place).map(|member| &**member)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.members.iter().map(|member| &**member)
    }

    /// Adds a member. Returns `true` if the member is new.
    pub fn add(&mut self, member: &[u8]) -> bool {
        if self.members.contains(member) {
            return false;
        }
        self.bytes += member.len() as u64;
        Arc::make_mut(&mut self.members).insert(member.into())
    }

    /// Removes a member. Returns `true` if the member existed.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Some(at) = self.members.get_index_of(member) else {
            return false;
        };
        Arc::make_mut(&mut self.members).swap_remove_index(at);
        self.bytes -= member.len() as u64;
        true
    }
}
