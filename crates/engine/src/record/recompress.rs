//! Recompression of batches whose topic sets another codec than their publisher used.

use bytes::Bytes;

use super::{AT_ATTRIBUTES, AT_LENGTH, BATCH_HEADER_BYTES, CODEC_BITS, DraftBatch, LENGTH_OVERHEAD, check_most};
use super::{put_at, seal};
use crate::codec::Codec;
use crate::error::Result;

impl DraftBatch {
    /// Compresses the records with another codec. Everything else in the batch is unchanged: its records, its
    /// timestamps and its producer.
    pub fn recompress(&mut self, codec: Codec) -> Result<()> {
        let before = self.codec()?;
        if before == codec {
            return Ok(());
        }
        let records = before.decompress(&Bytes::copy_from_slice(&self.bytes[BATCH_HEADER_BYTES..]))?;
        let mut bytes = self.bytes[..BATCH_HEADER_BYTES].to_vec();
        codec.compress(&records, &mut bytes)?;
        check_most(&bytes)?;
        bytes[AT_ATTRIBUTES + 1] = bytes[AT_ATTRIBUTES + 1] & !CODEC_BITS | codec as u8;
        let length = (bytes.len() - LENGTH_OVERHEAD) as i32;
        put_at(&mut bytes, AT_LENGTH, &length.to_be_bytes());
        seal(&mut bytes);
        self.bytes = Bytes::from(bytes).into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{BatchBuilder, Producer, Record, RecordBatch};

    #[test]
    fn a_batch_has_the_same_records_in_every_codec() {
        let producer = Producer { id: 7, epoch: 1, sequence: 5 };
        let batch = |codec| {
            let mut builder = BatchBuilder::new();
            for i in 0..100 {
                let record = Record::new(format!("value {i}").repeat(5)).with_key(format!("key {i}"));
                builder.push_record(&Record { timestamp_ms: 1000 + i, ..record }, 0).expect("it fits");
            }
            let mut batch = builder.finish_with(codec, Some(producer)).expect("records");
            batch.set_transactional();
            batch
        };
        let read = |batch: &RecordBatch| -> Vec<Record> {
            let records = batch.records().expect("readable");
            records.iter().map(|view| records.own(&view.expect("readable"))).collect()
        };
        let expected = read(&batch(Codec::None).stamp(9));
        for from in Codec::ALL {
            for to in Codec::ALL {
                let mut draft = batch(from);
                draft.recompress(to).expect("compressed");
                assert_eq!((draft.codec(), draft.count(), draft.producer()), (Ok(to), 100, Some(producer)));
                assert!(draft.is_transactional());
                // Its frame and its checksum are valid.
                let parsed = RecordBatch::parse(draft.stamp(9).bytes().clone()).expect("a batch");
                assert_eq!((read(&parsed), parsed.max_timestamp_ms()), (expected.clone(), 1099), "{from:?} to {to:?}");
            }
        }
    }
}
