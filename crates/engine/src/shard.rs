//! The shard: the unit of order and of replication.
//!
//! Everything that belongs to a shard is in one total order: its partitions, and the records in which views keep what
//! they know about those partitions. So a view may append to its own log right after it changed a partition, and one
//! follows from the other on every replica.
//!
//! Each partition of a topic belongs to one shard, and so does each partition of an internal topic: partition `i` to
//! shard `i mod n` of `n` shards. A record of a view about a partition is in an internal partition of that partition's
//! shard ([`Shards::home`]); no other function chooses one. Records about no partition, those of caches and of users,
//! are in the first shard.

use crate::ids::{PartitionId, TopicId};
use crate::limits::SHARDS_MAX;
use crate::partitioner;

/// Number of a shard, from 0. The catalog of topics belongs to the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(u16);

impl ShardId {
    /// The first shard, which also has the catalog of topics.
    pub const FIRST: Self = Self(0);

    /// Returns the shard with a number, as formats have it.
    pub fn new(number: u16) -> Self {
        Self(number)
    }

    /// Returns the number, as formats have it.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// The shards of a broker: 1 to [`SHARDS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards(u16);

/// The place of a view's records: an internal partition, by its shard and a key. All records with one key are in one
/// partition, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Home<'k> {
    shard: ShardId,
    key: &'k [u8],
}

impl Shards {
    /// A single shard: a broker that does not replicate has one order, that of its journal.
    pub const ONE: Self = Self(1);

    /// Returns this number of shards, limited to 1 to [`SHARDS_MAX`].
    pub fn new(count: u16) -> Self {
        Self(count.clamp(1, SHARDS_MAX))
    }

    /// Returns the shard of a partition of a topic.
    pub fn of_partition(self, topic: TopicId, partition: PartitionId) -> ShardId {
        let topic = partitioner::murmur2(&topic.to_bytes());
        ShardId((topic.wrapping_add(partition) % u32::from(self.0)) as u16)
    }

    /// Returns the shard of something that has no partition, such as a group or a transactional id, by its name.
    pub fn of_name(self, name: &[u8]) -> ShardId {
        ShardId((partitioner::murmur2(name) % u32::from(self.0)) as u16)
    }

    /// Returns the shard of a partition of an internal topic.
    pub fn of_internal(self, partition: PartitionId) -> ShardId {
        ShardId((partition % u32::from(self.0)) as u16)
    }

    /// Returns the place of records about a partition of a topic: in the shard of that partition.
    pub fn home<'k>(self, topic: TopicId, partition: PartitionId, key: &'k [u8]) -> Home<'k> {
        Home { shard: self.of_partition(topic, partition), key }
    }

    /// Returns the place of records about something that has no partition, by its name.
    pub fn home_of_name(self, name: &[u8]) -> Home<'_> {
        Home { shard: self.of_name(name), key: name }
    }

    /// Returns the partition of an internal topic with `partitions` partitions in which records of a place are. It
    /// belongs to the shard of the place, if the topic has at least one partition for each shard.
    pub fn internal_partition(self, home: Home<'_>, partitions: u32) -> PartitionId {
        let shards = u32::from(self.0);
        let of_shard = (partitions / shards).max(1);
        u32::from(home.shard.0) % partitions.max(1) + shards * partitioner::for_key(home.key, of_shard)
    }
}

impl Home<'_> {
    /// Returns the shard of the records.
    pub fn shard(&self) -> ShardId {
        self.shard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: u32 = 8;

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..500u32).map(|i| format!("key {i}").into_bytes())
    }

    #[test]
    fn records_about_a_partition_are_in_its_shard() {
        for shards in [1, 2, 4, 8].map(Shards::new) {
            for (i, key) in keys().enumerate() {
                let topic = TopicId::new(7, i as u64);
                let partition = i as u32 % 5;
                let home = shards.home(topic, partition, &key);
                let found = shards.internal_partition(home, PARTITIONS);
                assert!(found < PARTITIONS);
                assert_eq!(shards.of_internal(found), shards.of_partition(topic, partition));
                let home = shards.home_of_name(&key);
                assert_eq!(shards.of_internal(shards.internal_partition(home, PARTITIONS)), shards.of_name(&key));
            }
        }
    }

    /// Directories of brokers that had no shards have their records where the hash of the key alone puts them.
    #[test]
    fn with_one_shard_the_key_alone_decides() {
        for key in keys() {
            let home = Shards::ONE.home(TopicId::new(1, 2), 3, &key);
            assert_eq!(Shards::ONE.internal_partition(home, PARTITIONS), partitioner::for_key(&key, PARTITIONS));
            assert_eq!(home.shard(), ShardId::FIRST);
        }
    }

    #[test]
    fn shards_get_about_equal_shares() {
        let shards = Shards::new(8);
        let mut counts = [0; 8];
        for topic in 0..1000 {
            for partition in 0..4 {
                counts[shards.of_partition(TopicId::new(3, topic), partition).number() as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
    }
}
