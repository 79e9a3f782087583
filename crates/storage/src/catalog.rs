//! Catalog of a data directory: its topics and the extent of their segments, with their encodings.
//!
//! All integers are little-endian; a text is its length (u16) and its bytes. The file `checkpoint` has this format:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `thalwegC` |
//! | 8 | 4 | CRC-32C of all that follows |
//! | 12 | 4 | version, 1 |
//! | 16 | 8 | the data directory's id |
//! | 24 | 8 + 8 + 4 | origin of the journal: position, number and slot of its file |
//! | 44 | 4 | the id that the next topic gets |
//! | 48 | 8 | the id that the next producer may get |
//! | 56 | 4 | number of topics, and the topics: id (4), name, settings, and its partitions |
//!
//! | Part | Bytes |
//! |---|---|
//! | settings | partitions (4), retention in bytes (8) and in ms (8), storage (1), flags (1), largest batch (4) |
//! | | flags: 1 compacted, 2 the largest batch is present (absent without this flag), 4 records have arrival times, |
//! | | 8 records are deleted once queues have finished them, 16 records that queues have not acknowledged stay, |
//! | | 32 `rest` is present, 64 the last two bytes mark the topic's own settings: all others follow the broker's |
//! | rest | codec (1, 255 as published), segment in bytes (8) and in ms (8), smallest compaction lag (8) and |
//! | | largest compaction lag (8) |
//! | partition | its start (8), number of segments (4), the segments, its producers, compacted, salvages |
//! | producers | the offset up to which they know the log (8), bytes (4), and as many of `engine::producers` |
//! | segment | first offset (8), offset after the last record (8), bytes (8), largest timestamp (8), last append (8), |
//! | | how often it was rewritten (4) |
//! | compacted | end of the compacted range (8), end of the range of kept tombstones (8), |
//! | | and the time from which they are kept (8) |
//! | salvages | their number (4), and the position (8) of each: entries that were put aside |

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes};
use engine::{Codec, Error, OwnSettings, Result, Storage, TopicName, TopicSettings};

use crate::info::{Compacted, PartitionInfo, SegmentInfo};
use crate::journal::block::{checksum, u32_at};
use crate::journal::recover::Origin;

const MAGIC: &[u8; 8] = b"thalwegC";
pub(crate) const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;

/// Stored state of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEntry {
    pub name: TopicName,
    pub settings: TopicSettings,
    pub partitions: Vec<PartitionInfo>,
}

/// Topics by their ids, which are never reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    pub topics: BTreeMap<u32, TopicEntry>,
    pub next_id: u32,
    pub next_producer: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub directory: u64,
    pub origin: Origin,
    pub catalog: Catalog,
}

/// Change of the catalog, as an entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Create {
        id: u32,
        name: TopicName,
        settings: TopicSettings,
    },
    Delete {
        id: u32,
    },
    /// Grows the number of partitions; changes nothing else.
    Grow {
        id: u32,
        partitions: u32,
    },
    /// Changes settings other than the number of partitions and the storage.
    Alter {
        id: u32,
        settings: TopicSettings,
    },
    /// Reserves the ids of producers below this one.
    Producers {
        next: i64,
    },
}

/// Reason why bytes are not a valid checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotACheckpoint {
    Damaged(u64, String),
    Version(u32),
}

impl Catalog {
    /// Applies a change. Applying a change a second time has no effect.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { id, name, settings } => {
                self.next_id = self.next_id.max(id + 1);
                let partitions = vec![PartitionInfo::default(); settings.partitions as usize];
                let entry = TopicEntry { name: name.clone(), settings: *settings, partitions };
                self.topics.entry(*id).or_insert(entry);
            }
            Change::Delete { id } => drop(self.topics.remove(id)),
            Change::Grow { id, partitions } => {
                if let Some(topic) = self.topics.get_mut(id) {
                    topic.settings.partitions = topic.settings.partitions.max(*partitions);
                    topic.partitions.resize(topic.settings.partitions as usize, PartitionInfo::default());
                }
            }
            Change::Alter { id, settings } => {
                if let Some(topic) = self.topics.get_mut(id) {
                    let TopicSettings { partitions, storage, .. } = topic.settings;
                    topic.settings = TopicSettings { partitions, storage, ..*settings };
                }
            }
            Change::Producers { next } => self.next_producer = self.next_producer.max(*next),
        }
    }
}

