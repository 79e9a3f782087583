//! Records, and the one layout in which they are published, stored, replicated and delivered: Kafka's record batch,
//! version 2 (<https://kafka.apache.org/documentation/#recordbatch>).
//!
//! All integers are big-endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | base offset: the offset of the first record (outside the checksum) |
//! | 8 | 4 | length of everything after this field |
//! | 12 | 4 | leader epoch (outside the checksum) |
//! | 16 | 1 | magic, 2 |
//! | 17 | 4 | CRC-32C of everything after this field |
//! | 21 | 2 | attributes: bits 0 to 2 are the codec, bit 3 log append time, 4 transactional, 5 control |
//! | 23 | 4 | last offset delta |
//! | 27 | 8 | base timestamp, ms |
//! | 35 | 8 | largest timestamp, ms |
//! | 43 | 8 | producer id, -1 for none |
//! | 51 | 2 | producer epoch |
//! | 53 | 4 | base sequence |
//! | 57 | 4 | number of records |
//! | 61 | | the records, compressed as a whole if the attributes name a codec |
//!
//! A record is: length (varint), attributes (1 byte), timestamp delta (varint), offset delta
//! (varint), key, value, number of headers (varint), headers. A key, a value or a header's value is a
//! length (varint, -1 for null) and its bytes; a header's key is never null. Varints are zigzag.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::Codec;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Offset;
use crate::limits::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, HEADERS_MAX, RECORDS_EXPANDED_BYTES_MAX};

mod arrival;
mod marker;
mod producer;
mod recompress;
mod records;
mod thin;

pub use marker::{Decision, Marker};
pub use producer::Producer;
use producer::{producer_of, put_producer};
pub use records::{RecordIter, Records};
use records::{read_header, read_record};

/// Bytes of a batch before its records.
pub const BATCH_HEADER_BYTES: usize = 61;

/// Leader epoch of the batches of a broker that is alone, which only ever has one leader.
pub const ONLY_EPOCH: i32 = 0;

const AT_LENGTH: usize = 8;
const AT_LEADER_EPOCH: usize = 12;
const AT_MAGIC: usize = 16;
const AT_CRC: usize = 17;
const AT_ATTRIBUTES: usize = 21;
const AT_LAST_OFFSET_DELTA: usize = 23;
const AT_BASE_TIMESTAMP: usize = 27;
const AT_MAX_TIMESTAMP: usize = 35;
const AT_PRODUCER_ID: usize = 43;
const AT_PRODUCER_EPOCH: usize = 51;
const AT_BASE_SEQUENCE: usize = 53;
const AT_RECORD_COUNT: usize = 57;
const MAGIC: u8 = 2;
/// Bits of the codec in the second byte of the attributes.
const CODEC_BITS: u8 = 0x07;
const TRANSACTIONAL_BIT: u8 = 0x10;
const CONTROL_BIT: u8 = 0x20;
/// Bytes of a batch up to and including the length field, which counts only the bytes after itself.
const LENGTH_OVERHEAD: usize = 12;
/// Bytes of a record in addition to its contents: lengths, deltas and a count, which rarely take more.
const RECORD_OVERHEAD_BYTES: usize = 20;
/// Bytes of a header in addition to its contents: two lengths, which rarely take more.
const HEADER_OVERHEAD_BYTES: usize = 6;

/// Largest base offset of a batch. Other systems read offsets as signed numbers, and even the last offset needs a next
/// one.
const BASE_OFFSET_MAX: Offset = i64::MAX as u64 - i32::MAX as u64;

/// Guarantee that an acknowledgement of a publish gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Acks {
    /// No response at all.
    None = 0,
    /// Record is in the broker's memory and has an offset.
    Accepted = 1,
    /// Record is as durable as its topic can make it: for a memory topic the same as accepted.
    Committed = 2,
    /// Broker's setting (`ack_on_commit`).
    #[default]
    Default = 3,
}

