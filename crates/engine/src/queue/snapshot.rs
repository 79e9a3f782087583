//! Snapshots of queues: the unfinished messages at one point in time, to seek back to.
//!
//! All integers are big-endian: version (u16), topic (text), its id (16 bytes), created and kept until, ms since 1970
//! (u64 each), number of partitions (u32). Each partition: the first offset that was never delivered (u64), number of
//! runs (u32), and for each run of unfinished offsets before it: its first offset (u64) and its length (u32).

use bytes::BufMut;

use crate::error::{Error, Result};
use crate::fields::{Fields, put_text};
use crate::ids::{Offset, TopicId, TopicName};

const VERSION: u16 = 2;
/// Maximum number of runs of one partition. A snapshot of a more fragmented queue is refused.
const RUNS_MAX: usize = 16_384;

/// Consecutive offsets: the first one, and their number.
pub type Run = (Offset, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub topic: TopicName,
    /// Id of the topic: the offsets are not valid for another topic with this name.
    pub topic_id: TopicId,
    pub created_ms: u64,
    /// Time of deletion, ms since 1970.
    pub expires_ms: u64,
    pub partitions: Vec<SnapshotPartition>,
}

/// A snapshot without its offsets, of which there may be many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    pub topic: TopicName,
    pub topic_id: TopicId,
    pub created_ms: u64,
    pub expires_ms: u64,
}

impl SnapshotHead {
    /// Decodes only the beginning of a snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::read(&mut Fields(bytes))
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
        fields.check_version("snapshot", VERSION)?;
        let topic = TopicName::parse(fields.text()?)?;
        let topic_id = TopicId::new(fields.u64()?, fields.u64()?);
        Ok(Self { topic, topic_id, created_ms: fields.u64()?, expires_ms: fields.u64()? })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotPartition {
    pub next: Offset,
    pub pending: Vec<Run>,
}

impl SnapshotPartition {
    /// Builds the snapshot from the pending offsets, in ascending order and all before `next`.
    pub fn of(next: Offset, pending: impl IntoIterator<Item = Offset>) -> Result<Self> {
        let mut runs: Vec<Run> = Vec::new();
        for offset in pending {
            match runs.last_mut() {
                Some((first, count)) if *first + u64::from(*count) == offset && *count < u32::MAX => *count += 1,
                _ => runs.push((offset, 1)),
            }
        }
        if runs.len() <= RUNS_MAX {
            Ok(Self { next, pending: runs })
        } else {
            Err(Error::too_large(format!(
                "the unacknowledged messages form {} ranges of offsets, and a snapshot has at most {RUNS_MAX}: \
             acknowledge some first",
                runs.len()
            )))
        }
    }

    /// Returns the offset before which the log is not needed.
    pub fn floor(&self) -> Offset {
        self.pending.first().map_or(self.next, |(first, _)| *first)
    }

    pub fn offsets(&self) -> impl Iterator<Item = Offset> {
        self.pending.iter().flat_map(|(first, count)| *first..*first + u64::from(*count))
    }
}

impl Snapshot {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        put_text(&mut out, self.topic.as_str());
        out.put_slice(&self.topic_id.to_bytes());
        out.put_u64(self.created_ms);
        out.put_u64(self.expires_ms);
        out.put_u32(self.partitions.len() as u32);
        for partition in &self.partitions {
            out.put_u64(partition.next);
            out.put_u32(partition.pending.len() as u32);
            for (first, count) in &partition.pending {
                out.put_u64(*first);
                out.put_u32(*count);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(bytes);
        let SnapshotHead { topic, topic_id, created_ms, expires_ms } = SnapshotHead::read(&mut fields)?;
        let partitions = (0..fields.u32()?).map(|_| {
            let next = fields.u64()?;
            let pending = (0..fields.u32()?).map(|_| Ok((fields.u64()?, fields.u32()?)));
            Ok(SnapshotPartition { pending: pending.collect::<Result<_>>()?, next })
        });
        let snapshot = Self { partitions: partitions.collect::<Result<_>>()?, topic, topic_id, created_ms, expires_ms };
        fields.end()?;
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_decode_and_truncated_ones_are_refused() {
        let partition = SnapshotPartition::of(20, [3, 4, 5, 9, 11, 12]).expect("few runs");
        assert_eq!(partition.pending, [(3, 3), (9, 1), (11, 2)]);
        assert_eq!((partition.floor(), partition.offsets().collect::<Vec<_>>()), (3, vec![3, 4, 5, 9, 11, 12]));
        let empty = SnapshotPartition::of(7, []).expect("no runs");
        assert_eq!(empty.floor(), 7);
        let topic = TopicName::parse("t").expect("a name");
        let topic_id = TopicId::new(3, 4);
        let partitions = vec![partition, empty];
        let snapshot = Snapshot { topic, topic_id, created_ms: 1, expires_ms: 2, partitions };
        let bytes = snapshot.encode();
        assert_eq!(Snapshot::decode(&bytes), Ok(snapshot));
        for end in 0..bytes.len() {
            Snapshot::decode(&bytes[..end]).expect_err("cut short");
        }
        SnapshotPartition::of(u64::MAX, (0..40_000).step_by(2)).expect_err("too scattered");
    }

    /// The offsets of a snapshot are not read for its head, of which lists and expiry need many.
    #[test]
    fn the_head_of_a_snapshot_is_decoded_alone() {
        let partition = SnapshotPartition::of(20, [3, 4]).expect("few runs");
        let topic = TopicName::parse("t").expect("a name");
        let head = SnapshotHead { topic: topic.clone(), topic_id: TopicId::new(3, 4), created_ms: 1, expires_ms: 2 };
        let snapshot =
            Snapshot { topic, topic_id: TopicId::new(3, 4), created_ms: 1, expires_ms: 2, partitions: vec![partition] };
        let encoded = snapshot.encode();
        assert_eq!(SnapshotHead::decode(&encoded), Ok(head.clone()));
        let without = Snapshot { partitions: Vec::new(), ..snapshot }.encode().len() - size_of::<u32>();
        assert_eq!(SnapshotHead::decode(&encoded[..without]), Ok(head));
        assert!(SnapshotHead::decode(&encoded[..without - 1]).is_err());
    }
}
