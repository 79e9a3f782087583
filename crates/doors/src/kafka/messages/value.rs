//! Types of fields, each with its codec.

use std::fmt;

use bytes::Bytes;
use engine::Result;

use super::reader::{LengthOf, Reader, STRING_BYTES_MAX};
use super::writer::Writer;

/// Type of a field or of an element of an array. Its encoding has at least one byte.
pub trait Value: Sized {
    fn read(from: &mut Reader) -> Result<Self>;
    fn write(&self, to: &mut Writer<'_>);
}

/// Value that may be null. Strings, byte arrays and arrays use their length for that, structs a separate byte.
pub trait Nullable: Value {
    fn read_or_null(from: &mut Reader) -> Result<Option<Self>> {
        let is_present = from.get::<i8>()? >= 0;
        is_present.then(|| Self::read(from)).transpose()
    }

    fn write_or_null(value: Option<&Self>, to: &mut Writer<'_>) {
        to.put(&if value.is_some() { 1i8 } else { -1 });
        if let Some(value) = value {
            value.write(to);
        }
    }
}

impl<T: Nullable> Value for Option<T> {
    fn read(from: &mut Reader) -> Result<Self> {
        T::read_or_null(from)
    }

    fn write(&self, to: &mut Writer<'_>) {
        T::write_or_null(self.as_ref(), to);
    }
}

/// UUID. All zeros means no id.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub u128);

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

macro_rules! fixed {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn read(from: &mut Reader) -> Result<Self> {
                Ok(Self::from_be_bytes(from.fixed()?))
            }

            fn write(&self, to: &mut Writer<'_>) {
                to.slice(&self.to_be_bytes());
            }
        }
    )*};
}

fixed!(i8, i16, u16, i32, i64, u128, f64);

impl Value for bool {
    fn read(from: &mut Reader) -> Result<Self> {
        Ok(from.get::<i8>()? != 0)
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.put(&i8::from(*self));
    }
}

impl Value for Uuid {
    fn read(from: &mut Reader) -> Result<Self> {
        Ok(Self(from.get()?))
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.put(&self.0);
    }
}

macro_rules! present {
    ($($kind:ty $(where $of:ident)?),*) => {$(
        impl $(<$of: Value>)? Value for $kind {
            fn read(from: &mut Reader) -> Result<Self> {
                from.present()
            }

            fn write(&self, to: &mut Writer<'_>) {
                Self::write_or_null(Some(self), to);
            }
        }
    )*};
}

present!(String, Bytes, Vec<T> where T);

impl Nullable for String {
    fn read_or_null(from: &mut Reader) -> Result<Option<Self>> {
        let Some(length) = from.length(LengthOf::String)? else {
            return Ok(None);
        };
        let bytes = from.take(length)?;
        let text = str::from_utf8(&bytes)
            .map_err(|e| from.malformed(format!("the string that ends there is not UTF-8: {e}")))?;
        Ok(Some(text.to_owned()))
    }

    /// Truncates at the protocol's maximum length. Strings that the broker stores are far shorter.
    fn write_or_null(value: Option<&Self>, to: &mut Writer<'_>) {
        let value = value.map(|text| &text[..text.floor_char_boundary(STRING_BYTES_MAX)]);
        to.length(LengthOf::String, value.map(str::len));
        to.slice(value.unwrap_or_default().as_bytes());
    }
}

impl Nullable for Bytes {
    fn read_or_null(from: &mut Reader) -> Result<Option<Self>> {
        let length = from.length(LengthOf::Bytes)?;
        length.map(|length| from.take(length)).transpose()
    }

    fn write_or_null(value: Option<&Self>, to: &mut Writer<'_>) {
        to.length(LengthOf::Bytes, value.map(Self::len));
        to.slice(value.map(|bytes| &bytes[..]).unwrap_or_default());
    }
}

impl<T: Value> Nullable for Vec<T> {
    fn read_or_null(from: &mut Reader) -> Result<Option<Self>> {
        from.array()
    }

    fn write_or_null(value: Option<&Self>, to: &mut Writer<'_>) {
        to.length(LengthOf::Array, value.map(Self::len));
        value.into_iter().flatten().for_each(|element| to.put(element));
    }
}