impl Acks {
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::None, Self::Accepted, Self::Committed, Self::Default].into_iter().find(|acks| *acks as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Accepted => "accepted",
            Self::Committed => "committed",
            Self::Default => "default",
        }
    }
}

impl std::str::FromStr for Acks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::None, Self::Accepted, Self::Committed, Self::Default]
            .into_iter()
            .find(|acks| acks.name() == text)
            .ok_or_else(|| Error::invalid(format!("acks is none, accepted, committed or default, not '{text}'")))
    }
}

/// Record that owns its bytes: the form that publishers send and subscribers receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub offset: Offset,
    /// Milliseconds since 1970, as set by the publisher. 0 in a record to publish makes the client set the current
    /// time.
    pub timestamp_ms: i64,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Record {
    pub fn new(value: impl Into<Bytes>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn with_header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Returns the value, empty if it is null.
    pub fn value(&self) -> &[u8] {
        self.value.as_deref().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers.iter().find(|(key, _)| key == name.as_bytes()).and_then(|(_, value)| value.as_ref())
    }

    /// Returns about the number of bytes that the record takes in a batch, rather too many than too few.
    pub fn bytes_in_batch(&self) -> usize {
        let bytes = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
        let headers = self.headers.iter().map(|(name, value)| name.len() + bytes(value) + HEADER_OVERHEAD_BYTES);
        RECORD_OVERHEAD_BYTES + bytes(&self.key) + bytes(&self.value) + headers.sum::<usize>()
    }
}

/// Record in place, inside its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    pub offset: Offset,
    pub timestamp_ms: i64,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    headers: &'a [u8],
    header_count: usize,
}

/// Header: its name and its value.
pub type HeaderView<'a> = (&'a [u8], Option<&'a [u8]>);

impl<'a> RecordView<'a> {
    /// Returns `true` if the record has at least one header.
    pub fn has_headers(&self) -> bool {
        self.header_count > 0
    }

    /// Returns the headers in their order. They were checked when the record was read.
    pub fn headers(&self) -> impl Iterator<Item = HeaderView<'a>> + use<'a> {
        let mut rest = self.headers;
        (0..self.header_count).map_while(move |_| read_header(&mut rest).ok())
    }
}

/// Builder of a batch that has no offsets yet.
#[derive(Debug)]
pub struct BatchBuilder {
    buf: BytesMut,
    /// Minimum number of bytes that are reserved with the first record.
    room: usize,
    /// Maximum size of the batch in bytes, before it is compressed.
    bytes_max: usize,
    count: u32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    pub fn new() -> Self {
        Self::with_room(0)
    }

