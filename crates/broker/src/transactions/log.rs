//! The topic of transactions: the state of each transactional id goes into it, and comes out of it at the start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use engine::limits::BATCH_BYTES_MAX;
use engine::transactions::{TRANSACTIONS_TOPIC, Transaction, TransactionRecord, TransactionalId};
use engine::{BatchBuilder, Error, Result, Storage, TopicName, TopicSettings, partitioner};

use crate::broker::Broker;
use crate::partition::Commit;
use crate::publish::{Published, Wakes, finish_commit};
use crate::timers;
use crate::topics::Topic;

/// Partitions of the topic: transactions that end at once seldom wait for each other.
const PARTITIONS: u32 = 8;
/// What a partition of it keeps in memory, where nobody ever reads it again.
const MEMORY_BYTES: u64 = 4 << 20;

/// A state that has its place in the topic, or a marker in its partition.
///
/// The journal keeps the order in which the broker appends to all topics, so whatever is appended later lasts only if
/// this does: what follows from a decision need not wait for it.
#[must_use]
pub(super) struct Appended {
    pub published: Published,
    pub commit: Commit,
}

impl Appended {
    /// Returns when it lasts, with all that was appended before it.
    pub(super) async fn lasts(self) -> Result<()> {
        finish_commit(self.published, self.commit).await.map(drop)
    }

    /// Whether [`Appended::lasts`] has nothing to wait for.
    pub(super) fn is_reached(&self) -> bool {
        !matches!(self.commit, Commit::Awaited(_))
    }
}

impl Broker {
    /// The topic, which is made when the first transactional id is.
    fn transactions_topic(&self) -> Result<Arc<Topic>> {
        if let Some(topic) = self.topics.read().get(TRANSACTIONS_TOPIC) {
            return Ok(topic.clone());
        }
        // On disk what is newest of each id stays: it is what a restart begins with.
        let (storage, retention_bytes) = match self.store() {
            Some(_) => (Storage::Disk, 0),
            None => (Storage::Memory, MEMORY_BYTES),
        };
        let compact = storage == Storage::Disk;
        let settings = TopicSettings {
            partitions: PARTITIONS,
            retention_bytes,
            retention_ms: 0,
            storage,
            compact,
            ..TopicSettings::default()
        };
        // No record of it lasts before it does: nobody has to wait.
        Ok(self.create(TopicName::parse(TRANSACTIONS_TOPIC)?, settings)?.0)
    }

    /// Gives a state its place in the topic; `None` forgets the id.
    pub(super) fn append_transaction(
        &self,
        id: &TransactionalId,
        transaction: Option<&Transaction>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let topic = self.transactions_topic()?;
        // All of an id is in one partition.
        let partition = partitioner::for_key(id.as_str().as_bytes(), topic.partitions().len() as u32);
        let mut builder = BatchBuilder::new();
        let value = transaction.map(TransactionRecord::value);
        builder.push(timers::now_ms() as i64, Some(&TransactionRecord::key(id)), value.as_deref(), &[])?;
        let batch = builder.finish().expect("invariant: it has a record");
        let (published, commit) = self.publish_internal(&topic, partition, batch, wakes)?;
        Ok(Appended { published, commit })
    }

    /// All transactional ids as the topic has them.
    pub(super) async fn read_transactions(&self) -> Result<HashMap<TransactionalId, Transaction>> {
        let mut found = HashMap::new();
        let Ok(topic) = self.topic(TRANSACTIONS_TOPIC) else {
            return Ok(found);
        };
        for cell in topic.partitions() {
            let mut next = cell.extent().start;
            loop {
                let fetched = self.fetch(TRANSACTIONS_TOPIC, cell.id, next, BATCH_BYTES_MAX, Duration::ZERO).await?;
                let Some(last) = fetched.batches.last() else {
                    break;
                };
                next = last.next_offset();
                for records in fetched.batches.iter().map(|batch| batch.records()) {
                    for view in &records? {
                        let view = view?;
                        let record = TransactionRecord::decode(view.key.unwrap_or_default(), view.value);
                        let TransactionRecord { id, transaction } =
                            record.map_err(|error| unreadable(cell.id, view.offset, &error))?;
                        match transaction {
                            Some(transaction) => found.insert(id, transaction),
                            None => found.remove(&id),
                        };
                    }
                }
            }
        }
        Ok(found)
    }
}

fn unreadable(partition: u32, offset: u64, error: &Error) -> Error {
    Error::new(
        error.kind,
        format!(
            "the record at offset {offset} of {TRANSACTIONS_TOPIC} partition {partition} cannot be read: {}; was the \
             data written by a newer version?",
            error.message
        ),
    )
}
