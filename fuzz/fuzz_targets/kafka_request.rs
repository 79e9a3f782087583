//! A Kafka request is refused, or it is the same after it was encoded and decoded again.
//!
//! Input: the key and the version in two bytes each, and the body. The body need not be what it encodes to: unknown
//! tags are skipped, and a varint may be longer than it has to.

#![no_main]

use bytes::{Bytes, BytesMut};
use doors::kafka::messages::{Reader, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[a, b, c, d], body)) = input.split_first_chunk::<4>() else {
        return;
    };
    let (key, version) = (i16::from_be_bytes([a, b]), i16::from_be_bytes([c, d]));
    let Ok(request) = Request::decode(key, version, &mut Reader::new(Bytes::copy_from_slice(body))) else {
        return;
    };
    assert_eq!(request.key(), key);
    let mut encoded = BytesMut::new();
    request.encode(version, &mut encoded);
    let mut from = Reader::new(encoded.freeze());
    let again = Request::decode(key, version, &mut from).expect("what is encoded is valid");
    assert_eq!(again, request);
    assert_eq!(from.remaining(), 0, "{request:?}");
});