    /// Creates a builder for batches of about `bytes` bytes in addition to their header.
    pub fn with_room(bytes: usize) -> Self {
        let room = BATCH_HEADER_BYTES + bytes.min(BATCH_BYTES_MAX);
        let bytes_max = BATCH_BYTES_MAX;
        Self { buf: BytesMut::new(), room, bytes_max, count: 0, base_timestamp: 0, max_timestamp: i64::MIN }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the size of the batch so far in bytes, its header included.
    pub fn len(&self) -> usize {
        self.buf.len().max(BATCH_HEADER_BYTES)
    }

    pub fn push_record(&mut self, record: &Record, now_ms: i64) -> Result<()> {
        let timestamp_ms = if record.timestamp_ms == 0 { now_ms } else { record.timestamp_ms };
        if record.headers.is_empty() {
            return self.push(timestamp_ms, record.key.as_deref(), record.value.as_deref(), &[]);
        }
        let mut buffer = [(&[][..], None); 8];
        if record.headers.len() <= buffer.len() {
            for (slot, (name, value)) in buffer.iter_mut().zip(&record.headers) {
                *slot = (name, value.as_deref());
            }
            let headers = &buffer[..record.headers.len()];
            return self.push(timestamp_ms, record.key.as_deref(), record.value.as_deref(), headers);
        }
        let headers: Vec<HeaderView<'_>> =
            record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        self.push(timestamp_ms, record.key.as_deref(), record.value.as_deref(), &headers)
    }

    /// Adds a record. On an error the batch is unchanged.
    pub fn push(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderView<'_>],
    ) -> Result<()> {
        if headers.len() > HEADERS_MAX {
            return Err(Error::too_large(format!("a record has at most {HEADERS_MAX} headers, not {}", headers.len())));
        }
        if self.count as usize >= BATCH_RECORDS_MAX {
            return Err(Error::too_large(format!("a batch has at most {BATCH_RECORDS_MAX} records")));
        }
        let base_timestamp = if self.count == 0 { timestamp_ms } else { self.base_timestamp };
        let timestamp_delta = timestamp_ms.wrapping_sub(base_timestamp);
        let offset_delta = i64::from(self.count);
        let body = 1
            + varint_len(timestamp_delta)
            + varint_len(offset_delta)
            + nullable_len(key)
            + nullable_len(value)
            + varint_len(headers.len() as i64)
            + headers.iter().map(|(name, value)| nullable_len(Some(name)) + nullable_len(*value)).sum::<usize>();
        if self.len() + body + 5 > self.bytes_max {
            let most = self.bytes_max;
            return Err(Error::too_large(format!(
                "a batch has at most {most} bytes; this record of {body} bytes does not fit"
            )));
        }
        let bytes = varint_len(body as i64) + body;
        if self.buf.is_empty() {
            // Exactly the required capacity: a batch of one record then has no spare memory.
            let room = self.room.max(BATCH_HEADER_BYTES + bytes);
            match self.buf.capacity() {
                0 => self.buf = BytesMut::with_capacity(room),
                _ => self.buf.reserve(room),
            }
            self.buf.put_bytes(0, BATCH_HEADER_BYTES);
            self.base_timestamp = timestamp_ms;
        }
        self.buf.reserve(bytes);
        let mut pending = Pending::new();
        pending.varint(body as i64);
        pending.varint(0);
        pending.varint(timestamp_delta);
        pending.varint(offset_delta);
        pending.varint(key.map_or(-1, |key| key.len() as i64));
        pending.put(&mut self.buf, key);
        pending.varint(value.map_or(-1, |value| value.len() as i64));
        pending.put(&mut self.buf, value);
        pending.varint(headers.len() as i64);
        for (name, value) in headers {
            pending.varint(name.len() as i64);
            pending.put(&mut self.buf, Some(name));
            pending.varint(value.map_or(-1, |value| value.len() as i64));
            pending.put(&mut self.buf, *value);
        }
        pending.put(&mut self.buf, Some(&[]));
        self.count += 1;
        self.max_timestamp = self.max_timestamp.max(timestamp_ms);
        Ok(())
    }

    /// Closes the batch and leaves the builder empty for the next one. Returns `None` without records.
    pub fn finish(&mut self) -> Option<DraftBatch> {
        self.finish_with(Codec::None, None)
    }

    /// Closes the batch with its records compressed and its producer set. Records that do not get smaller stay
    /// uncompressed.
    pub fn finish_with(&mut self, codec: Codec, producer: Option<Producer>) -> Option<DraftBatch> {
        if self.count == 0 {
            return None;
        }
        let count = std::mem::take(&mut self.count) as i32;
        let mut buf = match self.compressed(codec) {
            Some(small) => {
                self.buf.clear();
                small
            }
            None => {
                // The next batch is likely to have a similar size.
                self.room = self.buf.len();
                std::mem::take(&mut self.buf)
            }
        };
        let length = (buf.len() - LENGTH_OVERHEAD) as i32;
        put_at(&mut buf, AT_LENGTH, &length.to_be_bytes());
        buf[AT_MAGIC] = MAGIC;
        put_at(&mut buf, AT_LAST_OFFSET_DELTA, &(count - 1).to_be_bytes());
        put_at(&mut buf, AT_BASE_TIMESTAMP, &self.base_timestamp.to_be_bytes());
        put_at(&mut buf, AT_MAX_TIMESTAMP, &self.max_timestamp.to_be_bytes());
        put_producer(&mut buf, producer);
        put_at(&mut buf, AT_RECORD_COUNT, &count.to_be_bytes());
        seal(&mut buf);
        self.max_timestamp = i64::MIN;
        Some(DraftBatch { bytes: buf })
    }

    /// Returns the batch with its records compressed and its header empty except for the codec; `None` if compression
    /// saves nothing.
    fn compressed(&self, codec: Codec) -> Option<BytesMut> {
        if codec == Codec::None {
            return None;
        }
        let mut small = Vec::with_capacity(self.buf.len() / 2);
        small.resize(BATCH_HEADER_BYTES, 0);
        small[AT_ATTRIBUTES + 1] = codec as u8;
        let is_done = codec.compress(&self.buf[BATCH_HEADER_BYTES..], &mut small).is_ok();
        (is_done && small.len() < self.buf.len()).then(|| Bytes::from(small).into())
    }
}

/// Checked batch that has no place in a log yet.
#[derive(Clone, Debug)]
pub struct DraftBatch {
    bytes: BytesMut,
}

impl DraftBatch {
    /// Returns a batch of one record. It is compressed only if the record does not fit otherwise: it may have come from
    /// a compressed batch.
    pub fn of_one(
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderView<'_>],
    ) -> Result<Self> {
        let mut builder = BatchBuilder { bytes_max: RECORDS_EXPANDED_BYTES_MAX, ..BatchBuilder::new() };
        builder.push(timestamp_ms, key, value, headers)?;
        let codec = if builder.len() > BATCH_BYTES_MAX { Codec::Zstd } else { Codec::None };
        let batch = builder.finish_with(codec, None).expect("invariant: it has a record");
        check_most(&batch.bytes)?;
        Ok(batch)
    }

