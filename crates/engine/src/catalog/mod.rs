//! Topics of a data directory: the catalog, the changes of it, and the settings of a topic.
//!
//! A change is an entry of the log. Every node that applies the same changes in the same order has the same catalog;
//! `P` is what a node keeps about each partition in addition.

pub mod encoding;
pub mod settings;

use std::collections::BTreeMap;

use bytes::{Buf, BufMut};

use self::encoding::{Malformed, get_name, get_settings, put_name, put_settings};
pub use self::settings::*;
use crate::error::Result;
use crate::ids::TopicName;

/// Stored state of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEntry<P> {
    pub name: TopicName,
    pub settings: TopicSettings,
    pub partitions: Vec<P>,
}

/// Topics by their ids, which are never reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog<P> {
    pub topics: BTreeMap<u32, TopicEntry<P>>,
    pub next_id: u32,
    pub next_producer: i64,
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

impl<P: Clone + Default> Catalog<P> {
    /// Applies a change. Applying a change a second time has no effect.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { id, name, settings } => {
                self.next_id = self.next_id.max(id + 1);
                let partitions = vec![P::default(); settings.partitions as usize];
                let entry = TopicEntry { name: name.clone(), settings: *settings, partitions };
                self.topics.entry(*id).or_insert(entry);
            }
            Change::Delete { id } => drop(self.topics.remove(id)),
            Change::Grow { id, partitions } => {
                if let Some(topic) = self.topics.get_mut(id) {
                    topic.settings.partitions = topic.settings.partitions.max(*partitions);
                    topic.partitions.resize(topic.settings.partitions as usize, P::default());
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
            Err(Malformed("a catalog change has bytes after its last field".into()).into())
        }
    }

    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(match input.try_get_u8()? {
            Self::CREATE => {
                Self::Create { id: input.try_get_u32_le()?, name: get_name(input)?, settings: get_settings(input)? }
            }
            Self::DELETE => Self::Delete { id: input.try_get_u32_le()? },
            Self::GROW => Self::Grow { id: input.try_get_u32_le()?, partitions: input.try_get_u32_le()? },
            Self::ALTER => Self::Alter { id: input.try_get_u32_le()?, settings: get_settings(input)? },
            Self::PRODUCERS => Self::Producers { next: input.try_get_i64_le()? },
            other => return Err(Malformed(format!("{other} is not a kind of catalog change"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::MeshMode;

    #[test]
    fn a_change_is_read_as_it_was_written_and_may_come_twice() {
        let name = TopicName::parse("a").expect("a name");
        let create = Change::Create { id: 7, name, settings: TopicSettings::default() };
        let mut catalog = Catalog::<()>::default();
        let delete = Change::Delete { id: 7 };
        let producers = Change::Producers { next: 3000 };
        let wanted = TopicSettings {
            partitions: 9,
            retention_ms: 5,
            batch_bytes_max: 200,
            keeps_unacked: true,
            mesh: MeshMode::Live,
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
