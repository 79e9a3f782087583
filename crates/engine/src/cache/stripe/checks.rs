//! Checks of sizes and kinds, with the errors for refused changes.

use crate::cache::structures::Kind;
use crate::cache::{KEY_BYTES_MAX, STRUCTURE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::{Error, Result};

/// Refuses a key of more than [`KEY_BYTES_MAX`] bytes and a value of more than [`VALUE_BYTES_MAX`] bytes.
pub fn check_size(key: &[u8], value_bytes: usize) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::too_large(format!("a key has at most {KEY_BYTES_MAX} bytes, not {}", key.len())));
    }
    if value_bytes > VALUE_BYTES_MAX {
        return Err(Error::too_large(format!("a value has at most {VALUE_BYTES_MAX} bytes, not {value_bytes}")));
    }
    Ok(())
}

/// Refuses a structure that would grow beyond [`STRUCTURE_BYTES_MAX`]. With `room` 0, a structure that only loses
/// parts, any size is allowed.
pub(super) fn check_structure(bytes: u64, room: u64) -> Result<()> {
    if room > 0 && bytes + room > STRUCTURE_BYTES_MAX {
        return Err(Error::too_large(format!(
            "a value with elements uses at most {STRUCTURE_BYTES_MAX} bytes, not {}",
            bytes + room
        )));
    }
    Ok(())
}

pub(super) fn wrong_kind(is: Kind, wanted: Kind) -> Error {
    Error::invalid(format!("the key has a {}, not a {}", is.name(), wanted.name()))
}

pub(super) fn full() -> Error {
    Error::busy("the cache is full: raise its bytes_max, delete entries, or choose an eviction policy")
}
