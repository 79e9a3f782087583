//! A record as queues see it: what else a message is than key, value and headers is in headers of reserved names.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::ids::{Offset, PartitionId, TopicId};
use crate::record::{Record, RecordView};

/// The names of headers that are the broker's own. All are text.
pub mod header {
    /// How all of them begin.
    pub const PREFIX: &str = "thalweg.";
    /// The types of the other headers, where they are not text: `name=type`, separated by commas.
    pub const TYPES: &str = "thalweg.types";
    /// Until when the message is for nobody, ms since 1970.
    pub const DUE: &str = "thalweg.due";
    /// What it is known by, if it is sent again.
    pub const DEDUP: &str = "thalweg.dedup";
    /// Its id, where it was moved here: else that comes from its place.
    pub const ID: &str = "thalweg.id";
    /// When it was sent first, where it was moved here, ms since 1970.
    pub const SENT: &str = "thalweg.sent";
    /// The queue that it was moved from.
    pub const SOURCE: &str = "thalweg.source";
    /// How often it was given out there.
    pub const DELIVERIES: &str = "thalweg.deliveries";
    /// How often it was given out in all queues that it was moved here from as a dead letter.
    pub const RECEIVED: &str = "thalweg.received";
    /// How often it was given out before it was moved here as it was.
    pub const ATTEMPTS: &str = "thalweg.attempts";
    /// Who sent it, as their protocol says it.
    pub const SENDER: &str = "thalweg.sender";
    /// The bytes of a message that is shown without what it holds, as no answer has room for it.
    pub const LEFT_OUT: &str = "thalweg.left_out";
    /// The trace that it belongs to.
    pub const TRACE: &str = "thalweg.trace";
}

/// What tells a message from every other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId([u8; 16]);

/// Bits of an id that say what kind of UUID it is: version 8, whose other bits are anybody's own.
const VERSION_BITS: u128 = 0xf << 76;
const VERSION: u128 = 0x8 << 76;
const VARIANT_BITS: u128 = 0b11 << 62;
const VARIANT: u128 = 0b10 << 62;
/// The bits that are left of each half.
const LOW_BITS: u64 = (1 << 62) - 1;

impl MessageId {
    /// The id of the message at a place. No two places have the same, and neighbours look nothing alike.
    pub fn at(topic: TopicId, partition: PartitionId, offset: Offset) -> Self {
        let topic = u128::from_be_bytes(topic.to_bytes());
        let high = scattered((topic >> 64) as u64 ^ scattered(topic as u64 ^ u64::from(partition) << 40));
        // An odd factor and a difference lose nothing of the offset.
        let low = (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ scattered(high)) & LOW_BITS;
        let bits = u128::from(high) << 64 | u128::from(low);
        Self((bits & !(VERSION_BITS | VARIANT_BITS) | VERSION | VARIANT).to_be_bytes())
    }
}

/// The finisher of SplitMix64.
fn scattered(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl fmt::Display for MessageId {
    /// As UUIDs are written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TopicId::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for MessageId {
    type Err = crate::error::Error;

    fn from_str(text: &str) -> crate::error::Result<Self> {
        let invalid = || crate::error::Error::invalid(format!("'{text}' is not a message id"));
        let digits: String = text.split('-').collect();
        if digits.len() != 32 || text.len() != 36 {
            return Err(invalid());
        }
        u128::from_str_radix(&digits, 16).map(|bits| Self(bits.to_be_bytes())).or(Err(invalid()))
    }
}

/// A message that shares the bytes of its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(Record);

impl From<Record> for Message {
    fn from(record: Record) -> Self {
        Self(record)
    }
}

impl Message {
    pub fn offset(&self) -> Offset {
        self.0.offset
    }

    pub fn body(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.0.value.as_ref().unwrap_or(&EMPTY)
    }

    /// The key that its group or its order goes by.
    pub fn group(&self) -> Option<&Bytes> {
        self.0.key.as_ref()
    }

    /// The headers that its sender gave it.
    pub fn headers(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        let shown = self.0.headers.iter().filter(|(name, _)| !name.starts_with(header::PREFIX.as_bytes()));
        shown.filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }

    /// A header of one of the names in [`header`], or of its sender.
    pub fn header(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.0.header(name)?).ok()
    }

    /// When it was sent first, ms since 1970.
    pub fn sent_ms(&self) -> u64 {
        let moved = self.header(header::SENT).and_then(|sent| sent.parse().ok());
        moved.unwrap_or(self.0.timestamp_ms.max(0) as u64)
    }

    /// Its id, where it is at this place.
    pub fn id(&self, topic: TopicId, partition: PartitionId) -> MessageId {
        let moved = self.header(header::ID).and_then(|id| id.parse().ok());
        moved.unwrap_or_else(|| MessageId::at(topic, partition, self.0.offset))
    }

    /// What it takes beside its place: its body, its group and its headers.
    pub fn bytes(&self) -> usize {
        let header = |(name, value): &(Bytes, Option<Bytes>)| name.len() + value.as_ref().map_or(0, Bytes::len);
        let group = self.group().map_or(0, Bytes::len);
        self.body().len() + group + self.0.headers.iter().map(header).sum::<usize>()
    }

    /// The record that it is.
    pub fn record(&self) -> &Record {
        &self.0
    }
}

/// A header of a record in place, as text.
pub fn header_of<'a>(record: &RecordView<'a>, name: &str) -> Option<&'a str> {
    let mut found = record.headers().filter(|(key, _)| *key == name.as_bytes());
    found.find_map(|(_, value)| std::str::from_utf8(value?).ok())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ_and_lead_back() {
        let topics = [TopicId::new(1, 1), TopicId::new(1, 2), TopicId::new(2, 1)];
        let mut seen = HashSet::new();
        for topic in topics {
            for partition in 0..3 {
                for offset in (0..1000).chain([1 << 40, (1 << 62) - 1]) {
                    let id = MessageId::at(topic, partition, offset);
                    assert!(seen.insert(id), "{topic} {partition} {offset}");
                    assert_eq!(id.to_string().parse::<MessageId>().map(|id| id.0), Ok(id.0));
                }
            }
        }
        for wrong in ["", "x", "00000000-0000-0000-0000-00000000000g", "000000000000000000000000000000000000"] {
            assert!(wrong.parse::<MessageId>().is_err(), "{wrong}");
        }
    }
}
