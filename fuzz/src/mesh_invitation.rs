//! An invitation is refused, or is exactly the line that it is printed as.
//!
//! Input: one byte, and the rest: a line, if the byte is odd. If it is even, the rest is the bytes of an invitation
//! without their checksum: they are encoded with it, so that inputs pass its verification.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mesh::invitation::{INVITATION_PREFIX, Invitation};

pub fn check(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    let text = if choice % 2 == 1 {
        String::from_utf8_lossy(rest).into_owned()
    } else {
        let sum = crc_fast::crc32_iscsi(rest).to_be_bytes();
        format!("{INVITATION_PREFIX}{}", URL_SAFE_NO_PAD.encode([rest, &sum].concat()))
    };
    if let Ok(invitation) = Invitation::parse(&text) {
        assert_eq!(*invitation.reveal(), text.trim());
    }
}
