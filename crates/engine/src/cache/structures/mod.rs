//! Values that have parts: lists, hashes, sets and sorted sets. A stream is a value whose entries are kept elsewhere.

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

/// What a part takes beside its bytes: a pointer, a length, and what the allocator adds.
const PART_BYTES: u64 = 24;
/// What finding it takes: a hash and a place in a table that is half full at the least.
const INDEX_BYTES: u64 = 20;
/// What a structure takes that is empty.
const STRUCTURE_BYTES: u64 = 96;

/// What a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

    /// The kind of a code in a log. The log of a cache has no streams.
    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::Bytes, Self::List, Self::Hash, Self::Set, Self::Sorted].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A value that has parts. One without parts is not kept.
#[derive(Clone, Debug)]
pub enum Structure {
    List(List),
    Hash(Hash),
    Set(Set),
    Sorted(Sorted),
    /// A stream, whose entries are the records of this topic.
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
            // It stays however few entries it has.
            Self::Stream(_) => 1,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it takes.
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

/// One of the structures, as whoever changes it asks for it.
pub trait Part: Default + Sized {
    const KIND: Kind;
    /// What a part takes beside its bytes, and the first one with what it is in.
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

/// The place of an index that counts from the end where it is negative.
pub fn place(index: i64, length: usize) -> Option<usize> {
    let place = if index < 0 { index.checked_add(length as i64)? } else { index };
    usize::try_from(place).ok().filter(|place| *place < length)
}

/// The places from one index to another, both included, each of which counts from the end where it is negative.
pub fn span(start: i64, stop: i64, length: usize) -> std::ops::Range<usize> {
    let at = |index: i64| if index < 0 { index.saturating_add(length as i64) } else { index };
    let (start, stop) = (at(start).max(0), at(stop).min(length as i64 - 1));
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}
