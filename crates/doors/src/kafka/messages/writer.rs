//! Writer of a message to the end of a buffer.

use bytes::{BufMut, BytesMut};

use super::reader::LengthOf;
use super::value::Value;

/// Writer of the values of a message in turn.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut BytesMut,
    version: i16,
    is_flexible: bool,
}

/// Fields of a struct that are written with their tag.
#[derive(Debug)]
pub struct Tags {
    count: u32,
    /// Values, each with its tag and its length.
    bytes: BytesMut,
    version: i16,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut BytesMut, version: i16, is_flexible: bool) -> Self {
        Self { out, version, is_flexible }
    }

    pub fn version(&self) -> i16 {
        self.version
    }

    pub fn put<T: Value>(&mut self, value: &T) {
        value.write(self);
    }

    /// Writes a value, or an empty value instead of null.
    pub(super) fn put_present<T: Value + Default>(&mut self, value: &Option<T>) {
        match value {
            Some(value) => value.write(self),
            None => T::default().write(self),
        }
    }

    pub fn slice(&mut self, bytes: &[u8]) {
        self.out.put_slice(bytes);
    }

    pub fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.put_u8(value as u8);
    }

    pub(super) fn length(&mut self, of: LengthOf, length: Option<usize>) {
        match (of, length) {
            (_, None) if self.is_flexible => self.uvarint(0),
            (_, Some(length)) if self.is_flexible => self.uvarint(length as u32 + 1),
            (LengthOf::String, length) => self.out.put_i16(length.map_or(-1, |length| length as i16)),
            (LengthOf::Bytes | LengthOf::Array, length) => self.out.put_i32(length.map_or(-1, |length| length as i32)),
        }
    }

    /// Writes the tags at the end of a struct, if the version has them: those that `put` adds, in the order of their
    /// numbers.
    pub fn tagged(&mut self, put: impl FnOnce(&mut Tags)) {
        if !self.is_flexible {
            return;
        }
        let mut tags = Tags { count: 0, bytes: BytesMut::new(), version: self.version };
        put(&mut tags);
        self.uvarint(tags.count);
        self.out.put_slice(&tags.bytes);
    }
}

impl Tags {
    pub fn put<T: Value>(&mut self, tag: u32, value: &T) {
        let mut bytes = BytesMut::new();
        Writer::new(&mut bytes, self.version, true).put(value);
        let mut to = Writer::new(&mut self.bytes, self.version, true);
        to.uvarint(tag);
        to.uvarint(bytes.len() as u32);
        to.slice(&bytes);
        self.count += 1;
    }
}
