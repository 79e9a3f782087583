//! The file `checkpoint` of a data directory: its topics, the extent of their segments, and where the journal has to be
//! read from.
//!
//! All integers are little-endian; names and settings are encoded as [`engine::catalog::encoding`] says.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `thalwegC` |
//! | 8 | 4 | CRC-32C of all that follows |
//! | 12 | 4 | version: 1, or 2 in the directory of a node of a cluster |
//! | 16 | 8 | the data directory's id |
//! | 24 | 8 + 8 + 4 | origin of the journal: position, number and slot of its file |
//! | 44 | 4 | the id that the next topic gets |
//! | 48 | 8 | the id that the next producer may get |
//! | 56 | 4 | number of topics, and the topics: id (4), name, settings, and its partitions |
//! | | 4 | version 2: bytes of the state of the log in front of the journal, and the state |
//!
//! | Part | Bytes |
//! |---|---|
//! | partition | its start (8), number of segments (4), the segments, its producers, compacted, salvages |
//! | producers | the offset up to which they know the log (8), bytes (4), and as many of `engine::producers` |
//! | segment | first offset (8), offset after the last record (8), bytes (8), largest timestamp (8), last append (8), |
//! | | how often it was rewritten (4) |
//! | compacted | end of the compacted range (8), end of the range of kept tombstones (8), |
//! | | and the time from which they are kept (8) |
//! | salvages | their number (4), and the position (8) of each: entries that were put aside |

use std::collections::HashMap;

use bytes::{Buf, BufMut, Bytes};
use engine::catalog::TopicEntry;
use engine::catalog::encoding::{Malformed, get_name, get_settings, put_name, put_settings};
use engine::{Offset, Result};

use crate::info::{Compacted, PartitionInfo, SegmentInfo, stream};
use crate::journal::block::{checksum, u32_at};
use crate::journal::recover::Origin;

const MAGIC: &[u8; 8] = b"thalwegC";
/// Newest version that is read.
pub(crate) const VERSION: u32 = 2;
/// Version without the state of a log in front of the journal.
const VERSION_ALONE: u32 = 1;
/// Maximum bytes of the state of a log in front of the journal.
pub const STATE_BYTES_MAX: usize = 64 << 20;
const HEAD_BYTES: usize = 16;

/// Catalog of a data directory, with what a checkpoint keeps about each partition.
pub type Catalog = engine::catalog::Catalog<PartitionInfo>;

/// Returns the offset up to which a catalog describes each partition, by its stream.
pub(crate) fn ends(catalog: &Catalog) -> HashMap<u64, Offset> {
    let topics = catalog.topics.iter();
    let of_topic = |(id, entry): (&u32, &TopicEntry<PartitionInfo>)| {
        let id = *id;
        let ends: Vec<_> = (0..).zip(&entry.partitions).map(|(i, info)| (stream(id, i), info.end())).collect();
        ends
    };
    topics.flat_map(of_topic).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub directory: u64,
    pub origin: Origin,
    pub catalog: Catalog,
    /// State of the log in front of the journal, in its own format; `None` for a single broker.
    pub state: Option<Bytes>,
}

/// Reason why bytes are not a valid checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotACheckpoint {
    Damaged(u64, String),
    Version(u32),
}

impl Checkpoint {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_slice(MAGIC);
        bytes.put_u32_le(0);
        bytes.put_u32_le(if self.state.is_some() { VERSION } else { VERSION_ALONE });
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
        if let Some(state) = &self.state {
            bytes.put_u32_le(state.len() as u32);
            bytes.put_slice(state);
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
        let version = u32_at(bytes, 12);
        if !(VERSION_ALONE..=VERSION).contains(&version) {
            return Err(NotACheckpoint::Version(version));
        }
        let mut rest = &bytes[HEAD_BYTES..];
        get_checkpoint(&mut rest, version)
            .map_err(|error| NotACheckpoint::Damaged((bytes.len() - rest.len()) as u64, error.message))
    }
}

fn get_checkpoint(input: &mut &[u8], version: u32) -> Result<Checkpoint> {
    let get = |input: &mut &[u8]| -> Result<Checkpoint, Malformed> {
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
            let partitions =
                (0..settings.partitions).map(|_| get_partition(input)).collect::<Result<_, Malformed>>()?;
            catalog.topics.insert(id, TopicEntry { name, settings, partitions });
        }
        let state = if version == VERSION_ALONE { None } else { Some(get_bytes(input)?) };
        Ok(Checkpoint { directory, origin, catalog, state })
    };
    let checkpoint = get(input)?;
    if input.is_empty() { Ok(checkpoint) } else { Err(Malformed("it has bytes after its last table".into()).into()) }
}

fn get_partition(input: &mut &[u8]) -> Result<PartitionInfo, Malformed> {
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
    let segments = (0..input.try_get_u32_le()?).map(|_| segment(input)).collect::<Result<_, Malformed>>()?;
    let producers_end = input.try_get_u64_le()?;
    let producers = get_bytes(input)?;
    let compacted = Compacted {
        to: input.try_get_u64_le()?,
        horizon: input.try_get_u64_le()?,
        horizon_ms: input.try_get_u64_le()?,
    };
    let salvages =
        (0..input.try_get_u32_le()?).map(|_| Ok(input.try_get_u64_le()?)).collect::<Result<_, Malformed>>()?;
    Ok(PartitionInfo { start, segments, producers, producers_end, compacted, salvages })
}

/// Reads bytes after their number.
pub(crate) fn get_bytes(input: &mut &[u8]) -> Result<Bytes, Malformed> {
    let len = input.try_get_u32_le()? as usize;
    let (bytes, rest) = input.split_at_checked(len).ok_or_else(|| Malformed("it is cut short".into()))?;
    *input = rest;
    Ok(Bytes::copy_from_slice(bytes))
}

#[cfg(test)]
mod tests {
    use engine::catalog::Change;
    use engine::mesh::MeshMode;
    use engine::{Codec, OwnSettings, Storage, TopicName, TopicSettings};

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
            mesh: MeshMode::Live,
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
        Checkpoint { directory: 1, origin: Origin { position: 4096, number: 2, slot: 1 }, catalog, state: None }
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_written_or_not_at_all() {
        for (state, version) in [(None, 1), (Some(Bytes::new()), 2), (Some(Bytes::from_static(b"log")), 2)] {
            is_read_as_written(&Checkpoint { state, ..checkpoint() }, version);
        }
    }

    /// Checkpoints of a single broker stay readable for releases without clusters, byte by byte.
    #[test]
    fn the_state_of_a_log_in_front_comes_after_all_else() {
        let alone = checkpoint().encode();
        let with = Checkpoint { state: Some(Bytes::from_static(b"log")), ..checkpoint() }.encode();
        assert_eq!(with[16..alone.len()], alone[16..]);
        assert_eq!(with[alone.len()..], *b"\x03\0\0\0log");
    }

    fn is_read_as_written(checkpoint: &Checkpoint, version: u32) {
        let mut bytes = checkpoint.encode();
        assert_eq!(u32_at(&bytes, 12), version);
        assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint.clone()));
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
}
