//! Writer of response fields, for the two responses that are written without an intermediate structure.

use std::ops::{Deref, DerefMut};

use bytes::{BufMut, BytesMut};

use super::messages::STRING_BYTES_MAX;

/// Writer that appends to a response.
pub(super) struct Write<'a> {
    out: &'a mut BytesMut,
    is_flexible: bool,
}

impl<'a> Write<'a> {
    pub(super) fn new(out: &'a mut BytesMut, is_flexible: bool) -> Self {
        Self { out, is_flexible }
    }

    fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.put_u8(value as u8);
    }

    /// Writes the number of elements or bytes that follow.
    pub(super) fn count(&mut self, count: usize) {
        if self.is_flexible { self.varint(count as u32 + 1) } else { self.out.put_i32(count as i32) }
    }

    /// Writes a string, truncated to the protocol's maximum length.
    pub(super) fn nullable_string(&mut self, text: Option<&str>) {
        let text = text.map(|text| &text[..text.floor_char_boundary(STRING_BYTES_MAX)]);
        match (self.is_flexible, text) {
            (true, None) => self.varint(0),
            (true, Some(text)) => self.varint(text.len() as u32 + 1),
            (false, None) => self.out.put_i16(-1),
            (false, Some(text)) => self.out.put_i16(text.len() as i16),
        }
        self.out.put_slice(text.unwrap_or_default().as_bytes());
    }

    pub(super) fn string(&mut self, text: &str) {
        self.nullable_string(Some(text));
    }

    /// Ends a structure, without tagged fields.
    pub(super) fn tags(&mut self) {
        if self.is_flexible {
            self.out.put_u8(0);
        }
    }
}

impl Deref for Write<'_> {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        self.out
    }
}

impl DerefMut for Write<'_> {
    fn deref_mut(&mut self) -> &mut BytesMut {
        self.out
    }
}
