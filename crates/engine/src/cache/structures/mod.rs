//! Values that have parts: lists, hashes, sets and sorted sets. A stream is also such a value, but its entries are
//! stored elsewhere.

mod edit;
mod hash;
mod list;
mod set;
mod sorted;

#[cfg(test)]
mod tests;

pub use edit::Edit;
pub use hash::Hash;
pub use list::{End, List};
pub use set::Set;
pub use sorted::{Bound, LexBound, Score, Sorted};

use crate::ids::TopicId;

/// Overhead of a part in bytes: a pointer, a length, and the overhead of the allocator.
const PART_BYTES: u64 = 24;
/// Overhead of an index entry in bytes: a hash, and a place in a table that is at least half full.
const INDEX_BYTES: u64 = 20;
/// Size of an empty structure in bytes.
const STRUCTURE_BYTES: u64 = 96;

/// Kind of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    #[default]
    Bytes,
    List,
    Hash,
    Set,
    Sorted,
    Stream,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "string",
            Self::List => "list",
            Self::Hash => "hash",
            Self::Set => "set",
            Self::Sorted => "zset",
            Self::Stream => "stream",
        }
    }

    /// Returns the kind of a code in a log. The log of a cache contains no streams.
    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::Bytes, Self::List, Self::Hash, Self::Set, Self::Sorted].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// Value that has parts. A value without parts is not kept.
#[derive(Clone, Debug)]
pub enum Structure {
    List(List),
    Hash(Hash),
    Set(Set),
    Sorted(Sorted),
    /// Stream, whose entries are the records of this topic.
    Stream(TopicId),
}

impl Structure {
    pub fn kind(&self) -> Kind {
        match self {
            Self::List(_) => Kind::List,
            Self::Hash(_) => Kind::Hash,
            Self::Set(_) => Kind::Set,
            Self::Sorted(_) => Kind::Sorted,
            Self::Stream(_) => Kind::Stream,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Hash(hash) => hash.len(),
            Self::Set(set) => set.len(),
            Self::Sorted(sorted) => sorted.len(),
            // The key of a stream is kept even if the stream has no entries.
            Self::Stream(_) => 1,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size in bytes, including the overhead.
    pub fn bytes(&self) -> u64 {
        STRUCTURE_BYTES
            + match self {
                Self::List(list) => list.bytes(),
                Self::Hash(hash) => hash.bytes(),
                Self::Set(set) => set.bytes(),
                Self::Sorted(sorted) => sorted.bytes(),
                Self::Stream(_) => size_of::<TopicId>() as u64,
            }
    }
}

/// Type of structure that can be changed in place, see [`Edit`].
pub trait Part: Default + Sized {
    const KIND: Kind;
    /// Overhead of a part in bytes. It includes the overhead of the structure, as the part may be the first one.
    const ROOM_BYTES: u64;

    fn of(structure: &Structure) -> Option<&Self>;

    fn of_mut(structure: &mut Structure) -> Option<&mut Self>;

    fn into_structure(self) -> Structure;
}

macro_rules! part {
    ($type:ident, $bytes:expr) => {
        impl Part for $type {
            const KIND: Kind = Kind::$type;
            const ROOM_BYTES: u64 = STRUCTURE_BYTES + $bytes;

            fn of(structure: &Structure) -> Option<&Self> {
                match structure {
                    Structure::$type(it) => Some(it),
                    _ => None,
                }
            }

            fn of_mut(structure: &mut Structure) -> Option<&mut Self> {
                match structure {
                    Structure::$type(it) => Some(it),
                    _ => None,
                }
            }

            fn into_structure(self) -> Structure {
                Structure::$type(self)
            }
        }
    };
}

part!(List, PART_BYTES);
part!(Hash, 2 * PART_BYTES + INDEX_BYTES);
part!(Set, PART_BYTES + INDEX_BYTES);
part!(Sorted, 2 * PART_BYTES + 2 * INDEX_BYTES);

/// Returns the place of an index, which counts from the end if it is negative.
pub fn place(index: i64, length: usize) -> Option<usize> {
    let place = if index < 0 { index.checked_add(length as i64)? } else { index };
    usize::try_from(place).ok().filter(|place| *place < length)
}

/// Returns the places from one index to another, both included. A negative index counts from the end.
pub fn span(start: i64, stop: i64, length: usize) -> std::ops::Range<usize> {
    let at = |index: i64| if index < 0 { index.saturating_add(length as i64) } else { index };
    let start = at(start).max(0);
    let stop = at(stop).min(length as i64 - 1);
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}
