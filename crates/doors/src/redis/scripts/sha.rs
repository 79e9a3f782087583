//! SHA-1 of scripts, by which clients name them.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// SHA-1 of the text of a script.
pub(in crate::redis) type Sha = [u8; 20];

pub(in crate::redis) fn sha_of(text: &[u8]) -> Sha {
    let mut sha = Sha::default();
    sha.copy_from_slice(digest(&SHA1_FOR_LEGACY_USE_ONLY, text).as_ref());
    sha
}

/// Returns the forty digits of a hash.
pub(in crate::redis) fn hex(sha: &Sha) -> [u8; 40] {
    let mut text = [0; 40];
    for (pair, byte) in text.chunks_exact_mut(2).zip(sha) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    text
}

/// Parses forty digits, in upper or lower case.
pub(in crate::redis) fn parse(text: &[u8]) -> Option<Sha> {
    if text.len() != 40 {
        return None;
    }
    let mut sha = Sha::default();
    for (byte, pair) in sha.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(sha)
}
