//! Encodings of names and settings in a catalog and its changes.
//!
//! All integers are little-endian; a text is its length (2 bytes) and its bytes.
//!
//! | Part | Bytes |
//! |---|---|
//! | settings | partitions (4), retention in bytes (8) and in ms (8), storage (1), flags (1), then the parts that the |
//! | | flags announce, in this order: largest batch (4), `rest` (33), own settings (2), mode in the mesh (1) |
//! | | flags: 1 compacted, 2 the largest batch is present (absent without this flag), 4 records have arrival times, |
//! | | 8 records are deleted once queues have finished them, 16 records that queues have not acknowledged stay, |
//! | | 32 `rest` is present, 64 two bytes mark the topic's own settings: all others follow the broker's, |
//! | | 128 the mode in the mesh is present: 1 live. Without this flag the topic is not in the mesh |
//! | rest | codec (1, 255 as published), segment in bytes (8) and in ms (8), smallest compaction lag (8) and |
//! | | largest compaction lag (8) |

use bytes::{Buf, BufMut};

use super::{OwnSettings, Storage, TopicSettings};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::ids::TopicName;
use crate::mesh::MeshMode;

pub fn put_name(bytes: &mut Vec<u8>, name: &TopicName) {
    bytes.put_u16_le(name.as_str().len() as u16);
    bytes.put_slice(name.as_str().as_bytes());
}

pub fn get_name(input: &mut &[u8]) -> Result<TopicName, Malformed> {
    let len = usize::from(input.try_get_u16_le()?);
    let (name, rest) = input.split_at_checked(len).ok_or_else(|| Malformed("a name is cut short".into()))?;
    *input = rest;
    let name = std::str::from_utf8(name).map_err(|error| Malformed(error.to_string()))?;
    TopicName::parse(name).map_err(|error| Malformed(error.message))
}

/// Encodes settings alone, for storage outside the catalog.
pub fn encode_settings(settings: &TopicSettings) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_settings(&mut bytes, settings);
    bytes
}

pub fn decode_settings(mut bytes: &[u8]) -> Result<TopicSettings> {
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
const MESH: u8 = 128;
/// Code in place of a codec: batches stay as they were published.
const AS_PUBLISHED: u8 = 255;

pub fn put_settings(bytes: &mut Vec<u8>, settings: &TopicSettings) {
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
        (settings.mesh != MeshMode::Off, MESH),
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
    if settings.mesh != MeshMode::Off {
        bytes.put_u8(settings.mesh as u8);
    }
}

pub fn get_settings(input: &mut &[u8]) -> Result<TopicSettings, Malformed> {
    let mut settings = TopicSettings {
        partitions: input.try_get_u32_le()?,
        retention_bytes: input.try_get_u64_le()?,
        retention_ms: input.try_get_u64_le()?,
        storage: Storage::from_code(input.try_get_u8()?)
            .ok_or_else(|| Malformed("the storage code is unknown".into()))?,
        ..TopicSettings::default()
    };
    let flags = input.try_get_u8()?;
    settings.compact = flags & COMPACT != 0;
    settings.arrival_times = flags & ARRIVAL != 0;
    settings.drop_consumed = flags & CONSUMED != 0;
    settings.keeps_unacked = flags & KEEPS_UNACKED != 0;
    if flags & LARGEST != 0 {
        settings.batch_bytes_max = input.try_get_u32_le()?;
    }
    if flags & REST != 0 {
        settings.compression = match input.try_get_u8()? {
            AS_PUBLISHED => None,
            code => Some(Codec::from_code(code).ok_or_else(|| Malformed(format!("{code} is not a codec")))?),
        };
        settings.segment_bytes = input.try_get_u64_le()?;
        settings.segment_ms = input.try_get_u64_le()?;
        settings.compaction_lag_ms = (input.try_get_u64_le()?, input.try_get_u64_le()?);
    }
    if flags & OWN != 0 {
        let bits = input.try_get_u16_le()?;
        let own =
            OwnSettings::from_bits(bits).ok_or_else(|| Malformed(format!("{bits:#06x} is not a set of settings")))?;
        settings.own = Some(own);
    }
    if flags & MESH != 0 {
        let code = input.try_get_u8()?;
        // Off is never written: equal settings have equal bytes.
        let mode = MeshMode::from_code(code).filter(|mode| *mode != MeshMode::Off);
        settings.mesh = mode.ok_or_else(|| Malformed(format!("{code} is not a mode of a topic in the mesh")))?;
    }
    settings.validate().map_err(|error| Malformed(error.message))?;
    Ok(settings)
}

/// Decoding error with its reason.
pub struct Malformed(pub String);

impl From<bytes::TryGetError> for Malformed {
    fn from(error: bytes::TryGetError) -> Self {
        Self(error.to_string())
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::malformed(malformed.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns settings with every part that flags announce, except the mode in the mesh.
    fn full() -> TopicSettings {
        TopicSettings {
            compact: true,
            batch_bytes_max: 4096,
            arrival_times: true,
            drop_consumed: true,
            keeps_unacked: true,
            compression: Some(Codec::Zstd),
            segment_bytes: 1 << 20,
            segment_ms: 7,
            compaction_lag_ms: (8, 9),
            own: Some(OwnSettings::ALL),
            ..TopicSettings::default()
        }
    }

    #[test]
    fn settings_are_read_as_they_were_written() {
        for settings in [TopicSettings::default(), full()] {
            for mesh in MeshMode::ALL {
                let settings = TopicSettings { mesh, ..settings };
                let bytes = encode_settings(&settings);
                assert_eq!(decode_settings(&bytes), Ok(settings));
                for end in 0..bytes.len() {
                    assert!(decode_settings(&bytes[..end]).is_err(), "cut at {end}");
                }
            }
        }
    }

    /// Settings of topics outside the mesh have the bytes that releases without a mesh write.
    #[test]
    fn the_mode_in_the_mesh_is_the_last_byte_and_only_present_if_it_is_not_off() {
        let fixed = b"\x01\0\0\0\0\0\0\x04\0\0\0\0\x80\xee\x36\0\0\0\0\0\0";
        assert_eq!(encode_settings(&TopicSettings::default()), [&fixed[..], &[0]].concat());
        let live = TopicSettings { mesh: MeshMode::Live, ..TopicSettings::default() };
        assert_eq!(encode_settings(&live), [&fixed[..], &[MESH, 1]].concat());

        let off = encode_settings(&full());
        let mut live = encode_settings(&TopicSettings { mesh: MeshMode::Live, ..full() });
        assert_eq!((off[fixed.len()], live[fixed.len()]), (127, 255));
        assert_eq!(live.pop(), Some(1));
        live[fixed.len()] = 127;
        assert_eq!(live, off);
    }

    #[test]
    fn unknown_modes_in_the_mesh_are_refused() {
        let mut bytes = encode_settings(&TopicSettings { mesh: MeshMode::Live, ..full() });
        for code in [0, 5, 255] {
            bytes.pop();
            bytes.push(code);
            let error = decode_settings(&bytes).expect_err("no such mode");
            assert!(error.message.contains(&format!("{code} is not a mode")), "{error}");
        }
    }
}
