//! A frame of another node is refused, or encodes to exactly its own bytes.
//!
//! Input: the head of a frame, in 8 bytes, and its body. The length in the head is ignored: it is that of the body.

use bytes::Bytes;
use cluster::link::{FRAME_HEAD_BYTES, Frame};

pub fn check(input: &[u8]) {
    let Some((head, body)) = input.split_first_chunk::<FRAME_HEAD_BYTES>() else {
        return;
    };
    for is_known in [false, true] {
        // Any head gives a limit or an error.
        let _ = Frame::body_bytes(*head, is_known);
    }
    let kind = head[4];
    if let Ok(frame) = Frame::decode(kind, Bytes::copy_from_slice(body), 1, 2) {
        let encoded = frame.encode().concat();
        assert_eq!(encoded[4], kind);
        assert_eq!(&encoded[FRAME_HEAD_BYTES..], body, "{frame:?}");
    }
}
