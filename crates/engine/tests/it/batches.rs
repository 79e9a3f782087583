//! Batches of `testdata/batches`, with the records that they hold.

use std::path::PathBuf;

use bytes::Bytes;
use engine::{BatchBuilder, Codec, Producer, Record, RecordBatch};
use serde_json::Value;

pub struct Vector {
    pub name: String,
    pub codec: Codec,
    pub producer: Option<Producer>,
    pub records: Vec<Record>,
    pub batch: Bytes,
}

/// Reads all files, in the order of their names.
pub fn read_all() -> Vec<Vector> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/batches");
    let entries = std::fs::read_dir(folder).expect("the folder of the batches");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hex"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a text");
        let (records, batch) = text.trim_end().rsplit_once('\n').expect("records and their batch");
        let mut lines: Vec<Value> =
            records.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        let about = if lines[0]["codec"].is_null() { Value::Null } else { lines.remove(0) };
        Vector {
            name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
            codec: about["codec"].as_str().map_or(Codec::None, |name| name.parse().expect("a codec")),
            producer: parse_producer(&about["producer"]),
            records: lines.iter().map(parse_record).collect(),
            batch: from_hex(batch),
        }
    };
    paths.into_iter().map(read).collect()
}

/// Returns the batch as this crate writes it.
pub fn encode(vector: &Vector) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    for record in &vector.records {
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        builder
            .push(record.timestamp_ms, record.key.as_deref(), record.value.as_deref(), &headers)
            .expect("the record fits");
    }
    let draft = builder.finish_with(vector.codec, vector.producer).expect("records");
    draft.stamp(vector.records[0].offset)
}

fn parse_producer(producer: &Value) -> Option<Producer> {
    let field = |at: usize| producer[at].as_i64().expect("a number");
    let small = |at: usize| i32::try_from(field(at)).expect("a small number");
    producer.is_array().then(|| Producer { id: field(0), epoch: small(1) as i16, sequence: small(2) })
}

fn parse_record(record: &Value) -> Record {
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
