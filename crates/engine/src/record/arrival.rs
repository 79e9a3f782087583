//! What a topic may ask of a batch before it takes it: the time of its arrival, and keys.

use bytes::Bytes;

use super::{
    AT_ATTRIBUTES, AT_MAX_TIMESTAMP, BATCH_HEADER_BYTES, DraftBatch, RecordBatch, put_at, read_record, seal, u64_at,
};
use crate::codec::Codec;
use crate::error::Result;

/// Of the second byte of the attributes: all records have the largest timestamp, which is when they arrived.
const ARRIVAL_BIT: u8 = 0x08;

impl DraftBatch {
    /// Gives all records the time at which they arrived.
    pub fn set_arrival(&mut self, now_ms: i64) {
        self.bytes[AT_ATTRIBUTES + 1] |= ARRIVAL_BIT;
        put_at(&mut self.bytes, AT_MAX_TIMESTAMP, &now_ms.to_be_bytes());
        seal(&mut self.bytes);
    }

    /// The largest time of its records; where they have that of their arrival, the time of all.
    pub fn max_timestamp_ms(&self) -> i64 {
        u64_at(&self.bytes, AT_MAX_TIMESTAMP) as i64
    }

    /// Whether every record has a key. Decompresses them, within the limits of a reader.
    pub fn has_all_keys(&self) -> Result<bool> {
        self.look(|records, count| {
            for _ in 0..count {
                if read_record(records, 0, 0)?.key.is_none() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// The records without a key, by their place in the batch.
    pub fn without_keys(&self) -> Result<Vec<u32>> {
        self.look(|records, count| {
            let mut without = Vec::new();
            for place in 0..count {
                if read_record(records, 0, 0)?.key.is_none() {
                    without.push(place);
                }
            }
            Ok(without)
        })
    }

    /// Whether its records, decompressed, have no more than so many bytes. Of a codec that nobody knows nothing is
    /// said.
    pub fn expands_within(&self, bytes_max: usize) -> bool {
        self.codec().map_or(true, |codec| codec.expands_within(&self.bytes[BATCH_HEADER_BYTES..], bytes_max))
    }

    /// Whether [`DraftBatch::expands_within`] has to decompress to know.
    pub fn has_to_count(&self, bytes_max: usize) -> bool {
        self.codec().is_ok_and(|codec| codec.has_to_count(&self.bytes[BATCH_HEADER_BYTES..], bytes_max))
    }

    /// Looks at the records, so many of them, one behind the other.
    fn look<T>(&self, work: impl FnOnce(&mut &[u8], u32) -> Result<T>) -> Result<T> {
        let records = &self.bytes[BATCH_HEADER_BYTES..];
        match self.codec()? {
            Codec::None => work(&mut &*records, self.count()),
            codec => work(&mut &codec.decompress(&Bytes::copy_from_slice(records))?[..], self.count()),
        }
    }
}

impl RecordBatch {
    /// When the batch arrived, where that is the time of its records.
    pub fn arrival_ms(&self) -> Option<i64> {
        (self.bytes[AT_ATTRIBUTES + 1] & ARRIVAL_BIT != 0).then(|| self.max_timestamp_ms())
    }
}
