//! Records without a value, for doors whose messages are a single text: the headers of the record as a JSON object.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

/// Returns a JSON object of headers, sorted by name. If several headers have the same name, the last one is used. A
/// header without a value is null; a value that is not UTF-8 is encoded in base64.
pub(crate) fn to_json<'a>(headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> String {
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => BASE64.encode(bytes),
    };
    let fields: BTreeMap<String, Value> =
        headers.map(|(name, value)| (text(name), value.map_or(Value::Null, |value| text(value).into()))).collect();
    serde_json::json!(fields).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_with_any_bytes_are_an_object() {
        let headers: [(&[u8], Option<&[u8]>); 4] = [
            (b"item", Some(b"coffee \"black\"")),
            (b"raw", Some(&[0xff, 0])),
            (b"none", None),
            (b"item", Some(b"tea")),
        ];
        assert_eq!(to_json(headers.into_iter()), r#"{"item":"tea","none":null,"raw":"/wA="}"#);
        assert_eq!(to_json([].into_iter()), "{}");
    }
}