    /// Parses one whole batch: checks its frame and its checksum, but none of its records.
    pub fn parse(bytes: BytesMut) -> Result<Self> {
        check(&bytes)?;
        // Only a log may hold batches that have lost records.
        let count = u32_at(&bytes, AT_RECORD_COUNT);
        let last = u32_at(&bytes, AT_LAST_OFFSET_DELTA);
        if count == 0 || last != count - 1 {
            return Err(miscounted(count, last));
        }
        if has_bit(&bytes, CONTROL_BIT) {
            return Err(Error::invalid("only a broker writes control batches"));
        }
        Ok(Self { bytes })
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn count(&self) -> u32 {
        u32_at(&self.bytes, AT_RECORD_COUNT)
    }

    /// Returns the codec of the records.
    pub fn codec(&self) -> Result<Codec> {
        codec_of(&self.bytes)
    }

    /// Returns the producer of the batch; `None` if the batch is not numbered.
    pub fn producer(&self) -> Option<Producer> {
        producer_of(&self.bytes)
    }

    /// Returns `true` if the batch takes effect only when the transaction of its producer is committed.
    pub fn is_transactional(&self) -> bool {
        has_bit(&self.bytes, TRANSACTIONAL_BIT)
    }

    /// Returns `true` for a control batch of the broker, a [`Marker`].
    pub fn is_control(&self) -> bool {
        has_bit(&self.bytes, CONTROL_BIT)
    }

    /// Returns the key of the first record if it has one and the batch is not compressed.
    pub fn first_key(&self) -> Option<&[u8]> {
        if self.codec() != Ok(Codec::None) {
            return None;
        }
        read_record(&mut &self.bytes[BATCH_HEADER_BYTES..], 0, 0).ok()?.key
    }

    /// Returns the bytes in the form that is sent before a broker has assigned offsets.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.freeze()
    }

    /// Sets the offset of the batch, and [`ONLY_EPOCH`] as its leader epoch.
    pub fn stamp(self, base_offset: Offset) -> RecordBatch {
        self.stamp_in(base_offset, ONLY_EPOCH)
    }