impl Change {
    const CREATE: u8 = 1;
    const DELETE: u8 = 2;
    const PRODUCERS: u8 = 3;
    const GROW: u8 = 4;
    const ALTER: u8 = 5;

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Create { id, name, settings } => {
                bytes.put_u8(Self::CREATE);
                bytes.put_u32_le(*id);
                put_name(&mut bytes, name);
                put_settings(&mut bytes, settings);
            }
            Self::Delete { id } => {
                bytes.put_u8(Self::DELETE);
                bytes.put_u32_le(*id);
            }
            Self::Grow { id, partitions } => {
                bytes.put_u8(Self::GROW);
                bytes.put_u32_le(*id);
                bytes.put_u32_le(*partitions);
            }
            Self::Alter { id, settings } => {
                bytes.put_u8(Self::ALTER);
                bytes.put_u32_le(*id);
                put_settings(&mut bytes, settings);
            }
            Self::Producers { next } => {
                bytes.put_u8(Self::PRODUCERS);
                bytes.put_i64_le(*next);
            }
        }
        bytes
    }

    pub fn decode(mut bytes: &[u8]) -> Result<Self> {
        let input = &mut bytes;
        let change = Self::get(input)?;
        if input.is_empty() {
            Ok(change)
        } else {
            Err(Failed("a catalog change has bytes after its last field".into()).into())
        }
    }

    fn get(input: &mut &[u8]) -> Result<Self, Failed> {
        Ok(match input.try_get_u8()? {
            Self::CREATE => {
                Self::Create { id: input.try_get_u32_le()?, name: get_name(input)?, settings: get_settings(input)? }
            }
            Self::DELETE => Self::Delete { id: input.try_get_u32_le()? },
            Self::GROW => Self::Grow { id: input.try_get_u32_le()?, partitions: input.try_get_u32_le()? },
            Self::ALTER => Self::Alter { id: input.try_get_u32_le()?, settings: get_settings(input)? },
            Self::PRODUCERS => Self::Producers { next: input.try_get_i64_le()? },
            other => return Err(Failed(format!("{other} is not a kind of catalog change"))),
        })
    }
}

