//! Status of transactions and producers, for users and tools.

use std::collections::BTreeSet;
use std::fmt;

use engine::groups::GroupName;
use engine::producers::ProducerStatus;
use engine::transactions::{Phase, ProducerEpoch, Transaction, TransactionError, TransactionReason, TransactionalId};
use engine::{PartitionId, Result, TopicPartition};

use super::Outcome;
use crate::metrics::Exposition;
use crate::transactions::Transactions;

/// Summary of a transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionSummary {
    pub id: TransactionalId,
    pub phase: Phase,
    pub producer: ProducerEpoch,
    /// Time for which its transaction has been open.
    pub open_ms: Option<u64>,
}

impl Transactions {
    /// Returns all transactional ids, in order.
    pub async fn list(&self) -> Result<Vec<TransactionSummary>> {
        let coordinator = self.restored().await?;
        let now_ms = coordinator.now_ms();
        let summary = |cell: &super::Cell| {
            let state = cell.state.lock();
            let Transaction { phase, producer, opened_ms, .. } = &state.transaction;
            let open_ms = opened_ms.map(|opened_ms| now_ms.saturating_sub(opened_ms));
            TransactionSummary { id: cell.id.clone(), phase: *phase, producer: *producer, open_ms }
        };
        let mut all: Vec<_> = coordinator.cells().iter().map(|cell| summary(cell)).collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Returns the state of a transactional id.
    pub async fn describe(&self, id: &TransactionalId) -> Outcome<Transaction> {
        let coordinator = self.restored().await?;
        let Some(cell) = coordinator.find(id) else {
            coordinator.check_restored()?;
            let message = format!("there is no transactional id '{id}'");
            return Err(TransactionError::new(TransactionReason::NoSuchId, message));
        };
        let transaction = cell.state.lock().transaction.clone();
        Ok(transaction)
    }

    /// Returns the state of all producers that have written to a partition.
    pub fn describe_producers(&self, topic: &str, partition: PartitionId) -> Result<Vec<ProducerStatus>> {
        Ok(self.core.topic(topic)?.partition(partition)?.producers())
    }

    /// Returns the partitions for which an open transaction has staged an offset of a group, or the end of such a
    /// transaction is not durable yet.
    pub async fn unstable_offsets(&self, group: &GroupName) -> Result<BTreeSet<TopicPartition>> {
        let coordinator = self.restored().await?;
        let ids = coordinator.of_groups.lock().get(group).cloned().unwrap_or_default();
        let mut unstable = BTreeSet::new();
        for cell in ids.iter().filter_map(|id| coordinator.find(id)) {
            let state = cell.state.lock();
            let staged = state.transaction.offsets.get(group);
            unstable.extend(staged.into_iter().flatten().map(|(partition, _)| partition.clone()));
        }
        // Must be last: offsets that were staged when the transaction was checked may have been committed since.
        unstable.append(&mut self.groups.offsets_on_their_way(group));
        Ok(unstable)
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let coordinator = &self.table;
        let cells = coordinator.cells();
        let in_phase = |phases: &dyn Fn(Phase) -> bool| {
            cells.iter().filter(|cell| phases(cell.state.lock().transaction.phase)).count() as u64
        };
        let open = in_phase(&|phase| phase == Phase::Open);
        let prepared = in_phase(&|phase| matches!(phase, Phase::Prepared(_)));
        out.gauge("thalweg_transactional_ids", "Transactional ids kept", cells.len() as u64)?;
        out.gauge("thalweg_transactions_open", "Open transactions", open)?;
        out.gauge(
            "thalweg_transactions_prepared",
            "Decided transactions that are not completed in all partitions yet",
            prepared,
        )?;
        let counts = &coordinator.counts;
        out.counter("thalweg_transactions_committed", "Committed transactions", counts.committed.get())?;
        out.counter("thalweg_transactions_aborted", "Aborted transactions", counts.aborted.get())?;
        out.counter(
            "thalweg_transactions_timed_out",
            "Transactions aborted because they exceeded their timeout",
            counts.timed_out.get(),
        )?;
        out.counter(
            "thalweg_transactions_fenced",
            "Requests of transactions refused because another program has taken over the transactional id",
            counts.fenced.get(),
        )
    }
}
