//! The topic of transactions: the state of each transactional id is appended to it, and restored from it on startup.

use std::collections::HashMap;

use engine::transactions::{TRANSACTIONS_TOPIC, Transaction, TransactionRecord, TransactionalId};
use engine::{Result, partitioner};

use crate::broker::Broker;
use crate::internal::Appended;
use crate::publish::Wakes;

impl Broker {
    /// Appends the state of a transactional id to the topic; `None` deletes the id.
    pub(super) fn append_transaction(
        &self,
        id: &TransactionalId,
        transaction: Option<&Transaction>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let topic = self.internal_topic(TRANSACTIONS_TOPIC)?;
        // All records of an id are in one partition.
        let partition = partitioner::for_key(id.as_str().as_bytes(), topic.partitions().len() as u32);
        let record = (TransactionRecord::key(id), transaction.map(TransactionRecord::value));
        self.append_internal(&topic, partition, [record], wakes)
    }

    /// Returns all transactional ids as recorded in the topic.
    pub(super) async fn read_transactions(&self) -> Result<HashMap<TransactionalId, Transaction>> {
        let mut found = HashMap::new();
        if let Ok(topic) = self.topic(TRANSACTIONS_TOPIC) {
            let each = |key: &[u8], value: Option<&[u8]>| {
                let TransactionRecord { id, transaction } = TransactionRecord::decode(key, value)?;
                match transaction {
                    Some(transaction) => found.insert(id, transaction),
                    None => found.remove(&id),
                };
                Ok(())
            };
            self.read_internal(&topic, each).await?;
        }
        Ok(found)
    }
}
