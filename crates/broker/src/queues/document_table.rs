//! Table of documents; `documents.rs` of this crate says why it is here. The bytes of each document and of all
//! documents together are limited.

use std::collections::BTreeMap;
use std::ops::Deref;

use bytes::Bytes;
use engine::{Error, Result};

/// Maximum number of documents of all doors together.
pub const DOCUMENTS_MAX: usize = 65_536;
/// Maximum number of bytes of one document.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes of all documents, with their names.
pub const DOCUMENTS_BYTES_MAX: usize = 48 << 20;

/// Kind of the broker's own documents, which are few and small.
const OWN: &str = "broker";

type Key = (String, String);

/// The documents by kind and name.
#[derive(Default)]
pub(crate) struct DocumentTable {
    all: BTreeMap<Key, Bytes>,
    bytes: usize,
}

impl From<BTreeMap<Key, Bytes>> for DocumentTable {
    fn from(all: BTreeMap<Key, Bytes>) -> Self {
        let bytes = all.iter().map(|(key, value)| size_of(key, value)).sum();
        Self { all, bytes }
    }
}

impl Deref for DocumentTable {
    type Target = BTreeMap<Key, Bytes>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl DocumentTable {
    /// Refuses a document for which there is no room.
    pub fn check(&self, key: &Key, value: &Bytes) -> Result<()> {
        if value.len() > DOCUMENT_BYTES_MAX {
            let message = format!("a definition has at most {DOCUMENT_BYTES_MAX} bytes, not {}", value.len());
            return Err(Error::too_large(message));
        }
        let before = self.all.get(key);
        if self.all.len() >= DOCUMENTS_MAX && before.is_none() {
            return Err(Error::busy(format!("definition limit reached ({DOCUMENTS_MAX}): delete one first")));
        }
        let others = self.bytes - before.map_or(0, |before| size_of(key, before));
        let bytes = others + size_of(key, value);
        // A document that becomes smaller is never refused, nor one that the broker itself needs.
        if bytes > DOCUMENTS_BYTES_MAX && bytes > self.bytes && key.0 != OWN {
            return Err(Error::busy(format!(
                "policies, schemas and other definitions have {others} of {DOCUMENTS_BYTES_MAX} bytes, and this one of \
                 {} does not fit: delete some first",
                value.len()
            )));
        }
        Ok(())
    }

    pub fn put(&mut self, key: Key, value: Option<Bytes>) {
        self.bytes += value.as_ref().map_or(0, |value| size_of(&key, value));
        let before = match value {
            Some(value) => self.all.insert(key.clone(), value),
            None => self.all.remove(&key),
        };
        self.bytes -= before.map_or(0, |before| size_of(&key, &before));
    }

    /// Returns the bytes of all documents.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn size_of((kind, name): &Key, value: &Bytes) -> usize {
    kind.len() + name.len() + value.len()
}

#[cfg(test)]
mod tests {
    use engine::ErrorKind;

    use super::*;

    fn key(i: usize) -> Key {
        ("policy".to_owned(), format!("name {i:06}"))
    }

    #[test]
    fn documents_are_bounded_one_by_one_and_together() {
        let mut documents = DocumentTable::default();
        let large = Bytes::from(vec![7; DOCUMENT_BYTES_MAX]);
        let beyond = Bytes::from(vec![7; DOCUMENT_BYTES_MAX + 1]);
        assert_eq!(documents.check(&key(0), &beyond).map_err(|error| error.kind), Err(ErrorKind::TooLarge));
        let mut count = 0;
        while documents.check(&key(count), &large).is_ok() {
            documents.put(key(count), Some(large.clone()));
            count += 1;
        }
        assert_eq!(count, DOCUMENTS_BYTES_MAX / DOCUMENT_BYTES_MAX - 1, "names count, too");
        let refused = documents.check(&key(count), &large).expect_err("no room");
        assert_eq!(refused.kind, ErrorKind::Busy);
        assert!(refused.message.contains("delete some first"), "{refused}");
        // A document of the same size, a smaller one, and a new one after a deletion.
        documents.check(&key(0), &large).expect("no more than before");
        documents.check(&key(count), &Bytes::from_static(b"small")).expect("there is that much room");
        documents.put(key(0), None);
        documents.check(&key(count), &large).expect("room again");
        (1..count).for_each(|i| documents.put(key(i), None));
        assert_eq!((documents.bytes(), documents.len()), (0, 0));
    }
}