impl Checkpoint {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_slice(MAGIC);
        bytes.put_u32_le(0);
        bytes.put_u32_le(VERSION);
        bytes.put_u64_le(self.directory);
        bytes.put_u64_le(self.origin.position);
        bytes.put_u64_le(self.origin.number);
        bytes.put_u32_le(self.origin.slot);
        bytes.put_u32_le(self.catalog.next_id);
        bytes.put_i64_le(self.catalog.next_producer);
        bytes.put_u32_le(self.catalog.topics.len() as u32);
        for (id, topic) in &self.catalog.topics {
            bytes.put_u32_le(*id);
            put_name(&mut bytes, &topic.name);
            put_settings(&mut bytes, &topic.settings);
            for partition in &topic.partitions {
                bytes.put_u64_le(partition.start);
                bytes.put_u32_le(partition.segments.len() as u32);
                for segment in &partition.segments {
                    bytes.put_u64_le(segment.base);
                    bytes.put_u64_le(segment.end);
                    bytes.put_u64_le(segment.bytes);
                    bytes.put_i64_le(segment.timestamp_ms_max);
                    bytes.put_u64_le(segment.appended_ms);
                    bytes.put_u32_le(segment.generation);
                }
                bytes.put_u64_le(partition.producers_end);
                bytes.put_u32_le(partition.producers.len() as u32);
                bytes.put_slice(&partition.producers);
                bytes.put_u64_le(partition.compacted.to);
                bytes.put_u64_le(partition.compacted.horizon);
                bytes.put_u64_le(partition.compacted.horizon_ms);
                bytes.put_u32_le(partition.salvages.len() as u32);
                partition.salvages.iter().for_each(|position| bytes.put_u64_le(*position));
            }
        }
        let crc = checksum(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, NotACheckpoint> {
        let damaged = |at: usize, what: &str| NotACheckpoint::Damaged(at as u64, what.to_owned());
        if bytes.len() < HEAD_BYTES || bytes[..8] != *MAGIC {
            return Err(damaged(0, "it does not begin like a checkpoint"));
        }
        if u32_at(bytes, 8) != checksum(&bytes[12..]) {
            return Err(damaged(8, "it does not match its checksum"));
        }
        if u32_at(bytes, 12) != VERSION {
            return Err(NotACheckpoint::Version(u32_at(bytes, 12)));
        }
        let mut rest = &bytes[HEAD_BYTES..];
        get_checkpoint(&mut rest)
            .map_err(|error| NotACheckpoint::Damaged((bytes.len() - rest.len()) as u64, error.message))
    }
}

fn get_checkpoint(input: &mut &[u8]) -> Result<Checkpoint> {
    let get = |input: &mut &[u8]| -> Result<Checkpoint, Failed> {
        let directory = input.try_get_u64_le()?;
        let position = input.try_get_u64_le()?;
        let number = input.try_get_u64_le()?;
        let origin = Origin { position, number, slot: input.try_get_u32_le()? };
        let next_id = input.try_get_u32_le()?;
        let next_producer = input.try_get_i64_le()?;
        let mut catalog = Catalog { next_id, next_producer, ..Catalog::default() };
        for _ in 0..input.try_get_u32_le()? {
            let id = input.try_get_u32_le()?;
            let name = get_name(input)?;
            let settings = get_settings(input)?;
            let partitions = (0..settings.partitions).map(|_| get_partition(input)).collect::<Result<_, Failed>>()?;
            catalog.topics.insert(id, TopicEntry { name, settings, partitions });
        }
        Ok(Checkpoint { directory, origin, catalog })
    };
    let checkpoint = get(input)?;
    if input.is_empty() { Ok(checkpoint) } else { Err(Failed("it has bytes after its last table".into()).into()) }
}

fn get_partition(input: &mut &[u8]) -> Result<PartitionInfo, Failed> {
    let start = input.try_get_u64_le()?;
    let segment = |input: &mut &[u8]| {
        Ok(SegmentInfo {
            base: input.try_get_u64_le()?,
            end: input.try_get_u64_le()?,
            bytes: input.try_get_u64_le()?,
            timestamp_ms_max: input.try_get_i64_le()?,
            appended_ms: input.try_get_u64_le()?,
            generation: input.try_get_u32_le()?,
        })
    };
    let segments = (0..input.try_get_u32_le()?).map(|_| segment(input)).collect::<Result<_, Failed>>()?;
    let producers_end = input.try_get_u64_le()?;
    let len = input.try_get_u32_le()? as usize;
    let (producers, rest) =
        input.split_at_checked(len).ok_or_else(|| Failed("the producer state is cut short".into()))?;
    *input = rest;
    let compacted = Compacted {
        to: input.try_get_u64_le()?,
        horizon: input.try_get_u64_le()?,
        horizon_ms: input.try_get_u64_le()?,
    };
    let salvages = (0..input.try_get_u32_le()?).map(|_| Ok(input.try_get_u64_le()?)).collect::<Result<_, Failed>>()?;
    let producers = Bytes::copy_from_slice(producers);
    Ok(PartitionInfo { start, segments, producers, producers_end, compacted, salvages })
}

fn put_name(bytes: &mut Vec<u8>, name: &TopicName) {
    bytes.put_u16_le(name.as_str().len() as u16);
    bytes.put_slice(name.as_str().as_bytes());
}

fn get_name(input: &mut &[u8]) -> Result<TopicName, Failed> {
    let len = usize::from(input.try_get_u16_le()?);
    let (name, rest) = input.split_at_checked(len).ok_or_else(|| Failed("a name is cut short".into()))?;
    *input = rest;
    let name = std::str::from_utf8(name).map_err(|error| Failed(error.to_string()))?;
    TopicName::parse(name).map_err(|error| Failed(error.message))
}

/// Encodes settings alone, for storage outside the catalog.
pub(crate) fn encode_settings(settings: &TopicSettings) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_settings(&mut bytes, settings);
    bytes
}

