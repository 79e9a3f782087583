//! Invitations, with which a site joins a mesh.
//!
//! An invitation is one line: [`INVITATION_PREFIX`] and, in base64url, its version (1), the key of the site that issued
//! it (32), a secret (16), when it expires in seconds since 1970 (8), the addresses of that site (2 and its bytes), and
//! the CRC-32C of all of this (4). The site that issued it keeps the hash of the secret until it is used or has
//! expired.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Buf, BufMut};
use engine::mesh::{SiteKey, check_address};
use engine::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use crate::frame::SECRET_BYTES;

/// Beginning of every invitation.
pub const INVITATION_PREFIX: &str = "thalweg-mesh-";
/// Maximum bytes of an invitation.
const INVITATION_BYTES_MAX: usize = 512;
/// Maximum invitations of a site that are neither used nor expired.
pub const OPEN_INVITATIONS_MAX: usize = 1000;
const VERSION: u8 = 1;
/// Bytes of an invitation before the addresses.
const FIXED_BYTES: usize = 1 + 32 + SECRET_BYTES + 8 + 2;

/// Permission for one site to join.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// Key of the site that issued it.
    pub key: SiteKey,
    pub secret: [u8; SECRET_BYTES],
    /// Time in seconds since 1970 at which it expires.
    pub expires_s: u64,
    /// Addresses of the site that issued it.
    pub address: String,
}

impl fmt::Debug for Invitation {
    /// Shows no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation").field("key", &self.key).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Invitation {
    /// Returns the invitation as one line. It is a secret.
    pub fn reveal(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(INVITATION_BYTES_MAX));
        bytes.put_u8(VERSION);
        bytes.put_slice(&self.key.to_bytes());
        bytes.put_slice(&self.secret);
        bytes.put_u64(self.expires_s);
        bytes.put_u16(self.address.len() as u16);
        bytes.put_slice(self.address.as_bytes());
        let sum = crc_fast::crc32_iscsi(&bytes);
        bytes.put_u32(sum);
        Zeroizing::new(format!("{INVITATION_PREFIX}{}", URL_SAFE_NO_PAD.encode(&*bytes)))
    }

    /// Parses an invitation.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let Some(encoded) = text.strip_prefix(INVITATION_PREFIX).filter(|_| text.len() <= INVITATION_BYTES_MAX) else {
            return Err(Error::invalid(format!(
                "an invitation begins with {INVITATION_PREFIX} and has at most {INVITATION_BYTES_MAX} characters: \
                 copy the whole line that `thalweg mesh invite` printed"
            )));
        };
        let incomplete =
            || Error::invalid("the invitation is incomplete or was changed: copy the whole line, or issue another one");
        // tidy: the position of a bad character helps nobody, and the text is a secret.
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).map_err(|_| incomplete())?);
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(incomplete)?;
        if crc_fast::crc32_iscsi(body) != u32::from_be_bytes(*sum) || body.len() < FIXED_BYTES {
            return Err(incomplete());
        }
        let mut body = body;
        let version = body.get_u8();
        if version != VERSION {
            let text = format!("the invitation has version {version}, this program reads {VERSION}: update it");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let (mut key, mut secret) = ([0; 32], [0; SECRET_BYTES]);
        body.copy_to_slice(&mut key);
        body.copy_to_slice(&mut secret);
        let expires_s = body.get_u64();
        let length = usize::from(body.get_u16());
        let address =
            (body.len() == length).then(|| std::str::from_utf8(body).ok()).flatten().ok_or_else(incomplete)?;
        check_address(address)?;
        Ok(Self { key: SiteKey::new(key), secret, expires_s, address: address.to_owned() })
    }
}

/// Returns the hash of a secret, which is what the site that issued it keeps.
pub(crate) fn hash_of(secret: &[u8; SECRET_BYTES]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written_and_every_change_is_noticed() {
        let invitation = Invitation {
            key: SiteKey::new([7; 32]),
            secret: [9; SECRET_BYTES],
            expires_s: 1_800_000_000,
            address: "berlin.example:7403,[::1]:7403".to_owned(),
        };
        let line = invitation.reveal();
        assert_eq!(Invitation::parse(&format!(" {}\n", &*line)), Ok(invitation.clone()));
        for at in 0..line.len() {
            assert!(Invitation::parse(&line[..at]).is_err(), "{at}");
            let mut changed = line.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_ne!(Invitation::parse(&changed), Ok(invitation.clone()), "{at}");
        }
        assert!(!format!("{invitation:?}").contains("9, 9"));
    }
}
