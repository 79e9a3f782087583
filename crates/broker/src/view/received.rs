//! A message that was delivered, and the receipt for it.

use engine::queue::{Lease, Message, MessageId, header};
use engine::{Offset, PartitionId, Record, TopicId};

/// Identifies a delivered message and the lease under which it was delivered, so that the receiver can acknowledge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    pub partition: PartitionId,
    pub offset: Offset,
    pub lease: u64,
}

/// A message that a receiver holds under a lease.
#[derive(Clone, Debug)]
pub struct Received {
    pub receipt: Receipt,
    pub id: MessageId,
    pub message: Message,
    pub sent_ms: u64,
    /// Number of deliveries of the message, including this one.
    pub attempts: u32,
    pub first_received_ms: u64,
}

/// A delivered message without its contents, which are read again while the lease holds.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    pub receipt: Receipt,
    attempts: u32,
    first_received_ms: u64,
}

impl Delivered {
    pub(crate) fn lease(&self) -> Lease {
        let Receipt { offset, lease, .. } = self.receipt;
        Lease { offset, lease, attempts: self.attempts, first_ms: self.first_received_ms }
    }
}

/// Topic and partition of messages that are delivered together.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) topic: TopicId,
    pub(crate) partition: PartitionId,
}

impl Received {
    pub(crate) fn lease(&self) -> Lease {
        self.delivered().lease()
    }

    /// Returns what is needed to read the message again.
    pub fn delivered(&self) -> Delivered {
        let Self { receipt, attempts, first_received_ms, .. } = *self;
        Delivered { receipt, attempts, first_received_ms }
    }

    /// Returns the queue whose dead letter this message is.
    pub fn source(&self) -> Option<&str> {
        self.message.header(header::SOURCE)
    }
}

impl Origin {
    pub(crate) fn received(&self, lease: Lease, record: Record) -> Received {
        let message = Message::from(record);
        Received {
            receipt: Receipt { partition: self.partition, offset: lease.offset, lease: lease.lease },
            id: message.id(self.topic, self.partition),
            sent_ms: message.sent_ms(),
            message,
            attempts: lease.attempts,
            first_received_ms: lease.first_ms,
        }
    }
}
