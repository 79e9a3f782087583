//! Records of a batch, read in place one after the other.

use bytes::Bytes;

use super::{
    BATCH_HEADER_BYTES, HeaderView, Record, RecordBatch, RecordView, read_length, read_nullable, read_varint, take,
};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::ids::Offset;
use crate::limits::{HEADERS_MAX, RECORDS_EXPANDED_BYTES_MAX};

impl RecordBatch {
    /// Returns the records, decompressed if necessary. Otherwise they share the batch's bytes. A control batch has
    /// none.
    pub fn records(&self) -> Result<Records> {
        self.records_from(0)
    }

    /// Returns the records at or after an offset: a read at an offset gets the whole batch that holds it.
    pub fn records_from(&self, first: Offset) -> Result<Records> {
        Ok(self.records_in(self.expand()?, first))
    }

    /// Returns the bytes of the records, decompressed if necessary; no bytes for a control batch.
    pub fn expand(&self) -> Result<Bytes> {
        if self.is_control() {
            Ok(Bytes::new())
        } else {
            self.codec()?.decompress(&self.bytes.slice(BATCH_HEADER_BYTES..))
        }
    }

    /// Returns the maximum memory in bytes that [`RecordBatch::expand`] allocates in addition to the batch itself: 0 if
    /// it shares the batch's bytes.
    pub fn expansion_bytes_max(&self) -> usize {
        match self.codec() {
            Ok(Codec::None) | Err(_) => 0,
            Ok(_) if self.is_control() => 0,
            Ok(codec) => {
                let bound = codec.size_bound(&self.bytes[BATCH_HEADER_BYTES..]);
                bound.map_or(RECORDS_EXPANDED_BYTES_MAX, |bound| bound.min(RECORDS_EXPANDED_BYTES_MAX))
            }
        }
    }

    /// Returns the records from an offset on, in bytes that [`RecordBatch::expand`] has returned.
    pub fn records_in(&self, bytes: Bytes, first: Offset) -> Records {
        let count = if self.is_control() { 0 } else { self.count() };
        Records {
            bytes,
            at: 0,
            left: count,
            count,
            first,
            base_offset: self.base_offset(),
            base_timestamp: self.base_timestamp_ms(),
            arrival: self.arrival_ms(),
        }
    }
}

impl RecordBatch {
    /// Returns the record of a batch with exactly one record that is neither compressed nor a control record; `None`
    /// for any other batch, and if it does not decode. The record shares the batch's bytes.
    pub fn alone(&self) -> Option<Record> {
        if self.count() != 1 || self.is_control() || self.codec() != Ok(Codec::None) {
            return None;
        }
        let mut only = RecordIter {
            rest: &self.bytes[BATCH_HEADER_BYTES..],
            left: 1,
            first: 0,
            base_offset: self.base_offset(),
            base_timestamp: self.base_timestamp_ms(),
            arrival: self.arrival_ms(),
        };
        Some(own(&self.bytes, &only.next()?.ok()?))
    }
}

/// Records of a batch, to be read in place.
#[derive(Clone, Debug)]
pub struct Records {
    bytes: Bytes,
    /// Byte position at which [`Records::advance`] continues, and the number of records left after it.
    at: usize,
    left: u32,
    count: u32,
    /// Offset before which records are skipped.
    first: Offset,
    base_offset: Offset,
    base_timestamp: i64,
    /// Timestamp of every record if the topic sets arrival times.
    arrival: Option<i64>,
}

