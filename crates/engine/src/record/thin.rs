//! Batches that lose records to compaction and keep their place: the remaining records keep their offsets. A batch
//! still spans from its base offset to the one after its last, so that a log has no gaps between batches.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    AT_ATTRIBUTES, AT_LAST_OFFSET_DELTA, AT_LENGTH, AT_MAX_TIMESTAMP, AT_RECORD_COUNT, BATCH_HEADER_BYTES,
    BatchBuilder, CODEC_BITS, DraftBatch, LENGTH_OVERHEAD, RecordBatch, RecordView, put_at, read_record, seal,
};
use crate::error::{Error, Result};
use crate::ids::Offset;
use crate::limits::BATCH_BYTES_MAX;

impl RecordBatch {
    /// Returns the batch with only the records for which `keep` returns `true`, in the same codec. If no record is
    /// dropped, the result shares its bytes.
    pub fn thinned(&self, mut keep: impl FnMut(&RecordView<'_>) -> bool) -> Result<Self> {
        let codec = self.codec()?;
        let records = codec.decompress(&self.bytes.slice(BATCH_HEADER_BYTES..))?;
        let mut rest = &records[..];
        let mut kept = BytesMut::new();
        let mut count = 0;
        let mut max_timestamp = None;
        for _ in 0..self.count() {
            let before = rest;
            let record = read_record(&mut rest, self.base_offset(), self.base_timestamp_ms())?;
            if keep(&record) {
                kept.put_slice(&before[..before.len() - rest.len()]);
                count += 1;
                max_timestamp = max_timestamp.max(Some(record.timestamp_ms));
            }
        }
        if !rest.is_empty() {
            return Err(Error::malformed("a batch is longer than its records"));
        }
        if count == self.count() {
            return Ok(self.clone());
        }
        let mut bytes = self.bytes[..BATCH_HEADER_BYTES].to_vec();
        codec.compress(&kept, &mut bytes)?;
        if bytes.len() > BATCH_BYTES_MAX {
            // The producer's compressor was better than this one.
            let from = self.base_offset();
            return Err(Error::too_large(format!(
                "the batch at offset {from} has {} bytes with fewer records",
                bytes.len()
            )));
        }
        let length = (bytes.len() - LENGTH_OVERHEAD) as i32;
        put_at(&mut bytes, AT_LENGTH, &length.to_be_bytes());
        // The largest timestamp is the arrival time, which all remaining records share.
        if self.arrival_ms().is_none() {
            put_at(&mut bytes, AT_MAX_TIMESTAMP, &max_timestamp.unwrap_or(self.base_timestamp_ms()).to_be_bytes());
        }
        put_at(&mut bytes, AT_RECORD_COUNT, &count.to_be_bytes());
        seal(&mut bytes);
        Ok(Self { bytes: bytes.into() })
    }

    /// Returns the bytes of a batch with all records that this one has, and without holes between them, so that it can
    /// be published again; `None` if it has none.
    pub fn without_holes(&self) -> Result<Option<Bytes>> {
        match u64::from(self.count()) {
            0 => return Ok(None),
            count if count == self.next_offset() - self.base_offset() => return Ok(Some(self.bytes().clone())),
            _thinned => {}
        }
        let mut builder = BatchBuilder::with_room(self.len());
        for record in &self.records()? {
            let record = record?;
            let headers: Vec<_> = record.headers().collect();
            builder.push(record.timestamp_ms, record.key, record.value, &headers)?;
        }
        Ok(builder.finish().map(DraftBatch::into_bytes))
    }

    /// Returns the batch without its records. The records are not read.
    pub fn emptied(&self) -> Self {
        let mut bytes = self.bytes[..BATCH_HEADER_BYTES].to_vec();
        // An empty batch needs no codec.
        bytes[AT_ATTRIBUTES + 1] &= !CODEC_BITS;
        put_at(&mut bytes, AT_LENGTH, &((BATCH_HEADER_BYTES - LENGTH_OVERHEAD) as i32).to_be_bytes());
        put_at(&mut bytes, AT_MAX_TIMESTAMP, &self.base_timestamp_ms().to_be_bytes());
        put_at(&mut bytes, AT_RECORD_COUNT, &0u32.to_be_bytes());
        seal(&mut bytes);
        Self { bytes: bytes.into() }
    }

    /// Returns a batch without records in the place of offsets whose records were all removed: from `from` to `to`, or
    /// as far as one batch can span.
    pub fn hole(from: Offset, to: Offset) -> Self {
        let mut builder = BatchBuilder::new();
        builder.push(0, None, None, &[]).expect("invariant: nothing is small");
        let batch = builder.finish().expect("invariant: it has a record").stamp(from).emptied();
        let to = to.clamp(from + 1, from + 1 + i32::MAX as u64);
        batch.reaching(to).expect("invariant: so far a batch can reach")
    }

    /// Returns `true` if the batch can span its own offsets and the following ones up to `next_offset`.
    pub fn can_reach(&self, next_offset: Offset) -> bool {
        next_offset >= self.next_offset() && next_offset - self.base_offset() - 1 <= i32::MAX as u64
    }

    /// Returns the batch extended over the following offsets, up to `next_offset`, whose records were all removed;
    /// `None` if a batch cannot span that many offsets.
    pub fn reaching(&self, next_offset: Offset) -> Option<Self> {
        if next_offset == self.next_offset() {
            return Some(self.clone());
        }
        if !self.can_reach(next_offset) {
            return None;
        }
        let last = (next_offset - self.base_offset() - 1) as i32;
        let mut bytes = self.bytes.to_vec();
        put_at(&mut bytes, AT_LAST_OFFSET_DELTA, &last.to_be_bytes());
        seal(&mut bytes);
        Some(Self { bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::record::{BatchBuilder, Producer, Record};

    fn batch(codec: Codec, base: Offset) -> RecordBatch {
        let mut builder = BatchBuilder::new();
        for i in 0..100 {
            let record = Record::new(format!("value {i}").repeat(3)).with_key(format!("key {}", i % 10));
            builder.push_record(&Record { timestamp_ms: 1000 + i, ..record }, 0).expect("it fits");
        }
        let producer = Producer { id: 7, epoch: 1, sequence: 300 };
        builder.finish_with(codec, Some(producer)).expect("records").stamp(base)
    }

    fn offsets(batch: &RecordBatch) -> Vec<Offset> {
        let records = batch.records().expect("it decodes");
        records.iter().map(|record| record.expect("it decodes").offset).collect()
    }

    #[test]
    fn records_that_stay_keep_their_offsets_in_every_codec() {
        for codec in Codec::ALL {
            let whole = batch(codec, 5000);
            let thin = whole.thinned(|record| record.key == Some(b"key 3")).expect("it decodes");
            let thin = RecordBatch::parse(thin.bytes().clone()).expect("a batch");
            assert_eq!(offsets(&thin), (0..10).map(|i| 5003 + 10 * i).collect::<Vec<_>>());
            assert_eq!((thin.base_offset(), thin.next_offset(), thin.count()), (5000, 5100, 10));
            assert_eq!((thin.max_timestamp_ms(), thin.codec()), (1093, Ok(codec)));
            assert_eq!(thin.producer(), whole.producer());
            assert_eq!(whole.without_holes(), Ok(Some(whole.bytes().clone())));
            let again = thin.without_holes().expect("it decodes").expect("records");
            let again = DraftBatch::parse(BytesMut::from(&again[..])).expect("it has no hole").stamp(7);
            assert_eq!((offsets(&again), again.max_timestamp_ms()), ((7..17).collect::<Vec<_>>(), 1093));
            assert!(thin.len() < whole.len());
            // A read from the middle returns the remaining records from there on.
            let from = thin.records_from(5050).expect("it decodes");
            assert_eq!(from.iter().next().map(|record| record.expect("it decodes").offset), Some(5053));
        }
    }

    #[test]
    fn a_batch_without_records_keeps_its_place() {
        let none = batch(Codec::Lz4, 40).thinned(|_| false).expect("it decodes");
        assert_eq!(none.without_holes(), Ok(None));
        let none = RecordBatch::parse(none.bytes().clone()).expect("a batch");
        assert_eq!((none.base_offset(), none.next_offset(), none.count()), (40, 140, 0));
        assert_eq!(offsets(&none), Vec::<Offset>::new());
    }

    #[test]
    fn a_hole_is_a_batch_that_reaches_as_far_as_one_can() {
        for (from, to, next) in [(0, 1, 1), (7, 19, 19), (5, 1 << 40, 5 + (1 << 31))] {
            let hole = RecordBatch::parse(RecordBatch::hole(from, to).bytes().clone()).expect("a batch");
            assert_eq!((hole.base_offset(), hole.next_offset(), hole.count()), (from, next, 0));
            assert_eq!(offsets(&hole), Vec::<u64>::new());
        }
    }

    #[test]
    fn a_batch_is_emptied_without_being_read() {
        for codec in Codec::ALL {
            let whole = batch(codec, 40);
            let none = RecordBatch::parse(whole.emptied().bytes().clone()).expect("a batch");
            assert_eq!((none.base_offset(), none.next_offset(), none.count()), (40, 140, 0));
            assert_eq!((none.producer(), none.len()), (whole.producer(), BATCH_HEADER_BYTES));
            assert_eq!(offsets(&none), Vec::<Offset>::new());
        }
    }

    #[test]
    fn a_batch_spans_the_removed_offsets_after_it() {
        let whole = batch(Codec::None, 40);
        let far = whole.reaching(1000).expect("so far it can");
        let far = RecordBatch::parse(far.bytes().clone()).expect("a batch");
        assert_eq!((far.next_offset(), far.count()), (1000, 100));
        assert_eq!(offsets(&far), offsets(&whole));
        assert_eq!(whole.reaching(whole.next_offset()), Some(whole.clone()));
        assert_eq!(whole.reaching(40 + (1 << 32)), None);
    }

    #[test]
    fn nobody_publishes_a_batch_with_holes() {
        let thin = batch(Codec::None, 0).thinned(|record| record.offset > 0).expect("it decodes");
        let refused = DraftBatch::parse(BytesMut::from(&thin.bytes()[..])).expect_err("it has a hole");
        assert!(refused.message.contains("99 records and a last offset delta of 99"), "{refused}");
    }
}
