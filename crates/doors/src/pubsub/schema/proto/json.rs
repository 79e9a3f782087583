//! Validation of JSON messages against a protocol buffer definition, in one pass without building the message.

use std::collections::HashSet;
use std::fmt;

use prost_reflect::Cardinality;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::super::json::{JsonKind, check_json, mismatch};
use super::{Field, Kind, Message, Proto};

impl Proto {
    pub fn check_json(&self, message: &[u8]) -> Result<(), String> {
        check_json(message, Expect { proto: self, what: What::Value(Kind::Message(self.root)) })
    }
}

#[derive(Clone, Copy)]
struct Expect<'a> {
    proto: &'a Proto,
    what: What<'a>,
}

#[derive(Clone, Copy)]
enum What<'a> {
    /// Value of a field: a list if it is repeated, an object if it is a map, or null if it is absent.
    Field(&'a Field),
    /// Single value.
    Value(Kind),
}

impl<'a> Expect<'a> {
    fn of(&self, what: What<'a>) -> Self {
        Self { proto: self.proto, what }
    }

    /// Returns the expected kind of a single value; `None` if several are expected.
    fn single(&self) -> Option<Kind> {
        match self.what {
            What::Value(kind) => Some(kind),
            What::Field(field) if field.label == Cardinality::Repeated => None,
            What::Field(field) => Some(field.kind),
        }
    }

    /// Returns the kinds of the key and of the value of a map.
    fn entry(&self, field: &Field) -> Option<(Kind, Kind)> {
        let Kind::Message(id) = field.kind else {
            return None;
        };
        let entry = &self.proto.messages[id];
        let kind = |number: u32| entry.by_number.get(&number).map(|at| entry.fields[*at].kind);
        if entry.is_map_entry { Some((kind(1)?, kind(2)?)) } else { None }
    }

    fn refuse<E: Error>(&self, found: JsonKind) -> E {
        let expected = match (self.what, self.single()) {
            (What::Field(field), None) if self.entry(field).is_some() => "object",
            (_, None) => "array",
            (_, Some(kind)) => match kind {
                Kind::Double | Kind::Float => "number",
                Kind::Bool => "boolean",
                Kind::String | Kind::Bytes => "string",
                Kind::Enum(_) => "string or number_integer",
                Kind::Message(_) | Kind::Group(_) => "object",
                _ => "number_integer",
            },
        };
        mismatch(found, expected)
    }

