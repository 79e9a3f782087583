//! Records in which views keep their state: which record is in which internal topic.
//!
//! The newest record of a key is valid, and a record without a value deletes the key. A view is the fold of these
//! records in the order of each partition.

use crate::Result;
use crate::groups::{OFFSETS_TOPIC, OffsetsRecord};
use crate::queue::{QUEUES_TOPIC, QueueRecord};
use crate::security::{SECURITY_TOPIC, SecurityRecord};
use crate::streams::{STREAMS_TOPIC, StreamRecord};
use crate::transactions::{TRANSACTIONS_TOPIC, TransactionRecord};

/// Key and value of a record. A record without a value deletes the key.
pub type KeyValue = (Vec<u8>, Option<Vec<u8>>);

/// Record of a view's state.
pub trait StateRecord: Sized {
    /// Internal topic that has the records.
    const TOPIC: &'static str;

    /// Returns the key and the value of the record.
    fn encode(&self) -> KeyValue;

    /// Returns the record with this key and value. Fails with `corrupt` or `unsupported` on what no version wrote.
    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self>;
}

impl StateRecord for OffsetsRecord {
    const TOPIC: &'static str = OFFSETS_TOPIC;

    fn encode(&self) -> KeyValue {
        (self.key(), self.value())
    }

    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        Self::decode(key, value)
    }
}

impl StateRecord for QueueRecord {
    const TOPIC: &'static str = QUEUES_TOPIC;

    fn encode(&self) -> KeyValue {
        (self.key(), self.value())
    }

    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        Self::decode(key, value)
    }
}

impl StateRecord for StreamRecord {
    const TOPIC: &'static str = STREAMS_TOPIC;

    fn encode(&self) -> KeyValue {
        (self.key(), self.value())
    }

    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        Self::decode(key, value)
    }
}

impl StateRecord for TransactionRecord {
    const TOPIC: &'static str = TRANSACTIONS_TOPIC;

    fn encode(&self) -> KeyValue {
        (Self::key(&self.id), self.transaction.as_ref().map(Self::value))
    }

    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        Self::decode(key, value)
    }
}

impl StateRecord for SecurityRecord {
    const TOPIC: &'static str = SECURITY_TOPIC;

    fn encode(&self) -> KeyValue {
        (self.key(), self.value())
    }

    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        Self::decode(key, value)
    }
}
