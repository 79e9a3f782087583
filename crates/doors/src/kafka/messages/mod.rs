//! The messages of Kafka's protocol as values, Produce and Fetch aside: `api` has their tables, `message` what
//! makes structs of those, `value` the types of fields, `reader` and `writer` the bytes.
//!
//! A field that a version lacks has its default when it is decoded, and is left out when it is encoded. A null that
//! a version does not allow is refused, and an empty value is written in its place.

use engine::{Error, ErrorKind, Result};

mod api;
mod message;
mod reader;
mod value;
mod writer;

#[cfg(test)]
mod tests;

pub use api::*;
pub use message::{Api, Message, decode_embedded, encode_embedded};
pub(super) use reader::STRING_BYTES_MAX;
pub use reader::{ELEMENTS_MAX, Reader};
pub use value::{Nullable, Uuid, Value};
pub use writer::Writer;

/// The key of the API that a client asks first, and whose answer every client can read.
const API_VERSIONS: i16 = 18;

/// The row of an API with this version of it.
pub(super) fn served(key: i16, version: i16) -> Result<&'static Api> {
    let unsupported = |message| Err(Error::new(ErrorKind::Unsupported, message));
    match api(key) {
        Some(api) if api.serves(version) => Ok(api),
        Some(Api { name, version_min, version_max, .. }) => {
            unsupported(format!("version {version} of {name}: this broker has {version_min} to {version_max}"))
        }
        None => unsupported(format!("this broker has no API with the key {key}")),
    }
}

/// Says in which message something was wrong.
pub(super) fn in_message(api: &Api, version: i16, error: Error) -> Error {
    Error { message: format!("{} version {version}: {}", api.name, error.message), ..error }
}

/// The row of an API, if it is served.
pub fn api(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key == key)
}

/// Whether the header of a request ends with tags. Holds for versions that are not served, too.
pub fn request_header_is_flexible(key: i16, version: i16) -> bool {
    api(key).is_some_and(|api| api.is_flexible(version))
}

/// Whether the header of a response ends with tags. That of ApiVersions never does, so that a client that asked
/// with a version that is too new can read the answer.
pub fn response_header_is_flexible(key: i16, version: i16) -> bool {
    key != API_VERSIONS && request_header_is_flexible(key, version)
}
