//! Streams: views of a topic with one partition whose records, the *entries*, are found by ascending ids.
//!
//! An id is a time in ms and a number that distinguishes entries of the same ms. [`Index`] finds entries by their ids,
//! [`Group`] tracks the entries that were delivered to consumers and not acknowledged, and [`StreamRecord`] is the
//! persisted state that a restart begins with.

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

/// Topic that persists the state of streams apart from their entries.
pub const STREAMS_TOPIC: &str = "_streams";
/// Header with the id of an entry that was added with one. It is the first header of its record.
pub const ID_HEADER: &str = "thalweg.entry";

/// Maximum number of groups of one stream.
pub const STREAM_GROUPS_MAX: usize = 1024;
/// Maximum length in bytes of the name of a stream's group, or of a consumer in one.
pub const STREAM_NAME_BYTES_MAX: usize = 1024;
/// Maximum number of deleted entries of one stream that are newer than its oldest entry.
pub const DELETED_MAX: usize = 1 << 20;

/// Id of an entry. No entry has the id 0-0.
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

    /// Returns the next larger id.
    pub fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => self.ms.checked_add(1).map(|ms| Self { ms, seq: 0 }),
        }
    }

    /// Returns the next smaller id.
    pub fn prev(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => self.ms.checked_sub(1).map(|ms| Self { ms, seq: u64::MAX }),
        }
    }

    /// Returns the id of an entry that is added at this time after an entry with the id `self`.
    pub fn at(self, now_ms: u64) -> Option<Self> {
        if now_ms > self.ms { Some(Self::new(now_ms, 0)) } else { self.next() }
    }

    /// Returns the id of a record after an entry with the id `self`: the id that it was added with, else its timestamp
    /// and its offset. If that is not larger than `self`, the id has the time of `self`, and as its number the record's
    /// offset or the next number, whichever is larger.
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

    /// Parses `ms-seq`, where both parts consist of digits only.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let at = text.iter().position(|byte| *byte == b'-')?;
        Some(Self::new(parse_part(&text[..at])?, parse_part(&text[at + 1..])?))
    }
}

/// Parses a number that consists of digits only.
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

/// Record that is found by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub record: Record,
}

impl Entry {
    /// Returns `true` if the record was added as an entry, and not published to the topic by other means.
    pub fn is_own(&self) -> bool {
        self.record.headers.first().is_some_and(|(name, _)| name == ID_HEADER)
    }
}

/// Size and id range of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    /// Number of entries that were ever added.
    pub added: u64,
    /// Id of the first existing entry; 0-0 if the stream is empty.
    pub first: EntryId,
    /// Largest id that any entry had.
    pub last: EntryId,
    /// Largest id of a deleted entry.
    pub max_deleted: EntryId,
}

impl Extent {
    /// Returns `true` if an entry at or after an id was deleted, so that the entries after it cannot be counted by
    /// `added`.
    pub fn has_gap_from(&self, id: EntryId) -> bool {
        let has_deleted = self.len > 0 && self.max_deleted != EntryId::ZERO && self.first <= self.max_deleted;
        has_deleted && id <= self.max_deleted
    }

    /// Returns the number of entries that were ever added up to the one with this id; `None` if it is unknown.
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
