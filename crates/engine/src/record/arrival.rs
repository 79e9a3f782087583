//! Requirements that a topic may have for a batch before it accepts it: arrival times, keys, and the size of its
//! records.

use bytes::Bytes;

use super::{
    AT_ATTRIBUTES, AT_MAX_TIMESTAMP, BATCH_HEADER_BYTES, DraftBatch, RecordBatch, put_at, read_record, seal, u64_at,
};
use crate::codec::Codec;
use crate::error::Result;

/// Bit in the second byte of the attributes: all records have the largest timestamp, which is their arrival time.
const ARRIVAL_BIT: u8 = 0x08;

impl DraftBatch {
    /// Sets the arrival time as the timestamp of all records.
    pub fn set_arrival(&mut self, now_ms: i64) {
        self.bytes[AT_ATTRIBUTES + 1] |= ARRIVAL_BIT;
        put_at(&mut self.bytes, AT_MAX_TIMESTAMP, &now_ms.to_be_bytes());
        seal(&mut self.bytes);
    }

    /// Returns the largest timestamp of the records; with arrival times it is the timestamp of all of them.
    pub fn max_timestamp_ms(&self) -> i64 {
        u64_at(&self.bytes, AT_MAX_TIMESTAMP) as i64
    }

    /// Returns `true` if every record has a key. Decompresses the records, within the limits of a reader.
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

    /// Returns the positions in the batch of the records without a key.
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

    /// Returns `true` if the decompressed records have at most `bytes_max` bytes, and also if the codec is unknown.
    pub fn expands_within(&self, bytes_max: usize) -> bool {
        self.codec().map_or(true, |codec| codec.expands_within(&self.bytes[BATCH_HEADER_BYTES..], bytes_max))
    }

    /// Returns `true` if [`DraftBatch::expands_within`] has to decompress the records.
    pub fn has_to_count(&self, bytes_max: usize) -> bool {
        self.codec().is_ok_and(|codec| codec.has_to_count(&self.bytes[BATCH_HEADER_BYTES..], bytes_max))
    }

    /// Calls `work` with the decompressed records and their count.
    fn look<T>(&self, work: impl FnOnce(&mut &[u8], u32) -> Result<T>) -> Result<T> {
        let records = &self.bytes[BATCH_HEADER_BYTES..];
        match self.codec()? {
            Codec::None => work(&mut &*records, self.count()),
            codec => work(&mut &codec.decompress(&Bytes::copy_from_slice(records))?[..], self.count()),
        }
    }
}

impl RecordBatch {
    /// Returns the arrival time of the batch if it is the timestamp of its records.
    pub fn arrival_ms(&self) -> Option<i64> {
        (self.bytes[AT_ATTRIBUTES + 1] & ARRIVAL_BIT != 0).then(|| self.max_timestamp_ms())
    }
}
