//! A request is refused, or it equals its encoding exactly.
//!
//! Input: the kind and the body of a frame.

use crate::support::{frame_of, read_one};
use bytes::BytesMut;
use wire::Request;

pub fn check(input: &[u8]) {
    let Some(frame) = frame_of(input) else {
        return;
    };
    let kind = frame.kind;
    let correlation = frame.correlation;
    let body = frame.body.clone();
    let Ok(request) = Request::decode(frame) else {
        return;
    };
    let mut encoded = BytesMut::new();
    request.encode(correlation, &mut encoded);
    let again = read_one(&encoded);
    assert_eq!((again.kind, again.correlation, &again.body), (kind, correlation, &body), "{request:?}");

    let decoded = Request::decode(again).expect("what is encoded is valid");
    assert_eq!(format!("{decoded:?}"), format!("{request:?}"));
}
