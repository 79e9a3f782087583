//! A Kafka request is parsed as in the door, or refused. A request that is encoded, decoded and encoded again has the
//! same bytes.
//!
//! Input: the key and the version in two bytes each, and the body. The body need not equal its encoding: unknown tags
//! are skipped, and a varint may be longer than necessary.

use bytes::{Bytes, BytesMut};
use doors::kafka::check_request;
use doors::kafka::messages::{Reader, Request, api};

pub fn check(input: &[u8]) {
    let Some((&[a, b, c, d], body)) = input.split_first_chunk::<4>() else {
        return;
    };
    let key = i16::from_be_bytes([a, b]);
    let version = i16::from_be_bytes([c, d]);
    // Header for the door: a correlation id, no client name, and no tags in versions that have tags.
    let has_tags = api(key).is_some_and(|api| api.is_flexible(version));
    let header = [&input[..4], &[0, 0, 0, 7, 0xff, 0xff], if has_tags { &[0][..] } else { &[] }].concat();
    let is_whole = check_request(BytesMut::from(&[&header, body].concat()[..])).is_ok();
    let Ok(request) = Request::decode(key, version, &mut Reader::new(Bytes::copy_from_slice(body))) else {
        return;
    };
    assert!(is_whole, "{request:?}");
    assert_eq!(request.key(), key);
    let mut encoded = BytesMut::new();
    request.encode(version, &mut encoded);
    let encoded = encoded.freeze();
    let mut from = Reader::new(encoded.clone());
    let again = Request::decode(key, version, &mut from).expect("what is encoded is valid");
    assert_eq!(from.remaining(), 0, "{request:?}");
    // Bytes, not values, are compared: a quota may be NaN, which does not equal itself.
    let mut encoded_again = BytesMut::new();
    again.encode(version, &mut encoded_again);
    assert_eq!(encoded_again, encoded, "{request:?}");
}