    /// Sets the offset and the leader epoch of the batch, the two fields that the checksum does not cover.
    pub fn stamp_in(mut self, base_offset: Offset, leader_epoch: i32) -> RecordBatch {
        put_at(&mut self.bytes, 0, &base_offset.to_be_bytes());
        put_at(&mut self.bytes, AT_LEADER_EPOCH, &leader_epoch.to_be_bytes());
        RecordBatch { bytes: self.bytes.freeze() }
    }
}

/// Checked batch with its offsets. A clone shares its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Bytes,
}

impl RecordBatch {
    pub fn parse(bytes: Bytes) -> Result<Self> {
        check(&bytes)?;
        let base_offset = u64_at(&bytes, 0);
        if base_offset > BASE_OFFSET_MAX {
            return Err(Error::malformed(format!("base offset {base_offset} is too high: at most {BASE_OFFSET_MAX}")));
        }
        Ok(Self { bytes })
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn base_offset(&self) -> Offset {
        u64_at(&self.bytes, 0)
    }

    /// Returns the leader epoch in which the batch was appended. It never falls from one batch of a log to the next.
    pub fn leader_epoch(&self) -> i32 {
        u32_at(&self.bytes, AT_LEADER_EPOCH) as i32
    }

    /// Returns the number of records. After compaction a batch may have fewer records than offsets, or none.
    pub fn count(&self) -> u32 {
        u32_at(&self.bytes, AT_RECORD_COUNT)
    }

    /// Returns the offset after the last record, even if compaction removed that record.
    pub fn next_offset(&self) -> Offset {
        self.base_offset() + u64::from(u32_at(&self.bytes, AT_LAST_OFFSET_DELTA)) + 1
    }

    pub fn base_timestamp_ms(&self) -> i64 {
        u64_at(&self.bytes, AT_BASE_TIMESTAMP) as i64
    }

    pub fn max_timestamp_ms(&self) -> i64 {
        u64_at(&self.bytes, AT_MAX_TIMESTAMP) as i64
    }

    /// Returns the codec of the records.
    pub fn codec(&self) -> Result<Codec> {
        codec_of(&self.bytes)
    }

    /// Returns the producer of the batch; `None` if the batch is not numbered.
    pub fn producer(&self) -> Option<Producer> {
        producer_of(&self.bytes)
    }

    /// Returns `true` if the batch takes effect only when the transaction of its producer was committed.
    pub fn is_transactional(&self) -> bool {
        has_bit(&self.bytes, TRANSACTIONAL_BIT)
    }

    /// Returns `true` for a control batch of the broker, a [`Marker`], which is not delivered to readers.
    pub fn is_control(&self) -> bool {
        has_bit(&self.bytes, CONTROL_BIT)
    }
}

fn check_most(bytes: &[u8]) -> Result<()> {
    match bytes.len() {
        ..=BATCH_BYTES_MAX => Ok(()),
        more => Err(Error::too_large(format!("a record batch has at most {BATCH_BYTES_MAX} bytes, not {more}"))),
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    if bytes.len() < BATCH_HEADER_BYTES {
        return Err(Error::malformed(format!(
            "a record batch has at least {BATCH_HEADER_BYTES} bytes, not {}",
            bytes.len()
        )));
    }
    check_most(bytes)?;
    if bytes[AT_MAGIC] != MAGIC {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("record batches have magic {MAGIC}, not {}", bytes[AT_MAGIC]),
        ));
    }
    let length = u32_at(bytes, AT_LENGTH) as usize;
    if length + LENGTH_OVERHEAD != bytes.len() {
        return Err(Error::malformed(format!(
            "the length field of the batch is {length}, but {} bytes follow it",
            bytes.len() - LENGTH_OVERHEAD
        )));
    }
    let crc = u32_at(bytes, AT_CRC);
    let actual = checksum(bytes);
    if crc != actual {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("the batch has the checksum {crc:#010x}, but that of its bytes is {actual:#010x}"),
        ));
    }
    // The checksum matches: any error from here on is the sender's own mistake.
    let count = u32_at(bytes, AT_RECORD_COUNT);
    let last = u32_at(bytes, AT_LAST_OFFSET_DELTA);
    if count as usize > BATCH_RECORDS_MAX || last > i32::MAX as u32 || count > last + 1 {
        return Err(miscounted(count, last));
    }
    Ok(())
}