pub(crate) fn decode_settings(mut bytes: &[u8]) -> Result<TopicSettings> {
    Ok(get_settings(&mut bytes)?)
}

/// Flags of settings.
const COMPACT: u8 = 1;
const LARGEST: u8 = 2;
const ARRIVAL: u8 = 4;
const CONSUMED: u8 = 8;
const KEEPS_UNACKED: u8 = 16;
const REST: u8 = 32;
const OWN: u8 = 64;
/// Code in place of a codec: batches stay as they were published.
const AS_PUBLISHED: u8 = 255;

fn put_settings(bytes: &mut Vec<u8>, settings: &TopicSettings) {
    bytes.put_u32_le(settings.partitions);
    bytes.put_u64_le(settings.retention_bytes);
    bytes.put_u64_le(settings.retention_ms);
    bytes.put_u8(settings.storage as u8);
    let default = TopicSettings::default();
    let is_largest_said = settings.batch_bytes_max != default.batch_bytes_max;
    let rest = |settings: &TopicSettings| {
        let TopicSettings { compression, segment_bytes, segment_ms, compaction_lag_ms, .. } = *settings;
        (compression, segment_bytes, segment_ms, compaction_lag_ms)
    };
    let has_rest = rest(settings) != rest(&default);
    let flags = [
        (settings.compact, COMPACT),
        (is_largest_said, LARGEST),
        (settings.arrival_times, ARRIVAL),
        (settings.drop_consumed, CONSUMED),
        (settings.keeps_unacked, KEEPS_UNACKED),
        (has_rest, REST),
        (settings.own.is_some(), OWN),
    ];
    bytes.put_u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
    if is_largest_said {
        bytes.put_u32_le(settings.batch_bytes_max);
    }
    if has_rest {
        bytes.put_u8(settings.compression.map_or(AS_PUBLISHED, |codec| codec as u8));
        bytes.put_u64_le(settings.segment_bytes);
        bytes.put_u64_le(settings.segment_ms);
        bytes.put_u64_le(settings.compaction_lag_ms.0);
        bytes.put_u64_le(settings.compaction_lag_ms.1);
    }
    if let Some(own) = settings.own {
        bytes.put_u16_le(own.bits());
    }
}

fn get_settings(input: &mut &[u8]) -> Result<TopicSettings, Failed> {
    let mut settings = TopicSettings {
        partitions: input.try_get_u32_le()?,
        retention_bytes: input.try_get_u64_le()?,
        retention_ms: input.try_get_u64_le()?,
        storage: Storage::from_code(input.try_get_u8()?).ok_or_else(|| Failed("the storage code is unknown".into()))?,
        ..TopicSettings::default()
    };
    let flags = input.try_get_u8()?;
    if flags & !(COMPACT | LARGEST | ARRIVAL | CONSUMED | KEEPS_UNACKED | REST | OWN) != 0 {
        return Err(Failed(format!("unknown flags {flags:#04x} of settings")));
    }
    (settings.compact, settings.arrival_times) = (flags & COMPACT != 0, flags & ARRIVAL != 0);
    (settings.drop_consumed, settings.keeps_unacked) = (flags & CONSUMED != 0, flags & KEEPS_UNACKED != 0);
    if flags & LARGEST != 0 {
        settings.batch_bytes_max = input.try_get_u32_le()?;
    }
    if flags & REST != 0 {
        settings.compression = match input.try_get_u8()? {
            AS_PUBLISHED => None,
            code => Some(Codec::from_code(code).ok_or_else(|| Failed(format!("{code} is not a codec")))?),
        };
        (settings.segment_bytes, settings.segment_ms) = (input.try_get_u64_le()?, input.try_get_u64_le()?);
        settings.compaction_lag_ms = (input.try_get_u64_le()?, input.try_get_u64_le()?);
    }
    if flags & OWN != 0 {
        let bits = input.try_get_u16_le()?;
        let own =
            OwnSettings::from_bits(bits).ok_or_else(|| Failed(format!("{bits:#06x} is not a set of settings")))?;
        settings.own = Some(own);
    }
    settings.validate().map_err(|error| Failed(error.message))?;
    Ok(settings)
}

