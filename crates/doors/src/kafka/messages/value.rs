//! Types of fields, each with its codec.

use std::fmt;

use bytes::Bytes;
use engine::Result;

use super::reader::{LengthOf, Reader, STRING_BYTES_MAX};
use super::writer::Writer;

/// Kind of thing that a text in a message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// The text is no name, or the name of something that has no owner, such as a configuration key.
    None,
    Topic,
    Group,
    Transaction,
    /// Regular expression for names of topics.
    TopicPattern,
    /// Group or transaction whose coordinator is requested.
    Coordinated,
    /// Resource with settings, of the type with this number.
    Configured(i8),
    /// Text for people that may quote names, such as the message of an error.
    Text,
}

/// Visitor of the names in a message, which may change them. It returns `false` for a name that must not be shown.
pub type Visit<'v> = dyn FnMut(Entity, &mut String) -> bool + 'v;

/// Type of a field or of an element of an array. Its encoding has at least one byte.
pub trait Value: Sized {
    fn read(from: &mut Reader) -> Result<Self>;
    fn write(&self, to: &mut Writer<'_>);

    /// Visits the names in the value. Texts are those of `entity`; the fields of a struct have entities of their own.
    /// An array loses the elements with a name for which the visitor returns `false`.
    ///
    /// Returns `false` if the visitor returned `false` for a name outside the arrays of the value.
    fn names(&mut self, _entity: Entity, _visit: &mut Visit<'_>) -> bool {
        true
    }
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

    fn names(&mut self, entity: Entity, visit: &mut Visit<'_>) -> bool {
        self.as_mut().is_none_or(|value| value.names(entity, visit))
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
    ($($kind:ty $(where $of:ident)?, |$it:ident, $entity:ident, $visit:ident| $names:expr;)*) => {$(
        impl $(<$of: Value>)? Value for $kind {
            fn read(from: &mut Reader) -> Result<Self> {
                from.present()
            }

            fn write(&self, to: &mut Writer<'_>) {
                Self::write_or_null(Some(self), to);
            }

            fn names(&mut self, $entity: Entity, $visit: &mut Visit<'_>) -> bool {
                let $it = self;
                $names
            }
        }
    )*};
}

present! {
    String, |it, entity, visit| entity == Entity::None || visit(entity, it);
    Bytes, |_it, _entity, _visit| true;
    Vec<T> where T, |it, entity, visit| {
        it.retain_mut(|element| element.names(entity, visit));
        true
    };
}

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
