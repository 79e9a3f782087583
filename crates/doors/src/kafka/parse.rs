//! Reader of fields in place, for the headers of all requests and for the two requests that carry records.

use std::ops::Range;

use engine::{Error, Result};

use super::messages::{ELEMENTS_MAX, STRING_BYTES_MAX};

/// Reader from the front of a frame.
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Number of elements that remain of [`ELEMENTS_MAX`].
    elements_left: usize,
    /// `true` for flexible versions, which have compact lengths, and tagged fields at the end of each structure.
    pub(super) is_flexible: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize, is_flexible: bool) -> Self {
        Self { bytes, at, elements_left: ELEMENTS_MAX, is_flexible }
    }

    /// Returns the number of bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn skip(&mut self, n: usize) -> Result<Range<usize>> {
        if n > self.bytes.len() - self.at {
            let left = self.bytes.len() - self.at;
            return Err(Error::malformed(format!("a field of {n} bytes at {}, but {left} are left", self.at)));
        }
        self.at += n;
        Ok(self.at - n..self.at)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let range = self.skip(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    pub(super) fn i8(&mut self) -> Result<i8> {
        self.array().map(i8::from_be_bytes)
    }

    pub(super) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn varint(&mut self) -> Result<u32> {
        let begin = self.at;
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value)
                    .map_err(|e| Error::malformed(format!("a length at {begin} is out of range: {e}")));
            }
        }
        Err(Error::malformed(format!("a length at {begin} has too many bytes")))
    }

    /// Reads a length; `None` for null. The longer of the two old formats has four bytes.
    fn length(&mut self, has_four_bytes: bool) -> Result<Option<usize>> {
        let length = match (self.is_flexible, has_four_bytes) {
            (true, _) => i64::from(self.varint()?) - 1,
            (false, true) => self.i32()?.into(),
            (false, false) => self.i16()?.into(),
        };
        match length {
            -1 => Ok(None),
            length => usize::try_from(length)
                .map(Some)
                .map_err(|e| Error::malformed(format!("a length of {length} before {}: {e}", self.at))),
        }
    }

    fn text(&mut self, length: usize) -> Result<&'a str> {
        if length > STRING_BYTES_MAX {
            let message = format!("a string of {length} bytes at {}, more than {STRING_BYTES_MAX}", self.at);
            return Err(Error::malformed(message));
        }
        let range = self.skip(length)?;
        let begin = range.start;
        std::str::from_utf8(&self.bytes[range]).map_err(|e| Error::malformed(format!("the string at {begin}: {e}")))
    }

    pub(super) fn nullable_string(&mut self) -> Result<Option<&'a str>> {
        self.length(false)?.map(|length| self.text(length)).transpose()
    }

    pub(super) fn string(&mut self) -> Result<&'a str> {
        self.nullable_string()?.ok_or_else(|| Error::malformed(format!("null before {} instead of a string", self.at)))
    }

    /// Reads a byte array and returns its range in the frame.
    pub(super) fn bytes(&mut self) -> Result<Option<Range<usize>>> {
        self.length(true)?.map(|length| self.skip(length)).transpose()
    }

    /// Reads the number of elements that follow. Each element has at least one byte, so the number is at most that of
    /// the remaining bytes; and the arrays of a message have at most [`ELEMENTS_MAX`] elements in total.
    pub(super) fn count(&mut self) -> Result<usize> {
        let count = self.length(true)?.unwrap_or(0);
        let left = self.bytes.len() - self.at;
        if count > left {
            return Err(Error::malformed(format!(
                "an array of {count} elements does not fit into the {left} bytes after {}",
                self.at
            )));
        }
        self.elements_left = self.elements_left.checked_sub(count).ok_or_else(|| {
            Error::malformed(format!(
                "an array of {count} elements: the arrays of a message have at most {ELEMENTS_MAX} elements together"
            ))
        })?;
        Ok(count)
    }

    /// Skips the tagged fields that end a structure, if it has any.
    pub(super) fn tags(&mut self) -> Result<()> {
        if self.is_flexible {
            for _ in 0..self.varint()? {
                self.varint()?;
                let length = self.varint()? as usize;
                self.skip(length)?;
            }
        }
        Ok(())
    }
}
