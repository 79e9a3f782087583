//! Validation of JSON messages in one pass, shared by both kinds of definitions.

use std::fmt;

use serde::de::{DeserializeSeed, Error};

use super::TOO_LONG;

/// Kind of a JSON value, with the name that Google's service uses.
#[derive(Clone, Copy)]
pub(super) enum JsonKind {
    Null,
    Boolean,
    Integer,
    Float,
    String,
    Array,
    Object,
}

impl fmt::Display for JsonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer => "number_integer",
            Self::Float => "number_float",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        })
    }
}

pub(super) fn mismatch<E: Error>(found: JsonKind, expected: &str) -> E {
    E::custom(format_args!("JSON object with type {found} does not match schema which expected {expected}"))
}

/// Reads one value and checks that nothing follows it. The parser limits the nesting to 128 levels.
pub(super) fn check_json<'de>(message: &'de [u8], value: impl DeserializeSeed<'de>) -> Result<(), String> {
    let mut parser = serde_json::Deserializer::from_slice(message);
    value.deserialize(&mut parser).map_err(|error| error.to_string())?;
    parser.end().map_err(|error| format!("{TOO_LONG} ({error})"))
}
