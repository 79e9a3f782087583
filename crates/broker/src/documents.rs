//! Documents that doors define and the broker stores for them: policies, schemas and similar definitions.
//!
//! The table of documents is in [`Queues`] (`queues/document_table.rs`) and its records are in the log of queues, so
//! that one fold of that log restores both together. Queues need that: their snapshots and the key of their receipts
//! are documents, which have to be known before any queue is used.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use engine::Result;

use crate::queues::Queues;

/// Documents that doors define, which are restored and forgotten with the queues.
pub struct Documents {
    queues: Arc<Queues>,
}

impl Documents {
    pub(crate) fn new(queues: Arc<Queues>) -> Self {
        Self { queues }
    }

    /// Stores a document, or deletes it if there is no value. The change is durable when this returns.
    pub async fn put(&self, kind: &str, name: &str, value: Option<Bytes>) -> Result<()> {
        let action = if value.is_some() { "put document" } else { "delete document" };
        let act = async {
            let _control = self.queues.hold().await?;
            self.queues.write_document(kind, name, value).await
        };
        self.queues.core.audited(action, &format!("{kind} {name}"), act).await
    }

    pub async fn get(&self, kind: &str, name: &str) -> Result<Option<Bytes>> {
        self.queues.restored().await?;
        Ok(self.queues.read_document(kind, name))
    }

    /// Returns the documents of a kind whose names begin with `prefix`, in the order of their names.
    pub async fn list(&self, kind: &str, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.queues.restored().await?;
        Ok(self.queues.read_documents(kind, prefix))
    }

    /// Returns up to `count_max` documents of a kind from a name on, in the order of their names, so that a long list
    /// can be made in slices.
    pub async fn list_from(&self, kind: &str, from: Bound<&str>, count_max: usize) -> Result<Vec<(String, Bytes)>> {
        self.queues.restored().await?;
        Ok(self.queues.read_documents_from(kind, from, count_max))
    }
}
