//! Spans of traced messages: of their delivery, of the lease of their receiver, and of its end.

use engine::queue::{Lease, LeaseError};
use engine::{Offset, RecordBatch};

use crate::partition::PartitionCell;
use crate::queues::{Queues, Settlement};
use crate::traces::{LeaseEnd, LeaseKey, Source};
use crate::view::{QueueCell, Receipt, Received};

/// Change of a lease that was requested, as far as its span is concerned.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Ends(LeaseEnd),
    /// The lease ends this number of ms from now.
    Extends(u64),
}

fn key(cell: &QueueCell, receipt: &Receipt) -> LeaseKey {
    let Receipt { partition, offset, lease } = *receipt;
    LeaseKey { queue: cell.id, partition, offset, lease }
}

impl Queues {
    /// Notes the delivery of messages under leases of `lease_ms`, or of the queue's setting.
    pub(super) fn trace_received(&self, cell: &QueueCell, found: &[Received], lease_ms: Option<u64>, began_us: u64) {
        let definition = cell.definition();
        let deadline_ms = self.core.now_ms().saturating_add(lease_ms.unwrap_or(definition.settings.lease_ms));
        for received in found {
            let partition = received.receipt.partition;
            let source = Source { topic: &cell.topic, topic_id: cell.topic_id, partition };
            let message = (&definition.name, received.id, key(cell, &received.receipt));
            self.core.traces().leased(source, received.message.record(), message, began_us, deadline_ms);
        }
    }

    /// Notes the delivery of the messages of these batches that the receiver has leased, in the order of their offsets.
    pub(super) fn trace_acquired(
        &self,
        cell: &QueueCell,
        partition: &PartitionCell,
        batches: &[RecordBatch],
        leases: &[Lease],
        (began_us, lease_ms): (u64, u64),
    ) {
        let name = cell.definition().name.clone();
        let deadline_ms = self.core.now_ms().saturating_add(lease_ms);
        let key_of = |offset: Offset| {
            let at = leases.binary_search_by_key(&offset, |lease| lease.offset).ok()?;
            Some(LeaseKey { queue: cell.id, partition: partition.id, offset, lease: leases[at].lease })
        };
        for batch in batches {
            self.core.traces().leased_of(partition.source(), batch, (&name, &key_of), began_us, deadline_ms);
        }
    }

    /// Notes changes of leases that were requested at `began_us`, those that took place.
    pub(super) fn trace_changes(
        &self,
        cell: &QueueCell,
        changes: impl Iterator<Item = (Receipt, Change)>,
        answers: &[Result<(), LeaseError>],
        began_us: u64,
    ) {
        for ((receipt, change), _) in changes.zip(answers).filter(|(_, answer)| answer.is_ok()) {
            self.trace_change(key(cell, &receipt), change, began_us);
        }
    }

    /// Notes settlements that took place.
    pub(super) fn trace_settled(
        &self,
        cell: &QueueCell,
        partition: &PartitionCell,
        settlements: &[(Offset, u64, Settlement)],
        began_us: u64,
    ) {
        for (offset, lease, how) in settlements {
            let key = LeaseKey { queue: cell.id, partition: partition.id, offset: *offset, lease: *lease };
            let change = match how {
                Settlement::Done => Change::Ends(LeaseEnd::Acked),
                Settlement::Back => Change::Ends(LeaseEnd::Returned),
                Settlement::Held(lease_ms) => Change::Extends(*lease_ms),
            };
            self.trace_change(key, change, began_us);
        }
    }

    fn trace_change(&self, key: LeaseKey, change: Change, began_us: u64) {
        let traces = self.core.traces();
        match change {
            Change::Ends(end) => traces.lease_ended(key, end, began_us),
            Change::Extends(0) => traces.lease_ended(key, LeaseEnd::Returned, began_us),
            Change::Extends(lease_ms) => traces.extended(key, self.core.now_ms().saturating_add(lease_ms)),
        }
    }
}
