//! Producers of batches: clients that number their records, and other sites of the mesh.

use super::{
    AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, DraftBatch, RecordBatch, TRANSACTIONAL_BIT,
    put_at, seal, u32_at, u64_at,
};

/// Producer of a batch, and the position of the batch among all that this producer wrote to the partition. It lets a
/// partition append a batch once, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Id that the broker has assigned to this producer only, ever.
    pub id: i64,
    /// Epoch, which rises when another instance takes over the id.
    pub epoch: i16,
    /// Number of the batch's first record. The others follow; 0 follows `i32::MAX`.
    pub sequence: i32,
}

impl Producer {
    /// Epoch of the batches that another site of the mesh has sent. No client's producer has it: an id is replaced
    /// before its epoch gets this high, as in Kafka.
    const MESH_EPOCH: i16 = i16::MAX;
    /// Producer of the batches that another site of the mesh has sent. Its batches are not numbered, and its id is
    /// never assigned.
    const MESH: Self = Self { id: i64::MAX, epoch: Self::MESH_EPOCH, sequence: -1 };

    /// Returns `true` if another site of the mesh has sent the batch.
    pub fn is_mesh(&self) -> bool {
        self.epoch == Self::MESH_EPOCH
    }
}

impl DraftBatch {
    /// Marks the batch as part of its producer's transaction.
    pub fn set_transactional(&mut self) {
        self.bytes[AT_ATTRIBUTES + 1] |= TRANSACTIONAL_BIT;
        seal(&mut self.bytes);
    }

    /// Sets the producer and the sequence of the batch.
    pub fn set_producer(&mut self, producer: Producer) {
        put_producer(&mut self.bytes, Some(producer));
        seal(&mut self.bytes);
    }

    /// Marks a batch that another site of the mesh has sent. It takes effect without a transaction: that of the other
    /// broker is none of this one.
    pub fn set_mesh(&mut self) {
        self.bytes[AT_ATTRIBUTES + 1] &= !TRANSACTIONAL_BIT;
        self.set_producer(Producer::MESH);
    }

    /// Returns a batch of another site's log, marked as such, to be appended at its own offset. Its records keep their
    /// distances, even if compaction has removed some between them.
    pub fn copied(batch: RecordBatch) -> Self {
        let bytes = batch.bytes.try_into_mut().unwrap_or_else(|shared| shared[..].into());
        let mut copied = Self { bytes };
        copied.set_mesh();
        copied
    }
}

pub(super) fn producer_of(batch: &[u8]) -> Option<Producer> {
    let producer = Producer {
        id: u64_at(batch, AT_PRODUCER_ID) as i64,
        epoch: (u32_at(batch, AT_PRODUCER_EPOCH) >> 16) as i16,
        sequence: u32_at(batch, AT_BASE_SEQUENCE) as i32,
    };
    (producer.id >= 0).then_some(producer)
}

pub(super) fn put_producer(batch: &mut [u8], producer: Option<Producer>) {
    let Producer { id, epoch, sequence } = producer.unwrap_or(Producer { id: -1, epoch: -1, sequence: -1 });
    put_at(batch, AT_PRODUCER_ID, &id.to_be_bytes());
    put_at(batch, AT_PRODUCER_EPOCH, &epoch.to_be_bytes());
    put_at(batch, AT_BASE_SEQUENCE, &sequence.to_be_bytes());
}
