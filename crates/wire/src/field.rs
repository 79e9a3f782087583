//! Fields of bodies: big-endian integers, and strings with a 16-bit length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{Error, Result};

/// Maximum number of entries of all lists of a request. Empty ones take 24 bytes of memory for 2 bytes of a frame.
const LIST_ENTRIES_MAX: usize = 1 << 18;

/// Appends a string. Names are checked before they get here; a text that is too long is truncated, which keeps the
/// frame well formed.
pub(crate) fn put_str(buf: &mut BytesMut, text: &str) {
    let text = &text[..text.floor_char_boundary(usize::from(u16::MAX))];
    buf.put_u16(text.len() as u16);
    buf.put_slice(text.as_bytes());
}

/// Appends a list: the number of its entries, then the entries.
pub(crate) fn put_list<T>(buf: &mut BytesMut, entries: &[T], put: impl Fn(&mut BytesMut, &T)) {
    buf.put_u32(entries.len() as u32);
    entries.iter().for_each(|entry| put(buf, entry));
}

/// Appends a byte with a bit for each flag, the first one lowest.
pub(crate) fn put_flags(b: &mut BytesMut, flags: &[bool]) {
    b.put_u8(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
}

/// Appends an option: a u8 that is 1 if the value follows and 0 otherwise, then the value.
pub(crate) fn put_option<T>(b: &mut BytesMut, value: Option<&T>, put: impl Fn(&mut BytesMut, &T)) {
    b.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(b, value);
    }
}

/// Reader of the fields of one body. Bytes left at the end are an error, so that nothing is ignored.
pub(crate) struct Fields<B> {
    body: B,
    /// Number of entries that all its lists may still have.
    entries_left: usize,
}

macro_rules! number {
    ($name:ident, $type:ty, $get:ident) => {
        pub(crate) fn $name(&mut self) -> Result<$type> {
            if self.body.remaining() < size_of::<$type>() {
                return Err(cut_short());
            }
            Ok(self.body.$get())
        }
    };
}

impl<B: Buf> Fields<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, entries_left: usize::MAX }
    }

    /// Creates a reader for a request, whose lists have at most [`LIST_ENTRIES_MAX`] entries together.
    pub(crate) fn of_request(body: B) -> Self {
        Self { body, entries_left: LIST_ENTRIES_MAX }
    }

    number!(u8, u8, get_u8);
    number!(u16, u16, get_u16);
    number!(u32, u32, get_u32);
    number!(u64, u64, get_u64);
    number!(i16, i16, get_i16);
    number!(i64, i64, get_i64);

    pub(crate) fn str(&mut self) -> Result<String> {
        let length = usize::from(self.u16()?);
        if self.body.remaining() < length {
            return Err(cut_short());
        }
        String::from_utf8(self.body.copy_to_bytes(length).into())
            .map_err(|e| Error::malformed(format!("a string is not UTF-8: {e}")))
    }

    /// Reads a boolean, which is 0 or 1.
    pub(crate) fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::malformed(format!("a bool is 0 or 1, not {other}"))),
        }
    }

    /// Reads a list whose entries have at least `entry_bytes_min` bytes.
    pub(crate) fn list<T>(&mut self, entry_bytes_min: usize, get: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.count(entry_bytes_min)?;
        (0..count).map(|_| get(self)).collect()
    }

    /// Reads the number of entries that follow. Each has at least `entry_bytes_min` bytes, so a false number reserves
    /// no memory.
    pub(crate) fn count(&mut self, entry_bytes_min: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.body.remaining() / entry_bytes_min {
            return Err(cut_short());
        }
        self.entries_left = self.entries_left.checked_sub(count).ok_or_else(|| {
            Error::too_large(format!("the lists of a request have at most {LIST_ENTRIES_MAX} entries together"))
        })?;
        Ok(count)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<Bytes> {
        if self.body.remaining() < length {
            return Err(cut_short());
        }
        Ok(self.body.copy_to_bytes(length))
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(self) -> B {
        self.body
    }

    pub(crate) fn end(self) -> Result<()> {
        match self.body.remaining() {
            0 => Ok(()),
            left => Err(Error::malformed(format!("{left} bytes are left after the last field"))),
        }
    }
}

pub(crate) fn get_flags<const N: usize, B: Buf>(f: &mut Fields<B>) -> Result<[bool; N]> {
    let byte = f.u8()?;
    if byte >> N != 0 {
        return Err(Error::malformed(format!("unknown flags {byte:#04x} of settings")));
    }
    Ok(std::array::from_fn(|i| byte >> i & 1 == 1))
}

pub(crate) fn get_option<B: Buf, T>(f: &mut Fields<B>, get: impl Fn(&mut Fields<B>) -> Result<T>) -> Result<Option<T>> {
    if f.bool()? { Ok(Some(get(f)?)) } else { Ok(None) }
}

/// Returns a text, or `None` if it is empty, which encodes a missing text.
pub(crate) fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Reads a byte that stands for one of a few values; `what` names them in the error.
pub(crate) fn get_code<B: Buf, T>(f: &mut Fields<B>, what: &str, from_code: impl Fn(u8) -> Option<T>) -> Result<T> {
    let code = f.u8()?;
    from_code(code).ok_or_else(|| Error::malformed(format!("{code} is not a valid {what}")))
}

fn cut_short() -> Error {
    Error::malformed("the body ends before its last field")
}