    /// Reads the fields of one message.
    fn message<'de, A: MapAccess<'de>>(&self, message: &'a Message, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        let mut oneofs = HashSet::new();
        let mut required = 0;
        while let Some(name) = entries.next_key::<String>()? {
            let at = message.by_name.get(&name);
            let at = *at.ok_or_else(|| A::Error::custom(format_args!("{} has no field {name:?}", message.name)))?;
            let field = &message.fields[at];
            let is_first = seen.insert(at);
            if !is_first || field.oneof.as_ref().is_some_and(|oneof| !oneofs.insert(oneof)) {
                return Err(A::Error::custom(format_args!(
                    "the field {name:?} is set twice, or together with another field of its oneof"
                )));
            }
            required += usize::from(field.label == Cardinality::Required);
            entries.next_value_seed(self.of(What::Field(field)))?;
        }
        if required < message.required {
            let is_missing = |(at, field): &(usize, &Field)| field.label == Cardinality::Required && !seen.contains(at);
            let missing = (0..).zip(&message.fields).find(is_missing).map_or("", |(_, field)| &field.name);
            return Err(A::Error::custom(format_args!("{} needs the field {missing:?}", message.name)));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Expect<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Expect<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the schema")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        // Null means that the field is absent.
        let is_absent = matches!(self.what, What::Field(field) if field.label != Cardinality::Required);
        if is_absent { Ok(()) } else { Err(self.refuse(JsonKind::Null)) }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        if self.single() == Some(Kind::Bool) { Ok(()) } else { Err(self.refuse(JsonKind::Boolean)) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self.single() {
            Some(kind) if is_number(kind, i128::from(value)) => Ok(()),
            Some(kind) if is_numeric(kind) => Err(E::custom(format_args!("{value} is not a {kind:?}"))),
            _ => Err(self.refuse(JsonKind::Integer)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self.single() {
            Some(kind) if is_number(kind, i128::from(value)) => Ok(()),
            Some(kind) if is_numeric(kind) => Err(E::custom(format_args!("{value} is not a {kind:?}"))),
            _ => Err(self.refuse(JsonKind::Integer)),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        match self.single() {
            Some(Kind::Double | Kind::Float) => Ok(()),
            Some(kind) if is_numeric(kind) && is_float_number(kind, value) => Ok(()),
            _ => Err(self.refuse(JsonKind::Float)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match self.single() {
            Some(Kind::String) => Ok(()),
            Some(Kind::Bytes) if is_base64(text) => Ok(()),
            Some(Kind::Bytes) => Err(E::custom("a string of bytes is not base64")),
            Some(Kind::Enum(id)) if self.proto.enums[id].values.contains_key(text) => Ok(()),
            Some(Kind::Enum(id)) => Err(E::custom(format_args!("{} has no value {text:?}", self.proto.enums[id].name))),
            Some(kind) if is_numeric(kind) && is_number_text(kind, text) => Ok(()),
            _ => Err(self.refuse(JsonKind::String)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        match self.what {
            What::Field(field) if self.single().is_none() && self.entry(field).is_none() => {
                while items.next_element_seed(self.of(What::Value(field.kind)))?.is_some() {}
                Ok(())
            }
            _ => Err(self.refuse(JsonKind::Array)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        match (self.single(), self.what) {
            (Some(Kind::Message(id) | Kind::Group(id)), _) => self.message(&self.proto.messages[id], entries),
            (None, What::Field(field)) => {
                let (key, value) = self.entry(field).ok_or_else(|| self.refuse(JsonKind::Object))?;
                while let Some(text) = entries.next_key::<String>()? {
                    let is_key = match key {
                        Kind::String => true,
                        Kind::Bool => matches!(text.as_str(), "true" | "false"),
                        kind => is_number_text(kind, &text),
                    };
                    if !is_key {
                        return Err(A::Error::custom(format_args!("{text:?} is not a {key:?}")));
                    }
                    entries.next_value_seed(self.of(What::Value(value)))?;
                }
                Ok(())
            }
            _ => Err(self.refuse(JsonKind::Object)),
        }
    }
}

/// Returns `true` if values of this kind are numbers, which JSON may also write as strings.
fn is_numeric(kind: Kind) -> bool {
    !matches!(kind, Kind::Bool | Kind::String | Kind::Bytes | Kind::Enum(_) | Kind::Message(_) | Kind::Group(_))
}

fn is_number(kind: Kind, value: i128) -> bool {
    let is_in = |min: i128, max: i128| (min..=max).contains(&value);
    match kind {
        Kind::Double | Kind::Float => true,
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Enum(_) => is_in(i32::MIN.into(), i32::MAX.into()),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => is_in(i64::MIN.into(), i64::MAX.into()),
        Kind::Uint32 | Kind::Fixed32 => is_in(0, u32::MAX.into()),
        Kind::Uint64 | Kind::Fixed64 => is_in(0, u64::MAX.into()),
        Kind::Bool | Kind::String | Kind::Bytes | Kind::Message(_) | Kind::Group(_) => false,
    }
}

/// Returns `true` if the value is a whole number in range; it may be written with a point or an exponent.
fn is_float_number(kind: Kind, value: f64) -> bool {
    value.fract() == 0.0 && is_number(kind, value as i128)
}

fn is_number_text(kind: Kind, text: &str) -> bool {
    if text.trim() != text || text.starts_with('+') {
        return false;
    }
    match (kind, text.parse::<i128>(), text.parse::<f64>()) {
        (Kind::Double | Kind::Float, _, Ok(value)) => {
            value.is_finite() || matches!(text, "NaN" | "Infinity" | "-Infinity")
        }
        (_, Ok(value), _) => is_number(kind, value),
        (_, _, Ok(value)) => value.is_finite() && is_float_number(kind, value),
        _ => false,
    }
}

/// Returns `true` if the text is base64 in either alphabet, with or without padding.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
    let padding = text.len() - digits.len();
    let is_padded = padding == 0 || (padding <= 2 && text.len().is_multiple_of(4));
    digits.bytes().all(is_digit) && digits.len() % 4 != 1 && is_padded
}