fn miscounted(count: u32, last_offset_delta: u32) -> Error {
    Error::malformed(format!("the batch has {count} records and a last offset delta of {last_offset_delta}"))
}

/// Returns the codec that the attributes name.
fn codec_of(batch: &[u8]) -> Result<Codec> {
    let code = batch[AT_ATTRIBUTES + 1] & CODEC_BITS;
    let unknown = || Error::new(ErrorKind::Unsupported, format!("the batch has the unknown codec {code}"));
    Codec::from_code(code).ok_or_else(unknown)
}

fn has_bit(batch: &[u8], bit: u8) -> bool {
    batch[AT_ATTRIBUTES + 1] & bit != 0
}

/// Writes the checksum after all fields that it covers.
fn seal(batch: &mut [u8]) {
    let crc = checksum(batch);
    put_at(batch, AT_CRC, &crc.to_be_bytes());
}

fn checksum(batch: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&batch[AT_ATTRIBUTES..])
}

fn put_at(buf: &mut [u8], at: usize, bytes: &[u8]) {
    buf[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"))
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn varint_len(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Numbers of a record that are not written yet: they are written together with the bytes that follow them.
struct Pending {
    /// Room for seven numbers, one of ten bytes and the others of five: at most this many are pending between bytes.
    bytes: [u8; 40],
    len: usize,
}

impl Pending {
    fn new() -> Self {
        Self { bytes: [0; 40], len: 0 }
    }

    fn varint(&mut self, value: i64) {
        let mut rest = zigzag(value);
        while rest >= 0x80 {
            self.byte(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.byte(rest as u8);
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Writes the pending numbers and `bytes`, unless `bytes` is `None`.
    fn put(&mut self, buf: &mut BytesMut, bytes: Option<&[u8]>) {
        if let Some(bytes) = bytes {
            buf.put_slice(&self.bytes[..self.len]);
            buf.put_slice(bytes);
            self.len = 0;
        }
    }
}

fn nullable_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varint_len(bytes.len() as i64) + bytes.len())
}

#[inline]
fn read_varint(rest: &mut &[u8]) -> Result<i64> {
    // Most numbers have one byte or two.
    let (value, behind) = match **rest {
        [byte, ref behind @ ..] if byte < 0x80 => (u64::from(byte), behind),
        [low, high, ref behind @ ..] if high < 0x80 => (u64::from(low & 0x7f) | u64::from(high) << 7, behind),
        _ => return read_long_varint(rest),
    };
    *rest = behind;
    Ok((value >> 1) as i64 ^ -((value & 1) as i64))
}

fn read_long_varint(rest: &mut &[u8]) -> Result<i64> {
    let mut value = 0u64;
    for (i, byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            *rest = &rest[i + 1..];
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    Err(Error::malformed("a number in a record is cut short or too long"))
}

/// Reads a length: `None` for -1.
#[inline]
fn read_length(rest: &mut &[u8]) -> Result<Option<usize>> {
    match read_varint(rest)? {
        -1 => Ok(None),
        length => usize::try_from(length)
            .map(Some)
            .map_err(|e| Error::malformed(format!("a length in a record is negative: {e}"))),
    }
}

#[inline]
fn read_nullable<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>> {
    match read_length(rest)? {
        None => Ok(None),
        Some(length) => take(rest, length).map(Some),
    }
}

#[inline]
fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(length).ok_or_else(|| Error::malformed("a record is cut short"))?;
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests;
