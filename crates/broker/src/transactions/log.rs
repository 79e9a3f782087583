//! The topic of transactions: the state of each transactional id is appended to it, and restored from it on startup.

use std::collections::HashMap;

use engine::Result;
use engine::transactions::{Transaction, TransactionRecord, TransactionalId};

use crate::commit::Appended;
use crate::core::Core;
use crate::state_log::StateLog;
use crate::wakes::Wakes;

/// States of transactional ids.
pub(super) const TRANSACTIONS: StateLog<TransactionRecord> = StateLog::new();

/// Appends the state of a transactional id; `None` deletes the id.
pub(super) fn append_transaction(
    core: &Core,
    id: &TransactionalId,
    transaction: Option<&Transaction>,
    wakes: &mut Wakes,
) -> Result<Appended> {
    let record = (TransactionRecord::key(id), transaction.map(TransactionRecord::value));
    TRANSACTIONS.append_encoded(core, core.shards().home_of_name(id.as_str().as_bytes()), [record], wakes)
}

/// Returns all transactional ids as recorded.
pub(super) async fn read_transactions(core: &Core) -> Result<HashMap<TransactionalId, Transaction>> {
    let mut found = HashMap::new();
    let each = |TransactionRecord { id, transaction }, _| {
        match transaction {
            Some(transaction) => found.insert(id, transaction),
            None => found.remove(&id),
        };
        Ok(())
    };
    TRANSACTIONS.fold(core, each).await?;
    Ok(found)
}
