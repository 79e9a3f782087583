//! Digests that clients compare: MD5 of bodies and attributes, and SHA-256 of a body as its deduplication id.

use aws_lc_rs::digest::{SHA256, digest};
use md5::{Digest, Md5};

/// Digest in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hex([u8; 32]);

impl Hex {
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("invariant: it has digits and letters only")
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

fn hex(bytes: [u8; 16]) -> Hex {
    let mut out = [0; 32];
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    Hex(out)
}

pub(super) fn of_body(body: &[u8]) -> Hex {
    hex(Md5::digest(body).into())
}

/// Returns the deduplication id of a message that does not set one.
pub(super) fn of_content(body: &[u8]) -> String {
    let digest = digest(&SHA256, body);
    digest
        .as_ref()
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|half| DIGITS[usize::from(half)] as char)
        .collect()
}

/// Attribute as it is digested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attribute<'a> {
    pub name: &'a str,
    pub data_type: &'a str,
    pub value: &'a [u8],
}

impl Attribute<'_> {
    pub fn is_binary(&self) -> bool {
        is_binary(self.data_type)
    }
}

/// Returns `true` if the values of a type are bytes and not text.
pub(super) fn is_binary(data_type: &str) -> bool {
    data_type.starts_with("Binary")
}

/// Returns the digest of all attributes in any order; `None` if there are no attributes.
pub(super) fn of_attributes(attributes: &mut [Attribute<'_>]) -> Option<Hex> {
    if attributes.is_empty() {
        return None;
    }
    attributes.sort_unstable_by_key(|attribute| attribute.name);
    let mut md5 = Md5::new();
    for attribute in attributes {
        add(&mut md5, attribute.name.as_bytes());
        add(&mut md5, attribute.data_type.as_bytes());
        md5.update([if attribute.is_binary() { 2 } else { 1 }]);
        add(&mut md5, attribute.value);
    }
    Some(hex(md5.finalize().into()))
}

fn add(md5: &mut Md5, bytes: &[u8]) {
    md5.update((bytes.len() as u32).to_be_bytes());
    md5.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests of AWS itself, as in the tests of its clients.
    #[test]
    fn sums_are_those_that_clients_expect() {
        assert_eq!(of_body(b"message").as_str(), "78e731027d8fd50ed642340b7c9a63b3");
        assert_eq!(of_attributes(&mut []), None);
        let foo = Attribute { name: "Foo", data_type: "String", value: b"Bar" };
        assert_eq!(
            of_attributes(&mut [foo]).map(|sum| sum.as_str().to_owned()).as_deref(),
            Some("ae7155c6026991b6d54b11589678bf9c")
        );
        let digest = of_content(b"message");
        assert_eq!(digest, "ab530a13e45914982b79f9b7e3fba994cfd1f3fb22f71cea1afbf02b460c6d1d");
    }

    #[test]
    fn order_does_not_count_but_the_kind_of_a_value_does() {
        let a = Attribute { name: "a", data_type: "Binary", value: b"1" };
        let b = Attribute { name: "b", data_type: "Number.int", value: b"1" };
        assert_eq!(of_attributes(&mut [a, b]), of_attributes(&mut [b, a]));
        assert_ne!(of_attributes(&mut [a]), of_attributes(&mut [Attribute { data_type: "String", ..a }]));
    }
}
