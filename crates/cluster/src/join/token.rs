//! Tokens with which a program joins.
//!
//! A token is one line: [`TOKEN_PREFIX`] and, in base64url, its version (1), the fingerprint of the authority (32), its
//! id (16), when it expires in seconds since 1970 (8), an address of the cluster (2 and its bytes), a signature (32),
//! and the CRC-32C of all of this (4). The key of the signature is derived from that of the authority, so any node can
//! check a token, and none has to store it.

use std::fmt;
use std::time::SystemTime;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes};
use engine::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use super::UsedTokens;
use crate::identity::{ADDRESS_BYTES_MAX, Authority, Identity, check_address, random, seconds};
use crate::link::Fields;

/// Beginning of every token.
pub const TOKEN_PREFIX: &str = "thalweg-join-";
/// Maximum bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 512;

const VERSION: u8 = 1;
/// Purpose of the key that is derived from that of the authority.
const KEY_LABEL: &[u8] = b"thalweg tokens of nodes 1";

/// Id of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(pub u128);

/// Permission for one program to join.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Address of a node's cluster port.
    pub address: String,
    /// Fingerprint of the cluster's authority.
    pub fingerprint: [u8; 32],
    pub id: TokenId,
    /// Time in seconds since 1970 at which it expires.
    pub expires: u64,
    signature: [u8; 32],
}

impl Token {
    /// Issues a token that expires at a time. `address` is where the program connects to.
    pub fn issue(identity: &Identity, address: &str, expires: SystemTime) -> Result<Self> {
        check_address(address)?;
        let mut token = Self {
            address: address.to_owned(),
            fingerprint: identity.fingerprint(),
            id: TokenId(u128::from_be_bytes(random()?)),
            expires: seconds(expires),
            signature: [0; 32],
        };
        let signature = hmac::sign(&key(identity.authority()), &token.signed());
        token.signature.copy_from_slice(signature.as_ref());
        Ok(token)
    }

    /// Parses a token. Only a node of its cluster can check its signature.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let Some(encoded) = text.strip_prefix(TOKEN_PREFIX).filter(|_| text.len() <= TOKEN_BYTES_MAX) else {
            return Err(Error::invalid(format!(
                "a token begins with {TOKEN_PREFIX} and has at most {TOKEN_BYTES_MAX} characters: copy the whole line"
            )));
        };
        let incomplete =
            || Error::invalid("the token is incomplete or was changed: copy the whole line, or issue another");
        // tidy: the position of a bad character helps nobody, and the text is a secret.
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).map_err(|_| incomplete())?);
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(incomplete)?;
        if crc_fast::crc32_iscsi(body) != u32::from_be_bytes(*sum) {
            return Err(incomplete());
        }
        let mut fields = Fields(Bytes::copy_from_slice(body));
        let version = fields.u8()?;
        if version != VERSION {
            let text =
                format!("the token has version {version}, this program reads {VERSION}: use that of the cluster");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let fingerprint = array(&fields.bytes(32)?);
        let (id, expires) = (TokenId(fields.u128()?), fields.u64()?);
        let address = fields.text(ADDRESS_BYTES_MAX)?;
        let signature = array(&fields.bytes(32)?);
        fields.end()?;
        check_address(&address)?;
        Ok(Self { address, fingerprint, id, expires, signature })
    }

    /// Returns the token as one line. It is a secret.
    pub fn reveal(&self) -> String {
        let mut bytes = self.signed();
        bytes.extend_from_slice(&self.signature);
        let sum = crc_fast::crc32_iscsi(&bytes);
        bytes.put_u32(sum);
        format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(&*bytes))
    }

    /// Checks that the token is one of this cluster, and neither expired nor used.
    pub fn check(&self, identity: &Identity, now: SystemTime, used: &(impl UsedTokens + ?Sized)) -> Result<()> {
        let denied = |text: String| Err(Error::new(ErrorKind::Denied, text));
        if hmac::verify(&key(identity.authority()), &self.signed(), &self.signature).is_err() {
            return denied(
                "the token was not issued by this cluster: issue one with `thalweg cluster token`".to_owned(),
            );
        }
        let late = seconds(now).checked_sub(self.expires);
        if let Some(late) = late {
            return denied(format!(
                "the token expired {late} s ago: issue another with `thalweg cluster token`; if it is new, check the \
                 clocks"
            ));
        }
        if used.is_used(self.id) {
            return denied(
                "the token was used already: issue another for each node with `thalweg cluster token`".to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the bytes that the signature is of.
    fn signed(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::new());
        bytes.put_u8(VERSION);
        bytes.put_slice(&self.fingerprint);
        bytes.put_u128(self.id.0);
        bytes.put_u64(self.expires);
        bytes.put_u16(self.address.len() as u16);
        bytes.put_slice(self.address.as_bytes());
        bytes
    }
}

impl fmt::Debug for Token {
    /// Shows no signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("address", &self.address).field("id", &self.id).finish_non_exhaustive()
    }
}

fn key(authority: &Authority) -> hmac::Key {
    let of_authority = hmac::Key::new(hmac::HMAC_SHA256, authority.key_der());
    hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&of_authority, KEY_LABEL).as_ref())
}

fn array(bytes: &[u8]) -> [u8; 32] {
    let mut array = [0; 32];
    array.copy_from_slice(bytes);
    array
}
