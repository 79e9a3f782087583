//! Random bytes for keys, salts and nonces.

use aws_lc_rs::rand;
use engine::{Error, ErrorKind, Result};

/// Returns cryptographically secure random bytes.
pub(super) fn random(bytes: usize) -> Result<Vec<u8>> {
    let mut random = vec![0; bytes];
    rand::fill(&mut random).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot get random numbers from the system: {error}"))
    })?;
    Ok(random)
}
