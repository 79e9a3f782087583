//! Fields of a body, read one after the other.

use bytes::{Buf, Bytes};
use engine::{Error, Result};

/// Reader of a body. Bytes that it returns share the memory of the body.
pub(crate) struct Fields(pub(crate) Bytes);

impl Fields {
    pub fn u8(&mut self) -> Result<u8> {
        self.0.try_get_u8().map_err(cut_short)
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.0.try_get_u16().map_err(cut_short)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.0.try_get_u32().map_err(cut_short)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.0.try_get_u64().map_err(cut_short)
    }

    pub fn u128(&mut self) -> Result<u128> {
        self.0.try_get_u128().map_err(cut_short)
    }

    pub fn bytes(&mut self, length: usize) -> Result<Bytes> {
        if self.0.len() < length {
            return Err(Error::malformed(format!("a field has {length} bytes, and {} are left", self.0.len())));
        }
        Ok(self.0.split_to(length))
    }

    /// Reads a text of at most `max` bytes, whose length has 2 bytes.
    pub fn text(&mut self, max: usize) -> Result<String> {
        let length = usize::from(self.u16()?);
        if length > max {
            return Err(Error::malformed(format!("a text has {length} bytes, at most {max}")));
        }
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes.into()).map_err(|error| Error::malformed(format!("a text is not UTF-8: {error}")))
    }

    /// Reads a byte of flags; a bit that `known` does not have is refused.
    pub fn flags(&mut self, known: u8) -> Result<u8> {
        let flags = self.u8()?;
        if flags & !known != 0 {
            return Err(Error::malformed(format!("the flags {flags:#04x} are unknown")));
        }
        Ok(flags)
    }

    /// Reads a list, whose number of entries has 2 bytes. It grows with the entries that are there.
    pub fn list<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u16()?;
        (0..count).map(|_| read(self)).collect()
    }

    /// Reads a list whose number of entries has 4 bytes.
    pub fn long_list<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()?;
        (0..count).map(|_| read(self)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that no bytes are left.
    pub fn end(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(Error::malformed(format!("{left} bytes are left after the last field"))),
        }
    }
}

fn cut_short(error: bytes::TryGetError) -> Error {
    Error::malformed(format!("it ends before its last field: {error}"))
}
