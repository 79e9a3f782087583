//! Choice of the partition of a record: Kafka's murmur2 for records with a key, sticky for records without one.

use crate::ids::PartitionId;

/// Returns the 32-bit murmur2 of Kafka's Java client (seed 0x9747b28c), so that a key maps to the same partition
/// whichever client publishes it.
pub fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;

    let mut hash = SEED ^ data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let tail = chunks.remainder();
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// Returns the partition of a key among `partitions`, as Kafka's default partitioner computes it.
pub fn for_key(key: &[u8], partitions: u32) -> PartitionId {
    (murmur2(key) & 0x7fff_ffff) % partitions.max(1)
}

/// Partitioner for records without a key. They stay in one partition until their batch is full, then move to another:
/// batches get large, and over time the partitions get equal shares.
#[derive(Debug, Clone)]
pub struct Sticky {
    state: u64,
}

impl Sticky {
    /// Creates a partitioner. The seed spreads publishers over the partitions from their first batch on.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn current(&self, partitions: u32) -> PartitionId {
        ((self.state >> 32) as u32) % partitions.max(1)
    }

    /// Moves to another partition because a batch is full (a step of a 64-bit linear congruential generator).
    pub fn advance(&mut self, partitions: u32) {
        let before = self.current(partitions);
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if partitions > 1 && self.current(partitions) == before {
            let next = u64::from((before + 1) % partitions);
            self.state = (next << 32) | (self.state & 0xffff_ffff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_equals_kafka() {
        // From the tests of Kafka's Utils.murmur2.
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (data, expected) in cases {
            assert_eq!(murmur2(data) as i32, expected, "{}", String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn sticky_stays_then_moves_and_reaches_every_partition() {
        let mut sticky = Sticky::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            let partition = sticky.current(5);
            assert_eq!(partition, sticky.current(5));
            seen[partition as usize] += 1;
            sticky.advance(5);
            assert_ne!(partition, sticky.current(5));
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
        assert_eq!(Sticky::new(3).current(1), 0);
    }
}
