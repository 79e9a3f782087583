//! Revision of a schema, and its stored encoding.

use bytes::{BufMut, Bytes, BytesMut};
use engine::{Error, Result};

use super::Kind;

/// Version of the encoding, its first byte.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 18;

/// Revision of a schema. It is immutable; once deleted, its position in the order is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Name of the schema: `projects/P/schemas/S`.
    pub schema: String,
    /// Id of the revision: eight hexadecimal digits.
    pub id: String,
    pub kind: Kind,
    /// Text of the definition; `None` once the revision is deleted.
    pub definition: Option<String>,
    /// Number that increases with each revision of the schema, even if the clock steps back.
    pub number: u64,
    /// Time of creation, in milliseconds since 1970.
    pub created_ms: u64,
}

impl Revision {
    /// Returns the name of its document. Neither part contains the separator.
    pub(super) fn document_name(&self) -> String {
        format!("{}@{}", self.schema, self.id)
    }

    pub(super) fn encode(&self) -> Bytes {
        let text = self.definition.as_deref().unwrap_or_default();
        let mut out = BytesMut::with_capacity(HEADER_BYTES + text.len());
        out.put_u8(VERSION);
        out.put_u8(match (self.kind, self.definition.is_some()) {
            (Kind::Avro, true) => 1,
            (Kind::ProtocolBuffer, true) => 2,
            (Kind::Avro, false) => 3,
            (Kind::ProtocolBuffer, false) => 4,
        });
        out.put_u64(self.number);
        out.put_u64(self.created_ms);
        out.put_slice(text.as_bytes());
        out.freeze()
    }

    pub(in crate::pubsub) fn decode(document: &str, stored: &[u8]) -> Result<Self> {
        let malformed = || Error::malformed(format!("the document {document} is not a revision of a schema"));
        let (schema, id) = document.rsplit_once('@').ok_or_else(malformed)?;
        let Some((&[VERSION, tag, n0, n1, n2, n3, n4, n5, n6, n7, c0, c1, c2, c3, c4, c5, c6, c7], text)) =
            stored.split_first_chunk::<HEADER_BYTES>()
        else {
            return Err(malformed());
        };
        let (kind, is_live) = match tag {
            1 => (Kind::Avro, true),
            2 => (Kind::ProtocolBuffer, true),
            3 => (Kind::Avro, false),
            4 => (Kind::ProtocolBuffer, false),
            _ => return Err(malformed()),
        };
        let text = std::str::from_utf8(text).map_err(|error| Error::malformed(format!("{document}: {error}")))?;
        Ok(Self {
            schema: schema.to_owned(),
            id: id.to_owned(),
            kind,
            definition: is_live.then(|| text.to_owned()),
            number: u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            created_ms: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_revisions_decode_and_damaged_ones_are_refused() {
        for (kind, definition) in [(Kind::Avro, Some("\"int\"")), (Kind::ProtocolBuffer, None), (Kind::Avro, None)] {
            let revision = Revision {
                schema: "projects/p/schemas/s".into(),
                id: "0a1b2c3d".into(),
                kind,
                definition: definition.map(str::to_owned),
                number: 7,
                created_ms: 1 << 40,
            };
            let stored = revision.encode();
            assert_eq!(Revision::decode(&revision.document_name(), &stored), Ok(revision));
            for cut in 0..HEADER_BYTES {
                assert!(Revision::decode("a@b", &stored[..cut]).is_err());
            }
            assert!(Revision::decode("nameless", &stored).is_err());
            assert!(Revision::decode("a@b", &[&stored[..], &[0xff]].concat()).is_err());
        }
    }
}
