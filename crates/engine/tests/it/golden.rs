//! Batches that another implementation wrote: read here, and written here to the same bytes.

use engine::{Record, RecordBatch};

use crate::batches::{encode, read_all};

#[test]
fn batches_of_another_implementation_are_read() {
    let vectors = read_all();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let name = &vector.name;
        let batch = RecordBatch::parse(vector.batch.clone()).expect(name);
        let views = batch.records().expect(name).map(|view| view.map(|view| batch.own(&view)));
        assert_eq!(views.collect::<engine::Result<Vec<Record>>>().as_ref(), Ok(&vector.records), "{name}");

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
        assert_eq!(encode(&vector.records).bytes(), &vector.batch, "{}", vector.name);
    }
}
