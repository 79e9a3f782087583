//! Produce: batches, split out of the frame as received, and the outcome of each.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use engine::{Acks, PartitionId, Result};

use super::errors::Code;
use super::parse::Fields;
use super::write::Write;

/// Message for a record that is refused on its own. A missing key is the only possible reason.
const NO_KEY: &str = "the record has no key, but its topic is compacted";
/// Maximum number of records of a batch that are reported with the message. Beyond it only their indexes are reported,
/// which are smaller than the records.
const REASONS_MAX: usize = 1000;

/// Batches sent by a client, by partition.
#[derive(Debug)]
pub(super) struct ProduceRequest {
    pub transactional_id: Option<String>,
    /// Acknowledgement; `None` if the number in the request is not a valid one.
    pub acks: Option<Acks>,
    pub topics: Vec<ProduceTopic>,
    /// Size of the request.
    pub bytes: usize,
}

#[derive(Debug)]
pub(super) struct ProduceTopic {
    pub name: String,
    pub partitions: Vec<(PartitionId, BytesMut)>,
}

/// Partition, and the range of its batch within the frame.
type Lying = (PartitionId, Range<usize>);

impl ProduceRequest {
    /// Parses a frame that starts its body at `at`. The batches are not copied.
    pub(super) fn parse(mut frame: BytesMut, at: usize, version: i16) -> Result<Self> {
        let bytes = frame.len();
        let mut fields = Fields::new(&frame, at, version >= 9);
        let transactional_id = fields.nullable_string()?.map(str::to_owned);
        let acks = match fields.i16()? {
            0 => Some(Acks::None),
            1 => Some(Acks::Accepted),
            -1 => Some(Acks::Committed),
            _ => None,
        };
        // The client's timeout; the broker's own limits are stricter.
        fields.i32()?;
        let mut topics: Vec<(String, Vec<Lying>)> = Vec::new();
        for _ in 0..fields.count()? {
            let name = fields.string()?.to_owned();
            let mut partitions = Vec::new();
            for _ in 0..fields.count()? {
                let partition = partition_id(fields.i32()?);
                let batch = fields.bytes()?.unwrap_or_default();
                partitions.push((partition, batch));
                fields.tags()?;
            }
            topics.push((name, partitions));
            fields.tags()?;
        }
        fields.tags()?;
        // In the order of the frame, so that each can be split off.
        let mut cut = 0;
        let mut take = |range: Range<usize>| {
            if range.is_empty() {
                return BytesMut::new();
            }
            let mut front = frame.split_to(range.end - cut);
            let batch = front.split_off(range.start - cut);
            cut = range.end;
            batch
        };
        let topics = topics.into_iter().map(|(name, partitions)| ProduceTopic {
            name,
            partitions: partitions.into_iter().map(|(partition, range)| (partition, take(range))).collect(),
        });
        Ok(Self { transactional_id, acks, topics: topics.collect(), bytes })
    }

    /// Returns `true` if it has more than `n` batches.
    pub(super) fn has_more_than(&self, n: usize) -> bool {
        self.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>() > n
    }

    /// Splits the request into requests of at most `n` batches each, in its order.
    pub(super) fn slices(self, n: usize) -> impl Iterator<Item = Self> {
        let Self { transactional_id, acks, topics, bytes } = self;
        let of_topic = |ProduceTopic { name, partitions }| {
            partitions.into_iter().map(move |(partition, batch)| (name.clone(), partition, batch))
        };
        let mut batches = topics.into_iter().flat_map(of_topic).peekable();
        std::iter::from_fn(move || {
            batches.peek()?;
            let mut topics: Vec<ProduceTopic> = Vec::new();
            for (name, partition, batch) in batches.by_ref().take(n) {
                match topics.last_mut() {
                    Some(last) if last.name == name => last.partitions.push((partition, batch)),
                    _ => topics.push(ProduceTopic { name, partitions: vec![(partition, batch)] }),
                }
            }
            Some(Self { transactional_id: transactional_id.clone(), acks, topics, bytes })
        })
    }
}

/// Converts a partition index. A negative number becomes that of a nonexistent partition, and is returned unchanged.
pub(super) fn partition_id(index: i32) -> PartitionId {
    index as PartitionId
}

/// Outcomes of the batches of one request, in the order of the request.
#[derive(Debug, Default)]
pub(super) struct Produced {
    pub topics: Vec<(Arc<str>, Vec<PartitionProduced>)>,
    /// Time in ms for which the client is delayed.
    pub throttle_ms: i32,
}

/// Outcome of one batch.
#[derive(Debug)]
pub(super) struct PartitionProduced {
    pub partition: PartitionId,
    pub code: Code,
    /// Offset of the first record; -1 if the batch was refused.
    pub base_offset: i64,
    /// Timestamp that the records received on arrival; -1 if they keep their own.
    pub arrival_ms: i64,
    pub message: Option<String>,
    /// Indexes of the records that caused the refusal.
    pub records: Vec<u32>,
}

impl PartitionProduced {
    pub(super) fn refused(partition: PartitionId, code: Code) -> Self {
        Self { partition, code, base_offset: -1, arrival_ms: -1, message: None, records: Vec::new() }
    }
}

impl Produced {
    pub(super) fn encode(&self, version: i16, out: &mut BytesMut) {
        let mut out = Write::new(out, version >= 9);
        out.count(self.topics.len());
        for (name, partitions) in &self.topics {
            out.string(name);
            out.count(partitions.len());
            for produced in partitions {
                out.put_i32(produced.partition as i32);
                out.put_i16(produced.code.0);
                out.put_i64(produced.base_offset);
                out.put_i64(produced.arrival_ms);
                if version >= 5 {
                    // The start of the log is not looked up for each batch.
                    out.put_i64(-1);
                }
                if version >= 8 {
                    out.count(produced.records.len());
                    for (told, place) in produced.records.iter().enumerate() {
                        out.put_i32(*place as i32);
                        out.nullable_string((told < REASONS_MAX).then_some(NO_KEY));
                        out.tags();
                    }
                    out.nullable_string(produced.message.as_deref());
                }
                out.tags();
            }
            out.tags();
        }
        out.put_i32(self.throttle_ms);
        out.tags();
    }
}
