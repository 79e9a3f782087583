//! A message of a program that joins a cluster, or its answer, is refused, or encodes to exactly its own bytes.
//!
//! Input: the head of a frame, in 8 bytes, and its body. The length in the head is ignored: it is that of the body.

use bytes::Bytes;
use cluster::join::{Answer, Request};
use cluster::link::{FRAME_HEAD_BYTES, Frame};

pub fn check(input: &[u8]) {
    let Some((head, body)) = input.split_first_chunk::<FRAME_HEAD_BYTES>() else {
        return;
    };
    let (kind, body) = (head[4], Bytes::copy_from_slice(body));
    if let Ok(request) = Request::decode(kind, body.clone()) {
        expect_same(kind, &body, &request.encode().concat());
    }
    if let Ok(answer) = Answer::decode(kind, body.clone()) {
        let encoded = match answer {
            Ok(answer) => answer.encode(),
            Err(refusal) => Frame::Refusal(refusal).encode(),
        };
        expect_same(kind, &body, &encoded.concat());
    }
}

fn expect_same(kind: u8, body: &[u8], encoded: &[u8]) {
    assert_eq!(encoded[4], kind);
    assert_eq!(&encoded[FRAME_HEAD_BYTES..], body);
}
