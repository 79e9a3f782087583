//! Transactions: records that a producer writes to several partitions, and offsets of consumer groups, take effect
//! together or not at all.
//!
//! A program that takes over a *transactional id* gets a producer id with an epoch, and fences the program that had it
//! before. Its transaction names each partition before it writes there. The decision to commit or to abort takes effect
//! once its record is in the topic [`TRANSACTIONS_TOPIC`]; it is then carried out in every partition, regardless of
//! failures. Kafka describes the same protocol as KIP-98, with the recovery of producers of KIP-360.
//!
//! ```text
//!            add             end, timeout, takeover             all markers are written
//!  empty ──────────► open ───────────────────────► prepared ───────────────────────────► complete
//!    ▲                 ▲                                                                  │    │
//!    │                 └───────────────────────── add ────────────────────────────────────┘    │
//!    └──────────────────────────────────────── init ───────────────────────────────────────────┘
//! ```
//!
//! Each step creates another [`Transaction`] from the present one, which takes effect when its record is in the log.

mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::groups::{Committed, GroupError, GroupName, Reason};
use crate::ids::{TopicName, TopicPartition};
use crate::limits::{
    TRANSACTION_GROUPS_MAX, TRANSACTION_METADATA_BYTES_MAX, TRANSACTION_PARTITIONS_MAX, TRANSACTION_TIMEOUT_MS_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
};
use crate::record::Decision;

pub use record::TransactionRecord;

/// Name of the topic that holds the state of all transactional ids.
pub const TRANSACTIONS_TOPIC: &str = "_transactions";
/// Last epoch that a producer gets; after it comes a new id. One more epoch is left to fence the producer that has it.
const EPOCH_MAX: i16 = i16::MAX - 1;

/// Name that is shared by successive programs which write the same transactions: any text of 1 to 255 bytes without
/// control characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionalId(Arc<str>);

impl TransactionalId {
    pub fn parse(id: &str) -> Result<Self> {
        if id.is_empty() || id.len() > TRANSACTIONAL_ID_BYTES_MAX {
            let message = format!("a transactional id has 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes, not {}", id.len());
            return Err(Error::invalid(message));
        }
        if id.chars().any(char::is_control) {
            return Err(Error::invalid(format!("a transactional id must not contain control characters: {id:?}")));
        }
        Ok(Self(Arc::from(id)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TransactionalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TransactionalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Reason for which a transaction's step was refused, as detailed as any protocol has to report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionReason {
    /// Transactional id does not exist.
    NoSuchId,
    /// Transactional id belongs to another producer id.
    OtherProducer,
    /// Another program has taken over, or the transaction was aborted because it exceeded its timeout.
    Fenced,
    /// Previous step is not completed yet: try again.
    Concurrent,
    /// Step is not allowed in this phase.
    WrongPhase,
    InvalidTimeout,
    /// Group whose offsets the transaction commits has refused them.
    Group(Reason),
    /// Reason is given by the kind of the error.
    Other,
}

/// Refusal with its reason and an error message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionError {
    pub reason: TransactionReason,
    pub error: Error,
}

impl TransactionError {
    pub fn new(reason: TransactionReason, message: impl Into<String>) -> Self {
        let kind = match reason {
            TransactionReason::NoSuchId => ErrorKind::NotFound,
            TransactionReason::OtherProducer | TransactionReason::Fenced => ErrorKind::Fenced,
            TransactionReason::Concurrent => ErrorKind::Busy,
            TransactionReason::WrongPhase | TransactionReason::InvalidTimeout => ErrorKind::Invalid,
            TransactionReason::Group(_) | TransactionReason::Other => ErrorKind::Internal,
        };
        Self { reason, error: Error::new(kind, message) }
    }
}

impl From<Error> for TransactionError {
    fn from(error: Error) -> Self {
        Self { reason: TransactionReason::Other, error }
    }
}

impl From<GroupError> for TransactionError {
    fn from(refused: GroupError) -> Self {
        let reason = match refused.reason {
            Reason::Other => TransactionReason::Other,
            reason => TransactionReason::Group(reason),
        };
        Self { reason, error: refused.error }
    }
}

impl From<TransactionError> for Error {
    fn from(refused: TransactionError) -> Self {
        refused.error
    }
}

type Outcome<T = ()> = Result<T, TransactionError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Id has a producer that has written nothing yet.
    Empty,
    Open,
    /// Transaction is decided, and the decision not yet carried out in every partition.
    Prepared(Decision),
    Complete(Decision),
}

impl Phase {
    pub const ALL: [Self; 6] = [
        Self::Empty,
        Self::Open,
        Self::Prepared(Decision::Commit),
        Self::Prepared(Decision::Abort),
        Self::Complete(Decision::Commit),
        Self::Complete(Decision::Abort),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Open => "open",
            Self::Prepared(Decision::Commit) => "prepared to commit",
            Self::Prepared(Decision::Abort) => "prepared to abort",
            Self::Complete(Decision::Commit) => "committed",
            Self::Complete(Decision::Abort) => "aborted",
        }
    }
}

