//! A frame of another site is refused, or encodes to exactly its own bytes.
//!
//! Input: one byte, and the rest, by the byte modulo 4: a control frame without its length (0), the head of a topic's
//! stream (1), the entry about a site (2), or a step of a copy without its batch (3).

use bytes::{Bytes, BytesMut};
use engine::mesh::Member;
use mesh::frame::{Frame, Head, STEP_BYTES, Step};

pub fn check(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(body);
    let mut encoded = BytesMut::new();
    let length = match kind % 4 {
        0 => match Frame::decode(bytes) {
            Ok(frame) => {
                frame.put(&mut encoded);
                4
            }
            Err(_refused) => return,
        },
        1 => match Head::decode(bytes) {
            Ok(head) => {
                head.put(&mut encoded);
                2
            }
            Err(_refused) => return,
        },
        2 => match Member::decode(body) {
            Ok(member) => {
                encoded.extend_from_slice(&member.encode());
                0
            }
            Err(_refused) => return,
        },
        _ => {
            let Some(Ok(step)) = <&[u8; STEP_BYTES]>::try_from(body).ok().map(Step::decode) else { return };
            step.put(&mut encoded);
            0
        }
    };
    assert_eq!(&encoded[length..], body);
}
