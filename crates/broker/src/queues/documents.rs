//! Documents for a caller that holds the queues.

use std::ops::Bound;

use bytes::Bytes;
use engine::Result;
use engine::queue::QueueRecord;

use super::Queues;

impl Queues {
    pub(crate) async fn write_document(&self, kind: &str, name: &str, value: Option<Bytes>) -> Result<()> {
        let documents = &self.documents;
        let key = (kind.to_owned(), name.to_owned());
        if let Some(value) = &value {
            documents.read().check(&key, value)?;
        }
        let document = value.as_ref().map(|value| value.to_vec());
        let record = QueueRecord::Document { kind: kind.into(), name: name.into(), value: document };
        let saved = self.append_named(name, record)?;
        saved.wait().await?;
        documents.write().put(key, value);
        Ok(())
    }

    pub(crate) fn read_document(&self, kind: &str, name: &str) -> Option<Bytes> {
        self.documents.read().get(&(kind.to_owned(), name.to_owned())).cloned()
    }

    pub(crate) fn read_documents(&self, kind: &str, prefix: &str) -> Vec<(String, Bytes)> {
        let documents = self.documents.read();
        let from = documents.range((kind.to_owned(), prefix.to_owned())..);
        let of = from.take_while(|((of, name), _)| of == kind && name.starts_with(prefix));
        of.map(|((_, name), value)| (name.clone(), value.clone())).collect()
    }

    /// Returns up to `count_max` documents of a kind from a name on, in the order of their names.
    pub(crate) fn read_documents_from(&self, kind: &str, from: Bound<&str>, count_max: usize) -> Vec<(String, Bytes)> {
        let key = |name: &str| (kind.to_owned(), name.to_owned());
        let from = match from {
            Bound::Included(name) => Bound::Included(key(name)),
            Bound::Excluded(name) => Bound::Excluded(key(name)),
            Bound::Unbounded => Bound::Included(key("")),
        };
        let documents = self.documents.read();
        let of = documents.range((from, Bound::Unbounded)).take_while(|((of, _), _)| of == kind);
        of.take(count_max).map(|((_, name), value)| (name.clone(), value.clone())).collect()
    }
}