/// Producer of a transaction: older epochs of the same id are fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerEpoch {
    pub id: i64,
    pub epoch: i16,
}

impl fmt::Display for ProducerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "producer {}, epoch {}", self.id, self.epoch)
    }
}

/// Offsets that a transaction commits with its records.
pub type StagedOffsets = BTreeMap<TopicPartition, Committed>;

/// State of one transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub phase: Phase,
    /// Producer that may write. During the abort of a takeover it already has the epoch that fences the earlier one.
    pub producer: ProducerEpoch,
    /// Earlier producer, kept as long as it may request its new epoch again.
    pub before: Option<ProducerEpoch>,
    /// Time in ms that a transaction may stay open.
    pub timeout_ms: u32,
    /// Time at which the transaction was opened, ms since 1970.
    pub opened_ms: Option<u64>,
    /// Time at which this state began, ms since 1970.
    pub changed_ms: u64,
    /// Partitions that the open or prepared transaction writes to.
    pub partitions: BTreeSet<TopicPartition>,
    /// Groups whose offsets it may commit, with the offsets that it commits.
    pub offsets: BTreeMap<GroupName, StagedOffsets>,
}

/// Result for a producer that takes over, or that continues with another epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// Producer can start.
    Begins(Transaction),
    /// Producer has already received this epoch and requested it again.
    Again(ProducerEpoch),
    /// Open transaction has to be aborted first; then the producer has to repeat the request.
    Aborts(Transaction),
    /// Epochs of the id are used up: the producer has to repeat the request with a new id.
    WantsId,
}

/// Result of a request to end a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Prepares(Transaction),
    /// Transaction has already ended this way.
    Again,
}

impl Transaction {
    /// Returns the state of a new transactional id.
    pub fn new(id: i64, timeout_ms: u32, now_ms: u64) -> Outcome<Self> {
        check_timeout(timeout_ms)?;
        Ok(Self {
            phase: Phase::Empty,
            producer: ProducerEpoch { id, epoch: 0 },
            before: None,
            timeout_ms,
            opened_ms: None,
            changed_ms: now_ms,
            partitions: BTreeSet::new(),
            offsets: BTreeMap::new(),
        })
    }

    /// Returns the state without partitions and offsets, in another phase.
    fn cleared(&self, phase: Phase, now_ms: u64) -> Self {
        Self {
            phase,
            producer: self.producer,
            before: self.before,
            timeout_ms: self.timeout_ms,
            opened_ms: None,
            changed_ms: now_ms,
            partitions: BTreeSet::new(),
            offsets: BTreeMap::new(),
        }
    }

    /// Takes over the transactional id, or continues after an error: then `expected` is the producer's last id and
    /// epoch.
    pub fn init(
        &self,
        expected: Option<ProducerEpoch>,
        new_id: Option<i64>,
        timeout_ms: u32,
        now_ms: u64,
    ) -> Outcome<Init> {
        check_timeout(timeout_ms)?;
        let is_again = expected.is_some() && expected == self.before;
        if let Some(expected) = expected
            && expected != self.producer
            && !(is_again && self.phase != Phase::Open)
        {
            return Err(self.fenced(expected));
        }
        match self.phase {
            Phase::Prepared(_) => Err(self.concurrent()),
            Phase::Open => Ok(Init::Aborts(self.prepared(Decision::Abort, true, now_ms))),
            Phase::Empty | Phase::Complete(_) if is_again && self.producer.epoch <= EPOCH_MAX => {
                Ok(Init::Again(self.producer))
            }
            Phase::Empty | Phase::Complete(_) => {
                let producer = match new_id {
                    _ if self.producer.epoch < EPOCH_MAX => {
                        ProducerEpoch { epoch: self.producer.epoch + 1, ..self.producer }
                    }
                    Some(id) => ProducerEpoch { id, epoch: 0 },
                    None => return Ok(Init::WantsId),
                };
                let cleared = self.cleared(Phase::Empty, now_ms);
                Ok(Init::Begins(Self { producer, before: expected, timeout_ms, ..cleared }))
            }
        }
    }