/// Decoding error with its reason.
struct Failed(String);

impl From<bytes::TryGetError> for Failed {
    fn from(error: bytes::TryGetError) -> Self {
        Self(error.to_string())
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        Self::malformed(failed.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        let mut catalog = Catalog::default();
        let name = |name| TopicName::parse(name).expect("a name");
        let settings = TopicSettings { partitions: 2, storage: Storage::Disk, ..TopicSettings::default() };
        catalog.apply(&Change::Create { id: 3, name: name("orders.eu"), settings });
        let rest = TopicSettings {
            compression: Some(Codec::Zstd),
            segment_bytes: 1 << 20,
            segment_ms: 7,
            compaction_lag_ms: (8, 9),
            own: Some(OwnSettings::ALL),
            ..TopicSettings::default()
        };
        catalog.apply(&Change::Create { id: 5, name: name("rest"), settings: rest });
        let altered = TopicSettings { batch_bytes_max: 4096, arrival_times: true, ..TopicSettings::default() };
        catalog.apply(&Change::Create { id: 4, name: name("x"), settings: altered });
        let segment =
            SegmentInfo { base: 5, end: 9, bytes: 1000, timestamp_ms_max: -1, appended_ms: 77, generation: 2 };
        let segments = vec![segment, SegmentInfo { base: 9, end: 11, ..segment }];
        let producers = Bytes::from_static(b"who");
        let compacted = Compacted { to: 9, horizon: 7, horizon_ms: 99 };
        let salvages = vec![4096];
        let partition = PartitionInfo { start: 6, segments, producers, producers_end: 11, compacted, salvages };
        catalog.topics.get_mut(&3).expect("a topic").partitions[1] = partition;
        Checkpoint { directory: 1, origin: Origin { position: 4096, number: 2, slot: 1 }, catalog }
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_written_or_not_at_all() {
        let checkpoint = checkpoint();
        let mut bytes = checkpoint.encode();
        assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint));
        for at in 0..bytes.len() {
            bytes[at] ^= 0x20;
            assert!(matches!(Checkpoint::decode(&bytes), Err(NotACheckpoint::Damaged(..))), "byte {at}");
            bytes[at] ^= 0x20;
            assert!(Checkpoint::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        bytes[12] = 9;
        let crc = checksum(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Checkpoint::decode(&bytes), Err(NotACheckpoint::Version(9)));
    }

    #[test]
    fn a_change_is_read_as_it_was_written_and_may_come_twice() {
        let name = TopicName::parse("a").expect("a name");
        let create = Change::Create { id: 7, name, settings: TopicSettings::default() };
        let mut catalog = Catalog::default();
        let delete = Change::Delete { id: 7 };
        let producers = Change::Producers { next: 3000 };
        let wanted = TopicSettings {
            partitions: 9,
            retention_ms: 5,
            batch_bytes_max: 200,
            keeps_unacked: true,
            ..TopicSettings::default()
        };
        let alter = Change::Alter { id: 7, settings: wanted };
        for change in [&create, &create, &alter, &alter, &delete, &delete, &alter, &producers, &producers] {
            assert_eq!(Change::decode(&change.encode()), Ok(change.clone()));
            catalog.apply(change);
            if let Some(topic) = catalog.topics.get(&7).filter(|_| *change == alter) {
                assert_eq!(topic.settings, TopicSettings { partitions: 1, ..wanted });
            }
        }
        assert_eq!((catalog.topics.len(), catalog.next_id, catalog.next_producer), (0, 8, 3000));
        assert!(Change::decode(&[9]).is_err() && Change::decode(&[]).is_err());
    }
}
