//! A record batch is refused, or its records can be read and written again.
//!
//! Input: one byte, which requests a valid checksum if it is odd, and the batch.

use crate::support::seal;
use bytes::{Bytes, BytesMut};
use engine::limits::BATCH_RECORDS_MAX;
use engine::record::HeaderView;
use engine::{BatchBuilder, Codec, DraftBatch, Record, RecordBatch, Result};

pub fn check(input: &[u8]) {
    let Some((flags, bytes)) = input.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    // The leader epoch is outside of the checksum; it is set to 0 when a batch gets its place.
    bytes.iter_mut().skip(12).take(4).for_each(|byte| *byte = 0);
    if flags % 2 == 1 {
        seal(&mut bytes);
    }
    let bytes = Bytes::from(bytes);
    let draft = DraftBatch::parse(BytesMut::from(&bytes[..]));
    let Ok(batch) = RecordBatch::parse(bytes.clone()) else {
        // A draft has no place yet; its base offset may be out of range, and everything else has to be correct.
        let mut placed = bytes.to_vec();
        placed.iter_mut().take(8).for_each(|byte| *byte = 0);
        assert_eq!(RecordBatch::parse(placed.into()).is_ok_and(|batch| is_whole(&batch)), draft.is_ok());
        return;
    };
    assert_eq!(batch.bytes(), &bytes);
    assert!(batch.count() as usize <= BATCH_RECORDS_MAX);
    // Only a log has batches that lost records.
    assert_eq!(draft.is_ok(), is_whole(&batch));
    if let Ok(draft) = draft {
        assert_eq!((draft.count(), draft.len()), (batch.count(), batch.len()));
        assert_eq!(draft.stamp(batch.base_offset()), batch);
    }
    if let Ok(thin) = batch.thinned(|record| record.offset % 2 == 0) {
        assert_eq!((thin.base_offset(), thin.next_offset()), (batch.base_offset(), batch.next_offset()));
        RecordBatch::parse(thin.bytes().clone()).expect("it is a batch still");
    }

    let Ok(read) = batch.records() else {
        return;
    };
    let mut count = 0;
    let records: Result<Vec<Record>> = read
        .iter()
        .inspect(|_| count += 1)
        .map(|view| {
            let view = view?;
            let record = read.own(&view);
            assert_eq!((view.key, view.value), (record.key.as_deref(), record.value.as_deref()));
            Ok(record)
        })
        .collect();
    assert!(count <= batch.count());
    let emptied = RecordBatch::parse(batch.emptied().bytes().clone()).expect("it is a batch still");
    assert_eq!((emptied.next_offset(), emptied.count()), (batch.next_offset(), 0));
    if batch.is_control() {
        assert_eq!(count, 0);
        // The transaction marker, if any, is not a record for readers.
        return drop(batch.marker());
    }
    if let Ok(records) = records {
        assert_eq!(count, batch.count());
        if !records.is_empty() {
            write_again(&batch, &records);
        }
    }
}

fn is_whole(batch: &RecordBatch) -> bool {
    // Only a broker writes control batches.
    !batch.is_control() && batch.count() > 0 && u64::from(batch.count()) == batch.next_offset() - batch.base_offset()
}

fn write_again(batch: &RecordBatch, records: &[Record]) {
    let mut builder = BatchBuilder::new();
    for record in records {
        let headers: Vec<HeaderView<'_>> =
            record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        let pushed = builder.push(record.timestamp_ms, record.key.as_deref(), record.value.as_deref(), &headers);
        if batch.codec() != Ok(Codec::None) && pushed.is_err() {
            // A compressed batch holds more than fits into an uncompressed one.
            return;
        }
        pushed.expect("what was in a batch fits into one");
    }
    let expected_bytes = builder.len();
    // Records that compression does not shrink stay uncompressed.
    let codec = Codec::ALL[batch.base_timestamp_ms() as usize % Codec::ALL.len()];
    let again = builder.finish_with(codec, batch.producer()).expect("records").stamp(batch.base_offset());
    assert!(builder.is_empty());
    assert_eq!(again.len() < expected_bytes, again.codec() != Ok(Codec::None));
    assert_eq!(again.producer(), batch.producer());
    assert_eq!(RecordBatch::parse(again.bytes().clone()).as_ref(), Ok(&again));
    assert_eq!(again.count(), batch.count());
    let views = again.records().expect("what is compressed here is read here");
    let read: Vec<Record> = views.iter().map(|view| views.own(&view.expect("what is built is valid"))).collect();
    for (i, (read, record)) in read.iter().zip(records).enumerate() {
        // A batch of another implementation may have gaps in its offsets; a batch of this one has none.
        let expected = Record { offset: batch.base_offset() + i as u64, ..record.clone() };
        assert_eq!(*read, expected);
    }
    let latest = records.iter().map(|record| record.timestamp_ms).max();
    assert_eq!(Some(again.max_timestamp_ms()), latest);
}
