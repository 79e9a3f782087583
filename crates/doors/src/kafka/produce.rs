//! Produce: batches that are taken out of the frame as they came, and what became of each.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use engine::{Acks, PartitionId, Result};

use super::errors::Code;
use super::parse::Fields;
use super::write::Write;

/// What is wrong with a record that is told of by its place: there is one thing that it can be.
const NO_KEY: &str = "the record has no key, and its topic keeps the newest record of each key";
/// Records of a batch that are told of with the reason. Of those after them the place alone is shorter than the record.
const REASONS_MAX: usize = 1000;

/// Batches that clients sent, by partition.
#[derive(Debug)]
pub(super) struct ProduceRequest {
    pub transactional_id: Option<String>,
    /// `None`: a number that means nothing.
    pub acks: Option<Acks>,
    pub topics: Vec<ProduceTopic>,
}

#[derive(Debug)]
pub(super) struct ProduceTopic {
    pub name: String,
    pub partitions: Vec<(PartitionId, BytesMut)>,
}

/// A batch of a partition, by its place in the frame.
type Lying = (PartitionId, Range<usize>);

impl ProduceRequest {
    /// Takes a frame apart from where its header ends. The batches keep lying where they were read.
    pub(super) fn parse(mut frame: BytesMut, at: usize, version: i16) -> Result<Self> {
        let mut fields = Fields::new(&frame, at, version >= 9);
        let transactional_id = fields.nullable_string()?.map(str::to_owned);
        let acks = match fields.i16()? {
            0 => Some(Acks::None),
            1 => Some(Acks::Accepted),
            -1 => Some(Acks::Committed),
            _ => None,
        };
        // How long the broker may take; its own limits are tighter than those of clients.
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
        // In the order in which they lie, so each can be split off.
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
        Ok(Self { transactional_id, acks, topics: topics.collect() })
    }
}

/// A negative number is that of a partition which no topic has, and comes back as it was.
pub(super) fn partition_id(index: i32) -> PartitionId {
    index as PartitionId
}

/// What became of the batches of one request, in its order.
#[derive(Debug, Default)]
pub(super) struct Produced {
    pub topics: Vec<(Arc<str>, Vec<PartitionProduced>)>,
}

/// What became of one batch.
#[derive(Debug)]
pub(super) struct PartitionProduced {
    pub partition: PartitionId,
    pub code: Code,
    /// -1 where it was not taken.
    pub base_offset: i64,
    /// The time that its records got when they arrived; -1 where they keep their own.
    pub arrival_ms: i64,
    pub message: Option<String>,
    /// The records for which it was refused, by their place in it.
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
                    // Where the log begins is not looked up for each batch.
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
        out.put_i32(0);
        out.tags();
    }
}
