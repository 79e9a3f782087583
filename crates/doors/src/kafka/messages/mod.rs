//! Messages of Kafka's protocol as values, except Produce and Fetch: `api` contains their tables, `message` the macros
//! that generate structs from them, `value` the types of fields, `reader` and `writer` the conversion from and to
//! bytes.
//!
//! A field that a version lacks has its default when it is decoded, and is omitted when it is encoded. A null that a
//! version does not allow is refused when it is decoded, and written as an empty value when it is encoded.

use engine::{Error, ErrorKind, Result};

mod api;
mod message;
mod reader;
mod value;
mod writer;

#[cfg(test)]
pub(super) mod tests;

pub use api::*;
pub use message::{Api, Message, decode_embedded, encode_embedded};
pub(super) use reader::STRING_BYTES_MAX;
pub use reader::{ELEMENTS_MAX, Reader};
pub use value::{Entity, Nullable, Uuid, Value, Visit};
pub use writer::Writer;

/// Key of the API that a client calls first, and whose response every client can read.
const API_VERSIONS: i16 = 18;

/// Returns the description of an API if this version of it is served; otherwise an error.
pub(super) fn served(key: i16, version: i16) -> Result<&'static Api> {
    let unsupported = |message| Err(Error::new(ErrorKind::Unsupported, message));
    match api(key) {
        Some(api) if api.serves(version) => Ok(api),
        Some(Api { name, version_min, version_max, .. }) => {
            unsupported(format!("version {version} of {name} is not supported: use {version_min} to {version_max}"))
        }
        None => unsupported(format!("API key {key} is not supported")),
    }
}

/// Adds the name of the message to an error.
pub(super) fn in_message(api: &Api, version: i16, error: Error) -> Error {
    error.map_message(|why| format!("{} version {version}: {why}", api.name))
}

/// Returns the description of an API, if it is served.
pub fn api(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key == key)
}

/// Returns `true` if the header of a request ends with tags. Also valid for versions that are not served.
pub fn request_header_is_flexible(key: i16, version: i16) -> bool {
    api(key).is_some_and(|api| api.is_flexible(version))
}

/// Returns `true` if the header of a response ends with tags. That of ApiVersions never does, so that a client whose
/// version is too new can read the response.
pub fn response_header_is_flexible(key: i16, version: i16) -> bool {
    key != API_VERSIONS && request_header_is_flexible(key, version)
}