impl Records {
    /// Returns all records in their order. A record that does not decode ends the iteration with its error.
    pub fn iter(&self) -> RecordIter<'_> {
        RecordIter {
            rest: &self.bytes,
            left: self.count,
            first: self.first,
            base_offset: self.base_offset,
            base_timestamp: self.base_timestamp,
            arrival: self.arrival,
        }
    }

    /// Returns the bytes of the records: everything after the header of the batch, decompressed.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the next record after the last call, for callers that cannot borrow the batch in between.
    pub fn advance(&mut self) -> Option<Result<RecordView<'_>>> {
        let mut iter = RecordIter { rest: &self.bytes[self.at..], left: self.left, ..self.iter() };
        let next = iter.next();
        self.at = self.bytes.len() - iter.rest.len();
        self.left = iter.left;
        next
    }

    /// Returns the record at an offset, if it exists. Continues after the last call, so call it in the order
    /// of offsets.
    pub fn find(&mut self, offset: Offset) -> Option<Record> {
        loop {
            let mut iter = RecordIter { rest: &self.bytes[self.at..], left: self.left, ..self.iter() };
            let view = iter.next()?.ok()?;
            if view.offset > offset {
                return None;
            }
            let found = (view.offset == offset).then(|| self.own(&view));
            let at = self.bytes.len() - iter.rest.len();
            let left = iter.left;
            self.at = at;
            self.left = left;
            if found.is_some() {
                return found;
            }
        }
    }

    /// Returns a record of this batch that shares its bytes.
    pub fn own(&self, view: &RecordView<'_>) -> Record {
        own(&self.bytes, view)
    }
}

/// Returns a record that shares the bytes it is read from.
fn own(bytes: &Bytes, view: &RecordView<'_>) -> Record {
    let share = |part: &[u8]| bytes.slice_ref(part);
    Record {
        offset: view.offset,
        timestamp_ms: view.timestamp_ms,
        key: view.key.map(share),
        value: view.value.map(share),
        headers: match view.header_count {
            0 => Vec::new(),
            _ => view.headers().map(|(name, value)| (share(name), value.map(share))).collect(),
        },
    }
}

impl<'a> IntoIterator for &'a Records {
    type Item = Result<RecordView<'a>>;
    type IntoIter = RecordIter<'a>;

    fn into_iter(self) -> RecordIter<'a> {
        self.iter()
    }
}

/// Iterator over the records of a batch.
pub struct RecordIter<'a> {
    rest: &'a [u8],
    left: u32,
    first: Offset,
    base_offset: Offset,
    base_timestamp: i64,
    arrival: Option<i64>,
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<RecordView<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            self.left -= 1;
            let mut record = read_record(&mut self.rest, self.base_offset, self.base_timestamp);
            if record.is_err() {
                self.left = 0;
            } else if self.left == 0 && !self.rest.is_empty() {
                return Some(Err(Error::malformed("a batch is longer than its records")));
            }
            if record.as_ref().is_ok_and(|record| record.offset < self.first) {
                continue;
            }
            if let (Ok(record), Some(arrival)) = (&mut record, self.arrival) {
                record.timestamp_ms = arrival;
            }
            return Some(record);
        }
        None
    }
}

pub(super) fn read_record<'a>(rest: &mut &'a [u8], base_offset: Offset, base_timestamp: i64) -> Result<RecordView<'a>> {
    let length = read_length(rest)?
        .ok_or_else(|| Error::malformed("the length of a record is null (-1): it must be at least 0"))?;
    let mut body = take(rest, length)?;
    take(&mut body, 1)?;
    let timestamp_delta = read_varint(&mut body)?;
    let offset_delta = u32::try_from(read_varint(&mut body)?)
        .map_err(|e| Error::malformed(format!("a record's offset delta is out of range: {e}")))?;
    let key = read_nullable(&mut body)?;
    let value = read_nullable(&mut body)?;
    let header_count = read_length(&mut body)?.unwrap_or(0);
    if header_count > HEADERS_MAX {
        return Err(Error::too_large(format!("a record has at most {HEADERS_MAX} headers, not {header_count}")));
    }
    let headers = body;
    for _ in 0..header_count {
        read_header(&mut body)?;
    }
    if !body.is_empty() {
        return Err(Error::malformed("a record is longer than its fields"));
    }
    Ok(RecordView {
        offset: base_offset + u64::from(offset_delta),
        timestamp_ms: base_timestamp.wrapping_add(timestamp_delta),
        key,
        value,
        headers,
        header_count,
    })
}

pub(super) fn read_header<'a>(rest: &mut &'a [u8]) -> Result<HeaderView<'a>> {
    let name = read_nullable(rest)?.ok_or_else(|| Error::malformed("a record header has no name"))?;
    Ok((name, read_nullable(rest)?))
}
