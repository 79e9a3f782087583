//! Schemas of messages: definitions, validation of messages, and revisions.
//!
//! Definitions and messages come from untrusted clients. A definition is parsed into tables of limited size; a message
//! is validated in one pass, with limits on its depth and steps, without building values.

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

/// Maximum size of a definition's text; the limit of Google's service.
pub const DEFINITION_BYTES_MAX: usize = 300 << 10;
/// Maximum number of revisions of one schema; the limit of Google's service.
pub const REVISIONS_MAX: usize = 20;
/// Maximum number of schemas of one project; the limit of Google's service.
pub const SCHEMAS_MAX: usize = 10_000;

/// Maximum length of a full name in a definition. The name of a nested item repeats the whole name of the outer one, so
/// that without a limit a small text could become tables of any size.
const NAME_BYTES_MAX: usize = 512;
/// Maximum nesting of values. The JSON parser's limit is 128 as well.
const DEPTH_MAX: usize = 128;
const TOO_DEEP: &str = "The message is nested too deeply.";
const TOO_LONG: &str = "Too much data to parse for schema.";

/// Language of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Avro,
    ProtocolBuffer,
}

/// Encoding of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Binary,
}

impl Encoding {
    /// Returns the name for the attribute of a message.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Binary => "BINARY",
        }
    }
}

/// Valid definition.
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

    /// Checks that a message conforms to the definition; the error is the reason.
    pub fn check(&self, encoding: Encoding, message: &[u8]) -> Result<(), String> {
        let checked = match (&self.0, encoding) {
            (Parsed::Avro(avro), Encoding::Json) => avro.check_json(message),
            (Parsed::Avro(avro), Encoding::Binary) => avro.check_binary(message),
            (Parsed::Proto(proto), Encoding::Json) => proto.check_json(message),
            (Parsed::Proto(proto), Encoding::Binary) => proto.check_binary(message),
        };
        checked.map_err(|why| shortened(&why).to_owned())
    }

    /// Checks a message like [`Definition::check`], with the errors of Google's service.
    pub fn admit(&self, encoding: Encoding, message: &[u8]) -> Result<(), Refusal> {
        self.check(encoding, message).map_err(|why| service::invalid_message(self.kind(), encoding, why))
    }

    /// Checks that both may be revisions of one schema; the error is the reason.
    pub fn expect_compatible(&self, other: &Self) -> Result<(), String> {
        let compared = match (&self.0, &other.0) {
            (Parsed::Avro(own), Parsed::Avro(other)) => own.expect_compatible(other),
            (Parsed::Proto(own), Parsed::Proto(other)) => own.expect_compatible(other),
            _ => Err("the type of a schema cannot change".to_owned()),
        };
        compared.map_err(|why| shortened(&why).to_owned())
    }
}

/// Returns the text of a binary message in the JSON of its kind. Fails if the message does not conform to the
/// definition, or if the text would be longer than `bytes_max`.
pub fn text_of_binary(kind: Kind, definition: &str, message: &[u8], bytes_max: usize) -> Result<String, String> {
    let text = match kind {
        Kind::Avro => Avro::parse(definition).and_then(|avro| avro.text_of_binary(message, bytes_max)),
        Kind::ProtocolBuffer => proto::text_of_binary(definition, message, bytes_max),
    };
    text.map_err(|why| shortened(&why).to_owned())
}

/// Refuses a name that is too long.
fn expect_short(name_bytes: usize) -> Result<(), String> {
    if name_bytes <= NAME_BYTES_MAX {
        Ok(())
    } else {
        Err(format!("a full name has at most {NAME_BYTES_MAX} bytes, not {name_bytes}"))
    }
}

/// Truncates a text for a response: it may contain the client's input, such as names of any length.
fn shortened(why: &str) -> &str {
    const BYTES_MAX: usize = 1024;
    &why[..why.floor_char_boundary(BYTES_MAX)]
}

/// Budget of a traversal.
#[derive(Debug)]
struct Walk {
    steps: usize,
}

impl Walk {
    fn new(steps: usize) -> Self {
        Self { steps }
    }

    fn spend(&mut self, steps: usize) -> Result<(), String> {
        self.steps = self.steps.checked_sub(steps).ok_or("the check takes too many steps for the size of its input")?;
        Ok(())
    }
}

/// Class of a refusal in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    /// The broker refused it, and not the schema.
    Unavailable,
}

/// Refusal of a call, with the message that clients show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub info: Option<Box<Info>>,
}

/// Machine-readable detail of a refusal: a reason in capitals, and strings by name.
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