    fn check_producer(&self, producer: ProducerEpoch) -> Outcome {
        if producer.id != self.producer.id {
            let message = format!("this transactional id belongs to {}, not to {producer}", self.producer);
            return Err(TransactionError::new(TransactionReason::OtherProducer, message));
        }
        if producer.epoch != self.producer.epoch {
            return Err(self.fenced(producer));
        }
        Ok(())
    }

    fn fenced(&self, producer: ProducerEpoch) -> TransactionError {
        let message = format!("{producer} is fenced: {} now has this transactional id", self.producer);
        TransactionError::new(TransactionReason::Fenced, message)
    }

    fn concurrent(&self) -> TransactionError {
        let message = format!("the previous transaction of {} is not completed yet: try again", self.producer);
        TransactionError::new(TransactionReason::Concurrent, message)
    }

    fn wrong_phase(&self, what: &str) -> TransactionError {
        let message = format!("the transaction of {} is {}: it cannot be {what}", self.producer, self.phase.name());
        TransactionError::new(TransactionReason::WrongPhase, message)
    }

    /// Returns the open transaction, which may be a new one.
    fn opened(&self, producer: ProducerEpoch, now_ms: u64) -> Outcome<Self> {
        self.check_producer(producer)?;
        match self.phase {
            Phase::Prepared(_) => Err(self.concurrent()),
            Phase::Open => Ok(self.clone()),
            Phase::Empty | Phase::Complete(_) => {
                Ok(Self { opened_ms: Some(now_ms), before: None, ..self.cleared(Phase::Open, now_ms) })
            }
        }
    }

    /// Checks that this producer may query whether partitions are in its transaction.
    pub fn check_open(&self, producer: ProducerEpoch) -> Outcome {
        self.check_producer(producer)?;
        match self.phase {
            Phase::Prepared(_) => Err(self.concurrent()),
            Phase::Open => Ok(()),
            Phase::Empty | Phase::Complete(_) => Err(self.wrong_phase("written to")),
        }
    }

    /// Adds partitions to the transaction. Returns `None` if all were added before.
    pub fn add_partitions(
        &self,
        producer: ProducerEpoch,
        partitions: &[TopicPartition],
        now_ms: u64,
    ) -> Outcome<Option<Self>> {
        let mut opened = self.opened(producer, now_ms)?;
        opened.partitions.extend(partitions.iter().cloned());
        if opened.partitions.len() > TRANSACTION_PARTITIONS_MAX {
            let message = format!("a transaction has at most {TRANSACTION_PARTITIONS_MAX} partitions");
            return Err(Error::too_large(message).into());
        }
        Ok((opened != *self).then_some(opened))
    }

    /// Adds a group whose offsets the transaction commits. Returns `None` if it was added before.
    pub fn add_group(&self, producer: ProducerEpoch, group: &GroupName, now_ms: u64) -> Outcome<Option<Self>> {
        let mut opened = self.opened(producer, now_ms)?;
        opened.offsets.entry(group.clone()).or_default();
        if opened.offsets.len() > TRANSACTION_GROUPS_MAX {
            let message = format!("a transaction commits offsets of at most {TRANSACTION_GROUPS_MAX} groups");
            return Err(Error::too_large(message).into());
        }
        Ok((opened != *self).then_some(opened))
    }

    /// Stages offsets of a group that was added. They take effect when the transaction is committed.
    pub fn stage_offsets(
        &self,
        producer: ProducerEpoch,
        group: &GroupName,
        offsets: impl IntoIterator<Item = (TopicPartition, Committed)>,
    ) -> Outcome<Self> {
        self.check_open(producer)?;
        let mut staging = self.clone();
        let Some(staged) = staging.offsets.get_mut(group) else {
            return Err(self.wrong_phase(&format!("given offsets of group {group}, which was not added")));
        };
        staged.extend(offsets);
        let all = || staging.offsets.values().flatten();
        let metadata_bytes: usize = all().map(|(_, committed)| committed.metadata.len()).sum();
        if all().count() > TRANSACTION_PARTITIONS_MAX || metadata_bytes > TRANSACTION_METADATA_BYTES_MAX {
            return Err(Error::too_large(format!(
                "a transaction commits at most {TRANSACTION_PARTITIONS_MAX} offsets, with \
                 {TRANSACTION_METADATA_BYTES_MAX} bytes of metadata"
            ))
            .into());
        }
        Ok(staging)
    }

