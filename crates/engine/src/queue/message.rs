//! Records as queues see them: all properties of a message besides key, value and headers are in headers with reserved
//! names.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::ids::{Offset, PartitionId, TopicId};
use crate::record::{HeaderView, Record, RecordView};

/// Names of the headers that are reserved for the broker. All values are text.
pub mod header {
    /// Prefix of all reserved names.
    pub const PREFIX: &str = "thalweg.";
    /// Types of those other headers that are not text: `name=type`, separated by commas.
    pub const TYPES: &str = "thalweg.types";
    /// Time before which the message is not delivered, ms since 1970.
    pub const DUE: &str = "thalweg.due";
    /// Deduplication id, by which a repeated send is recognized.
    pub const DEDUP: &str = "thalweg.dedup";
    /// Id of a message that was moved here; otherwise the id follows from its place.
    pub const ID: &str = "thalweg.id";
    /// Time of the first send of a message that was moved here, ms since 1970.
    pub const SENT: &str = "thalweg.sent";
    /// Queue that the message was moved from.
    pub const SOURCE: &str = "thalweg.source";
    /// Number of deliveries in that queue.
    pub const DELIVERIES: &str = "thalweg.deliveries";
    /// Number of deliveries in all queues that it was moved here from as a dead letter.
    pub const RECEIVED: &str = "thalweg.received";
    /// Number of deliveries before it was moved here unchanged.
    pub const ATTEMPTS: &str = "thalweg.attempts";
    /// Sender, in the form of its protocol.
    pub const SENDER: &str = "thalweg.sender";
    /// Size in bytes of a message that is shown without its content, which exceeds the limit of a response.
    pub const LEFT_OUT: &str = "thalweg.left_out";
    /// Trace that the message belongs to.
    pub const TRACE: &str = "thalweg.trace";
}

/// Unique id of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId([u8; 16]);

/// Bits of an id that specify its kind of UUID: version 8, whose other bits are application-defined.
const VERSION_BITS: u128 = 0xf << 76;
const VERSION: u128 = 0x8 << 76;
const VARIANT_BITS: u128 = 0b11 << 62;
const VARIANT: u128 = 0b10 << 62;
/// Remaining bits of each half.
const LOW_BITS: u64 = (1 << 62) - 1;

impl MessageId {
    /// Returns the id of the message at a place. Ids of different places differ, and ids of adjacent places look
    /// unrelated.
    pub fn at(topic: TopicId, partition: PartitionId, offset: Offset) -> Self {
        let topic = u128::from_be_bytes(topic.to_bytes());
        let high = scattered((topic >> 64) as u64 ^ scattered(topic as u64 ^ u64::from(partition) << 40));
        // An odd factor and a xor are invertible: distinct offsets stay distinct.
        let low = (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ scattered(high)) & LOW_BITS;
        let bits = u128::from(high) << 64 | u128::from(low);
        Self((bits & !(VERSION_BITS | VARIANT_BITS) | VERSION | VARIANT).to_be_bytes())
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

/// Returns the finalizer of SplitMix64.
fn scattered(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl fmt::Display for MessageId {
    /// Formats the id like a UUID.
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

/// Message that shares the bytes of its batch.
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

    /// Returns the key, which is the group of the message.
    pub fn group(&self) -> Option<&Bytes> {
        self.0.key.as_ref()
    }

    /// Returns the headers that its sender set.
    pub fn headers(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        let shown = self.0.headers.iter().filter(|(name, _)| !name.starts_with(header::PREFIX.as_bytes()));
        shown.filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }

    /// Returns the value of a header: one of [`header`], or one of its sender.
    pub fn header(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.0.header(name)?).ok()
    }

    /// Returns the time of its first send, ms since 1970.
    pub fn sent_ms(&self) -> u64 {
        let moved = self.header(header::SENT).and_then(|sent| sent.parse().ok());
        moved.unwrap_or(self.0.timestamp_ms.max(0) as u64)
    }

    /// Returns the id of the message at this place.
    pub fn id(&self, topic: TopicId, partition: PartitionId) -> MessageId {
        let moved = self.header(header::ID).and_then(|id| id.parse().ok());
        moved.unwrap_or_else(|| MessageId::at(topic, partition, self.0.offset))
    }

    /// Returns the size in bytes of its body, its group and its headers.
    pub fn bytes(&self) -> usize {
        let header = |(name, value): &(Bytes, Option<Bytes>)| name.len() + value.as_ref().map_or(0, Bytes::len);
        let group = self.group().map_or(0, Bytes::len);
        self.body().len() + group + self.0.headers.iter().map(header).sum::<usize>()
    }

    /// Returns the underlying record.
    pub fn record(&self) -> &Record {
        &self.0
    }
}

/// Returns the first value of a header that is text.
pub fn header_of<'a>(record: &RecordView<'a>, name: &str) -> Option<&'a str> {
    text_in(record.headers(), name)
}

/// Returns the first value of a header that is text, among headers that are already decoded.
pub fn text_of<'a>(headers: &[HeaderView<'a>], name: &str) -> Option<&'a str> {
    text_in(headers.iter().copied(), name)
}

fn text_in<'a>(headers: impl Iterator<Item = HeaderView<'a>>, name: &str) -> Option<&'a str> {
    headers.filter(|(key, _)| *key == name.as_bytes()).find_map(|(_, value)| std::str::from_utf8(value?).ok())
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
