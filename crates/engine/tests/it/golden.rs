//! Batches written by another implementation: they are read, and written again to the same bytes.

use engine::{Codec, Record, RecordBatch};

use crate::batches::{encode, read_all};

#[test]
fn batches_of_another_implementation_are_read() {
    let vectors = read_all();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let name = &vector.name;
        let batch = RecordBatch::parse(vector.batch.clone()).expect(name);
        let records = batch.records().expect(name);
        let owned: engine::Result<Vec<Record>> = records.iter().map(|view| Ok(records.own(&view?))).collect();
        assert_eq!(owned.as_ref(), Ok(&vector.records), "{name}");

        assert_eq!((batch.codec(), batch.producer()), (Ok(vector.codec), vector.producer), "{name}");
        let first = &vector.records[0];
        assert_eq!((batch.base_offset(), batch.base_timestamp_ms()), (first.offset, first.timestamp_ms), "{name}");
        assert_eq!(batch.count() as usize, vector.records.len(), "{name}");
        assert_eq!(Some(batch.next_offset()), vector.records.last().map(|last| last.offset + 1), "{name}");
        let latest = vector.records.iter().map(|record| record.timestamp_ms).max();
        assert_eq!(Some(batch.max_timestamp_ms()), latest, "{name}");
    }
}

#[test]
fn the_same_records_become_the_same_bytes() {
    for vector in read_all() {
        let batch = encode(&vector);
        if vector.codec == Codec::None {
            assert_eq!(batch.bytes(), &vector.batch, "{}", vector.name);
        }
        assert_eq!(batch.codec(), Ok(vector.codec), "{}", vector.name);
    }
}
