//! Mapping between the fields of an entry and the parts of its record.
//!
//! A first field `key` is the key of the record. A field `value` that is the first one, or the next one after the key,
//! is its value: so `XADD orders * key c7 value {..}` is what a Kafka consumer expects. All other fields are headers,
//! in their order. The header before them, `thalweg.entry`, contains the id of the entry.
//!
//! In the other direction, key, value and headers become fields. A record that was not added as an entry always has a
//! value, which may be empty; a header without a value becomes an empty field.

use bytes::Bytes;
use engine::streams::Entry;

use crate::redis::writer::Writer;

const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"value";

/// Parts of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: Vec<(&'a [u8], Option<&'a [u8]>)>,
}

/// Returns the record of fields, which alternate between names and values.
pub(super) fn parts_of<'a>(fields: &[&'a [u8]]) -> Parts<'a> {
    let (key, fields) = take(fields, KEY);
    let (value, fields) = take(fields, VALUE);
    Parts { key, value, headers: fields.chunks_exact(2).map(|pair| (pair[0], Some(pair[1]))).collect() }
}

/// Returns the value of the first field if it has the name `wanted`, and the fields after it.
fn take<'f, 'a>(fields: &'f [&'a [u8]], wanted: &[u8]) -> (Option<&'a [u8]>, &'f [&'a [u8]]) {
    match fields {
        [name, value, rest @ ..] if *name == wanted => (Some(value), rest),
        fields => (None, fields),
    }
}

/// Returns the fields of an entry.
fn fields_of(entry: &Entry) -> Vec<(&[u8], &[u8])> {
    let record = &entry.record;
    let mut fields = Vec::with_capacity(record.headers.len() + 2);
    let is_own = entry.is_own();
    fields.extend(record.key.as_deref().map(|key| (KEY, key)));
    if record.value.is_some() || !is_own {
        fields.push((VALUE, record.value()));
    }
    let headers = &record.headers[usize::from(is_own)..];
    fn shown((name, value): &(Bytes, Option<Bytes>)) -> (&[u8], &[u8]) {
        (name, value.as_deref().unwrap_or_default())
    }
    fields.extend(headers.iter().map(shown));
    fields
}

pub(super) fn write(out: &mut Writer, entry: &Entry) {
    let fields = fields_of(entry);
    out.array(2);
    out.bulk(entry.id.to_string().as_bytes());
    out.array(2 * fields.len());
    for (name, value) in fields {
        out.bulk(name);
        out.bulk(value);
    }
}

pub(super) fn write_all(out: &mut Writer, entries: &[Entry]) {
    out.array(entries.len());
    entries.iter().for_each(|entry| write(out, entry));
}

#[cfg(test)]
mod tests {
    use engine::streams::{EntryId, ID_HEADER};
    use engine::{BatchBuilder, Record};

    use super::*;

    /// Returns the entry that is added with these fields.
    fn entry_of(fields: &[&[u8]]) -> Entry {
        let parts = parts_of(fields);
        let mut headers = vec![(ID_HEADER.as_bytes(), Some(&b"5-1"[..]))];
        headers.extend(parts.headers);
        let mut builder = BatchBuilder::new();
        builder.push(5, parts.key, parts.value, &headers).expect("it fits");
        let batch = builder.finish().expect("a record").stamp(0);
        let records = batch.records().expect("records");
        let view = records.iter().next().expect("one").expect("a record");
        Entry { id: EntryId::ZERO.of_record(&view), record: records.own(&view) }
    }

    #[test]
    fn a_key_and_a_value_in_front_are_those_of_the_record() {
        let fields: [&[u8]; 6] = [b"key", b"k", b"value", b"v", b"a", b"1"];
        let headers = vec![(&b"a"[..], Some(&b"1"[..]))];
        assert_eq!(parts_of(&fields), Parts { key: Some(b"k"), value: Some(b"v"), headers: headers.clone() });
        assert_eq!(parts_of(&fields[2..]), Parts { key: None, value: Some(b"v"), headers });
        let swapped: [&[u8]; 4] = [b"a", b"1", b"value", b"v"];
        assert_eq!(parts_of(&swapped).value, None);
    }

    #[test]
    fn records_of_others_have_a_value_at_any_rate() {
        let record = Record::new("v").with_key("k").with_header("h", "1");
        let entry = |record| Entry { id: EntryId::new(1, 0), record };
        let all = entry(record.clone());
        assert_eq!(fields_of(&all), [(KEY, &b"k"[..]), (VALUE, b"v"), (b"h", b"1")]);
        let none = entry(Record::default());
        assert_eq!(fields_of(&none), [(VALUE, &b""[..])]);
    }

    /// Fields of any names are returned in their order.
    #[test]
    fn fields_come_back_as_they_were_added() {
        let names = [KEY, VALUE, ID_HEADER.as_bytes(), b"", b"\xff\0"];
        // All combinations of up to four names.
        for number in 0..names.len().pow(4) {
            let picked = [1, 5, 25, 125].map(|power| names[number / power % names.len()]);
            for length in 1..=4 {
                let fields: Vec<&[u8]> =
                    picked[..length].iter().flat_map(|name| [*name, &name[..name.len() / 2]]).collect();
                let entry = entry_of(&fields);
                let back: Vec<&[u8]> = fields_of(&entry).into_iter().flat_map(|(name, value)| [name, value]).collect();
                assert_eq!(back, fields);
                assert_eq!(entry.id, EntryId::new(5, 1));
            }
        }
    }
}
