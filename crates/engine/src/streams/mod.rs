//! Streams: views of a topic of one partition whose records, the *entries*, are found by ids that grow.
//!
//! An id is a time in ms and a number that tells entries of one time apart. [`Index`] finds entries by their ids,
//! [`Group`] is who was given which entries and has not acknowledged them, and [`StreamRecord`] is what a restart
//! begins with.

mod group;
mod index;
mod record;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::record::{Record, RecordView};

pub use group::{CONSUMERS_MAX, Group, PENDING_MAX, Pending};
pub use index::{Index, Mark};
pub use record::{SavedStream, StreamPlace, StreamRecord};

/// The topic that keeps what is known of streams beside their entries.
pub const STREAMS_TOPIC: &str = "_streams";
/// The header that has the id of an entry that was added as such. It is the first one of its record.
pub const ID_HEADER: &str = "thalweg.entry";

/// Groups of one stream.
pub const STREAM_GROUPS_MAX: usize = 1024;
/// The name of a group of a stream, or of a consumer in one.
pub const STREAM_NAME_BYTES_MAX: usize = 1024;
/// Entries of one stream that were deleted while older ones are still there.
pub const DELETED_MAX: usize = 1 << 20;

/// What an entry is found by. None is 0-0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId {
    pub ms: u64,
    pub seq: u64,
}

impl EntryId {
    pub const ZERO: Self = Self::new(0, 0);
    pub const MAX: Self = Self::new(u64::MAX, u64::MAX);

    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// The smallest one above.
    pub fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => self.ms.checked_add(1).map(|ms| Self { ms, seq: 0 }),
        }
    }

    /// The largest one below.
    pub fn prev(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => self.ms.checked_sub(1).map(|ms| Self { ms, seq: u64::MAX }),
        }
    }

    /// The id of an entry that is added at a time behind one with this id.
    pub fn at(self, now_ms: u64) -> Option<Self> {
        if now_ms > self.ms { Some(Self::new(now_ms, 0)) } else { self.next() }
    }

    /// The id of a record behind an entry with this id: what it was added with, else its time and its offset. What is
    /// not above that of the entry before follows that.
    pub fn of_record(self, view: &RecordView<'_>) -> Self {
        if let Some(id) = id_in(view.headers().next()).filter(|id| *id > self) {
            return id;
        }
        let ms = u64::try_from(view.timestamp_ms).unwrap_or_default();
        if ms > self.ms {
            return Self::new(ms, view.offset);
        }
        match self.seq.checked_add(1) {
            Some(next) => Self::new(self.ms, next.max(view.offset)),
            None => Self::new(self.ms.saturating_add(1), view.offset),
        }
    }

    /// `ms-seq`, both in digits only.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let at = text.iter().position(|byte| *byte == b'-')?;
        Some(Self::new(parse_part(&text[..at])?, parse_part(&text[at + 1..])?))
    }
}

/// A number in digits only.
pub fn parse_part(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

fn id_in(header: Option<(&[u8], Option<&[u8]>)>) -> Option<EntryId> {
    let (name, value) = header?;
    if name == ID_HEADER.as_bytes() { EntryId::parse(value?) } else { None }
}

/// A record that is found by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub record: Record,
}

impl Entry {
    /// Whether it was added as an entry, and not published by somebody who knows of none.
    pub fn is_own(&self) -> bool {
        self.record.headers.first().is_some_and(|(name, _)| name == ID_HEADER)
    }
}

/// What is known of a stream as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    /// Entries that were ever added.
    pub added: u64,
    /// Of the first entry that is there; 0-0 where there is none.
    pub first: EntryId,
    /// No entry had a larger one.
    pub last: EntryId,
    /// The largest one of those that were deleted.
    pub max_deleted: EntryId,
}

impl Extent {
    /// Whether an entry was deleted from an id on: what is behind that cannot be counted by what was added.
    pub fn has_gap_from(&self, id: EntryId) -> bool {
        let has_deleted = self.len > 0 && self.max_deleted != EntryId::ZERO && self.first <= self.max_deleted;
        has_deleted && id <= self.max_deleted
    }

    /// How many entries were ever added up to the one with this id, where that can be told.
    pub fn count_up_to(&self, id: EntryId) -> Option<u64> {
        if self.added == 0 {
            return Some(0);
        }
        if self.len == 0 && id <= self.last {
            return Some(self.added);
        }
        let has_deleted_behind = self.has_gap_from(EntryId::ZERO);
        if has_deleted_behind && id != EntryId::ZERO && id < self.max_deleted {
            return None;
        }
        if id >= self.last {
            return (id == self.last).then_some(self.added);
        }
        if !has_deleted_behind {
            let gone = self.added - self.len;
            if id < self.first {
                return Some(gone);
            }
            if id == self.first {
                return Some(gone + 1);
            }
        }
        None
    }
}
