//! Positions of records in the bytes of their batch, for people who inspect the database.

use std::fmt::Write;

use bytes::Bytes;
use engine::limits::BATCH_BYTES_MAX;
use engine::record::{BATCH_HEADER_BYTES, RecordView};
use engine::{Codec, RecordBatch, Result};

/// Bits of the field `texts`.
const KEY_IS_TEXT: i64 = 1;
const VALUE_IS_TEXT: i64 = 2;

/// Record of a batch: a row of the table `positions`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) offset: i64,
    pub(super) time_ms: i64,
    /// Beginning and length of the key and the value; no beginning if there are no such bytes to show.
    pub(super) key: (Option<i64>, i64),
    pub(super) value: (Option<i64>, i64),
    pub(super) texts: i64,
    pub(super) headers: String,
}

/// Records of a batch, and their decompressed bytes if the batch is compressed.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) positions: Vec<Position>,
    pub(super) plain: Option<Bytes>,
}

impl Shown {
    /// Decodes the records of a batch. Empty if they do not decode: the batch is stored all the same. If they are much
    /// larger decompressed, the decompressed bytes are not stored, and keys and values are not shown.
    pub(super) fn of(batch: &RecordBatch) -> Self {
        Self::decode(batch).unwrap_or_else(|error| {
            tracing::debug!(%error, offset = batch.base_offset(), "cannot decode a batch; the view omits its records");
            Self::default()
        })
    }

    fn decode(batch: &RecordBatch) -> Result<Self> {
        let records = batch.records()?;
        let is_plain = batch.codec()? == Codec::None;
        let plain = (!is_plain && records.bytes().len() <= BATCH_BYTES_MAX).then(|| records.bytes().clone());
        let is_shown = is_plain || plain.is_some();
        let shift = if is_plain { BATCH_HEADER_BYTES } else { 0 };
        let begin = records.bytes().as_ptr() as usize;
        // Parts of a record are slices of the bytes of all records.
        let place = |part: Option<&[u8]>| {
            let at = part.filter(|_| is_shown).map(|part| (part.as_ptr() as usize - begin + shift) as i64);
            (at, part.map_or(0, <[u8]>::len) as i64)
        };
        let position = |view: RecordView<'_>| Position {
            offset: view.offset as i64,
            time_ms: view.timestamp_ms,
            key: place(view.key),
            value: place(view.value),
            texts: is_text(view.key, KEY_IS_TEXT) | is_text(view.value, VALUE_IS_TEXT),
            headers: json(&view),
        };
        let positions = records.iter().map(|view| view.map(position)).collect::<Result<_>>()?;
        Ok(Self { positions, plain })
    }
}

fn is_text(part: Option<&[u8]>, bit: i64) -> i64 {
    if part.is_some_and(|part| std::str::from_utf8(part).is_ok()) { bit } else { 0 }
}

/// Returns the headers of a record as JSON, in their order.
fn json(view: &RecordView<'_>) -> String {
    let mut json = String::from("{");
    for (name, value) in view.headers() {
        if json.len() > 1 {
            json.push(',');
        }
        push_text(&mut json, name);
        json.push(':');
        match value {
            Some(value) => push_text(&mut json, value),
            None => json.push_str("null"),
        }
    }
    json.push('}');
    json
}

fn push_text(json: &mut String, bytes: &[u8]) {
    json.push('"');
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            for char in text.chars() {
                match char {
                    '"' | '\\' => json.extend(['\\', char]),
                    '\0'..='\x1f' => write!(json, "\\u{:04x}", char as u32).unwrap_or_default(),
                    _ => json.push(char),
                }
            }
        }
        Err(_) => {
            json.push_str("x'");
            bytes.iter().for_each(|byte| write!(json, "{byte:02x}").unwrap_or_default());
            json.push('\'');
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use engine::BatchBuilder;

    use super::*;

    #[test]
    fn positions_lead_to_the_bytes_of_records_compressed_or_not() {
        for codec in [Codec::None, Codec::Gzip, Codec::Zstd] {
            let mut builder = BatchBuilder::new();
            let key = [b'k'; 500];
            builder.push(5, Some(&key), Some(b"\xff\x00"), &[(b"a\"b\n", Some(b"\xfe"))]).expect("a record");
            builder.push(6, None, Some(b""), &[(b"x", None), (b"y", Some("ü".as_bytes()))]).expect("a record");
            let batch = builder.finish_with(codec, None).expect("records").stamp(70);
            let Shown { positions, plain } = Shown::of(&batch);
            let bytes = plain.as_ref().unwrap_or(batch.bytes());
            let part = |(at, len): (Option<i64>, i64)| at.map(|at| &bytes[at as usize..(at + len) as usize]);
            let shown: Vec<_> = positions
                .iter()
                .map(|p| (p.offset, p.time_ms, part(p.key), part(p.value), p.texts, p.headers.as_str()))
                .collect();
            let first = (70, 5, Some(&key[..]), Some(&b"\xff\x00"[..]), 1, r#"{"a\"b\u000a":"x'fe'"}"#);
            let second = (71, 6, None, Some(&b""[..]), 2, r#"{"x":null,"y":"ü"}"#);
            assert_eq!(shown, [first, second], "{codec:?}");
            assert_eq!(plain.is_none(), codec == Codec::None);
        }
    }
}
