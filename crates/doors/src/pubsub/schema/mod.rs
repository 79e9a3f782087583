//! Schemas of messages: what a definition says, whether a message follows it, and its revisions.
//!
//! Definitions and messages come from anyone. Neither is turned into values: a definition becomes tables whose size it
//! bounds, a message is walked once, with depth and steps counted.

mod avro;
mod json;
mod proto;
mod revision;
mod service;
#[cfg(test)]
mod service_tests;

use std::fmt;

use avro::Avro;
use proto::Proto;

pub use revision::Revision;
pub use service::{Documents, Range, Schemas};

/// The text of a definition; the service's limit.
pub const DEFINITION_BYTES_MAX: usize = 300 << 10;
/// Revisions of one schema; the service's limit.
pub const REVISIONS_MAX: usize = 20;
/// Schemas of one project; the service's limit.
pub const SCHEMAS_MAX: usize = 10_000;

/// The full name of anything in a definition. What is inside of something else repeats all of its name, so that without
/// a limit a small text would be tables of any size.
const NAME_BYTES_MAX: usize = 512;
/// Values within values. The JSON parser has 128 as well.
const DEPTH_MAX: usize = 128;
const TOO_DEEP: &str = "The message is nested too deeply.";
const TOO_LONG: &str = "Too much data to parse for schema.";

/// The language of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Avro,
    ProtocolBuffer,
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Binary,
}

impl Encoding {
    /// As the attribute of a message names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Binary => "BINARY",
        }
    }
}

/// A definition that holds.
#[derive(Debug)]
pub struct Definition(Parsed);

#[derive(Debug)]
enum Parsed {
    Avro(Avro),
    Proto(Proto),
}

impl Definition {
    pub fn parse(kind: Kind, text: &str) -> Result<Self, Refusal> {
        if text.len() > DEFINITION_BYTES_MAX {
            let message = format!("The schema definition has {} bytes, at most {DEFINITION_BYTES_MAX}.", text.len());
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        let parsed = match kind {
            Kind::Avro => Avro::parse(text).map(Parsed::Avro),
            Kind::ProtocolBuffer => Proto::parse(text).map(Parsed::Proto),
        };
        let parsed = parsed.map_err(|why| {
            Refusal::new(Code::InvalidArgument, format!("Could not parse schema definition: {}", shortened(&why)))
        })?;
        Ok(Self(parsed))
    }

    pub fn kind(&self) -> Kind {
        match &self.0 {
            Parsed::Avro(_) => Kind::Avro,
            Parsed::Proto(_) => Kind::ProtocolBuffer,
        }
    }

    /// Whether a message follows the definition; if not, why.
    pub fn check(&self, encoding: Encoding, message: &[u8]) -> Result<(), String> {
        let checked = match (&self.0, encoding) {
            (Parsed::Avro(avro), Encoding::Json) => avro.check_json(message),
            (Parsed::Avro(avro), Encoding::Binary) => avro.check_binary(message),
            (Parsed::Proto(proto), Encoding::Json) => proto.check_json(message),
            (Parsed::Proto(proto), Encoding::Binary) => proto.check_binary(message),
        };
        checked.map_err(|why| shortened(&why).to_owned())
    }

    /// The same, refused as the service does.
    pub fn admit(&self, encoding: Encoding, message: &[u8]) -> Result<(), Refusal> {
        self.check(encoding, message).map_err(|why| service::invalid_message(self.kind(), encoding, why))
    }

    /// Whether both may be revisions of one schema; if not, why.
    pub fn expect_compatible(&self, other: &Self) -> Result<(), String> {
        let compared = match (&self.0, &other.0) {
            (Parsed::Avro(own), Parsed::Avro(other)) => own.expect_compatible(other),
            (Parsed::Proto(own), Parsed::Proto(other)) => own.expect_compatible(other),
            _ => Err("the type of a schema cannot change".to_owned()),
        };
        compared.map_err(|why| shortened(&why).to_owned())
    }
}

/// Refuses names that are too long.
fn expect_short(name_bytes: usize) -> Result<(), String> {
    match name_bytes <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("a name with all that it is inside of has {name_bytes} bytes, at most {NAME_BYTES_MAX}")),
    }
}

/// What an answer tells of what somebody sent, names of any length included.
fn shortened(why: &str) -> &str {
    const BYTES_MAX: usize = 1024;
    &why[..why.floor_char_boundary(BYTES_MAX)]
}

/// Work that may still be done.
#[derive(Debug)]
struct Walk {
    steps: usize,
}

impl Walk {
    fn new(steps: usize) -> Self {
        Self { steps }
    }

    fn spend(&mut self, steps: usize) -> Result<(), String> {
        self.steps = self.steps.checked_sub(steps).ok_or("this takes more steps than its size allows")?;
        Ok(())
    }
}

/// Why a call is refused, as the protocol classes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    /// The broker refused it, not the schema.
    Unavailable,
}

/// A refused call, with what clients show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub info: Option<Box<Info>>,
}

/// The detail of a refusal that programs read: a reason in capitals, and texts by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub reason: &'static str,
    pub metadata: Vec<(&'static str, String)>,
}

impl Refusal {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), info: None }
    }

    fn not_found(message: &str) -> Self {
        Self::new(Code::NotFound, message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.code)
    }
}

impl std::error::Error for Refusal {}

impl From<engine::Error> for Refusal {
    fn from(error: engine::Error) -> Self {
        Self::new(Code::Unavailable, error.to_string())
    }
}
