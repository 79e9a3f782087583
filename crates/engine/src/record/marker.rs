//! Control batches: written by a broker into a log to record how a producer's transaction ended there.
//!
//! A marker is a batch with one record, all integers big-endian:
//!
//! | | bytes | field |
//! |---|---|---|
//! | key | 2 | version, 0 |
//! | | 2 | 0 for an abort, 1 for a commit |
//! | value | 2 | version, 0 |
//! | | 4 | epoch of the coordinator |

use bytes::{Buf, BufMut};

use super::{
    AT_ATTRIBUTES, BATCH_HEADER_BYTES, BatchBuilder, CONTROL_BIT, DraftBatch, Producer, RecordBatch, TRANSACTIONAL_BIT,
    read_record, seal,
};
use crate::codec::Codec;
use crate::error::{Error, Result};

const VERSION: i16 = 0;
/// Sequence of a marker, which is not numbered among the batches of its producer.
const NO_SEQUENCE: i32 = -1;

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    Abort,
    Commit,
}

/// End of a producer's transaction in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    pub decision: Decision,
    /// Number of times that the coordinator has changed.
    pub coordinator_epoch: i32,
}

impl Marker {
    /// Returns the control batch of this marker for a producer. After it, producers with a smaller epoch are fenced in
    /// the partition.
    pub fn draft(&self, id: i64, epoch: i16, timestamp_ms: i64) -> Result<DraftBatch> {
        let mut key = Vec::with_capacity(4);
        let mut value = Vec::with_capacity(6);
        key.put_i16(VERSION);
        key.put_i16(self.decision as i16);
        value.put_i16(VERSION);
        value.put_i32(self.coordinator_epoch);
        let mut builder = BatchBuilder::new();
        builder.push(timestamp_ms, Some(&key), Some(&value), &[])?;
        let producer = Producer { id, epoch, sequence: NO_SEQUENCE };
        let mut draft = builder.finish_with(Codec::None, Some(producer)).expect("invariant: it has a record");
        draft.bytes[AT_ATTRIBUTES + 1] |= TRANSACTIONAL_BIT | CONTROL_BIT;
        seal(&mut draft.bytes);
        Ok(draft)
    }
}

impl RecordBatch {
    /// Returns the marker that the batch holds; `None` if it is no marker, or one of an unknown kind.
    pub fn marker(&self) -> Result<Option<Marker>> {
        if !self.is_control() || self.count() == 0 {
            return Ok(None);
        }
        let records = self.codec()?.decompress(&self.bytes.slice(BATCH_HEADER_BYTES..))?;
        let record = read_record(&mut &records[..], self.base_offset(), self.base_timestamp_ms())?;
        let mut key = record.key.unwrap_or_default();
        let mut value = record.value.unwrap_or_default();
        let cut_short = |error: bytes::TryGetError| Error::malformed(format!("a marker is cut short: {error}"));
        let _version = key.try_get_i16().map_err(cut_short)?;
        let kind = key.try_get_i16().map_err(cut_short)?;
        let decision = match kind {
            0 => Decision::Abort,
            1 => Decision::Commit,
            _ => return Ok(None),
        };
        let _version = value.try_get_i16().map_err(cut_short)?;
        let coordinator_epoch = value.try_get_i32().map_err(cut_short)?;
        Ok(Some(Marker { decision, coordinator_epoch }))
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_marker_is_read_as_it_was_written_and_shows_no_record() {
        for decision in [Decision::Abort, Decision::Commit] {
            let marker = Marker { decision, coordinator_epoch: 3 };
            let draft = marker.draft(7, 2, 1_000).expect("a small record");
            assert!(draft.is_control() && draft.is_transactional());
            let batch = RecordBatch::parse(draft.stamp(40).bytes().clone()).expect("a batch");
            assert_eq!(batch.marker(), Ok(Some(marker)));
            assert_eq!((batch.base_offset(), batch.next_offset()), (40, 41));
            assert_eq!(batch.producer(), Some(Producer { id: 7, epoch: 2, sequence: -1 }));
            assert_eq!(batch.records().expect("none").iter().count(), 0);
            assert_eq!(batch.emptied().marker(), Ok(None));
        }
    }

    #[test]
    fn a_marker_has_the_layout_that_others_read() {
        let draft = Marker { decision: Decision::Commit, coordinator_epoch: 5 }.draft(1, 0, 9).expect("small");
        let bytes = draft.into_bytes();
        assert_eq!(bytes[AT_ATTRIBUTES..][..2], [0, 0x30]);
        let record = [32, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 5, 0];
        assert_eq!(bytes[BATCH_HEADER_BYTES..], record);
    }

    #[test]
    fn nobody_publishes_a_marker() {
        let draft = Marker { decision: Decision::Abort, coordinator_epoch: 0 }.draft(1, 0, 9).expect("small");
        let refused = DraftBatch::parse(BytesMut::from(&draft.into_bytes()[..])).expect_err("a control batch");
        assert_eq!(refused.kind, ErrorKind::Invalid);
    }
}
