//! Manifest of a store: its committed topics and what its partitions have, without the records. A node that is too far
//! behind for the log of the cluster is brought up to date by it.
//!
//! All integers are little-endian; names and settings are encoded as [`engine::catalog::encoding`] says.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | version, 1 |
//! | 4 | 4 | the id that the next topic gets |
//! | 8 | 8 | the id that the next producer may get |
//! | 16 | 4 | number of topics, and the topics in the order of their ids: id (4), name, settings, and its partitions |
//!
//! A partition is its start and its end (8 each), the end of the compacted range (8), the end of the range of kept
//! tombstones (8), the time from which they are kept (8), the offset up to which its producers know the log (8), and
//! bytes (4) and as many of `engine::producers`.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes};
use engine::catalog::encoding::{Malformed, get_name, get_settings, put_name, put_settings};
use engine::catalog::{Storage, TopicEntry};
use engine::{Error, ErrorKind, Offset, Result};

use crate::checkpoint::get_bytes;
use crate::info::Compacted;

const VERSION: u32 = 1;

/// Committed topics of a store, and the extents of their partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    pub catalog: engine::catalog::Catalog<PartitionExtent>,
}

/// Extent of the committed records of a partition, and what is known about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionExtent {
    pub start: Offset,
    pub end: Offset,
    pub compacted: Compacted,
    /// Encoded producers, empty if there are none; `producers_end` is the offset up to which they know the log.
    pub producers: Bytes,
    pub producers_end: Offset,
}

/// Records of a partition that a node lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub stream: u64,
    pub from: Offset,
    pub to: Offset,
}

impl Manifest {
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        bytes.put_u32_le(VERSION);
        bytes.put_u32_le(self.catalog.next_id);
        bytes.put_i64_le(self.catalog.next_producer);
        bytes.put_u32_le(self.catalog.topics.len() as u32);
        for (id, topic) in &self.catalog.topics {
            bytes.put_u32_le(*id);
            put_name(&mut bytes, &topic.name);
            put_settings(&mut bytes, &topic.settings);
            topic.partitions.iter().for_each(|partition| partition.put(&mut bytes));
        }
        bytes.into()
    }

    /// Decodes a manifest, as it was encoded by this version.
    pub fn decode(mut bytes: &[u8]) -> Result<Self> {
        let input = &mut bytes;
        let manifest = Self::get(input)?;
        if input.is_empty() {
            Ok(manifest)
        } else {
            Err(Malformed("a manifest has bytes after its last topic".into()).into())
        }
    }

    fn get(input: &mut &[u8]) -> Result<Self> {
        let version = u32_of(input)?;
        if version != VERSION {
            let message = format!("a manifest has version {version}, this node reads version {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(Self { catalog: get_catalog(input)? })
    }
}

fn u32_of(input: &mut &[u8]) -> Result<u32, Malformed> {
    Ok(input.try_get_u32_le()?)
}

fn get_catalog(input: &mut &[u8]) -> Result<engine::catalog::Catalog<PartitionExtent>, Malformed> {
    let mut catalog = engine::catalog::Catalog {
        next_id: input.try_get_u32_le()?,
        next_producer: input.try_get_i64_le()?,
        ..Default::default()
    };
    let mut names = BTreeSet::new();
    for _ in 0..input.try_get_u32_le()? {
        let id = input.try_get_u32_le()?;
        let name = get_name(input)?;
        let settings = get_settings(input)?;
        let is_next = catalog.topics.last_key_value().is_none_or(|(last, _)| *last < id) && id < catalog.next_id;
        if !is_next || !names.insert(name.as_str().to_owned()) {
            return Err(Malformed(format!("the topic {name} with the id {id} is not in its place, or there twice")));
        }
        if settings.storage != Storage::Disk || settings.partitions == 0 {
            return Err(Malformed(format!("the topic {name} cannot be in a data directory")));
        }
        let partitions =
            (0..settings.partitions).map(|_| PartitionExtent::get(input)).collect::<Result<_, Malformed>>()?;
        catalog.topics.insert(id, TopicEntry { name, settings, partitions });
    }
    Ok(catalog)
}

impl PartitionExtent {
    fn put(&self, bytes: &mut Vec<u8>) {
        let Compacted { to, horizon, horizon_ms } = self.compacted;
        for field in [self.start, self.end, to, horizon, horizon_ms, self.producers_end] {
            bytes.put_u64_le(field);
        }
        bytes.put_u32_le(self.producers.len() as u32);
        bytes.put_slice(&self.producers);
    }

    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        let start = input.try_get_u64_le()?;
        let end = input.try_get_u64_le()?;
        let compacted = Compacted {
            to: input.try_get_u64_le()?,
            horizon: input.try_get_u64_le()?,
            horizon_ms: input.try_get_u64_le()?,
        };
        let producers_end = input.try_get_u64_le()?;
        let producers = get_bytes(input)?;
        if [start, compacted.to, compacted.horizon, producers_end].iter().any(|offset| *offset > end) {
            return Err(Malformed(format!("a partition ends at {end}, before an offset that it has")));
        }
        Ok(Self { start, end, compacted, producers, producers_end })
    }
}

#[cfg(test)]
mod tests {
    use engine::{TopicName, TopicSettings};

    use super::*;

    fn manifest() -> Manifest {
        let mut manifest = Manifest::default();
        let settings = TopicSettings { partitions: 2, storage: Storage::Disk, ..TopicSettings::default() };
        let compacted = Compacted { to: 9, horizon: 7, horizon_ms: 99 };
        let producers = Bytes::from_static(b"who");
        let partition = PartitionExtent { start: 5, end: 11, compacted, producers, producers_end: 11 };
        for (id, name) in [(3, "orders.eu"), (5, "rest")] {
            let name = TopicName::parse(name).expect("a name");
            let partitions = vec![PartitionExtent::default(), partition.clone()];
            manifest.catalog.topics.insert(id, TopicEntry { name, settings, partitions });
        }
        manifest.catalog.next_id = 6;
        manifest.catalog.next_producer = 77;
        manifest
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let bytes = manifest().encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
        for at in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Manifest::decode(&longer).is_err());
        let other = [&[2], &bytes[1..]].concat();
        assert_eq!(Manifest::decode(&other).map_err(|error| error.kind), Err(ErrorKind::Unsupported));
    }

    #[test]
    fn a_manifest_that_contradicts_itself_is_refused() {
        let refused = |change: fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            Manifest::decode(&manifest.encode()).expect_err("it contradicts itself")
        };
        fn topic(manifest: &mut Manifest) -> &mut TopicEntry<PartitionExtent> {
            manifest.catalog.topics.get_mut(&5).expect("a topic")
        }
        refused(|manifest| manifest.catalog.next_id = 5);
        refused(|manifest| topic(manifest).name = TopicName::parse("orders.eu").expect("a name"));
        refused(|manifest| topic(manifest).settings.storage = Storage::Memory);
        refused(|manifest| topic(manifest).partitions[1].start = 12);
        refused(|manifest| topic(manifest).partitions[1].producers_end = 12);
        refused(|manifest| topic(manifest).partitions[1].compacted.to = 12);
        refused(|manifest| topic(manifest).partitions[1].compacted.horizon = 12);
    }
}
