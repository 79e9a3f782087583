//! The batches in `testdata/batches`, with the records that they hold.

use std::path::PathBuf;

use bytes::Bytes;
use engine::{BatchBuilder, Record, RecordBatch};
use serde_json::Value;

pub struct Vector {
    pub name: String,
    pub records: Vec<Record>,
    pub batch: Bytes,
}

/// All files, in the order of their names.
pub fn read_all() -> Vec<Vector> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/batches");
    let entries = std::fs::read_dir(folder).expect("the folder of the batches");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hex"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a text");
        let (records, batch) = text.trim_end().rsplit_once('\n').expect("records and their batch");
        Vector {
            name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
            records: records.lines().map(parse_record).collect(),
            batch: from_hex(batch),
        }
    };
    paths.into_iter().map(read).collect()
}

/// The records as this crate puts them into a batch.
pub fn encode(records: &[Record]) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    for record in records {
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        builder
            .push(record.timestamp_ms, record.key.as_deref(), record.value.as_deref(), &headers)
            .expect("the record fits");
    }
    builder.finish().expect("records").stamp(records[0].offset)
}

fn parse_record(line: &str) -> Record {
    let record: Value = serde_json::from_str(line).expect("a record in JSON");
    let header = |header: &Value| (nullable(&header[0]).expect("a name"), nullable(&header[1]));
    Record {
        offset: record["offset"].as_u64().expect("an offset"),
        timestamp_ms: record["timestamp_ms"].as_i64().expect("a timestamp"),
        key: nullable(&record["key"]),
        value: nullable(&record["value"]),
        headers: record["headers"].as_array().expect("headers").iter().map(header).collect(),
    }
}

fn nullable(value: &Value) -> Option<Bytes> {
    match value {
        Value::Null => None,
        value => Some(from_hex(value.as_str().expect("bytes in hex"))),
    }
}

fn from_hex(text: &str) -> Bytes {
    assert_eq!(text.len() % 2, 0, "two digits for each byte");
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}
