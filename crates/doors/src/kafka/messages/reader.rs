//! Bytes of a message, read from the front. Nothing is reserved for what has not come.

use bytes::{Buf, Bytes};
use engine::{Error, Result};

use super::value::{Nullable, Value};

/// Elements of all arrays of one message: more than a request that names every topic and every partition of a
/// broker has. What is decoded can be some thirty times as large as its bytes.
pub const ELEMENTS_MAX: usize = 1 << 18;
/// The longest string that the protocol has in any version.
pub(in crate::kafka) const STRING_BYTES_MAX: usize = i16::MAX as usize;
/// Elements that an array reserves at first.
const RESERVED_ELEMENTS: usize = 16;
/// Of an unsigned number of 32 bits, seven in a byte.
const UVARINT_BYTES_MAX: usize = 5;

const _: () = assert!(engine::limits::TOPICS_MAX + engine::limits::PARTITIONS_TOTAL_MAX <= ELEMENTS_MAX);

/// What a length is of: it says how wide it is where lengths are not varints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LengthOf {
    /// 16 bits.
    String,
    /// 32 bits.
    Bytes,
    /// 32 bits, of elements.
    Array,
}

/// Reads the values of a message in turn. Version 0 that is not flexible until `begin`, as headers begin.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
    /// Of all that was given.
    length: usize,
    version: i16,
    is_flexible: bool,
    /// What is left of `ELEMENTS_MAX`.
    elements_left: usize,
}

impl Reader {
    pub fn new(bytes: Bytes) -> Self {
        let length = bytes.len();
        Self { rest: bytes, length, version: 0, is_flexible: false, elements_left: ELEMENTS_MAX }
    }

    /// A message of this version comes next.
    pub fn begin(&mut self, version: i16, is_flexible: bool) {
        self.version = version;
        self.is_flexible = is_flexible;
        self.elements_left = ELEMENTS_MAX;
    }

    pub fn version(&self) -> i16 {
        self.version
    }

    /// How many bytes were read.
    pub fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub fn get<T: Value>(&mut self) -> Result<T> {
        T::read(self)
    }

    /// So many bytes, without a copy.
    pub fn take(&mut self, length: usize) -> Result<Bytes> {
        if length > self.rest.len() {
            return Err(self.malformed(format!("{length} bytes are to come and {} are left", self.rest.len())));
        }
        Ok(self.rest.split_to(length))
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some(bytes) = self.rest.first_chunk::<N>().copied() else {
            return Err(self.malformed(format!("{N} bytes are to come and {} are left", self.rest.len())));
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
        Err(self.malformed(format!("a number goes on after {UVARINT_BYTES_MAX} bytes")))
    }

    /// The length of what comes next, or that it is null. The bytes are there; the elements can be.
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
        // Every element has a byte at least.
        if length > self.rest.len() {
            let what = if of == LengthOf::Array { "elements" } else { "bytes" };
            return Err(self.malformed(format!("{length} {what} are to come and {} bytes are left", self.rest.len())));
        }
        if of == LengthOf::String && length > STRING_BYTES_MAX {
            return Err(self.malformed(format!("a string of {length} bytes, more than {STRING_BYTES_MAX}")));
        }
        Ok(Some(length))
    }

    pub(super) fn array<T: Value>(&mut self) -> Result<Option<Vec<T>>> {
        let Some(count) = self.length(LengthOf::Array)? else {
            return Ok(None);
        };
        self.elements_left = self.elements_left.checked_sub(count).ok_or_else(|| {
            self.malformed(format!("an array of {count}: the arrays of a message have {ELEMENTS_MAX} elements at most"))
        })?;
        let mut elements = Vec::with_capacity(count.min(RESERVED_ELEMENTS));
        for _ in 0..count {
            elements.push(T::read(self)?);
        }
        Ok(Some(elements))
    }

    /// What must not be null.
    pub(super) fn present<T: Nullable>(&mut self) -> Result<T> {
        T::read_or_null(self)?.ok_or_else(|| self.null_refused())
    }

    pub(super) fn refuse_null<T>(&self, value: &Option<T>) -> Result<()> {
        if value.is_some() { Ok(()) } else { Err(self.null_refused()) }
    }

    fn null_refused(&self) -> Error {
        self.malformed("what ends there is null and must not be")
    }

    /// The tags at the end of a struct, if it has them. `known` reads the value of a tag, or says that it does not
    /// know it.
    pub fn tagged(&mut self, mut known: impl FnMut(&mut Self, u32) -> Result<bool>) -> Result<()> {
        if !self.is_flexible {
            return Ok(());
        }
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
