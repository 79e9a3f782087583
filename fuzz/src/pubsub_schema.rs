//! A schema definition is refused or compatible with itself, and a message matches it or is refused, both in bounded
//! time.
//!
//! Input: a byte whose lowest bit selects the language and whose next one selects the encoding, the definition, a byte
//! of 0, and the message.

use doors::pubsub::schema::{Definition, Encoding, Kind};

pub fn check(input: &[u8]) {
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let text = &rest[..end];
    let message = rest.get(end + 1..).unwrap_or_default();
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let kind = if choice & 1 == 0 { Kind::Avro } else { Kind::ProtocolBuffer };
    let encoding = if choice & 2 == 0 { Encoding::Json } else { Encoding::Binary };
    let Ok(definition) = Definition::parse(kind, text) else {
        return;
    };
    assert_eq!(definition.kind(), kind);
    // An Avro definition may be too large for a comparison; then it is refused.
    let is_own_revision = definition.expect_compatible(&definition).is_ok();
    assert!(is_own_revision || kind == Kind::Avro);
    if definition.check(encoding, message).is_ok() && encoding == Encoding::Json {
        assert!(is_whole(message), "what follows a definition in JSON is JSON");
    }
}

/// Returns `true` if braces and brackets outside of strings are balanced.
fn is_whole(text: &[u8]) -> bool {
    let mut depth = 0_i64;
    let mut in_string = false;
    let mut escaped = false;
    for byte in text {
        match (in_string, escaped, byte) {
            (true, true, _) => escaped = false,
            (true, false, b'\\') => escaped = true,
            (_, false, b'"') => in_string = !in_string,
            (false, _, b'{' | b'[') => depth += 1,
            (false, _, b'}' | b']') => depth -= 1,
            _ => {}
        }
    }
    depth == 0 && !in_string
}
