//! Reader of a message from the front of its bytes. It reserves no memory for data that has not arrived.

use bytes::{Buf, Bytes};
use engine::{Error, Result};

use super::value::{Nullable, Value};

/// Maximum number of elements of all arrays of a message: more than a request needs to name every topic and every
/// partition of a broker. Decoded values can take some thirty times as much memory as their bytes.
pub const ELEMENTS_MAX: usize = 1 << 18;
/// Maximum length of a string in any version of the protocol.
pub(in crate::kafka) const STRING_BYTES_MAX: usize = i16::MAX as usize;
/// Maximum number of elements for which an array initially reserves memory.
const RESERVED_ELEMENTS: usize = 16;
/// Maximum length of a 32-bit unsigned varint, which has seven bits per byte.
const UVARINT_BYTES_MAX: usize = 5;

const _: () = assert!(engine::limits::TOPICS_MAX + engine::limits::PARTITIONS_TOTAL_MAX <= ELEMENTS_MAX);

/// Type of a length, which determines its width in versions that do not use varints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LengthOf {
    /// 16 bits.
    String,
    /// 32 bits.
    Bytes,
    /// 32 bits; number of elements.
    Array,
}

/// Reader of the values of a message in turn. Until `begin` it reads version 0, not flexible, in which headers start.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
    /// Length of all bytes.
    length: usize,
    version: i16,
    is_flexible: bool,
    /// Number of elements that remain of `ELEMENTS_MAX`.
    elements_left: usize,
}

impl Reader {
    pub fn new(bytes: Bytes) -> Self {
        let length = bytes.len();
        Self { rest: bytes, length, version: 0, is_flexible: false, elements_left: ELEMENTS_MAX }
    }

    /// Prepares for a message of this version.
    pub fn begin(&mut self, version: i16, is_flexible: bool) {
        self.version = version;
        self.is_flexible = is_flexible;
        self.elements_left = ELEMENTS_MAX;
    }

    pub fn version(&self) -> i16 {
        self.version
    }

    /// Returns the number of bytes read.
    pub fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub fn get<T: Value>(&mut self) -> Result<T> {
        T::read(self)
    }

    /// Returns the next `length` bytes without a copy.
    pub fn take(&mut self, length: usize) -> Result<Bytes> {
        if length > self.rest.len() {
            return Err(self.malformed(format!("{length} bytes are expected, and {} are left", self.rest.len())));
        }
        Ok(self.rest.split_to(length))
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some(bytes) = self.rest.first_chunk::<N>().copied() else {
            return Err(self.malformed(format!("{N} bytes are expected, and {} are left", self.rest.len())));
        };
        self.rest.advance(N);
        Ok(bytes)
    }

    pub fn uvarint(&mut self) -> Result<u32> {
        let mut value = 0u64;
        for i in 0..UVARINT_BYTES_MAX {
            let [byte] = self.fixed()?;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|e| self.malformed(format!("the number {value}: {e}")));
            }
        }
        Err(self.malformed(format!("a number has more than {UVARINT_BYTES_MAX} bytes")))
    }

    /// Reads the length of the next value; `None` for null. Checks that the remaining bytes suffice for it.
    pub(super) fn length(&mut self, of: LengthOf) -> Result<Option<usize>> {
        let length = match of {
            _ if self.is_flexible => i64::from(self.uvarint()?) - 1,
            LengthOf::String => i64::from(i16::from_be_bytes(self.fixed()?)),
            LengthOf::Bytes | LengthOf::Array => i64::from(i32::from_be_bytes(self.fixed()?)),
        };
        if length == -1 {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|e| self.malformed(format!("the length {length}: {e}")))?;
        // Every element has at least one byte.
        if length > self.rest.len() {
            let what = if of == LengthOf::Array { "elements" } else { "bytes" };
            return Err(self.malformed(format!("{length} {what} are expected, and {} bytes are left", self.rest.len())));
        }
        if of == LengthOf::String && length > STRING_BYTES_MAX {
            return Err(self.malformed(format!("a string has at most {STRING_BYTES_MAX} bytes, not {length}")));
        }
        Ok(Some(length))
    }

    /// Reads the number of elements of an array; `None` for null.
    fn count(&mut self) -> Result<Option<usize>> {
        let Some(count) = self.length(LengthOf::Array)? else {
            return Ok(None);
        };
        self.elements_left = self.elements_left.checked_sub(count).ok_or_else(|| {
            self.malformed(format!(
                "an array of {count} elements: the arrays of a message have at most {ELEMENTS_MAX} elements together"
            ))
        })?;
        Ok(Some(count))
    }

    pub(super) fn array<T: Value>(&mut self) -> Result<Option<Vec<T>>> {
        let Some(count) = self.count()? else {
            return Ok(None);
        };
        let mut elements = Vec::with_capacity(count.min(RESERVED_ELEMENTS));
        for _ in 0..count {
            elements.push(T::read(self)?);
        }
        Ok(Some(elements))
    }

    /// Reads a value that must not be null.
    pub(super) fn present<T: Nullable>(&mut self) -> Result<T> {
        T::read_or_null(self)?.ok_or_else(|| self.null_refused())
    }

    pub(super) fn refuse_null<T>(&self, value: &Option<T>) -> Result<()> {
        if value.is_some() { Ok(()) } else { Err(self.null_refused()) }
    }

    fn null_refused(&self) -> Error {
        self.malformed("the value that ends there must not be null")
    }

    /// Reads the tags at the end of a struct, if the version has them. `known` reads the value of a tag, or returns
    /// `false` if it does not know the tag.
    pub fn tagged(&mut self, mut known: impl FnMut(&mut Self, u32) -> Result<bool>) -> Result<()> {
        if self.is_flexible { self.tags(&mut known) } else { Ok(()) }
    }

    /// Reads tags. It is compiled once for all structs, of which there are hundreds.
    fn tags(&mut self, known: &mut dyn FnMut(&mut Self, u32) -> Result<bool>) -> Result<()> {
        for _ in 0..self.uvarint()? {
            let tag = self.uvarint()?;
            let length = self.uvarint()? as usize;
            let before = self.rest.len();
            if length > before {
                return Err(self.malformed(format!("tag {tag} has {length} bytes and {before} are left")));
            }
            if !known(self, tag)? {
                self.rest.advance(length);
            }
            let read = before - self.rest.len();
            if read != length {
                return Err(self.malformed(format!("tag {tag} has {length} bytes and its value {read}")));
            }
        }
        Ok(())
    }

    pub(super) fn malformed(&self, what: impl std::fmt::Display) -> Error {
        Error::malformed(format!("at byte {}: {what}", self.at()))
    }
}