    pub fn end(&self, producer: ProducerEpoch, decision: Decision, now_ms: u64) -> Outcome<End> {
        self.check_producer(producer)?;
        let what = match decision {
            Decision::Commit => "committed",
            Decision::Abort => "aborted",
        };
        match self.phase {
            Phase::Open => Ok(End::Prepares(self.prepared(decision, false, now_ms))),
            Phase::Complete(done) if done == decision => Ok(End::Again),
            Phase::Prepared(done) if done == decision => Err(self.concurrent()),
            Phase::Empty | Phase::Prepared(_) | Phase::Complete(_) => Err(self.wrong_phase(what)),
        }
    }

    /// Aborts the transaction if its timeout has elapsed. Its producer is fenced, and may continue once it has
    /// requested its new epoch.
    pub fn expire(&self, now_ms: u64) -> Option<Self> {
        let deadline_ms = self.opened_ms?.saturating_add(self.timeout_ms.into());
        let is_late = self.phase == Phase::Open && deadline_ms <= now_ms;
        is_late.then(|| self.prepared(Decision::Abort, true, now_ms))
    }

    /// Returns the prepared transaction. Offsets of an aborted transaction are void immediately.
    fn prepared(&self, decision: Decision, is_fencing: bool, now_ms: u64) -> Self {
        let mut prepared = Self { phase: Phase::Prepared(decision), changed_ms: now_ms, ..self.clone() };
        if decision == Decision::Abort {
            prepared.offsets.clear();
        }
        if is_fencing {
            prepared.before = Some(self.producer);
            // No producer writes with the last epoch: see `EPOCH_MAX`.
            prepared.producer.epoch = self.producer.epoch.saturating_add(1);
        }
        prepared
    }

    /// Returns the transaction with all of its offsets committed at this time, ms since 1970.
    pub fn decided_at(mut self, decided_ms: u64) -> Self {
        self.offsets.values_mut().flatten().for_each(|(_, committed)| committed.committed_ms = decided_ms);
        self
    }

    /// Returns the transaction without a deleted topic; `None` if it has no partition and no offset of it. Both are
    /// void for a new topic with the same name.
    pub fn without_topic(&self, topic: &TopicName, now_ms: u64) -> Option<Self> {
        let mut all = self.partitions.iter().chain(self.offsets.values().flatten().map(|(at, _)| at));
        if all.all(|at| at.topic != *topic) {
            return None;
        }
        let mut without = Self { changed_ms: now_ms, ..self.clone() };
        without.partitions.retain(|at| at.topic != *topic);
        without.offsets.values_mut().for_each(|staged| staged.retain(|at, _| at.topic != *topic));
        Some(without)
    }

    /// Returns the completed transaction after its decision was carried out in every partition; `None` if it was not
    /// prepared.
    pub fn completed(&self, now_ms: u64) -> Option<Self> {
        match self.phase {
            Phase::Prepared(decision) => Some(self.cleared(Phase::Complete(decision), now_ms)),
            Phase::Empty | Phase::Open | Phase::Complete(_) => None,
        }
    }

    /// Returns `true` if the id has been unused for so long that it is to be forgotten.
    pub fn is_expired(&self, retention_ms: u64, now_ms: u64) -> bool {
        matches!(self.phase, Phase::Empty | Phase::Complete(_))
            && self.changed_ms.saturating_add(retention_ms) <= now_ms
    }
}

fn check_timeout(timeout_ms: u32) -> Outcome {
    if timeout_ms == 0 || timeout_ms > TRANSACTION_TIMEOUT_MS_MAX {
        let message = format!("a transaction's timeout is 1 to {TRANSACTION_TIMEOUT_MS_MAX} ms, not {timeout_ms}");
        return Err(TransactionError::new(TransactionReason::InvalidTimeout, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
